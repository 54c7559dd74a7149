"""An incident on its way: whole, or not at all."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from mmrepro.campaign.cluster.remote import NotCarried, packed, unpacked


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    folder = tmp_path / "there" / "run-1"
    (folder / "evidence" / "empty").mkdir(parents=True)
    (folder / "incident.json").write_text("{}")
    (folder / "evidence" / "engine.log").write_bytes(b"x" * 100_000)
    return folder


def files(folder: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
        for p in folder.rglob("*")
    }


def test_it_arrives_as_it_was_sent(incident: Path, tmp_path: Path) -> None:
    data = packed(incident)
    assert len(data) < 10_000
    folder = tmp_path / "here" / "cell" / "run-1"
    folder.mkdir(parents=True)
    (folder / "of a run that was killed").touch()
    unpacked(data, folder)
    assert files(folder) == files(incident)
    assert [p.name for p in folder.parent.iterdir()] == ["run-1"]


def test_names_of_users_do_not_travel(incident: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed(incident))) as tar:
        assert {(m.uid, m.gid, m.uname, m.gname) for m in tar} == {(0, 0, "", "")}


def test_links_and_pipes_are_left_out(incident: Path, tmp_path: Path) -> None:
    expected = files(incident)
    (incident / "link").symlink_to("/etc/passwd")
    os.mkfifo(incident / "pipe")
    unpacked(packed(incident), tmp_path / "here")
    assert files(tmp_path / "here") == expected


def test_one_that_is_too_large_is_not_sent(incident: Path) -> None:
    with pytest.raises(NotCarried, match="up to 49 KiB are brought"):
        packed(incident, limit=50_000)


@pytest.mark.parametrize(
    "what", ["cut", "garbled", "no archive", "too large", "leaves", "link"]
)
def test_what_is_not_whole_leaves_nothing(
    incident: Path, tmp_path: Path, what: str
) -> None:
    data, limit = packed(incident), 10**9
    if what == "cut":
        data = data[: len(data) // 2]
    elif what == "garbled":
        data = data[:100] + bytes(50) + data[150:]
    elif what == "no archive":
        data = b"{}"
    elif what == "too large":
        limit = 50_000
    else:
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz") as tar:
            member = tarfile.TarInfo("../outside" if what == "leaves" else "link")
            if what == "link":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
        data = target.getvalue()
    here = tmp_path / "here"
    with pytest.raises(NotCarried):
        unpacked(data, here / "run-1", limit)
    assert files(here) == {}
    assert not (tmp_path / "outside").exists()
