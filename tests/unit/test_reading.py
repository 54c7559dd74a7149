"""Reading is not running: what a stranger's file, folder or document names is never
executed."""

import ast
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from costs import spent
from in_process import mmrepro
from mmrepro.base.errors import BrokenScenario, UntrustedFile, UsageError
from mmrepro.campaign.matrix.options import MatrixRunCommand, load as load_matrix
from mmrepro.campaign.matrix.plan import planned_of
from mmrepro.cli.incidents import _code_in
from mmrepro.cli.matrix import _refuse_files
from mmrepro.cli.new import _filled
from mmrepro.runs.options import RunCommand
from mmrepro.runs.play.player import replayed
from mmrepro.scenario.reading import read_declared
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.traffic.case.model import ServerWanted
from pydantic import ValidationError

ROOT = Path(__file__).parents[2]
PACK = ROOT / "tests" / "pack"
ODD_IMAGE = (PACK / "odd_image.py").read_text("utf-8")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound scenario's file that leaves a trace where it is run."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "theirs.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{ODD_IMAGE}")
    return file


def ran(folder: Path) -> bool:
    return (folder / "ran").exists()


# ------------------------------------------------------------------ what only reads


@pytest.mark.parametrize(
    "words",
    [
        ("show", "./theirs.py"),
        ("show", "./theirs.py", "--json"),
        ("show", "./theirs.py", "--full"),
        ("list", "./theirs.py"),
        ("list", "./theirs.py", "--json"),
        ("show", "--claims", "./theirs.py"),
        ("find", "./theirs.py"),
    ],
)
def test_a_file_is_parsed_and_not_run(theirs: Path, words: tuple[str, ...]) -> None:
    code, said, told = mmrepro(*words)
    assert (code, told) in ((0, ""), (1, ""))
    assert not ran(theirs.parent)
    if words[0] in ("show", "list") and "--claims" not in words:
        assert "odd-image" in said.lower()
        assert "gets HTTP 500" in said
        assert "declared_only" in said or "eclared, not run" in said


@pytest.mark.parametrize(
    "words",
    [
        ("judge", PACK / "recorded" / "fails.zip", "--scenario", "./theirs.py"),
        ("diagnose", "http://127.0.0.1:9", "--scenario", "./theirs.py"),
        ("list", "--alive", "./theirs.py"),
        ("list", "--markdown", "./theirs.py"),
        ("show", "./theirs.py", "--variant", "any"),
    ],
)
def test_where_it_has_to_run_it_is_asked_for(
    theirs: Path, words: tuple[str, ...]
) -> None:
    code, said, told = mmrepro(*words)
    assert (code, said) == (2, "")
    sentence, following = told.splitlines()
    assert sentence == "./theirs.py is a Python file, which would be run to be read."
    assert following.startswith(
        f"Next: read it yourself first, then: mmrepro {words[0]} "
    )
    assert "--trust" in following
    assert not ran(theirs.parent)


def test_what_is_trusted_is_run(theirs: Path) -> None:
    code, said, _ = mmrepro("show", "./theirs.py", "--trust", "--json")
    assert (code, json.loads(said)["declared_only"]) == (0, False)
    assert ran(theirs.parent)
    recording = PACK / "recorded" / "fails.zip"
    code, said, _ = mmrepro("judge", recording, "--scenario", "./theirs.py", "--trust")
    assert (code, "reproduced" in said) == (0, True)


@pytest.mark.parametrize("name", ["encoder_cache_overflow", "tool_stream", "pack"])
def test_what_is_declared_is_what_a_run_of_the_file_says(name: str) -> None:
    file = (
        PACK / "odd_image.py" if name == "pack" else ROOT / "scenarios" / f"{name}.py"
    )
    read, loaded = read_declared(str(file)), load_scenario(str(file))
    for field in ("name", "engine", "release", "title", "summary", "explanation"):
        assert getattr(read, field) == getattr(loaded, field), field
    assert read.affected == loaded.affected_range
    assert read.server.split() == " ".join(loaded.server.split()).split()
    assert [one.name for one in read.mitigations] == [
        one.name for one in loaded.mitigations
    ]
    told = [(one.id, one.title, one.address) for one in read.references]
    assert told == [(one.id, one.title, one.url) for one in loaded.references]
    assert read.failure_class == (loaded.failure_class or "")


def test_an_engine_that_a_class_elsewhere_says_is_not_guessed(tmp_path: Path) -> None:
    text = ODD_IMAGE.replace("(Scenario)", "(elsewhere.Base)").replace(
        'engine = "minivllm"', ""
    )
    (tmp_path / "x.py").write_text(text)
    assert read_declared(str(tmp_path / "x.py")).engine == "…"
    (tmp_path / "x.py").write_text(text.replace("elsewhere.Base", "Scenario"))
    assert read_declared(str(tmp_path / "x.py")).engine == "vllm"


