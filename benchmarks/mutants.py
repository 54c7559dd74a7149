"""Mutation testing of the code that judges: would a test notice, were it wrong?

    uv run --group mutants python benchmarks/mutants.py --sample 330 --seed 14 --out DIR
    uv run --group mutants python benchmarks/mutants.py --only scenarios/shape_alias.py --out DIR
    uv run --group mutants python benchmarks/mutants.py --again --out DIR   # what survived there

The mutants are cosmic-ray's. Each is tried in a copy of the working tree, in a process
that may write nowhere else and signal nobody but its own children (Landlock), and has
limits of time and of memory. It is tried by the tests that call the function it lies
in, the fastest files first. Which those are is measured in the first run and kept in
DIR/tests.json; a test file that changes is measured again, and so is one in which a
test failed: such a test kills nothing. docs/lab/mutation.md says what is mutated, and
names each survivor."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from _confined import Place
from _mutations import JUDGES, Mutant, files, mutants_of, mutated, source

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/unit/**/test_*.py"
PROCESSES = (
    "warm",
    "supervise",
    "starter",
    "run_starts",
    "pack",
    "watch",
    "environment",
)
"""In the names of test files that start processes: they judge nothing."""
LAST = ("test_imposters.py", "test_judge.py")
SECONDS, TIMES = 30.0, 5.0
"""A mutant is killed when it takes so many seconds and so many times what its tests
took."""


@dataclass
class Tried:
    mutant: Mutant
    killed: bool
    how: str
    seconds: float = 0.0
    tests: int = 0
    diff: str = ""


@dataclass
class Known:
    """What is known of one test file. ``calls``: by test, the functions it calls."""

    digest: str
    calls: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)


# ------------------------------------------------------------------ by which tests


def digests(patterns: list[str]) -> dict[str, str]:
    """Of each test file and what all share: a measurement is good where it is equal."""
    shared = hashlib.sha256()
    for path in sorted((ROOT / "tests").rglob("*.*")):
        if path.suffix in (".py", ".json") and not path.name.startswith("test_"):
            shared.update(path.read_bytes())
    found = {}
    for name in files(patterns):
        if not any(word in name for word in PROCESSES):
            own = shared.copy()
            own.update((ROOT / name).read_bytes())
            found[name] = own.hexdigest()
    return found


def measured(out: Path, patterns: list[str], places: list[Place]) -> dict[str, Known]:
    """What each test calls; from the last time where nothing changed."""
    cache = out / "tests.json"
    old = json.loads(cache.read_text()) if cache.is_file() else {}
    known = {name: Known(**one) for name, one in old.items()}
    now = digests(patterns)
    stale = [
        n
        for n in now
        if n not in known or known[n].failing or known[n].digest != now[n]
    ]
    stale.sort(key=lambda name: (Path(name).name not in LAST, name))

    def measure(name: str, place: Place) -> str:
        told = place.run([name], 900, measure=True)
        known[name] = Known(now[name], **told["known"])
        bad = "; ".join(known[name].failing) or ("" if told["known"] else told["tail"])
        return f"{name}: {told['seconds']:.1f} s" + (
            f", left out, since it fails: {bad}" if bad else ""
        )

    share(stale, places, measure)
    cache.write_text(json.dumps({name: asdict(one) for name, one in known.items()}))
    return {name: known[name] for name in now}


def tests_for(
    mutant: Mutant, key: str, known: dict[str, Known]
) -> tuple[list[str], float]:
    """Tests that call its function, those of the fastest file first, and their seconds.
    For what runs at import, and where none is known to: tests that call anything in its
    file."""
    by_function = _calling(known, lambda call: call == f"{key}:{mutant.function}")
    picked = by_function or _calling(known, lambda call: call.startswith(f"{key}:"))
    cost = {
        n: sum(known[n].seconds.get(t, 0.0) for t in tests)
        for n, tests in picked.items()
    }
    order = sorted(picked, key=lambda n: (Path(n).name in LAST, cost[n]))
    whole = {n for n in order if len(picked[n]) == len(known[n].calls)}
    return [t for n in order for t in ([n] if n in whole else picked[n])], sum(
        cost.values()
    )


def _calling(
    known: dict[str, Known], wanted: Callable[[str], bool]
) -> dict[str, list[str]]:
    """By file, the tests with such a call."""
    found = {
        name: [
            t
            for t, calls in one.calls.items()
            if t not in one.failing and any(map(wanted, calls))
        ]
        for name, one in known.items()
    }
    return {name: tests for name, tests in found.items() if tests}


# ------------------------------------------------------------------ the run


def share(work: list[Any], places: list[Place], do: Any) -> None:
    """Each piece of ``work`` at one of the places, as they become free; what it says is
    shown."""
    left: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for piece in work:
        left.put(piece)
    done, errors = 0, []

    def at(place: Place) -> None:
        nonlocal done
        while not errors:
            try:
                piece = left.get_nowait()
            except queue.Empty:
                return
            try:
                said = do(piece, place)
            except Exception as error:
                errors.append(error)
                return
            done += 1
            print(f"{done}/{len(work)} {said}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=at, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def try_one(mutant: Mutant, place: Place, known: dict[str, Known]) -> Tried | None:
    """None: it is no other program."""
    text, new = source(mutant.file), mutated(mutant)
    if new is None:
        return None
    key = place.installed(mutant.file).relative_to(place.site / "mmrepro").as_posix()
    tests, seconds = tests_for(mutant, key, known)
    lines = difflib.unified_diff(text.splitlines(), new.splitlines(), lineterm="", n=2)
    diff = "\n".join(list(lines)[2:])
    if not tests:
        return Tried(mutant, False, "no test calls it", diff=diff)
    place.write(mutant.file, new)
    try:
        told = place.run(tests, max(SECONDS, TIMES * seconds))
    finally:
        place.write(mutant.file, text)
    ways = {None: "timeout", 0: "survived", 1: "tests fail", 5: "no test ran"}
    how = ways.get(told["code"], f"pytest ends with {told['code']}")
    killed = told["code"] not in (0, 5)
    return Tried(mutant, killed, how, round(told["seconds"], 2), len(tests), diff)


def table(results: list[Tried]) -> str:
    rows = [("file", "mutants", "killed", "")]
    for name in [*sorted({r.mutant.file for r in results}), "all"]:
        own = [r for r in results if name in (r.mutant.file, "all")]
        killed = sum(r.killed for r in own)
        rows.append(
            (name, str(len(own)), str(killed), f"{100 * killed / len(own):.1f} %")
        )
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in [rows[0], ("---",) * 4, *rows[1:]]
    )


def chosen(options: argparse.Namespace) -> list[Mutant]:
    if options.again:
        last = json.loads((options.out / "result.json").read_text())
        return [Mutant(**r["mutant"]) for r in last["tried"] if not r["killed"]]
    found = sorted(
        m for file in files(options.only or JUDGES) for m in mutants_of(file)
    )
    random.Random(options.seed).shuffle(found)
    if options.list or not options.sample:
        return found
    picked = (m for m in found if mutated(m) is not None)
    return [m for m, _ in zip(picked, range(options.sample), strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=0, help="so many of them; 0: all")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--memory-gib", type=int, default=6, help="address space of a process"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PATH", help="files, or patterns of files"
    )
    parser.add_argument(
        "--tests", nargs="+", default=[TESTS], help="only these test files"
    )
    parser.add_argument(
        "--again", action="store_true", help="those that survived in DIR"
    )
    parser.add_argument(
        "--list", action="store_true", help="show the mutants, try none"
    )
    parser.add_argument("--out", type=Path, default=Path("mutants"))
    options = parser.parse_args()
    mutants = chosen(options)
    if options.list:
        for m in sorted(mutants):
            print(
                f"{m.file}:{m.line} {m.operator} {m.occurrence} in "
                f"{m.function or 'the module'}"
            )
        print(f"{len(mutants)} mutants")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    places = [
        Place(options.out.resolve() / f"worker-{n}", options.memory_gib)
        for n in range(options.workers)
    ]
    results: list[Tried] = []
    try:
        known = measured(options.out, options.tests, places)

        def attempt(mutant: Mutant, place: Place) -> str:
            at = f"{mutant.file}:{mutant.line} {mutant.operator}"
            result = try_one(mutant, place, known)
            if result is None:
                return f"no other program {at}"
            results.append(result)
            return f"{result.how:<10} {result.seconds:5.1f} s {at}"

        share(mutants, places, attempt)
    finally:
        for place in places:
            place.close()
    results.sort(key=lambda r: r.mutant)
    document = {
        "seed": options.seed,
        "sample": len(results),
        "killed": sum(r.killed for r in results),
        "seconds": round(time.monotonic() - started),
        "tried": [asdict(r) for r in results],
    }
    (options.out / "result.json").write_text(json.dumps(document, indent=1))
    for r in results:
        if not r.killed:
            m = r.mutant
            print(
                f"\n{m.file}:{m.line} {m.operator} in {m.function or 'the module'}: "
                f"{r.how}"
            )
            print(r.diff)
    print(f"\n{table(results)}\n\n{document['seconds']} s")


if __name__ == "__main__":
    main()
