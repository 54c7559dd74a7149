"""What decides a run's outcome, as a digest: two runs with equal keys are the same
experiment.

The code in it is the import closure of scenario and runner: the files that a module's
code can reach, read without importing any of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

import mmrepro
from mmrepro.base.machine import (
    GPU_ORDER,
    VISIBLE_GPUS,
    FileState,
    cache_root,
    child_environment,
    choose_gpus,
    digest_of_files,
    file_state as state,
    host_facts,
    read_gpus,
    visible_gpus,
)
from mmrepro.engines import BOOT, ENGINES, LaunchPlan
from mmrepro.engines.environments import Environment
from mmrepro.engines.supervise import free_port
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.options import RunCommand
from mmrepro.runs.start import ServerSpec
from mmrepro.runs.starter import Starter
from mmrepro.scenario import Scenario

_PACKAGE = "mmrepro"

_GAP = r"(?:[ \t]|\\\n)+"
_IMPORT = re.compile(
    rf"(?:^|[;:])[ \t]*(?:from{_GAP}([.\w]+){_GAP}import\b{_GAP}?"
    rf"(\((?:[^)#]|\#[^\n]*\n)*\)|(?:[^\n;\\]|\\\n)+)|import{_GAP}((?:[^\n;\\]|\\\n)+))",
    re.MULTILINE,
)
"""Reads what :mod:`ast` would, many times as fast. A line of a docstring that looks
like an import counts as one: a file too many in a key does no harm, a file too few
does."""
_TYPES_ONLY = re.compile(
    (
        r"^([ \t]*)if (?:\w+\.)?TYPE_CHECKING:[^\n]*\n(?:(?:\1[ \t]+[^\n]*"
        r"|[ \t]*)(?:\n|\Z))*"
    ),
    re.MULTILINE,
)
_DOOR = re.compile(r"^ *__getattr__ = lazily\(__name__\)", re.MULTILINE)
"""A module that imports a name when it is asked for (``mmrepro.base.door``): its imports
for type checkers are those."""
_COMMENT = re.compile(r"#[^\n]*")

_Imported = tuple[str, tuple[str, ...]]
"""A module, with its leading dots if it is relative, and the names that are taken from
it."""


def closure(starts: Collection[str], stops: Collection[str] = ()) -> dict[str, Path]:
    """Files by module, sorted: ``starts`` and all that they import, however far.

    Imports within functions count, those below ``if TYPE_CHECKING`` do not. A door
    leads to the modules of the names that are taken from it, and to all where it is a
    start or imported as a whole. Of what lies outside mmrepro, only modules of the same
    package as a start, or beside it, are followed.

    Args:
        starts: modules that are loaded.
        stops: modules that are left out, and are not followed.
    """
    finder = _Finder(starts)
    files: dict[str, Path] = {}
    met = set(stops)
    waiting: list[str] = []
    for start in starts:
        waiting += finder.loaded_by(start)

    while waiting:
        name = waiting.pop()
        if name in met:
            continue
        met.add(name)
        path = finder.file(name)
        if path is None:
            continue

        files[name] = path
        # A package's __init__ runs before any module in it.
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        waiting += _imported_by(name, path, finder)

    return dict(sorted(files.items()))


def _imported_by(name: str, path: Path, finder: _Finder) -> Iterator[str]:
    """Modules that the code of a module imports, and what it takes from packages: each
    of these names may be a module."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for imported, names in _imports(path, state(path)):
        module = imported
        if imported.startswith("."):
            try:
                module = resolve_name(imported, package)
            except ImportError:
                # Beyond the package: it is a line of a docstring.
                continue

        yield from finder.loaded_by(module, names)


class _Finder:
    """Finds the file of a module of mmrepro, of a start's package, or beside a
    start."""

    def __init__(self, starts: Iterable[str]) -> None:
        self._files: dict[str, Path | None] = {}
        self._packages: dict[str, Path] = {}
        self._folders: dict[str, Path | None] = {}
        self._homes: list[Path] = []
        for name in starts:
            top = name.partition(".")[0]
            file = None if top == _PACKAGE else _loaded(name)
            if file is None:
                continue

            self._files[name] = file
            whole = _loaded(top)
            if whole is not None and whole.name == "__init__.py":
                self._packages[top] = whole.parent
            else:
                self._homes.append(file.parent)

    def file(self, name: str) -> Path | None:
        if name not in self._files:
            self._files[name] = self._found(name)
        return self._files[name]

    def loaded_by(self, module: str, names: Sequence[str] = ()) -> Iterator[str]:
        """The modules that ``from module import names`` loads, or ``import module``."""
        yield module
        file = self.file(module)
        if file is None:
            return
        homes = _homes(file, state(file))
        if not names or "*" in names:
            names = tuple(homes)
        for name in names:
            if name in homes:
                home, original = homes[name]
                yield from self.loaded_by(home, (original,))
            elif file.name == "__init__.py":
                yield from self.loaded_by(f"{module}.{name}")

    def _found(self, name: str) -> Path | None:
        top, *below = name.split(".")
        if top == _PACKAGE:
            part = below[0] if below else ""
            if part not in self._folders:
                self._folders[part] = folder_of(part)
            folder = self._folders[part]
            return _file_in(folder, below[1:]) if folder is not None else None

        if top in self._packages:
            return _file_in(self._packages[top], below)
        for home in self._homes:
            file = _file_in(home / top, below)
            if file is not None:
                return file

        return None


