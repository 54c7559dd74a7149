"""Causes of failed starts: recorded ones of real engines, and some in the engines' own
words."""

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.engines import ENGINES, get_engine
from mmrepro.engines.log_rules import shipped_rules
from mmrepro.engines.models.tiny import TinyText
from mmrepro.engines.starts import (
    GONE,
    MORE_KEYS,
    OPTIONS,
    Asked,
    FailedStart,
    StartFault,
    StartRule,
    explain,
    lines_of,
    matching,
    raised,
    rules,
    start_cause,
)
from mmrepro.kv_budget.groups import CacheGroup, CacheLayout
from mmrepro.kv_budget.layers import FULL, STATE, WINDOW, LayerKind
from mmrepro.live.diagnose import starts as reading
from mmrepro.live.diagnose.cause import judge
from mmrepro.live.diagnose.starts import (
    StartState,
    engine_of,
    fitting,
    one_group,
    port_of,
    read_start,
)
from mmrepro.probes.data import LogLine
from mmrepro.probes.log_reader import LineReader

RECORDED = Path(__file__).parent / "starts"
CASES = sorted(RECORDED.glob("*.json"))


def lines(text: str) -> list[LogLine]:
    return LineReader().take(text.encode(), last=True)


def cause(text: str, engine: str = "vllm", **asked: object) -> FailedStart:
    found = start_cause(lines(text), Asked(engine, **asked))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_path_with_blanks_is_named_whole() -> None:
    text = "PermissionError: [Errno 13] Permission denied: '/hub/my models/zebra'"
    assert cause(text).sentence.endswith(": /hub/my models/zebra.")


# ------------------------------------------------------------------ recorded starts


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_recorded_start(case: Path) -> None:
    facts = json.loads(case.read_text())
    found = read_start(
        lines_of(case.with_suffix(".log"), []), exit_code=facts["exit_code"]
    )
    assert found.engine == facts["engine"]
    if facts["wanted"] in ("hang-at-start", "permission"):
        # What tells these from others is on the machine where they were recorded.
        assert found.state in (StartState.UNKNOWN, StartState.FAILED)
        return
    assert found.state is StartState.FAILED
    assert found.cause is not None
    assert found.cause.start is not None
    assert found.cause.start.name == facts["wanted"]
    assert found.cause.advice


def test_there_are_recordings_of_all_engines() -> None:
    assert len(CASES) >= 15
    assert {json.loads(c.read_text())["engine"] for c in CASES} == set(ENGINES)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_recording_holds_no_path_of_its_machine(case: Path) -> None:
    for path in (case, case.with_suffix(".log")):
        text = path.read_text()
        assert "/root" not in text
        assert ".cache" not in text.replace("/home/user/.cache/vllm", "")
        assert "mmr-why" not in text
        files = set(re.findall(r'File "(/\w+)', text))
        assert files <= {"/venv", "/mmrepro", "/usr", "/tmp"}


# -------------------------------------------------------------- what cannot be run here

