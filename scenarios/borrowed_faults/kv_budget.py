"""LMDeploy's small KV budget, as minivllm has it: an opaque 500, then a dead loop."""

from mmrepro.scenario import (
    Drive,
    Finding,
    Logs,
    Metrics,
    Requests,
    answered,
    cause,
    every_request_fails,
    in_log,
    pull,
    symptom,
)
from mmrepro.scenario.minivllm import AFTER, BLOCK_SIZE, MinivllmFault, place

NUM_BLOCKS = 81
ROOM = (NUM_BLOCKS - 1) * BLOCK_SIZE
PROMPT, GROWS = "a prompt of 300 characters", "an answer of 300 tokens"


class KvBudget(MinivllmFault):
    """A KV cache of a tenth of its budget: an opaque 500, then a dead loop.

    What: A prompt that the settings have room for gets 'internal error happened'; an answer that
    outgrows the cache ends the engine's loop, and every later request fails.

    Why: The cache gets a tenth of the blocks that were asked for, and nobody checks what fits. A
    prompt that never will is given up without a reason; where one sequence alone outgrows the
    cache, nothing is left to preempt, and the scheduler's assertion ends its thread.
    """

    name, variant = "borrowed-faults", "kv-budget"
    origin = "LMDeploy 0.6.4 and 0.7.0.post3"
    server = f"--num-blocks {NUM_BLOCKS} --no-prefix-caching"
    references = (
        pull(
            "lmdeploy#2981",
            "the error as a finish reason (0.7.0)",
            "the real things are undersized-kv-budget and kv-growth-crash",
        ),
    )
    log_patterns = {
        "nothing-to-preempt": r"AssertionError: len\(running\) > 0: nothing is left to preempt",
        "raised-in-decode": place("scheduler.py:_decode"),
        "added-with-tokens": r"Added request \S+: \d+ tokens",
    }
    key_log_patterns = ("nothing-to-preempt",)

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(PROMPT, text="x" * 300)
        await drive.ask(GROWS, max_tokens=300, extra={"ignore_eos": True})
        await drive.ask(AFTER)

    def opaque_500(self, requests: Requests) -> Finding:
        return requests.failed(PROMPT, "internal error happened")

    def loop_ends(self, requests: Requests) -> Finding:
        return requests.failed(GROWS, "the engine is dead")

    symptoms = (
        symptom(
            "a prompt gets HTTP 500 that names no limit: 'internal error happened'", opaque_500
        ),
        symptom("an answer that grows gets HTTP 500: the engine is dead", loop_ends),
        every_request_fails(),
    )
    causes = (
        in_log(
            "the scheduler's assertion that something is left to preempt ended the loop",
            "nothing-to-preempt",
            "raised-in-decode",
        ),
    )

    @cause(
        f"the cache holds less than that prompt, where --num-blocks asked for {ROOM}", live=False
    )
    def budget_too_small(self, metrics: Metrics, logs: Logs) -> Finding:
        blocks = metrics.readings(["minivllm:kv_cache_blocks"], "gate", "check", least=1)
        prompts = [int(m[1]) for m in logs.search("added-with-tokens", r": (\d+) tokens")]
        if not prompts:
            return Finding.unknown("the log names no prompt")
        has, largest = int(blocks[-1]) * BLOCK_SIZE, max(prompts)
        text = f"the cache holds {has} tokens of the {ROOM} asked for"
        return Finding.of(has < largest < ROOM, f"{text}; the longest prompt has {largest}")

    works_after = (answered(PROMPT, GROWS, AFTER),)
