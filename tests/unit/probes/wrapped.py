"""Lines of each form, and what collectors make of them."""

import codecs
import gzip
import json
from collections.abc import Callable, Sequence
from typing import Any

from backports import zstd

STAMP = "2026-11-24T18:12:17.123456789Z"

LINES: dict[str, list[str]] = {
    "vllm": [
        (
            "(APIServer pid=10) INFO 11-24 18:11:01 [api_server.py:1] vLLM API server "
            "version 0.23.0"
        ),
        "(EngineCore_DP0 pid=20) INFO 11-24 18:11:05 [core.py:112] Initializing a V1 "
        "LLM engine (v0.23.0) with config: model='/models/a'",
        "(APIServer pid=10) (EngineCore_0 pid=21) (VllmWorker TP1 pid=33) DEBUG 11-24 "
        "18:11:09 [v1/worker/gpu_worker.py:7] ready",
        (
            "(VllmWorker rank=2 pid=35) INFO 11-24 18:11:10 [pynccl.py:70] vLLM is "
            "using nccl==2.27.3"
        ),
        (
            "(RayWorkerWrapper pid=77, ip=10.0.0.3) WARNING 11-24 18:11:11 "
            "[worker.py:2] slow"
        ),
        (
            "(VllmWorkerProcess pid=36) INFO 11-24 18:11:12 [model_runner.py:5] "
            "Loading weights"
        ),
        "INFO 11-24 18:11:13 metrics.py:467] Avg prompt throughput: 20.8 tokens/s",
        "ERROR 11-24 18:11 [core.py:710] without seconds",
        (
            '(APIServer pid=10) INFO:     10.0.0.9:4242 - "POST /v1/chat/completions '
            'HTTP/1.1" 200 OK'
        ),
        "(EngineCore_DP0 pid=20) ERROR 11-24 18:12:17 [core.py:1195] Traceback (most "
        "recent call last):",
        (
            "(EngineCore_DP0 pid=20) ERROR 11-24 18:12:17 [core.py:1195]   File "
            '"/v/core.py", line 7'
        ),
        "(EngineCore_DP0 pid=20) ERROR 11-24 18:12:17 [core.py:1195] KeyError: 'block'",
        (
            "[rank1]:[E1124 18:22:11.903881913 ProcessGroupNCCL.cpp:632] [Rank 1] "
            "Watchdog caught it"
        ),
        "node-3:4021:4177 [3] transport/net_ib.cc:94 NCCL WARN NET/IB : no completion",
        "CRITICAL 11-24 18:22:12 [launcher.py:99] terminating server process",
    ],
    "sglang": [
        (
            "[2026-11-24 18:11:05] server_args=ServerArgs(model_path='/models/a', "
            "port=30000)"
        ),
        "[2026-11-24 18:11:06 TP6] Load weight begin. avail mem=78.5 GB",
        "[2026-11-24 18:11:07.250 DP1 PP0] Prefill batch, #new-seq: 1, #new-token: 9",
        "[2026-11-24 18:11:08 TP0] Decode batch, #running-req: 1, #token: 44",
        "[18:11:09 TP1] Memory pool end. avail mem=9.5 GB",
        "[TP2] a configuration without times",
        '[2026-11-24 18:11:10] INFO:     10.0.0.9:4242 - "GET /health HTTP/1.1" 200 OK',
        (
            "[2026-11-24 18:12:17 TP6] Scheduler hit an exception: Traceback (most "
            "recent call last):"
        ),
        (
            '  File "/s/sglang/srt/managers/scheduler.py", line 5064, in '
            "run_scheduler_process"
        ),
        "ValueError: the blocks do not add up",
        "[rank3]: Traceback (most recent call last):",
        "[2026-11-24 18:12:18] SIGQUIT received. signum=None, frame=None.",
    ],
    "lmdeploy": [
        (
            "2026-11-24 18:11:05,123 - lmdeploy - INFO - async_engine.py:612 - "
            "session=1, tokens=9"
        ),
        (
            "2026-11-24 18:11:06,001 - lmdeploy - WARNING - [pid=12 ppid=3] - "
            "engine.py:1 - slow"
        ),
        "[TM][INFO] [Forward] step = 12",
        "[TM][ERROR] CUDA runtime error: an illegal memory access was encountered",
        'INFO:     10.0.0.9:4242 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        (
            "2026-11-24 18:12:17,633 - lmdeploy - ERROR - engine.py:900 - Engine loop "
            "failed"
        ),
        "IndexError: map::at",
    ],
}

Lines = Sequence[str]


def each(wrap: Callable[[str], str]) -> Callable[[Lines], bytes]:
    return lambda lines: "".join(f"{wrap(line)}\n" for line in lines).encode()


def as_json(make: Callable[[str], dict[str, Any]]) -> Callable[[Lines], bytes]:
    return each(lambda line: json.dumps(make(line)))


def cri_cut(lines: Lines) -> bytes:
    """Each longer line in two pieces."""
    out = []
    for line in lines:
        if len(line) > 30:
            out.append(f"{STAMP} stderr P {line[:25]}")
            line = line[25:]
        out.append(f"{STAMP} stderr F {line}")
    return "".join(f"{line}\n" for line in out).encode()


def text_colours(escape: str) -> Callable[[Lines], bytes]:
    return each(lambda line: f"{escape}[1;36m{line[:5]}{escape}[0;0m{line[5:]}")


