"""Isolated virtual environments: one engine at one release, resolved as on that
release's day.

``ensure(vllm_spec("0.23.0"))`` returns an ``Environment``. They live below
``cache_root()`` and are made by uv. In reading order: spec.py (what is asked for),
build.py (whole or not at all), recipe.py (the steps), releases.py (a release, its day,
its requirements), resolving.py (one question to uv), index.py (what uv does not
answer), store.py (what is on disk), wheelhouse/ (without a network)."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.engines.environments.build import (
        doubt as doubt_of_release,
        ensure as ensure,
        existing as existing,
        folder_of as folder_of,
        needed_bytes as needed_bytes,
    )
    from mmrepro.engines.environments.fit import (
        FitReport as FitReport,
        Fits as Fits,
        asked_for as asked_for,
        fit as fit_to_machine,
    )
    from mmrepro.engines.environments.index import (
        INDEX_VARIABLE as INDEX_VARIABLE,
        Listed as Listed,
        check_index as check_index,
        releases_of as releases_of,
    )
    from mmrepro.engines.environments.lending import own_releases as own_releases
    from mmrepro.engines.environments.overlay import import_once as import_once
    from mmrepro.engines.environments.patched import patched as patched_clone
    from mmrepro.engines.environments.releases import requirements_of as requirements_of
    from mmrepro.engines.environments.resolving import torch_setting as torch_setting
    from mmrepro.engines.environments.source import (
        PLACES as PLACES,
        engine_of_clone as engine_of_clone,
        git as ask_git,
        read_tree as read_tree,
        resolve as resolve_source,
    )
    from mmrepro.engines.environments.spec import (
        SPECS as SPECS,
        Environment as Environment,
        EnvironmentSpec as EnvironmentSpec,
        ModeSeen as ModeSeen,
        TreeLabel as TreeLabel,
        note_start as note_start,
        starts_seen as starts_seen,
    )
    from mmrepro.engines.environments.store import (
        FLOOR_BYTES as FLOOR_BYTES,
        Stored as Stored,
        free_bytes as free_bytes,
        list_environments as list_environments,
        prune as prune_environments,
        site_packages as site_packages,
        uv_cache_dir as uv_cache_dir,
    )
    from mmrepro.engines.environments.uv import (
        DOWNLOADING as DOWNLOADING,
        Notice as Notice,
        UvFailed as UvFailed,
        run_uv as run_uv,
        uv_version as uv_version,
        without_credentials as without_credentials,
    )
    from mmrepro.engines.environments.verify import verify as verify_environment
    from mmrepro.engines.environments.wheelhouse import (
        Made as Made,
        make_target as make_target,
    )
    from mmrepro.engines.environments.wheelhouse.make import make as make_wheelhouse
    from mmrepro.engines.environments.wheelhouse.plan import (
        PlannedPackage as PlannedPackage,
    )
else:
    __getattr__ = lazily(__name__)
