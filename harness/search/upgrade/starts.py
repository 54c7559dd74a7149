"""Whether a side starts at all, and what its options and configuration are: OLD beside
NEW.

What --help and the log of a server list is compared as text. An option that has another
name is only ever *perhaps* renamed: the help does not say so."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from mmrepro.failure.documents.upgrade import (
    Area,
    Difference,
    OptionSeen,
    Outcome,
    Side,
    SideRun,
)
from mmrepro.search.upgrade.configuration import fields
from mmrepro.traffic.case.model import ServerWanted
from pydantic import JsonValue

ALIKE_TEXT, ALIKE_NAME = 0.75, 0.8
"""Shares (difflib's ratio) of a help text, or of a name, from which on two options may
be one."""
LEAST_WORDS = 5
"""Words of a help text that say anything: 'enable it' fits many options."""
SHOWN = 6
_PLACE = re.compile(r" at 0x[0-9a-f]+|(?<![\w:])(?:/[\w.+@-]+){2,}")
"""What differs from machine to machine, or from process to process."""
_DIGITS = re.compile(r"\d+")
PER_START = re.compile(
    r"(?:^|_)(?:seed|port|ports|host|addr|address|path|dir|folder|model|tokenizer|id"
    r"|name|ipc|uuid|"
    r"socket|url|token|pid|time)$"
)
"""Names of settings that differ between any two starts, or that mmrepro gives."""


def compare(
    old: Sequence[SideRun],
    new: Sequence[SideRun],
    *,
    old_server: ServerWanted,
    new_server: ServerWanted,
) -> list[Difference]:
    """What of the starts differs: gone options that the new server's command uses come
    first."""
    before, after = (
        next((run.options for run in runs if run.options), []) for runs in (old, new)
    )
    asked = list(_used(new_server.args))
    found: list[Difference] = []
    if before and after:
        found += _used_and_gone(before, after, asked, new)
        gone = [one.subject for one in found]
        found += _listed(before, after, gone)
    elif old and new:
        lacking = " and ".join(
            side for side, there in (("OLD", before), ("NEW", after)) if not there
        )
        found.append(_untold("options", f"The options of {lacking} could not be read."))
    told = any(one.matters for one in found)
    return [*found, *_states(old, new, told), *_settings(old, new)]


# ------------------------------------------------------------------------ starts at all


def _states(
    old: Sequence[SideRun], new: Sequence[SideRun], told: bool
) -> Iterator[Difference]:
    """``told``: an option says why NEW does not start."""
    failed: dict[Side, list[SideRun]] = {
        "old": [run for run in old if not run.started],
        "new": [run for run in new if not run.started],
    }
    if not (failed["old"] or failed["new"]):
        return
    if len(failed["old"]) == len(old):
        why = _why(failed["old"])
        yield _untold(
            "starts", f"OLD does not start, so nothing could be compared{why}"
        )
        return
    counts = f"{len(failed['new'])} of {len(new)} starts of NEW failed"
    if failed["old"]:
        counts += f", and {len(failed['old'])} of {len(old)} of OLD"
    every = len(failed["new"]) == len(new) and not failed["old"]
    if every and told:
        return
    if every:
        yield Difference(
            area=Area.START,
            subject="starts",
            outcome=Outcome.DIFFERENCE,
            matters=True,
            statement=f"NEW does not start{_why(failed['new'])}",
            old=True,
            new=False,
            evidence=[run.folder for run in failed["new"] if run.folder],
        )
    else:
        yield _untold("starts", f"{counts}{_why([*failed['new'], *failed['old']])}")


def _why(runs: Sequence[SideRun]) -> str:
    causes = [cause for run in runs if run.played for cause in run.played.causes]
    cause = next(filter(None, [*causes, *(run.error for run in runs)]), "")
    return f": {' '.join(cause.split())[:200]}" if cause else "."


# ---------------------------------------------------------------------------- options


def _used_and_gone(
    before: Sequence[OptionSeen],
    after: Sequence[OptionSeen],
    asked: Sequence[tuple[str, str]],
    new: Sequence[SideRun],
) -> Iterator[Difference]:
    """Options of the new server's command that NEW does not list, or whose value it
    does not."""
    there, was = _by_name(after), _by_name(before)
    unstarted = [run for run in new if not run.started]
    stops = bool(new) and len(unstarted) == len(new)
    for name, value in asked:
        one, earlier = _lookup(there, name), _lookup(was, name)
        if one is None and earlier is not None:
            perhaps = next(
                (b for a, b in _renamed([earlier], _added(before, after))), None
            )
            said = f"NEW has no {earlier.name}, which the server's command uses"
            said += f"; perhaps it is {perhaps.name} now" if perhaps else ""
            said += f"; NEW does not start{_why(unstarted)}" if stops else "."
        elif one is not None and value and one.choices and value not in one.choices:
            if earlier is None or not (value in earlier.choices or not earlier.choices):
                continue  # OLD refuses it as well
            said = (
                f"NEW does not list the value {value} of {one.name}, which the command "
                "uses"
            )
            said += f"; NEW does not start{_why(unstarted)}" if stops else "."
        else:
            continue
        yield Difference(
            area=Area.START,
            subject=(earlier or one or OptionSeen(name=name)).name,
            outcome=Outcome.DIFFERENCE,
            matters=True,
            statement=said,
            old=_facts(earlier),
            new=_facts(one),
        )


def _listed(
    before: Sequence[OptionSeen], after: Sequence[OptionSeen], known: Collection[str]
) -> Iterator[Difference]:
    """What differs in the lists: information, one statement a kind."""
    gone, added = _added(after, before), _added(before, after)
    gone = [one for one in gone if one.name not in known]
    pairs = list(_renamed(gone, added))
    renamed = {name for a, b in pairs for name in (a.name, b.name)}
    was, there = _by_name(before), _by_name(after)
    both = [
        (one, other)
        for one in before
        if (other := _lookup(there, one.name)) is not None
    ]
    spelled = [
        (alias, other.name)
        for one, other in both
        for alias in (one.name, *one.aliases)
        if alias not in there
    ]
    changed = [one for a, b in both for one in _defaults(a, b)]
    # None is "not given": the engine may still come to the value that it was.
    open_ones = [words for words, *values in changed if "None" in values]
    defaults = [words for words, *values in changed if "None" not in values]
    dropped = [
        (b.name, lost)
        for a, b in both
        if a.choices and b.choices and (lost := sorted({*a.choices} - {*b.choices}))
    ]
    more = [
        (b.name, won)
        for a, b in both
        if a.choices and b.choices and (won := sorted({*b.choices} - {*a.choices}))
    ]
    switches = [(a.name, b.value) for a, b in both if bool(a.value) != bool(b.value)]
    yield from _kind(
        "options gone", [one.name for one in gone if one.name not in renamed]
    )
    yield from _kind(
        "options perhaps renamed", [f"{a.name} → {b.name}" for a, b in pairs]
    )
    yield from _kind(
        "spellings gone", [f"{alias} (now {name})" for alias, name in spelled]
    )
    yield from _kind(
        "options that take a value now, or none any more",
        [f"{name} {value or '(a switch)'}" for name, value in switches],
    )
    yield from _kind("defaults changed", defaults)
    yield from _kind("defaults that one side leaves to the engine", open_ones)
    yield from _kind(
        "values gone", [f"{name}: {', '.join(lost)}" for name, lost in dropped]
    )
    yield from _kind(
        "values added", [f"{name}: {', '.join(won)}" for name, won in more]
    )
    yield from _kind(
        "options added", [one.name for one in added if one.name not in renamed]
    )
    if was.keys() == there.keys() and not (changed or dropped or more or switches):
        statement = (
            f"Both list the same {len(before)} options, with the same defaults and "
            "values."
        )
        yield Difference(
            area=Area.START,
            subject="options",
            outcome=Outcome.NONE,
            statement=statement,
        )


def _defaults(a: OptionSeen, b: OptionSeen) -> Iterator[tuple[str, str, str]]:
    """What changed of an option's default, in words and both values; of one with fields
    those that both have."""
    if a.default is None or b.default is None or _plain(a.default) == _plain(b.default):
        return
    was, there = fields(a.default), fields(b.default)
    for name in sorted(was.keys() & there.keys()):
        if _plain(was[name]) != _plain(there[name]):
            words = f"{b.name}.{name} {_short(was[name])} → {_short(there[name])}"
            yield words, was[name], there[name]
    if not (was and there):
        yield (
            f"{b.name} {_short(a.default)} → {_short(b.default)}",
            a.default,
            b.default,
        )


def _kind(what: str, names: Sequence[str]) -> Iterator[Difference]:
    if not names:
        return
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    yield Difference(
        area=Area.START,
        subject=what,
        outcome=Outcome.DIFFERENCE,
        statement=(
            f"{what[0].upper()}{what[1:]} ({len(names)}): "
            f"{', '.join(names[:SHOWN])}{more}."
        ),
        evidence=list(names),
    )


def _renamed(
    gone: Sequence[OptionSeen], added: Sequence[OptionSeen]
) -> Iterator[tuple[OptionSeen, OptionSeen]]:
    """Pairs that may be one option under two names, the likeliest first; each is in one
    pair."""
    scored = [
        (score, i, j)
        for i, a in enumerate(gone)
        for j, b in enumerate(added)
        if bool(a.value) == bool(b.value) and (score := _alike(a, b))
    ]
    taken: set[tuple[str, int]] = set()
    for _, i, j in sorted(scored, key=lambda one: (-one[0], one[1], one[2])):
        if not taken & {("gone", i), ("added", j)}:
            taken |= {("gone", i), ("added", j)}
            yield gone[i], added[j]


def _alike(a: OptionSeen, b: OptionSeen) -> float:
    """How alike two options are, 0 to 2; 0: not enough to call one of them renamed.

    A name that differs in its numbers alone is another option, as its text says as
    well."""
    name = SequenceMatcher(None, a.name, b.name, autojunk=False).ratio()
    words, others = a.text.lower().split(), b.text.lower().split()
    text = 0.0
    if min(len(words), len(others)) >= LEAST_WORDS:
        text = SequenceMatcher(None, words, others, autojunk=False).ratio()
    if _DIGITS.sub("", a.name) == _DIGITS.sub("", b.name) and text < ALIKE_TEXT:
        return 0.0
    shared = {*a.name.strip("-").split("-")} & {*b.name.strip("-").split("-")}
    if text >= ALIKE_TEXT and (shared or text == 1.0):
        return name + text
    untold = not (words and others)
    return (
        name + text
        if name >= ALIKE_NAME and (untold or text >= ALIKE_TEXT / 2)
        else 0.0
    )


def _added(
    before: Sequence[OptionSeen], after: Sequence[OptionSeen]
) -> list[OptionSeen]:
    """Options of ``after`` none of whose spellings ``before`` has."""
    was = _by_name(before)
    return [
        one
        for one in after
        if not any(name in was for name in (one.name, *one.aliases))
    ]


def _by_name(options: Sequence[OptionSeen]) -> dict[str, OptionSeen]:
    return {name: one for one in options for name in (one.name, *one.aliases)}


def _lookup(options: Mapping[str, OptionSeen], name: str) -> OptionSeen | None:
    """An option by a name as a command spells it: vLLM takes ``--a_b`` for ``--a-b``,
    and the fields of a JSON value as ``--a.field``."""
    spelled = (name, name.replace("_", "-"), name.partition(".")[0].rstrip("+"))
    return next((options[one] for one in spelled if one in options), None)


def _used(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command and their first values."""
    for arg, following in zip(args, [*args[1:], ""], strict=False):
        if re.match(r"--?[A-Za-z]", arg):
            name, equals, value = arg.partition("=")
            given = "" if re.match(r"--?[A-Za-z]", following) else following
            yield name, value if equals else given


# ------------------------------------------------------------------------ configuration


def _settings(old: Sequence[SideRun], new: Sequence[SideRun]) -> Iterator[Difference]:
    """What the servers themselves say that they run with."""
    before, after = (
        next((run.config for run in runs if run.config), {}) for runs in (old, new)
    )
    changed = [
        f"{name} {_short(before[name])} → {_short(after[name])}"
        for name in sorted(before.keys() & after.keys())
        if not PER_START.search(name) and _plain(before[name]) != _plain(after[name])
    ]
    yield from _kind("settings in effect differ", changed)


def _plain(value: str | None) -> str:
    """A value without what differs from process to process; two ways to write it are
    one."""
    text = _PLACE.sub("", value or "")
    try:
        return repr(ast.literal_eval(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return " ".join(text.split())


def _short(value: str | None) -> str:
    text = " ".join((value or "''").split())
    return text if len(text) <= 40 else f"{text[:37]}…"


def _facts(option: OptionSeen | None) -> JsonValue:
    if option is None:
        return None
    return {
        "name": option.name,
        "default": option.default,
        "choices": [*option.choices],
    }


def _untold(subject: str, statement: str) -> Difference:
    return Difference(
        area=Area.START, subject=subject, outcome=Outcome.UNTOLD, statement=statement
    )
