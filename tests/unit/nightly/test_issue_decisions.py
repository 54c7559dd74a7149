"""One open issue for each concern: opened, rewritten, closed; and nothing done
twice."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from made_nights import cell, night, told, written
from mmrepro.failure.documents.ledger import Cell, NightState
from mmrepro.failure.signature import Outcome
from mmrepro.history.concerns import Quarantine, concerns
from mmrepro.history.ledger import History, NightRuns
from night_documents import NOBODY, Json, Script, concerns_at
from night_issues import (
    LABEL,
    MAX_BODY,
    Decided,
    decide,
    mark_in,
    mark_of,
    mark_of_issue,
    mark_text,
    updated,
)
from night_samples import excused

MID, NEW = cell("0.23.0"), cell("0.24.0")
E1, E2 = {"environment": "e1"}, {"environment": "e2"}
LOST = [night(1, {MID: "r"}), night(2, {MID: "l"})]
LABELS = [{"name": LABEL}]


def known(
    *nights: NightRuns, hours: float | None = None, excused: Quarantine = NOBODY
) -> dict[str, Json]:
    return concerns_at(told(*nights), hours, excused)


def kinds(decided: Decided) -> list[str]:
    return [action["do"] for action in decided.actions]


@dataclass
class FakeTracker:
    """Issues as a tracker keeps them; ``apply`` does what was decided."""

    issues: list[Json] = field(default_factory=list)
    comments: list[tuple[int, str]] = field(default_factory=list)

    def apply(self, decided: Decided) -> None:
        for action in decided.actions:
            number = action.get("number", len(self.issues) + 1)
            if action["do"] == "open":
                issue = {"number": number, "body": action["body"], "labels": LABELS}
                self.issues.append({**issue, "state": "OPEN"})
                continue
            if action["do"] == "update":
                self.issues[number - 1] = {
                    **self.issues[number - 1],
                    "body": action["body"],
                }
            else:
                self.close(number)
            if action["comment"]:
                self.comments.append((number, action["comment"]))

    def close(self, number: int) -> None:
        """By hand."""
        self.issues[number - 1] = {**self.issues[number - 1], "state": "CLOSED"}

    @property
    def open(self) -> dict[str, Json]:
        """The open ones, by identity; none has two."""
        marks = [(mark_of_issue(i), i) for i in self.issues if i["state"] == "OPEN"]
        counts = Counter(mark["identity"] for mark, _ in marks if mark)
        assert max(counts.values(), default=0) <= 1
        return {mark["identity"]: issue for mark, issue in marks if mark}


def test_it_is_opened_rewritten_and_closed() -> None:
    tracker = FakeTracker()
    first = decide(known(*LOST), tracker.issues)
    assert kinds(first) == ["open"]
    tracker.apply(first)
    assert list(tracker.open) == [f"coverage-lost:{MID.line}:0.23.0"]
    assert decide(known(*LOST), tracker.issues) == Decided()

    third = known(*LOST, night(3, {MID: "l"}))
    (update,) = decide(third, tracker.issues).actions
    assert update["do"] == "update"
    assert update["comment"] == "", "another night of the same is no news"
    tracker.apply(decide(third, tracker.issues))
    assert tracker.comments == []
    assert decide(third, tracker.issues) == Decided()

    fourth = known(*LOST, night(3, {MID: "l"}), night(4, {MID: "r"}))
    (close,) = decide(fourth, tracker.issues).actions
    assert (
        close["comment"]
        == "In night n4 it is reproduced (1 × reproduced): it has a verdict again."
    )
    tracker.apply(decide(fourth, tracker.issues))
    assert not tracker.open
    assert decide(fourth, tracker.issues) == Decided()


def test_another_state_is_worth_a_comment() -> None:
    nights = [night(1, {MID: "n"}), night(2, {MID: "rr"}, parts=E2)]
    tracker = FakeTracker()
    tracker.apply(decide(known(*nights), tracker.issues))
    nights.append(night(3, {MID: "d"}, parts={"environment": "e3"}))
    tracker.apply(decide(known(*nights), tracker.issues))
    (comment,) = [text for number, text in tracker.comments if number == 1]
    assert comment.startswith(
        "It was reproduced. **Night n3:** different-failure, 0 of 1 "
    )


def test_closed_by_hand_it_stays_closed_until_it_is_told_anew() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    tracker.close(1)
    longer = [*LOST, night(3, {MID: "l"})]
    assert decide(known(*longer), tracker.issues) == Decided()
    again = [*longer, night(4, {MID: "r"}), night(5, {MID: "l"})]
    tracker.apply(decide(known(*again), tracker.issues))
    assert [i["number"] for i in tracker.open.values()] == [2]


def test_the_newer_of_two_is_closed_as_the_same() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    tracker.apply(decide(known(*LOST), []))
    (close,) = decide(known(*LOST), list(reversed(tracker.issues))).actions
    assert (close["do"], close["number"], close["reason"]) == (
        "close",
        2,
        "not planned",
    )
    assert close["comment"] == "The same as #1, which goes on."


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": []},
        {"labels": [{"name": "bug"}]},
        {"body": "no mark"},
        {"body": '<!-- mmrepro-issue {"identity": 3} -->'},
        {"body": "<!-- mmrepro-issue {broken} -->"},
    ],
)
def test_what_is_not_ours_is_left_alone(changes: dict[str, object]) -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    other = {**tracker.issues[0], **changes}
    again = decide(known(*LOST, night(3, {MID: "l"})), [other])
    assert kinds(again) == ["open"], "and the concern has none then"


def test_of_what_the_ledger_does_not_know_nothing_is_done() -> None:
    mark = {"identity": "flaky:gone:1", "since": "n", "night": "n", "state": "flaky"}
    issue = {"number": 3, "body": mark_text(mark), "labels": LABELS}
    assert decide(known(LOST[0]), [issue]) == Decided()


def test_a_body_that_grew_by_hand_is_left_and_still_closed() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), tracker.issues))
    long = {**tracker.issues[0], "body": tracker.issues[0]["body"] + "x" * MAX_BODY}
    assert decide(known(*LOST, night(3, {MID: "l"})), [long]) == Decided()
    assert kinds(decide(known(*LOST, night(3, {MID: "r"})), [long])) == ["close"]


def test_in_quarantine_none_is_opened_and_one_that_is_there_goes_on() -> None:
    free = excused(("ghost", "0.23.0"))
    assert decide(known(*LOST, excused=free), []) == Decided()
    tracker = FakeTracker()
    tracker.apply(decide(known(*LOST), []))
    later = known(*LOST, night(3, {MID: "l"}), excused=free)
    assert kinds(decide(later, tracker.issues)) == ["update"]


def test_the_worst_come_first_and_the_rest_waits() -> None:
    returned = cell("0.24.0", "other")
    nights = [
        night(1, {MID: "r", cell("0.9.0", "other"): "r", cell("0.23.0", "other"): "n"}),
        night(2, {MID: "l", returned: "r"}),
    ]
    decided = decide(known(*nights), [], most=1)
    (action,) = decided.actions
    assert action["identity"].startswith("bug-returned")
    assert decided.held == ["coverage lost: ghost on vllm 0.23.0"]
    tracker = FakeTracker()
    for _ in range(5):
        tracker.apply(decide(known(*nights), tracker.issues, most=1))
    assert len(tracker.open) == 1 + len(decided.held)


def test_a_missing_night_has_an_issue_until_one_begins() -> None:
    tracker = FakeTracker()
    tracker.apply(
        decide(known(night(1, {MID: "r"}, hours=0), hours=40), tracker.issues)
    )
    assert list(tracker.open) == ["night-missing:n1"]
    later = known(night(1, {MID: "r"}, hours=0), hours=60)
    assert decide(later, tracker.issues) == Decided(), "not one word more an hour later"
    nights = [night(1, {MID: "r"}, hours=0), night(2, {MID: "r"}, hours=61)]
    tracker.apply(decide(known(*nights, hours=62), tracker.issues))
    assert not tracker.open
    assert tracker.comments == [
        (1, "Night n2 began on 2026-11-03 16:00 UTC and is complete.")
    ]


def test_a_ledger_in_which_nothing_ran_has_one_too() -> None:
    tracker = FakeTracker()
    tracker.apply(decide(known(hours=0), tracker.issues))
    assert list(tracker.open) == ["night-missing:"]
    tracker.apply(decide(known(night(1, {MID: "r"}, hours=0), hours=1), tracker.issues))
    assert not tracker.open


def test_concerns_of_runs_that_are_missing() -> None:
    def at(hours: float, *nights: NightRuns) -> dict[str, str]:
        found = concerns_at(History(nights), hours)
        return {i: c["over"] for i, c in found.items() if i.startswith("night-missing")}

    first, second = night(1, {MID: "r"}, hours=0), night(2, {MID: "r"}, hours=50)
    assert at(36, first) == {
        "night-missing:": "Night n1 began on 2026-11-01 03:00 UTC and is complete."
    }
    assert at(37, first)["night-missing:n1"] == ""
    over = "Night n2 began on 2026-11-03 05:00 UTC and is complete."
    assert at(51, first, second)["night-missing:n1"] == over
    assert at(99, first, second)["night-missing:n2"] == ""
    assert at(99) == {"night-missing:": ""}
    empty = night(2, {MID: ""}, hours=35)
    assert "night-missing:n1" not in at(36, first, empty), (
        "which shows no life, and ends nothing"
    )
    third = night(3, {MID: "r"}, hours=50)
    assert at(51, first, empty, third)["night-missing:n1"].startswith("Night n3 began")
    running = night(1, {MID: "r"}, hours=0, state=NightState.RUNNING)
    assert at(25, running)["night-missing:n1"] == "", (
        "until the next one: an end is not enough"
    )
    assert "night-missing:n1" not in at(25, first)


# ------------------------------------------------------------------ any ledger

CELLS = [cell(r, s) for s in ("ghost", "desync") for r in ("0.9.0", "0.23.0", "0.24.0")]
CELLS.append(cell("0.25.0", commit="a" * 40))
LETTERS = st.text("rndil", max_size=3)
NIGHTS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(CELLS), LETTERS, max_size=5),
        st.sampled_from([E1, E2]),
        st.sampled_from([None, Outcome.REPRODUCED, Outcome.NOT_REPRODUCED]),
        st.sampled_from(
            [NightState.COMPLETE, NightState.RUNNING, NightState.OUT_OF_TIME]
        ),
        st.integers(0, 3),  # how many issues somebody closes by hand after it
    ),
    max_size=7,
)


@given(nights=NIGHTS, most=st.sampled_from([None, 1, 3]), forgets=st.booleans())
def test_any_ledger_night_after_night(
    nights: list[
        tuple[dict[Cell, str], dict[str, str], Outcome | None, NightState, int]
    ],
    most: int | None,
    forgets: bool,
) -> None:
    """``forgets``: only the open issues are told, as a bare `gh issue list` does."""
    tracker, so_far = FakeTracker(), []
    for number, (runs, parts, expected, state, closed) in enumerate(nights, 1):
        so_far.append(night(number, runs, parts=parts, expected=expected, state=state))
        found = known(*so_far, hours=24 * number + 1)
        while True:
            there = [i for i in tracker.issues if i["state"] == "OPEN" or not forgets]
            decided = decide(found, there, most=most)
            tracker.apply(decided)
            assert set(tracker.open) <= {i for i, c in found.items() if not c["over"]}
            if not decided.held:
                break
        there = [i for i in tracker.issues if i["state"] == "OPEN" or not forgets]
        assert decide(found, there, most=most) == Decided(), (
            "the second call finds nothing to do"
        )
        standing = {i for i, c in found.items() if not c["over"]}
        shut = [mark_of_issue(i) for i in tracker.issues if i["state"] != "OPEN"]
        by_hand = {mark["identity"] for mark in shut if mark}
        assert standing - set(tracker.open) <= by_hand
        for issue in list(tracker.open.values())[:closed]:
            tracker.close(issue["number"])
        for identity, issue in tracker.open.items():
            assert mark_of_issue(issue) == mark_of(found[identity])


@given(nights=NIGHTS)
def test_a_night_in_which_a_cell_is_not_run_ends_nothing(
    nights: list[
        tuple[dict[Cell, str], dict[str, str], Outcome | None, NightState, int]
    ],
) -> None:
    made = [
        night(n, r, parts=p, expected=e) for n, (r, p, e, _, _) in enumerate(nights, 1)
    ]
    before = {i for i, c in concerns(told(*made)).items() if not c.over}
    for letters in ("", "l", "li"):
        idle = night(len(made) + 1, dict.fromkeys(CELLS, letters))
        assert before <= {
            i for i, c in concerns(told(*made, idle)).items() if not c.over
        }


WORDS = st.one_of(st.text(), st.text('<!->{}"\\ \n', max_size=12), st.just("--><b>"))


@given(identity=WORDS, since=WORDS, state=WORDS, before=st.text(), after=WORDS)
def test_a_mark_is_read_back_whatever_is_in_it(
    identity: str, since: str, state: str, before: str, after: str
) -> None:
    mark = {"identity": identity, "since": since, "night": "n1", "state": state}
    text = mark_text(mark)
    body = f"{before.replace('<!--', '')}{text}{after}"
    assert mark_in(body) == mark
    assert text.count("-->") == 1
    assert text.isascii()
    assert "\n" not in text
    missing = {"cell": None, "status": "None ran.", "state": "\\1 other"}
    other = updated(body, {**mark, **missing})
    assert mark_in(other) == {**mark, "state": "\\1 other"}
    assert after.rstrip() in other


def test_the_command(tmp_path: Path, script: Script) -> None:
    """With the issues from a file: nothing is done, and what would be is printed."""
    two = {MID: "r", NEW: "r"}
    folder = written(
        tmp_path / "M", night(1, two), night(2, dict.fromkeys(two, "l")), ago=1
    )
    there, free = tmp_path / "open.json", tmp_path / "q.toml"
    there.write_text("[]")
    code, text = script("issues", folder, "--open", there, "--json")
    first, _ = json.loads(text)["actions"]
    assert (code, first["do"], first["labels"]) == (0, "open", ["mmrepro-nightly"])
    assert script("issues", folder, "--open", there, "--max-new", 1)[
        1
    ].splitlines() == [
        "would open: coverage lost: ghost on vllm 0.23.0",
        (
            "1 more are to be opened and wait for the next night: coverage lost: "
            "ghost on vllm 0.24.0"
        ),
    ]
    free.write_text(
        '[[quarantine]]\nscenario = "ghost"\nreleases = "==0.23.0"\nreason = "known"\n'
        'issue = "#1"\nowner = "ada"\nexpires = 2999-01-01\n'
    )
    text = script("issues", folder, "--open", there, "--quarantine", free)[1]
    assert text == "would open: coverage lost: ghost on vllm 0.24.0\n"
    for broken in (
        "",
        "{}",
        '[{"title": "no number"}]',
        '[{"number": 0}]',
        '[{"number": 1, "body": 2}]',
    ):
        there.write_text(broken)
        code, text = script("issues", folder, "--open", there)
        assert (code, "is no list of issues" in text) == (2, True)
    there.unlink()
    assert script("issues", folder, "--open", there)[0] == 2
