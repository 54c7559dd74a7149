"""From evidence to the verdict: a pure function, for runs and for what was recorded of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mmrepro.engines import ENGINES
from mmrepro.errors import UsageError
from mmrepro.evidence import Evidence
from mmrepro.incident import ClaimResult, Incident
from mmrepro.run import deadline
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.signature import ConditionResult, Outcome, Truth, Verdict, decide, evaluate
from mmrepro.signature.decide import guarded


def judge(scenario: Scenario, evidence: Evidence, facts: RunFacts) -> Verdict:
    """The verdict on ``evidence``; nothing else is asked, nothing is kept.

    The gate is judged again as well: a failed one makes the verdict inconclusive.
    """
    results = evaluate(scenario.conditions(facts), evidence)
    gate = guarded(scenario.gate_check, evidence)
    healthy = guarded(lambda seen: scenario.healthy_after(seen, facts), evidence)
    outcome, why = decide(results, gate_passed=gate.truth is Truth.MET, healthy_after=healthy)
    expected, because = expectation(scenario, facts)
    return Verdict(
        outcome=outcome,
        expected=expected,
        expected_because=because,
        as_expected=outcome is expected,
        explanation=why,
        conditions=results,
    )


@dataclass(frozen=True)
class Effect:
    """What a run tells of the mitigations that it had, all together.

    Attributes:
        prevented: symptom and cause are gone; False: the failure is there, or its cause; None: it
            does not tell.
        hides: the symptom is gone, and the cause was seen to be still there.
    """

    prevented: bool | None
    observed: str
    hides: bool = False

    @property
    def word(self) -> str:
        if self.hides:
            return "hidden"
        return {True: "prevented", False: "not-prevented", None: "not-told"}[self.prevented]


def effect(scenario: Scenario, evidence: Evidence, facts: RunFacts, verdict: Verdict) -> Effect:
    """Whether the run's mitigations prevented the failure, or only its symptom."""
    if verdict.outcome is Outcome.REPRODUCED:
        return Effect(False, verdict.explanation)
    if verdict.outcome is not Outcome.NOT_REPRODUCED:
        return Effect(None, verdict.explanation)
    upgraded = any(m.release for m in scenario.mitigations if m.name in facts.mitigations)
    if not upgraded and not scenario.affects(facts.release):
        return Effect(None, f"{facts.release} needs no cure: affected is {scenario.affected_range}")
    remains = guarded(lambda seen: scenario.cause_remains(seen, facts), evidence)
    told = f"no symptom; the cause: {remains.observed}"
    if remains.truth is Truth.UNKNOWN:
        return Effect(None, told)
    return Effect(remains.truth is Truth.NOT_MET, told, hides=remains.truth is Truth.MET)


def expectation(scenario: Scenario, facts: RunFacts) -> tuple[Outcome | None, str]:
    """What is expected of such a run, and why; of one with flipped factors nothing."""
    if facts.flips:  # what a factor does is to be found out
        return None, f"flipped: {', '.join(sorted(facts.flips))}; nothing is expected of that"
    return scenario.expected(facts.release, facts.mitigations)


def facts_of(incident: Incident, scenario: Scenario) -> RunFacts:
    """What of the set-up a recorded run was judged with. Its fidelity is the engine's own, if that
    has one: runs of minivllm that are older than it were recorded as ``cpu``."""
    gate = incident.gate.deadline_s if incident.gate else None  # all that older incidents tell
    applied = frozenset(m.name for m in incident.mitigations if m.applied)
    known = {f.name for f in scenario.factors}
    settings = (s.name.partition("factor ") for s in incident.engine.settings)
    flips = (name for before, mark, name in settings if mark and not before)
    own = getattr(ENGINES.get(incident.engine.name), "own_fidelity", None)
    return RunFacts(
        release=incident.engine.release,
        fidelity=own or incident.fidelity,
        mitigations=applied & {m.name for m in scenario.mitigations},
        deadline_s=incident.deadline_s or gate or deadline.FLOOR_S,
        flips=frozenset(flips) & known,
        gpus=frozenset(gpu.index for gpu in incident.host.gpu_facts if gpu.taken),
    )


@dataclass(frozen=True)
class Change:
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
    parts: tuple[Change, ...]

    @property
    def differs(self) -> bool:
        """Whether the verdict is another one: what of the parts differs is only shown."""
        return self.then.outcome is not self.now.outcome

    @property
    def changes(self) -> list[Change]:
        return [part for part in self.parts if part.differs]


def rejudge(incident: Incident, scenario: Scenario) -> Rejudged:
    """Judge what ``incident`` recorded by ``scenario``, which need not be the one it was run for.

    Raises:
        UsageError: it holds no verdict (a run that did not end, or a diagnosis).
    """
    if incident.verdict is None:
        raise UsageError(
            f"This incident holds no verdict: its state is {incident.state}.",
            hint="mmrepro report DIR shows what it holds",
        )
    evidence, facts = incident.evidence, facts_of(incident, scenario)
    now = judge(scenario, evidence, facts)
    applied = [m for m in incident.mitigations if m.applied]
    told_now = effect(scenario, evidence, facts, now)
    before = _told(incident.verdict.conditions, incident.claims)
    after = _told(now.conditions, scenario.claim_results(evidence, facts))
    for mitigation in applied:
        then = Effect(mitigation.effective, mitigation.observed, mitigation.hides)
        for told, one in ((before, then), (after, told_now)):
            told["mitigation", mitigation.name] = ("mitigation", one.word, one.observed)
    parts = []
    for key in {**after, **before}:
        kind, _, observed = after.get(key) or before[key]
        then_, now_ = (told[key][1] if key in told else "" for told in (before, after))
        parts.append(Change(kind, key[1], then_, now_, observed))
    return Rejudged(incident.verdict, now, tuple(parts))


def _told(
    conditions: Iterable[ConditionResult], claims: Iterable[ClaimResult]
) -> dict[tuple[str, str], tuple[str, str, str]]:
    """Kind, truth or status, and what was observed, by what it is and its id."""
    return {
        **{("condition", r.id): (r.part, r.truth.value, r.observed) for r in conditions},
        **{("claim", c.id): ("claim", c.status.value, c.observed) for c in claims},
    }
