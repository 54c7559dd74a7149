"""What a scenario is declared with, how bad it is and what its engine's project says of
it, and the facts that its checks may ask for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from mmrepro.base.errors import BrokenScenario
from mmrepro.base.records import ClaimStatus, Fidelity, FindingClass, Reference
from mmrepro.engines import Mitigation, Patch
from mmrepro.engines.folders import facts, folders
from mmrepro.failure.signature import Finding, Part, Truth
from packaging.specifiers import SpecifierSet
from packaging.version import Version

if TYPE_CHECKING:  # a scenario is often only read, and nothing judged
    from mmrepro.failure.signature.coherence import Run
    from mmrepro.traffic import Picture
    from mmrepro.traffic.case import Case

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Check = Callable[..., Finding]
"""Parameters by type: Evidence, a view of it (Requests, Logs, …), a probe's data
(StacksData, …; of the check, the last one), RunFacts, Engine. One without a type gets
the Evidence."""
Many = tuple[str | Check, ...]
"""Ids of conditions, and checks."""

PROJECTS: Final = {name: facts(name).repository for name in folders()}
"""Repositories of the engines, by name."""
STATUS: Final = {
    Truth.MET: ClaimStatus.CONFIRMED,
    Truth.NOT_MET: ClaimStatus.REFUTED,
    Truth.UNKNOWN: ClaimStatus.NOT_TESTED,
}
ON: Final = {"cpu": "on a CPU", "cuda": "on a GPU"}
ASKS_FOR_A_CHANGE: Final = "asks_for_a_change"
"""An attribute of checks that are met only by a run with a mitigation or flip."""
REFUSED: Final = "refused-at-start"
"""A pattern of ``Scenario.log_patterns``."""
OPPOSITE: Final = {Truth.MET: Truth.NOT_MET, Truth.NOT_MET: Truth.MET}


# ----------------------------------------------------------------- references and cures


def issue(name: str, title: str, note: str = "") -> Reference:
    """An issue, by its name: ``issue("vllm#26223", "…")``."""
    return _reference(name, title, "issues", note)


def pull(name: str, title: str, note: str = "", *, release: str = "") -> Reference:
    """A pull request; ``release``: the first one that has it."""
    return _reference(
        name, title, "pull", note or (f"the fix, in {release}" if release else "")
    )


def _reference(name: str, title: str, kind: str, note: str) -> Reference:
    project, mark, number = name.partition("#")
    if not mark or not number.isdigit() or project not in PROJECTS:
        raise BrokenScenario(
            f"{name!r} names no issue.",
            hint=f"e.g. vllm#26223; projects: {', '.join(PROJECTS)}",
        )
    url = f"https://github.com/{PROJECTS[project]}/{kind}/{number}"
    return Reference(id=name, title=title, url=url, note=note)


@dataclass(frozen=True)
class SourceRef:
    """A definition in the installed engine that the report quotes.

    ``highlight`` is text that marks the lines that matter.
    """

    file: str
    qualname: str
    note: str
    highlight: tuple[str, ...] = ()


def quote(file: str, definition: str, note: str, *marks: str) -> SourceRef:
    """A definition of the installed engine for the report; lines that hold a mark stand
    out."""
    return SourceRef(file=file, qualname=definition, note=note, highlight=marks)


def cure(
    name: str,
    server: str = "",
    description: str = "",
    *,
    patch: Patch | None = None,
    effective_on: str = "",
) -> Mitigation:
    """Options of the server, or a patch, that are said to help on releases
    ``effective_on``."""
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
        name="release",
        description=description or f"upgrade to {release}",
        release=release,
    )


# ------------------------------------------------------- factors and the control server


def _untold() -> Finding:
    return Finding.unknown(
        "the scenario does not say what shows that the flip took effect"
    )


@dataclass(frozen=True)
class Factor:
    """One thing that may or may not matter: ``mmrepro ablate`` flips it and looks.

    The failing baseline is the scenario as it is; a flip adds what is given here, after
    the scenario's own options (in argparse the last one wins). Where two flipped
    factors set the same option, the one declared later wins. What the traffic does
    differently is the scenario's to do: it finds the names of the flipped factors in
    ``Drive.flips`` and ``RunFacts.flips``.

    Attributes:
        description: what it is, in a sentence.
        failing: its setting in the failing baseline, as the tables print it.
        cure: its other setting, as the tables print it; "" means ``server_args`` and
            ``env``.
        server_args: options that the flip adds to the server's command line.
        env: variables that the flip adds to the server's environment.
        patch: code that the flip puts in front of the engine's modules.
        claim: what is said of it, and by whom; for the report.
        took_effect: a check, met where the evidence of a flipped run shows that the
            flip took effect: what the engine says of its configuration, say, and not
            the options that it was given. Without that an ablation says nothing of the
            factor.
    """

    name: str
    description: str
    failing: str
    cure: str = ""
    server_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    patch: Patch | None = None
    claim: str = ""
    took_effect: Callable[..., Finding] = _untold

    @property
    def setting(self) -> str:
        """The other setting, as the tables print it."""
        if self.cure:
            return self.cure
        variables = [f"{name}={value}" for name, value in self.env.items()]
        return shlex.join([*variables, *self.server_args])

    @property
    def flip(self) -> Mitigation:
        """The flip, in the form in which engines take changes of their command."""
        return Mitigation(
            name=self.name,
            description=f"{self.failing} → {self.setting}",
            server_args=self.server_args,
            env=self.env,
            patch=self.patch,
        )


@dataclass(frozen=True)
class Control:
    """A second server, the same but for its options, that shows what the run's own one
    should do.

    It is started first, gets its requests (``Scenario.control``), and has ended before
    the run's own server starts. Mitigations and flips are not applied to it.

    Attributes:
        description: in what it differs, in a sentence.
        server_args: options that come after all others (in argparse the last one wins).
    """

    description: str
    server_args: tuple[str, ...]


# ------------------------------------------------------------------ facts


@dataclass(frozen=True)
class RunFacts:
    """What of the run's set-up claims and conditions may depend on."""

    release: str
    fidelity: Fidelity
    mitigations: frozenset[str]
    deadline_s: float
    flips: frozenset[str] = frozenset()
    """Names of the factors that are flipped."""
    gpus: frozenset[int] = frozenset()
    """Numbers of the GPUs that the run took, by PCI bus."""
    run: Run | None = None
    """What the run says of itself; its evidence is held against that. None: made-up
    evidence."""
    misfit: str = ""
    """What a source tree asked of another release's compiled files in vain."""
    runner: str = ""
    """The model runner and front end that ran, by the server's log; "": not known."""

    @property
    def version(self) -> Version:
        return Version(self.release)


