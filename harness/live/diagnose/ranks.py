"""A server of several processes: what each rank is at, who differs, who waits for whom.
Pure.

A worker that waits for its next order has nothing to do; a core that waits for a worker
has handed a step out. Which wait a stack is, :mod:`mmrepro.engines.waits` knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from mmrepro.engines import ENGINES
from mmrepro.engines.waits import COMPILERS, Wait, Waiting, wait_places, waiting
from mmrepro.failure.documents import (
    Rank,
    RankEdge,
    RankLook,
    Stand,
    TargetFacts,
    TargetProcess,
)
from mmrepro.failure.signature import log_lines
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.threads import MIN_SAMPLES, Course, _python, bare, where
from mmrepro.live.diagnose.titles import (
    DIED,
    KINDS,
    every,
    expected,
    labels,
    named,
    runs_alone,
    whole,
)
from mmrepro.probes import Frame, LogsData

RUNS = ("core", "worker")
OWN = re.compile(r"^(?P<role>\w+) pid=(?P<pid>\d+)$")
"""How vLLM's processes call themselves before each line of log."""
_PEER = re.compile(r"Connection (?:closed|reset) by peer")
"""gloo's and the kernel's words for a peer that has ended
(gloo/transport/tcp/pair.cc)."""
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
    """The view with the whole titles of processes that have ended."""
    died: dict[int, int] = {}
    for death in _deaths(view):
        if death["pid"]:
            died[int(death["pid"])] = int(death["scheduler"])

    logged: dict[int, str] = {}
    for _, data in view.evidence.results(LogsData, partial=True):
        for name in data.last_by_process:
            match = OWN.match(name)
            if match:
                logged[int(match["pid"])] = match["role"]
    return DiagnosisView(whole(view.facts, died, logged), view.evidence)


def first_dead(view: DiagnosisView, gone: Sequence[str] = ()) -> str:
    """The rank that ended first, by the log; "": nothing tells it.

    Args:
        gone: of ranks that ended, those that their parent has collected. vLLM's front
            ends the other cores when it has collected one (``monitor_engine_liveness``
            of v1/engine/utils.py).
    """
    deaths = _deaths(view)
    if deaths:
        role = _role_of_death(view, deaths[0])
        if role is not None:
            # SGLang's front names the first that crashed in the order of ranks, not of
            # time: an error of another rank may be older.
            by_front = not deaths[0]["worker"]
            return "" if by_front and _own_errors(view, role) else role

    engine = ENGINES.get(view.facts.engine)
    if len(gone) == 1 and engine and engine.worker_role:
        return gone[0]
    return _speechless(view)


def first_to_fail(view: DiagnosisView) -> str:
    """The process that wrote the log's first error; "": it has none."""
    return next(iter(_errors(view)), "")


def _role_of_death(view: DiagnosisView, death: dict[str, str]) -> str | None:
    """The rank that a line of the log says has ended; None: it has no number that this
    server's command line knows."""
    sizes = expected(view.facts)
    engine = ENGINES.get(view.facts.engine)
    data = labels(death["parent"]) if death["worker"] else {}
    if engine is None or ("DP" in sizes) is not ("DP" in data):
        return None
    only_one = death["worker"] and runs_alone(view.facts)
    if not sizes and not only_one:
        return None
    inner = every(sizes, ("PP", "TP"))
    number = int(death["worker"] or death["scheduler"] or len(inner))
    if number >= len(inner):
        return None
    return named(engine.worker_role or engine.core_role, data | inner[number])


def _own_errors(view: DiagnosisView, role: str) -> bool:
    """Whether another rank than ``role`` has an error in the log that is no word of its
    peer's end."""
    for other, texts in _errors(view).items():
        if other != role and labels(other) and not _tells_of_peer(texts):
            return True
    return False


def _tells_of_peer(texts: Sequence[str]) -> bool:
    """Whether one of these errors is a peer that closed its connection."""
    return any(_PEER.search(text) for text in texts)


