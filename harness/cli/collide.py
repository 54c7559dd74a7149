"""``mmrepro collide``: two different pictures that an engine takes for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from mmrepro.base.units import duration
from mmrepro.cli.run import DeviceChoice
from mmrepro.errors import ExitCode

if TYPE_CHECKING:
    from mmrepro.collide.pair import Pair, PairImage
    from rich.console import Console

PAD_BITS = 30
"""Bits of SGLang's pad value up to 0.5.22; a pair that agrees in fewer is only an exercise."""


def collide(
    engine: Annotated[str, typer.Option(help="Engine; sglang is the one that can be asked.")] = (
        "sglang"
    ),
    release: Annotated[str, typer.Option(help="Its release.")] = "0.5.6",
    bits: Annotated[
        int, typer.Option(help="Low bits of the hash that must agree; the pad value has 30.")
    ] = PAD_BITS,
    seed: Annotated[int, typer.Option(help="Of the two families' pictures.")] = 1,
    size: Annotated[int, typer.Option(help="Pixels a side, a multiple of 28 from 56 on.")] = 84,
    second_size: Annotated[
        int | None, typer.Option(help="Of the second family's.  [default: --size]")
    ] = None,
    first: Annotated[
        Path | None, typer.Option(help="Your own picture for the first family.")
    ] = None,
    second: Annotated[Path | None, typer.Option(help="And for the second.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the model whose image processor is used.")
    ] = None,
    device: Annotated[
        DeviceChoice, typer.Option(help="auto takes a GPU where there is one.")
    ] = DeviceChoice.AUTO,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes.  [default: one a core]")
    ] = None,
    max_images: Annotated[
        int | None, typer.Option(min=2, help="Give up after so many images.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the pair.  [default: collisions/…]")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Search nothing: ask the engine about the pair in FOLDER.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Find two different pictures with one pad value, by the engine's own hash.

    Example:  mmrepro collide --engine sglang --release 0.5.6 --bits 30
    """
    from mmrepro.cli.collide_progress import SearchBar
    from mmrepro.collide.interpreter import place_for
    from mmrepro.collide.search import find_pair, pictures_of, require_pictures, verify_pair
    from mmrepro.errors import UsageError
    from rich.console import Console

    if (first is None) != (second is None):
        raise UsageError("--first and --second belong together: two families, two pictures.")
    pictures = (first, second) if first and second else None
    # What is wrong with the command is said before an environment is built for minutes.
    if check is not None:
        require_pictures(check)
    else:
        pictures_of(bits=bits, seed=seed, size=size, second_size=second_size, pictures=pictures)
    folder = out or _unused(Path("collisions") / f"{engine}-{release}-{bits}-seed{seed}")
    with SearchBar(Console(stderr=True)) as bar:
        place = place_for(engine, release, device=device.value, model=model, progress=bar.stage)
        if check is not None:
            facts, images = verify_pair(place, check, bar)
        else:
            pair = find_pair(
                place,
                folder,
                bits=bits,
                seed=seed,
                size=size,
                second_size=second_size,
                pictures=pictures,
                jobs=jobs,
                max_images=max_images,
                progress=bar,
            )
    console = Console(stderr=json)
    if check is not None:
        if json:
            typer.echo(_checked_json(facts.model_dump(), images))
        _tell_images(images, console)
        same = images["A"].pad_value == images["B"].pad_value
        console.print(f"{engine} {release}: " + _verdict(same), highlight=False)
        raise typer.Exit(ExitCode.AS_EXPECTED if same else ExitCode.NOT_AS_EXPECTED)
    if json:
        typer.echo(_pair_json(pair, folder))
    _tell_pair(pair, folder, console)
    # Fewer bits than the pad value has: an exercise, and it succeeded.
    good = pair.collides or bits < PAD_BITS
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
