"""vLLM: a decode server keeps the blocks of KV caches that never arrive."""

import asyncio
import json

from mmrepro.base.records import StandIn
from mmrepro.engines import Patch
from mmrepro.scenario import (
    Drive,
    Evidence,
    FailureClass,
    Finding,
    LiveFacts,
    Logs,
    Missing,
    Requests,
    Scenario,
    Severity,
    Upstream,
    UpstreamState,
    cause,
    claim,
    common,
    cure,
    issue,
    precondition,
    pull,
    quote,
    row,
    symptom,
    vllm,
)
from mmrepro.scenario.more import MetricsData, TinyText

_BLOCKS, _TOKENS = 10, 340
"""Blocks of the KV cache (of 128 tokens, a CPU's default), nine of which requests can
have; tokens of a prompt, which needs three."""
LEFT = [f"prompt {n}, computed elsewhere" for n in (1, 2, 3)]
_GIVES_UP_S = 2
"""After which the cure's transport reports that a transfer has failed."""
_LOCAL, LATER = (
    "gate: the same prompt, computed here",
    "the same prompt, once they have left",
)
_WAITS, _ABORTED = "waits-for-remote-kv", "aborted"
_CONNECTOR = "LostTransfer"
_REPORT = issue(
    "vllm#46283",
    "NixlPushConnector: decode-side KV blocks of an aborted remote-KV load are never "
    "reclaimed when the prefill node never reports completion (KV cache leak)",
)
_HOLDS = pull(
    "vllm#32255", "Hold the blocks of an aborted load until it is over", "since then"
)


def _transfer(gives_up_s: int) -> str:
    config = {
        "kv_connector": _CONNECTOR,
        "kv_connector_module_path": "lost_transfer",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"gives_up_s": gives_up_s},
    }
    return f"--kv-transfer-config '{json.dumps(config)}'"


def _readings(evidence: Evidence) -> list[tuple[float, float, float, float]]:
    """In each reading of the check: requests that run, that wait by reason capacity and
    by reason deferred, and the share of the KV cache that is in use. Raises Missing."""
    readings = []
    for _, data in evidence.results(MetricsData, "check"):
        reasons = {
            sample.labels.get("reason", ""): sample.value or 0.0
            for sample in data.samples
            if sample.name == vllm.BY_REASON
        }
        running, usage = (
            data.total(name)
            for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc")
        )
        if running is None or usage is None or "capacity" not in reasons:
            raise Missing(
                "the server does not tell why requests wait, and what its KV cache "
                "holds"
            )
        readings.append(
            (running, reasons["capacity"], reasons.get("deferred", 0.0), usage)
        )
    if len(readings) < 2:
        raise Missing(f"{len(readings)} readings of the server's gauges")
    return readings


def _held_by_nobody(evidence: Evidence) -> Finding:
    """Nothing runs and nothing waits for a transfer, and the KV cache is in use all the
    same."""
    readings = _readings(evidence)
    text = "; ".join(
        f"running {r:g}, in transfer {d:g}, waiting by capacity {c:g}, KV use {u:.0%}"
        for r, c, d, u in readings
    )
    met = all(r == 0 and d == 0 and c >= 1 and u > 0 for r, c, d, u in readings)
    return Finding.of(met, text)


