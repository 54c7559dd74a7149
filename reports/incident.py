"""A run's report, and a diagnosis's: ``incident.json`` as a page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mmrepro.base.records import HostFacts, Setting
from mmrepro.base.units import duration, size
from mmrepro.failure.documents import (
    INCIDENT_FILE,
    ClaimStatus,
    Incident,
    KeyStack,
    StandIn,
)
from mmrepro.failure.documents.model import collision_probability
from mmrepro.failure.signature import ConditionResult, Outcome, Truth
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import ProcessesData
from mmrepro.reports import blocks as b, timeline, words
from mmrepro.reports.documents import HTML_FILE, MARKDOWN_FILE, Case, How, Suite, kind

_OPEN_LINES: Final = 15
"""Of the timeline, which are shown unfolded."""


def compose(incident: Incident) -> b.Page:
    """The page of a run, or of a diagnosis."""
    if incident.diagnosis is not None:
        from mmrepro.reports.diagnosis import compose_diagnosis

        return compose_diagnosis(incident, incident.diagnosis)
    return b.Page(
        title=title(incident),
        badge=_badge(incident),
        subject=f"{incident.scenario.name} on {engine_name(incident)}, "
        f"fidelity {incident.fidelity}"
        + (f": {of}" if (of := incident.engine.python_of) else ""),
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


def warning(incident: Incident) -> b.Warning | None:
    note = _partial_note(incident)
    return b.Warning(note, incident.failure_detail) if note else None


def footer(incident: Incident) -> b.Inline:
    made = f"UTC, made by mmrepro {incident.mmrepro_version} from "
    name = f"Incident {incident.id}, {incident.created.wall:%Y-%m-%d %H:%M:%S} {made}"
    beside = "; the raw evidence lies in "
    return (name, b.code("incident.json"), beside, b.code("evidence/"), " beside it.")


def _card(incident: Incident) -> Iterator[b.Block]:
    if text := _outcome(incident):
        yield b.p(text)
    reproduced = bool(incident.verdict) and incident.outcome is Outcome.REPRODUCED
    yield b.p(b.prose(words.sentence(incident.scenario.summary)))
    if incident.key_stack:
        yield _stack_block(incident.key_stack, short=True)
    if incident.verdict is not None and incident.scenario.affected:
        where = f", {incident.scenario.where} alone" if incident.scenario.where else ""
        known = f"Affected releases: {incident.scenario.affected}{where}"
        helps = next(
            (m for m in incident.mitigations if not m.hides and reproduced), None
        )
        does = b.prose(f": {helps.description}") if helps else ()
        yield b.p(known, ("; workaround ", b.code(helps.name), *does) if helps else "")
    if incident.left_behind:
        yield b.p(
            f"Left behind after the stop: {'; '.join(incident.left_behind[:4])}",
            tone="bad",
        )


def _counts(incident: Incident) -> Iterator[str]:
    """Conditions and claims, in numbers."""
    if text := condition_count(incident):
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
    if len(lines) > _OPEN_LINES and loud:
        yield from _timed(loud[:12], "lines that report trouble")
    yield from b.folded(
        f"All {len(lines)} lines" if lines else "",
        _timed(lines, "all that happened"),
        open=len(lines) <= _OPEN_LINES,
    )


def _timed(lines: Sequence[timeline.Line], caption: str) -> list[b.Block]:
    tones: dict[str, b.Tone] = {"info": "", "warning": "unsure", "error": "bad"}
    rows = []
    for line in lines:
        cells = (f"{line.at:+.2f} s", line.phase, line.source, line.text)
        rows.append(
            b.row(*cells, tone=tones[line.level], status=line.level, at=line.at)
        )
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
            rows = []
            for one, _ in drawn:
                file = b.code(f"evidence/{one.file}") if one.file else ""
                facts = "; ".join(
                    f"{name} {value}" for name, value in one.facts.items()
                )
                rows.append((one.caption, file, one.text, facts))
            pictures = [
                (pixels, one.caption, one.text, one.facts) for one, pixels in drawn
            ]
            yield b.Sides(pictures, b.table(" | image | answer | facts", rows))
        if exhibit.birthday is not None:
            given = exhibit.birthday
            marks = [
                (
                    f"{p.images:,}",
                    f"{collision_probability(p.images, given.bits):.1%}",
                    p.label,
                )
                for p in (*given.pools, *given.seen)[:40]
                if p.images >= 0
            ]
            yield b.Picture(
                curve, b.table("images:number | chance of a collision:number | ", marks)
            )


def _stack_block(given: KeyStack, *, short: bool = False) -> b.Stack:
    """``short``: the innermost frames alone, without their locals."""
    state = ("active" if given.active else "idle") + "+gil" * given.owns_gil
    frames = [
        b.Frame(f.function, f.file, f.line, {} if short else f.locals)
        for f in given.frames[: b.FRAMES if short else None]
    ]
    seen = f"{given.seen} of {given.samples} samples"
    return b.Stack(f"{given.process}, thread {given.thread} ({state}), {seen}", frames)


def _stack(given: KeyStack) -> Iterator[b.Block]:
    seen, process = b.strong(f"{given.seen} of {given.samples}"), b.code(given.process)
    text = (seen, " samples of ", process, " show it, innermost call first. ")
    yield b.p(text, b.prose(given.note))
    yield from b.folded(
        f"{len(given.frames)} frames with their locals", [_stack_block(given)]
    )


def _conditions(incident: Incident) -> Iterator[b.Block]:
    assert incident.verdict is not None
    text = condition_count(incident) + ". " if condition_count(incident) else ""
    yield b.p(text + words.sentence(incident.verdict.explanation))
    yield from condition_tables(incident.verdict.conditions)


def condition_tables(
    given: Sequence[ConditionResult], prefix: str = ""
) -> Iterator[b.Block]:
    """Those that are open, then those that are met, folded. ``prefix``: of their
    anchors."""
    for met in (False, True):
        some = [c for c in given if (c.truth is Truth.MET) is met]
        rows = []
        for c in some:
            truth = b.toned(*words.TRUTHS[c.truth])
            name = (*b.prose(c.statement), " ", b.code(c.id))
            files = (
                f"evidence/{file.removeprefix('evidence/')}" for file in c.evidence[:4]
            )
            cells = (truth, c.observed, name, words.part_words(c), b.codes(files))
            anchor = b.slug(f"condition-{prefix}{c.id}")
            rows.append(b.row(*cells, status=c.truth.value, anchor=anchor))
        shown = b.table(
            "truth:name | observed | condition | part | evidence", rows, "conditions"
        )
        yield from (
            b.folded(f"{b.count(len(rows), 'condition')} met", shown) if met else shown
        )


def _logs(incident: Incident) -> list[b.Block]:
    blocks: list[b.Block] = []
    for log in incident.log_lines[:60]:
        note = f": {log.note}" if log.note else ""
        prefix = " ".join(filter(None, [log.process and f"({log.process})", log.time]))
        blocks.append(b.p(b.code(f"{log.file}:{log.number}"), note))
        blocks.append(b.Fence(f"{prefix} {log.text}".strip()))
    return b.folded(f"{len(blocks) // 2} excerpts", blocks, open=len(blocks) <= 4)


def _root_cause(incident: Incident) -> list[b.Block]:
    text = incident.scenario.explanation
    blocks: list[b.Block] = [b.p(b.prose(text))] if text else []
    sources: list[b.Block] = []
    for source in incident.sources[:30]:
        where = b.code(f"{source.file}:{source.first_line}")
        sources.append(
            b.p(
                b.code(source.qualname),
                " in ",
                where,
                ", as installed. ",
                b.prose(source.note),
            )
        )
        lines = "\n".join(" ".join(line.splitlines()) for line in source.lines[:200])
        sources.append(b.Fence(lines, "python", source.first_line, source.highlight))
    what = b.count(len(sources) // 2, "function")
    return blocks + b.folded(f"{what} of the engine, as installed", sources)


def _reproducers(incident: Incident) -> list[b.Block]:
    rows = []
    for one in incident.evidence.reproducers[:40]:
        ended = "–" if one.exit_code is None else str(one.exit_code)
        facts = ", ".join(f"{name}={value}" for name, value in one.facts.items())
        rows.append((b.code(one.name), ended, duration(one.seconds), facts, one.error))
    heads = "reproducer:name | exit code:number | took:number | facts | error"
    return b.table(heads, rows, "minimal reproducers")


# ------------------------------------------------------------------- claims and context


def _claims(incident: Incident) -> Iterator[b.Section]:
    blocks: list[b.Block] = []
    for confirmed in (False, True):
        some = [
            c
            for c in incident.claims
            if (c.status is ClaimStatus.CONFIRMED) is confirmed
        ]
        shown = words.claims(some, "this run shows", "claim", "claims")
        title = f"{b.count(len(some), 'claim')} confirmed"
        blocks += b.folded(title, shown) if confirmed else shown
    yield b.Section("Claims of the original report", blocks, 85)


def _mitigations(incident: Incident) -> list[b.Block]:
    rows = []
    for m in incident.mitigations:
        told = words.effective_words(m) + (f": {m.observed}" if m.observed else "")
        rows.append((b.code(m.name), told, b.prose(m.description), b.code(m.command)))
    return b.table(
        "mitigation:name | this run | what it does | try it", rows, "mitigations"
    )


def context(incident: Incident) -> Iterator[b.Section]:
    """The sections on what the run was made with, and how it went."""
    yield b.Section("What differs from production", _differences(incident), 65)
    upstream = [
        (b.link(r.id, r.url), f": {r.title}" + (f" ({r.note})" if r.note else ""))
        for r in incident.references[:40]
    ]
    yield b.Section("Upstream", b.bullets(upstream), 55)
    yield b.Section("Environment", [*_environment(incident)], 75)
    yield b.Section("How the run went", [*_run(incident)], 40)
    yield b.Section("Requests", _requests(incident), 30)
    yield b.Section("Packages", _packages(incident), 10)


def _differences(incident: Incident) -> list[b.Block]:
    meaning = incident.fidelity.words
    blocks: list[b.Block] = [
        b.p("Fidelity ", b.strong(incident.fidelity.value), f": {meaning}.")
    ]
    if python_of := incident.engine.python_of:
        blocks.append(
            b.p(f"{python_of}: what the compiled files do is that release's.")
        )
    if not incident.stand_ins and incident.diagnosis is None:
        blocks.append(b.p("No stand-in: the engine's code is unmodified."))
    blocks += words.stand_ins(
        ((s, stand_in_use(s)) for s in incident.stand_ins), "in this run"
    )
    return blocks + settings_table(incident.engine.settings)


def settings_table(settings: Sequence[Setting]) -> list[b.Block]:
    """Settings that differ from the engine's own, folded."""
    rows = [(b.code(s.name), b.code(s.value), s.why) for s in settings]
    shown = b.table("setting:name | value | why", rows, "settings")
    return b.folded(
        f"{b.count(len(rows), 'setting')} other than the engine's own", shown
    )


