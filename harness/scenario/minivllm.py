"""What scenarios of minivllm share: a fault that is switched on, and the same place put right."""

from __future__ import annotations

import re
import shlex
from typing import ClassVar

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import SymptomRow
from mmrepro.models import TinyQwen3
from mmrepro.scenario.base import Scenario
from mmrepro.scenario.declare import Claim, Row, claim, cure, row
from mmrepro.scenario.parts import LiveFacts, RunFacts
from mmrepro.scenario.tables import OPPOSITE
from mmrepro.signature import Finding, Truth, checks
from mmrepro.signature.views import Requests
from mmrepro.traffic.drive import Drive

BLOCK_SIZE = 16
AFTER = "after: text only"


def _with_the_fault(facts: RunFacts, requests: Requests) -> Finding:
    if not requests.within("trigger"):
        return Finding.unknown("the trigger was not run")
    fixed = "fix" in facts.mitigations
    return Finding.of(not fixed, f"this run is of the code with{'out' if fixed else ''} the fault")


def _without_it(facts: RunFacts, requests: Requests) -> Finding:
    faulty = _with_the_fault(facts, requests)
    return Finding(OPPOSITE[faulty.truth], faulty.observed)


def root_cause(text: str, by: str = "cause") -> Claim:
    """What the fault does, judged by the conditions ``by`` where it is on."""
    return claim("root-cause", text, "{origin}", by=by, given=_with_the_fault)


def put_right(text: str) -> Claim:
    """That it works without the fault."""
    to_test = "to test: mmrepro run {name} --variant {variant} --mitigation fix"
    works = Scenario.healthy_after
    return claim("fixed", text, "{origin}", by=works, given=_without_it, otherwise=to_test)


class MinivllmFault(Scenario):
    """One of minivllm's faults. A variant is called as its switch; ``server`` is what it needs
    besides."""

    engine, release, affected = "minivllm", "0.1", ">=0.1"
    model = TinyQwen3()
    origin: str
    """Where the failure was seen first; for the report."""
    gate_images: tuple[str, ...] = ("gate: an image", "gate: the image again")
    refused: tuple[str, ...] = ()
    """Requests of the trigger that the engine should answer with 400."""
    summed_up: tuple[str, ...] = ()
    """Requests of the trigger that a declared row tells of."""
    claims: ClassVar[tuple[Claim, ...]] = (
        root_cause("it fails for the reason of {origin}"),
        put_right("it works with that place put right"),
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
            return Finding.unknown("the command line, where the fault would stand, cannot be seen")
        fault = self.variant
        on = facts.has(("--fault", fault)) or facts.has((f"--fault={fault}",))
        return Finding.of(on, f"the server runs with{'' if on else 'out'} --fault {fault}")

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        """A row for each request of the trigger that was sent, then what ``rows`` declares."""
        sent: dict[str, RequestRecord] = {}
        for record in evidence.requests_in("trigger"):
            if record.label not in self.summed_up:
                sent.setdefault(record.label, record)
        return [*map(self._row, sent.values()), *super().symptom_rows(evidence, facts)]

    def _row(self, sent: RequestRecord) -> SymptomRow:
        refused = sent.label in self.refused
        return SymptomRow(
            check=sent.label,
            healthy="400" if refused else "200",
            observed=sent.reply,
            abnormal=sent.status != 400 if refused else not sent.answered,
        )


def place(name: str) -> str:
    """The pattern of a traceback's frame, from ``images.py:warm_up``; of a file that does not
    parse, which has no function, from ``images.py``."""
    file, _, function = name.partition(":")
    return rf'{re.escape(file)}", line \d+' + (f", in {function}" if function else "$")
