"""What recorded runs show of a failure: where, what helped, and if the newest release
has it; the catalogue as a page, one line a failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from mmrepro.base.errors import BrokenScenario, MmreproError
from mmrepro.base.records import Record
from mmrepro.engines import spec_for
from mmrepro.engines.environments import EnvironmentSpec, Listed, releases_of
from mmrepro.failure.signature import Outcome
from mmrepro.scenario import Scenario
from mmrepro.scenario.parts import HARMS, SEES, Upstream
from mmrepro.scenario.registry import known_scenario, scenario_names
from mmrepro.tools.catalogue.recorded import ON_GPU, UPGRADE, RecordedRun
from packaging.version import Version
from pydantic import Field

_DEVICE_BUILD: Final = re.compile(r"(?:cpu|cu\d+|rocm[\d.]*|xpu|tpu|hpu|npu|musa)")
"""In a release's label: one and the same source, built for another device."""


@dataclass(frozen=True)
class MitigationRecord:
    """What was seen of a mitigation: the releases on which it took the cause away, on
    which the failure did not show though its cause was not seen to be gone, and on
    which it did show."""

    name: str
    helped: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    release: str = ""
    """It is another release: the least one."""


@dataclass(frozen=True)
class RecordedScenario:
    """A scenario, and the recorded runs of it."""

    scenario: Scenario
    runs: tuple[RecordedRun, ...] = field(repr=False)

    @property
    def plain(self) -> list[RecordedRun]:
        """Runs of the scenario as it is declared, where it can happen, by release and
        time."""
        return _by_version(
            run for run in self.runs if run.plain and not self._spared(run)
        )

    def _spared(self, run: RecordedRun) -> bool:
        return bool(run.fidelity and self.scenario.spares(run.fidelity.device))

    def releases(self, *outcomes: Outcome) -> list[str]:
        """Releases with such a plain run, oldest first."""
        return _releases(run for run in self.plain if run.outcome in outcomes)

    @property
    def on_gpu(self) -> list[str]:
        """Releases that were run on a GPU, also where it cannot happen there."""
        runs = [run for run in self.runs if run.plain and run.fidelity in ON_GPU]
        return _releases(_by_version(runs))

    def at(self, release: str) -> list[RecordedRun]:
        """Plain runs of that release, for whichever device it is built (``+cpu``). What
        was published before it (``rc1``, ``.dev``) or after it (``.post1``) is another
        one, as is what somebody built (``+g12ab34c``, ``+d20261126``)."""
        asked = Version(release)
        return [run for run in self.plain if _is_build_of(run.version, asked)]

    def other_pairs(self, release: str = "") -> dict[str, list[RecordedRun]]:
        """Runs with a model runner or front end that was asked for, by what it was.

        Args:
            release: whose they are; "": all.
        """
        asked = Version(release) if release else None
        runs: dict[str, list[RecordedRun]] = {}
        for run in _by_version(run for run in self.runs if run.asked_pair):
            if asked is None or _is_build_of(run.version, asked):
                runs.setdefault(run.asked_pair, []).append(run)
        return runs

    def cures(self) -> list[MitigationRecord]:
        """Each mitigation of the scenario, with what was seen of it."""
        records = []
        for mitigation in self.scenario.mitigations:
            if mitigation.name == UPGRADE and mitigation.release:
                records.append(self._upgrade(mitigation.release))
            else:
                records.append(self._alone(mitigation.name))

        return records

    def _upgrade(self, release: str) -> MitigationRecord:
        """What later releases show: there the failure needs no other mitigation."""
        least = Version(release)
        later = [run for run in self.plain if run.version >= least]
        helped, failed = _split(later)
        return MitigationRecord(
            name=UPGRADE,
            helped=tuple(_releases(helped)),
            failed=tuple(_releases(failed)),
            release=release,
        )

    def _alone(self, name: str) -> MitigationRecord:
        """What runs with that mitigation, and with no other change, show."""
        alone = []
        for run in self.runs:
            by_itself = run.mitigations == [name] and not run.changes
            if by_itself and not self._spared(run):
                alone.append(run)

        good, failed = _split(_by_version(alone))

        # A mitigation has helped only on a release that has the failure without it.
        ill = self.releases(Outcome.REPRODUCED)
        helped = []
        for run in good:
            if run.helped or (run.helped is None and run.release in ill):
                helped.append(run)

        works_on = _releases(helped)
        hidden = [release for release in _releases(good) if release not in works_on]
        return MitigationRecord(
            name=name,
            helped=tuple(works_on),
            hidden=tuple(hidden),
            failed=tuple(_releases(failed)),
        )