class TransferLost(Scenario):
    """A decode server never frees the blocks of a KV cache that does not arrive.

    What: A decode server is asked for answers whose prompts were computed elsewhere,
    and the prefill server is gone. The requests wait. Their clients leave. The blocks
    that were kept for the KV caches stay taken: after a few such requests the cache is
    full, nothing runs, and every later request waits for ever, one that needs no
    transfer as well. /health stays 200.

    Why: A transfer may still write into the blocks of a request that was aborted, so
    they are held until the connector reports its end. There is no deadline. Where the
    other side never reports, nobody frees them."""

    name = "transfer-lost"
    release, affected = "0.33.0", ">=0.22.0"
    # Run: 0.33.0, the newest there is, 0.32.0, and 0.14.0, which frees them at once. By
    # source (v1/core/sched/scheduler.py) 0.22.0, 0.23.0 and 0.25.0 hold them; 0.15.0 to
    # 0.21.0 were not looked at.
    failure_class, severity = FailureClass.SILENT_HANG, Severity.CRITICAL
    needs = ("--kv-transfer-config",)
    upstream = Upstream(UpstreamState.OPEN, _REPORT, "2026-11-26")
    references = (_REPORT, _HOLDS)
    model = TinyText()
    max_model_len = 1024
    server = (
        f"--max-num-seqs 8 --num-gpu-blocks-override {_BLOCKS} "
        f"--no-enable-prefix-caching --enable-log-requests {_transfer(0)}"
    )
    patches = (
        Patch(
            "lost_transfer",
            StandIn(
                name="lost_transfer",
                replaces="the transport between a prefill and a decode server: a KV "
                "connector, given by --kv-transfer-config, whose transfers never end",
                why="NIXL and Mooncake move KV caches between GPUs; what a server does "
                "about a transfer that is never reported is its scheduler's own code",
            ),
        ),
    )
    log_patterns = {
        _WAITS: r"is still in WAITING_FOR_REMOTE_KVS state",
        # The second form is vllm-rs' (0.33.0).
        _ABORTED: r"Request \S+ aborted\.|auto-aborting request due to dropped stream",
    }
    sources = (
        quote(
            "vllm/v1/core/sched/scheduler.py",
            "Scheduler.finish_requests",
            "the blocks of a request that waits for its KV cache are not freed with it",
            "delay_free_blocks = (",
        ),
    )
    mitigations = (
        cure(
            "deadline",
            _transfer(_GIVES_UP_S),
            (
                f"a connector that reports a failed transfer after {_GIVES_UP_S} s: the "
                "request fails"
            ),
        ),
    )

    async def prompt(self, drive: Drive, label: str, *, remote: bool = False) -> None:
        """A completion of a prompt of so many token ids, as a router sends it to a
        decode server if ``remote``."""
        body = {
            "model": drive.traffic.model,
            "prompt": [100] * _TOKENS,
            "max_tokens": 4,
        }
        body |= {"temperature": 0}
        if remote:
            body |= {"kv_transfer_params": {"do_remote_prefill": True}}
        data = json.dumps(body).encode()
        sent = drive.traffic.raw(
            label, path="/v1/completions", body=data, deadline_s=drive.deadline_s
        )
        await (sent if remote else drive.unless_stuck(sent))

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text", text="hello")
        await self.prompt(drive, _LOCAL)

    async def trigger(self, drive: Drive) -> None:
        await asyncio.gather(
            *(self.prompt(drive, label, remote=True) for label in LEFT)
        )
        await self.prompt(drive, LATER)

    def gate_check(self, evidence: Evidence) -> Finding:
        return vllm.gate_of_completions(evidence)

    def exposure(self, facts: LiveFacts) -> Finding:
        if facts.command and facts.option("--kv-transfer-config") is None:
            return Finding.of(False, "the server has no KV connector")
        return super().exposure(facts)

    @precondition(
        "the requests waited for their KV caches, and their clients left",
        removed_by=("deadline",),
    )
    def left(self, requests: Requests, logs: Logs) -> Finding:
        sent = [requests.first(label) for label in LEFT]
        gone, aborted = sum(r.timed_out for r in sent), logs.count(_ABORTED)
        text = (
            f"{gone} of {len(sent)} had no answer when their clients left; "
            f"{aborted} aborted"
        )
        met = gone == len(sent) <= aborted and logs.count(_WAITS) > 0
        return Finding.of(met, f"{text}; {logs.count(_WAITS)} lines tell of a wait")

    symptoms = (
        common.never_answered(LATER),
        common.new_request_unanswered(),
        common.endpoints_green(),
        common.process_alive(),
        symptom(
            "requests are counted as waiting, and none as running", vllm.waiting_alone
        ),
    )
    live_only = (common.tokens_stand_still(),)
    causes = (
        cause(
            (
                "blocks of the KV cache are in use while nothing runs and no transfer "
                "is waited for"
            ),
            _held_by_nobody,
            live=True,
        ),
    )

    @cause("the same prompt in the same KV cache is answered before", live=False)
    def fits(self, requests: Requests) -> Finding:
        sent = requests.first(_LOCAL)
        return Finding.of(
            sent.status == 200, f"{_LOCAL}: {sent.status} {sent.error[:100]}".strip()
        )

    works_after = (common.refused_or_answered(LATER),)
    rows = (
        row(LATER, "no-answer", "200"),
        row("a text after it", "no-answer-later", "200"),
        row("/health, /v1/models", "endpoints-green", "200, 200", abnormal_if=False),
        row("KV use, with nothing running", "held-by-nobody", "0"),
    )
    claims = (
        claim(
            "never-freed",
            "the blocks of an aborted load are held until its end is reported, "
            "and are never freed where it is not",
            _REPORT,
            by="held-by-nobody",
            given=("left", "fits"),
        ),
        claim(
            "no-admission",
            "no new request is admitted once they fill the KV cache",
            _REPORT,
            by=("no-answer", "no-answer-later"),
            given=("left", "fits"),
        ),
    )


SCENARIO = TransferLost()
