"""Broken starts of real engines, and whether ``mmrepro why`` names each cause.

Usage:  python benchmarks/broken_starts.py [--only NAME…] [--record DIR] [--out FILE]

Each case is a real engine with one thing broken: its model, its options, its memory,
its modules. The environments must be there (``mmrepro env create ENGINE RELEASE``). One
after another; needs no network and no GPU. ``--record`` keeps each log, trimmed and
without this machine's paths, as a fixture of the unit tests."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mmrepro.base import processes
from mmrepro.base.machine.files import cache_root
from mmrepro.engines import LaunchRequest, get_engine, spec_for
from mmrepro.engines.environments.build import existing
from mmrepro.engines.models.tiny import TinyText
from mmrepro.engines.supervise import free_port

RELEASES = {
    "vllm": "0.32.0",
    "sglang": "0.5.23",
    "lmdeploy": "0.18.0",
    "minivllm": "0.1",
}
DEADLINE_S = 240.0
RACES = 4
"""Starts that LMDeploy loses by chance are repeated so often."""
SITE = """\
import os, sys, time
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name in os.environ.get("BROKEN_MISSING", "").split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in os.environ.get("BROKEN_WEDGED", "").split(","):
            time.sleep(3600)
sys.meta_path.insert(0, Broken())
"""


@dataclass
class Start:
    """A start that is about to be broken."""

    folder: Path
    model: Path
    argv: list[str]
    env: dict[str, str]
    port: int
    deadline_s: float = DEADLINE_S
    prefix: list[str] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    kill: str = ""
    """Expression of a log line; once it is there, the process that loads the model gets
    SIGKILL."""
    victim: str = ""

    def option(self, name: str, value: str = "") -> None:
        """Set an option; the last one wins."""
        self.argv += [name, *([value] if value else [])]

    def config(self, **changes: object) -> None:
        path = self.model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    @property
    def weights(self) -> Path:
        return self.model / "model.safetensors"

    def site(self, **env: str) -> None:
        """Put a ``sitecustomize`` in front of the engine's modules."""
        (self.folder / "site").mkdir()
        (self.folder / "site" / "sitecustomize.py").write_text(SITE)
        self.env |= {"PYTHONPATH": str(self.folder / "site"), **env}


@dataclass(frozen=True)
class Case:
    engine: str
    name: str
    what: str
    wanted: str
    """The cause's sub-class."""
    breaks: Callable[[Start], None]

    @property
    def label(self) -> str:
        return f"{self.engine}-{self.name}"


# ------------------------------------------------------------------ what is broken


def unknown_model_type(start: Start) -> None:
    start.config(model_type="zebra_next", architectures=["ZebraNextForCausalLM"])


def unknown_architecture(start: Start) -> None:
    start.config(architectures=["ZebraNextForCausalLM"])


def no_weights(start: Start) -> None:
    start.weights.unlink()


