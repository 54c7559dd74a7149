"""Which of torch's operations are device work, and what each does: queue, wait, or run
at once.

Storages are marked: *device* memory (weights, KV cache, device buffers, whatever device
work returns) and *pinned* host memory (the host side of buffers). Then, of each
operation:

- it touches no device memory: host work, runs at once (a write to pinned memory is
  watched);
- it returns a view: no data is touched, runs at once;
- a copy from pinned host memory with ``non_blocking``: queued, reads the host when its
  turn comes;
- a copy from other host memory: queued with the values of now (CUDA stages pageable
  memory);
- a copy to the host: queued with ``non_blocking``, else the host waits;
- a read of a value by the host: the host waits;
- all other work: queued; shapes of results come from a run on the meta device. Where
  that is not possible (the shape depends on values) the host waits, as it does on a
  GPU.
"""

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from mmrepro_stream.queue import Stream
from mmrepro_stream.watch import Watch

_READS = {
    "aten._local_scalar_dense.default",
    "aten.equal.default",
    "aten.is_nonzero.default",
}


class Marks:
    """Storages that stand for device memory and for pinned host memory."""

    def __init__(self) -> None:
        self._device: set[int] = set()
        self._pinned: set[int] = set()

    def device(self, tensor: torch.Tensor) -> torch.Tensor:
        return _mark(tensor, self._device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return _mark(tensor, self._pinned)

    def on_device(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and key(value) in self._device

    def is_pinned(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and key(value) in self._pinned


def key(tensor: torch.Tensor) -> int:
    """Identifies a tensor's storage while it lives."""
    return int(tensor.untyped_storage()._cdata)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First element and end of what ``tensor`` covers of its storage."""
    start = int(tensor.storage_offset())
    if not tensor.numel():
        return start, start
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return start, start + 1 + sum((size - 1) * step for size, step in pairs)


class StreamMode(TorchDispatchMode):
    """Active while the engine runs a step; see the module."""

    def __init__(self, stream: Stream, marks: Marks, watch: Watch) -> None:
        super().__init__()
        self.stream = stream
        self.marks = marks
        self.watch = watch
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [
            x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)
        ]
        if _is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        schema = func._schema
        if not any(self.marks.on_device(t) for t in tensors):
            self._host_work(schema, args, kwargs)
            return func(*args, **kwargs)
        if _is_view(schema):
            return func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default:
            return self._copy(*args, **kwargs)
        if str(func) in _READS:
            self.stream.wait()
            return func(*args, **kwargs)
        return self._device_work(func, args, kwargs)

    def _host_work(
        self, schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for value in _written(schema, args, kwargs):
            if self.marks.is_pinned(value):
                self.watch.host_writes(key(value), *span(value))

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        if not self.marks.on_device(target):
            self._host_work(torch.ops.aten.copy_.default._schema, (target, source), {})
            if not non_blocking:
                self.stream.wait()
                return target.copy_(source)
        elif not self.marks.on_device(source):
            if non_blocking and self.marks.is_pinned(source):
                copy = self.watch.copy_queued(key(source), *span(source))

                def run() -> None:
                    self.watch.copy_runs(copy)
                    target.copy_(source)

                self.stream.launch(run)
                return target
            source = source.clone()
        self.stream.launch(lambda: target.copy_(source))
        return target

    def _device_work(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        schema = func._schema
        for value in _written(schema, args, kwargs):
            self.marks.device(value)  # a fresh buffer that device work fills
        # Host operands are taken by value at the launch. Those of custom operators are
        # made anew for each step by vLLM, and its attention metadata holds pointers
        # into itself.
        own = func.namespace == "aten"
        given = tree_map(self._by_value, args) if own else args
        named = tree_map(self._by_value, kwargs) if own else kwargs
        if not schema.returns:
            self.stream.launch(lambda: func(*given, **named))
            return None
        if all(
            r.alias_info is not None and r.alias_info.is_write for r in schema.returns
        ):
            self.stream.launch(lambda: func(*given, **named))
            written = list(_written(schema, args, kwargs))
            return written[0] if len(schema.returns) == 1 else tuple(written)
        shapes = _shapes(func, given, named) if own else None
        if shapes is None:
            self.waits[str(func)] += 1
            self.stream.wait()
            result = func(*args, **kwargs)
            tree_map(lambda x: self.marks.device(x) if _is_array(x) else x, result)
            return result
        results = tree_map(self._blank, shapes)
        blanks = [x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor)]

        def run() -> None:
            made = [x for x in tree_flatten(func(*given, **named))[0] if _is_tensor(x)]
            for blank, value in zip(blanks, made, strict=True):
                blank.copy_(value)

        self.stream.launch(run)
        return results

    def _by_value(self, value: Any) -> Any:
        host = isinstance(value, torch.Tensor) and not self.marks.on_device(value)
        return value.clone() if host else value

    def _blank(self, shape: Any) -> Any:
        if not isinstance(shape, torch.Tensor):
            return shape
        blank = torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype)
        return self.marks.device(blank)


def _mark(tensor: torch.Tensor, into: set[int]) -> torch.Tensor:
    storage = tensor.untyped_storage()
    number = int(storage._cdata)
    if number not in into:
        into.add(number)
        weakref.finalize(storage, into.discard, number)
    return tensor


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 1


def _is_composite(func: Any) -> bool:
    """Made of other operations: under inference mode it arrives here before it is taken
    apart."""
    implicit = "CompositeImplicitAutograd"
    return func.namespace == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), implicit
    )


def _is_view(schema: Any) -> bool:
    aliases = [r.alias_info for r in schema.returns]
    return bool(aliases) and all(a is not None and not a.is_write for a in aliases)


def _written(
    schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    found = []
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor)]
    return found


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """What ``func`` would return, on the meta device; None where shapes depend on
    values."""

    def meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device="meta"
            )
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        return func(*tree_map(meta, args), **tree_map(meta, kwargs))
    except Exception:
        return None
