"""Values of options, as they are read from words and refused.

The command line, variables, ``mmrepro.toml`` and the Python API share these sentences:
each names its option first, and the rest is ``must be a number from 1 to 60, not 'x'``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from mmrepro.base.errors import did_you_mean
from mmrepro.base.options import DeclaredOption

_NO_BOUND = 10**9
"""A bound that keeps memory whole, and that nobody asks for."""
_MOST_SHOWN = 100
"""Characters of a refused value that are shown."""
_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
"""Words of variables."""
_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}


class WrongValue(ValueError):
    """A value that an option does not take.

    Its text follows the option's name. ``guess``: a second sentence, or ""."""

    def __init__(self, text: str, guess: str = "") -> None:
        super().__init__(text)
        self.guess = guess

    def sentence(self, subject: str) -> str:
        """Return what is wrong with the value of ``subject``, an option's name."""
        return f"{subject} {self}.{self.guess}"


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the words that a type lists; (): any."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(str(word) for word in kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def expected(declaration: DeclaredOption) -> str:
    """Return what one value of an option is: ``a number of at least 1``."""
    choices = choices_of(declaration.type)
    if choices:
        return f"one of {', '.join(choices)}"
    words = _KINDS.get(declaration.type, "a string")
    least, most = declaration.option.least, declaration.option.most
    if least is not None and most is not None and most < _NO_BOUND:
        return f"{words} from {least:g} to {most:g}"
    if least is not None:
        return f"{words} of at least {least:g}"
    if most is not None:
        return f"{words} of at most {most:g}"
    return words


def read_value(declaration: DeclaredOption, value: Any) -> Any:
    """Return one value, which may still be the word that was typed. Raises
    WrongValue."""
    if isinstance(value, str) and declaration.type is bool:
        value = _SWITCHES.get(value.lower(), value)
    if not isinstance(value, str) or declaration.type not in (int, float):
        return check_value(declaration, value)
    try:
        number = declaration.type(value)
        return check_value(declaration, number)
    except ValueError:
        # The word as it was typed: 1.0 is none of 1.
        raise _wrong(declaration, value) from None


def check_value(declaration: DeclaredOption, value: Any) -> Any:
    """Return one value of an option that code or a file gave. Raises WrongValue."""
    kind = declaration.type
    choices = choices_of(kind)
    if choices:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(declaration, value)
        return value if get_origin(kind) is Literal else kind(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)

    # To Python true is a number, too.
    is_other_bool = isinstance(value, bool) and kind is not bool
    allowed = (int, float) if kind is float else kind
    if is_other_bool or not isinstance(value, allowed):
        raise _wrong(declaration, value)
    if kind in (int, float) and not _is_within(declaration, value):
        raise _wrong(declaration, value)
    return value


def check_field(declaration: DeclaredOption, value: Any) -> Any:
    """Return the value of a whole field that code gave. Raises WrongValue."""
    # What an option reads from words, code gives ready.
    if declaration.option.read is not None or value is None:
        return value
    if not declaration.several:
        return check_value(declaration, value)
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str | Path):
        value = (value,)
    wanted = f"must be a list whose items are each {expected(declaration)}"
    try:
        return tuple([check_value(declaration, item) for item in value])
    except (TypeError, WrongValue):
        raise WrongValue(f"{wanted}, not {_shown(value)}") from None


def _is_within(declaration: DeclaredOption, value: float) -> bool:
    if math.isnan(value):
        return False
    least, most = declaration.option.least, declaration.option.most
    return (least is None or value >= least) and (most is None or value <= most)


def _wrong(declaration: DeclaredOption, value: Any) -> WrongValue:
    guess = ""
    if isinstance(value, str):
        guess = did_you_mean(value, choices_of(declaration.type))
    text = f"must be {expected(declaration)}, not {_shown(value)}"
    return WrongValue(text, guess)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
