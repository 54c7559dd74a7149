"""How a server is started: cold, forked, or from a fork server; what that replaces, and
the time of each stage."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Self

import mmrepro
from mmrepro.base.box import TEMPORARY, BoxOrder
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import (
    GPU_ORDER,
    VISIBLE_GPUS,
    cache_root,
    child_environment,
    digest_of_files,
)
from mmrepro.base.records import Setting
from mmrepro.engines import BOOT, LaunchPlan
from mmrepro.engines.environments import Environment, ModeSeen, note_start, starts_seen
from mmrepro.engines.models import MODELS_DIR
from mmrepro.engines.supervise import EngineProcess, run_variables, start_engine
from mmrepro.engines.supervise.warm import (
    FORK,
    SCRIPTS,
    ForkServer,
    ForkServers,
    ForkServerSpec,
)
from mmrepro.failure.documents import WarmParentFacts
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.options import StartMode

MODE_VARIABLE = "MMREPRO_START_MODE"
IDLE_VARIABLE = "MMREPRO_WARM_IDLE"
ROOT_VARIABLE = "MMREPRO_WARM_DIR"
LAST_STAGE = "HTTP up"
_MAX_BYTES = 8 << 20
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it torch.cuda.is_available() asks NVML; else it initialises CUDA, and an import
that asks it leaves a parent whose forks cannot use the GPU."""

_REPLACES = {
    StartMode.COLD: "the engine's own start method, nothing replaced",
    StartMode.FORK: "the engine is imported once: a process that it asks "
    "multiprocessing to spawn is forked, with the files and signals that a spawned one "
    "has (not one that has initialised CUDA)",
    StartMode.WARM: "forked from a process that had imported the engine before, and "
    "otherwise as with fork; the hash seed of str, and what libraries read of their "
    "variables as they were imported, are the parent's; single-file reproducers are "
    "forked from it too",
}
_CODE = Path(mmrepro.__file__).parent
_STATE = TEMPORARY / "state"
_LET_IN = (
    "LANG",
    "LC_ALL",
    "TZ",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)
"""Variables of ours that a box gets: how results are written and computed, nothing of
the user."""
SAFER = {StartMode.WARM: StartMode.FORK, StartMode.FORK: StartMode.COLD}


