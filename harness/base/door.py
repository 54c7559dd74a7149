"""A room's door: the names that other rooms take, each imported when it is asked for.

A door lists them once, as imports that type checkers and import-linter read as they
are, and a program that takes one name loads that name's module alone::

    if TYPE_CHECKING:
        from mmrepro.history.ledger import Ledger as Ledger, read as read_history
    else:
        __getattr__ = lazily(__name__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path


def lazily(door: str) -> Callable[[str], object]:
    """The ``__getattr__`` of module ``door``, whose names are its imports ``as``
    something.

    A name is looked up anew each time: a test may replace it in its module."""
    homes: dict[str, tuple[str, str]] = {}

    def get(name: str) -> object:
        if not homes:
            homes.update(_homes(Path(str(sys.modules[door].__file__))))
        if name == "__all__":
            return [*homes]
        if name not in homes:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        home, original = homes[name]
        # As the statement does it, which also finds a module of a package.
        return getattr(__import__(home, fromlist=[original]), original)

    return get


def _homes(file: Path) -> dict[str, tuple[str, str]]:
    """By each name that a door gives: its module, and what it is called there."""
    homes = {}
    for statement in ast.parse(file.read_bytes()).body:
        if not isinstance(statement, ast.If):
            continue
        for node in statement.body:
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for alias in node.names:
                if alias.asname is not None:
                    homes[alias.asname] = (node.module, alias.name)
    return homes
