"""The two image caches: the front knows which images the engine holds, and sends only their name.

Both are the same LRU and see the same requests in the same order, so they hold the same images; as
vLLM's MultiModalProcessorSenderCache and MultiModalReceiverCache do (vllm/multimodal/cache.py).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from .sequence import Image


class ImageCache:
    """Images by digest; the least recently used go when there are more than ``capacity`` tokens."""

    def __init__(self, capacity: int, faults: frozenset[str] = frozenset()) -> None:
        self.capacity = capacity
        self.ghosts = "ghost-key-lru" in faults
        self.items: dict[str, Image] = {}
        self.order: OrderedDict[str, None] = OrderedDict()
        self.size = 0
        self.queries = self.hits = self.evictions = 0

    def touch(self, digest: str) -> None:
        if digest in self.items or self.ghosts:  # the ghost: a place in the order, but no item
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
        """Make room. With a ghost at the front nothing is removed, and ``put`` asks for ever."""
        self.evictions += 1
        digest = next(iter(self.order))
        image = self.items.pop(digest, None)
        if image is not None:
            del self.order[digest]
            self.size -= image.tokens

    def to_send(self, image: Image) -> Image:
        """Front: what goes to the engine, without its data if the engine holds it already."""
        self.queries += 1
        self.touch(image.digest)
        if image.digest in self.items:
            self.hits += 1
            return replace(image, data=b"")
        self.put(image)
        return image

    def received(self, image: Image) -> Image:
        """Engine: the image with its data. Raises AssertionError if it was promised but is not."""
        self.touch(image.digest)
        if image.data:
            self.put(image)
            return image
        found = self.items.get(image.digest)
        assert found is not None, f"Expected a cached item for mm_hash={image.digest!r}"
        return found
