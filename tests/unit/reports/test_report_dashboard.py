"""The dashboard: safe with hostile text, whole without a network, readable in both themes."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
from hostile import HOSTILE, plant
from hypothesis import HealthCheck, example, given, settings, strategies as st
from markdown_it import MarkdownIt
from mmrepro.history.ledger import History
from mmrepro.history.quarantine import Entry, Quarantine
from mmrepro.history.states import State
from mmrepro.incident.ledger import Cell, Planned
from mmrepro.reports.dashboard import (
    dashboard_style,
    linked,
    pace,
    render_dashboard,
    strip,
)
from mmrepro.reports.html import style_sheet
from mmrepro.reports.night import write_night
from mmrepro.reports.night_json import night_json
from mmrepro.reports.night_junit import render_night_junit
from mmrepro.reports.night_markdown import render_night_markdown
from mmrepro.reports.night_terminal import print_history, print_night
from mmrepro.reports.night_view import NightView, night_view
from mmrepro.reports.night_words import Standing
from night_samples import SUBJECTS, Subject, history_of, realistic
from rich.console import Console
from test_report_hostile import ACTIVE, Tags

NOW_OR_THEN = ("0.11.0", "0.23.0", "0.33.0")
KNOWN = Quarantine((Entry(scenario="shape-alias", releases="==0.5.17", reason="known drift",
                          issue="#41", owner="us", expires="2026-12-01"),))  # fmt: skip
CHOSEN = [s for s in SUBJECTS if s.name not in ("chunked-mm-prefill", "encoder-cache-overflow")]
SMALL = {
    "vllm": NOW_OR_THEN, "sglang": ("0.5.17",), "minivllm": ("0.1",), "lmdeploy": ("0.18.0",)
}  # fmt: skip
BASE = realistic(nights=2, subjects=CHOSEN, releases=SMALL)


def planted(text: str) -> tuple[History, NightView]:
    """The nights of ``BASE`` with ``text`` in every free field of every record."""
    records: list[object] = []
    quarantine = []
    for runs in BASE.nights:
        name = runs.night.id
        records.append(plant(runs.night, text).model_copy(update={"id": name}))
        cells: dict[str, Cell] = {}
        for number, (old, one) in enumerate(runs.planned.items()):
            excused = one.cell.engine == "sglang"
            cell = plant(one.cell, text)
            cell = cell.model_copy(update={
                "release": f"{text}{number}", "device": "cpu", "mitigations": (text,),
                "server_args": (text,), "options": (text,), "engine": f"{text}{excused}",
            })  # fmt: skip
            cells[old] = cell
            records.append(
                plant(one, text).model_copy(update={"night": name, "cell": cell})
            )  # fmt: skip
            if excused and not quarantine:
                quarantine.append(
                    Entry.model_construct(
                        scenario=cell.scenario, variant=None, engine=cell.engine, releases="",
                        reason=text, issue=text, owner=text, expires=KNOWN.entries[0].expires,
                    )
                )  # fmt: skip
        for run in runs.attempts:
            records.append(
                plant(run, text).model_copy(
                    update={
                        "night": name,
                        "cell": cells[run.cell].id,
                        "role": run.role,
                        "incident": run.incident and f"x{text}",
                    }
                )
            )
        for event in runs.events:
            cell_id = cells[event.cell].id if event.cell else ""
            records.append(plant(event, text).model_copy(update={"night": name, "cell": cell_id}))
    history = history_of(records)  # type: ignore[arg-type]
    return history, night_view(history, history.nights[-1], Quarantine(tuple(quarantine)))


def page_of(text: str) -> str:
    return render_dashboard(planted(text)[1], lambda run: "")


BENIGN = Tags(page_of("two words"))
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def columns(markdown: str) -> list[list[int]]:
    """How many cells each row of each table has."""
    tables: list[list[int]] = []
    for token in PARSER.parse(markdown):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append(0)
        elif token.type in ("td_open", "th_open"):
            tables[-1][-1] += 1
    return tables


def check_all_formats(text: str) -> None:
    history, night = planted(text)
    html = render_dashboard(night, lambda run: "")
    seen = Tags(html)
    assert not seen.comments
    assert not ACTIVE.search(html)
    assert {tag for tag, _ in seen.seen} == {tag for tag, _ in BENIGN.seen}
    assert not any(n.startswith("on") or n in ("src", "style") for n, _ in seen.values)
    assert all(v.startswith("#c-") for n, v in seen.values if n == "href")
    markdown = render_night_markdown(night)
    assert not ACTIVE.search(markdown)
    for table in columns(markdown):
        assert len(set(table)) == 1
    assert len(columns(markdown)) == len(columns(BENIGN_MARKDOWN))
    junit = render_night_junit(night)
    assert not ACTIVE.search(junit)
    cases = list(ET.fromstring(junit).iter("testcase"))
    assert len(cases) == len({c.attrib["name"] for c in cases}) == len(night.squares)
    night_json(night).encode()
    console = Console(file=io.StringIO(), width=100)
    print_night(night, console)
    print_history(history, console)
    assert not ACTIVE.search(console.file.getvalue())  # type: ignore[attr-defined]


BENIGN_MARKDOWN = render_night_markdown(planted("two words")[1])


def test_the_planted_night_has_something_of_everything() -> None:
    _, night = planted("two words")
    assert set(night.standings) == {s for s in Standing if s is not Standing.UNJUDGED}
    assert night.events


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_no_structure(text: str) -> None:
    check_all_formats(text)
    html = Tags(page_of(text))
    assert html.seen == BENIGN.seen


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(st.characters(exclude_characters="/"), min_size=1, max_size=40))
@example("..")
@example("|||")
@example("\ud800")
def test_any_text_changes_no_structure(text: str) -> None:
    check_all_formats(text)


def test_hostile_markdown_becomes_no_html() -> None:
    text = "<b>x</b> [a](javascript:b) ![i](http://x/y) @you"
    tokens = PARSER.parse(render_night_markdown(planted(text)[1]))
    inline = [child for t in tokens for child in t.children or []]
    assert not any(c.type in ("link_open", "image") for c in inline)
    assert not any("<b>" in c.content for c in inline if c.type == "html_inline")


# ------------------------------------------------------------------ a page by itself


class Page(HTMLParser):
    """Ids, addresses, and whether what is opened is closed in order."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.tags: list[str] = []
        self.titles: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.hrefs += [values["href"] or ""] if "href" in values else []
        self.titles += [values["title"] or ""] if "title" in values else []
        if tag not in self.VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, self.getpos()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History]:
    """A folder with a night's files and the reports of all its runs but the first cell's."""
    folder = tmp_path_factory.mktemp("M")
    history = realistic()
    first = next(iter(history.nights[-1].planned))
    for run in history.nights[-1].attempts:
        if run.incident and run.cell != first:
            (folder / run.incident).mkdir(parents=True)
            (folder / run.incident / "report.html").touch()
    write_night(history, history.nights[-1], folder, KNOWN)
    return folder, history


