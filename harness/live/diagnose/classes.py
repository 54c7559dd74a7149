"""Which class of failure it is, also where no known failure matches. Pure functions.

Each rule takes what was seen and names its class, or nothing; none is met by what could
not be seen. What the log alone tells is in ``classes_logged``, memory over time in
``watch/processes``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from mmrepro.engines import ENGINES
from mmrepro.failure.documents import (
    Certainty,
    LiveClass,
    NamedClass,
    ServerState,
    Stand,
    TargetFacts,
)
from mmrepro.failure.signature.live_server import LATENESS
from mmrepro.live.diagnose import classes_logged, rank_verdicts, ranks
from mmrepro.live.diagnose.classes_logged import named
from mmrepro.live.diagnose.frozen import Stance, stance
from mmrepro.live.diagnose.readings import DiagnosisView, course_of
from mmrepro.live.diagnose.threads import MIN_SAMPLES, Course
from mmrepro.traffic.evidence import Evidence

STANDSTILL_S = 4.0
"""Counters of a busy server may stand for as long as a large batch's step takes."""
UNASKED_S = 8.0
"""The same where no request of ours waits."""
_FREE_KV = 0.01
"""Part of the KV cache in use below which it is as good as empty."""
_FLOOD_BYTES_S = 64 << 10
"""Of log. vLLM at DEBUG level, busy on two cores, writes a tenth of it."""
OWN_TOKENS = 8
"""The longest answer that the one small request may get."""
LOG_GROWTH = "log_growth"
"""Fact of a diagnosis: bytes a second by which the logs grew while it looked."""

GRAMMARS = re.compile(
    r"(?:^|/)(?:xgrammar|outlines|outlines_core|llguidance|guidance|lmformatenforcer"
    r"|interegular)/"
    r"|/structured_output/|/constrained/|/guided_decoding/|/_?guided_\w+\.py$"
)
"""Files of the libraries that compile and match grammars, and of the engines' parts
around them (vllm/v1/structured_output, sglang/srt/constrained,
lmdeploy/pytorch/engine/guided_process.py)."""

_ClassRule = Callable[[DiagnosisView], NamedClass | None]
ORDER = list(Certainty)
_RANK_STATES: Mapping[ServerState, LiveClass] = {
    state: LiveClass(state.value)
    for state in (
        ServerState.WORKER_STUCK,
        ServerState.RANK_DIVERGED,
        ServerState.RANK_LOST,
        ServerState.COLLECTIVE_WAITS,
        ServerState.KERNEL_STUCK,
        ServerState.TRANSFER_STUCK,
    )
}
"""States of a server of several ranks that are classes as well."""
_EXPLAINED_BY: Mapping[LiveClass, frozenset[LiveClass]] = {
    LiveClass.STEPS_STOPPED: frozenset({LiveClass.NEVER_FITS, *_RANK_STATES.values()}),
    LiveClass.GAUGES_LIE: frozenset(_RANK_STATES.values()),
}
"""What says less than another one that was named as well."""


def classes(evidence: Evidence, facts: TargetFacts) -> list[NamedClass]:
    """The classes that the evidence shows, surest first."""
    view = DiagnosisView(facts, evidence)
    rules: Iterable[_ClassRule] = (
        classes_logged.killed_by_input,
        classes_logged.placeholder_counts,
        _never_fits,
        _grammar_loop,
        _steps_stopped,
        _gauges_lie,
        _work_without_clients,
        _transfer_stuck,
    )
    shown = [answer for answer in (rule(view) for rule in rules) if answer is not None]
    shown += of_ranks(view)
    names = {c.name for c in shown}
    kept = [c for c in shown if names.isdisjoint(_EXPLAINED_BY.get(c.name, ()))]
    return sorted(kept, key=lambda c: ORDER.index(c.certainty))


# ---------------------------------------------------------------- several ranks


def of_ranks(view: DiagnosisView) -> list[NamedClass]:
    """What the ranks of the server show, live or in the log of one that ended."""
    shown = [*_stuck_ranks(view), *classes_logged.rank_in_the_log(view)]
    if heartbeat := classes_logged.heartbeat(view, stuck=bool(shown)):
        shown.append(heartbeat)
    # What the ranks show live comes before what the log says of the same.
    first: dict[LiveClass, NamedClass] = {}
    for named_class in shown:
        first.setdefault(named_class.name, named_class)
    return list(first.values())


