"""The ledger's file: a record a line, one writer, and what a kill leaves behind."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from mmrepro.base.errors import BadLedger, LedgerBusy, UsageError
from mmrepro.base.machine import Journal, KeptT, is_folder, read_file
from mmrepro.base.records import misfits
from mmrepro.base.text import Redactor, one_line
from mmrepro.failure.documents import (
    LEDGER_FILE,
    LEDGER_VERSION,
    Attempt,
    Cell,
    Event,
    Line,
    Night,
    NightState,
    Planned,
)
from pydantic import TypeAdapter, ValidationError

_LOCK_FILE = ".ledger.lock"
_MAX_BYTES = 512 << 20
"""A year of nights has 50 MiB."""
AnyRecord: TypeAlias = Night | Planned | Attempt | Event
_LINE: TypeAdapter[AnyRecord] = TypeAdapter(Line)
_VERSION = re.compile(rb'"schema_version"\s*:\s*(\d{1,9})')


@dataclass
class NightRuns:
    """One night: what it planned, its attempts and its events."""

    night: Night
    planned: dict[str, Planned] = field(default_factory=dict)
    """By the cell's id, in the order of the plan."""
    attempts: list[Attempt] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """As of its last end: a night that goes on has none, they are found anew."""
    _of_cell: dict[str, list[Attempt]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _counted: int = field(default=0, repr=False, compare=False)
    _mutex: threading.Lock = field(
        default_factory=threading.Lock, repr=False, compare=False
    )

    def attempts_of(self, cell: str) -> list[Attempt]:
        """Attempts at the cell with that id, by their index. Safe from any thread."""
        with self._mutex:
            for attempt in self.attempts[self._counted :]:
                self._of_cell.setdefault(attempt.cell, []).append(attempt)
                self._counted += 1
            return sorted(self._of_cell.get(cell, []), key=lambda a: a.index)

    @property
    def cells(self) -> dict[str, Cell]:
        return {name: planned.cell for name, planned in self.planned.items()}


class History:
    """Nights, and what makes a further record one of them."""

    def __init__(self, nights: Iterable[NightRuns] = ()) -> None:
        self._nights = {n.night.id: n for n in nights}

    @property
    def nights(self) -> list[NightRuns]:
        """Oldest first, by the time at which they began."""
        return sorted(
            self._nights.values(),
            key=lambda n: (n.night.created.wall.timestamp(), n.night.id),
        )

    @property
    def newest(self) -> NightRuns | None:
        nights = self.nights
        return nights[-1] if nights else None

    def find(self, night: str) -> NightRuns | None:
        return self._nights.get(night)

    def night(self, night: str) -> NightRuns:
        """The night of that id. Raises BadLedger, which names those that there are."""
        found = self._nights.get(night)
        if found is None:
            known = ", ".join(n.night.id for n in reversed(self.nights[-5:])) or "none"
            raise BadLedger(
                f"The ledger has no night {one_line(night, 80)!r}; the newest are: "
                f"{known}."
            )

        return found

    def before(self, night: Night) -> list[NightRuns]:
        """The nights that began before that one, oldest first."""
        began = night.created.wall.timestamp(), night.id
        return [
            n
            for n in self.nights
            if (n.night.created.wall.timestamp(), n.night.id) < began
        ]

    def take(self, record: AnyRecord) -> None:
        """Add ``record``. Raises ValueError: :meth:`refusal` says why it belongs
        nowhere."""
        why = self.refusal(record)
        if why:
            raise ValueError(why)
        if isinstance(record, Night):
            known = self._nights.setdefault(record.id, NightRuns(record))
            was_over = known.night.state is not NightState.RUNNING
            # A night that is gone on with finds its events anew at its end.
            if was_over and record.state is NightState.RUNNING:
                known.events.clear()
            known.night = record
            return

        night = self._nights[record.night]
        if isinstance(record, Planned):
            night.planned[record.cell.id] = record
        elif isinstance(record, Event):
            night.events.append(record)
        else:
            night.attempts.append(record)

    def refusal(self, record: AnyRecord) -> str:
        """Why ``record`` cannot follow what is there; "": it can."""
        if isinstance(record, Night):
            return ""
        night = self._nights.get(record.night)
        if night is None:
            return f"a record of night {record.night!r}, which no line before it begins"
        return _attempt_refusal(record, night) if isinstance(record, Attempt) else ""


def _attempt_refusal(attempt: Attempt, night: NightRuns) -> str:
    if attempt.cell not in night.planned:
        return f"an attempt at {attempt.cell!r}, which its night does not plan"
    if any(a.index == attempt.index for a in night.attempts_of(attempt.cell)):
        return f"a second attempt number {attempt.index} at {attempt.cell!r}"
    if (attempt.outcome is None) == (attempt.lost is None):
        return f"an attempt at {attempt.cell!r} that is not either lost or decided"
    # A ledger may come from elsewhere: no path of it leads out of its folder.
    path = PurePosixPath(attempt.incident)
    if path.is_absolute() or ".." in path.parts:
        return (
            f"the incident {attempt.incident!r}, which lies outside of the ledger's "
            "folder"
        )

    return ""


class Ledger(Journal[AnyRecord]):
    """The one writer of a folder's ledger, which several nights share.

    Attributes:
        history: all that the file holds, kept up to date.

    Raises:
        LedgerBusy: another process writes it.
        BadLedger: the file cannot be read; nothing is appended to such a one.
        UnwritableOutput: the folder cannot be written.
    """

    history: History

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # One redactor for all nights: a word has the same name in each line.
        self._redactor = Redactor()
        busy = LedgerBusy(
            f"Another mmrepro writes the ledger in {folder}.",
            hint="wait until it has ended, or look at what there is: "
            f"mmrepro matrix report {folder}",
        )
        super().__init__(folder / LEDGER_FILE, _LOCK_FILE, "ledger", _LINE, busy)

    def resume(self, content: bytes) -> None:
        self.history = _parsed(content, self.path)
        self._redactor.reserve(content.decode())

    def public(self, record: KeptT) -> KeptT:
        """Raise BadLedger for a cell that is private: redacted it would be another
        one."""
        public = self._redactor.redact_model(record)
        if isinstance(record, Planned) and isinstance(public, Planned):
            _refuse_private(record, public)
        return public

    def check(self, record: AnyRecord) -> None:
        """Raise BadLedger for a record that contradicts what is there."""
        why = self.history.refusal(record)
        if why:
            raise BadLedger(f"The ledger in {self.folder} does not take {why}.")

    def take(self, record: AnyRecord) -> None:
        self.history.take(record)

    def append(self, record: KeptT) -> KeptT:
        """Write a record; BadLedger says why it is not written."""
        try:
            return super().append(record)
        except ValueError as error:
            if self.closed:
                raise BadLedger(f"The ledger in {self.folder} is closed.") from None
            raise BadLedger(
                f"A record could not be read again: {_why(error)}."
            ) from error


def read(folder: Path) -> History:
    """The ledger in ``folder``, or that file itself, as far as its lines are whole.

    Raises:
        BadLedger: there is none, or a whole line of it cannot be read; its number is
            told.
    """
    path = folder / LEDGER_FILE if is_folder(folder) else folder
    try:
        content = read_file(path, _MAX_BYTES)
    except FileNotFoundError:
        raise BadLedger(
            f"{folder} holds no {LEDGER_FILE}.",
            hint=f"mmrepro matrix run --out {folder}",
        ) from None
    except OSError as error:
        raise BadLedger(f"{path} cannot be read: {error.strerror or error}.") from error

    # What follows the last newline was torn by a kill, or is just being written.
    return _parsed(content[: content.rfind(b"\n") + 1], path)


def chosen_night(ledger: Path, name: str = "") -> tuple[History, NightRuns]:
    """The history of a ledger, and ``NIGHT``, or ``DIR:NIGHT`` of another one; "": the
    newest.

    Raises:
        BadLedger: there is none, or it cannot be read.
        UsageError: it has no such night.
    """
    folder, colon, other = name.rpartition(":")
    known = read(Path(folder) if colon else ledger)
    if other:
        return known, known.night(other)
    if known.newest is None:
        raise UsageError(
            f"{ledger} has no night.", hint=f"mmrepro matrix run --out {ledger}"
        )

    return known, known.newest


def _parsed(content: bytes, path: Path) -> History:
    history = History()
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            history.take(_LINE.validate_json(line))
        except ValueError as error:
            raise BadLedger(
                f"{path}, line {number}: {_why(error, line)}.",
                hint="a ledger is only ever appended to; take it as it was before "
                "somebody changed it, or begin a new one with another --out",
            ) from error

    return history


def _why(error: ValueError, line: bytes = b"") -> str:
    version = _VERSION.search(line)
    if version and int(version[1]) > LEDGER_VERSION:
        return (
            f"it is of version {int(version[1])}, this mmrepro reads {LEDGER_VERSION}"
        )
    if not isinstance(error, ValidationError):
        return one_line(str(error), 200)
    return one_line(misfits(error, line)[0].text, 200)


def _refuse_private(record: Planned, public: Planned) -> None:
    if record.cell != public.cell:
        raise BadLedger(
            f"A cell of {one_line(public.cell.row, 120)} names a secret or a home "
            "folder, and a ledger is made to be shown.",
            hint=(
                "give the scenario's file relative to this folder, and no "
                "secret to a server"
            ),
        )
