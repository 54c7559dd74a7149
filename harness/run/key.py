"""What decides a run's outcome, as a digest: two runs with equal keys are the same experiment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import mmrepro
from mmrepro.engines import ENGINES, LaunchPlan
from mmrepro.engines.base import BOOT
from mmrepro.environments.spec import Environment
from mmrepro.machine.cache import VISIBLE, cache_root
from mmrepro.machine.child_env import child_environment
from mmrepro.machine.digest import digest
from mmrepro.machine.facts import host_facts
from mmrepro.machine.gpu import ORDER, choose, read_gpus, visible
from mmrepro.reproducers import reproducer_path
from mmrepro.run.closure import closure, folder_of
from mmrepro.run.options import RunCommand
from mmrepro.run.start import ServerSpec
from mmrepro.run.starter import Starter
from mmrepro.scenario import Scenario
from mmrepro.supervise import free_port

ENGINE_VARIABLES = (
    "VLLM_", "SGLANG_", "LMDEPLOY_", "TORCH", "PYTORCH_", "OMP_", "KMP_", "MKL_", "CUDA_", "NCCL_",
    "HF_", "TRANSFORMERS_", "TOKENIZERS_", "MINIVLLM_",
)  # fmt: skip
"""Of the variables that the engine inherits, those that engines and their libraries read."""

START_MODE = "start mode"
"""The part that the run itself may change, when it finds that a mode cannot be used."""

KEY_VERSION = "2"
"""Changes once with what a key is made of, where the same run would get another key.

2: the code is the import closure of the scenario and the runner, not most of the package; the code
of an engine that comes with mmrepro is a part of it.
"""

RUNNER = "mmrepro.run.runner"
BUILDERS = (
    "mmrepro.environments.build",
    "mmrepro.environments.index",
    "mmrepro.environments.uv",
)
"""Modules that build an environment, which is in the key as it was built: its lock file, its Python
and its commit."""

DATA = {
    "mmrepro.environments.spec": ("environments", "{engine}.toml"),
    "mmrepro.scenarios.data": ("scenarios", "data/pad_value_pair/*"),
    "mmrepro.case.pictures": ("scenarios", "data/pad_value_pair/*"),
}
"""Data files that a module reads: a part of mmrepro, and a pattern of names in it."""


def decisive_parts(
    scenario: Scenario,
    options: RunCommand,
    environment: Environment,
    model: Path,
    starter: Starter,
    gpus: Sequence[str] | None = None,
) -> dict[str, str]:
    """All that decides a run's outcome, named, so that two keys can be compared.

    The port is chosen anew for every run, and so is one of several like GPUs; folders differ
    between machines: none of these is in it.

    Args:
        gpus: models of those that the run takes; None: of those that it would take now.
    """
    port = free_port()
    plan = ServerSpec(scenario, options, environment, model).plan(port)
    host, device = host_facts(), environment.spec.device
    if gpus is None:
        gpus = gpu_models(device)
    places = {
        str(model): "MODEL",
        str(environment.path): "ENVIRONMENT",
        str(reproducer_path("")).rstrip("/"): "REPRODUCERS",
        str(cache_root()): "CACHE",
        str(port): "PORT",
    }

    def placed(text: str) -> str:
        for path, name in places.items():
            text = text.replace(path, name)
        return text

    return {
        "key_version": KEY_VERSION,
        "mmrepro": mmrepro.__version__,
        "scenario": scenario.full_name,
        "code": code_digest(scenario, plan),
        "engine": f"{scenario.engine} {environment.spec.release} {environment.spec.commit}".strip(),
        "environment": digest([environment.lock_file]),
        "python": environment.python_version,
        "model": digest(p for p in sorted(model.rglob("*")) if p.is_file()),
        "max_model_len": str(scenario.max_model_len),
        "device": " ".join([device, *gpus]),
        "host": f"{host.cpu}, {host.cores} cores",
        "command": placed(json.dumps(plan.argv)),
        "variables": placed(json.dumps(plan.env, sort_keys=True)),
        "inherited": json.dumps(_inherited(plan, device), sort_keys=True),
        "flips": json.dumps(sorted(options.flips)),
        "mitigations": json.dumps(sorted(options.mitigations)),
        "options": json.dumps(sorted(options.options)),
        "contract probe": str(options.contract_probe),
        START_MODE: starter.choose(plan, environment)[0].value,
    }


def run_key(parts: dict[str, str]) -> str:
    """Of a run's :func:`decisive_parts`: runs with one key are the same experiment."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def code_digest(scenario: Scenario, plan: LaunchPlan | None = None) -> str:
    """Digest of the code that runs, observes and judges; the same wherever mmrepro lies."""
    return digest(code_files(scenario, plan))


def code_files(scenario: Scenario, plan: LaunchPlan | None = None) -> list[Path]:
    """The import closure of scenario and runner, its data, and what runs in the engine.

    Reports are made after the verdict: neither they nor the command line are in it.
    """
    modules = closure(_starts(scenario), _stops(scenario.engine))
    files = list(modules.values())
    for part, pattern in sorted({data for module, data in DATA.items() if module in modules}):
        if (folder := folder_of(part)) is not None:
            files += sorted(folder.glob(pattern.format(engine=scenario.engine)))
    standins = reproducer_path("standins")
    folders = {standins / p.folder for p in scenario.patches}
    folders |= {standins / f.patch.folder for f in scenario.factors if f.patch}
    if plan is not None:
        folders |= {Path(p) for p in plan.env.get("MMREPRO_STAND_INS", "").split(os.pathsep) if p}
    engine = reproducer_path(scenario.engine)  # minivllm alone comes with mmrepro
    inside = {path for top in (standins / BOOT, engine, *folders) for path in top.rglob("*.py")}
    inside |= {reproducer_path(name) for name in scenario.reproducers}
    return files + sorted(inside)


def _starts(scenario: Scenario) -> list[str]:
    own = [c for c in type(scenario).__mro__ if issubclass(c, Scenario) and c is not Scenario]
    return [RUNNER, f"mmrepro.engines.{scenario.engine}", *(c.__module__ for c in own)]


def _stops(engine: str) -> list[str]:
    """Builders, and the engines that this run does not start."""
    return [*BUILDERS, *(f"mmrepro.engines.{name}" for name in ENGINES if name != engine)]


def _inherited(plan: LaunchPlan, device: str) -> dict[str, str]:
    """What the engine finds in its environment although nobody set it for this run.

    Digests of the values: parts are written down, and a value may be a token (``HF_TOKEN``).
    """
    return {
        name: hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:12]
        for name, value in child_environment(plan.env).items()
        if name.startswith(ENGINE_VARIABLES)
        and name not in plan.env
        and not (device == "cuda" and name in (VISIBLE, ORDER))  # the run has its own
    }


def gpu_models(device: str = "cuda") -> list[str]:
    """Models of what a GPU run would take now; if others use everything, of what they use."""
    if device == "cpu":
        return []
    choice = choose(reading := read_gpus())
    return choice.names or [d.name for d in visible(reading, os.environ.get(VISIBLE))][:1]
