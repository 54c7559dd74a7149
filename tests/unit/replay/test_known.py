"""When a finding is given a known failure's name, and when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_player import played
from fake_plays import BUCKET, OTHER, fake_case, fake_op, fake_seen
from mmrepro.case.played import Played, PlayState
from mmrepro.errors import UsageError
from mmrepro.incident.diagnosis import Fit, Match
from mmrepro.replay import known
from mmrepro.replay.known import Naming, best, by_log, mitigation
from mmrepro.replay.seen import STUCK, Named, Seen

CASE = fake_case([fake_op("r1"), fake_op("r2")])


def match(scenario: str, fit: Fit) -> Match:
    return Match(scenario=scenario, variant="", title="", fit=fit, why=f"{fit} it is")


def seen(**answers: str) -> Seen:
    return fake_seen(CASE, answers)


def hung() -> Played:
    return played(CASE, {"r1": "200", "r2": STUCK})


@pytest.mark.parametrize("fit", list(Fit))
def test_only_a_match_in_all_conditions_is_a_name(fit: Fit) -> None:
    named = best([match("ghost-key-eviction", fit), match("kv-growth-crash", Fit.NOT_THIS)])
    assert named.known == ("ghost-key-eviction" if fit is Fit.MATCH else None)
    assert named.why
    if fit in (Fit.LIKELY, Fit.SYMPTOM_ONLY):
        assert "ghost-key-eviction" in named.why, "what it may be is told"
    assert best([]).known is None


def looked(bucket: str, fit: Fit = Fit.MATCH) -> Naming:
    naming = Naming(bucket, 6.0)
    naming._matches = [match("ghost-key-eviction", fit)]
    naming._diagnosis = known.DIAGNOSIS_DIR
    return naming


def test_the_worst_failure_of_a_play_gets_the_name_and_no_other(tmp_path: Path) -> None:
    both = seen(r1="500", r2=STUCK)
    named = looked(BUCKET).name(both, CASE, hung(), tmp_path).named
    assert named is not None
    assert (named.known, named.diagnosis) == ("ghost-key-eviction", "diagnosis")
    other = looked(OTHER).name(both, CASE, hung(), tmp_path).named
    assert other is not None
    assert other.known is None
    assert "hang" in other.why


def test_a_play_without_the_failure_names_nothing(tmp_path: Path) -> None:
    well = seen(r1="200", r2="200")
    assert looked(BUCKET).name(well, CASE, hung(), tmp_path).named is None


def test_nobody_looked_is_no_name(tmp_path: Path) -> None:
    named = Naming(BUCKET, 6.0).name(seen(r1="200", r2=STUCK), CASE, hung(), tmp_path).named
    assert named is not None
    assert (named.known, named.why) == (None, "nobody looked at the server")


def test_a_look_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_options: object) -> None:
        raise UsageError("py-spy is refused")

    monkeypatch.setattr(known, "diagnose", refused)
    naming = Naming(BUCKET, 6.0)
    naming.on_look("http://127.0.0.1:1", 1, tmp_path / "evidence" / "engine.log")
    named = naming.name(seen(r1="200", r2=STUCK), CASE, hung(), tmp_path).named
    assert named is not None
    assert "py-spy is refused" in named.why


def test_of_a_server_that_is_gone_the_log_says_which_it_was_not(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("INFO all is well\n")
    gone = Played(state=PlayState.DIED, log_file="engine.log")
    matches = by_log(CASE, gone, tmp_path)
    assert {m.scenario for m in matches} >= {"ghost-key-eviction", "mm-cache-desync"}
    assert best(matches).known is None
    absent = by_log(CASE, gone.model_copy(update={"log_file": "no.log"}), tmp_path)
    assert best(absent).known is None


@pytest.mark.parametrize(
    ("named", "release", "found"),
    [
        (Named(known="ghost-key-eviction"), "0.23.0", "ghost-key-eviction/disable-mm-cache"),
        (Named(known="borrowed-faults"), "0.1", "borrowed-faults/fix"),
        (Named(known="borrowed-faults", variant="kv-budget"), "0.1", ""),
        (Named(), "0.23.0", ""),
    ],
)
def test_what_keeps_a_known_failure_away_is_no_other_release(
    named: Named, release: str, found: str
) -> None:
    assert mitigation(named, release) == found
