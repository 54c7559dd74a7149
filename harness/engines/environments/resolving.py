"""What an engine's requirements come to as of its release's day, and where its torch
comes from.

A build asks it for this machine, a wheelhouse for another one. The package index serves
torch for Linux with CUDA only: 3 GB of libraries beside it that a CPU does not use.
PyTorch's own index has CPU builds. uv knows its address (``--torch-backend cpu``), so
this project does not."""

from __future__ import annotations

import functools
import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.base.units import duration
from mmrepro.engines.environments.releases import (
    Release,
    best_wheel,
    derive,
    requirements_of,
)
from mmrepro.engines.environments.spec import (
    TORCH,
    EnvironmentSpec,
    Reason,
    holds,
    never,
)
from mmrepro.engines.environments.uv import (
    Notice,
    Progress,
    UvFailed,
    explain,
    release_files,
    run_uv,
    without_credentials,
)

TORCH_INDEX_VARIABLE = "MMREPRO_TORCH_INDEX"
"""``auto``; ``package``: the package index and no other; ``official``: PyTorch's CPU
index; or the address of an index that serves ``torch==X+cpu``."""

AUTO, PACKAGE, OFFICIAL = "auto", "package", "official"

ANSWER_S = 2
"""Seconds of silence after which an index counts as not there."""

ASK_S = 10.0
"""Seconds for the whole question: an index may also answer drop by drop."""

FAMILY = ("torch", "torchvision", "torchaudio")
"""Pinned by the engine or by torch itself, so that they need no cutoff; see
:func:`_elsewhere`."""


# --------------------------------------------------------------- where torch comes from


@functools.cache
def _table() -> dict[str, Any]:
    text = (
        resources("mmrepro.engines.environments")
        .joinpath("torch.toml")
        .read_text("utf-8")
    )
    return tomllib.loads(text)


