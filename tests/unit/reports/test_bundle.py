"""The bundle: nothing private goes out, whatever it was planted in."""

import base64
import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hostile import plant
from mmrepro.base.errors import BadIncident, UnwritableOutput, UsageError
from mmrepro.cli.app import app
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.published import LEFT_OUT
from mmrepro.failure.documents.stored import is_bundle, read_manifest
from mmrepro.reports import load
from mmrepro.reports.bundle import write_bundle
from rendered import markdown
from sample import sample_incident
from typer.testing import CliRunner

IMAGE = base64.b64encode(bytes(range(256)) * 3).decode()
IDS = ", ".join(str(7919 * n % 50021) for n in range(30))
KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj"

# What must not be found afterwards: how it stands in a log, a header, a command line.
PLANTED = {
    "sk-live0123456789ABCDEFGHIJ": "api_key=sk-live0123456789ABCDEFGHIJ",
    "zYxWvUtSrQp0987654321": "Authorization: Bearer zYxWvUtSrQp0987654321",
    "hf_abcdefghijklmnop1234": "hf_abcdefghijklmnop1234",
    "hunter2secret": "https://alicesmith:hunter2secret@models.example.org/x",
    "alicesmith": "https://alicesmith:hunter2secret@models.example.org/x",
    "bobbytables": "/home/bobbytables/models/big",
    "carol.jones@example.org": "mail carol.jones@example.org",
    "divorce lawyer": (
        "Received request chatcmpl-1: prompt: 'who is a good divorce lawyer', params"
    ),
    "s3cr3t-option-99": "--api-key s3cr3t-option-99",
    IDS: f"prompt_token_ids: [{IDS}], lora_request: None",
    IMAGE: f"data:image/png;base64,{IMAGE}",
    KEY: f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----",
    "session-cookie-4711": "Cookie: session=session-cookie-4711",
    "the code word is aardvark": "",  # known from --secrets-file only
}
SECRET = "the code word is aardvark"
ALL = "\n".join(form or SECRET for form in PLANTED.values())

