"""mm-prefill-contract: for each of the note's six bugs, what only looks like it or like
its fix."""

from collections.abc import Iterator
from itertools import starmap

from mmrepro.failure.signature import Outcome

from imposters import Imposter
from imposters.minivllm import (
    absent,
    admitted_as,
    as_if_faulty,
    both,
    cut_off,
    error_says,
    logged,
    metric,
    no_answer,
    only_the_end,
    replied,
    switch_was_on,
    yesterdays_requests,
)

DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
NOT_REPRODUCED = Outcome.NOT_REPRODUCED
ERRORS = {
    "slot-mapping": "AssertionError: Slot mapping size must match number of tokens",
    "warmup-sequence": "TypeError: ImageRunner expects ImageSequence, got Sequence",
    "warmup-order": (
        "TypeError: Qwen3.forward() got an unexpected keyword argument 'inputs_embeds'"
    ),
    "broken-module": "SyntaxError: invalid syntax (fake_vision.py, line 21)",
    "image-path": (
        "FileNotFoundError: [Errno 2] No such file or directory: 'assets/warm-up.png'"
    ),
    "pinned-placeholder": "RuntimeError: cannot pin 'MetaLongType' only dense CPU "
    "tensors can be pinned",
}
FRAMES = {"warmup-order": 2, "broken-module": 2}
TEXT = ("decode-undisturbed",)
"""That text is as it was stays true where only images fail."""
FIXED = (*TEXT, "fixed")


def by_the_log(
    named: str,
    broken: str,
    frames: dict[str, list[str]],
    still_true: tuple[str, ...] = (),
) -> Iterator[Imposter]:
    """A log that could not be read, or not to its end, or that shows another place."""
    yield from starmap(
        Imposter,
        (
            (
                f"{named}-log-unreadable",
                broken,
                "absent-probe",
                "the log could not be read",
                absent("logs"),
                INCONCLUSIVE,
            ),
            (
                f"{named}-log-cut-off",
                broken,
                "torn-sample",
                "the log was being read when the time was over",
                cut_off("logs"),
                INCONCLUSIVE,
            ),
            (
                f"{named}-raised-elsewhere",
                broken,
                "other-cause",
                "the same words, raised at another place",
                logged(**frames),
                DIFFERENT,
                still_true,
            ),
        ),
    )


def of(variant: str) -> Iterator[Imposter]:
    broken, fixed = (f"mm-prefill-contract-{variant}-{end}" for end in ("0.1", "fix"))
    frames: dict[str, list[str]] = {
        f"frame_{i}": [] for i in range(FRAMES.get(variant, 1))
    }
    named, error = f"prefill-{variant}", ERRORS[variant]
    errors = [name for name in ERRORS if name != variant]
    other = errors[0] if variant != "warmup-order" else "image-path"
    yield from by_the_log(named, broken, frames, TEXT)
    there = {name: ["a frame of yesterday's traceback"] * 3 for name in frames}

    yield from starmap(
        Imposter,
        (
            (
                f"{named}-end-of-log",
                broken,
                "torn-sample",
                "only the log's end was read, and the error is not in it",
                only_the_end("note-error"),
                INCONCLUSIVE,
                TEXT,
            ),
            (
                f"{named}-other-error",
                broken,
                "other-cause",
                f"images fail by the error of {other}",
                both(error_says(ERRORS[other]), logged(note_error=[])),
                DIFFERENT,
                TEXT,
            ),
            (
                f"{named}-other-words",
                broken,
                "other-release",
                "a release that fails at that place in other words",
                both(
                    error_says("RuntimeError: images are not served"),
                    logged(note_error=[]),
                ),
                DIFFERENT,
                TEXT,
            ),
            (
                f"{named}-yesterdays-errors",
                fixed,
                "stale-log",
                (
                    "the log begins with yesterday's server, whose fault was on and "
                    "whose images failed"
                ),
                both(logged(note_error=[error] * 3, **there), switch_was_on),
                NOT_REPRODUCED,
                TEXT,
            ),
            (
                f"{named}-yesterdays-requests",
                fixed,
                "stale-log",
                "the log begins with the requests of yesterday's server",
                yesterdays_requests,
                INCONCLUSIVE,
            ),
            (
                f"{named}-starved",
                fixed,
                "overload",
                "a machine with too much to do: no image is answered in time",
                no_answer("image"),
                DIFFERENT,
                TEXT,
            ),
            (
                f"{named}-image-scaled",
                fixed,
                "trigger-failed",
                "the engine makes the small image smaller: four embeddings",
                admitted_as(image_Y=25),
                INCONCLUSIVE,
            ),
            (
                f"{named}-images-dropped",
                fixed,
                "trigger-failed",
                "the engine drops the images and answers the text",
                admitted_as(image=21),
                INCONCLUSIVE,
            ),
            (
                f"{named}-nothing-planted",
                fixed,
                "healthy",
                "a server without the fault, of which nobody said so",
                as_if_faulty,
                NOT_REPRODUCED,
                FIXED,
            ),
            (
                f"{named}-other-failure-fixed",
                fixed,
                "other-cause",
                "with the fix images fail by another error",
                replied("image", 500, "CUDA error: an illegal memory access"),
                DIFFERENT,
                TEXT,
            ),
        ),
    )


def of_slots() -> Iterator[Imposter]:
    """Of the slot mapping alone, which the contract checker counts."""
    broken, fixed = (
        f"mm-prefill-contract-slot-mapping-{end}" for end in ("0.1", "fix")
    )
    words = "contract violated: slot-count: slot_mapping has {} entries for 27 tokens"
    yield from starmap(
        Imposter,
        (
            (
                "prefill-slot-mapping-blocks-of-two",
                fixed,
                "trigger-failed",
                (
                    "blocks of two tokens: the last one is as full with the image as "
                    "without"
                ),
                metric("kv_cache_block_size", 2),
                INCONCLUSIVE,
            ),
            (
                "prefill-slot-mapping-block-size-unknown",
                fixed,
                "other-release",
                "a release that does not tell the size of its blocks",
                absent("metrics"),
                INCONCLUSIVE,
            ),
            (
                "prefill-slot-mapping-one-slot-short",
                broken,
                "other-cause",
                "one slot is missing, and not what the last block lacks",
                logged(contract_violated=[words.format(26)]),
                DIFFERENT,
                TEXT,
            ),
            (
                "prefill-slot-mapping-too-many-slots",
                broken,
                "other-cause",
                "there are more slots than tokens",
                logged(contract_violated=[words.format(33)]),
                DIFFERENT,
                TEXT,
            ),
            (
                "prefill-slot-mapping-unchecked",
                broken,
                "absent-probe",
                "the contract was not checked: nothing counted the slots",
                logged(contract_violated=[]),
                DIFFERENT,
                TEXT,
            ),
        ),
    )


IMPOSTERS = [one for variant in ERRORS for one in of(variant)] + list(of_slots())
