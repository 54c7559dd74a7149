"""What LMDeploy's witness wrote to the servers' logs, and how a refusal reads to a client.

Shared by the two scenarios of LMDeploy's KV budget.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mmrepro.evidence import Evidence, Phase, RequestRecord
from mmrepro.incident import Reference
from mmrepro.kv_budget import Budget, LmdeployPlan, smallest
from mmrepro.probes.data import LogsData
from mmrepro.scenario import Mitigation, SourceRef
from mmrepro.signature import Finding

KV_BYTES = 1_807_097_856
"""What the report's GPU had left for the KV cache before the setting: with 0.5 the report says
``gpu_mem`` 903 548 928."""
SCALE = 64
"""The tiny models' blocks are that much smaller, and so is the memory: the same block counts."""
PROMPT = 3446
"""Tokens of the report's prompt."""
BIG, SMALL = "0.5", "0.1"
CONTROL_LABEL = "control server"

WITNESS_PATTERNS = {
    f"witness-{event}": rf"mmrepro-witness-{event} " for event in ("budget", "limit", "request")
} | {"witness-vision": r"mmrepro-witness-vision "}

LIMIT_SOURCE = SourceRef(
    file="lmdeploy/pytorch/engine/engine.py",
    qualname="Engine._get_max_session_len",
    note="the longest prompt follows from the blocks",
    highlight=("max_tokens",),
)
REFUSAL_SOURCE = SourceRef(
    file="lmdeploy/pytorch/engine/engine_instance.py",
    qualname="EngineInstance.async_stream_infer",
    note="a longer prompt is answered with a status and no tokens",
    highlight=("max_input_len", "INPUT_LENGTH_ERROR"),
)
FIX = Reference(
    id="lmdeploy#2981",
    title="the error as a finish reason (0.7.0)",
    url="https://github.com/InternLM/lmdeploy/pull/2981",
)


def free_bytes(release: str, vocab_size: int, kv_bytes: int) -> int:
    """Free memory in bytes with which ``release`` has ``kv_bytes`` left for the cache.

    Releases keep different amounts back for the forward pass; what is left is the report's.
    """
    roomy = LmdeployPlan(release, free=1 << 60, bytes_per_block=1, vocab_size=vocab_size)
    return kv_bytes + roomy.reserve(0.5)[0]


# ------------------------------------------------------------------ the witness


def smallest_setting(plan: LmdeployPlan, tokens: int) -> Budget:
    """The smallest ``--cache-max-entry-count`` with two decimals that holds ``tokens``."""
    found = smallest(plan, tokens, decimals=2).setting
    if found is None:
        raise ValueError(f"no setting holds {tokens} tokens")
    return found


def budget_mitigation(best: Budget, holds: str) -> Mitigation:
    """The mitigation ``kv-budget``; ``holds``: what ``best`` has room for."""
    return Mitigation(
        name="kv-budget",
        description=f"--cache-max-entry-count {best.setting}: the smallest setting with "
        f"two decimals that holds {holds}, by `mmrepro "
        f"kv-budget`: {best.blocks} blocks, {best.max_tokens} tokens",
        server_args=("--cache-max-entry-count", str(best.setting)),
    )


def said(evidence: Evidence, event: str, *phases: Phase) -> Iterator[dict[str, Any]]:
    """The values of that event, oldest first; of the run's own server unless a phase is given."""
    name = f"witness-{event}"
    for _, data in evidence.results(LogsData, *phases):
        for line in data.matches.get(name, []):
            _, found, text = line.text.partition(f"mmrepro-{name} ")
            if not found:
                continue
            try:
                values = json.loads(text)
            except ValueError:
                continue  # a line that was cut or torn says nothing
            if isinstance(values, dict):
                yield values


@dataclass(frozen=True)
class Sizing:
    """How one server sized its KV cache: live values of the engine, sizes in bytes."""

    free: float
    runtime: float
    block_bytes: float
    share: float
    blocks: float
    reserved: float
    block_size: float
    max_tokens: float

    @property
    def available(self) -> float:
        return (self.free - self.runtime) * self.share

    @property
    def adds_up(self) -> bool:
        """Whether the blocks are what these bytes give."""
        return int(self.available / self.block_bytes) == self.blocks

    @property
    def limit_adds_up(self) -> bool:
        """Whether the longest prompt is these blocks' tokens: less one or two on newer releases."""
        tokens = self.blocks * self.block_size
        spare = (self.reserved + 1) * self.block_size  # 0.10.0 and later; before: none
        return self.max_tokens in (tokens, tokens - spare)

    def __str__(self) -> str:
        return (
            f"({self.free:.0f} free − {self.runtime:.0f} kept back) × {self.share:g} = "
            f"{self.available:.0f} B, / {self.block_bytes:.0f} B a block = {self.blocks:g} blocks"
        )


