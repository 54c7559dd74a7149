"""Mutation testing of the product: would a test notice, were it wrong?

    uv run --group mutants python benchmarks/mutants.py --sample 400 --seed 73 --out DIR
    uv run --group mutants python benchmarks/mutants.py --only scenarios/shape_alias.py --out DIR
    uv run --group mutants python benchmarks/mutants.py --again --contexts --out DIR
    uv run --group mutants python benchmarks/mutants.py --listed --out DIR   # as at night

The mutants are cosmic-ray's. Each is tried in a copy of the working tree, in a process
that may write nowhere else and signal nobody but its own children (Landlock), and has
limits of time and of memory; by tests of tests/unit, of the fast tier and of the slow
one. Those are the files that name its module, and then those that name what imports it.
With --contexts it is measured first which tests run which lines (coverage's contexts;
kept in DIR/contexts), and all that run the mutant's line follow.

A mutant is killed where a test fails, and passes without it: a test that fails without
it too is left out from there on. What was tried is kept in DIR/tried.jsonl: the same
command goes on where it was ended, and --again tries what survived.
docs/lab/mutation.md says what is mutated, and names each kind of survivor."""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import tests_for
from _confined import SHARED, Outcome, Place, without_row
from _mutations import (
    AREAS,
    PRODUCT,
    REST,
    Mutant,
    area_of,
    bodies,
    difference,
    drawn,
    files,
    mutants_of,
    mutated,
    reached_by,
    source,
)

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/unit/**/test_*.py"
SURVIVORS = ROOT / "benchmarks" / "survivors.txt"
"""Its first line holds how many of which seed were tried; a line each, with its reason,
those that survived. It only shrinks."""
NOT_FOUND = 4
"""pytest's exit code where a test is not there: some rows have names that no command
line can say."""
MEASURE_S = 900.0
"""Processor time that the measurement of one test file may take."""
FIRST, FILES = 3, 12
"""Test files that are tried first, since most mutants end there, and at most."""
TIERS = ("not slow and not nightly", "slow and not nightly")
"""Fast tests of all files come before the slow ones of any: one that starts processes
takes the time of hundreds that do not."""


@dataclass
class Tried:
    """What became of a mutant, after so many seconds of processor time."""

    mutant: Mutant
    killed: bool
    how: str
    seconds: float = 0.0
    test: str = ""
    diff: str = ""


@dataclass
class Known:
    """What is known of one test file: its tests' seconds."""

    digest: str
    seconds: dict[str, float] = field(default_factory=dict)


Reached = dict[str, dict[str, set[str]]]
"""By mutant's id and test file, the tests that run the mutant's line."""


# ------------------------------------------------------------------ by which tests


def digests(patterns: list[str]) -> dict[str, str]:
    """Of each test file, with what all share and the product: a measurement is good
    where it is equal."""
    shared = hashlib.sha256()
    for path in sorted((ROOT / "tests").rglob("*.*")):
        if path.suffix in (".py", ".json") and not path.name.startswith("test_"):
            shared.update(path.read_bytes())
    for name in files(PRODUCT):
        shared.update((ROOT / name).read_bytes())
    found = {}
    for name in files(patterns):
        own = shared.copy()
        own.update((ROOT / name).read_bytes())
        found[name] = own.hexdigest()
    return found


def kept_at(out: Path, test_file: str) -> Path:
    """Return where the contexts of a test file are kept, without the suffix."""
    return out / "contexts" / test_file.removesuffix(".py").replace("/", "__")


