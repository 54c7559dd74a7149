"""Does `mmrepro fuzz` find what it is not told of? Fifteen mistakes, one after another.

Usage: python benchmarks/fuzz_minivllm.py [--only NAME …] [--budget 2m] [--seed N]
        [--out DIR] python benchmarks/fuzz_minivllm.py --only none --healthy 30m python
        benchmarks/fuzz_minivllm.py --only none --chance

Each of minivllm's ten faults, switched on by a plugin that names it nowhere, and each
of the five that other plugins of benchmarks/planted plant: `mmrepro fuzz minivllm
--blind` on each. A line for
each: found or not (a finding that was not confirmed does not count), what was found and
how soon. --healthy: the same without a plugin, which must find nothing, nor see
anything once. --chance: a fault that half of all servers have; the interval of each
finding's rate must hold 0.5.

Exit 1: one of the ten was not found, or two of the five (or one, where not all five
were asked for), or --healthy or --chance did not hold."""

from __future__ import annotations

import argparse
import codecs
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrepro.base.records import without_head
from mmrepro.failure.documents.replay import Fuzz
from mmrepro.reproducers.minivllm.config import FAULTS

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))
from live import COMMAND

PLANTED = Path(__file__).absolute().parent / "planted"
HIDDEN = PLANTED / "hidden.py"
PLUGINS = ("swapped_answers", "lost_block", "wrong_finish", "leak_on_abort", "deadlock")
MAY_MISS = 1
"""Of all five plugins."""
NONE = "none"
CHANCE, PROBABILITY = "ghost-key-lru", 0.5


@dataclass(frozen=True)
class Told:
    """What one `mmrepro fuzz --json` printed; ``failure``: why it printed nothing of
    use."""

    content: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Each with ``after_s``, seconds of fuzzing before it was first observed."""
        found: list[dict[str, Any]] = self.content.get("found", [])
        return [{**one["finding"], "after_s": one["after_s"]} for one in found]

    @property
    def confirmed(self) -> list[dict[str, Any]]:
        return [finding for finding in self.findings if finding["confirmed"]]

    @property
    def once(self) -> list[Any]:
        seen: list[Any] = self.content.get("once", [])
        return seen

    @property
    def effort(self) -> str:
        session = Fuzz.model_validate(without_head(self.content))
        return (
            f"{session.starts} starts, {len(session.episodes)} episodes, "
            f"{session.requests} requests, {session.elapsed_s:.0f} s"
        )


@dataclass(frozen=True)
class Bench:
    """The options that all runs share."""

    seed: int
    out: Path
    server_args: Sequence[str]

    def fuzz(self, name: str, budget: str, *options: str) -> Told:
        server = [f"--server-arg={arg}" for arg in self.server_args]
        command = [*COMMAND, "fuzz", "minivllm", "--blind", "--budget", budget]
        command += ["--seed", str(self.seed), "--json", "--out", str(self.out / name)]
        done = subprocess.run(
            [*command, *server, *options], capture_output=True, text=True, check=False
        )
        try:
            content = json.loads(done.stdout)
            if content["episodes"]:
                return Told(content)
            failure = "no episode was played"
        except (ValueError, LookupError, TypeError):
            failure = next(
                reversed(done.stderr.strip().splitlines()), "it said nothing"
            )
        return Told(failure=f"exit {done.returncode}: {failure}")


def options_of(name: str) -> list[str]:
    """What turns the fault or the plugin on."""
    if name in PLUGINS:
        return ["--server-arg=--plugin", f"--server-arg={PLANTED / name}.py"]
    hidden = f"--env=MINIVLLM_HIDDEN={codecs.encode(name, 'rot13')}"
    return ["--server-arg=--plugin", f"--server-arg={HIDDEN}", hidden]


def shown(finding: dict[str, Any]) -> str:
    rate = finding["rate"]
    what = f"{finding['finding_class']}: {finding['requests']} requests"
    what += f" after {finding['after_s']:.0f} s"
    sure = "" if finding["confirmed"] else ", not confirmed"
    return f"{what}, {rate['failed']} of {rate['plays']} plays{sure}"


def tell(name: str, verdict: str, told: Told) -> None:
    """One line for a run."""
    parts = [shown(finding) for finding in told.findings]
    if told.once:
        parts.append(f"{len(told.once)} seen once")
    parts.append(told.failure or told.effort)
    print(f"{name:20} {verdict:9}  {'; '.join(parts)}", flush=True)


def found(bench: Bench, names: Sequence[str], budget: str) -> list[str]:
    """Those of ``names`` that were found."""
    right = []
    for name in names:
        told = bench.fuzz(name, budget, *options_of(name))
        tell(name, "found" if told.confirmed else "NOT FOUND", told)
        if told.confirmed:
            right.append(name)
    return right


def healthy(bench: Bench, budget: str) -> bool:
    told = bench.fuzz("healthy", budget)
    sound = not (told.failure or told.findings or told.once)
    tell("healthy", "nothing" if sound else "FAILED", told)
    for finding in told.findings:
        print(f"  {finding['bucket']}: {finding['said']}")
    for seen in told.once:
        print(f"  once: {json.dumps(seen)}")
    return sound


def chance(bench: Bench, budget: str) -> bool:
    """Whether a fault of half of all servers is found, with a rate that may be a
    half."""
    args = ("--fault", CHANCE, f"--fault-probability={PROBABILITY}")
    told = bench.fuzz("chance", budget, *(f"--server-arg={arg}" for arg in args))
    rates = [finding["rate"] for finding in told.findings]
    held = bool(rates) and all(
        rate["low"] <= PROBABILITY <= rate["high"] for rate in rates
    )
    tell("chance", "held" if held else "FAILED", told)
    for rate in rates:
        print(
            f"  {rate['failed']} of {rate['plays']}: {rate['low']:.2f} to "
            f"{rate['high']:.2f}"
        )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*FAULTS, *PLUGINS]
    parser.add_argument(
        "--only", nargs="+", choices=[*names, NONE], metavar="NAME", default=names
    )
    parser.add_argument("--budget", default="2m", help="of each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--healthy", metavar="BUDGET", help="a run without a mistake, e.g. 30m"
    )
    parser.add_argument(
        "--chance", action="store_true", help="a fault of half of all servers"
    )
    parser.add_argument("--server-arg", action="append", default=[], metavar="ARG")
    parser.add_argument("--out", type=Path, help="keep everything in this folder")
    options = parser.parse_args()
    faults = [name for name in FAULTS if name in options.only]
    plugins = [name for name in PLUGINS if name in options.only]
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(
            options.seed,
            (options.out or Path(temporary)).absolute(),
            options.server_arg,
        )
        bench.out.mkdir(parents=True, exist_ok=True)
        of_faults = found(bench, faults, options.budget)
        of_plugins = found(bench, plugins, options.budget)
        print(f"found: {len(of_faults)} of {len(faults)} faults", end=", ")
        print(f"{len(of_plugins)} of {len(plugins)} plugins", flush=True)
        may_miss = MAY_MISS if len(plugins) == len(PLUGINS) else 0
        held = [of_faults == faults, len(of_plugins) >= len(plugins) - may_miss]
        if options.healthy:
            held.append(healthy(bench, options.healthy))
        if options.chance:
            held.append(chance(bench, options.budget))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
