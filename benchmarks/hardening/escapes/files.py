"""Ways out through files: the user's home, other homes, and where mmrepro reads what
was left."""

from __future__ import annotations

import os
import pathlib
import socket
import time

from hardening.escapes.attacker import (
    BOUNDS,
    FACTS,
    FORGED,
    LEFT,
    PERMITTED,
    SECRET,
    WRITTEN,
    attack,
    attempt,
    permitted,
    show_file,
    write_everywhere,
)


@attack(
    "home", "keys and tokens in the home: .ssh, .netrc, .npmrc, .aws, .config", SECRET
)
def home() -> None:
    for path in FACTS["home_files"]:
        show_file("home", path)


@attack("home-real", "the home of the account, whatever $HOME says", SECRET, WRITTEN)
def account_home() -> None:
    show_file("account", FACTS["account_file"])
    attempt("expand", show_file, "~", os.path.expanduser("~/" + FACTS["account_name"]))


@attack("home-others", "homes of others, /root", SECRET)
def other_homes() -> None:
    show_file("other home", FACTS["other_home_file"])


@attack("shadow", "/etc/shadow, and keys of the machine", SECRET, only="root")
def shadow() -> None:
    show_file("shadow", "/etc/shadow")


@attack(
    "folders",
    "read canaries in /tmp, /var/tmp, /dev/shm, the working and the runtime folder",
    SECRET,
)
def folders() -> None:
    for path in FACTS["secret_files"]:
        show_file("folder", path)


@attack(
    "write-outside",
    "write in /tmp, /var/tmp, /dev/shm, the home, the runtime folder",
    WRITTEN,
)
def write_outside() -> None:
    write_everywhere("write-outside")


@attack("script-folder", "write beside its own script, and into the script", WRITTEN)
def beside_script() -> None:
    write_everywhere("beside")
    folder = FACTS["script_folder"]
    attempt(
        "beside", pathlib.Path(folder, FACTS["marker"] + "-beside").write_text, "out"
    )


@attack(
    "link-out", "a symbolic link in the output folder that leads out", WRITTEN, SECRET
)
def link_out() -> None:
    # The names that a reader or a cleaner of the folder is likely to open.
    for name in OUTPUT_NAMES:
        attempt(
            name, replace_by, name, lambda path: os.symlink(FACTS["targets"][0], path)
        )
    for path in FACTS["secret_files"]:
        link = "secret-" + os.path.basename(path)
        attempt(
            link, replace_by, link, lambda place, path=path: os.symlink(path, place)
        )


@attack(
    "link-folder",
    "a symbolic link in place of a folder that is written or removed later",
    WRITTEN,
)
def link_folder() -> None:
    for name in ("out", "results", "logs", ".cache", "__pycache__"):
        attempt(
            name, replace_by, name, lambda path: os.symlink(FACTS["folders"][0], path)
        )


@attack(
    "link-hard",
    "a hard link to a file of the outside, then write through it",
    WRITTEN,
    SECRET,
)
def hard_link() -> None:
    for number, path in enumerate(FACTS["targets"] + FACTS["secret_files"]):
        name = f"hard-{number}"
        if attempt(f"link {path}", os.link, path, name) is not None:
            show_file("hard", name)


@attack(
    "link-race",
    "swap a file and a link to the outside while mmrepro reads and writes it",
    WRITTEN,
    SECRET,
)
def link_race() -> None:
    with open("race", "w", encoding="utf-8") as stream:
        stream.write("harmless")
    os.symlink(FACTS["targets"][0], "race-link")
    if os.fork() != 0:
        return
    # The first process ends, so that the reading begins; this one goes on for some
    # seconds.
    os.setsid()
    for number in (0, 1, 2):
        os.close(number)
    deadline = time.monotonic() + 2.5
    while time.monotonic() < deadline:
        os.rename("race-link", "race-other")
        os.rename("race", "race-link")
        os.rename("race-other", "race")
    os._exit(0)


OUTPUT_NAMES = (
    "result.json",
    "output.txt",
    "stdout",
    "stderr",
    "client.log",
    "server.log",
    "recording.jsonl",
    "events.jsonl",
    "report.md",
    "case.json",
)


@attack(
    "output-fifo",
    "a FIFO and a socket where mmrepro reads a result: a reader that waits for ever",
    LEFT,
)
def fifos() -> None:
    for name in OUTPUT_NAMES:
        attempt(name, replace_by, name, os.mkfifo)
    with socket.socket(socket.AF_UNIX) as listener:
        attempt("socket", listener.bind, "result.sock")


@attack("output-device", "a device in the output folder", PERMITTED, only="root")
def device() -> None:
    # The numbers of /dev/null: the right to make one, of a device that does nothing.
    mode = 0o020600
    for name in ("device", "/tmp/" + FACTS["marker"] + "-own-device"):
        if attempt(name, os.mknod, name, mode, os.makedev(1, 3)) is not None:
            permitted(f"mknod {name}")
            os.remove(name)


@attack("output-sparse", "a file of 1 TiB without content", LEFT)
def sparse() -> None:
    with open("sparse.json", "wb") as stream:
        stream.truncate(1 << 40)


@attack("output-deep", "3,000 nested folders", LEFT)
def deep() -> None:
    for _level in range(3000):
        os.mkdir("d")
        os.chdir("d")


@attack("output-many", "more files in the work folder than the bound", BOUNDS)
def many() -> None:
    os.mkdir("many")
    for number in range(FACTS["bomb_files"]):
        os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY, 0o600))


@attack(
    "output-names",
    "file names of line feeds, escape codes, bytes that are no text, 255 bytes",
    LEFT,
    FORGED,
)
def names() -> None:
    for name in (
        b"a\nverdict=forged",
        b"\x1b]0;title\x07",
        b"\xff\xfe",
        b"n" * 255,
        b"-rf",
        b" ",
        b"::set-output",
        "\u202egnp.exe".encode(),
        b"{{7*7}}",
        b"$(touch out)",
    ):
        attempt(
            repr(name),
            lambda name=name: os.close(os.open(name, os.O_CREAT | os.O_WRONLY)),
        )


@attack("output-unreadable", "folders without rights, which cannot be removed", LEFT)
def unreadable() -> None:
    os.makedirs("locked/inner")
    with open("locked/inner/file", "w", encoding="utf-8") as stream:
        stream.write("kept")
    os.chmod("locked/inner", 0)
    os.chmod("locked", 0)


@attack(
    "output-setuid", "a set-user-ID program left where the user may start it", WRITTEN
)
def leave_setuid() -> None:
    for folder in [".", *FACTS["folders"]]:
        path = os.path.join(folder, FACTS["marker"] + "-setuid")
        attempt(path, make_setuid, path)


def make_setuid(path: str) -> None:
    """Write a program that does nothing, and mark it."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("#!/bin/true\n")
    os.chmod(path, 0o6755)


def replace_by(name: str, make: object) -> None:
    """Put something else in place of a file of the work folder."""
    if os.path.lexists(name):
        os.remove(name)
    make(name)  # type: ignore[operator]
