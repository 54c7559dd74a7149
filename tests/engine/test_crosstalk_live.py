"""Cross-talk on a real minivllm: by its own fault, and without it."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine
from mmrepro.runs.play.options import PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.scenarios.borrowed_faults import PAD_RANGE
from mmrepro.search.oracle.comparison import compare_with_reference
from mmrepro.search.oracle.crosstalk import crosstalk
from mmrepro.search.oracle.reference import reference_case
from mmrepro.traffic.case.model import (
    Case,
    Image,
    Message,
    Noise,
    Operation,
    Part,
    ServerWanted,
)
from mmrepro.traffic.case.sending import Played
from mmrepro.traffic.pictures import noise

pytestmark = pytest.mark.engine
SIZE = (84, 84)


def colliding() -> tuple[int, int]:
    """Seeds of two pictures that minivllm's fault takes for one."""
    seen: dict[int, int] = {}
    for seed in count():
        pad = int(noise("", seed, SIZE).sent().sha256, 16) % PAD_RANGE
        if pad in seen:
            return seen[pad], seed
        seen[pad] = seed
    raise AssertionError


def case_of(*faults: str) -> Case:
    seeds = dict(zip("ab", colliding(), strict=True)) | {"c": 10**6}
    images: dict[str, Image] = {
        name: Noise(seed=s, size=SIZE) for name, s in seeds.items()
    }
    operations = [
        Operation(
            id=f"r{name}",
            after=["running<=0"],
            messages=[
                Message(
                    role="user", content=[Part(image=name), Part(text="What is it?")]
                )
            ],
            parameters={"temperature": 0, "max_tokens": 16, "ignore_eos": True},
        )
        for name in images
    ]
    args = [word for fault in faults for word in ("--fault", fault)]
    server = ServerWanted(engine="minivllm", release="0.1", model="qwen3", args=args)
    return Case(server=server, images=images, operations=operations)


class Attempts:
    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.player = Player(case_of().server, folder=folder / "player")

    def __call__(self, case: Case) -> Played:
        self.count += 1
        folder = self.folder / f"play-{self.count}"
        return self.player.play(case, None, PlayOptions(look="none"), folder)


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attempts]:
    plays = Attempts(tmp_path_factory.mktemp("crosstalk"))
    with plays.player:
        yield plays


def test_a_collision_is_cross_talk(plays: Attempts) -> None:
    case = case_of("pad-value-key")
    alone = plays(reference_case(case, get_engine("minivllm")))
    wrong = compare_with_reference(case, plays(case), alone)
    assert [(s.finding_class, s.operations) for s in wrong.sightings] == [
        (FindingClass.CROSS_TALK, ["rb"])
    ]
    assert "rb got the answer to ra" in wrong.sightings[0].said
    control = crosstalk(case, ["rb"], plays)
    assert [(s.finding_class, s.operations) for s in control.sightings] == [
        (FindingClass.CROSS_TALK, ["rb"])
    ]


def test_without_the_fault_there_is_none(plays: Attempts) -> None:
    case = case_of()
    alone = plays(reference_case(case, get_engine("minivllm")))
    compared = compare_with_reference(case, plays(case), alone)
    assert compared.sightings == []
    assert compared.counted == {"answers compared: same": 3}
    assert crosstalk(case, ["rb"], plays).sightings == []
