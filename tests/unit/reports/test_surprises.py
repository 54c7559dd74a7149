"""Bundles of a night: only what is odd, bounded, and what is left out is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmrepro.incident.folder import incident_json
from mmrepro.incident.ledger import Attempt, Cell, Event, EventKind, Planned
from mmrepro.reports import load
from mmrepro.reports.surprises import INDEX_FILE, Surprises, write_surprises
from mmrepro.signature import Outcome
from night_samples import HEALTHY, REPRODUCED, cell, excused, night, runs_of, shown
from sample import partial_incident, sample_incident

from mmrepro.history.ledger import History  # isort: skip

ODD, FLAKY, LOST, FINE, DRIFTED = (cell(f"0.{n}.0") for n in range(5))
QUARANTINE = excused(*(("ghost-key-eviction", c.release) for c in (ODD, FLAKY, LOST, DRIFTED)))


def made(folder: Path, *cells: tuple[Cell, Outcome | None, list[Attempt]]) -> History:
    """A ledger's folder with these incidents; the runs of a cell have one key."""
    history = History()
    history.take(night("n"))
    for of, expected, runs in cells:
        history.take(Planned(night="n", cell=of, expected=expected))
        for run in runs:
            path = f"incidents/n/{of.id}/run-{run.index}"
            (folder / path).mkdir(parents=True)
            incident = sample_incident() if run.outcome else partial_incident("failed")
            (folder / path / "incident.json").write_text(incident_json(incident))
            history.take(run.model_copy(update={"incident": path, "key": of.id}))
    return history


@pytest.fixture
def ledger(tmp_path: Path) -> tuple[Path, History]:
    folder = tmp_path / "nights"
    cells = [
        (FINE, HEALTHY, runs_of(FINE, HEALTHY, HEALTHY)),
        (LOST, HEALTHY, runs_of(LOST, HEALTHY, None)),
        (FLAKY, HEALTHY, runs_of(FLAKY, HEALTHY, HEALTHY, REPRODUCED, HEALTHY)),
        (ODD, HEALTHY, runs_of(ODD, HEALTHY, REPRODUCED, REPRODUCED)),
        (DRIFTED, HEALTHY, runs_of(DRIFTED, HEALTHY, HEALTHY)),
    ]
    history = made(folder, *cells)
    history.take(
        Event(night="n", what=EventKind.DRIFT, identity="d", cell=DRIFTED.id, text="It drifts.")
    )
    return folder, history


def names(done: Surprises) -> list[str]:
    return [one.file for one in done.packed]


def test_only_what_is_odd_the_most_telling_first(
    tmp_path: Path, ledger: tuple[Path, History]
) -> None:
    folder, history = ledger
    out = tmp_path / "out"
    done = write_surprises(shown(history), folder, out, 1 << 30)
    assert names(done) == [
        f"{ODD.id}-run-2.zip",
        f"{DRIFTED.id}-run-1.zip",
        f"{FLAKY.id}-run-2.zip",
        f"{FLAKY.id}-run-3.zip",
        f"{LOST.id}-run-1.zip",
    ]
    assert {p.name for p in out.iterdir()} == {INDEX_FILE, *names(done)}
    for one in done.packed:
        assert load(out / one.file).scenario.name
        assert one.bytes == (out / one.file).stat().st_size
    index = (out / INDEX_FILE).read_text()
    assert "5 bundles, 0 left out" in index
    assert all(f"`{name}`" in index for name in names(done))
    again = write_surprises(shown(history), folder, out, 1 << 30)
    assert names(again) == names(done), "a second time over the first"


def test_quarantine_is_left_out_of_it(tmp_path: Path, ledger: tuple[Path, History]) -> None:
    folder, history = ledger
    done = write_surprises(shown(history, QUARANTINE), folder, tmp_path / "out", 1 << 30)
    assert (done.packed, done.left_out) == ([], [])


def test_a_night_as_expected_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "nights"
    history = made(folder, (FINE, HEALTHY, runs_of(FINE, HEALTHY, HEALTHY)))
    done = write_surprises(shown(history), folder, tmp_path / "out", 1 << 30)
    assert (done.packed, done.left_out) == ([], [])
    assert not (tmp_path / "out").exists()


def test_they_are_bounded_and_the_rest_is_named(
    tmp_path: Path, ledger: tuple[Path, History]
) -> None:
    folder, history = ledger
    whole = write_surprises(shown(history), folder, tmp_path / "whole", 1 << 30)
    bound = whole.packed[0].bytes + whole.packed[1].bytes + 100
    out = tmp_path / "out"
    done = write_surprises(shown(history), folder, out, bound)
    assert names(done)[:2] == names(whole)[:2], "the most telling ones"
    assert sum(p.stat().st_size for p in out.glob("*.zip")) <= bound
    assert len(done.packed) + len(done.left_out) == 5
    assert done.left_out
    assert "KiB were left: The incident alone takes" in done.left_out[0].why
    assert f"{len(done.left_out)} left out" in (out / INDEX_FILE).read_text()
    assert "left out: 0 KiB were left" in (out / INDEX_FILE).read_text()


def test_what_is_not_there_is_named(tmp_path: Path, ledger: tuple[Path, History]) -> None:
    folder, history = ledger
    (folder / f"incidents/n/{ODD.id}/run-2/incident.json").unlink()
    elsewhere = tmp_path / "elsewhere"
    (folder / f"incidents/n/{FLAKY.id}/run-2").rename(elsewhere)
    (folder / f"incidents/n/{FLAKY.id}/run-2").symlink_to(elsewhere)
    (lost,) = history.nights[0].attempts_of(LOST.id)
    lost.incident = ""
    done = write_surprises(shown(history), folder, tmp_path / "out", 1 << 30)
    assert len(done.packed) == 2
    why = [one.why for one in done.left_out]
    assert "holds no incident.json" in why[0]
    assert why[1:] == [
        "its incident lies outside of the ledger's folder",
        "the run left no incident",
    ]
