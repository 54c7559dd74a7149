"""Do a page's commands print what the page shows? Types each of them in a fresh folder.

Usage: python benchmarks/typed.py PAGE... [--mmrepro FILE] [--keep DIR] [--patience S]
                                  [--no-engines]

Each block of shell is typed in turn, all of a page in one folder, as whoever runs this
script: benchmarks/fresh_root.sh runs it as an ordinary user in a new root. Where a block
of text follows, or the command is its first line, after a "$", its lines have to be
printed in that order; others may stand between them. A number fits any number, and "…"
fits anything. A server's address, as the page has it, becomes the one that was printed.
A block that writes a file, or says so with ``# typed``, is typed as it is. Of other
blocks each line is typed as typed.toml says: a server, a log, a model or hours are the
reader's. A line that it does not know is wrong. Processes that a page leaves running
are ended. Exit 1: a line is missing."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

NUMBER = re.compile(r"\d[\d.,:-]*\d|\d")
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
CHECKOUT = Path(__file__).resolve().parents[1]
LINES = Path(__file__).with_suffix(".toml")
ENDS_IT = re.compile(r"\bkill (\d+)")
# A verdict that a machine without an idle core rightly withholds.
STARVED = re.compile(r"short of processors|UNDECIDED")


@dataclass
class Block:
    """What is typed, and the lines that the page shows of it."""

    line: int
    typed: str
    shown: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why it is not typed."""
    place: Path | None = None
    """None: the page's own folder."""

    @property
    def is_whole(self) -> bool:
        """Whether it is typed as it is; else each line is looked up."""
        return bool(self.shown) or "<<" in self.typed or "# typed" in self.typed


@dataclass(frozen=True)
class Line:
    """What typed.toml says of a line that shows nothing: its comment is left out.

    Attributes:
        before: what the reader has already, as a command.
        server: what ``before`` prints of the server that the page's next lines ask.
        instead: typed in its place, where the line takes hours or names what the reader
            has.
        prints: lines, as a page shows them.
        checkout: whether it is typed in the checkout.
        engine: whether it starts a real engine.
        skipped: where it is typed instead, or why never.
    """

    line: str
    before: str = ""
    server: str = ""
    instead: str = ""
    prints: tuple[str, ...] = ()
    checkout: bool = False
    engine: bool = False
    skipped: str = ""

    def block(self, number: int) -> Block:
        """What is typed for the line ``number`` of a page."""
        place = CHECKOUT if self.checkout else None
        typed = self.instead or self.line
        return Block(number, typed, list(self.prints), self.skipped, place)


def known_lines() -> dict[str, Line]:
    """Every line of typed.toml."""
    known = {}
    for entry in tomllib.loads(LINES.read_text("utf-8"))["lines"]:
        line = Line(**{**entry, "prints": tuple(entry.get("prints", ()))})
        known[line.line] = line
    return known


def commands_of(typed: str) -> list[str]:
    """The commands of a block, a line each, without their comments."""
    lines = typed.replace("\\\n", " ").splitlines()
    commands = [re.sub(r"\s+#\s.*", "", line).strip() for line in lines]
    return [command for command in commands if command]


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
            cwd=block.place or self.path,
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
            if block is not None:
                yield block
                block = None
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


def steps(page: Path, *, engines: bool) -> Iterator[Block]:
    """What is typed of a page, in its order.

    Args:
        engines: False: a line that starts a real engine is passed over.
    """
    known = known_lines()
    begun: set[str] = set()
    for block in blocks_of(page):
        commands = [block.typed.strip()] if block.is_whole else commands_of(block.typed)
        for command in commands:
            line = known.get(command)
            if line and line.before and line.before not in begun:
                begun.add(line.before)
                yield Block(block.line, line.before, [*filter(None, [line.server])])

            if block.is_whole:
                yield block
            elif line is None:
                yield Block(block.line, command, skipped="UNKNOWN to typed.toml")
            elif line.engine and not engines:
                yield Block(block.line, command, skipped="starts a real engine")
            else:
                yield line.block(block.line)


def typed(page: Path, folder: Folder, *, engines: bool) -> int:
    """Type the page; the number of blocks that print something else."""
    wrong = 0
    for block in steps(page, engines=engines):
        first = block.typed.strip().splitlines()[0]
        head = f"| {page.name}:{block.line} | `{first}` |"
        if block.skipped:
            print(f"{head} | {block.skipped} |", flush=True)
            wrong += block.skipped.startswith("UNKNOWN")
            continue
        began = time.monotonic()
        output = folder.type(block)
        took = time.monotonic() - began
        absent = missing(block, output, folder)
        starved = bool(absent) and STARVED.search(output) is not None
        state = "as shown" if block.shown else "typed"
        if absent:
            state = "the machine is short of processors" if starved else "DIFFERS"
        print(f"{head} {took:.0f} s | {state} |", flush=True)
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
    parser.add_argument(
        "--no-engines",
        dest="engines",
        action="store_false",
        help="pass over lines that start a real engine",
    )
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
                wrong += typed(page, folder, engines=asked.engines)
            finally:
                _end(folder.processes)
    return 1 if wrong else 0


def _end(processes: list[int]) -> None:
    """End the servers that the page says how to end."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
