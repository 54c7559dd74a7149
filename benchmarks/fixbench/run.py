"""FixBench: is a fix of an engine's history red before and green after, without a GPU?

    python benchmarks/fixbench/run.py LIST.tsv CLONE OUT [--budget 10m] [--only WORD]
    python benchmarks/fixbench/run.py LIST.tsv CLONE OUT --fuzz 8m [--ray auto]
    python benchmarks/fixbench/run.py --table OUT
    python benchmarks/fixbench/run.py --later OUT

LIST.tsv (fixes.py makes it) has a line a fix: commit, parent, day, pull request, product
files, test files (comma-separated). The tests that came with the fix run on the fix and
on its parent, in boxes of several fixes, over the nearest release that lends compiled
files. With --fuzz each fix is a `mmrepro commit --fuzz` of its own: its tests, and
requests that the product makes itself; with --ray on the machines of a Ray cluster, which
have the same checkout and clone. OUT/results.jsonl, or requests.jsonl, gets a line a fix:
hashes, numbers, paths and results, no word of the engine's. A fix that has a line is not
run again, so the same command goes on where it was ended."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrepro.base.errors import MmreproError
from mmrepro.base.units import parse_duration
from mmrepro.engines.environments import own_releases
from mmrepro.history import later_fixes
from mmrepro.runs import CommitReader, CommitReading, CommitResult, UpstreamRun

RESULTS = "results.jsonl"
REQUESTS = "requests.jsonl"
"""Of --fuzz: what the product's own requests show as well."""


@dataclass(frozen=True)
class ListedFix:
    """A line of the list."""

    fix: str
    parent: str
    day: str
    pull: str
    product: tuple[str, ...]
    tests: tuple[str, ...]


def listed_fixes(path: Path) -> list[ListedFix]:
    fixes = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            fix, parent, day, pull, product, tests = line.split("\t")
            files = (tuple(product.split(",")), tuple(tests.split(",")))
            fixes.append(ListedFix(fix, parent, day, pull, *files))
    return fixes


def measured(
    listed: Sequence[ListedFix], clone: Path, budget_s: float
) -> Iterator[dict[str, Any]]:
    """What fixes came to, those on the same release in one box."""
    groups: dict[str, list[tuple[ListedFix, Any]]] = defaultdict(list)
    with CommitReader(clone, device="cpu", limit_s=budget_s / 2) as reader:
        began = time.monotonic()
        for fix in listed:
            try:
                prepared = reader.prepare(fix.fix)
            except MmreproError as error:
                said = {"why": "environment", "said": error.message}
                yield _line(fix, began, 1) | {"result": "untestable", **said}
                continue
            groups[prepared.reading.kernels].append((fix, prepared))
        for group in groups.values():
            reader.run([prepared for _, prepared in group])
            for fix, prepared in group:
                yield _line(fix, began, len(listed)) | _facts(prepared.reading)
            began = time.monotonic()


def by_requests(
    fix: ListedFix, clone: Path, budget_s: float, fuzz: str
) -> dict[str, Any]:
    """What `mmrepro commit --fuzz` says of a fix, as a line of the results."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fixbench-") as name:
        words = [sys.executable, "-m", "mmrepro", "commit", f"{clone}@{fix.fix}"]
        words += ["--fuzz", fuzz, "--out", name]
        piped = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with subprocess.Popen(words, text=True, **piped) as command:
            try:
                _, errors = command.communicate(timeout=budget_s)
            except subprocess.TimeoutExpired:
                # It ends its servers itself.
                command.terminate()
                command.communicate()
                return _line(fix, began, 1) | {"result": "untestable", "why": "late"}
        written = Path(name) / "commit.json"
        if not written.exists():
            said = (errors.strip().splitlines() or [""])[-1]
            failed = {"result": "untestable", "why": "environment", "said": said[:300]}
            return _line(fix, began, 1) | failed
        reading = CommitReading.model_validate_json(written.read_bytes())
    line = _line(fix, began, 1) | _facts(reading)
    if reading.aim is not None:
        line["lines"] = [reading.aim.reached, reading.aim.lines]
    shown = [found for found in reading.differences if found.confirmed]
    line["differences"] = len(shown)
    line["pairs"] = [[found.shown, found.pairs] for found in shown]
    return line


def requests_of(
    listed: Sequence[ListedFix], clone: Path, budget_s: float, fuzz: str, ray: str
) -> Iterator[dict[str, Any]]:
    """Lines of fixes, one after another here, or as they end on a Ray cluster."""
    if not ray:
        for fix in listed:
            yield by_requests(fix, clone, budget_s, fuzz)
        return
    import ray as cluster

    cluster.init(address=ray, log_to_driver=False)
    # Two servers of a tiny model want a core each.
    remote = cluster.remote(num_cpus=2)(by_requests)
    waiting = [remote.remote(fix, clone, budget_s, fuzz) for fix in listed]
    while waiting:
        ended, waiting = cluster.wait(waiting, num_returns=1)
        yield cluster.get(ended[0])


def _line(fix: ListedFix, began: float, among: int) -> dict[str, Any]:
    minutes = (time.monotonic() - began) / 60 / among
    facts = {"fix": fix.fix, "pull": fix.pull, "day": fix.day}
    return {**facts, "minutes": round(minutes, 2)}


def _facts(reading: CommitReading) -> dict[str, Any]:
    """The part of a result that a reading gives: numbers, causes and paths."""
    facts: dict[str, Any] = {"result": reading.result.value, "kernels": reading.kernels}
    after, before = reading.after, reading.before
    if after is None or before is None:
        return facts
    facts |= {
        "on_fix": after.counts,
        "on_parent": before.counts,
        "turned": len(reading.turned),
        "seconds": [after.seconds, before.seconds],
    }
    if reading.result is CommitResult.TURNED:
        return facts | {"frames": _engine_frames(before, set(reading.turned))}
    side = before if after.green else after
    return facts | {"why": side.cause.value if side.cause else "", "said": reading.why}


def _engine_frames(before: UpstreamRun, turned: set[str]) -> list[str]:
    """The engine's own functions of the exception of a test that turned, innermost
    last, as ``FILE:FUNCTION``; []: it is the test's own assertion."""
    for seen in before.tests:
        own = []
        for frame in seen.frames if seen.test in turned else ():
            file, _, name = frame.rsplit(":", 2)
            _, found, below = file.partition("site-packages/")
            if found:
                own.append(f"{below}:{name}")
        if own:
            return own
    return []


