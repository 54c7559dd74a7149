"""Which GPU a run takes, for its time, and for no other run of mmrepro meanwhile.

It is what ``CUDA_VISIBLE_DEVICES`` leaves, and of that one that nobody uses. An engine
shows up on its GPU only once it has started: until then the lease is what keeps others
away.

What the variable means: NVIDIA's CUDA Programming Guide, 5.2.1 "Device Enumeration and
Properties"
(https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html),
and the MIG User Guide, "CUDA Device Enumeration"."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from filelock import FileLock, Timeout
from mmrepro.base import units
from mmrepro.base.errors import GpuUnavailable
from mmrepro.base.machine.files import (
    VISIBLE,
    cache_root,
    hidden as hidden,
    nvidia_driver,
)
from mmrepro.base.machine.nvml import (
    Gpu as Gpu,
    GpuProcess as GpuProcess,
    GpuReading as GpuReading,
    MigSlice as MigSlice,
    Nvml as Nvml,
    NvmlAbsent as NvmlAbsent,
    read_gpus as read_gpus,
    short_uuid as short_uuid,
)
from mmrepro.base.records import GpuFacts, Setting

ORDER: Final = "CUDA_DEVICE_ORDER"
_WANTED: Final = "MMREPRO_GPU"
"""``any``: one that others use, if there is no other; else as CUDA_VISIBLE_DEVICES has
it."""

_HELD_BYTES: Final = 1 << 30
"""Memory held by nobody that can be seen: from here on somebody is there. An idle GPU's
processes of another PID namespace are not shown, their memory is."""

LEAVING_S: Final = 5.0
"""A process that has ended gives its memory back within a second (0.15 s on an
H100)."""
LOOK_AGAIN_S: Final = 0.5


@dataclass(frozen=True)
class _CudaDevice:
    """What CUDA calls a device: a GPU, or a MIG slice of one."""

    gpu: Gpu
    slice: MigSlice | None = None

    @property
    def name(self) -> str:
        return self.slice.name if self.slice else self.gpu.name

    @property
    def uuid(self) -> str:
        return self.slice.uuid if self.slice else self.gpu.uuid

    @property
    def label(self) -> str:
        """For people: ``GPU 0 (NVIDIA H100 80GB HBM3)``."""
        part = f", MIG device {self.slice.index}" if self.slice else ""
        return f"GPU {self.gpu.index}{part} ({self.name})"

    @property
    def total_bytes(self) -> int | None:
        return (self.slice or self.gpu).memory_total_bytes

    @property
    def used_bytes(self) -> int | None:
        return (self.slice or self.gpu).memory_used_bytes

    @property
    def processes(self) -> list[GpuProcess]:
        return (self.slice or self.gpu).processes

    @property
    def users(self) -> str:
        """Who uses it, for people; empty: nobody. What only draws on it does not
        count."""
        if self.gpu.compute_mode == "prohibited":
            return "its compute mode is “prohibited”"
        computing = [process for process in self.processes if not process.graphics]
        if computing:
            names = ", ".join(_process(process) for process in computing[:4])
            more = len(computing) - 4
            return f"{names} and {more} more" if more > 0 else names

        # A process of another container is not listed, but what it holds is counted.
        drawn = sum(process.used_bytes or 0 for process in self.processes)
        held = (self.used_bytes or 0) - drawn
        if held < _HELD_BYTES:
            return ""
        return f"{units.size(held)} are held by processes that cannot be seen from here"


def _process(process: GpuProcess) -> str:
    text = f"process {process.pid}"
    if process.pid is None:
        text = "a process of another PID namespace"
    if process.name:
        text += f" ({process.name})"
    if process.used_bytes is not None:
        text += f" with {units.size(process.used_bytes)}"
    return text


def hide() -> list[Setting]:
    """Return, for a run on the CPU, the variable that keeps its engine off this
    machine's GPUs."""
    if not nvidia_driver():
        return []
    why = "a run on the CPU: it does not touch this machine's GPUs"
    return [Setting(name=VISIBLE, value="", why=why)]


def visible(reading: GpuReading, mask: str | None) -> list[_CudaDevice]:
    """Return what CUDA sees with that value of CUDA_VISIBLE_DEVICES (None: not set), in
    CUDA's order.

    Numbers count by PCI bus, as nvidia-smi does: CUDA does so with
    CUDA_DEVICE_ORDER=PCI_BUS_ID, which is set for the engine wherever it makes a
    difference. A UUID may be cut short as long as one device only begins with it. The
    list ends before the first entry that names nothing, or is of another kind than the
    first; one that names a device twice makes CUDA see none. Of MIG slices CUDA sees
    one, and then no whole GPU."""
    devices: list[_CudaDevice] = []
    if mask is None:
        for gpu in reading.gpus:
            device = _whole(gpu)
            if device is not None:
                devices.append(device)
    else:
        entries = [entry.strip() for entry in mask.split(",")]
        devices = list(_named(reading, entries))
    if len({device.uuid for device in devices}) < len(devices):
        return []
    slices = [device for device in devices if device.slice]
    return slices[:1] or devices