CORE = "(EngineCore_DP0 pid=77) ERROR 11-25 10:00:01 [core.py:718] "
INIT = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
    "functions before calling NumCudaDevices() that might have already set an error? "
    "Error "
)
ECHO = (
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause "
    "above. "
    "Failed core proc(s): {'EngineCore_DP0': 1}\n"
)
MADE_UP = {
    "driver-too-old": [
        "RuntimeError: The NVIDIA driver on your system is too old (found version "
        "12020). Please update your GPU driver by downloading and installing a new "
        "version",
        (
            "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA "
            "runtime version"
        ),
    ],
    "driver-mismatch": [
        INIT + "803: system has unsupported display driver / cuda driver combination",
        INIT + "804: forward compatibility was attempted on non supported HW",
        "torch.AcceleratorError: CUDA error: system has unsupported display driver / "
        "cuda driver combination",
    ],
    "gpu-not-ready": [INIT + "802: system not yet initialized"],
    "no-gpu": [
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you "
        "have an NVIDIA GPU and installed a driver",
        (
            "RuntimeError: Failed to infer device type, please set the environment "
            "variable"
        ),
        "2026-11-26 01:37:21,900 - lmdeploy - ERROR - base.py:55 - <CUDA> check "
        "failed!\n"
        "cuda is not available.",
        "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform "
        "plugin is available.",
        INIT + "801: operation not supported",
    ],
    "library-missing": [
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such "
            "file or directory"
        ),
        (
            "OSError: libcublasLt.so.13: cannot open shared object file: No such file "
            "or directory"
        ),
        (
            "ImportError: libcuda.so.1: cannot open shared object file: No such file "
            "or directory"
        ),
        (
            "RuntimeError: libtcmalloc is not found in LD_PRELOAD. Please follow the "
            "section"
        ),
    ],
    "abi-mismatch": [
        "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
        "Attempted locations:\n1. sm100/common_ops.abi3.so: undefined symbol: _ZN3c10",
        "ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZN3c106ivalue6FutureE",
        (
            "ImportError: /lib/libstdc++.so.6: version `CXXABI_1.3.15' not found "
            "(required by _C.so)"
        ),
    ],
    "no-kernel-image": [
        "torch.AcceleratorError: CUDA error: no kernel image is available for "
        "execution on the device",
        "RuntimeError: [TM][ERROR] CUDA runtime error: no kernel image is available "
        "for execution on the device /src/kernels.cu:12",
        "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
        "Attempted locations:\n1. No sm121/ directory present",
        "[TM][FATAL][0914.14:00:37.807188][cast.cu:264] CUDA error: no kernel image is "
        "available for execution on the device",
        "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
    ],
    "compiler-missing": [
        (
            "RuntimeError: Failed to find C compiler. Please specify via CC "
            "environment variable"
        ),
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
        "RuntimeError: Ninja build failed. Ninja output:\nninja: build stopped",
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/main.c', "
        "'-O3']' returned non-zero exit status 1.",
        (
            "RuntimeError: Could not find nvcc and default "
            "cuda_home='/usr/local/cuda' doesn't exist"
        ),
    ],
    "transformers-version": [
        (
            "ImportError: cannot import name 'Qwen3Config' from 'transformers' "
            "(/v/transformers.py)"
        ),
        "AttributeError: module 'transformers.models' has no attribute 'zebra'",
        "ImportError: tokenizers>=0.22.0,<=0.23.0 is required for a normal functioning "
        "of this module, but found tokenizers==0.20.3.",
    ],
    "model-gated": [
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)",
        "OSError: You are trying to access a gated repo.",
    ],
    "model-not-found": [
        "OSError: zebra/zebra-7b is not a local folder and is not a valid model "
        "identifier listed on 'https://huggingface.co/models'",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form "
        "'repo_name' or 'namespace/repo_name': '/data/zebra'. Use `repo_type` argument "
        "if needed.",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, "
        "and couldn't find them in the cached files.",
    ],
    "package-version": [
        (
            "ImportError: cannot import name 'fused_marlin_moe' from 'sgl_kernel' "
            "(/x/__init__.py)"
        ),
    ],
    "weights-mismatch": [
        "KeyError: 'layers.0.mlp.down_proj.weight_scale'",
        (
            "ValueError: Following weights were not initialized from checkpoint: "
            "{'lm_head.weight'}"
        ),
    ],
    "weights-unreadable": [
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: "
            "HeaderTooLarge"
        ),
        "_pickle.UnpicklingError: invalid load key, 'v'.",
    ],
    "out-of-gpu-memory": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
        "has a total capacity of 23.64 GiB of which 1.20 GiB is free. Including "
        "non-PyTorch memory",
        "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less "
        "than desired GPU memory utilization (0.95, 45.01 GiB). Decrease GPU memory "
        "utilization",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 "
        "dummy requests. Please try lowering `max_num_seqs`",
        (
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried to "
            "allocate 20.00 MiB."
        ),
        "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by "
        "other processes.",
    ],
    "out-of-host-memory": [
        "MemoryError",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: unable to mmap 4976698672 bytes from file "
        "</m/model-1.safetensors>: Cannot "
        "allocate memory (12)",
    ],
    "kv-cache-too-small": [
        "ValueError: To serve at least one request with the models's max seq len "
        "(8192), (1.00 GiB KV cache is needed, which is larger than the available KV "
        "cache memory (0.40 GiB).",
        "ValueError: No available memory for the cache blocks. Try increasing",
        "RuntimeError: Not enough memory. Please try to increase "
        "--mem-fraction-static. Current "
        "value: mem_fraction_static=0.5",
        "RuntimeError: No enough gpu memory for kv cache.",
        "ValueError: The model's max seq len (4096) is larger than the maximum number "
        "of tokens that can be stored in KV cache (2048). Try increasing",
    ],
    "dtype-unsupported": [
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at "
        "least 8.0. Your Tesla T4 GPU has compute capability 7.5. You can use float16 "
        "instead",
    ],
    "quantisation-unsupported": [
        "ValueError: awq quantization is currently not supported in cpu.",
        "ValueError: The quantization method fp8 is not supported for the current GPU. "
        "Minimum capability: 89. Current capability: 80.",
    ],
    "too-few-devices": [
        (
            "ValueError: World size (4) is larger than the number of available GPUs "
            "(2) in this node."
        ),
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
    ],
    "heads-not-divisible": ["AssertionError: 14 is not divisible by 4"],
    "nccl": [
        "(VllmWorkerProcess pid=232) ERROR 08-23 08:25:25 "
        "multiproc_worker_utils.py:226] Exception in worker VllmWorkerProcess while "
        "processing method init_device: NCCL error: unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), Traceback (most recent",
        (
            "RuntimeError: NCCL error: unhandled system error (run with "
            "NCCL_DEBUG=INFO for details)"
        ),
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, "
        "unhandled system error, NCCL version 2.27.5",
    ],
    "shared-memory": ["Bus error (core dumped)"],
    "machine-limit": [
        "OSError: [Errno 24] Too many open files",
        "RuntimeError: can't start new thread",
    ],
    "disk-full": ["OSError: [Errno 28] No space left on device: '/x/cache'"],
    "permission": [
        "PermissionError: [Errno 13] Permission denied: '/hub/models--zebra'",
        "OSError: [Errno 30] Read-only file system: '/hub/.locks'",
    ],
    "missing-module": [
        "ModuleNotFoundError: No module named 'flash_attn'",
        (
            "ImportError: Please install `bitsandbytes>=0.46.1` via `pip install "
            "bitsandbytes>=0.46.1`"
        ),
    ],
    "native-crash": [
        "Fatal Python error: Segmentation fault",
        "Fatal Python error: Illegal instruction",
    ],
    "port-taken": [
        "OSError: [Errno 98] Address already in use",
        "RuntimeError: Port is already in use. dist_init_port=1 port_base=2",
    ],
}
PAIRS = [(name, text) for name, texts in MADE_UP.items() for text in texts]
UNMARKED = ("Bus error", "/bin/sh", "(VllmWorker", "Fatal", "ptxas", "[TM]", "2026")
"""What begins so, no engine puts a mark before: the C library's, the shell's, a
logger's."""
PRINTED = [
    (name, prefix, text)
    for name, text in PAIRS
    for prefix in ("", CORE)
    if not (prefix and text.startswith(UNMARKED))
]


