"""vLLM: one worker of two stops for good while a request runs."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import ClassVar

from mmrepro.base.records import StandIn
from mmrepro.engines import Patch
from mmrepro.engines.waits import Wait, wait_places, waiting
from mmrepro.probes import ProcessUse
from mmrepro.scenario import (
    Claim,
    Drive,
    Evidence,
    FailureClass,
    Finding,
    LiveFacts,
    Logs,
    Reference,
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
    row,
    symptom,
    with_variants,
)
from mmrepro.scenario.more import ProcessesData, StacksData, ThreadStack, crash
from mmrepro.scenario.parts import Declared, Row

_SEED = 4_191_337
"""Marks the request in whose step the worker stops:
reproducers/standins/worker_wedge."""
MARKED, TEXT = "the marked request", "meanwhile: text"
_MARKS = 4
"""Requests that are marked, one after another, until one lands on the replica that
stops."""
BURST = [f"one of four: {n}" for n in range(1, 5)]
_SAMPLES = 3
_REPORT = issue(
    "vllm#27313", "No available shared memory broadcast block found in 60 seconds"
)
_GUARD = issue(
    "vllm#48720", "no watchdog and no timeout on the tensor parallel dimension"
)
_DIED = issue(
    "vllm#20657", "Worker proc VllmWorker-2 died unexpectedly, shutting down executor"
)
_UNEVEN = issue(
    "vllm#40279", "most requests are stuck on one card, and other ones have no work"
)
ENDED, RAISED = "worker-died", "worker-raised"
_ONE = "one-process"


def _wedge(kind: str, rank: str = "1") -> Patch:
    which = f"of replica {rank[2:]}" if rank.startswith("dp") else f"of rank {rank}"
    return Patch(
        "worker_wedge",
        StandIn(
            name="worker_wedge",
            replaces=f"nothing: wraps Worker.execute_model {which}, which stops for "
            f"good ({kind}) when a request with one seed is scheduled",
            why="why a worker stops is another question each time: a kernel, a lock, a "
            "library; what the server does about it is the same",
        ),
        env={"MMREPRO_WEDGE": kind}
        | ({} if rank == "1" else {"MMREPRO_WEDGE_RANK": rank}),
    )


def _main_threads(evidence: Evidence, role: str) -> dict[int, list[ThreadStack]]:
    """The main thread in each sample, of each process whose role begins so."""
    threads: dict[int, list[ThreadStack]] = {}
    for process in _measured(evidence):
        if process.role.startswith(role) and process.state not in "ZX":
            threads[process.pid] = []
    for _, data in evidence.results(StacksData, "check"):
        for sample in data.samples:
            if sample.pid not in threads:
                continue
            main = [thread for thread in sample.threads if thread.name == "MainThread"]
            threads[sample.pid] += main
    return threads


def _measured(evidence: Evidence) -> list[ProcessUse]:
    """The server's processes, of each reading in the check."""
    processes: list[ProcessUse] = []
    for _, data in evidence.results(ProcessesData, "check"):
        processes += data.processes
    return processes


def _kinds_of_wait(
    threads: dict[int, list[ThreadStack]],
) -> dict[int, set[Wait | None]]:
    """The kinds of wait of each process; those that were sampled too seldom are left
    out."""
    kinds: dict[int, set[Wait | None]] = {}
    for pid, stacks in threads.items():
        if len(stacks) >= _SAMPLES:
            kinds[pid] = {*_waits(stacks)}
    return kinds


def _waits(threads: Sequence[ThreadStack]) -> Iterator[Wait | None]:
    for thread in threads:
        found = waiting(thread.frames, wait_places("vllm"))
        yield found.wait if found else None


def _core_waits(evidence: Evidence) -> Finding:
    """EngineCore has handed its step out and waits for an answer, in every sample."""
    waits: list[Wait | None] = []
    for stacks in _main_threads(evidence, "EngineCore").values():
        waits += _waits(stacks)
    if len(waits) < _SAMPLES:
        return Finding.unknown(f"{len(waits)} samples show its main thread")
    count = waits.count(Wait.WORKER)
    return Finding.of(
        count == len(waits), f"{count} of {len(waits)} samples wait for a worker"
    )


