"""Stand-in: SGLang's CUDA-only kernel package, importable and never callable.

Every name of ``sgl_kernel`` and of its submodules can be imported, as can those of
``torch.ops.sgl_kernel`` that SGLang looks up while it is imported (0.5.23:
layers/attention/linear/gdn_backend.py takes ``fused_gdn_gating_cpu``). Nothing
computes: whatever is called writes a line that mmrepro counts, and raises."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from mmrepro_boot import say

NAME = "sgl_kernel_stub"
_PACKAGE = "sgl_kernel"


def forked() -> None:
    """Called in each forked process of the engine: what is loaded there was loaded
    before."""
    if _PACKAGE in sys.modules:
        say(NAME, "loaded")


class _MissingName:
    """A name that can be imported, has attributes, and raises when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__name__ = name.rpartition(".")[2]

    def __getattr__(self, name: str) -> _MissingName:
        if name.startswith("__"):
            raise AttributeError(name)
        return _MissingName(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        say(NAME, f"called {self._name}")
        raise RuntimeError(
            f"{self._name} was called, but this is mmrepro's stand-in without it"
        )


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> _MissingName:
        if name.startswith("__"):
            raise AttributeError(name)
        return _MissingName(f"{self.__name__}.{name}")


class _Operators(_StubModule):
    """``torch.ops.sgl_kernel``: SGLang tells by ``hasattr`` whether the AMX backend is
    there, so that only the operators which it looks up unasked are answered for."""

    def __getattr__(self, name: str) -> _MissingName:
        if not name.endswith("_cpu"):
            raise AttributeError(name)
        return super().__getattr__(name)


class _StubFinder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _PACKAGE or name.startswith(_PACKAGE + "."):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != _PACKAGE:
            return
        import torch

        module.__dict__["__version__"] = "0.0.0+mmrepro.stub"
        torch.ops.sgl_kernel = _Operators("torch.ops.sgl_kernel")
        say(NAME, "loaded")


sys.meta_path.insert(0, _StubFinder())
