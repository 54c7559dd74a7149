"""How long a server takes to its first answer, by start mode.

Usage:  python benchmarks/start_modes.py --engine vllm [--release 0.23.0] [--rounds 5]

Modes take turns in one run. Printed per mode: seconds from the start to the first
answer (median, least, most) and its share of cold; the fork server's import time and
memory; and where the time goes. The first start of each mode only fills caches and is
not counted."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from mmrepro.base.machine.files import cache_root
from mmrepro.engines import get_engine
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import Environment
from mmrepro.engines.supervise import answers, free_port
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.start import ServerSpec, target
from mmrepro.runs.starter import Starter, StartStages, fork_server_spec
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario

SCENARIOS = {
    "vllm": "ghost-key-eviction",
    "sglang": "shape-alias",
    "lmdeploy": "undersized-kv-budget",
    "minivllm": "mm-prefill-contract",
}
"""Whose server is started, of each engine."""
TIMEOUT_S = 300.0


def first_answer(url: str) -> str:
    body = {
        "model": "tiny",
        "max_tokens": 4,
        "temperature": 0,
        "messages": [{"role": "user", "content": "hello"}],
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        text: str = json.loads(answer.read())["choices"][0]["message"]["content"]
    return text


class Bench:
    def __init__(
        self, scenario: Scenario, options: RunCommand, environment: Environment
    ) -> None:
        self.scenario, self.options, self.environment = scenario, options, environment
        self.engine = get_engine(scenario.engine)
        self.model = scenario.model.write(cache_root() / "models")

    def start(
        self, starter: Starter, mode: StartMode
    ) -> tuple[float, dict[str, float], str]:
        """Seconds to the first answer, seconds by stage, the answer."""
        port = free_port()
        plan = ServerSpec(
            self.scenario, self.options, self.environment, self.model
        ).plan(port)
        if mode is StartMode.WARM:
            starter.warm(plan, self.environment)
        url = f"http://127.0.0.1:{port}"
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "engine.log"
            began = time.monotonic()
            process, _ = starter.start(
                plan, self.environment, mode, cwd=Path(folder), log=log, grace_s=5.0
            )
            try:
                stages = StartStages(self.engine.start_marks, log, began)
                while not answers(url + self.engine.ready_path):
                    stages.look()
                    time.sleep(0.05)
                    if (
                        process.exit_code is not None
                        or time.monotonic() - began > TIMEOUT_S
                    ):
                        raise SystemExit(log.read_text(errors="replace")[-3000:])
                ready = time.monotonic()
                text = first_answer(url)
                ended = time.monotonic()
                found = {**stages.ended(ready), "first answer": round(ended - ready, 2)}
                return ended - began, found, text
            finally:
                process.stop(5.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=SCENARIOS, default="vllm")
    parser.add_argument("--release", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args()
    scenario = load_scenario(SCENARIOS[asked.engine])
    options = RunCommand(release=asked.release)
    environment = ensure(target(scenario, options), progress=print)
    bench = Bench(scenario, options, environment)
    modes = (StartMode.COLD, StartMode.FORK, StartMode.WARM)
    seconds: dict[StartMode, list[float]] = {mode: [] for mode in modes}
    stages: dict[StartMode, dict[str, float]] = {}
    texts = set()
    with Starter(StartMode.WARM) as starter:
        for number in range(asked.rounds + 1):
            for mode in modes:
                taken, stages[mode], text = bench.start(starter, mode)
                texts.add(text)
                if number:
                    seconds[mode].append(taken)
        plan = ServerSpec(scenario, options, environment, bench.model).plan(1)
        facts = starter.parents.get(fork_server_spec(plan, environment)).facts
    print(
        "\n"
        f"{asked.engine} {environment.spec.release}, {asked.rounds} starts of each mode"
    )
    cold = statistics.median(seconds[StartMode.COLD])
    for mode, taken in seconds.items():
        middle = statistics.median(taken)
        print(
            f"{mode:5} start to first answer  median {middle:6.2f} s   least "
            f"{min(taken):6.2f}   most {max(taken):6.2f}   x cold {middle / cold:5.2f}"
        )
    print(
        f"fork server: {facts.imports_s:.1f} s of imports, "
        f"{facts.memory_bytes / 2**20:.0f} MiB, served {facts.served}"
    )
    print(f"first answers: {'all alike' if len(texts) == 1 else sorted(texts)}")
    for mode, found in stages.items():
        print(
            f"{mode:5} last: "
            + ", ".join(f"{name} {took:.2f}" for name, took in found.items())
        )
    if asked.json:
        medians = {
            mode.value: statistics.median(taken) for mode, taken in seconds.items()
        }
        asked.json.write_text(json.dumps({"medians": medians, **vars(facts)}, indent=1))


if __name__ == "__main__":
    main()
