"""The state of a watch on a volume that the engine's container shares: for probes that
run there, and need no network and no mmrepro.

A probe that starts Python every few seconds would cost more than the watch: a line of
shell reads the state."""

from __future__ import annotations

import time
from pathlib import Path

from mmrepro.base.machine.files import replacing
from mmrepro.live.watch.health import Health

STATE = "state"
_LEAST_STALE_S = 60.0
_SCRIPT = """#!/bin/sh
# Written by mmrepro watch. Exit code 1: {fails}.
read -r live ready at good < "$(dirname "$0")/{state}" || exit {gone}
# A watch that is gone tells nothing any more.
[ $(($(date +%s) - at)) -gt "$good" ] && exit {gone}
[ "${what}" = 1 ]
"""
PROBES = {
    "probe-live": _SCRIPT.format(
        fails="a restart helps the engine", state=STATE, gone=0, what="live"
    ),
    "probe-ready": _SCRIPT.format(
        fails="it takes no traffic", state=STATE, gone=1, what="ready"
    ),
}


class StateFiles:
    """Writes ``state`` after each check, and the probes that read it.

    Args:
        good_s: for so long a state is believed.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, good_s: float) -> None:
        self._file = folder / STATE
        self._good_s = max(_LEAST_STALE_S, good_s)
        folder.mkdir(parents=True, exist_ok=True)
        for name, script in PROBES.items():
            with replacing(folder / name) as file:
                file.write(script.encode())
            (folder / name).chmod(0o755)

    def write(self, health: Health) -> None:
        live, ready = int(health.live), int(health.ready)
        text = f"{live} {ready} {int(time.time())} {int(self._good_s)}\n"
        with replacing(self._file) as file:
            file.write(text.encode())
        self._file.chmod(0o644)
