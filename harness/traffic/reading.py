"""Answers in the forms of the OpenAI API, read into a request's record."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord, ToolCall

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATE = "/generate"
"""SGLang's own form."""
TEXT_LIMIT = 4000
ERROR_LIMIT = 2000
MAX_LOGPROBS = 256
"""Tokens of an answer of which text and logprob are kept."""
MAX_LIKELIEST = 8
"""Tokens in the place of one, of which text and logprob are kept."""
_MAX_CHOICES = 256

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON of an unexpected shape raises; hostile nesting ends in
RecursionError."""


@dataclass(frozen=True)
class RequestWatch:
    """Who looks on while a request goes on: of such a one all is kept that came of it.

    Attributes:
        sent: called once the request is written.
        piece: called with the number of pieces of a stream so far, at each.
        leave_at: the client goes away at so many pieces; 0: as soon as the request is
            written.
        leave_s: the same, so many seconds after it began to send.
        heard: called with the bytes of the answer, or with each line of a stream.
        headed: called with the headers of the answer.
    """

    sent: Callable[[], None]
    piece: Callable[[int], None]
    leave_at: int | None = None
    leave_s: float | None = None
    heard: Callable[[bytes], None] = lambda _: None
    headed: Callable[[Mapping[str, str]], None] = lambda _: None


class Left(Exception):
    """The client goes away, as it was meant to."""


def read_completion(body: Any, record: RequestRecord, *, watched: bool = False) -> None:
    """Copy text, finish reason, usage and logprobs of a completion into ``record``; if
    it is ``watched``, of all choices."""
    choice = body["choices"][0]
    content = _message(choice, record, "message")["content"]
    record.text = _text(content)[:TEXT_LIMIT]
    record.finish_reason = _text(choice.get("finish_reason")) or None
    _read_usage(body.get("usage") or {}, record, cached=True, watched=watched)
    record.tokens, record.logprobs = _tokens(choice)
    if not watched:
        return

    for choice in body["choices"]:
        inner = _message(choice, record, "message")
        _note(choice, inner, record)


def read_generated(body: Any, record: RequestRecord) -> None:
    """Copy the same fields of an answer in SGLang's own form."""
    meta = body["meta_info"]
    reason = meta.get("finish_reason") or {}
    record.text = _text(body["text"])[:TEXT_LIMIT]
    record.finish_reason = _text(reason.get("type")) or None
    record.prompt_tokens = count(meta.get("prompt_tokens"))
    record.completion_tokens = count(meta.get("completion_tokens"))
    record.cached_tokens = count(meta.get("cached_tokens"))

    # Each entry is a list: the logprob, the token's id, perhaps more.
    entries = (meta.get("output_token_logprobs") or [])[:MAX_LOGPROBS]
    record.tokens = [_text(token) for _, token, *_ in entries]
    record.logprobs = [_finite(logprob) for logprob, *_ in entries]


def _message(choice: Any, record: RequestRecord, name: str) -> Any:
    """Return what holds the content of a choice; a plain completion has its text in the
    choice."""
    if record.path == COMPLETIONS:
        return {"content": choice["text"]}
    return choice[name]


def _tokens(choice: Any) -> tuple[list[str], list[float]]:
    """Return text and logprob of each token, as far as the answer has them."""
    logprobs = choice.get("logprobs") or {}
    texts: list[str] = []
    values: list[float] = []

    # Plain completions have two lists beside each other in place of entries; the first
    # token of an echoed prompt has no logprob.
    tokens = (logprobs.get("tokens") or [])[:MAX_LOGPROBS]
    if tokens:
        token_logprobs = logprobs.get("token_logprobs") or []
        for token, value in zip(tokens, token_logprobs, strict=False):
            if value is not None:
                texts.append(_text(token))
                values.append(_finite(value))
        return texts, values

    for entry in (logprobs.get("content") or [])[:MAX_LOGPROBS]:
        texts.append(_text(entry["token"]))
        values.append(_finite(entry["logprob"]))
    return texts, values


