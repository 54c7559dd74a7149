"""Where an engine's own code can be asked: its environment, as its server is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmrepro.collide.search import Place
from mmrepro.engines import LaunchRequest, get_engine, spec_for
from mmrepro.environments.build import ensure
from mmrepro.errors import UsageError
from mmrepro.incident import Setting
from mmrepro.machine.files import cache_root
from mmrepro.models.qwen import TinyQwen2VL

ENGINES = ("sglang",)
"""Engines whose hash the worker knows how to ask for."""


def place_for(
    engine: str,
    release: str,
    *,
    device: str = "auto",
    model: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Place:
    """The environment of ``engine`` at ``release``, built if it is not there.

    ``model``: folder of a model whose image processor is used; default: a tiny Qwen2-VL.

    Raises:
        UsageError: no such engine, or ``model`` has no preprocessor_config.json.
        UnknownRelease: the package index has no such release.
        InfrastructureError: the environment could not be built.
    """
    if engine not in ENGINES:
        raise UsageError(
            f"There is no collision search for the engine {engine!r}; there is one for "
            f"{', '.join(ENGINES)}.",
            hint="mmrepro collide --engine sglang --release 0.5.6",
        )
    if model is not None and not (model / "preprocessor_config.json").is_file():
        raise UsageError(f"{model} is not the folder of a model: no preprocessor_config.json.")
    spec = spec_for(engine, release, device)
    environment = ensure(spec, progress)
    folder = model.absolute() if model else TinyQwen2VL().write(cache_root() / "models")
    plan = get_engine(engine).plan(
        LaunchRequest(
            environment=environment, model=folder, port=0, max_model_len=4096, server_args=()
        )
    )
    return Place(
        engine=engine,
        release=spec.release,
        device=spec.device,
        python=environment.python,
        env=plan.env,
        model=folder,
        environment=environment,
        stand_ins=plan.stand_ins,
        # Options are the server's alone; the worker asks for the same image processor itself.
        settings=[
            *(one for one in plan.settings if not one.name.startswith("-")),
            Setting(
                name="image processor",
                value="use_fast=False",
                why="the one that the server gets with --disable-fast-image-processor",
            ),
        ],
    )
