"""A finding with what lies in its folder: read from its replay, its case and nothing
else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mmrepro.base.errors import BadIncident, UsageError
from mmrepro.base.machine import is_file, is_folder
from mmrepro.failure.documents.replay import REPLAY_FILE, Finding, Replay
from mmrepro.failure.documents.stored import load_document
from mmrepro.traffic.case import Case, read_case


@dataclass(frozen=True)
class LoadedFinding:
    """A finding with the replay that it belongs to, and its case and folder if they are
    there."""

    replay: Replay
    finding: Finding
    case: Case | None
    folder: Path | None = None

    @property
    def limits(self) -> list[str]:
        """The limits of the finding itself, and those of the replay."""
        return list(dict.fromkeys([*self.finding.limits, *self.replay.limits]))


def load(place: Path) -> LoadedFinding:
    """The finding in ``place``, its own folder. Raises BadIncident: there is none."""
    # Path.resolve raises where links go in a circle.
    whole = Path(os.path.realpath(place))
    folder = whole if is_folder(whole) else whole.parent
    for above in folder.parents:
        if is_file(above / REPLAY_FILE):
            replay = load_document(above, REPLAY_FILE, Replay)
            for finding in replay.findings:
                if finding.folder and (above / finding.folder).resolve() == folder:
                    return finding_of(replay, finding, above)
            break
    raise BadIncident(
        f"{folder} is no finding of a replay: no {REPLAY_FILE} above it names it",
        hint="give the folder of a finding, e.g. replays/…/f1",
    )


def finding_of(replay: Replay, finding: Finding, directory: Path) -> LoadedFinding:
    """``finding`` of the ``replay`` in ``directory``, with its case where that can be
    read."""
    folder = directory / finding.folder
    if not finding.folder or folder.is_symlink():  # a link leads out of the replay
        return LoadedFinding(replay, finding, None)
    try:
        case, _ = read_case(folder)
    except UsageError:  # a replay that was cut short has none yet
        return LoadedFinding(replay, finding, None, folder)
    return LoadedFinding(replay, finding, case, folder)
