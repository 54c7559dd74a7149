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
from mmrepro.engines import Engine, Mitigation, Patch, get_engine
from mmrepro.engines.models import TinyModel, TinyQwen2VL
from mmrepro.failure.signature import (
    FLIP,
    Condition,
    Finding,
    Logs,
    Outcome,
    Part,
    Truth,
    View,
    all_met,
    checks,
    combine,
    evaluate,
    guarded,
    trigger_arrived,
)
from mmrepro.probes import ProbeData, StackSample, StacksData
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
    from mmrepro.traffic import Drive

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
    runner: ClassVar[str] = ""
    """The only model runner whose code has the fault, as a run names it; "": any."""
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
        """The first line of the nearest docstring."""
        texts = [cls.__doc__ for cls in type(self).__mro__ if cls.__doc__]
        return paragraphs(texts[0])[0].removesuffix(".")

    @property
    def summary(self) -> str:
        """What happens: the paragraphs from ``What:`` on."""
        return section(_docstrings(self), "What:")

    @property
    def explanation(self) -> str:
        """Why it happens: the paragraphs from ``Why:`` on."""
        return section(_docstrings(self), "Why:")

    @property
    def report(self) -> str:
        """Id of the original report: the first reference."""
        return self.references[0].id if self.references else ""

    @property
    def server_args(self) -> tuple[str, ...]:
        """The server's options, word by word."""
        return tuple(shlex.split(self.server))

    @cached_property
    def affected_releases(self) -> SpecifierSet:
        """The affected releases, to be asked for one."""
        return SpecifierSet(self.affected)

    def affects(self, release: str, device: str = "") -> bool:
        """``device``: cpu or cuda; "": it is not known."""
        affected = self.affected_releases.contains(Version(release), prereleases=True)
        return affected and not self.spares(device)

    def spares(self, device: str, runner: str = "") -> str:
        """Why it does not happen on ``device`` with that model runner; "": it may, or
        they are not known."""
        if device in ON and device not in self.devices:
            return f"it happens {self.where} alone, and this is {ON[device]}"
        if self.runner and runner and self.runner not in runner.split(", "):
            return f"it is in {self.runner} alone, and this server ran {runner}"
        return ""

    @property
    def where(self) -> str:
        """``on a CPU``; "": everywhere."""
        if set(self.devices) >= set(ON):
            return ""
        return " or ".join(ON[device] for device in self.devices)

    def patches_for(self, release: str) -> tuple[Patch, ...]:
        """Stand-ins that a run of ``release`` needs."""
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
        conditions = [self._bound(declared, facts) for declared in self.declared()]
        for factor in self.factors:
            if factor.name not in facts.flips:
                continue
            flipped = Declared(
                FLIP.format(factor.name),
                "flip",
                f"{factor.name} is flipped: {factor.setting} instead of {factor.failing}",
                factor.took_effect,
            )
            conditions.append(self._bound(flipped, facts))
        return conditions

    def declared(self) -> list[Declared]:
        """All conditions that the class declares, as attributes or methods:
        preconditions, then the symptom, then the cause."""
        declared = [*self.preconditions, *self.symptoms, *self.causes]
        for name, condition in tagged(type(self), Declared).items():
            declared.append(replace(condition, check=getattr(self, name)))
        order = get_args(Part)
        return sorted(declared, key=lambda condition: order.index(condition.part))

    def named_conditions(self) -> Iterator[tuple[str, str]]:
        """The conditions that rows and claims name: by what, and the id."""
        for row in self.rows:
            if isinstance(row.by, str):
                yield f"the row {row.name!r}", row.by
        # A claim may also go by what a run as a whole shows.
        of_the_run = ("symptom", "cause", "arrived")
        for claim in (*self.claims, *tagged(type(self), Claim).values()):
            for name in (*many(claim.by or ()), *many(claim.given)):
                if isinstance(name, str) and name not in of_the_run:
                    yield f"the claim {claim.id!r}", name

    def _bound(self, declared: Declared, facts: RunFacts) -> Condition:
        assert declared.check is not None
        check = bind(declared.check, self, facts)
        statement = self.filled(declared.statement)
        changed = facts.mitigations | facts.flips
        removed_by = [name for name in declared.removed_by if name in changed]
        return Condition(
            declared.id,
            declared.part,
            statement,
            check,
            required=declared.required,
            waived=removed_by[0] if removed_by else "",
            usual=not declared.abnormal or declared.check in checks.USUAL,
        )

    def filled(self, text: str) -> str:
        """``text`` with the attribute called so in the place of ``{name}``: variants
        share it."""

        def attribute(match: re.Match[str]) -> str:
            return str(getattr(self, match[1], match[0]))

        return re.sub(r"\{(\w+)\}", attribute, text)

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """The signature on a live server: no gate was run, and no traffic but one small
        request.

        Of each condition its form for an observer; those that need the trigger's own
        requests or code run in the environment have none. ``live_only`` stands first.
        """
        release = facts.release or self.release
        run = RunFacts(release, Fidelity.LIVE, frozenset(), facts.deadline_s)
        # A scenario may override `conditions`, and declare none.
        if not self.declared():
            return self.conditions(run)

        observed = {declared.id: declared for declared in self.live_only}
        for declared in self.declared():
            form = self._observer_form(declared)
            if form is not None:
                observed.setdefault(form.id, form)
        ordered = sorted(
            observed.values(), key=lambda declared: declared.part == "cause"
        )
        return [self._bound(declared, run) for declared in ordered]

    def _observer_form(self, declared: Declared) -> Declared | None:
        """The condition as an observer may try it; None: it has none."""
        # Who only looks at a server brings no trigger.
        if declared.part == "precondition":
            return None
        assert declared.check is not None
        live = declared.live
        if isinstance(live, Declared):
            return live
        if live == "optional":
            return replace(declared, required=False)
        if live or (live is None and observable(_own(declared.check, self))):
            return declared
        return None

    def exposure(self, facts: LiveFacts) -> Finding:
        """Whether a server of this release and with these options can fail so."""
        if facts.engine and facts.engine != self.engine:
            return Finding.of(False, f"the server is {facts.engine}, not {self.engine}")
        spared = self.spares(facts.device)
        if spared:
            return Finding.of(False, spared)
        if not facts.release:
            return Finding.unknown("the release could not be found out")

        version = Version(facts.release)
        for cure in self.mitigations:
            applies = cure.effective_on.contains(version, prereleases=True)
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
        findings: list[Finding] = []
        for works in self.works_after:
            check = by_id[works] if isinstance(works, str) else bind(works, self, facts)
            findings.append(guarded(check, evidence))
        return all_met(*findings)

    def refused_at_start(self, evidence: Evidence) -> Finding:
        """Whether a server that never got ready refused what the failure needs: its log
        says so in the words of pattern ``REFUSED``, if ``log_patterns`` has it."""
        logs = Logs(evidence)
        if logs.count(REFUSED):
            words = logs.search(REFUSED, self.log_patterns[REFUSED])
            if words:
                return Finding.of(True, words[0][0])
        return Finding.of(False, "its log says something else")

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Whether the cause is still there in a run that may lack the symptom.

        It tells a cure (not met) from what only hides the failure (met). As everywhere,
        it is unknown unless evidence tells. Where some conditions of the cause can be
        seen only while the symptom lasts (the stack of a hang, say), ``lasting_causes``
        names the others."""
        causes: list[Condition] = []
        for condition in self.conditions(facts):
            lasts = not self.lasting_causes or condition.id in self.lasting_causes
            if condition.required and condition.part == "cause" and lasts:
                causes.append(condition)

        results = evaluate(causes, evidence)
        truth = combine([result.truth for result in results])
        decisive = [result for result in results if result.truth is truth] or results
        observed = [f"{result.id}: {result.observed}" for result in decisive]
        return Finding(truth, "; ".join(observed))

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

        source = self.report
        return [
            judged(declared, ablation, source) for declared in self.ablation_hypotheses
        ]

    def exhibits(self, evidence: Evidence, facts: RunFacts) -> list[Exhibit]:
        """What the report shows side by side: pictures and answers, curves."""
        return []

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        """The table of symptoms: ``rows``; where there are none, each condition of the
        symptom."""
        run = _JudgedConditions(self, evidence, facts)
        rows = self.rows or self._rows_of_symptom()
        return [run.row(row) for row in rows]

    def _rows_of_symptom(self) -> tuple[Row, ...]:
        rows: list[Row] = []
        for condition in self.declared():
            if condition.part == "symptom":
                row = Row(
                    self.filled(condition.statement),
                    condition.id,
                    reported=condition.reported,
                    abnormal_if=condition.abnormal,
                )
                rows.append(row)
        return tuple(rows)

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        """The original report's statements, judged by this run: ``claims``, then the
        methods."""
        run = _JudgedConditions(self, evidence, facts)
        results = [run.claim(claim, claim.by) for claim in self.claims]
        for name, claim in tagged(type(self), Claim).items():
            results.append(run.claim(claim, getattr(self, name)))
        return results

    def key_stack(self, evidence: Evidence) -> KeyStack | None:
        """The stack that shows the cause, for the report; None: it has none."""
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
        options: dict[str, str] = {}
        for text in given:
            name, _, value = text.partition("=")
            options[name] = value
        for name in options:
            self._named("option", name, self.options)
        return options

    def server_args_with(self, given: Sequence[str]) -> tuple[str, ...]:
        """Options of the server in a run with these ``--option``."""
        words = [*self.server_args]
        for text in given:
            name = text.partition("=")[0]
            words += shlex.split(self.option_servers.get(name, ""))
        return tuple(words)

    def with_variant(self, name: str) -> Scenario:
        """The variant called ``name``; "" means the default. Raises UsageError and
        lists them."""
        if not name:
            return self
        return self._named("variant", name, {v.variant: v for v in self.variants})

    def _named(self, kind: str, name: str, offered: Mapping[str, T]) -> T:
        if name in offered:
            return offered[name]
        has = ", ".join(offered) or "none"
        raise UsageError(
            f"Scenario {self.name} has no {kind} {name!r}; it has: {has}."
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
        if not self.where:
            return self.affected_range
        return f"{self.affected_range}, {self.where} alone"

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of ``mmrepro list``: name, engine, affected, default release, what
        happens."""
        variants = ", ".join(v.variant for v in self.variants)
        title = f"{self.title} ({variants})" if variants else self.title
        return self.name, self.engine, self.affected_where, self.release, title

    @property
    def facts(self) -> ScenarioFacts:
        """What a report says of the scenario itself."""
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
        self,
        device: str,
        release: str,
        mitigations: frozenset[str],
        runner: str = "",
    ) -> tuple[Outcome, str]:
        """The outcome as of :meth:`expected`, of a run on ``device`` (cpu or cuda; "":
        it is not known) with that model runner."""
        spared = self.spares(device, runner)
        if spared:
            return Outcome.NOT_REPRODUCED, spared
        return self.expected(release, mitigations)

    def expected(
        self, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        """The outcome that is expected of ``release`` under ``mitigations``, and
        why."""
        affected = self.affected_range
        if not self.affects(release):
            why = f"release {release} is outside the affected range ({affected})"
            return Outcome.NOT_REPRODUCED, why

        version = Version(release)
        for name in sorted(mitigations):
            cure = self.mitigation(name)
            # One that is another release is judged by that release.
            if cure.release:
                continue
            if cure.effective_on.contains(version, prereleases=True):
                why = f"mitigation {name} is said to prevent it on {release}"
                return Outcome.NOT_REPRODUCED, why
        return Outcome.REPRODUCED, f"release {release} is affected ({affected})"


def with_variants(default: Scenario, *others: Scenario) -> Scenario:
    """A scenario that shows in several ways: ``SCENARIO = with_variants(One(),
    Another())``."""
    default.variants = (default, *others)
    return default


def paragraphs(text: str | None) -> list[str]:
    """The paragraphs of a docstring, each in one line."""
    parts = inspect.cleandoc(text or "").split("\n\n")
    return [" ".join(part.split()) for part in parts]


def _docstrings(scenario: Scenario) -> list[str]:
    """The docstrings of its class and of what that inherits from, the nearest first."""
    return [cls.__doc__ or "" for cls in type(scenario).__mro__]


def section(docstrings: Iterable[str], mark: str) -> str:
    """The paragraphs from ``mark`` to the next mark, of the first docstring that has
    it."""
    for text in docstrings:
        taken: list[str] = []
        within = False
        for part in paragraphs(text)[1:]:
            word = part.split(" ", 1)[0]
            if word in ("What:", "Why:"):
                within = word == mark
            if within:
                taken.append(part.removeprefix(mark).strip())
        if taken:
            return "\n\n".join(taken)
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
    kinds = parameters(method)

    def given(kind: type, evidence: Evidence) -> object:
        if issubclass(kind, View):
            return kind(evidence)
        if issubclass(kind, ProbeData):
            return _probed(kind, evidence)
        if issubclass(kind, RunFacts):
            return facts
        if issubclass(kind, Engine):
            return get_engine(scenario.engine)
        return evidence

    def bound(evidence: Evidence) -> Any:
        return method(*[given(kind, evidence) for kind in kinds])

    return bound


def _own(check: Callable[..., Any], scenario: Scenario) -> Callable[..., Any]:
    """A function of the scenario's class, named in the class's body, as the method that
    it is."""
    name = getattr(check, "__name__", "")
    ours = any(vars(cls).get(name) is check for cls in type(scenario).__mro__)
    return getattr(scenario, name) if ours else check


def observable(check: Callable[..., Any]) -> bool:
    """Whether one who only looks at a server has all that ``check`` asks for."""
    for kind in parameters(check):
        is_seen = issubclass(kind, View) and kind.observable
        if not is_seen and not issubclass(kind, ProbeData | Engine):
            return False
    return True


def parameters(check: Callable[..., Any]) -> tuple[type, ...]:
    """Types of the positional parameters, those with a default left out."""
    return _parameters(
        getattr(check, "__func__", check), bound=hasattr(check, "__self__")
    )


@lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any], *, bound: bool) -> tuple[type, ...]:
    module = getattr(function, "__module__", "?")
    where = f"{module}.{getattr(function, '__qualname__', function)}"
    declared = list(inspect.signature(function).parameters.values())
    try:
        hints = typing.get_type_hints(function) if declared else {}
    except NameError as error:
        raise BrokenScenario(
            f"{where}: {error}; the types of a check's parameters are needed when it "
            "runs, so import them outside TYPE_CHECKING."
        ) from error

    kinds: list[type] = []
    for parameter in declared[1 if bound else 0 :]:
        if parameter.default is not inspect.Parameter.empty:
            continue
        kind = hints.get(parameter.name, Evidence)
        known = (Evidence, RunFacts, Engine, View, ProbeData)
        if not (isinstance(kind, type) and issubclass(kind, known)):
            raise BrokenScenario(
                f"{where} asks for {parameter.name}: {kind!r}, which no evidence is.",
                hint="Evidence, Requests, Logs, Metrics, Processes, StacksData, "
                "RunFacts, …",
            )
        kinds.append(kind)
    return tuple(kinds)


