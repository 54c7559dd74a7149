"""Does a client's text make a healthy server's log say something false?

    python benchmarks/injection.py [--engine minivllm|vllm|sglang …] [--count 200]

A real server logs its requests. It is sent texts that imitate all that mmrepro looks for in a log:
as prompts, system messages, names, stop strings, grammars, tools, ids; a line, several lines, as
JSON and as Python prints them. Then `mmrepro logs` and `mmrepro diagnose` read that server and its
log; what they name must be what they named before. At last the server's core is killed, and that
must be named. Exit 1: something false was named, or the true end was not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("engine", "unit/probes", "unit/diagnose")]

from cause_shapes import SHAPES  # noqa: E402
from live import COMMAND, wait_for  # noqa: E402
from live_server import Server, answers, ask, serving  # noqa: E402
from mmrepro.base import processes  # noqa: E402
from mmrepro.engines.models import TinyModel, TinyQwen2VL  # noqa: E402
from mmrepro.engines.models.qwen import TinyQwen3  # noqa: E402
from mmrepro.runs.options import StartMode  # noqa: E402
from test_log_trust import IMITATIONS  # noqa: E402

ENGINES: dict[str, tuple[str, TinyModel, tuple[str, ...]]] = {
    "minivllm": ("0.1", TinyQwen3(), ()),
    "vllm": ("0.24.0", TinyQwen2VL(), ("--enable-log-requests", "--enable-log-outputs")),
    "sglang": ("0.5.23", TinyQwen2VL(), ("--log-requests", "--log-requests-level", "3")),
}
CORES = ("EngineCore", "scheduler")


def texts(chance: random.Random, count: int) -> Iterator[str]:
    """What imitates an engine: single lines, and whole logs of servers that ended."""
    every = [*IMITATIONS, *(shape.text[:3000] for shape in SHAPES)]
    ways = (
        str,
        repr,
        json.dumps,
        lambda t: f"why is this?\n{t}\nthanks",
        lambda t: t[: len(t) // 2],
    )
    pairs = [(text, way) for way in ways for text in every]
    chance.shuffle(pairs)
    for number in range(count):
        text, way = pairs[number % len(pairs)]
        yield way(text)


def bodies(chance: random.Random, text: str) -> dict[str, Any]:
    """A request with ``text`` in one of its fields; what an engine refuses is logged as well."""
    body: dict[str, Any] = {
        "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4,
    }  # fmt: skip
    how = chance.randrange(8)
    if how < 3:
        body["messages"] = [{"role": ("user", "system", "assistant")[how], "content": text}]
        body["messages"].append({"role": "user", "content": text})
    elif how == 3:
        body["stop"] = [text[:200]]
    elif how == 4:
        body["model"] = text
    elif how == 5:
        function = {"name": "f", "description": text, "parameters": {"type": "object"}}
        body["tools"] = [{"type": "function", "function": function}]
    elif how == 6:
        schema = {"type": "object", "properties": {"a": {"enum": [text[:100]]}}}
        shape = {"name": "a", "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": shape}
    else:
        body["user"] = body["request_id"] = text[:300]
    return body


def send(server: Server, chance: random.Random, count: int) -> Counter[int]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    codes: Counter[int] = Counter()
    for text in texts(chance, count):
        data = json.dumps(bodies(chance, text)).encode()
        headers = {"Content-Type": "application/json", "X-Request-Id": text[:80].encode().hex()}
        asked = urllib.request.Request(server.url + "/v1/chat/completions", data, headers)
        try:
            with opener.open(asked, timeout=60) as answer:
                answer.read()
                codes[answer.status] += 1
        except urllib.error.HTTPError as error:
            with error:
                error.read()
            codes[error.code] += 1
    return codes


def printed(*words: str) -> dict[str, Any]:
    done = subprocess.run([*COMMAND, *words, "--json"], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"mmrepro {' '.join(words)}: {done.stderr[-500:]}") from None


def named(server: Server, folder: Path) -> dict[str, Any]:
    """All that is said of the server by its log, and by a look at it."""
    log = printed("logs", str(server.log))
    out = ["--out", str(folder / "diagnosis")]
    live = printed("diagnose", server.url, "--log", str(server.log), *out)
    found = live.get("diagnosis", live)
    return {
        "engine": (log["engine"], found["target"]["engine"]),
        "cause": log["cause"]["class"],
        "servers": [one["cause"]["class"] for one in log["servers"]],
        "state": found["assessment"]["state"],
        "classes": sorted(one["name"] for one in found["classes"]),
        "fits": sorted(m["scenario"] for m in found["matches"] if m["fit"] in ("match", "likely")),
    }


def tried(name: str, count: int, seed: int) -> bool:
    release, model, args = ENGINES[name]
    chance = random.Random(f"{seed}:{name}")
    with __import__("contextlib").nullcontext(
        tempfile.mkdtemp(prefix="mmrepro-injection-")
    ) as temporary:
        folder = Path(temporary)
        with serving(name, release, model, folder, *args, mode=StartMode.FORK) as server:
            ask(server.url)
            before = named(server, folder / "before")
            codes = send(server, chance, count)
            ask(server.url)
            after = named(server, folder / "after")
            same = before == after and answers(server.url + "/health")
            print(f"{name} {release}: {sum(codes.values())} texts, answered {dict(codes)}")
            print(f"  before: {before}\n  after:  {after}")
            below = processes.descendants(server.pid)
            named_core = (pid for pid in below if any(m in processes.cmdline(pid) for m in CORES))
            if (core := next(named_core, None)) is None:  # one process: it could not say a word
                return same
            os.kill(core, signal.SIGKILL)
            wait_for(lambda: not processes.alive(core), 30, "gone")
            wait_for(lambda: not answers(server.url + "/health"), 60, "noticed")
            end = printed("logs", str(server.log))["cause"]
            print(f"  its core killed: {end['class']} ({end['certainty']}), {end['process']}")
    return same and end["class"] not in ("alive", "not-a-log")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    right = [tried(name, asked.count, asked.seed) for name in asked.engine or ENGINES]
    return not all(right)


if __name__ == "__main__":
    sys.exit(main())
