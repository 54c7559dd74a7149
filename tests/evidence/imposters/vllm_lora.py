"""Imposters of lora-no-adapter: wrong answers that no index made, and batches that
never met."""

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.scenarios.lora_no_adapter import (
    ADAPTED,
    AFTER,
    ALONE,
    BESIDE,
    LONG,
    OTHER,
    REPRODUCER,
)

from imposters import Imposter
from imposters.vllm_edits import fact, labelled, reproducer, unread
from imposters.vllm_silent import answered_as

RUN, SPARE = "lora-no-adapter-0.32.0", "lora-no-adapter-spare-slot"
DIFFERENT, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE


def ended_late(incident: Incident) -> None:
    """The model's answer ended after the adapter's long one: it may have been alone by
    then."""
    long = labelled(incident, LONG)[0]
    for record in labelled(incident, BESIDE):
        record.latency_s = long.sent.mono + long.latency_s - record.sent.mono + 1.0


def one_token(incident: Incident) -> None:
    """The last token of the wrong answer is neither's."""
    for record in labelled(incident, BESIDE):
        record.tokens[-1] = "<t9>"


IMPOSTERS = [
    Imposter(
        "lora: the functions are sound",
        RUN,
        "other-cause",
        "index -1 adds nothing: the answer was swapped elsewhere",
        reproducer(REPRODUCER, without_adapter=0.0),
        DIFFERENT,
        ("alone-spared",),
    ),
    Imposter(
        "lora: the script was not run",
        RUN,
        "absent-probe",
        "nobody asked the engine's own functions",
        unread(REPRODUCER),
        UNDECIDED,
        ("alone-spared",),
    ),
    Imposter(
        "lora: nobody's answer",
        RUN,
        "other-cause",
        "the answer is the adapter's but for its last token",
        one_token,
        DIFFERENT,
        ("alone-spared",),
    ),
    Imposter(
        "lora: the model is spoilt for good",
        RUN,
        "other-cause",
        "alone afterwards it still gives the adapter's answer",
        answered_as(AFTER, ADAPTED),
        DIFFERENT,
        ("wrong-output",),
    ),
    Imposter(
        "lora: the adapter answers as the model",
        RUN,
        "other-cause",
        "the adapter beside it gives the model's answer: weights were mixed up",
        answered_as(OTHER, ALONE),
        DIFFERENT,
        ("wrong-output", "alone-spared"),
    ),
    Imposter(
        "lora: never in one batch",
        SPARE,
        "trigger-failed",
        (
            "the model's answer ended after the adapter's, and may have been computed "
            "alone"
        ),
        ended_late,
        UNDECIDED,
    ),
    Imposter(
        "lora: before a piece",
        SPARE,
        "trigger-failed",
        "the adapter had not begun to answer when the model was asked",
        fact("pieces_before", 0),
        UNDECIDED,
    ),
    Imposter(
        "lora: the adapter does nothing",
        SPARE,
        "trigger-failed",
        "the adapter's weights are zero: both answer alike",
        answered_as(ADAPTED, ALONE),
        UNDECIDED,
    ),
]