HOSTILE = {
    "no Python": "class Mine(:\n",
    "NUL": "x = 1\0\n",
    "another coding": "# coding: nothing-of-that-name\n",
    "parentheses": "(" * 100_000 + ")" * 100_000,
    "operators": "x = " + "-" * 200_000 + "1",
    "attributes": "x = a" + ".a" * 100_000,
    "comparisons": "x = " + "a<" * 100_000 + "a",
    "ifs": "".join(" " * n + "if x:\n" for n in range(99)) + " " * 99 + "pass",
    "no scenario": "import os\n",
    "a cycle": "SCENARIO = SCENARIO\n",
    "an exotic name": "SCENARIO = [1][0]()\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_else_a_file_holds_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.py").write_text(HOSTILE[name])
    with pytest.raises(BrokenScenario) as refused:
        read_declared(str(tmp_path / "x.py"))
    assert len(refused.value.message) < 400 + len(str(tmp_path))


BOMBS = {
    "f-strings": 'a0 = "x" * 1\n'
    + "".join(f'a{n} = f"{{a{n - 1}}}{{a{n - 1}}}"\n' for n in range(1, 60))
    + "NAME = a59\n",
    "sums": 'a0 = "x"\n'
    + "".join(f"a{n} = a{n - 1} + a{n - 1}\n" for n in range(1, 60))
    + "NAME = a59\n",
    "products": "NAME = f'{" + " * ".join(["9999999999"] * 500) + "}'\n",
    "cycle": "NAME = OTHER\nOTHER = NAME\n",
    "half a pair": r"NAME = '\ud800'" + "\n",
    "a large number": f"NAME = f'{{{'0x' + 'f' * 100_000}}}'\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_value_that_grows_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text = ODD_IMAGE.replace('name = "odd-image"', "name = NAME")
    assert text != ODD_IMAGE
    (tmp_path / "x.py").write_text(BOMBS[name] + text)
    began = spent()
    assert len(read_declared(str(tmp_path / "x.py")).name) <= 4000
    # Processor time: on a busy machine its child's start alone has taken 12 s.
    assert spent() - began < 10
    monkeypatch.chdir(tmp_path)
    code, said, told = mmrepro("show", "./x.py")
    assert (code, told) == (0, "")
    assert "gets HTTP 500" in said


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "folder.py").mkdir()
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("fifo.py", "folder.py", "huge.py", "none.py"):
        with pytest.raises(UsageError):
            read_declared(str(tmp_path / name))


# ------------------------------------------------------------------ what documents name


def test_an_incident_that_names_a_file_does_not_run_it(theirs: Path) -> None:
    with zipfile.ZipFile(PACK / "recorded" / "fails.zip") as bundle:
        incident = json.loads(bundle.read("incident.json"))
    incident["scenario"]["name"] = "./theirs.py"
    Path("incident.json").write_text(json.dumps(incident))
    for words in (
        ("judge", "."),
        ("judge", ".", "--trust"),
        ("report", "."),
        ("open", "."),
    ):
        code, _, told = mmrepro(*words)
        assert not ran(theirs.parent), words
        if words[0] == "judge":
            assert (code, "--scenario FILE.py --trust" in told) == (2, True)


def test_a_case_that_names_a_file_does_not_run_it(theirs: Path) -> None:
    with pytest.raises(ValidationError):
        ServerWanted(engine="minivllm", release="0.1", mitigation="./theirs.py/fix")
    # The name is refused before; whatever got past that would not be run either.
    wanted = ServerWanted.model_construct(
        **{
            **dict(ServerWanted(engine="minivllm", release="0.1")),
            "mitigation": "./theirs.py/fix",
        }
    )
    with pytest.raises(UntrustedFile):
        replayed(wanted, RunCommand())
    assert not ran(theirs.parent)


def test_a_matrix_file_that_names_a_file_does_not_run_it(theirs: Path) -> None:
    Path("night.toml").write_text(
        '[[cell]]\nscenario = "theirs.py"\nreleases = "own"\n'
    )
    given = load_matrix(Path("night.toml"))
    with pytest.raises(UntrustedFile):
        planned_of(MatrixRunCommand(file=Path("night.toml")), given)
    assert not ran(theirs.parent)
    code, _, told = mmrepro("matrix", "run", "night.toml", "--dry-run")
    assert (code, "--trust" in told) == (2, True)
    assert planned_of(MatrixRunCommand(file=Path("night.toml"), trust=True), given)[0]
    assert ran(theirs.parent)


