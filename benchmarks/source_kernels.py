"""Which kernels fit which trees: measured, and held against the releases' own builds.

Usage: python benchmarks/source_kernels.py kernels 0.24.0/0.23.0 0.33.0/0.32.0 [--out
        DIR] python benchmarks/source_kernels.py verdicts 0.24.0/0.23.0 [--only WORD]
        [--out DIR] python benchmarks/source_kernels.py table [--out DIR]

RELEASE/KERNELS is the Python of one release, from its sdist, over the compiled files of
another.

``kernels`` plays one case (text, images, an image again, two images; greedy) on such a
server and on the release's own build, where there is one, and compares the answers word
for word. ``verdicts`` is a nightly run of every scenario of vLLM on it, beside the
recorded runs of the release's own wheel; where none is recorded, the own wheel is run
as well. Both go on where an earlier call ended: DIR has results.jsonl and the ledger.
``table`` prints it as Markdown."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmrepro.base.errors import MmreproError
from mmrepro.engines.environments.lending import built_releases
from mmrepro.engines.environments.source import resolve
from mmrepro.engines.environments.spec import TreeLabel, vllm_spec
from mmrepro.history import ledger
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.play.options import PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.scenarios import data
from mmrepro.tools.catalogue import recorded
from mmrepro.traffic.case.model import (
    Case,
    Message,
    Noise,
    Operation,
    Part,
    ServerWanted,
)
from mmrepro.traffic.case.sending import PlayState

SIZE = (112, 112)
DEADLINE_S = 120.0
WORDS = ("hi", "count to ten", "what is it")


def greedy(server: ServerWanted) -> Case:
    """Requests one after another, whose answers depend on all of the model's layers."""
    images = {f"i{n}": Noise(seed=n, size=SIZE) for n in range(3)}
    asked: list[tuple[str, list[Part]]] = [
        (f"text{n}", [Part(text=text)]) for n, text in enumerate(WORDS)
    ]
    for name, used in (
        ("image", ["i0"]),
        ("again", ["i0"]),
        ("other", ["i1"]),
        ("two", ["i1", "i2"]),
    ):
        asked.append(
            (name, [*(Part(image=one) for one in used), Part(text="what is it")])
        )
    operations = [
        Operation(
            id=name,
            after=[f"{asked[at - 1][0]}.end"] if at else [],
            messages=[Message(role="user", content=parts)],
            parameters={"max_tokens": 16, "temperature": 0, "ignore_eos": True},
        )
        for at, (name, parts) in enumerate(asked)
    ]
    return Case(server=server, images=images, operations=operations)


def played(release: str) -> dict[str, Any]:
    """Answers by request, or why there are none."""
    server = ServerWanted(
        engine="vllm", release=release, model="qwen2-vl", max_model_len=1024
    )
    case = greedy(server)
    with (
        tempfile.TemporaryDirectory() as folder,
        Player(server, folder=Path(folder)) as player,
    ):
        try:
            options = PlayOptions(
                Deadlines(DEADLINE_S, DEADLINE_S), look="none", canary=False
            )
            made = player.play(case, None, options, Path(folder) / "play")
        except MmreproError as error:
            return {"starts": False, "why": error.message}
    if made.state is PlayState.START_FAILED:
        return {"starts": False, "why": made.said}
    answers = {op.id: made.record(op.id) for op in case.operations}
    texts = {
        name: one.text if one and one.status == 200 else ""
        for name, one in answers.items()
    }
    return {"starts": True, "answers": texts, "start_s": made.start_s}


class Results:
    """Lines of JSON, each with what it is of."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"
        text = self.path.read_text() if self.path.exists() else ""
        self.lines = [json.loads(line) for line in text.splitlines()]

    def find(self, **what: str) -> dict[str, Any] | None:
        """The last line that holds all of ``what``."""
        found = (
            x
            for x in reversed(self.lines)
            if all(x.get(k) == v for k, v in what.items())
        )
        return next(found, None)

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            time.strftime("%H:%M:%S"),
            {k: v for k, v in line.items() if k != "answers"},
            flush=True,
        )


def source_of(pair: str) -> str:
    release, _, kernels = pair.partition("/")
    return resolve(f"vllm=={release}", kernels=kernels).release


def measure(pairs: list[str], results: Results) -> None:
    built = {one.version for one in built_releases(vllm_spec("0.0", "cpu"))}
    for pair in pairs:
        release, _, kernels = pair.partition("/")
        if release in built and not results.find(
            kind="play", release=release, kernels="own"
        ):
            results.add(
                {
                    "kind": "play",
                    "release": release,
                    "kernels": "own",
                    **played(release),
                }
            )
        if results.find(kind="play", release=release, kernels=kernels) is None:
            made = played(source_of(pair))
            results.add(
                {"kind": "play", "release": release, "kernels": kernels, **made}
            )


def own_verdicts() -> dict[tuple[str, str], str]:
    """Of recorded runs with a release's own wheel, by scenario and release, where all
    agree."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in recorded.load(data.recorded_runs()):
        if run.plain and not run.mitigations and run.fidelity not in recorded.ON_GPU:
            name = f"{run.scenario}-{run.variant}".rstrip("-")
            found.setdefault((name, run.release), set()).add(run.outcome.value)
    return {
        key: f"{one.pop()} (recorded)" for key, one in found.items() if len(one) == 1
    }


