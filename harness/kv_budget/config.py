"""A model's Hugging Face ``config.json``: what of it decides the size of its KV cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mmrepro.errors import UsageError
from mmrepro.kv_budget.geometry import Geometry
from mmrepro.kv_budget.images import ImageRule, Patches, Tiles

MOST_BYTES = 4 << 20
_NESTED = ("text_config", "llm_config", "language_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_KV_HEADS = ("num_key_value_heads", "multi_query_group_num", "num_kv_heads")
_CONTEXT = ("max_position_embeddings", "seq_length", "n_positions")
_MIXED = (
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_type_list",
    "full_attention_interval",
    "sliding_window_pattern",
    "mamba_d_state",
    "interleaved_sliding_window",
)
"""Fields of models whose layers are not all of one kind."""
_MIXED_TYPES = ("gemma2", "cohere2", "gpt_oss")

Json = dict[str, object]


@dataclass(frozen=True)
class Model:
    """What was read.

    Attributes:
        name: ``model_type``.
        images: None for a text model, and for a family whose rule is not known here.
    """

    name: str
    geometry: Geometry
    images: ImageRule | None


def read_model(path: Path) -> Model:
    """Read a model's folder, or its config.json.

    Element sizes are those of ``auto``: LMDeploy, vLLM and SGLang all serve a model that was saved
    in 32 bits in 16.

    Raises:
        UsageError: no such file, no JSON, or a field that the arithmetic needs is missing.
    """
    file = path / "config.json" if path.is_dir() else path
    top = _load(file)
    text = _text_config(top)
    name = _word(text, top, "model_type")
    layers = _needed(text, _LAYERS, file)
    heads = _needed(text, _HEADS, file)
    hidden = _number(text, _HIDDEN)
    own_dim = _number(text, ("head_dim", "kv_channels"))
    if not own_dim and not hidden:
        raise UsageError(f"{file} has neither head_dim nor hidden_size.")
    plain = hidden // heads if hidden else 0
    latent, rotary = _number(text, ("kv_lora_rank",)), _number(text, ("qk_rope_head_dim",))
    mla = bool(latent and rotary)
    key = latent + rotary if mla else own_dim or plain
    return Model(
        name=name,
        geometry=Geometry(
            layers=layers,
            kv_heads=1 if mla else _number(text, _KV_HEADS) or heads,
            k_dim=key,
            v_dim=0 if mla else key,
            dtype_bytes=2,
            vocab_size=_number(text, ("vocab_size",)) or _number(top, ("vocab_size",)),
            context=_number(text, _CONTEXT),
            window=_window(text),
            mla=mla,
            plain_head_dim=0 if mla else plain,
            mixed=_mixed(text),
            model_type=name,
        ),
        images=_image_rule(top, file.parent),
    )


def _load(file: Path) -> Json:
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        content = json.loads(data) if len(data) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a model's config.json.")
    return content


def _text_config(top: Json) -> Json:
    """The language model's part, which vision models nest under one of several names."""
    thinker = top.get("thinker_config")
    if isinstance(thinker, dict):
        top = thinker
    for name in _NESTED:
        nested = top.get(name)
        if isinstance(nested, dict) and any(key in nested for key in _LAYERS):
            return nested
    return top


def _number(config: Json, names: tuple[str, ...]) -> int:
    """The first of these fields that holds a sensible whole number; 0 when none does."""
    for name in names:
        value = config.get(name)
        if type(value) is int and 0 < value < 1 << 32:
            return value
    return 0


def _needed(config: Json, names: tuple[str, ...], file: Path) -> int:
    value = _number(config, names)
    if not value:
        raise UsageError(
            f"{file} has no usable {names[0]}. Give --layers, --kv-heads and --head-dim instead."
        )
    return value


def _word(text: Json, top: Json, name: str) -> str:
    value = text.get(name) or top.get(name)
    return value if isinstance(value, str) else ""


def _window(text: Json) -> int:
    """The sliding window as LMDeploy takes it (pytorch/configurations/default.py:21)."""
    used = text.get("use_sliding_window", True)
    return _number(text, ("sliding_window",)) if used else 0


def _mixed(text: Json) -> bool:
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return len({str(kind) for kind in kinds}) > 1
    # A null field is a field that is not used.
    return text.get("model_type") in _MIXED_TYPES or any(text.get(name) for name in _MIXED)


def _image_rule(top: Json, folder: Path) -> ImageRule | None:
    kind, vision = str(top.get("model_type", "")), top.get("vision_config")
    if not isinstance(vision, dict):
        return None
    patch = _number(vision, ("patch_size", "spatial_patch_size"))
    if kind.startswith(("qwen2_vl", "qwen2_5_vl", "qwen3_vl")) and patch:
        return _patches(kind, patch * (_number(vision, ("spatial_merge_size",)) or 2), folder)
    side = _number(top, ("force_image_size",)) or _number(vision, ("image_size",))
    if not patch or not side:
        return None
    if kind == "internvl_chat":
        ratio = top.get("downsample_ratio", 0.5)
        share = ratio if isinstance(ratio, float) and 0 < ratio <= 1 else 0.5
        each = int((side // patch) ** 2 * share**2)
        most = min(_number(top, ("max_dynamic_patch",)) or 6, 64)
        thumbnail = top.get("use_thumbnail") is True
        return Tiles(
            family="InternVL",
            around=2,
            largest=each * (most + (1 if thumbnail and most > 1 else 0)),
            side=side,
            each=each,
            min_tiles=min(_number(top, ("min_dynamic_patch",)) or 1, most),
            max_tiles=most,
            thumbnail=thumbnail,
        )
    if kind == "llava":
        return ImageRule(family="LLaVA", around=0, largest=(side // patch) ** 2)
    return None


def _patches(kind: str, factor: int, folder: Path) -> Patches:
    processor = folder / "preprocessor_config.json"
    settings = _load(processor) if processor.is_file() else {}
    size = settings.get("size")
    edges = size if isinstance(size, dict) else {}
    # transformers' own defaults, in pixels, where nothing is said
    least = _number(settings, ("min_pixels",)) or _number(edges, ("shortest_edge",)) or 56 * 56
    most = _number(settings, ("max_pixels",)) or _number(edges, ("longest_edge",)) or 28 * 28 * 1280
    return Patches(
        family=kind,
        around=2,
        largest=max(most // factor**2, 1),
        factor=factor,
        min_pixels=least,
        max_pixels=most,
    )
