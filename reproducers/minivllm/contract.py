"""What every step of a paged engine with image embeddings must keep.

Nothing here knows an engine: ``StepView`` is filled from lists of minivllm, from
buffers of vLLM's GPUModelRunner (``standins/contract_probe``) or by hand in a test.
What a caller cannot see stays None and is not checked. Plain Python, no imports beyond
the standard library."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

INVARIANTS: dict[str, str] = {
    "lengths": (
        "token ids, positions and embeddings have one entry for each token of the step"
    ),
    "slot-count": "slot_mapping has exactly one slot for each token",
    "slot-bounds": "every slot lies in the cache and not in the null block",
    "slot-unique": "no two tokens of a step are written to one slot",
    "slot-owner": (
        "a token is written where its sequence's block table says, nowhere else"
    ),
    "block-table": (
        "a sequence has the blocks that its tokens need: real ones, each once"
    ),
    "positions": "positions of a sequence run on from what is computed, without a gap",
    "cu-seqlens": (
        "cu_seqlens_q and cu_seqlens_k are the sums of the sequences' lengths"
    ),
    "mask-rows": "the mask marks as many tokens as there are embedding rows",
    "mask-place": "the mask marks the tokens of the image prefix and no others",
    "embeds-width": "embeddings are as wide as the model's hidden size",
    "written-once": "the keys and values of a token are written once",
}


@dataclass(frozen=True)
class Violation:
    """One broken invariant, with the numbers."""

    invariant: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail}"


class ContractError(RuntimeError):
    """A step breaks the contract."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = list(violations)


@dataclass(frozen=True)
class SequenceView:
    """Tokens ``start`` to ``end`` (excluded) of one sequence in the step.

    ``embeddings``: length of its image prefix; None where images may stand anywhere.
    ``life`` changes when the sequence was preempted and starts again."""

    name: str
    start: int
    end: int
    block_table: Sequence[int] | None = None
    embeddings: int | None = None
    life: int = 0


