"""Conditions that several scenarios share, each with its form for an observer.

Every function returns what ``symptoms`` and ``causes`` take. ``more``: ``required``,
``live``, ``reported``, ``id`` (see :class:`mmrepro.scenario.parts.Declared`). Checks
for ``works_after``, claims and rows stand at the end."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from mmrepro.engines import Engine
from mmrepro.failure.signature import (
    Finding,
    Logs,
    Metrics,
    Processes,
    Requests,
    Truth,
    checks,
)
from mmrepro.probes import LogsData, StacksData
from mmrepro.scenario.parts import (
    ASKS_FOR_A_CHANGE,
    Check,
    Declared,
    Row,
    RunFacts,
    cause,
    precondition,
    row,
    symptom,
)
from mmrepro.traffic.evidence import Evidence, RequestRecord

Label = str | Callable[[Evidence], str]
"""Of a request, or a function that finds it."""

# -------------------------------------------------------------- hangs that look healthy


def not_answered(**more: Any) -> Declared:
    """The observer's own small request gets no answer."""
    statement = "a small text-only request is not answered"
    return symptom(statement, checks.probe_unanswered, **{"id": "no-answer", **more})


def never_answered(label: str, statement: str = "", **more: Any) -> Declared:
    """The request called ``label`` is neither refused nor answered; an observer's own
    is not."""

    def unanswered(requests: Requests) -> Finding:
        sent = requests.first(label)
        if not sent.timed_out:
            return Finding.of(False, f"{sent.status} {sent.error[:160]}".strip())
        return Finding.of(
            True, f"no answer in {sent.latency_s:.1f} s{checks.usual(requests)}"
        )

    statement = statement or f"{label}: neither refused nor answered"
    more = {"id": "no-answer", "live": not_answered(), **more}
    return symptom(statement, unanswered, **more)


def some_request_unanswered(**more: Any) -> Declared:
    """A request of the trigger is not answered, after others were."""
    statement = (
        "a request is not answered within a deadline many times the usual latency"
    )
    return symptom(statement, checks.unanswered, **{"id": "no-answer", **more})


def new_request_unanswered(**more: Any) -> Declared:
    """A request that is sent after the failure gets no answer."""
    statement = "a new text-only request is not answered either"
    more = {"id": "no-answer-later", **more}
    return symptom(statement, checks.probe_unanswered, **more)


def endpoints_green(
    statement: str = "/health and /v1/models answer 200", **more: Any
) -> Declared:
    """The API server answers that all is well."""
    return symptom(statement, checks.endpoints_green, **{"abnormal": False, **more})


def nothing_queued(**more: Any) -> Declared:
    """The scheduler counts no request."""
    statement = "num_requests_running and num_requests_waiting are 0"
    return symptom(statement, checks.queue_empty, **{"id": "nothing-queued", **more})


def counted_as_running(statement: str, **more: Any) -> Declared:
    """The scheduler says so of a request, in two readings; an observer requires it."""
    live = symptom(statement, checks.counted_as_running)
    return symptom(statement, checks.counted_as_running, **{"live": live, **more})


def added_not_scheduled(**more: Any) -> Declared:
    """Requests were added and never finished. Not for an observer: what clients give up
    counts as finished."""
    statement = 'the API server logged "Added request" for requests that never finished'
    more = {"id": "added-not-scheduled", "live": False, **more}
    return symptom(statement, checks.added_but_unfinished, **more)


def tokens_stand_still(**more: Any) -> Declared:
    """No token is counted between two readings."""
    statement = "counters of tokens stand still"
    more = {"id": "no-progress", **more}
    return symptom(statement, checks.tokens_stand_still, **more)


def no_progress(**more: Any) -> Declared:
    """Neither requests nor tokens are counted; of an observer, tokens alone."""
    statement = "counters of finished requests and tokens stand still"
    more = {"live": tokens_stand_still(), **more}
    return symptom(statement, checks.no_progress, **more)


def core_burns_cpu(**more: Any) -> Declared:
    """The core process uses a whole core, where it used none in the warm-up check."""
    statement = "EngineCore uses a whole core in user space"
    more = {"live": symptom(statement, checks.core_busy), **more}
    return symptom(f"{statement}, idle before", checks.core_burns_cpu, **more)


