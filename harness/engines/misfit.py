"""What an engine asks in vain of that which replaces a part of it here.

A source tree of the release that lends it compiled files: a missing operator, another
signature, a module that neither has. A kernel of Triton's interpreter. None of it is
the engine's fault, so a run that met it tests nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrepro.engines.environments.spec import Environment
from mmrepro.engines.environments.store import list_environments, site_packages
from mmrepro.engines.starts import LoggedException, lines_of, raised
from mmrepro.probes import LogLine, Unavailable
from mmrepro.probes.log_files import BROKEN
from packaging.version import Version

_OPERATOR = r"(?P<space>_\w+|sgl_kernel)(?:::|\.)(?P<op>\w+)"
_MISSING_OPERATOR = (
    re.compile(
        r"'_OpNamespace' '(?P<space>_\w+"
        r"|sgl_kernel)' object has no attribute '(?P<op>\w+)'"
    ),
    re.compile(
        rf"(?:No such operator|operator|Could not find schema for) {_OPERATOR}(?: does "
        rf"not|\b)"
    ),
    re.compile(rf"Could not run '{_OPERATOR}' with arguments from the '"),
    re.compile(r"module 'vllm\.(?P<space>_\w*C\w*)' has no attribute '(?P<op>\w+)'"),
)
_OTHER_SIGNATURE = (
    re.compile(
        rf"{_OPERATOR}\(\) (?:expected (?:at most|a value)|is missing value|takes|got)"
    ),
    re.compile(rf"Unknown keyword argument '\w+' for operator '{_OPERATOR}'"),
)
_MISSING_MODULE = re.compile(r"No module named '(?P<module>[\w.]+)'")
_OTHER_ABI = re.compile(
    r"(?P<file>[\w.+-]+\.so[\w.]*): (?:undefined symbol|version .* not found)"
)

_LINE_BYTES = 1 << 20
_UNINTERPRETED = re.compile(
    rb"mmrepro stand-in triton_cpu: the (?P<what>kernel .{1,800}?) \(process \d+\)$"
)


@dataclass(frozen=True)
class _Met:
    what: str
    """The first half of the sentence, which names it."""
    needle: bytes
    """What a compiled file that has it holds; b"": nothing can be looked for."""
    at: str
    """File and line of the tree; "": the log does not say."""
    lack: str = ", which {} does not have"
    """The other half, with the release's name."""


def misfit_in(log: Path, environment: Environment) -> str:
    """One sentence on what the engine of ``environment`` asks for in vain, by its log.

    "": the log has nothing of the kind; of a tree's compiled files it has not where its
    Python is of one release with them."""
    return uninterpreted_in(log) or lent_misfit_in(log, environment)


def lent_misfit_in(log: Path, environment: Environment) -> str:
    """One sentence on what a source tree asks in vain of the release that lends it
    compiled files; "": the log has nothing of the kind, or there is no such tree."""
    if not environment.python_of:
        return ""
    try:
        lines = lines_of(log, [])
    except (*BROKEN, Unavailable):
        return ""
    met = next(_met(lines, environment), None)
    if met is None:
        return ""
    place = f" ({met.at})" if met.at else ""
    lack = met.lack.format(environment.kernels)
    return f"{met.what}{place}{lack}. {_who_has(met, environment)}"


def uninterpreted_in(log: Path) -> str:
    """One sentence that names the first kernel that Triton's interpreter does not run,
    by what the stand-in for a GPU wrote of it (reproducers/standins/triton_cpu); "":
    there is none."""
    try:
        with log.open("rb") as lines:
            # A line may be a server's whole output.
            while line := lines.readline(_LINE_BYTES):
                if match := _UNINTERPRETED.match(line):
                    what = match["what"].decode(errors="replace")
                    return f"The {what}. What it does only a GPU shows."
    except OSError:
        return ""
    return ""


def _met(lines: Sequence[LogLine], environment: Environment) -> Iterator[_Met]:
    engine = environment.spec.engine
    for event in raised(lines):
        text = event.text.partition("\n")[0]
        found = _operator(text, _MISSING_OPERATOR)
        if found and event.kind != "hint":
            what = f"The tree calls the operator {found['space']}::{found['op']}"
            yield _Met(what, found["op"].encode(), _place(event, engine))
        elif found := _operator(text, _OTHER_SIGNATURE):
            what = (
                f"The tree calls {found['space']}::{found['op']} with other arguments"
            )
            yield _Met(what, b"", _place(event, engine), " than {} takes")
        elif (found := _OTHER_ABI.search(text)) and event.kind != "hint":
            yield _Met(f"{found['file']} wants a symbol", b"", "")
        elif event.short in ("ModuleNotFoundError", "ImportError"):
            found = _MISSING_MODULE.search(text)
            if found and not _own(found["module"], environment):
                at = _place(event, engine)
                yield _Met(f"The tree imports {found['module']}", b"", at)


def _operator(text: str, patterns: Sequence[re.Pattern[str]]) -> re.Match[str] | None:
    return next(filter(None, (pattern.search(text) for pattern in patterns)), None)


def _own(module: str, environment: Environment) -> bool:
    """Whether the tree itself has that module: then it fails within it."""
    place = environment.site_packages.joinpath(*module.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def _place(event: LoggedException, engine: str) -> str:
    """The innermost frame in the engine's package."""
    for frame in reversed(event.frames):
        _, _, file = frame.file.rpartition("site-packages/")
        if file.startswith(f"{engine}/"):
            return f"{file}, line {frame.line}"
    return ""


def _who_has(met: _Met, environment: Environment) -> str:
    """The nearest release on this disk whose compiled files have it, or where to
    look."""
    spec, kernels = environment.spec, environment.kernels
    if not met.needle:
        after = Version(kernels) < Version(spec.release)
        return (
            f"Try the next release {'after' if after else 'before'} it: --kernels "
            "RELEASE."
        )
    here = {
        Version(one.manifest.release): one.path
        for one in list_environments(sizes=False)
        if (one.manifest.engine, one.manifest.device) == (spec.engine, spec.device)
        and not (one.manifest.kernels or one.manifest.commit)
        and one.manifest.release != kernels
    }
    wanted = Version(Version(spec.release).base_version)
    ranked = sorted(here, key=lambda one: (abs(_number(one) - _number(wanted)), one))
    for version in ranked:
        package = site_packages(here[version] / "venv") / spec.engine
        if any(met.needle in path.read_bytes() for path in package.rglob("*.so")):
            return f"{spec.engine} {version} has it: --kernels {version}."
    among = f" ({', '.join(map(str, sorted(here)))})" if here else ""
    return f"No other release whose environment is here{among} has it."


def _number(version: Version) -> int:
    major, minor, micro = (*version.release, 0, 0)[:3]
    return (major * 1000 + minor) * 1000 + micro
