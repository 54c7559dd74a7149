"""Traces in Mooncake's form: arrivals, lengths and which prompts begin alike, without
any text.

A line is ``{"timestamp": ms, "input_length": tokens, "output_length": tokens,
"hash_ids": […]}``. A hash id names a block of 512 tokens and all before it, so that
equal ids are equal prefixes; the last block may be a part of one (R. Qin et al.,
Mooncake, FAST '25, and the traces released with it). Also read: other names of these
fields (NVIDIA Dynamo's), ids that are texts (LiteLLM's), rows of a session, which
follow one another (AIPerf's), and the traces of Alibaba's Bailian, whose blocks have 16
tokens and whose times are seconds."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.machine.files import write_file
from mmrepro.base.records import Record
from mmrepro.engines import ENGINES
from mmrepro.engines.models.tiny import TINY
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.parsing import Line, no_constant
from mmrepro.traffic.capture.recorded import MAX_TEXT, RecordedRequest
from mmrepro.traffic.capture.scale import Lengths
from mmrepro.traffic.capture.texts import Gathered, Vocabulary, rewritten
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import (
    CHAT,
    COMPLETIONS,
    Case,
    Message,
    Operation,
    ServerWanted,
)
from pydantic import Field

BLOCK, BAILIAN_BLOCK = 512, 16
AT_ONCE = 256
"""Requests of a trace that wait for their answers at the same time, at most: as many
connections as a client may well hold."""
MOST_IDS = 4 << 20
"""Hash ids of all rows that are kept."""
MOST_TOKENS: Final = 1 << 24
_NAMES: Final = {
    "at": ("timestamp", "created_time"),
    "input": ("input_length", "input_tokens"),
    "output": ("output_length", "output_tokens"),
}


@dataclass(frozen=True)
class Excerpt:
    """The part of a recording that is read: requests that were sent from ``begin`` to
    before ``end``, in seconds after the first one, and of these the ``first`` so many;
    None: all."""

    first: int | None = None
    begin: float = 0.0
    end: float = math.inf

    def __bool__(self) -> bool:
        return self != Excerpt()

    def has(self, at_s: float) -> bool:
        return self.begin <= at_s < self.end

    def places(self, moments: Sequence[float | None]) -> list[int]:
        """Which of the requests that were sent at these ``moments`` are wanted; one
        without a time counts as sent with the one before it."""
        origin = min((m for m in moments if m is not None), default=0.0)
        found, last = [], 0.0
        for place, moment in enumerate(moments):
            last = last if moment is None else moment - origin
            if self.has(last):
                found.append(place)
        return found[: self.first]


WHOLE: Final = Excerpt()


@dataclass(frozen=True)
class Row:
    """A request of a trace.

    Attributes:
        at_s: when it arrived.
        prompt, answer: tokens.
        blocks: ids of the blocks that its prompt begins with.
        session: rows of one follow one another; "": of none.
        sizes: tokens of each block; (): all have those of the trace.
    """

    at_s: float
    prompt: int
    answer: int
    blocks: Sequence[int]
    session: str = ""
    sizes: Sequence[int] = ()


@dataclass
class Trace:
    """Rows in the order of their arrival, and the number of tokens of a block."""

    rows: list[Row]
    block: int = BLOCK
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------- read


def is_trace(keys: set[str]) -> bool:
    """Whether an object with these fields is a row of a trace."""
    return "hash_ids" in keys or bool(
        keys.intersection(_NAMES["input"])
        and keys & {*_NAMES["at"], *_NAMES["output"], "delay"}
    )


def read_trace(
    lines: Iterable[Line], file: str, limit: int, excerpt: Excerpt = WHOLE
) -> Trace:
    """The rows of ``file``, as far as they are wanted: nothing behind the last of these
    is read.

    Raises:
        UsageError: one sentence, which names the line.
    """
    rows: list[tuple[int, Row]] = []
    notes = []
    ids, origin, most = 0, None, min(limit, excerpt.first or limit)
    seconds = False
    texts: dict[str, int] = {}
    for line in lines:
        if not line.text.strip():
            continue
        try:
            told = _object(line)
            seconds = seconds or "chat_id" in told
            row = _row(told, seconds, texts, rows[-1][1].at_s if rows else 0.0)
        except ValueError as why:
            raise UsageError(
                f"{file}, line {line.number}: {why}.",
                hint='a row is {"timestamp": ms, "input_length": N, "output_length": N, '
                '"hash_ids": [N, …]}',
            ) from why
        origin = row.at_s if origin is None else origin
        if not excerpt.has(row.at_s - origin):
            continue
        if len(rows) == most or ids + len(row.blocks) > MOST_IDS:
            if len(rows) != excerpt.first:
                notes.append(f"Only the first {len(rows)} rows of the trace are read.")
            break
        ids += len(row.blocks)
        rows.append((line.number, row))
    block = _block(rows, file, BAILIAN_BLOCK if seconds else BLOCK)
    return Trace(
        sorted((row for _, row in rows), key=lambda row: row.at_s), block, notes
    )


def _object(line: Line) -> dict[str, Any]:
    """Raises ValueError, with a clause for people."""
    if line.cut:
        raise ValueError("it is too long")
    try:
        told = json.loads(line.text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(told, dict):
        raise ValueError("it is no JSON object")
    if not is_trace(set(told)):
        raise ValueError("it has no input_length")
    return told


def _row(
    told: dict[str, Any], seconds: bool, texts: dict[str, int], last: float
) -> Row:
    """Raises ValueError, with a clause for people."""
    at = _of(told, "at")
    if at is not None and (type(at) not in (int, float) or not 0 <= at < 1e15):
        raise ValueError("its timestamp is no number of milliseconds from 0 on")
    counts = []
    for name, least in (("input", 1), ("output", 0)):
        count = _of(told, name)
        if type(count) is float and count.is_integer():
            count = int(count)
        if type(count) is not int or not least <= count <= MOST_TOKENS:
            raise ValueError(
                f"its {name}_length is no number of tokens from {least} on"
            )
        counts.append(count)
    given = told.get("hash_ids") or []
    if not isinstance(given, list) or not all(type(one) in (int, str) for one in given):
        raise ValueError("its hash_ids are no list of numbers")
    blocks = [
        one if type(one) is int else ~texts.setdefault(one, len(texts)) for one in given
    ]
    if any(abs(one) >= 1 << 63 for one in blocks):  # unsigned ones of 64 bits
        blocks = [(one + (1 << 63)) % (1 << 64) - (1 << 63) for one in blocks]
    session = told.get("session_id")
    return Row(
        last if at is None else at if seconds else at / 1000,
        counts[0],
        max(1, counts[1]),
        array("q", blocks),
        "" if session is None else str(session)[:200],
    )


def _of(told: Mapping[str, Any], name: str) -> Any:
    return next((told[one] for one in _NAMES[name] if told.get(one) is not None), None)


def _block(rows: Sequence[tuple[int, Row]], file: str, usual: int) -> int:
    """Tokens of a block: as usual, or the largest power of 2 that fits all rows. Raises
    UsageError: a row has more blocks than its prompt."""
    many = [(number, row) for number, row in rows if len(row.blocks) > 1]
    if not many:
        return usual
    number, tight = min(
        many, key=lambda one: (one[1].prompt - 1) / (len(one[1].blocks) - 1)
    )
    most = (tight.prompt - 1) // (len(tight.blocks) - 1)
    if most >= usual:
        return usual
    block = 1 << max(0, most.bit_length() - 1)
    whole = all(
        len(r.blocks) in (r.prompt // block, -(-r.prompt // block)) for _, r in many
    )
    if most < 1 or not whole:
        raise UsageError(
            f"{file}, line {number}: {len(tight.blocks)} hash_ids are too many for "
            f"{tight.prompt} tokens in blocks of {usual}."
        )
    return block


# ------------------------------------------------------------------- made into requests


class _Node:
    """A block behind all those before it; ``used``: pieces that its successors begin
    with."""

    def __init__(self, text: list[str], branch: _Node | None) -> None:
        self.text, self.next = text, dict[Any, _Node]()
        self.used: set[str] = set() if text or branch is None else branch.used


class _Prompts:
    """Prompts of a trace: equal blocks are equal texts, and others part at their first
    token."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self.alike = 0
        """Blocks that begin with the token of another one: no other was left."""
        self._vocabulary = vocabulary
        self._chance = random.Random(f"trace {seed}")  # noqa: S311 - no secret
        self._root = _Node([], None)

    def text(self, spans: Iterable[tuple[object, int, int]]) -> str:
        """``spans``: of each block its id, its tokens here, and its tokens where it is
        whole."""
        node, pieces = self._root, list[str]()
        for name, length, whole in spans:
            if name not in node.next:
                node.next[name] = _Node(self._new(whole, node.used), node)
            node = node.next[name]
            pieces += node.text[:length]
        return self._vocabulary.joint.join(pieces)

    def _new(self, length: int, used: set[str]) -> list[str]:
        made = self._chance.choices(self._vocabulary.pieces, k=length)
        if made:
            other = self._vocabulary.other(used, self._chance)
            self.alike += other is None
            made[0] = other or made[0]
            used.add(made[0])
        return made


