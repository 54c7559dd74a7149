"""The record of an incident's hashes: whatever is changed afterwards is seen, and
nothing is judged of it."""

import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from imposters import CORPUS, imposters
from mmrepro.api import judge as judge_again
from mmrepro.base.errors import BadIncident, ChangedIncident, UsageError
from mmrepro.cli.app import app
from mmrepro.failure.documents import INCIDENT_FILE, ServerFacts
from mmrepro.failure.documents.folder import Journal
from mmrepro.failure.documents.hashes import (
    HASHES_FILE,
    SIGNATURE_FILE,
    HashCheck,
    checked,
    signed_by,
)
from mmrepro.failure.documents.signed import sign_head
from mmrepro.reports import load
from mmrepro.reports.bundle import write_bundle
from sealed import seal
from typer.testing import CliRunner

RECORDED = "worker-wedged-killed-0.32.0"
OTHER = "worker-wedged-killed-one-process"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def sealed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was recorded in two steps, which no test changes."""
    place = tmp_path_factory.mktemp("sealed") / "run"
    return seal(load(CORPUS / f"{RECORDED}.zip"), place)


@pytest.fixture(scope="module")
def bundle_of_run(sealed_run: Path) -> Path:
    """Its bundle, which no test changes: redaction takes half a second."""
    bundle = sealed_run.with_suffix(".zip")
    write_bundle(sealed_run, load(sealed_run), bundle)
    return bundle


@pytest.fixture
def run(sealed_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed_run, tmp_path / "run"))


def unchanged(place: Path) -> bool:
    check = checked(place)
    return check.has_record and not check.changed


def edit(folder: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    file = folder / INCIDENT_FILE
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def lines(folder: Path) -> list[str]:
    return (folder / HASHES_FILE).read_text().splitlines(keepends=True)


def rewrite(folder: Path, kept: list[str]) -> None:
    (folder / HASHES_FILE).write_text("".join(kept))


def test_an_untouched_run_is_judged_wherever_it_lies(run: Path, tmp_path: Path) -> None:
    assert unchanged(run)
    moved = shutil.move(run, tmp_path / "moved")
    result = CliRunner().invoke(app, ["judge", "--json", str(moved)])
    assert result.exit_code == 0, result.output
    (again,) = json.loads(result.output)["judged"]
    assert (again["record"], again["changed"]) == ("unchanged", [])


def test_another_layout_of_the_same_json_is_no_change(run: Path) -> None:
    edit(run, lambda document: document.update(sorted(document.items())))
    assert unchanged(run)


CHANGES: list[tuple[str, str, Change]] = [
    (
        "a judged fact",
        "incident.json",
        lambda run: edit(run, lambda d: d["engine"].update(release="0.33.0")),
    ),
    (
        "the recorded verdict",
        "incident.json",
        lambda run: edit(run, lambda d: d["verdict"].update(outcome="reproduced ")),
    ),
    (
        "a request",
        "incident.json: evidence.requests[0:1]",
        lambda run: edit(
            run, lambda d: d["evidence"]["requests"][0].update(latency_s=9.0)
        ),
    ),
    (
        "the order of events",
        "incident.json: evidence.events[0:4]",
        lambda run: edit(run, lambda d: d["evidence"]["events"].reverse()),
    ),
    (
        "the last event",
        "evidence.events[",
        lambda run: edit(run, lambda d: d["evidence"]["events"].pop()),
    ),
    (
        "one event more",
        "evidence.events[",
        lambda run: edit(
            run, lambda d: d["evidence"]["events"].append(d["evidence"]["events"][0])
        ),
    ),
    (
        "the server's end",
        "incident.json: evidence.engine_exit",
        lambda run: edit(run, lambda d: d["evidence"].update(engine_exit=-7)),
    ),
    (
        "a key twice",
        "incident.json: a key stands there twice",
        lambda run: (run / INCIDENT_FILE).write_text(
            (run / INCIDENT_FILE).read_text().replace("{", '{"id": "x",', 1)
        ),
    ),
    (
        "the log",
        "evidence/engine.log",
        lambda run: (run / "evidence/engine.log").write_text("another log\n"),
    ),
    (
        "a longer log",
        "evidence/engine.log",
        lambda run: (run / "evidence/engine.log").open("a").write("one line more\n"),
    ),
    (
        "a raw file less",
        "evidence/check-metrics-metrics.txt is missing",
        lambda run: (run / "evidence/check-metrics-metrics.txt").unlink(),
    ),
    (
        "the record less",
        "hashes.jsonl is missing",
        lambda run: (run / HASHES_FILE).unlink(),
    ),
    (
        "the head less",
        "no longer names its hashes.jsonl",
        lambda run: edit(run, lambda d: d.pop("hashes")),
    ),
    (
        "another head",
        "does not end with the hash in incident.json",
        lambda run: edit(run, lambda d: d["hashes"].update(sha256="0" * 64)),
    ),
    (
        "a head that was shown elsewhere",
        "does not end with the hash in incident.json",
        lambda run: edit(run, lambda d: d["hashes"].update(recorded_sha256="0" * 64)),
    ),
    (
        "the last line less",
        "does not end with the hash in incident.json",
        lambda run: rewrite(run, lines(run)[:-1]),
    ),
    (
        "the first line less",
        "hashes.jsonl, line 1",
        lambda run: rewrite(run, lines(run)[1:]),
    ),
    (
        "lines in another order",
        "hashes.jsonl, line 1",
        lambda run: rewrite(run, lines(run)[::-1]),
    ),
    (
        "a line that is another",
        "hashes.jsonl, line 2",
        lambda run: rewrite(
            run, [lines(run)[0].replace(":1,", ": 1,", 1), *lines(run)[1:]]
        ),
    ),
]


@pytest.mark.parametrize(
    ("named", "change"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES]
)
def test_whatever_is_changed_is_named(run: Path, named: str, change: Change) -> None:
    change(run)
    assert named in " ".join(checked(run).changed)


def test_no_verdict_on_a_changed_run_but_as_an_edited_one(run: Path) -> None:
    edit(run, lambda d: d["evidence"].update(engine_exit=-7))
    refused = CliRunner().invoke(app, ["judge", str(run)])
    assert isinstance(refused.exception, ChangedIncident)
    assert refused.exception.exit_code == 2
    changed = "was changed since it was recorded: incident.json: evidence.engine_exit"
    assert changed in refused.exception.message
    assert refused.output == ""
    with pytest.raises(ChangedIncident):
        judge_again(run)
    edited = CliRunner().invoke(app, ["judge", str(run), "--edited"])
    assert edited.exit_code in (0, 1)
    assert "judged as edited: changed since it was recorded" in edited.output
    as_json = CliRunner().invoke(app, ["judge", str(run), "--edited", "--json"])
    (again,) = json.loads(as_json.output)["judged"]
    assert again["record"] == "changed"
    assert again["changed"] == ["incident.json: evidence.engine_exit"]


def test_parts_of_two_runs_are_none(run: Path, tmp_path: Path) -> None:
    other = seal(load(CORPUS / f"{OTHER}.zip"), tmp_path / "other")
    for name in (INCIDENT_FILE, HASHES_FILE, "evidence/engine.log"):
        mixed = shutil.copytree(run, tmp_path / f"mixed-{Path(name).stem}")
        shutil.copy(other / name, mixed / name)
        assert checked(mixed).changed, name


def test_an_imposter_is_refused_by_its_record(tmp_path: Path) -> None:
    """Each is a recorded run with one edit; judged as edited it comes out as ever."""
    one = imposters()[0]
    folder = seal(load(CORPUS / f"{one.recording}.zip"), tmp_path / "run")
    incident = load(folder)
    one.edit(incident)
    (folder / INCIDENT_FILE).write_text(incident.model_dump_json())
    with pytest.raises(ChangedIncident):
        judge_again(folder)
    assert judge_again(folder, edited=True).now.outcome != "reproduced"


def test_a_file_that_is_added_is_no_change_and_is_said(run: Path) -> None:
    (run / "evidence/notes.txt").write_text("mine")
    assert unchanged(run)
    assert checked(run).added == ("notes.txt",)
    said = CliRunner().invoke(app, ["judge", str(run)])
    assert said.exit_code == 0
    assert "not in its record: notes.txt" in said.output


def test_a_run_of_before_is_judged_and_has_no_record() -> None:
    place = CORPUS / f"{RECORDED}.zip"
    assert checked(place) == HashCheck()
    said = CliRunner().invoke(app, ["judge", str(place)])
    assert said.exit_code == 0
    assert "It carries no record of hashes" in said.output


def test_the_log_of_a_server_that_was_kept_goes_on(tmp_path: Path) -> None:
    incident = load(CORPUS / f"{RECORDED}.zip")
    incident.server = ServerFacts(url="http://127.0.0.1:1", pid=1)
    run = seal(incident, tmp_path / "run")
    log = run / "evidence/engine.log"
    log.write_text(log.read_text() + "more\n")
    assert unchanged(run)
    log.write_text("more\n" + log.read_text())
    assert checked(run).changed == ("evidence/engine.log",)


def test_a_secret_that_is_learnt_later_leaves_the_record_whole(tmp_path: Path) -> None:
    """What it was in is written anew without it, and noted anew."""
    incident = load(CORPUS / f"{RECORDED}.zip")
    incident.evidence.events.clear()
    (tmp_path / "run/evidence").mkdir(parents=True)
    journal = Journal(incident, tmp_path / "run")
    journal.recorder.event("said hunter2-hunter2 aloud")
    journal.save()
    journal._redactor.add("hunter2-hunter2")
    journal.recorder.event("said hunter2-hunter2 again")
    journal.save()
    assert "hunter2-hunter2" not in (tmp_path / "run" / INCIDENT_FILE).read_text()
    assert unchanged(tmp_path / "run")


def test_a_file_that_a_run_removes_again_is_not_missing(tmp_path: Path) -> None:
    incident = load(CORPUS / f"{RECORDED}.zip")
    raw = tmp_path / "run/evidence"
    raw.mkdir(parents=True)
    journal = Journal(incident, tmp_path / "run")
    (raw / "half").write_text("a file of a while")
    journal.save()
    (raw / "half").unlink()
    journal.save()
    assert unchanged(tmp_path / "run")


# ------------------------------------------------------------------------ in a bundle


@pytest.fixture
def packed(bundle_of_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(bundle_of_run, tmp_path / "run.zip"))


def repacked(bundle: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """One file of the bundle changed, and its line in the manifest with it."""
    with zipfile.ZipFile(bundle) as archive:
        content = {one: archive.read(one) for one in archive.namelist()}
    content[name] = change(content[name])
    manifest = json.loads(content["manifest.json"])
    for entry in manifest["files"]:
        if entry["name"] == name:
            entry["bytes"] = len(content[name])
            entry["sha256"] = hashlib.sha256(content[name]).hexdigest()
    content["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(bundle, "w") as archive:
        for one, data in content.items():
            archive.writestr(one, data)
    return bundle


def test_packing_keeps_the_record_and_goes_on_with_it(run: Path, packed: Path) -> None:
    """What it redacts and leaves out is hashed anew; the run's own head is shown."""
    assert unchanged(packed)
    before, after = load(run).hashes, load(packed).hashes
    assert before is not None
    assert after is not None
    assert after.recorded_sha256 == before.sha256 != after.sha256
    with zipfile.ZipFile(packed) as archive:
        (line,) = map(json.loads, archive.read(HASHES_FILE).splitlines())
        assert before.sha256 in archive.read("report.md").decode()
    assert (line["act"], line["number"]) == ("packed", 3)
    assert line["previous_sha256"] == before.sha256
    assert judge_again(packed).now.outcome is judge_again(run).now.outcome


