"""``/live``, ``/ready`` and ``/metrics`` of a watch, for Kubernetes and Prometheus."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mmrepro.base.errors import UsageError
from mmrepro.failure.documents.diagnosis import Certainty, LiveClass
from mmrepro.live.watch.health import STATES, CheckOutcome
from mmrepro.live.watch.loop import Watch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
CERTAINTIES = {sure.value: 3 - n for n, sure in enumerate(Certainty)}
EXCHANGE_S = 10.0
"""For a whole request and its answer: who takes longer is cut off."""


def parse_address(text: str) -> tuple[str, int]:
    """``PORT`` or ``:PORT`` (loopback), or ``HOST:PORT``; ``0.0.0.0:PORT`` is every interface.
    Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(f"{text!r} is no address.", hint="--http 127.0.0.1:9400")
    return host.strip("[]") or "127.0.0.1", int(port)


class WatchServer:
    """Serves the state of ``watch`` until ``close``; ``address`` is what it is bound to.

    Raises:
        UsageError: the address cannot be bound.
    """

    def __init__(self, watch: Watch, address: tuple[str, int]) -> None:
        registry = CollectorRegistry()
        registry.register(_Metrics(watch))

        class Handler(_Handler):
            pass

        Handler.watch, Handler.registry = watch, registry
        try:
            self._server = _Server(address, Handler)
        except OSError as error:
            raise UsageError(
                f"{address[0]}:{address[1]} cannot be bound: {error.strerror}.",
                hint="--http :0 takes a free port",
            ) from error
        self.address: tuple[str, int] = self._server.server_address[:2]  # type: ignore[assignment]
        threading.Thread(target=self._server.serve_forever, name="watch-http", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Each exchange in a thread of its own, and none for longer than ``EXCHANGE_S``."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._until: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._until[request] = time.monotonic() + EXCHANGE_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._until.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between two connections, and twice a second."""
        now = time.monotonic()
        with self._lock:
            for late in [r for r, until in self._until.items() if until < now]:
                del self._until[late]
                with contextlib.suppress(OSError):
                    late.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, or is cut off, is no news."""
        if not isinstance(sys.exception(), OSError | None):
            super().handle_error(request, client_address)


def state(watch: Watch) -> dict[str, Any]:
    """What is known, as one JSON document."""
    with watch.lock:
        health, finding, now = watch.health, watch.finding, time.monotonic()
        last, good_at = health.last, health.last_ok_at
        return {
            "state": health.state,
            "live": health.live,
            "ready": health.ready,
            "starting": health.starting,
            "failed_in_a_row": health.failed_in_a_row,
            "last_check": last
            and {
                "verdict": last.verdict.value,
                "seconds": round(last.seconds, 3),
                "seconds_ago": round(now - last.at, 1),
                "why": last.why,
            },
            "seconds_since_success": None if good_at is None else round(now - good_at, 1),
            "checks": {verdict.value: count for verdict, count in watch.counts.items()},
            "classes": {name.value: sure.value for name, sure in watch.classes.items()},
            "ranks": dict(last.ranks) if last else {},
            "incidents": watch.incidents,
            "diagnosis": None if finding is None else finding.sentence,
            "incident_dir": None if finding is None else str(finding.folder or ""),
        }


class _Handler(BaseHTTPRequestHandler):
    watch: Watch
    registry: CollectorRegistry
    server_version = "mmrepro-watch"
    timeout = EXCHANGE_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, generate_latest(self.registry), PLAIN)
        elif path in ("/live", "/ready", "/"):
            found = state(self.watch)
            fine = found[path[1:]] if path != "/" else True
            self._send(200 if fine else 503, json.dumps(found, indent=1).encode() + b"\n")
        else:
            self._send(404, b'{"error": "there is /live, /ready, /metrics and /"}\n')

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: not a line for each."""


class _Metrics(Collector):
    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def collect(self) -> Iterator[Metric]:
        found = state(self.watch)
        last = found["last_check"]
        gauges = {
            "live": ("1 while the server answers small inferences", found["live"]),
            "ready": ("1 while it takes traffic", found["ready"]),
            "starting": ("1 until its first answer", found["starting"]),
            "failed_checks_in_a_row": ("checks failed in a row", found["failed_in_a_row"]),
            "incidents": ("diagnoses made", found["incidents"]),
            "last_check_seconds": ("duration of the last check", last and last["seconds"]),
            "seconds_since_success": (
                "age of the last answered check",
                found["seconds_since_success"],
            ),
        }
        for name, (text, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"mmrepro_watch_{name}", text, value=float(value))
        states = GaugeMetricFamily(
            "mmrepro_watch_state", "1 for the state it is in, 0 for the others", labels=["state"]
        )
        for one in STATES:
            states.add_metric([one], float(found["state"] == one))
        yield states
        checks = CounterMetricFamily("mmrepro_watch_checks", "checks made", labels=["verdict"])
        for verdict in CheckOutcome:
            checks.add_metric([verdict.value], found["checks"][verdict.value])
        yield checks
        classes = GaugeMetricFamily(
            "mmrepro_watch_class",
            "class of failure: 0 not named, 1 possible, 2 likely, 3 certain",
            labels=["class"],
        )
        for name in LiveClass:
            classes.add_metric([name.value], CERTAINTIES.get(found["classes"].get(name.value), 0))
        yield classes
        ranks = GaugeMetricFamily(
            "mmrepro_watch_rank", "1: what a rank is at while it is silent", labels=["rank", "is"]
        )
        for role, stand in found["ranks"].items():
            ranks.add_metric([role, stand], 1.0)
        yield ranks
