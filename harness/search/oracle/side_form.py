"""The form of the answers of both sides: fields, their types, reasons to end, token
counts.

Both sides get the same requests, so that each answer is held against the other side's
answer to the same request. What depends on the text (a tool's call, say) counts only
where the text is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from mmrepro.failure.documents import Area, Difference, SideRun, UpgradeOutcome
from mmrepro.search.oracle.protocol import FINISHES
from mmrepro.traffic.case import Case, Operation
from mmrepro.traffic.evidence import RequestRecord

_Fields = Mapping[str, Sequence[str]]
"""Types by path; of a header its value, where that is one of a few."""
_HEADER = "header "
_VALUES = ("content-type", "content-encoding", "transfer-encoding", "cache-control")
_TRANSPORT = ("connection", "content-length", "date", "keep-alive")
"""Headers that say nothing of the answer."""
_DEEPEST, _MOST_KEYS, _MOST_FIELDS = 12, 40, 2000
"""A level, and keys of an object, beyond which it is data; fields of an answer that are
kept."""
_RENAMED = 0.5
_NAME = re.compile(r"[A-Za-z_$][\w$-]*")
_ANSWER = re.compile(r"\.(?:message|delta|text|logprobs)\b")
"""Of fields that hold the answer itself: which of them are there depends on what it
says."""
_SEVERAL = 3
"""Answers that must all lack such a field where none says the same on both sides."""


# ------------------------------------------------------------------------ of one answer


def fields_of(
    data: bytes, headers: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """List the fields of a JSON body, or of all pieces of a stream together, with their
    types: each path (``choices[].message.content``) once. {}: it is no JSON.

    An object whose keys are no names, or too many, is a map: its values are ``path.*``.
    """
    types_by_path: dict[str, set[str]] = {}
    text = data.decode("utf-8", "replace")
    pieces = [
        line[5:].strip() for line in text.splitlines() if line.startswith("data:")
    ]
    for piece in pieces or [text]:
        try:
            value = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        # "data: [DONE]" and plain numbers have no fields.
        if isinstance(value, (dict, list)):
            _add(value, "", types_by_path, 0)

    for name, value in (headers or {}).items():
        header = name.lower()
        if header in _TRANSPORT:
            continue
        known = "there"
        if header in _VALUES:
            known = value.partition(";")[0].strip()
        types_by_path.setdefault(_HEADER + header, set()).add(known)

    kept = sorted(types_by_path.items())[:_MOST_FIELDS]
    return {path: sorted(types) for path, types in kept}


def _add(value: Any, path: str, types_by_path: dict[str, set[str]], depth: int) -> None:
    if path:
        types_by_path.setdefault(path, set()).add(_type(value))
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for element in value:
            _add(element, f"{path}[]", types_by_path, depth + 1)
    elif isinstance(value, dict):
        named = _is_named(value, path)
        for key, element in value.items():
            inner = key if named else "*"
            below = f"{path}.{inner}" if path else inner
            _add(element, below, types_by_path, depth + 1)


def _is_named(value: Mapping[str, Any], path: str) -> bool:
    """Whether the keys of an object are names of fields, and no data."""
    if len(value) > _MOST_KEYS or not all(map(_NAME.fullmatch, value)):
        return False
    # The likeliest tokens of a plain completion are keys, and a token may read as a
    # name.
    return not path.endswith("top_logprobs[]") or "logprob" in value


def _type(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
    }
    return kinds.get(type(value), "object")


# ------------------------------------------------------------------------ of both sides


def compare(
    old: Sequence[SideRun], new: Sequence[SideRun], *, case: Case
) -> list[Difference]:
    """State what of the answers' form differs, once a field and kind of request."""
    pairs: list[_Pair] = []
    groups: dict[str, list[_Pair]] = {}
    for op in case.operations:
        pair = _Pair.of(op, old, new)
        if pair is not None:
            pairs.append(pair)
            groups.setdefault(pair.group, []).append(pair)

    if not pairs:
        why = "No request was answered alike by both sides: the form was not compared."
        return [_difference("form", why, outcome=UpgradeOutcome.UNTOLD)]

    changes: list[_Change] = []
    for name, group in groups.items():
        changes += _fields(name, group)
    differences = [*_merged(changes), *_reasons(pairs), *_counts(pairs)]
    if not differences:
        said = f"{len(pairs)} requests are answered in the same form."
        return [_difference("form", said, outcome=UpgradeOutcome.NONE)]
    return differences


