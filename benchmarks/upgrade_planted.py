"""One planted change at a time: does ``mmrepro upgrade`` name it, and nothing else?

    python benchmarks/upgrade_planted.py [--only KIND] [--budget 3m] [--keep FOLDER]

OLD is minivllm, NEW the same with one change (``planted/upgrade_server.py``): each
engine is a real server. The table has what was named and whether anything besides it
was said to differ; differences of speed are left out, since no change here is one of
speed. Takes about two minutes a kind."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case, Message, Operation, Part, ServerWanted

HERE = Path(__file__).parent
PLUGIN = HERE / "planted" / "upgrade_server.py"
OPTION = "--async-scheduling"
SERVER = "--num-blocks 400 --max-num-seqs 8"


@dataclass(frozen=True)
class Plant:
    """A change, and what of the document names it.

    Attributes:
        area, words: of a difference that names it: its area (or several, by commas),
            and a part of subject or statement.
        server: options of both sides; ``new_server``: further ones of NEW.
        matters: whether it must decide the exit code.
    """

    kind: str
    area: str
    words: str
    server: str = SERVER
    new_server: str = ""
    env: dict[str, str] = field(default_factory=dict)
    matters: bool = True


def _plugged(kind: str, area: str, words: str) -> Plant:
    return Plant(
        kind, area, words, new_server=f"--plugin {PLUGIN}", env={"PLANT": kind}
    )


_GONE = {"PYTHONPATH": str(HERE / "planted" / "upgrade_option"), "GONE_OPTION": OPTION}
PLANTS = (
    Plant("nothing", "", ""),
    Plant("an option gone", "start", OPTION, f"{SERVER} {OPTION}", env=_GONE),
    Plant("an unused option gone", "start", OPTION, env=_GONE, matters=False),
    _plugged("a field renamed", "protocol", "created_at"),
    _plugged("one token", "answers", "differ, NEW against OLD"),
    _plugged("a leak", "failures,memory", "memory"),
    _plugged("half the KV cache", "memory", ""),
    _plugged("a finish reason", "protocol", "max_tokens in place of length"),
)


def traffic(folder: Path, requests: int = 40) -> Path:
    """Texts of some lengths, half of them streamed, with prefixes that several
    share."""
    chance = random.Random(48)
    words = [
        "the",
        "cache",
        "of",
        "a",
        "block",
        "holds",
        "keys",
        "and",
        "values",
        "for",
        "sixteen",
        "tokens",
        "at",
        "each",
        "layer",
    ]
    prefixes = [" ".join(chance.choices(words, k=30)) for _ in range(4)]
    operations = []
    for i in range(requests):
        text = f"{chance.choice(prefixes)} {' '.join(chance.choices(words, k=6))} {i}"
        operations.append(
            Operation(
                id=f"r{i + 1}",
                messages=[Message(role="user", content=[Part(text=text)])],
                parameters={"max_tokens": 16, "temperature": 0, "ignore_eos": True},
                stream=i % 2 == 0,
                at_s=i * 0.05,
            )
        )
    server = ServerWanted(engine="minivllm", release="0.1", model="qwen3")
    return write_case(Case(server=server, operations=operations), folder, {}).parent


def compared(plant: Plant, case: Path, folder: Path, budget: str) -> tuple[dict, int]:
    """The document, and the exit code."""
    command = [
        sys.executable,
        "-m",
        "mmrepro",
        "upgrade",
        "0.1",
        "0.1",
        "--engine",
        "minivllm",
        "--model",
        "qwen3",
        "--traffic",
        str(case),
        "--server",
        plant.server,
        "--start-mode",
        "cold",
        "--budget",
        budget,
        "--out",
        str(folder),
        "--yes",
    ]
    if plant.new_server:
        command += ["--new-server", f"{plant.server} {plant.new_server}"]
    for name, value in plant.env.items():
        command += ["--new-env", f"{name}={value}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    file = folder / "upgrade.json"
    if not file.is_file():
        raise SystemExit(f"{plant.kind}: {ended.stdout[-2000:]}{ended.stderr[-3000:]}")
    return json.loads(file.read_text()), ended.returncode


def judged(plant: Plant, document: dict) -> tuple[list[str], list[str]]:
    """Statements that name the change, and others of a difference, those of speed
    apart."""
    named, others = [], []
    for one in document["differences"]:
        if one["outcome"] != "difference" or one["area"] == "speed":
            continue
        text = f"{one['subject']}: {one['statement']}"
        if one["area"] in plant.area.split(",") and plant.words in text:
            named.append(text)
        else:
            others.append(text)
    return named, others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="KIND")
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    bad = 0
    print(f"{'planted':24}{'exit':>5}{'s':>6}  named; besides")
    with tempfile.TemporaryDirectory() as temporary:
        root = asked.keep or Path(temporary)
        case = traffic(root / "case")
        for plant in PLANTS:
            if asked.only and plant.kind not in asked.only:
                continue
            began = time.monotonic()
            document, code = compared(
                plant, case, root / plant.kind.replace(" ", "-"), asked.budget
            )
            named, others = judged(plant, document)
            right = bool(named) is bool(plant.area) and not others
            right = right and (code == 1) is (plant.matters and bool(plant.area))
            bad += not right
            took, wrong = time.monotonic() - began, "" if right else "WRONG"
            print(f"{plant.kind:24}{code:5}{took:6.0f}  {wrong}")
            for text in named:
                print(f"{'':37}{text[:160]}")
            for text in others:
                print(f"{'':37}besides: {text[:160]}")
            sys.stdout.flush()
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
