"""Known failures: every scenario's signature, tried on the server that failed or on its
remains.

Also what a new scenario of a finding looks for, and the server of the known scenarios.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.base.machine import is_there
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine
from mmrepro.engines.models import TINY
from mmrepro.failure.documents import Fit, Match
from mmrepro.failure.documents.replay import Finding, KnownUpstream, Sighting
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose import (
    DiagnoseCommand,
    all_scenarios,
    diagnose,
    match_all,
    union_of_patterns,
)
from mmrepro.probes import LogsProbe, run_probe
from mmrepro.scenario import Finding as Judgement, LiveFacts, Scenario, Truth
from mmrepro.scenario.parts import Failure
from mmrepro.scenario.registry import known_scenario
from mmrepro.scenario.silent import SILENT
from mmrepro.search.oracle.judged import alike
from mmrepro.search.replay.store import LiveLook, Named, Observation
from mmrepro.search.replay.unlisted import refuse_unlisted
from mmrepro.tools.catalogue import find_failures, index_entries
from mmrepro.traffic.capture import holds_case
from mmrepro.traffic.case import (
    CASE_FILE,
    Case,
    Played,
    PlayState,
    ServerWanted,
    pictures,
    read_case,
)
from packaging.version import Version

DIAGNOSIS_DIR = "diagnosis"
_LOG_S = 30.0
_TRIED = 3
"""Scenarios that are named where none fits."""


def diagnosed(
    deadline_s: float, server: ServerWanted, url: str, pid: int, log: Path
) -> LiveLook:
    """Diagnose a server while it lives; the incident goes beside the attempt's
    evidence."""
    out = log.parent.parent / DIAGNOSIS_DIR
    options = DiagnoseCommand(
        url=url, pid=pid, logs=(log,), out=out, deadline_s=max(1.0, deadline_s)
    )
    try:
        incident = diagnose(options, typed=server.args)
    except MmreproError as error:
        return LiveLook(why=f"the server could not be inspected: {error.message}")

    return LiveLook(matches=incident.diagnosis.matches, diagnosis=DIAGNOSIS_DIR)


def named(
    bucket: str,
    seen: Observation,
    case: Case,
    played: Played,
    folder: Path,
    looked: LiveLook,
) -> Observation:
    """``seen`` with what ``bucket`` is called; unchanged where the attempt does not
    show it.

    A scenario names a failure only if every condition of it is met, on a release and
    with options that can fail so; and only the worst failure of an attempt: of two the
    other one might be what was recognised. A silent failure is named by what its own
    requests sent, whatever else there is."""
    if not seen.has(bucket):
        return seen
    matches = looked.matches
    # Nobody could look at a server that was gone: its log is what is left.
    if played.state in (PlayState.START_FAILED, PlayState.DIED):
        matches = by_log(case, played, folder)
    if matches is None:
        name = Named(why=looked.why or "the server was not inspected")
    # The worst failure of an attempt comes first, and is what a signature would
    # recognise.
    elif not alike(seen.sightings[0].bucket, bucket):
        worse = seen.sightings[0].finding_class
        name = Named(
            why=f"the same requests also show a {worse}: a name would be of that"
        )
    else:
        name = best(matches)

    sighting = seen.sighting(bucket)
    silent = sighting is not None and sighting.finding_class in SILENT
    if name.known is None and sighting is not None and silent:
        taken = set(sighting.operations)
        for op in seen.sent:
            if not seen.answers.get(op, "").startswith("4"):
                taken.add(op)
        left = case.keeping(taken)
        name = recognised(sighting, left, folder, name.why, played.device)

    hung = played.state is PlayState.HUNG
    diagnosis = looked.diagnosis if hung else ""
    name = name.model_copy(update={"bucket": bucket, "diagnosis": diagnosis})
    return seen.model_copy(update={"named": name})


def by_log(case: Case, played: Played, folder: Path) -> list[Match]:
    """What the log of a server that is gone says of each scenario's signature."""
    server = case.server
    scenarios = [s for s in all_scenarios() if s.engine == server.engine]
    engine = get_engine(server.engine)
    probe = LogsProbe(
        folder / played.log_file,
        union_of_patterns(scenarios),
        engine.progress_pattern or None,
    )
    result = run_probe(probe, folder, _LOG_S, phase="check", label="known")
    gone = {CORE_ALIVE: False} if played.state is PlayState.DIED else {}
    known = {
        "facts": played.evidence.facts | gone,
        "probes": [*played.evidence.probes, result],
    }
    evidence = played.evidence.model_copy(update=known)
    facts = LiveFacts(
        server.engine,
        server.release,
        tuple(server.args),
        played.deadline_s,
        played.device,
    )
    return match_all(scenarios, evidence, facts)


