"""A fake player: fake engines behind the interface of the real one, and a fake
judge."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fake_plays import SERVER, Answers, fake_seen
from mmrepro.base.records import Fidelity, FindingClass, Moment
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.events import Handler
from mmrepro.campaign.provisions import Provisions
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import LocalPlaces
from mmrepro.engines import get_engine
from mmrepro.failure.documents.replay import Replay, Sighting
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.play.players import Players
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.replay.attempts import CaseResult
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.session import Replaying
from mmrepro.search.replay.store import STUCK, Observation
from mmrepro.traffic.case.files import case_digest, write_case
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import Evidence, ImageSent, RequestRecord

NOW = Moment.now()
NO_START = "the server"
"""In a fake engine's answers: it does not start."""


class FakePlayer:
    """Asks ``engine``; before each play ``before`` is called with its number."""

    start_mode = "fake"
    fidelity = Fidelity.TEACHING_ENGINE

    def __init__(
        self,
        engine: Answers,
        before: Callable[[int, Case], None] = lambda _number, _case: None,
    ) -> None:
        self.engine, self.before = engine, before
        self.plays = 0
        self.calibrated = 0
        self.cases: list[str] = []

    def __exit__(self, *_: object) -> None:
        return

    def cancel(self) -> None:
        return

    def calibrate(self) -> Deadlines:
        self.calibrated += 1
        return Deadlines(6.0, 2.4)

    def play(
        self,
        case: Case,
        contents: Path | None,
        options: object,
        folder: Path,
        **_: object,
    ) -> Played:
        self.plays += 1
        self.before(self.plays, case)
        folder.mkdir(parents=True)
        self.cases.append(case_digest(case))
        return played(case, self.engine(case))


def played(case: Case, answers: dict[str, str]) -> Played:
    if NO_START in answers:
        unsent = [op.id for op in case.operations]
        return Played(state=PlayState.START_FAILED, unsent=unsent)
    stuck = [op for op, answer in answers.items() if answer == STUCK]
    return Played(
        state=PlayState.HUNG if stuck else PlayState.ENDED,
        evidence=Evidence(
            requests=[
                record(n, case, op, answers[op.id])
                for n, op in enumerate(case.operations)
            ]
        ),
        stuck=stuck,
        deadline_s=6.0,
        seconds=1.0,
    )


def record(number: int, case: Case, op: Any, answer: str) -> RequestRecord:
    sent = Moment(wall=NOW.wall, mono=NOW.mono + number)
    images = []
    for name in op.images:
        width, height = getattr(case.images[name], "size", (28, 28))
        images.append(
            ImageSent(sha256="0" * 64, width=width, height=height, bytes=1, name=name)
        )
    return RequestRecord(
        id=number,
        phase="trigger",
        label=op.id,
        sent=sent,
        images=images,
        status=None if answer == STUCK else int(answer),
        latency_s=6.0 if answer == STUCK else 0.1,
        deadline_s=6.0,
        timed_out=answer == STUCK,
        error="" if answer in ("200", STUCK) else f"it is {answer}",
    )


def fake_judge(case: Case, played: Played, *, engine: object) -> OracleReport:
    if played.state is PlayState.START_FAILED:
        kind = FindingClass.START_FAILURE
        return OracleReport(
            sightings=[Sighting(finding_class=kind, bucket="fake start", said="no")]
        )
    answers = {}
    for op in case.operations:
        request = played.record(op.id)
        assert request is not None
        answers[op.id] = STUCK if op.id in played.stuck else str(request.status)
    return OracleReport(sightings=fake_seen(case, answers).sightings)


def unnamed(
    bucket: str, seen: Observation, case: Case, result: CaseResult
) -> Observation:
    """Nobody knows it."""
    return seen


class FlakyEngine:
    """Fails as ``engine`` does in some of the plays, and never in the others; which
    ones follows from the seed and the order in which a case is asked for."""

    def __init__(self, engine: Answers, chance: float, seed: int) -> None:
        self.engine, self.chance = engine, chance
        self.random = random.Random(seed)

    def __call__(self, case: Case) -> dict[str, str]:
        if self.random.random() < self.chance:
            return self.engine(case)
        return {op.id: "200" for op in case.operations}


class Fakes:
    """What stands in for engines and oracles, mixed into a policy.

    ``dir`` is the folder, as tests have it; ``execute`` runs the campaign on fake
    servers."""

    player: FakePlayer
    jobs = 1
    judge: Any = staticmethod(fake_judge)
    name: Any = staticmethod(unnamed)

    @property
    def dir(self) -> Path:
        return self.folder  # type: ignore[attr-defined,no-any-return]

    def judged(self, case: Case, played: Played) -> OracleReport:
        engine = get_engine(case.server.engine)
        return self.judge(case, played, engine=engine)  # type: ignore[no-any-return]

    def named(
        self, bucket: str, seen: Observation, case: Case, result: CaseResult
    ) -> Observation:
        if self.blind:  # type: ignore[attr-defined]
            return super().named(bucket, seen, case, result)  # type: ignore[misc,no-any-return]
        return self.name(bucket, seen, case, result)  # type: ignore[no-any-return]

    def local_places(self) -> LocalPlaces:
        options, players = TrialOptions(), Players(make=lambda *_: self.player)
        return LocalPlaces(
            Trials(options), Provisions(options), self.jobs, players=players
        )

    def execute(self, handlers: Sequence[Handler] = ()) -> Any:
        return Campaign(self, self.local_places(), handlers).execute()  # type: ignore[arg-type]


class FakedReplaying(Fakes, Replaying):
    """A replay on fake servers."""


def replaying(
    case: Case,
    folder: Path,
    player: FakePlayer,
    *,
    resume: bool = False,
    **options: Any,
) -> tuple[FakedReplaying, list[str]]:
    """A replay on a fake player; and each state of its document, as JSON."""
    file = folder / "traffic" / "case.json"
    if not file.exists():
        write_case(case, file.parent)
    place: dict[str, Any] = {"resume" if resume else "out": folder / "replay"}
    options = {"server": SERVER, **place, **options}
    states: list[str] = []

    def write(replay: Replay, where: Path) -> None:
        assert where == (folder / "replay").resolve()
        Replay.model_validate_json(replay.model_dump_json())
        states.append(replay.model_dump_json())

    name, judge = options.pop("name", unnamed), options.pop("judge", fake_judge)
    jobs = options.pop("jobs", 1)
    session = FakedReplaying(ReplayCommand(file=file, **options), write=write)
    session.player, session.name, session.judge, session.jobs = (
        player,
        name,
        judge,
        jobs,
    )
    return session, states
