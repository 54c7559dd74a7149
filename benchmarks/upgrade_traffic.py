"""200 requests of many kinds, by a seed, as a HAR file: traffic for ``mmrepro
upgrade``.

    python benchmarks/upgrade_traffic.py night.har [--requests 200] [--seed 48] [--no-grammars]

Texts with shared prefixes, streams, several answers (``n``), calls of tools, JSON by a
schema, plain completions, and pictures of which some come again. Nothing is sent: the
file holds requests and their times; its answers are made up."""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mmrepro.traffic.case.model import CHAT, COMPLETIONS
from mmrepro.traffic.pictures import noise

BEGAN = datetime(2026, 11, 26, 2, 0, tzinfo=UTC)
WORDS = (
    "a",
    "block",
    "of",
    "the",
    "cache",
    "holds",
    "keys",
    "and",
    "values",
    "for",
    "tokens",
    "each",
    "layer",
    "request",
    "waits",
    "until",
    "there",
    "is",
    "room",
    "then",
    "runs",
    "to",
    "its",
    "end",
)
KINDS = (
    "text",
    "text",
    "text",
    "stream",
    "stream",
    "several",
    "tools",
    "json",
    "plain",
    "image",
)
"""Of the ten of which each is a kind, in turn by chance."""
TOOL = {
    "type": "function",
    "function": {
        "name": "free_blocks",
        "description": "How many blocks are free on a rank.",
        "parameters": {"type": "object", "properties": {"rank": {"type": "integer"}}},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"free": {"type": "boolean"}, "rank": {"enum": [0, 1]}},
    "required": ["free", "rank"],
    "additionalProperties": False,
}
TOKEN_MS = 15.0
"""That a token of the answer took: which requests were under way together follows from
it."""
IMAGES, SIZES = 24, ((56, 56), (84, 56), (112, 84))


def entries(seed: int, count: int, *, grammars: bool = True) -> list[dict[str, Any]]:
    """The requests in their order, as a HAR file has them."""
    chance = random.Random(seed)
    prefixes = [" ".join(chance.choices(WORDS, k=40)) for _ in range(5)]
    pictures = [
        noise(f"p{i}", seed * 1000 + i, chance.choice(SIZES)) for i in range(IMAGES)
    ]
    at, made = 0.0, []
    for number in range(count):
        at += chance.expovariate(10.0)
        kind = chance.choice(KINDS)
        text = (
            f"{chance.choice(prefixes)} {' '.join(chance.choices(WORDS, k=8))} {number}"
        )
        body: dict[str, Any] = {"model": "tiny", "temperature": 0}
        body["max_tokens"] = chance.choice((8, 16, 32))
        path, content = CHAT, text
        if kind == "stream":
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        elif kind == "several":
            body |= {"n": 2, "temperature": 0.8, "seed": number}
        elif kind == "tools":
            body |= {"tools": [TOOL], "tool_choice": "none" if number % 2 else "auto"}
        elif kind == "json" and grammars:
            schema = {"name": "state", "schema": SCHEMA}
            body |= {"response_format": {"type": "json_schema", "json_schema": schema}}
        elif kind == "image":
            picture = chance.choice(pictures)
            content = [
                picture.part,
                {"type": "text", "text": f"what is it? {number % 3}"},
            ]
        if kind == "plain":
            path = COMPLETIONS
            body["prompt"] = text
        else:
            body["messages"] = [{"role": "user", "content": content}]
        made.append(_entry(path, body, at))
    return made


def _entry(path: str, body: dict[str, Any], at: float) -> dict[str, Any]:
    sent = BEGAN + timedelta(seconds=at)
    return {
        "startedDateTime": sent.isoformat(),
        "time": TOKEN_MS * body["max_tokens"],
        "request": {
            "method": "POST",
            "url": f"http://127.0.0.1:8000{path}",
            "httpVersion": "HTTP/1.1",
            "headers": [{"name": "Content-Type", "value": "application/json"}],
            "postData": {"mimeType": "application/json", "text": json.dumps(body)},
        },
        "response": {"status": 200, "headers": [], "content": _answer(path, body)},
    }


def _answer(path: str, body: dict[str, Any]) -> dict[str, str]:
    """A MADE-UP one: by it a reader knows that the client stayed. Comparisons do not
    look at it."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    if body.get("stream"):
        chunk = {"choices": [choice | {"delta": {"content": "made up"}}]}
        text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        return {"mimeType": "text/event-stream", "text": text}
    plain = path == COMPLETIONS
    choice |= {"text": "made up"} if plain else {"message": {"content": "made up"}}
    return {"mimeType": "application/json", "text": json.dumps({"choices": [choice]})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--no-grammars", dest="grammars", action="store_false")
    asked = parser.parse_args()
    log = {
        "version": "1.2",
        "creator": {"name": Path(__file__).name, "version": "1"},
        "entries": entries(asked.seed, asked.requests, grammars=asked.grammars),
    }
    asked.file.write_text(json.dumps({"log": log}, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main()
