"""Looks at servers on a machine of any load: one that was taken while mmrepro itself
waited for a processor says "undecided", as it should, and is taken again."""

from collections.abc import Callable
from typing import TypeVar

from mmrepro.failure.documents import Diagnosis, ServerState
from mmrepro.failure.signature.live_server import LATENESS
from mmrepro.live.diagnose.general import STANDSTILLS
from mmrepro.live.watch.checker import Checker
from mmrepro.live.watch.health import Check
from mmrepro.traffic.evidence import Evidence

_LOOKS = 4
_CHECKS = 60
_UNSEEN = (
    "no answer in time",
    "no counter of its own tells whether it works",
    "the check could not be run",
)
"""Ends of what a check says that got neither stacks nor metrics."""

T = TypeVar("T")


def is_short(evidence: Evidence) -> bool:
    """Whether the record says that this machine was short of processors."""
    return LATENESS in evidence.facts


def with_processors(take: Callable[[], T], is_short: Callable[[T], bool]) -> T:
    """The first look that had processors, of a few; the last one where none had."""
    looked = take()
    for _ in range(_LOOKS - 1):
        if not is_short(looked):
            break
        looked = take()
    return looked


def assert_undecided(diagnosis: Diagnosis) -> None:
    """What is right to say of a silent server on a machine short of processors."""
    assert diagnosis.state not in STANDSTILLS, diagnosis.assessment
    if diagnosis.state is ServerState.UNKNOWN:
        assert diagnosis.exit_code == 3


def told_by_stacks(made: Checker) -> Check:
    """The first check that says more than the silence: on a busy machine one may have
    no time for stacks or metrics."""
    for _ in range(_CHECKS):
        check = made.check()
        if not check.why.endswith(_UNSEEN):
            return check
    raise AssertionError("no check had stacks")