# In logs and raw files only, besides.
LOGGED = {
    "203.0.113.77": (
        'INFO:     203.0.113.77:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    ),
    "my rash looks like": '{"role": "user", "content": "my rash looks like this"}',
    "grandmother's letter": "GenerateReqInput(text=\"grandmother's letter\", rid='1')",
}


def write_run(folder: Path, incident: Incident, raw: dict[str, str | bytes]) -> Path:
    evidence = folder / "run" / "evidence"
    evidence.mkdir(parents=True)
    (folder / "run" / "incident.json").write_text(incident.model_dump_json(indent=1))
    for name, text in raw.items():
        (evidence / name).write_bytes(
            text if isinstance(text, bytes) else text.encode()
        )
    return folder / "run"


def bundle(folder: Path, **more: Any) -> tuple[Path, dict[str, str]]:
    target = folder.parent / "out.zip"
    write_bundle(folder, load(folder), target, **more)
    with zipfile.ZipFile(target) as archive:
        return target, {
            name: archive.read(name).decode() for name in archive.namelist()
        }


def stack_dump(words: str) -> str:
    frame = {
        "name": "popitem",
        "filename": "/home/bobbytables/venv/cache.py",
        "line": 191,
        "locals": [
            {"name": "key", "repr": "'" + "0ab4" * 16 + "'"},
            {"name": "prompt", "repr": repr(words)},
            {"name": "batch", "repr": f"{{'a': {words!r}}}"},
            {"name": "size", "repr": "4096"},
        ],
    }
    return json.dumps([{"thread_name": "t", "frames": [frame]}])


def test_nothing_planted_survives(tmp_path: Path) -> None:
    logged = ALL + "\n" + "\n".join(LOGGED.values()) + "\n"
    raw: dict[str, str | bytes] = {
        "engine.log": logged
        + "(APIServer pid=1) INFO 11-21 02:44:01 [a.py:1] Application ready\n",
        "check-metrics-1-metrics.txt": (
            f'vllm:info{{url="{PLANTED["hunter2secret"]}"}} 1\n'
        ),
        "check-inference-response.json": json.dumps(
            {"api_key": "s3cr3t-option-99", "x": ALL}
        ),
        "check-stacks-7-00.json": stack_dump("who is a good divorce lawyer"),
        "check-processes-processes.json": json.dumps(
            {"cmdline": ["vllm", "serve", ALL]}
        ),
        "bobbytables@example.org.txt": "named after a person",
        "odd.json": "{not json " + ALL,
        "image.png": b"\x89PNG\0\0" + SECRET.encode(),
    }
    folder = write_run(tmp_path, plant(sample_incident(), ALL, after=True), raw)
    _, members = bundle(folder, secrets=[SECRET])
    everything = "\n".join([*members, *members.values()])
    plain = everything.replace("\\n", "\n").replace('\\"', '"')
    for secret in [*PLANTED, *LOGGED]:
        assert secret not in everything, secret
        assert secret not in plain, secret
    assert "Application ready" in members["evidence/engine.log"]
    assert "0ab4" * 16 in members["evidence/check-stacks-7-00.json"]
    assert '"4096"' in members["evidence/check-stacks-7-00.json"]
    assert LEFT_OUT in members["evidence/check-stacks-7-00.json"]
    assert "evidence/image.png" not in members


def test_the_search_would_find_them(tmp_path: Path) -> None:
    """The test above can fail: without redaction all of it is there."""
    text = (
        plant(sample_incident(), ALL, after=True)
        .model_dump_json(indent=1)
        .replace("\\n", "\n")
        .replace('\\"', '"')
    )
    assert all(secret in text for secret in PLANTED)


def test_it_is_listed_checksummed_and_read_back(tmp_path: Path) -> None:
    incident = sample_incident()
    folder = write_run(
        tmp_path, incident, {"engine.log": "one line\n", "empty.txt": ""}
    )
    (folder / "evidence" / "link").symlink_to("/etc/hostname")
    target, members = bundle(folder)
    manifest = read_manifest(target)
    assert {f.name for f in manifest.files} | {"manifest.json"} == set(members)
    for entry in manifest.files:
        assert hashlib.sha256(members[entry.name].encode()).hexdigest() == entry.sha256
    assert [(gone.name, gone.why) for gone in manifest.left_out] == [
        ("evidence/link", "a link or no plain file")
    ]
    back = load(target)
    assert back.verdict == incident.verdict
    assert markdown(back) == members["report.md"]
    first = target.read_bytes()
    write_bundle(folder, load(folder), target, force=True)
    assert target.read_bytes() == first, "the same incident gives the same bytes"


def test_a_long_log_keeps_its_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrepro.failure.documents.public.HEAD_BYTES", 100)
    monkeypatch.setattr("mmrepro.failure.documents.public.TAIL_BYTES", 200)
    log = "".join(f"line {n}\n" for n in range(1000))
    folder = write_run(tmp_path, sample_incident(), {"engine.log": log + "x" * 30_000})
    target, members = bundle(folder)
    text = members["evidence/engine.log"]
    assert text.startswith("line 0\n")
    assert "bytes in the middle are left out" in text
    assert len(text) < 500
    entry = next(
        f for f in read_manifest(target).files if f.name == "evidence/engine.log"
    )
    assert entry.original_bytes == len(log) + 30_000


def test_what_does_not_fit_is_left_out_and_told(tmp_path: Path) -> None:
    digests = (hashlib.sha256(str(n).encode()).hexdigest() for n in range(10_000))
    noise = "".join(f"{int(digest, 16)}\n" for digest in digests)
    raw: dict[str, str | bytes] = {"engine.log": "short\n", "z.txt": noise}
    folder = write_run(tmp_path, sample_incident(), raw)
    target, members = bundle(folder, max_bytes=1 << 18)
    assert target.stat().st_size <= 1 << 18
    assert "evidence/engine.log" in members
    assert "beyond the limit" in read_manifest(target).left_out[0].why
    with pytest.raises(UsageError, match="The incident alone"):
        write_bundle(folder, load(folder), tmp_path / "small.zip", max_bytes=1000)
    assert not (tmp_path / "small.zip").exists()
    assert not list(tmp_path.glob(".small*"))


def test_placeholders_of_two_mappings_are_not_mixed_up(tmp_path: Path) -> None:
    incident = sample_incident(failure="with [redacted:key-3] in it")
    folder = write_run(tmp_path, incident, {"engine.log": "hf_abcdefghijklmnop1234\n"})
    _, members = bundle(folder)
    assert "[redacted:key-4]" in members["evidence/engine.log"]


def test_bad_targets_are_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path, sample_incident(), {})
    (tmp_path / "there.zip").touch()
    with pytest.raises(UsageError, match="is there already"):
        write_bundle(folder, load(folder), tmp_path / "there.zip")
    with pytest.raises(UnwritableOutput, match="cannot be written"):
        write_bundle(folder, load(folder), tmp_path / "no" / "such.zip")


