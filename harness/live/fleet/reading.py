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
    TargetFacts,
)
from mmrepro.failure.documents.fleet import Finding, FleetState, Member, Part, Scraped
from mmrepro.live.diagnose.classes import OWN_TOKENS, STANDSTILL_S, UNASKED_S
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes.data import InferenceData, MetricsData
from mmrepro.traffic.evidence import Evidence

_SGLANG_MODE = "--disaggregation-mode"
_LMDEPLOY_ROLE = "--role"
_VLLM_CONFIG = "--kv-transfer-config"
_VLLM_ROLES = {"kv_producer": Part.PREFILL, "kv_consumer": Part.DECODE}
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
_LOCAL_SHARE = 0.5
"""A decode server computes the last token of each prompt itself, and what ends no
block."""
_LOCAL_TOKENS = 512
_LONG_PROMPT = 64
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
    def view(self) -> DiagnosisView | None:
        if self.diagnosis is None or self.evidence is None:
            return None
        return DiagnosisView(self.diagnosis.target, self.evidence)

    @property
    def metrics(self) -> list[MetricsData]:
        """Each reading of its metrics, oldest first."""
        if self.evidence is None:
            return []
        return [data for _, data in self.evidence.results(MetricsData, "check")]


# ------------------------------------------------------------------ one server


def part_of(
    command: Sequence[str], metrics: Sequence[MetricsData] = ()
) -> tuple[Part, str]:
    """What a server is for, and how that is known."""
    for name, value in pairwise(_words(command)):
        side: Part | None = None
        if name in (_SGLANG_MODE, _LMDEPLOY_ROLE):
            side = SIDES.get(value.lower())
        elif name == _VLLM_CONFIG:
            side = _VLLM_ROLES.get(_role(value))
        elif name == f"{_VLLM_CONFIG}.kv_role":
            side = _VLLM_ROLES.get(value)
        if side is not None:
            return side, f"its option {name}"
    # SGLang says so with each metric (srt/observability/metrics_collector.py).
    for data in metrics:
        labels = {sample.labels.get("engine_type", "") for sample in data.samples}
        kinds = labels & SIDES.keys()
        if len(kinds) == 1:
            kind = kinds.pop()
            return SIDES[kind], f'the label engine_type="{kind}" of its metrics'
    return Part.REPLICA, ""


def _words(command: Sequence[str]) -> list[str]:
    words: list[str] = []
    for word in command:
        words += _halves(word)
    return words


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
    diagnosis, view = look.diagnosis, look.view
    part, because = part_of(diagnosis.target.command if diagnosis else [], look.metrics)
    counted: dict[str, list[float]] = {}
    if view is not None:
        for short in ("running", "waiting", "prompt_tokens", "generation_tokens"):
            if values := view.readings(short):
                counted[short] = values
        transfers = [count for _, count in on_their_way(look)]
        if part is not Part.REPLICA and transfers:
            counted["transfers"] = transfers
    return Member(
        name=look.url.partition("://")[2].rstrip("/") or look.url,
        url=look.url,
        part=part,
        part_because=because,
        diagnosis=diagnosis,
        error=look.error,
        scraped=look.scraped,
        counted=counted,
    )


# ------------------------------------------------------------------ all of them


def read(looks: Sequence[Look]) -> tuple[list[Member], list[Finding]]:
    """The servers, and what is to be said of them together, the gravest first."""
    members = [member(look) for look in looks]
    by: dict[Part, list[tuple[Member, Look]]] = {}
    for server, look in zip(members, looks, strict=True):
        by.setdefault(server.part, []).append((server, look))
    for alike in by.values():
        _note_differences(alike)

    findings = [*_transfers(by)]
    about: set[str] = set()
    for finding in findings:
        about.update(finding.servers)
    for part, alike in by.items():
        findings += _odd(part, [server for server, _ in alike], about)
    return members, [*findings, *_local(by)]


def summary(
    members: Sequence[Member], findings: Sequence[Finding]
) -> tuple[FleetState, str]:
    """One state for all of them, and a sentence."""
    if findings:
        return findings[0].state, findings[0].sentence
    blind = [server for server in members if server.well is None]
    if blind:
        well = len(members) - len(blind)
        return FleetState.UNKNOWN, (
            f"{well} of {len(members)} servers are well; of {_names(blind)} it could "
            "not be told."
        )
    return FleetState.ALL_WELL, f"All {len(members)} servers are well."


