"""Where the present life of a server begins in a log to which every start appends.

What an earlier process of that name wrote there, a crash of yesterday, says nothing of this one. A
life begins with a start's first line, or, where no such line is there, with the first line that is
not older than the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from mmrepro.probes._literals import required_texts
from mmrepro.probes._log_blocks import Lines, merged, safe_text
from mmrepro.probes._log_lines import clean, parse_line

NEAR = 50
"""Lines from either end of a block; where none of them tells its time, the block's are not read."""
HEAD_BYTES = 512
"""Of a line: more is not looked at for its time."""


class Life:
    """Goes over a log's blocks in order, and tells of each where what counts begins.

    Args:
        starts: expressions of lines that each start logs, in the order in which it does.
        since: when the process began, in the log's own zone.
    """

    def __init__(
        self, starts: Sequence[re.Pattern[str] | str] = (), since: datetime | None = None
    ) -> None:
        self._starts = [re.compile(start) for start in starts]
        self._texts = [
            [safe_text(text) for text in required_texts(start) or ()] for start in self._starts
        ]
        self._since = since
        self._stage = -1
        self._older = since is not None
        self.texts = [text for texts in self._texts for text in texts]
        """For a search that finds them with everything else."""

    def begins(self, lines: Lines, found: Mapping[bytes, Sequence[int]]) -> int:
        """Offset in the block at which a life begins: all before it is of an earlier one; -1: none
        begins here.

        Args:
            found: offsets of each of ``texts`` in the block.
        """
        begin = -1
        for start, stage in sorted(self._started(lines, found)):
            # A later line of the same start begins nothing.
            if not 0 <= self._stage < stage:
                begin = start
            self._stage = stage
        if self._stage < 0 and self._older:
            return self._by_time(lines)
        return begin

    def _started(self, lines: Lines, found: Mapping[bytes, Sequence[int]]) -> list[tuple[int, int]]:
        """(offset of the line, stage) of each line of a start."""
        return [
            (start, stage)
            for stage, (pattern, texts) in enumerate(zip(self._starts, self._texts, strict=True))
            for start in lines.line_starts(sorted(merged(found, texts)))
            if pattern.search(clean(lines.content(start)))
        ]

    def _by_time(self, lines: Lines) -> int:
        """From the end to the last line that is older than the process."""
        begin = len(lines.block)
        if not any(map(self._age(lines), (*lines.first_starts(NEAR), *lines.last_starts(NEAR)))):
            return -1
        for start, age in ((s, self._age(lines)(s)) for s in lines.last_starts(len(lines))):
            if age == "older":
                return begin
            if age:
                begin, self._older = start, False
        return -1

    def _age(self, lines: Lines) -> Callable[[int], str]:
        """Of the line that begins there: "older" than the process, "newer", or "" for no time."""

        def age(start: int) -> str:
            assert self._since is not None
            line = parse_line(0, clean(lines.content(start)[:HEAD_BYTES]))
            at = written(line.time, self._since)
            return "" if at is None else "older" if at < self._since else "newer"

        return age


def written(time: str, near: datetime) -> datetime | None:
    """What a log's time means; without a year, the one that brings it closest to ``near``."""
    text = time.replace(",", ".").replace("T", " ").partition(".")[0]
    if not text:
        return None
    candidates = []
    bare = text.count("-") == 1
    for year in (near.year - 1, near.year, near.year + 1) if bare else (0,):
        try:
            candidates.append(datetime.fromisoformat(f"{year}-{text}" if bare else text))
        except ValueError:
            continue
    return min(candidates, key=lambda one: abs(one - near), default=None)
