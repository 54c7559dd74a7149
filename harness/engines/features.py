"""What a server of today does besides: speculation, adapters, connectors, several
ranks.

``{feature:NAME}`` among a server's options stands for the options that the feature
needs (``mmrepro run``, rows of a matrix). ``fuzz --profile modern`` draws from the
table. The reference of the oracles and the factors of an ablation turn a feature off.
docs/lab/stack.md says what each one did on a CPU, with the tiny models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from mmrepro.base.common_options import FEATURE_OPTIONS
from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.engines.folders import made_of, table
from packaging.version import Version

_NAMED: Final = re.compile(r"\{feature:([a-z0-9.-]+)\}")


MODEL: Final = "qwen3-text"


@dataclass(frozen=True)
class Feature:
    """A feature of a server, and how it is turned on.

    Attributes:
        what: what it is, in a few words.
        args: options that turn it on.
        off: options that turn it off, given after those; (): its own are left out.
        env: variables that it needs.
        model: tiny model that it is tried with.
        code: files of the engine that only run with it, as an expression.
        named: how a report calls it that is about it, as an expression.
        since: the first release that has it; "": every one.
    """

    what: str
    args: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = MODEL
    code: str = ""
    named: str = ""
    since: str = ""


PAIR: Final = "--prefill-and-decode"
"""No option of an engine: two servers and a proxy are started
(reproducers/pair/server.py)."""


@cache
def features(engine: str) -> Mapping[str, Feature]:
    """The features of ``engine`` by name, as its features.toml has them."""
    rows = table(engine, "features.toml")
    return {name: made_of(Feature, row) for name, row in rows.items()}


def feature(engine: str, name: str) -> Feature:
    """Raises UsageError: that engine has none of that name."""
    known = features(engine)
    if name in known:
        return known[name]
    for option, prefix in FEATURE_OPTIONS.items():
        if name.startswith(prefix):
            raise _no_choice(engine, option, prefix, name)
    raise UsageError(
        f"There is no feature {name} for {engine}." + did_you_mean(name, known),
        hint=", ".join(known) or "a server's options are given with --server-arg",
    )


def _no_choice(engine: str, option: str, prefix: str, name: str) -> UsageError:
    """The error of ``--runner v9``, which stands for the feature ``runner-v9``."""
    choices = []
    for known in features(engine):
        if known.startswith(prefix):
            choices.append(known.removeprefix(prefix))
    if not choices:
        return UsageError(f"{engine} has no {option}.", hint=f"leave {option} out")
    return UsageError(
        f"{option} {name.removeprefix(prefix)!r} is none of {', '.join(choices)}.",
        hint=f"{option} {choices[-1]}",
    )


def options_of(
    engine: str, words: Iterable[str], env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Options and variables with what each ``{feature:NAME}`` stands for; a variable
    that is given wins. Raises UsageError: there is no such feature."""
    given: list[str] = []
    variables: dict[str, str] = {}
    for word in words:
        if found := _NAMED.fullmatch(word):
            one = feature(engine, found[1])
            given += one.args
            variables |= one.env
        else:
            given.append(word)
    return given, variables | dict(env)


def shown_by(engine: str, release: str, text: str) -> str:
    """Name the feature whose code ``text`` names, e.g. in a traceback; "": none, or the
    release does not have it."""
    codes = {name: one.code for name, one in features(engine).items()}
    return _first_in(engine, release, text, codes)


def named_by(engine: str, release: str, text: str) -> str:
    """Name the feature that a report's title or command is about; "": none, or the
    release does not have it."""
    names = {name: one.named for name, one in features(engine).items()}
    return _first_in(engine, release, text, names)


def _first_in(
    engine: str, release: str, text: str, expressions: Mapping[str, str]
) -> str:
    """Name the first feature whose expression the text has and that the release has."""
    for name, expression in expressions.items():
        is_named = bool(expression) and re.search(expression, text) is not None
        if is_named and _has(features(engine)[name], release):
            return name
    return ""


def _has(one: Feature, release: str) -> bool:
    return not one.since or Version(release) >= Version(one.since)


def paired(args: Sequence[str]) -> bool:
    """Whether these options start a prefill and a decode server."""
    return PAIR in args or "{feature:pd}" in args


def turned_on(engine: str, args: Sequence[str]) -> dict[str, Feature]:
    """Features of which the options are among ``args``, by name."""
    return {
        name: one
        for name, one in features(engine).items()
        if one.args and all(word in args for word in one.args)
    }
