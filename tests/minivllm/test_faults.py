"""Each fault gives its symptom for its reason, and nothing else changes."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from minivllm.config import FAULTS, NOTE_FAULTS, EngineConfig
from minivllm.sequence import Image, ImageSequence
from small import engine, reference
from torch import Tensor
from torch.nn import functional

ODD = Image.of(b"odd", 2, 3)
WHOLE = Image.of(b"whole", 4, 4)

NOTE = {
    "warmup-sequence": (
        TypeError,
        "ImageRunner expects ImageSequence, got Sequence",
        "warm_up",
    ),
    "warmup-order": (
        TypeError,
        "unexpected keyword argument 'inputs_embeds'",
        "warm_up",
    ),
    "broken-module": (SyntaxError, "fake_vision.py", "load_vision"),
    "image-path": (FileNotFoundError, "assets/warm-up.png", "_warm_up_picture"),
    "pinned-placeholder": (
        RuntimeError,
        "only dense CPU tensors can be pinned",
        "_placeholder",
    ),
    "slot-mapping": (
        AssertionError,
        "Slot mapping size must match number of tokens",
        "store",
    ),
}


def failures(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What engines log from now on."""
    seen: list[BaseException] = []
    from minivllm import engine as module

    def exception(*_: object) -> None:
        import sys

        error = sys.exc_info()[1]
        assert error is not None
        seen.append(error)

    monkeypatch.setattr(module.log, "exception", exception)
    return seen


def test_the_note_s_six_are_all_here() -> None:
    assert tuple(NOTE) == NOTE_FAULTS


