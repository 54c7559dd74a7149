"""What was seen of one server of several: its diagnosis, what it is for, and the KV
caches that are on their way to or from it. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mmrepro.failure.documents import STATE_WORDS, Diagnosis, FleetPart, Member, Scraped
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes import MetricsData
from mmrepro.traffic.evidence import Evidence

_SGLANG_MODE = "--disaggregation-mode"

_LMDEPLOY_ROLE = "--role"

_VLLM_CONFIG = "--kv-transfer-config"

_VLLM_ROLES = {"kv_producer": FleetPart.PREFILL, "kv_consumer": FleetPart.DECODE}
"""Of vllm/config/kv_transfer.py. ``kv_both``, which is usual with NIXL, names no
side."""

_SIDES = {"prefill": FleetPart.PREFILL, "decode": FleetPart.DECODE}

SHOWN = 4


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


def part_of(
    command: Sequence[str], metrics: Sequence[MetricsData] = ()
) -> tuple[FleetPart, str]:
    """What a server is for, and how that is known."""
    for option, value in pairwise(option_words(command)):
        side = _side(option, value)
        if side is not None:
            return side, f"its option {option}"

    # SGLang says so with each metric (srt/observability/metrics_collector.py).
    for data in metrics:
        labels = {sample.labels.get("engine_type", "") for sample in data.samples}
        kinds = labels & _SIDES.keys()
        if len(kinds) == 1:
            kind = kinds.pop()
            return _SIDES[kind], f'the label engine_type="{kind}" of its metrics'
    return FleetPart.REPLICA, ""


def _side(option: str, value: str) -> FleetPart | None:
    """The side of a transfer that an option with this value names."""
    if option in (_SGLANG_MODE, _LMDEPLOY_ROLE):
        return _SIDES.get(value.lower())
    if option == _VLLM_CONFIG:
        return _VLLM_ROLES.get(_role(value))
    if option == f"{_VLLM_CONFIG}.kv_role":
        return _VLLM_ROLES.get(value)
    return None


def option_words(command: Sequence[str]) -> list[str]:
    """The words of a command, ``--option=value`` as two."""
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
    diagnosis = look.diagnosis
    part, because = part_of(diagnosis.target.command if diagnosis else [], look.metrics)
    return Member(
        name=look.url.partition("://")[2].rstrip("/") or look.url,
        url=look.url,
        part=part,
        part_because=because,
        diagnosis=diagnosis,
        error=look.error,
        scraped=look.scraped,
        counted=_counted(look, part),
    )


def _counted(look: Look, part: FleetPart) -> dict[str, list[float]]:
    """What its metrics count, a value a reading; what it does not count is left out."""
    counted: dict[str, list[float]] = {}
    if look.view is None:
        return counted
    for short in ("running", "waiting", "prompt_tokens", "generation_tokens"):
        values = look.view.readings(short)
        if values:
            counted[short] = values
    transfers = [count for _, count in on_their_way(look)]
    if part is not FleetPart.REPLICA and transfers:
        counted["transfers"] = transfers
    return counted


def names_of(members: Sequence[Member]) -> str:
    """Names of servers, the first few of many."""
    names = ", ".join(server.name for server in members[:SHOWN])
    if len(members) > SHOWN:
        names += f" and {len(members) - SHOWN} more"
    return names


def state_of(server: Member) -> str:
    """The state of a server in a few words."""
    if server.diagnosis is None:
        return server.error or "not diagnosed"
    return STATE_WORDS[server.diagnosis.state].partition(":")[0]


def on_their_way(look: Look) -> list[tuple[float, float]]:
    """Monotonic second and count of the requests that wait for a KV cache, or for who
    fetches it, in each reading."""
    view = look.view
    if view is None:
        return []
    transfers = view.timed("transfers")
    if transfers or part_of(view.facts.command)[0] is not FleetPart.DECODE:
        return transfers
    # Before 0.32 a vLLM counts them with all that it puts off; its prefill server
    # counts none.
    return view.timed("waiting_deferred")


def may_hang(look: Look) -> bool:
    """Whether some were on their way in every reading so far."""
    counts = [count for _, count in on_their_way(look)]
    return bool(counts) and min(counts) >= 1