def _transfer_stuck(view: DiagnosisView) -> NamedClass | None:
    """Requests are on their way between a prefill and a decode server in every reading,
    and no counter moves."""
    on_their_way = view.timed("transfers")
    if len(on_their_way) < 2 or view.moving is not False or _short_of_processors(view):
        return None
    counts = [count for _, count in on_their_way]
    if min(counts) < 1 or view.answer == "answered":
        return None
    seconds = on_their_way[-1][0] - on_their_way[0][0]
    asked = view.answer == "silent"
    if seconds < (STANDSTILL_S if asked else UNASKED_S):
        return None
    return named(
        LiveClass.TRANSFER_STUCK,
        Certainty.LIKELY,
        "KV caches are on their way between two servers, and none arrives.",
        [f"in transfer {course_of(counts)} over {seconds:.1f} s", view.counted()],
    )


def _stuck_ranks(view: DiagnosisView) -> list[NamedClass]:
    asked = view.answer == "silent"
    if view.answer == "answered" or view.moving is True or _short_of_processors(view):
        return []
    waits = _waiting(view)
    silence = rank_verdicts.silent(view, []) if waits else None
    if silence is None or silence.state not in _RANK_STATES:
        return []
    name = _RANK_STATES[silence.state]
    long = view.span_s >= (STANDSTILL_S if asked else UNASKED_S)
    certainty = Certainty.POSSIBLE
    # A rank that is gone is gone; one that stands may go on a moment later.
    if name is LiveClass.RANK_LOST or (view.moving is False and long):
        certainty = Certainty.CERTAIN if asked else Certainty.LIKELY
    why = [*silence.why, *waits, view.counted()]
    shown = [named(name, certainty, silence.sentence, why)]
    if name is LiveClass.WORKER_STUCK:
        diverged = _never_entered(view, certainty)
        if diverged is not None:
            shown.append(diverged)
    return shown


def _never_entered(view: DiagnosisView, certainty: Certainty) -> NamedClass | None:
    """Ranks wait in a collective operation that the odd ones are not in."""
    look = ranks.look(view)
    if look is None or not look.odd:
        return None
    held = []
    for rank in look.ranks:
        if rank.kind == "worker" and rank.stand is Stand.COLLECTIVE:
            held.append(rank)
    if not held:
        return None
    wait = "waits" if len(held) == 1 else "wait"
    return named(
        LiveClass.RANK_DIVERGED,
        certainty,
        f"{rank_verdicts.names(held)} {wait} in {held[0].what}, which {', '.join(look.odd)} "
        "never entered.",
        look.groups,
    )


# ---------------------------------------------------------------- the counters


def _steps_stopped(view: DiagnosisView) -> NamedClass | None:
    """No step is counted while a request waits: ours, or one that the gauges or the
    sockets show.

    How many are said to run is no condition: 0 was read in a captured hang. A stack
    that moves, or a KV cache that fills, is a slow step."""
    asked = view.answer == "silent"
    long = view.span_s >= (STANDSTILL_S if asked else UNASKED_S)
    if not view.own or not long or view.moving is not False:
        return None
    waits = _waiting(view)
    if not waits or _short_of_processors(view):
        return None
    seen, place = stance(view)
    if seen is Stance.MOVES or (seen is Stance.IDLES and not asked):
        return None
    certainty, where = Certainty.POSSIBLE, ""
    if seen is Stance.STANDS:
        certainty = Certainty.CERTAIN if asked else Certainty.LIKELY
        where = f"its engine is stuck in {place} in every sample"
    elif seen is Stance.IDLES:
        certainty = Certainty.LIKELY
        where = f"its engine idles in {place}"
    return named(
        LiveClass.STEPS_STOPPED,
        certainty,
        f"The engine has made no step for {view.span_s:.0f} s although a request is "
        "waiting.",
        [*waits, f"{view.counted()} over {view.span_s:.1f} s", where],
    )


