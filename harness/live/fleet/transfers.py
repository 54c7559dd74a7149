"""Which side of a transfer stands: prefill servers make KV caches, decode servers fetch
them. Pure.

A statement rests on what was read of both sides, never on what could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mmrepro.base.units import count as counted
from mmrepro.failure.documents import (
    Certainty,
    FleetFinding,
    FleetPart,
    FleetState,
    LiveClass,
    Member,
    ServerState,
)
from mmrepro.live.diagnose.classes import OWN_TOKENS, STANDSTILL_S, UNASKED_S
from mmrepro.live.fleet.look import Look, may_hang, names_of, on_their_way, state_of

ByPart = Mapping[FleetPart, Sequence[tuple[Member, Look]]]
"""The servers by what they are for, with what was seen of each."""
LOCAL = ("vllm:prompt_tokens_by_source_total", "source", "local_compute")
"""From vLLM 0.23 (v1/metrics/loggers.py)."""

_REMOTE = ("vllm:prompt_tokens_by_source_total", "source", "external_kv_transfer")

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

_LOCAL_SHARE = 0.5
"""A decode server computes the last token of each prompt itself, and what ends no
block."""

_LOCAL_TOKENS = 512

_LONG_PROMPT = 64
"""Mean tokens of a prompt: shorter ones may be health checks, which go past the
router."""

_SLOW = frozenset({ServerState.SLOW, ServerState.OVERLOADED, ServerState.NOT_READY})


def standing_transfers(by: ByPart) -> Iterator[FleetFinding]:
    """No KV cache goes from prefill to decode: which side stands."""
    prefill, decode = by.get(FleetPart.PREFILL, ()), by.get(FleetPart.DECODE, ())
    if not prefill or not decode:
        return
    both = (*prefill, *decode)
    waits = [server for server, look in decode if _in_transfer(look)]
    holds = [server for server, look in prefill if _in_transfer(look)]
    broken = [server for server, _ in both if _at_fault(server)]
    # A server that is unwell for itself is reported as such.
    if not waits and not holds and not any(_only_waits(server) for server, _ in both):
        return

    sentence, advice = _which_side(broken, waits, holds, prefill)
    certain = bool(broken) and bool(waits or holds)
    why = [f"{server.name} ({server.part}): {_counts(server)}" for server, _ in both]
    for server, look in both:
        why += [f"{server.name}: {failure}" for failure in _failed(look)]
    names = [server.name for server in (*broken, *waits, *holds)]
    yield FleetFinding(
        state=FleetState.TRANSFER_STANDS,
        certainty=Certainty.CERTAIN if certain else Certainty.LIKELY,
        sentence=sentence,
        servers=list(dict.fromkeys(names)),
        why=why,
        advice=[advice],
    )


def _which_side(
    broken: Sequence[Member],
    waits: Sequence[Member],
    holds: Sequence[Member],
    prefill: Sequence[tuple[Member, Look]],
) -> tuple[str, str]:
    """The sentence and the advice.

    Args:
        broken: servers that are at fault themselves.
        waits: decode servers that wait for a KV cache all the time.
        holds: prefill servers that have one to send all the time.
    """
    if broken:
        first = broken[0]
        return (
            f"The transfer is stuck on the {first.part} side: {first.name} is at fault. "
            f"{first.sentence}",
            f"begin with {first.name}; the other side only waits for it",
        )
    if waits and holds:
        return (
            f"The transfer stands between the two sides: {names_of(holds)} "
            f"{_has(holds)} KV caches to send, {names_of(waits)} {_wait(waits)} for "
            "them, and none arrives.",
            "look at what carries them: NIXL, Mooncake, the network between the two",
        )
    if waits:
        return (
            _nobody_sends(waits, prefill),
            "the prefill server has dropped it (restarted, expired), was never asked, "
            "or what carries it fails: compare both logs by the request's id",
        )
    return (
        f"The transfer is stuck on the decode side: {names_of(holds)} {_has(holds)} KV "
        "caches to send, and no decode server asks for one.",
        "the decode server does not know of them: look at the router and at its log",
    )


def _nobody_sends(
    waits: Sequence[Member], prefill: Sequence[tuple[Member, Look]]
) -> str:
    """The sentence where decode servers wait, and no prefill server holds anything."""
    idle = [server for server, _ in prefill]
    wait = f"{names_of(waits)} {_wait(waits)} for a KV cache"
    # A release that does not count what it has to send may have it all the same.
    if all(on_their_way(look) for _, look in prefill):
        return (
            f"The transfer is stuck on the prefill side: {wait}, and {names_of(idle)} "
            f"{_has(idle)} none to send."
        )
    return f"The transfer stands: {wait} that does not arrive; {_others(idle)}."


def _at_fault(server: Member) -> bool:
    """Whether it is unwell, neither merely slow nor waiting for the other side."""
    if server.well is not False or _only_waits(server):
        return False
    diagnosis = server.diagnosis
    if diagnosis is None:
        return True
    return bool(diagnosis.found) or diagnosis.state not in _SLOW


def _others(prefill: Sequence[Member]) -> str:
    """What is known of the servers that should send it."""
    blind = [server for server in prefill if server.well is None]
    if blind:
        return f"the state of {names_of(blind)} is undecided"

    be = "is" if len(prefill) == 1 else "are"
    known = f"{names_of(prefill)} {be} not at fault as far as can be seen"
    unwell = [server for server in prefill if not server.well]
    if not unwell:
        return known
    states = "; ".join(f"{server.name}: {state_of(server)}" for server in unwell)
    return f"{known} ({states})"


def _has(some: Sequence[Member]) -> str:
    return "has" if len(some) == 1 else "have"


def _wait(some: Sequence[Member]) -> str:
    return "waits" if len(some) == 1 else "wait"


def _in_transfer(look: Look) -> bool:
    """Whether some were all the time, for so long that no transfer takes it, and
    nothing but our own small request was worked on."""
    counts, view = on_their_way(look), look.view
    if view is None or len(counts) < 2 or not may_hang(look):
        return False
    seconds = counts[-1][0] - counts[0][0]
    # Where our own request hangs as well, a short standstill is enough.
    least_s = STANDSTILL_S if view.answer == "silent" else UNASKED_S
    if seconds < least_s:
        return False

    tokens = view.readings("generation_tokens")
    own = OWN_TOKENS if view.answer == "answered" else 0
    return len(tokens) >= 2 and tokens[-1] - tokens[0] <= own


def _only_waits(server: Member) -> bool:
    """Whether all that is wrong with it is that a transfer does not end."""
    diagnosis = server.diagnosis
    if diagnosis is None or diagnosis.exit_code == 0 or diagnosis.found:
        return False
    classes = {known.name for known in diagnosis.classes}
    return (
        diagnosis.state is ServerState.TRANSFER_STUCK
        or LiveClass.TRANSFER_STUCK in classes
    )


def _counts(server: Member) -> str:
    parts = []
    for short, values in server.counted.items():
        course = " → ".join(f"{value:g}" for value in values)
        parts.append(f"{short} {course}")
    return f"{state_of(server)}; {', '.join(parts) or 'no metrics'}"


def _failed(look: Look) -> Iterator[str]:
    """Counters of transfers that failed."""
    for name in FAILED:
        count = _total(look, name)
        if count:
            yield f"{name} is {count:.0f}"


def local_prefills(by: ByPart) -> Iterator[FleetFinding]:
    """A decode server that computes prompts which a prefill server should have
    computed. It answers, and says nothing of it."""
    for server, look in by.get(FleetPart.DECODE, ()):
        local, remote = _labelled(look, *LOCAL), _labelled(look, *_REMOTE)
        total, count = _total(look, PROMPTS[0]), _total(look, PROMPTS[1])
        if local is None or remote is None or not total or not count:
            continue
        share, mean = local / max(1.0, local + remote), total / count
        if local < _LOCAL_TOKENS or share < _LOCAL_SHARE or mean < _LONG_PROMPT:
            continue

        why = [
            f"of its prompt tokens {local:.0f} were computed there, {remote:.0f} came "
            "from another server",
            f"{counted(round(count), 'request')}, {mean:.0f} prompt tokens each",
        ]
        prefilled = _prefilled(by)
        if prefilled is not None:
            why.append(
                f"the prefill servers have computed {prefilled:.0f} prompt tokens"
            )
        yield FleetFinding(
            state=FleetState.PREFILLS_LOCALLY,
            certainty=Certainty.LIKELY,
            sentence=f"{server.name} is a decode server and computes {share:.0%} of "
            "its prompt tokens itself; it answers, and does not report this.",
            servers=[server.name],
            why=why,
            advice=[_local_advice(local, prefilled)],
        )


def _local_advice(local: float, prefilled: float | None) -> str:
    """What to look at, by the prompt tokens that a decode server and all prefill
    servers computed."""
    if prefilled is None:
        return "look at what the router sends it (kv_transfer_params), and at both logs"
    if prefilled >= local / 2:
        return "both sides compute: the transfer fails, look at both logs"
    return "the router does not ask the prefill side: look at its list of servers"


def _prefilled(by: ByPart) -> float | None:
    """Prompt tokens that the prefill servers count; None: none counts them."""
    counts: list[float] = []
    for server, _ in by.get(FleetPart.PREFILL, ()):
        values = server.counted.get("prompt_tokens")
        if values:
            counts.append(values[-1])
    return sum(counts) if counts else None


def _labelled(look: Look, name: str, label: str, value: str) -> float | None:
    """Sum over the last reading; None: it has none."""
    if not look.metrics:
        return None
    values: list[float] = []
    for sample in look.metrics[-1].samples:
        labelled = sample.name == name and sample.labels.get(label) == value
        if labelled and sample.value is not None:
            values.append(sample.value)
    return sum(values) if values else None


def _total(look: Look, name: str) -> float | None:
    """Total of a metric in the last reading; None: there is none."""
    metrics = look.metrics
    return metrics[-1].total(name) if metrics else None
