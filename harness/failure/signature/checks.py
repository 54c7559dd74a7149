"""Checks that several scenarios share: hangs that look healthy, and whether a digest
that stacks show is one that logs name.

Each says by the types of its parameters what it reads, and returns a finding; what is
missing is raised by the views and makes the condition unknown. None is met by the
absence of evidence."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from mmrepro.engines import Engine
from mmrepro.failure.signature.decide import Finding, Truth
from mmrepro.failure.signature.views import (
    Logs,
    Metrics,
    Processes,
    Requests,
    core_processes,
    spinning,
)
from mmrepro.probes import (
    HttpData,
    InferenceData,
    ProcessesData,
    ProcessUse,
    StacksData,
    SyscallsData,
    ThreadStack,
)
from mmrepro.traffic.evidence import Evidence, Missing

BUSY_PCT = 50.0
"""A thread that spins takes a whole core; on a crowded machine it gets half of one."""
_QUEUED_PCT, _STARVED_PCT, _WANTED_PCT = 10.0, 5.0, 80.0
"""% of the time without a core that is worth saying; least use, and use with waiting,
of a thread that spins on an overloaded machine."""
IDLE_PCT = 30.0
_DEAD = ("Z", "X")
"""States of a process that runs no more: a zombie, and one that is gone."""
_TOKENS = ("prompt_tokens", "generation_tokens")
"""Not of requests: a frozen vLLM counts as finished those that their clients give
up."""


def unanswered(requests: Requests) -> Finding:
    """A request of the trigger got no answer within its deadline, after others had."""
    sent = requests.within("trigger")
    if not sent:
        raise Missing("no request was sent in the trigger")
    for request in sent:
        if request.timed_out:
            waited = f"no answer in {request.latency_s:.1f} s"
            return Finding.of(True, f"{request.label}: {waited}{usual(requests)}")
    return Finding.of(False, f"all {len(sent)} requests of the trigger ended in time")


def usual(requests: Requests) -> str:
    """How soon requests of the gate were answered, as the end of a sentence."""
    gate = [r.latency_s for r in requests.within("gate") if r.answered]
    return f", against {max(gate):.2f} s at most in the gate" if gate else ""


def probe_unanswered(inference: InferenceData) -> Finding:
    """A fresh small request after the trigger gets no answer either."""
    if inference.answered:
        return Finding.of(
            False, f"a new request was answered in {inference.seconds:.2f} s"
        )
    if inference.status is not None:
        return Finding.of(False, f"a new request got HTTP {inference.status}")

    observed = f"a new request got no answer in {inference.seconds:.1f} s"
    if inference.cut:
        observed += (
            f", of {inference.deadline_s:.0f}: the wait was cut, for all else was "
            "decided"
        )
    # A refused connection ends at once: only a wait that was spent is silence.
    elif inference.seconds < 0.9 * inference.deadline_s:
        return Finding.of(False, f"a new request failed at once: {inference.error}")
    return Finding.of(True, observed)


def endpoints_green(http: HttpData) -> Finding:
    """The front says that all is well: every asked endpoint answers 200.

    One that is late says nothing: the machine may be starved, and the front as well as
    ever."""
    if not http.answers:
        raise Missing("no endpoint was asked")
    shown: list[str] = []
    late: list[str] = []
    for answer in http.answers:
        shown.append(f"{answer.path} {answer.status or answer.error}")
        if answer.timed_out:
            late.append(answer.path)

    observed = ", ".join(shown)
    if any(a.status != 200 and not a.timed_out for a in http.answers):
        return Finding.of(False, observed)
    if late:
        return Finding.unknown(f"{observed}; late: {', '.join(late)}")
    return Finding.of(True, observed)


def queue_empty(metrics: Metrics, engine: Engine) -> Finding:
    """The scheduler reports nothing running and nothing waiting, in two readings."""
    running = metrics.readings(engine.metrics["running"])
    waiting = metrics.readings(engine.metrics["waiting"])
    text = f"running {_numbers(running)}, waiting {_numbers(waiting)} (two readings)"
    return Finding.of(not any(running) and not any(waiting), text)


def counted_as_running(metrics: Metrics, engine: Engine) -> Finding:
    """The scheduler counts a request as running, in two readings."""
    running = metrics.readings(engine.metrics["running"])
    text = f"num_requests_running {_numbers(running)}"
    return Finding.of(all(value >= 1 for value in running), text)


def no_progress(metrics: Metrics, engine: Engine) -> Finding:
    """Counters of finished requests and of tokens do not move between two readings."""
    return _stand_still(metrics, engine, ("finished", *_TOKENS))


def tokens_stand_still(metrics: Metrics, engine: Engine) -> Finding:
    """The counters of tokens that the engine has do not move between two readings."""
    known = [name for name in _TOKENS if name in engine.metrics]
    return _stand_still(metrics, engine, known)


def _stand_still(metrics: Metrics, engine: Engine, counters: Sequence[str]) -> Finding:
    moved: list[str] = []
    still: list[str] = []
    unread: list[str] = []
    for counter in counters:
        try:
            values = metrics.readings(engine.metrics[counter])
        except Missing:
            unread.append(counter)
            continue
        shown = f"{counter} {_numbers(values)}"
        if values[0] == values[-1]:
            still.append(shown)
        else:
            moved.append(shown)

    # One counter that moves is enough to say no; that all stand needs each of them.
    if moved:
        return Finding.of(False, "; ".join(moved))
    if unread or not still:
        return Finding.unknown(f"not read twice: {', '.join(unread) or 'any counter'}")
    return Finding.of(True, "; ".join(still))


def core_burns_cpu(processes: Processes, engine: Engine) -> Finding:
    """The engine's core process uses a core in user space; idle in the gate, it did
    not.

    On a machine that is overloaded it cannot have a whole one: what it waited for is
    counted as wanted, as long as it spent what it got in user space."""
    role = engine.core_role
    use = processes.of(role)[-1]
    if use.state in _DEAD:
        return Finding.of(False, f"{role} is in state {use.state}")
    try:
        before = processes.of(role, "gate")[-1].user_pct
    except Missing:
        before = None

    text = f"{role} {use.user_pct:.0f} % user + {use.system_pct:.0f} % system of a core"
    if use.queued_pct >= _QUEUED_PCT:
        text += f" (it waited {use.queued_pct:.0f} % of the time for one)"
    if before is not None:
        text += f", idle in the gate {before:.0f} %"

    if use.user_pct < BUSY_PCT and not _wants_a_core(use):
        if use.queued_pct >= BUSY_PCT:
            return Finding.unknown(f"{text}: the machine is overloaded")
        return Finding.of(False, text)
    if before is None:
        return Finding.unknown(f"{text}; what it used in the gate was not measured")
    return Finding.of(before <= IDLE_PCT, text)


def core_busy(processes: Processes, engine: Engine) -> Finding:
    """The engine's core process uses a core in user space; of a live server, where
    nothing is known of how it was before. What it waited for counts as in
    ``core_burns_cpu``."""
    uses = processes.of(engine.core_role)
    shares = ", ".join(f"{use.user_pct:.0f}" for use in uses)
    text = (
        f"{engine.core_role} {shares} % of a core in user space ({len(uses)} readings)"
    )
    spins = spinning(processes.evidence, {use.pid for use in uses})
    if spins or any(use.user_pct >= BUSY_PCT or _wants_a_core(use) for use in uses):
        return Finding.of(True, text)
    if any(use.queued_pct >= BUSY_PCT for use in uses):
        return Finding.unknown(f"{text}: the machine is overloaded")
    return Finding.of(False, text)


def core_alive(evidence: Evidence, processes: Processes, engine: Engine) -> Finding:
    """The server runs, and its core process was alive in the last reading."""
    if evidence.engine_exit is not None:
        return Finding.of(False, f"the server ended with {evidence.engine_exit}")
    state = processes.of(engine.core_role)[-1].state
    return Finding.of(state not in _DEAD, f"{engine.core_role} is in state {state}")


def core_gone(evidence: Evidence, engine: Engine) -> Finding:
    """The server ended by itself, or no living process of it has the core's role."""
    if evidence.engine_exit is not None:
        return Finding.of(True, f"the server ended with {evidence.engine_exit}")
    # Without a reading, that no core was seen means nothing.
    if not list(evidence.results(ProcessesData, "check")):
        raise Missing(evidence.why_missing("processes", "check"))

    role = engine.core_role
    cores = core_processes(evidence, role, "check")
    alive = [core.pid for core in cores if core.state not in _DEAD]
    if alive:
        return Finding.of(False, f"{role} {alive[-1]} is alive")
    return Finding.of(True, f"no {role} lives")