def _standing(evidence: Evidence) -> tuple[dict[int, list[ThreadStack]], int]:
    """Workers that stand in one place outside of every known wait, and of how many."""
    sampled = 0
    standing: dict[int, list[ThreadStack]] = {}
    for pid, stacks in _main_threads(evidence, "Worker").items():
        if len(stacks) < _SAMPLES:
            continue
        sampled += 1
        places: set[tuple[str, int]] = set()
        for stack in stacks:
            if stack.frames:
                places.add((stack.frames[0].function, stack.frames[0].line))
        if len(places) == 1 and not any(_waits(stacks)):
            standing[pid] = stacks
    return standing, sampled


def _one_process(evidence: Evidence) -> Finding | None:
    """A finding that it has not two workers; None: it has, or its processes were not
    measured."""
    measured = [
        p for _, d in evidence.results(ProcessesData, "check") for p in d.processes
    ]
    count = len({p.pid for p in measured if p.role.startswith("Worker")})
    if not measured or count > 1:
        return None
    return Finding.of(False, f"{count} workers among its processes")


def _one_stands(evidence: Evidence) -> Finding:
    if alone := _one_process(evidence):
        return alone
    standing, count = _standing(evidence)
    if count < 2:
        return Finding.unknown(f"stacks of {count} workers were read")
    where = [
        f"{some[0].frames[0].function} (pid {pid})" for pid, some in standing.items()
    ]
    observed = (
        f"{len(standing)} of {count} workers stand outside of every wait: "
        f"{', '.join(where)}"
    )
    return Finding.of(0 < len(standing) < count, observed)


def _with_the_gil(evidence: Evidence) -> Finding:
    if alone := _one_process(evidence):
        return alone
    standing, count = _standing(evidence)
    if count < 2:
        return Finding.unknown(f"stacks of {count} workers were read")
    some = [thread for threads in standing.values() for thread in threads]
    held = sum(thread.owns_gil is True for thread in some)
    return Finding.of(
        0 < held == len(some), f"{held} of {len(some)} samples of it have the GIL"
    )


def _one_left(evidence: Evidence) -> Finding:
    """One worker waits in a collective operation, and another one for its next
    order."""
    alone = _one_process(evidence)
    if alone:
        return alone
    kinds = list(_kinds_of_wait(_main_threads(evidence, "Worker")).values())
    if len(kinds) < 2:
        return Finding.unknown(f"stacks of {len(kinds)} workers were read")
    held = kinds.count({Wait.COLLECTIVE})
    free = kinds.count({Wait.WORK})
    return Finding.of(
        held > 0 and free > 0,
        f"{held} of {len(kinds)} workers wait in a collective, {free} for an order",
    )


def _one_is_stopped(evidence: Evidence) -> Finding:
    alone = _one_process(evidence)
    if alone:
        return alone
    states: dict[str, str] = {}
    for process in _measured(evidence):
        if process.role.startswith("Worker"):
            states[process.role] = process.state
    if not states:
        return Finding.unknown("no worker was measured")
    stopped = [role for role, state in states.items() if state in "Tt"]
    return Finding.of(
        0 < len(stopped) < len(states), f"states of the workers: {states}"
    )


def _one_core_waits(evidence: Evidence) -> Finding:
    """One core waits for the answer of a worker, and each other one for work."""
    cores = _main_threads(evidence, "EngineCore")
    if len(cores) == 1:
        return Finding.of(False, "it has one core")
    waits = [list(_waits(stacks)) for stacks in cores.values()]
    read = [seen for seen in waits if len(seen) >= _SAMPLES]
    if len(read) < len(cores) or not cores:
        return Finding.unknown(f"stacks of {len(read)} of {len(cores)} cores were read")
    held = sum(set(seen) == {Wait.WORKER} for seen in read)
    # A slow one may still answer what it has in the first samples.
    free = sum(seen[-1] is Wait.WORK for seen in read)
    return Finding.of(
        held == 1 and free == len(read) - 1,
        f"{held} of {len(read)} cores wait for a worker, {free} for work",
    )


def _marked_hangs(requests: Requests) -> Finding:
    """One of those that are marked: what lands on the other replica is answered."""
    sent = requests.all(MARKED)
    hung = [r for r in sent if r.timed_out]
    return Finding.of(
        bool(hung), f"{len(hung)} of {len(sent)} marked requests had no answer"
    )


def _some_of_many(requests: Requests) -> Finding:
    sent = [requests.first(label) for label in BURST]
    hung = sum(request.timed_out for request in sent)
    served = sum(request.answered for request in sent)
    return Finding.of(
        hung > 0 and served > 0,
        f"{hung} of {len(sent)} sent at once had no answer, {served} were answered",
    )


