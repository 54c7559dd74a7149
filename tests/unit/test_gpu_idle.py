"""“GPU utilisation is 0 %, memory stays held”, and what only looks like it. Made-up
evidence; the numbers are those of nvml_h100.json, where they can be."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from made_up import at, hung, probed, processes, request, run_facts
from mmrepro.base.records import Fidelity
from mmrepro.failure.signature.decide import guarded
from mmrepro.probes.data import GpuData, GpuDevice, GpuProcess
from mmrepro.scenario import Finding, Truth
from mmrepro.scenario.definition import bind
from mmrepro.scenario.more import gpu_idle, gpu_memory_held
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence, SeriesPoint

GHOST = load_scenario("ghost-key-eviction")
ENGINE, OTHER = 1764, 7
GIB = 1 << 30
ASKED = 30.0
"""When the request that hangs is sent, as of the run's clock."""


def device(index: int = 0, **more: object) -> GpuDevice:
    fields: dict[str, object] = {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}",
        "driver": "580.159.04",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 11 * GIB,
        "utilization_pct": [0, 0, 0],
        "processes": [GpuProcess(pid=ENGINE, used_bytes=10 * GIB)],
    }
    return GpuDevice.model_validate({**fields, **more})


def points(
    index: int = 0, *, before: float = 41.0, waiting: float = 0.0
) -> list[SeriesPoint]:
    """Twice a second: work in the gate, then the wait, whose first reading is of the
    work."""
    start = at(ASKED).mono
    seen = [(start - 5 + n / 2, before if n % 2 else 0.0) for n in range(10)]
    seen += [
        (start + 0.2, before),
        *((start + 1.5 + n / 2, waiting) for n in range(20)),
    ]
    return [SeriesPoint(mono=mono, gpu_pct={str(index): pct}) for mono, pct in seen]


def hang() -> Evidence:
    """A request that is never answered, on an H100 of the engine's own."""
    asked = hung("image X").model_copy(update={"sent": at(ASKED)})
    return Evidence(
        requests=[request("gate", "text"), asked],
        probes=[
            probed(GpuData(devices=[device()]), "gate"),
            probed(GpuData(devices=[device()])),
            probed(processes(user=97.0)),
        ],
        series=points(),
    )


def seen(
    evidence: Evidence, fidelity: Fidelity = Fidelity.GPU, gpus: set[int] | None = None
):
    """Both, as the claim of ghost-key-eviction asks them."""
    facts = replace(run_facts(GHOST), fidelity=fidelity, gpus=frozenset(gpus or ()))
    both = [
        guarded(bind(one, GHOST, facts), evidence)
        for one in (gpu_idle, gpu_memory_held)
    ]
    truths = [found.truth for found in both]
    worst = next((t for t in (Truth.NOT_MET, Truth.UNKNOWN) if t in truths), Truth.MET)
    return Finding(worst, "; ".join(found.observed for found in both))


def test_an_idle_gpu_whose_memory_stays_held() -> None:
    found = seen(hang())
    assert found.truth is Truth.MET
    assert found.observed == (
        "at most 0 % in 23 readings while a request waited, up to 41 % before; "
        "10.00 GiB held, 10.00 GiB in the gate"
    )


def probes(
    evidence: Evidence, check: list[GpuDevice], gate: list[GpuDevice] | None = None
):
    evidence.probes[0] = probed(
        GpuData(devices=check if gate is None else gate), "gate"
    )
    evidence.probes[1] = probed(GpuData(devices=check))
    return evidence


def with_points(evidence: Evidence, series: list[SeriesPoint]) -> Evidence:
    evidence.series = series
    return evidence


def answered(evidence: Evidence) -> Evidence:
    evidence.requests[1] = request("trigger", "image X").model_copy(
        update={"sent": at(ASKED)}
    )
    return evidence


NOBODYS = {"processes": [], "memory_used_bytes": 0}
OTHERS = {"processes": [GpuProcess(pid=OTHER, name="train", used_bytes=10 * GIB)]}
LESS = {"processes": [GpuProcess(pid=ENGINE, used_bytes=1 * GIB)]}