def test_it_needs_nothing_else_and_runs_nothing(written: tuple[Path, History]) -> None:
    html = (written[0] / "dashboard.html").read_text()
    page = Page(html)
    assert not {"script", "iframe", "img", "link", "object", "form"} & set(page.tags)
    assert "http" not in re.sub(r'http-equiv|content="[^"]*"', "", html)
    assert "url(" not in html
    assert " style=" not in html
    [policy] = re.findall(r"default-src 'none'; style-src 'sha256-([^']+)'", html)
    import base64
    import hashlib

    [style] = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() == policy


def test_every_link_leads_somewhere(written: tuple[Path, History]) -> None:
    folder, history = written
    page = Page((folder / "dashboard.html").read_text())
    assert len(page.ids) == len(set(page.ids))
    for href in page.hrefs:
        if href.startswith("#"):
            assert href[1:] in page.ids
        else:
            assert (folder / href).is_file()
            assert not href.startswith(("/", "."))
    night = history.nights[-1]
    linked_cells = {
        run.cell for run in night.attempts if f"{run.incident}/report.html" in page.hrefs
    }
    had = {run.cell for run in night.attempts if run.incident}
    assert linked_cells == had - {next(iter(night.planned))}


def test_every_cell_is_a_square_with_its_state(written: tuple[Path, History]) -> None:
    folder, history = written
    html = (folder / "dashboard.html").read_text()
    page = Page(html)
    night = night_view(history, history.nights[-1], KNOWN)
    for square in night.squares:
        assert f"c-{square.cell.id}" in page.ids
        assert square.title in page.titles
    loud = re.findall(r'id="c-[^"]*" class="([^"]*)"', html)
    assert sum("loud" in names for names in loud) == 4  # three surprises, one flaky
    assert sum("hatched" in names for names in loud) == 1
    assert html.index("What changed") < html.index("Not as expected (3)") < html.index("<table class=\"grid")  # noqa: E501  # fmt: skip


