"""The site's pages of known failures, and its search: the script names what ``mmrepro
find`` names."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import re
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import quickjs
from mmrepro.engines.folders import title
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.tools.catalogue.find import entries, find

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs/assets/find.js"
WORKING = ROOT / "tests/unit/replay/request_logs"
SEED = 71
Named = list[tuple[str, str, bool]]


@cache
def pages() -> ModuleType:
    """The hook that makes the pages."""
    spec = importlib.util.spec_from_file_location("failures", ROOT / ".ci/failures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def browser() -> quickjs.Context:
    """The page's scripts, without a page."""
    context = quickjs.Context()
    context.eval(pages().data())
    context.eval(SCRIPT.read_text("utf-8"))
    return context


def by_script(text: str) -> Named:
    asked = f"findFailures({json.dumps(text)}, FIND_INDEX)"
    hits = f"{asked}.map((hit) => [hit.entry.kind, hit.entry.name, hit.sure])"
    return [tuple(hit) for hit in json.loads(browser().eval(f"JSON.stringify({hits})"))]


def by_find(text: str) -> Named:
    return [(h.entry.kind, h.entry.name, h.sure == "this") for h in find(text)]


# ---------------------------------------------------------------- pages


@pytest.mark.parametrize("name", scenario_names())
def test_a_known_failure_has_its_page(name: str) -> None:
    scenario = load_scenario(name)
    text = pages().page(name)
    assert f"# {scenario.title}" in text
    assert f"mmrepro run {name}" in text
    assert scenario.affected_where.replace(">", "&gt;").replace("<", "&lt;") in text
    for heading in ("## What you see", "## Releases", "## Reproduce it"):
        assert heading in text
    for reference in scenario.references:
        assert reference.url in text
    for words in ("UNTIL FIXED", "FIX"):
        assert f"| {words} | " in text


def test_the_index_has_a_card_for_each() -> None:
    index = pages().index()
    for name in scenario_names():
        assert f'<a href="{name}/">' in index
        engine = load_scenario(name).engine
        assert f'<option value="{engine}">{title(engine)}</option>' in index


def test_a_page_has_the_flag_the_fix_and_the_outcome_of_each_release() -> None:
    text = pages().page("ghost-key-eviction")
    assert "| UNTIL FIXED | add `--mm-processor-cache-gb 0`: " in text
    assert "| FIX | upgrade to vLLM 0.24.0 (vllm#43595) |" in text
    assert "AssertionError: Expected a cached item for mm_hash=" in text
    assert 'class="bad" title="0.23.0: reproduced"' in text
    assert 'class="good" title="0.24.0: did not fail"' in text
    assert 'class="in" title="0.22.1: in the declared range, not run"' in text


# ---------------------------------------------------------------- search


def test_each_expression_is_one_of_javascript() -> None:
    made = "FIND_INDEX.flatMap((entry) => entry.patterns.map((p) => p.regex))"
    count = browser().eval(f"{made}.filter((regex) => new RegExp(regex)).length")
    assert count == sum(len(entry.patterns) for entry in entries())


def test_an_expression_that_ignores_case_does_so_in_every_browser() -> None:
    regex = pages().javascript("a(?i:b c)(?P<n>d)")
    assert regex == "a(?:[bB] [cC])(?<n>d)"


def failing_lines() -> list[tuple[str, str]]:
    """Ten lines of recorded runs that one expression alone names, with whose run it
    was."""
    lines: set[tuple[str, str]] = set()
    for recording in (ROOT / "tests/evidence").glob("*.zip"):
        with zipfile.ZipFile(recording) as packed:
            incident = json.loads(packed.read("incident.json"))
        name = incident["scenario"]["name"]
        for line in incident["log_lines"]:
            lines.add((name, line["text"]))
    patterns = {entry.name: entry.patterns for entry in entries()}
    telling = []
    for name, text in sorted(lines):
        for pattern in patterns[name]:
            if pattern.sure and re.search(pattern.regex, text):
                telling.append((name, text))
                break
    return random.Random(SEED).sample(telling, 10)


def test_the_search_names_the_failure_of_ten_drawn_lines_as_find_does() -> None:
    for name, text in failing_lines():
        assert ("scenario", name, True) in by_script(text), text
        assert by_script(text) == by_find(text), text


def test_the_search_names_nothing_for_ten_lines_of_servers_that_work() -> None:
    lines: list[str] = []
    for log in sorted(WORKING.glob("*.gz")):
        lines += gzip.decompress(log.read_bytes()).decode("utf-8").splitlines()
    drawn = random.Random(SEED).sample([line for line in lines if line.strip()], 10)
    assert {line: by_script(line) for line in drawn if by_script(line)} == {}


@pytest.mark.parametrize(
    "text",
    [
        "Expected a cached item",
        "vllm#43941",
        "https://github.com/vllm-project/vllm/issues/43941#issuecomment-1",
        "43941",
        "the server hangs when an image is evicted",
        "",
        "<script>alert(1)</script>",
    ],
)
def test_short_texts_find_what_find_finds(text: str) -> None:
    assert by_script(text) == by_find(text)
