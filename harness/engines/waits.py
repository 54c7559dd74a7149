"""Where a process of an engine stands while it waits for another one, each with its
source line.

A place is a function that calls another one and does not go on before that returns:
``worker_busy_loop`` calls ``dequeue`` until it gets an order. Python frames that are
called from there are waiting too, as long as they belong to :data:`_PASSIVE`: code that
runs on top of a wait (a signal handler, a finalizer) is none.

``tests/engine/test_wait_places.py`` compares each place with the installed sources of
its releases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from mmrepro.engines.folders import made_of, table
from mmrepro.probes import Frame
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


class Wait(StrEnum):
    """What a process waits for."""

    WORK = "waits-for-work"
    """A request, or the next order of its core."""
    WORKER = "waits-for-worker"
    COLLECTIVE = "in-collective"
    STAGE = "waits-for-stage"
    """Its neighbour in a pipeline."""
    DEVICE = "waits-for-device"
    TRANSFER = "waits-for-transfer"
    """The KV cache of another server."""


@dataclass(frozen=True)
class WaitPlace:
    """``function`` in ``file`` calls ``calls``.

    Attributes:
        file: the end of a path, as py-spy shortens it.
        calls: a bare name.
        native: ``calls`` may be a function of C, which has no Python frame.
        releases: those whose source has it.
        follower: it is this wait for ranks other than 0 only; rank 0, which sends, is
            in a collective there.
    """

    wait: Wait
    file: str
    function: str
    calls: str
    native: bool = False
    releases: SpecifierSet = SpecifierSet("")  # noqa: RUF009 - immutable
    follower: bool = False

    @property
    def source(self) -> str:
        """``vllm/v1/executor/multiproc_executor.py: get_response calls dequeue``."""
        return f"{self.file}: {self.function} calls {self.calls}"

    def covers(self, release: str) -> bool:
        """Whether it is a place of ``release``; of an unknown one every place is."""
        try:
            return not release or self.releases.contains(
                Version(release), prereleases=True
            )
        except InvalidVersion:
            return True


@cache
def wait_places(engine: str) -> tuple[WaitPlace, ...]:
    """Where processes of ``engine`` wait, as its waits.toml has it; (): not known."""
    places = []
    for row in table(engine, "waits.toml").get("place", ()):
        releases = SpecifierSet(row.get("releases", ""))
        typed = {**row, "wait": Wait(row["wait"]), "releases": releases}
        places.append(made_of(WaitPlace, typed))
    return tuple(places)


_PASSIVE = re.compile(
    r"(?:^|/)(?:threading|queue|selectors|contextlib|asyncio/\w+|concurrent/futures/\w+"
    r"|multiprocessing/(?:connection|synchronize|popen_\w+)|zmq/[\w/]+|ray/[\w/]+"
    r"|shm_broadcast|torch/_ops|torch/distributed/\w+|torch/cuda/streams"
    r"|torch/utils/_contextlib"
    r"|uvloop/\w+|sglang/srt/managers/io_struct)\.py$"
)
"""Files whose functions wait for their caller."""

_COLLECTIVES = frozenset(
    {
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gatherv",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object",
        "broadcast_object_list",
        "broadcast_tensor_dict",
        "combine",
        "dispatch",
        "gather",
        "gather_object",
        "monitored_barrier",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatterv",
        "scatter",
    }
)
_STAGES = frozenset(
    {
        "irecv_tensor_dict",
        "isend_tensor_dict",
        "recv",
        "recv_object",
        "recv_tensor_dict",
        "send",
        "send_object",
        "send_tensor_dict",
    }
)
_COMMUNICATION = re.compile(
    r"(?:^|/)(?:torch/distributed/\w+|(?:vllm"
    r"|sglang/srt)/distributed/(?!kv_transfer)[\w/]+"
    r"|lmdeploy/pytorch/distributed)\.py$"
)
"""Files of collective operations, between the ranks of one server."""
COMPILERS = re.compile(
    r"(?:^|/)(?:torch/_dynamo/convert_frame|torch/utils/cpp_extension"
    r"|torch/_inductor/(?:cpp_builder|cpu_vec_isa|async_compile|autotune_process"
    r"|select_algorithm|graph|codegen/\w+)|triton/compiler/\w+|triton/runtime/build"
    r"|triton/backends/\w+/compiler|flashinfer/jit/[\w/]+|deep_gemm/jit/\w+"
    r"|deep_gemm_wrapper/compile_utils|tilelang/jit/[\w/]+|tvm_ffi/cpp/\w+)\.py$"
)
"""On the stack of who compiles a kernel, which takes seconds in one place, and ends.
Files that are on the stack of a compiled model's step as well are left out."""
_DEVICE = re.compile(r"(?:^|/)torch/(?:cuda|xpu|npu|accelerator)/\w+\.py$")
_KV = re.compile(r"(?:^|/)(?:kv_connector|kv_transfer|disaggregation)/[\w/]+\.py$")
_KV_WAITS = frozenset({"wait_for_layer_load", "wait_for_save"})


@dataclass(frozen=True)
class Waiting:
    """What the innermost frames of a stack wait for.

    Attributes:
        what: ``all_reduce``, or the function that waits.
        caller: the frame that asked for it.
        source: of the table's place; "" where the operation itself names it.
    """

    wait: Wait
    what: str
    caller: Frame
    source: str = ""


def waiting(
    frames: Sequence[Frame],
    places: Sequence[WaitPlace],
    release: str = "",
    *,
    leader: bool = False,
) -> Waiting | None:
    """What a thread with these Python ``frames``, innermost first, waits for; None:
    nothing known.

    ``leader``: whether it is rank 0 of its group.
    """
    helpers = {place.calls for place in places}
    operation: tuple[Wait, str] | None = None
    inner: Frame | None = None
    for frame in frames:
        for place in places:
            if _is(place, frame, inner) and place.covers(release):
                wait = Wait.COLLECTIVE if place.follower and leader else place.wait
                return Waiting(
                    wait,
                    operation[1] if operation else place.calls,
                    frame,
                    place.source,
                )
        operation = operation or _operation(frame)
        if not (_within(frame) or (operation is not None and frame.name in helpers)):
            return None if operation is None else Waiting(*operation, frame)
        inner = frame
    return None if operation is None else Waiting(*operation, frames[-1])


def _within(frame: Frame) -> bool:
    """Whether a wait goes on through this frame."""
    return any(
        files.search(frame.file) for files in (_COMMUNICATION, _PASSIVE, _DEVICE, _KV)
    )


def _is(place: WaitPlace, frame: Frame, inner: Frame | None) -> bool:
    if frame.name != place.function or not frame.file.endswith(place.file):
        return False
    return place.native if inner is None else inner.name == place.calls


def _operation(frame: Frame) -> tuple[Wait, str] | None:
    """The wait that a frame's function is by its name, and that name."""
    name = frame.name
    if _COMMUNICATION.search(frame.file):
        if name in _COLLECTIVES:
            return Wait.COLLECTIVE, name
        if name in _STAGES:
            return Wait.STAGE, name
    if _DEVICE.search(frame.file) and name == "synchronize":
        return Wait.DEVICE, name
    if _KV.search(frame.file) and name in _KV_WAITS:
        return Wait.TRANSFER, name
    return None
