"""A file that is only ever appended to, line by line, and what a kill leaves behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

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
RecordT = TypeVar("RecordT", bound=Record)
KeptT = TypeVar("KeptT", bound=Record)


class LineFile:
    """The one writer of a file of lines.

    What is appended is on disk when :meth:`append` returns. A last line that a kill
    tore is cut off as the file is opened: nobody has read it. Appending is for one
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
        if self.closed:
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

    @property
    def closed(self) -> bool:
        return self._file < 0

    def close(self) -> None:
        if not self.closed:
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


class Journal(Generic[RecordT]):
    """Records in a file, one a line, which is only ever appended to.

    What :meth:`append` wrote is on disk when it returns, and a last line that a kill
    tore is gone. One process has the file at a time; within it any thread may append.
    Also a context manager.

    A kind of journal says how its lines are read, which record may follow, and what a
    record changes.

    Raises:
        MmreproError: ``busy``, where another process writes it.
        UnwritableOutput, NoSpace: as :class:`LineFile`.
    """

    def __init__(
        self,
        path: Path,
        lock: str,
        what: str,
        form: TypeAdapter[RecordT],
        busy: MmreproError,
    ) -> None:
        self.path, self._form = path, form
        self._mutex = threading.Lock()
        self.lines = LineFile(path, lock, what, busy)
        try:
            self.resume(self.lines.content)
        except BaseException:
            # The lock is held until the file is closed.
            self.close()
            raise

    def resume(self, content: bytes) -> None:
        """Take in the whole lines that are there."""
        raise NotImplementedError

    def public(self, record: KeptT) -> KeptT:
        """The record as others may read it."""
        return Redactor().redact_model(record)

    def check(self, record: RecordT) -> None:
        """Raise MmreproError where a record may not follow those that are there."""

    def take(self, record: RecordT) -> None:
        """Draw what follows from a record, which is in the file."""

    def append(self, record: KeptT) -> KeptT:
        """Write a record and wait until the disk has it.

        Returns it as whoever goes on with the journal reads it.

        Raises:
            MmreproError: it may not follow what is there.
            ValueError: it cannot be read again, or the journal is closed.
            NoSpace, UnwritableOutput: the file is as it was.
        """
        # Redacted, checked and written under one lock: a redactor counts what it
        # replaces, and the file has the order of what was taken.
        with self._mutex:
            line = _encoded(self.public(record))
            kept = self._form.validate_json(line)
            self.check(kept)
            self.lines.append(line + b"\n")
            self.take(kept)
        assert isinstance(kept, type(record))
        return kept

    @property
    def closed(self) -> bool:
        return self.lines.closed

    def close(self) -> None:
        """Give the file back to other processes."""
        self.lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _encoded(record: Record) -> bytes:
    # Not model_dump_json: NaN would be null in the file, and a lone surrogate, of
    # another process's words, is an error in some releases of pydantic.
    fields = record.model_dump(mode="json")
    text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace")


# -------------------------------------------------------------------------- of a session


class Line(Record):
    """A line of a journal."""

    once_as: ClassVar[str] = ""
    """What a line of that kind says, with its fields, if it may be said one time only;
    "": it may come again."""

    @property
    def once(self) -> str:
        return self.once_as.format(self)


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
        """Read the first line. Raises UsageError: it is no head of this version."""
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


class SessionJournal(Journal[Line]):
    """The lines of one session, in its folder: its head, then what happened.

    Attributes:
        head: of the call that began it.
        kept: the lines of earlier calls, without the head.

    Raises:
        UsageError: the folder's lines are of something else, of other options or of
            another mmrepro, or another process goes on with it.
        BadIncident: a line is not what mmrepro wrote.
    """

    head: Head

    def __init__(self, kind: JournalKind, folder: Path, head: Head) -> None:
        self.kind, self._folder, self._asked = kind, folder, head
        self.kept: list[Line] = []
        self._said: set[str] = set()
        busy = UsageError(
            f"Another mmrepro goes on with the {kind.what} in {folder}.",
            hint="wait until it has ended",
        )
        super().__init__(folder / kind.file, kind.lock, kind.what, kind.lines, busy)

    def resume(self, content: bytes) -> None:
        lines = content.splitlines()
        if lines:
            self.head = self.kind.head(lines[0], self._folder)
        else:
            self.head = self.append(self._asked)
        # What is written down is public: so is what it is held against.
        other = self.head.other_than(self.public(self._asked))
        if other:
            raise UsageError(
                f"The {self.kind.what} in {self._folder} {other}.",
                hint=f"go on with the command that {self.kind.document} names, or "
                "begin a new one with another --out",
            )

        for number, text in enumerate(lines[1:], start=2):
            try:
                line = self._form.validate_json(text)
                self.check(line)
            except (ValidationError, UsageError) as error:
                raise BadIncident(
                    f"{self.path}, line {number} is not what mmrepro wrote.",
                    hint=f"begin a new {self.kind.what}, with another --out",
                ) from error
            self.take(line)
            self.kept.append(line)

    def check(self, record: Line) -> None:
        """Raise UsageError where it is written down already."""
        if record.once in self._said:
            raise UsageError(f"{record.once} twice.")

    def take(self, record: Line) -> None:
        if record.once:
            self._said.add(record.once)
