"""Classes of failure of a live server: what is known of each, and those that its log
shows.

What the log itself says is judged in one place, :mod:`mmrepro.live.diagnose.cause`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mmrepro.failure.documents import (
    Cause,
    CauseClass,
    Certainty,
    LiveClass,
    LogFacts,
    NamedClass,
)
from mmrepro.failure.signature import log_count, log_lines
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose import cause, cause_rules
from mmrepro.live.diagnose.log_order import lines_of
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.titles import DIED
from mmrepro.probes import LogLine, LogsData
from mmrepro.probes.log_words import public_line

# --------------------------------------------------------------- what is known of each


HERE = "mmrepro help diagnose"
_VLLM = "https://github.com/vllm-project/vllm/issues"
_SGLANG = "https://github.com/sgl-project/sglang/issues"


def _vllm(*numbers: int) -> tuple[str, ...]:
    return tuple(f"vllm#{n} {_VLLM}/{n}" for n in numbers)


def _sglang(*numbers: int) -> tuple[str, ...]:
    return tuple(f"sglang#{n} {_SGLANG}/{n}" for n in numbers)


@dataclass(frozen=True)
class _ClassFacts:
    advice: tuple[str, ...]
    references: tuple[str, ...]


def _facts(references: tuple[str, ...], *advice: str) -> _ClassFacts:
    return _ClassFacts(advice, (*references, HERE))


CLASS_FACTS: Mapping[LiveClass, _ClassFacts] = {
    LiveClass.STEPS_STOPPED: _facts(
        _vllm(43941, 21148),
        "save the evidence (mmrepro diagnose URL --out DIR) and restart the server: it "
        "does not recover by itself",
        "the last requests matter: use `mmrepro replay` to find which",
    ),
    LiveClass.KILLED_BY_INPUT: _facts(
        _vllm(54195, 43920) + _sglang(27398),
        (
            "refuse or rewrite the field at the gateway: a restart meets the same "
            "request again"
        ),
        "if there is a newer release (mmrepro list --alive names it), try the request "
        "there: most of these are answered with 400",
    ),
    LiveClass.NEVER_FITS: _facts(
        (*_vllm(35541, 39734), "mmrepro help kv-budget"),
        "everything behind it in the queue waits as well: end the client that sent it",
        "lower --max-model-len below the KV cache's size, or make that larger; see "
        "mmrepro kv-budget",
    ),
    LiveClass.WORK_WITHOUT_CLIENTS: _facts(
        _vllm(54947, 10806),
        "requests in the background (/v1/responses with background) and clients of "
        "another port or of a UNIX socket look the same: are there any?",
        "a proxy between that keeps no connection, or an abort that is lost: compare "
        "with the log's lines of aborted requests",
    ),
    LiveClass.GAUGES_LIE: _facts(
        _vllm(29928, 22545),
        "do not route, scale or alert on these gauges; use token counters or a test "
        "request (mmrepro watch)",
    ),
    LiveClass.MEMORY_GROWS: _facts(
        _vllm(15294, 50860),
        "rule out caches that still fill: --mm-processor-cache-gb 0, no prefix caching",
        "until it is found: restart before the limit, at a moment of your choice",
    ),
    LiveClass.PLACEHOLDER_COUNTS: _facts(
        (*_vllm(15764), *_sglang(40797), "mmrepro show chunked-mm-prefill"),
        "answers to such requests are wrong or missing: look for placeholder tokens in "
        "the prompt's text, and for another version of transformers than the release "
        "was made for",
        "try it with chunked prefill and the multimodal cache off",
    ),
    LiveClass.GRAMMAR_LOOP: _facts(
        _vllm(14151, 49210, 43920),
        "find the request with the grammar or schema (response_format, "
        "structured_outputs) and "
        "bound its size at the gateway",
        "another backend of grammars, or a newer one, may take it",
    ),
    LiveClass.WORKER_STUCK: _facts(
        (*_vllm(27313), *_sglang(17941)),
        (
            "restart the whole server after its evidence is kept: one rank cannot be "
            "replaced"
        ),
        (
            "vLLM ends by itself after VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300): make "
            "it shorter"
        ),
        (
            "the frames of the rank name what it computes or waits for: search "
            "upstream for them"
        ),
    ),
    LiveClass.RANK_DIVERGED: _facts(
        (*_vllm(48720), *_sglang(27221, 33289)),
        (
            "look for what that rank alone did: an exception that was caught, a "
            "branch by its rank"
        ),
    ),
    LiveClass.RANK_LOST: _facts(
        _vllm(20657),
        (
            "dmesg and the exit code name what ended it: the OOM killer, a signal, an "
            "exception"
        ),
    ),
    LiveClass.COLLECTIVE_WAITS: _facts(
        _vllm(46097),
        "ask NCCL: its RAS service listens on port 28028 of each server with GPUs",
        "try it with NCCL_P2P_DISABLE=1, and with custom all-reduce off",
    ),
    LiveClass.KERNEL_STUCK: _facts(
        _vllm(41725),
        "look for Xid lines in the kernel's log (dmesg), and at NCCL's own report",
    ),
    LiveClass.TRANSFER_STUCK: _facts(
        _sglang(6857),
        "diagnose the other server of the pair: the side that sends may be gone",
    ),
    LiveClass.HEARTBEAT_ONLY: _facts(
        _vllm(43420),
        "nothing has to be done: the line is written once a minute of waiting",
    ),
}


def named(
    name: LiveClass, certainty: Certainty, sentence: str, why: Iterable[str]
) -> NamedClass:
    """A class with what is known of it; empty observations are left out."""
    facts = CLASS_FACTS[name]
    return NamedClass(
        name=name,
        certainty=certainty,
        sentence=sentence,
        why=[text for text in why if text],
        advice=list(facts.advice),
        references=list(facts.references),
    )


# --------------------------------------------------------------- what the log says


LOG_PATTERNS: Mapping[str, str] = {
    "rank-died": DIED.pattern,
    "rank-timed-out": r"RPC call to \w+ timed out",
    "heartbeat": r"No available shared memory broadcast block found",
    "kv-size": r"GPU KV cache size: |Maximum concurrency for |max_total_num_tokens=",
    **cause_rules.PATTERNS,
}
"""Searched in every live server's log."""


