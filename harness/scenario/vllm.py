"""What scenarios of vLLM share: its two multimodal caches, and how they part ways."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmrepro.evidence import Evidence, Missing
from mmrepro.probes.data import MetricsData
from mmrepro.scenario.base import Scenario
from mmrepro.scenario.bind import Check
from mmrepro.scenario.declare import cure, issue, pull, quote
from mmrepro.scenario.parts import Factor, LiveFacts
from mmrepro.signature import Finding, Outcome, Truth
from mmrepro.signature.digests import short_hash
from mmrepro.signature.views import Logs, Requests
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.pictures import Picture
from packaging.version import Version

CACHE_GB = 0.02
"""Small, so that a dozen images fill it. Both caches get it; the failure does not depend on it."""

TEXT_MARGIN = 150
"""Tokens that the long text leaves free: enough for the chat template, too few for an image."""

TOO_LONG, AGAIN = "image X, too long", "image X again, short"
"""The request that is refused, and the one after it with the same image."""

HANDLER = Version("0.14.0")
"""First release whose EngineCore survives the assertion (_handle_request_preproc_error in
v1/engine/core.py; absent in 0.13.0)."""

ASSERTION, DRIFT = "cached-item-assertion", "cache-drift"
MM_HASH = re.compile(r"mm_hash(?:es)?=\[?'([0-9a-f]{16,128})'")

# ------------------------------------------------------------------ what the engine says of itself

CONFIG = "engine-config"
CONFIG_LINES = {CONFIG: r"Initializing a V\d LLM engine \(v\S+ with config: "}
"""For ``log_patterns``: EngineCore's line about its configuration (v1/engine/core.py)."""
CACHE_CONFIG = "vllm:cache_config_info"
BATCH, GRAPH = "batch", "graph-batch"
BATCH_LINES = {
    BATCH: r"Running batch with cudagraph_mode: \w+",
    GRAPH: r"Running batch with cudagraph_mode: (?!NONE\b)\w+",
}
"""For ``log_patterns``: the model runner's line of each batch (DEBUG; 0.12.0 and 0.14.0 have it in
v1/worker/gpu_model_runner.py, 0.11.0 does not)."""


def logged_config(logs: Logs, field: str) -> str:
    """Value of ``field`` in the configuration that EngineCore logged when it started.

    Raises Missing: no such line, no such field in what was kept of it, or several values.
    """
    pattern = rf"(?:, | config: ){re.escape(field)}=([^,]*),"
    told = [match[1] for match in logs.search(CONFIG, pattern)]
    return _only(told, f"EngineCore did not log its {field}")


def cache_config(evidence: Evidence, field: str) -> str:
    """Value of ``field`` of the cache's configuration, as the engine's metrics have it."""
    told = [
        sample.labels[field]
        for _, data in evidence.results(MetricsData)
        for sample in data.samples
        if sample.name == CACHE_CONFIG and field in sample.labels
    ]
    return _only(told, f"{evidence.why_missing('metrics')}: no {field} in {CACHE_CONFIG}")


def _only(told: Sequence[str], otherwise: str) -> str:
    if len(set(told)) == 1:
        return told[0]
    raise Missing(f"several values: {', '.join(sorted(set(told)))}" if told else otherwise)


def config_says(field: str, value: str) -> Check:
    """EngineCore logged that its configuration has this value; needs ``CONFIG_LINES``."""

    def says(logs: Logs) -> Finding:
        told = logged_config(logs, field)
        return Finding.of(told == value, f"EngineCore runs with {field}={told}")

    return says


def cache_says(field: str, value: str) -> Check:
    """The engine's metrics say that its cache is configured so."""

    def says(evidence: Evidence) -> Finding:
        told = cache_config(evidence, field)
        return Finding.of(told == value, f"the engine's metrics say {field}={told}")

    return says


def graphs_ran(logs: Logs) -> Finding:
    """Batches were run by a captured graph; needs ``BATCH_LINES``."""
    batches, by_graph = logs.count(BATCH), logs.count(GRAPH)
    if not batches:
        raise Missing("the engine logged no batch")
    return Finding.of(by_graph > 0, f"{by_graph} batches run by a graph, of {batches}")


def no_graph_ran(logs: Logs) -> Finding:
    """The engine logged its batches, and none was run by a graph."""
    ran = graphs_ran(logs)
    return Finding.of(ran.truth is Truth.NOT_MET, ran.observed)


# ------------------------------------------------------------------ its two multimodal caches

MM_CACHE_ISSUE = issue(
    "vllm#43941",
    "Infinite loop in EngineCore during multimodal cache eviction after 400/500 sequence with "
    "reused image",
    "the report; its steps 1 and 2 are this desynchronisation",
)
LRU_FIX = pull(
    "vllm#43595", "fix: prevent MM cache hang from stale LRU order keys", release="0.24.0"
)
DISABLE_CACHE = cure(
    "disable-mm-cache",
    "--mm-processor-cache-gb 0",
    "turn the multimodal processor cache off (costs re-processing of repeated images)",
)
PREFIX_CACHING = Factor(
    "prefix-caching",
    "whether equal beginnings of prompts share their KV cache",
    "--enable-prefix-caching",
    server_args=("--no-enable-prefix-caching",),
    claim="another cache that knows images by their hash",
    took_effect=cache_says("enable_prefix_caching", "False"),
)
REFUSAL = Factor(
    "refusal",
    "whether the first request with the image is refused for its length",
    "first request too long",
    "first request short",
    claim="vllm#43941: it takes a refused request",
)
MM_CACHE = Factor(
    "mm-cache",
    "whether there is a multimodal processor cache at all",
    f"--mm-processor-cache-gb {CACHE_GB}",
    server_args=DISABLE_CACHE.server_args,
    claim="vllm#43941: turning it off avoids it",
)
RECEIVER = quote(
    "vllm/multimodal/cache.py",
    "MultiModalReceiverCache.get_and_update_item",
    "EngineCore's side: no data came with the hash, and the hash is not cached here",
    "assert mm_item is not None",
)


