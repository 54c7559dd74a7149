"""Files that scenarios ship."""

import json
from collections.abc import Iterable
from pathlib import Path


def pad_value_pair() -> Path:
    """Folder of A.png, B.png, control.png and pair.json: two pictures of one SGLang pad
    value.

    Found and verified by the scenario's script ``collide --release 0.5.6 --bits 30``;
    pair.json has in what: ``mmrepro.scenarios.pad_value_collision.collide.pair.Pair``."""
    return Path(__file__).parent / "pad_value_pair"


def recorded_runs() -> Path:
    """Every recorded run in a line: ``mmrepro.tools.catalogue.recorded.load`` reads it.

    Made by ``tests/evidence/record.py --table``.
    """
    return Path(__file__).parent / "recorded_runs.json"


def claims() -> Path:
    """Every claim and the run that judged it: ``mmrepro.tools.catalogue.claims.load``
    reads it.

    Made by ``tests/evidence/record.py --table``.
    """
    return Path(__file__).parent / "claims.json"


def recorded_releases(words: Iterable[str] = ()) -> list[str]:
    """Releases with a recorded run of one of the engines or scenarios in ``words``;
    none: all."""
    runs = json.loads(recorded_runs().read_bytes())["runs"]
    fits = [
        run for run in runs if not {run["engine"], run["scenario"]}.isdisjoint(words)
    ]
    return [*dict.fromkeys(run["release"] for run in fits or runs)]
