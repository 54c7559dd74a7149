"""From one raw log line to a ``LogLine``: prefixes as inference engines print them."""

from __future__ import annotations

import re

from mmrepro.probes.data import LogLine

MAX_TEXT_CHARS = 2000
MAX_LINE_BYTES = 64 << 10
"""No more of a line than this is looked at: a base64 image can be a line of many megabytes."""

ANSI = rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])"
_ANSI = re.compile(ANSI)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)"
_TIME = r"(?P<time>(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_PROCESS = re.compile(r"\((?P<process>[^()\s]+ pid=\d+)\) ?")

_FORMS = (
    # vLLM: ERROR 11-21 02:44:01 [v1/engine/core.py:1195] text
    re.compile(rf"{_LEVEL} {_TIME} \[(?P<source>[^\]\n]{{1,200}})\] ?"),
    # SGLang: [2025-11-21 02:44:01 TP0] text, or with a level and a colon before the text
    re.compile(rf"\[{_TIME}(?P<source>)(?: [A-Z]+\d+)*\] (?:{_LEVEL}: )?"),
    # LMDeploy: 2025-11-21 02:44:01,123 - lmdeploy - ERROR - engine.py:123 - text
    re.compile(rf"{_TIME} - [\w.]+ - {_LEVEL} - (?:(?P<source>[\w./]+:\d+) - )?"),
    # uvicorn: INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK
    re.compile(rf"{_LEVEL}:(?P<time>)(?P<source>)\s+"),
    # logging.basicConfig: ERROR:module:text
    re.compile(rf"{_LEVEL}:(?P<time>)(?P<source>[\w.]+):"),
)
ERROR_LEVELS = frozenset({"ERROR", "CRITICAL"})
TRACEBACK = "Traceback (most recent call last)"


def clean(raw: bytes) -> str:
    """``raw`` decoded, without ANSI codes and control characters, tabs as they are."""
    raw = raw[:MAX_LINE_BYTES]
    if b"\x1b" in raw:
        raw = _ANSI.sub(b"", raw)
    return _CONTROL.sub("", raw.decode("utf-8", "replace")).rstrip()


def parse_line(number: int, line: str) -> LogLine:
    """``line`` (cleaned) split into its prefix and its text; never raises."""
    process, rest = "", line
    if match := _PROCESS.match(line):
        process, rest = match["process"], line[match.end() :]
    for form in _FORMS:
        if match := form.match(rest):
            return LogLine(
                number=number,
                process=process,
                level=match["level"] or "",
                time=match["time"] or "",
                source=match["source"] or "",
                text=rest[match.end() :][:MAX_TEXT_CHARS],
            )
    return LogLine(number=number, process=process, text=rest[:MAX_TEXT_CHARS])


def is_error(line: LogLine) -> bool:
    return line.level in ERROR_LEVELS or TRACEBACK in line.text
