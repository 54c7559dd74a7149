"""Which of vLLM's parsers take a tokenizer, and what each makes of one text.

``python vllm_parsers.py FILE``, with the interpreter of a vLLM environment; the file is
JSON: ``model`` (a folder), ``tools``, and texts by parser, ``calls`` and ``thoughts``.
No server, no GPU. Prints one JSON object: by parser why it does not start, or what it
read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"


def tool_parsers() -> Any:
    try:
        from vllm.tool_parsers import ToolParserManager
    except ImportError:  # before 0.13
        from vllm.entrypoints.openai.tool_parsers import ToolParserManager
    return ToolParserManager


def request_of(tools: list[Any]) -> Any:
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import (
            ChatCompletionRequest,
        )
    except ImportError:  # before 0.14
        from vllm.entrypoints.openai.protocol import ChatCompletionRequest
    messages = [{"role": "user", "content": "x"}]
    return ChatCompletionRequest(model="tiny", messages=messages, tools=tools)


def calls(name: str, text: str, tokenizer: Any, request: Any) -> Callable[[], Any]:
    made = tool_parsers().get_tool_parser(name)
    try:
        parser = made(tokenizer, request.tools)
    except TypeError:  # before 0.20
        parser = made(tokenizer)

    def read() -> Any:
        found = parser.extract_tool_calls(text, request).tool_calls
        return [[call.function.name, call.function.arguments] for call in found]

    return read


def thoughts(name: str, text: str, tokenizer: Any, request: Any) -> Callable[[], Any]:
    from vllm.reasoning import ReasoningParserManager

    parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer)
    extract = getattr(parser, "extract_reasoning", None)  # since 0.12
    return lambda: (extract or parser.extract_reasoning_content)(text, request)


def tried(
    ask: Callable[..., Callable[[], Any]], name: str, text: str, *more: Any
) -> dict[str, Any]:
    try:
        read = ask(name, text, *more)
    except Exception as error:
        return {"starts": False, "why": f"{type(error).__name__}: {error}"[:300]}
    try:
        return {"starts": True, "read": read()}
    except Exception as error:
        return {"starts": True, "why": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    from transformers import AutoTokenizer

    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    request = request_of(asked["tools"])
    seen: dict[str, dict[str, Any]] = {"calls": {}, "thoughts": {}}
    for kind, ask in (("calls", calls), ("thoughts", thoughts)):
        for name, text in asked[kind].items():
            seen[kind][name] = tried(ask, name, text, tokenizer, request)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
