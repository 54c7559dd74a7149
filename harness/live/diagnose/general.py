"""What is wrong, without any signature: from evidence to one state, and why. Pure
functions.

The order of the rules is their priority: what explains more comes first. A rule fires
on what was seen; what could not be seen leads to a weaker state, never to a stronger
one. Before an answered request only those processes count that were seen to have ended
or to stand still: that no process is called as the core is, or what a log says, does
not."""

from __future__ import annotations

from collections.abc import Sequence

from mmrepro.base.units import count
from mmrepro.failure.documents import Assessment, ServerState, TargetFacts
from mmrepro.failure.signature import log_count, log_lines
from mmrepro.failure.signature.live_server import (
    CORE_ALIVE,
    LATENESS,
    SILENT_SOCKET,
    gateways,
)
from mmrepro.live.diagnose import frozen, rank_verdicts, ranks
from mmrepro.live.diagnose.readings import BEGUN, DiagnosisView
from mmrepro.live.diagnose.titles import absent
from mmrepro.probes import InferenceData, LogsData
from mmrepro.probes.log_words import public_line
from mmrepro.traffic.evidence import Evidence

_SLOW_SHARE = 0.5
"""A small request that takes more of its deadline than that is slow."""
STOPPED = {"T": "stopped by a signal (SIGSTOP or SIGTSTP)", "t": "stopped by a tracer"}
STANDSTILLS = frozenset(
    {
        ServerState.FROZEN_PYTHON,
        ServerState.FROZEN_NATIVE,
        ServerState.FROZEN,
        ServerState.BLOCKED_ON_LOCK,
        ServerState.FRONT_FROZEN,
        ServerState.STARVED,
        ServerState.NOT_RECEIVING,
        ServerState.WORKER_STUCK,
        ServerState.RANK_DIVERGED,
        ServerState.COLLECTIVE_WAITS,
        ServerState.KERNEL_STUCK,
        ServerState.TRANSFER_STUCK,
    }
)
_NAN_TEXT = "!"
"""Token 0 of GPT-2's and many later vocabularies: what an arg max over NaN logits
gives."""
_NAN_LENGTH = 6


def assess(evidence: Evidence, facts: TargetFacts) -> Assessment:
    """One state, a sentence for people, and the observations that it rests on."""
    view = DiagnosisView(facts, evidence)
    plain = at_once(evidence, facts)
    seen = (
        plain
        or _silent_socket(view)
        or _answered(view)
        or _awaits_orders(view)
        or _core_gone(view)
        or _errors(view)
    )
    return seen or _with_time(view, _silence(view))


def at_once(evidence: Evidence, facts: TargetFacts) -> Assessment | None:
    """What is plain without a request: dead, stopped, or a part of it seen dead."""
    view = DiagnosisView(facts, evidence)
    return _front_gone(view) or _dead(view) or _part_dead(view) or _stopped(view)


def suspicious(evidence: Evidence, facts: TargetFacts) -> bool:
    """Whether it could be a hang, by what can be seen without a request's silence."""
    view = DiagnosisView(facts, evidence)
    if view.answer in ("answered", "refused"):
        return False
    busy = view.always("running") or view.always("waiting") or view.core_hot
    return view.green is False or (view.progress is not True and bool(busy))


# ---------------------------------------------------------------- dead or stopped


