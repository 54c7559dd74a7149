"""How this mmrepro was installed, and so what to type: no hint that cannot work here."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_UNDER_UV_RUN = "UV_RUN_RECURSION_DEPTH"
"""Set by ``uv run``, which puts mmrepro on the PATH of that one command only."""


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation."""
    checkout = checkout_folder()
    if checkout is not None:
        return f"uv sync --inexact --extra {extra} --directory {_quoted(checkout)}"
    source = _source()
    wanted = f"{source}[{extra}]" if source else f"mmrepro[{extra}]"
    prefix = Path(sys.prefix).parts
    if "pipx" in prefix:
        return f"pipx install --force {shlex.quote(wanted)}"
    if "uv" in prefix and "tools" in prefix:
        return f"uv tool install --force {shlex.quote(wanted)}"
    return f"{_quoted(Path(sys.executable))} -m pip install {shlex.quote(wanted)}"


def typed_program() -> str:
    """Return how the program is called here: ``mmrepro``, or through ``uv run``."""
    if not os.environ.get(_UNDER_UV_RUN) or checkout_folder() is None:
        return "mmrepro"
    # Where the development tools are, `uv run` alone has the extra `run` as well.
    has_tools = importlib.util.find_spec("pytest") is not None
    options = "" if has_tools else " --no-dev --extra run"
    return f"{_typed_uv()} run{options} mmrepro"


def _typed_uv() -> str:
    """Return how uv is called here: by its name, or by its path below this folder."""
    uv = Path(os.environ.get("UV", "uv"))
    if not uv.is_absolute():
        return _quoted(uv)
    on_path = shutil.which("uv")
    if on_path and _is_same(uv, Path(on_path)):
        return "uv"
    here = Path.cwd()
    if uv.is_relative_to(here):
        return _quoted(uv.relative_to(here))
    # README installs it there; the folder may be a link.
    installed = Path(".uv/bin/uv")
    if _is_same(uv, installed):
        return str(installed)
    return _quoted(uv)


def _is_same(file: Path, other: Path) -> bool:
    return file.exists() and other.exists() and file.samefile(other)


def as_typed(command: str) -> str:
    """Return a command of mmrepro as it works here; another one as it is."""
    if not command.startswith("mmrepro ") or not os.environ.get(_UNDER_UV_RUN):
        return command
    return typed_program() + command.removeprefix("mmrepro")


def checkout_folder() -> Path | None:
    """The folder of the checkout that this package lies in; None: it is installed."""
    folder = _PACKAGE.parent
    is_checkout = _PACKAGE.name == "harness" and (folder / "pyproject.toml").is_file()
    return folder if is_checkout else None


def _source() -> str:
    """The wheel or folder that was installed, as pip recorded it; "": an index."""
    # Only hints on what is missing need them.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        text = distribution("mmrepro").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    url = json.loads(text)["url"] if text else ""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else url


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
