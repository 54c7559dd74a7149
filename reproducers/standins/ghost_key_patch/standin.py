"""Stand-in: the two-part fix of vllm#43595, applied to the engine's LRUCache as it is imported.

Only ``LRUCache.touch`` and ``LRUCache.popitem`` change.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from mmrepro_boot import after_import


def patch(module: ModuleType) -> None:
    cls: Any = module.LRUCache
    original = cls.popitem

    def touch(self: Any, key: Any) -> None:
        if key in self:
            self._LRUCache__order.move_to_end(key)

    def popitem(self: Any, remove_pinned: bool = False) -> Any:
        for key in [k for k in self._LRUCache__order if k not in self]:
            del self._LRUCache__order[key]
        return original(self, remove_pinned)

    cls.touch = touch
    cls.popitem = popitem
    print("mmrepro: LRUCache.touch and LRUCache.popitem are patched", file=sys.stderr, flush=True)


after_import("vllm.utils.cache", patch)