class _Pair:
    """The answers of both sides to one request, all with one status."""

    def __init__(
        self, op: Operation, old: _SideAnswers, new: _SideAnswers, *, group: str = ""
    ) -> None:
        self.op, self.group = op, group
        self.sides = old, new
        records = [*old.records, *new.records]
        choices = {_choices(record) for record in records}
        texts = {record.text for record in records}
        self.same = len(choices) == 1 and len(texts) == 1
        """Whether all answers say the same."""

    @classmethod
    def of(
        cls, op: Operation, old: Sequence[SideRun], new: Sequence[SideRun]
    ) -> _Pair | None:
        """None: it was not answered, or with more than one status."""
        before, after = _SideAnswers(op, old), _SideAnswers(op, new)
        if not (before.records and after.records):
            return None
        statuses = {record.status for record in (*before.records, *after.records)}
        if len(statuses) != 1 or None in statuses:
            return None
        (status,) = statuses
        streamed = " streamed" if before.records[0].stream else ""
        refused = f" ({status})" if status != 200 else ""
        return cls(op, before, after, group=f"{op.path}{streamed}{refused}")

    @property
    def has_fields(self) -> bool:
        """Whether fields of both sides' answers are known."""
        return all(side.fields for side in self.sides)

    def paths(self) -> set[str]:
        """Return all fields that an answer of either side has."""
        paths: set[str] = set()
        for side in self.sides:
            paths.update(*side.fields)
        return paths

    def types(self, side: int, path: str) -> set[str]:
        types: set[str] = set()
        for form in self.sides[side].fields:
            types.update(form.get(path, ()))
        return types

    def has(self, side: int, path: str) -> bool | None:
        """Whether all answers of a side have the field; None: some have."""
        there = [path in form for form in self.sides[side].fields]
        if all(there):
            return True
        return None if any(there) else False


class _SideAnswers:
    """The answers of one side to one request.

    Attributes:
        records: of the runs in which it was answered in full.
        fields: of those answers whose body was kept.
    """

    def __init__(self, op: Operation, runs: Sequence[SideRun]) -> None:
        self.records: list[RequestRecord] = []
        self.fields: list[_Fields] = []
        for run in runs:
            record = run.played.record(op.id) if run.played else None
            if record is None or record.left or record.timed_out:
                continue
            self.records.append(record)
            if op.id in run.fields:
                self.fields.append(run.fields[op.id])


def _choices(record: RequestRecord) -> str:
    """All that an answer says, to be held against another one."""
    shown: list[dict[str, Any]] = []
    for choice in record.choices:
        calls = [(call.name, call.arguments) for call in choice.tool_calls]
        shown.append(
            {"text": choice.text, "calls": calls, "reasoning": choice.reasoning}
        )
    return json.dumps(shown)


# ---------------------------------------------------------------------------- fields


@dataclass(frozen=True)
class _Change:
    """What is otherwise in the answers of one group.

    Attributes:
        said: the sentence; ``{many}`` is how many answers show it.
        many: that of the group.
    """

    path: str
    said: str
    many: str
    hits: Sequence[_Pair]
    old: str | None = None
    new: str | None = None
    matters: bool = False


def _merged(changes: Iterable[_Change]) -> Iterator[Difference]:
    """One statement a change, however many groups show it."""
    alike: dict[tuple[str, str], list[_Change]] = {}
    for change in changes:
        alike.setdefault((change.path, change.said), []).append(change)
    for (path, said), same in alike.items():
        first = same[0]
        text = said.replace("{many}", " and ".join(change.many for change in same))
        matters = any(change.matters for change in same)
        hits: list[_Pair] = []
        for change in same:
            hits += change.hits
        yield _difference(path, text, first.old, first.new, matters, hits)


