"""Failures that show themselves: no start, death, a hang, errors of the server, for
good or not.

What an engine may do is none of them: it may refuse a request (4xx), say that it is
overloaded (429, 503), have no such endpoint (404, 405, 501), or lose a client that went
away by itself."""

from __future__ import annotations

import ast
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mmrepro.base.records import FindingClass
from mmrepro.engines import Engine
from mmrepro.failure.documents.replay import Sighting
from mmrepro.failure.signature.answers import grade
from mmrepro.failure.signature.coherence import sent_by_others
from mmrepro.probes import StackSample, StacksData
from mmrepro.runs.play import CANARY_AFTER, CANARY_BEFORE
from mmrepro.search.oracle import beyond
from mmrepro.search.oracle.judged import (
    OracleReport,
    Sent,
    hang_bucket,
    hang_path,
    loud_bucket,
    normalised,
    sent_of,
    sighting,
)
from mmrepro.traffic.case import Case, Played, PlayState
from mmrepro.traffic.evidence import RequestRecord

OVERLOADED = (429, 503)
NO_SUCH = (404, 405, 501)
INVALID = (400, 413, 422)
_PORT = re.compile(r"address already in use", re.IGNORECASE)
_DEAD = re.compile(
    r"EngineDead|engine is dead|engine ?core|connection|peer closed|disconnect|"
    r"ReadError|WriteError",
    re.IGNORECASE,
)
"""How an answer reads that was on its way when the engine died: the death is told by
itself."""
_OPAQUE = re.compile(r"internal server error|internal error|no words", re.IGNORECASE)
GRAMMARS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "regex",
    "ebnf",
    "json_schema",
)
"""Parameters with which an answer follows a grammar, and ends where that does."""
_OWN_WORDS = (
    "the stream ended without [DONE]",
    "not a chat completion",
    "a broken stream",
)
"""Errors that our client words: broken forms, which the protocol's oracle judges."""


def start_failure(played: Played, engine: Engine) -> OracleReport:
    """The server did not become ready."""
    if played.state is not PlayState.START_FAILED:
        return OracleReport()
    # Another process took the port between the choice and the start.
    if any(_PORT.search(cause) for cause in played.causes):
        return OracleReport(
            unseen=["The server found its port taken: its start says nothing."]
        )

    limit = beyond.limit_of([*played.causes, played.said], played.device)
    if limit:
        return OracleReport(untestable=[beyond.sentence(limit, "the server's start")])
    kind = FindingClass.START_FAILURE
    return OracleReport.found(
        kind,
        loud_bucket(engine.name, kind, played.causes, played.frames, played.said),
        _because("The server did not start", played),
        "It starts, or refuses its options in a sentence.",
    )


def death(case: Case, played: Played, engine: Engine) -> OracleReport:
    """The server ended, and nobody sent it a signal."""
    if played.state is not PlayState.DIED:
        return OracleReport()
    sent_it = sent_by_others(played.exit_code, played.evidence, engine.ends_itself)
    # A kernel without memory and a person kill alike.
    if sent_it is not None and not played.ends_itself:
        name = signal.Signals(sent_it).name
        said = (
            f"{name} ended the server: somebody sent it, or a kernel that is out of "
            "memory. That it died tells nothing of the requests."
        )
        return OracleReport(unseen=[said])

    # Operations that were on their way when the server died.
    lost: list[str] = []
    for sent in sent_of(case, played):
        if not sent.record.left and _DEAD.search(_failure(sent.record)):
            lost.append(sent.op.id)
    limit = beyond.limit_of(played.causes, played.device, played.exit_code)
    if limit:
        return OracleReport(
            untestable=[beyond.sentence(limit, _whose(played.stuck or lost))]
        )
    kind = FindingClass.DEATH
    ended = _ended(played.exit_code)
    return OracleReport.found(
        kind,
        loud_bucket(engine.name, kind, played.causes, played.frames, ended),
        _because(f"The server ended ({ended})", played),
        "The server keeps running, whatever a client sends.",
        by=played.stuck or lost,
    )


