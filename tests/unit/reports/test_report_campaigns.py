"""Pages of an ablation and a bisection that are other than those in
``golden``."""

import re

from campaign_samples import (
    ablation,
    bisection,
    cell,
    point,
    run,
)
from mmrepro.failure.documents.searches import CellState, SideConclusion
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.reports import (
    ablation as ablations,
    bisection as bisections,
)
from mmrepro.reports.blocks import Page, Picture, spans
from mmrepro.reports.documents import render
from rendered import rows, section, table_rows


def titles(page: Page) -> list[str]:
    return [shown.title for shown in page.shown]


def links(page: Page, title: str) -> list[str]:
    cells = [cell for row in table_rows(section(page, title)) for cell in row.cells]
    return [span.href for cell in cells for span in spans(cell) if span.href]


# ----------------------------------------------------------------------------- ablation


def test_each_run_is_linked_below_the_page_alone() -> None:
    known = ablation()
    run_links = links(ablations.compose(known), "Every run")
    assert run_links[:2] == [
        "cells/baseline/run-1/report.html",
        "cells/mm-cache/run-1/report.html",
    ]
    for elsewhere in ("/etc", "cells/../../etc", "javascript:alert(1)"):
        known.cells[0].runs[0].incident_dir = elsewhere
        html = render(ablations.KIND, known, "html")
        assert 'href="cells/mm-cache/run-1/report.html"' in html
        assert f'href="{elsewhere}' not in html
    assert "](<cells" not in render(ablations.KIND, ablation(), "md"), (
        "it is pasted elsewhere"
    )
    run_links = links(bisections.compose(bisection()), "Runs next to a boundary")
    assert run_links[0] == "incidents/0.13.0/run-1/report.html"


def test_runs_that_differ_are_counted() -> None:
    several = [run(Outcome.REPRODUCED, Truth.MET, Truth.MET)] * 2
    several.append(run(Outcome.NOT_REPRODUCED, Truth.NOT_MET, Truth.UNKNOWN))
    assert ablations.cell_words(cell("x", CellState.FAILS, *several)) == (
        "2 × reproduced, 1 × not reproduced",
        "2 × there, 1 × gone",
        "2 × there, 1 × unknown",
    )
    assert ablations.cell_words(cell("x", CellState.FAILS, *several[:2]))[0] == (
        "reproduced (2 of 2)"
    )


def test_a_partial_ablation_warns() -> None:
    known = ablation()
    partial = known.model_copy(
        update={
            "state": "interrupted",
            "failure": "to resume, run: mmrepro ablate x",
            "conclusion": None,
            "cells": known.cells[:1],
            "cures": [],
        }
    )
    page = ablations.compose(partial)
    assert page.warning is not None
    assert "to resume, run: mmrepro ablate x" in page.warning.text
    assert (page.badge.label, page.badge.tone) == ("Interrupted", "unsure")
    assert rows(page, "Which setting is the cause")[1][2] == "not run"
    assert "Smallest workarounds" not in titles(page)


# ---------------------------------------------------------------------------- bisection


def test_a_bisection_is_drawn_with_a_mark_for_each_point() -> None:
    (picture,) = [
        block
        for block in section(bisections.compose(bisection()), "Points, old to new")
        if isinstance(block, Picture)
    ]
    assert picture.drawing.count("<circle") == 7
    marks = re.findall(r'class="inbar mid"[^>]*>([^<]*)<', picture.drawing)
    assert {*marks} >= {"✘", "✔"}, "colour alone is nothing to some readers"
    assert picture.drawing.count('class="b1"') == 2, "a band for each boundary"
    assert "0.9.0.1.post2</text>" in picture.drawing
    nothing = bisection().model_copy(update={"points": [point("1.0")]})
    assert "Points, old to new" not in titles(bisections.compose(nothing))


def test_sides_that_found_nothing_are_named() -> None:
    known = bisection()
    assert known.introduced is not None
    none = known.introduced.model_copy(
        update={
            "first_bad": None,
            "conclusion": SideConclusion.NO_BOUNDARY,
            "verified": False,
        }
    )
    known.introduced, known.fixed = none, None
    page = bisections.compose(known)
    assert page.badge.label == "Not found"
    assert page.subject.endswith("first bad: no boundary")
    commit = point("a" * 40, Outcome.REPRODUCED).model_copy(update={"commit": "a" * 40})
    assert commit.model_copy(update={"release": "0.9"}).label == ("aaaaaaaaaaaa (0.9)")
