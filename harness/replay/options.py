"""Options of a replay, and what those of a fuzz session have in common with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from mmrepro.base.common_options import (
    JOBS,
    JSON,
    MAX_MODEL_LEN,
    MODEL,
    OUT,
    RELEASE,
    REPEAT,
    RESUME_DIR,
    SEED,
    SERVER_ARG,
    SERVER_ENV,
    SHRINK,
    START_MODE,
    TIMEOUT,
)
from mmrepro.base.options import ENGINE, LIMITS, WHAT, Command, Option
from mmrepro.case.model import ServerWanted
from mmrepro.errors import UsageError
from mmrepro.run.options import StartMode

BUDGET, REPEATS, TIMEOUT_S = 40, 3, 600.0
NO_SERVER = ServerWanted(engine="", release="")
MODELS = "Name of a tiny model (qwen2-vl, dots-ocr, qwen3, text), or folder of a model."


@dataclass(frozen=True)
class ServerCommand(Command):
    """Options of a command that replays cases on a server of its own.

    Attributes:
        server: the one that is started; code sets it, by what the other fields ask of it.
        repeat: replays on fresh servers that confirm a finding.
        resume: folder that is continued.
        timeout_s: time that a server may take to become ready.
    """

    engine: Annotated[
        str,
        Option(
            "--engine",
            "vllm, sglang, lmdeploy or minivllm.",
            ENGINE,
            "ENGINE",
            default="a case's own",
        ),
    ] = ""
    release: Annotated[str, RELEASE.but(default="the known scenarios' last")] = ""
    model: Annotated[
        str,
        MODEL.but(help=MODELS, metavar="NAME|DIR", default="that of the engine's scenarios"),
    ] = ""
    max_model_len: Annotated[int | None, MAX_MODEL_LEN] = None
    server_args: Annotated[tuple[str, ...], SERVER_ARG] = ()
    env: Annotated[tuple[str, ...], SERVER_ENV] = ()
    seed: Annotated[int, SEED] = 0
    shrink: Annotated[bool, SHRINK] = True
    repeat: Annotated[
        int,
        REPEAT.but(help="Number of replays on fresh servers that confirm a finding.", most=100),
    ] = REPEATS
    start_mode: Annotated[
        StartMode,
        START_MODE.but(
            help="How servers are started; see mmrepro run --help. auto means warm here."
        ),
    ] = StartMode.AUTO
    timeout_s: Annotated[float, TIMEOUT.but(help="Time limit until a server is ready.")] = TIMEOUT_S
    resume: Annotated[Path | None, RESUME_DIR] = None
    out: Annotated[Path | None, OUT] = None
    json: Annotated[bool, JSON] = False
    server: ServerWanted = field(default_factory=lambda: NO_SERVER)

    def __post_init__(self) -> None:
        if self.resume is not None and self.out is not None:
            raise UsageError(
                "--resume names the folder to go on with: --out is for a new one.",
                hint=f"--resume {self.resume}",
            )

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked of the server, by the fields of :class:`ServerWanted`.

        Raises:
            UsageError: a variable is not NAME=VALUE.
        """
        env = {}
        for text in self.env:
            name, sign, value = text.partition("=")
            if not (sign and name.isidentifier()):
                raise UsageError(f"--env {text}: a variable is given as NAME=VALUE.")
            env[name] = value
        asked = {
            "release": self.release,
            "model": self.model,
            "max_model_len": self.max_model_len,
            "args": list(self.server_args),
            "env": env,
        }
        return {name: value for name, value in asked.items() if value}


@dataclass(frozen=True)
class ReplayCommand(ServerCommand):
    """Options of ``mmrepro replay``.

    Attributes:
        file: the traffic: a HAR, Batch JSONL, an engine's log, or a case.
        anonymise: None: as the file's kind has it (a case is left as it is).
        jobs: servers at a time while shrinking; None: chosen from the machine.
        resume: the case is read there, not from ``file``.
    """

    COMMAND: ClassVar[str] = "replay"
    file: Annotated[
        Path,
        Option(
            "FILE",
            "A HAR, an OpenAI Batch JSONL, a log of vLLM or SGLang, or a case.json.",
            metavar="FILE",
            required=True,
        ),
    ] = Path()
    release: Annotated[str, RELEASE.but(default="a case's own, else the known scenarios' last")] = (
        ""
    )
    model: Annotated[
        str,
        MODEL.but(
            help=MODELS,
            metavar="NAME|DIR",
            default="a case's own, else that of the engine's scenarios",
        ),
    ] = ""
    max_model_len: Annotated[int | None, MAX_MODEL_LEN.but(least=16, default="2048")] = None
    time: Annotated[
        Literal["real", "fast", "order"],
        Option(
            "--time",
            "fast: as fast as the recording's order allows; real: at its own times; order: one "
            "after another.",
            WHAT,
        ),
    ] = "fast"
    anonymise: Annotated[
        bool | None,
        Option(
            "--anonymise/--no-anonymise",
            "Send random text of the same lengths and sharing in place of what people wrote.",
            WHAT,
            default="the real prompts are sent; what leaves the machine has random ones",
        ),
    ] = None
    scale: Annotated[
        bool,
        Option("--scale", "Fit lengths to --max-model-len; what was too long stays so.", WHAT),
    ] = False
    host: Annotated[
        str,
        Option(
            "--host",
            "Of a HAR with several: read the requests to this one. Nothing is sent to it.",
            WHAT,
            "HOST[:PORT]",
        ),
    ] = ""
    concurrency: Annotated[
        int | None,
        Option(
            "--concurrency",
            "Number of requests at once, of a file without times.",
            WHAT,
            "N",
            default="1",
            least=1,
            most=256,
        ),
    ] = None
    budget: Annotated[
        int,
        Option("--budget", "Maximum number of server starts.", LIMITS, "N", least=2, most=10_000),
    ] = BUDGET
    jobs: Annotated[
        int | None,
        JOBS.but(help="Number of servers at a time.", default="as memory and cores allow", most=2),
    ] = None
    resume: Annotated[
        Path | None, RESUME_DIR.but(help="Continue the replay in this folder; no run is repeated.")
    ] = None
    out: Annotated[Path | None, OUT.but(help="Folder of the replay.", default="replays/…")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeat < 1:
            raise UsageError("--repeat is at least 1.", hint=f"--repeat {REPEATS}")
        if self.budget < 2 + self.repeat:
            raise UsageError(
                f"--budget {self.budget} is not enough: one start for the deadlines, one for the "
                f"traffic, and {self.repeat} that confirm what it shows.",
                hint=f"--budget {BUDGET}",
            )

    def written(self) -> Self:
        """Name the whole server: what a case or the engine's scenarios have may change."""
        server = self.server
        if server is NO_SERVER:
            return self
        return replace(
            self,
            engine=server.engine,
            release=server.release,
            model=server.model,
            max_model_len=server.max_model_len,
            server_args=tuple(server.args),
            env=tuple(f"{name}={value}" for name, value in server.env.items()),
        )
