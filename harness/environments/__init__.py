"""Isolated virtual environments: one engine at one release, resolved as on that release's day.

``ensure(vllm_spec("0.23.0"))`` gives an ``Environment``. They live below ``cache_root()`` and are
made by uv; see recipe.py for the steps, releases.py for the dates, requirements.py for what is
changed in an engine's requirements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrepro.environments.build import (
        ensure as ensure,
        existing as existing,
        folder_of as folder_of,
    )
    from mmrepro.environments.listing import Listed as Listed, releases_of as releases_of
    from mmrepro.environments.sglang import sglang_spec as sglang_spec
    from mmrepro.environments.space import uv_cache_dir as uv_cache_dir
    from mmrepro.environments.spec import (
        Environment as Environment,
        EnvironmentSpec as EnvironmentSpec,
        Manifest as Manifest,
        Reason as Reason,
    )
    from mmrepro.environments.store import (
        Pruned as Pruned,
        Size as Size,
        Stored as Stored,
        list_environments as list_environments,
        prune as prune,
    )
    from mmrepro.environments.uv import Progress as Progress
    from mmrepro.environments.vllm import vllm_spec as vllm_spec
    from mmrepro.machine.cache import (
        Device as Device,
        cache_root as cache_root,
        detect_device as detect_device,
        device_of as device_of,
        environments_root as environments_root,
    )

_PLACES = {
    "environments.build": ("ensure", "existing", "folder_of"),
    "environments.listing": ("Listed", "releases_of"),
    "environments.sglang": ("sglang_spec",),
    "environments.space": ("uv_cache_dir",),
    "environments.spec": ("Environment", "EnvironmentSpec", "Manifest", "Reason"),
    "environments.store": ("Pruned", "Size", "Stored", "list_environments", "prune"),
    "environments.uv": ("Progress",),
    "environments.vllm": ("vllm_spec",),
    "machine.cache": ("Device", "cache_root", "detect_device", "device_of", "environments_root"),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """What is asked for, from its module: a look at a server needs the builders of none."""
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mmrepro.{_PLACE_OF[name]}"), name)
