"""vLLM 0.12.0 and 0.13.0: the mask of image rows is rewritten before the device has read it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mmrepro.engines.vllm import EMULATED_STREAM
from mmrepro.scenario import (
    Drive,
    Evidence,
    Factor,
    Finding,
    Logs,
    Missing,
    Patch,
    Scenario,
    StandIn,
    TinyDotsOCR,
    Truth,
    answered,
    cause,
    crash,
    cure,
    dies_of,
    pull,
    quote,
    row,
    symptom,
    upgrade,
)
from mmrepro.scenarios.chunked_mm_prefill import report
from mmrepro.scenarios.chunked_mm_prefill.report import FIRST, SECOND

if TYPE_CHECKING:
    pass

IMAGE_TOKENS = 602
BUDGET, LARGE_BUDGET = 256, 1024
"""The report's image and budgets, scaled by 8: 4819 tokens, 2048 and 8192."""
THREE_STEPS, TWO_STEPS, ONE_STEP = (1204, 392), (560, 420), (336, 336)
"""(width, height) in pixels of images of 602, 300 and 144 tokens, prefilled in so many steps."""

SILENT = "image of two steps"
ANSWER_TOKENS = 6
IMAGE_DEADLINE_S = 60.0
"""The gate's images are smaller, so its latencies say little; a hang is not looked for."""

SYNC = "--no-async-scheduling"
LARGE = f"--max-num-batched-tokens {LARGE_BUDGET}"
BARRIER = Patch(
    "ordered_preprocess",
    StandIn(
        name="ordered_preprocess",
        replaces="GPUModelRunner._preprocess: the event after which the host may reuse its buffers "
        "is recorded once more after it",
        why="the mitigation under test, as vllm#28706 and vllm#31373 do it",
    ),
)
STREAM = {
    "stream-overwrite": r"mmrepro-stream: step \d+: overwrite: the host writes is_mm_embed",
    "stream-mask": r"mmrepro-stream: step \d+: mask: ",
    "stream-silent": r"mmrepro-stream: step \d+: silent: ",
    "stream-error": r"mmrepro-stream: step \d+: device error ",
}
"""What the emulated stream writes to the log."""
MASK = re.compile(r"(\d+|None) image rows prepared, (\d+|None) read")


def failing(evidence: Evidence) -> str:
    """Label of the first large image that was not answered; A's if all were."""
    failed = [r for label in (FIRST, SECOND) for r in evidence.labelled(label) if not r.answered]
    return failed[0].label if failed else FIRST


def counted(logs: Logs, pattern: str, what: str) -> Finding:
    """Raises Missing: no step was watched, so there is nothing to count."""
    steps, count, lines = logs.count("stream-mask"), logs.count(pattern), logs.lines(pattern)
    if not steps:
        raise Missing("no step with an image was watched: is the stand-in there?")
    first = f"; first: {lines[0].text.removeprefix('mmrepro-stream: ')}" if lines else ""
    return Finding.of(count > 0, f"{steps} steps with image rows watched, {count} {what}{first}")


def silent_steps(logs: Logs) -> Finding:
    return counted(logs, "stream-silent", "with embeddings in wrong rows, and no error")


def right_rows(logs: Logs) -> Finding:
    silent = silent_steps(logs)
    return Finding.of(silent.truth is Truth.NOT_MET, silent.observed)