def _dead(view: DiagnosisView) -> Assessment | None:
    facts = view.facts
    gone = facts.root_pid is not None and all(p.state in "ZX" for p in facts.processes)
    if view.front_answers and not gone:
        return None
    if facts.place == "remote":
        if facts.root_pid is not None or view.garbled:
            return None
        state, what = ServerState.UNREACHABLE, "nothing answers there"
        if view.refused_connection:
            state, what = (
                ServerState.DEAD,
                "the connection is refused: no server listens there",
            )
        why = [
            f"{a.path}: {a.error}"
            for a in (view.endpoints.answers if view.endpoints else [])
        ]
        return Assessment(
            state=state,
            sentence=f"{facts.url}: {what}.",
            why=why,
            advice=["run mmrepro on the machine of the server to see its processes"],
        )
    if gone or (facts.root_pid is None and facts.listening is False):
        why = (
            [f"nothing listens on port {facts.port} of this machine"]
            if not gone
            else []
        )
        why += [
            f"process {p.pid} ({p.role}): {_ended(view, p.pid)}"
            for p in facts.processes
        ]
        if gone and not facts.processes:
            why.append(
                f"process {facts.root_pid} ({facts.found_by}) does not exist any more"
            )
        sentence = "The server is dead: its process is gone."
        if not gone:
            sentence = f"No server: nothing listens on port {facts.port}."
        if view.ended_on_the_request:
            why.append("it ended while the one small request was under way")
        if died := core_died(view):
            sentence = (
                f"The server is dead: its {facts.core_role or 'engine'} died first, by "
                "its log."
            )
            why.append(died)
        return Assessment(
            state=ServerState.DEAD,
            sentence=sentence,
            why=[*why, *view.kills, *last_words(view)],
            advice=[
                (
                    "read the end of its log (--log FILE); dmesg names what the "
                    "kernel killed"
                )
            ],
        )
    stopped = any(process.state in STOPPED for process in facts.processes)
    not_yet = facts.listening is False and facts.root_pid is not None and not stopped
    if not_yet and not core_died(view):
        running = count(len(facts.processes), "process")
        verb = "runs" if len(facts.processes) == 1 else "run"
        why = [f"{running} {verb}", *last_words(view)]
        standing = frozen.standing(view)
        advice = ["its log tells which; then diagnose again"]
        if standing:
            # A start that loads or compiles stands still as well: time tells.
            advice.append(
                "a process that is at the same place then, in which nothing loads or "
                "compiles, is where the start hangs: restart it, and keep its log"
            )
        return Assessment(
            state=ServerState.NOT_READY,
            sentence=f"Its processes run, but nothing listens on port {facts.port}: it "
            "is still starting, or its API server has ended.",
            why=[*why, *standing],
            advice=advice,
        )
    return None


def _ended(view: DiagnosisView, pid: int) -> str:
    code = view.evidence.facts.get(f"exit:{pid}")
    if not isinstance(code, int):
        return (
            "has ended and was not collected by its parent; its exit code "
            "cannot be seen"
        )
    if code & 0x7F:
        return f"killed by signal {code & 0x7F}"
    return f"ended with exit code {code >> 8}"


def _stopped(view: DiagnosisView) -> Assessment | None:
    stopped = [p for p in view.facts.processes if p.state in STOPPED]
    if not stopped:
        return None
    first = stopped[0]
    names = ", ".join(f"{p.role} (pid {p.pid})" for p in stopped)
    resume = f"kill -CONT {' '.join(str(p.pid) for p in stopped)}"
    tracer = view.evidence.facts.get(f"tracer:{first.pid}")
    return Assessment(
        state=ServerState.STOPPED,
        sentence=f"{names}: {STOPPED[first.state]}.",
        why=[f"{p.role} (pid {p.pid}) is in state {p.state}" for p in stopped]
        + ([f"its tracer is process {tracer}"] if tracer else []),
        process=first.role,
        advice=[
            f"end the tracer, process {tracer}"
            if tracer
            else f"to let it go on: {resume}"
        ],
    )


def _part_dead(view: DiagnosisView) -> Assessment | None:
    """A process of the core, or one that serves all of them, that ended, and that the
    kernel still lists."""
    facts = ranks.titled(view).facts
    dead = []
    a_core_died = False
    for process in facts.processes:
        is_core = facts.is_core(process.role)
        if process.state in "ZX" and (is_core or ranks.kind_of(process.role)):
            dead.append(process)
            a_core_died = a_core_died or is_core
    if not dead:
        return None
    # Where one core is a zombie, another that is missing has been collected already.
    gone = absent(facts) if a_core_died else []
    names = [*gone]
    ended = [f"{role}: it has ended, and its parent has collected it" for role in gone]
    roles = [*gone]
    for process in dead:
        name = f"{process.role} (pid {process.pid})"
        names.append(name)
        ended.append(f"{name}: {_ended(view, process.pid)}")
        roles.append(process.role)
    return _without_core(view, names=", ".join(names), why=ended, dead=roles, gone=gone)


