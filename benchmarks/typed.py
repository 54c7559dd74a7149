"""Do a page's commands print what the page shows? Types each of them in a fresh folder.

Usage: python benchmarks/typed.py PAGE... [--mmrepro FILE] [--keep DIR] [--patience S]

Each block of shell is typed in turn, all of a page in one folder, as whoever runs this
script: benchmarks/fresh_root.sh runs it as an ordinary user in a new root. Where a block
of text follows, or the command is its first line, after a "$", its lines have to be
printed in that order; others may stand between them. A number fits any number, and "…"
fits anything. A server's address, as the page has it, becomes the one that was printed.
A block that no text follows is typed only if a later one needs it: it writes a file, or
says so with ``# typed``. Processes that a page leaves running are ended. Exit 1: a line
is missing."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

NUMBER = re.compile(r"\d[\d.,:-]*\d|\d")
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
ENDS_IT = re.compile(r"\bkill (\d+)")
# A verdict that a machine without an idle core rightly withholds.
STARVED = re.compile(r"short of processors|UNDECIDED")


@dataclass
class Block:
    """What is typed, and the lines that the page shows of it."""

    line: int
    typed: str
    shown: list[str] = field(default_factory=list)

    @property
    def needed(self) -> bool:
        return bool(self.shown) or "<<" in self.typed or "# typed" in self.typed


@dataclass
class Folder:
    """Where a page is typed, and what stands for what in it."""

    path: Path
    environment: dict[str, str]
    patience_s: float
    names: dict[str, str] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)

    def type(self, block: Block) -> str:
        """Type the block, and return what it prints."""
        command = block.typed
        for shown, printed in self.names.items():
            command = command.replace(shown, printed)
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=self.patience_s,
            text=True,
            check=False,
        )
        self.processes += [int(pid) for pid in ENDS_IT.findall(ran.stdout)]
        return ran.stdout

    def learn(self, shown: str, printed: str) -> None:
        """Remember which address stands for the page's."""
        ours, theirs = ADDRESS.findall(shown), ADDRESS.findall(printed)
        self.names.update(zip(ours, theirs, strict=False))


def blocks_of(page: Path) -> Iterator[Block]:
    """Its blocks of shell, each with the text that follows it."""
    block = None
    for token in MarkdownIt("commonmark").parse(page.read_text("utf-8")):
        if token.type != "fence":
            continue
        line = token.map[0] + 2 if token.map else 0
        if token.info == "text" and token.content.startswith("$ "):
            command, *shown = token.content.splitlines()
            yield Block(line, command.removeprefix("$ "), shown)
        elif token.info == "sh":
            if block is not None:
                yield block
            block = Block(line, token.content)
        elif token.info == "text" and block is not None:
            block.shown = [shown for shown in token.content.splitlines() if shown]
            yield block
            block = None
    if block is not None:
        yield block


def fits(shown: str, printed: str) -> bool:
    """Whether a line that was printed is the one that the page shows."""
    parts = []
    for part in " ".join(shown.split()).split("…"):
        pieces = [re.escape(piece) for piece in NUMBER.split(part)]
        parts.append(r"\d[\d.,:-]*".join(pieces))
    return re.search(".*".join(parts), " ".join(printed.split())) is not None


def missing(block: Block, output: str, folder: Folder) -> list[str]:
    """The lines that the page shows and that were not printed, in their order."""
    lines = output.splitlines()
    absent = []
    for shown in block.shown:
        for number, printed in enumerate(lines):
            if fits(shown, printed):
                folder.learn(shown, printed)
                lines = lines[number + 1 :]
                break
        else:
            absent.append(shown)
    return absent


def typed(page: Path, folder: Folder) -> int:
    """Type the page; the number of blocks that print something else."""
    wrong = 0
    for block in blocks_of(page):
        if not block.needed:
            continue
        began = time.monotonic()
        output = folder.type(block)
        took = time.monotonic() - began
        absent = missing(block, output, folder)
        starved = bool(absent) and STARVED.search(output) is not None
        first = block.typed.strip().splitlines()[0]
        state = "as shown" if block.shown else "typed"
        if absent:
            state = "the machine is short of processors" if starved else "DIFFERS"
        print(
            f"| {page.name}:{block.line} | `{first}` | {took:.0f} s | {state} |",
            flush=True,
        )
        if absent and not starved:
            wrong += 1
            print("    missing:", *absent, "    printed:", output, sep="\n", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--mmrepro", type=Path, default=Path(sys.prefix, "bin/mmrepro"))
    parser.add_argument("--keep", type=Path, help="type it there, and leave it")
    parser.add_argument("--patience", type=float, default=900, help="seconds a block")
    asked = parser.parse_args()
    path = f"{asked.mmrepro.resolve().parent}{os.pathsep}{os.environ['PATH']}"
    wrong = 0
    print("| where | typed | took | what it printed |\n|---|---|---|---|")
    for page in asked.pages:
        with tempfile.TemporaryDirectory() as made:
            place = asked.keep or Path(made)
            place.mkdir(parents=True, exist_ok=True)
            environment = {**os.environ, "PATH": path, "COLUMNS": "200"}
            folder = Folder(place, environment, asked.patience)
            try:
                wrong += typed(page, folder)
            finally:
                _end(folder.processes)
    return 1 if wrong else 0


def _end(processes: list[int]) -> None:
    """End the servers that the page says how to end."""
    for pid in processes:
        subprocess.run(["kill", str(pid)], stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main())
