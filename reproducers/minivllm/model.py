"""Qwen3 in plain torch, with a paged KV cache. Names of modules and weights as in
transformers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import ModelConfig


@dataclass
class Context:
    """What attention needs besides the hidden states; B sequences, N tokens.

    Attributes:
        slots: (N,) where keys and values go.
        lens: (B,) tokens that each sequence's last query sees, itself included.
        tables: (B, blocks) block tables, padded with the null block.
        starts: prefill: cu_seqlens_q, B + 1 numbers; None in decode: one token a
            sequence.
        seen: prefill: ``lens`` on the host; reading it from the device would wait for
            that.
    """

    slots: Tensor
    lens: Tensor
    tables: Tensor
    starts: list[int] | None = None
    seen: Sequence[int] = ()


class KVCache:
    """Keys and values of every layer, (layers, 2, blocks * block_size, kv heads, head
    size)."""

    def __init__(
        self,
        model: ModelConfig,
        blocks: int,
        block_size: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        heads = (model.num_key_value_heads, model.head_dim)
        shape = (model.num_hidden_layers, 2, blocks * block_size, *heads)
        self.data = torch.zeros(shape, device=device, dtype=dtype)
        self.block_size = block_size

    def store(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Raises AssertionError without one slot a token, as MinivLLM does
        (attention.py)."""
        assert slots.numel() == key.shape[0], (
            "Slot mapping size must match number of tokens"
        )
        self.data[layer, 0, slots] = key
        self.data[layer, 1, slots] = value

    def read(self, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the blocks in ``tables`` (…, blocks): (…, tokens, heads,
        size)."""
        offsets = torch.arange(self.block_size, device=tables.device)
        slots = (tables.unsqueeze(-1) * self.block_size + offsets).flatten(-2)
        return self.data[layer, 0, slots], self.data[layer, 1, slots]


class _RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of ``x`` (N, heads, size) at ``positions`` (N,)."""
    half = x.shape[-1] // 2
    steps = torch.arange(0, half, device=x.device, dtype=torch.float32) / half
    angles = positions.float()[:, None] * theta**-steps
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.config = layer, config
        size, hidden = config.head_dim, config.hidden_size
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * size, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * size, bias=False)
        self.o_proj = nn.Linear(heads * size, hidden, bias=False)
        self.q_norm = _RMSNorm(size, config.rms_norm_eps)
        self.k_norm = _RMSNorm(size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, positions: Tensor, cache: KVCache, context: Context
    ) -> Tensor:
        size, theta = self.config.head_dim, self.config.rope_theta
        query = rotate(
            self.q_norm(self.q_proj(x).unflatten(-1, (-1, size))), positions, theta
        )
        key = rotate(
            self.k_norm(self.k_proj(x).unflatten(-1, (-1, size))), positions, theta
        )
        value = self.v_proj(x).unflatten(-1, (-1, size))
        cache.store(self.layer, key, value, context.slots)
        attend = self._decode if context.starts is None else self._prefill
        return self.o_proj(attend(query, cache, context).flatten(-2))

    def _prefill(self, query: Tensor, cache: KVCache, context: Context) -> Tensor:
        """A sequence after the other: its new tokens see all of it up to themselves."""
        assert context.starts is not None
        found = []
        ends = zip(context.starts, context.starts[1:], strict=False)
        for row, ((start, end), seen) in enumerate(
            zip(ends, context.seen, strict=True)
        ):
            keys, values = cache.read(self.layer, context.tables[row])
            keys, values = keys[:seen], values[:seen]
            own = torch.arange(seen - (end - start), seen, device=query.device)
            visible = torch.arange(seen, device=query.device) <= own[:, None]
            found.append(
                self._attend(query[None, start:end], keys[None], values[None], visible)[
                    0
                ]
            )
        return torch.cat(found)

    def _decode(self, query: Tensor, cache: KVCache, context: Context) -> Tensor:
        """All sequences at once, each with its one new token; shapes depend on B and
        width only."""
        keys, values = cache.read(self.layer, context.tables)
        places = torch.arange(keys.shape[1], device=query.device)
        visible = (places < context.lens[:, None])[:, None, None]
        return self._attend(query[:, None], keys, values, visible)[:, 0]

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor
    ) -> Tensor:
        """(B, new, heads, size) over (B, seen, kv heads, size)."""
        query, keys, values = (t.transpose(1, 2) for t in (query, keys, values))
        found = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=visible, enable_gqa=True
        )
        return found.transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, index)
        self.mlp = MLP(config)
        self.input_layernorm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = _RMSNorm(
            config.hidden_size, config.rms_norm_eps
        )

    def forward(
        self, x: Tensor, positions: Tensor, cache: KVCache, context: Context
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, cache, context)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3(nn.Module):
    """Text only: it is given token ids."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            _Layer(config, i) for i in range(config.num_hidden_layers)
        )
        self.norm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, input_ids: Tensor, positions: Tensor, cache: KVCache, context: Context
    ) -> Tensor:
        """Hidden states (N, hidden) of ``input_ids`` (N,)."""
        return self.run(self.embed_tokens(input_ids), positions, cache, context)

    def run(
        self, x: Tensor, positions: Tensor, cache: KVCache, context: Context
    ) -> Tensor:
        for layer in self.layers:
            x = layer(x, positions, cache, context)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def load(self, weights: dict[str, Tensor]) -> None:
        """From a Qwen3ForCausalLM's weights. Raises RuntimeError and names what is
        missing."""
        own = {
            name.removeprefix("model."): tensor
            for name, tensor in weights.items()
            if name.startswith(("model.", "lm_head."))
        }
        if self.config.tie_word_embeddings:
            own["lm_head.weight"] = own["embed_tokens.weight"]
        self.load_state_dict(own)
