"""A server of several processes: what each rank is at, who differs, who waits for whom.
Pure.

A worker that waits for its next order has nothing to do; a core that waits for a worker
has handed a step out. Which wait a stack is, :mod:`mmrepro.engines.waits` knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
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
from mmrepro.live.diagnose.readings import DiagnosisView
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
from mmrepro.probes.data import (
    FlightData,
    FlightRank,
    Frame,
    GpuCoreData,
    LogsData,
    NcclRank,
    RasData,
)
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
SHOWN = 4
_AWAKE_PCT = 5.0
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


def _is_worker(facts: TargetFacts, role: str) -> bool:
    """Whether a process of this role only runs the model, beside its core."""
    engine = ENGINES.get(facts.engine)
    prefix = engine.worker_role if engine is not None else ""
    return bool(prefix) and role.startswith(prefix)


def workers(facts: TargetFacts) -> list[TargetProcess]:
    """The processes that run the model, where they are several or not the core
    itself."""
    own = [p for p in facts.processes if _is_worker(facts, p.role)]
    return own or (facts.cores if len(facts.cores) > 1 else [])


def kind_of(role: str) -> Literal["coordinator", "detokenizer"] | None:
    """What a process that serves all ranks is; None: it is none of them."""
    for name, kind in KINDS:
        if name in role:
            return kind
    return None


def coordinators(facts: TargetFacts) -> list[TargetProcess]:
    """vLLM's process that counts the requests of data parallel cores
    (v1/engine/coordinator.py)."""
    return [p for p in facts.processes if p.role.startswith("DPCoordinator")]


def titled(view: DiagnosisView) -> DiagnosisView:
    """With the whole titles of processes that have ended."""
    died: dict[int, int] = {}
    for death in _deaths(view):
        if death["pid"]:
            died[int(death["pid"])] = int(death["scheduler"])

    logged: dict[int, str] = {}
    for _, data in view.evidence.results(LogsData, partial=True):
        for name in data.last_by_process:
            if match := OWN.match(name):
                logged[int(match["pid"])] = match["role"]
    return DiagnosisView(whole(view.facts, died, logged), view.evidence)


def first_dead(view: DiagnosisView, gone: Sequence[str] = ()) -> str:
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


def _own_errors(view: DiagnosisView, role: str) -> bool:
    """Whether another rank than ``role`` has an error in the log that is no word of its
    peer's end: SGLang's front names the first that crashed in the order of ranks, not
    of time."""
    for other, texts in _errors(view).items():
        if other != role and labels(other) and not _tells_of_peer(texts):
            return True
    return False


def _tells_of_peer(texts: Sequence[str]) -> bool:
    """Whether one of these errors is a peer that closed its connection."""
    return any(PEER.search(text) for text in texts)


def _errors(view: DiagnosisView) -> dict[str, list[str]]:
    """Role: texts of its errors in the log."""
    errors: dict[str, list[str]] = {}
    for _, data in view.evidence.results(LogsData, partial=True):
        for line in data.errors:
            errors.setdefault(line.process.partition(" ")[0], []).append(line.text)
    return errors


def _speechless(view: DiagnosisView) -> str:
    """The only rank that ended without an error in the log, where the errors of all
    others say that a peer has closed its connection."""
    members = []
    for process in titled(view).facts.processes:
        if process.state in "ZX" and labels(process.role):
            members.append(process.role)

    errors = _errors(view)
    silent = [role for role in members if role not in errors]
    echoes = [role for role in members if _tells_of_peer(errors.get(role, ()))]
    # Where nobody else complains, a rank without an error tells nothing.
    if len(silent) != 1 or not echoes or len(echoes) != len(members) - 1:
        return ""
    return silent[0]


def _deaths(view: DiagnosisView) -> list[dict[str, str]]:
    """Each line of the log that names a process that ended, in order: the groups of
    DIED."""
    deaths = []
    lines = log_lines(view.evidence, "rank-died")
    for line in sorted(lines, key=lambda line: line.number):
        match = DIED.search(line.text)
        if match is None:
            continue
        death: dict[str, str] = match.groupdict(default="")
        death["parent"] = line.process.partition(" ")[0]
        deaths.append(death)
    return deaths


def look(view: DiagnosisView) -> RankLook | None:
    """All processes side by side; None: one process runs the model."""
    view = titled(view)
    sizes = expected(view.facts)
    running = workers(view.facts)
    engine = ENGINES.get(view.facts.engine)
    cores_run = sizes.keys() == {"DP"}
    if sizes and engine is not None and not engine.worker_role:
        cores_run = True
    if not running and cores_run:
        running = view.facts.cores
    if not running and (not sizes or not view.facts.cores):
        return None

    ranks: list[Rank] = []
    for process in view.facts.processes:
        rank = _rank(view, process, running)
        if rank is not None:
            ranks.append(rank)
    ranks = _counted(view, ranks, sizes)

    members = _of_kind(ranks, "worker")
    cores = _of_kind(ranks, "core")
    standing = len(cores) > 1 and bool(_at_stand(cores, Stand.STANDS))
    odd = _odd(cores if standing else members)
    return RankLook(
        ranks=ranks,
        groups=_groups(members),
        odd=[rank.role for rank in odd],
        edges=_edges(ranks, odd),
    )


def _of_kind(ranks: Sequence[Rank], kind: str) -> list[Rank]:
    return [rank for rank in ranks if rank.kind == kind]


def _at_stand(ranks: Sequence[Rank], *stands: Stand) -> list[Rank]:
    return [rank for rank in ranks if rank.stand in stands]


# ------------------------------------------------------------------ one process


def _rank(
    view: DiagnosisView, process: TargetProcess, running: Sequence[TargetProcess]
) -> Rank | None:
    """One process; None: it is neither a rank nor serves them."""
    facts, engine = view.facts, ENGINES.get(view.facts.engine)
    kind = _kind(facts, process, running)
    if kind is None:
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
    most = max((course.samples for course in courses), default=0)
    # Two samples may be of one moment: what a thread is at takes three.
    if engine is None or most < MIN_SAMPLES:
        return rank

    # Rank 0 of a group leads it; each data parallel core has a group of its own.
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
    lane = [_short(view, stack.frames, leader=leader) for stack in course.stacks]
    update: dict[str, Any] = {
        "stand": stand,
        "thread": course.name,
        "samples": course.samples,
        "call": calls.get(course.tid or 0, ""),
        "course": lane,
    }
    if wait:
        update["what"] = wait.what
        update["place"] = where(wait.caller)
        update["source"] = wait.source
    else:
        frames = _python(course.stacks[-1].frames)
        update["what"] = frames[0].name if frames else ""
        update["place"] = course.place
        update["source"] = ""
    return rank.model_copy(update=update)


def _kind(
    facts: TargetFacts, process: TargetProcess, running: Sequence[TargetProcess]
) -> Literal["front", "core", "worker", "coordinator", "detokenizer"] | None:
    """What a process is among the ranks; None: none of them."""
    # A core that runs the model itself is counted as a worker.
    if process in running:
        return "worker"
    if process in facts.cores:
        return "core"
    if process.pid == facts.root_pid:
        return "front"
    return kind_of(process.role)


def waits_for_device(view: DiagnosisView, course: Course) -> str:
    """Where a thread waits for its GPU in every sample, by its frames; "": it does
    not."""
    if course.driver_call:
        return f"{course.driver_call}, called by {course.place}"
    last = None
    for stack in course.stacks:
        last = _waiting(view, stack.frames, leader=True)
        if last is None or last.wait is not Wait.DEVICE:
            return ""
    if last is None:
        return ""
    return f"{last.what}, called by {where(last.caller)}"


Read = tuple[Stand, Waiting | None]


def _at(view: DiagnosisView, course: Course, *, leader: bool) -> Read:
    """What one thread is at over all its samples."""
    if _turns_idle(course, ENGINES[view.facts.engine].idle_loops):
        return Stand.WORK, None

    waits = [_waiting(view, stack.frames, leader=leader) for stack in course.stacks]
    kinds = {wait.wait if wait else None for wait in waits}
    last = waits[-1]
    if len(kinds) == 1 and last is not None:
        # The same kind of wait at several places: it waits, is answered, waits again.
        spots = {(wait.what, where(wait.caller)) for wait in waits if wait}
        moves = len(spots) > 1 and last.wait is not Wait.WORK
        return (Stand.MOVES if moves else _WAITS[last.wait]), last
    if kinds == {None} and course.stays and not _compiles(course):
        return (Stand.WORK if course.idle_loop else Stand.STANDS), None
    return Stand.MOVES, last


def _turns_idle(course: Course, idle_loops: Iterable[str]) -> bool:
    """Whether it goes round a loop that an engine runs while it has no work."""
    idle = frozenset(idle_loops)
    if course.turning in idle:
        return True
    inner = [stack.frames[0] for stack in course.stacks if stack.frames]
    return any(bare(frame) in idle for frame in inner)


def _compiles(course: Course) -> bool:
    """Whether a compiler is in one of its stacks: that takes minutes in one place."""
    for stack in course.stacks:
        if any(COMPILERS.search(frame.file) for frame in stack.frames):
            return True
    return False


def _telling(
    courses: Sequence[Course], read: Sequence[Read]
) -> tuple[Course, Stand, Waiting | None]:
    """The thread that tells what the process is at: the main one, else one that does
    not merely wait while that waits for work."""
    pairs = list(zip(courses, read, strict=True))
    main = [pair for pair in pairs if pair[0].name == "MainThread"]
    course, (stand, wait) = main[0] if main else pairs[0]
    if stand is not Stand.WORK:
        return course, stand, wait
    for other, (at, why) in pairs:
        device = at in (Stand.DEVICE, Stand.COLLECTIVE, Stand.STAGE, Stand.TRANSFER)
        busy = at is Stand.STANDS and not other.waits
        if other is not course and (device or busy):
            return other, at, why
    return course, stand, wait


def _waiting(
    view: DiagnosisView, frames: Sequence[Frame], *, leader: bool
) -> Waiting | None:
    places = wait_places(view.facts.engine)
    return waiting(_python(frames), places, view.facts.release, leader=leader)


def _short(view: DiagnosisView, frames: Sequence[Frame], *, leader: bool) -> str:
    """A sample in a word or two: for a lane."""
    if wait := _waiting(view, frames, leader=leader):
        return "work" if wait.wait is Wait.WORK else wait.what
    own = _python(frames)
    return own[0].name if own else ""


# ------------------------------------------------------------------ all of them


def _counted(
    view: DiagnosisView, ranks: list[Rank], sizes: dict[str, int]
) -> list[Rank]:
    """With the ranks that the command line asks for and that are no process; those
    whose process cannot be told from another's are among them."""
    engine = ENGINES.get(view.facts.engine)
    members = _of_kind(ranks, "worker")
    if engine is None or not sizes or not members or view.facts.listening is False:
        return ranks

    unknown = [rank for rank in members if rank.stand is Stand.GONE and not rank.labels]
    there: list[dict[str, int]] = []
    for rank in members:
        if rank in unknown:
            continue
        known = {name: at for name, at in rank.labels.items() if name in sizes}
        if known.keys() != sizes.keys():
            return ranks  # titles that name other groups: nothing can be counted
        there.append(known)

    own = members[0].role.startswith(engine.worker_role)
    prefix = (engine.worker_role if own else "") or engine.core_role
    absent: list[Rank] = []
    for place in every(sizes):
        if place not in there:
            role = named(prefix, place)
            absent.append(
                Rank(role=role, kind="worker", labels=place, stand=Stand.GONE)
            )
    if not absent:
        return ranks
    return [rank for rank in ranks if rank not in unknown] + absent


