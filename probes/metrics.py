"""The server's Prometheus metrics, read leniently.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.metrics import MetricsProbe
    result = run_probe(MetricsProbe("http://127.0.0.1:8000/metrics"), Path("evidence"), 6)
    print(result.data.total("vllm:num_requests_running"))
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Self
from urllib.parse import urlsplit

from mmrepro.base.units import size
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import MetricSample, MetricsData
from mmrepro.probes.http import fetch
from prometheus_client.parser import text_string_to_metric_families

MAX_BODY_BYTES = 32 << 20
MAX_LINE_CHARS = 32 << 10
MAX_LINES = 50_000
"""That are samples or ought to be; a server with a hundred adapters has some
thousands."""

# What nearly every line looks like; it spares them the library's parser (30 µs a line),
# which gets all the others: escapes, quoted names, reserved labels, odd blanks.
_PLAIN = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z][a-zA-Z0-9_]*=\"[^\"\\]*\",?)*)\})? "
    r"([0-9.eE+-]+)"
)
_LABEL = re.compile(r'([a-zA-Z][a-zA-Z0-9_]*)="([^"\\]*)"')


class MetricsProbe(Probe[MetricsData]):
    """GET ``url`` (``/metrics`` is added to a bare server address) for at most
    ``timeout_s``."""

    name = "metrics"
    needs = "url"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.url.rstrip("/") + "/metrics")

    def __init__(
        self,
        url: str,
        timeout_s: float = 5.0,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = (
            url if urlsplit(url).path not in ("", "/") else url.rstrip("/") + "/metrics"
        )
        self.timeout_s = timeout_s
        self.headers = headers

    def collect(self, sink: RawSink, deadline: float) -> MetricsData:
        """Raises Unavailable when there is no 200 answer, TimedOut when none came in
        time."""
        timeout_s = min(self.timeout_s, deadline - time.monotonic())
        if timeout_s <= 0.05:
            raise TimedOut("the deadline passed before the metrics were asked for")
        got = fetch(
            "GET",
            self.url,
            timeout_s=timeout_s,
            max_bytes=MAX_BODY_BYTES,
            headers=self.headers,
        )
        if got.body:
            sink.write("metrics.txt", got.body)
        if got.timed_out:
            raise TimedOut(f"{self.url}: {got.error}")
        if got.status is None:
            raise Unavailable(f"{self.url}: {got.error}")
        if got.status != 200:
            raise Unavailable(f"{self.url} answered {got.status}: no metrics there")
        if got.cut:  # half of them do not tell that one is absent
            raise Unavailable(f"{self.url} answers more than {size(MAX_BODY_BYTES)}")
        samples, bad = parse_metrics(got.body.decode("utf-8", "replace"))
        if len(samples) + bad > MAX_LINES:
            raise Unavailable(
                f"{self.url} answers more than {MAX_LINES:,} lines of metrics"
            )
        if not samples and bad:
            raise Unavailable(
                f"{self.url} answered something that is not Prometheus metrics"
            )
        return MetricsData(url=self.url, samples=samples, bad_lines=bad)


def parse_metrics(text: str) -> tuple[list[MetricSample], int]:
    """Samples of a Prometheus exposition and the number of lines that are none; never
    raises.

    What comes after more than ``MAX_LINES`` of either is not read.

    Line by line, because the client library's parser gives up at the first bad line.
    Histogram buckets and the ``_created`` times that prometheus_client adds to each
    metric are left out: they are nine lines of ten and no signature reads them."""
    samples: list[MetricSample] = []
    bad = 0
    for line in _lines(text):
        if len(samples) + bad > MAX_LINES:
            return samples, bad
        line = line.strip()
        if not line or line.startswith("#") or "_bucket{" in line:
            continue
        sample = _parse_line(line)
        if sample is None:
            bad += 1
        else:
            samples.append(sample)
    names = {s.name for s in samples}
    return [s for s in samples if not _is_creation_time(s.name, names)], bad


def _lines(text: str) -> Iterator[str]:
    """One after the other: a list of them takes thrice the memory of the text."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def _parse_line(line: str) -> MetricSample | None:
    if len(line) > MAX_LINE_CHARS:
        return None
    try:
        if plain := _PLAIN.fullmatch(line):
            pairs = _LABEL.findall(plain[2] or "")
            value, labels = float(plain[3]), dict(pairs)
            if len(labels) == len(pairs):
                return _sample(plain[1], labels, value)
        for family in text_string_to_metric_families(line):
            for sample in family.samples:
                return _sample(sample.name, sample.labels, float(sample.value))
    except Exception:
        # The library raises ValueError, KeyError, IndexError, … on hostile lines.
        return None
    return None


def _sample(name: str, labels: dict[str, str], value: float) -> MetricSample:
    return MetricSample(
        name=name, labels=labels, value=value if math.isfinite(value) else None
    )


def _is_creation_time(name: str, names: set[str]) -> bool:
    """Whether a metric is the time at which another one was made."""
    base = name.removesuffix("_created")
    if base == name:
        return False
    return not names.isdisjoint((base, f"{base}_total", f"{base}_count"))
