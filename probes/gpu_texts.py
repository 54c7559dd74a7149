"""What ``nvidia-smi`` printed: its table, ``-q``, ``--query-gpu`` and
``--query-compute-apps`` as CSV, ``-L``.

Alone::

    from mmrepro.probes.gpu_texts import parse_nvidia_smi
    print(parse_nvidia_smi(Path("gpu.txt").read_text().splitlines()))

The forms are those of drivers 450 to 580.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from mmrepro.base.machine import short_uuid
from mmrepro.base.records import GpuProcess
from mmrepro.probes.data import GpuData, GpuDevice

_MAX_GPUS = 256
_MAX_PROCESSES = 1024
_MAX_CHARS = 2000
_MIB = 1 << 20

_HEAD = re.compile(
    r"NVIDIA-SMI (?P<smi>\S+) +(?:KMD Version: \S+ +"
    r"|Driver Version: (?P<driver>\S+) +)+"
    r"CUDA (?:UMD )?Version: (?P<cuda>\S+)"
)
_ROW = re.compile(r"\| +(?P<index>\d+) +(?P<name>\S.*?) +(?:On|Off|N/A) +\| ")
_USE = re.compile(r"(?P<used>\d+)MiB */ *(?P<total>\d+)MiB *\| *(?P<pct>\d+%|N/A)")
_TASK = re.compile(
    r"\| +(?P<gpu>\d+) +(?:(?:N/A|\d+) +(?:N/A"
    r"|\d+) +)?(?P<pid>\d+) +(?P<type>[CGM+]+) +"
    r"(?P<name>\S.*?) +(?:(?P<used>\d+)MiB|N/A) *\|"
)
_MIG = re.compile(r"\| +(?P<state>Enabled|Disabled)\*? *\|")
_LISTED = re.compile(
    r"GPU (?P<index>\d+): (?P<name>.+?) \(UUID: (?P<uuid>GPU-[0-9a-f-]+)\)"
)
_QUERY = "NVSMI LOG"
_BUS = re.compile(r"GPU (?P<bus>[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.\d)")
_PAIR = re.compile(r"(?P<indent> *)(?P<key>\S.*?) +: (?P<value>.*)")
_CSV_KEYS = (
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "driver_version",
    "pid",
    "used_gpu_memory",
    "used_memory",
    "gpu_name",
    "gpu_uuid",
    "process_name",
)


@dataclass
class _SmiGpu:
    """What is read of one GPU; memory in MiB."""

    index: int
    name: str = ""
    uuid: str = ""
    total: int = 0
    used: int = 0
    pct: list[int] = field(default_factory=list)
    mig: bool | None = None
    processes: list[GpuProcess] = field(default_factory=list)


class _Smi:
    """What is read of one text."""

    def __init__(self) -> None:
        self.gpus: dict[int, _SmiGpu] = {}
        self.driver = ""
        self.cuda = ""

    def gpu(self, index: int) -> _SmiGpu:
        """Return the GPU of that number; one beyond the bound is not kept."""
        if index not in self.gpus and len(self.gpus) >= _MAX_GPUS:
            return _SmiGpu(index)
        return self.gpus.setdefault(index, _SmiGpu(index))

    def process(
        self, gpu: _SmiGpu, pid: str, name: str, used: str | None, kind: str = "C"
    ) -> None:
        """Add a process; its type has a C where it computes."""
        if len(gpu.processes) >= _MAX_PROCESSES:
            return
        memory = _number(used)
        process = GpuProcess(
            pid=_number(pid) or None,
            name=name[:200],
            used_bytes=None if memory is None else memory * _MIB,
            graphics="C" not in kind,
        )
        gpu.processes.append(process)

    def data(self) -> GpuData:
        devices: list[GpuDevice] = []
        for _, gpu in sorted(self.gpus.items()):
            device = GpuDevice(
                index=gpu.index,
                name=gpu.name,
                uuid=short_uuid(gpu.uuid),
                driver=self.driver,
                cuda=self.cuda,
                memory_total_bytes=gpu.total * _MIB,
                memory_used_bytes=gpu.used * _MIB,
                utilization_pct=gpu.pct,
                processes=gpu.processes,
                mig=gpu.mig,
            )
            devices.append(device)
        return GpuData(devices=devices)


def parse_nvidia_smi(lines: Iterable[str]) -> GpuData | None:
    """Read what ``nvidia-smi`` printed, of any of its forms; None: it is not that.
    Never raises.

    Of a table that was printed again and again (``-l``, ``dmon`` not) each GPU's last
    memory and all readings of its utilisation are kept."""
    kept = [line[:_MAX_CHARS].rstrip() for line in lines if line.strip()]
    for form in (_table, _query, _csv, _list):
        smi = form(kept)
        if smi is not None and smi.gpus:
            return smi.data()
    return None


def _table(lines: list[str]) -> _Smi | None:
    """Read the table; a GPU has two or three rows of it, and processes come below."""
    smi = _Smi()
    current: _SmiGpu | None = None
    in_processes = False
    for line in lines:
        line = line.strip()
        if match := _HEAD.search(line):
            # A table that is printed again: its processes replace those before.
            smi.driver = match["driver"] or match["smi"]
            smi.cuda = match["cuda"]
            current = None
            in_processes = False
            for gpu in smi.gpus.values():
                gpu.processes.clear()
        elif not smi.driver:
            continue
        elif "Processes:" in line:
            in_processes = True
        elif in_processes:
            if match := _TASK.search(line):
                gpu = smi.gpu(int(match["gpu"]))
                pid, name = match["pid"], match["name"]
                smi.process(gpu, pid, name, match["used"], match["type"])
        elif match := _ROW.match(line):
            current = smi.gpu(int(match["index"]))
            current.name = match["name"].removesuffix("...").rstrip()
        elif current is not None:
            _row_of_gpu(current, line)
    return smi if smi.driver else None


def _row_of_gpu(gpu: _SmiGpu, line: str) -> None:
    """Read a further row of a GPU in the table."""
    if match := _USE.search(line):
        gpu.used = int(match["used"])
        gpu.total = int(match["total"])
        if match["pct"] != "N/A":
            gpu.pct.append(int(match["pct"][:-1]))
    elif match := _MIG.search(line):
        gpu.mig = match["state"] == "Enabled"


def _query(lines: list[str]) -> _Smi | None:
    """Read ``nvidia-smi -q``: keys below headings, by indentation; GPUs in the order of
    their buses."""
    if not any(_QUERY in line for line in lines[:20]):
        return None
    smi = _Smi()
    gpu: _SmiGpu | None = None
    heading = ""
    order: dict[str, int] = {}
    process: dict[str, str] = {}

    def end_process() -> None:
        if gpu is not None and process:
            kind = process.get("Type", "C")
            used = process.get("Used GPU Memory")
            smi.process(gpu, process["Process ID"], process.get("Name", ""), used, kind)
        process.clear()

    for line in lines:
        if _QUERY in line:
            heading = ""
        elif match := _BUS.fullmatch(line.strip()):
            end_process()
            # It has no number here; a bus that comes again is the same GPU.
            gpu = smi.gpu(order.setdefault(match["bus"], len(order)))
            heading = ""
        elif pair := _PAIR.fullmatch(line):
            key, value = pair["key"], pair["value"].strip()
            if gpu is None:
                if key == "Driver Version":
                    smi.driver = value
                elif key == "CUDA Version":
                    smi.cuda = value
            elif key == "Process ID":
                end_process()
                process[key] = value
            elif process:
                process[key] = value
            else:
                _of_gpu(gpu, heading, key, value)
        else:
            end_process()
            heading = line.strip()
    end_process()
    return smi


def _of_gpu(gpu: _SmiGpu, heading: str, key: str, value: str) -> None:
    """Keep a value of ``nvidia-smi -q``; a key means something below its heading
    only."""
    number = _number(value)
    if key == "Product Name":
        gpu.name = value
    elif key == "GPU UUID":
        gpu.uuid = value
    elif heading == "MIG Mode":
        if key == "Current" and value in ("Enabled", "Disabled"):
            gpu.mig = value == "Enabled"
    elif number is None:
        return
    elif heading == "FB Memory Usage":
        if key == "Total":
            gpu.total = number
        elif key == "Used":
            gpu.used = number
    elif heading == "Utilization" and key in ("Gpu", "GPU"):
        gpu.pct.append(number)


def _csv(lines: list[str]) -> _Smi | None:
    """Read one or several tables with a header line; without one, no column has a
    meaning."""
    smi = _Smi()
    header: list[str] = []
    by_uuid: dict[str, int] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        names = [cell.split(" [")[0] for cell in cells]
        known = set(names) & set(_CSV_KEYS)
        if names[0] and len(known) >= min(2, len(names)):
            header = names
            continue
        if not header or len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        if "pid" in row:
            _csv_process(smi, row, by_uuid)
        else:
            _csv_gpu(smi, row, by_uuid)
    return smi if header else None


def _csv_process(smi: _Smi, row: dict[str, str], by_uuid: dict[str, int]) -> None:
    """Read a row of ``--query-compute-apps``."""
    uuid = row.get("uuid") or row.get("gpu_uuid") or row.get("gpu_bus_id", "")
    gpu = smi.gpu(by_uuid.setdefault(uuid, len(by_uuid)))
    used = row.get("used_gpu_memory") or row.get("used_memory")
    name = row.get("process_name") or row.get("name", "")
    smi.process(gpu, row["pid"], name, used)


def _csv_gpu(smi: _Smi, row: dict[str, str], by_uuid: dict[str, int]) -> None:
    """Read a row of ``--query-gpu``; without its number, GPUs are told apart by what
    else the table has of them."""
    uuid = row.get("uuid") or row.get("gpu_uuid") or ""
    bus = uuid or row.get("pci.bus_id") or row.get("gpu_bus_id") or ""
    number = _number(row.get("index"))
    if number is not None:
        by_uuid.setdefault(uuid, number)
    elif bus:
        number = by_uuid.setdefault(bus, len(by_uuid))
    gpu = smi.gpu(number or 0)
    gpu.name = row.get("name") or row.get("gpu_name") or gpu.name
    gpu.uuid = uuid or gpu.uuid
    smi.driver = row.get("driver_version", smi.driver)
    gpu.used = _number(row.get("memory.used")) or gpu.used
    gpu.total = _number(row.get("memory.total")) or gpu.total
    pct = _number(row.get("utilization.gpu"))
    if pct is not None:
        gpu.pct.append(pct)
    mode = row.get("mig.mode.current")
    if mode in ("Enabled", "Disabled"):
        gpu.mig = mode == "Enabled"


def _list(lines: list[str]) -> _Smi | None:
    """Read ``nvidia-smi -L``."""
    smi = _Smi()
    for line in lines:
        match = _LISTED.match(line.strip())
        if match:
            gpu = smi.gpu(int(match["index"]))
            gpu.name = match["name"]
            gpu.uuid = match["uuid"]
    return smi


def _number(text: str | None) -> int | None:
    """Return a number, with or without its unit; None: it is none, such as N/A."""
    match = re.match(r"(\d{1,12})(?:\.\d+)?(?: ?(?:MiB|%))?$", (text or "").strip())
    return int(match[1]) if match else None