def _groups(members: Sequence[Rank]) -> list[str]:
    """A line for each set of ranks that are at the same, the largest first."""
    by: dict[str, list[Rank]] = {}
    for rank in members:
        by.setdefault(rank.words, []).append(rank)
    lines = []
    for ranks in sorted(by.values(), key=len, reverse=True):
        roles = ", ".join(rank.role for rank in ranks)
        lines.append(f"{len(ranks)} {_words(ranks[0], len(ranks))}: {roles}")
    return lines


def _odd(members: Sequence[Rank]) -> list[Rank]:
    """Those that differ: gone, stopped, or in their own code while others wait; else
    the smaller part, where ranks are at different places."""
    for stand in (Stand.GONE, Stand.STOPPED, Stand.STANDS):
        odd = _at_stand(members, stand)
        if odd and len(odd) < len(members):
            return odd

    seen = [rank for rank in members if rank.stand is not Stand.UNSEEN]
    places = Counter((rank.stand, rank.what, rank.place) for rank in seen)
    # Ranks that move are sampled one after the other: they are never at one place.
    if len(places) < 2 or _at_stand(seen, Stand.MOVES):
        return []
    idle = _at_stand(seen, Stand.WORK)
    if idle and len(idle) < len(seen):
        rest = [rank for rank in seen if rank not in idle]
        return idle if len(idle) <= len(rest) else rest

    least = min(places.values())
    odd = []
    for rank in seen:
        if places[rank.stand, rank.what, rank.place] == least:
            odd.append(rank)
    return odd if len(odd) < len(seen) else []


