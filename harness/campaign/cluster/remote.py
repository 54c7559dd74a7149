"""What runs in a Ray worker: an order is worked on, and what comes of it is sent, run
by run.

Nothing here imports Ray: these functions are Ray's tasks, and can be called without it.

A Ray worker has variables of Ray's own, an OMP_NUM_THREADS that Ray works out from
``num_cpus``, a blocked SIGINT, and with Ray's subreaper on an ignored SIGCHLD:
``waitpid`` then knows no exit code, and every child seems to have ended with 0.
Children inherit all of that, over ``exec`` too. Here a run is to find what it finds
anywhere."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import shutil
import signal
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import mmrepro
import psutil
from filelock import FileLock, Timeout
from mmrepro.base import units
from mmrepro.base.errors import MmreproError
from mmrepro.base.machine import (
    VISIBLE_GPUS,
    cache_root,
    digest_of_files,
    environments_root,
    folders_in,
    hides_every_gpu,
    nvidia_driver,
)
from mmrepro.base.records import Record
from mmrepro.base.tar import tarfile
from mmrepro.campaign.provisions import Bound, Provisions
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import Order, StartedRun, Workplace
from mmrepro.runs import code_digest, folder_of_part
from mmrepro.scenario.registry import load_scenario

_RAYS_PREFIX = "RAY_"
_RAYS_OWN = frozenset(
    {
        "SPT_NOENV",  # setproctitle, by which Ray names its processes
        "PYTHONUNBUFFERED",  # set for the raylet
        "PYTHONBREAKPOINT",
    }
)


def started_with(pid: int | None = None) -> dict[str, str] | None:
    """The variables with which a process was started: Ray sets its own ones later.

    None: they cannot be read.
    """
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return None


def variables(
    now: Mapping[str, str],
    started: Mapping[str, str] | None,
    device: Literal["cpu", "cuda"] | str,
    *,
    driver: bool | None = None,
) -> dict[str, str]:
    """Those that a shell on the machine would have, for runs on ``device``.

    Args:
        now: the worker's, where Ray has put the GPUs that it gives.
        started: those it was started with, by which the user's own OMP_NUM_THREADS is
            told from Ray's; None: not known, and there is none of the user's.
        driver: whether the machine has an NVIDIA driver; None: it is looked for.
    """
    kept = {}
    for name, value in (now if started is None else started).items():
        if not name.startswith(_RAYS_PREFIX) and name not in _RAYS_OWN:
            kept[name] = value

    # Ray sets it for each of its workers: nobody knows what the user's own was.
    if started is None:
        kept.pop("OMP_NUM_THREADS", None)

    kept.pop(VISIBLE_GPUS, None)
    if device == "cuda":
        given = now.get(VISIBLE_GPUS)
        if given is not None:
            kept[VISIBLE_GPUS] = normalised(given)
        return kept

    # A run on the CPU must not see a GPU that another one has.
    if nvidia_driver() if driver is None else driver:
        kept[VISIBLE_GPUS] = ""
    return kept


def normalised(mask: str) -> str:
    """CUDA_VISIBLE_DEVICES in one order, however Ray lists the GPUs that it gives."""
    if hides_every_gpu(mask):
        return ""
    entries = {entry.strip() for entry in mask.split(",")} - {""}

    def order(entry: str) -> tuple[bool, int, str]:
        number = int(entry) if entry.isdigit() else 0
        return not entry.isdigit(), number, entry

    return ",".join(sorted(entries, key=order))


def plain_signals() -> None:
    """Signals as a shell leaves them, for children that this thread starts. In the main
    thread."""
    # Said even where Python believes that it is so: Ray ignores SIGCHLD behind its
    # back.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _plain_mask()


def _plain_mask() -> None:
    """No signal is blocked, in this thread and in what it starts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_LIMIT_BYTES = 512 << 20
"""Of an incident's files together. One of a usual run has less than 10 MiB."""
_LIMIT_FILES = 20_000


class NotCarried(MmreproError):
    """An incident that cannot be brought."""


