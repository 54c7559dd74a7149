"""Whether a warm start changes what a run finds: every scenario and variant, cold and
warm.

Usage: python benchmarks/start_mode_equality.py --out DIR [--only NAME] [--table
    FILE.md]

Each case is run once cold and once warm: at the scenario's default release, and in a
case where it is not reproduced (another release, or a mitigation where every release
that runs here has it).
Compared: the verdict, the truth of every condition, the greedy answers in the gate, and
the facts that single-file reproducers print. What ran already is taken from DIR, so
that it can be broken off and gone on with. Exit 1: something differs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = """
ghost-key-eviction
ghost-key-eviction --release 0.24.0
mm-cache-desync
mm-cache-desync --mitigation disable-mm-cache
chunked-mm-prefill --variant generated-placeholder
chunked-mm-prefill --variant generated-placeholder --release 0.12.0
chunked-mm-prefill --variant literal-placeholder
chunked-mm-prefill --variant literal-placeholder --release 0.12.0
chunked-mm-prefill --variant async-race
chunked-mm-prefill --variant async-race --release 0.14.0
encoder-cache-overflow
encoder-cache-overflow --release 0.23.0
pad-value-collision
pad-value-collision --release 0.5.23
shape-alias --variant kv-cache
shape-alias --variant kv-cache --mitigation disable-radix-cache
shape-alias --variant embedding-cache
shape-alias --variant embedding-cache --mitigation disable-embedding-cache
undersized-kv-budget --variant text
undersized-kv-budget --variant text --release 0.18.0
undersized-kv-budget --variant image
undersized-kv-budget --variant image --mitigation kv-budget
undersized-kv-budget --variant full-size
undersized-kv-budget --variant full-size --mitigation kv-budget
kv-growth-crash
kv-growth-crash --release 0.18.0
""".strip().splitlines()
MINIVLLM = {
    "mm-prefill-contract": (
        "slot-mapping",
        "warmup-sequence",
        "warmup-order",
        "broken-module",
        "image-path",
        "pinned-placeholder",
    ),
    "mm-prefill-at-start": (
        "warmup-sequence",
        "warmup-order",
        "broken-module",
        "image-path",
    ),
    "borrowed-faults": ("ghost-key-lru", "pad-value-key", "kv-budget", "reused-mask"),
}
MODES = ("cold", "warm")


@dataclass(frozen=True)
class Seen:
    """What of a run is compared."""

    mode: str
    outcome: str
    truths: dict[str, str]
    answers: list[tuple[str, str]]
    reproduced: dict[str, dict[str, Any]]
    ready_s: float
    release: str

    @classmethod
    def of(cls, document: dict[str, Any]) -> Seen:
        verdict = document["verdict"] or {"outcome": "none", "conditions": []}
        gate = [r for r in document["evidence"]["requests"] if r["phase"] == "gate"]
        return cls(
            mode=document["engine"]["start_mode"],
            outcome=verdict["outcome"],
            truths={c["id"]: c["truth"] for c in verdict["conditions"]},
            answers=[(r["label"], r["text"]) for r in gate],
            reproduced={
                r["name"]: r["facts"] for r in document["evidence"]["reproducers"]
            },
            ready_s=document["engine"]["start_seconds"],
            release=f"{document['engine']['name']} {document['engine']['release']}",
        )


def cases() -> list[str]:
    """All of them, as the words after ``mmrepro run``; ``tests/evidence`` holds runs of
    these."""
    found = list(CASES)
    for scenario, variants in MINIVLLM.items():
        for variant in variants:
            found += [
                f"{scenario} --variant {variant}{end}"
                for end in ("", " --mitigation fix")
            ]
    return found


def run(case: str, mode: str, out: Path, variables: dict[str, str]) -> Seen:
    name = case.replace(" --", "-").replace(" ", "-")
    folder = out / f"{name}-{mode}"
    kept = folder / "incident.json"
    if not kept.exists() or json.loads(kept.read_text())["state"] != "complete":
        command = [sys.executable, "-m", "mmrepro", "run", *case.split()]
        done = subprocess.run(
            [*command, "--start-mode", mode, "--json", "--out", str(folder)],
            capture_output=True,
            text=True,
            env=variables,
            check=False,
        )
        if done.returncode not in (0, 1, 3):
            print(done.stderr, file=sys.stderr)
    return Seen.of(json.loads(kept.read_text()))


def differences(cold: Seen, warm: Seen) -> list[str]:
    found = []
    if cold.outcome != warm.outcome:
        found.append(f"verdict: {cold.outcome} / {warm.outcome}")
    for name in sorted(cold.truths.keys() | warm.truths.keys()):
        one, other = cold.truths.get(name), warm.truths.get(name)
        if one != other:
            found.append(f"{name}: {one} / {other}")
    if cold.answers != warm.answers:
        found.append("the gate's answers")
    if cold.reproduced != warm.reproduced:
        found.append("the reproducers' facts")
    if (cold.mode, warm.mode) != MODES:
        found.append(f"start modes used: {cold.mode} / {warm.mode}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--only", default="", help="cases whose text holds one of these, by commas"
    )
    parser.add_argument("--table", type=Path, help="write the table to this file")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    variables = {
        **os.environ,
        "MMREPRO_WARM_DIR": str((asked.out / "warm").absolute()),
        "MMREPRO_WARM_IDLE": "120",
    }
    lines = [
        (
            "| case | release | verdict | conditions | gate answers | cold | warm | "
            "differs |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    differ = 0
    for case in cases():
        if not any(word in case for word in asked.only.split(",")):
            continue
        cold, warm = (run(case, mode, asked.out, variables) for mode in MODES)
        found = differences(cold, warm)
        differ += bool(found)
        met = sum(truth == "met" for truth in cold.truths.values())
        lines.append(
            f"| `{case}` | {cold.release} | {cold.outcome} | {met} of "
            f"{len(cold.truths)} met | "
            f"{len(cold.answers)} | {cold.ready_s:.1f} s | {warm.ready_s:.1f} s | "
            f"{'; '.join(found) or 'nothing'} |"
        )
        print(lines[-1], flush=True)
    count = len(lines) - 2
    lines.append(f"\n{count} cases, {count - differ} alike in all that is compared.")
    print(lines[-1])
    if asked.table:
        text = asked.table.read_text()
        head, begin, rest = text.partition("<!-- table -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        asked.table.write_text(head + begin + "\n".join(lines) + "\n" + end + tail)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
