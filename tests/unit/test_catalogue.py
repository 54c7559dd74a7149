"""The catalogue: what recorded runs say of each failure, the page, and what is
alive."""

import inspect
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from made_nights import cell, history, night, written
from mmrepro.base.errors import (
    EnvironmentBuildError,
    InfrastructureError,
    UnknownScenario,
)
from mmrepro.campaign.trial import outcome_of
from mmrepro.cli.app import app
from mmrepro.engines.environments.index import Listed
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.failure.signature import Outcome
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.reports import load
from mmrepro.scenario import Scenario
from mmrepro.scenario.parts import HARMS, SEES, FailureClass, Severity, UpstreamState
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios.data import recorded_runs
from mmrepro.tools.catalogue import recorded, standing
from mmrepro.tools.catalogue.recorded import RecordedRun
from mmrepro.tools.catalogue.standing import RecordedScenario
from packaging.version import Version
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/catalogue.md"
GHOST, DESYNC = "ghost-key-eviction", "mm-cache-desync"
ILL, WELL, OTHER = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED, Outcome.DIFFERENT_FAILURE
runner = CliRunner()


def run(
    release: str, outcome: Outcome, *mitigations: str, day: int = 1, **more: object
) -> RecordedRun:
    return RecordedRun.model_validate(
        {
            "scenario": GHOST,
            "engine": "vllm",
            "release": release,
            "at": datetime(2026, 11, day, tzinfo=UTC),
            "outcome": outcome,
            "mitigations": list(mitigations),
            **more,
        }
    )


def ghost(*runs: RecordedRun) -> RecordedScenario:
    ((one,), broken) = standing.known(runs, [GHOST])
    assert not broken
    return one


def listing(text: str) -> standing.ReleasesOf:
    def there(spec: EnvironmentSpec) -> Sequence[Listed]:
        return [Listed(Version(v), v, None) for v in text.split()]

    return there


def unreachable(spec: EnvironmentSpec) -> Sequence[Listed]:
    raise EnvironmentBuildError("The package index could not be asked: ConnectError.")


# ---------------------------------------------------------------- what is shipped


def test_the_page_is_the_commands_output() -> None:
    said = runner.invoke(app, ["list", "--markdown"])
    assert said.exit_code == 0, said.output
    assert said.stdout == PAGE.read_text(), (
        "uv run python tests/evidence/record.py --table"
    )


def test_every_failure_has_its_line() -> None:
    lines = PAGE.read_text().splitlines()
    for one in all_scenarios():
        name = f"| `{one.name}`" + (f" ({one.variant}) |" if one.variant else " |")
        assert sum(line.startswith(name) for line in lines) == 1, name


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda one: one.full_name)
def test_every_scenario_of_ours_says_how_it_stands(scenario: Scenario) -> None:
    assert scenario.failure_class is not None, "failure_class = FailureClass.…"
    assert scenario.severity is not None, "severity = Severity.…"
    said, where = scenario.upstream, inspect.getfile(type(scenario))
    if said.state in (UpstreamState.PLANTED, UpstreamState.NOT_LOOKED_UP):
        assert not said.looked_up, where
        assert (said.state is UpstreamState.PLANTED) == (scenario.engine == "minivllm")
        return
    assert date.fromisoformat(said.looked_up) >= date(2026, 11, 1), where
    assert (said.source is None) == (said.state is UpstreamState.NOT_REPORTED), where
    assert (said.state is UpstreamState.FIXED) == bool(said.release), where
    if said.release:
        assert not scenario.affects(said.release), (
            "the range and what upstream says disagree"
        )


def test_every_class_and_severity_is_explained() -> None:
    assert set(SEES) == set(FailureClass)
    assert set(HARMS) == set(Severity)
    text = PAGE.read_text()
    assert all(f"| {one.words} | {SEES[one]} |" in text for one in FailureClass)


# ---------------------------------------------------------------- what runs say


