"""What a scenario of a finding looks for, so that a run of it is the finding again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mmrepro.case.model import Case
from mmrepro.incident.replay import Finding, FindingClass

INWARD = " > "
"""Between the functions of a hang's bucket, outermost first."""


@dataclass(frozen=True)
class Signature:
    """What of a class of findings a scenario looks for, as Python.

    Attributes:
        pattern: of the engine's log; "": none.
        observed: what one answer shows, where that is the symptom.
    """

    symptoms: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    pattern: str = ""
    observed: dict[str, str] | None = None
    healthy: str = ""


def signature_of(finding: Finding, case: Case) -> Signature:
    """What a run of the case must show to be this finding again."""
    pattern = exception_pattern(finding.log_lines)
    logged = ('in_log("the log holds the exception that the replay saw", "exception")',)
    failing = [op for op in finding.operations if op in {one.id for one in case.operations}]
    if finding.finding_class is FindingClass.HANG:
        path = hang_path(finding.bucket)
        stands = (f"stands_in({', '.join(map(repr, path))})",) if path else ()
        seen = ("some_request_unanswered()", "new_request_unanswered()")
        return Signature(seen, stands or (logged if pattern else ()), "" if stands else pattern)
    if finding.finding_class is FindingClass.DEATH:
        return Signature(("server_gone()",), logged if pattern else (), pattern)
    if finding.finding_class is FindingClass.FAILING:
        return Signature(("every_request_fails()",), logged if pattern else (), pattern)
    if finding.finding_class is FindingClass.SERVER_ERROR:
        labels = ", ".join(map(repr, failing[:3]))
        fails = (f"fails_in_server({labels})",) if labels else ()
        healthy = f", answered({labels})" if labels else ""
        return Signature(fails, logged if pattern else (), pattern, healthy=healthy)
    return Signature(observed=_observed(finding, failing or [case.operations[-1].id]))


def _observed(finding: Finding, failing: list[str]) -> dict[str, str]:
    """What is seen of the first answer that shows it."""
    for one in finding.expectations:
        if one.cached_at_most is not None:
            return {
                "statement": f"{one.operation} takes more than {one.cached_at_most} tokens from "
                "the cache",
                "label": one.operation,
                "test": f"(sent.cached_tokens or 0) > {one.cached_at_most}",
                "told": "{sent.cached_tokens} tokens from the cache",
            }
        if one.text is not None:
            return {
                "statement": f"{one.operation} is answered otherwise than it should be",
                "label": one.operation,
                "test": f"sent.answered and sent.text != {one.text!r}",
                "told": "{sent.reply} {sent.text[:80]!r}",
            }
    return {
        "statement": "TODO: what of the answer shows it",
        "label": failing[0],
        "test": "False",
        "told": "{sent.reply} {sent.text[:80]!r}",
    }


def hang_path(bucket: str) -> list[str]:
    """The functions in which a hang of this bucket stands, outermost first; []: none are known."""
    where = bucket.rpartition("/")[2]
    return where.split(INWARD) if where else []


def exception_pattern(lines: list[str]) -> str:
    """A pattern of the log's line: the exception and its words, up to the first thing that differs
    from run to run (a number, a hash, something quoted)."""
    named = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt))\b(.*)")
    for line in lines:
        if found := named.search(line):
            words = re.split(r"[\d'\"`/]|0x", found[2], maxsplit=1)[0][:60].rstrip()
            return re.escape(found[1] + words).replace("\\ ", " ")
    return ""
