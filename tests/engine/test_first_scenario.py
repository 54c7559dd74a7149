"""docs/first-scenario.md, followed to the letter in an empty folder."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/first-scenario.md"
PACKED = ROOT / "tests/pack/odd_image.py"
FILE = "odd_image.py"
STEPS = 8
SAYS_CODE, DELETE = re.compile(r"^Exit code (\d+)"), re.compile(r"^Delete `(\w+)`")


@dataclass(frozen=True)
class Part:
    """A block of the page (``kind``: its language), a paragraph (``prose``) or a
    heading."""

    kind: str
    text: str
    line: int


def parts(page: Path) -> Iterator[Part]:
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    opened = "prose"
    for token in tokens:
        if token.type == "heading_open":
            opened = token.tag
        elif token.type == "inline":
            assert token.map is not None
            yield Part(opened, token.content, token.map[0] + 1)
            opened = "prose"
        elif token.type == "fence":
            assert token.map is not None
            yield Part(token.info, token.content, token.map[0] + 1)


# ------------------------------------------------------------------ what a reader does


def names(node: ast.stmt) -> set[str]:
    """What a statement defines; a docstring defines "docstring"."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return {"docstring"}
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            return {
                n.id
                for t in node.targets
                for n in ast.walk(t)
                if isinstance(n, ast.Name)
            }
    return set()


def first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def body(text: str, cls: str) -> list[ast.stmt]:
    """Of the class in ``text``, or of the module."""
    tree = ast.parse(text)
    if not cls:
        return tree.body
    return next(
        (n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls), []
    )


def cut(lines: list[str], node: ast.stmt) -> list[str]:
    """Take the statement out of ``lines``, with what stands behind it on its last
    line."""
    start = first_line(node) - 1
    taken = lines[start : node.end_lineno]
    del lines[start : node.end_lineno]
    return taken


def without(text: str, cls: str, name: str) -> str:
    lines = text.splitlines()
    node = next(n for n in body(text, cls) if name in names(n))
    cut(lines, node)
    return "\n".join(lines) + "\n"


def written(text: str, block: str) -> str:
    """``text`` with each definition of ``block`` in the place of its namesake, or
    added."""
    for node in ast.parse(block).body:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                text = put(text, block.splitlines(), member, node.name)
        else:
            text = put(text, block.splitlines(), node, "")
    return text


def put(text: str, block: list[str], node: ast.stmt, cls: str) -> str:
    new = block[first_line(node) - 1 : node.end_lineno]
    lines = text.splitlines()
    there = body(text, cls)
    old = next((n for n in there if names(n) & names(node)), None)
    if old is not None:
        where = first_line(old) - 1
        cut(lines, old)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        where = max(n.end_lineno or 0 for n in there if isinstance(n, ast.ImportFrom))
    elif cls:
        where = there[-1].end_lineno or 0
        new = ["", *new]
    else:  # beside the class: before it
        where = first_line(next(n for n in there if isinstance(n, ast.ClassDef))) - 1
        new = [*new, "", ""]
    lines[where:where] = new
    return "\n".join(lines) + "\n"


def flat(text: str) -> str:
    return " ".join(text.split())


def assert_shown(shown: str, printed: str, line: int) -> None:
    """Each line of ``shown`` stands in ``printed``, in this order; "…" stands for
    anything."""
    rest = flat(printed)
    for wanted in shown.splitlines():
        for piece in filter(None, map(flat, wanted.split("…"))):
            _, found, rest = rest.partition(piece)
            assert found, f"{PAGE.name}, line {line}: not printed: {piece}\n{printed}"


def shell(command: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
            "COLUMNS": "160",
            "MMREPRO_START_MODE": "auto",  # the reader's; "warm" hides the command line
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


# ------------------------------------------------------------------ the page


def test_every_step_does_what_the_page_says(tmp_path: Path) -> None:
    file = tmp_path / FILE
    code, printed = 0, ""
    read = list(parts(PAGE))
    begin = next(i for i, part in enumerate(read) if part.kind == "h2")
    done: dict[str, int] = {}
    for part in read[begin:]:
        done[part.kind] = done.get(part.kind, 0) + 1
        match part.kind:
            case "sh":
                code, printed = shell(part.text, tmp_path)
                assert "Traceback" not in printed, printed
            case "text":
                assert_shown(part.text, printed, part.line)
            case "python":
                file.write_text(written(file.read_text(), part.text))
            case "prose":
                if said := SAYS_CODE.match(part.text):
                    assert code == int(said[1]), f"line {part.line}: {code}\n{printed}"
                if gone := DELETE.match(part.text):
                    file.write_text(without(file.read_text(), "OddImage", gone[1]))
    assert done["h2"] == STEPS + 1
    assert min(done["sh"], done["text"], done["python"]) >= 6
    assert defined(file.read_text()) == defined(PACKED.read_text())


def defined(text: str) -> dict[str, str]:
    """Every definition of a scenario's file by its name; imports apart, one by one."""
    found: dict[str, str] = {}
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {
                f"import {alias.name}": getattr(node, "module", "")
                for alias in node.names
            }
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{min(names(n))}": ast.unparse(n) for n in node.body}
        else:
            found[min(names(node))] = ast.unparse(node)
    return found
