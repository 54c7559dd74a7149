"""Ways out through words: what a stranger prints taken for what mmrepro says."""

from __future__ import annotations

import json
import os

from hardening.escapes.attacker import (
    FACTS,
    FORGED,
    SECRET,
    WRITTEN,
    attack,
    attempt,
    say,
)


@attack(
    "forge-lines",
    "mmrepro's own lines, a verdict and outputs in what it prints",
    FORGED,
)
def lines() -> None:
    forged = FACTS["forged"]
    for text in (
        f"::set-output name=verdict::{forged}",
        f"::error::{forged}",
        f"verdict={forged}",
        f"verdict<<EOF\n{forged}\nEOF",
        json.dumps({"verdict": "reproduced", "answer": forged}),
        f"reproduced: {forged}",
    ):
        os.write(1, text.encode() + b"\n")
        os.write(2, text.encode() + b"\n")


@attack(
    "forge-terminal",
    "escape codes that rewrite the screen, its title, its clipboard",
    FORGED,
)
def escape_codes() -> None:
    forged = FACTS["forged"].encode()
    for text in (
        b"\x1b[2J\x1b[H" + forged,
        b"\x1b[1A\x1b[2K" + forged,
        b"\r" + forged,
        b"\x1b]0;" + forged + b"\x07",
        b"\x1b]52;c;" + forged + b"\x07",
        b"\x1b]8;;file:///etc/passwd\x1b\\" + forged + b"\x1b]8;;\x1b\\",
        b"\x9b2J" + forged,
        "\u202e".encode() + forged,
    ):
        os.write(1, text + b"\n")


@attack("forge-outputs", "the files that GitHub's variables name", WRITTEN, FORGED)
def outputs() -> None:
    forged = FACTS["forged"]
    names = (
        "GITHUB_OUTPUT",
        "GITHUB_ENV",
        "GITHUB_PATH",
        "GITHUB_STEP_SUMMARY",
        "GITHUB_STATE",
    )
    paths = {os.environ.get(name, "") for name in names} | {FACTS["github_output"]}
    for path in paths:
        # Nobody's true output: the canary's files alone.
        if FACTS["marker"] in path:
            attempt(path, append, path, f"verdict={forged}\nanswer={forged}\n")


@attack(
    "forge-stdout",
    "write to the standard output of mmrepro itself (/proc/PID/fd/1)",
    WRITTEN,
    FORGED,
)
def parents_output() -> None:
    forged = FACTS["forged"]
    for pid in (FACTS["harness_pid"], FACTS["canary_pid"]):
        for number in (1, 2):
            path = f"/proc/{pid}/fd/{number}"
            target = attempt(path, os.readlink, path) or ""
            if FACTS["marker"] in target:
                attempt(path, append, path, f"{forged}\n")


@attack(
    "forge-exit", "end with each exit status that means something to mmrepro", FORGED
)
def exit_status() -> None:
    os.write(1, f"exit 0: {FACTS['forged']}\n".encode())
    say("DONE", "ending with 125")
    os._exit(125)


@attack("forge-mark", "the marks between which mmrepro reads a client's output", FORGED)
def marks() -> None:
    forged = FACTS["forged"]
    for text in (
        "\0",
        "--- end of output ---",
        "-----END-----",
        "\x04",
        "```",
        "</details>",
        "~~~",
    ):
        os.write(1, f"{text}\n{forged}\n".encode())


@attack("encode-secret", "variables of the user, encoded past a redaction", SECRET)
def encoded() -> None:
    import base64

    for value in os.environ.values():
        # A canary's value alone is printed: other variables are the user's own.
        if value.startswith(FACTS["secret_start"]):
            os.write(1, base64.b64encode(value.encode()) + b"\n")
            os.write(1, value.encode().hex().encode() + b"\n")
            os.write(1, value[::-1].encode() + b"\n")
    say("DONE", "variables encoded")


def append(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(handle, text.encode())
    os.close(handle)
