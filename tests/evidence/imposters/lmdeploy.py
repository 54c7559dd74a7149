"""LMDeploy: an undersized KV budget, and an answer that outgrows the cache."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import InferenceData, LogsData
from mmrepro.traffic.evidence import RequestRecord

from imposters import Imposter, Kind

NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE
DIFFERENT = Outcome.DIFFERENT_FAILURE
TEXT, IMAGE, GROWTH = (
    "undersized-kv-budget-text",
    "undersized-kv-budget-image",
    "kv-growth-crash",
)
PROMPT, STREAMED = "the prompt", "the prompt, streamed"
REFUSAL, YESTERDAY = "INPUT_LENGTH_ERROR", 1
BYTES = ("block-bytes", "runtime")
"""Claims by code that runs beside the server."""
Edit = Callable[[Incident], object]

# ------------------------------------------------------------- what a change is made of


def log_of(incident: Incident, phase: str = "check") -> LogsData:
    (found,) = (
        p.data
        for p in incident.evidence.probes
        if p.probe == "logs" and p.phase == phase
    )
    assert isinstance(found, LogsData)
    return found


def rewrite(incident: Incident, event: str, least: int = 0, **values: Any) -> None:
    """The witness's lines of ``event`` say so; of requests, those of at least so many
    tokens."""
    for line in log_of(incident).matches[f"witness-{event}"]:
        head, mark, told = line.text.partition(f"mmrepro-witness-{event} ")
        said = json.loads(told)
        if said.get("input_tokens", 0) >= least:
            line.text = f"{head}{mark}{json.dumps(said | values)}"


def holds(incident: Incident, blocks: int, limit: int) -> None:
    """The engine has so many blocks, and says so of each request as well."""
    rewrite(incident, "limit", num_gpu_blocks=blocks, max_session_len=limit)
    rewrite(incident, "request", max_input_len=limit)


def sent(incident: Incident, labels: Sequence[str]) -> list[RequestRecord]:
    return [r for r in incident.evidence.requests if r.label in labels]


def answer(
    incident: Incident, labels: Sequence[str], tokens: int = 4, finish: str = "length"
) -> None:
    for record in sent(incident, labels):
        record.status, record.error, record.text = 200, "", "<t26>"
        record.completion_tokens, record.finish_reason = tokens, finish


def reply(
    incident: Incident, status: int | None, error: str, labels: Sequence[str]
) -> None:
    for record in sent(incident, labels):
        record.status, record.error, record.text = status, error, ""
        record.completion_tokens, record.timed_out = None, status is None


def forget(incident: Incident, patterns: Sequence[str]) -> None:
    """The log was searched for them, and holds none."""
    for pattern in patterns:
        log_of(incident).matches.pop(pattern, None)
        log_of(incident).match_counts[pattern] = 0


def age(incident: Incident, patterns: Sequence[str]) -> None:
    """Lines of these patterns stand before those of this server."""
    for pattern in patterns:
        for line in log_of(incident).matches[pattern]:
            line.number = YESTERDAY


def absent(incident: Incident, phase: str = "check") -> None:
    for probe in incident.evidence.probes:
        if probe.probe == "logs" and probe.phase == phase:
            probe.status, probe.data = ProbeStatus.UNAVAILABLE, None
            probe.reason = "the log cannot be read: Permission denied"


def tear(incident: Incident, pattern: str, number: int = -1) -> None:
    line = log_of(incident).matches[pattern][number]
    line.text = line.text[: len(line.text) // 2]


def mitigate(incident: Incident, *, applied: bool) -> None:
    for mitigation in incident.mitigations:
        mitigation.applied = applied


def torn_stream(incident: Incident) -> None:
    """The line in which the engine took the prompt for the second time."""
    lines = log_of(incident).matches["witness-request"]
    tear(
        incident,
        "witness-request",
        max(n for n, x in enumerate(lines) if REFUSAL in x.text),
    )


def one(
    name: str,
    recording: str,
    kind: Kind,
    outcome: Outcome,
    change: str,
    edit: Edit,
    *true: str,
) -> Imposter:
    """``true``: claims that stay true."""
    return Imposter(f"lmdeploy-{name}", recording, kind, change, edit, outcome, true)


# ----------------------------------------------------------- a prompt that does not fit


def roomy(incident: Incident) -> None:
    holds(incident, 107, 6720)
    rewrite(incident, "request", 3000, status="FINISH")
    answer(incident, (PROMPT, STREAMED))


def cut_prompt(incident: Incident) -> None:
    rewrite(incident, "request", 1600, input_tokens=100, status="FINISH")
    answer(incident, (PROMPT, STREAMED))


def encoder_last(incident: Incident) -> None:
    for line in log_of(incident).matches["witness-vision"]:
        line.number += 1000


def another_share(incident: Incident) -> None:
    rewrite(incident, "limit", cache_max_entry_count=0.5)


WORKS, FAILS = "works-with-0.5", "fails-with-0.1"
CHAIN = (FAILS, "status", "silence", "validation-error", "status-to-error")
"""Claims that the rest of the chain still shows."""
SIZED, CONTROL_SIZED = ("blocks-21", "limit-1344"), ("blocks-107", "limit-6848")
"""Claims about how each server sized its cache, whatever it was asked."""


def both(name: str, variant: str, *always: str) -> list[Imposter]:
    """Changes that the long text and the large image share; ``always``: further claims
    that are true of every run of the variant."""
    run, cured = f"{variant}-0.6.4", f"{variant}-kv-budget"
    return [
        one(
            f"{name}-other-status",
            run,
            "other-cause",
            DIFFERENT,
            "the engine ended the prompt by an error of its own, not for its length",
            partial(
                rewrite, event="request", least=1600, status="INTERNAL_ENGINE_ERROR"
            ),
            WORKS,
            *SIZED,
            *CONTROL_SIZED,
            *always,
        ),
        one(
            f"{name}-other-exception",
            run,
            "other-cause",
            DIFFERENT,
            "the HTTP 500 comes of another exception than pydantic's",
            partial(forget, patterns=("validation-error", "finish-reason")),
            WORKS,
            *SIZED,
            *CONTROL_SIZED,
            *CHAIN[:3],
            *always,
        ),
        one(
            f"{name}-old-traceback",
            run,
            "stale-log",
            DIFFERENT,
            "pydantic's exception is of a server before this one",
            partial(age, patterns=("validation-error", "finish-reason")),
            WORKS,
            *SIZED,
            *CONTROL_SIZED,
            *CHAIN[:3],
            *always,
        ),
        one(
            f"{name}-no-log",
            run,
            "absent-probe",
            INCONCLUSIVE,
            "the server's log could not be read",
            absent,
            WORKS,
            *CONTROL_SIZED,
            *BYTES,
        ),
        one(
            f"{name}-no-log-under-setting",
            cured,
            "absent-probe",
            INCONCLUSIVE,
            "the server's log could not be read: nothing shows that the prompt arrived",
            absent,
            WORKS,
            *CONTROL_SIZED,
            *BYTES,
        ),
        one(
            f"{name}-another-share",
            run,
            "other-cause",
            DIFFERENT,
            "the engine says that its setting is 0.5: the 21 blocks do not come of it",
            another_share,
            WORKS,
            *CONTROL_SIZED,
            "silence",
            *always,
        ),
        one(
            f"{name}-no-control-log",
            run,
            "absent-probe",
            INCONCLUSIVE,
            "the control server's log could not be read",
            partial(absent, phase="control"),
            *SIZED,
            *CHAIN,
            *always,
        ),
        one(
            f"{name}-torn-admission",
            run,
            "torn-sample",
            INCONCLUSIVE,
            "the line in which the engine took the streamed prompt is torn",
            torn_stream,
            WORKS,
            *SIZED,
            *CONTROL_SIZED,
            *always,
        ),
        one(
            f"{name}-torn-limit",
            run,
            "torn-sample",
            INCONCLUSIVE,
            "the line with the engine's blocks is torn",
            partial(tear, pattern="witness-limit"),
            WORKS,
            *CONTROL_SIZED,
            *CHAIN,
            *always,
        ),
        one(
            f"{name}-slow-control",
            run,
            "overload",
            INCONCLUSIVE,
            "a busy machine: the control server did not answer the prompt in time",
            partial(
                reply,
                status=None,
                error="no answer",
                labels=(f"control server: {PROMPT}",),
            ),
            *SIZED,
            *CONTROL_SIZED,
            *CHAIN,
            *always,
        ),
        one(
            f"{name}-too-many",
            cured,
            "overload",
            DIFFERENT,
            "a proxy refused the prompt with 429",
            partial(
                reply, status=429, error="Too Many Requests", labels=(PROMPT, STREAMED)
            ),
            WORKS,
            *CONTROL_SIZED,
            *always,
        ),
        one(
            f"{name}-no-setting",
            cured,
            "healthy",
            INCONCLUSIVE,
            "nobody applied the setting: the server was never too small",
            partial(mitigate, applied=False),
            WORKS,
            *CONTROL_SIZED,
            *always,
        ),
        one(
            f"{name}-cut-prompt",
            cured,
            "trigger-failed",
            INCONCLUSIVE,
            "the engine counted 100 tokens of the prompt, and answered them",
            cut_prompt,
            WORKS,
            *CONTROL_SIZED,
            *BYTES,
        ),
        one(
            f"{name}-setting-without-effect",
            cured,
            "other-release",
            NOT_REPRODUCED,
            "the engine still has 21 blocks, and answered the prompt all the same",
            partial(holds, blocks=21, limit=1344),
            WORKS,
            *CONTROL_SIZED,
            *always,
        ),
    ]


TEXTS = [
    one(
        "text-roomy",
        f"{TEXT}-0.18.0",
        "healthy",
        INCONCLUSIVE,
        "the engine has 107 blocks, and answers the prompt",
        roomy,
        WORKS,
        *BYTES,
        "prompt",
    ),
    one(
        "text-cut-prompt-fixed",
        f"{TEXT}-0.18.0",
        "trigger-failed",
        INCONCLUSIVE,
        "the engine counted 100 tokens of the prompt, and answered them",
        cut_prompt,
        WORKS,
        *BYTES,
    ),
    one(
        "text-fix-with-setting",
        f"{TEXT}-0.18.0",
        "other-release",
        NOT_REPRODUCED,
        (
            "the setting was given, and the engine still has 21 blocks: the release "
            "refuses properly"
        ),
        partial(mitigate, applied=True),
        WORKS,
        *BYTES,
        "prompt",
    ),
    one(
        "text-session-len",
        f"{TEXT}-0.18.0",
        "other-cause",
        INCONCLUSIVE,
        "the limit was set: 256 tokens, which are not its 21 blocks'",
        partial(holds, blocks=21, limit=256),
        WORKS,
        *BYTES,
        "prompt",
        "status",
    ),
]
IMAGES = [
    one(
        "image-encoder-last",
        f"{IMAGE}-0.6.4",
        "other-cause",
        DIFFERENT,
        "the encoder did its work after the refusals",
        encoder_last,
        WORKS,
        *SIZED,
        *CONTROL_SIZED,
        *CHAIN,
    ),
    one(
        "image-torn-encoder",
        f"{IMAGE}-0.6.4",
        "torn-sample",
        INCONCLUSIVE,
        "the log holds no line of the encoder",
        partial(forget, patterns=("witness-vision",)),
        WORKS,
        *SIZED,
        *CONTROL_SIZED,
        *CHAIN,
    ),
]

# ---------------------------------------------------------- an answer that does not fit


def roomy_growth(incident: Incident) -> None:
    holds(incident, 107, 6720)
    answer(incident, ("growing",), tokens=100)


def busy(incident: Incident) -> None:
    reply(incident, 429, "Too Many Requests", LATER)
    for probe in incident.evidence.probes:
        if isinstance(probe.data, InferenceData):
            probe.data.status, probe.data.error = 429, "HTTP 429: Too Many Requests"


def runtime_error(incident: Incident) -> None:
    forget(incident, ("assertion",))
    ended = log_of(incident).matches["loop-ended"]
    ended[:] = [line for line in ended if "AssertionError" not in line.text]


def died_early(incident: Incident) -> None:
    """The request that grew had 3 tokens when something ended it; the log is silent."""
    lines = log_of(incident).matches["witness-request"]
    grown = [line for line in lines if '"generated": 31' in line.text]
    for line in grown:
        line.text = line.text.replace('"generated": 31', '"generated": 3')


LATER = tuple(f"short after {number}" for number in (1, 2, 3))
GROWTHS = [
    one(
        "growth-roomy",
        f"{GROWTH}-0.18.0",
        "healthy",
        INCONCLUSIVE,
        "the engine has 107 blocks, and gives the whole answer",
        roomy_growth,
    ),
    one(
        "growth-no-setting",
        f"{GROWTH}-kv-budget",
        "healthy",
        INCONCLUSIVE,
        "nobody applied the setting: the server was never too small",
        partial(mitigate, applied=False),
    ),
    one(
        "growth-ended-early",
        f"{GROWTH}-0.18.0",
        "trigger-failed",
        INCONCLUSIVE,
        "the model ended its answer after 12 tokens",
        partial(answer, labels=("growing",), tokens=12, finish="stop"),
    ),
    one(
        "growth-ended-early-under-setting",
        f"{GROWTH}-kv-budget",
        "trigger-failed",
        INCONCLUSIVE,
        "the model ended its answer after 12 tokens",
        partial(answer, labels=("growing",), tokens=12, finish="stop"),
    ),
    one(
        "growth-old-assertion",
        f"{GROWTH}-0.6.4",
        "stale-log",
        INCONCLUSIVE,
        "the traceback is of a server before this one",
        partial(age, patterns=("assertion", "loop-ended")),
    ),
    one(
        "growth-which-assertion",
        f"{GROWTH}-0.6.4",
        "other-cause",
        INCONCLUSIVE,
        "the line of the traceback that says which assertion it was is not there",
        partial(forget, patterns=("assertion",)),
    ),
    one(
        "growth-other-exception",
        f"{GROWTH}-0.6.4",
        "other-cause",
        DIFFERENT,
        "the loop ended by a RuntimeError",
        runtime_error,
    ),
    one(
        "growth-died-early",
        f"{GROWTH}-with-log-level-CRITICAL",
        "other-cause",
        INCONCLUSIVE,
        "the engine had 3 tokens of the answer when it ended",
        died_early,
    ),
    one(
        "growth-no-log",
        f"{GROWTH}-0.6.4",
        "absent-probe",
        INCONCLUSIVE,
        "the server's log could not be read",
        absent,
    ),
    one(
        "growth-no-log-under-setting",
        f"{GROWTH}-kv-budget",
        "absent-probe",
        INCONCLUSIVE,
        "the server's log could not be read",
        absent,
    ),
    one(
        "growth-torn-limit",
        f"{GROWTH}-kv-budget",
        "torn-sample",
        INCONCLUSIVE,
        "the line with the engine's blocks is torn",
        partial(tear, pattern="witness-limit"),
    ),
    one(
        "growth-too-many",
        f"{GROWTH}-0.6.4",
        "overload",
        DIFFERENT,
        "a proxy refused the short requests with 429",
        busy,
        "asserts",
    ),
    one(
        "growth-slow-after",
        f"{GROWTH}-0.18.0",
        "overload",
        DIFFERENT,
        "a busy machine: the last short request got no answer in time",
        partial(reply, status=None, error="no answer", labels=LATER[2:]),
        "truncates",
    ),
    one(
        "growth-fix-with-setting",
        f"{GROWTH}-0.18.0",
        "other-release",
        NOT_REPRODUCED,
        (
            "the setting was given, and the engine still has 21 blocks: the release "
            "cuts the answer"
        ),
        partial(mitigate, applied=True),
        "truncates",
    ),
]

IMPOSTERS = [
    *both("text", TEXT, *BYTES, "prompt"),
    *TEXTS,
    *both("image", IMAGE),
    *IMAGES,
    *GROWTHS,
]
