"""The box: what is in it, what is not, and that it fails closed. bubblewrap is the real
one."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base import processes
from mmrepro.base.box import (
    WORK,
    Box,
    BoxEnded,
    BoxOrder,
    Leads,
    Limits,
    NoBox,
    box as boxes,
    bubblewrap,
    inside,
    keeper,
    require_box,
    seccomp,
)
from mmrepro.base.box.box import _why_none
from mmrepro.base.box.canaries import canaries_outside
from toy_engine import until as until_it_is

needs_box = pytest.mark.usefixtures("a_box")


def until(holds: Callable[[], object]) -> None:
    until_it_is(holds, "a box's state")


PATH = {"PATH": "/usr/bin:/bin"}


def in_box(script: str, **asked: Any) -> tuple[int, str]:
    """The exit code and the output of a shell's script in a box."""
    order = BoxOrder(("bash", "-c", script), PATH, **asked)
    with tempfile.TemporaryFile() as output:
        with Box(order, stdout=output, stderr=output) as box:
            code = box.wait(60)
        output.seek(0)
        return code, output.read().decode()


def python_in_box(script: str, **asked: Any) -> str:
    """What a Python script prints in a box."""
    python = str(Path(sys.executable).resolve())
    order = BoxOrder((python, "-I", "-S", "-c", script), PATH, **asked)
    with tempfile.TemporaryFile() as output:
        with Box(order, stdout=output, stderr=output) as box:
            box.wait(60)
        output.seek(0)
        return output.read().decode()


# ------------------------------------------------------------------------ what is in it


@needs_box
def test_only_what_is_listed_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "do-not-tell")
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for folder in (shown, hidden):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    script = (
        f"cat {shown}/file; cat {hidden}/file; touch {shown}/new; env; cat "
        "/proc/1/environ; ls ~"
    )
    _, output = in_box(script, readable=(shown,))
    assert output.startswith("shown")
    assert f"{hidden}/file: No such file" in output
    assert "Read-only file system" in output
    assert "do-not-tell" not in output
    assert not (shown / "new").exists()
    home_entries = [
        entry.name for entry in Path.home().iterdir() if not entry.name.startswith(".")
    ]
    assert not set(home_entries) & set(output.split())


@needs_box
def test_it_has_its_own_network_processes_and_rights() -> None:
    _, output = in_box(
        "cat /proc/net/dev | tail -n +3 | cut -d: -f1; ls /proc | grep -cE '^[0-9]+$'; "
        "id -u; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status"
    )
    words = output.split()
    assert words[0] == "lo"
    assert int(words[1]) < 12, "processes of the machine are seen"
    assert int(words[2]) != 0
    assert words[3:] == ["CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"]


@needs_box
@pytest.mark.parametrize(
    "attempt",
    [
        "mount -o remount,bind,rw /usr",
        "umount /tmp",
        "unshare -Ur true",
        "unshare -n true",
        "touch /usr/written",
        "sh -c 'echo x > /proc/sys/kernel/core_pattern'",
        "ls /proc/1/root/",
        "python3 -c 'import socket; socket.socket(40, 1)'",
        "python3 -c 'import socket; socket.socket(17, 3)'",
        "python3 -c 'import socket; socket.socket(16, 3, 15)'",
        "keyctl show || false",
        "chroot / true",
    ],
)
def test_what_a_box_refuses(attempt: str) -> None:
    code, output = in_box(f"{attempt} && echo it went through")
    assert "it went through" not in output
    assert code != 0


@needs_box
def test_files_are_copied_in_and_nothing_comes_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "data.json").write_text("{}\n")
    (tmp_path / "link").symlink_to("/etc/shadow")
    code, output = in_box(
        "cat a/data.json; cat link; echo y > own; cat own", copied=(tmp_path,)
    )
    lines = output.splitlines()
    assert (code, lines[0], lines[-1]) == (0, "{}", "y")
    assert "No such file" in lines[1]
    assert not (tmp_path / "own").exists()


# ----------------------------------------------------------------------- what bounds it


@needs_box
def test_its_folders_are_bounded() -> None:
    limits = Limits(work=1 << 20, temporary=1 << 20, shared=1 << 20)
    script = "; ".join(
        f"head -c 4M /dev/zero > {place}/big; stat -c %s {place}/big"
        for place in (WORK, "/tmp", "/dev/shm")
    )
    _, output = in_box(script, limits=limits)
    sizes = [int(line) for line in output.splitlines() if line.isdigit()]
    assert len(sizes) == 3
    assert max(sizes) <= 1 << 20