@pytest.mark.parametrize(
    ("name", "named", "word"),
    [
        ("incident.json", "incident.json", "1"),
        ("evidence/engine.log", "evidence/engine.log", "line"),
        (HASHES_FILE, "hashes.jsonl, line", "1"),
    ],
)
def test_a_bundle_that_is_changed_with_its_manifest(
    packed: Path, name: str, named: str, word: str
) -> None:
    """The checksums of a manifest are written anew by whoever changes a file."""
    other = word.replace("1", "2").replace("line", "lime")

    def changed(content: bytes) -> bytes:
        return content.replace(word.encode(), other.encode(), 1)

    repacked(packed, name, changed)
    assert named in checked(packed).changed[0]


def test_packing_does_not_wash_a_change_away(run: Path, tmp_path: Path) -> None:
    edit(run, lambda d: d["evidence"].update(engine_exit=-7))
    write_bundle(run, load(run), tmp_path / "run.zip")
    (why,) = checked(tmp_path / "run.zip").changed
    assert why == "incident.json: evidence.engine_exit (before it was packed)"


def test_a_bundle_of_a_run_of_before_has_no_record(run: Path, tmp_path: Path) -> None:
    edit(run, lambda d: d.pop("hashes"))
    (run / HASHES_FILE).unlink()
    write_bundle(run, load(run), tmp_path / "run.zip")
    assert checked(tmp_path / "run.zip") == HashCheck()