class AsyncRace(Scenario):
    """With --async-scheduling an image in several chunks kills EngineCore.

    What: With --async-scheduling and an image of more tokens than --max-num-batched-tokens,
    EngineCore dies in masked_scatter: the device reads a mask of image rows that belongs to the
    next step. Images of two steps are answered, but with their embeddings in the wrong rows,
    without an error. A larger budget hides it.

    Why: To overlap host and device, asynchronous scheduling prepares a step while the device is
    still busy with the one before. The host writes which rows of the batch belong to images
    into one buffer, is_mm_embed, and queues a copy of it to the device, behind the vision
    tower. An event tells when such buffers may be written again; in 0.12.0 and 0.13.0 it is
    recorded before this copy is queued, so nothing stops the host from writing the next step's
    rows into the buffer before the device has read this step's. An image in one chunk comes to
    no harm, because the steps after it write rows that are no image rows either: a large budget
    leaves the buffer as unprotected as it was. vllm#16229 introduced the buffer, vllm#28706
    protected it, vllm#28579 undid that, vllm#31373 protected it again, vllm#31841 made two of
    it (0.14.0). On a CPU all this is invisible, because each operation is done when it is
    launched; a stand-in queues device work as a GPU does (fidelity emulated-stream).
    """

    name, variant = "chunked-mm-prefill", "async-race"
    release, affected = "0.12.0", ">=0.12.0,<0.14.0"
    model = TinyDotsOCR(image_tokens=4 * IMAGE_TOKENS)
    """The encoder cache is sized by the model's largest image. It shall hold all images of a run:
    one that has to wait for room in it hangs 0.12.0 here, which is another failure."""
    max_model_len = 4096
    server = f"""{report.SERVER} --async-scheduling --enable-prefix-caching
        --max-num-batched-tokens {BUDGET}"""
    patches = (EMULATED_STREAM,)
    log_patterns = {**report.LOG_PATTERNS, **STREAM}
    key_log_patterns = ("stream-overwrite", "stream-silent", "stream-error", "engine-dead")
    references = (
        report.SAME_CRASH,
        pull(
            "vllm#31373",
            "The event that protects input buffers covers _preprocess again",
            release="0.14.0",
        ),
        pull(
            "vllm#31841",
            "Two buffers for is_mm_embed",
            "the fix that lets steps overlap again, in 0.14.0",
        ),
    )
    sources = (
        quote(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner._gather_mm_embeddings",
            "the host writes the mask of image rows into one buffer and queues its copy",
            "is_mm_embed[",
            "is_mm_embed.cpu",
            "copy_to_gpu",
        ),
        quote(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner.synchronize_input_prep",
            "the event that protects reused buffers; in 0.12.0 and 0.13.0 _preprocess, which calls "
            "the above, runs after it",
            "synchronize()",
            "record()",
        ),
    )
    mitigations = (
        cure("sync-scheduling", SYNC, f"{SYNC}: a step is prepared when the one before has ended"),
        cure(
            "barrier",
            description="vllm#31373 as a patch: the event is recorded after the mask's copy",
            patch=BARRIER,
        ),
        cure(
            "budget",
            LARGE,
            "a budget above the image's tokens; it hides the race and does not end it",
        ),
        upgrade("0.14.0", "upgrade to 0.14.0 (vllm#31373, vllm#31841)"),
    )
    factors = (
        Factor(
            "async-scheduling",
            "prepare a step while the one before still runs",
            "--async-scheduling",
            server_args=(SYNC,),
            claim="on throughout in the report, never tried without",
        ),
        Factor(
            "prefix-caching",
            "reuse the KV cache of equal prompt beginnings",
            "--enable-prefix-caching",
            server_args=("--no-enable-prefix-caching",),
            claim="the report's hypothesis 1: refuted there",
        ),
        Factor(
            "chunk-budget",
            f"tokens of a step; the image has {IMAGE_TOKENS}",
            f"--max-num-batched-tokens {BUDGET}",
            server_args=tuple(LARGE.split()),
            claim='the report\'s hypothesis 2: "confirmed", 8192 alone cures it',
        ),
        Factor(
            "eager-mode",
            "whether graphs and compilation are off",
            "--enforce-eager",
            server_args=("--no-enforce-eager",),
            claim="the report's hypothesis 3: CUDA graphs, never tried alone",
        ),
        Factor(
            "image-size",
            f"images against a budget of {BUDGET} tokens",
            f"images of {IMAGE_TOKENS} and 300 tokens",
            cure="images of 144 tokens",
        ),
    )

    async def gate(self, drive: Drive) -> None:
        for label, seed in (("gate: image 1 (cold)", 11), ("gate: image 2", 12)):
            await drive.chat(label, images=[drive.picture(f"gate-{seed}", seed, ONE_STEP)])
        await drive.chat("gate: text only", text="hello")

    async def trigger(self, drive: Drive) -> None:
        sizes = {SILENT: TWO_STEPS, FIRST: THREE_STEPS, SECOND: THREE_STEPS}
        for seed, (label, size) in enumerate(sizes.items(), 21):
            picture = drive.picture(label, seed, ONE_STEP if "image-size" in drive.flips else size)
            await drive.traffic.chat(
                label,
                text="hi",
                images=[picture],
                max_tokens=ANSWER_TOKENS,
                deadline_s=IMAGE_DEADLINE_S,
            )
        await crash.watch(drive)

    symptoms = (
        *dies_of(
            failing,
            "an image of three steps gets HTTP 500, and later requests are not answered",
            live=True,
        ),
        report.mismatch("image rows than embeddings", symptom),
        symptom(
            "steps before the crash put embeddings into wrong rows without any error",
            silent_steps,
            required=False,
        ),
    )

    @symptom("in the step that failed, the device read other image rows than the host prepared")
    def wrong_mask(self, logs: Logs) -> Finding:
        errors = logs.lines("stream-error")
        if not errors:
            return Finding.of(False, counted(logs, "stream-error", "failed on the device").observed)
        text = errors[0].text.removeprefix("mmrepro-stream: ")
        counts = MASK.search(text)
        if counts is None or "None" in counts.groups():
            return Finding.unknown(f"the step failed before its mask was read: {text}")
        return Finding.of(counts[1] != counts[2], text)

    @cause("the host wrote to is_mm_embed while the device had a copy of it yet to do")
    def unordered_buffer(self, logs: Logs) -> Finding:
        """Whatever came of it."""
        return counted(logs, "stream-overwrite", "writes to a buffer still to be read")

    works_after = (answered(SILENT, FIRST, SECOND, crash.AFTER), right_rows)
    wrong_rows = row("steps with embeddings in wrong rows", "silent-steps", "none")
    rows = (*report.rows(failing), wrong_rows)
    claims = report.RACE_CLAIMS

    ablation_hypotheses = report.HYPOTHESES
