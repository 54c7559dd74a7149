"""What every format says alike: words for outcomes, sentences of the summary, derived rows."""

from __future__ import annotations

from dataclasses import dataclass

from mmrepro.base.units import duration, size
from mmrepro.evidence import ReproducerResult, RequestRecord
from mmrepro.incident import Incident, StandIn
from mmrepro.incident.model import collision_probability
from mmrepro.probes.data import ProcessesData
from mmrepro.records import HostFacts
from mmrepro.reports.words import FIDELITY_WORDS, OUTCOME_SENTENCES, OUTCOME_WORDS, span
from mmrepro.signature import Outcome, Truth


def since_start(incident: Incident, mono: float) -> float:
    return mono - incident.created.mono


# ------------------------------------------------------------------ verdict and summary


@dataclass(frozen=True)
class Headline:
    """The badge: ``tone`` is good (as expected), bad, or unsure, for colours."""

    label: str
    expectation: str
    tone: str


def headline(incident: Incident) -> Headline:
    verdict = incident.verdict
    if incident.diagnosis is not None:
        from mmrepro.reports import diagnosis

        told = incident.diagnosis
        expectation = f"exit {told.exit_code}"
        return Headline(diagnosis.answer(told), expectation, diagnosis.tone(told))
    if verdict is None:
        label = {"interrupted": "Interrupted", "failed": "Failed", "complete": "No verdict"}
        return Headline(label[incident.state], "no verdict was reached", "unsure")
    label_text = OUTCOME_WORDS[verdict.outcome]
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return Headline(label_text, "nothing can be said of the failure", "unsure")
    if verdict.expected is None:
        return Headline(label_text, "no outcome was expected", "unsure")
    if verdict.as_expected:
        return Headline(label_text, "as expected", "good")
    return Headline(label_text, f"expected: {OUTCOME_WORDS[verdict.expected].lower()}", "bad")


def engine_name(incident: Incident) -> str:
    return f"{incident.engine.name} {incident.engine.release}".strip()


def title(incident: Incident) -> str:
    """The scenario's title and the release; the engine's name unless the title has it already."""
    words, engine = incident.scenario.title, incident.engine
    if incident.diagnosis is not None and not engine.release:
        return words
    known = engine.name.casefold() in words.casefold()
    return f"{words} ({engine.release if known else engine_name(incident)})"


def partial_note(incident: Incident) -> str:
    """Said at the very top when the run is not whole; empty when it is."""
    if incident.state == "complete" and (incident.verdict or incident.diagnosis):
        return ""
    what = {
        "interrupted": "This run was interrupted: what follows is what had been collected.",
        "failed": "This run failed before a verdict: the failure is mmrepro's or its set-up's "
        "and says nothing about the engine.",
        "complete": "This run has no verdict.",
    }[incident.state]
    return f"{what} {incident.failure}".strip()


def summary(incident: Incident) -> list[str]:
    """The one paragraph, as sentences."""
    if incident.diagnosis is not None:
        return _diagnosis_summary(incident)
    sentences = [sentence(incident.scenario.summary)]
    verdict = incident.verdict
    if verdict is not None:
        outcome = OUTCOME_SENTENCES[verdict.outcome].format(engine=engine_name(incident))
        sentences.append(f"{outcome}: {sentence(verdict.explanation)}")
        because = f": {verdict.expected_because}" if verdict.expected_because else ""
        if verdict.expected is None:
            sentences.append(sentence(f"No outcome was expected{because}"))
        elif verdict.as_expected:
            sentences.append(sentence(f"This is the expected outcome{because}"))
        else:
            sentences.append(
                sentence(
                    f"This is not what was expected "
                    f"({OUTCOME_WORDS[verdict.expected].lower()}){because}"
                )
            )
    sentences.append(
        sentence(f"Fidelity `{incident.fidelity}`: {FIDELITY_WORDS[incident.fidelity]}")
    )
    return [s for s in sentences if s]


def _diagnosis_summary(incident: Incident) -> list[str]:
    assert incident.diagnosis is not None
    told = incident.diagnosis
    sentences = [sentence(told.assessment.sentence)]
    for match in told.found[:3]:
        kind = "This is the known failure" if match.fit == "match" else "This is likely"
        sentences.append(sentence(f"{kind} `{match.scenario}`: {match.why}"))
    if told.found:
        sentences.append(sentence(incident.scenario.summary))
    else:
        for one in told.classes[:3]:
            sentences.append(sentence(f"Class `{one.name}`, {one.certainty}: {one.sentence}"))
    return sentences


