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
from urllib.parse import urlsplit

from mmrepro.base.errors import UsageError
from mmrepro.base.text.addresses import is_local_host
from mmrepro.base.units import size
from mmrepro.traffic.capture.exchanges import (
    ANSWERS,
    METHODS,
    Answer,
    Exchange,
    Hears,
    is_of_an_engine,
)
from mmrepro.traffic.capture.messages import Bodies, Unusable
from mmrepro.traffic.capture.parsing import CUT, MAX_TEXT, BadJson, events
from mmrepro.traffic.capture.recorded import RecordedRequest, Tally

FAR_OFF_S = 30 * 86400.0
"""From the middle of all: such a time is a clock's mistake."""
PATIENCE_S = 5.0
"""A client that waited longer than this, and than twice the slowest answer, gave up on
a server that did not answer: its request stays in the replay, so that the silence shows
again."""

_ENTRY = ("log", "entries", "item")
_WANTED: Final = {
    *((*_ENTRY, name) for name in ("startedDateTime", "time")),
    *((*_ENTRY, "request", name) for name in ("method", "url")),
    *(
        (*_ENTRY, "request", "postData", name)
        for name in ("mimeType", "text", "encoding")
    ),
    *((*_ENTRY, "response", name) for name in ("status", "_error")),
    *(
        (*_ENTRY, "response", "content", name)
        for name in ("text", "encoding", "mimeType")
    ),
    *((*_ENTRY, "timings", name) for name in ("connect", "ssl", "receive")),
}
DEEPEST = max(map(len, _WANTED)) + 1
_COUNTED: Final = {
    (*_ENTRY, "response", "headers", "item"): "header",
    (*_ENTRY, "response", "cookies", "item"): "cookie",
    (*_ENTRY, "_webSocketMessages", "item"): "websocket message",
}
_HEADERS: Final = (*_ENTRY, "request", "headers", "item")
_BY_CLIENT: Final = re.compile(r"client|abort|cancel|NS_BINDING", re.IGNORECASE)


