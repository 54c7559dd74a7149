"""A request and its answer as they went over the wire, and what is kept of the two in a
case.

Whoever saw requests pass (a HAR, a proxy) has exchanges; a recorded request is made of
one, and a case of many."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mmrepro.base.text import Redactor
from mmrepro.traffic.capture.messages import Bodies, Captured, Contents, Unusable
from mmrepro.traffic.capture.recorded import RecordedRequest, Tally, case_of
from mmrepro.traffic.case.bodies import documents
from mmrepro.traffic.case.model import Content, Origin, Recorded, ServerWanted
from mmrepro.traffic.reading import MALFORMED

METHODS: Final = ("POST", "GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS")
_API: Final = re.compile(
    r"(?:/[\w.~%-]+)*/v\d+/.+|.*/chat/completions|/(?:inference|distserve|nodes|hicache"
    r"|anthropic"
    r"|models?|metrics|fault_tolerance)(?:/.*)?"
    r"|/(?:health\w*|ping|version|ready|load\w*|tokenize\w*|detokenize|generate\w*"
    r"|score|rerank|pooling"
    r"|classify|encode|invocations|server_info|sleep|slow_down|pause\w*|resume\w*"
    r"|continue\w*|terminate"
    r"|abort\w*|describe|wake_?up|reset\w*|flush_cache|freeze_gc|open_session"
    r"|close_session|collective_rpc"
    r"|(?:is|get|set|list|start|stop|begin|end|finish|init|destroy|update|release|send"
    r"|load|unload|merge"
    r"|unmerge|weights?|model|dump|clear|add|remove|parse|separate|configure|scale"
    r"|pd)_\w+"
    r"|generative_scoring|scheduler_\w+|render|derender)"
)
"""Paths as vLLM 0.11 to 0.32, SGLang 0.5.6 to 0.5.23, LMDeploy and gateways have
them."""


ANSWERS: Final = re.compile(
    r".*/(?:completions|responses|messages|embeddings|generate|score|rerank)"
)
"""Paths of requests that nobody sends without a body."""


def is_of_an_engine(path: str) -> bool:
    """Whether a request to ``path`` is for an engine, and none for a page or another
    service."""
    return _API.fullmatch(path.rstrip("/")) is not None


@dataclass(frozen=True)
class Exchange:
    """One request and what came of it.

    Attributes:
        target: path and query.
        begin, end: seconds on any one clock; end is None where no end is known.
        status: None: there was no answer.
        answer: its text, as far as it came.
        left: its client went away before the end; ``leave_s``: by the clock, after so
            long.
    """

    method: str
    target: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    begin: float | None = None
    end: float | None = None
    status: int | None = None
    answer: str = ""
    left: bool = False
    leave_s: float | None = None


class Hears:
    """Makes recorded requests of exchanges, in the order in which they were sent."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self._answers = AnswerReader()

    def heard(
        self, exchange: Exchange, took: float | None
    ) -> tuple[RecordedRequest, RecordedAnswer]:
        """Raises Unusable."""
        operation = self.bodies.request(
            exchange.method, exchange.target, exchange.headers, exchange.body
        )
        stream = operation.stream or exchange.answer.startswith(("data:", "event:"))
        answer = self._answers.read(exchange.status, exchange.answer, took, stream)
        heard = RecordedRequest(
            operation=operation,
            begin=exchange.begin,
            end=exchange.end,
            recorded=answer.recorded,
            pieces=answer.pieces,
            left=exchange.left,
            offers=_offered(exchange.answer),
        )
        return heard, answer


def captured(
    exchanges: Iterable[Exchange],
    server: ServerWanted,
    *,
    file: str = "",
    format: str = "proxy",
) -> Captured:
    """Return the case of what a proxy saw, in the order of sending; what cannot be
    played is counted in its origin."""
    tally = Tally(file, format)
    bodies = Bodies(Contents(), own=True)
    hears = Hears(bodies)
    requests: list[RecordedRequest] = []
    for exchange in exchanges:
        tally.read += 1
        took: float | None = None
        if exchange.begin is not None and exchange.end is not None:
            took = exchange.end - exchange.begin
        try:
            request, _ = hears.heard(exchange, took)
        except Unusable as why:
            tally.left_out[str(why)] += 1
            continue
        if exchange.leave_s is not None:
            leave = f"{exchange.leave_s:.3f}s"
            operation = request.operation.model_copy(update={"leave": leave})
            request = replace(request, operation=operation, left=False)
        requests.append(request)
    tally.dropped.update(bodies.dropped)
    case, ordered = case_of(requests, server, bodies)
    origin = Origin(
        format=format,
        file=file,
        read=tally.read,
        left_out=dict(+tally.left_out),
        dropped=dict(+tally.dropped),
        notes=[*ordered, *bodies.notes()],
    )
    case = case.model_copy(update={"origin": origin})
    pictures = [image for image in case.images.values() if isinstance(image, Content)]
    bodies.contents.keep({picture.sha256 for picture in pictures})
    return Captured(case, bodies.contents)


