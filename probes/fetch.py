"""One bounded HTTP exchange, for every probe that asks a server something.

The server may be the very thing that is broken: it may never answer, answer garbage, close in the
middle, drip one byte a second or send without end. All of that comes back as a ``Fetched``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx2

USER_AGENT = "mmrepro-probe"


@dataclass(frozen=True)
class Fetched:
    """``status`` is that of a whole answer only; a half answer has None and an ``error``.
    ``cut``: it was longer than it may be; ``given_up``: so it was before its time was over."""

    status: int | None
    body: bytes
    seconds: float
    error: str = ""
    timed_out: bool = False
    cut: bool = False
    given_up: bool = False


def api_root(base_url: str) -> str:
    """The server's root: people give ``http://host:8000``, ``…:8000/`` and ``…:8000/v1``."""
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def connection_refused(error: str) -> bool:
    """Whether that was why there is no answer: nobody listens. A name that does not resolve, a
    network without a way and TLS that fails are connections that failed as well."""
    return error.startswith("ConnectError") and "refused" in error


def fetch(
    method: str,
    url: str,
    *,
    timeout_s: float,
    max_bytes: int,
    json_body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    over: threading.Event | None = None,
) -> Fetched:
    """Exchange one request in at most ``timeout_s`` seconds overall; never raises.

    Whoever gave ``over`` may set it, and the exchange is given up; it is set when that has ended.

    httpx2 limits each read but not their sum, so a server that drips would never time out there:
    the exchange has a thread of its own, which is abandoned (a daemon) when its time is over.
    """
    over = over or threading.Event()
    exchange = _Exchange(method, url, timeout_s, max_bytes, json_body, dict(headers or {}), over)
    thread = threading.Thread(target=exchange.run, name="probe-fetch", daemon=True)
    started = time.monotonic()
    thread.start()
    over.wait(timeout_s + 0.05)
    seconds = round(time.monotonic() - started, 4)
    if exchange.result is None:
        exchange.give_up()
        late = exchange.timed_out(seconds)
        if seconds >= timeout_s:
            return late
        return replace(late, error=f"{late.error}: cut after {seconds:.1f} s", given_up=True)
    return replace(exchange.result, seconds=seconds)


class _Exchange:
    def __init__(
        self,
        method: str,
        url: str,
        timeout_s: float,
        max_bytes: int,
        json_body: Mapping[str, Any] | None,
        headers: dict[str, str],
        over: threading.Event,
    ) -> None:
        self.method = method
        self.url = url
        self.timeout_s = timeout_s
        self.max_bytes = max_bytes
        self.json_body = json_body
        # Identity and raw reads: a compressed answer could unfold to gigabytes.
        self.headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers}
        self.result: Fetched | None = None
        self._over = over
        self._status: int | None = None
        self._body = bytearray()
        self._abandoned = threading.Event()
        self._client: httpx2.Client | None = None

    def run(self) -> None:
        try:
            self.result = self._exchange()
        except httpx2.TimeoutException:
            self.result = self.timed_out(0.0)
        except Exception as error:  # garbage on the wire raises more than httpx2's own errors
            self.result = Fetched(None, bytes(self._body), 0.0, self._explain(error))
        finally:
            self._over.set()

    def give_up(self) -> None:
        """Its connection is closed: a server that never ends its head would be read for ever."""
        self._abandoned.set()
        if self._client is not None:
            with contextlib.suppress(Exception):  # it is in use, in another thread
                self._client.close()

    def timed_out(self, seconds: float) -> Fetched:
        where = "" if self._status is None else f" in the body of a {self._status} answer"
        error = f"no complete answer in {self.timeout_s:.1f} s{where}"
        return Fetched(None, bytes(self._body), seconds, error, timed_out=True)

    def _exchange(self) -> Fetched:
        until = time.monotonic() + self.timeout_s
        with (
            httpx2.Client(
                trust_env=False,
                follow_redirects=False,
                timeout=self.timeout_s,
                # Reading the certificate store takes tens of milliseconds: only for https.
                verify=self.url.lower().startswith("https:"),
            ) as self._client,
            self._client.stream(
                self.method, self.url, json=self.json_body, headers=self.headers
            ) as response,
        ):
            self._status = response.status_code
            for chunk in response.iter_raw():
                self._body += chunk[: self.max_bytes - len(self._body)]
                if len(self._body) >= self.max_bytes:
                    return Fetched(self._status, bytes(self._body), 0.0, cut=True)
                if self._abandoned.is_set() or time.monotonic() > until:
                    return self.timed_out(0.0)
            return Fetched(self._status, bytes(self._body), 0.0)

    def _explain(self, error: Exception) -> str:
        where = "" if self._status is None else f" in the body of a {self._status} answer"
        return f"{type(error).__name__}{where}: {error}"[:500]