@pytest.mark.parametrize("fault", NOTE)
def test_the_note_s_symptom_for_the_note_s_reason(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, says, where = NOTE[fault]
    seen = failures(monkeypatch)
    made = engine(EngineConfig(vision="fake", faults=frozenset({fault})))
    text = made.add([1, 2, 3], max_tokens=4)
    assert made.generate([text]) == [reference([1, 2, 3], [], 4)]
    image = made.add([1, 2, 3], [ODD], max_tokens=4)
    made.generate([image])
    assert image.finish_reason == "error"
    assert says in image.error
    assert type(seen[0]) is kind
    assert where in [
        frame.name for frame in traceback.extract_tb(seen[0].__traceback__)
    ]
    again = made.add([1, 2, 3], max_tokens=4)
    assert made.generate([again]) == [reference([1, 2, 3], [], 4)], "text goes on"
    assert not made.scheduler.blocks.users, "nothing is left of the failed request"


@pytest.mark.parametrize("fault", NOTE)
def test_an_engine_with_images_from_the_start_ends_in_the_note_s_error(
    fault: str,
) -> None:
    """All but the slot mapping, whose warm-up is without it."""
    kind, says, _ = NOTE[fault]
    config = EngineConfig(
        vision="fake", images_at_start=True, faults=frozenset({fault})
    )
    if fault == "slot-mapping":
        engine(config)
        return
    with pytest.raises(kind, match=re.escape(says)):
        engine(config)


def test_the_configured_warm_up_image(tmp_path: Path) -> None:
    """The note's bug 4 by its own setting, without a fault: a path that does not exist,
    a file that is no picture, one that is, and one that is wide."""
    path = tmp_path / "image.ppm"

    def started() -> None:
        engine(EngineConfig(vision="fake", images_at_start=True, warm_up_image=path))

    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        started()
    path.write_bytes(b"no picture")
    with pytest.raises(OSError, match="cannot identify image file"):
        started()
    for width, height in ((28, 28), (140, 28)):
        path.write_bytes(
            b"P6 %d %d 255\n" % (width, height) + bytes(3 * width * height)
        )
        started()


def test_whole_blocks_hide_the_short_slot_mapping() -> None:
    made = engine(EngineConfig(vision="fake", faults=frozenset({"slot-mapping"})))
    image = made.add([1, 2, 3], [WHOLE], max_tokens=4)
    assert made.generate([image]) == [reference([1, 2, 3], [WHOLE], 4)]


@pytest.mark.parametrize("fault", FAULTS)
def test_text_alone_is_never_touched(fault: str) -> None:
    made = engine(EngineConfig(vision="fake", faults=frozenset({fault})))
    seqs = [made.add([n, 2, 3], max_tokens=5) for n in range(3)]
    assert made.generate(seqs) == [reference([n, 2, 3], [], 5) for n in range(3)]


def test_a_reused_mask_ends_in_masked_scatter_or_in_wrong_rows() -> None:
    config = EngineConfig(
        vision="fake",
        max_batched_tokens=8,
        async_scheduling=True,
        prefix_caching=False,
        faults=frozenset({"reused-mask"}),
    )
    made = engine(config)
    long = made.add(list(range(20)), [Image.of(b"a", 1, 2)], max_tokens=1)
    other = made.add([1, 2, 3], [Image.of(b"b", 2, 3)], max_tokens=1)
    made.generate([long, other])
    assert (
        "Number of elements of source < number of ones in mask"
        in long.error + other.error
    )
    silent = engine(config)
    seq = silent.add([1, 2, 3], [Image.of(b"c", 3, 4)], max_tokens=6)
    found = silent.generate([seq])[0]
    assert not seq.error
    assert found != reference([1, 2, 3], [Image.of(b"c", 3, 4)], 6), (
        "wrong rows, silently"
    )


def test_the_contract_names_the_mask_before_torch_does() -> None:
    made = engine(
        EngineConfig(
            vision="fake",
            max_batched_tokens=8,
            async_scheduling=True,
            check_contract="raise",
            faults=frozenset({"reused-mask"}),
        )
    )
    seq = made.add([1, 2, 3], [Image.of(b"c", 3, 4)], max_tokens=6)
    made.generate([seq])
    assert "ContractError: mask-rows: " in seq.error


@pytest.mark.parametrize("vision", ["fake", "tower"])
def test_embeddings_are_deterministic_and_tell_images_apart(vision: str) -> None:
    from minivllm.fake_vision import FakeVision
    from minivllm.images import VisionTower
    from small import MODEL

    def picture(seed: int, rows: int, cols: int) -> Image:
        size = (cols * 28, rows * 28)
        pixels = bytes((seed * 31 + i * i) % 256 for i in range(3 * size[0] * size[1]))
        return Image.of(b"P6 %d %d 255\n" % size + pixels, rows, cols)

    torch.manual_seed(3)
    made = FakeVision(MODEL) if vision == "fake" else VisionTower(MODEL).eval()
    one, same, other = (made.embed(picture(s, 2, 3)) for s in (1, 1, 2))
    assert one.shape == (6, MODEL.hidden_size)
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    assert made.embed(picture(1, 3, 2)).shape == (6, MODEL.hidden_size)


def test_merged_patches_are_those_of_one_place() -> None:
    """The first embedding sees the upper left 28 x 28 pixels and no others."""
    from minivllm.images import patches_of
    from small import MODEL

    factor = MODEL.vision.factor
    pixels = bytearray(3 * (2 * factor) * (3 * factor))
    for row in range(factor):
        start = 3 * row * 3 * factor
        pixels[start : start + 3 * factor] = b"\xff" * (3 * factor)
    image = Image.of(b"P6 %d %d 255\n" % (3 * factor, 2 * factor) + bytes(pixels), 2, 3)
    patches = patches_of(image, MODEL.vision)
    assert patches.shape == (24, 3 * MODEL.vision.patch**2)
    assert (patches[:4] == 1).all()
    assert (patches[4:] == -1).all()


def test_no_embeddings_at_all_is_the_text_itself() -> None:
    """T_vis = 0, the sequence that the note's warm-up uses: an ImageSequence without an
    image."""
    for faults in (frozenset(), frozenset({"slot-mapping"})):
        made = engine(
            EngineConfig(vision="fake", faults=faults, check_contract="raise")
        )
        size = made.config.block_size
        seq = ImageSequence(1, [1, 2, 3], size, 4, images=(), faults=faults)
        made.scheduler.add(seq)
        assert made.generate([seq]) == [reference([1, 2, 3], [], 4)]
        assert seq.num_vision == 0


def test_an_empty_answer_is_an_answer() -> None:
    """The note's "output may be empty": the model ends it at once, and nothing is
    wrong."""
    first = reference([1, 2, 3], [ODD], 1)[0]
    made = engine(EngineConfig(vision="fake"))
    made.eos_token_id = first
    image = made.add([1, 2, 3], [ODD], max_tokens=4)
    made.generate([image])
    assert (image.finish_reason, image.error) == ("stop", "")
    assert image.output_ids == [first]


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (lambda e: e[:-1], "lengths: inputs_embeds of 8 rows for 9"),
        (lambda e: e[:, :-1], "embeds-width: inputs_embeds are 31 wide, the model 32"),
    ],
)
def test_the_contract_is_held_against_what_the_model_is_given(
    cut: Callable[[Tensor], Tensor], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the note advises: rows against the slot mapping's, width against the hidden
    size."""
    made = engine(EngineConfig(vision="fake", check_contract="raise"))
    made.generate([made.add([1, 2, 3], [ODD], max_tokens=1)])
    embed = made.runner.model.embed_tokens
    monkeypatch.setattr(
        embed, "forward", lambda ids: cut(functional.embedding(ids, embed.weight))
    )
    wrong = made.add([1, 2, 4], [ODD], max_tokens=1)
    made.generate([wrong])
    assert wrong.finish_reason == "error"
    assert says in wrong.error
