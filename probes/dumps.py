"""Files that people have beside a log: stacks, metrics, ``nvidia-smi``'s output, dumps
of requests.

Each is recognised by its contents and becomes the evidence that a probe of a live
server gives.

Alone::

    from mmrepro.probes.dumps import kind_of, read_dump
    path = Path("dump.txt")
    print(kind_of(path), read_dump(path).data)
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mmrepro.base.records import Moment
from mmrepro.base.units import size
from mmrepro.probes.base import Unavailable
from mmrepro.probes.data import (
    DumpKind,
    GpuData,
    MetricsData,
    RequestDumpData,
    StackSample,
    StacksData,
)
from mmrepro.probes.gpu_texts import parse_nvidia_smi
from mmrepro.probes.log_collectors import Bare
from mmrepro.probes.log_files import BROKEN, open_log
from mmrepro.probes.log_forms import read_line
from mmrepro.probes.log_lines import MAX_LINE_BYTES, clean
from mmrepro.probes.log_wraps import SAMPLE_LINES, Peeler
from mmrepro.probes.metrics import parse_metrics
from mmrepro.probes.request_dumps import is_pickle, read_requests
from mmrepro.probes.stack_texts import NEEDLES, StackReader, StackTexts
from mmrepro.probes.stacks import MAX_JSON_BYTES, parse_processes

HEAD_BYTES = 256 << 10
"""By which a file is recognised."""
MAX_BYTES = 64 << 20
"""Of a dump: py-spy writes some hundred kilobytes a process."""
MOST_BYTES = {DumpKind.METRICS: 32 << 20, DumpKind.NVIDIA_SMI: 8 << 20}
MAX_LOG_BYTES = 512 << 20
"""Of a log, from its end, in which stacks are looked for."""
CHUNK_BYTES = 1 << 20
MAX_RUN = 8 << 20
"""Of bytes without a line's end."""
KEPT_BYTES = 8 << 10
"""Before a line that shows that stacks begin: a process's title stands there."""


@dataclass(frozen=True)
class Dump:
    """One file. ``data`` is None where it could not be read; ``error`` says why."""

    file: Path
    kind: DumpKind
    data: StacksData | MetricsData | GpuData | RequestDumpData | None
    error: str = ""


_SMI_SIGNS = re.compile(
    r"NVIDIA-SMI \S+ +.*Version|=NVSMI LOG=|^GPU \d+: .* \(UUID: GPU-"
    r"|^(?:[a-z_.]+(?: \[\S+\])?, *)*"
    r"(?:utilization\.gpu|memory\.used|used_gpu_memory|used_memory)\b",
    re.MULTILINE,
)
_SMI_FAILED = re.compile(
    r"NVIDIA-SMI has failed because .*|Failed to initialize NVML: .*"
    r"|No devices were found"
    r"|Unable to determine the device handle for (?:GPU|gpu) ?.*"
)
_SMI_LINES = 12
_COMMENT = re.compile(r"# (?:HELP|TYPE) [a-zA-Z_:][\w:]*(?: |$)|# EOF$")
_SAMPLE = re.compile(
    r"[a-zA-Z_:][\w:]*(?:\{.*\})? +[-+]?(?:[0-9][-+0-9.eE]*|NaN|Inf)"
    r"(?: \d+(?:\.\d+)?)?(?: # \{.*)?$"
)
_METRIC_LINES = 400
_WATCHDOG_NAME = re.compile(r"VLLM_STACK_DUMP_for_(?P<name>.+)_(?P<pid>\d+)\.log")
_WATCHDOG_HEAD = re.compile(r"^(?:>>> )?Call stack dump #\d+ at ", re.MULTILINE)


def kind_of(path: Path) -> DumpKind | None:
    """What the file is by its beginning; None: a log, or anything else. Never
    raises."""
    try:
        head = _head(path)
    except (*BROKEN, Unavailable):
        return None
    return _kind(head)


