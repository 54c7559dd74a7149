"""What others may set of an engine's server: a list, in ``allowed.toml`` of its folder.

The server of a report, or of a case that somebody sent, has options and variables which
a stranger wrote. What is not on the list, by its full name, is not passed on; nor is a
value of another kind than the list has for it: a path, an address, a class, a plugin.
An option that a later release brings is therefore left out until somebody lists it.
What the user types himself is not asked.

``allowed.toml`` lists full names of options by the kind of their value:

    flag       none; the engine's way of negating it (--no-NAME) as well
    integer    one whole number, 16k and 2M too
    integers   several of them
    number     one number
    word       one name, without a dot, a slash, a colon: no path, address or class
    words      several of them
    tiny       a tiny model that mmrepro writes: {tiny:NAME}
    adapters   NAME={tiny:NAME}, several
    counts     {"image": 2}, or image=2,video=1
    object     JSON, or --option.key VALUE; its keys stand in object."--option"
    alias      other spellings, and the full name that is passed on in their place
    variable   variables, and the kind of their value; switch: 0, 1, true, false

Kinds of an object's keys besides: boolean; a table is an object again, [TABLE] a list
of them; "folder" is one below the server's temporary folder, {run-tmp}/NAME."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.engines.features import feature
from mmrepro.engines.folders import table
from mmrepro.engines.models.tiny import ADAPTERS, TINY

_NOT_LISTED: Final = "it is not among the options that others may set"
_NO_VARIABLE: Final = "it is not among the variables that others may set"

# ---------------------------------------------------------------------- kinds of values

_MOST_AMOUNT = 10**12
_MOST_VALUES = 256
_MOST_JSON = 4096
"""Characters of an object: each one that is meant is far shorter."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,12}|[0-9]{1,6}(?:\.[0-9]{1,3})?[kKmMgG]")
# No sign: vLLM reads -0.5 as an option with a key, and takes the next word for its
# value.
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?(?:e-?[0-9]{1,2})?")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")
_COUNTS: Final = re.compile(r"[a-z_]{1,16}=[0-9]{1,6}(?:,[a-z_]{1,16}=[0-9]{1,6}){0,7}")
_SWITCH: Final = re.compile(r"0|1|true|false", re.IGNORECASE)
_TINY: Final = re.compile(r"\{tiny:([a-z0-9.-]+)\}")
_ADAPTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}=\{tiny:([a-z0-9.-]+)\}")
_FOLDER: Final = re.compile(r"\{run-tmp\}/[A-Za-z0-9_-]{1,64}")
_FEATURE: Final = re.compile(r"\{feature:([a-z0-9.-]+)\}")
_UNSET: Final = re.compile(r"none|null|auto", re.IGNORECASE)
"""What options of every kind take for "not given"."""

_WANTED: Final[Mapping[str, str]] = {
    "integer": "a whole number",
    "integers": "whole numbers",
    "number": "a number",
    "word": "a plain name",
    "words": "plain names",
    "tiny": "a tiny model, {tiny:NAME}",
    "adapters": "tiny adapters, NAME={tiny:NAME}",
    "counts": 'numbers by kind of input, {"image": 2}',
    "object": "an object of the listed keys",
    "switch": "0 or 1",
    "boolean": "true or false",
    "folder": "a folder below the server's temporary one",
}
"""Kind: what its value has to be, in the words of an error."""
_SEVERAL: Final = frozenset({"integers", "words", "adapters"})
"""Kinds of which an option takes several values."""


def _is_tiny(text: str) -> bool:
    found = _TINY.fullmatch(text)
    return found is not None and (found[1] in TINY or found[1] in ADAPTERS)


def _is_adapter(text: str) -> bool:
    found = _ADAPTER.fullmatch(text)
    return found is not None and found[1] in ADAPTERS


def _fits(kind: str, text: str) -> bool:
    """Whether one value, as a command line has it, is of that kind."""
    if kind == "tiny":
        return _is_tiny(text)
    if kind == "adapters":
        return _is_adapter(text)
    if kind in ("integers", "words"):
        kind = kind.removesuffix("s")
        return all(_fits(kind, part) for part in text.split(","))
    if kind == "counts":
        return _COUNTS.fullmatch(text) is not None or _counts(_object(text))
    if kind == "switch":
        return _SWITCH.fullmatch(text) is not None
    if kind not in ("integer", "number", "word"):
        return False
    pattern = {"integer": _INTEGER, "number": _NUMBER, "word": _WORD}[kind]
    return bool(pattern.fullmatch(text) or _UNSET.fullmatch(text))


