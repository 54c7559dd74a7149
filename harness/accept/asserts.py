"""What a device-side assert leaves in a log, held against the rules that are to recognise it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mmrepro.accept.judging import claims_judge, told
from mmrepro.accept.steps import Ended, Judged
from mmrepro.scenarios.chunked_mm_prefill import device_assert

TITLE = "device-side asserts on purpose, each in a child"


def judge_refusals(ended: Ended) -> Judged:
    """The reproducer's own claims, then those of the scenario that meets such an assert."""
    judged = claims_judge(TITLE, "CUDA: cudaErrorAssert", keys=("gpu",))(ended)
    if not judged.whole:
        return judged
    with tempfile.TemporaryDirectory(prefix="mmrepro-accept-") as folder:
        found = list(device_assert.claims(ended.document, Path(folder)))
    rules = [told(one, "the rules of chunked-mm-prefill") for one in found]
    return Judged([*judged.rows, *rules])
