"""An engine that is silent: where it stands. Pure functions over the view of the
evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from mmrepro.engines import ENGINES, Engine
from mmrepro.engines.held import upkeep
from mmrepro.failure.documents import Assessment, Rank, RankLook, ServerState, Stand
from mmrepro.failure.signature import log_lines
from mmrepro.live.diagnose import rank_reports, rank_verdicts, ranks
from mmrepro.live.diagnose.cause_rules import LOOP_FRAMES
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.threads import MIN_SAMPLES, Course, bare, holder
from mmrepro.probes import Frame, GpuData, StacksData, SyscallsData
from mmrepro.probes.log_words import public_line

MORE_STACKS = (
    "py-spy dump --native --pid {pid} shows the C frames below the last Python one"
)
KEEP = rank_verdicts.KEEP
SEARCH = "search the upstream issues for the innermost frames"
_SLEEPS = frozenset({"clock_nanosleep", "nanosleep"})
"""A sleep ends by itself: who sleeps in each sample is in a loop that sleeps, and no C
frame tells more of it."""


class Stance(Enum):
    """What the stacks of the engine and its front show while a request waits."""

    STANDS = auto()
    MOVES = auto()
    IDLES = auto()
    UNSEEN = auto()


def stance(view: DiagnosisView) -> tuple[Stance, str]:
    """And where. A core that waits for its workers is what they are."""
    look = ranks.look(view)
    of_ranks = _of_ranks(look) if look is not None else None
    if of_ranks is not None:
        return of_ranks
    core = view.courses(view.core_pid)
    if max((course.samples for course in core), default=0) < MIN_SAMPLES:
        return Stance.UNSEEN, ""
    # In one process threads of the front poll in one place beside an engine that works.
    for course in core:
        if _is_core(view, course) and not course.stays and _computes(view, course):
            return Stance.MOVES, course.place
    stuck = _stuck(view, view.core_pid, core)
    if stuck is not None:
        return Stance.STANDS, stuck.place
    # A front that prepares a large picture keeps requests from an engine that idles.
    front_courses = [] if view.core_is_front else view.courses(view.facts.root_pid)
    for course in (*core, *front_courses):
        if _computes(view, course):
            return Stance.MOVES, course.place
    return Stance.IDLES, _main(view, core).place


def _computes(view: DiagnosisView, course: Course) -> bool:
    return bool(course.active) and not course.waits and not _turns_idly(view, course)


def in_service(view: DiagnosisView) -> bool:
    """Whether the engine is past its start: it is in its serving loop in every sample,
    and does not wait there for what the first step sets up on a device."""
    for course in view.courses(view.core_pid):
        served = [_serves(view, stack.frames) for stack in course.stacks]
        if served and all(served) and not course.on_device:
            return True
    return False


def _serves(view: DiagnosisView, frames: Sequence[Frame]) -> bool:
    engine = ENGINES.get(view.facts.engine)
    own = {*engine.step_functions, *engine.idle_loops} if engine is not None else set()
    names = {frame.name for frame in frames}
    return bool(names & own) or LOOP_FRAMES.search(" ".join(names)) is not None


def at_upkeep(view: DiagnosisView) -> str:
    """What a thread of the engine does besides serving in most samples: it compiles,
    it takes weights; "": nothing that is known."""
    pids = [view.core_pid, *(process.pid for process in ranks.workers(view.facts))]
    for pid in dict.fromkeys(pids):
        for course in view.courses(pid):
            work = [upkeep(view.facts.engine, stack.frames) for stack in course.stacks]
            named = [what for what in work if what]
            if named and 2 * len(named) >= len(work):
                return named[-1]
    return ""


def _of_ranks(look: RankLook) -> tuple[Stance, str] | None:
    """None: no core waits for a worker, nor does one of several stand in its own
    code."""
    cores = [rank for rank in look.ranks if rank.kind == "core"]
    stuck = _at(cores, Stand.STANDS)
    if stuck and len(cores) > 1:
        return Stance.STANDS, f"{stuck[0].role}: {stuck[0].place}"
    if not _at(look.ranks, Stand.WORKER):
        return None
    members = [rank for rank in look.ranks if rank.kind == "worker"]
    moving = _at(members, Stand.MOVES)
    if moving:
        return Stance.MOVES, moving[0].place
    if _at(members, Stand.UNSEEN):
        return Stance.UNSEEN, ""
    odd = [rank for rank in members if rank.role in look.odd]
    first = odd[0] if odd else members[0]
    return Stance.STANDS, f"{first.role}: {first.place}"


def _at(members: Sequence[Rank], stand: Stand) -> list[Rank]:
    return [rank for rank in members if rank.stand is stand]


def front(view: DiagnosisView, why: list[str]) -> Assessment:
    """The HTTP front itself gives no answer, and the core is another process."""
    pid = view.front_pid
    courses = view.courses(pid)
    course = _stuck(view, pid, courses)
    place = f", in {course.place}" if course else ""
    if not courses:
        why = [*why, *_calls(view, pid)]
    return Assessment(
        state=ServerState.FRONT_FROZEN,
        sentence=f"The API server takes connections and answers none of them{place}.",
        why=why + ([_described(course)] if course else []),
        process=view.facts.role_of(pid),
        advice=[KEEP],
        **_stack(course),
    )


def _calls(view: DiagnosisView, pid: int | None) -> list[str]:
    """Where the threads of a program without Python wait, by their system calls: what
    serves HTTP waits in epoll_wait while it has nothing to do, the rest in futex."""
    counts = Counter(view.waits(pid).values())
    if not counts:
        return []
    waits = ", ".join(f"{count} in {call}" for call, count in sorted(counts.items()))
    return [f"threads of {view.facts.role_of(pid)} wait: {waits}"]


def deaf(view: DiagnosisView, why: list[str]) -> Assessment | None:
    """The core lives without the thread that takes its requests, or without the one
    that sends its answers; None: its stacks do not show that."""
    ended = _ended_threads(view)
    if not ended:
        return None
    role = view.facts.role_of(view.core_pid)
    names = " and ".join(ended)
    return Assessment(
        state=ServerState.NOT_RECEIVING,
        sentence=f"{role} lives, and its thread {names} has ended: no request reaches "
        "it, or no answer leaves it, whatever is asked.",
        why=[*why, f"none of its threads is in {names}"],
        process=role,
        advice=[
            "the server does not recover from this by itself: restart it, keep its log",
            "its log has the thread's exception: a request that it cannot read ends it",
        ],
    )


def ending(view: DiagnosisView, why: list[str]) -> Assessment | None:
    """The core ends, and takes its time; its front end does not know."""
    engine = ENGINES.get(view.facts.engine)
    if engine is None or not engine.core_ends_in[1]:
        return None
    return (
        _in_its_shutdown(view, engine, why)
        or _losing_threads(view, engine, why)
        or _after_a_fatal_error(view, engine, why)
    )


def _in_its_shutdown(
    view: DiagnosisView, engine: Engine, why: list[str]
) -> Assessment | None:
    """The core shuts down: one of its threads is in the function that ends it."""
    file, function = engine.core_ends_in
    for course in view.courses(view.core_pid):
        for frame in course.frames:
            if bare(frame) != function or not frame.file.endswith(file):
                continue
            role = view.facts.role_of(view.core_pid)
            sentence = (
                f"{role} is ending, in {course.place}, while the rest of the server "
                "lives: it takes no request any more."
            )
            teller = "its log tells who told it to go: a signal, or its own exception"
            return _ends(role, sentence, why, teller, course=course)
    return None


def _losing_threads(
    view: DiagnosisView, engine: Engine, why: list[str]
) -> Assessment | None:
    """The core ends while it is observed: a thread that lasts as long as it does was in
    a sample, and is not in the last one."""
    per_sample = _thread_functions(view)
    if len(per_sample) < 2 or not per_sample[-1]:
        return None
    lasting = engine.core_threads if view.facts.cores else ()
    earlier = set().union(*per_sample[:-1])
    went = [name for name in lasting if name in earlier and name not in per_sample[-1]]
    if not went:
        return None
    role = view.facts.role_of(view.core_pid)
    failed = ranks.first_to_fail(view)
    if not engine.worker_role or not failed.startswith(engine.worker_role):
        failed = ""
    after = f" after an error of {failed}" if failed else ""
    sentence = (
        f"{role} is ending{after}: its thread {' and '.join(went)} ended while it was "
        "observed."
    )
    return _ends(failed or role, sentence, why)


def _after_a_fatal_error(
    view: DiagnosisView, engine: Engine, why: list[str]
) -> Assessment | None:
    """The core lives, a small request fails, and the core has logged the error that
    ends it."""
    if not engine.fatal_after_start or view.answer != "failed":
        return None
    for line in log_lines(view.evidence, "core-fatal"):
        if not line.process.endswith(f"pid={view.core_pid}"):
            continue
        role = view.facts.role_of(view.core_pid)
        sentence = (
            f"{role} has met a fatal error and is ending, while the rest of the server "
            "lives: it takes no request any more."
        )
        logged = f"its log says at {line.time or '?'}: {public_line(line)}"
        return _ends(role, sentence, [*why, logged])
    return None


def _ends(
    process: str,
    sentence: str,
    why: list[str],
    *advice: str,
    course: Course | None = None,
) -> Assessment:
    """The state of a server whose core ends. ``process``: the one to look at."""
    return Assessment(
        state=ServerState.PART_DEAD,
        sentence=sentence,
        why=why,
        process=process,
        advice=[
            *advice,
            "the server does not recover from this by itself: restart it",
        ],
        **_stack(course),
    )


def _thread_functions(view: DiagnosisView) -> list[set[str]]:
    """The functions that the core's threads are in: a set for each sample of its
    stacks, in order."""
    inside: list[set[str]] = []
    for _, data in view.evidence.results(StacksData, partial=True):
        for sample in data.samples:
            if sample.pid != view.core_pid:
                continue
            functions: set[str] = set()
            for thread in sample.threads:
                functions.update(map(bare, thread.frames))
            inside.append(functions)
    return inside


def _ended_threads(view: DiagnosisView) -> list[str]:
    """Functions of the core's lasting threads in which none of its threads is, where
    one is in another of them: a release whose threads are called otherwise has none."""
    engine = ENGINES.get(view.facts.engine)
    lasting = engine.core_threads if engine and view.facts.cores else ()
    inside: set[str] = set()
    for course in view.courses(view.core_pid):
        for stack in course.stacks:
            inside.update(map(bare, stack.frames))
    if inside.isdisjoint(lasting):
        return []
    # One that was there at first belongs to a core that ends while it is observed.
    inside.update(*_thread_functions(view))
    return [name for name in lasting if name not in inside]


def engine(view: DiagnosisView, why: list[str], *, asked: bool) -> Assessment:
    """The engine makes no progress: frozen, blocked, starved or not receiving."""
    if going := ending(view, why):
        return going
    of_ranks = rank_verdicts.silent(view, why)
    if of_ranks is not None:
        return of_ranks
    pid = view.core_pid
    role = view.facts.role_of(pid) or "the engine"
    courses = view.courses(pid)
    queued = bool(view.always("waiting")) and view.always("running") is False
    why = [*why, *_cpu(view, role)]
    if not courses:
        return _unseen(view, why, role, queued=queued, asked=asked)
    course = _stuck(view, pid, courses)
    if course is None and (lost := deaf(view, why)):
        return lost
    if course is None:
        return _idle(view, why, role, courses, queued=queued, asked=asked)
    why += [_described(course), *rank_reports.dumped(view)]
    hot = course.tid is not None and course.tid == view.hot_thread(pid)
    spins = hot or (bool(view.core_hot) and course.active == course.samples)
    spins = spins or _runs_python(course)
    call = view.waits(pid).get(course.tid or 0, "")
    common: dict[str, Any] = {"why": why, "process": role, **_stack(course)}
    waits, more = _for_its_device(view, pid, course, spins=spins)
    if waits:
        return Assessment(
            state=ServerState.KERNEL_STUCK,
            sentence=f"{role} waits {waits} does not end.",
            advice=[KEEP, rank_verdicts.XID, *more],
            **common,
        )
    if spins and course.with_gil * 2 >= course.samples:
        return Assessment(
            state=ServerState.FROZEN_PYTHON,
            sentence=f"{role} is stuck in an endless loop in {course.place}. Its thread "
            f"{course.name!r} uses CPU and never releases the GIL.",
            advice=[KEEP, SEARCH],
            **common,
        )
    if spins:
        return Assessment(
            state=ServerState.FROZEN_NATIVE,
            sentence=f"{role} is stuck in native code called from {course.place}: it "
            "uses CPU without end and does not hold the GIL.",
            advice=[KEEP, MORE_STACKS.format(pid=pid)],
            **common,
        )
    if call in _SLEEPS:
        return Assessment(
            state=ServerState.FROZEN_PYTHON,
            sentence=f"{role} is stuck in {course.place}: it sleeps there again and "
            f"again (system call {call}).",
            advice=[KEEP, SEARCH],
            **common,
        )
    if (
        course.with_gil == course.samples
        or course.on_device
        or (call and call != "futex")
    ):
        held = " and keeps the GIL" if course.with_gil == course.samples else ""
        where = f" (system call {call})" if call else ""
        return Assessment(
            state=ServerState.FROZEN_NATIVE,
            sentence=(
                f"{role} waits in a native call made by {course.place}{where}{held}."
            ),
            advice=[KEEP, MORE_STACKS.format(pid=pid)],
            **common,
        )
    keeper = holder(course, courses)
    if course.active == course.samples and not (call or keeper or course.locking):
        # It sleeps in no sample: who waits for a lock does.
        return Assessment(
            state=ServerState.UNKNOWN,
            sentence=f"{role} is in a native call made by {course.place} in every "
            "sample, and has less than a processor: it computes slowly, or without "
            "end.",
            advice=[
                "diagnose again with a longer --deadline, or when less runs beside it",
                KEEP,
            ],
            **common,
        )
    return Assessment(
        state=ServerState.BLOCKED_ON_LOCK,
        sentence=(
            f"{role} is blocked: thread {course.name!r} waits for a lock in "
            f"{course.place}"
        )
        + (f"; {keeper}." if keeper else "."),
        holder=keeper,
        advice=[
            KEEP,
            *([] if keeper else ["who holds it could not be seen in the locals"]),
        ],
        **common,
    )


def _runs_python(course: Course) -> bool:
    """Whether it took the GIL again and again, however little of a processor it got:
    who waits for a lock has let go of it."""
    most = course.samples / 2
    if course.locking or course.with_gil == course.samples:
        return False
    return course.active >= most and course.with_gil >= most


def _for_its_device(
    view: DiagnosisView, pid: int | None, course: Course, *, spins: bool
) -> tuple[str, list[str]]:
    """Where a thread waits for its GPU, and for which kernel; "": it is not known to.
    And what would tell more."""
    kernel = rank_reports.on_gpu(view).get(pid or 0, "")
    place = ranks.waits_for_device(view, course)
    if not place and kernel:
        place = course.place
    if place:
        return f"for its device in {place}: {kernel or 'a kernel'}", []
    # Without C frames a wait that spins looks like work: a GPU at 100 % tells.
    if spins and not course.with_gil and (busy := _gpu_alone(view, pid)):
        words = (
            f"in a native call made by {course.place}, while {busy}, which nothing "
            "else uses"
        )
        return f"{words}, is at 100 %: a kernel", [MORE_STACKS.format(pid=pid)]
    return "", []


def _gpu_alone(view: DiagnosisView, pid: int | None) -> str:
    """The GPU that only this server uses and that was at 100 % in each of several
    readings."""
    ours = {process.pid for process in view.facts.processes}
    for _, data in view.evidence.results(GpuData, "check"):
        for device in data.held_by({pid or 0}):
            users = {user.pid for user in device.processes if not user.graphics}
            busy = device.utilization_pct
            full = len(busy) > 1 and min(busy) == 100
            if full and pid in users and users <= ours:
                return f"GPU {device.index}"
    return ""


def _stuck(
    view: DiagnosisView, pid: int | None, courses: list[Course]
) -> Course | None:
    """The thread that does not move and is not merely waiting for work; the busiest
    first."""
    hot = view.hot_thread(pid)
    idle = idle_loops(view)
    ours = _whose_place_tells(view, pid, courses)
    candidates = []
    for course in courses:
        is_hot = hot is not None and course.tid == hot
        # A thread that waits by its frames and uses a core computes below them.
        if not course.stays or (course.waits and not is_hot) or course.turning in idle:
            continue
        works = course.active or course.with_gil or course.locking
        if course in ours or works or holder(course, courses):
            candidates.append(course)

    def rank(course: Course) -> tuple[bool, int, bool, bool, int]:
        return (
            course.tid is not None and course.tid == hot,
            course.with_gil,
            _is_core(view, course),
            course.name == "MainThread",
            course.active,
        )

    return max(candidates, key=rank, default=None)


def _whose_place_tells(
    view: DiagnosisView, pid: int | None, courses: list[Course]
) -> list[Course]:
    """Threads that should not even sleep while a request waits: the engine's own, and
    one that sleeps inside its event loop. Others that sleep are everywhere, main
    threads among them."""
    if own := [course for course in courses if _is_core(view, course)]:
        return own
    core = pid in {process.pid for process in view.facts.cores}
    mains = [course for course in courses if course.name == "MainThread"]
    return [course for course in mains if core or course.in_a_loop]


def _engine_known(view: DiagnosisView, courses: list[Course]) -> bool:
    return bool(view.facts.cores) or any(_is_core(view, c) for c in courses)


def _is_core(view: DiagnosisView, course: Course) -> bool:
    """The engine's own thread, where front and engine share a process."""
    return bool(view.facts.core_role) and view.facts.core_role in course.name


