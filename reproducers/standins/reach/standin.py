"""Stand-in: writes to the server's log which lines of a change run, and when.

It replaces nothing. ``MMREPRO_REACH`` names files by the end of their path and ranges of
lines: ``vllm/a.py:3-9,40-44;vllm/b.py:7-7``. A line of the log says the monotonic second
and the line of code: ``mmrepro reach 5012.204 vllm/a.py:5``.

Python 3.12 has events for the lines of single functions (``sys.monitoring``), which cost
nothing once a line has run. Before it every call of a Python function is looked at
(``sys.settrace``): where a server computes little, that is up to a half more time."""

import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

_AGAIN_S = 0.5
"""A line that runs again and again is written so seldom: requests are sent one after
another, and what a start has run must be seen again when a request runs it."""
_MOST = 40
"""Times that a process writes the same line."""

_IS_FUNCTION = 1  # inspect.CO_OPTIMIZED


class _WatchedLines:
    """The lines that are looked for, and when each was last written."""

    def __init__(self, spec: str) -> None:
        self._by_file: dict[str, set[int]] = {}
        for entry in filter(None, spec.split(";")):
            file, _, ranges = entry.rpartition(":")
            lines = self._by_file.setdefault(file, set())
            for part in ranges.split(","):
                first, last = part.split("-")
                lines.update(range(int(first), int(last) + 1))
        self._named: dict[str, str] = {}
        self._of_code: dict[tuple[str, int], frozenset[int]] = {}
        self._written: dict[tuple[str, int], tuple[float, int]] = {}

    def name_of(self, path: str) -> str:
        """The file as ``MMREPRO_REACH`` names it; "": it is none of these."""
        name = self._named.get(path)
        if name is None:
            ends = (file for file in self._by_file if path.endswith(f"/{file}"))
            name = self._named[path] = next(ends, "")
        return name

    def of(self, code: CodeType) -> frozenset[int]:
        """The lines of a function that are looked for."""
        name = self.name_of(code.co_filename)
        # Modules and bodies of classes run at import, whatever is asked.
        if not name or not code.co_flags & _IS_FUNCTION:
            return frozenset()
        key = name, code.co_firstlineno
        lines = self._of_code.get(key)
        if lines is None:
            own = {line for _, _, line in code.co_lines() if line is not None}
            lines = self._of_code[key] = frozenset(own & self._by_file[name])
        return lines

    def note(self, code: CodeType, line: int) -> bool:
        """Write that the line runs; returns whether it may be written once more."""
        now = time.monotonic()
        key = self.name_of(code.co_filename), line
        last, times = self._written.get(key, (0.0, 0))
        if times < _MOST and now - last >= _AGAIN_S:
            times += 1
            self._written[key] = now, times
            # One write, past Python's buffers: several processes share the log.
            os.write(2, f"\nmmrepro reach {now:.3f} {key[0]}:{line}\n".encode())
        return times < _MOST


def _by_settrace(watched: _WatchedLines) -> None:
    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_lineno in watched.of(frame.f_code):
            watched.note(frame.f_code, frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, event: str, argument: object) -> Any:
        # The first question is asked at every call of the process.
        if not watched.name_of(frame.f_code.co_filename):
            return None
        return on_line if watched.of(frame.f_code) else None

    threading.settrace(on_call)
    sys.settrace(on_call)


def _by_monitoring(watched: _WatchedLines) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool, events = monitoring.COVERAGE_ID, monitoring.events

    def on_start(code: CodeType, offset: int) -> Any:
        if watched.of(code):
            monitoring.set_local_events(tool, code, events.LINE)
        return monitoring.DISABLE

    def on_line(code: CodeType, line: int) -> Any:
        if line in watched.of(code) and watched.note(code, line):
            return None
        return monitoring.DISABLE

    monitoring.use_tool_id(tool, "mmrepro")
    monitoring.register_callback(tool, events.PY_START, on_start)
    monitoring.register_callback(tool, events.LINE, on_line)
    monitoring.set_events(tool, events.PY_START)


if spec := os.environ.get("MMREPRO_REACH"):
    if sys.version_info >= (3, 12):
        _by_monitoring(_WatchedLines(spec))
    else:
        _by_settrace(_WatchedLines(spec))
