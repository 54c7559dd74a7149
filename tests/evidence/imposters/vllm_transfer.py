"""Imposters of transfer-lost: KV caches that are in use for a reason, and requests that
wait for another one."""

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.data import MetricsData
from mmrepro.scenario.vllm import BY_REASON
from mmrepro.scenarios.transfer_lost import LATER, LEFT

from imposters import Imposter
from imposters.vllm_edits import late, reply
from imposters.vllm_silent import metric

RUN, CURED, BEFORE = (
    "transfer-lost-0.32.0",
    "transfer-lost-deadline",
    "transfer-lost-0.14.0",
)
DIFFERENT, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
USAGE = "vllm:kv_cache_usage_perc"


def deferred(incident: Incident) -> None:
    """In every reading of the check a request is in transfer."""
    for _, data in incident.evidence.results(MetricsData, "check"):
        for sample in data.samples:
            if sample.name == BY_REASON and sample.labels.get("reason") == "deferred":
                sample.value = 1.0


def all_answered(incident: Incident) -> None:
    for label in LEFT:
        reply(label, 200, tokens=340)(incident)


IMPOSTERS = [
    Imposter(
        "transfer: still on its way",
        RUN,
        "other-cause",
        "a transfer is waited for: what it needs is in use rightly",
        deferred,
        DIFFERENT,
        ("no-admission",),
    ),
    Imposter(
        "transfer: others run",
        RUN,
        "overload",
        "requests are running, and have the KV cache",
        metric("vllm:num_requests_running", 1.0),
        DIFFERENT,
        ("no-admission",),
    ),
    Imposter(
        "transfer: an empty cache",
        RUN,
        "other-cause",
        "the KV cache is empty: the request waits for another reason",
        metric(USAGE, 0.0),
        DIFFERENT,
        ("no-admission",),
    ),
    Imposter(
        "transfer: the use is not told",
        RUN,
        "absent-probe",
        "the server does not tell how full its KV cache is",
        metric(USAGE, None),
        UNDECIDED,
        ("no-admission",),
    ),
    Imposter(
        "transfer: only slow",
        RUN,
        "overload",
        "the new request is answered after all",
        late,
        DIFFERENT,
        ("never-freed",),
    ),
    Imposter(
        "transfer: before, and nobody left",
        BEFORE,
        "trigger-failed",
        "the requests were answered: nothing was to be freed",
        all_answered,
        UNDECIDED,
    ),
    Imposter(
        "transfer: cured, and the engine is dead",
        CURED,
        "other-cause",
        "the later prompt got an error of the server",
        reply(LATER, 500, "Internal Server Error"),
        DIFFERENT,
    ),
]
