"""What is kept between requests: blocks of the KV cache, shared by equal prefixes, and
images.

There are two image caches: the front knows which images the engine holds, and sends
only their name. Both are the same LRU and see the same requests in the same order, so
they hold the same images; as vLLM's MultiModalProcessorSenderCache and
MultiModalReceiverCache do (vllm/multimodal/cache.py)."""

from collections import OrderedDict
from dataclasses import replace

from .sequence import Image, Sequence

NULL_BLOCK = 0
"""Never handed out: warm-up and padded rows write there."""


class BlockManager:
    """``usable`` blocks of ``block_size`` tokens, numbered from 1.

    A free block keeps its content and its key until it is handed out again, so that a
    later request with the same prefix finds it; the one that is free longest goes
    first."""

    def __init__(self, usable: int, block_size: int, *, sharing: bool = True) -> None:
        self.usable = usable
        self.block_size = block_size
        self.sharing = sharing
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, usable + 1))
        self.users: dict[int, int] = {}
        self.by_key: dict[bytes, int] = {}
        self.key_of: dict[int, bytes] = {}

    def cached_blocks(self, seq: Sequence) -> list[int]:
        """Blocks that hold the longest known prefix of ``seq``, its last token never
        included."""
        found: list[int] = []
        if self.sharing:
            for index in range((seq.num_tokens - 1) // self.block_size):
                block = self.by_key.get(seq.key(index))
                if block is None:
                    break
                found.append(block)
        return found

    def can_allocate(self, seq: Sequence) -> bool:
        cached = self.cached_blocks(seq)
        waking = sum(block in self.free for block in cached)
        return seq.num_blocks - len(cached) + waking <= len(self.free)

    def allocate(self, seq: Sequence) -> None:
        """Blocks for all of ``seq``'s tokens, known prefixes shared; needs
        ``can_allocate``."""
        cached = self.cached_blocks(seq)
        for block in cached:
            self.free.pop(block, None)
            self.users[block] = self.users.get(block, 0) + 1
        seq.block_table = [*cached]
        seq.num_computed = seq.num_cached = len(cached) * self.block_size
        while len(seq.block_table) < seq.num_blocks:
            seq.block_table.append(self._take())

    def can_append(self, seq: Sequence) -> bool:
        return seq.num_blocks - len(seq.block_table) <= len(self.free)

    def append(self, seq: Sequence) -> None:
        """Blocks for tokens that came since; needs ``can_append``."""
        while len(seq.block_table) < seq.num_blocks:
            seq.block_table.append(self._take())

    def commit(self, seq: Sequence, computed: int) -> None:
        """The full blocks of the first ``computed`` tokens can be found by others from
        now on."""
        if not self.sharing:
            return
        for index in range(computed // self.block_size):
            block, key = seq.block_table[index], seq.key(index)
            if block not in self.key_of and key not in self.by_key:
                self.by_key[key] = block
                self.key_of[block] = key

    def release(self, seq: Sequence) -> None:
        """The last blocks first: a prefix is worth more than what follows it."""
        for block in reversed(seq.block_table):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.free[block] = None
        seq.block_table = []

    def _take(self) -> int:
        block, _ = self.free.popitem(last=False)
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.by_key[key]
        self.users[block] = 1
        return block


class ImageCache:
    """Images by digest; the least recently used go when there are more than
    ``capacity`` tokens."""

    def __init__(self, capacity: int, faults: frozenset[str] = frozenset()) -> None:
        self.capacity = capacity
        self.ghosts = "ghost-key-lru" in faults
        self.items: dict[str, Image] = {}
        self.order: OrderedDict[str, None] = OrderedDict()
        self.size = 0
        self.queries = self.hits = self.evictions = 0

    def touch(self, digest: str) -> None:
        # The ghost: a place in the order, but no item.
        if digest in self.items or self.ghosts:
            self.order[digest] = None
            self.order.move_to_end(digest)

    def put(self, image: Image) -> None:
        if image.digest in self.items or image.tokens > self.capacity:
            return
        while self.size + image.tokens > self.capacity:
            self.pop_oldest()
        self.items[image.digest] = image
        self.order[image.digest] = None
        self.size += image.tokens

    def pop_oldest(self) -> None:
        """Make room. With a ghost at the front nothing is removed, and ``put`` asks for
        ever."""
        self.evictions += 1
        digest = next(iter(self.order))
        image = self.items.pop(digest, None)
        if image is not None:
            del self.order[digest]
            self.size -= image.tokens

    def to_send(self, image: Image) -> Image:
        """Front: what goes to the engine, without its data if the engine holds it
        already."""
        self.queries += 1
        self.touch(image.digest)
        if image.digest in self.items:
            self.hits += 1
            return replace(image, data=b"")
        self.put(image)
        return image

    def received(self, image: Image) -> Image:
        """Engine: the image with its data. Raises AssertionError if it was promised but
        is not."""
        self.touch(image.digest)
        if image.data:
            self.put(image)
            return image
        found = self.items.get(image.digest)
        assert found is not None, f"Expected a cached item for mm_hash={image.digest!r}"
        return found
