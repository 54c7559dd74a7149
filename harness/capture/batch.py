"""OpenAI's batch files: a request a line, without times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mmrepro.capture.heard import Heard, Tally
from mmrepro.capture.lines import Line
from mmrepro.capture.messages import Bodies, Unusable
from mmrepro.capture.paths import played_path
from mmrepro.errors import UsageError


def requests(lines: Iterator[Line], bodies: Bodies, tally: Tally) -> Iterator[Heard]:
    """Raises UsageError: it is the file of the answers."""
    for line in lines:
        if not line.text.strip():
            continue
        tally.read += 1
        try:
            yield Heard(_operation(line, bodies, tally))
        except Unusable as why:
            tally.left_out[str(why)] += 1


def _operation(line: Line, bodies: Bodies, tally: Tally) -> Any:
    """Raises Unusable, UsageError."""
    if line.cut:
        raise Unusable("a line that is too long")
    try:
        request = json.loads(line.text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Unusable("a line that is no JSON") from error
    if not isinstance(request, dict):
        raise Unusable("a line that is no request")
    if "response" in request and "body" not in request:
        raise UsageError(
            f"{tally.file} holds the answers of a batch, not its requests.",
            hint="give the file that was uploaded: its lines have custom_id, url and body",
        )
    tally.dropped["custom_id"] += "custom_id" in request
    if str(request.get("method", "POST")).upper() != "POST":
        raise Unusable("another method than POST")
    return bodies.operation(played_path(str(request.get("url", ""))), request.get("body"))


def no_constant(name: str) -> Any:
    """For ``json``: NaN and Infinity are no JSON. Raises ValueError."""
    raise ValueError(name)
