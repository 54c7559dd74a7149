"""A file that is only ever appended to, line by line, and what a kill leaves behind."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from filelock import FileLock, Timeout
from mmrepro.base.errors import (
    BadIncident,
    MmreproError,
    NoSpace,
    UnwritableOutput,
    UsageError,
)
from mmrepro.base.machine.files import open_plain
from mmrepro.base.records import Record
from mmrepro.base.text.redact import Redactor
from pydantic import Field, TypeAdapter, ValidationError

_JOURNAL_VERSION = 1
LineT = TypeVar("LineT", bound="Line")


class LineFile:
    """The one writer of a file of lines.

    What is appended is on disk when :meth:`append` returns. A last line that a kill
    tore is cut off as the file is opened: nobody was told of it. Appending is for one
    thread at a time.

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
            (
                f"The {self._what} {self.path} cannot be written: "
                f"{error.strerror or error}."
            ),
            hint="choose another --out, with a DIR that you may write",
        )


class Line(Record):
    """A line of a journal."""

    @property
    def once(self) -> str:
        """What is written down one time only, for a sentence; "": it may come again."""
        return ""


class Head(Line):
    """The first line: whose lines follow."""

    kind: Literal["head"] = "head"
    version: int = _JOURNAL_VERSION
    mmrepro_version: str
    id: str
    decides: Annotated[
        dict[str, str],
        Field(description="options on which the way of the session depends"),
    ] = {}

    def other_than(self, asked: Self) -> str:
        """In what way it is not of what is ``asked`` for; "": it is."""
        if self.mmrepro_version != asked.mmrepro_version:
            return (
                f"was made by mmrepro {self.mmrepro_version}, this is "
                f"{asked.mmrepro_version}"
            )
        for name in {**self.decides, **asked.decides}:
            if self.decides.get(name) != asked.decides.get(name):
                return (
                    f"was begun with another {name}: "
                    f"{self.decides.get(name) or 'nothing'}"
                )
        return ""


@dataclass(frozen=True)
class JournalKind:
    """What the journals of one kind of session have in common.

    Attributes:
        what: that people call the session: "replay".
        document: names the command that goes on with it.
        lines: reads every line; the first one is a :class:`Head`.
    """

    what: str
    file: str
    lock: str
    document: str
    lines: TypeAdapter[Any]

    def is_in(self, folder: Path) -> bool:
        """Whether there is one to go on with."""
        return (folder / self.file).is_file()

    def head(self, line: bytes, folder: Path) -> Head:
        """The first line. Raises UsageError: it is none, or of another version."""
        try:
            head = self.lines.validate_json(line)
        except ValidationError:
            head = None
        if not isinstance(head, Head) or head.version != _JOURNAL_VERSION:
            raise UsageError(
                f"{folder} holds no {self.what} that this mmrepro can go on with.",
                hint="begin a new one, with another --out",
            )
        return head


class Journal:
    """The lines of one session, in its folder; also a context manager.

    Attributes:
        head: of the call that began it.
        kept: the lines of earlier calls, without the head.

    Raises:
        UsageError: the folder's lines are of something else, of other options or of
            another mmrepro, or another process goes on with it.
        BadIncident: a line is not what mmrepro wrote.
    """

    def __init__(self, kind: JournalKind, folder: Path, head: Head) -> None:
        self.kind, self.path = kind, folder / kind.file
        busy = UsageError(
            f"Another mmrepro goes on with the {kind.what} in {folder}.",
            hint="wait until it has ended",
        )
        self._file = LineFile(self.path, kind.lock, kind.what, busy)
        self._once: set[str] = set()
        try:
            lines = self._file.content.splitlines()
            self.head = kind.head(lines[0], folder) if lines else self.append(head)
            if other := self.head.other_than(Redactor().redact_model(head)):
                raise UsageError(
                    f"The {kind.what} in {folder} {other}.",
                    hint=f"go on with the command that {kind.document} names, or begin "
                    "a new one with another --out",
                )
            self.kept = list(self._read(lines[1:]))
        except BaseException:
            self.close()
            raise

    def append(self, line: LineT) -> LineT:
        """Keep it, as public as it is written. What goes on with it later sees what
        this call
        sees: the line as it was written.

        Raises:
            UsageError: it is written down already.
        """
        self._note(line)
        text = (
            Redactor().redact_model(line).model_dump_json().encode("utf-8", "replace")
        )
        kept = self.kind.lines.validate_json(text)
        assert isinstance(kept, type(line))
        self._file.append(text + b"\n")
        return kept

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, lines: list[bytes]) -> Iterator[Any]:
        for number, text in enumerate(lines, start=2):
            try:
                line = self.kind.lines.validate_json(text)
                self._note(line)
            except (ValidationError, UsageError) as error:
                raise BadIncident(
                    f"{self.path}, line {number} is not what mmrepro wrote.",
                    hint=f"begin a new {self.kind.what}, with another --out",
                ) from error
            yield line

    def _note(self, line: Line) -> None:
        if line.once and line.once in self._once:
            raise UsageError(f"{line.once} twice.")
        self._once.add(line.once)
