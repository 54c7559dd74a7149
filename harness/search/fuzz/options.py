"""Options of a fuzz session, and how its server is put under pressure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import ENGINE, option
from mmrepro.base.units import exact_duration
from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.features import feature
from mmrepro.engines.folders import folders
from mmrepro.search.replay.options import ServerCommand
from mmrepro.traffic.case import ServerWanted


class FuzzProfile(StrEnum):
    """What kind of day the server has."""

    PRESSURE = "pressure"
    """Small caches and a small KV cache: everything is evicted, preempted and used
    again."""
    PLAIN = "plain"
    """The engine's own defaults."""
    TEXT = "text"
    """As ``pressure``, without a picture."""
    HAZARDS = "hazards"
    """As ``pressure``, with clients that do what an engine's documentation warns of:
    one uuid for two pictures."""
    MODERN = "modern"
    """What servers of today do besides, some of it in each episode: speculation,
    adapters that come and go, a KV cache in files, a hybrid's states in the prefix
    cache, tools; texts only."""


def under(
    profile: FuzzProfile, wanted: ServerWanted, *, length_told: bool
) -> ServerWanted:
    """The server of ``profile``: ``wanted`` with its options.

    Args:
        wanted: what the engine's scenarios run, with what was asked for on the command
            line; its options come last, and so win.
        length_told: ``max_model_len`` was asked for.

    Raises:
        UsageError: the engine has no such profile.
    """
    dialect = dialect_of(wanted.engine)
    if profile is FuzzProfile.PLAIN:
        return wanted.model_copy(update={"args": [*dialect.tells, *wanted.args]})
    length = wanted.max_model_len if length_told else dialect.max_model_len
    if profile is FuzzProfile.MODERN and not dialect.modern:
        known = ", ".join(name for name in folders() if dialect_of(name).modern)
        raise UsageError(
            f"There is no profile modern for {wanted.engine}.",
            hint=f"mmrepro fuzz {known}",
        )

    pressure, env = dialect.pressure, dict(dialect.env)
    if profile is FuzzProfile.MODERN:
        pressure = dialect.modern
        for (
            name
        ) in dialect.features:  # of all of them: their servers have one fork server
            env |= feature(wanted.engine, name).env

    return wanted.model_copy(
        update={
            "args": [*dialect.tells, *pressure, *wanted.args],
            "env": {**env, **wanted.env},
            "max_model_len": length or wanted.max_model_len,
        }
    )


# ------------------------------------------------------------------------------ options

_BUDGET_S = 1800.0
_LEAST_S = 10.0


@dataclass(frozen=True)
class FuzzCommand(ServerCommand):
    """Options of ``mmrepro fuzz``; its ``server`` has the options of the profile."""

    COMMAND: ClassVar[str] = "fuzz"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.failure.documents.replay:Fuzz",)
    engine: str = common.ENGINE_NAME("", argument=True, required=True)
    release: str = common.RELEASE("", shown="the known scenarios' last")
    tree: str = common.SOURCE("")
    kernels: str = common.KERNELS("")
    profile: FuzzProfile = option(
        FuzzProfile.PRESSURE,
        "pressure: small caches and KV; plain: the engine's defaults; text: pressure "
        "without images; hazards: clients that do what the documentation warns of; "
        "modern: speculation, LoRA, a KV connector and tools, in changing "
        "combinations.",
    )
    scripts: bool = option(
        False,
        "Look for faults of parsers: a model says generated tool calls, thoughts and "
        "texts, with each tool and reasoning parser that the release registers; texts "
        "only, the engine's defaults.",
    )
    blind: bool = option(False, "Do not label or avoid known failures.")
    source: Path | None = option(
        None,
        (
            "Use and change the requests of a recording or case, or the images of a "
            "folder."
        ),
        "FILE",
        name="--from",
        names="record",
    )
    against: str = option(
        "",
        "Options of a second server, e.g. '--front rust', '--release 0.24.0' or "
        "'--server-arg=--no-enable-prefix-caching': both get the same requests, and "
        "each difference is a finding.",
        "OPTIONS",
        ENGINE,
        runs_code=True,
    )
    budget_s: float = common.BUDGET(
        _BUDGET_S,
        help="Time for it, e.g. 10m or 2h; building an environment does not count.",
        shown="30m",
    )
    jobs: int | None = common.JOBS(None, help="Number of servers at a time.", shown="1")
    out: Path | None = common.OUT(None, shown="fuzz/…")
    box: bool = common.BOX(
        True,
        help="With --from: run the servers in a box, since others wrote what they get.",
    )

    other: ServerWanted | None = None
    """The second server of ``against``; code sets it."""

    @property
    def boxed(self) -> bool:
        return self.box and self.source is not None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget_s < _LEAST_S:
            raise UsageError(
                (
                    f"--budget {exact_duration(self.budget_s)} is not enough for one "
                    "episode."
                ),
                hint="--budget 30m",
            )
        if self.scripts and self.source is not None:
            raise UsageError(
                "--scripts generates the model's answers: --from has requests of its own.",
                hint="leave one of them out",
            )
        if self.scripts and self.against:
            raise UsageError(
                "--scripts holds answers against what a model said: --against holds "
                "them against another server's.",
                hint="leave one of them out",
            )
        if self.scripts and self.script is not None:
            raise UsageError(
                "--scripts generates what --script FILE would say.",
                hint="leave one of them out",
            )

    def written(self) -> Self:
        """A cluster's address is left out: others read documents."""
        return replace(
            self, engine=self.engine or self.server.engine, ray=self.ray and "auto"
        )

    @property
    def decides(self) -> dict[str, str]:
        """What the way of a session depends on; it can only be gone on with as it
        began."""
        return {
            "server": self.server.model_dump_json(exclude_defaults=True),
            "--profile": self.profile,
            "--seed": str(self.seed),
            "--blind": "yes" if self.blind else "",
            "--from": str(self.source or ""),
            "--no-shrink": "" if self.shrink else "yes",
            "--repeat": str(self.repeat),
            "--device": self.on_gpu,
            **self._newer_decides,
        }

    @property
    def _newer_decides(self) -> dict[str, str]:
        """Options that sessions of earlier days did not write down."""
        decides: dict[str, str] = {}
        if self.scripts:
            decides["--scripts"] = "yes"
        if self.other is not None:
            decides["--against"] = self.other.model_dump_json(exclude_defaults=True)
        return decides