def verdicts(pairs: list[str], only: str, folder: Path) -> None:
    """A nightly run a pair: each scenario on the tree, then on the own wheel if not
    recorded."""
    scenarios = [
        s for s in all_scenarios() if s.engine == "vllm" and only in s.full_name
    ]
    own = own_verdicts()
    for pair in pairs:
        release = pair.partition("/")[0]
        lines = ["[matrix]", 'device = "cpu"', "confirm = 0"]
        for column in (source_of(pair), release):
            known = own if column == release else {}
            names = [
                f"{s.name}:{s.variant}".rstrip(":")
                for s in scenarios
                if (s.full_name, release) not in known
            ]
            if names:
                lines += [
                    "[[cell]]",
                    f"scenario = {json.dumps(names)}",
                    f'releases = "{column}"',
                ]
        plan = folder / f"{pair.replace('/', '-on-')}.toml"
        plan.write_text("\n".join(lines) + "\n")
        words = ["matrix", "run", plan, "--out", folder, "--night", plan.stem]
        subprocess.run([sys.executable, "-m", "mmrepro", *map(str, words)], check=False)


def verdict_rows(folder: Path) -> Iterator[list[str]]:
    """Scenario, release, kernels, both verdicts and whether they are the same, of the
    ledger."""
    made: dict[tuple[str, str], str] = {}
    for night in ledger.read(folder).nights:
        for attempt in night.attempts:
            cell = night.cells[attempt.cell]
            name = f"{cell.scenario}-{cell.variant}".rstrip("-")
            lost = f"lost: {attempt.error[:160]}"
            made[name, cell.release] = (
                attempt.outcome.value if attempt.outcome else lost
            )
    own = own_verdicts()
    for (name, release), source in made.items():
        if label := TreeLabel.of(release):
            wheel = own.get((name, label.version)) or made.get(
                (name, label.version), "not run"
            )
            same = "yes" if wheel.removesuffix(" (recorded)") == source else "**no**"
            same = "" if wheel == "not run" else same
            yield [name, label.version, label.kernels, wheel, source, same]


def tables(results: Results) -> Iterator[str]:
    """Both tables, as Markdown."""
    yield "| Python of | kernels of | starts | text | image | greedy answers |"
    yield "|---|---|---|---|---|---|"
    for line in results.lines:
        if line["kind"] != "play" or line["kernels"] == "own":
            continue
        own = results.find(kind="play", release=line["release"], kernels="own")
        yield (
            "| "
            + " | ".join([line["release"], line["kernels"], *_row(line, own)])
            + " |"
        )
    yield ""
    yield (
        "| scenario | Python of | kernels of | by its own wheel | by "
        "`--source` | same |"
    )
    yield "|---|---|---|---|---|---|"
    for row in verdict_rows(results.path.parent):
        yield f"| {' | '.join(row)} |"


def _row(line: dict[str, Any], own: dict[str, Any] | None) -> list[str]:
    if not line["starts"]:
        return [f"no: {line['why'][:160]}", "", "", ""]
    answers = line["answers"]
    text = all(answers[n] for n in answers if n.startswith("text"))
    image = all(answers[n] for n in answers if not n.startswith("text"))
    if own is None or not own["starts"]:
        same = "no own build"
    else:
        equal = sum(own["answers"][name] == answers[name] for name in answers)
        same = f"{equal} of {len(answers)} equal"
    return ["yes", "yes" if text else "no", "yes" if image else "no", same]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["kernels", "verdicts", "table"])
    parser.add_argument("pairs", nargs="*", metavar="RELEASE/KERNELS")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("source-kernels"))
    asked = parser.parse_args()
    results = Results(asked.out)
    if asked.what == "kernels":
        measure(asked.pairs, results)
    elif asked.what == "verdicts":
        verdicts(asked.pairs, asked.only, asked.out)
    print("\n".join(tables(results)))


if __name__ == "__main__":
    main()