def packed(folder: Path, limit: int = _LIMIT_BYTES) -> bytes:
    """Its files and folders; no links, sockets or devices.

    Raises:
        NotCarried: it is too large, or cannot be read.
    """
    try:
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        if size > limit:
            raise NotCarried(
                f"Its incident has {units.size(size)}; up to {units.size(limit)} are "
                "brought."
            )

        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as tar:
            tar.add(folder, arcname=".", filter=_plain)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise NotCarried(f"Its incident could not be read: {why}.") from error

    return target.getvalue()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without names of users and machines' ids; None: it is left out."""
    if not (member.isreg() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpacked(data: bytes, folder: Path, limit: int = _LIMIT_BYTES) -> None:
    """Put it at ``folder``, in place of what is there.

    Raises:
        NotCarried: it is no such archive, too large, or would be written elsewhere;
            ``folder`` is not there then.
    """
    shutil.rmtree(folder, ignore_errors=True)
    coming = folder.with_name(f"{folder.name}.coming")
    shutil.rmtree(coming, ignore_errors=True)
    try:
        coming.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            _bounded(tar, limit)
            tar.extractall(coming, filter="data")

        coming.rename(folder)
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise NotCarried(f"Its incident did not arrive whole: {why}.") from error
    finally:
        shutil.rmtree(coming, ignore_errors=True)


def _bounded(tar: tarfile.TarFile, limit: int) -> None:
    """Raises NotCarried: it would unpack to more than an incident has."""
    size = 0
    for number, member in enumerate(tar, start=1):
        size += member.size
        if size > limit or number > _LIMIT_FILES:
            raise NotCarried("Its incident is too large.")


FOLDER = "cluster"
"""Below the cache, on each machine."""
LOCK = ".lock"
_WAKE_S = 0.2
"""Ray's cancellation is seen between two instructions of Python: none must take
longer."""


class Parcel(NamedTuple):
    """An incident, sent before its attempt."""

    data: bytes


class Said(NamedTuple):
    """What happens there beside the runs, for people."""

    text: str


Sent = StartedRun | Parcel | Record | Said


@dataclass(frozen=True)
class Engines:
    """What a machine works with; it is pickled.

    Attributes:
        disk: bytes that a campaign may add to each machine's disk; None: no bound.
    """

    options: TrialOptions
    disk: int | None = None

    def here(
        self, machine: str, campaign: str, say: Callable[[str], None]
    ) -> Workplace:
        """What the order's place has.

        Args:
            machine: its label in the ledger.
            campaign: the order's.
            say: takes what happens beside the runs.
        """
        bound = None
        if self.disk is not None:
            bound = Bound(self.disk, cache_root() / FOLDER / f"disk-{campaign}.json")
        trials = Trials(replace(self.options, machine=machine))
        return Workplace(trials, Provisions(self.options, bound, say), machine)


# ------------------------------------------------------- a machine is asked what it has


class Greeting(Record):
    """What a machine says before it is given anything."""

    version: str
    code: Mapping[str, str]
    """Digests: of the package, and of each scenario that is to run."""
    environments: list[str]
    """Folders of those that it has."""


def greet(scenarios: Sequence[str]) -> str:
    """A :class:`Greeting` as JSON, which another version can read as well."""
    greeting = Greeting(
        version=mmrepro.__version__,
        code=code(scenarios),
        environments=[path.name for path in folders_in(environments_root())],
    )
    return greeting.model_dump_json()


def code(scenarios: Sequence[str]) -> dict[str, str]:
    """What the runs are made of, of the package and of the scenarios; "": it cannot be
    loaded."""
    digests = {"mmrepro": _package()}
    for name in scenarios:
        try:
            digests[name] = code_digest(load_scenario(name))
        except MmreproError:
            digests[name] = ""

    return digests


def _package() -> str:
    """Digest of the package's files, in an order that is the same for a checkout and
    where it is installed."""
    files: dict[str, Path] = {}
    for part in ("", "probes", "reports", "reproducers", "scenarios"):
        top = folder_of_part(part)
        if top is None:
            continue
        start = f"{part}/" if part else ""
        for path in top.rglob("*.*"):
            if path.suffix in (".py", ".toml"):
                files[start + path.relative_to(top).as_posix()] = path

    return digest_of_files(files[name] for name in sorted(files))


# ---------------------------------------------------------------- an order is worked on


def carry_out(order: Order, outfit: Engines, machine: str) -> Iterator[Sent]:
    """Work on ``order`` in a folder of its own, which is gone afterwards.

    The runs are children of a thread beside this one: they end with it, or with this
    process, however that ends. When this generator is closed or interrupted, they are
    ended as by Ctrl-C.

    Args:
        machine: its label in the ledger.
    """
    plain_signals()
    own = variables(os.environ, started_with(), order.device)
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

    def __init__(self, order: Order, outfit: Engines, machine: str, root: Path) -> None:
        super().__init__(name="mmrepro-order", daemon=True)
        self._order, self._root = order, root
        self._queue: queue.SimpleQueue[Sent | BaseException | None] = (
            queue.SimpleQueue()
        )
        self.here = outfit.here(
            machine, order.campaign, lambda text: self._queue.put(Said(text))
        )

    def run(self) -> None:
        _plain_mask()
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
                item = self._queue.get(timeout=_WAKE_S)
            except queue.Empty:
                continue

            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def end(self) -> None:
        try:
            self.here.stop()
        finally:
            if self.ident is not None:
                self.join()


def with_incident(
    item: StartedRun | Record, order: Order, root: Path
) -> Iterator[Sent]:
    """``item``, and before a result its files, which are on this machine no more then.

    One that cannot be sent makes its run a lost one.
    """
    place = "" if isinstance(item, StartedRun) else order.files(item)
    if not place:
        yield item
        return
    assert not isinstance(item, StartedRun)
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
            with (
                contextlib.suppress(Timeout, OSError),
                FileLock(left / LOCK, timeout=0),
            ):
                shutil.rmtree(left, ignore_errors=True)

        folder = Path(tempfile.mkdtemp(dir=top))
        mine = FileLock(folder / LOCK)
        mine.acquire()

    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        mine.release()
