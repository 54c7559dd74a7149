"""Imposters of unchecked-sampling: a thread that lives, requests that fail for another
reason, and servers without vllm-rs."""

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.data import ProcessesData, StacksData, ThreadStack
from mmrepro.scenarios.rust_front_end import KILLER

from imposters import Imposter
from imposters.prefill_edits import of, unlogged, without
from imposters.vllm_edits import late

RUN, REFUSED = "unchecked-sampling-0.23.0", "unchecked-sampling-0.33.0"
DIFFERENT, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE


def reads_on(incident: Incident) -> None:
    """In every sample a thread of EngineCore waits for requests."""
    for _, data in incident.evidence.results(StacksData, "check"):
        for sample in data.samples:
            for thread in list(sample.threads):
                if thread.within("run_busy_loop"):
                    frames = [frame.model_copy() for frame in thread.frames[:1]]
                    frames[0].function = "process_input_sockets"
                    reader = ThreadStack(
                        tid=7,
                        name="Thread-1",
                        active=False,
                        owns_gil=False,
                        frames=frames,
                    )
                    sample.threads.append(reader)


def in_python(incident: Incident) -> None:
    """What serves HTTP is no vllm-rs."""
    for _, data in incident.evidence.results(ProcessesData):
        for process in data.processes:
            if process.role == "RustFrontend":
                process.role = "APIServer"


IMPOSTERS = [
    Imposter(
        "unchecked sampling: the thread reads on",
        RUN,
        "other-cause",
        "a thread of EngineCore waits for requests in every sample",
        reads_on,
        DIFFERENT,
        ("not-checked", "one-request"),
    ),
    Imposter(
        "unchecked sampling: another value was refused",
        RUN,
        "stale-log",
        "the check of sampling values is not in the log",
        unlogged("value-checked"),
        DIFFERENT,
        ("one-request",),
    ),
    Imposter(
        "unchecked sampling: no thread ended",
        RUN,
        "stale-log",
        "the log has no thread that ended",
        unlogged("thread-ended"),
        DIFFERENT,
        ("not-checked", "one-request"),
    ),
    Imposter(
        "unchecked sampling: only slow",
        RUN,
        "overload",
        "the new request is answered after all",
        late,
        DIFFERENT,
        ("not-checked",),
    ),
    Imposter(
        "unchecked sampling: no log",
        RUN,
        "absent-probe",
        "the log could not be read",
        without("logs"),
        UNDECIDED,
        ("one-request",),
    ),
    Imposter(
        "unchecked sampling: behind the server in Python",
        RUN,
        "trigger-failed",
        "no process is vllm-rs",
        in_python,
        UNDECIDED,
        ("not-checked", "one-request"),
    ),
    Imposter(
        "unchecked sampling: refused for something else",
        REFUSED,
        "healthy",
        "the request is refused for its model",
        of(KILLER, status=400, error="the model is not known"),
        UNDECIDED,
    ),
]
