"""What a GPU does while the engine hangs: for a row of the table and a claim."""

from collections.abc import Sequence

from mmrepro.base.records import Fidelity
from mmrepro.failure.signature.decide import Finding
from mmrepro.probes.data import GpuData, GpuDevice, ProcessesData
from mmrepro.scenario.parts import RunFacts
from mmrepro.traffic.evidence import Evidence

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
    waits = []
    for request in requests:
        if request.timed_out:
            sent = request.sent.mono
            # The first readings are of the time before: see _SETTLED_S.
            waits.append((sent + _SETTLED_S, sent + request.latency_s))
    if not waits:
        return Finding.unknown("no request waited: the GPU of any idle server idles")

    series = _readings(own, evidence)
    waiting = [pct for mono, pct in series if _within(mono, waits)]
    for device in own:
        waiting += device.utilization_pct
    if not waiting:
        return Finding.unknown("no reading of the GPU's utilisation (MIG tells none)")

    asked = min(request.sent.mono for request in requests)
    before = max((pct for mono, pct in series if mono < asked), default=0.0)
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


def _readings(
    own: Sequence[GpuDevice], evidence: Evidence
) -> list[tuple[float, float]]:
    """Moment and utilisation of each reading of the engine's GPUs."""
    names = {str(device.index) for device in own}
    readings = []
    for point in evidence.series:
        for name, pct in point.gpu_pct.items():
            if name in names:
                readings.append((point.mono, pct))
    return readings


def _within(moment: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(low <= moment <= high for low, high in spans)


def gpu_memory_held(gpu: GpuData, evidence: Evidence, facts: RunFacts) -> Finding:
    """The engine's processes hold as much of its GPU as in the gate, where they were
    well."""
    own, why = _engines(gpu, evidence, facts)
    if why:
        return Finding.unknown(why)
    names = {device.index for device in own}
    gates = [data.devices for _, data in evidence.results(GpuData, "gate")]
    gate = [device for device in gates[-1] if device.index in names] if gates else []
    now, then = _held(own, evidence), _held(gate, evidence)
    if now is None or not then:
        return Finding.unknown(
            "the GPU's memory was not read in the gate and in the check"
        )
    text = f"{now / GIB:.2f} GiB held, {then / GIB:.2f} GiB in the gate"
    return Finding.of(now >= _HELD * then, text)


def _engines(
    gpu: GpuData, evidence: Evidence, facts: RunFacts
) -> tuple[list[GpuDevice], str]:
    if facts.fidelity is not Fidelity.GPU:
        return [], f"the engine does not run on a GPU (fidelity: {facts.fidelity})"
    own = _own(gpu, evidence, facts)
    return own, "" if own else "which GPU is the engine's is not known"


def _own(gpu: GpuData, evidence: Evidence, facts: RunFacts) -> list[GpuDevice]:
    """The GPUs that a process of the server holds. Where the driver tells of no process
    at all (it is asked from another PID namespace): what the run took, or the only one
    there is."""
    pids = _pids(evidence)
    held = gpu.held_by(pids)
    if held or any(device.processes for device in gpu.devices):
        return held
    taken = [d for d in gpu.devices if d.index in facts.gpus] or gpu.devices
    return taken if len(taken) == 1 or facts.gpus else []


def _held(devices: list[GpuDevice], evidence: Evidence) -> int | None:
    """Bytes that the server's processes hold there; where none is told, that all
    hold."""
    pids = _pids(evidence)
    total = 0
    for device in devices:
        own = [p.used_bytes for p in device.processes if p.pid in pids]
        if device.processes and not own:
            continue  # what others hold is not held
        told = own or [device.memory_used_bytes]
        if any(used is None for used in told):
            return None
        total += sum(used or 0 for used in told)
    return total if devices else None


def _others(devices: list[GpuDevice], evidence: Evidence) -> str:
    """Processes there that are not the server's and compute."""
    pids = _pids(evidence)
    others = [
        p for d in devices for p in d.processes if p.pid not in pids and not p.graphics
    ]
    return ", ".join(p.name or f"process {p.pid}" for p in others)


def _pids(evidence: Evidence) -> set[int]:
    return {
        p.pid for _, data in evidence.results(ProcessesData) for p in data.processes
    }
