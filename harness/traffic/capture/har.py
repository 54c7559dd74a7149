"""HTTP Archives (HAR 1.2), as mitmproxy, Chrome and Firefox write them; of any size."""

from __future__ import annotations

import base64
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.message import Message as Header
from typing import Any, BinaryIO, Final
from urllib.parse import SplitResult, urlsplit

from mmrepro.base.errors import UsageError
from mmrepro.base.text import is_local_host
from mmrepro.base.units import size
from mmrepro.traffic.capture.exchanges import (
    ANSWERS,
    METHODS,
    Exchange,
    Hears,
    RecordedAnswer,
    is_of_an_engine,
)
from mmrepro.traffic.capture.messages import Bodies, Unusable
from mmrepro.traffic.capture.parsing import CUT, MAX_TEXT, BadJson, events
from mmrepro.traffic.capture.recorded import RecordedRequest, Tally

_FAR_OFF_S = 30 * 86400.0
"""From the middle of all: such a time is a clock's mistake."""
PATIENCE_S = 5.0
"""A client that waited longer than this, and than twice the slowest answer, gave up on
a server that did not answer: its request stays in the replay, so that the silence shows
again."""

_ENTRY = ("log", "entries", "item")


def _wanted_paths() -> set[tuple[str, ...]]:
    paths: set[tuple[str, ...]] = set()
    for where, names in (
        ("", "startedDateTime time"),
        ("request", "method url"),
        ("request postData", "mimeType text encoding"),
        ("response", "status _error"),
        ("response content", "text encoding mimeType"),
        ("timings", "connect ssl receive"),
    ):
        for name in names.split():
            paths.add((*_ENTRY, *where.split(), name))
    return paths


_WANTED: Final = _wanted_paths()
"""Paths of the values of an entry that are kept."""
_DEEPEST = max(map(len, _WANTED)) + 1
_COUNTED: Final = {
    (*_ENTRY, "response", "headers", "item"): "header",
    (*_ENTRY, "response", "cookies", "item"): "cookie",
    (*_ENTRY, "_webSocketMessages", "item"): "websocket message",
}
_HEADERS: Final = (*_ENTRY, "request", "headers", "item")
_BY_CLIENT: Final = re.compile(r"client|abort|cancel|NS_BINDING", re.IGNORECASE)


@dataclass
class HarEntry:
    """What is kept of one entry while it is read."""

    values: dict[str, Any] = field(default_factory=dict)
    headers: list[list[str]] = field(default_factory=list)
    is_object: bool = False

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def seconds(self, name: str) -> float | None:
        """Return a number of milliseconds in seconds; None where there is no such number,
        or a negative one."""
        value = self.values.get(name)
        try:
            seconds = float(value) / 1000  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
        return seconds if 0 <= seconds < 1e7 else None


