"""What recorded runs say of one failure: where it was seen, where not, and what helped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mmrepro.catalogue.recorded import ON_GPU, UPGRADE, RecordedRun
from mmrepro.errors import BrokenScenario
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.signature import Outcome
from packaging.version import Version


@dataclass(frozen=True)
class Cured:
    """What was seen of a mitigation: the releases on which it took the cause away, on which the
    failure did not show though its cause was not seen to be gone, and on which it did show."""

    name: str
    helped: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    release: str = ""
    """It is another release: the least one."""


@dataclass(frozen=True)
class Known:
    """A scenario's variant and its recorded runs."""

    scenario: Scenario
    runs: tuple[RecordedRun, ...] = field(repr=False)

    @property
    def plain(self) -> list[RecordedRun]:
        """Those of the scenario as it is declared, by release and time."""
        return sorted((r for r in self.runs if r.plain), key=lambda r: (r.version, r.at))

    def releases(self, *outcomes: Outcome) -> list[str]:
        """Releases with such a plain run, oldest first."""
        return list(dict.fromkeys(r.release for r in self.plain if r.outcome in outcomes))

    @property
    def on_gpu(self) -> list[str]:
        """Releases that were run on a GPU."""
        return list(dict.fromkeys(r.release for r in self.plain if r.fidelity in ON_GPU))

    def at(self, release: str) -> list[RecordedRun]:
        """Plain runs of that release, whichever build of it."""
        base = Version(release).base_version
        return [r for r in self.plain if r.version.base_version == base]

    def cures(self) -> list[Cured]:
        """Each mitigation of the scenario, with what was seen of it."""
        return [self._cured(m.name, m.release) for m in self.scenario.mitigations]

    def _cured(self, name: str, release: str) -> Cured:
        if name == UPGRADE and release:
            later = [r for r in self.plain if r.version >= Version(release)]
            helped, failed = _split(later)
            return Cured(name, _releases(helped), (), _releases(failed), release)
        alone = [r for r in self.runs if r.mitigations == [name] and not r.changes]
        alone.sort(key=lambda r: (r.version, r.at))
        good, failed = _split(alone)
        ill = self.releases(Outcome.REPRODUCED)
        helped = [r for r in good if r.helped or (r.helped is None and r.release in ill)]
        told = _releases(helped)
        hidden = tuple(one for one in _releases(good) if one not in told)
        return Cured(name, told, hidden, _releases(failed))


def _split(runs: Sequence[RecordedRun]) -> tuple[list[RecordedRun], list[RecordedRun]]:
    """Those in which the failure did not show, and those in which it did."""
    return (
        [r for r in runs if r.outcome is Outcome.NOT_REPRODUCED],
        [r for r in runs if r.outcome is Outcome.REPRODUCED],
    )


def _releases(runs: Iterable[RecordedRun]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(r.release for r in runs))


def known(
    runs: Iterable[RecordedRun], names: Sequence[str] = ()
) -> tuple[list[Known], dict[str, BrokenScenario]]:
    """The registered scenarios, each variant by itself, and those that cannot be loaded.

    Raises:
        UnknownScenario: one of ``names`` is none.
    """
    by_name: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in runs:
        by_name.setdefault((run.scenario, run.variant), []).append(run)
    found, broken = [], {}
    for name in names or scenario_names():
        try:
            loaded = load_scenario(name)
        except BrokenScenario as error:  # one broken plug-in does not hide the others
            broken[name] = error
            continue
        for one in loaded.variants or (loaded,):
            found.append(Known(one, tuple(by_name.get((one.name, one.variant), ()))))
    return found, broken


def strangers(runs: Iterable[RecordedRun], scenarios: Iterable[Known]) -> list[str]:
    """Names of recorded failures that no scenario here has any more."""
    there = {(k.scenario.name, k.scenario.variant) for k in scenarios}
    missing = {(r.scenario, r.variant) for r in runs} - there
    return sorted("-".join(filter(None, name)) for name in missing)
