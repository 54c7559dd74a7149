"""A server of several processes: what each rank is at, who differs, who waits for whom.
Pure.

A worker that waits for its next order has nothing to do; a core that waits for a worker
has handed a step out. Which wait a stack is, :mod:`mmrepro.engines.waits` knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from mmrepro.base.units import size
from mmrepro.engines import ENGINES
from mmrepro.engines.waits import COMPILERS, Wait, Waiting, wait_places, waiting
from mmrepro.failure.documents.diagnosis import (
    Assessment,
    Rank,
    RankEdge,
    RankLook,
    ServerState,
    Stand,
    TargetFacts,
    TargetProcess,
)
from mmrepro.failure.signature.views import log_lines
from mmrepro.live.diagnose.readings import View
from mmrepro.live.diagnose.threads import MIN_SAMPLES, Course, _python, bare, where
from mmrepro.live.diagnose.titles import (
    DIED,
    KINDS,
    every,
    expected,
    labels,
    named,
    whole,
)
from mmrepro.probes.data import FlightData, Frame, GpuCoreData, LogsData, RasData
from mmrepro.probes.log_words import public_line

ASLEEP = frozenset(
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
SHOWN = 4
AWAKE_PCT = 5.0
RUNS = ("core", "worker")
OWN = re.compile(r"^(?P<role>\w+) pid=(?P<pid>\d+)$")
"""How vLLM's processes call themselves before each line of log."""
PEER = re.compile(r"Connection (?:closed|reset) by peer")
"""gloo's and the kernel's words for a peer that has ended
(gloo/transport/tcp/pair.cc)."""
KEEP = "keep the evidence before you restart it: mmrepro diagnose URL --out DIR"
EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ")
XID = "look for Xid lines in the kernel's log, and at NCCL's own report"
_VERB = re.compile(r"^(wait|stand|move)s\b")
_WAITS = {wait: Stand(wait.value) for wait in Wait}


def is_worker(facts: TargetFacts, role: str) -> bool:
    """Whether a process of this role only runs the model, beside its core."""
    engine = ENGINES.get(facts.engine)
    prefix = engine.worker_role if engine is not None else ""
    return bool(prefix) and role.startswith(prefix)


def workers(facts: TargetFacts) -> list[TargetProcess]:
    """The processes that run the model, where they are several or not the core
    itself."""
    own = [p for p in facts.processes if is_worker(facts, p.role)]
    return own or (facts.cores if len(facts.cores) > 1 else [])


def kind_of(role: str) -> Literal["coordinator", "detokenizer"] | None:
    """What a process that serves all ranks is; None: it is none of them."""
    return next((kind for name, kind in KINDS if name in role), None)


def coordinators(facts: TargetFacts) -> list[TargetProcess]:
    """vLLM's process that counts the requests of data parallel cores
    (v1/engine/coordinator.py)."""
    return [p for p in facts.processes if p.role.startswith("DPCoordinator")]


def titled(view: View) -> View:
    """With the whole titles of processes that have ended."""
    died = {int(m["pid"]): int(m["scheduler"]) for m in _deaths(view) if m["pid"]}
    logs = [data for _, data in view.evidence.results(LogsData, partial=True)]
    names = [
        match
        for data in logs
        for name in data.last_by_process
        if (match := OWN.match(name))
    ]
    logged = {int(match["pid"]): match["role"] for match in names}
    return View(whole(view.facts, died, logged), view.evidence)


def first_dead(view: View, gone: Sequence[str] = ()) -> str:
    """The rank that ended first, by the log; "": nothing tells it.

    Args:
        gone: of ranks that ended, those that their parent has collected. vLLM's front
            ends the other cores when it has collected one (``monitor_engine_liveness``
            of v1/engine/utils.py).
    """
    sizes = expected(view.facts)
    inner = every(sizes, ("PP", "TP"))
    engine = ENGINES.get(view.facts.engine)
    for match in _deaths(view)[:1]:
        data = labels(match["parent"]) if match["worker"] else {}
        number = int(match["worker"] or match["scheduler"] or len(inner))
        if (
            engine
            and sizes
            and ("DP" in sizes) is ("DP" in data)
            and number < len(inner)
        ):
            role = named(engine.worker_role or engine.core_role, data | inner[number])
            return role if match["worker"] or not _own_errors(view, role) else ""
    if len(gone) == 1 and engine and engine.worker_role:
        return gone[0]
    return _speechless(view)


