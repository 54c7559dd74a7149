"""What decides a run's outcome, as a digest: two runs with equal keys are the same experiment."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import mmrepro
import mmrepro.probes
from mmrepro.engines import LaunchPlan
from mmrepro.engines.base import BOOT
from mmrepro.environments.spec import Environment
from mmrepro.machine.cache import VISIBLE, cache_root
from mmrepro.machine.child_env import child_environment
from mmrepro.machine.digest import FileState, digest, state
from mmrepro.machine.facts import host_facts
from mmrepro.machine.gpu import ORDER, choose, read_gpus, visible
from mmrepro.reproducers import reproducer_path
from mmrepro.run.launch import launch_plan
from mmrepro.run.options import RunCommand
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

APART = (
    "cli",
    "accept",
    "ablate",
    "bisect",
    "cluster",
    "history",
    "matrix",
    "pytest_plugin",
    "reports",
    "environments",
    "engines",
    "scenarios",
    "probes",
    "reproducers",
)
"""Parts of the package that decide no outcome, or are in the key in another way."""


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
    plan = launch_plan(scenario, options, environment, model, port)
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


def cell_key(parts: dict[str, str], index: int) -> str:
    """Key of run number ``index`` of an ablation's cell."""
    return run_key({**parts, "index": str(index)})


def code_digest(scenario: Scenario, plan: LaunchPlan | None = None) -> str:
    """Of the code that runs, looks and judges: scenario, stand-ins, probes, runner, adapter."""
    files = [*_harness_files(scenario.engine), *scenario_files(scenario)]
    standins = reproducer_path("standins")
    folders = {standins / p.folder for p in scenario.patches}
    folders |= {standins / f.patch.folder for f in scenario.factors if f.patch}
    if plan is not None:
        folders |= {Path(p) for p in plan.env.get("MMREPRO_STAND_INS", "").split(os.pathsep) if p}
    for folder in {standins / BOOT, *folders}:
        files += folder.rglob("*.py")
    files += [reproducer_path(name) for name in scenario.reproducers]
    return digest(sorted(set(files)))


def _harness_files(engine: str) -> Iterator[Path]:
    root = Path(mmrepro.__file__).parent
    for path in root.rglob("*.py"):
        inside = path.relative_to(root).parts
        if inside[0] not in APART:
            yield path
    for name in ("__init__", "base", "changes", engine):
        yield root / "engines" / f"{name}.py"
    yield from Path(next(iter(mmrepro.probes.__path__))).glob("*.py")


def scenario_files(scenario: Scenario) -> list[Path]:
    """Modules of the scenario's classes and what they import from beside them, however far."""
    found: dict[Path, None] = {}
    own = [c for c in type(scenario).__mro__ if issubclass(c, Scenario) and c is not Scenario]
    waiting = [cls.__module__ for cls in own]
    homes = {path.parent for name in waiting if (path := _file_of(name)) is not None}
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or path in found or path.parent not in homes:
            continue
        found[path] = None
        waiting += _imported(path, state(path))
    return sorted(found)


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file else None


@lru_cache(maxsize=256)
def _imported(path: Path, state: FileState) -> tuple[str, ...]:
    """Names of modules that a file imports; ``state`` tells a changed file from the old one."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


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
