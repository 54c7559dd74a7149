"""How the harness provisions, models and starts minivllm."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from mmrepro.base.errors import UnknownRelease, UsageError
from mmrepro.base.records import Fidelity
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.environments.spec import MINIVLLM, TORCH, minivllm_spec, vllm_spec
from mmrepro.engines.minivllm import MinivllmEngine
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.reproducers.minivllm.chat import grid_of
from mmrepro.reproducers.minivllm.config import ModelConfig, VisionConfig
from mmrepro.reproducers.minivllm.server import VERSION, arguments
from mmrepro.runs.options import RunCommand
from mmrepro.runs.start import ServerSpec
from mmrepro.scenario.registry import load_scenario

MODEL = TinyQwen3()


def plan(*options: str, device: str = "cpu", mitigations: tuple[str, ...] = ()) -> Any:
    environment: Any = SimpleNamespace(
        python=Path("/venv/bin/python"),
        site_packages=Path("/venv/lib"),
        python_of="",
        spec=SimpleNamespace(release=MINIVLLM, device=device),
    )
    run = RunCommand(server_args=options, mitigations=mitigations)
    return ServerSpec(
        load_scenario("mm-prefill-contract"), run, environment, Path("/model")
    ).plan(8000)


def test_there_is_one_release_and_the_engine_says_the_same() -> None:
    assert VERSION == MINIVLLM
    assert spec_for("minivllm", MINIVLLM, "cpu") == minivllm_spec(MINIVLLM, "cpu")
    with pytest.raises(UnknownRelease, match="part of mmrepro"):
        minivllm_spec("0.2", "cpu")


def test_torch_is_installed_under_the_engine_s_name() -> None:
    spec = minivllm_spec(MINIVLLM, "cpu")
    assert (spec.project, spec.installed, spec.release) == ("torch", TORCH, MINIVLLM)
    assert spec.key().startswith(f"minivllm-{MINIVLLM}-cpu-")
    assert spec.key() != replace(spec, version="2.10.0").key()


def test_an_engine_with_its_own_wheel_keeps_its_key() -> None:
    """A field that it does not use must not make every cached environment a new one."""
    spec = vllm_spec("0.23.0", "cpu")
    assert spec.installed == "0.23.0"
    assert "version" in asdict(spec)
    assert spec.key() == "vllm-0.23.0-cpu-6a3337e0"


def test_the_command_is_what_the_server_understands() -> None:
    made = plan("--num-blocks", "9")
    assert made.argv[0] == "/venv/bin/python"
    options = arguments(made.argv[4:])
    assert (options.port, options.model, options.num_blocks) == (
        8000,
        Path("/model"),
        9,
    )
    assert (options.fault, options.fix, options.device) == (["slot-mapping"], [], "cpu")
    assert made.fidelity is Fidelity.TEACHING_ENGINE
    assert arguments(plan(mitigations=("fix",)).argv[4:]).fix == ["slot-mapping"]
    gpu = plan(device="cuda")
    assert gpu.fidelity is Fidelity.TEACHING_ENGINE
    assert arguments(gpu.argv[4:]).device == "cuda"
    assert all(setting.why for setting in made.settings)


@pytest.mark.parametrize("option", MinivllmEngine.owned_options)
def test_options_that_are_ours_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        plan(f"{option}=x")


def test_it_is_known_by_its_command() -> None:
    from mmrepro.engines.base import Signs

    engine = get_engine("minivllm")
    assert engine.recognise(Signs(commands=(" ".join(plan().argv),)))
    assert not engine.recognise(
        Signs(commands=("python -m vllm.entrypoints.openai.api_server",))
    )


def test_the_model_is_read_as_it_is_written(tmp_path: Path) -> None:
    folder = MODEL.write(tmp_path)
    assert MODEL.write(tmp_path) == folder
    config = ModelConfig.read(folder)
    assert (config.hidden_size, config.head_dim) == (MODEL.hidden, MODEL.head_dim)
    assert config.vision == VisionConfig(
        depth=MODEL.vision_depth,
        width=MODEL.vision_width,
        max_tokens=MODEL.image_tokens,
    )
    raw = (folder / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    shapes = {name: tuple(header[name]["shape"]) for name, _ in MODEL.shapes()}
    assert shapes == dict(MODEL.shapes())


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_both_sides_count_an_image_s_tokens_alike(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    rows, cols = grid_of(width, height, VisionConfig(max_tokens=MODEL.image_tokens))
    assert rows * cols == MODEL.tokens_of(width, height) <= MODEL.image_tokens


def test_an_image_of_the_model_s_size_fills_whole_blocks() -> None:
    """What the scenario's control rests on."""
    rows, cols = grid_of(
        *MODEL.image_size(), VisionConfig(max_tokens=MODEL.image_tokens)
    )
    assert rows * cols == MODEL.image_tokens == 64