GREEDY = (
    "block = bytearray(700 << 20)\nprint('taken', flush=True)\nimport time\n"
    "time.sleep(60)"
)
SHARING = """
import mmap, os, time
block = mmap.mmap(-1, 700 << 20)
for at in range(0, len(block), 4096):
    block[at] = 1
print('taken', flush=True)
time.sleep(60)
"""
FORKS = """
import os, time
for _ in range(400):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""


@needs_box
@pytest.mark.parametrize(
    ("script", "limits", "word"),
    [
        (GREEDY, Limits(memory=200 << 20, work=1, temporary=1, shared=1), "memory"),
        (SHARING, Limits(memory=200 << 20, work=1, temporary=1, shared=1), "memory"),
        (FORKS, Limits(processes=50), "processes"),
    ],
)
def test_one_that_takes_too_much_is_ended(
    script: str, limits: Limits, word: str
) -> None:
    python = str(Path(sys.executable).resolve())
    with Box(BoxOrder((python, "-I", "-S", "-c", script), PATH, limits=limits)) as box:
        code = box.wait(60)
    # The kernel's own bound may come first: it ends or refuses, and nothing says why.
    assert code != 0
    assert box.over == "" or word in box.over


# ---------------------------------------------------------------------- ways in and out


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Path]:
    """A Unix socket of ours that answers with what it gets, in capitals."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "echo"))
        (tmp_path / "echo").chmod(0o666)
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link:
                    link.sendall(link.recv(100).upper())

        threading.Thread(target=serve, daemon=True).start()
        yield tmp_path / "echo"