def _edges(ranks: Sequence[Rank], odd: Sequence[Rank]) -> list[RankEdge]:
    """The core waits for its workers, and ranks in a collective for those that are not
    in it."""
    edges = []
    members = _of_kind(ranks, "worker")
    for core in _at_stand(ranks, Stand.WORKER):
        below = [rank for rank in members if rank.under in (core.pid, None)] or members
        awaited = [rank for rank in below if rank in odd] or below
        for rank in awaited:
            edges.append(
                RankEdge(waiter=core.role, awaited=rank.role, why="its answer")
            )
    for rank in _at_stand(members, Stand.COLLECTIVE, Stand.STAGE):
        for other in odd:
            if other is not rank:
                edges.append(
                    RankEdge(waiter=rank.role, awaited=other.role, why=rank.what)
                )
    return edges


# ------------------------------------------------------------------ NCCL's own word


def behind(view: DiagnosisView) -> tuple[list[str], list[str]]:
    """Roles of the ranks that have launched fewer operations than the rest of a
    communicator, in the same way in two reports of NCCL's RAS service, and what the
    last report says."""
    reports = [data for _, data in view.evidence.results(RasData, "check")]
    if not reports:
        return [], []
    last, roles = reports[-1], _roles_by_pid(view.facts)
    lines = [f"NCCL: {text}" for text in last.troubles[:6]]
    missing = [rank for rank in last.ranks if rank.missing]
    for rank in missing[:6]:
        how = "is considered dead" if rank.dead else "gives no data"
        who = roles.get(rank.pid, f"process {rank.pid}")
        lines.append(f"NCCL: {who} (rank {rank.rank}) {how}")

    # Ranks of a server at work are apart by an operation or two at any moment: only
    # what is the same in the first and the last report is a rank that lags.
    first_counts, last_counts = _lagging(reports[0], roles), _lagging(last, roles)
    if len(reports) < 2 or first_counts != last_counts:
        return [], lines
    for role, text in last_counts.items():
        lines.append(f"NCCL: {role} {text}")
    return list(last_counts), lines


