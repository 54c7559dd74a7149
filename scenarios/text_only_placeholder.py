"""vLLM: an image placeholder typed into a text ends the engine."""

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Requests,
    Severity,
    Upstream,
    UpstreamState,
    claim,
    issue,
    quote,
    upgrade,
    vllm_killed as killed,
)
from mmrepro.scenario.more import crash

PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
"""The special tokens that stand for an image in a Qwen2-VL's prompt."""
BROKEN = PLACEHOLDER.replace("pad", "pat")
REPORT = issue("vllm#32656", "an image placeholder in a text-only prompt crashes the engine")


class TextOnlyPlaceholder(killed.KilledByRequest):
    """An image placeholder typed into a text, without an image, ends the engine.

    What: A text-only request holds the model's image placeholder, as a user may type or paste it.
    It gets HTTP 500, EngineCore is dead, and the server ends some seconds later. With a letter of
    the placeholder changed the same text is answered.

    Why: The tokenizer makes special tokens of the text. The positions of M-RoPE are worked out by
    counting them: for each the next image's grid is taken from a list, which is empty.
    """

    name = "text-only-placeholder"
    release, affected = "0.14.0", ">=0.11.0,<0.15.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(UpstreamState.NOT_LOOKED_UP, REPORT, note="by runs it is gone in 0.15.0")
    references = (REPORT,)
    refusal, died_of = "placeholder|image", "an index of an empty list"
    log_patterns = killed.of_the_killer(
        sent=r"details: prompt: '[^']*what is <\|vision_start\|><\|image_pad\|>",
        raised=r"IndexError: list index out of range|failed with error 'list index out of range'",
        through=r"t, h, w = image_grid_thw\[image_index\]",
    )
    sources = (
        quote(
            "vllm/model_executor/models/qwen2_vl.py",
            "Qwen2VLForConditionalGeneration.get_mrope_input_positions",
            "one grid for each placeholder among the tokens, wherever it comes from",
            "image_nums =",
            "image_grid_thw[image_index]",
        ),
    )
    mitigations = (
        upgrade("0.15.0", "upgrade to 0.15.0: positions go by the images that came with it"),
    )

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(killed.CONTROL, text=f"what is {BROKEN} ?")
        await drive.ask(killed.KILLER, text=f"what is {PLACEHOLDER} ?")
        await crash.watch(drive)

    def came_in(self, logs: Logs, requests: Requests) -> Finding:
        """Where it is answered, that it became three tokens, and not one a letter."""
        sent, control = requests.first(killed.KILLER), requests.first(killed.CONTROL)
        if sent.prompt_tokens is None or control.prompt_tokens is None:
            return super().came_in(logs, requests)
        fewer, told = control.prompt_tokens - sent.prompt_tokens, len("<|image_pat|>") - 1
        return Finding.of(fewer == told, f"{fewer} tokens fewer than {killed.CONTROL}")

    claims = (
        claim(
            "index",
            "M-RoPE's positions take the grid of an image that there is none of",
            REPORT,
            by=("first-error", killed.THROUGH),
            given="arrived",
            refutable_on=affected,
        ),
        claim("one-request", "one text ends the engine", REPORT, by="symptom", given="arrived",
              refutable_on=affected),
    )  # fmt: skip


SCENARIO = TextOnlyPlaceholder()
