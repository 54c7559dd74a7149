"""vLLM's and SGLang's KV arithmetic, forward, backward and at the borders of a block."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.errors import UsageError
from mmrepro.kv_budget import Geometry, MemoryPlan, smallest, steps
from mmrepro.kv_budget.sglang import SglangPlan, token_bytes_of
from mmrepro.kv_budget.vllm import VllmCpuPlan, VllmPlan, block_bytes_of

GIB = 1 << 30
LLAMA_8B = Geometry(layers=32, kv_heads=8, k_dim=128, v_dim=128)
DEEPSEEK = Geometry(layers=61, kv_heads=1, k_dim=576, v_dim=0, mla=True)


def test_bytes_of_a_vllm_block() -> None:
    assert block_bytes_of(LLAMA_8B) == 16 * 131072
    assert block_bytes_of(LLAMA_8B, kv_dtype="fp8") == 16 * 65536
    assert block_bytes_of(LLAMA_8B, tp=4) == 16 * 131072 // 4
    assert block_bytes_of(LLAMA_8B, tp=32) == 16 * 131072 // 8, "each device keeps one head"
    assert block_bytes_of(DEEPSEEK, tp=8) == 16 * 61 * 576 * 2


def test_bytes_of_a_sglang_token() -> None:
    assert token_bytes_of(LLAMA_8B) == 131072
    assert token_bytes_of(LLAMA_8B, kv_dtype="fp8_e5m2", tp=16) == 131072 // 16
    assert token_bytes_of(DEEPSEEK) == 61 * 576 * 2


@pytest.mark.parametrize("bytes_of", [block_bytes_of, token_bytes_of])
def test_what_has_no_formula_is_refused(bytes_of: object) -> None:
    assert callable(bytes_of)
    with pytest.raises(UsageError, match="No formula here"):
        bytes_of(LLAMA_8B, kv_dtype="nvfp4")
    with pytest.raises(UsageError, match="several kinds"):
        bytes_of(Geometry(layers=2, kv_heads=1, k_dim=8, v_dim=8, mixed=True))


def vllm(release: str = "0.32.0", **changed: int) -> VllmPlan:
    numbers = {"total": 80 * GIB, "free": 80 * GIB, "non_kv": 20 * GIB, "bytes_per_block": 1 << 21}
    return VllmPlan(release, **{**numbers, **changed})


def test_vllm_forward() -> None:
    budget = vllm().forward(Decimal("0.5"))
    assert (budget.pool_bytes, budget.blocks) == (20 * GIB, 10240)
    assert budget.max_tokens == 10239 * 16, "the null block is nobody's"
    assert budget.log == "GPU KV cache size: 163,840 tokens"


def test_vllm_rounds_its_budget_up_since_0_14_0() -> None:
    """7 x 0.3 is 2.1 bytes of budget: 3 since 0.14.0, 2 before."""
    tiny = {"total": 7, "free": 7, "non_kv": 0, "bytes_per_block": 1}
    assert vllm("0.14.0", **tiny).forward(Decimal("0.3")).blocks == 3
    assert vllm("0.13.0", **tiny).forward(Decimal("0.3")).blocks == 2


@pytest.mark.parametrize(
    ("changed", "setting", "says"),
    [
        ({"free": 60 * GIB}, "0.9", "Free memory on device"),
        ({"non_kv": 75 * GIB}, "0.9", "No available memory for the cache blocks"),
        ({"max_model_len": 10240 * 16 + 1}, "0.5", "max seq len"),
    ],
)
def test_vllm_does_not_start(changed: dict[str, int], setting: str, says: str) -> None:
    budget = vllm(**changed).forward(Decimal(setting))
    assert says in budget.refusal
    assert budget.max_tokens == 0


@pytest.mark.parametrize("release", ["0.23.0", "0.28.0"])
def test_vllm_starts_with_a_context_that_its_null_block_takes(release: str) -> None:
    """10240 blocks hold the context on paper; one of them is never given out."""
    just = vllm(release, max_model_len=10240 * 16).forward(Decimal("0.5"))
    assert just.starts
    assert just.max_tokens == 10239 * 16
    assert any("null block" in note for note in just.notes)
    assert vllm(release, max_model_len=10239 * 16).forward(Decimal("0.5")).notes == ()


def test_vllm_counts_the_null_block_since_0_29_0() -> None:
    assert "max seq len" in vllm("0.29.0", max_model_len=10240 * 16).forward(Decimal("0.5")).refusal
    whole = vllm("0.29.0", max_model_len=10239 * 16).forward(Decimal("0.5"))
    assert (whole.starts, whole.max_tokens, whole.limited_by) == (True, 10239 * 16 - 1, "context")


def test_vllm_logs_tokens_by_the_context_since_0_22_0() -> None:
    """A context that ends within a block: the log counts only what requests of that length use."""
    assert vllm("0.20.0", max_model_len=24).forward(Decimal("0.5")).log.endswith("163,840 tokens")
    assert vllm("0.22.0", max_model_len=24).forward(Decimal("0.5")).log.endswith("122,880 tokens")


def test_vllm_on_a_cpu() -> None:
    plan = VllmCpuPlan("0.23.0", bytes_per_block=128 * 2048)
    assert plan.forward(Decimal(1)).blocks == 4096
    assert smallest(plan, 4096 * 128).setting == plan.forward(Decimal(2))
    assert not plan.takes(Decimal("0.5"))


def sglang(release: str = "0.5.23", **changed: int) -> SglangPlan:
    numbers = {"before": 80 * GIB, "free": 64 * GIB, "bytes_per_token": 131072}
    return SglangPlan(release, **{**numbers, **changed})


@pytest.mark.parametrize("release", ["0.5.6", "0.5.17", "0.5.23"])
def test_sglang_forward(release: str) -> None:
    budget = sglang(release).forward(Decimal("0.75"))
    assert (budget.pool_bytes, budget.blocks) == (44 * GIB, 360448)
    assert budget.max_tokens == 360448 - 7
    assert budget.log == "max_total_num_tokens=360448"


def test_sglang_pages_context_and_images() -> None:
    assert sglang(page_size=64, bytes_per_token=1_000_003).forward(Decimal("0.75")).blocks == 738
    capped = sglang(context=32768).forward(Decimal("0.75"))
    assert (capped.max_tokens, capped.limited_by) == (32768 - 7, "context")
    assert sglang(image_reserve=GIB).forward(Decimal("0.75")).pool_bytes == 43 * GIB
    assert sglang("0.5.17", image_reserve=GIB).forward(Decimal("0.75")).pool_bytes == 44 * GIB


@pytest.mark.parametrize(
    ("release", "says"), [("0.5.6", "Not enough memory"), ("0.5.17", "Loaded weights leave no")]
)
def test_sglang_does_not_start(release: str, says: str) -> None:
    budget = sglang(release).forward(Decimal("0.1"))
    assert says in budget.refusal
    assert budget.max_tokens == 0


@pytest.mark.parametrize("make", [lambda: vllm("0.10.0"), lambda: sglang("0.5.5")])
def test_releases_before_the_first_known(make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match="is not known here"):
        make()


vllm_plans = st.builds(
    lambda total, share, used, **rest: VllmPlan(
        total=total, free=total * share // 100, non_kv=total * used // 100, **rest
    ),
    total=st.integers(1 << 20, 1 << 38),
    share=st.integers(50, 100),
    used=st.integers(0, 90),
    release=st.sampled_from(["0.11.0", "0.23.0", "0.32.0"]),
    bytes_per_block=st.integers(1 << 8, 1 << 26),
    tokens_per_block=st.sampled_from([16, 32, 128]),
    max_model_len=st.sampled_from([0, 4096, 131072]),
)
sglang_plans = st.builds(
    lambda before, used, **rest: SglangPlan(
        before=before, free=before * (100 - used) // 100, **rest
    ),
    before=st.integers(1 << 20, 1 << 38),
    used=st.integers(0, 90),
    release=st.sampled_from(["0.5.6", "0.5.17", "0.5.23"]),
    bytes_per_token=st.integers(1 << 6, 1 << 22),
    page_size=st.sampled_from([1, 16, 64]),
    context=st.sampled_from([0, 4096, 131072]),
    image_reserve=st.sampled_from([0, 1 << 24]),
)


@settings(max_examples=80)
@given(st.one_of(vllm_plans, sglang_plans), st.integers(1, 500_000))
def test_back_and_forth(plan: MemoryPlan, tokens: int) -> None:
    answer = smallest(plan, tokens)
    every = [plan.forward(step) for step in steps(plan, 2)]
    assert answer.lowest == next((b for b in every if b.holds(tokens)), None)
    if answer.setting is None:
        assert not every[-1].holds(tokens)
        return
    at = every.index(answer.setting)
    assert all(b.holds(tokens) for b in every[at:])
    assert answer.setting.blocks >= answer.blocks
    if at:
        assert not every[at - 1].holds(tokens)


@given(sglang_plans, st.integers(1, 99))
def test_sglang_is_within_a_token_of_exact_arithmetic(plan: SglangPlan, percent: int) -> None:
    """GiB as floating-point numbers: never more than one token off, before pages are cut."""
    exact = plan.free - plan.before * (1 - Fraction(percent, 100))
    if plan.release == "0.5.23":
        exact -= plan.image_reserve
    if exact <= plan.bytes_per_token * 2:
        return
    got = plan.forward(Decimal(percent) / 100).blocks * plan.page_size
    want = exact / plan.bytes_per_token
    assert want - plan.page_size - 1 <= got <= want + 1


@given(vllm_plans, st.integers(1, 99))
def test_more_utilisation_is_never_fewer_blocks(plan: VllmPlan, percent: int) -> None:
    one, more = (plan.forward(Decimal(p) / 100) for p in (percent, percent + 1))
    if more.starts and one.starts:
        assert more.blocks >= one.blocks
        assert more.max_tokens >= one.max_tokens


@given(vllm_plans, st.integers(1, 1 << 20))
def test_the_blocks_that_a_prompt_needs_are_the_fewest(plan: VllmPlan, tokens: int) -> None:
    def with_blocks(count: int) -> VllmPlan:
        size = count * plan.bytes_per_block
        return VllmPlan(plan.release, plan.bytes_per_block, plan.tokens_per_block, 0, size, size)

    needed = plan.blocks_for(tokens)
    assert with_blocks(needed).forward(Decimal(1)).holds(tokens)
    assert not with_blocks(needed - 1).forward(Decimal(1)).holds(tokens)
