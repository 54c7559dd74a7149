"""The desynchronised multimodal caches on a live server: what one sees who does not drive it."""

from __future__ import annotations

from mmrepro.engines.vllm import VllmEngine
from mmrepro.scenario import LiveFacts
from mmrepro.signature import Checker, Condition, Finding
from mmrepro.signature import live_server as live


def live_conditions(missing_item: Checker) -> list[Condition]:
    """By the log: which image fails is not known to one who does not send it."""
    return [
        *live.some_requests_fail(VllmEngine.metrics, VllmEngine.core_role),
        Condition(
            "receiver-misses",
            "cause",
            "EngineCore logs that it does not hold an image that it was promised",
            missing_item,
        ),
    ]


def without_cache(facts: LiveFacts) -> Finding | None:
    """Not exposed: the server's options turn the caches off."""
    if facts.option("--mm-processor-cache-gb") in ("0", "0.0"):
        return Finding.of(False, "the multimodal processor cache is off on this server")
    return None
