"""The engines' KV arithmetic against the bug report, the engines' own lines and its own
inverse."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.base.units import GIB, MIB
from mmrepro.kv_budget import (
    LMDEPLOY,
    SGLANG,
    VLLM,
    Geometry,
    LmdeployPlan,
    MemoryPlan,
    SglangPlan,
    VllmCpuPlan,
    VllmPlan,
    block_bytes_of,
    block_size_of,
    smallest,
    steps,
)
from mmrepro.kv_budget.eras import BudgetEngine
from mmrepro.kv_budget.layers import WINDOW, _named

# ------------------------------------------------------------------ LMDeploy

INTERNVL2_8B = Geometry(layers=32, kv_heads=8, k_dim=128, v_dim=128, vocab_size=92553)
RELEASES = [era.since for era in LMDEPLOY.eras]


def reported(release: str = "0.6.4", **changed: int) -> LmdeployPlan:
    """The bug report's server: 6784 MiB free, 5061 MiB for the prefill, 8 MiB a
    block."""
    numbers = {"free": 6784 * MIB, "runtime": 5061 * MIB, "bytes_per_block": 8388608}
    return LmdeployPlan(release, **{**numbers, **changed})


@pytest.mark.parametrize(
    ("setting", "blocks", "tokens"),
    [("0.1", 21, 1344), ("0.5", 107, 6848), ("0.8", 172, 11008)],
)
def test_the_numbers_of_the_report(setting: str, blocks: int, tokens: int) -> None:
    budget = reported().forward(Decimal(setting))
    assert (budget.blocks, budget.max_tokens, budget.refusal) == (blocks, tokens, "")


@pytest.mark.parametrize(
    ("release", "tokens"),
    [
        ("0.6.5", 1344),
        ("0.9.1", 1344),
        ("0.9.2", 1280),
        ("0.10.2", 1280),
        ("0.11.0", 1280),
        ("0.11.1", 1216),
        ("0.18.0", 1216),
        ("1.0.0", 1216),
    ],
)
def test_later_releases_keep_blocks_back(release: str, tokens: int) -> None:
    assert reported(release).forward(Decimal("0.1")).max_tokens == tokens


def test_092_takes_its_block_off_the_context_as_well() -> None:
    """Seen by its witness: 1280 tokens of 21 blocks (a run of kv-growth-crash)."""
    for context, tokens, by in (
        (1343, 1279, "context"),
        (1344, 1280, "kv"),
        (0, 1280, "kv"),
    ):
        budget = reported("0.9.2", session_len=context).forward(Decimal("0.1"))
        assert (budget.max_tokens, budget.limited_by) == (tokens, by)
    assert (
        reported("0.10.0", session_len=1279).forward(Decimal("0.1")).max_tokens == 1279
    )


def test_bytes_of_a_block() -> None:
    assert block_bytes_of(INTERNVL2_8B) == 8388608
    # 64 tokens x 8 heads x (128 + a scale and a zero of 2 bytes each) x 2 x 32 layers
    assert block_bytes_of(INTERNVL2_8B, quant_policy=8) == 64 * 8 * (128 + 4) * 2 * 32
    assert block_bytes_of(INTERNVL2_8B, quant_policy=4) == 64 * 8 * (64 + 4) * 2 * 32
    assert block_bytes_of(INTERNVL2_8B, "0.18.0", quant_policy=16) == 8388608 // 2
    assert block_bytes_of(INTERNVL2_8B, "0.13.0", quant_policy=42) == 64 * 8 * 32 * (
        64 + 32 + 6
    )
    assert block_bytes_of(INTERNVL2_8B, tp=4) == 8388608 // 4
    assert block_bytes_of(INTERNVL2_8B, "0.7.0", tp=16) == 8388608 // 8


def test_blocks_are_padded_since_0_11_1() -> None:
    odd = Geometry(layers=3, kv_heads=1, k_dim=3, v_dim=3)
    assert block_bytes_of(odd, "0.11.0", block_size=16) == 3 * 2 * 96
    assert block_bytes_of(odd, "0.11.1", block_size=16) == 3 * 2 * 256


def test_latent_attention_keeps_no_values_and_gets_small_blocks() -> None:
    deepseek = Geometry(layers=27, kv_heads=1, k_dim=576, v_dim=0, mla=True)
    assert block_size_of(deepseek) == 32
    assert block_bytes_of(deepseek, tp=8) == 27 * 32 * 576 * 2


def test_old_releases_ignore_head_dim() -> None:
    model = Geometry(layers=2, kv_heads=2, k_dim=128, v_dim=128, plain_head_dim=32)
    assert block_bytes_of(model, "0.6.4") * 4 == block_bytes_of(model, "0.7.0")
    gemma = Geometry(
        layers=2,
        kv_heads=2,
        k_dim=128,
        v_dim=128,
        plain_head_dim=32,
        model_type="gemma",
    )
    assert block_bytes_of(gemma, "0.6.4") == block_bytes_of(gemma, "0.7.0")


@pytest.mark.parametrize(
    ("release", "options", "says"),
    [
        ("0.6.4", {"tp": 16}, "cannot divide 8 KV heads among 16"),
        ("0.18.0", {"tp": 3}, "cannot divide 8 KV heads among 3"),
        ("0.6.4", {"quant_policy": 16}, "since 0.14.0, not in 0.6.4"),
        ("0.18.0", {"quant_policy": 5}, "has no KV quantisation 5"),
    ],
)
def test_what_lmdeploy_refuses(
    release: str, options: dict[str, int], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        block_bytes_of(INTERNVL2_8B, release, **options)


def test_a_release_before_the_first_known() -> None:
    with pytest.raises(UsageError, match=r"starts with 0\.6\.4"):
        LMDEPLOY.era("0.5.0")


def test_lmdeploys_own_reserve() -> None:
    """8192 tokens x 92553 words x 7 bytes: the report's "5061 MB runtime"."""
    plan = LmdeployPlan("0.6.4", 6784 * MIB, 8388608, vocab_size=92553)
    budget = plan.forward(Decimal("0.1"))
    assert budget.reserve_bytes == 8192 * 92553 * 7
    assert budget.reserve_bytes // MIB == 5061
    assert (budget.blocks, budget.notes) == (21, ())


