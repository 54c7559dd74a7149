"""A finding, or an incident, as a bug report in the engine's own form: redacted, ready
to paste.

The forms are those of the engines' repositories (``.github/ISSUE_TEMPLATE``) as looked
up in November 2026: vLLM's ``400-bug-report.yml``, SGLang's and LMDeploy's
``1-bug-report.yml``. A form has a field for each heading. What only a person can say
(that nobody has reported it yet) stays unticked."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mmrepro.base.records import HostFacts, Setting, WheelFacts
from mmrepro.base.text.sanitize import one_line
from mmrepro.base.units import size
from mmrepro.engines.folders import facts, folders, table
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.finding import LoadedFinding
from mmrepro.failure.documents.public import public
from mmrepro.failure.documents.published import Public
from mmrepro.reports import (
    blocks as b,
    finding as replayed,
    findings,
    gfm,
    incident as runs,
    words,
)
from mmrepro.reports.markdown import render_blocks
from mmrepro.reports.replay_sequence import drawing
from mmrepro.traffic.case.model import SCRIPT_FILE

MAX_CHARS: Final = 65_536
"""Of an issue's text on GitHub."""
_SCRIPT_CHARS: Final = 44_000
_LIBRARIES: Final = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "triton",
    "nvidia-",
    "flashinfer",
    "xformers",
    "cachetools",
    "pillow",
    "pydantic",
    "fastapi",
    "uvicorn",
    "huggingface",
    "safetensors",
    "outlines",
    "xgrammar",
    "pyzmq",
)


@dataclass(frozen=True)
class _IssueForm:
    """The headings of an engine's form, and what stands below each."""

    title: str
    parts: tuple[tuple[str, str], ...]
    """Heading, and which of ``Report``'s texts."""
    ticks: tuple[str, ...] = ()


_USUAL: Final = (
    ("Describe the bug", "description"),
    ("Reproduction", "reproduction"),
    ("Environment", "environment"),
)
_FORM_FILE: Final = "issue_form.toml"


def _form_of(engine: str) -> _IssueForm:
    """The form of ``engine``'s repository, as its folder has it; a plain one where it
    has none."""
    row = table(engine, _FORM_FILE)
    if not row:
        return _IssueForm("", _USUAL)
    parts = tuple((heading, which) for heading, which in row["parts"])
    return _IssueForm(row["title"], parts, tuple(row["ticks"]))


def _own_packages() -> tuple[str, ...]:
    """How the names of all engines' own packages begin."""
    names: list[str] = []
    for engine in folders():
        names += table(engine, _FORM_FILE).get("packages", ())

    return tuple(names)


@dataclass
class Report:
    """What a form is filled with, in Markdown."""

    engine: str
    title: str
    description: str
    reproduction: str
    environment: str
    traceback: str = ""
    script: str = field(default="", repr=False)

    def part(self, name: str, form: _IssueForm) -> str:
        if name == "ticks":
            return "\n".join(f"- [ ] {text}" for text in form.ticks)
        if name == "everything":
            log = f"**What the log says**\n\n{self.traceback}" if self.traceback else ""
            steps = f"**To reproduce it**\n\n{self.reproduction}"
            return "\n\n".join(filter(None, (self.description, steps, log)))
        if name == "description" and "traceback" not in dict(form.parts).values():
            return "\n\n".join(filter(None, (self.description, self.traceback)))
        return str(getattr(self, name))


def finding_issue(loaded: LoadedFinding) -> str:
    """The finding with other words than those that were played, unless those are random
    already.

    Raises:
        UsageError: a picture of the case is missing.
    """
    with public(loaded) as shown:
        return public_issue(shown)


def public_issue(loaded: LoadedFinding) -> str:
    """As :func:`finding_issue`, of a finding that may go out as it is."""
    replay, finding = loaded.replay, loaded.finding
    script = (
        replayed.script_of(loaded) if loaded.case and loaded.case.operations else ""
    )
    title = f"{finding.finding_class.words} ({finding.finding_class})"
    made = (
        replay.server.label,
        replay.host,
        replay.wheel,
        replay.packages,
        replay.settings,
    )
    report = Report(
        replay.server.engine,
        words.capital(title),
        _described(loaded),
        _steps(loaded, script),
        f"{_environment(*made)}\n\n- {replay.fidelity.words}",
        _trace(finding.stack, finding.log_lines),
        script,
    )
    return filled(report)


def incident_issue(incident: Incident) -> str:
    """An incident of ``run`` or ``diagnose`` in the form."""
    redactor = Public()
    shown = redactor.redact_model(incident)
    lines = [one.text for one in shown.log_lines]
    frames = [
        f"{frame.function} ({frame.file}:{frame.line})"
        for frame in (shown.key_stack.frames if shown.key_stack else [])
    ]
    # The stack stands below the log's lines.
    card = [
        block for block in runs.compose(shown).card if not isinstance(block, b.Stack)
    ]
    card.append(b.p(f"Fidelity {shown.fidelity}: {shown.fidelity.words}."))
    rows = [(row.check, row.observed, row.healthy) for row in shown.symptoms]
    command = public_command(shown.engine.command)
    steps = [f"{shown.command}"] if shown.diagnosis is None else []
    engine = shown.engine
    made = (
        runs.engine_name(shown),
        shown.host,
        engine.wheel,
        engine.packages,
        engine.settings,
    )
    report = Report(
        engine.name,
        one_line(runs.title(shown), 200),
        _markdown([*card, *b.table("check | observed | healthy", rows)]),
        gfm.fence("\n".join(filter(None, [command, *steps])), "sh", 10, 4000),
        _environment(*made),
        _trace(frames, lines),
    )
    return redactor.redact(filled(report))


