"""What several looks say together: who is unlike the others, which side of a transfer
stands. Pure.

A replica is compared with those that are for the same; a decode server with the prefill
servers. A statement rests on what was read of both sides, never on what could not be
read."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from mmrepro.failure.documents.diagnosis import (
    STATE_WORDS,
    Certainty,
    Diagnosis,
    LiveClass,
    ServerState,
)
from mmrepro.failure.documents.fleet import Finding, FleetState, Member, Part, Scraped
from mmrepro.live.diagnose.classes import OWN_TOKENS, STANDSTILL_S, UNASKED_S
from mmrepro.live.diagnose.readings import View
from mmrepro.probes.data import InferenceData, MetricsData
from mmrepro.traffic.evidence import Evidence

SGLANG_MODE = "--disaggregation-mode"
LMDEPLOY_ROLE = "--role"
VLLM_CONFIG = "--kv-transfer-config"
VLLM_ROLES = {"kv_producer": Part.PREFILL, "kv_consumer": Part.DECODE}
"""Of vllm/config/kv_transfer.py. ``kv_both``, which is usual with NIXL, names no
side."""
SIDES = {"prefill": Part.PREFILL, "decode": Part.DECODE}
LOCAL = ("vllm:prompt_tokens_by_source_total", "source", "local_compute")
"""From vLLM 0.23 (v1/metrics/loggers.py)."""
REMOTE = ("vllm:prompt_tokens_by_source_total", "source", "external_kv_transfer")
FAILED = (
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_failed_notifications_total",
    "vllm:nixl_num_kv_expired_reqs_total",
    "sglang:num_bootstrap_failed_reqs_total",
    "sglang:num_transfer_failed_reqs_total",
)
"""vLLM 0.32 (kv_connector/v1/nixl/stats.py), SGLang 0.5.23
(observability/metrics_collector.py)."""
PROMPTS = ("vllm:request_prompt_tokens_sum", "vllm:request_prompt_tokens_count")
LOCAL_SHARE = 0.5
"""A decode server computes the last token of each prompt itself, and what ends no
block."""
LOCAL_TOKENS = 512
LONG_PROMPT = 64
"""Mean tokens of a prompt: shorter ones may be health checks, which go past the
router."""
SLOW_TIMES, SLOW_S = 5.0, 2.0
"""A small request that takes so many times as long as with the median, and so much
longer."""
SLOW = frozenset({ServerState.SLOW, ServerState.OVERLOADED, ServerState.NOT_READY})
SHOWN = 4
OWN = re.compile(
    r"^--?(?:port|host|.*-port|.*-ip|.*-addr(?:ess)?|.*-rank|node-id|.*-host|uds|seed"
    r"|root-path"
    r"|base-gpu-id|.*-init-addr|.*-log.*|device|name)$"
)
"""Options that are each server's own."""


@dataclass(frozen=True)
class Look:
    """``evidence``: of the diagnosis; None: there is none."""

    url: str
    diagnosis: Diagnosis | None = None
    evidence: Evidence | None = None
    error: str = ""
    scraped: Scraped | None = None

    @property
    def view(self) -> View | None:
        if self.diagnosis is None or self.evidence is None:
            return None
        return View(self.diagnosis.target, self.evidence)


# ------------------------------------------------------------------ one server


def part_of(
    command: Sequence[str], metrics: Sequence[MetricsData] = ()
) -> tuple[Part, str]:
    """What a server is for, and how that is known."""
    words = [part for word in command for part in _halves(word)]
    for name, value in pairwise(words):
        side: Part | None = None
        if name in (SGLANG_MODE, LMDEPLOY_ROLE):
            side = SIDES.get(value.lower())
        elif name == VLLM_CONFIG:
            side = VLLM_ROLES.get(_role(value))
        elif name == f"{VLLM_CONFIG}.kv_role":
            side = VLLM_ROLES.get(value)
        if side is not None:
            return side, f"its option {name}"
    # SGLang says so with each metric (srt/observability/metrics_collector.py).
    for data in metrics:
        kinds = {s.labels.get("engine_type", "") for s in data.samples} & SIDES.keys()
        if len(kinds) == 1:
            return SIDES[
                kind := kinds.pop()
            ], f'the label engine_type="{kind}" of its metrics'
    return Part.REPLICA, ""


