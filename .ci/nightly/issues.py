#!/usr/bin/env python3
"""Open, rewrite and close the issues that a ledger asks for: `mmrepro matrix issues`, done by `gh`.

usage: issues.py DIR [--dry-run] [--max-new 10] [--quarantine FILE] [--every 24h] [--run-url URL]
       [--absent]

Nothing is tried twice. Where `gh` fails, the rest is left undone (exit code 4); what is wanted is
worked out anew from the ledger and the issues each time, so that the next night goes on with it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LABEL = "mmrepro-nightly"
FIELDS = "number,title,body,labels,state"
MOST = 1000
"""Issues that are read of each state."""


class Failed(Exception):
    """``code``: what to exit with."""

    def __init__(self, message: str, code: int = 4) -> None:
        super().__init__(message)
        self.code = code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ledger", metavar="DIR", help="the ledger's folder")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--max-new", type=int, default=10, help="issues opened at once (10)")
    parser.add_argument("--quarantine", help="TOML: no issue is opened for these cells")
    parser.add_argument("--every", help="when the next night is due, e.g. 24h")
    parser.add_argument("--absent", action="store_true", help="tonight nobody delivered anything")
    parser.add_argument("--run-url", default="", help="of this run: linked in each body")
    asked = parser.parse_args()
    try:
        work = wanted(asked, issues())
        if asked.dry_run:
            for action in work["actions"]:
                print("would", told(action))
        else:
            perform(work["actions"])
    except Failed as error:
        print(f"issues.py: {error}", file=sys.stderr)
        return error.code
    held = work["held"]
    if held:
        more = line(", ".join(held[:3]))
        print(f"{len(held)} more are to be opened and wait for the next night: {more}")
    if not work["actions"] and not held:
        print("nothing is to be done")
    return 0


def issues() -> list[dict[str, Any]]:
    """Those with the label: all that are open, and the newest that are closed."""
    found: list[dict[str, Any]] = []
    for state in ("open", "closed"):
        text = gh("issue", "list", "--label", LABEL, "--state", state, "--limit", str(MOST),
                  "--json", FIELDS)  # fmt: skip
        some = json.loads(text or "[]")
        if state == "open" and len(some) >= MOST:
            raise Failed(f"{MOST} issues with the label {LABEL} are open: close some first")
        found += some
    return found


def wanted(asked: argparse.Namespace, known: list[dict[str, Any]]) -> dict[str, Any]:
    """What `mmrepro matrix issues` says; it is given no token."""
    words = shlex.split(os.environ.get("MMREPRO", "mmrepro"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "open.json")
        path.write_text(json.dumps(known), encoding="utf-8")
        words += ["matrix", "issues", asked.ledger, "--open", str(path), "--json"]
        words += ["--max-new", str(asked.max_new), "--run-url", asked.run_url]
        words += ["--quarantine", asked.quarantine] if asked.quarantine else []
        words += ["--every", asked.every] if asked.every else []
        words += ["--absent"] if asked.absent else []
        clean = {k: v for k, v in os.environ.items() if k not in ("GH_TOKEN", "GITHUB_TOKEN")}
        done = subprocess.run(words, env=clean, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Failed("mmrepro matrix issues failed: see above", done.returncode)
    work: dict[str, Any] = json.loads(done.stdout)
    return work


def perform(actions: list[dict[str, Any]]) -> None:
    """One after another. A comment comes first: cut off after it, it is at worst said twice."""
    if any(action["do"] == "open" for action in actions):
        label()
    for action in actions:
        number = str(action.get("number", ""))
        if action["do"] == "open":
            labels = [f"--label={name}" for name in action["labels"]]
            title = f"--title={action['title']}"
            gh("issue", "create", title, *labels, "--body-file", "-", given=action["body"])
        elif action["do"] == "update":
            comment(number, action["comment"])
            gh("issue", "edit", number, "--body-file", "-", given=action["body"])
        else:
            comment(number, action["comment"])
            gh("issue", "close", number, "--reason", action["reason"])
        print(told(action))


def comment(number: str, text: str) -> None:
    if text:
        gh("issue", "comment", number, "--body-file", "-", given=text)


def label() -> None:
    known = json.loads(gh("label", "list", "--limit", str(MOST), "--json", "name") or "[]")
    if all(one["name"] != LABEL for one in known):
        gh("label", "create", LABEL, "--color", "5319e7",
           "--description", "opened, rewritten and closed by the nightly run")  # fmt: skip


def told(action: dict[str, Any]) -> str:
    what = action["do"] + (f" #{action['number']}" if "number" in action else "")
    return line(f"{what}: {action.get('title', action['identity'])}")


def line(text: str) -> str:
    """On one line, in which a workflow's runner finds no command of its own."""
    return " ".join(text.split()).replace("##[", "## [")


def gh(*words: str, given: str = "") -> str:
    program = shutil.which("gh")
    if program is None:
        raise Failed("there is no gh on the PATH; see https://cli.github.com")
    done = subprocess.run(
        [program, *words], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = line(done.stderr)[-500:]
        raise Failed(f"gh {words[0]} {words[1]} failed, and the rest is left undone: {said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