def engine_works(evidence: Evidence, metrics: Metrics, engine: Engine) -> Finding:
    """A fresh small request is answered; where none was sent, counters of work done
    move.

    Without a request, a core that spins while nothing is finished speaks against it.
    """
    for _, data in evidence.results(InferenceData, "check"):
        outcome = data.error[:200]
        if data.answered:
            outcome = f"answered in {data.seconds:.2f} s"
        return Finding.of(data.answered, f"a small request: {outcome}")

    still = tokens_stand_still(metrics, engine)
    if still.truth is Truth.NOT_MET:
        return Finding(Truth.MET, still.observed)
    role = engine.core_role
    cores = {core.pid for core in core_processes(evidence, role, "check")}
    if still.truth is Truth.MET and spinning(evidence, cores):
        return Finding.of(False, f"{role} spins and finishes nothing: {still.observed}")
    # An idle server's counters stand as well: that alone says nothing.
    raise Missing(evidence.why_missing("inference", "check"))


USUAL: Final = (endpoints_green, core_alive, engine_works)
"""What a healthy server meets as well."""


def logged(logs: Logs, pattern: str, what: str) -> Finding:
    """The log holds lines of a named pattern."""
    lines = logs.lines(pattern)
    if not lines:
        return Finding.of(False, f"the log holds no line of {what}")
    when = f", first at {lines[0].time}" if lines[0].time else ""
    return Finding.of(True, f"{logs.count(pattern)} lines of {what}{when}")


