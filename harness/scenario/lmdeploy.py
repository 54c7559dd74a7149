"""What LMDeploy's scenarios share: a small KV cache beside a larger one, and its
witness."""

from __future__ import annotations

import asyncio
import json
import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import Any, ClassVar

from mmrepro.engines import Mitigation, Patch
from mmrepro.engines.lmdeploy import WITNESS, WITNESS_PATTERNS, device_memory
from mmrepro.engines.models import TinyModel, TinyText
from mmrepro.failure.signature import Finding, Logs, Truth, View, answers, guarded
from mmrepro.kv_budget import Budget, LmdeployPlan, smallest
from mmrepro.probes import LogLine, LogsData
from mmrepro.scenario.definition import Scenario, bind
from mmrepro.scenario.parts import (
    Control,
    Declared,
    RunFacts,
    cure,
    precondition,
    pull,
    quote,
    symptom,
)
from mmrepro.traffic import COMPLETIONS, Drive, RequestWatch
from mmrepro.traffic.evidence import Evidence, Missing, Phase, RequestRecord

RELEASE = "0.6.4"
"""Of the report."""
SMALL, BIG = Decimal("0.1"), Decimal("0.5")
"""``--cache-max-entry-count`` of the run's own server and of the control server: the
report's."""
KV_BYTES, BLOCK_BYTES, VOCABULARY = 1_807_097_856, 8_388_608, 92_553
"""What the report's GPU had left for the KV cache before the setting, and its model,
InternVL2-8B. The first is solved from the report (``gpu_mem`` 903 548 928 with 0.5), to
the byte: it confirms nothing of that number."""
SOLVED = (
    "the free memory was solved from the report's own gpu_mem, 903 548 928 B with 0.5"
)
LOGGED_FREE_MB = 6784
"""The same memory before the reserve, by the report's DEBUG line, cut to whole MiB:
that, and not gpu_mem, is what its blocks and limits follow from."""
SCALE = 64
"""The tiny models' blocks are that much smaller, and so is the memory: the same block
counts."""
CONTROL = "control server: "
"""Begins the labels of the control server's requests."""
SHORT, ANSWER = "hi", 4
_LONG_DEADLINE_S = 240.0
LIMIT_SOURCE = quote(
    "lmdeploy/pytorch/engine/engine.py",
    "Engine._get_max_session_len",
    "the longest prompt follows from the blocks",
    "max_tokens",
)
FIX = pull("lmdeploy#2981", "the error as a finish reason (0.7.0)")

# ------------------------------------------------------------------ the servers