def _own_errors(view: View, role: str) -> bool:
    """Whether another rank than ``role`` has an error in the log that is no word of its
    peer's end: SGLang's front names the first that crashed in the order of ranks, not
    of time."""
    said = _errors(view)
    return any(
        other != role and labels(other) and not any(PEER.search(text) for text in texts)
        for other, texts in said.items()
    )


def _errors(view: View) -> dict[str, list[str]]:
    """Role: texts of its errors in the log."""
    said: dict[str, list[str]] = {}
    for _, data in view.evidence.results(LogsData, partial=True):
        for line in data.errors:
            said.setdefault(line.process.partition(" ")[0], []).append(line.text)
    return said


def _speechless(view: View) -> str:
    """The only rank that ended without an error in the log, where the errors of all
    others say that a peer has closed its connection."""
    members = [
        p.role
        for p in titled(view).facts.processes
        if p.state in "ZX" and labels(p.role)
    ]
    said = _errors(view)
    silent = [role for role in members if role not in said]
    echoes = [
        role for role in members if any(PEER.search(t) for t in said.get(role, ()))
    ]
    return silent[0] if len(silent) == 1 and 0 < len(echoes) == len(members) - 1 else ""


def _deaths(view: View) -> list[dict[str, str]]:
    """Each line of the log that names a process that ended, in order: the groups of
    DIED."""
    found = []
    for line in sorted(
        log_lines(view.evidence, "rank-died"), key=lambda line: line.number
    ):
        if match := DIED.search(line.text):
            parent = line.process.partition(" ")[0]
            found.append(
                {k: v or "" for k, v in match.groupdict().items()} | {"parent": parent}
            )
    return found


def look(view: View) -> RankLook | None:
    """All processes side by side; None: one process runs the model."""
    view = titled(view)
    sizes = expected(view.facts)
    running = workers(view.facts)
    engine = ENGINES.get(view.facts.engine)
    if not running and (
        sizes.keys() == {"DP"} or (sizes and engine and not engine.worker_role)
    ):
        running = view.facts.cores
    if not running and (not sizes or not view.facts.cores):
        return None
    known = [_rank(view, p, running) for p in view.facts.processes]
    ranks = [rank for rank in known if rank is not None]
    ranks = _counted(view, ranks, sizes)
    members = [rank for rank in ranks if rank.kind == "worker"]
    cores = [rank for rank in ranks if rank.kind == "core"]
    standing = len(cores) > 1 and any(rank.stand is Stand.STANDS for rank in cores)
    odd = _odd(cores if standing else members)
    return RankLook(
        ranks=ranks,
        groups=_groups(members),
        odd=[rank.role for rank in odd],
        edges=_edges(ranks, odd),
    )


# ------------------------------------------------------------------ one process


