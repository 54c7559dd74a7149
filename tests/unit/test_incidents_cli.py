"""``mmrepro incidents``: what ran here, whatever else lies there."""

import json
import time
import webbrowser
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from matrix_nights import FakeProvisions, FakeTrials, night, planned
from mmrepro.base.errors import ExitCode
from mmrepro.base.records import Moment, without_head
from mmrepro.base.text.redact import Redactor
from mmrepro.campaign.cluster import where as conducting
from mmrepro.campaign.matrix.session import begin
from mmrepro.failure.documents import EngineFacts, ScenarioFacts, head as heads
from mmrepro.failure.documents.folder import write_incident
from mmrepro.failure.documents.head import campaigns_in, read_head, record_folders
from mmrepro.failure.documents.ledger import NightState
from mmrepro.failure.signature import Outcome, Verdict
from mmrepro.history.ledger import Ledger
from mmrepro.traffic.evidence import Evidence
from simple_incident import incident
from test_cli import Here, here as here
from typer.testing import CliRunner

NOW = datetime.now(UTC)
BAD, GOOD = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED


def verdict(outcome: Outcome, expected: Outcome | None = BAD) -> Verdict:
    return Verdict(
        outcome=outcome,
        expected=expected,
        as_expected=outcome is expected,
        explanation="so",
        conditions=[],
    )


def kept(
    folder: Path, hours_ago: float = 0, release: str = "0.23.0", **more: Any
) -> Path:
    began = Moment(wall=NOW - timedelta(hours=hours_ago), mono=100)
    fields: dict[str, Any] = {
        "id": folder.name.upper(),
        "created": began,
        "finished": Moment(wall=began.wall + timedelta(seconds=9), mono=112.5),
        "engine": EngineFacts(name="vllm", release=release),
        "verdict": verdict(BAD),
    }
    folder.mkdir(parents=True)
    write_incident(incident(**fields | more), folder, Redactor())
    return folder


@pytest.fixture
def several(tmp_path: Path) -> None:
    kept(tmp_path / "incidents/oldest", 50)
    kept(tmp_path / "incidents/good", 30, "0.24.0", verdict=verdict(GOOD))
    mine = ScenarioFacts(
        name="mine", variant="b", title="", summary="", affected="", explanation=""
    )
    engine = EngineFacts(name="minivllm", release="0.1")
    kept(tmp_path / "bisections/x/run-1", 3, scenario=mine, engine=engine)
    kept(tmp_path / "M/incidents/n1/cell/run-1", 1, verdict=verdict(GOOD, None))
    (tmp_path / "M/ledger.jsonl").touch()
    kept(
        tmp_path / "ablations/y/cell",
        2,
        state="failed",
        verdict=None,
        failure="no",
        failure_class="UnloadableWheel",
    )
    kept(tmp_path / "elsewhere/z", 4)


def listed(here: Here, *argv: object) -> list[str]:
    said = here("incidents", "--json", *argv)
    assert said.returncode == 0, said.stderr
    return [one["folder"] for one in json.loads(said.stdout)["incidents"]]


@pytest.mark.usefixtures("several")
def test_what_ran_here_newest_first(here: Here) -> None:
    said = here("incidents")
    assert (said.returncode, said.stderr) == (0, "")
    rows = [line.split() for line in said.stdout.splitlines() if "-" in line[:12]]
    assert [(row[0], row[3], row[-1]) for row in rows] == [
        ("1", "ghost-key-eviction", "M/incidents/n1/cell/run-1"),
        ("2", "ghost-key-eviction", "ablations/y/cell"),
        ("3", "mine", "bisections/x/run-1"),
        ("4", "ghost-key-eviction", "incidents/good"),
        ("5", "ghost-key-eviction", "incidents/oldest"),
    ]
    assert rows[1][6:8] == ["failed", "(UnloadableWheel)"]
    assert rows[2][4:] == [
        "(b)",
        "minivllm",
        "0.1",
        "reproduced",
        "yes",
        "cpu",
        "12.5",
        "s",
        "bisections/x/run-1",
    ]
    assert rows[0][6:8] == ["not-reproduced", "–"]
    assert rows[3][6:8] == ["not-reproduced", "no"]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("given", "folders"),
    [
        ("--scenario mine", ["bisections/x/run-1"]),
        ("--scenario ghost-* --release 0.24.0", ["incidents/good"]),
        ("--scenario ghost", []),
        ("--engine minivllm", ["bisections/x/run-1"]),
        ("--release >=0.24", ["incidents/good"]),
        (
            "--outcome failed --outcome not-reproduced --since 2h",
            ["M/incidents/n1/cell/run-1"],
        ),
        ("--since 90m", ["M/incidents/n1/cell/run-1"]),
        ("--limit 2", ["M/incidents/n1/cell/run-1", "ablations/y/cell"]),
        ("elsewhere", ["elsewhere/z"]),
        ("incidents/good incidents", ["incidents/good", "incidents/oldest"]),
    ],
)
def test_filters(here: Here, given: str, folders: list[str]) -> None:
    assert listed(here, *given.split(" ")) == folders


