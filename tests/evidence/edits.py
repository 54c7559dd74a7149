"""Edits of recorded runs: each changes one value, so that the evidence contradicts
itself.

An edit finds its value by walking the document, whatever it holds, and makes of it
another that could stand there: another number, a moment at another time, a digest of
something else, a list with one entry less. It is made in place and taken back."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Literal, get_args, get_origin

from mmrepro.failure.documents import Incident
from mmrepro.probes.data import ProbeResult
from pydantic import BaseModel

OTHER_DIGEST = "0123456789abcdef" * 4


@dataclass(frozen=True)
class Edit:
    """One change of one value.

    Attributes:
        field: the class and the field, e.g. ``RequestRecord.sent``; of a log's line
            also the list that it is in.
        part: a field of Evidence or a kind of probe data; "": of the incident itself.
        change: what it does, in a word or two.
        make, undo: in place.
    """

    field: str
    part: str
    change: str
    make: Callable[[], object]
    undo: Callable[[], object]


def edits(incident: Incident, chosen: random.Random) -> Iterator[Edit]:
    """One edit of each kind of each field that there is, at a place that is
    ``chosen``."""
    places: dict[tuple[str, str, str], list[Edit]] = {}
    for edit in _every(incident):
        places.setdefault((edit.field, edit.part, edit.change), []).append(edit)
    for _, found in sorted(places.items()):
        yield chosen.choice(found)


OF_THE_RUN = ("created", "finished", "scenario", "engine", "gate", "deadline_s")
"""Fields of an incident that say what run it is; the others are made of these, or for
people."""


def _every(incident: Incident) -> Iterator[Edit]:
    evidence = incident.evidence
    for name in OF_THE_RUN:
        yield from _of_field(incident, name, "", "")
    for name in type(evidence).model_fields:
        if name != "probes":
            yield from _of_field(evidence, name, name, "")
    yield from _of_many("Evidence.probes", "probes", evidence.probes, deep=False)
    for result in evidence.probes:
        yield from _walk(result, result.data.kind if result.data else result.probe, "")


def _walk(record: BaseModel, part: str, within: str) -> Iterator[Edit]:
    for name in type(record).model_fields:
        yield from _of_field(record, name, part, within)


def _of_field(record: BaseModel, name: str, part: str, within: str) -> Iterator[Edit]:
    value, kind = getattr(record, name), type(record).__name__
    kind = "ProbeResult" if isinstance(record, ProbeResult) else kind
    field = f"{kind}.{name}" + (
        f" in {within}" if kind in ("LogLine", "Moment") else ""
    )
    if isinstance(value, BaseModel):
        yield from _walk(value, part, f"{kind}.{name}")
    elif isinstance(value, list | dict):
        yield from _of_many(field, part, value)
    values, old = record.__dict__, value
    for change, other in _others(
        name, value, type(record).model_fields[name].annotation
    ):
        make = partial(values.__setitem__, name, other)
        yield Edit(field, part, change, make, partial(values.__setitem__, name, old))


def _of_many(
    field: str, part: str, value: list[Any] | dict[Any, Any], *, deep: bool = True
) -> Iterator[Edit]:
    old = value.copy()

    def put(new: Any) -> None:
        value.clear()
        (value.extend if isinstance(value, list) else value.update)(new)

    def edit(change: str, new: Any) -> Edit:
        return Edit(field, part, change, partial(put, new), partial(put, old))

    if old:
        yield edit("emptied", type(old)())
    for key, one in enumerate(old) if isinstance(old, list) else old.items():
        changes = _others(str(key), one, type(one))
        for change, other in [
            *changes,
            *([("emptied", [])] if isinstance(one, list) else []),
        ]:
            new = old.copy()
            new[key] = other
            yield edit(f"one {change}", new)
        for record in one if isinstance(one, list) else [one]:
            if isinstance(record, BaseModel) and deep:
                yield from _walk(record, part, field)
    if isinstance(old, list) and len(old) > 1 and isinstance(old[0], BaseModel):
        yield edit("reversed", old[::-1])
        yield edit("one twice", [*old, old[0]])
        for gone in range(len(old)):
            yield edit("one less", old[:gone] + old[gone + 1 :])


def _others(
    name: str, value: object, annotation: object
) -> Iterator[tuple[str, object]]:
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, Enum):
        yield from (("another", one) for one in list(type(value)) if one is not value)
    elif get_origin(annotation) is Literal and name != "kind":
        words = [word for word in get_args(annotation) if word != value]
        yield from (("another", word) for word in words[:1] + words[-1:])
    elif name == "kind":
        return
    elif isinstance(value, int):
        yield "one more", value + 1
        yield "much more", value * 2 + 1000
        if value:
            yield "none", 0
    elif isinstance(value, float):
        yield "a minute more", value + 60.0
        yield "a day less", value - 86400.0
        if abs(value) > 0.1:
            yield "none", 0.0
    elif isinstance(value, datetime):
        yield "an hour later", value + timedelta(hours=1)
        yield "the day before", value - timedelta(days=1)
    elif isinstance(value, str) and value:
        if len(value) == 64 and not set(value) - set("0123456789abcdef"):
            yield "of another", OTHER_DIGEST
        else:
            yield "another", _another(value)
            yield "none", ""


def _another(text: str) -> str:
    """With all of its numbers another, or if it has none, another text."""
    digits = str.maketrans("0123456789", "1234567890")
    return text.translate(digits) if any(map(str.isdigit, text)) else f"another-{text}"
