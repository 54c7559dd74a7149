#!/usr/bin/env python3
"""What follows from a nightly run: is one missing, annotations, bundles, issues.

NIGHT is what `mmrepro matrix report --format json` prints (a .json file), or a ledger's
folder, of which mmrepro (the variable MMREPRO) is asked for that document.
docs/alerts.md has the rules. Its exit codes: 0; 1 overdue; 2 a wrong option, file or
ledger; 4 gh or the disk failed."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import night_issues
from night_document import (
    LATE,
    Failed,
    Json,
    began,
    document_of,
    mmrepro,
    one_line,
    plural,
    quiet,
    show,
    table,
    time_of,
    watch,
)

BUNDLE_BYTES = 10 << 20
MOST_HOURS = 100 * 365 * 24.0
"""More is a slip, and more than a date can hold."""


def overdue(asked: argparse.Namespace) -> int:
    found = watch(document_of(asked, empty=True), datetime.now(UTC), asked.every)
    due, late = found.after(1), found.after(LATE)
    if not found.text and due is None:
        raise Failed(
            f"No night of {asked.night_of} says when the next one is due: --every 24h",
            2,
        )
    text = found.text
    if found.last is not None and due is not None and not text:
        text = (
            f"{found.night} began at {time_of(began(found.last))} and is "
            f"{found.last['state']}; "
        )
        text += f"the next night is due at {time_of(due)}."
    if not asked.json:
        print(text)
        return int(bool(found.text))
    last = found.last or {}
    show(
        {
            "overdue": bool(found.text),
            "identity": f"night-missing:{found.night}" if found.text else None,
            "night": last.get("id"),
            "state": last.get("state"),
            "began": last.get("began"),
            "due": due.isoformat() if due else None,
            "late_from": late.isoformat() if late else None,
            "text": text,
        }
    )
    return int(bool(found.text))


# ---------------------------------------------------------------- annotations

LEVELS = ("error", "warning", "notice")


@dataclass(frozen=True)
class Annotation:
    """GitHub's runner takes a line that begins with ``::``, or has ``##[``, for a
    command."""

    level: str
    title: str
    text: str

    @property
    def line(self) -> str:
        # In a line that is not of the new form the old one counts anywhere: in another
        # log, say.
        title, text = (
            one_line(words, limit).replace("##[", "## [")
            for words, limit in ((self.title, 120), (self.text, 1000))
        )
        return f"::{self.level} title={escaped(title, ':,')}::{escaped(text)}"


def escaped(text: str, more: str = "") -> str:
    """``text`` as the runner unescapes it; ``more``: further signs that end a
    property."""
    for sign in f"%\r\n{more}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def annotations_of(document: Json, most: int = 10) -> list[Annotation]:
    """At most ``most``, the worst first; where there are more, the last one counts
    them."""
    found = sorted(_annotations(document), key=lambda a: LEVELS.index(a.level))
    if len(found) <= most:
        return found
    left = found[most - 1 :]
    counts = [(level, sum(a.level == level for a in left)) for level in LEVELS]
    words = ", ".join(plural(n, level) for level, n in counts if n)
    text = f"{len(left)} more were not shown ({words}): see this run's summary."
    title = f"Night {document['night']['id']}: and more"
    return [*found[: most - 1], Annotation(left[0].level, title, text)]


def _annotations(document: Json) -> Iterator[Annotation]:
    if document["warning"]:
        yield Annotation(
            "warning", f"Night {document['night']['id']}", document["warning"]
        )
    cells, known = {c["id"]: c for c in document["cells"]}, set()
    for event in document["events"]:
        cell = cells.get(event["cell"])
        if cell is None or cell["quarantine"] is None:
            known.add(event["cell"])
            soft = "notice" if event["tone"] in ("good", "soft") else "warning"
            text = event["text"] + _again(cell)
            yield Annotation("error" if event["alarm"] else soft, event["words"], text)
    for standing, level, title in (
        ("surprise", "error", "not as expected"),
        ("flaky", "error", "flaky"),
        ("untested", "warning", "untested"),
        ("", "warning", "quarantine"),
        ("quarantined", "notice", "in quarantine"),
    ):
        if not standing:
            yield from (Annotation(level, title, note) for note in document["notes"])
        for cell in document["cells"]:
            if cell["standing"] == standing and cell["id"] not in known:
                text = f"{cell['title']}. {cell['why']}{_again(cell)}"
                yield Annotation(level, title, text)


def _again(cell: Json | None) -> str:
    run = deciding(cell) if cell else None
    return f" Repeat it: {run['command']}" if run and run["command"] else ""


def deciding(cell: Json) -> Json | None:
    return next((run for run in cell["runs"] if run["index"] == cell["deciding"]), None)


def annotate(asked: argparse.Namespace) -> int:
    for one in annotations_of(document_of(asked), asked.max):
        print(one.line)
    return 0


def note(asked: argparse.Namespace) -> int:
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print(Annotation(asked.level, asked.title, asked.text).line)
    else:
        print(f"{asked.title}: {asked.text}", file=sys.stderr)
    return 0


# ---------------------------------------------------------------- bundles

CONCLUSIVE = ("reproduced", "different-failure", "not-reproduced")


def telling(document: Json) -> Iterator[tuple[Json, Json | None]]:
    """The runs that show what is odd, the most telling first; none of a cell in
    quarantine.

    Of a flaky cell the newest run of each verdict. A lost one is shown by its log.
    """
    alarming = {e["cell"] for e in document["events"] if e["alarm"]}
    free = [c for c in document["cells"] if c["quarantine"] is None]
    odd = [c for c in free if c["standing"] == "surprise"]
    odd += [c for c in free if c["id"] in alarming and c not in odd and c["runs"]]
    odd += [c for c in free if c["standing"] == "flaky" and c not in odd]
    odd += [c for c in free if c["state"] in ("inconclusive", "lost") and c not in odd]
    for cell in odd:
        if cell["state"] != "flaky":
            yield cell, deciding(cell)
            continue
        for outcome in CONCLUSIVE:
            runs = [run for run in cell["runs"] if run["outcome"] == outcome]
            if runs:
                yield cell, runs[-1]


def bundle(cell: Json, run: Json | None, folder: Path, out: Path, left: int) -> Json:
    """One run, packed by mmrepro; ``left_out`` says why it was not."""
    done: Json = {
        "cell": cell["id"],
        "state": cell["state"],
        "run": run["index"] if run else None,
        "incident": run["incident"] if run else "",
        "file": "",
        "bytes": 0,
        "left_out": "",
    }
    if not done["incident"]:
        return done | {"left_out": "the run left no incident"}
    incident = folder / done["incident"]
    if not incident.resolve().is_relative_to(folder.resolve()):
        return done | {"left_out": "its incident lies outside of the ledger's folder"}
    target = out / f"{cell['id']}-run-{done['run']}.zip"
    most = min(left, BUNDLE_BYTES) / 2**20
    if most < 0.1:  # mmrepro packs none that is smaller
        return done | {"left_out": f"{left >> 10} KiB were left"}
    out.mkdir(parents=True, exist_ok=True)
    words = ("--out", str(target), "--max-mib", str(most), "--force")
    code, _, error = mmrepro("bundle", str(incident), *words)
    if code == 2:
        return done | {"left_out": f"{error} ({left >> 10} KiB were left)"}
    if code:
        raise Failed(error, code)
    return done | {"file": target.name, "bytes": target.stat().st_size}


def surprises(asked: argparse.Namespace) -> int:
    document, out, left = document_of(asked), asked.out, asked.max_bytes
    path = Path(asked.night_of)
    folder = path if path.is_dir() else path.parent
    done: list[tuple[Json, Json]] = []
    for cell, run in telling(document):
        one = bundle(cell, run, folder, out, left)
        left -= one["bytes"]
        done.append((cell, one))
    done.sort(key=lambda pair: not pair[1]["file"])
    night = document["night"]["id"]
    if done:
        out.mkdir(parents=True, exist_ok=True)
        (out / "index.md").write_text(index_of(night, done), "utf-8")
    if asked.json:
        show({"night": night, "out": str(out), "runs": [one for _, one in done]})
        return 0
    if not done:
        print(f"Night {night} has nothing to bundle.")
    for cell, one in done:
        if one["file"]:
            print(f"{out / one['file']}: {one['bytes'] >> 10} KiB, {cell['words']}")
        else:
            why = f"{one['cell']}, {cell['words']}: {one['left_out']}"
            print(one_line(f"left out: {why}", 1000), file=sys.stderr)
    return 0


def index_of(night: str, done: list[tuple[Json, Json]]) -> str:
    rows = []
    for cell, one in done:
        run = next((r for r in cell["runs"] if r["index"] == one["run"]), None)
        lost = f"lost ({run['lost']})" if run and run["lost"] else "lost"
        outcome = (run["outcome"] or lost).replace("-", " ") if run else ""
        texts = [
            cell["row"],
            f"{cell['engine']} {cell['release']} {cell['commit'][:9]}",
            cell["words"],
            cell["expectation"].removeprefix("expected: "),
            f"{one['run']}: {outcome}" if run else "",
            one["file"] or f"left out: {one['left_out']}",
            str(one["bytes"]) if one["file"] else "",
        ]
        rows.append([quiet(text, 400) or "–" for text in texts])
    packed = sum(bool(one["file"]) for _, one in done)
    head = ["scenario", "release", "came out", "expected", "run", "file", "bytes"]
    return (
        f"# Night {quiet(night, 200)}: what was not as expected\n\n"
        f"{plural(packed, 'bundle')}, {len(done) - packed} left out. One is read with "
        f"`mmrepro report FILE.zip`.\n\n{table(head, rows)}\n"
    )


# ---------------------------------------------------------------- the command


def hours(text: str) -> float:
    """``24h``, ``7d``, ``1h30m``, in hours."""
    units = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
    parts = re.findall(r"(\d+(?:\.\d+)?)(min|[smhd]|)", text)
    whole = re.fullmatch(r"(?:\d+(?:\.\d+)?(?:min|[smhd]))+|\d+(?:\.\d+)?", text)
    total = sum(float(number) * units[unit] for number, unit in parts) / 3600
    if not whole or not 0 < total <= MOST_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time, e.g. 24h")
    return total


def count(text: str) -> int:
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return int(text)


def size(text: str) -> int:
    """``200M``, ``1G``: bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    total = (
        float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0
    )
    if not 0 < total <= 1 << 60:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, e.g. 200M")
    return int(total)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        do: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(do.__name__, help=text, description=text)
        added.set_defaults(do=do)
        if do is not note:
            text = "a ledger's folder, or a .json file of it (nights)"
            added.add_argument(
                "night_of", nargs="?", default="nights", metavar="NIGHT", help=text
            )
        return added

    one = command(
        overdue, "say whether the next nightly run should have begun and has not"
    )
    every: Json = {
        "type": hours,
        "help": "when the next one is due, e.g. 24h (as the last one says)",
    }
    document: Json = {"action": "store_true", "help": "one JSON document on stdout"}
    excused: Json = {
        "metavar": "FILE",
        "help": "TOML with the cells that are to alarm nobody",
    }
    which: Json = {"help": "which nightly run of the ledger (the newest)"}
    one.add_argument("--every", **every)
    one.add_argument("--json", **document)
    one = command(annotate, "print a nightly run as GitHub's workflow commands")
    one.add_argument("--night", **which)
    one.add_argument("--quarantine", **excused)
    one.add_argument(
        "--max",
        type=int,
        default=10,
        choices=range(1, 51),
        metavar="N",
        help="at most so many, the worst first (10)",
    )
    one = command(surprises, "bundle the runs that were not as expected, redacted")
    one.add_argument(
        "--out", type=Path, required=True, help="for the bundles and their index.md"
    )
    one.add_argument("--night", **which)
    one.add_argument("--quarantine", **excused)
    one.add_argument(
        "--max-bytes", type=size, default="200M", help="of all bundles (200M)"
    )
    one.add_argument("--json", **document)
    one = command(
        issues, "open, rewrite and close issues, so that each concern has one"
    )
    one.add_argument("--dry-run", action="store_true", help="say what would be done")
    one.add_argument(
        "--open", type=Path, metavar="FILE", help="the issues, instead of asking gh"
    )
    one.add_argument("--json", **document)
    one.add_argument(
        "--max-new", type=count, default=10, help="issues opened at once (10)"
    )
    one.add_argument("--quarantine", **excused)
    one.add_argument("--every", **every)
    one.add_argument(
        "--absent", action="store_true", help="no machine delivered anything"
    )
    one.add_argument(
        "--run-url", default="", help="of the run that asks: linked in each body"
    )
    one = command(note, "print one annotation; elsewhere than on GitHub, a line")
    one.add_argument("level", choices=LEVELS)
    one.add_argument("title")
    one.add_argument("text")
    return parser


def issues(asked: argparse.Namespace) -> int:
    return night_issues.run(asked)


def main() -> int:
    asked = options().parse_args()
    try:
        code: int = asked.do(asked)
    except Failed as error:
        print(f"nightly.py: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"nightly.py: {error}", file=sys.stderr)
        return 4
    return code


if __name__ == "__main__":
    sys.exit(main())