def test_what_helped_is_what_was_seen_to_help() -> None:
    one = ghost(
        run("0.23.0", ILL),
        run("0.23.0", WELL, "patch", helped=True),
        run("0.22.0", WELL, "patch", helped=False),
        run("0.22.0", ILL, "disable-mm-cache"),
        run("0.24.0", WELL, day=2),
    )
    cures = {c.name: c for c in one.cures()}
    assert cures["patch"].helped == ("0.23.0",)
    assert cures["patch"].hidden == ("0.22.0",)
    assert cures["disable-mm-cache"].failed == ("0.22.0",)
    assert cures["release"].helped == ("0.24.0",)
    assert (
        standing.cure(cures["patch"]) == "`patch` (works on 0.23.0; hides it on 0.22.0)"
    )
    assert (
        standing.cure(cures["disable-mm-cache"])
        == "`disable-mm-cache` (no help on 0.22.0)"
    )


def test_a_nights_run_under_a_mitigation_helps_only_where_the_plain_one_failed() -> (
    None
):
    """A ledger says nothing of the cause."""
    lone = ghost(run("0.23.0", WELL, "patch"))
    beside = ghost(run("0.23.0", WELL, "patch"), run("0.23.0", ILL))
    assert [
        c.helped for k in (lone, beside) for c in k.cures() if c.name == "patch"
    ] == [
        (),
        ("0.23.0",),
    ]


def test_a_changed_run_says_nothing_of_a_release() -> None:
    one = ghost(
        run("0.32.0", ILL, changes=["--server-arg=--x"]),
        run("0.32.0", WELL, "patch", helped=True),
    )
    assert not one.plain
    assert standing.releases(one) == ">=0.14.0, <0.24.0<br>not run"


def test_the_mitigation_that_is_a_release_is_a_plain_run_of_it() -> None:
    assert ghost(run("0.24.0", WELL, "release")).releases(WELL) == ["0.24.0"]


def test_a_night_is_read() -> None:
    """What is lost has no outcome, and a file's scenario is nobody else's."""
    made = night(
        1,
        {
            cell("0.23.0", GHOST, server_args=("--x",)): "r",
            cell("0.32.0", GHOST): "nl",
            cell("0.22.0", GHOST): "l",
            cell("0.22.0", "./mine.py"): "r",
            cell("0.22.0", GHOST, commit="0123456789abcdef"): "r",
        },
    )
    runs = list(recorded.of_history(history([made]), "L"))
    assert [(r.release, r.outcome, r.plain, r.source) for r in runs] == [
        ("0.23.0", ILL, False, "L"),
        ("0.32.0", WELL, True, "L"),
    ]


def test_the_order_of_runs_is_their_own(tmp_path: Path) -> None:
    some = [run("0.9.0", ILL), run("0.10.0", ILL), run("0.9.0", WELL, day=2)]
    text = recorded.dumped(some)
    assert text == recorded.dumped(reversed(some))
    file = tmp_path / "runs.json"
    file.write_text(text)
    assert [(r.release, r.outcome) for r in recorded.load(file)] == [
        ("0.9.0", ILL),
        ("0.9.0", WELL),
        ("0.10.0", ILL),
    ]


# ---------------------------------------------------------------- what is alive


def stood(newest: str, *runs: RecordedRun) -> standing.Standing:
    told = standing.newest_of("vllm", runs, "0.23.0", listing(newest))
    assert (told.release, told.says) == (newest.split()[-1], "index")
    (made,) = standing.standings([ghost(*runs)], [told])
    return made


def test_it_is_alive_where_a_run_of_the_newest_release_showed_it() -> None:
    made = stood("0.23.0", run("0.23.0", ILL, day=3), run("0.23.0", WELL, day=4))
    assert (made.alive, made.outcome, made.runs, made.reproduced) == (
        True,
        "reproduced",
        2,
        1,
    )
    assert made.at == datetime(2026, 11, 4, tzinfo=UTC)


def test_it_is_not_where_it_did_not_show() -> None:
    made = stood("0.32.0", run("0.32.0", WELL), run("0.32.0", Outcome.INCONCLUSIVE))
    assert (made.alive, made.outcome) == (False, "not-reproduced")


@pytest.mark.parametrize("outcome", [OTHER, Outcome.INCONCLUSIVE])
def test_another_failure_or_none_that_is_known_says_neither(outcome: Outcome) -> None:
    made = stood("0.32.0", run("0.32.0", outcome))
    assert (made.alive, made.outcome) == (None, outcome.value)


