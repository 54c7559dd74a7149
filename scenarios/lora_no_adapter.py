"""vLLM: a request without an adapter is answered with the weights of the last one, on a
CPU."""

import asyncio
from collections.abc import Callable
from functools import partial

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    LiveFacts,
    Measured,
    Reproducers,
    Requests,
    Scenario,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    answered,
    cause,
    claim,
    cure,
    endpoints_green,
    lmdeploy,
    precondition,
    pull,
    quote,
    row,
    symptom,
    unmitigated,
    upgrade,
)
from mmrepro.scenario.more import TINY, Condition, Failure
from mmrepro.scenario.silent import as_in_a_run, may_show

REPRODUCER = "lora_no_adapter.py"
_ADAPTER, _ITSELF = "lora-a", "the model"
_PROMPT, _TOKENS, _LONG_TOKENS = "what is this", 12, 64
LONG = f"a long answer of {_ADAPTER}"
BESIDE, OTHER, AFTER = (
    "the model beside it",
    f"{_ADAPTER} beside it",
    "the model afterwards",
)
ALONE, AGAIN, ADAPTED = "gate: the model", "gate: the model again", f"gate: {_ADAPTER}"
_FIX = pull(
    "vllm#48421",
    "Skip no-LoRA tokens (index -1) in CPU torch bgmv ops",
    "the report and the fix",
    release="0.33.0",
)
_SECOND = pull(
    "vllm#49656", "Fix LoRA no-op row aliasing in PunicaWrapperCPU", "found it as well"
)


def tokens(requests: Requests, label: str) -> list[str]:
    """The tokens of an answer that was given whole; its logprobs tell them."""
    return requests.first(label).tokens


def same(label: str, other: str) -> Callable[[Requests], Finding]:
    """A check: the two requests got the same tokens, all of them."""

    def check(requests: Requests) -> Finding:
        mine, theirs = tokens(requests, label), tokens(requests, other)
        alike = sum(a == b for a, b in zip(mine, theirs, strict=False))
        equal = mine == theirs and len(mine) == _TOKENS
        return Finding.of(
            equal, f"{label}: {alike} of {len(mine)} tokens are those of {other}"
        )

    return check