# -------------------------------------------------------------------------- signatures


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A key of a maintainer, and the file that allows it to sign."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen is here")
    key = tmp_path / "key"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(make, check=True)
    kind, public, *_ = key.with_suffix(".pub").read_text().split()
    signers = tmp_path / "signers"
    signers.write_text(f"maintainer@example.org {kind} {public}\n")
    return key, signers


def test_a_bundle_that_somebody_signed(
    run: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    key, signers = keys
    bundle = tmp_path / "signed.zip"
    command = ["bundle", str(run), "--out", str(bundle), "--sign", str(key)]
    assert CliRunner().invoke(app, command).exit_code == 0
    said = CliRunner().invoke(app, ["judge", str(bundle), "--signers", str(signers)])
    assert said.exit_code == 0
    assert "signed by maintainer@example.org" in said.output
    as_json = ["judge", str(bundle), "--json", "--signers", str(signers)]
    (again,) = json.loads(CliRunner().invoke(app, as_json).output)["judged"]
    assert again["signed_by"] == "maintainer@example.org"


def test_what_nobody_signed_or_somebody_else(
    run: Path, packed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    key, signers = keys
    command = ["judge", "--signers", str(signers)]
    refused = CliRunner().invoke(app, [*command, str(packed)])
    assert isinstance(refused.exception, BadIncident)
    assert "is not signed" in refused.exception.message

    signed = tmp_path / "signed.zip"
    write_bundle(run, load(run), signed, sign=key)
    signers.write_text(signers.read_text().replace("AAAA", "BBBB"))
    refused = CliRunner().invoke(app, [*command, str(signed)])
    assert isinstance(refused.exception, BadIncident)
    assert "is not signed as it is by anybody in" in refused.exception.message


def test_a_signature_is_of_one_record(
    run: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """Another incident with a record that fits it, and the signature of the first."""
    key, signers = keys
    other = seal(load(CORPUS / f"{OTHER}.zip"), tmp_path / "other")
    head = load(run).hashes
    assert head is not None
    (other / SIGNATURE_FILE).write_text(sign_head(head.sha256, key))
    assert unchanged(other)
    with pytest.raises(BadIncident):
        signed_by(other, checked(other), signers)
    shutil.copy(other / SIGNATURE_FILE, run / SIGNATURE_FILE)
    assert signed_by(run, checked(run), signers) == "maintainer@example.org"


def test_a_run_of_before_cannot_be_signed(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    incident = load(CORPUS / f"{RECORDED}.zip")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / INCIDENT_FILE).write_text(incident.model_dump_json())
    with pytest.raises(UsageError, match="nothing to sign"):
        write_bundle(tmp_path / "old", incident, tmp_path / "o.zip", sign=keys[0])
    assert not (tmp_path / "o.zip").exists()


def test_several_are_judged_and_those_without_a_record_counted(run: Path) -> None:
    before = str(CORPUS / f"{RECORDED}.zip")
    said = CliRunner().invoke(app, ["judge", str(run), before])
    assert said.exit_code == 0, said.output
    assert "2 judged again: 2 as recorded" in said.output
    assert "1 of them carries no record of hashes" in said.output
