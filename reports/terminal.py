"""What a person sees at the end of ``mmrepro run``. Plain lines when it is not a terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from mmrepro.incident import ClaimStatus, Incident, KeyStack
from mmrepro.reports import view, words
from mmrepro.reports.lines import TONES, TRUTHS, Printer
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import Console

_CLAIMS: Final = {
    ClaimStatus.CONFIRMED: "green",
    ClaimStatus.REFUTED: "red",
    ClaimStatus.NOT_TESTED: "dim",
}
_FRAMES: Final = 8


def print_summary(incident: Incident, console: Console) -> None:
    """Verdict, symptoms, key stack, conditions, claims, where the incident is, what to type next.

    Colour, ``NO_COLOR`` and width are the console's. Nothing of the incident is read as markup
    and no control character gets through.
    """
    out = Printer(console)
    _verdict(incident, out)
    _symptoms(incident, out)
    _stack(incident.key_stack, out)
    _conditions(incident, out)
    _claims(incident, out)
    _next(incident, out)


def _verdict(incident: Incident, out: Printer) -> None:
    head = view.headline(incident)
    out.line()
    out.line(
        (head.label.upper(), TONES[head.tone]),
        f" ({head.expectation})  ",
        incident.scenario.name,
        f" on {view.engine_name(incident)}, fidelity {incident.fidelity}",
        cut=False,
    )
    note = view.partial_note(incident)
    if note:
        out.line((note, "yellow"), cut=False)
        for detail in incident.failure_detail[-8:]:
            out.line("  ", (detail, "dim"))
    if incident.verdict is not None:
        out.line(incident.verdict.explanation, cut=False)


def _symptoms(incident: Incident, out: Printer) -> None:
    if not incident.symptoms:
        return
    out.heading("Symptom (healthy in the gate → observed)")
    rows = incident.symptoms[:20]
    width = min(max(len(one_line(r.check, 44)) for r in rows), 44)
    for row in rows:
        mark, style = {True: ("✘", "red"), False: ("✔", "green"), None: ("?", "yellow")}[
            row.abnormal
        ]
        check = one_line(row.check, 44).ljust(width)
        out.line("  ", (mark, style), " ", check + "  ", row.healthy, " → ", (row.observed, style))


def _stack(stack: KeyStack | None, out: Printer) -> None:
    if stack is None or not stack.frames:
        return
    state = ("active" if stack.active else "idle") + ("+gil" if stack.owns_gil else "")
    out.heading(f"The stack that matters ({stack.seen} of {stack.samples} samples)")
    out.line("  ", stack.process, f" · {state} · ", (stack.thread, "bold"))
    for number, frame in enumerate(stack.frames[:_FRAMES]):
        style = "bold" if number == 0 else ""
        out.line("    ", (frame.function, style), " ", (f"({frame.file}:{frame.line})", "dim"))
    if len(stack.frames) > _FRAMES:
        out.line(("    … ", "dim"), (f"{len(stack.frames) - _FRAMES} more frames", "dim"))


def _conditions(incident: Incident, out: Printer) -> None:
    if incident.verdict is None or not incident.verdict.conditions:
        return
    out.heading(f"Conditions: {view.condition_count(incident)}")
    for c in incident.verdict.conditions[:40]:
        out.line(
            "  ", (words.TRUTH_MARKS[c.truth], TRUTHS[c.truth]), f" {words.part_words(c)} {c.id}: ",
            c.statement + ": ",
            (c.observed, "dim"),
        )  # fmt: skip


def _claims(incident: Incident, out: Printer) -> None:
    if not incident.claims:
        return
    out.heading("Claims of the original report")
    for claim in incident.claims[:30]:
        mark, style = words.CLAIM_MARKS[claim.status], _CLAIMS[claim.status]
        out.line("  ", (f"{mark} {words.CLAIM_WORDS[claim.status]}", style), ": ", claim.text)


def _next(incident: Incident, out: Printer) -> None:
    if incident.left_behind:
        out.heading("Left behind after the stop")
        for item in incident.left_behind[:10]:
            out.line("  ", (item, "yellow"))
    out.heading("Incident")
    folder = incident.incident_dir
    if folder:
        out.line("  ", folder, cut=False)
        out.line("  to read it:    ", f"mmrepro report {_quoted(folder)} --format md", cut=False)
    out.line("  to repeat it:  ", incident.command, cut=False)
    if incident.server is not None:
        out.line(
            f"  still running: {incident.server.url} (to end it: kill {incident.server.pid})",
            cut=False,
        )


def _quoted(folder: str) -> str:
    """For a shell; a leading ``~/`` stays outside the quotes, or it would not expand."""
    if folder.startswith("~/"):
        return "~/" + shlex.quote(folder[2:])
    return shlex.quote(folder)