class Har:
    """Reads one file: ``requests`` gives what was sent, in the order of the file.
    ``host``: ``HOST[:PORT]`` whose requests are read; "": of the only one."""

    def __init__(
        self, file: BinaryIO, bodies: Bodies, tally: Tally, host: str = ""
    ) -> None:
        self.bodies, self.tally = bodies, tally
        self._events = events(file)
        self._number = 0
        """Of the entry that is read."""
        self.hosts: Counter[str] = Counter()
        self._wanted = _chosen(host) if host else ("", None)
        self._hears = Hears(bodies)
        self.creator = ""

    def requests(self) -> Iterator[RecordedRequest]:
        """Raises UsageError: the file is none that can be read."""
        try:
            for entry in self._entries():
                self.tally.read += 1
                try:
                    yield self._heard(entry)
                except Unusable as why:
                    self.tally.left_out[str(why)] += 1
        except BadJson as error:
            where = f"entry {self._number}" if self._number else "its beginning"
            raise UsageError(
                f"{self.tally.file} cannot be read as a HAR, from {where} on: {error}.",
                hint=(
                    "mitmdump writes the file as it ends: end it with Ctrl-C, "
                    "not with kill -9"
                ),
            ) from error

    # ------------------------------------------------------------------ one entry

    def _heard(self, entry: HarEntry) -> RecordedRequest:
        """Raises Unusable."""
        if not entry.is_object:
            raise Unusable("an entry that is no object")
        method = entry.text("request.method").upper()
        target = entry.text("request.url")
        parts, port = self._address(method, target, entry)
        host = _lowered_host(parts)
        self.hosts[f"{host}:{port}" if port else host] += 1

        headers = _headers(entry)
        body = _body(entry)
        if method == "POST" and not body and ANSWERS.fullmatch(parts.path):
            # A body that was not recorded differs from one that was empty.
            lengths = [v for name, v in headers if name.lower() == "content-length"]
            if "0" not in lengths:
                raise Unusable("no body in the recording")
        begin = _moment(entry.text("startedDateTime"))
        took = self._took(entry)
        exchange = Exchange(
            method=method,
            target=parts._replace(scheme="", netloc="", fragment="").geturl(),
            headers=headers,
            body=body,
            begin=begin,
            end=None if begin is None or took is None else begin + took,
            status=_status(entry.values.get("response.status")),
            answer=self._text(entry),
        )
        heard, answer = self._hears.heard(exchange, took)
        return replace(heard, left=self._left(entry, answer))

    def _address(
        self, method: str, target: str, entry: HarEntry
    ) -> tuple[SplitResult, int | None]:
        """Return a request's address and port. Raises Unusable: it is none for an engine,
        or for another host than is read."""
        if target.lower().startswith(("ws:", "wss:")) or _upgraded(entry):
            raise Unusable("a websocket")
        if method == "CONNECT":
            raise Unusable("CONNECT request")
        if method not in METHODS:
            raise Unusable("another request")
        host, port = _host(target)
        parts = urlsplit(target)
        local = is_local_host(host) and method != "GET"
        if not local and not is_of_an_engine(parts.path):
            raise Unusable(f"{method} to another path")
        wanted, wanted_port = self._wanted
        if wanted and (wanted != host or wanted_port not in (None, port)):
            raise Unusable("another host")
        return parts, port

    def _took(self, entry: HarEntry) -> float | None:
        """Return the seconds until the answer was complete."""
        took = entry.seconds("time")
        if took is None or self.creator != "mitmproxy":
            return took
        # mitmproxy adds what its own connection to the server took, which lies within the
        # waiting.
        connect = entry.seconds("timings.connect") or 0.0
        tls = entry.seconds("timings.ssl") or 0.0
        return max(0.0, took - (connect + tls))

    def _text(self, entry: HarEntry) -> str:
        """Return the answer's text."""
        text = entry.text("response.content.text")
        if entry.text("response.content.encoding").lower() == "base64":
            return _decoded(text, entry.text("response.content.mimeType"))
        return text

    def _left(self, entry: HarEntry, answer: RecordedAnswer) -> bool:
        """Whether its client went away before the answer was complete."""
        error = entry.text("response._error")
        if error:
            return bool(_BY_CLIENT.search(error))
        if self.creator == "mmrepro" and answer.recorded.status is not None:
            return False  # our proxy notes each client that leaves
        if answer.recorded.status is None or not answer.whole:
            return True
        # Of a stream whose end it never saw, mitmproxy keeps no text.
        endless = (
            self.creator == "mitmproxy" and entry.values.get("timings.receive") == 0
        )
        return endless and not entry.text("response.content.text")

    # ------------------------------------------------------------------ the file

    def _entries(self) -> Iterator[HarEntry]:
        """Yield each entry once it has ended. Raises BadJson, UsageError."""
        path: list[str] = []
        entry = HarEntry()
        has_list = False
        for event, value, depth in self._events:
            if event == "map_key":
                path[-1] = value
                continue
            if event in ("end_map", "end_array"):
                path.pop()
                if depth == len(_ENTRY) and tuple(path) == _ENTRY:
                    yield entry
                continue
            if depth <= _DEEPEST:
                here = tuple(path)
                if here == _ENTRY:
                    self._number += 1
                    entry = HarEntry(is_object=event == "start_map")
                    if not event.startswith("start"):
                        yield entry  # neither object nor list: it has no end of its own
                elif here == _ENTRY[:2]:
                    has_list = event == "start_array"
                else:
                    self._value(entry, here, value)
            if event == "start_array":
                path.append("item")
            elif event == "start_map":
                path.append("")
        if not has_list:
            raise UsageError(
                f"{self.tally.file} is JSON, but no HAR: it has no list log.entries.",
                hint="mitmdump --set hardump=FILE writes one",
            )

    def _value(self, entry: HarEntry, here: tuple[str, ...], value: Any) -> None:
        if here == _HEADERS:
            entry.headers.append(["", ""])
        elif here[:-1] == _HEADERS:
            if here[-1] in ("name", "value") and isinstance(value, str):
                entry.headers[-1][here[-1] == "value"] = value
        elif here in _COUNTED:
            self.tally.dropped[_COUNTED[here]] += 1
            if here[-2] == "_webSocketMessages":
                entry.values["_webSocketMessages"] = True
        elif here in _WANTED:
            entry.values[".".join(here[len(_ENTRY) :])] = value
        elif here == ("log", "creator", "name"):
            self.creator = str(value)


