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
from mmrepro.base.machine import write_file
from mmrepro.base.records import Record
from mmrepro.engines import ENGINES
from mmrepro.engines.models import TINY
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.parsing import TextLine, no_constant
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
    Part,
    ServerWanted,
)
from pydantic import Field

BLOCK, BAILIAN_BLOCK = 512, 16
_AT_ONCE = 256
"""Requests of a trace that wait for their answers at the same time, at most: as many
connections as a client may well hold."""
_MOST_IDS = 4 << 20
"""Hash ids of all rows that are kept."""
_MOST_TOKENS: Final = 1 << 24
_NAMES: Final = {
    "at": ("timestamp", "created_time"),
    "input": ("input_length", "input_tokens"),
    "output": ("output_length", "output_tokens"),
}


@dataclass(frozen=True)
class RecordingExcerpt:
    """The part of a recording that is read: requests that were sent from ``begin`` to
    before ``end``, in seconds after the first one, and of these the ``first`` so many;
    None: all."""

    first: int | None = None
    begin: float = 0.0
    end: float = math.inf

    def __bool__(self) -> bool:
        return self != RecordingExcerpt()

    def has(self, at_s: float) -> bool:
        return self.begin <= at_s < self.end

    def places(self, moments: Sequence[float | None]) -> list[int]:
        """Return which of the requests that were sent at these ``moments`` are wanted; one
        without a time counts as sent with the one before it."""
        known = [moment for moment in moments if moment is not None]
        origin = min(known, default=0.0)
        wanted: list[int] = []
        last = 0.0
        for place, moment in enumerate(moments):
            if moment is not None:
                last = moment - origin
            if self.has(last):
                wanted.append(place)
        return wanted[: self.first]


WHOLE: Final = RecordingExcerpt()


@dataclass(frozen=True)
class TraceRow:
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

    rows: list[TraceRow]
    block: int = BLOCK
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------- read


def is_trace(keys: set[str]) -> bool:
    """Whether an object with these fields is a row of a trace."""
    if "hash_ids" in keys:
        return True
    beside = {*_NAMES["at"], *_NAMES["output"], "delay"}
    return bool(keys.intersection(_NAMES["input"]) and keys & beside)


def read_trace(
    lines: Iterable[TextLine], file: str, limit: int, excerpt: RecordingExcerpt = WHOLE
) -> Trace:
    """Read the rows of ``file`` that are wanted: nothing behind the last of these is
    read.

    Raises:
        UsageError: one sentence, which names the line.
    """
    rows: list[tuple[int, TraceRow]] = []
    notes: list[str] = []
    kept_ids = 0
    most_rows = min(limit, excerpt.first or limit)
    origin: float | None = None
    in_seconds = False
    texts: dict[str, int] = {}
    for line in lines:
        if not line.text.strip():
            continue
        last = rows[-1][1].at_s if rows else 0.0
        try:
            fields = _object(line)
            # A chat_id is a field of Bailian's rows, whose times are seconds.
            in_seconds = in_seconds or "chat_id" in fields
            row = _row(fields, in_seconds, texts, last)
        except ValueError as why:
            raise UsageError(
                f"{file}, line {line.number}: {why}.",
                hint='a row is {"timestamp": ms, "input_length": N, "output_length": N, '
                '"hash_ids": [N, …]}',
            ) from why
        if origin is None:
            origin = row.at_s
        if not excerpt.has(row.at_s - origin):
            continue
        if len(rows) == most_rows or kept_ids + len(row.blocks) > _MOST_IDS:
            if len(rows) != excerpt.first:
                notes.append(f"Only the first {len(rows)} rows of the trace are read.")
            break
        kept_ids += len(row.blocks)
        rows.append((line.number, row))
    block = _block(rows, file, BAILIAN_BLOCK if in_seconds else BLOCK)
    in_order = sorted((row for _, row in rows), key=lambda row: row.at_s)
    return Trace(in_order, block, notes)


