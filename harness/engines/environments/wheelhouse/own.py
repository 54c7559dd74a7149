"""mmrepro itself for a wheelhouse: its wheel, and what it needs on the target."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tempfile
import tomllib
from importlib.metadata import Distribution as Installed, distributions
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.base.installed import checkout_folder
from mmrepro.engines.environments.releases import best_wheel
from mmrepro.engines.environments.uv import interpreter_options, locked, run_uv
from mmrepro.engines.environments.wheelhouse.model import Target
from mmrepro.engines.environments.wheelhouse.plan import PlannedPackage
from packaging.utils import canonicalize_name

NAME = "mmrepro"
_PROJECT = "pyproject.toml"
_CONSTRAINTS = "constraints.txt"
_RUN_EXTRA = re.compile(r"""\s*(?:;|and)\s*extra == ["']run["']""")
# The same code gives the same wheel, byte for byte: the moment that its files are dated
# by.
_EPOCH = "1767225600"


def version() -> str:
    checkout = checkout_folder()
    return (
        str(_project(checkout)["project"]["version"])
        if checkout
        else _installed().version
    )


def own_wheel(into: Path) -> Path:
    """Build mmrepro's wheel from the checkout that it runs from, else pack it from its
    files.

    Raises:
        EnvironmentBuildError: it cannot be built.
    """
    checkout = checkout_folder()
    if checkout is None:
        return _packed(_installed(), into)
    with tempfile.TemporaryDirectory(prefix="mmrepro-") as name:
        # A copy, since setuptools writes beside the sources.
        for item in _sources(checkout):
            if (source := checkout / item).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(source, Path(name, item), ignore=ignore)
            else:
                shutil.copy2(source, Path(name, item))
        return build_wheel(Path(name), into, NAME)


def build_wheel(source: Path, into: Path, what: str) -> Path:
    """Build the wheel of a folder or an sdist.

    Raises:
        EnvironmentBuildError: it cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="mmrepro-") as name:
        arguments = ["build", "--wheel", "-q", "--out-dir", name, str(source)]
        doing = f"building the wheel of {what}"
        run_uv(
            arguments, doing=doing, cwd=Path(name), extra={"SOURCE_DATE_EPOCH": _EPOCH}
        )
        made = next(Path(name).glob("*.whl"))
        return Path(shutil.move(made, into / made.name))


def own_requirements(target: Target) -> list[PlannedPackage]:
    """Return what mmrepro needs on the target, in the versions of constraints.txt or of
    here.

    Raises:
        EnvironmentBuildError: there is none for that target.
    """
    checkout = checkout_folder()
    with tempfile.TemporaryDirectory(prefix="mmrepro-") as name:
        folder = Path(name)
        constraints = folder / _CONSTRAINTS
        if checkout is not None and (checkout / _CONSTRAINTS).is_file():
            shutil.copy2(checkout / _CONSTRAINTS, constraints)
        else:
            here = {canonicalize_name(d.name): d.version for d in distributions()}
            constraints.write_text(
                "".join(f"{n}=={v}\n" for n, v in here.items() if n != NAME)
            )
        (folder / "requirements.in").write_text(
            "\n".join(_requirements(checkout)) + "\n"
        )
        machine = interpreter_options(target.python, target.platform)
        arguments = ["pip", "compile", "-q", *machine, "--format", "pylock.toml"]
        arguments += ["--constraint", constraints.name, "requirements.in"]
        text = run_uv(
            arguments, doing="resolving mmrepro's own requirements", cwd=folder
        )
    found = locked(text)
    for one in found:
        if not one.wheels:
            raise EnvironmentBuildError(
                f"{one.project} {one.version}, which mmrepro needs, has no wheel for "
                f"Python {target.python} on {target.platform}.",
                hint="another --python or --platform",
            )
    return [
        PlannedPackage(p.project, p.version, "wheel", best_wheel(p.wheels))
        for p in found
    ]


def _project(checkout: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(
        (checkout / _PROJECT).read_text(encoding="utf-8")
    )
    return project


def _installed() -> Installed:
    """The distribution that this runs from, not what a build left beside its
    sources."""
    return next(one for one in distributions(name=NAME) if one.read_text("WHEEL"))


def _requirements(checkout: Path | None) -> list[str]:
    """What mmrepro needs, with its extra ``run``."""
    if checkout is not None:
        project = _project(checkout)["project"]
        return [*project["dependencies"], *project["optional-dependencies"]["run"]]
    lines = (_RUN_EXTRA.sub("", line) for line in _installed().requires or [])
    return [line for line in lines if "extra ==" not in line]


def _sources(checkout: Path) -> list[str]:
    """What the wheel is built from, as pyproject.toml names it."""
    project = _project(checkout)
    folders = project["tool"]["setuptools"]["package-dir"].values()
    tops = dict.fromkeys(Path(folder).parts[0] for folder in folders)
    files = [
        _PROJECT,
        "setup.py",
        project["project"]["readme"],
        *project["project"]["license-files"],
    ]
    return [*tops, *files]


def _packed(installed: Installed, into: Path) -> Path:
    """The wheel that ``installed`` came from, out of its files."""
    tag = re.search(r"^Tag: (\S+)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    made = into / f"{NAME}-{installed.version}-{tag[1] if tag else 'py3-none-any'}.whl"
    own = {
        "RECORD",
        "INSTALLER",
        "REQUESTED",
        "direct_url.json",
        "uv_cache.json",
        "uv_build.json",
    }
    record = ""
    with ZipFile(made, "w", ZIP_DEFLATED) as archive:
        for file in sorted(installed.files or [], key=str):
            of_installer = file.parent.name.endswith(".dist-info") and file.name in own
            if ".." in file.parts or file.suffix == ".pyc" or of_installer:
                continue
            content = file.read_binary()
            archive.writestr(_entry(str(file)), content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(
                b"="
            )
            record += f"{file},sha256={digest.decode()},{len(content)}\n"
        listed = f"{NAME}-{installed.version}.dist-info/RECORD"
        archive.writestr(_entry(listed), f"{record}{listed},,\n")
    return made


def _entry(name: str) -> ZipInfo:
    entry = ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0))
    entry.compress_type = ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
