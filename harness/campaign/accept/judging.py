"""A step (one child process, its time), and how what the child left is judged."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mmrepro
from junitparser import Error, Failure, JUnitXml, JUnitXmlError, Skipped, TestCase
from mmrepro.base.errors import BadIncident, ExitCode
from mmrepro.base.machine.files import Device, digest
from mmrepro.base.records import Document, FindingClass
from mmrepro.base.units import duration
from mmrepro.campaign.trial import incident_in
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.acceptance import Row, Status
from mmrepro.failure.documents.replay import (
    FUZZ_FILE,
    REPLAY_FILE,
    Finding,
    Fuzz,
    Replay,
)
from mmrepro.failure.documents.stored import load_document
from mmrepro.failure.signature import Outcome
from mmrepro.reproducers import reproducer_path
from mmrepro.tools.check import HostReport, Part as MachinePart
from pydantic import ValidationError

EVERYWHERE: frozenset[Device] = frozenset({"cpu", "cuda"})
CPU_ONLY: frozenset[Device] = frozenset({"cpu"})
GPU_ONLY: frozenset[Device] = frozenset({"cuda"})


@dataclass(frozen=True)
class Needs:
    engine: str
    release: str

    def __str__(self) -> str:
        return f"{self.engine} {self.release}"


@dataclass(frozen=True)
class Child:
    """What is started.

    Attributes:
        words: arguments of ``mmrepro``; or the file of a reproducer or of tests, and
            its arguments.
        needs: environments, of which the first that is there serves.
        script: a reproducer, run by that environment's interpreter.
        tests: run by its pytest.
        incident: it takes ``--out`` and leaves an incident there.
        device_option: it takes ``--device``.
        reads: a file of the repository among its words; an installed package does not
            have it.
    """

    words: tuple[str, ...]
    needs: tuple[Needs, ...] = ()
    script: bool = False
    tests: bool = False
    incident: bool = False
    device_option: bool = True
    reads: str = ""

    @property
    def file(self) -> Path:
        """The script; or what is read, or the tests, which an installed package does
        not have."""
        name = self.reads or self.words[0]
        if not (self.tests or self.reads):
            return reproducer_path(name)
        beside = reproducer_path("").parent / name
        return beside if beside.is_file() else Path(name).absolute()

    def arguments(self, device: Device) -> list[str]:
        if self.tests:
            return list(self.words)
        asked = (
            ["--device", device]
            if self.device_option and "--device" not in self.words
            else []
        )
        return [*self.words, *asked, "--json"]

    def shown(self, device: Device) -> str:
        """As a person types it; of a script the interpreter is any that has torch."""
        words = self.arguments(device)
        if self.tests:
            return shlex.join(["python", "-m", "pytest", *words])
        if self.script:
            return shlex.join(["python", f"reproducers/{words[0]}", *words[1:-1]])
        return shlex.join(["mmrepro", *words[:-1]])

    def key(self, device: Device) -> str:
        """Digest of the command; of scripts and tests also of their files and those
        beside them."""
        made_of = [mmrepro.__version__, *self.arguments(device), *map(str, self.needs)]
        if self.script or self.tests:
            beside = reproducer_path("minivllm").glob("*.py") if self.tests else ()
            made_of.append(digest(sorted([*self.file.parent.glob("*.py"), *beside])))
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Ended:
    """What became of a child.

    Attributes:
        exit_code: None: it was ended, being late.
        incident: the folder that it was given; ``report``: the file, of tests.
        words: its last ones on stderr.
        document: what it printed, if that is a JSON object.
        before: documents of the part's earlier steps, by name.
    """

    device: Device
    exit_code: int | None
    seconds: float
    limit_s: float
    incident: Path
    report: Path
    words: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    before: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """``whole``: it came to its end, whatever came out; else a later command tries it
    again."""

    rows: list[Row]
    whole: bool = True


@dataclass(frozen=True)
class Step:
    """``estimate_s`` decides whether it still fits the budget; at ``limit_s`` it is
    ended.

    On a device that is not one of ``devices`` it is not tested: ``why_not`` says why.
    """

    name: str
    title: str
    child: Child
    judge: Callable[[Ended], Judged]
    estimate_s: float
    limit_s: float
    devices: frozenset[Device] = EVERYWHERE
    why_not: str = ""

    def facts(self, device: Device) -> dict[str, Any]:
        able = device in self.devices
        return {
            "step": self.name,
            "title": self.title,
            "command": self.child.shown(device),
            "estimate_s": self.estimate_s if able else 0,
            "needs": [str(one) for one in self.child.needs],
            "not_tested": "" if able else self.why_not,
        }


@dataclass(frozen=True)
class Part:
    """Steps that show one thing together; ``shows`` in a sentence."""

    name: str
    shows: str
    steps: Sequence[Step]

    def estimate_s(self, device: Device) -> float:
        return sum(step.estimate_s for step in self.steps if device in step.devices)

    def facts(self, device: Device) -> dict[str, Any]:
        return {
            "part": self.name,
            "shows": self.shows,
            "estimate_s": self.estimate_s(device),
            "steps": [step.facts(device) for step in self.steps],
        }


class PartsDocument(Document, kind="accept-list"):
    """What ``mmrepro accept --list --json`` prints."""

    device: str
    parts: list[dict[str, Any]]


def untested(step: Step, why: str) -> Row:
    return Row(asked=step.title, seen=why, status=Status.NOT_TESTED)


def broken(step: Step, why: str) -> Row:
    return Row(asked=step.title, seen=why, status=Status.BROKEN_OFF)


TOLD = {
    "confirmed": Status.PASSED,
    "refuted": Status.FAILED,
    "not-tested": Status.NOT_TESTED,
}
Judge = Callable[[Ended], Judged]


def late(title: str, ended: Ended) -> Judged | None:
    """For a child that left nothing to be judged; None: it may have."""
    if ended.exit_code is None:
        why = f"it did not end within {duration(ended.limit_s)}, and was ended"
    elif ended.exit_code in (ExitCode.USAGE, ExitCode.INTERRUPTED):
        why = ended.words or f"it ended with {ended.exit_code}"
    else:
        return None
    return broken_off(title, why)


def broken_off(title: str, why: str) -> Judged:
    return Judged([Row(asked=title, seen=why, status=Status.BROKEN_OFF)], whole=False)


# ------------------------------------------------------------------ an incident


def run_judge(title: str, claims: Sequence[str] = ()) -> Judge:
    """Of ``mmrepro run``: the verdict against what the scenario expects, then those
    claims."""

    def judge(ended: Ended) -> Judged:
        incident = incident_in(ended.incident)
        if (ending := late(title, ended)) is not None:
            return ending
        if incident is None:
            return broken_off(
                title, ended.words or f"no incident; it ended with {ended.exit_code}"
            )
        verdict = incident.verdict
        if verdict is None or incident.state != "complete":
            return broken_off(title, incident.failure or ended.words or "no verdict")
        status = Status.PASSED if verdict.as_expected else Status.FAILED
        if verdict.outcome is Outcome.INCONCLUSIVE:
            status = Status.NOT_TESTED
        counted = Counter(str(claim.status) for claim in incident.claims).most_common()
        counts = ", ".join(f"{number} {status}" for status, number in counted)
        row = Row(
            asked=title,
            expected=str(verdict.expected or "no expectation"),
            source=verdict.expected_because or f"the scenario {incident.scenario.name}",
            seen=f"{verdict.outcome}: {verdict.explanation}"
            + (f"; claims of the report: {counts}" if counts else ""),
            status=status,
            seconds=ended.seconds,
        )
        return Judged([row, *(_claim(incident, name) for name in claims)])

    return judge


def _claim(incident: Incident, name: str) -> Row:
    expected = "as the report says"
    claim = next((claim for claim in incident.claims if claim.id == name), None)
    if claim is None:
        why = "the incident has no such claim"
        return Row(asked=name, expected=expected, seen=why, status=Status.BROKEN_OFF)
    status = TOLD[str(claim.status)]
    return Row(
        asked=claim.text,
        expected=expected,
        source=claim.source,
        seen=claim.observed,
        status=status,
    )


# ---------------------------------------------------------- a replay, or a fuzz session


def search_judge(title: str, finds: Sequence[FindingClass]) -> Judge:
    """``mmrepro replay`` and ``fuzz``: those classes are confirmed, nothing is for ();
    and the servers ran on a GPU, if one was asked for."""

    def judge(ended: Ended) -> Judged:
        if (ending := late(title, ended)) is not None:
            return ending
        made: Replay | Fuzz
        try:
            if (ended.incident / FUZZ_FILE).is_file():
                made = load_document(ended.incident, FUZZ_FILE, Fuzz)
            else:
                made = load_document(ended.incident, REPLAY_FILE, Replay)
        except BadIncident:
            why = ended.words or f"no document; it ended with {ended.exit_code}"
            return broken_off(title, why)
        if made.state != "complete":
            return broken_off(title, made.failure or ended.words)
        found = (
            made.findings
            if isinstance(made, Replay)
            else [f.finding for f in made.found]
        )
        told = [
            f"{f.finding_class}: {f.said}" if f.confirmed else _open(f) for f in found
        ]
        status = _of_classes(found, {*finds})
        names = ", ".join(made.host.gpus) or "a CPU"
        ran_there = bool(made.host.gpus) == (ended.device == "cuda")
        rows = [
            (
                title,
                ", ".join(finds) or "nothing",
                "; ".join(told) or "nothing",
                status,
            ),
            (
                f"{title}: where its servers ran",
                ended.device,
                names,
                Status.PASSED if ran_there else Status.FAILED,
            ),
        ]
        return Judged(
            [
                Row(
                    asked=asked,
                    expected=expected,
                    source="minivllm's planted faults",
                    seen=seen,
                    status=status,
                    seconds=ended.seconds,
                )
                for asked, expected, seen, status in rows
            ]
        )

    return judge


def _cut_short(finding: Finding) -> bool:
    """Each play so far showed it, and no budget was left for as many as confirm it."""
    return not finding.confirmed and finding.rate.failed == finding.rate.plays


def _open(finding: Finding) -> str:
    plays = f"{finding.rate.failed} of {finding.rate.plays} plays"
    why = f"the budget was over ({plays})" if _cut_short(finding) else plays
    return f"{finding.finding_class}, not confirmed: {why}"


def _of_classes(found: Sequence[Finding], wanted: Set[FindingClass]) -> Status:
    """Whether the wanted classes were found; with none wanted, whether nothing was."""
    confirmed = {f.finding_class for f in found if f.confirmed}
    cut = {f.finding_class for f in found if _cut_short(f)}
    if wanted:
        passed, unsure = wanted <= confirmed, wanted <= confirmed | cut
    else:
        passed, unsure = not confirmed | cut, not confirmed
    return Status.PASSED if passed else Status.NOT_TESTED if unsure else Status.FAILED


# -------------------------------------------------------- documents that children print


def claims_judge(title: str, source: str, *, keys: Sequence[str] = ()) -> Judge:
    """Of a reproducer: its ``claims``, each "confirmed", "refuted" or "not-tested".

    ``keys``: facts of its document that are told beside the first.
    """

    def judge(ended: Ended) -> Judged:
        if (ending := late(title, ended) or untried(title, ended)) is not None:
            return ending
        claims = ended.document.get("claims")
        if not isinstance(claims, list) or not claims:
            return broken_off(
                title, ended.words or f"no claims; it ended with {ended.exit_code}"
            )
        rows = [told(one, source) for one in claims]
        facts = "; ".join(f"{key} {ended.document.get(key)}" for key in keys)
        if facts:
            rows[0] = rows[0].model_copy(update={"seen": f"{rows[0].seen} ({facts})"})
        return Judged(rows)

    return judge


def untried(title: str, ended: Ended) -> Judged | None:
    """A reproducer that says that it cannot be tried here."""
    why = ended.document.get("error")
    if ended.exit_code != ExitCode.INFRASTRUCTURE or not why:
        return None
    return Judged(
        [Row(asked=title, seen=str(why), status=Status.NOT_TESTED)], whole=False
    )


def told(claim: Mapping[str, Any], source: str) -> Row:
    """A claim as reproducers tell it: text, status, and what of it was observed."""
    status = str(claim.get("status", ""))
    seconds = claim.get("seconds")
    return Row(
        asked=str(claim.get("text", claim.get("id", ""))),
        expected="so",
        source=str(claim.get("source", source)),
        seen=str(claim.get("observed") or status),
        status=TOLD.get(status, Status.BROKEN_OFF),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
    )


# ------------------------------------------------------------------ tests


def junit_judge(title: str) -> Judge:
    """Of a JUnit file: a row for each test function, whatever parameters it was
    given."""

    def judge(ended: Ended) -> Judged:
        if ended.exit_code is None:
            return late(title, ended) or broken_off(title, "")
        try:
            cases = [
                case for suite in JUnitXml.fromfile(str(ended.report)) for case in suite
            ]
        except (OSError, SyntaxError, JUnitXmlError):
            return broken_off(
                title, ended.words or f"no report; pytest ended with {ended.exit_code}"
            )
        functions: dict[str, list[TestCase]] = {}
        for case in cases:
            functions.setdefault(case.name.partition("[")[0], []).append(case)
        if not functions:
            return broken_off(
                title, f"no test was found; pytest ended with {ended.exit_code}"
            )
        return Judged([_tested(name, cases) for name, cases in functions.items()])

    return judge


def _tested(name: str, cases: Sequence[TestCase]) -> Row:
    results = [result for case in cases for result in case.result]
    bad = [one for one in results if isinstance(one, Failure | Error)]
    skipped = [one for one in results if isinstance(one, Skipped)]
    ran = len(cases) - len(skipped)
    status = Status.FAILED if bad else Status.PASSED if ran else Status.NOT_TESTED
    why = (bad or skipped or [None])[0]
    seen = f"{ran - len(bad)} of {ran} cases" if ran else ""
    if why is not None and (bad or not ran):
        seen = f"{seen}: {str(why.message).splitlines()[0]}".removeprefix(": ")
    return Row(
        asked=name.removeprefix("test_").replace("_", " "),
        expected="so",
        source="tests/minivllm",
        seen=seen,
        status=status,
        seconds=round(sum(case.time or 0.0 for case in cases), 2),
    )


# ------------------------------------------------------------------ this machine

EXAMINED = ("system", "gpu", "py-spy", "ptrace", "strace", "memory", "/dev/shm")  # noqa: S108


def machine_judge(ended: Ended) -> Judged:
    """Of ``mmrepro check``: what a run needs, and what it costs where it is not
    there."""
    title = "what a run needs of this machine"
    if (ending := late(title, ended)) is not None:
        return ending
    try:
        report = HostReport.model_validate(ended.document)
    except ValidationError:
        return broken_off(
            title, ended.words or f"no report; it ended with {ended.exit_code}"
        )
    parts = [part for part in report.parts if part.name in EXAMINED]
    return Judged([_examined(part, ended.device) for part in parts])


def _examined(part: MachinePart, device: str) -> Row:
    wanted = part.required or (part.name == "gpu" and device == "cuda")
    status = (
        Status.PASSED if part.ok else Status.FAILED if wanted else Status.NOT_TESTED
    )
    return Row(
        asked=part.name,
        expected="needed" if wanted else "of use",
        source="mmrepro check",
        seen=part.found if part.ok else f"{part.found}; {part.costs}",
        status=status,
        seconds=part.seconds,
    )
