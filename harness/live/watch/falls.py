"""The evidence of a fall: taken once when a check first fails, kept in a folder or sent
to an HTTP endpoint, bounded in time, size, count and age."""

from __future__ import annotations

import contextlib
import io
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
from mmrepro.base.errors import MmreproError
from mmrepro.base.tar import tarfile
from mmrepro.base.units import size
from mmrepro.failure.documents.fall import FALL_FILE, FallRecord
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.watch.options import WatchCommand

Capture = Callable[[DiagnoseCommand, Path, str, float], FallRecord]
"""Looks at the server and writes what it sees to a folder, within so many seconds."""

_DEFAULT_ROOT = Path("incidents")
_NAME = "fall-"
_DAY_S = 86400.0
MOST_BYTES = 32 << 20
"""Of one capture: raw dumps go first, the largest of them before the others."""
MOST_TOTAL_BYTES = 256 << 20
_SEND_SHARE = 0.25
"""Of the time for a capture, where it is to be sent."""


class FallKeeper:
    """Takes one capture for each fall of one server.

    Args:
        take: what looks.
        tell: gets an event's kind and a sentence.
        name: of the server, where several are watched.
    """

    def __init__(
        self,
        asked: WatchCommand,
        tell: Callable[[str, str], None],
        *,
        take: Capture | None = None,
        name: str = "",
    ) -> None:
        self._asked = asked
        self._tell = tell
        self._take = take
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._fallen = False
        self.taken = 0
        self.last: str = ""
        """Where the last capture went; "": there is none."""

    @property
    def is_sent(self) -> bool:
        return self._asked.capture.startswith(("http://", "https://"))

    @property
    def root(self) -> Path:
        """The folder of all captures."""
        if self._asked.capture and not self.is_sent:
            return Path(self._asked.capture)
        return self._asked.out or _DEFAULT_ROOT

    def rise(self) -> None:
        """It answers again: the next failure is another fall."""
        with self._lock:
            self._fallen = False

    def fall(self, why: str) -> None:
        """Begin a capture, if this fall has none yet; returns at once."""
        with self._lock:
            if self._fallen:
                return
            self._fallen = True
            self._thread = threading.Thread(
                target=self._capture, args=(why,), name="fall", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Until the capture that was begun has ended; never longer than one may take."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._asked.capture_s + 5.0)

    def _capture(self, why: str) -> None:
        until = time.monotonic() + self._asked.capture_s
        try:
            told = self._captured(why, until)
        except Exception as error:  # the watch goes on, whatever becomes of a capture
            # Its text may be the server's: only of our own errors it is not.
            told = error.message if isinstance(error, MmreproError) else ""
            told = f"no evidence was kept: {told or type(error).__name__}"
            self._tell("error", told)
            return
        self._tell("capture", told)

    def _captured(self, why: str, until: float) -> str:
        """Take the evidence, and say where it is."""
        folder = self._new_folder()
        share = 1.0 - _SEND_SHARE if self.is_sent else 1.0
        within_s = share * max(1.0, until - time.monotonic())
        record = self._look(folder, why, within_s)
        dropped = cut_to(folder, MOST_BYTES)
        self.taken += 1
        self.last = str(folder)
        told = f"evidence of the fall: {folder}"
        if dropped:
            told += f" ({dropped} raw files left out)"
        if record.oldest is not None:
            told += f"; the oldest open request is {record.oldest.id or 'unnamed'}"
        if self.is_sent:
            self.last = self._asked.capture
            told = self._send(folder, max(1.0, until - time.monotonic()))
        prune(self.root, self._asked.max_incidents, self._asked.keep_days * _DAY_S)
        return told

    def _look(self, folder: Path, why: str, within_s: float) -> FallRecord:
        from mmrepro.live.diagnose.fall import capture_fall

        take = self._take or capture_fall
        asked = self._asked
        plan = DiagnoseCommand(
            url=asked.url, model=asked.model, logs=asked.logs, headers=asked.headers
        )
        return take(plan, folder, why, within_s)

    def _new_folder(self) -> Path:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        server = f"-{self._name.replace(':', '-')}" if self._name else ""
        self.root.mkdir(parents=True, exist_ok=True)
        base = self.root / f"{_NAME}{stamp}{server}"
        number = 1
        folder = base
        while True:
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
                folder = base.with_name(f"{base.name}-{number}")
                continue
            return folder

    def _send(self, folder: Path, within_s: float) -> str:
        """POST the folder as a packed tar; it stays here where that fails."""
        packed = pack(folder)
        try:
            with httpx2.Client(trust_env=False, timeout=within_s) as client:
                answer = client.post(
                    self._asked.capture,
                    content=packed,
                    headers={
                        "Content-Type": "application/gzip",
                        "X-Mmrepro-Fall": folder.name,
                    },
                )
        except (httpx2.HTTPError, OSError) as error:
            return (
                f"evidence of the fall was not sent ({type(error).__name__}): {folder}"
            )
        if answer.is_success:
            shutil.rmtree(folder, ignore_errors=True)
            return f"evidence of the fall was sent: {size(len(packed))}"
        return f"evidence of the fall was refused ({answer.status_code}): {folder}"


def pack(folder: Path) -> bytes:
    """A folder as a packed tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return buffer.getvalue()


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def cut_to(folder: Path, most_bytes: int) -> int:
    """Remove raw files, the largest first, until the folder is small enough; how many
    were removed. The record itself stays."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    raw = [file for file in files if file.name != FALL_FILE]
    left = sum(file.stat().st_size for file in files)
    removed = 0
    for file in sorted(raw, key=lambda file: file.stat().st_size, reverse=True):
        if left <= most_bytes:
            break
        left -= file.stat().st_size
        file.unlink()
        removed += 1
    return removed


def prune(root: Path, most: int, most_age_s: float) -> int:
    """Remove the oldest captures below ``root`` beyond their count, age and total size;
    how many were removed. What is no capture is never touched."""
    captures = [file.parent for file in root.glob(f"{_NAME}*/{FALL_FILE}")]
    newest_first = sorted(captures, key=lambda folder: folder.name, reverse=True)
    now, total, removed = time.time(), 0, 0
    for place, folder in enumerate(newest_first):
        with contextlib.suppress(OSError):
            total += _size_of(folder)
            old = now - folder.stat().st_mtime > most_age_s
            # The newest one stays, whatever its size.
            if place and (place >= most or old or total > MOST_TOTAL_BYTES):
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
    return removed
