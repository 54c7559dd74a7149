"""A real supervisor with tiny victims. Only processes that a test started are ever
ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mmrepro.base import processes
from mmrepro.base.errors import SupervisorError
from mmrepro.engines.supervise import EngineProcess, free_port, start_engine
from toy_engine import until

# A grandchild in a session of its own that ignores SIGTERM and maps shared memory; the
# parent waits. `ready` is written whole: the two pids.
STUBBORN = """
    import mmap, os, signal, sys
    ready, shm = sys.argv[1:]
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        fd = os.open(shm, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, max(4096, os.fstat(fd).st_size))
        memory = mmap.mmap(fd, 4096)
        os.close(fd)
        with open(ready + ".tmp", "w") as file:
            file.write(f"{os.getpid()}")
        os.rename(ready + ".tmp", ready)
    while True:
        signal.pause()
"""

# Prints what it started, then waits for its own end.
STARTER = """
    import json, os, sys
    from pathlib import Path
    from mmrepro.engines.supervise import start_engine
    folder, detach, *argv = sys.argv[1:]
    log = Path(folder) / "engine.log"
    process = start_engine(argv, dict(os.environ), cwd=Path(folder), log=log, grace_s=0.3)
    if detach == "detach":
        process.detach()
    tmp = process._order.tmp
    print(json.dumps([process.pid, process.engine_pid, tmp]), flush=True)
    sys.stdin.read()
"""


def victim(program: str, *argv: object) -> list[str]:
    return [sys.executable, "-IS", "-c", textwrap.dedent(program), *map(str, argv)]


@pytest.fixture
def shm() -> Iterator[Path]:
    path = Path(f"/dev/shm/mmrepro-test-{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


Start = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[EngineProcess] = []

    def begin(argv: list[str], grace_s: float = 0.3) -> EngineProcess:
        process = start_engine(
            argv,
            dict(os.environ),
            cwd=tmp_path,
            log=tmp_path / "engine.log",
            grace_s=grace_s,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.stop()


def stubborn(tmp_path: Path, shm: Path) -> tuple[list[str], Callable[[], int]]:
    """The command, and a function that waits for the grandchild and gives its pid."""
    ready = tmp_path / "ready"

    def grandchild() -> int:
        until(ready.exists, "the victim is ready", 30)
        return int(ready.read_text())

    # Without a variable: nothing in it tells whose it is.
    return ["env", "-i", *victim(STUBBORN, ready, shm)], grandchild


def test_stop_ends_a_stubborn_grandchild_in_its_own_session(
    tmp_path: Path, shm: Path, start: Start
) -> None:
    command, grandchild = stubborn(tmp_path, shm)
    process = start(command)
    pid = grandchild()
    tmp = Path(process._order.tmp)
    assert processes.alive(pid)
    assert pid in process.process_ids()
    assert tmp.is_dir()
    report = process.stop()
    assert not processes.alive(pid)
    assert any(line.startswith(f"{pid} ") for line in report.forced)
    assert report.shm_removed == [str(shm)]
    assert not shm.exists()
    assert not tmp.exists()
    assert report.left == []
    assert process.stop() is report


def test_shared_memory_of_others_is_left_alone(
    tmp_path: Path, shm: Path, start: Start
) -> None:
    # There before the run, and mapped by the victim.
    shm.write_bytes(b"another program's")
    command, grandchild = stubborn(tmp_path, shm)
    process = start(command)
    grandchild()
    report = process.stop()
    assert report.shm_removed == []
    assert shm.read_bytes().startswith(b"another program's")


def test_processes_of_others_are_left_alone(
    tmp_path: Path, shm: Path, start: Start
) -> None:
    command, grandchild = stubborn(tmp_path, shm)
    bystander = subprocess.Popen(
        [sys.executable, "-IS", "-c", "import signal; signal.pause()"]
    )
    try:
        process = start(command)
        grandchild()
        process.stop()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_grace_of_stop_is_the_supervisors(
    tmp_path: Path, shm: Path, start: Start
) -> None:
    command, grandchild = stubborn(tmp_path, shm)
    process = start(command, grace_s=60.0)
    grandchild()
    report = process.stop(0.1)
    assert report.seconds < 30
    assert report.left == []


def test_an_engine_that_heeds_sigterm_is_not_forced(
    tmp_path: Path, start: Start
) -> None:
    ready = tmp_path / "ready"
    program = """
        import pathlib, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        pathlib.Path(sys.argv[1]).touch()
        signal.pause()
    """
    process = start(victim(program, ready), grace_s=30.0)
    until(ready.exists, "the victim is ready", 30)
    report = process.stop()
    assert (report.exit_code, report.forced, report.left) == (7, [], [])


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("pass", 0),
    ],
)
def test_an_engine_that_ends_by_itself_reports_its_code(
    start: Start, program: str, code: int
) -> None:
    process = start(victim(program))
    until(lambda: process.exit_code is not None, "the exit code", 30)
    assert process.exit_code == code
    assert process.stop().exit_code == code


def test_output_goes_to_the_log_and_the_temporary_folder_is_its_own(
    tmp_path: Path, start: Start
) -> None:
    program = """
        import os, sys
        print(os.environ["TMPDIR"], os.getcwd(), flush=True)
        print("and this", file=sys.stderr)
    """
    process = start(victim(program))
    until(lambda: process.exit_code == 0, "the end", 30)
    said = (tmp_path / "engine.log").read_text().split()
    assert said == [process._order.tmp, str(tmp_path), "and", "this"]
    assert len(said[0]) < 40, "a Unix socket's path holds 107 bytes"


@pytest.mark.parametrize(
    "argv", [["/no/such/engine"], ["/"], ["no-such-engine-on-the-path"]]
)
def test_a_command_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    """In a folder for temporary ones of this test alone: other engines may run beside
    it."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with pytest.raises(SupervisorError, match="could not be started"):
        start_engine(argv, {}, cwd=tmp_path, log=tmp_path / "engine.log")
    until(lambda: not list(place.iterdir()), "the temporary folder is removed")


