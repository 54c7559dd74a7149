"""What is to be looked at, night after night, and when that is over."""

import pytest
from made_nights import cell, moment, night, told
from mmrepro.failure.documents.ledger import Cell, EventKind, NightState
from mmrepro.failure.signature import Outcome
from mmrepro.history.concerns import Concern, concerns
from mmrepro.history.ledger import NightRuns

OLD, MID, NEW, NEWER = cell("0.9.0"), cell("0.23.0"), cell("0.24.0"), cell("0.100.0")
E1, E2, E3 = {"environment": "e1"}, {"environment": "e2"}, {"environment": "e3"}
R, N = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED


def one(what: str, of: Cell, *nights: NightRuns) -> Concern:
    return concerns(told(*nights))[f"{what}:{of.line}:{of.release}"]


RETURNED = night(1, {OLD: "r", MID: "n"}), night(2, {OLD: "r", MID: "n", NEW: "r"})


@pytest.mark.parametrize(
    ("next_night", "over"),
    [
        (night(3, {NEW: "r"}), ""),
        (night(3, {NEW: "l"}), ""),
        (night(3, {NEW: "i"}), ""),
        (night(3, {NEW: ""}), ""),
        (night(3, {MID: "n"}), ""),
        (night(3, {NEW: "d"}, parts=E2), ""),
        (
            night(3, {NEW: "n"}),
            "",
        ),  # under the same key: a flake, and nothing is over out of one
        (
            night(3, {NEW: "n"}, parts=E2),
            "In night n3 it is not-reproduced (1 × not-reproduced).",
        ),
        (night(3, {NEW: "r", NEWER: "n"}), "It is fixed in vllm 0.100.0, in night n3."),
        (night(3, {NEW: "", NEWER: "n"}), "It is fixed in vllm 0.100.0, in night n3."),
        (
            night(3, {NEW: "r"}, parts=E2, expected=R),
            (
                "In night n3 it is reproduced (1 × reproduced), which is what the "
                "scenario expects."
            ),
        ),
    ],
)
def test_when_a_bug_that_returned_is_over(next_night: NightRuns, over: str) -> None:
    nights = [
        night(n, {c: _letters(r, c) for c in r.cells.values()}, expected=N)
        for n, r in enumerate(RETURNED, 1)
    ]
    assert one("bug-returned", NEW, *nights, next_night).over == over


def _letters(runs: NightRuns, of: Cell) -> str:
    return "".join("r" if a.outcome is R else "n" for a in runs.attempts_of(of.id))


def test_a_fix_that_comes_in_an_older_release_fixes_nothing() -> None:
    backport = cell("0.10.0")
    nights = [
        night(1, {OLD: "r"}),
        night(2, {OLD: "r", NEW: "r"}),
        night(3, {NEW: "r", backport: "n"}),
    ]
    known = concerns(told(*nights))
    assert nights[2].events[0].what is EventKind.FIXED_IN
    assert known[f"new-release-affected:{NEW.line}:0.24.0"].over == ""


def test_what_is_known_of_one_that_was_not_run() -> None:
    concern = one(
        "bug-returned", NEW, *RETURNED, night(3, {NEW: "rr"}), night(4, {NEW: "l"})
    )
    assert (concern.since, concern.seen, concern.night) == ("n2", "n3", "n4")
    assert concern.state == "reproduced"
    assert concern.settled is not None
    assert concern.settled.conclusive == 2
    assert concern.tonight is not None
    assert concern.tonight.state == "lost"


def test_of_one_that_is_planned_no_more_nothing_new_is_said() -> None:
    concern = one(
        "bug-returned", NEW, *RETURNED, night(3, {NEW: "l"}), night(4, {MID: "n"})
    )
    assert (concern.over, concern.night, concern.seen) == ("", "n3", "n2")


def test_a_new_release_affected_is_told_where_nobody_expected_it() -> None:
    def kinds(expected: Outcome | None) -> list[str]:
        first = night(1, {MID: "r"}, expected=R)
        second = night(2, {MID: "r", NEW: "r"}, expected=expected)
        return [i.partition(":")[0] for i in concerns(told(first, second))]

    assert kinds(N) == kinds(None) == ["new-release-affected"]
    assert kinds(R) == []


def test_a_cell_that_is_planned_no_more_is_no_concern() -> None:
    """With the selector ``newest`` each new release takes the place of one."""
    nights = told(night(1, {MID: "r"}), night(2, {NEW: "r"}))
    assert EventKind.COVERAGE_LOST in {e.what for e in nights.nights[1].events}
    assert not [i for i in concerns(nights) if i.startswith("coverage-lost")]