def test_no_bundle_takes_the_place_of_what_it_packs(tmp_path: Path) -> None:
    folder = write_run(tmp_path, sample_incident(), {"engine.log": "a line\n"})
    (tmp_path / "link.json").symlink_to(folder / "incident.json")
    for target in (
        folder / "incident.json",
        folder / "evidence/engine.log",
        tmp_path / "link.json",
    ):
        before = target.read_bytes()
        with pytest.raises(UsageError, match="is a part of what is packed"):
            write_bundle(folder, load(folder), target, force=True)
        assert target.read_bytes() == before
    for _ in range(2):  # an earlier bundle in that folder is written over
        write_bundle(folder, load(folder), folder / "it.zip", force=True)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_that_appears_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = write_run(tmp_path, sample_incident(), {"engine.log": "a line\n"})
    (tmp_path / "away").mkdir()
    (tmp_path / "away/engine.log").write_text("of somebody else\n")
    real = os.open

    def swapped(path: Any, *more: Any) -> int:
        own = Path(path)
        if own.name == "engine.log" and not own.is_symlink():
            if what == "file":
                own.unlink()
                own.symlink_to(tmp_path / "away/engine.log")
            elif not own.parent.is_symlink():
                own.parent.rename(tmp_path / "old")
                own.parent.symlink_to(tmp_path / "away")
        return real(path, *more)

    monkeypatch.setattr("mmrepro.reports.bundle.os.open", swapped)
    manifest = write_bundle(folder, load(folder), tmp_path / "x.zip")
    assert (
        folder / "evidence" if what == "folder" else folder / "evidence/engine.log"
    ).is_symlink()
    assert [one.name for one in manifest.left_out] == ["evidence/engine.log"]


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "no manifest", "other zip", "text"]
)
def test_a_bad_bundle_is_told(tmp_path: Path, damage: str) -> None:
    folder = write_run(tmp_path, sample_incident(), {})
    target, members = bundle(folder)
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w") as archive:
        for name, text in members.items():
            if damage == "no manifest" and name == "manifest.json":
                continue
            if damage == "changed" and name == "incident.json":
                text = text.replace("vllm", "vlln")
            archive.writestr("x" if damage == "other zip" else name, text)
            if damage == "other zip":
                break
    if damage == "cut":
        bad.write_bytes(target.read_bytes()[:-30])
    if damage == "text":
        bad.write_text("hello")
    assert is_bundle(bad) == (damage not in ("cut", "text"))
    with pytest.raises(BadIncident):
        load(bad)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path, sample_incident(), {"engine.log": f"x {SECRET} y\n"})
    (tmp_path / "secrets").write_text(SECRET + "\n\n")
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    done = runner.invoke(
        app, ["bundle", str(folder), "--secrets-file", "secrets", "--full"]
    )
    assert done.exit_code == 0, done.output
    assert "evidence/engine.log" in done.output
    assert "mmrepro report run.zip" in done.output
    with zipfile.ZipFile("run.zip") as archive:
        assert archive.read("evidence/engine.log") == b"x [redacted:secret-1] y\n"
    again = runner.invoke(app, ["bundle", str(folder), "--json", "--force"])
    assert json.loads(again.output)["files"]
    shown = runner.invoke(app, ["report", "run.zip"])
    assert "REPRODUCED" in shown.output
