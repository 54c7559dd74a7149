"""A scenario file of a finding of ``mmrepro replay``: its case is the trigger."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.errors import UsageError

if TYPE_CHECKING:
    from mmrepro.case.model import Case
    from mmrepro.incident.replay import Finding
    from mmrepro.reports.finding import LoadedFinding

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


def scenario_from(
    place: Path, name: str, out: Path, *, force: bool
) -> tuple[Path, Path, LoadedFinding]:
    """Write the scenario file and the folder with its case beside it.

    Raises:
        BadIncident: ``place`` is no finding.
        UsageError: it has no traffic that a scenario could send, or a file is there.
        UnwritableOutput: they cannot be written.
    """
    from mmrepro.case.files import read_contents, write_case
    from mmrepro.errors import UnwritableOutput
    from mmrepro.machine.files import refuse_other_kinds, write_file
    from mmrepro.reports.finding import load

    found = load(place)
    if found.case is None or not found.case.operations:
        raise UsageError(
            f"{place} has no requests that a scenario could send: {found.finding.finding_class}.",
            hint=f"mmrepro report {place}",
        )
    module = name.replace("-", "_")
    file, folder = out / f"{module}.py", out / f"{module}_case"
    if not force and (there := [str(path) for path in (file, folder) if path.exists()]):
        raise UsageError(
            f"{' and '.join(there)} {'exist' if len(there) > 1 else 'exists'} already.",
            hint=f"mmrepro new {name} --from {place} --force, or --out DIR",
        )
    text = rendered(found.finding, found.case, name)
    contents = read_contents(found.case, found.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_other_kinds(file)
        write_case(found.case, folder, contents)
        write_file(file, text)
    except OSError as error:
        raise UnwritableOutput(
            f"{out} cannot be written: {error.strerror or error}.",
            hint="mmrepro new … --from … --out DIR",
        ) from error
    return file, folder, found


def rendered(finding: Finding, case: Case, name: str) -> str:
    """The text of the scenario file."""
    from mmrepro import scenario
    from mmrepro.cli.new import templates
    from mmrepro.models.tiny import TINY
    from mmrepro.reports import findings

    signature = signature_of(finding, case)
    refused = [op.id for op in case.operations if finding.observed.get(op.id, "")[:1] == "4"]
    until = next(
        (op.id for op in case.operations if op.id in finding.operations), case.operations[-1].id
    )
    module = name.replace("-", "_")
    calls = {_called(one) for one in (*signature.symptoms, *signature.causes)}
    own = case.server.model in TINY
    model = type(TINY[case.server.model if own else "qwen2-vl"]).__name__
    names = {"Drive", "Scenario", "answered", "case_arrived", "play_case", "trigger_ended"}
    names |= {*calls, model}
    if signature.observed:
        names |= {"Finding", "Requests", "symptom"}
    if not signature.causes:
        names |= {"Finding", "Logs", "cause"}
    ordered = sorted(names, key=lambda name: (not name[0].isupper(), name))
    text: str = (
        templates()
        .get_template("scenario_from.py.j2")
        .render(
            title=_docstring(f"{findings.finding_title(finding)}."),
            said=_docstring(
                f"{findings.observation(finding)}. Expected: {findings.expected(finding)}"
            ),
            why=_docstring(_why(finding)),
            module=module,
            folder=f"{module}_case",
            cls="".join(word.capitalize() for word in name.split("-")),
            name=name,
            engine=case.server.engine,
            release=case.server.release,
            model=model,
            foreign="" if own else "FOLDER",
            max_model_len=case.server.max_model_len,
            server=repr(shlex.join(case.server.args)),
            env=repr(case.server.env) if case.server.env else "",
            patterns=repr({"exception": signature.pattern}) if signature.pattern else "",
            precondition=f"case_arrived({tuple(refused)!r}, {until!r})",
            symptoms=signature.symptoms,
            causes=signature.causes,
            observed=signature.observed,
            healthy=signature.healthy,
            imports=[name for name in ordered if name in vars(scenario)],
            more=[name for name in ordered if name not in vars(scenario)],
        )
    )
    return text


def signature_of(finding: Finding, case: Case) -> Signature:
    """What a run of the case must show to be this finding again."""
    from mmrepro.incident.replay import FindingClass

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


def _called(expression: str) -> str:
    return expression.partition("(")[0]


def _why(finding: Finding) -> str:
    if finding.known:
        return f"as the known scenario {finding.known}: mmrepro show {finding.known}"
    return f"unknown. In the replay it was told apart by {finding.bucket}"


def _docstring(text: str) -> str:
    """On one line that no docstring ends at."""
    from mmrepro.text.sanitize import one_line

    return one_line(text, 300).replace("\\", "/").replace('"', "'")
