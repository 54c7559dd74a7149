"""Operators for LMDeploy on a CPU: its own ``default`` backend, and paged attention in
torch.

Which blocks a sequence has, and in which order, is decided by LMDeploy; the attention
here writes and reads exactly those. What it does not compute it refuses."""

import functools
from typing import Any

import torch
from lmdeploy.pytorch.backends.attention import AttentionImpl
from lmdeploy.pytorch.backends.base import OpsBackend
from lmdeploy.pytorch.backends.cuda.op_backend import CudaOpsBackend
from lmdeploy.pytorch.backends.default import DefaultOpsBackend

_QUERIES_AT_ONCE = 512
"""Bounds the memory of a long prompt's scores."""


def _refuse(what: str) -> None:
    raise NotImplementedError(f"mmrepro's stand-in for paged attention has no {what}")


class _PagedAttention(AttentionImpl):
    """Attention over paged caches of shape [blocks, block size, KV heads, head
    size]."""

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        k_cache: Any,
        v_cache: Any,
        attn_metadata: Any,
        k_scales_zeros: Any = None,
        v_scales_zeros: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Tensors are [tokens, heads, head size], the sequences of a step one after the
        other."""
        if (
            k_scales_zeros is not None
            or v_scales_zeros is not None
            or attn_metadata.quant_policy
        ):
            _refuse("quantised KV cache")
        if self.alibi:
            _refuse("ALiBi")
        if self.logit_softcapping:
            _refuse("soft cap of logits")
        if (
            kwargs.get("learnable_sink") is not None
            or kwargs.get("nsa_indices") is not None
        ):
            _refuse("attention sink or sparse index")
        block_size = k_cache.size(1)
        out = query.new_zeros((*query.shape[:-1], self.v_head_size))
        meta = attn_metadata
        for i in range(meta.q_seqlens.numel()):
            start, new, total = (
                int(t[i]) for t in (meta.q_start_loc, meta.q_seqlens, meta.kv_seqlens)
            )
            blocks = meta.block_offsets[i].long()
            if (total - 1) // block_size >= blocks.numel():
                # Newer releases prepare a step before they know that a sequence has
                # ended: its blocks are gone and nobody reads its row.
                continue
            position = torch.arange(total)
            # The pool itself is indexed by block and place: a release whose caches are
            # strided (0.18.0) would get a copy of what is reshaped first.
            block, place = blocks[position // block_size], position % block_size
            rows = slice(start, start + new)
            if key is not None:
                written = block[total - new :], place[total - new :]
                k_cache[written] = key[rows]
                v_cache[written] = value[rows]
            out[rows] = self._one(
                query[rows], k_cache[block, place], v_cache[block, place]
            )
        return out

    def _one(self, query: Any, keys: Any, values: Any) -> Any:
        """One sequence; its queries are the last positions of the keys.

        In plain float32: torch 2.4's fused attention gives NaN for 5683 bfloat16
        queries of 4 heads of 64 (seen with LMDeploy 0.6.4)."""
        new, total = query.size(0), keys.size(0)
        q, k, v = (t.transpose(0, 1).float() for t in (query, keys, values))
        if self.num_heads != self.num_kv_heads:
            group = self.num_heads // self.num_kv_heads
            k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        window = self.sliding_window
        if isinstance(window, tuple):
            window = window[0]
        pieces = []
        for first in range(0, new, _QUERIES_AT_ONCE):
            last = min(first + _QUERIES_AT_ONCE, new)
            seen = total - new + last  # keys that the last of these queries sees
            of_query = torch.arange(total - new + first, seen)[:, None]
            of_key = torch.arange(seen)[None, :]
            hidden = of_key > of_query
            if window and window > 0:
                hidden |= of_key <= of_query - window
            scores = (q[:, first:last] @ k[:, :seen].transpose(1, 2)) * self.scale
            scores.masked_fill_(hidden, float("-inf"))
            pieces.append(scores.softmax(-1) @ v[:, :seen])
        return torch.cat(pieces, 1).transpose(0, 1).to(query.dtype)


class _Builder:
    """How releases up to 0.15 ask for attention."""

    @staticmethod
    def build(
        num_heads: int,
        head_size: int,
        scale: float | None = None,
        num_kv_heads: int | None = None,
        v_head_size: int | None = None,
        alibi: bool = False,
        sliding_window: Any = None,
        logit_softcapping: float | None = None,
        **kwargs: Any,
    ) -> Any:
        if kwargs.get("causal", True) is not True:
            _refuse("attention to later positions")
        return _PagedAttention(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            v_head_size,
            alibi,
            sliding_window,
            logit_softcapping,
        )


class _ByLayerType(CudaOpsBackend):
    """CUDA's block shapes and step context, the default backend's operators."""

    build_graph_runner = OpsBackend.build_graph_runner

    @classmethod
    def get_layer_impl_builder(cls, layer_type: Any) -> Any:
        if layer_type.name in ("Attention", "PagedAttention"):  # 0.6.4; 0.6.5 and later
            return _Builder
        return DefaultOpsBackend.get_layer_impl_builder(layer_type)


class _BySpec(CudaOpsBackend):
    """The same for releases that ask by a specification (0.18.0)."""

    build_graph_runner = OpsBackend.build_graph_runner

    @classmethod
    def build_op(cls, spec: Any, **kwargs: Any) -> Any:
        if type(spec).__name__ == "PagedAttentionBuildSpec":
            return _PagedAttention(
                spec.num_heads,
                spec.head_dim,
                spec.scale,
                spec.num_kv_heads,
                spec.v_head_dim,
                sliding_window=spec.sliding_window,
            )
        return DefaultOpsBackend.build_op(spec, **kwargs)


@functools.cache
def backend() -> type:
    return _BySpec if hasattr(OpsBackend, "build_op") else _ByLayerType
