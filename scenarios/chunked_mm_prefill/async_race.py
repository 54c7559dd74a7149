"""vLLM 0.12.0 and 0.13.0: the mask of image rows is rewritten before the device has
read it."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from mmrepro.engines.models import REPORTED_IMAGE_TOKENS
from mmrepro.engines.vllm import EMULATED_STREAM
from mmrepro.scenario import (
    Check,
    Claim,
    Drive,
    Evidence,
    Factor,
    FailureClass,
    Finding,
    Logs,
    Requests,
    RunFacts,
    Scenario,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    cause,
    common,
    cure,
    precondition,
    pull,
    quote,
    row,
    symptom,
    upgrade,
    vllm,
)
from mmrepro.scenario.definition import bind
from mmrepro.scenario.more import (
    Declared,
    Mitigation,
    Patch,
    StandIn,
    TinyDotsOCR,
    crash,
    guarded,
)
from mmrepro.scenario.parts import Hypothesis, many
from mmrepro.scenarios.chunked_mm_prefill import report, stream
from mmrepro.scenarios.chunked_mm_prefill.report import FIRST, SECOND
from mmrepro.scenarios.chunked_mm_prefill.stream import (
    BUDGET,
    IMAGE_TOKENS,
    LARGE_BUDGET,
)

THREE_STEPS, _TWO_STEPS, _ONE_STEP = (1204, 392), (560, 420), (336, 336)
"""(width, height) in pixels of images of 602, 300 and 144 tokens, prefilled in so many
steps."""
ABOVE = (2408, 392)
"""1204 tokens, more than the larger budget as well."""

GATE, SILENT = "gate: image 2", report.TWO
ANSWER_TOKENS = 6
_REPORTED_BUDGET = 2048
IMAGE_DEADLINE_S = 60.0
"""The gate's images are smaller, so its latencies say little; a hang is not looked
for."""

_SYNC = "--no-async-scheduling"
_LARGE = f"--max-num-batched-tokens {LARGE_BUDGET}"
_BARRIER = Patch(
    "ordered_preprocess",
    StandIn(
        name="ordered_preprocess",
        replaces="GPUModelRunner._preprocess: the event after which the host may reuse "
        "its buffers is recorded once more after it",
        why="the mitigation under test, as vllm#28706 and vllm#31373 do it",
    ),
)
_MASK = re.compile(r"(\d+|None) image rows prepared, (\d+|None) read")


def failing(evidence: Evidence) -> str:
    """Label of the first large image that was not answered; A's if all were."""
    failed = [
        r
        for label in (FIRST, SECOND)
        for r in evidence.labelled(label)
        if not r.answered
    ]
    return failed[0].label if failed else FIRST


def _image_in_steps(requests: Requests, logs: Logs) -> Finding:
    """An image went in three steps; where it was never answered, in several steps
    another one did.

    A step that kills EngineCore is an image's last.
    """
    most = max(stream.image_steps(logs), key=len)
    least = 3 if requests.first(FIRST).answered else 2
    rows = " + ".join(map(str, most))
    return Finding.of(
        len(most) >= least, f"an image went in {len(most)} steps: {rows} rows"
    )


def _images_of_one_step(requests: Requests, logs: Logs) -> Finding:
    """Those of the trigger had as many tokens as the gate's, and none went in two
    steps."""
    sizes = {
        requests.first(label).prompt_tokens for label in (GATE, SILENT, FIRST, SECOND)
    }
    if None in sizes:
        return Finding.unknown("the server did not say how long each prompt was")
    most = max(map(len, stream.image_steps(logs)))
    prompts = f"prompts of {', '.join(map(str, sorted(filter(None, sizes))))} tokens"
    return Finding.of(
        len(sizes) == most == 1, f"{prompts}, an image in at most {most} steps"
    )


_TWO_BUFFERS = pull(
    "vllm#31841",
    "Two buffers for is_mm_embed",
    "the fix that lets steps overlap again, in 0.14.0",
)


