"""`mmrepro matrix`: exit codes, JSON, resume, quarantine, and what is told."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from matrix_nights import Came, FakePlaces, FakeProvisions, FakeTrials, World
from mmrepro.base.errors import MmreproError
from mmrepro.campaign import campaign
from mmrepro.campaign.cluster import where as conducting
from mmrepro.campaign.trial import TrialOptions
from mmrepro.campaign.work import LocalPlaces
from mmrepro.cli.app import app
from mmrepro.failure.documents.ledger import Cell, Lost, NightState
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import read
from mmrepro.runs.options import StartMode
from typer.testing import CliRunner

BAD, GOOD = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED
FAULT = "borrowed-faults:ghost-key-lru"
Matrix = Callable[..., tuple[int, str, str]]
MADE: list[TrialOptions] = []
"""Of each command's trials."""


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    """``matrix(world, *arguments)``: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    MADE.clear()

    def run(world: World, *arguments: str) -> tuple[int, str, str]:
        def trials(options: TrialOptions) -> FakeTrials:
            MADE.append(options)
            return FakeTrials(world)

        monkeypatch.setattr(conducting, "Trials", trials)
        monkeypatch.setattr(conducting, "Provisions", lambda *rest: FakeProvisions())
        done = CliRunner().invoke(app, ["matrix", *arguments])
        if isinstance(done.exception, MmreproError):
            return int(done.exception.exit_code), done.stdout, done.exception.message
        if isinstance(done.exception, KeyboardInterrupt):
            return 130, done.stdout, done.stderr
        return done.exit_code, done.stdout, done.stderr

    return run


def always(came: Came) -> World:
    return lambda cell, index: came


RUN = ("run", "--scenario", FAULT, "--device", "cpu", "--out", "M")


@pytest.mark.parametrize(
    ("came", "more", "code"),
    [
        ([BAD], (), 0),
        ([GOOD], (), 1),
        ([GOOD, BAD, BAD, BAD], (), 1),
        ([Outcome.DIFFERENT_FAILURE], (), 1),
        ([Outcome.INCONCLUSIVE], ("--confirm", "0"), 3),
        ([Lost.TIMEOUT], (), 3),
        ([Lost.UNLOADABLE], (), 3),
        ([Lost.INFRASTRUCTURE], (), 4),
        ([Lost.INFRASTRUCTURE, BAD], (), 0),
    ],
)
def test_exit_codes(
    matrix: Matrix, came: list[Came], more: tuple[str, ...], code: int
) -> None:
    world: World = lambda cell, index: came[min(index, len(came)) - 1]  # noqa: E731
    assert matrix(world, *RUN, *more)[0] == code
    again = matrix(always(BAD), *RUN, *more)
    assert again[0] == code, "a second run does nothing, and comes to the same"
    assert "nothing was left to run" in again[1]


def test_the_document(matrix: Matrix, tmp_path: Path) -> None:
    code, out, told = matrix(
        always(BAD), *RUN, "--mitigation", "each", "--json", "--night", "x"
    )
    document = json.loads(out)
    assert (code, document["run"]["exit_code"]) == (1, 1)
    assert [c["state"] for c in document["cells"]] == ["reproduced", "reproduced"]
    assert {c["as_expected"] for c in document["cells"]} == {True, False}
    assert document["run"]["left"] == []
    assert "reproduced" in told, "progress goes to stderr"
    assert (tmp_path / "M/dashboard.html").is_file()
    assert (tmp_path / "M/junit.xml").is_file()
    runs = read(tmp_path / "M").night("x")
    assert runs.night.state is NightState.COMPLETE
    assert len(runs.attempts) == 5, "the surprise was confirmed three times"
    assert runs.night.cells == 2


def test_quiet_prints_the_verdict_and_the_page(matrix: Matrix) -> None:
    code, out, _ = matrix(always(GOOD), *RUN, "--night", "x", "-q")
    page, verdict = out.splitlines()
    assert (code, page, verdict.endswith(": nightly run x")) == (
        1,
        "page: M/dashboard.html",
        True,
    )


def test_all_starts_are_alike_unless_another_mode_is_asked_for(matrix: Matrix) -> None:
    matrix(always(BAD), *RUN)
    matrix(always(BAD), *RUN, "--start-mode", "cold")
    assert [options.start_mode for options in MADE] == [StartMode.WARM, StartMode.COLD]


def test_ctrl_c_says_how_to_go_on(matrix: Matrix, tmp_path: Path) -> None:
    def press(cell: Cell, index: int) -> Came:
        if cell.mitigations:
            raise KeyboardInterrupt
        return BAD

    code, _, told = matrix(press, *RUN, "--mitigation", "each", "--jobs", "2")
    assert code == 130
    assert "(1 of 2 cells done, about 10 s left; what has ended is kept)" in told
    again = "mmrepro matrix run --jobs 2 --out M --resume"
    assert f"to resume, run: {again}" in told
    assert read(tmp_path / "M").nights[0].night.state is NightState.INTERRUPTED
    assert (tmp_path / "M/dashboard.html").is_file()
    code, _, _ = matrix(always(GOOD), *again.split()[2:])
    assert code == 0
    assert matrix(always(GOOD), *again.split()[2:])[0] == 0


def test_resume_knows_its_plan(matrix: Matrix) -> None:
    assert matrix(always(BAD), "run", "--resume", "--out", "M")[::2] == (
        2,
        "M holds no ledger.jsonl.",
    )
    code, _, told = matrix(always(BAD), *RUN, "--resume")
    assert (code, "--resume goes on with the plan" in told) == (2, True)


def test_quarantine_excuses_a_cell_and_says_so(matrix: Matrix, tmp_path: Path) -> None:
    entry = """
