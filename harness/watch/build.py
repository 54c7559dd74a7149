"""A watch from the options of the command line."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Mapping
from pathlib import Path

from mmrepro.errors import UsageError
from mmrepro.watch.checker import Checker
from mmrepro.watch.health import Health
from mmrepro.watch.loop import CONFIRM_PAUSE_S, Diagnose, Finding, Listener, Watch, WatchOptions

MAX_DEADLINE_S = 15.0


def default_deadline(interval_s: float, failures: int) -> float:
    """Seconds for one check, so that ``failures`` of them, one after the other, end within one
    interval; at most 15."""
    return min(MAX_DEADLINE_S, 0.9 * interval_s / failures - CONFIRM_PAUSE_S)


def assemble(
    url: str,
    *,
    interval_s: float,
    deadline_s: float | None,
    failures: int,
    successes: int,
    grace_s: float,
    once: bool,
    until_dead: bool,
    image: bool,
    model: str,
    headers: Mapping[str, str],
    diagnose: bool,
    max_incidents: int,
    out: Path | None,
    listener: Listener,
) -> Watch:
    """The watch of ``url``. Raises UsageError for what cannot be an address."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url!r} is no address of a server.", hint="mmrepro watch http://HOST:PORT"
        )
    sent = dict(headers)
    deadline = deadline_s or default_deadline(interval_s, failures)
    checker = Checker(
        url, deadline, model=model, image=small_picture() if image else None, headers=sent
    )
    health = Health(
        failures=failures, successes=successes, grace_s=grace_s, started=time.monotonic()
    )
    options = WatchOptions(
        interval_s=interval_s, max_incidents=max_incidents, until_dead=until_dead, once=once
    )
    look = diagnosis(url, deadline, model, sent, out) if diagnose else None
    return Watch(checker, health, options, diagnose=look, listener=listener)


def small_picture() -> str:
    """A 56 x 56 picture as a data URL: 4 tokens of a Qwen2-VL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (56, 56), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def diagnosis(
    url: str, deadline_s: float, model: str, headers: dict[str, str], out: Path | None
) -> Diagnose:
    """A function that diagnoses ``url`` and keeps the incident below ``out``."""

    def look() -> Finding:
        from mmrepro.diagnose.session import DiagnoseOptions
        from mmrepro.diagnose.session import diagnose as run
        from mmrepro.reports import write_reports

        folder = None if out is None else out / time.strftime("watch-%Y%m%d-%H%M%S")
        found = run(
            DiagnoseOptions(
                url=url, deadline_s=max(1.0, deadline_s), model=model, out=folder, headers=headers
            )
        )
        if found.folder is not None:
            write_reports(found.folder)
        known = [m.scenario for m in found.diagnosis.found]
        sentence = found.diagnosis.assessment.sentence
        if known:
            sentence = f"{known[0]}: {sentence}"
        where = f"; incident: {found.folder}" if found.folder else ""
        return Finding(sentence + where, found.folder)

    return look
