"""What a nightly run would take on several machines: nothing is run or fetched.

Usage: python benchmarks/matrix_simulate.py nightly.toml --machines 1,2,4 --ledger
    nights

Cells are given out as `mmrepro matrix run` does it, with the times that were measured.
What is measured and what is assumed is below the table. Exit 2: a wrong option, file or
ledger."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from _fleet import Fleet, Simulated, Times, copies, simulate
from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.base.units import duration, parse_duration, parse_size
from mmrepro.campaign.matrix import selectors
from mmrepro.campaign.matrix.options import (
    DEFAULT_OUT,
    MatrixFile,
    MatrixRunCommand,
    load,
)
from mmrepro.campaign.matrix.plan import planned_of
from mmrepro.campaign.matrix.session import EnvironmentCosts
from mmrepro.campaign.schedule import (
    ASSUMED_BUILD_S,
    ASSUMED_RUN_S,
    ASSUMED_WHY,
    REPEAT,
    SETUP_S,
    EnvironmentGroup,
    Estimates,
    groups_of,
)
from mmrepro.cli.console import table_console
from mmrepro.engines.environments.store import Stored
from mmrepro.failure.documents.ledger import LEDGER_FILE, Planned
from mmrepro.history.ledger import History, read
from mmrepro.reports.blocks import count
from rich import box
from rich.console import Console
from rich.table import Table

MOST = 4096
MOST_WORK = 2_000_000
"""Cells times machines times jobs, of all that is asked in one go: some ten seconds."""
ASSUMED_BYTES = 8 * 1024**3
OWN, NEAR, NONE = "its own", "another one of the engine", "nothing"
"""What a figure is based on."""


def main(words: Sequence[str] | None = None) -> int:
    asked = options(words)
    try:
        answer(asked)
    except MmreproError as error:
        print(f"{error.message} {error.hint}".strip(), file=sys.stderr)
        return int(error.exit_code)
    return 0


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    run = parser.add_argument_group("as for mmrepro matrix run")
    run.add_argument("file", nargs="?", type=Path, metavar="FILE.toml")
    run.add_argument("--scenario", action="append", default=[])
    run.add_argument("--engine", default="")
    run.add_argument("--releases", default="")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"))
    run.add_argument("--mitigation", action="append")
    run.add_argument("--repeat", type=at_least_one(1000), help="runs of each cell")
    run.add_argument("--max-time", default="", help="e.g. 45m")
    run.add_argument(
        "--disk", default="", help="what may be added to each machine, e.g. 40G"
    )
    own = parser.add_argument_group("the machines")
    own.add_argument(
        "--jobs", type=at_least_one(64), default=1, help="orders at a time on each"
    )
    own.add_argument(
        "--machines", default="1,2,4,8,16", help="how many, several with commas"
    )
    own.add_argument(
        "--ledger",
        type=Path,
        help="earlier runs' times; without a scenario, its newest cells",
    )
    own.add_argument(
        "--cells", type=at_least_one(50_000), help="so many: copies of the plan's"
    )
    own.add_argument(
        "--fetched", action="store_true", help="all environments are there already"
    )
    own.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(words)


class at_least_one:  # noqa: N801 - argparse shows its name
    """An integer from 1 to ``most``."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, text: str) -> int:
        if not 1 <= int(text) <= self.most:
            raise argparse.ArgumentTypeError(f"{text} is not from 1 to {self.most}")
        return int(text)


