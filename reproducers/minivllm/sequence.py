"""A request on its way through the engine: its tokens, its blocks, how far it has
come."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from .config import PAD_RANGE


@dataclass(frozen=True)
class Image:
    """An encoded picture and the grid of embeddings that it becomes: ``rows`` x
    ``cols``."""

    data: bytes
    rows: int
    cols: int
    digest: str = ""

    @classmethod
    def of(cls, data: bytes, rows: int, cols: int) -> Image:
        return cls(data, rows, cols, hashlib.sha256(data).hexdigest())

    @property
    def tokens(self) -> int:
        return self.rows * self.cols


@dataclass(eq=False)
class Sequence:
    """Text only. ``token_ids`` grows with every sampled token.

    Attributes:
        num_computed: tokens whose keys and values are in the cache, or are scheduled to
            be.
        num_cached: of these, how many a shared prefix gave at admission.
        preempted: how often it had to start again.
        prefilling: the next step is a chunk of the prompt, not one sampled token.
    """

    id: int
    token_ids: list[int]
    block_size: int
    max_tokens: int = 16
    temperature: float = 0.0
    ignore_eos: bool = False
    num_prompt: int = 0
    num_computed: int = 0
    num_cached: int = 0
    prefilling: bool = True
    preempted: int = 0
    block_table: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    error: str = ""
    finish_reason: str = ""

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)

    @property
    def num_vision(self) -> int:
        """Embeddings in front of the text."""
        return 0

    @property
    def num_tokens(self) -> int:
        return self.num_vision + len(self.token_ids)

    @property
    def num_blocks(self) -> int:
        """Blocks that ``num_tokens`` tokens need."""
        return -(-self.num_tokens // self.block_size)

    @property
    def last_block_num_tokens(self) -> int:
        """Tokens in the last of these blocks, 1 to ``block_size``."""
        return self.num_tokens - (self.num_blocks - 1) * self.block_size

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    def slots(self, start: int, end: int) -> Iterator[int]:
        """Places in the cache of the tokens ``start`` to ``end`` (excluded)."""
        size = self.block_size
        for index in range(start // size, -(-end // size)):
            last = index == self.num_blocks - 1
            stop = min(self.last_block_num_tokens if last else size, end - index * size)
            first = self.block_table[index] * size
            yield from range(first + max(0, start - index * size), first + stop)

    def content(self, start: int, end: int) -> bytes:
        """What the tokens ``start`` to ``end`` are: equal contents may share a
        block."""
        return b"".join(b"t%d," % token for token in self.token_ids[start:end])

    def key(self, index: int) -> bytes:
        """Prefix key of the full block ``index``: its own content and all that is
        before it."""
        while len(self.keys) <= index:
            done = len(self.keys)
            content = self.content(done * self.block_size, (done + 1) * self.block_size)
            before = self.keys[-1] if self.keys else b""
            self.keys.append(hashlib.blake2b(before + content, digest_size=16).digest())
        return self.keys[index]


@dataclass(eq=False)
class ImageSequence(Sequence):
    """Images as a prefix of embeddings in front of the text ids; decode never sees them
    again.

    ``rows``: the embeddings (T_vis, hidden), kept while the prefix is being prefilled.
    """

    images: Seq[Image] = ()
    faults: frozenset[str] = frozenset()
    rows: Any = None

    @property
    def num_vision(self) -> int:
        return sum(image.tokens for image in self.images)

    @property
    def last_block_num_tokens(self) -> int:
        if "slot-mapping" in self.faults:
            text = len(self.token_ids)
            return text - (-(-text // self.block_size) - 1) * self.block_size
        return super().last_block_num_tokens

    def content(self, start: int, end: int) -> bytes:
        vision = self.num_vision
        parts = [self._place(position) for position in range(start, min(end, vision))]
        text = super().content(max(0, start - vision), max(0, end - vision))
        return b"".join(parts) + text

    def _place(self, position: int) -> bytes:
        """One embedding of the prefix: which image, of which shape, and which row of
        it."""
        for image in self.images:
            if position < image.tokens:
                break
            position -= image.tokens
        if "pad-value-key" in self.faults:
            return b"t%d," % (int(image.digest, 16) % PAD_RANGE)
        return f"i{image.digest}:{image.rows}x{image.cols}:{position},".encode()
