"""The words and marks in which every format tells a night: states, standings, events."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from mmrepro.history.states import State
from mmrepro.incident.ledger import EventKind, NightState
from mmrepro.records import Fidelity


class Standing(StrEnum):
    """What a square means to who reads it: each has exactly one."""

    SURPRISE = "surprise"
    FLAKY = "flaky"
    UNTESTED = "untested"
    QUARANTINED = "quarantined"
    """Not as expected or flaky, and known: it runs, and turns nothing red."""
    EXPECTED = "expected"
    UNJUDGED = "unjudged"
    """It has a verdict, and none was expected."""


STATE_WORDS: Final[dict[State, str]] = {
    State.REPRODUCED: "reproduced",
    State.NOT_REPRODUCED: "not reproduced",
    State.DIFFERENT_FAILURE: "different failure",
    State.INCONCLUSIVE: "inconclusive",
    State.FLAKY: "flaky",
    State.LOST: "lost",
    State.MISSING: "did not run",
}
STATE_MEANINGS: Final[dict[State, str]] = {
    State.REPRODUCED: "the release has this failure: symptom and cause were seen",
    State.NOT_REPRODUCED: "the trigger arrived, nothing failed, the engine works after it",
    State.DIFFERENT_FAILURE: "it fails, and not for the cause that the scenario names",
    State.INCONCLUSIVE: "too little could be seen to say",
    State.FLAKY: "both verdicts at an unchanged key; k of n runs reproduced it",
    State.LOST: "no run reached a verdict: nothing was learnt about the engine",
    State.MISSING: "planned, and no run was made of it",
}
MARKS: Final[dict[State, str]] = {
    State.REPRODUCED: "✘",
    State.NOT_REPRODUCED: "✔",
    State.DIFFERENT_FAILURE: "◆",
    State.INCONCLUSIVE: "?",
    State.FLAKY: "≈",
    State.LOST: "∅",
    State.MISSING: "–",
}
STANDING_WORDS: Final[dict[Standing, str]] = {
    Standing.SURPRISE: "not as expected",
    Standing.FLAKY: "flaky",
    Standing.UNTESTED: "untested",
    Standing.QUARANTINED: "in quarantine",
    Standing.EXPECTED: "as expected",
    Standing.UNJUDGED: "without an expectation",
}
EVENT_WORDS: Final[dict[EventKind, str]] = {
    EventKind.BUG_RETURNED: "bug returned",
    EventKind.FIXED_IN: "fixed",
    EventKind.NEW_RELEASE: "new release",
    EventKind.NEW_RELEASE_AFFECTED: "new release affected",
    EventKind.DIFFERENT_FAILURE: "different failure",
    EventKind.DRIFT: "drift",
    EventKind.FLAKY: "flaky",
    EventKind.COVERAGE_LOST: "coverage lost",
    EventKind.NIGHT_MISSING: "night missing",
}
EVENT_TONES: Final[dict[EventKind, str]] = {
    EventKind.BUG_RETURNED: "bad",
    EventKind.NEW_RELEASE_AFFECTED: "bad",
    EventKind.DIFFERENT_FAILURE: "bad",
    EventKind.DRIFT: "bad",
    EventKind.FLAKY: "unsure",
    EventKind.COVERAGE_LOST: "unsure",
    EventKind.NIGHT_MISSING: "unsure",
    EventKind.FIXED_IN: "good",
    EventKind.NEW_RELEASE: "soft",
}
"""Also the order in which they are told."""
NIGHT_WORDS: Final[dict[NightState, str]] = {
    NightState.RUNNING: "still running, or killed",
    NightState.COMPLETE: "complete",
    NightState.INTERRUPTED: "interrupted",
    NightState.OUT_OF_TIME: "out of time",
}
FIDELITY_LETTERS: Final[dict[Fidelity, str]] = {
    Fidelity.GPU: "g",
    Fidelity.GPU_STAND_IN: "gs",
    Fidelity.CPU: "c",
    Fidelity.CPU_STAND_IN: "cs",
    Fidelity.EMULATED_STREAM: "e",
    Fidelity.IN_PROCESS: "p",
    Fidelity.TEACHING_ENGINE: "t",
    Fidelity.LIVE: "l",
}


def plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def and_list(words: Iterable[str]) -> str:
    known = list(words)
    return " and ".join(filter(None, [", ".join(known[:-1]), *known[-1:]])) or "nothing"