def _main(view: DiagnosisView, courses: list[Course]) -> Course:
    """The engine's own thread, else the main one."""
    for course in courses:
        if _is_core(view, course):
            return course
    for course in courses:
        if course.name == "MainThread":
            return course
    return courses[0]


def _turns_idly(view: DiagnosisView, course: Course) -> bool:
    idle = idle_loops(view)
    if course.turning in idle:
        return True
    inner = [stack.frames[0] for stack in course.stacks if stack.frames]
    return any(bare(frame) in idle for frame in inner)


def idle_loops(view: DiagnosisView) -> frozenset[str]:
    """Functions in which this engine's core turns round while it has nothing to do."""
    engine = ENGINES.get(view.facts.engine)
    return frozenset(engine.idle_loops) if engine else frozenset()


def _idle(
    view: DiagnosisView,
    why: list[str],
    role: str,
    courses: list[Course],
    *,
    queued: bool,
    asked: bool,
) -> Assessment:
    """Nothing stands still: it turns its loop, waits for work, or computes something
    long."""
    if queued:
        return _starved(view, why, role)
    main = _main(view, courses)
    loops = _turns_idly(view, main)
    busiest = view.hot_thread(view.core_pid)
    hot = main
    for course in courses:
        if busiest and course.tid == busiest and not course.waits:
            hot = course
            break
    if hot is not main or (view.core_hot and not loops and not main.waits):
        return Assessment(
            state=ServerState.SLOW,
            sentence=f"{role} computes (its stack moves: now {hot.place}), but nothing "
            "was finished while it was watched.",
            why=why,
            process=role,
            advice=[
                (
                    "diagnose again with a longer --deadline: if nothing ever ends, "
                    "it loops"
                )
            ],
            **_stack(hot),
        )
    if not asked:
        return Assessment(
            state=ServerState.NO_FAULT_SEEN,
            sentence=f"{role} waits for work; whether work reaches it was not tried.",
            why=why,
            process=role,
            advice=["let mmrepro send its one small request (without --no-request)"],
        )
    if not _engine_known(view, courses):
        return Assessment(
            state=ServerState.UNKNOWN,
            sentence="A small request got no answer. No thread was seen to stand "
            "still, and which of them is the engine is not known.",
            why=why,
            process=role,
            advice=["give --engine, or --pid of the engine"],
        )
    return Assessment(
        state=ServerState.NOT_RECEIVING,
        sentence=f"{role} waits for work ({main.place}) while a request waits for its "
        "answer: requests do not reach it, or their answers do not get out.",
        why=why,
        process=role,
        advice=[KEEP, "look in the log for a thread that ended with an exception"],
        **_stack(main),
    )


