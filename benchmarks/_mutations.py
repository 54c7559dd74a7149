"""What mutants.py mutates: places of code that judges, and cosmic-ray's operators for
them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JUDGES = (
    "harness/failure/signature/*.py",
    *(
        f"harness/scenario/{n}.py"
        for n in ("common", "vllm", "sglang", "lmdeploy", "minivllm")
    ),
    "harness/runs/judge.py",
    "harness/traffic/evidence/model.py",
    "harness/campaign/ablate/search.py",
    "harness/live/diagnose/*.py",
    "harness/base/text/redact.py",
    "scenarios/**/*.py",
)
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
    """``occurrence``: cosmic-ray's count of the operator's places in the file."""

    file: str
    line: int
    operator: str
    occurrence: int
    function: str = ""


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
    """Those of one file that judge (see :class:`Places`)."""
    from cosmic_ray.ast import ast_nodes, get_ast

    text = source(file)
    nodes, places = list(ast_nodes(get_ast(text))), Places(text)
    for name in OPERATORS:
        operator, occurrence = operator_of(name), 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                marker = getattr(node.parent, "type", "") == "parameters"  # a bare `*`
                if not marker and not places.skipped(*start):
                    yield Mutant(
                        file, start[0], name, occurrence, places.function(*start)
                    )
                occurrence += 1


Range = tuple[tuple[int, int], tuple[int, int]]


class Places(ast.NodeVisitor):
    """What of a file is left alone: annotations, types, decorators, the words of a
    message, and coroutines, which send and do not judge. And where its functions
    are."""

    def __init__(self, text: str) -> None:
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
        self._leave(node, *node.decorator_list)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._leave(node.annotation)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        self._leave(node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
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
    """The file's text with it; None: it is no other program."""
    from cosmic_ray.mutating import mutate_code

    text = source(mutant.file)
    new = mutate_code(text, operator_of(mutant.operator), mutant.occurrence)
    try:
        same = new is None or ast.dump(ast.parse(new)) == ast.dump(ast.parse(text))
    except SyntaxError:
        return None
    return None if same else new
