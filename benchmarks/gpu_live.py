"""``mmrepro diagnose`` and ``watch`` on real servers that run on a GPU.

    python benchmarks/gpu_live.py [minivllm] [vllm] --out DIR

One server after the other (minivllm 0.1, vLLM 0.23.0, each with CUDA graphs; minivllm
once more with CUDA's core dump on request, for ``--gpu-core``), idle, under load, then
with a kernel that takes a minute and a half (``torch.cuda._sleep``) queued before the
next step, then with the engine asleep in Python. Each is looked at with ``diagnose``,
the stuck kernel with ``--native`` besides; ``watch --once`` looks at the healthy one. A
row has what was done, the state, the process, the innermost frame and whether that is
right; ``DIR/NAME/`` is the incident. Exit code: 1 where a row is false."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/evidence"))

from mmrepro.failure.documents.diagnosis import ServerState as S
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from record_ranks import Case, Server, served

GRAPHS = json.dumps(
    {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 2, 4],
    }
)
"""No compilation, which takes minutes; the decode steps of up to four requests are
replayed."""
SERVERS = {
    "minivllm": Case(
        "minivllm", engine="minivllm", release="0.1", options=(), model="qwen3"
    ),
    "vllm": Case(
        "vllm",
        release="0.23.0",
        options=("--no-enforce-eager", "--compilation-config", GRAPHS),
        model="text",
    ),
}
SERVERS["minivllm-core"] = replace(
    SERVERS["minivllm"],
    env={
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": (
            "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,"
            "skip_local_memory,skip_constbank_memory,skip_abort"
        ),
    },
)
"""With CUDA's pipe for a core dump of its GPU; the dump is small."""
KERNEL_S = 90.0
"""As long as the queued kernel takes, and a little more."""

Row = tuple[str, bool, str]


def looked(server: Server, out: Path, right: frozenset[S], **more: object) -> Row:
    logs = (server.folder / "server.log",)
    asked = DiagnoseCommand(url=server.url, out=out, logs=logs)
    found = diagnose(replace(asked, **more)).diagnosis  # type: ignore[arg-type]
    frames = [frame.function for frame in found.assessment.frames]
    told = f"{found.state.value}; {found.assessment.process}; {frames[:2]}; "
    return out.name, found.state in right, told + found.assessment.sentence


def watch(server: Server, name: str) -> Row:
    command = [sys.executable, "-m", "mmrepro", "watch", server.url, "--once", "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    lines = [
        json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")
    ]
    told = [f"{line.get('event')} {line.get('state')}" for line in lines]
    return (
        name,
        bool(lines) and lines[-1].get("state") == "ready",
        f"{ran.returncode}: {told}",
    )


def rows(name: str, case: Case, out: Path, device: str) -> Iterator[Row]:
    good, began = frozenset({S.HEALTHY}), time.monotonic()
    stuck = frozenset({S.KERNEL_STUCK})
    with served(replace(case, device=device)) as server:
        print(f"{name} is ready after {time.monotonic() - began:.1f} s", flush=True)
        core = "front" if case.engine == "minivllm" else "EngineCore"
        for _ in range(2):
            server.ask()
        yield looked(server, out / f"{name}-idle", good)
        yield watch(server, f"{name}-watch")
        server.load(2)
        yield looked(server, out / f"{name}-load", good)
        if device == "cpu":
            return
        server.hurt("kernel", core)
        queued = time.monotonic()
        time.sleep(2.0)
        if case.env:
            yield looked(server, out / f"{name}-kernel", stuck, gpu_core=True)
            return
        yield looked(server, out / f"{name}-kernel", stuck)
        yield looked(server, out / f"{name}-kernel-native", stuck, native=True)
        while time.monotonic() < queued + KERNEL_S:
            time.sleep(1.0)
        server.ask(timeout_s=60)
        yield looked(server, out / f"{name}-kernel-over", good)
        if core == "front":
            return
        server.hurt("python", core)
        time.sleep(1.0)
        yield looked(
            server,
            out / f"{name}-python",
            frozenset({S.FROZEN_NATIVE, S.FROZEN_PYTHON}),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SERVERS], metavar="SERVER")
    parser.add_argument("--out", type=Path, required=True)
    told = "cpu: to try this script, without the kernel"
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=told)
    given = parser.parse_args()
    bad = 0
    for name in given.names or SERVERS:
        for what, right, told in rows(name, SERVERS[name], given.out, given.device):
            bad += not right
            print(f"{what:<24} {'right' if right else 'FALSE':<6} {told}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