def sentence(text: str) -> str:
    """``text`` with a full stop, unless it has an end of its own."""
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else text + "."


def condition_count(incident: Incident) -> str:
    """``6 of 6 required conditions met``; empty without a verdict."""
    if incident.verdict is None:
        return ""
    required = [c for c in incident.verdict.conditions if c.required]
    met = sum(c.truth is Truth.MET for c in required)
    unknown = sum(c.truth is Truth.UNKNOWN for c in required)
    tail = f", {unknown} unknown" if unknown else ""
    return f"{met} of {len(required)} required conditions met{tail}"


# ------------------------------------------------------------------ requests


def status_words(request: RequestRecord) -> str:
    if request.timed_out:
        return "no answer"
    return "failed" if request.status is None else str(request.status)


def status_class(request: RequestRecord) -> str:
    """ok, client (4xx), server (5xx or no connection) or lost (no answer in time)."""
    if request.timed_out:
        return "lost"
    if request.status is None or request.status >= 500:
        return "server"
    if request.status >= 400:
        return "client"
    return "ok" if not request.error else "server"


@dataclass(frozen=True)
class RequestGroup:
    """Requests in a row that went alike; ``latency`` is a range."""

    first: RequestRecord
    count: int
    status: str
    kind: str
    latency: str
    ids: str


def request_groups(requests: list[RequestRecord]) -> list[RequestGroup]:
    """Consecutive requests of one phase, purpose and status, as one row each."""
    rows: list[list[RequestRecord]] = []
    for request in sorted(requests, key=lambda r: (r.sent.mono, r.id)):
        if rows and _key(rows[-1][0]) == _key(request):
            rows[-1].append(request)
        else:
            rows.append([request])
    return [
        RequestGroup(
            first=row[0],
            count=len(row),
            status=status_words(row[0]),
            kind=status_class(row[0]),
            latency=span(r.latency_s for r in row),
            ids=f"{row[0].id}" if len(row) == 1 else f"{row[0].id}–{row[-1].id}",
        )
        for row in rows
    ]


def purpose(label: str) -> str:
    """``fill-7`` and ``fill 7`` are one purpose: ``fill``."""
    return label.rstrip("0123456789").rstrip(" -#_") or label


def _key(request: RequestRecord) -> tuple[str, str, str]:
    return request.phase, purpose(request.label), status_words(request)


# ------------------------------------------------------------------ the exact environment


def environment(incident: Incident) -> list[tuple[str, str]]:
    """Label and value of all that a second person needs to have the same run."""
    engine, wheel, model, host = (
        incident.engine,
        incident.engine.wheel,
        incident.model,
        incident.host,
    )
    rows = [("mmrepro", incident.mmrepro_version), ("engine", engine_name(incident))]
    if incident.diagnosis is not None:
        from mmrepro.reports.diagnosis import target_rows

        rows = [("mmrepro", incident.mmrepro_version), *target_rows(incident.diagnosis)]
    if engine.commit:
        rows.append(("commit", engine.commit))
    if wheel:
        rows += [
            ("wheel", wheel.filename),
            ("wheel sha256", wheel.sha256),
            ("wheel origin", f"{wheel.project}, uploaded {wheel.uploaded}, {wheel.origin}"),
        ]
    rows += [
        ("engine's Python", engine.python),
        ("packages resolved until", engine.resolved_until),
        ("fidelity", str(incident.fidelity)),
    ]
    if model:
        facts = [
            f"{model.parameters:,} parameters" if model.parameters is not None else "",
            f"seed {model.seed}" if model.seed is not None else "",
            f"{model.image_tokens} image tokens" if model.image_tokens is not None else "",
        ]
        rows.append(("model", ", ".join([model.kind, *filter(None, facts)])))
        rows.append(("model weights sha256", model.sha256))
    rows += [
        ("operating system", f"{host.os}, kernel {host.kernel}"),
        ("CPU", f"{host.cpu}, {host.cores} cores, {size(host.memory_bytes)} memory"),
        ("GPU", gpu_words(host)),
        ("NVIDIA driver", driver_words(host)),
        ("mmrepro's Python", host.python),
    ]
    return [(label, value) for label, value in rows if value]


