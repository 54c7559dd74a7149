"""Answers of a model that says scripts: what it said is known, so each answer is held
against that. Also which features a request asked for that its answer never showed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from mmrepro.engines import Engine, has_option, option_of
from mmrepro.engines.models import (
    ScriptedAnswer,
    Scripts,
    calls_as,
    text_of_pieces,
    thinks_as,
)
from mmrepro.search.oracle.judged import Sent
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.traffic import TEXT_LIMIT
from mmrepro.traffic.case import CHAT, Case, Operation
from mmrepro.traffic.evidence import ChoiceSeen

EXPECTED: Final = {
    "script-text": "The text is what the model said, byte for byte.",
    "script-reasoning": "The reasoning is what the model thought.",
    "script-calls": "The calls are those that the model made.",
    "script-finish": "The reason is what ended the model's answer.",
    "script-tags": "No tag that a parser reads is in the content.",
    "script-stream": "A stream has the parts of the whole answer of the same script.",
    "script-usage": "The completion's tokens are those of the script.",
}

_OTHERWISE: Final = (
    *GRAMMARS,
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "use_beam_search",
    "truncate_prompt_tokens",
    "include_stop_str_in_output",
    "no_stop_trim",
    "include_reasoning",
    "separate_reasoning",
    "chat_template_kwargs",
    "thinking",
    "reasoning_effort",
)
"""Parameters by which another token than the script's may be taken, or shown
otherwise."""
_TOOLS, _REASONS = "--tool-call-parser", "--reasoning-parser"


@dataclass(frozen=True)
class _Spoken:
    """What the model says to a request.

    Attributes:
        answer: the script.
        text: of it, as far as it comes, without what ends it.
        finish: why it ends: ``stop`` or ``length``; "": either may be told.
        stopped: by a stop string.
        tokens: of it, without what ends it.
    """

    answer: ScriptedAnswer
    text: str
    finish: str
    stopped: bool = False
    tokens: int = 0


def script_of(sent: Sent, scripts: Scripts) -> ScriptedAnswer | None:
    """The script that answers a request; None: that is not known."""
    return scripts.chosen(chosen_by(sent.op))


def misread(sent: Sent, answer: ScriptedAnswer) -> bool:
    """Whether an answer is another one than a sound parser makes of its script."""
    if not sent.record.answered or not sent.record.choices:
        return True
    choice = sent.record.choices[0]
    if answer.calls is not None and _seen(choice) != _made(answer):
        return True
    parts = ((choice.text, answer.content), (choice.reasoning, answer.reasoning))
    return any(
        right is not None and part.strip() != right.strip() for part, right in parts
    )


def parser_of(kind: str, case: Case) -> str:
    """The parser that a kind of finding is about; "": none reads the answers, or it is
    about the server around them."""
    if kind not in EXPECTED or kind in ("script-finish", "script-usage"):
        return ""
    tools, reasons = (option_of(case.server.args, name) for name in (_TOOLS, _REASONS))
    return reasons if kind == "script-reasoning" or not tools else tools


def said_by_script(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Hold an answer against what the model said. Yields kinds and sentences."""
    scripts = case.server.scripts
    if scripts is None or any(map(sent.parameter, _OTHERWISE)):
        return
    if sent.rules_out_parallel_calls:
        return  # of several calls that the model says one is told
    spoken = _spoken(sent, case, scripts)
    if spoken is None:
        return
    parsers = _parsers(sent, case)
    yield from _used(sent, spoken)
    for choice in sent.record.choices:
        if parsers:
            yield from _parsed(choice, spoken, parsers, case, scripts)
        else:
            yield from _plain(sent, choice, spoken, engine)


