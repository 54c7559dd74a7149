"""Imposters of SGLang's failures that single requests make: by their hash, id, or
numbers."""

from typing import Any

from mmrepro.failure.documents import Incident
from mmrepro.probes.data import LogsData

from .sglang import (
    DIFFERENT,
    INCONCLUSIVE,
    LOADED,
    Edit,
    Row,
    answered_as,
    asked,
    both,
    listed,
    logged,
    unread,
    unrun,
)


def measured(**changed: Any) -> Edit:
    """What the scenario measured."""
    return lambda incident: incident.evidence.facts.update(changed)


def measured_as(name: str, value: float) -> Edit:
    return lambda incident: incident.evidence.facts.update({name: value})


def lines_without(pattern: str, word: str) -> Edit:
    """The log has no line of that pattern that holds ``word``."""

    def edit(incident: Incident) -> None:
        for result in incident.evidence.probes:
            if isinstance(result.data, LogsData) and pattern in result.data.matches:
                kept = [
                    one for one in result.data.matches[pattern] if word not in one.text
                ]
                result.data.matches[pattern] = kept
                result.data.match_counts[pattern] = len(kept)

    return edit


def few_lines(pattern: str, number: int) -> Edit:
    """The log has no more than the first lines of that pattern."""

    def edit(incident: Incident) -> None:
        for result in incident.evidence.probes:
            if isinstance(result.data, LogsData) and pattern in result.data.matches:
                result.data.matches[pattern] = result.data.matches[pattern][:number]
                result.data.match_counts[pattern] = number

    return edit