@pytest.mark.parametrize("newest", ["0.23.0 0.23.1", "0.23.0 0.40.0"])
def test_a_range_is_no_run(newest: str) -> None:
    """The first of them is declared to be affected, the second one not: neither was
    run."""
    made = stood(newest, run("0.23.0", ILL), run("0.24.0", WELL, "patch"))
    assert (made.alive, made.outcome, made.runs, made.at) == (None, "not run", 0, None)
    assert (made.last_release, made.last_outcome) == ("0.23.0", "reproduced")


def test_a_build_stands_for_its_release() -> None:
    for build in ("0.23.0+cpu", "0.23.0+cu130", "0.23.0+rocm7.0", "0.23"):
        assert stood("0.23.0", run(build, ILL)).alive, build
    assert stood("0.23.0+cu130", run("0.23.0", ILL)).alive
    own = "0.23.0+g12ab34c"
    assert stood(own, run(own, ILL)).alive


@pytest.mark.parametrize(
    "other",
    [
        "0.33.0rc1",
        "0.33.0.dev4",
        "0.33.0a1",
        "0.33.0.post1",
        "0.33.0rc2.dev5+g12ab",
        "0.33.0.post1+cpu",
        "1!0.33.0",
        "0.33.1",
    ],
)
def test_no_other_publication_stands_for_a_release(other: str) -> None:
    for newest, ran in (("0.33.0", other), (other, "0.33.0")):
        made = stood(newest, run(ran, ILL), run("0.23.0", ILL))
        assert (made.alive, made.outcome, made.runs) == (None, "not run", 0)
    assert stood(other, run(other, ILL)).alive


@pytest.mark.parametrize(
    "own", ["g12ab34c", "d20261126", "mypatch", "cpu.mypatch", "cuda"]
)
def test_what_somebody_built_is_not_the_release(own: str) -> None:
    assert (
        stood("0.33.0", run(f"0.33.0+{own}", ILL), run("0.23.0", ILL)).outcome
        == "not run"
    )


def test_what_was_published_before_a_release_is_not_the_newest() -> None:
    runs = [run("0.24.0", WELL), run("0.33.0rc1", WELL)]
    assert standing.newest_of("vllm", runs, "0.23.0", unreachable).release == "0.24.0"
    assert (
        standing.newest_of("vllm", runs[1:], "0.33.0.dev1", unreachable).release
        == "0.33.0rc1"
    )


def test_without_an_index_the_newest_release_that_was_run_stands_for_it() -> None:
    runs = [run("0.24.0", WELL), run("0.30.0", WELL, "patch"), run("0.9.0", ILL)]
    told = standing.newest_of("vllm", runs, "0.23.0", unreachable)
    assert (told.release, told.says) == ("0.24.0", "recorded runs")
    assert told.why == "The package index could not be asked: ConnectError"


# ---------------------------------------------------------------- the command


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")


@pytest.mark.usefixtures("offline")
def test_without_a_network_it_says_so() -> None:
    said = runner.invoke(app, ["list", "--alive", GHOST])
    assert said.exit_code == 0
    assert "could not be asked for the releases of vllm" in said.stderr
    assert "newest release that is known here" in said.stderr
    assert "could not be asked" not in said.stdout
    assert GHOST in said.stdout
    document = json.loads(
        runner.invoke(app, ["list", "--alive", GHOST, "--json"]).stdout
    )
    assert [one["says"] for one in document["engines"]] == ["recorded runs"]
    assert document["failures"][0]["newest"] == document["engines"][0]["release"]


@pytest.mark.parametrize("form", ["--alive", "--markdown", "--json"])
def test_an_unknown_scenario_is_told(form: str) -> None:
    said = runner.invoke(app, ["list", form, "no-such"])
    assert isinstance(said.exception, UnknownScenario)
    assert "no-such" in str(said.exception)


