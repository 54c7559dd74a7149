"""What a device-side assert leaves in a log, held against the rules that are to recognise it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmrepro.accept.judging import broken_off, late, untried
from mmrepro.accept.steps import Ended, Judged
from mmrepro.incident.acceptance import Row, Status
from mmrepro.scenarios.chunked_mm_prefill import report as rules
from mmrepro.text.sanitize import one_line

TITLE = "two device-side asserts on purpose, each in a child"
OWN = "scatter"
"""The refusal that the scenario is about: more ones in the mask than rows. Any other is not."""


def judge_refusals(ended: Ended) -> Judged:
    """Of ``reproducers/device_assert.py``."""
    if (ending := late(TITLE, ended) or untried(TITLE, ended)) is not None:
        return ending
    refusals = ended.document.get("refusals")
    if not isinstance(refusals, list) or not refusals:
        return broken_off(TITLE, ended.words or f"no refusal; it ended with {ended.exit_code}")
    return Judged([row for one in refusals for row in _rows(one)])


def _rows(one: Mapping[str, Any]) -> Iterator[Row]:
    cause, output = str(one["cause"]), str(one["output"])
    error = one_line(str(one["error"]), 90)
    ended = bool(one["error"] and one["afterwards"] and one["exit_code"])
    yield _row(
        f"{cause}: the device refuses it, and CUDA is of no use to that process afterwards",
        "an error, another one at the next use, and an exit code that is not 0",
        "CUDA: cudaErrorAssert",
        f"{one['raised_by'] or 'nothing'} raised {error or 'nothing'}; exit code "
        f"{one['exit_code']}; " + ("unusable" if one["afterwards"] else "usable") + " afterwards",
        held=ended,
    )
    assertion = next((line for line in output.splitlines() if "Assertion `" in line), "")
    seen = one_line(assertion.rpartition("/")[2], 150) or "no assertion in the output"
    yield _row(
        f"{cause}: the rule for the mask that does not fit "
        + ("recognises it" if cause == OWN else "does not take it for that"),
        f"{'a' if cause == OWN else 'no'} line matches",
        f"chunked-mm-prefill, {rules.MISMATCH}",
        seen,
        held=bool(assertion) and _matches(rules.MISMATCH, output) is (cause == OWN),
    )
    yield _row(
        f"{cause}: the rule for exceptions finds the one that ended the process",
        "a line matches",
        "chunked-mm-prefill, exception",
        error or "no error",
        held=_matches("exception", output),
    )


def _matches(pattern: str, output: str) -> bool:
    found = re.compile(rules.LOG_PATTERNS[pattern])
    return any(found.search(line) for line in output.splitlines())


def _row(asked: str, expected: str, source: str, seen: str, *, held: bool) -> Row:
    status = Status.PASSED if held else Status.FAILED
    return Row(asked=asked, expected=expected, source=source, seen=seen, status=status)
