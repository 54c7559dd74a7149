"""Does a release of an engine fit this machine? Asked before anything is installed.

What the release asks for is on the package index: its wheels' tags, its Python, and
what uv resolves its requirements to (torch, and the CUDA that torch brings). What this
machine has is asked of the driver (NVML), the C library and the interpreter here. What
cannot be compared is ``unknown``."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

from mmrepro.base.errors import (
    EnvironmentBuildError,
    MmreproError,
    UnknownRelease,
    UsageError,
    did_you_mean,
)
from mmrepro.base.installed import install_command
from mmrepro.base.machine import GpuReading, environments_root
from mmrepro.base.records import Document, Record
from mmrepro.engines.environments.index import File, project_page
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.engines.environments.store import free_bytes
from mmrepro.engines.environments.uv import run_uv
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import Version
from pydantic import Field


class Fits(StrEnum):
    YES = "ok"
    NO = "not-ok"
    UNKNOWN = "unknown"


class FitRow(Record):
    """One thing that the release asks for, and what this machine has of it."""

    name: str
    fits: Fits
    asks: str
    has: str
    do: Annotated[str, Field(description="what to do; empty: nothing")] = ""


class FitReport(Document, kind="fit"):
    """What ``mmrepro check --for`` prints. ``fits``: of all rows, the worst."""

    engine: str
    release: str
    fits: Fits
    rows: list[FitRow]


# --------------------------------------------------------- CUDA, as NVIDIA documents it

_LEAST_DRIVER: Final[Mapping[int, str]] = {
    11: "450.80.02",
    12: "525.60.13",
    13: "580.65.06",
}
"""Of a major CUDA release, the oldest Linux driver (CUDA Compatibility, table "CUDA
Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility")."""

_FIRST_CAPABILITY: Final[Mapping[int, str]] = {11: "3.5", 12: "5.0", 13: "7.5"}
"""Of a major CUDA release, the oldest compute capability that it compiles for (CUDA
Toolkit release
notes: 12.0 removed Kepler, 13.0 Maxwell, Pascal and Volta)."""

_NEEDS_CUDA: Final[Sequence[tuple[str, str]]] = (
    ("12.0", "12.8"),
    ("10.3", "12.9"),
    ("10.0", "12.8"),
    ("9.0", "11.8"),
    ("8.9", "11.8"),
    ("8.6", "11.1"),
    ("8.0", "11.0"),
)
"""Compute capability, newest first: the first CUDA that knows it (CUDA Toolkit release
notes)."""

_LEAST_CAPABILITY: Final[Mapping[str, str]] = {
    "vllm": "7.0",
    "sglang": "7.5",
    "lmdeploy": "7.0",
}
"""What the engine's own documentation asks for (installation pages: vLLM 7.0, SGLang
sm75, LMDeploy sm70)."""


# ------------------------------------------------------------------ what is asked


def asked_for(text: str, engines: Sequence[str]) -> tuple[str, str]:
    """Engine and release of ``vllm==0.33.0``.

    Raises:
        UsageError: it is none.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    exact = (
        [s.version for s in requirement.specifier if s.operator == "=="]
        if requirement
        else []
    )
    if requirement is None or len(exact) != 1 or exact[0].endswith(".*"):
        raise UsageError(
            f"{text!r} is not one release of an engine.",
            hint="mmrepro check --for vllm==0.33.0",
        )
    name = canonicalize_name(requirement.name)
    if name not in engines:
        raise UsageError(
            (
                f"There is no engine {name!r} on the package index; there is "
                f"{', '.join(engines)}."
            )
            + did_you_mean(name, engines),
            hint="mmrepro check --for vllm==0.33.0",
        )
    return name, exact[0]


def fit(spec: EnvironmentSpec, gpus: GpuReading) -> FitReport:
    """Compare the release of ``spec`` with this machine.

    Raises:
        UnknownRelease: the index has no such release.
        EnvironmentBuildError: the index cannot be asked.
    """
    files = _files(spec)
    rows = [_python(files), *_wheel(files)]
    fitting = next((r for r in rows if r.name == "Python"), rows[0])
    packages, why = _resolved(spec, fitting)
    torch, cuda = packages.get("torch", ""), _cuda(packages)
    asks = f"torch {torch}" if torch else "torch"
    rows.append(
        FitRow(
            name="torch",
            fits=Fits.YES if torch else Fits.UNKNOWN,
            asks=asks + (f", built for CUDA {cuda}" if cuda else ""),
            has="uv finds versions that go together" if torch else why,
            do="" if torch else "uv's words say which requirement cannot be met",
        )
    )
    rows += [
        _driver(cuda, gpus, spec),
        _capability(spec.engine, cuda, gpus),
        _disk(spec),
    ]
    worst = [f for f in (Fits.NO, Fits.UNKNOWN) if any(row.fits is f for row in rows)]
    return FitReport(
        engine=spec.engine,
        release=spec.release,
        fits=(worst or [Fits.YES])[0],
        rows=rows,
    )


def _files(spec: EnvironmentSpec) -> list[File]:
    """The wheels of the release."""
    try:
        page = project_page(spec.project)
    except EnvironmentBuildError as error:
        why = "check the network, the index that uv uses, and UV_OFFLINE"
        hint = error.hint if error.hint == install_command("run") else why
        raise EnvironmentBuildError(error.message, hint=hint) from error
    found: list[File] = []
    versions: set[Version] = set()
    wanted = Version(spec.installed)
    for file in page.files:
        try:
            name, version, _, _ = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        if name != canonicalize_name(spec.project) or file.yanked is not False:
            continue
        versions.add(version)
        if Version(version.public) == wanted:
            found.append(file)
    if not found:
        below = max(
            (v for v in versions if v < wanted and not v.is_prerelease), default=None
        )
        above = min(
            (v for v in versions if v > wanted and not v.is_prerelease), default=None
        )
        near = [str(one) for one in (below, above) if one]
        raise UnknownRelease(
            f"The package index has no wheel of {spec.project} {spec.installed}"
            + (f"; next to it: {' and '.join(near)}." if near else "."),
            hint=f"mmrepro check --for {spec.engine}=={near[-1]}"
            if near
            else "check the name",
        )
    return found


def _python(files: Sequence[File]) -> FitRow:
    own = platform.python_version()
    asks = (
        next((file.requires_python for file in files if file.requires_python), "") or ""
    )
    try:
        allowed = SpecifierSet(asks)
    except InvalidSpecifier:
        allowed = SpecifierSet()
    pythons = sorted(
        {
            tag.interpreter
            for file in files
            for tag in parse_wheel_filename(file.filename)[3]
            if tag.abi not in ("abi3", "none")
        }
    )
    words = (
        ", ".join(filter(None, [asks and f"Python {asks}", " ".join(pythons)]))
        or "any Python"
    )
    here = f"cp{own.split('.')[0]}{own.split('.')[1]}"
    ok = allowed.contains(own) and (not pythons or here in pythons)
    return FitRow(
        name="Python",
        fits=Fits.YES if ok else Fits.NO,
        asks=words,
        has=f"Python {own}",
        do=""
        if ok
        else "uv venv --python 3.12 makes an environment with another Python",
    )


_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)|manylinux(1|2010|2014)_(\w+)")
_OLD_NAMES = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}


def _wheel(files: Sequence[File]) -> list[FitRow]:
    """The processor and the C library that the wheels are built for."""
    machine, (library, version) = platform.machine(), platform.libc_ver()
    needs: list[tuple[int, int]] = []
    machines: set[str] = set()
    for file in files:
        for tag in parse_wheel_filename(file.filename)[3]:
            if tag.platform == "any":
                machines.add(machine)
                needs.append((0, 0))
            elif match := _GLIBC.fullmatch(tag.platform):
                new = (
                    (int(match[1]), int(match[2])) if match[1] else _OLD_NAMES[match[4]]
                )
                machines.add(match[3] or match[5])
                needs += [new] if (match[3] or match[5]) == machine else []
    fits = machine in machines
    rows = [
        FitRow(
            name="processor",
            fits=Fits.YES if fits else Fits.NO,
            asks=", ".join(sorted(machines)),
            has=machine,
            do="" if fits else "build the release from source, or use another machine",
        )
    ]
    least = min(needs, default=None)
    if least in (None, (0, 0)):
        return rows
    has = (
        tuple(int(n) for n in re.findall(r"\d+", version)[:2])
        if library == "glibc"
        else None
    )
    new_enough = has is not None and has >= least
    state = (
        Fits.UNKNOWN
        if has is None and not library
        else Fits.YES
        if new_enough
        else Fits.NO
    )
    rows.append(
        FitRow(
            name="C library",
            fits=state,
            asks=f"glibc {least[0]}.{least[1]} or later",
            has=f"{library} {version}".strip() or "not glibc",
            do=""
            if new_enough
            else "use a newer system, or the release's container image",
        )
    )
    return rows


# ------------------------------------------------------------------ torch and its CUDA


def _resolved(spec: EnvironmentSpec, python: FitRow) -> tuple[dict[str, str], str]:
    """What uv would install beside the release, by name; or nothing, and why.

    Where this Python does not fit, as for one that does: what follows is compared all
    the same."""
    arguments = ["pip", "compile", "-q", "--no-header", "--no-annotate", "-"]
    if python.fits is Fits.NO:
        found = re.findall(r"cp3(\d+)", python.asks)
        arguments[2:2] = ["--python-version", f"3.{found[-1] if found else 12}"]
    doing = f"resolving the requirements of {spec.project} {spec.installed}"
    try:
        text = run_uv(
            arguments, stdin=f"{spec.project}=={spec.installed}\n", doing=doing
        )
    except MmreproError as error:
        return {}, " ".join([error.message, *error.detail[:1]])[:300]
    pairs = re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pairs}, ""


def _cuda(packages: Mapping[str, str]) -> str:
    """The CUDA that torch brings: of its runtime's package, e.g. 12.8 or 13.0; "":
    none."""
    if "+cu" in packages.get("torch", ""):
        digits = packages["torch"].rpartition("+cu")[2]
        return f"{digits[:-1]}.{digits[-1]}"
    for name, version in packages.items():
        if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit", name):
            return ".".join(version.split(".")[:2])
    return ""


# ------------------------------------------------------------------ the GPU


def _driver(cuda: str, gpus: GpuReading, spec: EnvironmentSpec) -> FitRow:
    if not cuda:
        asks, least = "not known: torch's CUDA was not found", ""
    else:
        least = _LEAST_DRIVER.get(int(cuda.split(".")[0]), "")
        asks = f"a driver for CUDA {cuda}" + (f": {least} or later" if least else "")
    row = FitRow(
        name="driver", fits=Fits.UNKNOWN, asks=asks, has=gpus.reason or "no GPU"
    )
    if not gpus.driver:
        do = (
            (
                f"without a GPU: mmrepro env create {spec.engine} {spec.release} "
                "--device cpu"
            )
            if not gpus.blind
            else "nvidia-smi"
        )
        return row.model_copy(
            update={"has": gpus.reason or "no NVIDIA driver", "do": do}
        )
    row.has = f"driver {gpus.driver}" + (f", CUDA {gpus.cuda}" if gpus.cuda else "")
    if not cuda:
        return row
    newest = Version(gpus.cuda) if gpus.cuda else None
    if newest is not None and newest >= Version(cuda):
        return row.model_copy(update={"fits": Fits.YES})
    same = newest is not None and newest.major == Version(cuda).major
    enough = bool(least) and Version(gpus.driver) >= Version(least)
    if same and enough:
        words = (
            f"{row.has}: enough for CUDA {cuda.split('.')[0]}.x, not for kernels that "
            "are PTX"
        )
        return row.model_copy(update={"fits": Fits.YES, "has": words})
    do = (
        f"install driver {least or 'for CUDA ' + cuda} or later on the host; or a "
        "build of the "
    )
    do += f"release for CUDA {gpus.cuda or 'of this driver'}"
    return row.model_copy(update={"fits": Fits.NO, "do": do})


def _capability(engine: str, cuda: str, gpus: GpuReading) -> FitRow:
    least = _LEAST_CAPABILITY.get(engine, "")
    if cuda:
        first = _FIRST_CAPABILITY.get(int(cuda.split(".")[0]), "")
        least = max(filter(None, (least, first)), key=Version, default="")
    row = FitRow(
        name="compute capability",
        fits=Fits.UNKNOWN,
        asks=f"{least} or later" if least else "not known",
        has=gpus.reason or "no GPU",
    )
    found = [gpu for gpu in gpus.gpus if gpu.capability]
    if not found:
        return row
    row.has = ", ".join(dict.fromkeys(f"{gpu.name}: {gpu.capability}" for gpu in found))
    old = [gpu for gpu in found if least and Version(gpu.capability) < Version(least)]
    if old:
        return row.model_copy(
            update={
                "fits": Fits.NO,
                "do": (
                    f"{old[0].name} is too old for this build: an older CUDA's, or "
                    "another GPU"
                ),
            }
        )
    for gpu in found:
        needs = next(
            (c for cc, c in _NEEDS_CUDA if Version(gpu.capability) >= Version(cc)), ""
        )
        if cuda and needs and Version(cuda) < Version(needs):
            do = (
                f"{gpu.name} needs CUDA {needs} or later: a build of the release for it"
            )
            return row.model_copy(update={"fits": Fits.NO, "do": do})
    if any(Version(gpu.capability) < Version("8.0") for gpu in found):
        return row.model_copy(
            update={"fits": Fits.YES, "do": "no bfloat16: --dtype float16"}
        )
    return row.model_copy(update={"fits": Fits.YES if cuda else Fits.UNKNOWN})


def _disk(spec: EnvironmentSpec) -> FitRow:
    from mmrepro.base.units import size

    free = free_bytes(environments_root())
    ok = free >= spec.disk_bytes
    return FitRow(
        name="disk",
        fits=Fits.YES if ok else Fits.NO,
        asks=f"about {size(spec.disk_bytes)} unpacked",
        has=f"{size(free)} free",
        do="" if ok else "mmrepro env prune, or MMREPRO_CACHE_DIR on another disk",
    )
