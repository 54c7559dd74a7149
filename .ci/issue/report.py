"""Writes the issue of GitHub's event into a file, and what its comment asks for: no
token is asked for, and no network.

usage: python3 report.py EVENT.json FOLDER
       gh issue list --json number,title,body … | python3 report.py --listed FOLDER

FOLDER gets issue.md, command (one of COMMANDS' words), and with /test-patch patch.diff,
the first ```diff block of the comment; or NUMBER.md of each listed issue, whose numbers
are printed in the form of GITHUB_OUTPUT.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

MAX_CHARACTERS = 65_536
"""GitHub's own bound of an issue's text, and of a comment's."""

COMMANDS = {"/repro": "repro", "/bisect": "bisect", "/test-patch": "test-patch"}
PATCH = re.compile(r"^```(?:diff|patch)[ \t]*\r?\n(.*?)^```[ \t]*\r?$", re.M | re.S)


def main(source: str, target: str) -> None:
    folder = Path(target)
    if source == "--listed":
        listed(json.load(sys.stdin), folder)
        return
    event = json.loads(Path(source).read_bytes())
    issue = event.get("issue")
    if not isinstance(issue, dict):
        sys.exit("::error::this event has no issue")
    write(folder / "issue.md", text_of(issue))

    command, patch = asked_by(event.get("comment"))
    write(folder / "command", command + "\n")
    if patch:
        write(folder / "patch.diff", patch)


def listed(issues: list[dict[str, Any]], folder: Path) -> None:
    """Write the text of each issue, and print which there are."""
    numbers = [int(issue["number"]) for issue in issues]
    for number, issue in zip(numbers, issues, strict=True):
        write(folder / f"{number}.md", text_of(issue))
    print(f"numbers={json.dumps(numbers)}")
    print(f"any={'yes' if numbers else 'no'}")


def text_of(issue: dict[str, Any]) -> str:
    title = issue.get("title") or ""
    body = issue.get("body") or ""
    return f"# {title}\n\n{body}"[: 2 * MAX_CHARACTERS]


def asked_by(comment: Any) -> tuple[str, str]:
    """The command of a comment, and the patch that belongs to it. A label is /repro."""
    if not isinstance(comment, dict):
        return "repro", ""
    text = str(comment.get("body") or "")[:MAX_CHARACTERS]
    word = text.split(maxsplit=1)[0] if text.strip() else ""
    if word not in COMMANDS:
        sys.exit(f"::error::the comment begins with none of {', '.join(COMMANDS)}")
    command = COMMANDS[word]
    if command != "test-patch":
        return command, ""
    block = PATCH.search(text)
    if block is None:
        sys.exit("::error::the comment has no ```diff block with the patch")
    # git takes no carriage returns, which GitHub's forms send.
    return command, block[1].replace("\r\n", "\n")


def write(path: Path, text: str) -> None:
    # An unpaired surrogate has no UTF-8.
    path.write_bytes(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    main(*sys.argv[1:])
