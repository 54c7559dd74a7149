"""Imposters of ghost-key-eviction."""

from dataclasses import replace

from mmrepro.failure.signature import Outcome

from imposters import Imposter
from imposters.vllm_edits import (
    TOO_LONG,
    by_another,
    each_thread,
    elsewhere,
    fact,
    gate_metric,
    late,
    logged,
    mitigated,
    no_assertions,
    other_key,
    released,
    reply,
    torn_key,
    unflipped,
    unmitigated,
    without,
)

INCONCLUSIVE = Outcome.INCONCLUSIVE
NOT_REPRODUCED, DIFFERENT = Outcome.NOT_REPRODUCED, Outcome.DIFFERENT_FAILURE

GHOST = "ghost-key-eviction-0.23.0"
HUNG = (
    "alive-and-green",
    "no-answer",
    "idle-metrics",
    "added-request",
    "cpu",
    "user-space",
)
LOG = ("last-line", "assertion-before")
STEPS = ("step-1", "step-2")
STACK = ("stack",)
CODE = ("first-layer", "second-layer")
"""Claims about the installed class alone, whatever a server did."""

OF_SERVERS = (
    Imposter(
        "ghost-healthy-mitigated-by-nothing",
        "ghost-key-eviction-flip-cache-size",
        "healthy",
        "the larger cache was the server's own option, not a flip",
        unflipped,
        INCONCLUSIVE,
        STEPS,
    ),
    Imposter(
        "ghost-too-long-answered",
        "ghost-key-eviction-0.24.0",
        "trigger-failed",
        "the request that is to be refused is answered",
        reply(TOO_LONG, 200, tokens=2144),
        INCONCLUSIVE,
    ),
    Imposter(
        "ghost-refused-for-something-else",
        "ghost-key-eviction-0.24.0",
        "trigger-failed",
        "it is refused, for its number of images",
        reply(TOO_LONG, 400, "At most 0 image(s) may be provided in one prompt."),
        INCONCLUSIVE,
    ),
    Imposter(
        "ghost-no-eviction",
        "ghost-key-eviction-0.24.0",
        "trigger-failed",
        "the first image is still in the cache after thirty others",
        fact("mm_cache_hits_after", 4.0),
        INCONCLUSIVE,
        STEPS,
    ),
    Imposter(
        "ghost-cache-off-by-hand",
        "ghost-key-eviction-disable-mm-cache",
        "trigger-failed",
        "the cache is off by an option of the server, not by the mitigation",
        unmitigated,
        INCONCLUSIVE,
        ("step-1",),
    ),
    Imposter(
        "ghost-promise-kept",
        "ghost-key-eviction-0.24.0",
        "trigger-failed",
        "EngineCore held the image: the log names none that is missing",
        logged(no_assertions),
        INCONCLUSIVE,
        STEPS,
    ),
    Imposter(
        "ghost-patched-without-a-miss",
        "ghost-key-eviction-patch",
        "trigger-failed",
        "the patched server was never asked for what it does not hold",
        logged(no_assertions),
        INCONCLUSIVE,
        STEPS,
    ),
    Imposter(
        "ghost-flip-of-the-cache-without-effect",
        "ghost-key-eviction-flip-mm-cache",
        "trigger-failed",
        "the cache was flipped off, and images were looked up in it all the same",
        gate_metric("vllm:mm_cache_queries_total", 4.0),
        INCONCLUSIVE,
        ("step-1",),
    ),
    Imposter(
        "ghost-flip-of-the-refusal-without-effect",
        "ghost-key-eviction-flip-refusal",
        "trigger-failed",
        "the first request, which is to be answered, is refused for its images",
        reply(
            "image X, short", 400, "At most 0 image(s) may be provided in one prompt."
        ),
        INCONCLUSIVE,
    ),
    Imposter(
        "ghost-cure-without-effect",
        "ghost-key-eviction-disable-mm-cache",
        "trigger-failed",
        "the cache is on all the same: images were looked up in it",
        gate_metric("vllm:mm_cache_queries_total", 4.0),
        INCONCLUSIVE,
        ("step-1",),
    ),
    Imposter(
        "ghost-cure-of-a-fixed-release",
        "ghost-key-eviction-0.24.0",
        "healthy",
        "the patch is applied to a release that has it",
        mitigated("patch"),
        NOT_REPRODUCED,
        ("step-1", "step-2", "fixed-hang"),
    ),
    Imposter(
        "ghost-hang-elsewhere",
        GHOST,
        "other-cause",
        "the thread that receives requests waits for one, in every sample",
        each_thread("process_input_sockets", elsewhere),
        DIFFERENT,
        (*HUNG, *LOG, *STEPS),
    ),
    Imposter(
        "ghost-another-key",
        GHOST,
        "other-cause",
        "the key that is evicted is not the one that the log names",
        each_thread("process_input_sockets", other_key),
        DIFFERENT,
        (*HUNG, *LOG, *STEPS, *STACK),
    ),
    Imposter(
        "ghost-as-0.12.0-hangs",
        "ghost-key-eviction-0.12.0",
        "other-release",
        "a release that hangs at the assertion passes for an affected one",
        released("0.23.0"),
        DIFFERENT,
        (
            "alive-and-green",
            "no-answer",
            "idle-metrics",
            "added-request",
            *LOG[1:],
            "step-1",
        ),
    ),
    Imposter(
        "ghost-fixed-as-affected",
        "ghost-key-eviction-0.24.0",
        "other-release",
        "a release with the fix passes for one without",
        released("0.23.0"),
        NOT_REPRODUCED,
        STEPS,
    ),
    Imposter(
        "ghost-assertion-of-yesterday",
        GHOST,
        "stale-log",
        "the assertion is another process's, of before",
        logged(by_another),
        DIFFERENT,
        (*HUNG, "last-line", *STEPS, *STACK),
    ),
    Imposter(
        "ghost-healthy-with-yesterdays-assertion",
        "ghost-key-eviction-0.24.0",
        "stale-log",
        "the assertion is another process's: nothing was promised today",
        logged(by_another),
        INCONCLUSIVE,
        STEPS,
    ),
    Imposter(
        "ghost-without-stacks",
        GHOST,
        "absent-probe",
        "py-spy is not permitted",
        without("stacks"),
        INCONCLUSIVE,
        (*HUNG, *LOG, *STEPS),
    ),
    Imposter(
        "ghost-cache-not-seen",
        "ghost-key-eviction-0.24.0",
        "absent-probe",
        "the metrics of the gate are not there: is there a cache at all?",
        without("metrics", "gate"),
        INCONCLUSIVE,
        ("step-1",),
    ),
    Imposter(
        "ghost-torn-key",
        GHOST,
        "torn-sample",
        "every reading of the key shows another object",
        each_thread("process_input_sockets", torn_key),
        INCONCLUSIVE,
        (*HUNG, *LOG, *STEPS, *STACK),
    ),
    Imposter(
        "ghost-slow-machine",
        GHOST,
        "overload",
        "the later request is answered: it was slow, not hung",
        late,
        DIFFERENT,
        (*HUNG, *LOG, *STEPS, *STACK, "cause", "not-atomic", "goes-on"),
    ),
)
IMPOSTERS = tuple(
    replace(one, still_true=(*one.still_true, *CODE)) for one in OF_SERVERS
)
