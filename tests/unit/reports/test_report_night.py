"""A night in every format: all say the same, of every cell, and nothing is greener than it was."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.history.ledger import History
from mmrepro.history.quarantine import Entry, Quarantine
from mmrepro.history.states import State
from mmrepro.incident.ledger import Attempt, Cell, Event, EventKind, Lost, NightState, Planned
from mmrepro.records import Fidelity
from mmrepro.reports.night import write_night
from mmrepro.reports.night_json import history_json, night_json
from mmrepro.reports.night_junit import render_night_junit
from mmrepro.reports.night_markdown import LIMIT, render_night_markdown
from mmrepro.reports.night_square import report_href
from mmrepro.reports.night_terminal import print_events, print_history, print_night
from mmrepro.reports.night_view import NightView, affects, night_view
from mmrepro.reports.night_words import STATE_WORDS, Standing
from mmrepro.signature import Outcome
from night_samples import FIRST, HEALTHY, REPRODUCED, attempt, history_of, night, realistic
from rich.console import Console

NONE = Quarantine()


def excused(*cells: tuple[str, str]) -> Quarantine:
    """With an entry for each of these scenarios and releases."""
    return Quarantine(
        tuple(
            Entry(scenario=scenario, releases=f"=={release}", reason="known drift", issue="#41",
                  owner="us", expires=date(2026, 12, 1))
            for scenario, release in cells
        )
    )  # fmt: skip


def cell(release: str = "0.23.0", scenario: str = "ghost-key-eviction", **more: str) -> Cell:
    return Cell(
        scenario=scenario, engine="vllm", release=release, device="cpu", **more
    )  # fmt: skip


def one_night(*squares: tuple[Cell, Outcome | None, list[Attempt]], **more: str) -> History:
    """A night of these cells, with what was expected of each and its runs."""
    records: list[object] = [night("n")]
    records += [Planned(night="n", cell=c, expected=e, **more) for c, e, _ in squares]
    records += [a for _, _, runs in squares for a in runs]
    return history_of(records)  # type: ignore[arg-type]


def shown(history: History, quarantine: Quarantine = NONE) -> NightView:
    return night_view(history, history.nights[-1], quarantine)


def runs_of(c: Cell, expected: Outcome | None, *outcomes: Outcome | None) -> list[Attempt]:
    return [
        attempt(c, "n", n, o, expected=expected if o else None) for n, o in enumerate(outcomes, 1)
    ]


def on_terminal(night: NightView, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_night(night, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


# ------------------------------------------------------------------ counts

_OUTCOMES = st.one_of(st.none(), st.sampled_from(Outcome))


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(
        st.tuples(_OUTCOMES, st.lists(_OUTCOMES, max_size=4), st.booleans()), min_size=1, max_size=9
    )
)
def test_every_format_counts_every_cell_once(
    plan: list[tuple[Outcome | None, list[Outcome | None], bool]],
) -> None:
    squares = []
    for number, (expected, outcomes, _) in enumerate(plan):
        c = cell(f"0.{number}.0")
        squares.append((c, expected, runs_of(c, expected, *outcomes)))
    history = one_night(*squares)
    known = [("ghost-key-eviction", f"0.{n}.0") for n, (_, _, k) in enumerate(plan) if k]
    made = shown(history, excused(*known))
    assert sum(made.states.values()) == sum(made.standings.values()) == len(plan)
    document = json.loads(night_json(made))
    assert document["counts"]["states"] == {s.value: made.states[s] for s in State}
    assert Counter(c["standing"] for c in document["cells"]) == +Counter(
        document["counts"]["standings"]
    )
    for state in State:
        told = f"{made.states[state]} {STATE_WORDS[state]}"
        assert (told in made.counts) == bool(made.states[state])
    for standing in (Standing.SURPRISE, Standing.FLAKY, Standing.UNTESTED):
        assert (f"{made.standings[standing]} " in made.headline.label) == bool(
            made.standings[standing]
        )
    suite = ET.fromstring(render_night_junit(made))
    red = made.standings[Standing.SURPRISE] + made.standings[Standing.FLAKY]
    assert int(suite.attrib["failures"]) == red
    assert int(suite.attrib["errors"]) == made.states[State.LOST] + made.states[State.MISSING]
    assert int(suite.attrib["tests"]) == len(plan)
    if made.headline.tone == "good":
        assert not red
        assert not made.standings[Standing.UNTESTED]


# ------------------------------------------------------------------ states


@pytest.mark.parametrize(
    ("expected", "outcomes", "state", "standing"),
    [
        (REPRODUCED, [REPRODUCED], State.REPRODUCED, Standing.EXPECTED),
        (HEALTHY, [REPRODUCED, REPRODUCED], State.REPRODUCED, Standing.SURPRISE),
        (HEALTHY, [REPRODUCED, HEALTHY], State.FLAKY, Standing.FLAKY),
        (HEALTHY, [Outcome.INCONCLUSIVE], State.INCONCLUSIVE, Standing.UNTESTED),
        (HEALTHY, [None, None], State.LOST, Standing.UNTESTED),
        (HEALTHY, [], State.MISSING, Standing.UNTESTED),
        (None, [HEALTHY], State.NOT_REPRODUCED, Standing.UNJUDGED),
    ],
)
def test_what_a_square_means(
    expected: Outcome | None,
    outcomes: list[Outcome | None],
    state: State,
    standing: Standing,
) -> None:
    c = cell()
    history = one_night((c, expected, runs_of(c, expected, *outcomes)))
    [square] = shown(history).squares
    assert (square.state, square.standing) == (state, standing)
    known = shown(history, excused((c.scenario, c.release))).squares[0]
    forgiven = standing in (Standing.SURPRISE, Standing.FLAKY)
    assert known.standing is (Standing.QUARANTINED if forgiven else standing)


def test_lost_and_missing_are_never_green() -> None:
    lost, missing, fine = cell("0.1"), cell("0.2"), cell("0.3")
    made = shown(
        one_night(
            (lost, HEALTHY, runs_of(lost, HEALTHY, None)),
            (missing, HEALTHY, []),
            (fine, HEALTHY, runs_of(fine, HEALTHY, HEALTHY)),
        )
    )
    assert made.headline.label == "2 untested"
    assert made.headline.tone == "unsure"
    assert not any(s.quarantine for s in made.squares)
    assert "∅" in on_terminal(made)


def test_an_event_that_is_bad_turns_a_night_red_that_was_expected() -> None:
    c = cell()
    event = Event(
        night="n", what=EventKind.NEW_RELEASE_AFFECTED, identity="x", cell=c.id, text="affected"
    )
    history = one_night((c, REPRODUCED, runs_of(c, REPRODUCED, REPRODUCED)))
    history.take(event)
    assert shown(history).headline.tone == "bad"


def test_a_flaky_cell_shows_how_often_and_the_interval() -> None:
    c = cell()
    outcomes = [REPRODUCED, HEALTHY, REPRODUCED]
    made = shown(one_night((c, REPRODUCED, runs_of(c, REPRODUCED, *outcomes))))
    [square] = made.squares
    assert square.ratio == "2/3"
    assert square.words == "flaky: 2 of 3 reproduced (21–94 %)"
    assert "reproduced, not reproduced, reproduced" in render_night_markdown(made)


def test_releases_stand_in_the_order_of_their_versions() -> None:
    names = ["0.9.0", "0.10.0", "0.10.0rc1", "main", "0.2.0"]
    squares = [(cell(n), None, []) for n in names]
    [grid] = shown(one_night(*squares)).grids
    assert [c.release for c in grid.columns] == ["0.2.0", "0.9.0", "0.10.0rc1", "0.10.0", "main"]


def test_commits_of_one_release_are_columns_of_their_own() -> None:
    squares = [(cell("0.2", commit=c), None, []) for c in ("a" * 40, "b" * 40)]
    [grid] = shown(one_night(*squares)).grids
    assert [c.label for c in grid.columns] == ["0.2 aaaaaaaaa", "0.2 bbbbbbbbb"]
    assert len(grid.rows) == 1


def test_the_declared_range_is_behind_the_releases_that_it_has() -> None:
    squares = [(cell(f"0.{n}.0"), None, []) for n in range(5)]
    [grid] = shown(one_night(*squares, affected=">=0.1,<0.4")).grids
    band = grid.band(grid.rows[0])
    assert {c.release: b for c, b in band.items()} == {
        "0.1.0": "band first", "0.2.0": "band", "0.3.0": "band last"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("specifier", "release", "inside"),
    [
        (">=0.1", "0.1", True), ("", "0.1", False), ("  ", "0.1", False),
        ("nonsense", "0.1", False), (">=0.1", "main", False), (">=0.1", "0.2rc1", True),
    ],
)  # fmt: skip
def test_affected(specifier: str, release: str, inside: bool) -> None:
    assert affects(specifier, release) is inside


def test_a_night_that_is_not_whole_says_so_first() -> None:
    records = [night("n", state=NightState.INTERRUPTED), Planned(night="n", cell=cell())]
    made = shown(history_of(records))
    assert made.warning == "This night is interrupted; 1 of 1 cells did not run."
    assert render_night_markdown(made).index(made.warning) < 200
    assert made.warning in on_terminal(made)


def test_what_is_wrong_with_the_quarantine_is_said_everywhere() -> None:
    c = cell()
    expired = (
        excused((c.scenario, c.release)).entries[0].model_copy(update={"expires": date(2026, 1, 1)})
    )
    made = shown(one_night((c, HEALTHY, runs_of(c, HEALTHY, REPRODUCED))), Quarantine((expired,)))
    assert made.squares[0].standing is Standing.SURPRISE
    for text in (render_night_markdown(made), on_terminal(made), night_json(made)):
        assert "expired on 2026-01-01 and counts no more" in text


def test_the_first_night_has_nothing_to_compare_with() -> None:
    made = shown(realistic(nights=1))
    assert made.before == ""
    assert "the first night" in render_night_markdown(made).splitlines()[0]


def test_events_are_found_where_the_ledger_has_none_yet() -> None:
    """A night that still runs has not written them."""
    c = cell("0.30.0")
    other = cell("0.29.0")
    records: list[object] = [night("m", FIRST - timedelta(days=1)), night("n")]
    for name, release in (("m", other), ("n", other), ("n", c)):
        records.append(Planned(night=name, cell=release, expected=HEALTHY))
        records.append(attempt(release, name, outcome=HEALTHY, expected=HEALTHY))
    made = shown(history_of(records))  # type: ignore[arg-type]
    assert [e.what for e in made.events] == [EventKind.NEW_RELEASE]


# ------------------------------------------------------------------ formats


def test_the_step_summary_fits_whatever_the_size() -> None:
    """10 000 cells, each with a long reason to be told."""
    squares = []
    for number in range(10_000):
        c = Cell.model_construct(
            scenario=f"scenario-{number // 50}", variant="", engine="vllm",
            release=f"0.{number % 50}.0", commit="", device="cpu", mitigations=(),
            server_args=(), options=(),
        )  # fmt: skip
        run = attempt(c, "n", 1, REPRODUCED, expected=HEALTHY)
        run.explanation = "ü" * 390
        squares.append((c, HEALTHY, [run]))
    history = one_night(*squares)
    history.take(Event(night="n", what=EventKind.NEW_RELEASE, identity="x", text="a new one"))
    made = shown(history)
    text = render_night_markdown(made)
    assert 0.5 * LIMIT < len(text.encode()) < LIMIT
    assert "10000 not as expected" in text[:1000].lower()
    assert "more of 10000 rows were cut here" in text
    assert "Left out, this page being full: vllm: scenarios × releases" in text
    small = render_night_markdown(made, limit=5000)
    assert len(small.encode()) <= 5000
    assert small.startswith("# Night n")


@given(limit=st.integers(1500, 12_000))
@settings(max_examples=30, deadline=None)
def test_it_is_never_longer_than_asked(limit: int) -> None:
    text = render_night_markdown(REALISTIC, limit)
    assert len(text.encode()) <= limit
    for line in (ln for ln in text.splitlines() if ln.startswith("|")):
        assert line.endswith("|")


REALISTIC = shown(realistic(), excused(("shape-alias", "0.5.17")))


def test_the_summary_tells_changes_before_all_else() -> None:
    text = render_night_markdown(REALISTIC)
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "What changed", "Not as expected (3)", "Flaky (1)",
        "Untested: nothing was learnt of these (3)", "lmdeploy: scenarios × releases",
        "minivllm: scenarios × releases", "sglang: scenarios × releases",
        "vllm: scenarios × releases", "Quarantine: these run, and turn nothing red",
        "How it was run", "Next",
    ]  # fmt: skip
    assert text.index("**bug returned**") < text.index("**fixed**") < text.index("**new release**")
    assert "| **✘ !** |" in text
    assert "| [✔ q] |" in text
    assert "2026-12-01" in text


def test_junit_is_as_ci_wants_it() -> None:
    """The order and names that its schema has: properties once, first, in a suite."""
    root = ET.fromstring(render_night_junit(REALISTIC))
    assert root.tag == "testsuites"
    names = []
    for suite in root:
        assert suite.tag == "testsuite"
        assert [child.tag for child in suite][:2] == ["properties", "testcase"]
        assert {child.tag for child in suite[1:]} == {"testcase"}
        assert {child.tag for child in suite[0]} == {"property"}
        counted = Counter(result.tag for case in suite[1:] for result in case)
        for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.attrib[plural]) == counted[kind]
        assert int(suite.attrib["tests"]) == len(suite) - 1
        assert datetime.fromisoformat(suite.attrib["timestamp"])
        for case in suite[1:]:
            names.append((case.attrib["classname"], case.attrib["name"]))
            assert float(case.attrib["time"]) >= 0
            assert {c.tag for c in case} <= {"failure", "error", "skipped", "system-out"}
            assert all("message" in c.attrib for c in case if c.tag != "system-out")
    assert len(set(names)) == len(names) == len(REALISTIC.squares)
    assert {s.attrib["name"] for s in root} == {
        f"mmrepro.{s.cell.scenario}" for s in REALISTIC.squares
    }


def test_junit_tells_every_run_and_why_it_is_red() -> None:
    root = ET.fromstring(render_night_junit(REALISTIC))
    cases = {c.attrib["name"].rpartition(" [")[0]: c for c in root.iter("testcase")}
    back = cases["vllm 0.33.0 cpu: ghost-key-eviction"]
    [failure] = back.findall("failure")
    assert failure.attrib == {
        "message": "reproduced; expected: not reproduced", "type": "reproduced"
    }  # fmt: skip
    assert (back.findtext("system-out") or "").count("reproduced; ") == 4
    [lost] = cases["lmdeploy 0.18.0 cpu: kv-growth-crash"].findall("error")
    assert "no space left" in lost.attrib["message"]
    [known] = cases["sglang 0.5.17 cpu: shape-alias"].findall("skipped")
    assert "known drift" in known.attrib["message"]
    [unsure] = cases["vllm 0.18.0 cpu: chunked-mm-prefill"].findall("skipped")
    assert "inconclusive" in unsure.attrib["message"]
    fine = cases["vllm 0.32.0 cpu: ghost-key-eviction"]
    assert [c.tag for c in fine] == ["system-out"]


def test_the_document_for_machines_is_stable() -> None:
    document = json.loads(night_json(REALISTIC))
    assert list(document) == [
        "schema_version", "night", "before", "headline", "counts", "notes", "events",
        "cells",
    ]  # fmt: skip
    [back] = [
        c for c in document["cells"]
        if (c["scenario"], c["release"], c["mitigations"]) == ("ghost-key-eviction", "0.33.0", [])
    ]  # fmt: skip
    assert back["standing"] == "surprise"
    assert [r["role"] for r in back["runs"]] == ["planned", "confirm", "confirm"]
    assert back["affected"] == ">=0.14.0,<0.24.0"
    assert document["events"][0]["what"] == "bug-returned"
    assert document["before"] == "2026-11-16"


def test_history_of_a_cell_skips_nights_without_it() -> None:
    document = json.loads(history_json(realistic(nights=3), "ghost-key-eviction"))
    assert {c["scenario"] for c in document["cells"]} == {"ghost-key-eviction"}
    new = [c for c in document["cells"] if c["release"] == "0.33.0"]
    assert [len(c["nights"]) for c in new] == [1, 1]
    old = next(c for c in document["cells"] if c["release"] == "0.23.0")
    assert [n["night"] for n in old["nights"]] == document["nights"]


def test_the_terminal_tells_rows_by_ranges_of_releases() -> None:
    told = on_terminal(REALISTIC)
    assert "✔ 0.11.0–0.13.0 (3), ✘ 0.14.0–0.23.0 (6), ✔ 0.24.0–0.32.0 (5), ✘ ! 0.33.0" in told
    assert "every run: reproduced, reproduced, reproduced" in told
    assert told.index("bug returned") < told.index("Not as expected (3)")
    assert "until 2026-12-01" in told


def test_history_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=160)
    print_history(realistic(nights=4), console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("ghost-key-eviction  " in ln and "===!" in ln for ln in lines)
    assert any("kv-growth-crash  " in ln and "===∅" in ln for ln in lines)
    assert any("borrowed-faults" in ln and "≈≈≈≈" in ln for ln in lines)
    console = Console(file=io.StringIO(), width=160)
    print_history(realistic(nights=4), console, "ghost-key-eviction")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("ghost-key-eviction on 0.33.0" in ln and "___✘" in ln for ln in lines)
    console = Console(file=io.StringIO(), width=160)
    print_history(realistic(nights=1), console, "nothing")
    assert "has a cell of nothing" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_changed_between_two_nights() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_events(REALISTIC.events, console, "a", "b")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "6 changes from night a to b"
    assert lines[1].startswith("  bug returned: ghost-key-eviction is back")
    console = Console(file=io.StringIO(), width=200)
    print_events([], console, "a", "b")
    assert "Nothing changed from night a to b" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("folder", "href"),
    [
        ("incidents/n/cell/run-1", "incidents/n/cell/run-1/report.html"),
        ("/elsewhere/run-1", ""), ("incidents/../../etc", ""), ("incidents//etc", ""),
        ("incidents/./x", ""), ("javascript:alert(1)", ""), ("incidents/a b", ""), ("", ""),
    ],
)  # fmt: skip
def test_only_what_lies_below_is_linked(folder: str, href: str) -> None:
    assert report_href(attempt(cell(), "n").model_copy(update={"incident": folder})) == href
    assert report_href(None) == ""


def test_files_are_written_whole(tmp_path: Path) -> None:
    history = realistic(nights=2)
    paths = write_night(history, history.nights[-1], tmp_path / "M", NONE)
    assert [p.name for p in paths] == ["night.md", "junit.xml", "dashboard.html"]
    assert all(p.read_text() for p in paths)
    assert sorted(p.name for p in (tmp_path / "M").iterdir()) == sorted(p.name for p in paths)


def test_the_kinds_of_loss_are_told_apart() -> None:
    c = cell()
    run = attempt(c, "n", 1, None, lost=Lost.UNLOADABLE, fidelity=Fidelity.CPU)
    [square] = shown(one_night((c, HEALTHY, [run]))).squares
    assert square.runs == "lost (unloadable)"
