"""LMDeploy's adapter, its environment, and the text models that it serves."""

import json
import math
from pathlib import Path

import pytest
from mmrepro.base.errors import UnknownRelease, UsageError
from mmrepro.base.records import Fidelity, WheelFacts
from mmrepro.engines import LaunchPlan, LaunchRequest, get_engine, spec_for
from mmrepro.engines.environments.spec import Environment, lmdeploy_spec, table
from mmrepro.engines.lmdeploy import LmdeployEngine, device_memory
from mmrepro.engines.models.tiny import TinyText
from mmrepro.kv_budget import Geometry, block_bytes_of
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.options import RunCommand
from mmrepro.runs.start import ServerSpec
from mmrepro.scenario.more import Mitigation, Patch
from mmrepro.scenario.registry import load_scenario

LMDEPLOY = get_engine("lmdeploy")


def plan(
    *server_args: str,
    mitigations: tuple[Mitigation, ...] = (),
    patches: tuple[Patch, ...] = (),
    release: str = "0.6.4",
    device: str = "cpu",
) -> LaunchPlan:
    environment = made(release, device)
    model = Path("/models/internlm2-chat-tiny")
    return LMDEPLOY.plan(
        LaunchRequest(environment, model, 8123, 2048, server_args, mitigations, patches)
    )


def made(release: str, device: str = "cpu") -> Environment:
    folder = Path("/environments/lmdeploy")
    return Environment(
        path=folder,
        python=folder / "venv/bin/python",
        site_packages=folder / "site-packages",
        wheel=WheelFacts(
            project="lmdeploy", filename="", sha256="", uploaded="", origin=""
        ),
        resolved_until="",
        packages=[],
        lock_file=folder / "requirements.lock",
        spec=lmdeploy_spec(release, "cuda" if device == "cuda" else "cpu"),
    )


def test_the_command() -> None:
    argv = plan("--cache-max-entry-count", "0.1").argv
    assert argv[:5] == [
        "/environments/lmdeploy/venv/bin/python",
        "-m",
        "lmdeploy",
        "serve",
        "api_server",
    ]
    assert argv[5] == "/models/internlm2-chat-tiny"
    for option, value in (
        ("--backend", "pytorch"),
        ("--server-name", "127.0.0.1"),
        ("--server-port", "8123"),
    ):
        assert argv[argv.index(option) + 1] == value
    assert argv[-2:] == ["--cache-max-entry-count", "0.1"]
    assert "--distributed-executor-backend" not in argv
    for release, has in (("0.10.2", False), ("0.11.0", True), ("0.18.0", True)):
        for device in ("cpu", "cuda"):
            argv = plan(release=release, device=device).argv
            assert ("--distributed-executor-backend" in argv) is has, (release, device)


@pytest.mark.parametrize("option", LmdeployEngine.owned_options)
def test_what_the_adapter_owns_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        plan(option, "x")


def test_a_mitigation_comes_last() -> None:
    helps = Mitigation("helps", "", ("--cache-max-entry-count", "0.3"))
    assert (
        plan("--cache-max-entry-count", "0.1", mitigations=(helps,)).argv[-1] == "0.3"
    )


def test_the_stand_ins_of_a_run_without_a_gpu() -> None:
    plain = plan()
    assert plain.fidelity is Fidelity.CPU_STAND_IN
    assert [s.name for s in plain.stand_ins] == [
        "CUDA device and kernels",
        "device memory",
    ]
    assert plain.env["MMREPRO_DEVICE_FREE_BYTES"] == str(1024 * 2**20)
    own = plan(patches=(device_memory(111164640),))
    assert own.fidelity is Fidelity.CPU_STAND_IN
    assert [s.name for s in own.stand_ins] == [
        "CUDA device and kernels",
        "device memory",
    ]
    assert own.env["MMREPRO_DEVICE_FREE_BYTES"] == "111164640"
    assert "111164640 B free" in own.stand_ins[1].replaces
    for folder in own.env["MMREPRO_STAND_INS"].split(":"):
        assert (Path(folder) / "standin.py").is_file()


def test_on_a_gpu_only_what_the_scenario_asks_for_is_replaced() -> None:
    on_gpu = plan(device="cuda", patches=(device_memory(111164640),))
    assert on_gpu.fidelity is Fidelity.GPU_STAND_IN
    assert [s.name for s in on_gpu.stand_ins] == ["device memory"]
    assert "OMP_NUM_THREADS" not in on_gpu.env
    plain = plan(device="cuda")
    assert plain.stand_ins == []
    assert plain.fidelity is Fidelity.GPU


