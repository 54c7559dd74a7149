"""What a server of today does besides: speculation, adapters, connectors, several
ranks.

``{feature:NAME}`` among a server's options stands for the options that the feature
needs (``mmrepro run``, rows of a matrix). ``fuzz --profile modern`` draws from the
table. The reference of the oracles and the factors of an ablation turn a feature off.
docs/lab/stack.md says what each one did on a CPU, with the tiny models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mmrepro.base.errors import UsageError, did_you_mean

_NAMED: Final = re.compile(r"\{feature:([a-z0-9.-]+)\}")


@dataclass(frozen=True)
class Feature:
    """Attributes:
    what: what it is, in a few words.
    args: options that turn it on.
    off: options that turn it off, given after those; (): its own are left out.
    env: variables that it needs.
    model: tiny model that it is tried with.
    """

    what: str
    args: tuple[str, ...]
    off: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = "qwen3-text"


def _speculation(method: str, tokens: int, **more: Any) -> tuple[str, ...]:
    config = {"method": method, "num_speculative_tokens": tokens, **more}
    return (f"--speculative-config={json.dumps(config)}",)


def _connector(name: str, **extra: Any) -> tuple[str, ...]:
    config = {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    return (f"--kv-transfer-config={json.dumps(config)}",)


_NAMED_ADAPTERS: Final = tuple(
    f"{name}={{tiny:{name}}}" for name in ("lora-a", "lora-b")
)


def _adapters(slots: int) -> tuple[str, ...]:
    rank = (
        "--max-lora-rank=8",
        f"--max-loras={slots}",
        f"--max-cpu-loras={max(2, slots)}",
    )
    return ("--enable-lora", *rank, "--lora-modules", *_NAMED_ADAPTERS)


def _sglang_adapters(slots: int) -> tuple[str, ...]:
    room = (
        "--max-lora-rank=8",
        f"--max-loras-per-batch={slots}",
        "--lora-backend=torch_native",
    )
    return ("--enable-lora", *room, "--lora-paths", *_NAMED_ADAPTERS)


PAIR: Final = "--prefill-and-decode"
"""No option of an engine: two servers and a proxy are started
(reproducers/pair/server.py)."""
_FOLDER = "{run-tmp}/kv"
_NO_SPECULATION = ("--speculative-config=None",)
_NO_CONNECTOR = ("--kv-transfer-config=None",)
_DEVELOPER = {"VLLM_SERVER_DEV_MODE": "1"}
_RUNTIME = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
_FILE = {"shared_storage_path": _FOLDER}
# It stores what the first step of a prompt computed, and takes it for the whole prompt
# (vllm#16928): here a step has room for all prompts of the profile ``modern``.
_ONE_STEP = "--max-num-batched-tokens=8192"
_MOE = Feature("a mixture of experts", (), model="qwen3-moe")
_QWEN35 = Feature("gated delta nets and attention", (), model="qwen3.5")
_QWEN_NEXT = Feature("the same, with experts", (), model="qwen3-next")

FEATURES: Final[Mapping[str, Mapping[str, Feature]]] = {
    "vllm": {
        "ngram": Feature(
            "speculation by n-grams of the prompt",
            _speculation("ngram", 3, prompt_lookup_max=4, prompt_lookup_min=1),
            _NO_SPECULATION,
        ),
        "draft": Feature(
            "speculation by a draft model",
            _speculation("draft_model", 3, model="{tiny:qwen3-draft}"),
            _NO_SPECULATION,
        ),
        "mtp": Feature(
            "speculation by a multi-token prediction head",
            (*_speculation("mtp", 2), "--no-enable-prefix-caching"),
            _NO_SPECULATION,
            model="qwen3.5",
        ),
        # On a CPU a request without an adapter gets the weights in the last slot where
        # it shares a batch with one that has (vllm#48421: index -1 in
        # lora/ops/torch_ops/lora_ops.py). A slot that is empty adds nothing.
        "lora": Feature(
            "two adapters, with room to spare",
            _adapters(8),
            ("--no-enable-lora",),
            _RUNTIME,
        ),
        "lora-evicted": Feature(
            "two adapters, room for one", _adapters(1), ("--no-enable-lora",), _RUNTIME
        ),
        "file-connector": Feature(
            "KV cache kept in files",
            (*_connector("ExampleConnector", **_FILE), _ONE_STEP),
            _NO_CONNECTOR,
            _DEVELOPER,
        ),
        "pd": Feature(
            "prefill and decode in two servers",
            (PAIR, *_connector("ExampleConnector", **_FILE)),
            env=_DEVELOPER,
        ),
        "multi-connector": Feature(
            "two KV connectors",
            (
                *_connector(
                    "MultiConnector",
                    connectors=[
                        {
                            "kv_connector": "ExampleConnector",
                            "kv_role": "kv_both",
                            "kv_connector_extra_config": {
                                "shared_storage_path": f"{_FOLDER}{n}"
                            },
                        }
                        for n in (1, 2)
                    ],
                ),
                _ONE_STEP,
            ),
            _NO_CONNECTOR,
            _DEVELOPER,
        ),
        "prefix-caching": Feature(
            "prefix caching",
            ("--enable-prefix-caching",),
            ("--no-enable-prefix-caching",),
        ),
        "chunked-prefill": Feature(
            "prefill in chunks of 64 tokens",
            ("--enable-chunked-prefill", "--max-num-batched-tokens=64"),
            ("--no-enable-chunked-prefill", "--max-num-batched-tokens=8192"),
        ),
        "async": Feature(
            "asynchronous scheduling",
            ("--async-scheduling",),
            ("--no-async-scheduling",),
        ),
        "no-async": Feature(
            "no asynchronous scheduling",
            ("--no-async-scheduling",),
            ("--async-scheduling",),
        ),
        "small-kv": Feature(
            "a KV cache of 18 blocks, so that requests are preempted",
            ("--num-gpu-blocks-override=18",),
            ("--num-gpu-blocks-override=1024",),
        ),
        "parsers": Feature(
            "parsers of tool calls and reasoning",
            (
                "--enable-auto-tool-choice",
                "--tool-call-parser=hermes",
                "--reasoning-parser=qwen3",
            ),
        ),
        "tp2": Feature(
            "two tensor-parallel ranks",
            ("--tensor-parallel-size=2",),
            ("--tensor-parallel-size=1",),
        ),
        "pp2": Feature(
            "two pipeline stages",
            ("--pipeline-parallel-size=2",),
            ("--pipeline-parallel-size=1",),
        ),
        "dp2": Feature(
            "two data-parallel engines",
            ("--data-parallel-size=2",),
            ("--data-parallel-size=1",),
        ),
        "moe": _MOE,
        "qwen3.5": _QWEN35,
        "qwen3-next": _QWEN_NEXT,
        "hybrid-prefix": Feature(
            "prefix caching of gated delta nets and attention",
            ("--enable-prefix-caching",),
            ("--no-enable-prefix-caching",),
            model="qwen3.5",
        ),
        "hybrid-mtp-prefix": Feature(
            "the same with its prediction head",
            (*_speculation("mtp", 2), "--enable-prefix-caching"),
            (*_NO_SPECULATION, "--no-enable-prefix-caching"),
            model="qwen3.5",
        ),
        "mamba2-prefix": Feature(
            "prefix caching of Mamba2 and attention",
            ("--enable-prefix-caching",),
            ("--no-enable-prefix-caching",),
            model="granite-hybrid",
        ),
        "mamba2": Feature(
            "Mamba2 and attention",
            ("--no-enable-prefix-caching",),
            model="granite-hybrid",
        ),
    },
    "sglang": {
        "ngram": Feature(
            "speculation by n-grams of the prompt",
            ("--speculative-algorithm=NGRAM", "--speculative-num-draft-tokens=4"),
        ),
        "draft": Feature(
            "speculation by a draft model",
            (
                "--speculative-algorithm=STANDALONE",
                "--speculative-num-steps=3",
                "--speculative-eagle-topk=1",
                "--speculative-num-draft-tokens=4",
                "--speculative-draft-model-path={tiny:qwen3-draft}",
            ),
        ),
        # A request to the model itself takes a slot of a batch as well.
        "lora": Feature("two adapters, with room to spare", _sglang_adapters(8)),
        "lora-evicted": Feature("two adapters, room for one", _sglang_adapters(1)),
        "hierarchical-cache": Feature(
            (
                "a KV cache of 1024 tokens, and room for what leaves it in the host's "
                "memory"
            ),
            (
                "--enable-hierarchical-cache",
                "--hicache-size=1",
                "--max-total-tokens=1024",
            ),
            ("--max-total-tokens=16384",),
        ),
        "small-kv": Feature(
            "a KV cache of 1152 tokens, so that requests are retracted",
            ("--max-total-tokens=1152",),
            ("--max-total-tokens=16384",),
        ),
        "chunked-prefill": Feature(
            "prefill in chunks of 64 tokens",
            ("--chunked-prefill-size=64",),
            ("--chunked-prefill-size=-1",),
        ),
        "mixed-chunk": Feature(
            "the same, in one batch with decode",
            ("--chunked-prefill-size=64", "--enable-mixed-chunk"),
        ),
        "parsers": Feature(
            "parsers of tool calls and reasoning",
            ("--tool-call-parser=qwen25", "--reasoning-parser=qwen3"),
        ),
        "tp2": Feature("two tensor-parallel ranks", ("--tp-size=2",), ("--tp-size=1",)),
        "pp2": Feature("two pipeline stages", ("--pp-size=2",), ("--pp-size=1",)),
        "dp2": Feature("two data-parallel engines", ("--dp-size=2",), ("--dp-size=1",)),
        "moe": _MOE,
        "qwen3.5": _QWEN35,
        "qwen3-next": _QWEN_NEXT,
        "mamba2": Feature("Mamba2 and attention", (), model="granite-hybrid"),
    },
}
"""By engine and name."""


def feature(engine: str, name: str) -> Feature:
    """Raises UsageError: that engine has none of that name."""
    known = FEATURES.get(engine, {})
    if name not in known:
        raise UsageError(
            f"There is no feature {name} for {engine}." + did_you_mean(name, known),
            hint=", ".join(known) or "a server's options are given with --server-arg",
        )
    return known[name]


def options_of(
    engine: str, words: Iterable[str], env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Options and variables with what each ``{feature:NAME}`` stands for; a variable
    that is given wins. Raises UsageError: there is no such feature."""
    given: list[str] = []
    variables: dict[str, str] = {}
    for word in words:
        if found := _NAMED.fullmatch(word):
            one = feature(engine, found[1])
            given += one.args
            variables |= one.env
        else:
            given.append(word)
    return given, variables | dict(env)


def paired(args: Sequence[str]) -> bool:
    """Whether these options start a prefill and a decode server."""
    return PAIR in args or "{feature:pd}" in args


def turned_on(engine: str, args: Sequence[str]) -> dict[str, Feature]:
    """Features of which the options are among ``args``, by name."""
    return {
        name: one
        for name, one in FEATURES.get(engine, {}).items()
        if one.args and all(word in args for word in one.args)
    }
