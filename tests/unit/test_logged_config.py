"""What vLLM says of its configuration: its log's line and its metrics, not the options
it got."""

from typing import Any

import pytest
from made_up import drop, http, metrics, probed
from mmrepro.failure.signature import Truth
from mmrepro.failure.signature.views import Logs
from mmrepro.probes.data import LogLine, LogsData, MetricSample, MetricsData
from mmrepro.scenario import vllm
from mmrepro.traffic.evidence import Evidence, Missing

MET, NOT_MET = Truth.MET, Truth.NOT_MET
LINE = (
    "Initializing a V1 LLM engine (v0.12.0) with config: model='tiny', "
    "quantization=None, "
    "enforce_eager=True, kv_cache_dtype=auto, enable_prefix_caching=False, "
    "compilation_config={'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'level': 0}, last=7"
)


def log(*lines: str, counted: bool = True) -> Evidence:
    found = [
        LogLine(number=n, process="EngineCore pid=1", text=t)
        for n, t in enumerate(lines, 9)
    ]
    data = LogsData(
        file="engine.log",
        bytes_read=1,
        lines=99,
        matches={vllm.CONFIG: found} if found else {},
        match_counts={vllm.CONFIG: len(found)} if counted else {},
    )
    return Evidence(probes=[probed(http(200, 200)), probed(data)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enforce_eager", "True"),
        ("enable_prefix_caching", "False"),
        ("model", "'tiny'"),
    ],
)
def test_a_field_of_the_logged_configuration(field: str, value: str) -> None:
    assert vllm.logged_config(Logs(log(LINE)), field) == value
    assert vllm.config_says(field, value)(Logs(log(LINE))).truth is MET
    told = vllm.config_says(field, "other")(Logs(log(LINE, LINE)))
    assert told.truth is NOT_MET
    assert told.observed == f"EngineCore runs with {field}={value}"


@pytest.mark.parametrize(
    "field", ["eager", "caching", "enforce.eager", "level", "last", ""]
)
def test_what_is_no_whole_field_of_it_is_missing(field: str) -> None:
    """A part of a name, and a value that the kept line may have lost the end of."""
    with pytest.raises(Missing, match=f"EngineCore did not log its {field}"):
        vllm.logged_config(Logs(log(LINE)), field)


@pytest.mark.parametrize("evidence", [log(), log(counted=False), Evidence()])
def test_without_the_line_nothing_is_said(evidence: Evidence) -> None:
    with pytest.raises(Missing):
        vllm.logged_config(Logs(evidence), "enforce_eager")


def test_engines_that_differ_say_nothing() -> None:
    other = LINE.replace("enforce_eager=True", "enforce_eager=False")
    with pytest.raises(Missing, match="several values: False, True"):
        vllm.logged_config(Logs(log(LINE, other)), "enforce_eager")


def cached(**labels: str) -> MetricsData:
    data = metrics()
    data.samples.append(MetricSample(name=vllm.CACHE_CONFIG, labels=labels, value=1.0))
    return data


@pytest.mark.parametrize("phase", ["gate", "check"])
def test_the_caches_configuration_is_in_the_metrics(phase: str) -> None:
    evidence = Evidence(probes=[probed(cached(enable_prefix_caching="False"), phase)])
    assert vllm.cache_config(evidence, "enable_prefix_caching") == "False"
    took_effect = vllm.PREFIX_CACHING.took_effect
    assert took_effect(evidence).truth is MET
    evidence = Evidence(probes=[probed(cached(enable_prefix_caching="True"), phase)])
    told = took_effect(evidence)
    assert told.truth is NOT_MET
    assert told.observed == "the engine's metrics say enable_prefix_caching=True"


def torn(
    *, sample: str = vllm.CACHE_CONFIG, label: str = "enable_prefix_caching"
) -> Evidence:
    data: Any = cached(**{label: "False"})
    data.samples[-1].name = sample
    return Evidence(probes=[probed(data)])


@pytest.mark.parametrize(
    "evidence",
    [torn(sample="vllm:other"), torn(label="block_size"), Evidence(), log(LINE)],
)
def test_metrics_without_it_say_nothing(evidence: Evidence) -> None:
    with pytest.raises(Missing):
        vllm.cache_config(evidence, "enable_prefix_caching")


def test_a_probe_that_was_not_there_says_nothing() -> None:
    evidence = torn()
    drop(evidence, "metrics", "no answer")
    with pytest.raises(Missing, match="no answer"):
        vllm.cache_config(evidence, "enable_prefix_caching")


def test_the_control_server_does_not_speak_for_the_runs_own() -> None:
    control = probed(cached(enable_prefix_caching="False"), "control")
    with pytest.raises(Missing):
        vllm.cache_config(Evidence(probes=[control]), "enable_prefix_caching")