def _rank(
    view: View, process: TargetProcess, running: Sequence[TargetProcess]
) -> Rank | None:
    facts, engine = view.facts, ENGINES.get(view.facts.engine)
    kind: Literal["front", "core", "worker", "coordinator", "detokenizer"]
    if process in running:
        kind = "worker"
    elif process in facts.cores:
        kind = "core"
    elif process.pid == facts.root_pid:
        kind = "front"
    elif other := kind_of(process.role):
        kind = other
    else:
        return None
    use = view.use(process.pid)
    rank = Rank(
        pid=process.pid,
        role=process.role,
        kind=kind,
        labels=labels(process.role),
        under=process.ppid,
        state=process.state,
        cpu_pct=None if use is None else round(use.cpu_pct, 1),
    )
    if process.state in "ZX":
        return rank.model_copy(update={"stand": Stand.GONE})
    if process.state in "Tt":
        return rank.model_copy(update={"stand": Stand.STOPPED})
    courses = view.courses(process.pid)
    if engine is None or not courses or max(c.samples for c in courses) < MIN_SAMPLES:
        return rank
    group = {name: number for name, number in rank.labels.items() if name != "DP"}
    leader = kind != "worker" or not any(group.values())
    read = [_at(view, course, leader=leader) for course in courses]
    course, stand, wait = _telling(courses, read)
    # A coordinator polls, and nothing else; where a detokenizer waits for work has a
    # name.
    sleeps = not course.active and kind == "front"
    if kind not in RUNS and (course.waits or sleeps):
        stand = Stand.WORK  # an event loop: what it waits for has no name
    calls = view.waits(process.pid)
    frames = _python(course.stacks[-1].frames)
    fallback = frames[0] if frames else None
    return rank.model_copy(
        update={
            "stand": stand,
            "what": wait.what if wait else (fallback.name if fallback else ""),
            "place": where(wait.caller) if wait else course.place,
            "source": wait.source if wait else "",
            "thread": course.name,
            "samples": course.samples,
            "call": calls.get(course.tid or 0, ""),
            "course": [
                _short(view, stack.frames, leader=leader) for stack in course.stacks
            ],
        }
    )


def waits_for_device(view: View, course: Course) -> str:
    """Where a thread waits for its GPU in every sample, by its frames; "": it does
    not."""
    if course.driver_call:
        return f"{course.driver_call}, called by {course.place}"
    waits = [_waiting(view, stack.frames, leader=True) for stack in course.stacks]
    last = waits[-1]
    if last is None or any(one is None or one.wait is not Wait.DEVICE for one in waits):
        return ""
    return f"{last.what}, called by {where(last.caller)}"


Read = tuple[Stand, Waiting | None]


def _at(view: View, course: Course, *, leader: bool) -> Read:
    """What one thread is at over all its samples."""
    idle = frozenset(ENGINES[view.facts.engine].idle_loops)
    waits = [_waiting(view, stack.frames, leader=leader) for stack in course.stacks]
    if course.turning in idle or any(
        bare(s.frames[0]) in idle for s in course.stacks if s.frames
    ):
        return Stand.WORK, None
    kinds = {wait.wait if wait else None for wait in waits}
    last = waits[-1]
    if len(kinds) == 1 and last is not None:
        moved = len({(w.what, where(w.caller)) for w in waits if w}) > 1
        moves = moved and last.wait is not Wait.WORK
        return (Stand.MOVES if moves else _WAITS[last.wait]), last
    compiles = any(
        COMPILERS.search(f.file) for stack in course.stacks for f in stack.frames
    )
    if kinds == {None} and course.stays and not compiles:
        return (Stand.WORK if course.idle_loop else Stand.STANDS), None
    return Stand.MOVES, last


def _telling(
    courses: Sequence[Course], read: Sequence[Read]
) -> tuple[Course, Stand, Waiting | None]:
    """The thread that tells what the process is at: the main one, else one that does
    not merely wait while that waits for work."""
    pairs = list(zip(courses, read, strict=True))
    course, (stand, wait) = next(
        (p for p in pairs if p[0].name == "MainThread"), pairs[0]
    )
    if stand is not Stand.WORK:
        return course, stand, wait
    for other, (at, why) in pairs:
        device = at in (Stand.DEVICE, Stand.COLLECTIVE, Stand.STAGE, Stand.TRANSFER)
        busy = at is Stand.STANDS and not other.waits
        if other is not course and (device or busy):
            return other, at, why
    return course, stand, wait


def _waiting(view: View, frames: Sequence[Frame], *, leader: bool) -> Waiting | None:
    places = wait_places(view.facts.engine)
    return waiting(_python(frames), places, view.facts.release, leader=leader)


def _short(view: View, frames: Sequence[Frame], *, leader: bool) -> str:
    """A sample in a word or two: for a lane."""
    if wait := _waiting(view, frames, leader=leader):
        return "work" if wait.wait is Wait.WORK else wait.what
    own = _python(frames)
    return own[0].name if own else ""


