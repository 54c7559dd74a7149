"""From evidence to the verdict: a pure function, for runs and for what was recorded of
them. Before it the rule that decides, from the latencies of the gate, when silence
counts as a hang."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from mmrepro.base.errors import UsageError
from mmrepro.base.records import EVIDENCE_DIR, Document, Record
from mmrepro.engines import ENGINES, get_engine
from mmrepro.engines.environments import Environment
from mmrepro.failure.documents import (
    ClaimResult,
    Exhibit,
    GateFacts,
    Incident,
    LogExcerpt,
    MitigationFacts,
    SourceExcerpt,
)
from mmrepro.failure.signature import (
    ConditionResult,
    Finding,
    Outcome,
    Truth,
    Verdict,
    decide_outcome,
    evaluate,
    guarded,
    log_count,
)
from mmrepro.probes import LogLine, LogsData
from mmrepro.probes.log_words import public_line
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.scenario.parts import SourceRef
from mmrepro.traffic.evidence import Evidence, Held
from packaging.version import InvalidVersion, Version
from pydantic import Field

if TYPE_CHECKING:
    from mmrepro.failure.documents import HashCheck
    from mmrepro.failure.signature.coherence import Run


def judge(scenario: Scenario, evidence: Evidence, facts: RunFacts) -> Verdict:
    """The verdict on ``evidence``; nothing else is asked, nothing is kept.

    The gate is judged again as well: a failed one makes the verdict inconclusive.
    """
    doubts, evidence = held(evidence, facts)
    results = evaluate(scenario.conditions(facts), evidence)
    gate = guarded(scenario.gate_check, evidence)
    healthy = guarded(lambda seen: scenario.healthy_after(seen, facts), evidence)
    passed = gate.truth is Truth.MET and (
        facts.run is None or facts.run.passed is not False
    )
    refused = (
        guarded(scenario.refused_at_start, evidence) if evidence.never_ready else None
    )
    outcome, why = decide_outcome(
        results, gate_passed=passed, healthy_after=healthy, refused=refused
    )
    if doubts:
        told = "; ".join(f"{what}: {reason}" for what, reason in doubts.items())
        outcome, why = (
            Outcome.INCONCLUSIVE,
            f"the evidence does not belong together: {told}",
        )
    if facts.misfit:
        outcome, why = Outcome.INCONCLUSIVE, f"it cannot be tested: {facts.misfit}"
    expected, because = expectation(scenario, facts)
    return Verdict(
        outcome=outcome,
        expected=expected,
        expected_because=because,
        as_expected=outcome is expected,
        explanation=why,
        conditions=results,
    )


def held(evidence: Evidence, facts: RunFacts) -> tuple[Mapping[str, str], Evidence]:
    """``evidence`` against itself and what the run says of itself: what is doubted and
    why, and the evidence of which a condition that reads something doubted is
    unknown."""
    from mmrepro.failure.signature.coherence import doubts  # only what judges needs it

    found = {} if facts.run is None else doubts(evidence, facts.run)
    return found, Held.of(evidence, found) if found else evidence


@dataclass(frozen=True)
class MitigationEffect:
    """What a run tells of the mitigations that it had, all together.

    Attributes:
        prevented: symptom and cause are gone; False: the failure is there, or its
            cause; None: it does not tell.
        hides: the symptom is gone, and the cause was seen to be still there.
    """

    prevented: bool | None
    observed: str
    hides: bool = False

    @property
    def word(self) -> str:
        if self.hides:
            return "hidden"
        return {True: "prevented", False: "not-prevented", None: "not-told"}[
            self.prevented
        ]


def effect(
    scenario: Scenario, evidence: Evidence, facts: RunFacts, verdict: Verdict
) -> MitigationEffect:
    """Whether the run's mitigations prevented the failure, or only its symptom."""
    if verdict.outcome is Outcome.REPRODUCED:
        return MitigationEffect(False, verdict.explanation)
    if verdict.outcome is not Outcome.NOT_REPRODUCED:
        return MitigationEffect(None, verdict.explanation)
    upgraded = any(
        m.release for m in scenario.mitigations if m.name in facts.mitigations
    )
    if not upgraded and not scenario.affects(facts.release, facts.fidelity.device):
        return MitigationEffect(
            None,
            f"{facts.release} needs no cure: affected is {scenario.affected_where}",
        )
    remains = guarded(lambda seen: scenario.cause_remains(seen, facts), evidence)
    told = f"no symptom; the cause: {remains.observed}"
    if remains.truth is Truth.UNKNOWN:
        return MitigationEffect(None, told)
    return MitigationEffect(
        remains.truth is Truth.NOT_MET, told, hides=remains.truth is Truth.MET
    )


