"""Real servers of several processes, each broken in one way: the recorded diagnosis,
judged again.

``tests/evidence/record_ranks.py`` makes the recordings, and lists how each server was
broken."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import pytest
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.diagnosis import (
    Assessment,
    Fit,
    LiveClass,
    RankLook,
    ServerState,
    TargetFacts,
)
from mmrepro.failure.documents.fleet import FleetState
from mmrepro.live.diagnose import classes, general, ranks
from mmrepro.live.diagnose.match import match_all
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.fleet.look import Look
from mmrepro.live.fleet.reading import read, summary
from mmrepro.probes.data import GpuData, InferenceData, StacksData
from mmrepro.reports import load
from mmrepro.reports.incident import compose
from mmrepro.reports.terminal import LINES, print_page
from mmrepro.scenario import LiveFacts
from mmrepro.scenario.registry import load_scenario
from rich.console import Console

RANKS = Path(__file__).parents[2] / "evidence/ranks"
RECORDED = sorted(path.stem for path in RANKS.glob("tp2-*.zip"))


@cache
def recorded(name: str) -> Incident:
    return load(RANKS / f"{name}.zip")


def facts(name: str) -> TargetFacts:
    diagnosis = recorded(name).diagnosis
    assert diagnosis is not None
    return diagnosis.target


def judged(name: str) -> Assessment:
    return general.assess(recorded(name).evidence, facts(name))


def look(name: str) -> RankLook:
    seen = ranks.look(DiagnosisView(facts(name), recorded(name).evidence))
    assert seen is not None
    return seen


HEALTHY = {
    "tp2-idle": ServerState.HEALTHY,
    "tp2-first-request": ServerState.SLOW,
    "tp2-busy": ServerState.HEALTHY,
}
STUCK = {
    "tp2-python": ("Worker_TP1", "_wedge"),
    "tp2-c": ("Worker_TP1", "_wedge"),
}
"""The rank that stands, and its innermost frame."""


OTHER = {
    "tp2-stop": (ServerState.STOPPED, "Worker_TP1"),
    "tp2-kill": (ServerState.RANK_LOST, "Worker_TP1"),
    "tp2-raise-busy": (ServerState.RANK_DIVERGED, "Worker_TP1"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_server_that_works_is_not_called_stuck(name: str) -> None:
    """The first request compiles kernels for seconds: slow, and no rank of it
    stands."""
    assert judged(name).state is HEALTHY[name]
    assert not classes.classes(recorded(name).evidence, facts(name))


@pytest.mark.parametrize("name", STUCK)
def test_the_rank_that_stands_is_named_with_its_frame(name: str) -> None:
    told = judged(name)
    rank, function = STUCK[name]
    assert (told.state, told.process) == (ServerState.WORKER_STUCK, rank)
    assert told.frames[0].name == function
    assert look(name).odd == [rank]
    assert any(edge.awaited == rank for edge in look(name).edges)
    diagnosis = recorded(name).diagnosis
    assert diagnosis is not None
    assert diagnosis.exit_code == 1


ON_A_GPU = {
    "gpu-minivllm-load": (ServerState.HEALTHY, ""),
    "gpu-vllm-load": (ServerState.HEALTHY, ""),
    "gpu-minivllm-kernel-native": (ServerState.KERNEL_STUCK, "cuMemcpyDtoHAsync_v2"),
    "gpu-vllm-kernel": (
        ServerState.KERNEL_STUCK,
        "synchronize, called by AsyncOutput.get_output",
    ),
    "gpu-vllm-kernel-native": (ServerState.KERNEL_STUCK, "cuEventSynchronize"),
    "gpu-vllm-python": (ServerState.FROZEN_PYTHON, "clock_nanosleep"),
    "gpu-minivllm-kernel": (
        ServerState.KERNEL_STUCK,
        "while GPU 0, which nothing else uses",
    ),
    "gpu-minivllm-kernel-shared": (ServerState.FROZEN_NATIVE, "runner.py:27"),
    "gpu-minivllm-core-kernel": (
        ServerState.KERNEL_STUCK,
        "runner.py:27): at::cuda::(anonymous namespace)::spin_kernel() does not end",
    ),
}
"""One process on an H200 (``benchmarks/gpu_live.py``), with a kernel of a minute
queued: the state, and what the sentence names. Of ``shared`` there are no C frames, and
another server used the GPU too; of ``core`` there is CUDA's core dump."""


@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_server_on_a_gpu(name: str) -> None:
    state, words = ON_A_GPU[name]
    told = judged(name)
    assert told.state is state, told.sentence
    assert words in told.sentence


def test_a_gpu_that_is_not_always_busy_is_not_what_a_thread_waits_for() -> None:
    evidence = recorded("gpu-minivllm-kernel").evidence.model_copy(deep=True)
    (device,) = next(data for _, data in evidence.results(GpuData)).devices
    device.utilization_pct[1] = 99
    told = general.assess(evidence, facts("gpu-minivllm-kernel"))
    assert told.state is ServerState.FROZEN_NATIVE


@pytest.mark.parametrize("name", STUCK)
def test_without_the_stacks_of_that_rank_nobody_is_named(name: str) -> None:
    """Less evidence gives a weaker state."""
    evidence = recorded(name).evidence.model_copy(deep=True)
    pid = next(p.pid for p in facts(name).processes if p.role == STUCK[name][0])
    for _, data in evidence.results(StacksData):
        data.samples = [s for s in data.samples if s.pid != pid]
    told = general.assess(evidence, facts(name))
    assert told.state is ServerState.FROZEN
    assert told.process != STUCK[name][0]