def read(out: Path, name: str = RESULTS) -> list[dict[str, Any]]:
    try:
        lines = (out / name).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def table(out: Path) -> str:
    """The results as Markdown: hashes, numbers and causes."""
    lines = {line["fix"]: line for line in [*read(out), *read(out, REQUESTS)]}
    rows = [
        "| fix | pull request | its tests | on the fix | on its parent | requests: lines "
        "of the change run | differences | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines.values():
        result = line["result"]
        if line.get("why"):
            result += f": {line['why']}"
        reached = "{} of {}".format(*line["lines"]) if "lines" in line else ""
        cells = [line["fix"], line["pull"], result]
        cells += [line.get("on_fix", ""), line.get("on_parent", "")]
        cells += [reached, str(line.get("differences", "")), str(line["minutes"])]
        rows.append(f"| {' | '.join(cells)} |")
    counts = Counter(line["result"] for line in lines.values())
    total = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    asked = [line for line in lines.values() if "differences" in line]
    red = sum(line["differences"] > 0 for line in asked)
    requests = f"{red} of {len(asked)} by the product's own requests"
    return "\n".join([*rows, "", f"{len(lines)} fixes: {total}; {requests}."])


def later(lines: Sequence[dict[str, Any]]) -> str:
    """Of the tracebacks that turned tests had on the parent: whether the later fixes
    that are listed for them have the fix itself."""
    words = []
    for line in lines:
        frames = [tuple(frame.rsplit(":", 1)) for frame in line.get("frames", [])]
        if not frames:
            continue
        engine = frames[-1][0].partition("/")[0]
        listed = later_fixes(engine, _release_before(engine, line["day"]), frames[::-1])
        pulls = [f"#{fix.pull}" for fix in listed]
        place = pulls.index(line["pull"]) + 1 if line["pull"] in pulls else 0
        words.append(f"{line['pull']}: {f'number {place}' if place else 'not listed'}")
    return "\n".join([*words, f"{len(words)} tracebacks"])


def _release_before(engine: str, day: str) -> str:
    """The last release that came before that day."""
    dated = own_releases(engine, "cpu")
    before = [r.version for r in dated if r.uploaded and str(r.uploaded.date()) < day]
    return before[-1] if before else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("list", type=Path, nargs="?")
    parser.add_argument("clone", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--budget", type=parse_duration, default=600.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", type=int, default=4, help="fixes in one box")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--later", type=Path)
    parser.add_argument("--fuzz", default="", help="time of requests a fix, e.g. 8m")
    parser.add_argument("--ray", default="", help="with --fuzz: auto, or HOST:PORT")
    asked = parser.parse_args()
    if asked.table:
        print(table(asked.table))
        return
    if asked.later:
        print(later(read(asked.later)))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    results = REQUESTS if asked.fuzz else RESULTS
    done = {line["fix"] for line in read(asked.out, results)}
    left = []
    for fix in listed_fixes(asked.list):
        if fix.fix not in done and asked.only in fix.fix:
            left.append(fix)
    for line in lines_of(left, asked):
        with (asked.out / results).open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(time.strftime("%H:%M:%S"), json.dumps(line)[:400], flush=True)


def lines_of(
    left: Sequence[ListedFix], asked: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The lines of all fixes that have none yet."""
    if asked.fuzz:
        yield from requests_of(left, asked.clone, asked.budget, asked.fuzz, asked.ray)
        return
    for start in range(0, len(left), asked.batch):
        yield from measured(
            left[start : start + asked.batch], asked.clone, asked.budget
        )


if __name__ == "__main__":
    main()
