"""What collectors put around a log's lines, and how it is taken off.

One row a wrapping. Which ones a log has is found in a sample of its lines: a row fits
where most of them have it, and where without it no fewer lines have a form of a
program's. Rows nest, so this is repeated until none fits. Lines that the found rows do
not fit stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, overload

from mmrepro.probes.log_forms import has_form

SAMPLE_LINES = 120
MAX_DEPTH = 8
MAX_STREAMS = 64
MOST = 0.6
"""Part of a sample's lines that a wrapping has to fit."""

ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])"
)
TEXT_ANSI = re.compile(
    rb"(?:\^\[|\\x1[bB]|\\0?33|\\e|#0?33|\\u001[bB]|\xe2\x90\x9b|\xef\xbf\xbd)?"
    rb"\[(?:\d{1,3}(?:;\d{1,3})*)m"
)
"""Colours whose escape character became text, or was lost."""
TEXT_ANSI_SIGNS = (b"[0m", b"[0;0m")


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
    """

    name: str
    take: Callable[[Bare], list[Bare] | None]
    weak: bool = False
    sign: bytes = b""
    most: float = MOST


_T: Final = (
    rb"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?: ?(?:Z"
    rb"|[+-]\d\d:?\d\d|UTC))?"
)
_SHORT: Final = rb"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)"
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

    return Wrapping(name, take, weak, sign)


_MESSAGES = (
    "log",
    "MESSAGE",
    "message",
    "msg",
    "textPayload",
    "body",
    "line",
    "@message",
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


@lru_cache(256)
def _keys(names: tuple[str, ...]) -> tuple[str | None, ...]:
    """Which of an object's keys are its message, time, level, logger; and whether one
    tells whose it is."""
    kinds = (_MESSAGES, _TIMES, _LEVELS, _LOGGERS, (*_SOURCES, *_LABELS, "container"))
    return tuple(next((one for one in kind if one in names), None) for kind in kinds)


def _whose(values: dict[str, Any]) -> str:
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


def _json(line: Bare) -> list[Bare] | None:
    """An object with a message in it: docker's json-file, fluent-bit, journald, a
    logger's own."""
    try:
        values = json.loads(line.text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    message, when, level, logger, whose = _keys(tuple(values))
    text = values[message] if message else None
    if isinstance(text, dict):
        values = {**values, **text}
        message, when, level, logger, whose = _keys(tuple(text))
        text = text[message] if message else None
        when, whose = _keys(tuple(values))[1], "whose"
    if isinstance(text, list):  # journald, of a message that is no UTF-8
        text = bytes(b for b in text if type(b) is int and 0 <= b < 256).decode(
            "utf-8", "replace"
        )
    if not isinstance(text, str):
        return None
    stream = _whose(values) if whose else ""
    of_kernel = stream == "kernel"
    named = (
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
    # docker cuts at 16 KiB: of what goes on there is no newline at the end
    cut = message == "log" and "stream" in values and not text.endswith("\n")
    texts = text.removesuffix("\n").split("\n")
    return [
        Bare(
            one.rstrip("\r").encode("utf-8", "replace"),
            named,
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


WRAPPINGS: tuple[Wrapping, ...] = (
    Wrapping("json", _json, sign=b"{", most=0.5),
    _prefix("CRI", _T + rb" (?:stdout|stderr) (?P<tag>[FP])(?: |\Z)"),
    _prefix(
        "kubectl --prefix",
        rb"\[pod/(?P<pod>[^/\]]{1,253})/(?P<stream>[^/\]]{1,253})\](?: |\Z)",
    ),
    _prefix(
        "compose", rb"(?:\d+\|)?(?P<stream>[A-Za-z0-9][\w.@-]{0,253}) *\| ?", sign=b"|"
    ),
    _prefix(
        "RFC 5424",
        rb"<\d{1,3}>1 " + _T + rb" (?P<pod>\S{1,255}) "
        rb"(?!kernel )(?P<stream>\S{1,255}) \S{1,128} \S{1,32} (?:-|(?:\[[^\]]*\])+)"
        rb"(?: \xef\xbb\xbf| |\Z)",
    ),
    _prefix(
        "RFC 3164, journald short",
        rb"(?:<\d{1,3}>)?" + _SHORT + rb" (?P<pod>[\w.-]{1,255}) " + _IDENT,
    ),
    _prefix(
        "journald short-iso, short-full",
        rb"(?:[A-Z][a-z]{2} )?" + _T + rb" (?P<pod>[\w.-]{1,255}) " + _IDENT,
    ),
    _prefix("fluentd", _T + rb" [\w.*-]{1,255}(?::)? (?=\{\")", sign=b"{"),
    _prefix("loki", _T + rb"\s(?:\{(?P<stream>[^}\n]{0,1000})\}\s)", sign=b"{"),
    _prefix(
        "docker -t, kubectl --timestamps", _T.replace(rb"[T ]", rb"T") + rb"(?: |\Z)"
    ),
    _prefix("aws logs tail", _T + rb" (?P<stream>[\w./\[\]$-]{1,500}) ", weak=True),
    _prefix("loki, Grafana's download", rb"(?:\d{13,19}\t)?" + _T + rb"\t", weak=True),
    _prefix(
        "Ray",
        rb"\((?P<stream>(?:ServeReplica:|ProxyActor|ServeController)[^()\n]{0,250}?"
        rb" pid=\d+)(?:, ip=[\d.a-fA-F:]+)?\) ?",
        sign=b"pid=",
    ),
    _prefix(
        "ts",
        rb"(?:"
        + _SHORT
        + rb"|"
        + _T.replace(b"?P<time>", b"?P<iso>")
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

_ONLY_TIME = re.compile(rb"\s*" + _T.replace(rb"[T ]", rb"T") + rb"\s*\Z")


_NO_PREFIX = frozenset({"json", "grep -H", "fluentd"})
MAX_SHAPES = 32


@lru_cache(256)
def _shape(prefix: bytes, stream: str) -> re.Pattern[bytes]:
    """Lines with this prefix: a digit stands for any, but in what ``stream`` is named
    after."""
    exact = bytearray(len(prefix))
    for name in re.split(r"[/ ]", stream):
        if name and (at := prefix.find(name.encode())) >= 0:
            exact[at : at + len(name.encode())] = b"1" * len(name.encode())
    parts = [
        rb"\d" if one.isdigit() and not exact[at] else re.escape(one)
        for at, one in enumerate(prefix[n : n + 1] for n in range(len(prefix)))
    ]
    return re.compile(b"".join(parts))


@dataclass
class Stripped:
    """A block's lines without their prefixes, and each one's stream.

    Attributes:
        lines: as they were.
        widths: of each line's prefix.
        whose: index into ``streams`` of each line; -1: it is empty.
    """

    peeler: Peeler
    lines: list[bytes]
    widths: list[int]
    whose: list[int]
    streams: list[str]

    @property
    def data(self) -> bytes:
        return self._joined(range(len(self.lines)))

    def of(self, stream: str) -> tuple[bytes, list[int]]:
        """The lines of one stream, and their indices."""
        number = self.streams.index(stream)
        mine = [index for index, whose in enumerate(self.whose) if whose == number]
        return self._joined(mine), mine

    def _joined(self, indices: Iterable[int]) -> bytes:
        lines, widths = self.lines, self.widths
        return b"\n" + b"\n".join([lines[index][widths[index] :] for index in indices])


class Lazy(Sequence[Bare]):
    """Lines as their collector's wrappings were taken off, each when it is asked
    for."""

    def __init__(self, block: Stripped, indices: Sequence[int]) -> None:
        self._block, self._indices = block, indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Bare: ...
    @overload
    def __getitem__(self, index: slice) -> Lazy: ...
    def __getitem__(self, index: int | slice) -> Bare | Lazy:
        if isinstance(index, slice):
            return Lazy(self._block, self._indices[index])
        found = self._block.peeler.peel(self._block.lines[self._indices[index]])
        return found[0] if found else Bare(b"")


@dataclass
class Peeler:
    """Takes a log's wrappings off. Blocks are given in their order.

    Attributes:
        chain: what was found, the outermost first.
        events: CloudWatch's: a line with a time, then the message.
        indent: what all lines begin with, where they are indented.
        most_cut: bytes of a line that the collector cut into several.
    """

    chain: list[Wrapping] = field(default_factory=list)
    events: bool = False
    coloured: bool = False
    indent: bytes = b""
    most_cut: int = 1 << 20
    _cut: dict[str, bytes] = field(default_factory=dict)
    _event: str = ""
    _shapes: int = 0

    @property
    def plain(self) -> bool:
        return not (self.chain or self.events or self.coloured)

    def learn(self, sample: Sequence[bytes]) -> None:
        """Find the wrappings in some of the lines."""
        sample = [ANSI.sub(b"", line) for line in sample]
        self.coloured = any(sign in line for line in sample for sign in TEXT_ANSI_SIGNS)
        lines = [Bare(self._clean(line)) for line in sample if line.strip()]
        self.chain, self.events = [], False
        times = sum(_ONLY_TIME.match(line.text) is not None for line in lines)
        if times >= 1 and 0.3 <= times / max(len(lines), 1) <= 0.6:
            self.events = True
            lines = [line for line in lines if not _ONLY_TIME.match(line.text)]
        while len(self.chain) < MAX_DEPTH:
            fits = [
                (w, inner) for w in WRAPPINGS if (inner := _fits(w, lines)) is not None
            ]
            if not fits:
                return
            # Of several, the one that leaves the most lines with a form; else the
            # first.
            wrapping, inner = max(fits, key=lambda fit: _formed(fit[1]))
            if wrapping.name == "indented":
                self.indent = _common(lines)
                inner = _unindented(lines, self.indent)
            self.chain.append(wrapping)
            lines = inner

    def strip(self, data: bytes) -> Stripped | None:
        """Take prefixes off whole lines, each after its newline, at once; None: line by
        line.

        A prefix that was found in one line is looked for in all: digits stand for any
        digit, but in names. Most logs have one or a few."""
        if (
            self.events
            or self.coloured
            or any(w.name in _NO_PREFIX for w in self.chain)
        ):
            return None
        if b"\x1b" in data:
            data = ANSI.sub(b"", data)
        lines = data.split(b"\n")[1:]
        widths, whose = [0] * len(lines), [-1] * len(lines)
        streams: list[str] = []
        left = [index for index, line in enumerate(lines) if line]
        while left:
            line = lines[left[0]].rstrip(b"\r")
            found = self.peel(line)
            if len(found) != 1 or self._cut or not line.endswith(found[0].text):
                self._cut.clear()
                return None
            if found[0].stream not in streams:
                streams.append(found[0].stream)
            width = len(line) - len(found[0].text)
            fits = _shape(line[:width], found[0].stream).match
            # A line without a prefix is alone with it.
            mine = [one for one in left if fits(lines[one])] if width else left[:1]
            number = streams.index(found[0].stream)
            for one in mine:
                widths[one], whose[one] = width, number
            left = [one for one in left if whose[one] < 0]
            if len(streams) > MAX_STREAMS or len(left) * 50 < len(lines):
                continue
            self._shapes += 1
            if self._shapes > MAX_SHAPES:
                return None
        self._shapes = 0
        return Stripped(self, lines, widths, whose, streams)

    def _clean(self, line: bytes) -> bytes:
        line = line.rstrip(b"\r")
        if b"\x1b" in line:
            line = ANSI.sub(b"", line)
        return TEXT_ANSI.sub(b"", line) if self.coloured else line

    def peel(self, line: bytes) -> list[Bare]:
        """The lines inside a line; none: it says nothing by itself."""
        text = self._clean(line)
        if self.events and (match := _ONLY_TIME.match(text)):
            self._event = match["time"].decode()
            return []
        found = [Bare(text, time=self._event)]
        for wrapping in self.chain:
            if wrapping.name == "indented":
                found = _unindented(found, self.indent)
                continue
            if len(found) == 1:
                inner = wrapping.take(found[0])
                found = found if inner is None else inner
            else:
                found = [
                    inner for one in found for inner in (wrapping.take(one) or [one])
                ]
        return self._joined(found)

    def _joined(self, lines: list[Bare]) -> list[Bare]:
        """Put together what the collector cut."""
        out = []
        for line in lines:
            if self._cut:
                line.text = self._cut.pop(line.stream, b"") + line.text
            if line.partial and len(line.text) < self.most_cut:
                self._cut[line.stream] = line.text
            else:
                out.append(line)
        return out


def _fits(wrapping: Wrapping, lines: list[Bare]) -> list[Bare] | None:
    """The lines inside, if most are wrapped like that."""
    if wrapping.sign and not any(wrapping.sign in line.text for line in lines):
        return None
    out: list[Bare] = []
    taken = 0
    for line in lines:
        inner = wrapping.take(line)
        taken += inner is not None
        out += inner if inner is not None else [line]
    if not taken or taken < wrapping.most * len(lines):
        return None
    if wrapping.name == "indented" and not _common(lines):
        return None
    before, after = _formed(lines), _formed(out)
    if after < before or (wrapping.weak and after <= before):
        return None
    return out


def _formed(lines: Iterable[Bare]) -> int:
    return sum(
        has_form(line.text.decode("utf-8", "replace")) or line.logged for line in lines
    )


def _common(lines: Iterable[Bare]) -> bytes:
    """The white space that each line begins with."""
    texts = [line.text for line in lines if line.text.strip()]
    shortest = min((len(t) - len(t.lstrip(b" \t")) for t in texts), default=0)
    return texts[0][:shortest] if shortest else b""


def _unindented(lines: Iterable[Bare], indent: bytes) -> list[Bare]:
    found = []
    for line in lines:
        line.text = line.text.removeprefix(indent)
        found.append(line)
    return found