def requests_of(
    trace: Trace, server: ServerWanted, seed: int = 0
) -> tuple[list[RecordedRequest], list[str]]:
    """A greedy, streamed completion for each row, with exactly its tokens by the
    model's tokenizer, and sentences on what was changed. Lengths and blocks are scaled
    by one factor, if the model is too short for them. Raises UsageError: the model has
    no tokenizer."""
    folder = None if server.model in TINY else Path(server.model)
    vocabulary = Vocabulary(folder, server.model)
    engine = ENGINES.get(server.engine)
    frame = engine.chat_frame if engine is not None else None
    around = (
        vocabulary.ends if frame is None else len(vocabulary.encode("".join(frame)))
    )
    longest = max((row.prompt + row.answer for row in trace.rows), default=1)
    # An answer of less than a token becomes one.
    most = max(server.max_model_len - around - 1, 1)
    factor = min(1.0, most / longest)
    prompts = _Prompts(vocabulary, seed)
    found, notes, size, longer = [], list(trace.notes), 0, 0
    for number, row in enumerate(trace.rows):
        # What the engine puts around a prompt belongs to its tokens.
        length = math.floor(row.prompt * factor) - around
        longer += length < 1
        length = max(1, length)
        size += length
        if size > MAX_TEXT:
            notes.append(f"Only the first {number} requests fit a case.")
            break
        text = prompts.text(_spans(row, number, length, trace.block, factor))
        parameters = {
            "max_tokens": max(1, math.floor(row.answer * factor)),
            "temperature": 0,
            "ignore_eos": True,
        }
        sent: dict[str, Any] = {"path": COMPLETIONS, "prompt": text}
        if frame is not None:
            sent = {"path": CHAT, "messages": [Message(role="user", content=text)]}
        operation = Operation(id="r1", parameters=parameters, stream=True, **sent)
        found.append(RecordedRequest(operation, at_s=row.at_s, running=AT_ONCE - 1))
    notes.append(
        "The prompts are made up, greedy and streamed: equal blocks are equal text, "
        "and lengths are exact by the model's tokenizer."
    )
    if factor < 1:
        notes.append(
            f"Lengths of prompts, answers and blocks are scaled by {factor:.3g}, so "
            f"that the longest request, {longest} tokens, fits the model's "
            f"{server.max_model_len}."
        )
    if longer:
        notes.append(
            f"{longer} prompts are longer, since the engine adds {around} tokens to "
            "each."
        )
    if prompts.alike:
        notes.append(
            f"{prompts.alike} blocks begin with the same token as another one."
        )
    return found, notes


