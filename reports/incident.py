"""A run's report, and a diagnosis's: ``incident.json`` as a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from markupsafe import Markup
from mmrepro.base.records import HostFacts, Setting
from mmrepro.base.units import duration, size
from mmrepro.failure.documents import (
    INCIDENT_FILE,
    ClaimStatus,
    Incident,
    KeyStack,
    StandIn,
)
from mmrepro.failure.documents.diagnosis import Diagnosis
from mmrepro.failure.documents.model import (
    Birthday,
    ClaimResult,
    GateFacts,
    MitigationFacts,
    ModelFacts,
    Shown,
    collision_probability,
)
from mmrepro.failure.signature import ConditionResult, Outcome, Truth
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import ProcessesData
from mmrepro.reports import blocks as b, timeline, words
from mmrepro.reports.documents import (
    HTML_FILE,
    MARKDOWN_FILE,
    How,
    JunitCase,
    Suite,
    kind,
)

_OPEN_LINES: Final = 15
"""Of the timeline, which are shown unfolded."""
_LEVEL_TONES: Final[dict[str, b.Tone]] = {
    "info": "",
    "warning": "unsure",
    "error": "bad",
}


def compose(incident: Incident) -> b.Page:
    """The page of a run, or of a diagnosis."""
    if incident.diagnosis is not None:
        return _compose_diagnosed(incident, incident.diagnosis)

    return b.Page(
        title=title(incident),
        badge=_badge(incident),
        subject=_subject(incident),
        warning=warning(incident),
        card=[*_card(incident)],
        counts=[*_counts(incident)],
        commands=[*_commands(incident)],
        sections=[
            *what_happened(incident),
            *_claims(incident),
            b.Section("Mitigations", _mitigations(incident), 70),
            *context(incident),
        ],
        footer=footer(incident),
    )


def _compose_diagnosed(incident: Incident, diagnosis: Diagnosis) -> b.Page:
    from mmrepro.reports.diagnosis import compose_diagnosis

    page = compose_diagnosis(diagnosis)
    # The timeline of a few seconds says less than the rest.
    happened = [
        section for section in what_happened(incident) if section.title != "Conditions"
    ]
    return replace(
        page,
        title=title(incident),
        warning=warning(incident),
        commands=[("to repeat it", incident.command)],
        sections=[*page.sections, *happened, *context(incident)],
        footer=footer(incident),
    )


def _subject(incident: Incident) -> str:
    name = f"{incident.scenario.name} on {engine_name(incident)}"
    text = f"{name}, fidelity {incident.fidelity}"
    if incident.engine.python_of:
        text += f": {incident.engine.python_of}"
    return text


def warning(incident: Incident) -> b.Warning | None:
    """Warn of a run that is not whole; None: it is."""
    note = _partial_note(incident)
    return b.Warning(note, incident.failure_detail) if note else None


def footer(incident: Incident) -> b.Inline:
    """Say when and by which mmrepro it was made, and where the evidence lies."""
    made = f"UTC, made by mmrepro {incident.mmrepro_version} from "
    name = f"Incident {incident.id}, {incident.created.wall:%Y-%m-%d %H:%M:%S} {made}"
    beside = "; the raw evidence lies in "
    return (name, b.code("incident.json"), beside, b.code("evidence/"), " beside it.")


def _card(incident: Incident) -> Iterator[b.Block]:
    text = _outcome(incident)
    if text:
        yield b.p(text)
    yield b.p(b.prose(words.sentence(incident.scenario.summary)))
    if incident.key_stack:
        yield _stack_block(incident.key_stack, short=True)
    if incident.verdict is not None and incident.scenario.affected:
        yield _affected(incident)
    if incident.left_behind:
        things = "; ".join(incident.left_behind[:4])
        yield b.p(f"Left behind after the stop: {things}", tone="bad")


def _affected(incident: Incident) -> b.Block:
    """The affected releases, and after a reproduced run the workaround."""
    where = f", {incident.scenario.where} alone" if incident.scenario.where else ""
    affected = f"Affected releases: {incident.scenario.affected}{where}"
    workaround = _workaround(incident)
    if workaround is None:
        return b.p(affected, "")
    does = b.prose(f": {workaround.description}")
    return b.p(affected, ("; workaround ", b.code(workaround.name), *does))


def _workaround(incident: Incident) -> MitigationFacts | None:
    """The first mitigation that does not hide the failure alone."""
    if incident.outcome is not Outcome.REPRODUCED:
        return None
    for mitigation in incident.mitigations:
        if not mitigation.hides:
            return mitigation
    return None


def _counts(incident: Incident) -> Iterator[str]:
    """Conditions and claims, in numbers."""
    text = condition_count(incident)
    if text:
        yield text
    yield from words.claim_counts(incident.claims, "claim", "claims")


def _commands(incident: Incident) -> Iterator[tuple[str, str]]:
    yield "to repeat it", incident.command
    if incident.server is not None:
        why = f"the server still runs at {incident.server.url}; to end it"
        yield why, f"kill {incident.server.pid}"


# ------------------------------------------------------------------------ what happened


def what_happened(incident: Incident) -> Iterator[b.Section]:
    """The sections on what the run saw, the timeline first."""
    yield b.Section("Timeline", [*_timeline(incident)], 50)
    yield b.Section("Symptom", _symptoms(incident), 90)
    yield b.Section("Side by side", [*_exhibits(incident)], 88)
    if incident.verdict:
        yield b.Section("Conditions", [*_conditions(incident)], 94)
    if incident.key_stack:
        yield b.Section("The stack that matters", [*_stack(incident.key_stack)], 95)
    yield b.Section("Log", _logs(incident), 60)
    yield b.Section(_cause_heading(incident), _root_cause(incident), 80)
    yield b.Section("Minimal reproducers", _reproducers(incident), 78)


def _timeline(incident: Incident) -> Iterator[b.Block]:
    from mmrepro.reports.picture import axis_of, picture

    lines = timeline.lines(incident)
    drawing = picture(incident)
    if drawing:
        yield b.Picture(drawing, timeline.sparks(incident), "", axis_of(incident))
    loud = [line for line in lines if line.level != "info"]
    is_short = len(lines) <= _OPEN_LINES
    if loud and not is_short:
        yield from _timed(loud[:12], "lines that report trouble")
    heading = f"All {len(lines)} lines" if lines else ""
    all_lines = _timed(lines, "all that happened")
    yield from b.folded(heading, all_lines, open=is_short)


def _timed(lines: Sequence[timeline.TimelineLine], caption: str) -> list[b.Block]:
    rows = []
    for line in lines:
        row = b.row(
            f"{line.at:+.2f} s",
            line.phase,
            line.source,
            line.text,
            tone=_LEVEL_TONES[line.level],
            status=line.level,
            at=line.at,
        )
        rows.append(row)

    return b.table("time:number | phase:name | source:name | what", rows, caption)


def _symptoms(incident: Incident) -> list[b.Block]:
    rows = []
    for row in incident.symptoms[:200]:
        answer, state, tone = words.ABNORMAL[row.abnormal]
        cells = (
            row.check,
            b.strong(row.observed, tone),
            row.healthy,
            row.reported,
            answer,
        )
        rows.append(b.row(*cells, status=state))

    heads = "check | observed | healthy (warm-up check) | as reported | abnormal:name"
    return b.table(heads, rows, "symptoms")


def _exhibits(incident: Incident) -> Iterator[b.Block]:
    from mmrepro.reports.exhibits import exhibits

    for exhibit, drawn, curve in exhibits(incident):
        yield b.Heading(exhibit.title)
        if exhibit.note:
            yield b.p(b.prose(exhibit.note))
        if drawn:
            yield _side_by_side(drawn)
        if exhibit.birthday is not None:
            yield b.Picture(curve, _collision_table(exhibit.birthday))


def _side_by_side(drawn: Sequence[tuple[Shown, Markup]]) -> b.Block:
    rows = []
    pictures = []
    for shown, pixels in drawn:
        file = b.code(f"evidence/{shown.file}") if shown.file else ""
        facts = "; ".join(f"{name} {value}" for name, value in shown.facts.items())
        rows.append((shown.caption, file, shown.text, facts))
        pictures.append((pixels, shown.caption, shown.text, shown.facts))
    return b.Sides(pictures, b.table(" | image | answer | facts", rows))


def _collision_table(birthday: Birthday) -> list[b.Block]:
    rows = []
    for pool in (*birthday.pools, *birthday.seen)[:40]:
        if pool.images >= 0:
            chance = collision_probability(pool.images, birthday.bits)
            rows.append((f"{pool.images:,}", f"{chance:.1%}", pool.label))
    return b.table("images:number | chance of a collision:number | ", rows)


def _stack_block(given: KeyStack, *, short: bool = False) -> b.Stack:
    """``short``: the innermost frames alone, without their locals."""
    state = "active" if given.active else "idle"
    if given.owns_gil:
        state += "+gil"
    frames = []
    for frame in given.frames[: b.FRAMES if short else None]:
        values = {} if short else frame.locals
        frames.append(b.Frame(frame.function, frame.file, frame.line, values))
    thread = f"{given.process}, thread {given.thread} ({state})"
    return b.Stack(f"{thread}, {given.seen} of {given.samples} samples", frames)


def _stack(given: KeyStack) -> Iterator[b.Block]:
    seen, process = b.strong(f"{given.seen} of {given.samples}"), b.code(given.process)
    text = (seen, " samples of ", process, " show it, innermost call first. ")
    yield b.p(text, b.prose(given.note))
    yield from b.folded(
        f"{len(given.frames)} frames with their locals", [_stack_block(given)]
    )


def _conditions(incident: Incident) -> Iterator[b.Block]:
    assert incident.verdict is not None
    count = condition_count(incident)
    text = f"{count}. " if count else ""
    yield b.p(text + words.sentence(incident.verdict.explanation))
    yield from words.condition_tables(incident.verdict.conditions)


def _logs(incident: Incident) -> list[b.Block]:
    excerpts = incident.log_lines[:60]
    blocks: list[b.Block] = []
    for log in excerpts:
        note = f": {log.note}" if log.note else ""
        blocks.append(b.p(b.code(f"{log.file}:{log.number}"), note))
        process = f"({log.process})" if log.process else ""
        prefix = " ".join(filter(None, [process, log.time]))
        blocks.append(b.Fence(f"{prefix} {log.text}".strip()))
    return b.folded(f"{len(excerpts)} excerpts", blocks, open=len(excerpts) <= 2)


def _root_cause(incident: Incident) -> list[b.Block]:
    text = incident.scenario.explanation
    blocks: list[b.Block] = [b.p(b.prose(text))] if text else []
    shown = incident.sources[:30]
    sources: list[b.Block] = []
    for source in shown:
        name = b.code(source.qualname)
        where = b.code(f"{source.file}:{source.first_line}")
        note = b.prose(source.note)
        sources.append(b.p(name, " in ", where, ", as installed. ", note))
        # A break inside of a line would shift the numbers of those below.
        lines = [" ".join(line.splitlines()) for line in source.lines[:200]]
        text = "\n".join(lines)
        sources.append(b.Fence(text, "python", source.first_line, source.highlight))

    count = b.count(len(shown), "function")
    return blocks + b.folded(f"{count} of the engine, as installed", sources)


def _reproducers(incident: Incident) -> list[b.Block]:
    rows = []
    for run in incident.evidence.reproducers[:40]:
        ended = "–" if run.exit_code is None else str(run.exit_code)
        facts = ", ".join(f"{name}={value}" for name, value in run.facts.items())
        rows.append((b.code(run.name), ended, duration(run.seconds), facts, run.error))
    heads = "reproducer:name | exit code:number | took:number | facts | error"
    return b.table(heads, rows, "minimal reproducers")


# ------------------------------------------------------------------- claims and context


def _claims(incident: Incident) -> Iterator[b.Section]:
    confirmed = []
    others = []
    for claim in incident.claims:
        if claim.status is ClaimStatus.CONFIRMED:
            confirmed.append(claim)
        else:
            others.append(claim)
    blocks = [*words.claims(others, "this run shows", "claim", "claims")]
    shown = words.claims(confirmed, "this run shows", "claim", "claims")
    blocks += b.folded(f"{b.count(len(confirmed), 'claim')} confirmed", shown)
    yield b.Section("Claims of the original report", blocks, 85)


def _mitigations(incident: Incident) -> list[b.Block]:
    rows = []
    for mitigation in incident.mitigations:
        effect = words.effective_words(mitigation)
        if mitigation.observed:
            effect += f": {mitigation.observed}"
        name, command = b.code(mitigation.name), b.code(mitigation.command)
        rows.append((name, effect, b.prose(mitigation.description), command))
    heads = "mitigation:name | this run | what it does | try it"
    return b.table(heads, rows, "mitigations")


def context(incident: Incident) -> Iterator[b.Section]:
    """The sections on what the run was made with, and how it went."""
    yield b.Section("What differs from production", _differences(incident), 65)
    upstream = []
    for reference in incident.references[:40]:
        note = f" ({reference.note})" if reference.note else ""
        link = b.link(reference.id, reference.url)
        upstream.append((link, f": {reference.title}{note}"))
    yield b.Section("Upstream", b.bullets(upstream), 55)
    yield b.Section("Environment", [*_environment(incident)], 75)
    yield b.Section("How the run went", [*_run(incident)], 40)
    yield b.Section("Requests", _requests(incident), 30)
    yield b.Section("Packages", _packages(incident), 10)


def _differences(incident: Incident) -> list[b.Block]:
    meaning = incident.fidelity.words
    fidelity = b.strong(incident.fidelity.value)
    blocks: list[b.Block] = [b.p("Fidelity ", fidelity, f": {meaning}.")]
    python_of = incident.engine.python_of
    if python_of:
        text = f"{python_of}: what the compiled files do is that release's."
        blocks.append(b.p(text))
    if not incident.stand_ins and incident.diagnosis is None:
        blocks.append(b.p("No stand-in: the engine's code is unmodified."))
    used = ((stand_in, stand_in_use(stand_in)) for stand_in in incident.stand_ins)
    blocks += words.stand_ins(used, "in this run")
    return blocks + settings_table(incident.engine.settings)


def settings_table(settings: Sequence[Setting]) -> list[b.Block]:
    """Settings that differ from the engine's own, folded."""
    rows = []
    for setting in settings:
        rows.append((b.code(setting.name), b.code(setting.value), setting.why))
    shown = b.table("setting:name | value | why", rows, "settings")
    count = b.count(len(rows), "setting")
    return b.folded(f"{count} other than the engine's own", shown)


