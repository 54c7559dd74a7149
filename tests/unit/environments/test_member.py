"""One file out of a wheel that lies on a server or in a folder."""

from __future__ import annotations

import io
import re
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.engines.environments import member as module
from mmrepro.engines.environments.member import fetch_member
from mmrepro.engines.environments.uv import Distribution

PROGRAM = bytes(range(256)) * 4096
NAME = "vllm-0.23.0-cp38-abi3-manylinux_2_28_x86_64.whl"


def wheel_bytes() -> bytes:
    """A wheel of which the program is a small part."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("vllm/kernels.so", b"\0" * (24 << 20))
        archive.writestr("vllm/vllm-rs", PROGRAM)
    return content.getvalue()


WHEEL = wheel_bytes()


@dataclass
class Server:
    """A FAKE index on the loopback. ``sent``: bytes of bodies."""

    address: str = ""
    parts: bool = True
    cut: int = 0
    sent: int = 0
    ranges: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def no_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "logins", dict)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            state.ranges.append(asked)
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
            if match is None or not state.parts:
                self.send_response(200)
                self.send_header("Content-Length", str(len(WHEEL)))
                self.end_headers()
                return
            first, last = int(match[1]), int(match[2])
            body = WHEEL[first : last + 1 - state.cut]
            self.send_response(206)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(WHEEL)}")
            self.end_headers()
            self.wfile.write(body)
            state.sent += len(body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(module, "_READ_AHEAD", 1 << 20)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    state.address = f"http://127.0.0.1:{http.server_port}/{NAME}#sha256=0"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def wheel(address: str, size: int | None = len(WHEEL)) -> Distribution:
    return Distribution(NAME, None, "", size, address)


@pytest.mark.parametrize("size", [len(WHEEL), None])
def test_only_parts_of_the_wheel_are_sent(
    server: Server, tmp_path: Path, size: int | None
) -> None:
    path = tmp_path / "vllm-rs"
    fetch_member(wheel(server.address, size), "vllm/vllm-rs", path)
    assert path.read_bytes() == PROGRAM
    assert server.sent < len(WHEEL) // 4


def test_an_index_that_is_a_folder_is_read_there(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(WHEEL)
    path = tmp_path / "vllm-rs"
    fetch_member(wheel((tmp_path / NAME).as_uri()), "vllm/vllm-rs", path)
    assert path.read_bytes() == PROGRAM


def test_a_server_that_sends_whole_files_is_not_read(
    server: Server, tmp_path: Path
) -> None:
    server.parts = False
    with pytest.raises(EnvironmentBuildError, match="the index answers 200"):
        fetch_member(wheel(server.address), "vllm/vllm-rs", tmp_path / "vllm-rs")
    assert [*tmp_path.iterdir()] == []


def test_fewer_bytes_than_asked_for_are_no_program(
    server: Server, tmp_path: Path
) -> None:
    server.cut = 1
    with pytest.raises(EnvironmentBuildError, match="fewer bytes"):
        fetch_member(wheel(server.address), "vllm/vllm-rs", tmp_path / "vllm-rs")
    assert [*tmp_path.iterdir()] == []


def test_a_wheel_without_the_member_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBuildError, match=r"x86_64\.whl has no vllm/other"):
        fetch_member(wheel(server.address), "vllm/other", tmp_path / "other")


def test_a_server_that_is_gone_is_an_error_without_its_address(tmp_path: Path) -> None:
    address = "http://user:secret@127.0.0.1:9/x.whl"
    with pytest.raises(EnvironmentBuildError, match="ConnectError") as caught:
        fetch_member(wheel(address), "vllm/vllm-rs", tmp_path / "vllm-rs")
    assert "secret" not in str(caught.value)
