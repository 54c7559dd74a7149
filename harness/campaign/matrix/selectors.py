"""Which releases ``--releases`` means: pure, but for the list, which is asked for when
needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmrepro.base.errors import UsageError
from mmrepro.engines.environments import Listed, TreeLabel
from packaging.version import InvalidVersion, Version

_OWN = "own"
_AFFECTED = "affected"
_BOUNDARY = "boundary"
_AFTER = "after"
_NEWEST = "newest"
_WORDS = (_OWN, _AFFECTED, _BOUNDARY, _AFTER, _NEWEST)
DEFAULT = (_OWN, _NEWEST)
_HINT = "affected, boundary, after, newest, own, A..B or versions, separated by commas"

Affects = Callable[[str], bool]
ReleaseListing = Callable[[], Sequence[Listed]]


def parse(text: str) -> tuple[str, ...]:
    """The selectors of ``affected,0.22.0..0.25.0``. Raises UsageError: one of them is
    none."""
    parts = [part.strip() for part in text.split(",")]
    selectors = tuple(dict.fromkeys(filter(None, parts)))
    if not selectors:
        raise UsageError("--releases names no release.", hint=_HINT)
    for selector in selectors:
        if selector not in _WORDS:
            _check_versions(selector)

    return selectors


def _check_versions(selector: str) -> None:
    """Raises UsageError: it is neither a version nor a range of versions."""
    low, _, high = selector.partition("..")
    try:
        ends = [Version(end) for end in (low, high) if end]
    except InvalidVersion:
        raise UsageError(f"{selector!r} names no releases.", hint=_HINT) from None

    if not ends:
        raise UsageError(f"{selector!r} names no releases.", hint=_HINT)
    if len(ends) == 2 and ends[0] > ends[1]:
        raise UsageError(
            f"{selector!r} is empty: {low} is later.", hint=f"{high}..{low}"
        )


def chosen(
    selectors: Sequence[str],
    own: str,
    affects: Affects,
    listing: ReleaseListing,
    *,
    only_listed: bool = False,
) -> list[str]:
    """The releases that ``selectors`` mean for one scenario, oldest first.

    Args:
        own: the scenario's own release.
        affects: whether its failure is known on a release.
        listing: what the package index has; asked for only where a selector needs it.
        only_listed: leave out single versions that it has not (they are another
            engine's).
    """
    releases: dict[Version, str] = {}
    for selector in selectors:
        for release in _of(selector, own, affects, listing, only_listed):
            releases.setdefault(Version(release), release)

    return [releases[version] for version in sorted(releases)]


def _of(
    selector: str,
    own: str,
    affects: Affects,
    listing: ReleaseListing,
    only_listed: bool,
) -> list[str]:
    """The releases that one selector means."""
    if selector == _OWN:
        return [own]
    if selector not in _WORDS and ".." not in selector:
        known = not only_listed or TreeLabel.of(selector) is not None
        return [selector] if known or _is_listed(selector, listing()) else []

    releases = list(listing())
    names = [release.version for release in releases]
    if selector == _NEWEST:
        return names[-1:]
    if selector == _AFFECTED:
        return [name for name in names if affects(name)]
    if selector == _BOUNDARY:
        return boundary(names, affects)
    if selector == _AFTER:
        return after(names, affects)
    return _within(selector, releases)


def _is_listed(name: str, releases: Sequence[Listed]) -> bool:
    return any(name in (release.version, release.base) for release in releases)


def _within(selector: str, releases: Sequence[Listed]) -> list[str]:
    """The releases of a range ``A..B``, both ends in it; an end may be left out. By
    their bases: a build of the last release is in it."""
    low, _, high = selector.partition("..")
    within = []
    for release in releases:
        base = Version(release.base)
        if low and base < Version(Version(low).base_version):
            continue
        if high and base > Version(Version(high).base_version):
            continue
        within.append(release.version)

    return within


def version_of(release: str) -> Version:
    """The version to sort by; what is none comes first."""
    try:
        return Version(release)
    except InvalidVersion:
        return Version("0")


def boundary(releases: Sequence[str], affects: Affects) -> list[str]:
    """Both releases at each edge of the affected range: the last before it and the
    first in it, the last in it and the first after it. An edge beyond the list has
    none."""
    inside = [affects(release) for release in releases]
    at_edge = []
    for index, release in enumerate(releases):
        neighbours = inside[max(0, index - 1) : index + 2]
        if (not inside[index]) in neighbours:
            at_edge.append(release)

    return at_edge


def after(releases: Sequence[str], affects: Affects) -> list[str]:
    """The first release behind the affected range; of a range that is open, none."""
    first_behind = []
    was_inside = False
    for release in releases:
        inside = affects(release)
        if was_inside and not inside:
            first_behind.append(release)
        was_inside = inside

    return first_behind