def expectation(scenario: Scenario, facts: RunFacts) -> tuple[Outcome | None, str]:
    """What is expected of such a run, and why; of one with flipped factors nothing."""
    if facts.flips:  # what a factor does is to be found out
        return (
            None,
            f"flipped: {', '.join(sorted(facts.flips))}; nothing is expected of that",
        )
    device = facts.fidelity.device
    return scenario.expected_on(device, facts.release, facts.mitigations, facts.runner)


def facts_of(incident: Incident, scenario: Scenario) -> RunFacts:
    """What of the set-up a recorded run was judged with. Its fidelity is the engine's
    own, if that has one: runs of minivllm that are older than it were recorded as
    ``cpu``.

    Raises:
        UsageError: the incident's release is no version: no range can be compared with
            it.
    """
    try:
        Version(incident.engine.release)
    except InvalidVersion as error:
        raise UsageError(f"The incident's release is no version: {error}.") from error
    # All that older incidents tell.
    gate = incident.gate.deadline_s if incident.gate else None
    applied = frozenset(m.name for m in incident.mitigations if m.applied)
    known = {f.name for f in scenario.factors}
    settings = (s.name.partition("factor ") for s in incident.engine.settings)
    flips = (name for before, mark, name in settings if mark and not before)
    own = getattr(ENGINES.get(incident.engine.name), "own_fidelity", None)
    return RunFacts(
        release=incident.engine.release,
        fidelity=own or incident.fidelity,
        mitigations=applied & {m.name for m in scenario.mitigations},
        deadline_s=incident.deadline_s or gate or FLOOR_S,
        flips=frozenset(flips) & known,
        gpus=frozenset(gpu.index for gpu in incident.host.gpu_facts if gpu.taken),
        run=_run_of(incident, scenario),
        misfit=incident.engine.misfit,
        runner=incident.engine.runner,
    )


def _run_of(incident: Incident, scenario: Scenario) -> Run:
    from mmrepro.failure.signature.coherence import Run

    told, gate = incident.engine, incident.gate
    variants = {one.variant for one in (scenario, *scenario.variants)}
    known = "" if told.name in ENGINES else f"no engine is called {told.name}"
    if told.name in ENGINES and told.name != scenario.engine:
        known = f"the run is of {told.name}, the scenario of {scenario.engine}"
    if (
        incident.scenario.name == scenario.name
        and incident.scenario.variant not in variants
    ):
        known = f"{scenario.name} has no variant {incident.scenario.variant!r}"
    engine = get_engine(scenario.engine)
    measured = [
        r.latency_s for r in incident.evidence.requests_in("gate") if r.answered
    ]
    rules = [gate.deadline_s] if gate and gate.deadline_s else []
    if rules and measured:
        rules.append(derive(measured).answer_s)
    return Run(
        engine=engine,
        release=told.release,
        known=known,
        wheel=told.wheel.filename if told.wheel else "",
        kernels=told.kernels,
        packages=tuple(told.packages),
        command=tuple(told.command),
        began=incident.created,
        ended=incident.finished,
        passed=gate.passed if gate else None,
        deadline_s=max(rules, default=None),
        waited_s=incident.deadline_s,
        sources=tuple((ref.file, ref.qualname) for ref in scenario.sources),
        utc_offset_s=incident.host.utc_offset_s,
    )


