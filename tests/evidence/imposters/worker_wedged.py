"""Imposters of worker-wedged: it answers, it waits for something else, or it was not
observed."""

from collections.abc import Iterator

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.data import (
    Frame,
    InferenceData,
    LogsData,
    ProcessesData,
    StacksData,
)
from mmrepro.scenarios.worker_wedged import BURST, ENDED, MARKED, RAISED, TEXT

from imposters import Imposter
from imposters.vllm_edits import Edit, reply, without

OTHER, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
SILENT = {"python": "", "c": "c-", "stopped": "stopped-"}
IDLE = [
    Frame(function="Queue.get", file="queue.py", line=171),
    Frame(function="_process_input_queue", file="vllm/v1/engine/core.py", line=1588),
]


def answered(incident: Incident) -> None:
    """Each request of it, and the small one of the check."""
    reply(MARKED, 200, tokens=30)(incident)
    reply(TEXT, 200, tokens=30)(incident)
    for _, data in incident.evidence.results(InferenceData, "check"):
        data.answered, data.status, data.seconds, data.error = True, 200, 0.1, ""


def all_answered(incident: Incident) -> None:
    answered(incident)
    for label in BURST:
        reply(label, 200, tokens=30)(incident)


def none_of_four(incident: Incident) -> None:
    """The records of those that were answered are of requests that were not."""
    hung = next(
        r for r in incident.evidence.requests if r.label in BURST and r.timed_out
    )
    for record in incident.evidence.requests:
        if record.label in BURST and not record.timed_out:
            kept = {"id": record.id, "label": record.label, "sent": record.sent}
            for name in type(record).model_fields.keys() - kept.keys():
                setattr(record, name, getattr(hung, name))


def core_idles(incident: Incident) -> None:
    measured = [
        p for _, d in incident.evidence.results(ProcessesData) for p in d.processes
    ]
    cores = {p.pid for p in measured if p.role.startswith("EngineCore")}
    for _, data in incident.evidence.results(StacksData, "check"):
        for sample in [s for s in data.samples if s.pid in cores]:
            for thread in [t for t in sample.threads if t.name == "MainThread"]:
                thread.frames = list(IDLE)


def unlogged(pattern: str) -> Edit:
    def edit(incident: Incident) -> None:
        for _, data in incident.evidence.results(LogsData):
            data.match_counts[pattern] = 0
            data.matches.pop(pattern, None)

    return edit


def every() -> Iterator[Imposter]:
    both = ("hangs", "no-watchdog")
    for variant, part in SILENT.items():
        recording = f"worker-wedged-{part}0.32.0"
        yield Imposter(
            f"worker-wedged {variant}: it answers",
            recording,
            "healthy",
            "every request is answered",
            answered,
            Outcome.NOT_REPRODUCED,
        )
        yield Imposter(
            f"worker-wedged {variant}: the core idles",
            recording,
            "other-cause",
            "EngineCore waits for work, and not for a worker",
            core_idles,
            OTHER,
            both,
        )
        yield Imposter(
            f"worker-wedged {variant}: no stacks",
            recording,
            "absent-probe",
            "stacks could not be read",
            without("stacks"),
            UNDECIDED,
            both,
        )
    raises = "worker-wedged-raises-0.32.0"
    yield Imposter(
        "worker-wedged raises: it answers",
        raises,
        "healthy",
        "every request is answered",
        answered,
        Outcome.NOT_REPRODUCED,
    )
    yield Imposter(
        "worker-wedged raises: the core idles",
        raises,
        "other-cause",
        "EngineCore waits for work, and not for a worker",
        core_idles,
        OTHER,
        both,
    )
    yield Imposter(
        "worker-wedged raises: no exception",
        raises,
        "other-cause",
        "the log has no exception of a worker",
        unlogged(RAISED),
        OTHER,
        both,
    )
    yield Imposter(
        "worker-wedged raises: no stacks",
        raises,
        "absent-probe",
        "stacks could not be read",
        without("stacks"),
        UNDECIDED,
        both,
    )
    replica = "worker-wedged-replica-0.32.0"
    yield Imposter(
        "worker-wedged replica: all are answered",
        replica,
        "healthy",
        "every request is answered",
        all_answered,
        Outcome.NOT_REPRODUCED,
    )
    yield Imposter(
        "worker-wedged replica: neither serves",
        replica,
        "other-cause",
        "none of the four is answered",
        none_of_four,
        OTHER,
    )
    yield Imposter(
        "worker-wedged replica: the core idles",
        replica,
        "other-cause",
        "each core waits for work, and none for a worker",
        core_idles,
        OTHER,
    )
    yield Imposter(
        "worker-wedged replica: no stacks",
        replica,
        "absent-probe",
        "stacks could not be read",
        without("stacks"),
        UNDECIDED,
    )
    killed = "worker-wedged-killed-0.32.0"
    yield Imposter(
        "worker-wedged killed: the request is answered",
        killed,
        "healthy",
        "the marked request is answered",
        reply(MARKED, 200, tokens=30),
        Outcome.NOT_REPRODUCED,
        ("named",),
    )
    yield Imposter(
        "worker-wedged killed: no worker died",
        killed,
        "other-cause",
        "the log has no word of a worker that died",
        unlogged(ENDED),
        OTHER,
        ("ends",),
    )
    yield Imposter(
        "worker-wedged killed: no log",
        killed,
        "absent-probe",
        "the log could not be read",
        without("logs"),
        UNDECIDED,
    )


IMPOSTERS = [*every()]
