"""Every claim of the original reports, with the recorded run that judged it.

``tests/evidence/record.py --table`` makes the shipped file
(``scenarios/data/claims.json``) from the recordings in ``tests/evidence``. ``mmrepro
show --claims`` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Final

from mmrepro.base.records import ClaimStatus, Document, Fidelity, Record
from mmrepro.failure.documents import Incident
from mmrepro.scenario.registry import known_scenario
from mmrepro.tools.catalogue.recorded import ON_GPU, of_incident, shipped
from packaging.version import Version
from pydantic import Field

_VERSION: Final = 1


class _Judgement(Record):
    status: ClaimStatus
    observed: str
    release: str
    command: Annotated[str, Field(description="repeats the run")]
    at: Annotated[datetime, Field(description="when it began, UTC")]
    fidelity: Fidelity | None = None
    source: Annotated[
        str, Field(description="where the run is kept, in mmrepro's repository")
    ]


class JudgedClaim(Record):
    """One claim of a scenario, or of several of its variants that say it in the same
    words and whose own runs judge it alike."""

    scenario: str
    variants: list[str]
    id: str
    text: str
    made_in: Annotated[str, Field(description="the report, issue or article")]
    judged: _Judgement
    elsewhere: Annotated[
        list[_Judgement],
        Field(
            description="plain runs of other releases that say otherwise, one a release"
        ),
    ] = []

    @property
    def name(self) -> str:
        return f"{self.scenario}:{self.id}"


class Claims(Document, kind="claims"):
    claims: list[JudgedClaim]


def load(path: Path) -> list[JudgedClaim]:
    """The claims of a data file.

    Raises:
        InfrastructureError: it is not there, or is none.
    """
    return shipped(path, Claims, "claims").claims


def dumped(claims: Sequence[JudgedClaim]) -> str:
    """The data file's text: a claim a line."""
    lines = [claim.model_dump_json(exclude_defaults=True) for claim in claims]
    text = ",\n".join(lines)
    return f'{{"schema_version": {_VERSION}, "claims": [\n{text}\n]}}\n'


def judged(incidents: Iterable[tuple[str, Incident]]) -> list[JudgedClaim]:
    """The claims that were judged in these runs, each by the run that says most of it:
    variants that are judged otherwise stand by themselves.

    Args:
        incidents: where each is kept, and what it says.
    """
    claims: dict[tuple[str, str, str], list[_RunJudgement]] = {}
    for source, incident in incidents:
        run = of_incident(incident, source)
        if run is None:
            continue

        declared = known_scenario(run.scenario, trust=False).with_variant(run.variant)
        own = declared.release == run.release
        for claim in incident.claims:
            judgement = _Judgement(
                status=claim.status,
                observed=claim.observed,
                release=run.release,
                command=incident.command,
                at=run.at,
                fidelity=run.fidelity,
                source=source,
            )
            key = (run.scenario, claim.id, claim.text)
            of_run = _RunJudgement(
                judgement, run.variant, claim.source, plain=run.plain, own=own
            )
            claims.setdefault(key, []).append(of_run)

    judged_claims = []
    for (scenario, id, text), judgements in sorted(claims.items()):
        for alike in _by_status(judgements):
            judged_claims.append(_of(scenario, id, text, alike))

    return judged_claims


@dataclass
class _RunJudgement:
    """A judgement and where it stands among those of its claim.

    Attributes:
        plain: the run was of the scenario as it is declared.
        own: it was of the release that the scenario is declared on.
    """

    judgement: _Judgement
    variant: str
    made_in: str
    plain: bool = field(kw_only=True)
    own: bool = field(kw_only=True)

    @property
    def decides(self) -> bool:
        return self.judgement.status is not ClaimStatus.NOT_TESTED

    @property
    def weight(self) -> tuple[object, ...]:
        """How much it says: a run on CPU before one on a GPU, the newest of alike."""
        return (
            self.decides,
            self.plain and self.own,
            self.plain or not self.decides,
            self.judgement.fidelity not in ON_GPU,
            self.judgement.at,
        )


def _by_status(judgements: Sequence[_RunJudgement]) -> list[list[_RunJudgement]]:
    """What was judged of variants whose own best runs say the same, one status after
    the other."""
    variants: dict[str, list[_RunJudgement]] = {}
    for judgement in judgements:
        variants.setdefault(judgement.variant, []).append(judgement)

    groups: dict[ClaimStatus, list[_RunJudgement]] = {}
    for _, own in sorted(variants.items()):
        best = max(own, key=attrgetter("weight"))
        groups.setdefault(best.judgement.status, []).extend(own)

    return [groups[status] for status in ClaimStatus if status in groups]


def _of(
    scenario: str, id: str, text: str, judgements: Sequence[_RunJudgement]
) -> JudgedClaim:
    by_weight = sorted(judgements, key=attrgetter("weight"))
    # The first of the heaviest, as max() takes it.
    best = max(judgements, key=attrgetter("weight")).judgement
    variants = set()
    made_in = set()
    others: dict[str, _Judgement] = {}
    for run in by_weight:
        made_in.add(run.made_in)
        if run.variant:
            variants.add(run.variant)
        # Of one release the heaviest is the last, and stays.
        if run.plain and run.decides and run.judgement.status is not best.status:
            others[run.judgement.release] = run.judgement

    others.pop(best.release, None)
    return JudgedClaim(
        scenario=scenario,
        variants=sorted(variants),
        id=id,
        text=text,
        made_in=", ".join(sorted(made_in)),
        judged=best,
        elsewhere=[others[release] for release in sorted(others, key=Version)],
    )


def words(status: ClaimStatus) -> str:
    """Write a claim's status in words."""
    return status.value.replace("-", " ")
