"""What scenarios of minivllm share: a fault that is switched on, and the same place put
right."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, ClassVar

from mmrepro.engines.models import TinyQwen3
from mmrepro.failure.signature import Finding, Logs, Metrics, Requests, Truth, checks
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import (
    ASKS_FOR_A_CHANGE,
    OPPOSITE,
    Claim,
    LiveFacts,
    Row,
    RunFacts,
    Upstream,
    UpstreamState,
    claim,
    cure,
    row,
)
from mmrepro.traffic import Drive
from mmrepro.traffic.evidence import Evidence, Missing, RequestRecord

if TYPE_CHECKING:
    from mmrepro.failure.documents import SymptomRow

BLOCK_SIZE = 16
_PIXELS = 28
"""A side of what becomes one embedding."""
AFTER = "after: text only"


class Switched(Scenario):
    """A scenario whose ``variant`` is a fault that the engine says is on."""

    def fault_on(self, requests: Requests, logs: Logs) -> Finding:
        """For ``given`` of a claim: the run is of the code with the fault."""
        if not requests.within("trigger"):
            return Finding.unknown("the trigger was not run")
        return self.fault_said(logs)

    def fault_said(self, logs: Logs) -> Finding:
        """The engine says so before it makes anything."""
        says = logs.search("fault-on", rf"\bfault {re.escape(self.variant)} is on\b")
        return Finding.of(
            bool(says), f"minivllm runs with{'' if says else 'out'} that fault"
        )

    def fault_off(self, requests: Requests, logs: Logs) -> Finding:
        on = self.fault_on(requests, logs)
        return Finding(OPPOSITE.get(on.truth, on.truth), on.observed)

    setattr(fault_off, ASKS_FOR_A_CHANGE, True)


def root_cause(text: str) -> Claim:
    """What the fault does, judged by symptom and cause where it is on."""
    given = (Switched.fault_on, "arrived")
    return claim(
        "root-cause",
        f"minivllm's own fault {text}",
        "minivllm",
        by=("symptom", "cause"),
        given=given,
    )


def put_right(text: str) -> Claim:
    to_test = "to test: mmrepro run {name} --variant {variant} --mitigation fix"
    works, given = Scenario.healthy_after, (Switched.fault_off, "arrived")
    return claim("fixed", text, "minivllm", by=works, given=given, otherwise=to_test)


ELSEWHERE = claim(
    "original",
    "the engine that the fault was borrowed from fails for this reason",
    "{origin}",
    untested=(
        "minivllm is a teaching engine: what it does says nothing of another one{real}"
    ),
)


def admitted(requests: Requests, logs: Logs) -> list[tuple[RequestRecord, int]]:
    """What the engine took in, in order, and the tokens that it counted of each: it
    logs a line for every request that it does not refuse.

    Raises:
        Missing: the log tells of none, or counts other tokens than an answer has: it is
            not the log of these requests.
    """
    lines = logs.search("added-request", r"Added request \S+: (\d+) tokens")
    counts = [int(line[1]) for line in lines]
    taken: list[RequestRecord] = []
    for sent in requests.within("gate", "trigger"):
        if sent.status in (200, 500) or sent.timed_out:
            taken.append(sent)

    admissions = list(zip(taken, counts, strict=False))
    for sent, tokens in admissions:
        if sent.prompt_tokens not in (None, tokens):
            raise Missing(
                f"{sent.label}: the log counts {tokens} tokens, its answer "
                f"{sent.prompt_tokens}: not the log of these requests"
            )
    if not admissions:
        raise Missing("the log tells of no request that the engine took in")
    return admissions


def counted(requests: Requests, logs: Logs, label: str) -> int:
    """Tokens of the prompt of the request called ``label``, as the engine counts them.
    Raises Missing."""
    requests.first(label)
    counts = {sent.label: tokens for sent, tokens in admitted(requests, logs)}
    if label not in counts:
        raise Missing(f"the log does not show that the engine took in {label}")
    return counts[label]


def told(metrics: Metrics, name: str) -> int:
    """What the engine's metric said last. Raises Missing."""
    return int(metrics.readings([f"minivllm:{name}"], least=1)[-1])


