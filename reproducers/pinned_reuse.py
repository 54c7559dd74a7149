"""A pinned host buffer, rewritten behind a queued copy to the device: no engine, no
emulation.

``python pinned_reuse.py --device cuda --json``; torch and the standard library are all
it needs.

vLLM 0.12.0 and 0.13.0 keep the mask of image rows in one pinned buffer. A step writes
it, queues a ``non_blocking`` copy behind the vision tower, and the next step writes it
again. On a CPU that is seen only with ``standins/emulated_stream``, which runs device
work as late as the host's waiting allows. Here a real stream does it, and each result
stands beside what the emulation gave (``--device emulated`` runs it;
``tests/minivllm/test_pinned_reuse.py`` holds the table to that) and beside what CUDA
documents ("API synchronization behavior", memcpy async).

``--device cpu`` runs the same on plain CPU tensors, where nothing is ever late. Ends
with 0 where the race was seen, 1 where it was not, 4 where it cannot be tried."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from pinned_mask import (
    BUSY_MS,
    MASKS,
    NAMES,
    Cpu,
    MaskResult,
    device_of,
    masked,
    missing,
)

SEEN, NOT_SEEN, NOT_TRIED = 0, 1, 4
_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
"""Bytes. CUDA documents that pageable memory of up to 64 KiB is staged at once."""
_DELAY_S = 1.5
"""Host time between two steps in the report's own process, whose first request
passed."""


# ----------------------------------------------------------------- one buffer, one copy


@dataclass(frozen=True)
class ReuseCase:
    """A buffer is written, copied behind some work, and written again.

    Attributes:
        work: before the copy: "sleep" (one kernel that waits), "matmul" (many that
            compute), "".
        event: recorded "after" or "before" the copy (vLLM 0.12.0's place) and waited
            for before the buffer is written again; "": nothing is waited for.
        graph: work and copy are captured and replayed.
        early: the buffer is written again before the replay.
        rule: what the device reads by CUDA's rules: "old", "new", "either".
        emulation: what the emulated stream makes of it; None: it has no such thing.
        race: the program relies on "old" and "new" shows that it may not.
    """

    name: str
    what: str
    rule: str
    emulation: str | None
    pinned: bool = True
    work: str = "sleep"
    event: str = ""
    delay_s: float = 0.0
    graph: bool = False
    early: bool = False
    race: bool = True


_CASES = (
    ReuseCase("busy", "rewritten at once, behind a waiting kernel", "new", "new"),
    ReuseCase(
        "busy-matmul", "rewritten at once, behind matmuls", "new", "new", work="matmul"
    ),
    ReuseCase(
        "event-before",
        "the event waited for was recorded before work and copy, as in vLLM 0.12.0",
        "new",
        "new",
        event="before",
    ),
    ReuseCase(
        "event-after",
        "the event was recorded after the copy",
        "old",
        "old",
        event="after",
    ),
    ReuseCase(
        "pageable", "not pinned: staged, or the host waits", "old", "old", pinned=False
    ),
    ReuseCase(
        "pageable-idle",
        "not pinned, nothing queued",
        "old",
        "old",
        pinned=False,
        work="",
    ),
    ReuseCase(
        "idle",
        "nothing queued before the copy: who is first?",
        "either",
        "new",
        work="",
    ),
    ReuseCase(
        "delay",
        (
            "rewritten 1.5 s later: the device has long been there; the emulation "
            "knows no time"
        ),
        "old",
        "new",
        delay_s=_DELAY_S,
    ),
    ReuseCase("graph", "a replayed graph holds work and copy", "new", None, graph=True),
    ReuseCase(
        "graph-event",
        "the same, an event after the replay",
        "old",
        None,
        event="after",
        graph=True,
    ),
    ReuseCase(
        "graph-early",
        "rewritten before the replay: a graph holds the address, not the contents",
        "new",
        None,
        graph=True,
        early=True,
        race=False,
    ),
)


@dataclass
class _Trial:
    """What ``repetitions`` of a case gave.

    Attributes:
        old, new, torn: contents that the device read: before the rewriting, after it,
            some of each.
        busy: how often the device was still at the work when the buffer had been
            rewritten, and ``busy_new``, of these, how often it read the new contents.
        waited: how often the call of the copy returned only when the work was done.
        by_rule, as_emulated: whether it is so each time; where "new" is expected, each
            time that the device was busy. None: nothing to judge by.
    """

    name: str
    what: str
    size_bytes: int
    repetitions: int = 0
    old: int = 0
    new: int = 0
    torn: int = 0
    busy: int = 0
    busy_new: int = 0
    waited: int = 0
    copy_call_ms: float = 0.0
    rule: str = ""
    emulation: str | None = None
    by_rule: bool | None = None
    as_emulated: bool | None = None
    error: str = ""

    def is_always(self, wanted: str | None) -> bool | None:
        if self.error or not self.repetitions or wanted in (None, "either"):
            return None
        if wanted == "old":
            return self.old == self.repetitions
        return self.busy_new == self.busy if self.busy else self.new == self.repetitions


def tried(device: Cpu, case: ReuseCase, size: int, repetitions: int) -> _Trial:
    trial = _Trial(case.name, case.what, size, rule=case.rule, emulation=case.emulation)
    calls: list[float] = []
    try:
        host, target = device.buffer(size, pinned=case.pinned), device.blank(size)
        launch = _captured(device, case, host, target) if case.graph else None
        for number in range(repetitions):
            calls.append(_once(device, case, host, target, launch, number, trial))
    except Exception as error:
        trial.error = f"{type(error).__name__}: {error}"[:600]
    trial.copy_call_ms = round(statistics.median(calls) * 1000, 4) if calls else 0.0
    trial.by_rule, trial.as_emulated = map(trial.is_always, (case.rule, case.emulation))
    return trial


def _captured(
    device: Cpu, case: ReuseCase, host: Any, target: Any
) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    device.wait()
    with torch.cuda.graph(graph):
        device.work(case.work)
        target.copy_(host, non_blocking=True)
    return graph.replay


def _once(
    device: Cpu,
    case: ReuseCase,
    host: Any,
    target: Any,
    replay: Callable[[], None] | None,
    number: int,
    trial: _Trial,
) -> float:
    """Seconds that the copy's (or the replay's) call took."""
    old, new = 1 + number % 100, 101 + number % 100
    host.fill_(old)
    target.zero_()
    device.wait()
    waited_for, marker = device.event(), device.event()
    with device.queueing():
        if case.event == "before":
            waited_for.record()
        if case.early:
            host.fill_(new)
        if replay is None:
            if case.work:
                device.work(case.work)
            marker.record()
        began = time.perf_counter()
        if replay is None:
            target.copy_(host, non_blocking=True)
        else:
            replay()
            marker.record()
        took = time.perf_counter() - began
        trial.waited += bool(case.work and replay is None and marker.query())
        if case.event == "after":
            waited_for.record()
        if case.event:
            waited_for.synchronize()
        time.sleep(case.delay_s)
        host.fill_(new)
        busy = not marker.query()
    device.wait()
    counts = [int((target == value).sum()) for value in (old, new)]
    if sum(counts) != target.numel():
        raise RuntimeError(
            f"the device has {counts} of {target.numel()} bytes, old and new"
        )
    trial.repetitions += 1
    trial.old += not counts[1]
    trial.new += not counts[0]
    trial.torn += all(counts)
    trial.busy += busy
    trial.busy_new += busy and not counts[0]
    return took


# ------------------------------------------------------------------ all of it


def claims(trials: list[_Trial], masks: list[MaskResult]) -> list[dict[str, str]]:
    """What the trials say, each "confirmed", "refuted" or "not-tested"."""
    outcomes = {m.name: m.outcome for m in masks if m.outcome != "no answer"}
    told: list[dict[str, str]] = []

    def claim(name: str, text: str, holds: bool | None, observed: str) -> None:
        status = "not-tested" if holds is None else "confirmed" if holds else "refuted"
        told.append({"id": name, "text": text, "status": status, "observed": observed})

    def tried(text: str, *names: str) -> None:
        found = [t for t in trials if t.name in names]
        judged = [t.by_rule for t in found]
        held = None if not found or None in judged else all(judged)
        counts = {k: sum(getattr(t, k) for t in found) for k in ("old", "new", "torn")}
        claim(
            names[0],
            text,
            held,
            ", ".join(f"{n} × {k}" for k, n in counts.items() if n),
        )

    def mask(name: str, text: str, wanted: str, *names: str) -> None:
        found = [outcomes.get(one, "") for one in names]
        held = all(one == wanted for one in found) if all(found) else None
        claim(name, text, held, ", ".join(found))

    tried(
        (
            "behind queued work, a pinned buffer that is rewritten reaches the device "
            "rewritten"
        ),
        "busy",
        "busy-matmul",
    )
    tried(
        "an event recorded before the copy (vLLM 0.12.0) does not prevent it",
        "event-before",
    )
    tried("an event recorded after the copy prevents it", "event-after")
    tried("memory that is not pinned is safe", "pageable", "pageable-idle")
    tried("a device that had time to get there has read the old contents", "delay")
    tried("a graph replays the copy from the address, as late", "graph")
    mask(
        "mask-assert",
        "with 0.12.0's order the report's image ends in masked_scatter",
        "assert",
        "three-steps",
    )
    mask(
        "mask-silent",
        "with 0.12.0's order images of two steps get wrong rows, without an error",
        "silent",
        "two-steps",
        "equal-count",
    )
    mask(
        "mask-fixed",
        "with the event after the copy, or two buffers, all rows are right",
        "right",
        "three-steps-event",
        "three-steps-two-buffers",
    )
    late = [t for t in trials if t.busy and t.emulation and not t.error]
    agree = sum(bool(t.as_emulated) for t in late)
    claim(
        "as-emulated",
        "wherever the device was late enough, it read what the emulated stream reads",
        agree == len(late) if late else None,
        f"{agree} of {len(late)} cases and sizes",
    )
    return told


def document(device: Cpu, sizes: tuple[int, ...], repetitions: int) -> dict[str, Any]:
    began = time.monotonic()
    trials: list[_Trial] = []
    for case in _CASES:
        if case.graph and not device.graphs:
            continue
        count = (
            min(repetitions, 2)
            if case.delay_s and device.name == "cuda"
            else repetitions
        )
        instant = replace(case, delay_s=case.delay_s if device.name == "cuda" else 0.0)
        trials += [tried(device, instant, size, count) for size in sizes]
    masks = [masked(device.name, case) for case in MASKS]
    racing = {case.name for case in _CASES if case.race}
    torch_facts = {"torch": torch.__version__, "cuda": torch.version.cuda}
    gpu = torch.cuda.get_device_name() if device.name == "cuda" else None
    return {
        "device": device.name,
        "gpu": gpu,
        **torch_facts,
        "busy_ms": BUSY_MS,
        "race_seen": any(t.new or t.torn for t in trials if t.name in racing),
        "trials": [asdict(t) for t in trials],
        "masks": [asdict(m) for m in masks],
        "claims": claims(trials, masks),
        "seconds": round(time.monotonic() - began, 1),
    }


def tell(found: dict[str, Any]) -> None:
    """For people."""
    print(
        f"{found['gpu'] or found['device']}, torch {found['torch']}, "
        f"{found['seconds']} s"
    )
    for trial in found["trials"]:
        counts = Counter({k: trial[k] for k in ("old", "new", "torn") if trial[k]})
        said = ", ".join(f"{n} {k}" for k, n in counts.items()) or trial["error"]
        wanted = f"rule {trial['rule']}, emulation {trial['emulation']}"
        print(f"  {trial['name']:14} {trial['size_bytes']:>9} bytes: {said} ({wanted})")
    for one in found["masks"]:
        told = f"mask {one['name']}: {one['outcome']} (emulation {one['emulation']})"
        print(f"  {told} {one['rows']} {one['error'][:100]}")
    for claim in found["claims"]:
        print(f"  {claim['status']:11} {claim['text']}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=NAMES, default="cuda")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--size", type=int, action="append", metavar="BYTES")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if why := missing(options.device):
        print(
            json.dumps({"device": options.device, "error": why})
            if options.json
            else why
        )
        return NOT_TRIED
    device = device_of(options.device)
    found = document(device, tuple(options.size or _SIZES), options.repetitions)
    if options.json:
        print(json.dumps(found))
    else:
        tell(found)
    return SEEN if found["race_seen"] else NOT_SEEN


if __name__ == "__main__":
    sys.exit(main())
