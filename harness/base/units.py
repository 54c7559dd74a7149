"""Sizes and lengths of time: read as people type them, printed for people and for an
option; and the few words and marks that all documents share."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Literal

from mmrepro.base.errors import UsageError

KIB, MIB, GIB, TIB = (1 << 10 * power for power in (1, 2, 3, 4))
MOST_SECONDS = 100 * 365 * 86400.0
MOST_BYTES = 1 << 60
"""More is a slip, and more than a clock or an integer can hold in the end."""

_LENGTHS = {
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
    "w": 7 * 86400,
    "": 1,
}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])\s*")
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES |= {_letter: 1 << 10 * _power, f"{_letter}ib": 1 << 10 * _power}
    _BYTES[f"{_letter}b"] = 1000**_power
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``45m``, ``1h30m``, ``2 min 05 s``. Raises UsageError: none,
    0, or over a century."""
    words = text.strip().lower()
    parts = _LENGTH.findall(words)
    if re.fullmatch(r"\d+(?:\.\d+)?", words):
        parts = [(words, "")]
    elif not re.fullmatch(f"(?:{_LENGTH.pattern})+", words):
        parts = []
    seconds = sum(float(number) * _LENGTHS[unit] for number, unit in parts)
    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(
            f"{text!r} is not a length of time.", hint="e.g. 90s, 45m or 1h30m"
        )
    return seconds


def parse_size(
    text: str, what: str = "", *, least: int = 1, most: int = MOST_BYTES
) -> int:
    """Bytes of ``6784MiB``, ``40G`` (GiB), ``80GB`` or a plain number; fractions are
    dropped.

    Args:
        what: the option, for the error.

    Raises:
        UsageError: not a size, or out of range.
    """
    shown = f"{what} {text[:40]!r}".strip()
    match = _SIZE.fullmatch(text.strip())
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{shown} is not a size.", hint="e.g. 6784MiB, 40G, 80GB or plain bytes"
        )
    number = int(Decimal(match[1]) * factor)
    if number < least:
        why = " Is its unit missing?" if not match[2] and number else ""
        raise UsageError(f"{shown} is less than {size(least)}.{why}")
    if number > most:
        raise UsageError(f"{shown} is more than {size(most)}. Is its unit right?")
    return number


def duration(seconds: float) -> str:
    """Rounded, for people: 31 ms, 4.2 s, 60 s, 2 min 05 s, 3 h 12 min, 2 d 1 h."""
    if not math.isfinite(seconds) or abs(seconds) >= 1e12:
        return "?"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 99.5 and seconds == int(seconds):
        return f"{seconds:.0f} s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "<1 ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    if seconds < 2 * 86400:
        return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"
    return f"{int(seconds) // 86400} d {int(seconds) % 86400 // 3600} h"


def exact_duration(seconds: float) -> str:
    """Write it for an option, which reads the same number again: 10m, 1h30m, 2.5s."""
    left = int(seconds)
    if left != seconds or not left:
        return f"{Decimal(repr(seconds)):f}s"
    words = ""
    for unit in ("d", "h", "m", "s"):
        number, left = divmod(left, int(_LENGTHS[unit]))
        if number:
            words += f"{number}{unit}"
    return words


def size(count: float, digits: int | None = None) -> str:
    """Round it for people: 1.7 GiB, 35 MiB; a whole number of a unit without decimals.

    Args:
        digits: decimals; by default one from a GiB on.
    """
    if count < 0:
        return "-" + size(-count, digits)
    unit, factor = _unit_of(count)
    if digits is None:
        digits = 1 if factor >= GIB else 0
    if count % factor == 0:
        digits = 0
    return f"{count / factor:.{digits}f} {unit}"


def _unit_of(count: float) -> tuple[str, int]:
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= factor:
            return unit, factor
    return "B", 1


def exact_size(count: int) -> str:
    """Write it for an option, which reads the same number again: 40GiB, 4097."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


Tone = Literal["", "good", "bad", "unsure", "soft"]
"""What a text means to a reader; colours are made of it."""


def count(number: int, word: str) -> str:
    """Write ``1 run``, ``3 runs``, ``2 queries``, ``2 processes``."""
    if number == 1:
        return f"1 {word}"
    if word.endswith("ry"):
        return f"{number:,} {word[:-1]}ies"
    if word.endswith("s"):
        return f"{number:,} {word}es"
    return f"{number:,} {word}s"


def slug(text: str) -> str:
    """An anchor of ``text``: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-") or "part"


def sane(number: float) -> bool:
    """A number that a picture can be drawn of: finite, and of a size that runs
    produce."""
    return math.isfinite(number) and abs(number) < 1e12
