"""A run's report, and a diagnosis's: ``incident.json`` as a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from markupsafe import Markup
from mmrepro.base.records import ClaimStatus, HostFacts, Setting, StandIn
from mmrepro.base.units import duration, size
from mmrepro.failure.documents import (
    INCIDENT_FILE,
    Birthday,
    ClaimResult,
    Diagnosis,
    GateFacts,
    Incident,
    KeyStack,
    MitigationFacts,
    ModelFacts,
    Shown,
    SourceExcerpt,
    collision_probability,
)
from mmrepro.failure.signature import ConditionResult, Outcome, Truth
from mmrepro.probes import ProbeStatus, ProcessesData
from mmrepro.reports import blocks as b, timeline, words
from mmrepro.reports.documents import (
    HTML_FILE,
    MARKDOWN_FILE,
    How,
    JunitCase,
    Suite,
    kind,
)
from mmrepro.reports.flames import stack_pictures

_STACKS: Final = "Stacks over time"
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
            b.Section("Mitigations", _mitigations(incident), keep=70),
            *context(incident),
        ],
        footer=footer(incident),
    )


def _compose_diagnosed(incident: Incident, diagnosis: Diagnosis) -> b.Page:
    from mmrepro.reports.diagnosis import compose_diagnosis

    page = compose_diagnosis(diagnosis)
    pictures = []
    happened = []
    for section in what_happened(incident):
        if section.title == _STACKS:
            pictures.append(section)
        # Those of the known failures are in the diagnosis's own sections.
        elif section.title != "Conditions":
            happened.append(section)

    # The timeline of a few seconds says less than the rest.
    return replace(
        page,
        title=title(incident),
        warning=warning(incident),
        commands=[("run again", incident.command)],
        # The pictures begin on the first screen.
        sections=[*pictures, *page.sections, *happened, *context(incident)],
        footer=footer(incident),
    )


def _subject(incident: Incident) -> str:
    text = f"{incident.scenario.name} on {engine_name(incident)}"
    text += f", fidelity {incident.fidelity}"
    if incident.engine.python_of:
        text += f": {incident.engine.python_of}"
    return text


def warning(incident: Incident) -> b.Warning | None:
    """Warn of a run that is not whole; None: it is."""
    note = _partial_note(incident)
    return b.Warning(note, incident.failure_detail) if note else None


def footer(incident: Incident) -> b.Inline:
    """Say when and by which mmrepro it was made, and where the evidence lies."""
    when = f"{incident.created.wall:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"Incident {incident.id}, {when}, made by mmrepro "
        f"{incident.mmrepro_version} from ",
        b.code("incident.json"),
        "; the raw evidence lies in ",
        b.code("evidence/"),
        " beside it.",
    )


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
    yield "run again", incident.command
    if incident.server is not None:
        why = f"the server still runs at {incident.server.url}; to end it"
        yield why, f"kill {incident.server.pid}"


# ------------------------------------------------------------------------ what happened


def what_happened(incident: Incident) -> Iterator[b.Section]:
    """The sections on what the run saw, the timeline first."""
    yield b.Section("Timeline", [*_timeline(incident)], keep=50)
    yield b.Section("Symptom", _symptoms(incident), keep=90)
    yield b.Section("Side by side", [*_exhibits(incident)], keep=88)
    if incident.verdict:
        yield b.Section("Conditions", [*_conditions(incident)], keep=94)
    if incident.key_stack and incident.diagnosis is None:
        stack = [*_stack(incident.key_stack)]
        yield b.Section("The stack that matters", stack, keep=95)

    yield b.Section(_STACKS, [*stack_pictures(incident)], keep=65)
    yield b.Section("Log", _logs(incident), keep=60)
    yield b.Section(_cause_heading(incident), _root_cause(incident), keep=80)
    yield b.Section("Minimal reproducers", _reproducers(incident), keep=78)


def _timeline(incident: Incident) -> Iterator[b.Block]:
    from mmrepro.reports.picture import axis_of, picture

    drawing = picture(incident)
    if drawing:
        yield b.Picture(
            drawing=drawing,
            instead=timeline.sparks(incident),
            timeline=axis_of(incident),
        )

    lines = timeline.lines(incident)
    is_short = len(lines) <= _OPEN_LINES
    loud = [line for line in lines if line.level != "info"]
    # Of a short one all lines are unfolded.
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
        pictures.append((pixels, shown.caption, shown.text, shown.facts))
        facts = [f"{name} {value}" for name, value in shown.facts.items()]
        row = (
            shown.caption,
            b.code(f"evidence/{shown.file}") if shown.file else "",
            shown.text,
            "; ".join(facts),
        )
        rows.append(row)

    return b.Sides(pictures, b.table(" | image | answer | facts", rows))


def _collision_table(birthday: Birthday) -> list[b.Block]:
    rows = []
    for pool in (*birthday.pools, *birthday.seen)[:40]:
        # An incident may come from elsewhere: there is no fewer than no image.
        if pool.images < 0:
            continue
        chance = collision_probability(pool.images, birthday.bits)
        rows.append((f"{pool.images:,}", f"{chance:.1%}", pool.label))

    return b.table("images:number | chance of a collision:number | ", rows)


def _stack_block(given: KeyStack, *, short: bool = False) -> b.Stack:
    """Show the calls of a thread. ``short``: the innermost frames alone, without their
    locals."""
    state = "active" if given.active else "idle"
    if given.owns_gil:
        state += "+gil"
    frames = []
    for frame in given.frames[: b.FRAMES if short else None]:
        frames.append(
            b.Frame(
                function=frame.function,
                file=frame.file,
                line=frame.line,
                locals={} if short else frame.locals,
            )
        )

    thread = f"{given.process}, thread {given.thread} ({state})"
    return b.Stack(f"{thread}, {given.seen} of {given.samples} samples", frames)


def _stack(given: KeyStack) -> Iterator[b.Block]:
    seen = b.strong(f"{given.seen} of {given.samples}")
    process = b.code(given.process)
    text = (seen, " samples of ", process, " show it, innermost call first. ")
    yield b.p(text, b.prose(given.note))
    title = f"{len(given.frames)} frames with their locals"
    yield from b.folded(title, [_stack_block(given)])


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
        process = f"({log.process})" if log.process else ""
        parts = filter(None, [process, log.time, log.text])
        blocks.append(b.p(b.code(f"{log.file}:{log.number}"), note))
        blocks.append(b.Fence(" ".join(parts).strip()))

    return b.folded(f"{len(excerpts)} excerpts", blocks, open=len(excerpts) <= 2)


def _root_cause(incident: Incident) -> list[b.Block]:
    blocks: list[b.Block] = []
    explanation = incident.scenario.explanation
    if explanation:
        blocks.append(b.p(b.prose(explanation)))

    shown = incident.sources[:30]
    sources: list[b.Block] = []
    for source in shown:
        sources += _source(source)

    count = b.count(len(shown), "function")
    return blocks + b.folded(f"{count} of the engine, as installed", sources)


def _source(source: SourceExcerpt) -> list[b.Block]:
    """A function of the engine: where it is, and its lines."""
    where = b.p(
        b.code(source.qualname),
        " in ",
        b.code(f"{source.file}:{source.first_line}"),
        ", as installed. ",
        b.prose(source.note),
    )
    # A break inside of a line would shift the numbers of those below.
    lines = [" ".join(line.splitlines()) for line in source.lines[:200]]
    code = b.Fence(
        text="\n".join(lines),
        language="python",
        first=source.first_line,
        highlight=source.highlight,
    )
    return [where, code]


def _reproducers(incident: Incident) -> list[b.Block]:
    rows = []
    for run in incident.evidence.reproducers[:40]:
        facts = [f"{name}={value}" for name, value in run.facts.items()]
        row = (
            b.code(run.name),
            "–" if run.exit_code is None else str(run.exit_code),
            duration(run.seconds),
            ", ".join(facts),
            run.error,
        )
        rows.append(row)

    heads = "reproducer:name | exit code:number | took:number | facts | error"
    return b.table(heads, rows, "minimal reproducers")


# ------------------------------------------------------------------- claims and context


def _claims(incident: Incident) -> Iterator[b.Section]:
    confirmed = []
    not_tested = []
    others = []
    for claim in incident.claims:
        if claim.status is ClaimStatus.CONFIRMED:
            confirmed.append(claim)
        elif claim.status is ClaimStatus.NOT_TESTED:
            not_tested.append(claim)
        else:
            others.append(claim)

    # What was found wrong comes first; what this run says nothing of is folded.
    blocks = [*words.claims(others, "this run shows", "claim", "claims")]
    shown = words.claims(confirmed, "this run shows", "claim", "claims")
    title = f"{b.count(len(confirmed), 'claim')} confirmed"
    blocks += b.folded(title, shown, open=True)
    left = words.claims(not_tested, "this run shows", "claim", "claims")
    blocks += b.folded(f"{b.count(len(not_tested), 'claim')} not tested", left)
    yield b.Section("Claims of the original report", blocks, keep=85)


def _mitigations(incident: Incident) -> list[b.Block]:
    rows = []
    for mitigation in incident.mitigations:
        effect = words.effective_words(mitigation)
        if mitigation.observed:
            effect += f": {mitigation.observed}"
        row = (
            b.code(mitigation.name),
            effect,
            b.prose(mitigation.description),
            b.code(mitigation.command),
        )
        rows.append(row)

    heads = "mitigation:name | this run | what it does | try it"
    return b.table(heads, rows, "mitigations")


def context(incident: Incident) -> Iterator[b.Section]:
    """The sections on what the run was made with, and how it went."""
    yield b.Section("What differs from production", _differences(incident), keep=65)
    yield b.Section("Upstream", _upstream(incident), keep=55)
    yield b.Section("Environment", [*_environment(incident)], keep=75)
    yield b.Section("How the run went", [*_run(incident)], keep=40)
    yield b.Section("Requests", _requests(incident), keep=30)
    yield b.Section("Packages", _packages(incident), keep=10)


def _upstream(incident: Incident) -> list[b.Block]:
    items = []
    for reference in incident.references[:40]:
        note = f" ({reference.note})" if reference.note else ""
        link = b.link(reference.id, reference.url)
        items.append((link, f": {reference.title}{note}"))

    return b.bullets(items)


def _differences(incident: Incident) -> list[b.Block]:
    fidelity = b.strong(incident.fidelity.value)
    meaning = f": {incident.fidelity.words}."
    blocks: list[b.Block] = [b.p("Fidelity ", fidelity, meaning)]
    python_of = incident.engine.python_of
    if python_of:
        text = f"{python_of}: what the compiled files do is that release's."
        blocks.append(b.p(text))

    if not incident.stand_ins and incident.diagnosis is None:
        blocks.append(b.p("No stand-in: the engine's code is unmodified."))
    used = [(stand_in, stand_in_use(stand_in)) for stand_in in incident.stand_ins]
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

    yield from _processes(incident)
    yield from _probes(incident)
    yield from _stages("Time spent", incident.stages)
    yield from _stages("Within the engine's start", incident.engine.start_stages)
    yield b.p(b.strong("Left behind: "), _left_behind(incident))
    yield from b.bullets([b.code(item) for item in incident.left_behind[:100]])


def _processes(incident: Incident) -> list[b.Block]:
    rows = _footprint(incident)[:40]
    heads = "process | resident memory:number | threads:number"
    shown = b.table(heads, rows, "processes of the engine")
    return b.folded(f"{len(rows)} rows on the engine's processes", shown)


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
    text = " ".join(filter(None, sentences))
    return b.p("Warm-up check ", passed, f": {text}")


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
    return [
        Suite(
            name=name,
            when=incident.created.wall,
            cases=cases,
            properties=properties,
        )
    ]


def _claim_case(claim: ClaimResult, name: str) -> JunitCase:
    case = JunitCase(
        group=f"{name}.claim",
        name=f"{claim.id}: {claim.text} [{claim.status}]",
    )
    if claim.status is ClaimStatus.NOT_TESTED:
        return replace(case, how="skipped", message=f"not tested: {claim.observed}")
    return replace(case, output=f"{claim.status}: {claim.observed}")


def _verdict_case(incident: Incident, name: str) -> JunitCase:
    seconds = 0.0
    if incident.finished is not None:
        seconds = round(max(incident.finished.mono - incident.created.mono, 0.0), 3)
    case = JunitCase(
        group=f"{name}.verdict",
        name=f"outcome on {engine_name(incident)}",
        seconds=seconds,
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
        group=f"{name}.condition.{condition.part}",
        name=f"{condition.id}: {condition.statement}",
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
        return b.Badge(label[incident.state], "unsure", note="no verdict was reached")

    label_text = words.capital(verdict.outcome.words)
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return b.Badge(
            label_text, "unsure", note="the failure is neither shown nor excluded"
        )

    if verdict.expected is None:
        return b.Badge(label_text, "unsure", note="no outcome was expected")
    if verdict.as_expected:
        return b.Badge(label_text, "good", note="as expected")
    return b.Badge(label_text, "bad", note=f"expected: {verdict.expected.words}")


def engine_name(incident: Incident) -> str:
    """Name the engine, its release and the model runner that ran, if that is known."""
    engine = incident.engine
    name = f"{engine.name} {engine.release}".strip()
    return f"{name}, {engine.runner}" if engine.runner else name


def title(incident: Incident) -> str:
    """The scenario's title and the release; the engine's name unless the title has it
    already."""
    text = incident.scenario.title
    engine = incident.engine
    if incident.diagnosis is not None and not engine.release:
        return text
    full = engine_name(incident)
    known = engine.name.casefold() in text.casefold()
    name = full.removeprefix(f"{engine.name} ") if known else full
    return f"{text} ({name})"


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


ALL_MET: Final = "every condition of the symptom and of the cause is met"
"""How ``decide`` explains a reproduced failure."""


def _outcome(incident: Incident) -> str:
    """What this run saw, and whether it was expected; empty without a verdict."""
    verdict = incident.verdict
    if verdict is None:
        return ""
    engine = words.product(incident.engine.name, incident.engine.release)
    if incident.engine.runner:
        engine = f"{engine}, {incident.engine.runner}"
    saw = words.OUTCOME_SENTENCES[verdict.outcome].format(engine=engine)
    because = f": {verdict.expected_because}" if verdict.expected_because else ""
    if verdict.expected is None:
        expected = "no outcome was expected"
    elif verdict.as_expected:
        expected = "as expected"
    else:
        expected = f"but {verdict.expected.words} was expected"

    if verdict.outcome is Outcome.INCONCLUSIVE:
        why = words.sentence(verdict.explanation)
        return f"{saw}: {why} {words.capital(expected)}{because}."
    why = words.sentence(words.capital(verdict.explanation))
    if verdict.explanation == ALL_MET:
        required = [part for part in verdict.conditions if part.required]
        why = f"All {len(required)} conditions are met."
    return f"{saw}, {expected}{because}. {why}"


def condition_count(incident: Incident) -> str:
    """``6 of 6 required conditions met``; empty without a verdict."""
    if incident.verdict is None:
        return ""
    truths = []
    for condition in incident.verdict.conditions:
        if condition.required:
            truths.append(condition.truth)

    met = truths.count(Truth.MET)
    unknown = truths.count(Truth.UNKNOWN)
    tail = f", {unknown} unknown" if unknown else ""
    return f"{met} of {len(truths)} required conditions met{tail}"


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
    """Describe the GPUs: ``GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, GPU-52a3a85d, taken
    by the engine; …``."""
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
    first = host.gpu_facts[0]
    return f"{first.driver}, runs CUDA up to {first.cuda}"


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
    # Each reading replaces the one before: the last one stays.
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
        # Without a bound of tokens it is no completion, but a look at an endpoint.
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
        return "Side effects: none. The server was only observed."
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
