"""dots.ocr, text models, and the tiny models by name: random weights, written without
torch.

The names of weights and the fields of the configuration of dots.ocr are those of vLLM's
``DotsOCRForCausalLM`` (0.12.0, model_executor/models/dots_ocr.py,
transformers_utils/configs/dotsocr.py), which are the published checkpoint's. As there,
the configuration's class travels with the model (``configuration_dots.py``, needs
``--trust-remote-code``).

What matters in a text model is the KV geometry: layers, KV heads and head size decide
how many bytes one block of the paged cache takes, the vocabulary how much memory
LMDeploy keeps back for the forward pass. The rest is as small as it can be. Names of
weights and configuration fields are those of transformers' ``LlamaForCausalLM`` and
``GemmaForCausalLM``."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from mmrepro.base.errors import UsageError
from mmrepro.engines.models.base import (
    DOTS_OCR,
    Shapes,
    TinyModel,
    dump,
    mlp_and_norms,
    named_after,
    patch_merger,
    qwen2_language_model,
    write_text_model,
    write_weights,
)
from mmrepro.engines.models.qwen import MERGE, PATCH, QwenModel, TinyQwen2VL, TinyQwen3
from mmrepro.engines.models.stack import (
    TinyAdapter,
    TinyGraniteHybrid,
    TinyQwen3Moe,
    TinyQwen3Next,
    TinyQwen3Text,
    TinyQwen35,
    TinyScorer,
)

MODELS_DIR: Final = "models"
"""In the cache."""
BESIDE: Final = "./tiny-model"
"""Where a script writes the model; what else its server needs lies in folders in it."""
REPORTED_IMAGE_TOKENS = 4819
"""Of the bug report's image; 2212 x 1708 pixels, say."""

_MAX_POSITIONS = 32768

_CONFIGURATION = '''\
"""The configuration of dots.ocr models, for transformers' AutoConfig."""

from transformers.configuration_utils import PretrainedConfig
from transformers.models.qwen2 import Qwen2Config


class DotsVisionConfig(PretrainedConfig):
    model_type = "dots_vit"

    def __init__(
        self,
        embed_dim=1536,
        hidden_size=1536,
        intermediate_size=4224,
        num_hidden_layers=42,
        num_attention_heads=12,
        num_channels=3,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=1,
        rms_norm_eps=1e-5,
        use_bias=False,
        post_norm=True,
        **more,
    ):
        super().__init__(**more)
        self.embed_dim = embed_dim
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_channels = num_channels
        self.patch_size = patch_size
        self.spatial_merge_size = spatial_merge_size
        self.temporal_patch_size = temporal_patch_size
        self.rms_norm_eps = rms_norm_eps
        self.use_bias = use_bias
        self.post_norm = post_norm


class DotsOCRConfig(Qwen2Config):
    model_type = "dots_ocr"

    def __init__(self, image_token_id=151665, video_token_id=151656, vision_config=None, **more):
        super().__init__(**more)
        self.image_token_id = image_token_id
        self.video_token_id = video_token_id
        self.vision_config = DotsVisionConfig(**(vision_config or {}))
'''