def _spans(
    row: Row, number: int, length: int, block: int, factor: float
) -> Iterator[tuple[object, int, int]]:
    """Blocks of a prompt that is scaled to ``length`` tokens; what is behind them is
    its own."""
    begin = end = 0
    for name, size in zip(
        row.blocks, row.sizes or itertools.repeat(block), strict=False
    ):
        end += size
        whole = math.floor(end * factor)
        yield name, min(whole, length) - begin, whole - begin
        begin = min(whole, length)
    if length > begin:
        yield f"row {number}", length - begin, length - begin


def in_sessions(case: Case, rows: Sequence[Row]) -> Case:
    """A row of a session waits for the answer of the one before it."""
    last: dict[str, str] = {}
    operations = []
    for op, row in zip(case.operations, rows, strict=False):
        if row.session:
            if before := last.get(row.session):
                op = op.model_copy(update={"after": [f"{before}.end", *op.after]})
            last[row.session] = op.id
        operations.append(op)
    return case.model_copy(update={"operations": operations})


# ---------------------------------------------------------------------- written


class Written(Record):
    """A trace that was written."""

    file: str
    requests: int
    seconds: Annotated[float, Field(description="from the first request to the last")]
    prompt_tokens: int
    answer_tokens: int
    blocks: int
    distinct: Annotated[int, Field(description="how many of them differ")]
    notes: list[str] = []


