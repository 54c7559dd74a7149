"""Whoever writes a file, writes over a plain one only: no FIFO, no socket, nothing
behind a link.

Devices are not tried: what would be destroyed is the machine's.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from mmrepro.base.errors import LedgerBusy, MmreproError, SupervisorError
from mmrepro.base.machine.journal import LineFile
from mmrepro.base.records import Moment
from mmrepro.base.text.redact import Redactor
from mmrepro.campaign.events import Note, json_lines
from mmrepro.campaign.provisions import Bound
from mmrepro.cli.app import app
from mmrepro.engines.supervise import launch_order
from mmrepro.failure.documents.folder import write_incident
from mmrepro.failure.documents.stored import replace_file
from mmrepro.probes.base import RawSink
from mmrepro.reports import load
from mmrepro.traffic.capture.messages import Contents
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import CASE_FILE, Case, ServerWanted
from simple_incident import incident
from typer.testing import CliRunner

THEIRS = "not mmrepro's\nand without an end"
KINDS = ("fifo", "socket", "link", "dangling link")
KV = (
    "--free",
    "6784MiB",
    "--runtime",
    "5061MiB",
    "--block-bytes",
    "8388608",
    "--need",
    "3446",
)


def typed(*arguments: object) -> None:
    """Raises what the command raises."""
    CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def bundled(place: Path) -> None:
    write_incident(incident(), place, Redactor())
    typed("bundle", place, "--out", place / "x.zip", "--force")


def kept_raw(place: Path) -> None:
    sink = RawSink(place)
    sink.write("raw.txt", "x")
    if sink.failures:
        raise OSError(sink.failures[0])


def appended(place: Path) -> None:
    with closing(
        LineFile(place / "ledger.jsonl", ".lock", "ledger", LedgerBusy("busy"))
    ) as lines:
        lines.append(b"x\n")


def followed(place: Path) -> None:
    with json_lines(str(place / "events.jsonl")) as (write,):
        write(Note(at=Moment.now(), text="x"))


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "--events": ("events.jsonl", followed),
    "bundle --force": ("x.zip", bundled),
    "reports": ("report.md", lambda place: replace_file(place / "report.md", "x")),
    "kv-budget --svg": (
        "x.svg",
        lambda place: typed("kv-budget", *KV, "--svg", place / "x.svg"),
    ),
    "new --force": (
        "test_odd.py",
        lambda place: typed(
            "new", "odd", "--engine", "minivllm", "--out", place, "--force"
        ),
    ),
    "a case": (
        CASE_FILE,
        lambda place: write_case(
            Case(server=ServerWanted(engine="vllm", release="1")), place
        ),
    ),
    "a recording's picture": (
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
        lambda place: Contents(place).add(b"x"),
    ),
    "raw evidence": ("raw.txt", kept_raw),
    "a ledger": ("ledger.jsonl", appended),
    "a night's disk": (
        "disk.json",
        lambda place: Bound(1, place / "disk.json", used=lambda: 0),
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader() -> Iterator[Callable[[Path], int]]:
    """Opens a FIFO to be read, so that whoever opens it to write does not wait."""
    handles: list[int] = []

    def opened(path: Path) -> int:
        handles.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        return handles[-1]

    yield opened
    for handle in handles:
        os.close(handle)


def obstacle(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        target = path.parent.parent / "theirs"
        if kind == "link":
            target.write_text(THEIRS)
        path.symlink_to(target)


@pytest.mark.parametrize("writer", WRITERS)
def test_only_a_plain_file_is_written_over(
    tmp_path: Path, kind: str, writer: str, reader: Callable[[Path], int]
) -> None:
    place = tmp_path / "to"
    place.mkdir()
    name, write = WRITERS[writer]
    obstacle(place / name, kind)
    before = (place / name).lstat()
    read = reader(place / name) if kind == "fifo" else -1
    with pytest.raises((MmreproError, OSError)) as told:
        write(place)
    after = (place / name).lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert "only a plain file is written over" in str(told.value)
    if read >= 0:
        with suppress(BlockingIOError):
            assert os.read(read, 100) == b"", "nothing was written into it"
    theirs = tmp_path / "theirs"
    assert not theirs.exists() if kind != "link" else theirs.read_text() == THEIRS
    assert not list(place.glob(".mmrepro-*")), "nothing is left of the attempt"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_to_the_folder_is_its_users_choice(tmp_path: Path, writer: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "to").symlink_to("real")
    name, write = WRITERS[writer]
    (tmp_path / "real" / name).touch()
    write(tmp_path / "to")
    assert (tmp_path / "real" / name).stat().st_size > 0


def test_an_incident_is_kept_elsewhere_then(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    obstacle(file := tmp_path / "to" / "incident.json", kind)
    before = file.lstat()
    kept = write_incident(incident(), tmp_path / "to", Redactor())
    assert load(kept).id == incident().id
    assert kept.parent == tmp_path / "temporary"
    assert file.lstat().st_ino == before.st_ino


def test_no_engine_logs_into_anything_else(tmp_path: Path, kind: str) -> None:
    (tmp_path / "to").mkdir()
    obstacle(log := tmp_path / "to" / "engine.log", kind)
    with pytest.raises(SupervisorError, match="only a plain file is written over"):
        launch_order(["true"], {}, cwd=tmp_path, log=log, grace_s=1)
