"""Episodes in which the model says what parsers find hard: calls of tools, thoughts, and
texts that look like either.

Each script has one trait, so that a finding's script is small from the start. What a
sound parser makes of it is told beside it, where that is beyond doubt: a call's name and
arguments, a thought, a text without a call. What parsers may do as they like is not:
blanks around a part, a text before or after a call, a call that is cut, a tool that
nobody offered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.models import (
    USUAL_SCRIPT_BASE,
    ScriptedAnswer,
    ScriptedCall,
    Scripts,
    calls_as,
    family_tokens,
    pieces_of_text,
    thinks_as,
)
from mmrepro.engines.parsers import RegisteredParsers
from mmrepro.search.oracle.judged import sent_of
from mmrepro.search.oracle.scripted import misread, script_of
from mmrepro.traffic.case import (
    CHAT,
    Case,
    Message,
    Operation,
    Origin,
    Played,
    PlayState,
    ServerWanted,
)

_AT_ONCE: Final = 32
"""Many share a step: what a parser makes of one hangs on no other."""
_MOST_TOKENS: Final = 900
_CONTEXT: Final = 2048
_SCRIPTS: Final = 28
"""Of an episode; each is asked for whole and streamed."""
_PLAIN_CALL, _PLAIN_THOUGHT, _PLAIN_TEXT = "plain-call", "plain-thought", "plain-text"
_BEFORE, _AFTER = "before", "after"
_OF_FORM: Final = (_PLAIN_CALL, _PLAIN_THOUGHT, _PLAIN_TEXT, _BEFORE, _AFTER)
"""Scripts that tell whether a parser knows their form."""

TOOLS: Final[Sequence[Mapping[str, Any]]] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "ratio": {"type": "number"},
                    "detail": {"type": "object"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Looks for a text.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string"}},
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "ping",
            "description": "Nothing.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
)

_STRINGS: Final[Mapping[str, str]] = {
    "unicode": "Zürich – 東京 💡 é",
    "braces": '}{ ]} {"a": [1}} {{x}}',
    "quotes": 'it\'s "so" \\ and \\n stays',
    "lines": "first line\n  second line\n\nfourth\tline",
    "signs": "a < b && c > d; e <= f => g </ h",
    "number": "42",
    "word": "true",
    "comma": "a, b=c, d: e",
    "json": '{"name": "ping", "arguments": {}}',
    "blanks": "  two  blanks  ",
    "long": "on and on " * 20 + "end",
}
"""Traits of an argument that is a text."""
_VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "types": {"city": "Oslo", "days": 3, "exact": True, "ratio": 1.5},
    "negative": {"city": "Oslo", "days": -12, "exact": False, "ratio": -0.25},
    "nested": {"city": "Oslo", "detail": {"a": {"b": [1, {"c": {}}]}, "d": []}},
    "list": {"city": "Oslo", "tags": ["x", "y z", "}"]},
    "null": {"city": "Oslo", "detail": {"x": None}},
    "large": {"city": "Oslo", "days": 9_007_199_254_740_993, "ratio": 1e-07},
    "empty-text": {"city": "", "days": 1},
}
_TEXTS: Final[Mapping[str, str]] = {
    "unicode": "Grüße aus 東京 💡, é.",
    "signs": "If a < b and c > d, then a <= d; x << 2 </ y.",
    "lines": "First line.\n\n- one\n- two\n\nLast line.",
    "markdown": "Use `x < 3` and **bold** text.",
    "long": "On and on it goes, " * 20 + "and ends.",
}


_LIKE_JSON: Final = '{"a": 1} is an object, [2, 3] a list.'


@dataclass(frozen=True)
class ParsersAsked:
    """The parsers of an episode's server; "": none of that kind."""

    tools: str = ""
    reasoning: str = ""

    def __str__(self) -> str:
        return " and ".join(name for name in (self.tools, self.reasoning) if name)


def parsers_of(number: int, registered: RegisteredParsers, seed: int) -> ParsersAsked:
    """The parsers of episode ``number``: first each by itself, in an order by the seed,
    then tools with a reasoning parser of the same name, or another one."""
    alone = [ParsersAsked(tools=name) for name in registered.tools]
    alone += [ParsersAsked(reasoning=name) for name in registered.reasoning]
    Random(f"{seed}/parsers").shuffle(alone)  # noqa: S311
    if number < len(alone):
        return alone[number]
    tools, reasoning = registered.tools, registered.reasoning
    later = number - len(alone)
    if not (tools and reasoning):
        return alone[later % len(alone)]
    name = tools[later % len(tools)]
    if name in reasoning and later < len(tools):
        return ParsersAsked(name, name)
    return ParsersAsked(name, reasoning[later % len(reasoning)])


