"""The nightly's workflows, step by step, on this machine; nightly_steps.py says what is
emulated.

Real are mmrepro, git with a bare repository as origin, and minivllm. A fake is `gh`
alone."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mmrepro
import pytest
from made_nights import cell, night
from mmrepro.base.records import Moment
from mmrepro.failure.documents.ledger import NightState
from mmrepro.history.ledger import Ledger, read
from nightly_repository import BRANCH, Repository, git, told
from nightly_steps import JobResult

pytestmark = pytest.mark.engine

FIT, RUN, MERGE, TELL, ALERT = (
    "Is this machine fit?",
    "Run its part of the night",
    "Merge what the machines delivered",
    "Tell the night",
    "Open, update and close issues",
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("nightly"))


@pytest.fixture
def lately(tmp_path: Path) -> Repository:
    """One with a night of an hour ago, made up: nothing is late."""
    new = Repository(tmp_path)
    made = night(1, {cell(): "r"})
    folder = tmp_path / "made"
    git("init", "--quiet", f"--initial-branch={BRANCH}", str(folder), at=tmp_path)
    with Ledger(folder) as ledger:
        wall = datetime.now(UTC) - timedelta(hours=1)
        ledger.append(
            made.night.model_copy(update={"created": Moment(wall=wall, mono=0.0)})
        )
        for record in (*made.planned.values(), *made.attempts):
            ledger.append(record)
    git("add", "ledger.jsonl", at=folder)
    git("commit", "--quiet", "-m", "a night", at=folder)
    git("push", "--quiet", str(new.origin), BRANCH, at=folder)
    return new


def results(jobs: Mapping[str, list[JobResult]]) -> dict[str, str]:
    return {one.name: one.result for several in jobs.values() for one in several}


def shard_with_cells(jobs: Mapping[str, list[JobResult]]) -> JobResult:
    (found,) = [job for job in jobs["gpu"] if "reproduced" in job.step(RUN).output]
    return found


@pytest.mark.slow
def test_three_nights(repository: Repository) -> None:
    # The first one: as expected.
    jobs = repository.run("nightly-gpu.yml")
    assert set(results(jobs).values()) == {"success"}, told(jobs)
    (report,) = jobs["report"]
    assert "1 reproduced" in report.summary, told(jobs)
    assert report.annotations == []
    history = read(repository.history())
    (night,) = history.nights
    assert night.night.state is NightState.COMPLETE
    assert night.night.shard == ""
    assert [a.outcome for a in night.attempts] == ["reproduced"]
    assert repository.issues == []

    # What it found of one cell is made something else, of another mmrepro: now there is
    # a drift.
    def another(record: dict[str, Any]) -> None:
        if record["kind"] == "attempt":
            record["outcome"] = "not-reproduced"
            record["parts"]["mmrepro"] = record["key"] = "0" * 16

    repository.edit(another)
    jobs = repository.run("nightly-gpu.yml")
    assert results(jobs)["report"] == "failure", told(jobs)
    shard = shard_with_cells(jobs)
    assert shard.result == "success"  # the machine did its work
    (report,) = jobs["report"]
    assert [step.code for step in report.steps if step.code] == [1]  # the verdict
    (drift,) = report.step(TELL).annotations
    assert (drift.name, drift.properties) == ("error", {"title": "drift"})
    assert "ghost-key-lru" in drift.data
    assert [(a.name, a.properties) for a in shard.annotations] == [
        ("warning", {"title": "Surprise"})
    ]
    artifact = repository.folder / f"run-{repository.runs}" / "artifacts"
    (bundle,) = artifact.glob("shard-*/shard-*/surprises/*.zip")
    assert "ghost-key-lru" in bundle.name
    ((issue),) = repository.issues
    assert issue["state"] == "OPEN"
    assert "ghost-key-lru" in issue["title"]
    assert jobs["alert"][0].result == "success"

    # As before: it is over.
    jobs = repository.run("nightly-gpu.yml")
    assert set(results(jobs).values()) == {"success"}, told(jobs)
    ((issue),) = repository.issues
    assert issue["state"] == "CLOSED"
    assert len(read(repository.history()).nights) == 3

    # Two days in which there is none.
    jobs = repository.run("nightly-overdue.yml")
    assert results(jobs) == {"overdue": "success"}, told(jobs)

    def earlier(record: dict[str, Any]) -> None:
        for moment in filter(None, (record.get("created"), record.get("finished"))):
            began = datetime.fromisoformat(moment["wall"]) - timedelta(days=2)
            moment["wall"] = began.isoformat()

    repository.edit(earlier)
    jobs = repository.run("nightly-overdue.yml")
    assert results(jobs) == {"overdue": "failure"}, told(jobs)
    assert repository.missing() == ["OPEN"]


@pytest.mark.slow
def test_no_night_was_ever_begun(tmp_path: Path) -> None:
    """Here mmrepro is installed as the workflow does it."""
    new = Repository(tmp_path)
    jobs = new.run("nightly-overdue.yml", installed=None)
    (overdue,) = jobs["overdue"]
    assert [(s.name, s.code) for s in overdue.steps if s.code] == [
        ("Did a night end in time?", 1)
    ]
    assert overdue.step("Install mmrepro").output.endswith(
        f"mmrepro {mmrepro.__version__}\n"
    )
    assert [i["title"] for i in new.issues] == [
        "night missing: none since the beginning"
    ]


@pytest.mark.slow
def test_a_machine_that_is_not_fit(repository: Repository) -> None:
    """The one with the cells: the other one's part is soon done."""
    nowhere = {"MMREPRO_CACHE_DIR": "/proc/nowhere"}
    jobs = repository.run("nightly-gpu.yml", broken={"gpu (2)": nowhere})
    first, second = jobs["gpu"]
    assert first.result == "success", told(jobs)
    assert (second.result, second.step(FIT).code) == ("failure", 4), told(jobs)
    assert [a.properties for a in second.annotations] == [{"title": "Infrastructure"}]
    (report,) = jobs["report"]
    assert report.result == "failure"
    assert (
        "Machine 2 of 2 delivered nothing: mmrepro check ended with 4."
        in report.summary
    )
    assert [a.name for a in report.step(MERGE).annotations] == ["error"]
    (half,) = [n for n in read(repository.history()).nights if n.night.shard]
    assert half.attempts == []

    # "Re-run failed jobs", with the machine mended: its shard completes that night.
    nowhere.clear()
    jobs = repository.night.again()
    assert set(results(jobs).values()) == {"success"}, told(jobs)
    assert jobs["gpu"][0] is first
    whole = read(repository.history()).night(half.night.id)
    assert (whole.night.shard, [a.outcome for a in whole.attempts]) == (
        "",
        ["reproduced"],
    )


@pytest.mark.slow
def test_nothing_is_delivered(lately: Repository) -> None:
    jobs = lately.run("nightly-gpu.yml", gone=frozenset({"gpu (1)", "gpu (2)"}))
    (report,) = jobs["report"]
    assert report.step(MERGE).code == 4, told(jobs)
    assert report.outputs == {"delivered": "0"}
    assert "Machine 2 of 2 delivered nothing, not even why." in report.summary
    (alert,) = jobs["alert"]
    assert alert.result == "success", told(jobs)
    assert lately.missing() == ["OPEN"]


def test_a_wrong_input(lately: Repository) -> None:
    jobs = lately.run("nightly-gpu.yml", by_hand={"machines": "$(touch here)"})
    assert results(jobs) == {
        "plan": "failure",
        "gpu": "skipped",
        "report": "failure",
        "alert": "success",
    }, told(jobs)
    assert jobs["plan"][0].step("Plan the night").code == 2
    assert not list(lately.folder.rglob("here"))
    assert lately.issues == []  # a person has seen it
