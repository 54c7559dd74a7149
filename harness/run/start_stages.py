"""Where a server's start-up goes: its log, read while it grows."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

LAST = "HTTP up"
MAX_BYTES = 8 << 20


class StartStages:
    """Notes when each mark appears in the log; the log's own times have whole seconds only.

    Look at it often: a stage is as exact as the looks are frequent. A stage whose mark is missing
    (another release, another log level) is counted, and named, together with the next one.
    """

    def __init__(self, marks: Mapping[str, str], log: Path, began: float) -> None:
        """``marks``: see ``Engine.start_marks``; ``began``: of the start, monotonic seconds."""
        self._marks = {stage: re.compile(mark.encode()) for stage, mark in marks.items()}
        self._log = log
        self._read = 0
        self._rest = b""
        self._began = began
        self._ended: dict[str, float] = {}

    def look(self) -> None:
        """Read what the log has got since the last look."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                new = file.read(MAX_BYTES)
        except OSError:
            return
        now = time.monotonic()
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            for stage, mark in self._marks.items():
                if stage not in self._ended and mark.search(line):
                    self._ended[stage] = now

    def ended(self, ready: float) -> dict[str, float]:
        """{stage: seconds}, in order; ``ready``: when the server was, monotonic seconds."""
        self.look()
        stages: dict[str, float] = {}
        before, unseen = self._began, []
        for stage in self._marks:
            unseen.append(stage)
            if stage in self._ended:
                at = min(max(self._ended[stage], before), ready)
                stages[" + ".join(unseen)] = round(at - before, 2)
                before, unseen = at, []
        stages[" + ".join([*unseen, LAST])] = round(ready - before, 2)
        return stages
