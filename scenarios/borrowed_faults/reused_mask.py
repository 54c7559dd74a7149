"""vLLM's reused mask, as minivllm has it: a step is prepared in the mask that one still reads."""

import asyncio

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Metrics,
    RequestRecord,
    Requests,
    Severity,
    answered,
    cause,
    endpoints_green,
    issue,
    precondition,
    pull,
    some_requests_fail,
    symptom,
)
from mmrepro.scenario.minivllm import AFTER, MinivllmFault
from mmrepro.scenario.more import crash, in_log, not_logged

TOGETHER = tuple(f"image {n} and a long text" for n in "1234")
TEXT = "x" * 1820
"""In steps of 96 a request's last one has room for a few rows of the next image, of 64."""
SCATTER = "Number of elements of source < number of ones in mask"
"""On a CPU; a GPU prints the words of ``masked_scatter_size_check`` and fails all that follows."""


def lost(sent: RequestRecord) -> bool:
    """It failed by a device-side assert, its own or an earlier one."""
    return sent.status == 500 and crash.ASSERT_TRIGGERED in sent.error


class ReusedMask(MinivllmFault):
    """The next step is prepared in the mask that this step still reads.

    What: Requests with images that are prefilled in chunks beside each other end in masked_scatter
    or get wrong embeddings; alone, in one step, they are answered.

    Why: With asynchronous scheduling the next prefill step is prepared before this one has run.
    There is one mask buffer for both: this step scatters its embeddings by the next one's mask.
    Where that marks more tokens, masked_scatter refuses; else nobody notices. On a GPU the buffer
    is pinned memory, its copy waits behind the vision tower, and the host is there before it; a
    CPU, which is never late, is given the order of a GPU that is.
    """

    name, variant = "borrowed-faults", "reused-mask"
    failure_class, severity = FailureClass.REQUESTS_FAIL, Severity.HIGH
    origin = "vllm#30624"
    real = "; see chunked-mm-prefill --variant async-race"
    server = """--max-batched-tokens 96 --num-blocks 600 --no-prefix-caching --check-contract=log
        --vision-ms 40"""
    references = (
        issue(
            "vllm#30624",
            "`masked_scatter_size_check` failed when running Qwen3VLMoE",
            "the real thing is chunked-mm-prefill, variant async-race",
        ),
        pull("vllm#31841", "Two buffers for is_mm_embed", release="0.14.0"),
    )
    log_patterns = {
        "scatter-error": r"RuntimeError: .*" + SCATTER + r"|masked_scatter_size_check: block: ",
        "mask-rows": r"contract violated: mask-rows: ",
    }
    key_log_patterns = ("mask-rows", "scatter-error")
    live_only = some_requests_fail()

    async def trigger(self, drive: Drive) -> None:
        asked = (
            drive.ask(label, text=TEXT, image=drive.picture(label, i))
            for i, label in enumerate(TOGETHER, 1)
        )
        await asyncio.gather(*asked)
        await drive.ask(AFTER)

    @precondition("a step that an image begins in was prepared while one with images had not run")
    def prepared_ahead(self, metrics: Metrics) -> Finding:
        names = ["minivllm:image_steps_ahead_total"]
        before, *_, after = metrics.readings(names, "gate", "check")
        return Finding.of(after > before, f"such steps: {after - before:.0f}")

    def image_500(self, requests: Requests) -> Finding:
        sent = [requests.first(label) for label in TOGETHER]
        scattered = [r for r in sent if r.status == 500 and (SCATTER in r.error or lost(r))]
        return Finding.of(bool(scattered), "; ".join(f"{r.label}: {r.reply}" for r in sent))

    def text_after(self, requests: Requests) -> Finding:
        """A device-side assert ends what CUDA can do in a process: then no text is answered."""
        text = requests.first(AFTER)
        if any(lost(requests.first(label)) for label in TOGETHER):
            return Finding.of(lost(text), f"the device is lost; {AFTER}: {text.reply}")
        return answered(AFTER)(requests)

    symptoms = (
        symptom("requests with an image get HTTP 500 from masked_scatter", image_500),
        symptom(
            "text is answered afterwards, unless it was a device-side assert",
            text_after,
            id="text-answered",
        ),
        endpoints_green(),
    )
    causes = (in_log("the log holds masked_scatter's refusal", "scatter-error"),)

    # The contract's words are there only with --check-contract.
    @cause(
        "the contract names a step whose mask marks more tokens than it has embeddings",
        live="optional",
    )
    def mask_of_another_step(self, logs: Logs) -> Finding:
        steps = logs.search("mask-rows", r"(\d+) tokens are marked for (\d+) rows")
        beyond = [step[0] for step in steps if int(step[1]) > int(step[2])]
        text = f"{len(steps)} steps whose mask does not fit its rows"
        return Finding.of(bool(beyond), "; ".join([text, *beyond[:1]]))

    works_after = (answered(*TOGETHER, AFTER), not_logged("contract-violated"))
