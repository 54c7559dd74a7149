"""What a check asks for by the types of its parameters, handed to it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mmrepro.engines import Engine, get_engine
from mmrepro.errors import BrokenScenario
from mmrepro.evidence import Evidence, Missing
from mmrepro.probes.base import ProbeData
from mmrepro.probes.data import StacksData
from mmrepro.scenario.parts import RunFacts
from mmrepro.signature.decide import Finding
from mmrepro.signature.views import View

if TYPE_CHECKING:
    from mmrepro.scenario.base import Scenario

Check = Callable[..., Finding]
"""Parameters by type: Evidence, a view of it (Requests, Logs, …), a probe's data (StacksData, …;
of the check, the last one), RunFacts, Engine. One without a type gets the Evidence."""


def bind(check: Callable[..., Any], scenario: Scenario, facts: RunFacts) -> Callable[..., Any]:
    """``check`` as a function of evidence alone.

    Raises:
        BrokenScenario: it asks for something that there is not.
    """
    method = own(check, scenario)
    wanted = parameters(method)

    def bound(evidence: Evidence) -> Any:
        return method(*(_given(kind, scenario, facts, evidence) for kind in wanted))

    return bound


def own(check: Callable[..., Any], scenario: Scenario) -> Callable[..., Any]:
    """A function of the scenario's class, named in the class's body, as the method that it is."""
    name = getattr(check, "__name__", "")
    named = any(vars(cls).get(name) is check for cls in type(scenario).__mro__)
    return getattr(scenario, name) if named else check


def observable(check: Callable[..., Any]) -> bool:
    """Whether one who only looks at a server has all that ``check`` asks for."""
    return all(
        (issubclass(kind, View) and kind.observable) or issubclass(kind, ProbeData | Engine)
        for kind in parameters(check)
    )


def parameters(check: Callable[..., Any]) -> tuple[type, ...]:
    """Types of the positional parameters, those with a default left out."""
    return _parameters(getattr(check, "__func__", check), bound=hasattr(check, "__self__"))


@lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any], *, bound: bool) -> tuple[type, ...]:
    signature = inspect.signature(function)
    try:
        hints = typing.get_type_hints(function) if signature.parameters else {}
    except NameError as error:
        raise BrokenScenario(
            f"{_name(function)}: {error}; the types of a check's parameters are needed when it "
            "runs, so import them outside TYPE_CHECKING."
        ) from error
    found = []
    names = list(signature.parameters)[1 if bound else 0 :]
    for name in names:
        parameter = signature.parameters[name]
        if parameter.default is not inspect.Parameter.empty:
            continue
        kind = hints.get(name, Evidence)
        known = (Evidence, RunFacts, Engine, View, ProbeData)
        if not (isinstance(kind, type) and issubclass(kind, known)):
            raise BrokenScenario(
                f"{_name(function)} asks for {name}: {kind!r}, which no evidence is.",
                hint="Evidence, Requests, Logs, Metrics, Processes, StacksData, RunFacts, …",
            )
        found.append(kind)
    return tuple(found)


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def _given(kind: type, scenario: Scenario, facts: RunFacts, evidence: Evidence) -> object:
    if issubclass(kind, View):
        return kind(evidence)
    if issubclass(kind, ProbeData):
        return _probed(kind, evidence)
    if issubclass(kind, RunFacts):
        return facts
    return get_engine(scenario.engine) if issubclass(kind, Engine) else evidence


def _probed(kind: type[ProbeData], evidence: Evidence) -> ProbeData:
    """The data of the check: all stack samples in one, else the last. Raises Missing."""
    found = [data for _, data in evidence.results(kind, "check")]
    if not found:
        raise Missing(evidence.why_missing(kind.model_fields["kind"].default, "check"))
    if issubclass(kind, StacksData):
        samples = [s for data in found if isinstance(data, StacksData) for s in data.samples]
        return StacksData(samples=samples)
    return found[-1]
