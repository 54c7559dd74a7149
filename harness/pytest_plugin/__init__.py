"""The pytest plugin: ``pytest nightly.mmrepro.toml``, ``@pytest.mark.mmrepro``,
``mmrepro_run``.

It is loaded into every pytest run of an environment that has mmrepro, and does nothing
there: what runs engines is imported when a file, a marker or the fixture asks for it.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mmrepro.pytest_plugin.items import MatrixToml, MmreproRun

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


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(
        "mmrepro", "real engines, driven into known failures (mmrepro)"
    )
    group.addoption(
        "--mmrepro",
        action="store_true",
        dest="mmrepro_collect",
        help=(
            f"collect *{SUFFIX} below the folders that are named too, not only files "
            "that are."
        ),
    )
    group.addoption(
        "--mmrepro-out",
        metavar="DIR",
        help="where the incidents go, and stay.  [default: mmrepro_out of the ini "
        "file, else mmrepro-runs]",
    )
    group.addoption(
        "--mmrepro-inconclusive",
        choices=INCONCLUSIVE,
        help="what a run is that could not tell.  [default: mmrepro_inconclusive of "
        "the ini file, else error]",
    )
    parser.addini(
        "mmrepro_out", "where the incidents go, relative to this file.", default=""
    )
    parser.addini(
        "mmrepro_inconclusive",
        "what a run is that could not tell: error or skip.",
        default="error",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (setting := config.getini("mmrepro_inconclusive")) not in INCONCLUSIVE:
        raise pytest.UsageError(
            f"mmrepro_inconclusive is {setting!r}; it is error or skip."
        )
    config.addinivalue_line(
        "markers",
        f"{MARKER}(scenario, release='', variant='', device='auto', mitigations=(), "
        "options=(), server_args=(), timeout=600): run a scenario of mmrepro on a real "
        "engine before the test; it has to end as the scenario expects, or the test "
        f"looks itself, by {FIXTURE}.",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of pytest-xdist: its workers write below one folder."""
    node.workerinput[SESSION] = session_name(node.config)


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


# ---------------------------------------------------------------- *.mmrepro.toml


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> MatrixToml | None:
    if not file_path.name.endswith(SUFFIX):
        return None
    if not (
        parent.session.isinitpath(file_path)
        or parent.config.getoption("mmrepro_collect")
    ):
        return None
    from mmrepro.pytest_plugin.items import MatrixToml

    return MatrixToml.from_parent(parent, path=file_path)


# ----------------------------------------------------------- the marker and the fixture


@pytest.fixture
def mmrepro_run(request: pytest.FixtureRequest) -> MmreproRun:
    """The finished run of ``@pytest.mark.mmrepro``: outcome, expected, as_expected,
    explanation, incident, folder, report, command. Called, it runs another one:
    ``mmrepro_run("SCENARIO")``."""
    from mmrepro.pytest_plugin.items import fixture_of

    return fixture_of(request.node)


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """After the fixtures: what the marker asks for, if no fixture has run it."""
    if item.get_closest_marker(MARKER) is not None:
        from mmrepro.pytest_plugin.items import prepare

        prepare(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """A marked test without the fixture fails here, if its run was not as expected."""
    if item.get_closest_marker(MARKER) is not None:
        from mmrepro.pytest_plugin.items import judge

        judge(item)


# ---------------------------------------------------------------- at the end


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = [
        (kind, report)
        for kind, reports in terminalreporter.stats.items()
        for report in reports
        if any(
            name.startswith(PROPERTY)
            for name, _ in getattr(report, "user_properties", ())
        )
    ]
    if ran:
        from mmrepro.pytest_plugin.running import tell_reports

        tell_reports(terminalreporter, ran)
