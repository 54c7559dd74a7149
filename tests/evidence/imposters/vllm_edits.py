"""Changes of recorded runs of vLLM's cache failures."""

from collections.abc import Callable

from mmrepro.failure.documents import Incident
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import (
    InferenceData,
    LogsData,
    MetricsData,
    StacksData,
    ThreadStack,
)
from mmrepro.traffic.evidence import RequestRecord

Edit = Callable[[Incident], object]

TOO_LONG, AGAIN = "image X, too long", "image X again, short"
BIG, CONTROL = (
    "image larger than the encoder cache",
    "image that fills the encoder cache",
)
OTHER = "0123456789abcdef" * 4


def reply(
    label: str, status: int | None, error: str = "", tokens: int | None = None
) -> Edit:
    """Every request called so got this."""

    def edit(incident: Incident) -> None:
        for record in labelled(incident, label):
            record.status, record.error, record.timed_out = (
                status,
                error,
                status is None,
            )
            record.prompt_tokens = tokens
            record.completion_tokens = 4 if status == 200 else None

    return edit


def labelled(incident: Incident, label: str) -> list[RequestRecord]:
    found = incident.evidence.labelled(label)
    assert found, label
    return found


def without(probe: str, phase: str = "check", why: str = "not permitted") -> Edit:
    def edit(incident: Incident) -> None:
        for result in incident.evidence.probes:
            if (result.probe, result.phase) == (probe, phase):
                result.status, result.reason, result.data = (
                    ProbeStatus.UNAVAILABLE,
                    why,
                    None,
                )

    return edit


def fact(name: str, value: float | None) -> Edit:
    return lambda incident: incident.evidence.facts.update({name: value})


def reproducer(name: str, **changed: str | float) -> Edit:
    """What a script found of the engine's own code is something else."""

    def edit(incident: Incident) -> None:
        for one in incident.evidence.reproducers:
            if one.name == name:
                one.facts.update(changed)

    return edit


def unread(name: str) -> Edit:
    """The script could not be run."""

    def edit(incident: Incident) -> None:
        kept = [one for one in incident.evidence.reproducers if one.name != name]
        incident.evidence.reproducers = kept

    return edit


def released(release: str) -> Edit:
    return lambda incident: setattr(incident.engine, "release", release)


def unmitigated(incident: Incident) -> None:
    """The same server, by options of its own."""
    for one in incident.mitigations:
        one.applied = False


def mitigated(name: str) -> Edit:
    def edit(incident: Incident) -> None:
        for one in incident.mitigations:
            one.applied = one.applied or one.name == name

    return edit


def unflipped(incident: Incident) -> None:
    kept = [s for s in incident.engine.settings if not s.name.startswith("factor ")]
    incident.engine.settings = kept


def each_thread(function: str, change: Callable[[ThreadStack], object]) -> Edit:
    """Of every stack sample of the check, the thread that is inside ``function``."""

    def edit(incident: Incident) -> None:
        for _, data in incident.evidence.results(StacksData, "check"):
            for thread in data.threads(function):
                change(thread)

    return edit


def locals_of(frame: str, **values: str) -> Callable[[ThreadStack], object]:
    def change(thread: ThreadStack) -> None:
        for one in thread.frames:
            if one.name == frame:
                one.locals |= {
                    name: values[name] for name in values if name in one.locals
                }

    return change


def scheduled(thread: ThreadStack) -> None:
    locals_of("schedule", total_num_scheduled_tokens="512", num_new_tokens="512")(
        thread
    )
    locals_of("_process_engine_step", model_executed="True")(thread)


def elsewhere(thread: ThreadStack) -> None:
    """It waits for a message; so it never was in the loop."""
    thread.frames = [
        f for f in thread.frames if f.name in ("process_input_sockets", "run")
    ]


def torn_key(thread: ThreadStack) -> None:
    for frame in thread.frames:
        for name in ("lru_key", "key"):
            if name in frame.locals:
                frame.locals[name] = "<OrderedDict at 0x7f00>"


def other_key(thread: ThreadStack) -> None:
    for frame in thread.frames:
        for name in ("lru_key", "key"):
            if name in frame.locals:
                frame.locals[name] = repr(OTHER)


def logged(change: Callable[[LogsData], object]) -> Edit:
    def edit(incident: Incident) -> None:
        for _, data in incident.evidence.results(LogsData):
            change(data)

    return edit


def by_another(data: LogsData) -> None:
    """Yesterday's server wrote those lines; today's log goes on in the same file."""
    for name in ("cached-item-assertion", "cache-drift"):
        for line in data.matches.get(name, []):
            line.process = "EngineCore pid=999999"


def second_hash(data: LogsData) -> None:
    line = data.matches["cached-item-assertion"][-1]
    line.text = f"AssertionError: Expected a cached item for mm_hash='{OTHER}'"


def no_assertions(data: LogsData) -> None:
    data.matches.pop("cached-item-assertion", None)
    data.match_counts["cached-item-assertion"] = 0


def gate_metric(name: str, value: float | None) -> Edit:
    def edit(incident: Incident) -> None:
        for _, data in incident.evidence.results(MetricsData, "gate"):
            for sample in data.samples:
                if sample.name == name:
                    sample.value = value

    return edit


def late(incident: Incident) -> None:
    """The new request is answered after all: the machine was only slow."""
    for _, data in incident.evidence.results(InferenceData, "check"):
        data.answered, data.status, data.seconds = True, 200, 4.9
