"""LMDeploy's small KV budget, as minivllm has it: an opaque 500, then a dead loop."""

from __future__ import annotations

import re

from mmrepro.evidence import Evidence
from mmrepro.incident import Reference
from mmrepro.scenario import LiveFacts, RunFacts
from mmrepro.scenarios.borrowed_base import (
    AFTER,
    BLOCK_SIZE,
    BorrowedFault,
    all_answered,
    told,
)
from mmrepro.scenarios.mm_prefill_contract import place
from mmrepro.signature import Condition, Finding, checks
from mmrepro.signature import live_server as live
from mmrepro.traffic.drive import Drive

NUM_BLOCKS = 81
ROOM = (NUM_BLOCKS - 1) * BLOCK_SIZE
PROMPT, GROWS = "a prompt of 300 characters", "an answer of 300 tokens"
ADDED = re.compile(r"Added request \S+: (\d+) tokens")


class KvBudget(BorrowedFault):
    """A KV cache of a tenth of its budget: an opaque 500, then a dead loop.

    What: A prompt that the settings have room for gets 'internal error happened'; an answer
    that outgrows the cache ends the engine's loop, and every later request fails.

    Why: The cache gets a tenth of the blocks that were asked for, and nobody checks what fits.
    A prompt that never will is given up without a reason; where one sequence alone outgrows the
    cache, nothing is left to preempt, and the scheduler's assertion ends its thread.
    """

    variant = "kv-budget"
    origin = "LMDeploy 0.6.4 and 0.7.0.post3"
    options_of_fault = (
        *("--num-blocks", str(NUM_BLOCKS)),
        "--no-prefix-caching",
    )
    references = (
        Reference(
            id="lmdeploy#2981",
            title="the error as a finish reason (0.7.0)",
            url="https://github.com/InternLM/lmdeploy/pull/2981",
            note="the real things are undersized-kv-budget and kv-growth-crash",
        ),
    )
    log_patterns = {
        "nothing-to-preempt": r"AssertionError: len\(running\) > 0: nothing is left to preempt",
        "raised-in-decode": place("scheduler.py", "_decode"),
        "added-with-tokens": r"Added request \S+: \d+ tokens",
    }
    key_log_patterns = ("nothing-to-preempt",)

    async def trigger(self, drive: Drive) -> None:
        await drive.unless_stuck(drive.chat(PROMPT, text="x" * 300))
        grows = drive.chat(GROWS, text="hello", max_tokens=300, extra={"ignore_eos": True})
        await drive.unless_stuck(grows)
        await drive.unless_stuck(drive.chat(AFTER, text="hello"))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "opaque-500",
                "symptom",
                "a prompt gets HTTP 500 that names no limit: 'internal error happened'",
                lambda e: _failed(e, PROMPT, "internal error happened"),
            ),
            Condition(
                "loop-ends",
                "symptom",
                "an answer that grows gets HTTP 500: the engine is dead",
                lambda e: _failed(e, GROWS, "the engine is dead"),
            ),
            live.every_request_fails(),
            Condition(
                "budget-too-small",
                "cause",
                f"the cache holds less than that prompt, where --num-blocks asked for {ROOM}",
                budget_too_small,
            ),
            self._assertion(),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return [live.every_request_fails(), self._assertion()]

    def _assertion(self) -> Condition:
        return Condition(
            "nothing-to-preempt",
            "cause",
            "the scheduler's assertion that something is left to preempt ended the loop",
            raised_in_decode,
        )

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        return all_answered(evidence, [PROMPT, GROWS, AFTER])


def _failed(evidence: Evidence, label: str, says: str) -> Finding:
    for record in evidence.labelled(label):
        return Finding.of(record.status == 500 and says in record.error, told(record))
    return Finding.unknown(f"{label} was not sent")


def budget_too_small(evidence: Evidence) -> Finding:
    blocks = checks.metric_readings(evidence, ("minivllm:kv_cache_blocks",), "gate", "check")
    lines = checks.log_lines(evidence, "added-with-tokens")
    largest = max((int(m[1]) for line in lines if (m := ADDED.search(line.text))), default=0)
    if not blocks or not largest:
        return Finding.unknown(f"{len(blocks)} readings of kv_cache_blocks, {len(lines)} prompts")
    has = int(blocks[-1]) * BLOCK_SIZE
    said = f"the cache holds {has} tokens of the {ROOM} asked for; the longest prompt has {largest}"
    return Finding.of(has < largest < ROOM, said)


def raised_in_decode(evidence: Evidence) -> Finding:
    counts = [checks.log_count(evidence, n) for n in ("nothing-to-preempt", "raised-in-decode")]
    if None in counts:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    said = f"{counts[0]} × the assertion, {counts[1]} × raised in scheduler.py:_decode"
    return Finding.of(all(counts), said, *checks.log_files(evidence))
