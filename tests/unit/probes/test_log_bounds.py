"""Logs that are larger than they look, and folders without an end: what is read and
told."""

import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmrepro.base.machine import files
from mmrepro.base.machine.files import files_below, open_to_read
from mmrepro.engines import starts
from mmrepro.failure.documents.head import record_folders
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.probes.log_files import BothEnds, logs_below, open_log

LINE = b"INFO 11-24 18:12:17 [core.py:1195] Running: 1 reqs, Waiting: 0 reqs\n"
MIB = 1 << 20


def whole(path: Path) -> tuple[bytes, str]:
    with open_log(path) as stream:
        data = b"".join(iter(lambda: stream.read(1 << 16), b""))
        return data, getattr(stream, "left_out", "")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BothEnds, "HEAD", MIB)
    monkeypatch.setattr(BothEnds, "TAIL", 2 * MIB)


def test_of_what_is_packed_both_ends_are_read_and_the_rest_is_told(
    tmp_path: Path, small: None
) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(b"first\n" + LINE * 200_000 + b"last\n", 1))
    data, left_out = whole(path)
    assert data.startswith(b"first\n")
    assert data.endswith(b"last\n")
    assert 3 * MIB <= len(data) < 4 * MIB
    assert "MiB in its middle" in left_out
    reading = read_logs([path])
    assert "first 1 MiB and the last 2 MiB" in reading.log.unread[str(path)]


def test_what_is_packed_and_small_is_read_whole(tmp_path: Path, small: None) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LINE * 30_000))
    assert whole(path) == (LINE * 30_000, "")


def test_the_end_of_what_is_packed_and_damaged_is_read_first(
    tmp_path: Path, small: None
) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LINE * 100_000, 1)[:-2000])
    pieces: list[bytes] = []
    with open_log(path) as stream, pytest.raises(EOFError):
        pieces.extend(iter(lambda: stream.read(1 << 16), b""))
    assert sum(map(len, pieces)) > 2 * MIB


def test_unpacking_what_is_passed_over_is_bounded_in_time(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BothEnds, "MOST_S", 0.0)
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LINE * 200_000, 1))
    data, left_out = whole(path)
    assert len(data) < 2 * MIB
    assert "beyond its first" in left_out


def test_holes_are_passed_over_and_told(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("wb") as file:
        file.write(LINE * 1000)
        file.truncate(1 << 40)
        file.seek((1 << 40) - len(LINE))
        file.write(LINE)
    data, left_out = whole(path)
    assert data.replace(b"\0", b"").count(LINE) == 1001
    assert len(data) < MIB
    assert "holes" in left_out
    assert "holes" in read_logs([path]).log.unread[str(path)]
    notes: list[str] = []
    assert starts.lines_of(path, notes)


def test_of_a_large_start_log_the_end_is_read_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "MOST_BYTES", MIB)
    for name, data in (
        ("a.log", LINE * 40_000),
        ("a.log.gz", gzip.compress(LINE * 40_000, 1)),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        notes: list[str] = []
        lines = starts.lines_of(path, notes)
        assert 10_000 < len(lines) < 33_000
        assert len(notes) == 1


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """3,000 folders within each other, with a log in the second."""
    here = os.open(tmp_path, os.O_RDONLY)
    for number in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
        if number == 0:
            (tmp_path / "d" / "server.log").write_bytes(LINE)
    os.close(here)
    yield tmp_path
    # pytest's own way of removing it calls itself once for each folder.
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_folders_are_opened_to_a_depth_and_that_is_told(deep: Path) -> None:
    below = logs_below([deep])
    assert [file.name for file in below.files] == ["server.log"]
    assert "32 deep" in below.left_out[0]
    assert "deep were not" in read_logs([deep]).log.unread[str(deep)]
    assert list(record_folders([deep])) == []


def test_folders_are_read_to_a_number_of_entries_and_follow_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.log").write_bytes(LINE)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").symlink_to(tmp_path / "00.log")
    assert len(files_below(tmp_path).files) == 30
    monkeypatch.setattr(files, "MOST_ENTRIES", 10)
    below = files_below(tmp_path)
    assert len(below.files) <= 10
    assert "first 10 entries" in below.left_out[0]


def test_no_pipe_and_no_device_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="it is a"):
            open_to_read(path)
