"""The dashboard: safe with hostile text, whole without a network, readable in both
themes."""

import re
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import pytest
from grids import examples, grid
from hostile import ACTIVE, HOSTILE, SOME, plant
from hypothesis import HealthCheck, example, given, strategies as st
from markdown_it import MarkdownIt
from mmrepro.failure.documents.ledger import Cell, Planned
from mmrepro.history.concerns import Quarantine, QuarantineEntry
from mmrepro.history.ledger import History
from mmrepro.history.nightly import NightView
from mmrepro.history.squares import LOOKS, SquareStanding
from mmrepro.history.states import JobState
from mmrepro.reports import html as pages
from mmrepro.reports.grid import chart, pace
from mmrepro.reports.nightly import history_blocks, write_night
from night_samples import (
    SUBJECTS,
    Subject,
    as_json,
    history_of,
    html,
    junit,
    markdown,
    on_terminal,
    realistic,
    shown,
)
from pydantic import BaseModel
from strict_html import Html

NOW_OR_THEN = ("0.11.0", "0.23.0", "0.33.0")
KNOWN = Quarantine(
    (
        QuarantineEntry(
            scenario="shape-alias",
            releases="==0.5.17",
            reason="known drift",
            issue="#41",
            owner="us",
            expires="2026-12-01",
        ),
    )
)
CHOSEN = [
    s
    for s in SUBJECTS
    if s.name not in ("chunked-mm-prefill", "encoder-cache-overflow")
]
SMALL = {
    "vllm": NOW_OR_THEN,
    "sglang": ("0.5.17",),
    "minivllm": ("0.1",),
    "lmdeploy": ("0.18.0",),
}


@cache
def base() -> History:
    """Two nights, which no test changes."""
    return realistic(nights=2, subjects=CHOSEN, releases=SMALL)


def planted(text: str) -> tuple[History, NightView]:
    """The nights of ``base`` with ``text`` in every free field of every record."""

    def put(record: BaseModel, **kept: object) -> BaseModel:
        return plant(record, text).model_copy(update=kept)  # type: ignore[no-any-return]

    records: list[object] = []
    excuse: list[QuarantineEntry] = []
    for runs in base().nights:
        name = runs.night.id
        records.append(put(runs.night, id=name))
        cells: dict[str, Cell] = {}
        for number, (old, one) in enumerate(runs.planned.items()):
            known = one.cell.engine == "sglang"
            cells[old] = put(  # type: ignore[assignment]
                one.cell,
                release=f"{text}{number}",
                device="cpu",
                mitigations=(text,),
                server_args=(text,),
                options=(text,),
                engine=f"{text}{known}",
            )
            records.append(put(one, night=name, cell=cells[old]))
            if known and not excuse:
                where = {
                    "scenario": cells[old].scenario,
                    "variant": None,
                    "releases": "",
                }
                excuse.append(put(KNOWN.entries[0], **where, engine=cells[old].engine))  # type: ignore[arg-type]
        for run in runs.attempts:
            place = {
                "cell": cells[run.cell].id,
                "incident": run.incident and f"x{text}",
            }
            records.append(put(run, night=name, role=run.role, **place))
        for event in runs.events:
            cell = event.cell and cells[event.cell].id
            records.append(put(event, night=name, cell=cell))
    history = history_of(records)  # type: ignore[arg-type]
    return history, shown(history, Quarantine(tuple(excuse)))


def page_of(text: str) -> str:
    return html(planted(text)[1])


BENIGN = Html(page_of("two words"))
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def columns(text: str) -> list[list[int]]:
    """How many cells each row of each table has."""
    tables: list[list[int]] = []
    for token in PARSER.parse(text):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append(0)
        elif token.type in ("td_open", "th_open"):
            tables[-1][-1] += 1
    return tables