def _probed(kind: type[ProbeData], evidence: Evidence) -> ProbeData:
    """The data of the check: all stack samples in one, else the last. Raises
    Missing."""
    readings = [data for _, data in evidence.results(kind, "check")]
    if not readings:
        raise Missing(evidence.why_missing(kind.model_fields["kind"].default, "check"))
    if not issubclass(kind, StacksData):
        return readings[-1]
    samples: list[StackSample] = []
    for data in readings:
        if isinstance(data, StacksData):
            samples += data.samples
    return StacksData(samples=samples)


# -------------------------------------------------------------- rows and claims, judged


class _JudgedConditions:
    """One run of a scenario, and what was found of each of its conditions."""

    def __init__(self, scenario: Scenario, evidence: Evidence, facts: RunFacts) -> None:
        self.scenario, self.evidence, self.facts = scenario, evidence, facts
        judged = evaluate(scenario.conditions(facts), evidence)
        gate = guarded(scenario.gate_check, evidence)

        def whole(part: Part) -> Finding:
            results = [r for r in judged if r.required and r.part == part]
            observed = [f"{result.id}: {result.observed}" for result in results]
            truth = combine([result.truth for result in results])
            return Finding(truth, "; ".join(observed))

        self.results: dict[str, Finding] = {
            "symptom": whole("symptom"),
            "cause": whole("cause"),
            "arrived": all_met(gate, Finding.of(*trigger_arrived(judged))),
        }
        for result in judged:
            finding = Finding(result.truth, result.observed, tuple(result.evidence))
            self.results[result.id] = finding

    def row(self, row: Row) -> SymptomRow:
        """A row of the table, judged."""
        from mmrepro.failure.documents import SymptomRow

        finding = self.finding(row.by)
        abnormal = None
        if finding.truth is not Truth.UNKNOWN and row.abnormal_if is not None:
            abnormal = (finding.truth is Truth.MET) == row.abnormal_if
        return SymptomRow(
            check=self.text(row.name),
            healthy=self.text(row.healthy),
            observed=finding.observed,
            abnormal=abnormal,
            reported=row.reported,
        )

    def text(self, text: str | Callable[..., str | Finding]) -> str:
        """A text, or what a function of the evidence says; "": something is
        missing."""
        if isinstance(text, str):
            return text
        try:
            answer = bind(text, self.scenario, self.facts)(self.evidence)
        except Missing:
            return ""
        return answer.observed if isinstance(answer, Finding) else str(answer)

    def claim(self, claim: Claim, by: str | Many | Check | None) -> ClaimResult:
        """A statement of the original report, judged."""
        from mmrepro.failure.documents import ClaimResult

        filled = self.scenario.filled
        claim = replace(
            claim,
            text=filled(claim.text),
            source=filled(named(claim.source)) or self.scenario.report,
            otherwise=filled(claim.otherwise),
            untested=filled(claim.untested),
        )
        finding = self._tested(claim, by)
        truth, observed = finding.truth, finding.observed
        if claim.note and truth is not Truth.UNKNOWN:
            observed += f" ({claim.note})"
        if claim.refuted:
            truth = OPPOSITE.get(truth, truth)
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
        """What the run says of a claim; unknown where it does not test it."""
        if claim.untested:
            return Finding.unknown(claim.untested)
        facts = self.facts
        spared = self.scenario.spares(facts.fidelity.device, facts.runner)
        if spared:
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
            finding = self.finding(condition)
            if finding.truth is not Truth.MET:
                without = f" without {condition}" if isinstance(condition, str) else ""
                why = claim.otherwise or f"not tested{without}"
                return Finding.unknown(f"{why}: {finding.observed}")
        if not by:
            return Finding.unknown("not tested")
        findings = [self.finding(condition) for condition in many(by)]
        return self._held(claim, all_met(*findings))

    def _held(self, claim: Claim, finding: Finding) -> Finding:
        """``finding``, unless it would refute the claim by a release of which nobody
        said it."""
        against = finding.truth is (Truth.MET if claim.refuted else Truth.NOT_MET)
        if not against:
            return finding
        changed = self._cured(claim)
        if changed:
            return Finding.unknown(f"not tested with {changed}: {finding.observed}")
        where = claim.refutable_on
        if not where or self.facts.version in SpecifierSet(where):
            return finding
        return Finding.unknown(
            f"said of {where}; on {self.facts.release}: {finding.observed}"
        )

    def _cured(self, claim: Claim) -> str:
        """What was changed in this run, which did not show the failure, and is not what
        the claim is about; "": nothing. Another release is none: it is asked for by
        ``releases``."""
        given = many(claim.given)
        about_a_change = any(hasattr(check, ASKS_FOR_A_CHANGE) for check in given)
        if claim.cured or about_a_change:
            return ""
        shown = all_met(self.finding("symptom"), self.finding("cause"))
        if shown.truth is Truth.MET:
            return ""
        releases = {m.name for m in self.scenario.mitigations if m.release}
        changes = (self.facts.mitigations - releases) | self.facts.flips
        return ", ".join(sorted(changes))

    def finding(self, by: str | Check) -> Finding:
        """The finding of a condition, by its id, or of a check. An unknown id is
        unknown."""
        if not isinstance(by, str):
            return guarded(bind(by, self.scenario, self.facts), self.evidence)
        known = self.results.get(by)
        return known or Finding.unknown(f"there is no condition {by} here")