def kv_plan(release: str, scale: int = SCALE) -> LmdeployPlan:
    """The run's memory and model in ``release``'s own arithmetic.

    Releases keep different amounts back for the forward pass; what is left is the
    report's."""
    roomy = LmdeployPlan(
        release, 1 << 60, bytes_per_block=1, vocab_size=VOCABULARY // scale
    )
    free = KV_BYTES // scale + roomy.reserve(0.5)[0]
    return replace(roomy, free=free, bytes_per_block=BLOCK_BYTES // scale)


def larger_setting(tokens: int, holds: str) -> tuple[Budget, Mitigation]:
    """The smallest setting with two decimals that has room for ``tokens``, by
    arithmetic alone, and the mitigation ``kv-budget``; ``holds``: the tokens in
    words."""
    best = smallest(kv_plan(RELEASE), tokens, decimals=2).setting
    assert best is not None, f"no setting holds {tokens} tokens"
    option = f"--cache-max-entry-count {best.setting}"
    description = (
        f"{option}: the smallest setting with two decimals that holds {holds}, by "
        f"`mmrepro kv-budget`: {best.blocks} blocks, {best.max_tokens} tokens"
    )
    return best, cure("kv-budget", option, description)


async def ask(
    drive: Drive,
    label: str,
    text: str = SHORT,
    tokens: int = ANSWER,
    *,
    stream: bool = False,
) -> RequestRecord:
    """One request whose content is plain text: 0.6.4 takes no list for a text model."""
    extra = {"messages": [{"role": "user", "content": text}], "ignore_eos": True}
    return await drive.chat(
        label, text=text, max_tokens=tokens, stream=stream, extra=extra
    )


async def complete(
    drive: Drive,
    label: str,
    prompt: str | list[str],
    tokens: int = 2,
    *,
    stream: bool = False,
    piece: Callable[[int], None] = lambda _: None,
    leave: bool = False,
    **fields: Any,
) -> RequestRecord:
    """One plain completion of so many tokens.

    Args:
        piece: called with the number of pieces of the stream so far, at each.
        leave: the client goes away as soon as the request is written.
        fields: further ones of the body.
    """
    body = {
        "model": drive.traffic.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": stream,
    }
    return await drive.traffic.send(
        label,
        json.dumps({**body, "temperature": 0, "ignore_eos": True, **fields}).encode(),
        RequestWatch(lambda: None, piece, 0 if leave else None),
        path=COMPLETIONS,
        stream=stream,
        text=prompt if isinstance(prompt, str) else "\n".join(prompt),
        max_tokens=tokens,
        deadline_s=drive.deadline_s,
    )


async def reached(
    number: int, pieces: asyncio.Queue[int], answering: asyncio.Task[RequestRecord]
) -> int:
    """Pieces of a watched answer by now: ``number`` of them or more, unless it has
    ended."""
    seen = 0
    while seen < number and not (answering.done() and pieces.empty()):
        with suppress(TimeoutError):
            seen = await asyncio.wait_for(pieces.get(), 0.5)
        while not pieces.empty():
            seen = pieces.get_nowait()
    return seen


def filling(tokens: int, short: RequestRecord) -> str:
    """A text that makes a prompt of ``tokens``: what the chat template adds is in
    ``short``."""
    template = (short.prompt_tokens or 0) - len(SHORT)
    return "7" * max(1, tokens - template)


class SmallKvCache(Scenario):
    """Requests that outgrow a small KV cache, and the same on a server with a larger
    one."""

    engine, release = "lmdeploy", RELEASE
    model: ClassVar[TinyModel] = TinyText()
    max_model_len = 32768
    server = f"--cache-max-entry-count {SMALL} --max-batch-size 128"
    control_server = Control(
        f"the same server with --cache-max-entry-count {BIG}",
        ("--cache-max-entry-count", str(BIG)),
    )
    log_patterns = WITNESS_PATTERNS
    scale: ClassVar[int] = SCALE
    outgrowing: ClassVar[tuple[str, ...]]
    """Labels of what :meth:`outgrow` sends."""
    later: ClassVar[tuple[str, ...]] = ("short after",)
    """Labels of the short requests after it."""
    trigger_deadline_s: ClassVar[float] = _LONG_DEADLINE_S

    @abstractmethod
    async def outgrow(self, drive: Drive, where: str, short: RequestRecord) -> None:
        """Send what the small cache cannot hold; ``where`` begins its labels."""

    @abstractmethod
    def asked(self, witness: Witness) -> int:
        """Tokens that the trigger asked the cache to hold, as the engine counted them.
        Raises
        Missing: it did not get as far as the engine."""

    @precondition(
        "the engine's blocks hold less than the trigger asks for",
        removed_by=("kv-budget",),
    )
    def outgrows_cache(self, witness: Witness) -> Finding:
        sizing, asked = witness.sizing(), self.asked(witness)
        limits: set[float] = {request.limit for request in witness.requests()}
        limits.add(sizing.max_session_len)
        holds = f"{sizing.num_gpu_blocks:g} blocks of {sizing.block_size:g}"
        if len(limits) > 1 or not sizing.limit_adds_up:
            shown = ", ".join(f"{limit:g}" for limit in sorted(limits))
            return Finding.unknown(
                f"{asked} tokens; the limit {shown} is not what {holds} give"
            )
        text = f"{asked} tokens; {holds} hold {sizing.max_session_len:g}"
        return Finding.of(asked > sizing.max_session_len, text)

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Whether the cache is still too small: what the setting is said to change."""
        return guarded(bind(self.outgrows_cache, self, facts), evidence)

    def plan_of(self, release: str) -> LmdeployPlan:
        return kv_plan(release, self.scale)

    def patches_for(self, release: str) -> tuple[Patch, ...]:
        return (WITNESS, device_memory(self.plan_of(release).free))

    async def control(self, drive: Drive) -> None:
        drive.deadline_s = _LONG_DEADLINE_S
        short = await ask(drive, f"{CONTROL}short")
        if short.answered:
            await self.outgrow(drive, CONTROL, short)

    async def trigger(self, drive: Drive) -> None:
        drive.deadline_s = max(drive.deadline_s, self.trigger_deadline_s)
        await self.outgrow(drive, "", await ask(drive, "short before"))
        for label in self.later:
            await ask(drive, label)

    def gate_check(self, evidence: Evidence) -> Finding:
        """The gate's requests, and before them those of the control server, were
        answered."""
        labels = [f"{CONTROL}{label}" for label in self.outgrowing]
        control = guarded(answers.given(*labels), evidence)
        if control.truth is not Truth.MET:
            return Finding.of(False, control.observed)
        return super().gate_check(evidence)


def control_answers(label: str, what: str) -> Declared:
    statement = f"with --cache-max-entry-count {BIG} the same {what} is answered"
    return symptom(statement, answers.given(CONTROL + label), id="control-answers")


# ------------------------------------------------------------------ the witness


@dataclass(frozen=True)
class Sizing:
    """How one server sized its KV cache, in LMDeploy's names; the first three are
    bytes."""

    free: float
    runtime: float
    block_bytes: float
    cache_max_entry_count: float
    num_gpu_blocks: float
    num_reserved_gpu_blocks: float
    block_size: float
    max_session_len: float

    @property
    def blocks_add_up(self) -> bool:
        """Whether the blocks are what these bytes give."""
        pool = (self.free - self.runtime) * self.cache_max_entry_count
        return int(pool / self.block_bytes) == self.num_gpu_blocks

    @property
    def limit_adds_up(self) -> bool:
        """Whether the longest prompt is these blocks' tokens: less one or two since
        0.10.0."""
        fewer = self.num_gpu_blocks - self.num_reserved_gpu_blocks - 1
        return self.max_session_len in (
            self.num_gpu_blocks * self.block_size,
            fewer * self.block_size,
        )

    def __str__(self) -> str:
        return (
            f"({self.free:.0f} free − {self.runtime:.0f} kept back) × "
            f"{self.cache_max_entry_count:g} / {self.block_bytes:.0f} B a block = "
            f"{self.num_gpu_blocks:g} blocks"
        )


@dataclass(frozen=True)
class Admission:
    """A request as the engine took it: its tokens, the longest it takes, the answer's
    status."""

    tokens: int
    limit: int
    status: str | None
    seconds: float
    generated: int
    """Tokens of the answer; 0: none, or not told (0.18.0)."""
    line: int
    """Of the log, written when the request ended."""

    @property
    def refused(self) -> bool:
        return self.status == "INPUT_LENGTH_ERROR"


class Witness(View):
    """What LMDeploy's witness wrote to the servers' logs; a live server has none."""

    observable = False

    def values(self, event: str, *phases: Phase) -> list[dict[str, Any]]:
        """Oldest first, each with its line in the log; of the run's own server unless a
        phase is given."""
        # By file and line: a log that is read again has the same lines.
        documents: dict[tuple[str, int], Any] = {}
        for _, data in self.evidence.results(LogsData, *phases):
            for line in data.matches.get(f"witness-{event}", ()):
                text = line.text.partition(f"mmrepro-witness-{event} ")[2]
                # A line that was cut or torn says nothing.
                with suppress(ValueError):
                    documents[data.file, line.number] = json.loads(text)

        values: list[dict[str, Any]] = []
        for (_, number), document in documents.items():
            if isinstance(document, dict):
                values.append(document | {"line": number})
        return values

    def sizing(self, *phases: Phase) -> Sizing:
        """The last one. Raises Missing: not all of it was seen."""
        seen: dict[str, Any] = {}
        for event in ("budget", "limit"):
            for values in self.values(event, *phases)[-1:]:
                seen |= values
        seen["free"] = seen.get("memory")
        # 0.18.0 has another name for it.
        seen.setdefault("block_bytes", seen.get("rank_block_bytes"))
        seen["num_reserved_gpu_blocks"] = seen.get("num_reserved_gpu_blocks") or 0

        numbers: list[Any] = []
        for field in fields(Sizing):
            value = seen.get(field.name)
            numbers.append(value[0] if isinstance(value, list) and value else value)
        finite = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
        if not finite or not numbers[2]:
            whose = "the control server" if "control" in phases else "the server"
            raise Missing(f"the witness did not see {whose} size its KV cache")
        return Sizing(*numbers)

    def requests(self, least: int = 1) -> list[Admission]:
        """The requests of at least so many tokens, oldest first. Raises Missing: it saw
        none."""
        long: list[Admission] = []
        for values in self.values("request"):
            tokens, limit = values.get("input_tokens"), values.get("max_input_len")
            if not isinstance(tokens, int) or not isinstance(limit, int):
                continue
            if tokens >= least:
                admission = Admission(
                    tokens,
                    limit,
                    values.get("status"),
                    values["seconds"],
                    values.get("generated") or 0,
                    values["line"],
                )
                long.append(admission)
        if not long:
            raise Missing(
                f"no request of {least} tokens or more was seen; LMDeploy logs no lengths"
            )
        return long

    def grade(self, record: RequestRecord) -> answers.Grade:
        """How ``record`` reads, beside the longest prompt of the run's own server."""
        grade = answers.grade(record)
        if not grade.explained:
            return grade
        try:
            return answers.grade(record, self.sizing().max_session_len)
        except Missing:
            return grade


# --------------------------------------------------------------- the log of this server


def since_start(logs: Logs, pattern: str) -> list[LogLine]:
    """Lines of a named pattern since the engine sized its cache: older ones are another
    server's. Of a server without a witness: all of them. Raises Missing as
    ``Logs.lines``."""
    began = _began(logs.evidence)
    return [line for line in logs.lines(pattern) if line.number > began]


def first_error(logs: Logs) -> LogLine | None:
    """The first line of an error since then, whatever it says; None: there is none, be
    it that the log keeps them back."""
    began = _began(logs.evidence)
    for _, data in logs.evidence.results(LogsData):
        for line in data.errors:
            if line.number > began:
                return line
    return None


def _began(evidence: Evidence) -> int:
    return max(
        (values["line"] for values in Witness(evidence).values("limit")), default=0
    )
