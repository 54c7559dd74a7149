"""What a long session keeps line by line, so that it can be gone on with: one file, one writer."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from mmrepro.errors import BadIncident, UsageError
from mmrepro.machine.journal import LineFile
from mmrepro.records import Record
from mmrepro.text.redact import Redactor
from pydantic import Field, TypeAdapter, ValidationError

KEPT_VERSION = 1
LineT = TypeVar("LineT", bound=Record)


class Names(NamedTuple):
    """``what``: that people call the session: "replay"; ``document``: names the command that goes
    on with it."""

    what: str
    file: str
    lock: str
    document: str


class Head(Record):
    """The first line: whose lines follow."""

    kind: Literal["head"] = "head"
    version: int = KEPT_VERSION
    mmrepro_version: str
    id: str
    decides: Annotated[
        dict[str, str], Field(description="options on which the way of the session depends")
    ] = {}

    def other_than(self, asked: Self) -> str:
        """In what way it is not of what is ``asked`` for; "": it is."""
        if self.mmrepro_version != asked.mmrepro_version:
            return f"was made by mmrepro {self.mmrepro_version}, this is {asked.mmrepro_version}"
        for name in {**self.decides, **asked.decides}:
            if self.decides.get(name) != asked.decides.get(name):
                return f"was begun with another {name}: {self.decides.get(name) or 'nothing'}"
        return ""


class Kept:
    """The lines of one session, in its folder; also a context manager.

    Raises:
        UsageError: the folder's lines are of something else, of other options or of another
            mmrepro, or another process goes on with it.
        BadIncident: a line is not what mmrepro wrote.
    """

    names: ClassVar[Names]
    adapter: ClassVar[TypeAdapter[Any]]
    """Of every line; the first one is a :class:`Head`."""

    def __init__(self, folder: Path, head: Head) -> None:
        what, file, lock, _ = self.names
        self.path = folder / file
        busy = UsageError(
            f"Another mmrepro goes on with the {what} in {folder}.", hint="wait until it has ended"
        )
        self._lines = LineFile(self.path, lock, what, busy)
        try:
            self.head = self._read(head, folder)
        except BaseException:
            self.close()
            raise

    def took(self, line: Record) -> None:
        """A line of an earlier call."""

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, line: LineT) -> LineT:
        """Keep it, as public as it is written. What goes on with it later sees what this call
        sees: the line as it was written."""
        text = Redactor().redact_model(line).model_dump_json().encode("utf-8", "replace")
        kept = self.adapter.validate_json(text)
        assert isinstance(kept, type(line))
        self._lines.append(text + b"\n")
        return kept

    def _read(self, head: Head, folder: Path) -> Head:
        lines = self._lines.content.splitlines()
        if not lines:
            return self.append(head)
        first = self.head_of(lines[0], folder)
        if other := first.other_than(head):
            what, _, _, document = self.names
            raise UsageError(
                f"The {what} in {folder} {other}.",
                hint=f"go on with the command that {document} names, or begin a new one with "
                "another --out",
            )
        for number, line in enumerate(lines[1:], start=2):
            try:
                self.took(self.adapter.validate_json(line))
            except ValidationError as error:
                raise BadIncident(
                    f"{self.path}, line {number} is not what mmrepro wrote.",
                    hint=f"begin a new {self.names.what}, with another --out",
                ) from error
        return first

    @classmethod
    def head_of(cls, line: bytes, folder: Path) -> Head:
        """Raises UsageError: it is none, or of another version."""
        try:
            head = cls.adapter.validate_json(line)
        except ValidationError:
            head = None
        if not isinstance(head, Head) or head.version != KEPT_VERSION:
            raise UsageError(
                f"{folder} holds no {cls.names.what} that this mmrepro can go on with.",
                hint="begin a new one, with another --out",
            )
        return head

    @classmethod
    def in_folder(cls, folder: Path) -> bool:
        """Whether there is one to go on with."""
        return (folder / cls.names.file).is_file()
