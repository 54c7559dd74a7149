import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
from mmrepro.base.errors import ExitCode, NoSpace, UnwritableOutput
from mmrepro.base.machine.files import replacing
from mmrepro.base.text.redact import Redactor
from mmrepro.failure.documents import Incident, folder as rundir
from mmrepro.failure.documents.folder import (
    discard,
    make_folders,
    make_run_dir,
    refuse_taken,
    write_incident,
)
from simple_incident import incident

ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Refuges of incidents go here."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_the_folder_and_its_evidence(tmp_path: Path) -> None:
    folder = make_run_dir(tmp_path / "a" / "b", "ghost", "0.23.0")
    assert folder == (tmp_path / "a" / "b").resolve()
    assert [p.name for p in folder.iterdir()] == ["evidence"]


def test_the_default_is_below_incidents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (make_run_dir(None, "ghost", "0.23.0/../x") for _ in range(2))
    assert one.parent == two.parent == tmp_path / "incidents"
    assert one != two
    assert one.name.startswith("ghost-0.23.0-..-x-")


def test_an_existing_incident_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "incident.json").write_text("{}")
    with pytest.raises(UnwritableOutput, match="already holds an incident"):
        make_run_dir(tmp_path, "ghost", "0.23.0")
    assert (tmp_path / "incident.json").read_text() == "{}"


@pytest.mark.parametrize("below", [".", "sub", "evidence/deeper"])
def test_a_file_in_the_way(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableOutput, match="cannot be written"):
        make_run_dir(tmp_path / "file" / below, "ghost", "0.23.0")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(UnwritableOutput, match="File name too long"):
        make_run_dir(tmp_path / ("x" * 300), "ghost", "0.23.0")


AS_NOBODY = """
import os, sys
from pathlib import Path
from mmrepro.base.errors import UnwritableOutput
from mmrepro.failure.documents.folder import make_run_dir
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
for folder in sys.argv[1:]:
    try:
        make_run_dir(Path(folder), "ghost", "0.23.0")
        print("written")
    except UnwritableOutput as error:
        print(int(error.exit_code), error.message)
"""


def test_folders_that_one_may_not_write(tmp_path: Path) -> None:
    closed, readable = tmp_path / "closed", tmp_path / "readable"
    closed.mkdir(mode=0o700 if ROOT else 0)
    readable.mkdir(mode=0o555)
    # Pytest's own folders are private to us.
    for parent in (
        tmp_path,
        *tmp_path.parents,
    ):
        if ROOT and parent.stat().st_mode & 0o7077 == 0:
            parent.chmod(0o711)
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            AS_NOBODY,
            str(closed / "run"),
            str(closed),
            str(readable / "run"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if not ROOT:
        closed.chmod(0o700)
    assert said.stderr == ""
    lines = said.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"{int(ExitCode.USAGE)} The output folder ")
        assert line.endswith("cannot be written: Permission denied.")


def test_a_disk_with_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 << 20))
    with pytest.raises(NoSpace, match="5 MiB are free, 100 MiB are needed"):
        make_run_dir(tmp_path / "run", "ghost", "0.23.0")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(NoSpace, match="is full"):
        make_run_dir(tmp_path / "run", "ghost", "0.23.0")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if not ROOT:
        pytest.skip("only root may mount a file system")
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if not mount or not umount:
        pytest.skip("no mount program here")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


def test_a_full_disk_is_told_before_the_run(small_disk: Path) -> None:
    with pytest.raises(NoSpace, match="is full") as told:
        make_run_dir(small_disk / "run", "ghost", "0.23.0")
    assert told.value.exit_code is ExitCode.INFRASTRUCTURE
    assert "prune" in told.value.hint


def test_an_incident_that_finds_no_room_is_kept_elsewhere(
    small_disk: Path, temporary: Path
) -> None:
    (small_disk / "filler").write_bytes(b"x" * 60_000)
    large = incident(failure="x" * 100_000)
    folder = write_incident(large, small_disk, Redactor())
    assert folder.parent == temporary
    assert (
        Incident.model_validate_json((folder / "incident.json").read_text()).id
        == large.id
    )
    assert [p.name for p in small_disk.iterdir()] == ["filler"]


def test_what_was_written_before_survives_a_full_disk(small_disk: Path) -> None:
    assert write_incident(incident(), small_disk, Redactor()) == small_disk
    before = (small_disk / "incident.json").read_bytes()
    write_incident(incident(failure="x" * 100_000), small_disk, Redactor())
    assert (small_disk / "incident.json").read_bytes() == before


def no_write(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_room_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", no_write)
    with pytest.raises(NoSpace, match="No space left on device"):
        write_incident(incident(), tmp_path, Redactor())


def test_a_write_that_fails_halfway_leaves_the_old_one_whole(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_incident(incident(), tmp_path, Redactor())

    @contextmanager
    def halfway(path: Path) -> Iterator[BinaryIO]:
        with replacing(path) as file:
            yield file
            if path.parent == tmp_path:
                file.truncate(file.tell() // 2)
                no_write()

    monkeypatch.setattr("mmrepro.base.machine.files.replacing", halfway)
    folder = write_incident(incident(failure="later"), tmp_path, Redactor())
    assert json.loads((tmp_path / "incident.json").read_text())["failure"] == ""
    assert json.loads((folder / "incident.json").read_text())["failure"] == "later"
    assert not list(tmp_path.glob(".*"))


def test_the_file_is_replaced_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    replace = Path.replace

    def watched(path: Path, target: Path) -> Path:
        json.loads(path.read_text())  # whole before it gets the name
        seen.append(path.name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    write_incident(incident(), tmp_path, Redactor())
    assert len(seen) == 1
    assert seen[0].startswith(".mmrepro-")


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\0", "\u2028"])
def test_hostile_text_can_be_written_and_read_back(tmp_path: Path, text: str) -> None:
    write_incident(incident(failure=text), tmp_path, Redactor())
    assert Incident.model_validate_json((tmp_path / "incident.json").read_bytes())


def test_the_needed_room_is_what_the_message_says() -> None:
    assert rundir.NEEDED_BYTES == 100 << 20


def test_only_folders_that_were_made_are_discarded(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    discard(make_run_dir(tmp_path / "mine", "ghost", "0.23.0"))
    assert list((tmp_path / "mine").iterdir()) == []
    discard(make_run_dir(tmp_path / "mine" / "a" / "b", "ghost", "0.23.0"))
    assert list((tmp_path / "mine").iterdir()) == []
    made = make_run_dir(tmp_path / "made", "ghost", "0.23.0")
    (made / "evidence" / "mine.txt").write_text("somebody else's")
    discard(made)
    assert (made / "evidence" / "mine.txt").exists()


def test_a_folder_that_took_the_place_of_a_made_one_stays(tmp_path: Path) -> None:
    make_folders(tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "elsewhere")
    (tmp_path / "made").mkdir()
    discard(tmp_path / "made")
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize("name", ["incidents", "plays", "episodes"])
def test_a_campaign_begins_in_no_folder_that_it_would_empty(
    tmp_path: Path, name: str
) -> None:
    refuse_taken(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(UnwritableOutput, match=name):
        refuse_taken(tmp_path)
