"""A model's Hugging Face ``config.json``: the size of its KV cache, and the tokens of
an image."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import read_file
from mmrepro.engines.models import smart_resize
from mmrepro.kv_budget.eras import BudgetEngine
from mmrepro.kv_budget.layers import FULL, LayerKind, Layers, layers_of

_MOST_BYTES = 4 << 20
_NESTED = ("text_config", "llm_config", "language_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_KV_HEADS = ("num_key_value_heads", "multi_query_group_num", "num_kv_heads")
_CONTEXT = ("max_position_embeddings", "seq_length", "n_positions")

_Json = dict[str, object]


@dataclass(frozen=True)
class Geometry:
    """One model's attention, as far as its cache is concerned.

    Attributes:
        layers: that keep keys and values.
        kv_heads: of one layer, before tensor parallelism; 1 for latent attention (MLA).
        k_dim: elements of a key per head; latent plus rotary elements for MLA.
        v_dim: elements of a value per head; 0 for MLA, whose cache holds no values of
            its own.
        dtype_bytes: of one element of the model's type.
        vocab_size: 0 when unknown.
        context: longest sequence that the model is made for; 0 when unknown.
        window: of sliding attention in all layers; 0 for none.
        mla: latent attention.
        plain_head_dim: hidden size over attention heads; differs from ``k_dim`` in
            models that set ``head_dim``, which old LMDeploy ignores. 0 when unknown.
        kinds: what each layer keeps.
        odd: why there is no formula for these layers; empty: there is.
        drafts: layers of the model's own MTP head.
        model_type: ``model_type`` of config.json; empty when given as numbers.
    """

    layers: int
    kv_heads: int
    k_dim: int
    v_dim: int
    dtype_bytes: int = 2
    vocab_size: int = 0
    context: int = 0
    window: int = 0
    mla: bool = False
    plain_head_dim: int = 0
    model_type: str = ""
    kinds: Layers = ()
    odd: str = ""
    drafts: int = 0

    @property
    def full(self) -> LayerKind:
        """A layer of full attention."""
        return LayerKind(FULL, self.kv_heads, self.k_dim + self.v_dim, self.mla)

    @property
    def each(self) -> Layers:
        """What each layer keeps; full attention where nothing else is known."""
        return self.kinds or ((self.full,),) * self.layers

    @property
    def mixed(self) -> bool:
        """Not every layer keeps keys and values of all tokens."""
        return bool(self.odd) or any(kinds != (self.full,) for kinds in self.kinds)

    def token_bytes(
        self, engine: BudgetEngine, *, tp: int = 1, kv_dtype: str = "auto"
    ) -> int:
        """Bytes of one token over all layers on one of ``tp`` devices, as vLLM and
        SGLang count.

        With more devices than KV heads each device keeps one (vLLM 0.32.0
        config/model.py:1670, SGLang 0.5.6 configs/model_config.py:506).

        Raises:
            UsageError: an unknown type of cache, or layers of several kinds.
        """
        if self.mixed:
            raise UsageError(
                f"There is no formula here for {engine.title}: "
                f"{self.odd or 'the layers of this model keep different things'}. "
                "Give --block-bytes instead."
            )

        return self.layers * self.full.token_bytes(tp, self.element(engine, kv_dtype))

    def element(self, engine: BudgetEngine, kv_dtype: str = "auto") -> int:
        """Bytes of an element of the cache. Raises UsageError: an unknown type."""
        sizes = engine.element_bytes
        if kv_dtype not in sizes:
            raise UsageError(
                f"No formula here for {engine.title}'s KV cache type {kv_dtype!r}; "
                f"there is: {', '.join(sizes)}."
            )
        return sizes[kv_dtype] or self.dtype_bytes


@dataclass(frozen=True)
class _ImageRule:
    """How many tokens an image becomes in one family of models.

    Attributes:
        largest: tokens of the largest image, without those of ``around``.
        around: tokens that the template puts around each image.
        of_size: tokens by width and height in pixels; None where every image has
            ``largest``.
    """

    largest: int
    around: int = 0
    of_size: Callable[[int, int], int] | None = None

    def tokens(self, width: int, height: int) -> int:
        """Tokens of an image of that size in pixels, without those around it."""
        return self.of_size(width, height) if self.of_size else self.largest


def _patches(width: int, height: int, *, factor: int, least: int, most: int) -> int:
    """Qwen2-VL and later: as many tokens as merged patches fit after a resize.

    transformers models/qwen2_vl/image_processing_qwen2_vl.py, ``smart_resize``;
    ``factor`` is a token's side in pixels: patch size times merge size."""
    try:
        h, w = smart_resize(
            height, width, min_pixels=least, max_pixels=most, factor=factor
        )
    except ValueError as error:
        raise UsageError(
            f"An image of {width}x{height} is refused: {error}."
        ) from error

    return (h // factor) * (w // factor)


def _tiles(width: int, height: int, *, side: int, least: int, most: int) -> int:
    """InternVL: square tiles of ``side`` pixels.

    InternLM/lmdeploy 0.6.4 vl/model/internvl.py:34, ``dynamic_preprocess``, which is
    OpenGVLab/InternVL's own.
    """
    ratio = width / height
    counts = range(1, most + 1)
    shapes = [(i, j) for i in counts for j in counts if least <= i * j <= most]
    best, best_difference = (1, 1), float("inf")
    for i, j in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
        difference = abs(ratio - i / j)
        larger = width * height > 0.5 * side**2 * i * j
        if difference < best_difference or (difference == best_difference and larger):
            best, best_difference = (i, j), difference

    return best[0] * best[1]


@dataclass(frozen=True)
class Model:
    """What was read.

    Attributes:
        name: ``model_type``.
        images: None for a text model, and for a family whose rule is not known here.
    """

    name: str
    geometry: Geometry
    images: _ImageRule | None


def read_model(path: Path) -> Model:
    """Read a model's folder, or its config.json.

    Element sizes are those of ``auto``: LMDeploy, vLLM and SGLang all serve a model
    that was saved in 32 bits in 16.

    Raises:
        UsageError: no such file, no JSON, or a field that the arithmetic needs is
            missing.
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
    latent, rotary = (
        _number(text, ("kv_lora_rank",)),
        _number(text, ("qk_rope_head_dim",)),
    )
    mla = bool(latent and rotary)
    key = latent + rotary if mla else own_dim or plain
    kv_heads = 1 if mla else _number(text, _KV_HEADS) or heads
    full = LayerKind(FULL, kv_heads, key if mla else 2 * key, mla)
    kinds, odd = layers_of(text, full, layers)
    return Model(
        name=name,
        geometry=Geometry(
            layers=layers,
            kv_heads=kv_heads,
            k_dim=key,
            v_dim=0 if mla else key,
            dtype_bytes=2,
            vocab_size=_number(text, ("vocab_size",)) or _number(top, ("vocab_size",)),
            context=_number(text, _CONTEXT),
            window=_window(text),
            mla=mla,
            plain_head_dim=0 if mla else plain,
            model_type=name,
            kinds=kinds,
            odd=odd,
            drafts=_number(text, ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
            or 1,
        ),
        images=_image_rule(top, file.parent),
    )


def _load(file: Path) -> _Json:
    try:
        content = json.loads(read_file(file, _MOST_BYTES))
    except OSError as error:
        if error.errno != errno.EFBIG:  # such a file is no configuration
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
        content = None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a model's config.json.")
    return content


def _text_config(top: _Json) -> _Json:
    """The language model's part, which vision models nest under one of several
    names."""
    thinker = top.get("thinker_config")
    if isinstance(thinker, dict):
        top = thinker
    for name in _NESTED:
        nested = top.get(name)
        if isinstance(nested, dict) and any(key in nested for key in _LAYERS):
            return nested
    return top


def _number(config: _Json, names: tuple[str, ...]) -> int:
    """The first of these fields that holds a sensible whole number; 0 when none
    does."""
    for name in names:
        value = config.get(name)
        if type(value) is int and 0 < value < 1 << 32:
            return value
    return 0


def _needed(config: _Json, names: tuple[str, ...], file: Path) -> int:
    value = _number(config, names)
    if not value:
        raise UsageError(
            f"{file} has no usable {names[0]}. Give --layers, --kv-heads and "
            "--head-dim instead."
        )
    return value


def _word(text: _Json, top: _Json, name: str) -> str:
    value = text.get(name) or top.get(name)
    return value if isinstance(value, str) else ""


def _window(text: _Json) -> int:
    """The sliding window as LMDeploy takes it
    (pytorch/configurations/default.py:21)."""
    used = text.get("use_sliding_window", True)
    return _number(text, ("sliding_window",)) if used else 0


def _image_rule(top: _Json, folder: Path) -> _ImageRule | None:
    kind, vision = str(top.get("model_type", "")), top.get("vision_config")
    if not isinstance(vision, dict):
        return None
    patch = _number(vision, ("patch_size", "spatial_patch_size"))
    if kind.startswith(("qwen2_vl", "qwen2_5_vl", "qwen3_vl")) and patch:
        factor = patch * (_number(vision, ("spatial_merge_size",)) or 2)
        least, most = _pixels(folder / "preprocessor_config.json")
        sized = partial(_patches, factor=factor, least=least, most=most)
        return _ImageRule(max(most // factor**2, 1), 2, sized)

    side = _number(top, ("force_image_size",)) or _number(vision, ("image_size",))
    if not patch or not side:
        return None
    if kind == "internvl_chat":
        ratio = top.get("downsample_ratio", 0.5)
        share = ratio if isinstance(ratio, float) and 0 < ratio <= 1 else 0.5
        each = int((side // patch) ** 2 * share**2)
        most = min(_number(top, ("max_dynamic_patch",)) or 6, 64)
        least = min(_number(top, ("min_dynamic_patch",)) or 1, most)
        # A thumbnail comes with more than one tile.
        extra = 1 if top.get("use_thumbnail") is True else 0

        def tokens(tiles: int) -> int:
            return each * (tiles + (extra if tiles > 1 else 0))

        return _ImageRule(
            tokens(most),
            2,
            lambda w, h: tokens(_tiles(w, h, side=side, least=least, most=most)),
        )

    return _ImageRule((side // patch) ** 2) if kind == "llava" else None


def _pixels(processor: Path) -> tuple[int, int]:
    """Fewest and most pixels of an image; transformers' own defaults where nothing is
    declared."""
    settings = _load(processor) if processor.is_file() else {}
    size = settings.get("size")
    edges = size if isinstance(size, dict) else {}
    least = _number(settings, ("min_pixels",)) or _number(edges, ("shortest_edge",))
    most = _number(settings, ("max_pixels",)) or _number(edges, ("longest_edge",))
    return least or 56 * 56, most or 28 * 28 * 1280
