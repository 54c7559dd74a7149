"""Models: a config.json in, geometry and tokens an image out."""

import json
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.kv_budget import block_bytes_of, read_model

INTERNVL2_8B = {
    "model_type": "internvl_chat",
    "downsample_ratio": 0.5,
    "dynamic_image_size": True,
    "force_image_size": 448,
    "max_dynamic_patch": 12,
    "min_dynamic_patch": 1,
    "use_thumbnail": True,
    "vision_config": {"patch_size": 14, "image_size": 448, "num_hidden_layers": 24},
    "llm_config": {
        "model_type": "internlm2",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "vocab_size": 92553,
        "max_position_embeddings": 32768,
    },
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "hidden_size": 64,
}


def write(folder: Path, content: object, **more: object) -> Path:
    for name, data in {"config": content, **more}.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def test_the_reports_model_nested_under_its_vision_part(tmp_path: Path) -> None:
    model = read_model(write(tmp_path, INTERNVL2_8B))
    assert block_bytes_of(model.geometry) == 8388608
    assert (model.geometry.vocab_size, model.geometry.context) == (92553, 32768)
    assert model.images is not None
    # 12 tiles and a thumbnail of 256 tokens: 118 less than the report's prompt
    assert model.images.largest == 13 * 256
    assert model.images.tokens(448, 448) == 256
    assert model.images.tokens(1344, 1792) == 13 * 256
    assert model.images.tokens(896, 448) == 3 * 256


def test_qwen2_vl_and_its_processor(tmp_path: Path) -> None:
    tiny = TinyQwen2VL(image_tokens=225)
    model = read_model(tiny.write(tmp_path))
    assert model.geometry.layers == 2
    assert (model.geometry.kv_heads, model.geometry.k_dim) == (2, 64)
    assert model.images is not None
    assert model.images.largest == 225
    for width, height in ((420, 420), (28, 28), (600, 100), (5000, 4000)):
        assert model.images.tokens(width, height) == tiny.tokens_of(width, height)
    with pytest.raises(UsageError, match="aspect ratio"):
        model.images.tokens(1, 1000)


def test_latent_attention(tmp_path: Path) -> None:
    deepseek = {
        **LLAMA,
        "model_type": "deepseek_v2",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    geometry = read_model(write(tmp_path, deepseek)).geometry
    assert (geometry.mla, geometry.kv_heads, geometry.k_dim, geometry.v_dim) == (
        True,
        1,
        576,
        0,
    )


@pytest.mark.parametrize(
    ("fields", "mixed", "window"),
    [
        ({}, False, 0),
        ({"sliding_window": 4096}, True, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, False, 0),
        ({"layer_types": ["full_attention", "full_attention"]}, False, 0),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            False,
            0,
        ),  # a window of no size
        (
            {
                "layer_types": ["full_attention", "sliding_attention"],
                "sliding_window": 8,
            },
            True,
            8,
        ),
        ({"layer_types": ["full_attention", "new_attention"]}, True, 0),
        ({"model_type": "gemma2", "sliding_window": 4096}, True, 4096),
        ({"mamba_d_state": 16}, True, 0),
        ({"attn_type_list": None}, False, 0),
    ],
)
def test_windows_and_mixed_layers(
    tmp_path: Path, fields: dict[str, object], mixed: bool, window: int
) -> None:
    geometry = read_model(write(tmp_path, {**LLAMA, **fields})).geometry
    assert (geometry.mixed, geometry.window) == (mixed, window)


def test_heads_and_head_dim(tmp_path: Path) -> None:
    plain = read_model(write(tmp_path, LLAMA)).geometry
    assert (plain.kv_heads, plain.k_dim, plain.plain_head_dim) == (8, 8, 8)
    own = read_model(
        write(tmp_path, {**LLAMA, "head_dim": 128, "num_key_value_heads": 2})
    ).geometry
    assert (own.kv_heads, own.k_dim, own.plain_head_dim) == (2, 128, 8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not a model's config.json"),
        ("[1]", "is not a model's config.json"),
        ("[" * 100_000, "is not a model's config.json"),
        ('{"a": "' + "x" * (5 << 20) + '"}', "is not a model's config.json"),
        ("\xff", "is not a model's config.json"),
        ("{}", "has no usable num_hidden_layers"),
        ('{"num_hidden_layers": -2}', "has no usable num_hidden_layers"),
        ('{"num_hidden_layers": true}', "has no usable num_hidden_layers"),
        ('{"num_hidden_layers": 2e3}', "has no usable num_hidden_layers"),
        ('{"num_hidden_layers": 2}', "has no usable num_attention_heads"),
        (
            '{"num_hidden_layers": 2, "num_attention_heads": 2}',
            "neither head_dim nor hidden_size",
        ),
    ],
    ids=range(11),
)
def test_what_is_no_model(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(UsageError, match=says):
        read_model(file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_model(tmp_path / "none")
