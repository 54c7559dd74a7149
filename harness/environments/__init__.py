"""Isolated virtual environments: one engine at one release, resolved as on that release's day.

``ensure(vllm_spec("0.23.0"))`` gives an ``Environment``. They live below ``cache_root()`` and are
made by uv; see build.py for the steps, releases.py for the dates, requirements.py for what is
changed in an engine's requirements.
"""

from mmrepro.environments.build import ensure, existing
from mmrepro.environments.sglang import sglang_spec
from mmrepro.environments.spec import Environment, EnvironmentSpec, Manifest, Reason
from mmrepro.environments.store import Pruned, Size, Stored, list_environments, prune
from mmrepro.environments.uv import Progress
from mmrepro.environments.vllm import vllm_spec
from mmrepro.machine.cache import Device, cache_root, detect_device, environments_root

__all__ = [
    "Device",
    "Environment",
    "EnvironmentSpec",
    "Manifest",
    "Progress",
    "Pruned",
    "Reason",
    "Size",
    "Stored",
    "cache_root",
    "detect_device",
    "ensure",
    "environments_root",
    "existing",
    "list_environments",
    "prune",
    "sglang_spec",
    "vllm_spec",
]
