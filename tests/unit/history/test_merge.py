"""Shards and nights in one folder: twice is once, and contradictions are refused."""

import itertools
from pathlib import Path

import pytest
from made_nights import cell, night
from mmrepro.base.errors import BadLedger
from mmrepro.failure.documents.ledger import LEDGER_FILE, Event, EventKind, NightState
from mmrepro.history.ledger import Ledger, NightRuns, read
from mmrepro.history.merge import merge, whole

OLD, NEW = cell("0.23.0"), cell("0.24.0")


def kept(folder: Path, *nights: NightRuns, shard: str = "") -> Path:
    """A ledger with incidents that exist."""
    with Ledger(folder) as ledger:
        for runs in nights:
            ledger.append(runs.night.model_copy(update={"shard": shard}))
            for record in (*runs.planned.values(), *runs.attempts, *runs.events):
                ledger.append(record)
    for runs in nights:
        for attempt in runs.attempts:
            if attempt.incident:
                (folder / attempt.incident / "evidence").mkdir(parents=True)
                (folder / attempt.incident / "incident.json").write_text(folder.name)
    return folder


def test_shards_become_a_night_and_its_events_are_found(tmp_path: Path) -> None:
    first = kept(tmp_path / "first", night(1, {OLD: "r"}))
    one = kept(tmp_path / "one", night(2, {OLD: "r"}), shard="1/2")
    two = kept(tmp_path / "two", night(2, {NEW: "nn"}), shard="2/2")
    out = tmp_path / "out"
    part = tmp_path / "part"
    merge([first, two], part)
    assert read(part).night("n2").events == [], "who knows what the other shard has"
    done = merge([two, one, first], out)
    assert (done.nights, done.cells, done.attempts, done.incidents) == (
        ["n1", "n2"],
        3,
        4,
        4,
    )
    runs = read(out).night("n2")
    assert (runs.night.shard, runs.night.state) == ("", NightState.COMPLETE)
    assert runs.night.cells == len(runs.planned) == 2
    assert [e.what for e in runs.events] == [EventKind.FIXED_IN, EventKind.NEW_RELEASE]
    for attempt in runs.attempts:
        assert (out / attempt.incident / "incident.json").is_file()
        assert (out / attempt.incident / "evidence").is_dir()
    assert not list(out.rglob(".merge-*"))


def test_a_second_merge_adds_nothing(tmp_path: Path) -> None:
    sources = [
        kept(tmp_path / "a", night(1, {OLD: "r"}), night(2, {OLD: "n"}), shard="1/2"),
        kept(tmp_path / "b", night(2, {NEW: "l"}), shard="2/2"),
    ]
    out = tmp_path / "out"
    assert not merge(sources, out).nothing
    before = (out / LEDGER_FILE).read_bytes()
    for order in itertools.permutations([*sources, out]):
        assert merge(order, out).nothing
        assert (out / LEDGER_FILE).read_bytes() == before
    assert merge(sources[:1], out).nothing


def test_a_night_that_went_on_is_told_as_it_is_now(tmp_path: Path) -> None:
    late = night(1, {OLD: "r"}, state=NightState.OUT_OF_TIME)
    late.events.append(
        Event(night="n1", what=EventKind.COVERAGE_LOST, identity="x", text="So.")
    )
    running = kept(tmp_path / "a", late)
    out = tmp_path / "out"
    merge([running], out)
    assert read(out).night("n1").events == late.events
    with Ledger(running) as ledger:
        ledger.append(night(1, state=NightState.RUNNING).night)
        ledger.append(night(1).night)
        ledger.append(night(1, {OLD: "rr"}).attempts[1])
    assert merge([running], out).attempts == 1
    assert read(out).night("n1").night.state is NightState.COMPLETE
    assert read(out).night("n1").events == [], "it is whole now"
    assert merge([running], out).nothing


def test_contradictions_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    a = kept(tmp_path / "a", night(1, {OLD: "r"}))
    b = kept(tmp_path / "b", night(1, {OLD: "n"}))
    out = tmp_path / "out"
    with pytest.raises(BadLedger) as raised:
        merge([a, b], out)
    assert raised.value.message == (
        f"{a} and {b} say different things of attempt 1 at {OLD.id} in night n1."
    )
    assert not out.exists()
    merge([a], out)
    before = (out / LEDGER_FILE).read_bytes()
    with pytest.raises(BadLedger, match=r"attempt 1 at"):
        merge([b], out)
    assert (out / LEDGER_FILE).read_bytes() == before


def test_without_incidents_no_attempt_names_one(tmp_path: Path) -> None:
    a = kept(tmp_path / "a", night(1, {OLD: "r"}))
    assert merge([a], tmp_path / "out", incidents=False).incidents == 0
    assert read(tmp_path / "out").night("n1").attempts[0].incident == ""
    assert [p.name for p in (tmp_path / "out").iterdir() if p.is_dir()] == []


def test_an_incident_that_is_not_there_is_told(tmp_path: Path) -> None:
    a = kept(tmp_path / "a", night(1, {OLD: "r"}))
    incident = night(1, {OLD: "r"}).attempts[0].incident
    (a / incident / "incident.json").unlink()
    assert merge([a], tmp_path / "out").missing == [incident]


def test_events_of_a_whole_night_are_kept_once(tmp_path: Path) -> None:
    runs = night(1, {OLD: "r"})
    runs.events.append(
        Event(night="n1", what=EventKind.FLAKY, identity="x", text="So.")
    )
    a = kept(tmp_path / "a", runs)
    b = kept(tmp_path / "b", runs)
    assert merge([a, b], tmp_path / "out").events == 1
    assert merge([a], tmp_path / "out").events == 0


def test_what_a_night_of_shards_is() -> None:
    def part(
        shard: str, state: NightState = NightState.COMPLETE, hours: float = 0
    ) -> NightRuns:
        runs = night(1, state=state, hours=hours)
        runs.night = runs.night.model_copy(update={"shard": shard})
        return runs

    parts = [part("1/3").night, part("2/3", NightState.OUT_OF_TIME, 1).night]
    made = whole(parts)
    assert (made.shard, made.state) == ("1/3,2/3", NightState.OUT_OF_TIME)
    assert (made.created, made.finished) == (parts[0].created, parts[1].finished)
    assert whole([part("3/3").night], made).shard == ""
    assert (
        whole([part("2/3").night, part("1/3").night], made).state is NightState.COMPLETE
    )
    running = part("3/3", NightState.RUNNING).night.model_copy(
        update={"finished": None}
    )
    assert whole([*parts, running]).finished is None
    assert whole([*parts, running]).state is NightState.RUNNING
    assert whole([part("1/2").night, part("2/3").night]).shard == "1/2,2/3", (
        "of two plans"
    )