def flight(view: DiagnosisView) -> list[str]:
    """Who entered the last collective operation of a group and who did not, by
    PyTorch's Flight Recorder. A group of one file says nothing."""
    ranks: list[FlightRank] = []
    groups: dict[str, list[FlightRank]] = {}
    for _, data in view.evidence.results(FlightData, "check"):
        ranks += data.ranks
    for rank in ranks:
        for group in rank.entered:
            groups.setdefault(group, []).append(rank)

    lines = []
    for group, members in groups.items():
        top = max(rank.entered[group] for rank in members)
        entered = [rank for rank in members if rank.entered[group] == top]
        late = [rank for rank in members if rank.entered[group] < top]
        if not late:
            continue
        numbers = ", ".join(str(rank.rank) for rank in entered)
        missing = ", ".join(f"{rank.rank} (at {rank.entered[group]})" for rank in late)
        lines.append(
            f"Flight Recorder: in group {group} rank {numbers} entered "
            f"{entered[0].operation[group]} (number {top}), rank {missing} did not"
        )
    return lines[:6]


def on_gpu(view: DiagnosisView) -> dict[int, str]:
    """By process, the kernel that its GPU's core dump shows at work."""
    kernels = {}
    for _, dump in view.evidence.results(GpuCoreData, "check"):
        if dump.kernels:
            kernels[dump.pid] = dump.kernels[0]
    return kernels


def dumped(view: DiagnosisView) -> list[str]:
    """A line for each core dump of a GPU."""
    lines = []
    for _, dump in view.evidence.results(GpuCoreData, "check"):
        who = view.facts.role_of(dump.pid) or f"process {dump.pid}"
        what = f"runs {dump.kernels[0]}" if dump.kernels else "has a core dump"
        if len(dump.kernels) > 1:
            what += f" and {len(dump.kernels) - 1} more kernels"
        lines.append(f"the GPU of {who} {what}: {dump.file}, {size(dump.bytes)}")
    return lines


def _roles_by_pid(facts: TargetFacts) -> dict[int, str]:
    """Roles by both numbers of a process: in a container NCCL knows the inner one."""
    roles = {}
    for process in facts.processes:
        if process.inner_pid is not None:
            roles[process.inner_pid] = process.role
        if process.pid is not None:
            roles[process.pid] = process.role
    return roles


def _lagging(report: RasData, roles: dict[int, str]) -> dict[str, str]:
    """Role: what it has launched, of the ranks that are behind the most of their
    communicator."""
    lagging: dict[str, str] = {}
    communicators: dict[str, list[NcclRank]] = {}
    for rank in report.ranks:
        ranks = communicators.setdefault(rank.communicator, [])
        if not rank.missing:
            ranks.append(rank)

    for name, ranks in communicators.items():
        kinds: set[str] = set()
        for rank in ranks:
            kinds.update(rank.counts)
        for kind in sorted(kinds):
            counted = _launched(report, name, ranks, kind)
            top = max(counted, default=0)
            what = "operations" if kind == "all" else kind
            for rank in ranks:
                at = rank.counts.get(kind, 0)
                is_behind = at < top and counted[at] < counted[top]
                if is_behind and rank.pid in roles:
                    lagging[roles[rank.pid]] = (
                        f"has launched {at} {what}, {counted[top]} others {top}"
                    )
    return lagging