VICTIMS = ("Y after X", "X after Y")
TRUE = ("no-change", "malformed")
HASH: list[Row] = [
    (
        "no-reproducer",
        "0.5.23",
        "absent-probe",
        "the reproducer was not run",
        unrun,
        INCONCLUSIVE,
        TRUE,
    ),
    (
        "log-of-another-start",
        "0.5.23",
        "stale-log",
        "the log is of a start without the stand-in",
        logged(**{LOADED: 0}),
        INCONCLUSIVE,
        TRUE,
    ),
    (
        "answered-by-a-proxy",
        "0.5.23",
        "other-cause",
        "a proxy keeps answers by the hash: only the text came from the prefix cache",
        asked(*VICTIMS, cached_tokens=10),
        DIFFERENT,
        TRUE,
    ),
    (
        "every-picture-is-taken-for-another",
        "0.5.23",
        "other-cause",
        "the picture with another hash gets X's answer as well",
        answered_as("control after X", "gate: X alone"),
        DIFFERENT,
        TRUE,
    ),
    (
        "a-patch-that-did-nothing",
        "patch",
        "trigger-failed",
        "the patch is loaded, and no request with a hash came by",
        logged(**{"sglang_patches-called": 0}),
        INCONCLUSIVE,
        TRUE,
    ),
]
KILL: list[Row] = [
    (
        "killed-for-its-memory",
        "0.5.23",
        "other-cause",
        "the server ends with -9, and its log has no exception",
        logged(**{"scheduler-exception": 0, "in-top-logprobs": 0, "out-of-range": 0}),
        DIFFERENT,
        ("bound",),
    ),
    (
        "another-exception",
        "0.5.23",
        "other-cause",
        "the scheduler ended on another exception, below get_top_logprobs as well",
        logged(**{"out-of-range": 0}),
        DIFFERENT,
        ("kills", "bound"),
    ),
    (
        "no-log",
        "0.5.23",
        "absent-probe",
        "the log could not be read",
        unread,
        INCONCLUSIVE,
        ("bound",),
    ),
    (
        "late-afterwards",
        "patch",
        "overload",
        "nobody answers in time: the machine may be busy",
        asked(
            "after: a new text", timed_out=True, error="no complete answer in 20.0 s"
        ),
        DIFFERENT,
        ("bound",),
    ),
    (
        "refused-for-its-key",
        "patch",
        "trigger-failed",
        "a gateway refuses the request for its key",
        asked("more than the vocabulary", status=401, error="no such key"),
        INCONCLUSIVE,
        ("bound",),
    ),
]
LEFT, BY_RID = "victim: user10-b beside user1", "aborted-by-rid"
ABORT: list[Row] = [
    (
        "no-log",
        "0.5.23",
        "absent-probe",
        "the log could not be read",
        unread,
        INCONCLUSIVE,
        ("whole-id",),
    ),
    (
        "the-victims-aborted-themselves",
        "0.5.23",
        "other-cause",
        (
            "the scheduler's log has no word of the victims: their answers were cut "
            "elsewhere"
        ),
        both(lines_without(BY_RID, "user10-"), lines_without(BY_RID, "req-10")),
        DIFFERENT,
        ("whole-id",),
    ),
    (
        "no-abort-came",
        "patch",
        "trigger-failed",
        "the client that left was not noticed in time",
        measured_as(f"aborts, {LEFT}", 0.0),
        INCONCLUSIVE,
        ("whole-id",),
    ),
    (
        "late",
        "patch",
        "overload",
        "the busy server does not answer the victim in time",
        asked(
            LEFT,
            timed_out=True,
            finish_reason=None,
            error="no complete answer in 120.0 s",
        ),
        DIFFERENT,
        ("whole-id",),
    ),
    (
        "a-patch-that-did-nothing",
        "patch",
        "other-cause",
        "the patch was not loaded: nobody knows what kept the victims",
        logged(**{"sglang_patches-loaded": 0}),
        INCONCLUSIVE,
        ("whole-id",),
    ),
]
GHOST: list[Row] = [
    (
        "log-of-another-start",
        "0.5.19",
        "stale-log",
        "the log is of a start before, and knows of no such request",
        logged(**{"output-for-nobody": 0}),
        DIFFERENT,
        ("abort-dropped",),
    ),
    (
        "no-log",
        "0.5.19",
        "absent-probe",
        "the log could not be read",
        unread,
        INCONCLUSIVE,
        ("abort-dropped",),
    ),
    (
        "an-abort-that-is-under-way",
        "0.5.19",
        "other-cause",
        "three lines, while an abort was under way; the machine was slow afterwards",
        few_lines("output-for-nobody", 3),
        DIFFERENT,
        ("abort-dropped",),
    ),
    (
        "the-client-stayed",
        "release",
        "trigger-failed",
        "a proxy kept the stream open for the client that left",
        asked("ghost: a client that leaves", left=False),
        INCONCLUSIVE,
    ),
    (
        "nothing-to-wait-for",
        "release",
        "trigger-failed",
        "the machine decodes all of it within the two seconds before an abort",
        asked("control: a client that stays", latency_s=1.5),
        DIFFERENT,
    ),
]
FAKE: list[Row] = [
    (
        "no-log",
        "0.5.21",
        "absent-probe",
        "the log could not be read",
        unread,
        INCONCLUSIVE,
    ),
    (
        "a-small-cache",
        "0.5.21",
        "other-cause",
        "the prefill found no memory, but the chunks are those of the prompt",
        few_lines("prefill-unfinished", 8),
        DIFFERENT,
        ("dies", "any-client"),
    ),
    (
        "killed-for-its-memory",
        "0.5.21",
        "other-cause",
        "the server ends with -9, and its log has no exception",
        logged(**{"scheduler-exception": 0, "prefill-out-of-memory": 0}),
        DIFFERENT,
        ("no-progress",),
    ),
    (
        "late-afterwards",
        "release",
        "overload",
        "nobody answers in time: the machine may be busy",
        asked(
            "after: a new text", timed_out=True, error="no complete answer in 20.0 s"
        ),
        DIFFERENT,
    ),
    (
        "a-short-prompt",
        "release",
        "trigger-failed",
        "the tokenizer makes few tokens of the prompt: it fits one chunk",
        asked("long, without a host", "long, with the host", prompt_tokens=90),
        INCONCLUSIVE,
    ),
]
EMBEDS: list[Row] = [
    (
        "killed-for-its-memory",
        "0.5.23",
        "other-cause",
        "the server ends with -9, and its log has no exception",
        logged(**{"scheduler-exception": 0, "in-session-request": 0, "no-length": 0}),
        DIFFERENT,
        ("apart",),
    ),
    (
        "another-exception",
        "0.5.23",
        "other-cause",
        "the scheduler ended on another exception, below create_req as well",
        logged(**{"no-length": 0}),
        DIFFERENT,
        ("kills", "apart"),
    ),
    (
        "no-log",
        "0.5.23",
        "absent-probe",
        "the log could not be read",
        unread,
        INCONCLUSIVE,
        ("apart",),
    ),
    (
        "no-session",
        "patch",
        "trigger-failed",
        "the server has no such route: sessions are off",
        asked("open the session", status=404, error="not found"),
        INCONCLUSIVE,
        ("apart",),
    ),
    (
        "late-afterwards",
        "patch",
        "overload",
        "nobody answers in time: the machine may be busy",
        asked(
            "after: a new text", timed_out=True, error="no complete answer in 20.0 s"
        ),
        DIFFERENT,
        ("apart",),
    ),
    (
        "refused-for-its-key",
        "patch",
        "trigger-failed",
        "a gateway refuses the request for its key",
        asked("embeddings in a session", status=401, error="no such key"),
        INCONCLUSIVE,
        ("apart",),
    ),
]
IMPOSTERS = [
    *listed("caller-hash", HASH),
    *listed("top-logprobs-kill", KILL),
    *listed("abort-by-prefix", ABORT),
    *listed("ghost-decode", GHOST),
    *listed("fake-bootstrap", FAKE),
    *listed("session-embeds", EMBEDS),
]
