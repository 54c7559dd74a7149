"""What a hostile server answers mmrepro: it is not followed, and not waited for."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from mmrepro.base.machine import answer
from mmrepro.engines.supervise import answers

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers everybody with the same bytes, then one a tenth of
    a second for as long as the client reads."""
    listeners: list[socket.socket] = []

    def reply(connection: socket.socket, text: bytes) -> None:
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(text)
                while text.endswith(b"X-Slow: "):
                    time.sleep(0.1)
                    connection.sendall(b"x")
            except OSError:
                return

    def accept(listener: socket.socket, text: bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=reply, args=(connection, text), daemon=True).start()

    def begin(text: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=accept, args=(listener, text), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/health"

    yield begin
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


SOUND = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def test_a_sound_answer_is_read_up_to_a_bound(serve: Serve) -> None:
    url = serve(SOUND)
    assert answers(url)
    assert answer.get(url, 4) == (200, b"hell")
    assert not answers(serve(SOUND.replace(b"200 OK", b"503 No")))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(serve: Serve, status: int) -> None:
    elsewhere = serve(SOUND)
    head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {elsewhere}\r\n"
    assert not answers(serve(head.encode() + b"Content-Length: 0\r\n\r\n"))


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X-Many: 1\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"",
    ],
    ids=["headers", "line", "no HTTP", "status", "nothing"],
)
def test_what_is_no_answer_is_none(serve: Serve, text: bytes) -> None:
    assert not answers(serve(text))


def test_a_server_that_drips_is_not_waited_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "ANSWER_S", 0.5)
    began = time.monotonic()
    assert not answers(serve(b"HTTP/1.1 200 OK\r\nX-Slow: "))
    assert time.monotonic() - began < 30, "it drips without an end"
