"""A watch from the options of the command line."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmrepro.diagnose.discover import parse_url
from mmrepro.watch.checker import Checker
from mmrepro.watch.health import Health
from mmrepro.watch.loop import CONFIRM_PAUSE_S, Diagnosed, Listener, Watch
from mmrepro.watch.options import WatchCommand

MAX_DEADLINE_S = 15.0


def default_deadline(interval_s: float, failures: int) -> float:
    """Seconds for one check, so that ``failures`` of them, one after the other, end within one
    interval; at most 15."""
    return min(MAX_DEADLINE_S, 0.9 * interval_s / failures - CONFIRM_PAUSE_S)


def watch_of(
    asked: WatchCommand,
    health: Health,
    *,
    diagnose: Callable[[float], Diagnosed] | None = None,
    listener: Listener,
) -> Watch:
    """The watch of a server. Raises UsageError for what cannot be an address.

    Args:
        diagnose: looks for the cause when a check fails, with a deadline in seconds; None: that
            it failed is only reported.
    """
    parse_url(asked.url)
    deadline = asked.deadline_s or default_deadline(asked.interval_s, health.failures)
    picture = small_picture() if asked.image else None
    checker = Checker(
        asked.url, deadline, model=asked.model, image=picture, headers=dict(asked.headers)
    )
    look = None if diagnose is None else partial(diagnose, max(1.0, deadline))
    return Watch(checker, health, asked, diagnose=look, listener=listener)


def small_picture() -> str:
    """A 56 x 56 picture as a data URL: 4 tokens of a Qwen2-VL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (56, 56), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def diagnosed(asked: WatchCommand, write: Callable[[Path], object], deadline_s: float) -> Diagnosed:
    """Diagnose the server; the incident is kept below ``out``, ``write`` writes its reports."""
    from mmrepro.diagnose.options import DiagnoseCommand
    from mmrepro.diagnose.session import diagnose

    folder = None if asked.out is None else asked.out / time.strftime("watch-%Y%m%d-%H%M%S")
    found = diagnose(
        DiagnoseCommand(
            asked.url, asked.model, asked.logs, asked.headers, folder, deadline_s=deadline_s
        )
    )
    if found.folder is not None:
        write(found.folder)
    known = [m.scenario for m in found.diagnosis.found]
    sentence = found.diagnosis.assessment.sentence
    if known:
        sentence = f"{known[0]}: {sentence}"
    where = f"; incident: {found.folder}" if found.folder else ""
    return Diagnosed(sentence + where, found.folder, tuple(found.diagnosis.classes))
