"""The points that a bisection may run (releases, or listed commits), and what that
would take."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from mmrepro.base.errors import UsageError
from mmrepro.base.machine.files import Device, device_of, read_file
from mmrepro.base.records import Record
from mmrepro.campaign.ablate.cells import CellStore
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.search import Direction
from mmrepro.campaign.trial import cell_of
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.environments.build import existing
from mmrepro.engines.environments.index import releases_of
from mmrepro.failure.documents.ledger import Cell
from mmrepro.failure.documents.searches import Point
from mmrepro.scenario import Scenario
from packaging.version import InvalidVersion, Version
from pydantic import Field as Described

_MAX_COMMITS_BYTES = 64 << 20
"""Half a million commits with their subjects."""
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Field:
    """The points, oldest first, and where the search begins and ends. Numbers are of
    ``points``."""

    points: list[Point]
    bad: int
    """Is to have the failure."""
    oldest: int
    newest: int
    device: Device
    merges: Mapping[str, int] = field(default_factory=dict)
    """Commit: how many it merged, for those of a clone that are merges."""
    notes: tuple[str, ...] = ()
    """On how the points were chosen."""
    ends: Mapping[str, Any] = field(default_factory=dict)
    """The options ``good`` and ``bad`` as commits of the clone, wherever a branch
    moves."""

    def far(self, direction: Direction) -> int:
        return self.oldest if direction == "introduced" else self.newest


def field_of(
    scenario: Scenario, options: BisectCommand, listed: Sequence[Point] | None = None
) -> Field:
    """What there is to search.

    Args:
        listed: the points, if they are known already.

    Raises:
        UsageError: a bound that is no point, or bounds the wrong way round; a bad list.
        MmreproError: the package index cannot be asked.
    """
    device = device_of(options.run.device)
    if options.clone is not None and listed is None:
        return _of_clone(options.clone, scenario, options, device)
    points = list(listed) if listed is not None else points_of(scenario, options)
    if not points:
        raise UsageError(
            "There is no release or commit to run.", hint="mmrepro show SCENARIO"
        )

    known = _number(points, options.bad, "--bad", scenario) if options.bad else None
    bad = _default_bad(scenario, points, options) if known is None else known
    oldest, newest = 0, len(points) - 1
    if options.good:
        good = _number(points, options.good, "--good", scenario)
        if good == bad:
            raise UsageError(f"{options.good} cannot be both good and bad.")
        wrong = {"introduced": good > bad, "fixed": good < bad, "both": False}[
            options.find
        ]
        if wrong:
            raise UsageError(
                f"--good {options.good} lies on the other side of {points[bad].name}: "
                f"the failure was {options.find} there.",
                hint=(
                    "--find "
                    f"{'fixed' if options.find == 'introduced' else 'introduced'}"
                ),
            )

        oldest, newest = (good, newest) if good < bad else (oldest, good)

    return Field(points, bad, oldest, newest, device)


def _of_clone(
    clone: Path, scenario: Scenario, options: BisectCommand, device: Device
) -> Field:
    from mmrepro.campaign.bisect.clone import history

    found = history(
        clone,
        scenario.engine,
        options.find,
        good=options.good,
        bad=options.bad,
        paths=options.child,
        release=scenario.release,
    )
    last = len(found.points) - 1
    ends = {"bad": found.points[found.bad].commit}
    good = {"introduced": 0, "fixed": last}.get(options.find)
    if good is not None:
        ends["good"] = found.points[good].commit
    return Field(
        found.points, found.bad, 0, last, device, found.merges, tuple(found.notes), ends
    )


def points_of(scenario: Scenario, options: BisectCommand) -> list[Point]:
    """All releases of the index for this machine, or the commits of the list, oldest
    first."""
    if options.commits is not None:
        return read_commits(options.commits)
    device = device_of(options.run.device)
    spec = get_engine(scenario.engine).environment_spec(scenario.release, device)
    return [
        Point(
            name=one.version,
            release=one.version,
            uploaded=one.uploaded.isoformat() if one.uploaded else "",
            declared=scenario.affects(one.version, device),
        )
        for one in releases_of(spec)
    ]


def cell_at(
    point: Point, scenario: Scenario, options: BisectCommand, device: Device
) -> Cell:
    if options.clone is not None:  # its tree is a release of its own, once it was read
        return cell_of(scenario, options.run, device, release=point.release)
    release = "" if point.commit else point.release
    return cell_of(scenario, options.run, device, release=release, commit=point.commit)


def _default_bad(
    scenario: Scenario, points: list[Point], options: BisectCommand
) -> int:
    """The scenario's own release; of commits the outermost. Raises UsageError."""
    if spared := scenario.spares(device_of(options.run.device)):
        raise UsageError(
            f"There is no boundary to find of {scenario.name}: {spared}.",
            hint=f"--device {scenario.devices[0]}, or --bad {scenario.release} to "
            "search all the same",
        )
    if points[0].commit:
        if options.find == "both":
            raise UsageError(
                "Which of the commits has the failure?",
                hint="--bad COMMIT; or --find introduced, where the newest has it, or "
                "--find fixed, where the oldest has it",
            )
        return 0 if options.find == "fixed" else len(points) - 1
    if (number := _build_of(points, scenario.release, scenario)) is not None:
        return number
    declared = [number for number, point in enumerate(points) if point.declared]
    if not declared:
        raise UsageError(
            f"None of the {len(points)} releases on the index is said to be affected "
            f"({scenario.affected_range}).",
            hint="--bad RELEASE",
        )

    return declared[len(declared) // 2]


def _build_of(points: list[Point], release: str, scenario: Scenario) -> int | None:
    """The point of that release. An earlier build than the listed one (0.5.6 for
    0.5.6.post2) takes its place: it is the one that was asked for."""
    names = [point.name for point in points]
    if release in names:
        return names.index(release)
    bases = [_base(name) for name in names]
    if _base(release) not in bases:
        return None
    number = bases.index(_base(release))
    points[number] = Point(
        name=release, release=release, declared=scenario.affects(release)
    )
    return number


def _number(points: list[Point], name: str, option: str, scenario: Scenario) -> int:
    """The point called so: a release, its base version, or the beginning of a
    commit."""
    if points[0].commit:
        found = [
            n
            for n, p in enumerate(points)
            if len(name) >= 7 and p.commit.startswith(name)
        ]
        if len(found) == 1:
            return found[0]
    elif (number := _build_of(points, name, scenario)) is not None:
        return number

    near = ", ".join(p.name[:12] for p in (*points[:2], *points[-2:]))
    raise UsageError(
        f"{option} {name} is not one of the {len(points)} points ({near}, …)."
    )


def _base(release: str) -> str:
    try:
        return Version(release).base_version
    except InvalidVersion:
        return release


def read_commits(path: Path) -> list[Point]:
    """The commits of a file, oldest first; lines ``SHA [DATE] [SUBJECT]``.

    ``git log --format='%H %cI %s'`` prints such, newest first: the dates of the first
    and the last line tell the order; without dates the file is taken to be as git
    prints it. Empty lines and those that begin with ``#`` are left out.

    Raises:
        UsageError: the file cannot be read, or one of its lines; it is named.
    """
    try:
        text = read_file(path, _MAX_COMMITS_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}."
        ) from error

    points: list[Point] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        point = _commit(line.strip(), f"{path}, line {number}")
        if point.commit in lines:
            raise UsageError(
                f"{path}, line {number}: commit {point.commit[:12]} stands on line "
                f"{lines[point.commit]} already."
            )

        lines[point.commit] = number
        points.append(point)

    if not points:
        raise UsageError(
            f"{path} lists no commit.",
            hint=f"git log --format='%H %cI %s' A..B > {path}",
        )

    dates = [datetime.fromisoformat(p.uploaded) for p in points if p.uploaded]
    # By the clock: one may have a time zone where another has none.
    oldest_first = len(dates) > 1 and dates[0].timestamp() < dates[-1].timestamp()
    return points if oldest_first else points[::-1]