def _likeliest(choice: Any) -> list[list[tuple[str, float]]]:
    """Return the likeliest tokens in the place of each one, as far as the answer has
    them."""
    logprobs = choice.get("logprobs") or {}
    places: list[list[tuple[str, float]]] = []

    # Plain completions have a mapping for each place, or null.
    mappings = (logprobs.get("top_logprobs") or [])[:MAX_LOGPROBS]
    if mappings:
        for mapping in mappings:
            pairs = list((mapping or {}).items())
            places.append(_finite_pairs(pairs[:MAX_LIKELIEST]))
        return places

    for entry in (logprobs.get("content") or [])[:MAX_LOGPROBS]:
        entries = (entry.get("top_logprobs") or [])[:MAX_LIKELIEST]
        places.append(_finite_pairs((top["token"], top["logprob"]) for top in entries))
    return places


def _finite_pairs(pairs: Iterable[tuple[object, object]]) -> list[tuple[str, float]]:
    return [(_text(token), _finite(logprob)) for token, logprob in pairs]


def _note(choice: Any, inner: Any, record: RequestRecord) -> ChoiceSeen:
    """Add what came of a choice, all of it or a piece, to what the record has of it.

    ``inner`` is its part that holds content, reasoning and calls of tools.
    """
    text = _text(inner.get("content"))
    kept = _kept_choice(record, count(choice.get("index")) or 0)
    kept.text = (kept.text + text)[:TEXT_LIMIT]
    reason = _text(choice.get("finish_reason"))
    if reason:
        kept.finish_reason = reason
        kept.finishes += 1

    if len(kept.tokens) < MAX_LOGPROBS:
        tokens, logprobs = _tokens(choice)
        kept.tokens += tokens
        kept.logprobs += logprobs
        kept.top += _likeliest(choice)[: len(tokens)]
    room = MAX_LOGPROBS - len(kept.token_ids)
    token_ids = (choice.get("token_ids") or [])[:room]
    kept.token_ids += [int(token) for token in token_ids]

    reasoning = _text(inner.get("reasoning") or inner.get("reasoning_content"))
    kept.reasoning = (kept.reasoning + reasoning)[:TEXT_LIMIT]
    for place, call in enumerate(inner.get("tool_calls") or []):
        # Pieces of a call tell which one they belong to; whole calls stand in order.
        index = count(call.get("index")) if "index" in call else place
        _note_call(call, index or 0, kept)

    offsets = (choice.get("logprobs") or {}).get("text_offset") or []
    room = MAX_LOGPROBS - len(kept.text_offsets)
    kept.text_offsets += [int(offset) for offset in offsets[:room]]
    return kept


def _kept_choice(record: RequestRecord, index: int) -> ChoiceSeen:
    """Return the record's choice of that index, which is added if there is room."""
    for choice in record.choices:
        if choice.index == index:
            return choice
    added = ChoiceSeen(index=index)
    if len(record.choices) < _MAX_CHOICES:
        record.choices.append(added)
        record.choices.sort(key=lambda choice: choice.index)
    return added


def _note_call(call: Any, index: int, kept: ChoiceSeen) -> None:
    """Add a call of a tool, or a piece of one."""
    known = _kept_call(kept, index)
    function = call.get("function") or {}
    known.name += _text(function.get("name"))
    arguments = known.arguments + _text(function.get("arguments"))
    known.arguments = arguments[:TEXT_LIMIT]


def _kept_call(kept: ChoiceSeen, index: int) -> ToolCall:
    """Return the call at that place of a choice, which is added if there is room."""
    for call in kept.tool_calls:
        if call.index == index:
            return call
    added = ToolCall(index=index)
    if len(kept.tool_calls) < _MAX_CHOICES:
        kept.tool_calls.append(added)
    return added


def _read_usage(
    usage: Any, record: RequestRecord, *, cached: bool, watched: bool
) -> None:
    record.prompt_tokens = count(usage.get("prompt_tokens", record.prompt_tokens))
    record.completion_tokens = count(
        usage.get("completion_tokens", record.completion_tokens)
    )
    if cached and usage:
        details = usage.get("prompt_tokens_details") or {}
        record.cached_tokens = count(details.get("cached_tokens"))
    if watched and usage:
        record.total_tokens = count(usage.get("total_tokens"))
        record.usages += 1


