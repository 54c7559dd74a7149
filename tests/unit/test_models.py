import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import examples
from hypothesis import assume, given, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.engines.models import TinyQwen2VL, smart_resize
from mmrepro.engines.models.base import with_tokens
from mmrepro.engines.models.qwen import FACTOR
from mmrepro.engines.models.tiny import (
    ADAPTERS,
    REPORTED_IMAGE_TOKENS,
    TINY,
    TinyDotsOCR,
    named_in,
    with_folders,
)
from tokenizers import Tokenizer

SMALL = {"hidden": 64, "layers": 1, "vision_width": 32, "vision_depth": 1}
SIDES = st.integers(1, 5000)


@given(SIDES, SIDES, st.integers(1, 400), st.integers(3, 9))
def test_smart_resize_gives_whole_tokens_within_bounds(
    height: int, width: int, fewest: int, times: int
) -> None:
    assume(max(height, width) / min(height, width) <= 200)
    low, high = fewest * FACTOR**2, times * fewest * FACTOR**2
    h, w = smart_resize(height, width, min_pixels=low, max_pixels=high)
    assert h % FACTOR == w % FACTOR == 0
    assert min(h, w) >= FACTOR
    # Rounding down a side of few tokens may go below the bound.
    if min(h, w) > 2 * FACTOR:
        assert low <= h * w
    if min(h, w) > FACTOR:  # a side is never below one token, whatever the bounds say
        assert h * w <= high


@given(SIDES, SIDES)
def test_smart_resize_leaves_its_own_result_alone(height: int, width: int) -> None:
    assume(max(height, width) / min(height, width) <= 200)
    bounds = {"min_pixels": 4 * FACTOR**2, "max_pixels": 400 * FACTOR**2}
    h, w = smart_resize(height, width, **bounds)
    assume(4 * FACTOR**2 <= h * w <= 400 * FACTOR**2 and max(h, w) / min(h, w) <= 200)
    assert smart_resize(h, w, **bounds) == (h, w)


@pytest.mark.parametrize(("height", "width"), [(0, 10), (10, -1), (1, 201), (201, 1)])
def test_smart_resize_refuses_impossible_images(height: int, width: int) -> None:
    with pytest.raises(ValueError):
        smart_resize(height, width, min_pixels=1, max_pixels=10**6)


def has_a_rectangle(tokens: int) -> bool:
    """Whether rows x columns of tokens exist that are at most 200 times as wide as
    high."""
    return any(
        tokens % rows == 0 and tokens // rows <= 200 * rows
        for rows in range(1, math.isqrt(tokens) + 1)
    )


@given(st.integers(1, 5000))
def test_image_size_becomes_exactly_the_tokens(tokens: int) -> None:
    model = TinyQwen2VL(image_tokens=tokens)
    if has_a_rectangle(tokens):
        assert model.tokens_of(*model.image_size()) == tokens
    else:
        with pytest.raises(ValueError, match=str(tokens)):
            model.image_size()


@given(st.integers(1, 2000), SIDES, SIDES)
def test_an_image_becomes_at_most_the_tokens_unless_it_is_one_row(
    tokens: int, width: int, height: int
) -> None:
    assume(max(height, width) / min(height, width) <= 200)
    model = TinyQwen2VL(image_tokens=tokens)
    found = model.tokens_of(width, height)
    rows = smart_resize(
        height, width, min_pixels=FACTOR**2, max_pixels=model.max_pixels
    )
    assert found <= tokens or min(rows) == FACTOR


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_values_give_byte_equal_files(tmp_path: Path) -> None:
    first = TinyQwen2VL(seed=3, **SMALL).write(tmp_path / "a")
    second = TinyQwen2VL(seed=3, **SMALL).write(tmp_path / "b")
    assert first.name == second.name
    assert files(first) == files(second)


def test_another_seed_gives_other_weights_and_another_folder(tmp_path: Path) -> None:
    first = TinyQwen2VL(seed=1, **SMALL).write(tmp_path)
    second = TinyQwen2VL(seed=2, **SMALL).write(tmp_path)
    assert first != second
    one, two = files(first), files(second)
    assert one.pop("model.safetensors") != two.pop("model.safetensors")
    assert one == two


