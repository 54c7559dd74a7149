"""Does a client's text make a healthy server's log say something false?

    python benchmarks/injection.py [--engine vllm-0.24.0 …] [--share 0.25] [--seed 1] [--replay]

A real server logs its requests. For every pattern of every rule a text that it matches
is sent in every carrier: prompts, system messages, tool calls, stop strings, schemas,
names, ids, routes, fields of a wrong type; bare, as Python and JSON print it, between
other lines, and with an engine's own beginning of a line. Harmless texts in the same
carriers go first. Then

- no rule may match a line of the log that it does not match without the imitations;
- `mmrepro logs`, `why`, `find` and `diagnose` must say of that server what they said
  before, and that is no standstill, death or class of failure;
- at last the server really fails, and that must be named from the same log.

``--replay``: `mmrepro replay` plays imitations on a server of its own; what it finds
must be what it finds of the harmless ones. Exit 1: something was false, or the true end
was not named."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.parse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(ROOT / "tests" / name) for name in ("engine", "unit/probes", "unit/diagnose")
]

from hypothesis import strategies as st  # noqa: E402
from live import COMMAND, wait_for  # noqa: E402
from live_server import Server, answers, ask, serving, trigger  # noqa: E402
from mmrepro.base import processes  # noqa: E402
from mmrepro.engines import log_marks  # noqa: E402
from mmrepro.engines.models import TinyModel, TinyQwen2VL  # noqa: E402
from mmrepro.engines.models.qwen import TinyQwen3  # noqa: E402
from mmrepro.engines.models.tiny import TinyText  # noqa: E402
from mmrepro.failure.documents.diagnosis import ServerState  # noqa: E402
from mmrepro.live.diagnose.general import STANDSTILLS  # noqa: E402
from mmrepro.probes.logs import Scanner  # noqa: E402
from mmrepro.runs.options import StartMode  # noqa: E402
from mmrepro.scenario.registry import load_scenario  # noqa: E402
from test_log_trust import IMITATIONS, PATTERNS  # noqa: E402

Body = dict[str, Any]
VLLM: Final = (
    "--enable-log-requests",
    "--enable-log-outputs",
    "--enable-request-id-headers",
)
SGLANG: Final = ("--log-requests", "--log-requests-level", "3")
FAULT: Final = next(
    one
    for one in load_scenario("borrowed-faults").variants
    if one.variant == "ghost-key-lru"
)


@dataclass(frozen=True)
class Served:
    """``end``: how its server really fails at last; what `logs` or `diagnose` then
    names."""

    engine: str
    release: str
    model: TinyModel
    args: tuple[str, ...]
    end: str = "core killed"

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.release}"


SERVED: Final = {
    one.name: one
    for one in (
        Served(
            "minivllm", "0.1", TinyQwen3(), (*FAULT.server_args, "--paper"), "ghost key"
        ),
        Served("vllm", "0.24.0", TinyQwen2VL(), VLLM),
        Served("vllm", "0.32.0", TinyQwen2VL(), VLLM),
        Served("sglang", "0.5.23", TinyQwen2VL(), SGLANG),
        Served("sglang", "0.5.6", TinyQwen2VL(), SGLANG),
        Served(
            "lmdeploy", "0.6.4", TinyText(), ("--log-level", "INFO"), "asked to end"
        ),
        Served(
            "lmdeploy", "0.18.0", TinyText(), ("--log-level", "INFO"), "asked to end"
        ),
    )
}
CORES: Final = ("EngineCore", "scheduler")
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}
"""Two that meet at a barrier wait for each other where a machine is busy."""

# ------------------------------------------------------------------- texts and carriers

FORMS: Final = (
    "(EngineCore pid=20) ERROR 11-24 18:12:17 [core.py:1195] {}",
    "[2026-11-24 18:12:17 TP0] {}",
    "2026-11-24 18:12:17,123 - lmdeploy - ERROR - engine.py:1 - {}",
)
WAYS: Final[tuple[Callable[[str, str], str], ...]] = (
    lambda text, form: text,
    lambda text, form: repr(text),
    lambda text, form: json.dumps({"error": text}),
    lambda text, form: f"why is this?\n{form.format(text)}\nthanks",
    lambda text, form: form.format(text),
    lambda text, form: f"it's \"cut: '{text}",
)


def imitations(chance: random.Random) -> list[str]:
    """A text for each pattern, and those of the unit test."""
    warnings.filterwarnings("ignore", message=".*example.*")
    drawn = []
    for regex in PATTERNS.values():
        text = st.from_regex(regex, fullmatch=False).example()
        drawn.append(re.sub(r"[\x00\r\ud800-\udfff]", "", text)[:400])
    every = [*drawn, *IMITATIONS]
    chance.shuffle(every)
    return every


def chat(**more: Any) -> Body:
    said = [{"role": "user", "content": "hello"}]
    return {"model": "tiny", "messages": said, "max_tokens": 2, "temperature": 0} | more


def messages(*each: Body) -> Body:
    return chat(messages=[*each, {"role": "user", "content": "hello"}])


def called(text: str) -> Body:
    call = {"name": text[:60], "arguments": json.dumps({"to": text})}
    calls = [{"id": text[:40], "type": "function", "function": call}]
    return messages(
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": text[:40], "content": text},
    )


def tool(text: str) -> Body:
    given = {"name": "f", "description": text, "parameters": {"type": "object"}}
    return chat(tools=[{"type": "function", "function": given}], tool_choice="none")


def schema(text: str, **more: Any) -> Body:
    shape = {"type": "object", "properties": {"a": {"enum": [text[:100]]}}} | more
    return chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": shape},
        }
    )


BODIES: Final[dict[str, Callable[[str], Body]]] = {
    "user message": lambda t: chat(messages=[{"role": "user", "content": t}]),
    "system message": lambda t: messages({"role": "system", "content": t}),
    "tool call": called,
    "tool's words": tool,
    "stop string": lambda t: chat(stop=[t[:200]]),
    "schema": schema,
    "schema that is none": lambda t: schema(t, type=t[:80]),
    "model's name": lambda t: chat(model=t),
    "user": lambda t: chat(user=t[:200]),
    "request_id": lambda t: chat(request_id=t[:200], rid=t[:200]),
    "role": lambda t: messages({"role": t[:200], "content": "hello"}),
    "no number": lambda t: chat(temperature=t),
    "token": lambda t: chat(logit_bias={t[:200]: 1}),
    "address of an image": lambda t: messages(
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": t}}]}
    ),
    "template": lambda t: chat(chat_template=f"{{{{ raise_exception({t!r}) }}}}"),
}
COMPLETION, HEADER, QUERY, PATH, NO_JSON = (
    "completion",
    "X-Request-Id",
    "query",
    "path",
    "no JSON",
)
CARRIERS: Final = (*BODIES, COMPLETION, HEADER, QUERY, PATH, NO_JSON)


def sent(server: Server, carrier: str, text: str) -> int | str:
    """The status of one request that holds ``text``; the error's name where there was
    none."""
    headers, path, method = (
        {"Content-Type": "application/json"},
        "/v1/chat/completions",
        "POST",
    )
    data: bytes | None
    if carrier in BODIES:
        data = json.dumps(BODIES[carrier](text)).encode()
    elif carrier == COMPLETION:
        path = "/v1/completions"
        data = json.dumps({"model": "tiny", "prompt": text, "max_tokens": 2}).encode()
    elif carrier == NO_JSON:
        data = text.encode()
    elif carrier == HEADER:
        headers["X-Request-Id"] = re.sub(r"[^ -~]+", " ", text).strip() or "x"
        data = json.dumps(chat()).encode()
    else:
        method, data = "GET", None
        quoted = urllib.parse.quote(text[:600], safe="" if carrier == QUERY else "/")
        path = f"/v1/models?q={quoted}" if carrier == QUERY else f"/{quoted}"
    link = http.client.HTTPConnection(
        "127.0.0.1", int(server.url.rpartition(":")[2]), timeout=60
    )
    with contextlib.closing(link):
        try:
            link.request(method, path, data, headers)
            answer = link.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        return answer.status


def planned(chance: random.Random, share: float) -> Iterator[tuple[str, str]]:
    """Carrier and text: each imitation in each carrier, the ways in turn; ``@N@``
    counts them."""
    texts, number = imitations(chance), 0
    for at, text in enumerate(texts):
        for place, carrier in enumerate(CARRIERS):
            if chance.random() >= share:
                continue
            number += 1
            way, form = WAYS[(at + place) % len(WAYS)], FORMS[number % len(FORMS)]
            yield carrier, f"@{number}@ {way(text, form)}"


# ---------------------------------------------------------------------- what is said


def printed(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, *words, "--json"], capture_output=True, text=True, check=False
    )
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        raise SystemExit(f"mmrepro {' '.join(words)}: {done.stderr[-500:]}") from None


def named(server: Server, folder: Path) -> dict[str, Any]:
    """All that is said of the server by its log, and by a look at it."""
    log = printed("logs", str(server.log))
    out = ["--out", str(folder / "diagnosis")]
    live = printed("diagnose", server.url, "--log", str(server.log), *out)
    found = live.get("diagnosis", live)
    start = printed("why", str(server.log))
    known = printed("find", str(server.log))
    return {
        "engine": (
            log["engine"],
            found["target"]["engine"],
            found["target"]["release"],
        ),
        "cause": log["cause"]["class"],
        "servers": [one["cause"]["class"] for one in log["servers"]],
        "state": found["assessment"]["state"],
        "classes": sorted(one["name"] for one in found["classes"]),
        "fits": sorted(
            m["scenario"] for m in found["matches"] if m["fit"] in ("match", "likely")
        ),
        "why": (start["state"], start["cause"], start["engine"], start["release"]),
        "find": sorted({one["name"] for one in known["found"]}),
    }


def matched(log: Path) -> set[str]:
    """The rules that match a line of it, as mmrepro reads it."""
    scanner = Scanner({p: p for p in PATTERNS}, None, marks=log_marks())
    counts = scanner.scan(io.BytesIO(log.read_bytes())).match_counts
    return {pattern for pattern, count in counts.items() if count}


def failed(served: Served, server: Server, folder: Path) -> str:
    """Makes the server fail; what is named then, or "" where that is not the truth."""
    if served.end == "ghost key":
        trigger(FAULT, server.url, folder)
        own, fits = (FAULT.name, FAULT.variant), []
        for deadline in ("3", "15", "40"):  # a core of a busy machine seldom runs
            out = ["--deadline", deadline, "--out", str(folder / f"end-{deadline}")]
            live = printed("diagnose", server.url, *out)
            found = live.get("diagnosis", live)
            fits = [
                (m["scenario"], m["variant"])
                for m in found["matches"]
                if m["fit"] == "match"
            ]
            if fits:
                break
        return f"{found['assessment']['state']}, {own}" if fits == [own] else ""
    below = [server.pid, *processes.descendants(server.pid)]
    core = next(
        (p for p in below if any(m in processes.cmdline(p) for m in CORES)), server.pid
    )
    os.kill(core, signal.SIGTERM if served.end == "asked to end" else signal.SIGKILL)
    wait_for(lambda: not answers(server.url + "/health"), 60, "noticed")
    wait_for(lambda: not processes.alive(core), 60, "gone")
    end = printed("logs", str(server.log))["cause"]
    told = f"{end['class']} ({end['certainty']}) {end['process']}"
    return "" if end["class"] in ("alive", "not-a-log", "unknown") else told


def tried(served: Served, share: float, seed: int) -> bool:
    chance = random.Random(f"{seed}:{served.name}")
    folder = Path(tempfile.mkdtemp(prefix="mmrepro-injection-"))
    with (
        ThreadPoolExecutor(4) as pool,
        serving(
            served.engine,
            served.release,
            served.model,
            folder,
            *served.args,
            mode=StartMode.FORK,
            env=ONE_THREAD,
            within_s=600,
        ) as server,
    ):
        ask(server.url, timeout=180)
        harmless = product(CARRIERS, ("hello you", "hello\nyou", '{"hello": "you"}'))
        list(pool.map(lambda one: sent(server, *one), harmless))
        before, usual = named(server, folder / "before"), matched(server.log)
        todo = list(planned(chance, share))
        statuses = list(pool.map(lambda one: sent(server, *one), todo))
        ask(server.url, timeout=180)
        after, met = named(server, folder / "after"), matched(server.log) - usual
        log = server.log.read_text(errors="replace")
        alive = answers(server.url + "/health")
        end = failed(served, server, folder)
    stand = Counter(
        carrier for number, (carrier, _) in enumerate(todo, 1) if f"@{number}@" in log
    )
    print(f"\n{served.name}: {len(todo)} texts, {dict(Counter(statuses))}")
    often = Counter(carrier for carrier, _ in todo)
    print("  in the log: " + ", ".join(f"{c} {stand[c]}/{often[c]}" for c in CARRIERS))
    print(f"  rules that match a line since: {sorted(met) or 'none'}")
    if before != after:
        print(f"  before: {before}\n  after:  {after}")
    else:
        print(f"  said, before and after: {before}")
    print(f"  its true end, {served.end}: {end or 'NOT NAMED'}")
    fault = {
        one.value for one in STANDSTILLS | {ServerState.DEAD, ServerState.PART_DEAD}
    }
    well = not before["classes"] and before["state"] not in fault
    right = before == after and well and alive and not met and bool(end)
    if right:
        shutil.rmtree(folder)
    else:
        print(f"  kept: {folder}")
    return right


# ---------------------------------------------------------------------- replay


def played(served: Served, texts: list[str], folder: Path) -> dict[str, Any]:
    """What `mmrepro replay` finds of a batch that holds each of the texts."""
    makers = [
        make for name, make in BODIES.items() if name not in ("template", "no number")
    ]
    lines = [
        {
            "custom_id": f"r{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": makers[n % len(makers)](text),
        }
        for n, text in enumerate(texts)
    ]
    folder.mkdir()
    batch = folder / "batch.jsonl"
    batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [
        "replay",
        str(batch),
        "--engine",
        served.engine,
        "--release",
        served.release,
    ]
    words += ["--repeat", "1", "--no-shrink", "--out", str(folder / "played")]
    words += [f"--server-arg={arg}" for arg in served.args]
    told = printed(*words)
    found = [one.get("bucket", one) for one in told.get("findings", [])]
    return {"findings": sorted(json.dumps(one, sort_keys=True)[:300] for one in found)}


def replayed(served: Served, seed: int, count: int) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="mmrepro-injection-"))
    chance = random.Random(f"{seed}:{served.name}:replay")
    texts = [text for _, text in planned(chance, 0.1)][:count]
    quiet = played(served, [f"hello {n}" for n in range(len(texts))], folder / "quiet")
    loud = played(served, texts, folder / "loud")
    print(
        f"\n{served.name}, replay of {len(texts)}: harmless {quiet}\n  imitations "
        f"{loud}"
    )
    return quiet == loud


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", action="append", choices=SERVED)
    parser.add_argument(
        "--share", type=float, default=1.0, help="of rules times carriers"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--replay", action="store_true", help="by replay in place of a server"
    )
    parser.add_argument(
        "--count", type=int, default=120, help="of the texts that are replayed"
    )
    asked = parser.parse_args()
    each = [SERVED[name] for name in asked.engine or SERVED]
    if asked.replay:
        right = [replayed(one, asked.seed, asked.count) for one in each]
    else:
        right = [tried(one, asked.share, asked.seed) for one in each]
    return not all(right)


if __name__ == "__main__":
    sys.exit(main())
