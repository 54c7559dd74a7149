"""A recording of a client's requests, made in a box of its own.

What a client sends and a server answers is parsed there, so that a request which brings
the parser down brings down nothing else. mmrepro reads how it stands from a pipe, and
the finished HAR from a file that the box was given open: both bounded, both as data.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import mmrepro
from mmrepro import probes, reproducers
from mmrepro.base.box import GIB, WORK, Box, BoxOrder, Leads, Limits
from mmrepro.base.errors import UsageError

_MODULE: Final = "mmrepro.traffic.capture.recording_box"
_STATUS_S: Final = 0.2
_MOST_LINE: Final = 1 << 20
_MOST_NOTES: Final = 50
_MOST_RECORDED: Final = GIB
READY_S, WRITTEN_S = 60.0, 120.0


class BoxedRecording:
    """A recording proxy in a box, between a client's box and a server's; a context
    manager.

    Attributes:
        model: the name that the server has for its model.
        socket: the Unix socket at which a client's requests arrive.
        notes: sentences on what was not recorded; whole once it was written.
    """

    def __init__(self, door: Path, port: int, model: str) -> None:
        """``door``: the way into the server's box; ``port``: of the server there."""
        self.door, self.port, self.model = door, port, model
        self.notes: list[str] = []
        self._silent_s = 0.0
        self._done = threading.Event()
        self._ready = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="mmr-recording-")
        self.socket = Path(self._folder.name) / "proxy"
        self._file = Path(self._folder.name) / "recorded.har"
        self._box: Box | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since anything came of the requests that wait; 0: none does."""
        return self._silent_s

    def __enter__(self) -> Self:
        """Start it. Raises NoBox."""
        with socket.socket(socket.AF_UNIX) as listener, self._file.open("wb") as file:
            listener.bind(str(self.socket))
            # Its folder is closed to others; the client may have another uid.
            self.socket.chmod(0o666)
            listener.listen(128)
            asked = {
                "port": self.port,
                "model": self.model,
                "listener": listener.fileno(),
                "file": file.fileno(),
            }
            order = BoxOrder(
                argv=(sys.executable, "-I", "-m", _MODULE, json.dumps(asked)),
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                readable=(Path(sys.prefix), *_import_paths()),
                leads=(Leads((self.port,), self.door, f"{self.port}\n"),),
                descriptors=(listener.fileno(), file.fileno()),
                limits=Limits(memory=2 * GIB, processes=2048, file=_MOST_RECORDED),
            )
            self._box = Box(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        threading.Thread(target=self._listen, name="recording", daemon=True).start()
        self._ready.wait(READY_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._box is not None:
            self._box.end()
        self._folder.cleanup()

    def write(self, file: Path) -> None:
        """End the recording, and move it to ``file``.

        Raises:
            UsageError: it ended early, or was not whole in time.
        """
        assert self._box is not None
        stdin = self._box.process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()
        if not self._done.wait(WRITTEN_S) or not self._file.stat().st_size:
            why = self._box.over or "its box has ended"
            raise UsageError(f"What the client sent could not be recorded: {why}.")
        # Copied: a box may still hold the file open.
        content = self._file.read_bytes()
        file.write_bytes(content[:_MOST_RECORDED])

    def _listen(self) -> None:
        """Read how it stands, line by line."""
        assert self._box is not None
        stream = self._box.process.stdout
        assert stream is not None
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            while line := stream.readline(_MOST_LINE):
                self._take(json.loads(line))
        self._silent_s = 0.0
        self._ready.set()
        self._done.set()

    def _take(self, status: dict[str, Any]) -> None:
        self._silent_s = float(status.get("silent_s", 0.0))
        self._ready.set()
        if "notes" in status:
            notes = [str(note)[:500] for note in status["notes"]]
            self.notes = notes[:_MOST_NOTES]
            self._done.set()


def _import_paths() -> list[Path]:
    """Where this interpreter finds mmrepro and what it imports, beside its own folders.

    In a checkout the parts of the package lie in folders of their own (pyproject.toml).
    """
    packages = (mmrepro, probes, reproducers)
    parts = [Path(package.__file__).parent for package in packages if package.__file__]
    return [
        *parts,
        *(Path(path) for path in sys.path if path and Path(path).is_absolute()),
    ]


# --------------------------------------------------------------------------- in the box


def main() -> None:
    """Record until standard input ends; then write, and print the notes."""
    from mmrepro.traffic.capture.proxy import RecordingProxy

    asked = json.loads(sys.argv[1])
    written = WORK / "recorded.har"
    with RecordingProxy(asked["port"], asked["model"]) as proxy:
        proxy.listen(socket.socket(fileno=asked["listener"]))
        while not _ended(_STATUS_S):
            print(json.dumps({"silent_s": round(proxy.silent_s, 2)}), flush=True)
        proxy.write(written)
        notes = proxy.notes
    with written.open("rb") as source, os.fdopen(asked["file"], "wb") as target:
        while piece := source.read(1 << 20):
            target.write(piece)
    print(json.dumps({"notes": notes}), flush=True)


def _ended(seconds: float) -> bool:
    """Whether standard input ends within so long."""
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and not os.read(0, 1)


if __name__ == "__main__":
    main()
