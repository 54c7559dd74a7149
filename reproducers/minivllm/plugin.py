"""A file that is run before the engine is made, and may change what it is made of."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from .config import EngineConfig

NAME = "minivllm_plugin"
"""Of the file's module."""


def plugged(file: Path, config: EngineConfig) -> EngineConfig:
    """What the function ``plug`` in ``file`` makes of ``config``.

    Raises:
        ValueError: there is no such file or function, it failed, or it returned something else.
    """
    plug = _plug_of(file)
    try:
        found = plug(config)
    except Exception as error:
        raise ValueError(f"plugin {file}: plug: {type(error).__name__}: {error}") from error
    if not isinstance(found, EngineConfig):
        raise ValueError(f"plugin {file}: plug returned no EngineConfig but {found!r:.80}")
    return found


def _plug_of(file: Path) -> Callable[[EngineConfig], object]:
    if not file.is_file():
        raise ValueError(f"plugin {file}: there is no such file")
    spec = importlib.util.spec_from_file_location(NAME, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"plugin {file}: not a Python file")
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"plugin {file}: {type(error).__name__}: {error}") from error
    plug = getattr(module, "plug", None)
    if not callable(plug):
        raise ValueError(f"plugin {file}: it has no function plug(config)")
    made: Callable[[EngineConfig], object] = plug
    return made