@dataclass(frozen=True)
class TorchSource:
    """Options and variables that make uv look for torch elsewhere; none: the package
    index."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    chosen: bool = False
    """By ``auto``: the package index serves as well."""

    @property
    def local(self) -> bool:
        """It has local versions, ``torch==X+cpu``."""
        return bool(self.options)


PACKAGE_INDEX = TorchSource()


def torch_setting() -> str:
    """The setting; ``auto`` where there is none."""
    return os.environ.get(TORCH_INDEX_VARIABLE, "").strip() or AUTO


def key_salt() -> str:
    """What the setting adds to an environment's key: a named index, without
    credentials.

    ``auto`` and ``package`` add nothing, whichever torch they led to: an environment
    that is there is found without asking an index."""
    setting = torch_setting()
    return "" if setting in (AUTO, PACKAGE) else without_credentials(setting)


def torch_source(spec: EnvironmentSpec, python: str, say: Progress) -> TorchSource:
    """Where to take torch from for ``spec``; ``auto`` asks PyTorch's CPU index, once a
    process.

    Args:
        python: the interpreter of the environment.
        say: gets one line about the answer.
    """
    setting = torch_setting()
    if spec.device != "cpu" or setting == PACKAGE:
        return PACKAGE_INDEX
    if setting != AUTO:
        return _elsewhere(setting)
    if spec.engine not in _table()["cpu_build"]:
        return PACKAGE_INDEX
    source = _elsewhere(OFFICIAL)
    if refusal := _refusal(
        source.options, tuple(sorted(source.variables.items())), python
    ):
        return without_cpu_build(refusal, say)
    say(Notice("torch comes from PyTorch's CPU index, without CUDA's libraries"))
    why = "PyTorch's CPU index answers: no libraries of CUDA"
    return replace(source, reasons=(Reason("torch", "CPU build", why),), chosen=True)


def without_cpu_build(refusal: str, say: Progress) -> TorchSource:
    """The package index, and the line that explains it."""
    say(Notice(f"PyTorch's CPU index {refusal}: torch comes with CUDA's libraries"))
    return TorchSource(
        reasons=(Reason("torch", "CUDA build", f"PyTorch's CPU index {refusal}"),)
    )


def cpu_build(
    source: TorchSource,
    spec: EnvironmentSpec,
    release: Release,
    say: Progress,
    *,
    platform: str = "",
) -> tuple[TorchSource, EnvironmentSpec, Release]:
    """For a ``spec`` that is torch itself: its CPU build, where ``source`` has one.

    ``platform``: of another machine, as ``releases.find`` has it.
    """
    if not source.local:
        return source, spec, release
    version = f"{spec.installed}+cpu"
    try:
        wheels = release_files(
            f"torch=={version}",
            release.python,
            platform=platform,
            options=source.options,
            variables=source.variables,
        ).wheels
    except UvFailed as failure:
        if not source.chosen:
            raise explain(failure, f"looking for torch {version}") from failure
        return without_cpu_build(f"has no torch {version}", say), spec, release
    release = replace(release, wheel=best_wheel(wheels))
    return source, replace(spec, version=version), release


def _elsewhere(index: str) -> TorchSource:
    """uv's options and variables for ``index``.

    The address goes into the environment, not onto the command line, where anybody
    could read its credentials. Such indexes often give no upload times, so the day's
    cutoff cannot hold for the torch family; each is pinned by torch's own version
    anyway."""
    options = ["--index-strategy", "unsafe-best-match"]
    for name in FAMILY:
        options += ["--exclude-newer-package", f"{name}=false"]
    if index == OFFICIAL:
        return TorchSource((*options, "--torch-backend", "cpu"))
    others = os.environ.get("UV_INDEX", "")
    return TorchSource(tuple(options), {"UV_INDEX": f"{index} {others}".strip()})


@functools.cache
def _refusal(
    options: tuple[str, ...], variables: tuple[tuple[str, str], ...], python: str
) -> str:
    """Why an index cannot be used, as words after its name; empty: it serves a CPU
    build."""
    asked = (
        f"torch=={TORCH}+cpu"  # of a release that every Python has that engines run on
    )
    arguments = ["pip", "compile", "-q", "--no-deps", "--no-header", "--no-annotate"]
    arguments += ["--refresh-package", "torch", "--python", python, *options, "-"]
    patience = {"UV_HTTP_TIMEOUT": str(ANSWER_S), "UV_HTTP_RETRIES": "0"}
    began = time.monotonic()
    try:
        run_uv(
            arguments,
            stdin=f"{asked}\n",
            extra={**dict(variables), **patience},
            timeout_s=ASK_S,
        )
    except UvFailed as failure:
        if failure.answered:
            return f"has no {asked} for this Python"
        silent = time.monotonic() - began >= ANSWER_S
        return (
            f"does not answer within {duration(ANSWER_S)}"
            if silent
            else "cannot be reached"
        )
    return ""


def cuda_only() -> list[str]:
    """Patterns of names of packages that only a GPU uses; a tree's metadata may ask for
    them."""
    return list(_table()["cuda_only"])


def unused(spec: EnvironmentSpec) -> list[tuple[tuple[str, ...], str]]:
    """Packages that ``spec`` does without on a CPU, and why, entry by entry of the
    table."""
    if spec.device != "cpu":
        return []
    return [
        (tuple(entry["unused"]), entry["why"])
        for entry in _table()["entry"]
        if spec.engine in entry["engines"]
        and holds(entry["engines"][spec.engine], spec.release)
    ]


def stubbed(spec: EnvironmentSpec) -> bool:
    """Whether libraries that torch links are among what ``spec`` does without."""
    return spec.device == "cpu" and spec.engine in _table()["stubbed"]


# ------------------------------------------------------------------ one question to uv


@dataclass
class Resolver:
    """One engine's requirements, written down in ``folder`` for uv to read.

    ``cutoff`` is the moment as of which the latest answer holds, ``reasons`` what was
    done differently, and why.

    Args:
        metadata: METADATA of the engine's wheel.
        uv: runs uv with arguments in ``folder``; the second argument names the purpose.
        keep_local: see ``derive``.
        slim: without what torch or the engine asks for and the device of ``spec`` never
            loads.
    """

    spec: EnvironmentSpec
    release: Release
    metadata: str
    folder: Path
    uv: Callable[[list[str], str], str]
    keep_local: bool
    slim: bool = True

    def __post_init__(self) -> None:
        self.cutoff = self.release.cutoff
        lines = requirements_of(self.metadata)
        derived = derive(lines, keep_local=self.keep_local, drop=self.spec.drop)
        self.reasons = derived.reasons
        self.requirements = [*derived.requirements, *self.spec.requirements]
        overrides = [*self.spec.overrides]
        for names, why in unused(self.spec) if self.slim else []:
            overrides += never(names)
            self.reasons.append(Reason("left out", ", ".join(names), why))
        (self.folder / "requirements.in").write_text(
            "\n".join(self.requirements) + "\n"
        )
        (self.folder / "overrides.in").write_text(
            "".join(f"{line}\n" for line in overrides)
        )
        self.overrides = ["--override", "overrides.in"] if overrides else []

    def compile(self, options: Sequence[str]) -> str:
        """uv's answer. ``options``: for which machine, and in which form.

        Raises:
            InfrastructureError: uv's own, as ``explain`` words it.
        """
        try:
            return self._asked(options)
        except EnvironmentBuildError as error:
            # A wheel repackaged later may ask for something newer than the engine's own
            # day.
            younger = self.release.wheel_cutoff
            if "exclude-newer" not in " ".join(error.detail) or younger <= self.cutoff:
                raise
            self.cutoff = younger
            text = self._asked(options)
            why = (
                f"as of {self.release.cutoff:%Y-%m-%d} the wheel's requirements cannot "
                "be met"
            )
            self.reasons.append(
                Reason("resolution date", f"{self.cutoff:%Y-%m-%d}", why)
            )
            return text

    def _asked(self, options: Sequence[str]) -> str:
        arguments = ["pip", "compile", "-q", *options, *self.overrides]
        until = ["--exclude-newer", self.cutoff.isoformat()]
        doing = (
            f"resolving the requirements of {self.spec.project} {self.spec.installed}"
        )
        return self.uv([*arguments, *until, "requirements.in"], doing)