@dataclass
class Entry:
    """What is kept of one entry while it is read."""

    values: dict[str, Any] = field(default_factory=dict)
    headers: list[list[str]] = field(default_factory=list)
    is_object: bool = False

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def seconds(self, name: str) -> float | None:
        """Of a number of milliseconds; None where it is not told, or is negative."""
        value = self.values.get(name)
        try:
            told = float(value) / 1000  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
        return told if 0 <= told < 1e7 else None


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

    def _heard(self, entry: Entry) -> RecordedRequest:
        """Raises Unusable."""
        if not entry.is_object:
            raise Unusable("an entry that is no object")
        method, target = entry.text("request.method").upper(), entry.text("request.url")
        if (
            target[:3].lower() == "ws:"
            or target[:4].lower() == "wss:"
            or _upgraded(entry)
        ):
            raise Unusable("a websocket")
        if method not in METHODS:
            raise Unusable(
                "CONNECT request" if method == "CONNECT" else "another request"
            )
        host, port = _host(target)
        parts = urlsplit(target)
        local = is_local_host(host) and method != "GET"
        if not local and not is_of_an_engine(parts.path):
            raise Unusable(f"{method} to another path")
        wanted, wanted_port = self._wanted
        if wanted and (wanted != host or wanted_port not in (None, port)):
            raise Unusable("another host")
        self.hosts[f"{host}:{port}" if port else host] += 1
        begin, took = _moment(entry.text("startedDateTime")), self._took(entry)
        headers = [(name, value) for name, value in entry.headers]
        kind = entry.text("request.postData.mimeType")
        if kind and not any(name.lower() == "content-type" for name, _ in headers):
            headers.append(("Content-Type", kind))
        body = _body(entry)
        empty = any(
            name.lower() == "content-length" and value == "0" for name, value in headers
        )
        if (
            method == "POST"
            and not body
            and not empty
            and ANSWERS.fullmatch(parts.path)
        ):
            raise Unusable("no body in the recording")
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

    def _took(self, entry: Entry) -> float | None:
        """Seconds until the answer was complete. mitmproxy adds to them what its own
        connection to the server took, which lies within the waiting."""
        took = entry.seconds("time")
        if took is not None and self.creator == "mitmproxy":
            own = (
                entry.seconds(f"timings.{name}") or 0.0 for name in ("connect", "ssl")
            )
            took = max(0.0, took - sum(own))
        return took

    def _text(self, entry: Entry) -> str:
        """Of the answer."""
        text = entry.text("response.content.text")
        if entry.text("response.content.encoding").lower() == "base64":
            return _decoded(text, entry.text("response.content.mimeType"))
        return text

    def _left(self, entry: Entry, answer: Answer) -> bool:
        """Its client went away before the answer was complete."""
        error = entry.text("response._error")
        if error or answer.recorded.status is None:
            return not error or bool(_BY_CLIENT.search(error))
        # mitmproxy: a stream that it did not keep, and whose end it never saw
        endless = (
            self.creator == "mitmproxy" and entry.values.get("timings.receive") == 0
        )
        return not answer.whole or (endless and not entry.text("response.content.text"))

    # ------------------------------------------------------------------ the file

    def _entries(self) -> Iterator[Entry]:
        """Each entry once it has ended. Raises BadJson, UsageError."""
        path: list[str] = []
        entry, seen = Entry(), False
        for event, value, depth in self._events:
            if event == "map_key":
                path[-1] = value
            elif event in ("end_map", "end_array"):
                path.pop()
                if depth == len(_ENTRY) and tuple(path) == _ENTRY:
                    yield entry
            else:
                if depth <= DEEPEST:
                    here = tuple(path)
                    if here == _ENTRY:
                        self._number += 1
                        entry = Entry(is_object=event == "start_map")
                        if not event.startswith("start"):
                            yield entry
                    elif here == _ENTRY[:2]:
                        seen = event == "start_array"
                    else:
                        self._value(entry, here, value)
                if event.startswith("start"):
                    path.append("item" if event == "start_array" else "")
        if not seen:
            raise UsageError(
                f"{self.tally.file} is JSON, but no HAR: it has no list log.entries.",
                hint="mitmdump --set hardump=FILE writes one",
            )

    def _value(self, entry: Entry, here: tuple[str, ...], value: Any) -> None:
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
    """Host, in small letters, and port. Raises Unusable."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError as error:
        raise Unusable("an entry without an address") from error
    return (parts.hostname or "").lower(), port


def _chosen(host: str) -> tuple[str, int | None]:
    """Raises UsageError."""
    try:
        found = _host(f"//{host}")
    except Unusable:
        found = ("", None)
    if not found[0]:
        raise UsageError(f"{host!r} is no HOST[:PORT].")
    return found


def _upgraded(entry: Entry) -> bool:
    return (
        "_webSocketMessages" in entry.values
        or entry.values.get("response.status") == 101
    )


def _status(told: object) -> int | None:
    return told if type(told) is int and 100 <= told <= 599 else None


def _body(entry: Entry) -> bytes:
    """Raises Unusable."""
    text = entry.text("request.postData.text")
    if text.endswith(CUT):
        raise Unusable(f"a body of more than {size(MAX_TEXT)}")
    if entry.text("request.postData.encoding").lower() == "base64":
        kind = entry.text("request.postData.mimeType")
        if "json" in kind or not kind:
            return _decoded(text, kind).encode()
        return base64.b64decode(text)
    return text.encode("utf-8", "surrogatepass")


def _decoded(text: str, mime_type: str) -> str:
    header = Header()
    header["content-type"] = re.sub(r"[\r\n]", " ", mime_type)
    try:
        data = base64.b64decode(text.removesuffix(CUT))
        return data.decode(header.get_content_charset("utf-8"), "replace")
    except (ValueError, LookupError):
        return ""


def _moment(text: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 text."""
    try:
        told = datetime.fromisoformat(text)
        return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def settled(found: Sequence[RecordedRequest], creator: str) -> list[RecordedRequest]:
    """Without times of a clock that was far off, and with the requests of clients that
    waited in vain for a server: they did not leave on purpose, and stay.

    Of a client that left, mitmproxy writes no time; but its entries stand in the order
    in which they ended. After the last answer, everybody waited in vain."""
    moments = [h.begin for h in found if h.begin is not None]
    middle = statistics.median_low(moments) if moments else 0.0
    believed = [
        replace(h, begin=None, end=None)
        if h.begin is not None and abs(h.begin - middle) > FAR_OFF_S
        else h
        for h in found
    ]
    patience = max(
        PATIENCE_S, 2 * max((_took(h) for h in believed if not h.left), default=0.0)
    )
    by_end = creator == "mitmproxy"
    last = max((n for n, h in enumerate(believed) if not h.left), default=-1)
    latest: float | None = None
    settled = []
    for number, h in enumerate(believed):
        if h.left and by_end and h.end is not None and latest is not None:
            h = replace(h, end=max(h.end, latest))
        if h.left and (_took(h) > patience or (by_end and number > last)):
            h = replace(h, left=False, end=None if by_end else h.end)
        elif h.end is not None:
            latest = max(h.end, latest or h.end)
        settled.append(h)
    return settled


def _took(heard: RecordedRequest) -> float:
    whole = heard.begin is not None and heard.end is not None
    return (heard.end or 0.0) - (heard.begin or 0.0) if whole else 0.0