def read_chunk(
    chunk: Any, record: RequestRecord, watch: RequestWatch | None = None
) -> str:
    """Return the text of one chunk; its time, finish reason and usage go into
    ``record``.

    Raises Left: that was the piece at which the client goes away.
    """
    if chunk.get("error") is not None:
        record.error = _text(chunk["error"])[:ERROR_LIMIT] or "an error without a text"
        return ""
    watched = watch is not None
    before = record.pieces
    texts: list[str] = []
    for choice in chunk.get("choices", []):
        delta = _message(choice, record, "delta")
        content = delta.get("content")
        is_piece = _is_piece(delta, choice, watched=watched)
        if is_piece:
            _note_first_token(record)
        texts.append(_text(content))
        record.finish_reason = _text(choice.get("finish_reason")) or None
        if watched:
            kept = _note(choice, delta, record)
            kept.pieces += is_piece
            record.pieces += is_piece

    _read_usage(chunk.get("usage") or {}, record, cached=watched, watched=watched)
    if watch is not None and record.pieces > before:
        _report_piece(record, watch)
    return "".join(texts)


def _note_first_token(record: RequestRecord) -> None:
    if record.ttft_s is None:
        record.ttft_s = round(time.monotonic() - record.sent.mono, 4)


def _report_piece(record: RequestRecord, watch: RequestWatch) -> None:
    """Raises Left: that was the piece at which the client goes away."""
    watch.piece(record.pieces)
    if watch.leave_at and record.pieces >= watch.leave_at:
        raise Left


_BESIDE = ("reasoning", "reasoning_content", "tool_calls")
"""Fields of a piece that carry tokens besides its content."""


def _is_piece(delta: Any, choice: Any, *, watched: bool) -> bool:
    """Whether a delta carries a token: text may be empty, as for half a character."""
    content = delta.get("content")
    if watched and any(delta.get(name) for name in _BESIDE):
        return True
    if content is None:
        return False
    if not watched:
        return "role" not in delta
    # The first chunk has a role and the last one a reason; with empty text they carry
    # no token of their own.
    return bool(content) or not (delta.get("role") or choice.get("finish_reason"))


# ------------------------------------------------------------------ other forms

_THINKS = ("reasoning_text", "summary_text", "thinking")


def read_other(body: Any, record: RequestRecord) -> None:
    """Read an answer in another form, as far as it is known: SGLang's own, vLLM's
    ``/inference/v1/generate``, ``/v1/responses`` and ``/v1/messages``."""
    answers = body if isinstance(body, list) else [body]
    for place, answer in enumerate(answers):
        if not isinstance(answer, dict):
            continue
        if isinstance(answer.get("meta_info"), dict):
            _read_with_meta_info(answer, place, record)
        elif isinstance(answer.get("choices"), list):
            for choice in answer["choices"]:
                inner = choice.get("message") or {"content": choice.get("text")}
                _note(choice, inner, record)
            _read_usage(answer.get("usage") or {}, record, cached=True, watched=True)
        elif isinstance(answer.get("output") or answer.get("content"), list):
            _read_items(answer, record)
    if record.choices:
        record.finish_reason = record.choices[0].finish_reason


def _read_with_meta_info(answer: Any, place: int, record: RequestRecord) -> None:
    """Read SGLang's own form; of a batch, the answer at ``place``."""
    meta = answer["meta_info"]
    reason = meta.get("finish_reason")
    if isinstance(reason, dict):
        reason = reason.get("type")
    choice = {
        "index": place,
        "finish_reason": reason,
        "token_ids": answer.get("output_ids"),
    }
    _note(choice, {"content": answer.get("text")}, record)
    _read_usage(meta, record, cached=False, watched=True)


def _read_items(body: Any, record: RequestRecord) -> None:
    """Read an answer of ``/v1/responses`` or ``/v1/messages``: one choice, in items."""
    inner: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for item in body.get("output") or body.get("content"):
        content = item.get("content")
        parts = content if isinstance(content, list) else [item]
        for part in [*parts, *(item.get("summary") or [])]:
            field = "reasoning" if part.get("type") in _THINKS else "content"
            inner[field] += _text(part.get("thinking") or part.get("text"))
        if item.get("type") in ("function_call", "tool_use"):
            inner["tool_calls"].append({"function": _called_function(item)})
    choice = {"finish_reason": body.get("stop_reason") or body.get("status")}
    _note(choice, inner, record)
    usage = body.get("usage") or {}
    record.prompt_tokens = count(usage.get("input_tokens"))
    record.completion_tokens = count(usage.get("output_tokens"))


def _called_function(item: Any) -> dict[str, Any]:
    """Return name and arguments: text in ``arguments``, or an object in ``input``."""
    arguments = item.get("arguments")
    if arguments is None:
        arguments = json.dumps(item.get("input"))
    return {"name": item["name"], "arguments": arguments}