def spoken_case(
    server: ServerWanted,
    registered: RegisteredParsers,
    asked: ParsersAsked,
    random: Random,
) -> Case:
    """Requests whose answers are scripts of all traits, each asked for whole and
    streamed."""
    writer = _Writer(asked, random)
    answers = writer.answers()
    scripts = Scripts(script=answers)
    args = list(server.args)
    for word in registered.args(asked.tools, asked.reasoning):
        if word not in args:
            args.append(word)
    update = {
        "args": args,
        "scripts": scripts,
        "model": USUAL_SCRIPT_BASE,
        "max_model_len": _CONTEXT,
    }
    operations: list[Operation] = []
    for answer in answers:
        for op in writer.operations(answer, server.engine):
            after = [f"running<={_AT_ONCE - 1}"] if operations else []
            id = f"r{len(operations) + 1}"
            operations.append(op.model_copy(update={"id": id, "after": after}))

    return Case(
        title=f"what the parsers {asked} make of",
        server=server.model_copy(update=update),
        operations=operations,
        origin=Origin(format="fuzz", anonymised=True),
    )


class _Writer:
    """Writes the scripts of one episode in the forms of its parsers' families."""

    def __init__(self, asked: ParsersAsked, random: Random) -> None:
        self._asked, self._random = asked, random
        self._calls = calls_as(asked.tools) if asked.tools else None
        self._thinks = thinks_as(asked.reasoning) if asked.reasoning else None
        self._tags = self._own_tags()

    def _own_tags(self) -> list[str]:
        """Tags that this episode's parsers look for."""
        tags: list[str] = []
        if self._calls is not None:
            tags += self._calls.tokens
        shared = family_tokens()
        for tag in () if self._thinks is None else self._thinks.think:
            # A half of several tokens would have whole ones in it.
            pieces = [piece.strip() for piece in pieces_of_text(tag, shared)]
            tags += [piece for piece in pieces if piece][:1]
        return [tag for tag in dict.fromkeys(tags) if len(tag) > 2]

    def answers(self) -> list[ScriptedAnswer]:
        """The plainest ones, and others that are drawn among all."""
        made = list(self._all())
        plain = [answer for answer in made if answer.name.startswith("plain-")]
        others = [answer for answer in made if answer not in plain]
        room = _SCRIPTS - len(plain)
        if len(others) > room:
            chosen = self._random.sample(range(len(others)), room)
            others = [others[number] for number in sorted(chosen)]
        return [*plain, *others]

    def _all(self) -> Iterator[ScriptedAnswer]:
        if self._calls is not None:
            yield from self._of_calls()
        elif self._thinks is not None:
            yield self._thought(_PLAIN_THOUGHT, "Let me see.", "It is done.")
        yield from self._of_texts()
        if self._thinks is not None:
            yield from self._of_thoughts()

    # ------------------------------------------------------------------ calls

    def _of_calls(self) -> Iterator[ScriptedAnswer]:
        assert self._calls is not None
        yield self._call(_PLAIN_CALL, [("search", {"query": "ships"})])
        yield self._call("no-arguments", [("ping", {})])
        for trait, text in _STRINGS.items():
            yield self._call(f"text-{trait}", [("search", {"query": text})])
        if not self._calls.texts_only:
            for trait, arguments in _VALUES.items():
                yield self._call(f"value-{trait}", [("get_weather", arguments)])

        two = [("search", {"query": "ships"}), ("get_weather", {"city": "Oslo"})]
        same = [("search", {"query": "ships"}), ("search", {"query": "ships"})]
        if self._calls.one_call:
            two = two[:1]
        else:
            yield self._call("two-calls", two)
            yield self._call("equal-calls", same)
            yield self._call("three-calls", [*two, ("search", {"query": "{boats}"})])
        unicode = [("search", {"query": _STRINGS["unicode"]})]
        yield self._call("every-letter", two, cut="letters")
        yield self._call("every-byte", unicode, cut="bytes")
        yield self._call("one-token", two, cut="whole")
        yield self._call("few-tokens", two, cut="anywhere")
        if self._has_opening:
            yield self._call(_BEFORE, two[:1], before="Let me look that up.\n")
            # Without a closing tag what comes after a call is taken for a part of it.
            if self._calls.calling(two[:1]).endswith(">"):
                yield self._call(_AFTER, two[:1], after="\nThat is all.")
        yield self._call("cut", [("search", {"query": _STRINGS["long"]})])
        yield self._call("unknown-tool", [("walk", {"to": "Oslo"})], sound=False)
        if "ARGUMENTS" in self._calls.call:
            yield self._call("escaped", unicode, escaped=True)
            for number, tag in enumerate(self._calls.tokens[:2]):
                query = [("search", {"query": f"say {tag} twice"})]
                yield self._call(f"tag-in-text-{number}", query, cut="inside")

    @property
    def _has_opening(self) -> bool:
        """Whether a text may stand before a call: a tag tells where that begins."""
        assert self._calls is not None
        begin = self._calls.calling([("ping", {})])
        if self._calls.frame == "harmony":
            return False
        return begin.startswith((*self._calls.tokens, "<", "functools"))

    def _call(
        self,
        name: str,
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        cut: str = "words",
        before: str = "",
        after: str = "",
        escaped: bool = False,
        sound: bool = True,
    ) -> ScriptedAnswer:
        """A script that calls tools, after a thought where a parser reads thoughts.

        Args:
            cut: where it is cut into tokens.
            before, after: texts around the calls.
            escaped: letters beyond ASCII are escapes of JSON.
            sound: what comes of it is beyond doubt.
        """
        assert self._calls is not None
        text = before + self._calls.calling(calls) + after
        if escaped:
            text = _escaped(text)
        thought = "I need a tool." if self._thinks is not None else None
        told: dict[str, Any] = {}
        if sound:
            made = [ScriptedCall(name=n, arguments=dict(a)) for n, a in calls]
            told = {"calls": made, "reasoning": thought}
            if not (before or after):
                told["content"] = ""
        return self._answer(name, thought, text, cut, with_tools=True, **told)

    # ------------------------------------------------------------------ texts

    def _of_texts(self) -> Iterator[ScriptedAnswer]:
        yield self._text(_PLAIN_TEXT, "It is done.")
        for trait, text in _TEXTS.items():
            yield self._text(f"content-{trait}", text)
        # Where no tag opens a call, such a text may be taken for one.
        doubtful = self._calls is not None and not self._has_opening
        yield self._text("content-json", _LIKE_JSON, sound=not doubtful)
        yield self._text("content-bytes", _TEXTS["unicode"], cut="bytes")
        for number, tag in enumerate(self._tags[:3]):
            half = tag[: max(1, len(tag) // 2)]
            yield self._text(f"half-tag-{number}", f"So {half} is no tag.")
            yield self._text(f"ends-in-half-{number}", f"It ends in {half}")
            yield self._text(f"letters-half-{number}", f"So {half} x", cut="letters")

    def _text(
        self, name: str, text: str, cut: str = "words", *, sound: bool = True
    ) -> ScriptedAnswer:
        thought = "Let me see." if self._thinks is not None else None
        told: dict[str, Any] = {}
        if sound:
            told = {"content": text, "reasoning": thought, "calls": []}
        return self._answer(name, thought, text, cut, **told)

    # ------------------------------------------------------------------ thoughts

    def _of_thoughts(self) -> Iterator[ScriptedAnswer]:
        for trait, text in _TEXTS.items():
            yield self._thought(f"thought-{trait}", text, "It is done.")
        yield self._thought("thought-json", '{"a": [1, {"b": "c"}]}', "It is done.")
        yield self._thought("thought-bytes", _TEXTS["unicode"], "So.", cut="bytes")
        yield self._thought("thought-letters", "Let me see.", "So.", cut="letters")
        yield self._thought("thought-few", "Let me see it.", "So.", cut="anywhere")
        yield self._thought("thought-cut", _TEXTS["long"], "So.")
        for number, tag in enumerate(self._tags[:2]):
            half = tag[: max(1, len(tag) // 2)]
            yield self._thought(f"thought-half-{number}", f"A {half} here.", "So.")

    def _thought(
        self, name: str, thought: str, text: str, cut: str = "words"
    ) -> ScriptedAnswer:
        told: dict[str, Any] = {"content": text, "reasoning": thought, "calls": []}
        return self._answer(name, thought, text, cut, **told)

    # ------------------------------------------------------------------ tokens

    def _answer(
        self, name: str, thought: str | None, text: str, cut: str, **more: Any
    ) -> ScriptedAnswer:
        if thought is not None and self._thinks is not None:
            text = self._thinks.thinking(thought) + text
            if self._thinks.by_tokens:
                more |= {"content": None, "reasoning": None, "calls": None}
        return ScriptedAnswer(
            name=name,
            pieces=list(self._cut(text, cut)),
            after_text=f"#{name}#",
            **more,
        )

    def _cut(self, text: str, how: str) -> Iterator[str]:
        """Pieces of a text; special tokens stay whole."""
        shared = family_tokens()
        if how == "inside":
            # A tag that is part of an argument is a text, and no special token.
            before, mark, rest = text.partition("say ")
            inside, twice, after = rest.partition(" twice")
            yield from self._cut(before, "words")
            yield from (mark + inside[:3], inside[3:] + twice)
            yield from self._cut(after, "words")
            return
        for piece in _joined(pieces_of_text(text, shared), shared):
            if piece in shared or how == "whole":
                yield piece
            elif how == "words":
                yield from pieces_of_text(piece, ())
            elif how == "letters":
                yield from piece
            elif how == "bytes":
                yield from _bytes(piece)
            else:
                yield from self._anywhere(piece)

    def _anywhere(self, text: str) -> Iterator[str]:
        """Few long tokens, whose borders are anywhere."""
        at = 0
        while at < len(text):
            length = self._random.randint(1, 24)
            yield text[at : at + length]
            at += length

    # ------------------------------------------------------------------ requests

    def operations(self, answer: ScriptedAnswer, engine: str) -> Iterator[Operation]:
        """Requests that an answer is given to: whole and streamed; of some, cut by
        max_tokens, or two answers at once."""
        message = Message(role="user", content=f"Answer #{answer.name}#")
        limit = _MOST_TOKENS
        if answer.name.endswith("cut"):
            limit = len(answer.pieces) // 2
        parameters: dict[str, Any] = {"max_tokens": limit, "temperature": 0}
        if self._calls is not None:
            parameters["tools"] = [dict(tool) for tool in TOOLS]
        if self._thinks is not None:
            # Some parsers take a thought for one only where the request wants it.
            parameters["chat_template_kwargs"] = dict(_WANTS_THOUGHTS)
        op = Operation(id="r", path=CHAT, messages=[message], parameters=parameters)
        yield op
        yield op.model_copy(update={"stream": True})
        if answer.name in _TWICE and dialect_of(engine).several:
            two = {**parameters, "n": 2, "temperature": 1}
            yield op.model_copy(update={"parameters": two, "stream": True})


_WANTS_THOUGHTS: Final = {"enable_thinking": True, "thinking": True}
"""What the families' own templates call it."""
_TWICE: Final = ("two-calls", _PLAIN_THOUGHT)
"""Scripts that are asked for twice at once: a parser keeps the state of a stream."""


def _joined(pieces: Sequence[str], shared: Sequence[str]) -> Iterator[str]:
    """Pieces between two special tokens, in one."""
    known = set(shared)
    text = ""
    for piece in pieces:
        if piece not in known:
            text += piece
            continue
        if text:
            yield text
        text = ""
        yield piece
    if text:
        yield text


def _bytes(text: str) -> Iterator[str]:
    """Letters, and those beyond ASCII byte by byte, in the form of a file of
    scripts."""
    for letter in text:
        if letter.isascii():
            yield letter
        else:
            yield from (f"<0x{byte:02X}>" for byte in letter.encode())


def _escaped(text: str) -> str:
    """A text with letters beyond ASCII as escapes of JSON, but for special tokens."""
    shared = family_tokens()
    pieces: list[str] = []
    for piece in _joined(pieces_of_text(text, shared), shared):
        if piece not in shared:
            piece = "".join(map(_escaped_letter, piece))
        pieces.append(piece)
    return "".join(pieces)


def _escaped_letter(letter: str) -> str:
    return letter if letter.isascii() else json.dumps(letter)[1:-1]


# ------------------------------------------------------------- what a parser is asked


@dataclass(frozen=True)
class CheckedForms:
    """A case without what its parsers do not read even in the plainest form.

    Attributes:
        unread: sentences about that.
    """

    case: Case
    unread: list[str] = field(default_factory=list)


def checked_forms(case: Case, played: Played) -> CheckedForms:
    """Hold the plainest answers, which came whole, against their scripts: where one is
    read otherwise, it is not known how this release's parser has that form, and nothing
    is expected of the other scripts either."""
    scripts = case.server.scripts
    if scripts is None or played.state is PlayState.START_FAILED:
        return CheckedForms(case)
    wrong: set[str] = set()
    for sent in sent_of(case, played):
        answer = script_of(sent, scripts)
        is_whole = not sent.op.stream and sent.n == 1
        if answer is None or not is_whole or answer.name not in _OF_FORM:
            continue
        if misread(sent, answer):
            wrong.add(answer.name)
    if not wrong:
        return CheckedForms(case)

    # A parser of another form may also want its plain texts framed, as one of channels
    # does: then a stream of a text without a frame has nothing to show.
    nothing = {"content": None, "reasoning": None, "calls": None}
    kept = [answer.model_copy(update=nothing) for answer in scripts.script]
    plain = scripts.model_copy(update={"script": kept, "unread": True})
    server = case.server.model_copy(update={"scripts": plain})
    unread = [
        f"The script {name} in the form of its family was not read as it is meant: "
        "what the parser makes of the others was not judged."
        for name in sorted(wrong)
    ]
    return CheckedForms(case.model_copy(update={"server": server}), unread)
