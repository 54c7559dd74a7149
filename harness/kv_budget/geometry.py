"""What of a model decides the size of its KV cache."""

from __future__ import annotations

from dataclasses import dataclass


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
