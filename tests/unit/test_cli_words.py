"""Words of the command line: names of what lies here, guesses, completion, help,
downloads."""

import json
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest
import test_house
from mmrepro.base.errors import ExitCode, InfrastructureError, UnknownRelease
from mmrepro.cli import console
from mmrepro.cli.console import announce
from mmrepro.engines import spec_for
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.runs.options import RunCommand
from test_cli import Here, here as here
from test_incidents_cli import (
    campaign,
    campaigns as campaigns,
    kept,
    several as several,
)

HERE = Path(__file__).parent


# ---------------------------------------------------------------- N, id and last


@pytest.mark.usefixtures("several", "campaigns")
@pytest.mark.parametrize(
    ("word", "folder"),
    [("4", "good"), ("GOOD", "good"), ("good", "good"), ("incidents/good", "good")],
)
def test_an_incident_is_named_by_number_id_or_folder(
    here: Here, word: str, folder: str
) -> None:
    said = here("open", word, "--print")
    assert (said.returncode, said.stdout) == (0, f"incidents/{folder}/report.html\n")
    report = here("report", word, "--format", "json")
    assert '"id": "GOOD"' in report.stdout
    assert here("bundle", word, "--out", "b.zip").returncode == 0
    assert '"incident": "incidents/good"' in here("judge", word, "--json").stdout


@pytest.mark.usefixtures("several", "campaigns")
def test_campaigns_have_the_numbers_behind_the_incidents(
    here: Here, tmp_path: Path
) -> None:
    lines = here("incidents").stdout.partition("Campaigns\n")[2].splitlines()
    numbered = {line.split()[-1]: line.split()[0] for line in lines}
    (tmp_path / "bisections/b/bisection.html").write_text("")
    number = numbered["bisections/b"]
    assert int(number) > 5, "after the five incidents"
    assert here("open", number).stdout == "bisections/b/bisection.html\n"
    said = here("judge", number)
    assert said.stderr == (
        f"Number {number} is no run, but a bisection.\nNext: mmrepro incidents\n"
    )


@pytest.mark.usefixtures("several")
def test_the_last_one_is_the_newest_and_a_campaign_before_its_runs(
    here: Here, tmp_path: Path
) -> None:
    assert (
        here("open", "last", "--print").stdout
        == "M/incidents/n1/cell/run-1/report.html\n"
    )
    assert here("open", "--print").stdout == "M/incidents/n1/cell/run-1/report.html\n"
    campaign(
        tmp_path / "bisections/x",
        "bisection.json",
        hours_ago=0,
        command="mmrepro bisect g",
    )
    (tmp_path / "bisections/x/bisection.html").write_text("")
    kept(tmp_path / "bisections/x/run-9", -1)
    assert here("open", "last").stdout == "bisections/x/bisection.html\n"
    assert '"bisections/x/run-9"' in here("judge", "last", "--json").stdout


@pytest.mark.usefixtures("several", "campaigns")
def test_resume_takes_the_last_that_has_something_left(
    here: Here, tmp_path: Path
) -> None:
    (tmp_path / "nights/ledger.jsonl").unlink()
    campaign(
        tmp_path / "b2", "bisection.json", hours_ago=0, state="complete", command="rm"
    )
    said = here("resume", "last")
    assert "bisections/b" in said.stderr
    assert "complete" not in said.stderr


@pytest.mark.parametrize("words", ["upgrade 0.1", "replay", "fuzz", "fuzz --seed 3"])
def test_a_folder_alone_is_gone_on_with_by_resume(here: Here, words: str) -> None:
    said = here(*words.split(), "--resume", "their b")
    assert said.returncode == ExitCode.USAGE
    assert said.stderr.splitlines()[-1] == "Next: mmrepro resume 'their b'"
    assert "--resume" not in here(*words.split()).stderr, "nothing is resumed"


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("report 6", "No incident 6; there are 5."),
        ("open 0", "No incident 0; there are 5."),
        ("judge gold", "Nothing here is called gold. Did you mean good?"),
        ("bundle run-1", "2 incidents or campaigns are called run-1."),
        ("resume last", "There is no campaign here that could be the last."),
        (
            "new odd-image --from last",
            "There is no replay here that could be the last.",
        ),
        ("replay 77 --engine vllm", "No incident 77; there are 5."),
        ("fuzz vllm --from 77", "No incident 77; there are 5."),
        ("fuzz vllm --resume 2", "Number 2 is no campaign, but an incident."),
    ],
)
def test_a_wrong_name_is_one_sentence_and_the_next_command(
    here: Here, words: str, says: str
) -> None:
    said = here(*words.split())
    assert (said.returncode, said.stdout) == (ExitCode.USAGE, "")
    assert said.stderr == f"{says}\nNext: mmrepro incidents\n"


@pytest.mark.usefixtures("several")
def test_a_folder_that_is_called_as_a_number_is_that_folder(
    here: Here, tmp_path: Path
) -> None:
    kept(tmp_path / "3")
    assert here("open", "3", "--print").stdout == "3/report.html\n"