def test_without_the_incidents_no_link_is_broken(tmp_path: Path) -> None:
    history = realistic(nights=1)
    write_night(history, history.nights[-1], tmp_path, Quarantine())
    page = Page((tmp_path / "dashboard.html").read_text())
    assert page.hrefs
    assert all(h.startswith("#") and h[1:] in page.ids for h in page.hrefs)


@pytest.mark.parametrize(("rows", "releases"), [(1, 1), (60, 3), (2, 60)])
def test_any_size_is_a_whole_page(rows: int, releases: int) -> None:
    subjects = [Subject(f"s-{n:02}", "vllm", ">=0.3", "It fails") for n in range(rows)]
    history = realistic(2, subjects, {"vllm": [f"0.{n}.0" for n in range(releases)]})
    night = night_view(history, history.nights[-1], Quarantine())
    html = render_dashboard(night, linked(Path("nowhere")))
    page = Page(html)
    assert sum(i.startswith("c-") for i in page.ids) == rows * releases
    assert ('class="grid small"' in html) == (releases > 24)


def test_a_trend_begins_with_the_second_night() -> None:
    one, many = (realistic(nights=n, subjects=CHOSEN, releases=SMALL) for n in (1, 5))
    single = render_dashboard(night_view(one, one.nights[-1], KNOWN), linked(Path("nowhere")))
    assert "a trend begins with the second" in single
    assert "<svg" not in single
    night = night_view(many, many.nights[-1], KNOWN)
    html = render_dashboard(night, linked(Path("nowhere")))
    assert html.count('class="bars"') == 1
    assert len(night.trend) == 5
    row = night.grids[-1].rows[0]
    assert [p.total for p in row.trend] == [2, 2, 2, 2, 3]  # 0.33.0 is new in the last one
    assert str(strip(row.trend)).count('class="dot"') == 1
    assert "path" in str(pace(row.trend))


# ------------------------------------------------------------------ colours

THEMES = ("light", "dark")


def colours(theme: str) -> dict[str, str]:
    style = style_sheet() + dashboard_style()
    dark = re.findall(
        r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", style, re.DOTALL
    )
    light = re.sub(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{.*?\}\s*\}", "", style,
                   flags=re.DOTALL)  # fmt: skip
    found = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", light))
    if theme == "dark":
        found |= dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", "".join(dark)))
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_as_the_standard_has_it() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("theme", "state"), list(product(THEMES, State)))
def test_a_state_can_be_read_in_both_themes(theme: str, state: State) -> None:
    known = colours(theme)
    assert contrast(known[state.value], known[f"{state.value}-soft"]) >= 4.5
    assert contrast(known["loud"], known[state.value]) >= 4.5
    assert contrast(known[state.value], known["range"]) >= 3  # a square's edge on the range


@pytest.mark.parametrize("theme", THEMES)
def test_what_is_written_on_the_page_can_be_read(theme: str) -> None:
    known = colours(theme)
    for name in ("fg", "soft", "good", "bad", "unsure", "link"):
        assert contrast(known[name], known["bg"]) >= 4.5
        assert contrast(known[name], known["panel"]) >= 4.5
    for name in ("good", "bad", "unsure"):
        assert contrast(known["bg"], known[name]) >= 4.5
    assert contrast(known["range-edge"], known["bg"]) >= 2.5


def test_no_state_is_told_by_its_colour_alone() -> None:
    from mmrepro.reports.night_words import MARKS, STATE_WORDS

    assert len(set(MARKS.values())) == len(set(STATE_WORDS.values())) == len(State)
    style = dashboard_style()
    for state in State:
        assert f".sq.{state.value} " in style


def test_planned_cells_are_shown_even_if_never_run() -> None:
    made = history_of([BASE.nights[0].night])
    made.take(
        Planned(night=BASE.nights[0].night.id, cell=next(iter(BASE.nights[0].cells.values())))
    )
    html = render_dashboard(night_view(made, made.nights[0], Quarantine()), linked(Path("nowhere")))
    assert "<strong>1</strong> did not run" in html
    assert "1 untested" in html
