"""Which releases ``--releases`` means: pure, but for the list, which is asked for when
needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmrepro.base.errors import UsageError
from mmrepro.engines.environments.index import Listed
from mmrepro.engines.environments.spec import TreeLabel
from packaging.version import InvalidVersion, Version

OWN, AFFECTED, BOUNDARY, AFTER, NEWEST = (
    "own",
    "affected",
    "boundary",
    "after",
    "newest",
)
_WORDS = (OWN, AFFECTED, BOUNDARY, AFTER, NEWEST)
DEFAULT = (OWN, NEWEST)
_HINT = "affected, boundary, after, newest, own, A..B or versions, separated by commas"

_Affects = Callable[[str], bool]
_Listing = Callable[[], Sequence[Listed]]


def parse(text: str) -> tuple[str, ...]:
    """The selectors of ``affected,0.22.0..0.25.0``. Raises UsageError: one of them is
    none."""
    found = tuple(
        dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    )
    if not found:
        raise UsageError("--releases names no release.", hint=_HINT)
    for selector in found:
        if selector in _WORDS:
            continue
        low, dots, high = selector.partition("..")
        try:
            ends = [Version(end) for end in (low, high) if end]
        except InvalidVersion:
            raise UsageError(f"{selector!r} names no releases.", hint=_HINT) from None

        if len(ends) == 2 and ends[0] > ends[1]:
            raise UsageError(
                f"{selector!r} is empty: {low} is later.", hint=f"{high}..{low}"
            )
        if not ends or (not dots and not low):
            raise UsageError(f"{selector!r} names no releases.", hint=_HINT)

    return found


def chosen(
    selectors: Sequence[str],
    own: str,
    affects: _Affects,
    listing: _Listing,
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
    found: dict[Version, str] = {}
    for selector in selectors:
        for release in _of(selector, own, affects, listing, only_listed):
            found.setdefault(Version(release), release)

    return [found[version] for version in sorted(found)]


def _of(
    selector: str, own: str, affects: _Affects, listing: _Listing, only_listed: bool
) -> list[str]:
    if selector == OWN:
        return [own]
    low, dots, high = selector.partition("..")
    if selector not in _WORDS and not dots:
        known = (
            not only_listed
            or TreeLabel.of(selector) is not None
            or any(selector in (one.version, one.base) for one in listing())
        )
        return [selector] if known else []

    there = list(listing())
    if selector == NEWEST:
        return [one.version for one in there[-1:]]
    if selector == AFFECTED:
        return [one.version for one in there if affects(one.version)]
    if selector == BOUNDARY:
        return boundary([one.version for one in there], affects)
    if selector == AFTER:
        return after([one.version for one in there], affects)
    return [
        one.version
        for one in there
        if (not low or Version(one.base) >= Version(Version(low).base_version))
        and (not high or Version(one.base) <= Version(Version(high).base_version))
    ]


def version_of(release: str) -> Version:
    """The version to sort by; what is none comes first."""
    try:
        return Version(release)
    except InvalidVersion:
        return Version("0")


def boundary(releases: Sequence[str], affects: _Affects) -> list[str]:
    """Both releases at each edge of the affected range: the last before it and the
    first in it, the last in it and the first after it. An edge beyond the list has
    none."""
    inside = [affects(release) for release in releases]
    at = {
        index
        for index in range(len(releases))
        for other in (index - 1, index + 1)
        if 0 <= other < len(releases) and inside[index] != inside[other]
    }
    return [releases[index] for index in sorted(at)]


def after(releases: Sequence[str], affects: _Affects) -> list[str]:
    """The first release behind the affected range; of a range that is open, none."""
    inside = [affects(release) for release in releases]
    ends = (i for i in range(1, len(releases)) if inside[i - 1] and not inside[i])
    return [releases[index] for index in ends]
