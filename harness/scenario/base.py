"""What a scenario is: one known failure mode of one engine."""

from __future__ import annotations

import inspect
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar, get_args

from mmrepro.engines.changes import Mitigation, Patch
from mmrepro.errors import UsageError
from mmrepro.evidence import Evidence
from mmrepro.incident import (
    ClaimResult,
    Exhibit,
    Fidelity,
    KeyStack,
    Reference,
    ScenarioFacts,
    SymptomRow,
)
from mmrepro.models import TinyModel, TinyQwen2VL
from mmrepro.probes.data import StackSample
from mmrepro.scenario import tables
from mmrepro.scenario.bind import Check, bind, observable, own
from mmrepro.scenario.declare import Claim, Declared, Hypothesis, Row, many, tagged
from mmrepro.scenario.parts import Control, Factor, Failure, LiveFacts, RunFacts, SourceRef
from mmrepro.scenario.standing import NOT_LOOKED_UP, FailureClass, Severity, Upstream
from mmrepro.signature import (
    Condition,
    Finding,
    Outcome,
    Part,
    combine,
    evaluate,
)
from mmrepro.signature.decide import FLIP, all_met, guarded
from mmrepro.traffic.drive import Drive
from packaging.specifiers import SpecifierSet
from packaging.version import Version

T = TypeVar("T")

if TYPE_CHECKING:
    from mmrepro.incident.ablation import Ablation


