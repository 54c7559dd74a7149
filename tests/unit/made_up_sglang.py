"""Made-up evidence of SGLang's aliases, modelled on real runs. No run made it."""

from collections.abc import Callable
from typing import Any

from made_up import http, probed, request
from mmrepro.base.records import Fidelity
from mmrepro.failure.signature import Outcome, Truth, evaluate
from mmrepro.probes.data import LogsData
from mmrepro.runs.judge import judge as judge_run
from mmrepro.scenario import RunFacts, Scenario, sglang as sharing
from mmrepro.scenarios import shape_alias
from mmrepro.traffic.evidence import Evidence, ReproducerResult, RequestRecord

KV = shape_alias.SCENARIO
EMBEDDING = KV.with_variant("embedding-cache")
Change = Callable[[Evidence], object]

PROMPT, PREFIX = 32, 7


def said(whose: str, cached: int | None = 0, **more: Any) -> dict[str, Any]:
    """An answer with logprobs that are those of one picture."""
    number = sum(map(ord, whose))
    fields = {
        "tokens": [f"{whose}{i}" for i in range(4)],
        "logprobs": [-0.01 * (number + i) for i in range(4)],
        "text": whose,
        "prompt_tokens": PROMPT,
        "cached_tokens": cached,
        "finish_reason": "length",
    }
    return fields | more


def flushes() -> RequestRecord:
    return request("gate", sharing.FLUSH, path="/flush_cache")


def alone(*names: str) -> list[RequestRecord]:
    found = [flushes()]
    for name in names:
        found.append(request("gate", f"gate: {name} alone", **said(name)))
        found.append(request("gate", f"gate: {name} again", **said(name, PROMPT - 1)))
        found.append(
            request("gate", f"gate: {name} after others", **said(name, PREFIX))
        )
    return found


def log(calls: int = 0, loaded: int = 3) -> LogsData:
    counts = {
        "sgl_kernel_stub-loaded": loaded,
        "sgl_kernel_stub-called": calls,
        "vllm_names-called": 0,
        "cache-flushed": 1,
    }
    return LogsData(file="engine.log", bytes_read=9, lines=9, match_counts=counts)


def facts_of_pair(**more: Any) -> ReproducerResult:
    facts: dict[str, Any] = {
        "hash_a": "39ec1567e1977410",
        "hash_b": "08f735a321977410",
        "hash_control": "08f735a321977411",
        "pad_a": 563573776,
        "pad_b": 563573776,
        "pads_equal": True,
        "hashes_differ": True,
        "tokens": 14,
        "prefix_tokens": 3,
        "match_b_after_a": 14,
        "match_control_after_a": 3,
        "match_b_after_a_other_key": 0,
        "pad_of_0": 0,
        "pad_of_2_30_less_1": (1 << 30) - 1,
        "pad_of_2_30": 0,
    }
    return ReproducerResult(
        name="pad_value_collision.py", exit_code=0, seconds=6.0, facts=facts | more
    )


def run(*, collides: bool) -> Evidence:
    """A run as 0.5.6 (``collides``) or 0.5.23 gives it."""
    evidence = Evidence(requests=alone("A", "B", "control"))
    evidence.requests.insert(
        1, request("gate", "gate: other picture after another", **said("other", PREFIX))
    )
    for first, second in (("A", "B"), ("B", "A")):
        shared, whose = (PROMPT - 1, first) if collides else (PREFIX, second)
        evidence.requests += [
            request("trigger", f"{first} first", **said(first)),
            request("trigger", f"{second} after {first}", **said(whose, shared)),
            request("trigger", f"control after {first}", **said("control", PREFIX)),
        ]
    evidence.probes += [probed(http(200, 200)), probed(log())]
    evidence.reproducers.append(
        facts_of_pair()
        if collides
        else facts_of_pair(pads_equal=False, match_b_after_a=3, pad_of_2_30=77)
    )
    return evidence


def judge(
    scenario: Scenario,
    evidence: Evidence,
    fidelity: Fidelity = Fidelity.CPU_STAND_IN,
    mitigations: frozenset[str] = frozenset(),
) -> tuple[Outcome, dict[str, Truth]]:
    facts = RunFacts(scenario.release, fidelity, mitigations, 13.0)
    verdict = judge_run(scenario, evidence, facts)
    return verdict.outcome, {r.id: r.truth for r in verdict.conditions}


def setting(label: str, **fields: Any) -> Change:
    def change(evidence: Evidence) -> None:
        for record in evidence.requests:
            if record.label == label:
                for name, value in fields.items():
                    setattr(record, name, value)

    return change


def without(label: str) -> Change:
    def change(evidence: Evidence) -> None:
        evidence.requests = [r for r in evidence.requests if r.label != label]

    return change


def swapped(data: LogsData) -> Change:
    def change(evidence: Evidence) -> None:
        for result in evidence.probes:
            if result.probe == "logs":
                result.data = data

    return change


def filled(again: float) -> list[RequestRecord]:
    """Pictures that fill the embedding cache, each sent twice: seconds of the second
    time."""
    sent = {
        f"fill-{n}{more}": s
        for n in range(5)
        for more, s in (("", 1.0), (" again", again))
    }
    return [request("trigger", label, latency_s=s) for label, s in sent.items()]


def alias_run(scenario: Scenario, *, aliases: bool = True) -> Evidence:
    evidence = Evidence(requests=alone("W", "T", "control"))
    kv = scenario is KV
    for first, second in (("W", "T"), ("T", "W")):
        whose = (first if kv else f"{first}{second}") if aliases else second
        if not kv:
            later = f"{second} after {first} and others"
            evidence.requests.append(request("trigger", later, **said(whose)))
            evidence.requests += filled(0.2)
        shared = (PROMPT - 1 if aliases else PREFIX) if kv else 0
        evidence.requests += [
            request("trigger", f"{first} first", **said(first)),
            request("trigger", f"{second} after {first}", **said(whose, shared)),
            request(
                "trigger",
                f"control after {first}",
                **said("control", PREFIX if kv else 0),
            ),
        ]
    evidence.probes += [probed(http(200, 200)), probed(log())]
    hashes = {"bytes_equal": True, "hashes_equal": True, "grids_differ": True}
    evidence.reproducers.append(
        ReproducerResult(name="shape_alias.py", exit_code=0, seconds=5.0, facts=hashes)
    )
    return evidence


def truth(
    scenario: Scenario,
    evidence: Evidence,
    name: str,
    *mitigations: str,
    release: str = "",
) -> Truth:
    """Of one condition."""
    run_facts = RunFacts(
        release or scenario.release, Fidelity.CPU_STAND_IN, frozenset(mitigations), 13.0
    )
    results = evaluate(
        [c for c in scenario.conditions(run_facts) if c.id == name], evidence
    )
    return results[0].truth


def changed(evidence: Evidence, *changes: Change) -> Evidence:
    for change in changes:
        change(evidence)
    return evidence


def with_facts(**more: object) -> Change:
    return lambda evidence: evidence.reproducers[0].facts.update(more)  # type: ignore[arg-type]


def without_fact(name: str) -> Change:
    return lambda evidence: evidence.reproducers[0].facts.pop(name)
