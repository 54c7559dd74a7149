"""An engine's own benchmark in a report, made into a script that sends such requests:
random words of the lengths that its options name."""

from __future__ import annotations

import re
import shlex
from typing import Final

from mmrepro.engines.folders import folders
from mmrepro.engines.serving import serving

_MOST_REQUESTS, _MOST_AT_ONCE, _MOST_WORDS = 100, 64, 8_000
_USUAL_REQUESTS, _USUAL_INPUT, _USUAL_OUTPUT = 20, 128, 32
_NUMBERS: Final = {
    "requests": ("--num-prompts", "--num-prompt"),
    "input": ("--random-input-len", "--random-input", "--input-len"),
    "output": ("--random-output-len", "--random-output", "--output-len"),
    "at_once": ("--max-concurrency",),
}
_SCRIPT: Final = """\
import json
import random
import threading
import urllib.request

REQUESTS, INPUT, OUTPUT, AT_ONCE = {requests}, {input}, {output}, {at_once}
URL, IS_CHAT, STREAM = "http://127.0.0.1:{port}{path}", {is_chat}, {stream}
MODEL = {model!r}
room = threading.Semaphore(AT_ONCE)


def ask(number):
    words = random.Random(number)
    prompt = "".join(words.choice("abcdefghij klmnop") for _ in range(INPUT))
    body = {{"model": MODEL, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}}
    body["stream"] = STREAM
    if IS_CHAT:
        body["messages"] = [{{"role": "user", "content": prompt}}]
    else:
        body["prompt"] = prompt
    headers = {{"Content-Type": "application/json"}}
    data = json.dumps(body).encode()
    with room:
        with urllib.request.urlopen(urllib.request.Request(URL, data, headers)) as got:
            got.read()


threads = [threading.Thread(target=ask, args=(n,)) for n in range(REQUESTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def benchmark_form() -> re.Pattern[str]:
    """The form of a line that starts a benchmark of one of the engines."""
    forms = [serving(engine).benchmark for engine in folders()]
    return re.compile(rf"^[^#\n]*(?:{'|'.join(filter(None, forms))})", re.MULTILINE)


def script_of(command: str) -> str:
    """Write the script that replaces a benchmark: its requests, fewer and shorter where
    it asks for more than a test needs."""
    given = _options(command)
    numbers: dict[str, int] = {}
    for name, options in _NUMBERS.items():
        for option in options:
            if given.get(option, "").isdigit():
                numbers[name] = int(given[option][:9])
    requests = min(numbers.get("requests", _USUAL_REQUESTS), _MOST_REQUESTS)
    at_once = min(numbers.get("at_once") or requests, _MOST_AT_ONCE)
    is_chat = "chat" in given.get("--backend", "") + given.get("--endpoint", "")
    return _SCRIPT.format(
        requests=max(1, requests),
        input=max(1, min(numbers.get("input", _USUAL_INPUT), _MOST_WORDS)),
        output=max(1, min(numbers.get("output", _USUAL_OUTPUT), _MOST_WORDS)),
        at_once=max(1, at_once),
        port=_port(given.get("--port", "")),
        path="/v1/chat/completions" if is_chat else "/v1/completions",
        is_chat=is_chat,
        stream=True,
        model=given.get("--model", "model")[:200],
    )


def _port(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{2,5}", text) else 8000


def _options(command: str) -> dict[str, str]:
    """Options of a command and their values, as far as they are plain."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            options[name] = value if equals else following
    return options