def _whole(gpu: Gpu) -> _CudaDevice | None:
    """Return what CUDA makes of a GPU: with MIG on its first slice, or nothing where it
    has none."""
    if not gpu.mig:
        return _CudaDevice(gpu)
    return _CudaDevice(gpu, gpu.slices[0]) if gpu.slices else None


_NUMBER: Final = re.compile(r"\+?(\d+)")
"""As strtol reads it: what follows the digits does not count (seen of driver
580.159)."""
_UUID: Final = re.compile(r"(GPU|MIG)-(?=.)")


def _named(reading: GpuReading, entries: list[str]) -> Iterator[_CudaDevice]:
    """Yield the devices that a list names, up to the entry that ends it."""
    kind = _UUID.match(entries[0])
    for entry in entries:
        device = (
            _by_uuid(reading, entry, kind[0]) if kind else _by_number(reading, entry)
        )
        if device is None:
            return
        yield device


def _by_number(reading: GpuReading, entry: str) -> _CudaDevice | None:
    number = _NUMBER.match(entry)
    if number is None:
        return None
    for gpu in reading.gpus:
        if gpu.index == int(number[1]):
            return _whole(gpu)
    return None


def _by_uuid(reading: GpuReading, entry: str, kind: str) -> _CudaDevice | None:
    """Return the one device whose UUID begins so. ``kind``: "GPU-" or "MIG-", with
    which the list began."""
    if not entry.startswith(kind):
        return None
    devices: list[tuple[str, _CudaDevice | None]] = []
    for gpu in reading.gpus:
        if kind == "GPU-":
            devices.append((gpu.uuid, _whole(gpu)))
        else:
            devices += [(slice.uuid, _CudaDevice(gpu, slice)) for slice in gpu.slices]

    entry = entry.lower()
    matching: list[_CudaDevice | None] = []
    for uuid, device in devices:
        # What follows a whole UUID does not count.
        if uuid.lower().startswith(entry[: len(uuid)]):
            matching.append(device)
    return matching[0] if len(matching) == 1 and entry != kind.lower() else None


@dataclass(frozen=True)
class Choice:
    """The devices that a run takes, in CUDA's order; none: ``reason`` and ``hint`` say
    why.

    Attributes:
        unseen: why NVML tells of none, where CUDA may work all the same: the run takes
            what CUDA gives it.
        passed_over: sentences on devices that somebody else uses, taken or not.
        narrowed: whether the engine would see others without being told.
        mixed: the machine has GPUs of several models, which CUDA counts by speed.
    """

    devices: tuple[_CudaDevice, ...] = ()
    reading: GpuReading = field(default_factory=GpuReading)
    reason: str = ""
    hint: str = ""
    unseen: str = ""
    passed_over: tuple[str, ...] = ()
    narrowed: bool = False
    mixed: bool = False

    def settings(self) -> list[Setting]:
        """Return the variables that make the engine see these devices and no others.

        Numbers, not UUIDs: vLLM reads them as numbers (vllm#13815, vllm#41848). A MIG
        slice has none, unless it is the one that CUDA takes by itself."""
        if not self.devices or not self.narrowed:
            return []
        labels = ", ".join(device.label for device in self.devices)
        why = f"the GPU that the run takes: {labels}"
        if self.passed_over:
            why += "; not " + "; ".join(self.passed_over)
        entries = ",".join(_entry(device) for device in self.devices)
        settings = [Setting(name=VISIBLE, value=entries, why=why)]
        if self.mixed:
            why = "numbers count by PCI bus, as nvidia-smi does; CUDA would count by speed"
            settings.append(Setting(name=ORDER, value="PCI_BUS_ID", why=why))
        return settings

    @property
    def names(self) -> list[str]:
        return [device.name for device in self.devices]

    def facts(self) -> list[GpuFacts]:
        """Return all devices of the machine, for the report."""
        taken = {device.uuid for device in self.devices}
        slices: dict[str, _CudaDevice] = {}
        for device in self.devices:
            if device.slice:
                slices[device.gpu.uuid] = device
        facts: list[GpuFacts] = []
        for gpu in self.reading.gpus:
            device = slices.get(gpu.uuid, _CudaDevice(gpu))
            fact = GpuFacts(
                index=device.gpu.index,
                name=device.name,
                uuid=short_uuid(device.uuid),
                memory_bytes=device.total_bytes,
                memory_used_bytes=device.used_bytes,
                driver=self.reading.driver,
                cuda=self.reading.cuda,
                mig=device.gpu.mig,
                users=device.users,
                taken=device.uuid in taken,
            )
            facts.append(fact)
        return facts


def _entry(device: _CudaDevice) -> str:
    """Return what CUDA_VISIBLE_DEVICES calls a device: a number, where it has one."""
    if device.slice is None or device.slice is device.gpu.slices[0]:
        return str(device.gpu.index)
    return device.uuid


