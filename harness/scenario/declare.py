"""How a scenario declares itself: references, cures, conditions, rows, claims."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any, Final, Literal, TypeVar, overload

from mmrepro.engines.changes import Mitigation, Patch
from mmrepro.errors import BrokenScenario
from mmrepro.incident import Reference
from mmrepro.scenario.bind import Check
from mmrepro.scenario.parts import SourceRef
from mmrepro.signature.decide import Finding, Part
from packaging.specifiers import SpecifierSet

F = TypeVar("F", bound=Callable[..., Any])

PROJECTS: Final = {
    "vllm": "vllm-project/vllm",
    "sglang": "sgl-project/sglang",
    "lmdeploy": "InternLM/lmdeploy",
    "minivllm": "Wenyueh/MinivLLM",
}


# ------------------------------------------------------------------ references and cures


def issue(name: str, title: str, note: str = "") -> Reference:
    """An issue, by its name: ``issue("vllm#26223", "…")``."""
    return _reference(name, title, "issues", note)


def pull(name: str, title: str, note: str = "", *, release: str = "") -> Reference:
    """A pull request; ``release``: the first one that has it."""
    return _reference(name, title, "pull", note or (f"the fix, in {release}" if release else ""))


def _reference(name: str, title: str, kind: str, note: str) -> Reference:
    project, mark, number = name.partition("#")
    if not mark or not number.isdigit() or project not in PROJECTS:
        raise BrokenScenario(
            f"{name!r} names no issue.", hint=f"e.g. vllm#26223; projects: {', '.join(PROJECTS)}"
        )
    url = f"https://github.com/{PROJECTS[project]}/{kind}/{number}"
    return Reference(id=name, title=title, url=url, note=note)


def quote(file: str, definition: str, note: str, *marks: str) -> SourceRef:
    """A definition of the installed engine for the report; lines that hold a mark stand out."""
    return SourceRef(file=file, qualname=definition, note=note, highlight=marks)


def cure(
    name: str,
    server: str = "",
    description: str = "",
    *,
    patch: Patch | None = None,
    effective_on: str = "",
) -> Mitigation:
    """Options of the server, or a patch, that are said to help on releases ``effective_on``."""
    return Mitigation(
        name=name,
        description=description or server,
        server_args=tuple(shlex.split(server)),
        patch=patch,
        effective_on=SpecifierSet(effective_on),
    )


def upgrade(release: str, description: str = "") -> Mitigation:
    """Another release, said to be free of it."""
    return Mitigation(
        name="release", description=description or f"upgrade to {release}", release=release
    )


# ------------------------------------------------------------------ conditions


@dataclass(frozen=True)
class Declared:
    """A condition before it is bound to a run.

    Attributes:
        statement: ``{name}`` in it is the scenario's attribute called so.
        check: see :data:`mmrepro.scenario.bind.Check`; None: the method that it decorates.
        required: False: shown, never decisive.
        live: the same on a live server that is only looked at; True: as it is; "optional": but not
            required; False: nothing; None: as it is where an observer has all that ``check`` asks
            for.
        reported: what the original report says of it, for the table of symptoms.
        abnormal: whether "met" is the abnormal case, for that table; that other requests are
            answered, say, is not.
        removed_by: of a precondition, names of the mitigations and factors that take it away.
    """

    id: str
    part: Part
    statement: str
    check: Check | None = None
    required: bool = True
    live: bool | Literal["optional"] | Declared | None = None
    reported: str = ""
    abnormal: bool = True
    removed_by: tuple[str, ...] = ()


TAG: Final = "__mmrepro__"


@overload
def symptom(statement: str, check: Check, **more: Any) -> Declared: ...
@overload
def symptom(statement: str, **more: Any) -> Callable[[F], F]: ...
def symptom(statement: str, check: Check | None = None, **more: Any) -> Any:
    """A condition of the symptom: ``@symptom("…")`` above a method, or with the check given.

    Its id is the method's name, with dashes; ``id=…`` says otherwise. Further: ``required``,
    ``live``, ``reported``, ``abnormal`` (see :class:`Declared`).
    """
    return _condition("symptom", statement, check, more)


@overload
def cause(statement: str, check: Check, **more: Any) -> Declared: ...
@overload
def cause(statement: str, **more: Any) -> Callable[[F], F]: ...
def cause(statement: str, check: Check | None = None, **more: Any) -> Any:
    """A condition of the cause; as :func:`symptom`."""
    return _condition("cause", statement, check, more)


@overload
def precondition(statement: str, check: Check, **more: Any) -> Declared: ...
@overload
def precondition(statement: str, **more: Any) -> Callable[[F], F]: ...
def precondition(statement: str, check: Check | None = None, **more: Any) -> Any:
    """What is seen where the trigger came as far as the failure needs it; as :func:`symptom`.

    Without it, that nothing failed means nothing: the verdict is inconclusive. ``removed_by``:
    mitigations and factors whose purpose it is to take it away. Live observers have none.
    """
    return _condition("precondition", statement, check, {"live": False, **more})


def _condition(part: Part, statement: str, check: Check | None, more: dict[str, Any]) -> Any:
    if check is not None:
        name = more.pop("id", "") or _dashed(getattr(check, "__name__", "condition"))
        return Declared(name, part, statement, check, **more)

    def declared(method: F) -> F:
        name = more.pop("id", "") or _dashed(method.__name__)
        setattr(method, TAG, Declared(name, part, statement, None, **more))
        return method

    return declared


def _dashed(name: str) -> str:
    return name.strip("_").replace("_", "-")


# ------------------------------------------------------------------ rows and claims

Many = tuple[str | Check, ...]
"""Ids of conditions, and checks."""


@dataclass(frozen=True)
class Row:
    """A row of the table of symptoms.

    Attributes:
        by: id of the condition that tells, or a check.
        name, healthy: of what it tells, and what that is otherwise; a function is called with what
            it asks for, as a check is: of what a check finds, what it observed is told.
        abnormal_if: whether "met" is the abnormal case; None: it is neither.
    """

    name: str | Callable[..., str]
    by: str | Check
    healthy: str | Callable[..., str | Finding] = ""
    reported: str = ""
    abnormal_if: bool | None = True


row = Row


@dataclass(frozen=True)
class Claim:
    """A statement of the original report, judged by conditions of this run.

    ``{name}`` in text, source, ``otherwise`` or ``untested`` is the scenario's attribute called so.
    As the id of a condition "symptom" and "cause" stand for all required ones of that part, and
    "arrived" for the gate and the preconditions: the trigger was seen to arrive.

    Attributes:
        source: where it is made; "": in the scenario's first reference.
        by: ids of conditions, or checks: all met confirms it, one not met refutes it. Nothing:
            the method that it decorates.
        given: ids of conditions, or checks, without which the run tests nothing of it;
            ``otherwise``: what is said then, before what was observed.
        releases: those that it is made of: a run of another one tests nothing of it.
        refutable_on: on another release, what speaks against it tests nothing of it.
        untested: why it cannot be tested at all.
        note: stands behind what was observed, if it was tested.
        refuted: what is met refutes it, and what is not met confirms it.
        solved: what of the run was solved from the report's own numbers. What agrees with them is
            then consistent with it and confirms nothing.
    """

    id: str
    text: str
    source: str | Reference = ""
    _: KW_ONLY
    by: str | Many | Check | None = None
    given: str | Many | Check = ()
    otherwise: str = ""
    releases: str = ""
    refutable_on: str = ""
    untested: str = ""
    note: str = ""
    refuted: bool = False
    solved: str = ""

    def __call__(self, method: F) -> F:
        """As a decorator: ``@claim("at-will", "…", REPORT)``."""
        setattr(method, TAG, self)
        return method


claim = Claim


@dataclass(frozen=True)
class Hypothesis:
    """An explanation or a cure that was offered, for the table of an ablation to judge.

    Attributes:
        source: where it is made; "": in the scenario's first reference.
        matters, causes: name of the factor that is said to change anything, or to be the cause.
        cures: names of the factors that are said to cure; of several: all together, none alone.
        untested: why the table cannot tell.
        note: stands behind what the table says.
    """

    id: str
    text: str
    source: str | Reference = ""
    _: KW_ONLY
    untested: str = ""
    matters: str = ""
    causes: str = ""
    cures: str | tuple[str, ...] = ()
    note: str = ""


hypothesis = Hypothesis


def named(source: str | Reference) -> str:
    """Where a claim is made, as reports print it."""
    return source if isinstance(source, str) else source.id


def many(of: str | Many | Check) -> Many:
    """Conditions and checks, of which one alone may be given as it is."""
    return of if isinstance(of, tuple) else (of,)


@dataclass(frozen=True)
class Tagged:
    """The tagged methods of a class, by name, in the order of their definition."""

    declared: dict[str, Declared] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)


@cache
def tagged(cls: type) -> Tagged:
    """Of ``cls`` and its bases, the bases' first. A method that overrides one keeps its tag."""
    found = Tagged()
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            tag = getattr(value, TAG, None)
            if isinstance(tag, Declared):
                found.declared[name] = tag
            elif isinstance(tag, Claim):
                found.claims[name] = tag
    return found
