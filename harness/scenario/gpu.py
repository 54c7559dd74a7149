"""What a GPU does while the engine hangs: for a row of the table and a claim."""

from __future__ import annotations

from mmrepro.evidence import Evidence
from mmrepro.probes.data import GpuData, GpuDevice, ProcessesData
from mmrepro.records import Fidelity
from mmrepro.scenario.parts import RunFacts
from mmrepro.signature.decide import Finding

SETTLED_S = 1.0
"""NVML's utilisation is of a span of up to a second that lies behind."""
HELD = 0.9
"""Share of the memory of the gate that counts as held: a workspace may have been given back."""
GIB = 1 << 30


def gpu_idle(gpu: GpuData, evidence: Evidence, facts: RunFacts) -> Finding:
    """While a request waits, no reading of the engine's GPU is above 0 %, and the engine's
    processes hold the memory that they held in the gate.

    Unknown, and never met: off a GPU; where no request waits (any idle server's GPU idles); where
    the GPU is not known to be the engine's; with MIG, which tells no utilisation; where no earlier
    reading was above 0 % (the same 0 % would say nothing); without the gate's own memory.
    """
    if facts.fidelity is not Fidelity.GPU:
        return Finding.unknown(f"the engine does not run on a GPU (fidelity: {facts.fidelity})")
    waits = [
        (r.sent.mono + SETTLED_S, r.sent.mono + r.latency_s)
        for r in evidence.requests_in("trigger")
        if r.timed_out
    ]
    if not waits:
        return Finding.unknown("no request waited: the GPU of any idle server idles")
    own = _own(gpu, evidence, facts)
    if not own:
        return Finding.unknown("which GPU is the engine's is not known")
    names = {str(device.index) for device in own}
    series = [(p.mono, pct) for p in evidence.series for n, pct in p.gpu_pct.items() if n in names]
    waiting = [pct for mono, pct in series if any(low <= mono <= high for low, high in waits)]
    waiting += [pct for device in own for pct in device.utilization_pct]
    if not waiting:
        return Finding.unknown("no reading of the GPU's utilisation (MIG tells none)")
    asked = min(r.sent.mono for r in evidence.requests_in("trigger"))
    before = max((pct for mono, pct in series if mono < asked), default=0.0)
    held, gate = _held(own, evidence), _held(_gate(evidence, names), evidence)
    observed = (
        f"at most {max(waiting):.0f} % in {len(waiting)} readings while a request waited, up to "
        f"{before:.0f} % before; {_gib(held)} held, {_gib(gate)} in the gate"
    )
    if max(waiting) and (others := _others(own, evidence)):
        return Finding.unknown(f"{observed}; not the engine's alone: {others}")
    if max(waiting):
        return Finding.of(False, observed)
    if held is None or not gate:
        return Finding.unknown(f"{observed}: the engine's own memory is not told")
    if held < HELD * gate:
        return Finding.of(False, observed)
    if not before:
        return Finding.unknown(f"{observed}: no work was ever seen, so that 0 % says nothing")
    return Finding.of(True, observed)


def _own(gpu: GpuData, evidence: Evidence, facts: RunFacts) -> list[GpuDevice]:
    """The GPUs that a process of the server holds. Where the driver tells of no process at all (it
    is asked from another PID namespace): what the run took, or the only one there is."""
    pids = _pids(evidence)
    held = [d for d in gpu.devices if any(p.pid in pids for p in d.processes)]
    if held or any(device.processes for device in gpu.devices):
        return held
    taken = [d for d in gpu.devices if d.index in facts.gpus] or gpu.devices
    return taken if len(taken) == 1 or facts.gpus else []


def _gate(evidence: Evidence, names: set[str]) -> list[GpuDevice]:
    """The same GPUs in the gate, when the server was healthy."""
    seen = [data.devices for _, data in evidence.results(GpuData, "gate")]
    return [device for device in seen[-1] if str(device.index) in names] if seen else []


def _held(devices: list[GpuDevice], evidence: Evidence) -> int | None:
    """Bytes that the server's processes hold there; where none is told, that all hold."""
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
    others = [p for d in devices for p in d.processes if p.pid not in pids and not p.graphics]
    return ", ".join(p.name or f"process {p.pid}" for p in others)


def _pids(evidence: Evidence) -> set[int]:
    return {p.pid for _, data in evidence.results(ProcessesData) for p in data.processes}


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIB:.2f} GiB"
