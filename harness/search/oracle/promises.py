"""What a request's own parameters promise of the answer: tokens, stop words, schemas,
streams.

A promise is asked of those engines and releases alone whose folder has it
(engines/promises.py). What an answer does not tell, such as its tokens' ids, is not
judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.engines import Engine, has_option
from mmrepro.engines.models import TINY
from mmrepro.engines.promises import ApiPromises
from mmrepro.search.oracle.judged import Sent
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.oracle.near_ties import HIDDEN
from mmrepro.traffic import MAX_LOGPROBS, TEXT_LIMIT
from mmrepro.traffic.capture import encoded_by
from mmrepro.traffic.case import CHAT, Case, ServerWanted
from mmrepro.traffic.evidence import ChoiceSeen
from packaging.version import Version

EXPECTED: Final = {
    "allowed-token-ids": "Every token is one of allowed_token_ids.",
    "bad-words": "No token completes one of bad_words.",
    "stop-text": "The text has no stop word in it.",
    "logit-bias": (
        "A token with a bias of -100 is never drawn; beside one with 100 no other is."
    ),
    "max-tokens": "No answer is longer than was asked for.",
    "text-offset": "text_offset tells where in the text each token begins.",
    "schema": "A structured output that is whole fits what was asked for.",
    "tool-choice": (
        "A tool that the request requires is called, with arguments that fit."
    ),
    "one-call": "One tool at most is called where the request rules parallel calls out.",
    "finish-tool-calls": "The reason is tool_calls only where a tool is called.",
    "stream-parts": (
        "A stream's text, reasoning and tool calls are those of the whole answer."
    ),
}

_TOKEN_ID: Final = re.compile(r"token_id:(\d{1,9})")
_TOKENS: Final = ("allowed_token_ids", "logit_bias", "bad_words")
_PARSES: Final = ("--reasoning-parser", "--tool-call-parser")
_FORCED: Final = 100.0


def promises(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Kinds and sentences of what is broken."""
    if sent.parameter("use_beam_search"):
        return
    for choice in sent.record.choices:
        name = f"choice {choice.index}: " if sent.n > 1 else ""
        rules = (_tokens, _stop, _longer, _offsets, _structured, _called)
        for rule in rules:
            for kind, said in rule(sent, choice, case, engine):
                yield kind, name + said


# ------------------------------------------------------------------ tokens


def ids_of(choice: ChoiceSeen, server: ServerWanted) -> list[int] | None:
    """Return the ids of its tokens; None: they are not told. Those of a tiny model with
    random weights follow from the text: a byte each."""
    if choice.token_ids:
        return choice.token_ids
    numbers: list[int] = []
    for token in choice.tokens:
        named = _TOKEN_ID.fullmatch(token)
        if named:
            numbers.append(int(named[1]))

    if numbers and len(numbers) == len(choice.tokens):
        return numbers
    if not choice.text or server.model not in TINY or server.scripts is not None:
        return None
    # Half a character has lost its bytes, and a long text its end.
    if "\ufffd" in choice.text or len(choice.text) >= TEXT_LIMIT:
        return None
    return [*encoded(server.model, choice.text)]


