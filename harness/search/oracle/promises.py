"""What a request's own parameters promise of the answer: tokens, stop words, schemas,
streams.

A promise is asked of those engines and releases alone whose sources make it (vLLM 0.11
to 0.32, SGLang 0.5.6 to 0.5.23 were read). What an answer does not tell, such as its
tokens' ids, is not judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.engines import Engine
from mmrepro.engines.base import has_option
from mmrepro.engines.models.tiny import TINY
from mmrepro.search.oracle.judged import Sent
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.oracle.near_ties import HIDDEN
from mmrepro.traffic.capture.texts import encoded_by
from mmrepro.traffic.case.model import CHAT, Case
from mmrepro.traffic.evidence import ChoiceSeen
from mmrepro.traffic.reading import MAX_LOGPROBS, TEXT_LIMIT
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
        "A call of a tool that must be made is made, with arguments that fit."
    ),
    "finish-tool-calls": "The reason is tool_calls only where a tool is called.",
    "stream-parts": (
        "A stream's text, reasoning and tool calls are those of the whole answer."
    ),
}

TOKENS: Final = ("allowed_token_ids", "logit_bias", "bad_words")
_GUIDED_UNTIL: Final = Version("0.12")
"""vLLM knows ``guided_json`` and its kind before it; later ones ignore them."""
_BAD_WORDS_OF_COMPLETIONS: Final = Version("0.32")
"""vLLM takes ``bad_words`` of plain completions from it on; of chats since long."""
_PARSES: Final = ("--reasoning-parser", "--tool-call-parser")
_FORCED: Final = 100.0
_SHORT_STOP: Final = 2
"""Characters: SGLang looks for stop words in the last tokens only, as many as the word
has; two characters lie within them however they were tokenized."""


def promises(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Kinds and sentences of what is broken."""
    if one.parameter("use_beam_search"):
        return
    for choice in one.record.choices:
        name = f"choice {choice.index}: " if one.n > 1 else ""
        rules = (_tokens, _stop, _longer, _offsets, _structured, _called)
        for rule in rules:
            for kind, said in rule(one, choice, case, engine):
                yield kind, name + said


# ------------------------------------------------------------------ tokens


def ids_of(choice: ChoiceSeen, model: str) -> list[int] | None:
    """Of its tokens; None: they are not told. A tiny model's follow from the text: a
    byte each."""
    if choice.token_ids:
        return choice.token_ids
    named = [re.fullmatch(r"token_id:(\d{1,9})", token) for token in choice.tokens]
    if named and all(named):
        return [int(one[1]) for one in named if one]
    broken = "\ufffd" in choice.text or len(choice.text) >= TEXT_LIMIT
    return (
        None
        if broken or not choice.text or model not in TINY
        else [*encoded(model, choice.text)]
    )


