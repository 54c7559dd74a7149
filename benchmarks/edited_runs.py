"""Edits of recorded runs: how many are judged without a word?

    uv run python benchmarks/edited_runs.py [--edits 2000] [--seed 1]

Recordings are written once more as a run writes itself, with the record of their
hashes. Each edit changes one copy: any value of ``incident.json``, any raw file, any
line of the record; what is dropped, repeated, reordered, or taken from another run. An
edit is *refused* where ``mmrepro judge`` says what was changed, or that it cannot be
read, and gives no verdict; *told* where it judges and says that there is no record;
else it is judged without a word, and listed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import MmreproError
from mmrepro.base.records import EVIDENCE_DIR
from mmrepro.failure.documents import INCIDENT_FILE
from mmrepro.failure.documents.hashes import HASHES_FILE, checked
from mmrepro.reports import load

CORPUS: Final = Path(__file__).resolve().parents[1] / "tests/evidence"
sys.path.insert(0, str(CORPUS))
from sealed import seal  # noqa: E402

REFUSED, TOLD, SILENT = "refused", "told", "without a word"
RUNS: Final = 24
"""Of as many scenarios as there are; the small recordings, to be quick."""


@dataclass(frozen=True)
class Sealed:
    """A run to be edited.

    Attributes:
        folder: of the run, which is never changed itself.
        document: its ``incident.json``.
    """

    folder: Path
    document: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Sealed:
        return cls(folder, json.loads((folder / INCIDENT_FILE).read_bytes()))

    @property
    def raw(self) -> list[str]:
        return sorted(path.name for path in (self.folder / EVIDENCE_DIR).iterdir())


Edit = Callable[[Path, Sealed, Sealed, random.Random], str]
"""Changes a copy of the first run, with the second one at hand; returns what it did."""


def sealed_runs(work: Path, most: int = RUNS) -> list[Sealed]:
    """Small recordings of different scenarios, as runs of today leave them."""
    recordings = sorted(CORPUS.glob("*.zip"), key=lambda path: path.stat().st_size)
    chosen: dict[str, Path] = {}
    for path in recordings:
        chosen.setdefault(load(path).scenario.name, path)
        if len(chosen) == most:
            break
    return [Sealed.of(seal(load(path), work / path.stem)) for path in chosen.values()]


# ------------------------------------------------------------------- a value of the document

Place = tuple[Any, Any]
"""A dictionary or a list, and a key or an index in it."""


def places(value: Any) -> Iterator[Place]:
    """Every place in a document that holds a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def path_to(document: Any, wanted: Place) -> str:
    """For people: where a place is in the document."""
    for key, inner in (
        document.items() if isinstance(document, dict) else enumerate(document)
    ):
        if document is wanted[0] and key == wanted[1]:
            return str(key)
        if isinstance(inner, dict | list) and (below := path_to(inner, wanted)):
            return f"{key}.{below}"
    return ""


def another(value: Any, chosen: random.Random) -> Any:
    """Another value that could stand in its place."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chosen.choice([-1, 1, 60, 1000])
    if isinstance(value, float):
        return value + chosen.choice([-86400.0, -0.5, 0.001, 60.0])
    if value is None:
        return chosen.choice([0, 1, "", True])
    if isinstance(value, str):
        digits = str.maketrans("0123456789", "1234567890")
        turned = value.translate(digits)
        return turned if turned != value else f"{value} "
    return type(value)() if value else [0]


def edited_document(
    copy: Path, run: Sealed, chosen: random.Random, change: Callable[[Any], Place | str]
) -> str:
    document = json.loads((copy / INCIDENT_FILE).read_bytes())
    while True:
        done = change(document)
        if document != run.document:
            break
    where = done if isinstance(done, str) else path_to(document, done)
    (copy / INCIDENT_FILE).write_text(json.dumps(document))
    return where


def a_value(copy: Path, run: Sealed, other: Sealed, chosen: random.Random) -> str:
    def change(document: Any) -> Place:
        within, key = chosen.choice(list(places(document)))
        within[key] = another(within[key], chosen)
        return within, key

    return edited_document(copy, run, chosen, change)


def of_evidence(copy: Path, run: Sealed, other: Sealed, chosen: random.Random) -> str:
    def change(document: Any) -> Place:
        within, key = chosen.choice(list(places(document["evidence"])))
        within[key] = another(within[key], chosen)
        return within, key

    return edited_document(copy, run, chosen, change)


def a_key_less(copy: Path, run: Sealed, other: Sealed, chosen: random.Random) -> str:
    def change(document: Any) -> str:
        keys = [place for place in places(document) if isinstance(place[0], dict)]
        within, key = chosen.choice(keys)
        del within[key]
        return str(key)

    return edited_document(copy, run, chosen, change)


def in_a_list(copy: Path, run: Sealed, other: Sealed, chosen: random.Random) -> str:
    """An item dropped, repeated, or the order changed."""

    def change(document: Any) -> Place:
        found = [
            (within, key)
            for within, key in places(document)
            if isinstance(within[key], list) and within[key]
        ]
        within, key = chosen.choice(found)
        items = within[key]
        index = chosen.randrange(len(items))
        act = chosen.choice(["drop", "repeat", "reverse", "shuffle"])
        if act == "drop":
            del items[index]
        elif act == "repeat":
            items.insert(index, items[index])
        elif act == "reverse":
            items.reverse()
        else:
            chosen.shuffle(items)
        return within, key

    return edited_document(copy, run, chosen, change)


def of_another_run(
    copy: Path, run: Sealed, other: Sealed, chosen: random.Random
) -> str:
    """A field of the incident or of its evidence is the other run's."""

    def change(document: Any) -> str:
        inside = chosen.random() < 0.5
        mine, theirs = document, other.document
        if inside:
            mine, theirs = document["evidence"], other.document["evidence"]
        key = chosen.choice([name for name in theirs if name != "hashes"])
        mine[key] = theirs[key]
        return str(key)

    return edited_document(copy, run, chosen, change)


