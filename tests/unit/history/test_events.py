"""What changed since the nights before: each kind of event, and when it is not told."""

import pytest
from hypothesis import given, strategies as st
from made_nights import cell, night
from mmrepro.base.errors import ExitCode
from mmrepro.campaign.matrix.session import exit_code
from mmrepro.failure.documents.ledger import Cell, Event, EventKind, NightState
from mmrepro.failure.signature import Outcome
from mmrepro.history.events import diff, events
from mmrepro.history.ledger import History, NightRuns
from mmrepro.history.states import VERDICTS, JobState, settle

OLD, MID, NEW, NEWER = cell("0.9.0"), cell("0.23.0"), cell("0.24.0"), cell("0.100.0")
FLIPS = {EventKind.FIXED_IN, EventKind.BUG_RETURNED}
E1, E2 = {"environment": "e1"}, {"environment": "e2"}


def last(*nights: NightRuns) -> list[Event]:
    return events(History(nights), nights[-1])


def kinds(*nights: NightRuns) -> list[EventKind]:
    return [e.what for e in last(*nights)]


def only(kind: EventKind, *nights: NightRuns) -> Event:
    found = [e for e in last(*nights) if e.what is kind]
    assert len(found) == 1, last(*nights)
    return found[0]


def test_fixed_in_a_new_release() -> None:
    event = only(
        EventKind.FIXED_IN, night(1, {MID: "r"}), night(2, {MID: "r", NEW: "n"})
    )
    assert event.text == (
        "ghost on vllm 0.24.0 is not-reproduced, and 0.23.0 still has it."
    )
    assert (event.release, event.before, event.now) == (
        "0.24.0",
        "reproduced in 0.23.0",
        "not-reproduced",
    )
    assert event.identity == f"fixed-in:{NEW.line}:0.24.0"
    assert event.changed == [], (
        "another release has another engine and environment as such"
    )


def test_only_the_first_release_with_the_fix_is_told() -> None:
    nights = night(1, {OLD: "r"}), night(2, {OLD: "r", NEWER: "n", NEW: "n", MID: "r"})
    fixed = only(EventKind.FIXED_IN, *nights)
    assert fixed.release == "0.24.0", "0.100.0 comes after it, whatever letters say"
    assert {e.release for e in last(*nights) if e.what is EventKind.NEW_RELEASE} == {
        "0.23.0",
        "0.24.0",
        "0.100.0",
    }


def test_what_lies_between_and_what_else_changed_is_told() -> None:
    first = night(1, {MID: "r"}, parts={"host": "x86, 2 cores", "code": "a" * 64})
    second = night(
        2, {NEW: "i", NEWER: "n"}, parts={"host": "x86, 4 cores", "code": "b" * 64}
    )
    event = only(EventKind.FIXED_IN, first, second)
    assert event.text == (
        "ghost on vllm 0.100.0 is not-reproduced, and 0.23.0 still has it; between "
        "them lies 0.24.0 (no verdict); 0.23.0 was run last in n1; beside the release "
        "also changed: the machine (x86, 2 cores → x86, 4 cores), mmrepro's own code."
    )
    assert event.changed == ["host", "code"]


def test_a_bug_that_returned() -> None:
    nights = night(1, {OLD: "r", MID: "n"}), night(2, {NEW: "r"})
    event = only(EventKind.BUG_RETURNED, *nights)
    assert event.text.startswith(
        "ghost on vllm 0.24.0 is reproduced again: 0.9.0 had it, 0.23.0 had it no more"
    )
    assert EventKind.NEW_RELEASE_AFFECTED not in kinds(*nights)


