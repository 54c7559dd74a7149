"""Requests of one field each: every field of the API with values inside, at and beyond
its bounds.

Each is a plain request with one thing changed, so that what two servers answer
otherwise is known by that thing. Texts are short and greedy: what a model says is not
what is asked here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from mmrepro.traffic.case import CHAT, COMPLETIONS, Message, Operation

AT_ONCE: Final = 70
"""Requests of an episode."""
_TOKENIZE, _DETOKENIZE = "/tokenize", "/detokenize"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["sun", "moon"]}},
            "required": ["at"],
        },
    },
}
_SCHEMA: Final = {
    "name": "one",
    "schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    },
}
_BOTH: Final[Mapping[str, Sequence[Any]]] = {
    "max_tokens": (0, 1, -1, None, 1.5, "5", 100_000),
    "min_tokens": (0, 2, 99, -1),
    "temperature": (0.0, 2.0, 2.5, "1", None),
    "top_p": (0.5, 0.0, 1.5, None),
    "top_k": (-1, 0, 5, -2),
    "min_p": (0.0, 0.5, 1.5),
    "n": (1, 2, 0, -1, None),
    "seed": (0, -1, 2**40),
    "stop": ("a", ["a", "b"], "", [], None, ["a"] * 5),
    "stop_token_ids": ([5], [], [10_000_000], ["a"]),
    "include_stop_str_in_output": (True,),
    "ignore_eos": (True, "yes"),
    "use_beam_search": (True,),
    "length_penalty": (0.5,),
    "presence_penalty": (0.5, 2.5, None),
    "frequency_penalty": (0.5, -2.5),
    "repetition_penalty": (1.2, 0.0, -1.0),
    "logit_bias": ({"5": 100}, {"5": 200}, {"a": 1}, {"10000000": 1}, {}),
    "bad_words": (["a"], [""]),
    "allowed_token_ids": ([5, 6, 7], [], [10_000_000]),
    "skip_special_tokens": (False,),
    "spaces_between_special_tokens": (False,),
    "truncate_prompt_tokens": (1, 0, -1),
    "prompt_logprobs": (0, 1, -1, 1000),
    "return_token_ids": (True,),
    "return_tokens_as_token_ids": (True,),
    "stream_options": ({"include_usage": True}, {"include_usage": False}, {}),
    "user": ("somebody", 5),
    "request_id": ("mine",),
    "priority": (1,),
    "cache_salt": ("salt", ""),
    "vllm_xargs": ({"a": 1},),
    "logits_processors": ([],),
    "structured_outputs": (
        {"choice": ["one", "two"]},
        {"choice": []},
        {"regex": "[ab]{1,4}"},
        {"regex": "("},
        {"json": {"type": "object"}},
        {"grammar": "root ::= 'a'"},
        {},
    ),
    "response_format": (
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": _SCHEMA},
        {"type": "json_schema"},
        {"type": "nothing"},
    ),
    "kv_transfer_params": ({"a": 1},),
    "an_unknown_field": (1,),
}
_CHAT: Final[Mapping[str, Sequence[Any]]] = {
    "logprobs": (True, False, 1),
    "top_logprobs": (0, 5, 20, 21, -1),
    "max_completion_tokens": (3, 0, None),
    "tools": ([_TOOL], [], [{"type": "function"}], None),
    "tool_choice": ("auto", "none", "required", "look"),
    "parallel_tool_calls": (False,),
    "echo": (True,),
    "add_generation_prompt": (False,),
    "continue_final_message": (True,),
    "add_special_tokens": (True,),
    "include_reasoning": (False,),
    "reasoning_effort": ("low", "none", "much"),
    "chat_template": ("{{ messages[0].content }}", "{% if %}"),
    "chat_template_kwargs": ({"enable_thinking": False}, {"tokenize": True}),
    "documents": ([{"title": "a", "text": "b"}],),
    "service_tier": ("auto",),
    "store": (True,),
    "metadata": ({"a": "b"},),
    "verbosity": ("low",),
    "mm_processor_kwargs": ({},),
}
_COMPLETION: Final[Mapping[str, Sequence[Any]]] = {
    "logprobs": (0, 1, 5, 20, 21, -1, True),
    "best_of": (1, 2),
    "echo": (True,),
    "suffix": ("end",),
    "add_special_tokens": (False,),
    "prompt_embeds": ("AAAA",),
}
_PAIRED: Final[Mapping[str, Mapping[str, Any]]] = {
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [_TOOL]},
    "stream_options": {"stream": True},
    "best_of": {"n": 1},
    "seed": {"temperature": 1.0},
    "use_beam_search": {"n": 2},
    "length_penalty": {"use_beam_search": True, "n": 2},
}
"""What a field goes with."""
_MESSAGES: Final[Mapping[str, list[dict[str, Any]]]] = {
    "messages: none": [],
    "messages: system": [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hello"},
    ],
    "messages: developer": [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": "hello"},
    ],
    "messages: an unknown role": [{"role": "nobody", "content": "hello"}],
    "messages: content null": [{"role": "user", "content": None}],
    "messages: no content": [{"role": "user"}],
    "messages: empty content": [{"role": "user", "content": ""}],
    "messages: content of no parts": [{"role": "user", "content": []}],
    "messages: content of parts": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        }
    ],
    "messages: an unknown part": [
        {"role": "user", "content": [{"type": "smell", "smell": "a"}]}
    ],
    "messages: a name": [{"role": "user", "name": "me", "content": "hello"}],
    "messages: an assistant's last": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "I say"},
    ],
    "messages: a tool's answer": [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": "sun"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "bright"},
    ],
    "messages: arguments that are no JSON": [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": "{"},
                }
            ],
        },
    ],
    "messages: reasoning": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "reasoning": "because", "content": "I say"},
        {"role": "user", "content": "and"},
    ],
}
_PROMPTS: Final[Mapping[str, Any]] = {
    "prompt: empty": "",
    "prompt: several": ["hello", "and"],
    "prompt: none of several": [],
    "prompt: tokens": [5, 6, 7],
    "prompt: tokens of several": [[5, 6], [7]],
    "prompt: an unknown token": [10_000_000],
    "prompt: null": None,
    "prompt: a number": 5,
    "prompt: other characters": "\u202ea\U0001f9d1\u200d\U0001f680\x00",
    "prompt: markup": "<|im_end|>\n<|im_start|>assistant\n",
}
_OTHERS: Final[Sequence[tuple[str, str, dict[str, Any]]]] = (
    ("POST", _TOKENIZE, {"prompt": "hello there"}),
    ("POST", _TOKENIZE, {"prompt": "hello", "return_token_strs": True}),
    ("POST", _TOKENIZE, {"messages": [{"role": "user", "content": "hello"}]}),
    ("POST", _TOKENIZE, {}),
    ("POST", _DETOKENIZE, {"tokens": [5, 6, 7]}),
    ("POST", _DETOKENIZE, {"tokens": [10_000_000]}),
    ("POST", "/v1/embeddings", {"input": "hello"}),
    ("POST", "/v1/responses", {"input": "hello", "max_output_tokens": 4}),
    ("POST", "/v1/messages", {"messages": [], "max_tokens": 4}),
    ("POST", "/v1/nothing", {}),
    ("GET", CHAT, {}),
    ("GET", "/v1/models", {}),
    ("GET", "/v1/models/nothing", {}),
    ("GET", "/health", {}),
    ("GET", "/ping", {}),
    ("GET", "/version", {}),
    ("GET", "/load", {}),
    ("GET", "/server_info", {}),
    ("GET", "/nothing", {}),
)
_BARE: Final = frozenset(("max_tokens", "temperature"))
"""Parameters of a plain request."""


def plain_request(id: str, path: str, *, stream: bool = False) -> Operation:
    """A small greedy request, which every server answers."""
    chat = path == CHAT
    return Operation(
        id=id,
        path=path,
        messages=[Message(role="user", content="hello")] if chat else None,
        prompt=None if chat else "hello",
        parameters={"max_tokens": 4, "temperature": 0},
        stream=stream,
    )


def field_requests(random: Random, count: int = AT_ONCE) -> list[Operation]:
    """Plain requests of each kind, then ``count`` others, each with one thing
    changed."""
    plain: list[Operation] = []
    for path in (CHAT, COMPLETIONS):
        plain.append(plain_request(f"r{len(plain) + 1}", path))
        plain.append(plain_request(f"r{len(plain) + 1}", path, stream=True))

    every = [*_with_fields(), *_with_messages(), *_with_prompts(), *_elsewhere()]
    drawn = random.sample(every, min(count, len(every)))
    operations = [*plain]
    for number, op in enumerate(drawn, len(plain) + 1):
        is_completion = op.path in (CHAT, COMPLETIONS) and op.method == "POST"
        stream = is_completion and (op.stream or random.random() < 0.3)
        update = {"id": f"r{number}", "stream": stream}
        operations.append(op.model_copy(update=update))
    return operations


def crossed_requests(
    kept: Sequence[Operation], random: Random, count: int = AT_ONCE
) -> list[Operation]:
    """Return plain requests, then ``count`` others: each is one of ``kept`` with one
    thing more."""
    operations = [
        plain_request("r1", CHAT),
        plain_request("r2", COMPLETIONS),
        plain_request("r3", CHAT, stream=True),
    ]
    others = [*_with_fields(), *_with_messages(), *_with_prompts()]
    for number in range(len(operations) + 1, len(operations) + count + 1):
        op = random.choice(kept)
        same_path = [other for other in others if other.path == op.path]
        if same_path:
            op = _with_more(op, random.choice(same_path))
        update: dict[str, object] = {"id": f"r{number}", "after": [], "leave": ""}
        if same_path and random.random() < 0.2:
            update["stream"] = not op.stream
        operations.append(op.model_copy(update=update))
    return operations


def _with_more(op: Operation, other: Operation) -> Operation:
    """A request with what another of the same path has beyond a plain one."""
    plain = plain_request("plain", op.path)
    parameters = dict(op.parameters)
    for name, value in other.parameters.items():
        if plain.parameters.get(name) != value:
            parameters[name] = value
    update: dict[str, object] = {"parameters": parameters}
    if op.stream or other.stream:
        update["stream"] = True
    # A text as a parameter takes the place of the plain one.
    for name in ("messages", "prompt"):
        if name in parameters:
            update[name] = None
    return op.model_copy(update=update)


def features_of(op: Operation) -> list[str]:
    """What a request has that a plain one has not, by which findings are told apart."""
    features = [] if op.path == CHAT else [op.path]
    if op.method != "POST":
        features.append(op.method)
    if op.stream:
        features.append("stream")
    plain = plain_request("plain", op.path)
    for name, value in op.parameters.items():
        if name not in _BARE or plain.parameters[name] != value:
            features.append(f"{name}={value!r}"[:60])
    for name in sorted(_BARE - op.parameters.keys()):
        if op.method == "POST" and op.path in (CHAT, COMPLETIONS):
            features.append(f"without {name}")
    own_text = op.messages is not None or op.prompt is not None
    if own_text and (op.messages, op.prompt) != (plain.messages, plain.prompt):
        features.append("text")
    return features


def smaller(op: Operation) -> Iterator[Operation]:
    """The request with one thing fewer, each that it has beyond a plain one."""
    if op.stream:
        yield op.model_copy(update={"stream": False})
    plain = plain_request("plain", op.path)
    for name in op.parameters:
        left = {key: value for key, value in op.parameters.items() if key != name}
        if name in ("messages", "prompt"):
            # Without any it would be another odd request.
            own = {"messages": plain.messages, "prompt": plain.prompt}
            yield op.model_copy(update={**own, "parameters": left})
            continue
        if name in _BARE:
            if op.parameters[name] == plain.parameters[name]:
                continue
            left[name] = plain.parameters[name]
        yield op.model_copy(update={"parameters": left})
    if op.messages is not None and op.messages != plain.messages:
        yield op.model_copy(update={"messages": plain.messages})
    if op.prompt is not None and op.prompt != plain.prompt:
        yield op.model_copy(update={"prompt": plain.prompt})


def _with_fields() -> Iterator[Operation]:
    for path, own in ((CHAT, _CHAT), (COMPLETIONS, _COMPLETION)):
        for name, values in {**_BOTH, **own}.items():
            besides = dict(_PAIRED.get(name, {}))
            stream = bool(besides.pop("stream", False))
            for value in values:
                op = plain_request("r", path, stream=stream)
                parameters = {**op.parameters, **besides, name: value}
                yield op.model_copy(update={"parameters": parameters})


def _with_messages() -> Iterator[Operation]:
    for messages in _MESSAGES.values():
        op = plain_request("r", CHAT)
        # As they are: some are no messages that a case could have.
        asked = {**op.parameters, "messages": messages}
        yield op.model_copy(update={"messages": None, "parameters": asked})


def _with_prompts() -> Iterator[Operation]:
    for prompt in _PROMPTS.values():
        op = plain_request("r", COMPLETIONS)
        asked = {**op.parameters, "prompt": prompt}
        yield op.model_copy(update={"prompt": None, "parameters": asked})


def _elsewhere() -> Iterator[Operation]:
    for method, path, parameters in _OTHERS:
        yield Operation.model_validate(
            {"id": "r", "method": method, "path": path, "parameters": parameters}
        )
