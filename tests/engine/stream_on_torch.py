"""Run by test_chunked_mm.py in an engine's environment: the emulated stream on torch
itself.

The last line printed is a JSON object: name of a check, and whether it holds.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from mmrepro_stream.dispatch import Marks, StreamMode, key, span
from mmrepro_stream.queue import DeviceError, Stream
from mmrepro_stream.vllm_cpu import _as_device
from mmrepro_stream.watch import Watch


class Rig:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.watch = Watch(self.lines.append)
        self.marks = Marks()
        self.stream = Stream(_as_device)
        self.mode = StreamMode(self.stream, self.marks, self.watch)

    def device(self, *values: float) -> torch.Tensor:
        return self.marks.device(torch.tensor(values, dtype=torch.float32))

    def pinned(self, *values: float) -> torch.Tensor:
        return self.marks.pinned(torch.tensor(values, dtype=torch.float32))


def program(x: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A little of all that a model does: views, matrix products, writes in place,
    reductions."""
    hidden = torch.nn.functional.linear(x, weight).view(2, -1, 4)
    hidden = torch.nn.functional.softmax(hidden + hidden.mean(-1, keepdim=True), dim=-1)
    hidden[:, 0] = 1.5
    flat = hidden.reshape(-1, 4).clone()
    flat.masked_scatter_(mask.unsqueeze(-1), torch.ones(int(mask.numel()), 4))
    parts = torch.cat(list(flat.split([2, 4])))
    return torch.nn.functional.silu(parts).mul_(2).sum(dim=0).argsort()


def same_result(seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)
    x, weight = (
        torch.randn(6, 8, generator=generator),
        torch.randn(4, 8, generator=generator),
    )
    mask = torch.rand(6, generator=generator) > 0.5
    expected = program(x.clone(), weight, mask)
    rig = Rig()
    for tensor in (x, weight, mask):
        rig.marks.device(tensor)
    with torch.inference_mode(), rig.mode:
        result = program(x, weight, mask)
    late = rig.stream.done < rig.stream.launched
    rig.stream.wait()
    return late and rig.marks.on_device(result) and torch.equal(result, expected)


def copies() -> dict[str, bool]:
    rig = Rig()
    host, target = rig.pinned(1, 2, 3), rig.device(0, 0, 0)
    pageable, staged = torch.tensor([1.0]), rig.device(0)
    with torch.inference_mode(), rig.mode:
        target[:2].copy_(host[:2], non_blocking=True)
        staged.copy_(pageable, non_blocking=True)
        host[1:] = 9
        pageable[0] = 9
        before = rig.stream.done == 0
        read = target[1].item()
    found = {
        "a copy from pinned memory reads it when its turn comes": before and read == 9,
        "a copy from other memory reads it at the launch": staged.tolist() == [1.0],
        "the write under the queued copy is seen": rig.watch.overwrites == 1,
    }
    ordered = Rig()
    host, target = ordered.pinned(1, 2, 3), ordered.device(0, 0, 0)
    with torch.inference_mode(), ordered.mode:
        target.copy_(host, non_blocking=True)
        ordered.stream.wait()
        host[:] = 9
    found["a write after the wait is none"] = (
        ordered.watch.overwrites == 0
        and target.tolist()
        == [
            1.0,
            2.0,
            3.0,
        ]
    )
    return found


def waiting() -> dict[str, bool]:
    rig = Rig()
    value = rig.device(1, 0, 2)
    with torch.inference_mode(), rig.mode:
        doubled = value * 2
        view = doubled[1:].view(2, 1)
        queued = rig.stream.done == 0
        places = doubled.nonzero()
        waited = rig.stream.done == rig.stream.launched
        out = doubled.to("cpu", non_blocking=True)
        blocking = torch.zeros(3)
        blocking.copy_(doubled)
    return {
        "views and arithmetic do not wait": queued and span(view) == (1, 3),
        "a shape that depends on values waits": waited
        and places.flatten().tolist() == [0, 2],
        "a blocking copy to the host waits": blocking.tolist() == [2.0, 0.0, 4.0],
        "one storage, one key": key(view) == key(doubled) and rig.marks.on_device(out),
    }


def errors() -> dict[str, bool]:
    rig = Rig()
    rows = rig.device(0, 0, 0, 0)
    mask = rig.marks.device(torch.tensor([True, True, True, True]))
    launched = failed = False
    with torch.inference_mode(), rig.mode:
        rows.masked_scatter_(mask, torch.ones(2))
        launched = True
        try:
            rows.sum().item()
        except DeviceError as error:
            failed = "number of ones in mask" in str(error)
    return {"an error on the device shows at the next wait": launched and failed}


def main() -> None:
    found: dict[str, Any] = {
        "the same result, later": all(same_result(n) for n in range(20))
    }
    for check in (copies, waiting, errors):
        found |= check()
    print(json.dumps(found))


main()