def _environment(incident: Incident) -> Iterator[b.Block]:
    rows = environment(incident)
    yield from b.folded("Engine, wheel, model, host", [b.Facts(rows, "environment")])
    engine = incident.engine
    if not engine.command:
        return
    lines = [f"{name}={value}" for name, value in engine.environment.items()]
    lines.append(" ".join(engine.command))
    title = _started_with(incident).rstrip(":")
    yield from b.folded(title, [b.Fence("\n".join(lines), "sh")])


def _packages(incident: Incident) -> list[b.Block]:
    packages = incident.engine.packages
    if not packages:
        return []
    blocks: list[b.Block] = []
    file = incident.engine.packages_file
    if file:
        where = b.code("evidence/" + file.removeprefix("evidence/"))
        blocks.append(b.p("With hashes: ", where))
    blocks.append(b.Fence("\n".join(packages[:2000])))
    return b.folded(f"{len(packages)} packages as resolved", blocks)


def _run(incident: Incident) -> Iterator[b.Block]:
    if incident.gate:
        yield _warm_up_check(incident.gate)
    answered = _latencies(incident)
    if answered:
        yield b.p(answered)
    exit_text = _engine_exit(incident)
    if exit_text:
        yield b.p(b.strong(exit_text, "bad"))
    hashes = incident.hashes
    if hashes:
        head = hashes.recorded_sha256 or hashes.sha256
        yield b.p("The record of its hashes ends with ", b.code(head), ".")
    processes = _footprint(incident)[:40]
    heads = "process | resident memory:number | threads:number"
    shown = b.table(heads, processes, "processes of the engine")
    yield from b.folded(f"{len(processes)} rows on the engine's processes", shown)
    yield from _probes(incident)
    yield from _stages("Time spent", incident.stages)
    yield from _stages("Within the engine's start", incident.engine.start_stages)
    yield b.p(b.strong("Left behind: "), _left_behind(incident))
    yield from b.bullets([b.code(item) for item in incident.left_behind[:100]])


