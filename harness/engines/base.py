"""What an adapter to an inference engine provides, and what is added to an engine or
its command: stand-ins, flags, patches."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mmrepro.base.errors import UsageError
from mmrepro.base.records import Fidelity, Setting, StandIn

if TYPE_CHECKING:  # a scenario knows engines, and starts none
    from mmrepro.engines.allowed import Allowed
    from mmrepro.engines.environments.beside import Beside, BesidePackage
    from mmrepro.engines.environments.spec import Environment, EnvironmentSpec
    from mmrepro.engines.promises import ApiPromises
    from mmrepro.engines.supervise import Entry
from typing import Literal

from packaging.specifiers import SpecifierSet

SERVED_MODEL = "tiny"

UVICORN_STARTS = r"INFO:\s+Started server process \[\d+\]"

PROXY = re.compile(r"pair[./]server")
"""The command line of what stands before a prefill and a decode server
(reproducers/pair)."""

BOOT = "boot"
"""Below ``reproducers/standins``: runs the stand-ins in every process of the engine."""


@dataclass(frozen=True)
class LaunchRequest:
    """What is to be served, and how."""

    environment: Environment
    model: Path
    port: int
    max_model_len: int
    server_args: tuple[str, ...]
    mitigations: tuple[Mitigation, ...] = ()
    patches: tuple[Patch, ...] = ()
    """Stand-ins of the scenario; those of mitigations come after them."""
    server_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the scenario sets."""
    gpu: tuple[Setting, ...] = ()
    """Variables that make a GPU run's engine see the GPU that it takes."""

    @property
    def all_patches(self) -> tuple[Patch, ...]:
        """In order; those for another device are left out."""
        patches = (
            *self.patches,
            *(m.patch for m in self.mitigations if m.patch is not None),
            *([REACHED_LINES] if REACH in self.server_env else []),
        )
        return tuple(
            p
            for p in patches
            if not p.device or p.device == self.environment.spec.device
        )

    @property
    def all_server_args(self) -> tuple[str, ...]:
        """Mitigations' options come last: in argparse the last one wins."""
        return (
            *self.server_args,
            *(arg for m in self.mitigations for arg in m.server_args),
        )

    def beside(self, patches: tuple[Patch, ...]) -> tuple[BesidePackage, ...]:
        """Packages of ``patches`` that the environment lacks."""
        names = [name for patch in patches for name in patch.packages]
        if not names:
            return ()
        from mmrepro.engines.environments.beside import beside

        packages = [beside(self.environment, name) for name in names]
        return tuple(package for package in packages if package is not None)

    def variables(self, patches: tuple[Patch, ...]) -> dict[str, str]:
        """What the scenario, ``patches`` and the mitigations add to the server's
        environment."""
        from mmrepro.reproducers import reproducer_path

        variables: dict[str, str] = dict(self.server_env)
        if patches:
            folders = [str(reproducer_path("standins") / p.folder) for p in patches]
            boot = str(reproducer_path("standins") / BOOT)
            packages = [str(package.folder) for package in self.beside(patches)]
            variables["PYTHONPATH"] = os.pathsep.join([boot, *folders, *packages])
            variables["MMREPRO_STAND_INS"] = os.pathsep.join(folders)
        for patch in patches:
            variables.update(patch.env)
        for mitigation in self.mitigations:
            variables.update(mitigation.env)
        return variables


def lowered(fidelity: Fidelity, patches: tuple[Patch, ...]) -> Fidelity:
    """The fidelity of a run with ``patches``: the last one that says so decides.

    A made-up GPU memory lowers that of a GPU only; a teaching engine stays one.
    """
    if fidelity is Fidelity.TEACHING_ENGINE:
        return fidelity
    told = [p.fidelity for p in patches if p.fidelity is not None]
    if fidelity is not Fidelity.GPU:
        told = [one for one in told if one is not Fidelity.GPU_STAND_IN]
    return told[-1] if told else fidelity


@dataclass(frozen=True)
class LaunchPlan:
    """A server's command, its variables, and what differs from a plain start.

    ``argv`` is the engine's own way to be started, nothing replaced; ``env`` holds only
    what is set besides the cleaned environment of the harness."""

    argv: list[str]
    env: dict[str, str]
    settings: list[Setting]
    stand_ins: list[StandIn]
    fidelity: Fidelity
    entry: Entry
    """What the command runs, for a start that is forked."""
    preload: tuple[str, ...] = ()
    """What a fork server imports besides, as far as the release has it."""
    beside: tuple[Beside, ...] = ()
    """What must be installed beside the environment before it starts."""