def folder_of(part: str) -> Path | None:
    """The folder of a part of mmrepro, which a checkout has elsewhere than an
    installation.

    A part that is one file is named without its suffix; "": mmrepro itself.
    """
    spec = find_spec(f"{_PACKAGE}.{part}" if part else _PACKAGE)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin.with_suffix("")


def _file_in(folder: Path, below: Iterable[str]) -> Path | None:
    place = os.path.join(folder, *below)  # noqa: PTH118 - a tenth of pathlib's time
    for path in (f"{place}/__init__.py", f"{place}.py"):
        if os.path.isfile(path):  # noqa: PTH113
            return Path(path)

    return None


def _loaded(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).resolve() if file else None


@lru_cache(maxsize=1024)
def _imports(path: Path, state: FileState) -> tuple[_Imported, ...]:
    """Imports of a file; ``state`` tells a changed file from the old one."""
    text = _TYPES_ONLY.sub("", path.read_text(encoding="utf-8", errors="replace"))
    imports: list[_Imported] = []
    for module, names, modules in _IMPORT.findall(text):
        if module:
            imports.append((module, _words(names.strip("() \t"))))
            continue
        for whole in _words(modules):
            imports.append((whole, ()))

    return tuple(imports)


@lru_cache(maxsize=1024)
def _homes(path: Path, state: FileState) -> dict[str, tuple[str, str]]:
    """By each name that a door gives: its module, and what it is called there; {}: the
    file is no door."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not _DOOR.search(text):
        return {}
    homes = {}
    for block in _TYPES_ONLY.finditer(text):
        for module, names, _ in _IMPORT.findall(block[0]):
            for words in _aliases(names.strip("() \t")):
                # NAME as ALIAS
                if len(words) == 3:
                    homes[words[2]] = (module, words[0])

    return homes


def _aliases(listed: str) -> list[list[str]]:
    """The words of each part of ``a, b as c``."""
    parts = _COMMENT.sub("", listed).replace("\\\n", " ").split(",")
    aliases = []
    for part in parts:
        words = part.split()
        if words:
            aliases.append(words)

    return aliases


def _words(listed: str) -> tuple[str, ...]:
    """``a, b as c`` without what each is called afterwards."""
    return tuple(words[0] for words in _aliases(listed))


_ENGINE_VARIABLES = (
    "VLLM_",
    "SGLANG_",
    "LMDEPLOY_",
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "KMP_",
    "MKL_",
    "CUDA_",
    "NCCL_",
    "HF_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "MINIVLLM_",
)
"""Of the variables that the engine inherits, those that engines and their libraries
read."""

START_MODE = "start mode"
"""The part that the run itself may change, when it finds that a mode cannot be used."""

KEY_VERSION = "2"
"""Changes once with what a key is made of, where the same run would get another key.

