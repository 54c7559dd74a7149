"""The arithmetic against the engines' own: what they log, and their own functions on
numbers.

The second runs no server: each engine's interpreter imports its cache code and computes
some hundred made-up cases, at block borders and where it gives up as well."""

import json
import os
import random
import re
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from live import RunOnce
from mmrepro.engines import spec_for
from mmrepro.engines.environments.build import ensure
from mmrepro.kv_budget import (
    VLLM,
    VLLM_CPU,
    Geometry,
    LmdeployPlan,
    VllmCpuPlan,
    VllmPlan,
    block_bytes_of,
    read_model,
)
from mmrepro.scenario.registry import load_scenario

pytestmark = pytest.mark.engine
ORACLES = Path(__file__).parent / "kv_oracle"
CASES = 400
GHOST = "ghost-key-eviction"


def test_vllm_logs_what_is_foretold(run_once: RunOnce, tmp_path: Path) -> None:
    """VLLM_CPU_KVCACHE_SPACE=1, as the adapter sets it; the run is that of the other
    tests."""
    run = run_once(GHOST)
    log = (run.folder / "evidence" / "engine.log").read_text(errors="replace")
    scenario = load_scenario(GHOST)
    model = read_model(scenario.model.write(tmp_path)).geometry
    release = run.document["engine"]["release"]
    size = VLLM_CPU.block_size * model.token_bytes(VLLM)
    plan = VllmCpuPlan(release, size, max_model_len=scenario.max_model_len)
    budget = plan.forward(Decimal(1))
    assert budget.log in log
    logged = re.search(r"num_gpu_blocks is: (\d+)", log)
    assert logged is not None
    assert int(logged[1]) == budget.blocks


def ran(
    engine: str, release: str, script: str, cases: Any, within: float, **env: str
) -> list[str]:
    """The lines that the script prints under the engine's interpreter."""
    done = subprocess.run(
        [ensure(spec_for(engine, release, "cpu")).python, str(ORACLES / script)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=within,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", **env},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def computed(engine: str, release: str, cases: list[dict[str, Any]]) -> list[list[Any]]:
    """What the engine's own functions make of the cases."""
    return json.loads(ran(engine, release, f"{engine}_arithmetic.py", cases, 300)[-1])


@pytest.mark.nightly
@pytest.mark.parametrize("release", ["0.23.0", "0.32.0", "0.33.0"])
def test_vllm_groups_the_layers_of_published_models_as_recorded(
    release: str, tmp_path: Path
) -> None:
    """tests/unit/kv_budget/test_kv_groups.py holds the arithmetic to the same lines."""
    recorded = json.loads(
        (ORACLES.parents[1] / "unit/kv_budget/groups.json").read_text()
    )
    known = [case for case in recorded["cases"] if release in case]
    models = {name: model["config"] for name, model in recorded["models"].items()}
    cases = []
    for case in known:
        options = case["options"]
        args = {"max_num_batched_tokens": options["max_num_batched_tokens"]}
        for ours, theirs in (
            ("prefix_caching", "enable_prefix_caching"),
            ("disable_hybrid_kv_cache_manager", "disable_hybrid_kv_cache_manager"),
        ):
            if ours in options:
                args[theirs] = options[ours]
        if drafts := options.get("num_speculative_tokens"):
            method = {"": "ngram", "mtp": "mtp"}.get(
                options.get("draft", ""), "draft_model"
            )
            args["speculative_config"] = {
                "method": method,
                "num_speculative_tokens": drafts,
            }
        cases.append(
            {
                "config": models[case["model"]],
                "args": args,
                "gib": case["gib"],
                "context": case["context"],
                "tp": options.get("tp", 1),
                "pp": options.get("pp", 1),
                "draft": models.get(options.get("draft", "")),
            }
        )
    own = {"VLLM_CACHE_ROOT": str(tmp_path), "VLLM_LOGGING_LEVEL": "ERROR"}
    lines = [
        json.loads(line)
        for line in ran("vllm", release, "vllm_groups.py", cases, 1500, **own)
        if line.startswith("{")
    ]
    for case, told in zip(known, lines, strict=True):
        theirs = case[release]
        if "error" in theirs:
            assert theirs["error"] in told["error"], case
        else:
            assert told == theirs, case


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.6.4", "0.18.0"])
def test_lmdeploys_own_functions_agree(release: str) -> None:
    chance = random.Random(4)
    cases = [
        {
            "layers": chance.randint(1, 80),
            "kv_heads": chance.choice([1, 2, 3, 8]),
            "head_dim": chance.choice([12, 64, 80, 128, 256]),
            "vocab_size": chance.randint(300, 200_000),
            "max_batches": chance.choice([1, 128, 1024]),
            "block_size": chance.choice([16, 64, 128]),
            "share": chance.randint(1, 999) / 1000,
            "quant_policy": chance.choice([0, 4, 8]),
            "free": int(10 ** chance.uniform(6, 11)),
        }
        for _ in range(CASES)
    ]
    refused = 0
    for case, theirs in zip(cases, computed("lmdeploy", release, cases), strict=True):
        geometry = Geometry(
            case["layers"], case["kv_heads"], case["head_dim"], case["head_dim"]
        )
        size = block_bytes_of(
            geometry,
            release,
            quant_policy=case["quant_policy"],
            block_size=case["block_size"],
        )
        plan = LmdeployPlan(
            release,
            case["free"],
            size,
            case["block_size"],
            vocab_size=case["vocab_size"],
            max_batches=case["max_batches"],
        )
        ours = plan.forward(Decimal(str(case["share"])))
        if len(theirs) == 2:
            refused += 1
            assert theirs == [size, ours.refusal], case
            continue
        prefill = plan.reserve(case["share"])[1]
        assert theirs[:3] == [size, ours.blocks, prefill], case
        assert max(theirs[3], 0) == ours.max_tokens, case
    assert 0 < refused < CASES


def test_vllms_own_functions_agree() -> None:
    release = "0.23.0"
    chance = random.Random(5)
    cases = []
    for _ in range(CASES):
        total = int(10 ** chance.uniform(8, 11.3))
        cases.append(
            {
                "total": total,
                "free": total * chance.randint(60, 100) // 100,
                "non_kv": total * chance.randint(0, 60) // 100,
                "layers": chance.randint(1, 80),
                "kv_heads": chance.choice([1, 2, 3, 8]),
                "head_dim": chance.choice([64, 80, 128]),
                "block_size": chance.choice([16, 32, 128]),
                "fp8": chance.random() < 0.3,
                "share": chance.randint(1, 1000) / 1000,
            }
        )
    refused = 0
    for case, theirs in zip(cases, computed("vllm", release, cases), strict=True):
        model = Geometry(
            case["layers"], case["kv_heads"], case["head_dim"], case["head_dim"]
        )
        token = model.token_bytes(VLLM, kv_dtype="fp8" if case["fp8"] else "auto")
        size = case["block_size"] * token
        ours = VllmPlan(
            release,
            size,
            case["block_size"],
            total=case["total"],
            free=case["free"],
            non_kv=case["non_kv"],
        ).forward(Decimal(str(case["share"])))
        if isinstance(theirs[0], str):
            refused += 1
            assert "Free memory on device" in theirs[0], case
            assert "Free memory on device" in ours.refusal, case
        else:
            assert theirs[1:] == [size, ours.blocks], case
            assert theirs[0] - case["non_kv"] == ours.pool_bytes, case
    assert 0 < refused < CASES
