"""The contract probe: how a run switches it on, and what it reads of a model runner."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, get_engine
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.options import RunCommand
from mmrepro.runs.start import ServerSpec
from mmrepro.scenario.registry import load_scenario

ENVIRONMENT: Any = SimpleNamespace(
    python=Path("/venv/bin/python"),
    path=Path("/venv"),
    site_packages=Path("/venv/lib"),
    python_of="",
    state_dir=Path("/venv/state"),
    spec=SimpleNamespace(release="0.12.0", device="cpu"),
)


def started(scenario: str, *, probe: bool) -> Any:
    options = RunCommand(contract_probe=probe)
    return ServerSpec(
        load_scenario(scenario), options, ENVIRONMENT, Path("/model")
    ).plan(8000)


def test_vllm_gets_the_probe_as_a_listed_stand_in() -> None:
    assert started("ghost-key-eviction", probe=False).stand_ins == []
    found = started("ghost-key-eviction", probe=True)
    assert [s.name for s in found.stand_ins] == ["contract_probe"]
    assert "contract_probe" in found.env["MMREPRO_STAND_INS"]
    assert found.fidelity == started("ghost-key-eviction", probe=False).fidelity


def test_minivllm_checks_by_itself() -> None:
    found = started("mm-prefill-contract", probe=True)
    assert found.argv[-1] == "--check-contract=log"
    assert found.stand_ins == []


def test_an_engine_without_one_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(get_engine("vllm")), "contract_watch", lambda self: None)
    with pytest.raises(UsageError, match="no contract probe for vllm"):
        started("ghost-key-eviction", probe=True)


def test_engines_that_can_be_watched_name_the_log_line() -> None:
    for engine in ENGINES.values():
        if engine.contract_watch() is not None:
            assert "contract-violated" in engine.log_patterns


# ---------------------------------------------------------------- what it reads


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in as it is loaded in an engine; its hooks only wait for modules."""
    boot = ModuleType("mmrepro_boot")
    boot.after_import = lambda name, change: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mmrepro_boot", boot)
    file = reproducer_path("standins") / "contract_probe" / "standin.py"
    spec = importlib.util.spec_from_file_location("contract_probe_under_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("mmrepro_contract", None)


def host(values: Any) -> SimpleNamespace:
    return SimpleNamespace(np=np.array(values))


def runner() -> SimpleNamespace:
    """Two requests, as GPUModelRunner 0.12.0 holds them after _prepare_inputs."""
    table = SimpleNamespace(
        block_size=4,
        block_table=host([[3, 1, 0], [2, 5, 0]]),
        slot_mapping=host([12, 13, 14, 15, 4, 5, 20, 21, 22, 99]),
        compute_slot_mapping=None,
    )
    return SimpleNamespace(
        input_batch=SimpleNamespace(
            req_ids=["a", "b"],
            num_computed_tokens_cpu=np.array([0, 4, 9]),
            block_table=SimpleNamespace(block_tables=[table]),
        ),
        positions=host([0, 1, 2, 3, 4, 5, 4, 5, 6, 77]),
        query_start_loc=host([0, 6, 9, 9]),
        seq_lens=host([6, 7, 0]),
        cache_config=SimpleNamespace(num_gpu_blocks=8),
    )


SCHEDULED = {"a": 6, "b": 3}


def test_a_right_step_of_vllm_breaks_nothing(probe: ModuleType) -> None:
    step = probe.view(runner(), SCHEDULED, 9)
    assert probe.contract.check(step) == []
    assert (step.scheduled, step.block_size, step.num_blocks) == (9, 4, 8)
    assert len(step.slot_mapping) == len(step.positions) == 9
    assert probe.watch.violations == 0


@pytest.mark.parametrize(
    ("buffer", "index", "value", "broken"),
    [
        ("positions", 4, 0, "positions"),
        ("query_start_loc", 1, 5, "cu-seqlens"),
        ("slot_mapping", 0, 8, "slot-owner"),
        ("slot_mapping", 0, 99, "slot-bounds"),
        ("block_table", (0, 1), 0, "block-table"),
        ("block_table", (0, 1), 4, "slot-owner"),
    ],
)
def test_a_wrong_buffer_is_named(
    probe: ModuleType, buffer: str, index: Any, value: int, broken: str
) -> None:
    made = runner()
    table = made.input_batch.block_table.block_tables[0]
    owner = table if hasattr(table, buffer) else made
    getattr(owner, buffer).np[index] = value
    found = probe.contract.check(probe.view(made, SCHEDULED, 9))
    assert broken in [v.invariant for v in found]


def test_wrong_seq_lens_are_told(
    probe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    made = runner()
    made.seq_lens.np[1] = 8
    probe.view(made, SCHEDULED, 9)
    assert (
        "contract violated: lengths: seq_lens are [6, 8], not [6, 7]"
        in capsys.readouterr().err
    )


def test_what_a_release_lacks_is_said_once(
    probe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    made = runner()
    made.positions = object()
    steps = [probe.view(made, SCHEDULED, 9) for _ in range(3)]
    assert steps[0].positions is None
    assert capsys.readouterr().err.count("no host side of positions") == 1


def test_rows_are_counted_by_shape(probe: ModuleType) -> None:
    def shaped(*shape: int) -> SimpleNamespace:
        return SimpleNamespace(shape=shape)

    assert probe.rows_of([shaped(5, 8), shaped(2, 8)]) == (7, 8)
    assert probe.rows_of(shaped(2, 3, 8)) == (6, 8)
    assert probe.rows_of([]) == (0, 0)


def test_counts_are_judged_when_they_arrive(
    probe: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe.Counts, "_poll", lambda self: None)
    counts = probe.Counts()
    on_its_way, there = [-1], [4]
    counts._waiting = [(on_its_way, 3, "step 1"), (there, 4, "step 2")]
    counts.look()
    assert capsys.readouterr().err == "", "one is right, the other not known"
    assert len(counts._waiting) == 1
    on_its_way[0] = 5
    counts.look()
    said = capsys.readouterr().err
    assert said == (
        "contract probe: contract violated: mask-rows: 5 tokens are marked for 3 rows "
        "(step 1)\n"
    )
    assert probe.watch.marked == 2


def test_preempted_and_finished_requests_start_anew(probe: ModuleType) -> None:
    class GPUModelRunner:
        def _prepare_inputs(self, scheduler_output: Any) -> str:
            return "prepared"

        def execute_model(self, scheduler_output: Any) -> str:
            return self._prepare_inputs(scheduler_output)

    module = SimpleNamespace(GPUModelRunner=GPUModelRunner)
    probe.watch_runner(module)
    made: Any = GPUModelRunner()
    made.__dict__.update(runner().__dict__)

    def scheduled(*resumed: str) -> SimpleNamespace:
        return SimpleNamespace(
            num_scheduled_tokens=SCHEDULED,
            total_num_scheduled_tokens=9,
            finished_req_ids=set(),
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
        )

    assert made.execute_model(scheduled()) == "prepared"
    assert probe.watch.violations == 0
    made.execute_model(scheduled("a", "b"))
    assert probe.watch.violations == 0
    made.execute_model(scheduled())  # the same tokens again, and nobody was preempted
    assert probe.watch.violations == 2
    assert probe.watch.steps == 3


def test_shapes_are_checked_before_the_merge(probe: ModuleType) -> None:
    step = probe.contract.StepView(sequences=[], rows=3, width=8, hidden_size=16)
    assert [v.invariant for v in probe.contract.check(step)] == ["embeds-width"]
    assert probe.contract.check(replace(step, width=16)) == []
