"""MADE UP replays and sessions for reports: no engine was run, nothing here
happened."""

import sys
from pathlib import Path

from mmrepro.failure.documents.replay import Finding, Fuzz, Replay
from mmrepro.reports.replay import write_replay
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
from made_up_fuzz import found, fuzz, once
from made_up_replay import finding, ghost_case, replay, unconfirmed


def known(**more: object) -> Finding:
    told = {
        "id": "f2",
        "folder": "f2",
        "known": "ghost-key-eviction",
        "known_why": "all fit",
    }
    return finding(**{**told, **more})


def whole_replay() -> Replay:
    """An unknown finding, a known one, and what was observed once."""
    return replay(finding(), known(), unconfirmed=[unconfirmed()])


def whole_fuzz() -> Fuzz:
    return fuzz(
        found(),
        found(2, 8, known(id="f1", folder="f1"), folder="e0008/f1"),
        once=[once()],
    )


def written(folder: Path, *findings: Finding, case: Case | None = None) -> Replay:
    """A replay of these in ``folder``, with all its files."""
    made = replay(*findings)
    for one in findings:
        write_case(case or ghost_case(), folder / one.folder)
    write_replay(made, folder)
    return made