def test_a_bug_that_nobody_had_before_did_not_return() -> None:
    nights = night(1, {MID: "n"}), night(2, {MID: "n", NEW: "r"})
    assert kinds(*nights) == [EventKind.NEW_RELEASE, EventKind.NEW_RELEASE_AFFECTED]


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (Outcome.REPRODUCED, "the scenario expects just that"),
        (Outcome.NOT_REPRODUCED, "the scenario expects not-reproduced"),
        (None, "the scenario says nothing of this release"),
    ],
)
def test_a_new_release_that_is_affected(expected: Outcome | None, words: str) -> None:
    nights = night(1, {MID: "r"}), night(2, {MID: "r", NEW: "r"}, expected=expected)
    event = only(EventKind.NEW_RELEASE_AFFECTED, *nights)
    assert event.text == f"ghost on vllm 0.24.0, a new release, is reproduced; {words}."


def test_a_release_is_new_only_if_no_night_had_it_with_any_scenario() -> None:
    other = cell("0.24.0", "other")
    nights = (
        night(1, {MID: "r", other: "r"}),
        night(2, {MID: "r", other: "r", NEW: "n"}),
    )
    assert kinds(*nights) == []


def test_a_scenario_and_an_engine_on_their_first_night_have_no_history() -> None:
    fresh = {
        cell(release, "fresh"): letter
        for release, letter in zip("12", "rn", strict=True)
    }
    mine = {
        cell(release, engine="mine"): x for release, x in zip("12", "rn", strict=True)
    }
    assert kinds(night(1, {MID: "r"}), night(2, {MID: "r", **mine})) == []
    assert FLIPS.isdisjoint(kinds(night(1, {MID: "r"}), night(2, {MID: "r", **fresh})))
    assert kinds(night(1, {MID: "r", NEW: "n"})) == []


def test_commits_are_in_the_order_in_which_they_were_run() -> None:
    one, two, three = (cell("0.24.0", commit=name * 40) for name in "fae")
    first, second = night(1, {one: "r"}), night(2, {two: "r"})
    event = only(EventKind.FIXED_IN, first, second, night(3, {three: "n"}))
    assert event.text.startswith(
        "ghost on vllm eeeeeeeeeeee is not-reproduced, and aaaaaaaaaaaa"
    )
    assert EventKind.COVERAGE_LOST not in kinds(first, second), "a commit is run once"


def test_another_verdict_under_another_key_is_drift_and_says_why() -> None:
    event = only(
        EventKind.DRIFT, night(1, {MID: "r"}, parts=E1), night(2, {MID: "n"}, parts=E2)
    )
    assert event.text == (
        "ghost on vllm 0.23.0 was reproduced and is not-reproduced; changed beside it: "
        "the engine's environment (e1 → e2)."
    )
    assert event.changed == ["environment"]


def test_another_verdict_under_one_key_is_flaky() -> None:
    event = only(EventKind.FLAKY, night(1, {MID: "r"}), night(2, {MID: "n"}))
    assert event.text == (
        "ghost on vllm 0.23.0 is flaky: 1 × reproduced, 1 × not-reproduced under one "
        "key: it reproduces in 1 of 2 runs (95 %: 9% to 91%)."
    )
    within = only(EventKind.FLAKY, night(1, {MID: "rnrr"}))
    assert "3 of 4 runs" in within.text
    assert within.identity == event.identity


def test_under_one_key_it_is_drift_only_where_chance_is_unlikely() -> None:
    steady = [night(n, {MID: "r"}) for n in range(1, 5)]
    event = only(EventKind.DRIFT, *steady, night(5, {MID: "nnnn"}))
    assert event.changed == []
    assert (
        "reproduced in all 4 runs before, not-reproduced in all 4 now (p = 0.029)"
        in event.text
    )
    assert kinds(*steady, night(5, {MID: "nn"})) == [EventKind.FLAKY]
    assert kinds(*steady, night(5, {MID: "rnnnnnn"})) == [EventKind.FLAKY]
    many = [night(n, {MID: "rr"}) for n in range(1, 30)]
    assert kinds(*many, night(30, {MID: "n"})) == [EventKind.FLAKY], (
        "one run agrees with itself"
    )
    # What it drifted to is what it is measured against from then on.
    drifted = [*steady, night(5, {MID: "nnnn"})]
    assert kinds(*drifted, night(6, {MID: "n"})) == []
    assert kinds(*drifted, night(6, {MID: "r"})) == [EventKind.FLAKY]


