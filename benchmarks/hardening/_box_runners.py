"""What an attack is run by: a client in its box, and a server in its, as `mmrepro
repro` has them.

The bounds are smaller than those of a report (memory, processes, folders), so that a
bomb which is harmless outside passes them."""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from hardening._outside import QUOTE, AttackRun, Outside
from mmrepro.base.box import BoxOrder, Limits, inside
from mmrepro.base.errors import SupervisorError
from mmrepro.engines.supervise import start_engine
from mmrepro.runs.starter import variables_inside
from mmrepro.traffic.capture import client as clients
from mmrepro.traffic.capture.client import ClientWanted, beside, run_client
from mmrepro.traffic.capture.recording_box import BoxedRecording

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
    "file": 64 << 20,
    "files": 1024,
    "inodes": 10_000,
}


def limits(**asked: Any) -> Limits:
    """The bounds of a box, none above what the outside accepts."""
    return Limits(**{**asked, **SMALL})


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


def client(
    outside: Outside, script: Path, seconds: float, _weak: str = ""
) -> AttackRun:
    """Run the script as the client of a report."""
    with (
        tempfile.TemporaryDirectory() as made,
        a_door(Path(made)) as door,
        mock.patch.object(clients, "Limits", limits),
        mock.patch.object(clients, "MOST_OUTPUT", outside.bounds.output),
        beside(None, script.read_text("utf-8"), script.name) as folder,
        BoxedRecording(door, 9, "tiny") as recording,
    ):
        wanted = ClientWanted(
            ("python3", script.name),
            folder,
            limit_s=seconds,
            python=PYTHON,
            readable=(PYTHON.parent.parent,),
        )
        ran = run_client(wanted, recording)
    output = ran.output.encode("utf-8", "surrogateescape")
    told = "\n".join([ran.isolation, ran.ended, *ran.notes]).encode()
    return AttackRun(
        KILLED if ran.ended else ran.code, output, told + b"\n" + quoted(output)
    )


def server(
    outside: Outside, script: Path, seconds: float, _weak: str = ""
) -> AttackRun:
    """Run the script as the server of a report, under its supervisor."""
    with tempfile.TemporaryDirectory() as made:
        log = Path(made) / "engine.log"
        readable = (PYTHON.parent.parent, script)
        order = BoxOrder(
            (), readable=readable, limits=replace(limits(), address_space=0)
        )
        code: int | None = None
        ended = ""
        deadline = time.monotonic() + seconds
        process = None
        try:
            process = start_engine(
                [str(PYTHON), str(script)],
                variables_inside(),
                cwd=Path(made),
                log=log,
                grace_s=0.5,
                box=order,
            )
            while code is None and time.monotonic() < deadline:
                time.sleep(0.05)
                code = process.exit_code
        except SupervisorError as error:  # its box was ended, which is its end
            ended = str(error)
        finally:
            if process is not None:
                process.stop()  # however stubborn it is: its end
            code = KILLED if code is None else code
        output = log.read_bytes()[: outside.bounds.output]
    return AttackRun(code, output, ended.encode() + b"\n" + quoted(output))