def test_a_run_that_broke_off_after_its_verdict_proves_nothing(tmp_path: Path) -> None:
    head = read_head(
        kept(tmp_path / "a", state="failed", verdict=verdict(GOOD, GOOD))
    ).head
    assert head is not None
    assert head.outcome == "failed"


@pytest.mark.usefixtures("several")
def test_since_a_date(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    day = f"{NOW - timedelta(hours=31):%Y-%m-%dT%H:%M}"
    assert listed(here, "incidents", "--since", day) == ["incidents/good"]
    assert len(listed(here, "--since", "2020-01-01")) == 5
    monkeypatch.delenv("TZ")
    time.tzset()


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--since soon", "'soon' is no time"),
        ("--since 2026-13-01", "is no time"),
        ("--release >=new", "no range of releases"),
        ("--open 6", "No incident 6; there are 5"),
        ("--open 0", "No incident 0"),
        ("--open gold", "Nothing here is called gold. Did you mean good?"),
        ("--open run-1", "2 incidents or campaigns are called run-1"),
        ("nowhere", "There is no folder nowhere"),
    ],
)
def test_what_is_wrong_is_told(here: Here, given: str, said: str) -> None:
    done = here("incidents", *given.split(" "))
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert said in done.stderr


@pytest.mark.usefixtures("several")
def test_one_is_opened(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("incidents", "--open", "GOOD").stdout == "incidents/good/report.html\n"
    assert (tmp_path / "incidents/good/report.html").is_file(), (
        "made where there was none"
    )
    opened: list[str] = []
    monkeypatch.setattr(
        webbrowser, "open", lambda url: bool(opened.append(url)) or True
    )
    assert here("incidents", "--open", "4").stdout == "incidents/good/report.html\n"
    assert opened == [], "no terminal, no browser"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for name in ("4", "good", "incidents/good"):
        assert here("incidents", "--open", name).stdout == ""
    assert opened == [(tmp_path / "incidents/good/report.html").as_uri()] * 3
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert here("incidents", "--open", "4").stdout == "incidents/good/report.html\n"


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"id": 5}', "\0", '{"id": "x", \n "evidence']
)
def test_what_cannot_be_read_is_counted(
    here: Here, tmp_path: Path, content: str
) -> None:
    (tmp_path / "incidents/torn").mkdir()
    (tmp_path / "incidents/torn/incident.json").write_text(content)
    said = here("incidents")
    assert said.returncode == 0
    assert "1 incident could not be read, e.g. incidents/torn: " in said.stdout
    assert "incidents/good" in said.stdout
    document = json.loads(here("incidents", "--json").stdout)
    assert [one["folder"] for one in document["unreadable"]] == ["incidents/torn"]
    assert document["found"] == 5


def test_nothing_ran_here(here: Here) -> None:
    said = here("incidents")
    assert (said.returncode, said.stdout) == (
        0,
        "No such incident below the current folder.\n",
    )
    printed = json.loads(here("incidents", "--json").stdout)
    assert without_head(printed) == {
        "$id": "urn:mmrepro:incidents:1",
        "schema_version": 1,
        "found": 0,
        "incidents": [],
        "campaigns": [],
        "unreadable": [],
    }


def test_words_of_others_do_nothing_to_a_terminal(here: Here, tmp_path: Path) -> None:
    name = "\x1b[31mred[/]\n[bold]"
    wild = ScenarioFacts(name=name, title="", summary="", affected="", explanation="")
    kept(tmp_path / "incidents/wild", scenario=wild)
    said = here("incidents")
    assert "red[/] [bold]" in said.stdout
    assert "\x1b" not in said.stdout


@pytest.mark.parametrize("chunk", [7, 64, 1 << 16])
def test_no_more_is_read_than_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    words = ['\n "evidence": {', '"evidence": {']
    folder = kept(
        tmp_path / "a", failure_detail=words, evidence=Evidence(facts={"a": 1})
    )
    path = folder / "incident.json"
    whole = json.loads(path.read_text())
    path.write_bytes(
        path.read_bytes() + b"what lies behind the evidence's beginning is not read"
    )
    monkeypatch.setattr(heads, "CHUNK", chunk)
    head = read_head(folder).head
    assert head is not None
    assert (head.id, head.outcome, head.seconds) == ("A", "reproduced", 12.5)
    path.write_text(json.dumps(whole, indent=2))
    assert read_head(folder).head == head, "laid out otherwise"


