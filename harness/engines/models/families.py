"""Families of models as parsers know them: special tokens, how a call or a thought is
written, how a conversation is framed. Read from ``families.toml`` and ``frames.toml``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import UsageError, did_you_mean

PLACE: Final = re.compile(
    r"(?<![A-Z_])"
    r"(NAME|ARGUMENTS|NUMBER|PAIRS|KEY|VALUE|CALLS|ROLE|CONTENT)"
    r"(?=PAIRS|[^A-Z_]|$)|(?<=NAME)PAIRS"
)
"""Not a part of a special token, as ``[TOOL_CALLS]``."""

Call = tuple[str, Mapping[str, Any]]
"""A tool's name, and its arguments."""


@dataclass(frozen=True)
class Frame:
    """How a conversation is written.

    Attributes:
        tokens: that no answer shows; the first one pads.
        end: ends an answer.
        message: Jinja of one message ``m``, with ROLE and CONTENT.
        answer: what stands before an answer.
        begin: what stands before the first message.
    """

    tokens: tuple[str, ...]
    end: str
    message: str
    answer: str
    begin: str = ""

    @property
    def pad(self) -> str:
        return self.tokens[0]


@dataclass(frozen=True)
class ModelFamily:
    """What parsers know of one family.

    Attributes:
        tokens: special ones, which parsers look for by their ids.
        tool_parsers, reasoning_parsers: names of those that read it.
        call: one call; calls: all of them, with ``between`` between two.
        pair: an argument, where they are no JSON.
        quoted: values are literals of Python.
        texts_only: a call's arguments are texts.
        one_call: an answer has one call at most.
        by_tokens: its reasoning parser looks for sequences of tokens as the family's
            own tokenizer makes them, which a scripted one does not.
        think: what stands before and after a thought.
        frame: name of its frame.
    """

    tokens: tuple[str, ...] = ()
    tool_parsers: tuple[str, ...] = ()
    reasoning_parsers: tuple[str, ...] = ()
    call: str = ""
    calls: str = "CALLS"
    between: str = ""
    pair: str = ""
    between_pairs: str = ""
    quoted: bool = False
    texts_only: bool = False
    one_call: bool = False
    by_tokens: bool = False
    think: tuple[str, ...] = ()
    frame: str = "chatml"

    def calling(self, calls: Sequence[Call]) -> str:
        """What a model of the family says that calls tools."""
        texts = []
        for number, (name, arguments) in enumerate(calls):
            values = {
                "NAME": name,
                "ARGUMENTS": json.dumps(arguments, ensure_ascii=False),
                "NUMBER": str(number),
                "PAIRS": self._pairs(arguments),
            }
            texts.append(filled(self.call, values))
        return filled(self.calls, {"CALLS": self.between.join(texts)})

    def _pairs(self, arguments: Mapping[str, Any]) -> str:
        pairs = []
        for key, value in arguments.items():
            if self.quoted:
                shown = repr(value)
            elif isinstance(value, str):
                shown = value
            else:
                shown = json.dumps(value, ensure_ascii=False)
            pairs.append(filled(self.pair, {"KEY": key, "VALUE": shown}))
        return self.between_pairs.join(pairs)

    def thinking(self, thought: str) -> str:
        """What a model of the family says before its answer."""
        before, after = self.think
        return f"{before}{thought}{after}"


def filled(form: str, values: Mapping[str, str]) -> str:
    """Replace the places of ``form``, once: values may have the same words."""
    return PLACE.sub(lambda place: values.get(place[0], place[0]), form)


def _table(name: str) -> dict[str, Any]:
    """Read a file beside this one."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's values, lists as tuples."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        fields[name] = tuple(value) if isinstance(value, list) else value
    return fields


@cache
def families() -> Mapping[str, ModelFamily]:
    """Read all families, by name."""
    return {
        name: ModelFamily(**_fields(row))
        for name, row in _table("families.toml").items()
    }


@cache
def frames() -> Mapping[str, Frame]:
    """Read all frames, by name."""
    return {name: Frame(**_fields(row)) for name, row in _table("frames.toml").items()}


@cache
def all_tokens() -> tuple[str, ...]:
    """Every special token of every family: a tokenizer that has them starts with any
    parser."""
    tokens: dict[str, None] = {}
    for family in families().values():
        tokens.update(dict.fromkeys(family.tokens))
    return tuple(tokens)


def family_of(name: str) -> ModelFamily:
    """The family of that name. Raises UsageError: there is none."""
    family = families().get(name)
    if family is None:
        known = did_you_mean(name, families())
        raise UsageError(
            f"There is no family {name!r}.{known}", hint=", ".join(families())
        )
    return family


def calls_as(parser: str) -> ModelFamily:
    """The family whose calls a tool parser reads; hermes where that is not known."""
    return _with_tool_parser(parser) or families()["hermes"]


def thinks_as(parser: str) -> ModelFamily:
    """The family whose thoughts a reasoning parser reads; hermes where that is not
    known."""
    return _with_reasoning_parser(parser) or families()["hermes"]


def forms_known(tool_parser: str, reasoning_parser: str) -> bool:
    """Whether it is known what the parsers of a server read; "": it has none of the
    kind."""
    if tool_parser and _with_tool_parser(tool_parser) is None:
        return False
    return not reasoning_parser or _with_reasoning_parser(reasoning_parser) is not None


def _with_tool_parser(parser: str) -> ModelFamily | None:
    for family in families().values():
        if parser in family.tool_parsers:
            return family
    return None


def _with_reasoning_parser(parser: str) -> ModelFamily | None:
    for family in families().values():
        if parser in family.reasoning_parsers:
            return family
    return None