def test_flaky_is_told_once_and_nothing_is_fixed_out_of_it() -> None:
    nights = [night(1, {MID: "r"}), night(2, {MID: "n"})]
    assert kinds(*nights, night(3, {MID: "r"})) == []
    assert kinds(*nights, night(3, {MID: "rn"})) == []
    assert kinds(*nights, night(3, {MID: "r", NEW: "n"})) == [EventKind.NEW_RELEASE]
    other = night(3, {MID: "r"}, parts=E2)
    assert kinds(*nights, other) == []
    assert kinds(*nights, other, night(4, {MID: "r", NEW: "n"}, parts=E2)) == [
        EventKind.NEW_RELEASE
    ], "it was flaky, under another key"
    assert kinds(*nights, other, night(4, {MID: "rn"}, parts=E2)) == [EventKind.FLAKY]
    steady = night(3, {MID: "rr"}, parts=E2)
    assert kinds(*nights, steady, night(4, {MID: "n"})) == [], (
        "that key is known to be flaky"
    )
    assert kinds(night(1, {MID: "r"}), night(2, {MID: "r", NEW: "rn"})) == [
        EventKind.NEW_RELEASE,
        EventKind.FLAKY,
    ]


def test_drift_within_a_night() -> None:
    mixed = night(2, {MID: "r"}, parts={"start mode": "cold"})
    warm = night(2, {MID: "n"}, parts={"start mode": "warm"}).attempts[0]
    mixed.attempts.append(warm.model_copy(update={"index": 2}))
    event = only(EventKind.DRIFT, night(1), mixed)
    assert event.changed == ["start mode"]
    assert "within one night" in event.text
    again = night(3, {MID: "r"}, parts={"start mode": "cold"})
    again.attempts.append(warm.model_copy(update={"index": 2, "night": "n3"}))
    assert kinds(mixed, again) == []
    assert kinds(mixed, night(3, {MID: "n"}, parts={"start mode": "warm"})) == []


def test_a_different_failure() -> None:
    told = night(2, {MID: "d"}, parts=E2)
    told.attempts[0] = told.attempts[0].model_copy(
        update={"explanation": "another\nhang"}
    )
    nights = night(1, {MID: "r"}, parts=E1), told
    assert kinds(*nights) == [EventKind.DIFFERENT_FAILURE, EventKind.DRIFT]
    event = only(EventKind.DIFFERENT_FAILURE, *nights)
    assert event.text == (
        "ghost on vllm 0.23.0 fails in another way; it was reproduced: another hang."
    )
    assert kinds(*nights, night(3, {MID: "d"}, parts=E2)) == []
    assert kinds(night(1, {MID: "d"})) == [EventKind.DIFFERENT_FAILURE]
    assert kinds(night(1, {MID: "d"}, expected=Outcome.DIFFERENT_FAILURE)) == []
    assert kinds(night(1, {MID: "r"}), night(2, {MID: "d"})) == [EventKind.FLAKY]


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("l", "1 × lost (infrastructure)"),
        ("ii", "2 × inconclusive"),
        (None, "no longer planned"),
    ],
)
def test_coverage_that_was_lost(letters: str | None, words: str) -> None:
    runs = {} if letters is None else {MID: letters}
    nights = night(1, {MID: "r"}), night(2, {OLD: "r", **runs})
    event = only(EventKind.COVERAGE_LOST, *nights)
    assert event.text.startswith(
        "ghost on vllm 0.23.0: no result tonight (last: reproduced)"
    )
    assert words in event.text
    assert kinds(*nights, night(3, {OLD: "r", **runs})) == [], "as it was"