def spins_in_user_space(**more: Any) -> Declared:
    """The core computes all the time, and waits for nothing."""
    statement = "EngineCore spins in user space instead of waiting in a system call"
    more = {"id": "user-space-spin", **more}
    return cause(statement, checks.spins_in_user_space, **more)


def process_alive(
    statement: str = "EngineCore did not die of it", **more: Any
) -> Declared:
    """The core process lives on."""
    more = {"live": True, "abnormal": False, **more}
    return symptom(statement, checks.core_alive, **more)


def stands_in(*functions: str, **more: Any) -> Declared:
    """A thread is inside these functions, outermost first, in each sample."""

    def inside(stacks: StacksData) -> Finding:
        return checks.stays_below(stacks, functions)

    statement = f"in every stack sample a thread is inside {' > '.join(functions)}"
    return cause(statement, inside, **{"id": "stands-there", **more})


# ------------------------------------------------------------------ crashes


def first_error(
    pattern: str, statement: str, part: Any = cause, **more: Any
) -> Declared:
    """The first exception of the core's process matches ``pattern``.

    ``part``: :func:`cause` or :func:`symptom`.
    """

    from mmrepro.failure.signature import crash

    def first(logs: Logs, engine: Engine) -> Finding:
        return crash.first_error(logs, engine.core_role, pattern)

    declared: Declared = part(statement, first, **{"id": "first-error", **more})
    return declared


def dies_of(failing: Label, statement: str, **more: Any) -> tuple[Declared, ...]:
    """A request takes the server down: it gets 500, and a new text after it is not
    answered (:func:`crash.watch`). An observer sees that no process is the core, and
    the log's word."""

    from mmrepro.failure.signature import crash, live_server

    def fails(requests: Requests) -> Finding:
        name = failing if isinstance(failing, str) else failing(requests.evidence)
        return crash.requests_fail_with_500(requests, name)

    def dead(evidence: Evidence, logs: Logs, engine: Engine) -> Finding:
        return live_server.core_is_dead(evidence, logs, engine.core_role, "engine-dead")

    died = "EngineCore is gone, and the API server says EngineDeadError"
    live = symptom(
        "EngineCore is gone, and the log says that it died", dead, id="core-died"
    )
    silent = "/health answers 503 from then on, every time"
    exits = {"required": False, **more}
    return (
        symptom(statement, fails, id="request-500", **more),
        symptom(died, crash.core_died, live=live),
        symptom(silent, crash.health_is_503, id="health-503", **more),
        symptom("the whole server ends by itself", crash.server_exits, **exits),
    )


def server_gone(**more: Any) -> Declared:
    """The server ended, or its core did."""
    return symptom("the server died", checks.core_gone, **{"id": "server-gone", **more})


def fails_in_server(*labels: str, **more: Any) -> Declared:
    """Each request called so gets 500 or above, or its connection breaks."""

    def fails(requests: Requests) -> Finding:
        sent = [requests.first(label) for label in labels]
        failed = [r for r in sent if (r.status or 500) >= 500 and not r.timed_out]
        shown = (failed or sent)[:3]
        observed = [f"{request.label}: {request.reply}" for request in shown]
        return Finding.of(len(failed) == len(sent), "; ".join(observed))

    statement = f"{', '.join(labels)}: fails in the server"
    return symptom(statement, fails, **{"id": "fails-in-server", **more})


def case_arrived(refused: Sequence[str], until: str) -> Declared:
    """A case that was played as the trigger was sent as far as ``until``, and its
    requests of ``refused`` were refused."""

    def arrived(requests: Requests) -> Finding:
        requests.first(until)
        taken: list[str] = []
        for label in refused:
            status = requests.first(label).status or 0
            if not 400 <= status < 500:
                taken.append(label)
        if taken:
            return Finding.of(False, f"not refused: {', '.join(taken)}")
        return Finding.of(True, f"sent as far as {until}")

    statement = f"the case was sent as far as {until}"
    if refused:
        statement += f", and {', '.join(refused)} refused"
    return precondition(statement, arrived, id="case-arrived")


