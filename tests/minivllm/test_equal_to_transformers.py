"""Greedy output is transformers', in float32, whatever the sizes and the company."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from minivllm.config import EngineConfig
from minivllm.sequence import Image
from small import MODEL, engine, model, reference, transformers_model

IMAGES = st.builds(
    lambda seed, rows, cols: Image.of(b"%d" % seed, rows, cols),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(1, 3),
)
REQUESTS = st.tuples(
    st.lists(st.integers(0, MODEL.vocab_size - 1), min_size=1, max_size=20),
    st.lists(IMAGES, max_size=2),
    st.integers(1, 7),
)
BATCHES = st.lists(REQUESTS, min_size=1, max_size=5)
CONFIGS = st.builds(
    EngineConfig,
    num_blocks=st.integers(2, 40),
    block_size=st.sampled_from([1, 2, 3, 4, 8, 16]),
    max_model_len=st.just(64),
    max_num_seqs=st.integers(1, 4),
    max_batched_tokens=st.sampled_from([1, 3, 7, 16, 64]),
    prefix_caching=st.booleans(),
    mm_cache_tokens=st.sampled_from([0, 9, 1000]),
    async_scheduling=st.booleans(),
    vision=st.just("fake"),
    check_contract=st.just("raise"),
)


@settings(max_examples=40, deadline=None)
@given(CONFIGS, BATCHES)
def test_any_batch_with_any_sizes(config: EngineConfig, batch) -> None:
    longest = max(
        len(ids) + sum(i.tokens for i in images) + n for ids, images, n in batch
    )
    blocks = max(config.num_blocks, -(-longest // config.block_size) + 1)
    made = engine(replace(config, num_blocks=blocks))
    seqs = [made.add(ids, images, max_tokens=n) for ids, images, n in batch]
    found = made.generate(seqs)
    assert [seq.error for seq in seqs] == [""] * len(seqs)
    assert found == [reference(*request) for request in batch]
    assert not made.busy
    assert not made.scheduler.blocks.users


def test_logits_are_close_not_only_their_order() -> None:
    """Hidden states of one prefill against transformers', to float32's rounding."""
    ids = list(range(20))
    made = engine(EngineConfig(vision="fake", block_size=4))
    seen = []
    original = made.runner.model.logits
    made.runner.model.logits = lambda hidden: seen.append(original(hidden)) or seen[-1]
    made.generate([made.add(ids, max_tokens=1)])
    with torch.inference_mode():
        expected = transformers_model()(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(seen[0][0], expected, rtol=1e-4, atol=1e-4)


def test_the_answers_depend_on_the_image() -> None:
    """Else equality with transformers would say nothing of images."""
    answers = set()
    for seed in range(6):
        image = Image.of(b"%d" % seed, 2, 3)
        made = engine(EngineConfig(vision="fake"))
        answers.add(
            tuple(made.generate([made.add([1, 2, 3], [image], max_tokens=6)])[0])
        )
    assert len(answers) > 3


def test_preemption_changes_nothing() -> None:
    batch = [([5] * 9, [Image.of(b"%d" % n, 1, 2)], 8) for n in range(3)]
    made = engine(
        EngineConfig(
            num_blocks=10,
            block_size=4,
            max_model_len=64,
            vision="fake",
            check_contract="raise",
        )
    )
    seqs = [made.add(ids, images, max_tokens=n) for ids, images, n in batch]
    assert made.generate(seqs) == [reference(*request) for request in batch]
    assert made.scheduler.preemptions > 0


BITS = """
import hashlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
blocked = json.loads(sys.argv[2])
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in blocked:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from minivllm.config import EngineConfig
from small import engine
made = engine(EngineConfig(vision="fake", max_batched_tokens=16, multimodal=not blocked))
if not blocked:  # the same engine has served an image
    from minivllm.sequence import Image
    made.generate([made.add([1], [Image.of(b"x", 2, 3)], max_tokens=3)])
digest, original = hashlib.sha256(), made.runner.model.logits
def logits(hidden):
    found = original(hidden)
    digest.update(found.numpy().tobytes())
    return found
made.runner.model.logits = logits
seqs = [made.add([(n * 7 + i) % 64 for i in range(5 + 9 * n)], max_tokens=8) for n in range(4)]
tokens = made.generate(seqs)
loaded = [name for name in sys.modules if name.startswith("minivllm")]
print(json.dumps({"tokens": tokens, "bits": digest.hexdigest(), "loaded": loaded}))
"""


def test_text_is_bit_identical_with_and_without_the_multimodal_code() -> None:
    absent = [f"minivllm.{name}" for name in ("images", "vision", "fake_vision")]

    def run(blocked: list[str]) -> dict[str, object]:
        folders = json.dumps(
            [sys.path[0], *[p for p in sys.path if "reproducers" in p]]
        )
        command = [sys.executable, "-c", BITS, folders, json.dumps(blocked)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with_code, without_code = run([]), run(absent)
    assert set(absent[:1]) <= set(with_code["loaded"])  # type: ignore[call-overload]
    assert not set(absent) & set(without_code["loaded"])  # type: ignore[call-overload]
    assert with_code["tokens"] == without_code["tokens"]
    assert with_code["bits"] == without_code["bits"]


@pytest.mark.parametrize("size", [1, 5])
def test_sampling_is_of_the_given_temperature(size: int) -> None:
    from minivllm.runner import sample

    torch.manual_seed(0)
    logits = torch.tensor([[0.0, 3.0, 1.0]] * size)
    assert sample(logits, [0.0] * size) == [1] * size
    drawn = [token for _ in range(400) for token in sample(logits, [1.0] * size)]
    share = drawn.count(1) / len(drawn)
    assert 0.78 < share < 0.91  # softmax gives 0.84


def test_the_model_is_shared_between_engines() -> None:
    """What these tests rely on: no engine changes the weights."""
    before = [w.clone() for w in model().parameters()]
    made = engine(EngineConfig(vision="fake"))
    made.generate([made.add([1], [Image.of(b"x", 1, 1)], max_tokens=2)])
    assert all(
        torch.equal(a, b) for a, b in zip(before, model().parameters(), strict=True)
    )