@pytest.mark.parametrize(
    ("wanted", "prefix", "text"),
    PRINTED,
    ids=[f"{n}-{bool(p)}-{t[:40]}" for n, p, t in PRINTED],
)
def test_a_cause_in_the_engines_words(wanted: str, prefix: str, text: str) -> None:
    log = f"{prefix}EngineCore failed to start.\n" if prefix else "starting\n"
    log += f"{prefix}Traceback (most recent call last):\n" if prefix else ""
    found = cause(log + prefix + text.replace("\n", "\n" + prefix) + "\n" + ECHO)
    assert found.fault == wanted
    assert found.line is not None
    assert found.sentence.endswith((".", "?"))
    assert "{" not in found.sentence
    assert found.advice
    assert not any("{" in one for one in found.advice)


FORMS = (
    "ERROR 03-26 05:25:01 engine.py:389] {}",
    "(APIServer pid=1) (EngineCore_DP0 pid=68) ERROR 02-06 16:34:06 [core.py:936] {}",
    "(RayWorkerWrapper pid=3, ip=10.0.0.2) ERROR 02-06 16:34:06 [worker.py:9] {}",
    "[2026-03-03 03:53:36 TP3] {}",
    "[rank1]: {}",
    "2026-11-26T01:00:00.000000000Z stderr F (EngineCore pid=8) {}",
    "vllm-1  | {}",
    '{{"log":"{}\\n","stream":"stderr","time":"2026-11-26T01:00:00.000000000Z"}}',
)


@pytest.mark.parametrize("form", FORMS)
def test_a_cause_behind_each_mark_and_wrapping(form: str) -> None:
    text = (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward "
    )
    text += "compatibility was attempted on non supported HW"
    log = (
        "\n".join(form.format(one) for one in ("starting", "loading", text, "bye"))
        + "\n"
    )
    assert cause(log).fault is StartFault.DRIVER_MISMATCH


def test_an_error_line_without_a_class() -> None:
    text = (
        INIT.partition(": ")[2]
        + "804: forward compatibility was attempted on non supported HW"
    )
    assert cause(f"ERROR 03-26 05:25:01 engine.py:389] {text}\n").fault is (
        StartFault.DRIVER_MISMATCH
    )


def test_a_message_of_several_lines_between_those_of_another_process() -> None:
    other = "(Worker pid=9) INFO 11-25 10:00:01 [x.py:1] loading\n"
    log = (
        f"{CORE}pydantic_core._pydantic_core.ValidationError: 1 validation error for "
        f"ModelConfig\n"
        f"{other}{CORE}  Value error, Total number of attention heads (14) must be "
        f"divisible by "
        "tensor parallel size (4). [type=value_error]\n"
    )
    found = cause(log)
    assert found.fault is StartFault.NOT_DIVISIBLE
    assert "(14)" in found.advice[0]


