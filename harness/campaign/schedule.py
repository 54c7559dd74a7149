"""Which run of a cell comes next: a pure function of the attempts that the ledger has.

So a night that was killed goes on as if it had not been: what was appended counts, what was not is
run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmrepro.history.states import Settled, settle, surprise
from mmrepro.incident.ledger import Attempt, Lost, Planned, Role

REPEAT, CONFIRM = 1, 3
"""Where nothing else is said."""
HOPELESS = (Lost.UNLOADABLE, Lost.USAGE)
"""Another run of the same ends the same way."""


class Next(NamedTuple):
    """The run that comes next."""

    number: int
    """Within the night and cell, from 1: the attempt's index."""
    role: Role


def next_run(
    attempts: Sequence[Attempt],
    planned: Planned,
    *,
    repeat: int,
    confirm: int,
    before: Settled | None = None,
) -> Next | None:
    """The next run of a cell; None: it is whole.

    Infrastructure that failed is tried once more. A run that took too long is not: it would take
    as long again, and the next night has its turn. If the planned runs surprise, ``confirm`` more
    follow, whatever the first of them shows, so that k of n means what it says.

    Args:
        attempts: of the cell in this night, by their index.
        before: what the cell settled on in the last night that ran it.
    """
    number = len(attempts) + 1
    if not attempts:
        return Next(number, "planned")
    last = attempts[-1]
    if any(a.lost in HOPELESS for a in attempts):
        return None
    if last.lost is Lost.INFRASTRUCTURE and last.role != "retry":
        return Next(number, "retry")
    if sum(a.role == "planned" for a in attempts) < repeat:
        return Next(number, "planned")
    confirmed = sum(a.role == "confirm" for a in attempts)
    if confirmed < confirm and surprise(_planned(attempts), before, planned.expected):
        return Next(number, "confirm")
    return None


def left(
    attempts: Sequence[Attempt],
    planned: Planned,
    *,
    repeat: int,
    confirm: int,
    before: Settled | None = None,
) -> int:
    """Runs that are still to be made, if nothing surprises from here on."""
    following = next_run(attempts, planned, repeat=repeat, confirm=confirm, before=before)
    if following is None:
        return 0
    waiting = max(0, repeat - sum(a.role == "planned" for a in attempts))
    if following.role == "confirm":
        return confirm - sum(a.role == "confirm" for a in attempts)
    return waiting + (following.role == "retry")


@dataclass(frozen=True)
class Schedule:
    """How often the cells of one night are run; ``before``: as for :func:`next_run`, by cell id."""

    repeat: int
    confirm: int
    before: Mapping[str, Settled | None]

    def next(self, attempts: Sequence[Attempt], planned: Planned) -> Next | None:
        """The next run of a cell; None: it is whole."""
        before = self.before.get(planned.cell.id)
        return next_run(attempts, planned, repeat=self.repeat, confirm=self.confirm, before=before)

    def left(self, attempts: Sequence[Attempt], planned: Planned) -> int:
        """Runs of a cell that are still to be made, if nothing surprises."""
        before = self.before.get(planned.cell.id)
        return left(attempts, planned, repeat=self.repeat, confirm=self.confirm, before=before)


def _planned(attempts: Sequence[Attempt]) -> Settled:
    """What the planned runs came to, before any was confirmed."""
    first = next((i for i, a in enumerate(attempts) if a.role == "confirm"), len(attempts))
    return settle(attempts[:first])
