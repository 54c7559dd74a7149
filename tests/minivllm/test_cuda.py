"""minivllm on a GPU: equal to transformers, by graphs and without, and every fault of
it.

``python -m pytest tests/minivllm/test_cuda.py`` from the repository's folder, with any
Python that has torch, transformers and pytest; mmrepro need not be installed. What a
CPU can show runs there too. A device-side assert ends what CUDA can do in a process, so
these are in children."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from minivllm.config import FAULTS, EngineConfig
from minivllm.sequence import Image
from small import MODEL, engine, reference, transformers_model

HERE = Path(__file__).parent
CUDA = torch.cuda.is_available()
on_cuda = pytest.mark.skipif(not CUDA, reason="torch finds no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=on_cuda)]
either = pytest.mark.parametrize("device", DEVICES)

ODD = Image.of(b"odd", 2, 3)


def requests(count: int, seed: int) -> list[tuple[list[int], list[Image], int]]:
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        ids = [draw.randrange(MODEL.vocab_size) for _ in range(draw.randint(1, 30))]
        shapes = [
            (draw.randint(1, 3), draw.randint(1, 3)) for _ in range(draw.randint(0, 2))
        ]
        images = [Image.of(b"%d" % draw.randrange(4), *shape) for shape in shapes]
        found.append((ids, images, draw.randint(1, 12)))
    return found


# ------------------------------------------------------------------ equality


@either
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_batches_are_transformers_own(
    device: str, seed: int, prefix_caching: bool
) -> None:
    """Text and images, in chunks, decoded together; transformers runs on the same
    device."""
    config = EngineConfig(
        num_blocks=120,
        block_size=(1, 3, 4, 16, 7, 8)[seed],
        max_model_len=64,
        max_num_seqs=6,
        max_batched_tokens=(64, 7, 16, 5, 33, 12)[seed],
        prefix_caching=prefix_caching,
        async_scheduling=seed % 2 == 1,
        vision="fake",
        check_contract="raise",
        device=device,
    )
    batch = requests(7, seed)
    made = engine(config)
    seqs = [made.add(ids, images, max_tokens=n) for ids, images, n in batch]
    found = made.generate(seqs)
    assert [seq.error for seq in seqs] == [""] * len(seqs)
    assert found == [reference(*request, device) for request in batch]
    assert bool(made.runner.graphs) == (device == "cuda")


@on_cuda
def test_float32_is_float32() -> None:
    """Equality of tokens needs it: no TF32, and no bfloat16 unless it is asked for."""
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"
    made = engine(EngineConfig(vision="fake", device="cuda"))
    assert made.runner.cache.data.dtype is torch.float32
    assert made.runner.cache.data.is_cuda


@either
def test_logits_are_close_to_transformers(device: str) -> None:
    ids = list(range(20))
    made = engine(EngineConfig(vision="fake", block_size=4, device=device))
    seen = []
    original = made.runner.model.logits
    made.runner.model.logits = lambda hidden: seen.append(original(hidden)) or seen[-1]
    made.generate([made.add(ids, max_tokens=4)])
    tokens = torch.tensor([[*ids, *reference(ids, [], 3, device)]], device=device)
    with torch.inference_mode():
        expected = transformers_model(device)(tokens).logits[0, -4:]
    torch.testing.assert_close(torch.cat(seen), expected, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------ decode graphs


@on_cuda
@pytest.mark.parametrize("count", range(1, 9))
def test_a_replayed_graph_gives_what_the_model_gives(count: int) -> None:
    """Of every batch size, those that are padded too, and the cache after it."""
    config = EngineConfig(vision="fake", block_size=4, max_model_len=64, device="cuda")

    def outcome(graphs: bool) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
        made = engine(config)
        runner = made.runner
        assert sorted(runner.graphs) == [1, 2, 4, 8]
        if not graphs:
            runner.graphs = {}
        seen: list[torch.Tensor] = []
        replays: list[int] = []
        replay, decode = runner._replay, runner.decode
        runner._replay = lambda *given: replays.append(len(given[0])) or replay(*given)
        runner.decode = lambda batch: seen.append(decode(batch).clone()) or seen[-1]
        prompts = [[(7 * n + i) % 64 for i in range(3 + n)] for n in range(count)]
        tokens = made.generate([made.add(ids, max_tokens=6) for ids in prompts])
        assert bool(replays) is graphs
        blocks = runner.cache.data[:, :, config.block_size :]  # but for the null block
        return tokens, torch.cat(seen), blocks

    outcomes = outcome(True), outcome(False)
    (tokens, hidden, cache), (eager_tokens, eager_hidden, eager_cache) = outcomes
    assert tokens == eager_tokens
    torch.testing.assert_close(hidden, eager_hidden, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache, eager_cache, rtol=1e-5, atol=1e-5)


@on_cuda
def test_more_sequences_than_the_largest_graph_run_without_one() -> None:
    made = engine(
        EngineConfig(vision="fake", max_num_seqs=3, max_model_len=64, device="cuda")
    )
    assert sorted(made.runner.graphs) == [1, 2, 3]
    del made.runner.graphs[3]
    seqs = [made.add([n, 2, 3], max_tokens=5) for n in range(3)]
    assert made.generate(seqs) == [
        reference([n, 2, 3], [], 5, "cuda") for n in range(3)
    ]


@on_cuda
def test_captures_are_fast_and_small() -> None:
    engine(EngineConfig(vision="fake", device="cuda"))  # the first one brings CUDA up
    torch.cuda.synchronize()
    before, began = torch.cuda.memory_reserved(), time.monotonic()
    made = engine(EngineConfig(vision="fake", device="cuda"))
    took, grown = time.monotonic() - began, torch.cuda.memory_reserved() - before
    print(f"four graphs in {took:.2f} s, {grown / 2**20:.0f} MiB")
    assert made.runner.graphs
    assert took < 10
    assert grown < 2**30


# ------------------------------------------------------------------ the faults

SAID = {
    "warmup-sequence": "ImageRunner expects ImageSequence, got Sequence",
    "warmup-order": "unexpected keyword argument 'inputs_embeds'",
    "broken-module": "SyntaxError",
    "image-path": "assets/warm-up.png",
    "slot-mapping": "Slot mapping size must match number of tokens",
}


@either
@pytest.mark.parametrize("fault", SAID)
def test_the_note_s_symptoms(device: str, fault: str) -> None:
    made = engine(EngineConfig(vision="fake", faults=frozenset({fault}), device=device))
    image = made.add([1, 2, 3], [ODD], max_tokens=4)
    made.generate([image])
    assert SAID[fault] in image.error
    again = made.add([1, 2, 3], max_tokens=4)
    assert made.generate([again]) == [reference([1, 2, 3], [], 4, device)], (
        "text goes on"
    )


@on_cuda
def test_the_note_s_own_pin_memory_call_says_what_the_note_says() -> None:
    fault = frozenset({"pinned-placeholder"})
    made = engine(EngineConfig(vision="fake", faults=fault, device="cuda"))
    image = made.add([1, 2, 3], [ODD], max_tokens=4)
    made.generate([image])
    assert image.error == "RuntimeError: Only dense CPU tensors can be pinned"


@on_cuda
def test_pinning_what_is_on_the_device_already_says_it_in_other_words() -> None:
    with pytest.raises(
        RuntimeError, match=r"^cannot pin '.+' only dense CPU tensors"
    ) as caught:
        torch.zeros(3, dtype=torch.int64, device="cuda").pin_memory()
    print(f"pin_memory() of a CUDA tensor: {caught.value}")


@either
@pytest.mark.parametrize("fault", FAULTS)
def test_text_alone_is_never_touched(device: str, fault: str) -> None:
    made = engine(EngineConfig(vision="fake", faults=frozenset({fault}), device=device))
    seqs = [made.add([n, 2, 3], max_tokens=5) for n in range(3)]
    assert made.generate(seqs) == [
        reference([n, 2, 3], [], 5, device) for n in range(3)
    ]


@either
def test_a_digest_s_few_bits_give_another_picture_s_answer(device: str) -> None:
    from minivllm.config import PAD_RANGE

    seen: dict[int, Image] = {}
    for number in range(10_000):
        image = Image.of(b"picture %d" % number, 2, 2)
        pad = int(image.digest, 16) % PAD_RANGE
        if pad in seen:
            break
        seen[pad] = image
    one = seen[pad]
    config = EngineConfig(vision="fake", block_size=1, device=device)
    right = reference([1], [image], 6, device)
    assert right != reference([1], [one], 6, device)
    for faults, wanted in ((frozenset({"pad-value-key"}), False), (frozenset(), True)):
        made = engine(replace(config, faults=faults))
        made.generate([made.add([1], [one], max_tokens=6)])
        assert (
            made.generate([made.add([1], [image], max_tokens=6)]) == [right]
        ) is wanted


@either
def test_a_tenth_of_the_cache_ends_the_loop(device: str) -> None:
    made = engine(
        EngineConfig(
            num_blocks=21, faults=frozenset({"kv-budget"}), vision="fake", device=device
        )
    )
    with pytest.raises(AssertionError, match="nothing is left to preempt"):
        made.generate([made.add([1] * 20, max_tokens=30)])


# ------------------------------------------------------------------ the reused mask

RACE = """
import json, sys, time
sys.path[:0] = json.loads(sys.argv[1])
given = json.loads(sys.argv[2])
import torch
from minivllm.config import EngineConfig
from minivllm.sequence import Image
from small import MODEL, engine, reference
device = given["device"]
made = engine(EngineConfig(
    vision="fake", max_batched_tokens=8, max_model_len=64, async_scheduling=True,
    prefix_caching=False, vision_ms=given["vision_ms"], check_contract=given["contract"],
    faults=frozenset(given["faults"]), device=device,
))
# Whatever comes up with the first image shall not come up in the race.
warm = made.add([1, 2, 3], [Image.of(b"warm", 1, 2)], max_tokens=1)
made.generate([warm])
answers, wanted, errors = [], [], []
for ids, images in given["batch"]:
    images = [Image.of(name.encode(), rows, cols) for name, rows, cols in images]
    wanted.append(reference(ids, images, 6))
    answers.append(made.add(ids, images, max_tokens=6))