def _spoken(sent: Sent, case: Case, scripts: Scripts) -> _Spoken | None:
    """What is said to a request; None: that is not known."""
    body = chosen_by(sent.op)
    answer = scripts.chosen(body)
    if answer is None or sent.parameter("skip_special_tokens", True) is not True:
        return None
    if body.get("tool_choice") not in (None, "auto", "none"):
        return None  # a grammar masks the tokens
    shared = scripts.shared
    tokens = answer.script(shared).tokens(shared)
    limit = sent.limit
    is_cut = limit is not None and limit <= len(tokens)
    if not (is_cut or answer.ends):
        return None
    longest = len(tokens) + 1
    if limit is not None:
        longest = min(limit, longest)
    if _may_fill_context(sent, longest, case):
        return None
    kept = tokens[:limit] if is_cut else tokens
    shown = [token for token in kept if token not in scripts.hidden]
    text = text_of_pieces(shown)
    stops = _stops(sent)
    met = [word for word in stops if word in text]
    if len(met) > 1:
        return None  # which one ends it depends on the tokens' borders
    if met:
        return _Spoken(answer, text.partition(met[0])[0], "stop", stopped=True)
    finish = "length" if is_cut else "stop"
    if limit == len(tokens) + 1:
        finish = ""  # vLLM 0.11 looks at the length before it looks at the end
    return _Spoken(answer, text, finish, tokens=len(kept))


def _may_fill_context(sent: Sent, longest: int, case: Case) -> bool:
    """Whether an answer of so many tokens may end because the context is full."""
    prompt = sent.record.prompt_tokens
    if prompt is not None:
        return prompt + longest > case.server.max_model_len
    # Most streams have no usage. One that the context ended says so.
    return any(choice.finish_reason == "length" for choice in sent.record.choices)


def chosen_by(op: Operation) -> dict[str, Any]:
    """What of a request's body chooses a script."""
    body = dict(op.parameters)
    if op.prompt is not None:
        body["prompt"] = op.prompt
    if op.messages is not None:
        body["messages"] = [_message(message) for message in op.messages]
    return body


def _message(message: Any) -> dict[str, Any]:
    content = message.content
    if isinstance(content, list):
        content = [{"text": part.text} for part in content if part.text is not None]
    return {"role": message.role, "content": content}


def _stops(sent: Sent) -> list[str]:
    given = sent.parameter("stop") or sent.parameter("stop_sequences")
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list):
        return []
    return [word for word in words if isinstance(word, str) and word]


def _parsers(sent: Sent, case: Case) -> set[str]:
    """Options whose parsers read the answer."""
    parsers: set[str] = set()
    if sent.op.path != CHAT:
        return parsers
    if has_option(case.server.args, _REASONS):
        parsers.add(_REASONS)
    tools = sent.parameter("tools") and sent.parameter("tool_choice") != "none"
    if tools and has_option(case.server.args, _TOOLS):
        parsers.add(_TOOLS)
    return parsers


def _used(sent: Sent, spoken: _Spoken) -> Iterator[tuple[str, str]]:
    """Tokens that the usage counts, with or without the one that ends the answer."""
    counted, said = sent.record.completion_tokens, spoken.tokens
    if counted is None or spoken.stopped or sent.n > 1:
        return
    most = said if spoken.finish == "length" else said + 1
    if not said <= counted <= most:
        yield (
            "script-usage",
            f"{counted} tokens in the usage, and the model said {said}",
        )


# ------------------------------------------------- answers in items, and in blocks


@dataclass(frozen=True)
class _ItemForm:
    """How an endpoint that answers in items words what ended an answer."""

    limit: str
    stopped: str
    called: str
    cut: str


_ITEM_FORMS: Final = {
    "/v1/responses": _ItemForm(
        limit="max_output_tokens",
        stopped="completed",
        called="completed",
        cut="incomplete",
    ),
    "/v1/messages": _ItemForm(
        limit="max_tokens", stopped="end_turn", called="tool_use", cut="max_tokens"
    ),
}


