"""``mmrepro list --alive``: what recorded runs say of the newest releases."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import typer
from mmrepro.catalogue import standing as living
from mmrepro.catalogue.recorded import RecordedRun, load, of_history
from mmrepro.catalogue.standing import known, strangers
from mmrepro.errors import BrokenScenario


def runs_of(ledger: Path | None) -> list[RecordedRun]:
    """Those that come with mmrepro, and of that ledger.

    Raises:
        InfrastructureError: the list that comes with mmrepro cannot be read.
        BadLedger: the ledger cannot be.
    """
    from mmrepro.scenarios.data import recorded_runs

    found = load(recorded_runs())
    if ledger is not None:
        from mmrepro.history.ledger import read

        found += of_history(read(ledger), str(ledger))
    return found


def tell_alive(names: Sequence[str], ledger: Path | None, json: bool) -> None:
    runs = runs_of(ledger)
    failures, broken = known(runs, names)
    engines = {one.scenario.engine: one.scenario.release for one in failures}
    newest = [living.newest_of(engine, runs, release) for engine, release in engines.items()]
    rows = living.standings(failures, newest)
    unknown = [] if names else strangers(runs, failures)
    if json:
        document = {
            "engines": [one.model_dump(mode="json") for one in newest],
            "failures": [one.model_dump(mode="json") for one in rows],
            "broken": {name: error.message for name, error in broken.items()},
            "not_registered": unknown,
        }
        typer.echo(jsonlib.dumps(document, indent=1))
        return
    _table(rows)
    for line in _notes(newest, broken, unknown):
        typer.echo(line, err=True)


def page(names: Sequence[str], ledger: Path | None) -> str:
    """The catalogue as a page. Raises as :func:`runs_of`, BrokenScenario, UnknownScenario."""
    from mmrepro.catalogue.page import page

    failures, broken = known(runs_of(ledger), names)
    for error in broken.values():
        raise error
    return page(failures)


def _table(rows: Iterable[living.Standing]) -> None:
    from mmrepro.cli.console import table_console
    from rich.table import Table

    table = Table("failure", "class", "newest release", "seen there", "when", "last run", box=None)
    styles = {True: "red", False: "green", None: "yellow"}
    for row in rows:
        name = f"{row.scenario} ({row.variant})" if row.variant else row.scenario
        state = "alive" if row.alive else row.outcome.replace("-", " ")
        if row.reproduced and row.reproduced < row.runs:
            state += f" ({row.reproduced} of {row.runs} runs)"
        last = ""
        if row.last_release and not row.runs:
            last = f"{row.last_release}: {row.last_outcome.replace('-', ' ')}, {_day(row.last_at)}"
        table.add_row(
            f"[bold]{name}",
            (row.failure_class or "").replace("-", " "),
            f"{row.engine} {row.newest}",
            f"[{styles[row.alive]}]{state}",
            _day(row.at),
            last,
        )
    table_console().print(table)


def _notes(
    newest: Iterable[living.Newest], broken: dict[str, BrokenScenario], unknown: Sequence[str]
) -> Iterable[str]:
    for one in newest:
        if one.says != living.INDEX:
            yield (
                f"{one.engine}: {one.why}. Its newest release that is known here, "
                f"{one.release}, stands in the place of the newest one."
            )
    for error in broken.values():
        yield error.message
    if unknown:
        yield f"Recorded, and no scenario here: {', '.join(unknown)}."


def _day(moment: datetime | None) -> str:
    return moment.date().isoformat() if moment else ""