def test_every_fault_has_a_row_or_comes_from_the_machine() -> None:
    by_signal = {StartFault.KILLED, StartFault.HANG}
    assert {rule.fault for rule in rules()} | by_signal == set(StartFault)


def test_the_page_lists_every_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text()
    assert not [one for one in StartFault if f"`{one}`" not in page]


def test_numbers_and_the_setting_that_fits() -> None:
    found = cause(MADE_UP["out-of-gpu-memory"][1])
    assert found.numbers == {
        "free": "31.44",
        "total": "47.38",
        "asked": "0.95",
        "wanted": "45.01",
    }
    assert "--gpu-memory-utilization 0.66" in found.advice[0]
    lacking = cause(
        "ValueError: To serve at least one request with the model's max seq len "
        "(8192), (1.00 GiB KV cache is needed, which is larger than the available KV "
        "cache memory (0.40 GiB). Based on the available memory, the estimated maximum "
        "model length is 3264. Try increasing"
    )
    assert lacking.numbers["most"] == "3264"
    assert lacking.advice[0] == "--max-model-len 3264 fits the cache as it is"
    assert "0.60 GiB too few" in lacking.sentence


def test_the_engines_own_names_of_options() -> None:
    text = (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    )
    assert "--mem-fraction-static" in cause(text, "sglang").advice[0]
    text = "RuntimeError: No enough gpu memory for kv cache."
    assert "--cache-max-entry-count" in cause(text, "lmdeploy").advice[0]
    assert (
        "--server-port"
        in cause("OSError: [Errno 98] Address already in use", "lmdeploy").advice[0]
    )


def test_a_package_by_its_extra_or_by_its_name() -> None:
    text = "ModuleNotFoundError: No module named '{}'"
    assert cause(text.format("librosa"), release="0.32.0").advice == (
        "pip install 'vllm[audio]==0.32.0'",
    )
    assert cause(text.format("cv2.dnn")).advice == (
        "pip install 'opencv-python-headless'",
    )


def test_the_range_that_the_wheel_asks_for() -> None:
    ranges = {"transformers": "<5.20.0,>=5.16.1"}
    found = cause(MADE_UP["transformers-version"][0], ranges=ranges)
    assert "transformers<5.20.0,>=5.16.1" in found.advice[0]


def test_options_that_are_gone_and_options_that_were_meant() -> None:
    text = (
        "usage: api_server.py [-h] [--max-model-len N]\napi_server.py: error: "
        "unrecognized "
    )
    gone = cause(f"{text}arguments: --swap-space 4")
    assert gone.fault is StartFault.BAD_ARGUMENT
    assert gone.advice[0] == f"--swap-space: {GONE['vllm']['--swap-space']}"
    meant = cause(f"{text}arguments: --max-modle-len=9")
    assert "Did you mean --max-model-len?" in meant.sentence


# -------------------------------------------------------- the first cause, and no other


def test_the_root_comes_before_its_echoes() -> None:
    log = (
        f"{CORE}ValueError: awq quantization is currently not supported in cpu.\n{ECHO}"
    )
    log += "(APIServer pid=7) OSError: [Errno 98] Address already in use\n"
    assert cause(log).fault is StartFault.QUANTISATION


def test_an_unknown_exception_before_the_known_one_is_told() -> None:
    log = (
        f"{CORE}KeyError: 'zebra'\n{CORE}ModuleNotFoundError: No module named 'zebra'\n"
    )
    found = cause(log)
    assert found.fault is StartFault.MISSING_MODULE
    assert "KeyError" in found.why[0]


@pytest.mark.parametrize(
    "line",
    [
        (
            "(A pid=7) WARNING 11-25 10:00:01 [x.py:1] OSError: [Errno 98] Address "
            "already in use"
        ),
        (
            "(APIServer pid=7) INFO 11-25 10:00:01 [x.py:1] loading CUDA out of "
            "memory/model"
        ),
        "INFO:     served model is named: OSError: [Errno 28] No space left on device",
        "some text with ModuleNotFoundError: No module named 'x' in its middle",
    ],
)
def test_what_is_no_exception_is_no_cause(line: str) -> None:
    assert start_cause(lines(line + "\n"), Asked("vllm")) is None


