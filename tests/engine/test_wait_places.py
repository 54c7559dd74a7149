"""Where processes wait for each other, and in which order ranks start: what is recorded
and assumed, against the engines' installed sources.

``python tests/engine/test_wait_places.py`` writes
tests/unit/diagnose/wait_places.json."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from mmrepro.engines.environments.store import list_environments
from mmrepro.engines.waits import WaitPlace, wait_places
from mmrepro.live.diagnose.titles import in_order

pytestmark = pytest.mark.engine

KNOWN = Path(__file__).parents[1] / "unit" / "diagnose" / "wait_places.json"
RECORDED: dict[str, dict[str, dict[str, str]]] = json.loads(KNOWN.read_text())
RELEASES = [(engine, release) for engine in RECORDED for release in RECORDED[engine]]


def line_of(source: str, place: WaitPlace) -> str:
    """The line in which ``place.function`` calls ``place.calls``; "" where it does
    not."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name == place.function
        )
        if not named and not (
            isinstance(node, ast.Lambda) and place.function == "<lambda>"
        ):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and place.calls == (
                getattr(call.func, "attr", None) or getattr(call.func, "id", None)
            ):
                return lines[call.lineno - 1].strip()
    return ""


def installed() -> dict[tuple[str, str], Path]:
    found = {}
    for stored in list_environments(sizes=False):
        if "+" in stored.manifest.release:
            continue  # somebody's tree
        for folder in Path(stored.path).glob("venv/lib/python3*/site-packages"):
            found[stored.manifest.engine, stored.manifest.release] = folder
    return found


def lines_in(folder: Path, engine: str, release: str) -> dict[str, str]:
    found = {}
    for place in [p for p in wait_places(engine) if p.covers(release)]:
        file = folder / place.file
        found[place.source] = line_of(file.read_text(), place) if file.is_file() else ""
    return found


def sources_of(engine: str, release: str) -> Path:
    """Return where a release is installed, or skip the test."""
    folder = installed().get((engine, release))
    if folder is None:
        pytest.skip(
            f"no environment of {engine} {release}: mmrepro env create {engine} {release}"
        )
    return folder


@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_each_place_is_in_the_installed_source(engine: str, release: str) -> None:
    folder = sources_of(engine, release)
    assert lines_in(folder, engine, release) == RECORDED[engine][release]


STARTS = {
    ("vllm", "Worker"): (
        "vllm/v1/executor/multiproc_executor.py",
        ["rank"],
        "make_worker_process",
    ),
    ("vllm", "EngineCore"): ("vllm/v1/engine/utils.py", ["proc"], "start"),
    ("sglang", "scheduler"): (
        "sglang/srt/entrypoints/engine.py",
        ["pp_rank", "tp_rank"],
        "start",
    ),
}


def loops(tree: ast.AST, call: str, inside: tuple[str, ...] = ()) -> list[list[str]]:
    """What counts in the loops of its function around each call of ``call``."""
    found: list[list[str]] = []
    for node in ast.iter_child_nodes(tree):
        within = () if isinstance(node, ast.FunctionDef) else inside
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == call:
            found.append([name.removeprefix("local_") for name in inside])
        if isinstance(node, ast.For):
            first = (
                node.target.elts[0]
                if isinstance(node.target, ast.Tuple)
                else node.target
            )
            within = (*inside, getattr(first, "id", ""))
        found += loops(node, call, within)
    return found


@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_engines_start_ranks_in_their_order(engine: str, release: str) -> None:
    folder = sources_of(engine, release)
    prefixes = [prefix for name, prefix in STARTS if name == engine]
    if not prefixes:
        pytest.skip(f"{engine}: no ranks by titles")
    for prefix in prefixes:
        file, names, call = STARTS[engine, prefix]
        around = loops(ast.parse((folder / file).read_text()), call)
        assert (names in around) is in_order(engine, prefix, release), (file, around)


if __name__ == "__main__":
    found: dict[str, dict[str, dict[str, str]]] = {}
    for (engine, release), folder in sorted(installed().items()):
        if wait_places(engine):
            found.setdefault(engine, {})[release] = lines_in(folder, engine, release)
    KNOWN.write_text(json.dumps(found, indent=1) + "\n")
    missing = [
        p for r in found.values() for lines in r.values() for p in lines if not lines[p]
    ]
    sys.exit(f"not found: {missing}" if missing else 0)
