"""HTTP Archives as they are made up for tests."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.model import ServerWanted
from mmrepro.traffic.pictures import noise

BEGIN = datetime(2026, 11, 22, 22, 0, tzinfo=UTC)
SERVER = ServerWanted(engine="vllm", release="0.23.0")
CHAT = "/v1/chat/completions"
HOST = "127.0.0.1:8000"


def data_url(seed: int, size: tuple[int, int] = (56, 56)) -> str:
    return noise("", seed, size).data_url


def shown(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(content: Any = "hello", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "m", "messages": messages, "max_tokens": 4, **more}


def answer(text: str = "fine", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    usage = {"prompt_tokens": 7, "completion_tokens": 4}
    told = {"choices": [choice], "usage": usage, **more}
    return {
        "status": 200,
        "content": {"text": json.dumps(told), "mimeType": "application/json"},
    }


def stream(
    pieces: list[str], *, done: bool = True, encoded: bool = False
) -> dict[str, Any]:
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces
    ]
    if done:
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        chunks += [
            last,
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        ]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    text += "data: [DONE]\n\n" if done else ""
    content = {"text": text, "mimeType": "text/event-stream; charset=utf-8"}
    if encoded:
        content |= {
            "text": base64.b64encode(text.encode()).decode(),
            "encoding": "base64",
        }
    return {"status": 200, "content": content}


GONE = {"status": 0, "content": {}, "_error": "Client disconnected."}


def entry(
    body: Any = None,
    *,
    at: float = 0.0,
    took: float = 0.1,
    response: dict[str, Any] | None = None,
    method: str = "POST",
    url: str = f"http://{HOST}{CHAT}",
) -> dict[str, Any]:
    """``body``: what is sent as JSON; a text goes as it is."""
    text = (
        body if isinstance(body, str) else json.dumps(chat() if body is None else body)
    )
    return {
        "startedDateTime": (BEGIN + timedelta(seconds=at)).isoformat(),
        "time": took * 1000,
        "request": {
            "method": method,
            "url": url,
            "headers": [{"name": "Host", "value": HOST}],
            "cookies": [],
            "queryString": [],
            "postData": {"mimeType": "application/json", "text": text, "params": []},
        },
        "response": answer() if response is None else response,
        "timings": {"send": 1, "wait": 1, "receive": 1},
    }


def har(entries: list[Any], creator: str = "made up") -> dict[str, Any]:
    return {"log": {"version": "1.2", "creator": {"name": creator}, "entries": entries}}


def write(folder: Path, what: Any, name: str = "it.har") -> Path:
    file = folder / name
    if isinstance(what, bytes):
        file.write_bytes(what)
    else:
        file.write_text(what if isinstance(what, str) else json.dumps(what, indent=1))
    return file


def captured(folder: Path, *bodies: dict[str, Any]) -> Captured:
    """What is read of these requests, one after the other."""
    file = write(folder, har([entry(body, at=n) for n, body in enumerate(bodies)]))
    return read(file, SERVER)


def read_entries(
    folder: Path, *entries: Any, creator: str = "made up", **options: Any
) -> Captured:
    return read(write(folder, har(list(entries), creator)), SERVER, **options)
