"""The lines that were kept of a log, in the order in which a server wrote them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from mmrepro.probes import LogLine, LogsData

_BACKWARDS = 5
"""Times that step back so often, and hardly ever forward, are those of an export."""

_YEAR_S = 366 * 86400.0


class PlacedLine(LogLine):
    """A line whose ``number`` is its place among all lines; ``at``: its number in its
    file."""

    at: int


def lines_of(data: LogsData) -> list[LogLine]:
    """Every line that a reading kept, in its order, each once."""
    kept = [
        *data.excerpt,
        *data.errors,
        *data.last_by_process.values(),
        *data.stuck_requests,
    ]
    for matching in data.matches.values():
        kept += matching
    for line in (data.last_progress, data.last_work, data.first_line, data.last_line):
        if line is not None:
            kept.append(line)

    files = {file: number for number, file in enumerate(data.files)}
    unique: dict[tuple[int, int, str], LogLine] = {}
    for line in kept:
        # A message of several lines, in JSON, is one line of its file: its number
        # alone does not tell them apart. The excerpt has them in their order.
        place = (files.get(line.file, 0), line.number, line.text)
        unique.setdefault(place, line)
    places = sorted(unique, key=lambda place: place[:2])
    return [unique[place] for place in places]


def in_order(lines: Sequence[LogLine]) -> list[PlacedLine]:
    """The lines as they came: files of several ranks by their times, an export of
    newest lines first turned round."""
    ordered = list(lines)
    files: dict[str, list[LogLine]] = {}
    for line in lines:
        files.setdefault(line.file, []).append(line)
    if len(files) > 1:
        ordered = _merged(list(files.values()))
    elif _newest_first(lines):
        ordered.reverse()

    placed: list[PlacedLine] = []
    at = 0
    before: LogLine | None = None
    for line in ordered:
        step = 1
        if before is not None and before.file == line.file:
            # Lines may be missing: what was between the two counts as distance.
            step = max(1, abs(line.number - before.number))
        at += step
        values = {**line.__dict__, "number": at, "at": line.number}
        placed.append(PlacedLine.model_construct(**values))
        before = line
    return placed


def _merged(files: Sequence[Sequence[LogLine]]) -> list[LogLine]:
    """The lines by time where each file has times of the same kind, else one file after
    the other."""
    begun: list[float] = []
    for lines in files:
        when = _first_time(lines)
        if when is not None:
            begun.append(when)
    if len(begun) < len(files) or max(begun) - min(begun) > _YEAR_S:
        return list(chain.from_iterable(files))

    placed: list[tuple[float, int, LogLine]] = []
    for number, (lines, when) in enumerate(zip(files, begun, strict=True)):
        for line in lines:
            # A line without a time belongs to the one above it, and a clock that is
            # set back does not change the order of a file.
            if line.when is not None:
                when = max(when, line.when)
            placed.append((when, number, line))
    placed.sort(key=lambda entry: entry[:2])
    return [line for _, _, line in placed]


def _first_time(lines: Sequence[LogLine]) -> float | None:
    for line in lines:
        if line.when is not None:
            return line.when
    return None


def _newest_first(lines: Sequence[LogLine]) -> bool:
    times = [line.when for line in lines if line.when is not None]
    back = forward = 0
    for earlier, later in pairwise(times):
        back += later < earlier
        forward += later > earlier
    # Times of one server step back now and then: its processes write side by side.
    return back >= _BACKWARDS and back > 10 * forward