@pytest.mark.usefixtures("several")
def test_open_opens_a_browser_where_there_is_a_terminal(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        webbrowser, "open", lambda url: bool(opened.append(url)) or True
    )
    assert here("open", "4").stdout == "incidents/good/report.html\n"
    assert opened == [], "no terminal, no browser"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert here("open", "4", "--print").stdout == "incidents/good/report.html\n"
    assert opened == []
    assert here("open", "4").stdout == ""
    assert opened == [(tmp_path / "incidents/good/report.html").as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert here("open", "4").stdout == "incidents/good/report.html\n", "no display"


@pytest.mark.usefixtures("several")
def test_a_bundle_has_no_page(here: Here, tmp_path: Path) -> None:
    here("bundle", "4", "--out", "b.zip")
    (tmp_path / "report.html").write_text("another one's")
    said = here("open", "b.zip")
    assert (said.returncode, said.stdout) == (ExitCode.USAGE, "")
    assert "Next: mmrepro report b.zip --format html" in said.stderr


# ------------------------------------------------------------- NAME:VARIANT and guesses


@pytest.mark.parametrize(
    ("typed", "scenario", "variant"),
    [
        ("a:b", "a", "b"),
        ("a", "a", ""),
        ("x.py:b", "x.py", "b"),
        ("a:b/x.py", "a:b/x.py", ""),
    ],
)
def test_a_scenario_with_its_variant(typed: str, scenario: str, variant: str) -> None:
    asked = RunCommand(scenario=typed)
    assert (asked.scenario, asked.variant) == (scenario, variant)


def test_a_variant_is_shown_and_refused(here: Here) -> None:
    said = here("show", "chunked-mm-prefill:async-race")
    assert "mmrepro run chunked-mm-prefill:async-race" in said.stdout
    said = here("run", "chunked-mm-prefill:async-rase", "--device", "cpu")
    assert said.returncode == ExitCode.USAGE
    assert "Did you mean async-race?" in said.stderr


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        ("rnu", "run"),
        ("run ghost-key-eviction --relase 0.23.0", "--release"),
        ("run ghost-key-eviction --device cpuu", "cpu"),
        ("run ghost-key-eviction --start-mode=wram", "warm"),
        ("run ghost-key-eviction --release 0.23.O", "0.23.0"),
        ("report x --format jsno", "json"),
        ("diagnose --only stakcs --pid 1", "stacks"),
        ("new odd-image --engine vlm", "vllm"),
        ("matrix reprt", "'report'"),
    ],
)
def test_what_is_close_is_named(here: Here, words: str, guess: str) -> None:
    said = here(*words.split())
    assert (said.returncode, said.stdout) == (ExitCode.USAGE, "")
    assert f"Did you mean {guess}?" in said.stderr
    assert (
        "Did you mean"
        not in here("run", "ghost-key-eviction", "--device", "????").stderr
    )


# ---------------------------------------------------------------- help and completion


@pytest.mark.parametrize(
    ("columns", "least", "most"), [("70", 60, 70), ("400", 110, 120)]
)
def test_help_is_as_wide_as_the_terminal(
    here: Here, monkeypatch: pytest.MonkeyPatch, columns: str, least: int, most: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    widest = max(map(len, here("run", "-h").stdout.splitlines()))
    assert least <= widest <= most


def test_short_options(here: Here) -> None:
    assert here("-V").stdout == here("--version").stdout != ""
    assert here("matrix", "run", "-h").returncode == 0
    for command in ("run", "ablate", "bisect", "replay", "fuzz", "diagnose"):
        text = here(command, "-h").stdout
        assert "-q, --quiet" in text, command
        assert "-v, --verbose" in text, command


def completed(line: str, monkeypatch: pytest.MonkeyPatch, here: Here) -> list[str]:
    monkeypatch.setenv("_MMREPRO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return here().stdout.split()


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("mmrepro rep", ["repro", "replay", "report"]),
        ("mmrepro run ghost-k", ["ghost-key-eviction"]),
        ("mmrepro fuzz v", ["vllm"]),
        ("mmrepro run ghost-key-eviction --release 0.23", ["0.23.0"]),
        ("mmrepro run mm-cache-desync --devic", ["--device"]),
        ("mmrepro open ", ["last", "1", "2", "3", "4", "5"]),
        ("mmrepro judge GO", ["GOOD"]),
        ("mmrepro resume ", []),
    ],
)
def test_a_shell_completes(
    here: Here, monkeypatch: pytest.MonkeyPatch, line: str, known: list[str]
) -> None:
    found = completed(line, monkeypatch, here)
    assert found[: len(known) or 1] == known


def test_a_shell_gets_its_script() -> None:
    """Which one asks is told by the processes above: a job of CI may have none
    there."""
    line = f"{sys.executable} -m mmrepro --show-completion; true"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False
    )
    assert "complete" in done.stdout