if given["slow_host"]:  # the host comes so much later that the device has been there
    build = made.runner.builder.build
    made.runner.builder.build = lambda step: (time.sleep(0.3), build(step))[1]
found = made.generate(answers)
print(json.dumps({
    "errors": [seq.error for seq in answers], "found": found, "wanted": wanted,
    "ahead": made.counts["image_steps_ahead"],
}), flush=True)
"""

MORE = [
    (list(range(7)), [("a", 1, 2)]),
    ([1, 2, 3], [("b", 2, 4)]),
]
"""A step of two rows, then one of seven: the end of the first text, the second
image."""
SILENT = [([1, 2, 3], [("c", 3, 4)])]
"""One image in two steps: the second marks fewer rows."""


def raced(
    device: str, batch: list[Any], faults: tuple[str, ...], **more: Any
) -> dict[str, Any]:
    given = {
        **{"device": device, "batch": batch, "faults": faults, "contract": "off"},
        **{"vision_ms": 50, "slow_host": False},
    } | more
    folders = json.dumps([str(HERE), str(HERE.parents[1] / "reproducers")])
    command = [sys.executable, "-c", RACE, folders, json.dumps(given)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False
    )
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = {"errors": ["no answer"]}
    return found | {"stderr": done.stderr, "exit_code": done.returncode}


FAULT = ("reused-mask",)
CPU_SAYS = "Number of elements of source < number of ones in mask"


@either
def test_too_many_rows_end_in_masked_scatter(device: str) -> None:
    found = raced(device, MORE, FAULT)
    told = " ".join(found["errors"])
    if device == "cpu":
        assert CPU_SAYS in told
        return
    assert "device-side assert triggered" in told, found
    assert "masked_scatter_size_check" in found["stderr"]
    assert "`totalElements <= srcSize` failed" in found["stderr"]


@either
def test_too_few_rows_are_wrong_rows_and_no_error(device: str) -> None:
    found = raced(device, SILENT, FAULT)
    assert found["errors"] == [""]
    assert found["found"] != found["wanted"]


@either
@pytest.mark.parametrize("batch", [MORE, SILENT], ids=["more", "silent"])
def test_its_own_buffer_puts_it_right(device: str, batch: list[Any]) -> None:
    found = raced(device, batch, ())
    assert found["errors"] == [""] * len(batch), found["stderr"]
    assert found["found"] == found["wanted"]
    assert found["ahead"] > 0, "a step was prepared while another one had not run"


@on_cuda
@pytest.mark.parametrize(
    "late", [{"vision_ms": 0, "slow_host": True}], ids=["slow host"]
)
def test_a_device_that_keeps_up_is_not_raced(late: dict[str, Any]) -> None:
    """It is a race: nothing but the time decides. (On a CPU the order is fixed, and it
    fails.)"""
    found = raced("cuda", SILENT, FAULT, **late)
    assert found["errors"] == [""]
    assert found["found"] == found["wanted"]


@either
def test_the_contract_names_what_the_device_read(device: str) -> None:
    for batch in (MORE, SILENT):
        found = raced(device, batch, FAULT, contract="raise")
        assert "ContractError: mask-" in " ".join(found["errors"]), found
        assert "device-side assert" not in found["stderr"]


# ------------------------------------------------------------------ before a fork

PRELOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
def lazy_init(): raise AssertionError("CUDA was initialised")
torch._C._cuda_init = torch.cuda._lazy_init = lazy_init
import minivllm.service, minivllm.runner, minivllm.paper, minivllm.images, minivllm.fake_vision
assert not torch.cuda.is_initialized()
"""


def test_what_a_warm_parent_imports_does_not_touch_cuda() -> None:
    """A fork of a process that has used CUDA cannot."""
    folder = str(HERE.parents[1] / "reproducers")
    command = [sys.executable, "-c", PRELOAD, folder]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