def _names(members: Sequence[Member]) -> str:
    names = ", ".join(server.name for server in members[:SHOWN])
    if len(members) > SHOWN:
        names += f" and {len(members) - SHOWN} more"
    return names


def _state(server: Member) -> str:
    if server.diagnosis is None:
        return server.error or "not diagnosed"
    return STATE_WORDS[server.diagnosis.state].partition(":")[0]


def _each(unwell: Sequence[Member]) -> str:
    return "; ".join(f"{server.name}: {_state(server)}" for server in unwell[:SHOWN])


def _answer(well: Sequence[Member]) -> str:
    return "answers" if len(well) == 1 else "answer"


def _odd(part: Part, alike: Sequence[Member], about: set[str]) -> Iterator[Finding]:
    """Those that are unwell among servers that are for the same."""
    unwell = [server for server in alike if server.well is False]
    well = [server for server in alike if server.well]
    names = [server.name for server in unwell]
    if not unwell or about.issuperset(names):
        return
    kind = "servers" if part is Part.REPLICA else f"{part} servers"
    count = len(alike)
    why = _why_unwell(unwell, well)
    if not well:
        all_unwell = len(unwell) == count
        yield Finding(
            state=FleetState.ALL_UNWELL,
            certainty=Certainty.CERTAIN if all_unwell else Certainty.LIKELY,
            sentence=_none_works(unwell, count, kind),
            servers=names,
            why=why,
            advice=[
                "look at what they share: their traffic, their model, their release"
            ],
        )
        return
    if len(unwell) == 1:
        rest = f"{len(well)} of {count} {kind} {_answer(well)}"
        sentence = f"{names[0]} is the odd one out, {rest}: {unwell[0].sentence}"
    else:
        sentence = f"{len(unwell)} of {count} {kind} are unwell: {_each(unwell)}."
    yield Finding(
        state=FleetState.ODD_ONE_OUT,
        certainty=Certainty.CERTAIN,
        sentence=sentence,
        servers=names,
        why=why,
        advice=[f"take {_names(unwell)} out of the load balancer, then restart"],
    )


def _why_unwell(unwell: Sequence[Member], well: Sequence[Member]) -> list[str]:
    shown = unwell[:SHOWN]
    why = [f"{server.name}: {_state(server)}: {server.sentence}" for server in shown]
    if well:
        why.append(f"{_names(well)}: {_answer(well)}")
    for server in shown:
        why += [f"{server.name}: {difference}" for difference in server.differs]
    known: set[str] = set()
    for server in unwell:
        if server.diagnosis is not None:
            known.update(match.scenario for match in server.diagnosis.found)
    return why + [f"known failure: {name}" for name in sorted(known)]


def _none_works(unwell: Sequence[Member], count: int, kind: str) -> str:
    """The sentence where no server of ``kind`` is seen to be well."""
    first = unwell[0]
    if count == 1:
        return f"{first.name}, the only {kind[:-1]}, is unwell: {first.sentence}"
    if len(unwell) < count:
        return f"No {kind[:-1]} is seen to work: {_each(unwell)}."
    states = {_state(server) for server in unwell}
    if len(states) == 1:
        return f"All {count} {kind} are unwell: {_state(first)}."
    return f"All {count} {kind} are unwell: {_each(unwell)}."


def _note_differences(alike: Sequence[tuple[Member, Look]]) -> None:
    """Note in what each is unlike the others: release, model, options, the time of an
    answer."""
    members = [server for server, _ in alike]
    targets = [
        server.diagnosis.target if server.diagnosis else None for server in members
    ]
    for fact in ("release", "engine", "model"):
        values = [getattr(target, fact) if target else "" for target in targets]
        for server, value, usual in _unusual(members, values):
            server.differs.append(f"{fact} {value}, where the others have {usual}")
    _note_options(members, targets)
    _note_times(alike)


def _note_options(
    members: Sequence[Member], targets: Sequence[TargetFacts | None]
) -> None:
    # Of a server whose command line is not known no option is missing.
    options: list[dict[str, str] | None] = []
    names: set[str] = set()
    for target in targets:
        given = _options(target.command) if target and target.command else None
        options.append(given)
        names.update(given or ())
    for name in sorted(names):
        values = []
        for given in options:
            values.append("" if given is None else given.get(name, "-"))
        for server, value, usual in _unusual(members, values):
            has = "is not given" if value == "-" else f"is {value}"
            theirs = "do not have it" if usual == "-" else f"have {usual}"
            server.differs.append(f"{name} {has}, where the others {theirs}")


