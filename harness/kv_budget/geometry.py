"""What of a model decides the size of its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmrepro.errors import UsageError


@dataclass(frozen=True)
class Geometry:
    """One model's attention, as far as its cache is concerned.

    Attributes:
        layers: that keep keys and values.
        kv_heads: of one layer, before tensor parallelism; 1 for latent attention (MLA).
        k_dim: elements of a key per head; latent plus rotary elements for MLA.
        v_dim: elements of a value per head; 0 for MLA, whose cache holds no values of its own.
        dtype_bytes: of one element of the model's type.
        vocab_size: 0 when unknown.
        context: longest sequence that the model is made for; 0 when unknown.
        window: of sliding attention in all layers; 0 for none.
        mla: latent attention.
        plain_head_dim: hidden size over attention heads; differs from ``k_dim`` in models that
            set ``head_dim``, which old LMDeploy ignores. 0 when unknown.
        mixed: layers of several kinds (full and sliding, or state-space): engines size such
            caches layer by layer.
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
    mixed: bool = False
    model_type: str = ""

    def token_bytes(self, engine: str, tp: int, kv_dtype: str, sizes: Mapping[str, int]) -> int:
        """Of one token over all layers on one of ``tp`` devices, as vLLM and SGLang count.

        ``sizes``: of an element by the cache's type; 0 for the model's own. Raises UsageError.
        """
        if kv_dtype not in sizes:
            raise UsageError(
                f"No formula here for {engine}'s KV cache type {kv_dtype!r}; there is: "
                f"{', '.join(sizes)}."
            )
        if self.mixed:
            raise UsageError(
                f"This model mixes layers of several kinds, which {engine} sizes apart; there is "
                "no formula for that here. Give --block-bytes instead."
            )
        heads = 1 if self.mla else max(1, self.kv_heads // tp)
        element = sizes[kv_dtype] or self.dtype_bytes
        return self.layers * heads * (self.k_dim + self.v_dim) * element