def check_all_formats(text: str) -> None:
    history, night = planted(text)
    page = html(night)
    seen = Html(page)
    assert not ACTIVE.search(page)
    assert {tag for tag, _ in seen.shape} == {tag for tag, _ in BENIGN.shape}
    assert all(value.startswith("#") for value in seen.all("href"))
    written = markdown(night)
    assert not ACTIVE.search(written)
    for table in columns(written):
        assert len(set(table)) == 1
    assert len(columns(written)) == len(columns(BENIGN_MARKDOWN))
    red = junit(night)
    assert not ACTIVE.search(red)
    cases = list(ET.fromstring(red).iter("testcase"))
    assert len(cases) == len({c.attrib["name"] for c in cases}) == len(night.squares)
    as_json(night).encode()
    assert not ACTIVE.search(
        on_terminal(night, 100) + on_terminal(history_blocks(history), 100)
    )


BENIGN_MARKDOWN = markdown(planted("two words")[1])


def test_the_planted_night_has_something_of_everything() -> None:
    _, night = planted("two words")
    assert set(night.standings) == {
        s for s in SquareStanding if s is not SquareStanding.UNJUDGED
    }
    assert night.events


@pytest.mark.parametrize("text", grid(HOSTILE, always=SOME))
def test_hostile_text_changes_no_structure(text: str) -> None:
    check_all_formats(text)
    assert Html(page_of(text)).shape == BENIGN.shape


@examples(3, suppress_health_check=list(HealthCheck))
@given(text=st.text(st.characters(exclude_characters="/"), min_size=1, max_size=40))
@example("..")
@example("|||")
@example("\ud800")
def test_any_text_changes_no_structure(text: str) -> None:
    check_all_formats(text)


def test_hostile_markdown_becomes_no_html() -> None:
    text = "<b>x</b> [a](javascript:b) ![i](http://x/y) @you"
    tokens = PARSER.parse(markdown(planted(text)[1]))
    inline = [child for t in tokens for child in t.children or []]
    assert not any(c.type in ("link_open", "image") for c in inline)
    assert not any("<b>" in c.content for c in inline if c.type == "html_inline")


# ------------------------------------------------------------------ a page by itself


def squares(page: Html) -> dict[str, dict[str, str]]:
    return {n["id"]: n for _, n in page.nodes if "data-status" in n and "id" in n}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History]:
    """A folder with a night's files and the reports of all its runs but the first
    cell's."""
    folder = tmp_path_factory.mktemp("M")
    history = realistic()
    first = next(iter(history.nights[-1].planned))
    for run in history.nights[-1].attempts:
        if run.incident and run.cell != first:
            (folder / run.incident).mkdir(parents=True)
            (folder / run.incident / "report.html").touch()
    write_night(history, history.nights[-1], folder, KNOWN)
    return folder, history


def test_it_needs_nothing_else(written: tuple[Path, History]) -> None:
    text = (written[0] / "dashboard.html").read_text()
    page = Html(text)
    tags = [tag for tag, _ in page.nodes]
    assert tags.count("script") == 1
    body = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
    assert "http" not in re.sub(r'http-equiv|content="[^"]*"', "", body)


def test_every_link_leads_somewhere(written: tuple[Path, History]) -> None:
    folder, history = written
    page = Html((folder / "dashboard.html").read_text())
    ids, hrefs = page.all("id"), page.all("href")
    assert len(ids) == len(set(ids))
    for href in hrefs:
        if href.startswith("#"):
            assert href[1:] in ids
        else:
            assert (folder / href).is_file()
            assert not href.startswith(("/", "."))
    night = history.nights[-1]
    linked_cells = {
        run.cell for run in night.attempts if f"{run.incident}/report.html" in hrefs
    }
    had = {run.cell for run in night.attempts if run.incident}
    assert linked_cells == had - {next(iter(night.planned))}


