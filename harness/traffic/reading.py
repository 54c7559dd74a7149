"""Answers in the forms of the OpenAI API, read into a request's record."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
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
MAX_CHOICES = 256

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON of an unexpected shape raises; hostile nesting ends in
RecursionError."""


@dataclass(frozen=True)
class Watch:
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
    record.text = _text(_message(choice, record, "message")["content"])[:TEXT_LIMIT]
    record.finish_reason = _text(choice.get("finish_reason")) or None
    _read_usage(body.get("usage") or {}, record, cached=True, watched=watched)
    record.tokens, record.logprobs = _tokens(choice)
    if watched:
        for one in body["choices"]:
            inner = _message(one, record, "message")
            _note(one, inner, record)


def read_generated(body: Any, record: RequestRecord) -> None:
    """The same of an answer in SGLang's own form."""
    told = body["meta_info"]
    record.text = _text(body["text"])[:TEXT_LIMIT]
    record.finish_reason = _text((told.get("finish_reason") or {}).get("type")) or None
    record.prompt_tokens = count(told.get("prompt_tokens"))
    record.completion_tokens = count(told.get("completion_tokens"))
    record.cached_tokens = count(told.get("cached_tokens"))
    tokens = (told.get("output_token_logprobs") or [])[:MAX_LOGPROBS]
    record.tokens = [_text(token) for _, token, *_ in tokens]
    record.logprobs = [_finite(value) for value, *_ in tokens]


def _message(choice: Any, record: RequestRecord, name: str) -> Any:
    """What holds the content of a choice; a plain completion has its text in the
    choice."""
    return {"content": choice["text"]} if record.path == COMPLETIONS else choice[name]


def _tokens(choice: Any) -> tuple[list[str], list[float]]:
    """Text and logprob of each token, as far as they are told."""
    told = choice.get("logprobs") or {}
    pairs = [
        (one["token"], one["logprob"])
        for one in (told.get("content") or [])[:MAX_LOGPROBS]
    ]
    if plain := (told.get("tokens") or [])[
        :MAX_LOGPROBS
    ]:  # the form of plain completions
        values = zip(plain, told.get("token_logprobs") or [], strict=False)
        pairs = [(token, value) for token, value in values if value is not None]
    return [_text(token) for token, _ in pairs], [_finite(value) for _, value in pairs]


def _likeliest(choice: Any) -> list[list[tuple[str, float]]]:
    """Those in the place of each token, as far as they are told."""
    told = choice.get("logprobs") or {}
    places = [
        [
            (one["token"], one["logprob"])
            for one in (place.get("top_logprobs") or [])[:MAX_LIKELIEST]
        ]
        for place in (told.get("content") or [])[:MAX_LOGPROBS]
    ]
    if plain := (told.get("top_logprobs") or [])[
        :MAX_LOGPROBS
    ]:  # the form of plain completions
        places = [list((place or {}).items())[:MAX_LIKELIEST] for place in plain]
    return [
        [(_text(token), _finite(value)) for token, value in place] for place in places
    ]


def _note(choice: Any, inner: Any, record: RequestRecord) -> ChoiceSeen:
    """Add what came of a choice, all of it or a piece, to what the record has of it.
    ``inner``: what of it holds content, reasoning and calls of tools."""
    index, text = count(choice.get("index")) or 0, _text(inner.get("content"))
    kept = next((one for one in record.choices if one.index == index), None)
    if kept is None:
        kept = ChoiceSeen(index=index)
        if len(record.choices) < MAX_CHOICES:
            record.choices.append(kept)
            record.choices.sort(key=lambda one: one.index)
    kept.text = (kept.text + text)[:TEXT_LIMIT]
    if reason := _text(choice.get("finish_reason")):
        kept.finish_reason, kept.finishes = reason, kept.finishes + 1
    if len(kept.tokens) < MAX_LOGPROBS:
        tokens, logprobs = _tokens(choice)
        kept.tokens += tokens
        kept.logprobs += logprobs
        kept.top += _likeliest(choice)[: len(tokens)]
    room = MAX_LOGPROBS - len(kept.token_ids)
    kept.token_ids += [int(one) for one in (choice.get("token_ids") or [])[:room]]
    reasoning = _text(inner.get("reasoning") or inner.get("reasoning_content"))
    kept.reasoning = (kept.reasoning + reasoning)[:TEXT_LIMIT]
    for place, call in enumerate(inner.get("tool_calls") or []):
        _call(call, count(call.get("index")) if "index" in call else place, kept)
    offsets = (choice.get("logprobs") or {}).get("text_offset") or []
    room = MAX_LOGPROBS - len(kept.text_offsets)
    kept.text_offsets += [int(one) for one in offsets[:room]]
    return kept


def _call(call: Any, place: int | None, kept: ChoiceSeen) -> None:
    """Add a call of a tool, or a piece of one."""
    found = next((one for one in kept.tool_calls if one.index == (place or 0)), None)
    if found is None:
        found = ToolCall(index=place or 0)
        if len(kept.tool_calls) < MAX_CHOICES:
            kept.tool_calls.append(found)
    function = call.get("function") or {}
    found.name += _text(function.get("name"))
    found.arguments = (found.arguments + _text(function.get("arguments")))[:TEXT_LIMIT]


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


