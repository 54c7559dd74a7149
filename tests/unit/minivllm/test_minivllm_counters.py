"""What the engine says of itself, so that a scenario can see whether its trigger
arrived."""

from typing import cast

import pytest
from mmrepro.reproducers.minivllm.caches import ImageCache
from mmrepro.reproducers.minivllm.config import EngineConfig
from mmrepro.reproducers.minivllm.paper import paper_engine
from mmrepro.reproducers.minivllm.sequence import Image
from mmrepro.reproducers.minivllm.service import Service

FAULTS = (frozenset[str](), frozenset({"reused-mask", "kv-budget"}))


def image(number: int, tokens: int = 4) -> Image:
    return Image.of(b"%d" % number, 1, tokens)


def test_evictions_are_counted_when_they_are_asked_for() -> None:
    cache = ImageCache(8)
    counts = []
    for number in (1, 2, 2, 3, 4):
        cache.put(image(number))
        counts.append(cache.evictions)
    assert counts == [0, 0, 0, 1, 2]
    cache.put(image(5, 8))
    assert cache.evictions == 4


def test_a_ghost_s_turn_is_counted_though_nothing_goes() -> None:
    cache = ImageCache(8, frozenset({"ghost-key-lru"}))
    cache.touch(image(1).digest)
    cache.put(image(2))
    cache.pop_oldest()
    assert (cache.evictions, cache.size) == (1, 4)


def ahead(
    prompts: list[tuple[int, int]], *, scheduling: bool = True, batched: int = 6
) -> int:
    """Steps prepared ahead that an image is in, of prompts of text ids and
    embeddings."""
    engine = paper_engine(
        EngineConfig(
            block_size=2,
            max_batched_tokens=batched,
            async_scheduling=scheduling,
            num_blocks=99,
        )
    )
    made = [
        engine.add([1] * text, [image(number, rows)] if rows else [], max_tokens=1)
        for number, (text, rows) in enumerate(prompts)
    ]
    engine.generate(made)
    return engine.counts["image_steps_ahead"]


@pytest.mark.parametrize(
    ("prompts", "more", "count"),
    [
        (
            [(10, 4), (10, 4)],
            {},
            1,
        ),  # the second image begins behind the first one's text
        ([(10, 4), (10, 4)], {"scheduling": False}, 0),
        ([(10, 4), (10, 4)], {"batched": 99}, 0),  # all in one step
        ([(10, 4)], {}, 0),  # its later chunks hold text alone
        ([(10, 9)], {}, 1),  # its image goes on in the second chunk
        ([(20, 0), (10, 4)], {}, 0),  # a step of text reads no mask
        ([(20, 0)], {}, 0),
        ([(10, 9), (10, 9)], {}, 3),  # while the first one's last step samples, too
    ],
)
def test_steps_prepared_ahead_are_counted_where_an_image_is_in_them(
    prompts: list[tuple[int, int]], more: dict[str, int], count: int
) -> None:
    assert ahead(prompts, **more) == count


@pytest.mark.parametrize("faults", FAULTS)
def test_what_the_cache_was_configured_as_is_told_beside_what_it_has(
    faults: frozenset[str],
) -> None:
    engine = paper_engine(EngineConfig(num_blocks=81, faults=faults, mm_cache_tokens=4))
    service = Service(engine)
    try:
        for number in (1, 2, 3):
            engine.images.put(image(number))
        service.sent.put(image(1))  # the front's own cache is not asked
        engine.counts["image_steps_ahead"] = 7
        lines = (
            line for line in service.metrics().splitlines() if not line.startswith("#")
        )
        values = {
            name: float(value) for name, value in (line.split(" ") for line in lines)
        }
    finally:
        service.stop()
    told = {name.partition(":")[2]: value for name, value in values.items()}
    assert told["kv_cache_blocks"] == (8 if faults else 80)
    assert told["kv_cache_blocks_configured"] == 80
    assert told["mm_cache_evictions_total"] == 2
    assert told["image_steps_ahead_total"] == 7
    assert cast("int", engine.images.evictions) == 2


@pytest.mark.parametrize("scheduling", [False, True])
def test_a_gpu_is_given_its_step_before_the_next_one_is_prepared(
    scheduling: bool,
) -> None:
    """Else no mask that it has still to read could be written to."""
    engine = paper_engine(
        EngineConfig(
            block_size=2,
            max_batched_tokens=6,
            async_scheduling=scheduling,
            num_blocks=99,
        )
    )
    runner = engine.runner
    told: list[str] = []
    begin, build, run = runner.begin, runner.builder.build, runner.run
    runner.begin = lambda batch: told.append("begin") or begin(batch)  # type: ignore[func-returns-value]
    runner.builder.build = lambda step: told.append("prepare") or build(step)  # type: ignore[func-returns-value]
    runner.run = lambda batch: told.append("run") or run(batch)  # type: ignore[func-returns-value]
    engine.generate([engine.add([1] * 7, [image(1, 4)], max_tokens=1)])
    ahead = ["prepare", "begin", "prepare", "run", "begin", "run"]
    assert told == (ahead if scheduling else ["prepare", "begin", "run"] * 2)
