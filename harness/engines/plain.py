"""What makes an engine's server a plain one, as its ``plain.toml`` has it: the
reference of the oracles.

One sequence at a time, prefix, multimodal and encoder caches off, no chunked prefill,
``float32`` where the engine has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from mmrepro.engines.folders import made_of, table


@dataclass(frozen=True)
class PlainServer:
    """What makes an engine's server plain.

    Attributes:
        args: options that come last, and so win; ``{tokens}``: the longest prompt and
            answer.
        flags: options that are taken away: how many values follow each.
        env: variables.
        cannot: sentences on what it has no switch for.
    """

    args: tuple[str, ...]
    flags: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cannot: tuple[str, ...] = ()
    tells_ids: bool = False
    """Tokens' numbers come with an answer if its request says ``return_token_ids``."""
    logprobs: tuple[str, ...] = ()
    """Options without which logprobs are refused."""
    logprobs_since: str = "0"
    """Releases before it are not asked for logprobs: what they take was not tried."""
    streams_mislead: bool = False
    """Its streams tell the logprobs of some tokens twice and of others never: they are
    not used, and what is compared does not stream, but where somebody waits for a
    piece."""
    exact: bool = False
    """A greedy answer of a float32 server does not depend on the batch, and no request
    can ask for logprobs."""
    reloads: bool = False
    """Who asks an adapter that was unloaded has it loaded again, from where it was."""
    modules: str = "--lora-modules"
    slots: tuple[str, ...] = ("--max-loras", "--max-cpu-loras")
    """Options with the adapters, and with how many there is room for."""


@cache
def plain_server(engine: str) -> PlainServer | None:
    """What makes a server of ``engine`` plain; None: no reference can be had of it."""
    row = table(engine, "plain.toml")
    return made_of(PlainServer, row) if row else None
