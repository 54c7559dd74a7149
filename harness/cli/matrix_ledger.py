"""What the commands that read a ledger share: which night, and who is excused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrepro.history.ledger import History, NightRuns
    from mmrepro.history.quarantine import Quarantine


def chosen_night(ledger: Path, name: str, read_before: History | None = None) -> NightRuns:
    """``NIGHT``, or ``DIR:NIGHT`` of another ledger; "": the newest.

    Args:
        read_before: what ``ledger`` holds, where that is known already.
    """
    from mmrepro.errors import UsageError
    from mmrepro.history.ledger import read

    folder, colon, other = name.rpartition(":")
    known = read(Path(folder)) if colon else read_before or read(ledger)
    if other:
        return known.night(other)
    if known.newest is None:
        raise UsageError(f"{ledger} has no night.", hint=f"mmrepro matrix run --out {ledger}")
    return known.newest


def quarantine_of(path: Path | None) -> Quarantine:
    from mmrepro.history.quarantine import Quarantine, load

    return load(path) if path is not None else Quarantine()
