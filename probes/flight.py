"""PyTorch's Flight Recorder: which rank entered which collective operation, by its dump
files.

ProcessGroupNCCL writes one file a rank when its watchdog finds a timeout, or when it is
asked to (TORCH_FR_DUMP_TEMP_FILE, before: TORCH_NCCL_DEBUG_INFO_TEMP_FILE, with the
rank's number at its end). Read here is the JSON form
(``torch._C._distributed_c10d._dump_fr_trace_json``, version 2.x); the pickled form is
not: a pickle runs code.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.flight import FlightProbe
    print(run_probe(FlightProbe([Path("trace_0"), Path("trace_1")]), Path("evidence"), 2).data)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from mmrepro.base.text import one_line
from mmrepro.probes.base import Probe, RawSink, Subject, Unavailable
from mmrepro.probes.data import FlightData, FlightRank

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108 - PyTorch's own default
MAX_BYTES = 64 << 20
_MAX_FILES = 64
_MAX_NUMBER = 1 << 62
_RANK = re.compile(r"(\d{1,6})(?:\.json)?$")
_PICKLE = b"\x80"


class FlightProbe(Probe[FlightData]):
    """Reads the files, and says of each that it cannot read why."""

    name = "flight"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        raise Unavailable("give it the dump files")

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)[:_MAX_FILES]

    def collect(self, sink: RawSink, deadline: float) -> FlightData:
        """Read the files. Raises Unavailable where none of them can be read."""
        data = FlightData()
        for file in self.files:
            try:
                data.ranks.append(read(file))
            except (OSError, ValueError, RecursionError) as error:
                data.unread[str(file)] = str(error)[:200]
        if not data.ranks:
            reasons = "; ".join(f"{name}: {why}" for name, why in data.unread.items())
            raise Unavailable(reasons or "no file was given")
        sink.write("flight.json", data.model_dump_json(indent=1))
        return data


def read(file: Path) -> FlightRank:
    """Read one rank's file. Raises OSError, ValueError: it is no whole dump in JSON."""
    with file.open("rb") as opened:
        raw = opened.read(MAX_BYTES + 1)
    if raw[:1] == _PICKLE:
        raise ValueError(
            "it is a pickle, which would run code: have it written as JSON"
        )
    if len(raw) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    document = json.loads(raw.decode("utf-8", "replace"))
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise ValueError("it has no list of entries")
    version = one_line(str(document.get("version", "")), 20)
    rank = FlightRank(rank=_rank_of(document, file), version=version)
    for entry in document["entries"]:
        _enter(rank, entry)
    return rank


def _rank_of(document: dict[str, Any], file: Path) -> int:
    """Return its rank, or that of its file's name. Raises
    ValueError."""
    number = document.get("rank")
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    match = _RANK.search(file.name)
    if match is None:
        raise ValueError("neither it nor its name has a rank")
    return int(match[1])


def _enter(rank: FlightRank, entry: Any) -> None:
    """Note the last collective of the entry's group. Raises ValueError."""
    if not isinstance(entry, dict) or entry.get("is_p2p") is True:
        return
    group = entry.get("process_group")
    sequence = entry.get("collective_seq_id")
    if not isinstance(group, list) or not group or not isinstance(sequence, int):
        raise ValueError("an entry has no group or no number")
    if isinstance(sequence, bool) or not 0 <= sequence <= _MAX_NUMBER:
        raise ValueError("the number of an entry is none")
    name = one_line(" ".join(str(part) for part in group), 60)
    if sequence < rank.entered.get(name, -1):
        return
    retired = entry.get("retired") is True
    rank.entered[name] = sequence
    rank.operation[name] = one_line(str(entry.get("profiling_name", "")), 60)
    rank.completed[name] = retired or entry.get("state") == "completed"