@pytest.mark.parametrize(
    "name",
    [
        "CUDA out of memory",
        "[Errno 98] Address already in use",
        "undefined symbol: _ZN3c10",
        "No module named 'x'",
        "no kernel image is available for execution on the device",
    ],
)
def test_a_path_that_imitates_another_cause(name: str) -> None:
    log = f"RuntimeError: Cannot find any model weights with `/models/{name}`\n"
    assert cause(log).fault is StartFault.WEIGHTS_MISSING
    log = (
        f"OSError: /models/{name} is not a local folder and is not a valid model "
        "identifier\n"
    )
    assert cause(log).fault is StartFault.MODEL_NOT_FOUND


def test_what_a_client_wrote_after_the_server_was_up_is_no_cause() -> None:
    log = (
        "INFO:     Application startup complete.\n"
        "INFO 11-25 10:00:02 [logger.py:39] Received request chatcmpl-1: prompt: 'x\n"
        "ModuleNotFoundError: No module named \\'x\\'', params: SamplingParams(n=1)\n"
    )
    assert start_cause(lines(log), Asked("vllm")) is None


def test_a_warning_that_explains_the_crash_after_it() -> None:
    log = (
        "WARNING 11-25 10:00:01 [cuda.py:21] Failed to import from vllm._C: "
        "ImportError('libcudart.so.13: cannot open shared object file: No such file')\n"
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'\n"
    )
    found = cause(log)
    assert found.fault is StartFault.LIBRARY_MISSING
    assert "CUDA 13" in found.sentence


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (-9, "killed-while-loading"),
        (137, "killed-while-loading"),
        (-11, "native-crash"),
        (139, "native-crash"),
        (-7, "shared-memory"),
    ],
)
def test_a_signal_without_a_word(code: int, wanted: str) -> None:
    found = start_cause(lines("loading\n"), Asked("vllm", exit_code=code))
    assert found is not None
    assert found.fault == wanted


def test_nccl_and_what_it_warned_of() -> None:
    log = (
        "host:7:8 [0] NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-1 (size)\n"
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO "
        "for details)\n"
    )
    assert cause(log).fault is StartFault.SHARED_MEMORY
    assert cause(log.partition("\n")[2]).fault is StartFault.NCCL
    assert start_cause(lines(log.partition("\n")[0]), Asked("vllm")) is not None


def test_an_engine_that_is_gone_without_a_word() -> None:
    gone = (
        "RuntimeError: Engine core initialization failed. See root cause "
        "above. Failed core "
    )
    log = (
        "(Worker pid=3) ERROR 11-26 01:58:47 [x.py:9] BrokenPipeError: [Errno "
        "32] Broken pipe\n"
    )
    found = cause(f"{gone}proc(s): {{}}\n{log}")
    assert (found.fault, found.certain) == (StartFault.KILLED, False)
    other = f"ZebraError: stripes\n{gone}proc(s): {{}}\n"
    assert start_cause(lines(other), Asked("vllm")) is None


def test_an_exit_code_without_an_exception_is_no_cause() -> None:
    assert start_cause(lines("loading\n"), Asked("vllm", exit_code=1)) is None


@given(
    st.lists(st.sampled_from([text for _, text in PAIRS]), max_size=4),
    st.integers(0, 3),
)
@settings(max_examples=80, deadline=None)
def test_fewer_lines_never_make_another_first_cause(texts: list[str], cut: int) -> None:
    """Lines that are taken away at the end change nothing of what comes first."""
    whole = start_cause(lines("\n".join(texts)), Asked("vllm"))
    part = start_cause(
        lines("\n".join(texts[: max(len(texts) - cut, 0)])), Asked("vllm")
    )
    if part is not None and part.certain:
        assert whole is not None
        assert part.fault == whole.fault or any(
            r.echo for r in rules() if r.fault == part.fault
        )


@given(st.binary(max_size=4000))
@settings(max_examples=100, deadline=None)
def test_any_bytes(data: bytes) -> None:
    found = LineReader().take(data, last=True)
    start_cause(found, Asked())
    assert read_start(found).state in StartState


@given(
    st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"\r", b"")), max_size=20),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_log_in_any_blocks_has_the_same_lines(
    parts: list[bytes], data: st.DataObject
) -> None:
    whole = b"(A pid=1) ERROR 11-25 10:00:01 [a.py:1] x\n" * 3 + b"\n".join(parts)
    reader, found, rest = LineReader(), [], whole
    first = 3 * 43  # by which the wrappings are learnt
    found += reader.take(rest[:first])
    rest = rest[first:]
    while rest:
        size = data.draw(st.integers(1, max(1, len(rest))))
        found += reader.take(rest[:size])
        rest = rest[size:]
    found += reader.take(b"", last=True)
    once = LineReader()
    assert found == [*once.take(whole[:first]), *once.take(whole[first:], last=True)]


# ------------------------------------------------------------------ a whole start


