"""Changes of recorded runs of minivllm that several imposters share."""

import re
from collections.abc import Callable, Iterator

from mmrepro.failure.documents import Incident
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import LogLine, LogsData, MetricsData, ProbeData
from mmrepro.traffic.evidence import RequestRecord

Edit = Callable[[Incident], object]


def both(*edits: Edit) -> Edit:
    """What is one change on the machine, and shows in more than one place."""

    def edit(incident: Incident) -> None:
        for one in edits:
            one(incident)

    return edit


def absent(probe: str) -> Edit:
    """The probe was not to be had, in the gate or later."""

    def edit(incident: Incident) -> None:
        for result in incident.evidence.probes:
            if result.probe == probe:
                result.status, result.data = ProbeStatus.UNAVAILABLE, None
                result.reason = "it is not permitted here"

    return edit


def cut_off(probe: str) -> Edit:
    """The probe ran out of time: what it has is partial."""

    def edit(incident: Incident) -> None:
        for result in incident.evidence.probes:
            if result.probe == probe and result.phase == "check":
                result.status, result.reason = (
                    ProbeStatus.TIMED_OUT,
                    "no result in 20.0 s",
                )

    return edit


def data(
    incident: Incident, kind: type[ProbeData], *phases: str
) -> Iterator[ProbeData]:
    for result in incident.evidence.probes:
        if isinstance(result.data, kind) and (not phases or result.phase in phases):
            yield result.data


# ------------------------------------------------------------------ the log


def logged(**lines: list[str]) -> Edit:
    """The log holds these lines of the patterns called so, and no others; ``a_b`` is
    "a-b"."""

    def edit(incident: Incident) -> None:
        for log in data(incident, LogsData, "check"):
            assert isinstance(log, LogsData)
            for name, texts in lines.items():
                pattern = name.replace("_", "-")
                log.matches[pattern] = [
                    LogLine(number=n, text=t) for n, t in enumerate(texts)
                ]
                log.match_counts[pattern] = len(texts)

    return edit


def only_the_end(*patterns: str) -> Edit:
    """The log was too large to be read whole, and its end holds no line of these
    patterns."""

    def edit(incident: Incident) -> None:
        logged(**{pattern.replace("-", "_"): [] for pattern in patterns})(incident)
        for log in data(incident, LogsData, "check"):
            assert isinstance(log, LogsData)
            log.skipped_bytes = 1 << 20

    return edit


def admitted_as(**tokens: int) -> Edit:
    """The engine counts other tokens for requests with these labels' first words
    (``image_Y``), in its log and in its answers."""

    def edit(incident: Incident) -> None:
        taken = [
            sent
            for sent in incident.evidence.requests_in("gate", "trigger")
            if sent.status in (200, 500) or sent.timed_out
        ]
        changed = {}
        for index, sent in enumerate(taken):
            for name, count in tokens.items():
                if sent.label.startswith(name.replace("_", " ")):
                    changed[index] = count
                    if sent.prompt_tokens is not None:
                        sent.prompt_tokens = count
        for log in data(incident, LogsData, "check"):
            assert isinstance(log, LogsData)
            for index, count in changed.items():
                line = log.matches["added-request"][index]
                line.text = re.sub(r"\d+ tokens", f"{count} tokens", line.text)

    return edit


def yesterdays_requests(incident: Incident) -> None:
    """In front of the log's lines: those of another server, with other prompts."""
    for log in data(incident, LogsData, "check"):
        assert isinstance(log, LogsData)
        old = [
            LogLine(number=n, text=f"Added request old-{n}: 31 tokens")
            for n in range(3)
        ]
        log.matches["added-request"][:0] = old
        log.match_counts["added-request"] += len(old)


def switch_was_on(incident: Incident) -> None:
    """Yesterday's server said that the fault is on."""
    logged(fault_on=[f"fault {incident.scenario.variant} is on: words"])(incident)


# ----------------------------------------------------------------- requests and metrics


def requests(
    incident: Incident, label: str, phase: str = "trigger"
) -> list[RequestRecord]:
    found = [r for r in incident.evidence.requests if r.phase == phase]
    return [r for r in found if r.label.startswith(label)]


def replied(label: str, status: int, message: str) -> Edit:
    """Requests whose labels begin so got this error."""

    def edit(incident: Incident) -> None:
        for sent in requests(incident, label):
            sent.status, sent.timed_out = status, False
            sent.error = f'{{"error": {{"message": "{message}", "code": {status}}}}}'
            sent.text, sent.prompt_tokens, sent.completion_tokens = "", None, None

    return edit


def error_says(message: str) -> Edit:
    """Those that got HTTP 500 got it with another message."""

    def edit(incident: Incident) -> None:
        for sent in incident.evidence.requests_in("trigger"):
            if sent.status == 500:
                sent.error = f'{{"error": {{"message": "{message}", "code": 500}}}}'

    return edit


def no_answer(label: str) -> Edit:
    """Requests whose labels begin so were not answered in time: there was too much to
    do."""

    def edit(incident: Incident) -> None:
        for sent in requests(incident, label):
            sent.status, sent.timed_out, sent.latency_s = None, True, sent.deadline_s
            sent.error = f"no complete answer in {sent.deadline_s:.1f} s"
            sent.text, sent.prompt_tokens, sent.completion_tokens = "", None, None

    return edit


def metric(name: str, value: float, *phases: str) -> Edit:
    """The server says so of a metric (without "minivllm:")."""

    def edit(incident: Incident) -> None:
        for read in data(incident, MetricsData, *phases):
            assert isinstance(read, MetricsData)
            for sample in read.samples:
                if sample.name == f"minivllm:{name}":
                    sample.value = value

    return edit


def without_metric(name: str) -> Edit:
    """A release that does not count that."""

    def edit(incident: Incident) -> None:
        for read in data(incident, MetricsData):
            assert isinstance(read, MetricsData)
            read.samples = [s for s in read.samples if s.name != f"minivllm:{name}"]

    return edit


def as_if_faulty(incident: Incident) -> None:
    """Nothing was said of a fix: the run passes for one of the code with the fault."""
    for mitigation in incident.mitigations:
        mitigation.applied, mitigation.effective = False, None
    incident.command = incident.command.replace(" --mitigation fix", "")