Helper = tuple["subprocess.Popen[bytes]", int, int, Path, int]


@pytest.fixture
def starter(tmp_path: Path, shm: Path) -> Iterator[Callable[..., Helper]]:
    """A helper process that starts the stubborn victim; what is left of it is ended."""
    helpers: list[subprocess.Popen[bytes]] = []
    pids: list[tuple[int, int]] = []

    def begin(how: str = "stay") -> Helper:
        command, grandchild = stubborn(tmp_path, shm)
        helper = subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(STARTER),
                str(tmp_path),
                how,
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        helpers.append(helper)
        assert helper.stdout is not None
        supervisor, engine, tmp = json.loads(helper.stdout.readline())
        pid = grandchild()
        for one in (supervisor, engine, pid):
            found = processes.stat(one)
            assert found is not None
            pids.append((one, found.start_ticks))
        return helper, supervisor, engine, Path(tmp), pid

    yield begin
    for helper in helpers:
        helper.kill()
        helper.communicate()
    for pid, born in pids:
        if processes.alive(pid, born):
            os.kill(pid, signal.SIGKILL)


def nothing_left(pids: list[int], *paths: Path) -> bool:
    return not any(processes.alive(pid) for pid in pids) and not any(
        p.exists() for p in paths
    )


def test_kill_9_of_the_starter_leaves_nothing(
    starter: Callable[..., Helper], shm: Path
) -> None:
    helper, supervisor, engine, tmp, pid = starter()
    helper.kill()
    until(lambda: nothing_left([supervisor, engine, pid], tmp, shm), "all is gone")


def test_kill_9_of_the_supervisor_leaves_nothing(
    starter: Callable[..., Helper], shm: Path
) -> None:
    _, supervisor, engine, tmp, pid = starter()
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: nothing_left([engine, pid], tmp, shm), "all is gone")


def test_kill_9_of_the_supervisor_of_an_engine_that_maps_memory(
    tmp_path: Path, shm: Path, start: Start
) -> None:
    """The kernel ends the engine with its supervisor: its maps are gone before anybody
    looks."""
    mapped = tmp_path / "mapped"
    program = """
        import mmap, os, signal, sys
        fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, 4096)
        memory = mmap.mmap(fd, 4096)
        open(sys.argv[1], "w").close()
        signal.pause()
    """
    process = start(victim(program, mapped, shm))
    supervisor = processes.stat(process.pid)
    assert supervisor is not None
    until(mapped.exists, "it maps memory")
    before = wakeups(process.pid)
    until(lambda: wakeups(process.pid) > before + 2, "the supervisor looked since then")
    os.kill(process.pid, signal.SIGKILL)
    until(
        lambda: nothing_left([process.engine_pid, supervisor.ppid], shm), "all is gone"
    )


def wakeups(pid: int) -> int:
    status = processes.read(pid, "status").decode()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_a_detached_engine_outlives_the_starter_and_ends_with_its_supervisor(
    starter: Callable[..., Helper], shm: Path
) -> None:
    helper, supervisor, engine, tmp, pid = starter("detach")
    helper.communicate(timeout=30)
    assert helper.returncode == 0
    assert all(processes.alive(p) for p in (supervisor, engine, pid))
    os.kill(supervisor, signal.SIGTERM)
    until(lambda: nothing_left([supervisor, engine, pid], tmp, shm), "all is gone")


def test_stop_after_the_supervisor_ended_by_itself_does_not_wait(
    tmp_path: Path, shm: Path, start: Start
) -> None:
    command, grandchild = stubborn(tmp_path, shm)
    process = start(command)
    grandchild()
    os.kill(process.pid, signal.SIGTERM)
    until(lambda: not processes.alive(process.pid), "the supervisor ended")
    until(lambda: process.exit_code is not None, "the engine's end was told")
    began = time.monotonic()
    report = process.stop(600.0)
    assert time.monotonic() - began < 50
    assert report.shm_removed == [str(shm)]
    assert report.left == []


def test_free_ports_can_be_bound() -> None:
    assert 1024 <= free_port() <= 65535
