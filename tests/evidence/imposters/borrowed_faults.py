"""borrowed-faults: what only looks like minivllm's copies of failures, or like their
fix."""

import re
from collections.abc import Callable, Iterator
from itertools import starmap

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.data import Frame, LogsData, StacksData, ThreadStack

from imposters import Imposter
from imposters.minivllm import (
    absent,
    as_if_faulty,
    both,
    cut_off,
    data,
    logged,
    metric,
    no_answer,
    only_the_end,
    replied,
    requests,
    switch_was_on,
    without_metric,
    yesterdays_requests,
)

DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
NOT_REPRODUCED = Outcome.NOT_REPRODUCED
FIXED = ("fixed",)


def recorded(variant: str) -> tuple[str, str]:
    return f"borrowed-faults-{variant}-0.1", f"borrowed-faults-{variant}-fix"


def healthy(variant: str) -> Iterator[Imposter]:
    """What each variant has: its fix, of which something is amiss."""
    fixed = recorded(variant)[1]
    yield Imposter(
        f"{variant}-nothing-planted",
        fixed,
        "healthy",
        "a server without the fault, of which nobody said so",
        as_if_faulty,
        NOT_REPRODUCED,
        FIXED,
    )
    yield Imposter(
        f"{variant}-fix-without-effect",
        fixed,
        "healthy",
        (
            "the option was given, and the engine says that the fault is on: nothing "
            "was prevented"
        ),
        switch_was_on,
        NOT_REPRODUCED,
    )


# ------------------------------------------------------------------ ghost-key-lru

OTHER_KEY = "cd" * 32


def core_stacks(change: Callable[[ThreadStack], object]) -> Callable[[Incident], None]:
    """Of the engine's thread, in each sample of the check."""

    def edit(incident: Incident) -> None:
        for stacks in data(incident, StacksData, "check"):
            assert isinstance(stacks, StacksData)
            for thread in (t for sample in stacks.samples for t in sample.threads):
                if any(frame.function.endswith("_loop") for frame in thread.frames):
                    change(thread)

    return edit


def keyed(printed: str) -> Callable[[Incident], None]:
    """``printed``: what py-spy shows of the key that is popped."""

    def change(thread: ThreadStack) -> None:
        for frame in thread.frames:
            if frame.function.endswith("pop_oldest"):
                frame.locals["digest"] = printed

    return core_stacks(change)


def in_the_model(thread: ThreadStack) -> None:
    calls = ("Engine.step", "ModelRunner.run", "Qwen3.forward")
    for name in calls:
        thread.frames[0:1] = [
            Frame(function=name, file="x.py", line=1),
            thread.frames[0],
        ]
    thread.frames = [f for f in thread.frames if "ImageCache" not in f.function]


def waiting(thread: ThreadStack) -> None:
    thread.active = thread.owns_gil = False
    loop = next(frame for frame in thread.frames if frame.function.endswith("_loop"))
    thread.frames = [
        Frame(function="Condition.wait", file="threading.py", line=1),
        loop,
    ]


def other_image_again(incident: Incident) -> None:
    for image in requests(incident, "image X again")[0].images:
        image.sha256 = OTHER_KEY


