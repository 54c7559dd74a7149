"""The reports of a fuzzing session, from its record alone."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import jsonschema
import pytest
from hostile import HOSTILE, plant
from markdown_it import MarkdownIt
from mmrepro.cli.app import app
from mmrepro.errors import BadIncident, UsageError
from mmrepro.incident.replay import FUZZ_FILE, Fuzz
from mmrepro.reports import fuzz as reports, fuzz_view as view
from mmrepro.reports.fuzz_json import ToldFuzz, fuzz_json, told
from mmrepro.reports.fuzz_terminal import print_fuzz
from rich.console import Console
from strict_html import read_html
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
from made_up_fuzz import found, fuzz, once
from made_up_replay import finding

runner = CliRunner()


def printed(made: Fuzz, folder: str = "fuzzings/r") -> str:
    out = io.StringIO()
    print_fuzz(made, Console(file=out, width=200), folder)
    return out.getvalue()


def whole() -> Fuzz:
    known = finding(id="f1", folder="f1", known="ghost-key-eviction", known_why="all fit")
    return fuzz(found(), found(2, 8, known, folder="e0008/f1"), once=[once()])


def test_the_session_names_its_findings_and_what_it_did(tmp_path: Path) -> None:
    made = whole()
    reports.write_fuzz(made, tmp_path)
    for name in ("fuzz.md", "fuzz.html"):
        text = (tmp_path / name).read_text()
        text = read_html(text) if name.endswith("html") else text
        for word in (
            "Unknown failure", "ghost-key-eviction", "a counter is off by one", "near-tie",
            "whether memory grows", "12 min 05 s of at most 20 min 00 s", "30 requests",
            "44 servers", "after 95.2 s, in episode 3", "2048", "the refusal of episode 0",
            "images, leave", "20 × 200, 3 × 400, 1 × stuck; hung", "hang in popitem",
            "Nothing is claimed absent", "mmrepro fuzz vllm --release 0.23.0 --seed 7",
            "41 × log line", "night.har",
        ):  # fmt: skip
            assert word in text, (name, word)
    html, markdown = ((tmp_path / name).read_text() for name in ("fuzz.html", "fuzz.md"))
    assert 'href="e0003/f1/report.html"' in html
    assert "](e0008/f1/report.md)" in markdown
    assert reports.load_fuzz(tmp_path) == made
    said = printed(made)
    for word in (
        "UNKNOWN FAILURE  Fuzzing of vllm 0.23.0 (seed 7)", "fuzzings/r/e0003/f1/reproduce.py",
        "seen once, not again: metrics in episode 5", "F2", "after 95.2 s, in episode 3",
        "learnt: context 2048 tokens", "Nothing is claimed absent",
    ):  # fmt: skip
        assert word in said, word
    assert "to go on" not in said
    assert "to go on" in printed(fuzz(state="interrupted"))


@pytest.mark.parametrize(
    ("findings", "more", "label", "code"),
    [
        ([], {}, "Nothing found", 0),
        ([{}], {}, "Unknown failure", 1),
        ([{"known": "ghost-key-eviction"}], {}, "Known", 0),
        ([{"known": "ghost-key-eviction"}, {}], {}, "Unknown failure", 1),
        ([{"confirmed": False}], {}, "Unproven", 3),
        ([], {"once": [once()]}, "Unproven", 3),
        ([{}], {"state": "interrupted"}, "Interrupted", 1),
        ([], {"state": "failed"}, "Failed", 4),
    ],
)
def test_the_headline_and_the_exit_code_agree(
    findings: list[dict[str, object]], more: dict[str, object], label: str, code: int
) -> None:
    made = fuzz(*(found(one=finding(**one)) for one in findings), **more)
    assert view.headline(made).label == label
    assert told(made, Path("r")).exit_code == code


def test_a_session_that_has_nothing_yet_has_reports(tmp_path: Path) -> None:
    made = fuzz(
        state="failed", failure="no wheel", learnt=[], episodes=[], features={}, counted={},
        unseen=[], limits=[], deadline_s=None, pursuing_s=0.0, settings=[],
    )  # fmt: skip
    reports.write_fuzz(made, tmp_path)
    assert "no wheel" in read_html((tmp_path / "fuzz.html").read_text())
    assert "no wheel" in printed(made)


def test_a_finding_whose_pursuit_was_cut_short_is_not_linked() -> None:
    made = fuzz(found(folder="", replay=""), state="interrupted")
    assert "href=" not in reports.fuzz_html(made)
    assert "](" not in reports.fuzz_markdown(made)
    assert "to reproduce" not in printed(made)


def shape(text: str) -> list[str]:
    return [t.type for t in MarkdownIt("commonmark").enable("table").parse(text)]


def planted(text: str) -> Fuzz:
    """All but the folders, which the record itself keeps to their pattern."""
    made = plant(whole(), text)
    for one, before in zip(made.found, whole().found, strict=True):
        one.folder, one.replay = before.folder, before.replay
    return made


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_ends_nothing(text: str) -> None:
    made = planted(text)
    read_html(reports.fuzz_html(made))
    assert shape(reports.fuzz_markdown(made)) == shape(reports.fuzz_markdown(planted("words")))
    assert "\x1b" not in reports.fuzz_html(made) + reports.fuzz_markdown(made) + printed(made, "r")


@pytest.mark.parametrize("folder", ["../f1", "/etc", "e0003/f1/../..", "javascript:alert(1)"])
def test_a_finding_lies_below_its_session(tmp_path: Path, folder: str) -> None:
    document = json.loads(fuzz(found()).model_dump_json())
    document["found"][0]["folder"] = folder
    (tmp_path / FUZZ_FILE).write_text(json.dumps(document))
    with pytest.raises(BadIncident, match="is no fuzz of schema version 1"):
        reports.load_fuzz(tmp_path)


def test_the_json_has_what_is_promised() -> None:
    document = json.loads(fuzz_json(whole(), Path("fuzzings/r")))
    assert (document["exit_code"], document["episodes"], document["requests"]) == (1, 2, 30)
    first, second = document["findings"]
    assert (first["id"], first["class"], first["after_s"], first["episode"]) == (
        "F1", "hang", 95.25, 3,
    )  # fmt: skip
    assert second["folder"] == "fuzzings/r/e0008/f1"
    assert second["known"] == "ghost-key-eviction"
    assert document["once"] == [
        {"class": "metrics", "bucket": "m", "said": "a counter is off by one", "episode": 5}
    ]
    schema = json.loads(runner.invoke(app, ["schema", "--of", "fuzz-json"]).stdout)
    jsonschema.validators.validator_for(schema).check_schema(schema)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "episodes": "two"}, schema)
    assert ToldFuzz.model_validate(document) == told(whole(), Path("fuzzings/r"))


def test_the_folder_gives_its_reports_again(tmp_path: Path) -> None:
    reports.write_fuzz(whole(), tmp_path)
    signs = {"md": "# Fuzzing of", "html": "<!doctype", "json": '"episodes"'}
    for place in (tmp_path, tmp_path / FUZZ_FILE):
        for form, sign in signs.items():
            done = runner.invoke(app, ["report", str(place), "--format", form])
            assert (done.exit_code, sign in done.stdout) == (0, True)
    schema = json.loads(runner.invoke(app, ["schema", "--of", "fuzz"]).stdout)
    jsonschema.validate(json.loads((tmp_path / FUZZ_FILE).read_text()), schema)
    for form, hint in (("issue", "e0003/f1 --format issue"), ("junit", "--format json")):
        done = runner.invoke(app, ["report", str(tmp_path), "--format", form])
        assert isinstance(done.exception, UsageError)
        assert hint in str(done.exception.hint)


def test_what_is_no_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadIncident):
        reports.load_fuzz(tmp_path)
    (tmp_path / FUZZ_FILE).write_text("{}")
    with pytest.raises(BadIncident, match="is no fuzz of schema version 1"):
        reports.load_fuzz(tmp_path)