def hang(played: Played, engine: Engine) -> OracleReport:
    """A request has no answer, and nothing moves."""
    if played.state is not PlayState.HUNG:
        return OracleReport()
    looks: list[StackSample] = []
    for _, data in played.evidence.results(StacksData, "check", "trigger"):
        looks += data.samples
    path = hang_path(played.stack, looks, engine.name, engine.idle_loops)
    where = f", inside {path[-1]}" if path else ""
    waiting = f"{len(played.stuck)} requests"
    if len(played.stuck) == 1:
        waiting = "1 request"
    deadline = f" after {played.deadline_s:.0f} s" if played.deadline_s else ""
    found = sighting(
        FindingClass.HANG,
        hang_bucket(engine.name, path),
        f"{waiting} had no answer{deadline}, and nothing moved{where}.",
        "Every request gets an answer.",
        by=played.stuck,
    )
    unseen: list[str] = []
    if not path:
        unseen.append("No stack shows where it hangs: hangs are not told apart.")
    return OracleReport(sightings=[found], unseen=unseen)


def failing(case: Case, played: Played, engine: Engine) -> OracleReport:
    """The canary, answered before the traffic, fails after it, on a server that
    lives."""
    after = _failed_canary(played)
    ended = "" if after is not None else _loop_ended(played)
    if after is None and not ended:
        return OracleReport()
    lost = [sent.op.id for sent in _failed_for_good(case, played)]
    limit = beyond.limit_of(played.causes, played.device)
    if limit:
        return OracleReport(untestable=[beyond.sentence(limit, _whose(lost))])
    left = any(sent.record.left for sent in sent_of(case, played))
    if after and not lost and not left:
        # Each request was answered: one that fails is no server that fails for good.
        return OracleReport.found(
            FindingClass.SERVER_ERROR,
            _bucket(engine, None, after),
            (
                "The canary after the traffic, whose requests were all answered: "
                f"{_told(after)}."
            ),
            "An answer, as before the traffic.",
        )

    kind = FindingClass.FAILING
    if after is None:
        return OracleReport.found(
            kind,
            loud_bucket(engine.name, kind, [ended], played.frames, ""),
            (
                "The engine's loop ended by an exception, and its server lives on: "
                f"{ended[:200]}"
            ),
            "What was answered once is answered again.",
            by=lost,
        )

    since = f", as the {len(lost)} requests before it were" if len(lost) > 1 else ""
    cause = f": {played.causes[0][:200]}" if played.causes else ""
    return OracleReport.found(
        kind,
        loud_bucket(engine.name, kind, played.causes, played.frames, _failure(after)),
        (
            "The canary was answered before the traffic, and after it "
            f"{_told(after)}{since}{cause}"
        ),
        "What was answered once is answered again.",
        by=lost,
    )


def _loop_ended(played: Played) -> str:
    """The exception that ended the loop of an engine whose server lives on, where no
    canary could show it; "": none did, or a canary was answered after it."""
    after = played.record(CANARY_AFTER)
    if played.state is not PlayState.ENDED or (after is not None and after.answered):
        return ""
    return played.loop_ended


def _whose(operations: Sequence[str]) -> str:
    return ", ".join(operations[:3]) or "the traffic"


def _failed_canary(played: Played) -> RequestRecord | None:
    """The canary after the traffic, if it failed and the one before it was answered."""
    before, after = played.record(CANARY_BEFORE), played.record(CANARY_AFTER)
    if played.state is not PlayState.ENDED or before is None or after is None:
        return None
    failed = not after.timed_out and not _no_failure(after) and bool(_failure(after))
    return after if before.answered and failed else None


def _failed_for_good(case: Case, played: Played) -> list[Sent]:
    """The last requests, all of which failed: those that ended after the last one that
    did not."""
    requests = [sent for sent in sent_of(case, played) if not sent.record.left]
    last_sound = 0.0
    for sent in requests:
        if _no_failure(sent.record) or not _failure(sent.record):
            last_sound = max(last_sound, sent.end)
    return [sent for sent in requests if sent.end > last_sound]


def server_errors(case: Case, played: Played, engine: Engine) -> OracleReport:
    """Answers of 500 and above, and connections that a living server broke."""
    by_bucket: dict[str, list[Sent]] = {}
    counted: Counter[str] = Counter()
    lost: list[str] = []
    untestable: list[str] = []
    if _failed_canary(played) or _loop_ended(played):
        lost = [sent.op.id for sent in _failed_for_good(case, played)]
    for sent in sent_of(case, played):
        record = sent.record
        if record.left or record.timed_out:
            continue
        what = _no_failure(record)
        if what:
            counted[what] += 1
            limit = beyond.limit_of([record.error], played.device)
            if limit:
                untestable.append(beyond.sentence(limit, sent.op.id))
            continue

        words = _failure(record)
        if not words:
            continue
        if played.state is PlayState.DIED and _DEAD.search(words):
            counted["answers lost when the server died"] += 1
            continue
        if sent.op.id in lost:
            counted["answers lost since the server fails every request"] += 1
            continue
        limit = _beyond(record, words, played)
        if limit:
            untestable.append(beyond.sentence(limit, sent.op.id))
        else:
            bucket = _bucket(engine, sent, record)
            by_bucket.setdefault(bucket, []).append(sent)

    return OracleReport(
        sightings=list(_sightings(by_bucket)),
        counted=dict(counted),
        untestable=untestable,
    )


