"""Two servers of an engine, one that prefills and one that decodes, and a proxy in
front of them.

Usage:  python server.py MODULE ARGUMENT…

MODULE is the engine's server. Both servers get its arguments, a port of their own, and
their half of ``--kv-transfer-config``: ``kv_producer`` and ``kv_consumer``. The proxy
listens on ``--port``:

- A request for text goes to the prefill server first, which computes its prompt for one
  token, and then as it is to the decode server, whose answer is passed on byte by byte.
  What the prefill server refuses is the answer.
- Any other POST goes to both, a GET to the decode server.
- ``/health`` is good where both are. ``/metrics`` has the decode server's metrics,
  which count what a client counts, and the gauges of the prefill server: what it holds
  is the pair's. Its start is the proxy's.

It ends when one of the two servers does. Standard library only: it runs under any
engine's Python."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import context
from typing import Any, NoReturn

_GENERATES = ("/v1/completions", "/v1/chat/completions")
_OF_THE_ANSWER = (
    "stream",
    "stream_options",
    "min_tokens",
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "response_format",
    "structured_outputs",
    "stop",
    "tool_choice",
)
"""Fields of a request that no prompt depends on: the prefill server does not get
them."""
CONFIG, PORT = "--kv-transfer-config", "--port"
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
LOOK_S, HEALTH_S, PIECE = 0.2, 2.0, 1 << 16
HEALTHY, UNWELL = 200, 503


def say(text: str) -> None:
    """One whole line in one write: three processes share the log."""
    os.write(1, f"pair: {text}\n".encode())


# ------------------------------------------------------------------ the two servers


class Server:
    """One of the two. ``port``: of its own HTTP front."""

    def __init__(self, part: str, module: str, arguments: list[str]) -> None:
        self.part = part
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        words = [module, *half(arguments, part, self.port)]
        if forks():
            # As the children of an engine: the engine is imported once for both.
            process = context.SpawnContext().Process(
                target=run, args=(words,), name=part
            )
            process.start()
            self.pid: int = process.pid or 0
            self._code: Callable[[], int | None] = lambda: process.exitcode
        else:
            popen = subprocess.Popen([sys.executable, "-m", *words])
            self.pid, self._code = popen.pid, popen.poll
        say(f"the {part} server is http://127.0.0.1:{self.port}, process {self.pid}")

    @property
    def code(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._code()

    def end(self) -> None:
        if self.code is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGTERM)

    def send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> http.client.HTTPConnection:
        """A connection of its own on which that was sent. Raises OSError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body, {**headers, "Connection": "close"})
        return connection

    def text(self, path: str) -> str:
        """What a GET gets. Raises OSError, HTTPException."""
        with contextlib.closing(self.send("GET", path, b"", {})) as connection:
            return connection.getresponse().read().decode()

    def well(self) -> bool:
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HEALTH_S)
        with (
            contextlib.closing(asked),
            contextlib.suppress(OSError, http.client.HTTPException),
        ):
            asked.request("GET", "/health")
            return asked.getresponse().status == HEALTHY
        return False


def forks() -> bool:
    """Whether mmrepro has multiprocessing fork what it is asked to spawn (start mode
    fork)."""
    popen = context.SpawnProcess._Popen
    return getattr(popen, "__module__", "") != "multiprocessing.context"