def test_a_night_that_has_not_ended_has_lost_nothing_and_one_that_broke_off_has() -> (
    None
):
    for state, lost in [(NightState.RUNNING, 0), (NightState.OUT_OF_TIME, 1)]:
        late = night(2, {MID: ""}, state=state)
        assert kinds(night(1, {MID: "r"}), late) == [EventKind.COVERAGE_LOST] * lost
        assert kinds(night(1, {MID: "r"}), late, night(3, {MID: "l"})) == [
            EventKind.COVERAGE_LOST
        ] * (1 - lost)
    shard = night(2, {OLD: "r"})
    shard.night = shard.night.model_copy(update={"shard": "1/2"})
    assert kinds(night(1, {MID: "r", OLD: "r"}), shard) == [], "the other shard has it"


def test_nights_that_are_missing() -> None:
    nights = night(1, {MID: "r"}, hours=0), night(2, {MID: "r"}, hours=60)
    event = only(EventKind.NIGHT_MISSING, *nights)
    assert (
        event.text
        == "60 h after n1 began no other night had, and one is due every 24 h."
    )
    assert (event.night, event.identity) == ("n2", "night-missing:n1")
    assert kinds(nights[0], night(2, {MID: "r"}, hours=36)) == []
    assert kinds(night(1, every_h=None, hours=0), night(2, hours=900)) == []
    assert diff(*nights) == []


def test_two_nights_of_two_ledgers() -> None:
    before, after = (
        night(1, {MID: "r", NEW: "n"}),
        night(1, {MID: "n", NEW: "n"}, parts=E2),
    )
    assert [e.what for e in diff(before, after)] == [EventKind.DRIFT]
    assert diff(before, before) == []


# ------------------------------------------------------------- whatever the nights were

LETTERS = st.text("rndil", max_size=4)
PARTS = st.sampled_from([E1, E2, {"host": "h2"}])
CELLS = [OLD, MID, NEW, NEWER, cell("0.24.0", "other")]
PLANS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(CELLS), LETTERS, max_size=4), PARTS),
    max_size=6,
)


def made(plans: list[tuple[dict[Cell, str], dict[str, str]]]) -> list[NightRuns]:
    return [night(n, runs, parts=parts) for n, (runs, parts) in enumerate(plans, 1)]


@given(st.lists(LETTERS, min_size=1, max_size=10))
def test_one_release_under_one_key_is_never_fixed_and_never_returns(
    letters: list[str],
) -> None:
    nights = [night(n, {MID: runs}) for n, runs in enumerate(letters, 1)]
    for n in range(1, len(nights) + 1):
        assert set(kinds(*nights[:n])) <= {
            EventKind.FLAKY,
            EventKind.DRIFT,
            EventKind.DIFFERENT_FAILURE,
            EventKind.COVERAGE_LOST,
        }


@given(PLANS)
def test_fixed_and_returned_are_only_of_releases_that_no_night_had(
    plans: list[tuple[dict[Cell, str], dict[str, str]]],
) -> None:
    nights = made(plans)
    for n in range(1, len(nights) + 1):
        had = {c.release for former in nights[: n - 1] for c in former.cells.values()}
        found = last(*nights[:n])
        assert len({e.identity for e in found}) == len(found)
        for event in found:
            assert (event.night, event.text[-1]) == (f"n{n}", ".")
            if event.what in {
                *FLIPS,
                EventKind.NEW_RELEASE,
                EventKind.NEW_RELEASE_AFFECTED,
            }:
                assert event.release not in had
            if event.what in FLIPS:
                line = next(c for c in CELLS if c.id == event.cell).line
                cells = [c.id for c in CELLS if c.line == line]
                states = {
                    settle(f.attempts_of(c)).state for f in nights[:n] for c in cells
                }
                assert JobState.FLAKY not in states


@given(LETTERS, PARTS, st.integers(2, 4))
def test_equal_nights_have_no_events(
    letters: str, parts: dict[str, str], times: int
) -> None:
    runs = {MID: letters, NEW: letters[::-1]}
    nights = [night(n, runs, parts=parts) for n in range(1, times + 1)]
    assert kinds(*nights) == []


