"""One open issue for each concern: opened, rewritten, closed; and nothing done twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st
from made_nights import BEGAN, cell, night, told
from mmrepro.history.concerns import Concern, concerns
from mmrepro.history.issues import (
    LABEL,
    MAX_BODY,
    Close,
    Decided,
    Issue,
    Label,
    Mark,
    Open,
    Update,
    decide,
    mark_in,
    mark_of,
    marked,
)
from mmrepro.history.ledger import NightRuns
from mmrepro.incident.ledger import Cell, NightState
from mmrepro.signature import Outcome

MID, NEW = cell("0.23.0"), cell("0.24.0")
E1, E2 = {"environment": "e1"}, {"environment": "e2"}
LOST = [night(1, {MID: "r"}), night(2, {MID: "l"})]


def known(*nights: NightRuns, hours: float | None = None) -> dict[str, Concern]:
    now = None if hours is None else BEGAN + timedelta(hours=hours)
    return concerns(told(*nights), now)


@dataclass
class FakeTracker:
    """Issues as a tracker keeps them; ``apply`` does what was decided."""

    issues: list[Issue] = field(default_factory=list)
    comments: list[tuple[int, str]] = field(default_factory=list)

    def apply(self, decided: Decided) -> None:
        for action in decided.actions:
            if isinstance(action, Open):
                body = f"{mark_of(action.concern).text}\n\nwords"
                labels = [Label(name=LABEL)]
                self.issues.append(Issue(number=len(self.issues) + 1, body=body, labels=labels))
            elif isinstance(action, Update):
                body = marked(action.issue.body, mark_of(action.concern))
                self._put(action.issue.model_copy(update={"body": body}))
                if action.changed:
                    self.comments.append((action.issue.number, action.concern.state))
            else:
                self._put(action.issue.model_copy(update={"state": "CLOSED"}))
                self.comments.append((action.issue.number, action.why))

    def close(self, number: int) -> None:
        """By hand."""
        self._put(self.issues[number - 1].model_copy(update={"state": "CLOSED"}))

    def _put(self, issue: Issue) -> None:
        self.issues[issue.number - 1] = issue

    @property
    def open(self) -> list[str]:
        return [m.identity for i in self.issues if i.open and (m := i.mark) is not None]


def test_it_is_opened_rewritten_and_closed() -> None:
    tracker = FakeTracker()
    first = decide(known(*LOST), tracker.issues)
    assert [type(a) for a in first.actions] == [Open]
    tracker.apply(first)
    identity = f"coverage-lost:{MID.line}:0.23.0"
    assert tracker.open == [identity]
    assert decide(known(*LOST), tracker.issues) == Decided()

    third = known(*LOST, night(3, {MID: "l"}))
    (update,) = decide(third, tracker.issues).actions
    assert isinstance(update, Update)
    assert not update.changed, "another night of the same is no news"
    tracker.apply(decide(third, tracker.issues))
    assert tracker.comments == []
    assert decide(third, tracker.issues) == Decided()

    fourth = known(*LOST, night(3, {MID: "l"}), night(4, {MID: "r"}))
    (close,) = decide(fourth, tracker.issues).actions
    assert isinstance(close, Close)
    assert close.why == "In night n4 it is reproduced (1 × reproduced): it has a verdict again."
    tracker.apply(decide(fourth, tracker.issues))
    assert tracker.open == []
    assert decide(fourth, tracker.issues) == Decided()


def test_another_state_is_worth_a_comment() -> None:
    nights = [night(1, {MID: "n"}), night(2, {MID: "rr"}, parts=E2)]
    tracker = FakeTracker()
    tracker.apply(decide(known(*nights), tracker.issues))
    nights.append(night(3, {MID: "d"}, parts={"environment": "e3"}))
    tracker.apply(decide(known(*nights), tracker.issues))
    assert (1, "different-failure") in tracker.comments


def test_closed_by_hand_it_stays_closed_until_it_is_told_anew() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    tracker.close(1)
    longer = [*LOST, night(3, {MID: "l"})]
    assert decide(known(*longer), tracker.issues) == Decided()
    again = [*longer, night(4, {MID: "r"}), night(5, {MID: "l"})]
    tracker.apply(decide(known(*again), tracker.issues))
    assert [i.number for i in tracker.issues if i.open] == [2]


def test_the_newer_of_two_is_closed_as_the_same() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    tracker.apply(decide(known(*LOST), []))
    assert len(tracker.open) == 2
    (close,) = decide(known(*LOST), tracker.issues).actions
    assert isinstance(close, Close)
    assert (close.issue.number, close.same_as) == (2, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": []},
        {"labels": [Label(name="bug")]},
        {"body": "no mark"},
        {"body": '<!-- mmrepro-issue {"identity": 3} -->'},
        {"body": "<!-- mmrepro-issue {broken} -->"},
    ],
)
def test_what_is_not_ours_is_left_alone(changes: dict[str, object]) -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    other = tracker.issues[0].model_copy(update=changes)
    (action,) = decide(known(*LOST, night(3, {MID: "l"})), [other]).actions
    assert isinstance(action, Open), "and the concern has none then"


def test_of_what_the_ledger_does_not_know_nothing_is_done() -> None:
    mark = Mark(identity="flaky:gone:1", since="n", night="n", state="flaky")
    issue = Issue(number=3, body=mark.text, labels=[Label(name=LABEL)])
    assert decide(known(), [issue]) == Decided()


def test_a_body_that_grew_by_hand_is_left_and_still_closed() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    long = tracker.issues[0].model_copy(update={"body": tracker.issues[0].body + "x" * MAX_BODY})
    assert decide(known(*LOST, night(3, {MID: "l"})), [long]) == Decided()
    (close,) = decide(known(*LOST, night(3, {MID: "r"})), [long]).actions
    assert isinstance(close, Close)


def test_in_quarantine_none_is_opened_and_one_that_is_there_goes_on() -> None:
    found = known(*LOST)
    assert decide(found, [], excused=lambda c: c.cell == MID) == Decided()
    tracker = FakeTracker()
    tracker.apply(decide(found, []))
    later = known(*LOST, night(3, {MID: "l"}))
    assert [type(a) for a in decide(later, tracker.issues, lambda c: True).actions] == [Update]


def test_the_worst_come_first_and_the_rest_waits() -> None:
    returned = cell("0.24.0", "other")
    nights = [
        night(1, {MID: "r", cell("0.9.0", "other"): "r", cell("0.23.0", "other"): "n"}),
        night(2, {MID: "l", returned: "r"}),
    ]
    decided = decide(known(*nights), [], most=1)
    (action,) = decided.actions
    assert isinstance(action, Open)
    assert action.concern.identity.startswith("bug-returned")
    assert {c.event.what.value for c in decided.held} == {"coverage-lost"}
    tracker = FakeTracker()
    for _ in range(5):
        tracker.apply(decide(known(*nights), tracker.issues, most=1))
    assert len(tracker.open) == 1 + len(decided.held)


def test_a_missing_night_has_an_issue_until_one_begins() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(night(1, {MID: "r"}, hours=0), hours=40), tracker.issues))
    assert tracker.open == ["night-missing:n1"]
    later = known(night(1, {MID: "r"}, hours=0), hours=60)
    assert decide(later, tracker.issues) == Decided(), "not one word more an hour later"
    nights = [night(1, {MID: "r"}, hours=0), night(2, {MID: "r"}, hours=61)]
    tracker.apply(decide(known(*nights, hours=62), tracker.issues))
    assert tracker.open == []
    assert tracker.comments == [(1, "Night n2 began on 2026-11-03 16:00 UTC and is complete.")]


def test_a_ledger_in_which_nothing_ran_has_one_too() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(hours=0), tracker.issues))
    assert tracker.open == ["night-missing:"]
    tracker.apply(decide(known(night(1, {MID: "r"}, hours=0), hours=1), tracker.issues))
    assert tracker.open == []


# ------------------------------------------------------------------ any ledger

CELLS = [cell(r, s) for s in ("ghost", "desync") for r in ("0.9.0", "0.23.0", "0.24.0")]
CELLS.append(cell("0.25.0", commit="a" * 40))
LETTERS = st.text("rndil", max_size=3)
NIGHTS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(CELLS), LETTERS, max_size=5),
        st.sampled_from([E1, E2]),
        st.sampled_from([None, Outcome.REPRODUCED, Outcome.NOT_REPRODUCED]),
        st.sampled_from([NightState.COMPLETE, NightState.RUNNING, NightState.OUT_OF_TIME]),
        st.integers(0, 3),  # how many issues somebody closes by hand after it
    ),
    max_size=7,
)


@given(nights=NIGHTS, most=st.sampled_from([None, 1, 3]), forgets=st.booleans())
def test_any_ledger_night_after_night(
    nights: list[tuple[dict[Cell, str], dict[str, str], Outcome | None, NightState, int]],
    most: int | None,
    forgets: bool,
) -> None:
    """``forgets``: only the open issues are told, as a bare `gh issue list` does."""
    tracker, so_far = FakeTracker(), []
    for number, (runs, parts, expected, state, closed) in enumerate(nights, 1):
        so_far.append(night(number, runs, parts=parts, expected=expected, state=state))
        found = known(*so_far, hours=24 * number + 1)
        while True:
            seen = [i for i in tracker.issues if i.open or not forgets]
            decided = decide(found, seen, most=most)
            tracker.apply(decided)
            assert max(Counter(tracker.open).values(), default=0) <= 1
            if not decided.held:
                break
        seen = [i for i in tracker.issues if i.open or not forgets]
        assert decide(found, seen, most=most) == Decided(), "the second call finds nothing to do"
        standing = {i for i, c in found.items() if not c.over}
        assert set(tracker.open) <= standing
        by_hand = {m.identity for i in tracker.issues if not i.open and (m := i.mark)}
        assert standing - set(tracker.open) <= by_hand
        for issue in [i for i in tracker.issues if i.open][:closed]:
            tracker.close(issue.number)
        for open_issue in (i for i in tracker.issues if i.open):
            concern = found[open_issue.mark.identity]  # type: ignore[union-attr]
            assert open_issue.mark == mark_of(concern)


@given(nights=NIGHTS)
def test_a_night_in_which_a_cell_is_not_run_ends_nothing(
    nights: list[tuple[dict[Cell, str], dict[str, str], Outcome | None, NightState, int]],
) -> None:
    made = [night(n, r, parts=p, expected=e) for n, (r, p, e, _, _) in enumerate(nights, 1)]
    before = {i for i, c in known(*made).items() if not c.over}
    for letters in ("", "l", "li"):
        idle = night(len(made) + 1, dict.fromkeys(CELLS, letters))
        assert before <= {i for i, c in known(*made, idle).items() if not c.over}


WORDS = st.one_of(st.text(), st.text('<!->{}"\\ \n', max_size=12), st.just("--><b>"))


@given(identity=WORDS, since=WORDS, state=WORDS, before=st.text(), after=WORDS)
def test_a_mark_is_read_back_whatever_is_in_it(
    identity: str, since: str, state: str, before: str, after: str
) -> None:
    mark = Mark(identity=identity, since=since, night="n1", state=state)
    body = f"{before.replace('<!--', '')}{mark.text}{after}"
    assert mark_in(body) == mark
    assert mark.text.count("-->") == 1
    assert mark.text.isascii()
    assert "\n" not in mark.text
    other = mark.model_copy(update={"state": "\\1 other"})
    assert mark_in(marked(body, other)) == other
    assert marked(body, other).endswith(after)
