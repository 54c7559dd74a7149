"""Answers that a bug report shows: raw outputs of a model, and answers of the API in
JSON, as a stream, or as Python's client prints them.

Reading is done in a child with limits, as all of a report; what comes out is bounded."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mmrepro.engines.models import ScriptedCall, family_tokens
from mmrepro.search.repro.speech import MOST_RAW, MOST_TOOLS, Speech

_MOST_BLOCK: Final = 200_000
"""Characters of one block that are looked at: a stream repeats its frame."""
_MOST_PIECES: Final = 4_000
"""Pieces of a stream."""
_MOST_DEEP: Final = 40
_FURTHER_TAGS: Final = ("<function=", "◁think▷", "<｜DSML｜", "<invoke name=")
_CODE: Final = re.compile(
    r"^[ \t]*(?:def |class |import |from \S+ import |\{%|curl |vllm |Traceback )"
    r"|^[ \t]*(?:INFO|ERROR|WARNING|DEBUG)\b|^[ \t]*[\w.]*(?:Error|Exception): ",
    re.MULTILINE,
)
_SHOWN: Final = re.compile(
    r"(?:raw|model(?:'s)?|actual|generated)[ _-](?:raw[ _-])?(?:output|response|text)",
    re.IGNORECASE,
)
_ONE_TAG: Final = re.compile(r"\s*[<\[◁][^<>\[\]◁▷\s]{1,60}[>\]▷]\s*")
"""What names a tag, as prose does, and says nothing."""
_NOT_OBSERVED: Final = re.compile(r"expect|should|correct|desired|want", re.IGNORECASE)


def shown_in(texts: Sequence[tuple[str, str]]) -> Speech:
    """What blocks of a report show of the model's words: the first that does.

    ``texts``: each with the line above it."""
    for text, above in texts:
        answer = _answer_in(text)
        if answer is not None and (answer.is_shown or answer.content):
            return answer
        text = text[:MOST_RAW]
        if _CODE.search(text) or text.lstrip().startswith("{"):
            continue
        is_output = _has_tags(text) and not _ONE_TAG.fullmatch(text)
        if is_output or (_SHOWN.search(above) and text.strip()):
            return Speech(raw=text.strip("\n"))
    return Speech()


_NO_BEGINNING: Final = re.compile(
    r"(?:\b(?:no|not|without|missing|lacks?|omits?|never)\b|n't)[^.\n]{0,60}<think>"
    r"|<think>[^.\n]{0,40}\b(?:is|was|are) (?:not|missing|absent|omitted)"
    r"|\bonly\b[^.\n]{0,40}</think>",
    re.IGNORECASE,
)


def has_no_beginning(words: str) -> bool:
    """Whether a report says that its model's thoughts have no tag that begins them."""
    return _NO_BEGINNING.search(words.replace("\\", "")) is not None


def answer_in(texts: Sequence[tuple[str, str]]) -> Speech:
    """The first answer of the API that a report shows as observed; an empty one: it
    shows none.

    ``texts``: as in :func:`shown_in`."""
    for text, above in texts:
        answer = _answer_in(text)
        if answer is not None and not answer.raw and not _NOT_OBSERVED.search(above):
            return answer
    return Speech()


def _has_tags(text: str) -> bool:
    return any(tag in text for tag in (*family_tokens(), *_FURTHER_TAGS))


def _answer_in(text: str) -> Speech | None:
    """The first answer of the API in a block; None: there is none."""
    text = text[:_MOST_BLOCK]
    message = _in_json(text)
    if message is not None:
        return _spoken_in(message)
    for pieces in (list(_events(text)), list(_printed(text, _PIECE))):
        if len(pieces) > 1:
            answer = _spoken_in(_joined(pieces))
            return answer and answer.model_copy(update={"streamed": True})
    printed = next(_printed(text, _WHOLE), None)
    return None if printed is None else _spoken_in(printed)


