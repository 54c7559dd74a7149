"""What of today's stack runs on this machine: does it start, answer, and equal its
reference?

Usage: python benchmarks/stack.py --out DIR [--engine vllm] [--release 0.33.0 …]
        [--feature NAME …] python benchmarks/stack.py --out DIR --table

Each (feature, engine, release) is a server with that feature
(harness/engines/features.py), played with some thirty requests at once, in float32; the
reference is a server of the same release and model with all of it off, one request at a
time (harness/search/oracle/reference.py). What is in DIR already is not run again:
after an end of any kind the same command goes on. --table prints it in Markdown, as
docs/lab/stack.md has it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from mmrepro.engines import ENGINES, get_engine
from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.features import feature, features
from mmrepro.engines.models.tiny import TINY
from mmrepro.runs.judge import derive
from mmrepro.runs.play.options import PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.search.oracle.comparison import compare_with_reference, compared
from mmrepro.search.oracle.judge import judge
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.reference import comparable, reference_case
from mmrepro.traffic.case.model import (
    CHAT,
    COMPLETIONS,
    Case,
    Message,
    Operation,
    ServerWanted,
)
from mmrepro.traffic.case.sending import Played, PlayState

RESULTS = "stack.jsonl"
SHOWN = 160
"""Letters of a cell of the table, at most."""
TOLD = (
    ("drafted", "vllm:spec_decode_num_draft_tokens_total"),
    ("accepted", "vllm:spec_decode_num_accepted_tokens_total"),
    ("steps of speculation", "sglang:spec_verify_calls_total"),
    ("prefix hits", "vllm:prefix_cache_hits_total"),
    ("prefix hits", "sglang:cached_tokens_total"),
    ("hits outside", "vllm:external_prefix_cache_hits_total"),
    ("evicted", "sglang:evicted_tokens_total"),
    ("loaded back", "sglang:load_back_tokens_total"),
    ("preempted", "vllm:num_preemptions_total"),
    ("retracted", "sglang:num_retracted_requests_total"),
)
"""Counters that show that a feature did something."""
NEWEST = {"vllm": ["0.33.0"], "sglang": ["0.5.23"]}
AT_ONCE = {"vllm": "--max-num-seqs=4", "sglang": "--max-running-requests=4"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["sun", "moon"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}


def traffic(server: ServerWanted, name: str) -> Case:
    """Prompts that share beginnings, short and long, four at a time; the cache is reset
    once. Of a small KV cache nobody shares: it is to be too small. Of a hierarchical
    one six beginnings come again once others took their place."""
    random = Random(7)
    small, in_turn = name == "small-kv", 6 if name == "hierarchical-cache" else 2
    long = 1200 if "prefix" in name else 850 if small else 300
    begins = [
        "".join(random.choices("abcdefgh ", k=long))
        for _ in range(24 if small else in_turn)
    ]
    before = dialect_of(server.engine).adapter
    adapters = [f"{before}lora-a", f"{before}lora-b"] if name.startswith("lora") else []
    models = [None, *adapters]
    operations: list[Operation] = []

    def add(path: str, **fields: Any) -> None:
        after = ["running<=3"] if operations else []
        operations.append(
            Operation(id=f"r{len(operations)}", path=path, after=after, **fields)
        )

    for turn in range(24):
        if turn == 12 and "connector" in name:
            add("/reset_prefix_cache", parameters={})
            operations[-1] = operations[-1].model_copy(update={"after": ["running<=0"]})
        text = begins[turn % len(begins)] + " now say " + "ab" * random.randint(1, 12)
        text = text if turn % 3 else text[-30:]
        asked = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
        model = models[turn % len(models)]
        if turn % 4 == 1:
            add(COMPLETIONS, prompt=text, parameters=asked, model=model)
            continue
        if name == "parsers" and turn % 4 == 2:
            asked = {
                "max_tokens": 60,
                "temperature": 0,
                "tools": [TOOL],
                "tool_choice": "required",
            }
        stream = turn % 4 == 3
        messages = [Message(role="user", content=text)]
        add(CHAT, messages=messages, parameters=asked, model=model, stream=stream)
    return Case(server=server, operations=operations)


def tried(
    player: Player, server: ServerWanted, name: str, folder: Path
) -> dict[str, Any]:
    """One row: what the play and its reference show."""
    began, engine = time.monotonic(), get_engine(server.engine)
    case = comparable(traffic(server, name))
    options = PlayOptions(deadlines=derive([20.0]))
    played = player.play(case, None, options, folder / "play")
    row: dict[str, Any] = {"starts": played.state is not PlayState.START_FAILED}
    if row["starts"]:
        records = [r for r in played.evidence.requests if r.phase == "trigger"]
        row |= {
            "answered": sum(r.status == 200 for r in records),
            "of": len(case.operations),
        }
        row["told"] = dict(moved(played))
    if row.get("answered"):
        alone = player.play(
            reference_case(case, engine), None, options, folder / "reference"
        )
        judged = compare_with_reference(case, played, alone)
        row["equals"] = None if judged.unseen else not compared(judged)
        row["compared"] = judged.counted
        judged = OracleReport.of([judged, judge(case, played, engine=engine)])
        row["held against it"] = [one.said[:300] for one in judged.sightings]
    why = [played.said, *played.causes[:2]]
    row["why"] = (
        "" if played.state is PlayState.ENDED else "; ".join(filter(None, why))[:400]
    )
    row["seconds"] = round(time.monotonic() - began)
    return row


def _dtype(model: str) -> list[str]:
    return [] if TINY[model].bfloat16_only else ["--dtype=float32"]


def moved(played: Played) -> Iterator[tuple[str, float]]:
    """Counters that grew."""
    if played.before is None or played.after is None:
        return
    for name, counter in TOLD:
        grown = played.after.metrics.get(counter, 0) - played.before.metrics.get(
            counter, 0
        )
        if grown:
            yield name, grown


def markdown(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line a feature, a column a release."""
    releases = sorted({(row["engine"], row["release"]) for row in rows}, reverse=True)
    cells: dict[str, dict[tuple[str, str], str]] = {}
    for row in rows:
        what = feature(row["engine"], row["feature"]).what
        of_feature = cells.setdefault(f"`{row['feature']}`: {what}", {})
        of_feature[row["engine"], row["release"]] = _cell(row).replace("|", "/")

    names = [f"{engine} {release}" for engine, release in releases]
    yield f"| feature | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for name, of_feature in cells.items():
        texts = [of_feature.get(release, "") for release in releases]
        yield f"| {name} | {' | '.join(texts)} |"