class LoraNoAdapter(Scenario):
    """vLLM answers a request without an adapter with the weights of the last one, on a
    CPU.

    What: A request to the model itself that runs in one batch with one to a LoRA
    adapter gets that adapter's answer, with HTTP 200 and no word in the log. Alone it
    gets its own.

    Why: A token without an adapter has the index -1. The CPU's functions take the
    adapter's weights by `lora_b_weights[indices]`, and -1 is the last slot. Only a
    batch in which nobody has an adapter leaves them out."""

    name, release, affected = "lora-no-adapter", "0.32.0", ">=0.11.0,<0.33.0"
    devices = ("cpu",)
    """A GPU's kernels return where the index is -1
    (vllm/lora/ops/triton_ops/lora_expand_op.py)."""
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.CRITICAL
    upstream = Upstream(UpstreamState.FIXED, _FIX, "2026-11-26", "0.33.0")
    model = TINY["qwen3-text"]
    server = (
        "--dtype=float32 --enable-lora --max-loras=1 --max-lora-rank=8 "
        f"--lora-modules {_ADAPTER}={{tiny:{_ADAPTER}}}"
    )
    references = (_FIX, _SECOND)
    reproducers = (REPRODUCER,)
    sources = (
        quote(
            "vllm/lora/ops/torch_ops/lora_ops.py",
            "bgmv_expand",
            "index -1 is the last slot",
            "lora_b_weights[lora_indices_tensor",
        ),
    )
    mitigations = (
        cure("spare-slot", "--max-loras=2", "one slot more than adapters: it is empty"),
        cure("one-at-a-time", "--max-num-seqs=1", "no batch holds two requests"),
        upgrade("0.33.0", "0.33.0, which has vllm#48421"),
    )

    async def ask(self, drive: Drive, label: str, model: str = "") -> None:
        asked = model or drive.traffic.model
        await lmdeploy.complete(drive, label, _PROMPT, _TOKENS, logprobs=3, model=asked)

    async def gate(self, drive: Drive) -> None:
        for label, model in ((ALONE, ""), (AGAIN, ""), (ADAPTED, _ADAPTER)):
            await self.ask(drive, label, model)

    async def trigger(self, drive: Drive) -> None:
        pieces: asyncio.Queue[int] = asyncio.Queue()
        answer = lmdeploy.complete(
            drive,
            LONG,
            "go on",
            _LONG_TOKENS,
            stream=True,
            piece=pieces.put_nowait,
            model=_ADAPTER,
        )
        long = asyncio.ensure_future(answer)
        drive.pending.append(long)
        drive.fact("pieces_before", await lmdeploy.reached(2, pieces, long))
        await self.ask(drive, BESIDE)
        await self.ask(drive, OTHER, _ADAPTER)
        await asyncio.gather(*drive.pending)
        await self.ask(drive, AFTER)

    @precondition(
        "it was answered while the adapter's answer was streamed", id="one-batch"
    )
    def one_batch(self, requests: Requests, seen: Measured) -> Finding:
        before = seen.number("pieces_before")
        long, beside = requests.first(LONG), requests.first(BESIDE)
        ended = beside.sent.mono + beside.latency_s
        in_time = ended < long.sent.mono + long.latency_s
        met = long.answered and 2 <= before < long.pieces and in_time
        return Finding.of(met, f"sent after {before:g} of {long.pieces} pieces")

    @precondition("the model and the adapter answer differently, and alike each time")
    def tell_apart(self, requests: Requests) -> Finding:
        own, again = tokens(requests, ALONE), tokens(requests, AGAIN)
        other = tokens(requests, ADAPTED)
        met = own == again != other and len(own) == len(other) == _TOKENS
        return Finding.of(met, f"the model {own[:4]}, {_ADAPTER} {other[:4]}")

    symptoms = (
        symptom(
            "beside an adapter's request the model gives the adapter's answer",
            same(BESIDE, ADAPTED),
            id="adapters-answer",
        ),
        symptom(
            "alone afterwards it gives its own",
            same(AFTER, ALONE),
            id="own-afterwards",
            abnormal=False,
        ),
        symptom(
            "the adapter gives its own all the time",
            same(OTHER, ADAPTED),
            id="adapter-sound",
            abnormal=False,
        ),
        endpoints_green(),
    )

    @cause("by the engine's own functions index -1 adds the last slot's weights")
    def index_is_taken(self, reproducers: Reproducers) -> Finding:
        facts = reproducers.facts(REPRODUCER)
        added, spare = facts["without_adapter"], facts["without_and_an_empty_slot"]
        met = facts["with_adapter"] == added != 0 == spare
        text = "added without an adapter: {without_adapter}, with one: {with_adapter}"
        return Finding.of(met, text.format_map(facts))

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return as_in_a_run(self, facts)

    def recognises(self, failure: Failure) -> Finding:
        """By what was sent: all wrong answers are the model's own, and an adapter was
        asked too."""
        from mmrepro.traffic.case import CHAT, COMPLETIONS

        able = may_show(self, failure)
        if able.truth is not Truth.MET:
            return able
        asked = {
            op.id: op.model
            for op in failure.case.operations
            if op.path in (CHAT, COMPLETIONS)
        }
        adapted = any(asked.values()) and "--enable-lora" in failure.case.server.args
        met = adapted and not any(asked.get(id) for id in failure.operations)
        return Finding.of(met, "answers without an adapter, beside requests to one")

    works_after = (
        answered(BESIDE, OTHER, AFTER),
        same(BESIDE, ALONE),
        same(AFTER, ALONE),
    )
    rows = (
        row(
            "the model, beside an adapter's request",
            "adapters-answer",
            "its own answer",
        ),
        row("the model, alone", "own-afterwards", "its own answer", abnormal_if=False),
    )
    ours = partial(
        claim, given=("one-batch", "tell-apart", unmitigated), refutable_on=affected
    )
    claims = (
        ours(
            "wrong-output",
            "a base-model request batched next to a LoRA request silently gets "
            "the adapter's delta",
            _FIX,
            by=("adapters-answer", "index-is-taken"),
        ),
        ours(
            "alone-spared",
            "a batch of base-model requests alone is right",
            _SECOND,
            by="own-afterwards",
        ),
        claim(
            "fixed",
            "with it a base-model request gets its own answer",
            _FIX,
            releases=">=0.33.0",
            by=same(BESIDE, ALONE),
            given=("one-batch", "tell-apart"),
        ),
    )


SCENARIO = LoraNoAdapter()
