"""Screens as people see them, at four widths: golden files, and no word is broken.

``pytest tests/unit/reports --update`` writes them anew."""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process import mmrepro
from mmrepro.cli.commands import COMMANDS

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"
EVIDENCE = ROOT / "tests" / "evidence"
RUN = EVIDENCE / "ghost-key-eviction-0.23.0.zip"
START = Path(__file__).parents[1] / "starts" / "lmdeploy-port-taken.log"
WIDTHS = (60, 80, 100, 120)
SCREENS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("help", "all"),
    ("list",),
    ("list", "--alive"),
    ("show", "ghost-key-eviction"),
    ("show", "--claims"),
    ("show", "shape-alias", "--claims"),
    ("report", "run", "--format", "text"),
    ("judge", "run"),
    ("bundle", "run", "--out", "out.zip", "--force"),
    ("find", "Expected a cached item"),
    ("find", "no failure has these words"),
    ("why", "start.log"),
    ("logs", "start.log"),
    ("logs", "hang.log"),
    ("matrix", "history", "nights"),
    ("matrix", "report", "nights", "--format", "terminal"),
    (
        *("kv-budget", "--free", "6784MiB", "--runtime", "5061MiB"),
        *("--block-bytes", "8388608", "--cache-max-entry-count", "0.1"),
    ),
    ("new", "odd-image", "--engine", "minivllm", "--out", "new"),
    ("run", "no-such-scenario"),
    ("schema",),
    # What takes a server, an engine or a network shows here what it recorded, its help
    # or a refusal.
    ("demo",),
    ("report", "replay", "--format", "text"),
    ("report", "fuzz", "--format", "text"),
    ("report", "ablation", "--format", "text"),
    ("report", "bisection", "--format", "text"),
    ("ablate", "ghost-key-eviction", "--dry-run"),
    ("incidents",),
    ("open", "run", "--print"),
    ("resume", "last"),
    ("repro", "report.md"),
    ("replay", "nofile.har", "--engine", "vllm"),
    ("fuzz", "vlm"),
    ("upgrade", "0.1"),
    ("capture", "nofile.har", "--mooncake", "out.jsonl"),
    ("share", "nofile"),
    ("bisect", "no-such-scenario"),
    ("bisect-run", "no-such-scenario"),
    ("test-tree",),
    ("commit",),
    ("env",),
    ("env", "list"),
    ("mcp", "--help"),
    ("watch", "no-address", "--once"),
    ("diagnose", "no-address"),
    ("check", "--for", "vlm==1"),
)
HANG = """\
(APIServer pid=3) INFO 11-21 02:00:01 [a.py:1] Added request one.
(EngineCore pid=7) DEBUG 11-21 02:00:02 [core.py:1] EngineCore loop active.
(EngineCore pid=7) ERROR 11-21 02:00:03 [c.py:1] AssertionError: Expected a cached item
(APIServer pid=3) INFO 11-21 02:00:04 [a.py:1] Added request two.
"""
CHANGES = (
    (re.compile(r"mmrepro \d+\.\d+\.\d+\S*"), "mmrepro X"),
    (re.compile(r"\d+(\.\d+)? (KiB|MiB)"), "N KiB"),
    (re.compile(r"\b\d+(\.\d+)?(\s+)s\b"), r"N\2s"),
)
"""What differs from machine to machine, and what is written in its place."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mmrepro.reports import write_reports
    from mmrepro.reports.documents import keep
    from test_kinds import KINDS

    folder = tmp_path_factory.mktemp("screens")
    run = folder / "run"
    (run / "evidence").mkdir(parents=True)
    with zipfile.ZipFile(RUN) as archive:
        (run / "incident.json").write_bytes(archive.read("incident.json"))
    write_reports(run)
    shutil.copy(START, folder / "start.log")
    (folder / "hang.log").write_text(HANG)
    shutil.copytree(ROOT / "docs" / "nightly", folder / "nights")
    for name, (kind, sample) in KINDS.items():
        if name != "incident":
            (folder / name).mkdir()
            keep(kind, sample(), folder / name)
    (folder / "report.md").write_text("# It hangs\n\nThe server does not answer.\n")
    return folder


def screen(words: tuple[str, ...], width: int, place: Path) -> str:
    """What a terminal of so many columns gets, without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("COLUMNS", str(width))
        patch.setenv("LINES", "35")
        patch.setenv("MMREPRO_CACHE_DIR", str(place / "no-cache"))
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("FORCE_COLOR", "1")
        patch.setattr(sys.stdout, "isatty", lambda: True)
        patch.setattr(sys.stderr, "isatty", lambda: True)
        _, out, error = mmrepro(*words)
    shutil.rmtree(place / "new", ignore_errors=True)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out + error)
    text = re.sub(r"(?m)^.*[\u2800-\u28ff].*\n?", "", text.replace("\r", ""))
    for pattern, instead in CHANGES:
        text = pattern.sub(instead, text)
    return text.replace(str(place), "DIR")


def screens(width: int, place: Path) -> Iterator[str]:
    for words in SCREENS:
        yield f"$ mmrepro {' '.join(words)}\n{screen(words, width, place)}"


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_screens_are_as_they_were(
    width: int, place: Path, golden: Callable[[str, str], None]
) -> None:
    golden(f"screens-{width}.txt", "\n".join(screens(width, place)))


def test_every_command_has_a_screen() -> None:
    assert set(COMMANDS) <= {*(words[0] for words in SCREENS)}


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_its_terminal(width: int) -> None:
    """But a line of one word: a path, an address; or a command, which is not broken."""
    for line in (GOLDEN / f"screens-{width}.txt").read_text("utf-8").splitlines():
        if len(line) > width:
            is_command = "mmrepro " in line or line.startswith("$ ")
            words = line.split()
            assert is_command or len(words) <= 2, line


@pytest.mark.parametrize("width", WIDTHS)
def test_every_word_is_whole(width: int) -> None:
    """Each width prints the words that the widest one prints, or leaves some out. The
    heading of a column becomes a label where rows become entries."""
    assert not words_of(width) - words_of(WIDTHS[-1]) - {"…", "·"}


def words_of(width: int) -> set[str]:
    text = (GOLDEN / f"screens-{width}.txt").read_text("utf-8")
    return {word.rstrip(":") for word in text.split()}
