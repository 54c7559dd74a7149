"""The pytest plugin: ``pytest nightly.mmrepro.toml``, ``@pytest.mark.mmrepro``,
``mmrepro_run``.

It is loaded into every pytest run of an environment that has mmrepro, and does nothing
there: what runs engines is imported when a file, a marker or the fixture asks for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mmrepro.pytest_plugin.settings import (
    FIXTURE,
    INCONCLUSIVE,
    MARKER,
    PROPERTY,
    SESSION,
    SUFFIX,
    MmreproWarning as MmreproWarning,
    session_name,
)

if TYPE_CHECKING:
    from mmrepro.pytest_plugin.items import MatrixToml, MmreproRun


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
