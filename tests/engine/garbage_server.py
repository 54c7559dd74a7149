"""A FAKE server: no engine. It is green, and its completions are garbage. Prints its port."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GARBAGE = {
    "html": b"<html>it works</html>",
    "nan": b'{"choices": [{"message": {"content": "!!!!!!!!"}, "finish_reason": "length"}]}',
    "error": b'{"choices": [{"message": {"content": ""}, "finish_reason": "error"}]}',
}


class Garbage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"data": [{"id": "tiny"}]}' if self.path == "/v1/models" else b""
        self._send(404 if self.path == "/metrics" else 200, body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(200, GARBAGE[sys.argv[1]])

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Garbage)
    print(server.server_address[1], flush=True)
    server.serve_forever()
