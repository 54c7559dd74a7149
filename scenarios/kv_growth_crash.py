"""LMDeploy: a prompt that fits the KV cache, an answer that does not: the engine loop dies."""

from __future__ import annotations

import shlex
from decimal import Decimal
from functools import cached_property

from mmrepro.engines.lmdeploy import WITNESS, device_memory
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, SymptomRow
from mmrepro.kv_budget import LmdeployPlan
from mmrepro.models import TinyText
from mmrepro.probes.data import LogLine
from mmrepro.scenario import (
    LiveFacts,
    Mitigation,
    Patch,
    RunFacts,
    Scenario,
    SourceRef,
    unmet,
)
from mmrepro.scenarios import kv_witness as kv
from mmrepro.scenarios.kv_budget_report import claim
from mmrepro.scenarios.undersized_kv_budget import UndersizedKvBudget
from mmrepro.signature import Condition, Finding, Truth, checks
from mmrepro.signature import live_server as live
from mmrepro.traffic.drive import Drive

SHORT = "hi"
ROOM = 44
"""Tokens of answer that still fit after the prompt: 1300 of 1344 on 0.6.4."""
ANSWER = 100
RETRIES = 3
GROWTH_DEADLINE_S = 60.0
"""0.6.4 fails at once; on 0.7.0.post3 the growing request never ends."""

_SMALL = UndersizedKvBudget()


