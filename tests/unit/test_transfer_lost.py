"""transfer-lost: what two readings of a server's gauges say, on the recorded run,
changed."""

import pytest
from imposters import CORPUS
from mmrepro.failure.signature import Truth
from mmrepro.failure.signature.decide import guarded
from mmrepro.probes.data import MetricsData
from mmrepro.reports import load
from mmrepro.scenarios import transfer_lost
from mmrepro.traffic.evidence import Evidence


@pytest.fixture
def evidence() -> Evidence:
    return load(CORPUS / "transfer-lost-0.33.0.zip").evidence


def held(evidence: Evidence) -> Truth:
    return guarded(transfer_lost._held_by_nobody, evidence).truth


def set_gauge(evidence: Evidence, name: str, value: float) -> None:
    """Give a gauge another value in the last reading."""
    *_, (_, data) = evidence.results(MetricsData, "check")
    for sample in data.samples:
        if sample.name == name:
            sample.value = value


@pytest.mark.parametrize(
    ("name", "value"),
    [("vllm:num_requests_running", 1.0), ("vllm:kv_cache_usage_perc", 0.0)],
)
def test_what_runs_or_holds_nothing_is_no_lost_transfer(
    evidence: Evidence, name: str, value: float
) -> None:
    assert held(evidence) is Truth.MET
    set_gauge(evidence, name, value)
    assert held(evidence) is Truth.NOT_MET


def test_one_reading_says_nothing_of_what_stays(evidence: Evidence) -> None:
    last = next(
        result
        for result in reversed(evidence.probes)
        if isinstance(result.data, MetricsData)
    )
    evidence.probes.remove(last)
    assert held(evidence) is Truth.UNKNOWN
