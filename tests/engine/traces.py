"""Seeded traffic of made-up clients, as a case and as what a recorder would have
written of it."""

import base64
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import (
    Case,
    Image,
    Message,
    Noise,
    Operation,
    Part,
    Recorded,
    ServerWanted,
)

WORDS = (
    "what is in this picture please tell me about the weather of tomorrow and list "
    "three rivers that flow north where can a tired engineer find a quiet room with "
    "two windows"
)
SYSTEM = "You are a helpful assistant. Answer in one short sentence."
SIZES = ((420, 420), (280, 420), (224, 224), (196, 308))
FILLS = 14
"""New pictures behind the ghost key; ten fill the cache of 0.02 GB that the trace's
server has."""


class _Trace:
    """Operations one after another; at most ``concurrency`` of them at once."""

    def __init__(self, seed: int, server: ServerWanted, concurrency: int) -> None:
        self.random = random.Random(f"trace {seed}")
        self.server = server
        self.before = [] if concurrency < 1 else [f"running<={concurrency - 1}"]
        self.images: dict[str, Image] = {}
        self.operations: list[Operation] = []

    def words(self, least: int, most: int) -> str:
        return " ".join(
            self.random.choices(WORDS.split(), k=self.random.randint(least, most))
        )

    def picture(self, name: str, size: tuple[int, int] | None = None) -> str:
        """A new one."""
        seed = self.random.randrange(1 << 30)
        self.images[name] = Noise(seed=seed, size=size or self.random.choice(SIZES))
        return name

    def add(
        self,
        text: str,
        images: Sequence[str] = (),
        *,
        after: Sequence[str] = (),
        leave: str = "",
        system: bool = False,
        **parameters: Any,
    ) -> str:
        parts = [*(Part(image=name) for name in images), Part(text=text)]
        messages = [Message(role="user", content=parts if images else text)]
        if system:
            messages.insert(0, Message(role="system", content=SYSTEM))
        name = f"r{len(self.operations) + 1}"
        stream = bool(leave and leave != "sent") or self.random.random() < 0.3
        self.operations.append(
            Operation(
                id=name,
                after=[*after, *self.before],
                messages=messages,
                parameters={"max_tokens": 4, "temperature": 0} | parameters,
                stream=stream,
                leave=leave,
            )
        )
        return name

    def case(self, title: str) -> Case:
        return Case(
            title=title,
            server=self.server,
            images=self.images,
            operations=self.operations,
        )


