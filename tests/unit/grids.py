"""Grids of cases: some of them for each change, the whole every night (``-m
nightly``)."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

EXAMPLES = 20
"""Of a property, for each change; tests/conftest.py has the profiles."""


def examples(count: int, **more: Any) -> settings:
    """So many examples for each change; in another profile as many times more as it has
    itself."""
    return settings(max_examples=times(count), **more)


def times(count: int) -> int:
    """So many draws of a test's own dice for each change; in another profile more,
    likewise."""
    return count * settings.default.max_examples // EXAMPLES


def grid(cases: Iterable[Any], *, always: Collection[Any]) -> list[Any]:
    """Parameters: ``cases``, of which those that are not among ``always`` are
    ``nightly``."""
    cases = list(cases)
    assert set(always) <= set(cases)
    return [
        case
        if case in always
        else pytest.param(*_words(case), marks=pytest.mark.nightly)
        for case in cases
    ]


def _words(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