def _fields(name: str, group: Sequence[_Pair]) -> Iterator[_Change]:
    # Without the bodies of both sides a field that is missing says nothing.
    known = [pair for pair in group if pair.has_fields]
    paths = sorted(set().union(*(pair.paths() for pair in known)))
    gone = _of_one_side(paths, known, there=0)
    added = _of_one_side(paths, known, there=1)

    def many(hits: Sequence[_Pair]) -> str:
        return f"{len(hits)} of {len(known)} answers of {name}"

    for path, hits in gone.items():
        before = _types(hits, 0, path)
        other = _perhaps(path, hits, added)
        empty = _empty(hits, path)
        said = f"{path} is gone from {{many}}"
        if other is not None:
            # One statement tells of both: it is not new besides.
            del added[other]
            said += f"; {other}, perhaps the same, is in its place"
        said += f"; it was always {empty}." if empty else "."
        matters = not empty and not path.startswith(_HEADER)
        yield _Change(path, said, many(hits), hits, before, other, matters)

    for path, hits in added.items():
        said = f"{path} is new in {{many}}."
        yield _Change(path, said, many(hits), hits, None, _types(hits, 1, path))
    for path in paths:
        hits = [pair for pair in known if _retyped(pair, path)]
        if not hits:
            continue
        before, after = _types(hits, 0, path), _types(hits, 1, path)
        matters = before != "null"
        if path.startswith(_HEADER):
            matters = path == f"{_HEADER}content-type"
        said = f"{path} is {after} in place of {before} in {{many}}."
        yield _Change(path, said, many(hits), hits, before, after, matters)


def _of_one_side(
    paths: Sequence[str], group: Sequence[_Pair], *, there: int
) -> dict[str, list[_Pair]]:
    """_Fields that side ``there`` alone has, with the requests that show it."""
    hits_by_path: dict[str, list[_Pair]] = {}
    for path in paths:
        hits = _missing(path, group, there)
        if hits:
            hits_by_path[path] = hits
    return hits_by_path


def _empty(hits: Sequence[_Pair], path: str) -> str:
    """What a field of OLD always was that held nothing: ``null``, or ``empty``; "": it
    held something."""
    kinds: set[str] = set()
    for pair in hits:
        kinds |= pair.types(0, path)
    if kinds == {"null"}:
        return "null"
    if not kinds <= {"array", "object", "null"}:
        return ""
    below = (f"{path}[]", f"{path}.")
    for pair in hits:
        for form in pair.sides[0].fields:
            if any(field.startswith(below) for field in form):
                return ""

    return "empty"


def _missing(path: str, group: Sequence[_Pair], there: int) -> list[_Pair]:
    """The requests whose answers have a field on side ``there`` and on the other one
    never, though what would hold it is there."""
    parent = _parent(path)
    holding = [pair for pair in group if _holds(pair, parent)]
    hits: list[_Pair] = []
    for pair in holding:
        if pair.has(there, path) and pair.has(1 - there, path) is False:
            hits.append(pair)
    # Which fields of the answer itself are there depends on what it says: few requests
    # show nothing, unless both sides said the same.
    every = all(pair.has(there, path) is True for pair in holding)
    if every and (len(hits) >= _SEVERAL or not _ANSWER.search(path)):
        return hits
    return [pair for pair in hits if pair.same]


def _parent(path: str) -> str:
    """What holds a field: ``a.b`` of ``a.b[]`` and of ``a.b.c``; "": the body
    itself."""
    if path.endswith("[]"):
        return path.removesuffix("[]")
    return path.rpartition(".")[0]


def _holds(pair: _Pair, parent: str) -> bool:
    """Whether both sides have what holds the field, and not null in its place."""
    if not parent or parent.startswith(_HEADER):
        return True
    kinds = [pair.types(side, parent) for side in (0, 1)]
    return all(kind & {"object", "array"} for kind in kinds)


def _perhaps(
    path: str, hits: Sequence[_Pair], added: Mapping[str, Sequence[_Pair]]
) -> str | None:
    """The new field that may be the gone one: in the same place, of the same type, in
    the same answers."""
    likest: str | None = None
    best = 0.0
    for other, others in added.items():
        if _parent(other) != _parent(path) or others != hits:
            continue
        if _types(hits, 0, path) != _types(hits, 1, other):
            continue
        likeness = SequenceMatcher(None, path, other, autojunk=False).ratio()
        if likeness >= _RENAMED and likeness > best:
            likest, best = other, likeness

    return likest


