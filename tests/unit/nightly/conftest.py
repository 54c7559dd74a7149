"""The script that follows a nightly run, called."""

from __future__ import annotations

import sys

import in_process
import night_document
import nightly
import pytest
from night_documents import Script


@pytest.fixture
def script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Script:
    """``nightly.py WORDS``: its exit code, and what it printed."""

    def mmrepro(*words: str) -> tuple[int, str, str]:
        code, out, err = in_process.mmrepro(*words)
        return code, out, night_document.one_line(err, 500)

    for module in (night_document, nightly):
        monkeypatch.setattr(module, "mmrepro", mmrepro)

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["nightly.py", *map(str, words)])
        code = nightly.main()
        return code, "".join(capsys.readouterr())

    return call
