"""How requests are written for an engine, as its ``dialect.toml`` has it: what ``fuzz``
may ask of it, and how its server is put under pressure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.folders import made_of, table


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

    pressure: tuple[str, ...] = ()
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


@cache
def dialect_of(engine: str) -> Dialect:
    """The dialect of ``engine``; what its table does not say is asked the common
    way."""
    row = dict(table(engine, "dialect.toml"))
    if "adapter" in row:
        row["adapter"] = row["adapter"].format(model=SERVED_MODEL)
    return made_of(Dialect, row)
