"""torch's device ``cuda`` as the CPU: what asks for it gets the CPU; streams and events
are empty.

Device work is done when a call returns, so waiting for a stream or an event is waiting
for nothing. Whatever of torch.cuda is not named here still fails as it does without a
driver."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

NAME = "CPU in place of a CUDA device (mmrepro stand-in)"
_CAPABILITY = (8, 6)
"""The device says it is of this compute capability: bfloat16 and a newer attention are
there."""

_FACTORIES = (
    "tensor",
    "as_tensor",
    "empty",
    "zeros",
    "ones",
    "full",
    "arange",
    "linspace",
    "eye",
    "rand",
    "randn",
    "randint",
    "randperm",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "empty_strided",
    "tril_indices",
    "triu_indices",
)
_METHODS = (
    "new_tensor",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty_strided",
)


def _is_cuda(value: Any) -> bool:
    if type(value) is int:  # a device's number
        return True
    return str(getattr(value, "type", value)).startswith("cuda")


def _redirected(function: Callable[..., Any], *, first_argument: bool = False) -> Any:
    """``function`` with a device ``cuda`` turned into ``cpu``.

    first_argument: ``x.to(device)`` takes the device by position; so may it be a dtype
    or a tensor."""

    @functools.wraps(function)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and _is_cuda(kwargs["device"]):
            kwargs["device"] = "cpu"
        if (
            first_argument
            and len(args) > 1
            and isinstance(args[1], (int, str, _device_type()))
        ):
            args = (args[0], "cpu" if _is_cuda(args[1]) else args[1], *args[2:])
        return function(*args, **kwargs)

    return redirected


def _itself(value: Any, *args: Any, **kwargs: Any) -> Any:
    """What is asked to go to the device is there already."""
    return value


def _device_type() -> type:
    import torch

    return torch.device


class _CpuEvent:
    """Recorded at once: there is no queue of device work."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: _CpuEvent) -> float:
        """Milliseconds."""
        return (other.at - self.at) * 1000


class _CpuStream:
    """Always empty."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = event or _CpuEvent()
        event.record(self)
        return event


@contextlib.contextmanager
def _no_context(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def redirect(torch: Any) -> None:
    """Change ``torch``, just imported."""
    # It looks at torch.cuda.Stream as it is imported: before that is replaced.
    importlib.import_module("torch._dynamo")

    for name in _FACTORIES:
        setattr(torch, name, _redirected(getattr(torch, name)))
    for name in _METHODS:
        setattr(torch.Tensor, name, _redirected(getattr(torch.Tensor, name)))
    torch.Tensor.to = _redirected(torch.Tensor.to, first_argument=True)
    torch.Tensor.cuda = _itself
    torch.nn.Module.cuda = _itself
    # Pinned memory is for copies to a device; without one torch refuses to pin.
    torch.Tensor.pin_memory = _itself

    properties = types.SimpleNamespace(
        name=NAME,
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        multi_processor_count=1,
        warp_size=32,
        max_threads_per_multi_processor=1536,
        shared_memory_per_block_optin=101376,
        regs_per_multiprocessor=65536,
    )
    only_stream = _CpuStream()

    def nothing(*args: Any, **kwargs: Any) -> None:
        pass

    def zero(*args: Any, **kwargs: Any) -> int:
        return 0

    answers: dict[str, Any] = {
        "Stream": _CpuStream,
        "Event": _CpuEvent,
        "stream": _no_context,
        "device": _no_context,
        "current_stream": lambda *args: only_stream,
        "default_stream": lambda *args: only_stream,
        "set_stream": nothing,
        "set_device": nothing,
        "synchronize": nothing,
        "empty_cache": nothing,
        "reset_peak_memory_stats": nothing,
        "current_device": zero,
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_allocated": zero,
        "get_device_properties": lambda *args: properties,
        "get_device_capability": lambda *args: _CAPABILITY,
        "get_device_name": lambda *args: NAME,
        "graph_pool_handle": nothing,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, value)
