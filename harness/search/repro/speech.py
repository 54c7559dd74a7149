"""What the model of a report says: its raw output where the report shows that, else an
answer of the kind that the requests ask for.

Reading is done in a child with limits: the report's writer is nobody whom we know. What
comes out is text, and bounded."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from mmrepro.base.records import Record
from mmrepro.engines.models import (
    ScriptedAnswer,
    ScriptedCall,
    Scripts,
    calls_as,
    family_tokens,
    forms_known,
    pieces_of_text,
    read_output,
    thinks_as,
)
from pydantic import Field

_MOST_TEXT: Final = 65_536
MOST_RAW: Final = 8_000
MOST_TOOLS: Final = 20
_LONGEST_CALL: Final = 2_000
"""Words of a call that max_tokens cuts."""
_MOST_DEEP: Final = 12
_THOUGHT: Final = "Let me see."
_DONE: Final = "It is done."
_NO_TOOL: Final = ("get_weather", {"city": "Oslo"})


class Speech(Record):
    """What a report's model says or is asked for, as far as its text tells.

    Attributes:
        raw: its raw output; "": the report does not show it.
        reasoning, content, calls: of its answer, where that is shown.
        streamed: the answer is put together of a stream's pieces.
        unopened: its thoughts have no tag that begins them.
        tools: that requests bring: a name and arguments that fit.
        bare: names of those that may be called without arguments.
        forced: tool_choice: ``required``, or the name of a tool.
        stops: stop strings of requests.
        form: a value that fits response_format; null: there is none.
        most: the largest max_tokens.
    """

    raw: Annotated[str, Field(max_length=MOST_RAW)] = ""
    reasoning: Annotated[str, Field(max_length=MOST_RAW)] = ""
    content: Annotated[str, Field(max_length=MOST_RAW)] = ""
    calls: Annotated[list[ScriptedCall], Field(max_length=MOST_TOOLS)] = []
    streamed: bool = False
    unopened: bool = False
    tools: Annotated[list[ScriptedCall], Field(max_length=MOST_TOOLS)] = []
    bare: Annotated[list[str], Field(max_length=MOST_TOOLS)] = []
    forced: Annotated[str, Field(max_length=200)] = ""
    stops: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(max_length=10)
    ] = []
    form: Any = None
    most: int = 0

    @property
    def asks(self) -> bool:
        """Whether a request asks for what random weights never say."""
        return bool(self.tools or self.stops) or self.form is not None

    @property
    def is_shown(self) -> bool:
        """Whether the report shows what the model said."""
        return bool(self.raw or self.calls or self.reasoning)


# ------------------------------------------------------------------ what requests ask


def asked_in(bodies: Sequence[Mapping[str, Any]]) -> Speech:
    """What bodies of requests ask for."""
    speech = Speech()
    for body in bodies:
        _ask(speech, body)
    return speech


def _ask(speech: Speech, body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        call = _tool(tool)
        known = [known.name for known in speech.tools]
        if call is not None and call.name not in known and len(known) < MOST_TOOLS:
            speech.tools.append(call)
            if not _described(tool)[1].get("required"):
                speech.bare.append(call.name)

    choice = body.get("tool_choice")
    if choice == "required":
        speech.forced = "required"
    elif isinstance(choice, dict):
        function = choice.get("function")
        named = function if isinstance(function, dict) else choice
        speech.forced = str(named.get("name") or "")[:200]

    stop = body.get("stop")
    for word in [stop] if isinstance(stop, str) else stop or ():
        if isinstance(word, str) and 0 < len(word) <= 200 and len(speech.stops) < 10:
            speech.stops.append(word)

    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_object":
        speech.form = {"answer": "yes", "number": 42}
    elif isinstance(form, dict) and form.get("type") == "json_schema":
        inner = form.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else None
        speech.form = example_of(schema)

    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if type(value) is int:
            speech.most = max(speech.most, min(value, 1 << 20))


def _tool(tool: object) -> ScriptedCall | None:
    """A call of a tool as a request describes it."""
    name, schema = _described(tool)
    if not 0 < len(name) <= 64:
        return None
    arguments = example_of(schema)
    return ScriptedCall(
        name=name, arguments=arguments if isinstance(arguments, dict) else {}
    )


def _described(tool: object) -> tuple[str, Mapping[str, Any]]:
    """A tool's name and the schema of its arguments: OpenAI's form, or Anthropic's;
    "", {}: it is none."""
    if not isinstance(tool, dict):
        return "", {}
    function = tool.get("function")
    described = function if isinstance(function, dict) else tool
    name = described.get("name")
    if not isinstance(name, str):
        return "", {}
    schema = described.get("parameters") or described.get("input_schema")
    if not isinstance(schema, dict):
        return name, {}
    return name, schema


def example_of(schema: object, deep: int = 0) -> Any:
    """A value that fits a JSON schema, as far as its plain keywords say."""
    if not isinstance(schema, dict) or deep > _MOST_DEEP:
        return {} if deep == 0 else "x"
    if "const" in schema:
        return _short(schema["const"])
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return _short(choices[0])
    several = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(several, list) and several:
        return example_of(several[0], deep + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    properties = schema.get("properties")
    if kind == "object" or isinstance(properties, dict):
        fields = properties if isinstance(properties, dict) else {}
        made: dict[str, Any] = {}
        for name, inner in list(fields.items())[:MOST_TOOLS]:
            made[str(name)[:_LONGEST_VALUE]] = example_of(inner, deep + 1)
        return made
    if kind == "array":
        return [example_of(schema.get("items"), deep + 1)]
    least = schema.get("minimum")
    if kind in ("integer", "number") and type(least) in (int, float):
        return least
    plain = {"integer": 3, "number": 1.5, "boolean": True, "null": None}
    return plain.get(str(kind), "Zürich")


def _short(value: object) -> Any:
    """A plain value as an example has it."""
    if isinstance(value, str):
        return value[:_LONGEST_VALUE]
    return value if isinstance(value, int | float | bool) else None


_LONGEST_VALUE: Final = 200


def bodies_in(text: str) -> list[dict[str, Any]]:
    """Bodies of requests in a client's text: JSON in a shell's lines, or what Python
    passes by name."""
    text = text[:_MOST_TEXT]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return list(_json_bodies(text))
    return [_Literals(tree).body(), *_json_bodies(text)]


_ASKS: Final = (
    "tools",
    "tool_choice",
    "stop",
    "response_format",
    "max_tokens",
    "max_completion_tokens",
)


def _json_bodies(text: str) -> Iterator[dict[str, Any]]:
    decoder, at, tries = json.JSONDecoder(), text.find("{"), 0
    while at >= 0 and tries < _MOST_TRIES:
        tries += 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(value, dict) and any(name in value for name in _ASKS):
                yield value
        at = text.find("{", end)


_MOST_TRIES: Final = 2_000


class _Literals:
    """Values of a script that are written out, or names of such."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._known: dict[str, Any] = {}
        self._left = 20_000
        """Nodes that may still be read: a name that is used again is read again."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._known[node.targets[0].id] = node.value

    def body(self) -> dict[str, Any]:
        """What is passed as a request's fields: the first value of each that is
        known."""
        body: dict[str, Any] = {}
        for node in ast.walk(self._tree):
            for name, value in self._named(node):
                if name in _ASKS and body.get(name) is None:
                    body[name] = self._value(value)
        return body

    def _named(self, node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg:
                    yield keyword.arg, keyword.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value

    def _value(self, node: ast.AST | None, deep: int = 0) -> Any:
        """None: it is not written out."""
        self._left -= 1
        if node is None or self._left < 0 or deep > 4 * _MOST_DEEP:
            return None
        match node:
            case ast.Constant(value=value):
                return value if isinstance(value, str | int | float | bool) else None
            case ast.Name(id=name):
                return self._value(self._known.get(name), deep + 1)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._value(element, deep + 1) for element in elements]
            case ast.Dict(keys=keys, values=values):
                made: dict[str, Any] = {}
                for key, inner in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant):
                        made[str(key.value)] = self._value(inner, deep + 1)
                return made
        return None


# ------------------------------------------------------------------ what is said


@dataclass(frozen=True)
class SpokenVariant:
    """One way in which the model may answer.

    Attributes:
        what: it does, for people.
        is_cut: by max_tokens.
    """

    what: str
    scripts: Scripts
    is_cut: bool = False


def variants(
    speech: Speech, tool_parser: str, reasoning_parser: str
) -> list[SpokenVariant]:
    """Ways in which the model answers, the plainest first."""
    ways = _ways(speech, tool_parser, reasoning_parser)
    if forms_known(tool_parser, reasoning_parser):
        return ways
    # The scripts are of another family's form: nothing is expected of what comes of it.
    return [replace(way, scripts=_without_truth(way.scripts)) for way in ways]


def _without_truth(scripts: Scripts) -> Scripts:
    """Scripts of which it is not known what a sound parser makes."""
    nothing = {"content": None, "reasoning": None, "calls": None}
    answers = [answer.model_copy(update=nothing) for answer in scripts.script]
    return scripts.model_copy(update={"script": answers, "unread": True})


def _ways(
    speech: Speech, tool_parser: str, reasoning_parser: str
) -> list[SpokenVariant]:
    making = _Making(speech, tool_parser, reasoning_parser)
    if speech.raw:
        told = _told_by(speech, tool_parser, reasoning_parser)
        return list(_raw_variants(speech.raw, told))
    if speech.is_shown:
        return [SpokenVariant("gives the report's answer", making.shown())]
    return list(making.kinds())


_LONG_PIECE: Final = 24
_MOST_SINGLE: Final = 600
"""Characters of a text that is said one by one, at most: a context has room for them."""


def _raw_variants(raw: str, told: Mapping[str, Any]) -> Iterator[SpokenVariant]:
    """A raw output word by word, and in other pieces: what a parser of a stream makes
    of it may hang on where the tokens end. ``told``: what a sound one makes of it."""
    what = "says what the report shows"
    answer = ScriptedAnswer(name="raw", text=raw, **told)
    yield SpokenVariant(what, Scripts(script=[answer]))
    for size, how in ((1, "character by character"), (_LONG_PIECE, "in long pieces")):
        if size == 1 and len(raw) > _MOST_SINGLE:
            continue
        pieces = list(_pieces_of_size(raw, size))
        answer = ScriptedAnswer(name="raw", pieces=pieces, **told)
        yield SpokenVariant(f"{what} {how}", Scripts(script=[answer]))


def _pieces_of_size(text: str, size: int) -> Iterator[str]:
    """Pieces of so many characters; a family's tokens stay whole."""
    known = family_tokens()
    run = ""
    for piece in pieces_of_text(text, known):
        if piece not in known:
            run += piece
            continue
        yield from _chunks(run, size)
        run = ""
        yield piece
    yield from _chunks(run, size)


