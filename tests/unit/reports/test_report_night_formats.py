"""Markdown, JUnit, JSON and a terminal: the same night, within each one's limits."""

import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from made_nights import night as night_of, written
from mmrepro.base.records import Fidelity
from mmrepro.failure.documents.ledger import Cell, Event, EventKind, Lost
from mmrepro.history.ledger import read
from mmrepro.history.nightly import NightDocument, NightView, history_document
from mmrepro.reports import words
from mmrepro.reports.blocks import Table
from mmrepro.reports.documents import document_json, kind_of
from mmrepro.reports.grid import report_href
from mmrepro.reports.nightly import (
    KIND,
    MARKDOWN_BYTES,
    compose,
    events_table,
    history_blocks,
    write_night,
)
from mmrepro.reports.terminal import LINES, print_page
from night_samples import (
    HEALTHY,
    NONE,
    REPRODUCED,
    as_json,
    attempt,
    cell,
    excused,
    junit,
    markdown,
    on_terminal,
    one_night,
    realistic,
    shown,
)
from rich.console import Console


@pytest.mark.parametrize(
    "cells", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)]
)
def test_the_step_summary_fits_whatever_the_size(cells: int) -> None:
    """Each with a long reason to be told."""
    squares = []
    for number in range(cells):
        c = Cell.model_construct(
            scenario=f"scenario-{number // 50}",
            variant="",
            engine="vllm",
            release=f"0.{number % 50}.0",
            commit="",
            device="cpu",
            mitigations=(),
            server_args=(),
            options=(),
        )
        run = attempt(c, "n", 1, REPRODUCED, expected=HEALTHY)
        run.explanation = "ü" * 390
        squares.append((c, HEALTHY, [run]))
    history = one_night(*squares)
    history.take(
        Event(night="n", what=EventKind.NEW_RELEASE, identity="x", text="a new one")
    )
    text = markdown(shown(history))
    assert len(text.encode()) < MARKDOWN_BYTES
    assert f"**{cells} NOT AS EXPECTED**" in text[:1000]
    assert f"{cells - 120} more of {cells} rows are not shown here" in text


@pytest.fixture(scope="module")
def night_of_all() -> NightView:
    """The last of the realistic nights."""
    return shown(realistic(), excused(("shape-alias", "0.5.17")))


def test_the_page_has_every_part(night_of_all: NightView) -> None:
    page = compose(night_of_all)
    assert [section.title for section in page.shown] == [
        "Scenarios × releases",
        "What changed",
        "Not as expected (3)",
        "Flaky (1)",
        "Untested (3)",
        "Quarantine",
        "Over the nightly runs",
        "Every run",
        "Set-up",
        "Repeat",
    ]
    assert (page.badge.label, page.badge.tone) == (
        "3 not as expected, 1 flaky, 3 untested",
        "bad",
    )
    [changes] = [s.blocks[0] for s in page.sections if s.title == "What changed"]
    assert isinstance(changes, Table)
    assert [row.status for row in changes.rows] == [
        "bug returned",
        "different failure",
        "drift",
        "coverage lost",
        "fixed",
        "new release",
    ]
    assert "incidents/" in markdown(night_of_all)
    assert "](<" not in markdown(night_of_all), "in a step summary a link leads nowhere"


def test_the_end_screen_has_at_most_twenty_rows(
    golden: Callable[[str, str], None], night_of_all: NightView
) -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    print_page(compose(night_of_all), console, "nights/dashboard.html")
    golden("nightly.txt", out.getvalue())
    assert len(out.getvalue().splitlines()) <= LINES


def test_junit_has_a_case_for_each_job(night_of_all: NightView) -> None:
    root = ET.fromstring(junit(night_of_all))
    names = {
        (case.attrib["classname"], case.attrib["name"])
        for case in root.iter("testcase")
    }
    assert len(names) == len(night_of_all.squares)
    assert {s.attrib["name"] for s in root} == {
        f"mmrepro.{s.cell.scenario}" for s in night_of_all.squares
    }


def test_junit_has_every_run_and_why_it_is_red(night_of_all: NightView) -> None:
    root = ET.fromstring(junit(night_of_all))
    cases = {c.attrib["name"].rpartition(" [")[0]: c for c in root.iter("testcase")}
    back = cases["vllm 0.33.0 cpu: ghost-key-eviction"]
    [failure] = back.findall("failure")
    assert failure.attrib == {
        "message": "reproduced; expected: not reproduced",
        "type": "reproduced",
    }
    assert (back.findtext("system-out") or "").count("reproduced; ") == 4
    [lost] = cases["lmdeploy 0.18.0 cpu: kv-growth-crash"].findall("error")
    assert "no space left" in lost.attrib["message"]
    [known] = cases["sglang 0.5.17 cpu: shape-alias"].findall("skipped")
    assert "known drift" in known.attrib["message"]
    [unsure] = cases["vllm 0.18.0 cpu: chunked-mm-prefill"].findall("skipped")
    assert "inconclusive" in unsure.attrib["message"]
    fine = cases["vllm 0.32.0 cpu: ghost-key-eviction"]
    assert [c.tag for c in fine] == ["system-out"]


