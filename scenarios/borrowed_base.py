"""What the variants of ``borrowed-faults`` share: server, gate, tables, and who is exposed."""

from __future__ import annotations

import re
import shlex
from typing import ClassVar

from mmrepro.engines.minivllm import MinivllmEngine
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, SymptomRow
from mmrepro.models import TinyQwen3
from mmrepro.scenario import LiveFacts, Mitigation, RunFacts, Scenario
from mmrepro.scenario.hypotheses import hypothesis
from mmrepro.scenarios.mm_prefill_contract import switched_on
from mmrepro.signature import Finding, Truth, checks, combine, evaluate
from mmrepro.traffic.drive import Drive

BLOCK_SIZE = 16
IMAGE_TOKENS = 64
AFTER = "after: text only"
METRICS = MinivllmEngine.metrics
ROLE = MinivllmEngine.core_role


class BorrowedFault(Scenario):
    """A failure of another engine, as minivllm has it in twenty lines."""

    name = "borrowed-faults"
    engine = "minivllm"
    release = "0.1"
    affected = ">=0.1"
    model = TinyQwen3(image_tokens=IMAGE_TOKENS)
    options_of_fault = ()
    """Of the server, besides the switch."""
    origin: ClassVar[str]
    """Where the failure was seen first; for the report."""

    def __init_subclass__(cls) -> None:
        """What follows from a variant's name."""
        super().__init_subclass__()
        size = ("--block-size", str(BLOCK_SIZE), "--vision", "fake")
        cls.server = shlex.join(("--fault", cls.variant, *size, *cls.options_of_fault))
        what = "the code as it should be, in the one place that was wrong"
        cls.mitigations = (Mitigation("fix", what, server_args=("--fix", cls.variant)),)

    async def gate(self, drive: Drive) -> None:
        picture = drive.picture("gate", 3)
        await drive.chat("gate: text only", text="hello")
        await drive.chat("gate: text only, streamed", text="hello", stream=True)
        await drive.chat("gate: an image", images=[picture])
        await drive.chat("gate: the image again", images=[picture])

    def exposure(self, facts: LiveFacts) -> Finding:
        return switched_on(self.variant, facts, super().exposure(facts))

    def cause(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """All required conditions of the cause in one."""
        found = [c for c in self.conditions(facts) if c.required and c.part == "cause"]
        results = evaluate(found, evidence)
        said = "; ".join(f"{r.id}: {r.observed}" for r in results)
        return Finding(combine([r.truth for r in results]), said)

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        rows = []
        for label in dict.fromkeys(r.label for r in evidence.requests_in("trigger")):
            record = next(r for r in evidence.requests_in("trigger") if r.label == label)
            rows.append(
                SymptomRow(
                    check=label,
                    healthy=self.healthy_answer(label),
                    observed=told(record),
                    abnormal=told(record)[:3] != self.healthy_answer(label),
                )
            )
        green = checks.endpoints_green(evidence)
        abnormal = None if green.truth is Truth.UNKNOWN else green.truth is Truth.NOT_MET
        rows.append(
            SymptomRow(
                check="/health, /v1/models",
                healthy="200",
                observed=green.observed,
                abnormal=abnormal,
            )
        )
        return rows

    def healthy_answer(self, label: str) -> str:
        """The status that a request of the trigger gets from an engine without the fault."""
        return "200"

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        sent = bool(evidence.requests_in("trigger"))
        cause = Finding.unknown("this run is of the code without the fault")
        fixed = Finding.unknown(
            f"to test: mmrepro run {self.name} --variant {self.variant} --mitigation fix"
        )
        if "fix" in facts.mitigations:
            fixed = self.healthy_after(evidence, facts) if sent else fixed
        elif sent:
            cause = self.cause(evidence, facts)
        else:
            cause = Finding.unknown("the trigger was not run")
        return [
            hypothesis(
                "root-cause", f"it fails for the reason of {self.origin}", self.origin, cause
            ),
            hypothesis("fixed", "it works with that place put right", self.origin, fixed),
        ]


def told(record: RequestRecord) -> str:
    """Status, and what was said with it."""
    if record.timed_out:
        return f"no answer in {record.latency_s:.1f} s"
    found = re.search(r'"message": "((?:[^"\\]|\\.)*)"', record.error)
    return f"{record.status} {(found[1] if found else record.error)[:160]}".strip()


def all_answered(evidence: Evidence, labels: list[str]) -> Finding:
    """Each of ``labels`` was sent and answered."""
    for label in labels:
        sent = evidence.labelled(label)
        if not sent:
            return Finding.unknown(f"{label} was not sent")
        if bad := [r for r in sent if not r.answered]:
            return Finding.of(False, f"{bad[0].label}: {told(bad[0])}")
    return Finding.of(True, f"{', '.join(labels)}: answered")