class KvGrowthCrash(Scenario):
    """An answer that outgrows the KV cache ends the engine loop for good.

    What: A prompt that fits the KV cache is accepted although the answer it asks for does not
    fit. When it has grown to the last block, the engine loop ends with an assertion. The HTTP
    server lives on, /health stays 200, and every later request fails.

    Why: The only sequence needs one more block and there is none, so the scheduler takes it out
    of the running ones to make room for itself. The engine loop is handed a step without a
    sequence, where `assert len(running) > 0` ends it. Nothing restarts the loop: each later
    request finds it dead after a second and fails.
    """

    name = "kv-growth-crash"
    engine = "lmdeploy"
    release = "0.6.4"
    affected = ">=0.6.4,<0.7.1"
    model = TinyText()
    max_model_len = 32768
    server = shlex.join(_SMALL.server_args)
    control_server = _SMALL.control_server
    sources = (
        SourceRef(
            file="lmdeploy/pytorch/engine/engine.py",
            qualname="Engine._async_loop_background",
            note="the loop trusts that a step has a sequence",
            highlight=("assert len(running) > 0",),
        ),
        kv.LIMIT_SOURCE,
    )
    log_patterns = kv.WITNESS_PATTERNS | {
        "assertion": r"assert len\(running\) > 0",
        "loop-ended": r"Engine main loop failed|_raise_exception_on_finish|AssertionError",
        "truncated": r"Update max_new_tokens|Truncate max_new_tokens",
    }
    key_log_patterns = ("assertion", "witness-limit", "truncated")
    references = (kv.FIX,)

    def plan_of(self, release: str) -> LmdeployPlan:
        return _SMALL.plan_of(release)

    def prompt_tokens(self, release: str) -> int:
        """Just so many that ``ROOM`` tokens are left below the limit, by arithmetic."""
        return self.plan_of(release).forward(Decimal(kv.SMALL)).max_tokens - ROOM

    @cached_property
    def mitigations(self) -> tuple[Mitigation, ...]:  # type: ignore[override]
        needed = self.prompt_tokens(self.release) + ANSWER
        best = kv.smallest_setting(self.plan_of(self.release), needed)
        return (kv.budget_mitigation(best, f"prompt and answer ({needed} tokens)"),)

    def patches_for(self, release: str) -> tuple[Patch, ...]:
        return (WITNESS, device_memory(self.plan_of(release).free))

    # ------------------------------------------------------------------ traffic

    async def ask(
        self, drive: Drive, label: str, text: str = SHORT, max_tokens: int = 4
    ) -> RequestRecord:
        return await drive.chat(
            label,
            text=text,
            max_tokens=max_tokens,
            extra={"messages": [{"role": "user", "content": text}], "ignore_eos": True},
        )

    def fitting(self, drive: Drive, short: RequestRecord) -> str:
        """A text that makes a prompt of ``prompt_tokens``; the template's are in ``short``."""
        template = (short.prompt_tokens or 0) - len(SHORT)
        return "7" * max(1, self.prompt_tokens(drive.release) - template)

    async def control(self, drive: Drive) -> None:
        drive.deadline_s = 240.0
        short = await self.ask(drive, f"{kv.CONTROL_LABEL}: short")
        if short.answered:
            text = self.fitting(drive, short)
            await self.ask(drive, f"{kv.CONTROL_LABEL}: growing", text, ANSWER)

    async def gate(self, drive: Drive) -> None:
        short = await self.ask(drive, "gate: short")
        await self.ask(drive, "gate: the prompt, a short answer", self.fitting(drive, short))
        await self.ask(drive, "gate: short again")

    async def trigger(self, drive: Drive) -> None:
        drive.deadline_s = max(drive.deadline_s, GROWTH_DEADLINE_S)
        short = await self.ask(drive, "short before")
        await self.ask(drive, "growing", self.fitting(drive, short), ANSWER)
        for number in range(1, RETRIES + 1):
            await self.ask(drive, f"short after {number}")

    def gate_check(self, evidence: Evidence) -> Finding:
        found = kv.answered(evidence, f"{kv.CONTROL_LABEL}: growing")
        if found.truth is not Truth.MET:
            return Finding.of(False, found.observed)
        return super().gate_check(evidence)

    # ------------------------------------------------------------------ signature

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "growth-fails",
                "symptom",
                "the request that grows beyond the cache fails",
                self.growth_fails,
            ),
            Condition(
                "all-fail-after",
                "symptom",
                f"every later request fails ({RETRIES} of {RETRIES}, short ones)",
                self.all_fail_after,
            ),
            Condition(
                "front-lives",
                "symptom",
                "/health and /v1/models still answer 200",
                checks.endpoints_green,
            ),
            Condition(
                "control-answers",
                "symptom",
                f"with --cache-max-entry-count {kv.BIG} the same request is answered",
                lambda e: kv.answered(e, f"{kv.CONTROL_LABEL}: growing"),
            ),
            Condition(
                "prompt-fits",
                "cause",
                "the engine accepts the prompt: it is within max_input_len, and prompt and answer "
                "together are not",
                self.prompt_fits,
            ),
            Condition(
                "assertion",
                "cause",
                "the log holds `assert len(running) > 0` of the engine loop",
                self.assertion,
            ),
        ]

    def growth_fails(self, evidence: Evidence) -> Finding:
        for record in evidence.labelled("growing"):
            found = kv.grade(record, None)
            return Finding.of(found.kind not in ("answered", "refusal"), self._told(record, found))
        return Finding.unknown("the growing request was not sent")

    def all_fail_after(self, evidence: Evidence) -> Finding:
        records = evidence.labelled("short after")
        if len(records) < RETRIES:
            return Finding.unknown(f"{len(records)} of {RETRIES} short prompts were sent")
        grades = [kv.grade(r, None) for r in records]
        text = "; ".join(g.words for g in grades)
        return Finding.of(all(g.kind != "answered" for g in grades), text)

    def prompt_fits(self, evidence: Evidence) -> Finding:
        ours = kv.sizing(evidence)
        seen = [r for r in kv.said(evidence, "request") if isinstance(r.get("input_tokens"), int)]
        if ours is None or not seen:
            return Finding.unknown("the witness saw no sizing or no request")
        tokens = max(r["input_tokens"] for r in seen)
        text = (
            f"{tokens} tokens, {ours.max_tokens:g} is the limit ({ours.blocks:g} blocks), "
            f"{tokens + ANSWER} asked for"
        )
        accepted = all(
            r.get("status") != "INPUT_LENGTH_ERROR" for r in seen if r["input_tokens"] == tokens
        )
        return Finding.of(accepted and tokens <= ours.max_tokens < tokens + ANSWER, text)

    def assertion(self, evidence: Evidence) -> Finding:
        count = checks.log_count(evidence, "assertion")
        if count is None:
            return Finding.unknown(evidence.why_missing("logs", "check"))
        if not count:
            return Finding.of(False, "the log holds no such assertion")
        line: LogLine = checks.log_lines(evidence, "assertion")[0]
        return Finding.of(
            True, f"{count} × {line.text.strip()}, line {line.number}", *checks.log_files(evidence)
        )

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """The loop's last words are in the log; which request it was does not matter any more."""
        kept = {c.id: c for c in super().live_conditions(facts)}
        return [live.every_request_fails(), kept["front-lives"], kept["assertion"]]

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        growing = evidence.labelled("growing")
        later = evidence.labelled("short after")
        if not growing or len(later) < RETRIES:
            return Finding.unknown(f"{len(later)} of {RETRIES} later requests were sent")
        first = kv.grade(growing[0], None)
        if first.kind != "answered" and not first.explained:
            return Finding.of(False, f"growing: {first.words}")
        bad = [r for r in later if kv.grade(r, None).kind != "answered"]
        text = f"{len(later) - len(bad)} of {len(later)} later requests answered"
        return Finding.of(not bad, f"growing: {self._told(growing[0], first)}; {text}")

    @staticmethod
    def _told(record: RequestRecord, found: kv.Grade) -> str:
        tokens = record.completion_tokens
        if found.kind == "answered" and tokens is not None and tokens < ANSWER:
            return f"{found.words}, cut short: {ANSWER} were asked for"
        return found.words

    # ------------------------------------------------------------------ tables

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        rows = []
        control = kv.answered(evidence, f"{kv.CONTROL_LABEL}: growing")
        for check, finding, bad in (
            ("the growing request", self.growth_fails(evidence), Truth.MET),
            ("short requests after it", self.all_fail_after(evidence), Truth.MET),
            ("/health, /v1/models", checks.endpoints_green(evidence), Truth.NOT_MET),
        ):
            healthy = control.observed if check == "the growing request" else "200"
            rows.append(
                SymptomRow(
                    check=check,
                    healthy="" if control.truth is Truth.UNKNOWN else healthy,
                    observed=finding.observed,
                    abnormal=None if finding.truth is Truth.UNKNOWN else finding.truth is bad,
                )
            )
        return rows

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        old = self.affects(facts.release)
        fits = self.prompt_fits(evidence)
        grown = evidence.labelled("growing")
        asserted = unmet(fits, self.assertion(evidence))
        loop = unmet(asserted, self.all_fail_after(evidence))
        truncated = Finding.unknown("the growing request was not sent")
        if grown:
            truncated = Finding.of(
                grown[0].answered and (grown[0].completion_tokens or 0) < ANSWER,
                self._told(grown[0], kv.grade(grown[0], None)),
            )
        if fits.truth is not Truth.MET:
            asserted = loop = truncated = Finding.unknown(
                "no request of this run outgrew the cache"
            )
        of_another = Finding.unknown(f"the claim is of other releases than {facts.release}")
        lab = "observation in the lab"
        return [
            claim(
                "asserts",
                "0.6.4, 0.7.0: the engine loop ends with assert len(running) > 0",
                asserted if old else of_another,
                lab,
            ),
            claim(
                "all-fail",
                "0.6.4, 0.7.0: the server lives on and fails every request",
                loop if old else of_another,
                lab,
            ),
            claim(
                "truncates",
                "0.18.0 cuts the answer at the limit",
                of_another if old else truncated,
                lab,
            ),
        ]


SCENARIO = KvGrowthCrash()
