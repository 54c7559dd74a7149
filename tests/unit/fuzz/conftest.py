"""Time on fake engines."""

from dataclasses import replace

import pytest
from fuzz_sessions import Clock
from mmrepro.search.fuzz import episodes as generated
from mmrepro.search.fuzz.options import DIALECTS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """And small episodes: what a session does with them does not depend on their
    size."""
    monkeypatch.setattr(generated, "REQUESTS", 12)
    for engine, dialect in DIALECTS.items():
        monkeypatch.setitem(DIALECTS, engine, replace(dialect, many=8))  # type: ignore[misc]
    return Clock(monkeypatch)
