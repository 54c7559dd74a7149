"""The oracles on real engines: nothing against a healthy one, the right class for each
fault."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine
from mmrepro.runs.play.options import PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.search.oracle.judge import judge
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.traffic.case.model import (
    Case,
    Collision,
    Image,
    Message,
    Noise,
    Operation,
    Part,
    Relayout,
    ServerWanted,
    Tiles,
)
from mmrepro.traffic.pictures import noise

pytestmark = pytest.mark.engine

WHOLE, ODD = (224, 224), (84, 56)
NOTE = (
    "warmup-sequence",
    "warmup-order",
    "broken-module",
    "image-path",
    "pinned-placeholder",
    "slot-mapping",
)
ON_SMALL_STEPS = (
    "--max-batched-tokens 96 --num-blocks 600 --no-prefix-caching --vision-ms 40"
)
PAD_RANGE = 1 << 16
"""That of reproducers/minivllm/config.py."""


def asked(
    id: str,
    text: str = "describe",
    *images: str,
    after: Sequence[str] = (),
    **more: object,
) -> Operation:
    stream = bool(more.pop("stream", False))
    parts = [*(Part(image=name) for name in images), Part(text=text)]
    return Operation(
        id=id,
        after=list(after),
        messages=[Message(role="user", content=parts)],
        parameters={"max_tokens": 4, "temperature": 0, **more},
        stream=stream,
    )


def one_after_another(operations: Sequence[Operation]) -> list[Operation]:
    return [op.model_copy(update={"after": ["running<=0"]}) for op in operations]


def served(args: str, **more: object) -> ServerWanted:
    fields = {
        "engine": "minivllm",
        "release": "0.1",
        "model": "qwen3",
        "args": args.split(),
    }
    return ServerWanted.model_validate(fields | more)


def of_note(fault: str) -> tuple[str, dict[str, Image], list[Operation]]:
    images: dict[str, Image] = {
        "X": Noise(seed=1, size=WHOLE),
        "Y": Noise(seed=2, size=ODD),
    }
    operations = [
        asked("t1"),
        asked("x", "hello", "X"),
        asked(
            "y", "hello", "Y"
        ),  # with that text its last block is fuller than the text's alone
        asked("again", "hello", "X", stream=True),
        asked("t2"),
    ]
    return "--no-prefix-caching", images, one_after_another(operations)


def ghost_key(fault: str) -> tuple[str, dict[str, Image], list[Operation]]:
    images: dict[str, Image] = {"X": Noise(seed=1, size=WHOLE)}
    images |= {f"f{i}": Noise(seed=10 + i, size=WHOLE) for i in range(6)}
    operations = [asked("long", "y" * 4000, "X"), asked("again", "describe", "X")]
    operations += [asked(f"fill{i}", "describe", f"f{i}") for i in range(6)]
    return "--mm-cache-tokens 130", images, one_after_another(operations)


def kv_budget(fault: str) -> tuple[str, dict[str, Image], list[Operation]]:
    operations = [
        asked("long", "x" * 300),
        asked("grows", max_tokens=300, ignore_eos=True),
        asked("after"),
    ]
    return "--num-blocks 81 --no-prefix-caching", {}, one_after_another(operations)


def pad_value_key(fault: str) -> tuple[str, dict[str, Image], list[Operation]]:
    seen: dict[int, int] = {}
    for seed in count(5000):
        pad = int(noise("", seed, WHOLE).sent().sha256, 16) % PAD_RANGE
        if pad in seen:
            break
        seen[pad] = seed
    images: dict[str, Image] = {
        "A": Noise(seed=seen[pad], size=WHOLE),
        "B": Noise(seed=seed, size=WHOLE),
        "C": Noise(seed=4, size=WHOLE),
    }
    operations = [
        asked(name.lower(), "describe", name, max_tokens=16) for name in images
    ]
    return "", images, one_after_another(operations)


def reused_mask(fault: str) -> tuple[str, dict[str, Image], list[Operation]]:
    images: dict[str, Image] = {f"i{i}": Noise(seed=i, size=WHOLE) for i in range(1, 5)}
    return ON_SMALL_STEPS, images, [asked(f"r-{n}", "x" * 1820, n) for n in images]


ERROR, HANG = FindingClass.SERVER_ERROR, FindingClass.HANG
FAULTS = {
    **{name: (of_note, {ERROR}) for name in NOTE},
    "ghost-key-lru": (ghost_key, {ERROR, HANG}),
    "kv-budget": (kv_budget, {FindingClass.FAILING}),
    "pad-value-key": (pad_value_key, {FindingClass.CACHE_BOUND}),
    "reused-mask": (reused_mask, {ERROR}),
}


@pytest.fixture(scope="module")
def minivllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with Player(
        served("--vision fake"), folder=tmp_path_factory.mktemp("minivllm")
    ) as player:
        yield player


def played(player: Player, case: Case, folder: Path) -> OracleReport:
    seen = player.play(case, None, PlayOptions(), folder)
    return judge(case, seen, engine=get_engine(case.server.engine))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_and_its_fix_is_not(
    minivllm: Player, tmp_path: Path, fault: str
) -> None:
    traffic, expected = FAULTS[fault]
    more, images, operations = traffic(fault)
    broken = f"--vision fake --block-size 16 --fault {fault} {more}"
    case = Case(server=served(broken), images=images, operations=operations)
    found = played(minivllm, case, tmp_path / "broken")
    assert {s.finding_class for s in found.sightings} >= expected, found
    fixed = case.model_copy(update={"server": served(f"{broken} --fix {fault}")})
    healthy = played(minivllm, fixed, tmp_path / "fixed")
    assert healthy.sightings == []


def mixed(rounds: int) -> tuple[dict[str, Image], list[Operation]]:
    """Eight at a time: pictures again and again, streams, long texts, clients that
    leave.

    Each picture is first asked for alone: two requests that bring the same new one at
    once may overtake each other in vLLM, and that is a failure
    (docs/found/vllm-0.23.0-overtaken)."""
    images: dict[str, Image] = {
        f"n{i}": Noise(seed=i, size=(56 + 28 * i, 56)) for i in range(4)
    }
    images |= {"w": Tiles(seed=7, rows=2, columns=4)}
    operations = one_after_another(
        [asked(f"new-{name}", "hello", name) for name in images]
    )
    for i in range(rounds):
        names = sorted(images)[i % 5 :][: i % 3]
        text = ("z" * 300 if i % 4 else "") + "hello" + "!" * (i % 6)
        op = asked(
            f"r{i}",
            text,
            *names,
            after=["running<=7"],
            stream=i % 2 == 0,
            max_tokens=1 + 5 * (i % 4),
        )
        gone = {"leave": "tokens>=2", "parameters": {**op.parameters, "max_tokens": 40}}
        operations.append(op.model_copy(update=gone) if i % 10 == 4 else op)
    operations.append(asked("too-long", "y" * 3000))
    return images, operations


@pytest.mark.parametrize(
    ("engine", "release", "model", "args"),
    [
        ("minivllm", "0.1", "qwen3", ""),
        pytest.param(
            "vllm",
            "0.23.0",
            "qwen2-vl",
            "--enable-prompt-tokens-details",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nothing_is_held_against_a_healthy_engine(
    tmp_path: Path, engine: str, release: str, model: str, args: str
) -> None:
    images, operations = mixed(60)
    server = served(args, engine=engine, release=release, model=model)
    case = Case(server=server, images=images, operations=operations)
    with Player(server, folder=tmp_path / "player") as player:
        found = played(player, case, tmp_path / "play")
    assert found.sightings == []
    assert found.counted["requests refused"] == 1
    assert not any("cache" in said or "count" in said for said in found.unseen), (
        found.unseen
    )


@pytest.mark.slow
def test_both_failures_of_sglangs_hashes_are_seen_by_what_its_cache_gave(
    tmp_path: Path,
) -> None:
    images: dict[str, Image] = {
        "A": Collision(member=0),
        "B": Collision(member=1),
        "W": Tiles(seed=7, rows=2, columns=4),
        "T": Relayout(of="W", rows=4, columns=2),
        "other": Tiles(seed=8, rows=4, columns=2),
    }
    operations = one_after_another([asked(f"ask-{n}", "describe", n) for n in images])
    server = served("", engine="sglang", release="0.5.6", model="qwen2-vl")
    case = Case(server=server, images=images, operations=operations)
    with Player(server, folder=tmp_path / "player") as player:
        found = played(player, case, tmp_path / "play")
    assert [(s.bucket, s.operations) for s in found.sightings] == [
        ("cache-bound/picture", ["ask-B", "ask-T"])
    ]
