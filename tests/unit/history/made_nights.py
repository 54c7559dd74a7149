"""Nights and attempts, made up for tests."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mmrepro.base.records import HostFacts, Moment
from mmrepro.failure.documents.ledger import (
    Attempt,
    Cell,
    Lost,
    Night,
    NightState,
    Planned,
)
from mmrepro.failure.signature import Outcome
from mmrepro.history.events import events
from mmrepro.history.ledger import History, Ledger, NightRuns
from mmrepro.runs.key import run_key

BEGAN = datetime(2026, 11, 1, 3, 0, tzinfo=UTC)
HOST = HostFacts(
    os="Linux", kernel="6", cpu="x86", cores=2, memory_bytes=1 << 34, python="3.11"
)
LETTERS = {
    "r": Outcome.REPRODUCED,
    "n": Outcome.NOT_REPRODUCED,
    "d": Outcome.DIFFERENT_FAILURE,
    "i": Outcome.INCONCLUSIVE,
    "l": None,
}
"""A run in one letter."""


def moment(hours: float) -> Moment:
    return Moment(wall=BEGAN + timedelta(hours=hours), mono=hours * 3600)


def cell(release: str = "0.23.0", scenario: str = "ghost", **more: object) -> Cell:
    values = {"engine": "vllm", "device": "cpu", **more}
    return Cell.model_validate({"scenario": scenario, "release": release, **values})


def attempt(
    letter: str,
    index: int = 1,
    *,
    of: Cell | None = None,
    night: str = "n1",
    parts: dict[str, str] | None = None,
    expected: Outcome | None = None,
    hours: float = 0,
) -> Attempt:
    outcome = LETTERS[letter]
    of = of or cell()
    parts = {"engine": of.release, "environment": "e1", **(parts or {})}
    return Attempt(
        night=night,
        cell=of.id,
        index=index,
        created=moment(hours),
        seconds=12.5,
        outcome=outcome,
        expected=expected if outcome else None,
        lost=None if outcome else Lost.INFRASTRUCTURE,
        key=run_key(parts) if outcome else "",
        parts=parts if outcome else {},
        incident=f"incidents/{night}/{of.id}/run-{index}" if outcome else "",
    )


def attempts(letters: str, **more: object) -> list[Attempt]:
    return [attempt(letter, n, **more) for n, letter in enumerate(letters, 1)]  # type: ignore[arg-type]


def night(
    number: int,
    runs: dict[Cell, str] | None = None,
    *,
    parts: dict[str, str] | None = None,
    expected: Outcome | None = None,
    state: NightState = NightState.COMPLETE,
    every_h: float | None = 24,
    hours: float | None = None,
) -> NightRuns:
    """Night ``number``, 24 h after the one before it: the letters of each cell's
    runs."""
    began = 24.0 * number if hours is None else hours
    name = f"n{number}"
    made = NightRuns(
        Night(
            id=name,
            created=moment(began),
            finished=moment(began + 2),
            state=state,
            command="mmrepro matrix run",
            mmrepro_version="0",
            host=HOST,
            every_h=every_h,
        )
    )
    for of, letters in (runs or {}).items():
        made.planned[of.id] = Planned(night=name, cell=of, expected=expected)
        made.attempts += attempts(
            letters, of=of, night=name, parts=parts, expected=expected, hours=began
        )
    return made


def history(nights: Sequence[NightRuns]) -> History:
    return History(nights)


def told(*nights: NightRuns) -> History:
    """The nights, each with its events, as its end writes them; one that was killed has
    none."""
    known = History(nights)
    for runs in known.nights:
        running = runs.night.state is NightState.RUNNING
        runs.events = [] if running else events(known, runs)
    return known


def written(folder: Path, *nights: NightRuns, ago: float | None = None) -> Path:
    """A folder with the ledger of these nights; ``ago``: hours since the newest one
    began."""
    shift = timedelta()
    if ago is not None and nights:
        shift = datetime.now(UTC) - timedelta(hours=ago) - nights[-1].night.created.wall
    with Ledger(folder) as ledger:
        for runs in nights:
            began = Moment(wall=runs.night.created.wall + shift, mono=0.0)
            ledger.append(runs.night.model_copy(update={"created": began}))
            for record in [*runs.planned.values(), *runs.attempts]:
                ledger.append(record)
            for event in events(ledger.history, ledger.history.night(runs.night.id)):
                ledger.append(event)
    return folder