def _tokens(
    sent: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    ids = ids_of(choice, case.server)
    if ids is None or sent.parameter("echo"):
        return
    if engine.promises.allowed_tokens:
        allowed = sent.parameter("allowed_token_ids")
        others: list[int] = []
        if isinstance(allowed, list):
            others = [token for token in ids if token not in allowed]
        if others:
            yield "allowed-token-ids", f"token {others[0]} is none of allowed_token_ids"
        yield from _bad_words(sent, ids, case, engine)

    if engine.promises.logit_bias:
        yield from _bias(sent, ids)


def _bad_words(
    sent: Sent, ids: list[int], case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    words = sent.parameter("bad_words")
    if case.server.scripts is not None:
        return  # its tokens are other ones
    old = Version(case.server.release) < Version(engine.promises.bad_words_since)
    if not isinstance(words, list) or (sent.op.path != CHAT and old):
        return
    for word in words:
        # As vLLM takes it apart (sampling_params.py, update_from_tokenizer), without
        # the space.
        forbidden = encoded(case.server.model, str(word).lstrip())
        for at in range(len(ids) - len(forbidden) + 1):
            if forbidden and ids[at : at + len(forbidden)] == list(forbidden):
                yield (
                    "bad-words",
                    f"the tokens {list(forbidden)} of {word!r} are in the answer",
                )
                break


@lru_cache(maxsize=256)
def encoded(model: str, text: str) -> tuple[int, ...]:
    """Ids of a text's tokens; (): the model's tokenizer is not at hand."""
    try:
        return tuple(encoded_by(model, text))
    except UsageError:
        return ()


def _bias(sent: Sent, ids: list[int]) -> Iterator[tuple[str, str]]:
    given = sent.parameter("logit_bias")
    if not isinstance(given, dict) or any(map(sent.parameter, _BESIDE_BIAS)):
        return
    bias: dict[int, float] = {}
    for token, value in given.items():
        if str(token).isdigit() and _is_number(value):
            bias[int(token)] = float(value)
    banned = [token for token in ids if bias.get(token, 0.0) <= -_FORCED]
    if banned:
        least = bias[banned[0]]
        yield "logit-bias", f"token {banned[0]} is drawn, with a bias of {least:g}"
    forced = {token for token, value in bias.items() if value >= _FORCED}
    free = [token for token in ids if token not in forced]
    if forced and free:
        most = max(bias.values())
        said = f"token {free[0]} is drawn, and another has a bias of {most:g}"
        yield "logit-bias", said


_PENALTIES: Final = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_BESIDE_BIAS: Final = (
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    *GRAMMARS,
    *_PENALTIES,
    "tools",
)
"""Parameters beside which a bias alone does not decide what is drawn."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -------------------------------------------------------------- the text and its length


def _stop(
    sent: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    kept = ("include_stop_str_in_output", "no_stop_trim", "min_tokens", "echo")
    promised = engine.promises
    if not promised.stop_text or any(map(sent.parameter, kept)):
        return
    if choice.finish_reason != "stop" and not promised.stop_at_limit:
        return
    words = _stop_words(sent)
    if promised.stop_chars:
        words = [word for word in words if len(word) <= promised.stop_chars]

    for word in words:
        if word in choice.text:
            said = f"the stop word {word!r} is in the text {choice.text[:60]!r}"
            yield "stop-text", said
            return


def _stop_words(sent: Sent) -> list[str]:
    given = sent.parameter("stop")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        return []
    return [word for word in given if isinstance(word, str) and word]


def _longer(
    sent: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    count = len(choice.token_ids)
    if sent.limit is not None and count > sent.limit and not sent.parameter("echo"):
        yield "max-tokens", f"{count} tokens, and at most {sent.limit} were asked for"


def _offsets(
    sent: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    """Of a text that its tokens make up whole; a stream that holds text back for a stop
    word tells its offsets by what it has sent."""
    offsets, tokens = choice.text_offsets, choice.tokens
    if not engine.promises.text_offsets or not offsets or sent.parameter("echo"):
        return
    # Text is held back for a stop word, and the record keeps so many tokens only.
    if (sent.record.stream and sent.parameter("stop")) or len(tokens) >= MAX_LOGPROBS:
        return
    if "".join(tokens) != choice.text or not HIDDEN.isdisjoint(tokens):
        return
    right = [0]
    for token in tokens[:-1]:
        right.append(right[-1] + len(token))
    if offsets == right:
        return
    at = 0  # also where one list is only longer than the other
    for place, (offset, expected) in enumerate(zip(offsets, right, strict=False)):
        if offset != expected:
            at = place
            break

    said = f"token {at} begins at {right[at]}, and text_offset is {offsets[:12]}"
    yield "text-offset", said


# ------------------------------------------------------------------ structured outputs


def _structured(
    sent: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    promised = engine.promises
    if not promised.structured or parses(case.server.args):
        return
    cut = choice.finish_reason != "stop" or len(choice.text) >= TEXT_LIMIT
    ends = ("stop", "stop_token_ids", "tools", "stop_regex")
    if cut or not choice.text or any(map(sent.parameter, ends)):
        return
    yield from _fits(choice.text, _wanted(sent, promised, case.server.release))


def _wanted(sent: Sent, promised: ApiPromises, release: str) -> tuple[str, Any]:
    """Return which form was asked for: json, choice or regex, and what it is; ("",
    None): none."""
    forms: list[tuple[str, Any]] = []
    form = sent.parameter("response_format")
    if isinstance(form, dict) and form.get("type") == "json_object":
        forms.append(("json", {"type": "object"}))
    if isinstance(form, dict) and form.get("type") == "json_schema":
        inner = form.get("json_schema")
        if isinstance(inner, dict) and inner.get("strict") is not False:
            forms.append(("json", inner.get("schema")))

    own: object = None
    if promised.structured_outputs:
        own = sent.parameter("structured_outputs")
    if isinstance(own, dict):
        for kind in ("json", "choice", "regex"):
            if own.get(kind):
                forms.append((kind, own[kind]))

    until = promised.structured_fields_until
    names = promised.structured_fields
    if until and Version(release) >= Version(until):
        names = {}  # later releases ignore them

    for name, kind in names.items():
        if sent.parameter(name):
            forms.append((kind, sent.parameter(name)))
    # Which of several forms an engine follows is not known.
    return forms[0] if len(forms) == 1 else ("", None)


def _fits(text: str, form: tuple[str, Any]) -> Iterator[tuple[str, str]]:
    kind, what = form
    if kind == "choice" and isinstance(what, list) and text not in what:
        yield "schema", f"{text[:60]!r} is none of the choices {what[:6]}"
    if kind == "regex" and isinstance(what, str):
        try:
            fits = re.fullmatch(what, text, re.DOTALL)
        except (re.error, RecursionError):
            return
        if fits is None:
            yield "schema", f"{text[:60]!r} does not match {what[:60]!r}"

    if kind == "json":
        try:
            schema = json.loads(what) if isinstance(what, str) else what
        except ValueError:
            return
        if isinstance(schema, dict) and (why := misfit(text, loosened(schema))):
            yield "schema", f"{text[:60]!r}: {why}"


_KEPT: Final = (
    "type",
    "properties",
    "required",
    "items",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "$defs",
    "definitions",
    "additionalProperties",
)
"""Keywords of a schema that every grammar backend holds to; others (a pattern, a
number's bounds, oneOf) some of them leave out, which makes an answer no worse than they
say."""


def loosened(schema: Any) -> Any:
    """The schema without what not every backend holds to: what fits the whole fits it
    as well."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, bool) else True
    kept: dict[str, Any] = {}
    for name in _KEPT:
        value = schema.get(name)
        if name not in schema:
            continue
        if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
            kept[name] = {key: loosened(inner) for key, inner in value.items()}
        elif name == "anyOf" and isinstance(value, list):
            kept[name] = [loosened(inner) for inner in value]
        elif name == "additionalProperties":
            # Beside patternProperties it is about fewer fields than are known here.
            if "patternProperties" not in schema:
                kept[name] = loosened(value)
        elif name == "items":
            if "prefixItems" not in schema:
                kept[name] = loosened(value)
        else:
            kept[name] = value

    return kept


def misfit(text: str, schema: Any) -> str:
    """Why a text is no JSON that fits ``schema``; "": it fits, or the schema is
    none."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, ValidationError
    from referencing.exceptions import Unresolvable

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON"

    try:
        Draft202012Validator.check_schema(schema)
        error = next(iter(Draft202012Validator(schema).iter_errors(value)), None)
    except (SchemaError, Unresolvable, RecursionError):
        return ""

    assert isinstance(error, ValidationError | None)
    return "" if error is None else f"{error.json_path}: {error.message[:120]}"


def _called(
    sent: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    if choice.finish_reason == "tool_calls" and not choice.tool_calls:
        yield "finish-tool-calls", "it ended with tool_calls, and no tool is called"
    given = sent.parameter("tool_choice")
    forced = given == "required" or isinstance(given, dict)
    whole = choice.finish_reason in ("stop", "tool_calls")
    ends = any(
        sent.parameter(name) for name in ("stop", "stop_token_ids", "min_tokens")
    )
    promised = engine.promises.tool_choice
    if not promised or not forced or not whole or ends or _reasons(case):
        return
    # A call that was cut off is no call, and breaks no promise.
    if _may_be_cut(sent, choice):
        return
    schemas = _tools(sent.parameter("tools"))
    if isinstance(given, dict):
        name = (given.get("function") or {}).get("name")
        schemas = {name: schemas[name]} if name in schemas else {}
    if not schemas:
        return
    if not choice.tool_calls:
        yield (
            "tool-choice",
            f"tool_choice is {json.dumps(given)[:60]}, and no tool is called",
        )

    for call in choice.tool_calls:
        if call.name not in schemas:
            yield "tool-choice", f"{call.name!r} is called, which is none of the tools"
        elif len(call.arguments) < TEXT_LIMIT:
            why = misfit(call.arguments or "{}", loosened(schemas[call.name]))
            if why:
                yield "tool-choice", f"{call.name}({call.arguments[:60]}): {why}"


def one_call(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Answers with several calls to a request that rules those out, whatever the API."""
    since = engine.promises.one_call_since
    if not since or not sent.rules_out_parallel_calls:
        return
    if Version(case.server.release) < Version(since):
        return
    for choice in sent.record.choices:
        count = len(choice.tool_calls)
        if count > 1:
            said = f"{count} tools are called, and parallel calls are ruled out"
            yield "one-call", said


def _may_be_cut(sent: Sent, choice: ChoiceSeen) -> bool:
    """Whether it may have ended for its length: vLLM tells a call that was cut there
    (0.32.0, a named tool) by another reason."""
    if sent.limit is None:
        return False
    count = len(choice.token_ids) or None
    if count is None and sent.n == 1:
        count = sent.record.completion_tokens
    return count is None or count >= sent.limit


def _tools(tools: object) -> dict[str, Any]:
    """The schemas of the tools' arguments, by the tools' names."""
    schemas: dict[str, Any] = {}
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict):
            schema = function.get("parameters") or {"type": "object"}
            schemas[str(function.get("name"))] = schema
    return schemas


def parses(args: list[str]) -> bool:
    """Whether a server's options part the text before it is told."""
    return any(has_option(args, option) for option in _PARSES)


def _reasons(case: Case) -> bool:
    return has_option(case.server.args, _PARSES[0])


# ------------------------------------------------------------------ streams


def unlike(a: ChoiceSeen, b: ChoiceSeen) -> str:
    """Say what differs between two answers that should be one: text, reasoning or calls
    of tools; "": nothing does. Spaces around a part are a parser's; arguments are
    compared as JSON."""
    for name in ("text", "reasoning"):
        part, other = getattr(a, name).strip(), getattr(b, name).strip()
        if part != other and max(len(part), len(other)) < TEXT_LIMIT - 1:
            return f"the {name} is {part[:60]!r} and {other[:60]!r}"

    calls, others = _calls(a), _calls(b)
    if calls != others:
        return f"the calls of tools are {_shown(calls)} and {_shown(others)}"
    if a.finish_reason != b.finish_reason:
        return f"the end is {a.finish_reason} and {b.finish_reason}"
    return ""


def _calls(choice: ChoiceSeen) -> list[tuple[str | None, Any]]:
    return [(call.name, _read(call.arguments)) for call in choice.tool_calls]


def _shown(calls: Sequence[tuple[str | None, Any]]) -> list[str]:
    return [f"{name}({str(arguments)[:40]})" for name, arguments in calls]


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments.strip()