def _tokens(
    one: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    ids = ids_of(choice, case.server.model)
    if ids is None or one.parameter("echo") or engine.name not in ("vllm", "sglang"):
        return
    if engine.name == "vllm":
        allowed = one.parameter("allowed_token_ids")
        if isinstance(allowed, list) and (
            others := [t for t in ids if t not in allowed]
        ):
            yield "allowed-token-ids", f"token {others[0]} is none of allowed_token_ids"
        yield from _bad_words(one, ids, case)
    yield from _bias(one, ids)


def _bad_words(one: Sent, ids: list[int], case: Case) -> Iterator[tuple[str, str]]:
    words = one.parameter("bad_words")
    old = Version(case.server.release) < _BAD_WORDS_OF_COMPLETIONS
    if not isinstance(words, list) or (one.op.path != CHAT and old):
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


def _bias(one: Sent, ids: list[int]) -> Iterator[tuple[str, str]]:
    given = one.parameter("logit_bias")
    others = (
        "allowed_token_ids",
        "bad_words",
        "min_tokens",
        *GRAMMARS,
        *_PENALTIES,
        "tools",
    )
    if not isinstance(given, dict) or any(one.parameter(name) for name in others):
        return
    bias = {
        int(t): float(b) for t, b in given.items() if str(t).isdigit() and _is_number(b)
    }
    banned = [token for token in ids if bias.get(token, 0.0) <= -_FORCED]
    if banned:
        yield (
            "logit-bias",
            f"token {banned[0]} is drawn, with a bias of {bias[banned[0]]:g}",
        )
    forced = {token for token, value in bias.items() if value >= _FORCED}
    free = [token for token in ids if token not in forced]
    if forced and free:
        value = max(bias.values())
        yield (
            "logit-bias",
            f"token {free[0]} is drawn, and another has a bias of {value:g}",
        )


_PENALTIES: Final = ("frequency_penalty", "presence_penalty", "repetition_penalty")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -------------------------------------------------------------- the text and its length


def _stop(
    one: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    given = one.parameter("stop")
    words = (
        [given] if isinstance(given, str) else given if isinstance(given, list) else []
    )
    kept = ("include_stop_str_in_output", "no_stop_trim", "min_tokens", "echo")
    if engine.name not in ("vllm", "sglang") or any(
        one.parameter(name) for name in kept
    ):
        return
    if engine.name == "sglang":  # at the longest answer it looks for no stop word
        words = [w for w in words if isinstance(w, str) and len(w) <= _SHORT_STOP]
        words = words if choice.finish_reason == "stop" else []
    for word in words:
        if isinstance(word, str) and word and word in choice.text:
            yield (
                "stop-text",
                f"the stop word {word!r} is in the text {choice.text[:60]!r}",
            )
            return


def _longer(
    one: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    told = len(choice.token_ids)
    if one.limit is not None and told > one.limit and not one.parameter("echo"):
        yield "max-tokens", f"{told} tokens, and at most {one.limit} were asked for"


def _offsets(
    one: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    """Of a text that its tokens make up whole; a stream that holds text back for a stop
    word tells its offsets by what it has sent."""
    offsets, tokens = choice.text_offsets, choice.tokens
    if engine.name != "vllm" or not offsets or one.parameter("echo"):
        return
    if (one.record.stream and one.parameter("stop")) or len(tokens) >= MAX_LOGPROBS:
        return
    if "".join(tokens) != choice.text or any(token in HIDDEN for token in tokens):
        return
    right = [0]
    for token in tokens[:-1]:
        right.append(right[-1] + len(token))
    if offsets != right:
        at = next(
            (
                n
                for n, pair in enumerate(zip(offsets, right, strict=False))
                if len({*pair}) > 1
            ),
            0,
        )
        yield (
            "text-offset",
            f"token {at} begins at {right[at]}, and text_offset is {offsets[:12]}",
        )


# ------------------------------------------------------------------ structured outputs


def _structured(
    one: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    cut = choice.finish_reason != "stop" or len(choice.text) >= TEXT_LIMIT
    ends = any(
        one.parameter(name)
        for name in ("stop", "stop_token_ids", "tools", "stop_regex")
    )
    if (
        cut
        or ends
        or not choice.text
        or parses(case.server.args)
        or engine.name not in ("vllm", "sglang")
    ):
        return
    old = engine.name == "vllm" and Version(case.server.release) < _GUIDED_UNTIL
    yield from _fits(choice.text, wanted(one, engine.name, guided=old))


def wanted(one: Sent, engine: str, *, guided: bool) -> tuple[str, Any]:
    """Which form was asked for: json, choice or regex, and what it is; ("", None):
    none.
    ``guided``: the engine knows the older names."""
    form = one.parameter("response_format")
    found: list[tuple[str, Any]] = []
    if isinstance(form, dict) and form.get("type") == "json_object":
        found.append(("json", {"type": "object"}))
    if isinstance(form, dict) and form.get("type") == "json_schema":
        inner = form.get("json_schema")
        if isinstance(inner, dict) and inner.get("strict") is not False:
            found.append(("json", inner.get("schema")))
    own = one.parameter("structured_outputs") if engine == "vllm" else None
    if isinstance(own, dict):
        found += [
            (kind, own[kind]) for kind in ("json", "choice", "regex") if own.get(kind)
        ]
    names = {"guided_json": "json", "guided_choice": "choice", "guided_regex": "regex"}
    names = (
        names
        if guided
        else {"regex": "regex", "json_schema": "json"}
        if engine == "sglang"
        else {}
    )
    found += [
        (kind, one.parameter(name))
        for name, kind in names.items()
        if one.parameter(name)
    ]
    return found[0] if len(found) == 1 else ("", None)


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
            kept[name] = {key: loosened(one) for key, one in value.items()}
        elif name == "anyOf" and isinstance(value, list):
            kept[name] = [loosened(one) for one in value]
        elif name == "additionalProperties":
            # Beside patternProperties it is about fewer fields than are known here.
            kept |= {} if "patternProperties" in schema else {name: loosened(value)}
        elif name == "items":
            kept |= {} if "prefixItems" in schema else {name: loosened(value)}
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
    one: Sent, choice: ChoiceSeen, case: Case, engine: Engine
) -> Iterator[tuple[str, str]]:
    if choice.finish_reason == "tool_calls" and not choice.tool_calls:
        yield "finish-tool-calls", "it ended with tool_calls, and no tool is called"
    given = one.parameter("tool_choice")
    forced = given == "required" or isinstance(given, dict)
    whole = choice.finish_reason in ("stop", "tool_calls")
    ends = any(one.parameter(name) for name in ("stop", "stop_token_ids", "min_tokens"))
    if engine.name != "vllm" or not forced or not whole or ends or _reasons(case):
        return
    if _may_be_cut(one, choice):
        return
    schemas = _tools(one.parameter("tools"))
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


def _may_be_cut(one: Sent, choice: ChoiceSeen) -> bool:
    """Whether it may have ended for its length: vLLM tells a call that was cut there
    (0.32.0, a named tool) by another reason."""
    told = len(choice.token_ids) or (
        one.record.completion_tokens if one.n == 1 else None
    )
    return one.limit is not None and (told is None or told >= one.limit)


def _tools(tools: object) -> dict[str, Any]:
    functions = (
        [one.get("function") for one in tools or [] if isinstance(one, dict)]
        if isinstance(tools, list)
        else []
    )
    return {
        str(one.get("name")): one.get("parameters") or {"type": "object"}
        for one in functions
        if isinstance(one, dict)
    }


def parses(args: list[str]) -> bool:
    """Whether a server's options part the text before it is told."""
    return any(has_option(args, option) for option in _PARSES)


def _reasons(case: Case) -> bool:
    return has_option(case.server.args, _PARSES[0])


# ------------------------------------------------------------------ streams


def unlike(a: ChoiceSeen, b: ChoiceSeen) -> str:
    """What differs between two answers that should be one: text, reasoning or calls of
    tools; "": nothing does. Spaces around a part are a parser's; arguments are compared
    as JSON."""
    for name in ("text", "reasoning"):
        one, other = getattr(a, name).strip(), getattr(b, name).strip()
        if one != other and max(len(one), len(other)) < TEXT_LIMIT - 1:
            return f"the {name} is {one[:60]!r} and {other[:60]!r}"
    calls = [
        [(c.name, _read(c.arguments)) for c in choice.tool_calls] for choice in (a, b)
    ]
    if calls[0] != calls[1]:
        shown = [
            [f"{name}({str(given)[:40]})" for name, given in some] for some in calls
        ]
        return f"the calls of tools are {shown[0]} and {shown[1]}"
    if a.finish_reason != b.finish_reason:
        return f"the end is {a.finish_reason} and {b.finish_reason}"
    return ""


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments.strip()