@dataclass(frozen=True)
class Failure:
    """A failure that a play showed, and what was sent: all that a silent one is
    recognised by.

    Attributes:
        finding_class, bucket, operations: of the sighting.
        case: that was played.
        pictures: of the case, by name.
    """

    finding_class: FindingClass
    bucket: str
    operations: tuple[str, ...]
    case: Case
    pictures: Mapping[str, Picture]
    device: str = ""


@dataclass(frozen=True)
class LiveFacts:
    """What is known of a live server that nobody drives: it is only looked at.

    Attributes:
        engine, release: "" where they could not be found out.
        command: the server's command line, as far as it can be seen.
        deadline_s: of the one request that is sent.
        device: cpu or cuda, where it is known.
    """

    engine: str = ""
    release: str = ""
    command: tuple[str, ...] = ()
    deadline_s: float = 0.0
    device: str = ""

    def has(self, arguments: tuple[str, ...]) -> bool:
        """Whether the command line holds ``arguments``, one after the other."""
        width = len(arguments)
        starts = range(len(self.command) - width + 1) if width else ()
        return any(self.command[i : i + width] == arguments for i in starts)

    def option(self, name: str) -> str | None:
        """Value of ``--name VALUE`` or ``--name=VALUE``, the last one; None: not
        given."""
        value = None
        for index, word in enumerate(self.command):
            if word == name and index + 1 < len(self.command):
                value = self.command[index + 1]
            elif word.startswith(name + "="):
                value = word.partition("=")[2]
        return value