def _is_build_of(version: Version, asked: Version) -> bool:
    public = Version(asked.public)
    if version in (asked, public):
        return True
    if not version.local or not _DEVICE_BUILD.fullmatch(version.local):
        return False
    return Version(version.public) == public


def _by_version(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    return sorted(runs, key=lambda run: (run.version, run.at))


def _split(runs: Sequence[RecordedRun]) -> tuple[list[RecordedRun], list[RecordedRun]]:
    """Part the runs in which the failure did not show from those in which it did."""
    good = [run for run in runs if run.outcome is Outcome.NOT_REPRODUCED]
    failed = [run for run in runs if run.outcome is Outcome.REPRODUCED]
    return good, failed


def _releases(runs: Iterable[RecordedRun]) -> list[str]:
    """The release of each run, every one once."""
    return list(dict.fromkeys(run.release for run in runs))


def known(
    runs: Iterable[RecordedRun], names: Sequence[str] = (), *, trust: bool = False
) -> tuple[list[RecordedScenario], dict[str, BrokenScenario]]:
    """The registered scenarios, each variant by itself, and those that cannot be
    loaded.

    Args:
        trust: run the files among ``names``.

    Raises:
        UntrustedFile: one of ``names`` is a file, and not to be run.
        UnknownScenario: one of ``names`` is none.
    """
    by_name: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in runs:
        by_name.setdefault((run.scenario, run.variant), []).append(run)

    recorded = []
    broken: dict[str, BrokenScenario] = {}
    for name in names or scenario_names():
        try:
            loaded = known_scenario(name, trust=trust)
        except BrokenScenario as error:
            # One broken plug-in does not hide the others.
            broken[name] = error
            continue

        for scenario in loaded.variants or (loaded,):
            its_runs = by_name.get((scenario.name, scenario.variant), [])
            recorded.append(RecordedScenario(scenario, tuple(its_runs)))

    return recorded, broken


def strangers(
    runs: Iterable[RecordedRun], scenarios: Iterable[RecordedScenario]
) -> list[str]:
    """Names of recorded failures that no scenario here has any more."""
    there = {(known.scenario.name, known.scenario.variant) for known in scenarios}
    missing = {(run.scenario, run.variant) for run in runs} - there
    return sorted("-".join(filter(None, name)) for name in missing)


# -------------------------------------------------------------- which are still unfixed

ReleasesOf = Callable[[EnvironmentSpec], Sequence[Listed]]
INDEX = "index"
_RECORDED = "recorded runs"
NOT_RUN = "not run"
_WORST_FIRST: Final = (
    Outcome.REPRODUCED,
    Outcome.DIFFERENT_FAILURE,
    Outcome.NOT_REPRODUCED,
    Outcome.INCONCLUSIVE,
)


class Newest(Record):
    """The newest release of an engine, and who says so."""

    engine: str
    release: Annotated[str, Field(description="empty: none is known")]
    says: Annotated[
        str, Field(description="index, or recorded runs where that was not asked")
    ]
    why: Annotated[str, Field(description="why the index did not say")] = ""
    kernels: Annotated[
        str,
        Field(
            description="release whose compiled files it runs over here; empty: its own"
        ),
    ] = ""


class Standing(Record):
    scenario: str
    variant: str
    title: str
    engine: str
    failure_class: str | None
    severity: str | None
    where: Annotated[
        str, Field(description="the device on which alone it is; empty: all")
    ] = ""
    newest: Annotated[
        str, Field(description="release of the engine; empty: none is known")
    ]
    outcome: Annotated[str, Field(description="of the runs there, or: not run")]
    runs: Annotated[
        int, Field(description="recorded there, of the scenario as declared")
    ]
    reproduced: Annotated[int, Field(description="of these")]
    at: Annotated[datetime | None, Field(description="when the last of them began")] = (
        None
    )
    runner: Annotated[
        str,
        Field(
            description="model runner and front end of the last of them; empty: not "
            "known"
        ),
    ] = ""
    other_pairs: Annotated[
        dict[str, str],
        Field(
            description="of runs there with another model runner or front end: what "
            "it was, and their outcome"
        ),
    ] = {}
    alive: Annotated[
        bool | None,
        Field(description="seen there; false: run there and not seen; null: unknown"),
    ] = None
    last_release: Annotated[
        str, Field(description="newest one with a recorded run")
    ] = ""
    last_outcome: str = ""
    last_at: datetime | None = None


def newest_of(
    engine: str,
    runs: Iterable[RecordedRun],
    release: str,
    listing: ReleasesOf = releases_of,
) -> Newest:
    """The newest release that the index serves; where it cannot be asked, the newest
    that was run.

    Args:
        release: any release of the engine: it says which project that is.
    """
    try:
        served = listing(spec_for(engine, release))
    except MmreproError as error:
        why = error.message.rstrip(".")
    else:
        if served:
            last = served[-1]
            return Newest(
                engine=engine, release=last.version, says=INDEX, kernels=last.kernels
            )
        why = "The package index lists no release for this machine"

    known = {release}
    for run in runs:
        if run.engine == engine and run.plain:
            known.add(run.release)

    # A release candidate is the newest only where there is nothing else.
    final = {version for version in known if not Version(version).is_prerelease}
    newest = max(final or known, key=Version)
    return Newest(engine=engine, release=newest, says=_RECORDED, why=why)


def standings(
    failures: Sequence[RecordedScenario], newest: Iterable[Newest]
) -> list[Standing]:
    """Judge where each failure stands."""
    by_engine = {release.engine: release.release for release in newest}
    return [
        _standing(failure, by_engine[failure.scenario.engine]) for failure in failures
    ]


def _standing(failure: RecordedScenario, newest: str) -> Standing:
    scenario = failure.scenario
    there = failure.at(newest)
    reproduced = [run for run in there if run.outcome is Outcome.REPRODUCED]
    standing = Standing(
        scenario=scenario.name,
        variant=scenario.variant,
        title=scenario.title,
        engine=scenario.engine,
        failure_class=scenario.failure_class,
        severity=scenario.severity,
        where=scenario.where,
        newest=newest,
        outcome=_outcome(there),
        runs=len(there),
        reproduced=len(reproduced),
        at=_last_start(there),
        runner=there[-1].runner if there else "",
    )
    for pair, runs in failure.other_pairs(newest).items():
        standing.other_pairs[pair] = _outcome(runs)
    if standing.reproduced:
        standing.alive = True
    elif standing.outcome == Outcome.NOT_REPRODUCED:
        standing.alive = False

    plain = failure.plain
    if plain:
        standing.last_release = plain[-1].release
        last = failure.at(standing.last_release)
        standing.last_outcome = _outcome(last)
        standing.last_at = _last_start(last)

    return standing


def _last_start(runs: Sequence[RecordedRun]) -> datetime | None:
    return max((run.at for run in runs), default=None)


def _outcome(runs: Sequence[RecordedRun]) -> str:
    """The worst of them that says something: inconclusive ones decide nothing beside
    others."""
    seen = {run.outcome for run in runs}
    for outcome in _WORST_FIRST:
        if outcome in seen:
            return outcome.value

    return NOT_RUN


_HEAD: Final = """\
# The catalogue

Each line is one failure that mmrepro knows. `mmrepro list --markdown` prints this page from the
scenarios and from their recorded runs; `tests/evidence/record.py --table` writes both.

- **Releases**: the declared range, then the recorded runs of the unchanged scenario. Where no run
  is listed, nothing was observed.
- **Workaround**: mitigations, with the releases on which a run shows that they work. A mitigation
  that *hides* the failure keeps it from showing, and no run shows that its cause is gone.
- **Upstream**: the state in the project's tracker, and the day of the look-up.
- `mmrepro list --alive` lists the failures that are still unfixed in the newest release.
"""
_COLUMNS: Final = (
    "failure",
    "engine",
    "class",
    "severity",
    "releases",
    "symptom",
    "workaround",
    "upstream",
)
_SEEN: Final = (
    ("reproduced", Outcome.REPRODUCED),
    ("not", Outcome.NOT_REPRODUCED),
    ("fails otherwise", Outcome.DIFFERENT_FAILURE),
    ("inconclusive", Outcome.INCONCLUSIVE),
)


def page(failures: Sequence[RecordedScenario]) -> str:
    """The catalogue in Markdown: a row for each failure, then what the words mean."""
    lines = [_HEAD, _table_row(_COLUMNS), _table_row(["---"] * len(_COLUMNS))]
    days: set[str] = set()
    runs = 0
    for failure in failures:
        lines.append(_table_row(_cells(failure)))
        runs += len(failure.runs)
        days.update(run.at.date().isoformat() for run in failure.runs)

    when = ""
    if days:
        # One day alone is no range.
        ends = dict.fromkeys((min(days), max(days)))
        when = f", {' to '.join(ends)}"

    lines += ["", f"{len(failures)} failures; {runs} recorded runs{when}.", ""]
    lines += ["## Words", "", "| class | what a user observes |", "|---|---|"]
    for name, meaning in SEES.items():
        lines.append(f"| {name.words} | {meaning} |")

    lines += ["", "| severity | whom one such request harms |", "|---|---|"]
    for severity, meaning in HARMS.items():
        lines.append(f"| {severity} | {meaning} |")

    return "\n".join(lines) + "\n"


def _cells(failure: RecordedScenario) -> list[str]:
    scenario = failure.scenario
    kind = scenario.failure_class
    name = f"`{scenario.name}`"
    if scenario.variant:
        name += f" ({scenario.variant})"
    workarounds = [cure(record) for record in failure.cures()]
    return [
        name,
        scenario.engine,
        kind.words if kind else "not declared",
        str(scenario.severity or "not declared"),
        releases(failure),
        scenario.title,
        "; ".join(workarounds) or "none known",
        _upstream(scenario.upstream),
    ]


def releases(failure: RecordedScenario) -> str:
    """``>=0.14.0, <0.24.0`` and the outcomes of its runs."""
    seen = []
    for words, outcome in _SEEN:
        of_outcome = failure.releases(outcome)
        if of_outcome:
            seen.append(f"{words}: {', '.join(of_outcome)}")

    for pair, runs in failure.other_pairs().items():
        for words, outcome in _SEEN:
            of_outcome = _releases(run for run in runs if run.outcome is outcome)
            if of_outcome:
                seen.append(f"{words} with {pair}: {', '.join(of_outcome)}")

    if failure.on_gpu:
        no = "not " if failure.scenario.spares("cuda") else ""
        seen.append(f"{no}on a GPU: {', '.join(failure.on_gpu)}")

    return f"{failure.scenario.affected_where}<br>{'; '.join(seen) or 'not run'}"


def cure(record: MitigationRecord) -> str:
    """The mitigation, and on which releases it worked."""
    seen = []
    if record.helped:
        seen.append(f"works on {', '.join(record.helped)}")
    if record.hidden:
        seen.append(f"hides it on {', '.join(record.hidden)}")
    if record.failed:
        seen.append(f"no help on {', '.join(record.failed)}")
    name = f"release {record.release}" if record.release else f"`{record.name}`"
    return f"{name} ({'; '.join(seen) or 'untested'})"


def _upstream(upstream: Upstream) -> str:
    text = upstream.words
    source = upstream.source
    if source is not None:
        text += f": [{source.id}]({source.url})"
    return f"{text}, {upstream.looked_up}" if upstream.looked_up else text


def _table_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table; each cell becomes one line."""
    plain = []
    for cell in cells:
        # A bar within a cell would begin another one.
        plain.append(" ".join(cell.split()).replace("|", "\\|"))

    return "| " + " | ".join(plain) + " |"