def _front_gone(view: DiagnosisView) -> Assessment | None:
    """The program that serves HTTP has ended; the process that was started still holds
    its port, so that connections are taken and nobody reads them."""
    facts = view.facts
    role = facts.front_role
    living = [process.role for process in facts.processes if process.state not in "ZX"]
    if not role or not living or role in living:
        return None
    # It is started after the core.
    core = [name for name in living if facts.is_core(name)]
    named = log_lines(view.evidence, "front-died")
    if not core and not named and not _logged_by(view, role):
        return None
    core_ended = log_lines(view.evidence, "core-not-started")
    core_ended = core_ended or log_lines(view.evidence, "engine-died")
    if core_ended and not core and not named:
        # A core that ends by itself comes first: its parent then ends the front.
        line = core_ended[0]
        why = [
            f"no process {facts.core_role} among {_roles(facts)}",
            f"its log says at {line.time or '?'}: {public_line(line)}",
        ]
        return _without_core(
            view, names=facts.core_role, why=why, dead=[facts.core_role]
        )
    why = [f"no process {role} among {_roles(facts)}"]
    for process in facts.processes:
        if process.role == role:
            why = [f"{role} (pid {process.pid}): {_ended(view, process.pid)}"]
    if named:
        why.append(f"its log says at {named[0].time or '?'}: {public_line(named[0])}")
    return _without_core(view, names=role, why=why, dead=[role])


def _logged_by(view: DiagnosisView, role: str) -> bool:
    """Whether a process of that role has written to the log."""
    for _, data in view.evidence.results(LogsData, partial=True):
        for line in data.last_by_process.values():
            if line.process.partition(" ")[0] == role:
                return True
    return False


def _core_gone(view: DiagnosisView) -> Assessment | None:
    """No process is called as the core is, and it was there before, or the log says
    that it died.

    The name alone is nothing: older releases have no titles, a core may run outside the
    front's tree."""
    facts = view.facts
    if not facts.processes or not facts.core_role or facts.cores or view.progress:
        return None
    left = view.evidence.facts.get(CORE_ALIVE) is False
    if not left and not core_died(view):
        return None
    before = ", where there was one" if left else ""
    return _without_core(
        view,
        names=facts.core_role,
        why=[f"no process {facts.core_role} among {_roles(facts)}{before}"],
        dead=[facts.core_role],
    )


def _without_core(
    view: DiagnosisView,
    *,
    names: str,
    why: list[str],
    dead: list[str],
    gone: Sequence[str] = (),
) -> Assessment:
    """``dead``: their roles, ``gone``: of those that are no process any more. One that
    ended first is the one to look at."""
    first = ranks.first_dead(view, gone)
    before = f", after {first}" if first and first not in dead else ""
    if first in dead and len(dead) > 1:
        before = f", {first} first"
    own = dead[0] if len(dead) == 1 else view.facts.core_role
    be = "is" if len(dead) == 1 else "are"
    why = [*why, *view.kills, *_front(view)]
    if line := core_died(view):
        why.append(line)
    return Assessment(
        state=ServerState.PART_DEAD,
        sentence=f"{names} {be} dead{before}, while the rest of the server lives.",
        why=[*why, *last_words(view)],
        process=first or own,
        advice=[
            "the server does not recover from this by itself: restart it, keep its log"
        ],
    )


def _roles(facts: TargetFacts) -> str:
    return (
        ", ".join(f"{p.role} ({p.pid})" for p in facts.processes[:12]) or "no process"
    )


def _silent_socket(view: DiagnosisView) -> Assessment | None:
    """One of several sockets of its port answers nothing, whichever of them got the one
    small request."""
    told = view.evidence.facts.get(SILENT_SOCKET)
    # On a machine short of processors a connection that waits is only late.
    if not told or LATENESS in view.evidence.facts:
        return None
    return Assessment(
        state=ServerState.FRONT_FROZEN,
        sentence=f"Some requests are answered and some are not: {told}.",
        why=[str(told), *_front(view)],
        advice=["ss -ltnp shows the processes that listen there; one of them hangs"],
    )