def _cell(row: dict[str, Any]) -> str:
    """How many requests were answered, whether as the reference answers them, and what
    the feature did; or why the server did not start."""
    if not row["starts"]:
        return f"does not start: {row['why']}"[:SHOWN]
    parts = [f"{row['answered']} of {row['of']}"]
    if row.get("equals") is not None:
        parts.append("equal" if row["equals"] else "**not equal**")
    ties = row.get("compared", {}).get("answers compared: near-tie", 0)
    if ties:
        parts.append(f"{ties} near-ties")
    parts += [f"{number:g} {name}" for name, number in row.get("told", {}).items()]
    parts += [text for text in (row["why"], *row.get("held against it", [])) if text]
    return ", ".join(parts)[:SHOWN]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--engine", default="vllm", choices=[*ENGINES])
    parser.add_argument("--release", action="append", metavar="RELEASE")
    parser.add_argument("--feature", action="append", metavar="NAME")
    parser.add_argument(
        "--table", action="store_true", help="print what is there, run nothing"
    )
    options = parser.parse_args()
    results = options.out / RESULTS
    options.out.mkdir(parents=True, exist_ok=True)
    lines = results.read_text().splitlines() if results.exists() else []
    rows = [json.loads(line) for line in lines]
    if options.table:
        print("\n".join(markdown(rows)))
        return 0
    done = {(row["feature"], row["engine"], row["release"]) for row in rows}
    for release in options.release or NEWEST[options.engine]:
        wanted = ServerWanted(
            engine=options.engine, release=release, model="qwen3-text"
        )
        with Player(wanted, folder=options.out) as player:
            for name in options.feature or features(options.engine):
                if (name, options.engine, release) in done:
                    continue
                one = feature(options.engine, name)
                args = [*one.args, *_dtype(one.model), AT_ONCE[options.engine]]
                update = {"model": one.model, "args": args, "env": dict(one.env)}
                server = wanted.model_copy(update=update)
                place = options.out / f"{options.engine}-{release}" / name
                row = tried(player, server, name, place)
                row |= {"feature": name, "engine": options.engine, "release": release}
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print("\n".join([*markdown([row])][2:]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