def ghost_key() -> Iterator[Imposter]:
    broken, fixed = recorded("ghost-key-lru")
    assertion = f"AssertionError: Expected a cached item for mm_hash='{OTHER_KEY}'"
    yield from starmap(
        Imposter,
        (
            (
                "ghost-key-lru-no-stacks",
                broken,
                "absent-probe",
                "py-spy was not to be had: a hang of which nobody saw the place",
                absent("stacks"),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-no-metrics",
                broken,
                "absent-probe",
                "the metrics were not to be had",
                absent("metrics"),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-torn-key",
                broken,
                "torn-sample",
                "py-spy read the key while it was replaced",
                keyed("64"),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-log-cut-off",
                broken,
                "torn-sample",
                "the log was being read when the time was over",
                cut_off("logs"),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-other-key",
                broken,
                "other-cause",
                "the key that cannot be evicted is that of another image",
                keyed(repr(OTHER_KEY)),
                DIFFERENT,
            ),
            (
                "ghost-key-lru-hangs-elsewhere",
                broken,
                "other-cause",
                "the engine's thread runs for ever in the model",
                core_stacks(in_the_model),
                DIFFERENT,
            ),
            (
                "ghost-key-lru-no-assertion",
                broken,
                "other-cause",
                "the image that was sent again was never missed",
                logged(cached_item_assertion=[]),
                DIFFERENT,
            ),
            (
                "ghost-key-lru-starved",
                broken,
                "overload",
                "the engine's thread waits for its turn on a busy machine",
                core_stacks(waiting),
                DIFFERENT,
            ),
            (
                "ghost-key-lru-yesterdays-assertion",
                broken,
                "stale-log",
                "the assertion in the log is yesterday's, of another image",
                logged(cached_item_assertion=[assertion]),
                DIFFERENT,
            ),
            (
                "ghost-key-lru-fixed-with-an-old-log",
                fixed,
                "stale-log",
                (
                    "the log begins with yesterday's server, whose fault was on and "
                    "whose image was missed"
                ),
                both(logged(cached_item_assertion=[assertion]), switch_was_on),
                NOT_REPRODUCED,
            ),
            (
                "ghost-key-lru-nothing-evicted",
                fixed,
                "trigger-failed",
                "the cache held all images",
                metric("mm_cache_evictions_total", 0),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-one-evicted",
                fixed,
                "trigger-failed",
                (
                    "only the gate's image was evicted, and never came the turn of "
                    "the refused one"
                ),
                metric("mm_cache_evictions_total", 1),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-not-too-long",
                fixed,
                "trigger-failed",
                "the first request was refused for its image",
                replied("image X, too long", 400, "cannot identify image file"),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-other-image",
                fixed,
                "trigger-failed",
                "another image was sent the second time",
                other_image_again,
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-evictions-untold",
                fixed,
                "other-release",
                "a release that does not count evictions",
                without_metric("mm_cache_evictions_total"),
                INCONCLUSIVE,
            ),
            (
                "ghost-key-lru-yesterdays-requests",
                fixed,
                "stale-log",
                "the log begins with the requests of yesterday's server",
                yesterdays_requests,
                INCONCLUSIVE,
            ),
        ),
    )


# ------------------------------------------------------------------ pad-value-key


def told_cached(
    label: str, tokens: int | None, phase: str = "trigger"
) -> Callable[..., None]:
    """What the server says that it took of these requests from the KV cache."""

    def edit(incident: Incident) -> None:
        for sent in requests(incident, label, phase):
            sent.cached_tokens = tokens

    return edit


def another_pair(incident: Incident) -> None:
    for phase in ("control", "trigger"):
        for image in requests(incident, "picture B", phase)[0].images:
            image.sha256 = f"{int(image.sha256, 16) ^ 1:064x}"


def answered_as(label: str, other: str, phase: str) -> Callable[[Incident], None]:
    def edit(incident: Incident) -> None:
        source = requests(incident, other, phase)[0]
        requests(incident, label, phase)[0].text = source.text

    return edit


def lost(phase: str) -> Callable[[Incident], None]:
    """B's answer did not come."""

    def edit(incident: Incident) -> None:
        sent = requests(incident, "picture B", phase)[0]
        sent.status, sent.timed_out, sent.error = (
            None,
            True,
            "no complete answer in 8.5 s",
        )

    return edit