def test_evidence_and_links_are_not_looked_through(tmp_path: Path) -> None:
    inside = kept(tmp_path / "a")
    kept(inside / "evidence/b")
    (tmp_path / "linked").symlink_to(inside)
    kept(tmp_path / ".hidden/c")
    found = record_folders([tmp_path, inside, tmp_path / "linked"])
    assert [folder for folder, _ in found] == [inside]


def test_hundreds_are_listed_in_a_moment(tmp_path: Path) -> None:
    first = kept(tmp_path / "first", evidence=Evidence(facts={"x": "little"}))
    # Behind the redaction, which takes two seconds for so much.
    little = (first / "incident.json").read_text()
    text = little.replace('"little"', f'"{"y" * (2 << 20)}"')
    (first / "incident.json").write_text(text)
    for number in range(300):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/incident.json").hardlink_to(first / "incident.json")
    assert len(text) > 2 << 20
    began = time.process_time()
    heads_read = [read_head(folder).head for folder, _ in record_folders([tmp_path])]
    assert sum(head is not None for head in heads_read) == 301
    assert time.process_time() - began < 3, "0.1 s; 20 s if all of each were read"


# ---------------------------------------------------------------- campaigns


def campaign(folder: Path, name: str, **fields: Any) -> Path:
    """The document of one, as far as it is looked at, and megabytes behind that."""
    created = Moment(wall=NOW - timedelta(hours=fields.pop("hours_ago", 1)), mono=1)
    head = {
        "mmrepro_version": "0",
        "id": "x",
        "created": created.model_dump(mode="json"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(
        json.dumps({**head, **fields, "rest": ["y" * (1 << 20)]}, indent=1)
    )
    return folder


@pytest.fixture
def campaigns(tmp_path: Path) -> None:
    ghost = {"name": "ghost-key-eviction", "variant": ""}
    left = {"state": "interrupted", "failure": "interrupted"}
    campaign(
        tmp_path / "bisections/b",
        "bisection.json",
        scenario=ghost,
        **left,
        resume=(
            "mmrepro bisect ghost-key-eviction --commits ~/c --out ~/b "
            "--resume --jobs 2"
        ),
        command="mmrepro bisect ghost-key-eviction",
    )
    campaign(
        tmp_path / "ablations/a",
        "ablation.json",
        scenario=ghost,
        hours_ago=30,
        state="complete",
        command="mmrepro ablate ghost-key-eviction",
    )
    server = {"engine": "vllm", "release": "0.23.0"}
    campaign(
        tmp_path / "fuzz/f",
        "fuzz.json",
        server=server,
        hours_ago=2,
        **left,
        command="mmrepro fuzz",
        resume="mmrepro fuzz --seed 1 --resume ~/f",
    )
    campaign(
        tmp_path / "fuzz/f/e0001", "replay.json", server=server, command="x", **left
    )
    (tmp_path / "theirs").mkdir()
    with Ledger(tmp_path / "nights") as ledger:
        command = (
            "mmrepro matrix run --scenario a --jobs 2 --night=n2 --out n --shard 1/2"
        )
        one = night("n1").model_copy(update={"command": command})
        ledger.append(one)
        ledger.append(one.model_copy(update={"state": NightState.COMPLETE}))
        ledger.append(night("n2").model_copy(update={"command": command, "cells": 3}))


@pytest.mark.usefixtures("campaigns")
def test_campaigns_are_listed_too(here: Here, tmp_path: Path) -> None:
    kept(tmp_path / "bisections/b/incidents/bisect/cell/run-1")
    document = json.loads(here("incidents", "--json").stdout)
    assert document["found"] == 1, "what a campaign ran is an incident as any other"
    found = [
        (one["kind"], one["state"], one["what"], one["folder"], one["resume"])
        for one in document["campaigns"]
    ]
    assert sorted(found[:2]) == [
        ("nightly run", "complete", "n1", "nights", ""),
        ("nightly run", "running", "n2, 3 cells", "nights", "mmrepro resume nights"),
    ]
    assert found[2:] == [
        (
            "bisection",
            "interrupted",
            "ghost-key-eviction",
            "bisections/b",
            "mmrepro resume bisections/b",
        ),
        (
            "fuzz session",
            "interrupted",
            "vllm 0.23.0",
            "fuzz/f",
            "mmrepro resume fuzz/f",
        ),
        ("ablation", "complete", "ghost-key-eviction", "ablations/a", ""),
    ]
    said = here("incidents", "-v").stdout.splitlines()
    assert any(
        line.endswith("bisection  ghost-key-eviction  interrupted  bisections/b")
        for line in said
    )
    assert "  to go on: mmrepro resume bisections/b" in said
    assert "to go on" not in here("incidents").stdout
    some = json.loads(
        here("incidents", "--json", "--since", "2h", "--limit", "2").stdout
    )
    assert [one["kind"] for one in some["campaigns"]] == ["nightly run"] * 2
    none = json.loads(here("incidents", "--json", "--scenario", "mine").stdout)
    assert none["campaigns"] == []


def test_a_document_that_is_no_campaign_is_told(here: Here, tmp_path: Path) -> None:
    folder = campaign(tmp_path / "bisections/b", "bisection.json", command=3)
    (one,) = json.loads(here("incidents", "--json").stdout)["campaigns"]
    assert (one["state"], one["resume"]) == ("unreadable", "")
    assert "bisection.json: " in one["why"]
    said = here("resume", folder)
    assert said.returncode == ExitCode.USAGE
    assert "cannot be read" in said.stderr


def test_no_more_of_a_document_is_read_than_its_beginning(tmp_path: Path) -> None:
    folder = campaign(
        tmp_path / "b", "bisection.json", device="cpu", command="mmrepro bisect g"
    )
    with (folder / "bisection.json").open("a") as file:
        file.write("} what lies behind is not read")
    (found,) = campaigns_in(folder, ["bisection.json"])
    assert found.head is not None
    assert found.head.what == "on cpu"


# ---------------------------------------------------------------- going on


@pytest.mark.usefixtures("campaigns")
@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (
            "bisections/b",
            "bisect ghost-key-eviction --commits {home}/c --jobs 2 "
            "--out bisections/b --resume",
        ),
        ("fuzz/f", "fuzz --seed 1 --resume fuzz/f"),
        ("nights", "matrix run --jobs 2 --out nights --resume"),
    ],
)
def test_a_campaign_is_gone_on_with_by_its_own_command(
    here: Here, monkeypatch: pytest.MonkeyPatch, folder: str, words: str
) -> None:
    called: list[list[str]] = []

    def fake(given: list[str], **how: Any) -> int:
        called.append(given)
        return 3

    from mmrepro.cli import app as module

    real = module.app
    words = words.format(home=Path.home())
    made = CliRunner()
    with monkeypatch.context() as patch:
        patch.setattr(module, "app", fake)
        done = made.invoke(real, ["resume", folder, "--", "--budget", "1h"])
    assert done.exit_code == 3
    assert called == [[*words.split(), "--budget", "1h"]]
    assert f"mmrepro {words} --budget 1h" in done.stderr


