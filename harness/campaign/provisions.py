"""What a campaign's runs need beside them: environments, fetched one ahead, and fork
servers; and a bound for what that adds to the disk.

An environment's files are hard links into uv's cache, so removing it frees next to
nothing: what counts is that uv's cache lets go of the packages as well."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mmrepro.base.errors import MmreproError
from mmrepro.base.machine import (
    cache_root,
    environments_root,
    refuse_other_kinds,
    write_file,
)
from mmrepro.base.records import Record
from mmrepro.base.units import duration, size
from mmrepro.campaign.schedule import ASSUMED_BUILD_S, EnvironmentGroup
from mmrepro.campaign.trial import Children, TrialOptions, run_options, spawn, variables
from mmrepro.engines import LaunchPlan
from mmrepro.engines.environments import (
    Environment,
    EnvironmentSpec,
    UvFailed,
    existing,
    folder_of,
    list_environments,
    needed_bytes,
    prune_environments,
    run_uv,
    uv_cache_dir,
)
from mmrepro.engines.supervise import free_port
from mmrepro.engines.supervise.warm import (
    ForkServer,
    ForkServers,
    ForkServerSpec,
    Refused,
)
from mmrepro.failure.documents import Cell
from mmrepro.runs import (
    ServerSpec,
    Starter,
    StartMode,
    fork_server_spec,
    target,
    warm_root,
)
from mmrepro.scenario.registry import load_scenario
from pydantic import ValidationError


class _Kept(Record):
    """What a campaign remembers of its disk, so that it can be gone on with."""

    used_bytes: int
    """On the disks of both caches, when the campaign began."""
    built: list[str] = []
    """Folders of the environments that it built and has not dropped, oldest first."""


class Bound:
    """Keeps the growth since the campaign's start below ``limit`` bytes.

    Counted is what is used on the file systems of mmrepro's and uv's caches, whoever
    wrote it: the bound is for the disk and not for a folder."""

    def __init__(
        self, limit: int, file: Path, *, used: Callable[[], int] | None = None
    ) -> None:
        self.limit = limit
        self._file = file
        self._used = used or _used_bytes
        try:
            refuse_other_kinds(file)
            self._kept = _Kept.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            self._kept = _Kept(used_bytes=self._used())
            self._save()

    @property
    def growth(self) -> int:
        """Bytes since the campaign's start."""
        return self._used() - self._kept.used_bytes

    def built(self, name: str) -> None:
        """The campaign built the environment in that folder."""
        self._kept.built.append(name)
        self._save()

    def make_room(self, needed: int, busy: frozenset[str]) -> str:
        """Drop environments until ``needed`` bytes more are within the bound.

        Args:
            busy: folders that its cells still need.

        Returns:
            Why there is no room; "": there is.
        """
        for name in list(self._kept.built):
            if self.growth + needed <= self.limit:
                break
            if name not in busy and drop(name):
                self._kept.built.remove(name)
                self._save()

        if self.growth + needed <= self.limit:
            return ""
        return (
            f"another environment, about {size(needed)}, does not fit into the "
            f"{size(self.limit)} that --disk allows: {size(max(0, self.growth))} "
            "were added since the campaign began"
        )

    def _save(self) -> None:
        write_file(self._file, self._kept.model_dump_json() + "\n")


def _used_bytes() -> int:
    """Bytes that are used on the file systems of both caches, each counted once."""
    devices: dict[int, int] = {}
    for path in (environments_root(), uv_cache_dir() or cache_root()):
        there = _existing_folder(path)
        facts = os.statvfs(there)
        used = facts.f_blocks - facts.f_bfree
        devices[there.stat().st_dev] = used * facts.f_frsize

    return sum(devices.values())


