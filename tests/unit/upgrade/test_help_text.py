"""Options read from help texts: of the engines' own, and of any parser that argparse
makes."""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.failure.documents.upgrade import OptionSeen
from mmrepro.reproducers import reproducer_path
from mmrepro.search.upgrade.help_text import read

HELPS = Path(__file__).parent / "helps"
WORD = st.from_regex(r"[a-z]{2,9}", fullmatch=True)
NAME = (
    st.lists(WORD, min_size=1, max_size=3)
    .map("-".join)
    .filter(lambda name: name != "help" and not name.startswith("no-"))
)
TEXT = st.lists(
    st.from_regex(r"[A-Za-z(][a-z'.:,-]{0,11}", fullmatch=True), max_size=12
)


def options_of(name: str) -> dict[str, OptionSeen]:
    found = read((HELPS / f"{name}.txt").read_text(encoding="utf-8"))
    return {one.name: one for one in found}


@pytest.mark.parametrize(
    ("file", "name", "default", "choices"),
    [
        ("vllm-0.24.0", "--dtype", "auto", 6),
        ("vllm-0.24.0", "--gpu-memory-utilization", "0.92", 0),
        ("vllm-0.24.0", "--allowed-origins", "['*']", 0),
        ("vllm-0.24.0", "--tokenizer-mode", "auto", 6),
        ("vllm-0.32.0", "--allowed-origins", "[]", 0),
        ("vllm-0.32.0", "--enable-scale-out", "False", 0),
        ("lmdeploy-0.18.0", "--log-level", "WARNING", 9),
        ("lmdeploy-0.18.0", "--tp", "1", 0),
        ("lmdeploy-0.18.0", "--ssl", "False", 0),
        ("sglang-0.5.23", "--model-path", None, 0),
        ("sglang-0.5.23", "--kv-cache-dtype", None, 8),
    ],
)
def test_the_engines_options(
    file: str, name: str, default: str | None, choices: int
) -> None:
    one = options_of(file)[name]
    assert (one.default, len(one.choices)) == (default, choices)


def test_all_spellings_of_an_option_are_one() -> None:
    vllm = options_of("vllm-0.24.0")
    assert vllm["--tensor-parallel-size"].aliases == ["-tp"]
    assert vllm["--enable-prefix-caching"].aliases == ["--no-enable-prefix-caching"]
    assert vllm["--enable-prefix-caching"].value == ""
    assert options_of("sglang-0.5.23")["--model-path"].aliases == ["--model"]


def test_a_text_of_several_lines_is_whole() -> None:
    text = options_of("vllm-0.24.0")["--dtype"].text
    assert text.startswith("Data type for model weights")
    assert text.endswith("FP32 precision.")


def test_options_in_an_example_behind_the_list_are_none() -> None:
    example = "  --a A  it\n\nWhen passing JSON:\n   --json-arg.key4+ value3\n  --b\n"
    assert [one.name for one in read("usage: x [--a A]\n\noptions:\n" + example)] == [
        "--a",
        "--b",
    ]


def test_the_own_engine_is_read_whole() -> None:
    """minivllm prints no defaults."""
    import sys

    with mock.patch.object(
        sys, "path", [str(reproducer_path("minivllm").parent), *sys.path]
    ):
        from minivllm import server
    made: list[argparse.ArgumentParser] = []
    with (
        mock.patch.object(
            argparse.ArgumentParser,
            "parse_args",
            lambda parser, _=None: made.append(parser),
        ),
    ):
        server.arguments([])
    names = {a.option_strings[0] for a in made[0]._actions} - {"-h"}
    found = read(made[0].format_help())
    assert {one.name for one in found} == names
    assert next(one for one in found if one.name == "--vision").choices == [
        "fake",
        "tower",
    ]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_what_argparse_prints_is_read_back(data: st.DataObject) -> None:
    """Any options, in any width of terminal and with any of the stock formatters."""
    form = data.draw(
        st.sampled_from(
            [argparse.HelpFormatter, argparse.ArgumentDefaultsHelpFormatter]
        )
    )
    parser = argparse.ArgumentParser(
        prog="server", formatter_class=form, description="A server."
    )
    group = parser.add_argument_group("More", "What else there is.")
    wanted: dict[str, tuple[list[str], str | None]] = {}
    for name in data.draw(st.lists(NAME, unique=True, max_size=6)):
        flag, text = f"--{name}", " ".join(data.draw(TEXT)).replace("%", "")
        text = text.replace("(default:", "").strip()
        where = data.draw(st.sampled_from([parser, group]))
        kind = data.draw(st.sampled_from(["switch", "value", "choices", "pair"]))
        default: object = None
        choices: list[str] = []
        if kind == "switch":
            default = False
            where.add_argument(flag, action="store_true", help=text or None)
        elif kind == "pair":
            default = data.draw(st.booleans())
            where.add_argument(
                flag,
                action=argparse.BooleanOptionalAction,
                default=default,
                help=text or None,
            )
        elif kind == "choices":
            choices = data.draw(st.lists(WORD, min_size=1, max_size=4, unique=True))
            default = choices[0]
            where.add_argument(
                flag, choices=choices, default=default, help=text or None
            )
        else:
            default = data.draw(st.integers(0, 10**6) | WORD)
            where.add_argument(flag, default=default, help=text or None)
        printed = form is argparse.ArgumentDefaultsHelpFormatter and bool(text)
        wanted[flag] = (choices, str(default) if printed else None)
    width = str(data.draw(st.sampled_from([40, 80, 200, 1000])))
    with mock.patch.dict("os.environ", {"COLUMNS": width}):
        found = read(parser.format_help())
    assert {one.name: (one.choices, one.default) for one in found} == wanted
