"""Makes the environment that is needed next while a run is in progress."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from mmrepro.campaign.child import end, spawn
from mmrepro.campaign.trial import TrialOptions, variables

NICENESS = 15
GRACE_S = 10.0


class Prefetch:
    """One child at a time, ended with :meth:`stop` and with the thread that began it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def begin(self, arguments: Sequence[str]) -> bool:
        """Start ``mmrepro env create ARGUMENTS``, unless one is still under way."""
        if self._child is not None and self._child.poll() is None:
            return False
        made = ["env", "create", *arguments]
        self._child = spawn(made, variables(TrialOptions()), nice=NICENESS)
        return True

    def stop(self) -> None:
        """End it; what it had begun is removed by the next build."""
        if self._child is not None:
            end([self._child], GRACE_S)
