"""Where processes wait for each other: the table against the engines' sources.

``wait_places.json`` has the line of each place in each release, as it was installed
when tests/engine/test_wait_places.py wrote it: what holds where no environment is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mmrepro.engines import ENGINES
from mmrepro.engines.waits import Wait, WaitPlace, wait_places, waiting
from mmrepro.probes.data import Frame
from seen import frames

PLACES = {name: wait_places(name) for name in ENGINES}
VLLM, SGLANG = PLACES["vllm"], PLACES["sglang"]
KNOWN = Path(__file__).with_name("wait_places.json")
RECORDED: dict[str, dict[str, dict[str, str]]] = json.loads(KNOWN.read_text())


RELEASES = [(engine, release) for engine in RECORDED for release in RECORDED[engine]]


@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_the_recorded_lines_are_those_of_the_table(engine: str, release: str) -> None:
    lines = RECORDED[engine][release]
    assert list(lines) == [p.source for p in wait_places(engine) if p.covers(release)]
    for source, line in lines.items():
        assert source.rpartition(" ")[2] in line, (
            f"{source} is not in {engine} {release}"
        )


def test_no_place_is_of_no_release() -> None:
    for engine, places in PLACES.items():
        for place in places:
            assert any(place.covers(release) for release in RECORDED[engine]), (
                place.source
            )


# ------------------------------------------------------------------ stacks


DEQUEUE = (
    "Poller.poll zmq/sugar/poll.py:106",
    "SpinCondition.wait vllm/distributed/device_communicators/shm_broadcast.py:210",
    (
        "MessageQueue.acquire_read "
        "vllm/distributed/device_communicators/shm_broadcast.py:864"
    ),
    "_GeneratorContextManager.__enter__ contextlib.py:137",
    "MessageQueue.dequeue vllm/distributed/device_communicators/shm_broadcast.py:971",
)
EXECUTOR = "vllm/v1/executor/multiproc_executor.py"
ASKED = frames(
    *DEQUEUE,
    f"MultiprocExecutor.collective_rpc.<locals>.get_response {EXECUTOR}:440",
    f"FutureWrapper._wait_for_response {EXECUTOR}:103",
    "EngineCore.step vllm/v1/engine/core.py:1",
)
IDLE = frames(*DEQUEUE, f"WorkerProc.worker_busy_loop {EXECUTOR}:1041")
REDUCE = frames(
    "OpOverloadPacket.__call__ torch/_ops.py:1279",
    (
        "_CPUSHMDistributed.all_reduce "
        "vllm/distributed/device_communicators/cpu_communicator.py:275"
    ),
    "GroupCoordinator.all_reduce vllm/distributed/parallel_state.py:745",
    "RowParallelLinear.forward vllm/model_executor/layers/linear.py:1",
    f"WorkerProc.worker_busy_loop {EXECUTOR}:1041",
)
BROADCAST = frames(
    "broadcast torch/distributed/distributed_c10d.py:2974",
    "wrapper torch/distributed/c10d_logger.py:81",
    "broadcast_pyobj sglang/srt/utils/common.py:2730",
    "SchedulerRequestReceiver._broadcast_reqs_across_ranks "
    "sglang/srt/managers/scheduler_components/request_receiver.py:206",
)


def at(
    stack: list[Frame], places: tuple[WaitPlace, ...] = VLLM, **more: object
) -> Wait | None:
    found = waiting(stack, places, **more)  # type: ignore[arg-type]
    return found.wait if found else None


def test_who_is_above_the_queue_decides_what_it_waits_for() -> None:
    assert at(ASKED) is Wait.WORKER
    assert at(IDLE) is Wait.WORK
    assert at(frames(*DEQUEUE, "somebody_else mine.py:3")) is None


@pytest.mark.parametrize("stack", [ASKED, IDLE, REDUCE, BROADCAST])
def test_code_on_top_of_a_wait_is_no_wait(stack: list[Frame]) -> None:
    """A signal handler, a finalizer: the frames of the wait are still below it."""
    assert at([*frames("_wedge sitecustomize.py:7"), *stack]) is None
    assert at([*frames("_wedge sitecustomize.py:7"), *stack], SGLANG) is None


def test_a_collective_is_named_with_who_called_it() -> None:
    found = waiting(REDUCE, VLLM)
    assert found is not None
    assert (found.wait, found.what) == (Wait.COLLECTIVE, "all_reduce")
    assert found.caller.function == "RowParallelLinear.forward"
    alone = waiting(REDUCE[:3], VLLM)
    assert alone is not None
    assert alone.wait is Wait.COLLECTIVE
    assert (
        at(frames("__call__ torch/_ops.py:1", "forward vllm/model_executor/m.py:2"))
        is None
    )


def test_ranks_that_follow_wait_for_work_and_the_first_for_them() -> None:
    assert at(BROADCAST, SGLANG, release="0.5.23") is Wait.WORK
    assert at(BROADCAST, SGLANG, release="0.5.23", leader=True) is Wait.COLLECTIVE
    assert at(BROADCAST, SGLANG) is Wait.WORK
    other = [
        *BROADCAST[:3],
        *frames("update_weights sglang/srt/managers/tp_worker.py:3"),
    ]
    assert at(other, SGLANG, release="0.5.23") is Wait.COLLECTIVE


def test_a_function_of_c_has_no_frame() -> None:
    place = (
        "AsyncGPUModelRunnerOutput.get_output vllm/v1/worker/gpu_model_runner.py:324"
    )
    assert at(frames(place)) is Wait.DEVICE
    assert at(frames("synchronize torch/cuda/streams.py:3", place)) is Wait.DEVICE
    assert at(frames("tolist vllm/x.py:3", place)) is None
    assert (
        at(frames("synchronize torch/cuda/streams.py:3", "f mine.py:1")) is Wait.DEVICE
    )


def test_a_place_is_of_its_releases() -> None:
    old = frames(
        "Condition.wait threading.py:327",
        "Future.result concurrent/futures/_base.py:451",
        f"MultiprocExecutor.collective_rpc {EXECUTOR}:250",
    )
    assert at(old, release="0.11.0") is Wait.WORKER
    assert at(old, release="0.32.0") is None
    assert at(old) is Wait.WORKER
    assert at(old, release="0.11.0rc2.dev1+g123") is Wait.WORKER
    assert at(old, release="no version") is Wait.WORKER


def test_nothing_is_nothing() -> None:
    assert waiting([], VLLM) is None