def read_event(event: Any, record: RequestRecord, watch: RequestWatch) -> None:
    """Read one event of a stream in another form. Raises Left."""
    if not isinstance(event, dict):
        _note_event_text("", record, watch)
        return
    if event.get("error") is not None:
        record.error = _text(event["error"])[:ERROR_LIMIT] or "an error without a text"
        return
    kind = event.get("type")
    if not isinstance(kind, str):
        _note_event_text(_new_text(event, record), record, watch)
        return
    failure = _failure_of(kind, event)
    if failure:
        record.error = failure[:ERROR_LIMIT]
        return
    _note_block(kind, event, record)
    if "delta" not in kind:
        response = event.get("response")
        if isinstance(response, dict) and kind.endswith("completed"):
            read_other(response, record)
        return

    delta = event.get("delta")
    text = delta if isinstance(delta, str) else ""
    if isinstance(delta, dict):
        text = _text(
            delta.get("text") or delta.get("thinking") or delta.get("partial_json")
        )
        record.finish_reason = _text(delta.get("stop_reason")) or record.finish_reason
    _note_event_text(text, record, watch)


def _failure_of(kind: str, event: Any) -> str:
    """The error that an event of ``/v1/responses`` tells; "": it tells none."""
    if kind == "error":
        return _text(event.get("message")) or "an error without a text"
    response = event.get("response")
    if kind != "response.failed" or not isinstance(response, dict):
        return ""
    error = response.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return _text(message) or "an error without a text"


def _note_block(kind: str, event: Any, record: RequestRecord) -> None:
    """Add what an event of a stream of ``/v1/messages`` says of a block: a text, a
    thought, or a call of a tool."""
    if kind not in _BLOCK_EVENTS:
        return
    kept = _kept_choice(record, 0)
    if kind == "message_start":
        usage = (event.get("message") or {}).get("usage") or {}
        record.prompt_tokens = count(usage.get("input_tokens"))
        return
    if kind == "message_delta":
        usage = event.get("usage") or {}
        record.completion_tokens = count(usage.get("output_tokens"))
        reason = _text((event.get("delta") or {}).get("stop_reason"))
        if reason:
            kept.finish_reason = reason
            kept.finishes += 1
        return

    place = count(event.get("index")) or 0
    block = event.get("content_block") or event.get("delta") or {}
    kept.text = (kept.text + _text(block.get("text")))[:TEXT_LIMIT]
    kept.reasoning = (kept.reasoning + _text(block.get("thinking")))[:TEXT_LIMIT]
    if block.get("type") in ("tool_use", "input_json_delta"):
        piece = {"name": block.get("name"), "arguments": block.get("partial_json")}
        _note_call({"function": piece}, place, kept)


_BLOCK_EVENTS = (
    "message_start",
    "message_delta",
    "content_block_start",
    "content_block_delta",
)


def _new_text(event: Any, record: RequestRecord) -> str:
    """Return the text of an event in SGLang's own form."""
    text = event.get("text")
    if not isinstance(text, str):
        return ""
    # SGLang sends the whole text each time, unless it is asked for pieces.
    if text.startswith(record.text):
        record.text = ""
    return text


def _note_event_text(text: str, record: RequestRecord, watch: RequestWatch) -> None:
    """Add an event's text, which may be none, as a piece. Raises Left."""
    record.text = (record.text + text)[:TEXT_LIMIT]
    _note_first_token(record)
    record.pieces += 1
    _report_piece(record, watch)


def end_of_stream(record: RequestRecord, *, done: bool) -> None:
    """Copy the first choice of a watched stream into the fields of its whole answer."""
    record.done = done
    first = ChoiceSeen(index=0)
    for choice in record.choices:
        if choice.index == 0:
            first = choice
            break
    record.text = first.text
    record.finish_reason = first.finish_reason
    record.tokens = list(first.tokens)
    record.logprobs = list(first.logprobs)


def _text(value: object) -> str:
    """Return text that can be written to a file: JSON may carry lone surrogates."""
    if value is None:
        return ""
    return str(value).encode("utf-8", "replace").decode()


def _finite(value: object) -> float:
    """A number that JSON can hold. Raises ValueError or TypeError: it is none."""
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{number} is no logprob")
    return number


def count(value: object) -> int | None:
    """Return a number of tokens, or None for anything else that a server sends in its
    place."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < 2**63 else None
