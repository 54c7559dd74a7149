"""From a folder alone: Markdown, HTML, JSON, JUnit and the end screen, of every kind of
document.

A kind composes blocks once; four renderers do the rest. What a kind needs is imported
when one of its documents is read: ``mmrepro show`` prints blocks without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrepro.failure.documents import Incident


def load(place: Path | str) -> Incident:
    """The incident in a folder, a file or a bundle. Raises BadIncident."""
    from mmrepro.reports.incident import load as read

    return read(Path(place))


def write_reports(place: Path) -> list[Path]:
    """Make the Markdown and HTML of a folder again; returns their paths.

    Raises:
        BadIncident: it holds no document that can be read.
        UnwritableOutput: a file could not be written; one that was there before is
            untouched.
    """
    from mmrepro.reports.documents import write_reports as write

    return write(place)