def _wants_a_core(use: ProcessUse) -> bool:
    """Whether it would have used a core in user space, had it been given one."""
    in_user_space = use.user_pct >= _STARVED_PCT and use.user_pct >= 4 * use.system_pct
    queued = use.queued_pct
    # A process with many threads waits for several cores at once: only the wait of the
    # thread that spins counts, where threads were read.
    if use.busiest and use.busiest[0].queued_pct is not None:
        queued = use.busiest[0].queued_pct
    return in_user_space and use.user_pct + queued >= _WANTED_PCT


def spins_in_user_space(syscalls: SyscallsData) -> Finding:
    """System calls tell spinning from waiting."""
    text = f"{syscalls.verdict} ({syscalls.method}): {syscalls.why}"
    if syscalls.verdict == "unclear":
        return Finding.unknown(text)
    return Finding.of(syscalls.verdict == "spinning-in-user-space", text)


def added_but_unfinished(
    evidence: Evidence, logs: Logs, metrics: Metrics, engine: Engine
) -> Finding:
    """The front logged more requests as added than the engine ever finished.

    Whether a request that ended in an error counts as finished differs between
    releases, so those are held against the finding: they alone do not make it."""
    added = logs.count("added-request")
    done = metrics.readings(engine.metrics["finished"], least=1)[-1]
    if added == 0:
        raise Missing('the log has no line "Added request": is it at DEBUG level?')

    failed = 0
    for request in evidence.requests:
        if request.status is not None and request.status >= 500:
            failed += 1
    text = f'{added} requests logged as "Added request", {done:g} finished'
    if done < added <= done + failed:
        return Finding.unknown(f"{text}, {failed} failed: it may be those")
    return Finding.of(added > done, text)


def engine_alive(evidence: Evidence) -> Finding:
    """The server did not end by itself, and was seen to run in the check."""
    if evidence.engine_exit is not None:
        return Finding.of(
            False, f"the server's process ended with {evidence.engine_exit}"
        )
    for _, data in evidence.results(ProcessesData, "check"):
        if any(process.state not in _DEAD for process in data.processes):
            return Finding.of(True, "the server's process runs")
    raise Missing(evidence.why_missing("processes", "check"))


def _numbers(values: list[float]) -> str:
    return " → ".join(f"{value:g}" for value in values)


_LOCAL = re.compile(r"['\"]([0-9a-f]{16,128})[.…]*['\"]?")
"""A digest as py-spy prints a local: quoted, and cut when it is long."""