@dataclass(frozen=True)
class StepView:
    """One step as the model is about to see it; N tokens of all sequences, one after
    another.

    ``rows`` x ``width`` is the shape of the embeddings that go in where ``mask`` is
    true; ``inputs_embeds`` the shape of what the model is given, (N, hidden)."""

    sequences: Sequence[SequenceView]
    block_size: int = 0
    num_blocks: int = 0
    num_tokens: int | None = None
    positions: Sequence[int] | None = None
    slot_mapping: Sequence[int] | None = None
    cu_seqlens_q: Sequence[int] | None = None
    cu_seqlens_k: Sequence[int] | None = None
    mask: Sequence[int] | None = None
    rows: int | None = None
    width: int = 0
    hidden_size: int = 0
    inputs_embeds: tuple[int, int] | None = None

    @property
    def scheduled(self) -> int:
        return sum(seq.end - seq.start for seq in self.sequences)

    def slots_of(self, seq: SequenceView) -> list[int] | None:
        """Where the block table says that its new tokens belong; None: not known."""
        if seq.block_table is None or not self.block_size:
            return None
        size, table = self.block_size, seq.block_table
        if -(-seq.end // size) > len(table):
            return None
        return [table[p // size] * size + p % size for p in range(seq.start, seq.end)]


def check(step: StepView) -> list[Violation]:
    """Every invariant that ``step`` breaks by itself, the plainest first."""
    return [
        *_lengths(step),
        *_tables(step),
        *_slots(step),
        *_order(step),
        *_embeddings(step),
    ]


def _lengths(step: StepView) -> Iterator[Violation]:
    wanted = step.scheduled
    found = {
        "tokens": step.num_tokens,
        "positions": _len(step.positions),
        "mask": _len(step.mask),
    }
    for name, count in found.items():
        if count is not None and count != wanted:
            yield Violation("lengths", f"{count} {name} for {wanted} scheduled tokens")
    if step.inputs_embeds is not None and step.inputs_embeds[0] != wanted:
        yield Violation(
            "lengths", f"inputs_embeds of {step.inputs_embeds[0]} rows for {wanted}"
        )
    if step.slot_mapping is not None and len(step.slot_mapping) != wanted:
        text = f"slot_mapping has {len(step.slot_mapping)} entries for {wanted} tokens"
        yield Violation("slot-count", text)


def _tables(step: StepView) -> Iterator[Violation]:
    for seq in step.sequences:
        if seq.block_table is None or not step.block_size:
            continue
        needed = -(-seq.end // step.block_size)
        table = list(seq.block_table[:needed])
        if len(table) < needed:
            text = f"sequence {seq.name}: {len(table)} blocks for {seq.end} tokens"
            yield Violation("block-table", f"{text}, {needed} are needed")
        elif len(set(table)) < len(table):
            yield Violation(
                "block-table", f"sequence {seq.name}: a block twice in {table}"
            )
        elif step.num_blocks and any(
            not 0 < block < step.num_blocks for block in table
        ):
            yield Violation(
                "block-table", f"sequence {seq.name}: no such block in {table}"
            )


def _slots(step: StepView) -> Iterator[Violation]:
    slots = step.slot_mapping
    if slots is None:
        return
    size = step.block_size
    if step.num_blocks and size:
        wrong = [slot for slot in slots if not size <= slot < step.num_blocks * size]
        if wrong:
            yield Violation(
                "slot-bounds", f"slot {wrong[0]} of {step.num_blocks} x {size}"
            )
    if len(set(slots)) < len(slots):
        twice = next(slot for slot in slots if list(slots).count(slot) > 1)
        yield Violation("slot-unique", f"slot {twice} is written by two tokens")
    if len(slots) != step.scheduled:
        return  # which slot belongs to which token is not known then
    at = 0
    for seq in step.sequences:
        given = list(slots[at : at + seq.end - seq.start])
        at += seq.end - seq.start
        wanted = step.slots_of(seq)
        if wanted is None or wanted == given:
            continue
        index = next(
            i for i, (a, b) in enumerate(zip(given, wanted, strict=True)) if a != b
        )
        where = f"sequence {seq.name}: token {seq.start + index}"
        yield Violation(
            "slot-owner", f"{where} goes to slot {given[index]}, not {wanted[index]}"
        )


def _order(step: StepView) -> Iterator[Violation]:
    if step.positions is not None and len(step.positions) == step.scheduled:
        at = 0
        for seq in step.sequences:
            given = list(step.positions[at : at + seq.end - seq.start])
            at += seq.end - seq.start
            if given != list(range(seq.start, seq.end)):
                text = (
                    f"sequence {seq.name}: {given[:4]}… where {seq.start} to "
                    f"{seq.end} belong"
                )
                yield Violation("positions", text)
    sums = {"cu_seqlens_q": [0], "cu_seqlens_k": [0]}
    for seq in step.sequences:
        sums["cu_seqlens_q"].append(sums["cu_seqlens_q"][-1] + seq.end - seq.start)
        sums["cu_seqlens_k"].append(sums["cu_seqlens_k"][-1] + seq.end)
    for name, held in (
        ("cu_seqlens_q", step.cu_seqlens_q),
        ("cu_seqlens_k", step.cu_seqlens_k),
    ):
        if held is not None and list(held) != sums[name]:
            yield Violation(
                "cu-seqlens", f"{name} is {list(held)[-3:]}, not {sums[name][-3:]}"
            )


def _embeddings(step: StepView) -> Iterator[Violation]:
    if step.mask is not None and step.rows is not None:
        marked = sum(bool(bit) for bit in step.mask)
        if marked != step.rows:
            yield Violation(
                "mask-rows", f"{marked} tokens are marked for {step.rows} rows"
            )
    if step.mask is not None and len(step.mask) == step.scheduled:
        at = 0
        for seq in step.sequences:
            if seq.embeddings is not None:
                given = [bool(bit) for bit in step.mask[at : at + seq.end - seq.start]]
                if given != [p < seq.embeddings for p in range(seq.start, seq.end)]:
                    text = f"sequence {seq.name}: its prefix ends at {seq.embeddings}"
                    yield Violation(
                        "mask-place", f"{text}, {sum(given)} tokens are marked"
                    )
            at += seq.end - seq.start
    if step.hidden_size:
        shapes = {"rows": step.width if step.rows else 0}
        shapes["inputs_embeds"] = step.inputs_embeds[1] if step.inputs_embeds else 0
        for name, width in shapes.items():
            if width and width != step.hidden_size:
                text = f"{name} are {width} wide, the model {step.hidden_size}"
                yield Violation("embeds-width", text)


def _len(values: Sequence[int] | None) -> int | None:
    return None if values is None else len(values)


@dataclass
class StepHistory:
    """What was written so far: what one step alone cannot show.

    ``check`` once a step, in the order in which they run; ``forget`` a sequence that
    has ended. A shared prefix is not written again: a sequence may start anywhere."""

    written: dict[str, tuple[int, int]] = field(default_factory=dict)

    def check(self, step: StepView) -> list[Violation]:
        """What ``step`` breaks, by itself and after what was written before."""
        found = check(step)
        for seq in step.sequences:
            life, end = self.written.get(seq.name, (-1, 0))
            if life == seq.life and seq.start != end:
                text = (
                    f"sequence {seq.name}: token {seq.start} comes when {end} are "
                    "written"
                )
                found.append(Violation("written-once", text))
            self.written[seq.name] = (seq.life, seq.end)
        return found

    def forget(self, name: str) -> None:
        self.written.pop(name, None)
