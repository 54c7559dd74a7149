"""Isolated virtual environments: one engine at one release, resolved as on that release's day.

``ensure(vllm_spec("0.23.0"))`` gives an ``Environment``. They live below ``cache_root()`` and are
made by uv; see recipe.py for the steps, releases.py for the dates, requirements.py for what is
changed in an engine's requirements.
"""

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
