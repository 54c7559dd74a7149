"""Finding scenarios: built in, by entry point ``mmrepro.scenarios``, or by path.

A file is Python: to load it is to run it. :func:`load_scenario` does, for a caller
whose user named the file to run it. Whoever only reads, or has the name from a
document, takes :func:`known_scenario`, which runs a file only if its user trusts it.
"""

import importlib.util
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pathlib import Path

from mmrepro.base.errors import (
    BrokenScenario,
    UnknownScenario,
    UntrustedFile,
    did_you_mean,
)
from mmrepro.base.machine import is_file
from mmrepro.base.records import Fidelity
from mmrepro.base.units import size
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import ON, Claim, Declared, LiveFacts, RunFacts, tagged
from packaging.version import Version

_GROUP = "mmrepro.scenarios"
_MAX_FILE_BYTES = 4 << 20


def scenario_names() -> list[str]:
    """The names of all scenarios that are installed."""
    return sorted(_entries(tuple(sys.path)))


def is_file_name(name: str) -> bool:
    """Whether ``name`` is that of a file with a scenario, and not of a scenario."""
    return name.endswith(".py")


def comes_with_mmrepro(name: str) -> bool:
    """Whether ``name`` is a scenario of mmrepro's own distribution, and nobody else's
    code."""
    entry = _entries(tuple(sys.path)).get(name)
    return entry is not None and entry.module.startswith("mmrepro.")


def known_scenario(name: str, *, trust: bool, conditions: bool = True) -> Scenario:
    """The scenario called ``name``, of an installed distribution.

    Args:
        trust: run the file, if ``name`` is one: its user asked for that on the command
            line.
        conditions: as for :func:`load_scenario`.

    Raises:
        UntrustedFile: it is a file, and not to be run.
        UnknownScenario, BrokenScenario: as :func:`load_scenario`.
    """
    if is_file_name(name) and not trust:
        _check_there(Path(name))
        raise UntrustedFile(
            f"{name} is a Python file, which would be run to be read.",
            hint="read it yourself first, then add --trust",
        )
    return load_scenario(name, conditions=conditions)


def load_scenario(name: str, *, conditions: bool = True) -> Scenario:
    """The scenario called ``name``, or the one in the file ``name`` (anything ending in
    .py).

    The file is run: see :func:`known_scenario`.

    Args:
        conditions: check its conditions and claims as well: a list of all does without.

    Raises:
        UnknownScenario: no such name, no such file.
        BrokenScenario: the file cannot be run or holds no scenario.
    """
    if is_file_name(name):
        return _from_file(Path(name))
    entries = _entries(tuple(sys.path))
    if name not in entries:
        guess = did_you_mean(name, entries)
        raise UnknownScenario(
            f"There is no scenario {name!r}.{guess}", hint="mmrepro list"
        )
    try:
        return _loaded(entries[name], conditions)
    except BrokenScenario:
        raise
    except Exception as error:
        raise BrokenScenario(
            f"Scenario {name} cannot be loaded: {type(error).__name__}: {error}."
        ) from error


def as_run(name: str, variant: str, *, trust: bool = False) -> Scenario:
    """The scenario in the variant of a run; without one that it does not have. Raises
    as :func:`known_scenario`."""
    scenario = known_scenario(name, trust=trust)
    # A run of an older mmrepro may be of a variant that is gone.
    offered = {each.variant for each in scenario.variants}
    return scenario.with_variant(variant if variant in offered else "")


@lru_cache
def _loaded(entry: EntryPoint, conditions: bool) -> Scenario:
    """Python keeps its module as well: what was sound is sound for as long as the
    process runs."""
    return _checked(entry.load(), f"entry point {entry.name}", conditions)


