"""LMDeploy's KV arithmetic against the bug report, the engine's own lines and its own inverse."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.errors import UsageError
from mmrepro.kv_budget import Geometry, LmdeployPlan, block_bytes_of, block_size_of, smallest, steps
from mmrepro.kv_budget.lmdeploy import ERAS, era_of

MIB = 1 << 20
INTERNVL2_8B = Geometry(layers=32, kv_heads=8, k_dim=128, v_dim=128, vocab_size=92553)
RELEASES = [era.since for era in ERAS]


def reported(release: str = "0.6.4", **changed: int) -> LmdeployPlan:
    """The bug report's server: 6784 MiB free, 5061 MiB for the prefill, 8 MiB a block."""
    numbers = {"free": 6784 * MIB, "runtime": 5061 * MIB, "bytes_per_block": 8388608}
    return LmdeployPlan(release, **{**numbers, **changed})


@pytest.mark.parametrize(
    ("setting", "blocks", "tokens"), [("0.1", 21, 1344), ("0.5", 107, 6848), ("0.8", 172, 11008)]
)
def test_the_numbers_of_the_report(setting: str, blocks: int, tokens: int) -> None:
    budget = reported().forward(Decimal(setting))
    assert (budget.blocks, budget.max_tokens, budget.refusal) == (blocks, tokens, "")


@pytest.mark.parametrize(
    ("release", "tokens"),
    [("0.6.5", 1344), ("0.9.1", 1344), ("0.9.2", 1280), ("0.10.2", 1280), ("0.11.0", 1280),
     ("0.11.1", 1216), ("0.18.0", 1216), ("1.0.0", 1216)],
)  # fmt: skip
def test_later_releases_keep_blocks_back(release: str, tokens: int) -> None:
    assert reported(release).forward(Decimal("0.1")).max_tokens == tokens


def test_092_takes_its_block_off_the_context_as_well() -> None:
    """Seen by its witness: 1280 tokens of 21 blocks (a run of kv-growth-crash)."""
    for context, tokens, by in ((1343, 1279, "context"), (1344, 1280, "kv"), (0, 1280, "kv")):
        budget = reported("0.9.2", session_len=context).forward(Decimal("0.1"))
        assert (budget.max_tokens, budget.limited_by) == (tokens, by)
    assert reported("0.10.0", session_len=1279).forward(Decimal("0.1")).max_tokens == 1279


