"""Sizes and lengths of time: what is printed is read again."""

import math

import pytest
from hypothesis import given, strategies as st
from mmrepro.base import units
from mmrepro.base.errors import UsageError

LONG = st.floats(min_value=1e-6, max_value=units.MOST_SECONDS)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90", 90),
        ("90s", 90),
        ("45m", 2700),
        ("45 min", 2700),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2 min 05 s", 125),
        ("3 h 12 min", 11_520),
        ("31 ms", 0.031),
        ("2W", 1_209_600),
    ],
)
def test_times(text: str, wanted: float) -> None:
    assert units.parse_duration(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "0", "m", "4x", "5m3", "-4m", "1h m", "99999999d", "9" * 400, "1h 3"]
)
def test_no_times(text: str) -> None:
    with pytest.raises(UsageError, match="is not a length of time"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("40G", 40 << 30),
        ("40 GiB", 40 << 30),
        ("512m", 512 << 20),
        ("7", 7),
        ("60M", 60 << 20),
        ("60MB", 60_000_000),
        ("1.5g", 3 << 29),
        ("80GB", 80 * 10**9),
        ("1.9B", 1),
        ("1t", 1 << 40),
    ],
)
def test_sizes(text: str, wanted: int) -> None:
    assert units.parse_size(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-3M", "3 parsecs", "G", "4X", "40 bibles", "inf", "1e9MiB", "9" * 400],
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        units.parse_size(text)


def test_sizes_out_of_range() -> None:
    for text, told in (
        ("0", "--disk '0' is less than 1 B."),
        (
            "9000000000G",
            "--disk '9000000000G' is more than 1048576 TiB. Is its unit right?",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            units.parse_size(text, "--disk")
        assert caught.value.message == told
    with pytest.raises(
        UsageError, match=r"'6784' is less than 1 MiB\. Is its unit missing\?"
    ):
        units.parse_size("6784", least=units.MIB)


def test_lengths_of_time_are_for_people() -> None:
    known = {
        0: "0 s",
        0.0004: "<1 ms",
        0.031: "31 ms",
        0.5: "0.50 s",
        4.24: "4.2 s",
        125: "2 min 05 s",
        11_520: "3 h 12 min",
        3 * 86400 + 7300: "3 d 2 h",
        math.nan: "?",
        -2: "-2 s",
        60: "60 s",
        1.96: "2.0 s",
    }
    assert {seconds: units.duration(seconds) for seconds in known} == known


def test_sizes_are_for_people() -> None:
    known = {
        0: "0 B",
        2048: "2 KiB",
        5.8 * 2**30: "5.8 GiB",
        1 << 30: "1 GiB",
        35_700_000: "34 MiB",
        -3 << 20: "-3 MiB",
        1 << 50: "1024 TiB",
    }
    assert {count: units.size(count) for count in known} == known
    assert units.size(1_800_000_000, 2) == "1.68 GiB"


def test_options_are_short() -> None:
    known = {
        600: "10m",
        5400: "1h30m",
        90: "1m30s",
        2.5: "2.5s",
        86400.0: "1d",
        1e-05: "0.00001s",
    }
    assert {seconds: units.exact_duration(seconds) for seconds in known} == known
    assert [units.exact_size(n) for n in (0, 7, 40 << 30, 1536 << 20)] == [
        "0",
        "7",
        "40GiB",
        "1536MiB",
    ]


@given(st.one_of(LONG, st.integers(1, int(units.MOST_SECONDS))))
def test_an_option_reads_the_same_time_again(seconds: float) -> None:
    assert units.parse_duration(units.exact_duration(seconds)) == seconds


@given(st.floats(min_value=0.001, max_value=units.MOST_SECONDS))
def test_a_printed_time_is_read_again(seconds: float) -> None:
    printed = units.duration(seconds)
    step = {"ms": 0.001, "s": 1.0, "min": 60, "h": 3600}[printed.split()[-1]]
    assert units.parse_duration(printed) == pytest.approx(seconds, abs=step)


@given(st.integers(1, units.MOST_BYTES))
def test_an_option_reads_the_same_size_again(count: int) -> None:
    assert units.parse_size(units.exact_size(count)) == count


@given(st.integers(1, units.MOST_BYTES))
def test_a_printed_size_is_read_again(count: int) -> None:
    assert units.parse_size(units.size(count, 2)) == pytest.approx(
        count, rel=0.006, abs=1
    )
