"""LMDeploy: a KV cache too small for the prompt, behind an error that says nothing of it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from decimal import Decimal
from functools import cached_property

from mmrepro.engines.lmdeploy import WITNESS, LmdeployEngine, device_memory
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, Reference, SymptomRow
from mmrepro.kv_budget import Budget, LmdeployPlan, smallest
from mmrepro.models import TinyQwen2VL, TinyText
from mmrepro.scenario import (
    Control,
    LiveFacts,
    Mitigation,
    Patch,
    RunFacts,
    Scenario,
    with_variants,
)
from mmrepro.scenarios import kv_witness as kv
from mmrepro.scenarios.kv_budget_report import claims, symptom_rows
from mmrepro.signature import Condition, Finding, Outcome, checks
from mmrepro.signature import live_server as live
from mmrepro.traffic.drive import Drive
from packaging.version import Version

SHORT = "hi"
ANSWER = 4
"""Tokens that each request may have as its answer."""
LONG_DEADLINE_S = 240.0
OPAQUE_ANSWER_UNTIL = Version("0.10.0")
"""From 0.7.0 on the error is an answer with 200; from here on its text names the status."""

VALIDATION = {
    "validation-error": r"validation errors? for ChatCompletionResponse\w*Choice",
    "finish-reason": r"Input should be .*input_value='error'",
    "says-length": r"- lmdeploy - .*(?:INPUT_LENGTH|max_session_len|num_gpu_blocks|too long)",
}


class UndersizedKvBudget(Scenario):
    """A prompt that the KV cache cannot hold gets an opaque HTTP 500.

    What: With a small --cache-max-entry-count every prompt above a limit that nobody set gets
    HTTP 500 “Internal Server Error” at once, while shorter ones and /health are fine and the
    same prompt is answered with a larger setting.

    Why: LMDeploy's PyTorch engine gives the KV cache a share (cache_max_entry_count) of the
    memory that weights and a reserve leave free, in whole blocks. The longest prompt is blocks
    × block size. A longer one is answered with the status INPUT_LENGTH_ERROR, which the server
    turns into the finish reason 'error'. Before 0.7.0 the response's model does not allow that
    value: pydantic raises, and the client sees HTTP 500.
    """

    name = "undersized-kv-budget"
    variant = "text"
    engine = "lmdeploy"
    release = "0.6.4"
    affected = ">=0.6.4,<0.7.0"
    model = TinyText()
    max_model_len = 32768
    server = shlex.join(
        (
            *("--cache-max-entry-count", kv.SMALL),
            *("--max-batch-size", "128"),
        )
    )
    control_server = Control(
        f"the same server with --cache-max-entry-count {kv.BIG}",
        ("--cache-max-entry-count", kv.BIG),
    )
    sources = (kv.LIMIT_SOURCE, kv.REFUSAL_SOURCE)
    reproducers = ("lmdeploy_kv_chain.py",)
    log_patterns = kv.WITNESS_PATTERNS | VALIDATION
    key_log_patterns = (
        *kv.WITNESS_PATTERNS,
        *("validation-error", "finish-reason", "says-length"),
    )
    references = (
        kv.FIX,
        Reference(
            id="lmdeploy#3977",
            title="INPUT_LENGTH_ERROR with 32 images (0.10.0): the same limit, named",
            url="https://github.com/InternLM/lmdeploy/issues/3977",
        ),
    )
    kv_bytes = kv.KV_BYTES // kv.SCALE
    block_bytes = 131_072
    vocab_size = 1446
    prompt_tokens = kv.PROMPT

    # ------------------------------------------------------------------ the arithmetic

    def plan_of(self, release: str) -> LmdeployPlan:
        """The run's memory and model in ``release``'s own arithmetic."""
        return LmdeployPlan(
            release,
            free=kv.free_bytes(release, self.vocab_size, self.kv_bytes),
            bytes_per_block=self.block_bytes,
            vocab_size=self.vocab_size,
        )

    @cached_property
    def predicted(self) -> Budget:
        """The smallest setting that holds the prompt and its answer, by arithmetic alone."""
        return kv.smallest_setting(self.plan_of(self.release), self.prompt_tokens + ANSWER)

    def at(self, setting: str) -> Budget:
        """What a setting gives on the default release, by arithmetic alone."""
        return self.plan_of(self.release).forward(Decimal(setting))

    @cached_property
    def mitigations(self) -> tuple[Mitigation, ...]:  # type: ignore[override]
        holds = f"{self.prompt_tokens} tokens and an answer"
        return (kv.budget_mitigation(self.predicted, holds),)

    def patches_for(self, release: str) -> tuple[Patch, ...]:
        return (WITNESS, device_memory(self.plan_of(release).free))

    def expected(self, release: str, mitigations: frozenset[str]) -> tuple[Outcome, str]:
        if Version("0.7.0") <= Version(release) < OPAQUE_ANSWER_UNTIL:
            if "kv-budget" in mitigations:
                return Outcome.NOT_REPRODUCED, "mitigation kv-budget is said to prevent it"
            return Outcome.DIFFERENT_FAILURE, (
                f"{release} answers 200 with the text “internal error happened”: as opaque, but no "
                "HTTP 500"
            )
        return super().expected(release, mitigations)

    # ------------------------------------------------------------------ traffic

    async def ask(
        self, drive: Drive, label: str, text: str, *, stream: bool = False
    ) -> RequestRecord:
        """One request whose content is plain text: 0.6.4 takes no list for a text model."""
        return await drive.chat(
            label,
            text=text,
            max_tokens=ANSWER,
            stream=stream,
            extra={"messages": [{"role": "user", "content": text}]},
        )

    async def the_prompt(self, drive: Drive, label: str, short: RequestRecord) -> None:
        """The prompt, whole and streamed. The chat template's tokens are taken from ``short``."""
        template = (short.prompt_tokens or 0) - len(SHORT)
        text = "7" * (self.prompt_tokens - template)
        await self.ask(drive, label, text)
        await self.ask(drive, f"{label}, streamed", text, stream=True)

    async def control(self, drive: Drive) -> None:
        drive.deadline_s = LONG_DEADLINE_S
        short = await self.ask(drive, f"{kv.CONTROL_LABEL}: short", SHORT)
        if short.answered:
            await self.the_prompt(drive, f"{kv.CONTROL_LABEL}: the prompt", short)

    async def gate(self, drive: Drive) -> None:
        for number in (1, 2):
            await self.ask(drive, f"gate: short {number}", SHORT)

    async def trigger(self, drive: Drive) -> None:
        drive.deadline_s = max(drive.deadline_s, LONG_DEADLINE_S)
        short = await self.ask(drive, "short before", SHORT)
        await self.the_prompt(drive, "the prompt", short)
        await self.ask(drive, "short after", SHORT)

    def gate_check(self, evidence: Evidence) -> Finding:
        """The gate's requests, and before them the prompt on the control server, were answered."""
        for label in ("the prompt", "the prompt, streamed"):
            found = kv.answered(evidence, f"{kv.CONTROL_LABEL}: {label}")
            if found.truth != "met":
                return Finding.of(False, found.observed)
        return super().gate_check(evidence)

    # ------------------------------------------------------------------ signature

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "opaque-500",
                "symptom",
                "the prompt gets HTTP 500, and nothing tells the client that it is too long",
                self.opaque,
            ),
            Condition(
                "stream-breaks",
                "symptom",
                "streamed, the answer begins with HTTP 200 and breaks off",
                self.stream_breaks,
            ),
            Condition(
                "control-answers",
                "symptom",
                f"with --cache-max-entry-count {kv.BIG} the same prompt is answered",
                lambda e: kv.answered(e, f"{kv.CONTROL_LABEL}: the prompt"),
            ),
            Condition(
                "others-answered",
                "symptom",
                "short prompts are answered before and after it",
                self.short_answered,
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200",
                checks.endpoints_green,
            ),
            Condition(
                "validation-error",
                "cause",
                "HTTP 500 ← the log holds pydantic's error: the finish reason may not be 'error'",
                self.validation_error,
            ),
            Condition(
                "input-length-error",
                "cause",
                "finish reason 'error' ← the engine answered the prompt with INPUT_LENGTH_ERROR, "
                "because it has more tokens than max_input_len",
                self.input_length_error,
            ),
            Condition(
                "limit-from-blocks",
                "cause",
                "max_input_len = max_session_len ← num_gpu_blocks × block_size, on both servers",
                self.limit_from_blocks,
            ),
            Condition(
                "blocks-from-bytes",
                "cause",
                "num_gpu_blocks ← (free − runtime) × cache_max_entry_count / bytes a block, on "
                "both servers",
                self.blocks_from_bytes,
            ),
        ]

    def opaque(self, evidence: Evidence) -> Finding:
        for record in evidence.labelled("the prompt"):
            found = self.graded(evidence, record)
            return Finding.of(found.kind == "opaque 500", str(found))
        return Finding.unknown("the prompt was not sent")

    def stream_breaks(self, evidence: Evidence) -> Finding:
        for record in evidence.labelled("the prompt, streamed"):
            found = self.graded(evidence, record)
            broken = record.status == 200 and found.kind == "broken" and not record.timed_out
            return Finding.of(broken, str(found))
        return Finding.unknown("the prompt was not sent as a stream")

    def graded(self, evidence: Evidence, record: RequestRecord) -> kv.Grade:
        found = kv.sizing(evidence)
        return kv.grade(record, found.max_tokens if found else None)

    def short_answered(self, evidence: Evidence) -> Finding:
        records = [r for word in ("before", "after") for r in evidence.labelled(f"short {word}")]
        if len(records) < 2:
            return Finding.unknown(f"{len(records)} of 2 short prompts were sent")
        text = "; ".join(f"{r.label}: {kv.grade(r, None)}" for r in records)
        return Finding.of(all(kv.grade(r, None).kind == "answered" for r in records), text)

    def validation_error(self, evidence: Evidence) -> Finding:
        names = ("validation-error", "finish-reason")
        counts = [checks.log_count(evidence, name) for name in names]
        if None in counts:
            return Finding.unknown(evidence.why_missing("logs", "check"))
        if not all(counts):
            return Finding.of(False, "the log holds no validation error of a response")
        line = checks.log_lines(evidence, "finish-reason")[0]
        return Finding.of(True, f"{counts[0]} × {line.text.strip()}", *checks.log_files(evidence))

    def input_length_error(self, evidence: Evidence) -> Finding:
        request = kv.refusal(evidence, self.prompt_tokens)
        if request is None:
            return Finding.unknown("the witness saw no request with that many tokens")
        tokens, limit, status = (
            request.get(n) for n in ("input_tokens", "max_input_len", "status")
        )
        text = f"{tokens} tokens, max_input_len {limit}: status {status}"
        if not isinstance(tokens, int) or not isinstance(limit, int):
            return Finding.unknown(text)
        return Finding.of(tokens > limit and status == "INPUT_LENGTH_ERROR", text)

    def limit_from_blocks(self, evidence: Evidence) -> Finding:
        ours, other = kv.sizing(evidence), kv.sizing(evidence, "control")
        request = kv.refusal(evidence, self.prompt_tokens)
        if ours is None or other is None or request is None:
            return Finding.unknown("the witness did not see both servers size their cache")
        tokens = request["input_tokens"]
        text = (
            f"{ours.blocks:g} blocks × {ours.block_size:g} → {ours.max_tokens:g} tokens, for a "
            f"prompt of {tokens}; control server: {other.blocks:g} blocks → "
            f"{other.max_tokens:g} tokens"
        )
        fits = ours.max_tokens < tokens <= other.max_tokens
        one_limit = ours.max_tokens == request.get("max_input_len")
        return Finding.of(fits and one_limit and ours.limit_adds_up and other.limit_adds_up, text)

    def blocks_from_bytes(self, evidence: Evidence) -> Finding:
        ours, other = kv.sizing(evidence), kv.sizing(evidence, "control")
        if ours is None or other is None:
            return Finding.unknown("the witness did not see both servers size their cache")
        same = (ours.free, ours.runtime, ours.block_bytes) == (
            other.free,
            other.runtime,
            other.block_bytes,
        )
        holds = ours.adds_up and other.adds_up and same and ours.share < other.share
        return Finding.of(holds, f"{ours}; control server: {other}")

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """Without LMDeploy's own numbers (the witness) nothing tells why it ended in an error."""
        kept = {c.id: c for c in super().live_conditions(facts)}
        return [
            *live.some_requests_fail(LmdeployEngine.metrics, LmdeployEngine.core_role),
            kept["validation-error"],
            replace(kept["input-length-error"], check=kv.refused_for_length),
        ]

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        records = [
            r for label in ("the prompt", "the prompt, streamed") for r in evidence.labelled(label)
        ]
        if len({r.label for r in records}) < 2:
            return Finding.unknown("the prompt was not sent both ways")
        for record in records:
            found = self.graded(evidence, record)
            if found.kind != "answered" and not found.explained:
                return Finding.of(False, f"{record.label}: {found}")
        return self.short_answered(evidence)

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        return symptom_rows(self, evidence)

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        return claims(self, evidence, facts)