def test_bytes_of_a_block() -> None:
    assert block_bytes_of(INTERNVL2_8B) == 8388608
    # 64 tokens x 8 heads x (128 + a scale and a zero of 2 bytes each) x 2 x 32 layers
    assert block_bytes_of(INTERNVL2_8B, quant_policy=8) == 64 * 8 * (128 + 4) * 2 * 32
    assert block_bytes_of(INTERNVL2_8B, quant_policy=4) == 64 * 8 * (64 + 4) * 2 * 32
    assert block_bytes_of(INTERNVL2_8B, "0.18.0", quant_policy=16) == 8388608 // 2
    assert block_bytes_of(INTERNVL2_8B, "0.13.0", quant_policy=42) == 64 * 8 * 32 * (64 + 32 + 6)
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
        layers=2, kv_heads=2, k_dim=128, v_dim=128, plain_head_dim=32, model_type="gemma"
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
def test_what_lmdeploy_refuses(release: str, options: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        block_bytes_of(INTERNVL2_8B, release, **options)


def test_a_release_before_the_first_known() -> None:
    with pytest.raises(UsageError, match=r"starts with 0\.6\.4"):
        era_of("0.5.0")


def test_lmdeploys_own_reserve() -> None:
    """8192 tokens x 92553 words x 7 bytes: the report's "5061 MB runtime"."""
    plan = LmdeployPlan("0.6.4", 6784 * MIB, 8388608, vocab_size=92553)
    budget = plan.forward(Decimal("0.1"))
    assert budget.reserve_bytes == 8192 * 92553 * 7
    assert budget.reserve_bytes // MIB == 5061
    assert (budget.blocks, budget.notes) == (21, ())


def test_the_report_to_the_byte() -> None:
    """Its 903 548 928 bytes at 0.5 follow from LMDeploy's rule and 6784.875 MiB, which it calls
    6784 MB; at 0.1 there are 21 blocks, and nothing near makes 24 of them."""
    free = 6784 * MIB + 7 * MIB // 8
    plan = LmdeployPlan("0.6.4", free, 8388608, vocab_size=92553)
    half = plan.forward(Decimal("0.5"))
    assert (half.pool_bytes, half.blocks, half.max_tokens) == (903_548_928, 107, 6848)
    tenth = plan.forward(Decimal("0.1"))
    assert (free // MIB, tenth.blocks, tenth.max_tokens) == (6784, 21, 1344)


def ruled_plan(release: str, blocks: int) -> LmdeployPlan:
    """One word, one batch: at 0.5 exactly so many blocks are left of the first reserve."""
    reserve = 8192 * 7 if era_of(release).wide_reserve else (8192 + 2) * 2
    return LmdeployPlan(release, reserve + blocks * 2 * 100, 100, vocab_size=1, max_batches=1)


def test_the_reserve_is_halved_below_16_blocks_only() -> None:
    for release in RELEASES:
        enough, scarce = (ruled_plan(release, n).forward(Decimal("0.5")) for n in (16, 15))
        assert (enough.blocks, enough.notes) == (16, ())
        assert scarce.notes, release
        assert scarce.blocks > 15


def test_the_later_reserve_counts_two_batches() -> None:
    plan = LmdeployPlan("0.10.0", 6784 * MIB, 8388608, vocab_size=92553, max_batches=128)
    assert plan.forward(Decimal("0.5")).reserve_bytes == (8192 + 256) * 92553 * 2


def test_newer_releases_give_up_where_older_ones_halve() -> None:
    assert not ruled_plan("0.13.0", 2).forward(Decimal("0.5")).starts
    assert ruled_plan("0.13.0", 3).forward(Decimal("0.5")).starts
    assert ruled_plan("0.12.3", 2).forward(Decimal("0.5")).starts


def test_a_smaller_setting_can_hold_more() -> None:
    """Below 16 blocks LMDeploy halves its prefill batch: 0.07 then holds more than 0.1."""
    plan = LmdeployPlan("0.6.4", 6784 * MIB, 8388608, vocab_size=92553)
    scarce = plan.forward(Decimal("0.07"))
    assert (scarce.blocks, scarce.reserve_bytes) == (37, 4096 * 92553 * 7)
    assert scarce.notes == ("LMDeploy lowers max_prefill_token_num to 4096 by itself",)
    answer = smallest(plan, 1344)
    assert answer.lowest is not None
    assert answer.setting is not None
    assert (answer.lowest.setting, answer.setting.setting) == (Decimal("0.04"), Decimal("0.10"))


@pytest.mark.parametrize("release", RELEASES)
def test_too_little_memory_is_refused_in_the_engines_words(release: str) -> None:
    none = reported(release, free=5061 * MIB + 100).forward(Decimal("0.5"))
    assert (none.starts, none.max_tokens, none.refusal) == (
        False, 0, "No enough gpu memory for kv cache.",
    )  # fmt: skip
    negative = reported(release, free=4000 * MIB).forward(Decimal("0.5"))
    assert not negative.starts
    two = reported(release, free=5061 * MIB + 4 * 8388608).forward(Decimal("0.5"))
    assert two.blocks == 2
    assert two.starts == (era_of(release).fewest_blocks == 0)


def test_a_window_lifts_the_limit_and_a_context_sets_one() -> None:
    assert reported(window=1344).forward(Decimal("0.1")).limited_by == "window"
    assert reported(window=1345).forward(Decimal("0.1")).limited_by == "kv"
    capped = reported(session_len=1000).forward(Decimal("0.1"))
    assert (capped.max_tokens, capped.limited_by) == (1000, "context")


plans = st.builds(
    LmdeployPlan,
    release=st.sampled_from(RELEASES),
    free=st.integers(1, 1 << 38),
    bytes_per_block=st.integers(1, 1 << 26),
    tokens_per_block=st.sampled_from([16, 32, 64, 128]),
    runtime=st.integers(0, 1 << 34),
)


@given(plans, st.integers(1, 999))
def test_blocks_are_whole_and_within_the_pool(plan: LmdeployPlan, thousandth: int) -> None:
    budget = plan.forward(Decimal(thousandth) / 1000)
    exact = (plan.free - (plan.runtime or 0)) * thousandth / 1000
    if budget.starts:
        # one block of slack: that is the rounding of the engine's own floating point
        assert (budget.blocks - 1) * plan.bytes_per_block <= exact
        assert exact < (budget.blocks + 2) * plan.bytes_per_block
        spare = era_of(plan.release).spare_blocks
        assert budget.max_tokens == max(0, (budget.blocks - spare) * plan.tokens_per_block)
    else:
        assert exact < (era_of(plan.release).fewest_blocks + 2) * plan.bytes_per_block


@given(plans, st.integers(1, 998))
def test_more_of_the_memory_never_holds_less(plan: LmdeployPlan, thousandth: int) -> None:
    one, more = (plan.forward(Decimal(t) / 1000) for t in (thousandth, thousandth + 1))
    if plan.free >= (plan.runtime or 0):
        assert more.blocks >= one.blocks
        assert more.max_tokens >= one.max_tokens


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


@settings(max_examples=60)
@given(ruled, st.integers(1, 200_000))
def test_back_and_forth(plan: LmdeployPlan, tokens: int) -> None:
    answer = smallest(plan, tokens, decimals=2)
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


@given(plans, st.integers(1, 1 << 20))
def test_the_blocks_that_a_prompt_needs_are_the_fewest(plan: LmdeployPlan, tokens: int) -> None:
    """A cache of exactly so many blocks takes the prompt, and of one less does not."""
    needed = plan.blocks_for(tokens)
    half = Decimal("0.5")  # exact in binary, so that the pool is exactly as many blocks

    def with_blocks(count: int) -> LmdeployPlan:
        return LmdeployPlan(
            plan.release,
            free=count * plan.bytes_per_block * 2,
            bytes_per_block=plan.bytes_per_block,
            tokens_per_block=plan.tokens_per_block,
            runtime=0,
        )

    assert with_blocks(needed).forward(half).blocks == needed
    assert with_blocks(needed).forward(half).holds(tokens)
    assert not with_blocks(needed - 1).forward(half).holds(tokens)


@pytest.mark.parametrize("decimals", [0, 5])
def test_steps_are_bounded(decimals: int) -> None:
    with pytest.raises(ValueError, match="decimals"):
        steps(reported(), decimals)
