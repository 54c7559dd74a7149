"""Text models of two kinds with random weights, written without torch, sized by their KV cache.

What matters here is the KV geometry: layers, KV heads and head size decide how many bytes one
block of the paged cache takes, the vocabulary how much memory LMDeploy keeps back for the forward
pass. The rest is as small as it can be. Names of weights and configuration fields are those of
transformers' ``LlamaForCausalLM`` and ``GemmaForCausalLM``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from mmrepro.models.base import Shapes, TinyModel, dump, mlp_and_norms, named_after, write_weights

FORMAT = 1
"""Raised when what the factory writes changes, so that old cached models are not reused."""


@dataclass(frozen=True)
class TinyText(TinyModel):
    """What the model is made from; equal values give byte-equal files.

    Attributes:
        architecture: ``llama`` has a head of its own, so that its greedy answers vary; its width
            is ``kv_heads * head_dim``. ``gemma`` may be narrower than its heads (LMDeploy reads
            ``head_dim`` from Gemma's configuration only), for real KV geometries at little cost.
        kv_heads: as many as attention heads.
        hidden: width of a ``gemma``; not used for ``llama``.
        std: standard deviation of the weights. transformers' 0.02 gives nearly flat logits.
        name: begins the folder's name. LMDeploy chooses the chat template by words in the path:
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
        """Size of a hidden state."""
        return self.kv_heads * self.head_dim if self.architecture == "llama" else self.hidden

    @property
    def key(self) -> str:
        """Names the folder: everything that decides the files."""
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
        from mmrepro.models.tokenizer import write_tokenizer

        ids = write_tokenizer(folder, self.vocab_size)
        path = folder / "tokenizer_config.json"
        tokenizer = json.loads(path.read_text())
        for name in ("processor_class", "image_token", "video_token"):
            del tokenizer[name]
        dump(path, tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast"})
        dump(folder / "config.json", self._config(ids))
        dump(
            folder / "generation_config.json",
            {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]},
        )
        write_weights(folder / "model.safetensors", self.shapes(), self.seed, self.spread)

    def spread(self, name: str) -> tuple[float, float]:
        """Mean and deviation of a weight's random values. A norm starts as the identity, which
        is 0 for Gemma: it multiplies by 1 + weight."""
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
