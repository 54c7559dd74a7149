"""The emulated device's queue and its watch: no torch, no engine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from mmrepro.reproducers import reproducer_path

sys.path.insert(0, str(reproducer_path("standins") / "emulated_stream"))

from mmrepro_stream.queue import DeviceError, Event, LazyExecutor, LazyFuture, Stream
from mmrepro_stream.watch import MAX_LINES, Watch


def test_work_waits_for_whoever_waits_for_it() -> None:
    stream, ran = Stream(), []
    for name in "abc":
        stream.launch(lambda name=name: ran.append(name))
    assert ran == []
    stream.wait(2)
    assert ran == ["a", "b"]
    stream.wait()
    assert ran == ["a", "b", "c"]


@given(st.lists(st.one_of(st.just("launch"), st.integers(0, 30)), max_size=60))
def test_order_is_kept_and_nothing_runs_early(actions: list[str | int]) -> None:
    """Whatever is launched and waited for: in order, all that was waited for, nothing
    more."""
    stream, ran, wanted = Stream(), [], 0
    for action in actions:
        if isinstance(action, int):
            position = min(action, stream.launched)
            stream.wait(position)
            wanted = max(wanted, position)
        else:
            number = stream.launched + 1
            assert stream.launch(lambda number=number: ran.append(number)) == number
        assert ran == list(range(1, wanted + 1))


def test_an_event_is_a_place_in_the_queue() -> None:
    stream, ran = Stream(), []
    event = type("E", (Event,), {"stream": stream})()
    event.synchronize()  # never recorded: nothing to wait for
    stream.launch(lambda: ran.append("before"))
    event.record()
    stream.launch(lambda: ran.append("after"))
    assert not event.query()
    event.synchronize()
    assert ran == ["before"]
    assert event.query()
    event.record()
    assert not event.query()


def test_work_that_reads_its_own_device_does_not_wait_for_itself() -> None:
    stream, ran = Stream(), []
    stream.launch(lambda: (stream.wait(), ran.append(1)))
    stream.wait()
    assert ran == [1]


def test_an_error_shows_at_the_next_wait_and_stays() -> None:
    told: list[BaseException] = []
    stream, ran = Stream(on_error=told.append), []
    stream.launch(lambda: 1 / 0)
    stream.launch(lambda: ran.append("after"))
    for _ in range(2):
        with pytest.raises(
            DeviceError, match="ZeroDivisionError: division by zero"
        ) as raised:
            stream.wait()
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert ran == []
    assert len(told) == 1


def test_work_runs_inside_what_it_was_given() -> None:
    entered: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    stream = Stream(around)
    stream.launch(lambda: entered.append("work"))
    stream.wait()
    assert entered == ["in", "work", "out"]


def test_a_future_is_computed_when_it_is_wanted_and_once() -> None:
    calls: list[int] = []
    future = LazyExecutor().submit(lambda x: calls.append(x) or x, 7)
    assert not future.done()
    assert calls == []
    assert future.result() == future.result() == 7
    assert calls == [7]
    broken = LazyFuture(lambda: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            broken.result()


# ---------------------------------------------------------------- the watch


def watching() -> tuple[Watch, list[str]]:
    """A watch, and what it tells besides how many steps began."""
    lines: list[str] = []
    watch = Watch(
        lambda text: None if text.startswith("steps: ") else lines.append(text)
    )
    watch.names["mask"] = "is_mm_embed.cpu"
    return watch, lines


def test_a_write_while_the_copy_is_queued_is_told() -> None:
    watch, lines = watching()
    watch.begin()
    watch.host_writes("mask", 0, 128)  # before the copy: as it should be
    copy = watch.copy_queued("mask", 0, 128)
    watch.begin()
    watch.host_writes("mask", 0, 1)
    assert watch.overwrites == 1
    assert "step 2: overwrite: the host writes is_mm_embed.cpu[0:1]" in lines[0]
    assert "[0:128] of step 1" in lines[0]
    watch.host_writes("mask", 5, 6)  # the same step again: one line
    assert len(lines) == 1
    watch.copy_runs(copy)
    watch.host_writes("mask", 0, 128)
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("buffer", "start", "stop"), [("other", 0, 128), ("mask", 128, 256)]
)
def test_a_write_elsewhere_is_none(buffer: str, start: int, stop: int) -> None:
    watch, lines = watching()
    watch.begin()
    watch.copy_queued("mask", 0, 128)
    watch.host_writes(buffer, start, stop)
    assert (watch.overwrites, lines) == (0, [])


SPANS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
    lambda p: (min(p), max(p))
)


@given(SPANS, SPANS)
def test_spans_overlap_where_they_share_an_element(
    copy: tuple[int, int], write: tuple[int, int]
) -> None:
    watch, _ = watching()
    watch.begin()
    watch.copy_queued("mask", *copy)
    watch.host_writes("mask", *write)
    shared = set(range(*copy)) & set(range(*write))
    assert bool(watch.overwrites) == bool(shared)


def test_steps_are_told_apart() -> None:
    watch, lines = watching()
    silent, right, failed = (watch.begin() for _ in range(3))
    for step, read, differing in ((silent, 251, 5), (right, 254, 0), (failed, 256, 2)):
        step.embeddings = 254
        watch.mask_read(step, 254, read, differing)
    watch.ended(silent)
    watch.ended(right)
    watch.failed(
        failed, RuntimeError("Number of elements of source < number of ones in mask")
    )
    assert watch.silent == 1
    assert [line.split(": ")[1] for line in lines[:4]] == [
        "mask",
        "mask",
        "mask",
        "silent",
    ]
    assert "254 image rows prepared, 256 read: RuntimeError: Number" in lines[4]


def test_how_many_steps_began_early_is_told_now_and_then() -> None:
    lines: list[str] = []
    watch = Watch(lines.append)
    for number in range(1, 21):
        watch.begin(busy=number % 4 == 0)
    assert lines == [
        "steps: 1 begun, 0 with the device still busy",
        "steps: 2 begun, 0 with the device still busy",
        "steps: 4 begun, 1 with the device still busy",
        "steps: 8 begun, 2 with the device still busy",
        "steps: 16 begun, 4 with the device still busy",
    ]


def test_a_text_step_is_not_told_and_lines_are_bounded() -> None:
    watch, lines = watching()
    step = watch.begin()
    watch.mask_read(step, 0, 0, 0)
    watch.ended(step)
    assert lines == []
    for _ in range(MAX_LINES + 50):
        step = watch.begin()
        step.embeddings = 1
        watch.mask_read(step, 1, 1, 0)
    assert len(lines) == MAX_LINES


# ---------------------------------------------------------------- the stand-in itself


@pytest.mark.parametrize("asked", [True, False])
def test_asynchronous_scheduling_stays_as_asked_for(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.14.0's CpuPlatform turns it off, and sets other things besides."""
    boot: Any = ModuleType("mmrepro_boot")
    later: dict[str, Any] = {}
    boot.after_import = later.__setitem__
    monkeypatch.setitem(sys.modules, "mmrepro_boot", boot)
    file = reproducer_path("standins") / "emulated_stream" / "standin.py"
    spec = spec_from_file_location("emulated_stream_standin", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))

    class CpuPlatform:
        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            vllm_config.scheduler_config.async_scheduling = False
            vllm_config.parallel_config.distributed_executor_backend = "mp"
            vllm_config.block_size = 128

    later["vllm.platforms.cpu"](SimpleNamespace(CpuPlatform=CpuPlatform))
    for executor, kept in (("uni", "uni"), ("mp", "mp"), (None, "mp")):
        config = SimpleNamespace(
            scheduler_config=SimpleNamespace(async_scheduling=asked),
            parallel_config=SimpleNamespace(distributed_executor_backend=executor),
        )
        CpuPlatform.check_and_update_config(config)
        assert config.scheduler_config.async_scheduling is asked
        assert config.parallel_config.distributed_executor_backend == kept
        assert config.block_size == 128