@dataclass(frozen=True)
class TinyDotsOCR(QwenModel):
    kind: ClassVar[str] = "tiny dots.ocr with random weights"

    @property
    def image_token(self) -> str:
        return DOTS_OCR.image

    @property
    def image_token_id(self) -> int:
        """Id of the placeholder token that stands for one row of an image."""
        return DOTS_OCR.id_of(self.image_token)

    @property
    def key(self) -> str:
        made_of = [
            _CONFIGURATION,
            asdict(DOTS_OCR),
            self._config(),
            self.processor(1),
            list(self.shapes()),
        ]
        return named_after("tiny-dotsocr", 1, asdict(self), made_of)

    def shapes(self) -> Shapes:
        v, h = self.vision_width, self.hidden
        yield "vision_tower.patch_embed.patchifier.proj.weight", (v, 3, PATCH, PATCH)
        yield "vision_tower.patch_embed.patchifier.proj.bias", (v,)
        yield "vision_tower.patch_embed.patchifier.norm.weight", (v,)
        for i in range(self.vision_depth):
            block = f"vision_tower.blocks.{i}"
            yield f"{block}.norm1.weight", (v,)
            yield f"{block}.norm2.weight", (v,)
            yield f"{block}.attn.qkv.weight", (3 * v, v)
            yield f"{block}.attn.proj.weight", (v, v)
            yield f"{block}.mlp.fc1.weight", (2 * v, v)
            yield f"{block}.mlp.fc3.weight", (2 * v, v)
            yield f"{block}.mlp.fc2.weight", (v, 2 * v)
        yield "vision_tower.post_trunk_norm.weight", (v,)
        yield from patch_merger("vision_tower.merger", v, h)
        yield from qwen2_language_model(self.vocab_size, h, self.layers)

    def _write_into(self, folder: Path) -> None:
        from mmrepro.engines.models.base import write_tokenizer

        write_tokenizer(folder, self.vocab_size, DOTS_OCR)
        (folder / "configuration_dots.py").write_text(_CONFIGURATION)
        dump(folder / "config.json", self._config())
        dump(folder / "preprocessor_config.json", self.processor(temporal_patch=1))
        dump(
            folder / "generation_config.json",
            {
                "eos_token_id": [DOTS_OCR.id_of(DOTS_OCR.eos)],
                "pad_token_id": DOTS_OCR.id_of(DOTS_OCR.pad),
            },
        )
        write_weights(
            folder / "model.safetensors", self.shapes(), self.seed, self.spread
        )

    def _config(self) -> dict[str, object]:
        heads = self.hidden // 64
        return {
            "architectures": ["DotsOCRForCausalLM"],
            "auto_map": {"AutoConfig": "configuration_dots.DotsOCRConfig"},
            "model_type": "dots_ocr",
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 2,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": _MAX_POSITIONS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "hidden_act": "silu",
            "attention_bias": True,
            "image_token_id": self.image_token_id,
            "video_token_id": DOTS_OCR.id_of(DOTS_OCR.video),
            "bos_token_id": None,
            "eos_token_id": DOTS_OCR.id_of(DOTS_OCR.eos),
            "vision_config": {
                "embed_dim": self.vision_width,
                "hidden_size": self.hidden,
                "intermediate_size": self.vision_width * 2,
                "num_hidden_layers": self.vision_depth,
                "num_attention_heads": 2,
                "num_channels": 3,
                "patch_size": PATCH,
                "spatial_merge_size": MERGE,
                "temporal_patch_size": 1,
                "rms_norm_eps": 1e-5,
                "use_bias": False,
                "post_norm": True,
            },
        }


FORMAT = 1
"""Raised when what the factory writes changes, so that old cached models are not
reused."""