def _commit(line: str, where: str) -> Point:
    commit, _, rest = line.partition(" ")
    if not _COMMIT.fullmatch(commit):
        raise UsageError(
            f"{where}: {commit[:40]!r} is no commit (7 to 64 hexadecimal digits).",
            hint="git log --format='%H %cI %s' prints such lines",
        )

    word, _, subject = rest.strip().partition(" ")
    if not word[:4].isdigit():
        word, subject = "", rest.strip()
    if word:
        try:
            datetime.fromisoformat(word)
        except ValueError as error:
            raise UsageError(
                f"{where}: {word[:40]!r} is no date as git's %cI has it.",
                hint="e.g. 2026-06-14T12:00:00+00:00",
            ) from error

    return Point(name=commit, commit=commit, uploaded=word, subject=subject.strip())


class SidePlan(Record):
    direction: str
    points: Annotated[
        int, Described(description="between the known bad one and the far end")
    ]
    far: str
    declared: Annotated[
        list[str],
        Described(description="the two points that are tried first; older first"),
    ] = []
    least: Annotated[
        int, Described(description="runs, if the declared boundary is right")
    ]
    most: Annotated[
        int, Described(description="runs, if it is not; untestable points come on top")
    ]
    missing: Annotated[
        list[str],
        Described(description="of the points tried first, those without environment"),
    ] = []


class BisectionPlan(Record):
    scenario: str
    variant: str
    engine: str
    device: str
    known_bad: str
    points: list[Point]
    sides: list[SidePlan]
    seconds_each: float
    seconds_from: str


def plan(scenario: Scenario, options: BisectCommand, field: Field) -> BisectionPlan:
    """Asks the package index for the releases, and nobody else; runs nothing."""
    store = CellStore(
        scenario.full_name, scenario.engine, scenario.release, field.device
    )
    seconds, why = store.estimate()
    return BisectionPlan(
        scenario=scenario.name,
        variant=scenario.variant,
        engine=scenario.engine,
        device=field.device,
        known_bad=field.points[field.bad].name,
        points=field.points[field.oldest : field.newest + 1],
        sides=[
            _side(scenario, options, field, direction)
            for direction in options.directions
        ],
        seconds_each=seconds,
        seconds_from=why,
    )


def _side(
    scenario: Scenario, options: BisectCommand, field: Field, direction: Direction
) -> SidePlan:
    far, step = field.far(direction), -1 if direction == "introduced" else 1
    side = field.points[field.bad : far + step if far + step >= 0 else None : step]
    declared: list[Point] = []
    if side[0].declared and not all(p.declared for p in side):
        first = [p.declared for p in side].index(False)
        declared = side[first - 1 : first + 1]

    least = (
        4 + len({p.name for p in (*declared, side[0], side[-1])}) - 2 if declared else 0
    )
    most = 2 + math.ceil(math.log2(max(2, len(side)))) + 2
    if options.linear:
        most = len(side) + 2
    repeat = options.repeat or 1
    tried = {p.name: p for p in (side[0], side[-1], *declared)}.values()
    return SidePlan(
        direction=direction,
        points=len(side),
        far=side[-1].name,
        declared=sorted(
            (p.name for p in declared), key=[p.name for p in field.points].index
        ),
        least=(least or most) * repeat,
        most=most * repeat,
        missing=[
            p.name
            for p in tried
            if not p.commit
            and not existing(spec_for(scenario.engine, p.release, field.device))
        ],
    )
