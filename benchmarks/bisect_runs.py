"""Runs and minutes of a bisection, against one release after another.

Usage:  python benchmarks/bisect_runs.py DIR…      # folders of finished bisections
        python benchmarks/bisect_runs.py           # made-up truths alone

Nothing is run here. Of each folder the bisection's own runs and seconds are those that
were measured. The others are searches of the same points by the same code, against the
truth that was found (points that were not run: as their side of the boundary is); each
run costs the median of the measured ones that reached a verdict, one that reached none
what such a one cost."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mmrepro.campaign.bisect.search import (
    Board,
    Direction,
    SearchOptions,
    Verdict,
    search,
    start,
)
from mmrepro.failure.documents.searches import Bisection, PointVerdict, Side
from mmrepro.reports.bisection import KIND

VERDICTS = {
    PointVerdict.BAD: Verdict.BAD,
    PointVerdict.GOOD: Verdict.GOOD,
    PointVerdict.OTHER: Verdict.OTHER,
    PointVerdict.UNTESTABLE: Verdict.UNTESTABLE,
}


def runs_of(
    oracle: Callable[[int], Verdict],
    names: Sequence[str],
    affected: Sequence[bool],
    bad: int,
    direction: Direction,
    *,
    linear: bool = False,
) -> list[Verdict]:
    """The verdicts of all runs that the search makes."""
    board = Board(oracle, names, affected, SearchOptions(linear=linear))
    begin, _ = start(board, bad)
    assert begin == bad
    search(board, bad, direction, 0 if direction == "introduced" else len(names) - 1)
    return [verdict for verdicts in board.runs.values() for verdict in verdicts]


def truth_of(
    bisection: Bisection, direction: Direction, side: Side
) -> Callable[[int], Verdict]:
    names = [point.name for point in bisection.points]
    older, newer = (names.index(name) for name in side.between)
    ends_in = Verdict(side.before or side.after)

    def truth(number: int) -> Verdict:
        seen = bisection.points[number].verdict
        if seen in VERDICTS:
            return VERDICTS[seen]
        if direction == "introduced":
            return ends_in if number <= older else Verdict.BAD
        return ends_in if number >= newer else Verdict.BAD

    return truth


def measured(folder: Path) -> None:
    bisection = KIND.load(folder)
    runs = [run for point in bisection.points for run in point.runs]
    told = statistics.median(run.seconds for run in runs if run.outcome is not None)
    lost = [run.seconds for run in runs if run.outcome is None]
    lost_each = statistics.median(lost) if lost else told
    names = [point.name for point in bisection.points]
    bad = names.index(bisection.known_bad)
    declared = [point.declared for point in bisection.points]
    print(
        f"{bisection.scenario.name} over {len(names)} {bisection.engine} "
        f"{bisection.by}s: {told:.1f} s a run (median of {len(runs) - len(lost)}), "
        f"{lost_each:.1f} s one without a verdict; {len(runs)} runs in "
        f"{bisection.seconds / 60:.1f} min measured"
    )
    for direction, side in (
        ("introduced", bisection.introduced),
        ("fixed", bisection.fixed),
    ):
        if side is None or not side.between:
            continue
        truth = truth_of(bisection, direction, side)
        ways = {
            "declared boundary first": (declared, False),
            "binary search alone": ([True] * len(names), False),
            "one after another": (declared, True),
        }
        for way, (prior, linear) in ways.items():
            made = runs_of(truth, names, prior, bad, direction, linear=linear)
            skipped = made.count(Verdict.UNTESTABLE)
            seconds = (len(made) - skipped) * told + skipped * lost_each
            print(
                f"  {direction:10}  {way:24} {len(made):3} runs  {seconds / 60:5.1f} "
                "min"
            )


def made_up(sizes: Sequence[int]) -> None:
    print(
        "made-up truths, known bad at one end, mean (most) over all positions of the "
        "boundary:"
    )
    for size in sizes:
        counts: dict[str, list[int]] = {}
        for last in range(size - 1):

            def truth(number: int, last: int = last) -> Verdict:
                return Verdict.BAD if number <= last else Verdict.GOOD

            names = [str(number) for number in range(size)]
            right, none = [number <= last for number in range(size)], [True] * size
            for way, prior, linear in (
                ("declared right", right, False),
                ("nothing declared", none, False),
                ("one after another", none, True),
            ):
                made = runs_of(truth, names, prior, 0, "fixed", linear=linear)
                counts.setdefault(way, []).append(len(made))
        told = ", ".join(
            f"{way} {statistics.mean(made):.1f} ({max(made)})"
            for way, made in counts.items()
        )
        print(f"  {size:4} points: {told}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--sizes", default="8,16,43,100")
    asked = parser.parse_args()
    for folder in asked.folders:
        measured(folder)
    made_up([int(size) for size in asked.sizes.split(",")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
