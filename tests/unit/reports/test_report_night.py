"""A night in every format: all say the same, of every cell, and nothing is greener than
it was."""

import json
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import date, timedelta

import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.failure.documents.ledger import Event, EventKind, NightState, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.history.concerns import Quarantine
from mmrepro.history.ledger import History
from mmrepro.history.squares import LOOKS, SquareStanding, affects
from mmrepro.history.states import JobState
from mmrepro.reports.blocks import Table, words
from mmrepro.reports.grid import band
from mmrepro.reports.nightly import compose
from night_samples import (
    FIRST,
    HEALTHY,
    REPRODUCED,
    as_json,
    attempt,
    cell,
    excused,
    history_of,
    junit,
    markdown,
    night,
    on_terminal,
    one_night,
    realistic,
    runs_of,
    shown,
)

# ------------------------------------------------------------------ counts

_OUTCOMES = st.one_of(st.none(), st.sampled_from(Outcome))


@examples(12)
@given(
    plan=st.lists(
        st.tuples(_OUTCOMES, st.lists(_OUTCOMES, max_size=4), st.booleans()),
        min_size=1,
        max_size=9,
    )
)
def test_every_format_counts_every_cell_once(
    plan: list[tuple[Outcome | None, list[Outcome | None], bool]],
) -> None:
    squares = []
    for number, (expected, outcomes, _) in enumerate(plan):
        c = cell(f"0.{number}.0")
        squares.append((c, expected, runs_of(c, expected, *outcomes)))
    history = one_night(*squares)
    known = [
        ("ghost-key-eviction", f"0.{n}.0") for n, (_, _, k) in enumerate(plan) if k
    ]
    made = shown(history, excused(*known))
    assert sum(made.states.values()) == sum(made.standings.values()) == len(plan)
    document = json.loads(as_json(made))
    assert document["counts"]["states"] == {s.value: made.states[s] for s in JobState}
    assert Counter(c["standing"] for c in document["cells"]) == +Counter(
        document["counts"]["standings"]
    )
    for state in JobState:
        text = f"{made.states[state]} {LOOKS[state].word}"
        assert (text in compose(made).counts) == bool(made.states[state])
    for standing in (
        SquareStanding.SURPRISE,
        SquareStanding.FLAKY,
        SquareStanding.UNTESTED,
    ):
        assert (f"{made.standings[standing]} " in made.badge.label) == bool(
            made.standings[standing]
        )
    suite = ET.fromstring(junit(made))
    red = made.standings[SquareStanding.SURPRISE] + made.standings[SquareStanding.FLAKY]
    assert int(suite.attrib["failures"]) == red
    assert (
        int(suite.attrib["errors"])
        == made.states[JobState.LOST] + made.states[JobState.MISSING]
    )
    assert int(suite.attrib["tests"]) == len(plan)
    if made.badge.tone == "good":
        assert not red
        assert not made.standings[SquareStanding.UNTESTED]


# ------------------------------------------------------------------ states


@pytest.mark.parametrize(
    ("expected", "outcomes", "state", "standing"),
    [
        (REPRODUCED, [REPRODUCED], JobState.REPRODUCED, SquareStanding.EXPECTED),
        (
            HEALTHY,
            [REPRODUCED, REPRODUCED],
            JobState.REPRODUCED,
            SquareStanding.SURPRISE,
        ),
        (HEALTHY, [REPRODUCED, HEALTHY], JobState.FLAKY, SquareStanding.FLAKY),
        (
            HEALTHY,
            [Outcome.INCONCLUSIVE],
            JobState.INCONCLUSIVE,
            SquareStanding.UNTESTED,
        ),
        (HEALTHY, [None, None], JobState.LOST, SquareStanding.UNTESTED),
        (HEALTHY, [], JobState.MISSING, SquareStanding.UNTESTED),
        (None, [HEALTHY], JobState.NOT_REPRODUCED, SquareStanding.UNJUDGED),
    ],
)
def test_what_a_square_means(
    expected: Outcome | None,
    outcomes: list[Outcome | None],
    state: JobState,
    standing: SquareStanding,
) -> None:
    c = cell()
    history = one_night((c, expected, runs_of(c, expected, *outcomes)))
    [square] = shown(history).squares
    assert (square.state, square.standing) == (state, standing)
    known = shown(history, excused((c.scenario, c.release))).squares[0]
    forgiven = standing in (SquareStanding.SURPRISE, SquareStanding.FLAKY)
    assert known.standing is (SquareStanding.QUARANTINED if forgiven else standing)


def test_lost_and_missing_are_never_green() -> None:
    lost, missing, fine = cell("0.1"), cell("0.2"), cell("0.3")
    made = shown(
        one_night(
            (lost, HEALTHY, runs_of(lost, HEALTHY, None)),
            (missing, HEALTHY, []),
            (fine, HEALTHY, runs_of(fine, HEALTHY, HEALTHY)),
        )
    )
    assert made.badge.label == "2 untested"
    assert made.badge.tone == "unsure"
    assert not any(s.quarantine for s in made.squares)
    assert "∅" in on_terminal(made)


def test_an_event_that_is_bad_turns_a_night_red_that_was_expected() -> None:
    c = cell()
    event = Event(
        night="n",
        what=EventKind.NEW_RELEASE_AFFECTED,
        identity="x",
        cell=c.id,
        text="affected",
    )
    history = one_night((c, REPRODUCED, runs_of(c, REPRODUCED, REPRODUCED)))
    history.take(event)
    assert shown(history).badge.tone == "bad"


