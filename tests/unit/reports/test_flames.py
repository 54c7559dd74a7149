"""The stacks as pictures: what is drawn is what was sampled."""

import re
from pathlib import Path

from mmrepro.probes import Frame, StackSample, StacksData, ThreadStack
from mmrepro.reports import load
from mmrepro.reports.blocks import Picture
from mmrepro.reports.flames import flame_tree, stack_pictures

RUN = Path(__file__).parents[2] / "evidence" / "ghost-key-eviction-0.23.0.zip"


def test_a_hung_engine_has_a_strip_and_a_flame_graph() -> None:
    strips, flames = stack_pictures(load(RUN))
    assert isinstance(strips, Picture)
    assert isinstance(flames, Picture)
    boxes = re.findall(r"<rect[^>]*><title>([^<]+)", strips.drawing)
    data = [result.data for _, result in _stacks()]
    assert len(boxes) == sum(len(stacks.samples) for stacks in data)
    assert sum("popitem" in box for box in boxes) > len(boxes) / 2, "it is stuck there"
    assert "popitem" in flames.drawing


def _stacks() -> list[tuple[int, object]]:
    found = []
    for number, result in enumerate(load(RUN).evidence.probes):
        if isinstance(result.data, StacksData):
            found.append((number, result))
    return found


def thread(*functions: str, active: bool, owns_gil: bool) -> ThreadStack:
    frames = [Frame(function=name, file="a.py", line=1) for name in functions]
    return ThreadStack(
        tid=1, name="Main", active=active, owns_gil=owns_gil, frames=frames
    )


def sampled(*threads: ThreadStack) -> StackSample:
    taken = {"wall": "2026-11-21T02:00:00Z", "mono": 1.0}
    return StackSample(pid=7, taken=taken, blocking=False, threads=[*threads])


def sample(*functions: str) -> StackSample:
    return sampled(thread(*functions, active=True, owns_gil=True))


def test_frames_of_one_place_are_merged_from_the_outside() -> None:
    tree = flame_tree("Core", [sample("put", "run"), sample("get", "run")])
    [run] = tree.called.values()
    assert (run.name, run.samples, tree.depth) == ("run", 2, 3)
    assert sorted(node.name for node in run.called.values()) == ["get", "put"]


def test_without_the_gil_the_thread_that_runs_is_drawn() -> None:
    waits = thread("wait", active=False, owns_gil=False)
    bare = thread(active=True, owns_gil=False)
    runs = thread("copy", active=True, owns_gil=False)
    tree = flame_tree("Core", [sampled(waits, bare, runs)])
    assert [node.name for node in tree.called.values()] == ["copy"]