def _errors(view: DiagnosisView) -> dict[str, list[str]]:
    """Role: texts of its errors in the log."""
    errors: dict[str, list[str]] = {}
    for _, data in view.evidence.results(LogsData, partial=True):
        for line in data.errors:
            role = line.process.partition(" ")[0]
            errors.setdefault(role, []).append(line.text)
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
    running = _running(view.facts, sizes)
    if not running and (not sizes or not view.facts.cores):
        return None

    ranks: list[Rank] = []
    for process in view.facts.processes:
        rank = _rank(view, process, running)
        if rank is not None:
            ranks.append(rank)
    ranks = _counted(view, ranks, sizes)

    members = of_kind(ranks, "worker")
    cores = of_kind(ranks, "core")
    standing = len(cores) > 1 and bool(at_stand(cores, Stand.STANDS))
    odd = odd_ranks(cores if standing else members)
    return RankLook(
        ranks=ranks,
        groups=_groups(members),
        odd=[rank.role for rank in odd],
        edges=_edges(ranks, odd),
    )


def _running(facts: TargetFacts, sizes: dict[str, int]) -> list[TargetProcess]:
    """The processes that run the model; none: workers are missing, or it has but one
    process."""
    running = workers(facts)
    if running:
        return running
    engine = ENGINES.get(facts.engine)
    # With data parallel ranks alone each core runs the model itself, and so do all
    # cores of an engine that has no workers.
    without_workers = bool(sizes) and engine is not None and not engine.worker_role
    if without_workers or sizes.keys() == {"DP"}:
        return facts.cores
    return []


def of_kind(ranks: Sequence[Rank], kind: str) -> list[Rank]:
    """The ranks of this kind."""
    return [rank for rank in ranks if rank.kind == kind]


def at_stand(ranks: Sequence[Rank], *stands: Stand) -> list[Rank]:
    """The ranks that are at one of these."""
    return [rank for rank in ranks if rank.stand in stands]


# ------------------------------------------------------------------ one process


def _rank(
    view: DiagnosisView, process: TargetProcess, running: Sequence[TargetProcess]
) -> Rank | None:
    """One process; None: it is neither a rank nor serves them."""
    engine = ENGINES.get(view.facts.engine)
    kind = _kind(view.facts, process, running)
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
    return rank.model_copy(update=_observed(view, rank, courses))


def _observed(
    view: DiagnosisView, rank: Rank, courses: Sequence[Course]
) -> dict[str, Any]:
    """The fields of a rank that its stacks tell."""
    # Rank 0 of a group leads it; each data parallel core has a group of its own.
    group = {name: number for name, number in rank.labels.items() if name != "DP"}
    leader = rank.kind != "worker" or not any(group.values())
    readings = [_at(view, course, leader=leader) for course in courses]
    course, stand, wait = _telling(courses, readings)

    # A coordinator polls, and nothing else; where a detokenizer waits for work has a
    # name.
    sleeps = not course.active and rank.kind == "front"
    if rank.kind not in RUNS and (course.waits or sleeps):
        # An event loop: what it waits for has no name.
        stand = Stand.WORK
    calls = view.waits(rank.pid)
    observed: dict[str, Any] = {
        "stand": stand,
        "thread": course.name,
        "samples": course.samples,
        "call": calls.get(course.tid or 0, ""),
        "course": [_short(view, s.frames, leader=leader) for s in course.stacks],
    }
    if wait:
        observed["what"] = wait.what
        observed["place"] = where(wait.caller)
        observed["source"] = wait.source
    else:
        frames = _python(course.stacks[-1].frames)
        observed["what"] = frames[0].name if frames else ""
        observed["place"] = course.place
        observed["source"] = ""
    return observed


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
    """The place at which a thread waits for its GPU in every sample, by its frames; "":
    it does not."""
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


_Read = tuple[Stand, Waiting | None]


def _at(view: DiagnosisView, course: Course, *, leader: bool) -> _Read:
    """What one thread is at over all its samples."""
    if _turns_idle(course, ENGINES[view.facts.engine].idle_loops):
        return Stand.WORK, None

    waits = [_waiting(view, stack.frames, leader=leader) for stack in course.stacks]
    kinds = {wait.wait if wait else None for wait in waits}
    last = waits[-1]
    if len(kinds) == 1 and last is not None:
        # The same kind of wait at several places: it waits, is answered, waits again.
        places = {(wait.what, where(wait.caller)) for wait in waits if wait}
        if len(places) > 1 and last.wait is not Wait.WORK:
            return Stand.MOVES, last
        return _WAITS[last.wait], last
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
    courses: Sequence[Course], read: Sequence[_Read]
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
    wait = _waiting(view, frames, leader=leader)
    if wait:
        return "work" if wait.wait is Wait.WORK else wait.what
    own = _python(frames)
    return own[0].name if own else ""


