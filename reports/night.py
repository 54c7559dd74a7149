"""The files of a night, from the ledger alone: Markdown, JUnit XML, a dashboard."""

from __future__ import annotations

from pathlib import Path

from mmrepro.history.ledger import History, NightRuns
from mmrepro.history.quarantine import Quarantine
from mmrepro.reports.dashboard import HTML_FILE, linked, render_dashboard
from mmrepro.reports.documents import replace_file
from mmrepro.reports.night_junit import JUNIT_FILE, render_night_junit
from mmrepro.reports.night_markdown import MARKDOWN_FILE, render_night_markdown
from mmrepro.reports.night_view import night_view as night_view


def write_night(
    history: History, night: NightRuns, folder: Path, quarantine: Quarantine
) -> list[Path]:
    """Write ``night.md``, ``junit.xml`` and ``dashboard.html``, each whole or not at all.

    Args:
        folder: the ledger's, so that the dashboard's squares link to the reports below it; in any
            other folder those squares are no links.

    Raises:
        UnwritableOutput: a file could not be written; one that was there before is untouched.
    """
    shown = night_view(history, night, quarantine)
    texts = {
        MARKDOWN_FILE: render_night_markdown(shown),
        JUNIT_FILE: render_night_junit(shown),
        HTML_FILE: render_dashboard(shown, linked(folder)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        replace_file(folder / name, text)
    return [folder / name for name in texts]