@needs_box
def test_a_lead_is_the_only_way_out(echo: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        script = (
            "exec 3<>/dev/tcp/gpu-box/8123; echo hello >&3; cat <&3; "
            "exec 4<>/dev/tcp/10.1.2.3/80; echo there >&4; cat <&4; "
            f"(exec 5<>/dev/tcp/127.0.0.1/{port}) && echo OUT"
        )
        _, output = in_box(
            script,
            leads=(Leads((8123, 80), echo),),
            hosts=("gpu-box",),
            addresses=("10.1.2.3",),
        )
    assert output.startswith("HELLO\nTHERE\n")
    assert "OUT" not in output


@needs_box
def test_a_port_of_the_box_is_reached_from_here(tmp_path: Path) -> None:
    server = "import http.server as h\nh.test(h.SimpleHTTPRequestHandler, port=8000)"
    python = str(Path(sys.executable).resolve())
    order = BoxOrder((python, "-I", "-c", server), PATH, door=True)
    with Box(order) as box:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            taken = probe.getsockname()[1]
            with pytest.raises(BoxEnded, match="cannot be reached"):
                box.expose(taken)
        box.expose(8000)

        def answers() -> bool:
            link = HTTPConnection("127.0.0.1", 8000, timeout=5)
            try:
                link.request("GET", "/")
                return link.getresponse().status == 200
            except OSError:
                return False
            finally:
                link.close()

        until(answers)
        pid = processes.descendants(box.process.pid)
        inner = {int(processes.field(one, "NSpid")[-1]): one for one in pid}
        assert box.outside(2) == inner[2]
        with pytest.raises(BoxEnded):
            box.outside(99_999)
    assert not answers()


# ------------------------------------------------------------------------------ its end


@needs_box
def test_all_of_it_ends_with_mmrepro(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from mmrepro.base.box import Box, BoxOrder
removed = Path({str(tmp_path)!r}) / "removed"
removed.mkdir()
box = Box(BoxOrder(("bash", "-c", "setsid sleep 600 & sleep 600"), {PATH!r}, removed=(removed,)))
print(box.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        keeper = int(child.stdout.readline())
        until(lambda: len(processes.descendants(keeper)) >= 4)
        born = processes.descendants(keeper) | {keeper: processes.born(keeper)}
        child.send_signal(signal.SIGKILL)
    until(lambda: not any(processes.alive(pid, start) for pid, start in born.items()))
    until(lambda: not (tmp_path / "removed").exists())


@needs_box
def test_ending_it_twice_is_one_end_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    box = Box(BoxOrder(("sleep", "600"), PATH))
    folder = box.door.parent
    left = processes.descendants(box.process.pid)
    box.end()
    box.end()
    assert not folder.exists()
    assert not any(processes.alive(pid, start) for pid, start in left.items())
    assert not list(tmp_path.iterdir()), "a canary of the home"


# ------------------------------------------------------------------------- fails closed


def test_without_bubblewrap_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(boxes, "program_here", lambda: "")
    with pytest.raises(NoBox, match="not installed"):
        Box(BoxOrder(("touch", str(tmp_path / "ran")), PATH))
    _why_none.cache_clear()
    try:
        with pytest.raises(NoBox, match="none can be made here") as error:
            require_box("--trust-report")
    finally:
        monkeypatch.undo()
        _why_none.cache_clear()
    assert "--trust-report" in error.value.hint
    assert not list(Path(tempfile.gettempdir()).glob(f"mmr-box-*{os.getpid()}"))


def test_a_bubblewrap_that_cannot_make_one_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text(
        "#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    refusing.chmod(0o700)
    monkeypatch.setattr(boxes, "program_here", lambda: str(refusing))
    with pytest.raises(NoBox, match="cannot make one"):
        Box(BoxOrder(("true",), PATH))


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ({"failed": [], "tested": 0}, "cannot make one"),
        ({"tested": 13}, "cannot make one"),
        ({"failed": ["reach an address"], "tested": 13}, "could reach an address"),
    ],
)
def test_a_box_whose_own_test_is_not_whole_and_clean_is_none(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    report: dict[str, Any],
    why: str,
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setattr(boxes, "program_here", lambda: str(program))
    monkeypatch.setattr(boxes, "_read_line", lambda _: report)
    with pytest.raises(NoBox, match=why):
        Box(BoxOrder(("true",), PATH))


@needs_box
@pytest.mark.parametrize(
    ("weaker", "could"),
    [
        (("--unshare-net",), "reach an address"),
        (("--unshare-pid",), "see the processes outside"),
        (("--remount-ro", "/"), ""),
    ],
)
def test_a_leak_is_found_before_anything_runs(
    weaker: tuple[str, ...], could: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bubblewrap.box_options

    def less(*args: Any, **more: Any) -> list[str]:
        words = real(*args, **more)
        at = words.index(weaker[0])
        return words[:at] + words[at + len(weaker) :]

    monkeypatch.setattr(boxes, "box_options", less)
    if not could:
        Box(BoxOrder(("true",), PATH)).end()
        return
    with pytest.raises(NoBox, match=could):
        Box(BoxOrder(("true",), PATH))


@needs_box
def test_a_box_that_shows_the_home_is_leaky(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        monkeypatch.setenv("HOME", home)
        with pytest.raises(NoBox, match="read the home"):
            Box(BoxOrder(("true",), PATH, readable=(Path(home),)))


def test_a_test_that_cannot_be_carried_out_has_not_held() -> None:
    def broken() -> bool:
        raise LookupError

    assert not inside.held(broken)
    assert not inside.held(lambda: False)
    assert inside.held(lambda: True)


# ---------------------------------------------------------------------------- its parts


def test_each_processor_has_its_filter() -> None:
    for machine in seccomp.PROCESSORS:
        program = seccomp.seccomp_program(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 <= 4096, "the kernel takes no longer one"
    with pytest.raises(KeyError):
        seccomp.seccomp_program("s390x")


def test_numbers_of_the_filter_are_those_of_this_machines_headers() -> None:
    headers = {
        0: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        1: Path("/usr/include/asm-generic/unistd.h"),
    }
    for column, file in headers.items():
        if not file.is_file():
            continue
        known = dict(
            re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text())
        )
        for name, numbers in seccomp.REFUSED_CALLS.items():
            if name in known and numbers[column] is not None:
                assert numbers[column] == int(known[name]), name


# --------------------------------------------------------------------- what it is tested


def test_nothing_is_made_in_the_home_while_a_box_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "box"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    with canaries_outside(folder) as canaries:
        assert canaries.home == str(home)
        assert not list(home.iterdir())
        identity = [*canaries.home_identity]
    assert not inside.is_another(str(home), identity), "it is seen"
    assert inside.is_another(str(folder), identity), "another folder is there"
    assert inside.is_another(str(tmp_path / "nothing"), identity)


@pytest.mark.parametrize("kind", ["a file", "nothing"])
def test_for_a_home_that_is_no_folder_another_one_is_looked_at(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    if kind == "a file":
        home.write_text("")
    monkeypatch.setenv("HOME", str(home))
    with canaries_outside(tmp_path) as canaries:
        assert canaries.home == str(tmp_path)


@needs_box
def test_a_box_that_shows_the_home_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "environment").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    code, _ = in_box("true", readable=(home / "environment",))
    assert code == 0
    with pytest.raises(NoBox, match="read the home"):
        in_box("true", readable=(home,))


@needs_box
@pytest.mark.parametrize("privileged", [None, False], ids=["as it is", "as a user"])
def test_what_is_copied_from_beside_the_canaries_is_no_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privileged: bool | None
) -> None:
    if privileged is not None:
        monkeypatch.setattr(boxes, "is_privileged", lambda _: privileged)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "file").write_text("kept")
    code, output = in_box(
        "cat /box/cache/file", caches=((tmp_path / "cache", WORK / "cache"),)
    )
    assert (code, output) == (0, "kept")


@needs_box
def test_shared_memory_counts_once_where_no_cgroup_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an ordinary user's keeper, which may make no cgroup.
    program = tmp_path / "keeper.py"
    source = Path(keeper.__file__).read_text()
    folder = str(Path(keeper.__file__).parents[1])
    program.write_text(
        source.replace("/sys/fs/cgroup", str(tmp_path / "none")).replace(
            "str(folder) for folder in Path(__file__).resolve().parents[:2]",
            f"{folder!r}, {folder + '/box'!r}",
        )
    )
    monkeypatch.setattr(keeper, "__file__", str(program))
    python = str(Path(sys.executable).resolve())
    several = SHARING.replace("time.sleep(60)", "os.fork(); os.fork(); time.sleep(2)")
    for script, ended in ((SHARING, True), (several, False)):
        most = (200 if ended else 900) << 20
        limits = Limits(memory=most, work=1, temporary=1, shared=1)
        order = BoxOrder((python, "-I", "-S", "-c", script), PATH, limits=limits)
        with Box(order) as box:
            box.wait(60)
        assert ("memory" in box.over) == ended, box.over