def pad_value() -> Iterator[Imposter]:
    broken, fixed = recorded("pad-value-key")
    yield from starmap(
        Imposter,
        (
            (
                "pad-value-key-no-collision",
                broken,
                "trigger-failed",
                "the pictures' digests do not agree: B got A's answer in another way",
                another_pair,
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-fixed-no-collision",
                fixed,
                "trigger-failed",
                "the pictures' digests do not agree: nothing could fail",
                another_pair,
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-nothing-cached",
                fixed,
                "trigger-failed",
                "the server shares no prefixes: what was sent again is computed again",
                told_cached("gate: the image again", 0, "gate"),
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-text-cached",
                fixed,
                "trigger-failed",
                "only the text before the image is shared",
                told_cached("gate: the image again", 16, "gate"),
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-cache-untold",
                broken,
                "other-release",
                "a release that does not say what it took from the cache",
                both(told_cached("picture", None), told_cached("gate", None, "gate")),
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-computed",
                broken,
                "other-cause",
                "B gets A's answer, and nothing of it came from the cache",
                told_cached("picture B", 0),
                DIFFERENT,
            ),
            (
                "pad-value-key-all-wrong",
                broken,
                "other-cause",
                "C is answered as A as well: every picture is",
                answered_as("picture C", "picture A", "trigger"),
                DIFFERENT,
            ),
            (
                "pad-value-key-control-alike",
                broken,
                "healthy",
                (
                    "the control server too answers B as A: the pictures look alike "
                    "to the model"
                ),
                answered_as("picture B", "picture A", "control"),
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-control-silent",
                broken,
                "torn-sample",
                "the control server's answer to B was lost",
                lost("control"),
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-starved",
                fixed,
                "overload",
                "a machine with too much to do: B is not answered in time",
                lost("trigger"),
                INCONCLUSIVE,
            ),
            (
                "pad-value-key-log-unreadable",
                fixed,
                "absent-probe",
                "the log could not be read: nobody knows whether the fault was on",
                absent("logs"),
                NOT_REPRODUCED,
            ),
        ),
    )


# ------------------------------------------------------------------ kv-budget


def answer_of(tokens: int) -> Callable[[Incident], None]:
    """The answer that should grow ended after so many tokens."""

    def edit(incident: Incident) -> None:
        requests(incident, "an answer of 300 tokens")[0].completion_tokens = tokens

    return edit


def dead_of(error: str) -> Callable[[Incident], object]:
    """The engine's loop ended, for another reason."""
    label, message = ("an answer", "after"), f"the engine is dead: {error}"
    replies = (replied(name, 500, message) for name in label)
    return both(*replies, logged(nothing_to_preempt=[], raised_in_decode=[]))


def with_blocks(count: int) -> Callable[[Incident], object]:
    return both(
        metric("kv_cache_blocks", count), metric("kv_cache_blocks_configured", count)
    )


def kv_budget() -> Iterator[Imposter]:
    broken, fixed = recorded("kv-budget")
    nothing = "AssertionError: len(running) > 0: nothing is left to preempt"
    frame = '  File "scheduler.py", line 115, in _decode'
    yield from starmap(
        Imposter,
        (
            (
                "kv-budget-log-unreadable",
                broken,
                "absent-probe",
                "the log could not be read: the replies alone name the assertion",
                absent("logs"),
                INCONCLUSIVE,
            ),
            (
                "kv-budget-no-metrics",
                fixed,
                "absent-probe",
                "the metrics were not to be had: the cache may have any size",
                absent("metrics"),
                INCONCLUSIVE,
            ),
            (
                "kv-budget-log-cut-off",
                broken,
                "torn-sample",
                "the log was being read when the time was over",
                cut_off("logs"),
                INCONCLUSIVE,
            ),
            (
                "kv-budget-end-of-log",
                broken,
                "torn-sample",
                "only the log's end was read, and the assertion is not in it",
                only_the_end("nothing-to-preempt"),
                INCONCLUSIVE,
            ),
            (
                "kv-budget-other-death",
                broken,
                "other-cause",
                "the loop ended of something else",
                dead_of("RuntimeError: out of memory"),
                DIFFERENT,
            ),
            (
                "kv-budget-raised-elsewhere",
                broken,
                "other-cause",
                "the assertion, raised at another place",
                logged(raised_in_decode=[]),
                DIFFERENT,
            ),
            (
                "kv-budget-fixed-with-an-old-log",
                fixed,
                "stale-log",
                (
                    "the log begins with yesterday's server, whose fault was on and "
                    "whose loop ended"
                ),
                both(
                    logged(nothing_to_preempt=[nothing], raised_in_decode=[frame]),
                    switch_was_on,
                ),
                NOT_REPRODUCED,
            ),
            (
                "kv-budget-yesterdays-requests",
                fixed,
                "stale-log",
                "the log begins with the requests of yesterday's server",
                yesterdays_requests,
                INCONCLUSIVE,
            ),
            (
                "kv-budget-starved",
                fixed,
                "overload",
                "a machine with too much to do: the long answer does not come in time",
                no_answer("an answer of 300 tokens"),
                DIFFERENT,
            ),
            (
                "kv-budget-large-cache",
                fixed,
                "trigger-failed",
                "a cache of which a tenth holds all that was sent",
                with_blocks(2000),
                INCONCLUSIVE,
            ),
            (
                "kv-budget-short-answer",
                fixed,
                "trigger-failed",
                "the answer ended by itself, long before a tenth was full",
                answer_of(2),
                INCONCLUSIVE,
            ),
            (
                "kv-budget-budget-untold",
                fixed,
                "other-release",
                "a release that does not tell what its cache was configured as",
                without_metric("kv_cache_blocks_configured"),
                INCONCLUSIVE,
            ),
        ),
    )


