"""An incident in each format, and on a terminal."""

from __future__ import annotations

import io
from functools import partial

from mmrepro.incident import Incident
from mmrepro.reports import documents
from mmrepro.reports.incident import KIND, compose
from mmrepro.reports.terminal import print_page
from rich.console import Console

markdown = partial(documents.render, KIND, format="md")
html = partial(documents.render, KIND, format="html")
junit = partial(documents.render, KIND, format="junit")
json = partial(documents.render, KIND, format="json")


def terminal(
    incident: Incident,
    place: str = "",
    *,
    full: bool = False,
    quiet: bool = False,
    **options: object,
) -> str:
    out = io.StringIO()
    console = Console(file=out, **options)  # type: ignore[arg-type]
    print_page(compose(incident), console, place, full=full, quiet=quiet)
    return out.getvalue()
