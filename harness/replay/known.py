"""Is it a known failure? Every scenario's signature is tried on the server that failed, or on what
is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState
from mmrepro.diagnose.match import all_scenarios, match_all
from mmrepro.diagnose.patterns import union
from mmrepro.diagnose.session import DiagnoseOptions, diagnose
from mmrepro.engines import get_engine
from mmrepro.errors import MmreproError
from mmrepro.incident.diagnosis import Fit, Match
from mmrepro.oracle.buckets import alike
from mmrepro.probes.base import run_probe
from mmrepro.probes.logs import LogsProbe
from mmrepro.replay.seen import Named, Seen
from mmrepro.scenario import LiveFacts
from mmrepro.scenario.registry import load_scenario
from packaging.version import Version

DIAGNOSIS_DIR = "diagnosis"
LOG_S = 30.0
TRIED = 3
"""Scenarios that are named where none fits."""


class Naming:
    """Looks at the server of one play, and says what ``bucket`` is.

    A scenario names a failure only if every condition of it is met, on a release and with options
    that can fail so; and only the worst failure of a play: of two the other one might be what was
    recognised.
    """

    def __init__(self, bucket: str, deadline_s: float) -> None:
        self.bucket, self.deadline_s = bucket, deadline_s
        self._matches: list[Match] | None = None
        self._why = ""
        self._diagnosis = ""

    def on_look(self, url: str, pid: int, log: Path) -> None:
        """Diagnoses the server while it lives; its incident goes beside the play's evidence."""
        out = log.parent.parent / DIAGNOSIS_DIR
        options = DiagnoseOptions(
            url=url, pid=pid, logs=(log,), out=out, deadline_s=max(1.0, self.deadline_s)
        )
        try:
            found = diagnose(options)
        except MmreproError as error:
            self._why = f"the server could not be looked at: {error.message}"
            return
        self._matches = found.diagnosis.matches
        self._diagnosis = DIAGNOSIS_DIR

    def name(self, seen: Seen, case: Case, played: Played, folder: Path) -> Seen:
        """``seen`` with what it is called; unchanged where the play does not show it."""
        if not seen.has(self.bucket):
            return seen
        matches = self._matches
        if played.state in (PlayState.START_FAILED, PlayState.DIED):
            matches = by_log(case, played, folder)
        if matches is None:
            named = Named(why=self._why or "nobody looked at the server")
        elif not alike(seen.sightings[0].bucket, self.bucket):
            worse = seen.sightings[0].finding_class
            named = Named(why=f"the same requests also show a {worse}: a name would be of that")
        else:
            named = best(matches)
        hung = played.state is PlayState.HUNG
        diagnosis = self._diagnosis if hung else ""
        named = named.model_copy(update={"bucket": self.bucket, "diagnosis": diagnosis})
        return seen.model_copy(update={"named": named})


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