class Starter:
    """Starts the servers of one command; parents that it made end with it.

    Attributes:
        mode: as asked for; ``auto`` takes a fork server where one is kept, or where the
            command starts ``several`` servers, else ``fork``. A server that the command
            ``keeps`` is to show its own command line: none from a fork server.
        boxed: whether servers run in a box, because a stranger chose their options or
            requests.
    """

    def __init__(
        self,
        mode: StartMode = StartMode.AUTO,
        *,
        several: bool = False,
        keeps: bool = False,
        boxed: bool = False,
    ) -> None:
        self.mode = mode
        self.boxed = boxed
        self.several = several
        self.keeps = keeps
        self.parents = ForkServers(warm_root(), idle_s=idle_seconds())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.parents.end()

    def choose(
        self, plan: LaunchPlan, environment: Environment
    ) -> tuple[StartMode, list[str]]:
        """The mode for that start, and why it is not a faster one."""
        if self.mode is not StartMode.AUTO:
            return self.mode, []
        warm = not self.keeps and (self.several or self.parent_of(plan, environment))
        mode = StartMode.WARM if warm else StartMode.FORK
        known = starts_seen(environment.state_dir).modes
        reasons: list[str] = []
        while mode in SAFER:
            seen = known.get(_name(mode, plan))
            # What may have been chance is tried again.
            if seen is None or seen.works or not seen.certain:
                break
            reasons.append(f"not {mode}: {seen.why}")
            mode = SAFER[mode]

        return mode, reasons

    def parent_of(
        self, plan: LaunchPlan, environment: Environment
    ) -> ForkServer | None:
        return self.parents.find(self._fork_server_spec(plan, environment))

    def warm(self, plan: LaunchPlan, environment: Environment) -> None:
        """Have a fork server for ``plan``. Raises Refused or ForkServerDied, and as
        ``install``."""
        have_beside(plan)
        self.parents.get(self._fork_server_spec(plan, environment))

    def _fork_server_spec(
        self, plan: LaunchPlan, environment: Environment
    ) -> ForkServerSpec:
        spec = fork_server_spec(
            plan, environment, variables_inside() if self.boxed else None
        )
        if not self.boxed:
            return spec
        env = _moved_state(spec.env, environment)
        return replace(spec, env=env, box=box_of(environment))

    def start(
        self,
        plan: LaunchPlan,
        environment: Environment,
        mode: StartMode,
        *,
        cwd: Path,
        log: Path,
        grace_s: float,
    ) -> tuple[EngineProcess, WarmParentFacts | None]:
        """Start the server of ``plan``: its process, and the fork server whose fork it
        is.

        Raises:
            Refused, ForkServerDied: the environment cannot be warmed; nothing was
            started.
            SupervisorError: the server's process could not be started.
            InfrastructureError: as ``install``, of a package that the plan needs.
        """
        have_beside(plan)
        box = None
        if self.boxed:
            env = child_environment(plan.env, base=variables_inside())
            env = _moved_state(env, environment)
            box = box_of(environment)
        else:
            env = child_environment(plan.env)

        if mode is StartMode.WARM:
            parent = self.parents.get(self._fork_server_spec(plan, environment))
            process = parent.start(
                plan.argv, plan.entry, env, cwd=cwd, log=log, grace_s=grace_s
            )
            return process, _parent_facts(parent)

        argv = plan.argv
        if mode is StartMode.FORK:
            entry = plan.entry
            folders = os.pathsep.join(entry.path)
            run = [str(environment.python), "-c", FORK, str(SCRIPTS), folders]
            argv = [*run, entry.module, *entry.arguments]

        process = start_engine(argv, env, cwd=cwd, log=log, grace_s=grace_s, box=box)
        return process, None

    def box_for(self, plan: LaunchPlan, environment: Environment) -> BoxOrder:
        """The box of whatever runs in the environment as a server of ``plan`` does.
        Raises as ``install``."""
        have_beside(plan)
        env = child_environment(plan.env, base=variables_inside())
        env = run_variables(_moved_state(env, environment), str(TEMPORARY))
        env["PATH"] = os.pathsep.join([str(environment.python.parent), env["PATH"]])
        return replace(box_of(environment), env=env)

    def note(
        self,
        mode: StartMode,
        plan: LaunchPlan,
        environment: Environment,
        seconds: float,
        parent: WarmParentFacts | None = None,
    ) -> None:
        """Remember that a start of that mode became ready."""
        seen = ModeSeen(works=True, seconds=round(seconds, 2))
        if parent is not None:
            seen.imports_s = parent.imports_s
            seen.memory_bytes = parent.memory_bytes

        note_start(environment.state_dir, _name(mode, plan), seen)

    def note_unusable(
        self,
        mode: StartMode,
        plan: LaunchPlan,
        environment: Environment,
        why: str,
        *,
        certain: bool,
    ) -> None:
        """Remember that the environment does not bear that mode.

        Not ``certain``: it may have been chance; the second time in a row it is
        believed."""
        name = _name(mode, plan)
        before = starts_seen(environment.state_dir).modes.get(name)
        again = before is not None and not before.works
        seen = ModeSeen(works=False, certain=certain or again, why=why)
        note_start(environment.state_dir, name, seen)


def have_beside(plan: LaunchPlan) -> None:
    """Have what ``plan`` needs and the environment lacks. Raises as its ``install``."""
    for missing in plan.beside:
        missing.install()


def _parent_facts(parent: ForkServer) -> WarmParentFacts:
    """What an incident holds of a fork server: some of what that one knows of
    itself."""
    facts = {}
    for name, value in vars(parent.facts).items():
        if name in WarmParentFacts.model_fields:
            facts[name] = value

    return WarmParentFacts(kept=bool(parent.kept_s), **facts)


class StartStages:
    """Notes when each mark appears in the log; the log's own times have whole seconds
    only.

    Look at it often: a stage is as exact as the looks are frequent. A stage whose mark
    is missing (another release, another log level) is counted, and named, together with
    the next one."""

    def __init__(self, marks: Mapping[str, str], log: Path, began: float) -> None:
        """``marks``: see ``Engine.start_marks``; ``began``: of the start, monotonic
        seconds."""
        self._marks = {
            stage: re.compile(mark.encode()) for stage, mark in marks.items()
        }
        self._log = log
        self._read = 0
        self._rest = b""
        self._began = began
        self._ended: dict[str, float] = {}

    def look(self) -> None:
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                new = file.read(_MAX_BYTES)
        except OSError:
            return

        now = time.monotonic()
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            for stage, mark in self._marks.items():
                if stage not in self._ended and mark.search(line):
                    self._ended[stage] = now

    def ended(self, ready: float) -> dict[str, float]:
        """{stage: seconds}, in order; ``ready``: when the server was, monotonic
        seconds."""
        self.look()
        stages: dict[str, float] = {}
        before = self._began
        unseen: list[str] = []
        for stage in self._marks:
            unseen.append(stage)
            if stage not in self._ended:
                continue
            # A mark may come before that of an earlier stage, or be read once it is ready.
            at = min(max(self._ended[stage], before), ready)
            stages[" + ".join(unseen)] = round(at - before, 2)
            before = at
            unseen = []

        stages[" + ".join([*unseen, LAST_STAGE])] = round(ready - before, 2)
        return stages


