"""vLLM 0.12.0 and 0.13.0: the mask of image rows is rewritten while the device has yet to read it.

The checks behind the variant ``async-race`` of chunked-mm-prefill, and the variant itself.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from mmrepro.engines.vllm import VllmEngine
from mmrepro.evidence import Evidence
from mmrepro.incident import ClaimResult, Fidelity, Reference, StandIn, SymptomRow
from mmrepro.models import TinyDotsOCR
from mmrepro.scenario import Factor, Mitigation, Patch, RunFacts, Scenario, SourceRef
from mmrepro.scenarios.chunked_mm_report import (
    MISMATCH,
    SAME_CRASH,
    hypotheses,
    race_claims,
    symptom_table,
)
from mmrepro.signature import Condition, Finding, Truth, checks
from mmrepro.signature import crash as deaths
from mmrepro.traffic.drive import Drive

if TYPE_CHECKING:
    from mmrepro.incident.ablation import Ablation

ROLE = VllmEngine.core_role

IMAGE_TOKENS = 602
BUDGET, LARGE_BUDGET = 256, 1024
"""The report's image and budgets, scaled by 8: 4819 tokens, 2048 and 8192."""
MODEL = TinyDotsOCR(image_tokens=4 * IMAGE_TOKENS)
"""The encoder cache is sized by the model's largest image. It shall hold all images of a run: one
that has to wait for room in it hangs 0.12.0 here, which is another failure."""
THREE_STEPS = (1204, 392)
"""(width, height) in pixels: 43 x 14 tokens, prefilled in three steps of 256."""
TWO_STEPS = (560, 420)
"""20 x 15 tokens, prefilled in two steps."""
ONE_STEP = (336, 336)
"""12 x 12 tokens: fits in a step."""

SILENT = "image of two steps"
FIRST = "image A, of three steps"
SECOND = "image B, of three steps"
ANSWER_TOKENS = 6
IMAGE_DEADLINE_S = 60.0
"""The gate's images are smaller, so its latencies say little; a hang is not looked for."""

STREAM = Patch(
    "emulated_stream",
    StandIn(
        name="emulated_stream",
        replaces="the order in which vLLM's CPU model runner does device work: work on weights, KV "
        "cache and device buffers is queued and runs in order, as late as the engine's own "
        "waiting allows, as a GPU's stream may; torch.Event and torch.cuda streams wait for that "
        "queue; the thread that waits for outputs waits only when they are wanted; attention "
        "lengths are read from the host's copies; attention is called without its opaque operator",
        why="a CPU does each operation at once, so that what the host does too early goes unseen. "
        "No line of the engine is changed. It shows that the engine does not order its work, not "
        "how often a GPU is late enough for it to matter",
    ),
    fidelity=Fidelity.EMULATED_STREAM,
    device="cpu",
)
BARRIER = Patch(
    "ordered_preprocess",
    StandIn(
        name="ordered_preprocess",
        replaces="GPUModelRunner._preprocess: the event after which the host may reuse its buffers "
        "is recorded once more after it",
        why="the mitigation under test, as vllm#28706 and vllm#31373 do it",
    ),
)

SYNC = ("--no-async-scheduling",)
LARGE = ("--max-num-batched-tokens", str(LARGE_BUDGET))