def test_the_document_for_machines_is_stable(night_of_all: NightView) -> None:
    document = json.loads(as_json(night_of_all))
    NightDocument.model_validate(document)
    [back] = [
        c
        for c in document["cells"]
        if (c["scenario"], c["release"], c["mitigations"])
        == ("ghost-key-eviction", "0.33.0", [])
    ]
    assert back["standing"] == "surprise"
    assert [r["role"] for r in back["runs"]] == ["planned", "confirm", "confirm"]
    assert back["affected"] == ">=0.14.0,<0.24.0"
    assert document["events"][0]["what"] == "bug-returned"
    [returned] = [c for c in document["concerns"] if c["what"] == "bug-returned"]
    assert (returned["cell"]["id"], returned["since"], returned["over"]) == (
        back["id"],
        document["night"]["id"],
        "",
    )
    assert returned["verdict"] == returned["tonight"]
    assert (returned["verdict"]["reproduced"], returned["verdict"]["conclusive"]) == (
        3,
        3,
    )
    assert [n["id"] for n in document["nights"]][-2:] == [
        document["before"],
        document["night"]["id"],
    ]
    assert document["before"] == "2026-11-16"


def test_history_of_a_cell_skips_nights_without_it() -> None:
    document = json.loads(
        document_json(history_document(realistic(nights=3), "ghost-key-eviction"))
    )
    assert {c["scenario"] for c in document["cells"]} == {"ghost-key-eviction"}
    new = [c for c in document["cells"] if c["release"] == "0.33.0"]
    assert [len(c["nights"]) for c in new] == [1, 1]
    old = next(c for c in document["cells"] if c["release"] == "0.23.0")
    assert [n["night"] for n in old["nights"]] == document["nights"]


def test_rows_are_shown_by_ranges_of_releases(night_of_all: NightView) -> None:
    text = on_terminal(night_of_all)
    assert (
        "✔ 0.11.0–0.13.0 (3), ✘ 0.14.0–0.23.0 (6), ✔ 0.24.0–0.32.0 (5), ✘ ! 0.33.0"
        in text
    )
    assert "✔ q 0.5.17" in text
    assert "≈3/4 0.1" in text
    assert "2026-12-01" in text


def test_history_on_a_terminal() -> None:
    lines = on_terminal(history_blocks(realistic(nights=4))).splitlines()
    assert any("ghost-key-eviction  " in ln and "===!" in ln for ln in lines)
    assert any("kv-growth-crash  " in ln and "===∅" in ln for ln in lines)
    assert any("borrowed-faults" in ln and "≈≈≈≈" in ln for ln in lines)
    lines = on_terminal(
        history_blocks(realistic(nights=4), "ghost-key-eviction")
    ).splitlines()
    assert any("ghost-key-eviction on 0.33.0" in ln and "___✘" in ln for ln in lines)
    assert "has a job of nothing" in on_terminal(
        history_blocks(realistic(nights=1), "nothing")
    )


def test_what_changed_between_two_nights(night_of_all: NightView) -> None:
    [changes] = events_table([*reversed(night_of_all.events)])
    assert isinstance(changes, Table)
    assert [row.status for row in changes.rows][:2] == [
        "bug returned",
        "different failure",
    ]
    assert not events_table([])


@pytest.mark.parametrize(
    ("folder", "href"),
    [
        ("incidents/n/cell/run-1", "incidents/n/cell/run-1/report.html"),
        ("/elsewhere/run-1", ""),
        ("incidents/../../etc", ""),
        ("incidents//etc", ""),
        ("incidents/./x", ""),
        ("javascript:alert(1)", ""),
        ("incidents/a b", ""),
        ("", ""),
    ],
)
def test_only_what_lies_below_is_linked(folder: str, href: str) -> None:
    assert (
        report_href(attempt(cell(), "n").model_copy(update={"incident": folder}))
        == href
    )
    assert report_href(None) == ""


def test_the_summary_in_docs_is_what_its_ledger_gives(tmp_path: Path) -> None:
    docs = Path(__file__).parents[3] / "docs/nightly"
    history = read(docs)
    write_night(history, history.nights[-1], tmp_path, NONE)
    again = "mmrepro matrix report docs/nightly --write docs/nightly"
    assert (tmp_path / "night.md").read_text() == (docs / "night.md").read_text(), again


def test_files_are_written_whole(tmp_path: Path) -> None:
    history = realistic(nights=2)
    paths = write_night(history, history.nights[-1], tmp_path / "M", NONE)
    assert [p.name for p in paths] == ["night.md", "dashboard.html", "junit.xml"]
    assert all(p.read_text() for p in paths)
    assert sorted(p.name for p in (tmp_path / "M").iterdir()) == sorted(
        p.name for p in paths
    )


def test_a_ledger_has_a_report_of_its_newest_night(tmp_path: Path) -> None:
    written(tmp_path, night_of(1, {cell(): "r"}), night_of(2, {cell(): "r"}))
    kind = kind_of(tmp_path)
    assert kind is KIND
    assert kind.load(tmp_path).runs.night.id == "n2"


def test_the_kinds_of_loss_are_told_apart() -> None:
    c = cell()
    run = attempt(c, "n", 1, None, lost=Lost.UNLOADABLE, fidelity=Fidelity.CPU)
    [square] = shown(one_night((c, HEALTHY, [run]))).squares
    assert words.attempt(square.attempts[0], "lost") == "lost (unloadable)"