_ASKED: Final = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
)


@dataclass(frozen=True)
class _Counted:
    """A request without its text: units of the prompt (ids of tokens, and of pictures),
    and counts that are known of it."""

    at_ms: int
    units: Sequence[int]
    prompt: int | None
    answer: int | None


def write_trace(captured: Captured, file: Path, model: Path | None = None) -> Written:
    """Write a trace of the requests that generate tokens: nothing of a text is in it.

    Lengths are the server's own counts where the recording has them, else those of the
    tokenizer, stretched by what the two differ where both are known. Hash ids are 52
    bits of a keyed hash, whose key is made for this file and kept nowhere.

    Args:
        model: folder with the served model's ``tokenizer.json``; None: the tiny
            models'.

    Raises:
        UsageError: there is no such tokenizer, or no such request.
        UnwritableOutput: the file cannot be written.
    """
    left: Counter[str] = Counter()
    found = list(_counted(captured, model, left))
    known = [one.answer for one in found if one.answer is not None]
    if not known:
        raise UsageError(
            (
                "The recording tells of no request how many tokens were generated or "
                "asked for."
            ),
            hint=(
                "record answers with their usage: stream_options.include_usage "
                "in each request"
            ),
        )
    usual = round(statistics.median(known))
    both = [one for one in found if one.prompt is not None and one.units]
    units = sum(len(one.units) for one in both)
    stretch = sum(one.prompt or 0 for one in both) / units if units else 1.0
    key = os.urandom(32)
    lines, ids, total = [], set[int](), 0
    prompts = answers = 0
    for one in found:
        length = one.prompt or max(1, round(len(one.units) * stretch))
        answer = usual if one.answer is None else one.answer
        blocks = _hashed(one.units, length, stretch, key)
        row = {
            "timestamp": one.at_ms,
            "input_length": length,
            "output_length": answer,
            "hash_ids": blocks,
        }
        lines.append(json.dumps(row) + "\n")
        ids.update(blocks)
        total, prompts, answers = (
            total + len(blocks),
            prompts + length,
            answers + answer,
        )
    try:
        write_file(file, "".join(lines))
    except OSError as error:
        raise UnwritableOutput(
            f"{file} cannot be written: {error.strerror or error}."
        ) from error
    return Written(
        file=file.name,
        requests=len(found),
        seconds=max(one.at_ms for one in found) / 1000,
        prompt_tokens=prompts,
        answer_tokens=answers,
        blocks=total,
        distinct=len(ids),
        notes=list(_notes(captured, found, usual, stretch, model, left)),
    )


