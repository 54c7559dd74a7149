"""Which issues are to be opened, rewritten and closed, from the ledger and those that there are.

Pure. A comment in an issue's body, which nobody sees, says what the issue is of: its title and all
else may be edited. Only issues with the label count, which no stranger can give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias

from mmrepro.history.concerns import Concern
from mmrepro.incident.ledger import EventKind
from mmrepro.records import Record
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

LABEL: Final = "mmrepro-nightly"
MAX_BODY: Final = 60_000
"""GitHub takes 65,536 characters. What is longer was made so by hand, and is left as it is."""
_MARK: Final = re.compile(r"<!-- mmrepro-issue (\{[^\r\n]*?\}) -->")


class Mark(Record):
    """What an issue is of, and what it says; hidden in its body."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    identity: str
    since: str
    night: str
    state: str

    @property
    def text(self) -> str:
        """One line: a comment of HTML, which nothing in it can end."""
        told = json.dumps(self.model_dump()).replace("<", "\\u003c").replace(">", "\\u003e")
        return f"<!-- mmrepro-issue {told} -->"


def mark_in(body: str) -> Mark | None:
    """The first one in ``body``; None: it has none that can be read."""
    found = _MARK.search(body)
    try:
        return Mark.model_validate_json(found[1]) if found else None
    except ValidationError:
        return None


def marked(body: str, mark: Mark) -> str:
    """``body`` with its mark replaced."""
    return _MARK.sub(lambda _: mark.text, body, count=1)


def mark_of(concern: Concern) -> Mark:
    return Mark(
        identity=concern.identity, since=concern.since, night=concern.night, state=concern.state
    )


class Label(Record):
    model_config = ConfigDict(extra="ignore")

    name: str


class Issue(Record):
    """As ``gh issue list --json number,title,body,labels,state`` gives it."""

    model_config = ConfigDict(extra="ignore")

    number: Annotated[int, Field(ge=1)]
    title: str = ""
    body: str = ""
    labels: list[Label] = []
    state: str = "OPEN"

    @property
    def open(self) -> bool:
        return self.state.upper() == "OPEN"

    @property
    def mark(self) -> Mark | None:
        return mark_in(self.body) if any(one.name == LABEL for one in self.labels) else None


ISSUES: Final = TypeAdapter(list[Issue])


@dataclass(frozen=True)
class Open:
    concern: Concern


@dataclass(frozen=True)
class Update:
    """``before``: the state that the issue told; another one now is worth a comment."""

    issue: Issue
    concern: Concern
    before: str

    @property
    def changed(self) -> bool:
        return self.before != self.concern.state


@dataclass(frozen=True)
class Close:
    """``same_as``: the number of the issue that it repeats; 0: it is over, and ``why``."""

    issue: Issue
    identity: str
    why: str
    same_as: int = 0


Action: TypeAlias = Open | Update | Close


@dataclass(frozen=True)
class Decided:
    """``held``: concerns whose issues were too many for one night; the next one opens them."""

    actions: list[Action] = field(default_factory=list)
    held: list[Concern] = field(default_factory=list)


def decide(
    concerns: Mapping[str, Concern],
    issues: Sequence[Issue],
    excused: Callable[[Concern], bool] = lambda concern: False,
    most: int | None = None,
) -> Decided:
    """One open issue for each concern that is not over.

    One that was closed by hand stays closed until its concern is told anew, where ``issues`` has
    the closed ones too. One whose identity the ledger does not know is left alone.

    Args:
        excused: of these no issue is opened; those that are there go on.
        most: so many are opened at once, the worst first.
    """
    ours = sorted(((i, m) for i in issues if (m := i.mark)), key=lambda one: one[0].number)
    there: dict[str, tuple[Issue, Mark]] = {}
    repeated: list[Action] = []
    for issue, mark in ours:
        if not issue.open:
            continue
        first, _ = there.setdefault(mark.identity, (issue, mark))
        if first is not issue:
            repeated.append(Close(issue, mark.identity, "", first.number))
    actions = repeated + [
        action
        for identity, (issue, mark) in there.items()
        if (action := _of_an_open_one(issue, mark, concerns.get(identity))) is not None
    ]
    closed = {(m.identity, m.since) for i, m in ours if not i.open}
    wanted = [c for c in concerns.values() if _is_new(c, there, closed) and not excused(c)]
    order = list(EventKind)
    wanted.sort(key=lambda c: (order.index(c.event.what), c.identity))
    now = wanted[:most]
    return Decided([*actions, *map(Open, now)], wanted[len(now) :])


def _is_new(concern: Concern, there: Collection[str], closed: Collection[tuple[str, str]]) -> bool:
    known = concern.identity in there or (concern.identity, concern.since) in closed
    return not known and not concern.over


def _of_an_open_one(issue: Issue, mark: Mark, concern: Concern | None) -> Action | None:
    if concern is None:
        return None
    if concern.over:
        return Close(issue, mark.identity, concern.over)
    if mark_of(concern) == mark or len(issue.body) > MAX_BODY:
        return None
    return Update(issue, concern, mark.state)