def _starved(view: DiagnosisView, why: list[str], role: str) -> Assessment:
    return Assessment(
        state=ServerState.STARVED,
        sentence="Requests wait in the queue and none is let in: nothing runs that "
        "could make room. The capacity (KV cache, batch size) is less than the first "
        "of them needs.",
        why=why,
        process=role,
        advice=[
            (
                "look for the KV cache's size in the log; a larger cache or a shorter "
                "request"
            )
        ],
    )


def _unseen(
    view: DiagnosisView, why: list[str], role: str, *, queued: bool, asked: bool
) -> Assessment:
    """Without stacks: what processor time and counters tell."""
    spinning = None
    for _, data in view.evidence.results(SyscallsData, "check"):
        if data.verdict == "spinning-in-user-space" and data.pid == view.core_pid:
            spinning = data
            break
    if queued and spinning is None:
        return _starved(view, why, role)
    if spinning is not None:
        why = [*why, spinning.why]
    # A front that answers nothing tells of its engine only where it is known to be
    # one's.
    if view.progress is None and (
        view.front_answers is not False or not view.facts.engine
    ):
        return Assessment(
            state=ServerState.UNKNOWN,
            sentence="A small request got no answer; whether it works on others "
            "meanwhile could not be seen: neither its counters nor its stacks could be "
            "read.",
            why=why,
            process=role if view.facts.root_pid else "",
            advice=[
                (
                    "diagnose again with a longer --deadline, as root, on the "
                    "server's machine"
                )
            ],
        )
    if asked and spinning is None and not view.own and view.front_answers:
        return Assessment(
            state=ServerState.UNKNOWN,
            sentence="A small request got no answer in time. The counters stand still "
            "and count no request: behind a balancer they may be another replica's.",
            why=why,
            advice=[
                (
                    "run mmrepro on the server's machine, or ask each replica at its "
                    "own address"
                )
            ],
        )
    if spinning is not None:
        sentence = f"{role} is frozen: it spins in user space and finishes nothing."
    elif asked:
        sentence = (
            "The server is frozen: it takes requests, answers none and "
            "finishes nothing."
        )
    else:
        return Assessment(
            state=ServerState.UNKNOWN,
            sentence="It finished nothing while it was watched; no request tried it.",
            why=why,
            process=role,
            advice=["let mmrepro send its one small request (without --no-request)"],
        )
    return Assessment(
        state=ServerState.FROZEN,
        sentence=sentence + " Where could not be seen.",
        why=why,
        process=role if view.facts.root_pid else "",
        advice=[KEEP, "run mmrepro as root, or with CAP_SYS_PTRACE, to see the frames"],
    )


def _cpu(view: DiagnosisView, role: str) -> list[str]:
    use = view.use(view.core_pid)
    if use is None:
        return []
    return [
        (
            f"{role} uses {use.user_pct:.0f} % user + {use.system_pct:.0f} % system of "
            "a core"
        )
    ]


def standing(view: DiagnosisView) -> list[str]:
    """Where the main thread of each process stands that stands still, a line each. A
    start does that by itself, where it loads or compiles."""
    lines: list[str] = []
    for process in view.facts.processes:
        for course in view.courses(process.pid):
            if course.tid == process.pid and course.stays and not course.waits:
                lines.append(f"{process.role} ({process.pid}): {_described(course)}")
    return lines


def _described(course: Course) -> str:
    torn = f" ({course.torn} more came out torn)" if course.torn else ""
    return (
        f"in all {course.samples} samples{torn} thread {course.name!r} is in "
        f"{course.place}, {course.active} times active, {course.with_gil} times with "
        "the GIL"
    )


def _stack(course: Course | None) -> dict[str, Any]:
    if course is None:
        return {}
    return {
        "thread": course.name,
        "frames": [f for f in course.frames if not f.function.startswith("0x")],
        "seen": course.samples,
        "samples": course.samples + course.torn,
    }
