"""Several sockets behind one port, of which one takes connections and answers none."""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from enough_processors import assert_undecided, is_short, with_processors
from fake_server import Reply, answering, completion, http
from mmrepro.base.machine.host import SHORT, Lateness
from mmrepro.failure.documents import ServerState
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import Diagnosed, diagnose
from mmrepro.live.watch.health import Check, CheckOutcome
from test_watch_liveness import checker, routed

T = TypeVar("T")


@contextmanager
def second_socket(port: int) -> Iterator[None]:
    """Another socket of this port, which takes connections and answers none."""
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        mute.bind(("127.0.0.1", port))
        mute.listen(64)
        yield


T = TypeVar("T")


def beside_a_silent_socket(reply: Reply, look: Callable[[str], T]) -> T:
    """What ``look`` finds at a port on which a second socket listens."""

    async def serve() -> T:
        async def connected(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            if found := re.search(rb"(?i)content-length: (\d+)", request):
                await reader.readexactly(int(found[1]))
            await reply(request, writer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(
            connected, "127.0.0.1", 0, reuse_port=True, backlog=64
        )
        port = server.sockets[0].getsockname()[1]

        def looked() -> T:
            with second_socket(port):
                return look(f"http://127.0.0.1:{port}")

        try:
            return await asyncio.to_thread(looked)
        finally:
            server.close()

    return asyncio.run(serve())


ANSWERS = routed(answering(http(200, completion())))


def checks(url: str, deadline_s: float) -> Iterator[Check]:
    with checker(url, deadline_s) as made:
        for _ in range(60):
            yield made.check()


@pytest.mark.slow
def test_one_silent_socket_of_two_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lateness, "share", 0.0)

    def look(url: str) -> str:
        for check in checks(url, 1.0):
            if "one of 2 sockets" in check.why:
                return check.verdict
        return "never"

    assert beside_a_silent_socket(ANSWERS, look) == CheckOutcome.SILENT


@pytest.mark.slow
def test_on_a_machine_short_of_processors_a_late_socket_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lateness, "share", SHORT + 0.01)

    def look(url: str) -> str:
        """The first check whose own request met the socket that answers."""
        for check in checks(url, 1.0):
            if check.verdict in (CheckOutcome.OK, CheckOutcome.SILENT):
                return check.verdict
        return "never"

    assert beside_a_silent_socket(ANSWERS, look) == CheckOutcome.OK


def asked(url: str) -> Diagnosed:
    return diagnose(DiagnoseCommand(url=url, deadline_s=1.0, model="tiny"))


@pytest.mark.slow
def test_a_diagnosis_finds_it_whichever_socket_gets_its_request() -> None:
    def look(url: str) -> list[Diagnosed]:
        looks = []
        for _ in range(4):
            looks.append(
                with_processors(
                    lambda: asked(url), lambda found: is_short(found.incident.evidence)
                )
            )
        return looks

    for found in beside_a_silent_socket(ANSWERS, look):
        if is_short(found.incident.evidence):
            assert_undecided(found.diagnosis)
        else:
            assert found.diagnosis.state is ServerState.FRONT_FROZEN
