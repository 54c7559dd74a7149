#!/usr/bin/env python3
"""A fake of `docker run`: the container's program runs on this machine, with the paths
of mounts.

FAKE_DOCKER is a folder. In it, `calls` gets each call's arguments and variables;
`program`, where it is there, runs in place of the image's entry point, as a stranger
who took the container over."""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    folder = Path(os.environ["FAKE_DOCKER"])
    with (folder / "calls").open("a") as file:
        file.write(
            json.dumps({"arguments": sys.argv[1:], "variables": dict(os.environ)})
            + "\n"
        )
    if sys.argv[1] != "run":
        return
    program = ""
    mounts = {"/out": str(folder / "out")}
    variables = dict(os.environ)
    words = iter(sys.argv[2:])
    for word in words:
        if word == "--entrypoint":
            program = next(words)
        elif word == "--mount":
            facts = dict(part.partition("=")[::2] for part in next(words).split(","))
            mounts[facts["target"]] = facts["source"]
        elif word == "--env":
            name, _, value = next(words).partition("=")
            variables[name] = value
        elif "@sha256:" in word:
            break
    (folder / "out").mkdir(exist_ok=True)
    hostile = folder / "program"
    if hostile.exists():
        os.execv(hostile, [str(hostile)])
    given = [placed(word, mounts) for word in words]
    program = program or "mmrepro"
    os.execvpe(
        program, [program, *given], {**variables, "CACHE": mounts.get("/cache", "")}
    )


def placed(word: str, mounts: dict[str, str]) -> str:
    """``word`` with the folder of this machine for the container's."""
    for target, source in mounts.items():
        if word == target or word.startswith(f"{target}/"):
            return source + word.removeprefix(target)
    return word


if __name__ == "__main__":
    main()