@lru_cache(maxsize=1)
def _entries(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Entry points by name, of all distributions on ``path``, which is sys.path: each
    has a file to be read."""
    found = entry_points(group=_GROUP)
    return {entry.name: entry for entry in found if not is_file_name(entry.name)}


def _check_there(path: Path) -> None:
    """Raises UnknownScenario: there is no such file."""
    if not is_file(path):
        raise UnknownScenario(f"There is no scenario file {path}.", hint="mmrepro list")


def _from_file(path: Path) -> Scenario:
    _check_there(path)
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise BrokenScenario(
            f"{path} cannot be loaded: it is too large: more than "
            f"{size(_MAX_FILE_BYTES)}."
        )
    spec = importlib.util.spec_from_file_location(f"mmrepro_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        # It may be a module that the file imports.
        broken = error.filename or path
        raise BrokenScenario(
            f"{broken} line {error.lineno} is not valid Python: {error.msg}.",
            hint=f"python -m py_compile {broken}",
        ) from error
    # A script's sys.exit() would end mmrepro without a word; Ctrl-C shall.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not _raised_in(error, path):
            raise
        raise BrokenScenario(
            f"{path} cannot be loaded: {type(error).__name__}: "
            f"{str(error)[:1000]}{_place(error)}."
        ) from error
    return _checked(getattr(module, "SCENARIO", None), str(path))


def _place(error: BaseException) -> str:
    """File and line that raised it, outside of this room, as the end of a sentence."""
    own = Path(__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.parent != own:
            return f" ({file.name} line {frame.lineno})"
    return ""


def _raised_in(error: BaseException, path: Path) -> bool:
    """Whether a ``raise`` in the file itself made ``error``, and not a signal."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    here = Path(last.filename).resolve() == path.resolve()
    return here and (last.line or "").lstrip().startswith("raise")


def _checked(candidate: object, where: str, conditions: bool = True) -> Scenario:
    if not isinstance(candidate, Scenario):
        raise BrokenScenario(
            f"{where} binds no scenario to the name SCENARIO.",
            hint="SCENARIO = TheClass(); mmrepro new NAME writes a file that has it",
        )
    for scenario in candidate.variants or (candidate,):
        _check(scenario, where, conditions)
    return candidate


def _check(scenario: Scenario, where: str, conditions: bool) -> None:
    """Raises BrokenScenario: it lacks something that would be missed only after the
    run."""
    problems = _head(scenario)
    if conditions:
        problems = chain(problems, _body(scenario))
    try:
        first = next(problems, None)
    except BrokenScenario as error:
        raise BrokenScenario(
            f"The scenario in {where}: {error.message}", hint=error.hint
        ) from error
    if first is not None:
        what, hint = first
        raise BrokenScenario(f"The scenario in {where} {what}.", hint=hint)


def _head(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """What is wrong with what it says of itself, after "The scenario …", and a hint."""
    for name in ("name", "release", "affected"):
        if not isinstance(getattr(scenario, name, None), str):
            hint = (
                'name = "my-failure"; release = "0.23.0"; affected = ">=0.12.0,<0.24.0"'
            )
            yield f"lacks the attribute {name!r}, a text", hint
    for mark, text in (("What:", scenario.summary), ("Why:", scenario.explanation)):
        if not text:
            hint = "mmrepro new SCENARIO writes one that has it"
            yield f"has no paragraph in its docstring that begins with {mark!r}", hint

    devices = scenario.devices
    if not isinstance(devices, tuple) or not devices or not set(devices) <= set(ON):
        hint = 'devices = ("cpu",), or leave it out: everywhere'
        yield f"has the devices {devices!r}", hint
    try:
        _ = scenario.affected_releases
        Version(scenario.release)
        shlex.split(scenario.server)
    except ValueError as error:
        raise BrokenScenario(f"{error}.") from error


def _body(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """What is wrong with its conditions: two of one name, a row or a claim by one that
    is not."""
    cls = type(scenario)
    for name in (*tagged(cls, Declared), *tagged(cls, Claim)):
        if hasattr(Scenario, name):
            what = f"has a condition or claim in the method {name!r}, which is a hook"
            hint = f'another name, and id="{name.replace("_", "-")}"'
            yield f"{what} of Scenario", hint

    changes = {mitigation.name for mitigation in scenario.mitigations}
    changes |= {factor.name for factor in scenario.factors}
    for declared in scenario.declared():
        unknown = sorted(set(declared.removed_by) - changes)
        if unknown:
            what = f"has the precondition {declared.id!r} removed by {unknown[0]!r}"
            hint = f"it has: {', '.join(sorted(changes)) or 'none'}"
            yield f"{what}, which is no mitigation or factor of it", hint
    if scenario.fails_at_start and scenario.control_server is None:
        what = "fails_at_start and has no control_server, which shows that it starts"
        hint = 'control_server = Control("the same without …", ("--option",))'
        yield f"{what} otherwise", hint
    unknown = sorted(scenario.option_servers.keys() - scenario.options.keys())
    if unknown:
        hint = f"it has: {', '.join(scenario.options) or 'none'}"
        yield f"has option_servers for {unknown[0]!r}, which is no option of it", hint
    yield from _ids(scenario)


def _ids(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """What is wrong with the ids of its conditions."""
    # Only a scenario with its own method can have other conditions at another fidelity.
    has_own = type(scenario).conditions is not Scenario.conditions
    fidelities = [*Fidelity] if has_own else [Fidelity.CPU]
    live = scenario.live_conditions(LiveFacts(scenario.engine, scenario.release))
    known: set[str] = set()
    for fidelity in fidelities:
        facts = RunFacts(scenario.release, fidelity, frozenset(), 0.0)
        ids = [condition.id for condition in scenario.conditions(facts)]
        yield from _twice(ids)
        known.update(ids)
    yield from _twice([condition.id for condition in live])

    if not known:
        yield "has no condition", ""
    for what, name in scenario.named_conditions():
        if name not in known:
            hint = f"its conditions: {', '.join(sorted(known))}"
            yield f"has {what} by {name!r}, which is no condition of it", hint


def _twice(ids: list[str]) -> Iterator[tuple[str, str]]:
    repeated = [name for name, count in Counter(ids).items() if count > 1]
    if repeated:
        yield f"has two conditions called {min(repeated)}", ""