def _kind(head: bytes) -> DumpKind | None:
    if is_pickle(head):
        return DumpKind.REQUESTS
    if b"\0" in head[:4096]:
        return None
    text = head.decode("utf-8", "replace")
    if _is_json_dump(text):
        return DumpKind.PY_SPY
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if _SMI_SIGNS.search("\n".join(lines[:_SMI_LINES])) or (
        len(lines) <= _SMI_LINES and any(map(_SMI_FAILED.fullmatch, lines))
    ):
        return DumpKind.NVIDIA_SMI
    if _is_metrics(lines[:_METRIC_LINES]):
        return DumpKind.METRICS
    if any(needle in text for needle in NEEDLES):
        found = _stacks(head)
        if found.whole and not _is_logged(head):
            if _WATCHDOG_HEAD.search(text):
                return DumpKind.WATCHDOG
            tools = [sample.tool for sample in found.samples]
            return DumpKind(max(set(tools), key=tools.count))
    return None


def _is_json_dump(text: str) -> bool:
    begun = text.lstrip()[:1] == "["
    return begun and all(
        f'"{key}"' in text for key in ("thread_name", "owns_gil", "frames")
    )


def _is_metrics(lines: list[str]) -> bool:
    samples = sum(_SAMPLE.match(line) is not None for line in lines)
    comments = sum(_COMMENT.match(line) is not None for line in lines)
    return samples > 0 and (samples + comments) * 10 >= len(lines) * 6


def read_dump(path: Path, kind: DumpKind | None = None) -> Dump:
    """Read one file as what it is. What is wrong with it is its ``error``; never
    raises.

    Raises:
        ValueError: it is no dump.
    """
    kind = kind or kind_of(path)
    if kind is None:
        raise ValueError(f"{path} is no dump")
    try:
        return Dump(path, kind, _data(path, kind))
    except Unavailable as error:
        return Dump(path, kind, None, str(error))
    except BROKEN as error:
        return Dump(path, kind, None, f"{path}: {error}")


def _data(
    path: Path, kind: DumpKind
) -> StacksData | MetricsData | GpuData | RequestDumpData:
    if kind is DumpKind.REQUESTS:
        return read_requests(path)
    raw = _head(path, MAX_BYTES + 1)
    most = MOST_BYTES.get(kind, MAX_BYTES)
    if len(raw) > most:
        raise Unavailable(f"{path} is larger than {size(most)}")
    text = raw.decode("utf-8", "replace")
    if kind is DumpKind.METRICS:
        samples, bad = parse_metrics(text)
        return MetricsData(url=str(path), samples=samples, bad_lines=bad)
    if kind is DumpKind.NVIDIA_SMI:
        if failed := _SMI_FAILED.search(text):
            raise Unavailable(f"nvidia-smi reports: {failed[0][:200]}")
        found = parse_nvidia_smi(text.splitlines())
        if found is None:
            raise Unavailable(f"{path} looks like nvidia-smi's output and names no GPU")
        return found
    taken = _written(path)
    if kind is DumpKind.PY_SPY and _is_json_dump(text):
        if len(raw) > MAX_JSON_BYTES:
            raise Unavailable(f"{path} is larger than {size(MAX_JSON_BYTES)}")
        return StacksData(samples=_json_samples(path, text, taken))
    named = _WATCHDOG_NAME.fullmatch(path.name)
    name = _watched(named["name"]) if named else ""
    pid = int(named["pid"]) if named and len(named["pid"]) < 10 else None
    return StacksData(
        samples=_stacks(raw, StackReader(taken=taken, name=name, pid=pid)).samples
    )


def text_of(path: Path) -> str:
    """The text of a dump that is one.

    Raises:
        OSError: it cannot be opened.
    """
    return _head(path, MAX_BYTES).decode("utf-8", "replace")


def _json_samples(path: Path, text: str, taken: Moment) -> list[StackSample]:
    try:
        processes = parse_processes(text)
    except ValueError as error:
        raise Unavailable(
            f"{path} is no whole JSON of py-spy: {error}"[:300]
        ) from error
    return [
        StackSample(
            pid=-number if process.pid is None else process.pid,
            taken=taken,
            blocking=True,
            threads=process.threads,
            title=process.title,
        )
        for number, process in enumerate(processes, 1)
        if process.threads
    ]