def public_command(command: list[str]) -> str:
    """Of a server, for a reader: without the places where things lie on this
    machine."""
    shown = [
        f"./{word.rstrip('/').rpartition('/')[2]}" if re.match(r"[/~]", word) else word
        for word in command[1:]
    ]
    return shlex.join(["python3", *shown]) if command else ""


def filled(report: Report) -> str:
    """The form's headings with the report below them, cut to what an issue may have."""
    form = _form_of(report.engine)
    name = facts(report.engine).title if form.title else ""
    head = [
        f"<!-- Title: {form.title}{one_line(report.title, 200).replace('--', '-')}",
        f"     One heading a field of {name or 'the'} bug-report form; look at it "
        "before you send it, search for it, and tick what is true. -->",
    ]
    parts = [
        f"### {heading}\n\n{report.part(which, form)}" for heading, which in form.parts
    ]
    text = "\n\n".join(["\n".join(head), *parts]) + "\n"
    if len(text) > MAX_CHARS and report.script:
        report.reproduction = report.reproduction.replace(
            report.script, "# see the attached file"
        )
        report.script = ""
        return filled(report)

    return (
        text
        if len(text) <= MAX_CHARS
        else text[: MAX_CHARS - 20] + "\n[cut: too long]\n"
    )


def _environment(
    engine: str,
    host: HostFacts,
    wheel: WheelFacts | None,
    packages: list[str],
    settings: list[Setting],
) -> str:
    """What the engines' own collectors print, as far as mmrepro knows it."""
    rows = [
        ("Engine", engine),
        ("Wheel", f"{wheel.filename} ({wheel.origin})" if wheel else ""),
        ("OS", f"{host.os}, kernel {host.kernel}"),
        ("CPU", f"{host.cpu}, {host.cores} cores"),
        ("Memory", size(host.memory_bytes)),
        ("GPU", runs.gpu_words(host)),
        ("NVIDIA driver", runs.driver_words(host)),
        ("Python of the harness", host.python),
    ]
    lines = [f"{label:<22}: {value}" for label, value in rows if value]
    libraries = (*_LIBRARIES, *_own_packages())
    wanted = [p for p in packages if p.lower().replace("_", "-").startswith(libraries)]
    if wanted:
        lines += [
            "",
            "Versions of relevant libraries:",
            *(f"[pip3] {p}" for p in wanted),
        ]

    given = [
        f"{s.name}{'=' + s.value if s.value else ''}"
        for s in settings
        if "/" not in s.value
    ]
    if given:
        lines += ["", "Set for the server:", *given]
    summary = "Collected by mmrepro, with the fields of the engine's own script"
    return gfm.details(summary, gfm.fence("\n".join(lines), "text", 200, 300))


def _markdown(blocks: Sequence[b.Block]) -> str:
    return "\n\n".join(render_blocks(blocks))


def _described(loaded: LoadedFinding) -> str:
    finding = loaded.finding
    blocks: list[b.Block] = [
        b.p(b.strong("Observed:"), f" {words.sentence(finding.observation)}"),
        b.p(b.strong("Expected:"), f" {finding.expectation}."),
        b.p(
            f"Observed in {findings.rate_words(finding.rate)} on fresh servers. "
            f"{_shrunk(finding.requests, finding.requests_before, shrunk=finding.shrunk)}"
        ),
    ]
    if (sequence := replayed.sequence_of(loaded)) is not None:
        blocks.append(b.Fence(drawing(sequence)))
    if finding.known:
        name = b.code(finding.known_name)
        blocks.append(b.p("It fits the known failure ", name, f": {finding.known_why}"))

    if finding.needed:
        blocks.append(b.Details("Why each request is needed", replayed.needed(loaded)))
    if loaded.limits:
        blocks += [b.p("What this does not show:"), *b.bullets(loaded.limits)]
    return _markdown(blocks)


def _shrunk(left: int, before: int, *, shrunk: bool) -> str:
    if left == before:
        return ""
    least = "each request left matters" if shrunk else "fewer may do"
    return f"Shrunk from {before} requests of recorded traffic to {left}; {least}."


def _steps(loaded: LoadedFinding, script: str) -> str:
    typed = replayed.steps_of(loaded)
    parts = [gfm.fence("\n".join(typed), "sh", 12, 4000)] if typed else []
    if script:
        if len(script) <= _SCRIPT_CHARS:
            longest = max((len(run) for run in re.findall(r"`+", script)), default=0)
            ticks = "`" * max(3, longest + 1)
            inside = f"{ticks}python\n{script}{ticks}"
            parts.append(gfm.details(f"<code>{SCRIPT_FILE}</code>", inside))
        else:
            parts.append(
                f"`{SCRIPT_FILE}` is too long for an issue: attach the file that "
                "`mmrepro bundle` makes of the replay."
            )

    return "\n\n".join(parts)


def _trace(frames: list[str], lines: list[str]) -> str:
    text = [
        *lines[:20],
        *(["", "Stack, innermost first:", *frames[:20]] if frames else []),
    ]
    return gfm.fence("\n".join(text).strip("\n"), "text", 44, 300) if text else ""