def _warm_up_check(gate: GateFacts) -> b.Block:
    sentences = [words.sentence(gate.why)]
    latency = words.span(gate.latencies_s)
    if latency:
        sentences.append(f"Latencies {latency}.")
    if gate.deadline_s:
        rule = f" ({gate.deadline_rule})" if gate.deadline_rule else ""
        sentences.append(f"Deadline {duration(gate.deadline_s)}{rule}.")
    passed = b.strong("failed", "bad")
    if gate.passed:
        passed = b.strong("passed", "good")
    return b.p("Warm-up check ", passed, f": {' '.join(filter(None, sentences))}")


def _probes(incident: Incident) -> list[b.Block]:
    probes = incident.evidence.probes
    rows = []
    for probe in probes[:500]:
        row = b.row(
            b.code(probe.probe),
            probe.phase,
            probe.status.value,
            duration(probe.seconds),
            probe.reason,
            b.codes(probe.raw),
            tone="" if probe.ok else "unsure",
            status=probe.status.value,
        )
        rows.append(row)

    unusable = sum(probe.status is not ProbeStatus.OK for probe in probes)
    heads = "probe:name | phase:name | status:name | took:number | reason | raw"
    shown = b.table(heads, rows, "probe results")
    title = f"{len(probes)} probe results, {unusable} of them not usable"
    return b.folded(title, shown)