def bar(line: str) -> str:
    """What is printed while a bar stands there is glued to it; a continuation comes
    later."""
    glued = line and line[0] in "(["
    return (
        f"Loading:  45%|####5     | 9/20 [00:01<00:02,  4.51it/s]{line}"
        if glued
        else line
    )


WRAPPED: dict[str, Callable[[Lines], bytes]] = {
    "plain": each(str),
    "CRLF": each(lambda line: f"{line}\r"),
    "ANSI": text_colours("\x1b"),
    "^[ as text": text_colours("^["),
    "\\x1b as text": text_colours("\\x1b"),
    "#033 as text": text_colours("#033"),
    "escapes lost": text_colours(""),
    "BOM": lambda lines: codecs.BOM_UTF8 + each(str)(lines),
    "UTF-16": lambda lines: each(str)(lines).decode().encode("utf-16"),
    "UTF-16 BE": lambda lines: (
        codecs.BOM_UTF16_BE + each(str)(lines).decode().encode("utf-16-be")
    ),
    "UTF-32": lambda lines: each(str)(lines).decode().encode("utf-32"),
    "gzip": lambda lines: gzip.compress(each(str)(lines)),
    "zstd": lambda lines: zstd.compress(each(str)(lines)),
    "gzip of UTF-16": lambda lines: gzip.compress(
        each(str)(lines).decode().encode("utf-16")
    ),
    "docker -t": each(lambda line: f"{STAMP} {line}"),
    "docker json-file": as_json(
        lambda line: {"log": f"{line}\n", "stream": "stderr", "time": STAMP}
    ),
    "CRI": each(lambda line: f"{STAMP} stdout F {line}"),
    "CRI, cut": cri_cut,
    "compose": each(lambda line: f"engine-1  | {line}"),
    "compose -t": each(lambda line: f"engine-1  | {STAMP} {line}"),
    "journald short": each(lambda line: f"Nov 24 18:12:17 gpu1 vllm[812]: {line}"),
    "journald short-iso": each(
        lambda line: f"2026-11-24T18:12:17+0000 gpu1 vllm[812]: {line}"
    ),
    "journald json": as_json(
        lambda line: {
            "__REALTIME_TIMESTAMP": "1795543937123456",
            "_HOSTNAME": "gpu1",
            "SYSLOG_IDENTIFIER": "engine",
            "PRIORITY": "6",
            "MESSAGE": line,
        }
    ),
    "RFC 5424": each(lambda line: f"<14>1 {STAMP} gpu1 engine 812 - - {line}"),
    "RFC 3164": each(lambda line: f"<14>Nov 24 18:12:17 gpu1 engine[812]: {line}"),
    "fluent-bit": as_json(
        lambda line: {
            "date": 1795543937.1,
            "log": f"{line}\n",
            "kubernetes": {"pod_name": "engine-0", "container_name": "server"},
        }
    ),
    "fluent-bit, nested": as_json(
        lambda line: {
            "@timestamp": STAMP,
            "log": {"log": line},
            "kubernetes": {"pod_name": "e-0"},
        }
    ),
    "CloudWatch": each(lambda line: f"2026-11-24T18:12:17.123Z\n{line}"),
    "loki": each(lambda line: f'{STAMP} {{app="engine", pod="e-0"}} {line}'),
    "ts": each(lambda line: f"Nov 24 18:12:17 {line}"),
    "srun -l": each(lambda line: f" 3: {line}"),
    "grep -n": lambda lines: "".join(
        f"{n}:{line}\n" for n, line in enumerate(lines, 98)
    ).encode(),
    "grep -H": each(lambda line: f"logs/server.log:{line}"),
    "quoted": each(lambda line: f"> {line}"),
    "indented": each(lambda line: f"    {line}"),
    "kubectl --prefix": each(lambda line: f"[pod/engine-0/server] {line}"),
    "kubectl --prefix --timestamps": each(
        lambda line: f"[pod/engine-0/server] {STAMP} {line}"
    ),
    "stern": each(lambda line: f"engine-0 server {line}"),
    "Ray": each(lambda line: f"(ServeReplica:default:LLM pid=9, ip=10.0.0.2) {line}"),
    "tqdm": each(bar),
    "tqdm with CR": each(
        lambda line: f"Loading:  45%|##  | 9/20 [00:01<00:02, 4it/s]\r{line}"
    ),
    "a pod called like another": each(
        lambda line: f"[pod/vllm-sglang-lmdeploy/vllm] {line}"
    ),
    # wrappings in wrappings
    "compose over docker json-file": each(
        lambda line: "engine-1  | " + json.dumps({"log": f"{line}\n", "time": STAMP})
    ),
    "docker json-file of kubectl": as_json(
        lambda line: {"log": f"[pod/e-0/s] {line}\n", "stream": "stderr", "time": STAMP}
    ),
    "quoted compose -t": each(lambda line: f"> engine-1  | {STAMP} {line}"),
    "journald of docker -t, gzip": lambda lines: gzip.compress(
        each(lambda line: f"Nov 24 18:12:17 gpu1 dockerd[3]: {STAMP} {line}")(lines)
    ),
}

STREAMS = {
    "compose": "engine-1",
    "compose -t": "engine-1",
    "journald short": "gpu1/vllm",
    "RFC 5424": "gpu1/engine",
    "fluent-bit": "engine-0/server",
    "journald json": "engine",
    "kubectl --prefix": "engine-0/server",
    "stern": "engine-0/server",
    "grep -H": "logs/server.log",
    "Ray": "ServeReplica:default:LLM pid=9",
    "docker -t": "",
    "plain": "",
    "srun -l": "",
    "ts": "",
}
