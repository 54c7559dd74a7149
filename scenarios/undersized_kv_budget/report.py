"""The tables of an undersized-kv-budget incident: what was seen beside what the report
says."""

import math
from decimal import Decimal
from functools import partial
from typing import Any

from mmrepro.kv_budget import Budget
from mmrepro.scenario import (
    Check,
    Claim,
    Drive,
    Evidence,
    Finding,
    Logs,
    Missing,
    Reproducers,
    Requests,
    RunFacts,
    Truth,
    claim,
    lmdeploy as kv,
    row,
    unmitigated,
)
from mmrepro.scenario.more import Phase, Row, answers

AFFECTED = ">=0.6.4,<0.7.0"
PROMPT = 3446
"""Tokens of the report's prompt."""
_LARGEST = Decimal("0.8")
"""Another setting that the report says to work."""
CHAIN = "lmdeploy_kv_chain.py"
"""The report's bytes, by the installed engine's own code in its environment."""


def _with_setting(setting: Decimal, *phases: Phase) -> Check:
    """Whether a server has the report's setting, and a limit that follows from its
    blocks: ``--session-len`` sets another."""

    def same(witness: kv.Witness) -> Finding:
        sizing = witness.sizing(*phases)
        share, limit = sizing.cache_max_entry_count, sizing.max_session_len
        text = (
            f"cache_max_entry_count {share:g}, {sizing.num_gpu_blocks:g} "
            f"blocks, limit {limit:g}"
        )
        return Finding.of(sizing.limit_adds_up and share == float(setting), text)

    return same


SMALL = (unmitigated, _with_setting(kv.SMALL))
reported = partial(claim, source="the report", refutable_on=AFFECTED)
_with_small = partial(
    reported, given=SMALL, otherwise="the setting is not the report's"
)
_with_big = partial(
    reported,
    given=_with_setting(kv.BIG, "control"),
    otherwise="the control server's setting is not the report's",
)
_by_length = partial(
    reported,
    given=(*SMALL, "input-length-error"),
    otherwise="not by the report's setting, or not for the length",
)


def _as_logged(*phases: Phase) -> Check:
    """The free memory is what the report's own line says, scaled as the blocks are:
    every value that is printed so gives its blocks
    (``tests/unit/test_kv_readings.py``)."""

    def same(witness: kv.Witness) -> Finding:
        sizing = witness.sizing(*phases)
        free = int(sizing.free * kv.BLOCK_BYTES / sizing.block_bytes) >> 20
        text = f"{free} mb free in the report's scale, by its log {kv.LOGGED_FREE_MB}"
        return Finding.of(free == kv.LOGGED_FREE_MB, text)

    return same


_BY_LOG = (
    f"its log says {kv.LOGGED_FREE_MB} mb of free memory; that is what this engine was "
    "given"
)
_from_log = partial(_with_small, given=(*SMALL, _as_logged()), note=_BY_LOG)
_from_log_big = partial(
    _with_big,
    given=(_with_setting(kv.BIG, "control"), _as_logged("control")),
    note=_BY_LOG,
)


def rows(tokens: int) -> tuple[Row, ...]:
    """For a prompt of so many tokens."""
    return (
        row(
            f"a prompt of {tokens} tokens",
            *_beside("the prompt"),
            "HTTP 500",
            abnormal_if=False,
        ),
        row("the same, streamed", *_beside("the prompt, streamed"), abnormal_if=False),
        smaller("cache_max_entry_count", "0.1 against 0.5"),
        smaller("num_gpu_blocks", "21 (in one place 24) against 107"),
        smaller("max_session_len", "1344 against 6848"),
    )


def _beside(label: str) -> tuple[Check, Check]:
    return answers.given(label), answers.given(kv.CONTROL + label)


def smaller(name: str, in_report: str) -> Row:
    """A number of LMDeploy's beside the control server's."""

    def compared(witness: kv.Witness) -> Finding:
        ours, other = (
            getattr(s, name) for s in (witness.sizing(), witness.sizing("control"))
        )
        return Finding.of(ours < other, f"{ours:g}")

    def of_control(witness: kv.Witness) -> str:
        return f"{getattr(witness.sizing('control'), name):g}"

    return row(name, compared, of_control, in_report)


