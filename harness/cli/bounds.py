"""Bounds of options, above which a number is a slip."""

from __future__ import annotations

WEEK_S = 7 * 86400.0
"""Seconds of a run, a deadline, a wait. What the clocks of the system can hold is far above."""
