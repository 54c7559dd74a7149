"""Which mutants are drawn, by which tests they are tried, and what the list of
survivors holds: benchmarks/mutants.py."""

from pathlib import Path

import _mutations
import mutants
import pytest
from _mutations import Mutant, area_of, bodies, drawn, reached_by
from mutants import Tried

CODE = """\
LIMIT = 3


def most(
    values, limit=LIMIT
):
    if (
        values
        and limit
    ):
        return values[
            :limit
        ]
    try:
        return list(values)
    except TypeError:
        return []
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of a made-up product."""
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.setattr(_mutations, "ROOT", tmp_path)
    _mutations.source.cache_clear()
    yield "code.py"
    _mutations.source.cache_clear()


def mutant(file: str, line: int = 1, function: str = "f", id: str = "") -> Mutant:
    return Mutant(file, line, "AddNot", 0, function, id)


@pytest.mark.parametrize(
    ("line", "first", "last"),
    [
        (8, 7, 10),  # a condition of four lines, and not what stands below it
        (12, 11, 13),
        (16, 16, 16),  # an exception's type is asked for where one arrives
        (5, 7, 17),  # a default is made at import: whoever runs the function uses it
    ],
)
def test_a_mutant_is_run_by_who_runs_its_statement(
    code: str, line: int, first: int, last: int
) -> None:
    assert reached_by(mutant(code, line, "most")) == range(first, last + 1)


def test_what_runs_at_import_is_of_no_test(code: str) -> None:
    assert reached_by(mutant(code, 1, "")) is None
    assert bodies(code) == set(range(7, 18))


def test_a_sample_stays_while_other_code_comes_and_goes() -> None:
    several = [mutant("a.py", id=f"{number:x}") for number in range(200)]
    sample = drawn(several, 73)[:50]
    assert drawn(reversed(several), 73)[:50] == sample
    fewer = [each for each in several if each not in sample[:10]]
    assert drawn(fewer, 73)[:40] == sample[10:]
    assert drawn(several, 74)[:50] != sample


def test_tests_that_name_the_function_come_first() -> None:
    order = mutants.near("harness/failure/documents/published.py", "public_reply")
    assert order[0] == "tests/unit/test_private_words.py"
    # Nothing in tests names this module: those of what imports it.
    assert mutants.near("harness/live/diagnose/frozen.py", "")
    assert mutants.near("harness/cli/run.py", "_document"), "a command's module"
    assert area_of("harness/base/box/box.py") == "box"
    assert area_of("harness/cli/run.py") == "the rest"


def test_the_list_of_survivors_only_shrinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diff = "@@ -1 +1 @@\n-    if a:\n+    if not a:"
    killed = Tried(mutant("a.py", id="aa"), True, "killed", diff=diff)
    alive = Tried(mutant("a.py", id="bb"), False, "survived", diff=diff)
    file = tmp_path / "survivors.txt"
    file.write_text("# 2 of seed 73\naa a.py f: - if a: + if not a:\n")
    assert mutants.listed_sample(file) == (2, "73")
    assert not mutants.held(file, [killed, alive], {"aa", "bb"}, shrink=True)
    assert "bb a.py f: - if a: + if not a:" in capsys.readouterr().out
    assert file.read_text() == "# 2 of seed 73\n"
    survivors = f"# 2 of seed 73\n{mutants.survivor_line(alive)}\n"
    file.write_text(f"{survivors}cc a.py g: - x + y\n")
    assert mutants.held(file, [killed, alive], {"aa", "bb", "cc"}, shrink=True)
    assert "cc a.py g" in file.read_text(), "a sample may be tried in part"
    assert mutants.held(file, [killed, alive], {"aa", "bb"}, shrink=True)
    assert "is not drawn any more: cc a.py g" in capsys.readouterr().out
    assert file.read_text() == survivors


def test_each_line_of_the_list_is_of_a_file_that_is_there() -> None:
    assert mutants.listed_sample(mutants.SURVIVORS)
    for id, line in mutants.listed(mutants.SURVIVORS).items():
        assert len(id) == 12
        assert (mutants.ROOT / line.split()[1]).is_file(), line