class Scenario(ABC):
    """One known failure mode: its definition, its traffic, its signature.

    Subclass it in one file, set the class attributes, and bind an instance to ``SCENARIO``. The
    docstring is the report's: its first line the title, the paragraphs from ``What:`` on the
    summary, those from ``Why:`` on the explanation.
    """

    name: ClassVar[str]
    variant: ClassVar[str] = ""
    """Name of this variant, where a scenario has several."""
    engine: ClassVar[str] = "vllm"
    release: ClassVar[str]
    """The release that is run by default."""
    affected: ClassVar[str]
    """The affected releases, e.g. ``>=0.11.0,<0.16.0``."""
    references: ClassVar[tuple[Reference, ...]] = ()
    failure_class: ClassVar[FailureClass | None] = None
    """What a user sees; every scenario of mmrepro's own says so, and how bad it is."""
    severity: ClassVar[Severity | None] = None
    upstream: ClassVar[Upstream] = NOT_LOOKED_UP
    """What the engine's project says of it, as it was looked up."""
    model: ClassVar[TinyModel] = TinyQwen2VL()
    max_model_len: ClassVar[int] = 2048
    server: ClassVar[str] = ""
    """Options of the server, as a shell has them."""
    server_env: ClassVar[Mapping[str, str]] = {}
    """Variables that the server gets; the engine's own come before them."""
    patches: ClassVar[tuple[Patch, ...]] = ()
    """Stand-ins that the scenario itself needs, besides those of the engine."""
    control_server: ClassVar[Control | None] = None
    """Given, a second server with other options runs first; its evidence has phase "control"."""
    fails_at_start: ClassVar[bool] = False
    """The symptom is that the run's own server ends as it starts: then its log is all there is, and
    ``gate_check`` goes by the control server."""
    mitigations: ClassVar[tuple[Mitigation, ...]] = ()
    options: ClassVar[Mapping[str, str]] = {}
    """Options of its own (``--option NAME=VALUE``): name and description."""
    option_servers: ClassVar[Mapping[str, str]] = {}
    """By option: options of the server that come with it, after the scenario's own."""
    factors: ClassVar[tuple[Factor, ...]] = ()
    """What ``mmrepro ablate`` may flip."""
    sources: ClassVar[tuple[SourceRef, ...]] = ()
    reproducers: ClassVar[tuple[str, ...]] = ()
    """Single-file reproducers (names below ``reproducers/``) run in the engine's environment."""
    log_patterns: ClassVar[Mapping[str, str]] = {}
    """Name: regular expression; matching lines are kept by the logs probe."""
    key_log_patterns: ClassVar[tuple[str, ...]] = ()
    """Names of the patterns whose lines the report quotes."""
    preconditions: ClassVar[tuple[Declared, ...]] = ()
    """What is seen where the trigger arrived (``@precondition`` methods come after them): without
    one, no run of the scenario is ever ``not-reproduced``."""
    symptoms: ClassVar[tuple[Declared, ...]] = ()
    """Conditions of the symptom (``@symptom`` methods come after them)."""
    causes: ClassVar[tuple[Declared, ...]] = ()
    """Conditions of the cause (``@cause`` methods come after them)."""
    live_only: ClassVar[tuple[Declared, ...]] = ()
    """Conditions of a live server besides those that a run has too."""
    works_after: ClassVar[tuple[str | Check, ...]] = ()
    """Checks, or ids of conditions, that are all met where the engine still does its work after the
    trigger."""
    lasting_causes: ClassVar[tuple[str, ...]] = ()
    """Ids of the conditions of the cause that can be seen without the symptom; (): all can."""
    rows: ClassVar[tuple[Row, ...]] = ()
    """The table of symptoms; (): one row for each condition of the symptom."""
    claims: ClassVar[tuple[Claim, ...]] = ()
    """Statements of the original report (``@claim`` methods come after them)."""
    ablation_hypotheses: ClassVar[tuple[Hypothesis, ...]] = ()
    """Explanations and cures that were offered, for an ablation's table to judge."""

    variants: tuple[Scenario, ...] = ()
    """The ways in which the failure mode shows, the default first; see :func:`with_variants`."""

    # ------------------------------------------------------------------ what it says of itself

    @property
    def title(self) -> str:
        texts = (_paragraphs(cls.__doc__)[0] for cls in type(self).__mro__ if cls.__doc__)
        return next(texts).removesuffix(".")

    @property
    def summary(self) -> str:
        return _told(self, "What:")

    @property
    def explanation(self) -> str:
        return _told(self, "Why:")

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

    def affects(self, release: str) -> bool:
        return self.affected_releases.contains(Version(release), prereleases=True)

    def patches_for(self, release: str) -> tuple[Patch, ...]:
        """The scenario's stand-ins on ``release``."""
        return self.patches

    # ------------------------------------------------------------------ traffic

    async def control(self, drive: Drive) -> None:
        """Drive the control server. What it must have done is for ``gate_check`` to say."""
        return

    async def gate(self, drive: Drive) -> None:
        """Show that the engine does this kind of work. Every request of it must be answered."""
        if self.model.image_tokens:
            await drive.chat("gate: image 1 (cold)", images=[drive.picture("gate-1", 11)])
            await drive.chat("gate: image 2", images=[drive.picture("gate-2", 12)])
        await drive.chat("gate: text only", text="hello")

    @abstractmethod
    async def trigger(self, drive: Drive) -> None:
        """Drive the engine into the failure, over its public API."""

    # ------------------------------------------------------------------ signature

    def conditions(self, facts: RunFacts) -> list[Condition]:
        """The signature: what is declared, and that what was flipped took effect."""
        flipped = [f for f in self.factors if f.name in facts.flips]
        return [
            *(self._bound(declared, facts) for declared in self.declared()),
            *(self._bound(_flip(f), facts) for f in flipped),
        ]

    def declared(self) -> list[Declared]:
        """All conditions that the class declares, as attributes or methods: preconditions, then
        the symptom, then the cause."""
        methods = tagged(type(self)).declared
        found = [*self.preconditions, *self.symptoms, *self.causes]
        found += [replace(one, check=getattr(self, name)) for name, one in methods.items()]
        return sorted(found, key=lambda one: get_args(Part).index(one.part))

    def named_conditions(self) -> Iterator[tuple[str, str]]:
        """The conditions that rows and claims name: by what, and the id."""
        for row in self.rows:
            if isinstance(row.by, str):
                yield f"the row {row.name!r}", row.by
        for one in (*self.claims, *tagged(type(self)).claims.values()):
            for name in (*many(one.by or ()), *many(one.given)):
                if isinstance(name, str) and name not in ("symptom", "cause", "arrived"):
                    yield f"the claim {one.id!r}", name

    def _bound(self, declared: Declared, facts: RunFacts) -> Condition:
        assert declared.check is not None
        check = bind(declared.check, self, facts)
        statement = self.filled(declared.statement)
        changed = facts.mitigations | facts.flips
        waived = next((name for name in declared.removed_by if name in changed), "")
        return Condition(
            declared.id, declared.part, statement, check, required=declared.required, waived=waived
        )

    def _observable(self, check: Check | None) -> bool:
        return check is not None and observable(own(check, self))

    def filled(self, text: str) -> str:
        """``text`` with the attribute called so in the place of ``{name}``: variants share it."""
        return re.sub(r"\{(\w+)\}", lambda name: str(getattr(self, name[1], name[0])), text)

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """The signature on a live server: no gate was run, and no traffic but one small request.

        Of each condition its form for an observer; those that need the trigger's own requests or
        code run in the environment have none. ``live_only`` stands first.
        """
        release = facts.release or self.release
        run = RunFacts(release, Fidelity.LIVE, frozenset(), facts.deadline_s)
        if not self.declared():  # a signature of its own making
            return self.conditions(run)
        observed = {declared.id: declared for declared in self.live_only}
        for declared in self.declared():
            live = declared.live
            if declared.part == "precondition":  # a look brings no trigger
                continue
            if isinstance(live, Declared):
                observed.setdefault(live.id, live)
            elif live == "optional":
                observed.setdefault(declared.id, replace(declared, required=False))
            elif live or (live is None and self._observable(declared.check)):
                observed.setdefault(declared.id, declared)
        ordered = sorted(observed.values(), key=lambda declared: declared.part == "cause")
        return [self._bound(declared, run) for declared in ordered]

    def exposure(self, facts: LiveFacts) -> Finding:
        """Whether a server of this release and with these options can fail so."""
        if facts.engine and facts.engine != self.engine:
            return Finding.of(False, f"the server is {facts.engine}, not {self.engine}")
        if not facts.release:
            return Finding.unknown("the release could not be found out")
        for cure in self.mitigations:
            applies = cure.effective_on.contains(Version(facts.release), prereleases=True)
            if applies and facts.has(cure.server_args):
                return Finding.of(False, f"the server runs with {' '.join(cure.server_args)}")
        return Finding.of(
            self.affects(facts.release),
            f"{self.engine} {facts.release}; affected: {self.affected_range}",
        )

    def recognises(self, failure: Failure) -> Finding:
        """Whether a failure of ``SILENT`` is this one, by what was sent: met names it.

        That a release is affected is not enough; see :mod:`mmrepro.scenario.silent`.
        """
        return Finding.unknown(f"{self.name} has nothing to recognise a silent failure by")

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Whether the trigger ran to its end and the engine still does its work after it."""
        if not self.works_after:
            return Finding.unknown(f"{self.name} does not say what works_after it")
        by_id = {condition.id: condition.check for condition in self.conditions(facts)}
        checks = (
            by_id[c] if isinstance(c, str) else bind(c, self, facts) for c in self.works_after
        )
        return all_met(*(guarded(check, evidence) for check in checks))

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Whether the cause is still there in a run that may lack the symptom.

        It tells a cure (not met) from what only hides the failure (met). As everywhere, it is
        unknown unless evidence tells. Where some conditions of the cause can be seen only while
        the symptom lasts (the stack of a hang, say), ``lasting_causes`` names the others.
        """
        causes = [c for c in self.conditions(facts) if c.required and c.part == "cause"]
        causes = [c for c in causes if not self.lasting_causes or c.id in self.lasting_causes]
        results = evaluate(causes, evidence)
        truth = combine([r.truth for r in results])
        decisive = [r for r in results if r.truth is truth] or results
        return Finding(truth, "; ".join(f"{r.id}: {r.observed}" for r in decisive))

    def gate_check(self, evidence: Evidence) -> Finding:
        """Whether the steady state was reached: every gate request answered, with tokens."""
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
        """The table of symptoms: what is declared in ``rows``."""
        return tables.symptom_rows(self, evidence, facts)

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        """The original report's statements, judged by this run: what is declared."""
        return tables.claim_results(self, evidence, facts)

    def key_stack(self, evidence: Evidence) -> KeyStack | None:
        return None

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        """Whether the stacks seen so far show all that is looked for; ends sampling early."""
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
        """``NAME`` and ``NAME=VALUE`` as a mapping. Raises UsageError: there is no such option."""
        options = {name: value for name, _, value in (text.partition("=") for text in given)}
        for name in options:
            self._named("option", name, self.options)
        return options

    def server_args_with(self, given: Sequence[str]) -> tuple[str, ...]:
        """Options of the server in a run with these ``--option``."""
        more = (self.option_servers.get(text.partition("=")[0], "") for text in given)
        return (*self.server_args, *(word for text in more for word in shlex.split(text)))

    def with_variant(self, name: str) -> Scenario:
        """The variant called ``name``; "" means the default. Raises UsageError and lists them."""
        return self._named("variant", name, {v.variant: v for v in self.variants}) if name else self

    def _named(self, kind: str, name: str, offered: Mapping[str, T]) -> T:
        if name in offered:
            return offered[name]
        raise UsageError(
            f"Scenario {self.name} has no {kind} {name!r}; it has: {', '.join(offered) or 'none'}.",
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
            str(self.affected_releases).split(","), key=lambda part: (part[:1] != ">", part)
        )
        return ", ".join(parts)

    @property
    def facts(self) -> ScenarioFacts:
        """What an incident says of the scenario itself."""
        return ScenarioFacts(
            name=self.name,
            variant=self.variant,
            title=self.title,
            summary=self.summary,
            affected=self.affected_range,
            explanation=self.explanation,
        )

    def expected(self, release: str, mitigations: frozenset[str]) -> tuple[Outcome, str]:
        """The outcome that is expected of ``release`` under ``mitigations``, and why."""
        version = Version(release)
        if not self.affects(release):
            return (
                Outcome.NOT_REPRODUCED,
                f"release {release} is outside the affected range ({self.affected_range})",
            )
        for name in sorted(mitigations):
            chosen = self.mitigation(name)
            if not chosen.release and chosen.effective_on.contains(version, prereleases=True):
                return (
                    Outcome.NOT_REPRODUCED,
                    f"mitigation {name} is said to prevent it on {release}",
                )
        return Outcome.REPRODUCED, f"release {release} is affected ({self.affected_range})"


def with_variants(default: Scenario, *others: Scenario) -> Scenario:
    """A scenario that shows in several ways: ``SCENARIO = with_variants(One(), Another())``."""
    default.variants = (default, *others)
    return default


def _flip(factor: Factor) -> Declared:
    said = f"{factor.name} is flipped: {factor.setting} instead of {factor.failing}"
    return Declared(FLIP.format(factor.name), "flip", said, factor.took_effect)


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n")]


def _told(scenario: Scenario, mark: str) -> str:
    """The paragraphs from ``mark`` to the next mark, of the first docstring that has it."""
    for cls in type(scenario).__mro__:
        found: list[str] = []
        taken = False
        for part in _paragraphs(cls.__doc__)[1:]:
            word = part.split(" ", 1)[0]
            if word in ("What:", "Why:"):
                taken = word == mark
            if taken:
                found.append(part.removeprefix(mark).strip())
        if found:
            return "\n\n".join(found)
    return ""