@dataclass(frozen=True)
class ConditionChange:
    """A condition or claim, then and now; "": it was not there.

    Attributes:
        kind: part of the signature, claim, or mitigation.
    """

    kind: str
    id: str
    then: str
    now: str
    observed: str

    @property
    def differs(self) -> bool:
        return self.then != self.now


@dataclass(frozen=True)
class Rejudged:
    """A recorded run, judged again."""

    then: Verdict
    now: Verdict
    parts: tuple[ConditionChange, ...]

    @property
    def differs(self) -> bool:
        """Whether the verdict is another one: what of the parts differs is only
        shown."""
        return self.then.outcome is not self.now.outcome

    @property
    def changes(self) -> list[ConditionChange]:
        return [part for part in self.parts if part.differs]


class JudgedAgain(Record):
    """A recorded run, judged again, for machines."""

    incident: Annotated[str, Field(description="its path, as it was given")]
    scenario: str
    variant: str
    then: Outcome
    now: Outcome
    differs: Annotated[bool, Field(description="the verdict is another one")]
    explanation: str
    parts: list[dict[str, str]]
    record: Annotated[
        Literal["unchanged", "changed", "none"],
        Field(description="whether it is as its hashes were recorded; none: no record"),
    ] = "none"
    changed: Annotated[
        list[str], Field(description="what was changed since; judged with --edited")
    ] = []
    signed_by: Annotated[
        str, Field(description="of the allowed signers of --signers; empty: not asked")
    ] = ""

    @classmethod
    def of(
        cls,
        path: Path,
        incident: Incident,
        found: Rejudged,
        check: HashCheck,
        signer: str,
    ) -> JudgedAgain:
        return cls(
            incident=str(path),
            scenario=incident.scenario.name,
            variant=incident.scenario.variant,
            then=found.then.outcome,
            now=found.now.outcome,
            differs=found.differs,
            explanation=found.now.explanation,
            parts=[asdict(part) for part in found.parts],
            record=check.word,
            changed=list(check.changed),
            signed_by=signer,
        )


class JudgeDocument(Document, kind="judge"):
    """What ``mmrepro judge --json`` prints."""

    judged: list[JudgedAgain]


def rejudge(incident: Incident, scenario: Scenario) -> Rejudged:
    """Judge what ``incident`` recorded by ``scenario``, which need not be the one it
    was run for.

    Raises:
        UsageError: it holds no verdict (a run that did not end, or a diagnosis).
    """
    if incident.verdict is None:
        raise UsageError(
            f"This incident holds no verdict: its state is {incident.state}.",
            hint="mmrepro report DIR shows what it holds",
        )
    facts = facts_of(incident, scenario)
    now = judge(scenario, incident.evidence, facts)
    _, evidence = held(incident.evidence, facts)
    applied = [m for m in incident.mitigations if m.applied]
    told_now = effect(scenario, evidence, facts, now)
    before = _told(incident.verdict.conditions, incident.claims)
    after = _told(now.conditions, scenario.claim_results(evidence, facts))
    for mitigation in applied:
        then = MitigationEffect(
            mitigation.effective, mitigation.observed, mitigation.hides
        )
        for told, one in ((before, then), (after, told_now)):
            told["mitigation", mitigation.name] = ("mitigation", one.word, one.observed)
    parts = []
    for key in {**after, **before}:
        kind, _, observed = after.get(key) or before[key]
        then_, now_ = (told[key][1] if key in told else "" for told in (before, after))
        parts.append(ConditionChange(kind, key[1], then_, now_, observed))
    return Rejudged(incident.verdict, now, tuple(parts))


def _told(
    conditions: Iterable[ConditionResult], claims: Iterable[ClaimResult]
) -> dict[tuple[str, str], tuple[str, str, str]]:
    """Kind, truth or status, and what was observed, by what it is and its id."""
    return {
        **{
            ("condition", r.id): (r.part, r.truth.value, r.observed) for r in conditions
        },
        **{("claim", c.id): ("claim", c.status.value, c.observed) for c in claims},
    }


