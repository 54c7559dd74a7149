"""A watch from the options of the command line."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from mmrepro.diagnose.discover import parse_url
from mmrepro.watch.checker import Checker
from mmrepro.watch.health import Health
from mmrepro.watch.loop import CONFIRM_PAUSE_S, Diagnosed, Listener, Watch, WatchOptions

MAX_DEADLINE_S = 15.0


def default_deadline(interval_s: float, failures: int) -> float:
    """Seconds for one check, so that ``failures`` of them, one after the other, end within one
    interval; at most 15."""
    return min(MAX_DEADLINE_S, 0.9 * interval_s / failures - CONFIRM_PAUSE_S)


def watch_of(
    url: str,
    options: WatchOptions,
    health: Health,
    *,
    deadline_s: float | None = None,
    image: bool = False,
    model: str = "",
    headers: Mapping[str, str] | None = None,
    diagnose: Callable[[float], Diagnosed] | None = None,
    listener: Listener,
) -> Watch:
    """The watch of ``url``. Raises UsageError for what cannot be an address.

    Args:
        deadline_s: of one check; None: :func:`default_deadline`.
        diagnose: looks for the cause when a check fails, with a deadline in seconds; None: that
            it failed is only told.
    """
    parse_url(url)
    sent = dict(headers or {})
    deadline = deadline_s or default_deadline(options.interval_s, health.failures)
    picture = small_picture() if image else None
    checker = Checker(url, deadline, model=model, image=picture, headers=sent)
    look = None if diagnose is None else partial(diagnose, max(1.0, deadline))
    return Watch(checker, health, options, diagnose=look, listener=listener)


def small_picture() -> str:
    """A 56 x 56 picture as a data URL: 4 tokens of a Qwen2-VL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (56, 56), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def diagnosed(
    url: str,
    model: str,
    headers: Mapping[str, str],
    out: Path | None,
    write: Callable[[Path], object],
    logs: tuple[Path, ...],
    deadline_s: float,
) -> Diagnosed:
    """Diagnose ``url``; the incident is kept below ``out``, ``write`` writes its reports.

    ``logs``: in the place of the files that its output is found to go to; (): those.
    """
    from mmrepro.diagnose.session import DiagnoseOptions, diagnose

    folder = None if out is None else out / time.strftime("watch-%Y%m%d-%H%M%S")
    asked = DiagnoseOptions(
        url=url, deadline_s=deadline_s, model=model, out=folder, headers=headers, logs=logs
    )
    found = diagnose(asked)
    if found.folder is not None:
        write(found.folder)
    known = [m.scenario for m in found.diagnosis.found]
    sentence = found.diagnosis.assessment.sentence
    if known:
        sentence = f"{known[0]}: {sentence}"
    where = f"; incident: {found.folder}" if found.folder else ""
    return Diagnosed(sentence + where, found.folder, tuple(found.diagnosis.classes))