def _spoken_in(message: Mapping[str, Any]) -> Speech | None:
    """What a message says. Content that still has a parser's tags is the raw output.
    None: the arguments of a call are no JSON, so the model's words are not known."""
    parts = message.get("content")
    content, calls = (
        _parts_in(parts) if isinstance(parts, list) else (str(parts or ""), [])
    )
    reasoning = str(message.get("reasoning") or message.get("reasoning_content") or "")
    if _has_tags(content):
        return Speech(raw=content[:MOST_RAW])
    listed = message.get("tool_calls")
    for call in listed if isinstance(listed, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and len(calls) < MOST_TOOLS:
            read = _call_in(function)
            if read is None:
                return None
            calls.append(read)
    return Speech(
        reasoning=reasoning[:MOST_RAW], content=content[:MOST_RAW], calls=calls
    )


def _parts_in(parts: Sequence[object]) -> tuple[str, list[ScriptedCall]]:
    """Text and calls of an answer in parts, as Anthropic's API has it."""
    texts: list[str] = []
    calls: list[ScriptedCall] = []
    for part in parts:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text":
            texts.append(str(part.get("text") or ""))
        elif part.get("type") == "tool_use" and len(calls) < MOST_TOOLS:
            given = part.get("input")
            arguments = given if isinstance(given, dict) else {}
            name = str(part.get("name") or "f")[:64]
            calls.append(ScriptedCall(name=name, arguments=arguments))
    return "".join(texts), calls


def _call_in(function: Mapping[str, Any]) -> ScriptedCall | None:
    """A call; None: its arguments are no JSON object."""
    try:
        arguments = json.loads(str(function.get("arguments") or "{}"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return ScriptedCall(name=str(function.get("name") or "f")[:64], arguments=arguments)


# ------------------------------------------------------------------ in JSON


def _in_json(text: str) -> dict[str, Any] | None:
    """The message of the first JSON object of a text."""
    begin = text.find("{")
    if begin < 0:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return _message_in(value)


def _message_in(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    message: Any = value
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
    elif isinstance(value.get("message"), dict):
        message = value["message"]
    if not isinstance(message, dict) or "messages" in message:
        return None
    has_parts = any(
        name in message for name in ("tool_calls", "reasoning", "reasoning_content")
    )
    return message if has_parts or message.get("role") == "assistant" else None


# ------------------------------------------------------------------ as a stream

_EVENT: Final = re.compile(r"^[ \t>]*(?:b['\"])?(?:data: ?)?(?=\{)", re.MULTILINE)


def _events(text: str) -> Iterator[dict[str, Any]]:
    """Pieces of a stream: of lines with one event each."""
    decoder = json.JSONDecoder()
    for number, event in enumerate(_EVENT.finditer(text)):
        if number == _MOST_PIECES:
            return
        try:
            value, _ = decoder.raw_decode(text, event.end())
        except (ValueError, RecursionError):
            continue
        delta = _delta_in(value)
        if delta is not None:
            yield delta


def _delta_in(value: object) -> dict[str, Any] | None:
    """The first choice's piece in an event of a stream."""
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else value
    delta = first.get("delta") if isinstance(first, dict) else None
    if not isinstance(delta, dict) or first.get("index") not in (None, 0):
        return None
    return delta


def _joined(deltas: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that the pieces of a stream come to."""
    texts: dict[str, str] = {"content": "", "reasoning": ""}
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        for name, piece in (("content", delta.get("content")), ("reasoning", thought)):
            if isinstance(piece, str):
                texts[name] += piece
        listed = delta.get("tool_calls")
        for call in listed if isinstance(listed, list) else []:
            _add_piece(calls, call)
    functions = [{"function": calls[index]} for index in sorted(calls)]
    return {**texts, "tool_calls": functions}


def _add_piece(calls: dict[int, dict[str, str]], piece: object) -> None:
    """Add a piece of a call to those of its index."""
    function = piece.get("function") if isinstance(piece, dict) else None
    if not isinstance(piece, dict) or not isinstance(function, dict):
        return
    index = piece.get("index") or 0
    if type(index) is not int or len(calls) >= MOST_TOOLS:
        return
    call = calls.setdefault(index, {"name": "", "arguments": ""})
    for name in call:
        if isinstance(function.get(name), str):
            call[name] += function[name]


# ------------------------------------------------- as Python's client prints it

_WHOLE: Final = re.compile(r"\b(?:ChatCompletion|ParsedChatCompletion)?Message\(")
_PIECE: Final = re.compile(r"\b(?:Choice)?Delta\(")


def _printed(text: str, form: re.Pattern[str]) -> Iterator[dict[str, Any]]:
    """The fields of each object of OpenAI's client that is printed in a text."""
    for number, found in enumerate(form.finditer(text)):
        if number == _MOST_PIECES:
            return
        written = _to_its_end(text[found.start() : found.start() + MOST_RAW])
        try:
            tree = ast.parse(written, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        fields = _plain(tree)
        if isinstance(fields, dict):
            yield fields


_STEP: Final = re.compile(
    r"[()\[\]{}]|'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"", re.DOTALL
)


def _to_its_end(text: str) -> str:
    """A call as Python writes it, to the bracket that closes it."""
    deep = 0
    for step in _STEP.finditer(text):
        mark = step[0]
        if mark in "([{":
            deep += 1
        elif mark in ")]}":
            deep -= 1
            if deep == 0:
                return text[: step.end()]
    return text


def _plain(node: ast.AST, deep: int = 0) -> Any:
    """A printed value: an object is a dictionary of its fields; None: it is no such
    value."""
    if deep > _MOST_DEEP:
        return None
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, str | int | float | bool) else None
        case ast.Call(keywords=keywords):
            fields = {}
            for keyword in keywords:
                if keyword.arg:
                    fields[keyword.arg] = _plain(keyword.value, deep + 1)
            return fields
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_plain(element, deep + 1) for element in elements]
        case ast.Dict(keys=keys, values=values):
            made: dict[str, Any] = {}
            for key, inner in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant):
                    made[str(key.value)] = _plain(inner, deep + 1)
            return made
    return None
