"""Writes the script of each step of CI configurations into a file of its own, for
shellcheck.

usage: scripts.py FOLDER FILE.yml … (with ``jobs`` it is GitHub's, with ``runs`` an
action, with ``steps`` Buildkite's)"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


def scripts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(what it is called, bash)"""
    if "jobs" in document:
        for job, definition in document["jobs"].items():
            # A job that calls another workflow has no steps.
            for number, step in enumerate(definition.get("steps", []), 1):
                if "run" in step:
                    yield f"{job}-{number}", step["run"]
    elif "runs" in document:
        for number, step in enumerate(document["runs"]["steps"], 1):
            if "run" in step:
                yield f"action-{number}", step["run"]
    elif "steps" in document:
        for number, step in enumerate(document["steps"], 1):
            # $$ is how a pipeline writes the $ that is not for Buildkite.
            yield (
                step.get("key", str(number)),
                "\n".join(step["command"]).replace("$$", "$"),
            )
    else:
        for job, definition in document.items():
            before = (
                definition.get("before_script", [])
                if isinstance(definition, dict)
                else []
            )
            for part in ("script", "after_script"):
                if isinstance(definition, dict) and part in definition:
                    lines = [*(before if part == "script" else []), *definition[part]]
                    yield f"{job}-{part}", "\n".join(lines)
            if before and "script" not in definition:
                yield f"{job}-before", "\n".join(before)


def main(folder: str, *files: str) -> None:
    for file in files:
        for name, script in scripts(YAML(typ="safe").load(Path(file))):
            # Of the whole path: each action's file has the same name.
            target = Path(folder) / re.sub(r"\W+", "-", f"{file}-{name}").strip("-")
            target.write_text(f"#!/usr/bin/env bash\n{script}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
