"""SGLang's adapter: the command, the stand-ins by release, and how their calls are
counted."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import probed
from mmrepro.base.errors import UnknownRelease, UsageError
from mmrepro.base.records import Fidelity, WheelFacts
from mmrepro.engines import LaunchPlan, LaunchRequest, get_engine
from mmrepro.engines.environments.spec import Environment, sglang_spec
from mmrepro.engines.sglang import KERNELS, VLLM_NAMES, SglangEngine
from mmrepro.probes.data import LogsData
from mmrepro.reproducers import reproducer_path
from mmrepro.reproducers.pad_value_collision import radix_cache
from mmrepro.runs.judge import count_stand_ins
from packaging.requirements import Requirement
from simple_incident import incident

SGLANG = get_engine("sglang")


def plan(*server_args: str, release: str = "0.5.6", device: str = "cpu") -> LaunchPlan:
    folder = Path("/environments/sglang")
    environment = Environment(
        path=folder,
        python=folder / "venv/bin/python",
        site_packages=folder / "site-packages",
        wheel=WheelFacts(
            project="sglang", filename="", sha256="", uploaded="", origin=""
        ),
        resolved_until="",
        packages=[],
        lock_file=folder / "requirements.lock",
        spec=sglang_spec(release, device),  # type: ignore[arg-type]
    )
    return SGLANG.plan(
        LaunchRequest(environment, Path("/models/tiny"), 8123, 2048, server_args)
    )


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_the_command_on_a_cpu() -> None:
    made = plan("--disable-radix-cache")
    assert made.argv[1:3] == ["-m", "sglang.launch_server"]
    assert value(made.argv, "--device") == "cpu"
    assert value(made.argv, "--port") == "8123"
    assert value(made.argv, "--context-length") == "2048"
    assert made.argv[-1] == "--disable-radix-cache"
    assert made.env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert made.fidelity is Fidelity.CPU_STAND_IN
    told = {s.name for s in made.settings} | set(SglangEngine.owned_options)
    assert {a for a in made.argv[3:-1] if a.startswith("--")} <= told
    assert all(s.why for s in made.settings)


def test_nothing_stands_in_on_a_gpu() -> None:
    made = plan(device="cuda")
    assert made.stand_ins == []
    assert made.fidelity is Fidelity.GPU
    assert "--device" not in made.argv
    assert "PYTHONPATH" not in made.env


@pytest.mark.parametrize(
    ("release", "there"),
    [("0.5.6", False), ("0.5.16", False), ("0.5.17", True), ("0.5.23", True)],
)
def test_on_a_gpu_pictures_stay_where_their_hash_is_made(
    release: str, there: bool
) -> None:
    made = plan(release=release, device="cuda")
    assert ("--mm-feature-transport" in made.argv) is there
    assert "--mm-feature-transport" not in plan(release=release).argv


def test_on_a_gpu_nothing_of_flashinfer_is_compiled_and_what_sglang_compiles_is_kept() -> (
    None
):
    made = plan(device="cuda", release="0.5.17")
    assert value(made.argv, "--sampling-backend") == "pytorch"
    assert made.env["TVM_FFI_CACHE_DIR"].startswith("/environments/sglang/state/")
    assert made.env["TORCHDYNAMO_DISABLE"] == "1"
    assert "OMP_NUM_THREADS" not in made.env


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("0.5.6", ["sgl_kernel_stub", "vllm_names"]),
        ("0.5.17", ["sgl_kernel_stub"]),
        ("0.5.23", ["sgl_kernel_stub"]),
    ],
)
def test_stand_ins_by_release(release: str, names: list[str]) -> None:
    made = plan(release=release)
    assert [s.name for s in made.stand_ins] == names
    folders = made.env["MMREPRO_STAND_INS"].split(os.pathsep)
    assert [Path(folder).name for folder in folders] == names
    assert all((Path(folder) / "standin.py").is_file() for folder in folders)


@pytest.mark.parametrize("option", SglangEngine.owned_options)
def test_options_that_are_ours_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        plan(option, "x")


def test_releases_that_cannot_be_started() -> None:
    with pytest.raises(UsageError, match="older than the oldest"):
        SGLANG.environment_spec("0.4.9", "cpu")
    with pytest.raises(UnknownRelease, match="release of sglang"):
        SGLANG.environment_spec("newest", "cpu")


def test_a_cpu_environment_leaves_cuda_only_packages_out() -> None:
    out = {
        Requirement(line).name
        for line in sglang_spec("0.5.6", "cpu").overrides
        if ";" in line
    }
    assert {"sgl-kernel", "sglang-kernel", "flashinfer-python"} <= out
    assert not any(";" in line for line in sglang_spec("0.5.6", "cuda").overrides)
    # the cuDNN that SGLang insists on, only where torch is 2.9.1
    for release, there in (
        ("0.5.5", False),
        ("0.5.6", True),
        ("0.5.10", True),
        ("0.5.11", False),
    ):
        lines = sglang_spec(release, "cuda").overrides
        assert any(line.startswith("nvidia-cudnn-cu12==") for line in lines) is there, (
            release
        )


def test_what_compressed_tensors_imports_unasked_is_there() -> None:
    """0.5.3 ended at its start for want of it: seen with compressed-tensors 0.12.1."""
    for device in ("cpu", "cuda"):
        assert "accelerate" in sglang_spec("0.5.3", device).requirements
        assert "accelerate" not in sglang_spec("0.5.4", device).requirements


def test_the_reproducer_makes_the_radix_cache_of_each_release() -> None:
    class Newer:
        @staticmethod
        def create_simulated() -> str:
            return "simulated"

    class Of053:
        def __init__(self, **given: object) -> None:
            self.given = given

    assert radix_cache(SimpleNamespace(RadixCache=Newer)) == "simulated"
    made = radix_cache(SimpleNamespace(RadixCache=Of053)).given
    assert made == {
        "req_to_token_pool": None,
        "token_to_kv_pool_allocator": None,
        "page_size": 1,
    }


def test_roles() -> None:
    assert SGLANG.role_of("python", "python -m sglang.launch_server --port 1") == (
        "tokenizer_manager"
    )
    assert SGLANG.role_of("sglang::schedul", "sglang::scheduler") == SGLANG.core_role
    assert SGLANG.role_of("sglang::detoken", "sglang::detokenizer") == "detokenizer"


# ------------------------------------------------------------- the stand-ins themselves


TORCH = """
class ops: pass