def _beyond(record: RequestRecord, words: str, played: Played) -> str:
    """What this machine cannot do, by the answer; by the log's first exception where
    the answer says nothing."""
    lines = [record.error]
    if record.error == "" or _OPAQUE.search(words):
        lines += played.causes[:1]
    return beyond.limit_of(lines, played.device)


def _sightings(by_bucket: Mapping[str, Sequence[Sent]]) -> Iterator[Sighting]:
    for bucket, requests in by_bucket.items():
        first = requests[0].record
        more = f", and {len(requests) - 1} more" if len(requests) > 1 else ""
        yield sighting(
            FindingClass.SERVER_ERROR,
            bucket,
            f"{requests[0].op.id}{more}: {_told(first)}.",
            "An answer, or a refusal that says what is wrong with the request.",
            by=[sent.op.id for sent in requests],
        )


def _bucket(engine: Engine, sent: Sent | None, record: RequestRecord) -> str:
    """Of the answer alone: which exception of the log belongs to it is not known. A
    stream tells the status inside. Where it says nothing, a request with a grammar
    fails for something else than one without."""
    words, status = (
        _failure(record),
        _error_code(record) or record.status or "no answer",
    )
    if (
        sent
        and _OPAQUE.search(words)
        and any(sent.parameter(name) for name in GRAMMARS)
    ):
        words += ", with a grammar"

    return "/".join([engine.name, str(FindingClass.SERVER_ERROR), str(status), words])


def _told(record: RequestRecord) -> str:
    if record.status == 200 and not record.error:
        return (
            f"HTTP 200 with finish reason {record.finish_reason!r}: "
            f"{record.text[:120]!r}"
        )
    return f"HTTP {record.reply}" if record.status else record.error[:160]


def _no_failure(record: RequestRecord) -> str:
    """What an answer is that is neither a completion nor a failure; "": it is one of
    the two."""
    if record.status in OVERLOADED:
        return f"answers of {record.status}: overloaded"
    if record.status in NO_SUCH:
        return f"answers of {record.status}: no such endpoint"
    if record.status is not None and 400 <= record.status < 500:
        return "requests refused"
    code = _error_code(record)
    if record.error and code is not None and code < 500:
        return "requests refused"
    if record.finish_reason in ("error", "abort") and grade(record).explained:
        return "requests refused"
    return ""


def _failure(record: RequestRecord) -> str:
    """The normalised words of a server's failure; "": it is none."""
    if record.error:
        if record.error.startswith(_OWN_WORDS):
            return ""
        return normalised(error_words(record)) or "no words"

    if record.status is not None and record.status >= 500:
        return "no words"
    if record.finish_reason in ("error", "abort"):
        return f"finish reason {record.finish_reason}"
    return ""


def error_object(record: RequestRecord) -> dict[str, object] | None:
    """The error that a server words as JSON: ``{"error": {…}}`` or the object by
    itself."""
    try:
        body = json.loads(record.error)
    except ValueError:
        try:  # inside a stream our client has it as Python writes it
            body = ast.literal_eval(record.error)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None

    if not isinstance(body, dict):
        return None
    inner = body.get("error")
    return inner if isinstance(inner, dict) else body


def _error_code(record: RequestRecord) -> int | None:
    """The status that an error inside a stream names."""
    error = error_object(record) or {}
    code = error.get("code")
    if isinstance(code, int) and not isinstance(code, bool):
        return code
    kind = str(error.get("type", ""))
    return 400 if re.search(r"BadRequest|invalid_request|NotFound", kind) else None


def error_words(record: RequestRecord) -> str:
    """What it says, without the JSON around it; of a broken connection, how."""
    error = error_object(record)
    if error is None:
        named = re.search(r"""['"]message['"]:\s*(['"])(.+?)\1\s*[,}]""", record.error)
        return named[2] if named else record.error
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    kind = str(error.get("type") or "")
    return f"{kind}: {message}" if kind else str(message)


def _because(what: str, played: Played) -> str:
    cause = played.causes[0][:200] if played.causes else played.said
    return f"{what}: {cause}" if cause else f"{what}."


def _ended(code: int | None) -> str:
    if code is None:
        return "no exit code"
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
