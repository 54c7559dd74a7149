"""Which torch a CPU environment gets: PyTorch's own CPU build, or less of the one built with CUDA.

The package index serves torch for Linux with CUDA only: 3 GB of libraries beside it that a CPU does
not use. PyTorch's own index has CPU builds. uv knows its address (``--torch-backend cpu``), so this
project does not.
"""

from __future__ import annotations

import functools
import os
import time
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files as resources

from mmrepro.base.units import duration
from mmrepro.environments.minivllm import TORCH
from mmrepro.environments.releases import Release, best_wheel
from mmrepro.environments.requirements import never
from mmrepro.environments.spec import EnvironmentSpec, Reason
from mmrepro.environments.uv import (
    AUTO,
    OFFICIAL,
    PACKAGE,
    IndexSource,
    Notice,
    Progress,
    UvFailed,
    explain,
    release_files,
    run_uv,
    torch_setting,
)
from mmrepro.records import Record
from packaging.specifiers import SpecifierSet

ANSWER_S = 2
"""Seconds of silence after which an index counts as not there."""

ASK_S = 10.0
"""Seconds for the whole question: an index may also answer drop by drop."""

FAMILY = ("torch", "torchvision", "torchaudio")
"""Pinned by the engine or by torch itself, so that they need no cutoff; see :func:`_elsewhere`."""


class _Entry(Record):
    engines: dict[str, str]
    why: str
    unused: tuple[str, ...]


class _Table(Record):
    cpu_build: tuple[str, ...]
    entry: tuple[_Entry, ...]


@functools.cache
def _table() -> _Table:
    text = resources("mmrepro.environments").joinpath("torch.toml").read_text(encoding="utf-8")
    return _Table.model_validate(tomllib.loads(text))


@dataclass(frozen=True)
class TorchSource(IndexSource):
    """Where uv looks for torch: nothing set is the package index."""

    reasons: tuple[Reason, ...] = ()
    chosen: bool = False
    """By ``auto``: the package index serves as well."""

    @property
    def local(self) -> bool:
        """It has local versions, ``torch==X+cpu``."""
        return bool(self.options)


PACKAGE_INDEX = TorchSource()


def torch_source(spec: EnvironmentSpec, python: str, say: Progress) -> TorchSource:
    """Where to take torch from for ``spec``; ``auto`` asks PyTorch's CPU index, once a process.

    Args:
        python: the interpreter of the environment.
        say: is told in one line what came of it.
    """
    setting = torch_setting()
    if spec.device != "cpu" or setting == PACKAGE:
        return PACKAGE_INDEX
    if setting != AUTO:
        return _elsewhere(setting)
    if spec.engine not in _table().cpu_build:
        return PACKAGE_INDEX
    source = _elsewhere(OFFICIAL)
    if refusal := _refusal(source.options, tuple(sorted(source.variables.items())), python):
        return without_cpu_build(refusal, say)
    say(Notice("torch comes from PyTorch's CPU index, without CUDA's libraries"))
    why = "PyTorch's CPU index answers: no libraries of CUDA"
    return TorchSource(
        source.options, source.variables, (Reason("torch", "CPU build", why),), chosen=True
    )


def without_cpu_build(refusal: str, say: Progress) -> TorchSource:
    """The package index, and the line that explains it."""
    say(Notice(f"PyTorch's CPU index {refusal}: torch comes with CUDA's libraries, 2 GB more"))
    return TorchSource(reasons=(Reason("torch", "CUDA build", f"PyTorch's CPU index {refusal}"),))


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
        files = release_files(f"torch=={version}", release.python, platform=platform, source=source)
    except UvFailed as failure:
        if not source.chosen:
            raise explain(failure, f"looking for torch {version}") from failure
        return without_cpu_build(f"has no torch {version}", say), spec, release
    return (
        source,
        replace(spec, version=version),
        replace(release, wheel=best_wheel(files.wheels)),
    )


def _elsewhere(index: str) -> TorchSource:
    """uv's options and variables for ``index``.

    The address goes into the environment, not onto the command line, where anybody could read its
    credentials. Such indexes often give no upload times, so the day's cutoff cannot hold for the
    torch family; each is pinned by torch's own version anyway.
    """
    options = ["--index-strategy", "unsafe-best-match"]
    for name in FAMILY:
        options += ["--exclude-newer-package", f"{name}=false"]
    if index == OFFICIAL:
        return TorchSource((*options, "--torch-backend", "cpu"))
    others = os.environ.get("UV_INDEX", "")
    return TorchSource(tuple(options), {"UV_INDEX": f"{index} {others}".strip()})


@functools.cache
def _refusal(options: tuple[str, ...], variables: tuple[tuple[str, str], ...], python: str) -> str:
    """Why an index cannot be used, to go behind its name; empty: it serves a CPU build."""
    asked = f"torch=={TORCH}+cpu"  # of a release that every Python has that engines run on
    arguments = ["pip", "compile", "-q", "--no-deps", "--no-header", "--no-annotate"]
    arguments += ["--refresh-package", "torch", "--python", python, *options, "-"]
    patience = {"UV_HTTP_TIMEOUT": str(ANSWER_S), "UV_HTTP_RETRIES": "0"}
    began = time.monotonic()
    try:
        run_uv(
            arguments, stdin=f"{asked}\n", extra={**dict(variables), **patience}, timeout_s=ASK_S
        )
    except UvFailed as failure:
        if failure.answered:
            return f"has no {asked} for this Python"
        silent = time.monotonic() - began >= ANSWER_S
        return f"does not answer within {duration(ANSWER_S)}" if silent else "cannot be reached"
    return ""


def unused(spec: EnvironmentSpec) -> list[tuple[tuple[str, ...], str]]:
    """Packages that ``spec`` does without on a CPU, and why, entry by entry of the table."""
    if spec.device != "cpu":
        return []
    return [
        (entry.unused, entry.why)
        for entry in _table().entry
        if spec.engine in entry.engines
        and SpecifierSet(entry.engines[spec.engine], prereleases=True).contains(spec.release)
    ]


def left_out(spec: EnvironmentSpec) -> tuple[list[str], list[Reason]]:
    """:func:`unused` as uv overrides, and as notes."""
    entries = unused(spec)
    overrides = [line for names, _ in entries for line in never(names)]
    return overrides, [Reason("left out", ", ".join(names), why) for names, why in entries]
