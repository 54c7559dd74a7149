"""Bundles of what was not as expected in a night, and an index of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mmrepro.errors import BadIncident, UnwritableOutput, UsageError
from mmrepro.history.events import ALARMS
from mmrepro.history.states import CONCLUSIVE, State
from mmrepro.incident.ledger import Attempt
from mmrepro.reports import gfm, reading
from mmrepro.reports.bundle import DEFAULT_MAX_BYTES, write_bundle
from mmrepro.reports.night_square import Square, outcome_words
from mmrepro.reports.night_view import NightView
from mmrepro.reports.night_words import Standing, plural
from mmrepro.reports.writing import replace_file

INDEX_FILE: Final = "index.md"


@dataclass(frozen=True)
class Packed:
    """One run; ``file`` is empty where it was left out, and ``why`` says why."""

    square: Square
    run: Attempt | None
    file: str = ""
    bytes: int = 0
    why: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "cell": self.square.cell.id,
            "state": self.square.state.value,
            "run": self.run.index if self.run is not None else None,
            "incident": self.run.incident if self.run is not None else "",
            "file": self.file,
            "bytes": self.bytes,
            "left_out": self.why,
        }


@dataclass
class Surprises:
    night: str
    packed: list[Packed] = field(default_factory=list)
    left_out: list[Packed] = field(default_factory=list)


def write_surprises(night: NightView, folder: Path, out: Path, max_bytes: int) -> Surprises:
    """One bundle a telling run, and ``index.md``, into ``out``; nothing where nothing is odd.

    Args:
        folder: the ledger's, with the incidents below it.
        max_bytes: of all bundles together, the most telling first.

    Raises:
        UnwritableOutput: a file could not be written.
    """
    done = Surprises(night.runs.night.id)
    left = max_bytes
    for square, run in _telling(night):
        one = _pack(square, run, folder, out, min(left, DEFAULT_MAX_BYTES), left)
        (done.packed if one.file else done.left_out).append(one)
        left -= one.bytes
    if done.packed or done.left_out:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / INDEX_FILE, _index(night, done))
    return done


def _telling(night: NightView) -> Iterator[tuple[Square, Attempt | None]]:
    """The runs that show what is odd, the most telling first; none of a cell in quarantine.

    Of a flaky cell the newest run of each verdict. A lost one is told by its log.
    """
    alarming = {e.cell for e in night.events if e.what in ALARMS}
    free = [s for s in night.squares if s.quarantine is None]
    odd = [s for s in free if s.standing is Standing.SURPRISE]
    odd += [s for s in free if s.cell.id in alarming and s not in odd and s.attempts]
    odd += [s for s in free if s.standing is Standing.FLAKY and s not in odd]
    odd += [s for s in free if s.state in (State.INCONCLUSIVE, State.LOST) and s not in odd]
    for square in odd:
        if square.state is not State.FLAKY:
            yield square, square.deciding
            continue
        for outcome in CONCLUSIVE:
            runs = [a for a in square.attempts if a.outcome is outcome]
            if runs:
                yield square, runs[-1]


def _pack(
    square: Square, run: Attempt | None, folder: Path, out: Path, most: int, left: int
) -> Packed:
    if run is None or not run.incident:
        return Packed(square, run, why="the run left no incident")
    incident = folder / run.incident
    if not incident.resolve().is_relative_to(folder.resolve()):
        return Packed(square, run, why="its incident lies outside of the ledger's folder")
    try:
        loaded = reading.load(incident)
    except BadIncident as error:
        return Packed(square, run, why=error.message)
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{square.cell.id}-run-{run.index}.zip"
    try:
        write_bundle(incident, loaded, target, max_bytes=most, force=True)
    except UnwritableOutput:
        raise
    except UsageError as error:
        return Packed(square, run, why=f"{left >> 10} KiB were left: {error.message}")
    return Packed(square, run, target.name, target.stat().st_size)


def _index(night: NightView, done: Surprises) -> str:
    def row(one: Packed) -> list[str]:
        run = f"{one.run.index}: {outcome_words(one.run)}" if one.run is not None else ""
        cell = one.square.cell
        return [
            gfm.cell(cell.row),
            gfm.cell(f"{cell.engine} {one.square.column.label}"),
            gfm.cell(one.square.words),
            gfm.cell(one.square.expectation.removeprefix("expected: ")),
            gfm.cell(run),
            gfm.code(one.file) if one.file else gfm.cell(f"left out: {one.why}"),
            str(one.bytes) if one.file else "–",
        ]

    head = ["scenario", "release", "came out", "expected", "run", "file", "bytes"]
    table = gfm.table(head, [row(one) for one in [*done.packed, *done.left_out]])
    count = len(done.packed)
    return (
        f"# {gfm.text(night.title, 200)}: what was not as expected\n\n"
        f"{count} {plural(count, 'bundle')}, {len(done.left_out)} left out. One is read with "
        f"`mmrepro report FILE.zip`.\n\n{table}\n"
    )
