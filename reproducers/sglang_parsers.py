"""Which of SGLang's parsers take a tokenizer, and what each makes of one text.

``python sglang_parsers.py FILE``, with the interpreter of an SGLang environment; the
file is JSON: ``model`` (a folder), ``tools``, and texts by parser, ``calls`` and
``thoughts``. No server, no GPU. Prints one JSON object: by parser why it does not
start, or what it read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def calls(name: str, text: str, tokenizer: Any, tools: list[Any]) -> Callable[[], Any]:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    listed = [Tool(**tool) for tool in tools]
    parser = FunctionCallParser(listed, name, tokenizer=tokenizer)

    def read() -> Any:
        _, found = parser.parse_non_stream(text)
        return [[call.name, call.parameters] for call in found]

    return read


def thoughts(
    name: str, text: str, tokenizer: Any, tools: list[Any]
) -> Callable[[], Any]:
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    parser = ReasoningParser(name, tokenizer=tokenizer)
    return lambda: parser.parse_non_stream(text)


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
    seen: dict[str, dict[str, Any]] = {"calls": {}, "thoughts": {}}
    for kind, ask in (("calls", calls), ("thoughts", thoughts)):
        for name, text in asked[kind].items():
            seen[kind][name] = tried(ask, name, text, tokenizer, asked["tools"])
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