def answer(asked: argparse.Namespace) -> None:
    """Print what a nightly run would take. Raises MmreproError."""
    own = MatrixRunCommand(
        file=asked.file,
        scenarios=tuple(asked.scenario),
        engine=asked.engine,
        releases=tuple(selectors.parse(asked.releases)) if asked.releases else (),
        device=asked.device,
        mitigation=tuple(asked.mitigation or ()),
        repeat=asked.repeat,
        max_time=parse_duration(asked.max_time) if asked.max_time else None,
        disk=parse_size(asked.disk) if asked.disk else None,
    )
    given = load(asked.file) if asked.file is not None else MatrixFile()
    settings = own.over(given.matrix)
    history, source = _history(asked.ledger, settings.out)
    planned = _cells(own, given, history, source)
    repeat = settings.repeat or REPEAT
    numbers = _numbers(asked.machines)
    work = (asked.cells or len(planned)) * sum(numbers) * asked.jobs
    if work > MOST_WORK:
        raise UsageError(
            f"Cells times machines times jobs are {work:,}: more than {MOST_WORK:,} "
            "would take minutes.",
            hint="fewer --cells, --machines or --jobs",
        )
    measured: list[str] = []
    assumed: list[str] = []
    estimates = Estimates(history)
    known = {p.cell.id: estimates.of(p.cell) for p in planned}
    cells, seconds = _times(planned, asked.cells, known, source, measured, assumed)
    groups = groups_of(cells)
    times = _environments(
        groups, seconds, repeat, measured, assumed, fetched=asked.fetched
    )
    assumed.append(
        f"{SETUP_S:.0f} s of set-up for each order, where an environment has several "
        "runs; nothing fails or surprises; machines are alike, and runs do not slow "
        "one another"
    )
    fleets = [
        Fleet(n, asked.jobs, asked.fetched, settings.disk, settings.max_time)
        for n in numbers
    ]
    simulated = simulate(groups, times, fleets)
    run_s = round(sum(seconds.values()) * repeat, 1)
    if asked.json:
        document = {
            "cells": len(cells),
            "environments": len(groups),
            "run_s": run_s,
            "nights": [asdict(one) for one in simulated],
            "measured": measured,
            "assumed": assumed,
        }
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return
    console = table_console()
    places = f"{count(len(cells), 'job')} in {count(len(groups), 'environment')}"
    text = f"{places}; the runs alone take {duration(run_s)}."
    console.print(text, highlight=False, soft_wrap=True)
    _print(simulated, settings.disk is not None, console)
    for kind, these in (("Measured", measured), ("Assumed", assumed)):
        for line in these:
            console.print(f"{kind}: {line}.", highlight=False, soft_wrap=True)


def _history(ledger: Path | None, out: str | None) -> tuple[History, str]:
    """Earlier nightly runs, and where they are."""
    folder = ledger or Path(out or DEFAULT_OUT)
    if ledger is None and not (folder / LEDGER_FILE).is_file():
        return History(), ""
    return read(folder), str(folder)


def _cells(
    asked: MatrixRunCommand, given: MatrixFile, history: History, source: str
) -> list[Planned]:
    if asked.file is not None or asked.scenarios or history.newest is None:
        return planned_of(asked, given)[0]
    if not history.newest.planned:
        raise UsageError(
            f"The newest night of {source} has no cell.", hint="mmrepro list"
        )
    return list(history.newest.planned.values())


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if not all(0 < number <= MOST for number in numbers):
        raise UsageError(
            f"--machines {text!r} is not numbers from 1 to {MOST}.",
            hint="e.g. --machines 1,2,4",
        )
    return numbers


def _times(
    planned: Sequence[Planned],
    number: int | None,
    known: Mapping[str, tuple[float, str]],
    source: str,
    measured: list[str],
    assumed: list[str],
) -> tuple[list[Planned], dict[str, float]]:
    """The cells, and what a run of each takes."""
    counts = Counter(
        why.rpartition(" ")[2] for _, why in known.values() if why != ASSUMED_WHY
    )
    if counts:
        of = ", ".join(
            f"{counts[w]} by the {w}" for w in ("cell", "row", "engine") if counts[w]
        )
        measured.append(f"run times: medians of the attempts in {source}: {of}")
    if rest := len(known) - counts.total():
        assumed.append(f"run times: {rest} cells, {ASSUMED_RUN_S:.0f} s each")
    made = copies(planned, number or len(planned))
    if len(made) > len(planned):
        assumed.append(
            f"{len(made) - len(planned):,} of the {len(made):,} cells are copies of "
            f"the plan's {len(planned)}, in the same environments"
        )
    return [p for p, _ in made], {p.cell.id: known[original][0] for p, original in made}


