"""The report as GitHub-flavoured Markdown: made to be pasted into an issue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mmrepro.base import units
from mmrepro.incident import Incident, KeyStack
from mmrepro.probes.base import ProbeStatus
from mmrepro.reports import gfm, timeline, view, words
from mmrepro.text.sanitize import one_line

# GitHub refuses comments over 65 536 characters; people add a few lines of their own.
MAX_BYTES: Final = 60_000


@dataclass(frozen=True)
class Section:
    """``keep``: the higher, the later it is left out when the report is too long."""

    heading: str
    body: str
    keep: int

    def __str__(self) -> str:
        return f"## {self.heading}\n\n{self.body}" if self.heading else self.body


def render_markdown(incident: Incident) -> str:
    """The report, under 60 kB; parts that had to go are named at its end."""
    sections = [s for s in _sections(incident) if s.body]
    dropped: list[str] = []
    while True:
        text = _join(sections, dropped)
        if len(text.encode()) <= MAX_BYTES or not sections:
            return text
        # The least important goes first; of two alike, the longer one.
        victim = min(sections, key=lambda s: (s.keep, -len(s.body)))
        sections.remove(victim)
        dropped.append(victim.heading or "summary")


def _join(sections: list[Section], dropped: list[str]) -> str:
    parts = [str(s) for s in sections]
    if dropped:
        names = ", ".join(dropped)
        parts.append(f"*Left out to stay within GitHub's limit: {names}. See `report.html`.*")
    return "\n\n".join(parts) + "\n"


def _sections(incident: Incident) -> list[Section]:
    return [
        Section("", _head(incident), 100),
        *_diagnosis(incident),
        Section("Symptom", _symptoms(incident), 90),
        Section("Side by side", _exhibits(incident), 88),
        Section("The stack that matters", _stack(incident.key_stack), 95),
        Section("Signature", _conditions(incident), 94),
        Section("Timeline", _timeline(incident), 50),
        Section("Log", _logs(incident), 60),
        Section(view.cause_heading(incident), _root_cause(incident), 80),
        Section("Minimal reproducers", _reproducers(incident), 78),
        Section("Claims of the original report", _claims(incident), 85),
        Section("Mitigations", _mitigations(incident), 70),
        Section("What differs from production", _differences(incident), 65),
        Section("Upstream", _references(incident), 55),
        Section("Environment", _environment(incident), 75),
        Section("How the run went", _run(incident), 40),
        Section("Requests", _requests(incident), 30),
        Section("Packages", _packages(incident), 10),
    ]


def _diagnosis(incident: Incident) -> list[Section]:
    told = incident.diagnosis
    if told is None:
        return []
    from mmrepro.reports import diagnosis

    return [
        Section("What was seen", diagnosis.assessment_markdown(told), 96),
        Section("Class of failure", diagnosis.classes_markdown(told), 95),
        Section("Known failures", diagnosis.matches_markdown(told), 93),
        Section(
            "What the look cost, and what it could not see", diagnosis.limits_markdown(told), 72
        ),
    ]


def _head(incident: Incident) -> str:
    head = view.headline(incident)
    parts = [f"# {gfm.text(view.title(incident), 300)}"]
    note = view.partial_note(incident)
    if note:
        quoted = [f"> {gfm.text(line, 300)}" for line in incident.failure_detail[-20:]]
        parts.append("\n>\n".join(["> [!WARNING]\n> " + gfm.text(note), *quoted]))
    count = view.condition_count(incident)
    badge = f"**{head.label.upper()}** · {head.expectation}" + (f" · {count}" if count else "")
    parts.append(badge)
    parts.append(gfm.prose(" ".join(view.summary(incident))))
    parts.append("Repeat it:\n\n" + gfm.fence(one_line(incident.command, 4000), "sh", 1, 4000))
    return "\n\n".join(parts)


def _symptoms(incident: Incident) -> str:
    if not incident.symptoms:
        return ""
    return gfm.table(
        ["check", "as reported", "healthy (gate)", "observed", "abnormal?"],
        [
            [
                gfm.cell(row.check),
                gfm.cell(row.reported),
                gfm.cell(row.healthy),
                f"**{gfm.cell(row.observed)}**" if row.abnormal else gfm.cell(row.observed),
                words.abnormal_words(row.abnormal),
            ]
            for row in incident.symptoms[:60]
        ],
    )


def _exhibits(incident: Incident) -> str:
    parts = []
    for exhibit in incident.exhibits[:12]:
        parts.append(f"### {gfm.text(exhibit.title)}")
        if exhibit.note:
            parts.append(gfm.prose(exhibit.note))
        rows = [
            [
                gfm.cell(shown.caption),
                gfm.code("evidence/" + shown.file) if shown.file else "",
                gfm.cell(shown.text),
                gfm.cell("; ".join(f"{name} {value}" for name, value in shown.facts.items())),
            ]
            for shown in exhibit.shown[:12]
        ]
        if rows:
            parts.append(gfm.table(["", "picture", "answer", ""], rows))
        if exhibit.birthday is not None:
            marks = [
                [
                    f"{p.images:,}",
                    view.collision_share(p.images, exhibit.birthday.bits),
                    gfm.cell(p.label),
                ]
                for p in (*exhibit.birthday.pools, *exhibit.birthday.seen)[:40]
            ]
            parts.append(gfm.table(["images", "chance of a collision", ""], marks))
    return "\n\n".join(parts)


def _stack(stack: KeyStack | None) -> str:
    if stack is None:
        return ""
    note = f" {gfm.text(stack.note)}" if stack.note else ""
    seen = (
        f"Seen in {stack.seen} of {stack.samples} samples of {gfm.code(stack.process)}, "
        f"innermost call first.{note}"
    )
    return f"{seen}\n\n{gfm.fence(chr(10).join(stack_lines(stack)), 'text', 90)}"


def stack_lines(stack: KeyStack) -> list[str]:
    """As py-spy prints it: the innermost frame first, locals below their frame."""
    state = ("active" if stack.active else "idle") + ("+gil" if stack.owns_gil else "")
    lines = [f'Thread ({state}): "{one_line(stack.thread, 120)}"']
    for frame in stack.frames[:60]:
        where = f"{one_line(frame.file, 200)}:{frame.line}"
        lines.append(f"    {one_line(frame.function, 160)} ({where})")
        lines += [
            f"        {one_line(name, 60)}: {one_line(value, 160)}"
            for name, value in list(frame.locals.items())[:12]
        ]
    return lines


def _conditions(incident: Incident) -> str:
    if incident.verdict is None:
        return ""
    rows = []
    for c in incident.verdict.conditions[:80]:
        files = ", ".join(gfm.code(f, 160) for f in c.evidence[:4])
        mark = f"{words.TRUTH_MARKS[c.truth]} {words.TRUTH_WORDS[c.truth]}"
        said = f"{gfm.code(c.id, 80)} {gfm.cell(c.statement)}"
        rows.append([mark, gfm.cell(words.part_words(c)), said, gfm.cell(c.observed), files or "–"])
    return gfm.table(["", "part", "condition", "observed", "in evidence/"], rows)


def _timeline(incident: Incident) -> str:
    entries = timeline.lines(incident)
    if not entries:
        return ""
    drawn = [
        f"{e.at:+9.2f} s  {e.phase:<8} {e.source:<8} "
        + {"info": "", "warning": "! ", "error": "!! "}[e.level]
        + one_line(e.text, 150)
        for e in entries[:300]
    ]
    gpu, memory = timeline.gpu_tracks(incident), timeline.gpu_memory_tracks(incident)
    tracks = [
        *((t.name, t, " %") for t in timeline.cpu_tracks(incident.evidence)[:6]),
        *((t.name, t, " %") for t in gpu[:6]),
        *((f"{t.name} memory", t, " GiB") for t in memory[:6]),
        *((f"requests {t.name}", t, "") for t in timeline.metric_tracks(incident.evidence)[:6]),
    ]
    sparks = [
        f"{one_line(name, 22):<22} {timeline.sparkline(t)}  max "
        f"{max(v for _, v in t.points):.0f}{unit}"
        for name, t, unit in tracks
    ]
    parts = []
    if len(drawn) <= 40:
        parts.append(gfm.fence("\n".join(drawn), "text", 40))
    else:
        parts.append(gfm.details(f"{len(drawn)} lines", gfm.fence("\n".join(drawn), "text", 300)))
    if sparks:
        also = ", GPU" if gpu or memory else ""
        parts.append(f"CPU (% of one core){also} and requests over the sampled time:")
        parts.append(gfm.fence("\n".join(sparks)))
    return "\n\n".join(parts)


def _logs(incident: Incident) -> str:
    if not incident.log_lines:
        return ""
    blocks = []
    for log in incident.log_lines[:30]:
        where = gfm.code(f"{log.file}:{log.number}", 160)
        note = f": {gfm.text(log.note)}" if log.note else ""
        prefix = " ".join(filter(None, [log.process and f"({log.process})", log.time]))
        blocks.append(f"{where}{note}\n\n" + gfm.fence(f"{prefix} {log.text}".strip(), "text", 25))
    return "\n\n".join(blocks)


def _root_cause(incident: Incident) -> str:
    parts = [gfm.prose(incident.scenario.explanation)] if incident.scenario.explanation else []
    for source in incident.sources[:12]:
        where = gfm.code(f"{source.file}:{source.first_line}", 200)
        numbered = [
            f"{'>' if n in source.highlight else ' '} {n:5d}  {line}"
            for n, line in enumerate(source.lines[:60], source.first_line)
        ]
        parts.append(
            f"{gfm.code(source.qualname, 120)} in {where}, as installed. {gfm.prose(source.note)}"
        )
        parts.append(gfm.fence("\n".join(numbered), "text", 60, 160))
    return "\n\n".join(parts)


def _reproducers(incident: Incident) -> str:
    results = incident.evidence.reproducers
    if not results:
        return ""
    return gfm.table(
        ["reproducer", "exit code", "took", "facts", "error"],
        [
            [
                gfm.code(r.name),
                "–" if r.exit_code is None else str(r.exit_code),
                units.duration(r.seconds),
                gfm.cell(view.facts(r)),
                gfm.cell(r.error),
            ]
            for r in results[:40]
        ],
    )


def _claims(incident: Incident) -> str:
    if not incident.claims:
        return ""
    return gfm.table(
        ["claim", "source", "this run says", "observed"],
        [
            [
                gfm.cell(c.text),
                gfm.cell(c.source),
                f"{words.CLAIM_MARKS[c.status]} {words.CLAIM_WORDS[c.status]}",
                gfm.cell(c.observed),
            ]
            for c in incident.claims[:60]
        ],
    )


def _mitigations(incident: Incident) -> str:
    if not incident.mitigations:
        return ""
    return gfm.table(
        ["mitigation", "what it does", "this run", "try it"],
        [
            [
                gfm.code(m.name),
                gfm.cell(m.description),
                gfm.cell(words.effective_words(m) + (f": {m.observed}" if m.observed else "")),
                gfm.code(m.command),
            ]
            for m in incident.mitigations[:40]
        ],
    )


def _differences(incident: Incident) -> str:
    parts = [f"Fidelity **{incident.fidelity}**: {words.FIDELITY_WORDS[incident.fidelity]}."]
    if incident.stand_ins:
        parts.append(
            gfm.table(
                ["stand-in", "replaces", "why", "in this run"],
                [
                    [
                        gfm.code(s.name),
                        gfm.cell(s.replaces),
                        gfm.cell(s.why),
                        gfm.cell(view.stand_in_use(s)),
                    ]
                    for s in incident.stand_ins
                ],
            )
        )
    elif incident.diagnosis is None:
        parts.append("No stand-in: the engine's code is unmodified.")
    if incident.engine.settings:
        parts.append(
            gfm.table(
                ["setting", "value", "why"],
                [
                    [gfm.code(s.name), gfm.code(s.value), gfm.cell(s.why)]
                    for s in incident.engine.settings[:60]
                ],
            )
        )
    return "\n\n".join(parts)


def _references(incident: Incident) -> str:
    return "\n".join(
        f"- {gfm.link(r.id, r.url)}: {gfm.text(r.title)}"
        + (f" ({gfm.text(r.note)})" if r.note else "")
        for r in incident.references[:40]
    )


def _environment(incident: Incident) -> str:
    engine = incident.engine
    parts = [
        gfm.table(["", ""], [[gfm.cell(k), gfm.code(v)] for k, v in view.environment(incident)])
    ]
    if engine.command:
        parts.append(view.started_with(incident))
        variables = [f"{k}={v}" for k, v in list(engine.environment.items())[:60]]
        parts.append(gfm.fence("\n".join([*variables, " ".join(engine.command)]), "sh", 70, 2000))
    return "\n\n".join(parts)


def _packages(incident: Incident) -> str:
    packages = incident.engine.packages
    if not packages:
        return ""
    file = incident.engine.packages_file
    where = f"With hashes: {gfm.code('evidence/' + file)}\n\n" if file else ""
    body = gfm.fence("\n".join(packages), "text", 600, 120)
    return gfm.details(f"{len(packages)} packages as resolved", where + body)


def _run(incident: Incident) -> str:
    parts = []
    gate = incident.gate
    if gate:
        latencies = words.span(gate.latencies_s)
        rule = f" ({gfm.text(gate.deadline_rule)})" if gate.deadline_rule else ""
        parts.append(
            f"Gate {'passed' if gate.passed else '**failed**'}: {gfm.text(view.sentence(gate.why))}"
            + (f" Latencies {latencies}." if latencies else "")
            + (f" Deadline {units.duration(gate.deadline_s)}{rule}." if gate.deadline_s else "")
        )
    parts += [view.latencies(incident)] if view.latencies(incident) else []
    if view.engine_exit(incident):
        parts.append(f"**{view.engine_exit(incident)}**")
    if memory := view.footprint(incident):
        rows = [[gfm.cell(role), size, threads] for role, size, threads in memory[:40]]
        parts.append(gfm.table(["process", "resident memory", "threads"], rows))
    if incident.evidence.probes:
        rows = [
            [
                gfm.code(p.probe),
                gfm.cell(p.phase),
                str(p.status) if p.status is ProbeStatus.OK else f"**{p.status}**",
                units.duration(p.seconds),
                gfm.cell(p.reason),
            ]
            for p in incident.evidence.probes[:120]
        ]
        body = gfm.table(["probe", "phase", "status", "took", "reason"], rows)
        bad = sum(not p.ok for p in incident.evidence.probes)
        parts.append(gfm.details(f"{len(rows)} probe results, {bad} of them not usable", body))
    for what, stages in (
        ("Time spent", incident.stages),
        ("Within the engine's start", incident.engine.start_stages),
    ):
        if stages:
            spent = [f"{gfm.text(n, 60)} {units.duration(s)}" for n, s in list(stages.items())[:30]]
            parts.append(f"{what}: {', '.join(spent)}.")
    parts.append("Left behind: " + view.left_behind(incident))
    parts += [f"- {gfm.code(item, 200)}" for item in incident.left_behind[:20]]
    return "\n\n".join(parts)


def _requests(incident: Incident) -> str:
    groups = view.request_groups(incident.evidence.requests)
    if not groups:
        return ""
    rows = [
        [
            g.ids,
            g.first.phase,
            gfm.cell(
                g.first.label if g.count == 1 else f"{g.count} × {view.purpose(g.first.label)}"
            ),
            g.status,
            g.latency,
            gfm.cell(g.first.error),
        ]
        for g in groups[:80]
    ]
    body = gfm.table(["id", "phase", "what for", "answer", "latency", "error"], rows)
    return gfm.details(f"{len(incident.evidence.requests)} requests", body)