def test_states_of_a_start() -> None:
    ready = read_start(
        lines("INFO:     Application startup complete.\n"), engine=get_engine("vllm")
    )
    assert ready.state is StartState.READY
    stops = read_start(lines("INFO 11-25 10:00:01 [x.py:1] Starting to load model\n"))
    assert stops.state is StartState.UNKNOWN
    strange = read_start(lines("ZebraError: stripes\n"))
    assert strange.state is StartState.FAILED
    assert strange.cause is None
    assert "ZebraError: stripes" in strange.sentence


def test_no_word_of_a_client_begins_or_ends_a_start() -> None:
    """What a request's id holds of several lines, and an exception that quotes one."""
    head = "(APIServer pid=10) INFO 11-25 10:00:0{} [{}] "
    begun = "vLLM API server version {}"
    own = (
        head.format(1, "api_server.py:1977") + begun.format("0.24.0") + "\n"
        "(APIServer pid=10) INFO:     Application startup complete.\n"
    )
    added = head.format(5, "async_llm.py:415")
    told = [begun.format("9.9.9"), "ValueError: 5 GiB KV cache is needed", "bye."]
    asked = f"{added}Added request cmpl-1\n" + "".join(
        f"{added}{line}\n" for line in told
    )
    raised = "".join(
        f"(APIServer pid=10) {line}\n"
        for line in (
            "Traceback (most recent call last):",
            (
                '  File "/venv/vllm/v1/structured_output/backend_xgrammar.py", line '
                "3, in validate"
            ),
            "    xgr.Grammar.from_json_schema(schema)",
            (
                '  File "python/tvm_ffi/cython/function.pxi", line 968, in '
                "tvm_ffi.core.Function"
            ),
            f"RuntimeError: Unsupported type {told[0]}",
            told[0],
        )
    )
    found = read_start(lines(own + asked + raised))
    assert (found.state, found.engine, found.release) == (
        StartState.READY,
        "vllm",
        "0.24.0",
    )
    assert found.lines == len(lines(own + asked + raised))


def test_ready_without_a_port_is_not_ready() -> None:
    log = (
        "[2026-11-26 01:08:28] ERROR:    [Errno 98] error while attempting to bind on "
        "address "
        "('127.0.0.1', 55749): address already in use\n"
        "[2026-11-26 01:08:38] The server is fired up and ready to roll!\n"
    )
    found = read_start(lines(log), engine=get_engine("sglang"), exit_code=-9)
    assert found.cause is not None
    assert found.cause.start is not None
    assert found.cause.start.name == "port-taken"


def test_a_start_of_minivllm_is_no_start_of_vllm() -> None:
    """It logs in vLLM's form."""
    log = (
        "(APIServer pid=7) INFO 11-26 01:38:09 [server.py:334] placeholder ids: all\n"
        "(EngineCore pid=7) INFO 11-26 01:38:09 [engine.py:89] EngineCore waiting for "
        "work\n"
        "(APIServer pid=7) INFO 11-26 01:38:10 [server.py:346] ready on port 8000\n"
    )
    found = read_start(lines(log))
    assert (found.state, found.engine) == (StartState.READY, "minivllm")
    quoted = "(APIServer pid=7) INFO 11-26 01:38:10 [logger.py:3] ready on port 8000\n"
    assert read_start(lines(quoted)).engine == "vllm"


def test_the_last_start_counts() -> None:
    begin = (
        "(APIServer pid=7) INFO 11-25 10:00:01 [api_server.py:1] vLLM API "
        "server version 0.32.0\n"
    )
    log = begin + "ModuleNotFoundError: No module named 'x'\n" + begin + "MemoryError\n"
    found = read_start(lines(log))
    assert (found.engine, found.release) == ("vllm", "0.32.0")
    assert found.cause is not None
    assert found.cause.start is not None
    assert found.cause.start.name == "out-of-host-memory"


def test_the_stage_is_named() -> None:
    log = "INFO 11-25 10:00:01 [x.py:1] Starting to load model m\nMemoryError\n"
    found = read_start(lines(log), engine=get_engine("vllm"))
    assert found.stage == "as the model is loaded"


def test_the_engine_is_recognised_by_its_command_or_frames() -> None:
    assert engine_of(
        [], ["python", "-m", "sglang.launch_server", "--model-path", "vllm"]
    ) is (get_engine("sglang"))
    frames = lines(
        '  File "/v/site-packages/lmdeploy/cli/serve.py", line 1, in x\nValueError: y\n'
    )
    assert engine_of(frames) is get_engine("lmdeploy")
    assert engine_of(lines("a model called vllm\n")) is None


