"""Whether ``bisect --measure`` finds the release in which minivllm became slower, among eight.

Usage:  python benchmarks/bisect_measure.py [--share 0.05] [--metric tpot] [--rounds 7] [--out DIR]

minivllm has one release. Eight are made of it here: from the planted one on, each step of the
engine takes longer by the share, by a ``sitecustomize`` in the server's environment. All else is
the real thing: the policy, ``mmrepro upgrade --only METRIC`` for each probe, real servers. Each
round plants another release. Prints a line a round, and how many were right, left open and wrong.
The machine should be quiet: two cores for the two servers of a block.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import field_of
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.schedule import Group
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import LocalPlaces
from mmrepro.failure.documents.ledger import Cell
from mmrepro.failure.documents.searches import Bisection, Point
from mmrepro.reports.bisection import KIND
from mmrepro.reports.documents import keep
from mmrepro.runs.options import StartMode
from mmrepro.search.upgrade.bisected import BisectingMetric, ByComparison, traffic
from mmrepro.search.upgrade.options import UpgradeCommand

RELEASES = [f"0.1.{number}" for number in range(8)]
PLANTED = """\
import builtins, os, sys, time

share = float(os.environ["MINIVLLM_SLOWER"])
real = builtins.__import__


def imported(*given, **more):
    made = real(*given, **more)
    module = sys.modules.get("minivllm.engine")
    if hasattr(module, "Engine"):
        builtins.__import__ = real
        plain = module.Engine.step

        def step(self):
            began = time.perf_counter()
            try:
                return plain(self)
            finally:
                time.sleep((time.perf_counter() - began) * share)

        module.Engine.step = step
    return made


builtins.__import__ = imported
"""


@dataclass
class Planted(ByComparison):
    """A comparison of minivllm with itself, slowed from the planted release on."""

    first: int = 0
    share: float = 0.0
    place: str = ""

    def command(self, cell: Cell, options: TrialOptions) -> UpgradeCommand:
        slow = RELEASES.index(cell.release) >= self.first
        env = (f"PYTHONPATH={self.place}", f"MINIVLLM_SLOWER={self.share}")
        made = super().command(cell, options)
        return replace(made, old="0.1", new="0.1", new_env=env if slow else ())


class NothingToBuild:
    """minivllm's environment is made by the first server."""

    def expect(self, groups: Sequence[Group]) -> None:
        pass

    def prepare(self, group: Group) -> str:
        return ""

    def prefetch(self, group: Group) -> None:
        pass

    @contextlib.contextmanager
    def warm(self, runs: Sequence[tuple[Cell, int]]) -> Iterator[None]:
        yield

    def seconds(self, group: Group) -> float:
        return 0.0

    def done(self, group: Group) -> None:
        pass

    def stop(self) -> None:
        pass

    def join(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--metric", default="tpot")
    parser.add_argument("--traffic", default="chat")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bisect-measure"))
    asked = parser.parse_args()
    os.environ.pop("MMREPRO_START_MODE", None)
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "sitecustomize.py").write_text(PLANTED)
    told: Counter[str] = Counter()
    for number in range(asked.rounds):
        first, began = 1 + number % 7, time.monotonic()
        made = bisected(out, number, first, asked)
        side = made.introduced
        assert side is not None
        named = side.first_bad
        told["open" if named is None else "right" if named == RELEASES[first] else "WRONG"] += 1
        seconds = time.monotonic() - began
        print(
            f"planted {RELEASES[first]}: {named} after {made.runs} runs, {seconds:.0f} s: "
            f"{side.explanation}",
            flush=True,
        )
    print(", ".join(f"{count} {what}" for what, count in told.items()))


def bisected(out: Path, number: int, first: int, asked: argparse.Namespace) -> Bisection:
    options = BisectCommand(
        scenario=asked.traffic,
        measure=asked.metric,
        worse=f"{asked.share * 100:g}%",
        engine="minivllm",
        device="cpu",
        bad=RELEASES[-1],
        out=out / f"{number}-{first}",
    )
    what = traffic(options)
    points = [Point(name=one, release=one) for one in RELEASES]
    field = field_of(what.scenario, options, points)
    policy = BisectingMetric(what, options, field, write=lambda made, at: keep(KIND, made, at))
    policy.making = Planted(**vars(policy.making), first=first, share=asked.share, place=str(out))
    # Cold: a warm process would not have the planted module.
    trials = Trials(TrialOptions(start_mode=StartMode.COLD, making=policy.making))
    return Campaign(policy, LocalPlaces(trials, NothingToBuild(), 1)).execute()


if __name__ == "__main__":
    main()
