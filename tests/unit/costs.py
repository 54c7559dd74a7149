"""What tests cost: a pytest plugin that measures processor time, of a test's children
too.

Wall time says how busy the machine was. `--costs FILE` writes a line for each test and
each shared fixture, the dearest first; `--most-seconds S` fails the run where a test
took more than that.

``python tests/unit/costs.py FILE...`` makes the tiers of such files: it writes
slow_tests.txt, whose tests get the marker `slow`. What no file measured stays in its
tier."""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

PROPERTY = "processor seconds"
SHARED = "shared fixtures"
FAST = "not slow and not nightly"
SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")
ROW_S, ROWS_S, FIXTURE_S = 0.08, 0.8, 1.5
"""What a row of a test may take, all of its rows together, and a shared fixture, to be
in the tier in which people wait. Less than the nightly check's half second, since
machines differ; all that is left came to less than two minutes of two processors."""


def add_options(parser: pytest.Parser) -> None:
    """Add the plugin's two options to pytest's."""
    group = parser.getgroup("costs", "processor time per test")
    group.addoption(
        "--costs", metavar="FILE", help="write each test's processor time to FILE"
    )
    group.addoption(
        "--most-seconds",
        metavar="S",
        type=float,
        help="fail where a test took more than S seconds of processor time",
    )


def register(config: pytest.Config) -> None:
    """Start measuring, where one of the options asks for it."""
    if config.getoption("costs") or config.getoption("most_seconds"):
        config.pluginmanager.register(Costs(config), "costs")


def spent() -> float:
    """Return the processor time of this process and of its children that ended."""
    usages = [
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    ]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Costs:
    """Measures tests in the process that runs them, and gathers what all measured."""

    def __init__(self, config: pytest.Config) -> None:
        self.file = config.getoption("costs")
        self.most: float | None = config.getoption("most_seconds")
        self.tests: dict[str, float] = {}
        self.fixtures: dict[str, float] = {}
        self.shared: list[tuple[str, float]] = []

    # ------------------------------------------------ where tests run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        self.began = spent()
        self.shared = []
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: Any, request: Any
    ) -> Generator[None, Any, Any]:
        # A fixture of a wider scope would be charged to the test that happens to be
        # the first.
        if fixturedef.scope == "function":
            return (yield)
        began = spent()
        inner = sum(seconds for _name, seconds in self.shared)
        made = yield
        nested = sum(seconds for _name, seconds in self.shared) - inner
        name = f"{fixturedef.baseid}::{fixturedef.argname}"
        self.shared.append((name, spent() - began - nested))
        return made

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        ended = yield
        others = sum(seconds for _name, seconds in self.shared)
        item.user_properties.append((PROPERTY, spent() - self.began - others))
        item.user_properties.append((SHARED, self.shared))
        return ended

    # ------------------------------------------------ where reports arrive

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        properties = dict(report.user_properties)
        if PROPERTY not in properties:
            return
        self.tests[report.nodeid] = float(properties[PROPERTY])  # type: ignore[arg-type]
        for name, seconds in properties[SHARED]:  # type: ignore[attr-defined]
            self.fixtures[name] = self.fixtures.get(name, 0.0) + seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        if self.file:
            Path(self.file).write_text("".join(self.lines()))
        if self.too_dear() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self.tests.values()) + sum(self.fixtures.values())
        terminalreporter.write_line(f"{total:.0f} s of processor time in tests")
        for name, seconds in self.too_dear():
            terminalreporter.write_line(
                f"TOO DEAR {name}: {seconds:.2f} s of processor time, at most "
                f"{self.most:g}: make it cheaper, or mark it slow"
            )

    def lines(self) -> Iterator[str]:
        """Yield a line of JSON for each test and fixture, the dearest first."""
        for kind, seconds_of in (("test", self.tests), ("fixture", self.fixtures)):
            for name, seconds in dearest_first(seconds_of):
                entry = {"kind": kind, "name": name, "seconds": round(seconds, 4)}
                yield json.dumps(entry) + "\n"

    def too_dear(self) -> list[tuple[str, float]]:
        """Return the tests that took more than they may."""
        if self.most is None:
            return []
        return [
            (name, seconds)
            for name, seconds in dearest_first(self.tests)
            if seconds > self.most
        ]


def dearest_first(seconds_of: dict[str, float]) -> list[tuple[str, float]]:
    """Return names with their seconds, sorted."""
    return sorted(seconds_of.items(), key=lambda entry: -entry[1])


# ------------------------------------------------------------------ the tiers


def slow_tests() -> frozenset[str]:
    """Return what is outside of the tier in which people wait.

    Tests without their rows, and shared fixtures, for all tests that use them."""
    lines = SLOW_TESTS.read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Give the marker `slow` to what slow_tests.txt lists."""
    slow = slow_tests()
    for item in items:
        test = function_of(item.nodeid)
        file = test.partition("::")[0]
        fixtures = {f"{file}::{name}" for name in getattr(item, "fixturenames", ())}
        if test in slow or fixtures & slow:
            item.add_marker("slow")


def is_left_out(
    config: pytest.Config, slow: frozenset[str], test: str, function: object
) -> bool:
    """Return whether no item is made of a test, since `-m` leaves it out.

    A quarter of all items is of the other tiers. A test that the command line names is
    collected, so that pytest says why it does not run."""
    if config.option.markexpr != FAST or any("::" in word for word in config.args):
        return False
    if not isinstance(function, FunctionType):
        return False
    marks = {mark.name for mark in getattr(function, "pytestmark", ())}
    return test in slow or "slow" in marks or "nightly" in marks


def function_of(test: str) -> str:
    """Return a test's name without its row."""
    return test.partition("[")[0]


def write_tiers(files: list[str]) -> None:
    """Write slow_tests.txt as `--costs` measured, and print what each tier takes."""
    rows: dict[str, list[float]] = defaultdict(list)
    fixtures: dict[str, float] = {}
    for file in files:
        for line in Path(file).read_text().splitlines():
            entry = json.loads(line)
            if entry["kind"] == "test":
                rows[function_of(entry["name"])].append(entry["seconds"])
            else:
                fixtures[entry["name"]] = entry["seconds"]

    slow = set(slow_tests() - rows.keys() - fixtures.keys())
    slow.update(name for name, seconds in fixtures.items() if seconds > FIXTURE_S)
    for name, seconds in rows.items():
        if max(seconds) > ROW_S or sum(seconds) > ROWS_S:
            slow.add(name)

    heading = (
        f"# Tests of which a row takes more than {ROW_S:g} s of processor time or all "
        f"rows more than {ROWS_S:g} s,\n# and shared fixtures of more than "
        f"{FIXTURE_S:g} s. Written by tests/unit/costs.py.\n"
    )
    SLOW_TESTS.write_text(heading + "".join(f"{name}\n" for name in sorted(slow)))
    for tier, names in (("fast", rows.keys() - slow), ("slow", rows.keys() & slow)):
        tests = sum(len(rows[name]) for name in names)
        seconds = sum(sum(rows[name]) for name in names)
        print(f"{tier}: {tests} tests of {len(names)} functions, {seconds:.0f} s")


if __name__ == "__main__":
    write_tiers(sys.argv[1:])
