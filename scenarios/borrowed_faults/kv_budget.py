"""LMDeploy's small KV budget, as minivllm has it: an opaque 500, then a dead loop."""

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Metrics,
    Requests,
    Severity,
    answered,
    cause,
    precondition,
    pull,
    symptom,
)
from mmrepro.scenario.minivllm import AFTER, BLOCK_SIZE, MinivllmFault, counted, place, told
from mmrepro.scenario.more import every_request_fails, in_log

PROMPT, GROWS = "a prompt of 300 characters", "an answer of 300 tokens"


def configured(metrics: Metrics) -> int:
    """Tokens that the cache should hold, as the engine was configured. Raises Missing."""
    return told(metrics, "kv_cache_blocks_configured") * BLOCK_SIZE


def tenth(metrics: Metrics) -> int:
    """Tokens of a tenth of that, in whole blocks."""
    return configured(metrics) // BLOCK_SIZE // 10 * BLOCK_SIZE


class KvBudget(MinivllmFault):
    """A KV cache of a tenth of its budget: an opaque 500, then a dead loop.

    What: A prompt that the settings have room for gets 'internal error happened'; an answer that
    outgrows the cache ends the engine's loop, and every later request fails.

    Why: The cache gets a tenth of the blocks that were asked for, and nobody checks what fits. A
    prompt that never will is given up without a reason; where one sequence alone outgrows the
    cache, nothing is left to preempt, and the scheduler's assertion ends its thread.
    """

    name, variant = "borrowed-faults", "kv-budget"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    origin = "LMDeploy 0.6.4 and 0.7.0.post3"
    real = "; see undersized-kv-budget and kv-growth-crash"
    server = "--num-blocks 81 --no-prefix-caching"
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

    @precondition("the prompt has room in the cache as configured, and not in a tenth of it")
    def prompt_outgrows(self, requests: Requests, logs: Logs, metrics: Metrics) -> Finding:
        tokens, least, most = counted(requests, logs, PROMPT), tenth(metrics), configured(metrics)
        return Finding.of(
            least < tokens <= most, f"{tokens} tokens; {most} of room, a tenth {least}"
        )

    @precondition("the answer was on its way past a tenth of the cache")
    def answer_outgrows(self, requests: Requests, logs: Logs, metrics: Metrics) -> Finding:
        """Of an answer that failed: by the tokens that no other request got."""
        grows, before = requests.first(GROWS), counted(requests, logs, GROWS)
        if (got := grows.completion_tokens) is None:
            others = (r.completion_tokens or 0 for r in requests.within("gate", "trigger"))
            got = told(metrics, "generation_tokens_total") - sum(others)
        text = f"{before} + {got} tokens; a tenth is {tenth(metrics)}"
        return Finding.of(before + got > tenth(metrics), text)

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

    @cause("the cache holds less than that prompt, and --num-blocks asked for more", live=False)
    def budget_too_small(self, metrics: Metrics, logs: Logs) -> Finding:
        prompts = [int(m[1]) for m in logs.search("added-with-tokens", r": (\d+) tokens")]
        if not prompts:
            return Finding.unknown("the log names no prompt")
        has, asked = told(metrics, "kv_cache_blocks") * BLOCK_SIZE, configured(metrics)
        largest = max(prompts)
        text = f"the cache holds {has} tokens of the {asked} asked for"
        return Finding.of(has < largest <= asked, f"{text}; the longest prompt has {largest}")

    works_after = (answered(PROMPT, GROWS, AFTER),)
