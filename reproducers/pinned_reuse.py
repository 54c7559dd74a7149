"""A pinned host buffer, rewritten behind a queued copy to the device: no engine, no emulation.

``python pinned_reuse.py --device cuda --json``; torch and the standard library are all it needs.

vLLM 0.12.0 and 0.13.0 keep the mask of image rows in one pinned buffer. A step writes it, queues a
``non_blocking`` copy behind the vision tower, and the next step writes it again. On a CPU that is
seen only with ``standins/emulated_stream``, which runs device work as late as the host's waiting
allows. Here a real stream does it, and each result stands beside what the emulation gave
(``--device emulated`` runs it; ``tests/minivllm/test_pinned_reuse.py`` holds the table to that) and
beside what CUDA documents ("API synchronization behavior", memcpy async).

``--device cpu`` runs the same on plain CPU tensors, where nothing is ever late. Ends with 0 where
the race was seen, 1 where it was not, 4 where it cannot be tried.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

SEEN, NOT_SEEN, NOT_TRIED = 0, 1, 4
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
"""Bytes. CUDA stages pageable memory of up to 64 KiB without waiting for the transfer."""
BUSY_MS = 40.0
"""What the device is given to do before the copy: a vision tower takes about as long."""
DELAY_S = 1.5
"""Host time between two steps in the report's own process, whose first request passed."""
EMULATED = Path(__file__).parent / "standins" / "emulated_stream"


# ------------------------------------------------------------------ devices


