"""Stack samples of a thread that does not come out of a loop any more."""

from __future__ import annotations

from collections.abc import Sequence

from mmrepro.probes.data import StacksData, ThreadStack
from mmrepro.signature.decide import Finding

MIN_SAMPLES = 3
"""With fewer samples of a thread, where it always is cannot be told."""


def stays_below(stacks: StacksData, path: Sequence[str]) -> Finding:
    """Whether in every sample a thread is inside the functions of ``path``, outermost first; others
    may lie between them."""
    samples = [sample for sample in stacks.samples if sample.threads]
    if len(samples) < MIN_SAMPLES:
        return Finding.unknown(f"{len(samples)} samples show stacks")
    inside = sum(any(_goes_through(thread, path) for thread in s.threads) for s in samples)
    text = f"{inside} of {len(samples)} samples inside {' > '.join(path)}"
    return Finding.of(inside == len(samples), text)


def _goes_through(thread: ThreadStack, path: Sequence[str]) -> bool:
    inward = iter([frame.name for frame in reversed(thread.frames)])
    return all(name in inward for name in path)


def stays_in(stacks: StacksData, thread: str, path: Sequence[str], callee: str) -> Finding:
    """Whether the thread of function ``thread`` is inside ``path`` in every sample of it.

    In some of them it must be in ``callee``, and in some it must run: not in all, as it may wait
    for the GIL in the middle of its loop.

    Args:
        path: bare names of functions that call each other, innermost first.
        callee: what ``path`` calls again and again.
    """
    threads = stacks.threads(thread)
    if len(threads) < MIN_SAMPLES:
        return Finding.unknown(f"{thread} in {len(threads)} of {len(stacks.samples)} samples")
    inside = [one for one in threads if one.within(*path)]
    running = sum(one.active for one in inside)
    calling = sum(one.within(callee, *path) for one in inside)
    text = f"{len(inside)} of {len(threads)} samples in {path[0]}, {calling} in {callee}"
    stays = len(inside) == len(threads) and calling > 0 and running > 0
    return Finding.of(stays, f"{text}, {running} running")