def truncated(start: Start) -> None:
    data = start.weights.read_bytes()
    start.weights.write_bytes(data[: len(data) // 2])


def lfs_pointer(start: Start) -> None:
    size = start.weights.stat().st_size
    oid = "0" * 64
    start.weights.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n"
    )


def no_folder(start: Start) -> None:
    start.argv = [
        a.replace(str(start.model), "zebra-labs/zebra-7b") for a in start.argv
    ]


def port_taken(start: Start) -> None:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", start.port))
    taken.listen()
    start.stack.callback(taken.close)


def remote_code(start: Start) -> None:
    start.config(
        model_type="zebra_next",
        architectures=["ZebraNextForCausalLM"],
        auto_map={"AutoConfig": "configuration_zebra.ZebraConfig"},
    )
    (start.model / "configuration_zebra.py").write_text(
        "from transformers import PretrainedConfig\n\n\n"
        "class ZebraConfig(PretrainedConfig):\n    model_type = 'zebra_next'\n"
    )


def missing_module(name: str) -> Callable[[Start], None]:
    return lambda start: start.site(BROKEN_MISSING=name)


def memory_limit(gib: float) -> Callable[[Start], None]:
    def breaks(start: Start) -> None:
        start.prefix = ["prlimit", f"--as={int(gib * 2**30)}"]

    return breaks


def unreadable(start: Start) -> None:
    start.weights.chmod(0)
    start.prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def options(*words: str, **env: str) -> Callable[[Start], None]:
    def breaks(start: Start) -> None:
        start.argv += words
        start.env |= env

    return breaks


def wedged(name: str, deadline_s: float) -> Callable[[Start], None]:
    def breaks(start: Start) -> None:
        start.site(BROKEN_WEDGED=name)
        start.deadline_s = deadline_s

    return breaks


def killed(line: str, victim: str) -> Callable[[Start], None]:
    def breaks(start: Start) -> None:
        start.kill, start.victim = line, victim

    return breaks


CASES = (
    Case(
        "vllm",
        "unknown-model-type",
        "model_type of config.json",
        "unknown-architecture",
        unknown_model_type,
    ),
    Case(
        "vllm",
        "unknown-architecture",
        "architectures of config.json",
        "unknown-architecture",
        unknown_architecture,
    ),
    Case("vllm", "no-weights", "no *.safetensors", "weights-missing", no_weights),
    Case(
        "vllm",
        "truncated",
        "half of model.safetensors",
        "weights-unreadable",
        truncated,
    ),
    Case(
        "vllm",
        "lfs-pointer",
        "a Git LFS pointer as weights",
        "weights-unreadable",
        lfs_pointer,
    ),
    Case(
        "vllm",
        "no-folder",
        "a model that is not here, offline",
        "model-not-found",
        no_folder,
    ),
    Case("vllm", "port-taken", "another server on the port", "port-taken", port_taken),
    Case(
        "vllm",
        "max-model-len",
        "four blocks of KV cache",
        "kv-cache-too-small",
        options("--max-model-len", "8192", "--num-gpu-blocks-override", "4"),
    ),
    Case(
        "vllm",
        "position-limit",
        "--max-model-len beyond the model's positions",
        "max-model-len-too-large",
        options("--max-model-len", "99999"),
    ),
    Case(
        "vllm",
        "batched-tokens",
        "a step smaller than the longest prompt",
        "batched-tokens-too-small",
        options("--max-num-batched-tokens", "64", "--no-enable-chunked-prefill"),
    ),
    Case(
        "vllm",
        "unknown-argument",
        "--max-modle-len",
        "bad-argument",
        options("--max-modle-len", "512"),
    ),
    Case(
        "vllm",
        "remote-code",
        "a model with code of its own",
        "trust-remote-code",
        remote_code,
    ),
    Case(
        "vllm",
        "missing-module",
        "no module cbor2",
        "missing-module",
        missing_module("cbor2"),
    ),
    Case(
        "vllm",
        "memory-limit",
        "RLIMIT_AS of 5 GiB",
        "out-of-host-memory",
        memory_limit(5),
    ),
    Case(
        "vllm",
        "unreadable",
        "weights without read permission",
        "permission",
        unreadable,
    ),
    Case(
        "vllm",
        "tensor-parallel",
        "--tensor-parallel-size 3 of 2 heads",
        "heads-not-divisible",
        options("--tensor-parallel-size", "3"),
    ),
    Case(
        "vllm",
        "quantisation",
        "--quantization of a GPU on a CPU",
        "quantisation-unsupported",
        options("--quantization", "bitsandbytes"),
    ),
    Case(
        "vllm",
        "no-interface",
        "GLOO_SOCKET_IFNAME of no interface",
        "network-interface",
        options(GLOO_SOCKET_IFNAME="zebra0"),
    ),
    Case(
        "vllm",
        "chat-template",
        "--chat-template of no file",
        "chat-template",
        options("--chat-template", "/nowhere/zebra.jinja"),
    ),
    Case(
        "vllm",
        "hang",
        "a module that never ends to load",
        "hang-at-start",
        wedged("vllm.model_executor.models.llama", 150),
    ),
    Case(
        "vllm",
        "killed",
        "SIGKILL to EngineCore as it loads",
        "killed-while-loading",
        killed(r"Starting to load model", "EngineCore"),
    ),
    Case(
        "sglang",
        "unknown-model-type",
        "model_type of config.json",
        "unknown-architecture",
        unknown_model_type,
    ),
    Case(
        "sglang",
        "unknown-architecture",
        "architectures of config.json",
        "unknown-architecture",
        unknown_architecture,
    ),
    Case(
        "sglang",
        "truncated",
        "half of model.safetensors",
        "weights-unreadable",
        truncated,
    ),
    Case("sglang", "no-weights", "no *.safetensors", "weights-missing", no_weights),
    Case(
        "sglang", "port-taken", "another server on the port", "port-taken", port_taken
    ),
    Case(
        "sglang",
        "unknown-argument",
        "--mem-fraction",
        "bad-argument",
        options("--mem-fraktion-static", "0.5"),
    ),
    Case(
        "sglang",
        "context-length",
        "--context-length beyond the model's positions",
        "max-model-len-too-large",
        options("--context-length", "99999"),
    ),
    Case(
        "sglang",
        "tensor-parallel",
        "--tp 3 on one NUMA node",
        "too-few-devices",
        options("--tp-size", "3"),
    ),
    Case(
        "sglang",
        "killed",
        "SIGKILL to the scheduler as it loads",
        "killed-while-loading",
        killed(r"Load weight begin", "scheduler"),
    ),
    Case(
        "sglang",
        "no-folder",
        "a model that is not here, offline",
        "model-not-found",
        no_folder,
    ),
    Case(
        "lmdeploy",
        "unknown-model-type",
        "model_type of config.json",
        "unknown-architecture",
        unknown_model_type,
    ),
    Case(
        "lmdeploy",
        "unknown-architecture",
        "architectures of config.json",
        "unknown-architecture",
        unknown_architecture,
    ),
    Case("lmdeploy", "no-weights", "no *.safetensors", "weights-missing", no_weights),
    Case(
        "lmdeploy",
        "truncated",
        "half of model.safetensors",
        "weights-unreadable",
        truncated,
    ),
    Case(
        "lmdeploy",
        "unknown-argument",
        "--cache-max-entry-cuont",
        "bad-argument",
        options("--cache-max-entry-cuont", "0.5"),
    ),
    Case(
        "lmdeploy",
        "kv-cache",
        "1 MiB of free memory",
        "kv-cache-too-small",
        options(MMREPRO_DEVICE_FREE_BYTES=str(1 << 20)),
    ),
    Case(
        "lmdeploy", "port-taken", "another server on the port", "port-taken", port_taken
    ),
    Case(
        "lmdeploy",
        "tensor-parallel",
        "--tp 3 with the executor “uni”",
        "bad-argument",
        options("--tp", "3"),
    ),
    Case("minivllm", "no-weights", "no *.safetensors", "weights-missing", no_weights),
    Case(
        "minivllm", "port-taken", "another server on the port", "port-taken", port_taken
    ),
)


# ------------------------------------------------------------------ one start


@contextmanager
def prepared(case: Case) -> Iterator[Start]:
    engine = get_engine(case.engine)
    environment = existing(spec_for(case.engine, RELEASES[case.engine], "cpu"))
    if environment is None:
        sys.exit(
            f"mmrepro env create {case.engine} {RELEASES[case.engine]} --device cpu"
        )
    whole = TinyText().write(cache_root() / "models")
    if case.engine == "minivllm":
        from mmrepro.engines.models.qwen import TinyQwen3

        whole = TinyQwen3().write(cache_root() / "models")
    with tempfile.TemporaryDirectory(prefix="mmr-why-") as name, ExitStack() as stack:
        folder = Path(name)
        model = folder / whole.name
        shutil.copytree(whole, model)
        port = free_port()
        plan = engine.plan(
            LaunchRequest(
                environment=environment,
                model=model,
                port=port,
                max_model_len=512,
                server_args=(),
            )
        )
        env = {n: v.replace("{run-tmp}", name) for n, v in plan.env.items()}
        env.pop("VLLM_LOGGING_LEVEL", None)
        start = Start(folder, model, plan.argv, env, port, stack=stack)
        case.breaks(start)
        yield start


def kill_when(start: Start, log: Path, over: threading.Event) -> None:
    seen = re.compile(start.kill)
    while not over.wait(0.02):
        text = log.read_text(errors="replace") if log.exists() else ""
        if seen.search(text):
            for pid in processes.descendants(os.getpid()):
                if start.victim in processes.cmdline(pid):
                    os.kill(pid, signal.SIGKILL)
                    return


def run(case: Case, folder: Path) -> dict[str, object]:
    """What ``mmrepro why`` answers; ``folder`` gets the log, and beside it how it was
    made."""
    log = folder / f"{case.label}.log"
    with prepared(case) as start:
        variables = [f"{n}={v}" for n, v in start.env.items()]
        command = [*start.prefix, "env", *variables, *start.argv]
        over = threading.Event()
        if start.kill:
            threading.Thread(
                target=kill_when, args=(start, log, over), daemon=True
            ).start()
        why = [
            sys.executable,
            "-m",
            "mmrepro",
            "why",
            "--json",
            "--log",
            str(log),
            "--deadline",
            str(start.deadline_s),
            "--",
            *command,
        ]
        done = subprocess.run(why, capture_output=True, text=True, check=False)
        answer: dict[str, object] = (
            json.loads(done.stdout) if done.stdout else {"sentence": done.stderr}
        )
        over.set()
        if log.exists():
            log.write_text(trimmed(log.read_text(errors="replace"), start))
            facts = {
                "engine": case.engine,
                "release": RELEASES[case.engine],
                "what": case.what,
                "wanted": case.wanted,
                "exit_code": answer.get("ended_with"),
                "command": trimmed(
                    shlex.join([*start.prefix, *start.argv]), start
                ).strip(),
            }
            log.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
        return answer


# -------------------------------------------------------------- fixtures, and the table

_FRAME = re.compile(r"(?:^|[\])] )\s*(?:\| )?  File \"")
_CODE = re.compile(r"(?:^|[\])] )\s{4,}\S")
_RAISES = re.compile(r"(?:^|[\])] |- )(?:[\w.]+)(?:Error|Exception|Exit)\b|error: ")
FRAMES_KEPT = 6
MOST_CHARS = 1200


def trimmed(text: str, start: Start) -> str:
    """A log without this machine's paths, and without the outer frames of its
    tracebacks."""
    for own, shown in (
        (str(start.model), "/models/tiny"),
        (str(start.folder), "/tmp/run"),
        (str(Path(start.argv[0]).parent.parent), "/venv"),
        (str(Path(__file__).resolve().parents[1]), "/mmrepro"),
        (str(Path.home()), "/home/user"),
        (socket.gethostname(), "host"),
    ):
        text = text.replace(own, shown)
    text = re.sub(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?<!127\.0\.0\.1)", "10.0.0.1", text)
    text = re.sub(r"/[\w./-]*?/lib/python3", "/venv/lib/python3", text)
    lines = text.replace("\r", "\n").splitlines()
    ends = {n for n, line in enumerate(lines) if _RAISES.search(line)}
    near = {n - back for n in ends for back in range(FRAMES_KEPT)}
    kept, outer = [], False
    for n, line in enumerate(lines):
        outer = bool(_FRAME.search(line)) or (outer and bool(_CODE.search(line)))
        if n in near or not outer:
            kept.append(line)
    return "\n".join(line[:MOST_CHARS] for line in kept) + "\n"


def row(case: Case, answer: dict[str, object]) -> str:
    found = detail(answer)
    right = "yes" if found == case.wanted else f"no: wanted {case.wanted}"
    sentence = str(answer.get("sentence", ""))[:150].replace("|", "\\|")
    sentence = re.sub(r"/[^ ]*?mmr-why-[^/ ]*", "…", sentence)
    seconds = float(str(answer.get("seconds") or 0))
    return (
        f"| {case.engine} {RELEASES[case.engine]} | {case.what} | `{found}` | "
        f"{sentence} | {seconds:.0f} s | {right} |"
    )


PAGE = """\
# Broken starts of real engines

```sh
python benchmarks/broken_starts.py --out FILE [--only ENGINE…]
```

Each row is a real engine on a CPU with one thing broken, started by [`mmrepro why`](../why.md)
`-- COMMAND…`; SGLang and LMDeploy behind their stand-ins. "Right" compares the name of the cause
with the thing that was broken. The time is until `why` answers, on two cores that others use too.

| engine | what is broken | cause | what `why` says | time | right |
|---|---|---|---|---|---|
"""


def write_page(page: Path, case: Case, line: str) -> None:
    """Put a row into the page, in the place of its case; the others stay."""
    order = [(one.engine, one.what) for one in CASES]
    rows = {}
    for row_ in [*(page.read_text().splitlines() if page.exists() else []), line]:
        cells = row_.split(" | ")
        if len(cells) == 6 and (key := (cells[0].split()[-2], cells[1])) in order:
            rows[key] = row_
    right = sum(row_.endswith("| yes |") for row_ in rows.values())
    shown = "\n".join(rows[key] for key in order if key in rows)
    page.write_text(f"{PAGE}{shown}\n\n{right} of {len(rows)} are right.\n")


def detail(answer: dict[str, object]) -> str:
    cause = answer.get("cause")
    start = cause.get("start") if isinstance(cause, dict) else None
    return str(start.get("name")) if isinstance(start, dict) else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="names or engines")
    parser.add_argument("--record", type=Path, help="folder for the logs")
    parser.add_argument("--out", type=Path, help="the page; rows of earlier calls stay")
    asked = parser.parse_args()
    os.nice(5)
    folder = asked.record or Path(tempfile.mkdtemp(prefix="mmr-broken-"))
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for case in CASES:
        if (
            asked.only
            and case.label not in asked.only
            and case.engine not in asked.only
        ):
            continue
        answer = run(case, folder)
        for _ in range(RACES):
            if detail(answer) == "start-race":
                answer = run(case, folder)
        wrong += detail(answer) != case.wanted
        line = row(case, answer)
        print(line, flush=True)
        if asked.out:
            write_page(asked.out, case, line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