class AsyncRace(Scenario):
    """With --async-scheduling an image in several chunks kills EngineCore.

    What: With --async-scheduling and an image of more tokens than
    --max-num-batched-tokens, EngineCore dies in masked_scatter: the device reads a mask
    of image rows that belongs to the next step. Images of two steps are answered, but
    with their embeddings in the wrong rows, without an error. A larger budget hides it.

    Why: To overlap host and device, asynchronous scheduling prepares a step while the
    device is still busy with the one before. The host writes which rows of the batch
    belong to images into one buffer, is_mm_embed, and queues a copy of it to the
    device, behind the vision tower. An event tells when such buffers may be written
    again; in 0.12.0 and 0.13.0 it is recorded before this copy is queued, so nothing
    stops the host from writing the next step's rows into the buffer before the device
    has read this step's. An image in one chunk comes to no harm, because the steps
    after it write rows that are no image rows either: a large budget leaves the buffer
    as unprotected as it was. vllm#16229 introduced the buffer, vllm#28706 protected it,
    vllm#28579 undid that, vllm#31373 protected it again, vllm#31841 made two of it
    (0.14.0). On a CPU all this is invisible, because each operation is done when it is
    launched; a stand-in queues device work as a GPU does (fidelity emulated-stream).
    """

    name, variant = "chunked-mm-prefill", "async-race"
    large, two_steps = THREE_STEPS, _TWO_STEPS
    release, affected = "0.12.0", ">=0.12.0,<0.14.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(UpstreamState.FIXED, _TWO_BUFFERS, "2026-11-24", "0.14.0")
    model = TinyDotsOCR(image_tokens=4 * IMAGE_TOKENS)
    """The encoder cache is sized by the model's largest image. It shall hold all images
    of a run: one that has to wait for room in it hangs 0.12.0 here, which is another
    failure."""
    max_model_len = 4096
    server = f"""{report.SERVER} --async-scheduling --enable-prefix-caching
        --max-num-batched-tokens {BUDGET}"""
    options: ClassVar[Mapping[str, str]] = {
        "at-once": "the two large images are sent together, not one after the other",
        "above-budget": (
            f"they have 1204 tokens each, more than the larger budget, {LARGE_BUDGET}"
        ),
    }
    patches = (EMULATED_STREAM,)
    log_patterns = {**report.LOG_PATTERNS, **stream.PATTERNS}
    key_log_patterns = (
        "stream-overwrite",
        "stream-silent",
        "stream-error",
        "engine-dead",
    )
    references = (
        report.SAME_CRASH,
        pull(
            "vllm#31373",
            "The event that protects input buffers covers _preprocess again",
            release="0.14.0",
        ),
        _TWO_BUFFERS,
    )
    sources = (
        quote(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner._gather_mm_embeddings",
            (
                "the host writes the mask of image rows into one buffer and queues "
                "its copy"
            ),
            "is_mm_embed[",
            "is_mm_embed.cpu",
            "copy_to_gpu",
        ),
        quote(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner.synchronize_input_prep",
            "the event that protects reused buffers; in 0.12.0 and 0.13.0 _preprocess, "
            "which calls the above, runs after it",
            "synchronize()",
            "record()",
        ),
    )
    mitigations: ClassVar[tuple[Mitigation, ...]] = (
        cure(
            "sync-scheduling",
            _SYNC,
            f"{_SYNC}: a step is prepared when the one before has ended",
        ),
        cure(
            "barrier",
            description=(
                "vllm#31373 as a patch: the event is recorded after the mask's copy"
            ),
            patch=_BARRIER,
        ),
        cure(
            "budget",
            _LARGE,
            "a budget above the image's tokens; it hides the race and does not end it",
        ),
        upgrade("0.14.0", "upgrade to 0.14.0 (vllm#31373, vllm#31841)"),
    )
    factors: ClassVar[tuple[Factor, ...]] = (
        Factor(
            "async-scheduling",
            "prepare a step while the one before still runs",
            "--async-scheduling",
            server_args=(_SYNC,),
            claim="on throughout in the report, never tried without",
            took_effect=stream.one_after_another,
        ),
        Factor(
            "prefix-caching",
            "reuse the KV cache of equal prompt beginnings",
            "--enable-prefix-caching",
            server_args=("--no-enable-prefix-caching",),
            claim="the report's hypothesis 1: refuted there",
            took_effect=vllm.cache_says("enable_prefix_caching", "False"),
        ),
        Factor(
            "chunk-budget",
            f"tokens of a step; the image has {IMAGE_TOKENS}",
            f"--max-num-batched-tokens {BUDGET}",
            server_args=tuple(_LARGE.split()),
            claim='the report\'s hypothesis 2: "confirmed", 8192 alone cures it',
            took_effect=stream.larger_steps,
        ),
        Factor(
            "eager-mode",
            "whether graphs and compilation are off",
            "--enforce-eager",
            server_args=("--no-enforce-eager",),
            claim="the report's hypothesis 3: CUDA graphs, never tried alone",
            took_effect=vllm.graphs_ran,
        ),
        Factor(
            "image-size",
            f"images against a budget of {BUDGET} tokens",
            f"images of {IMAGE_TOKENS} and 300 tokens",
            cure="images of 144 tokens",
            took_effect=_images_of_one_step,
        ),
    )

    async def gate(self, drive: Drive) -> None:
        for label, seed in (("gate: image 1 (cold)", 11), (GATE, 12)):
            await drive.chat(
                label, images=[drive.picture(f"gate-{seed}", seed, _ONE_STEP)]
            )
        await drive.chat("gate: text only", text="hello")

    async def trigger(self, drive: Drive) -> None:
        large = ABOVE if "above-budget" in drive.options else self.large
        sizes = {SILENT: self.two_steps, FIRST: large, SECOND: large}
        asked = []
        for seed, (label, size) in enumerate(sizes.items(), 21):
            picture = drive.picture(
                label, seed, _ONE_STEP if "image-size" in drive.flips else size
            )
            request = drive.traffic.chat(
                label,
                text="hi",
                images=[picture],
                max_tokens=ANSWER_TOKENS,
                deadline_s=IMAGE_DEADLINE_S,
            )
            asked.append(asyncio.ensure_future(request))
            if label != FIRST or "at-once" not in drive.options:
                await asyncio.gather(*asked)
        await crash.watch(drive)

    preconditions: ClassVar[tuple[Declared, ...]] = (
        precondition(
            "steps begin while the device still works at those before",
            stream.steps_overlap,
            removed_by=("sync-scheduling", "async-scheduling"),
        ),
        precondition(
            "an image is prefilled in several steps",
            _image_in_steps,
            removed_by=("budget", "chunk-budget", "image-size"),
        ),
    )
    symptoms = (
        *common.dies_of(
            failing,
            (
                "an image of three steps gets HTTP 500, and later requests are not "
                "answered"
            ),
            live=True,
        ),
        report.mismatch("image rows than embeddings", symptom),
        symptom(
            "steps before the crash put embeddings into wrong rows without any error",
            stream.silent_steps,
            required=False,
        ),
    )

    @symptom(
        "in the step that failed, the device read other image rows than the host "
        "prepared"
    )
    def wrong_mask(self, logs: Logs) -> Finding:
        errors = logs.lines("stream-error")
        if not errors:
            return Finding.of(
                False,
                stream.counted(logs, "stream-error", "failed on the device").observed,
            )
        text = errors[0].text.removeprefix("mmrepro-stream: ")
        counts = _MASK.search(text)
        if counts is None or "None" in counts.groups():
            return Finding.unknown(f"the step failed before its mask was read: {text}")
        return Finding.of(counts[1] != counts[2], text)

    @cause("the host wrote to is_mm_embed while the device had a copy of it yet to do")
    def unordered_buffer(self, logs: Logs) -> Finding:
        """Whatever came of it; where a step failed, of that step's own copy."""
        counted = stream.counted(
            logs, "stream-overwrite", "writes to a buffer still to be read"
        )
        failed = logs.search("stream-error", r"step (\d+): device error")
        if not failed or counted.truth is not Truth.MET:
            return counted
        step, lines = failed[0][1], logs.lines("stream-overwrite")
        if any(f"of step {step} is queued" in line.text for line in lines):
            return counted
        if logs.count("stream-overwrite") > len(lines):
            return Finding.unknown(
                f"what was written to the mask of step {step} was not kept"
            )
        return Finding.of(
            False, f"none to the mask of step {step}, which failed; {counted.observed}"
        )

    works_after = (
        common.answered(SILENT, FIRST, SECOND, crash.AFTER),
        stream.right_rows,
    )
    in_effect: ClassVar[Mapping[str, Check]] = {
        "sync-scheduling": stream.one_after_another,
        "barrier": stream.ordered,
        "budget": stream.larger_steps,
    }
    """What is seen of each mitigation where it takes effect."""

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Nothing is said of a mitigation that was not seen to take effect."""
        for name in sorted(facts.mitigations & self.in_effect.keys()):
            seen = guarded(bind(self.in_effect[name], self, facts), evidence)
            if seen.truth is not Truth.MET:
                return Finding.unknown(
                    f"{name} was not seen to take effect: {seen.observed}"
                )
        return super().cause_remains(evidence, facts)

    wrong_rows = row("steps with embeddings in wrong rows", "silent-steps", "none")
    rows = (*report.rows(failing), wrong_rows)
    claims: ClassVar[tuple[Claim, ...]] = report.RACE_CLAIMS

    ablation_hypotheses: ClassVar[tuple[Hypothesis, ...]] = report.HYPOTHESES


_REPORTED_CURE = stream.larger_steps_than(_REPORTED_BUDGET)
_CURES = [one.name for one in AsyncRace.mitigations]


class FullSize(AsyncRace):
    """The same with the report's own sizes: 4819 tokens of image, 2048 of a step."""

    variant = "full-size"
    large, two_steps = (1708, 2212), (1120, 1680)
    """4819 and 2400 tokens."""
    model = TinyDotsOCR(image_tokens=12_400)
    max_model_len = 8192
    server = f"""{report.SERVER} --async-scheduling --enable-prefix-caching --skip-mm-profiling
        --max-num-batched-tokens {_REPORTED_BUDGET}"""
    options: ClassVar[Mapping[str, str]] = {}
    mitigations = (
        *(one for one in AsyncRace.mitigations if one.name != "budget"),
        cure(
            "budget",
            "--max-num-batched-tokens 8192",
            "the report's cure, with its own number",
        ),
    )
    in_effect: ClassVar[Mapping[str, Check]] = {
        **AsyncRace.in_effect,
        "budget": _REPORTED_CURE,
    }
    claims = (
        *(
            replace(
                one,
                given=tuple(
                    _REPORTED_CURE if given is stream.larger_steps else given
                    for given in many(one.given)
                ),
            )
            for one in AsyncRace.claims
            if one.id not in ("cure-holds-at-once", "cure-holds-above", "three-flags")
        ),
        *report.size_claims(REPORTED_IMAGE_TOKENS, _REPORTED_BUDGET),
    )
    factors = ()
    ablation_hypotheses = ()
    preconditions = tuple(
        replace(one, removed_by=tuple(n for n in one.removed_by if n in _CURES))
        for one in AsyncRace.preconditions
    )