def said_in_items(sent: Sent, case: Case) -> Iterator[tuple[str, str]]:
    """Hold an answer of ``/v1/responses`` or ``/v1/messages`` against what the model
    said. Yields kinds and sentences."""
    scripts, form = case.server.scripts, _ITEM_FORMS.get(sent.op.path)
    record = sent.record
    if scripts is None or form is None or record.status != 200 or record.error:
        return
    others = (*_OTHERWISE, "tool_choice", "reasoning", "thinking", "text")
    if not record.choices or record.left or any(map(sent.parameter, others)):
        return
    if sent.rules_out_parallel_calls:
        return
    answer = scripts.chosen(_items_asked(sent.op))
    if answer is None or not answer.ends or _stops(sent):
        return

    choice = record.choices[0]
    limit = sent.parameter(form.limit)
    tokens = answer.script(scripts.shared).tokens(scripts.shared)
    if isinstance(limit, int) and limit <= len(tokens):
        if choice.finish_reason != form.cut:
            said = f"it ended with {choice.finish_reason}, and for its length"
            yield "script-finish", said
        return
    args = case.server.args
    has_tools = bool(sent.parameter("tools")) and has_option(args, _TOOLS)
    if answer.reasoning and not has_option(args, _REASONS):
        return  # the thought stays in the text
    if answer.calls and not has_tools:
        return
    # A client that did not ask for the thought may not be told it.
    if answer.reasoning is not None and choice.reasoning:
        yield from _held("reasoning", choice.reasoning, answer.reasoning)
    if answer.content is not None:
        yield from _held("text", choice.text, answer.content)
    if answer.calls is None:
        return
    seen, right = _seen(choice), _made(answer)
    if seen != right:
        said = f"the calls are {_shown(seen)}, and {_shown(right)} were made"
        yield "script-calls", said
    wanted = form.called if right else form.stopped
    if choice.finish_reason != wanted:
        yield "script-finish", f"it ended with {choice.finish_reason}, and {wanted}"


def _items_asked(op: Operation) -> dict[str, Any]:
    """What of a request in items chooses a script, as a chat has it."""
    body = chosen_by(op)
    asked = body.pop("input", None)
    if isinstance(asked, str):
        body["messages"] = [{"role": "user", "content": asked}]
    elif isinstance(asked, list):
        body["messages"] = asked
    kept: list[Any] = []
    for message in body.get("messages") or []:
        if not isinstance(message, dict) or not _is_text(message.get("content")):
            return {}  # a call, its result or a picture: how it is put is not known
        kept.append(message)
    return {**body, "messages": kept}


def _is_text(content: object) -> bool:
    if isinstance(content, str):
        return True
    parts = content if isinstance(content, list) else []
    return bool(parts) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts
    )


def _plain(
    sent: Sent, choice: ChoiceSeen, spoken: _Spoken, engine: Engine
) -> Iterator[tuple[str, str]]:
    """Of an answer that no parser reads."""
    promised = engine.promises
    if spoken.stopped:
        longest = max(map(len, _stops(sent)))
        if not promised.stop_text or 0 < promised.stop_chars < longest:
            return
    # Half a character may be held back, or shown as a mark.
    text, right = choice.text.rstrip("\ufffd"), spoken.text.rstrip("\ufffd")
    if text != right and max(len(text), len(right)) < TEXT_LIMIT:
        yield (
            "script-text",
            f"the text is {_shown(text)}, and the model said {_shown(right)}",
        )
    if spoken.finish and choice.finish_reason != spoken.finish:
        said = f"it ended with {choice.finish_reason}, and for {spoken.finish}"
        yield "script-finish", said


def _parsed(
    choice: ChoiceSeen,
    spoken: _Spoken,
    parsers: set[str],
    case: Case,
    scripts: Scripts,
) -> Iterator[tuple[str, str]]:
    """Of an answer that parsers have read."""
    answer = spoken.answer
    if spoken.finish == "length":
        calls_begun = bool(answer.calls) and _TOOLS in parsers
        reason = choice.finish_reason
        if calls_begun and len(choice.tool_calls) <= 1 and reason != "length":
            yield "script-finish", f"it ended with {reason}, and for length"
        return
    if spoken.stopped or not spoken.finish:
        return
    if _REASONS in parsers and answer.reasoning is not None:
        yield from _held("reasoning", choice.reasoning, answer.reasoning)
    if _REASONS not in parsers and answer.reasoning:
        return  # the thought stays in the text
    if _TOOLS in parsers and answer.calls is not None:
        wrong = list(_calls(choice, answer))
        yield from wrong
        if wrong:
            return  # what is left of a call in the text follows from that
    if answer.content is not None:
        yield from _held("text", choice.text, answer.content)
    for tag in _tags(answer, spoken.text, parsers, case, scripts):
        if tag in choice.text:
            yield "script-tags", f"{tag!r} is in the content {_shown(choice.text)}"
            break


