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
from mmrepro.base.text import one_line
from mmrepro.base.units import size
from mmrepro.engines.folders import facts, folders, table
from mmrepro.failure.documents import Incident, LoadedFinding, Public
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
from mmrepro.traffic.case import SCRIPT_FILE

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
class IssueForm:
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


def _form_of(engine: str) -> IssueForm:
    """The form of ``engine``'s repository, as its folder has it; a plain one where it
    has none."""
    row = table(engine, _FORM_FILE)
    if not row:
        return IssueForm("", _USUAL)
    parts = tuple((heading, which) for heading, which in row["parts"])
    return IssueForm(row["title"], parts, tuple(row["ticks"]))


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

    def part(self, name: str, form: IssueForm) -> str:
        """The text below one heading of a form."""
        if name == "ticks":
            return "\n".join(f"- [ ] {text}" for text in form.ticks)
        if name == "everything":
            steps = f"**To reproduce it**\n\n{self.reproduction}"
            log = f"**What the log says**\n\n{self.traceback}" if self.traceback else ""
            return _joined(self.description, steps, log)
        # A form without a field for the log has it below the description.
        if name == "description" and "traceback" not in dict(form.parts).values():
            return _joined(self.description, self.traceback)
        return str(getattr(self, name))


def _joined(*parts: str) -> str:
    """Paragraphs; empty ones are left out."""
    return "\n\n".join(filter(None, parts))


def public_issue(loaded: LoadedFinding, checked: str = "") -> str:
    """Fill in the form, of a finding that may go out as it is.

    Args:
        checked: a sentence on where its script was run.

    Raises:
        UsageError: a picture of the case is missing.
    """
    replay = loaded.replay
    finding = loaded.finding
    script = ""
    if loaded.case and loaded.case.operations:
        script = replayed.script_of(loaded)
    title = finding.finding_class.words
    if finding.log_lines:
        title = f"{title}: {one_line(finding.log_lines[0], 120)}"
    environment = _environment(
        replay.server.label,
        replay.host,
        replay.wheel,
        replay.packages,
        replay.settings,
    )
    report = Report(
        engine=replay.server.engine,
        title=words.capital(title),
        description=_described(loaded),
        reproduction="\n\n".join(filter(None, [_steps(loaded, script), checked])),
        environment=f"{environment}\n\n- {replay.fidelity.words}",
        traceback=_trace(finding.stack, finding.log_lines),
        script=script,
    )
    return filled(report)


def incident_issue(incident: Incident) -> str:
    """An incident of ``run`` or ``diagnose`` in the form."""
    redactor = Public()
    shown = redactor.redact_model(incident)
    frames = []
    if shown.key_stack:
        for frame in shown.key_stack.frames:
            frames.append(f"{frame.function} ({frame.file}:{frame.line})")

    # The stack stands below the log's lines.
    card: list[b.Block] = []
    for block in runs.compose(shown).card:
        if not isinstance(block, b.Stack):
            card.append(block)

    card.append(b.p(f"Fidelity {shown.fidelity}: {shown.fidelity.words}."))
    rows = [(row.check, row.observed, row.healthy) for row in shown.symptoms]
    card += b.table("check | observed | healthy", rows)

    commands = [public_command(shown.engine.command)]
    # A diagnosis is of a server that nobody else can ask again.
    if shown.diagnosis is None:
        commands.append(shown.command)
    engine = shown.engine
    environment = _environment(
        runs.engine_name(shown),
        shown.host,
        engine.wheel,
        engine.packages,
        engine.settings,
    )
    report = Report(
        engine=engine.name,
        title=one_line(runs.title(shown), 200),
        description=_markdown(card),
        reproduction=gfm.fence("\n".join(filter(None, commands)), "sh", 10, 4000),
        environment=environment,
        traceback=_trace(frames, [line.text for line in shown.log_lines]),
    )
    return redactor.redact(filled(report))


def public_command(command: list[str]) -> str:
    """Write the command of a server for a reader: without the places where things lie
    on this machine."""
    if not command:
        return ""
    shown = ["python3"]
    for word in command[1:]:
        if word.startswith(("/", "~")):
            name = word.rstrip("/").rpartition("/")[2]
            shown.append(f"./{name}")
        else:
            shown.append(word)

    return shlex.join(shown)


