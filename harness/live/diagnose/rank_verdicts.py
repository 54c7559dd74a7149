"""What is wrong with a server of several processes, by what each of its ranks is at.
Pure.

What the ranks are at, and who waits for whom, :mod:`mmrepro.live.diagnose.ranks`
reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mmrepro.engines import ENGINES
from mmrepro.failure.documents import Assessment, Rank, RankLook, ServerState, Stand
from mmrepro.failure.signature import log_lines
from mmrepro.live.diagnose.rank_reports import behind, dumped, flight
from mmrepro.live.diagnose.ranks import (
    RUNS,
    at_stand,
    first_dead,
    first_to_fail,
    look,
    odd_ranks,
    of_kind,
    rank_words,
    replicas,
)
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.titles import labels, runs_alone
from mmrepro.probes import LogsData
from mmrepro.probes.log_words import public_line

_ASLEEP = frozenset(
    {
        "futex",
        "clock_nanosleep",
        "nanosleep",
        "pause",
        "rt_sigtimedwait",
        "rt_sigsuspend",
        "sched_yield",
    }
)
"""System calls of a thread that waits for no input or output: such a wait does not end
by itself because a disk or a network is slow."""

_SHOWN = 4

_AWAKE_PCT = 5.0

KEEP = "save the evidence before you restart it: mmrepro diagnose URL --out DIR"

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ")

XID = "look for Xid lines in the kernel's log, and at NCCL's own report"


def silent(view: DiagnosisView, why: Sequence[str]) -> Assessment | None:
    """What a server of several ranks is, while it makes no progress; None: its ranks do
    not tell.

    Fires where a core waits for a worker, or where the cores themselves are the ranks.
    """
    seen = look(view)
    if seen is None:
        return None
    # A rank that has ended by the log explains what the others wait for.
    if gone := said_gone(view, why):
        return gone
    why = [*why, *_observed(seen)]
    cores = of_kind(seen.ranks, "core")
    members = of_kind(seen.ranks, "worker")
    waiting_cores = at_stand(cores, Stand.WORKER)
    if cores and not waiting_cores and not at_stand(members, Stand.GONE):
        return _stuck_core(view, why, cores)

    if waiting_cores:
        # Of a worker that has ended, whose it was is not known: it counts for each.
        parents = {core.pid for core in waiting_cores}
        below = [rank for rank in members if rank.under in parents or rank.pid is None]
        members = below or members
    if not members:
        return None
    if not at_stand(members, Stand.GONE, Stand.STOPPED, Stand.STANDS):
        stuck = at_stand(of_kind(seen.ranks, "detokenizer"), Stand.STANDS)
        if stuck:
            return _stuck_detokenizer(view, why, stuck[0])
    return _verdict(view, why, members, waiting_cores)


def _stuck_detokenizer(view: DiagnosisView, why: list[str], rank: Rank) -> Assessment:
    return _state(
        view,
        state=ServerState.WORKER_STUCK,
        sentence=(
            f"{rank.role} is stuck in {rank.place}: what the ranks compute reaches "
            "nobody."
        ),
        why=why,
        rank=rank,
        advice="the frames name what it waits for or computes; restart the whole "
        "server",
    )


def _stuck_core(
    view: DiagnosisView, why: list[str], cores: Sequence[Rank]
) -> Assessment | None:
    """The state where one of several data parallel cores stands in its own code; a
    single core is no rank."""
    stuck = at_stand(cores, Stand.STANDS)
    if not stuck or len(cores) < 2:
        return None
    rest = [rank for rank in cores if rank not in stuck]
    others = "every other core stands as well"
    if rest:
        others = f"{names(rest)} {_plural(rest)}"
    first = stuck[0]
    return _state(
        view,
        state=ServerState.WORKER_STUCK,
        sentence=f"{first.role} is stuck in {first.place}; {others}.",
        why=why,
        rank=first,
        advice="the frames name what it waits for or computes; restart the whole "
        "server",
    )


def _verdict(
    view: DiagnosisView, why: list[str], members: list[Rank], cores: list[Rank]
) -> Assessment | None:
    """What is wrong, the plainest first: who is gone, who stands, who moves; only then
    what the ranks that wait have in common."""
    lagging, counts = behind(view)
    why = [*why, *counts, *flight(view), *dumped(view)]
    if gone := at_stand(members, Stand.GONE):
        return _lost(view, why, gone)
    if stuck := at_stand(members, Stand.STANDS):
        return _stuck_worker(view, why, members, stuck, cores)
    if moving := at_stand(members, Stand.MOVES):
        first = moving[0]
        return _state(
            view,
            state=ServerState.SLOW,
            sentence=(
                f"{first.role} computes (its stack moves: now {first.place}), but "
                "nothing was finished while it was watched."
            ),
            why=why,
            rank=first,
            advice="diagnose again with a longer --deadline: if nothing ever ends, it "
            "loops",
        )
    if at_stand(members, Stand.UNSEEN, Stand.STOPPED):
        return _unseen(why, cores)
    if transferring := at_stand(members, Stand.TRANSFER):
        first = transferring[0]
        return _state(
            view,
            state=ServerState.TRANSFER_STUCK,
            sentence=(
                f"{first.role} waits for a KV cache in {first.what}, which does not "
                "arrive."
            ),
            why=why,
            rank=first,
            advice="diagnose the other server of the pair as well",
        )
    return _held(view, why, members, cores, lagging)


def _stuck_worker(
    view: DiagnosisView,
    why: list[str],
    members: Sequence[Rank],
    stuck: Sequence[Rank],
    cores: Sequence[Rank],
) -> Assessment:
    """A rank stands in its own code, and the others wait for it."""
    first = stuck[0]
    all_alike = ""
    if 1 < len(stuck) == len(members):
        all_alike = ", like every other rank"
    waits = "the other ranks wait for it"
    if cores:
        waits = f"{cores[0].role} waits for its answer"
    held = at_stand(members, Stand.COLLECTIVE, Stand.STAGE)
    others = f", and {names(held)} for it in {held[0].what}" if held else ""
    return _state(
        view,
        state=ServerState.WORKER_STUCK,
        sentence=f"{first.role} is stuck in {first.place}{all_alike}; {waits}{others}.",
        why=why,
        rank=first,
        advice="the frames name what it waits for or computes; restart the whole "
        "server: one rank cannot be replaced",
    )


def _held(
    view: DiagnosisView,
    why: list[str],
    members: list[Rank],
    cores: Sequence[Rank],
    lagging: Sequence[str],
) -> Assessment | None:
    """All ranks wait: for their device, in a collective, or at different places.

    None: they wait for work, and no core waits for them.
    """
    first = members[0]
    late = [rank for rank in members if rank.role in lagging]
    held = at_stand(members, Stand.DEVICE, Stand.COLLECTIVE, Stand.STAGE)
    if late and len(late) < len(members) == len(held):
        rest = [rank for rank in members if rank not in late]
        wait = "waits" if len(rest) == 1 else "wait"
        return _state(
            view,
            state=ServerState.RANK_DIVERGED,
            sentence=(
                f"The ranks have diverged: {names(late)} never launched the operation "
                f"that {names(rest)} {wait} for, by NCCL's own counts."
            ),
            why=why,
            rank=late[0],
            advice="the log of that rank tells what it did last; restart the whole "
            "server",
        )
    if len(at_stand(members, Stand.DEVICE)) == len(members):
        return _state(
            view,
            state=ServerState.KERNEL_STUCK,
            sentence=(
                f"Every rank waits for its device ({first.what}): a kernel does not "
                "end."
            ),
            why=why,
            rank=first,
            advice=XID,
        )
    odd = odd_ranks(members)
    together = at_stand(members, Stand.COLLECTIVE, Stand.STAGE)
    if not odd and len(together) == len(members):
        return _state(
            view,
            state=ServerState.COLLECTIVE_WAITS,
            sentence=(
                f"All {len(members)} ranks wait in {first.what} ({first.place}): it "
                "does not end."
            ),
            why=why,
            rank=first,
            advice="what carries it is at fault: the network, NCCL, or a rank elsewhere",
        )
    if not cores and len(at_stand(members, Stand.WORK)) == len(members):
        return None

    rest = [rank for rank in members if rank not in odd] or members
    sentence = f"The ranks have diverged: {names(rest)} {_plural(rest)}"
    if odd:
        sentence += f", and {names(odd)} {_plural(odd)}: it is not part of that step"
    elif cores:
        sentence += f", while {cores[0].role} waits for an answer of theirs"
    return _state(
        view,
        state=ServerState.RANK_DIVERGED,
        sentence=sentence + ".",
        why=why,
        rank=odd[0] if odd else rest[0],
        advice="the log of that rank tells what it did last; restart the whole server",
    )


def lost(view: DiagnosisView, why: Sequence[str]) -> Assessment | None:
    """The state of a server that fails because a worker process is gone; None: none is
    known to be."""
    seen = look(view)
    if seen is not None:
        gone = at_stand(of_kind(seen.ranks, "worker"), Stand.GONE)
        if gone:
            return _lost(view, list(why), gone)
    return said_gone(view, why)


def said_gone(view: DiagnosisView, why: Sequence[str]) -> Assessment | None:
    """A rank that ended by the log and that no process is: its core ends the others at
    once, and then itself."""
    first = first_dead(view)
    running = [p.role for p in view.facts.processes if p.state not in "ZX"]
    if not first:
        return _only_worker_gone(view, why, running)
    if first in running:
        return None
    gone = Rank(role=first, kind="worker", labels=labels(first), stand=Stand.GONE)
    sentence = (
        f"{first} has ended, by the server's log; its core ends the other ranks then."
    )
    return _lost(view, [*why, *_ended_by_log(view)], [gone], sentence)


def _only_worker_gone(
    view: DiagnosisView, why: Sequence[str], running: Sequence[str]
) -> Assessment | None:
    """The only worker, which has written to the log and is no process any more: its
    core notices that seconds later."""
    engine = ENGINES.get(view.facts.engine)
    role = engine.worker_role if engine else ""
    core_lives = any(view.facts.is_core(name) for name in running)
    if not role or role in running or not core_lives or not runs_alone(view.facts):
        return None
    # A core that failed by itself ends its worker, and then itself.
    if view.facts.is_core(first_to_fail(view)):
        return None
    pid = ""
    for _, data in view.evidence.results(LogsData, partial=True):
        for line in data.last_by_process.values():
            if line.process.partition(" ")[0] == role:
                pid = line.process
    if not pid:
        return None
    gone = Rank(role=role, kind="worker", labels={}, stand=Stand.GONE)
    sentence = f"{role} has ended: it wrote to the log, and is no process any more."
    return _lost(view, [*why, f"{pid} is in the log"], [gone], sentence)


def _ended_by_log(view: DiagnosisView) -> list[str]:
    lines = log_lines(view.evidence, "rank-died")
    if not lines:
        return []
    line = lines[0]
    return [f"its log says at {line.time or '?'}: {public_line(line, 200)}"]


def _lost(
    view: DiagnosisView, why: list[str], gone: Sequence[Rank], sentence: str = ""
) -> Assessment:
    first = first_dead(view)
    dead = [rank for rank in gone if rank.role == first]
    be = "is" if len(gone) == 1 else "are"
    runs = f"{be} gone, while the rest of the server runs"
    if not dead and len(gone) > 1:
        runs += "; nothing tells which of them ended first"
    assessment = _state(
        view,
        state=ServerState.RANK_LOST,
        sentence=sentence or f"{names(gone)} {runs}.",
        why=[*why, *view.kills],
        rank=dead[0] if dead else gone[0],
        advice="its log, and dmesg, tell what ended it; the server does not recover",
    )
    # Where all have ended, most of them were ended by the server.
    if dead or len(gone) == 1:
        return assessment
    return assessment.model_copy(update={"process": ""})


def _plural(ranks: Sequence[Rank]) -> str:
    """``is in all_reduce``, ``are in all_reduce``, ``waits for work``, ``wait for
    work``."""
    words = rank_words(ranks[0], len(ranks))
    if not words.startswith("in "):
        return words
    return f"is {words}" if len(ranks) == 1 else f"are {words}"


def _unseen(why: list[str], cores: list[Rank]) -> Assessment | None:
    if not cores:
        return None
    return Assessment(
        state=ServerState.FROZEN,
        sentence=f"{cores[0].role} has handed a step out and waits for a worker; what "
        "the workers are at could not be read.",
        why=why,
        process=cores[0].role,
        advice=[
            KEEP,
            "run mmrepro as root, or with CAP_SYS_PTRACE, to see their frames",
        ],
    )


def names(ranks: Sequence[Rank]) -> str:
    """``Worker_TP0, Worker_TP1``; of many the first and how many more."""
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return ", ".join(rank.role for rank in ranks[:_SHOWN]) + more


def _observed(seen: RankLook) -> list[str]:
    lines = list(seen.groups)
    for edge in seen.edges[:6]:
        lines.append(f"{edge.waiter} waits for {edge.awaited}: {edge.why}")
    sources: dict[str, None] = {}
    for rank in seen.ranks:
        if rank.source:
            sources[f"{rank.role} stands at {rank.source}"] = None
    return [*lines, *list(sources)[:4]]


def _state(
    view: DiagnosisView,
    *,
    state: ServerState,
    sentence: str,
    why: list[str],
    rank: Rank,
    advice: str,
) -> Assessment:
    """``state``, shown by the thread of ``rank`` that tells what it is at."""
    stack: dict[str, Any] = {}
    for course in view.courses(rank.pid):
        if course.name == rank.thread:
            stack = {
                "thread": course.name,
                "frames": course.frames,
                "seen": course.samples,
                "samples": course.samples + course.torn,
            }
            break
    why = [*why, *_logged(view, rank)]
    if rank.cpu_pct is not None:
        why.append(f"{rank.role} uses {rank.cpu_pct:.0f} % of a core")
    if rank.call:
        why.append(f"its thread waits in the system call {rank.call}")
    return Assessment(
        state=state,
        sentence=sentence,
        why=why,
        process=rank.role,
        advice=[KEEP, advice],
        **stack,
    )


def _logged(view: DiagnosisView, rank: Rank) -> list[str]:
    """The first error of that rank in the log, its exception where it has one."""
    for _, data in view.evidence.results(LogsData, partial=True):
        own = []
        for line in data.errors:
            if line.process.partition(" ")[0] == rank.role:
                own.append(line)
        exceptions = [line for line in own if _EXCEPTION.match(line.text)]
        for line in (exceptions or own)[:1]:
            text = public_line(line, 200)
            return [f"first error of {rank.role} in the log, at {line.time}: {text}"]
    return []


def asleep_and_stuck(view: DiagnosisView) -> bool:
    """Whether a rank stands in its own code, asleep and outside of input and output,
    while its core waits for it: what does not end by itself, however short the
    silence."""
    assessment = silent(view, [])
    if assessment is None or assessment.state is not ServerState.WORKER_STUCK:
        return False
    seen = look(view)
    if seen is None:
        return True
    stuck = at_stand(seen.ranks, Stand.STANDS)
    return all(_asleep(rank) for rank in stuck if rank.kind in RUNS)


def _asleep(rank: Rank) -> bool:
    return (
        rank.call in _ASLEEP and rank.cpu_pct is not None and rank.cpu_pct < _AWAKE_PCT
    )


def stuck_replica(view: DiagnosisView, why: Sequence[str]) -> Assessment | None:
    """A replica that is stuck while another one works: a core that stands in its own
    code and sleeps, or that waits for a worker which does. Or what coordinates them
    stands so."""
    seen = look(view) if replicas(view.facts) else None
    if seen is None:
        return None
    stuck = _stuck_in_replica(view, seen)
    if stuck is None:
        return None
    harm = "requests that reach it do not get an answer"
    if stuck.kind == "coordinator":
        harm = "nobody tells the replicas of each other's requests"
    return _state(
        view,
        state=ServerState.WORKER_STUCK,
        sentence=(
            f"{stuck.role} is stuck in {stuck.place}, while another replica works: "
            f"{harm}."
        ),
        why=[*why, *_observed(seen)],
        rank=stuck,
        advice="take this server out of the load balancer, and restart it",
    )


def _stuck_in_replica(view: DiagnosisView, seen: RankLook) -> Rank | None:
    """The first process that stands asleep and that a replica cannot do without."""
    cores = {process.pid for process in view.facts.cores}
    awaited = {edge.awaited for edge in seen.edges}
    for rank in at_stand(seen.ranks, Stand.STANDS):
        if not _asleep(rank):
            continue
        if rank.kind == "coordinator":
            return rank
        # A worker that nobody waits for holds nothing up.
        if rank.kind in RUNS and (rank.pid in cores or rank.role in awaited):
            return rank
    return None