# ------------------------------------------------------------------ reused-mask


def fewer_marked(incident: Incident) -> None:
    """Every step that the contract names marks fewer tokens than it has rows."""
    for log in data(incident, LogsData, "check"):
        assert isinstance(log, LogsData)
        for line in log.matches.get("mask-rows", []):
            line.text = re.sub(
                r"\d+ tokens are marked for \d+",
                "3 tokens are marked for 64",
                line.text,
            )


def reused_mask() -> Iterator[Imposter]:
    broken, fixed = recorded("reused-mask")
    scatter = "RuntimeError: Number of elements of source < number of ones in mask"
    rows = "contract violated: mask-rows: 37 tokens are marked for 0 rows"
    yield from starmap(
        Imposter,
        (
            (
                "reused-mask-log-unreadable",
                broken,
                "absent-probe",
                "the log could not be read: the replies alone name masked_scatter",
                absent("logs"),
                INCONCLUSIVE,
            ),
            (
                "reused-mask-no-metrics",
                fixed,
                "absent-probe",
                "the metrics were not to be had: no step may have been prepared ahead",
                absent("metrics"),
                INCONCLUSIVE,
            ),
            (
                "reused-mask-log-cut-off",
                broken,
                "torn-sample",
                "the log was being read when the time was over",
                cut_off("logs"),
                INCONCLUSIVE,
            ),
            (
                "reused-mask-right-mask",
                broken,
                "other-cause",
                "the contract names no step that marks more than it has",
                fewer_marked,
                DIFFERENT,
            ),
            (
                "reused-mask-unchecked",
                broken,
                "other-cause",
                "masked_scatter refuses, and the contract finds every mask right",
                logged(mask_rows=[], contract_violated=[]),
                DIFFERENT,
            ),
            (
                "reused-mask-other-error",
                broken,
                "other-cause",
                "images fail by another error of the device",
                both(
                    replied("image", 500, "CUDA error: device-side assert"),
                    logged(scatter_error=[]),
                ),
                DIFFERENT,
            ),
            (
                "reused-mask-fixed-with-an-old-log",
                fixed,
                "stale-log",
                (
                    "the log begins with yesterday's server, whose fault was on and "
                    "whose images failed"
                ),
                both(
                    logged(scatter_error=[scatter] * 3, mask_rows=[rows]), switch_was_on
                ),
                NOT_REPRODUCED,
            ),
            (
                "reused-mask-fixed-with-yesterdays-contract",
                fixed,
                "stale-log",
                "what the contract names in the log is yesterday's",
                logged(mask_rows=[rows], contract_violated=[rows]),
                DIFFERENT,
            ),
            (
                "reused-mask-starved",
                fixed,
                "overload",
                "a machine with too much to do: no image is answered in time",
                no_answer("image"),
                DIFFERENT,
            ),
            (
                "reused-mask-one-by-one",
                fixed,
                "trigger-failed",
                "no image's step was prepared before the one before it had run",
                metric("image_steps_ahead_total", 0),
                INCONCLUSIVE,
            ),
            (
                "reused-mask-only-in-the-gate",
                fixed,
                "trigger-failed",
                "such steps there were before the trigger, and none since",
                metric("image_steps_ahead_total", 9),
                INCONCLUSIVE,
            ),
            (
                "reused-mask-steps-untold",
                broken,
                "other-release",
                "a release that does not count such steps",
                without_metric("image_steps_ahead_total"),
                INCONCLUSIVE,
            ),
        ),
    )


IMPOSTERS = [
    *(
        one
        for variant in ("ghost-key-lru", "pad-value-key", "kv-budget", "reused-mask")
        for one in healthy(variant)
    ),
    *ghost_key(),
    *pad_value(),
    *kv_budget(),
    *reused_mask(),
]