def _stages(what: str, stages: Mapping[str, float]) -> Iterator[b.Block]:
    """How long each stage took; nothing where none is known."""
    if not stages:
        return
    spent = []
    for name, seconds in list(stages.items())[:30]:
        if words.sane(seconds):
            spent.append(f"{name} {duration(seconds)}")
    yield b.p(f"{what}: {', '.join(spent)}.")


def _requests(incident: Incident) -> list[b.Block]:
    requests = incident.evidence.requests
    rows = []
    for group in timeline.request_groups(requests)[:500]:
        row = b.row(
            group.ids,
            group.first.phase,
            group.what,
            group.status,
            group.latency,
            group.first.error,
            status=group.kind,
        )
        rows.append(row)

    heads = "id:name | phase:name | what for | answer:name | latency:name | error"
    shown = b.table(heads, rows, "requests")
    return b.folded(f"{len(requests)} requests", shown)


# -------------------------------------------------------------------------------- JUnit


def _junit(incident: Incident) -> list[Suite]:
    """Test cases that are never greener than the run.

    * verdict: passes only when the outcome is the expected one; inconclusive or missing
      is an error; where nothing was expected it is skipped.
    * condition: met passes; not met fails, unless the verdict is as expected without it
      (skipped); unknown is an error if it was required and the verdict is not as
      expected, else skipped.
    * the state of a diagnosed live server: healthy passes, what is unknown is an error;
      each known failure that was found fails.
    * claim: its name ends with what the run shows of it. A refuted claim passes: that
      the bug report was wrong in one point is a finding, not a failure of the run. Not
      tested is skipped.
    """
    name = f"mmrepro.{incident.scenario.name}"
    cases: list[JunitCase] = []
    if incident.diagnosis is not None:
        from mmrepro.reports.diagnosis import diagnosis_cases

        cases += diagnosis_cases(incident.diagnosis, name)
    else:
        cases.append(_verdict_case(incident, name))

    verdict = incident.verdict
    if verdict is not None:
        for condition in verdict.conditions:
            cases.append(_condition_case(condition, name, verdict.as_expected))

    cases += [_claim_case(claim, name) for claim in incident.claims]
    properties = [
        ("engine", engine_name(incident)),
        ("fidelity", str(incident.fidelity)),
        ("incident", incident.id),
        ("command", incident.command),
    ]
    return [Suite(name, incident.created.wall, cases, properties)]


