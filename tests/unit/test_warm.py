"""Fork servers of a toy engine: real processes, each ended by the test that started
it."""

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mmrepro.base import processes
from mmrepro.base.errors import ForkServerDied
from mmrepro.engines.supervise import EngineProcess, fork_server
from mmrepro.engines.supervise.warm import (
    ForkServers,
    Refused,
    kept_fork_servers,
)
from toy_engine import serve, toy, until


@pytest.fixture
def parents(tmp_path: Path) -> Iterator[ForkServers]:
    with ForkServers(tmp_path / "kept") as made:
        yield made


@pytest.fixture
def started() -> Iterator[list[EngineProcess]]:
    made: list[EngineProcess] = []
    yield made
    for process in made:
        process.stop(0.1)


def facts_of(folder: Path) -> dict[str, Any]:
    until((folder / "facts.json").exists, "the server runs")
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return found


def test_a_server_is_what_a_newly_started_one_would_be(
    tmp_path: Path, parents: ForkServers, started: list[EngineProcess]
) -> None:
    spec = toy(tmp_path / "code")
    parent = parents.get(spec)
    seen = []
    for name in ("one", "two"):
        folder = tmp_path / name
        spec_now = replace(spec, env={**spec.env, "TOY": name})
        process = serve(parent, spec_now, folder, "--name", name)
        started.append(process)
        facts = facts_of(folder)
        assert facts["argv"][1:] == ["--name", name]
        assert (facts["cwd"], facts["variable"]) == (str(folder), name)
        assert facts["pid"] == facts["session"] == process.engine_pid
        assert facts["tmp"] == process._order.tmp
        assert facts["stdin"] == os.devnull
        assert facts["files"] == [0, 1, 2]
        assert processes.arguments(process.engine_pid) == processes.arguments(
            parent.pid
        )
        assert process.process_ids() == [process.engine_pid]
        assert (folder / "engine.log").read_text() == "imported\nimported\n", (
            "the parent's first"
        )
        seen.append(facts)
    assert seen[0]["random"] != seen[1]["random"]
    assert parent.facts.served == 2
    assert parent.facts.missing == ["no_such_module_of_this_release"]
    assert parent.facts.threads == {}
    assert parent.facts.files == []


