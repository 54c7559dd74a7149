"""What a reader of the code has to carry: its syntax and its names, room by room.

    python benchmarks/weight.py                # the table, and the rooms beside weight.toml
    python benchmarks/weight.py --others       # also released wheels, from the package index
    python benchmarks/weight.py --record       # write today's weights to weight.toml

A room is a folder of the house. Its weight is the number of nodes of its syntax trees
and of its public names: functions, classes and constants of its modules. Docstrings and
comments weigh nothing, and tests are not counted. A room may grow by 5 % over what
weight.toml records; the exit code is 1 if one is heavier. Whoever needs more records it,
and says in the commit what it is for.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDED = Path(__file__).with_suffix(".toml")
PACKAGES = ("harness", "probes", "reports", "reproducers", "scenarios")
SLACK = 0.05
OTHERS = {
    "nox": ("nox",),
    "pytest": ("_pytest", "pytest"),
    "hypothesis": ("hypothesis",),
    "schemathesis": ("schemathesis",),
}
"""Released projects that are compared with: the packages of each one's wheel."""

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Weight:
    """What was counted in some files."""

    lines: int = 0
    nodes: int = 0
    comprehensions: int = 0
    comments: int = 0
    """Lines that hold a comment."""
    names: int = 0
    """Public names of modules."""
    classes: collections.Counter[str] = field(default_factory=collections.Counter)
    """How many classes have a name."""

    def add(self, other: Weight) -> None:
        self.lines += other.lines
        self.nodes += other.nodes
        self.comprehensions += other.comprehensions
        self.comments += other.comments
        self.names += other.names
        self.classes.update(other.classes)

    @property
    def shared_classes(self) -> int:
        """Classes whose name another class has too."""
        return sum(count for count in self.classes.values() if count > 1)


def weight_of(source: str) -> Weight:
    """Weigh one module. Raises SyntaxError: it is no Python."""
    tree = ast.parse(source)
    weight = Weight(lines=len(source.splitlines()), names=len(public_names(tree)))
    for node in ast.walk(tree):
        if is_docstring(node):
            continue
        weight.nodes += 1
        if isinstance(node, COMPREHENSIONS):
            weight.comprehensions += 1
        if isinstance(node, ast.ClassDef):
            weight.classes[node.name] += 1
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    weight.comments = len(commented)
    return weight


def is_docstring(node: ast.AST) -> bool:
    """Whether it is a statement that is a string alone (its constant is one node more)."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def public_names(tree: ast.Module) -> list[str]:
    """Functions, classes and constants of a module, without those that begin with _."""
    names: list[str] = []
    for statement in tree.body:
        if isinstance(statement, Definition):
            names.append(statement.name)
            continue
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def weigh_folder(folder: Path) -> Weight:
    total = Weight()
    for file in sorted(folder.rglob("*.py")):
        total.add(weight_of(file.read_text(encoding="utf-8")))
    return total


def rooms(root: Path) -> Iterator[tuple[str, Weight]]:
    """Each room of the house, by name; what lies beside them is the room "harness"."""
    beside = Weight()
    for entry in sorted((root / "harness").iterdir()):
        if entry.is_dir() and entry.name != "__pycache__":
            yield entry.name, weigh_folder(entry)
        elif entry.suffix == ".py":
            beside.add(weight_of(entry.read_text(encoding="utf-8")))
    yield "harness", beside
    for package in PACKAGES[1:]:
        yield package, weigh_folder(root / package)


def others(folder: Path) -> Iterator[tuple[str, Weight]]:
    """Released projects, unpacked into ``folder``. Raises CalledProcessError."""
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    subprocess.run([*install, *OTHERS], check=True)
    for project, packages in OTHERS.items():
        weight = Weight()
        for package in packages:
            weight.add(weigh_folder(folder / package))
        yield project, weight


def row(name: str, weight: Weight) -> str:
    """A row of the table: sums, and what is comparable between projects."""
    thousands = weight.lines / 1000
    cells = [
        name,
        f"{weight.lines:,}",
        f"{weight.nodes:,}",
        f"{weight.nodes / weight.lines:.1f}",
        f"{weight.comprehensions / thousands:.0f}",
        f"{100 * weight.comments / weight.lines:.1f} %",
        f"{weight.names:,}",
        f"{weight.names / thousands:.0f}",
        f"{weight.shared_classes} of {weight.classes.total()}",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| | lines | nodes | nodes a line | comprehensions / 1,000 | comments "
    "| public names | / 1,000 | classes of a shared name |\n|---|---|---|---|---|---|---|---|---|"
)


def heavier(now: dict[str, Weight], recorded: dict[str, dict[str, int]]) -> list[str]:
    """A sentence for each room that outgrew what was recorded of it, or is not there."""
    sentences = []
    for room, weight in now.items():
        if room not in recorded:
            sentences.append(f"{room} is not in {RECORDED.name}")
            continue
        for what, count in (("nodes", weight.nodes), ("names", weight.names)):
            bound = round(recorded[room][what] * (1 + SLACK))
            if count > bound:
                sentences.append(
                    f"{room} has {count:,} {what}, {bound:,} are its bound"
                )
    return sentences


def record(now: dict[str, Weight]) -> None:
    lines = ["# Written by `python benchmarks/weight.py --record`; read there.", ""]
    for room, weight in sorted(now.items()):
        lines.append(f"{room} = {{ nodes = {weight.nodes}, names = {weight.names} }}")
    RECORDED.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Weigh the code, room by room.")
    parser.add_argument("--others", action="store_true", help="also released wheels")
    parser.add_argument("--record", action="store_true", help="write weight.toml")
    asked = parser.parse_args(argv)
    now = dict(rooms(ROOT))
    whole = Weight()
    print(HEAD)
    for room, weight in now.items():
        whole.add(weight)
        print(row(room, weight))
    print(row("**mmrepro**", whole))
    if asked.others:
        with tempfile.TemporaryDirectory(prefix="mmrepro-weight-") as folder:
            for project, weight in others(Path(folder)):
                print(row(project, weight))
    if asked.record:
        record(now)
        return 0
    with RECORDED.open("rb") as file:
        too_heavy = heavier(now, tomllib.load(file))
    for sentence in too_heavy:
        print(f"{sentence}: python benchmarks/weight.py --record, and say why")
    return 1 if too_heavy else 0


if __name__ == "__main__":
    sys.exit(main())
