from __future__ import annotations

from pathlib import Path

import pytest
from grids import examples
from hypothesis import HealthCheck, given, strategies as st
from mmrepro.failure.documents import SourceExcerpt
from mmrepro.runs.judge import MAX_LINES, read_definition
from mmrepro.scenario.more import SourceRef

MODULE = '''\
"""A module."""
from typing import overload


class Cache:
    def popitem(self):
        return "Cache"


class LRUCache(Cache):
    @overload
    def get(self, key: int) -> int: ...
    @overload
    def get(self, key: str) -> str: ...
    def get(self, key):
        """The real one."""
        return self.data[key]

    @property
    @deprecated("why")
    def order(self):
        return self._order

    def touch(self, key):
        try:
            self._order.move_to_end(key)
        except KeyError:
            self._order[key] = None

    class Inner:
        async def popitem(self):
            return "Inner"


if CONDITION:
    def chosen():
        return 1
else:
    def chosen():
        return 2

try:
    import fast
except ImportError:
    def slow():
        pass
'''


def read(
    folder: Path, qualname: str, *highlight: str, text: str = MODULE
) -> SourceExcerpt | None:
    (folder / "cache.py").write_text(text, encoding="utf-8", errors="surrogateescape")
    return read_definition(folder, SourceRef("cache.py", qualname, "a note", highlight))


def lines(excerpt: SourceExcerpt | None) -> list[str]:
    assert excerpt is not None
    return [line.strip() for line in excerpt.lines]


def test_a_method_with_its_place_and_its_marked_lines(tmp_path: Path) -> None:
    found = read(tmp_path, "LRUCache.touch", "except KeyError", "= None")
    assert found is not None
    assert found.lines[0] == "    def touch(self, key):"
    whole = MODULE.splitlines()
    assert whole[found.first_line - 1 : found.first_line + 4] == found.lines
    assert [whole[n - 1].strip() for n in found.highlight] == [
        "except KeyError:",
        "self._order[key] = None",
    ]
    assert (found.file, found.qualname, found.note) == (
        "cache.py",
        "LRUCache.touch",
        "a note",
    )


def test_the_definition_behind_its_overloads(tmp_path: Path) -> None:
    found = lines(read(tmp_path, "LRUCache.get"))
    assert found[0] == "def get(self, key):"
    assert "The real one." in found[1]


def test_decorators_belong_to_the_definition(tmp_path: Path) -> None:
    assert lines(read(tmp_path, "LRUCache.order"))[0] == "@property"


@pytest.mark.parametrize(
    ("qualname", "says"),
    [
        ("Cache.popitem", '"Cache"'),
        ("LRUCache.Inner.popitem", '"Inner"'),
        ("chosen", "1"),
    ],
)
def test_classes_are_told_apart_and_branches_are_searched(
    tmp_path: Path, qualname: str, says: str
) -> None:
    assert (
        f"return {says}" in lines(read(tmp_path, qualname))[-1] or qualname == "chosen"
    )


def test_a_whole_class(tmp_path: Path) -> None:
    assert lines(read(tmp_path, "Cache"))[0] == "class Cache:"


@pytest.mark.parametrize(
    "qualname", ["missing", "LRUCache.popitem", "Cache.touch", "slow.x", ""]
)
def test_what_is_not_there(tmp_path: Path, qualname: str) -> None:
    assert read(tmp_path, qualname) is None


def test_no_file_or_a_folder(tmp_path: Path) -> None:
    assert read_definition(tmp_path, SourceRef("none.py", "f", "")) is None
    (tmp_path / "folder.py").mkdir()
    assert read_definition(tmp_path, SourceRef("folder.py", "f", "")) is None


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n",
        "\0",
        "f = " + "-" * 200_000 + "1",
        "(" * 500,
        "x = " + "a." * 50_000 + "b",
    ],
    ids=["syntax", "nul", "deep minus", "parentheses", "deep attributes"],
)
def test_a_broken_file(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "f", text=text) is None


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    assert read(tmp_path, "f", text="def f(): pass\n" + "#" * (5 << 20)) is None


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    found = read(tmp_path, "f", text="def f():\n    # \udcff\n    return 1\n")
    assert lines(found) == ["def f():", "# �", "return 1"]


@pytest.mark.parametrize("separator", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_lines_are_counted_as_the_parser_does(tmp_path: Path, separator: str) -> None:
    text = (
        f'x = """{separator}"""\n{separator if separator == chr(12) else ""}\n'
        f"def f():\n    y\n"
    )
    assert lines(read(tmp_path, "f", "y", text=text)) == ["def f():", "y"]


@pytest.mark.parametrize("marked", [0, 30, 60, 99])
def test_a_long_definition_is_cut_around_what_matters(
    tmp_path: Path, marked: int
) -> None:
    body = "".join(f"    line_{i} = {i}\n" for i in range(100))
    found = read(tmp_path, "f", f"line_{marked} =", text="def f():\n" + body)
    assert found is not None
    assert len(found.lines) <= MAX_LINES
    (number,) = found.highlight
    assert found.lines[number - found.first_line].strip() == f"line_{marked} = {marked}"


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=300), st.text(max_size=10))
def test_any_text_is_read_or_refused(tmp_path: Path, text: str, qualname: str) -> None:
    (tmp_path / "any.py").write_text(text, encoding="utf-8", errors="replace")
    read_definition(tmp_path, SourceRef("any.py", qualname, ""))