class WorkerWedged(Scenario):
    """One worker of two stops for good, and the server goes on saying that it is
    healthy.

    What: A server with tensor parallel 2 has a worker that stops in its own code. The
    running request is never answered, nor is any later one. /health stays 200. The
    other worker waits in a collective operation, and EngineCore for the answer of a
    worker.

    Why: EngineCore watches whether its workers live, not whether they work. It waits
    for the answer of a step for VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, five minutes, and
    ends then. Between the ranks there is no timeout: who waits in a collective
    operation waits for ever."""

    name = "worker-wedged"
    variant = "python"
    release, affected = "0.32.0", ">=0.23.0"
    """Of 0.23.0 every variant was run, and of 0.24.0 one; nothing older."""
    failure_class: ClassVar[FailureClass | None] = FailureClass.SILENT_HANG
    needs = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
    severity = Severity.CRITICAL
    upstream = Upstream(
        UpstreamState.OPEN, _GUARD, "2026-11-26", note="a proposal of a guard"
    )
    references: ClassVar[tuple[Reference, ...]] = (_REPORT, _GUARD)
    server = "--tensor-parallel-size 2 --max-num-seqs 8"
    server_env = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    patches = (_wedge("python"),)
    mitigations = (
        cure(
            _ONE,
            "--tensor-parallel-size 1",
            "one process: there is no other one to wait for",
        ),
    )
    log_patterns = {
        "wedged": r"mmrepro stand-in worker_wedge: rank \d+ goes",
        RAISED: r"WorkerProc hit an exception",
        ENDED: r"Worker proc \S+ died unexpectedly",
        "engine-dead": crash.LOG_PATTERNS["engine-dead"],
    }

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text", text="hello")
        await drive.chat("gate: another text", text="hello again")

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(MARKED, extra={"seed": _SEED})
        await drive.ask(TEXT)

    @precondition("the stand-in says that it stopped the worker", removed_by=(_ONE,))
    def arrived(self, logs: Logs, requests: Requests) -> Finding:
        requests.first(MARKED)
        return Finding.of(
            bool(logs.count("wedged")), f"{logs.count('wedged')} lines say so"
        )

    def exposure(self, facts: LiveFacts) -> Finding:
        words = " ".join(facts.command)
        sizes = [
            w
            for w in ("tensor-parallel", "-tp", "pipeline-parallel", "-pp")
            if w in words
        ]
        if not facts.command:
            return Finding.unknown("its command line cannot be read")
        return Finding.of(
            bool(sizes), f"{', '.join(sizes) or 'one process'} on its command line"
        )

    symptoms: ClassVar[tuple[Declared, ...]] = (
        common.never_answered(MARKED),
        common.new_request_unanswered(),
        common.endpoints_green(),
        common.process_alive(),
    )
    live_only: ClassVar[tuple[Declared, ...]] = (common.tokens_stand_still(),)
    causes: ClassVar[tuple[Declared, ...]] = (
        cause("EngineCore waits for the answer of a worker", _core_waits, live=True),
        cause(
            "one worker stands in its own code, the other one does not",
            _one_stands,
            live=True,
        ),
    )
    works_after = (common.answered(TEXT),)
    rows: ClassVar[tuple[Row, ...]] = (
        row(MARKED, "no-answer", "200"),
        row("a text after it", "no-answer-later", "200"),
        row("/health, /v1/models", "endpoints-green", "200, 200", abnormal_if=False),
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        claim(
            "hangs",
            "a worker that stops takes every request with it",
            _REPORT,
            by=("no-answer", "no-answer-later"),
            given="arrived",
        ),
        claim(
            "no-watchdog",
            "nothing notices it: /health stays 200",
            _GUARD,
            by="endpoints-green",
            given="no-answer",
        ),
    )


class WedgedInC(WorkerWedged):
    """One worker of two stops in C code with the GIL, and no thread of it goes on."""

    variant = "c"
    patches = (_wedge("c"),)
    causes = (
        *WorkerWedged.causes,
        cause("it keeps the GIL in every sample", _with_the_gil, live=True),
    )


class Stopped(WorkerWedged):
    """One worker of two is stopped by a signal, and the server says that it is
    healthy."""

    variant = "stopped"
    patches = (_wedge("stopped"),)
    causes = (
        cause("EngineCore waits for the answer of a worker", _core_waits, live=True),
        cause("one worker is stopped (state T)", _one_is_stopped, live=True),
    )


