"""``mmrepro collide``: two different pictures that an engine takes for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from mmrepro.base.errors import ExitCode
from mmrepro.base.units import duration
from mmrepro.cli.options import command
from mmrepro.tools.collide.options import PAD_BITS, CollideCommand

if TYPE_CHECKING:
    from mmrepro.tools.collide.pair import PairImage, SearchFacts
    from rich.console import Console


@command(CollideCommand)
def collide(asked: CollideCommand) -> None:
    """Find two different pictures with one pad value, by the engine's own hash.

    Example:  mmrepro collide --engine sglang --release 0.5.6 --bits 30
    """
    from mmrepro.cli.console import announce, emit
    from mmrepro.cli.progress import Progress
    from mmrepro.engines import spec_for
    from mmrepro.tools.collide import search
    from mmrepro.tools.collide.worker import place_for
    from rich.console import Console

    # What is wrong with the command is reported before an environment is built for
    # minutes.
    if asked.check is not None:
        search.require_pictures(asked.check)
    else:
        search.pictures_of(asked)
    name = f"{asked.engine}-{asked.release}-{asked.bits}-seed{asked.seed}"
    folder = asked.out or _unused(Path("collisions", name))
    announce(spec_for(asked.engine, asked.release, asked.device), yes=asked.yes)
    title = f"mmrepro collide: {asked.engine} {asked.release}"
    with Progress(Console(stderr=True), title) as view:
        place = place_for(
            asked.engine,
            asked.release,
            device=asked.device,
            model=asked.model,
            progress=lambda text: view.show("the environment", text),
        )
        if asked.check is not None:
            engine, images = search.verify_pair(place, asked.check, view.show)
        else:
            pair = search.find_pair(place, folder, asked, view.show)
    console = Console(stderr=asked.json)
    if asked.check is not None:
        same = images["A"].pad_value == images["B"].pad_value
        if asked.json:
            shown = {
                name: image.model_dump(mode="json") for name, image in images.items()
            }
            facts = {"engine": engine.model_dump(), "images": shown, "collides": same}
            emit(facts, "pair-check")
        _print_images(images, console)
        console.print(
            f"{asked.engine} {asked.release}: {_verdict(same)}", highlight=False
        )
        raise typer.Exit(ExitCode.AS_EXPECTED if same else ExitCode.NOT_AS_EXPECTED)
    if asked.json:
        facts = pair.model_dump(mode="json") | {"folder": str(folder)}
        facts |= {
            n: getattr(pair, n) for n in ("equal_bits", "collides", "control_differs")
        }
        emit(facts, "pair")
    _print_images(pair.images, console)
    console.print(_verdict(pair.collides, pair.equal_bits), highlight=False)
    console.print(_effort(pair.search), highlight=False)
    console.print(f"{folder}/", highlight=False, soft_wrap=True)
    # Fewer bits than the pad value has: an exercise, and it succeeded.
    good = pair.collides or asked.bits < PAD_BITS
    raise typer.Exit(ExitCode.AS_EXPECTED if good else ExitCode.NOT_AS_EXPECTED)


def _unused(path: Path) -> Path:
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def _effort(search: SearchFacts) -> str:
    rate = search.images / search.search_s if search.search_s else 0.0
    return (
        f"{search.images:,} images in {duration(search.search_s)} ({rate:,.0f} a "
        f"second, {search.jobs} processes); so many hold a pair with probability "
        f"{search.probability:.0%}. Importing the engine took "
        f"{duration(search.start_s)}."
    )


def _verdict(collides: bool, equal_bits: int = PAD_BITS) -> str:
    if collides:
        return "A and B have one pad value: the prefix cache cannot tell them apart."
    if equal_bits >= PAD_BITS:
        return "A and B have different pad values: this release tells them apart."
    return (
        f"A's and B's hashes agree in {equal_bits} low bits; their pad values differ, "
        f"as they must: a collision takes {PAD_BITS}."
    )


def _print_images(images: dict[str, PairImage], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("picture", "hash (64 bits)", "pad value"):
        table.add_column(heading, no_wrap=True)
    table.add_column("bytes", justify="right")
    for image in images.values():
        table.add_row(image.file, image.hash, str(image.pad_value), str(image.bytes))
    console.print(table, highlight=False)
