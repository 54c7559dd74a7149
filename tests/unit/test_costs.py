"""The tiers of tests/unit: what is listed as slow is there, and what is dear is told."""

from pathlib import Path

import costs
import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
import costs

def pytest_addoption(parser):
    costs.add_options(parser)

def pytest_configure(config):
    costs.register(config)
"""
TESTS = """
import subprocess, sys, time
import pytest

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def dear():
    burn(0.3)

def test_of_a_dear_fixture(dear): pass

def test_dear(): burn(0.3)

def test_dear_child():
    code = "import time\\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)

def test_asleep(): time.sleep(0.3)
"""


def test_the_slow_tests_are_there() -> None:
    """One that was renamed would be waited for without a word."""
    gone = []
    for name in costs.slow_tests():
        file, _, function = name.partition("::")
        place = ROOT / file
        definition = f"def {function.rpartition('::')[2]}("
        if not place.exists() or definition not in place.read_text():
            gone.append(name)
    assert not gone, f"write {costs.SLOW_TESTS.name} anew, or rename them there"


def test_processor_time_of_children_counts_and_sleep_does_not(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    done = pytester.runpytest("--most-seconds", "0.25", "--costs", "costs.jsonl")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    dear = [line for line in done.outlines if line.startswith("TOO DEAR")]
    assert sorted(line.split()[2].rpartition("::")[2] for line in dear) == [
        "test_dear:",
        "test_dear_child:",
    ]
    done.assert_outcomes(passed=4)
    assert '"kind": "fixture"' in (pytester.path / "costs.jsonl").read_text()
    assert pytester.runpytest("--most-seconds", "100").ret == pytest.ExitCode.OK


def test_tiers_are_made_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cheap = costs.ROW_S / 2
    seconds = {"a.py::one[x]": cheap, "a.py::one[y]": 0.5, "a.py::two": cheap}
    seconds |= {f"a.py::three[{row}]": cheap for row in range(50)}
    lines = [
        f'{{"kind": "test", "name": "{name}", "seconds": {spent}}}\n'
        for name, spent in seconds.items()
    ]
    (tmp_path / "costs.jsonl").write_text("".join(lines))
    monkeypatch.setattr(costs, "SLOW_TESTS", tmp_path / "slow_tests.txt")
    costs.SLOW_TESTS.write_text("# before\na.py::two\nb.py::not_measured\n")
    costs.write_tiers([str(tmp_path / "costs.jsonl")])
    assert costs.slow_tests() == {"a.py::one", "a.py::three", "b.py::not_measured"}
    assert "fast: 1 tests of 1 functions" in capsys.readouterr().out


TIERS = """
import pytest

def test_fast(): pass

def test_slow(): pass

@pytest.mark.nightly
def test_nightly(): pass
"""
LEAVES_OUT = """
import costs

def pytest_configure(config):
    for name in ("slow", "nightly"):
        config.addinivalue_line("markers", name)

def pytest_pycollect_makeitem(collector, name, obj):
    slow = frozenset({"test_tiers.py::test_slow"})
    test = f"{collector.nodeid}::{name}"
    return [] if costs.is_left_out(collector.config, slow, test, obj) else None
"""


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        (["-m", costs.FAST], {"passed": 1}),
        (["-m", "nightly"], {"passed": 1, "deselected": 2}),
        (["-m", costs.FAST, "test_tiers.py::test_nightly"], {"deselected": 1}),
        ([], {"passed": 3}),
    ],
)
def test_no_item_is_made_of_what_the_fast_tier_leaves_out(
    pytester: pytest.Pytester, words: list[str], outcome: dict[str, int]
) -> None:
    pytester.makeconftest(LEAVES_OUT)
    pytester.makepyfile(test_tiers=TIERS)
    pytester.runpytest(*words).assert_outcomes(**outcome)
