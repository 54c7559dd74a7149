"""vLLM: a prompt that can never fit the KV cache waits for ever."""

import json

from mmrepro.scenario import (
    Drive,
    Evidence,
    FailureClass,
    Finding,
    Logs,
    Requests,
    Scenario,
    Severity,
    Upstream,
    UpstreamState,
    cause,
    claim,
    common,
    cure,
    issue,
    precondition,
    quote,
    row,
    symptom,
    vllm,
)
from mmrepro.scenario.more import REFUSED, TinyText

_BLOCKS, _BLOCK = 8, 128
"""Of the KV cache, and tokens of one (a CPU's default): 1024, of which 896 can be
used."""
_LENGTH = _BLOCKS * _BLOCK
_FITS, NEVER = _LENGTH - _BLOCK - 16, _LENGTH - _BLOCK
"""Tokens of a prompt that fits, and of one that needs, with its answer, one block
more."""
_CONTROL, PROMPT, _TEXT = (
    f"prompt of {_FITS} tokens",
    f"prompt of {NEVER} tokens",
    "meanwhile: text",
)
_REPORT = issue(
    "vllm#35541", "vLLM hangs indefinitely with low `num_gpu_blocks_override`"
)
_FIELD = issue(
    "vllm#47272", "a request larger than the usable KV blocks waits for ever"
)


class CapacityNever(Scenario):
    """A prompt that can never fit the KV cache is accepted and waits for ever.

    What: A prompt shorter than the context and larger than what the KV cache can give
    one request is neither refused nor answered. It waits by reason "capacity" while the
    cache is empty and nothing runs. Every later request stands behind it. /health stays
    200 and the log is silent.

    Why: At start-up the context is held against all blocks of the KV cache. One of them
    is the null block, which no request is given. What needs it passes every check and
    is never scheduled: each step finds too few free blocks, leaves the queue as it is,
    and the next one does the same."""

    name = "capacity-never"
    release, affected = "0.23.0", ">=0.21.0,<0.29.0"
    """0.14.0 hangs as well and does not count by reason. 0.32.0 and 0.33.0 count the
    null block at start-up and refuse to start: they name a length of 896. What lies
    between was not run."""
    failure_class, severity = FailureClass.NEVER_FITS, Severity.CRITICAL
    upstream = Upstream(
        UpstreamState.OPEN, _REPORT, "2026-11-24", note="0.29.0 refuses to start so"
    )
    references = (_REPORT, _FIELD)
    model = TinyText()
    max_model_len = _LENGTH
    log_patterns = {
        REFUSED: r"To serve at least one request .*estimated maximum model length is \d+"
    }
    """In v1/core/kv_cache_utils.py, where the whole context does not fit (not for this
    one, up to 0.28.0)."""
    key_log_patterns = (REFUSED,)
    server = (
        f"--max-num-seqs 8 --num-gpu-blocks-override {_BLOCKS} --enable-log-requests"
    )
    sources = (
        quote(
            "vllm/v1/core/block_pool.py",
            "BlockPool.__init__",
            "one of the blocks is never given to a request",
            "null_block",
        ),
    )
    mitigations = (
        cure(
            "one-block-more",
            f"--num-gpu-blocks-override {_BLOCKS + 1}",
            "a KV cache with a block more than the context needs",
        ),
        cure(
            "shorter-context",
            f"--max-model-len {NEVER - 1}",
            (
                "a context that the usable blocks can hold: longer prompts are "
                "refused with HTTP 400"
            ),
        ),
    )

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text", text="hello")
        await self.prompt(drive, f"gate: {_CONTROL}", _FITS)

    async def prompt(self, drive: Drive, label: str, tokens: int) -> None:
        """A completion of a prompt of so many token ids."""
        body = {"model": drive.traffic.model, "prompt": [100] * tokens, "max_tokens": 4}
        data = json.dumps({**body, "temperature": 0}).encode()
        raw = drive.traffic.raw
        await drive.unless_stuck(
            raw(label, path="/v1/completions", body=data, deadline_s=drive.deadline_s)
        )

    async def trigger(self, drive: Drive) -> None:
        await self.prompt(drive, _CONTROL, _FITS)
        await self.prompt(drive, PROMPT, NEVER)
        await drive.ask(_TEXT)

    def gate_check(self, evidence: Evidence) -> Finding:
        return vllm.gate_of_completions(evidence)

    @precondition(
        "the prompt is within all blocks and beyond those that a request can have",
        removed_by=("one-block-more", "shorter-context"),
    )
    def larger_than_usable(
        self, evidence: Evidence, requests: Requests, logs: Logs
    ) -> Finding:
        """By what the engine says of its cache, or of the longest context where it
        refuses to start; an answer of 1 token at least comes after it."""
        if evidence.never_ready:
            longest = [
                int(found[1]) for found in logs.search(REFUSED, r"length is (\d+)")
            ]
            if not longest:
                return Finding.unknown(
                    "it never started, and names no length that fits"
                )
            text = (
                f"{NEVER} + 1 tokens; it can have {max(longest)}, and {_LENGTH} are "
                "asked for"
            )
            return Finding.of(max(longest) < NEVER + 1 <= _LENGTH, text)
        requests.first(PROMPT)
        blocks = int(vllm.cache_config(evidence, "num_gpu_blocks"))
        size = int(vllm.cache_config(evidence, "block_size"))
        usable = (blocks - 1) * size
        text = (
            f"{NEVER} + 1 tokens; {blocks} blocks of {size}, {usable} tokens without "
            "the null block"
        )
        return Finding.of(usable < NEVER + 1 <= blocks * size, text)

    symptoms = (
        common.never_answered(PROMPT),
        common.new_request_unanswered(),
        common.endpoints_green(),
        common.process_alive(),
        symptom(
            "requests are counted as waiting, and none as running", vllm.waiting_alone
        ),
    )
    live_only = (common.tokens_stand_still(),)
    causes = (
        cause(
            "it waits for capacity, by the scheduler's own count, while nothing runs "
            "and the KV cache is empty",
            vllm.waiting_for_capacity,
            live=True,
        ),
    )

    @cause(
        "a prompt of a few tokens less, alone in the same cache, is answered",
        live=False,
    )
    def fits_below(self, requests: Requests) -> Finding:
        sent = requests.first(_CONTROL)
        return Finding.of(
            sent.status == 200, f"{_CONTROL}: {sent.status} {sent.error[:100]}".strip()
        )

    works_after = (common.refused_or_answered(PROMPT), common.answered(_TEXT))
    rows = (
        row(PROMPT, "no-answer", "400, or an answer"),
        row("a text after it", "no-answer-later", "200"),
        row("/health, /v1/models", "endpoints-green", "200, 200", abnormal_if=False),
        row(
            "waiting by reason capacity",
            "waiting-for-capacity",
            "0 with an empty cache",
        ),
    )
    claims = (
        claim(
            "hangs",
            "a request that can never fit hangs for ever",
            _REPORT,
            by="no-answer",
            given="larger-than-usable",
        ),
        claim(
            "blocks-queue",
            "it blocks every later request",
            _REPORT,
            by="no-answer-later",
            given="no-answer",
        ),
        claim(
            "null-block",
            "the null block is not counted: what fits all blocks need not fit",
            _FIELD,
            by=("no-answer", "fits-below"),
            given="larger-than-usable",
        ),
        claim(
            "empty-cache",
            "it waits by reason capacity with a KV use of 0",
            _FIELD,
            by="waiting-for-capacity",
            given="no-answer",
        ),
    )


SCENARIO = CapacityNever()