def death_rows(failing: Label, reply: str = "", error: str = "") -> tuple[Row, ...]:
    """The death as a user sees it; ``reply`` and ``error`` (its first) are the
    report's."""
    return (
        row(failing, "request-500", answered_row("gate: image"), reply),
        row("EngineCore", "core-died", "alive", "dies"),
        row("/health", "health-503", "200"),
        row("the server's process", "server-exits", "alive"),
        row("first error of the log", "first-error", "none", error),
    )


def in_log(statement: str, *patterns: str, part: Any = cause, **more: Any) -> Declared:
    """The log holds lines of each of these patterns; the first one's name is the
    condition's id."""

    def logged(logs: Logs) -> Finding:
        counts = {pattern: logs.count(pattern) for pattern in patterns}
        text = ", ".join(f"{count} × {pattern}" for pattern, count in counts.items())
        times = [line.time for line in logs.lines(patterns[0]) if line.time]
        if times:
            text += f", first at {times[0]}"
        return Finding.of(all(counts.values()), text)

    declared: Declared = part(statement, logged, **{"id": patterns[0], **more})
    return declared


# ------------------------------------------------------------------ requests that fail


def some_requests_fail(*given_up: str) -> tuple[Declared, ...]:
    """For an observer: single requests get 500, the rest goes on. ``given_up``:
    patterns of lines in which the engine tells of a request that it ended with an
    error, where streams fail as well: they have answered 200 by then."""

    from mmrepro.failure.signature import live_server

    def requests_fail(logs: Logs) -> Finding:
        finding = checks.logged(logs, live_server.FAILED, "requests that got HTTP 500")
        for pattern in given_up:
            if finding.truth is not Truth.MET:
                finding = checks.logged(
                    logs, pattern, "requests that the engine gave up"
                )
        return finding

    statement = "requests end with HTTP 500, as the access log shows"
    if given_up:
        statement = "requests fail, as the access log shows, or the engine's own lines"
    works = "the engine works otherwise: a small text-only request is answered"
    return (
        symptom(statement, requests_fail),
        symptom(works, checks.engine_works, id="others-answered"),
        endpoints_green(),
    )


def every_request_fails(**more: Any) -> Declared:
    """The engine's loop has ended behind a live API server: 500 and above, or a
    completion that ended in an error. A 4xx (a key, a rate limit) tells nothing of the
    engine."""

    from mmrepro.failure.signature import live_server

    more = {"id": "every-request-fails", **more}
    return symptom("a small valid request fails", live_server.fails, **more)


# ------------------------------------------------------------------ for works_after


def answered(*labels: str) -> Check:
    """Each request called so was sent and answered."""

    def all_answered(requests: Requests) -> Finding:
        for label in labels:
            for sent in requests.all(label):
                if not sent.answered:
                    reply = f"{sent.status or 'no answer'} {sent.error[:120]}"
                    return Finding.of(False, f"{sent.label}: {reply}".rstrip())
        return Finding.of(True, f"{', '.join(labels)}: answered")

    return all_answered


def not_logged(pattern: str) -> Check:
    """The log holds no line of a named pattern."""

    def unlogged(logs: Logs) -> Finding:
        count = logs.count(pattern)
        return Finding.of(not count, f"{count} × {pattern} in the log")

    return unlogged


def answered_alike(*labels: str) -> Check:
    """All requests called so got one and the same text."""

    def alike(requests: Requests) -> Finding:
        sent: list[RequestRecord] = []
        for label in labels:
            sent += requests.all(label)
        for request in sent:
            if not request.answered:
                return Finding.of(False, f"{request.label}: {request.reply}")

        texts = sorted({request.text for request in sent})
        ways = "all alike"
        if len(texts) != 1:
            ways = f"{len(texts)} different texts: {texts}"
        observed = f"{len(sent)} answers ({'; '.join(labels)}): {ways}"
        return Finding.of(len(texts) == 1, observed)

    return alike


