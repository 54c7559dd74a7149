"""A MADE UP fuzzing session: no engine was run, nothing here happened."""

from datetime import timedelta
from typing import Any

from made_up_replay import BEGAN, HOST, SERVER, finding, unconfirmed
from mmrepro.base.records import Fidelity, Moment, Setting
from mmrepro.failure.documents.replay import (
    Episode,
    Finding,
    Found,
    Fuzz,
    Learnt,
    SeenOnce,
)


def found(
    number: int = 1, episode: int = 3, one: Finding | None = None, **more: Any
) -> Found:
    told = {
        "id": f"F{number}",
        "episode": episode,
        "after_s": 95.25,
        "replay": f"e{episode:04}",
        "folder": f"e{episode:04}/f{number}",
        "finding": one or finding(id=f"f{number}", folder=f"f{number}"),
    }
    return Found(**{**told, **more})


def fuzz(*findings: Found, **more: Any) -> Fuzz:
    told: dict[str, Any] = {
        "mmrepro_version": "1.0",
        "id": "fuzz-1",
        "created": BEGAN,
        "finished": Moment(wall=BEGAN.wall + timedelta(seconds=900), mono=1900.0),
        "state": "complete",
        "command": "mmrepro fuzz vllm --release 0.23.0 --seed 7",
        "resume": "mmrepro fuzz vllm --resume fuzzings/r",
        "server": SERVER,
        "profile": "steady",
        "seed": 7,
        "budget_s": 1200.0,
        "elapsed_s": 725.0,
        "source": "night.har",
        "host": HOST,
        "fidelity": Fidelity.CPU,
        "settings": [Setting(name="--enforce-eager", value="", why="no graph capture")],
        "start_mode": "warm",
        "deadline_s": 6.0,
        "learnt": [
            Learnt(name="context", tokens=2048, source="the refusal of episode 0"),
            Learnt(name="block", tokens=16, source="its log"),
        ],
        "episodes": [
            Episode(
                number=0,
                kind="learning",
                requests=6,
                state="ended",
                new=31,
                seconds=11.0,
            ),
            Episode(
                number=3,
                kind="mixed",
                origin="episode 1",
                switches=["images", "leave"],
                requests=24,
                state="hung",
                answers={"200": 20, "400": 3, "stuck": 1},
                buckets=["vllm/hang/loop > popitem"],
                new=4,
                seconds=31.0,
                pursued="e0003",
            ),
        ],
        "features": {"log line": 41, "answer": 12},
        "found": list(findings),
        "starts": 44,
        "pursuing_s": 300.0,
        "counted": {"near-tie": 2},
        "unseen": ["whether memory grows: too few requests"],
        "limits": ["A tiny random-weight model was served"],
    }
    return Fuzz(**{**told, **more})


def once() -> SeenOnce:
    return SeenOnce(episode=5, sighting=unconfirmed())