def test_a_flaky_cell_shows_how_often_and_the_interval() -> None:
    c = cell()
    outcomes = [REPRODUCED, HEALTHY, REPRODUCED]
    made = shown(one_night((c, REPRODUCED, runs_of(c, REPRODUCED, *outcomes))))
    [square] = made.squares
    assert square.mark == "≈2/3"
    assert square.words == "flaky: 2 of 3 reproduced (21–94 %)"
    [flaky] = [s for s in compose(made).sections if s.title == "Flaky (1)"]
    [runs] = flaky.blocks
    assert isinstance(runs, Table)
    assert [words(row.cells[3]) for row in runs.rows] == [
        "1, planned: reproduced",
        "2, planned: not reproduced",
        "3, planned: reproduced",
    ]


def test_releases_stand_in_the_order_of_their_versions() -> None:
    names = ["0.9.0", "0.10.0", "0.10.0rc1", "main", "0.2.0"]
    squares = [(cell(n), None, []) for n in names]
    [grid] = shown(one_night(*squares)).grids
    assert [c.release for c in grid.columns] == [
        "0.2.0",
        "0.9.0",
        "0.10.0rc1",
        "0.10.0",
        "main",
    ]


def test_commits_of_one_release_are_columns_of_their_own() -> None:
    squares = [(cell("0.2", commit=c), None, []) for c in ("a" * 40, "b" * 40)]
    [grid] = shown(one_night(*squares)).grids
    assert [c.label for c in grid.columns] == ["0.2 aaaaaaaaa", "0.2 bbbbbbbbb"]
    assert len(grid.rows) == 1


def test_the_declared_range_is_behind_the_releases_that_it_has() -> None:
    squares = [(cell(f"0.{n}.0"), None, []) for n in range(5)]
    [grid] = shown(one_night(*squares, affected=">=0.1,<0.4")).grids
    bands = band(grid, grid.rows[0])
    assert {c.release: b for c, b in bands.items()} == {
        "0.1.0": "band first",
        "0.2.0": "band",
        "0.3.0": "band last",
    }


@pytest.mark.parametrize(
    ("specifier", "release", "inside"),
    [
        (">=0.1", "0.1", True),
        ("", "0.1", False),
        ("  ", "0.1", False),
        ("nonsense", "0.1", False),
        (">=0.1", "main", False),
        (">=0.1", "0.2rc1", True),
    ],
)
def test_affected(specifier: str, release: str, inside: bool) -> None:
    assert affects(specifier, release) is inside


def test_a_night_that_is_not_whole_says_so_first() -> None:
    records = [
        night("n", state=NightState.INTERRUPTED),
        Planned(night="n", cell=cell()),
    ]
    made = shown(history_of(records))
    assert made.warning == "This nightly run is interrupted; 1 of 1 job did not run."
    assert markdown(made).index(made.warning) < 200
    assert made.warning in on_terminal(made)


def test_what_is_wrong_with_the_quarantine_is_said_everywhere() -> None:
    c = cell()
    expired = (
        excused((c.scenario, c.release))
        .entries[0]
        .model_copy(update={"expires": date(2026, 1, 1)})
    )
    made = shown(
        one_night((c, HEALTHY, runs_of(c, HEALTHY, REPRODUCED))), Quarantine((expired,))
    )
    assert made.squares[0].standing is SquareStanding.SURPRISE
    for text in (markdown(made), on_terminal(made), as_json(made)):
        assert "expired on 2026-01-01 and counts no more" in text


def test_the_first_night_has_nothing_to_compare_with() -> None:
    made = shown(realistic(nights=1))
    assert made.before == ""
    assert made.changes == "6 events in the first nightly run of this ledger"


def test_events_are_found_where_the_ledger_has_none_yet() -> None:
    """A night that still runs has not written them."""
    c = cell("0.30.0")
    other = cell("0.29.0")
    records: list[object] = [night("m", FIRST - timedelta(days=1)), night("n")]
    for name, release in (("m", other), ("n", other), ("n", c)):
        records.append(Planned(night=name, cell=release, expected=HEALTHY))
        records.append(attempt(release, name, outcome=HEALTHY, expected=HEALTHY))
    made = shown(history_of(records))  # type: ignore[arg-type]
    assert [e.what for e in made.events] == [EventKind.NEW_RELEASE]


def two_nights(then: Outcome | None, now: Outcome | None) -> History:
    c, added = cell(), cell("0.22.0")
    records: list[object] = [night("m", FIRST - timedelta(days=1)), night("n")]
    for name, outcome in (("m", then), ("n", now)):
        records.append(Planned(night=name, cell=c, expected=HEALTHY))
        records.append(
            attempt(c, name, outcome=outcome, expected=HEALTHY if outcome else None)
        )
    records.append(Planned(night="m", cell=added))
    return history_of(records)  # type: ignore[arg-type]


def test_a_cell_that_is_known_again_is_told_though_it_is_no_event() -> None:
    made = shown(two_nights(None, HEALTHY))
    assert not made.events
    assert made.changes == "no bug came or went since m"
    assert made.shifts == ["1 × lost → not reproduced", "1 × not planned any more"]
    for text in (markdown(made), on_terminal(made)):
        assert "Otherwise than in m, and no event: 1 × lost → not reproduced" in text


def test_an_event_is_not_told_twice() -> None:
    made = shown(two_nights(HEALTHY, None))
    assert [e.what for e in made.events] == [EventKind.COVERAGE_LOST]
    assert made.shifts == ["1 × not planned any more"]


def test_nothing_changed_is_said_only_where_nothing_did() -> None:
    history = two_nights(HEALTHY, HEALTHY)
    history.nights[-1].planned[cell("0.22.0").id] = Planned(
        night="n", cell=cell("0.22.0")
    )
    made = shown(history)
    assert made.changes == "nothing changed since m"
    assert not made.shifts
    assert "every job came out as in m" in markdown(made)
