"""`mmrepro check --need`: what one machine can do without, another cannot."""

from __future__ import annotations

import pytest
from mmrepro import check
from mmrepro.errors import UsageError


def test_a_part_that_is_needed_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = check.Part(name="gpu", ok=False, found="there is no NVIDIA driver on this machine")
    monkeypatch.setattr(check, "gpu", lambda: gone)
    without, needed = check.examine(), check.examine(["gpu", "cpu"])
    required = lambda report: {part.name for part in report.parts if part.required}  # noqa: E731
    assert required(needed) == required(without) | {"gpu", "cpu"}
    assert not needed.ok
    assert without.ok == all(part.ok for part in without.parts if part.name in required(without))


def test_a_part_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="No part is called 'gpus'") as told:
        check.examine(["gpus"])
    assert "gpu," in str(told.value.hint)