class Cpu:
    """Everything is done when it is launched."""

    name = "cpu"
    graphs = False

    def buffer(self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8) -> Any:
        """Host memory."""
        return torch.zeros(count, dtype=dtype)

    def blank(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Any:
        """Device memory."""
        return torch.zeros(shape, dtype=dtype)

    def work(self, kind: str) -> None:
        """``kind``: "sleep" or "matmul"."""

    def event(self) -> Any:
        return Done()

    def wait(self) -> None:
        """For all that was launched. Raises what the device raised."""

    def queueing(self) -> AbstractContextManager[object]:
        """Around what is launched; what is read afterwards stands outside."""
        return nullcontext()


class Done:
    """An event of a device that is never behind."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Emulated(Cpu):
    """``standins/emulated_stream``: work waits in a queue until somebody needs it."""

    name = "emulated"

    def __init__(self) -> None:
        sys.path.insert(0, str(EMULATED))
        from mmrepro_stream.dispatch import Marks, StreamMode
        from mmrepro_stream.queue import Event, Stream
        from mmrepro_stream.watch import Watch
        from torch.utils._python_dispatch import _disable_current_modes

        @contextmanager
        def as_device() -> Iterator[None]:
            with _disable_current_modes(), torch.inference_mode():
                yield

        self.stream = Stream(as_device)
        self.marks = Marks()
        self.mode = StreamMode(self.stream, self.marks, Watch(lambda line: None))
        Event.stream = self.stream
        self.event = Event

    def buffer(self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8) -> Any:
        made = super().buffer(count, pinned=pinned, dtype=dtype)
        return self.marks.pinned(made) if pinned else made

    def blank(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Any:
        return self.marks.device(super().blank(*shape, dtype=dtype))

    def work(self, kind: str) -> None:
        self.stream.launch(lambda: None)

    def wait(self) -> None:
        self.stream.wait()

    def queueing(self) -> AbstractContextManager[object]:
        return self.mode


class Cuda(Cpu):
    """The current stream of the current GPU."""

    name = "cuda"
    graphs = True

    def __init__(self, busy_ms: float = BUSY_MS) -> None:
        self.event = torch.cuda.Event
        self._wide = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._wide)
        self._cycles = self._scaled(lambda n: torch.cuda._sleep(n), 4_000_000, busy_ms)
        self._products = self._scaled(self._multiply, 20, busy_ms)

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.matmul(self._wide, self._wide, out=self._out)

    def _scaled(self, launch: Callable[[int], None], sample: int, busy_ms: float) -> int:
        """How much of ``launch`` takes ``busy_ms``; the second run counts, the first is cold."""
        for _ in range(2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            start.record()
            launch(sample)
            end.record()
            torch.cuda.synchronize()
        return max(1, round(sample * busy_ms / max(start.elapsed_time(end), 1e-3)))

    def buffer(self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8) -> Any:
        made = torch.zeros(count, dtype=dtype, pin_memory=pinned)
        assert made.is_pinned() is pinned
        return made

    def blank(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Any:
        return torch.zeros(shape, dtype=dtype, device="cuda")

    def work(self, kind: str) -> None:
        if kind == "matmul":
            self._multiply(self._products)
        else:
            torch.cuda._sleep(self._cycles)

    def wait(self) -> None:
        torch.cuda.synchronize()


def device_of(name: str) -> Cpu:
    return {"cpu": Cpu, "emulated": Emulated, "cuda": Cuda}[name]()


# ------------------------------------------------------------------ one buffer, one copy


@dataclass(frozen=True)
class Case:
    """A buffer is written, copied behind some work, and written again.

    Attributes:
        work: before the copy: "sleep" (one kernel that waits), "matmul" (many that compute), "".
        event: recorded "after" or "before" the copy (vLLM 0.12.0's place) and waited for before the
            buffer is written again; "": nothing is waited for.
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


CASES = (
    Case("busy", "rewritten at once, behind a waiting kernel", "new", "new"),
    Case("busy-matmul", "rewritten at once, behind matmuls", "new", "new", work="matmul"),
    Case(
        "event-before",
        "the event waited for was recorded before work and copy, as in vLLM 0.12.0",
        "new",
        "new",
        event="before",
    ),
    Case("event-after", "the event was recorded after the copy", "old", "old", event="after"),
    Case("pageable", "not pinned: staged, or the host waits", "old", "old", pinned=False),
    Case("pageable-idle", "not pinned, nothing queued", "old", "old", pinned=False, work=""),
    Case("idle", "nothing queued before the copy: who is first?", "either", "new", work=""),
    Case(
        "delay",
        "rewritten 1.5 s later: the device has long been there; the emulation knows no time",
        "old",
        "new",
        delay_s=DELAY_S,
    ),
    Case("graph", "a replayed graph holds work and copy", "new", None, graph=True),
    Case(
        "graph-event", "the same, an event after the replay", "old", None, event="after", graph=True
    ),
    Case(
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
class Trial:
    """What ``repetitions`` of a case gave.

    Attributes:
        old, new, torn: contents that the device read: before the rewriting, after it, some of each.
        busy: how often the device was still at the work when the buffer had been rewritten, and
            ``busy_new``, of these, how often it read the new contents.
        waited: how often the call of the copy returned only when the work was done.
        by_rule, as_emulated: whether it is so each time; where "new" is expected, each time that
            the device was busy. None: nothing to judge by.
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


def tried(device: Cpu, case: Case, size: int, repetitions: int) -> Trial:
    trial = Trial(case.name, case.what, size, rule=case.rule, emulation=case.emulation)
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


def _captured(device: Cpu, case: Case, host: Any, target: Any) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    device.wait()
    with torch.cuda.graph(graph):
        device.work(case.work)
        target.copy_(host, non_blocking=True)
    return graph.replay


def _once(
    device: Cpu,
    case: Case,
    host: Any,
    target: Any,
    replay: Callable[[], None] | None,
    number: int,
    trial: Trial,
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
        raise RuntimeError(f"the device has {counts} of {target.numel()} bytes, old and new")
    trial.repetitions += 1
    trial.old += not counts[1]
    trial.new += not counts[0]
    trial.torn += all(counts)
    trial.busy += busy
    trial.busy_new += busy and not counts[0]
    return took


# ------------------------------------------------------------------ vLLM's mask


@dataclass(frozen=True)
class Mask:
    """``is_mm_embed`` of one prompt, step by step, and what is scattered by it.

    Attributes:
        images: (offset, length) in tokens.
        prompt: tokens, images included; then two decode steps.
        order: "0.12.0": the event is recorded before the mask is written and copied; "event": after
            the copy (vllm#31373); "two-buffers": 0.12.0's event, buffers in turn (vllm#31841).
        emulation: what the emulated stream makes of the first step: "assert", "silent", "right".
    """

    name: str
    what: str
    images: tuple[tuple[int, int], ...]
    prompt: int
    order: str
    emulation: str
    budget: int = 2048


REPORT = ((2, 4819),)
MASKS = (
    Mask("three-steps", "the report's image", REPORT, 4900, "0.12.0", "assert"),
    Mask("two-steps", "an image of two steps", ((2, 2400),), 2410, "0.12.0", "silent"),
    Mask(
        "equal-count",
        "as many rows in each step, in other places",
        ((2, 1000), (2548, 1000)),
        3560,
        "0.12.0",
        "silent",
    ),
    Mask("one-step", "an image of one step: right, by luck", ((2, 2000),), 2010, "0.12.0", "right"),
    Mask("three-steps-event", "the event after the copy", REPORT, 4900, "event", "right"),
    Mask("three-steps-two-buffers", "two buffers", REPORT, 4900, "two-buffers", "right"),
)
HIDDEN = 64


@dataclass
class MaskResult:
    """Of one ``Mask``, in a process of its own: a device-side assert ends what CUDA can do there.

    Attributes:
        outcome: "assert" (masked_scatter refused), "silent" (wrong embeddings, no error), "right".
        rows: of each step: rows to be put in, and rows that the device's mask marked; None where a
            failed device tells no more.
        wrong: of each step, rows of the result that are not what they should be.
        error: what was raised, and by which call; ``stderr``: what the device printed.
    """

    name: str
    what: str
    outcome: str = ""
    emulation: str = ""
    as_emulated: bool | None = None
    rows: list[tuple[int, int | None]] = field(default_factory=list)
    wrong: list[int | None] = field(default_factory=list)
    error: str = ""
    raised_by: str = ""
    stderr: str = ""
    exit_code: int = 0


def mask_steps(case: Mask) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """(first token, tokens, image rows from and to) of each step of ``case``."""
    done = 0
    while done < case.prompt + 2:
        count = min(case.budget, case.prompt - done) if done < case.prompt else 1
        rows = [(max(a - done, 0), min(a + n - done, count)) for a, n in case.images]
        yield done, count, [(a, b) for a, b in rows if a < b]
        done += count


def run_mask(device: Cpu, case: Mask) -> MaskResult:
    """In this process. As vLLM's ``_gather_mm_embeddings`` and ``_merge_multimodal_embeddings``."""
    result = MaskResult(case.name, case.what, emulation=case.emulation)
    pairs = [
        (
            device.buffer(case.budget, pinned=True, dtype=torch.bool),
            device.blank(case.budget, dtype=torch.bool),
        )
        for _ in range(2 if case.order == "two-buffers" else 1)
    ]
    steps = list(mask_steps(case))
    total = case.prompt + 2
    embeddings = device.blank(total, HIDDEN, dtype=torch.float32)
    embeddings.copy_(torch.arange(1, total + 1).float()[:, None].expand(-1, HIDDEN))
    made = [device.blank(count, HIDDEN, dtype=torch.float32) for _, count, _ in steps]
    marked = [device.blank(1, dtype=torch.int64) for _ in steps]
    prepared = device.event()

    def run(*, ordered: bool) -> None:
        for number, (first, count, spans) in enumerate(steps):
            result.raised_by = f"step {number + 1}: the event"
            prepared.synchronize()
            result.raised_by = f"step {number + 1}: a launch"
            if case.order != "event":
                prepared.record()
            if not number:
                device.work("sleep")  # the vision tower
            host, mask = pairs[number % len(pairs)]
            host[:count] = False
            for start, end in spans:
                host[start:end] = True
            mask[:count].copy_(host[:count], non_blocking=True)
            if case.order == "event":
                prepared.record()
            marked[number].copy_(mask[:count].sum().view(1))
            if spans:
                rows = torch.cat([embeddings[first + a : first + b] for a, b in spans])
                made[number].masked_scatter_(mask[:count][:, None], rows)
            if ordered:
                device.wait()
        result.raised_by = "synchronize"
        device.wait()
        result.raised_by = ""

    # What is loaded or allocated at its first use may wait for the device: once in order first.
    run(ordered=True)
    for tensor in made:
        tensor.zero_()
    device.wait()
    try:
        with device.queueing():
            run(ordered=False)
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}"[:2000]
        result.outcome = "assert"
        result.rows = [(sum(b - a for a, b in spans), None) for *_, spans in steps]
        result.as_emulated = result.outcome == case.emulation
        return result
    for (first, count, spans), got, ones in zip(steps, made, marked, strict=True):
        wanted = torch.zeros(count, HIDDEN)
        for a, b in spans:
            wanted[a:b] = torch.arange(first + a + 1, first + b + 1).float()[:, None]
        result.rows.append((sum(b - a for a, b in spans), int(ones.cpu())))
        result.wrong.append(int((got.cpu() != wanted).any(dim=1).sum()))
    result.outcome = "silent" if any(result.wrong) else "right"
    result.as_emulated = result.outcome == case.emulation
    return result


def masked(name: str, case: Mask) -> MaskResult:
    """``run_mask`` in a child, with what it printed."""
    command = [sys.executable, __file__, "--device", name, "--mask", case.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    try:
        result = MaskResult(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        result = MaskResult(case.name, case.what, "no answer", case.emulation, False)
    if result.outcome in ("assert", "no answer"):
        result.stderr = done.stderr[-4000:]
    return replace(result, exit_code=done.returncode)


# ------------------------------------------------------------------ all of it


def claims(trials: list[Trial], masks: list[MaskResult]) -> list[dict[str, str]]:
    """What the trials say, each "confirmed", "refuted" or "not-tested"."""

    def of(holds: bool | None) -> str:
        return "not-tested" if holds is None else "confirmed" if holds else "refuted"

    def every(*names: str) -> bool | None:
        found = [t.by_rule for t in trials if t.name in names]
        return None if not found or None in found else all(found)

    late = [t for t in trials if t.busy and t.emulation and not t.error]
    outcomes = {m.name: m.outcome for m in masks if m.outcome != "no answer"}

    def mask(wanted: str, *names: str) -> bool | None:
        found = [outcomes.get(name) for name in names]
        return None if None in found else all(one == wanted for one in found)

    told: dict[str, tuple[str, bool | None]] = {
        "race": (
            "behind queued work, a pinned buffer that is rewritten reaches the device rewritten",
            every("busy", "busy-matmul"),
        ),
        "event-before": (
            "an event recorded before the copy (vLLM 0.12.0) does not prevent it",
            every("event-before"),
        ),
        "event-after": ("an event recorded after the copy prevents it", every("event-after")),
        "pageable": ("memory that is not pinned is safe", every("pageable", "pageable-idle")),
        "delay": ("a device that had time to get there has read the old contents", every("delay")),
        "graph": ("a graph replays the copy from the address, as late", every("graph")),
        "mask-assert": (
            "with 0.12.0's order the report's image ends in masked_scatter",
            mask("assert", "three-steps"),
        ),
        "mask-silent": (
            "with 0.12.0's order images of two steps get wrong rows, without an error",
            mask("silent", "two-steps", "equal-count"),
        ),
        "mask-fixed": (
            "with the event after the copy, or two buffers, all rows are right",
            mask("right", "three-steps-event", "three-steps-two-buffers"),
        ),
        "as-emulated": (
            "wherever the device was late enough, it read what the emulated stream reads",
            all(t.as_emulated for t in late) if late else None,
        ),
    }
    return [{"id": i, "text": text, "status": of(held)} for i, (text, held) in told.items()]


def document(device: Cpu, sizes: tuple[int, ...], repetitions: int) -> dict[str, Any]:
    began = time.monotonic()
    trials: list[Trial] = []
    for case in CASES:
        if case.graph and not device.graphs:
            continue
        count = min(repetitions, 2) if case.delay_s and device.name == "cuda" else repetitions
        instant = replace(case, delay_s=case.delay_s if device.name == "cuda" else 0.0)
        trials += [tried(device, instant, size, count) for size in sizes]
    masks = [masked(device.name, case) for case in MASKS]
    racing = {case.name for case in CASES if case.race}
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
    print(f"{found['gpu'] or found['device']}, torch {found['torch']}, {found['seconds']} s")
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
    parser.add_argument("--device", choices=("cuda", "cpu", "emulated"), default="cuda")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--size", type=int, action="append", metavar="BYTES")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mask", choices=[case.name for case in MASKS], help="one, and only this")
    options = parser.parse_args(argv)
    os.environ.pop("CUDA_LAUNCH_BLOCKING", None)  # with it nothing is ever late
    if options.device == "cuda" and not torch.cuda.is_available():
        said = "torch finds no CUDA device here; --device emulated shows what is predicted"
        print(json.dumps({"device": "cuda", "error": said}) if options.json else said)
        return NOT_TRIED
    device = device_of(options.device)
    if options.mask:
        case = next(case for case in MASKS if case.name == options.mask)
        print(json.dumps(asdict(run_mask(device, case))), flush=True)
        return 0
    found = document(device, tuple(options.size or SIZES), options.repetitions)
    if options.json:
        print(json.dumps(found))
    else:
        tell(found)
    return SEEN if found["race_seen"] else NOT_SEEN


if __name__ == "__main__":
    sys.exit(main())
