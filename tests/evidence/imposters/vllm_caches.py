"""Imposters of mm-cache-desync and encoder-cache-overflow."""

from mmrepro.failure.signature import Outcome

from imposters import Imposter
from imposters.vllm_edits import (
    AGAIN,
    BIG,
    CONTROL,
    TOO_LONG,
    by_another,
    each_thread,
    fact,
    gate_metric,
    locals_of,
    logged,
    no_assertions,
    released,
    reply,
    second_hash,
    unmitigated,
    without,
)

INCONCLUSIVE = Outcome.INCONCLUSIVE
NOT_REPRODUCED, DIFFERENT = Outcome.NOT_REPRODUCED, Outcome.DIFFERENT_FAILURE

DESYNC = "mm-cache-desync-0.24.0"
FAILS = ("step-1", "step-2", "assertion", "for-ever")

CACHES = (
    Imposter(
        "desync-healthy-cache-off",
        "mm-cache-desync-disable-mm-cache",
        "healthy",
        "the cache is off by an option of the server, not by the mitigation",
        unmitigated,
        INCONCLUSIVE,
        ("step-1",),
    ),
    Imposter(
        "desync-mitigated-never-refused",
        "mm-cache-desync-disable-mm-cache",
        "trigger-failed",
        "the request that is to be refused is answered: the mitigation met nothing",
        reply(TOO_LONG, 200, tokens=2144),
        INCONCLUSIVE,
    ),
    Imposter(
        "desync-cure-without-effect",
        "mm-cache-desync-disable-mm-cache",
        "trigger-failed",
        "the cache is on all the same: images were looked up in it",
        gate_metric("vllm:mm_cache_queries_total", 4.0),
        INCONCLUSIVE,
        ("step-1",),
    ),
    Imposter(
        "desync-flip-without-effect",
        "mm-cache-desync-flip-refusal",
        "trigger-failed",
        "the first request, which is to be answered, is refused for its images",
        reply(
            "image X, short", 400, "At most 0 image(s) may be provided in one prompt."
        ),
        INCONCLUSIVE,
    ),
    Imposter(
        "desync-refused-for-something-else",
        "mm-cache-desync-disable-mm-cache",
        "trigger-failed",
        "the refusal names no length",
        reply(TOO_LONG, 400, "the model is not known"),
        INCONCLUSIVE,
    ),
    Imposter(
        "desync-not-refused",
        DESYNC,
        "trigger-failed",
        "image X fails, and its first request was answered",
        reply(TOO_LONG, 200, tokens=2144),
        INCONCLUSIVE,
        ("assertion", "two-caches", "for-ever"),
    ),
    Imposter(
        "desync-no-image-known",
        DESYNC,
        "trigger-failed",
        "the gate's repeated image is not found: the cache is not used",
        gate_metric("vllm:mm_cache_hits_total", 0.0),
        INCONCLUSIVE,
        ("step-1", "assertion", "two-caches", "for-ever"),
    ),
    Imposter(
        "desync-two-images-missing",
        DESYNC,
        "other-cause",
        "the log misses another image as well",
        logged(second_hash),
        DIFFERENT,
        (*FAILS, "two-caches"),
    ),
    Imposter(
        "desync-no-hit",
        DESYNC,
        "other-cause",
        "the API server did not take the image for known",
        fact("mm_cache_hits_after", 2.0),
        DIFFERENT,
        FAILS,
    ),
    Imposter(
        "desync-every-image-fails",
        DESYNC,
        "other-cause",
        "another image fails as well",
        reply("control: another image", 500, "Internal server error"),
        DIFFERENT,
        (*FAILS, "two-caches"),
    ),
    Imposter(
        "desync-nothing-logged",
        DESYNC,
        "other-cause",
        "image X fails, and EngineCore misses nothing",
        logged(no_assertions),
        DIFFERENT,
        ("step-1", "step-2", "for-ever"),
    ),
    Imposter(
        "desync-as-0.12.0-hangs",
        "mm-cache-desync-0.12.0",
        "other-release",
        "a release that hangs at the assertion passes for an affected one",
        released("0.24.0"),
        DIFFERENT,
        ("step-1", "assertion"),
    ),
    Imposter(
        "desync-lines-of-yesterday",
        DESYNC,
        "stale-log",
        "the log's lines are another process's, of before",
        logged(by_another),
        DIFFERENT,
        FAILS,
    ),
    Imposter(
        "desync-without-log",
        DESYNC,
        "absent-probe",
        "the log cannot be read",
        without("logs"),
        INCONCLUSIVE,
        ("step-1", "step-2", "for-ever"),
    ),
    Imposter(
        "desync-hits-torn",
        DESYNC,
        "torn-sample",
        "the second reading of the hits failed",
        fact("mm_cache_hits_after", None),
        INCONCLUSIVE,
        FAILS,
    ),
    Imposter(
        "desync-slow-machine",
        DESYNC,
        "overload",
        "image X is not refused with 500: it is not answered in time",
        reply(AGAIN, None, "no complete answer in 20.0 s"),
        DIFFERENT,
        ("step-1", "assertion"),
    ),
)

