"""What async-race's stand-ins write to the log, read: steps, masks of image rows,
overwrites."""

import re

from mmrepro.scenario import Check, Finding, Logs, Missing, Requests, Truth

IMAGE_TOKENS = 602
BUDGET, LARGE_BUDGET = 256, 1024
"""The report's image and budgets, scaled by 8: 4819 tokens, 2048 and 8192."""

_PIXELS = 28**2
"""That become one token."""

PATTERNS = {
    "stream-overwrite": r"mmrepro-stream: step \d+: overwrite: the host writes is_mm_embed",
    "stream-steps": r"mmrepro-stream: steps: ",
    "stream-mask": r"mmrepro-stream: step \d+: mask: ",
    "stream-silent": r"mmrepro-stream: step \d+: silent: ",
    "stream-error": r"mmrepro-stream: step \d+: device error ",
    "ordered": r"mmrepro: the event was recorded after GPUModelRunner\._preprocess",
}
_WATCHED = "the stand-in watches Model Runner V1's CPU runner, and no other"
_STEPS = re.compile(r"steps: (\d+) begun, (\d+) with the device still busy")
_IMAGE_STEP = r"step (\d+): mask: (\d+) embeddings"


def counted(logs: Logs, pattern: str, what: str) -> Finding:
    """Raises Missing: no step was watched, so there is nothing to count."""
    steps, count, lines = (
        logs.count("stream-mask"),
        logs.count(pattern),
        logs.lines(pattern),
    )
    if not steps:
        raise Missing(f"no step with an image was watched: {_WATCHED}")
    first = (
        f"; first: {lines[0].text.removeprefix('mmrepro-stream: ')}" if lines else ""
    )
    return Finding.of(
        count > 0, f"{steps} steps with image rows watched, {count} {what}{first}"
    )


def steps_overlap(logs: Logs) -> Finding:
    """Steps began while the device had work of those before: all but idle ones, if it
    is so."""
    told = [_STEPS.search(line.text) for line in logs.lines("stream-steps")]
    counts = [(int(m[1]), int(m[2])) for m in told if m]
    begun, busy = max(counts, default=(0, 0))
    if begun < 2:
        raise Missing(f"{begun} steps were watched: {_WATCHED}")
    return Finding.of(
        busy > 0, f"{busy} of {begun} steps begun with the device still busy"
    )


def one_after_another(logs: Logs) -> Finding:
    return opposite(steps_overlap(logs))


def opposite(found: Finding) -> Finding:
    return Finding.of(found.truth is Truth.NOT_MET, found.observed)


def image_steps(logs: Logs) -> list[list[int]]:
    """Image rows of the steps that had some, those of steps in a row together: one
    image's.

    Raises Missing: no step with an image was watched.
    """
    images: list[list[int]] = []
    last = 0
    for found in logs.search("stream-mask", _IMAGE_STEP):
        step, rows = int(found[1]), int(found[2])
        if not rows:
            continue
        if images and step == last + 1:
            images[-1].append(rows)
        else:
            images.append([rows])
        last = step
    if not images:
        raise Missing(f"no step with an image was watched: {_WATCHED}")
    return images


def larger_steps_than(budget: int) -> Check:
    """A step had more image rows than the failing budget has tokens."""

    def larger(logs: Logs) -> Finding:
        rows = max(map(max, image_steps(logs)))
        return Finding.of(
            rows > budget, f"at most {rows} image rows in a step, of {budget} tokens"
        )

    return larger


larger_steps = larger_steps_than(BUDGET)


def above_larger_budget(requests: Requests) -> Finding:
    """A large image had more tokens than the larger budget."""
    pixels = 0
    for request in requests.within("trigger"):
        for image in request.images:
            pixels = max(pixels, image.width * image.height)
    tokens = pixels // _PIXELS
    return Finding.of(
        tokens > LARGE_BUDGET, f"an image of {tokens} tokens, {LARGE_BUDGET} a step"
    )


def first_chunk_passed(logs: Logs) -> Finding:
    """Of the image whose step failed: it was not its first one."""
    rows = image_steps(logs)[-1]
    failed = logs.search(
        "stream-error", r"step (\d+): device error with (\d+) embeddings"
    )
    if not failed or int(failed[0][2]) != rows[-1]:
        raise Missing("the step that failed is not the last that was watched")
    steps = " + ".join(map(str, rows))
    told = f"step {failed[0][1]} failed, number {len(rows)} of its image: {steps} rows"
    return Finding.of(len(rows) > 1, told)


def ordered(logs: Logs) -> Finding:
    count = logs.count("ordered")
    return Finding.of(
        count > 0, f"{count} × the event was recorded after the mask's copy"
    )


def silent_steps(logs: Logs) -> Finding:
    return counted(logs, "stream-silent", "with embeddings in wrong rows, and no error")


def right_rows(logs: Logs) -> Finding:
    return opposite(silent_steps(logs))
