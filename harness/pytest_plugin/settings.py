"""The plugin's names, and what the command line and the ini file of pytest say to
it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

SUFFIX = ".mmrepro.toml"
INCONCLUSIVE = ("error", "skip")
MARKER = "mmrepro"
FIXTURE = "mmrepro_run"
PROPERTY = "mmrepro."
"""Before the names of what a report says of its run."""
_DEFAULT_OUT = "mmrepro-runs"
SESSION = "mmrepro_session"
_NAME = pytest.StashKey[str]()


class MmreproWarning(pytest.PytestWarning):
    """Something in a ``*.mmrepro.toml`` that is to be looked at, and stops nothing."""


def session_name(config: pytest.Config) -> str:
    """A folder's name for this pytest run and its workers, which no other run has."""
    given = getattr(config, "workerinput", {}).get(SESSION)
    if given is None:
        given = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
    return config.stash.setdefault(_NAME, given)


def out_folder(config: pytest.Config) -> Path:
    """Absolute; relative ones are the current folder's, or the ini file's."""
    here = config.invocation_params.dir
    if folder := config.getoption("mmrepro_out"):
        return here / str(folder)
    if folder := config.getini("mmrepro_out"):
        return (config.inipath.parent if config.inipath else here) / str(folder)
    return here / _DEFAULT_OUT


def skips_inconclusive(config: pytest.Config) -> bool:
    """Tell whether an inconclusive run is skipped; else it is an error."""
    setting = config.getoption("mmrepro_inconclusive") or config.getini(
        "mmrepro_inconclusive"
    )
    return bool(setting == "skip")
