"""Every known failure's signature, tried on one and the same evidence.

The log is searched once for each distinct expression of all of them, under the
expression itself as its name; before a scenario judges, its own names are put back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence

from mmrepro.base.records import Moment
from mmrepro.engines import get_engine
from mmrepro.engines.folders import title
from mmrepro.failure.documents import Fit, Match, ServerState, TargetFacts
from mmrepro.failure.signature import ConditionResult, Finding, Truth, combine, evaluate
from mmrepro.live.diagnose import general, rank_verdicts
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes import (
    InferenceData,
    LogsData,
    ProbeResult,
    ProbeStatus,
    ProcessesData,
    SyscallsData,
)
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.traffic.evidence import Evidence

ORDER = list(Fit)


def all_scenarios(
    besides: Iterable[str] = (), *, trust: bool = False
) -> list[Scenario]:
    """Every registered scenario, each variant for itself; broken plug-ins are left out.

    Args:
        besides: names or files (``FILE.py``) of further ones, in the place of a
            registered one of the same name.
        trust: run those files.

    Raises:
        UsageError: one of ``besides`` is none, or broken, or a file that is not to be
            run.
    """
    from mmrepro.base.errors import BrokenScenario
    from mmrepro.scenario.registry import known_scenario, scenario_names

    scenarios: list[Scenario] = []
    for name in besides:
        scenario = known_scenario(name, trust=trust)
        scenarios += scenario.variants or (scenario,)
    given = {scenario.name for scenario in scenarios}
    for name in scenario_names():
        if name in given:
            continue
        try:
            scenario = known_scenario(name, trust=False)
        except BrokenScenario:
            continue
        scenarios += scenario.variants or (scenario,)
    return scenarios


def match_all(
    scenarios: Iterable[Scenario], evidence: Evidence, facts: LiveFacts
) -> list[Match]:
    """Best fit first; among equals, the one with more conditions met, then by name.

    Variants that an observer cannot tell apart (the same conditions, judged alike) are
    one: the first of them, which is the scenario's default."""
    matches: list[Match] = []
    for scenario in scenarios:
        candidate = match(scenario, evidence, facts)
        if not candidate.conditions or not _has_twin(matches, candidate):
            matches.append(candidate)
    return ranked(matches)


def _has_twin(matches: Iterable[Match], candidate: Match) -> bool:
    for known in matches:
        same = known.scenario == candidate.scenario
        if same and known.conditions == candidate.conditions:
            return True
    return False


def ranked(matches: Iterable[Match]) -> list[Match]:
    return sorted(
        matches,
        key=lambda m: (
            ORDER.index(m.fit),
            -m.met,
            m.not_met,
            m.unknown,
            m.scenario,
            m.variant,
        ),
    )


def match(scenario: Scenario, evidence: Evidence, facts: LiveFacts) -> Match:
    """One scenario's conditions on the evidence. A scenario that fails is said to, and
    is no match."""
    if facts.engine and facts.engine != scenario.engine:
        return _blank(
            scenario, f"the server is {facts.engine}, this happens to {scenario.engine}"
        )
    try:
        conditions = scenario.live_conditions(facts)
        results = evaluate(conditions, as_seen_by(scenario, evidence))
        exposure = scenario.exposure(facts)
    except Exception as error:
        return _blank(
            scenario, f"its signature failed: {type(error).__name__}: {error}"
        )
    usual = {condition.id for condition in conditions if condition.usual}
    fit, why = judge(results, exposure, usual)
    truths = [result.truth for result in results if result.required]
    exposed = None
    if exposure.truth is not Truth.UNKNOWN:
        exposed = exposure.truth is Truth.MET
    return Match(
        scenario=scenario.name,
        variant=scenario.variant,
        title=scenario.title,
        fit=fit,
        why=why,
        met=truths.count(Truth.MET),
        not_met=truths.count(Truth.NOT_MET),
        unknown=truths.count(Truth.UNKNOWN),
        exposed=exposed,
        exposed_because=exposure.observed,
        conditions=results,
        remedies=[f"{m.name}: {m.description}" for m in scenario.mitigations],
        until_fixed=setting_until_fixed(scenario),
        fix=fixing_release(scenario),
        references=[f"{r.id} {r.url}" for r in scenario.references],
    )