OVERFLOW, FIXED = "encoder-cache-overflow-0.11.0", "encoder-cache-overflow-0.23.0"
LOOP = "run_busy_loop"

ENCODER = (
    Imposter(
        "overflow-fixed-as-affected",
        FIXED,
        "other-release",
        "a release with the fix passes for one without",
        released("0.11.0"),
        NOT_REPRODUCED,
    ),
    Imposter(
        "overflow-larger-cache-by-hand",
        "encoder-cache-overflow-larger-budget",
        "healthy",
        "the larger budget is the server's own option, not the mitigation",
        unmitigated,
        INCONCLUSIVE,
    ),
    Imposter(
        "overflow-mitigated-resized",
        "encoder-cache-overflow-limit-at-start",
        "trigger-failed",
        (
            "the image was made as small as the model's largest: the mitigation met "
            "nothing"
        ),
        reply(BIG, 200, tokens=232),
        INCONCLUSIVE,
    ),
    Imposter(
        "overflow-fixed-resized",
        FIXED,
        "trigger-failed",
        "the image was made smaller, and answered",
        reply(BIG, 200, tokens=232),
        INCONCLUSIVE,
    ),
    Imposter(
        "overflow-control-resized",
        FIXED,
        "trigger-failed",
        "the request's own limit does not hold: the control became small",
        reply(CONTROL, 200, tokens=232),
        INCONCLUSIVE,
    ),
    Imposter(
        "overflow-refused-for-something-else",
        FIXED,
        "trigger-failed",
        "the image is refused, for the length of the prompt",
        reply(
            BIG,
            400,
            "Input length (5000) exceeds model's maximum context length (4096).",
        ),
        INCONCLUSIVE,
    ),
    Imposter(
        "overflow-full-cache",
        OVERFLOW,
        "other-cause",
        "the budget is above the image: it fits, and waits for room",
        each_thread(LOOP, locals_of("schedule", encoder_compute_budget="1024")),
        DIFFERENT,
        ("cpu",),
    ),
    Imposter(
        "overflow-tokens-scheduled",
        OVERFLOW,
        "other-cause",
        "the steps schedule tokens: it computes, slowly",
        each_thread(
            LOOP,
            lambda thread: (
                locals_of(
                    "schedule", total_num_scheduled_tokens="512", num_new_tokens="512"
                )(thread),
                locals_of("_process_engine_step", model_executed="True")(thread),
            ),
        ),
        DIFFERENT,
        ("hang", "cpu"),
    ),
    Imposter(
        "overflow-without-stacks",
        OVERFLOW,
        "absent-probe",
        "py-spy is not permitted",
        without("stacks"),
        INCONCLUSIVE,
        ("cpu",),
    ),
    Imposter(
        "overflow-torn-budget",
        OVERFLOW,
        "torn-sample",
        "every reading of the budget shows another object",
        each_thread(
            LOOP, locals_of("schedule", encoder_compute_budget="<Scheduler at 0x7f>")
        ),
        INCONCLUSIVE,
        ("cpu",),
    ),
    Imposter(
        "overflow-fixed-slow",
        FIXED,
        "overload",
        "the refusal did not come in time",
        reply(BIG, None, "no complete answer in 20.0 s"),
        DIFFERENT,
    ),
    Imposter(
        "overflow-slow-control",
        OVERFLOW,
        "overload",
        "the image that fits is not answered in time either",
        reply(CONTROL, None, "no complete answer in 20.0 s"),
        INCONCLUSIVE,
        ("cpu",),
    ),
)

IMPOSTERS = [*CACHES, *ENCODER]
