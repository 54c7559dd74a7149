"""What collectors put around a log's lines, by their known forms.

One row a wrapping, each with how it is taken off. Which ones a log has is found by
:mod:`mmrepro.probes.log_wraps`; what nobody knows by name is found from its structure,
:mod:`mmrepro.probes.log_structure`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

MOST: Final = 0.6
"""Part of a sample's lines that a wrapping has to fit."""


@dataclass
class Bare:
    """A line without its wrappings.

    Attributes:
        stream: whose output it is.
        time, level, source, pid: what the collector, or a logger that writes JSON, says
            of it.
        part: it goes on with the line before it, of the same message.
        partial: the collector cut it; the next one of the stream goes on with it.
        logged: ``time`` and ``level`` are the program's own.
    """

    text: bytes
    stream: str = ""
    time: str = ""
    level: str = ""
    source: str = ""
    process: str = ""
    part: bool = False
    partial: bool = False
    logged: bool = False


@dataclass(frozen=True)
class Wrapping:
    """Something that a collector adds to each line.

    Attributes:
        take: gives the lines inside a line; None: it is not wrapped like that.
        weak: it looks like other things too: without it more lines must have a form.
        sign: a line has it only if it holds this.
        prefix: it is nothing but a line's beginning: many lines are cut at once.
        each: whether lines with that prefix are each asked for themselves.
        forget: drops what was kept of records that several lines are.
    """

    name: str
    take: Callable[[Bare], list[Bare] | None]
    weak: bool = False
    sign: bytes = b""
    most: float = MOST
    prefix: bool = False
    each: Callable[[bytes], bool] | None = None
    forget: Callable[[], None] | None = None


TIME: Final = (
    rb"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?: ?(?:Z"
    rb"|[+-]\d\d:?\d\d|UTC))?"
)
SYSLOG_TIME: Final = rb"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)"
_IDENT: Final = rb"(?!kernel\b)(?P<stream>[\w./@:-]{1,255}?)(?:\[\d+\])?: ?"


def _prefix(
    name: str, pattern: bytes, *, weak: bool = False, sign: bytes = b""
) -> Wrapping:
    """What stands before each line; groups time, stream, pod (its container is
    ``stream``), tag (P: cut)."""
    compiled = re.compile(pattern)
    groups = compiled.groupindex

    def take(line: Bare) -> list[Bare] | None:
        match = compiled.match(line.text)
        if match is None:
            return None
        inner = Bare(line.text[match.end() :], line.stream, line.time, part=line.part)
        if "time" in groups and (time := match["time"]):
            inner.time = time.decode("ascii", "replace")
        names = [match[key] for key in ("pod", "stream") if key in groups]
        if any(names):
            named = "/".join(one.decode("utf-8", "replace") for one in names if one)
            inner.stream = f"{line.stream} {named}".strip()
        inner.partial = "tag" in groups and match["tag"] == b"P"
        return [inner]

    return Wrapping(
        name, take, weak, sign, prefix=not name.startswith(("grep -H", "fluentd"))
    )


_MESSAGES = (
    "log",
    "MESSAGE",
    "message",
    "msg",
    "textPayload",
    "body",
    "line",
    "@message",
    "_raw",
    "stringValue",
)
_TIMES = (
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "asctime",
    "__REALTIME_TIMESTAMP",
    "date",
)
_LEVELS = ("level", "levelname", "severity", "lvl", "log.level")
_LOGGERS = ("logger", "name", "logger_name", "module")
_KUBERNETES = (("pod_name", "container_name"), ("pod", "container"))
_LABELS = ("kubernetes", "labels", "resource")
_SOURCES = (
    "container_name",
    "CONTAINER_NAME",
    "service",
    "SYSLOG_IDENTIFIER",
    "pod",
    "hostname",
)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _time(value: Any) -> str:
    """A number is seconds, or what is finer than that, since 1970."""
    if isinstance(value, str):
        if not (value.isdigit() and len(value) >= 10):
            return value
        value = int(value[:19])
    if type(value) in (int, float) and value > 0:
        while value > 1e11:
            value /= 1000
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return ""


_A_TIME: Final = re.compile(
    rf"{TIME.decode()}|{SYSLOG_TIME.decode().replace('?P<time>', '?P<syslog>')}"
    r"|(?<![\w.])(?P<epoch>1[4-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?)(?![\w])"
)


def text_time(text: str) -> str:
    """The time that stands in a text; "": none does."""
    match = _A_TIME.search(text)
    if match is None:
        return ""
    if epoch := match["epoch"]:
        return _time(float(epoch) if "." in epoch else epoch)
    return match["time"] or match["syslog"]


