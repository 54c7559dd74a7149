"""What an attack is run by: a client in its box, and a server in its, as `mmrepro
repro` has them.

The bounds are smaller than those of a report (memory, processes, folders), so that a
bomb which is harmless outside passes them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from hardening._outside import QUOTE, AttackRun, Outside
from hardening._runners import PEER
from mmrepro.base.box import BoxOrder, Limits, inside
from mmrepro.base.errors import SupervisorError, UsageError
from mmrepro.engines.supervise import EngineProcess, answers, start_engine
from mmrepro.runs.starter import variables_inside
from mmrepro.traffic.capture import client as clients, recording_box as recordings
from mmrepro.traffic.capture.client import ClientRun, ClientWanted, beside, run_client
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.capture.recording_box import BoxedRecording
from mmrepro.traffic.case.model import ServerWanted
from mmrepro.traffic.client import Traffic
from mmrepro.traffic.evidence.recorder import Recorder

PYTHON = Path(sys.executable).resolve()
KILLED = 137
"""The exit code of what mmrepro has ended."""
SMALL = {
    "memory": 256 << 20,
    "address_space": 1 << 30,
    "processes": 150,
    "work": 64 << 20,
    "temporary": 64 << 20,
    "shared": 64 << 20,
    "file": 24 << 20,
    "files": 1024,
    "inodes": 10_000,
}


def limits(**asked: Any) -> Limits:
    """The bounds of a box, none above what the outside accepts."""
    return Limits(**{**asked, **SMALL})


def limits_of_many(**asked: Any) -> Limits:
    """The same for what maps more than it uses: a server, and a recording's parser."""
    return replace(limits(**asked), address_space=0)


def quoted(output: bytes) -> bytes:
    """Lines of a stranger's as mmrepro shows them."""
    return b"".join(
        QUOTE + repr(line).encode() + b"\n" for line in output.splitlines()[:1000]
    )


