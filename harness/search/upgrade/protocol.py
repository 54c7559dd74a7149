"""The form of the answers of both sides: fields, their types, reasons to end, token
counts.

Both sides get the same requests, so that each answer is held against the other side's
answer to the same request. What depends on the text (a tool's call, say) counts only
where the text is the same."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from mmrepro.failure.documents.upgrade import Area, Difference, Outcome, SideRun
from mmrepro.search.oracle.protocol import FINISHES
from mmrepro.traffic.case.model import Case, Operation
from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord

Fields = Mapping[str, Sequence[str]]
"""Types by path; of a header its value, where that is one of a few."""
HEADER = "header "
VALUES = ("content-type", "content-encoding", "transfer-encoding", "cache-control")
TRANSPORT = ("connection", "content-length", "date", "keep-alive")
"""Headers that say nothing of the answer."""
DEEPEST, MOST_KEYS, MOST_FIELDS = 12, 40, 2000
"""A level, and keys of an object, beyond which it is data; fields of an answer that are
kept."""
RENAMED = 0.5
_NAME = re.compile(r"[A-Za-z_$][\w$-]*")
_ANSWER = re.compile(r"\.(?:message|delta|text|logprobs)\b")
"""Of fields that hold the answer itself: which of them are there depends on what it
says."""
SEVERAL = 3
"""Answers that must all lack such a field where none says the same on both sides."""


# ------------------------------------------------------------------------ of one answer


def fields_of(
    data: bytes, headers: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """The fields of a JSON body, or of all pieces of a stream together, with their
    types: each path (``choices[].message.content``) once. {}: it is no JSON.

    An object whose keys are no names, or too many, is a map: its values are ``path.*``.
    """
    found: dict[str, set[str]] = {}
    text = data.decode("utf-8", "replace")
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    for one in lines or [text]:
        try:
            value = json.loads(one)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, (dict, list)):
            _add(value, "", found, 0)
    for name, told in (headers or {}).items():
        if (name := name.lower()) not in TRANSPORT:
            known = told.partition(";")[0].strip() if name in VALUES else "there"
            found.setdefault(HEADER + name, set()).add(known)
    return {path: sorted(types) for path, types in sorted(found.items())[:MOST_FIELDS]}


def _add(value: Any, path: str, found: dict[str, set[str]], depth: int) -> None:
    if path:
        found.setdefault(path, set()).add(_type(value))
    if depth > DEEPEST:
        return
    if isinstance(value, list):
        for one in value:
            _add(one, f"{path}[]", found, depth + 1)
    elif isinstance(value, dict):
        named = len(value) <= MOST_KEYS and all(map(_NAME.fullmatch, value))
        # The likeliest tokens of a plain completion are keys, and a token may read as a
        # name.
        named = named and (not path.endswith("top_logprobs[]") or "logprob" in value)
        for key, one in value.items():
            inner = key if named else "*"
            _add(one, f"{path}.{inner}" if path else inner, found, depth + 1)


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
    """What of the answers' form differs; one statement a field and kind of request."""
    pairs = [
        pair for op in case.operations if (pair := _Pair.of(op, old, new)) is not None
    ]
    groups: dict[str, list[_Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.group, []).append(pair)
    found = [
        *_merged(one for name, group in groups.items() for one in _fields(name, group))
    ]
    found += [*_reasons(pairs), *_counts(pairs)]
    if not pairs:
        why = "No request was answered alike by both sides: the form was not compared."
        return [_difference("form", why, outcome=Outcome.UNTOLD)]
    if not found:
        said = f"{len(pairs)} requests are answered in the same form."
        return [_difference("form", said, outcome=Outcome.NONE)]
    return found


class _Pair:
    """The answers of both sides to one request, all with one status."""

    def __init__(
        self,
        op: Operation,
        records: tuple[list[RequestRecord], list[RequestRecord]],
        group: str,
    ) -> None:
        self.op, self.records, self.group = op, records, group
        self.fields: tuple[list[Fields], list[Fields]] = ([], [])
        texts = {
            json.dumps([_shown(c) for c in r.choices]) for side in records for r in side
        }
        bare = {r.text for side in records for r in side}
        self.same = len(texts) == 1 and len(bare) == 1
        """Whether all answers say the same."""

    @classmethod
    def of(
        cls, op: Operation, old: Sequence[SideRun], new: Sequence[SideRun]
    ) -> _Pair | None:
        """None: it was not answered, or with more than one status."""
        sides: tuple[list[RequestRecord], list[RequestRecord]] = ([], [])
        forms: tuple[list[Fields], list[Fields]] = ([], [])
        for side, form, runs in zip(sides, forms, (old, new), strict=True):
            for run in runs:
                record = run.played.record(op.id) if run.played else None
                if record is None or record.left or record.timed_out:
                    continue
                side.append(record)
                if op.id in run.fields:
                    form.append(run.fields[op.id])
        statuses = {record.status for side in sides for record in side}
        if not all(sides) or len(statuses) != 1 or None in statuses:
            return None
        (status,) = statuses
        streamed = " streamed" if sides[0][0].stream else ""
        refused = f" ({status})" if status != 200 else ""
        made = cls(op, sides, f"{op.path}{streamed}{refused}")
        made.fields = forms
        return made

    def types(self, side: int, path: str) -> set[str]:
        return {kind for form in self.fields[side] for kind in form.get(path, ())}

    def has(self, side: int, path: str) -> bool | None:
        """Whether all answers of a side have the field; None: some have."""
        there = [path in form for form in self.fields[side]]
        return True if all(there) else None if any(there) else False


def _shown(choice: ChoiceSeen) -> dict[str, Any]:
    calls = [(call.name, call.arguments) for call in choice.tool_calls]
    return {"text": choice.text, "calls": calls, "reasoning": choice.reasoning}


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
    for one in changes:
        alike.setdefault((one.path, one.said), []).append(one)
    for (path, said), ones in alike.items():
        text = said.replace("{many}", " and ".join(one.many for one in ones))
        hits = [pair for one in ones for pair in one.hits]
        matters = any(one.matters for one in ones)
        yield _difference(path, text, ones[0].old, ones[0].new, matters, hits)


def _fields(name: str, group: Sequence[_Pair]) -> Iterator[_Change]:
    known = [pair for pair in group if all(pair.fields)]
    paths = sorted(
        {p for pair in known for side in pair.fields for form in side for p in form}
    )
    gone = {path: hits for path in paths if (hits := _missing(path, known, there=0))}
    added = {path: hits for path in paths if (hits := _missing(path, known, there=1))}

    def many(hits: Sequence[_Pair]) -> str:
        return f"{len(hits)} of {len(known)} answers of {name}"

    for path, hits in gone.items():
        before, other = _types(hits, 0, path), _perhaps(path, hits, added)
        empty = _empty(hits, path)
        said = f"{path} is gone from {{many}}"
        if other is not None:
            del added[other]
            said += f"; {other}, perhaps the same, is in its place"
        said += f"; it was always {empty}." if empty else "."
        matters = not empty and not path.startswith(HEADER)
        yield _Change(path, said, many(hits), hits, before, other, matters)
    for path, hits in added.items():
        said = f"{path} is new in {{many}}."
        yield _Change(path, said, many(hits), hits, None, _types(hits, 1, path))
    for path in paths:
        if hits := [pair for pair in known if _retyped(pair, path)]:
            before, after = (_types(hits, side, path) for side in (0, 1))
            matters = before != "null"
            if path.startswith(HEADER):
                matters = path == f"{HEADER}content-type"
            said = f"{path} is {after} in place of {before} in {{many}}."
            yield _Change(path, said, many(hits), hits, before, after, matters)


def _empty(hits: Sequence[_Pair], path: str) -> str:
    """What a field of OLD always was that held nothing: ``null``, or ``empty``; "": it
    held something."""
    kinds = {kind for pair in hits for kind in pair.types(0, path)}
    if kinds == {"null"}:
        return "null"
    forms = [form for pair in hits for form in pair.fields[0]]
    held = any(
        one.startswith((f"{path}[]", f"{path}.")) for form in forms for one in form
    )
    return "" if held or not kinds <= {"array", "object", "null"} else "empty"


def _missing(path: str, group: Sequence[_Pair], there: int) -> list[_Pair]:
    """The requests whose answers have a field on side ``there`` and on the other one
    never, though what would hold it is there."""
    parent = _parent(path)
    hits = [
        pair
        for pair in group
        if pair.has(there, path)
        and pair.has(1 - there, path) is False
        and _holds(pair, parent)
    ]
    every = all(pair.has(there, path) is True for pair in group if _holds(pair, parent))
    every = every and (len(hits) >= SEVERAL or not _ANSWER.search(path))
    return hits if every else [pair for pair in hits if pair.same]


def _parent(path: str) -> str:
    """What holds a field: ``a.b`` of ``a.b[]`` and of ``a.b.c``; "": the body
    itself."""
    return path.removesuffix("[]") if path.endswith("[]") else path.rpartition(".")[0]


def _holds(pair: _Pair, parent: str) -> bool:
    """Whether both sides have what holds the field, and not null in its place."""
    if not parent or parent.startswith(HEADER):
        return True
    kinds = [pair.types(side, parent) for side in (0, 1)]
    return all(kind & {"object", "array"} for kind in kinds)


def _perhaps(
    path: str, hits: Sequence[_Pair], added: Mapping[str, Sequence[_Pair]]
) -> str | None:
    """The new field that may be the gone one: in the same place, of the same type, in
    the same answers."""

    def like(other: str) -> float:
        return SequenceMatcher(None, path, other, autojunk=False).ratio()

    place = [
        other
        for other, others in added.items()
        if _parent(other) == _parent(path)
        and others == hits
        and _types(hits, 0, path) == _types(hits, 1, other)
        and like(other) >= RENAMED
    ]
    return max(place, key=like, default=None)


def _retyped(pair: _Pair, path: str) -> bool:
    """Whether a field that both sides have is of another type: a number may be whole by
    chance, null beside another type says nothing, nor does null in an answer that says
    something else."""
    before, after = pair.types(0, path), pair.types(1, path)
    if not before or not after or before == after:
        return False
    if not pair.same and {"null"} in (before, after):
        return False
    if "number" in before | after:
        before, after = (
            {"number" if k == "integer" else k for k in s} for s in (before, after)
        )
    return not before & after or bool((before ^ after) - {"null"})


def _types(hits: Sequence[_Pair], side: int, path: str) -> str:
    return " or ".join(
        sorted({kind for pair in hits for kind in pair.types(side, path)})
    )


# ---------------------------------------------------------------------- reasons, counts


def _reasons(pairs: Sequence[_Pair]) -> Iterator[Difference]:
    """Reasons to end that are others for the same text, or that the API does not
    have."""
    changed: dict[tuple[str, str], list[_Pair]] = {}
    for pair in pairs:
        before, after = (_ends(records) for records in pair.records)
        unknown = {*after.split(", ")} - {*FINISHES, "None"}
        if before and after and before != after and (pair.same or unknown):
            changed.setdefault((before, after), []).append(pair)
    for (before, after), hits in changed.items():
        said = (
            f"The finish reason is {after} in place of {before} in {len(hits)} answers"
        )
        said += " with the same text" if all(pair.same for pair in hits) else ""
        yield _difference("finish_reason", f"{said}.", before, after, True, hits)


def _ends(records: Sequence[RequestRecord]) -> str:
    """The reasons of an answer's choices; "": they differ between the runs of a
    side."""
    told = {
        ", ".join(sorted({str(choice.finish_reason) for choice in record.choices}))
        for record in records
    }
    return told.pop() if len(told) == 1 else ""


_COUNTS: tuple[tuple[str, Callable[[RequestRecord], int | None], bool], ...] = (
    ("usage.prompt_tokens", lambda record: record.prompt_tokens, False),
    ("usage.completion_tokens", lambda record: record.completion_tokens, True),
)
"""Name, reader, and whether it depends on the text."""


def _counts(pairs: Sequence[_Pair]) -> Iterator[Difference]:
    for name, read, by_text in _COUNTS:
        hits, values = [], []
        told = 0
        for pair in pairs:
            before, after = ({read(r) for r in records} for records in pair.records)
            if by_text and not pair.same:
                continue
            if len(before) == len(after) == 1 and None not in before | after:
                told += 1
                if before != after:
                    hits.append(pair)
                    values.append((before.pop(), after.pop()))
        if hits:
            steps = Counter((b or 0) - (a or 0) for a, b in values)
            (step, _), *others = steps.most_common()
            by = f" by {step:+d}" if not others else ""
            a, b = values[0]
            said = f"{name} differs{by} in {len(hits)} of {told} answers"
            said += " with the same text" if by_text else ""
            yield _difference(
                name, f"{said}: {hits[0].op.id} {a} → {b}.", a, b, True, hits
            )


def _difference(
    subject: str,
    said: str,
    old: Any = None,
    new: Any = None,
    matters: bool = False,
    hits: Sequence[_Pair] = (),
    outcome: Outcome = Outcome.DIFFERENCE,
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
