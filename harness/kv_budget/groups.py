"""vLLM's groups: which layers share a block, how large it is, and the blocks that a
request takes.

Layers of one kind make groups of as many layers as the rarest kind has; every group has
its own block table, and all draw from one pool (0.32.0 v1/core/kv_cache_utils.py:1362).
So a block is one page of each layer of a group, and a request takes the sum of what
each group needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

from mmrepro.base.errors import UsageError
from mmrepro.kv_budget.eras import Era
from mmrepro.kv_budget.layers import CHUNK, FULL, STATE, WINDOW, LayerKind, Layers

KERNEL = {"gpu": 16, "cpu": 32}
"""Tokens of the smallest block that a kernel takes: FlashAttention's, the CPU
backend's."""


@dataclass(frozen=True)
class Serving:
    """What a server's options change of a cache.

    Attributes:
        element: bytes of an element of keys and values; ``model``: of the model's type.
        cell: bytes of an element of a recurrent state; 0: as the model says.
        drafts: draft tokens a step (``num_speculative_tokens``).
        drafter: what the layers of the draft model, MTP or EAGLE head keep.
        in_flight: tokens that are scheduled and not settled:
            ``--max-num-batched-tokens``, times the batches in flight where the release
            counts them.
        prefix_caching: of states; None: the release's default.
        hybrid: each kind has groups of its own; not so with a connector that does not
            support it.
        aligned: the device's smallest kernel block.
    """

    element: int = 2
    model: int = 2
    cell: int = 0
    tp: int = 1
    pp: int = 1
    drafts: int = 0
    drafter: tuple[LayerKind, ...] = ()
    in_flight: int = 2048
    prefix_caching: bool | None = None
    hybrid: bool = True
    aligned: int = KERNEL["gpu"]


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share a block table.

    Attributes:
        block: tokens of a block.
        mode: of a state: ``none``, ``align`` or ``all``.
        checkpoint: blocks of a state that is copied in the middle of a prefill.
        layers: how many of each pipeline stage.
    """

    kind: LayerKind
    block: int
    page: int = 0
    mode: str = ""
    checkpoint: int = 0
    layers: tuple[int, ...] = ()

    @property
    def facts(self) -> dict[str, object]:
        """For a document, and for a line."""
        facts: dict[str, object] = {
            "kind": self.kind.name,
            "layers": "+".join(map(str, self.layers)),
            "block_size": self.block,
            "page_bytes": self.page,
        }
        if self.kind.reach:
            facts["reach"] = self.kind.reach
        if self.mode:
            facts["mode"] = self.mode
        return facts

    def pages(self, tokens: int, serving: Serving) -> int:
        """Blocks that a request of so many tokens takes of this group.

        vLLM 0.32.0 v1/kv_cache_interface.py:613, :823, :881 and :1076.
        """
        kind, in_flight = self.kind, serving.in_flight
        if kind.name == FULL:
            return self._blocks(tokens)
        if kind.name == WINDOW:
            # One more: a window may begin in the middle of a block.
            return self._blocks(min(kind.reach - 1 + in_flight, tokens)) + 1

        if kind.name == CHUNK:
            return self._blocks(min(kind.reach + in_flight, tokens))
        if self.mode == "all":
            return self._blocks(tokens) + serving.drafts
        if self.mode == "align":
            return 2 + self.checkpoint + serving.drafts
        return 1 + serving.drafts

    def _blocks(self, tokens: int) -> int:
        return _ceiling(tokens, self.block)


@dataclass(frozen=True)
class CacheLayout:
    """How the pool is cut.

    Attributes:
        bytes_per_block: on the pipeline stage that has most of it.
        block: tokens of a block of full attention.
        notes: what vLLM changes by itself.
    """

    bytes_per_block: int
    block: int
    groups: tuple[CacheGroup, ...]
    serving: Serving = Serving()
    notes: tuple[str, ...] = ()

    def pages(self, tokens: int) -> int:
        """Blocks that a request of so many tokens takes."""
        return sum(group.pages(tokens, self.serving) for group in self.groups)

    def longest(self, blocks: int) -> int:
        """Tokens of the longest request that so many blocks hold, by halving, as vLLM
        estimates it (0.32.0 v1/core/kv_cache_utils.py:2369); 0: not one token."""
        if self.pages(1) > blocks:
            return 0
        low, high = 1, 2
        while self.pages(high) <= blocks and high < 1 << 40:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.pages(middle) <= blocks:
                low = middle
            else:
                high = middle

        return low


def layout_of(
    layers: Layers, era: Era, block: int, serving: Serving, context: int
) -> CacheLayout:
    """The layout of a model's cache.

    Args:
        block: ``--block-size``.
        context: tokens; the block of a state that is cached for the whole request only.

    Raises:
        UsageError: vLLM does not start with such layers.
    """
    if not serving.hybrid:
        layers = _without_windows(layers)
    kinds = [kind for layer in layers for kind in layer]
    block, sized, mode, notes = _sized(kinds, era, block, serving, context)

    def group_of(kind: LayerKind) -> CacheGroup:
        page, tokens = sized[kind]
        if kind.state is None:
            return CacheGroup(kind, tokens, page)
        scanned = era.checkpoints and kind.state.group > 0  # Mamba2
        return CacheGroup(kind, tokens, page, mode, int(scanned))

    stages: list[list[CacheGroup]] = []
    for start, end in _stages(len(layers), serving.pp):
        stage = []
        for layer in layers[start:end]:
            stage += [group_of(kind) for kind in layer]
        stages.append(stage)

    # A drafter's layers are on the last stage, where the tokens come out.
    for kind in serving.drafter:
        page = block * kind.token_bytes(serving.tp, serving.element)
        stages[-1].append(CacheGroup(kind, block, page))

    every = [group for stage in stages for group in stage]
    if _is_one_group(every):
        # One kind, of whatever sizes: one group, and a block is a page of each layer.
        most = max(sum(group.page for group in stage) for stage in stages)
        only = replace(every[0], layers=tuple(map(len, stages)))
        return CacheLayout(most, block, (only,), serving, notes)

    page = max(group.page for group in every)
    groups = _grouped([_unified(stage, page, era) for stage in stages])
    most = max(group.page * max(group.layers) for group in groups)
    return CacheLayout(most, block, tuple(groups), serving, notes)


def _is_one_group(groups: Sequence[CacheGroup]) -> bool:
    """Whether they are of one kind, reach and block; states are equal besides."""
    names = {(group.kind.name, group.kind.reach, group.block) for group in groups}
    if len(names) != 1:
        return False
    return groups[0].kind.name != STATE or len(set(groups)) == 1


def _without_windows(layers: Layers) -> Layers:
    """Windows and chunks take the blocks of full attention where there is some."""
    kinds = {kind.name for layer in layers for kind in layer}
    if kinds <= {FULL} or len(kinds) == 1:
        return layers
    if STATE in kinds:
        raise UsageError(
            "vLLM does not start: a model with states needs a KV connector that "
            "supports several groups."
        )

    if FULL not in kinds:
        return layers
    full = []
    for layer in layers:
        full.append(tuple(replace(kind, name=FULL, reach=0) for kind in layer))
    return tuple(full)


def _sized(
    kinds: Sequence[LayerKind], era: Era, block: int, serving: Serving, context: int
) -> tuple[int, dict[LayerKind, tuple[int, int]], str, tuple[str, ...]]:
    """Tokens of a block of attention; of each kind the bytes and tokens of its page;
    the mode of states; and sentences. vLLM 0.32.0 platforms/interface.py:939."""
    attention = [kind for kind in kinds if kind.name != STATE]
    states = [kind for kind in kinds if kind.name == STATE]
    each = {}
    for kind in states:
        if kind.state:
            each[kind] = kind.state.bytes(
                serving.tp, serving.drafts, serving.model, serving.cell
            )

    mode = _state_mode(states, era, serving)
    notes: tuple[str, ...] = ()
    padded = 0
    if states and attention:
        most = max(each.values(), default=0)
        token = attention[0].token_bytes(serving.tp, serving.element)
        kernel = max(serving.aligned, block)
        if era.aligns_latents and attention[0].mla:
            kernel = max(kernel, 128)
        if mode == "all":
            unit = lcm(states[0].chunk, kernel)
            needed = unit * _ceiling(_ceiling(most, token), unit)
        else:
            needed = kernel * _ceiling(most, kernel * token)
        if needed > block:
            note = f"vLLM raises the block size to {needed} tokens: one state fits a "
            notes = (note + "block",)
            block = needed
        padded = block * token

    own = block if mode != "none" else context or block
    sized = {kind: (padded or size, own) for kind, size in each.items()}
    for kind in attention:
        sized[kind] = block * kind.token_bytes(serving.tp, serving.element), block
    return block, sized, mode, notes


def _state_mode(states: Sequence[LayerKind], era: Era, serving: Serving) -> str:
    """Which states are cached: ``none``, ``all``, or those at a block's end."""
    caching = serving.prefix_caching
    if caching is None:
        caching = era.caches_states
    if not states or not caching:
        return "none"
    scanned = states[0].state is not None and states[0].state.group > 0
    return "all" if era.caches_every_state and scanned else "align"