def gpu_words(host: HostFacts) -> str:
    """``GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, GPU-52a3a85d, taken by the engine; …``."""
    known = any(gpu.taken for gpu in host.gpu_facts)
    each = [
        [
            f"GPU {gpu.index}: {gpu.name}",
            size(gpu.memory_bytes) if gpu.memory_bytes else "",
            gpu.uuid,
            "MIG is on" if gpu.mig else "",
            f"in use when the run began: {gpu.users}" if gpu.users else "",
            "" if not known else "taken by the engine" if gpu.taken else "not the engine's",
        ]
        for gpu in host.gpu_facts
    ]
    told = "; ".join(", ".join(filter(None, words)) for words in each)
    return told or ", ".join(host.gpus) or "none"


def driver_words(host: HostFacts) -> str:
    """Version of the driver, and of the CUDA that it runs; empty without a GPU."""
    if not host.gpu_facts:
        return ""
    return f"{host.gpu_facts[0].driver}, runs CUDA up to {host.gpu_facts[0].cuda}"


def cause_heading(incident: Incident) -> str:
    """A scenario knows its cause; only a reproduced run has shown it."""
    shown = incident.verdict is not None and incident.verdict.outcome is Outcome.REPRODUCED
    shown = shown or bool(incident.diagnosis and incident.diagnosis.found)
    return "Root cause" if shown else "The known cause (not shown by this run)"


def stand_in_use(stand_in: StandIn) -> str:
    """What the engine's log says of a stand-in; empty if it says nothing."""
    if stand_in.loaded is None:
        return ""
    used = f"reported itself {stand_in.loaded} times"
    if stand_in.calls is None:
        return used
    if not stand_in.calls:
        return f"{used}; nothing that it only pretends to have was called"
    return f"{used}; {stand_in.calls} calls of what it only pretends to have, each of which raised"


def footprint(incident: Incident) -> list[tuple[str, str, str]]:
    """Role, resident memory and threads of each process of the engine, at the last reading."""
    rows: list[tuple[str, str, str]] = []
    for _, data in incident.evidence.results(ProcessesData):
        rows = [(p.role or p.name, size(p.rss_bytes), str(p.threads)) for p in data.processes]
        total = sum(p.rss_bytes for p in data.processes)
        if len(rows) > 1:
            rows.append(("together (shared pages counted in each)", size(total), ""))
    return rows


def collision_share(images: int, bits: int) -> str:
    """The chance of two equal values among ``images`` of so many bits, in per cent."""
    if images < 0:
        return "?"
    return f"{collision_probability(images, bits):.1%}"


def latencies(incident: Incident) -> str:
    """Start-up, and the latencies of all answered completions; empty without either."""
    start = incident.engine.start_seconds
    mode = incident.engine.start_mode
    how = f" (start mode {mode})" if mode in ("cold", "fork", "warm") else ""
    parts = [f"The server was ready {duration(start)} after its start{how}."] if start else []
    known = sorted(r.latency_s for r in incident.evidence.requests if r.answered and r.max_tokens)
    if known:
        middle, late = known[len(known) // 2], known[min(len(known) - 1, len(known) * 95 // 100)]
        parts.append(
            f"{len(known)} completions were answered, half of them within {duration(middle)}, "
            f"95 % within {duration(late)}."
        )
    return " ".join(parts)


def started_with(incident: Incident) -> str:
    """What the engine's command line in the report is."""
    if incident.engine.start_mode in ("fork", "warm"):
        return f"The engine's command, which start mode {incident.engine.start_mode} ran as a fork:"
    return "The engine was started with:"


def engine_exit(incident: Incident) -> str:
    """How the engine ended, if it ended by itself; else empty."""
    code = incident.evidence.engine_exit
    if code is None:
        return ""
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"The engine ended by itself {how}."


def facts(reproducer: ReproducerResult) -> str:
    return ", ".join(f"{name}={value}" for name, value in reproducer.facts.items())


def left_behind(incident: Incident) -> str:
    if incident.diagnosis is not None:
        return "Nothing was started and nothing changed: the server was only looked at."
    if incident.left_behind:
        return f"{len(incident.left_behind)} things were left behind after the stop"
    if incident.server is not None:
        return "The server was kept running on request."
    if incident.finished is None:
        return "The run did not get as far as the check."
    return "Nothing: no process, port or shared memory of the run was left after the stop."
