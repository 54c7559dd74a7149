"""Every claim of the original reports, with the recorded run that judged it.

``tests/evidence/record.py --table`` makes the shipped file
(``scenarios/data/claims.json``) from the recordings in ``tests/evidence``. ``mmrepro
show --claims`` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

from mmrepro.base.records import Document, Fidelity, Record
from mmrepro.failure.documents import ClaimStatus, Incident
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
    lines = ",\n".join(one.model_dump_json(exclude_defaults=True) for one in claims)
    return f'{{"schema_version": {_VERSION}, "claims": [\n{lines}\n]}}\n'


def judged(incidents: Iterable[tuple[str, Incident]]) -> list[JudgedClaim]:
    """The claims that were judged in these runs, each by the run that says most of it:
    variants that are judged otherwise stand by themselves.

    Args:
        incidents: where each is kept, and what it says.
    """
    claims: dict[tuple[str, str, str], list[_Said]] = {}
    for source, incident in incidents:
        run = of_incident(incident, source)
        if run is None:
            continue
        declared = known_scenario(run.scenario, trust=False).with_variant(run.variant)
        own = declared.release == run.release
        for claim in incident.claims:
            told = _Judgement(
                status=claim.status,
                observed=claim.observed,
                release=run.release,
                command=incident.command,
                at=run.at,
                fidelity=run.fidelity,
                source=source,
            )
            key = (run.scenario, claim.id, claim.text)
            said = _Said(told, run.variant, claim.source, plain=run.plain, own=own)
            claims.setdefault(key, []).append(said)

    return [
        _of(*key, alike)
        for key, said in sorted(claims.items())
        for alike in _by_status(said)
    ]


class _Said:
    """A judgement and where it stands among those of its claim."""

    def __init__(
        self, told: _Judgement, variant: str, made_in: str, *, plain: bool, own: bool
    ) -> None:
        self.told, self.variant, self.made_in, self.plain = (
            told,
            variant,
            made_in,
            plain,
        )
        self.decides = told.status is not ClaimStatus.NOT_TESTED
        on_cpu = told.fidelity not in ON_GPU
        self.weight = (
            self.decides,
            plain and own,
            plain or not self.decides,
            on_cpu,
            told.at,
        )


def _by_status(said: Sequence[_Said]) -> list[list[_Said]]:
    """What was judged of variants whose own best runs say the same, one status after
    the other."""
    variants: dict[str, list[_Said]] = {}
    for one in said:
        variants.setdefault(one.variant, []).append(one)

    groups: dict[ClaimStatus, list[_Said]] = {}
    for _, own in sorted(variants.items()):
        best = max(own, key=lambda one: one.weight)
        groups.setdefault(best.told.status, []).extend(own)

    return [groups[status] for status in ClaimStatus if status in groups]


def _of(scenario: str, id: str, text: str, said: Sequence[_Said]) -> JudgedClaim:
    best = max(said, key=lambda one: one.weight)
    others = {
        one.told.release: one.told
        for one in sorted(said, key=lambda one: one.weight)
        if one.plain and one.decides and one.told.status is not best.told.status
    }
    others.pop(best.told.release, None)
    return JudgedClaim(
        scenario=scenario,
        variants=sorted({one.variant for one in said if one.variant}),
        id=id,
        text=text,
        made_in=", ".join(sorted({one.made_in for one in said})),
        judged=best.told,
        elsewhere=[others[release] for release in sorted(others, key=Version)],
    )


def words(status: ClaimStatus) -> str:
    """Write a claim's status in words."""
    return status.value.replace("-", " ")