def test_a_ledger_that_names_a_file_does_not_run_it(theirs: Path) -> None:
    cell = SimpleNamespace(scenario="./theirs.py")
    runs = SimpleNamespace(planned={"a": SimpleNamespace(cell=cell)})
    with pytest.raises(UntrustedFile):
        _refuse_files(runs, MatrixRunCommand())  # type: ignore[arg-type]
    for asked in (
        MatrixRunCommand(trust=True),
        MatrixRunCommand(scenarios=("./theirs.py",)),
    ):
        _refuse_files(runs, asked)  # type: ignore[arg-type]
    assert not ran(theirs.parent)
    again = MatrixRunCommand(scenarios=("./theirs.py",)).resumed(Path("M"))
    assert "--trust" in again.split()


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("bisect ./evil.py --resume", "./evil.py"),
        (
            "ablate ghost-key-eviction --server-arg=--middleware=evil.M",
            "--server-arg=--middleware=evil.M",
        ),
        ("fuzz --env=PYTHONPATH=. --resume F", "--env=PYTHONPATH=."),
        ("matrix run --ray evil.example:1 --resume", "--ray"),
        ("matrix run --trust --resume", "--trust"),
        ("repro ISSUE.md --trust-report --resume F", "--trust-report"),
        ("replay a.har --no-box --resume F", "--no-box"),
        ("fuzz --no-box --resume F", "--no-box"),
        ("replay a.har --box --resume F", ""),
        ("matrix run --jobs 2 --resume --out nights", ""),
        ("bisect ghost-key-eviction --commits c --jobs 2", ""),
    ],
)
def test_a_campaign_that_is_resumed_decides_on_no_code(written: str, code: str) -> None:
    assert _code_in(written.split()) == code


def test_a_finding_becomes_no_code_of_a_scenario() -> None:
    evil = 'x"\n__import__("os").abort()\n"'
    facts = {
        "title": "t",
        "said": "s",
        "why": "w",
        "module": "m",
        "folder": "f",
        "cls": "C",
        "name": "n",
        "engine": evil,
        "release": evil,
        "model": "M()",
        "foreign": "",
        "max_model_len": 1,
        "server": "''",
        "env": "",
        "patterns": "",
        "precondition": "p",
        "symptoms": [],
        "causes": [],
        "healthy": "",
        "imports": ["a"],
        "more": ["b"],
        "observed": {"statement": evil, "label": evil, "test": "True", "told": "t"},
    }
    tree = ast.parse(_filled("scenario_from.py.j2", facts))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "__import__" not in names
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert texts.count(evil) == 4


RUNS_WHAT_IS_NAMED = {
    "harness/api.py",
    "harness/campaign/cluster/remote.py",
    "harness/campaign/provisions.py",
    "harness/cli/ablate.py",
    "harness/cli/bisect.py",
    "harness/cli/find_index.py",
    "harness/cli/options.py",
    "harness/cli/run.py",
    "harness/cli/warm.py",
    "harness/pytest_plugin/items.py",
    "harness/scenario/registry.py",
}
"""Modules whose user named the file to run it, that get what such a module was given,
or that have the name from an installed distribution."""


def test_who_runs_a_file_is_known() -> None:
    """A module that takes a scenario's name from somewhere else calls
    known_scenario."""
    files = [*(ROOT / "harness").rglob("*.py"), *(ROOT / "reports").rglob("*.py")]
    callers = {
        str(file.relative_to(ROOT))
        for file in files
        if "load_scenario" in file.read_text("utf-8")
    }
    assert callers == RUNS_WHAT_IS_NAMED


# ------------------------------------------------------------------ a stranger's folder


SHADOWS = (
    "typing",
    "pathlib",
    "json",
    "yaml",
    "typer",
    "conftest",
    "sitecustomize",
    "evil_mod",
)


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder with modules of known names, and a distribution that brings a
    scenario."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        )
    (facts := tmp_path / "evil-1.dist-info").mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "[mmrepro.scenarios]\nevil-one = evil_mod:SCENARIO\n"
    )
    return tmp_path


@pytest.mark.parametrize("words", [("list",), ("find", "anything at all")])
def test_nothing_is_imported_from_the_current_folder(
    strange: Path, words: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "mmrepro", *words]
    done = subprocess.run(
        command, cwd=strange, capture_output=True, text=True, check=False
    )
    assert (done.returncode in (0, 1, 3), done.stderr) == (True, "")
    assert "evil-one" not in done.stdout
    assert not ran(strange)


def test_a_scenario_of_a_distribution_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name might be that of a file here."""
    (facts := tmp_path / "site" / "evil-1.dist-info").mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "[mmrepro.scenarios]\nevil.py = nothing:SCENARIO\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert "evil.py" not in scenario_names()


LINGERS = {
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, "
        "args=(600,)).start()"
    ),
    "the end": "import atexit, time\natexit.register(time.sleep, 600)",
}


@pytest.mark.parametrize("name", LINGERS)
def test_what_a_file_leaves_running_keeps_no_command(theirs: Path, name: str) -> None:
    theirs.write_text(f"{LINGERS[name]}\n{ODD_IMAGE}")
    command = [sys.executable, "-m", "mmrepro", "show", "./theirs.py", "--trust"]
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=theirs.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, "gets HTTP 500" in done.stdout) == (0, True)
    assert time.monotonic() - began < 30
