"""Whether CUDA is initialised in a process; the libraries here are stand-ins for
NVIDIA's."""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrepro.engines.supervise import forked
from mmrepro.engines.supervise.warm import ForkServers, Refused
from toy_engine import toy

RECORDED = json.loads((Path(__file__).parent / "nvml_h100.json").read_text())["fork"][
    "asked"
]


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


# ------------------------------------------------------------------ fork servers

PRETENDED = """
import ctypes, sys
real = ctypes.CDLL
class Library:
    def {call}(self, *args):
        with open("called", "a") as file:
            file.write("{call} ")
        return {answer}
ctypes.CDLL = lambda name, *a, **k: Library() if name == "{library}" else real(name, *a, **k)
"""
"""A library of NVIDIA's that is a stand-in: it notes in the parent's folder that it was
called."""


@pytest.fixture
def parents(tmp_path: Path) -> Iterator[ForkServers]:
    with ForkServers(tmp_path / "kept") as made:
        yield made


def test_a_driver_that_is_initialised_is_refused(
    tmp_path: Path, parents: ForkServers
) -> None:
    """What torch.cuda.is_available() does without NVML."""
    imports = PRETENDED.format(library="libcuda.so.1", call="cuCtxGetCurrent", answer=0)
    with pytest.raises(Refused, match="initialised"):
        parents.get(toy(tmp_path / "code", imports))


@pytest.mark.parametrize("answer", [3, 34])
def test_a_driver_that_is_only_loaded_is_no_obstacle(
    tmp_path: Path, parents: ForkServers, answer: int
) -> None:
    """As torch leaves it once it is imported, or asked with NVML (nvml_h100.json,
    "fork")."""
    imports = PRETENDED.format(
        library="libcuda.so.1", call="cuCtxGetCurrent", answer=answer
    )
    assert parents.get(toy(tmp_path / "code", imports)).facts.refused == ""


def test_nvml_that_an_import_left_open_is_shut_down(
    tmp_path: Path, parents: ForkServers
) -> None:
    imports = PRETENDED.format(
        library="libnvidia-ml.so.1", call="nvmlShutdown", answer=1
    )
    parent = parents.get(toy(tmp_path / "code", imports))
    assert (parent.folder / "called").read_text() == "nvmlShutdown "