class Tensor:
    def pin_memory(self): raise RuntimeError("Found no NVIDIA driver")

def tensor(*of, pin_memory=False, **more):
    return Tensor().pin_memory() if pin_memory else Tensor()

empty = zeros = ones = full = arange = empty_like = zeros_like = tensor
"""


def in_python(
    code: str, *stand_ins: str, path: Path
) -> subprocess.CompletedProcess[str]:
    """``code`` in a process with the stand-ins; ``path`` holds a pretended torch and
    sglang."""
    (path / "torch.py").write_text(TORCH)
    layers = path / "sglang/srt/layers"
    layers.mkdir(parents=True)
    (layers / "activation.py").write_text(
        "class SiluAndMul: pass\nclass GeluAndMul: pass\n"
    )
    folders = os.pathsep.join(
        str(reproducer_path("standins") / name) for name in stand_ins
    )
    boot = str(reproducer_path("standins") / "boot")
    return subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PYTHONPATH": os.pathsep.join([boot, str(path)]),
            "MMREPRO_STAND_INS": folders,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(stderr: str) -> dict[str, int]:
    """Lines by the adapter's own patterns, as the logs probe counts them."""
    import re

    return {
        name: sum(bool(re.search(pattern, line)) for line in stderr.splitlines())
        for name, pattern in SGLANG.log_patterns.items()
        if name.startswith(("sgl_kernel_stub", "vllm_names", "plain_memory"))
    }


