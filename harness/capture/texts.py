"""All texts of an operation, each handed to whoever changes them."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

from mmrepro.case.model import Message, Operation, Part

ROLES: Final = frozenset({"system", "user", "assistant", "tool", "developer", "function"})
_PROTOCOL: Final = frozenset(  # their values are the interface's words, not somebody's
    {
        "type",
        "reasoning_effort",
        "service_tier",
        "detail",
        "format",
        "encoding_format",
        "truncation",
    }
)
_WORDS: Final = frozenset({"auto", "none", "required", "low", "medium", "high", "minimal"})
_NAMES: Final = frozenset({"name", "id", "tool_call_id", "title", "required", "$ref"})
_SCHEMA: Final = frozenset(
    {
        *("type", "properties", "required", "items", "enum", "const", "description", "title"),
        *("additionalProperties", "anyOf", "oneOf", "allOf", "not", "$defs", "$ref", "format"),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "default"),
        *(
            "pattern",
            "strict",
            "examples",
            "function",
            "name",
            "parameters",
            "json_schema",
            "schema",
        ),
    }
)
_CODE: Final = frozenset(
    {
        *("pattern", "regex", "guided_regex", "stop_regex", "ebnf", "grammar", "guided_grammar"),
        *("structural_tag", "chat_template"),
    }
)
_STRUCTURED: Final = (
    "tools",
    "tool_choice",
    "response_format",
    "guided_json",
    "structured_outputs",
)


class Changes(Protocol):
    """What becomes of each text."""

    def prompt(self, text: str) -> str:
        """Text that becomes tokens of the prompt."""

    def text(self, text: str) -> str:
        """Any other."""

    def name(self, name: str) -> str:
        """An identifier."""

    def ids(self, ids: list[int]) -> list[int]:
        """A prompt as ids of tokens."""

    def code(self, text: str) -> bool:
        """Whether a pattern, grammar or template stays."""

    def data(self, payload: str) -> str:
        """A picture, sound or film in a text: a data: URL, or Base64."""


def rewritten(operation: Operation, by: Changes) -> Operation:
    prompt = operation.prompt
    update: dict[str, Any] = {"parameters": _parameters(operation.parameters, by)}
    if operation.messages is not None:
        update["messages"] = [_message(m, by) for m in operation.messages]
    if prompt is not None:
        update["prompt"] = by.prompt(prompt) if isinstance(prompt, str) else by.ids(prompt)
    return operation.model_copy(update=update)


def _message(message: Message, by: Changes) -> Message:
    content: str | list[Part]
    if isinstance(message.content, str):
        content = by.prompt(message.content)
    else:
        content = [_part(part, by) for part in message.content]
    role = message.role if message.role in ROLES else by.name(message.role)
    more = {k: _calls(k, v, by) for k, v in message.more.items()}
    return message.model_copy(update={"role": role, "content": content, "more": more})


def _part(part: Part, by: Changes) -> Part:
    if part.text is not None:
        return Part(text=by.prompt(part.text))
    if part.raw is not None:
        return Part(raw={name: _raw(name, value, by) for name, value in part.raw.items()})
    return part


def _raw(name: str, value: Any, by: Changes) -> Any:
    if isinstance(value, dict):
        return {k: _raw(k, v, by) for k, v in value.items()}
    if isinstance(value, list):
        return [_raw(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL:
        return value
    if name == "text":
        return by.prompt(value)
    is_data = name in ("url", "data") or value[:5].lower() == "data:" or len(value) > 1000
    return by.data(value) if is_data else by.text(value)


def _calls(name: str, value: Any, by: Changes) -> Any:
    """Fields of a message: tool calls, names, a model's reasoning."""
    if name == "arguments" and isinstance(value, str):
        try:
            told = json.loads(value)
        except (ValueError, RecursionError):
            return by.text(value)
        return json.dumps(_structured("", told, by))
    if isinstance(value, dict):
        return {k: _calls(k, v, by) for k, v in value.items()}
    if isinstance(value, list):
        return [_calls(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL:
        return value
    return by.name(value) if name in _NAMES else by.text(value)


def _parameters(parameters: dict[str, Any], by: Changes) -> dict[str, Any]:
    return {
        name: _structured(name, value, by) if name in _STRUCTURED else _plain(name, value, by)
        for name, value in _coded(parameters, by).items()
    }


def _coded(fields: dict[str, Any], by: Changes) -> dict[str, Any]:
    """Without the patterns, grammars and templates that do not stay."""
    return {
        name: value
        for name, value in fields.items()
        if not (name in _CODE and isinstance(value, str)) or by.code(value)
    }


def _structured(name: str, value: Any, by: Changes) -> Any:
    """Tools, and schemas of answers: names of properties are names."""
    if isinstance(value, dict):
        return {
            k if k in _SCHEMA else by.name(k): _structured(k, v, by)
            for k, v in _coded(value, by).items()
        }
    if isinstance(value, list):
        return [_structured(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL | _CODE or value in _WORDS:
        return value
    return by.name(value) if name in _NAMES else by.text(value)


def _plain(name: str, value: Any, by: Changes) -> Any:
    """Parameters: their names are the interface's."""
    if isinstance(value, dict):
        return {k: _plain(k, v, by) for k, v in _coded(value, by).items()}
    if isinstance(value, list):
        whole = name in ("prompt", "input_ids") and all(type(item) is int for item in value)
        return by.ids(value) if whole and value else [_plain(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL | _CODE or value in _WORDS:
        return value
    if name in ("prompt", "text", "content"):
        return by.prompt(value)
    is_data = name in ("url", "data", "image_data") or value[:5].lower() == "data:"
    return by.data(value) if is_data else by.text(value)