def sizing(evidence: Evidence, *phases: Phase) -> Sizing | None:
    """The last sizing that the witness saw; None if it saw none, or not all of it."""
    budget: dict[str, Any] = {}
    limit: dict[str, Any] = {}
    for found in said(evidence, "budget", *phases):
        budget = found
    for found in said(evidence, "limit", *phases):
        limit = found
    values = (
        _first(budget.get("memory")),
        _first(budget.get("runtime")),
        _first(budget.get("block_bytes", budget.get("rank_block_bytes"))),
        limit.get("cache_max_entry_count"),
        limit.get("num_gpu_blocks"),
        limit.get("num_reserved_gpu_blocks") or 0,
        limit.get("block_size"),
        limit.get("max_session_len"),
    )
    numbers = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if len(numbers) != len(values) or not numbers[2]:
        return None
    return Sizing(*numbers)


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else value


def refusal(evidence: Evidence, least: int) -> dict[str, Any] | None:
    """The first request of at least so many tokens, as the run's own engine admitted it."""
    for request in said(evidence, "request"):
        tokens = request.get("input_tokens")
        if isinstance(tokens, int) and tokens >= least:
            return request
    return None


# ------------------------------------------------------------------ how it reads to a client

Kind = Literal["answered", "opaque 500", "opaque answer", "named answer", "refusal", "broken"]
_LENGTH = re.compile(r"length|too long|exceed|INPUT_LENGTH", re.IGNORECASE)
_MESSAGE = re.compile(r"""['"]message['"]:\s*['"](.+?)['"]\s*[,}]""")
_CAUSE = re.compile(r"\bkv\b|cache|block|gpu memory", re.IGNORECASE)


def refused_for_length(evidence: Evidence) -> Finding:
    """Of a live server: whether the witness saw any request end so; without it, unknown."""
    for request in said(evidence, "request"):
        tokens, limit = request.get("input_tokens"), request.get("max_input_len")
        if request.get("status") == "INPUT_LENGTH_ERROR" and isinstance(limit, int):
            return Finding.of(
                isinstance(tokens, int) and tokens > limit, f"{tokens} tokens, at most {limit}"
            )
    return Finding.unknown("LMDeploy logs neither the prompt's tokens nor its limit")


@dataclass(frozen=True)
class Grade:
    """How a client is told that a prompt does not fit.

    ``opaque``: nothing says that it is the length. ``named answer``: a 200 whose text is an error
    with the engine's status. ``refusal``: a proper error that says it is the length.
    """

    kind: Kind
    words: str
    names_limit: bool
    names_cause: bool

    @property
    def explained(self) -> bool:
        return self.kind in ("named answer", "refusal")

    def __str__(self) -> str:
        if self.kind in ("answered", "broken"):
            return self.words
        if not self.explained:
            return f"{self.words}: opaque, it does not say that the prompt is too long"
        names = [
            n
            for n, is_there in (("the limit", self.names_limit), ("the cause", self.names_cause))
            if is_there
        ]
        lacks = "; ".join(
            n
            for n, is_there in (
                ("not the limit in tokens", self.names_limit),
                ("not the cause, the KV budget", self.names_cause),
            )
            if not is_there
        )
        told = f"it names {' and '.join(names)}" if names else "it names the length"
        how = "explained" if self.kind == "refusal" else "explained, but as an answer with 200"
        return f"{self.words}: {how}; {told}{', ' + lacks if lacks else ''}"


def grade(record: RequestRecord, limit: float | None) -> Grade:
    """How ``record`` reads. ``limit``: the longest prompt in tokens, as the engine has it."""
    text = record.error or record.text
    message = _MESSAGE.search(text)
    shown = message[1] if message else text
    shown = shown if len(shown) <= 160 else shown[:159] + "…"
    words = f"HTTP {record.status} “{shown}” in {record.latency_s:.2f} s"
    by_length = bool(_LENGTH.search(text))
    kind: Kind
    if record.timed_out or record.status is None:
        kind = "broken"
    elif record.status >= 500:
        kind = "refusal" if by_length else "opaque 500"
    elif record.status >= 400 or (record.stream and record.error and by_length):
        kind = "refusal" if by_length else "opaque answer"
    elif record.error:
        kind = "broken"
    elif record.finish_reason == "error" or record.text.startswith("internal error happened"):
        kind = "named answer" if by_length else "opaque answer"
    elif record.completion_tokens or record.text:
        kind = "answered"
        words = f"HTTP 200 with {record.completion_tokens} tokens in {record.latency_s:.2f} s"
    else:
        kind = "opaque answer"
    if kind == "broken":
        words = f"HTTP {record.status}, then {shown}"
    return Grade(
        kind,
        words,
        names_limit=limit is not None and re.search(rf"\b{limit:g}\b", text) is not None,
        names_cause=bool(_CAUSE.search(text)),
    )


def answered(evidence: Evidence, label: str) -> Finding:
    """Whether the request with that label got an answer with tokens."""
    for record in evidence.labelled(label):
        found = grade(record, None)
        return Finding.of(found.kind == "answered", f"{record.label}: {found}")
    return Finding.unknown(f"{label} was not sent")
