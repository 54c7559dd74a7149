"""``import mmrepro``: the functions, frozen, and what they return."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import zipfile
from pathlib import Path

import mmrepro
import pytest
from mmrepro import api
from mmrepro.base.errors import BadIncident, UsageError
from mmrepro.base.options import Command, declared
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.cause import LogReading
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.runs.options import RunCommand
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.upgrade.options import UpgradeCommand

EVIDENCE = Path(__file__).parents[1] / "evidence"
RUN = EVIDENCE / "ghost-key-eviction-0.23.0.zip"
EVENTS = "events: 'Handlers[Event] | None' = None"
CAMPAIGN = "events: 'Handlers[CampaignEvent] | None' = None"
SIGNATURES = {
    "diagnose": f"(url: 'str', *, {EVENTS}, **options: 'Unpack[DiagnoseOptions]') -> "
    "'Diagnosis'",
    "judge": (
        "(incident: 'Incident | str | Path', *, scenario: 'str | Path' = '', "
        "edited: 'bool' = False) -> 'Rejudged'"
    ),
    "load": "(place: 'str | Path') -> 'Incident'",
    "logs": "(*files: 'str | Path', engine: 'str' = 'auto', alone: 'bool' = False, "
    "deadline_s: 'float' = 600.0) -> 'LogReading'",
    "replay": f"(file: 'str | Path', *, {CAMPAIGN}, "
    "**options: 'Unpack[ReplayOptions]') -> 'Replay'",
    "upgrade": "(old: 'str', new: 'str', traffic: 'str | Path', *, "
    f"{CAMPAIGN}, **options: 'Unpack[UpgradeOptions]') -> 'Upgrade'",
    "run": f"(scenario: 'str | Path', *, {EVENTS}, "
    "**options: 'Unpack[RunOptions]') -> 'Incident'",
}
STUB = Path(mmrepro.__file__).with_name("__init__.pyi")
PRINTED = {"full", "json", "quiet", "verbose", "yes", "events", "keep_server"}
"""Options that only print or ask."""
NOT_TYPED = PRINTED | {"tree", "new_tree", "kernels", "repeat", "only"}
POSITIONAL = {"scenario", "url", "file", "old", "new", "traffic"}


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        (api.RunOptions, RunCommand),
        (api.DiagnoseOptions, DiagnoseCommand),
        (api.ReplayOptions, ReplayCommand),
        (api.UpgradeOptions, UpgradeCommand),
    ],
)
def test_each_option_of_a_function_is_typed(typed: type, made: type[Command]) -> None:
    fields = {option.field for option in declared(made)}
    assert set(typed.__annotations__) <= fields
    left = fields - set(typed.__annotations__) - POSITIONAL
    assert left <= NOT_TYPED


def test_type_checkers_see_what_the_package_gives() -> None:
    tree = ast.parse(STUB.read_text("utf-8"))
    seen: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            seen.update(alias.asname or alias.name for alias in node.names)
    assert seen == {*mmrepro._API, *mmrepro._ERRORS}
    for name in mmrepro._ERRORS:
        assert issubclass(getattr(mmrepro, name), mmrepro.MmreproError)


def test_events_go_to_a_function_or_to_several(tmp_path: Path) -> None:
    first: list[object] = []
    second: list[object] = []
    mmrepro.diagnose(
        "http://127.0.0.1:1",
        events=[first.append, second.append],
        out=tmp_path / "d",
    )
    assert first
    assert first == second


def test_the_last_run_is_judged_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "incidents" / "one"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(RUN) as archive:
        archive.extractall(folder)
    monkeypatch.chdir(tmp_path)
    assert not mmrepro.judge("last").differs
    assert mmrepro.load("last").outcome == "reproduced"


def test_the_signatures_are_frozen() -> None:
    public = {
        name
        for name in dir(mmrepro)
        if callable(getattr(mmrepro, name)) and name[0] != "_"
    }
    assert {
        name: str(inspect.signature(getattr(mmrepro, name))) for name in SIGNATURES
    } == SIGNATURES
    assert public - {"TYPE_CHECKING", "Any"} == {*SIGNATURES, *mmrepro._ERRORS}


def test_importing_it_alone_loads_nothing_else() -> None:
    code = (
        "import sys, mmrepro; print([m for m in sys.modules if "
        "m.startswith('mmrepro.')])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "[]\n"


def test_a_function_is_not_hidden_by_a_package_of_its_name() -> None:

    code = (
        f"import mmrepro, mmrepro.cli.app, mmrepro.api as a; a.judge({str(RUN)!r}); "
        "print(all(callable(getattr(mmrepro, name)) for name in a.__all__))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "True\n"


def test_a_verdict_is_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    again = mmrepro.judge(RUN)
    assert not again.differs
    assert again.now.outcome == "reproduced"
    incident = mmrepro.load(RUN)
    assert isinstance(incident, Incident)
    assert mmrepro.judge(incident, scenario="mm-cache-desync").differs
    assert capsys.readouterr() == ("", "")


def test_logs_are_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 11-21 02:44:01 [api_server.py:1] vLLM API server version 0.23.0\n"
    )
    reading = mmrepro.logs(log, engine="vllm")
    assert isinstance(reading, LogReading)
    assert reading.servers[0].engine == "vllm"


def test_a_dead_server_is_diagnosed(tmp_path: Path) -> None:
    events: list[object] = []
    found = mmrepro.diagnose(
        "http://127.0.0.1:1", events=events.append, out=tmp_path / "d"
    )
    assert found.exit_code == 1
    assert events
    assert (tmp_path / "d" / "report.html").is_file()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"relase": "0.24.0"}, "run has no option relase"),
        ({"timeout_s": 0}, "timeout_s must be a number from 1 to 604800, not 0"),
        ({"timeout_s": "x"}, "timeout_s must be a number from 1"),
        ({"out": 3}, "out must be a path, not 3"),
        (
            {"mitigations": 3},
            "mitigations must be a list whose items are each a string",
        ),
        (
            {"start_mode": "tepid"},
            "start_mode must be one of auto, cold, fork, warm, not 'tepid'",
        ),
        ({"repeat": 2}, "One call is one run"),
        ({"tree": "."}, "run has no option tree"),  # it would be accepted and ignored
    ],
)
def test_a_wrong_option_is_a_sentence(
    options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        mmrepro.run("ghost-key-eviction", **options)


def test_a_word_that_an_option_does_not_have_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text("{}")
    with pytest.raises(
        UsageError, match="time must be one of real, fast, order, not 'f'"
    ):
        mmrepro.replay(file, time="f")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"new_tree": "."}, "upgrade has no option new_tree"),
        ({"worse": "tpott=3%"}, "there is no metric 'tpott'"),
        ({"traffic": "chat"}, "engine"),
    ],
)
def test_what_an_upgrade_cannot_do_is_a_sentence(
    options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        mmrepro.upgrade("0.23.0", "0.24.0", **{"traffic": "night.har", **options})


def test_what_is_not_there_is_an_error_of_mmrepro(tmp_path: Path) -> None:
    with pytest.raises(BadIncident):
        mmrepro.load(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        mmrepro.walk  # noqa: B018
