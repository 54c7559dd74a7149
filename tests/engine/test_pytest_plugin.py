"""The pytest plugin, installed as users have it, with real engines: minivllm's, the
smallest."""

import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from grids import grid
from live import children, wait_for
from mmrepro.engines.environments.wheelhouse.own import own_wheel
from mmrepro.runs.starter import IDLE_VARIABLE, ROOT_VARIABLE

pytestmark = pytest.mark.engine

UV = (sys.executable, "-m", "uv")
ENDED_S = 15
NIGHTLY = """
[matrix]
device = "cpu"
releases = "own"
confirm = 0
quarantine = "quarantine.toml"

[[cell]]
scenario = ["borrowed-faults:ghost-key-lru", "./wrong.py"]

[[cell]]
scenario = ["borrowed-faults:kv-budget", "borrowed-faults:pad-value-key"]
releases = "99.0"
"""
QUARANTINE = """
[[quarantine]]
scenario = "borrowed-faults"
variant = "pad-value-key"
reason = "this test says so"
issue = "#16"
owner = "nobody"
expires = 2999-12-31
"""
WRONG = """
from mmrepro.scenario import with_variants
from mmrepro.scenario.registry import load_scenario

GhostKey = type(load_scenario("borrowed-faults").with_variant("ghost-key-lru"))


class Wrong(GhostKey):
    name = "wrong"
    affected = "<0.1"  # the release that is run has the fault


SCENARIO = with_variants(Wrong())
"""
MARKED = """
import pytest


@pytest.mark.mmrepro("borrowed-faults", variant="kv-budget", device="cpu")
def test_marked(mmrepro_run):
    assert mmrepro_run.outcome == "reproduced"
    assert mmrepro_run.as_expected
    assert mmrepro_run.incident.engine.release == "0.1"
    assert mmrepro_run.report.read_text().startswith("# ")
    met = {c.id for c in mmrepro_run.incident.verdict.conditions if c.truth == "met"}
    assert met
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``pytest`` of an environment with mmrepro's wheel, pytest, and what they need."""
    folder = tmp_path_factory.mktemp("fresh")
    wheel = own_wheel(folder)
    frozen = subprocess.run(
        [
            *UV,
            "pip",
            "freeze",
            "--quiet",
            "--exclude-editable",
            "--python",
            sys.executable,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    versions = folder / "versions.txt"  # no other ones: they are in uv's cache
    versions.write_text("".join(f"{v}\n" for v in frozen.stdout.split() if "==" in v))
    subprocess.run(
        [*UV, "venv", "-q", "--python", sys.executable, folder / "env"], check=True
    )
    python = folder / "env/bin/python"
    install = [
        *UV,
        "pip",
        "install",
        "-q",
        "--python",
        python,
        "-c",
        versions,
        f"{wheel}[run]",
    ]
    install += ["pytest"]
    subprocess.run(install, check=True)
    return folder / "env/bin/pytest"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "nightly.mmrepro.toml": NIGHTLY,
        "quarantine.toml": QUARANTINE,
        "wrong.py": WRONG,
        "test_marked.py": MARKED,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_a_night_as_pytest_has_it(fresh: Path) -> None:
    done = subprocess.run(
        [
            fresh,
            "nightly.mmrepro.toml",
            "test_marked.py",
            "--junitxml=junit.xml",
            "-rA",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed, 1 xfailed" in done.stdout, done.stdout
    assert "1 failed" in done.stdout
    assert "1 error" in done.stdout
    assert "Traceback" not in done.stdout

    cases = {
        str(case.get("name")): case for case in ET.parse("junit.xml").iter("testcase")
    }
    told = {
        name: {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        for name, case in cases.items()
    }
    wrong = {
        name: [
            (child.tag, child.get("message", ""))
            for child in case
            if child.tag != "properties"
        ]
        for name, case in cases.items()
    }
    passing, failing = "borrowed-faults (ghost-key-lru)", "wrong.py (ghost-key-lru)"
    assert wrong[passing] == wrong["test_marked"] == []
    ((tag, message),) = wrong[failing]
    assert tag == "failure"
    assert "reproduced; not-reproduced was expected" in message
    assert re.search(
        "run again: mmrepro run wrong.py --variant ghost-key-lru .*0.1", message
    )
    ((tag, message),) = wrong["borrowed-faults (kv-budget)"]
    assert tag == "error"
    assert "nothing was learnt, usage" in message
    assert "There is no release '99.0' of minivllm" in message
    ((tag, message),) = wrong["borrowed-faults (pad-value-key)"]
    assert (tag, message) == (
        "skipped",
        "quarantined until 2999-12-31: this test says so (#16, nobody)",
    )

    for name in (passing, failing, "test_marked"):
        assert told[name]["mmrepro.outcome"] == "reproduced"
        assert told[name]["mmrepro.release"] == "0.1"
        assert told[name]["mmrepro.key"]
        assert (Path(told[name]["mmrepro.incident"]) / "report.md").is_file()
    assert told["borrowed-faults (kv-budget)"]["mmrepro.outcome"] == "lost"
    report = Path(told[failing]["mmrepro.incident"]) / "report.md"
    shown, _, _ = done.stdout.partition("short test summary info")
    assert shown.count(str(report)) == 2, "with the reason, and at the end"


@pytest.mark.parametrize(
    "how", grid([signal.SIGINT, signal.SIGKILL], always=[signal.SIGKILL])
)
def test_what_ends_it_leaves_nothing(
    fresh: Path, project: Path, how: signal.Signals
) -> None:
    variables = {**os.environ, ROOT_VARIABLE: str(project / "warm"), IDLE_VARIABLE: "0"}
    process = subprocess.Popen(
        [fresh, "nightly.mmrepro.toml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=variables,
    )
    try:
        log = "mmrepro-runs/incidents/*/nightly/*/run-1/evidence/engine.log"
        seen = lambda: process.poll() is not None or list(project.glob(log))  # noqa: E731
        wait_for(seen, 120, "the first engine")
        assert process.poll() is None, "it was to be interrupted in its middle"
        assert len(children(variables)) > 2, (
            "pytest, the run, its engine, and a fork server"
        )
        process.send_signal(how)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    if how is signal.SIGINT:
        assert process.returncode == pytest.ExitCode.INTERRUPTED, said
        assert "KeyboardInterrupt" in said
    wait_for(lambda: not children(variables), ENDED_S, "the end of all that it started")
