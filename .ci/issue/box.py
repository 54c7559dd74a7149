"""What runs in the container: tests the report, and writes the product to standard
output.

usage: python3 box.py SECONDS ISSUE.md OUT [OPTION…]   (OPTION: of `mmrepro repro`)

After so many seconds the run is ended, and the product has what was printed until then:
the verdict comes before the search among commits. All that a run leaves stays in OUT,
which ends with the container.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import product

MAX_DOCUMENT_BYTES = 64 * 1024**2
ENDED_BY_SIGNAL = 128
LATE = 124
"""The exit code of a run that was ended, as `timeout` has it."""
ENDING_S = 30.0
"""For a run to end its servers."""


def main(seconds: str, issue: str, out: str, *options: str) -> None:
    folder = Path(out)
    run = folder / "repro"
    printed = folder / "repro.json"
    page = folder / "report.md"
    testing = [
        "repro",
        "--json",
        "--quiet",
        "--yes",
        f"--out={run}",
        *options,
        "--",
        issue,
    ]
    code = _mmrepro(testing, printed, float(seconds))
    if code in (0, 1, 3, LATE):
        _mmrepro(["report", "--format", "md", "--", str(run)], page, ENDING_S)
    bisection = _document(run / "bisection" / "bisection.json")
    command = _command(options)
    made = product.made(_document(printed), _text(page), code, command, bisection)
    sys.stdout.buffer.write(product.written(made))


def _mmrepro(words: list[str], output: Path, limit_s: float) -> int:
    """Run mmrepro with its standard output in a file; return the exit code."""
    with output.open("wb") as file:
        running = subprocess.Popen(
            ["mmrepro", *words],  # noqa: S607 - the image's
            stdin=subprocess.DEVNULL,
            stdout=file,
        )
        try:
            code = running.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(running)
            return LATE
    return code if code >= 0 else ENDED_BY_SIGNAL - code


def _end(running: subprocess.Popen[bytes]) -> None:
    """End a run, and where it does not end by itself, by force: the container takes
    what it leaves."""
    running.terminate()
    try:
        running.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def _command(options: Sequence[str]) -> str:
    """What somebody asked for, by the options that it became."""
    if "--bisect-find=fixed" in options:
        return "find-fix"
    if "--bisect" in options:
        return "bisect"
    if any(option.startswith("--test-patch=") for option in options):
        return "test-patch"
    return "repro"


def _document(path: Path) -> object:
    """The JSON of a file; None: it has none."""
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError):
        return None


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT_BYTES).decode("utf-8", "replace")


if __name__ == "__main__":
    main(*sys.argv[1:])
