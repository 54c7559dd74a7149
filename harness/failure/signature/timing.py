"""When a run's evidence was taken, and how long was waited for an answer.

Each check yields what is of another time than the run, the phase or the wait that it is
said to be of, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmrepro.base.records import Moment
from mmrepro.failure.signature.foreign_errors import foreign_error
from mmrepro.failure.signature.run_facts import (
    Doubts,
    Run,
    beyond,
    kind_of,
    of_this_server,
)
from mmrepro.probes import InferenceData, ProcessesData, StacksData, SyscallsData
from mmrepro.traffic.evidence import Evidence, Phase, RequestRecord

_PLACES: Mapping[str, int] = {
    "start": 0,
    "control": 0,
    "gate": 1,
    "trigger": 2,
    "check": 3,
    "after": 4,
    "stop": 5,
}
"""The order of the phases: a control server is asked before the run's own gate."""
_STAGES: Mapping[str, Phase] = {"gate": "gate", "trigger": "trigger", "probes": "check"}
"""Event with which a phase begins."""
_TURN_S = 0.002
"""A phase begins so long before or after the event that notes it."""
LATE_S = 30.0
"""An event may be written so long after what it tells of: the loop of a starved machine
stands."""


def _moments(evidence: Evidence) -> Iterator[tuple[str, Phase | str, Moment]]:
    """What has both clocks: what it is, the phase, the moment."""
    for record in evidence.requests:
        yield "requests", record.phase, record.sent
    for result in evidence.probes:
        yield kind_of(result), result.phase, result.started
    for event in evidence.events:
        yield "events", event.phase, event.at


def within_the_run(evidence: Evidence, run: Run) -> Doubts:
    """Nothing was sent, read or noted before the run began or after it ended."""
    for what, _, moment in _moments(evidence):
        before = run.began is not None and beyond(run.began.mono, moment.mono)
        after = run.ended is not None and beyond(moment.mono, run.ended.mono)
        if before or after:
            yield what, "it is of another time than the run"


def in_phase(evidence: Evidence, run: Run) -> Doubts:
    """What is of a phase was done in it: an answer that came late is of the phase in
    which it was asked for."""
    begins = _phase_begins(evidence)
    for record in evidence.requests:
        if record.phase not in _PLACES:
            continue
        begin = begins.get(_PLACES[record.phase])
        if begin is not None and record.sent.mono + record.latency_s < begin:
            yield (
                "requests",
                f"{record.label!r} was answered before the {record.phase} began",
            )

    for what, phase, moment in _moments(evidence):
        if what == "events":
            continue
        if phase not in _PLACES or (what == "requests" and phase == "start"):
            yield what, f"nothing of it is done in the phase {phase!r}"
            continue
        place = _PLACES[phase]
        begun_until = [at for earlier, at in begins.items() if earlier <= place]
        begun_after = [at for later, at in begins.items() if later > place]
        # The recorder's phase is set just before or after the stage is noted.
        turn = 0.0 if what == "requests" else _TURN_S
        early = begun_until and beyond(max(begun_until), moment.mono, turn)
        late = begun_after and beyond(moment.mono, min(begun_after), turn)
        if early or late:
            yield what, f"it is called one of the {phase}, and was at another time"


def _phase_begins(evidence: Evidence) -> dict[int, float]:
    """When the phases began, as the run noted it, by their places."""
    begins: dict[int, float] = {}
    for event in evidence.events:
        if event.source == "stage" and event.text in _STAGES:
            place = _PLACES[_STAGES[event.text]]
            begins.setdefault(place, event.at.mono)
    return begins


def windows(evidence: Evidence, run: Run) -> Doubts:
    """Windows are above zero and within their probe, and so are samples."""
    for result in evidence.probes:
        data = result.data
        if isinstance(data, ProcessesData | SyscallsData) and (
            data.window_s <= 0 or beyond(data.window_s, result.seconds)
        ):
            yield (
                kind_of(result),
                f"its window is {data.window_s:g} s of {result.seconds:.2f} s",
            )
        if isinstance(data, InferenceData) and beyond(data.seconds, result.seconds):
            yield "inference", f"it waited {data.seconds:g} s of {result.seconds:.2f} s"
        if isinstance(data, StacksData):
            begin = result.started.mono
            end = begin + result.seconds
            times = [sample.taken.mono for sample in data.samples]
            if any(beyond(begin, t) or beyond(t, end) for t in times):
                yield "stacks", "a sample is of another time"


# --------------------------------------------------------------- how long it was waited


def silence(evidence: Evidence, run: Run) -> Doubts:
    """No answer means that the whole deadline passed, by the gate's rule, and nothing
    came."""
    for record in evidence.requests:
        for why in _not_silent(record, run):
            yield "requests", why
    for result in of_this_server(evidence):
        if isinstance(result.data, InferenceData):
            for why in _not_silent_check(result.data, run):
                yield "inference", why


def _not_silent(record: RequestRecord, run: Run) -> Iterator[str]:
    """Why the silence after a request of the scenario's own proves nothing."""
    label, waited = record.label, record.latency_s
    if not record.timed_out:
        if beyond(waited, record.deadline_s, LATE_S):
            yield f"{label!r} was answered long after its deadline"
        return

    if beyond(record.deadline_s, waited):
        yield f"{label!r} was waited for {waited:.1f} s of {record.deadline_s:g}"
    # The gate measured completions: its rule says nothing of how long a GET may take.
    completes = record.phase == "trigger" and record.method == "POST"
    least = run.deadline_s if completes else None
    if least is not None and beyond(least, record.deadline_s):
        yield f"the gate's rule asks for {least:g} s, {label!r} had less"
    # The status of a stream comes before its first token: it is no answer yet.
    answered = record.status is not None and not record.stream
    if answered or _came(record):
        yield f"{label!r} has an answer, which came late or still flows"


def _not_silent_check(data: InferenceData, run: Run) -> Iterator[str]:
    """Why the silence after the check's small request proves nothing."""
    why = foreign_error(data.status, data.error)
    if why:
        yield why
    answered = data.answered or data.status is not None
    if answered or "no complete answer" not in data.error:
        return

    if beyond(data.deadline_s, data.seconds) and not data.cut:
        yield f"it was waited for {data.seconds:.1f} s of {data.deadline_s:g}"
    if data.text or data.completion_tokens:
        yield "it has an answer, which came late"
    for least in (run.deadline_s, run.waited_s):
        if least is not None and beyond(least, data.deadline_s):
            yield f"the gate's rule asks for {least:g} s, it had less"


def _came(record: RequestRecord) -> bool:
    """Whether anything of an answer came, whole or not."""
    parts = (
        record.text,
        record.tokens,
        record.finish_reason,
        record.pieces,
        record.choices,
    )
    return any(parts) or record.ttft_s is not None or bool(record.completion_tokens)