# ---------------------------------------------------------------- it answers


def _answered(view: DiagnosisView) -> Assessment | None:
    data = view.inference
    if view.answer == "malformed" and data is not None:
        return Assessment(
            state=ServerState.BROKEN_OUTPUT,
            sentence="It answers 200, but the answer is no completion.",
            why=[data.error],
            advice=[
                "compare with another replica; look at what stands between (a proxy?)"
            ],
        )
    if view.answer != "answered" or data is None:
        return None
    text, took = (
        data.text,
        f"a request of a few tokens was answered in {data.seconds:.2f} s",
    )
    if len(text.strip()) >= _NAN_LENGTH and not text.strip().strip(_NAN_TEXT):
        return Assessment(
            state=ServerState.BROKEN_OUTPUT,
            sentence=(
                "It answers with nothing but '!': what a model gives whose "
                "logits are NaN."
            ),
            why=[f"the completion is {text!r}"],
            advice=[
                "check the weights, the dtype and the quantisation; look for NaN or Inf"
            ],
        )
    if stuck := rank_verdicts.stuck_replica(view, [took]):
        return stuck
    if late := " and ".join(view.late):
        return Assessment(
            state=ServerState.SLOW,
            sentence=f"Requests are answered, but {late} gave no answer in time.",
            why=[took, *_front(view), view.counted()],
            advice=[
                "look at CPU use: of the API server, and of this machine as a whole"
            ],
        )
    if view.green is False:
        stands = view.behind
        said = (
            "says that it is not well"
            if stands is None
            else f"gets a gateway's {stands.status}"
        )
        return Assessment(
            state=ServerState.FAILING,
            sentence=f"Requests are answered, but an endpoint {said}.",
            why=[took, *_front(view)],
            advice=["a load balancer that asks this endpoint takes the server out"],
        )
    if data.seconds > _SLOW_SHARE * data.deadline_s:
        waiting = view.always("waiting")
        return Assessment(
            state=ServerState.OVERLOADED if waiting else ServerState.SLOW,
            sentence=f"It is alive but slow: {took}"
            + (", and requests wait in its queue." if waiting else "."),
            why=[took, view.counted()],
            advice=[
                "more replicas or less traffic"
                if waiting
                else "look at CPU and GPU use"
            ],
        )
    busy = view.readings("running")
    return Assessment(
        state=ServerState.HEALTHY,
        sentence=f"Healthy: {took}.",
        why=[took, *([view.counted()] if any(busy) else []), *_front(view)],
    )


def _awaits_orders(view: DiagnosisView) -> Assessment | None:
    """It met an exception, has given up its requests, and is not dead: it goes on as
    soon as it is told to."""
    if not view.awaits_orders:
        return None
    role = view.facts.core_role or "The engine"
    return Assessment(
        state=ServerState.FAILING,
        sentence=f"{role} met an exception and waits for an instruction; it is not "
        "dead.",
        why=[*_front(view), *last_words(view)],
        process=view.facts.core_role,
        advice=[
            "tell it to go on (/fault_tolerance/apply) before its time is over, 120 "
            "seconds unless an option says otherwise: then it ends with the exception",
            "its log has the exception",
        ],
    )


