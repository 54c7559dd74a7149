"""What a new user types in the first minutes."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import mmrepro
from mmrepro.base.common_options import read_address
from mmrepro.base.records import Moment
from mmrepro.cli.commands import COMMANDS, EVERYDAY
from mmrepro.cli.progress import Progress
from mmrepro.live.diagnose.discover import LocalServer
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.fleet import session
from mmrepro.live.fleet.session import with_servers
from mmrepro.traffic.evidence import Event
from rich.console import Console


@pytest.mark.parametrize(
    ("typed", "same"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("8000", "http://127.0.0.1:8000"),
        ("https://llm.example", "https://llm.example"),
        ("llm.example", "llm.example"),
    ],
)
def test_an_address_needs_no_scheme(typed: str, same: str) -> None:
    assert read_address(typed) == same


def test_the_servers_of_this_machine_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        LocalServer("http://127.0.0.1:8000", "vLLM", 7),
        LocalServer("http://127.0.0.1:30000", "SGLang", 9),
    ]
    monkeypatch.setattr(session, "local_servers", lambda: found)
    printed: list[str] = []
    asked = with_servers(DiagnoseCommand(), "diagnose", printed.append)
    assert (asked.url, asked.more) == (found[0].url, (found[1].url,))
    assert printed[0] == "Found vLLM at http://127.0.0.1:8000 (pid 7)"
    named = DiagnoseCommand(url="http://other:1")
    assert with_servers(named, "diagnose", printed.append) is named


def test_words_of_other_tools_are_known() -> None:
    assert mmrepro("version")[1].startswith("mmrepro ")
    assert mmrepro("ls")[1] == mmrepro("list")[1]
    assert mmrepro("explain", "shape-alias")[1] == mmrepro("show", "shape-alias")[1]
    code, out, _ = mmrepro()
    assert (code, "mmrepro demo" in out) == (0, True)


def test_help_has_twelve_commands_and_help_all_has_all() -> None:
    assert len(EVERYDAY) == 12
    few, everything = mmrepro("--help")[1], mmrepro("help", "all")[1]
    for name in COMMANDS:
        assert f"\n  {name} " in everything, name
        assert (f"\n  {name} " in few) == (name in EVERYDAY or name == "help"), name


def test_a_page_is_printed_and_a_wrong_one_is_named() -> None:
    code, out, _ = mmrepro("help", "logs")
    assert (code, out.startswith("# ")) == (0, True)
    code, _, error = mmrepro("help", "no-such-page")
    assert code == 2
    assert "mmrepro help pages" in error


def test_a_run_that_is_redirected_prints_its_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(Console(file=io.StringIO()), "a run")
    for stage in ("start-up", "gate"):
        progress(Event(at=Moment.now(), phase="gate", source="stage", text=stage))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["[0 s] start-up", "[0 s] warm-up check"]
    quiet = Progress(Console(file=io.StringIO(), quiet=True), "a run")
    quiet(Event(at=Moment.now(), phase="gate", source="stage", text="start-up"))
    assert capsys.readouterr().err == ""


def test_a_file_is_run_by_its_path(tmp_path: Path) -> None:
    code, _, error = mmrepro(
        "new", "odd-image", "--engine", "minivllm", "--out", tmp_path
    )
    assert code == 0, error
    file = tmp_path / "odd_image.py"
    out = mmrepro("show", file, "--trust")[1]
    assert f"mmrepro run {file}" in out.replace("\n", " ")


def test_what_is_planted_is_not_unfixed_upstream() -> None:
    out = mmrepro("list", "--alive")[1]
    assert "minivllm" not in out
    assert "still unfixed upstream" in out


LOADS = """
import sys
from mmrepro.cli import main
sys.argv = ["mmrepro", *sys.argv[2:]]
heavy = sys.argv.pop(1)
try:
    main()
except SystemExit:
    print(heavy in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("heavy", "words"),
    [
        ("typer", "--help"),
        ("typer", "--version"),
        ("pydantic", "list"),
        ("pydantic", "show borrowed-faults"),
    ],
)
def test_a_short_command_does_not_load_what_it_does_not_need(
    heavy: str, words: str
) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", LOADS, "-", heavy, *words.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout
    assert printed.stderr.splitlines()[-1] == "False"


def test_show_prints_of_the_index_what_it_prints_of_the_scenario() -> None:
    code, of_index, _ = mmrepro("show", "borrowed-faults")
    _, of_scenario, _ = mmrepro("show", "borrowed-faults:ghost-key-lru")
    _, full, _ = mmrepro("show", "borrowed-faults", "--full")
    assert code == 0
    assert of_index == of_scenario
    assert full.endswith(of_index)