@pytest.mark.parametrize("name", STUCK)
def test_the_same_stacks_beside_an_answer_are_no_fault(name: str) -> None:
    evidence = recorded(name).evidence.model_copy(deep=True)
    for _, data in evidence.results(InferenceData):
        data.answered, data.status, data.seconds = True, 200, 0.1
    assert general.assess(evidence, facts(name)).state is ServerState.HEALTHY


@pytest.mark.parametrize("name", OTHER)
def test_what_else_became_of_a_rank(name: str) -> None:
    told = judged(name)
    assert (told.state, told.process) == OTHER[name]
    assert look(name).odd == [OTHER[name][1]]


def test_a_worker_that_was_killed_is_no_input_s_fault() -> None:
    """Of a server whose engine ended with it, and that answers 500 for a moment."""
    named = classes.classes(recorded("tp2-kill").evidence, facts("tp2-kill"))
    assert [one.name for one in named] == [LiveClass.RANK_LOST]


def test_every_recording_is_judged() -> None:
    assert {*HEALTHY, *STUCK, *OTHER} == set(RECORDED)


def test_the_rank_that_raised_is_named_with_what_it_raised() -> None:
    """A real divergence: Worker_TP1 raised in a step and went on to wait for work,
    while Worker_TP0 waits for it in a collective operation."""
    told = judged("tp2-raise-busy")
    assert (told.state, told.process) == (ServerState.RANK_DIVERGED, "Worker_TP1")
    assert told.sentence == (
        "The ranks have diverged: Worker_TP0 is in all_reduce, and Worker_TP1 is "
        "idle: it is not part of that step."
    )
    assert any(
        text.startswith("first error of Worker_TP1 in the log") for text in told.why
    )
    assert look("tp2-raise-busy").odd == ["Worker_TP1"]


def test_the_first_screen_and_the_page_have_every_rank() -> None:
    incident = recorded("tp2-python").model_copy(deep=True)
    diagnosis = incident.diagnosis
    assert diagnosis is not None
    diagnosis.assessment, diagnosis.ranks = judged("tp2-python"), look("tp2-python")
    page = compose(incident)
    first, whole = io.StringIO(), io.StringIO()
    print_page(page, Console(file=first, width=100, force_terminal=True, no_color=True))
    print_page(page, Console(file=whole, width=200), full=True)
    lines = first.getvalue().splitlines()
    assert len(lines) <= LINES
    assert (
        "Other processes: 1 in all_reduce: Worker_TP0; 1 is stuck in _wedge: Worker_TP1."
        in "\n".join(lines)
    )
    text = whole.getvalue()
    for words in (
        "All ranks",
        "all_reduce ×6",
        "_wedge ×6",
        "EngineCore → Worker_TP1: its answer",
    ):
        assert words in text, words


def matches(name: str) -> dict[str, Fit]:
    target = facts(name)
    live = LiveFacts(target.engine, target.release, tuple(target.command), 15.0)
    variants = load_scenario("worker-wedged").variants
    found = match_all(variants, recorded(name).evidence, live)
    return {m.variant: m.fit for m in found if m.fit in (Fit.MATCH, Fit.LIKELY)}


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("tp2-python", {"python": Fit.MATCH}),
        ("tp2-c", {"c": Fit.MATCH, "python": Fit.MATCH}),
        ("tp2-idle", {}),
        ("tp2-busy", {}),
        ("tp2-first-request", {}),
        (
            "tp2-raise-busy",
            {"raises": Fit.LIKELY},
        ),  # its log was not searched for the exception
    ],
)
def test_the_known_failure_is_found_where_a_worker_stands(
    name: str, variants: dict[str, Fit]
) -> None:
    assert matches(name) == variants


# ------------------------------------------------------------------ two servers


def pair(name: str) -> tuple[FleetState, str]:
    """Two real vLLM 0.32.0 on a machine with a load of 80: ``benchmarks/ranks.py
    --pairs``. The KV connector is planted: the cache of one request never arrives."""
    looks = []
    for one in (f"pd-{name}-1", f"pd-{name}-2"):
        found = recorded(one).diagnosis
        assert found is not None
        now = {
            "assessment": judged(one),
            "classes": classes.classes(recorded(one).evidence, found.target),
        }
        url = found.target.url
        looks.append(Look(url, found.model_copy(update=now), recorded(one).evidence))
    return summary(*read(looks))


def test_a_transfer_that_stands_between_two_that_are_only_slow() -> None:
    state, sentence = pair("never")
    assert state is FleetState.TRANSFER_STANDS
    assert "waits for a KV cache that does not arrive" in sentence
    assert "is not at fault as far as can be seen" in sentence


def test_of_a_prefill_server_that_could_not_be_told_nothing_is_said() -> None:
    """It was wedged, and the machine too short of processors to say so."""
    state, sentence = pair("wedged")
    assert state is FleetState.TRANSFER_STANDS
    assert sentence.endswith("is undecided.")


def test_the_decode_server_alone_has_the_class() -> None:
    """It was asked for nothing: it would answer a request whose prompt it computes
    itself."""
    name = "pd-decode-unasked"
    named = classes.classes(recorded(name).evidence, facts(name))
    assert [one.name for one in named] == [LiveClass.TRANSFER_STUCK]