def _errors(view: DiagnosisView) -> Assessment | None:
    data = view.inference
    if data is None or view.answer not in (
        "failed",
        "overload",
        "gateway",
        "unavailable",
    ):
        return None
    if view.front_answers is False:
        return None
    if view.answer == "overload":
        return Assessment(
            state=ServerState.OVERLOADED,
            sentence="It turns requests away: HTTP 429.",
            why=[data.error[:300], view.counted()],
            advice=[
                (
                    "more replicas or less traffic, or another limit of this key at "
                    "the gateway"
                )
            ],
        )
    why = [data.error[:300], *_front(view), *last_words(view)]
    if view.answer == "gateway":
        return _gateway(data.status, data.seconds, [gateways(data), *why])
    if view.answer == "unavailable" and view.queue_full:
        return Assessment(
            state=ServerState.OVERLOADED,
            sentence="It turns requests away: as many wait as its limit allows.",
            why=[*why, view.counted()],
            advice=[
                "more replicas or less traffic; --max-num-queued-reqs and "
                "--max-num-queued-tokens are the limits"
            ],
        )
    if view.answer == "unavailable" and not core_died(view):
        return Assessment(
            state=ServerState.NOT_READY,
            sentence=(
                "It turns a small valid request away: HTTP 503, not ready, or full."
            ),
            why=why,
            advice=[
                (
                    "while it loads a model or warms up this is normal: diagnose "
                    "again later"
                )
            ],
        )
    if lost := rank_verdicts.lost(view, why):
        return lost
    if lost := frozen.ending(view, why) or frozen.deaf(view, why):
        return lost
    return Assessment(
        state=ServerState.FAILING,
        sentence="It is up, but a small valid request fails: "
        + (f"HTTP {data.status}." if data.status else _unanswered(data.error)),
        why=why,
        advice=[
            (
                "its log around the first error; every later error may be an echo of "
                "that one"
            )
        ],
    )


def _gateway(status: int | None, seconds: float, why: list[str]) -> Assessment:
    """What stands before the server answered in its place: the server itself was not
    observed."""
    told = {
        502: "it gets no whole answer from the server behind it",
        503: "it knows no server that is ready",
        504: f"it waited {seconds:.1f} s for the server behind it",
    }.get(status or 0, "its error is none of an engine")
    return Assessment(
        state=ServerState.UNKNOWN if status == 504 else ServerState.UNREACHABLE,
        sentence=f"A gateway answers in the server's place: HTTP {status}, {told}.",
        why=[text for text in why if text],
        advice=[
            (
                "diagnose the server itself: its own address, or --pid; the gateway's "
                "log and key"
            )
        ],
    )


# ---------------------------------------------------------------- silence


def _unanswered(error: str) -> str:
    if BEGUN in error:
        return "its answer began, and did not end in time."
    return "the connection broke."


def _with_time(view: DiagnosisView, silent: Assessment) -> Assessment:
    """Where this machine is short of processors, nobody who is silent is said to stand
    still."""
    late = view.evidence.facts.get(LATENESS)
    if not isinstance(late, float) or silent.state not in STANDSTILLS:
        return silent
    return Assessment(
        state=ServerState.UNKNOWN,
        sentence="It gave no answer in time, but this machine is short of processors.",
        why=[*silent.why, f"mmrepro itself waited for one {late:.0%} of its time"],
        advice=["diagnose again with a longer --deadline, or when less runs beside it"],
    )


