"""What the NVIDIA driver says of this machine's GPUs, through NVML.

NVML is asked in this process, by ``pynvml``: it initialises no CUDA, so that a process
that asks may fork afterwards. ``binding`` is that module, or a recording of one."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from mmrepro.base import processes
from mmrepro.base.records import GpuProcess as GpuProcess, MigSlice as MigSlice, Record
from mmrepro.base.units import duration
from pydantic import Field

ANSWER_LIMIT_S = 10.0
"""A GPU that has fallen off the bus may keep a caller of NVML waiting in the kernel."""

DRIVER = Path("/proc/driver/nvidia/version")

NO_PERMISSION, LIBRARY_NOT_FOUND = 4, 12
_NVML_REASONS = {
    NO_PERMISSION: "this user may not use the NVIDIA driver (/dev/nvidiactl)",
    9: "NVIDIA's libraries are here, but its kernel driver is not loaded",
    15: (
        "a GPU no longer answers the driver (“GPU is lost”): see dmesg; it "
        "needs a reset"
    ),
    16: "a GPU waits for a reset",
    18: "the loaded NVIDIA kernel driver and its libraries are of different versions "
    "(“Driver/library version mismatch”): the driver was updated; reboot, or load it "
    "anew",
}
"""NVML's error codes (nvml.h, nvmlReturn_t) of which more can be said than NVML
does."""

_COMPUTE_MODES = {
    0: "default",
    1: "exclusive-thread",
    2: "prohibited",
    3: "exclusive-process",
}


class Gpu(Record):
    """One GPU. What the driver does not tell is None, never zero."""

    index: Annotated[
        int, Field(description="by PCI bus, as nvidia-smi counts; CUDA may differ")
    ]
    uuid: str
    name: str
    memory_total_bytes: int | None
    memory_used_bytes: Annotated[
        int | None,
        Field(description="held by processes; what the driver keeps for itself apart"),
    ]
    utilization_pct: Annotated[
        int | None, Field(description="share of the last moments in which a kernel ran")
    ]
    compute_mode: str = "default"
    capability: Annotated[str, Field(description="compute capability, e.g. 9.0")] = ""
    mig: Annotated[
        bool | None, Field(description="MIG mode; None: this GPU has none")
    ] = None
    slices: list[MigSlice] = []
    processes: list[GpuProcess] = []


class GpuReading(Record):
    """All GPUs that the driver shows to this process; ``reason``: why there are
    none."""

    gpus: list[Gpu] = []
    driver: Annotated[str, Field(description="version, e.g. 580.159.03")] = ""
    cuda: Annotated[
        str, Field(description="newest CUDA that the driver runs, e.g. 13.0")
    ] = ""
    reason: Annotated[str, Field(description="one sentence; empty: there is a GPU")] = (
        ""
    )
    blind: Annotated[
        bool,
        Field(description="there is a driver, but not what NVML needs: CUDA may work"),
    ] = False
    broken: Annotated[
        list[str], Field(description="GPUs that do not answer, and why")
    ] = []


class NvmlAbsent(Exception):
    """NVML cannot be asked here; the text says why, in one plain sentence.

    ``blind``: as in :class:`GpuReading`.
    """

    def __init__(self, why: str, *, blind: bool = False) -> None:
        super().__init__(why)
        self.blind = blind


class Nvml:
    """An open NVML; a context manager.

    Raises:
        NvmlAbsent: when it is entered: no binding, no library, no driver, or no
            permission.
    """

    def __init__(self, binding: Any = None) -> None:
        self._binding = binding

    def __enter__(self) -> Self:
        if self._binding is None:
            try:
                self._binding = importlib.import_module("pynvml")
            except ImportError as error:
                raise NvmlAbsent(
                    (
                        "the package nvidia-ml-py, by which NVML is asked, is not "
                        "installed"
                    ),
                    blind=DRIVER.exists(),
                ) from error
        try:
            self._binding.nvmlInit()
        except self._binding.NVMLError as error:
            raise _absent(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(self._binding.NVMLError):
            self._binding.nvmlShutdown()

    def read(self) -> GpuReading:
        """Everything, of every GPU. Raises NvmlAbsent: the driver answers nothing."""
        nvml = self._binding
        reading = GpuReading()
        try:
            count = nvml.nvmlDeviceGetCount()
            reading.driver = _text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError as error:
            raise NvmlAbsent(_why(error)) from error
        cuda = self._told("nvmlSystemGetCudaDriverVersion")
        reading.cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
        for index in range(count):
            try:
                reading.gpus.append(
                    self._gpu(index, nvml.nvmlDeviceGetHandleByIndex(index))
                )
            except nvml.NVMLError as error:
                reading.broken.append(f"GPU {index}: {_why(error)}")
        if not reading.gpus:
            reading.reason = "; ".join(reading.broken) or (
                f"the NVIDIA driver {reading.driver} is there, but shows this process "
                "no GPU"
            )
        return reading

    def sample(self) -> dict[int, tuple[int | None, int | None]]:
        """{GPU: utilisation in percent, used bytes}, as in :class:`Gpu`; cheap, for
        many times.

        Empty where NVML has stopped to answer.
        """
        return {
            index: (self._utilisation(handle), self._memory(handle)[1])
            for index, handle in self._handles()
        }

    def sample_slices(self) -> dict[tuple[int, int], int | None]:
        """Return {(GPU, MIG device): used bytes}."""
        used: dict[tuple[int, int], int | None] = {}
        for index, handle in self._handles():
            for slice in self._slices(handle):
                used[index, slice.index] = slice.memory_used_bytes
        return used

    def _handles(self) -> Iterator[tuple[int, Any]]:
        """Yield the handles of the GPUs that answer."""
        for index in range(self._told("nvmlDeviceGetCount") or 0):
            handle = self._told("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield index, handle

    def _utilisation(self, handle: Any) -> int | None:
        """None with MIG."""
        rates = self._told("nvmlDeviceGetUtilizationRates", handle)
        return None if rates is None else int(rates.gpu)

    def _gpu(self, index: int, handle: Any) -> Gpu:
        nvml = self._binding
        total, used = self._memory(handle)
        mode = self._told("nvmlDeviceGetMigMode", handle)
        mig = bool(mode[0]) if mode else None
        compute = self._told("nvmlDeviceGetComputeMode", handle) or 0
        capability = self._told("nvmlDeviceGetCudaComputeCapability", handle) or ()
        return Gpu(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_total_bytes=total,
            memory_used_bytes=used,
            utilization_pct=self._utilisation(handle),
            compute_mode=_COMPUTE_MODES.get(compute, str(compute)),
            capability=".".join(map(str, capability)),
            mig=mig,
            slices=self._slices(handle) if mig else [],
            processes=self._processes(handle),
        )

    def _slices(self, gpu: Any) -> list[MigSlice]:
        slices = []
        for index in range(self._told("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
            handle = self._told("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
            uuid = handle and self._told("nvmlDeviceGetUUID", handle)
            if not uuid:
                continue  # numbers need not be in use
            total, used = self._memory(handle)
            slices.append(
                MigSlice(
                    index=index,
                    uuid=_text(uuid),
                    name=_text(self._told("nvmlDeviceGetName", handle) or "MIG"),
                    memory_total_bytes=total,
                    memory_used_bytes=used,
                    processes=self._processes(handle),
                )
            )
        return slices

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Return total and used bytes. The second form of the call tells the driver's own
        share apart; where a GPU shares the host's memory, neither is supported."""
        version = getattr(self._binding, "nvmlMemory_v2", None)
        memory = None
        if version:
            memory = self._told("nvmlDeviceGetMemoryInfo", handle, version)
        if not memory:
            memory = self._told("nvmlDeviceGetMemoryInfo", handle)
        return (int(memory.total), int(memory.used)) if memory else (None, None)

    def _processes(self, handle: Any) -> list[GpuProcess]:
        by_pid: dict[int, GpuProcess] = {}
        # In this order: a process that draws and computes computes.
        for kind in ("Graphics", "Compute"):
            running = self._told(f"nvmlDeviceGet{kind}RunningProcesses", handle) or []
            for process in running:
                pid = int(process.pid)
                # Without a name the pid is of another namespace, and means nothing here.
                name = processes.name(pid)
                used = process.usedGpuMemory
                by_pid[pid] = GpuProcess(
                    pid=pid if name else None,
                    name=name,
                    used_bytes=None if used is None else int(used),
                    graphics=kind == "Graphics",
                )
        return list(by_pid.values())

    def _told(self, name: str, *args: Any) -> Any:
        """What the call returns; None: this GPU, driver or binding does not tell."""
        call: Callable[..., Any] | None = getattr(self._binding, name, None)
        try:
            return call(*args) if call else None
        except self._binding.NVMLError:
            return None