FLOOR_S = 6.0
CEILING_S = 120.0
FACTOR = 30.0
_SUSPECT_SHARE = 0.4
"""Part of the deadline after which the check begins, while the request goes on
waiting."""


@dataclass(frozen=True)
class Deadlines:
    """``answer_s``: silence from then on is a hang; ``suspect_s``: time to look. In
    seconds."""

    answer_s: float
    suspect_s: float
    rule: str = ""


def of_gate(
    finding: Finding, latencies_s: Sequence[float], before: Deadlines
) -> tuple[GateFacts, Deadlines]:
    """What a gate gave; where it failed, the deadlines stay those ``before``. Raises as
    derive."""
    passed = finding.truth is Truth.MET
    facts = GateFacts(
        passed=passed, why=finding.observed, latencies_s=list(latencies_s)
    )
    if not passed:
        return facts, before
    deadlines = derive(latencies_s)
    facts.deadline_s, facts.deadline_rule = deadlines.answer_s, deadlines.rule
    return facts, deadlines


def derive(latencies_s: Sequence[float]) -> Deadlines:
    """Deadlines from the gate's latencies in seconds, in order; the first one warmed
    up.

    The slowest warm request times 30, at least 6 s and at most 120 s: a hang is not
    slowness.

    Raises:
        ValueError: no latency was measured.
    """
    if not latencies_s:
        raise ValueError("the gate measured no latency")
    warm = max(latencies_s[1:] or latencies_s)
    answer = min(CEILING_S, max(FLOOR_S, FACTOR * warm))
    return Deadlines(
        answer_s=round(answer, 2),
        suspect_s=round(answer * _SUSPECT_SHARE, 2),
        rule=f"{FACTOR:g} × the slowest warm request of the gate ({warm:.2f} s), "
        f"at least {FLOOR_S:g} s, at most {CEILING_S:g} s",
    )


# -------------------------------------------------------------- what the evidence shows

T = TypeVar("T")
_LINES_EACH = 3
MAX_LINES = 45
_MAX_FILE_BYTES = 4 << 20
_MAX_PICTURE_BYTES = 1 << 20
"""As ``Shown.png`` has it."""


def note_judged(
    incident: Incident, scenario: Scenario, facts: RunFacts, environment: Environment
) -> None:
    """Symptoms, stack, log lines, sources, claims and mitigations of an incident with a
    verdict.

    A scenario's table that fails leaves its part empty and a warning: the verdict
    stands."""
    evidence, (_, checked) = incident.evidence, held(incident.evidence, facts)

    def guarded(build: Callable[[], T], otherwise: T, name: str) -> T:
        try:
            return build()
        except Exception as error:
            why = f"the scenario's {name} failed: {type(error).__name__}: {error}"
            incident.failure_detail.append(why)
            return otherwise

    incident.symptoms = guarded(
        lambda: scenario.symptom_rows(checked, facts), [], "symptom_rows"
    )
    exhibits: list[Exhibit] = guarded(
        lambda: scenario.exhibits(evidence, facts), [], "exhibits"
    )
    incident.exhibits = with_pictures(
        exhibits, Path(incident.incident_dir) / EVIDENCE_DIR
    )
    incident.key_stack = guarded(
        lambda: scenario.key_stack(evidence), None, "key_stack"
    )
    incident.claims = guarded(
        lambda: scenario.claim_results(checked, facts), [], "claims"
    )
    incident.log_lines = log_excerpts(evidence, scenario)
    count_stand_ins(incident)
    if incident.verdict is not None:
        note_effects(
            incident.mitigations, effect(scenario, evidence, facts, incident.verdict)
        )
    excerpts = (
        read_definition(environment.site_packages, ref) for ref in scenario.sources
    )
    incident.sources = [excerpt for excerpt in excerpts if excerpt is not None]


