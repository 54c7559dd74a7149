"""What a night's runs need beside them: environments, fetched one ahead, and warm parents."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from mmrepro.base.units import duration
from mmrepro.campaign.child import Children, spawn
from mmrepro.campaign.disk import Bound
from mmrepro.campaign.groups import ASSUMED_BUILD_S, Group
from mmrepro.campaign.trial import TrialOptions, run_options, variables
from mmrepro.environments.build import existing, folder_of
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.errors import MmreproError
from mmrepro.incident.ledger import Cell
from mmrepro.machine.cache import cache_root
from mmrepro.run.options import StartMode
from mmrepro.run.start import ServerSpec, target
from mmrepro.run.starter import parent_spec, warm_root
from mmrepro.scenario.registry import load_scenario
from mmrepro.supervise import free_port
from mmrepro.supervise.warm import ParentSpec, Refused, WarmParent, begin_parent, kept_parents

NICE = 10
"""Of what fetches an environment ahead: the run beside it goes first."""
PARENTS = 2
"""Warm parents of one group at a time: they differ only where stand-ins do."""
STOP_S = 10.0

Say = Callable[[str], None]


class Provisions:
    """Fetches environments and keeps engines imported, for the groups of a night.

    Nothing of it outlives this process, however that ends: builders are killed with it, and warm
    parents end when the pipe that it holds is closed.
    """

    def __init__(
        self, options: TrialOptions, bound: Bound | None = None, say: Say | None = None
    ) -> None:
        self._options = options
        self._bound = bound
        self._say = say or (lambda text: None)
        self._one_by_one = threading.Lock()
        self._busy: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        """Why an environment could not be built, by its folder. It is not tried again."""
        self._children = Children(STOP_S)
        self._ahead: threading.Thread | None = None

    # ------------------------------------------------------------------ environments

    def expect(self, groups: Sequence[Group]) -> None:
        """These are to be run: none of their environments is dropped before :meth:`done`."""
        self._busy.update(_folder(group.spec) for group in groups if group.spec is not None)

    def prepare(self, group: Group) -> str:
        """Have the environment of ``group``.

        Returns:
            Why its cells cannot be run; "" else. What uv or the wheel lacks is not among it: the
            first run says that itself.

        Raises:
            KeyboardInterrupt: :meth:`stop` was called.
        """
        spec = group.spec
        if spec is None:
            return ""
        return self._have_now(spec, group.name)

    def provide(self, spec: EnvironmentSpec, name: str, within_s: float) -> str:
        """Have that environment in ``within_s`` seconds.

        Returns:
            Why it is not there; "": it is.

        Raises:
            KeyboardInterrupt: :meth:`stop` was called.
        """
        return self._have_now(spec, name, within_s) or self._failed.get(_folder(spec), "")

    def failed(self, spec: EnvironmentSpec) -> bool:
        """Whether its build has failed before."""
        return _folder(spec) in self._failed

    def seconds(self, group: Group) -> float:
        """What :meth:`prepare` is expected to take."""
        spec = group.spec
        return ASSUMED_BUILD_S if spec is not None and existing(spec) is None else 0.0

    def prefetch(self, group: Group) -> None:
        """Fetch the environment of a group that comes later, beside the runs; one at a time."""
        spec = group.spec
        if spec is None or (self._ahead is not None and self._ahead.is_alive()):
            return
        if existing(spec) is not None:
            return
        self._ahead = threading.Thread(
            target=self._have, args=(spec, group.name), kwargs={"nice": NICE}, daemon=True
        )
        self._ahead.start()

    def done(self, group: Group) -> None:
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

    def _have_now(self, spec: EnvironmentSpec, name: str, within_s: float | None = None) -> str:
        why = self._have(spec, name, within_s=within_s)
        if self._children.stopped:
            raise KeyboardInterrupt
        return why

    def _have(
        self, spec: EnvironmentSpec, name: str, nice: int = 0, within_s: float | None = None
    ) -> str:
        """Why there is no room for it; "" else, also where its build failed."""
        with self._one_by_one:  # uv's cache is cleaned only while nobody of us builds from it
            folder = _folder(spec)
            if self._children.stopped or folder in self._failed or existing(spec) is not None:
                return ""
            if self._bound is not None:
                busy = frozenset(n for n, count in self._busy.items() if count > 0)
                if why := self._bound.make_room(spec.disk_bytes, busy):
                    return why
            self._say(f"fetching {name}" + (" ahead" if nice else ""))
            if why := self._build(spec, nice, within_s):
                self._failed[folder] = why
            elif self._bound is not None:
                self._bound.built(folder)
        return ""

    def _build(self, spec: EnvironmentSpec, nice: int, within_s: float | None) -> str:
        """Why it failed; "": it did not."""
        what = ["--commit", spec.commit] if spec.commit else [spec.release]
        what += ["--commit-date", spec.cutoff] if spec.commit and spec.cutoff else []
        arguments = ["env", "create", spec.engine, *what, "--device", spec.device]
        environment = variables(self._options)
        start = partial(spawn, arguments, environment, nice=nice, stderr=subprocess.PIPE)
        try:
            with self._children.running(start) as child:
                _, errors = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            return f"it was not built within {duration(within_s or 0.0)}"
        except KeyboardInterrupt:
            return "it was stopped"
        if child.returncode == 0:
            return ""
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return next((line for line in lines if line[:1].isupper()), "its build failed")

    # ------------------------------------------------------------------ warm parents

    @contextlib.contextmanager
    def warm(self, runs: Sequence[tuple[Cell, int]]) -> Iterator[None]:
        """While this lasts the engine of cells that have several runs together stays imported.

        Args:
            runs: of one environment: cells and how often each is to be run.
        """
        with contextlib.ExitStack() as parents:
            if self._options.start_mode in (StartMode.AUTO, StartMode.WARM):
                for spec in self._wanted(runs):
                    if (parent := self._parent(spec)) is not None:
                        parents.callback(parent.end)
            yield

    def _wanted(self, runs: Sequence[tuple[Cell, int]]) -> list[ParentSpec]:
        count: Counter[str] = Counter()
        specs: dict[str, ParentSpec] = {}
        for cell, number in runs:
            with contextlib.suppress(MmreproError):  # the run itself says what is wrong
                if (spec := self._spec_of(cell)) is not None:
                    specs.setdefault(spec.key, spec)
                    count[spec.key] += number
        return [specs[key] for key, number in count.most_common(PARENTS) if number > 1]

    def _spec_of(self, cell: Cell) -> ParentSpec | None:
        scenario = load_scenario(cell.scenario).with_variant(cell.variant)
        options = run_options(cell, self._options)
        environment = existing(target(scenario, options))
        if environment is None:
            return None
        model = scenario.model.write(cache_root() / "models")
        plan = ServerSpec(scenario, options, environment, model).plan(free_port())
        return parent_spec(plan, environment, variables(self._options))

    def _parent(self, spec: ParentSpec) -> WarmParent | None:
        """A parent of ours; None: somebody keeps one already, or there can be none."""
        root = warm_root()
        if self._children.stopped or any(one.key == spec.key for one in kept_parents(root)):
            return None
        self._say(f"importing {spec.label}")
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix=f"{spec.key}-", dir=root)
            return begin_parent(spec, Path(folder))
        except (Refused, MmreproError, OSError):
            return None  # each run says so in its settings, and starts in another way


def _folder(spec: EnvironmentSpec) -> str:
    return folder_of(spec).name
