"""Minimal reproducer of vLLM's parsers of tool calls, with the installed engine's own
classes.

``python tool_parser_stream.py``, with the interpreter of a vLLM environment. No server,
no model, no GPU. Each parser gets one text with two calls, the first without arguments:
whole, and letter by letter as from a stream. Prints one JSON object: the arguments of
the second call, by parser."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

CALLS = (
    '[{"name": "now", "arguments": {}}, {"name": "look", "arguments": {"at": "moon"}}]'
)
_PARSERS = {
    "xlam": ("xlam_tool_parser", "xLAMToolParser", CALLS),
    "hunyuan_a13b": (
        "hunyuan_a13b_tool_parser",
        "HunyuanA13BToolParser",
        f"<tool_calls>{CALLS}</tool_calls>",
    ),
}
SECOND = 1


class Tokenizer:
    """A token a letter; the parsers ask for no more of it."""

    def get_vocab(self) -> dict[str, int]:
        return {chr(number): number for number in range(256)}

    def encode(self, text: str, **_: object) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(map(chr, ids))


def arguments(parser: str) -> dict[str, str]:
    """Those of the second call, whole and streamed; "": no such call came."""
    module, name, text = _PARSERS[parser]
    cls: Any = getattr(import_module(f"vllm.tool_parsers.{module}"), name)
    protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    tools = [
        {"type": "function", "function": {"name": name}} for name in ("now", "look")
    ]
    request = protocol.ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "x"}], tools=tools
    )
    whole = cls(Tokenizer(), request.tools).extract_tool_calls(text, request).tool_calls
    streamed, parser_ = "", cls(Tokenizer(), request.tools)
    ids = Tokenizer().encode(text)
    for end, letter in enumerate(text):
        delta = parser_.extract_tool_calls_streaming(
            text[:end],
            text[: end + 1],
            letter,
            ids[:end],
            ids[: end + 1],
            [ids[end]],
            request,
        )
        for call in (delta.tool_calls if delta else None) or ():
            if call.index == SECOND:
                given = call.function
                more = (
                    given.get("arguments")
                    if isinstance(given, dict)
                    else given.arguments
                )
                streamed += more or ""
    return {
        f"{parser}_whole": whole[SECOND].function.arguments
        if len(whole) > SECOND
        else "",
        f"{parser}_streamed": streamed,
    }


if __name__ == "__main__":
    print(
        json.dumps(
            {key: value for name in _PARSERS for key, value in arguments(name).items()}
        )
    )
