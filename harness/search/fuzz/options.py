"""Options of a fuzz session, and how its server is put under pressure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import option
from mmrepro.base.units import exact_duration
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.features import feature
from mmrepro.search.replay.options import ServerCommand
from mmrepro.traffic.case.model import ServerWanted


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


@dataclass(frozen=True)
class Dialect:
    """One engine, as far as what may be asked of it differs.

    Attributes:
        pressure: options of the profile of that name.
        tells: options in every profile: what makes an answer tell more.
        env: variables of the profile ``pressure``.
        max_model_len: of it; None: that of the engine's scenarios.
        roomy: options of an episode of many pictures: nothing that it sent is evicted.
        many: pictures of such an episode.
        several: it gives ``n`` answers.
        completions: it has ``/v1/completions`` besides the chat.
        salts: fields that set entries of the prefix cache apart.
        rid: the field with which a client names a request; "": none.
        uuids: a client may name a picture.
        priority: the field; "": none.
        logprobs: values of ``top_logprobs``, the last ones beyond what is allowed.
        shaped: what a grammar is asked for with.
        adapter: what stands before an adapter's name where it is asked.
        adapters: what stands before the paths that load and unload one.
        modern: options of the profile of that name; (): there is none.
        features: those of the engine that its episodes may have.
        model: tiny model that it serves.
    """

    pressure: tuple[str, ...]
    tells: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    max_model_len: int | None = None
    roomy: tuple[str, ...] = ()
    many: int = 120
    several: bool = False
    completions: bool = True
    salts: tuple[str, ...] = ()
    rid: str = ""
    uuids: bool = False
    priority: str = ""
    logprobs: tuple[int, ...] = ()
    shaped: tuple[Mapping[str, Any], ...] = ()
    adapter: str = ""
    adapters: str = "/v1"
    modern: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    model: str = "qwen3-text"


_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_OBJECT = {"type": "json_schema", "json_schema": {"name": "one", "schema": _SCHEMA}}
_REGULAR = ("[ab]{1,6}", r"^(.*)$", r"^(|.*)$", "(yes|no)", r"\d{2}-\d{2}")
"""The third one is legal, and has an empty alternative."""

DIALECTS: Final[Mapping[str, Dialect]] = {
    "vllm": Dialect(
        pressure=(
            "--mm-processor-cache-gb=0.01",
            "--num-gpu-blocks-override=14",
            "--max-num-seqs=4",
            "--scheduling-policy=priority",
        ),
        tells=("--enable-prompt-tokens-details",),
        max_model_len=1024,
        several=True,
        salts=("cache_salt",),
        rid="request_id",
        uuids=True,
        priority="priority",
        logprobs=(0, 1, 5, 20, 21, 1000),
        shaped=(
            {"response_format": _OBJECT},
            {"response_format": {"type": "json_object"}},
            *({"structured_outputs": {"regex": one}} for one in _REGULAR),
            {"structured_outputs": {"choice": ["one", "two"]}},
        ),
        modern=(
            "--dtype=float32",
            "--max-num-seqs=4",
            "--block-size=32",
            "--num-gpu-blocks-override=48",
            "--scheduling-policy=priority",
        ),
        features=(
            "ngram",
            "draft",
            "lora",
            "lora-evicted",
            "file-connector",
            "hybrid-prefix",
            "parsers",
            "chunked-prefill",
            "no-async",
        ),
    ),
    "sglang": Dialect(
        pressure=(
            "--max-total-tokens=3072",
            "--max-running-requests=4",
            "--chunked-prefill-size=512",
        ),
        env={"SGLANG_VLM_CACHE_SIZE_MB": "1"},
        max_model_len=1024,
        roomy=("--max-total-tokens=16384",),
        several=True,
        salts=("cache_salt", "extra_key"),
        rid="rid",
        priority="priority",
        logprobs=(0, 1, 5, 20, 100, 100_000),
        # No grammars: its backends refuse the tiny models' tokenizer, and are switched
        # off.
        modern=(
            "--dtype=float32",
            "--max-running-requests=4",
            "--max-total-tokens=1536",
            "--enable-priority-scheduling",
        ),
        features=("lora", "lora-evicted", "parsers", "chunked-prefill", "mixed-chunk"),
        adapter=f"{SERVED_MODEL}:",
        adapters="",
    ),
    "lmdeploy": Dialect(
        pressure=("--cache-max-entry-count=0.003", "--max-batch-size=4"),
        max_model_len=2048,
        rid="session_id",
        logprobs=(1, 5, 20),
        shaped=(
            {"response_format": _OBJECT},
            {"response_format": {"type": "json_object"}},
        ),
    ),
    "minivllm": Dialect(
        pressure=(
            "--num-blocks=65",
            "--block-size=16",
            "--max-num-seqs=4",
            "--mm-cache-tokens=40",
            "--max-batched-tokens=128",
            "--async-scheduling",
        ),
        max_model_len=512,
        roomy=("--num-blocks=4097", "--mm-cache-tokens=8192"),
        many=600,
        completions=False,
    ),
}
"""What is not here is asked the common way."""


def dialect_of(engine: str) -> Dialect:
    return DIALECTS.get(engine, Dialect(pressure=()))


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
        known = ", ".join(name for name, one in DIALECTS.items() if one.modern)
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
    blind: bool = option(False, "Name nothing, and keep no known failure away.")
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
        }