def _mixed(trace: _Trace, pool: list[str], *, n: bool, images: float) -> None:
    """One request of an ordinary day; with ``images`` as its chance to have one or two.

    No client of a picture goes away: vLLM's core may then never get a picture that the
    front end counts as sent, and who asks about it next gets a 500 (0.23.0 and 0.32.0).
    """
    pick = trace.random.random()
    if pick < images:
        shown = trace.random.sample(pool, trace.random.choice((1, 1, 2)))
        long = trace.random.random() < 0.2
        trace.add(trace.words(2, 12), shown, max_tokens=24 if long else 6)
    elif pick < images + 0.04:
        trace.add("much too long " * (trace.server.max_model_len // 10))
    elif pick < images + 0.12:
        trace.add(trace.words(3, 20), leave="tokens>=2", max_tokens=64)
    elif pick < images + 0.18 and n:
        trace.add(
            trace.words(3, 20), n=2, temperature=0.8, seed=trace.random.randrange(1000)
        )
    elif pick < images + 0.24:
        trace.add(trace.words(3, 20), temperature=0.7, max_tokens=8)
    else:
        tokens = trace.random.choice((1, 4, 8, 16, 32))
        trace.add(
            trace.words(3, 60), system=trace.random.random() < 0.5, max_tokens=tokens
        )


def healthy_trace(
    seed: int,
    n: int = 200,
    concurrency: int = 8,
    server: ServerWanted | None = None,
) -> Case:
    """Text, pictures, streams, aborts, several choices and prompts that are too long;
    nothing in it makes an engine fail that we know of.

    Each picture is asked for alone first. Where two requests at once brought vLLM
    0.23.0 a new picture, its core once said in 8000 requests that it did not hold it.
    """
    server = server or ServerWanted(engine="vllm", release="0.23.0")
    trace = _Trace(seed, server, concurrency)
    pool = [trace.picture(f"p{i}") for i in range(8)]
    for name in pool:
        trace.before.append(trace.add(trace.words(2, 5), [name]) + ".end")
    for _ in range(n - len(pool)):
        _mixed(trace, pool, n=server.engine != "minivllm", images=0.25)
    return trace.case(f"healthy traffic, seed {seed}")


def ghost_trace(
    seed: int, n: int = 200, concurrency: int = 8, release: str = "0.23.0"
) -> Case:
    """``n`` requests to a vLLM with a small picture cache, and among them vllm#43941: a
    picture that is refused for its request's length, the picture again, and enough new
    ones behind it."""
    server = ServerWanted(
        engine="vllm",
        release=release,
        args=["--mm-processor-cache-gb=0.02"],
        max_model_len=2048,
    )
    trace = _Trace(seed, server, concurrency)
    pool = [trace.picture(f"p{i}") for i in range(3)]
    trigger = trace.random.randint(n // 5, n // 3)
    again = trigger + trace.random.randint(2, 6)
    fills = set(trace.random.sample(range(again + 4, n - 10), FILLS))
    refused = ""
    for number in range(n):
        if number == trigger:
            trace.picture("x", SIZES[0])
            refused = trace.add("x" * (server.max_model_len - 150), ["x"])
        elif number == again:
            trace.add(trace.words(2, 5), ["x"], after=[f"{refused}.end"])
        elif number in fills:
            trace.add(trace.words(2, 5), [trace.picture(f"new{number}", SIZES[0])])
        else:
            _mixed(
                trace, pool, n=True, images=0.0 if trigger < number < again else 0.08
            )
    return trace.case(f"the ghost key among {n} requests, seed {seed}")


CULPRITS_ARGS = (
    "--fault",
    "ghost-key-lru",
    "--mm-cache-tokens",
    "40",
    "--block-size",
    "16",
    "--vision",
    "fake",
)


def culprits_trace(seed: int, n: int = 60, concurrency: int = 4) -> Case:
    """``n`` requests to a minivllm whose picture cache holds one picture, and among
    them three that hang it (``culprits`` tells which): X with a text that is too long,
    X again, and one request with two new pictures, of which the second never finds
    room. X waits for the pictures before it: one that is still on its way would push X
    out again, and nothing would hang."""
    server = ServerWanted(
        engine="minivllm", release="0.1", model="qwen3", args=list(CULPRITS_ARGS)
    )
    trace = _Trace(seed, server, concurrency)
    pool = [trace.picture(f"p{i}", (168, 168)) for i in range(3)]
    first, second, third = _planted(seed, n)
    for number in range(n):
        if number == first:
            trace.picture("x", (168, 168))
            seen = [f"{op.id}.end" for op in trace.operations if op.images]
            refused = trace.add("x" * (server.max_model_len + 50), ["x"], after=seen)
        elif number == second:
            trace.add("again", ["x"], after=[f"{refused}.end"])
        elif number == third:
            two = [trace.picture(name, (168, 168)) for name in ("y", "z")]
            trace.add("two", two, after=[f"r{second + 1}.end"])
        elif number < first and trace.random.random() < 0.2:
            trace.add(trace.words(2, 6), [trace.random.choice(pool)])
        else:
            _mixed(trace, pool, n=False, images=0.0)
    return trace.case(f"three culprits among {n} requests, seed {seed}")


def _planted(seed: int, n: int) -> tuple[int, int, int]:
    first, second, third = sorted(
        random.Random(f"culprits {seed}").sample(range(8, n - 4), 3)
    )
    return first, second, third


def culprits(seed: int, n: int = 60) -> list[str]:
    """The operations of ``culprits_trace`` that matter."""
    return [f"r{number + 1}" for number in _planted(seed, n)]


# ------------------------------------------------------------------- as it was recorded


def _bodies(case: Case) -> list[dict[str, Any]]:
    made = pictures(case, None)
    return [json.loads(body(op, made, "served")) for op in case.operations]


def as_batch(case: Case) -> bytes:
    """The file of an OpenAI batch."""
    lines = [
        {"custom_id": op.id, "method": "POST", "url": op.path, "body": content}
        for op, content in zip(case.operations, _bodies(case), strict=True)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def as_har(case: Case, *, host: str = "127.0.0.1:8000") -> bytes:
    """What ``mitmdump --set hardump=FILE`` writes; answers and times are made up, and
    what waits for another request's end began after it."""
    begin = datetime(2026, 11, 22, 22, 0, tzinfo=UTC)
    chance = random.Random(case.title)
    ends: dict[str, float] = {}
    entries = []
    now = 0.0
    for op, content in zip(case.operations, _bodies(case), strict=True):
        now += chance.uniform(0.01, 0.2)
        for text in op.after:
            before, _, event = text.partition(".")
            if event == "end" and ends[before] >= now:
                now = ends[before] + 0.01
        seconds = chance.uniform(0.2, 0.8)
        ends[op.id] = now + seconds
        entries.append(
            {
                "startedDateTime": (begin + timedelta(seconds=now)).isoformat(),
                "time": seconds * 1000,
                "request": _request(op, content, host),
                "response": _response(op),
                "cache": {},
                "timings": {
                    "connect": 1,
                    "ssl": -1,
                    "send": 1,
                    "receive": 1,
                    "wait": 1,
                },
                "serverIPAddress": "127.0.0.1",
            }
        )
    creator = {"name": "mitmproxy", "version": "12.1.2", "comment": ""}
    log = {"version": "1.2", "creator": creator, "pages": [], "entries": entries}
    return json.dumps({"log": log}, indent=4).encode()


def _request(op: Operation, content: dict[str, Any], host: str) -> dict[str, Any]:
    text = json.dumps(content)
    headers = {
        "Host": host,
        "Content-Type": "application/json",
        "Authorization": "Bearer made-up-credential",
        "Cookie": "session=made-up-cookie",
    }
    return {
        "method": "POST",
        "url": f"http://{host}{op.path}",
        "httpVersion": "HTTP/1.1",
        "cookies": [{"name": "session", "value": "made-up-cookie"}],
        "headers": [{"name": name, "value": value} for name, value in headers.items()],
        "queryString": [],
        "headersSize": 300,
        "bodySize": len(text),
        "postData": {"mimeType": "application/json", "text": text, "params": []},
    }


def _response(op: Operation) -> dict[str, Any]:
    if op.leave:  # the client was gone: mitmproxy has no answer to write
        gone = {
            "status": 0,
            "statusText": "",
            "httpVersion": "",
            "headers": [],
            "cookies": [],
        }
        more = {"content": {}, "redirectURL": "", "headersSize": -1, "bodySize": -1}
        return gone | more | {"_transferSize": 0, "_error": "Client disconnected."}
    recorded = op.recorded or Recorded(
        status=200, text="made up", finish_reason="length"
    )
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": recorded.text},
        "finish_reason": recorded.finish_reason,
    }
    usage = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
    if op.stream:
        delta = {
            "index": 0,
            "delta": {"content": recorded.text},
            "finish_reason": "length",
        }
        chunks = [{"choices": [delta]}, {"choices": [], "usage": usage}]
        text = (
            "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
            + "data: [DONE]\n\n"
        )
        kind = "text/event-stream; charset=utf-8"
        shown: dict[str, Any] = {
            "text": base64.b64encode(text.encode()).decode(),
            "encoding": "base64",
        }
    else:
        text = json.dumps(
            {"object": "chat.completion", "choices": [choice], "usage": usage}
        )
        kind, shown = "application/json", {"text": text}
    return {
        "status": recorded.status,
        "statusText": "OK",
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": [{"name": "content-type", "value": kind}],
        "content": {"size": len(text), "compression": 0, "mimeType": kind, **shown},
        "redirectURL": "",
        "headersSize": 100,
        "bodySize": len(text),
    }