@pytest.mark.usefixtures("campaigns")
@pytest.mark.parametrize(
    ("folder", "said", "then"),
    [
        (
            "ablations/a",
            "The ablation in ablations/a is complete: nothing is left to run.",
            "Next: mmrepro report ablations/a",
        ),
        (
            "theirs",
            "theirs holds no campaign to go on with.",
            "Next: mmrepro incidents",
        ),
        ("none", "There is no folder none.", "Next: mmrepro incidents"),
    ],
)
def test_nothing_to_go_on_with_is_one_sentence(
    here: Here, folder: str, said: str, then: str
) -> None:
    done = here("resume", folder)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.splitlines()[0] == said
    assert done.stderr.splitlines()[1].startswith(then)


@pytest.mark.parametrize(
    "command", ["rm -rf /", "mmrepro env prune --all", "mmrepro bisect 'x"]
)
def test_a_document_cannot_name_another_command(
    here: Here, tmp_path: Path, command: str
) -> None:
    campaign(tmp_path / "b", "bisection.json", state="interrupted", command=command)
    done = here("resume", "b")
    assert done.returncode == ExitCode.USAGE
    assert "does not say how to go on with its bisection" in done.stderr


def test_a_nightly_run_that_was_killed_goes_on(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    trials = FakeTrials(lambda cell, index: BAD)
    monkeypatch.setattr(conducting, "Trials", lambda options: trials)
    monkeypatch.setattr(conducting, "Provisions", lambda *rest: FakeProvisions())
    with Ledger(tmp_path / "n") as ledger:
        made = night("n1").model_copy(
            update={"command": "mmrepro matrix run --scenario a --out q"}
        )
        begin(ledger, made, [planned("a", "1.0"), planned("b", "1.0")])
    done = here("resume", "n")
    assert done.returncode == 0, done.stderr
    assert len(trials.made) == 2
    assert here("resume", "n").stderr.startswith("The nightly run in n is complete")