# ------------------------------------------------------------------ conditions


@dataclass(frozen=True)
class Declared:
    """A condition before it is bound to a run.

    Attributes:
        statement: ``{name}`` in it is the scenario's attribute called so.
        check: see :data:`Check`; None: the method that it decorates.
        required: False: shown, never decisive.
        live: the same on a live server that is only looked at; True: as it is;
            "optional": but not required; False: nothing; None: as it is where an
            observer has all that ``check`` asks for.
        reported: what the original report says of it, for the table of symptoms.
        abnormal: whether "met" is the abnormal case, for that table; that other
            requests are answered, say, is not.
        removed_by: of a precondition, names of the mitigations and factors that take it
            away.
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


_TAG: Final = "__mmrepro__"


@dataclass(frozen=True)
class _Declaring:
    """Declares conditions of one part: ``@symptom("…")`` above a method, or with the
    check given.

    A condition's id is the method's name, with dashes; ``id=…`` says otherwise. Further
    arguments: ``required``, ``live``, ``reported``, ``abnormal`` (see
    :class:`Declared`)."""

    part: Part
    live: bool | None = None

    @overload
    def __call__(self, statement: str, check: Check, **more: Any) -> Declared: ...
    @overload
    def __call__(self, statement: str, **more: Any) -> Callable[[F], F]: ...
    def __call__(self, statement: str, check: Check | None = None, **more: Any) -> Any:
        more = {"live": self.live, **more}

        def declared(named_by: object) -> Declared:
            name = (
                getattr(named_by, "__name__", "condition").strip("_").replace("_", "-")
            )
            return Declared(
                more.pop("id", "") or name, self.part, statement, check, **more
            )

        def tag(method: F) -> F:
            setattr(method, _TAG, declared(method))
            return method

        return tag if check is None else declared(check)


symptom, cause = _Declaring("symptom"), _Declaring("cause")
precondition = _Declaring("precondition", live=False)
"""What is there once the trigger came as far as the failure needs it. Without it, that
nothing failed means nothing: the verdict is inconclusive. ``removed_by``: mitigations
and factors whose purpose it is to take it away. Live observers have none."""


# ------------------------------------------------------------------ rows and claims


@dataclass(frozen=True)
class Row:
    """A row of the table of symptoms.

    Attributes:
        by: id of the condition that tells, or a check.
        name, healthy: of what it tells, and what that is otherwise; a function is
            called with what it asks for, as a check is: of what a check finds, what it
            observed is told.
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

    ``{name}`` in text, source, ``otherwise`` or ``untested`` is the scenario's
    attribute called so. As the id of a condition "symptom" and "cause" stand for all
    required ones of that part, and "arrived" for the gate and the preconditions: the
    trigger was seen to arrive.

    Attributes:
        source: where it is made; "": in the scenario's first reference.
        by: ids of conditions, or checks: all met confirms it, one not met refutes it.
            Nothing:
            the method that it decorates.
        given: ids of conditions, or checks, without which the run tests nothing of it;
            ``otherwise``: what is said then, before what was observed.
        releases: those that it is made of: a run of another one tests nothing of it.
        refutable_on: on another release, what speaks against it tests nothing of it.
        untested: why it cannot be tested at all.
        note: stands behind what was observed, if it was tested.
        refuted: what is met refutes it, and what is not met confirms it.
        solved: what of the run was solved from the report's own numbers. What agrees
            with them is then consistent with it and confirms nothing.
        cured: what speaks against it does so with a mitigation or flip on as well. Else
            a run whose failure did not show, because of that, refutes nothing, unless
            ``given`` asks for the change (``common.changed``).
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
    cured: bool = False

    def __call__(self, method: F) -> F:
        """As a decorator: ``@claim("at-will", "…", REPORT)``."""
        setattr(method, _TAG, self)
        return method


claim = Claim


