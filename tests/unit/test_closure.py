"""The import closure: what it follows, and that it reads what Python's own parser
would."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmrepro.base.machine.files import state
from mmrepro.runs.key import _imports, closure, folder_of

TYPES_ONLY = "TYPE_CHECKING"
OWN = (".", "mmrepro")
PARTS = ("", "probes", "reports", "scenarios")
FILES = [
    path
    for part in PARTS
    if (folder := folder_of(part))
    for path in sorted(folder.rglob("*.py"))
]


def parsed(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Imports as :mod:`ast` has them, without those for type checkers alone."""
    if (
        isinstance(tree, ast.If)
        and isinstance(tree.test, ast.Name)
        and tree.test.id == TYPES_ONLY
    ):
        children: list[ast.AST] = list(tree.orelse)
    else:
        children = list(ast.iter_child_nodes(tree))
    if isinstance(tree, ast.Import):
        yield from ((alias.name, ()) for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        yield (
            "." * tree.level + (tree.module or ""),
            tuple(alias.name for alias in tree.names),
        )
    for child in children:
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from parsed(child)


def test_a_door_leads_to_all_that_it_names() -> None:
    more = ["mmrepro.scenario.more"]
    assert {"mmrepro.traffic.case.sending", "mmrepro.engines.models.tiny"} <= closure(
        more
    ).keys()


DOOR = """
from typing import TYPE_CHECKING
from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from their_door.one import first as first_of_one
    from their_door.two import (
        second as second,
    )
else:
    __getattr__ = lazily(__name__)
"""


@pytest.mark.parametrize(
    ("statement", "homes"),
    [
        ("from their_door import first_of_one", {"one"}),
        ("from their_door import second", {"two"}),
        ("from their_door import one", {"one"}),
        ("from their_door.one import first", {"one"}),
        ("import their_door", {"one", "two"}),
        ("from their_door import *", {"one", "two"}),
        ("from their_outer import inner", {"one", "two"}),
        ("from their_outer.inner import second", {"two"}),
    ],
)
def test_a_name_taken_at_a_door_leads_to_its_module(
    statement: str, homes: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = DOOR.replace(
        "their_door.one import first as", "their_door import first_of_one as"
    )
    for name, text in {
        "their_door/__init__.py": DOOR,
        "their_door/one.py": "first = 1",
        "their_door/two.py": "second = 2",
        "their_outer/__init__.py": "",
        "their_outer/inner.py": outer,
        "start.py": statement,
    }.items():
        (path := tmp_path / name).parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("start", "their_door", "their_outer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module("start")
    reached = {name for name in closure(["start"]) if name.startswith("their_door.")}
    assert reached == {f"their_door.{name}" for name in homes}


def test_each_file_of_the_package_is_read_as_python_reads_it() -> None:
    assert len(FILES) > 200
    for path in FILES:
        read = Counter(
            one for one in _imports(path, state(path)) if one[0].startswith(OWN)
        )
        tree = ast.parse(path.read_bytes())
        expected = Counter(one for one in parsed(tree) if one[0].startswith(OWN))
        assert not expected - read, f"{path}: an import is missed"
        example = ast.get_docstring(tree) or ""
        assert all(
            f"from {module} import" in example for module, _ in read - expected
        ), path


ODD = {
    "import a.b as c, d": [("a.b", ()), ("d", ())],
    "from a import (  # all (two)\n    b as c,  # )\n    d,\n)": [("a", ("b", "d"))],
    "from a import b, \\\n    c": [("a", ("b", "c"))],
    "x = 1; import a": [("a", ())],
    "try: import a\nexcept ImportError: from b import c": [("a", ()), ("b", ("c",))],
    "def f():\n    from . import a": [(".", ("a",))],
    "from ..a import *": [("..a", ("*",))],
    "from a import b  # c, d": [("a", ("b",))],
    (
        "if TYPE_CHECKING:\n    from a import (\n        b,\n    )\n\n    import c\n"
        "import d"
    ): [("d", ())],
    "if typing.TYPE_CHECKING:\n    import a\nelse:\n    import b": [("b", ())],
    "def f():\n    if TYPE_CHECKING:\n        import a\n    import b": [("b", ())],
    "important = 1\nfromage = 2": [],
}


@pytest.mark.parametrize(("text", "expected"), ODD.items())
def test_an_odd_import(text: str, expected: list[object], tmp_path: Path) -> None:
    (file := tmp_path / "odd.py").write_text(text)
    assert list(_imports(file, state(file))) == expected


def test_a_package_of_somebody_else_is_followed_and_its_dependencies_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "their_pack/__init__.py": "",
        "their_pack/inner/__init__.py": "",
        "their_pack/inner/start.py": (
            "import json\nfrom . import beside\nfrom ..helpers import one"
        ),
        "their_pack/inner/beside.py": "def f():\n    import their_pack.late",
        "their_pack/helpers/__init__.py": "",
        "their_pack/helpers/one.py": "",
        "their_pack/late.py": "from their_pack.inner import start",
        "their_pack/unused.py": "",
    }.items():
        (path := tmp_path / name).parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("their_pack.inner.start")

    assert list(closure(["their_pack.inner.start"])) == [
        "their_pack",
        "their_pack.helpers",
        "their_pack.helpers.one",
        "their_pack.inner",
        "their_pack.inner.beside",
        "their_pack.inner.start",
        "their_pack.late",
    ]
    assert "their_pack.late" not in sys.modules, "nothing is imported to be read"


def test_what_is_stopped_at_is_left_out_with_what_it_alone_imports() -> None:
    whole = closure(["mmrepro.runs.runner"])
    less = closure(["mmrepro.runs.runner"], ["mmrepro.engines.environments.build"])
    assert {
        "mmrepro.engines.environments.build",
        "mmrepro.engines.environments.recipe",
    } <= whole.keys() - less.keys()
    assert less.keys() < whole.keys()
