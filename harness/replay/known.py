"""Is it a known failure? Every scenario's signature is tried on the server that failed, or on what
is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmrepro.case.model import Case
from mmrepro.case.pictures import pictures
from mmrepro.case.played import Played, PlayState
from mmrepro.diagnose.match import all_scenarios, match_all, union
from mmrepro.diagnose.options import DiagnoseCommand
from mmrepro.diagnose.session import diagnose
from mmrepro.engines import get_engine
from mmrepro.errors import MmreproError, UsageError
from mmrepro.incident.diagnosis import Fit, Match
from mmrepro.incident.replay import Sighting
from mmrepro.oracle.buckets import alike
from mmrepro.probes.base import run_probe
from mmrepro.probes.logs import LogsProbe
from mmrepro.replay.seen import Looked, Named, Seen
from mmrepro.scenario import Finding, LiveFacts, Scenario, Truth
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenario.silent import SILENT, Failure
from packaging.version import Version

DIAGNOSIS_DIR = "diagnosis"
LOG_S = 30.0
TRIED = 3
"""Scenarios that are named where none fits."""


def diagnosed(deadline_s: float, url: str, pid: int, log: Path) -> Looked:
    """Diagnoses a server while it lives; the incident goes beside the attempt's evidence."""
    out = log.parent.parent / DIAGNOSIS_DIR
    options = DiagnoseCommand(
        url=url, pid=pid, logs=(log,), out=out, deadline_s=max(1.0, deadline_s)
    )
    try:
        found = diagnose(options)
    except MmreproError as error:
        return Looked(why=f"the server could not be looked at: {error.message}")
    return Looked(matches=found.diagnosis.matches, diagnosis=DIAGNOSIS_DIR)


def named(
    bucket: str, seen: Seen, case: Case, played: Played, folder: Path, looked: Looked
) -> Seen:
    """``seen`` with what ``bucket`` is called; unchanged where the attempt does not show it.

    A scenario names a failure only if every condition of it is met, on a release and with options
    that can fail so; and only the worst failure of an attempt: of two the other one might be what
    was recognised. A silent failure is named by what its own requests sent, whatever else there is.
    """
    if not seen.has(bucket):
        return seen
    matches = looked.matches
    if played.state in (PlayState.START_FAILED, PlayState.DIED):
        matches = by_log(case, played, folder)
    if matches is None:
        found = Named(why=looked.why or "nobody looked at the server")
    elif not alike(seen.sightings[0].bucket, bucket):
        worse = seen.sightings[0].finding_class
        found = Named(why=f"the same requests also show a {worse}: a name would be of that")
    else:
        found = best(matches)
    sighting = seen.sighting(bucket)
    if found.known is None and sighting is not None and sighting.finding_class in SILENT:
        refused = [op for op, answer in seen.answers.items() if answer[:1] == "4"]
        taken = {op for op in seen.sent if op not in refused} | set(sighting.operations)
        found = recognised(sighting, case.keeping(taken), folder, found.why)
    hung = played.state is PlayState.HUNG
    diagnosis = looked.diagnosis if hung else ""
    found = found.model_copy(update={"bucket": bucket, "diagnosis": diagnosis})
    return seen.model_copy(update={"named": found})


def by_log(case: Case, played: Played, folder: Path) -> list[Match]:
    """What the log of a server that is gone says of each scenario's signature."""
    server = case.server
    scenarios = [s for s in all_scenarios() if s.engine == server.engine]
    engine = get_engine(server.engine)
    probe = LogsProbe(folder / played.log_file, union(scenarios), engine.progress_pattern or None)
    result = run_probe(probe, folder, LOG_S, phase="check", label="known")
    evidence = played.evidence.model_copy(update={"probes": [*played.evidence.probes, result]})
    facts = LiveFacts(server.engine, server.release, tuple(server.args), played.deadline_s)
    return match_all(scenarios, evidence, facts)


def best(matches: Sequence[Match]) -> Named:
    """The scenario that fits in all; where there is none, those that come closest are told."""
    first = matches[0] if matches else None
    if first is not None and first.fit is Fit.MATCH:
        return Named(known=first.scenario, variant=first.variant, why=first.why)
    close = [m for m in matches if m.fit in (Fit.LIKELY, Fit.SYMPTOM_ONLY)][:TRIED]
    told = "; ".join(f"{m.scenario}: {m.fit}, {m.why}" for m in close)
    return Named(why=told or "no known failure's signature is met")


def recognised(sighting: Sighting, case: Case, folder: Path, why: str) -> Named:
    """What the engine's scenarios say of a failure that no signature sees, by what was sent.

    Args:
        folder: of a play (``plays/0001``) of a replay, whose own holds the case's pictures.
        case: without what was refused or never sent, and is in no cache.
        why: it has no name yet; what they cannot tell is added.
    """
    try:
        made = pictures(case, folder.parent.parent)
    except UsageError as error:
        return Named(why=f"{why}; the pictures cannot be read: {error.message}")
    failure = Failure(
        sighting.finding_class, sighting.bucket, tuple(sighting.operations), case, made
    )
    told = [why]
    for scenario in all_scenarios():
        if scenario.engine != case.server.engine:
            continue
        if type(scenario).recognises is Scenario.recognises:
            continue
        try:
            found = scenario.recognises(failure)
        except Exception as error:
            found = Finding.unknown(f"looking for it failed: {type(error).__name__}: {error}")
        if found.truth is Truth.MET:
            return Named(known=scenario.name, variant=scenario.variant, why=found.observed)
        if found.truth is Truth.UNKNOWN:
            told.append(f"{scenario.full_name}: {found.observed}")
    return Named(why="; ".join(told))


def mitigation(named: Named, release: str) -> str:
    """SCENARIO/NAME of the first mitigation that helps on ``release`` and is no other release; "":
    there is none."""
    if named.known is None:
        return ""
    scenario = load_scenario(named.known)
    if named.variant not in ("", scenario.variant):
        return ""
    for one in scenario.mitigations:
        if not one.release and one.effective_on.contains(Version(release), prereleases=True):
            return f"{scenario.name}/{one.name}"
    return ""