IMPOSTERS: dict[str, tuple[Callable[[Evidence], Evidence], Truth]] = {
    "it works": (lambda e: with_points(e, points(waiting=3.0)), Truth.NOT_MET),
    "it works as it is looked at": (
        lambda e: probes(e, [device(utilization_pct=[0, 1, 0])]),
        Truth.NOT_MET,
    ),
    "the memory was given back": (
        lambda e: probes(e, [device(**LESS)], [device()]),
        Truth.NOT_MET,
    ),
    "the server ended, another holds it": (
        lambda e: probes(e, [device(**OTHERS)], [device()]),
        Truth.UNKNOWN,
    ),
    "an idle server that answered": (answered, Truth.UNKNOWN),
    "nobody's GPU idles beside it": (
        lambda e: with_points(
            probes(e, [device(**NOBODYS), device(1, utilization_pct=[90])]),
            points(1, waiting=90),
        ),
        Truth.NOT_MET,
    ),
    "somebody else's GPU idles": (
        lambda e: probes(e, [device(**OTHERS)]),
        Truth.UNKNOWN,
    ),
    "two GPUs, and no process is told of": (
        lambda e: probes(e, [device(**NOBODYS), device(1, **NOBODYS)]),
        Truth.UNKNOWN,
    ),
    "MIG tells no utilisation": (
        lambda e: with_points(probes(e, [device(utilization_pct=[], mig=True)]), []),
        Truth.UNKNOWN,
    ),
    "it never showed any work": (
        lambda e: with_points(e, points(before=0.0)),
        Truth.UNKNOWN,
    ),
    "the gate was not looked at": (lambda e: probes(e, [device()], []), Truth.UNKNOWN),
    "another held it in the gate": (
        lambda e: probes(e, [device()], [device(**OTHERS)]),
        Truth.UNKNOWN,
    ),
    "memory is not told": (
        lambda e: probes(
            e, [device(processes=[GpuProcess(pid=ENGINE, used_bytes=None)])]
        ),
        Truth.UNKNOWN,
    ),
}


@pytest.mark.parametrize(("change", "truth"), IMPOSTERS.values(), ids=IMPOSTERS)
def test_what_only_looks_like_it(
    change: Callable[[Evidence], Evidence], truth: Truth
) -> None:
    found = seen(change(hang()))
    assert found.truth is truth, found.observed


def test_a_neighbour_that_computes_on_the_same_gpu() -> None:
    mine = GpuProcess(pid=ENGINE, used_bytes=10 * GIB)
    other = GpuProcess(pid=OTHER, name="train", used_bytes=GIB)
    both = [device(processes=[mine, other])]
    assert seen(probes(hang(), both)).truth is Truth.MET, "0 % is 0 % of both"
    busy = probes(with_points(hang(), points(waiting=50.0)), both)
    assert "not the engine's alone: train" in seen(busy).observed
    assert seen(busy).truth is Truth.UNKNOWN


def test_without_processes_the_gpu_that_the_run_took_is_its_own() -> None:
    """A container of its own PID namespace: processes are not told of, memory is."""
    hidden = {"processes": [], "memory_used_bytes": 11 * GIB}
    assert seen(probes(hang(), [device(**hidden)])).truth is Truth.MET
    two = [device(**hidden), device(1, **NOBODYS)]
    assert seen(probes(hang(), two), gpus={0}).truth is Truth.MET
    assert seen(probes(hang(), two), gpus={1}).truth is Truth.UNKNOWN
    freed = probes(
        hang(), [device(processes=[], memory_used_bytes=GIB)], [device(**hidden)]
    )
    assert seen(freed).truth is Truth.NOT_MET


@pytest.mark.parametrize("fidelity", [f for f in Fidelity if f is not Fidelity.GPU])
def test_off_a_gpu_it_says_nothing(fidelity: Fidelity) -> None:
    assert seen(hang(), fidelity).truth is Truth.UNKNOWN
