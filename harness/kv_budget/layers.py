"""What each layer of a model keeps, read from its ``config.json``: keys and values of
all tokens, of a window or a chunk of them, or one state a request.

State sizes are those of vLLM 0.32.0 model_executor/layers/mamba/mamba_utils.py:192
(Mamba2), :172 (Mamba1), :251 (short convolution) and :282 (gated delta net)."""

from __future__ import annotations

from dataclasses import dataclass, replace

_Json = dict[str, object]

FULL, WINDOW, CHUNK, STATE = "full", "window", "chunk", "state"
_NAMES = {
    "full_attention": FULL,
    "attention": FULL,
    "global_attention": FULL,
    "*": FULL,
    "sliding_attention": WINDOW,
    "sliding_window": WINDOW,
    "chunked_attention": CHUNK,
    "linear_attention": STATE,
    "mamba": STATE,
    "mamba2": STATE,
    "conv": STATE,
    "M": STATE,
    "mlp": "",
    "moe": "",
    "-": "",
    "E": "",
}
"""Names in ``layer_types`` and its forerunners, and letters of
``hybrid_override_pattern``."""
_ODD_TYPES = {
    **dict.fromkeys(
        ("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), "an index beside its latents"
    ),
    **dict.fromkeys(
        ("kimi_linear", "kimi_k3"), "latents beside the states of delta attention"
    ),
    **dict.fromkeys(
        ("minimax", "minimax_m1", "minimax_text_01"), "lightning attention"
    ),
    **dict.fromkeys(
        ("zamba2", "plamo2", "phi4flash", "rwkv6", "rwkv7"), "layers of its own kind"
    ),
}
_STATEFUL = (
    "mamba_d_state",
    "ssm_state_size",
    "linear_num_value_heads",
    "mamba_num_heads",
    "mamba_n_heads",
    "linear_attn_config",
    "conv_L_cache",
    "time_step_rank",
)
FLOATS = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class _RecurrentState:
    """A recurrent state: a convolution's last inputs, and cells.

    Attributes:
        conv: channels of the convolution, ``groups`` times ``group`` apart.
        kernel: its taps.
        cells: elements of the recurrent state.
        cell_bytes: of one; 0: as the model's type.
        drafts: a draft token lengthens the convolution's window by one.
    """

    conv: int
    kernel: int
    groups: int = 0
    group: int = 0
    cells: int = 0
    cell_bytes: int = 0
    drafts: bool = True

    def bytes(self, tp: int, drafts: int, element: int, cell: int = 0) -> int:
        """On one of ``tp`` devices; ``cell``: bytes of a cell, whatever the model says.
        Groups that cannot be divided are as many as devices."""
        groups = self.groups if self.groups % tp == 0 else tp
        wide = (self.conv + groups * self.group) // tp
        taps = self.kernel - 1 + (drafts if self.drafts else 0)
        return wide * taps * element + self.cells // tp * (
            cell or self.cell_bytes or element
        )


