"""Some twenty requests of every kind that a recording holds, sent to one server."""

import base64
import json
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mmrepro.traffic.pictures import noise

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SECRETS = {
    "Authorization": "Bearer sk-plantedsecret0001",
    "Cookie": "session=plantedsecret0002",
    "X-Api-Key": "plantedsecret0003",
}


@dataclass(frozen=True)
class Sent:
    """A request as it went over the wire. ``left``: its client went away before the
    answer."""

    path: str
    body: dict[str, Any]
    left: bool = False
    beside: int = 0
    """How many of the same group ran beside it; 0: it was alone."""
    status: int | None = None


def image(seed: int, size: tuple[int, int] = (56, 56)) -> dict[str, Any]:
    png = base64.b64encode(noise("x", seed, size).png).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}


def chat(content: Any, model: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {
        "model": model,
        "messages": messages,
        "max_tokens": 4,
        "temperature": 0,
        **more,
    }


def ask(url: str, path: str, body: dict[str, Any], timeout_s: float = 60) -> int:
    """The status. Follows no proxy of the environment."""
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **SECRETS}
    request = urllib.request.Request(url + path, data, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            error.read()
        return error.code


def leave(url: str, path: str, body: dict[str, Any], pieces: int) -> None:
    """Send it, and close the connection after so many pieces of the stream; 0: at
    once."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: "
        f"application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(
        (parts.hostname, parts.port), timeout=60
    ) as connection:
        connection.sendall(head.encode() + data)
        seen = b""
        while seen.count(b"data: ") < pieces and (part := connection.recv(4096)):
            seen += part


def requests(
    model: str, *, completions: bool = True, images: bool = True
) -> list[list[Sent]]:
    """In groups: those of one group are sent at once, a group after the one before
    it."""
    shared = "You are a careful assistant. "
    odd = (
        'It\'s "quoted", a back\\slash, a new\nline, tab\t, '
        "ünïcode 漢字 🙂, params: x, prompt: 'y'"
    )
    system = [
        {"role": "system", "content": shared},
        {"role": "user", "content": "and now?"},
    ]
    alone = [
        Sent(CHAT, chat("hello", model)),
        Sent(CHAT, chat(odd, model)),
        Sent(CHAT, chat(shared + "one", model)),
        Sent(CHAT, chat(shared + "two", model, temperature=0.5, seed=3, top_p=0.9)),
        Sent(CHAT, {**chat("", model), "messages": system}),
        Sent(
            CHAT,
            chat(
                "streamed", model, stream=True, stream_options={"include_usage": True}
            ),
        ),
        Sent(CHAT, chat("too long " * 2000, model)),
        Sent(CHAT, chat("stop here", model, stop=["zzz", "it's"], max_tokens=6)),
    ]
    if completions:
        alone += [
            Sent(
                COMPLETIONS,
                {"model": model, "prompt": "once upon", "max_tokens": 3, "n": 1},
            ),
            Sent(
                COMPLETIONS,
                {"model": model, "prompt": [40, 41, 42, 43], "max_tokens": 3},
            ),
        ]
    if images:
        alone += [
            Sent(
                CHAT, chat([image(1), {"type": "text", "text": "what is it?"}], model)
            ),
            Sent(CHAT, chat([image(1), {"type": "text", "text": "and again?"}], model)),
            Sent(
                CHAT, chat([image(2), image(1), {"type": "text", "text": "two"}], model)
            ),
        ]
    long = chat("count for ever", model, stream=True, max_tokens=400, ignore_eos=True)
    together = [
        Sent(CHAT, chat(f"together {n}", model, max_tokens=24), beside=4)
        for n in range(4)
    ]
    return [
        *([one] for one in alone),
        together,
        [Sent(CHAT, long, left=True)],
        [Sent(CHAT, chat("the last one", model))],
    ]


def send(url: str, groups: list[list[Sent]]) -> list[Sent]:
    """All of them, in order; returns what was sent, with the answers' statuses."""

    def one(sent: Sent) -> Sent:
        if sent.left:
            leave(url, sent.path, sent.body, pieces=3)
            return sent
        status = ask(url, sent.path, sent.body)
        return Sent(sent.path, sent.body, sent.left, sent.beside, status)

    done: list[Sent] = []
    with ThreadPoolExecutor(8) as pool:
        for group in groups:
            done += pool.map(one, group)
    return done
