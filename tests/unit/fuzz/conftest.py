"""Time on fake engines."""

from dataclasses import replace

import pytest
from fuzz_sessions import Clock
from mmrepro.engines.dialects import Dialect, dialect_of
from mmrepro.search.fuzz import episodes as generated, options, server


def _small(engine: str) -> Dialect:
    return replace(dialect_of(engine), many=8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """And small episodes: what a session does with them does not depend on their
    size."""
    monkeypatch.setattr(generated, "REQUESTS", 12)
    for module in (generated, options, server):
        monkeypatch.setattr(module, "dialect_of", _small)
    return Clock(monkeypatch)
