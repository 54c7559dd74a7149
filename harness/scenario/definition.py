"""What a scenario is: one known failure mode of one engine, and how its parts are
judged."""

from __future__ import annotations

import inspect
import re
import shlex
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from mmrepro.base.errors import BrokenScenario, UsageError, did_you_mean
from mmrepro.base.records import Fidelity, Reference
from mmrepro.engines import Engine, get_engine
from mmrepro.engines.base import Mitigation, Patch
from mmrepro.engines.models import TinyModel, TinyQwen2VL
from mmrepro.failure.signature import (
    Condition,
    Finding,
    Outcome,
    Part,
    Truth,
    checks,
    combine,
    evaluate,
)
from mmrepro.failure.signature.decide import FLIP, all_met, guarded, trigger_arrived
from mmrepro.failure.signature.views import Logs, View
from mmrepro.probes.data import ProbeData, StackSample, StacksData
from mmrepro.scenario.parts import (
    ASKS_FOR_A_CHANGE,
    NOT_LOOKED_UP,
    ON,
    OPPOSITE,
    PROJECTS,
    REFUSED,
    STATUS,
    Check,
    Claim,
    Control,
    Declared,
    Factor,
    Failure,
    FailureClass,
    Hypothesis,
    LiveFacts,
    Many,
    Row,
    RunFacts,
    Severity,
    SourceRef,
    Upstream,
    many,
    named,
    tagged,
)
from mmrepro.traffic.evidence import Evidence, Missing
from packaging.specifiers import SpecifierSet
from packaging.version import Version

if TYPE_CHECKING:  # a scenario is often only read, and nothing judged
    from mmrepro.failure.documents import (
        ClaimResult,
        Exhibit,
        KeyStack,
        ScenarioFacts,
        SymptomRow,
    )
    from mmrepro.failure.documents.searches import Ablation
    from mmrepro.traffic.drive import Drive

T = TypeVar("T")


