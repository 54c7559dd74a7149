"""mm-prefill-at-start: servers that end as they start for another reason, logs that do
not tell."""

from collections.abc import Iterator
from itertools import starmap

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome

from imposters import Imposter
from imposters.minivllm import as_if_faulty, both, logged, no_answer, switch_was_on
from imposters.mm_prefill_contract import ERRORS, FRAMES, by_the_log

DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
NOT_REPRODUCED = Outcome.NOT_REPRODUCED


def killed(incident: Incident) -> None:
    """By the kernel, as it started."""
    incident.evidence.engine_exit = -9
    incident.evidence.never_ready = "minivllm 0.1 ended with -9 while it started."


def control_unanswered(incident: Incident) -> None:
    """Not even the control server answers the picture."""
    for sent in incident.evidence.requests_in("control"):
        if sent.images:
            sent.status, sent.error = 500, "boom"


def of(variant: str) -> Iterator[Imposter]:
    broken, fixed = (f"mm-prefill-at-start-{variant}-{end}" for end in ("0.1", "fix"))
    frames: dict[str, list[str]] = {
        f"frame_{i}": [] for i in range(FRAMES.get(variant, 1))
    }
    there = {name: ["a frame of yesterday's traceback"] for name in frames}
    named = f"start-{variant}"
    yield from by_the_log(named, broken, frames)
    yield from starmap(
        Imposter,
        (
            (
                f"{named}-killed",
                broken,
                "overload",
                "no memory was left: the kernel ended it as it started",
                killed,
                DIFFERENT,
            ),
            (
                f"{named}-other-words",
                broken,
                "other-release",
                "a release that does not start for another reason",
                logged(note_error=[]),
                DIFFERENT,
            ),
            (
                f"{named}-images-late",
                broken,
                "trigger-failed",
                "the image runner was not made at the start: something else ended it",
                logged(made_at_start=[]),
                INCONCLUSIVE,
            ),
            (
                f"{named}-control-fails",
                broken,
                "other-cause",
                "with the place put right no picture is answered either",
                control_unanswered,
                INCONCLUSIVE,
            ),
            (
                f"{named}-yesterdays-error",
                fixed,
                "stale-log",
                (
                    "the log begins with yesterday's server, whose fault was on and "
                    "which did not start"
                ),
                both(
                    logged(
                        note_error=[ERRORS[variant]],
                        cannot_start=["minivllm cannot start"],
                        **there,
                    ),
                    switch_was_on,
                ),
                NOT_REPRODUCED,
            ),
            (
                f"{named}-starved",
                fixed,
                "overload",
                "a machine with too much to do: no image is answered in time",
                no_answer("image"),
                DIFFERENT,
            ),
            (
                f"{named}-nothing-planted",
                fixed,
                "healthy",
                "a server without the fault, of which nobody said so",
                as_if_faulty,
                NOT_REPRODUCED,
                ("fixed",),
            ),
        ),
    )


VARIANTS = ("warmup-sequence", "warmup-order", "broken-module", "image-path")
IMPOSTERS = [one for variant in VARIANTS for one in of(variant)]