# ------------------------------------------------------------------ all of them


def _counted(view: View, ranks: list[Rank], sizes: dict[str, int]) -> list[Rank]:
    """With the ranks that the command line asks for and that are no process; those
    whose process cannot be told from another's are among them."""
    engine = ENGINES.get(view.facts.engine)
    members = [rank for rank in ranks if rank.kind == "worker"]
    if engine is None or not sizes or not members or view.facts.listening is False:
        return ranks
    unknown = [m for m in members if m.stand is Stand.GONE and not m.labels]
    there = [
        {k: v for k, v in m.labels.items() if k in sizes}
        for m in members
        if m not in unknown
    ]
    if any(one.keys() != sizes.keys() for one in there):
        return ranks  # titles that name other groups: nothing can be counted
    own = members[0].role.startswith(engine.worker_role)
    prefix = (engine.worker_role if own else "") or engine.core_role
    lost = [
        Rank(role=named(prefix, one), kind="worker", labels=one, stand=Stand.GONE)
        for one in every(sizes)
        if one not in there
    ]
    return [rank for rank in ranks if not lost or rank not in unknown] + lost


def _groups(members: Sequence[Rank]) -> list[str]:
    by: dict[str, list[Rank]] = {}
    for rank in members:
        by.setdefault(rank.words, []).append(rank)
    ranked = sorted(by.values(), key=lambda ranks: -len(ranks))
    return [
        (
            f"{len(ranks)} {_words(ranks[0], len(ranks))}: "
            f"{', '.join(r.role for r in ranks)}"
        )
        for ranks in ranked
    ]


def _odd(members: Sequence[Rank]) -> list[Rank]:
    """Those that differ: gone, stopped, or in their own code while others wait; else
    the smaller part, where ranks are at different places."""
    for stand in (Stand.GONE, Stand.STOPPED, Stand.STANDS):
        odd = [rank for rank in members if rank.stand is stand]
        if odd and len(odd) < len(members):
            return odd
    seen = [rank for rank in members if rank.stand is not Stand.UNSEEN]
    places = Counter((rank.stand, rank.what, rank.place) for rank in seen)
    if len(places) < 2 or any(rank.stand is Stand.MOVES for rank in seen):
        return []
    idle = [rank for rank in seen if rank.stand is Stand.WORK]
    if idle and len(idle) < len(seen):
        rest = [rank for rank in seen if rank not in idle]
        return idle if len(idle) <= len(rest) else rest
    least = min(places.values())
    odd = [r for r in seen if places[(r.stand, r.what, r.place)] == least]
    return odd if len(odd) < len(seen) else []


def _edges(ranks: Sequence[Rank], odd: Sequence[Rank]) -> list[RankEdge]:
    """The core waits for its workers, and ranks in a collective for those that are not
    in it."""
    edges = []
    members = [rank for rank in ranks if rank.kind == "worker"]
    for core in [rank for rank in ranks if rank.stand is Stand.WORKER]:
        below = [m for m in members if m.under in (core.pid, None)] or members
        awaited = [m for m in below if m in odd] or below
        edges += [
            RankEdge(waiter=core.role, awaited=m.role, why="its answer")
            for m in awaited
        ]
    for rank in members:
        if rank.stand in (Stand.COLLECTIVE, Stand.STAGE):
            edges += [
                RankEdge(waiter=rank.role, awaited=one.role, why=rank.what)
                for one in odd
                if one is not rank
            ]
    return edges


# ------------------------------------------------------------------ NCCL's own word