def test_the_server_is_known_by_its_command_line() -> None:
    line = " ".join(plan().argv)
    assert LMDEPLOY.role_of("python", line) == "api_server" == LMDEPLOY.core_role
    assert LMDEPLOY.role_of("python", "python -c something") == "python"


def test_every_release_gets_what_lmdeploy_forgets_to_ask_for() -> None:
    for release in ("0.6.4", "0.12.0", "0.18.0"):
        spec = spec_for("lmdeploy", release, "cpu")
        assert {"timm", "setuptools", "qwen-vl-utils"} <= set(spec.requirements)
    assert lmdeploy_spec("0.6.4", "cpu").cutoff.startswith("2024-12-31")
    assert lmdeploy_spec("0.12.0", "cpu").cutoff == ""
    assert "nvidia-cublas-cu12" in lmdeploy_spec("0.18.0", "cpu").drop
    assert lmdeploy_spec("0.18.0", "cuda").drop == ()
    assert lmdeploy_spec("0.18.0", "cpu").overrides == (
        "torch==2.11.0",
        "torchvision==0.26.0",
    )
    assert all(entry.why for entry in table("lmdeploy"))
    with pytest.raises(UnknownRelease, match="newest"):
        lmdeploy_spec("newest", "cpu")


REPORTED = TinyText(architecture="gemma", layers=32, kv_heads=8, vocab_size=92553)


@pytest.mark.parametrize(
    ("model", "block_bytes"),
    [(TinyText(), 131_072), (REPORTED, 8_388_608)],
    ids=["1/64", "1/1"],
)
def test_a_text_model_has_the_geometry_it_says(
    model: TinyText, block_bytes: int, tmp_path: Path
) -> None:
    small = (
        model if model.parameters < 3e6 else TinyText(architecture="gemma", layers=1)
    )
    folder = small.write(tmp_path)
    assert folder.name.startswith("internlm2-chat-")
    config = json.loads((folder / "config.json").read_text())
    raw = (folder / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert (
        sum(math.prod(t["shape"]) for n, t in header.items() if n[0] != "_")
        == small.parameters
    )
    geometry = Geometry(
        layers=model.layers,
        kv_heads=model.kv_heads,
        k_dim=model.head_dim,
        v_dim=model.head_dim,
        dtype_bytes=2,
    )
    assert block_bytes_of(geometry, "0.6.4") == block_bytes
    assert config["head_dim"] == model.head_dim
    assert small.write(tmp_path) == folder


def test_the_names_of_the_weights_follow_the_architecture() -> None:
    assert "lm_head.weight" in dict(TinyText().shapes())
    assert "lm_head.weight" not in dict(REPORTED.shapes())
    assert TinyText().key != TinyText(seed=1).key


def test_the_stand_ins_name_nothing_of_the_harness() -> None:
    for folder in ("lmdeploy_cpu", "device_memory"):
        for file in reproducer_path(f"standins/{folder}").glob("*.py"):
            assert "import mmrepro." not in file.read_text()


def test_the_control_server_differs_by_its_setting_only() -> None:
    scenario = load_scenario("undersized-kv-budget")
    options = RunCommand(mitigations=("kv-budget",))
    environment, model = made("0.6.4"), Path("/models/internlm2-chat-tiny")
    own = ServerSpec(scenario, options, environment, model).plan(8123)
    other = ServerSpec(
        scenario, options, environment, model, scenario.control_server
    ).plan(8123)
    settings = [
        [
            a
            for a, b in zip(p.argv[1:], p.argv, strict=False)
            if b == "--cache-max-entry-count"
        ]
        for p in (own, other)
    ]
    assert settings == [["0.1", "0.26"], ["0.1", "0.5"]]  # argparse takes the last one
    assert own.env == other.env
    assert [s.name for s in other.stand_ins][-2:] == ["witness", "device memory"]


def test_the_memory_follows_the_release() -> None:
    scenario = load_scenario("undersized-kv-budget")
    free = {}
    for release in ("0.6.4", "0.18.0"):
        options = RunCommand(release=release)
        found = ServerSpec(scenario, options, made(release), Path("/models/m")).plan(
            8123
        )
        free[release] = int(found.env["MMREPRO_DEVICE_FREE_BYTES"])
    assert free == {"0.6.4": 111_155_328, "0.18.0": 52_667_520}
