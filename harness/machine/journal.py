"""A file that is only ever appended to, line by line, and what a kill leaves behind."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from filelock import FileLock, Timeout
from mmrepro.errors import MmreproError, NoSpace, UnwritableOutput
from mmrepro.machine.files import open_plain


class LineFile:
    """The one writer of a file of lines.

    What is appended is on disk when :meth:`append` returns. A last line that a kill tore is cut
    off as the file is opened: nobody was told of it. Appending is for one thread at a time.

    Attributes:
        content: the whole lines that were there.

    Args:
        what: that the file is, for sentences: "ledger".
        busy: raised where another process writes it.

    Raises:
        MmreproError: ``busy``.
        UnwritableOutput, NoSpace: the folder cannot be written.
    """

    def __init__(self, path: Path, lock: str, what: str, busy: MmreproError) -> None:
        self.path, self._what = path, what
        self._file = -1
        self._held = FileLock(path.parent / lock, thread_local=False)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._held.acquire(timeout=0)
        except Timeout:
            raise busy from None
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._open()
        except OSError as error:
            self.close()
            raise self._unwritable(error) from error

    def append(self, line: bytes) -> None:
        """Write ``line``, which has its end, and wait until the disk has it.

        Raises:
            ValueError: it is closed.
            NoSpace, UnwritableOutput: the file is as it was.
        """
        if self._file < 0:
            raise ValueError(f"{self.path} is closed")
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
            raise self._unwritable(error) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._held.release()

    def _open(self) -> None:
        self._file = open_plain(self.path, os.O_RDWR)
        with os.fdopen(os.dup(self._file), "rb") as file:
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self.content = content[:whole]
        if whole < len(content):
            os.ftruncate(self._file, whole)
        os.lseek(self._file, whole, os.SEEK_SET)
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _unwritable(self, error: OSError) -> NoSpace | UnwritableOutput:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(
                f"The disk that holds {self.path} is full.",
                hint="mmrepro env prune, then the same command again",
            )
        return UnwritableOutput(
            f"The {self._what} {self.path} cannot be written: {error.strerror or error}.",
            hint="choose another --out, with a DIR that you may write",
        )