def _host(url: str) -> tuple[str, int | None]:
    """Return host, in small letters, and port. Raises Unusable."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError as error:
        raise Unusable("an entry without an address") from error
    return _lowered_host(parts), port


def _lowered_host(parts: SplitResult) -> str:
    return (parts.hostname or "").lower()


def _headers(entry: HarEntry) -> list[tuple[str, str]]:
    """Return a request's headers; the body's type stands elsewhere in some archives."""
    headers = [(name, value) for name, value in entry.headers]
    kind = entry.text("request.postData.mimeType")
    if kind and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", kind))
    return headers


def _chosen(host: str) -> tuple[str, int | None]:
    """Return the host and port that somebody typed. Raises UsageError."""
    try:
        name, port = _host(f"//{host}")
    except Unusable:
        name, port = "", None
    if not name:
        raise UsageError(f"{host!r} is no HOST[:PORT].")
    return name, port


def _upgraded(entry: HarEntry) -> bool:
    """Whether its connection became a websocket."""
    status = entry.values.get("response.status")
    return "_webSocketMessages" in entry.values or status == 101


def _status(value: object) -> int | None:
    return value if type(value) is int and 100 <= value <= 599 else None


def _body(entry: HarEntry) -> bytes:
    """Return the request's body. Raises Unusable."""
    text = entry.text("request.postData.text")
    if text.endswith(CUT):
        raise Unusable(f"a body of more than {size(MAX_TEXT)}")
    if entry.text("request.postData.encoding").lower() != "base64":
        return text.encode("utf-8", "surrogatepass")
    kind = entry.text("request.postData.mimeType")
    if "json" in kind or not kind:
        return _decoded(text, kind).encode()
    return base64.b64decode(text)


def _decoded(text: str, mime_type: str) -> str:
    header = Header()
    header["content-type"] = re.sub(r"[\r\n]", " ", mime_type)
    try:
        data = base64.b64decode(text.removesuffix(CUT))
        return data.decode(header.get_content_charset("utf-8"), "replace")
    except (ValueError, LookupError):
        return ""


def _moment(text: str) -> float | None:
    """Return seconds since 1970 of an ISO 8601 text; one without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def settled(requests: Sequence[RecordedRequest], creator: str) -> list[RecordedRequest]:
    """Drop times of a clock that was far off, and keep the requests of clients that
    waited in vain for a server: they did not leave on purpose.

    Of a client that left, mitmproxy writes no time; but its entries stand in the order
    in which they ended. After the last answer, everybody waited in vain."""
    believed = _without_far_times(requests)
    slowest = 0.0
    last_answered = -1
    for number, request in enumerate(believed):
        if not request.left:
            slowest = max(slowest, _took(request))
            last_answered = number
    patience = max(PATIENCE_S, 2 * slowest)

    by_end = creator == "mitmproxy"
    latest: float | None = None
    settled: list[RecordedRequest] = []
    for number, request in enumerate(believed):
        if request.left and by_end and request.end is not None and latest is not None:
            request = replace(request, end=max(request.end, latest))
        in_vain = _took(request) > patience or (by_end and number > last_answered)
        if request.left and in_vain:
            end = None if by_end else request.end
            request = replace(request, left=False, end=end)
        elif request.end is not None:
            latest = max(request.end, latest or request.end)
        settled.append(request)
    return settled


def _without_far_times(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Drop times that are far from the middle of all."""
    moments = [request.begin for request in requests if request.begin is not None]
    middle = statistics.median_low(moments) if moments else 0.0
    believed: list[RecordedRequest] = []
    for request in requests:
        if request.begin is not None and abs(request.begin - middle) > _FAR_OFF_S:
            request = replace(request, begin=None, end=None)
        believed.append(request)
    return believed


def _took(request: RecordedRequest) -> float:
    """Return its seconds from begin to end; 0 if one of them is not known."""
    if request.begin is None or request.end is None:
        return 0.0
    return request.end - request.begin
