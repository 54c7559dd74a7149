"""Times and sizes as people type them: ``45m``, ``1h30m``, ``40G``."""

from __future__ import annotations

import re

from mmrepro.errors import UsageError

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def seconds(text: str) -> float:
    """``90``, ``90s``, ``45m``, ``1h30m``, ``7d``. Raises UsageError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd]|)", text.strip().lower())
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    whole = re.fullmatch(
        r"(?:\d+(?:\.\d+)?\s*(?:min|[smhd])\s*)+|\d+(?:\.\d+)?", text.strip().lower()
    )
    if not whole or not total:
        raise UsageError(f"{text!r} is no length of time.", hint="e.g. 90s, 45m or 1h30m")
    return total


def size(text: str) -> int:
    """``40G``, ``40GiB``, ``500M``: bytes. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise UsageError(f"{text!r} is no size.", hint="e.g. 40G")
    return int(float(found[1]) * _BYTES[found[2].upper()])
