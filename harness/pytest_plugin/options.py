"""What pytest's command line and ini file say."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

DEFAULT_OUT = "mmrepro-runs"
SESSION = "mmrepro_session"
_NAME = pytest.StashKey[str]()


def session_name(config: pytest.Config) -> str:
    """Of this pytest run, and of its workers: a folder's name that no other run has."""
    given = getattr(config, "workerinput", {}).get(SESSION)
    if given is None:
        given = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
    return config.stash.setdefault(_NAME, given)


def out_folder(config: pytest.Config) -> Path:
    """Absolute; relative ones are the current folder's, or the ini file's."""
    here = config.invocation_params.dir
    if said := config.getoption("mmrepro_out"):
        return here / str(said)
    if said := config.getini("mmrepro_out"):
        return (config.inipath.parent if config.inipath else here) / str(said)
    return here / DEFAULT_OUT


def skips_inconclusive(config: pytest.Config) -> bool:
    said = config.getoption("mmrepro_inconclusive") or config.getini("mmrepro_inconclusive")
    return bool(said == "skip")
