"""Stand-in: the two-part fix of vllm#43595, applied to the engine's LRUCache as it is
imported.

Only ``LRUCache.touch`` and ``LRUCache.popitem`` change; ``MMREPRO_GHOST_KEY_PATCH``
names the ones that do, separated by commas (both, if it is not set)."""

import os
import sys
from types import ModuleType
from typing import Any

from mmrepro_boot import after_import

_BOTH = "touch,popitem"
_ENV = "MMREPRO_GHOST_KEY_PATCH"


def parts() -> list[str]:
    chosen = os.environ.get(_ENV, _BOTH).split(",")
    if not set(chosen) <= set(_BOTH.split(",")):
        raise ValueError(f"{_ENV} may name {_BOTH}, not {chosen}")
    return chosen


_CHOSEN = parts()


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

    fixed = {"touch": touch, "popitem": popitem}
    for name in _CHOSEN:
        setattr(cls, name, fixed[name])
        print(f"mmrepro: LRUCache.{name} is patched", file=sys.stderr, flush=True)


after_import("vllm.utils.cache", patch)
