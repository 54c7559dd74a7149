"""Layers of several kinds: held against what vLLM's own functions made of the same
models.

``groups.json`` has the published shapes with their source, the cases, and what vLLM's
grouping and sizing answered for them (``tests/engine/kv_oracle/vllm_groups.py`` asks
it; nightly again)."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.kv_budget.answer import answer
from mmrepro.kv_budget.options import KvBudgetCommand, MemoryDevice

RECORDED = json.loads((Path(__file__).parent / "groups.json").read_text())
CASES = [
    (release, case)
    for case in RECORDED["cases"]
    for release in ("0.23.0", "0.32.0", "0.33.0")
    if release in case
]


def asked(folder: Path, model: str, **more: Any) -> KvBudgetCommand:
    def written(name: str) -> Path:
        file = folder / f"{name}.json"
        file.write_text(json.dumps(RECORDED["models"][name]["config"]))
        return file

    if (draft := more.get("draft", "")) and draft != "mtp":
        more["draft"] = str(written(draft))
    return KvBudgetCommand(engine="vllm", model=written(model), **more)


@pytest.mark.parametrize(
    ("release", "case"),
    CASES,
    ids=[f"{r}-{n}-{c['model']}" for n, (r, c) in enumerate(CASES)],
)
def test_vllm_counts_the_same(
    release: str, case: dict[str, Any], tmp_path: Path
) -> None:
    options = dict(case.get("options", {}))
    got = answer(
        asked(
            tmp_path,
            case["model"],
            release=release,
            device=MemoryDevice.CPU,
            context=case["context"],
            kv_space=Decimal(case["gib"]),
            **options,
        )
    )
    budget = got.here.budget
    assert budget is not None
    theirs = case[release]
    if "error" in theirs:
        assert theirs["error"] in budget.refusal
        return
    ours = {
        "blocks": budget.blocks,
        "block_size": budget.block_size,
        "concurrency": round(budget.concurrency or 0, 6),
    }
    assert ours == theirs
    tokens = int(budget.blocks / _pages(theirs, budget.blocks) * case["context"])
    assert f"KV cache size: {tokens:,} tokens" in budget.log


def _pages(theirs: dict[str, Any], blocks: int) -> int:
    """Blocks that a request of the whole context takes."""
    return round(blocks / theirs["concurrency"])


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (
            "gpt-oss-20b",
            {"release": "0.27.0"},
            "0.27.0 groups layers of several kinds was not",
        ),
        (
            "gpt-oss-20b",
            {"release": "0.20.0"},
            "was not read here; known are 0.22.0 to 0.25.0",
        ),
        (
            "Qwen3-Next-80B-A3B",
            {"disable_hybrid_kv_cache_manager": True},
            "a model with states needs a KV connector that supports several",
        ),
        (
            "gpt-oss-20b",
            {"draft": "mtp", "pp": 2},
            "spread over pipeline stages was not read",
        ),
        ("gpt-oss-20b", {"tp": 3}, "cannot divide 8 KV heads among 3 devices"),
        (
            "gpt-oss-20b",
            {"kv_dtype": "nvfp4"},
            "No formula here for vLLM's KV cache type",
        ),
    ],
)
def test_what_cannot_be_computed_says_so(
    model: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    numbers = {
        "total": 80 << 30,
        "runtime": 20 << 30,
        "gpu_memory_utilization": Decimal("0.9"),
    }
    with pytest.raises(UsageError, match=says):
        answer(asked(tmp_path, model, **{**numbers, **options}))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "deepseek_v32"}, "an index beside its latents"),
        ({"model_type": "kimi_linear"}, "latents beside the states"),
        (
            {"model_type": "new", "mamba_d_state": 16},
            "new has states in layers that are not known",
        ),
        (
            {"model_type": "new", "layer_types": ["new_attention"] * 24},
            "kinds that are not known",
        ),
        (
            {"model_type": "new", "layer_types": ["mamba"] * 24},
            "a size that is not known",
        ),
        ({"model_type": "gemma4", "global_head_dim": 512}, "heads of two sizes"),
        ({"layer_types": ["full_attention"] * 23}, "kinds that are not known"),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_layers_without_a_formula_are_refused(
    engine: str, fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    config = {**RECORDED["models"]["gpt-oss-20b"]["config"], **fields}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    numbers: dict[str, Any] = {
        "total": 80 << 30,
        "runtime": 0,
        "free": 60 << 30,
        "need": 100,
    }
    with pytest.raises(UsageError, match=says):
        answer(KvBudgetCommand(engine=engine, model=file, **numbers))


def test_stages_of_a_plain_model_need_no_groups(tmp_path: Path) -> None:
    """Llama 3.1 8B: 32 layers are 11, 11 and 10 on three stages, in any release."""
    got = answer(
        asked(
            tmp_path,
            "Llama-3.1-8B",
            release="0.20.0",
            pp=3,
            context=8192,
            gpu_memory_utilization=Decimal("0.9"),
            **GPU,
        )
    )
    assert got.plan.bytes_per_block == 11 * 2 * 8 * 128 * 2 * 16


# ------------------------------------------------------------------ backward

GPU = {"total": 80 << 30, "runtime": 20 << 30}


def test_many_requests_at_once_need_the_sum_of_all_groups(tmp_path: Path) -> None:
    """gpt-oss-20b: of a window of 128 a request keeps the step's tokens and a block
    more."""
    need = {
        "need": 30_000,
        "requests": 10,
        "context": 32_768,
        "max_num_batched_tokens": 2048,
    }
    got = answer(asked(tmp_path, "gpt-oss-20b", release="0.23.0", **GPU, **need))
    least = got.here.smallest
    assert least is not None
    assert least.setting is not None
    assert least.below is not None
    full, window = -(-30_000 // 16), -(-(127 + 2048) // 16) + 1
    assert least.blocks == 10 * (full + window) + 1
    assert least.bytes == least.blocks * 12 * 2 * 8 * 64 * 2 * 16
    assert least.setting.blocks >= least.blocks > least.below.blocks
    assert got.document()["need"]["requests"] == 10  # type: ignore[index]


def test_two_batches_in_flight_count_on_a_gpu(tmp_path: Path) -> None:
    """0.32.0 counts the tokens of each; a CPU has one at a time."""
    at_once = [
        answer(
            asked(
                tmp_path,
                "gpt-oss-20b",
                release=release,
                context=65_536,
                gpu_memory_utilization=Decimal("0.9"),
                max_num_batched_tokens=8192,
                **GPU,
            )
        ).here.budget.concurrency  # type: ignore[union-attr]
        for release in ("0.23.0", "0.32.0")
    ]
    full, window = 65_536 // 16, [-(-(127 + step * 8192) // 16) + 1 for step in (1, 2)]
    blocks = (-(-(80 << 30) * 9 // 10) - (20 << 30)) // (12 * 2 * 8 * 64 * 2 * 16)
    assert at_once == [pytest.approx(blocks / (full + w)) for w in window]


def test_a_drafter_is_a_layer_more_and_a_state_more_for_each_draft(
    tmp_path: Path,
) -> None:
    common = {"context": 32_768, "kv_space": Decimal(16), "prefix_caching": True}
    model = "Qwen3-Next-80B-A3B"
    plain = answer(asked(tmp_path, model, **common)).document()["groups"]
    more = {"num_speculative_tokens": 2, "draft": "mtp"}
    drafting = answer(asked(tmp_path, model, **common, **more))
    layers = [
        [(g["kind"], g["layers"]) for g in groups]  # type: ignore[index, union-attr]
        for groups in (plain, drafting.document()["groups"])
    ]
    assert layers[0] == [("state", "12")] * 3 + [("full", "12")]
    assert layers[1] == [("state", "12")] * 3 + [("full", "13")]
    budget = drafting.here.budget
    assert budget is not None
    assert budget.concurrency is not None
    pages = round(budget.blocks / budget.concurrency)
    assert pages == 3 * (2 + 2) + -(-32_768 // budget.block_size)


# ------------------------------------------------------------------ SGLang


def sglang(folder: Path, model: str, **more: Any) -> int:
    file = folder / "config.json"
    file.write_text(json.dumps(RECORDED["models"][model]["config"]))
    command = {"engine": "sglang", "total": 80 << 30, "free": 60 << 30, **more}
    got = answer(
        KvBudgetCommand(model=file, mem_fraction_static=Decimal("0.9"), **command)
    )
    assert got.here.budget is not None
    return int(got.here.budget.log.partition("=")[2])


REST = 60 - 80 * (1 - 0.9)
"""GiB."""


def test_sglang_keeps_windows_in_a_pool_of_their_own_where_it_knows_the_model(
    tmp_path: Path,
) -> None:
    token = 2 * 8 * 64 * 2
    cell = 12 * token + 0.8 * 12 * token
    assert sglang(tmp_path, "gpt-oss-20b") == int(REST * (1 << 30)) // cell
    half = sglang(tmp_path, "gpt-oss-20b", swa_full_tokens_ratio=Decimal("0.5"))
    assert half == int(REST * (1 << 30)) // (18 * token)
    assert sglang(tmp_path, "gemma-3-27b") == int(REST * (1 << 30)) // (
        62 * 2 * 16 * 128 * 2
    )
    with pytest.raises(
        UsageError, match=r"0\.5\.6 sizes pools of windows or states was not read"
    ):
        sglang(tmp_path, "gpt-oss-20b", release="0.5.6")


def test_sglang_takes_slots_for_states_off_first(tmp_path: Path) -> None:
    """Qwen3-Next: 36 states of a convolution in 16 bits and cells in 32."""
    one = 36 * ((2 * 16 * 128 + 32 * 128) * 3 * 2 + 32 * 128 * 128 * 4)
    share = REST * 0.9 / 1.9 * (1 << 30)
    left = REST - (int((share - one) // one) + 1) * one / (1 << 30)
    assert sglang(tmp_path, "Qwen3-Next-80B-A3B") == int(left * (1 << 30)) // (
        12 * 2 * 2 * 256 * 2
    )
