"""Rules for lines of logs, from TOML: one form and one loader for all of them.

A rule says what some words mean, whose words they are, and how a line looks that has
them. What a long log is searched for follows from its patterns
(:mod:`mmrepro.probes.log_anchors`): a rule is written in one place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, Final

import hyperscan
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import open_to_read, parse_toml
from mmrepro.probes import anchors_of

_DOCS: Final = "mmrepro help logs has an example"
_CERTAINTIES: Final = ("certain", "likely", "possible")
_KEYS: Final = frozenset(
    {
        "class",
        "patterns",
        "certainty",
        "alone",
        "effect",
        "sentence",
        "advice",
        "source",
        "example",
    }
)
MOST_BYTES: Final = 256 << 10
_MOST_RULES: Final = 200
_MOST_TEXTS: Final = 50
"""Patterns, examples or advices of one rule of an operator's."""
_MOST_CHARS: Final = 500
"""Of a pattern of an operator's; Hyperscan's states grow with it."""
_MOST_LINE_CHARS: Final = 4000
"""Of a line that an operator's pattern is tried on."""


class RuleError(ValueError):
    """A rule that does not load, in one sentence."""


@dataclass(frozen=True)
class LogRule:
    """What a text means, as a file of rules has it; ``ends.toml`` explains the
    fields."""

    name: str
    patterns: tuple[str, ...]
    examples: tuple[str, ...]
    certainty: str = "certain"
    alone: bool = True
    effect: bool = False
    sentence: str = ""
    advice: tuple[str, ...] = ()
    source: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def expression(self) -> str:
        """All its patterns as one."""
        return "|".join(self.patterns)


@dataclass(frozen=True)
class _Sign:
    """Words that are no rule by themselves, and are searched for like one's."""

    name: str
    patterns: tuple[str, ...]
    examples: tuple[str, ...]

    @property
    def expression(self) -> str:
        return "|".join(self.patterns)


