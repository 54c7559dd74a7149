"""Changes that imposters of chunked-mm-prefill have in common."""

import re
from collections.abc import Callable, Iterator

from mmrepro.failure.documents import Incident
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import LogLine, LogsData

Edit = Callable[[Incident], None]


def logs(incident: Incident) -> Iterator[LogsData]:
    return (data for _, data in incident.evidence.results(LogsData))


def of(label: str, **fields: object) -> Edit:
    """These fields of the requests called so."""

    def edit(incident: Incident) -> None:
        for record in incident.evidence.labelled(label):
            for name, value in fields.items():
                setattr(record, name, value)

    return edit


def late(*labels: str) -> Edit:
    """Requests without an answer in time."""

    def edit(incident: Incident) -> None:
        for label in labels:
            for record in incident.evidence.labelled(label):
                record.status, record.timed_out, record.text = None, True, ""
                record.latency_s = record.deadline_s
                record.error = f"no complete answer in {record.deadline_s:.1f} s"

    return edit


def reworded(pattern: str, old: str, new: str) -> Edit:
    """The kept lines of ``pattern`` say something else."""

    def edit(incident: Incident) -> None:
        for data in logs(incident):
            for line in data.matches.get(pattern, ()):
                line.text = re.sub(old, new, line.text)

    return edit


def unlogged(*patterns: str) -> Edit:
    """The log was searched for them, and has none."""

    def edit(incident: Incident) -> None:
        for data in logs(incident):
            for pattern in patterns:
                data.matches.pop(pattern, None)
                data.match_counts[pattern] = 0

    return edit


def without(probe: str, status: ProbeStatus = ProbeStatus.UNAVAILABLE) -> Edit:
    """The probe could not be used, or ran out of time with half of its result."""

    def edit(incident: Incident) -> None:
        for result in incident.evidence.probes:
            if result.probe == probe and result.phase == "check":
                result.status, result.reason = (
                    status,
                    "as on a machine that does not let it",
                )
                if status is ProbeStatus.UNAVAILABLE:
                    result.data = None

    return edit


def first_error(text: str) -> Edit:
    """EngineCore had another exception before those that the log holds."""

    def edit(incident: Incident) -> None:
        for data in logs(incident):
            first = next(
                e for e in data.matches["exception"] if "EngineCore" in e.process
            )
            line = first.model_copy(update={"number": first.number - 1, "text": text})
            data.matches["exception"].insert(0, line)
            data.match_counts["exception"] += 1

    return edit


def yesterdays(incident: Incident) -> None:
    """The log begins with the death of another process."""
    core, text = (
        "EngineCore_DP0 pid=7",
        "RuntimeError: Number of elements of source < number of ones",
    )
    mismatch = LogLine(number=3, process=core, level="ERROR", text=f"{text} in mask")
    dead = LogLine(
        number=4, process="APIServer pid=6", text="vllm.EngineDeadError: EngineCore …"
    )
    for data in logs(incident):
        for pattern, found in (
            ("exception", [mismatch, dead]),
            ("mask-mismatch", [mismatch]),
            ("engine-dead", [dead]),
        ):
            data.matches[pattern] = [*found, *data.matches.get(pattern, ())]
            data.match_counts[pattern] += len(found)


def anothers_error(incident: Incident) -> None:
    """All that the log holds of masked_scatter is of a process that the gate did not
    see."""
    for data in logs(incident):
        for pattern in ("exception", "mask-mismatch"):
            for line in data.matches[pattern]:
                line.process = re.sub(
                    r"(EngineCore\S* pid=)\d+", r"\g<1>7", line.process
                )