OF_TEXT = ("prompt", "block-bytes", "runtime", "gpu-mem", "quantised")
"""Ids of claims about the report's prompt, or by the reproducer, which runs beside text
alone."""
_AT_LIMIT_TEST = "to test: mmrepro run {name} --option at-limit"


def claims(best: Budget) -> tuple[Claim, ...]:
    """``best``: the setting that ``mmrepro kv-budget`` foretells to be enough."""
    with_08 = kv.kv_plan(kv.RELEASE).forward(_LARGEST)
    return (
        _by_length(
            "fails-with-0.1", "with 0.1 the prompt gets HTTP 500", by="opaque-500"
        ),
        _with_big(
            "works-with-0.5",
            "with 0.5 the same prompt is answered",
            by="control-answers",
        ),
        reported(
            "works-with-0.8",
            "with 0.8 it is answered as well",
            by=answers.given("the prompt"),
            given=(_with_setting(_LARGEST), "prompt-arrived"),
            otherwise="to test: mmrepro run {name} --variant {variant} "
            f"--server-arg=--cache-max-entry-count=0.8; {with_08.blocks} blocks are "
            f"foretold",
        ),
        _by_length(
            "validation-error",
            "the traceback is pydantic's: finish_reason must be 'stop', 'length' or "
            "'tool_calls', got 'error'",
            by="validation-error",
        ),
        _by_length(
            "frames",
            "it is raised in chat_completions_v1, where the choice is made",
            by=_where_made,
        ),
        _by_length(
            "status-to-error",
            "that status becomes finish_reason 'error' on its way there",
            by=("input-length-error", "validation-error"),
        ),
        _with_small(
            "status",
            "the engine's output is ResponseType.INPUT_LENGTH_ERROR",
            by="input-length-error",
        ),
        claim(
            "silence",
            "at the default log level the engine says nothing of a length",
            "observation in the lab",
            by=_says_nothing,
            refutable_on=AFFECTED,
            given="input-length-error",
            otherwise="the engine refused nothing",
        ),
        reported("prompt", "the prompt has 3446 tokens", by=_as_long_as_reported),
        _from_log(
            "blocks-21",
            "num_gpu_blocks is 21 with 0.1",
            by=_sized("num_gpu_blocks", 21),
        ),
        _from_log(
            "blocks-24",
            "blocks went “from 24 to 107”",
            by=_sized("num_gpu_blocks", 24),
            refutable_on="",
            note=(
                "so the report contradicts itself: 24 × 64 = 1536 tokens, not its 1344"
            ),
        ),
        _from_log(
            "limit-1344",
            "max_input_len = max_session_len = 1344 = 21 × 64",
            by=_sized("max_session_len", 1344),
        ),
        _from_log_big(
            "blocks-107",
            "with 0.5 there are 107 blocks",
            by=_sized("num_gpu_blocks", 107, "control"),
        ),
        _from_log_big(
            "limit-6848",
            "with 0.5 the limit is 6848 tokens",
            by=_sized("max_session_len", 6848, "control"),
        ),
        reported(
            "block-bytes",
            "cache_block_size is 8 388 608 B for InternVL2-8B",
            by=_computed("block_bytes", 8_388_608),
        ),
        reported(
            "quantised",
            "quantised elements are smaller, and scales and zeros come on top",
            by=quantised,
        ),
        reported(
            "runtime",
            "the runtime reserve is 5061 MB",
            by=_computed("runtime_mib", 5061),
            note="MiB: >> 20, as LMDeploy logs it",
        ),
        reported(
            "gpu-mem",
            "gpu_mem is 903 548 928 B with 0.5",
            by=_computed("pool_big", 903_548_928),
            solved=kv.SOLVED,
        ),
        reported(
            "of-total",
            "the total memory less what prefill takes is what is shared out",
            by=_of_total,
        ),
        reported(
            "debug-lines",
            (
                "with --log-level=DEBUG it logs the free memory, the reserve and the "
                "blocks"
            ),
            by=_own_lines,
        ),
        reported(
            "cpu-blocks",
            "there are 128 CPU blocks: 1 GiB of the host's, in blocks of 8 MiB",
            by=_cpu_blocks,
        ),
        reported(
            "less-than",
            "a prompt has to have fewer tokens than the blocks hold",
            by=_served,
            refuted=True,
            given=_below_limit(0, 0),
            otherwise=_AT_LIMIT_TEST,
            note=(
                "what is left of the limit is what an answer may have: "
                "nothing, with HTTP 200"
            ),
        ),
        reported(
            "fewer-serves",
            "so many tokens are supported at most, and what is shorter is served",
            by=_served,
            given=_below_limit(1, _AHEAD),
            otherwise=f"{_AT_LIMIT_TEST}=1",
            note=(
                "the loop ends, as in kv-growth-crash: decoding wants blocks for "
                f"{_AHEAD} more"
            ),
        ),
        claim(
            "room-ahead",
            f"{_AHEAD + 1} fewer are served: one to answer, and {_AHEAD} ahead",
            "observation here",
            by=_served,
            given=_below_limit(_AHEAD + 1, _AHEAD + 1),
            otherwise=f"{_AT_LIMIT_TEST}={_AHEAD + 1}",
            refutable_on=AFFECTED,
        ),
        claim(
            "prediction",
            f"--cache-max-entry-count {best.setting} is enough: {best.blocks} blocks, "
            f"{best.max_tokens} tokens",
            "mmrepro kv-budget",
            by=_foretold(best.setting),
            refutable_on=AFFECTED,
            cured=True,
            given="prompt-arrived",
            otherwise="the prompt did not come to the engine",
        ),
    )