def test_completing_a_name_loads_no_command(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "mmrepro.cli.bisect"]:
        monkeypatch.delitem(sys.modules, name)
    assert "bisect" in completed("mmrepro b", monkeypatch, here)
    assert "mmrepro.cli.bisect" not in sys.modules


# ---------------------------------------------------------------- downloads


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, a terminal, and the questions that are asked; the answer is
    no."""
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    questions: list[str] = []
    monkeypatch.setattr(
        "typer.confirm", lambda text, **_: bool(questions.append(text)) or False
    )
    monkeypatch.setattr(console, "at_terminal", lambda: True)
    monkeypatch.setattr("mmrepro.engines.environments.build.doubt", lambda spec: "")

    def run_uv(*_: object, **__: object) -> str:
        raise AssertionError("a build was begun")

    monkeypatch.setattr("mmrepro.engines.environments.uv.run_uv", run_uv)
    monkeypatch.setattr("mmrepro.engines.environments.recipe.run_uv", run_uv)
    return questions


def test_a_large_download_is_announced_and_asked_about(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_for("vllm", "0.23.0", "cpu")
    with pytest.raises(InfrastructureError, match="was not downloaded"):
        announce(spec, yes=False)
    said = capsys.readouterr().err
    assert said.startswith("vllm 0.23.0 (cpu) is not here yet. Up to 8 GiB")
    assert str(tmp_path / "cache/environments") in said
    assert asked == ["Download it?"]
    announce(spec, yes=True)
    assert len(asked) == 1, "--yes"


def test_a_small_download_is_only_announced(
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(console, "ASK_BYTES", 1 << 50)
    announce(spec_for("vllm", "0.23.0", "cpu"), yes=False)
    assert "is not here yet" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("unknown", [False, True])
def test_where_it_does_not_go_on_nothing_is_left(
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unknown: bool,
) -> None:
    """A release that there is not is told before anything is announced or asked."""

    def doubt(spec: EnvironmentSpec) -> str:
        if unknown and spec.release == "0.24.0":
            raise UnknownRelease("There is none.")
        return "the index cannot be asked"

    monkeypatch.setattr("mmrepro.engines.environments.build.doubt", doubt)
    new = tmp_path / "upgrades/new"
    new.mkdir(parents=True)
    (new / "case.json").touch()
    specs = [spec_for("vllm", release, "cpu") for release in ("0.23.0", "0.24.0")]
    with pytest.raises(UnknownRelease if unknown else InfrastructureError):
        announce(*specs, yes=False, new=new)
    assert len(asked) == (0 if unknown else 1)
    assert bool(capsys.readouterr().err) == (not unknown)
    assert not new.exists()
    assert new.parent.exists()
    if not unknown:
        new.mkdir()
        announce(*specs, yes=True, new=new)
        assert new.exists()


def test_off_a_terminal_nothing_is_asked(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "at_terminal", lambda: False)
    announce(spec_for("vllm", "0.23.0", "cpu"), yes=False)
    assert asked == []


def test_what_is_there_is_not_announced(
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "mmrepro.engines.environments.build.existing", lambda spec: object()
    )
    announce(spec_for("vllm", "0.23.0", "cpu"), yes=False)
    assert (capsys.readouterr().err, asked) == ("", [])


@pytest.mark.parametrize(
    "command",
    [
        "run ghost-key-eviction --device cpu",
        "fuzz vllm",
        "replay t.jsonl --engine vllm",
        "upgrade 0.23.0 0.24.0 --engine vllm --traffic t.jsonl --device cpu",
    ],
)
def test_a_command_asks_before_it_begins(
    asked: list[str], here: Here, tmp_path: Path, command: str
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    (tmp_path / "t.jsonl").write_text(json.dumps(line))
    said = here(*command.split())
    assert said.returncode == ExitCode.INFRASTRUCTURE, said.stderr
    assert said.stderr.splitlines()[-1] == "Next: --yes downloads without asking"
    assert not list(tmp_path.glob("incidents/*")), "nothing was begun"
    for folder in ("fuzz", "replays", "upgrades"):
        assert not list(tmp_path.glob(f"{folder}/*"))
    assert len(asked) == 1


# ---------------------------------------------------------------- --quiet


def test_a_quiet_run_prints_its_verdict_and_its_page(tmp_path: Path) -> None:
    program = test_house.RUN.replace('"run", "ghost', '"run", "-q", "ghost')
    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "out"],
        cwd=tmp_path,
        env={
            **os.environ,
            "MMREPRO_CACHE_DIR": f"{tmp_path}/cache",
            "PYTHONPATH": str(HERE),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    page, verdict = ran.stdout.splitlines()
    assert verdict.startswith("INCONCLUSIVE")
    assert "ghost-key-eviction on vllm" in verdict
    assert page == f"page: {tmp_path / 'out/report.html'}"
    assert (tmp_path / "out/report.html").is_file()
