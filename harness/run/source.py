"""Quoting definitions of the installed engine, read from its environment by syntax tree."""

from __future__ import annotations

import ast
from pathlib import Path

from mmrepro.incident import SourceExcerpt
from mmrepro.scenario import SourceRef

MAX_LINES = 45
MAX_FILE_BYTES = 4 << 20


def read_definition(site_packages: Path, ref: SourceRef) -> SourceExcerpt | None:
    """The lines of ``ref`` as installed; None if the file or the definition is not there.

    Docstrings stay; a definition longer than 45 lines is cut around its highlighted lines.
    """
    path = site_packages / ref.file
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
        node = _find(ast.parse(text), ref.qualname.split("."))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the parser's own limits end in the last two
    if node is None or node.end_lineno is None:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    # As the parser counts: splitlines() would also split at form feeds and other separators.
    numbered = list(enumerate(text.split("\n")[first - 1 : node.end_lineno], first))
    marked = [n for n, line in numbered if any(h in line for h in ref.highlight)]
    if len(numbered) > MAX_LINES:
        start = max(0, (marked[0] if marked else first) - first - MAX_LINES // 2)
        numbered = numbered[start : start + MAX_LINES]
    return SourceExcerpt(
        file=ref.file,
        qualname=ref.qualname,
        first_line=numbered[0][0],
        lines=[line for _, line in numbered],
        highlight=[n for n in marked if numbered[0][0] <= n <= numbered[-1][0]],
        note=ref.note,
    )


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _find(tree: ast.AST, names: list[str]) -> Definition | None:
    """The last definition of that qualified name: overloads come before the real one."""
    last: Definition | None = None
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition) and node.name == names[0]:
            last = node if len(names) == 1 else _find(node, names[1:]) or last
        elif isinstance(node, ast.If | ast.Try):
            last = _find(node, names) or last
    return last
