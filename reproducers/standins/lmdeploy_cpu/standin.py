"""Stand-in: LMDeploy's PyTorch engine on a CPU. The ``cuda`` device becomes the CPU,
and the operators come from LMDeploy's own default backend, paged attention aside.

Scheduler, block manager, cache arithmetic, engine loop and HTTP server are LMDeploy's
own."""

from types import ModuleType, SimpleNamespace
from typing import Any

from mmrepro_boot import after_import


def redirect(module: ModuleType) -> None:
    import lmdeploy_cpu_device

    lmdeploy_cpu_device.redirect(module)


def _choose_backend(module: Any) -> None:
    """``selector`` answers for the device type ``cuda`` with the CPU's operators."""
    name = "_get_backend" if hasattr(module, "_get_backend") else "get_backend"
    original = getattr(module, name)

    def get_backend(*args: Any, **kwargs: Any) -> Any:
        chosen = original(*args, **kwargs)
        if chosen.get_name() != "cuda":
            raise RuntimeError(
                f"the stand-in has no operators for device {chosen.get_name()}"
            )
        from lmdeploy_cpu_ops import backend

        return backend()

    setattr(module, name, get_backend)


def _no_triton_check(module: Any) -> None:
    """The environment check runs a Triton kernel, which has no device here (0.6.4)."""
    if hasattr(module, "check_env_triton"):
        module.check_env_triton = lambda *args, **kwargs: None


def _no_triton_checker(module: Any) -> None:
    """The same from 0.6.5 on."""
    module.TritonChecker.check = lambda self: None


def _no_triton_device(module: Any) -> None:
    """0.15.0 asks Triton for its device as it imports kernels, of which none is
    launched here."""
    from lmdeploy.version import __version__

    if not __version__.startswith("0.15."):
        return
    from triton.runtime.driver import driver

    driver.set_active(
        SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="cpu"))
    )


after_import("torch", redirect)
after_import("lmdeploy.pytorch.backends.selector", _choose_backend)
after_import("lmdeploy.pytorch.kernels", _no_triton_device)
after_import("lmdeploy.pytorch.check_env", _no_triton_check)
after_import("lmdeploy.pytorch.check_env.triton", _no_triton_checker)
