"""Stand-in: the two-part fix of vllm#43595, applied to the engine's LRUCache as it is imported.

Put in front with PYTHONPATH; Python imports ``sitecustomize`` by itself in every process of the
engine. Only ``LRUCache.touch`` and ``LRUCache.popitem`` change.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "vllm.utils.cache"


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


class PatchingLoader(Loader):
    """Lets the real loader do its work, then patches."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        patch(module)


class Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = PatchingLoader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
