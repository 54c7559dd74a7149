"""chunked-mm-prefill with the report's own sizes: its claims on the recorded runs,
changed."""

import re
from collections.abc import Callable

import pytest
from imposters import CORPUS
from mmrepro.probes.data import LogsData
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence

Change = Callable[[Evidence], object]
FULL = load_scenario("chunked-mm-prefill").with_variant("full-size")
OURS = ("as-dumped", "in-two-chunks", "first-chunk-passes", "budget-cures")


def told(name: str, change: Change = lambda _: None) -> dict[str, str]:
    run = load(CORPUS / f"chunked-mm-prefill-full-size-{name}.zip")
    change(run.evidence)
    results = FULL.claim_results(run.evidence, facts_of(run, FULL))
    return {claim.id: claim.status.value for claim in results if claim.id in OURS}


def line(pattern: str, old: str, new: str) -> Change:
    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            for one in data.matches[pattern]:
                one.text = one.text.replace(old, new)

    return change


def small_steps(evidence: Evidence) -> None:
    """No step has more rows than the failing budget."""
    for _, data in evidence.results(LogsData):
        for one in data.matches["stream-mask"]:
            one.text = re.sub(r"mask: \d+", "mask: 2046", one.text)


@pytest.mark.parametrize(
    ("name", "change", "claim", "status"),
    [
        ("0.12.0", lambda _: None, "as-dumped", "confirmed"),
        (
            "0.12.0",
            line("placeholders", "offset=2", "offset=3"),
            "as-dumped",
            "refuted",
        ),
        (
            "0.12.0",
            line("placeholders", "length=4819", "length=602"),
            "as-dumped",
            "refuted",
        ),
        ("0.12.0", line("budget", "=2048", "=8192"), "as-dumped", "refuted"),
        ("0.12.0", line("placeholders", "Placeholder", ""), "as-dumped", "not-tested"),
        (
            "barrier",
            line("stream-mask", "mask: 725 e", "mask: 0 e"),
            "in-two-chunks",
            "not-tested",
        ),
        ("barrier", line("budget", "=2048", "=8192"), "in-two-chunks", "not-tested"),
        (
            "0.12.0",
            line("stream-error", "2046 emb", "99 emb"),
            "first-chunk-passes",
            "not-tested",
        ),
        ("budget", small_steps, "budget-cures", "not-tested"),
    ],
)
def test_one_number_changed(name: str, change: Change, claim: str, status: str) -> None:
    assert told(name, change)[claim] == status


def test_a_step_before_it_would_have_let_the_first_chunk_pass() -> None:
    """The failed step is the second in a row with image rows: so its image's first one
    passed."""

    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            lines = data.matches["stream-mask"]
            for one, step in zip(lines[-2:], (27, 28), strict=True):
                one.text = (
                    f"mmrepro-stream: step {step}: mask: 2046 embeddings, 2046 prepared"
                )

    assert told("0.12.0", change)["first-chunk-passes"] == "confirmed"