def best(matches: Sequence[Match]) -> Named:
    """The scenario that fits in all; where there is none, those that come closest are
    told."""
    first = matches[0] if matches else None
    if first is not None and first.fit is Fit.MATCH:
        return Named(known=first.scenario, variant=first.variant, why=first.why)
    close = [m for m in matches if m.fit in (Fit.LIKELY, Fit.SYMPTOM_ONLY)][:_TRIED]
    words = "; ".join(f"{m.scenario}: {m.fit}, {m.why}" for m in close)
    return Named(why=words or "no known failure's signature is met")


def recognised(
    sighting: Sighting, case: Case, folder: Path, why: str, device: str = ""
) -> Named:
    """What the engine's scenarios say of a failure that no signature sees, by what was
    sent.

    Args:
        folder: of a play (``plays/0001``) of a replay, whose own holds the case's
            pictures.
        case: without what was refused or never sent, and is in no cache.
        why: it has no name yet; what they cannot tell is added.
    """
    try:
        made = pictures(case, folder.parent.parent)
    except UsageError as error:
        return Named(why=f"{why}; the pictures cannot be read: {error.message}")

    failure = Failure(
        sighting.finding_class,
        sighting.bucket,
        tuple(sighting.operations),
        case,
        made,
        device,
    )
    reasons = [why]
    for scenario in all_scenarios():
        if scenario.engine != case.server.engine:
            continue
        if type(scenario).recognises is Scenario.recognises:
            continue
        # A scenario may be anybody's: what it raises is not this replay's failure.
        try:
            judged = scenario.recognises(failure)
        except Exception as error:
            judged = Judgement.unknown(
                f"looking for it failed: {type(error).__name__}: {error}"
            )

        if judged.truth is Truth.MET:
            return Named(
                known=scenario.name, variant=scenario.variant, why=judged.observed
            )
        if judged.truth is Truth.UNKNOWN:
            reasons.append(f"{scenario.full_name}: {judged.observed}")

    return Named(why="; ".join(reasons))


_RESEMBLING = 3
"""Names of failures whose words a finding has, at most."""


def resembling(finding: Finding) -> list[str]:
    """Known failures of the same engine that ``mmrepro find`` knows by the words of a
    finding's exception."""
    text = "\n".join(finding.log_lines)
    names: list[str] = []
    for hit in find_failures(text, index_entries()):
        of_engine = hit.entry.engine in ("", finding.server.engine)
        if hit.sure == "this" and of_engine and hit.entry.kind == "scenario":
            names.append(hit.entry.name)
    return names[:_RESEMBLING]


def upstream_of(name: str | None) -> KnownUpstream | None:
    """What the catalogue has of a known failure; None: it does not have it."""
    for entry in index_entries():
        if entry.kind == "scenario" and entry.name == name:
            issue, _, url = entry.references[0] if entry.references else ("", "", "")
            return KnownUpstream(issue=issue, url=url, fixed=entry.fixed)
    return None


def mitigation(named: Named, release: str) -> str:
    """SCENARIO/NAME of the first mitigation that helps on ``release`` and is no other
    release; "": there is none."""
    if named.known is None:
        return ""
    scenario = known_scenario(named.known, trust=False)
    if named.variant not in ("", scenario.variant):
        return ""
    version = Version(release)
    for way in scenario.mitigations:
        if way.release:
            continue
        if way.effective_on.contains(version, prereleases=True):
            return f"{scenario.name}/{way.name}"

    return ""


# -------------------------------------------------------------- a scenario of a finding

_INWARD = " > "
"""Between the functions of a hang's bucket, outermost first."""


@dataclass(frozen=True)
class _Signature:
    """What of a class of findings a scenario looks for, as Python.

    Attributes:
        pattern: of the engine's log; "": none.
        observed: what one answer shows, where that is the symptom.
    """

    symptoms: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    pattern: str = ""
    observed: dict[str, str] | None = None
    healthy: str = ""


def signature_of(finding: Finding, case: Case) -> _Signature:
    """What a run of the case must show to be this finding again."""
    pattern = exception_pattern(finding.log_lines)
    logged: tuple[str, ...] = ()
    if pattern:
        words = "the log holds the exception that the replay saw"
        logged = (f'in_log("{words}", "exception")',)
    ids = {op.id for op in case.operations}
    failing = [op for op in finding.operations if op in ids]
    if finding.finding_class is FindingClass.HANG:
        symptoms = ("some_request_unanswered()", "new_request_unanswered()")
        path = hang_path(finding.bucket)
        if not path:
            return _Signature(symptoms, logged, pattern)
        functions = ", ".join(map(repr, path))
        return _Signature(symptoms, (f"stands_in({functions})",))

    if finding.finding_class is FindingClass.DEATH:
        return _Signature(("server_gone()",), logged, pattern)
    if finding.finding_class is FindingClass.FAILING:
        return _Signature(("every_request_fails()",), logged, pattern)
    if finding.finding_class is FindingClass.SERVER_ERROR:
        labels = ", ".join(map(repr, failing[:3]))
        if not labels:
            return _Signature((), logged, pattern)
        fails = (f"fails_in_server({labels})",)
        return _Signature(fails, logged, pattern, healthy=f", answered({labels})")

    return _Signature(observed=_observed(finding, failing or [case.operations[-1].id]))


