"""Episodes on disk as they begin and end: whoever goes on with a session repeats none."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, TypeAlias

from mmrepro.errors import BadIncident, UsageError
from mmrepro.fuzz.limits import Limits
from mmrepro.history.lines import LineFile
from mmrepro.incident.fuzz import EPISODES_FILE, Episode
from mmrepro.records import Record
from mmrepro.replay.seen import Seen
from mmrepro.run.deadline import Deadlines
from mmrepro.text.redact import Redactor
from pydantic import Field, TypeAdapter, ValidationError

STORE_VERSION = 1
LOCK_FILE = ".fuzz.lock"


class Head(Record):
    """The first line: whose episodes follow."""

    kind: Literal["head"] = "head"
    version: int = STORE_VERSION
    mmrepro_version: str
    id: str
    decides: dict[str, str]


class Began(Record):
    kind: Literal["began"] = "began"
    episode: Episode


class Ended(Record):
    """An episode, judged.

    Attributes:
        elapsed_s: of the session when it had ended.
        features: those that no episode before it showed.
        limits: as they are known from here on.
        silent: by itself it showed nothing: it was wrong beside a reference.
    """

    kind: Literal["ended"] = "ended"
    episode: Episode
    elapsed_s: float
    seen: Seen
    features: list[str] = []
    limits: Limits
    silent: bool = False
    blocks: int = 0
    answer_s: float
    suspect_s: float
    rule: str = ""

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


class Led(Record):
    """What the pursuit of an episode begins with.

    Attributes:
        straight: its requests one after another, in the order in which they were sent, show it as
            well: then it does not hang on chance.
        seen: the play of what is pursued.
    """

    kind: Literal["led"] = "led"
    number: int
    straight: bool
    seen: Seen
    starts: int = 0


class Pursued(Record):
    """What an episode showed has been pursued, in the folder ``replay``."""

    kind: Literal["pursued"] = "pursued"
    number: int
    replay: str
    elapsed_s: float
    seconds: float


Line: TypeAlias = Head | Began | Ended | Led | Pursued
AnyLine: TypeAlias = Annotated[Line, Field(discriminator="kind")]
_LINE: TypeAdapter[Line] = TypeAdapter(AnyLine)


class Store:
    """The episodes of one session, in its folder; also a context manager.

    Attributes:
        kept: what ended, and what was or is pursued, in earlier calls, in order.

    Raises:
        UsageError: the folder's episodes are of other options or of another mmrepro, or another
            process goes on with it.
    """

    def __init__(self, folder: Path, head: Head) -> None:
        self.path = folder / EPISODES_FILE
        self.kept: list[Ended | Led | Pursued] = []
        self._numbers: set[tuple[str, int]] = set()
        busy = UsageError(
            f"Another mmrepro goes on with the session in {folder}.", hint="wait until it has ended"
        )
        self._lines = LineFile(self.path, LOCK_FILE, "session", busy)
        try:
            self.head = self._read(head, folder)
        except BaseException:
            self.close()
            raise

    def began(self, episode: Episode) -> None:
        self._append(Began(episode=episode))

    def ended(self, line: Ended) -> Ended:
        """Keep it, as public as it is written. Raises UsageError: it ended before."""
        self._once("ended", line.episode.number)
        kept = self._append(line)
        assert isinstance(kept, Ended)
        return kept

    def led(self, line: Led) -> Led:
        """Raises UsageError: it was before."""
        self._once("led", line.number)
        kept = self._append(line)
        assert isinstance(kept, Led)
        return kept

    def pursued(self, line: Pursued) -> Pursued:
        """Raises UsageError: it was before."""
        self._once("pursued", line.number)
        kept = self._append(line)
        assert isinstance(kept, Pursued)
        return kept

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _once(self, kind: str, number: int) -> None:
        if (kind, number) in self._numbers:
            raise UsageError(f"Episode {number} {kind} twice.")
        self._numbers.add((kind, number))

    def _append(self, line: Line) -> Line:
        """What goes on with it later sees what this call sees: the line as it was written."""
        text = Redactor().redact_model(line).model_dump_json().encode("utf-8", "replace")
        kept = _LINE.validate_json(text)
        self._lines.append(text + b"\n")
        return kept

    def _read(self, head: Head, folder: Path) -> Head:
        lines = self._lines.content.splitlines()
        if not lines:
            kept = self._append(head)
            assert isinstance(kept, Head)
            return kept
        first = read_head(lines[0], folder)
        _same(first, head, folder)
        for number, line in enumerate(lines[1:], start=2):
            try:
                read = _LINE.validate_json(line)
            except ValidationError as error:
                raise BadIncident(
                    f"{self.path}, line {number} is not what mmrepro wrote.",
                    hint="begin a new session, with another --out",
                ) from error
            if isinstance(read, Ended):
                self._once("ended", read.episode.number)
                self.kept.append(read)
            elif isinstance(read, Led | Pursued):
                self._once(read.kind, read.number)
                self.kept.append(read)
        return first


def read_head(line: bytes, folder: Path) -> Head:
    """Raises UsageError: it is none, or of another version."""
    try:
        head = _LINE.validate_json(line)
    except ValidationError:
        head = None
    if not isinstance(head, Head) or head.version != STORE_VERSION:
        raise UsageError(
            f"{folder} holds no session that this mmrepro can go on with.",
            hint="begin a new one, with another --out",
        )
    return head


def _same(kept: Head, asked: Head, folder: Path) -> None:
    """Raises UsageError: what was kept is of something else."""
    if kept.mmrepro_version != asked.mmrepro_version:
        other = f"was made by mmrepro {kept.mmrepro_version}, this is {asked.mmrepro_version}"
    else:
        names = {**kept.decides, **asked.decides}
        changed = [n for n in names if kept.decides.get(n) != asked.decides.get(n)]
        if not changed:
            return
        was = kept.decides.get(changed[0]) or "nothing"
        other = f"was begun with another {changed[0]}: {was}"
    raise UsageError(
        f"The session in {folder} {other}.",
        hint="go on with the command that fuzz.json names, or begin a new one with another --out",
    )


def holds_session(folder: Path) -> bool:
    return (folder / EPISODES_FILE).is_file()