def _environment(incident: Incident) -> Iterator[b.Block]:
    rows = environment(incident)
    yield from b.folded("Engine, wheel, model, host", [b.Facts(rows, "environment")])
    engine = incident.engine
    if engine.command:
        variables = [f"{name}={value}" for name, value in engine.environment.items()]
        command = b.Fence("\n".join([*variables, " ".join(engine.command)]), "sh")
        yield from b.folded(_started_with(incident).rstrip(":"), [command])


def _packages(incident: Incident) -> list[b.Block]:
    packages = incident.engine.packages
    if not packages:
        return []
    shown: list[b.Block] = [b.Fence("\n".join(packages[:2000]))]
    if file := incident.engine.packages_file:
        where = b.code("evidence/" + file.removeprefix("evidence/"))
        shown.insert(0, b.p("With hashes: ", where))
    return b.folded(f"{len(packages)} packages as resolved", shown)


def _run(incident: Incident) -> Iterator[b.Block]:
    if gate := incident.gate:
        latency = words.span(gate.latencies_s)
        rule = f" ({gate.deadline_rule})" if gate.deadline_rule else ""
        passed = (
            b.strong("passed", "good") if gate.passed else b.strong("failed", "bad")
        )
        told = [words.sentence(gate.why), f"Latencies {latency}." if latency else ""]
        told += (
            [f"Deadline {duration(gate.deadline_s)}{rule}."] if gate.deadline_s else []
        )
        yield b.p("Warm-up check ", passed, f": {' '.join(filter(None, told))}")
    if text := _latencies(incident):
        yield b.p(text)
    if text := _engine_exit(incident):
        yield b.p(b.strong(text, "bad"))
    processes = _footprint(incident)[:40]
    heads = "process | resident memory:number | threads:number"
    shown = b.table(heads, processes, "processes of the engine")
    yield from b.folded(f"{len(processes)} rows on the engine's processes", shown)
    probes = incident.evidence.probes
    rows = []
    for p in probes[:500]:
        came = (p.status.value, duration(p.seconds), p.reason, b.codes(p.raw))
        tone: b.Tone = "" if p.ok else "unsure"
        rows.append(
            b.row(b.code(p.probe), p.phase, *came, tone=tone, status=p.status.value)
        )
    bad = sum(p.status is not ProbeStatus.OK for p in probes)
    heads = "probe:name | phase:name | status:name | took:number | reason | raw"
    shown = b.table(heads, rows, "probe results")
    yield from b.folded(f"{len(probes)} probe results, {bad} of them not usable", shown)
    starting = ("Within the engine's start", incident.engine.start_stages)
    for what, stages in (("Time spent", incident.stages), starting):
        if stages:
            known = [(n, s) for n, s in list(stages.items())[:30] if words.sane(s)]
            spent = ", ".join(f"{n} {duration(s)}" for n, s in known)
            yield b.p(f"{what}: {spent}.")
    yield b.p(b.strong("Left behind: "), _left_behind(incident))
    yield from b.bullets([b.code(item) for item in incident.left_behind[:100]])