def shipped_rows(name: str) -> Mapping[str, Any]:
    """The file of that name among those that come with the package."""
    file = files("mmrepro.engines").joinpath("rules", name)
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _examples_of(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The examples of a row.

    Raises:
        RuleError: there are none: nobody could see whether it works.
    """
    examples = _texts(row, "example", where)
    if not examples:
        raise RuleError(f'{where} has no example: add example = ["a line of a log"].')
    return examples


def rule_of(
    row: Mapping[str, Any], where: str, more: Set[str] = frozenset()
) -> LogRule:
    """A rule of the form of ``ends.toml``.

    Args:
        where: names the rule in an error, e.g. "rule 3".
        more: keys that rules of this file have besides; they are kept as they are.

    Raises:
        RuleError: a key is missing, not known, or of another type.
    """
    if unknown := sorted(row.keys() - _KEYS - more):
        raise RuleError(
            f"{where} has an unknown key {unknown[0]!r}; there are: "
            f"{', '.join(sorted(_KEYS))}."
        )
    name = row.get("class")
    if not isinstance(name, str) or not name:
        raise RuleError(f"{where} has no class.")
    where = f"{where} ({name})"
    patterns = _texts(row, "patterns", where)
    if not patterns:
        raise RuleError(f"{where} has no patterns.")
    certainty = row.get("certainty", "certain")
    if certainty not in _CERTAINTIES:
        raise RuleError(f"{where}: certainty is one of {', '.join(_CERTAINTIES)}.")
    for key in ("alone", "effect"):
        if not isinstance(row.get(key, True), bool):
            raise RuleError(f"{where}: {key} is true or false.")
    for key in ("sentence", "source"):
        if not isinstance(row.get(key, ""), str):
            raise RuleError(f"{where}: {key} is a text.")
    return LogRule(
        name=name,
        patterns=patterns,
        examples=_examples_of(row, where),
        certainty=certainty,
        alone=row.get("alone", True),
        effect=row.get("effect", False),
        sentence=row.get("sentence", ""),
        advice=_texts(row, "advice", where),
        source=row.get("source", ""),
        more={key: row[key] for key in more if key in row},
    )


def shipped_rules(name: str, more: Set[str] = frozenset()) -> tuple[LogRule, ...]:
    """The rules of a file that comes with the package, in its order."""
    rows = shipped_rows(name)["rule"]
    return tuple(
        rule_of(row, f"{name}, rule {number}", more)
        for number, row in enumerate(rows, 1)
    )


def shipped_signs(name: str) -> Mapping[str, _Sign]:
    """The signs of a file that comes with the package."""
    signs = {}
    for row in shipped_rows(name).get("sign", ()):
        where = f"{name}, sign {row['name']}"
        patterns = _texts(row, "patterns", where)
        signs[row["name"]] = _Sign(row["name"], patterns, _examples_of(row, where))
    return signs


def _texts(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    texts = row.get(key, [])
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, list):
        # A long text may stand in pieces, in a list of its own.
        texts = ["".join(one) if isinstance(one, list) else one for one in texts]
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise RuleError(f"{where}: {key} is a list of texts.")
    return tuple(texts)


# ---------------------------------------------------------------- an operator's own


class BoundedExpression:
    """An operator's expression: Hyperscan matches it in time that grows with the line
    and not with what it says, as Python's backtracking may."""

    def __init__(self, expression: str) -> None:
        """Raises RuleError: Hyperscan cannot compile it."""
        self.pattern = expression
        self._database = hyperscan.Database()
        try:
            self._database.compile(
                expressions=[expression.encode()],
                flags=[hyperscan.HS_FLAG_UTF8 | hyperscan.HS_FLAG_SINGLEMATCH],
            )
        except hyperscan.error as error:
            raise RuleError(
                f"the pattern {expression[:80]!r} cannot be used: {error}"
            ) from error
        self._scratch = hyperscan.Scratch(self._database)
        self._one_at_a_time = Lock()  # the scratch is of one scan

    def matches(self, text: str) -> bool:
        """Whether it matches somewhere in ``text``."""
        found: list[bool] = []
        line = text[:_MOST_LINE_CHARS].encode("utf-8", "replace")

        def note(*_match: object) -> None:
            found.append(True)

        with self._one_at_a_time:
            self._database.scan(line, match_event_handler=note, scratch=self._scratch)
        return bool(found)


def read_rules(path: Path, classes: Sequence[str]) -> tuple[LogRule, ...]:
    """The rules of an operator's file, each tried on its own examples.

    Args:
        classes: which a rule may name.

    Raises:
        UsageError: the file cannot be read, or a rule of it does not load.
    """
    try:
        with open_to_read(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(
            f"The rules {path} cannot be read: {why}.", hint=_DOCS
        ) from error
    try:
        if len(content) > MOST_BYTES:
            raise RuleError(f"it is larger than {MOST_BYTES >> 10} KiB.")
        return _checked(parse_toml(content), classes)
    except ValueError as error:  # a RuleError among them
        told = str(error).rstrip(".")
        raise UsageError(
            f"The rules {path} do not load: {told}.", hint=_DOCS
        ) from error


def _checked(rows: Mapping[str, Any], classes: Sequence[str]) -> tuple[LogRule, ...]:
    if unknown := sorted(rows.keys() - {"rule"}):
        raise RuleError(f"there is a {unknown[0]!r} in it, and only [[rule]] is known.")
    listed = rows.get("rule", [])
    if not isinstance(listed, list) or not listed:
        raise RuleError("there is no [[rule]] in it.")
    if len(listed) > _MOST_RULES:
        raise RuleError(f"it has more than {_MOST_RULES} rules.")
    found = []
    for number, row in enumerate(listed, 1):
        if not isinstance(row, dict):
            raise RuleError(f"rule {number} is no table.")
        rule = rule_of(row, f"rule {number}")
        _check(rule, f"rule {number} ({rule.name})", classes)
        found.append(rule)
    return tuple(found)


def _check(rule: LogRule, where: str, classes: Sequence[str]) -> None:
    """Raise RuleError where a rule is too large, not bounded, or not true to its
    examples."""
    if rule.name not in classes:
        raise RuleError(f"{where}: there is no such class; {_DOCS}.")
    for texts in (rule.patterns, rule.examples, rule.advice):
        if len(texts) > _MOST_TEXTS:
            raise RuleError(f"{where} has more than {_MOST_TEXTS} texts of a kind.")
    if any(len(example) > _MOST_LINE_CHARS for example in rule.examples):
        raise RuleError(
            f"{where}: an example has more than {_MOST_LINE_CHARS} letters."
        )
    for pattern in rule.patterns:
        _check_pattern(pattern, rule, where)


def _check_pattern(pattern: str, rule: LogRule, where: str) -> None:
    if len(pattern) > _MOST_CHARS:
        raise RuleError(f"{where}: a pattern has more than {_MOST_CHARS} letters.")
    shown = repr(pattern[:80])
    try:
        words = anchors_of(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RuleError(f"{where}: {shown} is no expression: {error}.") from error
    if words is None:
        raise RuleError(
            f"{where}: {shown} has no word of three letters that each match holds; a "
            "long log is searched for it."
        )
    expression = BoundedExpression(pattern)
    if not any(expression.matches(example) for example in rule.examples):
        raise RuleError(f"{where}: none of its examples matches {shown}.")