def with_pictures(exhibits: list[Exhibit], folder: Path) -> list[Exhibit]:
    """The exhibits with the pictures that they name, read from ``folder``; without
    those that are not there, or are too large for an incident."""
    for shown in (shown for exhibit in exhibits for shown in exhibit.shown):
        file = folder / shown.file
        if (
            not shown.png
            and file.is_file()
            and file.stat().st_size <= _MAX_PICTURE_BYTES
        ):
            shown.png = file.read_bytes()
    return exhibits


def note_effects(
    mitigations: Iterable[MitigationFacts], told: MitigationEffect
) -> None:
    """Of those that were not applied, a run tells nothing; the others it tells of
    together."""
    for mitigation in mitigations:
        if mitigation.applied:
            mitigation.effective, mitigation.hides = told.prevented, told.hides
            mitigation.observed = told.observed


def count_stand_ins(incident: Incident) -> None:
    """How often each stand-in reported itself, and calls of what it only pretends to
    have.

    Counted are the lines of the engine's log that match the patterns ``NAME-loaded``
    and ``NAME-called``, where the engine or the scenario has such; without a log: None.
    """
    for stand_in in incident.stand_ins:
        stand_in.loaded = log_count(incident.evidence, f"{stand_in.name}-loaded")
        stand_in.calls = log_count(incident.evidence, f"{stand_in.name}-called")


def log_excerpts(evidence: Evidence, scenario: Scenario) -> list[LogExcerpt]:
    """The quoted lines: the scenario's patterns, and each process's last word."""
    data = next(
        (d for _, d in reversed(list(evidence.results(LogsData, partial=True)))), None
    )
    if data is None:
        return []
    lines: list[LogExcerpt] = []
    for pattern in dict.fromkeys((*scenario.key_log_patterns, "contract-violated")):
        count = data.match_counts.get(pattern, 0)
        for line in data.matches.get(pattern, [])[:_LINES_EACH]:
            note = f"{count} lines like this" if count > _LINES_EACH else ""
            lines.append(excerpt(data.file, line, note))
    for process, line in data.last_by_process.items():
        if process:
            lines.append(excerpt(data.file, line, f"last line of {process}"))
    if data.last_work is not None:
        lines.append(excerpt(data.file, data.last_work, "last progress of the engine"))
    return sorted(lines, key=lambda entry: entry.number)


def excerpt(file: str, line: LogLine, note: str) -> LogExcerpt:
    where = f" [{line.source}]" if line.source else ""
    return LogExcerpt(
        file=Path(file).name,
        number=line.number,
        process=line.process,
        time=line.time,
        text=f"{line.level}{where} {public_line(line)}".strip(),
        note=note,
    )


def read_definition(site_packages: Path, ref: SourceRef) -> SourceExcerpt | None:
    """The lines of ``ref`` as installed; None if the file or the definition is not
    there.

    Docstrings stay; a definition longer than 45 lines is cut around its highlighted
    lines."""
    path = site_packages / ref.file
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
        node = _find(ast.parse(text), ref.qualname.split("."))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the parser's own limits end in the last two
    if node is None or node.end_lineno is None:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    # As the parser counts: splitlines() would also split at form feeds and other
    # separators.
    numbered = list(enumerate(text.split("\n")[first - 1 : node.end_lineno], first))
    marked = [n for n, line in numbered if any(h in line for h in ref.highlight)]
    if len(numbered) > MAX_LINES:
        start = max(0, (marked[0] if marked else first) - first - MAX_LINES // 2)
        numbered = numbered[start : start + MAX_LINES]
    return SourceExcerpt(
        file=ref.file,
        qualname=ref.qualname,
        first_line=numbered[0][0],
        lines=[line for _, line in numbered],
        highlight=[n for n in marked if numbered[0][0] <= n <= numbered[-1][0]],
        note=ref.note,
    )


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _find(tree: ast.AST, names: list[str]) -> _Definition | None:
    """The last definition of that qualified name: overloads come before the real
    one."""
    last: _Definition | None = None
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition) and node.name == names[0]:
            last = node if len(names) == 1 else _find(node, names[1:]) or last
        elif isinstance(node, ast.If | ast.Try):
            last = _find(node, names) or last
    return last
