"""The GPUs' utilisation and memory over the time of a step, as JSON lines."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mmrepro.incident.acceptance import GpuUse, Peak
from mmrepro.machine.files import open_plain
from mmrepro.machine.nvml import Nvml, NvmlAbsent

INTERVAL_S = 1.0


class Sample(NamedTuple):
    """One GPU at one moment; what NVML does not tell is None."""

    gpu: int
    utilisation_pct: float | None
    memory_bytes: float | None


Read = Callable[[], Sequence[Sample]]


@contextmanager
def nvml_samples() -> Iterator[Read]:
    """What NVML tells, which is opened once; where it is absent, nothing."""
    try:
        with Nvml() as nvml:
            yield lambda: [Sample(gpu, *told) for gpu, told in nvml.sample().items()]
    except NvmlAbsent:
        yield lambda: []


@contextmanager
def sampled(read: Read, file: Path, step: str, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Append a line for each GPU to ``file`` every ``interval_s`` seconds, while this lasts.

    A reading that fails is left out: the gap in the times tells.
    """
    over = threading.Event()
    handle = open_plain(file, os.O_WRONLY | os.O_APPEND)

    def look() -> None:
        with os.fdopen(handle, "a", encoding="utf-8") as lines:
            while True:
                at = datetime.now(UTC).isoformat(timespec="milliseconds")
                # Whatever a driver raises: this is beside the point of the step.
                with suppress(Exception):
                    for one in read():
                        line = {"at": at, "step": step, **one._asdict()}
                        lines.write(json.dumps(line) + "\n")
                lines.flush()
                if over.wait(interval_s):
                    return

    thread = threading.Thread(target=look, name="gpu-samples", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)


def used(file: Path) -> list[GpuUse]:
    """Least and most of each step and GPU, in the order of their first readings."""
    found: dict[tuple[str, int], list[dict[str, float | None]]] = {}
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    for line in lines:
        # The last line of a command that was killed is torn.
        with suppress(ValueError, LookupError, TypeError):
            one = json.loads(line)
            found.setdefault((one["step"], one["gpu"]), []).append(one)
    return [
        GpuUse(
            step=step,
            gpu=gpu,
            readings=len(readings),
            utilisation_pct=_peak(one.get("utilisation_pct") for one in readings),
            memory_bytes=_peak(one.get("memory_bytes") for one in readings),
        )
        for (step, gpu), readings in found.items()
    ]


def _peak(values: Iterable[float | None]) -> Peak | None:
    known = [value for value in values if value is not None]
    return Peak(least=min(known), most=max(known)) if known else None
