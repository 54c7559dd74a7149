"""The order of a block: a server of each side, measured in turn on one machine."""

from __future__ import annotations

import functools
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmrepro.base.records import Record
from mmrepro.campaign.work import OnServers, StartedRun, Working, Workplace
from mmrepro.failure.documents import Block
from mmrepro.runs.play import Measuring
from mmrepro.traffic.case import ServerWanted, read_contents


class MeasuredBlock(Record):
    """What came of a block. ``place``: folder of its files, below the campaign's."""

    id: str
    block: Block
    place: str = ""
    machine: str = ""


@dataclass(frozen=True)
class MeasureRun(OnServers):
    """A block of a comparison.

    Attributes:
        id: names the comparison within the campaign; the block's index is the run's.
        place: of a block that measured, nothing is kept in it.
    """

    measuring: Measuring = field(kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        wanted = self.measuring
        images = self.images or read_contents(wanted.case, wanted.contents)
        return {
            **self.__dict__,
            "measuring": replace(wanted, contents=None),
            "images": images,
        }

    @property
    def wanted(self) -> ServerWanted:
        return self.measuring.new

    @property
    def began(self) -> StartedRun:
        return StartedRun(self.id, self.measuring.index, what=self.what)

    @property
    def name(self) -> str:
        old, new = self.measuring.old, self.measuring.new
        return f"{old.engine} {old.release} and {new.release}"

    def files(self, result: Record) -> str:
        assert isinstance(result, MeasuredBlock)
        return result.place if result.block.error else ""

    def not_carried(self, result: Record, why: str) -> Record:
        return result

    def carry_out(self, here: Workplace, root: Path) -> Working:
        yield self.began
        began = time.monotonic()
        player = here.players.of(self.servers, root)
        folder = root / self.place
        wanted = self.measuring
        contents = self.contents_at(root, wanted.case, wanted.contents)
        wanted = replace(wanted, contents=contents)
        measure = functools.partial(player.measure, wanted, folder)
        block, _ = self.attempted(folder, measure)
        # What a block that measured leaves is large, and says nothing more.
        if not block.error:
            shutil.rmtree(folder, ignore_errors=True)
        block.seconds = round(time.monotonic() - began, 2)
        yield MeasuredBlock(
            id=self.id, block=block, place=self.place, machine=here.machine
        )
