"""``/live``, ``/ready`` and ``/metrics`` of a watch, for Kubernetes and Prometheus."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from mmrepro.base.errors import UsageError
from mmrepro.failure.documents import Certainty, LiveClass
from mmrepro.live.watch.canary import CanaryVerdict
from mmrepro.live.watch.health import STATES, CheckOutcome
from mmrepro.live.watch.loop import ServerWatch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
CERTAINTIES = {sure.value: 3 - n for n, sure in enumerate(Certainty)}
EXCHANGE_S = 10.0
"""For a whole request and its answer: who takes longer is cut off."""


def parse_address(text: str) -> tuple[str, int]:
    """``PORT`` or ``:PORT`` (loopback), or ``HOST:PORT``; ``0.0.0.0:PORT`` is every
    interface. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(f"{text!r} is no address.", hint="--http 127.0.0.1:9400")
    return host.strip("[]") or "127.0.0.1", int(port)


class WatchServer:
    """Serves the state of ``watch`` until ``close``; ``address`` is what it is bound
    to.

    Args:
        watch: of one server, or those of several by name. Of several ``/live`` and
            ``/ready`` are 200 where all are; ``/ready?server=NAME`` is of one. Each
            metric has the label ``server`` then.

    Raises:
        UsageError: the address cannot be bound.
    """

    def __init__(
        self, watch: ServerWatch | Mapping[str, ServerWatch], address: tuple[str, int]
    ) -> None:
        watches = {"": watch} if isinstance(watch, ServerWatch) else watch
        registry = CollectorRegistry()
        registry.register(_Metrics(watches))

        class _WatchHandler(_Handler):
            pass

        _WatchHandler.watches, _WatchHandler.registry = watches, registry
        try:
            self._server = _BoundedServer(address, _WatchHandler)
        except OSError as error:
            raise UsageError(
                f"{address[0]}:{address[1]} cannot be bound: {error.strerror}.",
                hint="--http :0 takes a free port",
            ) from error
        self.address: tuple[str, int] = self._server.server_address[:2]  # type: ignore[assignment]
        threading.Thread(
            target=self._server.serve_forever, name="watch-http", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _BoundedServer(ThreadingHTTPServer):
    """Each exchange in a thread of its own, and none for longer than ``EXCHANGE_S``."""

    daemon_threads = True
    # Of more probes at once than wait here the kernel tries again after a second.
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._until: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._until[request] = time.monotonic() + EXCHANGE_S
        super().process_request(request, client_address)

    def allow(self, request: socket.socket, seconds: float) -> None:
        """Give one exchange more time."""
        with self._lock:
            self._until[request] = time.monotonic() + seconds

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._until.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between two connections, and twice a second."""
        now = time.monotonic()
        with self._lock:
            late = [r for r, until in self._until.items() if until < now]
            for request in late:
                del self._until[request]
                # Its thread wakes up and closes it; it may have done so already.
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, or is cut off, is no news."""
        if not isinstance(sys.exception(), OSError | None):
            super().handle_error(request, client_address)


def state(watch: ServerWatch) -> dict[str, Any]:
    """What is known, as one JSON document."""
    # Of one moment: a check that ends meanwhile would mix two.
    with watch.lock:
        health, finding, now = watch.health, watch.finding, time.monotonic()
        last, good_at = health.last, health.last_ok_at
        last_check = None
        if last is not None:
            last_check = {
                "verdict": last.verdict.value,
                "seconds": round(last.seconds, 3),
                "seconds_ago": round(now - last.at, 1),
                "why": last.why,
            }
        since_success = None if good_at is None else round(now - good_at, 1)
        return {
            "state": health.state,
            "live": health.live,
            "ready": health.ready,
            "starting": health.starting,
            "failed_in_a_row": health.failed_in_a_row,
            "last_check": last_check,
            "seconds_since_success": since_success,
            "checks": {verdict.value: count for verdict, count in watch.counts.items()},
            "classes": {name.value: sure.value for name, sure in watch.classes.items()},
            "ranks": dict(last.ranks) if last else {},
            "canary": _canary(watch),
            "incidents": watch.incidents,
            "diagnosis": None if finding is None else finding.sentence,
            "incident_dir": None if finding is None else str(finding.folder or ""),
        }


def _canary(watch: ServerWatch) -> dict[str, int]:
    """Rounds of the canary by what they showed."""
    counts = watch.canary.counts if watch.canary is not None else {}
    return {verdict.value: counts.get(verdict, 0) for verdict in CanaryVerdict}


def states(watches: Mapping[str, ServerWatch]) -> dict[str, Any]:
    """As :func:`state`, of one; of several all of them by name."""
    if list(watches) == [""]:
        return state(watches[""])
    servers = {name: state(watch) for name, watch in watches.items()}
    return {
        "live": all(server["live"] for server in servers.values()),
        "ready": all(server["ready"] for server in servers.values()),
        "odd": odd(servers),
        "servers": servers,
    }


def odd(servers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Those that are neither ready nor starting, while another one is ready."""
    unready, ready = [], []
    for name, server in servers.items():
        if server["ready"]:
            ready.append(name)
        elif not server["starting"]:
            unready.append(name)
    return unready if ready else []


class _Handler(BaseHTTPRequestHandler):
    watches: Mapping[str, ServerWatch]
    registry: CollectorRegistry
    server_version = "mmrepro-watch"
    timeout = EXCHANGE_S

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        chosen = self.watches
        if names := parse_qs(query).get("server"):
            if names[0] not in self.watches:
                self._send(404, b'{"error": "no such server"}\n')
                return
            chosen = {"": self.watches[names[0]]}
        if path == "/metrics":
            self._send(200, generate_latest(self.registry), PLAIN)
        elif path == "/capture":
            self._capture(chosen)
        elif path in ("/live", "/ready", "/"):
            known = states(chosen)
            fine = path == "/" or known[path[1:]]
            body = json.dumps(known, indent=1).encode() + b"\n"
            self._send(200 if fine else 503, body)
        else:
            self._send(404, b'{"error": "there is /live, /ready, /metrics and /"}\n')

    def _capture(self, watches: Mapping[str, ServerWatch]) -> None:
        """Take the evidence before a preStop hook returns; of a server that answers
        there is none."""
        longest_s = max(watch.options.capture_s for watch in watches.values())
        self.server.allow(self.request, longest_s + EXCHANGE_S)  # type: ignore[attr-defined]
        taken = {}
        for name, watch in watches.items():
            taken[name] = watch.capture_now("asked for at /capture")
        self._send(200, json.dumps({"captured": taken}).encode() + b"\n")

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
    def __init__(self, watches: Mapping[str, ServerWatch]) -> None:
        self.watches = watches

    def collect(self) -> Iterator[Metric]:
        servers = {name: state(one) for name, one in self.watches.items()}
        several = list(servers) != [""]
        own = ["server"] if several else []
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

        def add(name: str, text: str, value: float, server: str, **labels: str) -> None:
            made = CounterMetricFamily if name == "checks" else GaugeMetricFamily
            family = families.setdefault(
                name, made(f"mmrepro_watch_{name}", text, labels=[*own, *labels])
            )
            family.add_metric([server] * several + [*labels.values()], float(value))

        for server, found in servers.items():
            for name, text, value in _gauges(found):
                if value is not None:
                    add(name, text, value, server)
            for one in STATES:
                text = "1 for the state it is in, 0 for the others"
                add("state", text, found["state"] == one, server, state=one)
            for verdict in CheckOutcome:
                count = found["checks"][verdict.value]
                add("checks", "checks made", count, server, verdict=verdict.value)
            for shown, count in found["canary"].items():
                text = "rounds of the canary, by what they showed"
                add("canary", text, count, server, verdict=shown)
            for kind in LiveClass:
                text = "class of failure: 0 not named, 1 possible, 2 likely, 3 certain"
                sure = CERTAINTIES.get(found["classes"].get(kind.value), 0)
                add("class", text, sure, server, **{"class": kind.value})
            for role, stand in found["ranks"].items():
                text = "1: what a rank is at while it is silent"
                add("rank", text, 1, server, rank=role, **{"is": stand})
        unlike = odd(servers)
        for server in servers if several else ():
            text = "1: it is not ready while another server is"
            add("odd", text, server in unlike, server)
        yield from families.values()


def _gauges(found: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    last = found["last_check"]
    yield "live", "1 while the server answers small inferences", found["live"]
    yield "ready", "1 while it takes traffic", found["ready"]
    yield "starting", "1 until its first answer", found["starting"]
    yield "failed_checks_in_a_row", "checks failed in a row", found["failed_in_a_row"]
    yield "incidents", "diagnoses made", found["incidents"]
    yield "last_check_seconds", "duration of the last check", last and last["seconds"]
    age = "age of the last answered check"
    yield "seconds_since_success", age, found["seconds_since_success"]