def _counted(
    captured: Captured, model: Path | None, left: Counter[str]
) -> Iterator[_Counted]:
    case = captured.case
    lengths = Lengths(case, captured.contents, Vocabulary(model, case.server.model))
    at_ms = 0
    for operation in case.operations:
        operation = opened(operation)
        at_ms = max(at_ms, round((operation.at_s or 0.0) * 1000))
        recorded = operation.recorded
        if recorded is not None and recorded.status not in (None, 200):
            left[f"{recorded.status} was answered"] += 1
            continue
        units = _units(operation, case, lengths)
        asked = next(
            (n for n in map(_fields(operation).get, _ASKED) if type(n) is int), None
        )
        if not units or operation.path.rstrip("/").endswith(
            ("embeddings", "score", "rerank")
        ):
            left["no token is generated"] += 1
            continue
        told = (recorded.completion_tokens, recorded.pieces) if recorded else ()
        answer = next((n for n in (*told, asked) if n is not None), None)
        yield _Counted(
            at_ms, units, recorded.prompt_tokens if recorded else None, answer
        )


def _fields(operation: Operation) -> dict[str, Any]:
    inner = operation.parameters.get("sampling_params")
    return {**operation.parameters, **(inner if isinstance(inner, dict) else {})}


def _units(operation: Operation, case: Case, lengths: Lengths) -> Sequence[int]:
    """What becomes of a prompt, in order: ids of tokens, and numbers for the rest.
    Tools stand in front, as in most chat templates; a template's own tokens are one for
    each message."""
    units = array("q")
    if tools := operation.parameters.get("tools"):
        units.extend(lengths.ids(json.dumps(tools)))
    if operation.messages is None:
        gathered = Gathered()
        rewritten(operation, gathered)
        for text in gathered.prompts:
            units.extend(lengths.ids(text))
        for ids in gathered.of_ids:
            units.extend(n if abs(n) < 1 << 62 else 0 for n in ids)
        return units
    for message in operation.messages:
        units.append(_number(message.role))
        for part in message.parts():
            if part.text is not None:
                units.extend(lengths.ids(part.text))
            elif part.image is not None:
                kind = case.images[part.image]
                picture = _number(f"{kind.kind} {kind.model_dump_json()}")
                units.extend([picture] * max(1, lengths.images[part.image]))
            else:
                units.append(_number(json.dumps(part.raw, sort_keys=True)))
        if message.more:
            units.extend(lengths.ids(json.dumps(message.more)))
    return units


def _number(text: str) -> int:
    """For what is no token: none of the ids that a vocabulary has."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest()
    return int.from_bytes(digest, "big") | 1 << 60


def _hashed(units: Sequence[int], length: int, stretch: float, key: bytes) -> list[int]:
    """An id for each block of ``length`` tokens; equal ones are equal prefixes."""
    blocks = -(-length // BLOCK)
    ends = [min(len(units), math.floor(n * BLOCK / stretch)) for n in range(1, blocks)]
    begin, before, found = 0, b"", []
    for end in (*ends, len(units)):
        data = array("q", units[begin:end]).tobytes()
        before = hashlib.blake2b(before + data, key=key, digest_size=16).digest()
        found.append(int.from_bytes(before[:8], "big") >> 12)
        begin = end
    return found


def _notes(
    captured: Captured,
    found: Sequence[_Counted],
    usual: int,
    stretch: float,
    model: Path | None,
    left: Mapping[str, int],
) -> Iterator[str]:
    for why, count in left.items():
        yield f"{count} requests are left out: {why}."
    unknown = sum(one.answer is None for one in found)
    if unknown:
        yield (
            f"Of {unknown} requests no answer's length is known: the others' "
            f"median, {usual}."
        )
    counted = sum(one.prompt is None for one in found)
    tokenizer = (
        "the tiny models' tokenizer, one token a byte"
        if model is None
        else str(model.name)
    )
    if counted == len(found):
        yield f"Prompts are counted by {tokenizer}, without a chat template."
    elif counted:
        yield (
            f"{counted} prompts without a usage are counted by {tokenizer}, "
            f"times {stretch:.3g}."
        )
    if all(op.at_s is None for op in captured.case.operations):
        yield "The recording tells no times: all requests are at 0."
