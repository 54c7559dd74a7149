"""What runs in the container: tests the report, and writes the product to standard
output.

usage: python3 box.py ISSUE.md OUT [OPTION…]   (OPTION: of `mmrepro repro`)

All that a run leaves stays in OUT, which ends with the container.
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


def main(issue: str, out: str, *options: str) -> None:
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
    code = _mmrepro(testing, printed)
    if code in (0, 1, 3):
        _mmrepro(["report", "--format", "md", "--", str(run)], page)
    bisection = _document(run / "bisection" / "bisection.json")
    command = _command(options)
    made = product.made(_document(printed), _text(page), code, command, bisection)
    sys.stdout.buffer.write(product.written(made))


def _mmrepro(words: list[str], output: Path) -> int:
    """Run mmrepro with its standard output in a file; return the exit code."""
    with output.open("wb") as file:
        done = subprocess.run(
            ["mmrepro", *words],  # noqa: S607 - the image's
            stdin=subprocess.DEVNULL,
            stdout=file,
            check=False,
        )
    return (
        done.returncode if done.returncode >= 0 else ENDED_BY_SIGNAL - done.returncode
    )


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
