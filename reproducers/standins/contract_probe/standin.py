"""Stand-in: holds the buffers of vLLM's GPUModelRunner against the multimodal prefill
contract.

It replaces nothing and changes no value. At each step it reads, on the host, what
``GPUModelRunner._prepare_inputs`` has just written (block table, slots, positions,
query_start_loc, seq_lens), and, in the order of the device's stream, how many tokens
the mask marks when the image embeddings are merged (``_merge_multimodal_embeddings``).
The mask is counted on the device and the count comes back by a copy that nobody waits
for: waiting would order the host behind the device and hide the very race that is
looked for. The invariants are minivllm's own (``contract.py``).

Seen to fit vLLM 0.11.0 (mask only) to 0.14.0; what a release does not have is said
once, in the log, and not checked."""

import functools
import importlib.util
import inspect
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mmrepro_boot import after_import

_POLL_S = 0.001
_MERGE = "_merge_multimodal_embeddings"


def _contract() -> Any:
    """minivllm's contract.py by its path: the package itself stays out of this
    engine."""
    path = Path(__file__).parents[2] / "minivllm" / "contract.py"
    spec = importlib.util.spec_from_file_location("mmrepro_contract", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


contract = _contract()


def say(text: str) -> None:
    print(f"contract probe: {text}", file=sys.stderr, flush=True)


class Counts:
    """Marked tokens on their way from the device; a thread looks whether they have
    arrived."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Any, int, str]] = []
        self._wake = threading.Event()
        threading.Thread(target=self._poll, name="contract-probe", daemon=True).start()

    def add(self, mask: Any, rows: int, where: str) -> None:
        """Have ``mask`` counted where the stream is now; ``rows`` embeddings go into
        it."""
        import torch

        arrived = torch.full((1,), -1, dtype=torch.int64, pin_memory=mask.is_cuda)
        arrived.copy_(mask.sum().reshape(1), non_blocking=True)
        with self._lock:
            self._waiting.append((arrived, rows, where))
        self.look()
        self._wake.set()

    def look(self) -> None:
        """Judge what has arrived, without waiting."""
        with self._lock:
            arrived = [entry for entry in self._waiting if int(entry[0][0]) >= 0]
            self._waiting = [entry for entry in self._waiting if entry not in arrived]
        for count, rows, where in arrived:
            marked = int(count[0])
            watch.marked += 1
            step = contract.StepView(sequences=[], mask=[1] * marked, rows=rows)
            found = [v for v in contract.check(step) if v.invariant == "mask-rows"]
            watch.tell(found, where)

    def _poll(self) -> None:
        while True:
            self._wake.wait()
            self.look()
            with self._lock:
                if not self._waiting:
                    self._wake.clear()
            time.sleep(_POLL_S)


class Watch:
    """What was seen so far."""

    def __init__(self) -> None:
        self.history = contract.StepHistory()
        self.steps = self.marked = self.violations = 0
        self.missing: set[str] = set()

    def tell(self, found: Sequence[Any], where: str) -> None:
        for violation in found:
            self.violations += 1
            say(f"contract violated: {violation} ({where})")

    def absent(self, what: str) -> None:
        if what not in self.missing:
            self.missing.add(what)
            say(f"this release has no {what}; what needs it is not checked")

    def stepped(self) -> None:
        self.steps += 1
        if self.steps & (self.steps - 1) == 0:  # 1, 2, 4, 8, …
            say(
                f"{self.steps} steps and {self.marked} masks seen, {self.violations} "
                "violations"
            )


watch = Watch()
counts: Counts | None = None


def rows_of(embeddings: Any) -> tuple[int, int]:
    """Rows and width of nested embeddings, by their shapes alone."""
    if hasattr(embeddings, "shape"):
        rows = 1
        for size in embeddings.shape[:-1]:
            rows *= int(size)
        return rows, int(embeddings.shape[-1])
    parts = [rows_of(part) for part in embeddings]
    return sum(rows for rows, _ in parts), parts[0][1] if parts else 0


def _watch_merge(module: ModuleType) -> None:
    """In the order of the stream, just before the embeddings are put in."""
    original = getattr(module, _MERGE, None)
    if original is None:
        watch.absent(f"{module.__name__}.{_MERGE}")
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def merge(*args: Any, **kwargs: Any) -> Any:
        global counts
        given = signature.bind(*args, **kwargs).arguments
        rows, width = rows_of(given["multimodal_embeddings"])
        if rows:
            hidden = int(given["inputs_embeds"].shape[-1])
            shapes = contract.StepView(
                sequences=[], rows=rows, width=width, hidden_size=hidden
            )
            watch.tell(contract.check(shapes), f"step {watch.steps}")
            counts = counts or Counts()
            counts.add(
                given["is_multimodal"], rows, f"step {watch.steps}, on the device"
            )
        return original(*args, **kwargs)

    setattr(module, _MERGE, merge)


def view(runner: Any, scheduled: dict[str, int], total: int) -> Any:
    """The step that has just been prepared, from the runner's host buffers."""
    batch = runner.input_batch
    names = list(batch.req_ids)
    starts = [int(n) for n in batch.num_computed_tokens_cpu[: len(names)]]
    ends = [
        start + int(scheduled[name]) for start, name in zip(starts, names, strict=True)
    ]
    table = getattr(batch.block_table, "block_tables", [batch.block_table])[0]
    size = int(table.block_size)
    held = _host(table, "block_table")
    tables = [
        None if held is None else held[row, : -(-end // size)].tolist()
        for row, end in enumerate(ends)
    ]
    # Releases that compute the slots on the device leave the host's side of the buffer
    # unwritten.
    slots = (
        _host(table, "slot_mapping") if hasattr(table, "compute_slot_mapping") else None
    )
    starts_q, lens = _host(runner, "query_start_loc"), _host(runner, "seq_lens")
    if lens is not None and lens[: len(names)].tolist() != ends:
        said = f"seq_lens are {lens[: len(names)].tolist()}, not {ends}"
        watch.tell([contract.Violation("lengths", said)], f"step {watch.steps}")
    return contract.StepView(
        sequences=[
            contract.SequenceView(name, start, end, blocks)
            for name, start, end, blocks in zip(
                names, starts, ends, tables, strict=True
            )
        ],
        block_size=size,
        num_blocks=int(getattr(runner.cache_config, "num_gpu_blocks", 0) or 0),
        num_tokens=total,
        positions=_cut(_host(runner, "positions"), total),
        slot_mapping=_cut(slots, total),
        cu_seqlens_q=_cut(starts_q, len(names) + 1),
    )


def _host(owner: Any, name: str) -> Any:
    """The numpy side of a CpuGpuBuffer."""
    found = getattr(getattr(owner, name, None), "np", None)
    if found is None:
        watch.absent(f"host side of {name}")
    return found


def _cut(values: Any, count: int) -> list[int] | None:
    return None if values is None else values[:count].tolist()


def watch_runner(module: ModuleType) -> None:
    cls: Any = module.GPUModelRunner
    for name in ("_prepare_inputs", "execute_model"):
        if not hasattr(cls, name):
            watch.absent(f"GPUModelRunner.{name}")
            return
    prepare, execute = cls._prepare_inputs, cls.execute_model

    @functools.wraps(prepare)
    def prepare_inputs(
        self: Any, scheduler_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = prepare(self, scheduler_output, *args, **kwargs)
        try:
            scheduled = scheduler_output.num_scheduled_tokens
            step = view(
                self, scheduled, int(scheduler_output.total_num_scheduled_tokens)
            )
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            watch.absent(f"step as it is read here ({type(error).__name__}: {error})")
            return result
        for name in [*scheduler_output.finished_req_ids, *_resumed(scheduler_output)]:
            watch.history.forget(name)
        watch.tell(watch.history.check(step), f"step {watch.steps}")
        return result

    @functools.wraps(execute)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch.stepped()
        return execute(self, *args, **kwargs)

    cls._prepare_inputs, cls.execute_model = prepare_inputs, _told_first(execute_model)
    if hasattr(cls, "sample_tokens"):
        cls.sample_tokens = _told_first(cls.sample_tokens)
    say("watching GPUModelRunner")


def _told_first(original: Any) -> Any:
    """What the device has counted is told before the error that it leads to."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException:
            if counts is not None:
                counts.look()
            raise

    return call


def _resumed(scheduler_output: Any) -> list[str]:
    """Requests that start again after a preemption."""
    cached = scheduler_output.scheduled_cached_reqs
    if hasattr(cached, "resumed_req_ids"):
        return list(cached.resumed_req_ids)
    flags = getattr(cached, "resumed_from_preemption", [])
    return [name for name, flag in zip(cached.req_ids, flags, strict=False) if flag]


after_import("vllm.model_executor.models.utils", _watch_merge)
after_import("vllm.v1.worker.gpu_model_runner", watch_runner)