def measured(
    out: Path, patterns: list[str], places: list[Place], until: float
) -> dict[str, Known]:
    """Measure which lines each test runs, where it is not known; return what is."""
    (out / "contexts").mkdir(exist_ok=True)
    now = digests(patterns)
    known = {}
    for name, digest in now.items():
        kept = kept_at(out, name).with_suffix(".json")
        if kept.is_file():
            last = Known(**json.loads(kept.read_text()))
            if last.digest == digest:
                known[name] = last

    def measure(name: str, place: Place) -> str:
        outcome = place.measure(name, MEASURE_S)
        file = Known(now[name], **outcome.known)
        kept = kept_at(out, name)
        lines = place.folder / "lines"
        if outcome.known and lines.is_file():
            lines.replace(kept.with_suffix(".coverage"))
        kept.with_suffix(".json").write_text(json.dumps(asdict(file)))
        known[name] = file
        return f"{name}: {outcome.seconds:.1f} s"

    share([name for name in now if name not in known], places, measure, until)
    for name, file in sorted(known.items()):
        if not file.seconds:
            print(f"left out: {name}, which has no end or no test", file=sys.stderr)
    return known


def reached(out: Path, mutants: list[Mutant], known: dict[str, Known]) -> Reached:
    """Ask the contexts which tests run each mutant's line; of what runs at import, the
    tests that run anything in its file."""
    by_file: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_file.setdefault(mutant.file, []).append(mutant)
    found: Reached = {mutant.id: {} for mutant in mutants}
    nearby: dict[str, dict[str, set[str]]] = {file: {} for file in by_file}
    for test_file in known:
        lines_of = Contexts(out, test_file, known[test_file])
        for file, own in by_file.items():
            tests_by_line = lines_of.tests_by_line(file)
            near = tests_that_run(bodies(file), tests_by_line)
            if near:
                nearby[file][test_file] = near
            for mutant in own:
                tests = tests_that_run(reached_by(mutant) or (), tests_by_line)
                if tests:
                    found[mutant.id][test_file] = tests
    for mutant in mutants:
        if not found[mutant.id]:
            # The context of an import is that of the test which came first.
            found[mutant.id] = dict(nearby[mutant.file])
    return found


def tests_that_run(
    lines: Iterable[int], tests_by_line: dict[int, set[str]]
) -> set[str]:
    """Return the tests that run at least one of the lines."""
    tests: set[str] = set()
    for line in lines:
        tests |= tests_by_line.get(line, set())
    return tests


class Contexts:
    """What coverage kept of one test file."""

    def __init__(self, out: Path, test_file: str, known: Known) -> None:
        from coverage import CoverageData

        self.known = known
        self.file_names: dict[str, str] = {}
        path = kept_at(out, test_file).with_suffix(".coverage")
        if path.is_file():
            self.data = CoverageData(str(path))
            self.data.read()
            for name in self.data.measured_files():
                self.file_names[name.partition("/site/mmrepro/")[2]] = name

    def tests_by_line(self, file: str) -> dict[int, set[str]]:
        """Return by line the tests that run it."""
        name = self.file_names.get(imported_as(file))
        if name is None:
            return {}
        found: dict[int, set[str]] = {}
        for line, contexts in self.data.contexts_by_lineno(name).items():
            tests = {without_row(context) for context in contexts}
            if SHARED in tests:
                tests |= self.known.seconds.keys()
            found[line] = tests & self.known.seconds.keys()
        return found


def imported_as(file: str) -> str:
    """Return a file's name below the package's folder."""
    return file.removeprefix("harness/")


@cache
def naming(module: str) -> frozenset[str]:
    """Return the test files that name a module, or a scenario that it declares."""
    scenarios = tests_for.scenarios_of(module)
    found = set()
    for test in tests_for.test_files():
        if module in tests_for.names_in(test) or scenarios & tests_for.words_in(test):
            found.add(test.relative_to(ROOT).as_posix())
    return frozenset(found)


@cache
def importers() -> dict[str, set[str]]:
    """Return by module those of the product that import it."""
    found: dict[str, set[str]] = {}
    for file in files(PRODUCT):
        for name in tests_for.names_in(ROOT / file):
            found.setdefault(name, set()).add(tests_for.module_of(ROOT / file))
    return found