LOG_PATTERNS = {
    "stream-overwrite": r"mmrepro-stream: step \d+: overwrite: the host writes is_mm_embed",
    "stream-mask": r"mmrepro-stream: step \d+: mask: ",
    "stream-silent": r"mmrepro-stream: step \d+: silent: ",
    "stream-error": r"mmrepro-stream: step \d+: device error ",
}
MASK = re.compile(r"(\d+|None) image rows prepared, (\d+|None) read")


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

    name = "chunked-mm-prefill"
    variant = "async-race"
    release = "0.12.0"
    affected = ">=0.12.0,<0.14.0"
    model = MODEL
    max_model_len = 4096
    server = shlex.join(
        (
            "--trust-remote-code",
            "--async-scheduling",
            "--enable-prefix-caching",
            "--max-num-seqs",
            "8",
            "--max-num-batched-tokens",
            str(BUDGET),
            "--limit-mm-per-prompt",
            '{"image":1}',
        )
    )
    patches = (STREAM,)
    mitigations = (
        Mitigation(
            name="sync-scheduling",
            description="--no-async-scheduling: a step is prepared when the one before has ended",
            server_args=SYNC,
        ),
        Mitigation(
            name="barrier",
            description="vllm#31373 as a patch: the event is recorded after the mask's copy",
            patch=BARRIER,
        ),
        Mitigation(
            name="budget",
            description="a budget above the image's tokens; it hides the race and does not end it",
            server_args=LARGE,
        ),
        Mitigation(
            name="release",
            description="upgrade to 0.14.0 (vllm#31373, vllm#31841)",
            release="0.14.0",
        ),
    )
    factors = (
        Factor(
            "async-scheduling",
            "prepare a step while the one before still runs",
            "--async-scheduling",
            server_args=SYNC,
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
            server_args=LARGE,
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
            claim="",
        ),
    )
    sources = (
        SourceRef(
            file="vllm/v1/worker/gpu_model_runner.py",
            qualname="GPUModelRunner._gather_mm_embeddings",
            note="the host writes the mask of image rows into one buffer and queues its copy",
            highlight=("is_mm_embed[", "is_mm_embed.cpu", "copy_to_gpu"),
        ),
        SourceRef(
            file="vllm/v1/worker/gpu_model_runner.py",
            qualname="GPUModelRunner.synchronize_input_prep",
            note="the event that protects reused buffers; in 0.12.0 and 0.13.0 _preprocess, which "
            "calls the above, runs after it",
            highlight=("synchronize()", "record()"),
        ),
    )
    references = (
        SAME_CRASH,
        Reference(
            id="vllm#31373",
            title="The event that protects input buffers covers _preprocess again",
            url="https://github.com/vllm-project/vllm/pull/31373",
            note="the fix, in 0.14.0",
        ),
        Reference(
            id="vllm#31841",
            title="Two buffers for is_mm_embed",
            url="https://github.com/vllm-project/vllm/pull/31841",
            note="the fix that lets steps overlap again, in 0.14.0",
        ),
    )
    log_patterns = {**deaths.LOG_PATTERNS, **MISMATCH, **LOG_PATTERNS}
    key_log_patterns = (
        "stream-overwrite",
        "stream-silent",
        "stream-error",
        "engine-dead",
    )

    async def gate(self, drive: Drive) -> None:
        first = drive.picture("gate-1", 11, ONE_STEP)
        await drive.chat("gate: image 1 (cold)", images=[first])
        await drive.chat("gate: image 2", images=[drive.picture("gate-2", 12, ONE_STEP)])
        await drive.chat("gate: text only", text="hello")

    async def trigger(self, drive: Drive) -> None:
        small = "image-size" in drive.flips
        for label, seed, size in (
            (SILENT, 21, TWO_STEPS),
            (FIRST, 22, THREE_STEPS),
            (SECOND, 23, THREE_STEPS),
        ):
            picture = drive.picture(label, seed, ONE_STEP if small else size)
            await drive.traffic.chat(
                label,
                text="hi",
                images=[picture],
                max_tokens=ANSWER_TOKENS,
                deadline_s=IMAGE_DEADLINE_S,
            )
        await deaths.watch(drive)

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "request-500",
                "symptom",
                "an image of three steps gets HTTP 500, and later requests are not answered",
                lambda e: deaths.requests_fail_with_500(e, failing(e)),
            ),
            Condition(
                "core-died",
                "symptom",
                "EngineCore is gone, and the API server says EngineDeadError",
                lambda e: deaths.core_died(e, ROLE),
            ),
            Condition(
                "health-503",
                "symptom",
                "/health answers 503 from then on, every time",
                deaths.health_is_503,
            ),
            Condition(
                "first-error",
                "symptom",
                "the first exception of the log is EngineCore's, in masked_scatter: more "
                "image rows than embeddings; all others are its echoes",
                lambda e: deaths.first_error(e, ROLE, "mask-mismatch"),
            ),
            Condition(
                "wrong-mask",
                "symptom",
                "in the step that failed, the device read other image rows than the host prepared",
                wrong_mask,
            ),
            Condition(
                "unordered-buffer",
                "cause",
                "the host wrote to is_mm_embed while the device had a copy of it yet to do",
                unordered_buffer,
            ),
            Condition(
                "silent-steps",
                "symptom",
                "steps before the crash put embeddings into wrong rows without any error",
                silent_steps,
                required=False,
            ),
            Condition(
                "server-exits",
                "symptom",
                "the whole server ends by itself",
                deaths.server_exits,
                required=False,
            ),
        ]

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        for label in (SILENT, FIRST, SECOND, deaths.AFTER):
            sent = evidence.labelled(label)
            if not sent:
                return Finding.unknown(f"{label}: not sent")
            if not sent[0].answered:
                return Finding.of(False, f"{label}: {sent[0].status} {sent[0].error[:120]}")
        silent = silent_steps(evidence)
        if silent.truth is Truth.UNKNOWN:
            return silent
        if silent.truth is Truth.MET:
            return Finding.of(False, f"all answered, but wrongly: {silent.observed}")
        return Finding.of(True, f"all images are answered; {silent.observed}")

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        silent = silent_steps(evidence)
        return [
            *symptom_table(evidence, failing(evidence), ROLE),
            SymptomRow(
                check="steps with embeddings in wrong rows",
                healthy="none",
                observed=silent.observed,
                abnormal=None if silent.truth is Truth.UNKNOWN else silent.truth is Truth.MET,
            ),
        ]

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        crashed = deaths.first_error(evidence, ROLE, "mask-mismatch")
        return race_claims(evidence, facts, crashed, unordered_buffer(evidence), FIRST, SECOND)

    def hypotheses(self, ablation: Ablation) -> list[ClaimResult]:
        return hypotheses(ablation)


