"""The one file that the box hands to the job that answers: its schema, how it is read
and cut.

The box runs a stranger's program, so whoever reads this file takes the stranger for its
author. ``read`` refuses whatever the schema does not name. Only the standard library is
used: a runner has no mmrepro."""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

MAX_BYTES = 256 * 1024
MAX_DEPTH = 3
"""The document, a list in it, and that list's objects."""

MAX_DIGITS = 6
NAME = "product.json"
"""Of the file, in job and artifact."""

UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of what nobody sees: control, direction (bidi), surrogates,
separators."""


class Refused(Exception):
    """The file is not one that the box may hand over.

    The sentence is made of words of this module alone: the file may hold commands for
    the runner."""


# ---------------------------------------------------------------- the schema


class Rule(Protocol):
    """What a value has to be."""

    def check(self, value: object, place: str) -> None:
        """Compare ``value``. Raises Refused: it is something else."""


def refuse(place: str, why: str) -> NoReturn:
    raise Refused(f"{place} {why}")


@dataclass(frozen=True)
class Choice:
    """One of the words that are listed."""

    words: tuple[str, ...]

    def check(self, value: object, place: str) -> None:
        if not isinstance(value, str) or value not in self.words:
            refuse(place, "is none of its values")


@dataclass(frozen=True)
class Number:
    """A whole number from 0 on."""

    most: int

    def check(self, value: object, place: str) -> None:
        # A bool is an int to Python.
        if type(value) is not int or not 0 <= value <= self.most:
            refuse(place, f"is no whole number up to {self.most}")


@dataclass(frozen=True)
class Words:
    """Text that anybody may have written: bounded, and nothing in it is invisible."""

    most: int
    lines: bool = False
    """It may have several."""

    def check(self, value: object, place: str) -> None:
        if not isinstance(value, str):
            refuse(place, "is no text")
        if len(value) > self.most:
            refuse(place, f"is longer than {self.most} characters")
        if value != visible(value, lines=self.lines):
            refuse(place, "has control characters")


@dataclass(frozen=True)
class Release:
    """A version, as packages have them; empty: none was chosen."""

    most: int = 64

    def check(self, value: object, place: str) -> None:
        Words(self.most).check(value, place)
        assert isinstance(value, str)
        if not re.fullmatch(r"([0-9][0-9A-Za-z.+_-]*)?", value):
            refuse(place, "is no release")


@dataclass(frozen=True)
class CommitName:
    """A commit's full name; empty: none was named."""

    def check(self, value: object, place: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(r"([0-9a-f]{40})?", value):
            refuse(place, "is no commit")


@dataclass(frozen=True)
class Each:
    """A list of objects."""

    rule: Fields
    most: int

    def check(self, value: object, place: str) -> None:
        if not isinstance(value, list):
            refuse(place, "is no list")
        if len(value) > self.most:
            refuse(place, f"has more than {self.most} entries")
        for entry in value:
            self.rule.check(entry, f"an entry of {place}")


@dataclass(frozen=True)
class Fields:
    """An object with exactly these fields."""

    rules: Mapping[str, Rule]

    def check(self, value: object, place: str) -> None:
        if not isinstance(value, dict):
            refuse(place, "is no object")
        if unknown := len(value.keys() - self.rules.keys()):
            refuse(place, f"has {unknown} unknown fields")
        for name, rule in self.rules.items():
            if name not in value:
                refuse(place, f"lacks the field {name}")
            rule.check(value[name], name)


NO_VERDICT = "none"
VERDICTS = (
    "reproduced",
    "not-reproduced",
    "different",
    "unproven",
    "nothing-tested",
    "needs-hardware",
    "needs-model",
    NO_VERDICT,
)
NO_ENGINE = "none"
ENGINES = ("vllm", "sglang", "lmdeploy", "minivllm", NO_ENGINE)
STATES = ("fixed", "still", "other", "not-tested")

COMMANDS = ("bisect", "find-fix", "test-patch", "repro")
DIRECTIONS = ("introduced", "fixed")
CONCLUSIONS = ("found", "range", "no-boundary", "no-failure", "inconclusive")

REPLACED = Fields(
    {
        "what": Words(200),
        "by": Words(200),
        "why": Words(300),
    }
)
FIXED = Fields(
    {
        "release": Release(),
        "state": Choice(STATES),
    }
)
BOUNDARY = Fields(
    {
        "direction": Choice(DIRECTIONS),
        "conclusion": Choice(CONCLUSIONS),
        "commit": CommitName(),
        "verified": Number(1),
        "said": Words(600),
    }
)
PRODUCT = Fields(
    {
        "schema": Number(1),
        "command": Choice(COMMANDS),
        "exit_code": Number(255),
        "verdict": Choice(VERDICTS),
        "engine": Choice(ENGINES),
        "release": Release(),
        "said": Words(1_500, lines=True),
        "replaced": Each(REPLACED, most=20),
        "fixed": Each(FIXED, most=8),
        "boundaries": Each(BOUNDARY, most=2),
        "report": Words(40_000, lines=True),
    }
)


def visible(text: str, *, lines: bool) -> str:
    """``text`` without what nobody sees; ends of lines and tabs stay where ``lines`` is
    true."""
    kept = "\n\t" if lines else ""
    return "".join(
        sign
        for sign in text
        if sign in kept or unicodedata.category(sign) not in UNSEEN
    )


# ---------------------------------------------------------------- reading


def read(path: Path) -> dict[str, Any]:
    """Read and check the file. Raises Refused: it is missing, or not what the box may
    hand over."""
    document = parse(_bytes(path))
    PRODUCT.check(document, "the product")
    assert isinstance(document, dict)
    return document


def _bytes(path: Path) -> bytes:
    """The content of a small regular file. Nothing else is waited for, or followed."""
    # O_NONBLOCK: to open a FIFO would wait for its writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError:
        refuse("the product", "is missing, or is no regular file")
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            refuse("the product", "is no regular file")
        if facts.st_size > MAX_BYTES:
            refuse("the product", f"is larger than {MAX_BYTES} bytes")
        # A file may grow after its size was asked for.
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(content) > MAX_BYTES:
        refuse("the product", f"is larger than {MAX_BYTES} bytes")
    return content


def parse(content: bytes) -> object:
    """Parse JSON as the schema allows it. Raises Refused."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        refuse("the product", "is no UTF-8")
    _check_depth(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_no_key_twice,
            parse_int=_small_number,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except ValueError:
        refuse("the product", "is no JSON")


def _check_depth(text: str) -> None:
    """Refuse what is nested too deeply, before a parser calls itself for each level."""
    depth = 0
    quoted = escaped = False
    for sign in text:
        if escaped:
            escaped = False
        elif quoted:
            escaped = sign == "\\"
            quoted = sign != '"'
        elif sign == '"':
            quoted = True
        elif sign in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                refuse("the product", f"is nested deeper than {MAX_DEPTH}")
        elif sign in "]}":
            depth -= 1


def _no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        refuse("the product", "has a field twice")
    return fields


def _small_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        refuse("the product", f"has a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _no_number(_: str) -> NoReturn:
    refuse("the product", "has a number that is not whole")


# ---------------------------------------------------------------- making


def cut(rule: Rule, value: object) -> object:
    """The most of ``value`` that ``rule`` takes: text is cut, what does not fit becomes
    empty."""
    if isinstance(rule, Fields):
        fields = value if isinstance(value, dict) else {}
        return {name: cut(each, fields.get(name)) for name, each in rule.rules.items()}
    if isinstance(rule, Each):
        entries = value if isinstance(value, list) else []
        return [cut(rule.rule, entry) for entry in entries[: rule.most]]
    if isinstance(rule, Words):
        text = value if isinstance(value, str) else ""
        if not rule.lines:
            text = " ".join(text.split())
        return visible(text, lines=rule.lines)[: rule.most]
    try:
        rule.check(value, "it")
    except Refused:
        return _empty(rule)
    return value


def _empty(rule: Rule) -> object:
    if isinstance(rule, Choice):
        return rule.words[-1]
    return 0 if isinstance(rule, Number) else ""


def made(
    document: object,
    report: str,
    exit_code: int,
    command: str = "repro",
    bisection: object = None,
) -> dict[str, Any]:
    """The product of a run of `mmrepro repro`.

    Args:
        document: what ``--json`` printed; anything but an object: it printed none.
        report: the run's report, as text.
        exit_code: of `mmrepro repro`.
        command: what was asked for.
        bisection: the document of its search among commits; None: there was none.
    """
    document = document if isinstance(document, dict) else {}
    facts = document.get("report")
    server = document.get("server")
    facts = facts if isinstance(facts, dict) else {}
    server = server if isinstance(server, dict) else {}
    fields = {
        "schema": 1,
        "command": command,
        "exit_code": exit_code,
        "verdict": facts.get("verdict") or NO_VERDICT,
        "engine": server.get("engine"),
        "release": server.get("release"),
        "said": facts.get("said"),
        "replaced": facts.get("replaced"),
        "fixed": facts.get("fixed"),
        "boundaries": _boundaries(bisection),
        "report": report,
    }
    product = cut(PRODUCT, fields)
    assert isinstance(product, dict)
    return product


def _boundaries(bisection: object) -> list[dict[str, Any]]:
    """What a search among commits found on each side that it looked at."""
    if not isinstance(bisection, dict):
        return []
    boundaries = []
    for direction, name in zip(DIRECTIONS, ("first_bad", "first_good"), strict=True):
        side = bisection.get(direction)
        if isinstance(side, dict):
            facts = {
                "direction": direction,
                "conclusion": side.get("conclusion"),
                "commit": side.get(name) or "",
                "verified": 1 if side.get("verified") is True else 0,
                "said": side.get("explanation"),
            }
            boundaries.append(facts)
    return boundaries


def written(product: dict[str, Any]) -> bytes:
    """The file's content. The schema's bounds keep it below MAX_BYTES, whatever the
    letters."""
    return json.dumps(product, ensure_ascii=False).encode()