@contextlib.contextmanager
def a_door(folder: Path) -> Iterator[Path]:
    """A way into a server's box, where none is needed: it leads to ports of this
    machine."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "door"))
        (folder / "door").chmod(0o666)
        listener.listen()
        relay = inside.Relay(listener, inside.to_port)
        threading.Thread(target=relay.accept, daemon=True).start()
        yield folder / "door"


PEER_S = 60.0
"""A server that is attacked runs so long, and is ended before."""
ASKS_S = 8.0
PORT = 8000
TOGETHER_S = 40.0
"""Both sides take three boxes, each of which takes a second to start on a busy
machine."""


@contextlib.contextmanager
def small_boxes(outside: Outside) -> Iterator[None]:
    """Within, the boxes of clients and recordings have the bounds of the outside."""
    with (
        mock.patch.object(clients, "Limits", limits),
        mock.patch.object(recordings, "Limits", limits_of_many),
        # All of it is kept, so that the beginning of what prints without end is seen.
        mock.patch.object(clients, "OUTPUT", outside.bounds.output),
        mock.patch.object(clients, "MOST_OUTPUT", outside.bounds.output // 2),
    ):
        yield


def needs_peer(script: Path) -> bool:
    """Whether an attack is on the other side, or on what stands between."""
    return script.stem.startswith(("door-", "peer-", "server-"))


def client(
    outside: Outside, script: Path, seconds: float, _weak: str = ""
) -> AttackRun:
    """Run the script as the client of a report, beside a server where that is
    attacked."""
    if needs_peer(script):
        return client_beside_server(outside, script)
    with (
        tempfile.TemporaryDirectory() as made,
        a_door(Path(made)) as door,
        small_boxes(outside),
        BoxedRecording(door, 9, "tiny") as recording,
    ):
        return told(run_script(script, recording, seconds))


def client_beside_server(outside: Outside, script: Path) -> AttackRun:
    """A client attacks a server, the recording between them, and mmrepro that reads
    it."""
    with tempfile.TemporaryDirectory() as made, small_boxes(outside):
        words = ["serve", outside.peer_secret, outside.marker, str(PEER_S)]
        peer = start_server(Path(made), PEER, words)
        try:
            with BoxedRecording(peer.door, PORT, "tiny") as recording:
                ran = run_script(script, recording, TOGETHER_S)
                ran.notes += read_recording(recording, Path(made) / "recorded.har")
            survived = peer.exit_code is None
        finally:
            peer.stop()
    # Its death is an escape, and what did not come to an end is judged as one.
    return told(ran) if survived else told(ran)._replace(exit_status=None)


def run_script(script: Path, recording: BoxedRecording, seconds: float) -> ClientRun:
    """Run an attack as a client."""
    with beside(None, script.read_text("utf-8"), script.name) as folder:
        return run_client(wanted(("python3", script.name), folder, seconds), recording)


def wanted(command: tuple[str, ...], folder: Path, seconds: float) -> ClientWanted:
    return ClientWanted(
        command,
        folder,
        limit_s=seconds,
        python=PYTHON,
        readable=(PYTHON.parent.parent,),
    )


def read_recording(recording: BoxedRecording, file: Path) -> list[str]:
    """Read what was recorded as mmrepro does; returns what it says of it."""
    server = ServerWanted(engine="minivllm", release="0.1")
    try:
        recording.write(file)
        return [*recording.notes, *read(file, server).case.origin.notes]
    except UsageError as error:
        return [error.message]


def told(ran: ClientRun) -> AttackRun:
    """What mmrepro says of a client, and what that printed."""
    output = ran.output.encode("utf-8", "surrogateescape")
    words = "\n".join([ran.isolation, ran.ended, *ran.notes]).encode()
    code = KILLED if ran.ended else ran.code
    return AttackRun(code, output, words + b"\n" + quoted(output))


def start_server(
    folder: Path, script: Path, words: Sequence[str] = ()
) -> EngineProcess:
    """Start a script as a server, under its supervisor. Raises SupervisorError."""
    readable = (PYTHON.parent.parent, script)
    return start_engine(
        [str(PYTHON), str(script), *words],
        variables_inside(),
        cwd=folder,
        log=folder / "engine.log",
        grace_s=0.5,
        box=BoxOrder((), readable=readable, limits=limits_of_many()),
    )


def server(
    outside: Outside, script: Path, seconds: float, _weak: str = ""
) -> AttackRun:
    """Run the script as the server of a report, under its supervisor, and beside a
    client where that is attacked."""
    with tempfile.TemporaryDirectory() as made, small_boxes(outside):
        folder = Path(made)
        code: int | None = None
        words: list[str] = []
        process = None
        survived = True
        try:
            process = start_server(folder, script)
            if needs_peer(script):
                survived, words = asked_by_peer(outside, process, folder)
            code = ended_within(process, seconds)
        except SupervisorError as error:  # its box was ended, which is its end
            words.append(str(error))
        finally:
            if process is not None:
                process.stop()  # however stubborn it is: its end
            code = KILLED if code is None else code
        output = (folder / "engine.log").read_bytes()[: outside.bounds.output]
    own = "\n".join(words).encode()
    return AttackRun(code if survived else None, output, own + b"\n" + quoted(output))


def ended_within(process: EngineProcess, seconds: float) -> int | None:
    """Its exit code; None: it has not ended in time."""
    deadline = time.monotonic() + seconds
    while process.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process.exit_code


def asked_by_peer(
    outside: Outside, process: EngineProcess, folder: Path
) -> tuple[bool, list[str]]:
    """Send a server requests of a client in a box and of mmrepro itself; returns
    whether the client lived, and what is said."""
    assert process.door is not None
    with (
        BoxedRecording(process.door, PORT, "tiny") as recording,
        beside(None, PEER.read_text("utf-8"), PEER.name) as place,
    ):
        words = ("ask", outside.peer_secret, outside.marker, str(ASKS_S))
        command = ("python3", PEER.name, *words)
        asking = wanted(command, place, TOGETHER_S)
        with ThreadPoolExecutor() as beside_it:
            own = beside_it.submit(ask_as_mmrepro, process, folder)
            ran = run_client(asking, recording)
            own.result()  # mmrepro's own error is the end of the rehearsal
        notes = read_recording(recording, folder / "recorded.har")
    return not ran.ended and ran.code == 0, notes


def ask_as_mmrepro(process: EngineProcess, folder: Path) -> None:
    """Send a server what mmrepro sends, and read its answers as mmrepro does."""
    url = f"http://127.0.0.1:{PORT}"
    with contextlib.suppress(SupervisorError):  # it has ended
        process.reach(PORT)
        answers(f"{url}/health")
        asyncio.run(send_some(url, folder))


async def send_some(url: str, folder: Path) -> None:
    traffic = Traffic(url, "tiny", Recorder(folder))
    for number in range(4):
        stream = bool(number % 2)
        await traffic.chat(str(number), text="hello", deadline_s=3, stream=stream)
    await traffic.close()
