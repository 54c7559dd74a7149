"""Healthy servers against ``diagnose`` and ``watch``: is one of them called anything
else?

Real engines (minivllm, vLLM 0.23.0 and 0.24.0; one of them behind its own key and
without process titles, as older releases are), idle, under load and with long prompts;
asked directly and through a small reverse proxy of our own, a FAKE, which may ask for a
key, turn requests away, hide routes, or give the API the title that older releases gave
it. Of each: one diagnosis, and as many checks of a watch as ten minutes have; they
follow each other at once, count as an interval apart, and have no grace. One engine at
a time.

    uv run python benchmarks/hardening/healthy.py                  # 50 of them
    uv run python benchmarks/hardening/healthy.py --share 0.1      # as CI does: minivllm alone
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests" / "engine"))

from live_server import Server, ask, serving
from mmrepro.engines.models import TinyModel, TinyQwen2VL
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.failure.documents.diagnosis import ServerState as S
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from mmrepro.live.watch.checker import Checker
from mmrepro.live.watch.health import Health
from mmrepro.live.watch.loop import watch_of
from mmrepro.live.watch.options import WatchCommand
from mmrepro.runs.options import StartMode
from servers import Simulated

COUNT, EACH = 50, 10
INTERVAL_S = 10.0
CHECKS = round(600 / INTERVAL_S)
CLIENTS = 3
KEY = "sk-0123456789abcdef"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}
NO_TITLES = 'raise ImportError("this machine has no setproctitle")'
ALIVE = {S.HEALTHY, S.NO_FAULT_SEEN, S.UNKNOWN}
BUSY = {S.SLOW, S.OVERLOADED}
"""Of a server that is late on a busy machine, or turns requests away: no alarm of a
failure."""


@dataclass(frozen=True)
class Start:
    engine: str
    release: str
    model: TinyModel
    options: tuple[str, ...] = ()
    titles: bool = True

    @property
    def key(self) -> bool:
        return "--api-key" in self.options

    def __str__(self) -> str:
        more = (", a key" if self.key else "") + ("" if self.titles else ", no titles")
        return f"{self.engine} {self.release}{more}"


QWEN = TinyQwen2VL()
STARTS = (
    Start("minivllm", "0.1", TinyQwen3()),
    Start("vllm", "0.23.0", QWEN),
    Start("vllm", "0.23.0", QWEN, ("--api-key", KEY), titles=False),
    Start("vllm", "0.24.0", QWEN),
    Start("vllm", "0.24.0", QWEN, ("--api-key", KEY)),
)
LOADS = ("idle", "load", "long prompts")


@dataclass(frozen=True)
class Way:
    """How it is asked. ``routes``: what a proxy answers itself, by the beginning of the
    path."""

    name: str
    proxy: bool = True
    key: bool = False
    given: bool = True
    """Whether the key is, where one is asked for."""
    routes: tuple[tuple[str, int], ...] = ()
    title: str = ""


WAYS = (
    Way("directly", proxy=False),
    Way("directly, no key given", proxy=False, given=False),
    Way("proxy"),
    Way("proxy, key", key=True),
    Way("proxy, no key given", key=True, given=False),
    Way("proxy without metrics", routes=(("/metrics", 404),)),
    Way("proxy without a list", routes=(("/v1/models", 404), ("/health", 404))),
    Way("proxy, 429 for the list", routes=(("/v1/models", 429),)),
    Way("proxy, 429 for all", routes=(("/", 429),)),
    Way("proxy, older title", title="FastAPI"),
)


@dataclass(frozen=True)
class Healthy:
    start: int
    way: Way
    load: str


@dataclass
class Row:
    state: str = ""
    alarm: str = ""
    checks: Counter[str] = field(default_factory=Counter)
    not_live: str = ""
    seconds: float = 0.0


def main() -> int:
    options = arguments()
    picked = plan(options.share, options.seed)
    began, rows = time.monotonic(), []
    for number, group in groupby(picked, key=lambda one: one.start):
        rows += run(STARTS[number], list(group))
    states = Counter(row.state for row in rows)
    checks = sum((row.checks for row in rows), Counter[str]())
    alarms = [row.alarm for row in rows if row.alarm]
    dead = [row.not_live for row in rows if row.not_live]
    print(f"{len(rows)} healthy servers, seed {options.seed}")
    print(
        f"diagnoses          {', '.join(f'{n} {s}' for s, n in states.most_common())}"
    )
    print(
        f"checks             {', '.join(f'{n} {v}' for v, n in checks.most_common())}"
    )
    print(f"alarms             {len(alarms)}", *alarms, sep="\n  ")
    print(f"liveness failures  {len(dead)}", *dead, sep="\n  ")
    print(f"took               {time.monotonic() - began:.0f} s")
    return 1 if alarms or dead else 0


def plan(share: float, seed: int) -> list[Healthy]:
    """``EACH`` of every start: all ways, loads as they come. A part of it: of the first
    starts."""
    rng = random.Random(seed)
    planned = [
        Healthy(start, way, LOADS[(place + start) % len(LOADS)])
        for start in range(len(STARTS))
        for place, way in enumerate(rng.sample(WAYS, EACH))
    ]
    return planned[: max(1, round(COUNT * share))]


def run(start: Start, group: list[Healthy]) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="mmrepro-healthy-") as name:
        folder, env = Path(name), {}
        if not start.titles:
            (folder / "standin").mkdir()
            (folder / "standin" / "setproctitle.py").write_text(NO_TITLES)
            env = {"PYTHONPATH": str(folder / "standin")}
        with serving(
            start.engine,
            start.release,
            start.model,
            folder / "server",
            *start.options,
            env=env,
            mode=StartMode.COLD,
        ) as server:
            ask(server.url, key=KEY if start.key else "")
            for one in group:
                rows.append(row := look(start, server, one, folder / "kept"))
                told = f"{start!s:28} {one.way.name:26} {one.load:13} {row.state:14}"
                print(f"{told} {row.seconds:5.1f} s", flush=True)
    return rows


def look(start: Start, server: Server, one: Healthy, folder: Path) -> Row:
    row, began = Row(), time.monotonic()
    with contextlib.ExitStack() as stack:
        url = server.url
        if one.way.proxy:
            url = stack.enter_context(
                proxied(server.url, one.way, KEY if start.key else "")
            )
        stack.enter_context(loaded(server.url, one.load, KEY if start.key else ""))
        asked_for = start.key if not one.way.proxy else one.way.key
        headers = WITH_KEY if asked_for and one.way.given else {}
        watching = threading.Thread(target=watch, args=(url, headers, row))
        watching.start()
        found = diagnose(
            DiagnoseCommand(url=url, headers=headers, out=folder / str(began))
        )
        watching.join()
    state, known = found.diagnosis.state, found.diagnosis.found
    row.state, row.seconds = state.value, time.monotonic() - began
    if known or state not in ALIVE | BUSY:
        told = known[0].scenario if known else found.diagnosis.assessment.sentence
        row.alarm = f"{start}, {one.way.name}, {one.load}: {state.value}: {told}"
    if row.not_live:
        row.not_live = f"{start}, {one.way.name}, {one.load}: {row.not_live}"
    return row


def watch(url: str, headers: dict[str, str], row: Row) -> None:
    options = WatchCommand(url=url, http="9400", interval_s=INTERVAL_S, headers=headers)
    health = Health(grace_s=0.0)
    made = watch_of(options, health, listener=lambda *_: None)
    assert isinstance(made.checker, Checker)
    made.checker = simulated = Simulated(made.checker, apart_s=INTERVAL_S)
    for _ in range(CHECKS):
        made._step()
        if not health.live and not row.not_live and health.last is not None:
            row.not_live = health.last.why
    simulated.checker.close()
    row.checks = Counter({verdict.value: n for verdict, n in made.counts.items() if n})


@contextlib.contextmanager
def loaded(url: str, load: str, key: str) -> Iterator[None]:
    """Clients that ask without a break; with long prompts, of 1,800 words and more."""
    if load == "idle":
        yield
        return
    stop = threading.Event()

    def run(number: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            words = "word " * (500 if load == "long prompts" else 1)
            with contextlib.suppress(OSError):
                ask(
                    url, f"{number} {count} {words}", max_tokens=16, timeout=60, key=key
                )

    threads = [
        threading.Thread(target=run, args=(n,), daemon=True) for n in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


# ---------------------------------------------------------------- the proxy, a FAKE


@contextlib.contextmanager
def proxied(url: str, way: Way, key_behind: str) -> Iterator[str]:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=proxy, args=(url, way, key_behind, theirs), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{mine.recv()}"
    finally:
        process.kill()
        process.join()


def proxy(
    url: str, way: Way, key_behind: str, out: multiprocessing.connection.Connection
) -> None:
    address = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = self.headers.get("Authorization", "")
            if way.key and given != WITH_KEY["Authorization"]:
                return self._answer(401, b'{"error": "who are you"}')
            for path, status in way.routes:
                if self.path.startswith(path):
                    return self._answer(status, b"<html>no</html>")
            sent = {"Content-Type": "application/json"}
            sent |= {"Authorization": f"Bearer {key_behind}"} if key_behind else {}
            behind = http.client.HTTPConnection(address, timeout=120)
            try:
                behind.request(self.command, self.path, body, sent)
                answer = behind.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException):
                return self._answer(502, b"<html>Bad Gateway</html>")
            finally:
                behind.close()
            if way.title and self.path == "/openapi.json":
                said = said.replace(b"vLLM API server", way.title.encode())
            return self._answer(answer.status, said)

        do_POST = do_GET  # noqa: N815 - the name that the base class looks for

        def _answer(self, status: int, body: bytes) -> None:
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    out.send(server.server_address[1])
    server.serve_forever()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--share", type=float, default=1.0, help="part of them that is run"
    )
    parser.add_argument("--seed", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