class Scenario(ABC):
    """One known failure mode: its definition, its traffic, its signature.

    Subclass it in one file, set the class attributes, and bind an instance to
    ``SCENARIO``. The docstring is the report's: its first line the title, the
    paragraphs from ``What:`` on the summary, those from ``Why:`` on the explanation.
    """

    name: ClassVar[str]
    variant: ClassVar[str] = ""
    """Name of this variant, where a scenario has several."""
    engine: ClassVar[str] = "vllm"
    release: ClassVar[str]
    """The release that is run by default."""
    affected: ClassVar[str]
    """The affected releases, e.g. ``>=0.11.0,<0.16.0``."""
    devices: ClassVar[tuple[str, ...]] = tuple(ON)
    """Where it happens: fewer than cpu and cuda where one backend's code alone has the
    fault."""
    references: ClassVar[tuple[Reference, ...]] = ()
    failure_class: ClassVar[FailureClass | None] = None
    """What a user sees; every scenario of mmrepro's own says so, and how bad it is."""
    severity: ClassVar[Severity | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    """What traffic or server must have for it to happen, one of these; (): nothing that
    can be told from outside. ``images``, ``a grammar``, ``a stream``, ``a client that
    leaves``, an option of the server (``--name`` or ``--name=value``), a field of a
    request's body, or several, with `` and `` between them."""
    upstream: ClassVar[Upstream] = NOT_LOOKED_UP
    """What the engine's project says of it, as it was looked up."""
    model: ClassVar[TinyModel] = TinyQwen2VL()
    max_model_len: ClassVar[int] = 2048
    server: ClassVar[str] = ""
    """Options of the server, as a shell has them."""
    server_if_known: ClassVar[str] = ""
    """One more option, for the releases that have it (``Engine.knows``)."""
    server_env: ClassVar[Mapping[str, str]] = {}
    """Variables that the server gets; the engine's own come before them."""
    patches: ClassVar[tuple[Patch, ...]] = ()
    """Stand-ins that the scenario itself needs, besides those of the engine."""
    control_server: ClassVar[Control | None] = None
    """Given, a second server with other options runs first; its evidence has phase
    "control"."""
    fails_at_start: ClassVar[bool] = False
    """The symptom is that the run's own server ends as it starts: then its log is all
    there is, and ``gate_check`` goes by the control server."""
    mitigations: ClassVar[tuple[Mitigation, ...]] = ()
    options: ClassVar[Mapping[str, str]] = {}
    """Options of its own (``--option NAME=VALUE``): name and description."""
    option_servers: ClassVar[Mapping[str, str]] = {}
    """By option: options of the server that come with it, after the scenario's own."""
    factors: ClassVar[tuple[Factor, ...]] = ()
    """What ``mmrepro ablate`` may flip."""
    sources: ClassVar[tuple[SourceRef, ...]] = ()
    reproducers: ClassVar[tuple[str, ...]] = ()
    """Single-file reproducers (names below ``reproducers/``) run in the engine's
    environment."""
    log_patterns: ClassVar[Mapping[str, str]] = {}
    """Name: regular expression; matching lines are kept by the logs probe. ``REFUSED``:
    the words in which a server with a fix refuses, as it starts, what the failure
    needs; such a run is judged by its log, as one in which the failure is not there."""
    key_log_patterns: ClassVar[tuple[str, ...]] = ()
    """Names of the patterns whose lines the report quotes."""
    preconditions: ClassVar[tuple[Declared, ...]] = ()
    """What is seen where the trigger arrived (``@precondition`` methods come after
    them): without one, no run of the scenario is ever ``not-reproduced``."""
    symptoms: ClassVar[tuple[Declared, ...]] = ()
    """Conditions of the symptom (``@symptom`` methods come after them)."""
    causes: ClassVar[tuple[Declared, ...]] = ()
    """Conditions of the cause (``@cause`` methods come after them)."""
    live_only: ClassVar[tuple[Declared, ...]] = ()
    """Conditions of a live server besides those that a run has too."""
    works_after: ClassVar[tuple[str | Check, ...]] = ()
    """Checks, or ids of conditions, that are all met where the engine still does its
    work after the trigger."""
    lasting_causes: ClassVar[tuple[str, ...]] = ()
    """Ids of the conditions of the cause that can be seen without the symptom; (): all
    can."""
    rows: ClassVar[tuple[Row, ...]] = ()
    """The table of symptoms; (): one row for each condition of the symptom."""
    claims: ClassVar[tuple[Claim, ...]] = ()
    """Statements of the original report (``@claim`` methods come after them)."""
    ablation_hypotheses: ClassVar[tuple[Hypothesis, ...]] = ()
    """Explanations and cures that were offered, for an ablation's table to judge."""

    variants: tuple[Scenario, ...] = ()
    """The ways in which the failure mode shows, the default first; see
    :func:`with_variants`."""

    # ----------------------------------------------------------- what it says of itself

    @property
    def title(self) -> str:
        texts = (
            paragraphs(cls.__doc__)[0] for cls in type(self).__mro__ if cls.__doc__
        )
        return next(texts).removesuffix(".")

    @property
    def summary(self) -> str:
        return section(_docstrings(self), "What:")

    @property
    def explanation(self) -> str:
        return section(_docstrings(self), "Why:")

    @property
    def report(self) -> str:
        """Id of the original report: the first reference."""
        return next((reference.id for reference in self.references), "")

    @property
    def server_args(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.server))

    @cached_property
    def affected_releases(self) -> SpecifierSet:
        return SpecifierSet(self.affected)

    def affects(self, release: str, device: str = "") -> bool:
        """``device``: cpu or cuda; "": it is not known."""
        affected = self.affected_releases.contains(Version(release), prereleases=True)
        return affected and not self.spares(device)

    def spares(self, device: str) -> str:
        """Why it does not happen on ``device``; "": it may, or the device is not
        known."""
        spared = device in ON and device not in self.devices
        return (
            f"it happens {self.where} alone, and this is {ON[device]}" if spared else ""
        )

    @property
    def where(self) -> str:
        """``on a CPU``; "": everywhere."""
        return (
            ""
            if {*self.devices} >= {*ON}
            else " or ".join(ON[one] for one in self.devices)
        )

    def patches_for(self, release: str) -> tuple[Patch, ...]:
        return self.patches

    # ------------------------------------------------------------------ traffic

    async def control(self, drive: Drive) -> None:
        """Drive the control server. What it must have done is for ``gate_check`` to
        say."""
        return

    async def gate(self, drive: Drive) -> None:
        """Show that the engine does this kind of work. Every request of it must be
        answered."""
        if self.model.image_tokens:
            await drive.chat(
                "gate: image 1 (cold)", images=[drive.picture("gate-1", 11)]
            )
            await drive.chat("gate: image 2", images=[drive.picture("gate-2", 12)])
        await drive.chat("gate: text only", text="hello")

    @abstractmethod
    async def trigger(self, drive: Drive) -> None:
        """Drive the engine into the failure, over its public API."""

    # ------------------------------------------------------------------ signature

    def conditions(self, facts: RunFacts) -> list[Condition]:
        """The signature: what is declared, and that what was flipped took effect."""
        flipped = [
            Declared(
                FLIP.format(f.name),
                "flip",
                f"{f.name} is flipped: {f.setting} instead of {f.failing}",
                f.took_effect,
            )
            for f in self.factors
            if f.name in facts.flips
        ]
        return [
            *(self._bound(declared, facts) for declared in self.declared()),
            *(self._bound(one, facts) for one in flipped),
        ]

    def declared(self) -> list[Declared]:
        """All conditions that the class declares, as attributes or methods:
        preconditions, then the symptom, then the cause."""
        methods = tagged(type(self), Declared)
        found = [*self.preconditions, *self.symptoms, *self.causes]
        found += [
            replace(one, check=getattr(self, name)) for name, one in methods.items()
        ]
        return sorted(found, key=lambda one: get_args(Part).index(one.part))

    def named_conditions(self) -> Iterator[tuple[str, str]]:
        """The conditions that rows and claims name: by what, and the id."""
        for row in self.rows:
            if isinstance(row.by, str):
                yield f"the row {row.name!r}", row.by
        for one in (*self.claims, *tagged(type(self), Claim).values()):
            for name in (*many(one.by or ()), *many(one.given)):
                if isinstance(name, str) and name not in (
                    "symptom",
                    "cause",
                    "arrived",
                ):
                    yield f"the claim {one.id!r}", name

    def _bound(self, declared: Declared, facts: RunFacts) -> Condition:
        assert declared.check is not None
        check = bind(declared.check, self, facts)
        statement = self.filled(declared.statement)
        changed = facts.mitigations | facts.flips
        waived = next((name for name in declared.removed_by if name in changed), "")
        return Condition(
            declared.id,
            declared.part,
            statement,
            check,
            required=declared.required,
            waived=waived,
            usual=not declared.abnormal or declared.check in checks.USUAL,
        )

    def filled(self, text: str) -> str:
        """``text`` with the attribute called so in the place of ``{name}``: variants
        share it."""
        return re.sub(
            r"\{(\w+)\}", lambda name: str(getattr(self, name[1], name[0])), text
        )

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """The signature on a live server: no gate was run, and no traffic but one small
        request.

        Of each condition its form for an observer; those that need the trigger's own
        requests or code run in the environment have none. ``live_only`` stands first.
        """
        release = facts.release or self.release
        run = RunFacts(release, Fidelity.LIVE, frozenset(), facts.deadline_s)
        if not self.declared():  # a signature of its own making
            return self.conditions(run)
        observed = {declared.id: declared for declared in self.live_only}
        for declared in self.declared():
            assert declared.check is not None
            live = declared.live
            if declared.part == "precondition":  # a look brings no trigger
                continue
            if isinstance(live, Declared):
                observed.setdefault(live.id, live)
            elif live == "optional":
                observed.setdefault(declared.id, replace(declared, required=False))
            elif live or (live is None and observable(_own(declared.check, self))):
                observed.setdefault(declared.id, declared)
        ordered = sorted(
            observed.values(), key=lambda declared: declared.part == "cause"
        )
        return [self._bound(declared, run) for declared in ordered]

    def exposure(self, facts: LiveFacts) -> Finding:
        """Whether a server of this release and with these options can fail so."""
        if facts.engine and facts.engine != self.engine:
            return Finding.of(False, f"the server is {facts.engine}, not {self.engine}")
        if spared := self.spares(facts.device):
            return Finding.of(False, spared)
        if not facts.release:
            return Finding.unknown("the release could not be found out")
        for cure in self.mitigations:
            applies = cure.effective_on.contains(
                Version(facts.release), prereleases=True
            )
            if applies and facts.has(cure.server_args):
                return Finding.of(
                    False, f"the server runs with {' '.join(cure.server_args)}"
                )
        return Finding.of(
            self.affects(facts.release),
            f"{self.engine} {facts.release}; affected: {self.affected_where}",
        )

    def recognises(self, failure: Failure) -> Finding:
        """Whether a failure of ``SILENT`` is this one, by what was sent: met names it.

        That a release is affected is not enough; see :mod:`mmrepro.scenario.silent`.
        """
        return Finding.unknown(
            f"{self.name} has nothing to recognise a silent failure by"
        )

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Whether the trigger ran to its end and the engine still does its work after
        it."""
        if not self.works_after:
            return Finding.unknown(f"{self.name} does not say what works_after it")
        by_id = {condition.id: condition.check for condition in self.conditions(facts)}
        checks = (
            by_id[c] if isinstance(c, str) else bind(c, self, facts)
            for c in self.works_after
        )
        return all_met(*(guarded(check, evidence) for check in checks))

    def refused_at_start(self, evidence: Evidence) -> Finding:
        """Whether a server that never got ready refused what the failure needs: its log
        says so in the words of pattern ``REFUSED``, if ``log_patterns`` has it."""
        logs = Logs(evidence)
        found = (
            logs.search(REFUSED, self.log_patterns[REFUSED])
            if logs.count(REFUSED)
            else []
        )
        return Finding.of(
            bool(found), found[0][0] if found else "its log says something else"
        )

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Whether the cause is still there in a run that may lack the symptom.

        It tells a cure (not met) from what only hides the failure (met). As everywhere,
        it is unknown unless evidence tells. Where some conditions of the cause can be
        seen only while the symptom lasts (the stack of a hang, say), ``lasting_causes``
        names the others."""
        causes = [c for c in self.conditions(facts) if c.required and c.part == "cause"]
        causes = [
            c for c in causes if not self.lasting_causes or c.id in self.lasting_causes
        ]
        results = evaluate(causes, evidence)
        truth = combine([r.truth for r in results])
        decisive = [r for r in results if r.truth is truth] or results
        return Finding(truth, "; ".join(f"{r.id}: {r.observed}" for r in decisive))

    def gate_check(self, evidence: Evidence) -> Finding:
        """Whether the steady state was reached: every gate request answered, with
        tokens."""
        requests = evidence.requests_in("gate")
        if not requests:
            return Finding.of(False, "no request was sent in the gate")
        for record in requests:
            if not record.answered:
                why = record.error or f"HTTP {record.status}"
                return Finding.of(False, f"{record.label}: {why}")
            if not record.completion_tokens:
                return Finding.of(False, f"{record.label}: an answer without tokens")
        return Finding.of(True, f"{len(requests)} of {len(requests)} requests answered")

    # ------------------------------------------------------------------ for the report

    def hypotheses(self, ablation: Ablation) -> list[ClaimResult]:
        """The original report's explanations, judged by the table of an ablation."""
        if not self.ablation_hypotheses:
            return []
        from mmrepro.scenario.hypotheses import judged

        return [judged(one, ablation, self.report) for one in self.ablation_hypotheses]

    def exhibits(self, evidence: Evidence, facts: RunFacts) -> list[Exhibit]:
        """What the report shows side by side: pictures and answers, curves."""
        return []

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        """The table of symptoms: ``rows``; where there are none, each condition of the
        symptom."""
        run = _Judged(self, evidence, facts)
        rows = self.rows or tuple(
            Row(
                self.filled(c.statement),
                c.id,
                reported=c.reported,
                abnormal_if=c.abnormal,
            )
            for c in self.declared()
            if c.part == "symptom"
        )
        return [run.row(row) for row in rows]

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        """The original report's statements, judged by this run: ``claims``, then the
        methods."""
        run = _Judged(self, evidence, facts)
        methods = tagged(type(self), Claim)
        found = [run.claim(claim, claim.by) for claim in self.claims]
        return found + [
            run.claim(claim, getattr(self, name)) for name, claim in methods.items()
        ]

    def key_stack(self, evidence: Evidence) -> KeyStack | None:
        return None

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        """Whether the stacks seen so far show all that is looked for; ends sampling
        early."""
        return False

    @property
    def looks_for_locals(self) -> bool:
        """Whether ``enough_stacks`` waits for something that not every sample shows."""
        return type(self).enough_stacks is not Scenario.enough_stacks

    # ------------------------------------------------------------------ by name

    def mitigation(self, name: str) -> Mitigation:
        """Raises UsageError and lists them."""
        return self._named("mitigation", name, {m.name: m for m in self.mitigations})

    def factor(self, name: str) -> Factor:
        """Raises UsageError and lists them."""
        return self._named("factor", name, {f.name: f for f in self.factors})

    def read_options(self, given: Sequence[str]) -> dict[str, str]:
        """``NAME`` and ``NAME=VALUE`` as a mapping. Raises UsageError: there is no such
        option."""
        options = {
            name: value for name, _, value in (text.partition("=") for text in given)
        }
        for name in options:
            self._named("option", name, self.options)
        return options

    def server_args_with(self, given: Sequence[str]) -> tuple[str, ...]:
        """Options of the server in a run with these ``--option``."""
        more = (self.option_servers.get(text.partition("=")[0], "") for text in given)
        return (
            *self.server_args,
            *(word for text in more for word in shlex.split(text)),
        )

    def with_variant(self, name: str) -> Scenario:
        """The variant called ``name``; "" means the default. Raises UsageError and
        lists them."""
        return (
            self._named("variant", name, {v.variant: v for v in self.variants})
            if name
            else self
        )

    def _named(self, kind: str, name: str, offered: Mapping[str, T]) -> T:
        if name in offered:
            return offered[name]
        raise UsageError(
            (
                f"Scenario {self.name} has no {kind} {name!r}; it has: "
                f"{', '.join(offered) or 'none'}."
            )
            + did_you_mean(name, offered),
            hint=f"mmrepro show {self.name}",
        )

    @property
    def full_name(self) -> str:
        """Name and variant, e.g. ``chunked-mm-prefill-async-race``."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def affected_range(self) -> str:
        """The affected releases, lower bound first."""
        parts = sorted(
            str(self.affected_releases).split(","),
            key=lambda part: (part[:1] != ">", part),
        )
        return ", ".join(parts)

    @property
    def affected_where(self) -> str:
        """The affected releases, and the device where that is one alone."""
        return (
            f"{self.affected_range}, {self.where} alone"
            if self.where
            else self.affected_range
        )

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of ``mmrepro list``: name, engine, affected, default release, what
        happens."""
        variants = ", ".join(v.variant for v in self.variants)
        title = f"{self.title} ({variants})" if variants else self.title
        return self.name, self.engine, self.affected_where, self.release, title

    @property
    def facts(self) -> ScenarioFacts:
        from mmrepro.failure.documents import ScenarioFacts

        return ScenarioFacts(
            name=self.name,
            variant=self.variant,
            title=self.title,
            summary=self.summary,
            affected=self.affected_range,
            where=self.where,
            explanation=self.explanation,
        )

    def expected_on(
        self, device: str, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        """As :meth:`expected`, of a run on ``device`` (cpu or cuda; "": it is not
        known)."""
        if spared := self.spares(device):
            return Outcome.NOT_REPRODUCED, spared
        return self.expected(release, mitigations)

    def expected(
        self, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        """The outcome that is expected of ``release`` under ``mitigations``, and
        why."""
        version = Version(release)
        if not self.affects(release):
            return (
                Outcome.NOT_REPRODUCED,
                (
                    f"release {release} is outside the affected range "
                    f"({self.affected_range})"
                ),
            )
        for name in sorted(mitigations):
            chosen = self.mitigation(name)
            if not chosen.release and chosen.effective_on.contains(
                version, prereleases=True
            ):
                return (
                    Outcome.NOT_REPRODUCED,
                    f"mitigation {name} is said to prevent it on {release}",
                )
        return (
            Outcome.REPRODUCED,
            f"release {release} is affected ({self.affected_range})",
        )


def with_variants(default: Scenario, *others: Scenario) -> Scenario:
    """A scenario that shows in several ways: ``SCENARIO = with_variants(One(),
    Another())``."""
    default.variants = (default, *others)
    return default


def paragraphs(text: str | None) -> list[str]:
    return [
        " ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n")
    ]


def _docstrings(scenario: Scenario) -> list[str]:
    """Those of its class and of what that inherits from, the nearest first."""
    return [cls.__doc__ or "" for cls in type(scenario).__mro__]


def section(docstrings: Iterable[str], mark: str) -> str:
    """The paragraphs from ``mark`` to the next mark, of the first docstring that has
    it."""
    for text in docstrings:
        found: list[str] = []
        taken = False
        for part in paragraphs(text)[1:]:
            word = part.split(" ", 1)[0]
            if word in ("What:", "Why:"):
                taken = word == mark
            if taken:
                found.append(part.removeprefix(mark).strip())
        if found:
            return "\n\n".join(found)
    return ""


# ---------------------------------------------------------------- what a check asks for


def bind(
    check: Callable[..., Any], scenario: Scenario, facts: RunFacts
) -> Callable[..., Any]:
    """``check`` as a function of evidence alone: the rest goes by the types of its
    parameters.

    Raises:
        BrokenScenario: it asks for something that there is not.
    """
    method = _own(check, scenario)
    wanted = parameters(method)

    def given(kind: type, evidence: Evidence) -> object:
        if issubclass(kind, View):
            return kind(evidence)
        if issubclass(kind, ProbeData):
            return _probed(kind, evidence)
        if issubclass(kind, RunFacts):
            return facts
        return get_engine(scenario.engine) if issubclass(kind, Engine) else evidence

    return lambda evidence: method(*(given(kind, evidence) for kind in wanted))


def _own(check: Callable[..., Any], scenario: Scenario) -> Callable[..., Any]:
    """A function of the scenario's class, named in the class's body, as the method that
    it is."""
    name = getattr(check, "__name__", "")
    ours = any(vars(cls).get(name) is check for cls in type(scenario).__mro__)
    return getattr(scenario, name) if ours else check


def observable(check: Callable[..., Any]) -> bool:
    """Whether one who only looks at a server has all that ``check`` asks for."""
    return all(
        (issubclass(kind, View) and kind.observable)
        or issubclass(kind, ProbeData | Engine)
        for kind in parameters(check)
    )


def parameters(check: Callable[..., Any]) -> tuple[type, ...]:
    """Types of the positional parameters, those with a default left out."""
    return _parameters(
        getattr(check, "__func__", check), bound=hasattr(check, "__self__")
    )


@lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any], *, bound: bool) -> tuple[type, ...]:
    where = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
    wanted = list(inspect.signature(function).parameters.values())
    try:
        hints = typing.get_type_hints(function) if wanted else {}
    except NameError as error:
        raise BrokenScenario(
            f"{where}: {error}; the types of a check's parameters are needed when it "
            "runs, so import them outside TYPE_CHECKING."
        ) from error
    found = []
    for parameter in wanted[1 if bound else 0 :]:
        if parameter.default is not inspect.Parameter.empty:
            continue
        kind = hints.get(parameter.name, Evidence)
        known = (Evidence, RunFacts, Engine, View, ProbeData)
        if not (isinstance(kind, type) and issubclass(kind, known)):
            raise BrokenScenario(
                f"{where} asks for {parameter.name}: {kind!r}, which no evidence is.",
                hint=(
                    "Evidence, Requests, Logs, Metrics, Processes, StacksData, "
                    "RunFacts, …"
                ),
            )
        found.append(kind)
    return tuple(found)


