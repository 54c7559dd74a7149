"""Times and sizes as people type them: ``45m``, ``1h30m``, ``40G``."""

from __future__ import annotations

import re

from mmrepro.base.options import text_of
from mmrepro.errors import UsageError

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MOST_SECONDS = 100 * 365 * 86400.0
MOST_BYTES = 1 << 60
"""More is a slip, and more than a clock or an integer can hold in the end."""


def seconds(text: str) -> float:
    """``90``, ``45m``, ``1h30m``, ``7d``. Raises UsageError: none, 0, or over a century."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd]|)", text.strip().lower())
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    whole = re.fullmatch(
        r"(?:\d+(?:\.\d+)?\s*(?:min|[smhd])\s*)+|\d+(?:\.\d+)?", text.strip().lower()
    )
    if not whole or not 0 < total <= MOST_SECONDS:
        raise UsageError(f"{text!r} is no length of time.", hint="e.g. 90s, 45m or 1h30m")
    return total


def seconds_text(value: float) -> str:
    """Return what :func:`seconds` reads."""
    return f"{text_of(value)}s"


def size(text: str) -> int:
    """``40G``, ``40GiB``, ``500M``: bytes. Raises UsageError: none, 0, or over 1 EiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    total = float(found[1]) * _BYTES[found[2].upper()] if found else 0.0
    if not 0 < total <= MOST_BYTES:
        raise UsageError(f"{text!r} is no size.", hint="e.g. 40G")
    return int(total)