def behind(view: View) -> tuple[list[str], list[str]]:
    """Roles of the ranks that have launched fewer operations than the rest of a
    communicator, in the same way in two reports of NCCL's RAS service, and what the
    last report says."""
    reports = [data for _, data in view.evidence.results(RasData, "check")]
    if not reports:
        return [], []
    last, roles = reports[-1], _roles_by_pid(view.facts)
    lines = [f"NCCL: {text}" for text in last.troubles[:6]]
    for rank in [r for r in last.ranks if r.missing][:6]:
        how = "is considered dead" if rank.dead else "gives no data"
        who = roles.get(rank.pid, f"process {rank.pid}")
        lines.append(f"NCCL: {who} (rank {rank.rank}) {how}")
    counts = [_lagging(one, roles) for one in reports]
    stable = counts[-1] if len(counts) > 1 and counts[-1] == counts[0] else {}
    lines += [f"NCCL: {role} {text}" for role, text in stable.items()]
    return list(stable), lines


def flight(view: View) -> list[str]:
    """Who entered the last collective operation of a group and who did not, by
    PyTorch's Flight Recorder. A group of one file says nothing."""
    ranks = [r for _, d in view.evidence.results(FlightData, "check") for r in d.ranks]
    lines = []
    for group in dict.fromkeys(name for rank in ranks for name in rank.entered):
        members = [rank for rank in ranks if group in rank.entered]
        top = max(rank.entered[group] for rank in members)
        late = [rank for rank in members if rank.entered[group] < top]
        first = next(rank for rank in members if rank.entered[group] == top)
        if late and len(members) > 1:
            entered = [str(rank.rank) for rank in members if rank not in late]
            lines.append(
                f"Flight Recorder: in group {group} rank {', '.join(entered)} entered "
                f"{first.operation[group]} (number {top}), rank "
                f"{', '.join(f'{r.rank} (at {r.entered[group]})' for r in late)} did "
                "not"
            )
    return lines[:6]


def on_gpu(view: View) -> dict[int, str]:
    """By process, the kernel that its GPU's core dump shows at work."""
    dumps = [d for _, d in view.evidence.results(GpuCoreData, "check")]
    return {dump.pid: dump.kernels[0] for dump in dumps if dump.kernels}


def dumped(view: View) -> list[str]:
    """A line for each core dump of a GPU."""
    lines = []
    for _, dump in view.evidence.results(GpuCoreData, "check"):
        who = view.facts.role_of(dump.pid) or f"process {dump.pid}"
        what = f"runs {dump.kernels[0]}" if dump.kernels else "has a core dump"
        more = (
            f" and {len(dump.kernels) - 1} more kernels"
            if len(dump.kernels) > 1
            else ""
        )
        lines.append(f"the GPU of {who} {what}{more}: {dump.file}, {size(dump.bytes)}")
    return lines


def _roles_by_pid(facts: TargetFacts) -> dict[int, str]:
    return {
        n: p.role
        for p in facts.processes
        for n in (p.inner_pid, p.pid)
        if n is not None
    }


