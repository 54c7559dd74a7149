"""Minimal reproducer of vLLM's ghost key (vllm#43941), with the installed engine's own
LRUCache.

Run it with the engine's interpreter: ``python ghost_key.py``. It takes well under a
second, needs no model and no server, and prints one JSON object of facts. Python and
the engine's environment are all it uses.

The class is loaded from the installed ``vllm/utils/cache.py`` without importing all of
vLLM: ``vllm`` and ``vllm.utils`` are put in as bare packages. An import hook that
patches the class (a mitigation) still applies."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIMIT = 10_000
"""Evictions after which the loop counts as endless; the cache holds three items."""


class Endless(Exception):
    """The eviction loop did not end."""


def _find_vllm() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        sys.exit("vllm is not installed in this environment")
    return Path(spec.origin).parent


def _load_class() -> Any:
    """The engine's LRUCache; from ``vllm.utils`` as a whole where it has no file of its
    own."""
    root = _find_vllm()
    if (root / "utils" / "cache.py").is_file():
        for name, folder in (("vllm", root), ("vllm.utils", root / "utils")):
            package = types.ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
        return importlib.import_module("vllm.utils.cache").LRUCache
    return importlib.import_module("vllm.utils").LRUCache


def _fixed_touch(cache: Any, key: str) -> None:
    """First part of the fix: only a key that is there has a place in the order."""
    if key in cache:
        cache._LRUCache__order.move_to_end(key)


def _fixed_popitem(original: Callable[..., Any]) -> Callable[..., Any]:
    """Second part of the fix: drop order-only keys before the oldest one is chosen."""

    def popitem(cache: Any, remove_pinned: bool = False) -> Any:
        for key in list(cache._LRUCache__order):
            if key not in cache:
                del cache._LRUCache__order[key]
        return original(cache, remove_pinned)

    return popitem


def variant(base: Any, *, touch: bool, popitem: bool) -> Any:
    """A subclass that counts evictions, with none, one or both parts of the fix."""
    evict = _fixed_popitem(base.popitem) if popitem else base.popitem

    class CountedCache(base):
        evictions = 0

        def popitem(self, remove_pinned: bool = False) -> Any:
            self.evictions += 1
            if self.evictions > _LIMIT:
                raise Endless
            return evict(self, remove_pinned)

    if touch:
        CountedCache.touch = _fixed_touch
    return CountedCache


def ends(cls: Any) -> bool:
    """Whether inserting into a full cache ends after a missing key was touched."""
    cache = cls(3)
    cache.touch("ghost")
    try:
        for key in "abcd":
            cache[key] = key
    except Endless:
        return False
    return len(cache) == 3


def _article_test(cls: Any) -> dict[str, bool]:
    """The unit test of the article of 2026-07-02, its operations in its order, and one
    more insert.

    Its ghost key is put in after a real one: the last insert evicts that, and ends.
    """
    cache = cls(100, getsizeof=lambda _: 10)
    cache["real_key"] = "real_value"
    cache._LRUCache__order["ghost_key"] = None
    ended = {"article_test_ends": False, "insert_after_article_test_ends": False}
    try:
        for i in range(9):
            cache[f"key_{i}"] = f"value_{i}"
        cache["new_key"] = "new_value"
        ended["article_test_ends"] = True
        cache["one_more"] = "value"
        ended["insert_after_article_test_ends"] = True
    except Endless:
        pass
    return ended


def facts() -> dict[str, Any]:
    base = _load_class()
    cache = variant(base, touch=False, popitem=False)(3)
    cache["a"] = 1
    cache.touch("ghost")
    inserted = "ghost" in cache.order and "ghost" not in cache
    cache.touch("a")  # now the ghost, if there is one, is the oldest
    before = cache.currsize
    oldest, value = cache.popitem()
    return {
        "file": str(getattr(sys.modules[base.__module__], "__file__", "")),
        "cachetools": importlib.import_module("importlib.metadata").version(
            "cachetools"
        ),
        "touch_inserts_missing_key": inserted,
        "popitem_returns": f"{oldest}={value}",
        "popitem_picks_ghost": oldest == "ghost",
        "currsize_shrinks": cache.currsize < before,
        "eviction_ends": ends(variant(base, touch=False, popitem=False)),
        "eviction_ends_with_touch_fix": ends(variant(base, touch=True, popitem=False)),
        "eviction_ends_with_popitem_fix": ends(
            variant(base, touch=False, popitem=True)
        ),
        "eviction_ends_with_both": ends(variant(base, touch=True, popitem=True)),
        **_article_test(variant(base, touch=False, popitem=False)),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