def _claim_case(claim: ClaimResult, name: str) -> JunitCase:
    case = JunitCase(f"{name}.claim", f"{claim.id}: {claim.text} [{claim.status}]")
    if claim.status is ClaimStatus.NOT_TESTED:
        return replace(case, how="skipped", message=f"not tested: {claim.observed}")
    return replace(case, output=f"{claim.status}: {claim.observed}")


def _verdict_case(incident: Incident, name: str) -> JunitCase:
    seconds = 0.0
    if incident.finished is not None:
        seconds = round(max(incident.finished.mono - incident.created.mono, 0.0), 3)
    case = JunitCase(
        f"{name}.verdict", f"outcome on {engine_name(incident)}", seconds=seconds
    )
    verdict = incident.verdict
    if verdict is None or incident.state != "complete":
        return replace(
            case,
            how="error",
            message=_partial_note(incident) or "no verdict",
            text="\n".join(incident.failure_detail),
            kind=incident.state,
        )

    if verdict.outcome is Outcome.INCONCLUSIVE:
        message = f"inconclusive: {verdict.explanation}"
        return replace(case, how="error", message=message, kind="inconclusive")

    if verdict.expected is None:
        message = f"{verdict.outcome}, and no outcome was expected"
        return replace(case, how="skipped", message=message)

    if verdict.as_expected:
        return replace(case, output=f"{verdict.outcome}: {verdict.explanation}")
    expected = f"{verdict.outcome}, expected {verdict.expected}"
    return replace(
        case,
        how="failed",
        message=f"{expected}: {verdict.explanation}",
        text=verdict.expected_because,
        kind=str(verdict.outcome),
    )


