"""What a GPU does while the engine hangs: for a row of the table and a claim."""

from collections.abc import Sequence

from mmrepro.base.records import Fidelity
from mmrepro.failure.signature import Finding
from mmrepro.probes import GpuData, GpuDevice, ProcessesData
from mmrepro.scenario.parts import RunFacts
from mmrepro.traffic.evidence import Evidence, RequestRecord

_SETTLED_S = 1.0
"""NVML's utilisation is of a span of up to a second that lies behind."""
_HELD = 0.95
"""Share of the gate's memory that counts as held: a hung engine frees nothing; what the
driver keeps for a context varies by a few MiB."""
GIB = 1 << 30


def gpu_idle(gpu: GpuData, evidence: Evidence, facts: RunFacts) -> Finding:
    """While a request waits, no reading of the engine's GPU is above 0 %.

    Unknown, and never met: off a GPU; where no request waits (any idle server's GPU
    idles); where it is not known which GPU is the engine's; with MIG, which tells no
    utilisation; where no earlier reading was above 0 %, so that the same 0 % says
    nothing."""
    own, why = _engines(gpu, evidence, facts)
    if why:
        return Finding.unknown(why)
    requests = evidence.requests_in("trigger")
    waits = _waits(requests)
    if not waits:
        return Finding.unknown("no request waited: the GPU of any idle server idles")

    asked = min(request.sent.mono for request in requests)
    waiting: list[float] = []
    earlier: list[float] = []
    for mono, pct in _readings(own, evidence):
        if any(begin <= mono <= end for begin, end in waits):
            waiting.append(pct)
        if mono < asked:
            earlier.append(pct)
    for device in own:
        waiting += device.utilization_pct
    if not waiting:
        return Finding.unknown("no reading of the GPU's utilisation (MIG tells none)")

    before = max(earlier, default=0.0)
    most = max(waiting)
    observed = (
        f"at most {most:.0f} % in {len(waiting)} readings while a request "
        f"waited, up to {before:.0f} % before"
    )
    if most:
        others = _others(own, evidence)
        if others:
            return Finding.unknown(f"{observed}; not the engine's alone: {others}")
        return Finding.of(False, observed)
    if not before:
        return Finding.unknown(
            f"{observed}: no work was ever seen, so that 0 % says nothing"
        )
    return Finding.of(True, observed)


def _waits(requests: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    """The spans in which a request waited in vain."""
    waits: list[tuple[float, float]] = []
    for request in requests:
        if request.timed_out:
            sent = request.sent.mono
            # The first readings are of the time before: see _SETTLED_S.
            waits.append((sent + _SETTLED_S, sent + request.latency_s))
    return waits


def _readings(
    own: Sequence[GpuDevice], evidence: Evidence
) -> list[tuple[float, float]]:
    """Moment and utilisation of each reading of the engine's GPUs."""
    names = {str(device.index) for device in own}
    readings: list[tuple[float, float]] = []
    for point in evidence.series:
        for name, pct in point.gpu_pct.items():
            if name in names:
                readings.append((point.mono, pct))
    return readings


def gpu_memory_held(gpu: GpuData, evidence: Evidence, facts: RunFacts) -> Finding:
    """The engine's processes hold as much of its GPU as in the gate, where they were
    well."""
    own, why = _engines(gpu, evidence, facts)
    if why:
        return Finding.unknown(why)
    indexes = {device.index for device in own}
    in_gate: list[GpuDevice] = []
    for _, data in evidence.results(GpuData, "gate"):
        # The last reading of the gate is the one that counts.
        in_gate = [device for device in data.devices if device.index in indexes]

    now, then = _held(own, evidence), _held(in_gate, evidence)
    if now is None or not then:
        return Finding.unknown(
            "the GPU's memory was not read in the gate and in the check"
        )
    text = f"{now / GIB:.2f} GiB held, {then / GIB:.2f} GiB in the gate"
    return Finding.of(now >= _HELD * then, text)


def _engines(
    gpu: GpuData, evidence: Evidence, facts: RunFacts
) -> tuple[list[GpuDevice], str]:
    """The engine's GPUs, or why they are not known."""
    if facts.fidelity is not Fidelity.GPU:
        return [], f"the engine does not run on a GPU (fidelity: {facts.fidelity})"
    own = _own(gpu, evidence, facts)
    return own, "" if own else "which GPU is the engine's is not known"


def _own(gpu: GpuData, evidence: Evidence, facts: RunFacts) -> list[GpuDevice]:
    """The GPUs that a process of the server holds. Where the driver tells of no process
    at all (it is asked from another PID namespace): what the run took, or the only one
    there is."""
    held = gpu.held_by(_pids(evidence))
    if held or any(device.processes for device in gpu.devices):
        return held
    taken = [device for device in gpu.devices if device.index in facts.gpus]
    candidates = taken or gpu.devices
    if len(candidates) == 1 or facts.gpus:
        return candidates
    return []


def _held(devices: list[GpuDevice], evidence: Evidence) -> int | None:
    """Bytes that the server's processes hold there; where none is told, that all
    hold."""
    if not devices:
        return None
    pids = _pids(evidence)
    total = 0
    for device in devices:
        own = [p.used_bytes for p in device.processes if p.pid in pids]
        # What others hold is not held.
        if device.processes and not own:
            continue
        for used in own or [device.memory_used_bytes]:
            if used is None:
                return None
            total += used
    return total


def _others(devices: list[GpuDevice], evidence: Evidence) -> str:
    """Processes there that are not the server's and compute."""
    pids = _pids(evidence)
    names: list[str] = []
    for device in devices:
        for process in device.processes:
            if process.pid not in pids and not process.graphics:
                names.append(process.name or f"process {process.pid}")
    return ", ".join(names)


def _pids(evidence: Evidence) -> set[int]:
    """All processes of the server that were ever read."""
    pids: set[int] = set()
    for _, data in evidence.results(ProcessesData):
        pids.update(process.pid for process in data.processes)
    return pids