# ------------------------------------------------------------------ all of them


def _counted(
    view: DiagnosisView, ranks: list[Rank], sizes: dict[str, int]
) -> list[Rank]:
    """The ranks, and those that the command line asks for and that are no process;
    those whose process cannot be told from another's are among them."""
    engine = ENGINES.get(view.facts.engine)
    members = of_kind(ranks, "worker")
    if engine is None or not sizes or not members or view.facts.listening is False:
        return ranks

    unknown: list[Rank] = []
    there: list[dict[str, int]] = []
    for rank in members:
        if rank.stand is Stand.GONE and not rank.labels:
            unknown.append(rank)
            continue
        place = {name: at for name, at in rank.labels.items() if name in sizes}
        if place.keys() != sizes.keys():
            # Its title names other groups: nothing can be counted.
            return ranks
        there.append(place)

    own = members[0].role.startswith(engine.worker_role)
    prefix = (engine.worker_role if own else "") or engine.core_role
    absent: list[Rank] = []
    for place in every(sizes):
        if place in there:
            continue
        role = named(prefix, place)
        absent.append(Rank(role=role, kind="worker", labels=place, stand=Stand.GONE))
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
        lines.append(f"{len(ranks)} {rank_words(ranks[0], len(ranks))}: {roles}")
    return lines


def odd_ranks(members: Sequence[Rank]) -> list[Rank]:
    """The ranks that differ: gone, stopped, or in their own code while others wait;
    else the smaller part, where ranks are at different places."""
    for stand in (Stand.GONE, Stand.STOPPED, Stand.STANDS):
        odd = at_stand(members, stand)
        if odd and len(odd) < len(members):
            return odd

    seen = [rank for rank in members if rank.stand is not Stand.UNSEEN]
    # Ranks that move are sampled one after the other: they are never at one place.
    if at_stand(seen, Stand.MOVES):
        return []
    by_place: dict[tuple[Stand, str, str], list[Rank]] = {}
    for rank in seen:
        by_place.setdefault(_place_of(rank), []).append(rank)
    if len(by_place) < 2:
        return []

    idle = at_stand(seen, Stand.WORK)
    if idle and len(idle) < len(seen):
        rest = [rank for rank in seen if rank not in idle]
        return idle if len(idle) <= len(rest) else rest
    least = min(len(ranks) for ranks in by_place.values())
    odd = [rank for rank in seen if len(by_place[_place_of(rank)]) == least]
    return odd if len(odd) < len(seen) else []


def _place_of(rank: Rank) -> tuple[Stand, str, str]:
    return rank.stand, rank.what, rank.place


def _edges(ranks: Sequence[Rank], odd: Sequence[Rank]) -> list[RankEdge]:
    """The core waits for its workers, and ranks in a collective for those that are not
    in it."""
    edges: list[RankEdge] = []
    members = of_kind(ranks, "worker")
    for core in at_stand(ranks, Stand.WORKER):
        # Of a worker that is no process, whose it was is not known.
        below = [rank for rank in members if rank.under in (core.pid, None)] or members
        awaited = [rank for rank in below if rank in odd] or below
        for rank in awaited:
            edges.append(
                RankEdge(waiter=core.role, awaited=rank.role, why="its answer")
            )
    for rank in at_stand(members, Stand.COLLECTIVE, Stand.STAGE):
        for other in odd:
            if other is not rank:
                edges.append(
                    RankEdge(waiter=rank.role, awaited=other.role, why=rank.what)
                )
    return edges


def rank_words(rank: Rank, count: int) -> str:
    return rank.words if count == 1 else _VERB.sub(r"\1", rank.words, count=1)


def replicas(facts: TargetFacts) -> bool:
    """Whether several replicas of the model answer at this address."""
    numbers = {labels(core.role).get("DP") for core in facts.cores}
    return len(numbers) > 1