def time_keys(names: Iterable[str]) -> list[str]:
    """Which of them are a line's time, the likeliest first."""
    known = set(names)
    return [name for name in _TIMES if name in known]


@lru_cache(256)
def _keys(names: tuple[str, ...]) -> tuple[str | None, ...]:
    """Which of an object's keys are its message, time, level, logger; and whether one
    tells whose it is."""
    kinds = (_MESSAGES, _TIMES, _LEVELS, _LOGGERS, (*_SOURCES, *_LABELS, "container"))
    return tuple(next((one for one in kind if one in names), None) for kind in kinds)


def whose(values: dict[str, Any]) -> str:
    labels: dict[str, Any] = next(
        (values[key] for key in _LABELS if isinstance(values.get(key), dict)), {}
    )
    inner = labels.get("labels")  # Google's: resource.labels
    named = {**values, **labels, **(inner if isinstance(inner, dict) else {})}
    for keys in _KUBERNETES:
        if pod := _text(named.get(keys[0])):
            return "/".join(filter(None, (pod, _text(named.get(keys[1])))))
    return next(
        (one.lstrip("/") for key in _SOURCES if (one := _text(named.get(key)))), ""
    )


_DECODER: Final = json.JSONDecoder()
DOCKERS_CUT: Final = (16 << 10) - 4
"""A character of several bytes is not cut."""
MAX_OBJECTS: Final = 5000
"""Of one line."""


def _json(line: Bare) -> list[Bare] | None:
    """An object with a message in it: docker's json-file, fluent-bit, journald, a
    logger's own; or several of a list."""
    text = line.text.decode("utf-8", "replace")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return _listed(text, line)
    if isinstance(values, list):
        return _listed(text, line)
    return from_json(values, line) if isinstance(values, dict) else None


def _listed(text: str, line: Bare) -> list[Bare] | None:
    """The objects of a list, or of a part of one: the rest of it is on other lines, or
    was cut."""
    found: list[Bare] = []
    at, objects = 0, 0
    while objects < MAX_OBJECTS:
        while text[at : at + 1] in ("[", ",", " ") and at < len(text):
            at += 1
        try:
            values, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        inner = from_json(values, line) if isinstance(values, dict) else None
        if inner is None:
            return None
        found += inner
        objects += 1
    return found or None


def from_json(values: dict[str, Any], line: Bare) -> list[Bare] | None:
    """The lines of an object's message; None: it has none."""
    message, when, level, logger, named = _keys(tuple(values))
    text = values[message] if message else None
    nested = text if isinstance(text, dict) else None
    if message is None:
        nested = _nested(values)
    if nested is not None:
        values = {**values, **nested}
        message, when, level, logger, _ = _keys(tuple(nested))
        text = nested[message] if message else None
        when, named = _keys(tuple(values))[1], "whose"
    if isinstance(text, list):  # journald, of a message that is no UTF-8
        text = bytes(b for b in text if type(b) is int and 0 <= b < 256).decode(
            "utf-8", "replace"
        )
    if not isinstance(text, str):
        return None
    stream = whose(values) if named else ""
    of_kernel = stream == "kernel"
    shown = (
        f"{line.stream} {stream}".strip() if stream and not of_kernel else line.stream
    )
    own = _text(values[level]).upper() if level else ""
    source = _text(values[logger]) if own and logger else ""
    time = _time(values[when]) if when else line.time
    # vLLM's --log-format json: vllm/logging_utils/formatter.py of 0.32
    role, pid = values.get("processName"), values.get("process")
    process = (
        f"{role} pid={pid}"
        if own and isinstance(role, str) and type(pid) is int
        else ""
    )
    # docker cuts at 16 KiB: of what goes on there is no newline at the end. fluentd
    # takes it off each.
    cut = message == "log" and "stream" in values and not text.endswith("\n")
    cut = cut and len(text.encode("utf-8", "replace")) >= DOCKERS_CUT
    texts = text.removesuffix("\n").split("\n")
    return [
        Bare(
            one.rstrip("\r").encode("utf-8", "replace"),
            shown,
            time,
            own,
            source,
            process="kernel" if of_kernel else process,
            part=number > 0 or line.part,
            partial=cut and number == len(texts) - 1,
            logged=own != "",
        )
        for number, one in enumerate(texts)
    ]


