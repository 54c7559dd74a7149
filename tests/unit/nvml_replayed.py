"""NVML played back: an object like the module ``pynvml``, answering from a recorded
snapshot.

A snapshot holds each call's result or error::

    {"system": [CALL…], "devices": [{"index": 0, "calls": [CALL…], "mig": [{"index": 0, …}…]}…]}
    CALL: {"call": NAME, "extra": [ARGUMENT…], "result": … | "error": {"code": …, "text": …}}

``gpu``, ``mig`` and ``machine`` make one up in the same form.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED = {"code": 3, "text": "Not Supported"}
NOT_FOUND = {"code": 6, "text": "Not Found"}
GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's: ``value`` is the code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.value = code


class Replayed:
    """``nvmlInit`` fails with ``init``, if given; ``open`` counts inits less
    shutdowns."""

    NVMLError = NVMLError
    nvmlMemory_v2 = "v2"  # noqa: N815

    def __init__(
        self, snapshot: dict[str, Any], init: dict[str, Any] | None = None
    ) -> None:
        self.snapshot = snapshot
        self.init = init
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init:
            raise NVMLError(self.init["code"], self.init["text"])
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        device = self.snapshot["devices"][index]
        if "error" in device:
            raise NVMLError(device["error"]["code"], device["error"]["text"])
        return device

    def nvmlDeviceGetMigDeviceHandleByIndex(  # noqa: N802
        self, gpu: dict[str, Any], number: int
    ) -> dict[str, Any]:
        for one in gpu.get("mig", []):
            if one["index"] == number and "calls" in one:
                return one
        raise NVMLError(NOT_FOUND["code"], NOT_FOUND["text"])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(handle: dict[str, Any] | None = None, *extra: Any) -> Any:
            calls = self.snapshot["system"] if handle is None else handle["calls"]
            for one in calls:
                if one["call"] == name and tuple(one.get("extra", ())) == extra:
                    if "error" in one:
                        raise NVMLError(one["error"]["code"], one["error"]["text"])
                    return _friendly(one["result"])
            raise NVMLError(13, f"Function Not Found: {name}{extra}")

        return call


def _friendly(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{k: _friendly(v) for k, v in value.items()})
    if isinstance(value, list):
        return [_friendly(one) for one in value]
    return value


# ---------------------------------------------------------------- made up, no recording


def _call(
    name: str, result: Any = None, error: Any = None, extra: tuple[Any, ...] = ()
) -> Any:
    told = {"error": error} if error else {"result": result}
    return {"call": name, "extra": list(extra), **told}


def process(pid: int, gib: float | None = 1.0) -> dict[str, Any]:
    return {"pid": pid, "usedGpuMemory": None if gib is None else int(gib * GIB)}


def _held(uuid: str, name: str, total: float, used: float, processes: Any) -> list[Any]:
    memory = {"total": int(total * GIB), "used": int(used * GIB), "free": 0}
    return [
        _call("nvmlDeviceGetUUID", uuid),
        _call("nvmlDeviceGetName", name),
        _call("nvmlDeviceGetMemoryInfo", memory),
        _call("nvmlDeviceGetMemoryInfo", {**memory, "reserved": 0}, extra=("v2",)),
        _call("nvmlDeviceGetComputeRunningProcesses", list(processes)),
    ]


def gpu(
    index: int,
    *,
    name: str = "NVIDIA H100 80GB HBM3",
    uuid: str = "",
    used: float = 0.0,
    total: float = 80.0,
    utilisation: int | None = 0,
    processes: tuple[Any, ...] = (),
    graphics: tuple[Any, ...] = (),
    mode: int = 0,
    slices: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A GPU; ``slices``: MIG is on, and these are its devices."""
    uuid = uuid or f"GPU-{index:08d}-1111-2222-3333-444444444444"
    mig = slices is not None
    unsupported = utilisation is None or mig
    return {
        "index": index,
        "calls": [
            *_held(uuid, name, total, used, processes),
            _call("nvmlDeviceGetGraphicsRunningProcesses", list(graphics)),
            _call("nvmlDeviceGetUtilizationRates", error=NOT_SUPPORTED)
            if unsupported
            else _call(
                "nvmlDeviceGetUtilizationRates", {"gpu": utilisation, "memory": 0}
            ),
            _call("nvmlDeviceGetMigMode", [int(mig), int(mig)]),
            _call("nvmlDeviceGetMaxMigDeviceCount", 7),
            _call("nvmlDeviceGetComputeMode", mode),
        ],
        "mig": slices or [],
    }


def mig(
    index: int, uuid: str, *, used: float = 0.0, processes: tuple[Any, ...] = ()
) -> Any:
    """A MIG device as NVIDIA's MIG User Guide has it, 1g.10gb of an H100."""
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    calls = [
        *_held(uuid, name, 9.75, used, processes),
        _call("nvmlDeviceGetUtilizationRates", error=NOT_SUPPORTED),
    ]
    return {"index": index, "calls": calls}


def machine(
    *gpus: dict[str, Any], driver: str = "580.159.03", cuda: int = 13000
) -> Replayed:
    return Replayed(
        {
            "system": [
                _call("nvmlDeviceGetCount", len(gpus)),
                _call("nvmlSystemGetDriverVersion", driver),
                _call("nvmlSystemGetCudaDriverVersion", cuda),
            ],
            "devices": list(gpus),
        }
    )