def fork_server_spec(
    plan: LaunchPlan, environment: Environment, base: Mapping[str, str] | None = None
) -> ForkServerSpec:
    """What a fork server for ``plan`` is: all that a library could have read at its
    import.

    ``base``: the variables of the command that is to find it; None: our own.
    """
    spec = environment.spec
    entry = plan.entry
    env = child_environment(plan.env, base=base)
    if spec.device == "cuda":
        # It never initialises CUDA, so it is one parent for servers on any of the GPUs.
        env.pop(VISIBLE_GPUS, None)
        env.pop(GPU_ORDER, None)
        env[_NVML_CHECK] = "1"

    # e.g. vllm.entrypoints.openai.api_server, or lmdeploy serve api_server
    subcommands = takewhile(str.isidentifier, entry.arguments)
    return ForkServerSpec(
        label=f"{spec.engine} {spec.release}",
        python=environment.python,
        module=entry.module,
        preload=plan.preload,
        env=env,
        path=tuple(entry.path),
        digest=digest_of_files(_code(plan, environment)),
        words=(entry.module, *subcommands),
    )


# ----------------------------------------------------------------------------- in a box


def box_of(environment: Environment) -> BoxOrder:
    """What a server's box is let in, whatever runs in it: the environment with its
    interpreter, the models, mmrepro's own code; a GPU's device nodes where the
    environment is for one."""
    readable = [
        environment.path,
        environment.python.resolve().parent.parent,
        cache_root() / MODELS_DIR,
        _CODE,
        reproducer_path(""),
    ]
    if environment.below is not None:
        readable.append(environment.below)

    devices: list[Path] = []
    if environment.spec.device == "cuda":
        devices = sorted(Path("/dev").glob("nvidia*"))
        readable += [
            Path("/proc/driver/nvidia"),
            Path("/sys/bus/pci"),
            Path("/sys/module/nvidia"),
        ]

    caches: tuple[tuple[Path, Path], ...] = ()
    if environment.state_dir.is_dir():
        caches = ((environment.state_dir, _STATE),)
    return BoxOrder(
        argv=(), readable=tuple(readable), devices=tuple(devices), caches=caches
    )


def variables_inside() -> dict[str, str]:
    """Variables of ours that a box gets, and those that it needs instead of the
    user's."""
    kept = {name: os.environ[name] for name in _LET_IN if name in os.environ}
    path = "/usr/local/bin:/usr/bin:/bin"
    own = {"HOME": str(TEMPORARY), "USER": "box", "LOGNAME": "box", "PATH": path}
    return {"LANG": "C.UTF-8", **kept, **own}


def _moved_state(env: Mapping[str, str], environment: Environment) -> dict[str, str]:
    """``env`` with the engine's caches in the box's own copy of them: what a stranger's
    server writes there, no later server reads."""
    state = str(environment.state_dir)
    return {name: value.replace(state, str(_STATE)) for name, value in env.items()}


def _code(plan: LaunchPlan, environment: Environment) -> Iterator[Path]:
    """Files that are imported and may be edited under a parent that lives on."""
    yield environment.lock_file
    listed = plan.env.get("MMREPRO_STAND_INS", "").split(os.pathsep)
    folders = [Path(folder) for folder in listed if folder]
    if folders:
        folders.append(reproducer_path("standins") / BOOT)

    package = plan.entry.module.partition(".")[0]
    for path in plan.entry.path:
        folders.append(Path(path) / package)

    for folder in folders:
        yield from sorted(folder.rglob("*.py"))


def mode_setting(mode: StartMode, fallbacks: Sequence[str]) -> Setting:
    """The start mode as reports list it, and why it is not a faster one."""
    why = "; ".join([_REPLACES[mode], *fallbacks])
    return Setting(name="start mode", value=mode, why=why)


def _name(mode: StartMode, plan: LaunchPlan) -> str:
    stand_ins = " ".join(stand_in.name for stand_in in plan.stand_ins)
    return f"{mode} with {stand_ins}" if stand_ins else mode.value


def warm_root() -> Path:
    """Where parents are that outlive a command: ``MMREPRO_WARM_DIR``, else below the
    cache."""
    given = os.environ.get(ROOT_VARIABLE)
    return Path(given).absolute() if given else cache_root() / "warm"


def idle_seconds() -> float:
    """Read ``MMREPRO_WARM_IDLE``: seconds for which a parent waits for the next
    command; 0: it ends with the one that made it. Raises UsageError."""
    text = os.environ.get(IDLE_VARIABLE, "") or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0

    if not 0 <= seconds < float("inf"):
        raise UsageError(
            f"{IDLE_VARIABLE}={text!r} is no number of seconds.", hint="e.g. 300"
        )

    return seconds
