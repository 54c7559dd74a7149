"""Markdown, JUnit, JSON and a terminal: the same night, within each one's limits."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.incident.ledger import Cell, Event, EventKind, Lost
from mmrepro.records import Fidelity
from mmrepro.reports.night import write_night
from mmrepro.reports.night_json import history_json, night_json
from mmrepro.reports.night_junit import render_night_junit
from mmrepro.reports.night_markdown import LIMIT, render_night_markdown
from mmrepro.reports.night_square import report_href
from mmrepro.reports.night_terminal import print_events, print_history
from night_samples import (
    HEALTHY,
    NONE,
    REPRODUCED,
    attempt,
    cell,
    excused,
    on_terminal,
    one_night,
    realistic,
    shown,
)
from rich.console import Console


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
        "schema_version", "night", "before", "headline", "counts", "shifts", "notes", "events",
        "cells", "warning", "concerns", "nights",
    ]  # fmt: skip
    [back] = [
        c for c in document["cells"]
        if (c["scenario"], c["release"], c["mitigations"]) == ("ghost-key-eviction", "0.33.0", [])
    ]  # fmt: skip
    assert back["standing"] == "surprise"
    assert [r["role"] for r in back["runs"]] == ["planned", "confirm", "confirm"]
    assert back["affected"] == ">=0.14.0,<0.24.0"
    assert document["events"][0]["what"] == "bug-returned"
    [returned] = [c for c in document["concerns"] if c["what"] == "bug-returned"]
    assert (returned["cell"]["id"], returned["since"], returned["over"]) == (
        back["id"], document["night"]["id"], ""
    )  # fmt: skip
    assert returned["verdict"] == returned["tonight"]
    assert (returned["verdict"]["reproduced"], returned["verdict"]["conclusive"]) == (3, 3)
    assert [n["id"] for n in document["nights"]][-2:] == [
        document["before"],
        document["night"]["id"],
    ]
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