def _lagging(report: RasData, roles: dict[int, str]) -> dict[str, str]:
    """Role: what it has launched, of the ranks that are behind the most of their
    communicator."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(rank.communicator for rank in report.ranks):
        ranks = [r for r in report.ranks if r.communicator == name and not r.missing]
        whole = report.form == "json" and len(ranks) > 1
        for kind in sorted({kind for rank in ranks for kind in rank.counts}):
            most = (
                Counter(rank.counts.get(kind, 0) for rank in ranks)
                if whole
                else Counter(report.launched.get(f"{name} {kind}", {}))
            )
            top = max(most, default=0)
            for rank in ranks:
                at = rank.counts.get(kind, 0)
                if at < top and most[at] < most[top] and rank.pid in roles:
                    what = "operations" if kind == "all" else kind
                    found[roles[rank.pid]] = (
                        f"has launched {at} {what}, {most[top]} others {top}"
                    )
    return found


# ------------------------------------------------------------------ what is wrong


def silent(view: View, why: Sequence[str]) -> Assessment | None:
    """What a server of several ranks is, while it makes no progress; None: its ranks do
    not tell.

    Fires where a core waits for a worker, or where the cores themselves are the ranks.
    """
    seen = look(view)
    if seen is None:
        return None
    if said := said_gone(view, why):
        return said
    cores = [rank for rank in seen.ranks if rank.kind == "core"]
    members = [rank for rank in seen.ranks if rank.kind == "worker"]
    waiting_cores = [rank for rank in cores if rank.stand is Stand.WORKER]
    if cores and not waiting_cores and not any(m.stand is Stand.GONE for m in members):
        return _stuck_core(view, [*why, *_observed(seen)], cores)
    if waiting_cores:
        below = [
            m
            for m in members
            if m.under in [c.pid for c in waiting_cores] or m.pid is None
        ]
        members = below or members
    if not members:
        return None
    why = [*why, *_observed(seen)]
    fine = not any(
        m.stand in (Stand.GONE, Stand.STOPPED, Stand.STANDS) for m in members
    )
    for one in seen.ranks:
        if one.kind == "detokenizer" and one.stand is Stand.STANDS and fine:
            return _state(
                view,
                ServerState.WORKER_STUCK,
                (
                    f"{one.role} is stuck in {one.place}: what the ranks compute "
                    "reaches nobody."
                ),
                why,
                one,
                (
                    "the frames name what it waits for or computes; restart the whole "
                    "server"
                ),
            )
    return _verdict(view, why, members, waiting_cores)


def _stuck_core(view: View, why: list[str], cores: Sequence[Rank]) -> Assessment | None:
    """Of data parallel cores one that stands in its own code; a single core is no
    rank."""
    stuck = [rank for rank in cores if rank.stand is Stand.STANDS]
    if not stuck or len(cores) < 2:
        return None
    first, rest = stuck[0], [rank for rank in cores if rank not in stuck]
    others = (
        f"{names(rest)} {_plural(rest)}" if rest else "every other core stands as well"
    )
    return _state(
        view,
        ServerState.WORKER_STUCK,
        f"{first.role} is stuck in {first.place}; {others}.",
        why,
        first,
        "the frames name what it waits for or computes; restart the whole server",
    )


def _verdict(
    view: View, why: list[str], members: list[Rank], cores: list[Rank]
) -> Assessment | None:
    odd = _odd(members)
    lagging, said = behind(view)
    why = [*why, *said, *flight(view), *dumped(view)]
    waits = (
        f"{cores[0].role} waits for its answer"
        if cores
        else "the other ranks wait for it"
    )
    by = {stand: [m for m in members if m.stand is stand] for stand in Stand}
    if by[Stand.GONE]:
        return _lost(view, why, by[Stand.GONE])
    if stuck := by[Stand.STANDS]:
        first = stuck[0]
        where_ = (
            ""
            if len(stuck) < len(members) or len(stuck) == 1
            else ", like every other rank"
        )
        held = [m for m in members if m.stand in (Stand.COLLECTIVE, Stand.STAGE)]
        others = f", and {names(held)} for it in {held[0].what}" if held else ""
        return _state(
            view,
            ServerState.WORKER_STUCK,
            f"{first.role} is stuck in {first.place}{where_}; {waits}{others}.",
            why,
            first,
            "the frames name what it waits for or computes; restart the whole server: "
            "one rank cannot be replaced",
        )
    if by[Stand.MOVES]:
        first = by[Stand.MOVES][0]
        return _state(
            view,
            ServerState.SLOW,
            f"{first.role} computes (its stack moves: now {first.place}), but nothing "
            "was finished while it was watched.",
            why,
            first,
            "diagnose again with a longer --deadline: if nothing ever ends, it loops",
        )
    if any(m.stand in (Stand.UNSEEN, Stand.STOPPED) for m in members):
        return _unseen(why, cores)
    if by[Stand.TRANSFER]:
        first = by[Stand.TRANSFER][0]
        return _state(
            view,
            ServerState.TRANSFER_STUCK,
            (
                f"{first.role} waits for a KV cache in {first.what}, which does not "
                "arrive."
            ),
            why,
            first,
            "diagnose the other server of the pair as well",
        )
    late = [m for m in members if m.role in lagging]
    held = [*by[Stand.DEVICE], *by[Stand.COLLECTIVE], *by[Stand.STAGE]]
    if late and len(late) < len(members) == len(held):
        rest = [m for m in members if m not in late]
        return _state(
            view,
            ServerState.RANK_DIVERGED,
            f"The ranks have diverged: {names(late)} never launched the operation that "
            f"{names(rest)} {'waits' if len(rest) == 1 else 'wait'} for, by NCCL's own "
            "counts.",
            why,
            late[0],
            "the log of that rank tells what it did last; restart the whole server",
        )
    if len(by[Stand.DEVICE]) == len(members):
        first = members[0]
        return _state(
            view,
            ServerState.KERNEL_STUCK,
            f"Every rank waits for its device ({first.what}): a kernel does not end.",
            why,
            first,
            XID,
        )
    if not odd and all(m.stand in (Stand.COLLECTIVE, Stand.STAGE) for m in members):
        first = members[0]
        return _state(
            view,
            ServerState.COLLECTIVE_WAITS,
            (
                f"All {len(members)} ranks wait in {first.what} ({first.place}): it "
                "does not end."
            ),
            why,
            first,
            "what carries it is at fault: the network, NCCL, or a rank elsewhere",
        )
    if all(m.stand is Stand.WORK for m in members) and not cores:
        return None
    rest = [m for m in members if m not in odd] or members
    sentence = f"The ranks have diverged: {names(rest)} {_plural(rest)}"
    if odd:
        sentence += f", and {names(odd)} {_plural(odd)}: it is not part of that step"
    elif cores:
        sentence += f", while {cores[0].role} waits for an answer of theirs"
    return _state(
        view,
        ServerState.RANK_DIVERGED,
        sentence + ".",
        why,
        (odd or rest)[0],
        "the log of that rank tells what it did last; restart the whole server",
    )


def lost(view: View, why: Sequence[str]) -> Assessment | None:
    """Of a server that fails: a worker process is gone; None: none is known to be."""
    seen = look(view)
    gone = (
        [r for r in seen.ranks if r.kind == "worker" and r.stand is Stand.GONE]
        if seen
        else []
    )
    return _lost(view, list(why), gone) if gone else said_gone(view, why)


def said_gone(view: View, why: Sequence[str]) -> Assessment | None:
    """A rank that ended by the log and that no process is: its core ends the others at
    once, and then itself."""
    first = first_dead(view)
    if not first or any(
        p.role == first for p in view.facts.processes if p.state not in "ZX"
    ):
        return None
    gone = Rank(role=first, kind="worker", labels=labels(first), stand=Stand.GONE)
    sentence = (
        f"{first} has ended, by the server's log; its core ends the other ranks then."
    )
    return _lost(view, [*why, *_ended_by_log(view)], [gone], sentence)


def _ended_by_log(view: View) -> list[str]:
    lines = log_lines(view.evidence, "rank-died")
    return [
        f"its log says at {line.time or '?'}: {public_line(line, 200)}"
        for line in lines[:1]
    ]


def _lost(
    view: View, why: list[str], gone: Sequence[Rank], sentence: str = ""
) -> Assessment:
    first = first_dead(view)
    told = next((rank for rank in gone if rank.role == first), None)
    runs = (
        f"{'is' if len(gone) == 1 else 'are'} gone, while the rest of the server runs"
    )
    if told is None and len(gone) > 1:
        runs += "; nothing tells which of them ended first"
    found = _state(
        view,
        ServerState.RANK_LOST,
        sentence or f"{names(gone)} {runs}.",
        [*why, *view.kills],
        told or gone[0],
        "its log, and dmesg, tell what ended it; the server does not recover",
    )
    # Where all have ended, most of them were ended by the server.
    return found if told or len(gone) == 1 else found.model_copy(update={"process": ""})


def _plural(ranks: Sequence[Rank]) -> str:
    """``is in all_reduce``, ``are in all_reduce``, ``waits for work``, ``wait for
    work``."""
    words = _words(ranks[0], len(ranks))
    return (
        f"{'is' if len(ranks) == 1 else 'are'} {words}"
        if words.startswith("in ")
        else words
    )


def _words(rank: Rank, count: int) -> str:
    return rank.words if count == 1 else _VERB.sub(r"\1", rank.words, count=1)


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
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return ", ".join(rank.role for rank in ranks[:SHOWN]) + more


def _observed(seen: RankLook) -> list[str]:
    lines = list(seen.groups)
    lines += [f"{e.waiter} waits for {e.awaited}: {e.why}" for e in seen.edges[:6]]
    sources = dict.fromkeys(
        f"{r.role} stands at {r.source}" for r in seen.ranks if r.source
    )
    return [*lines, *list(sources)[:4]]


def _state(
    view: View,
    state: ServerState,
    sentence: str,
    why: list[str],
    rank: Rank,
    advice: str,
) -> Assessment:
    course = next((c for c in view.courses(rank.pid) if c.name == rank.thread), None)
    stack: dict[str, Any] = {}
    if course is not None:
        stack = {
            "thread": course.name,
            "frames": course.frames,
            "seen": course.samples,
            "samples": course.samples + course.torn,
        }
    why = [*why, *_logged(view, rank)]
    cpu = (
        []
        if rank.cpu_pct is None
        else [f"{rank.role} uses {rank.cpu_pct:.0f} % of a core"]
    )
    call = [f"its thread waits in the system call {rank.call}"] if rank.call else []
    return Assessment(
        state=state,
        sentence=sentence,
        why=[*why, *cpu, *call],
        process=rank.role,
        advice=[KEEP, advice],
        **stack,
    )


def _logged(view: View, rank: Rank) -> list[str]:
    """The first error of that rank in the log, its exception where it has one."""
    for _, data in view.evidence.results(LogsData, partial=True):
        own = [
            line for line in data.errors if line.process.partition(" ")[0] == rank.role
        ]
        raised = (one for one in own if EXCEPTION.match(one.text))
        if line := next(raised, own[0] if own else None):
            return [
                (
                    f"first error of {rank.role} in the log, at {line.time}: "
                    f"{public_line(line, 200)}"
                )
            ]
    return []


def asleep_and_stuck(view: View) -> bool:
    """Whether a rank stands in its own code, asleep and outside of input and output,
    while its core waits for it: what does not end by itself, however short the
    silence."""
    found = silent(view, [])
    if found is None or found.state is not ServerState.WORKER_STUCK:
        return False
    seen = look(view)
    stuck = (
        [r for r in seen.ranks if r.kind in RUNS and r.stand is Stand.STANDS]
        if seen
        else []
    )
    return all(_asleep(rank) for rank in stuck)


def _asleep(rank: Rank) -> bool:
    return rank.call in ASLEEP and rank.cpu_pct is not None and rank.cpu_pct < AWAKE_PCT


def replicas(facts: TargetFacts) -> bool:
    """Whether several replicas of the model answer at this address."""
    return len({labels(p.role).get("DP") for p in facts.cores}) > 1


def stuck_replica(view: View, why: Sequence[str]) -> Assessment | None:
    """A replica that is stuck while another one works: a core that stands in its own
    code and sleeps, or that waits for a worker which does. Or what coordinates them
    stands so."""
    seen = look(view) if replicas(view.facts) else None
    if seen is None:
        return None
    cores = {p.pid for p in view.facts.cores}
    stuck = [
        rank
        for rank in seen.ranks
        if (rank.kind in RUNS or rank.kind == "coordinator")
        and rank.stand is Stand.STANDS
        and _asleep(rank)
        and (
            rank.pid in cores
            or rank.kind == "coordinator"
            or any(e.awaited == rank.role for e in seen.edges)
        )
    ]
    if not stuck:
        return None
    harm = "requests that reach it do not get an answer"
    if stuck[0].kind == "coordinator":
        harm = "nobody tells the replicas of each other's requests"
    return _state(
        view,
        ServerState.WORKER_STUCK,
        (
            f"{stuck[0].role} is stuck in {stuck[0].place}, while another replica "
            f"works: {harm}."
        ),
        [*why, *_observed(seen)],
        stuck[0],
        "take this server out of the load balancer, and restart it",
    )
