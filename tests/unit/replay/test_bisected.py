"""A bisection of a case or a finding: what the words name, what a replay says of a
point, and the whole of it over made-up replays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from made_up_replay import finding, ghost_case, replay, unconfirmed
from matrix_nights import FakeProvisions
from mmrepro.base.errors import UsageError
from mmrepro.base.options import Command
from mmrepro.base.records import FindingClass
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import field_of
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import LocalPlaces
from mmrepro.cli.app import app
from mmrepro.failure.documents.ledger import Lost
from mmrepro.failure.documents.replay import REPLAY_FILE, PlayFacts, Replay
from mmrepro.failure.documents.searches import Bisection
from mmrepro.failure.documents.stored import document_json
from mmrepro.failure.signature import Outcome
from mmrepro.reports.bisection import KIND
from mmrepro.reports.documents import keep
from mmrepro.search.replay.bisected import BisectingCase, ByReplay, CaseSubject, subject
from mmrepro.search.replay.store import AttemptEnded, Observation
from mmrepro.traffic.case.files import write_case
from test_bisect_session import listed
from typer.testing import CliRunner

CASE = ghost_case()
HANG = finding(CASE)
DEATH = finding(CASE, FindingClass.DEATH, bucket="vllm/death/AssertionError")
START = finding(
    CASE, FindingClass.START_FAILURE, bucket="vllm/start-failure/ImportError"
)
RESIDUE = finding(CASE, FindingClass.RESIDUE, bucket="vllm/residue/threads")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))


def kept(folder: Path, made: Replay, answers: Mapping[str, str] | None = None) -> Path:
    """The replay as it lies on disk, with the answers of its first attempt."""
    write_case(CASE, folder)
    (folder / REPLAY_FILE).write_text(document_json(made))
    for one in made.findings:
        write_case(CASE, folder / one.folder)
    facts = PlayFacts(number=2, what="the whole case", requests=5, state="ended")
    seen = Observation(play=facts, answers=dict(answers or {}))
    line = AttemptEnded(number=2, digest="d", how="whole", index=1, seen=seen)
    (folder / "verdicts.jsonl").write_text(line.model_dump_json() + "\n")
    return folder


# ------------------------------------------------------------------ what is meant


def test_a_scenario_is_no_case() -> None:
    assert subject("ghost-key-eviction") is None
    assert subject("ghost-key-evicton") is None
    assert subject("mine.py") is None


def test_a_case_a_finding_and_the_names_of_findings() -> None:
    kept(Path("replays/old"), replay(HANG, replace_id(DEATH, "f2"), id="old"))
    newer = replay(HANG, id="new").model_copy(
        update={"created": an_hour_later(replay(HANG).created)}
    )
    kept(Path("replays/new"), newer)
    for word in (
        "f1",
        "new",
        "last",
        "replays/new",
        "replays/new/f1",
        "replays/new/f1/case.json",
    ):
        found = subject(word)
        assert found is not None
        assert found.finding == HANG
        assert found.place.parts[:3] == ("replays", "new", "f1")
    second = subject("f2")  # the newest replay has none
    assert second is not None
    assert second.place == Path("replays/old/f2")
    assert second.finding is not None
    assert second.finding.finding_class is FindingClass.DEATH
    write_case(CASE, Path("mine"))
    for word in ("mine", "mine/case.json"):
        alone = subject(word)
        assert alone is not None
        assert (alone.finding, alone.case) == (None, CASE)


def replace_id(one: Any, id: str) -> Any:
    return one.model_copy(
        update={"id": id, "folder": id, "case_file": f"{id}/case.json"}
    )


def an_hour_later(moment: Any) -> Any:
    from datetime import timedelta

    return moment.model_copy(update={"wall": moment.wall + timedelta(hours=1)})


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("f3", "No replay or fuzz session here has a finding f3"),
        ("replays/r", "has 2 findings"),
        ("nothing.json", "nothing.json cannot be read"),
        ("empty", "cannot be read"),
        ("7", "No incident 7"),
    ],
)
def test_what_is_none_is_a_sentence(word: str, says: str) -> None:
    kept(Path("replays/r"), replay(HANG, replace_id(DEATH, "f2")))
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=says):
        subject(word)


def test_options_of_scenarios_are_refused() -> None:
    write_case(CASE, Path("mine"))
    for option in (("--mitigation", "x"), ("--server-arg=--x",), ("--variant", "v")):
        done = CliRunner().invoke(app, ["bisect", "mine", "--device", "cpu", *option])
        assert isinstance(done.exception, UsageError)
        assert option[0].partition("=")[0] in done.exception.message


# ------------------------------------------------------------- what a replay says of it

DEEPER = finding(CASE, bucket=f"{HANG.bucket} > pop")
OTHER_HANG = finding(CASE, bucket="vllm/hang/forward > attend")


@pytest.mark.parametrize(
    ("made", "answers", "expected", "says"),
    [
        (replay(HANG), {}, Outcome.REPRODUCED, "no answer after 6.0 s"),
        (replay(DEEPER), {}, Outcome.REPRODUCED, "no answer"),
        (
            replay(OTHER_HANG, DEATH),
            {},
            Outcome.DIFFERENT_FAILURE,
            "another failure: hang",
        ),
        (replay(DEATH), {}, Outcome.DIFFERENT_FAILURE, "another failure: death"),
        (replay(RESIDUE), {"r5": "200"}, Outcome.NOT_REPRODUCED, "do not show it"),
        (replay(), {"r1": "400"}, Outcome.NOT_REPRODUCED, "r1 got 400"),
        (
            replay(),
            {"r1": "400", "r5": "404"},
            Outcome.INCONCLUSIVE,
            "r5 got 404: nothing was",
        ),
        (replay(START), {}, Lost.INFRASTRUCTURE, "no answer"),
        (replay(state="failed", failure="no room"), {}, Lost.INFRASTRUCTURE, "no room"),
        (
            replay(state="interrupted", failure="ended"),
            {},
            Lost.INFRASTRUCTURE,
            "ended",
        ),
    ],
    ids=lambda value: "" if isinstance(value, (Replay, dict)) else str(value),
)
def test_a_replay_against_the_finding(
    tmp_path: Path, made: Replay, answers: dict[str, str], expected: Any, says: str
) -> None:
    making = ByReplay(Path("case.json"), HANG.bucket, "", HANG.observed)
    told = making.outcome(kept(tmp_path / "r", made, answers), 0, "")
    assert told.get("outcome", told.get("lost")) == expected
    assert says in str(told.get("explanation", told.get("error")))


def test_a_known_name_is_the_same_failure_and_a_start_can_be_the_failure(
    tmp_path: Path,
) -> None:
    named = finding(
        CASE, FindingClass.DEATH, bucket="vllm/death/x", known="ghost-key-eviction"
    )
    folder = kept(tmp_path / "r", replay(named))
    told = ByReplay(Path("c"), HANG.bucket, "ghost-key-eviction").outcome(folder, 0, "")
    assert told["outcome"] is Outcome.REPRODUCED
    folder = kept(tmp_path / "s", replay(START))
    assert (
        ByReplay(Path("c"), START.bucket).outcome(folder, 0, "")["outcome"]
        == "reproduced"
    )
    assert ByReplay(Path("c")).outcome(folder, 0, "")["lost"] is Lost.INFRASTRUCTURE


def test_seen_once_is_there_and_a_comparison_that_was_not_made_says_nothing(
    tmp_path: Path,
) -> None:
    once = replay(
        unconfirmed=[unconfirmed().model_copy(update={"bucket": HANG.bucket})]
    )
    told = ByReplay(Path("c"), HANG.bucket).outcome(kept(tmp_path / "r", once), 3, "")
    assert told["outcome"] is Outcome.REPRODUCED
    wrong = "vllm/wrong-answer/text"
    unseen = replay(
        unseen=["whether the answers are right: no start is left (--budget)"]
    )
    told = ByReplay(Path("c"), wrong).outcome(kept(tmp_path / "s", unseen), 0, "")
    assert told["outcome"] is Outcome.INCONCLUSIVE
    told = ByReplay(Path("c"), wrong).outcome(
        kept(tmp_path / "t", replay(unseen=[])), 0, ""
    )
    assert told["outcome"] is Outcome.NOT_REPRODUCED


def test_nothing_on_disk_is_a_lost_run(tmp_path: Path) -> None:
    making = ByReplay(Path("c"), HANG.bucket)
    assert making.outcome(tmp_path, 2, "no such release")["lost"] is Lost.USAGE
    assert making.outcome(tmp_path, 4, "")["error"] == "mmrepro replay ended with 4"


# ------------------------------------------------------------------ the whole of it


@dataclass
class World:
    """Replays that are made up, by release."""

    shows: Mapping[str, Any]
    typed: list[list[str]]

    def child(self, trials: Trials, made: Command, folder: Path) -> tuple[int, str]:
        argv = made.argv(out=folder, json=True)
        self.typed.append(argv)
        release = argv[argv.index("--release") + 1]
        found = self.shows.get(release, [])
        kept(folder, replay(*found), {"r1": "400", "r5": "stuck" if found else "200"})
        return 0, ""


def bisected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: CaseSubject,
    shows: Mapping[str, Any],
) -> tuple[Bisection, World]:
    world = World(shows, [])
    monkeypatch.setattr(Trials, "_child", lambda *given: world.child(*given))
    asked = BisectCommand(scenario="f1", device="cpu", find="fixed", out=tmp_path / "b")
    field = field_of(what.scenario, asked, [replace_declared(p) for p in listed()])
    assert not any(
        what.scenario.affects("0.23.0", *device) for device in ((), ("cpu",))
    )
    policy = BisectingCase(what, asked, field, write=partial(keep, KIND))
    trials = Trials(TrialOptions(making=policy.making))
    made = Campaign(policy, LocalPlaces(trials, FakeProvisions(), 1)).execute()
    return made, world


def replace_declared(point: Any) -> Any:
    return point.model_copy(update={"declared": False})


def test_a_finding_over_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kept(Path("replays/r"), replay(HANG)) / "f1"
    what = subject(str(folder))
    assert what is not None
    shows = {"0.22.0": [HANG], "0.23.0": [HANG], "0.18.0": [HANG]}
    made, world = bisected(tmp_path, monkeypatch, what, shows)
    assert made.fixed is not None
    assert (made.fixed.first_good, made.fixed.verified) == ("0.24.0", True)
    assert made.command == f"mmrepro bisect {folder} --device cpu --find fixed"
    assert f"--out {tmp_path / 'b'}" in made.resume
    assert made.resume.endswith("--resume")
    (one,) = {tuple(argv[:2]) for argv in world.typed}
    assert one == ("replay", str(tmp_path / "b/case/case.json"))
    assert all({"--no-shrink", "--repeat", "1"} < {*argv} for argv in world.typed)
    assert (
        json.loads((tmp_path / "b/bisection.json").read_text())["scenario"]["name"]
        == what.name
    )
    again = replace(
        BisectCommand(
            scenario=str(folder), device="cpu", find="fixed", out=tmp_path / "b"
        ),
        resume=True,
    )
    field = field_of(what.scenario, again, [replace_declared(p) for p in listed()])
    policy = BisectingCase(what, again, field, write=partial(keep, KIND))
    before = len(world.typed)
    trials = Trials(TrialOptions(making=policy.making))
    resumed = Campaign(policy, LocalPlaces(trials, FakeProvisions(), 1)).execute()
    assert len(world.typed) == before
    assert resumed.fixed is not None
    assert (resumed.fixed.first_good, resumed.state) == ("0.24.0", "complete")


def test_of_a_case_alone_the_first_failure_is_what_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(CASE, Path("mine"))
    what = subject("mine")
    assert what is not None
    shows = {"0.23.0": [HANG], "0.24.0": [DEATH], "0.32.0": [DEATH]}
    made, _ = bisected(tmp_path, monkeypatch, what, shows)
    assert made.fixed is not None
    assert made.fixed.after == "different-failure"
    assert made.fixed.between == ["0.23.0", "0.24.0"]
    assert made.fixed.first_good is None
