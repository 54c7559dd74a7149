"""Every fault of minivllm: the four borrowed ones by ``run``, all ten by
``diagnose``."""

from pathlib import Path

import pytest
from grids import grid
from live import RunOnce
from live_server import ask, diagnose, serving, trigger
from mmrepro.scenario.registry import load_scenario

PREFILL = "chunked-mm-prefill --variant"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.meanwhile(f"{PREFILL} async-race"),
]

NAME = "borrowed-faults"
BORROWED = load_scenario(NAME).variants
FAULTS = {
    s.variant: s for s in (*load_scenario("mm-prefill-contract").variants, *BORROWED)
}
ON_PAPER = {"ghost-key-lru", "pad-value-key", "kv-budget"}
"""Those that show without a model."""
SILENT = {"pad-value-key"}


@pytest.mark.parametrize(
    "variant", grid([v.variant for v in BORROWED], always=["kv-budget"])
)
def test_a_borrowed_fault_reproduces(run_once: RunOnce, variant: str) -> None:
    broken = run_once(NAME, "--variant", variant, "--device", "cpu")
    assert (broken.outcome, broken.exit_code) == ("reproduced", 0), broken.why
    assert broken.claim("root-cause")["status"] == "confirmed"
    assert broken.claim("original")["status"] == "not-tested"
    assert broken.document["fidelity"] == "teaching-engine"
    assert broken.document["left_behind"] == []


@pytest.mark.parametrize(
    "variant", grid([v.variant for v in BORROWED], always=["ghost-key-lru"])
)
def test_its_fix_cures_it(run_once: RunOnce, variant: str) -> None:
    fixed = run_once(
        NAME, "--variant", variant, "--device", "cpu", "--mitigation", "fix"
    )
    assert (fixed.outcome, fixed.exit_code) == ("not-reproduced", 0), fixed.why
    assert fixed.claim("fixed")["status"] == "confirmed"


@pytest.mark.parametrize("variant", grid(FAULTS, always=["kv-budget", "pad-value-key"]))
def test_diagnose_names_each_fault_and_no_other(variant: str, tmp_path: Path) -> None:
    scenario = FAULTS[variant]
    paper = ("--paper",) if scenario.variant in ON_PAPER else ()
    arguments = (*scenario.server_args, *paper)
    with serving(
        "minivllm", "0.1", scenario.model, tmp_path / "server", *arguments
    ) as server:
        ask(server.url)
        before = (
            diagnose(server.url, cwd=tmp_path)
            if scenario.variant == "kv-budget"
            else None
        )
        trigger(scenario, server.url, tmp_path)
        told = diagnose(server.url, "--deadline", "3", cwd=tmp_path)
    if before:
        assert (before.state, before.found) == ("healthy", [])
    own, *others = told.document["matches"]
    assert (own["scenario"], own["variant"]) == (scenario.name, scenario.variant), (
        told.document
    )
    assert {m["fit"] for m in others} == {"not-this"}
    classes = {c["name"] for c in told.document["classes"]}
    assert "killed-by-input" not in classes, "nothing ties an assertion to a request"
    if scenario.variant == "kv-budget":
        assert told.document["cause"]["class"] == "engine-defect"
    if scenario.variant in SILENT:
        assert (own["fit"], told.state, told.exit_code) == ("exposed", "healthy", 0)
    else:
        assert (own["fit"], told.exit_code) == ("match", 1), own