def _probed(kind: type[ProbeData], evidence: Evidence) -> ProbeData:
    """The data of the check: all stack samples in one, else the last. Raises
    Missing."""
    found = [data for _, data in evidence.results(kind, "check")]
    if not found:
        raise Missing(evidence.why_missing(kind.model_fields["kind"].default, "check"))
    if issubclass(kind, StacksData):
        samples = [
            s for data in found if isinstance(data, StacksData) for s in data.samples
        ]
        return StacksData(samples=samples)
    return found[-1]


# -------------------------------------------------------------- rows and claims, judged


class _Judged:
    """One run of a scenario, and what was found of each of its conditions."""

    def __init__(self, scenario: Scenario, evidence: Evidence, facts: RunFacts) -> None:
        self.scenario, self.evidence, self.facts = scenario, evidence, facts
        judged = evaluate(scenario.conditions(facts), evidence)
        gate = guarded(scenario.gate_check, evidence)

        def whole(part: Part) -> Finding:
            results = [r for r in judged if r.required and r.part == part]
            observed = "; ".join(f"{r.id}: {r.observed}" for r in results)
            return Finding(combine([r.truth for r in results]), observed)

        self.results: Mapping[str, Finding] = {
            "symptom": whole("symptom"),
            "cause": whole("cause"),
            "arrived": all_met(gate, Finding.of(*trigger_arrived(judged))),
            **{r.id: Finding(r.truth, r.observed, tuple(r.evidence)) for r in judged},
        }

    def row(self, row: Row) -> SymptomRow:
        from mmrepro.failure.documents import SymptomRow

        found = self.found(row.by)
        known = found.truth is not Truth.UNKNOWN and row.abnormal_if is not None
        return SymptomRow(
            check=self.text(row.name),
            healthy=self.text(row.healthy),
            observed=found.observed,
            abnormal=(found.truth is Truth.MET) == row.abnormal_if if known else None,
            reported=row.reported,
        )

    def text(self, text: str | Callable[..., str | Finding]) -> str:
        if isinstance(text, str):
            return text
        try:
            found = bind(text, self.scenario, self.facts)(self.evidence)
        except Missing:
            return ""
        return found.observed if isinstance(found, Finding) else str(found)

    def claim(self, claim: Claim, by: str | Many | Check | None) -> ClaimResult:
        from mmrepro.failure.documents import ClaimResult

        filled = self.scenario.filled
        claim = replace(
            claim,
            text=filled(claim.text),
            source=filled(named(claim.source)) or self.scenario.report,
            otherwise=filled(claim.otherwise),
            untested=filled(claim.untested),
        )
        found = self._tested(claim, by)
        note = (
            f" ({claim.note})"
            if claim.note and found.truth is not Truth.UNKNOWN
            else ""
        )
        truth = OPPOSITE.get(found.truth, found.truth) if claim.refuted else found.truth
        observed = found.observed + note
        if claim.solved and truth is Truth.MET:
            truth = Truth.UNKNOWN
            observed += f": consistent with it, no more: {claim.solved}"
        return ClaimResult(
            id=claim.id,
            text=claim.text,
            source=named(claim.source),
            status=STATUS[truth],
            observed=observed,
        )

    def _tested(self, claim: Claim, by: str | Many | Check | None) -> Finding:
        if claim.untested:
            return Finding.unknown(claim.untested)
        if spared := self.scenario.spares(self.facts.fidelity.device):
            return Finding.unknown(spared)
        project = named(claim.source).partition("#")[0]
        taught = self.facts.fidelity is Fidelity.TEACHING_ENGINE
        if taught and project in PROJECTS and project != self.scenario.engine:
            return Finding.unknown(
                f"a run of a teaching engine tells nothing of {project}"
            )
        if claim.releases and self.facts.version not in SpecifierSet(claim.releases):
            return Finding.unknown(
                f"this run is of {self.facts.release}; it is said of {claim.releases}"
            )
        for condition in many(claim.given):
            if self.found(condition).truth is not Truth.MET:
                without = f" without {condition}" if isinstance(condition, str) else ""
                why = claim.otherwise or f"not tested{without}"
                return Finding.unknown(f"{why}: {self.found(condition).observed}")
        if not by:
            return Finding.unknown("not tested")
        return self._held(claim, all_met(*(self.found(one) for one in many(by))))

    def _held(self, claim: Claim, found: Finding) -> Finding:
        """``found``, unless it would refute the claim by a release of which nobody said
        it."""
        against = found.truth is (Truth.MET if claim.refuted else Truth.NOT_MET)
        if against and (changed := self._cured(claim)):
            return Finding.unknown(f"not tested with {changed}: {found.observed}")
        where = claim.refutable_on
        if not (against and where) or self.facts.version in SpecifierSet(where):
            return found
        return Finding.unknown(
            f"said of {where}; on {self.facts.release}: {found.observed}"
        )

    def _cured(self, claim: Claim) -> str:
        """What was changed in this run, which did not show the failure, and is not what
        the claim is about; "": nothing. Another release is none: it is asked for by
        ``releases``."""
        releases = {m.name for m in self.scenario.mitigations if m.release}
        changes = sorted((self.facts.mitigations - releases) | self.facts.flips)
        about = claim.cured or any(
            hasattr(c, ASKS_FOR_A_CHANGE) for c in many(claim.given)
        )
        shown = all_met(self.found("symptom"), self.found("cause")).truth is Truth.MET
        return "" if about or shown else ", ".join(changes)

    def found(self, by: str | Check) -> Finding:
        """Of a condition, by its id, or of a check. An id that there is not is
        unknown."""
        if isinstance(by, str):
            return self.results.get(by) or Finding.unknown(
                f"there is no condition {by} here"
            )
        return guarded(bind(by, self.scenario, self.facts), self.evidence)