class RaisedByWorker(WorkerWedged):
    """One worker of two raises in a step, and the other one waits for it in a
    collective operation.

    What: The exception is in the log. The running request is never answered, nor is any
        later one.

    Why: The executor reads the answer of one rank, and that one is in the collective
    operation. The rank that raised waits for its next order."""

    variant = "raises"
    patches = (_wedge("raises"),)
    causes = (
        cause("EngineCore waits for the answer of a worker", _core_waits, live=True),
        cause(
            "one worker is in a collective operation, the other one left it",
            _one_left,
            live=True,
        ),
        common.in_log("its log has the exception of a worker", RAISED, live=True),
    )


class Killed(WorkerWedged):
    """One worker of two is killed (SIGKILL), and the whole server ends with it.

    What: The running request gets HTTP 500, EngineCore is dead, and the server ends.

    Why: The executor watches its worker processes. It ends all of them when one has
    ended."""

    variant = "killed"
    failure_class = FailureClass.ENGINE_DEATH
    references = (_DIED,)
    patches = (_wedge("killed"),)
    live_only = ()
    works_after = (common.answered(MARKED),)

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(MARKED, extra={"seed": _SEED})
        await crash.watch(drive)

    symptoms = common.dies_of(MARKED, f"{MARKED} gets 500")[:2]
    causes = (common.in_log("its log says which worker died", ENDED, live=True),)
    rows = (
        row(MARKED, "request-500", "200"),
        row("EngineCore", "core-died", "lives"),
    )
    claims = (
        claim(
            "ends",
            "a worker that dies ends the whole server",
            _DIED,
            by="symptom",
            given="arrived",
        ),
        claim(
            "named",
            "the log names the worker",
            _DIED,
            by="worker-died",
            given="arrived",
        ),
    )


class Replica(WorkerWedged):
    """One of two replicas stops for good, and half of what is sent at once waits for
    it.

    What: A server with data parallel 2 has one EngineCore whose worker stands in a
    step. Its request is never answered. A request sent alone is answered by the other
    one. Of four sent at once some are answered and some are not. /health stays 200.

    Why: The front balances by the requests that each core has. It counts the ones that
    a standing core will never answer as load, and sends it more as soon as the other
    core has as many."""

    variant = "replica"
    references = (_UNEVEN,)
    server = "--data-parallel-size 2 --max-num-seqs 8"
    patches = (_wedge("python", rank="dp1"),)
    mitigations = (
        cure(
            _ONE,
            "--data-parallel-size 1",
            "one replica: the second one, which stops, is not there",
        ),
    )

    async def trigger(self, drive: Drive) -> None:
        for _ in range(_MARKS):
            if await drive.ask(MARKED, extra={"seed": _SEED}) is None:
                break
        await drive.ask(TEXT)
        await asyncio.gather(*(drive.ask(label) for label in BURST))

    @precondition("the stand-in says that it stopped a worker", removed_by=(_ONE,))
    def arrived(self, logs: Logs, requests: Requests) -> Finding:
        requests.first(MARKED)
        return Finding.of(
            bool(logs.count("wedged")), f"{logs.count('wedged')} lines say so"
        )

    symptoms = (
        symptom(
            f"{MARKED}: neither refused nor answered",
            _marked_hangs,
            id="no-answer",
            live=common.not_answered(),
        ),
        symptom(
            "of four requests sent at once, some are answered and some are not",
            _some_of_many,
            id="some-of-many",
        ),
        common.endpoints_green(),
        common.process_alive(),
    )
    live_only = ()
    works_after = (common.answered(MARKED, TEXT, *BURST),)
    causes = (
        cause(
            "one core waits for the answer of its worker, the other one for work",
            _one_core_waits,
            live=True,
        ),
        cause(
            "one worker stands in its own code, the other one does not",
            _one_stands,
            live=True,
        ),
    )
    rows = (
        row(MARKED, "no-answer", "200"),
        row("four at once", "some-of-many", "200, 200, 200, 200"),
        row("/health, /v1/models", "endpoints-green", "200, 200", abnormal_if=False),
    )
    claims = (
        claim(
            "uneven",
            "requests are stuck on one replica while the other one has no work",
            _UNEVEN,
            by=("some-of-many", "one-core-waits"),
            given="arrived",
        ),
    )


SCENARIO = with_variants(
    WorkerWedged(), WedgedInC(), Stopped(), RaisedByWorker(), Killed(), Replica()
)
