"""A FAKE engine: an HTTP front and a thread called EngineCore that misbehaves as asked.
No model.

``python fake_engine.py MODE minivllm.server [PORT]``; prints its port. It calls itself
and its metrics as minivllm does, so that it is looked at like an engine."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODE = sys.argv[1]
ANSWERS = {
    "well": b'{"choices": [{"message": {"content": "OK"}, "finish_reason": "stop"}]}',
    "html": b"<html>it works</html>",
    "nan": (
        b'{"choices": [{"message": {"content": "!!!!!!!!"}, "finish_reason": '
        b'"length"}]}'
    ),
    "error": b'{"choices": [{"message": {"content": ""}, "finish_reason": "error"}]}',
}
WAITING = 3 if MODE == "starved" else 0
GENERATED = 0 if os.environ.get("FAKE_ENGINE_IS_NEW") else 7
RUNNING = 0 if MODE in ("starved", "deaf") else 1


class Front(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            lines = {
                "num_requests_running": RUNNING,
                "num_requests_waiting": WAITING,
                "generation_tokens_total": GENERATED,
            }
            body = "".join(f"minivllm:{k} {v}\n" for k, v in lines.items())
            self._send(200, body.encode())
        else:
            self._send(200, b'{"data": [{"id": "tiny"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if MODE == "dies":
            os._exit(1)
        if MODE in ANSWERS:
            self._send(200, ANSWERS[MODE])
        else:
            threading.Event().wait(60)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def holds(lock: threading.Lock, held: threading.Event) -> None:
    with lock:
        held.set()
        time.sleep(600)


def waits_for_lock() -> None:
    lock, held = threading.Lock(), threading.Event()
    threading.Thread(
        target=holds, args=(lock, held), name="holder", daemon=True
    ).start()
    held.wait()
    with lock:
        pass


def spins_in_python() -> None:
    count = 0
    while True:
        count = (count + 1) % 1000


def layer(depth: int = 12) -> None:
    sum(range(5_000))
    if depth:
        layer(depth - 1)


def moves() -> None:
    """A forward pass of eight deep layers: no few looks find it at one place."""
    while True:
        layer()
        layer()
        layer()
        layer()
        layer()
        layer()
        layer()
        layer()


def spins_in_c() -> None:
    """PBKDF2 lets go of the GIL and computes for minutes."""
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)


def naps_in_c() -> None:
    time.sleep(600)


def compiles() -> None:
    """With a compiler's file on the stack: py-spy takes packages from the disk."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "triton" / "compiler"
        package.mkdir(parents=True)
        for place in (package.parent, package):
            (place / "__init__.py").touch()
        source = "import time\ndef make_ir():\n    time.sleep(600)\n"
        (package / "compiler.py").write_text(source)
        sys.path.insert(0, folder)
        importlib.import_module("triton.compiler.compiler").make_ir()


def waits_for_work() -> None:
    idle = threading.Condition()
    with idle:
        idle.wait()


CORES = {
    "lock": waits_for_lock,
    "python": spins_in_python,
    "moves": moves,
    "native": spins_in_c,
    "nap": naps_in_c,
    "compiles": compiles,
}


def main() -> None:
    ctypes.CDLL(None).prctl(15, b"MV::EngineCore", 0, 0, 0)
    if os.environ.get("FAKE_ENGINE_HOLDS_BACK"):
        time.sleep(600)
    port = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    server = ThreadingHTTPServer(("127.0.0.1", port), Front)
    target = CORES.get(MODE, waits_for_work)
    threading.Thread(target=target, name="EngineCore", daemon=True).start()
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