def test_every_job_is_a_square_with_its_state(written: tuple[Path, History]) -> None:
    folder, history = written
    page = Html((folder / "dashboard.html").read_text())
    night = shown(history, KNOWN)
    for square in night.squares:
        drawn = squares(page)[square.anchor]
        assert drawn["title"] == square.title
        assert (drawn["data-status"], drawn["data-group"]) == (
            LOOKS[square.state].word,
            square.cell.engine,
        )
    assert len(squares(page)) == len(night.squares)
    classes = [str(drawn["class"]).split() for drawn in squares(page).values()]
    assert sum("loud" in names for names in classes) == 4  # three surprises, one flaky
    assert sum("hatched" in names for names in classes) == 1


def test_without_the_incidents_no_link_is_broken(tmp_path: Path) -> None:
    history = realistic(nights=1)
    write_night(history, history.nights[-1], tmp_path, Quarantine())
    page = Html((tmp_path / "dashboard.html").read_text())
    assert {href[:1] for href in page.all("href")} == {"#"}


@pytest.mark.parametrize(("rows", "releases"), [(1, 1), (60, 3), (2, 60)])
def test_any_size_is_a_whole_page(rows: int, releases: int) -> None:
    subjects = [Subject(f"s-{n:02}", "vllm", ">=0.3", "It fails") for n in range(rows)]
    history = realistic(2, subjects, {"vllm": [f"0.{n}.0" for n in range(releases)]})
    text = html(shown(history))
    assert len(squares(Html(text))) == rows * releases
    assert ('class="grid small"' in text) == (releases > 24)


def test_a_trend_begins_with_the_second_night() -> None:
    one, many = (realistic(nights=n, subjects=CHOSEN, releases=SMALL) for n in (1, 5))
    assert "<svg" not in html(shown(one, KNOWN))
    night = shown(many, KNOWN)
    assert html(night).count('class="bars"') == 1
    assert len(night.trend) == 5
    row = night.grids[-1].rows[0]
    # 0.33.0 is new in the last one.
    assert [p.total for p in row.trend] == [
        2,
        2,
        2,
        2,
        3,
    ]
    assert str(chart(row.trend, small=True)).count('class="dot"') == 1
    assert "path" in str(pace(row.trend))


# ------------------------------------------------------------------ colours

STYLE = pages._asset("style.css")


def colours(theme: str) -> dict[str, str]:
    """The variables of a theme; the dark one stands in the first media query."""
    light, _, rest = STYLE.partition("@media (prefers-color-scheme: dark) {")
    both = light + rest.partition("}")[0] * (theme == "dark")
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", both))


def contrast(one: str, other: str) -> float:
    """As WCAG has it: 21 of black on white."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_on_the_page_can_be_read(theme: str) -> None:
    known = colours(theme)
    for state in JobState:
        assert contrast(known[state.value], known[f"{state.value}-soft"]) >= 4.5
        assert contrast(known["loud"], known[state.value]) >= 4.5
        # A square's edge on the range.
        assert contrast(known[state.value], known["range"]) >= 3
    for name in ("fg", "soft", "good", "bad", "unsure", "link"):
        assert contrast(known[name], known["bg"]) >= 4.5
        assert contrast(known[name], known["panel"]) >= 4.5
    assert contrast(known["range-edge"], known["bg"]) >= 2.5


def test_no_state_is_shown_by_its_colour_alone() -> None:
    assert len({look.mark for look in LOOKS.values()}) == len(JobState) == len(LOOKS)
    assert all(f".sq.{state.value} " in STYLE for state in JobState)


def test_planned_jobs_are_shown_even_if_never_run() -> None:
    made = history_of([base().nights[0].night])
    made.take(
        Planned(
            night=base().nights[0].night.id,
            cell=next(iter(base().nights[0].cells.values())),
        )
    )
    view = shown(made)
    assert view.badge.label == "1 untested"
    assert [drawn["data-status"] for drawn in squares(Html(html(view))).values()] == [
        "did not run"
    ]