def as_by_control(*labels: str) -> Check:
    """Each request called so is answered as by the control server, token for token."""

    def alike(requests: Requests) -> Finding:
        other: list[str] = []
        for label in labels:
            mine, right = requests.pair(label)
            if mine.text != right.text:
                other.append(label)
        names = ", ".join(other) or "none"
        return Finding.of(
            not other, f"answered otherwise than by the control server: {names}"
        )

    return alike


def refused_or_answered(label: str, status: int = 400) -> Check:
    """The request called so was answered, or refused with ``status``."""

    def either(requests: Requests) -> Finding:
        sent = requests.first(label)
        if sent.status == status:
            return Finding.of(True, f"{label}: refused: {sent.error[:160]}")
        if sent.answered:
            return Finding.of(True, f"{label}: answered")
        return Finding.of(False, f"{label}: {sent.status} {sent.error[:120]}")

    return either


def trigger_ended(requests: Requests) -> Finding:
    """No request of the trigger hung, be it that some were refused or failed."""
    sent = requests.within("trigger")
    if not sent:
        return Finding.unknown("the trigger sent no request")
    for request in sent:
        if request.timed_out:
            return Finding.of(False, f"{request.label} was not answered")
    return Finding.of(True, "every request ended")


def happened(check: Check) -> Check:
    """``check``, where it is met; else unknown: that nothing failed then means
    nothing."""

    @wraps(check)
    def seen(*given: Any) -> Finding:
        finding = check(*given)
        if finding.truth is Truth.MET:
            return finding
        return Finding.unknown(f"that did not happen: {finding.observed}")

    return seen


# --------------------------------------------------------------- for claims (``given``)


def changed(*names: str) -> Check:
    """The run has one of these factors flipped, or mitigations."""

    def applied(facts: RunFacts) -> Finding:
        there = sorted((facts.flips | facts.mitigations) & set(names))
        return Finding.of(bool(there), f"changed: {', '.join(there) or 'nothing'}")

    setattr(applied, ASKS_FOR_A_CHANGE, True)
    return applied


def unchanged(name: str) -> Check:
    """The run does not have this factor flipped."""

    def kept(facts: RunFacts) -> Finding:
        return Finding.of(name not in facts.flips, f"flipped: {name}")

    return kept


# ---------------------------------------------------------------- for rows of the table


def answered_row(label: str) -> Check:
    """For a row of the table: whether the request was answered, and how soon."""

    def reply(requests: Requests) -> Finding:
        sent = requests.first(label)
        status = sent.status if sent.status is not None else "no answer"
        return Finding.of(sent.answered, f"{status} in {sent.latency_s:.2f} s")

    return reply


def idle_while_asked(requests: Requests, metrics: Metrics, engine: Engine) -> Finding:
    """For a row of the table: an empty queue is abnormal while a request waits for its
    answer, and normal otherwise."""
    queue = checks.queue_empty(metrics, engine)
    hung = any(sent.timed_out for sent in requests.within("trigger"))
    return Finding.of((queue.truth is Truth.MET) == hung, queue.observed)


def last_line(words: str) -> Check:
    """The last line that the core logged holds ``words``."""

    def says(log: LogsData, engine: Engine) -> Finding:
        from mmrepro.probes.log_words import public_line

        for process, line in log.last_by_process.items():
            if engine.core_role in process:
                return Finding.of(words in line.text, f"{process}: {public_line(line)}")
        return Finding.unknown(f"the log has no line of {engine.core_role}")

    return says


def idle_cpu(processes: Processes, engine: Engine) -> str:
    """For a row of the table: what the core used in the warm-up check."""
    return f"{processes.of(engine.core_role, 'gate')[-1].cpu_pct:.0f} % when idle"


def usual_latency(requests: Requests) -> str:
    """For a row of the table: how soon requests were answered in the warm-up
    check."""
    gate = [r.latency_s for r in requests.within("gate") if r.answered]
    return f"{min(gate):.2f} to {max(gate):.2f} s" if gate else ""


def unmitigated(facts: RunFacts) -> Finding:
    """For ``given`` of a claim: the run is the report's own, without a mitigation."""
    names = ", ".join(sorted(facts.mitigations))
    return Finding.of(not names, names or "none")