@dataclass(frozen=True)
class TinyText(TinyModel):
    """What the model is made from; equal values give byte-equal files.

    Attributes:
        architecture: ``llama`` has a head of its own, so that its greedy answers vary;
            its width is ``kv_heads * head_dim``. ``gemma`` may be narrower than its
            heads (LMDeploy reads ``head_dim`` from Gemma's configuration only), for
            real KV geometries at little cost.
        kv_heads: as many as attention heads.
        hidden: width of a ``gemma``; not used for ``llama``.
        std: standard deviation of the weights. transformers' 0.02 gives nearly flat
            logits.
        name: begins the folder's name. LMDeploy chooses the chat template by words in
            the path:
            ``internlm2`` and ``chat`` give InternLM2's.
    """

    kind: ClassVar[str] = "tiny text model with random weights"

    architecture: Literal["llama", "gemma"] = "llama"
    seed: int = 0
    image_tokens: int = 0
    layers: int = 2
    kv_heads: int = 2
    head_dim: int = 128
    hidden: int = 64
    vocab_size: int = 1446
    std: float = 0.12
    name: str = "internlm2-chat"

    @property
    def width(self) -> int:
        return (
            self.kv_heads * self.head_dim
            if self.architecture == "llama"
            else self.hidden
        )

    @property
    def key(self) -> str:
        return named_after(f"{self.name}-tiny", FORMAT, asdict(self))

    def shapes(self) -> Shapes:
        w, heads = self.width, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab_size, w)
        for i in range(self.layers):
            layer = f"model.layers.{i}"
            for name in ("q_proj", "k_proj", "v_proj"):
                yield f"{layer}.self_attn.{name}.weight", (heads, w)
            yield f"{layer}.self_attn.o_proj.weight", (w, heads)
            yield from mlp_and_norms(layer, w)
        yield "model.norm.weight", (w,)
        if self.architecture == "llama":
            yield "lm_head.weight", (self.vocab_size, w)

    def _write_into(self, folder: Path) -> None:
        write_text_model(folder, self, self.vocab_size, self._config)

    def spread(self, name: str) -> tuple[float, float]:
        """Mean and deviation of a weight's random values. A norm starts as the
        identity, which is 0 for Gemma: it multiplies by 1 + weight."""
        if "norm" in name:
            return (1.0 if self.architecture == "llama" else 0.0), 0.0
        return 0.0, self.std

    def _config(self, ids: dict[str, int]) -> dict[str, object]:
        llama = self.architecture == "llama"
        return {
            "architectures": ["LlamaForCausalLM" if llama else "GemmaForCausalLM"],
            "model_type": self.architecture,
            "hidden_size": self.width,
            "intermediate_size": self.width * 2,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.kv_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "tie_word_embeddings": not llama,
            "torch_dtype": "bfloat16",
            "hidden_act": "silu" if llama else "gelu_pytorch_tanh",
            **({} if llama else {"hidden_activation": "gelu_pytorch_tanh"}),
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        }


LLAMAS: Final[Mapping[str, TinyText]] = {
    "text": TinyText(),
    "text-32k": TinyText(vocab_size=32_000),
    "text-152k": TinyText(vocab_size=152_064),
}
"""By the size of their vocabulary. The larger ones have Llama 2's and Qwen's, for
requests that name token ids."""

TINY: Final[Mapping[str, TinyModel]] = {
    "qwen2-vl": TinyQwen2VL(),
    "dots-ocr": TinyDotsOCR(),
    "qwen3": TinyQwen3(),
    **LLAMAS,
    "qwen3-text": TinyQwen3Text(),
    "qwen3-draft": TinyQwen3Text(std=0.3),
    "qwen3-moe": TinyQwen3Moe(),
    "qwen3-next": TinyQwen3Next(),
    "qwen3.5": TinyQwen35(),
    "granite-hybrid": TinyGraniteHybrid(),
    "scorer": TinyScorer(),
}
"""By what a case, and ``--model`` of a replay, call them. The weights of
``qwen3-draft`` are those of ``qwen3-text``, 0.6 times as large: it proposes some 70 of
100 of its tokens."""

ADAPTERS: Final[Mapping[str, TinyModel]] = {
    "lora-a": TinyAdapter(seed=5),
    "lora-b": TinyAdapter(seed=6),
}
"""Adapters of ``qwen3-text``."""

_NAMED: Final = re.compile(r"\{tiny:([a-z0-9.-]+)\}")


def named_in(texts: Iterable[str]) -> list[str]:
    """Names of the models and adapters that options or bodies call ``{tiny:NAME}``."""
    return list(dict.fromkeys(name for text in texts for name in _NAMED.findall(text)))


def with_folders(text: str, cache: Path | None = None) -> str:
    """``text`` with a folder for each ``{tiny:NAME}``, which is written below
    ``cache``; None: as a script beside its model has it. Raises UsageError: no such
    model."""

    def folder(found: re.Match[str]) -> str:
        name = found[1]
        model = TINY.get(name) or ADAPTERS.get(name)
        if model is None:
            raise UsageError(
                f"There is no tiny model {name}.", hint=", ".join([*TINY, *ADAPTERS])
            )
        return f"{BESIDE}/{name}" if cache is None else str(model.write(cache))

    return _NAMED.sub(folder, text)