def test_stop_and_a_hung_server_leave_the_parent_as_it_was(
    tmp_path: Path, parents: ForkServers
) -> None:
    program = """
        import os, signal, time
        if __name__ == "__main__":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("facts.tmp", "w").write("{}")
            os.rename("facts.tmp", "facts.json")
            while True:
                pass
    """
    spec = toy(tmp_path / "code", program)
    parent = parents.get(spec)

    def footprint() -> tuple[int, int]:
        folder = Path(f"/proc/{parent.pid}")
        return len(list((folder / "fd").iterdir())), len(
            list((folder / "task").iterdir())
        )

    before = footprint()
    for number in range(5):
        folder = tmp_path / str(number)
        process = serve(parent, spec, folder)
        facts_of(folder)
        assert {process.pid, process.engine_pid} <= processes.descendants(
            parent.pid
        ).keys()
        report = process.stop(0.05)
        assert report.exit_code == -signal.SIGKILL
        assert report.left == []
    assert parent.alive
    until(lambda: footprint() == before, "the parent has what it had")
    until(lambda: len(processes.descendants(parent.pid)) == 1, "its guardian alone")


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no')", 1, "no"),
        ("raise ValueError('x')", 1, "ValueError: x"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end"),
        (
            (
                "import threading; threading.Thread(target=print, "
                "args=('thread',)).start()"
            ),
            0,
            "thread",
        ),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_it_ends_as_python_would(
    tmp_path: Path,
    parents: ForkServers,
    started: list[EngineProcess],
    end: str,
    code: int,
    said: str,
) -> None:
    spec = toy(tmp_path / "code", f"if __name__ == '__main__':\n    {end}\n")
    process = serve(parents.get(spec), spec, tmp_path / "run")
    started.append(process)
    until(lambda: process.exit_code is not None, "its end")
    assert process.exit_code == code
    assert said in (tmp_path / "run/engine.log").read_text()


CHILD = """
    import json, multiprocessing, os, signal, socket, sys, time

    def name_lines(name):
        write = sys.stdout.write
        sys.stdout.write = lambda text: write(f"{name}: {text}" if text.strip() else text)

    def child(connection, expected):
        name_lines("child")
        print("hello", flush=True)
        kept = connection.fileno()
        kinds = {n: os.readlink(f"/proc/self/fd/{n}") for n in expected if n != kept}
        connection.send({
            "kinds": kinds, "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "pid": os.getpid(), "method": multiprocessing.get_start_method(),
        })

    if __name__ == "__main__":
        multiprocessing.set_start_method("spawn")
        signal.signal(signal.SIGTERM, lambda *_: None)
        name_lines("server")
        listener = socket.create_server(("127.0.0.1", 0))
        ours, theirs = multiprocessing.Pipe()
        held = [listener.fileno(), ours.fileno()]
        process = multiprocessing.Process(target=child, args=(theirs, held))
        process.start()
        facts = ours.recv()
        process.join()
        with open("facts.tmp", "w") as file:
            json.dump({**facts, "exit": process.exitcode}, file)
        os.rename("facts.tmp", "facts.json")
"""


def test_a_spawned_child_is_forked_and_has_what_a_spawned_one_has(
    tmp_path: Path, parents: ForkServers, started: list[EngineProcess]
) -> None:
    """Above all no copy of the server's listening socket, which would outlive the
    server."""
    spec = toy(tmp_path / "code", CHILD)
    started.append(serve(parents.get(spec), spec, tmp_path / "run"))
    facts = facts_of(tmp_path / "run")
    assert set(facts["kinds"].values()) == {os.devnull}
    assert facts["term"] is True
    assert (facts["method"], facts["exit"]) == ("spawn", 0)
    log = (tmp_path / "run/engine.log").read_text().splitlines()
    assert "mmrepro start: forked in place of a spawn: Process-1" in log
    assert "child: hello" in log, "not behind the server's name"


def test_stand_ins_report_themselves_in_each_process(
    tmp_path: Path, parents: ForkServers, started: list[EngineProcess]
) -> None:
    program = """
        import multiprocessing, os, sys, types
        def forked():
            os.write(2, f"stand-in here {os.getpid()}\\n".encode())
        sys.modules["mmrepro_stand_in_toy"] = types.SimpleNamespace(forked=forked)
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=print, args=("x",))
            process.start()
            process.join()
    """
    spec = toy(tmp_path / "code", program)
    process = serve(parents.get(spec), spec, tmp_path / "run")
    started.append(process)
    until(lambda: process.exit_code is not None, "its end")
    said = (tmp_path / "run/engine.log").read_text().splitlines()
    pids = {line.split()[-1] for line in said if line.startswith("stand-in here")}
    assert len(pids) == 2
    assert str(process.engine_pid) in pids


def test_what_cannot_be_pickled_fails_as_with_spawn(
    tmp_path: Path, parents: ForkServers, started: list[EngineProcess]
) -> None:
    program = """
        import multiprocessing
        if __name__ == "__main__":
            multiprocessing.get_context("spawn").Process(target=lambda: None).start()
    """
    spec = toy(tmp_path / "code", program)
    process = serve(parents.get(spec), spec, tmp_path / "run")
    started.append(process)
    until(lambda: process.exit_code is not None, "its end")
    assert process.exit_code == 1
    assert "ickle" in (tmp_path / "run/engine.log").read_text()


@pytest.mark.parametrize(
    ("imports", "why"),
    [
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(99,), "
            "daemon=True).start()",
            "started 1 threads of ",
        ),
        (
            "import socket, sys; sys.kept = socket.create_server(('127.0.0.1', 0))",
            "opened socket:",
        ),
        ("import sys; sys.kept = open('written', 'w')", "opened "),
        ("import os; kept = os.pipe()", "opened pipe:"),
        (
            "import subprocess; kept = subprocess.Popen(['sleep', '99'])",
            "started process",
        ),
        (
            "import sys, types; sys.modules['torch'] = types.SimpleNamespace("
            "cuda=types.SimpleNamespace(is_initialized=lambda: True), "
            "default_generator=None)",
            "initialised CUDA",
        ),
        ("raise ValueError('not here')", "cannot be imported: ValueError: not here"),
    ],
)
def test_what_cannot_be_forked_is_refused(
    tmp_path: Path, parents: ForkServers, imports: str, why: str
) -> None:
    with pytest.raises(Refused, match=why) as refused:
        parents.get(toy(tmp_path / "code", imports))
    assert refused.value.cold is ("thread" in imports)


@pytest.mark.parametrize(
    "imports",
    [
        "import sys; sys.kept = open(__file__)",
        "import sys; sys.kept = open('/dev/null', 'w')",
        "import sys; sys.kept = open('/dev/urandom')",
    ],
)
def test_what_is_only_read_is_no_obstacle(
    tmp_path: Path, parents: ForkServers, imports: str
) -> None:
    parent = parents.get(toy(tmp_path / "code", imports))
    assert len(parent.facts.files) == 1


