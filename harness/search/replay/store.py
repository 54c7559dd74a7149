"""What attempts showed, and a replay in its folder: its document, and the journal of
its attempts.

Whoever goes on with it repeats none that ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from mmrepro.base.machine import JournalKind, JournalLine, host_facts
from mmrepro.base.records import Fidelity, Record
from mmrepro.failure.documents import INCIDENT_FILE, Incident, Match
from mmrepro.failure.documents.replay import (
    REPLAY_FILE,
    VERDICTS_FILE,
    Answer,
    Finding,
    Fuzz,
    Learnt,
    PlayFacts,
    Replay,
    Sighting,
)
from mmrepro.failure.documents.searches import begun
from mmrepro.runs import Deadlines
from mmrepro.search.oracle.judged import OracleReport, alike, sent_of
from mmrepro.search.oracle.scripted import never_shown
from mmrepro.search.replay.folder import CaseHead, SessionFolder, new_head
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.traffic.case import Case, Operation, Played, case_digest
from mmrepro.traffic.evidence import RequestRecord
from pydantic import Field, TypeAdapter, ValidationError

STUCK, _LEFT, UNSENT, _BROKEN = "stuck", "left", "unsent", "broken"
_SHOWN = 160
_FRAMES, _LINES = 12, 12


class Named(Record):
    """What a look at the server, or its log, said of a known failure.

    ``bucket``: of the failure that was looked for.
    """

    bucket: str = ""
    known: Annotated[
        str | None, Field(description="a scenario that fits in all conditions")
    ] = None
    variant: str = ""
    why: str = ""
    diagnosis: Annotated[
        str, Field(description="folder of its incident, below the play's")
    ] = ""


class LiveLook(Record):
    """What a look at a server that still lived told.

    Attributes:
        matches: known failures, by their signatures; None: nobody looked, and ``why``.
        diagnosis: folder of its incident, below the attempt's.
        learnt: of its limits.
    """

    matches: list[Match] | None = None
    why: str = ""
    diagnosis: str = ""
    learnt: list[Learnt] = []


class Observation(Record):
    """One play, judged."""

    play: PlayFacts
    sightings: list[Sighting] = []
    counted: dict[str, int] = {}
    unseen: list[str] = []
    untestable: list[str] = []
    said: str = ""
    sent: Annotated[
        list[str], Field(description="operations in the order they were sent")
    ] = []
    times: Annotated[
        dict[str, tuple[float, float | None]],
        Field(
            description="operation: sent and ended, in seconds; None: it has no answer"
        ),
    ] = {}
    answers: Annotated[
        dict[str, str],
        Field(description="operation: its status, stuck, left, unsent or broken"),
    ] = {}
    observed: Annotated[
        dict[str, str], Field(description="operation: what came, for people")
    ] = {}
    missing: Annotated[
        dict[str, list[str]],
        Field(
            description="operation: what it asked for and its answer does not have",
            exclude_if=lambda missing: not missing,
        ),
    ] = {}
    sizes: Annotated[dict[str, str], Field(description="operation: of its images")] = {}
    stack: Annotated[
        list[str], Field(description="where it stands, innermost first")
    ] = []
    log_lines: list[str] = []
    deadline_s: float = 0.0
    folder: Annotated[str, Field(description="of the play, below the replay's")] = ""
    named: Named | None = None

    def has(self, bucket: str) -> bool:
        return any(alike(seen, bucket) for seen in self.play.buckets)

    def sighting(self, bucket: str) -> Sighting | None:
        return next((s for s in self.sightings if alike(s.bucket, bucket)), None)

    @property
    def stuck(self) -> list[str]:
        """In the order they were sent."""
        return [op for op in self.sent if self.answers.get(op) == STUCK]


def observation_of(
    case: Case, played: Played, judged: OracleReport, play: PlayFacts
) -> Observation:
    """Make an observation of a judged play; ``play`` gets the state and the buckets."""
    play.state, play.early = played.state.value, played.early
    play.buckets = list(dict.fromkeys(s.bucket for s in judged.sightings))
    play.start_s, play.seconds = played.start_s, played.seconds
    records = {record.label: record for record in played.evidence.requests}
    stuck = set(played.stuck)
    # Of the exception, where no thread was observed.
    stack = played.places or played.frames
    if played.stack:
        stack = [f"{f.name} ({f.file}:{f.line})" for f in played.stack[0].frames]
    seen = Observation(
        play=play,
        sightings=judged.sightings,
        counted=judged.counted,
        unseen=judged.unseen,
        untestable=judged.untestable,
        said=played.said,
        stack=stack[:_FRAMES],
        log_lines=played.causes[:_LINES],
        deadline_s=played.deadline_s,
    )

    moments: list[tuple[float, str]] = []
    for op in case.operations:
        record = records.get(op.id)
        seen.answers[op.id] = _answer(op, record, stuck)
        seen.observed[op.id] = _observed(op, record, stuck)
        if record is None:
            continue
        moments.append((record.sent.mono, op.id))
        if record.images:
            sizes = [f"{image.width}x{image.height}" for image in record.images]
            seen.sizes[op.id] = " ".join(sizes)

    seen.missing = never_shown(sent_of(case, played), case)
    began = min((moment for moment, _ in moments), default=0.0)
    for moment, id in moments:
        ended = None
        if id not in stuck:
            ended = round(moment - began + records[id].latency_s, 4)
        seen.times[id] = (round(moment - began, 4), ended)
    # The sort is stable: of requests sent at once the case's order stays.
    moments.sort(key=lambda sent: sent[0])
    seen.sent = [id for _, id in moments]
    return seen


def _answer(op: Operation, record: RequestRecord | None, stuck: set[str]) -> str:
    if op.id in stuck:
        return STUCK
    if record is None:
        return UNSENT
    if record.status is not None and record.status >= 400:
        return str(record.status)
    if op.leave:
        return _LEFT
    return _BROKEN if record.status is None or record.error else str(record.status)


def _observed(op: Operation, record: RequestRecord | None, stuck: set[str]) -> str:
    """In the forms that ``Finding.observed`` names."""
    if record is None:
        return "not sent"
    if op.id in stuck:
        return f"no answer in {record.latency_s:.1f} s"
    if op.leave and (record.status is None or record.status < 400):
        return f"left after {op.leave}"
    text = (
        record.reply if record.status is None or record.status >= 400 else record.text
    )
    shown = " ".join(text.split())[:_SHOWN]
    known = f"{record.status or 'no answer'}"
    return shown if shown.startswith(known) else f"{known} {shown}".strip()


def answers_of(case: Case, seen: Observation) -> list[Answer]:
    """What each request of a play tested: those first that show a failure."""
    shown: set[str] = set()
    for sighting in seen.sightings:
        shown.update(sighting.operations)
    for operation, answer in seen.answers.items():
        if answer in (STUCK, _BROKEN) or answer.startswith("5"):
            shown.add(operation)
    made = _answers(case, seen)
    # The sort is stable: each half stays in the order of the case.
    return sorted(made, key=lambda answer: answer.operation not in shown)


def _answers(case: Case, seen: Observation) -> list[Answer]:
    made = []
    for op in case.operations:
        sent, ended = seen.times.get(op.id, (0.0, None))
        made.append(
            Answer(
                operation=op.id,
                method=op.method,
                path=op.path,
                status=seen.answers.get(op.id, UNSENT),
                words=_first_words(seen.observed.get(op.id, "")),
                seconds=None if ended is None else round(ended - sent, 2),
                missing=seen.missing.get(op.id, []),
            )
        )

    return made


_MESSAGE = re.compile(r'"(?:message|detail)": ?"((?:[^"\\]|\\.)*)')


def _first_words(observed: str) -> str:
    """Of an error's JSON its message, with the status before it."""
    worded = _MESSAGE.search(observed)
    if worded is None or not observed[:3].isdigit():
        return observed
    message = worded[1].replace("\\n", " ").replace('\\"', '"')
    return " ".join(f"{observed[:3]} {message}".split())


