"""What a silent failure is recognised by: two pictures that a cache may have taken for
one.

A sound cache shares what two prompts have in common up to the place where they part.
Where they part at two different pictures, and the engine takes these for one, it shares
more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrepro.base.records import Fidelity, FindingClass
from mmrepro.failure.signature import Condition, Finding
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import Failure, LiveFacts, RunFacts
from mmrepro.traffic import Picture

if TYPE_CHECKING:
    from mmrepro.traffic.case import Case, Operation

SILENT = frozenset(
    {FindingClass.CROSS_TALK, FindingClass.CACHE_BOUND, FindingClass.WRONG_ANSWER}
)
"""Of whom no log tells, and nothing that a look at the server could see."""
_BEFORE = ("tools", "documents", "chat_template", "chat_template_kwargs")
"""Fields of a request that a template puts before its messages, or is changed by."""
_SALTS = ("cache_salt", "extra_key")
"""Fields that set its entries of a prefix cache apart."""

CacheItems = Callable[["Operation", Mapping[str, Picture]], Sequence[object]]
"""Of a request what a prefix cache goes by, in order; pictures as themselves."""


@dataclass(frozen=True)
class PicturePair:
    """Two pictures of two requests: mostly those at which the prompts part."""

    operation: str
    earlier: str
    mine: Picture
    other: Picture

    def __str__(self) -> str:
        pictures = (
            f"its picture {self.mine.name} and {self.other.name} of {self.earlier}"
        )
        return f"{self.operation}: {pictures}"


def may_show(scenario: Scenario, failure: Failure) -> Finding:
    """Whether a server with these options can fail so, and silently: needed, and not
    enough."""
    server = failure.case.server
    if failure.finding_class not in SILENT:
        return Finding.of(False, f"a {failure.finding_class} is not silent")
    if failure.bucket.endswith("/whole"):
        return Finding.of(False, "more tokens came from the cache than the prompt has")
    if server.mitigation.startswith(f"{scenario.name}/"):
        return Finding.of(False, f"the server runs with {server.mitigation}")
    args, device = tuple(server.args), failure.device
    live = LiveFacts(server.engine, server.release, args, device=device)
    return scenario.exposure(live)


def as_in_a_run(scenario: Scenario, facts: LiveFacts) -> list[Condition]:
    """For ``live_conditions``: the run's own, of which most need its answers, and are
    then named as what was not seen. A look alone never matches a silent failure."""
    release = facts.release or scenario.release
    run = RunFacts(release, Fidelity.LIVE, frozenset(), facts.deadline_s)
    conditions = scenario.conditions(run)
    return [condition for condition in conditions if condition.part != "precondition"]


def whole_prompt(op: Operation, pictures: Mapping[str, Picture]) -> list[object]:
    """All that is sent before an answer, in its order, and what else sets a prefix
    apart.

    An engine may put pictures first, of a message or of all: what is equal up to a
    picture in the order in which it is sent is equal in these, too."""
    before = {name: op.parameters.get(name) for name in (*_BEFORE, *_SALTS)}
    items: list[object] = [before]
    for message in op.messages or []:
        items.append((message.role, message.more))
        for part in message.parts():
            items.append(pictures[part.image] if part.image else part.text or part.raw)
    return items


def pairs(failure: Failure, items: CacheItems) -> dict[str, list[PicturePair]]:
    """The place at which each operation that shows the failure parts at a picture from
    one that may have been computed before it."""
    return {id: list(_pairs(failure, id, items)) for id in failure.operations}


def every_picture(failure: Failure) -> dict[str, list[PicturePair]]:
    """The same for a cache of pictures alone: all of such an operation, with all before
    it."""
    case, pictures = failure.case, failure.pictures
    by_operation: dict[str, list[PicturePair]] = {}
    for id in failure.operations:
        pairs_of_it = by_operation.setdefault(id, [])
        for other in _maybe_before(case, id):
            for mine in case.operation(id).images:
                for theirs in other.images:
                    pair = PicturePair(id, other.id, pictures[mine], pictures[theirs])
                    pairs_of_it.append(pair)
    return by_operation


def _pairs(failure: Failure, id: str, items: CacheItems) -> Iterator[PicturePair]:
    mine = items(failure.case.operation(id), failure.pictures)
    for other in _maybe_before(failure.case, id):
        theirs = items(other, failure.pictures)
        for item, their_item in zip(mine, theirs, strict=False):
            if _equal(item, their_item):
                continue
            if isinstance(item, Picture) and isinstance(their_item, Picture):
                yield PicturePair(id, other.id, item, their_item)
            # What follows the place where two prompts part is in no common cache.
            break


def _equal(item: object, other: object) -> bool:
    if isinstance(item, Picture) and isinstance(other, Picture):
        return item.png == other.png
    return item == other


def _maybe_before(case: Case, id: str) -> list[Operation]:
    """Operations that do not wait for the one called ``id``, nor for one that does."""
    from mmrepro.traffic.case import Barrier

    later = {id}
    for op in case.operations:
        if any(Barrier.parse(text).op in later for text in op.after):
            later.add(op.id)
    return [op for op in case.operations if op.id not in later]


def each_follows(
    failure: Failure, alike: Callable[[Operation, Operation], bool], what: str
) -> Finding:
    """Met where each operation that shows the failure is ``alike`` one that may have
    been computed before it; ``what`` it has then."""
    if not failure.operations:
        return Finding.unknown("no request is named that shows it")
    for id in failure.operations:
        mine = failure.case.operation(id)
        if not any(alike(mine, other) for other in _maybe_before(failure.case, id)):
            return Finding.of(False, f"{id}: with no request before it {what}")
    return Finding.of(True, f"{', '.join(failure.operations)}: {what}")


def under_anothers_uuid(failure: Failure) -> Finding:
    """Each operation that shows the failure has a picture under a name that another one
    came with in a request that may have been computed before it."""

    def renamed(mine: Operation, other: Operation) -> bool:
        seen = _named(failure, other)
        own = _named(failure, mine).items()
        return any(seen.get(name, png) != png for name, png in own)

    return each_follows(failure, renamed, "a picture under another one's uuid")


def _named(failure: Failure, op: Operation) -> dict[str, bytes]:
    """The pictures of an operation that have a uuid, by it."""
    by_uuid: dict[str, bytes] = {}
    for message in op.messages or []:
        for part in message.parts():
            if part.uuid and part.image:
                by_uuid[part.uuid] = failure.pictures[part.image].png
    return by_uuid


def explained(
    found: Mapping[str, Sequence[PicturePair]],
    taken_for_one: Callable[[PicturePair], bool],
    what: str,
) -> Finding:
    """Met where every operation that shows the failure has such a pair; ``what`` it
    has."""
    if not found:
        return Finding.unknown("no request is named that shows it")
    observed: list[str] = []
    for id, candidates in found.items():
        # A pair is only looked into until one fits: that may mean to decode pictures.
        pair = next(filter(taken_for_one, candidates), None)
        if pair is None:
            return Finding.of(False, f"{id}: with no request before it {what}")
        observed.append(f"{pair}: {what}")
    return Finding.of(True, "; ".join(observed))
