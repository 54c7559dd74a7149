"""A recording of traffic, whatever its format, made into a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmrepro.capture.captured import Captured
from mmrepro.case.model import ServerWanted
from mmrepro.errors import UsageError


def read(
    file: Path,
    server: ServerWanted,
    *,
    host: str = "",
    concurrency: int | None = None,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Captured:
    """The requests in ``file``: HAR, OpenAI Batch JSONL, a vLLM or SGLang log, or a case.

    Args:
        server: what they are played on. A case of ours (its file, or a finding's folder) keeps its
            own.
        host: ``HOST[:PORT]`` whose requests are read, where a HAR has those of several.
        concurrency: of a format without times: so many run at once. None: one after the other.
        folder: where pictures are kept while the case is worked on; None: a temporary one.
        progress: called with bytes read and bytes in all.

    Raises:
        UsageError: one sentence, which names the place in the file.
    """
    raise UsageError(f"{file.name} cannot be read yet.")
