"""Options of a comparison of two sides of an engine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import ENGINE, LIMITS, option
from mmrepro.runs import CONFIDENCE, METRICS, metric_of, thresholds
from mmrepro.search.replay.options import NO_SERVER, TrafficCommand
from mmrepro.traffic.case import ServerWanted

_BUDGET_S = 1800.0
_AT_ONCE = 8


@dataclass(frozen=True)
class UpgradeCommand(TrafficCommand):
    """Options of ``mmrepro upgrade``; a comparison that is continued reads its traffic
    in ``resume``."""

    COMMAND: ClassVar[str] = "upgrade"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.failure.documents.upgrade:Upgrade",
    )
    old: str = option(
        "",
        "The release that runs.",
        "OLD",
        argument=True,
        names="release",
        shown="--source",
    )
    new: str = option(
        "",
        "The one that is to run.",
        "NEW",
        argument=True,
        names="release",
        shown="OLD, or --new-source",
    )
    traffic: Path = option(
        Path(),
        "What is sent to both: whatever mmrepro replay reads.",
        "FILE",
        required=True,
        names="record",
    )
    release: str = ""
    shrink: bool = True
    repeat: int = 2
    tree: str = common.SOURCE(
        "", help=common.SOURCE.help.replace("a release", "OLD", 1)
    )
    new_tree: str = common.SOURCE(
        "", name="--new-source", help="The same in place of NEW."
    )
    server_words: str = option(
        "",
        "Options of the server, as they are typed.",
        "OPTIONS",
        ENGINE,
        name="--server",
        runs_code=True,
    )
    new_server_words: str = option(
        "",
        "The same of the new side.",
        "OPTIONS",
        ENGINE,
        name="--new-server",
        runs_code=True,
        shown="those of --server",
    )
    new_env: tuple[str, ...] = option(
        (),
        "One more environment variable of the new side. May be repeated.",
        "NAME=VALUE",
        ENGINE,
        attached=True,
        runs_code=True,
    )
    device: str = common.DEVICE("auto")
    budget_s: float = common.BUDGET(
        _BUDGET_S,
        help="Time for it, e.g. 30m or 2h; it ends as soon as all is settled.",
        shown="30m",
    )
    worse: tuple[str, ...] = option(
        (),
        "A change to the worse that matters: of all times, or of one of "
        f"{', '.join(METRICS)}. May be repeated.",
        "[METRIC=]PERCENT",
        LIMITS,
        shown="3% of tokens, 5% of latency and throughput, 10% of TTFT …",
    )
    only: str = option(
        "", "Measure this metric alone; answers are not compared.", "METRIC", LIMITS
    )
    confidence: float = option(
        CONFIDENCE,
        "That all intervals hold together, at whichever look it ends.",
        "SHARE",
        LIMITS,
        least=0.5,
        most=0.9999,
    )
    interleave: Literal["auto", "requests", "servers"] = option(
        "auto",
        "requests: both servers live, parts of the traffic go to them in turn; "
        "servers: one after the other.",
        group=LIMITS,
    )
    at_once: int = option(
        _AT_ONCE, "Requests under way at saturation.", "N", LIMITS, least=1, most=256
    )
    out: Path | None = common.OUT(None, shown="upgrades/…")
    new_server: ServerWanted = field(default_factory=lambda: NO_SERVER)
    """The new side's; code sets it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        thresholds(self.worse)
        if self.only:
            metric_of(self.only, f"--only {self.only}")

    @property
    def thresholds(self) -> dict[str, float]:
        return thresholds(self.worse)

    def sides(self) -> tuple[str, str]:
        """The releases as they are typed; "": a tree's. Raises UsageError: one is
        missing, or given twice."""
        old, new = self.old, self.new
        if self.tree and self.new_tree:
            old, new, extra = "", "", old or new
        elif self.tree:  # the one word is the new side's
            old, new, extra = "", new or old, old if new else ""
        elif self.new_tree:
            extra = new
        else:
            new, extra = new or old, ""

        missing = not (self.tree or old) or not (self.new_tree or new)
        if extra or missing:
            raise UsageError(
                f"{extra} and --source exclude each other."
                if extra
                else "Which two are compared?",
                hint="mmrepro upgrade 0.32.0 0.33.0 --engine vllm --traffic night.har",
            )

        return old, new

    @property
    def asked(self) -> dict[str, Any]:
        words = [*super().asked.get("args", ()), *_words("--server", self.server_words)]
        return super().asked | ({"args": words} if words else {})

    @property
    def asked_new(self) -> dict[str, Any]:
        """What is asked of the new side, where it is another."""
        of_both = replace(self, server_words=self.new_server_words or self.server_words)
        return replace(of_both, env=(*self.env, *self.new_env)).asked

    def written(self) -> Self:
        """Name both servers whole, where code has settled them."""
        server, newer = self.server, self.new_server
        if server is NO_SERVER:
            return self
        return replace(
            self,
            ray=self.ray and "auto",
            engine=server.engine,
            old=server.release,
            new=newer.release,
            tree="",
            new_tree="",
            kernels="",
            model=server.model,
            max_model_len=server.max_model_len,
            server_args=(),
            server_words=shlex.join(server.args),
            new_server_words=""
            if newer.args == server.args
            else shlex.join(newer.args),
            env=tuple(f"{name}={value}" for name, value in server.env.items()),
            new_env=tuple(
                f"{name}={value}"
                for name, value in newer.env.items()
                if server.env.get(name) != value
            ),
        )


def _words(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{name} {text!r}: {error}.") from error
