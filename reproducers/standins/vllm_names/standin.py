"""Stand-in: the names that older SGLang releases import from ``vllm``.

Where SGLang finds neither CUDA nor AMX, it replaces its own layers by vLLM's (0.5.6:
layers/layernorm.py:472, layers/activation.py:389). The stand-in gives it its own
classes back, whose ``forward_native`` is plain torch. What has no such counterpart
raises when it is called."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from mmrepro_boot import say

NAME = "vllm_names"

_OWN_CLASSES = {
    "vllm.model_executor.layers.activation": (
        "activation",
        ("SiluAndMul", "GeluAndMul"),
    ),
    "vllm.model_executor.layers.layernorm": ("layernorm", ("RMSNorm", "GemmaRMSNorm")),
}
_PACKAGES = ("vllm", "vllm.model_executor", "vllm.model_executor.layers")
_OPERATORS = "vllm._custom_ops"


def forked() -> None:
    """Called in each forked process of the engine: what is loaded there was loaded
    before."""
    for name in _OWN_CLASSES.keys() & sys.modules.keys():
        say(NAME, f"loaded {name}")


def rotary_embedding(*args: Any, **kwargs: Any) -> NoReturn:
    say(NAME, "called vllm._custom_ops.rotary_embedding")
    raise RuntimeError(
        "vLLM's rotary_embedding was called, but this is mmrepro's stand-in"
    )


class _NamesFinder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _PACKAGES or name in _OWN_CLASSES or name == _OPERATORS:
            return ModuleSpec(name, self, is_package=name in _PACKAGES)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name == _OPERATORS:
            module.__dict__["rotary_embedding"] = rotary_embedding
        elif name in _OWN_CLASSES:
            own, classes = _OWN_CLASSES[name]
            source = import_module(f"sglang.srt.layers.{own}")
            module.__dict__.update({cls: getattr(source, cls) for cls in classes})
            say(NAME, f"loaded {name}")


sys.meta_path.insert(0, _NamesFinder())