def run(words: list[str]) -> None:
    """In a fork: become that server, in name too."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle  # type: ignore[import-not-found]

        setproctitle(" ".join([sys.executable, "-m", *words]))
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def half(arguments: list[str], part: str, port: int) -> list[str]:
    """The arguments of one of the two; an option's last value is the one that
    counts."""
    words = list(split(arguments))
    given = [value for name, value in words if name == CONFIG]
    config = json.loads(given[-1] or "{}") | {"kv_role": _ROLES[part]} if given else {}
    left = [
        word
        for name, value in words
        if name not in (CONFIG, PORT)
        for word in (name, value)
    ]
    return [
        *(word for word in left if word is not None),
        PORT,
        str(port),
        *((CONFIG, json.dumps(config)) if config else ()),
    ]


def split(arguments: list[str]) -> Iterator[tuple[str, str | None]]:
    """The two options that differ, with their values; each other word by itself, with
    None."""
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in (CONFIG, PORT):
            yield word, None
        else:
            yield name, value if equals else next(words, "")


# ------------------------------------------------------------------ the proxy


def prefill(body: dict[str, Any]) -> dict[str, Any]:
    """The request for a prompt alone."""
    kept = {name: value for name, value in body.items() if name not in _OF_THE_ANSWER}
    longest = (
        "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    )
    if "tools" in body:
        kept["tool_choice"] = "none"  # the prompt has the tools; one token is no call
    remote = {"do_remote_decode": True, "do_remote_prefill": False}
    return kept | {longest: 1, "kv_transfer_params": remote}


_GAUGE = re.compile(r"# TYPE (\S+) gauge$", re.MULTILINE)
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S.*)$")


_START = re.compile(r"(?<=^process_start_time_seconds )\S+$", re.MULTILINE)


def began(_: object) -> str:
    """When this process was started, seconds since the epoch, as Linux tells it."""
    with open("/proc/stat") as system, open("/proc/self/stat") as own:  # noqa: PTH123
        boot = next(int(line.split()[1]) for line in system if line.startswith("btime"))
        ticks = int(own.read().rpartition(")")[2].split()[19])
    return str(boot + ticks / os.sysconf("SC_CLK_TCK"))


def gauges(text: str) -> str:
    """The gauges among metrics, as the prefill server's; what only describes it is left
    out."""
    known = {name for name in _GAUGE.findall(text) if not name.endswith("_info")}
    known = {name for name in known if not name.startswith(("process_", "python_"))}
    found = []
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample and sample[1] in known:
            labels = ['server="prefill"', *filter(None, [(sample[2] or "{}")[1:-1]])]
            found.append(f"{sample[1]}{{{','.join(labels)}}} {sample[3]}")
    return "".join(f"{line}\n" for line in found)


_HOP = (
    "host",
    "connection",
    "keep-alive",
    "content-length",
    "transfer-encoding",
    "expect",
)


class Proxy(BaseHTTPRequestHandler):
    prefills: Server
    decodes: Server

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._answer(
                HEALTHY if self.prefills.well() and self.decodes.well() else UNWELL
            )
        elif path == "/metrics":
            with self._reachable():
                text = _START.sub(began, self.decodes.text(path)) + gauges(
                    self.prefills.text(path)
                )
                self._answer(HEALTHY, text.encode(), "text/plain; charset=utf-8")
        else:
            self._pass_on(b"")

    do_HEAD = do_DELETE = do_PUT = do_OPTIONS = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self._reachable():
            if self.path.partition("?")[0] not in _GENERATES:
                if self._of_prefill(body) is not None:
                    self._pass_on(body)
                return
            asked: Any = None
            with contextlib.suppress(ValueError):
                asked = json.loads(body)
            if not isinstance(asked, dict):
                self._pass_on(body)  # the decode server says what is wrong with it
                return
            answer = self._of_prefill(json.dumps(prefill(asked)).encode())
            if answer is None:
                return
            if params := answer.get("kv_transfer_params"):
                body = json.dumps(asked | {"kv_transfer_params": params}).encode()
            self._pass_on(body)

    def _of_prefill(self, body: bytes) -> dict[str, Any] | None:
        """What the prefill server answers; None: the client is gone, or has its
        refusal."""
        sent = self.prefills.send("POST", self.path, body, self._kept())
        with contextlib.closing(sent):
            if not self._stays(sent.sock):
                return None
            answer = sent.getresponse()
            data = answer.read()
            if answer.status != HEALTHY and self.path.partition("?")[0] in _GENERATES:
                self._answer(
                    answer.status, data, answer.getheader("Content-Type") or ""
                )
                return None
        with contextlib.suppress(ValueError):
            found = json.loads(data)
            return found if isinstance(found, dict) else {}
        return {}

    def _pass_on(self, body: bytes) -> None:
        """The decode server's answer, byte by byte as it comes."""
        with self._reachable():
            sent = self.decodes.send(self.command, self.path, body, self._kept())
            self.close_connection = True
            with contextlib.closing(sent):
                while self._stays(sent.sock) and (piece := sent.sock.recv(PIECE)):
                    self.wfile.write(piece)

    def _stays(self, server: socket.socket) -> bool:
        """Wait for the server; False: the client went away, and so does its request
        there."""
        while True:
            ready, _, _ = select.select([server, self.connection], [], [])
            if server in ready:
                return True
            if not self.connection.recv(1, socket.MSG_PEEK):
                self.close_connection = True
                return False
            time.sleep(LOOK_S)  # it has sent its next request already

    def _kept(self) -> dict[str, str]:
        return {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _HOP
        }

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        """A server that is gone ends the client's connection, as one without a proxy
        does."""
        try:
            yield
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    def _answer(
        self, status: int, body: bytes = b"", kind: str = "application/json"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    protocol_version = "HTTP/1.1"


class _PairFront(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


# ------------------------------------------------------------------ from start to end


def main() -> NoReturn:
    module, *arguments = sys.argv[1:]
    port = int([value for name, value in split(arguments) if name == PORT][-1] or 0)
    if forks():
        importlib.import_module(module)
    servers = [Server(part, module, arguments) for part in _ROLES]
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    Proxy.prefills, Proxy.decodes = servers
    front = _PairFront(("127.0.0.1", port), Proxy)
    threading.Thread(target=front.serve_forever, daemon=True).start()
    while not asked.wait(LOOK_S):
        if ended := [one for one in servers if one.code is not None]:
            break
    for one in servers:
        one.end()
    code = 0
    if not asked.is_set():
        say(f"the {ended[0].part} server ended with {ended[0].code}")
        code = max(ended[0].code or 0, 0) or 1
    while any(one.code is None for one in servers):
        time.sleep(LOOK_S)
    os._exit(code)


if __name__ == "__main__":
    main()
