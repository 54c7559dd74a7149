"""Stand-in: memory that is to be page-locked stays as it is. Locking it asks for a CUDA
driver.

``pin_memory`` of torch's functions is left out, and ``Tensor.pin_memory`` gives the
tensor itself. Values, shapes and who shares what with whom stay the engine's own."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from mmrepro_boot import after_import, say

NAME = "plain_memory"
_MAKERS = (
    "tensor",
    "empty",
    "zeros",
    "ones",
    "full",
    "arange",
    "empty_like",
    "zeros_like",
)


def forked() -> None:
    """Called in each forked process of the engine: what is loaded there was loaded
    before."""
    if "torch" in sys.modules:
        say(NAME, "loaded")


def unpinned(maker: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(maker)
    def made(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return maker(*args, **kwargs)

    return made


def _leave_plain(torch: Any) -> None:
    for name in _MAKERS:
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    say(NAME, "loaded")


after_import("torch", _leave_plain)
