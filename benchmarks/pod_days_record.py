"""Record what a watch reads of a real engine in each of its moods: metrics and stacks.

    python benchmarks/pod_days_record.py ENGINE RELEASE    # writes benchmarks/recordings/
    python benchmarks/pod_days_record.py vllm 0.23.0 tp2   # or rust
    python benchmarks/pod_days_record.py vllm 0.23.0 --hung

The recordings are replayed by pod_days.py against a fake clock. Of stacks the functions,
files and lines are kept, no locals; of metrics the totals that a watch reads."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "engine")]
os.environ.setdefault("MMREPRO_START_MODE", "cold")

from live_server import serving, trigger  # noqa: E402
from mmrepro.engines.models.tiny import TINY, TinyModel  # noqa: E402
from mmrepro.live.diagnose import discover  # noqa: E402
from mmrepro.live.diagnose.ranks import workers  # noqa: E402
from mmrepro.probes import MetricsProbe, StacksProbe, run_probe  # noqa: E402
from mmrepro.scenario.registry import load_scenario  # noqa: E402

UNIT = ROOT / "tests" / "unit" / "pod_days"
MORE = ROOT / "benchmarks" / "recordings"
ROUNDS = 6
"""Readings of each mood, as far apart as those of a check."""
LONG_WORDS = 300
"""Of six tokens each: the prompt fits into the context. A longer one is refused, and what
is recorded then is a front end that refuses."""


class Recording:
    """What was read of one server, by mood."""

    def __init__(self, engine: str, release: str, url: str, scratch: Path) -> None:
        self.url = url
        self.scratch = scratch
        self.moods: dict[str, Any] = {}
        self.engine, self.release = engine, release

    def take(self, mood: str, rounds: int = ROUNDS) -> None:
        """Read the metrics and five stacks of each process, ``rounds`` times."""
        target = discover.find(self.url)
        discover.name_engine(target, frozenset())
        facts = target.facts
        ranks = [process.pid for process in workers(facts)]
        cores = [process.pid for process in facts.cores]
        pids = [pid for pid in dict.fromkeys([*cores, facts.root_pid, *ranks]) if pid]
        readings = []
        for _ in range(rounds):
            metrics = run_probe(MetricsProbe(self.url, 2.0), self.scratch, 3.0)
            probe = StacksProbe(pids, 5, 0.25, locals=False, blocking_fallback=False)
            stacks = run_probe(probe, self.scratch, 20.0)
            readings.append(
                {
                    "metrics": self._metrics(metrics.data),
                    "stacks": stacks.data.model_dump(mode="json")
                    if stacks.data
                    else None,
                }
            )
        self.moods[mood] = {
            "facts": facts.model_dump(mode="json"),
            "readings": readings,
        }
        print(f"{mood}: {len(readings)} readings, {len(pids)} processes", flush=True)
        # What comes later may take too long.
        self.write()

    @staticmethod
    def _metrics(data: Any) -> list[Any]:
        if data is None:
            return []
        kept = []
        for sample in data.samples:
            if "_bucket" not in sample.name and not sample.name.startswith("python_"):
                kept.append([sample.name, sample.labels, sample.value])
        return kept

    def write(self) -> None:
        document = {
            "engine": self.engine,
            "release": self.release,
            "moods": self.moods,
        }
        name = f"{self.engine}-{self.release}.json.gz"
        # The unit tests' recordings are few: a new one is for the benchmark.
        file = (UNIT if (UNIT / name).exists() else MORE) / name
        text = json.dumps(document).replace(str(Path.home()), "~")
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{file.name}: {file.stat().st_size} bytes")


def post(url: str, path: str, body: Any = None, timeout: float = 60.0) -> int:
    data = json.dumps(body or {}).encode()
    request = urllib.request.Request(
        url + path, data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def chat(words: int, tokens: int, first: int = 0) -> dict[str, Any]:
    """A request of so many words, counted from ``first``."""
    text = " ".join(f"w{first + number}" for number in range(words))
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


@contextlib.contextmanager
def asking(url: str, bodies: int, words: int, tokens: int) -> Iterator[None]:
    """Keep so many requests on their way, each of other words: none is in a cache.

    Raises:
        RuntimeError: the server refused some, so that what was read meanwhile is of a
            front end that refuses.
    """
    over = threading.Event()
    refused: list[int] = []

    def ask(client: int) -> None:
        count = 0
        while not over.is_set():
            count += 1
            body = chat(words, tokens, first=1000 * client + 7 * count)
            status = post(url, "/v1/chat/completions", body, 60.0)
            # 0: no answer in time, which a busy machine may have.
            if status not in (0, 200):
                refused.append(status)

    clients = range(1, bodies + 1)
    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in clients]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        over.set()
        # What is still on its way belongs to this mood, not to the next one.
        for thread in threads:
            thread.join(60.0)
    if refused:
        raise RuntimeError(f"{len(refused)} requests were refused: {refused[0]}")


def waiting(url: str) -> None:
    """One request that nobody waits for."""
    body = chat(3, 4)
    threading.Thread(
        target=post, args=(url, "/v1/chat/completions", body, 40.0), daemon=True
    ).start()
    time.sleep(1.0)


@dataclass(frozen=True)
class Served:
    """How a server is started that is recorded."""

    engine: str
    release: str
    model: TinyModel
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


DEV = {"VLLM_SERVER_DEV_MODE": "1"}


def ways(engine: str, release: str) -> dict[str, Served]:
    """By what the recording's name ends in."""
    if engine == "sglang":
        model = load_scenario("pad-value-collision").model
        return {"": Served(engine, release, model, ("--enable-metrics",))}
    if engine == "minivllm":
        model = load_scenario("borrowed-faults").variants[0].model
        return {"": Served(engine, release, model)}
    model = load_scenario("ghost-key-eviction").model
    rust = {**DEV, "VLLM_USE_RUST_FRONTEND": "1"}
    return {
        "": Served(engine, release, model, env=DEV),
        "tp2": Served(engine, release, model, ("--tensor-parallel-size", "2"), env=DEV),
        # Its front end in Rust has no tokenizer for the Qwen2-VL.
        "rust": Served(engine, release, TINY["qwen3-text"], env=rust),
    }