2: the code is the import closure of the scenario and the runner, not most of the
package; the code of an engine that comes with mmrepro is a part of it. """

_RUNNER = "mmrepro.runs.runner"
_BUILDERS = (
    "mmrepro.engines.environments.build",
    "mmrepro.engines.environments.index",
    "mmrepro.engines.environments.uv",
)
"""Modules that build an environment, which is in the key as it was built: its lock
file, its Python and its commit."""

DATA = {
    "mmrepro.engines.supervise.warm": ("", "engines/supervise/fork*.py"),
    "mmrepro.engines.environments.spec": ("", "engines/environments/{engine}.toml"),
    "mmrepro.engines.folders": ("", "engines/{engine}/*.toml"),
    "mmrepro.engines.models.families": ("", "engines/models/*.toml"),
    "mmrepro.engines.log_rules": ("", "engines/rules/starts.toml"),
    "mmrepro.scenarios.data": ("scenarios", "data/pad_value_pair/*"),
    "mmrepro.traffic.case.files": ("scenarios", "data/pad_value_pair/*"),
}
"""Files that a module reads or has another interpreter run: a part of mmrepro, and a
pattern of names in it."""


def decisive_parts(
    scenario: Scenario,
    options: RunCommand,
    environment: Environment,
    model: Path,
    starter: Starter,
    gpus: Sequence[str] | None = None,
) -> dict[str, str]:
    """All that decides a run's outcome, named, so that two keys can be compared.

    The port is chosen anew for every run, and so is one of several like GPUs; folders
    differ between machines: none of these is in it.

    Args:
        gpus: models of those that the run takes; None: of those that it would take now.
    """
    port = free_port()
    plan = ServerSpec(scenario, options, environment, model).plan(port)
    host = host_facts()
    spec = environment.spec
    if gpus is None:
        gpus = gpu_models(spec.device)
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

    weights = [path for path in sorted(model.rglob("*")) if path.is_file()]
    mode, _ = starter.choose(plan, environment)
    return {
        "key_version": KEY_VERSION,
        "mmrepro": mmrepro.__version__,
        "scenario": scenario.full_name,
        "code": code_digest(scenario, plan),
        "engine": f"{scenario.engine} {spec.release} {spec.commit}".strip(),
        "environment": digest_of_files([environment.lock_file]),
        "python": environment.python_version,
        "model": digest_of_files(weights),
        "max_model_len": str(scenario.max_model_len),
        "device": " ".join([spec.device, *gpus]),
        "host": f"{host.cpu}, {host.cores} cores",
        "command": placed(json.dumps(plan.argv)),
        "variables": placed(json.dumps(plan.env, sort_keys=True)),
        "inherited": json.dumps(_inherited(plan, spec.device), sort_keys=True),
        "flips": json.dumps(sorted(options.flips)),
        "mitigations": json.dumps(sorted(options.mitigations)),
        "options": json.dumps(sorted(options.options)),
        "contract probe": str(options.contract_probe),
        START_MODE: mode.value,
    }


def run_key(parts: dict[str, str]) -> str:
    """Digest of a run's :func:`decisive_parts`: runs with one key are the same
    experiment."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def code_digest(scenario: Scenario, plan: LaunchPlan | None = None) -> str:
    """Digest of the code that runs, observes and judges; the same wherever mmrepro
    lies."""
    return digest_of_files(code_files(scenario, plan))


def code_files(scenario: Scenario, plan: LaunchPlan | None = None) -> list[Path]:
    """The import closure of scenario and runner, its data, and what runs in the engine.

    Reports are made after the verdict: neither they nor the command line are in it.
    """
    modules = closure(_starts(scenario), _stops(scenario.engine))
    files = list(modules.values())
    data = {place for module, place in DATA.items() if module in modules}
    for part, pattern in sorted(data):
        folder = folder_of(part)
        if folder is not None:
            files += sorted(folder.glob(pattern.format(engine=scenario.engine)))

    inside: set[Path] = set()
    for folder in _folders_inside(scenario, plan):
        inside.update(folder.rglob("*.py"))

    inside.update(reproducer_path(name) for name in scenario.reproducers)
    return files + sorted(inside)


def _folders_inside(scenario: Scenario, plan: LaunchPlan | None) -> set[Path]:
    """Folders of code that is imported in the engine's own processes."""
    standins = reproducer_path("standins")
    # Of the engines only minivllm comes with mmrepro; of another one there is none.
    folders = {standins / BOOT, reproducer_path(scenario.engine)}
    for patch in scenario.patches:
        folders.add(standins / patch.folder)

    for factor in scenario.factors:
        if factor.patch:
            folders.add(standins / factor.patch.folder)

    if plan is not None:
        listed = plan.env.get("MMREPRO_STAND_INS", "").split(os.pathsep)
        folders.update(Path(folder) for folder in listed if folder)
    return folders


def _starts(scenario: Scenario) -> list[str]:
    """The runner, the engine, and each module that a class of the scenario is from."""
    starts = [_RUNNER, f"mmrepro.engines.{scenario.engine}"]
    for base in type(scenario).__mro__:
        if issubclass(base, Scenario) and base is not Scenario:
            starts.append(base.__module__)

    return starts


def _stops(engine: str) -> list[str]:
    """Builders, and the engines that this run does not start."""
    others = [f"mmrepro.engines.{name}" for name in ENGINES if name != engine]
    return [*_BUILDERS, *others]


def _inherited(plan: LaunchPlan, device: str) -> dict[str, str]:
    """What the engine finds in its environment although nobody set it for this run.

    Digests of the values: parts are written down, and a value may be a token
    (``HF_TOKEN``)."""
    inherited = {}
    for name, value in child_environment(plan.env).items():
        if not name.startswith(_ENGINE_VARIABLES) or name in plan.env:
            continue
        # A run on a GPU sets its own.
        if device == "cuda" and name in (VISIBLE_GPUS, GPU_ORDER):
            continue
        hashed = hashlib.sha256(value.encode("utf-8", "replace"))
        inherited[name] = hashed.hexdigest()[:12]

    return inherited


def gpu_models(device: str = "cuda") -> list[str]:
    """Models of what a GPU run would take now; if others use everything, of what they
    use."""
    if device == "cpu":
        return []
    reading = read_gpus()
    names = choose_gpus(reading).names
    if names:
        return names
    seen = visible_gpus(reading, os.environ.get(VISIBLE_GPUS))
    return [gpu.name for gpu in seen[:1]]