def _chunks(text: str, size: int) -> Iterator[str]:
    for at in range(0, len(text), size):
        yield text[at : at + size]


def likeliest_first(
    ways: Sequence[SpokenVariant], about: Sequence[str]
) -> list[SpokenVariant]:
    """Ways of answering in the order in which they may show what a report names."""
    cut_first = "finish" in about
    return sorted(ways, key=lambda way: not (way.is_cut and cut_first))


def _told_by(speech: Speech, tool_parser: str, reasoning_parser: str) -> dict[str, Any]:
    """What sound parsers make of a raw output: a thought, a text and calls in this
    order; {}: it is of another form."""
    examples = {tool.name: tool.arguments for tool in speech.tools}
    read = read_output(
        speech.raw, calls_as(tool_parser), thinks_as(reasoning_parser), examples
    )
    # Some parsers take a text without tags for a thought.
    if read is None or (reasoning_parser and read.thought is None):
        return {}
    if len(read.calls) > MOST_TOOLS:
        return {}
    calls: list[ScriptedCall] = []
    for name, arguments in read.calls:
        calls.append(ScriptedCall(name=name, arguments=dict(arguments)))
    return {"reasoning": read.thought, "content": read.content, "calls": calls}


class _Making:
    """Makes scripts of the kinds that are asked for."""

    def __init__(self, speech: Speech, tool_parser: str, reasoning_parser: str) -> None:
        self._speech = speech
        self._calls = calls_as(tool_parser)
        self._thinks = thinks_as(reasoning_parser) if reasoning_parser else None
        self._tools = speech.tools
        if tool_parser and not self._tools:
            name, arguments = _NO_TOOL
            self._tools = [ScriptedCall(name=name, arguments=dict(arguments))]

    def shown(self) -> Scripts:
        """The answer that the report shows, as the model would have said it."""
        speech = self._speech
        thought = speech.reasoning
        text = speech.content
        if speech.calls:
            text += self._calling(speech.calls)
        before = self._thinks.thinking(thought) if thought and self._thinks else ""
        answer = ScriptedAnswer(
            name="shown",
            text=before + (text or _DONE),
            reasoning=thought or None,
            content=speech.content if text else _DONE,
            calls=speech.calls,
        )
        return Scripts(script=[answer])

    def kinds(self) -> Iterator[SpokenVariant]:
        """A call, two calls, a call that is cut; a thought with and without an end, and
        without a beginning where the report has such."""
        if self._speech.unopened and self._thinks is not None:
            what = "thinks without a tag that begins the thought"
            yield SpokenVariant(what, self._unopened())
        if self._tools:
            yield from self._calling_kinds()
        else:
            yield SpokenVariant(self._what("answers"), self._scripts([]))
        if self._thinks is not None and not self._speech.tools:
            yield SpokenVariant("thinks without an end", self._endless())

    def _calling_kinds(self) -> Iterator[SpokenVariant]:
        once = self._tools[:1]
        yield SpokenVariant("calls a tool", self._scripts(once))
        yield SpokenVariant(self._what_of_two(), self._scripts(self._two()))
        long = self._long(once[0])
        if long is not None:
            what = "calls a tool, and max_tokens cuts that"
            yield SpokenVariant(what, self._scripts([long]), is_cut=True)

    def _what(self, answers: str) -> str:
        words = [answers]
        if self._thinks is not None:
            words = ["thinks and answers"]
        if self._speech.stops:
            words.append("with the stop string")
        return " ".join(words)

    def _what_of_two(self) -> str:
        if self._two()[0].arguments:
            return "calls two tools"
        return "calls two tools, one with no arguments"

    def _two(self) -> list[ScriptedCall]:
        """Two calls, the first without arguments where its tool requires none."""
        first, second = (self._tools * 2)[:2]
        if first.name in self._speech.bare:
            first = ScriptedCall(name=first.name)
        return [first, second]

    def _long(self, call: ScriptedCall) -> ScriptedCall | None:
        """A call that is longer than max_tokens; None: it cannot be, or no request
        bounds its answer, and one that fills the context takes minutes."""
        most = self._speech.most
        if not 0 < most <= _LONGEST_CALL:
            return None
        for name, value in call.arguments.items():
            if isinstance(value, str):
                long = "on and on " * (most // 3 + 8)
                arguments = {**call.arguments, name: long.strip()}
                return ScriptedCall(name=call.name, arguments=arguments)
        return None

    def _scripts(self, calls: list[ScriptedCall]) -> Scripts:
        """A text, and with tools first the calls; after their result the text again."""
        made = [self._text("text")]
        if calls:
            made.append(self._text("result", after_tool=True))
            made.append(self._call(calls))
        return Scripts(script=made)

    def _text(self, name: str, **more: Any) -> ScriptedAnswer:
        """A thought, where a parser reads it, and a text: JSON where that is asked for,
        or with the stop string in it."""
        thinking = self._thinks.thinking(_THOUGHT) if self._thinks is not None else ""
        if self._speech.form is not None:
            text = json.dumps(self._speech.form, ensure_ascii=False)
            pieces = _few_pieces(text)
        elif self._speech.stops:
            text, pieces = _with_stop(self._speech.stops[0])
        else:
            text, pieces = _DONE, list(pieces_of_text(_DONE, ()))
        return ScriptedAnswer(
            name=name,
            pieces=[*self._cut(thinking), *pieces],
            reasoning=_THOUGHT if thinking else None,
            content=text,
            calls=[],
            **more,
        )

    def _endless(self) -> Scripts:
        assert self._thinks is not None
        before, _ = self._thinks.think
        answer = ScriptedAnswer(name="endless", text=f"{before}{_THOUGHT}")
        return Scripts(script=[answer])

    def _unopened(self) -> Scripts:
        """A thought that ends and never began: its template wrote the tag, or the model
        leaves it out."""
        assert self._thinks is not None
        before, _ = self._thinks.think
        thought = self._thinks.thinking(_THOUGHT).removeprefix(before)
        answer = ScriptedAnswer(
            name="unopened",
            text=thought + _DONE,
            reasoning=_THOUGHT,
            content=_DONE,
            calls=[],
        )
        return Scripts(script=[answer])

    def _call(self, calls: list[ScriptedCall]) -> ScriptedAnswer:
        thinking = self._thinks.thinking(_THOUGHT) if self._thinks is not None else ""
        pieces = self._cut(self._calling(calls))
        if self._speech.forced:
            pieces = list(self._forced(calls, self._speech.forced))
        return ScriptedAnswer(
            name="call",
            pieces=[*self._cut(thinking), *pieces],
            with_tools=True,
            reasoning=_THOUGHT if thinking else None,
            content="",
            calls=calls,
        )

    def _calling(self, calls: Sequence[ScriptedCall]) -> str:
        return self._calls.calling([(call.name, call.arguments) for call in calls])

    def _forced(self, calls: list[ScriptedCall], forced: str) -> Iterator[str]:
        """As a grammar for a tool that must be called has it: JSON."""
        if forced == "required":
            listed = [
                {"name": call.name, "parameters": call.arguments} for call in calls
            ]
            text = json.dumps(listed, ensure_ascii=False)
        else:
            text = json.dumps(calls[0].arguments, ensure_ascii=False)
        # What is inside a string may have marks; what frames it may not.
        before, word, after = text.partition("on and on")
        yield before
        if word:
            inside, quote, rest = (word + after).partition('"')
            yield from pieces_of_text(inside, ())
            yield quote + rest

    def _cut(self, text: str) -> list[str]:
        return list(pieces_of_text(text, family_tokens()))


def _few_pieces(text: str) -> list[str]:
    """Pieces that are there once each, so that a grammar takes them."""
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    is_plain = len(set(pieces)) == len(pieces) and len(pieces[-1].encode()) > 1
    return pieces if is_plain else [text]


def _with_stop(word: str) -> tuple[str, list[str]]:
    """A text with a stop string over the border of two tokens."""
    half = len(word) // 2
    pieces = ["One", " two", " three ", word[:half], word[half:], " four", " five."]
    pieces = [piece for piece in pieces if piece]
    return "".join(pieces), pieces
