"""Makes Triton usable on a machine without a GPU, for its interpreter only.

Triton's interpreter (``TRITON_INTERPRET=1``) runs kernels as Python on the host, but a
kernel's launcher asks for an active driver, and engines count those before they use
Triton at all. This is a backend called ``cpu``: always active, and unable to compile
anything. Its methods are those that ``triton/backends/driver.py`` and ``compiler.py``
declare, of Triton 3.6 to 3.9.

A kernel that the interpreter does not run is named in the log: what follows from it says
nothing of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from mmrepro_boot import after_import, say


class _NoCompiler(Exception):
    """A kernel was about to be compiled: the interpreter is off."""


def add_backend(backends: ModuleType) -> None:
    """Add the backend to those that Triton has found."""
    # Triton and torch are imported only by what uses Triton: not by helpers that the
    # engine starts.
    import torch
    from triton.backends.compiler import BaseBackend, GPUTarget
    from triton.backends.driver import DriverBase

    class CpuCompiler(BaseBackend):
        @staticmethod
        def supports_target(target: GPUTarget) -> bool:
            return target.backend == "cpu"

        def hash(self) -> str:
            return "mmrepro-triton-cpu"

        def parse_options(self, options: object) -> object:
            return options

        def add_stages(self, *_: object, **__: object) -> None:
            raise _NoCompiler(
                "this backend compiles nothing: set TRITON_INTERPRET=1 for its kernels"
            )

        def load_dialects(self, context: object) -> None:
            """Load nothing: only a compiler needs dialects."""

        def get_module_map(self) -> dict[str, ModuleType]:
            return {}

        def pack_metadata(self, metadata: object) -> tuple[object, ...]:
            return ()

        def get_codegen_implementation(self, options: object) -> dict[str, object]:
            return {}

    class CpuDriver(DriverBase):
        def __init__(self) -> None:
            self.utils = None
            self.launcher_cls = None

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, device: int) -> None:
            """Do nothing: there is one device."""

        def get_current_stream(self, device: int) -> int:
            return 0

        def map_python_to_cpp_type(self, kind: str) -> str:
            return "void*"

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cpu", 0, 1)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_device_interface(self) -> ModuleType:
            return torch.cpu

        def get_benchmarker(self) -> Callable[..., list[float]]:
            def once(
                kernel: Callable[[], object],
                quantiles: Sequence[float] | None = None,
                **_: object,
            ) -> list[float]:
                kernel()
                return [0.0] * len(quantiles or [1])

            return once

        def get_empty_cache_for_benchmark(self) -> torch.Tensor:
            return torch.empty(1)

        def clear_cache(self, cache: torch.Tensor) -> None:
            """Do nothing: nothing is measured."""

    backends.backends["cpu"] = backends.Backend(compiler=CpuCompiler, driver=CpuDriver)
    say("triton_cpu", "Triton's kernels run in its interpreter")


def name_kernels(interpreter: ModuleType) -> None:
    """Have a kernel named that the interpreter does not run."""
    launcher = interpreter.GridExecutor
    launch = launcher.__call__

    def launch_or_name(self: Any, *args: object, **kwargs: object) -> object:
        try:
            return launch(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            reason = _first_cause(error)
            # The kernel's own assertion: it fails on a GPU as well.
            if not isinstance(reason, AssertionError):
                say("triton_cpu", _named(self.fn, reason))
            raise

    launcher.__call__ = launch_or_name


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _named(kernel: FunctionType, reason: BaseException) -> str:
    file = kernel.__code__.co_filename.rpartition("site-packages/")[2]
    words = " ".join(f"{type(reason).__name__}: {reason}".split())
    return (
        f"the kernel {kernel.__name__} ({file}, line "
        f"{kernel.__code__.co_firstlineno}) does not run in Triton's interpreter: "
        f"{words[:300]}"
    )


after_import("triton.backends", add_backend)
after_import("triton.runtime.interpreter", name_kernels)
