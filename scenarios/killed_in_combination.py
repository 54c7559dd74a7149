"""vLLM: combinations of options and requests that end EngineCore, and with it the
server."""

import json
from functools import partial

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    LiveFacts,
    Logs,
    Measured,
    Severity,
    Upstream,
    UpstreamState,
    claim,
    cure,
    issue,
    precondition,
    pull,
    quote,
    upgrade,
    vllm_killed as killed,
)
from mmrepro.scenario.more import TINY, crash
from mmrepro.traffic import RequestWatch

_JSON_FIX = pull(
    "vllm#45346",
    "Reject degenerate structured_outputs that crash EngineCore",
    "report and fix",
)


class JsonObjectFalse(killed.KilledByRequest):
    """A request that says `"json_object": false` ends the engine.

    What: A request brings `structured_outputs` with `json_object: false`, as a client
    that fills in every field does. It gets HTTP 500, EngineCore is dead, and the server
    ends some seconds later. With `json_object: true` the same request is answered.

    Why: What is asked for is counted by what is not null, so that `false` counts as a
    wish. Which grammar that is, is told by what is true: there is none, and EngineCore
    raises in the middle of taking the request in."""

    name = "json-object-false"
    release, affected = "0.24.0", ">=0.23.0,<0.25.0"
    # Run: 0.24.0, and 0.25.0, which refuses it; 0.23.0 by repro
    # (docs/lab/reports-benchmark.md). By source (structured_output/request.py,
    # sampling_params.py) 0.11.0 to 0.22.0 have the same two functions; they were not
    # run.
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("a grammar",)
    upstream = Upstream(UpstreamState.FIXED, _JSON_FIX, "2026-11-26", "0.25.0")
    references = (_JSON_FIX,)
    refusal, died_of = "json_object", "that there is no structured output parameter"
    log_patterns = killed.of_the_killer(
        sent=r"Received request .*structured_outputs=StructuredOutputsParams\(.*json_object=False",
        raised=r"ValueError: No valid structured output parameter found",
        through=r"structured_output/request\.py\"?, line \d+, in get_structured_output_key",
    )
    sources = (
        quote(
            "vllm/v1/structured_output/request.py",
            "get_structured_output_key",
            "a json_object that is false is none, and nothing else is there",
            "if params.json_object:",
            "raise ValueError",
        ),
    )
    mitigations = (
        upgrade("0.25.0", "upgrade to 0.25.0: the request is refused with HTTP 400"),
    )

    async def trigger(self, drive: Drive) -> None:
        for label, wanted in ((killed.CONTROL, True), (killed.KILLER, False)):
            await drive.ask(
                label, extra={"structured_outputs": {"json_object": wanted}}
            )
        await crash.watch(drive)

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "no-grammar",
            "a json_object of false is taken for a wish, and is none",
            by=("first-error", killed.THROUGH),
        ),
        said("dead", "EngineCore is dead, and later requests fail", by="symptom"),
        claim(
            "fixed",
            "the request is refused",
            _JSON_FIX,
            given="arrived",
            releases=">=0.25.0",
            by=killed.refused,
        ),
    )


JSON_OBJECT_FALSE = JsonObjectFalse()

_CHILDREN = 8
_PRIORITY_REPORT = issue(
    "vllm#29747", "Priority scheduling crashes the engine with n > 1"
)
_PRIORITY_FIX = pull(
    "vllm#29764", "Compare requests of one priority and arrival", release="0.12.0"
)


class PriorityChildren(killed.KilledByRequest):
    """Several answers to one request end an engine that schedules by priority.

    What: On a server with `--scheduling-policy priority` a request asks for `n` answers
    that have to wait for their turn. It gets HTTP 500, EngineCore is dead, and the
    server ends some seconds later. Asked for one answer, it is answered.

    Why: Each answer is a request of its own, with the priority and the time of arrival
    of the one that asked. The queue is a heap of priority, time and request: where the
    first two are equal it compares requests, which cannot be compared."""

    name = "priority-children"
    release, affected = "0.11.0", ">=0.11.0,<0.12.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("--scheduling-policy",)
    upstream = Upstream(UpstreamState.FIXED, _PRIORITY_FIX, "2026-11-26", "0.12.0")
    references = (_PRIORITY_REPORT, _PRIORITY_FIX)
    server = "--max-num-seqs 1 --enable-log-requests --scheduling-policy priority"
    refusal, died_of = "priority", "that requests cannot be compared"
    log_patterns = killed.of_the_killer(
        sent=rf"Received request .*SamplingParams\(n={_CHILDREN},",
        raised=r"TypeError: '<' not supported between instances of 'Request' and 'Request'",
        through=r"sched/request_queue\.py\"?, line \d+, in add_request",
    )
    sources = (
        quote(
            "vllm/v1/core/sched/request_queue.py",
            "PriorityRequestQueue.add_request",
            "where priority and time are equal, the heap compares the requests",
            "request.arrival_time, request",
        ),
    )
    mitigations = (
        cure(
            "fcfs", "--scheduling-policy fcfs", "first come, first served, the default"
        ),
        upgrade("0.12.0", "upgrade to 0.12.0, whose requests can be compared"),
    )

    def exposure(self, facts: LiveFacts) -> Finding:
        """Only a server that schedules by priority: it does not by default."""
        if facts.command and not facts.has(("--scheduling-policy", "priority")):
            return Finding.of(False, "the server does not schedule by priority")
        return super().exposure(facts)

    async def trigger(self, drive: Drive) -> None:
        messages = [{"role": "user", "content": "hello"}]
        for label, number in ((killed.CONTROL, 1), (killed.KILLER, _CHILDREN)):
            body = {
                "model": drive.traffic.model,
                "messages": messages,
                "n": number,
                "max_tokens": 8,
            }
            data, watch = (
                json.dumps(body).encode(),
                RequestWatch(lambda: None, lambda _: None),
            )
            await drive.unless_stuck(
                drive.traffic.send(label, data, watch, deadline_s=drive.deadline_s)
            )
        await crash.watch(drive)

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "compared",
            "the queue compares two requests of one priority and one arrival",
            by=("first-error", killed.THROUGH),
        ),
        said("one-request", "a single request ends the engine", by="symptom"),
        claim(
            "fixed",
            "the request no longer ends the engine",
            _PRIORITY_FIX,
            given="arrived",
            releases=">=0.12.0",
            by=killed.survived,
        ),
    )


