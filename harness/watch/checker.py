"""One check: a small inference, and, if it is not answered, whether the server worked meanwhile."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from mmrepro.engines import ENGINES
from mmrepro.probes.base import Probe, ProbeData, run_probe
from mmrepro.probes.data import InferenceData, MetricsData
from mmrepro.probes.fetch import api_root, fetch
from mmrepro.probes.inference import InferenceProbe
from mmrepro.probes.metrics import MetricsProbe
from mmrepro.watch.health import Check, CheckOutcome
from pydantic_core import from_json

WRONG_FOR_IT = frozenset({400, 401, 403, 404, 405, 422})
"""Such an answer is about the request, not about the server's health."""

# Not the count of finished requests: a frozen vLLM counts those that clients give up on.
PROGRESS = tuple(
    name
    for engine in ENGINES.values()
    for counter in ("prompt_tokens", "generation_tokens")
    for name in engine.metrics.get(counter, ())
)


class Checker:
    """Sends the checks to ``url``.

    ``model``: the served name; empty: the first that ``/v1/models`` lists, asked once.
    ``image``: a data URL that goes with the text, so that the vision path is checked as well.
    """

    def __init__(
        self,
        url: str,
        deadline_s: float,
        *,
        model: str = "",
        image: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = api_root(url)
        self.deadline_s = deadline_s
        self.model = model
        self.image = image
        self.headers = dict(headers or {})
        self._scratch = tempfile.TemporaryDirectory(prefix="mmrepro-watch-")

    def close(self) -> None:
        self._scratch.cleanup()

    def check(self) -> Check:
        """One check; never raises for what a server does."""
        started = time.monotonic()
        if not self.model and (why := self._find_model()):
            return Check(CheckOutcome.FAILED, time.monotonic(), time.monotonic() - started, why)
        before = self._progress()
        probe = InferenceProbe(
            self.url,
            self.model,
            self.deadline_s,
            image_data_url=self.image,
            headers=self.headers,
        )
        data = self._run(probe, self.deadline_s + 1)
        seconds = time.monotonic() - started
        if not isinstance(data, InferenceData):
            return Check(
                CheckOutcome.UNKNOWN, time.monotonic(), seconds, "the check could not be run"
            )
        verdict, why = self._judge(data, before)
        return Check(verdict, time.monotonic(), seconds, why)

    def _judge(self, data: InferenceData, before: dict[str, float]) -> tuple[CheckOutcome, str]:
        if data.answered:
            return CheckOutcome.OK, ""
        if data.status in WRONG_FOR_IT:
            return CheckOutcome.UNKNOWN, data.error
        if data.status == 429:
            return CheckOutcome.BUSY, "it answered 429: too many requests"
        if data.status is not None:
            return CheckOutcome.FAILED, data.error
        moved = moved_counters(before, self._progress())
        if moved:
            return CheckOutcome.BUSY, f"{data.error}; meanwhile {moved[0]} moved: it works"
        return CheckOutcome.FAILED, data.error

    def _find_model(self) -> str:
        """Ask for the served model; returns why there is none, or nothing."""
        timeout_s = min(5.0, self.deadline_s)
        got = fetch(
            "GET",
            f"{self.url}/v1/models",
            timeout_s=timeout_s,
            max_bytes=1 << 20,
            headers=self.headers,
        )
        if got.status != 200:
            return f"/v1/models: {got.error or f'HTTP {got.status}'}"
        try:
            name = from_json(got.body)["data"][0]["id"]
        except (ValueError, KeyError, IndexError, TypeError):
            return "/v1/models lists no model"
        if not isinstance(name, str) or not name:
            return "/v1/models lists no model"
        self.model = name
        return ""

    def _progress(self) -> dict[str, float]:
        """Counters of work done; empty where there are no metrics."""
        data = self._run(MetricsProbe(self.url, 2.0, headers=self.headers), 3.0)
        if not isinstance(data, MetricsData):
            return {}
        return {name: v for name in PROGRESS if (v := data.total(name)) is not None}

    def _run(self, probe: Probe[ProbeData], seconds: float) -> ProbeData | None:
        folder = Path(self._scratch.name)
        result = run_probe(probe, folder, seconds, phase="check")
        for raw in result.raw:
            (folder / raw).unlink(missing_ok=True)
        return result.data


def moved_counters(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Names of those that grew. A counter that fell (a restart) is no progress of this server."""
    return [name for name, value in after.items() if name in before and value > before[name]]
