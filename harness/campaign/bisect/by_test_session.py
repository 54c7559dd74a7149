"""A bisection of a test of the engine's own tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrepro.campaign.bisect.by_test import UpstreamSubject
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import Field
from mmrepro.campaign.bisect.session import Bisecting
from mmrepro.failure.documents.searches import Bisection


class BisectingTest(Bisecting):
    """A bisection whose runs are those of a test, in the environment of each commit."""

    def __init__(
        self,
        subject: UpstreamSubject,
        options: BisectCommand,
        field: Field,
        *,
        write: Callable[[Bisection, Path], object],
    ) -> None:
        self.making = subject.making()
        named = replace(options, scenario=subject.name)
        super().__init__(subject.scenario, named, field, write=write)

    def command(self, **changed: Any) -> str:
        """By the test: the name is of this bisection only."""
        return super().command(**{"scenario": "", **changed})
