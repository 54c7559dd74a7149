"""The reference: the same requests to the same release, each alone, with nothing
remembered.

One request after another, one sequence at a time, prefix, multimodal and encoder caches
off, no chunked prefill, ``float32`` where the engine has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from mmrepro.engines import Engine
from mmrepro.engines.features import options_of
from mmrepro.engines.models import TINY
from mmrepro.engines.plain import PlainServer, plain_server
from mmrepro.search.oracle.promises import parses
from mmrepro.traffic.case import (
    CHAT,
    COMPLETIONS,
    Barrier,
    Case,
    Operation,
    ServerWanted,
    opened_body,
)
from packaging.version import Version

_TOP_LOGPROBS = 5
LOADS = frozenset({"/v1/load_lora_adapter", "/load_lora_adapter"})
UNLOADS = frozenset({"/v1/unload_lora_adapter", "/unload_lora_adapter"})
"""Requests of vLLM and SGLang that make a server have an adapter, or have it no
more."""
CHANGES = LOADS | UNLOADS
_MODULES = ("--lora-modules", "--lora-paths")
"""Options with the adapters that it has from its start."""


_CHANCE = ("temperature", "top_p", "top_k", "min_p", "seed")
_LEAST_TOKENS = 2048
"""Tokens of a step, at least: some releases refuse fewer."""


def reference_case(case: Case, engine: Engine, *, own_format: bool = False) -> Case:
    """The case whose attempt is the reference for ``case``.

    Args:
        own_format: it computes in the server's own number format, and not in
            ``float32``.

    Raises KeyError: there is no plain form of that engine's server.
    """
    plain = plain_server(engine.name)
    if plain is None:
        raise KeyError(engine.name)
    tokens = max(case.server.max_model_len, _LEAST_TOKENS)
    asked = comparable(case)
    given, env = options_of(engine.name, asked.server.args, case.server.env)
    args = [*_without(given, plain.flags), *_adapters(given, asked.operations, plain)]
    own_format = own_format or _bfloat16_only(case.server)
    for arg in plain.args:
        if not (own_format and arg.startswith("--dtype=")):
            args.append(arg.format(tokens=tokens))
    variables = {**env, **dict(plain.env)}
    server = case.server.model_copy(update={"args": args, "env": variables})
    operations: list[Operation] = []
    for op in asked.operations:
        if op.path in CHANGES:
            continue  # here every adapter is there from the start, and stays
        after = [f"{operations[-1].id}.end"] if operations else []
        # What a parser takes of a stream is held against what it takes of the whole.
        stream = (
            op.stream and not plain.streams_mislead and not parses(case.server.args)
        )
        update = {"after": after, "leave": "", "at_s": None, "stream": stream}
        operations.append(op.model_copy(update=update))

    return asked.model_copy(update={"server": server, "operations": operations})


def static_adapters(args: Sequence[str]) -> list[str]:
    """``name=folder`` of each adapter that a server has from its start."""
    behind = next(
        (args[n + 1 :] for n, word in enumerate(args) if word in _MODULES), ()
    )
    return list(takewhile(lambda word: not word.startswith("--"), behind))


def _adapters(
    args: list[str], operations: Sequence[Operation], plain: PlainServer
) -> list[str]:
    """Options by which each adapter that a server loads, ever, is there from the start,
    with room for all; [] of a server without adapters. A name that two adapters had is
    left out: what is answered under it is not compared."""
    if "--enable-lora" not in args:
        return []
    named: dict[str, set[str]] = {}
    loaded: list[str] = []
    for op in operations:
        if op.path in LOADS:
            adapter = op.parameters.get("lora_name")
            loaded.append(f"{adapter}={op.parameters.get('lora_path')}")
    for word in [*static_adapters(args), *loaded]:
        name, _, folder = word.partition("=")
        named.setdefault(name, set()).add(folder)
    words: list[str] = []
    for name, folders in named.items():
        if len(folders) == 1:
            words.append(f"{name}={min(folders)}")
    most = len(named) + 1  # the model alone may take one
    room = [f"{option}={most}" for option in plain.slots]
    if not words:
        return room
    return [*room, plain.modules, *words]


def reference_limits(engine: Engine) -> list[str]:
    """Sentences on what the engine's reference cannot be."""
    plain = plain_server(engine.name)
    if plain is None:
        return [f"There is no reference for {engine.name}: answers were not compared."]
    return list(plain.cannot)


