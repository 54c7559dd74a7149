"""Standard streams on which every command can rely.

A shell may hand on a stdout that takes ASCII alone, is full or closed, or whose reader
left. That is dealt with here, below everything that prints: what the encoding lacks is
written as JSON escapes it; the first write that fails raises OSError, what follows goes
nowhere, and the exit code tells."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import shutil
import sys
from typing import TYPE_CHECKING, TextIO

from mmrepro.base.errors import ExitCode

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ESCAPING = "mmrepro-escape"
_ASCII = "ascii_escaped"
"""ASCII by another name: click writes UTF-8 to a stream that calls itself ASCII."""


class Streams:
    """Puts itself below ``sys.stdout`` and ``sys.stderr``, where they are the process's
    own."""

    def __init__(self) -> None:
        for number, way in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
            _fill(number, way)
        codecs.register(_ascii)
        codecs.register_error(_ESCAPING, _escaped)
        self._stdout = _Steady(1)
        self._stderr = _Steady(2)
        if sys.stdout is sys.__stdout__:
            sys.stdout = _text(self._stdout, sys.stdout)
        if sys.stderr is sys.__stderr__:
            sys.stderr = _text(self._stderr, sys.stderr)

    @property
    def lost(self) -> bool:
        """Whether something that was printed reached nobody."""
        return self._stdout.failed is not None or self._reader_left

    @property
    def _reader_left(self) -> bool:
        failures = (self._stdout.failed, self._stderr.failed)
        return any(isinstance(failure, BrokenPipeError) for failure in failures)

    def settle(self, code: int) -> int:
        """Write what is left; the exit code, which is another one than ``code`` if it
        was lost."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        if code == ExitCode.INTERRUPTED:
            return code
        if self._reader_left:
            return ExitCode.READER_GONE
        if self._stdout.failed is None:
            return code
        why = self._stdout.failed.strerror
        sys.stderr.write(f"Cannot write to stdout: {why}.\n")
        return ExitCode.INFRASTRUCTURE


def terminal_width(*, stderr: bool = False) -> int:
    """Columns of the terminal that reads it; 0: it is none, and nothing is wrapped."""
    stream = sys.stderr if stderr else sys.stdout
    return shutil.get_terminal_size().columns if stream.isatty() else 0


class _Steady(io.FileIO):
    """A file descriptor that fails once. A full stderr never does: nobody reads a
    message."""

    failed: OSError | None = None

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (
                written := super().write(data)
            ) is None:  # it does not block, and is full
                select.select([], [self], [])
        except OSError as error:
            self.failed = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if self.fileno() == 2 and not isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            raise
        return written


def _fill(number: int, way: int) -> None:
    """Where ``number`` is closed the next file would get it, and be printed into. A
    stdout that is read-only fails as a closed one does, when it is written to."""
    try:
        os.fstat(number)
    except OSError:
        # The lowest number that is free is given: this one.
        opened = os.open(os.devnull, way)
        os.set_inheritable(opened, True)


def _text(below: _Steady, before: TextIO | None) -> TextIO:
    encoding = getattr(before, "encoding", "utf-8")
    errors = getattr(before, "errors", _ESCAPING)
    return io.TextIOWrapper(
        io.BufferedWriter(below),
        encoding=_ASCII if codecs.lookup(encoding).name == "ascii" else encoding,
        errors=_ESCAPING if errors in ("strict", "surrogateescape") else errors,
        line_buffering=getattr(before, "line_buffering", True)
        or getattr(before, "write_through", False),
    )


def _ascii(name: str) -> codecs.CodecInfo | None:
    if name != _ASCII:
        return None
    ascii = codecs.lookup("ascii")
    return codecs.CodecInfo(
        ascii.encode,
        ascii.decode,
        ascii.streamreader,
        ascii.streamwriter,
        ascii.incrementalencoder,
        ascii.incrementaldecoder,
        name,
    )


def _escaped(error: UnicodeError) -> tuple[str, int]:
    import json

    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