def _nested(values: dict[str, Any]) -> dict[str, Any] | None:
    """The first object in it that has a message: Google's jsonPayload, Splunk's result,
    OpenTelemetry's attributes."""
    for value in values.values():
        if isinstance(value, dict) and _keys(tuple(value))[0] is not None:
            return value
    return None


WRAPPINGS: tuple[Wrapping, ...] = (
    Wrapping("json", _json, sign=b"{", most=0.5),
    _prefix("CRI", TIME + rb" (?:stdout|stderr) (?P<tag>[FP])(?: |\Z)"),
    _prefix(
        "kubectl --prefix",
        rb"\[pod/(?P<pod>[^/\]]{1,253})/(?P<stream>[^/\]]{1,253})\](?: |\Z)",
    ),
    _prefix(
        "compose",
        rb"(?:\d+\|)?(?!\d+ *\|)(?P<stream>[A-Za-z0-9][\w.@-]{0,253}) *\| ?",
        sign=b"|",
    ),
    _prefix(
        "RFC 5424",
        rb"<\d{1,3}>1 " + TIME + rb" (?P<pod>\S{1,255}) "
        rb"(?!kernel )(?P<stream>\S{1,255}) \S{1,128} \S{1,32} (?:-|(?:\[[^\]]*\])+)"
        rb"(?: \xef\xbb\xbf| |\Z)",
    ),
    _prefix(
        "RFC 3164, journald short",
        rb"(?:<\d{1,3}>)?" + SYSLOG_TIME + rb" (?P<pod>[\w.-]{1,255}) " + _IDENT,
    ),
    _prefix(
        "journald short-iso, short-full",
        rb"(?:[A-Z][a-z]{2} )?" + TIME + rb" (?P<pod>[\w.-]{1,255}) " + _IDENT,
    ),
    _prefix("fluentd", TIME + rb" [\w.*-]{1,255}(?::)? (?=\{\")", sign=b"{"),
    _prefix("loki", TIME + rb"\s(?:\{(?P<stream>[^}\n]{0,1000})\}\s)", sign=b"{"),
    _prefix(
        "docker -t, kubectl --timestamps", TIME.replace(rb"[T ]", rb"T") + rb"(?: |\Z)"
    ),
    _prefix("aws logs tail", TIME + rb" (?P<stream>[\w./\[\]$-]{1,500}) ", weak=True),
    _prefix(
        "loki, Grafana's download", rb"(?:\d{13,19}\t)?" + TIME + rb"\t", weak=True
    ),
    _prefix(
        "Ray",
        rb"\((?P<stream>(?:ServeReplica:|ProxyActor|ServeController)[^()\n]{0,250}?"
        rb" pid=\d+)(?:, ip=[\d.a-fA-F:]+)?\) ?",
        sign=b"pid=",
    ),
    _prefix(
        "ts",
        rb"(?:"
        + SYSLOG_TIME
        + rb"|"
        + TIME.replace(b"?P<time>", b"?P<iso>")
        + rb"|\d\d:\d\d:\d\d(?:\.\d+)?) ",
        weak=True,
    ),
    _prefix("srun -l", rb" {0,8}\d{1,6}: ", weak=True),
    _prefix(
        "torchrun, mpirun, pdsh",
        (
            rb"\[(?:default\d+|\d+,\d+)\](?:<std\w+>)?: ?"
            rb"|(?P<stream>[a-z][\w.-]{0,62}\d): "
        ),
        weak=True,
    ),
    _prefix(
        "grep -H",
        # An exception's class, and the source that a native program names, are no
        # file that somebody searched.
        rb"(?![^\s:]*(?:Error|Exception|Exit|Interrupt|Timeout|Warning): )"
        rb"(?![^\s:]*\.(?:cu|cuh|cc|cpp|hpp|py):\d)"
        rb"(?P<stream>[^\s:|\[(]{1,400}\.[A-Za-z]{2,4}[\w.]{0,20})"
        rb"(?::\d+(?=:)|-\d+(?=-))?[:-]",
    ),
    _prefix("grep -n", rb"\d{1,10}[:-]", weak=True),
    _prefix("cat -n", rb" {0,6}\d{1,9}\t", weak=True),
    _prefix("quoted", rb"(?:> ?)+", sign=b">"),
    _prefix(
        "stern",
        rb"(?P<pod>[a-z0-9][a-z0-9.-]{0,252}) (?:\xe2\x80\xba )?"
        rb"(?P<stream>[a-z0-9][a-z0-9-]{0,62}) ",
        weak=True,
    ),
    _prefix("indented", rb"[ \t]+", weak=True),
)
