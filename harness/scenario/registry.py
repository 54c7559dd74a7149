"""Finding scenarios: built in, by entry point ``mmrepro.scenarios``, or by path."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import traceback
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from mmrepro.errors import BrokenScenario, UnknownScenario
from mmrepro.scenario import Scenario
from packaging.specifiers import SpecifierSet

GROUP = "mmrepro.scenarios"


def scenario_names() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_scenario(name: str) -> Scenario:
    """The scenario called ``name``, or the one in the file ``name`` (anything ending in .py).

    Raises:
        UnknownScenario: no such name, no such file.
        BrokenScenario: the file cannot be run or holds no scenario.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    entries: dict[str, EntryPoint] = {e.name: e for e in entry_points(group=GROUP)}
    if name not in entries:
        close = difflib.get_close_matches(name, entries, 1)
        guess = f" Did you mean {close[0]}?" if close else ""
        raise UnknownScenario(f"There is no scenario {name!r}.{guess}", hint="mmrepro list")
    try:
        return _checked(entries[name].load(), f"entry point {name}")
    except BrokenScenario:
        raise
    except Exception as error:
        raise BrokenScenario(
            f"Scenario {name} cannot be loaded: {type(error).__name__}: {error}."
        ) from error


def _from_file(path: Path) -> Scenario:
    if not path.is_file():
        raise UnknownScenario(f"There is no scenario file {path}.", hint="mmrepro list")
    spec = importlib.util.spec_from_file_location(f"mmrepro_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up there
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        broken = error.filename or path  # it may be a module that the file imports
        raise BrokenScenario(
            f"{broken} line {error.lineno} is not valid Python: {error.msg}.",
            hint=f"python -m py_compile {broken}",
        ) from error
    except (Exception, SystemExit) as error:  # a script's sys.exit() would end mmrepro unsaid
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise BrokenScenario(
            f"{path} cannot be loaded: {type(error).__name__}: {error} "
            f"({Path(line.filename).name} line {line.lineno}).",
        ) from error
    return _checked(getattr(module, "SCENARIO", None), str(path))


def _checked(candidate: object, where: str) -> Scenario:
    if not isinstance(candidate, Scenario):
        raise BrokenScenario(
            f"{where} binds no scenario to the name SCENARIO.",
            hint="mmrepro show ghost-key-eviction",
        )
    for attribute in ("name", "title", "summary", "explanation", "default_release", "affected"):
        if not hasattr(candidate, attribute):
            raise BrokenScenario(f"The scenario in {where} lacks the attribute {attribute!r}.")
    if not isinstance(candidate.affected, SpecifierSet):  # else it fails only after the run
        raise BrokenScenario(
            f"The attribute 'affected' of the scenario in {where} is no SpecifierSet.",
            hint='affected = SpecifierSet(">=0.12.0,<0.24.0")',
        )
    return candidate
