"""Whether CUDA is initialised in a process; the libraries here are stand-ins for NVIDIA's."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrepro.supervise import forked

RECORDED = json.loads((Path(__file__).parent / "nvml_h100.json").read_text())["fork"]["asked"]


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the process have libraries: {name: what one of their functions returns}."""

    def have(**answers: Callable[..., int]) -> None:
        library = SimpleNamespace(**answers)
        monkeypatch.setattr(forked, "loaded", lambda name: library)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return have


@pytest.mark.parametrize("seen", RECORDED, ids=lambda seen: seen["question"])
def test_what_an_h100_said_tells_whether_a_fork_can_compute(
    seen: dict[str, object], has: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    has(cuCtxGetCurrent=lambda place: seen["cuCtxGetCurrent"])
    cuda = SimpleNamespace(is_initialized=lambda: seen["is_initialized"])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert forked.cuda_initialised() is not seen["fork_computed"]


def test_the_recording_tells_that_torch_alone_does_not_know() -> None:
    """Else the driver need not be asked."""
    assert any(not s["is_initialized"] and not s["fork_computed"] for s in RECORDED)


def test_without_cuda_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forked.loaded("libmmrepro-has-no-such.so.1") is None
    assert forked.loaded("libc.so.6") is not None
    asked = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: asked.append(mode))
    forked.loaded("libcuda.so.1")
    assert [bool(mode & os.RTLD_NOLOAD) for mode in asked] == [True]


def test_nvml_is_shut_down_as_often_as_it_was_opened(has: Callable[..., None]) -> None:
    answers = [0, 0, 1, 0]  # 1: NVML_ERROR_UNINITIALIZED
    has(nvmlShutdown=lambda: answers.pop(0))
    forked.close_nvml()
    assert answers == [0]
    has(nvmlShutdown=lambda: 0)
    forked.close_nvml()  # an end, whatever it says