@given(LETTERS, LETTERS, PARTS, PARTS)
def test_a_flip_of_a_release_is_always_told(
    before: str, after: str, old: dict[str, str], new: dict[str, str]
) -> None:
    nights = night(1, {MID: before}, parts=old), night(2, {MID: after}, parts=new)
    states = [settle(n.attempts).state for n in nights]
    found = {EventKind.FLAKY, EventKind.DRIFT} & set(kinds(*nights))
    if set(states) <= VERDICTS and len(set(states)) == 2:
        assert len(found) == 1
        assert EventKind.DRIFT in found or old == new
    elif len(set(states)) == 1:
        assert not found


# -------------------------------------------------------- lost at first, and back-ports


@pytest.mark.parametrize(
    "first", ["", "l", "i"], ids=["not run", "lost", "inconclusive"]
)
@pytest.mark.parametrize(
    ("before", "letter", "what"),
    [
        ({OLD: "n", MID: "r"}, "n", EventKind.FIXED_IN),
        ({OLD: "r", MID: "n"}, "r", EventKind.BUG_RETURNED),
        ({MID: "r"}, "r", EventKind.NEW_RELEASE_AFFECTED),
    ],
)
def test_a_release_that_was_lost_on_its_first_night_is_told_of_on_the_next(
    before: dict[Cell, str], letter: str, what: EventKind, first: str
) -> None:
    nights = night(1, before), night(2, {**before, NEW: first})
    assert EventKind.NEW_RELEASE in kinds(*nights)
    assert what not in kinds(*nights)
    nights = *nights, night(3, {**before, NEW: first})
    told = kinds(*nights, night(4, {**before, NEW: letter}))
    assert told == [what]
    again = kinds(
        *nights, night(4, {**before, NEW: letter}), night(5, {**before, NEW: letter})
    )
    assert again == []


def test_a_cell_that_came_later_is_no_news_of_its_release() -> None:
    other = cell("0.24.0", "other")
    nights = (
        night(1, {MID: "r", other: "r"}),
        night(2, {MID: "r", other: "r", NEW: "i"}),
    )
    assert kinds(*nights, night(3, {MID: "r", other: "r", NEW: "n"})) == []


@pytest.mark.parametrize(
    ("fixed", "newer", "returned"),
    [
        ("0.22.1", "0.23.0", False),
        ("0.22.0.post1", "0.22.1", False),
        ("0.22.1", "1.0.0", False),
        ("0.22.1", "0.22.2", True),
        ("0.22.1rc1", "0.22.1", True),
        ("0.23.0", "0.24.2", True),
        ("0.22.1", "0.22.1.post1", True),
    ],
)
def test_what_a_back_port_fixed_did_not_return(
    fixed: str, newer: str, returned: bool
) -> None:
    had, well, new = cell("0.22.0"), cell(fixed), cell(newer)
    nights = night(1, {had: "r", well: "n"}), night(2, {had: "r", well: "n", new: "r"})
    told = kinds(*nights)
    assert (EventKind.BUG_RETURNED in told) is returned
    assert (EventKind.NEW_RELEASE_AFFECTED in told) is not returned
    if not returned:
        assert f"{fixed}, of another branch, has it no more" in last(*nights)[-1].text


def test_an_alarm_makes_a_night_red_but_for_a_cell_in_quarantine() -> None:
    runs = night(1, {MID: "r"}, expected=Outcome.REPRODUCED)
    event = Event(night="n1", what=EventKind.DRIFT, identity="x", cell=MID.id, text=".")
    runs.events = [event]
    assert exit_code(runs, lambda _: False) is ExitCode.NOT_AS_EXPECTED
    assert exit_code(runs, lambda _: True) is ExitCode.AS_EXPECTED
    runs.events = [event.model_copy(update={"what": EventKind.NEW_RELEASE})]
    assert exit_code(runs, lambda _: False) is ExitCode.AS_EXPECTED