def setting_until_fixed(scenario: Scenario) -> str:
    """The first mitigation that a person can type: ``add `--flag` (its cost)``."""
    for mitigation in scenario.mitigations:
        setting = shlex.join(mitigation.server_args)
        if not setting:
            pairs = [f"{name}={value}" for name, value in mitigation.env.items()]
            setting = " ".join(pairs)
        if setting:
            verb = "add" if mitigation.server_args else "set"
            return f"{verb} `{setting}`: {mitigation.description}"
    return ""


def fixing_release(scenario: Scenario) -> str:
    """``upgrade to vLLM 0.24.0 (vllm#43595)``; "": no release has the fix."""
    for mitigation in scenario.mitigations:
        if mitigation.release:
            change = re.search(r"[\w.-]+#\d+", mitigation.description)
            note = f" ({change[0]})" if change else ""
            return f"upgrade to {title(scenario.engine)} {mitigation.release}{note}"
    return ""


def judge(
    results: Sequence[ConditionResult], exposure: Finding, usual: Collection[str] = ()
) -> tuple[Fit, str]:
    """The fit and one sentence why. Pure.

    ``match`` needs every required condition of both parts, and a server that can fail
    so. ``likely`` needs a part of the symptom and half of the cause, and none that
    speaks against it; ``symptom-only`` the whole symptom, and a cause of which no
    condition is known not to be met. What could not be seen never counts for it, nor
    does what a healthy server shows as well (``usual``: ids of such conditions): it
    only speaks against it. Whether this server can fail so caps the fit: if unknown, at
    ``likely``; if it cannot, at ``symptom-only``."""
    symptom, cause = _required(results, "symptom"), _required(results, "cause")
    symptom_truth = combine([result.truth for result in symptom])
    cause_truth = combine([result.truth for result in cause])
    telling = [result for result in symptom if result.id not in usual]
    alike = symptom_truth is Truth.MET and (_met(telling) or _met(cause))
    unknown = _names(results, Truth.UNKNOWN)
    against = _names(results, Truth.NOT_MET)
    if exposure.truth is Truth.NOT_MET:
        cannot = f"it cannot happen here ({exposure.observed})"
        if alike and cause_truth is not Truth.NOT_MET:
            return Fit.SYMPTOM_ONLY, f"it looks like this, but {cannot}"
        return Fit.NOT_THIS, f"{cannot}; " + _left(against, unknown)
    if symptom_truth is Truth.MET and cause_truth is Truth.MET:
        number = len(symptom) + len(cause)
        met = f"{number} of {number} required conditions match"
        if exposure.truth is Truth.MET:
            return Fit.MATCH, met
        return (
            Fit.LIKELY,
            f"{met}; whether it can happen here is not known: {exposure.observed}",
        )
    seen = [result for result in cause if result.truth is Truth.MET]
    half = 2 * len(seen) >= len(cause) > 0
    shown = _met(telling) or (cause_truth is Truth.MET and _met(symptom))
    if not against and half and shown:
        return Fit.LIKELY, f"nothing speaks against it; not seen: {unknown}"
    # A condition that tells it from its neighbours and is not met: it only looks alike.
    if alike and cause_truth is Truth.UNKNOWN:
        return (
            Fit.SYMPTOM_ONLY,
            f"it looks like this, but its cause was not seen (not seen: {unknown})",
        )
    if exposure.truth is Truth.MET:
        now = _left(against, unknown)
        return Fit.EXPOSED, f"it can happen here ({exposure.observed}); now: {now}"
    if against:
        return Fit.NOT_THIS, f"not met: {against}"
    return Fit.NOT_THIS, f"no sign was seen; not seen: {unknown}"


def _required(results: Sequence[ConditionResult], part: str) -> list[ConditionResult]:
    return [result for result in results if result.required and result.part == part]


