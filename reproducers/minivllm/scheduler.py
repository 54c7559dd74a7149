"""What runs next: a step of prefill chunks, or one token for every running sequence."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .caches import BlockManager
from .config import EngineConfig
from .sequence import ImageSequence, Sequence


@dataclass(frozen=True)
class Chunk:
    """Tokens ``start`` to ``end`` (excluded) of a sequence."""

    seq: Sequence
    start: int
    end: int

    @property
    def samples(self) -> bool:
        """The step's last token is the sequence's last: a new one can be sampled."""
        return self.end == self.seq.num_tokens


@dataclass(frozen=True)
class Step:
    """``prefill``: chunks of prompts, all with images or all without; else a decode
    step."""

    chunks: list[Chunk]
    prefill: bool

    @property
    def with_images(self) -> bool:
        return self.prefill and isinstance(self.chunks[0].seq, ImageSequence)


class Scheduler:
    """First come, first served; prefill before decode; the youngest is preempted
    first."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.blocks = BlockManager(
            config.usable_blocks, config.block_size, sharing=config.prefix_caching
        )
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.failed: list[Sequence] = []
        self.preemptions = 0

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def schedule(self) -> Step | None:
        """The next step; its tokens count as computed from now on. None: nothing to do.

        Raises:
            AssertionError: fault kv-budget: a sequence outgrew the whole cache.
        """
        chunks = self._prefill()
        if chunks:
            return Step(chunks, prefill=True)
        chunks = list(self._decode())
        return Step(chunks, prefill=False) if chunks else None

    def schedule_ahead(self) -> Step | None:
        """A prefill step that can be prepared while another one has not yet run."""
        chunks = self._prefill()
        return Step(chunks, prefill=True) if chunks else None

    def _prefill(self) -> list[Chunk]:
        budget = self.config.max_batched_tokens
        chunks: list[Chunk] = []
        for seq in self._candidates():
            if chunks and isinstance(seq, ImageSequence) != isinstance(
                chunks[0].seq, ImageSequence
            ):
                break  # a step is of one kind: text keeps its own path, by token id
            end = min(seq.num_tokens, seq.num_computed + budget)
            chunks.append(Chunk(seq, seq.num_computed, end))
            budget -= end - seq.num_computed
            seq.num_computed = end
            seq.prefilling = end < seq.num_tokens
            if not budget:
                break
        return chunks

    def _candidates(self) -> Iterator[Sequence]:
        """Prompts under way, then new ones, each admitted when it is asked for."""
        yield from [seq for seq in self.running if seq.prefilling]
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            seq = self.waiting[0]
            if seq.num_blocks > self.blocks.usable:  # only with the fault kv-budget
                self.waiting.popleft()
                self.failed.append(seq)
                continue
            if not self.blocks.can_allocate(seq):
                return
            self.blocks.allocate(seq)
            self.running.append(self.waiting.popleft())
            yield seq

    def _decode(self) -> Iterator[Chunk]:
        for seq in list(self.running):
            if seq not in self.running:
                continue  # preempted meanwhile
            while not self.blocks.can_append(seq):
                # LMDeploy 0.7.0.post3 has this assertion; it ends the engine's loop.
                assert len(self.running) > 1, (
                    "len(running) > 0: nothing is left to preempt"
                )
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest is seq:
                    break
            else:
                self.blocks.append(seq)
                seq.num_computed = seq.num_tokens
                yield Chunk(seq, seq.num_tokens - 1, seq.num_tokens)

    def _preempt(self, seq: Sequence) -> None:
        """Give its blocks back; it comes again as a longer prompt."""
        self.running.remove(seq)
        self.blocks.release(seq)
        seq.num_computed, seq.prefilling = 0, True
        seq.preempted += 1
        self.waiting.appendleft(seq)
        self.preemptions += 1

    def computed(self, step: Step) -> None:
        """The step has run: full blocks can be shared."""
        for chunk in step.chunks:
            if chunk.seq in self.running:
                self.blocks.commit(chunk.seq, chunk.end)

    def finish(self, seq: Sequence, reason: str, error: str = "") -> None:
        """Ended, aborted or failed: whatever it has is given back. Does nothing the
        second time."""
        if seq in self.running:
            self.running.remove(seq)
            self.blocks.release(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        if not seq.finish_reason:
            seq.finish_reason, seq.error = reason, error
