"""One diagnosis from URL to incident: discover, look, assess, match, write down."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmrepro import __version__
from mmrepro.base.errors import MmreproError, NoSpace, UnwritableOutput
from mmrepro.base.machine import SHORT_SHARE, Lateness
from mmrepro.base.records import EVIDENCE_DIR, Moment
from mmrepro.base.text import Redactor, mask_of
from mmrepro.base.units import count, size
from mmrepro.failure.documents import (
    Cause,
    Diagnosis,
    Fit,
    Incident,
    Public,
    ServerState,
    TargetFacts,
    discard_folder,
    made_here,
    make_folders,
    make_run_dir,
    remember_made,
    write_incident,
)
from mmrepro.failure.signature.live_server import LATENESS
from mmrepro.live.diagnose import (
    classes_logged,
    discover,
    dumps,
    frozen,
    general,
    rank_verdicts,
    ranks,
)
from mmrepro.live.diagnose.classes import LOG_GROWTH, classes
from mmrepro.live.diagnose.collect import Collector
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.kernel import note_kernel
from mmrepro.live.diagnose.match import (
    all_scenarios,
    known_hang,
    match_all,
    stuck_rank,
    union,
)
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes import (
    HOW_TO_ALLOW,
    GpuData,
    LogsData,
    MetricsData,
    ProbeStatus,
    RawSink,
)
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.scenario.parts import ON
from mmrepro.traffic.evidence import Evidence, Listener, Recorder

WORTH_MORE = frozenset(
    {ServerState.FROZEN_PYTHON, ServerState.FROZEN_NATIVE, ServerState.BLOCKED_ON_LOCK}
)


@dataclass(frozen=True)
class Diagnosed:
    """``folder`` is None where nothing was kept: a healthy server, and no ``out``."""

    diagnosis: Diagnosis
    incident: Incident
    folder: Path | None


def diagnose(
    options: DiagnoseCommand,
    listener: Listener | None = None,
    typed: Sequence[str] = (),
) -> Diagnosed:
    """Diagnose a live server; never writes to it, signals it or leaves anything
    running.

    Args:
        typed: its command line, where the caller started it as a fork, which shows
            none.

    Raises:
        UsageError: no address, an unknown engine or scenario, or an output folder that
            cannot be used.
        KeyboardInterrupt: nothing is kept then.
    """
    from mmrepro.live.diagnose.incident import build

    taken = Moment.now()
    scenarios = all_scenarios(options.scenarios, trust=options.trust)
    target = discover.find(options.url, options.pid, typed)
    if options.engine != "auto":
        discover.name_engine(target, frozenset(), options.engine)
    folder = _folder(options.out)
    redactor = Redactor()
    sent = {s: redactor.add(s, "header") for s in secrets(options.headers)}
    mask = mask_of(
        {secret: placeholder for secret, placeholder in sent.items() if placeholder}
    )
    recorder = Recorder(folder, _private(listener, redactor), mask=mask)
    recorder.phase = "check"
    try:
        diagnosis = _look(options, target, recorder, taken, scenarios)
        kept = options.out is not None or diagnosis.exit_code != 0
        if kept:
            diagnosis.incident_dir = str(folder)
        diagnosis.assessment.advice = _open_advice(diagnosis, options.url)
        incident = build(
            diagnosis, recorder.evidence, folder, options.command_line(), scenarios
        )
        if kept:
            folder = write_incident(incident, folder, redactor)
            diagnosis.incident_dir = incident.incident_dir = str(folder)
        shown = Public.after(redactor).redact_model(diagnosis)
        # A folder of this machine is shown to its own user as it is typed.
        shown.incident_dir = diagnosis.incident_dir
        return Diagnosed(shown, incident, folder if kept else None)
    finally:
        if not (folder / "incident.json").exists():
            _remove(folder)


def _open_advice(diagnosis: Diagnosis, url: str) -> list[str]:
    """The advice that is still open: not what was just done, nor a search for what is
    known."""
    advice = []
    for text in diagnosis.assessment.advice:
        is_done = text == rank_verdicts.KEEP and diagnosis.incident_dir
        is_known = text == frozen.SEARCH and diagnosis.found
        if not (is_done or is_known):
            advice.append(text.replace("URL", url))
    return advice


def secrets(headers: Mapping[str, str]) -> list[str]:
    """Each value, and of ``Bearer KEY`` the key alone."""
    return [s for value in headers.values() for s in (value, *value.split()[-1:])]


def _private(listener: Listener | None, redactor: Redactor) -> Listener | None:
    """What went wrong with an exchange may quote the server, and that what it was
    sent."""
    if listener is None:
        return None
    public = Public.after(redactor)
    return lambda event: listener(public.redact_model(event))


def _look(
    options: DiagnoseCommand,
    target: ServerTarget,
    recorder: Recorder,
    taken: Moment,
    scenarios: Sequence[Scenario],
) -> Diagnosis:
    facts, evidence = target.facts, recorder.evidence
    # Of another moment than this look: judged by themselves.
    given, logs = dumps.sort(options.logs)
    options = replace(options, logs=tuple(logs))
    collector = Collector(target, options, recorder)
    try:
        _observe(options, target, collector, scenarios)
        _keep_log_lines(recorder, evidence)
        logged = [r for r in evidence.probes if isinstance(r.data, LogsData) and r.ok]
        cause = classes_logged.cause_of(DiagnosisView(facts, evidence))
        diagnosis = judged(evidence, facts, options.deadline_s, scenarios, cause)
        diagnosis.taken = taken
        diagnosis.unseen = _unseen(target, evidence)
        diagnosis.effect = collector.effect()
        if given:
            diagnosis.dumps = dumps.read(
                given, logged, engine=facts.engine, release=facts.release
            )
        for result, data in evidence.results(LogsData, partial=True):
            # It has judged, and stays out of the incident: it is long, and has clients'
            # words.
            result.data = data.model_copy(update={"excerpt": []})
        return diagnosis
    finally:
        collector.close()


def _observe(
    options: DiagnoseCommand,
    target: ServerTarget,
    collector: Collector,
    scenarios: Sequence[Scenario],
) -> None:
    """Collect all evidence; what fails meanwhile is noted, and the rest is kept."""
    facts, evidence = target.facts, collector.evidence
    try:
        with Lateness() as lateness:
            _collect(options, target, collector, scenarios, lateness)
    except MmreproError:
        raise
    except Exception as error:  # what was seen by then is judged and kept all the same
        target.unseen.append(
            f"the rest of the look: mmrepro failed ({type(error).__name__})"
        )
    if lateness.share > SHORT_SHARE:
        evidence.facts[LATENESS] = round(lateness.share, 2)
    if (growth := collector.log_growth()) is not None:
        evidence.facts[LOG_GROWTH] = growth
    note_kernel(target, evidence)
    if general.assess(evidence, facts).state in WORTH_MORE:
        _catch_locals(collector, _of_engine(scenarios, facts))


def judged(
    evidence: Evidence,
    facts: TargetFacts,
    deadline_s: float,
    scenarios: Sequence[Scenario],
    cause: Cause | None,
) -> Diagnosis:
    """What evidence shows, collected now or long ago.

    Args:
        deadline_s: that the one request had.
        cause: by the server's log.
    """
    view = DiagnosisView(facts, evidence)
    assessment = general.assess(evidence, facts)
    live = _live(facts, evidence, deadline_s)
    return Diagnosis(
        mmrepro_version=__version__,
        taken=Moment.now(),
        target=facts,
        assessment=assessment,
        cause=cause,
        logged=classes_logged.facts_logged(view),
        classes=classes(evidence, facts),
        ranks=ranks.look(view),
        since=_since(evidence, assessment.state),
        matches=match_all(scenarios, evidence, live),
    )


def _collect(
    options: DiagnoseCommand,
    target: ServerTarget,
    collector: Collector,
    scenarios: Sequence[Scenario],
    lateness: Lateness,
) -> None:
    facts, evidence = target.facts, collector.evidence
    discover.find_logs(target, options.logs)
    collector.note_log_sizes()
    if target.engine is None and facts.root_pid is not None:
        discover.name_engine(target, frozenset())
    if not any(p.state in "Tt" for p in facts.processes):
        collector.ask_front()
    if target.engine is None:
        discover.name_engine_by_log(target)
    if target.engine is None:
        discover.name_engine(target, _metric_names(evidence))
    discover.find_release(target)
    note_kernel(target, evidence)
    collector.log_patterns = union(_of_engine(scenarios, facts))
    plain = general.at_once(evidence, facts) is not None
    if not plain:
        collector.ask_release()
    if not collector.look(lambda seen: general.suspicious(seen, facts), plain=plain):
        return
    if not _decided(target, collector, _of_engine(scenarios, facts), lateness):
        collector.look_on()
    if options.gpu_core:
        collector.gpu_cores()


def _decided(
    target: ServerTarget,
    collector: Collector,
    scenarios: Sequence[Scenario],
    lateness: Lateness,
) -> bool:
    """Whether the request was given up before its deadline, for it is a hang all the
    same."""

    def fit() -> Fit | None:
        if not collector.waits or lateness.share > SHORT_SHARE:
            return None
        note_kernel(target, collector.evidence)
        live = _live(target.facts, collector.evidence, collector.plan.deadline_s)
        waited = collector.waited_s
        hang = known_hang(scenarios, collector.evidence, target.facts, live, waited)
        return hang.fit if hang else None

    def stuck() -> bool:
        waits = collector.waits and lateness.share <= SHORT_SHARE
        deadline_s = collector.plan.deadline_s
        return waits and stuck_rank(
            collector.evidence, target.facts, collector.waited_s, deadline_s
        )

    likely = fit() in (Fit.MATCH, Fit.LIKELY)
    if not likely and not stuck():
        return False
    collector.look_again_at_once()
    _catch_locals(collector, scenarios)
    if fit() is not Fit.MATCH and not stuck():
        return False
    collector.give_up()
    return True


def _live(facts: TargetFacts, evidence: Evidence, deadline_s: float = 0.0) -> LiveFacts:
    live = LiveFacts(facts.engine, facts.release, tuple(facts.command), deadline_s)
    device = _device(facts, live.option("--device") or "", evidence)
    return replace(live, device=device)


def _device(facts: TargetFacts, given: str, evidence: Evidence) -> str:
    """cpu or cuda, by who holds a GPU's memory, the server's option or its installed
    build."""
    pids = {process.pid for process in facts.processes}
    for _, data in evidence.results(GpuData):
        if data.held_by(pids):
            return "cuda"
    kind = given.partition(":")[0]
    if kind in ON:
        return kind
    return "cpu" if "+cpu" in facts.release_from else ""


def _of_engine(scenarios: Sequence[Scenario], facts: TargetFacts) -> list[Scenario]:
    return [s for s in scenarios if not facts.engine or s.engine == facts.engine]


def _keep_log_lines(recorder: Recorder, evidence: Evidence) -> None:
    """What conditions cite of a log, under its name: the log itself stays where it
    is."""
    for _, data in evidence.results(LogsData, partial=True):
        lines = [*data.errors, *data.last_by_process.values()]
        for matching in data.matches.values():
            lines += matching
        if data.last_work:
            lines.append(data.last_work)
        numbered = {line.number: line for line in lines}
        text = f"# lines of {data.file}\n"
        for number, line in sorted(numbered.items()):
            text += (
                f"{number}: ({line.process}) {line.level} {line.time} [{line.source}] "
                f"{line.text}\n"
            )
        sink = RawSink(recorder.dir, mask=recorder.mask)
        sink.write(Path(data.file).name, text)


def _catch_locals(collector: Collector, scenarios: Sequence[Scenario]) -> None:
    """A few more samples where a scenario looks for a local that is only there now and
    then."""
    evidence = collector.evidence
    live = _live(collector.target.facts, evidence)
    close = []
    for scenario in scenarios:
        if not scenario.looks_for_locals:
            continue
        for matched in match_all([scenario], evidence, live):
            if matched.fit in (Fit.LIKELY, Fit.SYMPTOM_ONLY):
                close.append(scenario)
    if close:
        collector.more_stacks(
            lambda samples: any(s.enough_stacks(samples) for s in close)
        )


def _metric_names(evidence: Evidence) -> frozenset[str]:
    names: set[str] = set()
    for _, data in evidence.results(MetricsData):
        names.update(sample.name for sample in data.samples)
    return frozenset(names)


def _unseen(target: ServerTarget, evidence: Evidence) -> list[str]:
    unseen = list(target.unseen)
    if target.facts.root_pid is None and target.facts.place == "remote":
        unseen.append("its processes: stacks, CPU and log need mmrepro on its machine")
    if target.facts.processes and target.facts.core_role and not target.facts.cores:
        unseen.append(
            f"which process is {target.facts.core_role}: none is called so, and the "
            "titles are all that tells; where it stands cannot be told"
        )
    if reason := refused_stacks(evidence):
        refused = "py-spy was refused" in reason
        unseen.append("Python stacks: " + (HOW_TO_ALLOW if refused else reason))
    for result in evidence.probes:
        if result.probe == "logs" and not result.ok:
            unseen.append(f"the log: {result.reason}")
        if result.probe == "metrics" and not result.ok:
            unseen.append(f"the metrics: {result.reason}")
    for _, data in evidence.results(LogsData):
        if data.skipped_bytes:
            unseen.append(
                f"the first {size(data.skipped_bytes)} of {data.file}: only its end "
                "was read"
            )
    return list(dict.fromkeys(unseen))


def refused_stacks(evidence: Evidence) -> str:
    """Why Python stacks are missing; "" when some could be read."""
    reason = ""
    for result in evidence.probes:
        if result.probe == "stacks":
            if result.status is ProbeStatus.OK:
                return ""
            reason = result.reason
    return reason


def _since(evidence: Evidence, state: ServerState) -> str:
    """Since when, by the log: its last sign of progress."""
    if state is ServerState.HEALTHY:
        return ""
    for _, data in evidence.results(LogsData, partial=True):
        line = data.last_work
        if line is not None and line.time:
            since = f"{line.time}: last activity in the log, line {line.number}"
            if data.stuck_count:
                since += f"; {count(data.stuck_count, 'request')} since"
            return since
    for _, data in evidence.results(LogsData, partial=True):
        if data.errors and data.errors[0].time:
            first = data.errors[0]
            return f"{first.time}: first error in the log, line {first.number}"
    return ""


def _folder(out: Path | None) -> Path:
    """The incident's folder; where the default cannot be written, a temporary one."""
    if out is not None:
        return make_run_dir(out, "diagnose", "")
    try:
        return make_run_dir(None, "diagnose", str(os.getpid()))
    except (UnwritableOutput, NoSpace):
        folder = Path(tempfile.mkdtemp(prefix="mmrepro-diagnose-"))
        remember_made(folder)
        make_folders(folder / EVIDENCE_DIR)
        return folder


def _remove(folder: Path) -> None:
    """The folder of a diagnosis that is not kept, and those above it that were made for
    it.

    What was there before stays: --out may name a folder of the user's.
    """
    evidence = folder / EVIDENCE_DIR
    if made_here(evidence):
        with contextlib.suppress(OSError):
            for entry in evidence.iterdir():
                entry.unlink()
    discard_folder(folder)
