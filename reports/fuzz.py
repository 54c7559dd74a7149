"""A fuzzing session's reports, from its ``fuzz.json`` alone: Markdown and HTML.

What it found has reports of its own, below: each is a finding of a replay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mmrepro.incident.replay import FUZZ_FILE, FUZZ_VERSION, Fuzz
from mmrepro.machine.files import is_file
from mmrepro.reports import fuzz_view as fuzzing, gfm, replay_view as view
from mmrepro.reports.document import document_json, load_document
from mmrepro.reports.html import page
from mmrepro.reports.replay import document, finding_rows, labelled, lines, opening, stand_ins
from mmrepro.reports.writing import replace_file

FUZZ_MARKDOWN: Final = "fuzz.md"
FUZZ_HTML: Final = "fuzz.html"


def load_fuzz(directory: Path) -> Fuzz:
    """The session kept in ``directory``. Raises BadIncident and says why."""
    return load_document(directory, FUZZ_FILE, Fuzz, "fuzz", FUZZ_VERSION)


def is_fuzz(place: Path) -> bool:
    """A session's folder, or its ``fuzz.json``."""
    return place.name == FUZZ_FILE or is_file(place / FUZZ_FILE)


def write_fuzz(fuzz: Fuzz, directory: Path) -> None:
    """``fuzz.json``, ``.md`` and ``.html``, each file whole or not at all."""
    replace_file(directory / FUZZ_FILE, document_json(fuzz))
    replace_file(directory / FUZZ_MARKDOWN, fuzz_markdown(fuzz))
    replace_file(directory / FUZZ_HTML, fuzz_html(fuzz))


def fuzz_html(fuzz: Fuzz) -> str:
    return page("fuzz.html.j2", fuzz=fuzz, fuzzing=fuzzing, view=view, head=fuzzing.headline(fuzz))


def fuzz_markdown(fuzz: Fuzz) -> str:
    sections = [
        ("", opening(fuzzing.title(fuzz), fuzzing.headline(fuzz), fuzz.failure)),
        ("", f"{gfm.paragraph(fuzzing.amount(fuzz))}. {fuzzing.ABSENT}"),
        ("What was found", finding_rows(fuzzing.rows(fuzz))),
        ("Seen once, not again", _once(fuzz)),
        ("What was learnt of the server", _learnt(fuzz)),
        ("Episodes", _episodes(fuzz)),
        ("Seen besides", lines(fuzzing.besides(fuzz))),
        ("What could not be judged", lines(fuzz.unseen)),
        ("Limits", lines(fuzz.limits)),
        ("Stand-ins", stand_ins(fuzz.stand_ins)),
        ("Repeat it", gfm.fence(fuzz.command, "sh", 4, 4000)),
        ("Set-up", labelled(fuzzing.setup(fuzz))),
    ]
    return document(sections)


def _once(fuzz: Fuzz) -> str:
    rows = [
        [
            str(one.episode),
            one.sighting.finding_class.value,
            gfm.cell(one.sighting.said),
            gfm.cell(one.sighting.expected),
        ]
        for one in fuzz.once
    ]
    return gfm.table(["episode", "class", "observed", "expected"], rows) if rows else ""


def _learnt(fuzz: Fuzz) -> str:
    rows = [[gfm.cell(cell) for cell in row] for row in fuzzing.learnt(fuzz)]
    return gfm.table(["limit", "tokens", "told by"], rows) if rows else ""


def _episodes(fuzz: Fuzz) -> str:
    rows = [
        [gfm.cell(cell) if cell else "" for cell in fuzzing.cells(episode)]
        for episode in fuzz.episodes
    ]
    if not rows:
        return ""
    return f"{gfm.table(fuzzing.EPISODE_COLUMNS, rows)}\n\n{fuzzing.EPISODES_NOTE}."
