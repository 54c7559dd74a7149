"""Which known failures are alive in the newest release: by recorded runs, never by a range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated

from mmrepro.catalogue.recorded import RecordedRun
from mmrepro.catalogue.standing import Known
from mmrepro.engines import spec_for
from mmrepro.environments.index import Listed, releases_of
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.errors import MmreproError
from mmrepro.records import Record
from mmrepro.signature import Outcome
from packaging.version import Version
from pydantic import Field

ReleasesOf = Callable[[EnvironmentSpec], Sequence[Listed]]
INDEX, RECORDED = "index", "recorded runs"
NOT_RUN = "not run"


class Newest(Record):
    """The newest release of an engine, and who says so."""

    engine: str
    release: Annotated[str, Field(description="empty: none is known")]
    says: Annotated[str, Field(description="index, or recorded runs where that was not asked")]
    why: Annotated[str, Field(description="why the index did not say")] = ""


class Standing(Record):
    """One failure in the newest release of its engine."""

    scenario: str
    variant: str
    title: str
    engine: str
    failure_class: str | None
    severity: str | None
    newest: Annotated[str, Field(description="release of the engine; empty: none is known")]
    outcome: Annotated[str, Field(description="of the runs there, or: not run")]
    runs: Annotated[int, Field(description="recorded there, of the scenario as declared")]
    reproduced: Annotated[int, Field(description="of these")]
    at: Annotated[datetime | None, Field(description="when the last of them began")] = None
    alive: Annotated[
        bool | None, Field(description="seen there; false: run there and not seen; null: unknown")
    ] = None
    last_release: Annotated[str, Field(description="newest one with a recorded run")] = ""
    last_outcome: str = ""
    last_at: datetime | None = None


def newest_of(
    engine: str, runs: Iterable[RecordedRun], release: str, listing: ReleasesOf = releases_of
) -> Newest:
    """The newest release that the index serves; where it cannot be asked, the newest that was run.

    Args:
        release: any release of the engine: it says which project that is.
    """
    try:
        there = listing(spec_for(engine, release))
        if there:
            return Newest(engine=engine, release=there[-1].version, says=INDEX)
        why = "The package index lists no release for this machine"
    except MmreproError as error:
        why = error.message.rstrip(".")
    known = {r.release for r in runs if r.engine == engine and r.plain} | {release}
    return Newest(engine=engine, release=max(known, key=Version), says=RECORDED, why=why)


def standings(failures: Sequence[Known], newest: Iterable[Newest]) -> list[Standing]:
    by_engine = {one.engine: one.release for one in newest}
    return [_standing(one, by_engine[one.scenario.engine]) for one in failures]


def _standing(one: Known, newest: str) -> Standing:
    scenario, there = one.scenario, one.at(newest)
    made = Standing(
        scenario=scenario.name,
        variant=scenario.variant,
        title=scenario.title,
        engine=scenario.engine,
        failure_class=scenario.failure_class,
        severity=scenario.severity,
        newest=newest,
        outcome=_outcome(there),
        runs=len(there),
        reproduced=sum(r.outcome is Outcome.REPRODUCED for r in there),
        at=max((r.at for r in there), default=None),
    )
    if made.reproduced:
        made.alive = True
    elif made.outcome == Outcome.NOT_REPRODUCED:
        made.alive = False
    if one.plain:
        last = one.plain[-1]
        ends = one.at(last.release)
        made.last_release, made.last_outcome = last.release, _outcome(ends)
        made.last_at = max(r.at for r in ends)
    return made


def _outcome(runs: Sequence[RecordedRun]) -> str:
    """The worst of them that says something: inconclusive ones decide nothing beside others."""
    seen = {r.outcome for r in runs}
    order = (
        Outcome.REPRODUCED,
        Outcome.DIFFERENT_FAILURE,
        Outcome.NOT_REPRODUCED,
        Outcome.INCONCLUSIVE,
    )
    return next((one.value for one in order if one in seen), NOT_RUN)
