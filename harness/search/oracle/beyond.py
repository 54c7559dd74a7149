"""Limits of this machine and of the stand-ins: what fails for them is no finding of the
engine.

A run without a GPU has other kernels than production: an operation that torch's CPU
build, the engine's CPU build or a stand-in lacks raises, whatever the request. That
says nothing about the engine, and is told apart by the words of the exception."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GPU_ONLY = (
    r"triton\w*|flash_?infer\w*|flash_?attn\w*|flash_mla\w*|sgl_kernel\w*|deep_?gemm\w*"
    r"|deep_?ep\w*"
    r"|vllm\._\w+|vllm\.vllm_flash_attn|_turbomind|cupy\w*|pynvml|py3nvml|nixl\w*"
    r"|mooncake\w*"
    r"|xformers|bitsandbytes|tilelang\w*|cutlass\w*|cuda(?:\.\w+)*|tvm_ffi|aiter\w*"
    r"|mscclpp\w*"
    r"|dlblas\w*|fast_hadamard_transform|causal_conv1d\w*|mamba_ssm\w*|torch_npu"
    r"|habana\w*"
)
"""Packages that hold kernels, or a GPU's libraries: environments without a GPU leave
them out."""
_LIMITS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # torch: ATen/Dispatch.h, and a dispatcher without a kernel for the CPU
        r"""(?P<op>["']?[\w.]+["']?) not implemented for ['"](?:CPU|B?Float\w*|Half|Double|"""
        r"""Complex\w*|Int|Long|Short|Byte|Char|Bool|UInt\w*)['"]""",
        (
            r"Could not run '(?P<op>[\w:.]+)' with arguments from the '(?:CPU"
            r"|QuantizedCPU|SparseCPU)'"
        ),
        r"no kernel found .{0,40}(?P<op>[\w:.]+).{0,40}\bCPU\b",
        # torch.ops of a compiled package that is not there
        r"'_OpNamespace' '(?P<name>\w+)' object has no attribute '(?P<op>\w+)'",
        # torch without CUDA, or without a driver
        r"(?P<op>Torch not compiled with CUDA)",
        (
            r"(?P<op>Found no NVIDIA driver|No CUDA GPUs are available"
            r"|no CUDA-capable device)"
        ),
        r"(?P<op>Cannot access accelerator device)",
        # SGLang's grammars before 0.5.23, and other branches that only a CPU takes
        r"object has no attribute '(?P<op>\w+_cpu)'",
        r"(?P<op>Unsupported device: cpu)",
        # xgrammar's kernel for CPUs; those for GPUs take other formats as well
        r"(?P<op>logits must be of type float32)",
        r"(?P<op>CUDA driver (?:initialization failed|version is insufficient))",
        r"module 'torch\._C' has no attribute '(?P<op>_cuda\w+)'",
        (
            r"(?P<op>lib(?:cuda|cudart|nvrtc|cublas|cudnn|nccl"
            r"|nvidia-ml)[\w.-]*\.so[.\d]*)"
        ),
        r"(?P<op>CUDA_HOME) environment variable is not set",
        r"(?P<op>NVML) ?(?:Shared Library Not Found|Error|library)",
        # Triton: driver.py, and what the engines make of it
        r"(?P<op>\d+ active drivers) \(\[",
        r"(?P<op>Triton|FlashInfer|FlashAttention|DeepGEMM|TurboMind|CUTLASS)\b.{0,40}"
        r"\b(?:is |are )?(?:not (?:installed|available|supported)|unavailable|required"
        r"|disabled)",
        rf"No module named '?(?P<op>(?:{_GPU_ONLY})\b[\w.]*)",
        rf"cannot import name '(?P<op>\w+)' from '(?:{_GPU_ONLY})\b",
        # the engines' own words for what only a GPU does
        r"(?P<op>[\w .,'`()-]{0,80}?)\b(?:is |are )?(?:not|n't)(?: yet| currently)? "
        r"(?:supported|implemented|available) (?:on|for|by|with|in) (?:the )?"
        r"(?:CPUs?\b|CPU (?:backend|platform|device)|device type ['\"]?cpu"
        r"|platform cpu)",
        r"\bCPU(?: backend| platform| worker| executor| device)? (?:does not|doesn't"
        r"|cannot|only) "
        r"(?P<op>supports? [\w .,'`()-]{0,80})",
        r"(?P<op>[\w .,'`()-]{0,80}?) (?:is |are )?(?:only (?:be )?"
        r"(?:supported|available|enabled|implemented)"
        r"|only (?:works?|runs?)|supports? only|only supports?) (?:on |with |by |for )?"
        r"(?:an? )?(?:NVIDIA|CUDA|GPUs?|ROCm|AMD|Hopper|Blackwell|Ampere|SM ?\d\d+)\b",
        r"(?P<op>[\w .,'`()-]{0,80}?) requires? (?:an? |at least )?(?:NVIDIA |CUDA "
        r"|AMD )?"
        r"(?:GPUs?\b|CUDA\b|ROCm\b|(?:compute|device) capability|SM ?\d\d+|Hopper"
        r"|Blackwell)",
        r"(?P<op>[\w .,'`()-]{0,80}?) (?:is |are )?not supported for the current GPU",
        r"[Pp]latform .{0,40}does not support (?P<op>[\w .,'`()-]{0,80})",
        r"(?P<op>[Ww]orld size \(?\d+\)? is larger than .{0,60}GPUs)",
        (
            r"(?P<op>[Ii]ntel AMX|AVX-?512\w*) (?:is|are) (?:required|not supported"
            r"|not available)"
        ),
        # mmrepro's own stand-ins
        r"(?P<op>[\w.]+) was called, but this is mmrepro's stand-in",
        r"(?P<op>mmrepro's stand-in for [\w ]+ has no .{1,60})",
        r"(?P<op>the stand-in has no operators .{1,60})",
    )
)
_ILLEGAL = -4
"""Exit code of a process that met an instruction which this processor does not have
(SIGILL)."""


def limit_of(
    texts: Iterable[str], device: str = "cpu", exit_code: int | None = None
) -> str:
    """What this machine, or a stand-in, cannot do; "": none of ``texts`` says such a
    thing.

    Args:
        texts: exceptions and answers; the first that fits decides.
        device: of the run; on a GPU the same words are the engine's, and none is a
            limit.
        exit_code: of the server's first process.
    """
    if device != "cpu":
        return ""
    # Inside JSON.
    for text in (one.replace('\\"', '"').replace("\\'", "'") for one in texts):
        for limit in _LIMITS:
            if found := limit.search(text):
                op = " ".join(
                    filter(None, (found.groupdict().get("name"), found["op"]))
                )
                return " ".join(op.split()).strip(" .,:'\"`") or " ".join(
                    found[0].split()
                )

    return (
        "an instruction that this processor lacks (SIGILL)"
        if exit_code == _ILLEGAL
        else ""
    )


def sentence(what: str, whose: str) -> str:
    """``Not testable here: r1 needs topk_cuda, which a machine without a GPU does not
    have.``"""
    return (
        f"Not testable here: {whose} needs what this machine without a GPU, or a "
        f"stand-in, does not have: {what}."
    )
