"""minivllm: an image that leaves a block half full fails in its prefill.

Run it:          mmrepro run ./odd_image.py
Judge it again:  mmrepro judge DIR --scenario ./odd_image.py --trust
"""

import re

from mmrepro.scenario import (
    Drive,
    Finding,
    LiveFacts,
    Logs,
    Reference,
    Requests,
    Scenario,
    answered,
    cause,
    claim,
    cure,
    precondition,
    row,
    some_requests_fail,
    symptom,
)
from mmrepro.scenario.more import TinyQwen3

WHOLE, FAILS, AFTER = (
    "image of 64 embeddings",
    "image of 6 embeddings",
    "text afterwards",
)
BLOCK, EMBEDDINGS = 16, 6
COUNTED = re.compile(r"slot_mapping has (\d+) entries for (\d+) tokens")
NOTE = Reference(
    id="Minivllm-Learn",
    title="Milestone note 1, bug 6",
    url="https://github.com/MDX-0003/Minivllm-Learn",
)


def last_block(tokens: int) -> int:
    """How many of ``tokens`` lie in the last block."""
    return (tokens - 1) % BLOCK + 1


class OddImage(Scenario):
    """An image whose embeddings do not fill whole blocks gets HTTP 500.

    What: An image of 6 embeddings gets HTTP 500; one of 64, and text, are answered.

    Why: The slots of the last block are counted from the text alone. Where the image
    fills whole blocks, that is the same number."""

    name = "odd-image"
    engine = "minivllm"
    release = "0.1"
    affected = ">=0.1"
    model = TinyQwen3()
    server = f"--fault slot-mapping --block-size {BLOCK} --check-contract=log"
    references = (NOTE,)
    log_patterns = {
        "refused": r"AssertionError: Slot mapping size must match number of tokens",
        "in-store": r'model\.py", line \d+, in store',
        "slot-count": r"contract violated: slot-count: ",
    }
    mitigations = (
        cure("fix", "--fix slot-mapping", "the last block is counted as it should be"),
    )

    async def trigger(self, drive: Drive) -> None:
        """An image that fills its blocks, one that does not, and text."""
        await drive.ask(WHOLE, image=drive.image_size)
        await drive.ask(FAILS, image=(84, 56))
        await drive.ask(AFTER, text="hello")

    @precondition(
        "the engine took in the image of 6 embeddings, which changes the last block"
    )
    def arrives(self, requests: Requests, logs: Logs) -> Finding:
        whole = requests.first(WHOLE).prompt_tokens
        if whole is None:
            return Finding.unknown(
                "the tokens of the larger image's prompt were not counted"
            )
        tokens = whole - 64 + EMBEDDINGS
        taken = [
            int(found[1]) for found in logs.search("added-request", r": (\d+) tokens")
        ]
        added = last_block(tokens) - last_block(tokens - EMBEDDINGS)
        said = (
            f"prompts of {taken} tokens; {tokens} have {added} of the image in the "
            "last block"
        )
        return Finding.of(tokens in taken and added > 0, said)

    symptoms = (
        symptom(
            "a larger image and text are answered",
            answered(WHOLE, AFTER),
            id="others-answered",
        ),
    )

    @symptom("the image of 6 embeddings gets HTTP 500")
    def request_fails(self, requests: Requests) -> Finding:
        sent = requests.first(FAILS)
        return Finding.of(
            sent.status == 500, f"HTTP {sent.status} {sent.error[:120]}".strip()
        )

    @cause("slots and tokens differ in number where keys and values are stored")
    def refused_in_store(self, logs: Logs) -> Finding:
        refused, stored = logs.count("refused"), logs.count("in-store")
        said = f"{refused} × the assertion, {stored} × a traceback through store()"
        return Finding.of(refused > 0 and stored > 0, said)

    @cause("what is missing is what the image adds to the last block", live=False)
    def short_by_the_image(self, logs: Logs) -> Finding:
        lines = [COUNTED.search(line.text) for line in logs.lines("slot-count")]
        counts = [(int(found[1]), int(found[2])) for found in lines if found]
        if not counts:
            return Finding.of(False, "the contract checker missed no slot")
        slots, tokens = counts[0]
        added = last_block(tokens) - last_block(tokens - EMBEDDINGS)
        said = (
            f"{slots} slots for {tokens} tokens; the image adds {added} to the last "
            "block"
        )
        return Finding.of(tokens - slots == added > 0, said)

    works_after = (answered(WHOLE, FAILS, AFTER),)
    rows = (
        row("image of 6 embeddings", "request-fails", healthy="200"),
        row(
            "a larger image, text", "others-answered", healthy="200", abnormal_if=False
        ),
    )
    claims = (
        claim("whole-blocks", "whole blocks hide it", NOTE, by="others-answered"),
        claim(
            "last-block",
            "the last block's tokens are derived from the text ids alone",
            NOTE,
            by="short-by-the-image",
            given="request-fails",
        ),
    )
    live_only = some_requests_fail()

    def exposure(self, facts: LiveFacts) -> Finding:
        if not facts.command:
            return Finding.unknown("the command line cannot be seen")
        on = facts.has(("--fault", "slot-mapping"))
        return Finding.of(
            on, f"the server runs with{'' if on else 'out'} --fault slot-mapping"
        )


SCENARIO = OddImage()
