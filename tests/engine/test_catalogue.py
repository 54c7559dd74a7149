"""The cheap half of the further failures, on real engines; the whole catalogue: every
night."""

import pytest
from live import RunOnce

pytestmark = pytest.mark.engine

ON_VLLM = (
    pytest.param("stop-token-oov", marks=pytest.mark.slow),
    pytest.param("grammar-backend-latch", marks=pytest.mark.slow),
    pytest.param("embeds-mrope", marks=pytest.mark.slow),
    pytest.param("capacity-never", marks=pytest.mark.slow),  # it waits for a deadline
    "uuid-alias",
)
"""All of 0.23.0, which is warm already."""
CLAIMS = {
    "stop-token-oov": "unchecked",
    "grammar-backend-latch": "latched",
    "embeds-mrope": "assertion",
    "capacity-never": "null-block",
    "uuid-alias": "sole-key",
}


@pytest.mark.parametrize("name", ON_VLLM)
def test_it_is_reproduced(run_once: RunOnce, name: str) -> None:
    run = run_once(name)
    assert (run.outcome, run.exit_code) == ("reproduced", 0), run.why
    assert run.claim(CLAIMS[name])["status"] == "confirmed"
    assert run.document["left_behind"] == []


def test_the_control_behaves_and_the_cure_prevents(run_once: RunOnce) -> None:
    """A backend by name: the second grammar is answered by the one it was validated
    for."""
    run = run_once("grammar-backend-latch", "--mitigation", "one-backend")
    assert (run.outcome, run.exit_code) == ("not-reproduced", 0), run.why
    assert {r["status"] for r in run.requests("")} == {200}
