"""The birthday arithmetic, against exact fractions and against counting."""

import math
from fractions import Fraction
from itertools import product

import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.failure.documents.model import (
    collision_probability,
    cross_probability,
    images_for,
)


def exactly(images: int, space: int) -> Fraction:
    apart = Fraction(1)
    for i in range(images):
        apart *= Fraction(space - i, space) if i < space else 0
    return 1 - apart


def test_half_of_two_to_the_thirty() -> None:
    # The continuous approximation sqrt(2 m ln 2) is 38 581.4; counted out, 38 581
    # images are still a hair below one half (0.499988, by exact decimals) and 38 582
    # are the first above it.
    assert round(math.sqrt(2 * 2**30 * math.log(2))) == 38_581
    assert images_for(0.5, 30) == 38_582
    assert collision_probability(38_581, 30) == pytest.approx(
        0.4999884914170617, abs=1e-12
    )
    assert collision_probability(38_582, 30) == pytest.approx(
        0.5000064575087063, abs=1e-12
    )
    assert collision_probability(46_000, 30) == pytest.approx(0.6267, abs=1e-4)


def test_the_yardstick_and_64_bits() -> None:
    assert exactly(23, 365) > Fraction(1, 2) > exactly(22, 365)  # the classic
    assert images_for(0.5, 64) == 5_056_937_541


@given(st.integers(1, 12), st.integers(0, 200))
def test_as_exact_fractions_say(bits: int, images: int) -> None:
    wanted = float(exactly(images, 1 << bits))
    assert collision_probability(images, bits) == pytest.approx(
        wanted, rel=1e-11, abs=1e-15
    )


@examples(15)
@given(st.integers(14, 44), st.integers(2, 20_000))
def test_the_series_continues_the_product(bits: int, images: int) -> None:
    images = min(images, 1 << bits)
    direct = -math.expm1(math.fsum(math.log1p(-i / 2**bits) for i in range(1, images)))
    assert collision_probability(images, bits) == pytest.approx(
        direct, rel=1e-9, abs=1e-15
    )


@given(st.integers(1, 64), st.floats(1e-9, 1 - 1e-9))
def test_images_for_is_the_fewest(bits: int, probability: float) -> None:
    images = images_for(probability, bits)
    assert collision_probability(images, bits) >= probability - 1e-9
    if images > 1:
        assert collision_probability(images - 1, bits) < probability + 1e-9


@given(st.integers(1, 64), st.integers(0, 10**7), st.integers(0, 10**7))
def test_more_images_never_make_it_less_likely(bits: int, one: int, other: int) -> None:
    few, many = sorted((one, other))
    assert (
        0 <= collision_probability(few, bits) <= collision_probability(many, bits) <= 1
    )
    assert (
        cross_probability(few, many, bits)
        <= collision_probability(few + many, bits) + 1e-12
    )


def test_two_pools_counted_out() -> None:
    # All values of two pools of two images, of 2 bits each.
    hits = sum(bool({a, b} & {c, d}) for a, b, c, d in product(range(4), repeat=4))
    # cross_probability takes the first pool's values to differ: 0.438 against 0.391
    # here.
    assert cross_probability(2, 2, 2) == pytest.approx(1 - (1 - 2 / 4) ** 2)
    assert 0 < cross_probability(2, 2, 2) - hits / 256 < 2 / 4
    # Where values within a pool hardly meet, it is as good as exact.
    assert cross_probability(27_282, 27_282, 30) == pytest.approx(0.5, abs=1e-4)


def test_ends() -> None:
    assert images_for(1.0, 8) == 257
    assert images_for(0.0, 8) == 0
    assert collision_probability(257, 8) == 1
    assert collision_probability(0, 8) == collision_probability(1, 8) == 0
    assert cross_probability(0, 5, 8) == 0
    assert cross_probability(256, 1, 8) == 1
    assert collision_probability(1 << 40, 64) == pytest.approx(1 - math.exp(-(2**15)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: collision_probability(-1, 8),
        lambda: collision_probability(1, 0),
        lambda: images_for(1.5, 8),
        lambda: cross_probability(-1, 1, 8),
    ],
)
def test_nonsense_is_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        wrong()