NAMED_THREAD = """
    import ctypes, threading, time

    def sleeps(name):
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        named.set()
        time.sleep(99)

    named = threading.Event()
    threading.Thread(target=sleeps, args=({name!r},), daemon=True).start()
    named.wait()
"""


def test_jemallocs_thread_is_no_obstacle_and_an_unknown_one_means_a_cold_start(
    tmp_path: Path, parents: ForkServers
) -> None:
    parent = parents.get(
        toy(tmp_path / "code", NAMED_THREAD.format(name=b"jemalloc_bg_thd"))
    )
    assert parent.facts.threads == {"jemalloc_bg_thd": 1}
    with pytest.raises(
        Refused, match="1 threads of unknown use, called 'my_alloc"
    ) as refused:
        parents.get(
            toy(tmp_path / "other", NAMED_THREAD.format(name=b"my_alloc_bg_thd"))
        )
    assert refused.value.cold


@pytest.mark.skipif(
    os.cpu_count() == 1, reason="OpenBLAS starts as many threads as there are cores"
)
def test_threads_that_end_for_a_fork_are_no_obstacle(
    tmp_path: Path, parents: ForkServers
) -> None:
    """OpenBLAS has fork handlers."""
    imports = (
        "import numpy, os; open('tasks', "
        "'w').write(str(len(os.listdir('/proc/self/task'))))"
    )
    parent = parents.get(toy(tmp_path / "code", imports, OPENBLAS_NUM_THREADS="2"))
    assert (parent.folder / "tasks").read_text() == "2"
    assert parent.facts.threads == {}


def test_one_that_dies_as_it_imports_is_said_with_its_last_words(
    tmp_path: Path, parents: ForkServers
) -> None:
    program = "import os; print('out of luck', flush=True); os._exit(9)"
    with pytest.raises(ForkServerDied, match="ended with 9") as caught:
        parents.get(toy(tmp_path / "code", program))
    assert caught.value.detail == ["out of luck"]


def test_a_fork_where_cuda_is_initialised_is_a_spawn(
    tmp_path: Path, parents: ForkServers, started: list[EngineProcess]
) -> None:
    program = """
        import multiprocessing, sys, types
        def child():
            print("child", "toy_server" in sys.modules, flush=True)
        if __name__ == "__main__":
            from toy_server import child  # so that the spawned one can find it
            here = types.SimpleNamespace(is_initialized=lambda: True)
            sys.modules["torch"] = types.SimpleNamespace(cuda=here)
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join()
            print("ended with", process.exitcode)
    """
    spec = toy(tmp_path / "code", program)
    process = serve(parents.get(spec), spec, tmp_path / "run")
    started.append(process)
    until(lambda: process.exit_code is not None, "its end", 30)
    log = (tmp_path / "run/engine.log").read_text()
    assert "spawned, CUDA is initialised: SpawnProcess-1" in log
    assert "ended with 0" in log


# ---------------------------------------------------------------- which parent


def test_the_key_is_of_all_that_an_import_may_read(tmp_path: Path) -> None:
    spec = toy(tmp_path / "code")
    assert spec.key == replace(spec, label="another name for people").key
    assert spec.key == replace(spec, env={**spec.env, "SHLVL": "9", "_": "x"}).key
    for changed in (
        replace(spec, env={**spec.env, "OMP_NUM_THREADS": "7"}),
        replace(spec, env={**spec.env, "PYTHONPATH": "/standins"}),
        replace(spec, python=Path("/other/python")),
        replace(spec, preload=("transformers",)),
        replace(spec, digest="edited"),
        replace(spec, path=("/other",)),
    ):
        assert changed.key != spec.key


def test_equal_starts_share_one_and_the_least_recently_used_goes(
    tmp_path: Path,
) -> None:
    specs = [toy(tmp_path / "code", TOY=str(n)) for n in range(3)]
    with ForkServers(tmp_path / "kept", limit=2) as parents:
        first, second = parents.get(specs[0]), parents.get(specs[1])
        assert parents.get(specs[0]) is first
        os.utime(second.folder / "facts.json", (1, 1))
        third = parents.get(specs[2])
        assert (first.alive, second.alive, third.alive) == (True, False, True)
        assert not second.folder.exists()
    assert not first.alive
    assert not third.alive
    assert not first.folder.exists()


def test_those_that_are_lent_are_found_by_others_and_end_with_their_maker(
    tmp_path: Path,
) -> None:
    kept, spec = tmp_path / "kept", toy(tmp_path / "code")
    with ForkServers(kept, lent=True) as parents:
        made = parents.get(spec)
        with ForkServers(kept) as another:
            assert another.get(spec).pid == made.pid
        assert made.alive, "who finds it does not end it"
    assert not made.alive
    assert kept_fork_servers(kept) == []