def test_what_is_fixed_in_the_same_night_is_over() -> None:
    first = night(1, {OLD: "r"}, expected=R)
    concern = one(
        "new-release-affected", MID, first, night(2, {OLD: "r", MID: "r", NEW: "n"})
    )
    assert concern.over == "It is fixed in vllm 0.24.0, in night n2."


def test_coverage_is_lost_until_there_is_a_verdict() -> None:
    nights = [
        night(1, {MID: "r"}),
        night(2, {MID: "l"}),
        night(3, {MID: ""}),
        night(4, {MID: "i"}),
    ]
    assert one("coverage-lost", MID, *nights).over == ""
    assert one("coverage-lost", MID, *nights).state == "unknown"
    over = one("coverage-lost", MID, *nights, night(5, {MID: "rn"})).over
    assert over == (
        "In night n5 it is flaky (1 × reproduced, 1 × not-reproduced, under one key): "
        "it has a verdict again."
    )


def test_a_flaky_cell_is_so_until_a_new_key_agrees_with_itself() -> None:
    nights = [night(1, {MID: "r"}), night(2, {MID: "n"}), night(3, {MID: "nnn"})]
    concern = one("flaky", MID, *nights)
    assert (concern.over, concern.state, concern.since) == ("", "flaky", "n2")
    over = one("flaky", MID, *nights, night(4, {MID: "nn"}, parts=E2)).over
    assert over.startswith(
        "In night n4 it is not-reproduced (2 × not-reproduced): under its new"
    )


def test_a_flaky_cell_that_settles_on_what_was_not_expected_stays() -> None:
    nights = [
        night(1, {MID: "rn"}, expected=N),
        night(2, {MID: "rr"}, parts=E2, expected=N),
    ]
    concern = one("flaky", MID, *nights)
    assert (concern.over, concern.state) == ("", "reproduced")


def test_a_drift_is_over_when_nothing_fails_or_it_is_as_expected() -> None:
    nights = [
        night(1, {MID: "n"}),
        night(2, {MID: "r"}, parts=E2),
        night(3, {MID: "r"}, parts=E2),
    ]
    assert one("drift", MID, *nights[:2]).over == ""
    assert one("drift", MID, *nights).over == ""
    back = one("drift", MID, *nights, night(4, {MID: "n"}, parts=E3))
    assert (
        back.over
        == "In night n4 it is not-reproduced (1 × not-reproduced), and nothing fails."
    )
    assert back.since == "n2"
    again = one(
        "drift",
        MID,
        *nights,
        night(4, {MID: "n"}, parts=E3),
        night(5, {MID: "r"}, parts=E2),
    )
    assert (again.over, again.since) == ("", "n5")


def test_a_drift_to_what_was_expected_is_told_and_over_the_next_night() -> None:
    nights = [
        night(1, {MID: "n"}, expected=R),
        night(2, {MID: "r"}, parts=E2, expected=R),
    ]
    assert one("drift", MID, *nights).over == ""
    after = one("drift", MID, *nights, night(3, {MID: "r"}, parts=E2, expected=R))
    assert "which is what the scenario expects" in after.over


def test_another_failure_is_over_when_it_fails_so_no_more() -> None:
    nights = [night(1, {MID: "r"}), night(2, {MID: "d"}, parts=E2)]
    assert one("different-failure", MID, *nights).over == ""
    after = one("different-failure", MID, *nights, night(3, {MID: "r"}, parts=E3))
    assert after.over.endswith("fails so no more.")


def test_what_is_over_stays_so_until_it_is_told_anew() -> None:
    nights = [*RETURNED, night(3, {NEW: "n"}, parts=E2), night(4, {NEW: "r"}, parts=E3)]
    concern = one("bug-returned", NEW, *nights)
    assert concern.over.startswith("In night n3")
    assert one("drift", NEW, *nights).over == "", "which tells that it came again"


def test_a_night_that_was_killed_tells_what_it_found() -> None:
    killed = night(2, {MID: "n"}, state=NightState.RUNNING)
    assert one("flaky", MID, night(1, {MID: "r"}), killed).since == "n2"


def test_the_time_of_a_night_is_not_its_name() -> None:
    """Nights go by when they began, also where an older one is merged in later."""
    nights = [night(9, {MID: "r"}, hours=0), night(1, {MID: "n"}, hours=24)]
    assert nights[0].night.created == moment(0)
    assert one("flaky", MID, *nights).since == "n1"