AT_LIMIT, AT_LAST = "as long as the limit", "short at last"
_AHEAD = 16
"""Tokens ahead of those that there are, for which decoding asks for blocks
(prefill_interval, 0.6.4 pytorch/engine/engine.py:949), also after the last one that was
wanted."""


async def at_limit(drive: Drive, tokens: int) -> None:
    """A prompt of so many tokens, of whose answer one is asked for; it may end the
    engine."""
    short = await kv.ask(drive, "short, once more")
    await kv.ask(drive, AT_LIMIT, kv.filling(tokens, short), 1)
    await kv.ask(drive, AT_LAST)


def _below_limit(least: int, most: int) -> Check:
    """The prompt had, by the engine's count, so many tokens fewer than the blocks hold,
    and was not refused for its length."""

    def counted(requests: Requests, witness: kv.Witness) -> Finding:
        limit, sent = int(witness.sizing().max_session_len), requests.first(AT_LIMIT)
        near = [
            one for one in witness.requests() if 0 <= limit - one.tokens <= _AHEAD + 1
        ]
        if len(near) != 1:
            return Finding.unknown(
                f"{len(near)} prompts near the limit {limit} were seen"
            )
        observed = (
            f"limit {limit}, a prompt of {near[0].tokens} is let in: {sent.reply}"
        )
        fewer = limit - near[0].tokens
        return Finding.of(least <= fewer <= most and not near[0].refused, observed)

    return counted


def _served(requests: Requests, witness: kv.Witness) -> Finding:
    """With the token that was asked for, and the short one after it."""
    limit = int(witness.sizing().max_session_len)
    sent, last = requests.first(AT_LIMIT), requests.first(AT_LAST)
    whole = sent.answered and bool(sent.completion_tokens) and last.answered
    observed = "; ".join(
        f"{r.label}: {r.reply}, {r.completion_tokens or 0} tokens" for r in (sent, last)
    )
    return Finding.of(whole, f"limit {limit}; {observed}")


def _says_nothing(logs: Logs) -> Finding:
    count = logs.count("says-length")
    return Finding.of(
        not count, f"{count} lines of LMDeploy's own that name a length or a limit"
    )


def _as_long_as_reported(witness: kv.Witness) -> Finding:
    tokens = witness.requests(PROMPT)[0].tokens
    return Finding.of(tokens == PROMPT, f"the engine counts {tokens} tokens")


def _sized(name: str, told: int, *phases: Phase) -> Check:
    """Whether a number of LMDeploy's is the report's."""

    def same(witness: kv.Witness) -> Finding:
        value: float = getattr(witness.sizing(*phases), name)
        return Finding.of(value == told, f"{value:g}")

    return same


def _computed(fact: str, told: int) -> Check:
    def same(reproducers: Reproducers) -> Finding:
        value = reproducers.facts(CHAIN).get(fact)
        if not isinstance(value, int | float):
            raise Missing(f"reproducers/{CHAIN} did not say {fact}")
        return Finding.of(value == told, f"{value:.0f}, by reproducers/{CHAIN}")

    return same


