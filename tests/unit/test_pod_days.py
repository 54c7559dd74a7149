"""Days of pods against a fake clock, over what real engines showed: no restart that
helps nobody, and each stall in time. The benchmark runs a thousand of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "pod_days.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pod_days", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pod_days"] = module
    spec.loader.exec_module(module)
    return module


def test_there_are_a_dozen_kinds_of_servers_and_each_has_a_day(
    simulation: ModuleType,
) -> None:
    kinds = simulation.kinds()
    assert len(kinds) >= 12
    assert len({kind.name for kind in kinds}) == len(kinds)
    engines = {kind.recording.partition("-")[0] for kind in kinds}
    assert {"minivllm", "vllm"} <= engines


@pytest.mark.slow
def test_a_few_days_have_no_false_restart(simulation: ModuleType) -> None:
    # The first dozen kinds: the benchmark runs all, which is too long for a test.
    found = simulation.run(days=12, stalls=0, seed=7)
    assert found["false_restarts"] == []
    seen = {name for name, count in found["checks"].items() if count}
    assert {"ok", "busy", "error", "absent", "held", "preparing"} <= seen


@pytest.mark.parametrize("own", [True, False], ids=["beside it", "behind a network"])
def test_an_engine_that_counts_requests_at_their_end_may_decode_for_long(
    simulation: ModuleType, own: bool
) -> None:
    moods = simulation.recorded("sglang-0.5.23")
    pod = simulation.pod("decode", simulation.World(moods["idle"], own=own))
    pod.stay(simulation.World(moods["idle"], own=own), "answers", 60)
    pod.stay(simulation.World(moods["decode"], 0, own), "decodes", 1800)
    assert pod.restarts == []
    assert pod.counts["busy"]


def test_a_queue_of_half_an_hour_is_no_hang_of_a_server_without_metrics(
    simulation: ModuleType,
) -> None:
    moods = simulation.moods_of("sglang-0.5.23", metrics=False)
    pod = simulation.pod("queue", simulation.World(moods["idle"]))
    pod.stay(simulation.World(moods["idle"]), "answers", 60)
    pod.stay(simulation.World(moods["decode"], 0), "decodes", 1800)
    assert pod.restarts == []
    assert pod.counts["busy"]


@pytest.mark.slow
def test_each_stall_is_told_of_in_time(simulation: ModuleType) -> None:
    found = simulation.run(days=0, stalls=20, seed=7)
    assert found["stalls"] == 20
    assert found["in_time"] == 20, found["slowest_s"]


def test_a_stall_is_a_restart_in_the_simulation(simulation: ModuleType) -> None:
    """It finds restarts at all: the same engine, hung."""
    seconds, told = simulation.stall("vllm-0.23.0-hung", 3)
    assert seconds <= simulation.WITHIN_S
    assert "stands still" in told or "idles" in told
