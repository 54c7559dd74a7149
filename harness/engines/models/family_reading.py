"""What a sound parser makes of a raw output: a family's forms of a thought and a call,
read backwards. Where more than one reading is possible, there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mmrepro.engines.models.families import PLACE, Call, ModelFamily

Examples = Mapping[str, Mapping[str, Any]]
"""An example value for each argument of each tool, since a form without JSON does not
show whether an argument is a text or a number. None instead: every argument is a text."""

_NAME: Final = re.compile(r"[\w.\-/]{1,64}")
_NUMBER: Final = re.compile(r"\d{1,9}")
_BLANKS: Final = re.compile(r"\s+")


@dataclass(frozen=True)
class ReadOutput:
    """A thought, a text and calls, in this order.

    Attributes:
        thought: None: there is none.
        calls: each with its name and arguments.
    """

    thought: str | None
    content: str
    calls: list[Call]


def read_output(
    text: str, tools: ModelFamily, thinks: ModelFamily, examples: Examples | None
) -> ReadOutput | None:
    """Read a raw output by the family of its calls and that of its thoughts; None: it
    is of another form, or may be read otherwise."""
    if tools.quoted:
        return None  # values are Python's
    thought, rest = _thought(text, thinks)
    begin = _begin_of_calls(rest, tools)
    content = rest if begin is None else rest[:begin]
    calls = [] if begin is None else _calls(rest, begin, tools, examples)
    if calls is None:
        return None
    tags = {*tools.tokens, *thinks.tokens, *thinks.think} - {""}
    said = content + (thought or "")
    if any(tag.strip() in said for tag in tags):
        return None
    return ReadOutput(thought, content, calls)


def _thought(text: str, family: ModelFamily) -> tuple[str | None, str]:
    """The thought that a text begins with, and what comes after it."""
    if not family.think:
        return None, text
    before, after = (tag.strip() for tag in family.think)
    begun = text.lstrip()
    # Of some families the prompt has the tag that begins a thought.
    opening = before or "<think>"
    if begun.startswith(opening):
        begun = begun[len(opening) :]
    elif before:
        return None, text
    thought, closed, rest = begun.partition(after)
    return (thought, rest) if closed else (None, text)


def _begin_of_calls(text: str, family: ModelFamily) -> int | None:
    """Where the calls begin; None: there are none."""
    forms = family.calls.partition("CALLS")[0].strip() or family.call
    opening = _first_word(_steps(forms)[0])
    if not opening:
        return None
    if opening[0] in "{[":
        # JSON may stand in any text: only an answer that is nothing else is a call.
        return 0 if text.lstrip().startswith(opening[0]) else None
    place = text.find(opening)
    return None if place < 0 else place


def _first_word(literal: str) -> str:
    words = literal.split(maxsplit=1)
    return words[0] if words else ""


def _steps(form: str) -> list[str]:
    """Literals and places of a form, which take turns; a literal comes first."""
    steps, at = [], 0
    for place in PLACE.finditer(form):
        steps += [form[at : place.start()], place[0]]
        at = place.end()
    return [*steps, form[at:]]


def _calls(
    text: str, begin: int, family: ModelFamily, examples: Examples | None
) -> list[Call] | None:
    """The calls from there to the end of a text; None: they cannot be read."""
    reading = _FormReading(text, begin)
    opening, _, closing = family.calls.partition("CALLS")
    if not reading.literal(opening):
        return None
    calls: list[Call] = []
    while True:
        before = reading.at
        if calls and not reading.literal(family.between):
            break
        call = _call(reading, family, examples)
        if call is None:
            reading.at = before
            break
        calls.append(call)
    if not (calls and reading.literal(closing)) or text[reading.at :].strip():
        return None
    return calls


def _call(
    reading: _FormReading, family: ModelFamily, examples: Examples | None
) -> Call | None:
    steps = _steps(family.call)
    if not reading.steps(steps, family):
        return None
    name = reading.values["NAME"]
    if "PAIRS" not in steps:
        given = reading.values["ARGUMENTS"]
        return (name, given) if isinstance(given, dict) else None
    arguments: dict[str, Any] = {}
    for key, text in reading.values["PAIRS"]:
        if key in arguments:
            return None
        if examples is None:
            arguments[key] = text
            continue
        known = examples.get(name, {})
        is_text = isinstance(known.get(key), str)
        if key not in known or (family.texts_only and not is_text):
            return None
        try:
            arguments[key] = text if is_text else json.loads(text)
        except (ValueError, RecursionError):
            return None
    return name, arguments


@dataclass
class _FormReading:
    """A text that is read by forms, from a place on.

    Attributes:
        values: of the last form's places.
    """

    text: str
    at: int
    values: dict[str, Any] = field(default_factory=dict)

    def literal(self, literal: str) -> bool:
        """Read what a form has between its places; its blanks may be others."""
        form = r"\s*".join(map(re.escape, _BLANKS.split(literal)))
        found = re.compile(rf"\s*{form}\s*").match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        return True

    def steps(self, steps: list[str], family: ModelFamily) -> bool:
        """Read what :func:`_steps` made of a form."""
        self.values = {}
        for number, step in enumerate(steps):
            if number % 2 == 0:
                if step and not self.literal(step):
                    return False
            elif not self._place(step, family):
                return False
        return True

    def _place(self, place: str, family: ModelFamily) -> bool:
        if place == "PAIRS":
            self.values[place] = self._pairs(family)
            return self.values[place] is not None
        if place == "ARGUMENTS":
            try:
                decoded = json.JSONDecoder().raw_decode(self.text, self.at)
            except (ValueError, RecursionError):
                return False
            self.values[place], self.at = decoded
            return True
        found = (_NUMBER if place == "NUMBER" else _NAME).match(self.text, self.at)
        if found is None:
            return False
        self.values[place], self.at = found[0], found.end()
        return True

    def _pairs(self, family: ModelFamily) -> list[tuple[str, str]] | None:
        """Keys and values as they stand; None: a value has a tag of the form."""
        opening, between, closing = re.split("KEY|VALUE", family.pair)[:3]
        if "KEY" in closing or not closing.strip():
            return None
        pairs: list[tuple[str, str]] = []
        while True:
            before = self.at
            if pairs and family.between_pairs:
                self.literal(family.between_pairs)
            key = self._key(opening)
            if key is None:
                self.at = before
                return pairs
            value = self._value(between, closing)
            if value is None or (opening.strip() and opening.strip() in value):
                return None
            pairs.append((key, value))

    def _key(self, opening: str) -> str | None:
        if not self.literal(opening):
            return None
        found = _NAME.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def _value(self, before: str, after: str) -> str | None:
        """A value to the tag that closes it. Of the blanks around it only the form's
        own line breaks are not its own."""
        tag = before.strip()
        begin = self.text.find(tag, self.at)
        if begin < 0 or self.text[self.at : begin].strip():
            return None
        begin += len(tag)
        end = self.text.find(after.strip(), begin)
        if end < 0:
            return None
        value = self.text[begin:end]
        if before.endswith("\n"):
            value = value.removeprefix("\n")
        if after.startswith("\n"):
            value = value.removesuffix("\n")
        self.at = end + len(after.strip())
        return value
