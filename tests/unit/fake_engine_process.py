"""FAKES of what a run starts: no engine, no supervisor; a start goes as a test says."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from mmrepro.engines import LaunchPlan
from mmrepro.engines.environments.spec import Environment
from mmrepro.engines.supervise import EngineProcess, StopReport
from mmrepro.runs.options import StartMode
from mmrepro.runs.starter import Starter

Goes = Callable[["FakeProcess"], None]
"""How a start goes: it makes the process ready, or ends it, or raises."""


class _Answers(BaseHTTPRequestHandler):
    """Every request is answered: a completion of one token, and no metrics."""

    def do_GET(self) -> None:
        body = b'{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class FakeProcess:
    """A FAKE server's process: it has no process id, and what was done to it is
    kept."""

    port: int
    log: Path
    pid: int = 4_000_001
    engine_pid: int = 4_000_002  # above pid_max: there is no such process
    exit_code: int | None = None
    stopped: list[float] = field(default_factory=list)
    detached: bool = False
    report: StopReport = field(default_factory=StopReport)
    http: ThreadingHTTPServer | None = None
    isolation: str = ""
    door: Path | None = None

    def reach(self, port: int) -> None:
        """It runs in no box."""

    def process_ids(self) -> list[int]:
        return []

    def detach(self) -> None:
        self.detached = True

    def stop(self, grace_s: float) -> StopReport:
        self.stopped.append(grace_s)
        self.close()
        return self.report

    def close(self) -> None:
        if self.http is not None:
            self.http.shutdown()
            self.http.server_close()
            self.http = None


def ready(process: FakeProcess) -> None:
    """It answers."""
    process.http = ThreadingHTTPServer(("127.0.0.1", process.port), _Answers)
    threading.Thread(
        target=process.http.serve_forever, args=(0.01,), daemon=True
    ).start()


def ends(*log: str, code: int = 1) -> Goes:
    """It ends with ``code`` before it is ready, with these lines in its log."""

    def goes(process: FakeProcess) -> None:
        process.log.write_text("\n".join(log) + "\n")
        process.exit_code = code

    return goes


def raises(error: BaseException) -> Goes:
    """Nothing is started."""

    def goes(_: FakeProcess) -> None:
        raise error

    return goes


def silent(_: FakeProcess) -> None:
    """It neither ends nor answers."""


@dataclass
class FakeStarter:
    """A FAKE starter of FAKE servers.

    Attributes:
        starts: how each start goes, in order.
        mode, reasons: that it chooses.
        parent: whether a fork server is there already.
    """

    starts: list[Goes]
    mode: StartMode = StartMode.COLD
    reasons: tuple[str, ...] = ()
    parent: bool = False
    warms: Callable[[], None] = lambda: None
    processes: list[FakeProcess] = field(default_factory=list)
    modes: list[StartMode] = field(default_factory=list)
    worked: list[StartMode] = field(default_factory=list)
    unusable: list[tuple[StartMode, str, bool]] = field(default_factory=list)

    def choose(
        self, plan: LaunchPlan, environment: Environment
    ) -> tuple[StartMode, list[str]]:
        return self.mode, list(self.reasons)

    def parent_of(self, plan: LaunchPlan, environment: Environment) -> object:
        return self if self.parent else None

    def warm(self, plan: LaunchPlan, environment: Environment) -> None:
        self.warms()

    def start(
        self,
        plan: LaunchPlan,
        environment: Environment,
        mode: StartMode,
        *,
        log: Path,
        **_: object,
    ) -> tuple[EngineProcess, None]:
        self.modes.append(mode)
        process = FakeProcess(int(plan.argv[plan.argv.index("--port") + 1]), log)
        log.write_text("")
        self.starts.pop(0)(process)
        self.processes.append(process)
        return cast(EngineProcess, process), None

    def note(self, mode: StartMode, *_: object) -> None:
        self.worked.append(mode)

    def note_unusable(
        self,
        mode: StartMode,
        plan: object,
        environment: object,
        why: str,
        *,
        certain: bool,
    ) -> None:
        self.unusable.append((mode, why, certain))

    @property
    def it(self) -> Starter:
        return cast(Starter, self)


def starter(*starts: Goes, **more: Any) -> FakeStarter:
    return FakeStarter(list(starts), **more)


def close(processes: Iterable[FakeProcess]) -> None:
    for process in processes:
        process.close()
