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
from mmrepro.base.machine import Device, device_of, read_file
from mmrepro.base.records import Record
from mmrepro.campaign.ablate.cells import CellStore
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.search import Direction
from mmrepro.campaign.trial import cell_of
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.environments import existing, releases_of
from mmrepro.failure.documents import Cell
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

    if options.bad:
        bad = _number(points, options.bad, "--bad", scenario)
    else:
        bad = _default_bad(scenario, points, options)

    oldest = 0
    newest = len(points) - 1
    if options.good:
        good = _number(points, options.good, "--good", scenario)
        _check_sides(points, options, good, bad)
        if good < bad:
            oldest = good
        else:
            newest = good

    return Field(points, bad, oldest, newest, device)


def _check_sides(
    points: Sequence[Point], options: BisectCommand, good: int, bad: int
) -> None:
    """Raises UsageError: the good point lies where the failure cannot have begun, or
    ended."""
    if good == bad:
        raise UsageError(f"{options.good} cannot be both good and bad.")
    wrong = {"introduced": good > bad, "fixed": good < bad, "both": False}
    if wrong[options.find]:
        other = "fixed" if options.find == "introduced" else "introduced"
        raise UsageError(
            f"--good {options.good} lies on the other side of {points[bad].name}: "
            f"the failure was {options.find} there.",
            hint=f"--find {other}",
        )


def _of_clone(
    clone: Path, scenario: Scenario, options: BisectCommand, device: Device
) -> Field:
    from mmrepro.campaign.bisect.clone import history

    commits = history(
        clone,
        scenario.engine,
        options.find,
        good=options.good,
        bad=options.bad,
        paths=options.child,
        release=scenario.release,
    )
    points = commits.points
    last = len(points) - 1
    ends = {"bad": points[commits.bad].commit}
    # Of both sides at once there is no single good end.
    good = {"introduced": 0, "fixed": last}.get(options.find)
    if good is not None:
        ends["good"] = points[good].commit
    return Field(
        points=points,
        bad=commits.bad,
        oldest=0,
        newest=last,
        device=device,
        merges=commits.merges,
        notes=tuple(commits.notes),
        ends=ends,
    )


def points_of(scenario: Scenario, options: BisectCommand) -> list[Point]:
    """All releases of the index for this machine, or the commits of the list, oldest
    first."""
    if options.commits is not None:
        return read_commits(options.commits)
    device = device_of(options.run.device)
    spec = get_engine(scenario.engine).environment_spec(scenario.release, device)
    points = []
    for release in releases_of(spec):
        point = Point(
            name=release.version,
            release=release.version,
            uploaded=release.uploaded.isoformat() if release.uploaded else "",
            declared=scenario.affects(release.version, device),
        )
        points.append(point)

    return points


def cell_at(
    point: Point, scenario: Scenario, options: BisectCommand, device: Device
) -> Cell:
    """The cell that a run of the point is of."""
    run = options.run
    # The tree of a clone is a release of its own, once it was read.
    if options.clone is not None:
        return cell_of(scenario, run, device, release=point.release)
    release = "" if point.commit else point.release
    return cell_of(scenario, run, device, release=release, commit=point.commit)


def _default_bad(
    scenario: Scenario, points: list[Point], options: BisectCommand
) -> int:
    """The scenario's own release; of commits the outermost. Raises UsageError."""
    spared = scenario.spares(device_of(options.run.device))
    if spared:
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

    number = _build_of(points, scenario.release, scenario)
    if number is not None:
        return number
    declared = [number for number, point in enumerate(points) if point.declared]
    if not declared:
        raise UsageError(
            f"None of the {len(points)} releases on the index is declared to be affected "
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
    numbers: list[int] = []
    if not points[0].commit:
        number = _build_of(points, name, scenario)
        if number is not None:
            return number
    elif len(name) >= 7:
        # Fewer digits say too little; of two that begin alike neither is meant.
        for number, point in enumerate(points):
            if point.commit.startswith(name):
                numbers.append(number)

    if len(numbers) == 1:
        return numbers[0]
    near = ", ".join(point.name[:12] for point in (*points[:2], *points[-2:]))
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

    dates = [point.uploaded for point in points if point.uploaded]
    # By the clock: one may have a time zone where another has none.
    times = [datetime.fromisoformat(date).timestamp() for date in dates]
    oldest_first = len(times) > 1 and times[0] < times[-1]
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
    sides = []
    for direction in options.directions:
        sides.append(_side(scenario, options, field, direction))

    return BisectionPlan(
        scenario=scenario.name,
        variant=scenario.variant,
        engine=scenario.engine,
        device=field.device,
        known_bad=field.points[field.bad].name,
        points=field.points[field.oldest : field.newest + 1],
        sides=sides,
        seconds_each=seconds,
        seconds_from=why,
    )


def _side(
    scenario: Scenario, options: BisectCommand, field: Field, direction: Direction
) -> SidePlan:
    points = _side_points(field, direction)
    declared = _declared_boundary(points)
    # By name: the boundary's points may be the ends, too.
    tried: dict[str, Point] = {}
    for point in (points[0], points[-1], *declared):
        tried.setdefault(point.name, point)

    # Both ends, the halving, and both sides of the boundary once more.
    most = 2 + math.ceil(math.log2(max(2, len(points)))) + 2
    if options.linear:
        most = len(points) + 2
    least = len(tried) + 2 if declared else most

    missing = []
    for point in tried.values():
        # A commit has no release by which an environment could be looked up.
        if point.commit:
            continue
        if not existing(spec_for(scenario.engine, point.release, field.device)):
            missing.append(point.name)

    repeat = options.repeat or 1
    between = {point.name for point in declared}
    return SidePlan(
        direction=direction,
        points=len(points),
        far=points[-1].name,
        declared=[point.name for point in field.points if point.name in between],
        least=least * repeat,
        most=most * repeat,
        missing=missing,
    )


def _side_points(field: Field, direction: Direction) -> list[Point]:
    """From the bad point to the far end of that side."""
    far = field.far(direction)
    if direction == "introduced":
        return field.points[far : field.bad + 1][::-1]
    return field.points[field.bad : far + 1]


def _declared_boundary(points: Sequence[Point]) -> Sequence[Point]:
    """The last point that is declared affected and the next one; (): there is none."""
    declared = [point.declared for point in points]
    if not declared[0] or all(declared):
        return ()
    first = declared.index(False)
    return points[first - 1 : first + 1]