def test_they_are_bounded_in_memory(tmp_path: Path) -> None:
    specs = [toy(tmp_path / "code", TOY=str(n)) for n in range(2)]
    with ForkServers(tmp_path / "kept", memory_bytes=1) as parents:
        first = parents.get(specs[0])
        parents.get(specs[1])
        assert not first.alive


def test_a_kept_one_is_found_by_the_next_command_and_ends_when_idle(
    tmp_path: Path,
) -> None:
    kept, spec = tmp_path / "kept", toy(tmp_path / "code")
    with ForkServers(kept, idle_s=600) as parents:
        made = parents.get(spec)
    try:
        assert made.alive, "it outlives the command"
        (found,) = kept_fork_servers(kept)
        assert (found.pid, found.key, found.label) == (made.pid, spec.key, "toy 1.0")
        with ForkServers(kept) as another:
            assert another.get(spec).pid == made.pid
            assert another.find(replace(spec, digest="edited")) is None
        assert made.alive, "who finds it does not end it"
    finally:
        made.end()
    assert kept_fork_servers(kept) == []
    with ForkServers(kept, idle_s=0.2) as parents:
        short = parents.get(spec)
    until(lambda: not short.alive and not short.folder.exists(), "it ended by itself")


def test_what_another_command_is_importing_is_waited_for(tmp_path: Path) -> None:
    kept, code = tmp_path / "kept", tmp_path / "code"
    slow = (
        f"import time; open({str(tmp_path / 'imports')!r}, 'a').write('x'); "
        "time.sleep(0.5)"
    )
    spec = toy(code, slow)
    with ThreadPoolExecutor() as commands:
        asked = [
            commands.submit(ForkServers(kept, idle_s=600).get, spec) for _ in range(3)
        ]
        made = [one.result() for one in asked]
    try:
        assert len({one.pid for one in made}) == 1
        assert (tmp_path / "imports").read_text() == "x"
    finally:
        made[0].end()


def test_a_place_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ForkServerDied, match="Nothing can be kept warm in "):
        ForkServers(tmp_path / "file" / "kept", idle_s=600).get(toy(tmp_path / "code"))


def test_a_dead_kept_one_is_none(tmp_path: Path) -> None:
    kept, spec = tmp_path / "kept", toy(tmp_path / "code")
    with ForkServers(kept, idle_s=600) as parents:
        made = parents.get(spec)
        os.kill(made.pid, signal.SIGKILL)
        until(lambda: not made.alive, "its end")
        assert parents.find(spec) is None
        until(lambda: not made.folder.exists(), "its guardian removed its folder")
        assert (made.last_used, made.memory_bytes) == (0.0, 0)
        with pytest.raises(ForkServerDied, match="has ended"):
            _ = made.facts
        with pytest.raises(ForkServerDied, match="does not answer"):
            serve(made, spec, tmp_path / "run")
        again = parents.get(spec)
        assert again.pid != made.pid
        again.end()


def test_a_detached_server_outlives_its_parent(
    tmp_path: Path, started: list[EngineProcess]
) -> None:
    spec = toy(tmp_path / "code")
    with ForkServers(tmp_path / "kept") as parents:
        process = serve(parents.get(spec), spec, tmp_path / "run")
        facts_of(tmp_path / "run")
        process.detach()
    started.append(process)
    assert processes.alive(process.engine_pid)
    os.kill(process.pid, signal.SIGTERM)
    until(
        lambda: not processes.alive(process.engine_pid), "it ends with its supervisor"
    )


@pytest.mark.parametrize("imported", [True, False])
def test_a_fork_has_random_numbers_of_its_own(
    monkeypatch: pytest.MonkeyPatch, imported: bool
) -> None:
    """Of the parent's state no two forks have the same; torch's are those of any new
    process."""
    seeded: list[str] = []
    numbers = SimpleNamespace(seed=lambda: seeded.append("numpy"))
    generator = SimpleNamespace(
        initial_seed=lambda: 67, manual_seed=lambda seed: seeded.append(f"torch {seed}")
    )
    for name, module in (
        ("numpy", SimpleNamespace(random=numbers)),
        ("torch", SimpleNamespace(default_generator=generator)),
    ):
        if imported:
            monkeypatch.setitem(sys.modules, name, module)
        else:
            monkeypatch.delitem(sys.modules, name, raising=False)
    drawn = set()
    for _ in range(2):
        random.seed(1)
        fork_server._reseed()
        drawn.add(random.random())
    assert len(drawn) == 2
    assert seeded == (["numpy", "torch 67"] * 2 if imported else [])
