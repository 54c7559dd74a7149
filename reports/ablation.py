"""An ablation's reports, from ``ablation.json`` alone: Markdown and self-contained HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mmrepro.base.units import duration
from mmrepro.incident.searches import ABLATION_FILE, SCHEMA_VERSION, Ablation
from mmrepro.reports import ablation_view as view, gfm
from mmrepro.reports.document import document_json, load_document
from mmrepro.reports.html import page
from mmrepro.reports.words import CLAIM_MARKS, CLAIM_WORDS
from mmrepro.reports.writing import replace_file
from mmrepro.text.sanitize import one_line

MARKDOWN_FILE: Final = "ablation.md"
HTML_FILE: Final = "ablation.html"
NUMBERS: Final = "The cause of a run without the symptom is what could still be seen of it."


def load_ablation(directory: Path) -> Ablation:
    """The ablation kept in ``directory``. Raises BadIncident and says why."""
    return load_document(directory, ABLATION_FILE, Ablation, "ablation", SCHEMA_VERSION)


def write_ablation(ablation: Ablation, folder: Path) -> None:
    """``ablation.json``, ``.md`` and ``.html``, each whole or not at all."""
    for name, text in (
        (ABLATION_FILE, document_json(ablation)),
        (MARKDOWN_FILE, render_ablation_markdown(ablation)),
        (HTML_FILE, render_ablation_html(ablation)),
    ):
        replace_file(folder / name, text)


def render_ablation_html(ablation: Ablation) -> str:
    return page(
        "ablation.html.j2",
        ablation=ablation,
        view=view,
        head=view.headline(ablation),
        numbers=NUMBERS,
        claim_words=CLAIM_WORDS,
        claim_marks=CLAIM_MARKS,
        href=cell_href,
    )


def render_ablation_markdown(ablation: Ablation) -> str:
    sections = [
        ("", _head(ablation)),
        ("Which setting is the cause", _table(ablation)),
        ("Smallest cures", _cures(ablation)),
        ("The report's hypotheses", _hypotheses(ablation)),
        ("What this does not establish", _limits(ablation)),
        ("Every cell", _cells(ablation)),
        ("Stand-ins", _stand_ins(ablation)),
        ("Set-up", gfm.table(["", ""], [[a, gfm.cell(b)] for a, b in view.setup(ablation)])),
    ]
    parts = [f"## {title}\n\n{body}" if title else body for title, body in sections if body]
    return "\n\n".join(parts) + "\n"


def _head(ablation: Ablation) -> str:
    head = view.headline(ablation)
    parts = [f"# {gfm.text(view.title(ablation), 300)}"]
    if ablation.failure:
        parts.append(f"> [!WARNING]\n> Partial: {gfm.text(ablation.failure, 600)}")
    label = f"**{head.label.upper()}**"
    parts.append(f"{label} · {gfm.text(ablation.explanation)}" if ablation.explanation else label)
    parts.append(gfm.prose(ablation.scenario.title))
    parts.append("Repeat it:\n\n" + gfm.fence(one_line(ablation.command, 4000), "sh", 1, 4000))
    return "\n\n".join(parts)


def _table(ablation: Ablation) -> str:
    head = ["factor", "failing setting", "flipped to", "outcome", "symptom", "cause", "class"]
    rows = [
        [
            gfm.cell(row.factor),
            gfm.code(row.failing, 200) or "–",
            gfm.code(row.setting, 200) or "–",
            gfm.cell(row.outcome),
            gfm.cell(row.symptom),
            gfm.cell(row.cause),
            f"**{gfm.cell(row.factor_class)}**",
        ]
        for row in view.rows(ablation)
    ]
    meanings = [f"- **{word}**: {gfm.text(meaning)}." for word, meaning in view.classes(ablation)]
    reasons = [
        f"- {gfm.text(f.name)}: {gfm.text(f.why)}."
        + (f" Said of it: {gfm.text(f.claim)}." if f.claim else "")
        for f in ablation.factors
        if f.why
    ]
    note = f"Each factor is flipped alone. {NUMBERS}"
    parts = [gfm.table(head, rows), note, "\n".join(meanings)]
    if reasons:
        parts.append(gfm.details("Why each class", "\n".join(reasons)))
    return "\n\n".join(filter(None, parts))


def _cures(ablation: Ablation) -> str:
    rows = [
        [gfm.cell(view.cure_words(c)), gfm.code(c.settings, 400), gfm.cell(c.why)]
        for c in ablation.cures
    ]
    return gfm.table(["flip", "setting", "seen"], rows) if rows else ""


def _hypotheses(ablation: Ablation) -> str:
    rows = [
        [
            gfm.cell(c.text),
            gfm.cell(c.source),
            f"{CLAIM_MARKS[c.status]} {CLAIM_WORDS[c.status]}",
            gfm.cell(c.observed),
        ]
        for c in ablation.hypotheses
    ]
    return gfm.table(["hypothesis", "source", "", "observed"], rows) if rows else ""


def _limits(ablation: Ablation) -> str:
    return "\n".join(f"- {gfm.text(line)}." for line in ablation.limits)


def _cells(ablation: Ablation) -> str:
    rows = []
    for cell in ablation.cells:
        for run in cell.runs:
            where = gfm.code(run.incident_dir, 300) if run.incident_dir else "–"
            rows.append(
                [
                    gfm.cell(view.flips_words(cell)),
                    gfm.cell(view.STATE_WORDS[cell.state]),
                    gfm.cell(run.error or view.outcome_word(run)),
                    gfm.cell(run.symptom_observed),
                    gfm.cell(f"{view.CAUSE_WORDS[run.cause]}: {run.cause_observed}"),
                    duration(run.seconds),
                    where,
                ]
            )
    if not rows:
        return ""
    head = ["flipped", "cell", "run", "symptom", "cause", "took", "incident"]
    return gfm.details(f"{len(rows)} runs", gfm.table(head, rows))


def _stand_ins(ablation: Ablation) -> str:
    rows = [
        [gfm.cell(s.name), gfm.cell(s.replaces), gfm.cell(s.why), gfm.cell(where)]
        for s, where in view.stand_ins(ablation)
    ]
    return gfm.table(["stand-in", "replaces", "why", "in"], rows) if rows else ""


def cell_href(folder: str) -> str:
    """Relative address of a run's report; empty unless it plainly lies below the ablation."""
    import re

    if not re.fullmatch(r"cells/[A-Za-z0-9+._/-]{1,400}", folder) or ".." in folder.split("/"):
        return ""
    return f"{folder}/report.html"
