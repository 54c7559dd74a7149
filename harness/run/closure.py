"""Import closure: the files that a module's code can reach, read without importing any of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from functools import lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

from mmrepro.machine.digest import FileState, state

PACKAGE = "mmrepro"

_GAP = r"(?:[ \t]|\\\n)+"
_IMPORT = re.compile(
    rf"(?:^|[;:])[ \t]*(?:from{_GAP}([.\w]+){_GAP}import\b{_GAP}?"
    rf"(\((?:[^)#]|\#[^\n]*\n)*\)|(?:[^\n;\\]|\\\n)+)|import{_GAP}((?:[^\n;\\]|\\\n)+))",
    re.MULTILINE,
)
"""Reads what :mod:`ast` would, many times as fast. A line of a docstring that looks like an import
counts as one: a file too many in a key does no harm, a file too few does."""
_TYPES_ONLY = re.compile(
    r"^([ \t]*)if (?:\w+\.)?TYPE_CHECKING:[^\n]*\n(?:(?:\1[ \t]+[^\n]*|[ \t]*)(?:\n|\Z))*",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")

Imported = tuple[str, tuple[str, ...]]
"""A module, with its leading dots if it is relative, and the names that are taken from it."""


def closure(starts: Collection[str], stops: Collection[str] = ()) -> dict[str, Path]:
    """Files by module, sorted: ``starts`` and all that they import, however far.

    Imports within functions count, those below ``if TYPE_CHECKING`` do not. Of what lies outside
    mmrepro, only modules of the same package as a start, or beside it, are followed.

    Args:
        starts: modules that are loaded.
        stops: modules that are left out, and are not followed.
    """
    finder = _Finder(starts)
    found: dict[str, Path] = {}
    met, waiting = set(stops), [*starts]
    while waiting:
        name = waiting.pop()
        if name in met:
            continue
        met.add(name)
        if (path := finder.file(name)) is None:
            continue
        found[name] = path
        if parent := name.rpartition(".")[0]:
            waiting.append(parent)
        inside = path.name == "__init__.py"
        for module, names in _imports(path, state(path)):
            if module.startswith("."):
                try:
                    module = resolve_name(module, name if inside else name.rpartition(".")[0])
                except ImportError:  # beyond the package: a line of a docstring
                    continue
            waiting.append(module)
            source = finder.file(module)
            if names and source is not None and source.name == "__init__.py":
                waiting += [f"{module}.{one}" for one in names]
    return dict(sorted(found.items()))


class _Finder:
    """Finds the file of a module of mmrepro, of a start's package, or beside a start."""

    def __init__(self, starts: Iterable[str]) -> None:
        self._files: dict[str, Path | None] = {}
        self._packages: dict[str, Path] = {}
        self._homes: list[Path] = []
        for name in starts:
            top = name.partition(".")[0]
            if top == PACKAGE or (file := _loaded(name)) is None:
                continue
            self._files[name] = file
            if (whole := _loaded(top)) is not None and whole.name == "__init__.py":
                self._packages[top] = whole.parent
            else:
                self._homes.append(file.parent)

    def file(self, name: str) -> Path | None:
        if name not in self._files:
            self._files[name] = self._found(name)
        return self._files[name]

    def _found(self, name: str) -> Path | None:
        top, *below = name.split(".")
        if top == PACKAGE:
            folder = folder_of(below[0] if below else "")
            return _file_in(folder, below[1:]) if folder is not None else None
        if top in self._packages:
            return _file_in(self._packages[top], below)
        return next((f for home in self._homes if (f := _file_in(home / top, below))), None)


def folder_of(part: str) -> Path | None:
    """The folder of a part of mmrepro, which a checkout has elsewhere than an installation.

    A part that is one file is named without its suffix; "": mmrepro itself.
    """
    spec = find_spec(f"{PACKAGE}.{part}" if part else PACKAGE)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin.with_suffix("")


def _file_in(folder: Path, below: Iterable[str]) -> Path | None:
    place = folder.joinpath(*below)
    for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if path.is_file():
            return path
    return None


def _loaded(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).resolve() if file else None


@lru_cache(maxsize=1024)
def _imports(path: Path, state: FileState) -> tuple[Imported, ...]:
    """Imports of a file; ``state`` tells a changed file from the old one."""
    text = _TYPES_ONLY.sub("", path.read_text(encoding="utf-8", errors="replace"))
    found: list[Imported] = []
    for module, names, modules in _IMPORT.findall(text):
        if module:
            found.append((module, _words(names.strip("() \t"))))
        else:
            found += [(one, ()) for one in _words(modules)]
    return tuple(found)


def _words(listed: str) -> tuple[str, ...]:
    """``a, b as c`` without what each is called afterwards."""
    parts = _COMMENT.sub("", listed).replace("\\\n", " ").split(",")
    return tuple(words[0] for part in parts if (words := part.split()))
