"""Rotated and compressed logs, read as one; requests that were never scheduled."""

import bz2
import gzip
import io
import lzma
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.data import LogsData
from mmrepro.probes.log_files import recent, with_rotated
from mmrepro.probes.logs import LogsProbe, Scanner

ADDED = r"Added request (?P<id>\S+)\."
PROGRESS = r"EngineCore loop active"


def line(
    n: int, text: str, process: str = "EngineCore pid=7", level: str = "INFO"
) -> str:
    return f"({process}) {level} 11-21 02:{n // 60:02d}:{n % 60:02d} [a.py:1] {text}\n"


def read(paths: list[Path], rotated: bool = True) -> LogsData:
    patterns = {"work": "loop active", "boom": "boom"}
    probe = LogsProbe(paths, patterns, PROGRESS, added=ADDED, rotated=rotated)
    with tempfile.TemporaryDirectory() as folder:
        result = run_probe(probe, Path(folder), 20)
    assert result.data is not None, result.reason
    return result.data


def test_a_hang_is_seen_in_the_log_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        line(1, "Added request one.", "APIServer pid=3")
        + line(2, "EngineCore loop active.")
        + line(3, "AssertionError: boom", level="ERROR")
        + line(4, "Added request two.", "APIServer pid=3")
        + line(5, "Added request three.", "APIServer pid=3")
        + "Traceback without a time\n"
    )
    data = read([path])
    assert data.stuck_count == 2
    assert [found.text for found in data.stuck_requests] == [
        "Added request two.",
        "Added request three.",
    ]
    assert data.last_progress is not None
    assert (data.last_progress.number, data.last_progress.time) == (2, "11-21 02:00:02")
    assert data.errors[0].number == 3
    assert data.first_line is not None
    assert data.last_line is not None
    assert (data.first_line.number, data.last_line.number) == (1, 5)


def test_without_any_line_of_progress_nothing_is_claimed(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(line(1, "Added request one.") + line(2, "Added request two."))
    assert read([path]).stuck_count is None


def test_progress_after_the_last_request_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(line(1, "Added request one.") + line(2, "EngineCore loop active."))
    data = read([path])
    assert (data.stuck_count, data.stuck_requests) == (0, [])


def test_rotated_files_come_oldest_first(tmp_path: Path) -> None:
    names = [
        "server.log-20261119.gz",
        "server.log-20261120",
        "server.log.10.gz",
        "server.log.2.xz",
        "server.log.1",
        "server.log",
    ]
    for name in [
        *names,
        "server.log.bak",
        "server.logs",
        "xserver.log.1",
        "server.log.1.tmp",
    ]:
        (tmp_path / name).touch()
    assert [path.name for path in with_rotated(tmp_path / "server.log")] == names
    assert with_rotated(tmp_path / "no" / "x.log") == [tmp_path / "no" / "x.log"]


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes),
    (".gz", gzip.compress),
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
]
TEXTS = ["Added request r.", "EngineCore loop active.", "boom", "fine"]


@examples(20)  # each writes files
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(TEXTS), st.booleans()), min_size=1, max_size=6
        ),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_parts_give_what_the_whole_gives(
    parts: list[list[tuple[str, bool]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, whole = Path(name), []
        for age, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            lines = [
                line(i, t, level="ERROR" if e else "INFO")
                for i, (t, e) in enumerate(part)
            ]
            whole += [(f"{age}", i + 1, t, e) for i, (t, e) in enumerate(part)]
            suffix, pack = data.draw(st.sampled_from(PACKERS)) if age else PACKERS[0]
            file = folder / ("s.log" + (f".{age}{suffix}" if age else ""))
            file.write_bytes(pack("".join(lines).encode()))
        found = read([folder / "s.log"])

    def age_of(file: str) -> str:
        return (
            (re.findall(r"s\.log\.?(\d*)", file)[0] or "0")
            if file
            else f"{len(parts) - 1}"
        )

    def places(lines: list[object]) -> list[tuple[str, int]]:
        return [(age_of(one.file), one.number) for one in lines]  # type: ignore[attr-defined]

    assert found.lines == len(whole)
    assert places(list(found.errors)) == [(f, n) for f, n, _, e in whole if e]
    assert found.match_counts["boom"] == sum("boom" in t for _, _, t, _ in whole)
    work = [at for at, (_, _, t, _) in enumerate(whole) if "loop active" in t]
    if not work:
        assert found.stuck_count is None
        return
    assert found.last_progress is not None
    assert places([found.last_progress]) == [whole[work[-1]][:2]]
    after = [(f, n) for f, n, t, _ in whole[work[-1] + 1 :] if t.startswith("Added")]
    assert found.stuck_count == len(after)
    assert places(list(found.stuck_requests)) == after


@given(
    st.lists(st.sampled_from(TEXTS), max_size=40),
    st.integers(1, 300),
)
def test_blocks_do_not_change_who_is_stuck(texts: list[str], chunk: int) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(chunk)

    log = "".join(line(n, text) for n, text in enumerate(texts)).encode()
    scanner = Scanner({}, PROGRESS, added=ADDED)
    found = scanner.scan(Slow(log))
    work = [n for n, text in enumerate(texts) if "loop active" in text]
    expected = sum(t.startswith("Added") for t in texts[work[-1] :]) if work else None
    assert found.stuck_count == expected


def test_a_damaged_file_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    text = "".join(
        line(n % 3600, "EngineCore loop active.") for n in range(20_000)
    ).encode()
    packed = gzip.compress(text)
    (tmp_path / "s.log.2.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "s.log.1.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 40)
    (tmp_path / "s.log").write_text(line(1, "Added request one."))
    data = read([tmp_path / "s.log"])
    assert data.match_counts["work"] > 5_000, "what came before the damage is kept"
    assert data.stuck_count == 1
    assert set(data.unread) == {
        str(tmp_path / "s.log.2.gz"),
        str(tmp_path / "s.log.1.zst"),
    }
    assert "Zstandard" in data.unread[str(tmp_path / "s.log.1.zst")]


def test_the_most_recent_files_that_fit(tmp_path: Path) -> None:
    for name, size in {"s.log.2": 500, "s.log.1": 300, "s.log": 200}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    path = tmp_path / "s.log"
    names = {n: [file.name for file in recent(path, n)] for n in (100, 200, 600, 1000)}
    assert names == {
        100: [],
        200: ["s.log"],
        600: ["s.log.1", "s.log"],
        1000: ["s.log.2", "s.log.1", "s.log"],
    }
    assert recent(tmp_path / "no.log", 1000) == []


def test_nothing_to_read_is_unavailable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for paths in ([tmp_path / "fifo"], [tmp_path / "no.log"], []):
        result = run_probe(LogsProbe(paths), tmp_path, 5)
        assert result.status is ProbeStatus.UNAVAILABLE
        assert result.reason


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_compressed_file_may_be_named_itself(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"old{suffix}"
    path.write_bytes(dict(PACKERS)[suffix](line(1, "boom").encode()))
    assert read([path], rotated=False).match_counts["boom"] == 1