def cause_of(view: DiagnosisView) -> Cause | None:
    """What ended or stopped the server by its log; None: no log tells, or the server
    answers."""
    told = died(view)
    if (
        told is None
        and view.answer != "answered"
        and (read := logged(view)) is not None
    ):
        told = read.cause if read.cause.name not in cause.NO_END else None
        lives = view.evidence.facts.get(CORE_ALIVE) is True and view.answer != "failed"
        if told is not None and lives and told.name not in STANDS:
            return None
    return told


def facts_logged(view: DiagnosisView) -> LogFacts | None:
    """What the log carries that :func:`cause_of` names a cause by; None: it names
    none."""
    read = logged(view) if cause_of(view) is not None else None
    return read.facts if read is not None else None


STANDS = cause.NO_END | {CauseClass.HANG, CauseClass.NEVER_FITS}
"""What is told better by looking at the server itself."""


def logged(view: DiagnosisView) -> cause.LogVerdict | None:
    """What the server's logs tell, the latest reading of each; None: none was read."""
    read = {
        data.file: data for _, data in view.evidence.results(LogsData, partial=True)
    }
    lines = [line for data in read.values() for line in lines_of(data)]
    return cause.judge(lines, view.facts.engine) if lines else None


def died(view: DiagnosisView) -> Cause | None:
    """What ended the server by its log; None where it works, or its process lives and
    nothing
    fails: then it is an earlier one's end."""
    told = logged(view)
    if told is None or told.cause.name in STANDS or view.answer == "answered":
        return None
    lives = view.evidence.facts.get(CORE_ALIVE) is True and view.answer != "failed"
    return None if lives else told.cause


def killed_by_input(view: DiagnosisView) -> NamedClass | None:
    """An exception that something ties to a request ended the engine's loop."""
    ended = died(view)
    if ended is None or ended.name is not CauseClass.KILLED_BY_INPUT:
        return None
    return named(LiveClass.KILLED_BY_INPUT, ended.certainty, ended.sentence, ended.why)


def grammar_exception(view: DiagnosisView) -> NamedClass | None:
    """The exception that ended the engine is a grammar's."""
    ended = died(view)
    if ended is None or ended.name is not CauseClass.KILLED_BY_INPUT:
        return None
    if not cause_rules.GRAMMAR.search(ended.exception):
        return None
    sentence = f"A grammar ended the engine: {ended.exception}"
    return named(LiveClass.GRAMMAR_LOOP, Certainty.CERTAIN, sentence, ended.why[:1])


def placeholder_counts(view: DiagnosisView) -> NamedClass | None:
    """The log holds an engine's own words for N embeddings and M places for them."""
    told = logged(view)
    for one in told.noted if told else ():
        return named(LiveClass.PLACEHOLDER_COUNTS, one.certainty, one.sentence, one.why)
    return None


# ---------------------------------------------------------------- ranks


def rank_in_the_log(view: DiagnosisView) -> list[NamedClass]:
    """What the log has of a worker that ended, or that never answered its core.

    vLLM's MultiprocExecutor writes the second when VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
    are over (v1/executor/multiproc_executor.py, 0.11 to 0.32)."""
    if view.answer == "answered":
        return []
    found = []
    for pattern, name, sentence in (
        (
            "rank-died",
            LiveClass.RANK_LOST,
            "A worker process ended, and the engine with it.",
        ),
        (
            "rank-timed-out",
            LiveClass.WORKER_STUCK,
            "A worker never answered its core in time.",
        ),
    ):
        if lines := _lines(view, pattern):
            first = lines[0]
            said = f"its log ({_where(first)}): {public_line(first, 240)}"
            found.append(named(name, Certainty.LIKELY, sentence, [said]))
    return found


def heartbeat(view: DiagnosisView, *, stuck: bool) -> NamedClass | None:
    """vLLM's line of a minute's wait for a block of its ring, where nothing else is
    wrong: the server answers, or its counters move (vllm#43420 took it for a fault, and
    was withdrawn)."""
    count = log_count(view.evidence, "heartbeat")
    if not count or stuck or not (view.answer == "answered" or view.moving is True):
        return None
    first = _lines(view, "heartbeat")[0]
    return named(
        LiveClass.HEARTBEAT_ONLY,
        Certainty.CERTAIN if view.answer == "answered" else Certainty.LIKELY,
        "Its log has lines of a wait for a shared memory block; the server works.",
        [f"{count} such lines, the first {_where(first)}"],
    )


def capacity(view: DiagnosisView) -> str:
    """What the log says of the KV cache's size; "" when it says nothing."""
    lines = log_lines(view.evidence, "kv-size")
    return (
        f"its log says: {'; '.join(public_line(line, 120) for line in lines[:2])}"
        if lines
        else ""
    )


def _lines(view: DiagnosisView, pattern: str) -> list[LogLine]:
    return sorted(log_lines(view.evidence, pattern), key=lambda line: line.number)


def _where(line: LogLine) -> str:
    process = f"{line.process}, " if line.process else ""
    return f"{process}{line.time or f'line {line.number}'}"