def _condition_case(
    condition: ConditionResult, name: str, as_expected: bool
) -> JunitCase:
    case = JunitCase(
        f"{name}.condition.{condition.part}", f"{condition.id}: {condition.statement}"
    )
    observed = condition.observed
    files = "\n".join(f"evidence/{file}" for file in condition.evidence)
    if condition.truth is Truth.MET:
        return replace(case, output=f"{observed}\n{files}".strip())
    if condition.truth is Truth.UNKNOWN:
        how: How = "skipped"
        if condition.required and not as_expected:
            how = "error"
        message = f"unknown: {observed}"
        return replace(case, how=how, message=message, text=files, kind="unknown")

    if as_expected:
        message = f"not met, as expected of this run: {observed}"
        return replace(case, how="skipped", message=message)

    message = f"not met: {observed}"
    return replace(case, how="failed", message=message, text=files, kind="not-met")


# ------------------------------------------------------------------ verdict and summary


def _badge(incident: Incident) -> b.Badge:
    """The verdict; its tone is good where it is the expected one."""
    verdict = incident.verdict
    if verdict is None:
        label = {
            "interrupted": "Interrupted",
            "failed": "Failed",
            "complete": "No verdict",
        }
        return b.Badge(label[incident.state], "unsure", "no verdict was reached")

    label_text = words.capital(verdict.outcome.words)
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return b.Badge(
            label_text, "unsure", "the failure is neither shown nor excluded"
        )

    if verdict.expected is None:
        return b.Badge(label_text, "unsure", "no outcome was expected")
    if verdict.as_expected:
        return b.Badge(label_text, "good", "as expected")
    return b.Badge(label_text, "bad", f"expected: {verdict.expected.words}")


def engine_name(incident: Incident) -> str:
    """Name the engine and its release."""
    return f"{incident.engine.name} {incident.engine.release}".strip()


def title(incident: Incident) -> str:
    """The scenario's title and the release; the engine's name unless the title has it
    already."""
    text, engine = incident.scenario.title, incident.engine
    if incident.diagnosis is not None and not engine.release:
        return text
    known = engine.name.casefold() in text.casefold()
    return f"{text} ({engine.release if known else engine_name(incident)})"


