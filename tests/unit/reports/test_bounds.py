"""Incidents and bundles of them, however large, deep or strangely named what they hold
is."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
from made_up import at
from mmrepro.base.errors import BadIncident, UsageError
from mmrepro.base.records import MOST_VALUES
from mmrepro.base.text.redact import Redactor
from mmrepro.cli.app import app
from mmrepro.failure.documents import INCIDENT_FILE, Incident
from mmrepro.failure.documents.folder import write_incident
from mmrepro.failure.documents.head import read_head
from mmrepro.failure.documents.stored import BundleManifest, read_manifest
from mmrepro.reports import load
from mmrepro.reports.bundle import write_bundle
from mmrepro.traffic.evidence import Event, Evidence
from simple_incident import incident
from typer.testing import CliRunner

SECRET = "sk-abcdefghijklmnopqrstuvwxyz123456"


def kept(
    folder: Path, raw: dict[str, str] | None = None, made: Incident | None = None
) -> Path:
    (folder / "evidence").mkdir(parents=True)
    write_incident(made or incident(), folder, Redactor())
    for name, text in (raw or {}).items():
        (folder / "evidence" / name).write_text(text)
    return folder


def packed(folder: Path) -> tuple[BundleManifest, dict[str, str]]:
    target = folder.parent / "out.zip"
    write_bundle(folder, load(folder), target)
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names)), "no member hides another"
        return read_manifest(target), {
            name: archive.read(name).decode() for name in names
        }


def nested(depth: int, within: str = "0") -> str:
    return '{"a": [' * (depth // 2) + within + "]}" * (depth // 2)


# ------------------------------------------------------------------ bundles


def test_evidence_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = kept(tmp_path / "run")
    (folder / "evidence").rmdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "diary.log").write_text("dear diary")
    (folder / "evidence").symlink_to(tmp_path / "private")
    manifest, members = packed(folder)
    assert set(members) == {
        "incident.json",
        "report.md",
        "report.html",
        "manifest.json",
    }
    assert [(gone.name, gone.why) for gone in manifest.left_out] == [
        ("evidence", "a link: it may lead anywhere")
    ]


def test_each_file_is_a_member_of_its_own(tmp_path: Path) -> None:
    names = [
        "a b.log",
        "a_b.log",
        "a:b.log",
        "a_b-2.log",
        "é|.log",
        "é_.log",
        "7" * 250 + ".log",
    ]
    raw = {name: f"this is {name}" for name in names}
    manifest, members = packed(kept(tmp_path / "run", raw))
    evidence = {
        name: text for name, text in members.items() if name.startswith("evidence/")
    }
    assert sorted(evidence.values()) == sorted(raw.values())
    for name in ("a_b.log", "a:b.log", "a_b-2.log", "é_.log"):
        assert evidence[f"evidence/{name}"] == f"this is {name}", (
            "what can keep its name does"
        )
    assert {entry.name for entry in manifest.files} == {*members} - {"manifest.json"}


@pytest.mark.parametrize("depth", [98, 800, 3000])
def test_deep_json_is_kept_as_far_as_it_is_looked_through(
    tmp_path: Path, depth: int
) -> None:
    text = nested(depth, f'"{SECRET}"')
    manifest, members = packed(kept(tmp_path / "run", {"twice.json": text}))
    assert not manifest.left_out
    kept_text = "".join(members["evidence/twice.json"].split())
    kept_so = text.replace(SECRET, "[redacted:key-1]").replace(" ", "")
    assert kept_text == (kept_so if depth < 100 else "[redacted:quoted-1]")


def test_a_stack_dump_that_cannot_be_read_tells_no_variable(tmp_path: Path) -> None:
    words = "who is a good divorce lawyer"
    frame = {"name": "f", "locals": [{"name": "prompt", "repr": words}]}
    deep = nested(600, json.dumps([{"frames": [frame]}]))
    cut = json.dumps([{"frames": [frame]}])[:-2]
    raw = {"check-stacks-1-00.json": deep, "check-stacks-1-01.json": cut}
    manifest, members = packed(kept(tmp_path / "run", raw))
    assert words not in "".join(members.values())
    assert {gone.name for gone in manifest.left_out} == {
        f"evidence/{name}" for name in raw
    }


def test_of_too_many_events_both_ends_are_kept_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrepro.reports.bundle.MAX_ITEMS", 60)
    count = 100
    told = Event(at=at(0), phase="check", source="engine", text="")
    events = [told.model_copy(update={"text": f"event {n}"}) for n in range(count)]
    made = incident(evidence=Evidence(events=events))
    manifest, members = packed(kept(tmp_path / "run", made=made))
    left = Incident.model_validate_json(members[INCIDENT_FILE]).evidence.events
    assert (left[0].text, left[-1].text, len(left)) == ("event 0", "event 99", 60)
    assert manifest.files[0].note == "left out of the middle: 40 of 100 events"


def test_too_many_files_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrepro.reports.bundle.MAX_FILES", 20)
    manifest, members = packed(
        kept(tmp_path / "run", {f"{n}.log": "x" for n in range(23)})
    )
    assert len(members) == 20 + 4
    assert [gone.name for gone in manifest.left_out] == ["evidence: 3 of 23 files"]


def secrets(path: Path, kind: str) -> str:
    """Puts a file there that is refused; returns why."""
    if kind == "fifo":
        os.mkfifo(path)
        return "it is a named pipe"
    if kind == "large":
        path.write_text("x" * (2 << 20))
        return "it is too large: more than 1 MiB"
    path.write_text("".join(f"secret number {n}\n" for n in range(1001)))
    return "at most 1,000 are looked for"


@pytest.mark.parametrize("kind", ["many", "large", "fifo"])
def test_secrets_are_looked_for_within_bounds(tmp_path: Path, kind: str) -> None:
    folder, file = kept(tmp_path / "run"), tmp_path / "secrets"
    why = secrets(file, kind)
    arguments = [
        "bundle",
        str(folder),
        "--out",
        str(tmp_path / "x.zip"),
        "--secrets-file",
    ]
    said = CliRunner().invoke(app, [*arguments, str(file)])
    assert isinstance(said.exception, UsageError)
    assert why in said.exception.message
    assert not (tmp_path / "x.zip").exists()


# ------------------------------------------------------------------ incidents


def unknown_keys(count: int) -> str:
    # The same key again: another value.
    more = (f'"unknown{n % 9999}":0' for n in range(count))
    return f"{incident().model_dump_json()[:-1]},{','.join(more)}}}"


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (MOST_VALUES, f"it holds more than {MOST_VALUES:,} values"),
        (5000, "5,000 of its values do not fit"),
        (1, "unknown0: unknown key"),
    ],
)
def test_unknown_keys_are_told_in_a_sentence(
    tmp_path: Path, count: int, says: str
) -> None:
    (tmp_path / INCIDENT_FILE).write_text(unknown_keys(count))
    with pytest.raises(BadIncident, match=says) as told:
        load(tmp_path)
    assert len(told.value.detail) <= 20


def test_a_list_of_incidents_passes_over_what_is_no_file(tmp_path: Path) -> None:
    kept(tmp_path / "good")
    for name in ("fifo", "folder", "circle", "bytes", "many"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "fifo" / INCIDENT_FILE)
    (tmp_path / "folder" / INCIDENT_FILE).mkdir()
    (tmp_path / "circle" / INCIDENT_FILE).symlink_to(INCIDENT_FILE)
    (tmp_path / "bytes" / INCIDENT_FILE).write_bytes(b'{"id": "\xff\xfe')
    (tmp_path / "many" / INCIDENT_FILE).write_text(unknown_keys(MOST_VALUES))
    why = {path.name: read_head(path).why for path in tmp_path.iterdir()}
    assert why["good"] == ""
    assert why["fifo"] == "it is a named pipe"
    assert why["folder"] == "it is a folder"
    assert why["circle"] == "Too many levels of symbolic links"
    assert "Invalid JSON" in why["bytes"]
    assert why["many"] == f"it holds more than {MOST_VALUES:,} values"


@pytest.mark.parametrize(
    "command", ["report", "judge", "bundle", "incidents", "open", "new --from"]
)
def test_a_place_that_cannot_be_looked_at_is_a_sentence(
    tmp_path: Path, command: str
) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    words = ["new", "odd", "--from"] if command == "new --from" else [command]
    for place in (tmp_path / ("x" * 300), circle):
        said = CliRunner().invoke(app, [*words, str(place)])
        assert isinstance(said.exception, UsageError), said.exception
        assert "\n" not in said.exception.message
