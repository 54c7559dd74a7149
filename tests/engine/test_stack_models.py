"""Tiny models of today's stack on a real vLLM, held against its environment's
transformers."""

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from live_server import serving
from mmrepro.base.machine.files import cache_root
from mmrepro.engines import get_engine
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.models import MODELS_DIR, TINY, write_hub

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RELEASE = "0.32.0"
PROMPTS = [
    [*b"what is this"],
    [*b"The quick brown fox jumps over the lazy dog"],
    [5, 270, 7],
]
TOKENS = 16
NOISE = {False: 0.01, True: 0.5}
"""Nats by which the likeliest token must lead where two answers part; True: in
bfloat16, which transformers computes in float32."""
LEAST = 30
"""Of 48 tokens, those that must be equal before answers part at near-ties."""

REFERENCE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
torch.set_num_threads(1)
folder, prompts, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
scores = "Sequence" in json.load(open(folder + "/config.json"))["architectures"][0]
kind = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
model = kind.from_pretrained(folder, dtype=torch.float32).eval()
found = []
for prompt in prompts:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        if scores:
            found.append(model(ids).logits[0].tolist())
            continue
        answer = []
        for _ in range(count):
            odds = model(torch.tensor([prompt + [t for t, _ in answer]])).logits[0, -1]
            two = odds.log_softmax(-1).topk(2)
            answer.append([two.indices[0].item(), (two.values[0] - two.values[1]).item()])
        found.append(answer)
print("ANSWER " + json.dumps(found))
"""


def transformers_answers(name: str) -> list[Any]:
    """Tokens and by how much each leads; of a scorer its number."""
    environment = ensure(get_engine("vllm").environment_spec(RELEASE, "cpu"))
    folder = TINY[name].write(cache_root() / MODELS_DIR)
    asked = [str(folder), json.dumps(PROMPTS), str(TOKENS)]
    done = subprocess.run(
        [str(environment.python), "-c", REFERENCE, *asked],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER "))
    return json.loads(line.removeprefix("ANSWER "))


def post(url: str, path: str, **body: Any) -> Any:
    data = json.dumps({"model": "tiny", **body}).encode()
    request = urllib.request.Request(
        url + path, data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    "name", ["qwen3-text", "qwen3-moe", "qwen3.5", "qwen3-next", "granite-hybrid"]
)
def test_it_answers_as_transformers_does(tmp_path: Path, name: str) -> None:
    model = TINY[name]
    args = [] if model.bfloat16_only else ["--dtype=float32"]
    with serving("vllm", RELEASE, model, tmp_path, *args, max_model_len=512) as server:
        asked = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        given = [
            post(
                server.url,
                "/v1/completions",
                prompt=prompt,
                return_token_ids=True,
                **asked,
            )
            for prompt in PROMPTS
        ]
    equal = 0
    for answer, right in zip(given, transformers_answers(name), strict=True):
        for token, (expected, lead) in zip(
            answer["choices"][0]["token_ids"], right, strict=True
        ):
            if token != expected:
                assert lead < NOISE[model.bfloat16_only], f"after {equal} tokens"
                break
            equal += 1
    assert equal >= LEAST or model.bfloat16_only, equal
    assert equal >= len(PROMPTS), equal


def test_a_scorer_gives_the_number_of_transformers(tmp_path: Path) -> None:
    args = ["--runner=pooling", "--dtype=float32"]
    with serving(
        "vllm", RELEASE, TINY["scorer"], tmp_path, *args, max_model_len=512
    ) as server:
        asked = {"use_activation": False}
        given = [
            post(server.url, "/classify", input=[p], **asked)["data"][0]
            for p in PROMPTS
        ]
    for one, (expected,) in zip(given, transformers_answers("scorer"), strict=True):
        assert one["probs"] == pytest.approx([expected], abs=0.01)


def test_an_embedding_model_tells_texts_apart(tmp_path: Path) -> None:
    args = ["--runner=pooling", "--dtype=float32"]
    with serving(
        "vllm", RELEASE, TINY["qwen3-text"], tmp_path, *args, max_model_len=512
    ) as server:
        asked = ["hello", "hello", "something else"]
        found = [
            one["embedding"]
            for one in post(server.url, "/v1/embeddings", input=asked)["data"]
        ]
    assert len(found[0]) == 64
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    assert sum(a * b for a, b in zip(found[0], found[2], strict=True)) < 0.95


FROM_A_HUB = """
from transformers import AutoConfig, AutoTokenizer
from huggingface_hub import snapshot_download
name = "facebook/opt-125m"
print(AutoConfig.from_pretrained(name).model_type, snapshot_download(name))
assert AutoTokenizer.from_pretrained(name)("hi").input_ids
"""


def test_a_stand_in_is_found_under_a_name_of_the_hub(tmp_path: Path) -> None:
    write_hub(["facebook/opt-125m"], tmp_path, cache_root() / MODELS_DIR)
    environment = ensure(get_engine("vllm").environment_spec(RELEASE, "cpu"))
    done = subprocess.run(
        [environment.python, "-c", FROM_A_HUB],
        env={
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"llama {tmp_path}/models--facebook--opt-125m/")