@dataclass(frozen=True)
class Hypothesis:
    """An explanation or a cure that was offered, for the table of an ablation to judge.

    Attributes:
        source: where it is made; "": in the scenario's first reference.
        matters, causes: name of the factor that is said to change anything, or to be
            the cause.
        cures: names of the factors that are said to cure; of several: all together,
            none alone.
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


@cache  # asked several times of each scenario, and looks through all that it inherits
def tagged(cls: type, kind: type[T]) -> Mapping[str, T]:
    """Tags of a kind that the methods of ``cls`` and its bases have, by name, the
    bases' first.

    A method that overrides one keeps its tag.
    """
    tags: dict[str, T] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            tag = getattr(member, _TAG, None)
            if isinstance(tag, kind):
                tags[name] = tag
    return tags


class FailureClass(StrEnum):
    """What a user of the server sees; :data:`SEES` says it in a sentence."""

    SILENT_HANG = "silent-hang"
    ENGINE_DEATH = "engine-death"
    REQUESTS_FAIL = "requests-fail"
    WRONG_ANSWERS = "wrong-answers"
    WORK_SURVIVES_CLIENT = "work-survives-client"
    MEMORY_GROWS = "memory-grows"
    NEVER_FITS = "never-fits"
    METRICS_LIE = "metrics-lie"
    START_FAILURE = "start-failure"

    @property
    def words(self) -> str:
        return self.value.replace("-", " ")


SEES: Final = {
    FailureClass.SILENT_HANG: "no answer and no error, with health checks green",
    FailureClass.ENGINE_DEATH: (
        "one request ends the engine, or its loop behind a living front"
    ),
    FailureClass.REQUESTS_FAIL: (
        "the server lives on, and valid requests end with an error"
    ),
    FailureClass.WRONG_ANSWERS: "200, and not the answer to what was asked",
    FailureClass.WORK_SURVIVES_CLIENT: (
        "the client has gone, and what it asked for goes on"
    ),
    FailureClass.MEMORY_GROWS: "what the server holds grows with every request",
    FailureClass.NEVER_FITS: "a request that can never be served is taken, or refused "
    "in words that do not say so",
    FailureClass.METRICS_LIE: "what the server tells of itself is wrong",
    FailureClass.START_FAILURE: "the server does not start",
}


class Severity(StrEnum):
    """Whom one such request harms, the worst first; :data:`HARMS` says it in a
    sentence."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HARMS: Final = {
    Severity.CRITICAL: "all users until somebody starts the server again; or one is "
    "silently answered wrongly",
    Severity.HIGH: (
        "other requests than the one that did it, or some kinds of requests for good"
    ),
    Severity.MEDIUM: "the request that did it, alone",
    Severity.LOW: "nobody's answer",
}


class UpstreamState(StrEnum):
    """What the project's tracker says."""

    OPEN = "open"
    """Reported, and nothing that closes it was merged."""
    FIXED = "fixed"
    CLOSED = "closed"
    """Closed without a fix: stale, or not to be changed."""
    DOCUMENTED = "documented"
    """Known and meant to be so."""
    NOT_REPORTED = "not-reported"
    """Looked for, and not found."""
    PLANTED = "planted"
    """A fault of minivllm, which is there to have it."""
    NOT_LOOKED_UP = "not-looked-up"

    @property
    def words(self) -> str:
        return self.value.replace("-", " ")


@dataclass(frozen=True)
class Upstream:
    """What the project says of a failure, as it was looked up; never what a run here
    showed.

    Attributes:
        source: where it says so.
        looked_up: the day, as 2026-11-24.
        release: the first one with the fix, as far as it is known.
        note: what else there is to say, a few words.
    """

    state: UpstreamState
    source: Reference | None = None
    looked_up: str = ""
    release: str = ""
    note: str = ""

    @property
    def words(self) -> str:
        """The words without the source: ``fixed in 0.24.0``."""
        told = (
            f"{self.state.words} in {self.release}"
            if self.release
            else self.state.words
        )
        return f"{told} ({self.note})" if self.note else told


NOT_LOOKED_UP = Upstream(UpstreamState.NOT_LOOKED_UP)
