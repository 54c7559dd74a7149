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

from mmrepro.base.machine.nvml import short_uuid
from mmrepro.base.records import GpuProcess
from mmrepro.probes.data import GpuData, GpuDevice

MAX_GPUS = 256
MAX_PROCESSES = 1024
MAX_CHARS = 2000
MIB = 1 << 20

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
class _Gpu:
    index: int
    name: str = ""
    uuid: str = ""
    total: int = 0
    used: int = 0
    pct: list[int] = field(default_factory=list)
    mig: bool | None = None
    processes: list[GpuProcess] = field(default_factory=list)


class _Smi:
    def __init__(self) -> None:
        self.gpus: dict[int, _Gpu] = {}
        self.driver = self.cuda = ""
        self.used = self.lines = 0

    def gpu(self, index: int) -> _Gpu:
        if index not in self.gpus and len(self.gpus) >= MAX_GPUS:
            return _Gpu(index)
        return self.gpus.setdefault(index, _Gpu(index))

    def process(
        self, gpu: _Gpu, pid: str, name: str, used: str | None, kind: str = "C"
    ) -> None:
        number, memory = _number(pid), _number(used)
        if len(gpu.processes) < MAX_PROCESSES:
            gpu.processes.append(
                GpuProcess(
                    pid=number or None,
                    name=name[:200],
                    used_bytes=None if memory is None else memory * MIB,
                    graphics="C" not in kind,
                )
            )

    def data(self) -> GpuData:
        return GpuData(
            devices=[
                GpuDevice(
                    index=gpu.index,
                    name=gpu.name,
                    uuid=short_uuid(gpu.uuid),
                    driver=self.driver,
                    cuda=self.cuda,
                    memory_total_bytes=gpu.total * MIB,
                    memory_used_bytes=gpu.used * MIB,
                    utilization_pct=gpu.pct,
                    processes=gpu.processes,
                    mig=gpu.mig,
                )
                for _, gpu in sorted(self.gpus.items())
            ]
        )


def parse_nvidia_smi(lines: Iterable[str]) -> GpuData | None:
    """What ``nvidia-smi`` printed, of any of its forms; None: it is not that. Never
    raises.

    Of a table that was printed again and again (``-l``, ``dmon`` not) each GPU's last
    memory and all readings of its utilisation are kept."""
    kept = [line[:MAX_CHARS].rstrip() for line in lines if line.strip()]
    for form in (_table, _query, _csv, _list):
        smi = form(kept)
        if smi is not None and smi.gpus:
            return smi.data()
    return None


def _table(lines: list[str]) -> _Smi | None:
    smi, current, tasks = _Smi(), None, False
    for line in lines:
        line = line.strip()
        if match := _HEAD.search(line):
            smi.driver, smi.cuda = match["driver"] or match["smi"], match["cuda"]
            tasks, current = False, None
            for gpu in smi.gpus.values():
                gpu.processes.clear()
        elif not smi.driver:
            continue
        elif "Processes:" in line:
            tasks = True
        elif tasks:
            if match := _TASK.search(line):
                gpu = smi.gpu(int(match["gpu"]))
                smi.process(
                    gpu, match["pid"], match["name"], match["used"], match["type"]
                )
        elif match := _ROW.match(line):
            current = smi.gpu(int(match["index"]))
            current.name = match["name"].removesuffix("...").rstrip()
        elif current is not None and (match := _USE.search(line)):
            current.used, current.total = int(match["used"]), int(match["total"])
            if match["pct"] != "N/A":
                current.pct.append(int(match["pct"][:-1]))
        elif current is not None and (match := _MIG.search(line)):
            current.mig = match["state"] == "Enabled"
    return smi if smi.driver else None


