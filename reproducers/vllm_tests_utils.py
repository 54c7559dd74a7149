"""What stands for vLLM's ``tests/utils.py`` where a wheel is installed, which has no
tests: of ``RemoteOpenAIServer`` the part that an upstream test of mmrepro uses, by its
names (0.24.0)."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class RemoteOpenAIServer:
    """``vllm serve`` on a free port of this machine, until the block is left."""

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        seed: int | None = 0,
        max_wait_seconds: float | None = None,
    ) -> None:
        self.host = "127.0.0.1"
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            self.port = probe.getsockname()[1]
        words = ["vllm", "serve", model, *vllm_serve_args, "--port", str(self.port)]
        words += ["--seed", str(seed)] if seed is not None else []
        self.proc = subprocess.Popen(words, env={**os.environ, **(env_dict or {})})
        try:
            self._wait(max_wait_seconds or 600)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.proc.terminate()
        try:
            self.proc.wait(8)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()

    def url_for(self, *parts: str) -> str:
        return "/".join([f"http://{self.host}:{self.port}", *parts])

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.proc.poll() is not None:
                raise RuntimeError("Server exited unexpectedly.")
            connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.5)
        raise RuntimeError("Server failed to start in time.")
