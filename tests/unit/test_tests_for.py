"""Which tests a change needs: tests/tests_for.py, on the files of this repository."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tests_for() -> ModuleType:
    """The script, which is no module of any package."""
    place = ROOT / "tests" / "tests_for.py"
    spec = importlib.util.spec_from_file_location("tests_for", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changed", "picked", "left"),
    [
        ("harness/runs/judge.py", "test_judge.py", "test_units.py"),
        ("harness/live/diagnose/titles.py", "diagnose/test_titles.py", "test_judge.py"),
        ("probes/syscalls.py", "probes/test_syscalls_probe.py", "test_judge.py"),
        ("tests/unit/test_judge.py", "test_judge.py", "test_units.py"),
        ("tests/unit/cloned.py", "test_bisect_clone.py", "test_judge.py"),
        ("tests/unit/probes/conftest.py", "probes/test_ras.py", "test_judge.py"),
        ("tests/unit/nvml_h100.json", "test_gpu_recorded.py", "test_judge.py"),
        ("docs/lab/ci.md", "test_docs.py", "test_judge.py"),
        ("scenarios/shape_alias.py", "replay/test_recognises.py", "test_units.py"),
        # These failed in CI after such a change, or were mended a commit later.
        ("harness/live/diagnose/discover.py", "diagnose/test_look.py", "test_units.py"),
        ("harness/live/diagnose/discover.py", "diagnose/test_incident.py", ""),
        ("docs/found/README.md", "test_find.py", "test_units.py"),
        ("harness/campaign/bisect/apart.py", "test_bisect_apart.py", "test_units.py"),
        ("harness/base/options.py", "test_house.py", "test_units.py"),
        ("harness/engines/starts.toml", "test_engines.py", "test_units.py"),
        (".github/workflows/nightly-gpu.yml", "nightly/test_nightly_workflows.py", ""),
    ],
)
def test_a_changed_file_picks_who_names_it(
    tests_for: ModuleType, changed: str, picked: str, left: str
) -> None:
    found = tests_for.tests_of([ROOT / changed])
    assert ROOT / "tests/unit" / picked in found
    assert ROOT / "tests/unit" / left not in found


def test_a_file_that_was_removed_picks_no_test_that_is_gone(
    tests_for: ModuleType,
) -> None:
    assert not tests_for.tests_of([ROOT / "tests/unit/test_that_is_gone.py"])


def test_what_lies_in_no_package_is_no_module(tests_for: ModuleType) -> None:
    assert tests_for.module_of(ROOT / "setup.py") == ""
    assert tests_for.module_of(ROOT / "harness/runs/__init__.py") == "mmrepro.runs"
