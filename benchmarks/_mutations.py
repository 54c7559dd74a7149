"""What mutants.py mutates: places of the product, and cosmic-ray's operators for
them."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("harness/**/*.py", "probes/**/*.py", "scenarios/**/*.py", "reports/**/*.py")
AREAS = {
    "redaction": ("harness/base/text/*.py",),
    "box": ("harness/base/box/*.py",),
    "readers of reports": ("harness/search/repro/*.py",),
    "judging": (
        "harness/failure/signature/*.py",
        *(
            f"harness/scenario/{name}.py"
            for name in ("common", "vllm", "sglang", "lmdeploy", "minivllm")
        ),
        "harness/runs/judge.py",
        "harness/traffic/evidence/model.py",
        "harness/campaign/ablate/search.py",
        "harness/live/diagnose/*.py",
        "scenarios/**/*.py",
    ),
}
"""Parts in which a wrong line is dear: each is counted by itself."""
REST = "the rest"
NEXT = {
    "Eq": ["NotEq"],
    "NotEq": ["Eq"],
    "Is": ["IsNot"],
    "IsNot": ["Is"],
    "Lt": ["LtE", "GtE"],
    "LtE": ["Lt", "Gt"],
    "Gt": ["GtE", "LtE"],
    "GtE": ["Gt", "Lt"],
}
OTHER = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Div",
    "Div": "Mul",
    "FloorDiv": "Mul",
    "Mod": "Mul",
    "Pow": "Mul",
    "BitAnd": "BitOr",
    "BitOr": "BitAnd",
    "LShift": "RShift",
}
OPERATORS = (
    "AddNot",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
    "ExceptionReplacer",
    "NumberReplacer",
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, to in NEXT.items() for b in to),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in OTHER.items()),
)
"""Of cosmic-ray's: one wrong neighbour of each operator, not all of them."""


@dataclass(frozen=True, order=True)
class Mutant:
    """``occurrence``: cosmic-ray's count of the operator's places in the file.

    ``id`` is made of what is changed, not of where: it stays while other code moves."""

    file: str
    line: int
    operator: str
    occurrence: int
    function: str = ""
    id: str = ""


@cache
def operator_of(name: str) -> Any:
    from cosmic_ray.plugins import get_operator

    return get_operator(f"core/{name}")()


def files(patterns: Iterable[str]) -> list[str]:
    found = {
        path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()
    }
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def source(file: str) -> str:
    """As it was when it was first read: the tree may be worked on meanwhile."""
    return (ROOT / file).read_text()


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield those of one file that are tried (see :class:`Places`)."""
    from cosmic_ray.ast import ast_nodes, get_ast

    text = source(file)
    lines = text.splitlines()
    nodes, places = list(ast_nodes(get_ast(text))), Places(text, sends(file))
    for name in OPERATORS:
        operator, occurrence = operator_of(name), 0
        equal: Counter[str] = Counter()
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                marker = getattr(node.parent, "type", "") == "parameters"  # a bare `*`
                if not marker and not places.skipped(*start):
                    function = places.function(*start)
                    words = [file, function, name, lines[start[0] - 1].strip()]
                    change = "\n".join(words)
                    nth, equal[change] = equal[change], equal[change] + 1
                    digest = hashlib.sha256(f"{change}\n{nth}".encode()).hexdigest()
                    yield Mutant(
                        file, start[0], name, occurrence, function, digest[:12]
                    )
                occurrence += 1


def sends(file: str) -> bool:
    """Tell whether a file's coroutines are left alone: a scenario's send a trigger to
    an engine, and judge nothing."""
    return file.startswith("scenarios/")


def drawn(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Return them in an order that the seed gives. A mutant's place depends on itself
    alone, so that a change of code elsewhere draws no other sample."""

    def place(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.id}".encode()).hexdigest()

    return sorted(mutants, key=place)


@cache
def area_of(file: str) -> str:
    """Return the area that a file belongs to."""
    for area, patterns in AREAS.items():
        if file in files(patterns):
            return area
    return REST


