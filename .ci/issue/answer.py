"""Renders the answer to an issue from the box's product, which a stranger may have
written.

usage: python3 answer.py PRODUCT.json COMMENT.md [fixed]   (outputs go to the file of
GITHUB_OUTPUT; fixed: there is a comment only where the commit is named that fixes it)

Nothing of the product is run, or becomes a command: values are compared with lists,
text stands in a fence. There is a comment only where something was tested."""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import product

BEGINNINGS = {
    "reproduced": "Reproduced.",
    "different": "Something else fails.",
    "not-reproduced": "Not reproduced.",
}
STATES = {
    "fixed": "it does not fail",
    "still": "it fails as well",
    "other": "something else fails",
    "not-tested": "not tested",
}
FIRST = {"introduced": "first bad commit", "fixed": "first good commit"}
UNNAMED = {
    "introduced": "No first bad commit is named:",
    "fixed": "No first good commit is named:",
}
CHECKED = (
    "not verified: a neighbour was not run again",
    "it and its neighbour were run twice",
)
MAX_CHARACTERS = 60_000
"""Of the comment: GitHub takes 65,536."""

FOOTER = (
    "Made by mmrepro without a person; a tiny model shows no kernel or memory failure."
)


def fence(text: str) -> str:
    """A code block with ``text``, longer than any row of backticks in it, which
    mentions nobody."""
    # GitHub names nobody in a block; mail and other readers of the comment might.
    text = text.replace("@", "\N{FULLWIDTH COMMERCIAL AT}")
    longest = max((len(row) for row in re.findall("`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}text\n{text}\n{marks}"


def comment(facts: dict[str, Any]) -> str:
    """The comment on a checked product; empty where nothing was tested."""
    beginning = BEGINNINGS.get(facts["verdict"])
    if beginning is None:
        return ""
    server = f"{facts['engine']} {facts['release']}".strip()
    parts = [
        f"**{beginning}** On a fresh `{server}` with a tiny model:",
        fence(facts["said"]),
    ]
    if facts["replaced"]:
        lines = [
            f"{row['what']} -> {row['by'] or 'left out'}: {row['why']}"
            for row in facts["replaced"]
        ]
        parts += ["Replaced:", fence("\n".join(lines))]
    for row in facts["fixed"]:
        if row["release"]:
            where = f"On `{row['release']}`"
            if facts["command"] == "test-patch":
                where = "With the patch"
            parts.append(f"{where}: {STATES[row['state']]}.")
    for boundary in facts["boundaries"]:
        parts += boundary_lines(boundary)
    if facts["report"]:
        parts += [
            "<details><summary>Report</summary>",
            fence(facts["report"]),
            "</details>",
        ]
    parts.append(FOOTER)
    return "\n\n".join(parts) + "\n"


def boundary_lines(boundary: dict[str, Any]) -> list[str]:
    """The paragraphs on one side of a search among commits."""
    direction = boundary["direction"]
    if boundary["conclusion"] == "found" and boundary["commit"]:
        checked = CHECKED[boundary["verified"]]
        return [f"The {FIRST[direction]}: {boundary['commit']} ({checked})."]
    return [UNNAMED[direction], fence(boundary["said"])]


def is_fixed(facts: dict[str, Any]) -> bool:
    """Whether the commit that fixes the failure is named and verified."""
    return any(
        boundary["direction"] == "fixed"
        and boundary["conclusion"] == "found"
        and boundary["commit"]
        and boundary["verified"]
        for boundary in facts["boundaries"]
    )


def rendered(facts: dict[str, Any]) -> str:
    """The comment, without the report where it would be too long with it."""
    text = comment(facts)
    return text if len(text) <= MAX_CHARACTERS else comment({**facts, "report": ""})


def set_output(name: str, value: str) -> None:
    """Append an output in GitHub's form for any text: nobody can guess where it
    ends."""
    end = f"end-{secrets.token_hex(16)}"
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.write(f"{name}<<{end}\n{value}\n{end}\n")


def main(source: str, target: str, only: str = "") -> None:
    try:
        facts = product.read(Path(source))
    except product.Refused as refused:
        sys.exit(f"::error::The product of the box is refused: {refused}.")
    fixed = is_fixed(facts)
    text = rendered(facts) if fixed or only != "fixed" else ""
    if text:
        Path(target).write_text(text, encoding="utf-8")
    set_output("verdict", facts["verdict"])
    set_output("comment", "yes" if text else "no")
    set_output("fixed", "yes" if fixed else "no")


if __name__ == "__main__":
    main(*sys.argv[1:])