def read_gpus(binding: Any = None) -> GpuReading:
    """This machine's GPUs. Never raises: ``reason`` says why there are none.

    Nothing is kept open, and nothing waits for longer than ``ANSWER_LIMIT_S``.
    """
    late = GpuReading(reason=f"NVML gave no answer within {duration(ANSWER_LIMIT_S)}")
    box: list[GpuReading] = []

    def target() -> None:
        try:
            with Nvml(binding) as nvml:
                box.append(nvml.read())
        except NvmlAbsent as absent:
            box.append(GpuReading(reason=str(absent), blind=absent.blind))

    thread = threading.Thread(target=target, name="nvml", daemon=True)
    thread.start()
    thread.join(ANSWER_LIMIT_S)
    return box[0] if box else late


def short_uuid(uuid: str) -> str:
    """Enough to tell two GPUs apart, and for CUDA_VISIBLE_DEVICES: ``GPU-52a3a85d``."""
    kind, _, rest = uuid.partition("-")
    return f"{kind}-{rest[:8]}" if rest else uuid


def _absent(error: Any) -> NvmlAbsent:
    """Why NVML cannot be used at all. A container may see its host's driver in /proc
    without being given the library (``NVIDIA_DRIVER_CAPABILITIES=compute``) or a
    device."""
    if getattr(error, "value", None) != LIBRARY_NOT_FOUND:
        return NvmlAbsent(_why(error))
    if not DRIVER.exists():
        return NvmlAbsent("there is no NVIDIA driver on this machine")
    return NvmlAbsent(
        "an NVIDIA driver is loaded, but NVML's library libnvidia-ml.so.1 is not here: "
        "a container is given it with --gpus all and the driver capability “utility”",
        blind=True,
    )


def _why(error: Any) -> str:
    code = getattr(error, "value", None)
    known = _NVML_REASONS.get(code) if isinstance(code, int) else None
    return known or f"the NVIDIA driver does not answer: {error}"


def _text(value: str | bytes) -> str:
    """Releases of the binding before 11.5 return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
