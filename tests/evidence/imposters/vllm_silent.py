"""Imposters of capacity-never and uuid-alias."""

from __future__ import annotations

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.data import MetricsData
from mmrepro.scenario.vllm import BY_REASON
from mmrepro.scenarios.capacity_never import PROMPT
from mmrepro.scenarios.vllm_mm_caches import X_SHARED, Y_OWN, Y_SHARED

from imposters import Imposter
from imposters.minivllm import logged
from imposters.prefill_edits import of
from imposters.vllm_edits import Edit, fact, late, reply

NOT_REPRODUCED, OTHER = Outcome.NOT_REPRODUCED, Outcome.DIFFERENT_FAILURE
UNDECIDED = Outcome.INCONCLUSIVE
CAPACITY, UUID = "capacity-never-0.23.0", "uuid-alias-0.23.0"


def metric(name: str, value: float | None) -> Edit:
    """In every reading of the check; a value of None: the server does not tell it."""

    def edit(incident: Incident) -> None:
        for _, data in incident.evidence.results(MetricsData, "check"):
            if value is None:
                data.samples = [
                    sample for sample in data.samples if sample.name != name
                ]
            for sample in data.samples:
                if sample.name == name:
                    sample.value = value

    return edit


def answered_as(label: str, other: str) -> Edit:
    """The request called so got the other one's answer."""

    def edit(incident: Incident) -> None:
        theirs = incident.evidence.labelled(other)[-1]
        for mine in incident.evidence.labelled(label):
            mine.text, mine.tokens, mine.logprobs = (
                theirs.text,
                theirs.tokens,
                theirs.logprobs,
            )

    return edit


IMPOSTERS = [
    Imposter(
        "capacity: a full cache",
        CAPACITY,
        "overload",
        "the KV cache is in use: it waits for others to end",
        metric("vllm:kv_cache_usage_perc", 0.9),
        OTHER,
        ("hangs", "blocks-queue", "null-block"),
    ),
    Imposter(
        "capacity: others run",
        CAPACITY,
        "overload",
        "requests are running meanwhile",
        metric("vllm:num_requests_running", 1.0),
        OTHER,
        ("hangs", "blocks-queue", "null-block"),
    ),
    Imposter(
        "capacity: the reason is not told",
        CAPACITY,
        "absent-probe",
        "the server does not count by reason",
        metric(BY_REASON, None),
        UNDECIDED,
        ("hangs", "blocks-queue", "null-block"),
    ),
    Imposter(
        "capacity: nothing waits",
        CAPACITY,
        "other-cause",
        "the scheduler counts nothing as waiting: the request is lost elsewhere",
        metric("vllm:num_requests_waiting", 0.0),
        OTHER,
        ("hangs", "blocks-queue", "null-block", "empty-cache"),
    ),
    Imposter(
        "capacity: only slow",
        CAPACITY,
        "overload",
        "the new request is answered after all",
        late,
        OTHER,
        ("hangs", "null-block", "empty-cache"),
    ),
    Imposter(
        "capacity: cured, and refused for its model",
        "capacity-never-shorter-context",
        "healthy",
        "the prompt got an error of the server",
        reply(PROMPT, 500, "Internal Server Error"),
        OTHER,
    ),
    Imposter(
        "capacity: refused for another length",
        "capacity-never-0.33.0",
        "other-release",
        "the prompt fits what the server says that it could start with",
        logged(
            refused_at_start=[
                "To serve at least one request …, estimated maximum model length is 900"
            ]
        ),
        UNDECIDED,
    ),
    Imposter(
        "capacity: ended as it started",
        "capacity-never-0.33.0",
        "other-cause",
        "the log does not say that it refused anything",
        logged(refused_at_start=[]),
        UNDECIDED,
    ),
    Imposter(
        "uuid: found under every name",
        UUID,
        "other-cause",
        "the processor's cache finds the picture under a new name as well",
        fact(f"hits: {Y_OWN}", 1.0),
        OTHER,
        ("stale",),
    ),
    Imposter(
        "uuid: the hits were not read",
        UUID,
        "absent-probe",
        "the counter of hits could not be read",
        fact(f"hits: {Y_SHARED}", None),
        UNDECIDED,
        ("stale",),
    ),
    Imposter(
        "uuid: always the first one's answer",
        UUID,
        "other-cause",
        "under a name of its own, too, it is answered as the first",
        answered_as(Y_OWN, X_SHARED),
        OTHER,
        ("stale", "sole-key"),
    ),
    Imposter(
        "uuid: no cache, and nobody turned it off",
        UUID,
        "trigger-failed",
        "a repeated picture is not known",
        of("gate: X again", cached_tokens=None),
        UNDECIDED,
    ),
]
