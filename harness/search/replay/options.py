"""Options of a replay, and what those of a fuzz session have in common with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import device_of
from mmrepro.base.options import ENGINE, LIMITS, Command, option
from mmrepro.engines.models import (
    SCRIPT_BASES,
    TINY,
    USUAL_SCRIPT_BASE,
    Scripts,
    read_scripts,
)
from mmrepro.runs import StartMode
from mmrepro.traffic.capture import RecordingExcerpt
from mmrepro.traffic.case import ServerWanted

_BUDGET, _REPEATS, _TIMEOUT_S = 40, 3, 600.0
NO_SERVER = ServerWanted(engine="", release="")


@dataclass(frozen=True)
class ServerCommand(Command):
    """Options of a command that replays cases on a server of its own."""

    engine: str = common.ENGINE_NAME("", group=ENGINE, shown="a case's own")
    release: str = common.RELEASE(
        "", shown="a case's own, else the known scenarios' last"
    )
    tree: str = common.SOURCE("")
    kernels: str = common.KERNELS("")
    device: str = common.DEVICE("auto")
    model: str = common.MODEL(
        "",
        help=f"Name of a tiny model ({', '.join(TINY)}), or folder of a model.",
        metavar="NAME|DIR",
        shown="a case's own, else that of the engine's scenarios",
    )
    script: Path | None = option(
        None,
        "What a tiny model says in place of random text: a file of scripts, or a text "
        "(mmrepro help verdicts).",
        "FILE",
        ENGINE,
    )
    max_model_len: int | None = common.MAX_MODEL_LEN(None)
    server_args: tuple[str, ...] = common.SERVER_ARG(())
    env: tuple[str, ...] = common.SERVER_ENV(())
    seed: int = common.SEED(0)
    shrink: bool = common.SHRINK(True)
    repeat: int = common.REPEAT(
        _REPEATS,
        help="Number of replays on fresh servers that confirm a finding.",
        most=100,
    )
    start_mode: StartMode = common.START_MODE(
        StartMode.AUTO,
        help="How servers are started; see mmrepro run --help. auto means warm here.",
    )
    timeout_s: float = common.TIMEOUT(
        _TIMEOUT_S, help="Time limit until a server is ready."
    )
    ray: str = common.RAY("")
    events: str = common.EVENTS("")
    resume: Path | None = common.RESUME(
        None,
        help="Continue what is in this folder; no run is repeated.",
        names="campaign",
    )
    out: Path | None = common.OUT(None, shown="replays/…")
    full: bool = common.FULL(False)
    json: bool = common.JSON(False)
    quiet: bool = common.QUIET(False)
    verbose: bool = common.VERBOSE(False)
    yes: bool = common.YES(False)
    server: ServerWanted = field(default_factory=lambda: NO_SERVER)
    """The one that is started; code sets it, by what the other fields ask of it."""

    def __post_init__(self) -> None:
        if self.resume is not None and self.out is not None:
            raise UsageError(
                "--resume names the folder to go on with: --out is for a new one.",
                hint=f"--resume {self.resume}",
            )

    @property
    def boxed(self) -> bool:
        """Whether its servers run in a box: not where their options and traffic are the
        user's."""
        return False

    @property
    def on_gpu(self) -> str:
        """ "cuda" if that is where the servers run, else "": what a journal
        remembers."""
        return "cuda" if device_of(self.device) == "cuda" else ""

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked of the server, by the fields of :class:`ServerWanted`. Raises
        UsageError: a variable is not NAME=VALUE, or the scripts are none."""
        env = {}
        for text in self.env:
            name, sign, value = text.partition("=")
            if not (sign and name.isidentifier()):
                raise UsageError(f"--env {text}: a variable is given as NAME=VALUE.")
            env[name] = value

        asked: dict[str, Any] = {
            "release": self.release,
            "model": self.model,
            "max_model_len": self.max_model_len,
            "args": list(self.server_args),
            "env": env,
        }
        if self.script is not None:
            asked["scripts"] = self._scripts
            asked["model"] = self.model or USUAL_SCRIPT_BASE
        return {name: value for name, value in asked.items() if value}

    @property
    def _scripts(self) -> Scripts:
        assert self.script is not None
        if self.model and self.model not in SCRIPT_BASES:
            raise UsageError(
                f"The model {self.model} says no scripts.",
                hint=f"--model {USUAL_SCRIPT_BASE}, or leave --model out",
            )
        return read_scripts(self.script)


@dataclass(frozen=True)
class TrafficCommand(ServerCommand):
    """Options of a command that reads a recording, a trace or a profile."""

    first: int | None = common.FIRST(None)
    window: tuple[float, float] | None = common.WINDOW(None)

    @property
    def excerpt(self) -> RecordingExcerpt:
        return RecordingExcerpt(self.first, *(self.window or ()))


@dataclass(frozen=True)
class ReplayCommand(TrafficCommand):
    """Options of ``mmrepro replay``; a replay that is continued reads its case in
    ``resume``."""

    COMMAND: ClassVar[str] = "replay"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.failure.documents.replay:Replay",
        # Nothing prints a case, which people write by hand: it is what is read here.
        "mmrepro.traffic.case.model:Case",
    )
    file: Path = option(
        Path(),
        "A HAR, an OpenAI Batch JSONL, a Mooncake trace, a log of vLLM or SGLang, or a "
        "case.json; the number or id of a replay here; or a profile: chat, code, rag, "
        "agents.",
        "FILE",
        argument=True,
        required=True,
        names="record",
    )
    max_model_len: int | None = common.MAX_MODEL_LEN(None, least=16, shown="2048")
    time: Literal["real", "fast", "order"] = option(
        "fast",
        "fast: as fast as the recording's order allows; real: at its own times; order: "
        "one after another.",
    )
    anonymise: bool | None = option(
        None,
        (
            "Send random text of the same lengths and sharing in place of what people "
            "wrote."
        ),
        name="--anonymise/--no-anonymise",
        shown="the real prompts are sent; what leaves the machine has random ones",
    )
    scale: bool = option(
        False, "Fit lengths to --max-model-len; what was too long stays so."
    )
    host: str = option(
        "",
        "Host whose requests are read, in a HAR with several. Nothing is sent to it.",
        "HOST[:PORT]",
    )
    concurrency: int | None = option(
        None,
        "Number of requests at once, for a file without times.",
        "N",
        shown="1",
        least=1,
        most=256,
    )
    expect: tuple[str, ...] = option(
        (),
        "What an answer shall be: status=4xx, text=REGEX, tokens=<=8, "
        "same-as=non-streamed … "
        "(mmrepro help replay); r2:… of one request. May be given several times.",
        "[REQUEST:]NAME=VALUE",
    )
    budget: int = option(
        _BUDGET, "Maximum number of server starts.", "N", LIMITS, least=2, most=10_000
    )
    jobs: int | None = common.JOBS(
        None, help="Number of servers at a time.", shown="as memory and cores allow"
    )
    box: bool = common.BOX(True)

    @property
    def boxed(self) -> bool:
        return self.box

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeat < 1:
            raise UsageError("--repeat is at least 1.", hint=f"--repeat {_REPEATS}")
        if self.budget < 2 + self.repeat:
            raise UsageError(
                f"--budget {self.budget} is not enough: one start for the deadlines, "
                f"one for the traffic, and {self.repeat} that confirm what it shows.",
                hint=f"--budget {_BUDGET}",
            )

    def written(self) -> Self:
        """Name the whole server: what a case or the engine's scenarios have may change.
        A cluster's address is left out: others read documents."""
        server = self.server
        if server is NO_SERVER:
            return self
        # A model that is typed takes the scripts of a case away.
        says_its_own = server.scripts is not None and self.script is None
        return replace(
            self,
            ray=self.ray and "auto",
            engine=server.engine,
            release=server.release,
            model="" if says_its_own else server.model,
            max_model_len=server.max_model_len,
            server_args=tuple(server.args),
            env=tuple(f"{name}={value}" for name, value in server.env.items()),
        )
