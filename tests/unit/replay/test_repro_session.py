"""A bug report from its text to a verdict, on fake servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_player import NO_START, FakePlayer, Fakes, fake_judge, unnamed
from mmrepro.base.errors import UsageError
from mmrepro.engines import option_of
from mmrepro.failure.documents.replay import REPLAY_FILE, Replay
from mmrepro.reports.replay import KIND, write_replay
from mmrepro.reports.repro import COMMENT_FILE, comment as comment_of
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.play.player import RECORDED
from mmrepro.search.repro import report as reports, verdict
from mmrepro.search.repro.options import ReproCommand
from mmrepro.search.repro.report import asked_for
from mmrepro.search.repro.session import Reproducing, in_a_row
from mmrepro.traffic.capture.client import ClientRun, ClientWanted
from mmrepro.traffic.capture.proxy import entry_of
from mmrepro.traffic.case.model import Case

BODY = {"model": "m", "prompt": "hi", "max_tokens": 4}
SERVER = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 2"


class RecordingPlayer(FakePlayer):
    """Its client sends ``sent``; nothing is run."""

    def __init__(
        self, engine: Any, sent: int = 1, output: str = "", code: int = 0
    ) -> None:
        super().__init__(engine)
        self.sent, self.output, self.code = sent, output, code
        self.recordings = 0
        self.wanted: ClientWanted | None = None
        self.script = ""

    def record(self, wanted: ClientWanted, folder: Path) -> tuple[Deadlines, ClientRun]:
        self.wanted = wanted
        self.recordings += 1
        self.script = (wanted.folder / wanted.command[-1]).read_text()
        headers = [("Content-Type", "application/json")]
        url = "http://localhost:8000/v1/completions"
        entries = [
            entry_of("POST", url, headers, json.dumps(BODY).encode())
            for _ in range(self.sent)
        ]
        for one in entries:
            one["response"] = {"status": 200, "content": {"text": "{}"}}
        folder.mkdir(parents=True)
        har = {"log": {"version": "1.2", "creator": {"name": "x"}, "entries": entries}}
        (folder / RECORDED).write_text(json.dumps(har))
        # As a box does: what a client wrote beside its files is gone with them.
        shutil.rmtree(wanted.folder.parent)
        return Deadlines(6.0, 2.4), ClientRun(
            code=self.code, isolation="alone", output=self.output
        )


class Faked(Fakes, Reproducing):
    """On fake servers."""


@pytest.fixture(autouse=True)
def _releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reports, "_here", lambda engine, device: ["0.12.0", "0.23.0", "0.32.0"]
    )
    monkeypatch.setattr(reports, "existing", lambda spec: None)


def reproducing(
    tmp_path: Path, player: RecordingPlayer, **options: Any
) -> tuple[Faked, Replay, Path]:
    script = tmp_path / "client.py"
    script.write_text("import openai  # http://localhost:8000")
    options = {"server_command": SERVER, "client": f"python {script}", **options}
    out = options.pop("out", tmp_path / "out")
    session = Faked(ReproCommand(out=out, **options), write=write_replay)
    session.player, session.name, session.judge = player, unnamed, fake_judge
    return session, session.execute(), out


def engine(answer: str) -> Callable[[Case], dict[str, str]]:
    return lambda case: {op.id: answer for op in case.operations}


class RoomyPlayer(RecordingPlayer):
    """Its server refuses what is too long for a context of 2,048 tokens."""

    def play(self, case: Case, *args: Any, **named: Any) -> Any:
        self.lengths = [*getattr(self, "lengths", []), case.server.max_model_len]
        return super().play(case, *args, **named)


def refuses_in_a_short_context(case: Case) -> dict[str, str]:
    status = "400" if case.server.max_model_len < 4096 else "200"
    return {op.id: status for op in case.operations}


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"reported": "500"}, {512, 4096}),
        ({"reported": "400"}, {512}),
        ({"reported": "500", "max_model_len": 2048}, {2048}),
    ],
)
def test_what_was_too_long_is_asked_in_a_longer_context(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    lengths: set[int],
) -> None:
    words = "400 This model's maximum context length is 2048 tokens"
    monkeypatch.setattr(verdict, "_CONTEXT", re.compile("400"))
    assert verdict.longer_context(words) == 4096
    player = RoomyPlayer(refuses_in_a_short_context)
    server = f"{SERVER} --max-model-len 2048"
    _, made, _ = reproducing(
        tmp_path, player, server_command=server, release="0.23.0", **options
    )
    assert set(player.lengths) == lengths
    assert made.answers[-1].status == ("200" if 4096 in lengths else "400")


def test_a_client_becomes_a_case_and_the_case_a_verdict(tmp_path: Path) -> None:
    player = RecordingPlayer(engine("500"))
    _, made, out = reproducing(tmp_path, player, release="0.23.0", reported="500")
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("reproduced", 1)
    assert player.wanted is not None
    assert player.wanted.command == ("python", "client.py")
    assert "openai" in player.script
    assert player.calibrated == 0, "the client's own server gives the deadlines"
    assert made.server.args == ["--max-num-seqs", "2"]
    assert [one.what for one in made.report.replaced] == ["meta-llama/Llama-3.1-8B"]
    assert made.answers[0].path == "/v1/completions"
    told = (out / COMMENT_FILE).read_text()
    assert "Reproduced" in told
    assert "Llama" in told
    stored = json.loads((out / REPLAY_FILE).read_text())
    assert (stored["$id"], stored["report"]["verdict"]) == (
        "urn:mmrepro:replay:1",
        "reproduced",
    )
    assert KIND.compose(made).badge.label == "Reproduced"


@pytest.mark.parametrize(
    ("options", "is_found"),
    [({}, False), ({"bisect": True}, True), ({"fixed": "0.32.0"}, True)],
)
def test_a_refusal_is_a_finding_where_it_tells_commits_or_releases_apart(
    tmp_path: Path, options: dict[str, Any], is_found: bool
) -> None:
    wanted: list[str | None] = []

    def refusing(case: Case) -> dict[str, str]:
        wanted.extend(op.expect.status for op in case.operations if op.expect)
        return {op.id: "400" for op in case.operations}

    player = RecordingPlayer(refusing)
    _, made, _ = reproducing(
        tmp_path, player, release="0.23.0", reported="400", **options
    )
    assert made.report is not None
    assert made.report.verdict == "reproduced"
    # The fake judge judges no expectation.
    assert bool(wanted) is is_found
    assert set(wanted) <= {"2xx"}


def test_a_refusal_is_played_once_and_its_words_are_told(tmp_path: Path) -> None:
    player = RecordingPlayer(engine("403"))
    _, made, _ = reproducing(tmp_path, player, release="0.23.0")
    assert player.plays == 1, "nothing is repeated"
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("nothing-tested", 3)
    assert "it is 403" in made.report.said


def test_what_is_answered_is_sent_in_a_row_on_one_more_server(tmp_path: Path) -> None:
    player = RecordingPlayer(engine("200"))
    _, made, _ = reproducing(tmp_path, player, release="0.23.0", reported="death")
    assert player.plays == 2
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("not-reproduced", 0)
    assert "not the death of the report" in made.report.said


def test_a_race_shows_in_a_row(tmp_path: Path) -> None:
    def racing(case: Case) -> dict[str, str]:
        return {
            op.id: "500" if n == 4 else "200" for n, op in enumerate(case.operations)
        }

    player = RecordingPlayer(racing, sent=2)
    _, made, _ = reproducing(
        tmp_path, player, release="0.23.0", reported="500", shrink=False
    )
    assert made.report is not None
    assert made.report.verdict == "reproduced"
    assert made.findings[0].operations == ["r1-3"]


def test_what_comes_and_goes_is_confirmed_and_its_rate_is_not_measured(
    tmp_path: Path,
) -> None:
    plays = chain(["500", "200", "500", "500"], repeat("200"))
    player = RecordingPlayer(
        lambda case: {op.id: next(plays) for op in case.operations}
    )
    _, made, _ = reproducing(
        tmp_path, player, release="0.23.0", reported="500", shrink=False
    )
    assert made.report is not None
    assert made.report.verdict == "reproduced"
    assert (made.findings[0].rate.failed, made.findings[0].rate.plays) == (2, 4)
    assert player.plays <= 4 + 1 + 3  # seen and confirmed, looked at, with random texts


def test_in_a_row_each_waits_for_all_before_it() -> None:
    first = {"id": "r1", "path": "/open_session", "body": "{}"}
    then = {
        "id": "r2",
        "path": "/generate",
        "body": "${s}",
        "after": ["r1.first-token"],
    }
    operations = [first, {**then, "values": {"s": "r1.id"}}]
    case = Case.model_validate(
        {"server": {"engine": "vllm", "release": "0.23.0"}, "operations": operations}
    )
    made = Case.model_validate(in_a_row(case, 3).model_dump())  # sound
    assert [op.id for op in made.operations] == [
        "r1",
        "r2",
        "r1-2",
        "r2-2",
        "r1-3",
        "r2-3",
    ]
    assert made.operations[4].after == ["r1-2.end", "r2-2.end"]
    assert made.operations[5].after == ["r1-3.first-token"]
    assert made.operations[5].values == {"s": "r1-3.id"}


@pytest.mark.parametrize(
    ("fixed", "release", "answer", "state"),
    [("0.32.0", "0.32.0", "200", "fixed"), ("newest", "0.32.0", "500", "still")],
)
def test_what_is_found_is_held_against_another_release(
    tmp_path: Path, fixed: str, release: str, answer: str, state: str
) -> None:
    def answers(case: Case) -> dict[str, str]:
        said = answer if case.server.release == release else "500"
        return {op.id: said for op in case.operations}

    player = RecordingPlayer(answers)
    _, made, _ = reproducing(
        tmp_path, player, release="0.23.0", reported="500", fixed=fixed
    )
    assert made.report is not None
    (other,) = made.report.fixed
    assert (other.release, other.state) == (release, state)


def test_a_client_that_sends_nothing_tests_nothing(tmp_path: Path) -> None:
    player = RecordingPlayer(engine("200"), sent=0, output="ImportError: no x\n")
    _, made, _ = reproducing(tmp_path, player, release="0.23.0")
    assert player.plays == 0
    assert made.report is not None
    assert made.report.verdict == "nothing-tested"
    assert "ImportError" in made.report.said


@pytest.mark.parametrize(
    "last",
    [
        "ImportError: velmortin",
        "velmortin",
        "AcmeError: velmortin",
        "x\nvelmortin: x",
        "Velmortin",
    ],
)
def test_nothing_that_a_client_prints_is_in_the_comment(
    last: str, tmp_path: Path
) -> None:
    lines = [
        *(f"line {n}" for n in range(100)),
        "HF_TOKEN is set to hunterly",
        "w" * 9000,
        last,
    ]
    player = RecordingPlayer(engine("200"), sent=0, output="\n".join(lines))
    _, _, out = reproducing(tmp_path, player, release="0.23.0")
    comment = (out / COMMENT_FILE).read_text()
    assert "Nothing tested" in comment
    assert "velmortin" not in comment.lower()
    report = (out / "replay.md").read_text()
    assert "hunterly" not in report, "the report shows it, redacted"
    assert "line 99" in report
    assert "line 9\n" not in report
    assert "w" * 300 not in report


def test_a_comment_is_bounded_and_nothing_in_it_is_markdown_of_others(
    tmp_path: Path,
) -> None:
    _, made, _ = reproducing(tmp_path, RecordingPlayer(engine("403")), release="0.23.0")
    assert made.report is not None
    foreign = (
        "</details> ![x](http://h/x) HF_TOKEN is set to velmortin " + "word " * 9000
    )
    made.report.said = foreign
    made.answers[0].words, made.answers[0].path = foreign, "/v1/` ![x](http://h/x)"
    comment = comment_of(made)
    assert "velmortin" not in comment
    assert len(comment) < 5000
    prose = re.sub(r"(`+).+?\1", "", comment)
    assert "![x]" not in prose
    assert "</details>" not in prose


def test_a_report_that_only_a_gpu_can_show_starts_nothing(tmp_path: Path) -> None:
    issue = tmp_path / "ISSUE.md"
    issue.write_text(
        "# crash\nvLLM Version: 0.23.0\n```\nvllm serve m/m\n```\n```\ncurl "
        "localhost:8000/v1/x\n"
        "```\nRuntimeError: CUDA error: an illegal memory access was encountered\n"
    )
    player = RecordingPlayer(engine("500"))
    options = {"server_command": "", "client": "", "file": issue}
    _, made, _ = reproducing(tmp_path, player, **options)
    assert (player.wanted, player.plays) == (None, 0)
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("needs-hardware", 3)


def test_a_report_of_code_that_runs_on_a_gpu_is_tried_and_not_called_sound(
    tmp_path: Path,
) -> None:
    report = tmp_path / "ISSUE.md"
    report.write_text("OverflowError in vllm/v1/worker/gpu/states.py: it dies.")
    player = RecordingPlayer(engine("200"))
    _, made, _ = reproducing(tmp_path, player, release="0.23.0", file=report)
    assert player.plays >= 1
    assert made.report is not None
    assert made.report.verdict == "needs-hardware"
    assert "worker/gpu/states.py" in made.report.said


def test_what_a_report_shows_and_what_it_lacks_lies_beside_its_client(
    tmp_path: Path,
) -> None:
    report = tmp_path / "issue.md"
    report.write_text(
        f"vllm 0.23.0\n\n```sh\n{SERVER}\n```\n\nb.json:\n```json\n{json.dumps(BODY)}\n"
        f"```\n\n"
        "```sh\ncurl localhost:8000/v1/completions -d @b.json -F a=@/data/cat.png -F "
        "b=@x/d.jpg\n"
        "```"
    )
    player = Looking(engine("500"))
    _, made, _ = reproducing(
        tmp_path, player, file=report, server_command="", client="", reported="500"
    )
    assert made.report is not None
    assert made.report.verdict == "reproduced", made.report.said
    assert player.files == ["b.json", "cat.png", "client.sh", "x/d.jpg"]
    assert "@cat.png" in player.script
    assert [one.what for one in made.report.replaced[1:]] == [
        "/data/cat.png",
        "x/d.jpg",
    ]


def test_what_is_expected_of_a_client_s_requests_is_put_to_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "release": "0.23.0",
        "expect": ("r1:status=400", "tokens=<=4"),
    }
    *_, out = reproducing(tmp_path, RecordingPlayer(engine("400")), **options)
    (op,) = json.loads((out / "case.json").read_text())["operations"]
    assert op["expect"] == {"status": "400", "tokens": "<=4"}


@pytest.mark.parametrize(
    ("expect", "words", "clients"),
    [
        ("text=[", "no regular expression", 0),
        ("r7:status=400", "there is no request r7", 1),
    ],
)
def test_an_expectation_that_is_none_is_no_verdict(
    expect: str, words: str, clients: int, tmp_path: Path
) -> None:
    player = RecordingPlayer(engine("200"))
    with pytest.raises(UsageError, match=words):
        reproducing(tmp_path, player, release="0.23.0", expect=(expect,))
    assert (player.wanted is not None) is bool(clients)


def test_a_server_may_be_a_file_and_a_client_a_runner_s(tmp_path: Path) -> None:
    server, script = tmp_path / "compose.yml", tmp_path / "c.py"
    server.write_text(
        "services:\n  a:\n    image: vllm/vllm-openai:v0.23.0\n    command: m/m\n"
    )
    script.write_text("import requests")
    for runner in ("uv run", "/usr/bin/python3.11", "poetry run python"):
        client = f"{runner} {script} --n 4"
        made = asked_for(ReproCommand(server_command=str(server), client=client))
        assert made.server.release == "0.23.0"
        assert made.client.words[0] in ("python3", "python")
        assert made.client.words[1:] == ("c.py", "--n", "4")


def test_a_client_s_file_in_the_words_of_another_tool(tmp_path: Path) -> None:
    def client(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        asked = ReproCommand(
            server_command=SERVER, release="0.23.0", client=str(tmp_path / name)
        )
        return asked_for(asked).client.text

    body = json.dumps(BODY)
    assert client(
        "a.http", f"POST http://localhost:8000/v1/completions\n\n{body}"
    ).startswith("curl")
    assert "\\\n" in client(
        "a.ps1", "curl.exe http://localhost:8000/v1/models `\n -H 'a: b'"
    )
    with pytest.raises(UsageError, match="is JavaScript"):
        client("a.js", 'await fetch("http://localhost:8000/v1/models")')


class Looking(RecordingPlayer):
    def record(self, wanted: ClientWanted, folder: Path) -> tuple[Deadlines, ClientRun]:
        here = [f for f in wanted.folder.rglob("*") if f.is_file()]
        self.files = sorted(str(f.relative_to(wanted.folder)) for f in here)
        return super().record(wanted, folder)


def test_a_report_of_another_engine_or_tool_is_refused_by_name(tmp_path: Path) -> None:
    report = tmp_path / "issue.md"
    for text, words in (
        ("Ollama 0.5 dies\n\n```sh\nollama serve\n```", "of Ollama; mmrepro starts"),
        (
            f"vllm 0.23.0\n\n```sh\n{SERVER}\n```\n\n```\npackage main\n```",
            "is Go",
        ),
    ):
        report.write_text(text)
        with pytest.raises(UsageError, match=words):
            asked_for(ReproCommand(file=report))


def test_a_request_body_is_read_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    player = RecordingPlayer(engine("500"))
    client = str(tmp_path / "body.json")
    _, made, _ = reproducing(tmp_path, player, release="0.23.0", client=client)
    assert player.wanted is None
    assert player.calibrated == 0, "a start less"
    assert made.report is not None
    assert made.report.verdict == "reproduced"


def test_interrupted_it_goes_on_without_the_client(tmp_path: Path) -> None:
    player = RecordingPlayer(engine("500"))
    _, made, out = reproducing(tmp_path, player, release="0.23.0", reported="500")
    again = RecordingPlayer(engine("500"))
    options = {"server_command": SERVER, "client": f"python {tmp_path / 'client.py'}"}
    command = ReproCommand(resume=out, release="0.23.0", reported="500", **options)
    session = Faked(command, write=write_replay)
    session.player, session.name, session.judge = again, unnamed, fake_judge
    resumed = session.execute()
    assert (again.wanted, again.plays) == (None, 0)
    assert made.report is not None
    assert resumed.report is not None
    assert resumed.report.verdict == made.report.verdict
    assert resumed.report.isolation == "alone"


# ---------------------------------------------------------------------- what is missing


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"server_command": "vllm serve m"}, "no client"),
        ({"client": "python nowhere.py"}, "no such file"),
        (
            {"server_command": "ls", "client": "curl localhost:8000"},
            "No server's command",
        ),
        ({"client": "curl localhost:8000/v1/models"}, "no server's command"),
        (
            {"server_command": "vllm serve m", "client": "curl x", "engine": "sglang"},
            "--engine",
        ),
        (
            {"server_command": "vllm serve m", "client": "curl x", "reported": "x"},
            "--reported x",
        ),
    ],
)
def test_what_is_missing_is_asked_for_in_a_sentence(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as error:
        asked_for(ReproCommand(**options))
    assert words in error.value.message
    assert error.value.hint
    assert "\n" not in error.value.message


def test_a_report_without_a_release_is_asked_for_it(tmp_path: Path) -> None:
    issue = tmp_path / "ISSUE.md"
    issue.write_text(
        "# x\n```\nvllm serve m/m\n```\n```\ncurl localhost:8000/v1/models\n```\n"
    )
    with pytest.raises(
        UsageError, match=r"names no release of vllm; here are 0\.12\.0, 0\.23\.0"
    ):
        asked_for(ReproCommand(file=issue))
    asked = asked_for(ReproCommand(file=issue, release="0.12.0"))
    assert asked.server.release == "0.12.0"
    assert asked.client.words == ("bash", "client.sh")


def test_the_nearest_release_is_taken_and_told(tmp_path: Path) -> None:
    issue = tmp_path / "ISSUE.md"
    issue.write_text(
        'vLLM 0.12.1\n```\ncurl localhost:8000/v1/completions -d \'{"model": "a/b"}\'\n'
        "```\n"
    )
    asked = asked_for(ReproCommand(file=issue))
    assert asked.server.release == "0.12.0"
    assert any("0.12.1 is not installed here" in note for note in asked.facts.notes)
    assert any("vllm serve a/b is taken" in note for note in asked.facts.notes)


def test_a_tree_on_another_release_s_kernels_is_no_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    made = {"engine": "vllm", "device": "cpu", "commit": ""}
    there = [
        SimpleNamespace(manifest=SimpleNamespace(**made, release=name, kernels=kernels))
        for name, kernels in (("0.11.0", ""), ("0.10.1.dev1+g1.on.0.32.0", "0.32.0"))
    ]
    monkeypatch.setattr(reports, "list_environments", lambda sizes: there)
    assert reports._here("vllm", "cpu") == ["0.11.0"]


def test_a_title_or_a_command_names_the_feature_that_is_run(tmp_path: Path) -> None:
    issue = tmp_path / "ISSUE.md"
    lines = "```\nvllm serve a/b\ncurl localhost:8000/v1/models\n```\n"
    issue.write_text(f"# HTTP 500 in Model Runner V2\n\nvLLM 0.23.0\n{lines}")
    assert asked_for(ReproCommand(file=issue)).server.args == ["{feature:runner-v2}"]
    old = asked_for(ReproCommand(file=issue, release="0.12.0"))
    assert old.server.args == []
    issue.write_text(f"# HTTP 500\n\nvLLM 0.23.0; fine with Model Runner V2\n{lines}")
    assert asked_for(ReproCommand(file=issue)).server.args == []


def test_what_the_client_saw_and_a_replay_does_not_is_looked_for_again(
    tmp_path: Path,
) -> None:
    class Died(RecordingPlayer):
        def record(
            self, wanted: ClientWanted, folder: Path
        ) -> tuple[Deadlines, ClientRun]:
            deadlines, run = super().record(wanted, folder)
            return deadlines, run.model_copy(update={"died": True})

    player = Died(engine("200"))
    _, made, _ = reproducing(tmp_path, player, release="0.23.0", reported="death")
    assert player.plays > 3
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("unproven", 3)


def test_a_server_that_does_not_start_is_not_shrunk_unless_that_is_the_report(
    tmp_path: Path,
) -> None:
    class Broken(RecordingPlayer):
        def record(
            self, wanted: ClientWanted, folder: Path
        ) -> tuple[Deadlines, ClientRun]:
            return Deadlines(6.0, 2.4), ClientRun(ran=False)

    player = Broken(lambda case: {NO_START: ""})
    _, made, _ = reproducing(tmp_path, player, release="0.23.0", reported="death")
    assert player.plays == 1
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("nothing-tested", 3)
    # Any two starts can fail: without the report's words it is not known to be its own.
    claimed = RecordingPlayer(lambda case: {NO_START: ""})
    (tmp_path / "other").mkdir()
    options = {"client": "", "reported": "start-failure", "release": "0.23.0"}
    _, made, _ = reproducing(tmp_path / "other", claimed, **options)
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("nothing-tested", 3)
    assert "whether that is the report's is not known" in made.report.said


def test_a_finding_names_the_earlier_one_beside_it(tmp_path: Path) -> None:
    def found_in(folder: str) -> str:
        player = RecordingPlayer(engine("500"))
        options = {"release": "0.23.0", "reported": "500", "out": tmp_path / folder}
        _, made, _ = reproducing(tmp_path, player, **options)
        return made.findings[0].same_as

    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / REPLAY_FILE).write_text("{")
    assert not found_in("first")
    os.utime(tmp_path / "broken" / REPLAY_FILE, (2**32, 2**32))
    assert found_in("second").startswith("first/")


def test_only_what_is_reported_is_pursued_where_it_shows(tmp_path: Path) -> None:
    def answers(case: Case) -> dict[str, str]:
        return dict(
            zip([op.id for op in case.operations], ["500", "stuck"], strict=False)
        )

    player = RecordingPlayer(answers, sent=2)
    _, made, _ = reproducing(tmp_path, player, release="0.23.0", reported="500")
    assert made.report is not None
    assert made.report.verdict == "reproduced"
    assert [f.finding_class for f in made.findings] == ["server-error"]
    assert "also observed, and not pursued: hang" in made.limits


def test_a_pipe_in_place_of_a_case_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "case.json")
    asked = [tmp_path, tmp_path / "case.json"]
    heads: list[str] = []
    reader = threading.Thread(
        target=lambda: heads.extend(map(reports._head, asked)), daemon=True
    )
    reader.start()
    reader.join(10)
    assert heads == ["", ""]


# ------------------------------------------------------------- what the model says

PARSING = "vllm serve Qwen/Qwen3-0.6B --reasoning-parser qwen3"


def test_a_server_with_a_parser_gets_a_model_that_says_what_it_reads(
    tmp_path: Path,
) -> None:
    names: list[str] = []

    def answer(case: Case) -> dict[str, str]:
        assert case.server.scripts is not None
        names.append(case.server.scripts.script[0].name)
        return {op.id: "200" for op in case.operations}

    player = RecordingPlayer(answer)
    _, replay, _ = reproducing(tmp_path, player, server_command=PARSING)
    assert replay.server.scripts is not None
    assert replay.report is not None
    (model,) = [item for item in replay.report.replaced if item.model]
    assert "its weights are a script: it thinks and answers" in model.words
    whats = [play.what for play in replay.plays]
    assert "its model thinks without an end" in whats
    assert names == ["text", "endless", "text"]


def test_a_script_that_is_given_is_what_the_model_says(tmp_path: Path) -> None:
    file = tmp_path / "says.txt"
    file.write_text("Hello there.")
    player = RecordingPlayer(engine("200"))
    _, replay, _ = reproducing(tmp_path, player, server_command=PARSING, script=file)
    assert replay.server.scripts is not None
    assert replay.server.scripts.script[0].text == "Hello there."
    assert not any("its model" in play.what for play in replay.plays)


def test_without_anything_to_say_the_weights_stay_random(tmp_path: Path) -> None:
    _, replay, _ = reproducing(tmp_path, RecordingPlayer(engine("200")))
    assert replay.server.scripts is None


CHECKING = """\
import openai  # http://localhost:8000
made = {}
assert "usage" in made
"""


def test_a_client_s_own_check_is_run_again_and_counts(tmp_path: Path) -> None:
    script = tmp_path / "checks.py"
    script.write_text(CHECKING)
    trace = 'Traceback (most recent call last):\n  File "/b/checks.py", line 3\n'
    failed = f"{trace}AssertionError\n"
    player = RecordingPlayer(engine("200"), output=failed, code=1)
    client = f"python {script}"
    _, made, out = reproducing(tmp_path, player, release="0.23.0", client=client)
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("reproduced", 1)
    assert player.recordings == 2, "on a fresh server each"
    assert "AssertionError" in made.report.said
    assert "in 2 of 2 runs" in (out / COMMENT_FILE).read_text()


def test_a_check_that_does_not_fail_again_proves_nothing(tmp_path: Path) -> None:
    class Once(RecordingPlayer):
        def record(self, wanted: ClientWanted, folder: Path) -> Any:
            if self.recordings:
                self.output, self.code = "", 0
            return super().record(wanted, folder)

    script = tmp_path / "checks.py"
    script.write_text(CHECKING)
    trace = 'Traceback (most recent call last):\n  File "/b/checks.py", line 3\n'
    player = Once(engine("200"), output=f"{trace}AssertionError\n", code=1)
    client = f"python {script}"
    _, made, _ = reproducing(tmp_path, player, release="0.23.0", client=client)
    assert made.report is not None
    assert made.report.verdict == "unproven"
    assert "in 1 of 2 runs" in made.report.said


def test_a_client_that_was_ended_is_on_the_screen_and_refutes_nothing(
    tmp_path: Path,
) -> None:
    class Late(RecordingPlayer):
        def record(self, wanted: ClientWanted, folder: Path) -> Any:
            deadlines, run = super().record(wanted, folder)
            late = {"code": None, "ended": "it had not ended after 120 s"}
            return deadlines, run.model_copy(update=late)

    player = Late(engine("200"), sent=3)
    _, made, out = reproducing(tmp_path, player, release="0.23.0", reported="death")
    assert made.report is not None
    assert (made.report.verdict, made.exit_code) == ("nothing-tested", 3)
    assert "when 3 requests had been sent" in made.report.said
    for text in (made.report.said, (out / COMMENT_FILE).read_text()):
        assert "it had not ended after 120 s" in text


def test_a_file_of_requests_is_sent_as_the_engine_takes_it(tmp_path: Path) -> None:
    lines = []
    for name in ("a", "b", "c"):
        asked = {"custom_id": name, "method": "POST", "url": "/v1/completions"}
        lines.append(json.dumps(asked | {"body": BODY}))
    report = tmp_path / "issue.md"
    blocks = ["vllm run-batch -i in.jsonl -o o.jsonl --model m/m", "\n".join(lines)]
    fenced = "\n\n".join(f"```\n{block}\n```" for block in blocks)
    report.write_text(f"vllm 0.23.0: it hangs\n\n{fenced}\n")
    player = RecordingPlayer(engine("200"))
    _, made, _ = reproducing(
        tmp_path, player, file=report, client="", server_command=""
    )
    assert made.requests == 3
    assert player.recordings == 0, "nothing of it is run"


@pytest.mark.parametrize(("parser", "judged"), [("hermes", True), ("xlam", False)])
def test_what_no_rule_reads_of_a_shown_output_is_not_judged(
    tmp_path: Path, parser: str, judged: bool
) -> None:
    raw = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    report = tmp_path / "issue.md"
    server = f"vllm serve m/m --enable-auto-tool-choice --tool-call-parser {parser}"
    asks = "curl localhost:8000/v1/chat/completions -d '{}'"
    blocks = [server, asks, raw]
    fenced = "\n\n".join(f"```\n{block}\n```" for block in blocks)
    report.write_text(f"vllm 0.23.0: tool calls come twice\n\n{fenced}\n")
    assert asked_for(ReproCommand(file=report)).facts.shows_output is judged


def test_an_answer_tells_what_was_said_only_beside_a_stream(tmp_path: Path) -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "tool_calls": [{"function": function}]}
    server = "vllm serve m/m --enable-auto-tool-choice --tool-call-parser hermes"
    asks = "curl localhost:8000/v1/chat/completions -d '{}'"
    fenced = "\n\n".join(
        f"```\n{block}\n```" for block in (server, asks, json.dumps(message))
    )
    shown = {}
    for words in ("wrong tool calls", "wrong tool calls in a stream"):
        report = tmp_path / "issue.md"
        report.write_text(f"vllm 0.23.0: {words}\n\n{fenced}\n")
        shown[words] = asked_for(ReproCommand(file=report)).facts.shows_output
    assert list(shown.values()) == [False, True]


@pytest.mark.parametrize(
    ("name", "said", "is_known"),
    [
        ("said.txt", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', True),
        ("said.txt", "<tool_call>\nno JSON\n</tool_call>", False),
        ("said.toml", '[[script]]\ntext = "Hi."\ncontent = "Hi."\n', True),
        ("said.toml", '[[script]]\npieces = ["Hi."]\n', False),
    ],
)
def test_what_a_user_says_that_the_model_said_is_known(
    tmp_path: Path, name: str, said: str, is_known: bool
) -> None:
    report, script = tmp_path / "issue.md", tmp_path / name
    server = "vllm serve m/m --enable-auto-tool-choice --tool-call-parser hermes"
    body = '{"messages": [{"role": "user", "content": "x"}], "stream": true}'
    asks = f"curl localhost:8000/v1/chat/completions -d '{body}'"
    fenced = "\n\n".join(f"```\n{block}\n```" for block in (server, asks))
    report.write_text(f"vllm 0.23.0: streamed tool calls are wrong\n\n{fenced}\n")
    script.write_text(said)
    plan = asked_for(ReproCommand(file=report, script=script))
    assert plan.facts.shows_output is is_known
    assert plan.server.scripts is not None
    assert plan.variants, "each stream is held against the whole answer"


@pytest.mark.parametrize(
    ("told", "is_enough"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: device-side assert triggered", False),
        ("It answers nonsense.", True),
        ("CUDA runtime error: out of memory", True),
        ("It does not do what I want.", False),
    ],
)
def test_what_only_a_gpu_or_real_weights_show_needs_no_client(
    tmp_path: Path, told: str, is_enough: bool
) -> None:
    report = tmp_path / "issue.md"
    report.write_text(f"vllm 0.23.0: fails\n\n```\nvllm serve m/m\n```\n\n{told}\n")
    if is_enough:
        assert asked_for(ReproCommand(file=report)).client.shown == ""
    else:
        with pytest.raises(UsageError, match="no client"):
            asked_for(ReproCommand(file=report))


def test_a_parser_s_report_without_a_request_gets_one(tmp_path: Path) -> None:
    report = tmp_path / "issue.md"
    said = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    report.write_text(
        f"# vllm 0.23.0: the `hermes` tool parser loses calls\n\n```\n{said}\n```\n"
    )
    plan = asked_for(ReproCommand(file=report))
    assert option_of(plan.server.args, "--tool-call-parser") == "hermes"
    assert "--enable-auto-tool-choice" in plan.server.args
    assert plan.facts.shows_output
    player = RecordingPlayer(engine("200"))
    _, made, _ = reproducing(
        tmp_path, player, file=report, client="", server_command=""
    )
    assert made.requests == 2, "a stream, and the whole answer beside it"
    assert player.recordings == 0


@pytest.mark.parametrize(
    ("said", "offline"),
    [
        ('import vllm\nllm = vllm.LLM("m/m")\nllm.generate("x")\n', True),
        ('import openai\nopenai.OpenAI(base_url="http://localhost:8000/v1")\n', False),
    ],
)
def test_a_script_that_is_given_may_have_its_own_engine(
    tmp_path: Path, said: str, offline: bool
) -> None:
    script = tmp_path / "own.py"
    script.write_text(said)
    for client in (str(script), f"python {script}"):
        asked = ReproCommand(server_command=SERVER, release="0.23.0", client=client)
        assert asked_for(asked).client.offline is offline


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
OBSERVED = {"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}


@pytest.mark.parametrize(
    ("above", "arguments", "sound"),
    [
        ("It answers:", {"a": 1}, True),
        ("It answers:", {"a": 2}, False),
        ("It should answer:", {"a": 1}, False),
    ],
)
def test_an_answer_that_is_right_by_the_model_s_output_is_known(
    tmp_path: Path, above: str, arguments: dict[str, int], sound: bool
) -> None:
    part = {**OBSERVED["content"][0], "input": arguments}
    shown = json.dumps({**OBSERVED, "content": [part]})
    server = "vllm serve m/m --enable-auto-tool-choice --tool-call-parser hermes"
    asks = "curl localhost:8000/v1/messages -d '{}'"
    fenced = "\n\n".join(f"```\n{block}\n```" for block in (server, asks, CALL))
    report = tmp_path / "issue.md"
    text = f"vllm 0.23.0: wrong tool calls\n\n{fenced}\n\n{above}\n```\n{shown}\n```\n"
    report.write_text(text)
    assert asked_for(ReproCommand(file=report)).facts.shows_sound is sound


STREAMED = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "stream": True,
}


class Streaming(RecordingPlayer):
    """Its client asks for a stream."""

    def record(self, wanted: ClientWanted, folder: Path) -> Any:
        made = super().record(wanted, folder)
        har = json.loads((folder / RECORDED).read_text())
        for entry in har["log"]["entries"]:
            url = "http://localhost:8000/v1/chat/completions"
            headers = [("Content-Type", "application/json")]
            asked = entry_of("POST", url, headers, json.dumps(STREAMED).encode())
            entry["request"] = asked["request"]
        (folder / RECORDED).write_text(json.dumps(har))
        return made


@pytest.mark.parametrize(
    ("title", "parser", "ids", "expected"),
    [
        ("a streamed tool call has no arguments", "xlam", ["r1", "r1-whole"], True),
        ("a streamed tool call has no arguments", "hermes", ["r1", "r1-whole"], False),
        ("a tool call has no arguments", "xlam", ["r1"], False),
    ],
)
def test_a_stream_is_held_against_the_whole_answer_where_the_report_is_of_one(
    tmp_path: Path, title: str, parser: str, ids: list[str], expected: bool
) -> None:
    played: list[Case] = []

    def answer(case: Case) -> dict[str, str]:
        played.append(case)
        return {op.id: "200" for op in case.operations}

    raw = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    report = tmp_path / "issue.md"
    server = f"vllm serve m/m --enable-auto-tool-choice --tool-call-parser {parser}"
    blocks = [server, "curl localhost:8000/v1/chat/completions -d '{}'", raw]
    fenced = "\n\n".join(f"```\n{block}\n```" for block in blocks)
    report.write_text(f"vllm 0.23.0: {title}\n\n{fenced}\n")
    player = Streaming(answer)
    reproducing(tmp_path, player, file=report, client="", server_command="")
    first = played[0]
    assert [op.id for op in first.operations] == ids
    assert first.operations[0].stream
    expect = first.operations[0].expect
    assert (expect is not None and expect.same_as == "r1-whole") is expected
    assert all(not op.stream for op in first.operations[1:])


def test_answers_that_no_request_gets_are_not_played(tmp_path: Path) -> None:
    """A call is said only to who brings tools."""
    server = "vllm serve m/m --enable-auto-tool-choice --tool-call-parser hermes"
    player = RecordingPlayer(engine("200"))
    _, replay, _ = reproducing(tmp_path, player, server_command=server)
    assert not [play.what for play in replay.plays if "its model" in play.what]
    with_tools = Streaming(engine("200"))
    _, replay, _ = reproducing(
        tmp_path, with_tools, server_command=server, out=tmp_path / "more"
    )
    assert "its model calls two tools" in [play.what for play in replay.plays]
