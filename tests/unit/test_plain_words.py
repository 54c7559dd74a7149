"""Words that no user reads any more: help, docs, README, and the screens of goldens."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
from mmrepro.base.options import declared
from mmrepro.cli.app import app, declared_commands
from mmrepro.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
LEFT_BEHIND = {
    r"\b(?:is|are|was|were) (?:told|said)\b": "prints, reports, shows, with a subject",
    r"\bstands? (?:in|for)\b": "is stuck in; replaces",
    r"(?<!-)\bfront\b(?!.end)": "API server, front end",
    r"\bgate\b": "warm-up check",
    r"\blooked at\b": "observed, inspected",
    r"\bof it\b": "the noun",
    r"\bthe one (?:that|which|of)\b": "the noun",
    r"\ba release that there is not\b": "an unknown release",
    r"\bat most so sure\b": "the highest certainty",
    r"\bcould not be told\b": "undecided",
    r"\bvouch": "untrusted",
    r"\bthe time was over\b": "the time budget ended",
    r"\bnobody's\b": "say whose",
    r"\bmended\b": "fixed",
}
"""Each with what to write instead."""
CODE = re.compile(r"(?ms)^```.*?^```|`[^`\n]+`")
OWN = {"first-scenario.md", "architecture.md", "catalogue.md"}
"""A tutorial that is executed word for word; for contributors; from scenarios."""


def pages() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if page.name not in OWN:
            yield page.name, CODE.sub("", page.read_text("utf-8"))


def helps() -> Iterator[tuple[str, str]]:
    for made in declared_commands():
        for option in declared(made):
            yield f"{made.COMMAND} {option.name}", option.option.help
    root = typer.main.get_command(app)
    for name in COMMANDS:
        yield from _help_of(name, root.get_command(None, name))  # type: ignore[attr-defined,arg-type]


def _help_of(name: str, command: object) -> Iterator[tuple[str, str]]:
    yield name, getattr(command, "help", None) or ""
    for inner, below in getattr(command, "commands", {}).items():
        yield from _help_of(f"{name} {inner}", below)


def screens() -> Iterator[tuple[str, str]]:
    for golden in (ROOT / "tests/unit/reports/golden").glob("screens-120.txt"):
        # What a scenario declares is the scenario's.
        text = golden.read_text("utf-8")
        for screen in text.split("\n$ "):
            command, _, rest = screen.partition("\n")
            if not command.removeprefix("$ ").startswith(
                ("mmrepro list", "mmrepro show", "mmrepro find", "mmrepro report")
            ):
                yield command, rest


EMITTING = ("cli", "live", "search", "tools", "traffic", "campaign", "history")
"""Rooms whose texts people read. What scenarios and the judge say is in recorded
evidence, and stays."""
STAYS = (
    "the scenario says of it: ",  # in recorded bisections
    "or a ✘ outside of it, ",  # in recorded dashboards
    "where its value stands in an earlier answer",
    "4 x 4 mean colours of it",  # a field of evidence
)


def literals() -> Iterator[tuple[str, str]]:
    """Texts of the code that are no docstring and no expression."""
    folders = [ROOT / "harness" / room for room in EMITTING]
    for folder in (*folders, ROOT / "reports"):
        for file in sorted(folder.rglob("*.py")):
            for text in _texts_of(ast.parse(file.read_text("utf-8"))):
                is_prose = (
                    text.count(" ") > 1 and "(?" not in text and "\\b" not in text
                )
                if is_prose and not any(known in text for known in STAYS):
                    yield file.name, text


def _texts_of(tree: ast.AST) -> Iterator[str]:
    passed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            # A docstring.
            passed.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            passed.update(map(id, node.values))
            yield "".join(getattr(part, "value", "…") for part in _plain(node))
    for node in ast.walk(tree):
        is_other = isinstance(node, ast.Constant) and id(node) not in passed
        if is_other and isinstance(node.value, str):
            yield node.value


def _plain(node: ast.JoinedStr) -> Iterator[object]:
    """The parts of a text that is put together, its values as nothing."""
    for part in node.values:
        yield part if isinstance(part, ast.Constant) else None


@cache
def emitted() -> tuple[tuple[str, str], ...]:
    """Every text that is held against the words."""
    return (*pages(), *helps(), *screens(), *literals())


@pytest.mark.parametrize("words", LEFT_BEHIND)
def test_no_text_has_words_that_are_left_behind(words: str) -> None:
    found = []
    for name, text in emitted():
        for match in re.finditer(words, text):
            found.append((name, text[max(0, match.start() - 30) : match.end() + 20]))
    assert not found, f"write: {LEFT_BEHIND[words]}"