def main(engine: str, release: str, way: str = "") -> None:
    scratch = Path(tempfile.mkdtemp(prefix="pod-days-"))
    chosen = ways(engine, release)[way]
    with serving(
        engine,
        release,
        chosen.model,
        scratch / "server",
        *chosen.options,
        env=chosen.env,
        within_s=600,
    ) as server:
        name = f"{release}-{way}" if way else release
        recording = Recording(engine, name, server.url, scratch)
        post(server.url, "/v1/chat/completions", chat(3, 2))
        recording.take("idle")
        with asking(server.url, 4, 20, 400):
            recording.take("decode")
        with asking(server.url, 4, LONG_WORDS, 1):
            recording.take("prefill")
        if engine == "vllm":
            post(server.url, "/pause?mode=keep")
            waiting(server.url)
            recording.take("paused")
            post(server.url, "/resume")
        if engine == "sglang":
            post(server.url, "/pause_generation", {})
            waiting(server.url)
            recording.take("paused")
            post(server.url, "/continue_generation", {})


def hung(engine: str, release: str) -> None:
    """The moods of a server whose known fault has hung it."""
    scratch = Path(tempfile.mkdtemp(prefix="pod-days-"))
    scenario = load_scenario("ghost-key-eviction")
    if engine == "minivllm":
        variants = load_scenario("borrowed-faults").variants
        scenario = next(v for v in variants if v.variant == "ghost-key-lru")
    with serving(
        engine,
        release,
        scenario.model,
        scratch / "server",
        *scenario.server_args,
        max_model_len=scenario.max_model_len,
        within_s=300,
    ) as server:
        recording = Recording(engine, release, server.url, scratch)
        post(server.url, "/v1/chat/completions", chat(3, 2))
        trigger(scenario, server.url, scratch)
        waiting(server.url)
        recording.release = f"{release}-hung"
        recording.take("hung")


if __name__ == "__main__":
    if "--hung" in sys.argv:
        hung(sys.argv[1], sys.argv[2])
    else:
        main(*sys.argv[1:4])
