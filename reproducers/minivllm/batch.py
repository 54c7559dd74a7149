"""From a step to the numbers that the model is given. Plain lists: nothing here needs
torch."""

import logging
from dataclasses import dataclass, field
from typing import Any

from .config import EngineConfig
from .contract import ContractError, SequenceView, StepHistory, StepView
from .scheduler import Step
from .sequence import ImageSequence

_Shape = tuple[int, int]

log = logging.getLogger(__name__)


@dataclass
class Batch:
    """A step, flattened: all lists of tokens have one entry for each of its N tokens.

    Attributes:
        token_ids: 0 where an embedding stands.
        positions: in their sequence, embeddings counted.
        slot_mapping: where keys and values go, block * block_size + offset.
        cu_seqlens_q, cu_seqlens_k: sums of the sequences' new tokens, and of all up to
            there.
        context_lens: tokens of each sequence that attention sees, the new ones
            included.
        mask: 1 where an embedding stands; None in a step without images.
        on_device: the mask there, once a runner has queued its copy (a GPU's).
        last: index of each sampling sequence's last token.
    """

    step: Step
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slot_mapping: list[int] = field(default_factory=list)
    cu_seqlens_q: list[int] = field(default_factory=lambda: [0])
    cu_seqlens_k: list[int] = field(default_factory=lambda: [0])
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    mask: memoryview | None = None
    on_device: Any = None
    last: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @property
    def spans(self) -> list[tuple[ImageSequence, int, int]]:
        """Rows (from, to) of each sequence's embeddings that this step needs."""
        found = []
        for chunk in self.step.chunks if self.mask is not None else ():
            seq = chunk.seq
            assert isinstance(seq, ImageSequence)
            if chunk.start < seq.num_vision:
                found.append((seq, chunk.start, min(chunk.end, seq.num_vision)))
        return found

    def view(
        self,
        config: EngineConfig,
        rows: _Shape | None = None,
        inputs_embeds: _Shape | None = None,
        hidden: int = 0,
    ) -> StepView:
        """For the contract; the shapes of the embeddings that go in, and of all the
        model gets."""
        count, width = rows or (None, 0)
        return StepView(
            sequences=[
                SequenceView(
                    name=str(chunk.seq.id),
                    start=chunk.start,
                    end=chunk.end,
                    block_table=table,
                    embeddings=chunk.seq.num_vision,
                    life=chunk.seq.preempted,
                )
                for chunk, table in zip(
                    self.step.chunks, self.block_tables, strict=True
                )
            ],
            block_size=config.block_size,
            num_blocks=config.num_blocks,
            num_tokens=self.num_tokens,
            positions=self.positions,
            slot_mapping=self.slot_mapping,
            cu_seqlens_q=self.cu_seqlens_q,
            cu_seqlens_k=self.cu_seqlens_k,
            mask=None if self.mask is None else list(self.mask),
            rows=count,
            width=width,
            hidden_size=hidden,
            inputs_embeds=inputs_embeds,
        )


class BatchBuilder:
    """Flattens steps.

    Args:
        mask: fault reused-mask: the one buffer of all masks, in memory that a GPU
            copies from.
    """

    def __init__(self, config: EngineConfig, mask: memoryview | None = None) -> None:
        self.config = config
        self._mask = mask or memoryview(bytearray(config.max_batched_tokens))

    def build(self, step: Step) -> Batch:
        batch = Batch(step)
        for chunk in step.chunks:
            seq, start, end = chunk.seq, chunk.start, chunk.end
            vision = seq.num_vision
            batch.token_ids += [0] * max(0, min(end, vision) - start)
            batch.token_ids += seq.token_ids[
                max(0, start - vision) : max(0, end - vision)
            ]
            batch.positions += range(start, end)
            if step.prefill:
                batch.slot_mapping += seq.slots(start, end)
            else:  # one token, in the last place of the last block
                first = seq.block_table[-1] * seq.block_size
                batch.slot_mapping.append(first + seq.last_block_num_tokens - 1)
            batch.cu_seqlens_q.append(batch.cu_seqlens_q[-1] + end - start)
            batch.cu_seqlens_k.append(batch.cu_seqlens_k[-1] + end)
            batch.context_lens.append(end)
            batch.block_tables.append(list(seq.block_table))
            if chunk.samples:
                batch.last.append(batch.num_tokens - 1)
        if step.with_images:
            batch.mask = self._written(step)
        return batch

    def _written(self, step: Step) -> memoryview:
        """The mask, in a buffer of its own; fault reused-mask: in the one of the step
        before."""
        bits = b"".join(
            b"\1" * (min(c.end, c.seq.num_vision) - min(c.start, c.seq.num_vision))
            + b"\0" * (max(c.end, c.seq.num_vision) - max(c.start, c.seq.num_vision))
            for c in step.chunks
        )
        if "reused-mask" not in self.config.faults:
            return memoryview(bits)
        self._mask[: len(bits)] = bits
        return self._mask[: len(bits)]


class Guard:
    """Holds batches against the contract just before they run, as the config asks
    for."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.history = StepHistory()

    def check(
        self,
        batch: Batch,
        rows: _Shape | None = None,
        inputs_embeds: _Shape | None = None,
        hidden: int = 0,
    ) -> None:
        """Of a step with images as the model is about to get it.

        Args:
            rows: shape of the embeddings that go in where the mask is true.
            inputs_embeds: shape of what the model is given in place of ids.
            hidden: the model's width, by its configuration.

        Raises:
            ContractError: the batch breaks the contract, and the config says "raise".
        """
        # Warm-up.
        if self.config.check_contract == "off" or batch.step.chunks[0].seq.id < 0:
            return
        found = self.history.check(batch.view(self.config, rows, inputs_embeds, hidden))
        for violation in found:
            log.error("contract violated: %s", violation)
        if found and self.config.check_contract == "raise":
            raise ContractError(found)