def test_the_report_to_the_byte() -> None:
    """Its 903 548 928 bytes at 0.5 follow from LMDeploy's rule and 6784.875 MiB, which
    it calls 6784 MB; at 0.1 there are 21 blocks, and nothing near makes 24 of them."""
    free = 6784 * MIB + 7 * MIB // 8
    plan = LmdeployPlan("0.6.4", free, 8388608, vocab_size=92553)
    half = plan.forward(Decimal("0.5"))
    assert (half.pool_bytes, half.blocks, half.max_tokens) == (903_548_928, 107, 6848)
    tenth = plan.forward(Decimal("0.1"))
    assert (free // MIB, tenth.blocks, tenth.max_tokens) == (6784, 21, 1344)


def ruled_plan(release: str, blocks: int) -> LmdeployPlan:
    """One word, one batch: at 0.5 exactly so many blocks are left of the first
    reserve."""
    each, batches = LMDEPLOY.era(release).reserve
    reserve = (8192 + batches) * each
    return LmdeployPlan(
        release, reserve + blocks * 2 * 100, 100, vocab_size=1, max_batches=1
    )


def test_the_reserve_is_halved_below_16_blocks_only() -> None:
    for release in RELEASES:
        enough, scarce = (
            ruled_plan(release, n).forward(Decimal("0.5")) for n in (16, 15)
        )
        assert (enough.blocks, enough.notes) == (16, ())
        assert scarce.notes, release
        assert scarce.blocks > 15


def test_the_later_reserve_counts_two_batches() -> None:
    plan = LmdeployPlan(
        "0.10.0", 6784 * MIB, 8388608, vocab_size=92553, max_batches=128
    )
    assert plan.forward(Decimal("0.5")).reserve_bytes == (8192 + 256) * 92553 * 2


def test_newer_releases_give_up_where_older_ones_halve() -> None:
    assert not ruled_plan("0.13.0", 2).forward(Decimal("0.5")).starts
    assert ruled_plan("0.13.0", 3).forward(Decimal("0.5")).starts
    assert ruled_plan("0.12.3", 2).forward(Decimal("0.5")).starts


def test_a_smaller_setting_can_hold_more() -> None:
    """Below 16 blocks LMDeploy halves its prefill batch: 0.07 then holds more than
    0.1."""
    plan = LmdeployPlan("0.6.4", 6784 * MIB, 8388608, vocab_size=92553)
    scarce = plan.forward(Decimal("0.07"))
    assert (scarce.blocks, scarce.reserve_bytes) == (37, 4096 * 92553 * 7)
    assert scarce.notes == ("LMDeploy lowers max_prefill_token_num to 4096 by itself",)
    answer = smallest(plan, 1344)
    assert answer.lowest is not None
    assert answer.setting is not None
    assert (answer.lowest.setting, answer.setting.setting) == (
        Decimal("0.04"),
        Decimal("0.10"),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_too_little_memory_is_refused_in_the_engines_words(release: str) -> None:
    none = reported(release, free=5061 * MIB + 100).forward(Decimal("0.5"))
    assert (none.starts, none.max_tokens, none.refusal) == (
        False,
        0,
        "No enough gpu memory for kv cache.",
    )
    negative = reported(release, free=4000 * MIB).forward(Decimal("0.5"))
    assert not negative.starts
    two = reported(release, free=5061 * MIB + 4 * 8388608).forward(Decimal("0.5"))
    assert two.blocks == 2
    assert two.starts == (LMDEPLOY.era(release).fewest_blocks == 0)


def test_a_window_lifts_the_limit_and_a_context_sets_one() -> None:
    assert reported(window=1344).forward(Decimal("0.1")).limited_by == "window"
    assert reported(window=1345).forward(Decimal("0.1")).limited_by == "kv"
    capped = reported(session_len=1000).forward(Decimal("0.1"))
    assert (capped.max_tokens, capped.limited_by) == (1000, "context")


lmdeploy_plans = st.builds(
    LmdeployPlan,
    release=st.sampled_from(RELEASES),
    free=st.integers(1, 1 << 38),
    bytes_per_block=st.integers(1, 1 << 26),
    tokens_per_block=st.sampled_from([16, 32, 64, 128]),
    runtime=st.integers(0, 1 << 34),
)


@given(lmdeploy_plans, st.integers(1, 999))
def test_blocks_are_whole_and_within_the_pool(
    plan: LmdeployPlan, thousandth: int
) -> None:
    budget = plan.forward(Decimal(thousandth) / 1000)
    exact = (plan.free - (plan.runtime or 0)) * thousandth / 1000
    if budget.starts:
        # one block of slack: that is the rounding of the engine's own floating point
        assert (budget.blocks - 1) * plan.bytes_per_block <= exact
        assert exact < (budget.blocks + 2) * plan.bytes_per_block
        spare = LMDEPLOY.era(plan.release).spare_blocks
        assert budget.max_tokens == max(
            0, (budget.blocks - spare) * plan.tokens_per_block
        )
    else:
        assert (
            exact
            < (LMDEPLOY.era(plan.release).fewest_blocks + 2) * plan.bytes_per_block
        )


ruled = st.builds(
    LmdeployPlan,
    release=st.sampled_from(RELEASES),
    free=st.integers(1 << 20, 1 << 38),
    bytes_per_block=st.integers(1 << 8, 1 << 26),
    runtime=st.one_of(st.none(), st.integers(0, 1 << 34)),
    vocab_size=st.integers(1, 300_000),
    max_batches=st.integers(1, 1024),
    session_len=st.sampled_from([0, 4096, 32768]),
)


# ------------------------------------------------------------------ vLLM and SGLang

LLAMA_8B = Geometry(layers=32, kv_heads=8, k_dim=128, v_dim=128)
DEEPSEEK = Geometry(layers=61, kv_heads=1, k_dim=576, v_dim=0, mla=True)


@pytest.mark.parametrize(
    ("model", "engine", "options", "tokens"),
    [
        (LLAMA_8B, VLLM, {}, 131072),
        (LLAMA_8B, VLLM, {"kv_dtype": "fp8"}, 65536),
        (LLAMA_8B, VLLM, {"tp": 4}, 131072 // 4),
        (LLAMA_8B, VLLM, {"tp": 32}, 131072 // 8),  # each device keeps one head
        (DEEPSEEK, VLLM, {"tp": 8}, 61 * 576 * 2),
        (LLAMA_8B, SGLANG, {}, 131072),
        (LLAMA_8B, SGLANG, {"kv_dtype": "fp8_e5m2", "tp": 16}, 131072 // 16),
        (DEEPSEEK, SGLANG, {}, 61 * 576 * 2),
    ],
)
def test_bytes_of_a_token(
    model: Geometry, engine: BudgetEngine, options: dict, tokens: int
) -> None:
    assert model.token_bytes(engine, **options) == tokens


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
def test_what_has_no_formula_is_refused(engine: BudgetEngine) -> None:
    with pytest.raises(UsageError, match="No formula here"):
        LLAMA_8B.token_bytes(engine, kv_dtype="nvfp4")
    with pytest.raises(UsageError, match=r"it is odd\. Give --block-bytes"):
        Geometry(layers=2, kv_heads=1, k_dim=8, v_dim=8, odd="it is odd").token_bytes(
            engine
        )


def vllm(release: str = "0.32.0", **changed: int) -> VllmPlan:
    numbers = {
        "total": 80 * GIB,
        "free": 80 * GIB,
        "non_kv": 20 * GIB,
        "bytes_per_block": 1 << 21,
    }
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
    assert (
        "max seq len"
        in vllm("0.29.0", max_model_len=10240 * 16).forward(Decimal("0.5")).refusal
    )
    whole = vllm("0.29.0", max_model_len=10239 * 16).forward(Decimal("0.5"))
    assert (whole.starts, whole.max_tokens, whole.limited_by) == (
        True,
        10239 * 16 - 1,
        "context",
    )


def test_vllm_logs_tokens_by_the_context_since_0_22_0() -> None:
    """A context that ends within a block: the log counts only what requests of that
    length use."""
    assert (
        vllm("0.20.0", max_model_len=24)
        .forward(Decimal("0.5"))
        .log.endswith("163,840 tokens")
    )
    assert (
        vllm("0.22.0", max_model_len=24)
        .forward(Decimal("0.5"))
        .log.endswith("122,880 tokens")
    )


def test_vllm_on_a_cpu() -> None:
    plan = VllmCpuPlan("0.23.0", bytes_per_block=128 * 2048)
    assert plan.forward(Decimal(1)).blocks == 4096
    assert smallest(plan, 4096 * 128).setting == plan.forward(Decimal(2))
    assert not plan.takes(Decimal("0.5"))


def sglang(release: str = "0.5.23", **changed: int) -> SglangPlan:
    numbers = {"before": 80 * GIB, "free": 64 * GIB, "bytes_per_block": 131072}
    return SglangPlan(release, **{**numbers, **changed})


@pytest.mark.parametrize("release", ["0.5.6", "0.5.17", "0.5.23"])
def test_sglang_forward(release: str) -> None:
    budget = sglang(release).forward(Decimal("0.75"))
    assert (budget.pool_bytes, budget.blocks) == (44 * GIB, 360448)
    assert budget.max_tokens == 360448 - 7
    assert budget.log == "max_total_num_tokens=360448"


def test_sglang_pages_context_and_images() -> None:
    assert (
        sglang(tokens_per_block=64, bytes_per_block=64 * 1_000_003)
        .forward(Decimal("0.75"))
        .blocks
        == 738
    )
    capped = sglang(context=32768).forward(Decimal("0.75"))
    assert (capped.max_tokens, capped.limited_by) == (32768 - 7, "context")
    assert sglang(image_reserve=GIB).forward(Decimal("0.75")).pool_bytes == 43 * GIB
    assert (
        sglang("0.5.17", image_reserve=GIB).forward(Decimal("0.75")).pool_bytes
        == 44 * GIB
    )


@pytest.mark.parametrize(
    ("release", "says"),
    [("0.5.6", "Not enough memory"), ("0.5.17", "Loaded weights leave no")],
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
    lambda before, used, token, page, **rest: SglangPlan(
        before=before,
        free=before * (100 - used) // 100,
        bytes_per_block=token * page,
        tokens_per_block=page,
        **rest,
    ),
    before=st.integers(1 << 20, 1 << 38),
    used=st.integers(0, 90),
    release=st.sampled_from(["0.5.6", "0.5.17", "0.5.23"]),
    token=st.integers(1 << 6, 1 << 22),
    page=st.sampled_from([1, 16, 64]),
    context=st.sampled_from([0, 4096, 131072]),
    image_reserve=st.sampled_from([0, 1 << 24]),
)


@given(sglang_plans, st.integers(1, 99))
def test_sglang_is_within_a_token_of_exact_arithmetic(
    plan: SglangPlan, percent: int
) -> None:
    """GiB as floating-point numbers: never more than one token off, before pages are
    cut."""
    exact = plan.free - plan.before * (1 - Fraction(percent, 100))
    if plan.release == "0.5.23":
        exact -= plan.image_reserve
    page = plan.tokens_per_block
    each = plan.bytes_per_block // page
    if exact <= each * 2:
        return
    got = plan.forward(Decimal(percent) / 100).blocks * page
    want = exact / each
    assert want - page - 1 <= got <= want + 1


# ----------------------------------------------------------- what holds for all of them


@examples(60)
@given(st.one_of(ruled, vllm_plans, sglang_plans), st.integers(1, 500_000))
def test_back_and_forth(plan: MemoryPlan, tokens: int) -> None:
    answer = smallest(plan, tokens)
    every = [plan.forward(step) for step in steps(plan, 2)]
    assert answer.lowest == next((b for b in every if b.holds(tokens)), None)
    assert answer.best is not None
    assert answer.best.max_tokens == max(b.max_tokens for b in every)
    if answer.setting is None:
        assert not every[-1].holds(tokens)
        return
    at = every.index(answer.setting)
    assert all(b.holds(tokens) for b in every[at:])
    assert answer.setting.blocks >= answer.blocks
    if at:
        assert answer.below == every[at - 1]
        assert not every[at - 1].holds(tokens)


@given(st.one_of(lmdeploy_plans, vllm_plans), st.integers(1, 998))
def test_more_of_the_memory_never_holds_less(plan: MemoryPlan, thousandth: int) -> None:
    one, more = (plan.forward(Decimal(t) / 1000) for t in (thousandth, thousandth + 1))
    short = isinstance(plan, LmdeployPlan) and plan.free < (plan.runtime or 0)
    # vLLM refuses a share above what is free
    if not short and (isinstance(plan, LmdeployPlan) or (one.starts and more.starts)):
        assert more.blocks >= one.blocks
        assert more.max_tokens >= one.max_tokens


@given(st.one_of(lmdeploy_plans, vllm_plans), st.integers(1, 1 << 20))
def test_the_blocks_that_a_prompt_needs_are_the_fewest(
    plan: MemoryPlan, tokens: int
) -> None:
    """A cache of exactly so many blocks takes the prompt, and of one less does not."""

    def holds(count: int) -> bool:
        size = count * plan.bytes_per_block
        # Exact in binary, so that the pool is exactly as many blocks.
        half = Decimal("0.5")
        if isinstance(plan, LmdeployPlan):
            budget = replace(plan, free=size * 2, runtime=0).forward(half)
        else:
            assert isinstance(plan, VllmPlan)
            exact = {
                "total": size * 2,
                "free": size * 2,
                "non_kv": 0,
                "max_model_len": 0,
            }
            budget = replace(plan, **exact).forward(half)
        assert budget.blocks == count or not budget.starts
        return budget.holds(tokens)

    needed = plan.blocks_for(tokens)
    assert holds(needed)
    assert not holds(needed - 1)


@pytest.mark.parametrize("decimals", [0, 5])
def test_steps_are_bounded(decimals: int) -> None:
    with pytest.raises(ValueError, match="decimals"):
        steps(reported(), decimals)


def test_a_form_of_windows_that_is_not_known_names_no_layers() -> None:
    windows = {"sliding_window": 4096}
    assert _named(windows, "mistral", 2) == [WINDOW, WINDOW]
    for unknown in ("interleaved_sliding_window", "sliding_window_pattern"):
        assert _named({**windows, unknown: [0, 1]}, "mistral", 2) is None
