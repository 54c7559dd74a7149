"""Made-up runs of async-race, and what can be changed in them."""

from made_up import metrics, probed, swap
from made_up_crash import death_log, ordered_run, race_run, with_stream
from mmrepro.probes.data import LogsData, MetricSample
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenario.vllm import CACHE_CONFIG
from mmrepro.scenarios.chunked_mm_prefill import async_race as module
from mmrepro.traffic.evidence import Evidence
from turns import Change

RACE = load_scenario("chunked-mm-prefill").with_variant("async-race")
RACE_LABELS = (module.SILENT, module.FIRST, module.SECOND)


def race() -> Evidence:
    return race_run(*RACE_LABELS)


def stream(**counts: int) -> Change:
    """The same death, with these lines of the stand-in."""
    return lambda e: swap(e, with_stream(death_log(), **counts))


def reworded(name: str, old: str, new: str) -> Change:
    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            for entry in data.matches[name]:
                entry.text = entry.text.replace(old, new)

    return change


idle = reworded("stream-steps", "begun, 9", "begun, 0")


def apart(evidence: Evidence) -> None:
    for _, data in evidence.results(LogsData):
        for number, entry in enumerate(data.matches["stream-mask"]):
            entry.text = entry.text.replace(f"step {number + 1}", f"step {2 * number}")


def unread(evidence: Evidence) -> None:
    log = with_stream(death_log(), overwrite=7, mask=4, error=1)
    for entry in log.matches["stream-error"]:
        entry.text = entry.text.replace("256 read", "None read")
    swap(evidence, log)


def right_mask(evidence: Evidence) -> None:
    log = with_stream(death_log(), overwrite=7, mask=4, error=1)
    for entry in log.matches["stream-error"]:
        entry.text = entry.text.replace("256 read", "254 read")
    swap(evidence, log)


def ordered(overwrite: int = 0, **counts: int) -> Evidence:
    return ordered_run(*RACE_LABELS, overwrite=overwrite, **counts)


large = reworded("stream-mask", "254 embeddings", "602 embeddings")


def counting(**counts: int) -> Change:
    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            for name, count in counts.items():
                data.match_counts[name.replace("_", "-")] = count

    return change


def caching(evidence: Evidence, value: str) -> None:
    data = metrics()
    labels = {"enable_prefix_caching": value}
    data.samples.append(MetricSample(name=CACHE_CONFIG, labels=labels, value=1.0))
    evidence.probes.append(probed(data, "gate"))


def cached(value: str) -> Change:
    return lambda evidence: caching(evidence, value)
