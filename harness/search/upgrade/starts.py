"""Whether a side starts at all, and what its options and configuration are: OLD beside
NEW.

What --help and the log of a server list is compared as text. An option that has another
name is only ever *perhaps* renamed: the help does not say so."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from mmrepro.failure.documents import (
    Area,
    Difference,
    OptionSeen,
    SideRun,
    UpgradeOutcome,
)
from mmrepro.search.upgrade.configuration import fields
from mmrepro.traffic.case import ServerWanted
from pydantic import JsonValue

_ALIKE_TEXT, _ALIKE_NAME = 0.75, 0.8
"""Shares (difflib's ratio) of a help text, or of a name, from which on two options may
be one."""
_LEAST_WORDS = 5
"""Words of a help text that say anything: 'enable it' fits many options."""
_SHOWN = 6
_PLACE = re.compile(r" at 0x[0-9a-f]+|(?<![\w:])(?:/[\w.+@-]+){2,}")
"""What differs from machine to machine, or from process to process."""
_DIGITS = re.compile(r"\d+")
_OPTION = re.compile(r"--?[A-Za-z]")
_PER_START = re.compile(
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
    """State what of the starts differs: gone options that the new server's command uses
    come first."""
    before, after = _options(old), _options(new)
    used = list(_used(new_server.args))
    differences: list[Difference] = []
    if before and after:
        differences += _used_and_gone(before, after, used, new)
        gone = [difference.subject for difference in differences]
        differences += _listed(before, after, gone)
    elif old and new:
        lacking: list[str] = []
        if not before:
            lacking.append("OLD")
        if not after:
            lacking.append("NEW")
        said = f"The options of {' and '.join(lacking)} could not be read."
        differences.append(_untold("options", said))

    explained = any(difference.matters for difference in differences)
    return [*differences, *_states(old, new, explained), *_settings(old, new)]


def _options(runs: Sequence[SideRun]) -> Sequence[OptionSeen]:
    """What the first run that lists options lists; []: none does."""
    return next((run.options for run in runs if run.options), [])


# ------------------------------------------------------------------------ starts at all


def _states(
    old: Sequence[SideRun], new: Sequence[SideRun], explained: bool
) -> Iterator[Difference]:
    """State which side does not start.

    ``explained``: an option says why NEW does not.
    """
    old_failed = [run for run in old if not run.started]
    new_failed = [run for run in new if not run.started]
    if not (old_failed or new_failed):
        return
    # Where OLD never starts there is nothing to hold NEW against.
    if len(old_failed) == len(old):
        said = f"OLD does not start, so nothing could be compared{_why(old_failed)}"
        yield _untold("starts", said)
        return

    if old_failed or len(new_failed) < len(new):
        counts = f"{len(new_failed)} of {len(new)} starts of NEW failed"
        if old_failed:
            counts += f", and {len(old_failed)} of {len(old)} of OLD"
        yield _untold("starts", f"{counts}{_why([*new_failed, *old_failed])}")
        return

    if explained:
        return
    yield Difference(
        area=Area.START,
        subject="starts",
        outcome=UpgradeOutcome.DIFFERENCE,
        matters=True,
        statement=f"NEW does not start{_why(new_failed)}",
        old=True,
        new=False,
        evidence=[run.folder for run in new_failed if run.folder],
    )


def _why(runs: Sequence[SideRun]) -> str:
    """The first cause that a log shows, else the first error, as a sentence's end."""
    causes: list[str] = []
    for run in runs:
        if run.played:
            causes += run.played.causes
    causes += [run.error for run in runs]
    cause = next(filter(None, causes), "")
    if not cause:
        return "."
    return f": {' '.join(cause.split())[:200]}"


# ---------------------------------------------------------------------------- options


def _used_and_gone(
    before: Sequence[OptionSeen],
    after: Sequence[OptionSeen],
    used: Sequence[tuple[str, str]],
    new: Sequence[SideRun],
) -> Iterator[Difference]:
    """Options of the new server's command that NEW does not list, or whose value it
    does not."""
    there, was = _by_name(after), _by_name(before)
    unstarted = [run for run in new if not run.started]
    stops = bool(new) and len(unstarted) == len(new)
    for name, value in used:
        option, earlier = _lookup(there, name), _lookup(was, name)
        if option is None and earlier is not None:
            said = f"NEW has no {earlier.name}, which the server's command uses"
            renamed = next(_renamed([earlier], _added(before, after)), None)
            if renamed is not None:
                said += f"; perhaps it is {renamed[1].name} now"
        elif option is not None and _is_value_gone(value, option, earlier):
            said = (
                f"NEW does not list the value {value} of {option.name}, which the "
                "command uses"
            )
        else:
            continue

        said += f"; NEW does not start{_why(unstarted)}" if stops else "."
        yield Difference(
            area=Area.START,
            subject=(earlier or option or OptionSeen(name=name)).name,
            outcome=UpgradeOutcome.DIFFERENCE,
            matters=True,
            statement=said,
            old=_facts(earlier),
            new=_facts(option),
        )


def _is_value_gone(value: str, option: OptionSeen, earlier: OptionSeen | None) -> bool:
    """Whether NEW does not list a value that OLD takes."""
    if not value or not option.choices or value in option.choices:
        return False
    if earlier is None:
        return False
    return not earlier.choices or value in earlier.choices


def _listed(
    before: Sequence[OptionSeen], after: Sequence[OptionSeen], known: Collection[str]
) -> Iterator[Difference]:
    """What differs in the lists: information, one statement a kind."""
    gone, added = _added(after, before), _added(before, after)
    gone = [option for option in gone if option.name not in known]
    renamed = list(_renamed(gone, added))
    renamed_names: set[str] = set()
    for old, new in renamed:
        renamed_names |= {old.name, new.name}

    was, there = _by_name(before), _by_name(after)
    changes = _OptionChanges()
    for option in before:
        now = _lookup(there, option.name)
        if now is not None:
            changes.add(option, now, there)

    yield from _kind(
        "options gone", [old.name for old in gone if old.name not in renamed_names]
    )
    yield from _kind(
        "options perhaps renamed", [f"{old.name} → {new.name}" for old, new in renamed]
    )
    yield from _kind("spellings gone", changes.spellings)
    yield from _kind(
        "options that take a value now, or none any more", changes.switches
    )
    yield from _kind("defaults changed", changes.defaults)
    yield from _kind(
        "defaults that one side leaves to the engine", changes.open_defaults
    )
    yield from _kind("values gone", changes.values_gone)
    yield from _kind("values added", changes.values_added)
    yield from _kind(
        "options added", [new.name for new in added if new.name not in renamed_names]
    )
    if was.keys() == there.keys() and not changes.any_value:
        statement = (
            f"Both list the same {len(before)} options, with the same defaults and "
            "values."
        )
        yield Difference(
            area=Area.START,
            subject="options",
            outcome=UpgradeOutcome.NONE,
            statement=statement,
        )


class _OptionChanges:
    """What changed of the options that both sides list, as words of a statement."""

    def __init__(self) -> None:
        self.spellings: list[str] = []
        self.switches: list[str] = []
        self.defaults: list[str] = []
        self.open_defaults: list[str] = []
        """One side's is None, "not given": the engine may still come to the value that
        it was."""
        self.values_gone: list[str] = []
        self.values_added: list[str] = []

    @property
    def any_value(self) -> bool:
        """Whether anything changed but spellings."""
        return bool(
            self.switches
            or self.defaults
            or self.open_defaults
            or self.values_gone
            or self.values_added
        )

    def add(
        self, old: OptionSeen, new: OptionSeen, there: Mapping[str, OptionSeen]
    ) -> None:
        """Add an option's changes; ``there``: all of NEW's, by each spelling."""
        for alias in (old.name, *old.aliases):
            if alias not in there:
                self.spellings.append(f"{alias} (now {new.name})")
        if bool(old.value) != bool(new.value):
            self.switches.append(f"{old.name} {new.value or '(a switch)'}")
        for words, *values in _defaults(old, new):
            if "None" in values:
                self.open_defaults.append(words)
            else:
                self.defaults.append(words)

        if old.choices and new.choices:
            lost = sorted(set(old.choices) - set(new.choices))
            won = sorted(set(new.choices) - set(old.choices))
            if lost:
                self.values_gone.append(f"{new.name}: {', '.join(lost)}")
            if won:
                self.values_added.append(f"{new.name}: {', '.join(won)}")


def _defaults(old: OptionSeen, new: OptionSeen) -> Iterator[tuple[str, str, str]]:
    """What changed of an option's default, in words and both values; of one with fields
    those that both have."""
    if old.default is None or new.default is None:
        return
    if _plain(old.default) == _plain(new.default):
        return
    was, there = fields(old.default), fields(new.default)
    # A default with fields is compared field by field, those of one side alone left
    # out.
    for name in sorted(was.keys() & there.keys()):
        if _plain(was[name]) != _plain(there[name]):
            words = f"{new.name}.{name} {_short(was[name])} → {_short(there[name])}"
            yield words, was[name], there[name]

    if not (was and there):
        words = f"{new.name} {_short(old.default)} → {_short(new.default)}"
        yield words, old.default, new.default


def _kind(what: str, names: Sequence[str]) -> Iterator[Difference]:
    if not names:
        return
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown += f" and {len(names) - _SHOWN} more"
    yield Difference(
        area=Area.START,
        subject=what,
        outcome=UpgradeOutcome.DIFFERENCE,
        statement=f"{what[0].upper()}{what[1:]} ({len(names)}): {shown}.",
        evidence=list(names),
    )


def _renamed(
    gone: Sequence[OptionSeen], added: Sequence[OptionSeen]
) -> Iterator[tuple[OptionSeen, OptionSeen]]:
    """Pairs that may be one option under two names, the likeliest first; each is in one
    pair."""
    scored: list[tuple[float, int, int]] = []
    for i, old in enumerate(gone):
        for j, new in enumerate(added):
            score = _alike(old, new) if bool(old.value) == bool(new.value) else 0.0
            if score:
                # The higher score is sorted before the lower one.
                scored.append((-score, i, j))

    taken_gone: set[int] = set()
    taken_added: set[int] = set()
    for _, i, j in sorted(scored):
        if i not in taken_gone and j not in taken_added:
            taken_gone.add(i)
            taken_added.add(j)
            yield gone[i], added[j]


def _alike(a: OptionSeen, b: OptionSeen) -> float:
    """How alike two options are, 0 to 2; 0: not enough to call one of them renamed.

    A name that differs in its numbers alone is another option, as its text says as
    well."""
    name = SequenceMatcher(None, a.name, b.name, autojunk=False).ratio()
    words, others = a.text.lower().split(), b.text.lower().split()
    text = 0.0
    if min(len(words), len(others)) >= _LEAST_WORDS:
        text = SequenceMatcher(None, words, others, autojunk=False).ratio()
    # Names that differ in a number alone are two options.
    if _DIGITS.sub("", a.name) == _DIGITS.sub("", b.name) and text < _ALIKE_TEXT:
        return 0.0
    # Texts are copied from option to option: a word of the name must be shared, or the
    # text be the very same.
    shared = set(a.name.strip("-").split("-")) & set(b.name.strip("-").split("-"))
    if text >= _ALIKE_TEXT and (shared or text == 1.0):
        return name + text
    if name < _ALIKE_NAME:
        return 0.0
    one_without_text = not (words and others)
    if one_without_text or text >= _ALIKE_TEXT / 2:
        return name + text
    return 0.0


def _added(
    before: Sequence[OptionSeen], after: Sequence[OptionSeen]
) -> list[OptionSeen]:
    """Options of ``after`` none of whose spellings ``before`` has."""
    was = _by_name(before)
    added: list[OptionSeen] = []
    for option in after:
        if was.keys().isdisjoint((option.name, *option.aliases)):
            added.append(option)
    return added


def _by_name(options: Sequence[OptionSeen]) -> dict[str, OptionSeen]:
    by_name: dict[str, OptionSeen] = {}
    for option in options:
        by_name.update(dict.fromkeys((option.name, *option.aliases), option))
    return by_name


def _lookup(options: Mapping[str, OptionSeen], name: str) -> OptionSeen | None:
    """An option by a name as a command spells it: vLLM takes ``--a_b`` for ``--a-b``,
    and the fields of a JSON value as ``--a.field``."""
    dashed = name.replace("_", "-")
    whole = name.partition(".")[0].rstrip("+")
    # As it is typed first: another option may be called as the repaired form is.
    for spelling in (name, dashed, whole):
        if spelling in options:
            return options[spelling]
    return None


def _used(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command and their first values."""
    for arg, following in zip(args, [*args[1:], ""], strict=False):
        if not _OPTION.match(arg):
            continue
        name, equals, value = arg.partition("=")
        if not equals:
            value = "" if _OPTION.match(following) else following
        yield name, value


# ------------------------------------------------------------------------ configuration


def _settings(old: Sequence[SideRun], new: Sequence[SideRun]) -> Iterator[Difference]:
    """What the servers themselves say that they run with."""
    before, after = _config(old), _config(new)
    changed: list[str] = []
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        if not _PER_START.search(name) and _plain(was) != _plain(now):
            changed.append(f"{name} {_short(was)} → {_short(now)}")
    yield from _kind("settings in effect differ", changed)


def _config(runs: Sequence[SideRun]) -> Mapping[str, str]:
    """The settings of the first run that shows some; {}: none does."""
    return next((run.config for run in runs if run.config), {})


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
        area=Area.START,
        subject=subject,
        outcome=UpgradeOutcome.UNTOLD,
        statement=statement,
    )