def embeddings(sent: RequestRecord) -> int:
    """The embeddings that the images of a request become where none is scaled."""
    count = 0
    for image in sent.images:
        count += image.width * image.height // _PIXELS**2
    return count


def in_last_block(tokens: int, size: int) -> int:
    return (tokens - 1) % size + 1


class MinivllmFault(Switched):
    """One of minivllm's faults. A variant is called as its switch; ``server`` is what
    it needs besides."""

    engine, release, affected = "minivllm", "0.1", ">=0.1"
    upstream = Upstream(UpstreamState.PLANTED)
    model = TinyQwen3()
    origin: str
    """Where the failure was seen first; for the report."""
    real: str = ""
    """Where to see the original: "; see SCENARIO"."""
    gate_images: tuple[str, ...] = ("gate: an image", "gate: the image again")
    refused: tuple[str, ...] = ()
    """Requests of the trigger that the engine should answer with 400."""
    summed_up: tuple[str, ...] = ()
    """Requests of the trigger that a declared row tells of."""
    claims: ClassVar[tuple[Claim, ...]] = (
        root_cause("{variant} fails so, and by its cause"),
        put_right("minivllm works with that place put right"),
        ELSEWHERE,
    )
    rows: ClassVar[tuple[Row, ...]] = (
        row("/health, /v1/models", checks.endpoints_green, "200", abnormal_if=False),
    )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        what = "the code as it should be, in the one place that was wrong"
        cls.mitigations = (cure("fix", f"--fix {cls.variant}", what),)

    @property
    def server_args(self) -> tuple[str, ...]:
        shared = f"--fault {self.variant} --vision fake --block-size {BLOCK_SIZE}"
        return (*shlex.split(shared), *super().server_args)

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text only", text="hello")
        await drive.chat("gate: text only, streamed", text="hello", stream=True)
        for label in self.gate_images:
            await drive.chat(label, images=[drive.picture("gate", 3)])

    def exposure(self, facts: LiveFacts) -> Finding:
        """The switch is what a release is elsewhere."""
        exposed = super().exposure(facts)
        if exposed.truth is not Truth.MET:
            return exposed
        if not facts.command:
            return Finding.unknown(
                "the command line, where the fault would stand, cannot be seen"
            )
        fault = self.variant
        on = facts.has(("--fault", fault)) or facts.has((f"--fault={fault}",))
        if on and facts.option("--fault-probability") is not None:
            return Finding.unknown(
                "whether the fault is on was left to chance: its log tells"
            )
        return Finding.of(
            on, f"the server runs with{'' if on else 'out'} --fault {fault}"
        )

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """A ``fix`` that the engine does not confirm has taken no cause away."""
        remains = super().cause_remains(evidence, facts)
        if "fix" not in facts.mitigations or remains.truth is not Truth.NOT_MET:
            return remains
        off = self.fault_off(Requests(evidence), Logs(evidence))
        return remains if off.truth is Truth.MET else Finding.unknown(off.observed)

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        """A row for each request of the trigger that was sent, then what ``rows``
        declares."""
        sent: dict[str, RequestRecord] = {}
        for record in evidence.requests_in("trigger"):
            if record.label not in self.summed_up:
                sent.setdefault(record.label, record)
        return [*map(self._row, sent.values()), *super().symptom_rows(evidence, facts)]

    def _row(self, sent: RequestRecord) -> SymptomRow:
        from mmrepro.failure.documents import SymptomRow

        refused = sent.label in self.refused
        return SymptomRow(
            check=sent.label,
            healthy="400" if refused else "200",
            observed=sent.reply,
            abnormal=sent.status != 400 if refused else not sent.answered,
        )


def place(name: str) -> str:
    """The pattern of a traceback's frame, from ``images.py:warm_up``; of a file that
    does not parse, which has no function, from ``images.py``."""
    file, _, function = name.partition(":")
    return rf'{re.escape(file)}", line \d+' + (f", in {function}" if function else "$")
