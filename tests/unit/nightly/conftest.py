"""The script that follows a nightly run, called."""

from __future__ import annotations

import sys

import nightly
import pytest
from night_documents import Script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """``nightly.py WORDS``: its exit code, and what it printed."""
    monkeypatch.setenv("MMREPRO", f"{sys.executable} -m mmrepro")

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["nightly.py", *map(str, words)])
        code = nightly.main()
        return code, "".join(capsys.readouterr())

    return call
