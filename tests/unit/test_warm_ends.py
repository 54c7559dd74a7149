"""Whatever ends a fork server, its owner or its server, nothing is left of them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mmrepro.base import processes
from mmrepro.base.box import BoxOrder, NoBox
from mmrepro.engines.supervise import warm
from mmrepro.engines.supervise.warm import Refused, begin_fork_server
from toy_engine import toy, until

OWNER = """
    import json, os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from toy_engine import serve, toy
    from mmrepro.engines.supervise.warm import ForkServers
    folder = Path(sys.argv[2])
    spec = toy(folder / "code")
    parents = ForkServers(folder / "kept")
    parent = parents.get(spec)
    process = serve(parent, spec, folder / "run")
    print(json.dumps([parent.pid, process.pid, process.engine_pid, process._order.tmp,
                      str(parent.folder)]), flush=True)
    sys.stdin.read()
"""

Owner = Callable[[], tuple["subprocess.Popen[bytes]", list[int], list[Path]]]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """A process that has a parent and a server; (itself, their pids, their folders)."""
    helpers: list[subprocess.Popen[bytes]] = []

    def begin() -> tuple[subprocess.Popen[bytes], list[int], list[Path]]:
        helper = subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(OWNER),
                str(Path(__file__).parent),
                tmp_path,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        helpers.append(helper)
        assert helper.stdout is not None
        *pids, tmp, folder = json.loads(helper.stdout.readline())
        pids += processes.descendants(pids[0])
        return helper, pids, [Path(tmp), Path(folder)]

    yield begin
    for helper in helpers:
        helper.kill()
        helper.communicate()


@pytest.mark.parametrize("whom", ["owner", "parent", "supervisor"])
def test_kill_9_leaves_nothing(owner: Owner, whom: str) -> None:
    helper, pids, folders = owner()
    parent, supervisor, engine = pids[:3]
    os.kill(
        {"owner": helper.pid, "parent": parent, "supervisor": supervisor}[whom],
        signal.SIGKILL,
    )
    if whom == "parent":  # its servers are the harness's, and go on until that ends
        until(lambda: not processes.alive(parent), "the parent's end")
        assert processes.alive(engine)
        helper.kill()
    if whom == "supervisor":
        until(lambda: not processes.alive(engine), "the engine's end")
        assert processes.alive(parent)
        helper.kill()
    until(lambda: not any(processes.alive(pid) for pid in pids), "all are gone")
    until(
        lambda: not any(folder.exists() for folder in folders), "their folders are gone"
    )


def test_kill_9_of_the_owner_while_the_parent_imports(tmp_path: Path) -> None:
    spec = toy(tmp_path / "code", "import time; open('importing', 'w'); time.sleep(99)")
    folder = tmp_path / "parent"
    program = """
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        from toy_engine import toy
        from mmrepro.engines.supervise.warm import begin_fork_server
        folder = Path(sys.argv[2])
        (folder / "parent").mkdir()
        begin_fork_server(toy(folder / "code", (folder / "code/toy_server.py").read_text()),
                     folder / "parent")
    """
    assert spec.module == "toy_server"
    helper = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(program),
            str(Path(__file__).parent),
            tmp_path,
        ]
    )
    try:
        until((folder / "importing").exists, "it imports")
        pids = list(processes.descendants(helper.pid))
    finally:
        helper.kill()
        helper.wait()
    assert len(pids) == 2, "the parent and its guardian"
    until(lambda: not any(processes.alive(pid) for pid in pids), "both are gone")
    until(lambda: not folder.exists(), "its folder is gone")


def test_begin_fork_server_cleans_up_after_a_refusal(tmp_path: Path) -> None:
    folder = tmp_path / "parent"
    folder.mkdir()
    with pytest.raises(Refused):
        begin_fork_server(toy(tmp_path / "code", "import os; kept = os.pipe()"), folder)
    assert not folder.exists()


def test_nothing_is_left_where_no_box_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_box(*_: object, **__: object) -> None:
        raise NoBox("bubblewrap is not installed.")

    monkeypatch.setattr(warm, "Box", no_box)
    folder = tmp_path / "parent"
    folder.mkdir()
    spec = replace(toy(tmp_path / "code"), box=BoxOrder(()))
    with pytest.raises(NoBox):
        begin_fork_server(spec, folder)
    assert not folder.exists()
