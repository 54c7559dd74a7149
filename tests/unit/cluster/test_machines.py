"""The machines of a cluster, by a fake of Ray that has Ray's own exceptions."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from matrix_nights import FakeTrials, planned
from mmrepro.base.errors import InfrastructureError, NoPlaceLeft, PlaceLost, UsageError
from mmrepro.base.installed import install_command
from mmrepro.campaign.cluster import machines as module, remote
from mmrepro.campaign.cluster.machines import Machines, connected, label, lost_because
from mmrepro.campaign.cluster.remote import (
    Engines,
    Greeting,
    Parcel,
    Said,
    Sent,
    packed,
)
from mmrepro.campaign.matrix.options import Cluster
from mmrepro.campaign.schedule import Next, groups_of
from mmrepro.campaign.trial import TrialOptions
from mmrepro.campaign.work import CellsUntilWhole, StartedRun, began_of
from mmrepro.failure.documents.ledger import Attempt
from mmrepro.failure.signature import Outcome

ADDRESS = "192.0.2.7"
CELLS = [planned("borrowed-faults", "0.1")]
GROUP = groups_of(CELLS)[0]
REACHED = module._reached
ORDER = CellsUntilWhole("n1", GROUP, {}, {}, {}, repeat=1, confirm=1)


def exceptions() -> Any:
    """Import Ray's, when a test needs them: to collect the tests would take half a
    second more."""
    import ray.exceptions

    return ray.exceptions


def node(
    number: int,
    *,
    alive: bool = True,
    labels: dict[str, str] | None = None,
    **more: float,
):
    return {
        "NodeID": f"{number:08x}" + "0" * 48,
        "Alive": alive,
        "NodeManagerAddress": ADDRESS,
        "NodeManagerHostname": "host-7",
        "NodeName": ADDRESS,
        "Resources": {"CPU": 4.0, "memory": 8e9, "engine_host": 1.0, **more},
        "Labels": {"ray.io/node-id": "…", **(labels or {})},
    }


class FakeStream:
    """What a machine sends; an exception in it is raised by ``get``."""

    def __init__(self, items: list[Any]) -> None:
        self.items = iter(items)

    def __next__(self) -> Any:
        return next(self.items)

    def completed(self) -> FakeStream:
        return self


@dataclass
class FakeRay:
    at: list[dict[str, Any]] = field(default_factory=list)
    greets: Callable[[str], Any] = lambda node: remote.greet(["borrowed-faults"])
    sends: list[Any] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[tuple[Any, bool]] = field(default_factory=list)
    on_cancel: Callable[[bool], None] = lambda force: None
    late: bool = False
    exceptions: Any = field(default_factory=exceptions)
    gcs_address = "192.0.2.7:6379"

    def get_runtime_context(self) -> FakeRay:
        return self

    def nodes(self) -> list[dict[str, Any]]:
        return self.at

    def remote(self, function: Callable[..., Any]) -> Any:
        outer = self

        class Task:
            def options(self, **options: Any) -> Task:
                self.asked = options
                return self

            def remote(self, *arguments: Any) -> Any:
                outer.asked.append(self.asked)
                if function is remote.greet:
                    return outer.greets(self.asked["scheduling_strategy"].node_id)
                return FakeStream(outer.sends)

        return Task()

    def get(self, item: Any, timeout: float | None = None) -> Any:
        if isinstance(item, Exception):
            raise item
        return item() if callable(item) else item

    def wait(self, items: list[Any], **more: Any) -> tuple[list[Any], list[Any]]:
        late = self.late and "num_returns" in more
        return ([], items) if late else (items, [])

    def cancel(self, stream: Any, *, force: bool, recursive: bool) -> None:
        self.cancelled.append((stream, force))
        self.on_cancel(force)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(module, "_reached", lambda where, seconds: None)


def cluster(fake: FakeRay, needs: Cluster | None = None) -> tuple[Machines, list[str]]:
    told: list[str] = []
    made = Machines(fake, Engines(TrialOptions()), needs, told.append)
    made.expect([GROUP])
    return made, told


def sent(tmp_path: Path, *, incident: bool = True) -> list[Sent]:
    trials = FakeTrials(lambda cell, index: Outcome.REPRODUCED)
    folder = Path("incidents", "n1", CELLS[0].cell.id, "run-1")
    done = trials.run(
        CELLS[0].cell,
        tmp_path / "there" / folder,
        tmp_path / "there",
        night="n1",
        index=1,
        role="planned",
    )
    parcel = [Parcel(packed(tmp_path / "there" / folder))] if incident else []
    return [began_of(CELLS[0], Next(1, "planned")), *parcel, done]


# ---------------------------------------------------------------- which there are


def test_machines_with_the_resource_and_the_same_code_are_used() -> None:
    other = {"CPU": 4.0}
    fake = FakeRay(
        [node(1), node(2, alive=False), {**node(3), "Resources": other}, node(4)]
    )
    there, told = cluster(fake)
    assert [m.name for m in there.there()] == ["ray-00000001", "ray-00000004"]
    assert told == []
    assert [m.name for m in there.there()] == ["ray-00000001", "ray-00000004"]
    assert len(fake.asked) == 2, "each is asked once"
    assert {a["max_retries"] for a in fake.asked} == {0}
    assert not any(a["scheduling_strategy"].soft for a in fake.asked)
    fake.at.append(node(5))
    fake.at[0]["Alive"] = False
    assert [m.name for m in there.there()] == ["ray-00000004", "ray-00000005"], (
        "they come and go"
    )


def test_a_cluster_without_the_resource_says_what_is_missing() -> None:
    fake = FakeRay([{**node(1), "Resources": {"CPU": 4.0}}])
    there, told = cluster(fake)
    assert list(there.there()) == []
    assert list(there.there()) == []
    assert told == [
        "no machine of the cluster has the resource engine_host: mmrepro help cluster"
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            lambda own: own.model_copy(update={"version": "9"}),
            "it has mmrepro 9, and here is",
        ),
        (
            lambda own: own.model_copy(update={"code": {**own.code, "mmrepro": "x"}}),
            "its code of mmrepro is not the same as here",
        ),
        (
            lambda own: own.model_copy(
                update={"code": {**own.code, "borrowed-faults": ""}}
            ),
            "its code of borrowed-faults is not the same as here",
        ),
        (lambda own: "{}", "it has another version of mmrepro"),
        (
            lambda own: exceptions().NodeDiedError("at " + ADDRESS),
            "the machine ray-00000001 died, or left the cluster",
        ),
    ],
)
def test_one_that_is_not_the_same_is_left_out_and_said_once(
    answer: Callable[[Greeting], Any], why: str
) -> None:
    own = Greeting.model_validate_json(remote.greet(["borrowed-faults"]))
    says = answer(own)
    fake = FakeRay(
        [node(1)],
        lambda _: says.model_dump_json() if isinstance(says, Greeting) else says,
    )
    there, told = cluster(fake)
    assert list(there.there()) == []
    assert list(there.there()) == []
    assert len(told) == 1
    assert told[0].startswith(f"ray-00000001 is not used: {why}")
    assert ADDRESS not in told[0]


def test_a_head_that_is_silent_is_waited_for_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRay([node(1)])
    there, _ = cluster(fake)
    assert len(there.there()) == 1
    asked: list[str] = []

    def refused(where: str, seconds: float) -> None:
        asked.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(module, "_reached", refused)
    monkeypatch.setattr(fake, "nodes", None, raising=False)
    assert len(there.there()) == 1, (
        "those that there were; Ray itself is not asked, it would hang"
    )
    monkeypatch.setattr(module, "HEAD_S", 0.0)
    with pytest.raises(NoPlaceLeft, match="head of the Ray cluster"):
        there.there()
    assert asked == [fake.gcs_address] * 2


def test_one_with_too_little_is_left_out() -> None:
    fake = FakeRay([node(1), node(2, CPU=8.0), node(3, CPU=8.0, memory=2e9)])
    there, told = cluster(fake, Cluster(cpus=8, memory=4 * 10**9))
    assert [m.name for m in there.there()] == ["ray-00000002"]
    assert told == [
        "ray-00000001 is not used: a run asks for 8 of Ray's CPU, and it has 4",
        (
            "ray-00000003 is not used: a run asks for 4e+09 of Ray's memory, and it "
            "has 2e+09"
        ),
    ]


def test_a_gpu_is_asked_for_where_a_cell_needs_one() -> None:
    cell = CELLS[0].cell.model_copy(update={"device": "cuda"})
    group = groups_of([CELLS[0].model_copy(update={"cell": cell})])[0]
    fake = FakeRay([node(1), node(2, GPU=2.0)])
    there, told = cluster(fake)
    there.expect([GROUP, group])
    (machine,) = there.there()
    assert machine.name == "ray-00000002"
    assert "Ray's GPU" in told[0]
    list(machine.work(ORDER, Path()))
    list(machine.work(CellsUntilWhole("n1", group, {}, {}, {}, 1, 1), Path()))
    assert [a["num_gpus"] for a in fake.asked[1:]] == [0, 1.0]
    assert [a["resources"] for a in fake.asked[1:]] == [{"engine_host": 1}] * 2


def test_labels_are_the_users_and_never_addresses() -> None:
    named = [node(n, labels={"mmrepro.machine": "gpu-box"}) for n in (1, 2)]
    alone = node(3, labels={"mmrepro.machine": "rack-3"})
    assert label(alone, named) == "rack-3"
    assert [label(n, [o for o in named if o is not n]) for n in named] == [
        "gpu-box-00000001",
        "gpu-box-00000002",
    ]
    assert label(node(0xABCDEF12), []) == "ray-abcdef12"
    assert label({**node(4), "Labels": None}, []) == "ray-00000004"


# ---------------------------------------------------------------- what they work on


def test_what_they_send_is_put_into_the_ledgers_folder(tmp_path: Path) -> None:
    fake = FakeRay([node(1)], sends=[Said("fetching minivllm"), *sent(tmp_path)])
    there, says = cluster(fake)
    (machine,) = there.there()
    told = list(machine.work(ORDER, tmp_path / "here"))
    assert says == ["ray-00000001: fetching minivllm"]
    assert [type(t) for t in told] == [StartedRun, Attempt]
    assert isinstance(told[1], Attempt)
    assert (tmp_path / "here" / told[1].incident / "whole").is_file()
    assert fake.cancelled == []


def test_an_attempt_without_its_incident_does_not_count(tmp_path: Path) -> None:
    fake = FakeRay([node(1)], sends=list(sent(tmp_path, incident=False)))
    (machine,) = cluster(fake)[0].there()
    working = machine.work(ORDER, tmp_path / "here")
    assert isinstance(next(working), StartedRun)
    with pytest.raises(PlaceLost, match="did not arrive"):
        next(working)


@pytest.mark.parametrize(
    ("error", "told", "again"),
    [
        pytest.param(
            lambda ray: ray.NodeDiedError(f"Node IP: {ADDRESS}"),
            "The machine one died",
            False,
            id="died",
        ),
        pytest.param(
            lambda ray: ray.WorkerCrashedError(),
            "The worker on one was killed or died",
            True,
            id="worker crashed",
        ),
        pytest.param(
            lambda ray: ray.OutOfMemoryError(f"on {ADDRESS}"),
            "The machine one ran out of",
            True,
            id="out of memory",
        ),
        pytest.param(
            lambda ray: ray.TaskUnschedulableError("x"),
            "The machine one is gone",
            False,
            id="unschedulable",
        ),
        pytest.param(
            lambda ray: ray.ObjectLostError("00" * 28, None, ""),
            "What one sent was lost",
            True,
            id="object lost",
        ),
        pytest.param(
            lambda ray: ray.RaySystemError(Exception(ADDRESS)),
            "Ray failed on one",
            True,
            id="system",
        ),
        pytest.param(
            lambda ray: ray.RayTaskError(
                "f", f"at {ADDRESS}", OSError(28, "No space left")
            ),
            "The work on one failed (OSError: No space left)",
            True,
            id="full disk",
        ),
        pytest.param(
            lambda ray: ray.RayTaskError(
                "f", "tb", ValueError(f"of {ADDRESS}")
            ).as_instanceof_cause(),
            "The work on one failed (ValueError)",
            True,
            id="task",
        ),
    ],
)
def test_whatever_ray_raises_is_one_plain_sentence(
    tmp_path: Path, error: Callable[[Any], Exception], told: str, again: bool
) -> None:
    items = [sent(tmp_path)[0], error(exceptions())]
    fake = FakeRay([node(1, labels={"mmrepro.machine": "one"})], sends=items)
    there, _ = cluster(fake)
    (machine,) = there.there()
    working = machine.work(ORDER, tmp_path)
    assert isinstance(next(working), StartedRun)
    with pytest.raises(PlaceLost) as caught:
        next(working)
    assert caught.value.message.startswith(told)
    assert re.fullmatch(r"[^.\n]*\.", caught.value.message)
    assert ADDRESS not in caught.value.message
    assert bool(there.there()) is again, (
        "a dead machine is not asked again, though Ray shows it"
    )


def test_the_words_are_for_exceptions_that_ray_has() -> None:
    for name in module._WORDS:
        error = getattr(exceptions(), name)
        assert issubclass(error, exceptions().RayError)
    assert (
        lost_because(
            exceptions().RayTaskError(
                "f", "tb", ModuleNotFoundError("no", name="mmrepro.campaign.cluster")
            ),
            "one",
        )
        == "mmrepro cannot be imported on one"
    )


def test_an_order_that_cannot_be_pickled_loses_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay([node(1)])
    (machine,) = cluster(fake)[0].there()

    def refuse(function: object) -> object:
        raise TypeError("Could not serialize the argument")

    monkeypatch.setattr(fake, "remote", refuse)
    with pytest.raises(PlaceLost, match="could not be sent"):
        next(machine.work(ORDER, tmp_path))


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_stopping_ends_what_is_in_progress(tmp_path: Path, late: bool) -> None:
    """Gracefully; what does not end in time is killed."""
    cancelled = threading.Event()
    fake = FakeRay([node(1)], late=late)

    def wait() -> None:
        assert cancelled.wait(20)
        raise exceptions().TaskCancelledError

    fake.sends = [sent(tmp_path)[0], wait]
    fake.on_cancel = lambda force: cancelled.set()
    there, _ = cluster(fake)
    (machine,) = there.there()
    working = machine.work(ORDER, tmp_path)
    assert isinstance(next(working), StartedRun)
    ended: list[BaseException] = []

    def on() -> None:
        try:
            next(working)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=on)
    thread.start()
    there.stop()
    thread.join(20)
    assert [type(e) for e in ended] == [KeyboardInterrupt], "no loss of the machine's"
    assert [force for _, force in fake.cancelled] == (
        [False, True] if late else [False]
    )
    with pytest.raises(KeyboardInterrupt):
        next(machine.work(ORDER, tmp_path))


def test_an_order_that_is_not_wanted_any_more_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, also where what carries it out stays in memory (as in Python 3.12)."""
    fake = FakeRay([node(1)], sends=list(sent(tmp_path)))
    there, _ = cluster(fake)
    (machine,) = there.there()
    held, carry_out = [], there.carry_out
    monkeypatch.setattr(
        there, "carry_out", lambda *to: held.append(carry_out(*to)) or held[-1]
    )
    working = machine.work(ORDER, tmp_path / "here")
    next(working)
    working.close()
    assert [force for _, force in fake.cancelled] == [False]


# ---------------------------------------------------------------- the connection


def test_without_ray_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as caught, connected("auto"):
        pass
    assert caught.value.hint == install_command("cluster")


@pytest.mark.parametrize(
    "address", ["ray://head:10001", "head", "local", "head:port", ""]
)
def test_what_is_no_address_is_said_so(address: str) -> None:
    with pytest.raises(UsageError, match="no address"), connected(address):
        pass


def test_nobody_who_answers_is_said_at_once(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_reached", REACHED)
    handler = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(InfrastructureError) as caught,
        connected(f"127.0.0.1:{unused_tcp_port}"),
    ):
        pass
    assert caught.value.hint == "ray status"
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