[[quarantine]]
scenario = "borrowed-faults"
reason = "known"
issue = "#1"
owner = "me"
expires = {day}
"""
    year = datetime.now(UTC).year
    (tmp_path / "q.toml").write_text(entry.format(day=f"{year + 1}-01-01"))
    assert matrix(always(GOOD), *RUN, "--quarantine", "q.toml")[0] == 0
    assert matrix(always(GOOD), *RUN)[0] == 1
    (tmp_path / "q.toml").write_text(entry.format(day=f"{year - 1}-01-01"))
    code, out, _ = matrix(always(GOOD), *RUN, "--quarantine", "q.toml")
    assert code == 1
    assert "expired" in out


def test_a_name_that_is_none_leaves_nothing(matrix: Matrix, tmp_path: Path) -> None:
    code, _, told = matrix(always(BAD), *RUN, "--night", "a b")
    assert (code, told) == (2, "'a b' cannot name a night.")
    assert not (tmp_path / "M").exists()


def test_a_file_and_the_command_line(matrix: Matrix, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        '[matrix]\nout = "N"\nrepeat = 2\nevery = "24h"\ndevice = "cpu"\n'
        '[[cell]]\nscenario = "borrowed-faults:ghost-key-lru"\nreleases = "own"\n'
        '[[cell]]\nscenario = "borrowed-faults:kv-budget"\nreleases = "own"\n'
    )
    assert matrix(always(BAD), "run", "m.toml")[0] == 0
    runs = read(tmp_path / "N").newest
    assert runs is not None
    assert (len(runs.planned), len(runs.attempts), runs.night.every_h) == (2, 4, 24)
    more = (
        "--night",
        "two",
        "--scenario",
        "borrowed-faults:kv-budget",
        "--repeat",
        "1",
    )
    assert matrix(always(BAD), "run", "m.toml", *more)[0] == 0
    runs = read(tmp_path / "N").night("two")
    assert [p.cell.variant for p in runs.planned.values()] == ["kv-budget"]
    assert len(runs.attempts) == 1
    code, _, told = matrix(
        always(BAD), "run", "m.toml", "--scenario", "ghost-key-eviction"
    )
    assert (code, "has no row of" in told) == (2, True)


def test_a_dry_run_runs_nothing(matrix: Matrix, tmp_path: Path) -> None:
    code, out, _ = matrix(always(BAD), *RUN, "--dry-run")
    assert code == 0
    assert "1 job in 1 environment, 1 run" in out
    assert not (tmp_path / "M").exists()
    assert MADE == []
    matrix(always(BAD), *RUN)
    out = matrix(always(BAD), *RUN, "--dry-run", "--json")[1]
    assert json.loads(out)["runs"] == 0


def test_diff_of_two_nights_names_what_changed(matrix: Matrix) -> None:
    matrix(always(BAD), *RUN, "--night", "n1")
    matrix(always(BAD), *RUN, "--night", "n2")
    assert matrix(always(BAD), "diff", "M")[0] == 0
    matrix(always(GOOD), *RUN, "--night", "n3")
    code, out, _ = matrix(always(BAD), "diff", "M", "--json")
    document = json.loads(out)
    assert (code, document["before"], document["now"]) == (1, "n2", "n3")
    assert document["events"]
    assert (document["$id"], document["schema_version"]) == (
        "urn:mmrepro:nightly-diff:1",
        1,
    )
    code, out, _ = matrix(always(BAD), "diff", "M", "n1", "M:n2")
    assert code == 0
    assert "Nothing changed" in out
    assert matrix(always(BAD), "diff", "M", "n9", "n1")[0] == 2


def test_shards_are_merged_to_one_night(matrix: Matrix, tmp_path: Path) -> None:
    for number in (1, 2):
        code = matrix(
            always(BAD),
            "run",
            "--scenario",
            FAULT,
            "--releases",
            "0.1",
            "--device",
            "cpu",
            "--shard",
            f"{number}/2",
            "--out",
            f"S{number}",
            "--night",
            "n",
        )[0]
        assert code == 0
    assert matrix(always(BAD), "merge", "S1", "S2", "--out", "ALL")[0] == 0
    assert len(read(tmp_path / "ALL").night("n").attempts) == 1
    assert (
        "has all of that already"
        in matrix(always(BAD), "merge", "S1", "--out", "ALL")[1]
    )
    assert matrix(always(BAD), "report", "ALL", "--format", "md")[0] == 0
    assert matrix(always(BAD), "history", "ALL", "--json")[0] == 0


@pytest.mark.parametrize(("free", "jobs"), [(None, 4), (8, 4), (2, 2), (0, 1)])
def test_no_more_jobs_than_free_gpus(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch, free: int | None, jobs: int
) -> None:
    asked: list[int] = []

    def places(
        trials: FakeTrials,
        provisions: FakeProvisions,
        jobs: int,
        name: str,
        **more: Any,
    ) -> LocalPlaces:
        asked.append(jobs)
        return LocalPlaces(trials, provisions, jobs, name)

    monkeypatch.setattr(conducting, "LocalPlaces", places)
    monkeypatch.setattr(conducting, "free_devices", lambda reading: free)
    on_gpu = [word if word != "cpu" else "cuda" for word in RUN]
    _, out, _ = matrix(always(BAD), *on_gpu, "--jobs", "4")
    _, cpu, _ = matrix(always(BAD), *RUN, "--jobs", "4", "--night", "cpu")
    assert asked == [jobs, 4]
    told = f"--jobs {jobs}, not 4: {free} GPUs are free, and each run takes one."
    assert (told in out) is (jobs < 4)
    assert "GPUs are free" not in cpu


def test_no_machine_left_writes_the_reports_and_says_how_to_go_on(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(conducting, "LocalPlaces", lambda *rest, **more: FakePlaces([]))
    monkeypatch.setattr(campaign, "WAIT_S", 0.05)
    code, _, told = matrix(always(BAD), *RUN, "--night", "x")
    assert code == 4
    assert told.startswith("No machine is left for the nightly run: 0 of 1 cells done")
    assert read(tmp_path / "M").night("x").night.state is NightState.INTERRUPTED
    assert (tmp_path / "M/dashboard.html").is_file()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert matrix(always(BAD), "run", "--resume", "--out", "M")[0] == 0


@pytest.mark.parametrize("name", ["--budget", "--max-time"])
def test_the_time_has_two_names(matrix: Matrix, tmp_path: Path, name: str) -> None:
    events = ("--events", str(tmp_path / "events.jsonl"))
    code, out, _ = matrix(always(BAD), *RUN, name, "30s", *events)
    assert code == 3, "a run of which nothing is known takes a minute"
    assert f"to resume, run: mmrepro matrix run {name} 30s --out M --resume" in out
    heard = [
        json.loads(line)
        for line in (tmp_path / "events.jsonl").read_text().splitlines()
    ]
    assert [one["event"] for one in heard] == ["began", "ended"]
    assert heard[1]["state"] == "out-of-time"
