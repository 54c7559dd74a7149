"""Imposters of chunked-mm-prefill's placeholders: tokens that never came, other
deaths."""

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import ProcessesData

from imposters import Imposter
from imposters.prefill_edits import (
    anothers_error,
    first_error,
    late,
    of,
    reworded,
    without,
    yesterdays,
)

OTHER, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
GENERATED = "chunked-mm-prefill-generated-placeholder"
LITERAL = "chunked-mm-prefill-literal-placeholder"
IMAGE, TEXT = "image meanwhile", "text that generates the placeholder"
WRITTEN, AFTER = "image with the placeholder in its text", "after: a new text"
TOO_FEW = r"(\d+) multimodal tokens to \d+"


def untitled(incident: Incident) -> None:
    """The server did not exit, and no process says what it is."""
    incident.evidence.engine_exit = None
    for _, data in incident.evidence.results(ProcessesData):
        for process in data.processes:
            process.role = process.name = ""


def ended_before_the_image(incident: Incident) -> None:
    image = incident.evidence.labelled(IMAGE)[-1]
    for text in incident.evidence.labelled(TEXT):
        text.latency_s = image.sent.mono - text.sent.mono - 0.001
        text.error = ""


def survived(incident: Incident) -> None:
    """The request alone failed: a new text is answered, /health is green, EngineCore
    lives."""
    seen = incident.evidence
    for record in seen.requests:
        if record.phase == "trigger" and record.label != WRITTEN:
            record.status, record.error, record.completion_tokens = 200, "", 4
    seen.engine_exit = None
    for result in [*seen.probes]:
        if result.probe == "processes" and result.phase == "gate":
            seen.probes.append(result.model_copy(update={"phase": "check"}))


IMPOSTERS = [
    # ---- a placeholder that is generated
    Imposter(
        "generated: another token",
        f"{GENERATED}-0.12.0",
        "trigger-failed",
        "the texts generated something else",
        of(TEXT, text="hello"),
        UNDECIDED,
    ),
    Imposter(
        "generated: over before the image",
        f"{GENERATED}-0.12.0",
        "trigger-failed",
        "the texts had ended when the image was sent",
        ended_before_the_image,
        UNDECIDED,
    ),
    Imposter(
        "generated: died without them",
        f"{GENERATED}-0.11.0",
        "trigger-failed",
        "the texts had ended when the image was sent, and EngineCore died",
        ended_before_the_image,
        OTHER,
        still_true=("assertion",),
    ),
    Imposter(
        "generated: yesterday's death",
        f"{GENERATED}-0.12.0",
        "stale-log",
        "the log begins with the death of another server",
        yesterdays,
        Outcome.NOT_REPRODUCED,
    ),
    Imposter(
        "generated: another server's error",
        f"{GENERATED}-0.11.0",
        "stale-log",
        "what the log holds of masked_scatter is of an EngineCore that ran before",
        anothers_error,
        OTHER,
    ),
    Imposter(
        "generated: another error first",
        f"{GENERATED}-0.11.0",
        "other-cause",
        "EngineCore's first exception was an IndexError",
        first_error("IndexError: list index out of range"),
        OTHER,
    ),
    Imposter(
        "generated: too few placeholders",
        f"{GENERATED}-0.11.0",
        "other-cause",
        "vLLM counted fewer placeholders than embeddings",
        reworded("mask-mismatch", TOO_FEW, r"\1 multimodal tokens to 200"),
        OTHER,
    ),
    Imposter(
        "generated: no log",
        f"{GENERATED}-0.11.0",
        "absent-probe",
        "the log could not be read",
        without("logs"),
        UNDECIDED,
    ),
    Imposter(
        "generated: no process titles",
        f"{GENERATED}-0.11.0",
        "absent-probe",
        "no process says what it is, and the server goes on",
        untitled,
        UNDECIDED,
    ),
    Imposter(
        "generated: half a log",
        f"{GENERATED}-0.11.0",
        "torn-sample",
        "reading the log ran out of time",
        without("logs", ProbeStatus.TIMED_OUT),
        UNDECIDED,
    ),
    Imposter(
        "generated: late",
        f"{GENERATED}-0.12.0",
        "overload",
        "the image and the text after it were not answered in time",
        late(IMAGE, AFTER),
        OTHER,
    ),
    # ---- a placeholder that is written
    Imposter(
        "literal: as plain text",
        f"{LITERAL}-0.12.0",
        "trigger-failed",
        "the tokenizer made characters of it",
        of(WRITTEN, prompt_tokens=252),
        UNDECIDED,
    ),
    Imposter(
        "literal: no image",
        f"{LITERAL}-0.12.0",
        "trigger-failed",
        "the image was left out",
        of(WRITTEN, images=[]),
        UNDECIDED,
    ),
    Imposter(
        "literal: no usage",
        f"{LITERAL}-0.12.0",
        "absent-probe",
        "the server did not say how long its prompts were",
        of(WRITTEN, prompt_tokens=None),
        UNDECIDED,
    ),
    Imposter(
        "literal: late",
        f"{LITERAL}-0.12.0",
        "overload",
        "the image was not answered in time",
        late(WRITTEN),
        OTHER,
    ),
    Imposter(
        "literal: yesterday's death",
        f"{LITERAL}-0.12.0",
        "stale-log",
        "the log begins with the death of another server",
        yesterdays,
        Outcome.NOT_REPRODUCED,
    ),
    Imposter(
        "literal: another server's error",
        f"{LITERAL}-0.11.0",
        "stale-log",
        "what the log holds of masked_scatter is of an EngineCore that ran before",
        anothers_error,
        OTHER,
    ),
    Imposter(
        "literal: another text",
        f"{LITERAL}-0.11.0",
        "other-cause",
        "the text beside the image held no placeholder",
        of(WRITTEN, prompt_head="hello world"),
        OTHER,
        still_true=("assertion",),
    ),
    Imposter(
        "literal: another error first",
        f"{LITERAL}-0.11.0",
        "other-cause",
        "EngineCore's first exception was out of memory",
        first_error("RuntimeError: [enforce fail at alloc_cpu.cpp] not enough memory"),
        OTHER,
    ),
    Imposter(
        "literal: one request failed",
        f"{LITERAL}-0.11.0",
        "healthy",
        "every later request was answered, and the server goes on",
        survived,
        OTHER,
    ),
    Imposter(
        "literal: half a log",
        f"{LITERAL}-0.11.0",
        "torn-sample",
        "reading the log ran out of time",
        without("logs", ProbeStatus.TIMED_OUT),
        UNDECIDED,
    ),
]