def read_chunk(chunk: Any, record: RequestRecord, watch: Watch | None = None) -> str:
    """The text of one chunk; its time, finish reason and usage go into ``record``.

    Raises Left: that was the piece at which the client goes away.
    """
    if chunk.get("error") is not None:
        record.error = _text(chunk["error"])[:ERROR_LIMIT] or "an error without a text"
        return ""
    pieces, before = [], record.pieces
    for choice in chunk.get("choices", []):
        delta = _message(choice, record, "delta")
        piece, counts = (
            delta.get("content"),
            _is_piece(delta, choice, watched=watch is not None),
        )
        if counts and record.ttft_s is None:
            record.ttft_s = round(time.monotonic() - record.sent.mono, 4)
        pieces.append(_text(piece))
        record.finish_reason = _text(choice.get("finish_reason")) or None
        if watch is not None:
            kept = _note(choice, delta, record)
            kept.pieces += counts
            record.pieces += counts
    watched = watch is not None
    _read_usage(chunk.get("usage") or {}, record, cached=watched, watched=watched)
    if watch is not None and record.pieces > before:
        watch.piece(record.pieces)
        if watch.leave_at and record.pieces >= watch.leave_at:
            raise Left
    return "".join(pieces)


_BESIDE = ("reasoning", "reasoning_content", "tool_calls")
"""Fields of a piece that carry tokens besides its content."""


def _is_piece(delta: Any, choice: Any, *, watched: bool) -> bool:
    """Whether it stands for a token: text may be empty, as for half a character."""
    content = delta.get("content")
    if watched and any(delta.get(name) for name in _BESIDE):
        return True
    if content is None or not watched:
        return content is not None and "role" not in delta
    return bool(content) or not (delta.get("role") or choice.get("finish_reason"))


# ------------------------------------------------------------------ other forms

_THINKS = ("reasoning_text", "summary_text", "thinking")


def read_other(body: Any, record: RequestRecord) -> None:
    """What an answer in another form says, as far as it is known: SGLang's own, vLLM's
    ``/inference/v1/generate``, ``/v1/responses`` and ``/v1/messages``."""
    for place, one in enumerate(body if isinstance(body, list) else [body]):
        if not isinstance(one, dict):
            continue
        if isinstance(told := one.get("meta_info"), dict):
            reason = told.get("finish_reason")
            reason = reason.get("type") if isinstance(reason, dict) else reason
            choice = {
                "index": place,
                "finish_reason": reason,
                "token_ids": one.get("output_ids"),
            }
            _note(choice, {"content": one.get("text")}, record)
            _read_usage(told, record, cached=False, watched=True)
        elif isinstance(one.get("choices"), list):
            for choice in one["choices"]:
                inner = choice.get("message") or {"content": choice.get("text")}
                _note(choice, inner, record)
            _read_usage(one.get("usage") or {}, record, cached=True, watched=True)
        elif isinstance(one.get("output") or one.get("content"), list):
            _read_items(one, record)
    if record.choices:
        record.finish_reason = record.choices[0].finish_reason


def _read_items(body: Any, record: RequestRecord) -> None:
    """Of ``/v1/responses`` and ``/v1/messages``: one answer, in items."""
    inner: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for item in body.get("output") or body.get("content"):
        parts = item.get("content") if isinstance(item.get("content"), list) else [item]
        for part in [*parts, *(item.get("summary") or [])]:
            field = "reasoning" if part.get("type") in _THINKS else "content"
            inner[field] += _text(part.get("thinking") or part.get("text"))
        if item.get("type") in ("function_call", "tool_use"):
            given = item.get("arguments")
            given = json.dumps(item.get("input")) if given is None else given
            inner["tool_calls"].append(
                {"function": {"name": item["name"], "arguments": given}}
            )
    _note(
        {"finish_reason": body.get("stop_reason") or body.get("status")}, inner, record
    )
    usage = body.get("usage") or {}
    record.prompt_tokens = count(usage.get("input_tokens"))
    record.completion_tokens = count(usage.get("output_tokens"))


def read_event(event: Any, record: RequestRecord, watch: Watch) -> None:
    """One event of a stream in another form. Raises Left."""
    named = isinstance(event, dict) and isinstance(event.get("type"), str)
    if isinstance(event, dict) and event.get("error") is not None:
        record.error = _text(event["error"])[:ERROR_LIMIT] or "an error without a text"
        return
    if named and "delta" not in event["type"]:
        if isinstance(event.get("response"), dict) and event["type"].endswith(
            "completed"
        ):
            read_other(event["response"], record)
        return
    delta = event.get("delta") if named else None
    said = delta if isinstance(delta, str) else ""
    if isinstance(delta, dict):
        said = _text(
            delta.get("text") or delta.get("thinking") or delta.get("partial_json")
        )
        record.finish_reason = _text(delta.get("stop_reason")) or record.finish_reason
    elif not named and isinstance(event, dict) and isinstance(event.get("text"), str):
        record.text = "" if event["text"].startswith(record.text) else record.text
        # SGLang tells all of it each time, unless it is asked for pieces.
        said = event["text"]
    record.text = (record.text + said)[:TEXT_LIMIT]
    if record.ttft_s is None:
        record.ttft_s = round(time.monotonic() - record.sent.mono, 4)
    record.pieces += 1
    watch.piece(record.pieces)
    if watch.leave_at and record.pieces >= watch.leave_at:
        raise Left


def end_of_stream(record: RequestRecord, *, done: bool) -> None:
    """What the record of a watched stream says of its answer is what its first choice
    says."""
    record.done = done
    first = next((one for one in record.choices if one.index == 0), ChoiceSeen(index=0))
    record.text, record.finish_reason = first.text, first.finish_reason
    record.tokens, record.logprobs = list(first.tokens), list(first.logprobs)


def _text(value: object) -> str:
    """Text as it can be written to a file again: JSON may carry lone surrogates."""
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def _finite(value: object) -> float:
    """A number that JSON can hold. Raises ValueError or TypeError: it is none."""
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{number} is no logprob")
    return number


def count(value: object) -> int | None:
    """A number of tokens; anything else that a server sends in its place is none."""
    plausible = (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    )
    return value if plausible else None  # type: ignore[return-value]
