"""A bisection's reports, from ``bisection.json`` alone: Markdown to paste upstream, and HTML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mmrepro.base.units import duration
from mmrepro.incident.searches import BISECTION_FILE, BISECTION_VERSION, Bisection, Side
from mmrepro.reports import bisection_view as view, gfm
from mmrepro.reports.bisection_picture import picture
from mmrepro.reports.document import document_json, load_document
from mmrepro.reports.html import page
from mmrepro.reports.writing import replace_file

MARKDOWN_FILE: Final = "bisection.md"
HTML_FILE: Final = "bisection.html"
CHANCES: Final = 12


def load_bisection(directory: Path) -> Bisection:
    """The bisection kept in ``directory``. Raises BadIncident and says why."""
    return load_document(directory, BISECTION_FILE, Bisection, "bisection", BISECTION_VERSION)


def write_bisection(bisection: Bisection, folder: Path) -> None:
    """``bisection.json``, ``.md`` and ``.html``, each whole or not at all."""
    for name, text in (
        (BISECTION_FILE, document_json(bisection)),
        (MARKDOWN_FILE, render_bisection_markdown(bisection)),
        (HTML_FILE, render_bisection_html(bisection)),
    ):
        replace_file(folder / name, text)


def render_bisection_html(bisection: Bisection) -> str:
    return page(
        "bisection.html.j2",
        bisection=bisection,
        view=view,
        head=view.headline(bisection),
        picture=picture(bisection),
        meanings=view.MEANINGS,
        href=run_href,
        chances=CHANCES,
    )


def render_bisection_markdown(bisection: Bisection) -> str:
    sections = [
        ("", _head(bisection)),
        *((f"Where it was {name}", _side(bisection, s)) for name, s in view.sides(bisection)),
        ("Every point that was run", _points(bisection)),
        ("Runs next to a boundary", _runs(bisection)),
        ("What this does not establish", _lines(bisection.limits)),
        ("Stand-ins", _stand_ins(bisection)),
        ("Repeat it", gfm.fence("\n".join(view.commands(bisection)), "sh", 20, 4000)),
        ("Set-up", gfm.table(["", ""], [[a, gfm.cell(b)] for a, b in view.setup(bisection)])),
    ]
    parts = [f"## {title}\n\n{body}" if title else body for title, body in sections if body]
    return "\n\n".join(parts) + "\n"


def _head(bisection: Bisection) -> str:
    parts = [f"# {gfm.text(view.title(bisection), 300)}"]
    if bisection.failure:
        parts.append(f"> [!WARNING]\n> Partial: {gfm.text(bisection.failure, 600)}")
    parts.append(gfm.prose(f"{bisection.scenario.title}."))
    answers = [
        f"- **{gfm.text(view.answer(bisection, direction, side))}** ({view.certainty(side)})"
        for direction, side in view.sides(bisection)
    ]
    if answers:
        parts.append("\n".join(answers))
    return "\n\n".join(parts)


def _side(bisection: Bisection, side: Side) -> str:
    parts = [f"{gfm.paragraph(side.explanation)}."]
    facts = [f"{view.certainty(side)}; {side.runs} runs", *side.notes]
    if side.other_between:
        facts.append(f"the different failure gives way between {' and '.join(side.other_between)}")
    if side.returned:
        facts.append(f"bad again: {', '.join(view.short(bisection, n) for n in side.returned)}")
    parts.append(_lines(facts))
    if side.posterior:
        rows = [
            [gfm.cell(view.short(bisection, c.last_bad)), f"{c.probability:.1%}"]
            for c in side.posterior[:CHANCES]
        ]
        rate = f", where it is, in {side.rate:.0%} of the runs" if side.rate is not None else ""
        parts.append(f"Runs contradict each other; as estimated the failure shows{rate}.")
        parts.append(gfm.table(["last bad", "probability"], rows))
    return "\n\n".join(filter(None, parts))


def _points(bisection: Bisection) -> str:
    head = [bisection.by, "uploaded", "declared", "verdict", "runs", "took", "why"]
    rows = [
        [
            gfm.code(row.name, 120),
            row.uploaded,
            row.declared,
            f"{row.mark} **{row.verdict}**",
            gfm.cell(row.runs),
            row.took,
            gfm.cell(row.why),
        ]
        for row in view.rows(bisection)
    ]
    return f"{gfm.table(head, rows)}\n\n{gfm.paragraph(view.MEANINGS)}." if rows else ""


def _runs(bisection: Bisection) -> str:
    rows = [
        [
            gfm.code(view.point_name(point), 120),
            gfm.cell(view.attempt_word(run)),
            gfm.cell(run.error or run.explanation),
            duration(run.seconds),
            gfm.code(run.incident, 300) or "–",
        ]
        for point in view.boundary_points(bisection)
        for run in point.runs
    ]
    head = [bisection.by, "outcome", "seen", "took", "incident"]
    return gfm.table(head, rows) if rows else ""


def _lines(texts: list[str]) -> str:
    return "\n".join(f"- {gfm.text(text)}." for text in texts)


def _stand_ins(bisection: Bisection) -> str:
    rows = [[gfm.cell(s.name), gfm.cell(s.replaces), gfm.cell(s.why)] for s in bisection.stand_ins]
    return gfm.table(["stand-in", "replaces", "why"], rows) if rows else ""


def run_href(folder: str) -> str:
    """Relative address of a run's report; empty unless it plainly lies below the bisection."""
    if not re.fullmatch(r"incidents/[A-Za-z0-9+._/-]{1,400}", folder) or ".." in folder.split("/"):
        return ""
    return f"{folder}/report.html"
