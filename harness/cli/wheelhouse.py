"""``mmrepro env wheelhouse``: an engine for a machine without a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mmrepro.base import common_options as common, units
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.environments.wheelhouse import Made
    from mmrepro.environments.wheelhouse.plan import Planned

MAX_LIST_BYTES = 4 << 20
LARGEST = 12  # packages in the table; --json has all


@dataclass(frozen=True)
class WheelhouseCommand(Command):
    COMMAND: ClassVar[str] = "env wheelhouse"
    engine: str = common.ENGINE_NAME("", argument=True, required=True)
    release: str = common.RELEASE(
        "", help="Its release, e.g. 0.23.0.", shown="", argument=True, required=True
    )
    into: Path = common.OUT(
        Path(),
        help="Folder for it; a wheelhouse that is there gets the engine added.",
        required=True,
    )
    python: str = option("", "Python of the target, e.g. 3.12.", "VERSION", required=True)
    device: str = common.DEVICE("cuda", help="Device of the target: cuda or cpu.", choices=())
    platform: str = option(
        "",
        "Platform of the target, as uv names it.",
        "NAME",
        shown="this machine's kind with glibc 2.35, which every newer glibc can run",
    )
    have: Path | None = option(
        None,
        "What the target's Python has, by `python -m pip list --format=freeze` there. Its torch is "
        "then used as it is, and what it has in the right version is not carried.",
        "FILE",
    )
    leave_out: tuple[str, ...] = option(
        (), "Package to leave out, and what only it needs. May be repeated.", "PACKAGE"
    )
    lean: bool = option(
        False,
        "Without what this release does not import (environments/wheelhouse/unneeded.toml).",
    )
    max_part: int = option(
        60 << 20, "Largest size of a part.", "SIZE", shown="60MiB", read=units.parse_size
    )
    dry_run: bool = common.DRY_RUN(False, help="Resolve and say the sizes; download nothing.")
    json: bool = common.JSON(False)


@command(WheelhouseCommand)
def wheelhouse(asked: WheelhouseCommand) -> None:
    """Carry an engine and mmrepro to a machine without a network, in parts of a bounded size.

    There: `python3 DIR/part-01/install.py`, then `mmrepro env create ENGINE RELEASE --wheelhouse
    DIR`.

    Example: mmrepro env wheelhouse vllm 0.23.0 --python 3.12 --have freeze.txt --into house
    """
    from mmrepro.cli.env import reporting
    from mmrepro.engines import spec_for
    from mmrepro.environments.wheelhouse import make, make_target

    spec = spec_for(asked.engine, asked.release, asked.device)
    target = make_target(asked.python, asked.platform, _installed(asked.have) if asked.have else "")
    with reporting(f"{spec.engine} {spec.release} ({spec.device})") as (_, progress):
        made = make(
            spec,
            target,
            asked.into,
            leave_out=list(asked.leave_out),
            lean=asked.lean,
            max_part=asked.max_part,
            dry_run=asked.dry_run,
            progress=progress,
        )
    if asked.json:
        import json as json_module

        print(json_module.dumps(_facts(made), indent=1))
        return
    _print(made, asked.into)


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