class WithImage(UndersizedKvBudget):
    """An image too large for the KV cache is encoded in full, then refused."""

    variant = "image"
    # Attention over the patches grows with the square of their number: not larger than needed.
    model = TinyQwen2VL(
        image_tokens=1600, hidden=256, vocab_size=1446, vision_width=32, vision_depth=1
    )
    prompt_tokens = 1600
    reproducers = ()

    async def the_prompt(self, drive: Drive, label: str, short: RequestRecord) -> None:
        picture = drive.picture("large", 7)
        for stream, name in ((False, label), (True, f"{label}, streamed")):
            await drive.chat(name, text=SHORT, images=[picture], max_tokens=ANSWER, stream=stream)

    @cached_property
    def predicted(self) -> Budget:
        """With room for the chat template's tokens, one block."""
        plan = self.plan_of(self.release)
        found = smallest(plan, self.prompt_tokens + plan.block_size, decimals=2).setting
        assert found is not None
        return found

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            *super().conditions(facts),
            Condition(
                "encoder-first",
                "cause",
                "the vision encoder had done its work by the time the prompt was refused",
                self.encoder_first,
            ),
        ]

    def encoder_first(self, evidence: Evidence) -> Finding:
        """Both requests with the image went through the encoder; how long it took."""
        steps = [v for v in kv.said(evidence, "vision") if isinstance(v.get("seconds"), float)]
        # 0.6.4 encodes in `forward`; later ones have `async_infer` only, which calls the model.
        inner = [v for v in steps if v.get("step") == "forward"]
        seconds = [
            v["seconds"] for v in inner or steps if v.get("step") in ("forward", "async_infer")
        ]
        if not seconds:
            return Finding.unknown("the witness saw no work of the vision encoder")
        refused = kv.refusal(evidence, self.prompt_tokens)
        check = f"{refused['seconds'] * 1000:.1f} ms" if refused else "not seen"
        spent = ", ".join(f"{s:.2f} s" for s in seconds)
        text = f"vision encoder: {spent}; the engine's refusal: {check}"
        return Finding.of(min(seconds) > 0 and refused is not None, text)


class FullSize(UndersizedKvBudget):
    """The same with the report's own sizes: blocks of 8 MiB (takes minutes)."""

    variant = "full-size"
    model = TinyText(architecture="gemma", layers=32, kv_heads=8, vocab_size=92_553)
    kv_bytes = kv.KV_BYTES
    block_bytes = 8_388_608
    vocab_size = 92_553


SCENARIO = with_variants(UndersizedKvBudget(), WithImage(), FullSize())