def _object(line: TextLine) -> dict[str, Any]:
    """Raises ValueError, with a clause for people."""
    if line.cut:
        raise ValueError("it is too long")
    try:
        fields = json.loads(line.text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    if not is_trace(set(fields)):
        raise ValueError("it has no input_length")
    return fields


def _row(
    fields: dict[str, Any], in_seconds: bool, texts: dict[str, int], last: float
) -> TraceRow:
    """Read a row; without a time it arrives at ``last``. ``texts`` are the ids of
    blocks that are texts. Raises ValueError, with a clause for people."""
    at = _of(fields, "at")
    if at is not None and (type(at) not in (int, float) or not 0 <= at < 1e15):
        raise ValueError("its timestamp is no number of milliseconds from 0 on")
    at_s = last
    if at is not None:
        at_s = at if in_seconds else at / 1000
    prompt = _tokens(fields, "input", 1)
    answer = _tokens(fields, "output", 0)
    session = fields.get("session_id")
    return TraceRow(
        at_s=at_s,
        prompt=prompt,
        answer=max(1, answer),
        blocks=_block_ids(fields, texts),
        session="" if session is None else str(session)[:200],
    )


def _tokens(fields: dict[str, Any], name: str, least: int) -> int:
    """Raises ValueError, with a clause for people."""
    count = _of(fields, name)
    if type(count) is float and count.is_integer():
        count = int(count)
    if type(count) is not int or not least <= count <= _MOST_TOKENS:
        raise ValueError(f"its {name}_length is no number of tokens from {least} on")
    return count


def _block_ids(fields: dict[str, Any], texts: dict[str, int]) -> Sequence[int]:
    """Return the ids of a row's blocks. Raises ValueError, with a clause for people."""
    given = fields.get("hash_ids") or []
    if not isinstance(given, list) or not all(type(id) in (int, str) for id in given):
        raise ValueError("its hash_ids are no list of numbers")
    blocks: list[int] = []
    for id in given:
        # Ids that are texts are numbered from -1 down.
        number = id if type(id) is int else ~texts.setdefault(id, len(texts))
        blocks.append(number)
    if any(abs(number) >= 1 << 63 for number in blocks):
        # Unsigned ids of 64 bits go into an array of signed ones.
        blocks = [(number + (1 << 63)) % (1 << 64) - (1 << 63) for number in blocks]
    return array("q", blocks)


def _of(fields: Mapping[str, Any], name: str) -> Any:
    """Return the field that a trace may call by several names; None: it has none."""
    for key in _NAMES[name]:
        if fields.get(key) is not None:
            return fields[key]
    return None


def _block(rows: Sequence[tuple[int, TraceRow]], file: str, usual: int) -> int:
    """Return tokens of a block: as usual, or the largest power of 2 that fits all rows.

    Raises UsageError: a row has more blocks than its prompt.
    """
    several = [(number, row) for number, row in rows if len(row.blocks) > 1]
    if not several:
        return usual

    # All blocks but the last are full, and the last has a token at least.
    def tokens_a_block(numbered: tuple[int, TraceRow]) -> float:
        _, row = numbered
        return (row.prompt - 1) / (len(row.blocks) - 1)

    number, tightest = min(several, key=tokens_a_block)
    most = (tightest.prompt - 1) // (len(tightest.blocks) - 1)
    if most >= usual:
        return usual
    block = 1 << max(0, most.bit_length() - 1)
    fits = all(_fits(row, block) for _, row in several)
    if most < 1 or not fits:
        raise UsageError(
            f"{file}, line {number}: {len(tightest.blocks)} hash_ids are too many for "
            f"{tightest.prompt} tokens in blocks of {usual}."
        )
    return block


def _fits(row: TraceRow, block: int) -> bool:
    """Whether a row has as many blocks of that size as its prompt, with or without a
    last one that is not full."""
    full = row.prompt // block
    begun = -(-row.prompt // block)
    return len(row.blocks) in (full, begun)


# ------------------------------------------------------------------- made into requests


class _PromptBlock:
    """A block of a prompt, behind all those before it."""

    def __init__(self, text: list[str], parent: _PromptBlock | None) -> None:
        self.text = text
        self.next: dict[Any, _PromptBlock] = {}
        self.used: set[str] = set()
        """Pieces that its successors begin with."""
        if parent is not None and not text:
            # What follows an empty block stands where the block does, and must differ
            # from what follows the blocks beside it too.
            self.used = parent.used


class _MadeUpPrompts:
    """Prompts of a trace: equal blocks are equal texts, and others part at their first
    token."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self.alike = 0
        """Blocks that begin with the token of another one: no other was left."""
        self._vocabulary = vocabulary
        self._chance = random.Random(f"trace {seed}")  # noqa: S311 - no secret
        self._root = _PromptBlock([], None)

    def text(self, spans: Iterable[tuple[object, int, int]]) -> str:
        """Return the text of ``spans``: of each block its id, its tokens here, and its
        tokens where it is whole."""
        block = self._root
        pieces: list[str] = []
        for name, length, whole in spans:
            if name not in block.next:
                block.next[name] = _PromptBlock(self._new(whole, block.used), block)
            block = block.next[name]
            pieces += block.text[:length]
        return self._vocabulary.joint.join(pieces)

    def _new(self, length: int, used: set[str]) -> list[str]:
        """Make up a block that begins with none of the ``used`` pieces."""
        pieces = self._chance.choices(self._vocabulary.pieces, k=length)
        if pieces:
            other = self._vocabulary.other(used, self._chance)
            self.alike += other is None
            pieces[0] = other or pieces[0]
            used.add(pieces[0])
        return pieces


def requests_of(
    trace: Trace, server: ServerWanted, seed: int = 0
) -> tuple[list[RecordedRequest], list[str]]:
    """Make a greedy, streamed completion of each row, with exactly its tokens by the
    model's tokenizer; also return sentences on what was changed. Lengths and blocks are
    scaled by one factor, if the model is too short for them. Raises UsageError: the
    model has no tokenizer."""
    folder = None if server.model in TINY else Path(server.model)
    vocabulary = Vocabulary(folder, server.model)
    engine = ENGINES.get(server.engine)
    frame = engine.chat_frame if engine is not None else None
    around = vocabulary.ends
    if frame is not None:
        around = len(vocabulary.encode("".join(frame)))
    longest = max((row.prompt + row.answer for row in trace.rows), default=1)
    # An answer of less than a token becomes one.
    most = max(server.max_model_len - around - 1, 1)
    factor = min(1.0, most / longest)

    prompts = _MadeUpPrompts(vocabulary, seed)
    requests: list[RecordedRequest] = []
    notes = list(trace.notes)
    size = longer = 0
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
        answer = max(1, math.floor(row.answer * factor))
        operation = _operation(text, answer, in_chat=frame is not None)
        request = RecordedRequest(operation, at_s=row.at_s, running=_AT_ONCE - 1)
        requests.append(request)

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
    return requests, notes


def _operation(text: str, answer: int, *, in_chat: bool) -> Operation:
    """Return a greedy, streamed request whose answer has exactly so many tokens."""
    parameters = {"max_tokens": answer, "temperature": 0, "ignore_eos": True}
    prompt: dict[str, Any] = {"path": COMPLETIONS, "prompt": text}
    if in_chat:
        messages = [Message(role="user", content=text)]
        prompt = {"path": CHAT, "messages": messages}
    return Operation(id="r1", parameters=parameters, stream=True, **prompt)


def _spans(
    row: TraceRow, number: int, length: int, block: int, factor: float
) -> Iterator[tuple[object, int, int]]:
    """Yield blocks of a prompt that is scaled to ``length`` tokens; what is behind them
    is its own."""
    sizes = row.sizes or itertools.repeat(block)
    begin = end = 0
    for name, size in zip(row.blocks, sizes, strict=False):
        end += size
        whole = math.floor(end * factor)
        yield name, min(whole, length) - begin, whole - begin
        begin = min(whole, length)
    if length > begin:
        yield f"row {number}", length - begin, length - begin


def in_sessions(case: Case, rows: Sequence[TraceRow]) -> Case:
    """Let each row of a session wait for the answer of the one before it."""
    last: dict[str, str] = {}
    operations: list[Operation] = []
    for operation, row in zip(case.operations, rows, strict=False):
        before = last.get(row.session)
        if before is not None:
            after = [f"{before}.end", *operation.after]
            operation = operation.model_copy(update={"after": after})
        if row.session:
            last[row.session] = operation.id
        operations.append(operation)
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
    requests = list(_counted(captured, model, left))
    answers = [request.answer for request in requests if request.answer is not None]
    if not answers:
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
    usual = round(statistics.median(answers))
    stretch = _stretch(requests)
    key = os.urandom(32)
    lines: list[str] = []
    distinct: set[int] = set()
    blocks = prompt_tokens = answer_tokens = 0
    for request in requests:
        estimate = max(1, round(len(request.units) * stretch))
        length = request.prompt or estimate
        answer = usual if request.answer is None else request.answer
        ids = _hashed(request.units, length, stretch, key)
        row = {
            "timestamp": request.at_ms,
            "input_length": length,
            "output_length": answer,
            "hash_ids": ids,
        }
        lines.append(json.dumps(row) + "\n")
        distinct.update(ids)
        blocks += len(ids)
        prompt_tokens += length
        answer_tokens += answer
    try:
        write_file(file, "".join(lines))
    except OSError as error:
        raise UnwritableOutput(
            f"{file} cannot be written: {error.strerror or error}."
        ) from error
    return Written(
        file=file.name,
        requests=len(requests),
        seconds=max(request.at_ms for request in requests) / 1000,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        blocks=blocks,
        distinct=len(distinct),
        notes=list(_notes(captured, requests, usual, stretch, model, left)),
    )


def _stretch(requests: Sequence[_Counted]) -> float:
    """Return how many tokens of the server's count a unit of ours is, where both are
    known."""
    prompts = units = 0
    for request in requests:
        if request.prompt is not None and request.units:
            prompts += request.prompt
            units += len(request.units)
    return prompts / units if units else 1.0


def _counted(
    captured: Captured, model: Path | None, left: Counter[str]
) -> Iterator[_Counted]:
    """Yield the requests that generate tokens; why others are ``left`` out is
    counted."""
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
        path = operation.path.rstrip("/")
        if not units or path.endswith(("embeddings", "score", "rerank")):
            left["no token is generated"] += 1
            continue
        prompt = recorded.prompt_tokens if recorded else None
        yield _Counted(at_ms, units, prompt, _answer_tokens(operation))


def _answer_tokens(operation: Operation) -> int | None:
    """Return the tokens of its answer, or else the pieces that came of it, or else how
    many it asks for."""
    recorded = operation.recorded
    if recorded is not None:
        if recorded.completion_tokens is not None:
            return recorded.completion_tokens
        if recorded.pieces is not None:
            return recorded.pieces
    fields = _fields(operation)
    for name in _ASKED:
        value = fields.get(name)
        if type(value) is int:
            return value
    return None


def _fields(operation: Operation) -> dict[str, Any]:
    """Return its parameters, with those that stand in ``sampling_params``."""
    fields = dict(operation.parameters)
    sampling = operation.parameters.get("sampling_params")
    if isinstance(sampling, dict):
        fields.update(sampling)
    return fields


def _units(operation: Operation, case: Case, lengths: Lengths) -> Sequence[int]:
    """Return what becomes of a prompt, in order: ids of tokens, and numbers for the
    rest. Tools stand in front, as in most chat templates; a template's own tokens are
    one for each message."""
    units = array("q")
    tools = operation.parameters.get("tools")
    if tools:
        units.extend(lengths.ids(json.dumps(tools)))
    if operation.messages is None:
        gathered = Gathered()
        rewritten(operation, gathered)
        for text in gathered.prompts:
            units.extend(lengths.ids(text))
        for ids in gathered.of_ids:
            # What a client sent as an id may be any number.
            units.extend(id if abs(id) < 1 << 62 else 0 for id in ids)
        return units
    for message in operation.messages:
        units.append(_number(message.role))
        for part in message.parts():
            units.extend(_part_units(part, case, lengths))
        if message.more:
            units.extend(lengths.ids(json.dumps(message.more)))
    return units


def _part_units(part: Part, case: Case, lengths: Lengths) -> Sequence[int]:
    """Return the units of a part of a message: as many equal ones as a picture has
    tokens."""
    if part.text is not None:
        return lengths.ids(part.text)
    if part.image is None:
        return [_number(json.dumps(part.raw, sort_keys=True))]
    image = case.images[part.image]
    number = _number(f"{image.kind} {image.model_dump_json()}")
    return [number] * max(1, lengths.images[part.image])


def _number(text: str) -> int:
    """Return a number for what is no token: none of the ids that a vocabulary has."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest()
    return int.from_bytes(digest, "big") | 1 << 60


def _hashed(units: Sequence[int], length: int, stretch: float, key: bytes) -> list[int]:
    """Return an id for each block of ``length`` tokens; equal ones are equal
    prefixes."""
    count = -(-length // BLOCK)
    ids: list[int] = []
    begin = 0
    chained = b""
    for number in range(1, count + 1):
        # Blocks are of tokens, and ``stretch`` tokens are a unit; the last one takes
        # what is left.
        end = min(len(units), math.floor(number * BLOCK / stretch))
        if number == count:
            end = len(units)
        data = array("q", units[begin:end]).tobytes()
        chained = hashlib.blake2b(chained + data, key=key, digest_size=16).digest()
        ids.append(int.from_bytes(chained[:8], "big") >> 12)
        begin = end
    return ids


def _notes(
    captured: Captured,
    requests: Sequence[_Counted],
    usual: int,
    stretch: float,
    model: Path | None,
    left: Mapping[str, int],
) -> Iterator[str]:
    """Yield sentences on what the trace's numbers are."""
    for why, count in left.items():
        yield f"{count} requests are left out: {why}."
    unknown = sum(request.answer is None for request in requests)
    if unknown:
        yield (
            f"Of {unknown} requests no answer's length is known: the others' "
            f"median, {usual}."
        )
    counted = sum(request.prompt is None for request in requests)
    tokenizer = "the tiny models' tokenizer, one token a byte"
    if model is not None:
        tokenizer = str(model.name)
    if counted == len(requests):
        yield f"Prompts are counted by {tokenizer}, without a chat template."
    elif counted:
        yield (
            f"{counted} prompts without a usage are counted by {tokenizer}, "
            f"times {stretch:.3g}."
        )
    if all(op.at_s is None for op in captured.case.operations):
        yield "The recording tells no times: all requests are at 0."
