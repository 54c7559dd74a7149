"""Writes the issue of GitHub's event into a file: no token is asked for, and no
network.

usage: python3 report.py EVENT.json ISSUE.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MAX_CHARACTERS = 65_536
"""GitHub's own bound of an issue's text."""


def main(event: str, target: str) -> None:
    issue = json.loads(Path(event).read_bytes()).get("issue")
    if not isinstance(issue, dict):
        sys.exit("::error::this event has no issue")
    title = issue.get("title") or ""
    body = issue.get("body") or ""
    text = f"# {title}\n\n{body}"[: 2 * MAX_CHARACTERS]
    # An unpaired surrogate has no UTF-8.
    Path(target).write_bytes(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    main(*sys.argv[1:])