def _requests(incident: Incident) -> list[b.Block]:
    rows = []
    for g in timeline.request_groups(incident.evidence.requests)[:500]:
        came = (g.status, g.latency, g.first.error)
        rows.append(b.row(g.ids, g.first.phase, g.what, *came, status=g.kind))
    heads = "id:name | phase:name | what for | answer:name | latency:name | error"
    return b.folded(
        f"{len(incident.evidence.requests)} requests", b.table(heads, rows, "requests")
    )


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
    cases: list[Case] = []
    if incident.diagnosis is not None:
        from mmrepro.reports.diagnosis import diagnosis_cases

        cases += diagnosis_cases(incident.diagnosis, name)
    else:
        cases.append(_verdict_case(incident, name))
    as_expected = incident.verdict is not None and incident.verdict.as_expected
    for condition in incident.verdict.conditions if incident.verdict else []:
        cases.append(_condition_case(condition, name, as_expected))
    for claim in incident.claims:
        case = Case(f"{name}.claim", f"{claim.id}: {claim.text} [{claim.status}]")
        if claim.status is ClaimStatus.NOT_TESTED:
            cases.append(
                replace(case, how="skipped", message=f"not tested: {claim.observed}")
            )
        else:
            cases.append(replace(case, output=f"{claim.status}: {claim.observed}"))
    properties = [
        ("engine", engine_name(incident)),
        ("fidelity", str(incident.fidelity)),
    ]
    properties += [("incident", incident.id), ("command", incident.command)]
    return [Suite(name, incident.created.wall, cases, properties)]