def _left(against: str, unknown: str) -> str:
    return f"not met: {against}" if against else f"not seen: {unknown}"


def _met(results: Sequence[ConditionResult]) -> bool:
    return any(r.truth is Truth.MET for r in results)


def _names(results: Sequence[ConditionResult], truth: Truth) -> str:
    return ", ".join(r.id for r in results if r.required and r.truth is truth)


def _blank(scenario: Scenario, why: str) -> Match:
    return Match(
        scenario=scenario.name,
        variant=scenario.variant,
        title=scenario.title,
        fit=Fit.NOT_THIS,
        why=why,
    )


# --------------------------------------------------------------- log patterns


def union(scenarios: Iterable[Scenario]) -> dict[str, str]:
    """Every expression of theirs, each once."""
    expressions = {}
    for scenario in scenarios:
        for expression in scenario.log_patterns.values():
            expressions[expression] = expression
    return expressions


def as_seen_by(scenario: Scenario, evidence: Evidence) -> Evidence:
    """The evidence with the log's matches under the scenario's own names. Of system
    calls those of the core are the last ones: a check that asks for system calls gets
    these, no worker's."""
    role = get_engine(scenario.engine).core_role
    cores = set()
    for _, reading in evidence.results(ProcessesData):
        for use in reading.processes:
            if role in use.role:
                cores.add(use.pid)

    probes = []
    other_calls = []
    for result in evidence.probes:
        data = result.data
        if isinstance(data, LogsData):
            update = {"data": _renamed(scenario, data)}
            probes.append(result.model_copy(update=update))
        elif cores and isinstance(data, SyscallsData) and data.pid not in cores:
            other_calls.append(result)
        else:
            probes.append(result)
    return evidence.model_copy(update={"probes": other_calls + probes})


def _renamed(scenario: Scenario, data: LogsData) -> LogsData:
    matches, counts = dict(data.matches), dict(data.match_counts)
    for name, expression in scenario.log_patterns.items():
        if expression in data.match_counts:
            counts[name] = data.match_counts[expression]
            if expression in data.matches:
                matches[name] = data.matches[expression]
    return data.model_copy(update={"matches": matches, "match_counts": counts})


# --------------------------------------------------------------- before the deadline


# A hang need not wait for its request's deadline where what else is observed decides
# it. A busy server may be silent as long as a hung one. It does not stand, in two
# rounds of stacks, in the frames of a known failure, with the GIL and a core in user
# space, while no counter of work moves and its log says how it came about: all
# conditions of a known failure, and the general diagnosis.


def known_hang(
    scenarios: Iterable[Scenario],
    evidence: Evidence,
    facts: TargetFacts,
    live: LiveFacts,
    waited_s: float,
) -> Match | None:
    """The known failure that it would be if the request, silent for ``waited_s`` by
    now, remained so; None: whatever it is, only its deadline decides."""
    silent = _silent(evidence, waited_s, live.deadline_s)
    view = DiagnosisView(facts, silent)
    if view.progress is not False or not view.core_hot:
        return None
    if general.assess(silent, facts).state is not ServerState.FROZEN_PYTHON:
        return None
    matches = match_all(scenarios, silent, live)
    return matches[0] if matches else None


def stuck_rank(
    evidence: Evidence, facts: TargetFacts, waited_s: float, deadline_s: float
) -> bool:
    """Whether one rank of several stands in its own code and sleeps, and no counter
    moves, while a request has been silent for ``waited_s``."""
    view = DiagnosisView(facts, _silent(evidence, waited_s, deadline_s))
    return view.progress is False and rank_verdicts.asleep_and_stuck(view)


def _silent(evidence: Evidence, waited_s: float, deadline_s: float) -> Evidence:
    data = InferenceData(
        answered=False, status=None, seconds=waited_s, deadline_s=deadline_s, cut=True
    )
    result = ProbeResult(
        probe="inference",
        phase="check",
        status=ProbeStatus.OK,
        started=Moment.now(),
        seconds=waited_s,
        data=data,
    )
    return evidence.model_copy(update={"probes": [*evidence.probes, result]})