def choose(
    reading: GpuReading,
    variables: Mapping[str, str] | None = None,
    leased: Collection[str] = (),
) -> Choice:
    """Choose the device that a run takes of ``reading``, or say why it takes none.

    Args:
        variables: where CUDA_VISIBLE_DEVICES and MMREPRO_GPU are looked up; None: our
            own.
        leased: UUIDs of devices that other runs of mmrepro have taken.

    A device that others use is not taken, unless MMREPRO_GPU names it or is ``any``.
    """
    if variables is None:
        variables = os.environ
    mask = variables.get(VISIBLE)
    wanted = variables.get(_WANTED, "").strip()
    none = partial(Choice, reading=reading)
    if reading.blind:
        return none(unseen=reading.reason)
    if not reading.gpus:
        return none(reason=f"No GPU can be used: {reading.reason}.", hint=_CPU)
    devices = visible(reading, mask)
    if not devices and mask is None:
        return none(
            reason="MIG is on, but no MIG device is made.",
            hint="nvidia-smi mig -cgi … -C",
        )
    if not devices:
        many = len(reading.gpus)
        return none(
            reason=f"{VISIBLE}={mask!r} leaves no GPU of the {many} of this machine.",
            hint=f"unset {VISIBLE}; {_CPU}",
        )

    in_use: dict[str, str] = {}
    """UUIDs of the devices that others use, and a sentence on each."""
    for device in devices:
        users = device.users
        if not users and device.uuid in leased:
            users = "another run of mmrepro"
        if users:
            in_use[device.uuid] = f"{device.label}: {users}"

    def taken(chosen: list[_CudaDevice]) -> Choice:
        uuids = [device.uuid for device in chosen]
        passed_over: list[str] = []
        for uuid, sentence in in_use.items():
            if uuid not in uuids:
                passed_over.append(sentence)
        all_uuids = [device.uuid for device in visible(reading, None)]
        return none(
            devices=tuple(chosen),
            passed_over=tuple(passed_over),
            narrowed=mask is not None or uuids != all_uuids,
            mixed=len({gpu.name for gpu in reading.gpus}) > 1,
        )

    if wanted and wanted != "any":
        named = visible(reading, wanted)
        ours = {device.uuid for device in devices}
        if named and all(device.uuid in ours for device in named):
            return taken(named)
        among = ", ".join(_entry(device) for device in devices)
        return none(
            reason=f"{_WANTED}={wanted!r} names no GPU that this process may use.",
            hint=f"one of {among}, or any",
        )
    free = [device for device in devices if device.uuid not in in_use]
    if free:
        return taken(free[:1])
    least = min(devices, key=lambda device: device.used_bytes or 0)
    if wanted == "any":
        return taken([least])
    many_in_use = "The GPU is" if len(devices) == 1 else f"All {len(devices)} GPUs are"
    return none(
        reason=f"{many_in_use} in use by others: {'; '.join(in_use.values())}.",
        hint=f"{_WANTED}={_entry(least)} takes it anyway; {_CPU}",
        passed_over=tuple(in_use.values()),
    )


def free_devices(
    reading: GpuReading, variables: Mapping[str, str] | None = None
) -> int | None:
    """Return how many runs can have a device of their own; None: unknown, or
    MMREPRO_GPU decides.

    ``variables``: as in :func:`choose`.
    """
    if variables is None:
        variables = os.environ
    if reading.blind or variables.get(_WANTED, "").strip():
        return None
    devices = visible(reading, variables.get(VISIBLE))
    return sum(not device.users for device in devices)


_CPU: Final = "--device cpu runs without one"


def take(leased: Collection[str] = ()) -> Choice:
    """Return the device for a run that starts now; what a process leaves that has just
    ended is awaited.

    ``leased``: as in :func:`choose`.

    Raises:
        GpuUnavailable: none is there, or others use all of them.
    """
    until = time.monotonic() + LEAVING_S
    while True:
        choice = choose(read_gpus(), leased=leased)
        if choice.devices or choice.unseen:
            return choice
        if not choice.passed_over or time.monotonic() >= until:
            raise GpuUnavailable(choice.reason, hint=choice.hint)
        time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def leased() -> Iterator[Choice]:
    """Give the device for a run that starts now. What MMREPRO_GPU asks for is taken,
    whoever has it.

    Raises:
        GpuUnavailable: none is there, or others use all of them.
    """
    others: set[str] = set()
    while True:
        choice = take(others)
        with contextlib.ExitStack() as held:
            refused: set[str] = set()
            for device in choice.devices:
                if not _held(device.uuid, held):
                    refused.add(device.uuid)
            # Refused although it was known: the user named it, or wants any.
            if refused <= others:
                yield choice
                return
        others |= refused


def _held(uuid: str, held: contextlib.ExitStack) -> bool:
    """Whether the device is this run's now, until ``held`` is closed; the kernel takes
    it back if this process dies."""
    path = cache_root() / "gpus" / f"{short_uuid(uuid)}.lock"
    lock = FileLock(path, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except OSError:
        return True  # a cache that cannot be written keeps no run from its GPU
    held.callback(lock.release)
    return True