# ------------------------------------------------------------------------- a file


def a_raw_file(copy: Path, run: Sealed, other: Sealed, chosen: random.Random) -> str:
    name = chosen.choice(run.raw)
    file = copy / EVIDENCE_DIR / name
    data = bytearray(file.read_bytes())
    act = chosen.choice(["another byte", "cut", "longer", "gone", "of another file"])
    if act == "another byte":
        data[chosen.randrange(len(data))] ^= 1
    elif act == "cut":
        del data[chosen.randrange(len(data)) :]
    elif act == "longer":
        data += b"one line more\n"
    elif act == "of another file":
        one_of_others = chosen.choice([one for one in run.raw if one != name])
        data = bytearray((copy / EVIDENCE_DIR / one_of_others).read_bytes())
    file.write_bytes(data)
    if act == "gone":
        file.unlink()
    return f"{name}: {act}"


def the_record(copy: Path, run: Sealed, other: Sealed, chosen: random.Random) -> str:
    file = copy / HASHES_FILE
    lines = file.read_bytes().splitlines(keepends=True)
    act = chosen.choice(["another byte", "a line less", "another order", "gone"])
    if act == "another byte":
        data = bytearray(b"".join(lines))
        data[chosen.randrange(len(data))] ^= 1
        file.write_bytes(data)
    elif act == "a line less":
        del lines[chosen.randrange(len(lines))]
        file.write_bytes(b"".join(lines))
    elif act == "another order":
        file.write_bytes(b"".join(lines[::-1]))
    else:
        file.unlink()
    return act


def the_record_removed(
    copy: Path, run: Sealed, other: Sealed, chosen: random.Random
) -> str:
    """Altogether, and a value changed: what is left looks like a run of before."""
    where = a_value(copy, run, other, chosen)
    document = json.loads((copy / INCIDENT_FILE).read_bytes())
    document.pop("hashes", None)
    (copy / INCIDENT_FILE).write_text(json.dumps(document))
    (copy / HASHES_FILE).unlink()
    return where


def a_file_of_another_run(
    copy: Path, run: Sealed, other: Sealed, chosen: random.Random
) -> str:
    raw = [f"{EVIDENCE_DIR}/{name}" for name in run.raw]
    name = chosen.choice([INCIDENT_FILE, HASHES_FILE, *raw])
    shutil.copy(other.folder / name, copy / name)
    return name


EDITS: Final[list[tuple[Edit, int]]] = [
    (a_value, 6),
    (of_evidence, 6),
    (a_key_less, 3),
    (in_a_list, 4),
    (of_another_run, 3),
    (a_raw_file, 4),
    (the_record, 2),
    (the_record_removed, 1),
    (a_file_of_another_run, 2),
]
"""Each with how often it is drawn."""


def outcome(place: Path) -> str:
    """What ``mmrepro judge`` makes of a folder, before it judges."""
    try:
        check = checked(place)
        check.refuse_changed(place)
        load(place)
    except MmreproError:
        return REFUSED
    return SILENT if check.has_record else TOLD


def edited(
    runs: list[Sealed], count: int, seed: int, work: Path
) -> Iterator[tuple[str, str, str]]:
    """So many edits: the kind, what was done to which run, and what came of it."""
    chosen = random.Random(seed)
    kinds = [kind for kind, _ in EDITS]
    weights = [weight for _, weight in EDITS]
    copy = work / "edited"
    for _ in range(count):
        run, other = chosen.sample(runs, 2)
        (kind,) = chosen.choices(kinds, weights)
        shutil.copytree(run.folder, copy)
        try:
            done = kind(copy, run, other, chosen)
            yield kind.__name__, f"{run.folder.name}: {done}", outcome(copy)
        finally:
            shutil.rmtree(copy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    table: Counter[tuple[str, str]] = Counter()
    silent = []
    with tempfile.TemporaryDirectory(prefix="mmrepro-edits-") as folder:
        work = Path(folder)
        runs = sealed_runs(work / "runs")
        judged = sum(outcome(run.folder) == SILENT for run in runs)
        print(f"{judged} of {len(runs)} runs are judged as they are")
        made = edited(runs, asked.edits, asked.seed, work)
        for number, (kind, done, came) in enumerate(made, 1):
            if number % 200 == 0:
                print(f"{number} edits, {len(silent)} without a word", flush=True)
            table[kind, came] += 1
            if came == SILENT:
                silent.append(f"{kind}: {done}")
    print(f"{'edit':24}{REFUSED:>9}{TOLD:>6}{SILENT:>16}")
    for kind, _ in EDITS:
        name = kind.__name__
        counts = [table[name, came] for came in (REFUSED, TOLD, SILENT)]
        print("{:24}{:9}{:6}{:16}".format(name.replace("_", " "), *counts))
    print(f"{asked.edits} edits, {len(silent)} judged without a word")
    for line in silent[:20]:
        print(f"  {line}")
    return int(bool(silent))


if __name__ == "__main__":
    raise SystemExit(main())
