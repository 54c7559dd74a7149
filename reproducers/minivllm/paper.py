"""A runner of plain Python in place of the model: the real engine without torch, in
microseconds.

Its cache holds what each token *is*, not keys and values; a sampled token is a hash of
all that its sequence's block table leads to. So a wrong slot, a wrongly shared block or
a misplaced embedding changes the answer, as it would with a model. For tests, and for
``minivllm.server --paper``."""

import hashlib
from collections.abc import Sequence as Seq

from .batch import Batch, BatchBuilder, Guard
from .config import EngineConfig
from .engine import Engine
from .sequence import Image

VOCABULARY = 50
Content = tuple[object, ...]


def next_token(content: Seq[Content]) -> int:
    """What the paper model says after ``content``."""
    digest = hashlib.blake2b(repr(list(content)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def rows_of(images: Seq[Image]) -> list[Content]:
    """The embeddings of ``images``."""
    return [
        (i.digest, i.rows, i.cols, place) for i in images for place in range(i.tokens)
    ]


class PaperRunner:
    """``engine.Runner``: keeps the engine's contract checks, and fails as torch
    would."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.builder = BatchBuilder(config)
        self.guard = Guard(config)
        self.cache: dict[int, Content] = {}
        self.steps = 0

    def begin(self, batch: Batch) -> None:
        """There is no device."""

    def run(self, batch: Batch) -> list[int]:
        self.steps += 1
        rows = self._rows(batch)
        if rows is None:
            self.guard.check(batch)
        else:
            self.guard.check(batch, (len(rows), 1), (batch.num_tokens, 1), 1)
        content = self._merged(batch, rows)
        if len(batch.slot_mapping) != len(content):
            raise AssertionError("Slot mapping size must match number of tokens")
        self.cache.update(zip(batch.slot_mapping, content, strict=True))
        tokens = []
        for chunk, table in zip(batch.step.chunks, batch.block_tables, strict=True):
            if chunk.samples:
                size = self.config.block_size
                slots = [table[p // size] * size + p % size for p in range(chunk.end)]
                tokens.append(
                    next_token([self.cache.get(slot, ("?",)) for slot in slots])
                )
        return tokens

    def _rows(self, batch: Batch) -> list[Content] | None:
        if batch.mask is None:
            return None
        return [
            row
            for seq, start, end in batch.spans
            for row in rows_of(seq.images)[start:end]
        ]

    def _merged(self, batch: Batch, rows: list[Content] | None) -> list[Content]:
        """As ``masked_scatter``: the rows go where the mask says, one after another."""
        if rows is None or batch.mask is None:
            return [(token,) for token in batch.token_ids]
        if sum(batch.mask) > len(rows):
            raise RuntimeError("Number of elements of source < number of ones in mask")
        left = iter(rows)
        return [
            next(left) if marked else (token,)
            for token, marked in zip(batch.token_ids, batch.mask, strict=True)
        ]


def paper_engine(config: EngineConfig) -> Engine:
    runner = PaperRunner(config)
    return Engine(config, runner, lambda: runner)
