"""The real LMDeploy on a CPU: the opaque error, its grades by release, the crash, the
numbers."""

import json
import subprocess

import pytest
from live import RunOnce
from mmrepro.base.machine.files import cache_root
from mmrepro.base.machine.host import child_environment
from mmrepro.engines import LaunchRequest, get_engine
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.models.tiny import TinyText
from mmrepro.reproducers import reproducer_path

pytestmark = pytest.mark.engine

BUDGET = "undersized-kv-budget"
GROWTH = "kv-growth-crash"


@pytest.mark.slow
def test_the_opaque_error_with_the_reports_numbers(run_once: RunOnce) -> None:
    run = run_once(BUDGET)
    assert (run.outcome, run.exit_code) == ("reproduced", 0), run.why
    limit = run.condition("limit-from-blocks")["observed"]
    for number in ("21 blocks", "1344", "3446", "107 blocks", "6848"):
        assert number in limit
    assert "INPUT_LENGTH_ERROR" in run.condition("input-length-error")["observed"]
    statuses = {r["label"]: r["status"] for r in run.requests("the prompt")}
    assert statuses == {"the prompt": 500, "the prompt, streamed": 200}
    assert "consistent with it, no more" in run.claim("gpu-mem")["observed"]
    by_log = ("blocks-21", "limit-1344", "blocks-107", "limit-6848")
    for name in (
        *by_log,
        "block-bytes",
        "runtime",
        "silence",
        "frames",
        "status-to-error",
    ):
        assert run.claim(name)["status"] == "confirmed", run.claim(name)
    assert run.claim("blocks-24")["status"] == "refuted"
    assert run.document["fidelity"] == "cpu-stand-in"
    assert run.document["left_behind"] == []


@pytest.mark.slow
def test_the_setting_that_the_arithmetic_foretells_works(run_once: RunOnce) -> None:
    run = run_once(BUDGET, "--mitigation", "kv-budget")
    assert (run.outcome, run.exit_code) == ("not-reproduced", 0), run.why
    assert run.claim("prediction")["status"] == "confirmed"


@pytest.mark.slow
def test_the_newest_release_explains(run_once: RunOnce) -> None:
    run = run_once(BUDGET, "--release", "0.18.0")
    assert (run.outcome, run.exit_code) == ("not-reproduced", 0), run.why
    said = run.condition("opaque-500")["observed"]
    assert "HTTP 400" in said
    assert "explained" in said
    assert "not the cause, the KV budget" in said
    assert "21 blocks" in run.condition("limit-from-blocks")["observed"]


@pytest.mark.slow
def test_an_answer_that_outgrows_the_cache_ends_the_loop(run_once: RunOnce) -> None:
    run = run_once(GROWTH)
    assert (run.outcome, run.exit_code) == ("reproduced", 0), run.why
    assert [r["status"] for r in run.requests("short after")] == [500, 500, 500]


@pytest.mark.slow
def test_the_newest_release_cuts_the_answer(run_once: RunOnce) -> None:
    run = run_once(GROWTH, "--release", "0.18.0")
    assert (run.outcome, run.exit_code) == ("not-reproduced", 0), run.why
    assert run.claim("truncates")["status"] == "confirmed"


@pytest.mark.parametrize(
    "release", ["0.6.4", pytest.param("0.18.0", marks=pytest.mark.slow)]
)
def test_greedy_tokens_are_those_of_transformers(release: str) -> None:
    engine = get_engine("lmdeploy")
    environment = ensure(engine.environment_spec(release, "cpu"))
    model = TinyText().write(cache_root() / "models")
    plan = engine.plan(LaunchRequest(environment, model, 1, 2048, ()))
    done = subprocess.run(
        [
            str(environment.python),
            str(reproducer_path("lmdeploy_greedy.py")),
            str(model),
        ],
        env=child_environment(plan.env),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    assert facts["tokens"] == 48
    assert facts["different_answers"] == 4
    # Both round to bfloat16 at other places; where two logits are next to each other,
    # either wins.
    assert facts["most_behind"] <= 2, facts
    assert facts["equal"] >= 46, facts
