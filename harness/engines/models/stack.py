"""Text models of today's stack: mixtures of experts, hybrids with an MTP head,
adapters, scorers.

Names of weights and fields of configurations are those of transformers'
``Qwen3ForCausalLM``, ``Qwen3MoeForCausalLM``, ``Qwen3NextForCausalLM``,
``Qwen3_5ForCausalLM`` and ``GraniteMoeHybridForCausalLM`` (5.19), the head's those of
vLLM's ``Qwen3NextMTP`` (model_executor/models/qwen3_next_mtp.py, 0.32.0). Sizes are the
least that the kernels of vLLM's CPU build take: heads of attention of 32 (``csrc/cpu``
has 32, 64, 80 …), heads of gated delta nets of 64 (``chunk_gated_delta_rule_cpu`` has
64 and 128), and those in bfloat16 only
(model_executor/layers/mamba/ops/cpu/gdn_attention.py)."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.engines.models.base import (
    Shapes,
    TinyModel,
    dump,
    named_after,
    write_text_model,
    write_weights,
)

_FORMAT = 1
"""Raised when what is written changes, so that old cached models are not reused."""
_CONVOLUTION = 4
"""Tokens that the convolution before a recurrent layer sees."""


@dataclass(frozen=True)
class TextModel(TinyModel):
    """A text model in the format of today's architectures.

    Attributes:
    std: standard deviation of the weights. At 0.5 greedy answers do not repeat
        themselves, and the likeliest token leads by a nat: 28 to 31 of 32 tokens of an
        answer differ in the hybrids.
    """

    architecture: ClassVar[str]
    model_type: ClassVar[str]

    seed: int = 0
    image_tokens: int = 0
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    vocab_size: int = 320
    std: float = 0.5

    @property
    def key(self) -> str:
        return named_after(
            f"tiny-{self.model_type.replace('_', '-')}", _FORMAT, self._made_of()
        )

    def _made_of(self) -> list[object]:
        return [self.architecture, asdict(self), self.config({})]

    def _write_into(self, folder: Path) -> None:
        write_text_model(folder, self, self.vocab_size, self.config)

    def shapes(self) -> Shapes:
        h = self.hidden
        yield "model.embed_tokens.weight", (self.vocab_size, h)
        for i in range(self.layers):
            yield from self._layer(i)
        yield "model.norm.weight", (h,)
        yield from self._heads()

    def _heads(self) -> Shapes:
        yield "lm_head.weight", (self.vocab_size, self.hidden)

    def _layer(self, number: int) -> Shapes:
        layer, h = f"model.layers.{number}", self.hidden
        yield from self._attention(f"{layer}.self_attn")
        yield from mlp(f"{layer}.mlp", h, 2 * h)
        yield from self._norms(layer)

    def _norms(self, layer: str) -> Shapes:
        yield f"{layer}.input_layernorm.weight", (self.hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (self.hidden,)

    def _attention(
        self, place: str, *, gated: bool = False, normed: bool = True
    ) -> Shapes:
        """``gated``: the query's projection has a gate of the same size beside it."""
        h, d = self.hidden, self.head_dim
        yield f"{place}.q_proj.weight", (self.heads * d * (2 if gated else 1), h)
        yield f"{place}.k_proj.weight", (self.kv_heads * d, h)
        yield f"{place}.v_proj.weight", (self.kv_heads * d, h)
        yield f"{place}.o_proj.weight", (h, self.heads * d)
        if normed:
            yield f"{place}.q_norm.weight", (d,)
            yield f"{place}.k_norm.weight", (d,)

    def config(self, ids: dict[str, int]) -> dict[str, object]:
        """``config.json``, of the ids of special tokens."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "hidden_act": "silu",
            "bos_token_id": ids.get("<|endoftext|>"),
            "eos_token_id": ids.get("<|im_end|>"),
            "pad_token_id": ids.get("<|endoftext|>"),
            **self._more(),
        }

    def _more(self) -> dict[str, object]:
        """Fields that the architecture has besides."""
        return {}


def mlp(place: str, width: int, inner: int) -> Shapes:
    """Weights of a gated MLP."""
    yield f"{place}.gate_proj.weight", (inner, width)
    yield f"{place}.up_proj.weight", (inner, width)
    yield f"{place}.down_proj.weight", (width, inner)


def experts(place: str, width: int, count: int, inner: int) -> Shapes:
    """Weights of a router and its experts."""
    yield f"{place}.gate.weight", (count, width)
    for number in range(count):
        yield from mlp(f"{place}.experts.{number}", width, inner)


@dataclass(frozen=True)
class TinyQwen3Text(TextModel):
    """What every engine serves: a Qwen3 without a tower, with heads that CPU kernels
    take."""

    kind: ClassVar[str] = "tiny Qwen3 with random weights"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    model_type: ClassVar[str] = "qwen3"


@dataclass(frozen=True)
class TinyLlamaText(TextModel):
    """A Llama: no norm of queries and keys, whose kernels SGLang has for a GPU only."""

    kind: ClassVar[str] = "tiny Llama with random weights"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    model_type: ClassVar[str] = "llama"

    def _attention(
        self, place: str, *, gated: bool = False, normed: bool = False
    ) -> Shapes:
        yield from super()._attention(place, gated=gated, normed=normed)


@dataclass(frozen=True)
class TinyScorer(TinyQwen3Text):
    """A cross-encoder: one number for a text."""

    kind: ClassVar[str] = "tiny Qwen3 that scores texts, random weights"
    architecture: ClassVar[str] = "Qwen3ForSequenceClassification"

    def _heads(self) -> Shapes:
        yield "score.weight", (1, self.hidden)

    def _more(self) -> dict[str, object]:
        return {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


@dataclass(frozen=True)
class TinyQwen3Moe(TextModel):
    kind: ClassVar[str] = "tiny Qwen3 mixture of experts with random weights"
    architecture: ClassVar[str] = "Qwen3MoeForCausalLM"
    model_type: ClassVar[str] = "qwen3_moe"

    experts: int = 4
    inner: int = 32

    def _layer(self, number: int) -> Shapes:
        layer = f"model.layers.{number}"
        yield from self._attention(f"{layer}.self_attn")
        yield from experts(f"{layer}.mlp", self.hidden, self.experts, self.inner)
        yield from self._norms(layer)

    def _more(self) -> dict[str, object]:
        return {
            "num_experts": self.experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": self.inner,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
        }


@dataclass(frozen=True)
class _DeltaNet(TextModel):
    """A hybrid: three layers of a gated delta net, one of gated attention, and an MTP
    head.

    Attributes:
    decay: mean of the logarithm of how fast a state fades. At -6 a state remembers some
        hundred tokens, as trained ones do; at 0.5 it has faded after three, and a wrong
        state, of another request or of none, shows in no answer.
    """

    bfloat16_only: ClassVar[bool] = True

    layers: int = 4
    key_heads: int = 2
    value_heads: int = 4
    state: int = 64
    decay: float = -6.0

    def spread(self, name: str) -> tuple[float, float]:
        """Their norms multiply by 1 + weight, but for the one in the delta net."""
        if name.endswith("A_log"):
            return self.decay, 0.5
        if name.endswith("dt_bias"):
            return 0.5, 0.3
        if "norm" in name and ".linear_attn." not in name:
            return 0.0, 0.0
        return super().spread(name)

    def _layer(self, number: int) -> Shapes:
        layer = f"model.layers.{number}"
        if (number + 1) % 4:
            yield from self._delta_net(f"{layer}.linear_attn")
        else:
            yield from self._attention(f"{layer}.self_attn", gated=True)
        yield from self._mlp(f"{layer}.mlp")
        yield from self._norms(layer)

    def _delta_net(self, place: str) -> Shapes:
        h, keys, values = (
            self.hidden,
            self.key_heads * self.state,
            self.value_heads * self.state,
        )
        yield f"{place}.dt_bias", (self.value_heads,)
        yield f"{place}.A_log", (self.value_heads,)
        yield f"{place}.conv1d.weight", (2 * keys + values, 1, _CONVOLUTION)
        yield from self._projections(place, keys, values)
        yield f"{place}.norm.weight", (self.state,)
        yield f"{place}.out_proj.weight", (h, values)

    def _projections(self, place: str, keys: int, values: int) -> Shapes:
        raise NotImplementedError

    def _mlp(self, place: str) -> Shapes:
        yield from mlp(place, self.hidden, 2 * self.hidden)

    def _heads(self) -> Shapes:
        yield from super()._heads()
        h = self.hidden
        yield "mtp.fc.weight", (h, 2 * h)
        for norm in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
            yield f"mtp.{norm}.weight", (h,)
        yield from self._attention("mtp.layers.0.self_attn", gated=True)
        yield from self._mlp("mtp.layers.0.mlp")
        yield from self._norms("mtp.layers.0")

    def _more(self) -> dict[str, object]:
        return {
            "full_attention_interval": 4,
            "linear_num_value_heads": self.value_heads,
            "linear_num_key_heads": self.key_heads,
            "linear_key_head_dim": self.state,
            "linear_value_head_dim": self.state,
            "linear_conv_kernel_dim": _CONVOLUTION,
        }


@dataclass(frozen=True)
class TinyQwen3Next(_DeltaNet):
    kind: ClassVar[str] = (
        "tiny Qwen3-Next (gated delta nets, experts, MTP) with random weights"
    )
    architecture: ClassVar[str] = "Qwen3NextForCausalLM"
    model_type: ClassVar[str] = "qwen3_next"

    experts: int = 4
    inner: int = 32

    def _projections(self, place: str, keys: int, values: int) -> Shapes:
        yield f"{place}.in_proj_qkvz.weight", (2 * keys + 2 * values, self.hidden)
        yield f"{place}.in_proj_ba.weight", (2 * self.value_heads, self.hidden)

    def _mlp(self, place: str) -> Shapes:
        yield from experts(place, self.hidden, self.experts, self.inner)
        yield from mlp(f"{place}.shared_expert", self.hidden, self.inner)
        yield f"{place}.shared_expert_gate.weight", (1, self.hidden)

    def _more(self) -> dict[str, object]:
        return super()._more() | {
            "partial_rotary_factor": 0.25,
            "num_experts": self.experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": self.inner,
            "shared_expert_intermediate_size": self.inner,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
            "num_nextn_predict_layers": 1,
        }


@dataclass(frozen=True)
class TinyQwen35(_DeltaNet):
    """The language model of Qwen3.5 alone."""

    kind: ClassVar[str] = "tiny Qwen3.5 (gated delta nets, MTP) with random weights"
    architecture: ClassVar[str] = "Qwen3_5ForCausalLM"
    model_type: ClassVar[str] = "qwen3_5_text"

    def _projections(self, place: str, keys: int, values: int) -> Shapes:
        h = self.hidden
        yield f"{place}.in_proj_qkv.weight", (2 * keys + values, h)
        yield f"{place}.in_proj_z.weight", (values, h)
        yield f"{place}.in_proj_b.weight", (self.value_heads, h)
        yield f"{place}.in_proj_a.weight", (self.value_heads, h)

    def _more(self) -> dict[str, object]:
        return super()._more() | {
            "layer_types": [
                "full_attention" if not (i + 1) % 4 else "linear_attention"
                for i in range(self.layers)
            ],
            "attn_output_gate": True,
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.5,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        }


@dataclass(frozen=True)
class TinyGraniteHybrid(TextModel):
    """Three layers of Mamba2 and one of attention, whose heads are as wide as ``hidden
    / heads``: the architecture knows no other width."""

    kind: ClassVar[str] = "tiny Granite hybrid (Mamba2) with random weights"
    architecture: ClassVar[str] = "GraniteMoeHybridForCausalLM"
    model_type: ClassVar[str] = "granitemoehybrid"

    layers: int = 4
    heads: int = 2
    kv_heads: int = 1
    mamba_heads: int = 8
    state: int = 16

    def spread(self, name: str) -> tuple[float, float]:
        return (
            (0.5, 0.3)
            if name.endswith(("A_log", "dt_bias", ".D"))
            else super().spread(name)
        )

    def _types(self) -> Iterator[str]:
        for number in range(self.layers):
            yield "mamba" if (number + 1) % 4 else "attention"

    def _layer(self, number: int) -> Shapes:
        layer, h, inner = f"model.layers.{number}", self.hidden, 2 * self.hidden
        yield from self._norms(layer)
        yield f"{layer}.shared_mlp.input_linear.weight", (2 * inner, h)
        yield f"{layer}.shared_mlp.output_linear.weight", (h, inner)
        if [*self._types()][number] == "attention":
            yield from self._attention(f"{layer}.self_attn", normed=False)
            return
        mixed = inner + 2 * self.state
        for name in ("dt_bias", "A_log", "D"):
            yield f"{layer}.mamba.{name}", (self.mamba_heads,)
        yield f"{layer}.mamba.conv1d.weight", (mixed, 1, _CONVOLUTION)
        yield f"{layer}.mamba.conv1d.bias", (mixed,)
        yield f"{layer}.mamba.in_proj.weight", (inner + mixed + self.mamba_heads, h)
        yield f"{layer}.mamba.norm.weight", (inner,)
        yield f"{layer}.mamba.out_proj.weight", (h, inner)

    def _more(self) -> dict[str, object]:
        return {
            "layer_types": [*self._types()],
            "mamba_n_heads": self.mamba_heads,
            "mamba_d_head": 2 * self.hidden // self.mamba_heads,
            "mamba_n_groups": 1,
            "mamba_d_state": self.state,
            "mamba_d_conv": _CONVOLUTION,
            "mamba_expand": 2,
            "mamba_chunk_size": 256,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 2 * self.hidden,
            "position_embedding_type": "rope",
            "attention_multiplier": self.head_dim**-0.5,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
        }


@dataclass(frozen=True)
class TinyAdapter(TinyModel):
    """A LoRA adapter of :class:`TinyQwen3Text` in PEFT's format, on its attention.

    Attributes:
        std: at 0.3 a first token is another one in most answers.
    """

    kind: ClassVar[str] = "tiny LoRA adapter with random weights"
    weights_file: ClassVar[str] = "adapter_model.safetensors"

    seed: int = 5
    image_tokens: int = 0
    std: float = 0.3
    rank: int = 8
    base: TinyQwen3Text = TinyQwen3Text()

    @property
    def key(self) -> str:
        return named_after("tiny-lora", _FORMAT, asdict(self))

    def shapes(self) -> Shapes:
        for name, shape in self.base.shapes():
            if ".self_attn." in name and "norm" not in name:
                rows, columns = shape
                place = f"base_model.model.{name.removesuffix('.weight')}"
                yield f"{place}.lora_A.weight", (self.rank, columns)
                yield f"{place}.lora_B.weight", (rows, self.rank)

    def _write_into(self, folder: Path) -> None:
        config: dict[str, object] = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": 2 * self.rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "base_model_name_or_path": "tiny",
            "fan_in_fan_out": False,
        }
        dump(folder / "adapter_config.json", config)
        write_weights(folder / self.weights_file, self.shapes(), self.seed, self.spread)
