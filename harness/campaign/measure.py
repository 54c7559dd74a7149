"""The order of a block: a server of each side, measured in turn on one machine."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmrepro.base.errors import InfrastructureError
from mmrepro.base.records import Record
from mmrepro.campaign.work import Began, Here, Working
from mmrepro.engines import spec_for
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.failure.documents.upgrade import Block
from mmrepro.runs.play.players import Measuring, Servers
from mmrepro.traffic.case.files import read_contents, write_case

ATTEMPTS = 2
"""At a block that told nothing of the engines."""


class Measured(Record):
    """What came of a block. ``place``: folder of its files, below the campaign's."""

    id: str
    block: Block
    place: str = ""
    machine: str = ""


@dataclass(frozen=True)
class MeasureRun:
    """A block of a comparison.

    Attributes:
        id: names the comparison within the campaign; the block's index is the run's.
        what: the same for people.
        servers: how servers are started.
        place: folder for its files, below the campaign's; of a block that measured, nothing is
            kept in it.
    """

    id: str
    what: str
    servers: Servers
    measuring: Measuring
    place: str
    images: dict[str, bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        wanted = self.measuring
        images = self.images or read_contents(wanted.case, wanted.contents)
        return {**self.__dict__, "measuring": replace(wanted, contents=None), "images": images}

    @property
    def began(self) -> Began:
        return Began(self.id, self.measuring.index, what=self.what)

    @property
    def name(self) -> str:
        old, new = self.measuring.old, self.measuring.new
        return f"{old.engine} {old.release} and {new.release}"

    @property
    def device(self) -> str:
        return self.environment.device

    @property
    def environment(self) -> EnvironmentSpec:
        new = self.measuring.new
        return spec_for(new.engine, new.release, self.servers.device)

    @property
    def campaign(self) -> str:
        return self.servers.wanted.engine

    def expect(self, here: Here) -> None:
        """Nothing: environments are built when their first server is wanted."""

    def folder(self, began: Began) -> Path:
        return Path(self.place)

    def files(self, result: Record) -> str:
        assert isinstance(result, Measured)
        return result.place if result.block.error else ""

    def not_carried(self, result: Record, why: str) -> Record:
        return result

    def carry_out(self, here: Here, root: Path) -> Working:
        yield self.began
        player, began, folder = here.players.of(self.servers, root), time.monotonic(), self.place
        wanted = self.measuring
        if self.images is not None:
            contents = write_case(wanted.case, root / "case", self.images).parent
            wanted = replace(wanted, contents=contents)
        for attempt in range(ATTEMPTS):
            shutil.rmtree(root / folder, ignore_errors=True)  # killed in the middle, or failed
            try:
                block = player.measure(wanted, root / folder)
                break
            except InfrastructureError:
                if attempt == ATTEMPTS - 1:
                    raise
        if not block.error:
            shutil.rmtree(root / folder, ignore_errors=True)
        block.seconds = round(time.monotonic() - began, 2)
        yield Measured(id=self.id, block=block, place=folder, machine=here.machine)
