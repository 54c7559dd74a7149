"""Stack samples as pictures: a strip per process over time, and a flame graph.

Both are made of the samples on disk. In the strip a box is one sample, coloured by its
innermost frame: a process that is stuck has one colour. In the flame graph the width of
a frame is the share of the samples that have it at that place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from markupsafe import Markup
from mmrepro.base.text import one_line
from mmrepro.base.units import count
from mmrepro.failure.documents import Incident
from mmrepro.probes import StackSample, StacksData, ThreadStack
from mmrepro.reports import blocks as b
from mmrepro.reports.svg import LEFT, WIDTH, rect, svg, text

_COLOURS: Final = 6
_ROW: Final = 30
_BOX: Final = 16
_NAME_W: Final = 190
_FLAME_ROW: Final = 18
_MOST_DEPTH: Final = 24
_MOST_PROCESSES: Final = 12
_LETTER: Final = 6.6
"""Width of a letter, about: a name that its box does not hold is left to its tip."""


def stack_pictures(incident: Incident) -> Iterator[b.Block]:
    """The strips of all sampled processes, then the flame graph of the one that is
    stuck; nothing where fewer than two samples were taken."""
    samples = _samples(incident)
    rows = _by_process(samples)
    if sum(len(taken) for _, taken in rows) < 2:
        return
    yield _strips(incident, rows)
    pid = _main_process(incident, rows)
    taken = [sample for sample in samples if sample.pid == pid]
    if taken:
        yield _flame_graph(role_of(incident, pid), taken)


def _samples(incident: Incident) -> list[StackSample]:
    samples: list[StackSample] = []
    for _, data in incident.evidence.results(StacksData, partial=True):
        samples += [sample for sample in data.samples if sample.threads]
    return sorted(samples, key=lambda sample: sample.taken.mono)


def process_samples(incident: Incident) -> list[tuple[int, list[StackSample]]]:
    """The samples of each process, in the order in which they were taken."""
    return _by_process(_samples(incident))


def _by_process(
    samples: Sequence[StackSample],
) -> list[tuple[int, list[StackSample]]]:
    ordered = sorted(samples, key=lambda sample: (sample.pid, sample.taken.mono))
    grouped = groupby(ordered, key=lambda sample: sample.pid)
    return [(pid, list(taken)) for pid, taken in grouped][:_MOST_PROCESSES]


def role_of(incident: Incident, pid: int) -> str:
    """What a process is: ``EngineCore``; by its number, where that is not known."""
    diagnosis = incident.diagnosis
    if diagnosis is not None:
        for process in diagnosis.target.processes:
            if process.pid == pid:
                return process.role
    return f"process {pid}"


def _main_process(
    incident: Incident, rows: Sequence[tuple[int, list[StackSample]]]
) -> int:
    """The process that the diagnosis names, else the one with most samples."""
    diagnosis = incident.diagnosis
    if diagnosis is not None:
        for pid, _ in rows:
            if role_of(incident, pid) == diagnosis.assessment.process:
                return pid
    return max(rows, key=lambda row: len(row[1]))[0]


def _busiest(sample: StackSample) -> ThreadStack:
    """The thread that holds the GIL, else one that runs, else the first."""
    for thread in sample.threads:
        if thread.owns_gil and thread.frames:
            return thread
    for thread in sample.threads:
        if thread.active and thread.frames:
            return thread
    return sample.threads[0]


def _innermost(sample: StackSample) -> str:
    frames = _busiest(sample).frames
    if not frames:
        return "no frame"
    return f"{frames[0].function} ({frames[0].file}:{frames[0].line})"


# ---------------------------------------------------------------------------- strips


def _strips(
    incident: Incident, rows: Sequence[tuple[int, list[StackSample]]]
) -> b.Picture:
    places: dict[str, int] = {}
    begin = min(taken[0].taken.mono for _, taken in rows)
    end = max(taken[-1].taken.mono for _, taken in rows)
    span = max(end - begin, 0.001)
    drawn: list[Markup] = []
    facts: list[b.Inline] = []
    room = WIDTH - _NAME_W - LEFT - _BOX
    for number, (pid, taken) in enumerate(rows):
        y = 8.0 + number * _ROW
        role = role_of(incident, pid)
        drawn.append(text(8, y + 14, role, "label"))
        for sample in taken:
            place = _innermost(sample)
            colour = places.setdefault(place, len(places)) % _COLOURS
            at = sample.taken.mono - begin
            x = _NAME_W + room * at / span
            tip = f"{role} at {at:.1f} s: {one_line(place, 200)}"
            drawn.append(rect(f"fill{colour}", x, y, _BOX, _BOX, tip))
        facts.append(f"{role}: {_course(taken)}")
    height = 8 + len(rows) * _ROW
    drawn.append(text(_NAME_W, height + 10, "0 s", "label"))
    drawn.append(text(_NAME_W + room - 30, height + 10, f"{span:.1f} s", "label"))
    of = "1 process" if len(rows) == 1 else f"{len(rows)} processes"
    label = f"Stack samples of {of} over {span:.1f} s"
    return b.Picture(
        svg(height + 20, label, drawn),
        [b.Bullets(facts)],
        caption="Each box is one sample, coloured by its innermost frame.",
    )


def _course(taken: Iterable[StackSample]) -> str:
    """``ImageCache.put (caches.py:121) ×7``."""
    runs = []
    for place, same in groupby(_innermost(sample) for sample in taken):
        number = sum(1 for _ in same)
        runs.append(f"{place} ×{number}" if number > 1 else place)
    return ", ".join(runs[:8])


# ----------------------------------------------------------------------- flame graph


@dataclass
class FlameNode:
    """A frame at one place of the stack, and those that it calls."""

    name: str
    tip: str = ""
    samples: int = 0
    called: dict[str, FlameNode] = field(default_factory=dict)

    def add(self, thread: ThreadStack) -> None:
        """Count one stack, outermost frame first."""
        node = self
        node.samples += 1
        for frame in reversed(thread.frames[:_MOST_DEPTH]):
            place = f"{frame.function} ({frame.file}:{frame.line})"
            node = node.called.setdefault(place, FlameNode(frame.function, place))
            node.samples += 1
            if frame.locals and len(node.tip) < 300:
                values = [f"{name} = {value}" for name, value in frame.locals.items()]
                node.tip = f"{place}; {one_line(', '.join(values), 300)}"

    @property
    def depth(self) -> int:
        return 1 + max((node.depth for node in self.called.values()), default=0)


def flame_tree(role: str, samples: Iterable[StackSample]) -> FlameNode:
    """The stacks of one process, merged from their outermost frames."""
    root = FlameNode(role)
    for sample in samples:
        root.add(_busiest(sample))
    return root


def _flame_graph(role: str, taken: Sequence[StackSample]) -> b.Picture:
    root = flame_tree(role, taken)
    drawn = [*_flames(root, 8.0, WIDTH - 16.0, 0, root.samples)]
    samples = count(root.samples, "sample")
    label = f"Flame graph of {role}: {samples}, the outermost frame at the top"
    frames = [f"{frame.function}" for frame in _busiest(taken[-1]).frames[:8]]
    return b.Picture(
        svg(root.depth * _FLAME_ROW + 12, label, drawn),
        [b.p(f"{role}: {' ← '.join(frames)}")],
        caption=f"{samples} of {role}. Width: share of the samples; the innermost frame "
        "is at the bottom.",
    )


def _flames(
    node: FlameNode, x: float, width: float, depth: int, total: int
) -> Iterator[Markup]:
    y = 4.0 + depth * _FLAME_ROW
    tip = f"{node.tip or node.name}: {node.samples} of {total} samples"
    yield rect(
        f"fill{depth % _COLOURS}", x, y, max(width - 1, 1.0), _FLAME_ROW - 2, tip
    )
    letters = int((width - 8) / _LETTER)
    if letters > 3:
        yield text(x + 4, y + 12, one_line(node.name, min(letters, 90)), "flame")
    begin = x
    for called in node.called.values():
        share = width * called.samples / node.samples
        yield from _flames(called, begin, share, depth + 1, total)
        begin += share