def _query(lines: list[str]) -> _Smi | None:
    """``nvidia-smi -q``: keys below headings, by indentation; GPUs in the order of
    their buses."""
    if not any(_QUERY in line for line in lines[:20]):
        return None
    smi, gpu, heading = _Smi(), None, ""
    order: dict[str, int] = {}
    process: dict[str, str] = {}

    def end() -> None:
        if gpu is not None and process:
            kind = process.get("Type", "C")
            used = process.get("Used GPU Memory")
            smi.process(gpu, process["Process ID"], process.get("Name", ""), used, kind)
        process.clear()

    for line in lines:
        if _QUERY in line:
            heading = ""
        elif match := _BUS.fullmatch(line.strip()):
            end()
            gpu = smi.gpu(order.setdefault(match["bus"], len(order)))
            heading = ""
        elif pair := _PAIR.fullmatch(line):
            key, value = pair["key"], pair["value"].strip()
            if gpu is None:
                smi.driver = value if key == "Driver Version" else smi.driver
                smi.cuda = value if key == "CUDA Version" else smi.cuda
            elif key == "Process ID":
                end()
                process[key] = value
            elif process:
                process[key] = value
            else:
                _of_gpu(gpu, heading, key, value)
        else:
            end()
            heading = line.strip()
    end()
    return smi


def _of_gpu(gpu: _Gpu, heading: str, key: str, value: str) -> None:
    number = _number(value)
    if key == "Product Name":
        gpu.name = value
    elif key == "GPU UUID":
        gpu.uuid = value
    elif (
        heading == "MIG Mode" and key == "Current" and value in ("Enabled", "Disabled")
    ):
        gpu.mig = value == "Enabled"
    elif heading == "FB Memory Usage" and number is not None:
        gpu.total = number if key == "Total" else gpu.total
        gpu.used = number if key == "Used" else gpu.used
    elif heading == "Utilization" and key in ("Gpu", "GPU") and number is not None:
        gpu.pct.append(number)


def _csv(lines: list[str]) -> _Smi | None:
    """One or several tables with a header line; without one, no column has a
    meaning."""
    smi, header = _Smi(), list[str]()
    by_uuid: dict[str, int] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        names = [cell.split(" [")[0] for cell in cells]
        if len(set(names) & set(_CSV_KEYS)) >= min(2, len(names)) and names[0]:
            header = names
            continue
        if not header or len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        uuid = row.get("uuid") or row.get("gpu_uuid") or ""
        if "pid" in row:
            gpu = smi.gpu(
                by_uuid.setdefault(uuid or row.get("gpu_bus_id", ""), len(by_uuid))
            )
            used = row.get("used_gpu_memory") or row.get("used_memory")
            smi.process(
                gpu, row["pid"], row.get("process_name") or row.get("name", ""), used
            )
            continue
        bus = uuid or row.get("pci.bus_id") or row.get("gpu_bus_id") or ""
        number = _number(row.get("index"))
        if number is None:
            number = by_uuid.setdefault(bus, len(by_uuid)) if bus else 0
        else:
            by_uuid.setdefault(uuid, number)
        gpu = smi.gpu(number)
        gpu.name = row.get("name") or row.get("gpu_name") or gpu.name
        gpu.uuid = uuid or gpu.uuid
        smi.driver = row.get("driver_version", smi.driver)
        gpu.used = _number(row.get("memory.used")) or gpu.used
        gpu.total = _number(row.get("memory.total")) or gpu.total
        if (pct := _number(row.get("utilization.gpu"))) is not None:
            gpu.pct.append(pct)
        if (mode := row.get("mig.mode.current")) in ("Enabled", "Disabled"):
            gpu.mig = mode == "Enabled"
    return smi if header else None


def _list(lines: list[str]) -> _Smi | None:
    smi = _Smi()
    for line in lines:
        if match := _LISTED.match(line.strip()):
            gpu = smi.gpu(int(match["index"]))
            gpu.name, gpu.uuid = match["name"], match["uuid"]
    return smi


def _number(text: str | None) -> int | None:
    match = re.match(r"(\d{1,12})(?:\.\d+)?(?: ?(?:MiB|%))?$", (text or "").strip())
    return int(match[1]) if match else None