def _retyped(pair: _Pair, path: str) -> bool:
    """Whether a field that both sides have is of another type: a number may be whole by
    chance, null beside another type says nothing, nor does null in an answer that says
    something else."""
    before, after = pair.types(0, path), pair.types(1, path)
    if not before or not after or before == after:
        return False
    # An answer that says something else may leave another field empty.
    if not pair.same and {"null"} in (before, after):
        return False
    if "number" in before | after:
        before, after = _whole_as_number(before), _whole_as_number(after)
    if not before & after:
        return True
    return bool((before ^ after) - {"null"})


def _whole_as_number(types: set[str]) -> set[str]:
    return {"number" if kind == "integer" else kind for kind in types}


def _types(hits: Sequence[_Pair], side: int, path: str) -> str:
    kinds: set[str] = set()
    for pair in hits:
        kinds |= pair.types(side, path)
    return " or ".join(sorted(kinds))


# ---------------------------------------------------------------------- reasons, counts


def _reasons(pairs: Sequence[_Pair]) -> Iterator[Difference]:
    """Reasons to end that are others for the same text, or that the API does not
    have."""
    changed: dict[tuple[str, str], list[_Pair]] = {}
    for pair in pairs:
        before, after = (_ends(side.records) for side in pair.sides)
        if not before or not after or before == after:
            continue
        unknown = set(after.split(", ")) - {*FINISHES, "None"}
        if pair.same or unknown:
            changed.setdefault((before, after), []).append(pair)

    for (before, after), hits in changed.items():
        said = (
            f"The finish reason is {after} in place of {before} in {len(hits)} answers"
        )
        if all(pair.same for pair in hits):
            said += " with the same text"
        yield _difference("finish_reason", f"{said}.", before, after, True, hits)


def _ends(records: Sequence[RequestRecord]) -> str:
    """The reasons of an answer's choices; "": they differ between the runs of a
    side."""
    ends: set[str] = set()
    for record in records:
        reasons = {str(choice.finish_reason) for choice in record.choices}
        ends.add(", ".join(sorted(reasons)))
    return ends.pop() if len(ends) == 1 else ""


_COUNTS: tuple[tuple[str, Callable[[RequestRecord], int | None], bool], ...] = (
    ("usage.prompt_tokens", lambda record: record.prompt_tokens, False),
    ("usage.completion_tokens", lambda record: record.completion_tokens, True),
)
"""Name, reader, and whether it depends on the text."""


def _counts(pairs: Sequence[_Pair]) -> Iterator[Difference]:
    for name, read, by_text in _COUNTS:
        hits: list[_Pair] = []
        values: list[tuple[int, int]] = []
        compared = 0
        for pair in pairs:
            if by_text and not pair.same:
                continue
            counts = _both(pair, read)
            if counts is None:
                continue
            compared += 1
            if counts[0] != counts[1]:
                hits.append(pair)
                values.append(counts)

        if not hits:
            continue
        steps = {after - before for before, after in values}
        by = f" by {steps.pop():+d}" if len(steps) == 1 else ""
        before, after = values[0]
        said = f"{name} differs{by} in {len(hits)} of {compared} answers"
        if by_text:
            said += " with the same text"
        said += f": {hits[0].op.id} {before} → {after}."
        yield _difference(name, said, before, after, True, hits)


def _both(
    pair: _Pair, read: Callable[[RequestRecord], int | None]
) -> tuple[int, int] | None:
    """A count of both sides; None: a run has none, or another one than its side's."""
    counts: list[int] = []
    for side in pair.sides:
        values = {read(record) for record in side.records}
        value = values.pop()
        # A count that differs within a side is not compared between them.
        if values or value is None:
            return None
        counts.append(value)
    return counts[0], counts[1]


def _difference(
    subject: str,
    said: str,
    old: Any = None,
    new: Any = None,
    matters: bool = False,
    hits: Sequence[_Pair] = (),
    outcome: UpgradeOutcome = UpgradeOutcome.DIFFERENCE,
) -> Difference:
    return Difference(
        area=Area.PROTOCOL,
        subject=subject,
        outcome=outcome,
        matters=matters,
        statement=said,
        old=old,
        new=new,
        evidence=[pair.op.id for pair in hits],
    )
