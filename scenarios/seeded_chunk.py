"""vLLM on a CPU: a seed in a request whose prompt is prefilled in chunks ends the engine."""

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Reference,
    Requests,
    Severity,
    Upstream,
    UpstreamState,
    answered,
    claim,
    cure,
    precondition,
    quote,
    vllm,
    vllm_killed as killed,
)
from mmrepro.scenario.more import crash

BUDGET = 256
"""Tokens of a step."""
LONG, OTHER = "a " * 2 * BUDGET, "b " * 2 * BUDGET
"""Of one length, and with nothing in common: the prefix cache has none of it."""
UNSEEDED = "the long prompt without a seed"
SEED = 150
SEEDED = {"seed": SEED, "temperature": 1.0}
DOWNSTREAM = Reference(
    id="vllm-rbln#1025",
    title="skip the discard offset rewind for CPU generators",
    url="https://github.com/RBLN-SW/vllm-rbln/pull/1025",
    note="the same line, copied into a plugin; no thread of vLLM's own was found (2026-11-24). "
    "Found here by mmrepro fuzz vllm --release 0.32.0 --blind --profile plain --seed 3",
)


class SeededChunk(killed.KilledByRequest):
    """A seed in a request whose prompt is prefilled in chunks ends a CPU's engine.

    What: On the CPU backend, a request with a `seed` and a prompt longer than a step's tokens gets
    HTTP 500: EngineCore is dead, and the server ends. With a short prompt it is answered, and so
    is the long one without a seed.

    Why: A step that prefills a part of a prompt samples a token and throws it away. So that the
    seed gives the same tokens with and without chunks, the request's generator is wound back by
    four. A generator of CUDA has such an offset; one of a CPU raises, in the worker.
    """

    name = "seeded-chunk"
    release, affected = "0.32.0", ">=0.14.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(UpstreamState.NOT_REPORTED, looked_up="2026-11-24")
    references = (DOWNSTREAM,)
    server = f"{killed.KilledByRequest.server} --max-num-batched-tokens {BUDGET}"
    refusal, died_of = "seed", "that of a CPU's generator, which has no offset"
    log_patterns = {vllm.STEP: r"max_num_batched_tokens=(\d+)"} | killed.of_the_killer(
        sent=rf"Received request .*seed={SEED}, .*",
        raised=r"CPU Generator does not use offset",
        through=r"set_offset\(\w+\.get_offset\(\) - 4\)",
    )
    sources = (
        quote(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner._bookkeeping_sync",
            "the generator of a request whose token is thrown away is wound back",
            "set_offset(",
        ),
    )
    mitigations = (
        cure(
            "larger-budget",
            "--max-num-batched-tokens 2048",
            "--max-num-batched-tokens above what is prefilled at once: no prompt is cut",
        ),
    )

    @precondition("its prompt is longer than a step", removed_by=("larger-budget",))
    def in_chunks(self, requests: Requests, logs: Logs) -> Finding:
        """By what the engine says of a step, and counted of the prompt of the same length."""
        steps = [int(m[1]) for m in logs.search(vllm.STEP, r"max_num_batched_tokens=(\d+)")]
        sent, like = requests.first(killed.KILLER), requests.first(UNSEEDED)
        if not steps or like.prompt_tokens is None or sent.prompt_chars != like.prompt_chars:
            return Finding.unknown(f"steps of {steps} tokens; {UNSEEDED}: {like.reply}")
        return Finding.of(
            max(steps) < like.prompt_tokens, f"{like.prompt_tokens} tokens, steps of {max(steps)}"
        )

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(killed.CONTROL, text="hello", extra=SEEDED)
        await drive.ask(UNSEEDED, text=OTHER, extra={"temperature": 1.0})
        await drive.ask(killed.KILLER, text=LONG, extra=SEEDED)
        await crash.watch(drive)

    claims = (
        claim("rewound", "a chunk's request has its generator wound back, which a CPU's cannot be",
              DOWNSTREAM, by=("first-error", killed.THROUGH, answered(UNSEEDED)), given="arrived",
              refutable_on=affected),
        claim("one-request", "one valid request ends the engine", DOWNSTREAM, by="symptom",
              given="arrived", refutable_on=affected),
    )  # fmt: skip


SCENARIO = SeededChunk()