class Packages(EnvironmentCosts):
    """Sizes of environments as well; one that is not here is like the nearest older
    release."""

    def __init__(self, stored: Sequence[Stored] | None = None) -> None:
        super().__init__(stored)
        self._sizes: dict[Path, dict[str, int]] = {}

    def basis(self, group: EnvironmentGroup) -> str:
        """What its figures are based on: OWN, NEAR or NONE."""
        if self.own(group) is not None:
            return OWN
        return NEAR if self.alike(group) else NONE

    def of(self, group: EnvironmentGroup) -> Mapping[str, int]:
        """Unpacked bytes of what is in it, by name and version."""
        if (own := self.own(group)) is not None:
            return self._packages(own)
        engine = f"{group.engine} {group.release} {group.commit}"
        if not (alike := self.alike(group)):
            spec = group.spec
            return {engine: ASSUMED_BYTES if spec is None else spec.disk_bytes}
        wanted = selectors.version_of(group.release)
        older = [
            one for one in alike if selectors.version_of(one.manifest.release) <= wanted
        ]
        nearest = older[-1] if older else alike[0]
        project = nearest.manifest.project.replace("-", "_").lower()
        return {
            engine if name.lower().startswith(f"{project}-") else name: size
            for name, size in self._packages(nearest).items()
        }

    def _packages(self, one: Stored) -> Mapping[str, int]:
        """By the installers' own lists of files."""
        if one.path not in self._sizes:
            records = one.path.glob("venv/lib/python*/site-packages/*.dist-info/RECORD")
            self._sizes[one.path] = {path.parent.stem: _bytes(path) for path in records}
        return self._sizes[one.path]


def _bytes(record: Path) -> int:
    with record.open(newline="", encoding="utf-8") as file:
        return sum(int(row[2]) for row in csv.reader(file) if len(row) == 3 and row[2])


def _environments(
    groups: Sequence[EnvironmentGroup],
    run: Mapping[str, float],
    repeat: int,
    measured: list[str],
    assumed: list[str],
    *,
    fetched: bool,
) -> Times:
    here = Packages()
    counts = Counter(here.basis(group) for group in groups)
    if counts[OWN] and not fetched:
        measured.append(
            f"environments: build time and packages of {counts[OWN]} of {len(groups)} "
            "as they are on this machine; a machine has each package once, bytes are "
            "unpacked ones"
        )
    if fetched:
        assumed.append("environments: every machine has all of them")
    else:
        assumed.append("environments: no machine has any at the start")
        if counts[NEAR]:
            assumed.append(
                f"environments: {counts[NEAR]} that are not on this machine are like "
                "the nearest older release of their engine that is, but for the "
                "engine's own package"
            )
        if counts[NONE]:
            assumed.append(
                f"environments: {counts[NONE]} of engines that this machine has none "
                f"of, {ASSUMED_BUILD_S:.0f} s and {ASSUMED_BYTES / 2**30:.0f} GiB each"
            )
    packages = {group.name: here.of(group) for group in groups}
    builds = {group.name: 0.0 if fetched else here.build_s(group) for group in groups}
    specs = {group.name: group.spec for group in groups}
    rooms = {
        n: ASSUMED_BYTES if spec is None else spec.disk_bytes
        for n, spec in specs.items()
    }
    return Times(
        run,
        build=lambda group: builds[group.name],
        packages=lambda group: packages[group.name],
        room=lambda group: rooms[group.name],
        repeat=repeat,
    )


def _print(simulated: Sequence[Simulated], bounded: bool, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    heads = [
        "machines",
        "takes",
        "efficiency",
        "orders",
        "longest",
        "idle",
        "fetched",
        "unpacked",
    ]
    heads += [
        "fullest disk",
        *(["dropped", "fetched again"] if bounded else []),
        "cells left",
    ]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for one in simulated:
        table.add_row(
            str(one.machines),
            duration(one.makespan_s),
            f"{one.efficiency:.0%}",
            str(one.orders),
            duration(one.longest_s),
            f"{one.idle_s / (one.machines * one.jobs * one.makespan_s or 1):.0%}",
            str(one.builds),
            _gib(one.fetched_bytes),
            _gib(one.disk_bytes),
            *([str(one.dropped), _gib(one.again_bytes)] if bounded else []),
            str(one.left),
        )
    console.print(table)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


if __name__ == "__main__":
    sys.exit(main())