# --------------------------------------------------------------------------- the folder

_How: TypeAlias = Literal["calibration", "whole", "confirm", "look", "shrink", "silent"]
"""What an attempt is for, as far as it changes how it is made."""
PLAYS_DIR = "plays"
BLOCKS = 6
"""Of a case that is sent in blocks: an idle server is read after each, for what
grows."""
WriteReplay = Callable[[Replay, Path], object]


class CandidateVerdict(NamedTuple):
    """What the plays of one candidate said. ``seen``: of the failing one."""

    fails: bool
    failed: int
    plays: int
    seen: Observation | None = None
    again: bool = False
    """The same case was asked for before: nothing was played."""


class Key(NamedTuple):
    """One attempt: its case (and into how many blocks it was cut), how it was made, and
    which of several alike it is."""

    digest: str
    how: _How
    nth: int

    @property
    def fields(self) -> dict[str, Any]:
        """As a line has them."""
        return {"digest": self.digest, "how": self.how, "index": self.nth}


class AttemptWanted(NamedTuple):
    """One attempt that is asked for."""

    case: Case
    how: _How
    nth: int
    what: str


class _OfAttempt(JournalLine):
    number: int
    digest: str
    how: _How
    index: int


class AttemptBegan(_OfAttempt):
    kind: Literal["began"] = "began"
    what: str
    requests: int


