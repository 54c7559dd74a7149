"""NCCL's own report of its ranks, and PyTorch's Flight Recorder, of real ranks on one
GPU.

    python benchmarks/nccl_ras.py --out DIR [--ranks 3] [--only STATE] [--python PYTHON]

Needs one NVIDIA GPU, and torch with NCCL 2.24 or later. NCCL refuses two ranks on one
GPU of one node; each rank here has a node's name of its own (``NCCL_HOSTID``), so they
talk over sockets on the loopback interface. Three states, each with fresh ranks:

- ``healthy``: all have done their operations, and wait for nothing.
- ``absent``: rank 1 sleeps, and never enters the all_reduce in which the others wait.
- ``killed``: the last rank is ended by SIGKILL while the others wait for it in an
  all_reduce.

``STATE.txt`` and ``STATE.json`` are the two forms of what the service answers, byte for
byte; ``STATE-later.*`` the same after 20 s more; ``STATE-probe.json`` is what
``mmrepro.probes.ras`` reads of it; ``STATE-trace_N.json`` the Flight Recorder of a
rank. A line is printed for each."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

RAS = ("127.0.0.1", 28028)
STATES = ("healthy", "absent", "killed")
READY_S = 90.0


def rank_main(state: str, rank: int, size: int, port: int, out: Path) -> None:
    """One rank: three all_reduce, a broadcast, and what the state asks for."""
    import datetime

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=600),
        device_id=torch.device("cuda", 0),
    )
    value = torch.ones(1024, device="cuda")
    for _ in range(3):
        dist.all_reduce(value)
    dist.broadcast(value, 0)
    torch.cuda.synchronize()
    _dump(rank, out, state, "before")
    (out / f"{state}-{rank}.ready").write_text(str(os.getpid()))
    while not (out / f"{state}.go").exists():
        time.sleep(0.05)
    waits = (state == "absent" and rank != 1) or (
        state == "killed" and rank != size - 1
    )
    if waits:
        dist.all_reduce(value, async_op=True)
    end = time.monotonic() + 120
    dumped = False
    while time.monotonic() < end and not (out / f"{state}.end").exists():
        if not dumped and (out / f"{state}.dump").exists():
            _dump(rank, out, state, "")
            dumped = True
        time.sleep(0.05)
    os._exit(0)  # an operation that never ends keeps an orderly end from its end


def _dump(rank: int, out: Path, state: str, when: str) -> None:
    from torch._C import _distributed_c10d as c10d

    # The other name, _dump_fr_trace_json, is that of groups without NCCL.
    told = c10d._dump_nccl_trace_json(True, False)
    text = told.decode() if isinstance(told, bytes) else str(told)
    (out / f"{state}-{when + '-' if when else ''}trace_{rank}.json").write_text(text)


def ask(form: str, timeout_s: float = 8.0) -> bytes:
    """The whole answer, as the service sends it."""
    with socket.create_connection(RAS, timeout_s) as connection:
        connection.settimeout(timeout_s)
        commands = ["CLIENT PROTOCOL 2", "TIMEOUT 2"]
        commands += ["SET FORMAT json"] if form == "json" else []
        commands += ["VERBOSE STATUS"]
        lines = connection.makefile("rb")
        said = b""
        for command in commands[:-1]:
            connection.sendall(command.encode() + b"\n")
            said += lines.readline()
        connection.sendall(commands[-1].encode() + b"\n")
        return b"# " + said.replace(b"\n", b" | ") + b"\n" + lines.read()


def record(out: Path, name: str) -> None:
    for form in ("txt", "json"):
        try:
            began = time.monotonic()
            whole = ask(form)
            took = time.monotonic() - began
            head, _, answer = whole.partition(b"\n")
            (out / f"{name}.{form}").write_bytes(answer)
            print(
                f"{name}.{form}: {len(answer)} bytes in {took:.2f} s; {head.decode()}",
                flush=True,
            )
        except OSError as error:
            print(f"{name}.{form}: {error}", flush=True)
    try:
        from mmrepro.probes.base import run_probe
        from mmrepro.probes.ras import RasProbe
    except ImportError as error:
        print(f"{name}: mmrepro is not installed here: {error}")
        return
    began = time.monotonic()
    read = run_probe(RasProbe(), out / "raw", 3)
    (out / f"{name}-probe.json").write_text(read.model_dump_json(indent=1))
    print(
        f"{name}: the probe says {read.status.value} in {time.monotonic() - began:.2f} "
        "s"
    )


def state_of(state: str, size: int, out: Path, python: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(size):
        env = os.environ | {
            "NCCL_HOSTID": f"node-{rank}",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
            "NCCL_DEBUG": "WARN",
            "TORCH_FR_BUFFER_SIZE": "200",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "200",
            "TORCH_NCCL_ENABLE_MONITORING": "0",
        }
        words = ["--rank", str(rank), "--only", state, "--port", str(port)]
        command = [python, __file__, *words, "--ranks", str(size), "--out", str(out)]
        with (out / f"{state}-{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    try:
        end = time.monotonic() + READY_S
        while not all((out / f"{state}-{n}.ready").exists() for n in range(size)):
            if time.monotonic() > end or any(one.poll() is not None for one in ranks):
                for n in range(size):
                    print(f"rank {n}: ", (out / f"{state}-{n}.log").read_text()[-1500:])
                return
            time.sleep(0.1)
        (out / f"{state}.go").touch()
        time.sleep(2.0)
        if state == "killed":
            ranks[-1].send_signal(signal.SIGKILL)
            ranks[-1].wait()
            time.sleep(1.0)
        record(out, state)
        (out / f"{state}.dump").touch()
        time.sleep(1.0)
        if state != "healthy":
            time.sleep(20.0)
            record(out, f"{state}-later")
    finally:
        (out / f"{state}.end").touch()
        for one in ranks:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--only", choices=STATES)
    told = "the interpreter that has torch; mmrepro is this one's"
    parser.add_argument("--python", default=sys.executable, help=told)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.rank is not None:
        rank_main(given.only, given.rank, given.ranks, given.port, given.out.absolute())
        return 0
    for state in (given.only,) if given.only else STATES:
        state_of(state, given.ranks, given.out.absolute(), given.python)
    files = sorted(file.name for file in given.out.iterdir())
    print(json.dumps(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