def test_the_port_of_a_command() -> None:
    vllm = get_engine("vllm")
    assert port_of(["vllm", "serve", "m", "--port", "81"], vllm) == 81
    assert port_of(["vllm", "serve", "m", "--port=82"], vllm) == 82
    assert port_of(["vllm", "serve", "m"], vllm) == 8000
    assert (
        port_of(["lmdeploy", "x", "--server-port", "83"], get_engine("lmdeploy")) == 83
    )
    assert port_of(["x"], None) is None


ESTIMATE = "Based on the available memory, the estimated maximum model length is 4096. "


def test_the_setting_by_kv_budget() -> None:
    text = (
        "(APIServer pid=7) INFO 11-25 10:00:01 [utils.py:1] non-default args: "
        "{'gpu_memory_utilization': 0.5}\n"
        "ValueError: To serve at least one request with the model's max seq len "
        "(8192), (4.00 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (2.00 "
        "GiB). "
        f"{ESTIMATE}\n"
    )
    found = cause(text)
    setting = fitting(found, lines(text), "vllm", "0.24.0", 80 << 30)
    name, value = setting.split(":")[0].split()
    assert name == "--gpu-memory-utilization"
    # 38 GiB are no KV cache, and 4 GiB are wanted.
    assert Decimal("0.52") <= Decimal(value) <= Decimal("0.54")
    assert fitting(found, lines(text), "vllm", "0.24.0") == "", (
        "the device's size is not known"
    )
    for hybrid in (
        text.replace("is 4096", "is 2560"),
        text.replace(
            (
                " Based on the available memory, the estimated maximum model length "
                "is 4096."
            ),
            "",
        ),
        "INFO 11-25 10:00:01 [x.py:1] Setting attention block size to 544 tokens to "
        "ensure that attention page size is >= mamba page size.\n"
        f"{text}",
    ):
        assert fitting(cause(hybrid), lines(hybrid), "vllm", "0.24.0", 80 << 30) == ""


