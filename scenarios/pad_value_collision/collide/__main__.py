"""Find two different pictures with one pad value, by the engine's own hash.

    python -m mmrepro.scenarios.pad_value_collision.collide --release 0.5.6 --out pair

Exit codes: 0 a pair was found, or the pair of --check collides; 1 it does not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrepro.base.errors import ExitCode, MmreproError
from mmrepro.base.units import duration
from mmrepro.scenarios.pad_value_collision.collide import search, worker
from mmrepro.scenarios.pad_value_collision.collide.options import (
    PAD_BITS,
    SCRIPT,
    PairSearch,
)
from mmrepro.scenarios.pad_value_collision.collide.pair import Pair, PairImage

_VERSION = {"schema_version": 1}


def main(argv: Sequence[str] | None = None) -> int:
    given = _arguments().parse_args(argv)
    try:
        return _check(given) if given.check is not None else _find(given)
    except MmreproError as error:
        print(error.message, *error.detail[:8], sep="\n  ", file=sys.stderr)
        if error.hint:
            print(f"Next: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _arguments() -> argparse.ArgumentParser:
    defaults = PairSearch()
    parser = argparse.ArgumentParser(
        prog=SCRIPT,
        description="Find two different pictures with one pad value, by the engine's "
        "own hash.",
    )
    add = parser.add_argument
    add("--engine", default="sglang", help="sglang is the one that can be asked")
    add("--release", default="0.5.6", help="its release")
    add(
        "--bits",
        type=int,
        default=defaults.bits,
        help=f"low bits of the hash that must agree; the pad value has {PAD_BITS}",
    )
    add("--seed", type=int, default=defaults.seed, help="random seed")
    add("--size", type=int, default=defaults.size, help="pixels a side, 28 times n")
    add("--second-size", type=int, help="pixels a side of the second family's")
    add("--first", type=Path, help="your own image for the first family")
    add("--second", type=Path, help="and for the second")
    add("--model", type=Path, help="folder of the model whose image processor is used")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--jobs", type=int, help="number of processes; default: one a core")
    add("--max-images", type=int, help="give up after so many images")
    add("--out", type=Path, help="folder for the pair; default: below collisions")
    add("--check", type=Path, help="search nothing: ask about the pair in this folder")
    add("--json", action="store_true", help="print one JSON document")
    return parser


def _find(given: argparse.Namespace) -> int:
    """Search a pair and print it. Raises as ``place_for`` and ``find_pair`` do."""
    wanted = PairSearch(
        bits=given.bits,
        seed=given.seed,
        size=given.size,
        second_size=given.second_size,
        first=given.first,
        second=given.second,
        jobs=given.jobs,
        max_images=given.max_images,
    )
    # What is wrong with the arguments is reported before an environment is built for
    # minutes.
    search.pictures_of(wanted)
    name = f"{given.engine}-{given.release}-{given.bits}-seed{given.seed}"
    folder = given.out or _unused(Path("collisions", name))
    pair = search.find_pair(_place_of(given), folder, wanted, show)
    if given.json:
        facts = pair.model_dump(mode="json") | {"folder": str(folder)}
        for fact in ("equal_bits", "collides", "control_differs"):
            facts[fact] = getattr(pair, fact)
        _print_json("pair", facts)
    else:
        _print_images(pair.images)
        print(_verdict(pair.collides, pair.equal_bits))
        print(_effort(pair))
        print(f"{folder}/")
    # Fewer bits than the pad value has: an exercise, and it succeeded.
    good = pair.collides or given.bits < PAD_BITS
    return ExitCode.AS_EXPECTED if good else ExitCode.NOT_AS_EXPECTED


def _check(given: argparse.Namespace) -> int:
    """Ask a release about a pair. Raises as ``place_for`` and ``verify_pair`` do."""
    search.require_pictures(given.check)
    engine, images = search.verify_pair(_place_of(given), given.check, show)
    same = images["A"].pad_value == images["B"].pad_value
    if given.json:
        shown = {name: image.model_dump(mode="json") for name, image in images.items()}
        facts = {"engine": engine.model_dump(), "images": shown, "collides": same}
        _print_json("pair-check", facts)
    else:
        _print_images(images)
        print(f"{given.engine} {given.release}: {_verdict(same)}")
    return ExitCode.AS_EXPECTED if same else ExitCode.NOT_AS_EXPECTED


def _place_of(given: argparse.Namespace) -> worker.EnginePlace:
    return worker.place_for(
        given.engine,
        given.release,
        device=given.device,
        model=given.model,
        progress=lambda text: show("the environment", text),
    )


def show(stage: str, detail: str) -> None:
    print(f"{stage}  {detail}".rstrip(), file=sys.stderr)


def _unused(path: Path) -> Path:
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def _effort(pair: Pair) -> str:
    facts = pair.search
    rate = facts.images / facts.search_s if facts.search_s else 0.0
    return (
        f"{facts.images:,} images in {duration(facts.search_s)} ({rate:,.0f} a "
        f"second, {facts.jobs} processes); so many hold a pair with probability "
        f"{facts.probability:.0%}. Importing the engine took "
        f"{duration(facts.start_s)}."
    )


def _verdict(collides: bool, equal_bits: int = PAD_BITS) -> str:
    if collides:
        return "A and B have one pad value: the prefix cache cannot tell them apart."
    if equal_bits >= PAD_BITS:
        return "A and B have different pad values: this release tells them apart."
    return (
        f"A's and B's hashes agree in {equal_bits} low bits; their pad values differ, "
        f"as they must: a collision takes {PAD_BITS}."
    )


def _print_json(kind: str, facts: Mapping[str, Any]) -> None:
    print(json.dumps({"$id": f"urn:mmrepro:{kind}:1", **_VERSION, **facts}, indent=1))


def _print_images(images: Mapping[str, PairImage]) -> None:
    row = "{:11}  {:16}  {:>10}  {:>6}".format
    print(row("picture", "hash (64 bits)", "pad value", "bytes"))
    for image in images.values():
        print(row(image.file, image.hash, image.pad_value, image.bytes))


if __name__ == "__main__":
    sys.exit(main())