BROKEN = {
    "absent": (None, "cannot be read: No such file or directory"),
    "torn": ('{"schema_version": 1, "runs": [{"scen', "holds no recorded runs"),
    "another version": ('{"schema_version": 2, "runs": []}', "schema_version"),
    "no outcome": (
        json.dumps({"schema_version": 1, "runs": [{"scenario": "a"}]}),
        "runs.0",
    ),
}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("form", ["--alive", "--markdown"])
@pytest.mark.parametrize(("text", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_list_that_cannot_be_read_is_told(
    text: str | None,
    why: str,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "recorded_runs.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr("mmrepro.scenarios.data.recorded_runs", lambda: file)
    said = runner.invoke(app, ["list", form])
    assert isinstance(said.exception, InfrastructureError)
    assert why in str(said.exception)
    assert said.exception.hint
    assert runner.invoke(app, ["list", GHOST]).exit_code == 0, (
        "the plain list needs none"
    )


@pytest.mark.usefixtures("offline")
def test_runs_of_a_scenario_that_is_gone_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "recorded_runs.json"
    file.write_text(
        recorded.dumped([run("0.1", ILL, scenario="renamed", variant="once")])
    )
    monkeypatch.setattr("mmrepro.scenarios.data.recorded_runs", lambda: file)
    said = runner.invoke(app, ["list", "--alive"])
    assert said.exit_code == 0
    assert "not installed here: renamed-once" in said.stderr
    document = json.loads(runner.invoke(app, ["list", "--alive", "--json"]).stdout)
    assert document["not_registered"] == ["renamed-once"]
    assert {one["outcome"] for one in document["failures"]} == {"not run"}


@pytest.mark.usefixtures("offline")
def test_nights_of_ones_own_count(tmp_path: Path) -> None:
    folder = written(tmp_path / "nights", night(1, {cell("99.0.0", DESYNC): "r"}))
    asked = ["list", "--alive", DESYNC, "--ledger", str(folder), "--json"]
    (told,) = json.loads(runner.invoke(app, asked).stdout)["failures"]
    assert (told["newest"], told["alive"]) == ("99.0.0", True)
    assert (
        "99.0.0"
        in runner.invoke(app, ["list", "--markdown", "--ledger", str(folder)]).stdout
    )
    assert runner.invoke(app, ["list", "--ledger", str(folder)]).exit_code != 0


def test_the_shipped_list_is_read_and_names_no_machine() -> None:
    runs = recorded.load(recorded_runs())
    assert len(runs) > 100
    assert {r.engine for r in runs} == {"vllm", "sglang", "lmdeploy", "minivllm"}
    for one in runs:
        assert (ROOT / one.source).exists(), one.source
        load_scenario(one.scenario).with_variant(one.variant)


# ---------------------------------------------------------------- another model runner

V2 = ["--server-arg={feature:runner-v2}"]


def test_a_run_on_another_model_runner_stands_beside_the_plain_ones() -> None:
    runs = [
        run("0.23.0", ILL, runner="Model Runner V1"),
        run("0.23.0", WELL, changes=V2, runner="Model Runner V2"),
    ]
    made = stood("0.23.0", *runs)
    assert (made.alive, made.runs, made.runner) == (True, 1, "Model Runner V1")
    assert made.other_pairs == {"Model Runner V2": "not-reproduced"}
    told = standing.releases(ghost(*runs))
    assert told.endswith("reproduced: 0.23.0; not with Model Runner V2: 0.23.0")


def test_a_run_of_a_night_has_the_pair_that_its_log_showed() -> None:
    made = night(1, {cell("0.33.0", GHOST, server_args=("{feature:runner-v2}",)): "n"})
    shown = "Model Runner V2"
    made.attempts = [a.model_copy(update={"runner": shown}) for a in made.attempts]
    (found,) = recorded.of_history(history([made]), "L")
    assert (found.asked_pair, found.outcome) == (shown, WELL)


def test_an_attempt_has_the_pair_of_its_incident() -> None:
    incident = load(ROOT / "tests/evidence/unchecked-sampling-0.23.0.zip")
    facts = outcome_of(incident, 0, "")
    assert facts["runner"] == "Model Runner V1, Rust front end"


def test_a_run_that_changes_more_is_of_no_pair() -> None:
    assert run("0.23.0", ILL, changes=V2).asked_pair == "runner-v2"
    assert not run("0.23.0", ILL, changes=[*V2, "--server-arg=--x"]).asked_pair
    assert not run("0.23.0", ILL, "patch", changes=V2).asked_pair
    assert not run("0.23.0", ILL).asked_pair
