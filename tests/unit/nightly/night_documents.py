"""The documents that `.ci/nightly/nightly.py` reads, made by mmrepro."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from made_nights import BEGAN
from mmrepro.history.concerns import Quarantine
from mmrepro.history.ledger import History
from mmrepro.history.nightly import NightView
from mmrepro.reports.documents import render
from mmrepro.reports.nightly import KIND
from night_document import NEEDED, watch
from night_issues import concerns_of

Json = dict[str, Any]
Script = Callable[..., tuple[int, str]]
"""The fixture ``script``: words to exit code and output."""
NOBODY = Quarantine()


def document(history: History, excused: Quarantine = NOBODY) -> Json:
    """What `mmrepro matrix report --format json` prints of the newest night."""
    if history.newest is None:
        return {name: [] for name in NEEDED}
    found: Json = json.loads(
        render(KIND, NightView(history, history.newest, excused), "json")
    )
    return found


def concerns_at(
    history: History, hours: float | None = None, excused: Quarantine = NOBODY
) -> dict[str, Json]:
    """Its concerns, so many hours after the first night of made_nights; None: none is
    late."""
    made = document(history, excused)
    newest = (
        datetime.fromisoformat(made["nights"][-1]["began"]) if made["nights"] else BEGAN
    )
    now = newest if hours is None else BEGAN + timedelta(hours=hours)
    return concerns_of(made, watch(made, now))
