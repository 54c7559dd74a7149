"""What runs in a Ray worker: an order is worked on, and what comes of it is sent, run by run.

Nothing here imports Ray: these functions are Ray's tasks, and can be called without it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import mmrepro
from filelock import FileLock, Timeout
from mmrepro.campaign.disk import Bound
from mmrepro.campaign.provisions import Provisions
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import Began, Here, Order
from mmrepro.cluster import inherited
from mmrepro.cluster.transport import NotCarried, packed
from mmrepro.errors import MmreproError
from mmrepro.machine.files import cache_root, digest, environments_root, folders_in
from mmrepro.records import Record
from mmrepro.run.key import code_digest, folder_of
from mmrepro.scenario.registry import load_scenario

FOLDER = "cluster"
"""Below the cache, on each machine."""
LOCK = ".lock"
WAKE_S = 0.2
"""Ray's cancellation is seen between two instructions of Python: none must take longer."""


class Parcel(NamedTuple):
    """An incident, sent before its attempt."""

    data: bytes


class Said(NamedTuple):
    """What happens there beside the runs, for people."""

    text: str


Sent = Began | Parcel | Record | Said


class Outfit(Protocol):
    """What a machine works with; it is pickled."""

    def here(self, machine: str, campaign: str, say: Callable[[str], None]) -> Here:
        """What the order's place has.

        Args:
            machine: its label in the ledger.
            campaign: the order's.
            say: takes what happens beside the runs.
        """


@dataclass(frozen=True)
class Engines:
    """The real one.

    Attributes:
        disk: bytes that a campaign may add to each machine's disk; None: no bound.
    """

    options: TrialOptions
    disk: int | None = None

    def here(self, machine: str, campaign: str, say: Callable[[str], None]) -> Here:
        bound = None
        if self.disk is not None:
            bound = Bound(self.disk, cache_root() / FOLDER / f"disk-{campaign}.json")
        trials = Trials(replace(self.options, machine=machine))
        return Here(trials, Provisions(self.options, bound, say), machine)


# ---------------------------------------------------------------- a machine is asked what it has


class Greeting(Record):
    """What a machine says before it is given anything."""

    version: str
    code: Mapping[str, str]
    """Digests: of the package, and of each scenario that is to run."""
    environments: list[str]
    """Folders of those that it has."""


def greet(scenarios: Sequence[str]) -> str:
    """A :class:`Greeting` as JSON, which another version can read as well."""
    told = Greeting(
        version=mmrepro.__version__,
        code=code(scenarios),
        environments=[path.name for path in folders_in(environments_root())],
    )
    return told.model_dump_json()


def code(scenarios: Sequence[str]) -> dict[str, str]:
    """What the runs are made of, of the package and of the scenarios; "": it cannot be loaded."""
    told = {"mmrepro": _package()}
    for name in scenarios:
        try:
            told[name] = code_digest(load_scenario(name))
        except MmreproError:
            told[name] = ""
    return told


def _package() -> str:
    """In an order that is the same for a checkout and where it is installed."""
    parts = ("", "probes", "reports", "reproducers", "scenarios")
    tops = {part and f"{part}/": top for part in parts if (top := folder_of(part)) is not None}
    files = {
        start + path.relative_to(top).as_posix(): path
        for start, top in tops.items()
        for path in top.rglob("*.*")
        if path.suffix in (".py", ".toml")
    }
    return digest(files[name] for name in sorted(files))


# ---------------------------------------------------------------- an order is worked on


def carry_out(order: Order, outfit: Outfit, machine: str) -> Iterator[Sent]:
    """Work on ``order`` in a folder of its own, which is gone afterwards.

    The runs are children of a thread beside this one: they end with it, or with this process,
    however that ends. When this generator is closed or interrupted, they are ended as by Ctrl-C.

    Args:
        machine: its label in the ledger.
    """
    inherited.plain_signals()
    own = inherited.variables(os.environ, inherited.started_with(), order.device)
    with _variables(own), _folder() as root:
        working = _Working(order, outfit, machine, root)
        try:
            working.start()
            yield from working.sent()
            working.here.provisions.join()
        finally:
            working.end()


class _Working(threading.Thread):
    """Makes the runs; :meth:`sent` has what came of them, in another thread."""

    def __init__(self, order: Order, outfit: Outfit, machine: str, root: Path) -> None:
        super().__init__(name="mmrepro-order", daemon=True)
        self._order, self._root = order, root
        self._queue: queue.SimpleQueue[Sent | BaseException | None] = queue.SimpleQueue()
        self.here = outfit.here(machine, order.campaign, lambda text: self._queue.put(Said(text)))

    def run(self) -> None:
        inherited.plain_mask()
        try:
            try:
                self._order.expect(self.here)
                for item in self._order.carry_out(self.here, self._root):
                    for sent in with_incident(item, self._order, self._root):
                        self._queue.put(sent)
            finally:
                self.here.leave()
                self.here.players.end()
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)

    def sent(self) -> Iterator[Sent]:
        while True:
            try:
                item = self._queue.get(timeout=WAKE_S)
            except queue.Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def end(self) -> None:
        """End what is in progress, and wait for that."""
        try:
            self.here.stop()
        finally:
            if self.ident is not None:
                self.join()


def with_incident(item: Began | Record, order: Order, root: Path) -> Iterator[Sent]:
    """``item``, and before a result its files, which are on this machine no more then.

    One that cannot be sent makes its run a lost one.
    """
    place = "" if isinstance(item, Began) else order.files(item)
    if not place:
        yield item
        return
    assert not isinstance(item, Began)
    folder = root / place
    try:
        yield Parcel(packed(folder))
        yield item
    except NotCarried as error:
        yield order.not_carried(item, error.message)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """This process has these variables, and no others, for as long as this lasts.

    Only those that differ are touched: other threads of Ray may read them meanwhile.
    """
    before = dict(os.environ)
    _become(wanted)
    try:
        yield
    finally:
        _become(before)


def _become(wanted: Mapping[str, str]) -> None:
    for name in [n for n in os.environ if n not in wanted]:
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for one order. What workers left that were killed goes."""
    top = cache_root() / FOLDER
    top.mkdir(parents=True, exist_ok=True)
    with FileLock(top / LOCK):
        for left in folders_in(top):
            with contextlib.suppress(Timeout, OSError), FileLock(left / LOCK, timeout=0):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=top))
        mine = FileLock(folder / LOCK)
        mine.acquire()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        mine.release()
