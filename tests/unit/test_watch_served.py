"""What a watch serves and prints: nothing of what the server said, to nobody but this
machine."""

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from fake_server import answering, http, serving
from mmrepro.base.errors import UsageError
from mmrepro.live.watch import server
from mmrepro.live.watch.health import Check, Health
from mmrepro.live.watch.loop import ServerWatch, WatchDiagnosis, watch_of
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.server import WatchServer, parse_address, state

KEY = "sk-planted-0123456789abcdef"
ECHOES = {
    "plain": KEY,
    "quoted": quote(f"Bearer {KEY}="),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "reversed": KEY[::-1],
    "upper": KEY.upper(),
    "halved": f"{KEY[:13]} {KEY[13:]}",
}


class Never:
    def check(self) -> Check:
        raise AssertionError("this watch does not run")


@contextmanager
def served(address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[WatchServer]:
    made = WatchServer(ServerWatch(Never(), Health(), SERVED), address)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("status", [200, 401, 403, 429, 500, 503])
@pytest.mark.parametrize("where", ["models", "completion", "reason", "garbage"])
def test_a_key_that_the_server_echoes_is_neither_told_nor_served(
    status: int, where: str
) -> None:
    echo = json.dumps({"error": {"message": " ".join(ECHOES.values())}})
    listed = json.dumps({"data": [{"id": "tiny"}]})

    async def main() -> str:
        async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
            said = http(status, echo.encode())
            if where == "reason":
                said = (
                    f"HTTP/1.1 {status} {KEY}\r\nx: {KEY}\r\nContent-Length: 0\r\n\r\n"
                ).encode()
            if where == "garbage":
                said = f"{KEY} {echo}\r\n\r\n".encode()
            if request.startswith(b"GET /v1/models") and where != "models":
                said = http(200, listed.encode())
            await answering(said)(request, writer)

        told: list[str] = []
        async with serving(reply) as fake:
            made = watch_of(
                WatchCommand(
                    url=fake.url,
                    once=True,
                    deadline_s=5.0,
                    headers={"Authorization": f"Bearer {KEY}"},
                ),
                Health(grace_s=0),
                listener=lambda kind, text: told.append(text),
            )
            await asyncio.to_thread(made.run)
            assert any(KEY.encode() in request for request in fake.requests), (
                "it was sent"
            )
        return json.dumps(state(made)) + "\n".join(told)

    shown = asyncio.run(main())
    assert '"why": "' in shown
    assert [name for name, echo in ECHOES.items() if echo in shown] == []


SERVED = WatchCommand(http="9400")


def test_a_diagnosis_that_fails_does_not_quote_what_it_choked_on() -> None:
    told: list[str] = []
    made = ServerWatch(
        Never(), Health(), SERVED, listener=lambda kind, text: told.append(text)
    )

    def broken() -> WatchDiagnosis:
        raise ValueError(f"odd: {KEY}")

    made.diagnose = broken
    made._diagnose()
    assert told == ["the diagnosis failed: ValueError"]


# ------------------------------------------------------------------ who may ask


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9400", ("127.0.0.1", 9400)),
        ("9400", ("127.0.0.1", 9400)),
        ("[::1]:1", ("::1", 1)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::]:9400", ("::", 9400)),
    ],
)
def test_only_an_address_that_is_named_is_bound(
    text: str, address: tuple[str, int]
) -> None:
    assert parse_address(text) == address


def test_an_ipv6_address_is_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with (
        served(("::1", 0)) as made,
        socket.create_connection((made.address[0], made.address[1]), 5) as client,
    ):
        client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200")


def test_an_address_that_is_none_is_refused() -> None:
    with (
        pytest.raises(UsageError, match="cannot be bound"),
        served(("no-such-host.invalid", 1)),
    ):
        pass


# --------------------------------------------------------------- clients that misbehave


def test_a_client_that_hangs_up_is_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with served() as made:
        for sent in (
            b"",
            b"GET /live",
            b"GET / HTTP/1.0\r\n\r\n" * 50,
            b"\x16\x03\x01\0\0\r\n",
        ):
            for _ in range(10):
                client = socket.create_connection(made.address, 5)
                client.sendall(sent)
                # A reset instead of an orderly end: what was not read is thrown away.
                client.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                )
                client.close()
        assert answered(made)
    deadline = time.monotonic() + 100
    while any(
        t.name.startswith("Thread-") and "process_request" in t.name for t in every()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert capfd.readouterr() == ("", "")


def every() -> list[threading.Thread]:
    return threading.enumerate()


def answered(made: WatchServer) -> bool:
    with socket.create_connection(made.address, 5) as client:
        client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        return client.recv(100).startswith(b"HTTP/1.0 200")


def test_an_error_of_our_own_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with served() as made:
        made._server.handle_error(None, ("a client", 1))  # type: ignore[arg-type] # no error now
        try:
            raise KeyError("ours")
        except KeyError:
            made._server.handle_error(None, ("a client", 1))  # type: ignore[arg-type]
    assert "KeyError: 'ours'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "part", [b"G", b"GET /live HTTP/1.0\r\nx-", b"GET / HTTP/1.0\r\nA: b\r\n"]
)
def test_a_slow_writer_is_cut_off_in_the_end(
    monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(server, "EXCHANGE_S", 0.5)
    with served() as made, socket.create_connection(made.address, 5) as client:
        began = time.monotonic()
        client.sendall(part)
        client.settimeout(0.1)
        while True:
            assert time.monotonic() < began + 100, "it was never cut off"
            try:
                if not client.recv(1):
                    break
                raise AssertionError("it was answered")
            except TimeoutError:
                client.sendall(b"a")  # always within the time for one piece
            except ConnectionError:
                break
        assert time.monotonic() - began > 0.4
        assert answered(made)
