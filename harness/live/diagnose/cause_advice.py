"""What to do next, by class: concrete, with the setting's name in that engine, as the
``advice.toml`` of its folder has it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mmrepro.engines.folders import table
from mmrepro.failure.documents import CauseClass as C

_BLOCKING = (
    "start it once with CUDA_LAUNCH_BLOCKING=1: the traceback then ends at the "
    "kernel that failed"
)
_CARD = (
    "nvidia-smi -q -d ECC,ROW_REMAPPER and dmesg | grep -i xid tell a broken "
    "card from a kernel"
)
_DRAIN = (
    "the card is at fault, not the engine: take the node out and reset or "
    "replace the card"
)
_STACKS = (
    "while it hangs, run `py-spy dump --pid PID` for each rank to see which one differs"
)
_LIVE = "if it is still hung, run `mmrepro diagnose URL` to see where"
_DMESG = "dmesg -T | grep -i -E 'killed process|xid|segfault' names what the kernel did"

ADVICE: Mapping[C, tuple[str, ...]] = {
    C.GPU_FAULT: (_BLOCKING, _CARD),
    C.OUT_OF_GPU_MEMORY: (
        "nvidia-smi shows what else has memory on that GPU",
        "mmrepro kv-budget tells what the model leaves for the KV cache",
    ),
    C.OUT_OF_HOST_MEMORY: (
        "give the container more memory, or run fewer processes on the machine",
        "mmrepro watch follows its memory: does it grow with each request?",
    ),
    C.OUT_OF_KV_CACHE: ("mmrepro kv-budget tells how many tokens fit",),
    C.COLLECTIVE_TIMEOUT: (
        (
            "the rank that is missing from the messages is the one that stands: read "
            "its lines"
        ),
        _STACKS,
        "TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.9) and "
        "NCCL_DEBUG=INFO keep what each rank was doing",
    ),
    C.WORKER_UNRESPONSIVE: (_STACKS, _LIVE),
    C.HANG: (
        _LIVE,
        "keep its evidence before it is restarted: mmrepro diagnose URL --out DIR",
    ),
    C.NATIVE_CRASH: (
        (
            "start it with PYTHONFAULTHANDLER=1: the log then has the Python stack of "
            "the crash"
        ),
        (
            "coredumpctl gdb, or ulimit -c unlimited before the next start, keeps the "
            "native one"
        ),
    ),
    C.KILLED_BY_SIGNAL: (
        _DMESG,
        "in Kubernetes, kubectl describe pod names the last state: OOMKilled, or a "
        "probe that failed",
    ),
    C.DIED_WITHOUT_A_WORD: (
        _DMESG,
        "the exit code of the process tells a signal (128 + its number) from an exit",
    ),
    C.MACHINE_LIMIT: (
        "raise the limit for the server's user or container, and start it again",
    ),
    C.NETWORK: (
        "was the other side gone first? The lines of the other ranks and nodes tell",
        "NCCL_DEBUG=INFO shows which interface is used; NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME choose another",
    ),
    C.ENGINE_DEFECT: (
        "mmrepro find LOG looks for it among the known failures",
        "mmrepro replay shrinks recorded traffic to what brings it about",
    ),
    C.KILLED_BY_INPUT: (
        (
            "refuse or rewrite the field at the gateway: a restart meets the same "
            "request again"
        ),
        "if there is a newer release (mmrepro list --alive names it), try the request "
        "there: most of these are answered with 400",
    ),
    C.PLACEHOLDER_COUNTS: (
        "answers to such requests are wrong or missing: look for placeholder tokens in "
        "the prompt's text, and for another version of transformers than the release "
        "was made for",
        "try it with chunked prefill and the multimodal cache off",
    ),
    C.NEVER_FITS: (
        "everything behind it in the queue waits as well: end the client that sent it",
        "mmrepro kv-budget tells how many tokens fit",
    ),
    C.GRAMMAR_LOOP: (
        "find the request with the grammar or schema (response_format, "
        "structured_outputs) and "
        "bound its size",
    ),
    C.FAILED_START: ("mmrepro why LOG names what is below it",),
    C.OVERLOADED: (
        "more replicas or less traffic; a shorter queue limit fails faster",
    ),
    C.ALIVE: ("mmrepro diagnose URL looks at the server itself",),
    C.UNKNOWN: (
        (
            "give the whole log, from its start to its last line, and those of the "
            "other ranks"
        ),
    ),
    C.NOT_A_LOG: ("give what the server printed: its standard output and error",),
}

_LIMITS: tuple[tuple[str, str], ...] = (
    (
        r"open files|Errno 24",
        "ulimit -n 1048576, or LimitNOFILE= of its unit, before it starts",
    ),
    (
        r"thread|pthread|temporarily unavailable",
        "ulimit -u and the container's pids limit (--pids-limit) bound its threads; "
        "OMP_NUM_THREADS=1 needs fewer",
    ),
    (
        r"shared memory|shm|Bus error|mmap",
        "df -h /dev/shm; give the container --shm-size 16g or --ipc host",
    ),
    (
        r"space left|quota|Errno 28|Errno 122",
        "df -h and df -i of its cache, its temporary folder and /dev/shm",
    ),
)
_BROKEN_CARD = re.compile(
    r"Xid (?:48|61|62|63|64|74|79|92|94|95|119|120|140|143|145|149)\b"
    r"|fallen off the bus|"
    r"GPU is lost|uncorrectable"
)


def _in_force(advice: str, settings: str) -> bool:
    """Whether the server has the switch with which ``advice`` begins, by its own
    log."""
    switch = re.match(r"--((?:disable|enable|enforce|eager|no)-?[\w-]*)", advice)
    if switch is None:
        return False
    field = switch[1].replace("-", "_")
    return (
        re.search(rf"\b{field}['\"]?(?:=|: ?)True\b|--{switch[1]}\b", settings)
        is not None
    )


def advice_for(name: C, engine: str, text: str, settings: str = "") -> list[str]:
    """What to do next, without what is in force already.

    Args:
        text: what the log says of it.
        settings: lines in which the server logs its own.
    """
    own = table(engine, "advice.toml").get(name.value, ())
    told = [*own, *ADVICE.get(name, ())]
    if name is C.GPU_FAULT and _BROKEN_CARD.search(text):
        told = [_DRAIN, _CARD]
    if name is C.MACHINE_LIMIT:
        told = [advice for pattern, advice in _LIMITS if re.search(pattern, text)][
            :1
        ] + told
    return [advice for advice in told if not _in_force(advice, settings)]