def comparable(case: Case) -> Case:
    """The case as its answers can be compared: greedy, since others follow from chance
    as well, and with logprobs, without which a near-tie cannot be told from an error.

    It changes what the sampler computes, so it is for the plays that are compared only:
    a loud failure is looked for, and shrunk, with the case as it is."""
    plain = plain_server(case.server.engine) or PlainServer(args=())
    tells = not plain.exact and Version(case.server.release) >= Version(
        plain.logprobs_since
    )
    awaited = (
        _awaited(case) if plain.streams_mislead else {op.id for op in case.operations}
    )
    operations = []
    for op in map(opened_body, case.operations):
        if not op.apart:
            operations.append(op)
            continue
        asked = _greedily(op) | (_asking_logprobs(op, plain) if tells else {})
        stream = op.stream and op.id in awaited
        operations.append(op.model_copy(update={"parameters": asked, "stream": stream}))

    args = [*case.server.args, *(plain.logprobs if tells else ())]
    server = case.server.model_copy(update={"args": args})
    return case.model_copy(update={"server": server, "operations": operations})


def with_logprobs(case: Case) -> Case:
    """The case as it is, but for its greedy requests: they ask for logprobs, if the
    engine has some. What the server computes stays nearly the same, and a near tie can
    be told."""
    plain = plain_server(case.server.engine)
    if plain is None or plain.exact:
        return case
    if Version(case.server.release) < Version(plain.logprobs_since):
        return case
    operations = []
    for op in map(opened_body, case.operations):
        if op.apart and greedy(op):
            asked = {**op.parameters, **_asking_logprobs(op, plain)}
            op = op.model_copy(update={"parameters": asked})
        operations.append(op)

    args = [*case.server.args, *plain.logprobs]
    server = case.server.model_copy(update={"args": args})
    return case.model_copy(update={"server": server, "operations": operations})


def _awaited(case: Case) -> set[str]:
    """Operations of whose answer the client, or another request, waits for a piece."""
    waits = (Barrier.parse(wait) for op in case.operations for wait in op.after)
    pieces = {wait.op for wait in waits if wait.event in ("first-token", "tokens")}
    return pieces | {op.id for op in case.operations if op.leave}


def _greedily(op: Operation) -> dict[str, Any]:
    """Its parameters, without chance; several choices stay as they are, being no greedy
    ones."""
    asked = dict(op.parameters)
    several = {asked.get("n"), asked.get("best_of")} - {None, 1}
    if (
        greedy(op)
        or several
        or asked.get("use_beam_search")
        or op.path not in (CHAT, COMPLETIONS)
    ):
        return asked

    return {name: asked[name] for name in asked if name not in _CHANCE} | {
        "temperature": 0
    }


def _asking_logprobs(op: Operation, plain: PlainServer) -> dict[str, Any]:
    given = op.parameters.get("top_logprobs" if op.path == CHAT else "logprobs")
    top = max(given if isinstance(given, int) else 0, _TOP_LOGPROBS)
    # By their numbers, the likeliest ones as well: many tokens of a part of a character
    # are spelled alike, and of those a completion tells the last one only.
    asked = (
        ("return_token_ids", "return_tokens_as_token_ids") if plain.tells_ids else ()
    )
    parameters = dict.fromkeys(asked, True)
    if op.path == CHAT:
        return {"logprobs": True, "top_logprobs": top, **parameters}
    return {"logprobs": top, **parameters} if op.path == COMPLETIONS else {}


def _without(args: list[str], flags: Mapping[str, int]) -> list[str]:
    """``args`` without those flags, however they are spelled."""
    kept: list[str] = []
    skip = 0
    for arg in args:
        name, equals, _ = arg.partition("=")
        if skip:
            skip -= 1
        elif name in flags:
            skip = 0 if equals else flags[name]
        else:
            kept.append(arg)

    return kept


def greedy(op: Operation) -> bool:
    """Whether its answer follows from its prompt alone."""
    said = op.parameters
    return not said.get("use_beam_search") and (
        said.get("temperature") == 0 or said.get("top_k") == 1
    )


def has_own_format(case: Case) -> bool:
    """Whether the reference computes in another number format than the case's
    server."""
    plain = plain_server(case.server.engine)
    formats = plain is not None and any(
        arg.startswith("--dtype=") for arg in plain.args
    )
    return formats and rounds(case.server) and not _bfloat16_only(case.server)


def _bfloat16_only(server: ServerWanted) -> bool:
    return server.model in TINY and TINY[server.model].bfloat16_only


def rounds(server: ServerWanted) -> bool:
    """Whether the server that is played computes in a shorter format than float32, as
    far as its options tell."""
    given = [*server.args, ""]
    formats = [
        arg.partition("=")[2] or given[place + 1]
        for place, arg in enumerate(server.args)
        if arg.partition("=")[0] == "--dtype"
    ]
    plain = plain_server(server.engine)
    if not formats or formats[-1] == "auto":
        return plain is None or not plain.exact
    return formats[-1] not in ("float32", "float")