def _silence(view: DiagnosisView) -> Assessment:
    """No answer, or no question: what is left to tell."""
    asked = view.answer == "silent"
    data = view.inference
    why = []
    if asked and data:
        cut = " (stopped early; the other evidence is enough)" if data.cut else ""
        why = [f"a test request got no answer for {data.seconds:.1f} s{cut}"]
    why += _front(view)
    if view.answer == "refused" and data is not None:
        why.append(
            f"the small request was refused ({data.error[:160]}): it proves nothing"
        )
    if counted := view.counted():
        why.append(counted)
    if view.front_answers is False:
        if view.refused_connection:
            if lost := rank_verdicts.said_gone(view, why):
                return lost  # it is about to end
            return Assessment(
                state=ServerState.UNREACHABLE,
                sentence=(
                    "A process listens there, but connections from here are refused."
                ),
                why=why,
                advice=[
                    "run mmrepro where its clients are, or in its network namespace"
                ],
            )
        if not view.mute:
            return Assessment(
                state=ServerState.UNKNOWN,
                sentence=(
                    "Something listens there, and sends no whole HTTP answer back."
                ),
                why=why,
                advice=[
                    "is that its address: the port, http or https, a proxy on the way?"
                ],
            )
        if view.facts.root_pid is None:
            return Assessment(
                state=ServerState.UNKNOWN,
                sentence="What listens there takes connections and answers none; "
                "whether it is the server, or stands before it, cannot be seen.",
                why=why,
                advice=["run mmrepro as root on the server's machine, or give --pid"],
            )
        # A health check may ask the engine, and the other endpoints are late on a busy
        # machine: a front that gives its metrics waits for an engine that stands still.
        core_stands = frozen.stance(view)[0] is frozen.Stance.STANDS
        if view.core_is_front or (view.gives_metrics and core_stands):
            return frozen.engine(view, why, asked=True)
        return frozen.front(view, why)
    if view.progress:
        return _moving(view, asked, why)
    suspect = view.answer == "not-asked" and suspicious(view.evidence, view.facts)
    # Without a request only counters that stand still make a suspect a patient.
    if asked or (suspect and view.progress is False):
        return frozen.engine(view, why, asked=asked)
    if view.green:
        return Assessment(
            state=ServerState.NO_FAULT_SEEN,
            sentence="Nothing wrong can be seen, but nothing shows either that it "
            "works: no request was answered and no counter moved.",
            why=why,
            advice=[_how_to_ask(data)],
        )
    if (stands := view.behind) is not None:
        return _gateway(stands.status, stands.seconds, [*why, *last_words(view)])
    if view.green is False and not view.late:
        if not view.warms:
            return Assessment(
                state=ServerState.FAILING,
                sentence="Its API server answers, and one of its endpoints fails.",
                why=[*why, *last_words(view)],
                advice=[_how_to_ask(data)],
            )
        return Assessment(
            state=ServerState.NOT_READY,
            sentence="Its API server answers, and reports that it is not ready.",
            why=[*why, *last_words(view)],
            advice=[
                "while it loads a model this is normal; its log tells how far it is"
            ],
        )
    return Assessment(
        state=ServerState.UNKNOWN,
        sentence="What was seen does not tell what it does.",
        why=why,
        advice=["run mmrepro as root on the server's machine, and give --log FILE"],
    )


def _how_to_ask(data: InferenceData | None) -> str:
    if data is not None and data.status in (401, 403):
        return "give it its key: --header 'Authorization: Bearer KEY'"
    return "let mmrepro send its one small request (without --no-request, with --model)"


def _moving(view: DiagnosisView, asked: bool, why: list[str]) -> Assessment:
    if stuck := rank_verdicts.stuck_replica(view, why):
        return stuck
    waiting = view.always("waiting")
    if asked and waiting:
        return Assessment(
            state=ServerState.OVERLOADED,
            sentence=(
                "It works, but gets more work than it can do: its queue never empties."
            ),
            why=why,
            advice=[
                "more replicas or less traffic; a shorter queue limit fails faster"
            ],
        )
    if asked:
        return Assessment(
            state=ServerState.SLOW,
            sentence=(
                "It works on something, but a small request is not answered in time."
            ),
            why=why,
            advice=["diagnose again with a longer --deadline; look at what is running"],
        )
    return Assessment(
        state=ServerState.FAILING if view.green is False else ServerState.HEALTHY,
        sentence="Its counters move, but an endpoint says that it is not well."
        if view.green is False
        else "It works: its counters of finished work move.",
        why=why,
    )


def _front(view: DiagnosisView) -> list[str]:
    data = view.endpoints
    if data is None or not data.answers:
        return []
    answers = ", ".join(f"{a.path} {a.status or a.error}" for a in data.answers)
    return [f"the API server reports {answers}"]


def core_died(view: DiagnosisView) -> str:
    """What the log says of the core's death; "" when it says nothing."""
    count = log_count(view.evidence, "engine-died")
    if not count:
        return ""
    line = log_lines(view.evidence, "engine-died")[0]
    return f"its log says at {line.time or '?'}: {public_line(line, 200)}"


def last_words(view: DiagnosisView) -> list[str]:
    """The first error of the log: later ones are often its echoes."""
    for _, data in view.evidence.results(LogsData, partial=True):
        if data.errors:
            line = data.errors[0]
            when = f" at {line.time}" if line.time else ""
            return [f"first error in its log{when}: {public_line(line, 200)}"]
    return []