@dataclass(frozen=True)
class LayerKind:
    """What a layer keeps.

    Attributes:
        name: ``full``, ``window``, ``chunk`` or ``state``.
        heads: of keys and values, before tensor parallelism; 1 for latents (MLA).
        width: elements of a key and a value of one head.
        mla: latents.
        reach: tokens of the window or chunk.
        chunk: tokens of a Mamba kernel's chunk, where vLLM caches the state of every
            block.
    """

    name: str
    heads: int = 0
    width: int = 0
    mla: bool = False
    reach: int = 0
    state: _RecurrentState | None = None
    chunk: int = 0

    def token_bytes(self, tp: int, element: int) -> int:
        """Of one token on one of ``tp`` devices; with more devices than heads each
        keeps one."""
        return max(1, self.heads // tp) * self.width * element


Layers = tuple[tuple[LayerKind, ...], ...]
"""What each layer keeps, in order; a feed-forward layer keeps nothing, some keep two
things."""


def layers_of(text: _Json, full: LayerKind, count: int) -> tuple[Layers, str]:
    """The layers of a language model's config, and why there is no formula for them;
    "": there is.

    ``full``: a layer of full attention; ``count``: of layers.
    """
    kind = str(text.get("model_type", "")).removesuffix("_text")
    if odd := _ODD_TYPES.get(kind, ""):
        return (), f"{kind} has {odd}"
    if text.get("global_head_dim") or text.get("swa_head_dim"):
        return (), f"{kind} has heads of two sizes"
    names = _named(text, kind, count)
    if names is None or len(names) != count or "?" in names:
        return (
            (),
            f"the layers of {kind or 'this model'} have kinds that are not known here",
        )

    if STATE not in names and kind != "falcon_h1" and any(map(text.get, _STATEFUL)):
        return (
            (),
            f"{kind or 'this model'} has states in layers that are not known here",
        )

    reach = {
        WINDOW: _whole(text, "sliding_window"),
        CHUNK: _whole(text, "attention_chunk_size"),
    }
    state = _state(text, kind) if STATE in names or kind == "falcon_h1" else None
    if STATE in names and state is None:
        return (), f"the state of {kind} has a size that is not known here"
    chunk = _whole(text, "mamba_chunk_size", "chunk_size", "ssm_chunk_size") or 256
    made = {
        "": (),
        FULL: (full,),
        STATE: (LayerKind(STATE, state=state, chunk=chunk),),
        # A window without a size is none.
        **{
            n: (replace(full, name=n, reach=r) if r else full,)
            for n, r in reach.items()
        },
    }
    layers = [made[name] for name in names]
    if kind == "falcon_h1":  # attention and a state side by side, in each layer
        layers = [(*made[STATE], full)] * count
    shared = _whole(text, "num_kv_shared_layers")
    return (*layers[: count - shared], *[()] * shared), ""


def _named(text: _Json, kind: str, count: int) -> list[str] | None:
    """The name of each layer; "?" where it is not known; None: the config has another
    form."""
    for field in ("layer_types", "layers_block_type", "attn_type_list"):
        if isinstance(given := text.get(field), list):
            return [_NAMES.get(str(one), "?") for one in given]

    if isinstance(pattern := text.get("hybrid_override_pattern"), str):
        return [_NAMES.get(letter, "?") for letter in pattern]
    every = _whole(text, "full_attention_interval") or {
        "qwen3_next": 4,
        "qwen3_5": 4,
    }.get(kind, 0)
    if every:
        return [FULL if (n + 1) % every == 0 else STATE for n in range(count)]
    if period := _whole(text, "attn_layer_period"):
        offset = _whole(text, "attn_layer_offset")
        return [FULL if n % period == offset else STATE for n in range(count)]

    if isinstance(indices := text.get("attn_layer_indices"), list):
        return [FULL if n in indices else STATE for n in range(count)]
    every = _whole(text, "sliding_window_pattern") or {
        "gemma2": 2,
        "gpt_oss": 2,
        "cohere2": 4,
        "gemma3": 6,
        "gemma3n": 5,
    }.get(kind, 0)
    if every:
        return [FULL if (n + 1) % every == 0 else WINDOW for n in range(count)]
    if isinstance(rotary := text.get("no_rope_layers"), list) and _whole(
        text, "attention_chunk_size"
    ):
        return [CHUNK if one else FULL for one in rotary]

    if text.get("interleaved_sliding_window") or text.get("sliding_window_pattern"):
        return None
    if kind in ("mamba", "mamba2", "falcon_mamba"):
        return [STATE] * count
    windows = _whole(text, "sliding_window") and text.get("use_sliding_window", True)
    return [WINDOW if windows else FULL] * count


def _state(text: _Json, kind: str) -> _RecurrentState | None:
    hidden = _whole(text, "hidden_size")
    if values := _whole(text, "linear_num_value_heads"):
        keys = _whole(text, "linear_num_key_heads")
        key, value = (
            _whole(text, "linear_key_head_dim"),
            _whole(text, "linear_value_head_dim"),
        )
        conv, cells = 2 * keys * key + values * value, values * value * key
        kernel = _whole(text, "linear_conv_kernel_dim")
        return _RecurrentState(
            conv, kernel, cells=cells, cell_bytes=_float(text, "mamba_ssm_dtype")
        )

    if kernel := _whole(text, "conv_L_cache"):
        return _RecurrentState(_whole(text, "conv_dim") or hidden, kernel)
    kernel = _whole(text, "mamba_d_conv", "conv_kernel")
    size = _whole(text, "mamba_d_state", "ssm_state_size", "state_size")
    heads = _whole(text, "mamba_n_heads", "mamba_num_heads")
    if not (kernel and size):
        return None
    if kind == "nemotron_h":
        width = heads * _whole(text, "mamba_head_dim")
        cell = _float(text, "mamba_ssm_cache_dtype") or 4
    else:
        expand = text.get("mamba_expand") or text.get("expand") or 2
        width = _whole(text, "mamba_d_ssm", "mamba_intermediate_size")
        width = width or int(
            (expand if isinstance(expand, int | float) else 2) * hidden
        )
        cell = 0

    if not heads:
        return _RecurrentState(width, kernel, cells=width * size, drafts=False)
    groups = _whole(text, "mamba_n_groups", "n_groups") or 1
    head = _whole(text, "mamba_d_head", "mamba_head_dim") or width // heads
    return _RecurrentState(width, kernel, groups, 2 * size, heads * head * size, cell)


def _whole(text: _Json, *names: str) -> int:
    """The first of these fields that holds a whole number above 0; 0 when none does."""
    found = (text.get(name) for name in names)
    return next((one for one in found if type(one) is int and 0 < one < 1 << 32), 0)


def _float(text: _Json, name: str) -> int:
    return FLOATS.get(str(text.get(name, "")).removeprefix("torch."), 0)
