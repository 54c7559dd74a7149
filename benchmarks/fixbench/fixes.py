"""A list for FixBench: fixes with a test of their own, in Python that a server reaches.

    python benchmarks/fixbench/fixes.py CLONE SINCE UNTIL [--most 30 --seed 1] > LIST.tsv

CLONE is a git clone of vLLM, SGLang or LMDeploy; a line a fix, as run.py reads it. Only
hashes, days, numbers and paths are written, no word of a commit."""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrepro.engines.environments import ask_git, engine_of_clone

MOST_FILES = 8
"""Of a fix: one that changes more does more than to mend."""
TEXTS = (".py", ".jinja", ".json", ".md", ".txt")
_FIX = re.compile(r"fix", re.IGNORECASE)
_OTHER = re.compile(
    r"\[(?:CI|Doc|docs?|Test|Build)|flaky|typo|ROCm|AMD|XPU|TPU|NPU|HPU|Ascend|MUSA",
    re.IGNORECASE,
)
_PULL = re.compile(r"\(#(\d+)\)\s*$")
_AROUND = ("docs/", "examples/", "benchmark/", "benchmarks/", ".buildkite/", ".github/")


@dataclass(frozen=True)
class Places:
    """Where an engine keeps its tests, and the Python that a server on a CPU reaches."""

    tests: tuple[str, ...]
    reached: tuple[str, ...]


PLACES = {
    "vllm": Places(
        ("tests/",),
        tuple(
            f"vllm/{name}"
            for name in (
                *("config", "entrypoints", "inputs", "logprobs", "lora", "multimodal"),
                *("outputs", "parser", "pooling_params", "reasoning", "renderers"),
                *("sampling_params", "tokenizers", "tool_parsers", "utils"),
                *("transformers_utils", "v1/core", "v1/engine", "v1/executor"),
                *("v1/kv_offload", "v1/request", "v1/sample", "v1/serial_utils"),
                *("v1/spec_decode", "v1/structured_output", "v1/worker"),
            )
        ),
    ),
    "sglang": Places(
        ("test/", "python/sglang/test/"),
        tuple(
            f"python/sglang/srt/{name}"
            for name in (
                *("configs", "constrained", "entrypoints", "function_call", "lora"),
                *("managers", "mem_cache", "model_executor", "multimodal", "parser"),
                *("sampling", "server_args", "speculative", "tokenizer", "utils"),
                *("openai_api", "conversation", "reasoning_parser"),
            )
        ),
    ),
    "lmdeploy": Places(
        ("tests/", "autotest/"),
        ("lmdeploy/serve", "lmdeploy/pytorch", "lmdeploy/model", "lmdeploy/messages"),
    ),
}


def fixes(clone: Path, since: str, until: str) -> Iterator[tuple[str, ...]]:
    """The cells of each fix of that time, newest first."""
    places = PLACES[engine_of_clone(clone)]
    log = ask_git(
        clone,
        *("log", f"--since={since}", f"--until={until}", "--no-merges"),
        *("--name-only", "--format=%x01%H|%P|%cs|%s"),
    )
    for block in log.decode("utf-8", "replace").split("\x01")[1:]:
        head, *names = block.strip().split("\n")
        sha, parent, day, subject = head.split("|", 3)
        files = [name for name in names if name]
        tests = [name for name in files if name.startswith(places.tests)]
        product = [
            name for name in files if not name.startswith((*places.tests, *_AROUND))
        ]
        if not _FIX.search(subject) or _OTHER.search(subject):
            continue
        if tests and product and is_reached(product, places):
            pull = _PULL.search(subject)
            number = f"#{pull[1]}" if pull else ""
            cells = (",".join(product), ",".join(tests))
            yield (sha[:12], parent[:12], day, number, *cells)


def is_reached(product: Sequence[str], places: Places) -> bool:
    """Whether a server on a CPU may run all that a fix changes."""
    return len(product) <= MOST_FILES and all(
        name.endswith(TEXTS) and name.startswith(places.reached) for name in product
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("since")
    parser.add_argument("until")
    parser.add_argument("--most", type=int, default=0, help="0: all")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rows = list(fixes(asked.clone, asked.since, asked.until))
    if 0 < asked.most < len(rows):
        drawn = set(random.Random(asked.seed).sample(range(len(rows)), asked.most))
        rows = [row for place, row in enumerate(rows) if place in drawn]
    print("# fix\tparent\tdate\tpull\tproduct files\ttest files")
    for row in rows:
        print("\t".join(row))


if __name__ == "__main__":
    main()