def _observed(finding: Finding, failing: list[str]) -> dict[str, str]:
    """What is seen of the first answer that shows it."""
    for expectation in finding.expectations:
        operation, most = expectation.operation, expectation.cached_at_most
        if most is not None:
            return {
                "statement": f"{operation} takes more than {most} tokens from the "
                "cache",
                "label": operation,
                "test": f"(sent.cached_tokens or 0) > {most}",
                "told": "{sent.cached_tokens} tokens from the cache",
            }

        if expectation.text is not None:
            return {
                "statement": f"{operation} is answered otherwise than it should be",
                "label": operation,
                "test": f"sent.answered and sent.text != {expectation.text!r}",
                "told": "{sent.reply} {sent.text[:80]!r}",
            }

    return {
        "statement": "TODO: what of the answer shows it",
        "label": failing[0],
        "test": "False",
        "told": "{sent.reply} {sent.text[:80]!r}",
    }


def hang_path(bucket: str) -> list[str]:
    """The functions in which a hang of this bucket stands, outermost first; []: none
    are known."""
    where = bucket.rpartition("/")[2]
    return where.split(_INWARD) if where else []


def exception_pattern(lines: list[str]) -> str:
    """A pattern of the log's line: the exception and its words, up to the first thing
    that differs from run to run (a number, a hash, something quoted)."""
    named = re.compile(
        r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt))\b(.*)"
    )
    for line in lines:
        raised = named.search(line)
        if raised is None:
            continue
        steady = re.split(r"[\d'\"`/]|0x", raised[2], maxsplit=1)[0]
        words = steady[:60].rstrip()
        return re.escape(raised[1] + words).replace("\\ ", " ")

    return ""


# --------------------------------------------------------------------------- the server


def server_wanted(
    file: Path, resume: Path | None, asked: dict[str, Any]
) -> ServerWanted:
    """The server: a case's own, for a recording that of the engine's scenarios; what
    ``asked`` says goes over both. Raises UsageError: no engine, or none of that name,
    no such release, or a case that sets what others may not set."""
    kept = _case_in(resume) or _case_in(file)
    own = read_case(kept)[0].server if kept else None
    if own is not None and asked.get("engine", own.engine) != own.engine:
        raise UsageError(
            f"{kept} is a case of {own.engine}, not of {asked['engine']}: another "
            "engine has other options.",
            hint=f"leave --engine out, or change the server in {CASE_FILE}",
        )

    if own is None:
        # A word without a suffix may be a profile of upgrade.
        if "engine" not in asked and file.suffix and not is_there(file):
            raise UsageError(
                f"{file} cannot be read: no such file.", hint=f"ls -l {file.parent}"
            )
        if "engine" not in asked:
            raise UsageError(
                "--engine says which engine the traffic is played on.",
                hint="add --engine vllm, or which one it was recorded from",
            )
        get_engine(asked["engine"])
        own = usual_server(asked["engine"])
    else:
        refuse_unlisted(own, kept or file, asked)
        if "model" in asked:
            own = own.model_copy(update={"scripts": None})

    wanted = ServerWanted.model_validate({**own.model_dump(), **asked})
    get_engine(wanted.engine).environment_spec(wanted.release, "cpu")
    return wanted


def _case_in(place: Path | None) -> Path | None:
    """The place itself, if it is a case or a folder that holds one."""
    if place and (place.name == CASE_FILE or holds_case(place)):
        return place
    return None


def usual_server(engine: str) -> ServerWanted:
    """The newest release that a known scenario runs, and the tiny model that goes with
    it."""
    known = last_known(engine)
    names = [name for name, tiny in TINY.items() if type(tiny) is type(known.model)]
    return ServerWanted(
        engine=engine,
        release=known.release,
        model=names[0],
        max_model_len=known.max_model_len,
    )


def last_known(engine: str) -> Scenario:
    """The known scenario of ``engine`` with the newest release: release and model go
    together. Of several the one with the model that scenarios have by themselves."""
    tiny = {type(model) for model in TINY.values()}
    usual = type(Scenario.model)

    def newest(scenario: Scenario) -> tuple[Version, bool]:
        return Version(scenario.release), type(scenario.model) is usual

    scenarios: list[Scenario] = []
    for scenario in all_scenarios():
        if scenario.engine == engine and type(scenario.model) in tiny:
            scenarios.append(scenario)
    return max(scenarios, key=newest)
