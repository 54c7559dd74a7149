"""Suites of test cases as JUnit XML, for CI. Each kind decides what its test cases are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mmrepro.text.sanitize import clip, plain

How = Literal["passed", "failed", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """One test case. ``kind``: the type of what turned it red; ``text``: its detail."""

    group: str
    name: str
    how: How = "passed"
    message: str = ""
    text: str = ""
    kind: str = ""
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    name: str
    when: datetime
    cases: Sequence[Case]
    properties: Sequence[tuple[str, str]] = ()


def render_junit(suites: Sequence[Suite]) -> str:
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    results = {"failed": Failure, "error": Error, "skipped": Skipped}
    document: Any = JUnitXml("mmrepro")
    for suite in suites:
        made: Any = TestSuite(_text(suite.name, 300))
        made.timestamp = suite.when.isoformat(timespec="seconds")
        for name, value in suite.properties:
            made.add_property(name, _text(value))
        for case in suite.cases:
            one: Any = TestCase(_text(case.name, 300), _text(case.group, 300), case.seconds)
            if case.how != "passed":
                result: Any = results[case.how](_text(case.message), case.kind or None)
                if case.text:
                    result.text = _text(case.text)
                one.result = [result]
            if case.output:
                one.system_out = _text(case.output, 20_000)
            made.add_testcase(one)
        made.update_statistics()
        document.add_testsuite(made)
    document.update_statistics()
    content = document.tostring()
    return content.decode() if isinstance(content, bytes) else str(content)


def _text(value: str, limit: int = 4000) -> str:
    return clip(plain(value), limit)
