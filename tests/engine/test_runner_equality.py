"""Model Runner V2 answers greedily as V1 does, up to a near-tie: six tiny models, one
of each kind, on a real vLLM.

On a CPU V2's kernels run in Triton's interpreter: it computes the same numbers, and
takes longer."""

from __future__ import annotations

import base64
import io
import json
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from live_server import serving
from mmrepro.engines import get_engine
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.features import options_of
from mmrepro.engines.models.tiny import TINY
from PIL import Image

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RELEASE = "0.33.0"
PROMPTS = ([*b"what is this"], [*b"The quick brown fox"], [5, 270, 7])
TOKENS = 12
NOISE = {"float32": 0.05, "bfloat16": 0.2}
"""Nats by which the likeliest token must lead where two answers part."""


@dataclass(frozen=True)
class Kind:
    """``served``: what is asked, where it is no model of the server's own name."""

    model: str
    options: tuple[str, ...] = ()
    served: str = SERVED_MODEL
    picture: bool = False
    dtype: str = "float32"


KINDS = {
    "dense": Kind("qwen3-text"),
    "experts": Kind("qwen3-moe"),
    # A gated delta net of float32 is refused on a CPU.
    "hybrid": Kind("qwen3.5", dtype="bfloat16"),
    "mamba": Kind("granite-hybrid"),
    "vision": Kind("qwen2-vl", picture=True),
    "lora": Kind("qwen3-text", ("{feature:lora}",), served="lora-a"),
    "draft": Kind("qwen3-text", ("{feature:draft}",)),
}


@dataclass(frozen=True)
class Answer:
    """``leads``: by how much each token is likelier than the next one."""

    tokens: tuple[str, ...]
    leads: tuple[float, ...]


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read())


def picture() -> str:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((56, 84)).convert("RGB").save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def requests_of(kind: Kind) -> list[dict[str, Any]]:
    greedy = {
        "model": kind.served,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
        "return_tokens_as_token_ids": True,
    }
    requests: list[dict[str, Any]] = []
    for prompt in PROMPTS:
        text = "".join(map(chr, filter(lambda code: code < 128, prompt)))
        content: Any = text
        if kind.picture:
            image = {"type": "image_url", "image_url": {"url": picture()}}
            content = [image, {"type": "text", "text": text}]
        messages = [{"role": "user", "content": content}]
        requests.append({**greedy, "messages": messages})
    return requests


def answers_of(kind: Kind, runner: str, folder: Path) -> tuple[list[Answer], str]:
    """What a server with that model runner answers, and the runner that its log
    shows."""
    asked = (f"--dtype={kind.dtype}", *kind.options, f"{{feature:runner-{runner}}}")
    args, env = options_of("vllm", asked, {})
    given: list[Answer] = []
    model = TINY[kind.model]
    with serving(
        "vllm",
        RELEASE,
        model,
        folder,
        *args,
        max_model_len=512,
        env={**env, "VLLM_LOGGING_LEVEL": "DEBUG"},
        within_s=400,
    ) as server:
        for body in requests_of(kind):
            choice = post(server.url, "/v1/chat/completions", body)["choices"][0]
            tokens, leads = [], []
            for token in choice["logprobs"]["content"]:
                first, second = token["top_logprobs"][:2]
                tokens.append(token["token"])
                leads.append(first["logprob"] - second["logprob"])
            given.append(Answer(tuple(tokens), tuple(leads)))
        log = server.log.read_text(errors="replace")
    shown = ""
    for name, mark in get_engine("vllm").runner_marks.items():
        if not shown and re.search(mark, log):
            shown = name
    return given, shown


def first_difference(one: Answer, other: Answer, noise: float) -> str:
    """Where two answers part, if not by a near-tie; "": they do not."""
    for place, pair in enumerate(zip(one.tokens, other.tokens, strict=True)):
        if pair[0] == pair[1]:
            continue
        lead = min(one.leads[place], other.leads[place])
        words = (
            f"token {place + 1}: {pair[0]} against {pair[1]}, led by {lead:.4f} nats"
        )
        return "" if lead < noise else words
    return ""


@pytest.mark.parametrize("name", KINDS)
def test_both_model_runners_answer_alike(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    old, first = answers_of(kind, "v1", tmp_path / "v1")
    new, second = answers_of(kind, "v2", tmp_path / "v2")
    assert (first, second) == ("Model Runner V1", "Model Runner V2")
    differences: list[str] = []
    for one, other in zip(old, new, strict=True):
        if difference := first_difference(one, other, NOISE[kind.dtype]):
            differences.append(difference)
    assert not differences, differences
