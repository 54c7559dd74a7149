"""This machine, as the places of a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mmrepro.campaign.child import Children
from mmrepro.campaign.groups import Group
from mmrepro.campaign.work import Here, Order, Providing, Runner, Working
from mmrepro.play.players import Players


class LocalPlaces:
    """``jobs`` places on this machine, which share its environments and fork servers."""

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
        children, shared = Children(), players or Players()
        self._places = [
            _Place(Here(trials, provisions, machine, children, clock, shared)) for _ in range(jobs)
        ]
        self._here = self._places[0].here

    def there(self) -> Sequence[_Place]:
        return self._places

    def expect(self, groups: Sequence[Group]) -> None:
        self._here.provisions.expect(groups)

    def stop(self) -> None:
        self._here.stop()

    def join(self) -> None:
        for place in self._places:
            place.here.leave()
        self._here.players.end()
        self._here.provisions.join()


class _Place:
    name = ""

    def __init__(self, here: Here) -> None:
        self.here = here

    def has(self, group: Group) -> bool:
        """Not asked: on one machine the environments come in the order of the plan."""
        return False

    def work(self, order: Order, root: Path) -> Working:
        return order.carry_out(self.here, root)
