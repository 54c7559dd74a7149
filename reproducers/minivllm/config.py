"""What an engine is started with: sizes, faults, and a plugin that may change what it
is made of.

The first six faults are the bugs of the milestone note that added images to a text-only
engine; the others are small copies of failures of vLLM, SGLang and LMDeploy. The code
asks ``name in faults`` at the one place that was wrong; everything else stays as it is.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

PAD_RANGE = 1 << 16
"""Fault pad-value-key: SGLang 0.5.6 takes the hash modulo 2**30; here 300 images
collide."""


@dataclass(frozen=True)
class VisionConfig:
    """The tower: a ViT whose patches are merged ``merge`` x ``merge`` into one
    embedding.

    ``max_tokens``: embeddings of one image; larger pictures are scaled down.
    """

    depth: int = 2
    width: int = 32
    heads: int = 2
    patch: int = 14
    merge: int = 2
    max_tokens: int = 256

    @property
    def factor(self) -> int:
        """Pixels a side that one embedding covers."""
        return self.patch * self.merge


@dataclass(frozen=True)
class ModelConfig:
    """Names are those of a Qwen3 ``config.json``."""

    vocab_size: int = 320
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    tie_word_embeddings: bool = False
    eos_token_id: int = -1
    vision: VisionConfig = VisionConfig()

    @classmethod
    def read(cls, folder: Path) -> ModelConfig:
        """From ``config.json``. Raises OSError or ValueError."""
        content = json.loads((folder / "config.json").read_text())
        vision = VisionConfig(**_known(VisionConfig, content.pop("vision_config", {})))
        # transformers 5 writes rope_parameters, older releases rope_theta
        content |= content.get("rope_parameters") or {}
        return cls(**_known(cls, content), vision=vision)


def _known(cls: type, content: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in content.items() if name in names}


@dataclass(frozen=True)
class EngineConfig:
    """Sizes are in tokens unless they say otherwise.

    Attributes:
        num_blocks: blocks of the KV cache, the null block 0 included.
        max_batched_tokens: of one prefill step; longer prompts are prefilled in chunks.
        mm_cache_tokens: embeddings' worth of images that the image cache holds.
        async_scheduling: prepare the next prefill step before this one runs.
        vision: "fake" seeds embeddings with the image's bytes, "tower" runs the ViT.
        multimodal: False: the image code is never imported.
        images_at_start: the image runner is made before the engine is ready, as the
            note's is; else when the first image comes.
        warm_up_image: the picture that it warms up with; None: a black one.
        vision_ms: a GPU is kept busy that long before each image's embeddings, as by a
            real tower.
        placeholder_ids: how many token ids stand beside inputs_embeds, where nobody
            reads them: of "all" tokens or of the "text".
        check_contract: "log" tells what a step violates, "raise" refuses to run it.
        dtype: "auto" is float32, what equality with transformers needs, on a GPU as
            well.
    """

    num_blocks: int = 257
    block_size: int = 16
    max_model_len: int = 2048
    max_num_seqs: int = 8
    max_batched_tokens: int = 512
    prefix_caching: bool = True
    mm_cache_tokens: int = 4096
    async_scheduling: bool = False
    vision: Literal["fake", "tower"] = "tower"
    vision_ms: int = 0
    multimodal: bool = True
    images_at_start: bool = False
    warm_up_image: Path | None = None
    placeholder_ids: Literal["all", "text"] = "all"
    check_contract: Literal["off", "log", "raise"] = "off"
    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    faults: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if (
            min(
                self.block_size,
                self.max_model_len,
                self.max_num_seqs,
                self.max_batched_tokens,
            )
            < 1
        ):
            raise ValueError("sizes are positive")
        if self.num_blocks < 2:
            raise ValueError("the KV cache needs a block besides the null block")

    @property
    def usable_blocks(self) -> int:
        """What sequences can have: all but the null block."""
        if "kv-budget" in self.faults:
            return max(1, (self.num_blocks - 1) // 10)
        return self.num_blocks - 1


# ------------------------------------------------------------------ faults

FAULTS: dict[str, str] = {
    "warmup-sequence": "warm-up builds plain Sequences where the image prefill expects "
    "ImageSequences",
    "warmup-order": (
        "the base initialiser warms up before the model accepts inputs_embeds"
    ),
    "broken-module": "an edit left the fake vision module with a syntax error",
    "image-path": "the configured warm-up image is a path that does not exist",
    "pinned-placeholder": (
        "the placeholder of the embeddings is pinned, though it is no CPU tensor"
    ),
    "slot-mapping": "last_block_num_tokens is derived from the text ids only",
    "ghost-key-lru": (
        "the image cache's touch inserts missing keys; eviction never gets past them"
    ),
    "pad-value-key": (
        "prefix keys hold the image's digest modulo 65536 in place of the digest"
    ),
    "kv-budget": "the KV cache gets a tenth of its budget, and nobody checks what fits",
    "reused-mask": (
        "the next step is prepared in the mask buffer that this step still reads"
    ),
}

NOTE_FAULTS = tuple(FAULTS)[:6]
"""Those of the note."""


def chosen(faults: Iterable[str], fixes: Iterable[str] = ()) -> frozenset[str]:
    """``faults`` without ``fixes``. Raises ValueError for a name that is not in
    ``FAULTS``."""
    for name in (*faults, *fixes):
        if name not in FAULTS:
            raise ValueError(
                f"there is no fault {name!r}; there is: {', '.join(FAULTS)}"
            )
    return frozenset(faults) - frozenset(fixes)


def by_chance(
    faults: frozenset[str], probability: float, seed: int | None = None
) -> frozenset[str]:
    """All of ``faults`` or none, decided once for a server's life.

    Args:
        seed: None: the system's randomness, so that no two servers agree but by chance.
    """
    source = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311
    return faults if source.random() < probability else frozenset()


# ------------------------------------------------------------------ the plugin

_PLUGIN = "minivllm_plugin"
"""Module of the file that is run before the engine is made, and may change what it is
made of."""


def plugged(file: Path, config: EngineConfig) -> EngineConfig:
    """What the function ``plug`` in ``file`` makes of ``config``.

    Raises:
        ValueError: there is no such file or function, it failed, or it returned
            something else.
    """
    plug = _plug_of(file)
    try:
        found = plug(config)
    except Exception as error:
        raise ValueError(
            f"plugin {file}: plug: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, EngineConfig):
        raise ValueError(
            f"plugin {file}: plug returned no EngineConfig but {found!r:.80}"
        )
    return found


def _plug_of(file: Path) -> Callable[[EngineConfig], object]:
    if not file.is_file():
        raise ValueError(f"plugin {file}: there is no such file")
    spec = importlib.util.spec_from_file_location(_PLUGIN, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"plugin {file}: not a Python file")
    sys.modules[_PLUGIN] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"plugin {file}: {type(error).__name__}: {error}") from error
    plug = getattr(module, "plug", None)
    if not callable(plug):
        raise ValueError(f"plugin {file}: it has no function plug(config)")
    made: Callable[[EngineConfig], object] = plug
    return made