# --------------------------------------------------------------- values that come again

_LEAST: Final = 6
"""Characters of a name that a server gave, at least."""
_OFFERED: Final = ("id", "response.id", "meta_info.id", "session_id", "message.id")


def _offered(answer: str) -> dict[str, str]:
    """Return values by which later requests may call what an answer is about: value,
    where it stands."""
    offered: dict[str, str] = {}
    for document in documents(answer)[:_LEAST]:
        if isinstance(document, str):
            offered.setdefault(document, "")
        for path in _OFFERED:
            value: Any = document
            for name in path.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if isinstance(value, str):
                offered.setdefault(value, path)
    return {value: path for value, path in offered.items() if len(value) >= _LEAST}


# ------------------------------------------------------------------ answers
HEAD = 200
_DATA = re.compile(r"^data:[ \t]*(.*?)\r?$", re.MULTILINE)


_LAST_EVENTS: Final = frozenset(
    {
        "message_stop",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
        "transcript.text.done",
    }
)
"""Types of events that end a stream without ``[DONE]``: of Anthropic's Messages and
OpenAI's Responses and Audio."""


def _ends_a_stream(event: Any) -> bool:
    if not isinstance(event, dict):
        return False
    meta = event.get("meta_info")  # SGLang's own /generate
    ended = isinstance(meta, dict) and meta.get("finish_reason") is not None
    return ended or event.get("type") in _LAST_EVENTS


@dataclass(frozen=True)
class RecordedAnswer:
    """``pieces``: of a stream, with text; ``whole``: nothing is missing at its end."""

    recorded: Recorded
    pieces: int = 0
    whole: bool = True


class AnswerReader:
    """Reads answers; what looks like a secret in one is replaced, everywhere by the
    same."""

    def __init__(self) -> None:
        self._redactor = Redactor()

    def read(
        self, status: int | None, text: str, seconds: float | None, stream: bool
    ) -> RecordedAnswer:
        """Read one answer. ``stream``: the request asked for a stream."""
        took = None if seconds is None else round(seconds, 4)
        recorded = Recorded(status=status, seconds=took)
        pieces = 0
        whole = True
        words = text
        # A recording may be cut anywhere: what was read before stays.
        try:
            if stream and status == 200:
                whole = not _DATA.search(text)
                words = ""
                for line in _DATA.finditer(text):
                    if line[1] == "[DONE]":
                        whole = True
                        break
                    event = json.loads(line[1])
                    whole = whole or _ends_a_stream(event)
                    piece = self._take(event, recorded)
                    pieces += bool(piece)
                    words = (words + piece)[: HEAD * 2]
                whole = whole or recorded.finish_reason is not None
                recorded.pieces = pieces or None
            elif status == 200:
                words = self._take(json.loads(text), recorded)
        except MALFORMED:
            pass
        # More than is kept is redacted, so that no secret is cut at the end.
        recorded.text = self._redactor.redact(_clean(words)[: HEAD * 2])[:HEAD]
        return RecordedAnswer(recorded, pieces, whole)

    def _take(self, body: Any, recorded: Recorded) -> str:
        """Return the text of one document; its counts go into ``recorded``."""
        usage = body.get("usage") or {}
        recorded.prompt_tokens = _count(
            usage.get("prompt_tokens"), recorded.prompt_tokens
        )
        recorded.completion_tokens = _count(
            usage.get("completion_tokens"), recorded.completion_tokens
        )
        choices = body.get("choices") or []
        if not choices:
            return ""
        choice = choices[0]
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            recorded.finish_reason = _clean(reason[:40])
        inner = choice.get("message") or choice.get("delta") or {}
        text = inner.get("content") or choice.get("text") or ""
        return text if isinstance(text, str) else ""


def _count(value: object, otherwise: int | None) -> int | None:
    sound = type(value) is int and 0 <= value < 2**53
    return value if sound else otherwise  # type: ignore[return-value]


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
