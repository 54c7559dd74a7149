"""A night as JUnit XML, for CI: a suite a scenario, a case a cell; never greener than the night.

* not as expected, or flaky: a failure
* lost or never run: an error; the engine was not tested
* inconclusive, in quarantine, or without an expectation: skipped, with the reason
* as expected: passes

All runs of a cell are in its output.
"""

from __future__ import annotations

from typing import Any, Final

from mmrepro.base.units import duration
from mmrepro.history.states import State
from mmrepro.incident.ledger import Attempt
from mmrepro.reports.night_square import Square, outcome_words
from mmrepro.reports.night_view import NightView
from mmrepro.reports.night_words import STATE_WORDS, Standing
from mmrepro.text.sanitize import clip, plain

JUNIT_FILE: Final = "junit.xml"


def render_night_junit(night: NightView) -> str:
    from junitparser import JUnitXml

    document: Any = JUnitXml("mmrepro")
    suites: dict[str, list[Square]] = {}
    for square in night.squares:
        suites.setdefault(square.cell.scenario, []).append(square)
    for scenario, squares in suites.items():
        document.add_testsuite(_suite(night, scenario, squares))
    document.update_statistics()
    content = document.tostring()
    return content.decode() if isinstance(content, bytes) else str(content)


def _suite(night: NightView, scenario: str, squares: list[Square]) -> Any:
    from junitparser import TestSuite

    record = night.runs.night
    suite: Any = TestSuite(_text(f"mmrepro.{scenario}", 300))
    suite.timestamp = record.created.wall.strftime("%Y-%m-%dT%H:%M:%S")
    for name, value in (
        ("night", record.id),
        ("state", str(record.state)),
        ("machine", record.machine),
        ("command", record.command),
        ("mmrepro", record.mmrepro_version),
    ):
        suite.add_property(name, _text(value))
    for square in squares:
        suite.add_testcase(_case(square))
    suite.update_statistics()
    return suite


def _case(square: Square) -> Any:
    from junitparser import TestCase

    cell = square.cell
    name = f"{cell.engine} {square.column.label} {cell.device}: {cell.row}"
    # Of two that are cut alike or differ in what is not shown, CI would keep one.
    case: Any = TestCase(
        f"{_text(name, 300)} [{cell.id[-8:]}]",
        _text(f"mmrepro.{cell.scenario}.{cell.engine}", 300),
        square.seconds,
    )
    result = _result(square)
    if result is not None:
        case.result = [result]
    case.system_out = _text("\n".join(_output(square)), 20_000)
    return case


def _output(square: Square) -> list[str]:
    facts = [f"cell: {square.cell.id}", f"came out: {square.words}; {square.expectation}"]
    if square.fidelity is not None:
        facts.append(f"fidelity: {square.fidelity}")
    return facts + ([_run(a) for a in square.attempts] or ["no run was made"])


def _result(square: Square) -> Any:
    """What turns the case red or leaves it out; None: it passes."""
    from junitparser import Error, Failure, Skipped

    told = _text(f"{square.words}; {square.expectation}", 400)
    why = _text(square.why)
    if square.standing is Standing.QUARANTINED and square.quarantine is not None:
        return Skipped(_text(f"in quarantine: {square.quarantine.reason}; {told}", 600))
    if square.standing in (Standing.SURPRISE, Standing.FLAKY):
        found: Any = Failure(told, str(square.state))
    elif square.state in (State.LOST, State.MISSING):
        found = Error(_text(f"{STATE_WORDS[square.state]}: {square.why}", 400), str(square.state))
    elif square.standing is Standing.UNTESTED:
        return Skipped(_text(f"inconclusive: {square.why}", 600))
    elif square.standing is Standing.UNJUDGED:
        return Skipped(_text(f"{square.words}, and no outcome was expected", 400))
    else:
        return None
    found.text = why
    return found


def _run(attempt: Attempt) -> str:
    parts = [
        f"run {attempt.index} ({attempt.role}): {outcome_words(attempt)}",
        f"{duration(attempt.seconds)}",
        attempt.explanation or attempt.error,
        f"key {attempt.key[:14]}" if attempt.key else "",
        attempt.incident,
    ]
    return "; ".join(filter(None, parts))


def _text(value: str, limit: int = 4000) -> str:
    return clip(plain(value), limit)