def _tags(
    answer: ScriptedAnswer,
    text: str,
    parsers: set[str],
    case: Case,
    scripts: Scripts,
) -> list[str]:
    """Tags that no content has. Where it is not known what a parser makes of a script,
    those of the parsers' families, if each that opens is closed: of half a call or
    thought parsers make what they like."""
    if answer.content is not None:
        return [tag for tag in scripts.shared if tag not in answer.content]
    if scripts.unread:
        return []  # the parser has another form than its family
    tags: list[str] = []
    if _TOOLS in parsers:
        tags += calls_as(option_of(case.server.args, _TOOLS)).tokens
    if _REASONS in parsers:
        tags += thinks_as(option_of(case.server.args, _REASONS)).tokens
    for tag in tags:
        closing = f"</{tag[1:]}"
        if closing in tags and text.count(tag) != text.count(closing):
            return []
    return tags


def _held(name: str, part: str, right: str) -> Iterator[tuple[str, str]]:
    """Blanks around a part are a parser's matter."""
    part, right = part.strip(), right.strip()
    if part != right and max(len(part), len(right)) < TEXT_LIMIT:
        said = f"the {name} is {_shown(part)}, and the model said {_shown(right)}"
        yield f"script-{name}", said


def _calls(choice: ChoiceSeen, answer: ScriptedAnswer) -> Iterator[tuple[str, str]]:
    seen, right = _seen(choice), _made(answer)
    if any(len(call.arguments) >= TEXT_LIMIT for call in choice.tool_calls):
        return
    if seen != right:
        said = f"the calls are {_shown(seen)}, and {_shown(right)} were made"
        yield "script-calls", said
        return
    wanted = "tool_calls" if right else "stop"
    if choice.finish_reason != wanted:
        yield "script-finish", f"it ended with {choice.finish_reason}, and {wanted}"


def said_otherwise(sent: Sent, other: Sent, case: Case) -> Iterator[tuple[str, str]]:
    """Of two equal greedy requests one has the calls that were made, and one has not:
    also where a grammar masks the tokens, which then took the script."""
    scripts = case.server.scripts
    answered = sent.record.answered and other.record.answered
    if scripts is None or not (answered and sent.greedy and other.greedy):
        return
    answer = script_of(sent, scripts)
    if answer is None:
        return
    right = _made(answer)
    for choice, twin in zip(sent.record.choices, other.record.choices, strict=False):
        if "length" in (choice.finish_reason, twin.finish_reason):
            continue
        if sent.op.stream != other.op.stream:
            yield from _streamed_otherwise(choice, twin, answer)
        if not answer.calls:
            continue
        calls, others = _seen(choice), _seen(twin)
        if calls != others and right in (calls, others):
            said = f"the calls are {_shown(calls)} and {_shown(others)}"
            yield "script-calls", f"of one request {said}"


def _streamed_otherwise(
    choice: ChoiceSeen, twin: ChoiceSeen, answer: ScriptedAnswer
) -> Iterator[tuple[str, str]]:
    """Of a stream and a whole answer: the parts that nothing is told of.

    Only where what a parser makes of the calls is beyond doubt: of half a call it may
    have sent a part before it could know."""
    if answer.calls is None:
        return
    for name, told in (("text", answer.content), ("reasoning", answer.reasoning)):
        part, other = getattr(choice, name).strip(), getattr(twin, name).strip()
        if told is None and part != other and max(len(part), len(other)) < TEXT_LIMIT:
            said = f"of one script the {name} is {_shown(part)} and {_shown(other)}"
            yield "script-stream", said