def _existing_folder(path: Path) -> Path:
    """The nearest one above a folder that may not have been made yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def drop(name: str) -> bool:
    """Remove an environment and what only it needs of uv's cache; False: it is in use.

    uv forgets a package by its name. One goes if the environment had a version of it
    that no other environment has; others keep their files, and a later build of them
    fetches that package anew."""
    mine: set[str] = set()
    others: set[str] = set()
    for environment in list_environments(sizes=False):
        packages = mine if environment.path.name == name else others
        packages.update(environment.manifest.packages)

    done = prune_environments(names=[name])
    if any(kept == name for kept, _ in done.kept):
        return False
    forgotten = sorted({package.partition("==")[0] for package in mine - others})
    if forgotten:
        # That uv keeps the packages shows in the growth.
        with contextlib.suppress(UvFailed):
            run_uv(["cache", "clean", *forgotten])

    return True


NICE = 10
"""Of what fetches an environment ahead: the run beside it goes first."""
_PARENTS = 2
"""Fork servers of one group at a time: they differ only where stand-ins do."""
_STOP_S = 10.0

Say = Callable[[str], None]


class _WarmServer(NamedTuple):
    parent: ForkServerSpec
    plan: LaunchPlan
    environment: Environment


class Provisions:
    """Fetches environments and keeps engines imported, for the groups of a campaign.

    Nothing of it outlives this process, however that ends: builders are killed with it,
    and warm parents end when the pipe that it holds is closed."""

    def __init__(
        self, options: TrialOptions, bound: Bound | None = None, say: Say | None = None
    ) -> None:
        self._options = options
        self._bound = bound
        self._say = say or (lambda text: None)
        self._one_by_one = threading.Lock()
        self._busy: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        """Why an environment could not be built, by its folder. It is not tried
        again."""
        self._children = Children(_STOP_S)
        self._ahead: threading.Thread | None = None
        self._starter = Starter(options.start_mode, several=True)
        self._parents = ForkServers(warm_root(), lent=True)
        self._importing = threading.Lock()

    # ------------------------------------------------------------------ environments

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None:
        """These are to be run: none of their environments is dropped before
        :meth:`done`."""
        for group in groups:
            if group.spec is not None:
                self._busy[_folder(group.spec)] += 1

    def prepare(self, group: EnvironmentGroup) -> str:
        """Have the environment of ``group``.

        Returns:
            Why its cells cannot be run; "" else. What uv or the wheel lacks is not
            among it: the first run says that itself.

        Raises:
            KeyboardInterrupt: :meth:`stop` was called.
        """
        return "" if group.spec is None else self._have_now(group.spec, group.name)

    def provide(self, spec: EnvironmentSpec, name: str, within_s: float) -> str:
        """Have that environment in ``within_s`` seconds.

        Returns:
            Why it is not there; "": it is.

        Raises:
            KeyboardInterrupt: :meth:`stop` was called.
        """
        no_room = self._have_now(spec, name, within_s)
        return no_room or self._failed.get(_folder(spec), "")

    def failed(self, spec: EnvironmentSpec) -> bool:
        return _folder(spec) in self._failed

    def seconds(self, group: EnvironmentGroup) -> float:
        """What :meth:`prepare` is expected to take."""
        spec = group.spec
        return ASSUMED_BUILD_S if spec is not None and existing(spec) is None else 0.0

    def prefetch(self, group: EnvironmentGroup) -> None:
        """Fetch the environment of a group that comes later, beside the runs; one at a
        time."""
        spec = group.spec
        is_busy = self._ahead is not None and self._ahead.is_alive()
        if spec is None or is_busy or existing(spec) is not None:
            return
        self._ahead = threading.Thread(
            target=self._have,
            args=(spec, group.name),
            kwargs={"nice": NICE},
            daemon=True,
        )
        self._ahead.start()

    def done(self, group: EnvironmentGroup) -> None:
        """No run of ``group`` is left, or none that there is time for."""
        if group.spec is not None:
            self._busy[_folder(group.spec)] -= 1

    def stop(self) -> None:
        """End what is being fetched; nothing is fetched any more."""
        self._children.stop()

    def join(self) -> None:
        """Wait for what is fetched ahead, if anything still is."""
        if self._ahead is not None:
            self._ahead.join()

    def _have_now(
        self, spec: EnvironmentSpec, name: str, within_s: float | None = None
    ) -> str:
        why = self._have(spec, name, within_s=within_s)
        if self._children.stopped:
            raise KeyboardInterrupt
        return why

    def _have(
        self,
        spec: EnvironmentSpec,
        name: str,
        nice: int = 0,
        within_s: float | None = None,
    ) -> str:
        """Why there is no room for it; "" else, also where its build failed."""
        # The cache of uv is cleaned only while nobody of us builds from it.
        with self._one_by_one:
            folder = _folder(spec)
            if self._children.stopped or folder in self._failed:
                return ""
            if existing(spec) is not None:
                return ""
            if self._bound is not None:
                busy = frozenset(n for n, count in self._busy.items() if count > 0)
                no_room = self._bound.make_room(needed_bytes(spec), busy)
                if no_room:
                    return no_room

            self._say(f"fetching {name}" + (" ahead" if nice else ""))
            why = self._build(spec, nice, within_s)
            if why:
                self._failed[folder] = why
            elif self._bound is not None:
                self._bound.built(folder)

        return ""

    def _build(self, spec: EnvironmentSpec, nice: int, within_s: float | None) -> str:
        """Why it failed; "": it did not."""
        arguments = ["env", "create", spec.engine]
        if spec.commit:
            arguments += ["--commit", spec.commit]
            if spec.cutoff:
                arguments += ["--commit-date", spec.cutoff]
        else:
            arguments.append(spec.release)

        arguments += ["--device", spec.device]
        environment = variables(self._options)
        start = partial(
            spawn, arguments, environment, nice=nice, stderr=subprocess.PIPE
        )
        try:
            with self._children.running(start) as child:
                _, errors = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            return f"it was not built within {duration(within_s or 0.0)}"
        except KeyboardInterrupt:
            return "it was stopped"

        if child.returncode == 0:
            return ""
        # mmrepro's own sentence; what comes before it is progress.
        for line in errors.decode("utf-8", "replace").strip().splitlines():
            if line[:1].isupper():
                return line

        return "its build failed"

    # ------------------------------------------------------------------ fork servers

    @contextlib.contextmanager
    def warm(self, runs: Sequence[tuple[Cell, int]]) -> Iterator[None]:
        """While this lasts the engine of cells that have several runs together stays
        imported.

        Args:
            runs: of one environment: cells and how often each is to be run.
        """
        with contextlib.ExitStack() as parents:
            for server in self._wanted(runs):
                parent = self._parent(server)
                if parent is not None:
                    parents.callback(parent.end)
            yield

    def _wanted(self, runs: Sequence[tuple[Cell, int]]) -> list[_WarmServer]:
        count: Counter[str] = Counter()
        servers: dict[str, _WarmServer] = {}
        for cell, number in runs:
            # The run itself says what is wrong.
            with contextlib.suppress(MmreproError):
                server = self._server_of(cell)
                if server is not None:
                    servers.setdefault(server.parent.key, server)
                    count[server.parent.key] += number

        # For a single run an import ahead saves nothing.
        most = count.most_common(_PARENTS)
        return [servers[key] for key, number in most if number > 1]

    def _server_of(self, cell: Cell) -> _WarmServer | None:
        """The fork server of a cell; None: it is not to be started from one, or was
        seen not to bear one."""
        scenario = load_scenario(cell.scenario).with_variant(cell.variant)
        options = run_options(cell, self._options)
        environment = existing(target(scenario, options))
        if environment is None:
            return None
        model = scenario.model.write(cache_root() / "models")
        plan = ServerSpec(scenario, options, environment, model).plan(free_port())
        if self._starter.choose(plan, environment)[0] is not StartMode.WARM:
            return None
        return _WarmServer(
            fork_server_spec(plan, environment, variables(self._options)),
            plan,
            environment,
        )

    def _parent(self, server: _WarmServer) -> ForkServer | None:
        """A parent of ours; None: somebody keeps one already, or there can be none."""
        with self._importing:
            if self._children.stopped or self._parents.find(server.parent) is not None:
                return None
            self._say(f"importing {server.parent.label}")
            try:
                return self._parents.get(server.parent)
            except Refused as refusal:
                # Noted, so that whoever asks knows how runs are started.
                self._starter.note_unusable(
                    StartMode.WARM,
                    server.plan,
                    server.environment,
                    str(refusal),
                    certain=True,
                )
            except (MmreproError, OSError):
                # Each run says so in its settings, and starts in another way.
                pass

            return None


def _folder(spec: EnvironmentSpec) -> str:
    return folder_of(spec).name
