"""A diagnosis for people: on the terminal, and as parts of the Markdown report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mmrepro.base import units
from mmrepro.incident.diagnosis import (
    CLASS_WORDS,
    FIT_WORDS,
    STATE_WORDS,
    Certainty,
    Diagnosis,
    Fit,
    Match,
    NamedClass,
    ServerState,
)
from mmrepro.reports import gfm, words
from mmrepro.reports.lines import TONES, TRUTHS, Printer
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import Console

_FITS: Final = {
    Fit.MATCH: "bold red",
    Fit.LIKELY: "red",
    Fit.SYMPTOM_ONLY: "yellow",
    Fit.EXPOSED: "yellow",
    Fit.NOT_THIS: "dim",
}
_CERTAINTIES: Final = {
    Certainty.CERTAIN: "bold red",
    Certainty.LIKELY: "red",
    Certainty.POSSIBLE: "yellow",
}
_FRAMES: Final = 8
_SHOWN: Final = frozenset({Fit.MATCH, Fit.LIKELY, Fit.SYMPTOM_ONLY})


def tone(diagnosis: Diagnosis) -> str:
    """good, bad or unsure: the colour of the answer."""
    return {0: "good", 1: "bad"}.get(diagnosis.exit_code, "unsure")


def answer(diagnosis: Diagnosis) -> str:
    """``Frozen in Python code: ghost-key-eviction``: the badge."""
    words = STATE_WORDS[diagnosis.state].partition(":")[0]
    known = diagnosis.found
    if known and diagnosis.state is ServerState.HEALTHY:
        words = "small requests work, a known failure is there"
    return words[:1].upper() + words[1:] + (f": {known[0].scenario}" if known else "")


def effect_sentence(diagnosis: Diagnosis) -> str:
    """What the look did to the server, as measured."""
    effect = diagnosis.effect
    paused = (
        f"paused it for at most {units.duration(effect.paused_s)}"
        if effect.paused_s
        else "never paused it"
    )
    return (
        f"In {units.duration(effect.seconds)} mmrepro sent {len(effect.requests)} HTTP requests "
        f"({effect.inferences} of them a completion), took {effect.stack_samples} stack samples, "
        f"{paused}, and used {units.duration(effect.cpu_s)} of CPU and "
        f"{units.size(effect.peak_rss_bytes)} of memory."
    )


def target_line(diagnosis: Diagnosis) -> str:
    target = diagnosis.target
    engine = f"{target.engine or 'unknown engine'} {target.release}".strip()
    where = {"local": "on this machine", "container": "in a container", "remote": "elsewhere"}
    count = len(target.processes)
    seen = f", {count} processes" if count else ""
    return f"{target.url}: {engine}, {where[target.place]}{seen}"


# ---------------------------------------------------------------- terminal


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    out = Printer(console)
    assessment, style = diagnosis.assessment, TONES[tone(diagnosis)]
    out.line()
    out.line((answer(diagnosis).upper(), style), f"  {target_line(diagnosis)}", cut=False)
    out.line(assessment.sentence, cut=False)
    if diagnosis.since:
        out.line("Since: ", diagnosis.since, cut=False)
    out.heading("Seen")
    for text in assessment.why:
        out.line("  ", text, cut=False)
    if assessment.frames:
        out.heading(f"The stack ({assessment.seen} of {assessment.samples} samples)")
        out.line("  ", assessment.process, " · ", (assessment.thread, "bold"))
        for number, frame in enumerate(assessment.frames[:_FRAMES]):
            weight = "bold" if number == 0 else ""
            out.line("    ", (frame.function, weight), (f" ({frame.file}:{frame.line})", "dim"))
    _print_classes(diagnosis, out)
    _print_matches(diagnosis, out)
    if diagnosis.unseen:
        out.heading("Could not be seen")
        for text in diagnosis.unseen:
            out.line("  ", (text, "yellow"), cut=False)
    advice = [*assessment.advice, *(r for m in diagnosis.found[:1] for r in m.remedies)]
    if advice and diagnosis.state is not ServerState.HEALTHY:
        out.heading("What to do")
        for text in advice:
            out.line("  ", text, cut=False)
    out.line()
    out.line((effect_sentence(diagnosis), "dim"), cut=False)
    if diagnosis.incident_dir:
        out.line(f"Incident: {diagnosis.incident_dir}/report.html", cut=False)


def class_title(one: NamedClass) -> str:
    """``certain: steps stopped``: how sure it is, and the class in words."""
    return f"{one.certainty.value}: {CLASS_WORDS[one.name].partition(':')[0]}"


def _print_classes(diagnosis: Diagnosis, out: Printer) -> None:
    if not diagnosis.classes:
        return
    out.heading("Class of failure")
    for one in diagnosis.classes:
        style = _CERTAINTIES[one.certainty]
        out.line("  ", (one.name.value, style), f"  {one.certainty.value}: {one.sentence}",
                 cut=False)  # fmt: skip
        for text in one.why:
            out.line("      ", (text, "dim"), cut=False)
        for text in one.advice:
            out.line("    ", text, cut=False)
        for reference in one.references:
            out.line("    ", (reference, "dim"))


def _print_matches(diagnosis: Diagnosis, out: Printer) -> None:
    out.heading("Known failures")
    for match in diagnosis.matches:
        if match.fit not in _SHOWN:
            continue
        out.line("  ", (_name(match), _FITS[match.fit]), f"  {match.title}")
        out.line("    ", FIT_WORDS[match.fit].partition(":")[0], ": ", match.why, cut=False)
        for c in match.conditions:
            part = c.part if c.required else f"{c.part}, supporting"
            out.line(
                "      ", (words.TRUTH_MARKS[c.truth], TRUTHS[c.truth]), f" {part}: ",
                c.statement + ": ", (c.observed, "dim"),
            )  # fmt: skip
        for reference in match.references[:3]:
            out.line("    ", (reference, "dim"))
    exposed = [m for m in diagnosis.matches if m.fit is Fit.EXPOSED]
    for match in exposed:
        out.line("  ", (_name(match), _FITS[match.fit]), "  can happen here: ",
                 (match.exposed_because, "dim"))  # fmt: skip
    rest = sum(m.fit is Fit.NOT_THIS for m in diagnosis.matches)
    if rest:
        out.line("  ", (f"{rest} others: not this", "dim"))


def _name(match: Match) -> str:
    return f"{match.scenario} ({match.variant})" if match.variant else match.scenario


# ---------------------------------------------------------------- Markdown


def assessment_markdown(diagnosis: Diagnosis) -> str:
    assessment = diagnosis.assessment
    rows = [f"- {gfm.text(text, 600)}" for text in assessment.why[:40]]
    parts = ["\n".join(rows)]
    if diagnosis.since:
        parts.insert(0, f"Since: {gfm.text(diagnosis.since)}.")
    if assessment.advice:
        parts.append("What to do:")
        parts.append("\n".join(f"- {gfm.text(text)}" for text in assessment.advice[:12]))
    return "\n\n".join(part for part in parts if part)


def classes_markdown(diagnosis: Diagnosis) -> str:
    parts = []
    for one in diagnosis.classes[:12]:
        parts.append(f"{gfm.code(one.name.value)}, {class_title(one)}. {gfm.text(one.sentence)}")
        rows = [f"- {gfm.text(text, 600)}" for text in one.why[:12]]
        rows += [f"- to do: {gfm.text(text)}" for text in one.advice]
        rows += [f"- see {gfm.text(text)}" for text in one.references]
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def matches_markdown(diagnosis: Diagnosis) -> str:
    rows = [
        [
            gfm.code(_name(m)),
            m.fit.value,
            f"{m.met}, {m.not_met}, {m.unknown}",
            gfm.cell(m.why),
        ]
        for m in diagnosis.matches[:60]
    ]
    parts = [gfm.table(["known failure", "fit", "met, not met, unknown", "why"], rows)]
    for match in [m for m in diagnosis.matches if m.fit in _SHOWN][:3]:
        conditions = [
            [
                f"{words.TRUTH_MARKS[c.truth]} {words.TRUTH_WORDS[c.truth]}",
                c.part if c.required else f"{c.part} (supporting)",
                f"{gfm.code(c.id, 80)} {gfm.cell(c.statement)}",
                gfm.cell(c.observed),
                ", ".join(gfm.code(f, 160) for f in c.evidence[:4]) or "–",
            ]
            for c in match.conditions[:60]
        ]
        parts.append(f"{gfm.code(_name(match))}: {gfm.text(match.why)}")
        head = ["", "part", "condition", "observed", "in evidence/"]
        parts.append(gfm.table(head, conditions))
    return "\n\n".join(parts)


def limits_markdown(diagnosis: Diagnosis) -> str:
    parts = [gfm.text(effect_sentence(diagnosis))]
    if diagnosis.unseen:
        parts.append("Could not be seen:")
        parts.append("\n".join(f"- {gfm.text(text, 600)}" for text in diagnosis.unseen[:20]))
    return "\n\n".join(parts)


def target_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Label and value, for the environment's table."""
    target = diagnosis.target
    rows = [
        ("server", target.url),
        ("found by", target.found_by),
        ("engine", f"{target.engine} {target.release}".strip()),
        ("recognised by", "; ".join(target.engine_because)),
        ("release from", target.release_from),
        ("processes", ", ".join(f"{p.role} {p.pid}" for p in target.processes[:24])),
        ("log", ", ".join(one_line(log, 200) for log in target.logs)),
        ("asked for model", target.model),
    ]
    return [(label, value) for label, value in rows if value]
