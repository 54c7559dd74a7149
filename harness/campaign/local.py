"""This machine, as the places of a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mmrepro.campaign.groups import Group
from mmrepro.campaign.work import Here, Order, Providing, Runner, Working
from mmrepro.play.players import Players


class LocalPlaces:
    """``jobs`` places on this machine, which share its environments and warm parents."""

    def __init__(
        self,
        trials: Runner,
        provisions: Providing,
        jobs: int = 1,
        machine: str = "",
        clock: Callable[[], float] = time.time,
        players: Players | None = None,
    ) -> None:
        """``machine``: its label in the ledger; ``players``: others than the usual ones."""
        self._trials, self._provisions = trials, provisions
        self._players = players or Players()
        self.stopped = False
        self._places = [
            _Place(Here(trials, provisions, machine, lambda: self.stopped, clock, self._players))
            for _ in range(jobs)
        ]

    def there(self) -> Sequence[_Place]:
        return self._places

    def expect(self, groups: Sequence[Group]) -> None:
        self._provisions.expect(groups)

    def stop(self) -> None:
        self.stopped = True
        self._players.stop()
        try:
            self._provisions.stop()
        finally:
            self._trials.stop()

    def join(self) -> None:
        for place in self._places:
            place.here.leave()
        self._players.end()
        self._provisions.join()


class _Place:
    name = ""

    def __init__(self, here: Here) -> None:
        self.here = here

    def has(self, group: Group) -> bool:
        """Not asked: on one machine the environments come in the order of the plan."""
        return False

    def work(self, order: Order, root: Path) -> Working:
        return order.carry_out(self.here, root)