class AttemptEnded(_OfAttempt):
    once_as = "Attempt {0.index} ({0.how}) of {0.digest} ended"
    kind: Literal["ended"] = "ended"
    seen: Observation
    answer_s: Annotated[
        float | None, Field(description="of a calibration: the deadline")
    ] = None
    suspect_s: float | None = None
    rule: str = ""

    @property
    def key(self) -> Key:
        return Key(self.digest, self.how, self.index)

    @property
    def deadlines(self) -> Deadlines | None:
        if self.answer_s is None or self.suspect_s is None:
            return None
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


_AnyLine: TypeAlias = Annotated[
    CaseHead | AttemptBegan | AttemptEnded, Field(discriminator="kind")
]
VERDICTS = JournalKind(
    "replay", VERDICTS_FILE, ".replay.lock", REPLAY_FILE, TypeAdapter(_AnyLine)
)


class ReplayFolder(SessionFolder[Replay]):
    """A replay in progress.

    Attributes:
        ended: what attempts showed, those of an earlier call included.
    """

    def __init__(
        self, folder: Path, case: Case, options: ReplayCommand, write: WriteReplay
    ) -> None:
        """``write``: as of a session; the findings' folders with their ``case.json``
        are there by then."""
        self.case, self.options = case, options
        decides = {
            "--time": options.time,
            "--budget": str(options.budget),
            "--repeat": str(options.repeat),
            "--no-shrink": "" if options.shrink else "yes",
            "--seed": str(options.seed),
            "--device": options.on_gpu,
        }
        head = new_head(CaseHead, decides, case=case_digest(case))
        super().__init__(VERDICTS, folder, head, self._blank(folder), write)
        self.ended: dict[Key, AttemptEnded] = {}
        for line in self.kept(AttemptEnded):
            self.ended[line.key] = line

    @property
    def replay(self) -> Replay:
        return self.document

    def begin_attempt(self, key: Key, facts: PlayFacts) -> None:
        """Write down that it is made."""
        number, what, asked = facts.number, facts.what, facts.requests
        self.journal.append(
            AttemptBegan(**key.fields, number=number, what=what, requests=asked)
        )

    def end_attempt(
        self, key: Key, seen: Observation, deadlines: Deadlines | None = None
    ) -> AttemptEnded:
        """Write down what it showed. Raises UsageError: it ended before."""
        measured = {} if deadlines is None else asdict(deadlines)
        line = AttemptEnded(
            **key.fields, number=seen.play.number, seen=seen, **measured
        )
        self.ended[key] = self.journal.append(line)
        return self.ended[key]

    def attempted(self, facts: Iterable[PlayFacts], *, kept_s: float = 0.0) -> None:
        """Another attempt is known. ``kept_s``: seconds of it that an earlier call
        spent."""
        self.replay.plays = [play for play in facts if play.state]
        self.replay.kept_s += kept_s
        if not self.replay.start_mode:
            note_server(self.replay, sorted(self.folder.glob(f"{PLAYS_DIR}/*")))
        self.write()

    def grew(self, finding: Finding) -> None:
        """A finding has more to say."""
        others = [f for f in self.replay.findings if f.id != finding.id]
        self.replay.findings = sorted([*others, finding], key=lambda f: int(f.id[1:]))
        self.write()

    def _blank(self, folder: Path) -> Replay:
        options, case = self.options, self.case
        resume = options.command_line(out=None, resume=folder)
        return Replay(
            **begun("replay", options.command_line(), resume),
            resume=resume,
            origin=case.origin,
            server=case.server,
            requests=len(case.operations),
            images=len(case.images),
            time=options.time,
            seed=options.seed,
            host=host_facts(),
            fidelity=Fidelity.GPU if options.on_gpu else Fidelity.CPU,
            budget=options.budget,
        )


def note_server(document: Replay | Fuzz, folders: Iterable[Path]) -> None:
    """How the server was set up, by the first incident of a start that is in one of
    them; of a later server, what stood in there."""
    there = {stand_in.name for stand_in in document.stand_ins}
    for folder in folders:
        try:
            incident = Incident.model_validate_json(
                (folder / INCIDENT_FILE).read_bytes()
            )
        except (OSError, ValidationError):
            continue

        engine = incident.engine
        if not document.start_mode:
            document.settings, document.wheel = engine.settings, engine.wheel
            document.packages, document.start_mode = engine.packages, engine.start_mode
            document.fidelity, document.stand_ins = (
                incident.fidelity,
                incident.stand_ins,
            )
            document.host = incident.host
        elif more := [
            stand_in for stand_in in incident.stand_ins if stand_in.name not in there
        ]:
            document.stand_ins, document.fidelity = (
                document.stand_ins + more,
                incident.fidelity,
            )

        return