def _launched(
    report: RasData, communicator: str, ranks: Sequence[NcclRank], kind: str
) -> Counter[int]:
    """How many ranks have launched each number of operations of ``kind``."""
    # The JSON form lists every rank; the text form only those that differ, and sums.
    if report.form == "json" and len(ranks) > 1:
        return Counter(rank.counts.get(kind, 0) for rank in ranks)
    return Counter(report.launched.get(f"{communicator} {kind}", {}))


# ------------------------------------------------------------------ what is wrong


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
    cores = _of_kind(seen.ranks, "core")
    members = _of_kind(seen.ranks, "worker")
    waiting_cores = _at_stand(cores, Stand.WORKER)
    if cores and not waiting_cores and not _at_stand(members, Stand.GONE):
        return _stuck_core(view, why, cores)

    if waiting_cores:
        # Of a worker that has ended, whose it was is not known: it counts for each.
        parents = {core.pid for core in waiting_cores}
        below = [rank for rank in members if rank.under in parents or rank.pid is None]
        members = below or members
    if not members:
        return None
    if not _at_stand(members, Stand.GONE, Stand.STOPPED, Stand.STANDS):
        stuck = _at_stand(_of_kind(seen.ranks, "detokenizer"), Stand.STANDS)
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
    """Of data parallel cores one that stands in its own code; a single core is no
    rank."""
    stuck = _at_stand(cores, Stand.STANDS)
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
    if gone := _at_stand(members, Stand.GONE):
        return _lost(view, why, gone)
    if stuck := _at_stand(members, Stand.STANDS):
        return _stuck_worker(view, why, members, stuck, cores)
    if moving := _at_stand(members, Stand.MOVES):
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
    if _at_stand(members, Stand.UNSEEN, Stand.STOPPED):
        return _unseen(why, cores)
    if transferring := _at_stand(members, Stand.TRANSFER):
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
    held = _at_stand(members, Stand.COLLECTIVE, Stand.STAGE)
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
    held = _at_stand(members, Stand.DEVICE, Stand.COLLECTIVE, Stand.STAGE)
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
    if len(_at_stand(members, Stand.DEVICE)) == len(members):
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
    odd = _odd(members)
    together = _at_stand(members, Stand.COLLECTIVE, Stand.STAGE)
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
    if not cores and len(_at_stand(members, Stand.WORK)) == len(members):
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
    """Of a server that fails: a worker process is gone; None: none is known to be."""
    seen = look(view)
    if seen is not None:
        gone = _at_stand(_of_kind(seen.ranks, "worker"), Stand.GONE)
        if gone:
            return _lost(view, list(why), gone)
    return said_gone(view, why)


def said_gone(view: DiagnosisView, why: Sequence[str]) -> Assessment | None:
    """A rank that ended by the log and that no process is: its core ends the others at
    once, and then itself."""
    first = first_dead(view)
    if not first:
        return None
    running = [p.role for p in view.facts.processes if p.state not in "ZX"]
    if first in running:
        return None
    gone = Rank(role=first, kind="worker", labels=labels(first), stand=Stand.GONE)
    sentence = (
        f"{first} has ended, by the server's log; its core ends the other ranks then."
    )
    return _lost(view, [*why, *_ended_by_log(view)], [gone], sentence)


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
    words = _words(ranks[0], len(ranks))
    if not words.startswith("in "):
        return words
    return f"is {words}" if len(ranks) == 1 else f"are {words}"


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
        exceptions = [line for line in own if EXCEPTION.match(line.text)]
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
    stuck = _at_stand(seen.ranks, Stand.STANDS)
    return all(_asleep(rank) for rank in stuck if rank.kind in RUNS)


def _asleep(rank: Rank) -> bool:
    return (
        rank.call in _ASLEEP and rank.cpu_pct is not None and rank.cpu_pct < _AWAKE_PCT
    )


def replicas(facts: TargetFacts) -> bool:
    """Whether several replicas of the model answer at this address."""
    return len({labels(p.role).get("DP") for p in facts.cores}) > 1


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
    for rank in _at_stand(seen.ranks, Stand.STANDS):
        if not _asleep(rank):
            continue
        if rank.kind == "coordinator":
            return rank
        # A worker that nobody waits for holds nothing up.
        if rank.kind in RUNS and (rank.pid in cores or rank.role in awaited):
            return rank
    return None