def _waiting(view: DiagnosisView) -> list[str]:
    """What shows that a request waits."""
    signs = []
    if view.answer == "silent" and view.inference is not None:
        signs.append(f"a small request got no answer in {view.inference.seconds:.1f} s")
    for gauge in ("waiting", "running"):
        if view.always(gauge):
            signs.append(f"requests {gauge} in every reading")
    connected = view.connections
    # Once is no sign: the server may be about to read it.
    if len(connected) >= 2 and all(reading.unread for reading in connected):
        signs.append(
            f"{connected[-1].unread} clients sent what the server has not read"
        )
    return signs


def _never_fits(view: DiagnosisView) -> NamedClass | None:
    """Requests wait for capacity, none runs, and the KV cache is empty: nothing can
    make room."""
    waiting = view.timed("waiting_capacity")
    has_reason = bool(waiting)
    if not has_reason:
        # Without the reason it may be a constraint that passes: then only our own
        # silence counts.
        waiting = view.timed("waiting") if view.answer == "silent" else []
    running, usage = view.readings("running"), view.readings("kv_usage")
    if min(len(waiting), len(running), len(usage)) < 2 or view.moving is not False:
        return None
    counts = [count for _, count in waiting]
    if min(counts) < 1 or any(running) or max(usage) > _FREE_KV:
        return None
    seconds = waiting[-1][0] - waiting[0][0]
    # The reason is counted by a step that let nobody in: no lateness of this machine
    # explains it.
    if view.answer == "answered" or (not has_reason and _short_of_processors(view)):
        return None
    sure = has_reason and seconds >= STANDSTILL_S
    reason = "for reason capacity " if has_reason else ""
    return named(
        LiveClass.NEVER_FITS,
        Certainty.CERTAIN if sure else Certainty.LIKELY,
        "A request waits for more KV cache than there is: none runs, the cache is "
        "empty, and it is not let in.",
        [
            f"waiting {reason}{course_of(counts)} over {seconds:.1f} s",
            f"running {course_of(running)}",
            f"KV cache in use {course_of(usage)}",
            view.counted(),
            classes_logged.capacity(view),
        ],
    )


# -------------------------------------------------------- metrics against the processes


def _gauges_lie(view: DiagnosisView) -> NamedClass | None:
    """Nothing runs or waits by the gauges while the engine is inside a call that does
    not end; or something runs by them while the engine waits for work."""
    running = view.readings("running")
    if not view.own or len(running) < 2 or view.moving is not False:
        return None
    if _short_of_processors(view):
        return None
    if min(running) > 0:
        return _nothing_runs(view, running)
    waiting = view.readings("waiting")
    if any(running) or any(waiting):
        return None
    if view.answer != "silent" or view.span_s < STANDSTILL_S:
        return None
    seen, place = stance(view)
    if seen not in (Stance.STANDS, Stance.UNSEEN):
        return None
    certainty, inside = Certainty.POSSIBLE, ""
    sentence = 'The metrics say "idle", but a request is waiting.'
    if seen is Stance.STANDS:
        certainty, inside = (
            Certainty.CERTAIN,
            f"its engine is stuck in {place} in every sample",
        )
        sentence = (
            'The metrics say "idle", but a request is waiting and the engine is busy.'
        )
    seconds = view.inference.seconds if view.inference is not None else 0.0
    return named(
        LiveClass.GAUGES_LIE,
        certainty,
        sentence,
        [
            f"running {course_of(running)}, waiting {course_of(waiting)}",
            f"a small request got no answer in {seconds:.1f} s",
            inside,
        ],
    )


def _nothing_runs(view: DiagnosisView, running: list[float]) -> NamedClass | None:
    seen, place = stance(view)
    if seen is not Stance.IDLES or _in_a_step(view) is not False:
        return None
    alone = _nobody(view)
    sure = alone and view.answer == "not-asked"
    return named(
        LiveClass.GAUGES_LIE,
        Certainty.CERTAIN if sure else Certainty.LIKELY,
        "The metrics show running requests, but the engine is idle.",
        [
            (
                f"running {course_of(running)} over {view.span_s:.1f} s, and no token "
                "was counted"
            ),
            f"its engine idles in {place}",
            alone,
        ],
    )