def _verdict_case(incident: Incident, name: str) -> Case:
    verdict = incident.verdict
    how: How = "passed"
    message = text = kind = output = ""
    if verdict is None or incident.state != "complete":
        how, kind = "error", incident.state
        message, text = (
            _partial_note(incident) or "no verdict",
            "\n".join(incident.failure_detail),
        )
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        how, kind, message = (
            "error",
            "inconclusive",
            f"inconclusive: {verdict.explanation}",
        )
    elif verdict.expected is None:
        how, message = "skipped", f"{verdict.outcome}, and no outcome was expected"
    elif not verdict.as_expected:
        how, kind, text = "failed", str(verdict.outcome), verdict.expected_because
        message = (
            f"{verdict.outcome}, expected {verdict.expected}: {verdict.explanation}"
        )
    else:
        output = f"{verdict.outcome}: {verdict.explanation}"
    seconds = 0.0
    if incident.finished is not None:
        seconds = round(max(incident.finished.mono - incident.created.mono, 0.0), 3)
    case = f"outcome on {engine_name(incident)}"
    return Case(f"{name}.verdict", case, how, message, text, kind, output, seconds)


def _condition_case(condition: ConditionResult, name: str, as_expected: bool) -> Case:
    group = f"{name}.condition.{condition.part}"
    case = f"{condition.id}: {condition.statement}"
    files = "\n".join(f"evidence/{f}" for f in condition.evidence)
    if condition.truth is Truth.MET:
        return Case(group, case, output=f"{condition.observed}\n{files}".strip())
    if condition.truth is Truth.UNKNOWN:
        matters = condition.required and not as_expected
        how: How = "error" if matters else "skipped"
        return Case(
            group, case, how, f"unknown: {condition.observed}", files, "unknown"
        )
    if as_expected:
        message = f"not met, as expected of this run: {condition.observed}"
        return Case(group, case, "skipped", message)
    return Case(
        group, case, "failed", f"not met: {condition.observed}", files, "not-met"
    )


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
    engine, model, host = incident.engine, incident.model, incident.host
    target = [("engine", engine_name(incident))]
    if incident.diagnosis is not None:
        from mmrepro.reports.diagnosis import target_rows

        target = target_rows(incident.diagnosis)
    rows = [("mmrepro", incident.mmrepro_version), *target, ("commit", engine.commit)]
    rows += [("source", engine.python_of)]
    if wheel := engine.wheel:
        origin = f"{wheel.project}, uploaded {wheel.uploaded}, {wheel.origin}"
        rows += [("wheel", wheel.filename), ("wheel sha256", wheel.sha256)]
        rows += [("wheel origin", origin)]
    rows += [
        ("engine's Python", engine.python),
        ("packages resolved until", engine.resolved_until),
        ("fidelity", str(incident.fidelity)),
    ]
    if model:
        facts = [model.kind]
        facts += (
            [f"{model.parameters:,} parameters"] if model.parameters is not None else []
        )
        facts += [f"seed {model.seed}"] if model.seed is not None else []
        facts += (
            [f"{model.image_tokens} image tokens"]
            if model.image_tokens is not None
            else []
        )
        rows += [("model", ", ".join(facts)), ("model weights sha256", model.sha256)]
    rows += [
        ("operating system", f"{host.os}, kernel {host.kernel}"),
        ("CPU", f"{host.cpu}, {host.cores} cores, {size(host.memory_bytes)} memory"),
        ("GPU", gpu_words(host)),
        ("NVIDIA driver", driver_words(host)),
        ("mmrepro's Python", host.python),
    ]
    return [(label, value) for label, value in rows if value]