@cache
def near(file: str, name: str) -> list[str]:
    """Return test files for a function or class of a file: those that name its module,
    and first which name it too, and few other modules; then those that name what
    imports the module, and so on."""
    own = tests_for.module_of(ROOT / file)
    modules, seen = {own}, {own}
    order: list[str] = []

    def place(test: str) -> tuple[bool, bool, int]:
        names = tests_for.names_in(ROOT / test)
        other = Path(file).stem not in Path(test).stem
        return f"{own}.{name}" not in names, other, len(names)

    while modules and len(order) < FILES:
        tests = {test for module in modules for test in naming(module)}
        order += sorted(tests.difference(order), key=place)
        users = {user for module in modules for user in importers().get(module, ())}
        modules = users - seen
        seen |= modules
    if not order and file.startswith("harness/cli/"):
        # A table names the modules of commands as text: nothing imports them.
        order = sorted(naming("mmrepro.cli.app"), key=place)
    return order[:FILES]


def order_of(
    mutant: Mutant, picked: dict[str, set[str]], known: dict[str, Known]
) -> list[list[str]]:
    """Return the tests of one mutant, by file: those near it, then those that run its
    line, of the fastest files first."""
    outermost = mutant.function.partition(".")[0]
    order = [[name] for name in near(mutant.file, outermost)]
    wider = {name: tests for name, tests in picked.items() if [name] not in order}

    def seconds(name: str) -> float:
        return sum(known[name].seconds[test] for test in wider[name])

    return order + [sorted(wider[name]) for name in sorted(wider, key=seconds)]


# ------------------------------------------------------------------ the run


def share(work: list[Any], places: list[Place], do: Any, until: float) -> None:
    """Do each piece of ``work`` at one of the places, as they become free, and show
    what it says; begin none after the time."""
    left: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for piece in work:
        left.put(piece)
    done, errors = 0, []

    def at(place: Place) -> None:
        nonlocal done
        while not errors and time.monotonic() < until:
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


class Trials:
    """Tries mutants by tests that pass without them.

    Attributes:
        failing: tests that fail without a mutant, kept in DIR/failing.json.
    """

    def __init__(self, out: Path, most_s: float) -> None:
        self.file = out / "failing.json"
        self.failing: list[str] = []
        if self.file.is_file():
            self.failing = json.loads(self.file.read_text())
        self.most_s = most_s
        self.lock = threading.Lock()

    def try_one(self, mutant: Mutant, place: Place, order: list[list[str]]) -> Tried:
        """Try a mutant by tests, file for file."""
        diff = difference(mutant)
        if not order:
            return Tried(mutant, False, "no test is near it", diff=diff)
        seconds, stopped = 0.0, False
        parts = [
            (part, tier) for tier in TIERS for part in (order[:FIRST], order[FIRST:])
        ]
        for part, tier in parts:
            tests = [test for file in part for test in file]
            while tests and not stopped:
                left_s = self.most_s - seconds
                outcome = self._with(mutant, place, tests, left_s, tier)
                seconds += outcome.seconds
                stopped = outcome.stopped or seconds > self.most_s
                if outcome.passed:
                    break
                failed = outcome.test or tests[0]
                if self._passes(place, failed):
                    how = "timeout" if outcome.code is None else "killed"
                    return Tried(mutant, True, how, round(seconds, 1), failed, diff)
        how = f"survived {self.most_s:.0f} s of tests" if stopped else "survived"
        return Tried(mutant, False, how, round(seconds, 1), diff=diff)

    def _with(
        self, mutant: Mutant, place: Place, tests: list[str], most_s: float, tier: str
    ) -> Outcome:
        new = mutated(mutant)
        assert new is not None
        place.write(mutant.file, new)
        try:
            options = ("-m", tier)
            return place.run(
                tests, most_s=most_s, without=self.failing, options=options
            )
        finally:
            place.write(mutant.file, source(mutant.file))

    def _passes(self, place: Place, test: str) -> bool:
        """Tell whether a test passes without any mutant; remember where it does not."""
        # What fails before any test, in a conftest or an import, fails there again.
        collected = () if "::" in test else ("--collect-only",)
        outcome = place.run([test], most_s=self.most_s, options=collected)
        if outcome.code == NOT_FOUND:
            outcome = place.run([without_row(test)], most_s=self.most_s)
        if outcome.passed:
            return True
        with self.lock:
            self.failing.append(without_row(test))
            self.file.write_text(json.dumps(self.failing, indent=1))
        print(f"left out, since it fails without: {test}", file=sys.stderr)
        return False