def _object(text: str) -> Any:
    """The JSON in ``text``; None: it is none, or too long."""
    if len(text) > _MOST_JSON:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _counts(value: Any) -> bool:
    """``{"image": 2, "video": {"count": 1, "num_frames": 8}}``."""
    if not isinstance(value, dict) or not value:
        return False
    for key, amount in value.items():
        if not re.fullmatch(r"[a-z_]{1,16}", key):
            return False
        if isinstance(amount, dict):
            if not _counts(amount):
                return False
        elif not _is_count(amount):
            return False
    return True


def _is_count(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 0 <= value < 10**6


# ------------------------------------------------------------------ objects, key by key


def _refused_in(value: Any, wanted: Any, place: str) -> str:
    """The first thing in a JSON value that is not as ``wanted`` (see allowed.toml), and
    why; "": nothing."""
    if value is None:
        return ""
    if isinstance(wanted, dict):
        return _refused_key(value, wanted, place)
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
        if not isinstance(value, list):
            return f"{place} has to be a list"
        refusals = (_refused_key(one, wanted[0], place) for one in value[:_MOST_VALUES])
        return next((refused for refused in refusals if refused), "")
    if isinstance(wanted, list):
        return (
            "" if value in wanted else f"{place} has to be one of {', '.join(wanted)}"
        )
    if not _json_fits(wanted, value):
        return f"{place} has to be {_WANTED[wanted]}"
    return ""


def _refused_key(value: Any, wanted: Mapping[str, Any], place: str) -> str:
    if not isinstance(value, dict):
        return f"{place} has to be an object"
    for key, inner in value.items():
        if key not in wanted:
            return f"{place} has a key that others may not set: {key[:64]}"
        if refused := _refused_in(inner, wanted[key], f"{place}.{key}"):
            return refused
    return ""


def _json_fits(kind: str, value: Any) -> bool:
    """Whether a value of JSON is of that kind."""
    if kind in _SEVERAL and isinstance(value, list):
        single = kind.removesuffix("s")
        return len(value) <= _MOST_VALUES and all(
            _json_fits(single, one) for one in value
        )
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number" and isinstance(value, int | float):
        return abs(value) < _MOST_AMOUNT  # false of NaN and infinity as well
    if kind == "integer" and isinstance(value, int):
        return abs(value) < _MOST_AMOUNT
    if not isinstance(value, str):
        # Levels and modes are written as numbers too: {"mode": 3}.
        return kind == "word" and isinstance(value, int) and 0 <= value < 100
    if kind == "boolean":
        return _SWITCH.fullmatch(value) is not None
    if kind == "folder":
        return _FOLDER.fullmatch(value) is not None
    return _fits(kind, value)


# ---------------------------------------------------------------- the list of an engine


@dataclass(frozen=True)
class _GivenOption:
    """An option as a command line has it.

    Attributes:
        name: with dashes, an alias replaced by its full name; with its keys, where it
            has some (``--speculative-config.method``).
        words: as they were written.
    """

    name: str
    values: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Allowed:
    """What others may set of one engine's server.

    Attributes:
        options: kind of value by full name.
        aliases: full name by other spelling.
        objects: by full name, what its keys may be.
        variables: kind of value by name.
    """

    engine: str
    options: Mapping[str, str]
    aliases: Mapping[str, str]
    objects: Mapping[str, Mapping[str, Any]]
    variables: Mapping[str, str]

    def full_name(self, written: str) -> str:
        """With dashes, and not by an alias; a key behind a dot stays as it is. An
        abbreviation is no full name: it comes back as it is, and is not on the list."""
        name, dot, key = written.partition(".")
        if name.startswith("--"):
            name = "--" + name[2:].replace("_", "-")
        return self.aliases.get(name, name) + dot + key

    def is_flag(self, name: str) -> bool:
        """Whether the option is listed, and takes no value."""
        return self.options.get(name) == "flag" or self._negated(name)

    def option_refusal(self, name: str, values: Sequence[str]) -> str:
        """Why an option is not passed on, as a clause; "": it may be set.

        Args:
            name: its full name, as :meth:`full_name` has it.
        """
        plain, dot, path = name.partition(".")
        if plain in self.objects:
            return self._object_refusal(plain, path if dot else None, values)
        if self.is_flag(name):
            return "it takes no value" if values else ""
        kind = self.options.get(name)
        if kind is None:
            return _NOT_LISTED
        if not values or len(values) > (_MOST_VALUES if kind in _SEVERAL else 1):
            return f"its value has to be {_WANTED[kind]}"
        if all(_fits(kind, value) for value in values):
            return ""
        return f"its value has to be {_WANTED[kind]}: {_what_it_is(values)}"

    def _negated(self, name: str) -> bool:
        return name.startswith("--no-") and self.options.get(f"--{name[5:]}") == "flag"

    def _object_refusal(
        self, name: str, path: str | None, values: Sequence[str]
    ) -> str:
        """Of a whole object (``path`` None), or of the key that ``path`` leads to."""
        if len(values) != 1:
            return f"its value has to be {_WANTED['object']}"
        (text,) = values
        wanted: Any = self.objects[name]
        if path is None:
            if re.fullmatch(r"[0-3]", text) or _UNSET.fullmatch(text):
                return ""  # a level: -O3
            value = _object(text)
            if not isinstance(value, dict):
                return f"its value has to be {_WANTED['object']}"
            return _refused_in(value, wanted, name)
        place = name
        for key in path.removesuffix("+").split("."):
            if isinstance(wanted, list):  # several objects have no keys of their own
                wanted = {}
            if not isinstance(wanted, dict) or key not in wanted:
                return f"{place} has a key that others may not set: {key[:64]}"
            wanted, place = wanted[key], f"{place}.{key}"
        value = _object(text)
        whole = value if isinstance(value, dict | list | bool | int | float) else text
        return _refused_in(whole, wanted, place)

    def variable_refusal(self, name: str, value: str) -> str:
        """Why a variable is not passed on, as a clause; "": it may be set."""
        kind = self.variables.get(name)
        if kind is None:
            return _NO_VARIABLE
        if _fits(kind, value):
            return ""
        return f"its value has to be {_WANTED[kind]}"

    def read(self, words: Iterable[str]) -> Iterator[_GivenOption]:
        """The options of a command line; a word that belongs to none is one without
        values."""
        rest = list(words)
        place = 0
        while place < len(rest):
            written = rest[place]
            begin = place
            place += 1
            name, sign, value = written.partition("=")
            if not is_option(name):
                yield _GivenOption(written, (), (written,))
                continue
            if shorthand := re.fullmatch(r"-O(\d)", name):
                name, sign, value = "-O", "=", shorthand[1]
            name = self.full_name(name)
            values = [value] if sign else []
            if not sign and not self.is_flag(name):
                while place < len(rest) and _is_value(rest[place]):
                    values.append(rest[place])
                    place += 1
            yield _GivenOption(name, tuple(values), tuple(rest[begin:place]))

    def refused(
        self, words: Iterable[str], env: Mapping[str, str]
    ) -> list[tuple[str, str]]:
        """What of a server's options and variables others may not set, and why, in
        order."""
        found: list[tuple[str, str]] = []
        for option in self.read(words):
            if self._is_feature(option):
                continue
            if why := self.option_refusal(option.name, option.values):
                found.append((" ".join(option.words), why))
        for name, value in env.items():
            if why := self.variable_refusal(name, value):
                found.append((f"{name}={value}", why))
        return found

    def _is_feature(self, option: _GivenOption) -> bool:
        """``{feature:NAME}`` stands for options of ours."""
        named = _FEATURE.fullmatch(option.name)
        if named is None:
            return False
        try:
            feature(self.engine, named[1])
        except UsageError:
            return False
        return True


def is_option(word: str) -> bool:
    """Whether a word of a command line is an option, and no value: -1 is one."""
    return word.startswith("-") and not re.match(r"^-\d*\.?\d+$", word) and word != "-"


def _is_value(word: str) -> bool:
    return not is_option(word) and not _FEATURE.fullmatch(word)


def _what_it_is(values: Sequence[str]) -> str:
    """What is wrong with a value, as far as it shows."""
    text = " ".join(values)
    if re.search(r"^\w+://|^\d+\.\d+\.\d+\.\d+|\.\w+:\d+$", text):
        return "this is an address"
    if re.search(r"[/\\]|^[.~]|^@", text):
        return "this is a path"
    if re.search(r"^\w+(?:\.\w+)+$|\w:\w", text):
        return "this may be a class, a module or a file"
    return "this is none"


@cache
def allowed_of(engine: str) -> Allowed:
    """The list of ``engine``; one that has none may be told nothing by others."""
    own = table(engine, "allowed.toml")
    options: dict[str, str] = {}
    for kind, names in own.items():
        if isinstance(names, list):
            options |= dict.fromkeys(names, kind)
    return Allowed(
        engine=engine,
        options=options,
        aliases=own.get("alias", {}),
        objects=own.get("object", {}),
        variables=own.get("variable", {}),
    )
