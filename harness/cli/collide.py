"""``mmrepro collide``: two different pictures that an engine takes for one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import LIMITS, Command, option
from mmrepro.base.units import duration
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode

if TYPE_CHECKING:
    from mmrepro.collide.pair import Pair, PairImage
    from rich.console import Console

PAD_BITS = 30
"""Bits of SGLang's pad value up to 0.5.22; a pair that agrees in fewer is only an exercise."""


@dataclass(frozen=True)
class CollideCommand(Command):
    COMMAND: ClassVar[str] = "collide"
    engine: str = common.ENGINE_NAME(
        "sglang", help="Engine; sglang is the one that can be asked.", configurable=False
    )
    release: str = common.RELEASE("0.5.6", help="Its release.", shown="", configurable=False)
    bits: int = option(PAD_BITS, "Low bits of the hash that must agree; the pad value has 30.", "N")
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
    jobs: int | None = common.JOBS(None, help="Number of processes.", shown="one a core", most=256)
    max_images: int | None = option(None, "Give up after so many images.", "N", LIMITS, least=2)
    out: Path | None = common.OUT(None, help="Folder for the pair.", shown="collisions/…")
    check: Path | None = option(
        None, "Search nothing: ask the engine about the pair in this folder.", "DIR"
    )
    yes: bool = common.YES(False)
    json: bool = common.JSON(False)


@command(CollideCommand)
def collide(asked: CollideCommand) -> None:
    """Find two different pictures with one pad value, by the engine's own hash.

    Example:  mmrepro collide --engine sglang --release 0.5.6 --bits 30
    """
    from mmrepro.cli.collide_progress import SearchBar
    from mmrepro.cli.console import announce
    from mmrepro.collide.interpreter import place_for
    from mmrepro.collide.search import find_pair, pictures_of, require_pictures, verify_pair
    from mmrepro.engines import spec_for
    from mmrepro.errors import UsageError
    from rich.console import Console

    if (asked.first is None) != (asked.second is None):
        raise UsageError("--first and --second belong together: two families, two pictures.")
    pictures = (asked.first, asked.second) if asked.first and asked.second else None
    # What is wrong with the command is said before an environment is built for minutes.
    if asked.check is not None:
        require_pictures(asked.check)
    else:
        pictures_of(
            bits=asked.bits,
            seed=asked.seed,
            size=asked.size,
            second_size=asked.second_size,
            pictures=pictures,
        )
    folder = asked.out or _unused(
        Path("collisions") / f"{asked.engine}-{asked.release}-{asked.bits}-seed{asked.seed}"
    )
    announce(spec_for(asked.engine, asked.release, asked.device), yes=asked.yes)
    with SearchBar(Console(stderr=True)) as bar:
        place = place_for(
            asked.engine, asked.release, device=asked.device, model=asked.model, progress=bar.stage
        )
        if asked.check is not None:
            facts, images = verify_pair(place, asked.check, bar)
        else:
            pair = find_pair(
                place,
                folder,
                bits=asked.bits,
                seed=asked.seed,
                size=asked.size,
                second_size=asked.second_size,
                pictures=pictures,
                jobs=asked.jobs,
                max_images=asked.max_images,
                progress=bar,
            )
    console = Console(stderr=asked.json)
    if asked.check is not None:
        if asked.json:
            typer.echo(_checked_json(facts.model_dump(), images))
        _tell_images(images, console)
        same = images["A"].pad_value == images["B"].pad_value
        console.print(f"{asked.engine} {asked.release}: " + _verdict(same), highlight=False)
        raise typer.Exit(ExitCode.AS_EXPECTED if same else ExitCode.NOT_AS_EXPECTED)
    if asked.json:
        typer.echo(_pair_json(pair, folder))
    _tell_pair(pair, folder, console)
    # Fewer bits than the pad value has: an exercise, and it succeeded.
    good = pair.collides or asked.bits < PAD_BITS
    raise typer.Exit(ExitCode.AS_EXPECTED if good else ExitCode.NOT_AS_EXPECTED)


def _unused(path: Path) -> Path:
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def _pair_json(pair: Pair, folder: Path) -> str:
    import json

    facts = pair.model_dump(mode="json") | {
        "folder": str(folder),
        "equal_bits": pair.equal_bits,
        "collides": pair.collides,
        "control_differs": pair.control_differs,
    }
    return json.dumps(facts, indent=1)


def _checked_json(facts: dict[str, object], images: dict[str, PairImage]) -> str:
    import json

    described = {name: image.model_dump(mode="json") for name, image in images.items()}
    same = images["A"].pad_value == images["B"].pad_value
    return json.dumps({"engine": facts, "images": described, "collides": same}, indent=1)


def _tell_pair(pair: Pair, folder: Path, console: Console) -> None:
    search = pair.search
    rate = search.images / search.search_s if search.search_s else 0.0
    _tell_images(pair.images, console)
    console.print(_verdict(pair.collides, pair.equal_bits), highlight=False)
    console.print(
        f"{search.images:,} images in {duration(search.search_s)} ({rate:,.0f} a second, "
        f"{search.jobs} processes); so many hold a pair with probability {search.probability:.0%}. "
        f"Importing the engine took {duration(search.start_s)}.",
        highlight=False,
    )
    console.print(f"{folder}/", highlight=False, soft_wrap=True)


def _verdict(collides: bool, equal_bits: int | None = None) -> str:
    if collides:
        return "A and B have one pad value: the prefix cache cannot tell them apart."
    if equal_bits is None or equal_bits >= PAD_BITS:
        return "A and B have different pad values: this release tells them apart."
    return (
        f"A's and B's hashes agree in {equal_bits} low bits; their pad values differ, as they "
        f"must: a collision takes {PAD_BITS}."
    )


def _tell_images(images: dict[str, PairImage], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("picture", "hash (64 bits)", "pad value"):
        table.add_column(heading, no_wrap=True)
    table.add_column("bytes", justify="right")
    for image in images.values():
        table.add_row(image.file, image.hash, str(image.pad_value), str(image.bytes))
    console.print(table, highlight=False)