def _note_times(alike: Sequence[tuple[Member, Look]]) -> None:
    times: list[tuple[Member, float]] = []
    for server, look in alike:
        seconds = _answered_s(look)
        if seconds is not None:
            times.append((server, seconds))
    # Of two servers the slower one may be the usual one.
    if len(times) < 3:
        return
    for server, seconds in times:
        usual = median(other for member, other in times if member is not server)
        if seconds > SLOW_TIMES * usual and seconds > usual + SLOW_S:
            server.differs.append(
                f"a small request takes {seconds:.1f} s, with the others {usual:.1f} s"
            )


def _unusual(
    members: Sequence[Member], values: Sequence[str]
) -> Iterator[tuple[Member, str, str]]:
    """Each server whose value is known and is not what most have: it, its value, and
    theirs."""
    usual = _usual(values)
    if not usual:
        return
    for server, value in zip(members, values, strict=True):
        if value and value != usual:
            yield server, value, usual


def _usual(values: Sequence[str]) -> str:
    """What most have; "": there is none."""
    known = [value for value in values if value]
    if len(known) < 2:
        return ""
    first, count = Counter(known).most_common(1)[0]
    return first if count > len(known) / 2 else ""


def _options(command: Sequence[str]) -> dict[str, str]:
    """Option: its value, without those that are each server's own."""
    options = {}
    for name, value in pairwise([*_words(command), ""]):
        if not name.startswith("--") or OWN.match(name):
            continue
        has_value = value and not value.startswith("--")
        options[name] = value[:80] if has_value else "given"
    return options


def _answered_s(look: Look) -> float | None:
    if look.evidence is None:
        return None
    for _, data in look.evidence.results(InferenceData, "check"):
        if data.answered:
            return data.seconds
    return None


# ------------------------------------------------------------------ prefill and decode


By = Mapping[Part, Sequence[tuple[Member, Look]]]


def _transfers(by: By) -> Iterator[Finding]:
    """No KV cache goes from prefill to decode: which side stands."""
    prefill, decode = by.get(Part.PREFILL, ()), by.get(Part.DECODE, ())
    if not prefill or not decode:
        return
    both = (*prefill, *decode)
    waits = [server for server, look in decode if _in_transfer(look)]
    holds = [server for server, look in prefill if _in_transfer(look)]
    broken = [server for server, _ in both if _at_fault(server)]
    waiting = [server for server, _ in both if _only_waits(server)]
    if not waits and not holds and not waiting:
        return  # one that is unwell for itself is told as such

    why = [f"{server.name} ({server.part}): {_counts(server)}" for server, _ in both]
    for server, look in both:
        why += [f"{server.name}: {failure}" for failure in _failed(look)]
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
        sentence = _nobody_sends(waits, prefill)
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
    names = [server.name for server in (*broken, *waits, *holds)]
    yield Finding(
        state=FleetState.TRANSFER_STANDS,
        certainty=certainty,
        sentence=sentence,
        servers=list(dict.fromkeys(names)),
        why=why,
        advice=[advice],
    )


