"""``mmrepro diagnose`` as users type it; in a process of its own, because it limits
itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.live.diagnose.options import read_deadline, read_headers


def test_a_dead_server_in_one_json_document(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable,
        "-m",
        "mmrepro",
        "diagnose",
        url,
        "--json",
        "--deadline",
        "15s",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    assert told["assessment"]["state"] == "dead"
    assert told["matches"][0]["fit"] == "not-this"
    folder = Path(told["incident_dir"])
    assert folder.parent == tmp_path / "incidents"
    assert {"incident.json", "report.md", "report.html"} <= {
        p.name for p in folder.iterdir()
    }


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("15", 15), (" 1.5s ", 1.5)]
)
def test_a_deadline(text: str, seconds: float) -> None:
    assert read_deadline(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "0.5", "601", "nan", "-3s", "ten"])
def test_what_is_no_deadline(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        read_deadline(text)


@pytest.mark.parametrize(
    "bad",
    [
        "X: \u00fc",
        "X: a\nb: c",
        "X: a\x00",
        "X Y: a",
        "X\u00e9: a",
        "Content-Length: 5",
        "te: x",
        "X: a\tb",
        "Accept-Encoding: gzip",
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="cannot be sent") as caught:
        read_headers(["A: b", bad])
    assert "\n" not in str(caught.value)


def test_headers() -> None:
    assert read_headers(["A: b:c", "X:y"]) == {"A": "b:c", "X": "y"}
    for bad in ("A", ": b", "A:"):
        with pytest.raises(UsageError, match="NAME: VALUE"):
            read_headers([bad])
