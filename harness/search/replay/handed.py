"""The script of a finding as it is handed out: run on the release that has the failure,
and on one that is to be without it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mmrepro.base.box import NoBox, require_box
from mmrepro.base.errors import NotConfirmed
from mmrepro.base.text import one_line
from mmrepro.engines import spec_for
from mmrepro.engines.environments import existing
from mmrepro.runs.play import Player
from mmrepro.traffic.capture import ClientRun, ClientWanted
from mmrepro.traffic.case import SCRIPT_FILE, ServerWanted

_SHOWN, _NOT_SHOWN = 1, 0
"""Exit codes of such a script; others say that it tested nothing, or cannot say."""
_TRIES: Final = 3
"""Of a failure that does not show each time."""
_LIMIT_S: Final = 300.0


def run_by_hand(
    script: str,
    server: ServerWanted,
    good: str,
    say: Callable[[str], None],
    *,
    always: bool = True,
) -> str:
    """Run a finding's script as a reader does, on fresh servers in a box; a sentence on
    that, or "" where the finding's environment is not here.

    Args:
        good: a release without the failure; "": none is known.
        say: gets what goes on.
        always: whether the failure shows in each play.

    Raises:
        NotConfirmed: it does not show the failure where that is, or shows it where it
            is not.
        MmreproError: as ``Player.record``.
    """
    if existing(spec_for(server.engine, server.release)) is None:
        return ""
    try:
        require_box("--no-run")
    except NoBox:
        return "The script was not run: its requests may be a stranger's, and there is no box here."
    tries = 1 if always else _TRIES
    bad = _runs(script, server, tries, say)
    label = f"{server.engine} {server.release}"
    if bad.code != _SHOWN and _can_tell(bad):
        raise _of_no_use(bad, "show the failure", label)
    if bad.code != _SHOWN:
        return f"Run by mmrepro with {label}, the script cannot say by itself whether it fails."
    sentence = f"Run by mmrepro with {label}, the script shows the failure"
    if not good:
        return f"{sentence}; no release without it was named."
    fixed = _runs(script, server.model_copy(update={"release": good}), 1, say)
    if fixed.code != _NOT_SHOWN:
        raise _of_no_use(fixed, "not show it", f"{server.engine} {good}")
    return f"{sentence}; with {good} it does not."


def _can_tell(run: ClientRun) -> bool:
    """Whether the script itself says what it saw."""
    return not (run.ran and run.code == 3 and "Sent." in run.output)


def _runs(
    script: str, server: ServerWanted, tries: int, say: Callable[[str], None]
) -> ClientRun:
    """The first run that shows the failure; else the last one."""
    say(f"running the script with {server.engine} {server.release}")
    run = ClientRun(ran=False)
    with (
        tempfile.TemporaryDirectory(prefix="mmrepro-script-") as name,
        Player(server, folder=Path(name), boxed=True) as player,
    ):
        for number in range(tries):
            # Its own folder: a box removes what a client was started from.
            place = Path(name) / f"run-{number}"
            folder = place / "work"
            folder.mkdir(parents=True)
            (folder / SCRIPT_FILE).write_text(script, encoding="utf-8")
            wanted = ClientWanted(
                ("python3", SCRIPT_FILE), folder, script=script, limit_s=_LIMIT_S
            )
            _, run = player.record(wanted, Path(name) / f"server-{number}")
            if run.code == _SHOWN:
                break
    return run


def _of_no_use(run: ClientRun, wanted: str, label: str) -> NotConfirmed:
    printed = run.output.strip().splitlines()
    came = one_line(printed[-1], 200) if printed else "it printed nothing"
    if not run.ran:
        came = "its server does not start"
    elif run.ended:
        came = run.ended
    return NotConfirmed(
        f"The script is to {wanted} with {label}, and does not: {came.rstrip('.')}.",
        hint="--no-run prints the form as it is",
    )
