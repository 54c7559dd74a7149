"""Sessions on fake engines."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_player import FakePlayer, Fakes, fake_judge, unnamed
from mmrepro.failure.documents.replay import EPISODES_FILE, Fuzz
from mmrepro.search.fuzz.fuzzing import Fuzzing
from mmrepro.search.fuzz.options import FuzzCommand, FuzzProfile, under
from mmrepro.search.replay.store import STUCK
from mmrepro.traffic.case.model import Case, ServerWanted

Answers = Callable[[Case], dict[str, str]]
VLLM = ServerWanted(engine="vllm", release="0.23.0")


def server(
    engine: str = "vllm",
    profile: FuzzProfile = FuzzProfile.PRESSURE,
    release: str = "0.1",
) -> ServerWanted:
    usual = "qwen3-text" if profile is FuzzProfile.MODERN else "qwen2-vl"
    model = {"minivllm": "qwen3", "lmdeploy": "text"}.get(engine, usual)
    wanted = ServerWanted(engine=engine, release=release, model=model)
    return under(profile, wanted, length_told=False)


def write_replay(replay: Any, where: Path) -> None:
    (where / "replay.json").write_text(replay.model_dump_json())


class FakedFuzzing(Fakes, Fuzzing):
    """A session on fake servers."""


def fuzzing(
    folder: Path, player: FakePlayer, *, resume: bool = False, **options: Any
) -> tuple[FakedFuzzing, list[str]]:
    """A session on a fake player; and each state of its document, as JSON."""
    place: dict[str, Any] = {"resume" if resume else "out": folder / "fuzz"}
    options = {"server": server(), "budget_s": 1200.0, **place, **options}
    states: list[str] = []

    def write(fuzz: Fuzz, where: Path) -> None:
        assert where == (folder / "fuzz").resolve()
        states.append(fuzz.model_dump_json())
        Fuzz.model_validate_json(states[-1])

    name, judge = options.pop("name", unnamed), options.pop("judge", fake_judge)
    jobs = options.pop("jobs", 1)
    session = FakedFuzzing(
        FuzzCommand(**options), write=write, write_replay=write_replay
    )
    session.player, session.name, session.judge, session.jobs = (
        player,
        name,
        judge,
        jobs,
    )
    return session, states


def well(case: Case) -> dict[str, str]:
    return {op.id: "200" for op in case.operations}


def hangs_on(
    wrong: Callable[[Any], bool], later: Callable[[Any], bool] | None = None
) -> Answers:
    """All is well until a request is ``wrong``, and from then on, or from a ``later``
    one on, nothing is answered."""

    def engine(case: Case) -> dict[str, str]:
        answers, armed, hung = {}, False, False
        for op in case.operations:
            armed = armed or wrong(op)
            hung = hung or (armed and (later is None or later(op)))
            answers[op.id] = STUCK if hung else "200"
        return answers

    return engine


def leaves(op: Any) -> bool:
    return bool(op.leave)


def several(op: Any) -> bool:
    return len(op.images) > 1


def third(op: Any) -> bool:
    return bool(op.id == "r3")


def episodes(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (folder / "fuzz" / EPISODES_FILE).read_text().splitlines()
    ]


def ended_once(folder: Path) -> bool:
    ended = Counter(
        e["episode"]["number"] for e in episodes(folder) if e["kind"] == "ended"
    )
    pursued = Counter(e["number"] for e in episodes(folder) if e["kind"] == "pursued")
    finished = Counter(e["of"] for e in episodes(folder) if e["kind"] == "finished")
    return {*ended.values(), *pursued.values(), *finished.values()} <= {1}


class Clock:
    """Time that passes with each play: ``time.monotonic`` for a session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, play_s: float = 10.0) -> None:
        self.now, self.play_s = 1000.0, play_s
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def __call__(self, number: int, case: Case) -> None:
        self.now += self.play_s


def fails_on(wrong: Callable[[Any], bool]) -> Answers:
    def engine(case: Case) -> dict[str, str]:
        return {op.id: "500" if wrong(op) else "200" for op in case.operations}

    return engine


class Killed(BaseException):
    pass