def _nobody_sends(
    waits: Sequence[Member], prefill: Sequence[tuple[Member, Look]]
) -> str:
    """The sentence where decode servers wait, and no prefill server holds anything."""
    idle = [server for server, _ in prefill]
    wait = f"{_names(waits)} {_wait(waits)} for a KV cache"
    # A release that does not count what it has to send may have it all the same.
    if all(on_their_way(look) for _, look in prefill):
        return (
            f"The transfer stands on the prefill side: {wait}, and {_names(idle)} "
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
    return bool(diagnosis.found) or diagnosis.state not in SLOW


def _others(prefill: Sequence[Member]) -> str:
    """What is known of the servers that should send it."""
    blind = [server for server in prefill if server.well is None]
    if blind:
        return f"of {_names(blind)} it could not be told how it is"
    be = "is" if len(prefill) == 1 else "are"
    known = f"{_names(prefill)} {be} not at fault as far as can be seen"
    slow = [f"{server.name}: {_state(server)}" for server in prefill if not server.well]
    return f"{known} ({'; '.join(slow)})" if slow else known


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
    transfers = view.timed("transfers")
    if transfers or part_of(view.facts.command)[0] is not Part.DECODE:
        return transfers
    # Before 0.32 a vLLM counts them with all that it puts off; its prefill server
    # counts none.
    return view.timed("waiting_deferred")


def may_hang(look: Look) -> bool:
    """Whether some were on their way in every reading so far."""
    counts = [count for _, count in on_their_way(look)]
    return bool(counts) and min(counts) >= 1


def _in_transfer(look: Look) -> bool:
    """Whether some were all the time, for so long that no transfer takes it, and
    nothing but our own small request was worked on."""
    counts, view = on_their_way(look), look.view
    if view is None or len(counts) < 2 or not may_hang(look):
        return False
    seconds = counts[-1][0] - counts[0][0]
    if seconds < (STANDSTILL_S if view.answer == "silent" else UNASKED_S):
        return False
    made = view.readings("generation_tokens")
    own = OWN_TOKENS if view.answer == "answered" else 0
    return len(made) >= 2 and made[-1] - made[0] <= own


def _only_waits(server: Member) -> bool:
    """Whether all that is wrong with it is that a transfer does not end."""
    diagnosis = server.diagnosis
    if diagnosis is None or diagnosis.exit_code == 0 or diagnosis.found:
        return False
    if diagnosis.state is ServerState.TRANSFER_STUCK:
        return True
    return any(c.name is LiveClass.TRANSFER_STUCK for c in diagnosis.classes)


def _counts(server: Member) -> str:
    parts = []
    for short, values in server.counted.items():
        course = " → ".join(f"{value:g}" for value in values)
        parts.append(f"{short} {course}")
    return f"{_state(server)}; {', '.join(parts) or 'no metrics'}"


def _failed(look: Look) -> Iterator[str]:
    """Counters of transfers that failed."""
    for name in FAILED:
        if count := _plain(look, name):
            yield f"{name} is {count:.0f}"


def _local(by: By) -> Iterator[Finding]:
    """A decode server that computes prompts which a prefill server should have
    computed. It answers, and says nothing of it."""
    for server, look in by.get(Part.DECODE, ()):
        local, remote = _labelled(look, *LOCAL), _labelled(look, *REMOTE)
        total, count = (_plain(look, name) for name in PROMPTS)
        if local is None or remote is None or not total or not count:
            continue
        share, mean = local / max(1.0, local + remote), total / count
        if local < _LOCAL_TOKENS or share < _LOCAL_SHARE or mean < _LONG_PROMPT:
            continue
        why = [
            f"of its prompt tokens {local:.0f} were computed there, {remote:.0f} came "
            "from another server",
            f"{count:.0f} requests, {mean:.0f} prompt tokens each",
        ]
        advice = (
            "look at what the router sends it (kv_transfer_params), and at both logs"
        )
        prefilled = _prefilled(by)
        if prefilled is not None:
            why.append(
                f"the prefill servers have computed {prefilled:.0f} prompt tokens"
            )
            if prefilled >= local / 2:
                advice = "both sides compute: the transfer fails, look at both logs"
            else:
                advice = (
                    "the router does not ask the prefill side: look at its list of "
                    "servers"
                )
        yield Finding(
            state=FleetState.PREFILLS_LOCALLY,
            certainty=Certainty.LIKELY,
            sentence=f"{server.name} is a decode server and computes {share:.0%} of "
            "its prompt tokens itself; it answers, and says nothing of it.",
            servers=[server.name],
            why=why,
            advice=[advice],
        )


def _prefilled(by: By) -> float | None:
    """Prompt tokens that the prefill servers count; None: none counts them."""
    counts = []
    for server, _ in by.get(Part.PREFILL, ()):
        if values := server.counted.get("prompt_tokens"):
            counts.append(values[-1])
    return sum(counts) if counts else None


def _labelled(look: Look, name: str, label: str, value: str) -> float | None:
    """Sum over the last reading; None: it has none."""
    metrics = look.metrics
    values = []
    for sample in metrics[-1].samples if metrics else ():
        labelled = sample.name == name and sample.labels.get(label) == value
        if labelled and sample.value is not None:
            values.append(sample.value)
    return sum(values) if values else None


def _plain(look: Look, name: str) -> float | None:
    metrics = look.metrics
    return metrics[-1].total(name) if metrics else None