def _partial_note(incident: Incident) -> str:
    """Said at the very top when the run is not whole; empty when it is."""
    if incident.state == "complete" and (incident.verdict or incident.diagnosis):
        return ""
    what = {
        "interrupted": (
            "This run was interrupted: what follows is what had been collected."
        ),
        "failed": "This run failed before a verdict: the failure is mmrepro's or its "
        "set-up's and says nothing about the engine.",
        "complete": "This run has no verdict.",
    }[incident.state]
    return f"{what} {incident.failure}".strip()


def _outcome(incident: Incident) -> str:
    """What this run saw, and whether it was expected; empty without a verdict."""
    verdict = incident.verdict
    if verdict is None:
        return ""
    saw = words.OUTCOME_SENTENCES[verdict.outcome].format(engine=engine_name(incident))
    because = f": {verdict.expected_because}" if verdict.expected_because else ""
    if verdict.expected is None:
        expected = f"No outcome was expected{because}"
    elif verdict.as_expected:
        expected = f"This is the expected outcome{because}"
    else:
        instead = verdict.expected.words
        expected = f"This is not what was expected ({instead}){because}"

    return f"{saw}: {words.sentence(verdict.explanation)} {words.sentence(expected)}"


def condition_count(incident: Incident) -> str:
    """``6 of 6 required conditions met``; empty without a verdict."""
    if incident.verdict is None:
        return ""
    required = [c for c in incident.verdict.conditions if c.required]
    met = sum(c.truth is Truth.MET for c in required)
    unknown = sum(c.truth is Truth.UNKNOWN for c in required)
    tail = f", {unknown} unknown" if unknown else ""
    return f"{met} of {len(required)} required conditions met{tail}"


# ---------------------------------------------------------------- the exact environment


def environment(incident: Incident) -> list[tuple[str, str]]:
    """Label and value of all that a second person needs to have the same run."""
    engine = incident.engine
    target = [("engine", engine_name(incident))]
    if incident.diagnosis is not None:
        from mmrepro.reports.diagnosis import target_rows

        target = target_rows(incident.diagnosis)

    rows = [
        ("mmrepro", incident.mmrepro_version),
        *target,
        ("commit", engine.commit),
        ("source", engine.python_of),
    ]
    wheel = engine.wheel
    if wheel:
        origin = f"{wheel.project}, uploaded {wheel.uploaded}, {wheel.origin}"
        rows += [
            ("wheel", wheel.filename),
            ("wheel sha256", wheel.sha256),
            ("wheel origin", origin),
        ]

    rows += [
        ("engine's Python", engine.python),
        ("packages resolved until", engine.resolved_until),
        ("fidelity", str(incident.fidelity)),
    ]
    if incident.model:
        rows.append(("model", _model_words(incident.model)))
        rows.append(("model weights sha256", incident.model.sha256))

    host = incident.host
    rows += [
        ("operating system", f"{host.os}, kernel {host.kernel}"),
        ("CPU", f"{host.cpu}, {host.cores} cores, {size(host.memory_bytes)} memory"),
        ("GPU", gpu_words(host)),
        ("NVIDIA driver", driver_words(host)),
        ("mmrepro's Python", host.python),
    ]
    return [(label, value) for label, value in rows if value]


def _model_words(model: ModelFacts) -> str:
    facts = [model.kind]
    if model.parameters is not None:
        facts.append(f"{model.parameters:,} parameters")
    if model.seed is not None:
        facts.append(f"seed {model.seed}")
    if model.image_tokens is not None:
        facts.append(f"{model.image_tokens} image tokens")
    return ", ".join(facts)


def gpu_words(host: HostFacts) -> str:
    """``GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, GPU-52a3a85d, taken by the engine;
    …``."""
    some_taken = any(gpu.taken for gpu in host.gpu_facts)
    gpus = []
    for gpu in host.gpu_facts:
        facts = [f"GPU {gpu.index}: {gpu.name}"]
        if gpu.memory_bytes:
            facts.append(size(gpu.memory_bytes))
        if gpu.uuid:
            facts.append(gpu.uuid)
        if gpu.mig:
            facts.append("MIG is on")
        if gpu.users:
            facts.append(f"in use when the run began: {gpu.users}")
        # Where none is marked nobody knows which the engine has.
        if gpu.taken:
            facts.append("taken by the engine")
        elif some_taken:
            facts.append("not the engine's")
        gpus.append(", ".join(facts))

    return "; ".join(gpus) or ", ".join(host.gpus) or "none"


