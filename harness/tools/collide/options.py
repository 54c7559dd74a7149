"""What ``mmrepro collide`` takes, which is what a search is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.base import common_options as common
from mmrepro.base.options import LIMITS, Command, option

PAD_BITS = 30
"""Bits of SGLang's pad value up to 0.5.22; a pair that agrees in fewer is only an
exercise."""


@dataclass(frozen=True)
class CollideCommand(Command):
    COMMAND: ClassVar[str] = "collide"
    engine: str = common.ENGINE_NAME(
        "sglang",
        help="Engine; sglang is the one that can be asked.",
        configurable=False,
    )
    release: str = common.RELEASE(
        "0.5.6", help="Its release.", shown="", configurable=False
    )
    bits: int = option(
        PAD_BITS, "Low bits of the hash that must agree; the pad value has 30.", "N"
    )
    seed: int = common.SEED(1, least=None)
    size: int = option(84, "Pixels a side, a multiple of 28 from 56 on.", "N")
    second_size: int | None = option(
        None, "Pixels a side of the second family's.", "N", shown="--size"
    )
    first: Path | None = option(None, "Your own image for the first family.", "FILE")
    second: Path | None = option(None, "And for the second.", "FILE")
    model: Path | None = common.MODEL(
        None, help="Folder of the model whose image processor is used."
    )
    device: str = common.DEVICE("auto")
    jobs: int | None = common.JOBS(
        None, help="Number of processes.", shown="one a core", most=256
    )
    max_images: int | None = option(
        None, "Give up after so many images.", "N", LIMITS, least=2
    )
    out: Path | None = common.OUT(
        None, help="Folder for the pair.", shown="collisions/…"
    )
    check: Path | None = option(
        None, "Search nothing: ask the engine about the pair in this folder.", "DIR"
    )
    yes: bool = common.YES(False)
    json: bool = common.JSON(False)