@dataclass(frozen=True)
class Signs:
    """What is seen of a server of which nothing is known yet.

    Attributes:
        commands: command lines (or titles) of its processes.
        metrics: names of its Prometheus metrics.
    """

    commands: tuple[str, ...] = ()
    metrics: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StackRole:
    """Where the stack of a process begins.

    Attributes:
        role: what the process is; "": the core.
        file: expression of the end of a file near the outer end of its stack.
        functions: expression of a whole function's name in that file.
    """

    role: str
    file: str
    functions: str


class Engine(ABC):
    """One inference engine: provision, launch, talk to it, find its processes and
    logs."""

    name: ClassVar[str]
    module: ClassVar[str]
    """Its server, as in ``python -m MODULE``."""
    moved_to: ClassVar[tuple[str, ...]] = ()
    """Where later releases have it, newest first: what a release has is taken."""
    preload: ClassVar[tuple[str, ...]] = ()
    """What its processes import besides, in any release that mmrepro knows."""
    model_package: ClassVar[str] = ""
    """Where it keeps a module for each ``model_type`` of a model's config.json."""
    owned_options: ClassVar[tuple[str, ...]] = ()
    """Options of its server that only mmrepro may give."""
    chat_frame: ClassVar[tuple[str, str] | None] = None
    """What a prompt stands between in a chat, of an engine without plain
    completions."""
    ready_path: ClassVar[str] = "/health"
    endpoints: ClassVar[tuple[str, ...]] = ("/health", "/v1/models")
    metrics_path: ClassVar[str] = "/metrics"
    start_marks: ClassVar[Mapping[str, str]] = {}
    """Stage of the start-up, in order: expression of the log line with which it ends.
    What follows the last one, until the server is ready, is the stage "HTTP up"."""
    runner_marks: ClassVar[Mapping[str, str]] = {}
    """Name of a model runner: expression of a log line that only it writes. {}: the
    engine has one."""
    front_marks: ClassVar[Mapping[str, str]] = {}
    """The same of a front end that takes the place of the usual one."""
    model_owners: ClassVar[tuple[str, ...]] = ()
    """What its list of models may have as ``owned_by``, besides its name."""
    core_role: ClassVar[str]
    """Role of the process that schedules and runs the model."""
    metrics: ClassVar[Mapping[str, tuple[str, ...]]]
    """Short name (running, waiting, finished, prompt_tokens): the engine's names,
    newest first."""
    log_patterns: ClassVar[Mapping[str, str]] = {}
    ready_mark: ClassVar[str] = r"Application startup complete\."
    """The log line with which a start ends well."""
    progress_pattern: ClassVar[str]
    """Log lines that show work done by the engine, not only by the HTTP front."""
    added_pattern: ClassVar[str] = ""
    """Log lines that tell of a new request; "": none do."""
    process_pattern: ClassVar[str] = ""
    """What the command line of one of its processes looks like; "": made from the
    name."""
    log_mark: ClassVar[str] = ""
    """A line that only this engine logs while it starts; a group "release" tells
    which."""
    release_word: ClassVar[str] = ""
    """A word of the lines in which it logs its release; "": it logs none."""
    start_lines: ClassVar[tuple[str, ...]] = (UVICORN_STARTS,)
    """Lines that it logs at each start, and only then, in that order."""
    code: ClassVar[tuple[str, ...]] = ()
    """Top folders of its files as stacks show them; (): some have none."""
    ends_itself: ClassVar[str] = ""
    """Expression of lines that it logs before it kills its own processes; "": it does
    not."""
    idle_loops: ClassVar[tuple[str, ...]] = ()
    """Functions of the core that turn round and burn CPU while there is nothing to
    do."""
    worker_role: ClassVar[str] = ""
    """How the roles of processes begin that only run the model, beside the core."""
    starts_in_order: ClassVar[Mapping[str, str]] = {}
    """How the roles of processes begin that are started below one parent in the order of
    their ranks: the releases that do so."""
    stack_roles: ClassVar[tuple[StackRole, ...]] = ()
    """Where the stacks of its processes begin, which tells their roles."""
    dumps_requests: ClassVar[bool] = False
    """Whether it writes files of requests, which no other engine does."""
    step_functions: ClassVar[tuple[str, ...]] = ()
    """Functions of the core that are on its stack during a step, and only then."""
    awaits_orders: ClassVar[tuple[str, str]] = ("", "")
    """Endpoint, and expression of its answer, that show an engine which met an exception
    and waits for an instruction; "": it does not."""
    queue_full: ClassVar[str] = ""
    """Expression of the words with which its front end turns a request away because as
    many wait as may; "": it has none."""
    core_threads: ClassVar[tuple[str, ...]] = ()
    """Functions with which threads of the core begin that last as long as it does."""
    core_ends_in: ClassVar[tuple[str, str]] = ("", "")
    """File and function in which a core stands while it ends by itself."""
    fatal_after_start: ClassVar[bool] = False
    """Whether its log pattern ``core-fatal`` is of an engine that was ready; else a
    start that failed says the same."""
    own_fidelity: ClassVar[Fidelity | None] = None
    """Of all its runs, whatever they run on; None: the device's."""
    distributions: ClassVar[tuple[str, ...]] = ()
    """Its names on the package index, for the release of a live server; (): the
    name."""
    version_paths: ClassVar[tuple[str, ...]] = ("/version",)
    """Endpoints whose JSON answer has a "version", asked when no file tells the
    release."""

    def role_of(self, name: str, cmdline: str) -> str:
        """What a process of the engine is called in reports, from its name and command
        line."""
        from mmrepro.probes import role_from_title

        return role_from_title(name, cmdline)

    def endpoints_of(self, words: Sequence[str]) -> tuple[str, ...]:
        """The cheap endpoints of a server with these options."""
        return self.endpoints

    def front_role_in(self, variables: Mapping[str, str]) -> str:
        """The role of the program that serves HTTP where the first process only starts
        it; "": that process serves HTTP itself.

        Args:
            variables: what the first process was started with.
        """
        return ""

    def wrote(self, source: str, words: str) -> bool:
        """Whether a line is surely its own, though it is in another engine's form.

        Args:
            source: file and number that the line names, as ``server.py:12``.
            words: what follows the line's beginning.
        """
        return False

    def fidelity_on(self, device: str) -> Fidelity:
        """Of a run on ``device`` with nothing replaced."""
        return self.own_fidelity or (Fidelity.GPU if device == "cuda" else Fidelity.CPU)

    def fidelity_in(self, environment: Environment) -> Fidelity:
        """The fidelity of a run in ``environment`` with nothing replaced."""
        plain = self.fidelity_on(environment.spec.device)
        mixed = bool(environment.python_of) and plain is Fidelity.CPU
        return Fidelity.SOURCE_ON_KERNELS if mixed else plain

    def recognise(self, signs: Signs) -> list[str]:
        """Why the server with these signs is this engine; empty: nothing says so."""
        reasons = []
        pattern = self.process_pattern or (
            rf"(?:^|[\s/'\"(]){re.escape(self.name)}(?:::|\.[a-z]|\s+serve\b)|-m\s+{self.name}(?:\s|$)"
        )
        for command in signs.commands:
            if match := re.search(pattern, command, re.IGNORECASE):
                reasons.append(f"a process called {match[0].strip()!r}")
                break
        known = {name for names in self.metrics.values() for name in names}
        if shared := sorted(known & signs.metrics):
            reasons.append(f"its metric {shared[0]}")
        return reasons

    def module_in(self, site_packages: Path) -> str:
        """Its server in an environment: :attr:`module`, unless that has one of
        ``moved_to``."""
        for name in self.moved_to:
            if site_packages.joinpath(*name.split(".")).with_suffix(".py").is_file():
                return name
        return self.module

    def known(self, option: str, site_packages: Path) -> tuple[str, ...]:
        """``option`` of the server, if the release installed there defines it; else
        nothing."""
        name = option.removeprefix("--").replace("-", "_")
        folder = site_packages / self.module.partition(".")[0]
        files = folder.rglob("*arg*.py") if name else ()
        return (option,) if any(name in file.read_text() for file in files) else ()

    def contract_watch(self) -> Mitigation | None:
        """What makes the engine hold each step against the prefill contract; None:
        cannot.

        Its log then says ``contract violated:`` (see ``log_patterns``).
        """
        return None

    @property
    def allowed(self) -> Allowed:
        """Options and variables of its server that a report or a case of others may
        set."""
        from mmrepro.engines.allowed import allowed_of

        return allowed_of(self.name)

    @property
    def promises(self) -> ApiPromises:
        """What its API promises, for those who judge its answers."""
        from mmrepro.engines.promises import promises_of

        return promises_of(self.name)

    def environment_spec(self, release: str, device: str) -> EnvironmentSpec:
        """How to provision ``release``; by default from the index. Raises
        UnknownRelease."""
        from mmrepro.engines.environments.spec import SPECS

        return SPECS[self.name](release, "cuda" if device == "cuda" else "cpu")

    def given(
        self, words: Iterable[str], env: Mapping[str, str] | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """Options and variables that a user gives the server: ``{feature:NAME}`` stands
        for that feature's own.

        Raises:
            UsageError: an option that mmrepro must own, a feature or tiny model that
                there is not.
        """
        from mmrepro.engines.features import options_of
        from mmrepro.engines.models.tiny import with_folders

        args, variables = options_of(self.name, words, env or {})
        for option in self.owned_options:
            if has_option(args, option):
                raise UsageError(
                    (
                        f"{option} is set by mmrepro itself and cannot be given as "
                        "--server-arg."
                    ),
                    hint=f"leave {option} out",
                )
        for word in args:
            with_folders(word)
        return args, variables

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """The command that starts the server; ``{tiny:NAME}`` in an option stands for
        the folder of a tiny model or adapter, which is written. Raises as
        :meth:`given`."""
        from mmrepro.base.machine import cache_root, hide_gpus
        from mmrepro.engines.features import PAIR
        from mmrepro.engines.models.tiny import MODELS_DIR, with_folders
        from mmrepro.engines.supervise import Entry
        from mmrepro.reproducers import reproducer_path

        args, variables = self.given(request.server_args, request.server_env)
        pair = PAIR in args
        args = [word for word in args if word != PAIR]
        request = replace(request, server_args=tuple(args), server_env=variables)
        device = request.environment.spec.device
        settings = [
            *(request.gpu if device == "cuda" else hide_gpus()),
            *self.settings(request),
        ]
        patches = (*self.own_patches(request), *request.all_patches)
        env = {s.name: s.value for s in settings if not s.name.startswith("-")}
        module = self.module_for(request)
        arguments = self.command(request)
        for setting in settings:
            if setting.name.startswith("--"):
                arguments += [setting.name, *([setting.value] if setting.value else [])]
        arguments += request.all_server_args
        arguments = [
            with_folders(word, cache_root() / MODELS_DIR) for word in arguments
        ]
        run, entry = (
            self.interpreter_args(module),
            Entry(module, arguments, self.module_path()),
        )
        if pair:
            script = reproducer_path("pair") / "server.py"
            run, arguments = [str(script)], [module, *arguments]
            entry = Entry("pair.server", arguments, [str(script.parent.parent)])
        return LaunchPlan(
            argv=[str(request.environment.python), *run, *arguments],
            env=env | request.variables(patches),
            settings=settings,
            # Copies: what each run counts of them is written into them.
            stand_ins=[p.stand_in.model_copy() for p in patches],
            fidelity=lowered(self.fidelity_in(request.environment), patches),
            entry=entry,
            preload=(
                *self.preload,
                *([module] if pair else []),
                *self._model_modules(request.model),
            ),
            beside=(*request.beside(patches), *self.own_beside(request)),
        )

    def interpreter_args(self, module: str) -> list[str]:
        return ["-m", module]

    def module_path(self) -> list[str]:
        """Folders in which ``module`` is, if it is not installed."""
        return []

    def _model_modules(self, model: Path) -> Iterator[str]:
        from mmrepro.base.machine import MOST_CONFIG_BYTES, read_file

        try:
            kind = json.loads(read_file(model / "config.json", MOST_CONFIG_BYTES))[
                "model_type"
            ]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return
        if self.model_package:
            yield f"{self.model_package}.{kind}"
        yield f"transformers.models.{kind}"
        yield f"transformers.models.{kind}.processing_{kind}"

    @abstractmethod
    def command(self, request: LaunchRequest) -> list[str]:
        """The server's arguments, up to the options that have a reason of their own."""

    def settings(self, request: LaunchRequest) -> Iterator[Setting]:
        """Options (``--name``) and variables that a user need not give, each with its
        reason."""
        yield from ()

    def own_patches(self, request: LaunchRequest) -> tuple[Patch, ...]:
        """Stand-ins without which it does not start on that device; before all
        others."""
        return ()

    def own_beside(self, request: LaunchRequest) -> tuple[Beside, ...]:
        """Programs that ``request`` needs and its environment lacks."""
        return ()

    def module_for(self, request: LaunchRequest) -> str:
        """The module that is started for ``request``: its server, unless the request
        needs another way in."""
        return self.module_in(request.environment.site_packages)


def two_threads() -> Setting:
    """A tiny model is slower on more, and the harness needs a core as well."""
    threads = max(1, min(2, len(os.sched_getaffinity(0))))
    return Setting(name="OMP_NUM_THREADS", value=str(threads), why="a tiny model")


def without_prefix(line: str) -> str:
    """A log line as it would be without the engine's process, level, time and place."""
    from mmrepro.probes.log_forms import read_line
    from mmrepro.probes.log_lines import clean

    return read_line(clean(line.encode("utf-8", "replace")), words=False).text


def ranks_of(server_args: Sequence[str]) -> dict[str, int]:
    """The size of each group with more than one rank: ``{"TP": 2}``; the last option
    wins."""
    from mmrepro.base.common_options import RANK_OPTIONS

    words = [part for word in server_args for part in word.split("=", 1)]
    sizes = {
        group: int(value)
        for name, value in pairwise(words)
        for group, names in RANK_OPTIONS.items()
        if name in names and value.isdigit()
    }
    return {group: size for group, size in sizes.items() if size > 1}


def loopback() -> Iterator[Setting]:
    """For ranks on one machine."""
    yield Setting(
        name="GLOO_SOCKET_IFNAME", value="lo", why="the ranks are on this machine"
    )


def has_option(server_args: Sequence[str], name: str) -> bool:
    return any(arg == name or arg.startswith(name + "=") for arg in server_args)


def option_of(server_args: Sequence[str], name: str) -> str:
    """The value of an option, the last one; "": it is not given."""
    value = ""
    for place, word in enumerate(server_args):
        if word == name:
            value = "".join(server_args[place + 1 : place + 2])
        elif word.startswith(name + "="):
            value = word.removeprefix(name + "=")
    return value


@dataclass(frozen=True)
class Patch:
    """Code put in front of an unmodified engine: a stand-in.

    Attributes:
        folder: below ``reproducers/standins``; it comes first on the module path, and
            its ``standin.py``, if it has one, runs in every Python process of the
            engine.
        stand_in: what it replaces and why, for the report.
        env: variables that it reads.
        fidelity: of a run with it; None: as without it.
        device: where it is put in front of the engine; "" means everywhere.
        packages: names of packages that it needs; those that the environment lacks are
            installed beside it.
    """

    folder: str
    stand_in: StandIn
    env: Mapping[str, str] = field(default_factory=dict)
    fidelity: Fidelity | None = None
    device: Literal["", "cpu", "cuda"] = ""
    packages: tuple[str, ...] = ()


REACH = "MMREPRO_REACH"
"""Variable with the lines of the engine's code that are looked for; no engine reads
it."""
REACHED_LINES = Patch(
    "reach",
    StandIn(
        name="reach",
        replaces="nothing: it writes to the log which lines of a change run, and when",
        why="which requests reach a change is not known otherwise. Before Python 3.12 "
        "the server computes more slowly with it; what it answers stays the same",
    ),
)


@dataclass(frozen=True)
class Mitigation:
    """A flag, a release or a patch that is said to help.

    What is sent along with a request (a cache salt, say) is the scenario's to do: it
    finds the names of the mitigations in ``Drive.mitigations``.

    Attributes:
        server_args: options added to the server's command line.
        env: variables added to the server's environment.
        patch: code put in front of the engine's modules.
        release: run this release instead.
        effective_on: releases on which it prevents the failure; the expectation follows
            it.
    """

    name: str
    description: str
    server_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    patch: Patch | None = None
    release: str = ""
    effective_on: SpecifierSet = SpecifierSet("")  # noqa: RUF009 - immutable