def filled(report: Report) -> str:
    """The form's headings with the report below them, cut to what an issue may have."""
    form = _form_of(report.engine)
    name = facts(report.engine).title if form.title else ""
    title = one_line(report.title, 200).replace("--", "-")
    head = (
        f"<!-- Title: {form.title}{title}\n"
        f"     One heading a field of {name or 'the'} bug-report form; look at it "
        "before you send it, search for it, and tick what is true. -->"
    )
    parts = [head]
    for heading, which in form.parts:
        parts.append(f"### {heading}\n\n{report.part(which, form)}")

    text = "\n\n".join(parts) + "\n"
    if len(text) <= MAX_CHARS:
        return text
    # The script is the longest part, and a file of its own anyway.
    if report.script:
        attached = "# see the attached file"
        report.reproduction = report.reproduction.replace(report.script, attached)
        report.script = ""
        return filled(report)

    return text[: MAX_CHARS - 20] + "\n[cut: too long]\n"


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
    relevant = []
    for package in packages:
        if package.lower().replace("_", "-").startswith(libraries):
            relevant.append(f"[pip3] {package}")

    if relevant:
        lines += ["", "Versions of relevant libraries:", *relevant]

    given = []
    for setting in settings:
        # A path says where things lie on this machine.
        if "/" not in setting.value:
            value = f"={setting.value}" if setting.value else ""
            given.append(f"{setting.name}{value}")

    if given:
        lines += ["", "Set for the server:", *given]
    summary = "Collected by mmrepro, with the fields of the engine's own script"
    return gfm.details(summary, gfm.fence("\n".join(lines), "text", 200, 300))


def _markdown(blocks: Sequence[b.Block]) -> str:
    return "\n\n".join(render_blocks(blocks))


def _described(loaded: LoadedFinding) -> str:
    finding = loaded.finding
    shrunk = _shrunk(finding.requests, finding.requests_before, shrunk=finding.shrunk)
    rate = findings.rate_words(finding.rate)
    blocks: list[b.Block] = [
        b.p(b.strong("Observed:"), f" {words.sentence(finding.observation)}"),
        b.p(b.strong("Expected:"), f" {finding.expectation}."),
        b.p(f"Observed in {rate} on fresh servers. {shrunk}"),
    ]
    sequence = replayed.sequence_of(loaded)
    if sequence is not None:
        blocks.append(b.Fence(drawing(sequence)))
    if finding.known:
        name = b.code(finding.known_name)
        blocks.append(b.p("It fits the known failure ", name, f": {finding.known_why}"))

    if finding.needed:
        blocks.append(b.Details("Why each request is needed", replayed.needed(loaded)))
    if loaded.limits:
        blocks.append(b.p("What this does not show:"))
        blocks += b.bullets(loaded.limits)
    return _markdown(blocks)


def _shrunk(left: int, before: int, *, shrunk: bool) -> str:
    if left == before:
        return ""
    least = "each request left matters" if shrunk else "fewer may do"
    return f"Shrunk from {before} requests of recorded traffic to {left}; {least}."


def _steps(loaded: LoadedFinding, script: str) -> str:
    parts = []
    typed = replayed.steps_of(loaded)
    if typed:
        parts.append(gfm.fence("\n".join(typed), "sh", 12, 4000))
    if script and len(script) <= _SCRIPT_CHARS:
        # More ticks than any run of them within.
        runs_of_ticks = re.findall(r"`+", script)
        longest = max(map(len, runs_of_ticks), default=0)
        ticks = "`" * max(3, longest + 1)
        inside = f"{ticks}python\n{script}{ticks}"
        parts.append(gfm.details(f"<code>{SCRIPT_FILE}</code>", inside))
    elif script:
        parts.append(
            f"`{SCRIPT_FILE}` is too long for an issue: attach the file that "
            "`mmrepro bundle` makes of the replay."
        )

    return "\n\n".join(parts)


def _trace(frames: list[str], lines: list[str]) -> str:
    """The log's lines, and the stack below them; empty without either."""
    text = list(lines[:20])
    if frames:
        text += ["", "Stack, innermost first:", *frames[:20]]
    if not text:
        return ""
    return gfm.fence("\n".join(text).strip("\n"), "text", 44, 300)
