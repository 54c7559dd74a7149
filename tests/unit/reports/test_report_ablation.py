"""An ablation's reports: whole, partial, and of hostile text."""

from __future__ import annotations

import io
import re
from pathlib import Path

import jsonschema
import pytest
from hostile import HOSTILE, plant
from markdown_it import MarkdownIt
from mmrepro.errors import BadIncident
from mmrepro.incident import (
    ClaimResult,
    ClaimStatus,
    Fidelity,
    HostFacts,
    ScenarioFacts,
    StandIn,
)
from mmrepro.incident.searches import (
    Ablation,
    Cell,
    CellRun,
    CellState,
    Conclusion,
    Cure,
    FactorClass,
    FactorResult,
)
from mmrepro.records import Moment
from mmrepro.reports import ablation_view as view
from mmrepro.reports.ablation import (
    cell_href,
    load_ablation,
    render_ablation_html,
    render_ablation_markdown,
    write_ablation,
)
from mmrepro.reports.ablation_terminal import print_ablation
from mmrepro.signature import Outcome, Truth
from rich.console import Console
from test_report_hostile import ACTIVE, Tags, shape

NOW = Moment.now()
STAND_IN = StandIn(name="patch", replaces="touch()", why="under test")


def run(outcome: Outcome, symptom: Truth, cause: Truth, name: str = "baseline") -> CellRun:
    return CellRun(
        key="k", index=1, created=NOW, seconds=31.5, outcome=outcome, gate_passed=True,
        symptom=symptom, symptom_observed="no answer", cause=cause, cause_observed="a ghost",
        incident_dir=f"cells/{name}/run-1", stand_ins=[STAND_IN] if name == "cure" else [],
    )  # fmt: skip


def cell(name: str, state: CellState, *runs: CellRun) -> Cell:
    flips = [name] if name else []
    return Cell(
        flips=flips, role="alone" if name else "baseline", state=state, why="", runs=[*runs]
    )


def sample() -> Ablation:
    met, gone = Truth.MET, Truth.NOT_MET
    factors = {
        "cure": FactorClass.NECESSARY,
        "budget": FactorClass.HIDES,
        "prefix": FactorClass.IRRELEVANT,
    }
    return Ablation(
        mmrepro_version="0.1.0", id="abc", created=NOW, finished=NOW, state="complete",
        command="mmrepro ablate ghost-key-eviction", engine="vllm", release="0.23.0", device="cpu",
        scenario=ScenarioFacts(
            name="ghost-key-eviction", variant="one", title="It hangs", summary="s", affected="",
            explanation="",
        ),
        host=HostFacts(os="Linux", kernel="", cpu="a CPU", cores=2, memory_bytes=1, python="3.11"),
        fidelity=Fidelity.CPU,
        factors=[
            FactorResult(
                name=name, description="what it is", failing="--x", setting="--no-x",
                claim="said of it", factor_class=chosen, why="flipped alone",
            )
            for name, chosen in factors.items()
        ],
        cells=[
            cell("", CellState.FAILS, run(Outcome.REPRODUCED, met, met)),
            cell("cure", CellState.CURED, run(Outcome.NOT_REPRODUCED, gone, gone, "cure")),
            cell("budget", CellState.HIDDEN, run(Outcome.INCONCLUSIVE, gone, met, "budget")),
            cell("prefix", CellState.FAILS, run(Outcome.REPRODUCED, met, met, "prefix")),
        ],
        cures=[Cure(flips=["cure"], settings="--no-x", minimal=True, why="flipped alone it cures")],
        left_out={"budget": "it hides the failure"},
        conclusion=Conclusion.CURE,
        explanation="smallest cure: cure",
        hypotheses=[
            ClaimResult(
                id="h", text="the budget is too small", source="the report",
                status=ClaimStatus.REFUTED, observed="it only hides it",
            )
        ],
        limits=["each cell was run once"],
    )  # fmt: skip


def test_the_table_has_a_row_for_the_baseline_and_each_factor() -> None:
    markdown = render_ablation_markdown(sample())
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert "| (the failing baseline) | – | – | reproduced | there | there | **–** |" in rows
    assert "| cure | `--x` | `--no-x` | not reproduced | gone | gone | **necessary** |" in rows
    assert "| budget | `--x` | `--no-x` | inconclusive | gone | there | **hides it** |" in rows
    assert "| prefix | `--x` | `--no-x` | reproduced | there | there | **irrelevant** |" in rows
    assert "✘ refuted" in markdown
    assert "| patch | touch() | under test | runs with cure |" in rows
    html = render_ablation_html(sample())
    for text in ("hides it", "necessary", 'href="cells/budget/run-1/report.html"', "refuted"):
        assert text in html


def test_runs_that_differ_are_counted() -> None:
    runs = [run(Outcome.REPRODUCED, Truth.MET, Truth.MET)] * 2
    runs.append(run(Outcome.NOT_REPRODUCED, Truth.NOT_MET, Truth.UNKNOWN))
    assert view.cell_words(cell("x", CellState.FAILS, *runs)) == (
        "2 × reproduced, 1 × not reproduced",
        "2 × there, 1 × gone",
        "2 × there, 1 × unknown",
    )
    assert view.cell_words(cell("x", CellState.FAILS, *runs[:2]))[0] == "reproduced (2 of 2)"


def test_a_partial_ablation_says_so(tmp_path: Path) -> None:
    partial = sample().model_copy(
        update={
            "state": "interrupted",
            "failure": "interrupted; to resume, run: mmrepro ablate x",
            "conclusion": None,
            "explanation": "",
            "cells": sample().cells[:1],
            "cures": [],
        }
    )
    write_ablation(partial, tmp_path)
    assert load_ablation(tmp_path) == partial
    for name in ("ablation.md", "ablation.html"):
        text = (tmp_path / name).read_text()
        assert "to resume, run: mmrepro ablate x" in text
        assert "not run" in text


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"schema_version": 2}', "\xff"])
def test_a_folder_without_an_ablation(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "ablation.json").write_text(content, encoding="latin-1")
    with pytest.raises(BadIncident, match=re.escape(str(tmp_path))):
        load_ablation(tmp_path)


def test_it_fits_its_schema() -> None:
    schema = Ablation.model_json_schema(mode="serialization")
    document = sample().model_dump(mode="json")
    jsonschema.validate(document, schema)
    document["factors"][0]["factor_class"] = "perhaps"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


@pytest.mark.parametrize(
    ("folder", "href"),
    [
        ("cells/a+b/run-1", "cells/a+b/run-1/report.html"),
        ("/elsewhere/run-1", ""),
        ("cells/../../etc", ""),
        ("javascript:alert(1)", ""),
        ("", ""),
    ],
)
def test_only_what_lies_below_is_linked(folder: str, href: str) -> None:
    assert cell_href(folder) == href


BENIGN = Tags(render_ablation_html(plant(sample(), "two words")))
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_no_structure(text: str) -> None:
    planted = plant(sample(), text)
    html = render_ablation_html(planted)
    seen = Tags(html)
    assert seen.seen == BENIGN.seen
    assert not seen.comments
    assert not ACTIVE.search(html)
    markdown = render_ablation_markdown(planted)
    assert not ACTIVE.search(markdown)
    tables = shape(PARSER.parse(markdown)).count("tr_open")
    assert tables == shape(PARSER.parse(render_ablation_markdown(plant(sample(), "x")))).count(
        "tr_open"
    )
    out = io.StringIO()
    print_ablation(planted, Console(file=out, force_terminal=False, width=200), "folder")
    assert not ACTIVE.search(out.getvalue())