def numbers(length: int, needed: float, available: float, most: int) -> dict[str, str]:
    return {
        "length": str(length),
        "needed": f"{needed:.2f}",
        "available": f"{available:.2f}",
        "most": str(most),
    }


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("token_bytes", [57344, 131072, 327680])
def test_one_group_grows_with_the_length(block: int, token_bytes: int) -> None:
    for length in (8192, 100_001, 262_144):
        for share in (0.02, 0.3, 0.97):
            blocks = int(-(-length // block) * share)
            pool = blocks * block * token_bytes / 2**30
            needed = -(-length // block) * block * token_bytes / 2**30
            known = pool >= 0.005  # else it is 0.00 GiB in the message
            assert one_group(numbers(length, needed, pool, blocks * block)) is known


@pytest.mark.parametrize(
    ("model", "length", "share"),
    [
        ("gemma-like", 131_072, 0.5),
        ("gemma-like", 32_768, 0.9),
        ("states", 262_144, 0.4),
    ],
)
def test_windows_and_states_do_not(model: str, length: int, share: float) -> None:
    """As kv-budget lays out five groups of a window beside one that grows, or three
    states."""
    full = CacheGroup(LayerKind(FULL, 8, 256), 16)
    window = CacheGroup(LayerKind(WINDOW, 8, 256, reach=1024), 16)
    state = CacheGroup(LayerKind(STATE), 544, mode="align")
    groups = (
        (full, *[window] * 5)
        if model == "gemma-like"
        else (CacheGroup(LayerKind(FULL, 2, 512), 544), *[state] * 3)
    )
    layout = CacheLayout(1 << 25, groups[0].block, groups)
    needed = layout.pages(length)
    blocks = int(needed * share)
    found = numbers(length, needed / 32, blocks / 32, layout.longest(blocks))
    assert not one_group(found)


def test_the_setting_of_sglang_by_kv_budget(tmp_path: Path) -> None:
    model = TinyText().write(tmp_path)
    text = (
        f"[2026-11-26 01:00:00] server_args=ServerArgs(model_path='{model}', x=1)\n"
        "[2026-11-26 01:00:01] Load weight begin. avail mem=20.00 GB\n"
        "[2026-11-26 01:00:02] Load weight end. avail mem=12.00 GB, mem usage=8.00 "
        "GB.\n"
        "[2026-11-26 01:00:03] Scheduler hit an exception: Traceback (most recent call "
        "last):\n"
        "RuntimeError: Not enough memory. Please try to increase "
        "--mem-fraction-static. Current "
        "value: mem_fraction_static=0.3\n"
    )
    found = read_start(lines(text), engine=get_engine("sglang"), release="0.5.23")
    assert found.cause is not None
    # 8 of 20 GB are weights: with 0.40 and less nothing is left.
    name, value = found.cause.advice[0].split(":")[0].split()
    assert (name, value) == ("--mem-fraction-static", "0.41")


def test_a_file_that_may_not_be_read_is_looked_at(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    log = f"FileNotFoundError: No such file or directory: {weights}\n"
    gone = read_start(lines(log), engine=get_engine("vllm"), local=True)
    weights.write_text("x")
    there = read_start(lines(log), engine=get_engine("vllm"), local=True)
    assert gone.cause is not None
    assert gone.cause.start is not None
    assert gone.cause.start.name == "weights-missing"
    assert gone.cause.certainty == "certain"
    assert there.cause is not None
    assert there.cause.start is not None
    assert there.cause.start.name == "permission"


def test_metadata_on_this_machine_has_the_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "list_environments", lambda **_: [])
    info = tmp_path / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Name: vllm\nRequires-Dist: transformers<5.20.0,>=5.16.1\n"
        "Requires-Dist: librosa; extra == 'audio'\n"
    )
    found = reading.asked_ranges("vllm", "0.32.0", [tmp_path])
    assert found == {"transformers": "<5.20.0,>=5.16.1"}


def test_the_judge_of_whole_logs_names_what_is_below() -> None:
    log = (
        "(EngineCore pid=7) INFO 11-25 10:00:01 [x.py:1] Starting to load model m\n"
        f"{CORE}EngineCore failed to start.\n{CORE}Traceback (most recent call last):\n"
    )
    for wanted, name in (
        ("weights-missing", "failed-start"),
        ("out-of-gpu-memory", "failed-start"),
        ("out-of-host-memory", "out-of-host-memory"),
    ):
        text = {
            "weights-missing": "RuntimeError: Cannot find any model weights with `/m`",
            "out-of-gpu-memory": MADE_UP["out-of-gpu-memory"][0],
            "out-of-host-memory": MADE_UP["out-of-host-memory"][1],
        }[wanted]
        judged = judge(lines(f"{log}{CORE}{text}\n{ECHO}"), "vllm").cause
        assert judged.name == name
        assert judged.start is not None
        assert judged.start.name == wanted


# ----------------------------------------------------------------- mmrepro's own starts


def test_the_reason_of_a_start_of_our_own(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"{CORE}ValueError: invalid thread binding\n{ECHO}")
    found = explain(log, get_engine("vllm"), "0.32.0", 1)
    assert found.lines[0] == "ValueError: invalid thread binding"
    assert found.sentence == "The log says: ValueError: invalid thread binding"
    assert found.race == ""
    log.write_text("OSError: [Errno 98] Address already in use\n")
    assert "port" in explain(log, get_engine("vllm"), "0.32.0", 1).race
    log.write_text("EOFError\n")
    assert "0.18.0" in explain(log, get_engine("lmdeploy"), "0.18.0", 1).race
    assert explain(log, get_engine("vllm"), "0.32.0", 1).race == ""


def test_a_start_without_a_log(tmp_path: Path) -> None:
    for path in (tmp_path / "none.log", tmp_path):
        found = explain(path, get_engine("vllm"), "0.32.0", 1)
        assert (found.lines, found.sentence) == ((), "")


def test_without_an_exception_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("\n".join(f"line {i}" for i in range(20)) + "\n\n")
    found = explain(log, get_engine("vllm"), "0.32.0", 1)
    assert found.lines == tuple(f"line {i}" for i in range(14, 20))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_options_are_those_of_the_engine(engine: str) -> None:
    """A real one's usage, as it printed it when it was given an option that it does not
    have."""
    usage = (RECORDED / f"{engine}-unknown-argument.log").read_text()
    assert not [
        n for n in OPTIONS[engine].values() if not re.search(rf"{n}(?![\w-])", usage)
    ]


def test_an_option_that_an_engine_lacks_is_not_advised() -> None:
    log = "RuntimeError: Cannot find any model weights with `/m`"
    assert any("--load-format" in one for one in cause(log, "vllm").advice)
    assert not any("--load" in one for one in cause(log, "lmdeploy").advice)


def test_every_engine_names_the_same_options() -> None:
    assert {frozenset(names) for names in OPTIONS.values()} == {
        frozenset(OPTIONS["vllm"])
    }


# ------------------------------------------------------------------ rules and examples


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.fault.value)
def test_a_rule_is_the_first_that_fits_its_example(rule: StartRule) -> None:
    (row,) = [
        row
        for row in shipped_rules("starts.toml", more=MORE_KEYS)
        if row.expression == rule.pattern.pattern and row.sentence == rule.sentence
    ]
    for example in row.examples:
        events = list(raised(lines(example)))
        engines = [rule.engine] if rule.engine else ["vllm", "sglang", "lmdeploy"]
        assert any(
            matching(event, engine)[0] is rule for event in events for engine in engines
        ), example