def test_kernels_can_be_imported_and_nothing_is_called(tmp_path: Path) -> None:
    code = (
        "from sgl_kernel import rmsnorm\nfrom sgl_kernel.flash_attn import anything as "
        "a\n"
        "import torch\nassert not hasattr(torch.ops.sgl_kernel, "
        "'convert_weight_packed')\n"
        "torch.ops.sgl_kernel.fused_gdn_gating_cpu\na.b.c\n"
    )
    done = in_python(code, "sgl_kernel_stub", path=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = told(done.stderr)
    assert counts["sgl_kernel_stub-loaded"] == 1
    assert counts["sgl_kernel_stub-called"] == 0


@pytest.mark.parametrize(
    "call",
    [
        "import sgl_kernel; sgl_kernel.rmsnorm(1)",
        "from sgl_kernel.x.y import z; z.t()",
        "import sgl_kernel, torch; torch.ops.sgl_kernel.silu_and_mul_cpu()",
        "from vllm._custom_ops import rotary_embedding as r; r()",
    ],
)
def test_a_call_raises_and_is_counted_even_if_it_is_swallowed(
    tmp_path: Path, call: str
) -> None:
    folders = ("sgl_kernel_stub", "vllm_names")
    loud = in_python(call, *folders, path=tmp_path)
    assert loud.returncode != 0
    assert "RuntimeError" in loud.stderr
    (tmp_path / "quiet").mkdir()
    quiet = in_python(
        f"try:\n    exec({call!r})\nexcept RuntimeError: pass",
        *folders,
        path=tmp_path / "quiet",
    )
    assert quiet.returncode == 0
    counts = told(quiet.stderr)
    assert counts["sgl_kernel_stub-called"] + counts["vllm_names-called"] == 1


def test_adapters_are_kept_in_plain_memory_on_a_cpu(tmp_path: Path) -> None:
    made = plan("--enable-lora", release="0.5.23")
    assert [s.name for s in made.stand_ins] == ["sgl_kernel_stub", "plain_memory"]
    assert plan("--enable-lora", device="cuda", release="0.5.23").stand_ins == []
    code = (
        "import torch\ntorch.zeros_like(torch.tensor([1], "
        "pin_memory=True).pin_memory())\n"
    )
    plain = in_python(code, "plain_memory", path=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert told(plain.stderr)["plain_memory-loaded"] == 1
    (tmp_path / "without").mkdir()
    assert "NVIDIA" in in_python(code, path=tmp_path / "without").stderr


def test_sglang_gets_its_own_layers_back(tmp_path: Path) -> None:
    code = (
        "from vllm.model_executor.layers.activation import SiluAndMul as a\n"
        "from sglang.srt.layers.activation import SiluAndMul as b\nassert a is b\n"
        "try:\n    import vllm._C\nexcept ImportError: print('no more than the names')"
    )
    done = in_python(code, "vllm_names", path=tmp_path)
    assert done.stdout == "no more than the names\n", done.stderr
    assert told(done.stderr)["vllm_names-loaded"] == 1


def test_the_report_says_how_often_a_stand_in_was_called() -> None:
    def counted(**counts: int) -> list[tuple[int | None, int | None]]:
        made = incident(
            stand_ins=[p.stand_in.model_copy() for p in (KERNELS, VLLM_NAMES)]
        )
        if counts:
            data = LogsData(
                file="engine.log", bytes_read=99, lines=9, match_counts=counts
            )
            made.evidence.probes.append(probed(data))
        count_stand_ins(made)
        return [(s.loaded, s.calls) for s in made.stand_ins]

    assert counted() == [(None, None), (None, None)]
    assert counted(**{"sgl_kernel_stub-loaded": 3, "sgl_kernel_stub-called": 0}) == [
        (3, 0),
        (None, None),
    ]
