"""``mmrepro env wheelhouse``: an engine for a machine without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from mmrepro.base import units

if TYPE_CHECKING:
    from mmrepro.environments.wheelhouse import Made
    from mmrepro.environments.wheelhouse.plan import Planned

MAX_LIST_BYTES = 4 << 20
LARGEST = 12  # packages in the table; --json has all


def wheelhouse(
    engine: Annotated[str, typer.Argument(help="Engine, e.g. vllm.")],
    release: Annotated[str, typer.Argument(help="Its release, e.g. 0.23.0.")],
    into: Annotated[
        Path, typer.Option(help="Folder for it; a wheelhouse that is there gets the engine added.")
    ],
    python: Annotated[str, typer.Option(help="Python of the target, e.g. 3.12.")],
    device: Annotated[str, typer.Option(help="Device of the target: cuda or cpu.")] = "cuda",
    platform: Annotated[
        str,
        typer.Option(
            help="Of the target, as uv names it; default: this machine's kind with glibc 2.35, "
            "which every newer glibc can run."
        ),
    ] = "",
    have: Annotated[
        Path | None,
        typer.Option(
            help="What the target's Python has, by `python -m pip list --format=freeze` there. Its "
            "torch is then used as it is, and what it has in the right version is not carried.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(help="Package to leave out, and what only it needs. Repeatable."),
    ] = None,
    lean: Annotated[
        bool,
        typer.Option(
            "--lean",
            help="Without what this release was seen not to import (environments/wheelhouse/"
            "unneeded.toml).",
        ),
    ] = False,
    max_part: Annotated[str, typer.Option(help="Largest size of a part.")] = "60MiB",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Resolve and say the sizes; download nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Carry an engine and mmrepro to a machine without a network, in parts of a bounded size.

    There: `python3 DIR/part-01/install.py`, then `mmrepro env create ENGINE RELEASE --wheelhouse
    DIR`.

    Example: mmrepro env wheelhouse vllm 0.23.0 --python 3.12 --have freeze.txt --into house
    """
    from mmrepro.cli.env import reporting
    from mmrepro.engines import spec_for
    from mmrepro.environments.wheelhouse import make, make_target

    spec = spec_for(engine, release, device)
    target = make_target(python, platform, _installed(have) if have else "")
    with reporting(f"{spec.engine} {spec.release} ({spec.device})") as (_, progress):
        made = make(
            spec,
            target,
            into,
            leave_out=leave_out or [],
            lean=lean,
            max_part=units.parse_size(max_part, "--max-part"),
            dry_run=dry_run,
            progress=progress,
        )
    if json:
        import json as json_module

        print(json_module.dumps(_facts(made), indent=1))
        return
    _print(made, into)


def _installed(path: Path) -> str:
    """What pip lists there. Raises UsageError."""
    from mmrepro.errors import UsageError
    from mmrepro.machine.files import read_file

    try:
        return read_file(path, MAX_LIST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def _facts(made: Made) -> dict[str, object]:
    return {
        "engine": made.plan.spec.engine,
        "release": made.plan.spec.release,
        "device": made.plan.spec.device,
        "resolved_until": made.plan.cutoff,
        "packages": [_package(one) for one in made.plan.packages],
        "harness": [_package(one) for one in made.harness],
        "new_parts": made.new_parts,
        "wheelhouse": made.house.model_dump(mode="json") if made.house else None,
    }


def _package(one: Planned) -> dict[str, object]:
    from mmrepro.environments.wheelhouse import size_of

    return {
        "name": one.name,
        "version": one.version,
        "origin": one.origin,
        "bytes": size_of(one),
        "why": one.why,
    }


def _print(made: Made, into: Path) -> None:
    from mmrepro.cli.console import table_console
    from mmrepro.environments.wheelhouse import size_of
    from rich.table import Table

    packages = made.plan.packages
    carried = [one for one in packages if one.file is not None]
    carried.sort(key=lambda one: -(size_of(one) or 0))
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{len(carried)} packages of {made.plan.title}", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    for one in carried[:LARGEST]:
        source = " (from source)" if one.origin == "built" else ""
        table.add_row(f"{one.name} {one.version}{source}", _megabytes([one]))
    if len(carried) > LARGEST:
        table.add_row(f"{len(carried) - LARGEST} smaller ones", _megabytes(carried[LARGEST:]))
    table.add_row(f"mmrepro's own {len(made.harness)} requirements", _megabytes(made.harness))
    table.add_row("in all", _megabytes([*carried, *made.harness]))
    console = table_console()
    console.print(table)
    for what, why in _not_carried(packages).items():
        console.print(f"{why}: {', '.join(what)}", soft_wrap=True, highlight=False)
    console.print(f"as of {made.plan.cutoff[:10]}", highlight=False)
    house = made.house
    if house is None:
        return
    total = sum(piece.bytes for file in house.files for piece in file.pieces)
    parts = "1 part" if len(house.parts) == 1 else f"{len(house.parts)} parts"
    new = " to ".join(dict.fromkeys([*made.new_parts[:1], *made.new_parts[-1:]])) or "none"
    console.print(
        f"{into}: {len(house.files)} wheels, {total / 1e6:.1f} MB in {parts} "
        f"(new: {new}); joined again and whole",
        soft_wrap=True,
        highlight=False,
    )
    console.print(f"there: python3 {into.name}/part-01/install.py", soft_wrap=True, highlight=False)


def _not_carried(packages: list[Planned]) -> dict[tuple[str, ...], str]:
    """Packages by why they are not carried."""
    why = dict.fromkeys(one.why for one in packages if one.file is None)
    return {
        tuple(f"{p.name} {p.version}" for p in packages if p.file is None and p.why == one): (
            f"not carried, {one}"
        )
        for one in why
    }


def _megabytes(packages: list[Planned]) -> str:
    from mmrepro.environments.wheelhouse import size_of

    sizes = [size_of(one) for one in packages]
    unknown = sizes.count(None)
    more = f" and {unknown} of unknown size" if unknown else ""
    return f"{sum(size or 0 for size in sizes) / 1e6:.1f}{more}"