def safetensors(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    return header, raw[8 + length :]


@examples(10)
@given(
    st.sampled_from([64, 128]),
    st.integers(1, 3),
    st.sampled_from([32, 64]),
    st.integers(1, 2),
)
def test_the_weights_file_is_well_formed(
    tmp_path_factory: pytest.TempPathFactory,
    hidden: int,
    layers: int,
    vision: int,
    depth: int,
) -> None:
    model = TinyQwen2VL(
        hidden=hidden, layers=layers, vision_width=vision, vision_depth=depth
    )
    folder = model.write(tmp_path_factory.mktemp("models"))
    header, data = safetensors(folder / "model.safetensors")
    assert header.pop("__metadata__") == {"format": "pt"}
    assert {name: tuple(t["shape"]) for name, t in header.items()} == dict(
        model.shapes()
    )
    end = 0
    for tensor in header.values():  # in the file's order: no gap, no overlap
        assert tensor["dtype"] == "BF16"
        begin, stop = tensor["data_offsets"]
        assert begin == end
        assert stop - begin == 2 * math.prod(tensor["shape"])
        end = stop
    assert end == len(data) == 2 * model.parameters


def test_norms_start_as_the_identity_and_weights_are_random(tmp_path: Path) -> None:
    folder = TinyQwen2VL(**SMALL).write(tmp_path)
    header, data = safetensors(folder / "model.safetensors")
    begin, stop = header["model.norm.weight"]["data_offsets"]
    assert data[begin:stop] == b"\x80\x3f" * ((stop - begin) // 2)  # 1.0 in bfloat16
    begin, stop = header["lm_head.weight"]["data_offsets"]
    assert len({data[i : i + 2] for i in range(begin, stop, 2)}) > 100


def test_the_folder_is_whole_and_consistent(tmp_path: Path) -> None:
    model = TinyQwen2VL(image_tokens=36, **SMALL)
    folder = model.write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert processor["max_pixels"] == 36 * FACTOR**2
    ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    assert config["image_token_id"] == ids["<|image_pad|>"]
    assert config["eos_token_id"] == ids["<|im_end|>"]
    assert max(ids.values()) == config["vocab_size"] - 1
    assert [p.name for p in tmp_path.iterdir()] == [model.key]


def test_the_reports_image_becomes_the_reports_tokens() -> None:
    model = TinyDotsOCR(image_tokens=REPORTED_IMAGE_TOKENS)
    assert model.image_size() == (2212, 1708)
    assert model.tokens_of(2212, 1708) == 4819


def test_a_tiny_dots_ocr_is_whole_and_consistent(tmp_path: Path) -> None:
    model = TinyDotsOCR(image_tokens=36, **SMALL)
    folder = model.write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    assert config["image_token_id"] == ids["<|imgpad|>"] == model.image_token_id
    assert config["eos_token_id"] == ids["<|endofassistant|>"]
    assert max(ids.values()) == config["vocab_size"] - 1
    header, data = safetensors(folder / "model.safetensors")
    header.pop("__metadata__")
    assert {name: tuple(t["shape"]) for name, t in header.items()} == dict(
        model.shapes()
    )
    assert len(data) == 2 * model.parameters
    module, _, name = config["auto_map"]["AutoConfig"].partition(".")
    source = (folder / f"{module}.py").read_text()
    compile(source, "configuration", "exec")
    assert f"class {name}(" in source
    assert TinyDotsOCR(image_tokens=37, **SMALL).key != model.key


def test_a_written_model_is_not_written_again(tmp_path: Path) -> None:
    model = TinyQwen2VL(**SMALL)
    folder = model.write(tmp_path)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert model.write(tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        TinyQwen2VL(vocab_size=10, **SMALL).write(tmp_path)
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from mmrepro.engines.models import TinyQwen2VL
import mmrepro.engines.models.base, numpy
print("ready", flush=True)
sys.stdin.readline()
print(TinyQwen2VL(hidden=64, layers=1, vision_width=32, vision_depth=1).write(Path(sys.argv[1])))
"""


def test_two_writers_at_once(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "models")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        said = [writer.communicate(timeout=30)[0].strip() for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert said[0] == said[1]
    assert [path.name for path in (tmp_path / "models").iterdir()] == [
        Path(said[0]).name
    ]
    assert files(Path(said[0])) == files(TinyQwen2VL(**SMALL).write(tmp_path / "alone"))


# -------------------------------------------------------------- models of today's stack


@pytest.mark.parametrize("name", [*TINY, *ADAPTERS])
def test_every_tiny_model_is_whole(tmp_path: Path, name: str) -> None:
    model = TINY.get(name) or ADAPTERS[name]
    folder = model.write(tmp_path)
    header, data = safetensors(folder / model.weights_file)
    header.pop("__metadata__")
    assert {n: tuple(t["shape"]) for n, t in header.items()} == dict(model.shapes())
    assert len(data) == 2 * model.parameters
    others = [other.key for n, other in (TINY | ADAPTERS).items() if n != name]
    assert model.key not in others
    for text in folder.glob("*.json"):
        json.loads(text.read_text())


def test_a_draft_has_the_weights_of_its_model_but_smaller(tmp_path: Path) -> None:
    def embedding(name: str) -> np.ndarray:
        header, data = safetensors(TINY[name].write(tmp_path) / "model.safetensors")
        begin, stop = header["model.embed_tokens.weight"]["data_offsets"]
        return (np.frombuffer(data[begin:stop], "<u2").astype("<u4") << 16).view("<f4")

    ratio = embedding("qwen3-draft") / embedding("qwen3-text")
    assert np.allclose(ratio, 0.6, atol=0.01)


def test_an_adapter_fits_the_attention_of_its_model() -> None:
    adapter, base = ADAPTERS["lora-a"], dict(TINY["qwen3-text"].shapes())
    shapes = dict(adapter.shapes())
    assert len(shapes) == 2 * 4 * 2
    for name, (rows, columns) in shapes.items():
        place, _, matrix = name.removeprefix("base_model.model.").partition(".lora_")
        weight = base[f"{place}.weight"]
        assert (rows, columns) == (
            (8, weight[1]) if matrix[0] == "A" else (weight[0], 8)
        )


def test_a_name_in_an_option_becomes_a_folder_that_is_there(tmp_path: Path) -> None:
    text = '{"model": "{tiny:qwen3-draft}", "tokens": 3}'
    assert named_in([text, "--flag", text]) == ["qwen3-draft"]
    folder = Path(json.loads(with_folders(text, tmp_path))["model"])
    assert (folder / "config.json").is_file()
    assert folder.parent == tmp_path
    assert with_folders("a={tiny:lora-a}") == "a=./tiny-model/lora-a"
    assert with_folders("{run-tmp} {tinyqwen3}", tmp_path) == "{run-tmp} {tinyqwen3}"
    with pytest.raises(UsageError, match="no tiny model qwen9"):
        with_folders("{tiny:qwen9}", tmp_path)


def test_a_copy_has_further_tokens_in_place_of_the_last_fillers(tmp_path: Path) -> None:
    model = TINY["qwen2-vl"].write(tmp_path)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    copy = with_tokens(model, ("<think>", "</think>"))
    assert copy != model
    assert with_tokens(model, ("<think>", "</think>")) == copy
    assert with_tokens(copy, ("<think>", "</think>")) == copy
    old = Tokenizer.from_file(str(model / "tokenizer.json"))
    new = Tokenizer.from_file(str(copy / "tokenizer.json"))
    size = old.get_vocab_size()
    assert new.get_vocab_size() == size
    assert new.token_to_id("<think>") == size - 2
    assert new.token_to_id("</think>") == size - 1
    assert new.encode("a<t1>b").ids == old.encode("a<t1>b").ids
    assert (copy / "model.safetensors").samefile(model / "model.safetensors")
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_somebody_elses_model_is_not_copied(tmp_path: Path) -> None:
    assert with_tokens(tmp_path, ("<think>",)) == tmp_path
    (tmp_path / "tokenizer.json").write_text('{"vocab": {"a": 1}}')
    assert with_tokens(tmp_path, ("<think>",)) == tmp_path
