"""Counts and shares as people type them; whatever else they type is told in a sentence."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from mmrepro.errors import UsageError
from mmrepro.text.sanitize import one_line

_COUNT = re.compile(r"[0-9]{1,18}")

MOST_BYTES = 1 << 50
"""1 PiB: no device has so much; a larger number is a mistake in the unit."""
MOST_COUNT = 1 << 40


def parse_count(text: str, what: str, *, least: int = 1, most: int = MOST_COUNT) -> int:
    """A whole number.

    Raises:
        UsageError: not one, or out of range.
    """
    if not _COUNT.fullmatch(text.strip()):
        raise UsageError(f"{what} {_shown(text)} is not a whole number of {least} or more.")
    value = int(text)
    if not least <= value <= most:
        raise UsageError(f"{what} {_shown(text)} is not between {least} and {most}.")
    return value


def parse_number(text: str, what: str) -> Decimal:
    """A finite decimal number above 0, digit for digit.

    Raises:
        UsageError: not a number, not finite, or not above 0.
    """
    try:
        value = Decimal(text.strip()) if len(text) <= 40 else None
    except InvalidOperation:
        value = None
    if value is None:
        raise UsageError(f"{what} {_shown(text)} is not a number.")
    if not value.is_finite():
        raise UsageError(f"{what} {_shown(text)} is not a finite number.")
    if value <= 0 or value.adjusted() > 9 or value.adjusted() < -9:
        raise UsageError(f"{what} {_shown(text)} is not between 0 and 1.")
    return value


def parse_pixels(text: str, what: str) -> tuple[int, int]:
    """``1680x1568`` as (width, height) in pixels.

    Raises:
        UsageError: not two whole numbers between 1 and 100 000.
    """
    width, cross, height = text.lower().partition("x")
    if not cross:
        raise UsageError(f"{what} {_shown(text)} is not a size in pixels. Write 1680x1568.")
    most = 100_000
    return (
        parse_count(width, f"the width in {what}", most=most),
        parse_count(height, f"the height in {what}", most=most),
    )


def _shown(text: str) -> str:
    return repr(one_line(text, 40))
