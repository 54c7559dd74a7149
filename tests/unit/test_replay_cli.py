"""``mmrepro replay`` as it is typed; no server is started."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any, ClassVar

import jsonschema
import pytest
from mmrepro.base.box import NoBox
from mmrepro.base.errors import ExitCode, InfrastructureError, MmreproError, UsageError
from mmrepro.base.records import FindingClass, without_head
from mmrepro.campaign.campaign import Campaign, CampaignState
from mmrepro.campaign.work import StartedRun
from mmrepro.cli.app import app
from mmrepro.cli.campaign import CampaignProgress
from mmrepro.cli.replay import box_there
from mmrepro.engines import ENGINES
from mmrepro.engines.models.script_file import ScriptedAnswer, Scripts
from mmrepro.failure.documents.replay import PlayFacts, Replay
from mmrepro.reports.html import render_html
from mmrepro.reports.replay import compose
from mmrepro.scenario.registry import load_scenario
from mmrepro.search.replay import session
from mmrepro.search.replay.attempts import attempt_ended, found, name_of
from mmrepro.search.replay.known import exception_pattern, hang_path, usual_server
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.pursue import LOUD
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import CASE_FILE, Case, Origin
from rich.console import Console
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent / "replay"))
from made_up_replay import SERVER, finding, ghost_case, replay

runner = CliRunner()


def test_a_variable_of_the_server_has_a_name_and_a_value() -> None:
    asked = ReplayCommand(env=("VLLM_A=1=2", "B=")).asked
    assert asked["env"] == {"VLLM_A": "1=2", "B": ""}
    for wrong in ("VLLM_A", "=1", "A B=1"):
        with pytest.raises(UsageError, match="given as NAME=VALUE"):
            _ = ReplayCommand(env=(wrong,)).asked


def test_a_strange_case_is_not_played_where_no_box_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_here(without: str) -> None:
        raise NoBox(f"no box can be made here: {without}")

    monkeypatch.setattr("mmrepro.base.box.require_box", none_here)
    file = tmp_path / "case.json"
    with pytest.raises(NoBox, match="--no-box"):
        box_there(ReplayCommand(file=file, json=True), "--no-box")
    own = ReplayCommand(file=file, json=True, box=False)
    assert box_there(own, "--no-box") is own


class FakeReplaying:
    """A FAKE policy: it reports what a test gave it and starts nothing."""

    kind = "replay"
    result: ClassVar[Replay]
    error: ClassVar[BaseException | None]
    asked: ClassVar[ReplayCommand]

    def __init__(
        self, options: ReplayCommand, *, write: Callable[[Replay, Path], object]
    ) -> None:
        type(self).asked = options
        self.options, self.write = options, write
        self.folder = options.resume or options.out or Path("replays/r")
        origin = Origin(left_out={"a websocket": 2}, notes=["3 fields were changed."])
        self.case = Case(server=options.server, origin=origin)

    @property
    def resume_command(self) -> str:
        return self.options.command_line(out=None, resume=self.folder)

    def standing(self) -> str:
        return "2 of at most 40 starts"

    def begin(self, campaign: Campaign[Replay]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.campaign = campaign

    def order(self, *_: object) -> None:
        made = self.result
        for play in made.plays:
            name = name_of(play, made.budget)
            self.campaign.began(StartedRun("x", 1, what=name))
            self.campaign.emit(attempt_ended(name, play, kept=play.number == 1))
        for one in made.findings:
            self.campaign.emit(found(one.id, one))
            write_case(ghost_case(), self.folder / one.folder)
        if self.error is not None:
            raise self.error

    def waits(self) -> bool:
        return False

    def end(self, state: CampaignState, failure: str) -> Replay:
        if state is CampaignState.COMPLETE:
            self.write(self.result, self.folder)
        return self.result


@pytest.fixture(autouse=True)
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FakeReplaying]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "Replaying", FakeReplaying)
    FakeReplaying.result, FakeReplaying.error = replay(finding()), None
    (tmp_path / "night.har").write_text("{}")
    return FakeReplaying


def typed(*argv: str) -> tuple[int, str, str]:
    done = runner.invoke(app, ["replay", *argv])
    if isinstance(done.exception, Exception) and not isinstance(
        done.exception, SystemExit
    ):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def refused(*argv: str) -> MmreproError:
    with pytest.raises(MmreproError) as told:
        typed(*argv)
    assert told.value.exit_code == ExitCode.USAGE
    assert "\n" not in told.value.message
    return told.value


HAR = ("night.har", "--engine", "vllm")


def test_for_machines_and_for_people(tmp_path: Path) -> None:
    code, out, err = typed(*HAR, "--json", "--out", "r")
    assert code == 1
    document = json.loads(out)
    assert without_head(document) == json.loads(Path("r/replay.json").read_text())
    assert (document["exit_code"], document["page"]) == (1, "r/replay.html")
    assert document["findings"][0]["finding_class"] == "hang"
    assert Path("r", document["findings"][0]["folder"], "reproduce.py").is_file()
    assert "page: r/replay.html" in err.splitlines()
    assert "Left out: 2 × a websocket." in err
    assert "3 fields were changed." in err
    assert "attempt 2 of at most 40 (confirm, 200 requests): hung" in err
    schema = json.loads(runner.invoke(app, ["replay", "--json-schema"]).stdout)
    jsonschema.validators.validator_for(schema).check_schema(schema)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "requests": "one"}, schema)

    code, out, _ = typed(*HAR, "--out", "s")
    assert code == 1
    assert "kept from before" in out
    verdict = (
        "UNKNOWN FAILURE (1 confirmed on fresh servers): night.har (200 "
        "requests) on vllm"
    )
    assert out.splitlines()[-1].startswith(verdict)
    assert "to reproduce f1: python3 s/f1/reproduce.py" in out
    assert "Set-up" not in out
    assert "\nSet-up\n" in typed(*HAR, "--out", "full", "--full")[1]
    for form, sign in (
        ("md", "# Replay of"),
        ("html", "<!doctype"),
        ("json", '"findings"'),
    ):
        done = runner.invoke(app, ["report", "s", "--format", form])
        assert (done.exit_code, sign in done.stdout) == (0, True)
        done = runner.invoke(app, ["report", "s/f1", "--format", form])
        assert done.exit_code == 0
    assert {"Replay", "Case"} <= set(schema["$defs"])


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (replay(), 0),
        (replay(finding(known="ghost-key-eviction")), 1),
        (replay(finding()), 1),
        (replay(finding(confirmed=False)), 3),
        (replay(state="failed", failure="no environment"), 4),
    ],
)
def test_the_exit_code_says_what_was_found(
    fake: type[FakeReplaying], result: Replay, code: int
) -> None:
    fake.result = result
    assert typed(*HAR)[0] == code
    assert typed(*HAR, "--json", "--out", "again")[0] == code


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt(), "to resume, run: mmrepro replay night.har --engine vllm"),
        (InfrastructureError("no disk"), "Partial replay: replays/r"),
    ],
)
def test_what_ends_early_says_how_to_go_on(
    fake: type[FakeReplaying],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    said: str,
) -> None:
    fake.error = error
    done = runner.invoke(app, ["replay", *HAR])
    assert said in done.stderr
    assert done.exit_code != 0


@pytest.mark.parametrize(
    ("error", "resumes"),
    [(InfrastructureError("no disk"), True), (UsageError("no such"), False)],
)
def test_where_nothing_was_played_nothing_is_partial(
    fake: type[FakeReplaying], error: BaseException, resumes: bool
) -> None:
    fake.result, fake.error = replay(plays=[]), error
    done = runner.invoke(app, ["replay", *HAR])
    assert "No run of this replay ended; its options are in replays/r" in done.stderr
    assert "artial" not in done.stderr
    assert ("to resume" in done.stderr) is resumes
    failed = replay(state="failed", failure="no such release", plays=[])
    assert "Partial" not in render_html(compose(failed))
    assert "Nothing was run." in render_html(compose(failed))


def test_every_option_arrives(fake: type[FakeReplaying]) -> None:
    typed(
        *HAR,
        "--release",
        "0.24.0",
        "--model",
        "dots-ocr",
        "--server-arg=--dtype=float32",
        "--server-arg=--seed=1",
        "--max-model-len",
        "1024",
        "--env",
        "A=b=c",
        "--time",
        "order",
        "--no-anonymise",
        "--scale",
        "--host",
        "a.example",
        "--concurrency",
        "4",
        "--no-shrink",
        "--repeat",
        "5",
        "--budget",
        "60",
        "--jobs",
        "2",
        "--seed",
        "7",
        "--start-mode",
        "cold",
        "--timeout",
        "99",
        "--out",
        "o",
    )
    asked, server = fake.asked, fake.asked.server
    assert (server.release, server.model, server.max_model_len) == (
        "0.24.0",
        "dots-ocr",
        1024,
    )
    assert server.args == ["--dtype=float32", "--seed=1"]
    assert server.env == {"A": "b=c"}
    assert (asked.time, asked.anonymise, asked.scale, asked.shrink) == (
        "order",
        False,
        True,
        False,
    )
    assert (asked.host, asked.concurrency, asked.repeat, asked.budget) == (
        "a.example",
        4,
        5,
        60,
    )
    assert asked.jobs == 2
    assert (asked.seed, asked.start_mode, asked.timeout_s) == (7, "cold", 99)
    assert asked.out == Path("o")
    again = asked.argv()[1:]
    typed(*again, "--out", "o2")
    assert {**vars(fake.asked), "out": None} == {**vars(asked), "out": None}


def test_a_case_brings_its_own_server(
    fake: type[FakeReplaying], tmp_path: Path
) -> None:
    write_case(ghost_case(), tmp_path / "f1")
    for file in ("f1", f"f1/{CASE_FILE}"):
        typed(file)
        assert fake.asked.server == SERVER
    typed("f1", "--engine", "vllm", "--release", "0.24.0", "--server-arg=--x")
    assert fake.asked.server == SERVER.model_copy(
        update={"release": "0.24.0", "args": ["--x"]}
    )
    assert (
        "a case of vllm, not of sglang" in refused("f1", "--engine", "sglang").message
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_recording_gets_what_the_scenarios_of_the_engine_have(engine: str) -> None:
    server = usual_server(engine)
    assert server.engine == engine
    assert server.release
    assert server.model in ("qwen2-vl", "dots-ocr", "qwen3", "text")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("night.har",), "--engine says which engine"),
        (("night.har", "--engine", "tgi"), "tgi"),
        ((*HAR, "--release", "x.y"), "x.y"),
        ((*HAR, "--env", "A"), "NAME=VALUE"),
        ((*HAR, "--budget", "3"), "--budget 3 is not enough"),
        ((*HAR, "--resume", "night.har", "--out", "o"), "--resume"),
    ],
)
def test_bad_options_are_one_sentence(argv: tuple[str, ...], said: str) -> None:
    assert said in refused(*argv).message


def test_an_attempt_is_a_line_that_says_what_it_showed() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    view = CampaignProgress(console)
    hung = PlayFacts(
        number=1,
        what="first",
        requests=200,
        state="hung",
        buckets=["vllm/hang/x"],
        seconds=2.0,
    )
    odd = PlayFacts(number=9, what="odd", requests=1, state="ended", error="no disk")
    for facts, kept in ((hung, False), (odd, True)):
        view(attempt_ended(name_of(facts, 40), facts, kept=kept))
    view(found("f1", finding(shrunk=False)))
    first, second, third = console.export_text().splitlines()
    assert first == "attempt 1 of at most 40 (first, 200 requests): hang in x, in 2 s"
    assert "counts for nothing: no disk" in second
    assert "kept from before" in second
    for word in ("f1: hang", "unknown, confirmed", "3 of 3 attempts", "5 requests"):
        assert word in third, word


# ------------------------------------------------------------------- new --from, report


def kept(folder: Path, kind: FindingClass = FindingClass.HANG, **more: Any) -> Path:
    from mmrepro.reports.replay import write_replay

    made = finding(ghost_case(), kind, **more)
    case = (
        ghost_case()
        if kind is not FindingClass.START_FAILURE
        else ghost_case().keeping([])
    )
    write_case(case, folder / "f1")
    write_replay(replay(made), folder)
    return folder / "f1"


@pytest.mark.parametrize("kind", list(FindingClass))
def test_new_from_writes_a_scenario_of_every_class(
    tmp_path: Path, kind: FindingClass
) -> None:
    place = kept(tmp_path / "r", kind)
    argv = ["new", "last-night", "--from", str(place), "--out", str(tmp_path), "--json"]
    done = runner.invoke(app, argv)
    if kind is FindingClass.START_FAILURE:
        assert isinstance(done.exception, MmreproError)
        assert "no requests that a scenario could send" in done.exception.message
        return
    assert done.exit_code == 0, done.exception
    document = json.loads(done.stdout)
    file, folder = map(Path, document["files"])
    assert (document["engine"], document["release"]) == ("vllm", "0.23.0")
    assert (folder / CASE_FILE).is_file()
    text = file.read_text()
    assert len(text.splitlines()) <= 100
    scenario = load_scenario(str(file))
    assert (scenario.name, scenario.engine, scenario.release) == (
        "last-night",
        "vllm",
        "0.23.0",
    )
    assert scenario.server_args == ("--mm-processor-cache-gb", "0.02")
    assert scenario.affects("0.23.0")
    assert not scenario.affects("0.24.0")
    parts = [condition.part for condition in scenario.declared()]
    assert set(parts) == {"precondition", "symptom", "cause"}
    loud = kind in LOUD
    assert ("TODO" in text) is not loud
    again = runner.invoke(app, argv)
    assert isinstance(again.exception, MmreproError)
    assert "exist already" in again.exception.message
    assert runner.invoke(app, [*argv, "--force"]).exit_code == 0


def test_new_from_a_scripted_finding_has_a_model_that_says_the_same(
    tmp_path: Path,
) -> None:
    from mmrepro.reports.replay import write_replay

    case = ghost_case()
    scripts = Scripts(script=[ScriptedAnswer(text="Hello there.")])
    update = {"model": "text", "scripts": scripts}
    case.server = case.server.model_copy(update=update)
    place = tmp_path / "r" / "f1"
    write_case(case, place)
    write_replay(replay(finding(case, FindingClass.HANG)), tmp_path / "r")
    argv = ["new", "says-hello", "--from", str(place), "--out", str(tmp_path)]
    assert runner.invoke(app, argv).exit_code == 0
    scenario = load_scenario(str(tmp_path / "says_hello.py"))
    assert scenario.model == scripts.model()


def test_new_takes_a_replay_with_one_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = kept(tmp_path / "replays/r")
    monkeypatch.chdir(tmp_path)
    for number, source in enumerate(("replays/r", "last", "1", "r")):
        argv = ["new", "odd-image", "--from", source, "--out", f"out{number}"]
        done = runner.invoke(app, argv)
        assert done.exit_code == 0, (source, done.exception)
        assert (tmp_path / f"out{number}/odd_image.py").is_file()
    copytree(finding, finding.with_name("f2"))
    done = runner.invoke(app, ["new", "odd-image", "--from", "last"])
    assert isinstance(done.exception, MmreproError)
    assert done.exception.message == "replays/r has 2 findings."
    assert done.exception.hint == "--from replays/r/f1"


def test_new_refuses_what_contradicts_the_finding(tmp_path: Path) -> None:
    place = kept(tmp_path / "r")
    for argv, said in (
        (["new", "odd-image"], "--engine says"),
        (["new", "odd-image", "--from", str(place), "--engine", "vllm"], "--from says"),
        (["new", "odd-image", "--from", str(tmp_path)], "is no finding"),
        (["new", "ghost-key-eviction", "--from", str(place)], "already"),
    ):
        done = runner.invoke(app, argv)
        assert isinstance(done.exception, MmreproError), argv
        assert said in done.exception.message


def test_new_writes_no_scenario_of_a_server_that_a_file_may_not_ask_for(
    tmp_path: Path,
) -> None:
    place = kept(tmp_path / "r")
    document = json.loads((place / CASE_FILE).read_text())
    document["server"]["args"] = ["--worker-cl", "a.B"]
    (place / CASE_FILE).write_text(json.dumps(document))
    done = runner.invoke(
        app, ["new", "odd-image", "--from", str(place), "--out", str(tmp_path)]
    )
    assert isinstance(done.exception, MmreproError)
    assert "--worker-cl" in done.exception.message
    assert not (tmp_path / "odd_image.py").exists()


def test_an_issue_is_of_one_finding(tmp_path: Path) -> None:
    place = kept(tmp_path / "r")
    done = runner.invoke(app, ["report", str(place), "--format", "issue"])
    assert "### 🐛 Describe the bug" in done.stdout
    for argv, said in (
        (["report", str(place.parent), "--format", "issue"], "one finding"),
        (["report", str(place), "--format", "junit"], "no JUnit report"),
    ):
        done = runner.invoke(app, argv)
        assert isinstance(done.exception, MmreproError)
        assert said in done.exception.message


@pytest.mark.parametrize(
    ("bucket", "path"),
    [
        ("vllm/hang/a > b > c", ["a", "b", "c"]),
        ("vllm/hang/a", ["a"]),
        ("vllm/hang/", []),
    ],
)
def test_a_hangs_bucket_says_where_it_stands(bucket: str, path: list[str]) -> None:
    assert hang_path(bucket) == path


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        (
            "AssertionError: Expected a cached item for mm_hash='ab12'",
            "AssertionError: Expected a cached item for mm_hash=",
        ),
        ("RuntimeError: 225 placeholders", "RuntimeError:"),
        ("torch.OutOfMemoryError: CUDA", "OutOfMemoryError: CUDA"),
        ("nothing of it", ""),
    ],
)
def test_the_logs_line_becomes_a_pattern(line: str, pattern: str) -> None:
    assert exception_pattern(["INFO fine", line]) == pattern