def failing(evidence: Evidence) -> str:
    """Label of the first large image that was not answered; A's if all were."""
    for label in (FIRST, SECOND):
        if any(not record.answered for record in evidence.labelled(label)):
            return label
    return FIRST


def unordered_buffer(evidence: Evidence) -> Finding:
    """What the stand-in saw of the buffer, whatever came of it."""
    writes = checks.log_count(evidence, "stream-overwrite")
    watched = checks.log_count(evidence, "stream-mask")
    if writes is None or watched is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    if not watched:
        return Finding.unknown("no step with an image was watched: is the stand-in there?")
    text = f"{watched} steps with image rows watched, {writes} writes to a buffer still to be read"
    lines = checks.log_lines(evidence, "stream-overwrite")
    if lines:
        text += f"; first: {lines[0].text.removeprefix('mmrepro-stream: ')}"
    return Finding.of(writes > 0, text, *checks.log_files(evidence))


def wrong_mask(evidence: Evidence) -> Finding:
    failed = checks.log_count(evidence, "stream-error")
    if failed is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    lines = checks.log_lines(evidence, "stream-error")
    if not lines and not checks.log_count(evidence, "stream-mask"):
        return Finding.unknown("no step with an image was watched: is the stand-in there?")
    if not lines:
        return Finding.of(False, "no step failed on the device", *checks.log_files(evidence))
    text = lines[0].text.removeprefix("mmrepro-stream: ")
    counts = MASK.search(text)
    if counts is None or "None" in counts.groups():
        return Finding.unknown(f"the step failed before its mask was read: {text}")
    return Finding.of(counts[1] != counts[2], text, *checks.log_files(evidence))


def silent_steps(evidence: Evidence) -> Finding:
    count = checks.log_count(evidence, "stream-silent")
    watched = checks.log_count(evidence, "stream-mask")
    if count is None or watched is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    if not watched:
        return Finding.unknown("no step with an image was watched: is the stand-in there?")
    text = f"{count} of {watched} steps with image rows put embeddings into wrong rows silently"
    lines = checks.log_lines(evidence, "stream-silent")
    if lines:
        text += f"; first: {lines[0].text.removeprefix('mmrepro-stream: ')}"
    return Finding.of(count > 0, text, *checks.log_files(evidence))
