"""What a recorded answer tells, whole or as a stream of events. Never raises: it is only shown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from mmrepro.case.model import Recorded
from mmrepro.text.redact import Redactor

HEAD = 200
_DATA = re.compile(r"^data:[ \t]*(.*?)\r?$", re.MULTILINE)
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Answer:
    """``pieces``: of a stream, with text; ``whole``: nothing is missing at its end."""

    recorded: Recorded
    pieces: int = 0
    whole: bool = True


class Answers:
    """Reads answers; what looks like a secret in one is replaced, everywhere by the same."""

    def __init__(self) -> None:
        self._redactor = Redactor()

    def read(self, status: int | None, text: str, seconds: float | None, stream: bool) -> Answer:
        """``stream``: the request asked for one."""
        recorded = Recorded(status=status, seconds=None if seconds is None else round(seconds, 4))
        pieces, whole, said = 0, True, text
        try:
            if stream and status == 200:
                whole, said = not _DATA.search(text), ""
                for line in _DATA.finditer(text):
                    if line[1] == "[DONE]":
                        whole = True
                        break
                    piece = self._take(json.loads(line[1]), recorded)
                    pieces += bool(piece)
                    said = (said + piece)[: HEAD * 2]
                whole = whole or recorded.finish_reason is not None
            elif status == 200:
                said = self._take(json.loads(text), recorded)
        except _MALFORMED:
            pass
        recorded.text = self._redactor.redact(_clean(said)[: HEAD * 2])[:HEAD]
        return Answer(recorded, pieces, whole)

    def _take(self, body: Any, recorded: Recorded) -> str:
        """The text of one document; its counts go into ``recorded``."""
        usage = body.get("usage") or {}
        recorded.prompt_tokens = _count(usage.get("prompt_tokens"), recorded.prompt_tokens)
        recorded.completion_tokens = _count(
            usage.get("completion_tokens"), recorded.completion_tokens
        )
        text = ""
        for choice in (body.get("choices") or [])[:1]:
            told = choice.get("finish_reason")
            if isinstance(told, str):
                recorded.finish_reason = _clean(told[:40])
            inner = choice.get("message") or choice.get("delta") or {}
            text = inner.get("content") or choice.get("text") or ""
        return text if isinstance(text, str) else ""


def _count(value: object, otherwise: int | None) -> int | None:
    sound = type(value) is int and 0 <= value < 2**53
    return value if sound else otherwise  # type: ignore[return-value]


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
