"""vLLM's reused mask, as minivllm has it: a step is prepared in the mask that one still reads."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from mmrepro.evidence import Evidence
from mmrepro.incident import Reference
from mmrepro.scenario import LiveFacts, RunFacts
from mmrepro.scenarios.borrowed_base import (
    AFTER,
    METRICS,
    ROLE,
    BorrowedFault,
    all_answered,
    told,
)
from mmrepro.signature import Condition, Finding, Truth, checks
from mmrepro.signature import live_server as live
from mmrepro.traffic.drive import Drive

CLIENTS = 4
TOGETHER = [f"image {i + 1} and a long text" for i in range(CLIENTS)]
SCATTER = "Number of elements of source < number of ones in mask"
ROWS = re.compile(r"mask-rows: (\d+) tokens are marked for (\d+) rows")


class ReusedMask(BorrowedFault):
    """The next step is prepared in the mask that this step still reads.

    What: Requests with images that are prefilled in chunks beside each other end in
    masked_scatter or get wrong embeddings; alone, in one step, they are answered.

    Why: With asynchronous scheduling the next prefill step is prepared before this one has run.
    There is one mask buffer for both: this step scatters its embeddings by the next one's mask.
    Where that marks more tokens, masked_scatter refuses; else nobody notices.
    """

    variant = "reused-mask"
    origin = "vllm#30624"
    options_of_fault = (
        *("--max-batched-tokens", "96", "--num-blocks", "600"),
        *("--no-prefix-caching", "--check-contract=log"),
    )
    references = (
        Reference(
            id="vllm#30624",
            title="`masked_scatter_size_check` failed when running Qwen3VLMoE",
            url="https://github.com/vllm-project/vllm/issues/30624",
            note="the real thing is chunked-mm-prefill, variant async-race",
        ),
        Reference(
            id="vllm#31841",
            title="Two buffers for is_mm_embed",
            url="https://github.com/vllm-project/vllm/pull/31841",
            note="the fix, in 0.14.0",
        ),
    )
    log_patterns = {
        "scatter-error": r"RuntimeError: .*" + SCATTER,
        "mask-rows": r"contract violated: mask-rows: ",
    }
    key_log_patterns = ("mask-rows", "scatter-error")

    async def trigger(self, drive: Drive) -> None:
        text = "x" * 1800
        requests = [
            drive.unless_stuck(drive.chat(label, text=text, images=[drive.picture(label, i + 1)]))
            for i, label in enumerate(TOGETHER)
        ]
        await asyncio.gather(*requests)
        await drive.unless_stuck(drive.chat(AFTER, text="hello"))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "image-500",
                "symptom",
                "requests with an image get HTTP 500 from masked_scatter",
                some_scattered,
            ),
            Condition(
                "text-answered",
                "symptom",
                "text is answered afterwards",
                lambda e: all_answered(e, [AFTER]),
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200",
                checks.endpoints_green,
            ),
            self._error(),
            self._mask(),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """The contract's words are there only with --check-contract: they are not required."""
        return [
            *live.some_requests_fail(METRICS, ROLE),
            self._error(),
            replace(self._mask(), required=False),
        ]

    def _error(self) -> Condition:
        return Condition(
            "scatter-error",
            "cause",
            f"the log holds masked_scatter's '{SCATTER}'",
            lambda e: checks.logged(e, "scatter-error", "masked_scatter's error"),
        )

    def _mask(self) -> Condition:
        return Condition(
            "mask-of-another-step",
            "cause",
            "the contract names a step whose mask marks more tokens than it has embeddings",
            mask_of_another_step,
        )

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        answered = all_answered(evidence, [*TOGETHER, AFTER])
        count = checks.log_count(evidence, "contract-violated")
        if answered.truth is not Truth.MET or count == 0:
            return answered
        if count is None:
            return Finding.unknown(evidence.why_missing("logs", "check"))
        return Finding.of(False, f"answered, but the contract was violated {count} times")


def some_scattered(evidence: Evidence) -> Finding:
    sent = [r for label in TOGETHER for r in evidence.labelled(label)]
    if len(sent) < CLIENTS:
        return Finding.unknown(f"{len(sent)} of {CLIENTS} requests were sent")
    bad = [r for r in sent if r.status == 500 and SCATTER in r.error]
    said = "; ".join(f"{r.label}: {told(r)}" for r in sent)
    return Finding.of(bool(bad), said)


def mask_of_another_step(evidence: Evidence) -> Finding:
    if checks.log_count(evidence, "mask-rows") is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    lines = checks.log_lines(evidence, "mask-rows")
    found = [(int(m[1]), int(m[2])) for line in lines if (m := ROWS.search(line.text))]
    more = [(marked, rows) for marked, rows in found if marked > rows]
    said = f"{len(found)} steps whose mask does not fit its rows"
    said += f", e.g. {more[0][0]} marked for {more[0][1]} rows" if more else ""
    return Finding.of(bool(more), said, *checks.log_files(evidence))
