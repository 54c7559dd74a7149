"""Real engines say scripts byte for byte: whole, streamed, and cut by max_tokens.

The scripts are drawn by hypothesis; one server says all of them, each after its own
trigger. How many are asked is bounded by time: the number is printed."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from live_server import serving
from mmrepro.engines.features import features
from mmrepro.engines.models.script_file import ScriptedAnswer, Scripts
from mmrepro.engines.models.scripted import Script, text_of, trigger_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPTS = int(os.environ.get("MMREPRO_TEST_SCRIPTS", "200"))
ASKED_S = float(os.environ.get("MMREPRO_TEST_SCRIPTS_S", "60"))
ENGINES = {
    "vllm-0.11.0": ("vllm", "0.11.0"),
    "vllm-0.23.0": ("vllm", "0.23.0"),
    "vllm-0.33.0": ("vllm", "0.33.0"),
    "sglang-0.5.23": ("sglang", "0.5.23"),
    "lmdeploy-0.18.0": ("lmdeploy", "0.18.0"),
    "vllm-0.33.0-runner-v2": ("vllm", "0.33.0", "runner-v2"),
    "vllm-0.23.0-front-rust": ("vllm", "0.23.0", "front-rust"),
    "vllm-0.33.0-front-rust": ("vllm", "0.33.0", "front-rust"),
}
"""Engines, releases, and a feature that their server has."""
TELLS_ODDS = ("vllm", "sglang")
"""LMDeploy refuses logprobs without an option of its own."""
AT_ONCE = 32
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]")


def split_bytes(character: str) -> list[str]:
    """A character that comes in several tokens."""
    return [f"<0x{byte:02X}>" for byte in character.encode()]


WORDS = st.one_of(
    st.sampled_from(
        [*TAGS, "\n", " ", '{"a": ', "}", "\\u00", "fc", "<tool", "_call>"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\0⟦⟧"), min_size=1),
)
PIECES = st.lists(
    st.one_of(
        WORDS.map(lambda word: [word]), st.sampled_from("éü€💡").map(split_bytes)
    ),
    min_size=1,
    max_size=20,
).map(lambda parts: [piece for part in parts for piece in part])


def drawn(count: int) -> list[list[str]]:
    found: list[list[str]] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(PIECES)
    def collect(pieces: list[str]) -> None:
        found.append(pieces)

    collect()
    return found


def posted(url: str, path: str, body: dict[str, Any]) -> Any:
    data = json.dumps({"model": "tiny", **body}).encode()
    request = urllib.request.Request(
        url + path, data, {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=600)


def whole(url: str, path: str, body: dict[str, Any]) -> Any:
    with posted(url, path, body) as answer:
        return json.loads(answer.read())["choices"][0]


def streamed(url: str, path: str, body: dict[str, Any]) -> Iterator[Any]:
    with posted(url, path, {**body, "stream": True}) as answer:
        for line in answer:
            text = line.decode().removeprefix("data: ").strip()
            if text and text != "[DONE]":
                yield from json.loads(text)["choices"]


def held_against(
    script: Script, shared: tuple[str, ...], url: str, *, odds: bool
) -> None:
    """Ask for a script whole, streamed and cut, and compare."""
    tokens, path = script.tokens(shared), "/v1/completions"
    body = {
        "prompt": f"say it{trigger_of(script.name)}",
        # vLLM 0.11 looks at the length before it looks at the end.
        "max_tokens": len(tokens) + 2,
        "skip_special_tokens": False,
        "temperature": 0,
    }
    if odds:
        body["logprobs"] = 1
    answer = whole(url, path, body)
    assert said(answer["text"]) == script.text, script
    assert answer["finish_reason"] == "stop"
    if odds:
        likeliest = answer["logprobs"]["token_logprobs"]
        assert len(likeliest) >= len(tokens)
        # The other tokens together have e^-20 or so, so sampling takes none of them.
        assert min(likeliest) > -1e-3, likeliest

    sampled = {**body, "temperature": 1}
    parts = [part["text"] for part in streamed(url, path, sampled)]
    assert said("".join(parts)) == script.text, script

    half = max(1, len(tokens) // 2)
    begun = text_of(tokens[:half])
    if begun.endswith("\ufffd"):
        return  # half a character: some engines show it, LMDeploy then shows nothing
    answer = whole(url, path, {**body, "max_tokens": half})
    assert answer["text"] == begun, script


@pytest.mark.parametrize("name", ENGINES)
def test_scripts_are_said_byte_for_byte(name: str, tmp_path: Path) -> None:
    engine, release, *feature = ENGINES[name]
    answers = []
    for number, pieces in enumerate(drawn(SCRIPTS)):
        answers.append(ScriptedAnswer(name=f"s{number}", pieces=pieces))
    scripts = Scripts(script=answers)
    model, shared = scripts.model(), scripts.shared
    wrong: list[str] = []
    env = features(engine)[feature[0]].env if feature else {}
    with serving(engine, release, model, tmp_path, env=env) as server:
        began = time.monotonic()

        def ask(script: Script) -> bool:
            if time.monotonic() - began > ASKED_S:
                return False
            try:
                held_against(script, shared, server.url, odds=engine in TELLS_ODDS)
            except AssertionError as error:
                wrong.append(f"{script.name}: {error}")
            return True

        with ThreadPoolExecutor(AT_ONCE) as pool:
            asked = sum(pool.map(ask, model.scripts))
        took = time.monotonic() - began
    count = f"{asked} of {len(answers)} scripts asked in {took:.1f} s"
    print(f"{name}: {count}, {len(wrong)} wrong")
    assert asked
    assert not wrong, wrong[:5]


def said(text: str) -> str:
    """An answer without the token that ends it, which some engines show."""
    return text.removesuffix("<|im_end|>")