def reached_by(mutant: Mutant) -> range | None:
    """Return the lines of which a test runs at least one where it runs the mutant: its
    statement's own; where it stands in a function's head, the function's body. None:
    what runs at import, of which the first import alone would tell."""
    if not mutant.function:
        return None
    around = [
        node
        for node in ast.walk(ast.parse(source(mutant.file)))
        if isinstance(node, ast.stmt) and mutant.line in _lines(node)
    ]
    inner = min(reversed(around), key=lambda node: len(_lines(node)))
    nested = set()
    for child in ast.walk(inner):
        if isinstance(child, ast.stmt) and child is not inner:
            nested.update(_lines(child))
    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
        return range(inner.body[0].lineno, _lines(inner).stop)
    first = last = mutant.line
    while first - 1 in _lines(inner) and first - 1 not in nested:
        first -= 1
    while last + 1 in _lines(inner) and last + 1 not in nested:
        last += 1
    return range(first, last + 1)


def bodies(file: str) -> set[int]:
    """Return the lines of a file that do not run at its import: functions' bodies."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source(file))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.update(range(node.body[0].lineno, _lines(node).stop))
    return lines


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


Range = tuple[tuple[int, int], tuple[int, int]]


class Places(ast.NodeVisitor):
    """What of a file is left alone: annotations, types, decorators, the words of a
    message, and coroutines where they only send. And where its functions are."""

    def __init__(self, text: str, coroutines_send: bool) -> None:
        self.coroutines_send = coroutines_send
        self.lines = text.splitlines()
        self.left_alone: list[Range] = []
        self.functions: list[tuple[Range, str]] = []
        self.names: list[str] = []
        module = ast.parse(text)
        for node in module.body:  # `A | B` of types
            if isinstance(node, ast.Assign) and isinstance(
                node.value, ast.BinOp | ast.Subscript
            ):
                self._leave(node.value)
        self.visit(module)

    def _leave(self, *nodes: ast.AST | None) -> None:
        self.left_alone += [_range(node) for node in nodes if node is not None]

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._leave(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._leave(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        if self.coroutines_send:
            self._leave(node, *node.decorator_list)
        else:
            self.visit_FunctionDef(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._leave(node.annotation)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        self._leave(node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._leave(node.returns, *node.decorator_list)
        self.functions.append((_range(node), ".".join([*self.names, node.name])))
        self._inside(node, [node.name, "<locals>"])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._leave(*node.decorator_list)
        self._inside(node, [node.name])

    def _inside(self, node: ast.AST, names: list[str]) -> None:
        self.names += names
        self.generic_visit(node)
        del self.names[-len(names) :]

    def skipped(self, line: int, column: int) -> bool:
        at = self._place(line, column)
        return any(start <= at < end for start, end in self.left_alone)

    def function(self, line: int, column: int) -> str:
        """``co_qualname`` of the innermost function there; "": it runs at import."""
        at = self._place(line, column)
        found = [
            (place, name) for place, name in self.functions if place[0] <= at < place[1]
        ]
        return max(found)[1] if found else ""

    def _place(self, line: int, column: int) -> tuple[int, int]:
        """As ``ast`` counts: in bytes."""
        return line, len(self.lines[line - 1][:column].encode())


def _range(node: Any) -> Range:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


@cache
def mutated(mutant: Mutant) -> str | None:
    """Return the file's text with it; None: it is no other program."""
    from cosmic_ray.mutating import mutate_code

    text = source(mutant.file)
    new = mutate_code(text, operator_of(mutant.operator), mutant.occurrence)
    try:
        same = new is None or ast.dump(ast.parse(new)) == ast.dump(ast.parse(text))
    except SyntaxError:
        return None
    return None if same else new


def difference(mutant: Mutant) -> str:
    """Return the mutant as a diff."""
    old, new = source(mutant.file), mutated(mutant) or ""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])
