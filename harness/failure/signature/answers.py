"""How an answer reads to a client, who may have asked for more than the engine can
hold.

"Answered" is more than HTTP 200 here: an engine may put its error into the answer's
text."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mmrepro.failure.signature.decide import Finding
from mmrepro.failure.signature.views import Requests
from mmrepro.traffic.evidence import Evidence, RequestRecord

ReplyKind = Literal[
    "answered", "opaque 500", "opaque answer", "named answer", "refusal", "broken"
]
_LENGTH = re.compile(r"length|too long|exceed|INPUT_LENGTH", re.IGNORECASE)
_MESSAGE = re.compile(r"""['"]message['"]:\s*['"](.+?)['"]\s*[,}]""")
_CAUSE = re.compile(r"\bkv\b|cache|block|gpu memory", re.IGNORECASE)


@dataclass(frozen=True)
class Grade:
    """How a client is told that a prompt does not fit.

    ``opaque``: nothing says that it is the length. ``named answer``: a 200 whose text
    is an error with the engine's status. ``refusal``: a proper error that says it is
    the length."""

    kind: ReplyKind
    words: str
    names_limit: bool | None
    """None: it is not known what the limit is."""
    names_cause: bool

    @property
    def explained(self) -> bool:
        return self.kind in ("named answer", "refusal")

    def __str__(self) -> str:
        if self.kind in ("answered", "broken"):
            return self.words
        if not self.explained:
            return f"{self.words}: opaque, it does not say that the prompt is too long"

        names: list[str] = []
        lacks = ""
        if self.names_limit:
            names.append("the limit")
        # None: the limit is not known, so neither is whether the answer names it.
        elif self.names_limit is False:
            lacks += ", not the limit in tokens"
        if self.names_cause:
            names.append("the cause")
        else:
            lacks += ", not the cause, the KV budget"

        how = "explained"
        if self.kind == "named answer":
            how = "explained, but as an answer with 200"
        return f"{self.words}: {how}; it names {' and '.join(names) or 'the length'}{lacks}"


def grade(record: RequestRecord, limit: float | None = None) -> Grade:
    """How ``record`` reads. ``limit``: the longest prompt in tokens, as the engine has
    it."""
    text = record.error or record.text
    kind = _kind(record, by_length=bool(_LENGTH.search(text)))
    if kind == "answered":
        words = (
            f"HTTP 200 with {record.completion_tokens} tokens in "
            f"{record.latency_s:.2f} s"
        )
    elif kind == "broken":
        words = f"HTTP {record.status}, then {_message(text)}"
    else:
        words = f"HTTP {record.status} “{_message(text)}” in {record.latency_s:.2f} s"

    names_limit = None
    if limit is not None:
        names_limit = bool(re.search(rf"\b{limit:g}\b", text))
    return Grade(kind, words, names_limit, names_cause=bool(_CAUSE.search(text)))


def _message(text: str) -> str:
    """What an error says by itself, shortened; of another text its beginning."""
    message = _MESSAGE.search(text)
    shown = message[1] if message else text
    return shown if len(shown) <= 160 else shown[:159] + "…"


def _kind(record: RequestRecord, *, by_length: bool) -> ReplyKind:
    if record.timed_out or record.status is None:
        return "broken"
    if record.status >= 400:
        if by_length:
            return "refusal"
        return "opaque 500" if record.status >= 500 else "opaque answer"
    # A stream has its status before it knows of an error.
    if record.error:
        return "refusal" if record.stream and by_length else "broken"
    is_error = record.text.startswith("internal error happened")
    if record.finish_reason == "error" or is_error:
        return "named answer" if by_length else "opaque answer"
    return "answered" if record.completion_tokens or record.text else "opaque answer"


def given(*labels: str, or_explained: bool = False) -> Callable[[Evidence], Finding]:
    """Whether each of these requests got tokens; ``or_explained``: or an error that
    says why."""

    def answered(evidence: Evidence) -> Finding:
        met = True
        shown: list[str] = []
        for label in labels:
            answer = grade(Requests(evidence).first(label))
            explained = or_explained and answer.explained
            met = met and (answer.kind == "answered" or explained)
            shown.append(f"{label}: {answer}")
        return Finding.of(met, "; ".join(shown))

    return answered