def _halves(word: str) -> list[str]:
    """``--option=value`` as two words; a value with ``=`` in it is one."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name.startswith("--") else [word]


def _role(text: str) -> str:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(config.get("kv_role", "")) if isinstance(config, dict) else ""


def member(look: Look) -> Member:
    """One server of several, without what only the others show."""
    found, view = look.diagnosis, look.view
    metrics = (
        [d for _, d in look.evidence.results(MetricsData, "check")]
        if look.evidence
        else []
    )
    part, because = part_of(found.target.command if found else [], metrics)
    counted = {}
    if view is not None:
        shorts = ("running", "waiting", "prompt_tokens", "generation_tokens")
        counted = {s: values for s in shorts if (values := view.readings(s))}
        if part is not Part.REPLICA and (read := on_their_way(look)):
            counted["transfers"] = [count for _, count in read]
    return Member(
        name=look.url.partition("://")[2].rstrip("/") or look.url,
        url=look.url,
        part=part,
        part_because=because,
        diagnosis=found,
        error=look.error,
        scraped=look.scraped,
        counted=counted,
    )


# ------------------------------------------------------------------ all of them


def read(looks: Sequence[Look]) -> tuple[list[Member], list[Finding]]:
    """The servers, and what is to be said of them together, the gravest first."""
    members = [member(look) for look in looks]
    by: dict[Part, list[tuple[Member, Look]]] = {}
    for one, look in zip(members, looks, strict=True):
        by.setdefault(one.part, []).append((one, look))
    for alike in by.values():
        _differences(alike)
    findings = [*_transfers(by)]
    about = {name for one in findings for name in one.servers}
    for part, alike in by.items():
        findings += _odd(part, [one for one, _ in alike], about)
    return members, [*findings, *_local(by)]


def summary(
    members: Sequence[Member], findings: Sequence[Finding]
) -> tuple[FleetState, str]:
    """One state for all of them, and a sentence."""
    if findings:
        return findings[0].state, findings[0].sentence
    blind = [one for one in members if one.well is None]
    if blind:
        well = len(members) - len(blind)
        return FleetState.UNKNOWN, (
            f"{well} of {len(members)} servers are well; of {_names(blind)} it could "
            "not be told."
        )
    return FleetState.ALL_WELL, f"All {len(members)} servers are well."


def _names(members: Sequence[Member]) -> str:
    more = f" and {len(members) - SHOWN} more" if len(members) > SHOWN else ""
    return ", ".join(one.name for one in members[:SHOWN]) + more


def _state(one: Member) -> str:
    if one.diagnosis is None:
        return one.error or "not diagnosed"
    return STATE_WORDS[one.diagnosis.state].partition(":")[0]


def _odd(part: Part, alike: Sequence[Member], about: set[str]) -> Iterator[Finding]:
    """Those that are unwell among servers that are for the same."""
    unwell = [one for one in alike if one.well is False]
    well = [one for one in alike if one.well]
    if not unwell or {one.name for one in unwell} <= about:
        return
    kind = "servers" if part is Part.REPLICA else f"{part} servers"
    why = [f"{one.name}: {_state(one)}: {one.sentence}" for one in unwell[:SHOWN]]
    why += (
        [f"{_names(well)}: {'answers' if len(well) == 1 else 'answer'}"] if well else []
    )
    why += [f"{one.name}: {text}" for one in unwell[:SHOWN] for text in one.differs]
    first, count = unwell[0], len(alike)
    known = sorted(
        {m.scenario for one in unwell if one.diagnosis for m in one.diagnosis.found}
    )
    why += [f"known failure: {name}" for name in known]
    if not well:
        each = "; ".join(f"{one.name}: {_state(one)}" for one in unwell[:SHOWN])
        if count == 1:
            sentence = (
                f"{first.name}, the only {kind[:-1]}, is unwell: {first.sentence}"
            )
        elif len(unwell) < count:
            sentence = f"No {kind[:-1]} is seen to work: {each}."
        elif len({_state(one) for one in unwell}) == 1:
            sentence = f"All {count} {kind} are unwell: {_state(first)}."
        else:
            sentence = f"All {count} {kind} are unwell: {each}."
        yield Finding(
            state=FleetState.ALL_UNWELL,
            certainty=Certainty.CERTAIN if len(unwell) == count else Certainty.LIKELY,
            sentence=sentence,
            servers=[one.name for one in unwell],
            why=why,
            advice=[
                "look at what they share: their traffic, their model, their release"
            ],
        )
        return
    rest = f"{len(well)} of {count} {kind} {'answers' if len(well) == 1 else 'answer'}"
    if len(unwell) == 1:
        sentence = f"{first.name} is the odd one out, {rest}: {first.sentence}"
    else:
        each = "; ".join(f"{one.name}: {_state(one)}" for one in unwell[:SHOWN])
        sentence = f"{len(unwell)} of {count} {kind} are unwell: {each}."
    yield Finding(
        state=FleetState.ODD_ONE_OUT,
        certainty=Certainty.CERTAIN,
        sentence=sentence,
        servers=[one.name for one in unwell],
        why=why,
        advice=[f"take {_names(unwell)} out of the load balancer, then restart"],
    )


def _differences(alike: Sequence[tuple[Member, Look]]) -> None:
    """Note in what each is unlike the others: release, model, options, the time of an
    answer."""
    targets = [one.diagnosis.target if one.diagnosis else None for one, _ in alike]
    facts: Mapping[str, list[str]] = {
        "release": [t.release if t else "" for t in targets],
        "engine": [t.engine if t else "" for t in targets],
        "model": [t.model if t else "" for t in targets],
    }
    for what, values in facts.items():
        usual = _usual(values)
        for (one, _), value in zip(alike, values, strict=True):
            if usual and value and value != usual:
                one.differs.append(f"{what} {value}, where the others have {usual}")
    options = [_options(t.command) if t and t.command else None for t in targets]
    for name in sorted({name for one in options if one for name in one}):
        values = ["" if o is None else o.get(name, "-") for o in options]
        usual = _usual(values)
        for (one, _), value in zip(alike, values, strict=True):
            if usual and value and value != usual:
                has = "is not given" if value == "-" else f"is {value}"
                theirs = "do not have it" if usual == "-" else f"have {usual}"
                one.differs.append(f"{name} {has}, where the others {theirs}")
    took = [
        (one, seconds)
        for one, look in alike
        if (seconds := _answered_s(look)) is not None
    ]
    for one, seconds in took if len(took) > 2 else []:
        others = median(other for who, other in took if who is not one)
        if seconds > SLOW_TIMES * others and seconds > others + SLOW_S:
            one.differs.append(
                f"a small request takes {seconds:.1f} s, with the others {others:.1f} s"
            )


def _usual(values: Sequence[str]) -> str:
    """What most have; "": there is none."""
    known = [value for value in values if value]
    if len(known) < 2:
        return ""
    (first, count), *rest = Counter(known).most_common(2)
    return first if count > len(known) / 2 or (not rest and count == len(known)) else ""


def _options(command: Sequence[str]) -> dict[str, str]:
    words = [part for word in command for part in _halves(word)]
    found = {}
    for name, value in pairwise([*words, ""]):
        if name.startswith("--") and not OWN.match(name):
            found[name] = (
                value[:80] if value and not value.startswith("--") else "given"
            )
    return found


def _answered_s(look: Look) -> float | None:
    results = look.evidence.results(InferenceData, "check") if look.evidence else ()
    return next((data.seconds for _, data in results if data.answered), None)


# ------------------------------------------------------------------ prefill and decode


By = Mapping[Part, Sequence[tuple[Member, Look]]]


def _transfers(by: By) -> Iterator[Finding]:
    """No KV cache goes from prefill to decode: which side stands."""
    prefill, decode = by.get(Part.PREFILL, ()), by.get(Part.DECODE, ())
    if not prefill or not decode:
        return
    waits = [one for one, look in decode if _in_transfer(look)]
    holds = [one for one, look in prefill if _in_transfer(look)]
    broken = [one for one, _ in (*prefill, *decode) if _at_fault(one)]
    if (
        not waits
        and not holds
        and not any(_only_waits(one) for one, _ in (*prefill, *decode))
    ):
        return  # one that is unwell for itself is told as such
    both = (*prefill, *decode)
    why = [f"{one.name} ({one.part}): {_counts(one)}" for one, _ in both]
    why += [f"{one.name}: {text}" for one, look in both for text in _failed(look)]
    servers = [one.name for one in (*broken, *waits, *holds)]
    certainty = Certainty.LIKELY
    if broken:
        first = broken[0]
        sentence = (
            f"The transfer stands on the {first.part} side: {first.name} is at fault. "
            f"{first.sentence}"
        )
        advice = f"begin with {first.name}; the other side only waits for it"
        certainty = Certainty.CERTAIN if waits or holds else Certainty.LIKELY
    elif waits and holds:
        sentence = (
            f"The transfer stands between the two sides: {_names(holds)} {_has(holds)} "
            f"KV caches to send, {_names(waits)} {_wait(waits)} for them, and none "
            "arrives."
        )
        advice = (
            "look at what carries them: NIXL, Mooncake, the network between the two"
        )
    elif waits:
        idle = [one for one, _ in prefill]
        knows = all(on_their_way(look) for _, look in prefill)
        sentence = (
            f"The transfer stands on the prefill side: {_names(waits)} {_wait(waits)} "
            f"for a KV cache, and {_names(idle)} {_has(idle)} none to send."
            if knows
            else f"The transfer stands: {_names(waits)} {_wait(waits)} for a KV cache "
            f"that does not arrive; {_others(idle)}."
        )
        advice = (
            "the prefill server has dropped it (restarted, expired), was never asked, "
            "or what carries it fails: compare both logs by the request's id"
        )
    else:
        sentence = (
            f"The transfer stands on the decode side: {_names(holds)} {_has(holds)} KV "
            "caches to send, and no decode server asks for one."
        )
        advice = (
            "the decode server does not know of them: look at the router and at its log"
        )
    yield Finding(
        state=FleetState.TRANSFER_STANDS,
        certainty=certainty,
        sentence=sentence,
        servers=list(dict.fromkeys(servers)),
        why=why,
        advice=[advice],
    )


def _at_fault(one: Member) -> bool:
    """Whether it is unwell, neither merely slow nor waiting for the other side."""
    found = one.diagnosis
    slow = found is not None and not found.found and found.state in SLOW
    return one.well is False and not slow and not _only_waits(one)


def _others(prefill: Sequence[Member]) -> str:
    """What is known of the servers that should send it."""
    blind = [one for one in prefill if one.well is None]
    if blind:
        return f"of {_names(blind)} it could not be told how it is"
    slow = [f"{one.name}: {_state(one)}" for one in prefill if not one.well]
    be = "is" if len(prefill) == 1 else "are"
    seen = f"{_names(prefill)} {be} not at fault as far as can be seen"
    return f"{seen} ({'; '.join(slow)})" if slow else seen


def _has(some: Sequence[Member]) -> str:
    return "has" if len(some) == 1 else "have"


def _wait(some: Sequence[Member]) -> str:
    return "waits" if len(some) == 1 else "wait"


def on_their_way(look: Look) -> list[tuple[float, float]]:
    """Monotonic second and count of the requests that wait for a KV cache, or for who
    fetches it, in each reading."""
    view = look.view
    if view is None:
        return []
    decodes = part_of(view.facts.command)[0] is Part.DECODE
    # Before 0.32 a vLLM counts them with all that it puts off; its prefill server
    # counts none.
    return view.timed("transfers") or (
        view.timed("waiting_deferred") if decodes else []
    )


def may_hang(look: Look) -> bool:
    """Whether some were on their way in every reading so far."""
    counts = [count for _, count in on_their_way(look)]
    return bool(counts) and min(counts) >= 1


def _in_transfer(look: Look) -> bool:
    """Whether some were all the time, for so long that no transfer takes it, and
    nothing but our own small request was worked on."""
    read, view = on_their_way(look), look.view
    if view is None or len(read) < 2 or not may_hang(look):
        return False
    seconds = read[-1][0] - read[0][0]
    if seconds < (STANDSTILL_S if view.answer == "silent" else UNASKED_S):
        return False
    made = view.readings("generation_tokens")
    own = OWN_TOKENS if view.answer == "answered" else 0
    return len(made) >= 2 and made[-1] - made[0] <= own


def _only_waits(one: Member) -> bool:
    """Whether all that is wrong with it is that a transfer does not end."""
    found = one.diagnosis
    if found is None or found.exit_code == 0 or found.found:
        return False
    named = {c.name for c in found.classes}
    return (
        found.state is ServerState.TRANSFER_STUCK or LiveClass.TRANSFER_STUCK in named
    )


def _counts(one: Member) -> str:
    parts = [
        f"{s} " + " → ".join(f"{v:g}" for v in vs) for s, vs in one.counted.items()
    ]
    return f"{_state(one)}; {', '.join(parts) or 'no metrics'}"


def _failed(look: Look) -> Iterator[str]:
    """Counters of transfers that failed."""
    for name in FAILED:
        if count := _plain(look, name):
            yield f"{name} is {count:.0f}"


def _local(by: By) -> Iterator[Finding]:
    """A decode server that computes prompts which a prefill server should have
    computed. It answers, and says nothing of it."""
    for one, look in by.get(Part.DECODE, ()):
        local, remote = _labelled(look, *LOCAL), _labelled(look, *REMOTE)
        total, count = (_plain(look, name) for name in PROMPTS)
        if local is None or remote is None or not total or not count:
            continue
        share, mean = local / max(1.0, local + remote), total / count
        if local < LOCAL_TOKENS or share < LOCAL_SHARE or mean < LONG_PROMPT:
            continue
        asked = [
            m.counted["prompt_tokens"][-1]
            for m, _ in by.get(Part.PREFILL, ())
            if m.counted.get("prompt_tokens")
        ]
        why = [
            f"of its prompt tokens {local:.0f} were computed there, {remote:.0f} came "
            "from another server",
            f"{count:.0f} requests, {mean:.0f} prompt tokens each",
        ]
        advice = (
            "look at what the router sends it (kv_transfer_params), and at both logs"
        )
        if asked:
            why.append(
                f"the prefill servers have computed {sum(asked):.0f} prompt tokens"
            )
            advice = (
                "both sides compute: the transfer fails, look at both logs"
                if sum(asked) >= local / 2
                else (
                    "the router does not ask the prefill side: look at its "
                    "list of servers"
                )
            )
        yield Finding(
            state=FleetState.PREFILLS_LOCALLY,
            certainty=Certainty.LIKELY,
            sentence=f"{one.name} is a decode server and computes {share:.0%} of its "
            "prompt tokens itself; it answers, and says nothing of it.",
            servers=[one.name],
            why=why,
            advice=[advice],
        )


def _labelled(look: Look, name: str, label: str, value: str) -> float | None:
    """Sum over the last reading; None: it has none."""
    metrics = (
        [d for _, d in look.evidence.results(MetricsData, "check")]
        if look.evidence
        else []
    )
    values = [
        s.value
        for s in (metrics[-1].samples if metrics else [])
        if s.name == name and s.labels.get(label) == value and s.value is not None
    ]
    return sum(values) if values else None


def _plain(look: Look, name: str) -> float | None:
    metrics = (
        [d for _, d in look.evidence.results(MetricsData, "check")]
        if look.evidence
        else []
    )
    return metrics[-1].total(name) if metrics else None
