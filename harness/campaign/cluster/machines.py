"""The machines of a Ray cluster as places that work on a night."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import (
    InfrastructureError,
    MmreproError,
    NoPlaceLeft,
    PlaceLost,
    UsageError,
)
from mmrepro.base.installed import install_command
from mmrepro.campaign.cluster import remote
from mmrepro.campaign.cluster.remote import Engines, Greeting, Parcel, Said, unpacked
from mmrepro.campaign.matrix.options import Cluster
from mmrepro.campaign.schedule import EnvironmentGroup
from mmrepro.campaign.trial import GRACE_S
from mmrepro.campaign.work import Order, StartedRun, Working
from mmrepro.engines.environments import folder_of
from pydantic import ValidationError

TOKEN: Final = "engine_host"  # noqa: S105
"""Ray's resource that says: engines are run on this machine. One, so that one order is
there."""
_LABEL: Final = "mmrepro.machine"
"""Ray's label of a node that is the machine's label in the ledger."""
LOOK_S = 1.0
HEAD_S = 15.0
"""For which the cluster's head may be silent. After a minute Ray would end this process
itself."""
_REACHED_S = 10.0
_STOP_S = GRACE_S + 30.0
"""For the runs in progress on all machines, before their workers are killed."""
_ALONE_S = 10.0
"""Likewise, where the head is gone: Ray may know nothing of any machine any more."""
_WAIT_S = 1.0
_CARRIED_S = 300.0
"""For an incident on its way."""
_Say = Callable[[str], None]


class Machines:
    """Those of a cluster that have the resource ``engine_host``.

    A machine is asked for its version and its code before it is given anything. One
    that died is not asked again, whatever Ray says of it meanwhile; if it comes back,
    Ray gives it another id."""

    def __init__(
        self,
        ray: Any,
        outfit: Engines,
        needs: Cluster | None = None,
        say: _Say | None = None,
    ) -> None:
        """``ray``: :func:`connected`."""
        self._ray = ray
        self._outfit = outfit
        self._needs = needs or Cluster()
        self._say = say or (lambda text: None)
        self._lock = threading.Lock()
        self._scenarios: list[str] = []
        self._gpus = 0.0
        self._greetings: dict[str, Any] = {}
        self._machines: dict[str, Machine] = {}
        self._unusable: set[str] = set()
        self._streams: set[Any] = set()
        self._stopped = False
        self._alone = False
        """The cluster's head is gone."""
        self._given_up = False
        self._head = ray.get_runtime_context().gcs_address
        self._looked = float("-inf")
        self._answered = time.monotonic()
        self._none_said = False

    # ------------------------------------------------------------------ places

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None:
        """These are to be run; known before the first machine is asked what it has."""
        scenarios: set[str] = set()
        for group in groups:
            scenarios.update(planned.cell.scenario for planned in group.cells)
            if group.device == "cuda":
                self._gpus = self._needs.gpus

        self._scenarios = sorted(scenarios)

    def there(self) -> Sequence[Machine]:
        """The machines that were asked and have the same code; at most a second old.

        Raises:
            NoPlaceLeft: the cluster's head is gone.
        """
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_S and not self._stopped:
                if self._head_answers():
                    self._look()
                self._looked = time.monotonic()
            return list(self._machines.values())

    def stop(self) -> None:
        """End the runs in progress on all machines, as by Ctrl-C, and wait until that
        is done."""
        with self._lock:
            self._stopped = True
            streams = list(self._streams)

        for stream in streams:
            self._cancel(stream, force=False)

        ends = [stream.completed() for stream in streams]
        if not ends:
            return
        seconds = _ALONE_S if self._alone else _STOP_S
        _, late = self._ray.wait(
            ends, num_returns=len(ends), timeout=seconds, fetch_local=False
        )
        for stream, end in zip(streams, ends, strict=True):
            if end in late:
                self._cancel(stream, force=True)

        self._given_up = True

    def join(self) -> None:
        """Nothing is done beside the runs: each machine ends an order when all of it is
        done."""

    def _cancel(self, stream: Any, *, force: bool) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError, TypeError):
            self._ray.cancel(stream, force=force, recursive=False)

    # ------------------------------------------------------------------ which there are

    def _head_answers(self) -> bool:
        try:
            _reached(self._head, LOOK_S)
        except OSError:
            if time.monotonic() - self._answered > HEAD_S:
                self._alone = True
                raise NoPlaceLeft(
                    "The head of the Ray cluster does not answer any more.",
                    hint="ray status",
                ) from None
            return False

        self._answered = time.monotonic()
        return True

    def _look(self) -> None:
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        self._say_if_none(nodes.values())
        for left in {*self._machines, *self._greetings} - set(nodes):
            self._forget(left)

        for node in sorted(nodes):
            known = (*self._unusable, *self._machines, *self._greetings)
            if node not in known and nodes[node]["Resources"].get(TOKEN):
                self._greet(nodes, node)

        for node, greeting in list(self._greetings.items()):
            if self._ray.wait([greeting], timeout=0)[0]:
                del self._greetings[node]
                self._greeted(node, self._label(nodes, node), greeting)

    def _say_if_none(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        """Say once that no machine runs engines: the cluster is set up otherwise."""
        if self._none_said or any(node["Resources"].get(TOKEN) for node in nodes):
            return
        self._none_said = True
        self._say(
            f"no machine of the cluster has the resource {TOKEN}: mmrepro help cluster"
        )

    def _greet(self, nodes: Mapping[str, Any], node: str) -> None:
        """Ask a machine what it has; its answer is awaited beside the work."""
        why = self._lacks(nodes[node]["Resources"])
        if why:
            self._leave_out(node, self._label(nodes, node), why)
            return
        task = self._task(remote.greet, node, num_cpus=0)
        self._greetings[node] = task.remote(self._scenarios)

    def _forget(self, node: str) -> None:
        self._unusable.add(node)
        self._machines.pop(node, None)
        self._greetings.pop(node, None)

    def _leave_out(self, node: str, name: str, why: str) -> None:
        self._unusable.add(node)
        self._say(f"{name} is not used: {why}")

    def _lacks(self, resources: Mapping[str, float]) -> str:
        wanted = {
            "CPU": self._needs.cpus,
            "GPU": self._gpus,
            "memory": self._needs.memory,
        }
        for name, number in wanted.items():
            has = resources.get(name, 0.0)
            if has < number:
                return f"a run asks for {number:g} of Ray's {name}, and it has {has:g}"

        return ""

    def _label(self, nodes: Mapping[str, Any], node: str) -> str:
        others = [other for name, other in nodes.items() if name != node]
        return label(nodes[node], others)

    def _greeted(self, node: str, name: str, greeting: Any) -> None:
        try:
            answer = Greeting.model_validate_json(self._ray.get(greeting))
        except self._ray.exceptions.RayError as error:
            self._leave_out(node, name, lost_because(error, name))
            return
        except ValidationError:
            self._leave_out(node, name, "it has another version of mmrepro")
            return

        own = Greeting.model_validate_json(remote.greet(self._scenarios))
        why = differs(answer, own)
        if why:
            self._leave_out(node, name, why)
            return

        self._machines[node] = Machine(self, node, name, set(answer.environments))

    # ---------------------------------------------------------------- what they work on

    def _task(self, function: Callable[..., Any], node: str, **options: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(function).options(
            max_retries=0, scheduling_strategy=there, name="mmrepro", **options
        )

    def _begin(self, machine: Machine, order: Order) -> Any:
        needs = self._needs
        options: dict[str, Any] = {
            "num_returns": "streaming",
            "num_cpus": needs.cpus,
            "num_gpus": needs.gpus if order.device == "cuda" else 0,
            "resources": {TOKEN: 1},
        }
        if needs.memory:
            options["memory"] = needs.memory
        task = self._task(remote.carry_out, machine.node, **options)
        # Whoever stops ends what is in the set: nothing begins after that.
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            stream = task.remote(order, self._outfit, machine.name)
            self._streams.add(stream)

        return stream

    def carry_out(self, machine: Machine, order: Order, root: Path) -> Working:
        try:
            stream = self._begin(machine, order)
        except TypeError as error:
            raise PlaceLost(f"An order could not be sent to {machine.name}.") from error

        ended = False
        try:
            yield from self._received(stream, machine, order, root)
            ended = True
        except self._ray.exceptions.RayError as error:
            ended = True
            if self._stopped:
                raise KeyboardInterrupt from None
            if gone(error):
                with self._lock:
                    self._forget(machine.node)

            why = lost_because(error, machine.name)
            raise PlaceLost(f"{why[0].upper()}{why[1:]}.") from None
        finally:
            if not ended:
                self._cancel(stream, force=False)
            with self._lock:
                self._streams.discard(stream)

    def _received(
        self, stream: Any, machine: Machine, order: Order, root: Path
    ) -> Working:
        """What a machine sends; incidents are put where they belong. Raises
        RayError."""
        folder: Path | None = None
        arrived = False
        for reference in self._references(stream):
            item = self._ray.get(reference, timeout=_CARRIED_S)
            if isinstance(item, Said):
                self._say(f"{machine.name}: {item.text}")
                continue
            if isinstance(item, Parcel) and folder is not None:
                unpacked(item.data, folder)
                arrived = True
                continue
            if isinstance(item, StartedRun):
                folder, arrived = root / order.folder(item), False
            elif order.files(item) and not arrived:
                raise PlaceLost("An incident did not arrive.")

            yield item

    def _references(self, stream: Any) -> Iterator[Any]:
        """References to what a machine sends, as they come. Raises KeyboardInterrupt:
        nobody waits for them any more."""
        with contextlib.suppress(StopIteration):
            while True:
                ready, _ = self._ray.wait([stream], timeout=_WAIT_S, fetch_local=False)
                # Without the head what was cancelled is ready, and never comes.
                if self._alone or (self._given_up and not ready):
                    raise KeyboardInterrupt
                if ready:
                    yield next(stream)


class Machine:
    """A machine of the cluster, as a place that works on orders."""

    def __init__(
        self, cluster: Machines, node: str, name: str, environments: set[str]
    ) -> None:
        """``environments``: folders of those that it has."""
        self.node = node
        self.name = name
        self._cluster = cluster
        self._environments = environments

    def has(self, group: EnvironmentGroup) -> bool:
        spec = group.spec
        return spec is not None and folder_of(spec).name in self._environments

    def work(self, order: Order, root: Path) -> Working:
        """Raises PlaceLost: the machine died, or the worker there did.

        KeyboardInterrupt: the cluster was told to stop.
        """
        # Python 3.12 ends a generator that a closed one iterates over only with that
        # one's memory.
        with contextlib.closing(self._cluster.carry_out(self, order, root)) as working:
            for item in working:
                if getattr(item, "key", "") and order.environment is not None:
                    self._environments.add(folder_of(order.environment).name)
                yield item


# ---------------------------------------------------------------- in our own words


def label(node: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Name a node for the ledger, which is public: by its own label, else by its id; by
    no address."""
    given = str((node.get("Labels") or {}).get(_LABEL, ""))
    short = node["NodeID"][:8]
    if not given:
        return f"ray-{short}"
    twice = any((other.get("Labels") or {}).get(_LABEL) == given for other in others)
    return f"{given}-{short}" if twice else given


def differs(told: Greeting, own: Greeting) -> str:
    """Why a machine that says this cannot work for this one; "": it can."""
    if told.version != own.version:
        return f"it has mmrepro {told.version}, and here is {own.version}"
    for name, digest in own.code.items():
        if told.code.get(name) != digest:
            return f"its code of {name} is not the same as here"

    return ""


def gone(error: Exception) -> bool:
    """Whether a whole machine is, by what Ray raised."""
    return _kind(error) in ("NodeDiedError", "TaskUnschedulableError")


def lost_because(error: Exception, name: str) -> str:
    """What Ray raised, in words that name no address; no full stop."""
    cause = getattr(error, "cause", None)
    if not cause:
        return _WORDS.get(_kind(error), "Ray failed on {}").format(name)
    missing = cause.name if isinstance(cause, ModuleNotFoundError) else ""
    if (missing or "").startswith("mmrepro"):
        return f"mmrepro cannot be imported on {name}"

    # Our own sentences name no address; of others the system's alone is shown.
    text = getattr(cause, "strerror", "")
    if isinstance(cause, MmreproError):
        text = cause.message
    why = type(cause).__name__
    if text:
        why += f": {text}"
    return f"the work on {name} failed ({why.rstrip('.')})"


def _kind(error: Exception) -> str:
    """The name of Ray's exception that there are words for; "": none."""
    for base in type(error).__mro__:
        if base.__name__ in _WORDS:
            return base.__name__

    return ""


_WORDS: Final = {
    "NodeDiedError": "the machine {} died, or left the cluster",
    "OutOfMemoryError": (
        "the machine {} ran out of memory, and Ray killed the worker there"
    ),
    "WorkerCrashedError": "the worker on {} was killed or died",
    "TaskUnschedulableError": (
        "the machine {} is gone, or no longer has what a run asks for"
    ),
    "TaskCancelledError": "somebody cancelled the work on {}",
    "RuntimeEnvSetupError": "Ray could not set up a worker on {}",
    "ObjectLostError": "what {} sent was lost on its way",
}


# ---------------------------------------------------------------- the cluster


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster at ``address``: ``auto`` or HOST:PORT.

    Raises:
        UsageError: Ray is not installed, or that is no address.
        InfrastructureError: no cluster answers there.
    """
    if address != "auto" and not re.fullmatch(r"[^\s:/]+:\d{1,5}", address):
        raise UsageError(
            f"{address!r} is no address of a Ray cluster.", hint="auto, or HOST:PORT"
        )

    try:
        import ray
        from ray._private import ray_constants, services, worker
    except ModuleNotFoundError as error:
        raise UsageError(
            "--ray needs Ray, which is not installed here.",
            hint=install_command("cluster"),
        ) from error

    # Under `uv run` Ray would send the project to all machines, and have its workers
    # build an environment there, several at once. Its variable counts only before the
    # first import of Ray.
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    with _own_signals():
        try:
            where = services.canonicalize_bootstrap_address_or_die(address)
            _reached(where, _REACHED_S)
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise InfrastructureError(
                f"No Ray cluster answers at {address!r}, or this machine is not in it, "
                "or it has another version of Ray or Python.",
                hint="ray status",
                detail=str(error).splitlines()[:3],
            ) from error

    # Its notices about machines name addresses, and break into what is shown.
    worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()


def _reached(where: str, seconds: float) -> None:
    """Whether anybody listens: Ray itself would try for a quarter of an hour. Raises
    OSError."""
    host, _, port = where.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
        pass


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Handlers are as before afterwards: Ray sets its own for SIGTERM, and may ignore
    SIGCHLD."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        remote.plain_signals()