def _work_without_clients(view: DiagnosisView) -> NamedClass | None:
    """Others' requests run in every reading, work is done, and nobody is connected."""
    alone = _nobody(view)
    if not alone:
        return None
    growth = view.evidence.facts.get(LOG_GROWTH)
    flood = ""
    if isinstance(growth, float) and growth >= _FLOOD_BYTES_S:
        flood = f"its log grows by {growth / 1024:.0f} KiB a second"
    running = view.others_running
    tokens = view.readings("generation_tokens")
    made = tokens[-1] - tokens[0] if len(tokens) >= 2 else 0.0
    busy = len(running) >= 2 and min(running) > 0
    work = made > (OWN_TOKENS if view.inference is not None else 0)
    if not (busy and (work or view.core_hot)) and not flood:
        return None
    why = [alone]
    if busy:
        why.append(f"running, without the small request, {course_of(running)}")
    if work:
        why.append(f"{made:g} tokens were generated in {view.span_s:.1f} s")
    if busy and view.core_hot:
        why.append("its engine's process computes all the time")
    return named(
        LiveClass.WORK_WITHOUT_CLIENTS,
        Certainty.LIKELY if busy and work else Certainty.POSSIBLE,
        "It works, and no client is connected.",
        [*why, flood],
    )


def _nobody(view: DiagnosisView) -> str:
    """That no client was connected in any reading; "" where one was, or it was not read
    twice."""
    connected = view.connections
    if len(connected) < 2 or any(c.clients for c in connected):
        return ""
    return (
        f"no client is connected to port {connected[0].port} in "
        f"{len(connected)} readings"
    )


def _in_a_step(view: DiagnosisView) -> bool | None:
    """Whether a thread of the core was inside a step in a sample; None: not to be
    told."""
    engine = ENGINES.get(view.facts.engine)
    courses = view.courses(view.core_pid)
    if engine is None or not engine.step_functions or not courses:
        return None
    for course in courses:
        for stack in course.stacks:
            if any(frame.name in engine.step_functions for frame in stack.frames):
                return True
    return False


# ---------------------------------------------------------------- grammars


def _grammar_loop(view: DiagnosisView) -> NamedClass | None:
    """A thread of the engine or its front is inside a grammar's compiler or matcher in
    every sample while a request waits; or an exception of one ended the engine."""
    if logged := classes_logged.grammar_exception(view):
        return logged
    if view.answer == "answered" or view.moving is True or _short_of_processors(view):
        return None
    waits = _waiting(view)
    if not waits:
        return None
    inside = []
    # The engine and its front may be one process.
    for pid in dict.fromkeys((view.core_pid, view.facts.root_pid)):
        inside += [course for course in view.courses(pid) if _in_grammar(course)]
    if not inside:
        return None
    course = max(inside, key=lambda c: (c.samples, c.active))
    sure = view.answer == "silent" and view.span_s >= STANDSTILL_S
    role = view.facts.role_of(course.pid) or "it"
    return named(
        LiveClass.GRAMMAR_LOOP,
        Certainty.CERTAIN if sure else Certainty.POSSIBLE,
        "A grammar is compiled or matched without end, while a request waits.",
        [
            f"thread {course.name!r} of {role} is "
            f"inside {_grammar_frame(course)} in all {course.samples} samples, "
            f"{course.active} times active",
            *waits,
            view.counted(),
        ],
    )


def _in_grammar(course: Course) -> bool:
    for stack in course.stacks:
        if not any(GRAMMARS.search(frame.file) for frame in stack.frames):
            return False
    return course.samples >= MIN_SAMPLES and not course.waits


def _grammar_frame(course: Course) -> str:
    frame = next(f for f in course.stacks[-1].frames if GRAMMARS.search(f.file))
    return f"{frame.function} ({frame.file}:{frame.line})"


def _short_of_processors(view: DiagnosisView) -> bool:
    """Then a standstill may be this machine's."""
    return isinstance(view.evidence.facts.get(LATENESS), float)
