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
from mmrepro.kv_budget.layers import CHUNK, FULL, STATE, WINDOW, Kind, Layers

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
    drafter: tuple[Kind, ...] = ()
    in_flight: int = 2048
    prefix_caching: bool | None = None
    hybrid: bool = True
    aligned: int = KERNEL["gpu"]


@dataclass(frozen=True)
class Group:
    """Layers that share a block table.

    Attributes:
        block: tokens of a block.
        mode: of a state: ``none``, ``align`` or ``all``.
        checkpoint: blocks of a state that is copied in the middle of a prefill.
        layers: how many of each pipeline stage.
    """

    kind: Kind
    block: int
    page: int = 0
    mode: str = ""
    checkpoint: int = 0
    layers: tuple[int, ...] = ()

    @property
    def facts(self) -> dict[str, object]:
        """For a document, and for a line."""
        return {
            "kind": self.kind.name,
            "layers": "+".join(map(str, self.layers)),
            "block_size": self.block,
            "page_bytes": self.page,
            **({"reach": self.kind.reach} if self.kind.reach else {}),
            **({"mode": self.mode} if self.mode else {}),
        }

    def pages(self, tokens: int, serving: Serving) -> int:
        """Blocks that a request of so many tokens takes of this group.

        vLLM 0.32.0 v1/kv_cache_interface.py:613, :823, :881 and :1076.
        """
        kind, in_flight = self.kind, serving.in_flight
        if kind.name == FULL:
            return -(-tokens // self.block)
        if kind.name == WINDOW:
            return -(-min(kind.reach - 1 + in_flight, tokens) // self.block) + 1
        if kind.name == CHUNK:
            return -(-min(kind.reach + in_flight, tokens) // self.block)
        if self.mode == "all":
            return -(-tokens // self.block) + serving.drafts
        return (2 + self.checkpoint if self.mode == "align" else 1) + serving.drafts


@dataclass(frozen=True)
class Layout:
    """How the pool is cut.

    Attributes:
        bytes_per_block: on the pipeline stage that has most of it.
        block: tokens of a block of full attention.
        notes: what vLLM changes by itself.
    """

    bytes_per_block: int
    block: int
    groups: tuple[Group, ...]
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
            low, high = (
                (middle, high) if self.pages(middle) <= blocks else (low, middle)
            )
        return low


def layout_of(
    layers: Layers, era: Era, block: int, serving: Serving, context: int
) -> Layout:
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

    def made(kind: Kind) -> Group:
        page, tokens = sized[kind]
        if kind.state is None:
            return Group(kind, tokens, page)
        scanned = era.checkpoints and kind.state.group > 0  # Mamba2
        return Group(kind, tokens, page, mode, int(scanned))

    stages = [
        [made(kind) for layer in layers[start:end] for kind in layer]
        for start, end in _stages(len(layers), serving.pp)
    ]
    for kind in serving.drafter:
        stages[-1].append(
            Group(kind, block, block * kind.token_bytes(serving.tp, serving.element))
        )
    every = [group for stage in stages for group in stage]
    names = {(g.kind.name, g.kind.reach, g.block) for g in every}
    if len(names) == 1 and (every[0].kind.name != STATE or len({*every}) == 1):
        # One kind, of whatever sizes: one group, and a block is a page of each layer.
        most = max(sum(group.page for group in stage) for stage in stages)
        one = replace(every[0], layers=tuple(len(stage) for stage in stages))
        return Layout(most, block, (one,), serving, notes)
    stages = [_unified(stage, max(g.page for g in every), era) for stage in stages]
    found = _grouped(stages)
    most = max(g.page * count for g in found for count in g.layers)
    return Layout(most, block, tuple(found), serving, notes)


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
    return tuple(
        tuple(replace(k, name=FULL, reach=0) for k in layer) for layer in layers
    )


def _sized(
    kinds: Sequence[Kind], era: Era, block: int, serving: Serving, context: int
) -> tuple[int, dict[Kind, tuple[int, int]], str, tuple[str, ...]]:
    """Tokens of a block of attention; of each kind the bytes and tokens of its page;
    the mode of states; and sentences. vLLM 0.32.0 platforms/interface.py:939."""
    notes: tuple[str, ...] = ()
    caching = (
        era.caches_states if serving.prefix_caching is None else serving.prefix_caching
    )
    attention = [kind for kind in kinds if kind.name != STATE]
    states = [kind for kind in kinds if kind.name == STATE]
    each = {
        kind: kind.state.bytes(serving.tp, serving.drafts, serving.model, serving.cell)
        for kind in states
        if kind.state
    }
    most, mode = max(each.values(), default=0), "none"
    if states and caching:
        scanned = states[0].state is not None and states[0].state.group > 0
        mode = "all" if era.caches_every_state and scanned else "align"
    padded = 0
    if states and attention:
        token = attention[0].token_bytes(serving.tp, serving.element)
        kernel = max(serving.aligned, block)
        if era.aligns_latents and attention[0].mla:
            kernel = max(kernel, 128)
        if mode == "all":
            unit = lcm(states[0].chunk, kernel)
            tokens = -(-most // token)
            needed = unit * -(-tokens // unit)
        else:
            needed = kernel * -(-most // (kernel * token))
        if needed > block:
            notes = (
                (
                    f"vLLM raises the block size to {needed} tokens: one state fits a "
                    "block"
                ),
            )
            block = needed
        padded = block * token
    own = block if mode != "none" else context or block
    sized = {kind: (padded or size, own) for kind, size in each.items()}
    for kind in attention:
        sized[kind] = block * kind.token_bytes(serving.tp, serving.element), block
    return block, sized, mode, notes


def _stages(count: int, pp: int) -> list[tuple[int, int]]:
    """First and last layer of each pipeline stage (0.32.0 distributed/utils.py,
    get_pp_indices): what is left over goes to the last stages but one."""
    sizes = [count // pp] * pp
    for n in range(2, count % pp + 2):
        sizes[-n] += 1
    ends = [sum(sizes[: n + 1]) for n in range(pp)]
    return [*zip([0, *ends], ends, strict=False)]


def _unified(stage: list[Group], page: int, era: Era) -> list[Group]:
    """Pages of one size: a smaller one gets more tokens, or is padded."""
    made = []
    for group in stage:
        if group.page == page:
            made.append(group)
        elif group.kind.name == STATE and era.pads_pages:
            made.append(replace(group, page=page))
        elif group.kind.name != STATE and page % group.page == 0:
            made.append(
                replace(group, page=page, block=group.block * (page // group.page))
            )
        elif group.kind.name != STATE and era.pads_pages and not group.kind.mla:
            made.append(replace(group, page=page))
        else:
            raise UsageError(
                f"vLLM does not start: pages of {group.page:,} and of {page:,} bytes "
                "cannot be made equal."
            )
    return made


def _grouped(stages: list[list[Group]]) -> list[Group]:
    """Groups of equal numbers of layers, each with layers of every stage."""
    by_kind: dict[Group, list[int]] = {}
    for number, stage in enumerate(stages):
        for group in stage:
            by_kind.setdefault(group, []).append(number)
    counts = [len(numbers) for numbers in by_kind.values()]
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    found = []
    for group, numbers in by_kind.items():
        several = -(-len(numbers) // size)
        for first in range(several):
            own = numbers[first::several]
            layers = tuple(own.count(number) for number in range(len(stages)))
            found.append(replace(group, layers=layers))
    return found