def _ceiling(amount: int, unit: int) -> int:
    """How many units hold the amount."""
    return -(-amount // unit)


def _stages(count: int, pp: int) -> list[tuple[int, int]]:
    """First and last layer of each pipeline stage (0.32.0 distributed/utils.py,
    get_pp_indices): what is left over goes to the last stages but one."""
    sizes = [count // pp] * pp
    for n in range(2, count % pp + 2):
        sizes[-n] += 1
    ends = [sum(sizes[: n + 1]) for n in range(pp)]
    return [*zip([0, *ends], ends, strict=False)]


def _unified(stage: list[CacheGroup], page: int, era: Era) -> list[CacheGroup]:
    """Pages of one size: a smaller one gets more tokens, or is padded."""
    unified = []
    for group in stage:
        is_state = group.kind.name == STATE
        if group.page == page:
            unified.append(group)
        elif is_state and era.pads_pages:
            unified.append(replace(group, page=page))
        elif not is_state and page % group.page == 0:
            block = group.block * (page // group.page)
            unified.append(replace(group, page=page, block=block))
        elif not is_state and era.pads_pages and not group.kind.mla:
            unified.append(replace(group, page=page))
        else:
            raise UsageError(
                f"vLLM does not start: pages of {group.page:,} and of {page:,} bytes "
                "cannot be made equal."
            )

    return unified


def _grouped(stages: list[list[CacheGroup]]) -> list[CacheGroup]:
    """Groups of equal numbers of layers, each with layers of every stage."""
    by_kind: dict[CacheGroup, list[int]] = {}
    for number, stage in enumerate(stages):
        for group in stage:
            by_kind.setdefault(group, []).append(number)

    counts = [len(numbers) for numbers in by_kind.values()]
    # Where no kind has half as many layers again as another, none is divided.
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    grouped = []
    for group, numbers in by_kind.items():
        several = _ceiling(len(numbers), size)
        for first in range(several):
            own = numbers[first::several]
            layers = tuple(own.count(number) for number in range(len(stages)))
            grouped.append(replace(group, layers=layers))

    return grouped
