"""The contract probe inside a real vLLM: it names what breaks, before the engine does,
and no more.

The device stream of the race is emulated; the probe is the same with and without it.
"""

import re

import pytest
from live import RunOnce

pytestmark = pytest.mark.engine

VIOLATED = re.compile(
    r"contract violated: (?P<what>[a-z-]+): (?P<marked>\d+) tokens are marked "
    r"for (?P<rows>\d+) rows"
)


@pytest.mark.slow
def test_it_names_the_mask_before_the_race_kills_0_12_0(run_once: RunOnce):
    died = run_once("chunked-mm-prefill", "--variant", "async-race", "--contract-probe")
    assert (died.outcome, died.exit_code) == ("reproduced", 0), died.why
    names = [stand_in["name"] for stand_in in died.document["stand_ins"]]
    assert names == ["emulated_stream", "contract_probe"]
    lines = (
        (died.folder / "evidence" / "engine.log")
        .read_text(errors="replace")
        .splitlines()
    )
    broken = [(at, m) for at, line in enumerate(lines) if (m := VIOLATED.search(line))]
    assert {m["what"] for _, m in broken} == {"mask-rows"}, "only the mask is wrong"
    fatal = next(
        at for at, line in enumerate(lines) if "Traceback (most recent call" in line
    )
    more = [at for at, m in broken if int(m["marked"]) > int(m["rows"])]
    assert more, "masked_scatter fails on more marked tokens than rows"
    assert more[0] < fatal, "the probe says so first"
    assert [at for at, m in broken if int(m["marked"]) < int(m["rows"])], (
        "the silent steps as well"
    )
    quoted = [line["text"] for line in died.document["log_lines"]]
    assert any("contract violated: mask-rows" in text for text in quoted)
