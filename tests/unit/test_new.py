"""``mmrepro new``: what it writes runs, is red, and never claims a failure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import verdicts
from mmrepro.base import errors
from mmrepro.cli.app import app
from mmrepro.engines import ENGINES
from mmrepro.failure.signature import Outcome
from mmrepro.reports import load
from mmrepro.runs.judge import rejudge
from mmrepro.scenario.registry import load_scenario, scenario_names
from typer.testing import CliRunner

pytestmark = pytest.mark.usefixtures("by_conditions")

RECORDED = Path(__file__).parent.parent / "evidence"
ROWS = verdicts.read()["recordings"]
REPRODUCED = [
    name for name, row in ROWS.items() if row["outcome"] == Outcome.REPRODUCED
]
runner = CliRunner()


def new(*arguments: str) -> dict[str, object]:
    said = runner.invoke(app, ["new", *arguments, "--json"])
    assert said.exit_code == 0, said.output
    return json.loads(said.stdout)


def refused(*arguments: str) -> errors.MmreproError:
    said = runner.invoke(app, ["new", *arguments])
    assert isinstance(said.exception, errors.MmreproError), said.output
    assert said.exception.exit_code == errors.ExitCode.USAGE
    assert said.exception.hint
    return said.exception


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_written_is_a_scenario_of_that_engine(
    tmp_path: Path, engine: str
) -> None:
    said = new("odd-image", "--engine", engine, "--out", str(tmp_path))
    assert said["files"] == [
        str(tmp_path / "odd_image.py"),
        str(tmp_path / "test_odd_image.py"),
    ]
    assert said["next"] == [f"mmrepro run {tmp_path / 'odd_image.py'}"]
    found = load_scenario(str(tmp_path / "odd_image.py"))
    assert (found.name, found.engine, found.release) == (
        "odd-image",
        engine,
        said["release"],
    )
    assert found.affects(found.release)


@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_was_seen_the_template_says_reproduced_of_none(
    tmp_path: Path, engine: str
) -> None:
    """Every failure of the engine that was reproduced, judged by the untouched file."""
    new("odd-image", "--engine", engine, "--out", str(tmp_path))
    template = load_scenario(str(tmp_path / "odd_image.py"))
    outcomes = []
    known = tuple(
        s.name for s in map(load_scenario, scenario_names()) if s.engine == engine
    )
    for name in (name for name in REPRODUCED if name.startswith(known)):
        incident = load(RECORDED / f"{name}.zip")
        for (
            request
        ) in incident.evidence.requests:  # as if it had been the template's run
            if request.phase == "trigger":
                request.label = "TODO: the request that fails"
        outcomes.append(rejudge(incident, template).now.outcome)
    assert len(outcomes) > 3
    assert Outcome.REPRODUCED not in outcomes


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (errors.UnknownRelease("There is none.", hint="--release 0.32.0"), 2, ""),
        (
            errors.EnvironmentBuildError("The index could not be asked."),
            0,
            "is not known",
        ),
        (None, 0, ""),
    ],
)
def test_the_release_is_one_that_is_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: errors.MmreproError | None,
    code: int,
    said: str,
) -> None:
    def find(spec: object) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr("mmrepro.engines.environments.releases.find", find)
    asked = [
        "new",
        "odd",
        "--engine",
        "vllm",
        "--release",
        "9.9.9",
        "--out",
        str(tmp_path),
    ]
    done = runner.invoke(app, asked)
    found = getattr(done.exception, "exit_code", 0) if code else done.exit_code
    assert (found, said in done.output) == (code, True), done.output
    assert bool(list(tmp_path.iterdir())) is (code == 0)


def test_its_test_is_red(tmp_path: Path) -> None:
    new("odd-image", "--engine", "minivllm", "--out", str(tmp_path))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "test_odd_image.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "3 failed, 1 passed" in done.stdout
    assert "record one: mmrepro run ./odd_image.py --out recorded/fails" in done.stdout
    assert "odd_image.py:1: " in done.stdout  # the first TODO, by file and line


def test_another_release(tmp_path: Path) -> None:
    said = new(
        "odd-image", "--engine", "vllm", "--release", "0.11.0", "--out", str(tmp_path)
    )
    assert said["release"] == "0.11.0"
    assert load_scenario(str(tmp_path / "odd_image.py")).affected == ">=0.11.0"


def test_files_that_are_there_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test_odd_image.py").write_text("mine\n")
    at = ("odd-image", "--engine", "minivllm", "--out", str(tmp_path))
    assert "test_odd_image.py exists already." in refused(*at).message
    assert [file.name for file in tmp_path.iterdir()] == ["test_odd_image.py"]
    new(*at, "--force")
    assert "mine" not in (tmp_path / "test_odd_image.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Odd", "--engine", "vllm"), "'Odd' is no name of a scenario"),
        (("../odd", "--engine", "vllm"), "is no name of a scenario"),
        (("odd--image", "--engine", "vllm"), "is no name of a scenario"),
        (("json", "--engine", "vllm"), "json.py would hide what Python calls json."),
        (("class", "--engine", "vllm"), "class.py would hide"),
        (
            ("ghost-key-eviction", "--engine", "vllm"),
            "There is a scenario ghost-key-eviction",
        ),
        (("odd-image", "--engine", "tgi"), "There is no engine 'tgi'"),
        (
            ("odd-image", "--engine", "vllm", "--release", "new"),
            "'new' is not a release",
        ),
        (
            ("odd-image", "--engine", "minivllm", "--release", "9"),
            "There is no release '9'",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_written_is_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(*arguments).message
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    at = ("--out", str(tmp_path / "file" / "x"))
    assert "cannot be written" in refused("odd-image", "--engine", "vllm", *at).message
