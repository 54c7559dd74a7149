"""The stream under vLLM's CPU model runner (written against 0.12.0 to 0.14.0, 0.23.0,
0.33.0)."""

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mmrepro_stream.dispatch import Marks, StreamMode
from mmrepro_stream.queue import Event, Stream
from mmrepro_stream.watch import Watch

_PREFIX = "mmrepro-stream: "
_ON_DEVICE = ("positions", "is_padding", "seq_lens", "num_computed_tokens")
"""Tensors that a runner of 0.22.0 and later makes on the device, without a host's
side."""


def tell(text: str) -> None:
    print(_PREFIX + text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _as_device() -> Iterator[None]:
    """Work that runs now must not be queued again, whatever the host is just doing."""
    with _disable_current_modes(), torch.inference_mode():
        yield


class _CudaStream:
    """In place of ``torch.cuda.Stream``: all streams are the one queue, more order than
    a GPU."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def wait_stream(self, other: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def synchronize(self) -> None:
        _DEVICE.stream.wait()


class Device:
    """The one emulated device of a process."""

    def __init__(self) -> None:
        self.watch = Watch(tell)
        self.marks = Marks()
        self.running = self.watch.step
        """The step whose work the device is doing."""
        self.stream = Stream(
            _as_device, lambda error: self.watch.failed(self.running, error)
        )
        self.mode = StreamMode(self.stream, self.marks, self.watch)

    # ------------------------------------------------------------------ marking

    def mark_buffer(self, name: str, value: Any) -> None:
        """A pair of host and device tensors, which the CPU runner makes one and the
        same."""
        if value.cpu.data_ptr() == value.gpu.data_ptr():
            value.gpu = value.cpu.clone()
        self.marks.device(value.gpu)
        self.marks.pinned(value.cpu)
        self.watch.names[int(value.cpu.untyped_storage()._cdata)] = name

    def mark_runner(self, runner: Any, buffer_type: type) -> None:
        for name, value in vars(runner).items():
            for index, item in enumerate(
                value if isinstance(value, list | tuple) else [value]
            ):
                if isinstance(item, buffer_type):
                    where = (
                        f"{name}[{index}].cpu" if item is not value else f"{name}.cpu"
                    )
                    self.mark_buffer(where, item)
        for name in _ON_DEVICE:
            if isinstance(value := getattr(runner, name, None), torch.Tensor):
                self.marks.device(value)
        batch = runner.input_batch
        for name, host in list(vars(batch).items()):
            if not name.endswith("_cpu_tensor") or not isinstance(host, torch.Tensor):
                continue
            self.marks.pinned(host)
            device = getattr(batch, name.removesuffix("_cpu_tensor"), None)
            if isinstance(device, torch.Tensor):
                if device.data_ptr() == host.data_ptr():
                    device = device.clone()
                    setattr(batch, name.removesuffix("_cpu_tensor"), device)
                self.marks.device(device)
        for number, table in enumerate(batch.block_table.block_tables):
            for name, value in vars(table).items():
                if isinstance(value, buffer_type):
                    self.mark_buffer(f"block_tables[{number}].{name}.cpu", value)

    def mark_model(self, runner: Any) -> None:
        for tensor in (*runner.model.parameters(), *runner.model.buffers()):
            self.marks.device(tensor.data)
        for tensor in getattr(runner, "kv_caches", ()):
            self.marks.device(tensor)

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        """The host begins a step; the device will, when it gets there.

        Steps that it has yet to arrive at are queued themselves: alone they are no
        work."""
        queued = self.stream.launched - self.stream.done
        step = self.watch.begin(
            busy=queued > self.watch.step.number - self.running.number
        )

        def arrive() -> None:
            self.watch.ended(self.running)
            self.running = step

        self.stream.launch(arrive)

    def look_at_mask(
        self, rows: int, mask: torch.Tensor, prepared: torch.Tensor
    ) -> None:
        """Once the device has copied ``mask``, hold it against what the host
        ``prepared``."""
        step = self.watch.step
        step.embeddings = rows

        def compare() -> None:
            differing = int((mask != prepared).sum())
            self.watch.mask_read(step, int(prepared.sum()), int(mask.sum()), differing)

        self.stream.launch(compare)


_DEVICE = Device()


def install(runner_module: ModuleType) -> None:
    """Put the device under ``vllm.v1.worker.cpu_model_runner``, which was just
    imported."""
    import vllm
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends import cpu_attn
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.utils import CpuGpuBuffer

    runner: Any = runner_module.CPUModelRunner
    if not hasattr(runner, "_gather_mm_embeddings") or not hasattr(
        runner, "_postprocess_tensors"
    ):
        raise RuntimeError(
            f"vLLM {vllm.__version__} is not known to the emulated stream"
        )
    _events_and_streams(runner_module)
    _host_reads()
    runner._postprocess_tensors = lambda self: _DEVICE.mark_runner(self, CpuGpuBuffer)
    runner.execute_model = _in_stream(runner.execute_model, CpuGpuBuffer, begins=True)
    runner.sample_tokens = _in_stream(runner.sample_tokens, CpuGpuBuffer, begins=False)
    runner._gather_mm_embeddings = _watched(runner._gather_mm_embeddings)
    # The operator that hides attention reads the forward context, gone when queued work
    # runs.
    CpuPlatform.opaque_attention_op = classmethod(lambda cls: False)
    # A CPU has an operator of its own for it from 0.32.0 on: its shapes are known when
    # it has run.
    Sampler.greedy_sample = staticmethod(lambda logits: logits.argmax(dim=-1).view(-1))
    _metadata_from_host(cpu_attn.CPUAttentionMetadataBuilder)
    tell(f"installed on vLLM {vllm.__version__}")


def _events_and_streams(runner_module: ModuleType) -> None:
    Event.stream = _DEVICE.stream
    only = _CudaStream()
    torch.Event = Event
    torch.cuda.Event = Event
    torch.cuda.Stream = _CudaStream
    torch.cuda.current_stream = lambda *device: only
    torch.cuda.default_stream = lambda *device: only
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    # The CPU runner would put events and streams without effect in their place.
    runner_module._torch_cuda_wrapper = contextlib.nullcontext  # type: ignore[attr-defined]


def _host_reads() -> None:
    """Reads that do not pass the dispatcher: the host waits for the device first."""

    def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: torch.Tensor, *args: Any, **options: Any) -> Any:
            if _DEVICE.marks.on_device(self):
                _DEVICE.stream.wait()
            return original(self, *args, **options)

        return read

    for name in ("tolist", "numpy", "__array__"):
        setattr(torch.Tensor, name, waiting(getattr(torch.Tensor, name)))


def _in_stream(original: Callable[..., Any], buffer_type: type, *, begins: bool) -> Any:
    def run(self: Any, *args: Any, **options: Any) -> Any:
        if not getattr(self, "_mmrepro_marked", False):
            self._mmrepro_marked = (
                True  # buffers may have been made anew since the start
            )
            _DEVICE.mark_runner(self, buffer_type)
            _DEVICE.mark_model(self)
        if begins:
            _DEVICE.step()
        with _DEVICE.mode:
            return original(self, *args, **options)

    return run


def _watched(original: Callable[..., Any]) -> Any:
    """The mask of image rows: what the host wrote, against what the device will
    read."""

    def gather(self: Any, *args: Any, **options: Any) -> Any:
        embeddings, mask = original(self, *args, **options)
        rows = sum(int(e.shape[0]) for e in embeddings)
        buffers = getattr(self, "is_mm_embed_buffers", None)
        buffer = (
            buffers[self.is_mm_embed_idx]
            if buffers
            else getattr(self, "is_mm_embed", None)
        )
        # 0.22.0 keeps no buffer: it makes a mask for each step
        # (v1/worker/gpu_model_runner.py).
        prepared = (mask if buffer is None else buffer.cpu[: mask.shape[0]]).clone()
        _DEVICE.look_at_mask(rows, mask, prepared)
        return embeddings, mask

    return gather


def _metadata_from_host(builder: Any) -> None:
    """The CPU's attention reads lengths on the host; there, a GPU's kernels read the
    device's.

    vLLM keeps both, so the host's are given to it, and nothing waits that would not on
    a GPU."""
    original = builder.build

    def build(
        self: Any,
        common_prefix_len: int,
        common_attn_metadata: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        metadata = copy.copy(common_attn_metadata)
        # 0.32.0 keeps an upper bound alone, which is exact without drafts
        # (attention/backend.py).
        kept = ("_seq_lens_cpu", "seq_lens_cpu", "seq_lens_cpu_upper_bound")
        lengths = (getattr(metadata, name, None) for name in kept)
        metadata.seq_lens = next(one for one in lengths if one is not None).clone()
        metadata.query_start_loc = metadata.query_start_loc_cpu.clone()
        return original(self, common_prefix_len, metadata, *args, **options)

    builder.build = build
