"""What an engine's requirements come to as of its release's day: one question to uv.

Asked for this machine by a build, and for another one by a wheelhouse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from mmrepro.environments.releases import Release
from mmrepro.environments.requirements import derive, requirements_of
from mmrepro.environments.spec import EnvironmentSpec, Reason
from mmrepro.environments.torch_source import left_out
from mmrepro.errors import EnvironmentBuildError

Uv = Callable[[list[str], str], str]
"""Runs uv with arguments in the question's folder; the second is what is being done, in words."""


@dataclass
class Resolver:
    """One engine's requirements, written down in ``folder`` for uv to read."""

    spec: EnvironmentSpec
    release: Release
    folder: Path
    uv: Uv
    requirements: list[str]
    overridden: bool
    cutoff: datetime
    reasons: list[Reason] = field(default_factory=list)
    """What was done differently, and why."""

    @classmethod
    def of(
        cls,
        spec: EnvironmentSpec,
        release: Release,
        metadata: str,
        *,
        folder: Path,
        uv: Uv,
        keep_local: bool,
        slim: bool = True,
    ) -> Resolver:
        """``metadata``: of the engine's wheel; ``keep_local``: as ``derive`` has it.

        ``slim``: without what torch or the engine asks for and ``spec``'s device never loads.
        """
        derived = derive(requirements_of(metadata), keep_local=keep_local, drop=spec.drop)
        lines = [*derived.requirements, *spec.requirements]
        (folder / "requirements.in").write_text("\n".join(lines) + "\n")
        unused, reasons = left_out(spec) if slim else ([], [])
        if overrides := [*spec.overrides, *unused]:
            (folder / "overrides.in").write_text("\n".join(overrides) + "\n")
        reasons = [*derived.reasons, *reasons]
        return cls(spec, release, folder, uv, lines, bool(overrides), release.cutoff, reasons)

    def compile(self, options: Sequence[str]) -> str:
        """uv's answer. ``options``: for whom, and in which form.

        Raises:
            InfrastructureError: uv's own, told as ``explain`` does.
        """
        arguments = ["pip", "compile", "-q", *options]
        if self.overridden:
            arguments += ["--override", "overrides.in"]
        try:
            return self._asked(arguments)
        except EnvironmentBuildError as error:
            # A wheel repackaged later may ask for something newer than the engine's own day.
            told = " ".join(error.detail)
            if "exclude-newer" not in told or self.release.wheel_cutoff <= self.cutoff:
                raise
            self.cutoff = self.release.wheel_cutoff
            text = self._asked(arguments)
            day = f"{self.release.cutoff:%Y-%m-%d}"
            why = f"as of {day} the wheel's requirements cannot be met"
            self.reasons.append(Reason("resolution date", f"{self.cutoff:%Y-%m-%d}", why))
            return text

    def _asked(self, arguments: list[str]) -> str:
        until = ["--exclude-newer", self.cutoff.isoformat()]
        doing = f"resolving the requirements of {self.spec.project} {self.spec.installed}"
        return self.uv([*arguments, *until, "requirements.in"], doing)