def quantised(reproducers: Reproducers) -> Finding:
    """Of a block with 16 bits an element: half of it, or a quarter, and what comes on
    top."""
    plain = int(reproducers.number(CHAIN, "block_bytes"))
    of_8_bits = int(reproducers.number(CHAIN, "block_bytes_8_bit"))
    of_4_bits = int(reproducers.number(CHAIN, "block_bytes_4_bit"))
    over_8 = of_8_bits - plain * 8 // 16
    over_4 = of_4_bits - plain * 4 // 16
    text = (
        f"{plain} B; with 8 bits {of_8_bits}, with 4 {of_4_bits}: {over_8} "
        f"and {over_4} on top"
    )
    met = min(over_8, over_4) > 0 and max(of_8_bits, of_4_bits) < plain
    return Finding.of(met, text)


def _where_made(logs: Logs) -> Finding:
    count = logs.count("choice-made")
    return Finding.of(count > 0, f"{count} × chat_completions_v1 in a traceback")


def _of_total(witness: kv.Witness) -> Finding:
    """Or of the memory that is free, as the code has it: by the numbers that it was
    given."""
    seen: dict[str, Any] = next(reversed(witness.values("budget")), {})
    try:
        (free, total), (reserve, *_), pool = (
            seen["memory"],
            seen["runtime"],
            seen["pool"],
        )
    except (LookupError, TypeError, ValueError):
        raise Missing("the witness did not see how the memory is shared out") from None
    share = witness.sizing().cache_max_entry_count
    text = f"({free} - {reserve}) x {share:g} = {pool:.0f} B, of {total} B in all"
    if math.isclose((free - reserve) * share, pool, abs_tol=1):
        return Finding.of(free == total, f"of what is free: {text}")
    return Finding.unknown(f"neither: {text}")


OWN_LINES = {
    "own-free": r"free gpu memory: +(\d+) mb",
    "own-reserve": r"estimated max runtime memory: +(\d+) mb",
    "own-blocks": r"\bblock num: (\d+)",
    "own-cache": r"Initialize cache engine with \d+ gpu blocks and (\d+) cpu blocks",
}
"""LMDeploy's own, at its DEBUG level."""


def _own(logs: Logs, name: str) -> int:
    lines = logs.search(name, OWN_LINES[name])
    if not lines:
        raise Missing(
            "to test: mmrepro run undersized-kv-budget --server-arg=--log-level=DEBUG"
        )
    return int(lines[-1][1])


def _own_lines(logs: Logs, witness: kv.Witness) -> Finding:
    """And they are the numbers that its code was given."""
    free, reserve, blocks = (
        _own(logs, f"own-{name}") for name in ("free", "reserve", "blocks")
    )
    sizing = witness.sizing()
    given = (
        int(sizing.free) >> 20,
        int(sizing.runtime) >> 20,
        int(sizing.num_gpu_blocks),
    )
    text = f"{free} mb free, {reserve} mb of reserve, {blocks} blocks"
    return Finding.of((free, reserve, blocks) == given, f"{text}; its code had {given}")


def _cpu_blocks(logs: Logs, witness: kv.Witness) -> Finding:
    blocks, size = _own(logs, "own-cache"), int(witness.sizing().block_bytes)
    held = blocks * size
    return Finding.of(
        held == 1 << 30, f"{blocks} CPU blocks of {size} B are {held >> 20} MiB"
    )


def _foretold(setting: Decimal) -> Check:
    """Whether the engine has what ``mmrepro kv-budget`` foretells."""

    def same(evidence: Evidence, witness: kv.Witness, facts: RunFacts) -> Finding:
        if "kv-budget" not in facts.mitigations:
            raise Missing(
                "to test: mmrepro run undersized-kv-budget --mitigation kv-budget"
            )
        seen, plan = witness.sizing(), kv.kv_plan(facts.release).forward(setting)
        answered = answers.given("the prompt")(evidence)
        same = (seen.num_gpu_blocks, seen.max_session_len) == (
            plan.blocks,
            plan.max_tokens,
        )
        return Finding.of(
            same and answered.truth is Truth.MET,
            f"the engine has {seen.num_gpu_blocks:g} blocks, {seen.max_session_len:g} "
            f"tokens; {answered.observed}",
        )

    return same
