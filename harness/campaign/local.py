"""This machine, as the places of a night."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mmrepro.campaign.groups import Group
from mmrepro.campaign.work import Order, Providing, Runner, Working, work


class LocalPlaces:
    """``jobs`` places on this machine, which share its environments and warm parents."""

    def __init__(
        self,
        trials: Runner,
        provisions: Providing,
        jobs: int = 1,
        machine: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``machine``: its label in the ledger."""
        self._trials, self._provisions = trials, provisions
        self._machine, self._clock = machine, clock
        self._places = [_Here(self) for _ in range(jobs)]
        self.stopped = False

    def there(self) -> Sequence[_Here]:
        return self._places

    def expect(self, groups: Sequence[Group]) -> None:
        self._provisions.expect(groups)

    def stop(self) -> None:
        self.stopped = True
        try:
            self._provisions.stop()
        finally:
            self._trials.stop()

    def join(self) -> None:
        self._provisions.join()

    def work(self, order: Order, root: Path) -> Working:
        return work(
            order,
            self._trials,
            self._provisions,
            root,
            machine=self._machine,
            stopped=lambda: self.stopped,
            clock=self._clock,
        )


class _Here:
    name = ""

    def __init__(self, all_of_them: LocalPlaces) -> None:
        self.work = all_of_them.work

    def has(self, group: Group) -> bool:
        """Not asked: on one machine the environments come in the order of the plan."""
        return False