class MmCacheScenario(Scenario):
    """Server, gate and older releases of the scenarios in which the two caches part ways."""

    server = (
        f"--max-num-seqs 8 --enable-prefix-caching --mm-processor-cache-gb {CACHE_GB} "
        """--limit-mm-per-prompt '{"image":4,"video":0}' --enable-log-requests"""
    )
    log_patterns = {
        ASSERTION: r"AssertionError: Expected a cached item for mm_hash=",
        DRIFT: r"Multi-modal cache miss for request .*P0/P1 cache drift",
    }
    """What EngineCore says of a promised image that it does not hold: an assertion up to 0.24.0 at
    least, by 0.32.0 a warning (v1/engine/core.py:2011), after which the API server forgets it."""
    key_log_patterns = (ASSERTION, DRIFT)

    def expected(self, release: str, mitigations: frozenset[str]) -> tuple[Outcome, str]:
        if Version(release) >= HANDLER or DISABLE_CACHE.name in mitigations:
            return super().expected(release, mitigations)
        return Outcome.DIFFERENT_FAILURE, (
            f"before {HANDLER} the assertion ends the thread that receives requests: the server "
            "hangs at once, without an eviction"
        )

    def exposure(self, facts: LiveFacts) -> Finding:
        if facts.option("--mm-processor-cache-gb") in ("0", "0.0"):
            return Finding.of(False, "the multimodal processor cache is off on this server")
        return super().exposure(facts)

    async def gate(self, drive: Drive) -> None:
        """A repeated image is answered from the cache as well."""
        await super().gate(drive)
        first = drive.picture("gate-1", 11)
        await drive.chat("gate: image 1 again", images=[first])
        await drive.chat("gate: image 1, streamed", images=[first], stream=True)

    def gate_check(self, evidence: Evidence) -> Finding:
        """The cached image gives one and the same answer each time (greedy, fixed weights).

        The first, uncached answer is not compared: with prefix caching the later ones compute less
        of the prompt at once, and rounding may differ between the two ways.
        """
        answered = super().gate_check(evidence)
        if answered.truth is not Truth.MET:
            return answered
        labels = ("gate: image 1 again", "gate: image 1, streamed")
        texts = {r.text for r in evidence.requests_in("gate") if r.label in labels}
        if len(texts) != 1:
            return Finding.of(False, f"image 1 was answered in {len(texts)} ways: {sorted(texts)}")
        return Finding.of(True, "every request answered; the cached image alike, also streamed")


async def desynchronise(drive: Drive, image: Picture) -> None:
    """A request refused for its length with ``image``, then a short one with it.

    With the factor ``refusal`` flipped, the first one is short as well.
    """
    if REFUSAL.name in drive.flips:
        await drive.ask("image X, short", image=image)
    else:
        text = await drive.text_of_tokens(drive.max_model_len - TEXT_MARGIN)
        await drive.ask(TOO_LONG, text=text, image=image)
    await drive.ask(AGAIN, image=image)


def refused_for_length(requests: Requests) -> Finding:
    sent = requests.first(TOO_LONG)
    refused = sent.status == 400 and "length" in sent.error.lower()
    return Finding.of(refused, f"{TOO_LONG}: {sent.status} {sent.error[:120]}")


def image_fails(requests: Requests) -> Finding:
    """The first short request with the image gets 500."""
    return Finding.of(requests.first(AGAIN).status == 500, statuses(requests))


def statuses(requests: Requests) -> str:
    told = (str(r.status or "no answer") for r in requests.all(AGAIN))
    return f"image X: {', '.join(told)}"


def missing_item(logs: Logs, patterns: Sequence[str] = (ASSERTION, DRIFT)) -> Finding:
    """EngineCore logged that the cached item which it was promised is not there."""
    for pattern in patterns:
        if count := logs.count(pattern):
            first = logs.lines(pattern)[0]
            where = f"{first.process or 'a process without a name'}, first at {first.time}"
            named = sorted({short_hash(h) for h in missing_hashes(logs, (pattern,))})
            return Finding.of(True, f"{count} × {pattern} in {where}: mm_hash {', '.join(named)}")
    return Finding.of(False, "the log holds no line that says so")


def cached_item_assertion(logs: Logs) -> Finding:
    return missing_item(logs, (ASSERTION,))


def missing_hashes(logs: Logs, patterns: Sequence[str] = (ASSERTION, DRIFT)) -> list[str]:
    """The hashes that those log lines name, one a line."""
    matches = (MM_HASH.search(line.text) for p in patterns for line in logs.lines(p))
    return [match[1] for match in matches if match]
