"""Whether ``bisect --measure`` finds the release in which minivllm became slower, among
eight.

    python benchmarks/bisect_measure.py [--share 0.05] [--rounds 7] [--first 1]

minivllm has one release. Eight are made of it here: from the planted one on, each step
of the engine takes longer by the share (``planted/upgrade_server.py``). All else is the
real thing: the policy, ``mmrepro upgrade --only METRIC`` for each probe, real servers.
Each round plants another release. Prints a line a round, and how many were right, left
open and wrong. The machine should be
quiet: two cores for the two servers of a block. ``--traffic`` may be that of
``upgrade.py``, which is light."""

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
from mmrepro.campaign.schedule import EnvironmentGroup
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import LocalPlaces
from mmrepro.failure.documents.ledger import Cell
from mmrepro.failure.documents.searches import Bisection, Point
from mmrepro.reports.bisection import KIND
from mmrepro.reports.documents import keep
from mmrepro.search.upgrade.bisected import BisectingMetric, ByComparison, traffic
from mmrepro.search.upgrade.options import UpgradeCommand

RELEASES = [f"0.1.{number}" for number in range(8)]
PLUGIN = Path(__file__).absolute().parent / "planted" / "upgrade_server.py"


@dataclass
class Planted(ByComparison):
    """A comparison of minivllm with itself, slowed from the planted release on."""

    first: int = 0
    share: float = 0.0

    def command(self, cell: Cell, options: TrialOptions) -> UpgradeCommand:
        slow = RELEASES.index(cell.release) >= self.first
        made = replace(super().command(cell, options), old="0.1", new="0.1")
        if not slow:
            return made
        env = ("PLANT=slower", f"DELAY={self.share}")
        return replace(made, new_server_words=f"--plugin {PLUGIN}", new_env=env)


class NothingToBuild:
    """minivllm's environment is made by the first server."""

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None:
        pass

    def prepare(self, group: EnvironmentGroup) -> str:
        return ""

    def prefetch(self, group: EnvironmentGroup) -> None:
        pass

    @contextlib.contextmanager
    def warm(self, runs: Sequence[tuple[Cell, int]]) -> Iterator[None]:
        yield

    def seconds(self, group: EnvironmentGroup) -> float:
        return 0.0

    def done(self, group: EnvironmentGroup) -> None:
        pass

    def stop(self) -> None:
        pass

    def join(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--metric", default="itl-saturated")
    parser.add_argument("--traffic", default="chat")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--first", type=int, default=1, help="the release planted first, 1 to 7"
    )
    parser.add_argument("--out", type=Path, default=Path("bisect-measure"))
    asked = parser.parse_args()
    os.environ.pop("MMREPRO_START_MODE", None)
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    told: Counter[str] = Counter()
    for number in range(asked.rounds):
        first, began = 1 + (asked.first - 1 + number) % 7, time.monotonic()
        made = bisected(out, number, first, asked)
        side = made.introduced
        assert side is not None
        named = side.first_bad
        told[
            "open"
            if named is None
            else "right"
            if named == RELEASES[first]
            else "WRONG"
        ] += 1
        seconds = time.monotonic() - began
        print(
            f"planted {RELEASES[first]}: {named} after {made.runs} runs, {seconds:.0f} "
            f"s: {side.explanation}",
            flush=True,
        )
    print(", ".join(f"{count} {what}" for what, count in told.items()))


def bisected(
    out: Path, number: int, first: int, asked: argparse.Namespace
) -> Bisection:
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
    policy = BisectingMetric(
        what, options, field, write=lambda made, at: keep(KIND, made, at)
    )
    policy.making = Planted(**vars(policy.making), first=first, share=asked.share)
    trials = Trials(TrialOptions(making=policy.making))
    return Campaign(policy, LocalPlaces(trials, NothingToBuild(), 1)).execute()


if __name__ == "__main__":
    main()