def driver_words(host: HostFacts) -> str:
    """Version of the driver, and of the CUDA that it runs; empty without a GPU."""
    if not host.gpu_facts:
        return ""
    return f"{host.gpu_facts[0].driver}, runs CUDA up to {host.gpu_facts[0].cuda}"


def _cause_heading(incident: Incident) -> str:
    """A scenario knows its cause; only a reproduced run has shown it."""
    reproduced = incident.outcome is Outcome.REPRODUCED
    diagnosed = incident.diagnosis is not None and bool(incident.diagnosis.found)
    if reproduced or diagnosed:
        return "Root cause"
    return "The known cause (not shown by this run)"


def stand_in_use(stand_in: StandIn) -> str:
    """What the engine's log says of a stand-in; empty if it says nothing."""
    if stand_in.loaded is None:
        return ""
    used = f"reported itself {stand_in.loaded} times"
    if stand_in.calls is None:
        return used
    if not stand_in.calls:
        return f"{used}; nothing that it only pretends to have was called"
    return (
        f"{used}; {stand_in.calls} calls of what it only pretends to have, each of "
        "which raised"
    )


def _footprint(incident: Incident) -> list[tuple[str, str, str]]:
    """Role, resident memory and threads of each process of the engine, at the last
    reading."""
    rows: list[tuple[str, str, str]] = []
    for _, data in incident.evidence.results(ProcessesData):
        rows = []
        total = 0
        for process in data.processes:
            name = process.role or process.name
            total += process.rss_bytes
            rows.append((name, size(process.rss_bytes), str(process.threads)))
        if len(rows) > 1:
            rows.append(("together (shared pages counted in each)", size(total), ""))

    return rows


def _latencies(incident: Incident) -> str:
    """Start-up, and the latencies of all answered completions; empty without either."""
    sentences = []
    start = incident.engine.start_seconds
    if start:
        mode = incident.engine.start_mode
        how = f" (start mode {mode})" if mode in ("cold", "fork", "warm") else ""
        sentences.append(
            f"The server was ready {duration(start)} after its start{how}."
        )

    known = []
    for request in incident.evidence.requests:
        if request.answered and request.max_tokens:
            known.append(request.latency_s)

    if known:
        known.sort()
        count = len(known)
        middle = duration(known[count // 2])
        late = duration(known[min(count - 1, count * 95 // 100)])
        sentences.append(
            f"{count} completions were answered, half of them within {middle}, 95 % "
            f"within {late}."
        )

    return " ".join(sentences)


def _started_with(incident: Incident) -> str:
    """What the engine's command line in the report is."""
    if incident.engine.start_mode in ("fork", "warm"):
        return (
            f"The engine's command, which start mode {incident.engine.start_mode} ran "
            "as a fork:"
        )
    return "The engine was started with:"


def _engine_exit(incident: Incident) -> str:
    """How the engine ended, if it ended by itself; else empty."""
    code = incident.evidence.engine_exit
    if code is None:
        return ""
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"The engine ended by itself {how}."


def _left_behind(incident: Incident) -> str:
    if incident.diagnosis is not None:
        return "Nothing was started and nothing changed: the server was only looked at."
    if incident.left_behind:
        return f"{len(incident.left_behind)} things were left behind after the stop"
    if incident.server is not None:
        return "The server was kept running on request."
    if incident.finished is None:
        return "The run did not get as far as the check."
    return (
        "Nothing: no process, port or shared memory of the run was left after the stop."
    )


KIND: Final = kind(
    Incident, INCIDENT_FILE, compose, files=(MARKDOWN_FILE, HTML_FILE), junit=_junit
)
load: Final = KIND.load
