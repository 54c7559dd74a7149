"""The documents hang together: links lead somewhere, commands exist, what is repeated
agrees."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
from markdown_it import MarkdownIt
from mmrepro.base.common_options import FEATURE_OPTIONS
from mmrepro.cli.app import app
from mmrepro.cli.commands import COMMANDS, FOLDED, GROUPS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "tests").glob("*/README.md"),
        *(ROOT / "reproducers").glob("*/README.md"),
    )
    if path.name not in ("report.md", "night.md")  # as a run wrote it
)
names = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT))
)

OURS = re.compile(
    r"(?:harness|probes|reports|scenarios|reproducers|tests|benchmarks"
    r"|docs)/[\w./-]*[\w/]"
)
PARTS = re.compile(r"\s*(?:&&|\|\||[|;&()\n])\s*")
PLACEHOLDER = re.compile(r"[A-Z]+…?|…")


@cache
def inline(page: Path) -> tuple[tuple[str, str], ...]:
    """("link", target) and ("code", text) of a page."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        if token.type == "fence" and token.info in ("sh", "", "text"):
            found.append((f"block {token.info}".strip(), token.content))
        for child in token.children or []:
            if child.type == "link_open":
                found.append(("link", str(child.attrs["href"])))
            elif child.type == "code_inline":
                found.append(("code", child.content))
    return tuple(found)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    headings = [
        after.content
        for token, after in pairwise(tokens)
        if token.type == "heading_open"
    ]
    return {
        re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings
    }


@names
def test_its_links_lead_somewhere(page: Path) -> None:
    dead = []
    for kind, target in inline(page):
        if kind != "link" or re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert not dead


@names
def test_the_paths_it_names_exist(page: Path) -> None:
    named = {
        text for kind, text in inline(page) if kind == "code" and OURS.fullmatch(text)
    }
    assert not [path for path in named if not (ROOT / path).exists()]


def test_every_page_is_in_the_index() -> None:
    links = (
        target.partition("#")[0] for kind, target in inline(INDEX) if kind == "link"
    )
    linked = {(INDEX.parent / target).resolve() for target in links}
    missing = [page for page in PAGES if page != INDEX and page not in linked]
    assert [str(p.relative_to(ROOT)) for p in missing] == ["CHANGELOG.md"]


def test_the_readme_leads_to_the_index() -> None:
    assert ("link", "docs/index.md") in inline(ROOT / "README.md")


def commands(page: Path) -> Iterator[list[str]]:
    """The words after each ``mmrepro`` that stands where a command does."""
    for kind, text in inline(page):
        if kind == "code" or kind.startswith("block"):
            joined = text.replace("\\\n", " ").replace("\\|", "|")
            for part in PARTS.split(joined):
                words = part.removeprefix("uv run ").removeprefix("$ ").split()
                logged = any(word.endswith(":") for word in words)
                if words[:1] == ["mmrepro"] and kind != "block text" and not logged:
                    yield words[1:]


GONE = {*FOLDED, "schema"}
"""``schema`` had other options once."""
RECORDS = ("CHANGELOG.md", "summary.md")
"""They say what was typed once."""


@cache
def whole() -> Any:
    """The root command with every command below it."""
    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        assert root.get_command(None, name)
    return root


@names
def test_the_commands_it_names_exist(page: Path) -> None:
    root = whole()
    unknown = []
    for words in commands(page):
        command = root
        for word in words:
            if word.startswith("-") or PLACEHOLDER.fullmatch(word):
                break
            below = getattr(command, "commands", None)
            if below is None:
                break
            if command is root and page.name in RECORDS and word in GONE:
                break  # what went is named there
            if word not in below:
                unknown.append(" ".join(words))
                break
            command = below[word]
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {
            "--help"
        }
        options = {
            word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)
        }
        if command is not root and not getattr(command, "commands", None):
            options -= known | FEATURE_OPTIONS.keys()
            unknown += [f"{command.name} {name}" for name in sorted(options)]
    assert not unknown


def test_every_command_has_a_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(
        COMMANDS
    )


README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("a server hangs", "mmrepro diagnose http://127.0.0.1:8000 "),
        ("a traceback in a log", "mmrepro logs server.log "),
        ("a report with a curl line", "mmrepro repro --server "),
        ("before an upgrade", "mmrepro upgrade "),
    ],
)
def test_the_readme_answers_on_its_first_two_screens(
    question: str, answer: str
) -> None:
    """Screens of 35 rows and 100 columns."""
    assert answer in README, question
    # As it is rendered.
    before = re.sub(r"\]\([^)\n]*\)", "]", README.partition(answer)[0])
    rows = sum(1 + len(line) // 100 for line in before.splitlines())
    assert rows <= 2 * 35


NOT_COUNTED = (
    *("architecture", "releasing", "index"),
    *("catalogue", "commands", "conditions", "exit-codes"),
)
"""Pages for contributors, and those that are made by a command or only list the
others."""


def test_the_pages_for_users_do_not_grow() -> None:
    """Words outside of code blocks. Issue 49 asks for 25,000; the number goes down."""
    pages = [page for page in DOCS.glob("*.md") if page.stem not in NOT_COUNTED]
    text = "".join(re.sub(r"(?ms)^```.*?^```", "", page.read_text()) for page in pages)
    limit = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["house"][
        "words"
    ]["docs"]
    assert len(text.split()) <= limit


def test_the_readme_is_short() -> None:
    assert len(README) <= 6000


def test_the_layers_are_those_that_are_checked() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]
    layers = next(c["layers"] for c in checked["contracts"] if c["type"] == "layers")
    text = (DOCS / "architecture.md").read_text()
    shown = text.partition("<!-- layers -->\n```text\n")[2].partition("\n```")[0]
    assert shown.splitlines() == layers


@pytest.mark.parametrize(
    "script", ["benchmarks/house.py", "benchmarks/end_screen.py", ".ci/site.py"]
)
def test_what_a_script_draws_is_up_to_date(script: str) -> None:
    command = [sys.executable, ROOT / script, "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
