"""What every kind of report keeps: the end screen, its files, and no structure of foreign text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_samples import ablation, acceptance, bisection
from finding_samples import whole_fuzz, whole_replay
from hostile import HOSTILE, plant
from mmrepro.errors import BadIncident, UsageError
from mmrepro.reports import (
    ablation as ablations,
    acceptance as acceptances,
    bisection as bisections,
    fuzz as fuzzing,
    replay as replays,
)
from mmrepro.reports.documents import Kind, keep, kind_of, render
from mmrepro.reports.terminal import LINES, print_page
from rich.console import Console
from strict_html import read_html
from test_report_hostile import ACTIVE, Tags, markdown_tokens, shape

KINDS: dict[str, tuple[Kind[Any], Callable[[], Any]]] = {
    "replay": (replays.KIND, whole_replay),
    "fuzz": (fuzzing.KIND, whole_fuzz),
    "ablation": (ablations.KIND, ablation),
    "acceptance": (acceptances.KIND, acceptance),
    "bisection": (bisections.KIND, bisection),
}
of_kind = pytest.mark.parametrize("name", KINDS)
Golden = Callable[[str, str], None]


def printed(name: str, loaded: Any, *, full: bool = False, terminal: bool = True) -> str:
    out = io.StringIO()
    options: dict[str, Any] = {"force_terminal": terminal, "color_system": None, "width": 100}
    kind = KINDS[name][0]
    print_page(kind.compose(loaded), Console(file=out, **options), kind.files[1], full=full)
    return out.getvalue()


@of_kind
def test_its_page_is_as_it_was(name: str, golden: Golden) -> None:
    kind, sample = KINDS[name]
    golden(f"{name}.md", render(kind, sample(), "md"))
    golden(f"{name}.txt", printed(name, sample()))


@of_kind
def test_the_end_screen_ends_with_the_verdict(name: str) -> None:
    kind, sample = KINDS[name]
    page = kind.compose(sample())
    lines = printed(name, sample()).splitlines()
    assert sum(max(1, -(-len(line) // 100)) for line in lines) <= LINES
    assert lines[-1].startswith(page.badge.label.upper())
    assert f"page: {kind.files[1]}" in lines
    for _, command in page.commands:
        assert any(line.endswith(command) for line in lines)


@of_kind
def test_what_is_kept_is_read_again(name: str, tmp_path: Path) -> None:
    kind, sample = KINDS[name]
    paths = keep(kind, sample(), tmp_path)
    assert [path.name for path in paths] == [kind.file, *kind.files]
    assert kind_of(tmp_path) is kind
    assert kind.load(tmp_path) == sample()
    assert paths[0].read_text() == render(kind, sample(), "json")
    read_html(paths[2].read_text())
    with pytest.raises(UsageError, match="no JUnit report"):
        render(kind, sample(), "junit")


@of_kind
@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"schema_version": 9}', "\xff"])
def test_a_folder_without_one(name: str, tmp_path: Path, content: str | None) -> None:
    kind = KINDS[name][0]
    if content is not None:
        (tmp_path / kind.file).write_text(content, encoding="latin-1")
    with pytest.raises(BadIncident, match=re.escape(str(tmp_path))):
        kind.load(tmp_path)


@of_kind
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_no_structure(name: str, text: str) -> None:
    kind, sample = KINDS[name]
    planted, benign = plant(sample(), text), plant(sample(), "two words")
    html, markdown = render(kind, planted, "html"), render(kind, planted, "md")
    page = Tags(html)
    assert page.seen == Tags(render(kind, benign, "html")).seen
    assert not page.comments
    assert all(v.startswith(("#", "https://")) for key, v in page.values if key == "href")
    assert shape(markdown_tokens(markdown)) == shape(markdown_tokens(render(kind, benign, "md")))
    for shown in (html, markdown, printed(name, planted, full=True, terminal=False)):
        assert not ACTIVE.search(shown)
