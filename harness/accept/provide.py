"""The environment of a step: there already, or built where the package index answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, TimeoutExpired

from mmrepro.accept.steps import Needs
from mmrepro.base.units import duration
from mmrepro.campaign.child import end, spawn
from mmrepro.engines import spec_for
from mmrepro.environments.build import existing
from mmrepro.errors import MmreproError
from mmrepro.machine.cache import Device

BUILD_ESTIMATE_S = 300.0
GRACE_S = 30.0
IMPATIENT = {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1"}
"""Where there is no network uv is to say so soon; what the user has set stays."""


@dataclass(frozen=True)
class Provided:
    """``python``: the interpreter of the environment; None: there is none, and ``why_not``."""

    python: Path | None
    why_not: str = ""
    over_budget: bool = False


@dataclass
class Provider:
    """Finds environments on one kind of device, and builds what is missing, each once.

    A build that failed is not tried again in this command: where there is no index, it is not
    asked by one part after the other.
    """

    device: Device
    say: Callable[[str], None] = lambda _: None
    _failed: dict[Needs, str] = field(default_factory=dict)

    def get(self, needs: Sequence[Needs], left_s: float) -> Provided:
        """The first of ``needs`` that is there, or else can be built within ``left_s`` seconds.

        Raises:
            KeyboardInterrupt: the build has been ended.
        """
        why = []
        for one in needs:
            try:
                environment = existing(spec_for(one.engine, one.release, self.device))
            except MmreproError as error:
                why.append(error.message)
                continue
            if environment is not None:
                return Provided(environment.python)
        for one in needs:
            if one not in self._failed and left_s < BUILD_ESTIMATE_S:
                told = f"the budget: {one} ({self.device}) is not built, which takes about "
                return Provided(None, f"{told}{duration(BUILD_ESTIMATE_S)}", over_budget=True)
            if one not in self._failed:
                self._failed[one] = self._built(one, left_s)
            if not self._failed[one]:
                return self.get([one], left_s)
            why.append(self._failed[one])
        return Provided(None, why[-1])

    def _built(self, one: Needs, left_s: float) -> str:
        """Why it could not be built; "" if it was."""
        self.say(f"building the environment of {one} ({self.device})")
        words = ["env", "create", one.engine, one.release, "--device", self.device]
        child = spawn(words, {**IMPATIENT, **os.environ, "NO_COLOR": "1"}, stderr=PIPE)
        try:
            _, errors = child.communicate(timeout=left_s)
        except TimeoutExpired:
            return f"the environment of {one} was not built within {duration(left_s)}"
        finally:
            if child.poll() is None:
                end([child], GRACE_S)
        if child.returncode == 0:
            return ""
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        said = next((line for line in lines if line[:1].isupper()), "its build failed")
        return f"no environment of {one} for {self.device} is here: {said}"