def _made(answer: ScriptedAnswer) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in answer.calls or []]


def _seen(choice: ChoiceSeen) -> list[tuple[str, Any]]:
    return [(call.name, _read(call.arguments)) for call in choice.tool_calls]


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _shown(value: object) -> str:
    return repr(value)[:80]


# ------------------------------------------------------------------ what never came

A_CALL: Final = "a tool call"
A_THOUGHT: Final = "reasoning"
JSON_ANSWER: Final = "a whole JSON answer"
HELD: Final = "what is held against the model's words"


def never_shown(requests: Iterable[Sent], case: Case) -> dict[str, list[str]]:
    """What served requests asked for and no answer has, by the operations that asked:
    an engine's code for that was not tested."""
    missing: dict[str, list[str]] = {}
    shown: set[str] = set()
    for sent in requests:
        for feature, came in _features(sent, case):
            if came:
                shown.add(feature)
            else:
                missing.setdefault(sent.op.id, []).append(feature)
    left: dict[str, list[str]] = {}
    for op, features in missing.items():
        never = [feature for feature in features if feature not in shown]
        if never:
            left[op] = never
    return left


def _features(sent: Sent, case: Case) -> Iterator[tuple[str, bool]]:
    """What a request asks for, and whether its answer has it."""
    record = sent.record
    if record.status != 200 or record.error or sent.op.leave:
        return
    choices = record.choices
    if _asks_calls(sent):
        yield A_CALL, any(choice.tool_calls for choice in choices)
    if sent.op.path in _CHATS and has_option(case.server.args, _REASONS):
        yield A_THOUGHT, any(choice.reasoning for choice in choices)
    if case.server.scripts is not None and sent.op.path in _CHATS:
        yield HELD, _is_held(sent, case, case.server.scripts)
    if _asks_json(sent):
        yield JSON_ANSWER, any(_is_whole_json(choice) for choice in choices)
    words = _stops(sent)
    if words:
        yield f"the stop string {words[0][:40]!r}", _stop_came(sent, case, words)


_CHATS: Final = (CHAT, "/v1/responses", "/v1/messages")


def _is_held(sent: Sent, case: Case, scripts: Scripts) -> bool:
    """Whether a rule holds the answer against what the model said, or against another
    answer."""
    if sent.op.expect is not None or sent.rules_out_parallel_calls:
        return True
    if sent.parameter("tool_choice") not in (None, "auto", "none"):
        return True  # the rule of a tool that must be called
    if any(map(sent.parameter, _OTHERWISE)):
        return False
    if sent.op.path == CHAT:
        spoken = _spoken(sent, case, scripts)
        answer = spoken.answer if spoken is not None else None
    else:
        answer = scripts.chosen(_items_asked(sent.op))
    return answer is not None and answer.is_told


def _asks_calls(sent: Sent) -> bool:
    """Whether it brings tools, and the last message is no tool's result: then a text is
    an answer, too."""
    if not sent.parameter("tools") or sent.parameter("tool_choice") == "none":
        return False
    messages = sent.op.messages or []
    return not messages or messages[-1].role != "tool"


def _asks_json(sent: Sent) -> bool:
    form = sent.parameter("response_format")
    kinds = ("json_object", "json_schema")
    return isinstance(form, dict) and form.get("type") in kinds


def _is_whole_json(choice: ChoiceSeen) -> bool:
    return choice.finish_reason == "stop" and isinstance(
        _read(choice.text), dict | list
    )


def _stop_came(sent: Sent, case: Case, words: list[str]) -> bool:
    for choice in sent.record.choices:
        if any(word in choice.text for word in words):
            return True
    scripts = case.server.scripts
    if scripts is None:
        return False
    spoken = _spoken(sent, case, scripts)
    return spoken is not None and spoken.stopped