def gpu_words(host: HostFacts) -> str:
    """``GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, GPU-52a3a85d, taken by the engine;
    …``."""
    known, told = any(gpu.taken for gpu in host.gpu_facts), []
    for gpu in host.gpu_facts:
        memory = size(gpu.memory_bytes) if gpu.memory_bytes else ""
        users = f"in use when the run began: {gpu.users}" if gpu.users else ""
        whose = (
            ("taken by the engine" if gpu.taken else "not the engine's")
            if known
            else ""
        )
        facts = (memory, gpu.uuid, "MIG is on" * bool(gpu.mig), users, whose)
        told.append(", ".join([f"GPU {gpu.index}: {gpu.name}", *filter(None, facts)]))
    return "; ".join(told) or ", ".join(host.gpus) or "none"


def driver_words(host: HostFacts) -> str:
    """Version of the driver, and of the CUDA that it runs; empty without a GPU."""
    if not host.gpu_facts:
        return ""
    return f"{host.gpu_facts[0].driver}, runs CUDA up to {host.gpu_facts[0].cuda}"


def _cause_heading(incident: Incident) -> str:
    """A scenario knows its cause; only a reproduced run has shown it."""
    shown = (
        incident.verdict is not None and incident.verdict.outcome is Outcome.REPRODUCED
    )
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
    return (
        f"{used}; {stand_in.calls} calls of what it only pretends to have, each of "
        "which raised"
    )


def _footprint(incident: Incident) -> list[tuple[str, str, str]]:
    """Role, resident memory and threads of each process of the engine, at the last
    reading."""
    rows: list[tuple[str, str, str]] = []
    for _, data in incident.evidence.results(ProcessesData):
        rows = [
            (p.role or p.name, size(p.rss_bytes), str(p.threads))
            for p in data.processes
        ]
        total = sum(p.rss_bytes for p in data.processes)
        if len(rows) > 1:
            rows.append(("together (shared pages counted in each)", size(total), ""))
    return rows


def _latencies(incident: Incident) -> str:
    """Start-up, and the latencies of all answered completions; empty without either."""
    start = incident.engine.start_seconds
    mode = incident.engine.start_mode
    how = f" (start mode {mode})" if mode in ("cold", "fork", "warm") else ""
    parts = (
        [f"The server was ready {duration(start)} after its start{how}."]
        if start
        else []
    )
    known = sorted(
        r.latency_s for r in incident.evidence.requests if r.answered and r.max_tokens
    )
    if known:
        middle, late = (
            known[len(known) // 2],
            known[min(len(known) - 1, len(known) * 95 // 100)],
        )
        text = (
            f"{len(known)} completions were answered, half of them within "
            f"{duration(middle)}"
        )
        parts.append(f"{text}, 95 % within {duration(late)}.")
    return " ".join(parts)


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