PRIORITY_CHILDREN = PriorityChildren()

_SHORT_TOKENS, _LONG_TOKENS, _BLOCK = 6, 7, "block-size"
"""Lengths of the two answers, by which the log tells the requests apart."""
_SHORT, _LONG = "hello", "hello " * 200
_HYBRID_REPORT = issue(
    "vllm#54504",
    "Prefix caching is a no-op for nemotron_h hybrids on GPU builds; mamba-cache-mode "
    "all crashes on the CPU backend",
)
_HYBRID_PULL = pull(
    "vllm#54505",
    "Support mamba prefix-caching block tables in the CPU conv/SSM wrappers",
    "open",
)


class HybridCheckpoint(killed.KilledByRequest):
    """A prompt longer than a block ends a CPU's engine of a Mamba2 hybrid with prefix
    caching.

    What: On the CPU backend, a model of Mamba2 and attention layers is served with
    prefix caching, which is on by default. A prompt that is longer than a block of its
    cache gets HTTP 500: EngineCore is dead, and the server ends. A short one is
    answered, and so is the long one without prefix caching.

    Why: At the end of a block the state of the Mamba layers is kept, for requests that
    begin alike. The scan is asked for the states between its chunks. A GPU's kernel
    returns them; the CPU's function takes the argument and returns the last state of
    each request. The layer looks the chunks up in it, and there is none of that number.
    """

    name = "hybrid-checkpoint"
    release, affected = "0.33.0", ">=0.32.0"
    # Run: 0.33.0, the newest there is, and 0.32.0. By source
    # (layers/mamba/mamba_mixer2.py) 0.25.0 keeps no such states in a prefill; 0.26.0 to
    # 0.31.0 were not looked at.
    devices = ("cpu",)
    """A GPU's kernel returns the states (layers/mamba/ops/ssd_combined.py)."""
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("--enable-prefix-caching",)
    upstream = Upstream(UpstreamState.OPEN, _HYBRID_REPORT, "2026-11-26")
    references = (_HYBRID_REPORT, _HYBRID_PULL)
    model = TINY["granite-hybrid"]
    server = f"{killed.KilledByRequest.server} --enable-prefix-caching"
    refusal, died_of = "prefix", "an index beyond the states that the scan returned"
    log_patterns = {_BLOCK: r"lcm block sizes (\d+)"} | killed.of_the_killer(
        sent=rf"Received request .*max_tokens={_LONG_TOKENS},",
        raised=r"index \d+ is out of bounds for dimension 0 with size \d+",
        through=r"mamba_mixer2\.py\"?, line \d+, in conv_ssm_forward",
    )
    sources = (
        quote(
            "vllm/model_executor/layers/mamba/mamba_mixer2.py",
            "MambaMixer2.conv_ssm_forward",
            "the states between chunks are looked up by the number of the chunk",
            "varlen_states[last_chunk_indices_p]",
        ),
        quote(
            "vllm/model_executor/layers/mamba/ops/cpu/mamba_ssm.py",
            "_mamba_chunk_scan_combined_fwd_cpu",
            "a CPU's function makes one state a request, whatever it is asked for",
            "return_intermediate_states",
            "batch, nheads, headdim, dstate",
        ),
    )
    mitigations = (
        cure(
            "no-prefix-caching",
            "--no-enable-prefix-caching",
            "no prefix caching: no state between chunks is asked for",
        ),
    )

    @precondition(
        "its prompt is longer than a block", removed_by=("no-prefix-caching",)
    )
    def beyond_a_block(self, seen: Measured, logs: Logs) -> Finding:
        sizes = [
            int(found[1]) for found in logs.search(_BLOCK, r"lcm block sizes (\d+)")
        ]
        tokens = seen.number("tokens")
        if not sizes:
            return Finding.unknown("the engine did not log the size of its blocks")
        return Finding.of(
            tokens > max(sizes), f"{tokens:g} tokens, blocks of {max(sizes)}"
        )

    async def trigger(self, drive: Drive) -> None:
        drive.fact("tokens", await drive.traffic.count_tokens(_LONG))
        await drive.ask(killed.CONTROL, text=_SHORT, max_tokens=_SHORT_TOKENS)
        await drive.ask(killed.KILLER, text=_LONG, max_tokens=_LONG_TOKENS)
        await crash.watch(drive)

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "no-states",
            "the CPU's scan returns one state a request where those between chunks "
            "are asked for",
            by=("first-error", killed.THROUGH),
        ),
        said(
            "one-request",
            "prefix caching of a hybrid ends the engine on a CPU",
            by="symptom",
        ),
    )


HYBRID_CHECKPOINT = HybridCheckpoint()
