"""The desynchronised multimodal caches on a live server: what one sees who does not drive it."""

from __future__ import annotations

from mmrepro import checks
from mmrepro.engines.vllm import VllmEngine
from mmrepro.scenario import LiveFacts
from mmrepro.signature import Checker, Condition, Finding

FAILED = "failed-500"
"""Lines of the access log: how a live server shows that requests fail."""


def live_conditions(missing_item: Checker) -> list[Condition]:
    """By the log: which image fails is not known to one who does not send it."""
    counters = {k: VllmEngine.metrics[k] for k in ("finished", "generation_tokens")}
    return [
        Condition(
            "requests-fail",
            "symptom",
            "requests end with HTTP 500, as the access log shows",
            lambda e: checks.logged(e, FAILED, "requests that got HTTP 500"),
        ),
        Condition(
            "others-answered",
            "symptom",
            "the engine works otherwise: a small text-only request is answered",
            lambda e: checks.engine_works(e, counters, VllmEngine.core_role),
        ),
        Condition(
            "endpoints-green",
            "symptom",
            "/health and /v1/models answer 200",
            checks.endpoints_green,
        ),
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
