"""Imposters of chunked-mm-prefill's race: races that never were, cures without a part
in it."""

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.base import ProbeStatus

from imposters import Imposter
from imposters.prefill_edits import (
    anothers_error,
    first_error,
    late,
    logs,
    of,
    reworded,
    unlogged,
    without,
    yesterdays,
)

REPRODUCED_NOT, OTHER, UNDECIDED = (
    Outcome.NOT_REPRODUCED,
    Outcome.DIFFERENT_FAILURE,
    Outcome.INCONCLUSIVE,
)
RACE, FULL = "chunked-mm-prefill-async-race", "chunked-mm-prefill-full-size"
SILENT, FIRST, SECOND = (
    "image of two steps",
    "image A, of three steps",
    "image B, of three steps",
)
NO_STEP_EARLY = reworded("stream-steps", r"begun, \d+ with", "begun, 0 with")
WATCHED = ("overwrite", "steps", "mask", "silent", "error")


def one_step_each(incident: Incident) -> None:
    """The server made its images smaller: each had the gate's rows, and a step of its
    own."""
    for label in (SILENT, FIRST, SECOND):
        of(label, prompt_tokens=151)(incident)
    for data in logs(incident):
        for number, line in enumerate(data.matches["stream-mask"]):
            line.text = (
                f"mmrepro-stream: step {10 * number + 1}: mask: 144 embeddings, "
                "144 image rows prepared, 144 read, 0 rows differ"
            )


def not_the_step_that_failed(incident: Incident) -> None:
    """All overwrites were of earlier steps' copies."""
    for data in logs(incident):
        data.matches["stream-overwrite"].pop()
        data.match_counts["stream-overwrite"] -= 1


def with_the_budget(incident: Incident) -> None:
    """0.14.0's run, as one of 0.12.0 whom a larger budget helped."""
    incident.engine.release = "0.12.0"
    for mitigation in incident.mitigations:
        mitigation.applied = mitigation.name == "budget"


IMPOSTERS = [
    # ---- the race
    Imposter(
        "race: one step after another",
        f"{RACE}-0.14.0",
        "trigger-failed",
        "no step began before the device was done with the one before",
        NO_STEP_EARLY,
        UNDECIDED,
    ),
    Imposter(
        "race: smaller images",
        f"{RACE}-0.14.0",
        "trigger-failed",
        "the server resized the images: each took one step",
        one_step_each,
        UNDECIDED,
    ),
    Imposter(
        "race: images that were not small",
        f"{RACE}-flip-image-size",
        "trigger-failed",
        "one of the images that should be small had 602 tokens",
        of(SECOND, prompt_tokens=609),
        UNDECIDED,
    ),
    Imposter(
        "race: another mask",
        f"{RACE}-0.12.0",
        "other-cause",
        "the mask of the step that failed was not overwritten",
        not_the_step_that_failed,
        OTHER,
        still_true=("assertion",),
    ),
    Imposter(
        "race: the right mask",
        f"{RACE}-0.12.0",
        "other-cause",
        "the step that failed read the mask that the host had prepared",
        reworded("stream-error", "256 read", "254 read"),
        OTHER,
        still_true=("assertion", "buffer"),
    ),
    Imposter(
        "race: another error first",
        f"{RACE}-0.12.0",
        "other-cause",
        "EngineCore's first exception was an IndexError",
        first_error("IndexError: list index out of range"),
        OTHER,
    ),
    Imposter(
        "race: asynchronous all the same",
        f"{RACE}-sync-scheduling",
        "other-cause",
        "steps overlapped although --no-async-scheduling was given",
        reworded("stream-steps", r"begun, \d+ with", "begun, 1 with"),
        REPRODUCED_NOT,
    ),
    Imposter(
        "race: a barrier that never was",
        f"{RACE}-barrier",
        "absent-probe",
        "the patch did not say that it recorded the event",
        unlogged("ordered"),
        REPRODUCED_NOT,
    ),
    Imposter(
        "race: no stand-in",
        f"{RACE}-0.12.0",
        "absent-probe",
        "nothing watched the device",
        unlogged(*(f"stream-{kind}" for kind in WATCHED)),
        UNDECIDED,
        still_true=("assertion",),
    ),
    Imposter(
        "race: a mask that was not read",
        f"{RACE}-0.12.0",
        "torn-sample",
        "the step failed before its mask was read",
        reworded("stream-error", "256 read", "None read"),
        UNDECIDED,
        still_true=("assertion", "buffer"),
    ),
    Imposter(
        "race: half a log",
        f"{RACE}-barrier",
        "torn-sample",
        "reading the log ran out of time",
        without("logs", ProbeStatus.TIMED_OUT),
        UNDECIDED,
    ),
    Imposter(
        "race: late",
        f"{RACE}-0.14.0",
        "overload",
        "the large images were not answered in time",
        late(FIRST, SECOND),
        OTHER,
    ),
    Imposter(
        "race: yesterday's death",
        f"{RACE}-budget",
        "stale-log",
        "the log begins with the death of another server",
        yesterdays,
        REPRODUCED_NOT,
        still_true=("budget-cures",),
    ),
    Imposter(
        "race: another server's error",
        f"{RACE}-0.12.0",
        "stale-log",
        "what the log holds of masked_scatter is of an EngineCore that ran before",
        anothers_error,
        OTHER,
    ),
    Imposter(
        "race: a release with the fix",
        f"{RACE}-0.14.0",
        "other-release",
        "0.14.0's run, as one of 0.12.0 with a larger budget",
        with_the_budget,
        REPRODUCED_NOT,
    ),
    # ---- the same with the report's own sizes
    Imposter(
        "full size: another mask",
        f"{FULL}-0.12.0",
        "other-cause",
        "the mask of the step that failed was not overwritten",
        not_the_step_that_failed,
        OTHER,
        still_true=("assertion", "as-dumped"),
    ),
    Imposter(
        "full size: one step after another",
        f"{FULL}-barrier",
        "trigger-failed",
        "no step began before the device was done with the one before",
        NO_STEP_EARLY,
        UNDECIDED,
    ),
    Imposter(
        "full size: no stand-in",
        f"{FULL}-0.12.0",
        "absent-probe",
        "nothing watched the device",
        unlogged(*(f"stream-{kind}" for kind in WATCHED)),
        UNDECIDED,
        still_true=("assertion", "as-dumped"),
    ),
    Imposter(
        "full size: a barrier that never was",
        f"{FULL}-barrier",
        "absent-probe",
        "the patch did not say that it recorded the event",
        unlogged("ordered"),
        REPRODUCED_NOT,
    ),
]