def kept(out: Path) -> dict[str, Tried]:
    """Return what was tried before, by the mutant's id; the last time counts."""
    file = out / "tried.jsonl"
    tried = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        values = json.loads(line)
        mutant = Mutant(**values.pop("mutant"))
        tried[mutant.id] = Tried(mutant, **values)
    return tried


def sample_of(options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that are asked for, in the order in which they are tried."""
    found = [m for file in files(options.only or PRODUCT) for m in mutants_of(file)]
    order = drawn(found, options.seed)
    if options.list or not options.sample:
        return order
    sample: list[Mutant] = []
    for mutant in order:
        if len(sample) == options.sample:
            break
        if mutated(mutant) is not None:
            sample.append(mutant)
    return sample


# ------------------------------------------------------------------ what it says


def table(results: list[Tried], of: Callable[[Tried], str], names: list[str]) -> str:
    """Return a table of what was killed, with a row for each name."""
    lines = ["| | mutants | killed | |", "|---|---|---|---|"]
    for name in [*names, "all"]:
        own = [result for result in results if name in (of(result), "all")]
        killed = sum(result.killed for result in own)
        share_of = f"{100 * killed / len(own):.1f} %" if own else ""
        lines.append(f"| {name} | {len(own)} | {killed} | {share_of} |")
    return "\n".join(lines)


def survivor_line(tried: Tried) -> str:
    """Return the line of a survivor in the list of survivors."""
    mutant = tried.mutant
    where = f"{mutant.file} {mutant.function or 'the module'}"
    changed = [line for line in tried.diff.splitlines() if line[0] in "-+"]
    change = " ".join(" ".join(line.split()) for line in changed)
    return f"{mutant.id} {where}: {change}"


def listed(file: Path) -> dict[str, str]:
    """Return the lines of the list of survivors, by the mutant's id."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return {line.split()[0]: line for line in lines if line and line[0] != "#"}


def listed_sample(file: Path) -> tuple[int, str]:
    """Return how many mutants of which seed the list is about."""
    head = re.match(r"# (\d+) of seed (\d+)", file.read_text())
    if head is None:
        raise SystemExit(f"{file}: the first line is `# NUMBER of seed NUMBER …`")
    return int(head[1]), head[2]


def held(
    file: Path, results: list[Tried], drawn_ids: Collection[str], shrink: bool
) -> bool:
    """Compare with the list of survivors, which only shrinks. Return False where a
    mutant survives that is not in it.

    Args:
        drawn_ids: all mutants of the sample. Where code changed, a listed one may be
            none of it any more.
    """
    known = listed(file)
    new = [r for r in results if not r.killed and r.mutant.id not in known]
    gone = {r.mutant.id: "is killed now" for r in results if r.killed}
    gone |= dict.fromkeys(known.keys() - {*drawn_ids}, "is not drawn any more")
    for result in new:
        print(f"\nsurvives, and is not in {file.name}: {survivor_line(result)}")
    if shrink:
        lines = file.read_text().splitlines(keepends=True)
        left = [line for line in lines if line.split(" ", 1)[0] not in gone]
        file.write_text("".join(left))
    for name, line in known.items():
        if name in gone:
            print(f"\n{gone[name]}{'' if shrink else ' (--shrink)'}: {line}")
    return not new


def show_diffs(results: list[Tried]) -> None:
    """Print each survivor."""
    for result in results:
        if result.killed:
            continue
        mutant = result.mutant
        print(
            f"\n{mutant.id} {mutant.file}:{mutant.line} {mutant.operator} in "
            f"{mutant.function or 'the module'}: {result.how}"
        )
        print(result.diff)


def options_of() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--sample", type=int, default=0, help="so many of them; 0: all")
    add("--seed", default="73", help="draws the sample; `today`: the date")
    add("--seconds", type=float, default=1e9, help="begin no more after so many")
    add(
        "--most",
        type=float,
        default=120.0,
        help="processor time of a mutant's tests, in seconds",
    )
    add("--workers", type=int, default=2)
    add("--memory-gib", type=int, default=6, help="address space of a process")
    add("--only", nargs="+", metavar="PATH", help="files, or patterns of files")
    add("--contexts", action="store_true", help="and all tests that run its line")
    add("--again", action="store_true", help="those that survived in DIR")
    add("--list", action="store_true", help="show the mutants, try none")
    add(
        "--listed",
        action="store_true",
        help=f"the sample of {SURVIVORS.name}: fail where another survives",
    )
    add("--shrink", action="store_true", help="take out of it what is killed now")
    add("--out", type=Path, default=Path("mutants"))
    return parser.parse_args()


def seed_of(word: str) -> int:
    """Return the number of a seed: the day since the epoch for `today`."""
    return int(time.time()) // 86400 if word == "today" else int(word)


def run(options: argparse.Namespace, mutants: list[Mutant]) -> None:
    """Try the mutants that are not in DIR/tried.jsonl yet, or again."""
    until = time.monotonic() + options.seconds
    tried = {} if options.again else kept(options.out)
    left = [mutant for mutant in mutants if mutant.id not in tried]
    if not left:
        return
    places = [
        Place(options.out.resolve() / f"worker-{n}", options.memory_gib)
        for n in range(options.workers)
    ]
    lock = threading.Lock()
    trials = Trials(options.out, options.most)
    known: dict[str, Known] = {}
    tests: Reached = {}
    try:
        if options.contexts:
            known = measured(options.out, [TESTS], places, until)
            tests = reached(options.out, left, known)

        def attempt(mutant: Mutant, place: Place) -> str:
            order = order_of(mutant, tests.get(mutant.id, {}), known)
            result = trials.try_one(mutant, place, order)
            with lock, (options.out / "tried.jsonl").open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            at = f"{mutant.file}:{mutant.line} {mutant.operator}"
            return f"{result.how:<10} {result.seconds:5.1f} s {at}"

        share(left, places, attempt, until)
    finally:
        for place in places:
            place.close()


def main() -> int:
    """Draw, try, and print the survivors and the tables."""
    options = options_of()
    if options.listed:
        options.sample, options.seed = listed_sample(SURVIVORS)
    options.seed = seed_of(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    before = kept(options.out)
    if options.again:
        mutants = [tried.mutant for tried in before.values() if not tried.killed]
    else:
        mutants = sample_of(options)
    if options.list:
        for mutant in sorted(mutants):
            print(
                f"{mutant.id} {mutant.file}:{mutant.line} {mutant.operator} in "
                f"{mutant.function or 'the module'}"
            )
        print(f"{len(mutants)} mutants")
        return 0
    began = time.monotonic()
    run(options, mutants)
    wanted = before if options.again else {mutant.id for mutant in mutants}
    results = [tried for id, tried in kept(options.out).items() if id in wanted]
    results.sort(key=lambda result: result.mutant)
    show_diffs(results)
    by_file = sorted({result.mutant.file for result in results})
    print(f"\n{table(results, lambda result: result.mutant.file, by_file)}")
    areas = [*AREAS, REST]
    print(f"\n{table(results, lambda result: area_of(result.mutant.file), areas)}")
    print(
        f"\nseed {options.seed}: {len(results)} of {len(wanted)} tried, "
        f"{time.monotonic() - began:.0f} s"
    )
    if options.listed:
        # Those that are tried again are a part of the sample: no listed one is missing.
        drawn_ids = listed(SURVIVORS) if options.again else wanted
        if not held(SURVIVORS, results, drawn_ids, options.shrink):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