def digest_in(value: str) -> str:
    """The digest that py-spy printed of a local; "" when it printed anything else.

    A sample that pauses nothing may read a local while it is replaced, and prints
    whatever lay
    there: another object, a number. That is no reading of the key.
    """
    digest = _LOCAL.fullmatch(value.strip())
    return digest[1] if digest else ""


def short_hash(text: str) -> str:
    return text[:16] + "…" if len(text) > 17 else text


def same_digest(keys: Sequence[str], named: Collection[str], shown: str) -> Finding:
    """Whether ``keys``, one of each sample that read it, are digests that the log
    names.

    Unknown where the samples disagree: one of them may be torn, or the work goes on.

    Args:
        shown: what the stacks tell of the key, e.g. "popitem evicts".
    """
    if not keys:
        return Finding.unknown("no stack sample shows the key")
    if not named:
        return Finding.unknown("the log names no digest to compare with")

    counts = Counter(keys).most_common(5)
    read = ", ".join(f"{count} × {short_hash(key)}" for key, count in counts)
    logged_digests = ", ".join(sorted(map(short_hash, named)))
    text = f"{shown} {read}; the log names {logged_digests}"

    # py-spy cuts a long local: a key is the beginning of its digest.
    fits = {any(digest.startswith(key) for digest in named) for key in keys}
    if len(fits) > 1:
        return Finding.unknown(text)
    return Finding.of(fits.pop(), text)


# -------------------------------------------------------- a thread that stays in a loop

_MIN_SAMPLES = 3
"""With fewer samples of a thread, where it always is cannot be told."""
_ABSENT_SAMPLES = 10
"""With fewer samples of a loop, what it calls now and then may have been missed."""


def stays_below(stacks: StacksData, path: Sequence[str]) -> Finding:
    """Whether in every sample a thread is inside the functions of ``path``, outermost
    first; others may lie between them."""
    samples = [sample for sample in stacks.samples if sample.threads]
    if len(samples) < _MIN_SAMPLES:
        return Finding.unknown(f"{len(samples)} samples show stacks")
    inside = 0
    for sample in samples:
        if any(_goes_through(thread, path) for thread in sample.threads):
            inside += 1
    text = f"{inside} of {len(samples)} samples inside {' > '.join(path)}"
    return Finding.of(inside == len(samples), text)


def _goes_through(thread: ThreadStack, path: Sequence[str]) -> bool:
    """Whether the functions of ``path`` are on the stack in this order, outermost
    first."""
    inward = iter([frame.name for frame in reversed(thread.frames)])
    # `in` takes from the iterator what lies before the name: so order counts.
    return all(name in inward for name in path)


def stays_in(
    stacks: StacksData, thread: str, path: Sequence[str], callee: str
) -> Finding:
    """Whether the thread of function ``thread`` is inside ``path`` in every sample of
    it.

    In some of them it must be in ``callee``, and in some it must run: not in all, as it
    may wait for the GIL in the middle of its loop.

    Args:
        path: bare names of functions that call each other, innermost first.
        callee: what ``path`` calls again and again.
    """
    threads = stacks.threads(thread)
    if len(threads) < _MIN_SAMPLES:
        return Finding.unknown(
            f"{thread} in {len(threads)} of {len(stacks.samples)} samples"
        )
    inside = [stack for stack in threads if stack.within(*path)]
    running = sum(stack.active is True for stack in inside)
    calling = sum(stack.within(callee, *path) for stack in inside)
    text = (
        f"{len(inside)} of {len(threads)} samples in {path[0]}, {calling} in {callee}"
    )

    stays = len(inside) == len(threads)
    unseen = any(stack.active is None for stack in inside)
    if stays and not running and unseen:
        return Finding.unknown(f"{text}; whether it runs is not shown")
    return calls(
        f"{text}, {running} running",
        callee,
        calling,
        len(inside),
        stays and running > 0,
    )


def calls(text: str, callee: str, calling: int, inside: int, stays: bool) -> Finding:
    """Whether a thread that ``stays`` in a loop calls ``callee``, as ``calling`` of its
    ``inside`` samples show; unknown where none does, and they are few."""
    if stays and not calling and inside < _ABSENT_SAMPLES:
        return Finding.unknown(f"{text}: too few to say that {callee} is not called")
    return Finding.of(stays and calling > 0, text)
