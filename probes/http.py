"""What the server's cheap HTTP endpoints answer.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.http import HttpProbe
    result = run_probe(HttpProbe("http://127.0.0.1:8000"), Path("evidence"), 12)
    print([(a.path, a.status, a.error) for a in result.data.answers])
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut
from mmrepro.probes.data import EndpointAnswer, HttpData
from mmrepro.probes.fetch import api_root, fetch
from pydantic_core import from_json

MAX_BODY_BYTES = 256 << 10
BODY_CHARS = 2000


def field_of(body: str | bytes, *path: str | int, max_chars: int = 500) -> str:
    """The text at ``path`` of a JSON document; "" where there is none, or none that can be read.

    A server may send anything, nested without end, too: never raises. What was cut is read as far
    as it goes.
    """
    try:
        value = from_json(body, allow_partial=True)
        for step in path:
            value = value[step]
    except (ValueError, LookupError, TypeError):
        return ""
    return value if isinstance(value, str) and len(value) <= max_chars else ""


def first_model(body: str | bytes) -> str:
    """The first model that an answer of ``/v1/models`` lists; "" if it lists none."""
    return field_of(body, "data", 0, "id")


class HttpProbe(Probe[HttpData]):
    """GET all of ``paths`` side by side, each for at most ``timeout_s`` seconds.

    An endpoint without a whole answer has ``status`` None and an ``error``: that is evidence, not
    a failure of the probe.
    """

    name = "http"
    needs = "url"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.url)

    def __init__(
        self,
        base_url: str,
        paths: Sequence[str] = ("/health", "/v1/models"),
        timeout_s: float = 5.0,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.base_url = api_root(base_url)
        self.paths = tuple(paths)
        self.timeout_s = timeout_s
        self.headers = headers

    def collect(self, sink: RawSink, deadline: float) -> HttpData:
        """Raises TimedOut when there is no time to ask."""
        timeout_s = min(self.timeout_s, deadline - time.monotonic())
        if timeout_s <= 0.05:
            raise TimedOut("the deadline passed before anything was asked")
        with ThreadPoolExecutor(max(1, len(self.paths)), "probe-http") as pool:
            answers = list(pool.map(lambda path: self._ask(path, timeout_s, sink), self.paths))
        return HttpData(base_url=self.base_url, answers=answers)

    def _ask(self, path: str, timeout_s: float, sink: RawSink) -> EndpointAnswer:
        got = fetch(
            "GET",
            self.base_url + path,
            timeout_s=timeout_s,
            max_bytes=MAX_BODY_BYTES,
            headers=self.headers,
        )
        if got.body:
            sink.write(f"{path.strip('/') or 'root'}.body", got.body)
        return EndpointAnswer(
            path=path,
            status=got.status,
            seconds=got.seconds,
            error=got.error,
            timed_out=got.timed_out,
            body=got.body.decode("utf-8", "replace")[:BODY_CHARS],
        )
