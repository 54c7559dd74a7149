"""Writing the reports into the incident directory, each file whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mmrepro.errors import UnwritableOutput
from mmrepro.incident import Incident
from mmrepro.machine.files import write_file
from mmrepro.reports.markdown import render_markdown
from mmrepro.reports.reading import load

MARKDOWN_FILE: Final = "report.md"
HTML_FILE: Final = "report.html"


def render_json(incident: Incident) -> str:
    """The incident itself, as one JSON document that ends with a newline."""
    return incident.model_dump_json(indent=2) + "\n"


def write_reports(directory: Path | str) -> list[Path]:
    """Make ``report.md`` and ``report.html`` from ``incident.json`` alone; returns their paths.

    Raises:
        BadIncident: the directory holds no readable incident.
        UnwritableOutput: a report could not be written; one that was there before is untouched.
    """
    from mmrepro.reports.html import render_html

    incident = load(directory)
    folder = Path(directory)
    folder = folder if folder.is_dir() else folder.parent
    written = []
    for name, render in ((MARKDOWN_FILE, render_markdown), (HTML_FILE, render_html)):
        path = folder / name
        replace_file(path, render(incident))
        written.append(path)
    return written


def replace_file(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all. Raises UnwritableOutput."""
    try:
        write_file(path, text)
    except OSError as error:
        raise UnwritableOutput(
            f"{path} cannot be written: {error.strerror or error}",
            hint="free some space or check the permissions, then: mmrepro report "
            + str(path.parent),
        ) from error