def _watched(name: str) -> str:
    """vLLM's watchdog is called ``engine_0`` in a core and ``worker_1`` in a worker
    (vllm/v1/ engine/core.py, v1/executor/multiproc_executor.py)."""
    kind, _, number = name.partition("_")
    role = {"engine": "EngineCore", "worker": "Worker"}.get(kind)
    return f"VLLM::{role}_{number}" if role else name


def _stacks(raw: bytes, reader: StackReader | None = None) -> StackTexts:
    """The stacks of a text that is a dump, without what a collector put before its
    lines."""
    reader = reader or StackReader()
    lines = raw.split(b"\n")
    peeler = Peeler()
    peeler.learn([line[:MAX_LINE_BYTES] for line in lines[:SAMPLE_LINES]])
    for number, line in enumerate(lines, 1):
        _feed(reader, number, peeler.peel(line), in_log=False)
    return reader.finish()


def _is_logged(head: bytes) -> bool:
    """Whether a line is a logger's: then it is a log that holds stacks."""
    lines = head.split(b"\n")
    peeler = Peeler()
    peeler.learn([line[:MAX_LINE_BYTES] for line in lines[:SAMPLE_LINES]])
    return any(
        read.engine or (read.time and read.level)
        for line in lines
        for bare in peeler.peel(line)
        if (read := read_line(clean(bare.text)))
    )


def _feed(
    reader: StackReader,
    number: int,
    bares: Iterable[Bare],
    *,
    in_log: bool,
    head: str = "",
) -> str:
    """Take the lines inside one. Returns what stands before the last one's message."""
    for bare in bares:
        line = read_line(clean(bare.text))
        before, head = head, line.line[: line.head]
        if in_log and line.form not in ("", "mark") and head != before:
            reader.leave()
        # What a client wrote is no stack, wherever an engine prints it.
        text = line.own[line.head :] if in_log else line.text
        reader.feed(number, text, name=line.process.partition(" pid=")[0], pid=line.pid)
    return head


def stacks_in_log(path: Path) -> StacksData | None:
    """Stacks that a log holds: SGLang's own py-spy dumps, faulthandler's last words,
    gdb's.

    None: there are none, or it cannot be read. Of a large plain file its end is looked
    at."""
    reader = StackReader(taken=_written(path))
    # What came before the damage counts.
    with contextlib.suppress(*BROKEN, Unavailable):
        peeler = Peeler()
        peeler.learn(_head(path).split(b"\n")[:SAMPLE_LINES])
        head = ""
        for number, line in _near_stacks(path):
            head = _feed(reader, number, peeler.peel(line), in_log=True, head=head)
    samples = reader.finish().samples
    return StacksData(samples=samples) if samples else None


def _near_stacks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of the parts of a log that hold stacks: blocks with a sign of
    them, and one block more."""
    needles = [needle.encode() for needle in NEEDLES]
    before: list[bytes] = []
    number, near = 0, False
    for block in _blocks(path):
        found = any(needle in block for needle in needles)
        if found or near:
            lines = [*before, *block.removesuffix(b"\n").split(b"\n")]
            yield from enumerate(lines, number - len(before) + 1)
            before = []
        else:
            before = block[-KEPT_BYTES:].split(b"\n")[1:-1]
        number += block.count(b"\n")
        near = found


def _blocks(path: Path) -> Iterator[bytes]:
    """Whole lines, a megabyte at a time; of a large plain file its end."""
    with open_log(path) as stream:
        length = path.stat().st_size
        if isinstance(stream, io.FileIO) and length > MAX_LOG_BYTES:
            stream.seek(length - MAX_LOG_BYTES)
        rest = b""
        while chunk := stream.read(CHUNK_BYTES):
            block = rest + chunk
            cut = block.rfind(b"\n") + 1 or (len(block) if len(block) > MAX_RUN else 0)
            if cut:
                yield block[:cut]
            rest = block[cut:]
        if rest:
            yield rest


def _head(path: Path, length: int = HEAD_BYTES) -> bytes:
    with open_log(path) as stream:
        parts, left = [], length
        while left > 0 and (part := stream.read(left)):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def _written(path: Path) -> Moment:
    """When the file was last written. Copying may change that: nothing is measured by
    it."""
    try:
        wall = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        wall = datetime.fromtimestamp(0, UTC)
    return Moment(wall=wall, mono=0.0)
