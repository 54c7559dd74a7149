"""What every kind of report keeps: the end screen, its files, and no structure of
foreign text."""

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from campaign_samples import ablation, bisection
from finding_samples import whole_fuzz, whole_replay
from grids import grid
from hostile import ACTIVE, HOSTILE, markdown_tokens, plant, shape
from mmrepro.base.errors import BadIncident, UsageError
from mmrepro.reports import (
    ablation as ablations,
    bisection as bisections,
    fuzz as fuzzing,
    incident as runs,
    replay as replays,
)
from mmrepro.reports.documents import ReportKind, keep, kind_of, render
from mmrepro.reports.terminal import LINES
from mmrepro.reports.upgrade import _value
from rendered import printed, unwrapped
from sample import sample_incident
from strict_html import Html

KINDS: dict[str, tuple[ReportKind[Any], Callable[[], Any]]] = {
    "replay": (replays.KIND, whole_replay),
    "fuzz": (fuzzing.KIND, whole_fuzz),
    "ablation": (ablations.KIND, ablation),
    "bisection": (bisections.KIND, bisection),
    "incident": (runs.KIND, sample_incident),
}
of_kind = pytest.mark.parametrize("name", KINDS)
Golden = Callable[[str, str], None]


def screen(name: str, loaded: Any, **more: bool) -> str:
    kind = KINDS[name][0]
    return printed(kind.compose(loaded), place=kind.files[1], **more)


@of_kind
def test_its_page_is_as_it_was(name: str, golden: Golden) -> None:
    kind, sample = KINDS[name]
    golden(f"{name}.md", render(kind, sample(), "md"))
    golden(f"{name}.txt", screen(name, sample()))


@of_kind
def test_the_end_screen_ends_with_the_verdict(name: str) -> None:
    kind, sample = KINDS[name]
    page = kind.compose(sample())
    lines = screen(name, sample()).splitlines()
    assert sum(max(1, -(-len(line) // 100)) for line in lines) <= LINES
    lines = unwrapped(lines)
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
    Html(paths[2].read_text())
    if kind.junit is None:
        with pytest.raises(UsageError, match="no JUnit report"):
            render(kind, sample(), "junit")


@of_kind
def test_its_document_fits_its_schema(name: str) -> None:
    kind, sample = KINDS[name]
    schema = type(sample()).model_json_schema(mode="serialization")
    document = json.loads(render(kind, sample(), "json"))
    assert document["$id"].startswith("urn:mmrepro:")
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "created": "yesterday"}, schema)


@of_kind
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "holds no "),
        (b"", "Invalid JSON"),
        (b'{"schema_version": 1,', "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[1]", "must be an object"),
        (b'{"schema_version": 9, "mmrepro_version": "9"}', "schema version 9"),
        (b"{}", "does not follow the "),
        (b"[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_bad_file_is_one_plain_sentence(
    name: str, tmp_path: Path, content: bytes | None, says: str
) -> None:
    kind = KINDS[name][0]
    if content is not None:
        (tmp_path / kind.file).write_bytes(content)
    with pytest.raises(BadIncident, match=says) as caught:
        kind.load(tmp_path)
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert "Traceback" not in caught.value.message


@cache
def benign(name: str) -> tuple[Any, list[str]]:
    """The structure of a kind's page and of its Markdown, with two plain words in each
    field."""
    kind, sample = KINDS[name]
    planted = plant(sample(), "two words")
    markdown = markdown_tokens(render(kind, planted, "md"))
    return Html(render(kind, planted, "html")).shape, shape(markdown)


EACH = list(product(KINDS, HOSTILE))
DAILY = [(name, text) for n, name in enumerate(KINDS) for text in HOSTILE[n % 3 :: 3]]


@pytest.mark.parametrize(("name", "text"), grid(EACH, always=DAILY))
def test_hostile_text_changes_no_structure(name: str, text: str) -> None:
    """Each text in two kinds for each change: all kinds are drawn from the same
    blocks."""
    kind, sample = KINDS[name]
    planted = plant(sample(), text)
    html, markdown = render(kind, planted, "html"), render(kind, planted, "md")
    page, tokens = Html(html), markdown_tokens(markdown)
    assert (page.shape, shape(tokens)) == benign(name)
    assert all(value.startswith(("#", "https://")) for value in page.all("href"))
    inline = [child for token in tokens for child in token.children or []]
    assert not {child.type for child in inline} & {"link_open", "image"}
    raw = {child.content for child in inline if child.type == "html_inline"}
    assert raw <= {"<code>", "</code>", "<br>"}
    for shown in (html, markdown, screen(name, planted, full=True, terminal=False)):
        assert not ACTIVE.search(shown)


def test_what_is_linked_lies_beside_the_page(tmp_path: Path) -> None:
    """A published report has no dead link."""
    folder = tmp_path / "cells" / "mm-cache" / "run-1"
    folder.mkdir(parents=True)
    (folder / "report.html").touch()
    keep(ablations.KIND, ablation(), tmp_path)
    linked = Html((tmp_path / "ablation.html").read_text()).all("href")
    assert {href for href in linked if href[0] != "#"} == {
        "cells/mm-cache/run-1/report.html"
    }


def test_the_answer_stands_before_its_table() -> None:
    for kind, made in ((ablations.KIND, ablation()), (bisections.KIND, bisection())):
        card = render(kind, made, "html").partition('<div class="card">')[2]
        assert 0 < card.index("<strong>") < card.index("<table ")


@pytest.mark.parametrize(
    ("measured", "unit", "written"),
    [
        (None, "s", "–"),
        (0.0512, "s", "51.2 ms"),
        (3 << 30, "bytes", "3 GiB"),
        (12.3456, "tokens/s", "12.35 tokens/s"),
        ("on", "", "on"),
    ],
)
def test_a_measured_value_is_written_as_people_read_it(
    measured: object, unit: str, written: str
) -> None:
    assert _value(measured, unit) == written
