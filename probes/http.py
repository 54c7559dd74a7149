"""What the server's cheap HTTP endpoints answer, and whether it still does its job.

Health endpoints are answered by the API server and stay 200 while the engine is frozen
(vllm#36451, vllm#36130): only a completion proves that the engine works.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.http import HttpProbe, InferenceProbe
    result = run_probe(HttpProbe("http://127.0.0.1:8000"), Path("evidence"), 12)
    print([(a.path, a.status, a.error) for a in result.data.answers])
    result = run_probe(InferenceProbe("http://127.0.0.1:8000", "tiny", 15), Path("evidence"), 16)
    print(result.data.answered, result.data.error)
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

import httpx2
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut
from mmrepro.probes.data import EndpointAnswer, HttpData, InferenceData
from pydantic_core import from_json

# ----------------------------------------------------------------- one bounded exchange


_USER_AGENT = "mmrepro-probe"


@dataclass(frozen=True)
class Fetched:
    """``status`` is that of a whole answer only; a half answer has None and an
    ``error``.
    ``cut``: it was longer than it may be; ``given_up``: so it was before its time was
        over.
    ``headers``: of the answer, names in lower case."""

    status: int | None
    body: bytes
    seconds: float
    error: str = ""
    timed_out: bool = False
    cut: bool = False
    given_up: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def api_root(base_url: str) -> str:
    """The server's root: people give ``http://host:8000``, ``…:8000/`` and
    ``…:8000/v1``."""
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def connection_refused(error: str) -> bool:
    """Whether that was why there is no answer: nobody listens. A name that does not
    resolve, a network without a way and TLS that fails are connections that failed as
    well."""
    return error.startswith("ConnectError") and "refused" in error


NOT_SENT = "not sent"
"""How the error of an exchange begins that was no request: of its own headers, or its
address."""
_UNFIT = (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError)
OURS = "LocalProtocolError"
"""The name of httpx2's and of h11's error of what we send; httpx2 lets some of h11's
through."""


def fetch(
    method: str,
    url: str,
    *,
    timeout_s: float,
    max_bytes: int,
    json_body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    over: threading.Event | None = None,
) -> Fetched:
    """Exchange one request in at most ``timeout_s`` seconds overall; never raises.

    Whoever gave ``over`` may set it, and the exchange is given up; it is set when that
    has ended.

    httpx2 limits each read but not their sum, so a server that drips would never time
    out there: the exchange has a thread of its own, which is abandoned (a daemon) when
    its time is over."""
    over = over or threading.Event()
    # Identity and raw reads: a compressed answer could unfold to gigabytes.
    headers = {
        "User-Agent": _USER_AGENT,
        "Accept-Encoding": "identity",
        **(headers or {}),
    }
    exchange = _Exchange(method, url, timeout_s, max_bytes, json_body, headers, over)
    thread = threading.Thread(target=exchange.run, name="probe-fetch", daemon=True)
    started = time.monotonic()
    thread.start()
    over.wait(timeout_s + 0.05)
    seconds = round(time.monotonic() - started, 4)
    if exchange.result is None:
        exchange.give_up()
        late = exchange.timed_out(seconds)
        if seconds >= timeout_s:
            return late
        return replace(
            late, error=f"{late.error}: cut after {seconds:.1f} s", given_up=True
        )
    return replace(exchange.result, seconds=seconds)


@dataclass
class _Exchange:
    method: str
    url: str
    timeout_s: float
    max_bytes: int
    json_body: Mapping[str, Any] | None
    headers: Mapping[str, str]
    over: threading.Event
    result: Fetched | None = None
    _status: int | None = None
    _body: bytearray = field(default_factory=bytearray)
    _abandoned: threading.Event = field(default_factory=threading.Event)
    _client: httpx2.Client | None = None

    def run(self) -> None:
        try:
            self.result = self._exchange()
        except httpx2.TimeoutException:
            self.result = self.timed_out(0.0)
        except (
            Exception
        ) as error:  # garbage on the wire raises more than httpx2's own errors
            self.result = Fetched(None, bytes(self._body), 0.0, self._explain(error))
        finally:
            self.over.set()

    def give_up(self) -> None:
        """Its connection is closed: a server that never ends its head would be read for
        ever."""
        self._abandoned.set()
        if self._client is not None:
            with contextlib.suppress(Exception):  # it is in use, in another thread
                self._client.close()

    def timed_out(self, seconds: float) -> Fetched:
        error = f"no complete answer in {self.timeout_s:.1f} s{self._where}"
        return Fetched(None, bytes(self._body), seconds, error, timed_out=True)

    def _exchange(self) -> Fetched:
        until = time.monotonic() + self.timeout_s
        with (
            httpx2.Client(
                trust_env=False,
                follow_redirects=False,
                timeout=self.timeout_s,
                # Reading the certificate store takes tens of milliseconds: only for
                # https.
                verify=self.url.lower().startswith("https:"),
            ) as self._client,
            self._client.stream(
                self.method, self.url, json=self.json_body, headers=self.headers
            ) as response,
        ):
            self._status = response.status_code
            for chunk in response.iter_raw():
                self._body += chunk[: self.max_bytes - len(self._body)]
                if len(self._body) >= self.max_bytes:
                    return self._answer(response, cut=True)
                if self._abandoned.is_set() or time.monotonic() > until:
                    return self.timed_out(0.0)
            return self._answer(response)

    def _answer(self, response: httpx2.Response, *, cut: bool = False) -> Fetched:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Fetched(self._status, bytes(self._body), 0.0, cut=cut, headers=headers)

    def _explain(self, error: Exception) -> str:
        unfit = isinstance(error, _UNFIT) or type(error).__name__ == OURS
        if unfit and self._status is None:
            return f"{NOT_SENT}: {type(error).__name__}: {error}"[:500]
        return f"{type(error).__name__}{self._where}: {error}"[:500]

    @property
    def _where(self) -> str:
        """How far the answer came, for an error."""
        if self._status is None:
            return ""
        return f" in the body of a {self._status} answer"


# ------------------------------------------------------------------ cheap endpoints


ENDPOINT_BYTES = 256 << 10
_BODY_CHARS = 2000


def field_of(body: str | bytes, *path: str | int, max_chars: int = 500) -> str:
    """The text at ``path`` of a JSON document; "" where there is none, or none that can
    be read.

    A server may send anything, nested without end, too: never raises. What was cut is
    read as far as it goes."""
    try:
        value = from_json(body, allow_partial=True)
        for step in path:
            value = value[step]
    except (ValueError, LookupError, TypeError):
        return ""
    return value if isinstance(value, str) and len(value) <= max_chars else ""


def flag_of(body: str | bytes, name: str) -> bool:
    """Whether a JSON document has ``name`` as true; never raises."""
    try:
        document = from_json(body, allow_partial=True)
        return document[name] is True
    except (ValueError, LookupError, TypeError):
        return False


def first_model(body: str | bytes) -> str:
    """The first model that an answer of ``/v1/models`` lists; "" if it lists none."""
    return field_of(body, "data", 0, "id")


class HttpProbe(Probe[HttpData]):
    """GET all of ``paths`` side by side, each for at most ``timeout_s`` seconds.

    An endpoint without a whole answer has ``status`` None and an ``error``: that is
    evidence, not a failure of the probe."""

    name = "http"
    needs = "url"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.url)

    def __init__(
        self,
        base_url: str,
        paths: Sequence[str] = ("/health", "/v1/models"),
        timeout_s: float = 5.0,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.base_url = api_root(base_url)
        self.paths = tuple(paths)
        self.timeout_s = timeout_s
        self.headers = headers

    def collect(self, sink: RawSink, deadline: float) -> HttpData:
        """Raises TimedOut when there is no time to ask."""
        timeout_s = min(self.timeout_s, deadline - time.monotonic())
        if timeout_s <= 0.05:
            raise TimedOut("the deadline passed before anything was asked")
        with ThreadPoolExecutor(max(1, len(self.paths)), "probe-http") as pool:
            answers = list(
                pool.map(lambda path: self._ask(path, timeout_s, sink), self.paths)
            )
        return HttpData(base_url=self.base_url, answers=answers)

    def _ask(self, path: str, timeout_s: float, sink: RawSink) -> EndpointAnswer:
        got = fetch(
            "GET",
            self.base_url + path,
            timeout_s=timeout_s,
            max_bytes=ENDPOINT_BYTES,
            headers=self.headers,
        )
        if got.body:
            sink.write(f"{path.strip('/') or 'root'}.body", got.body)
        return EndpointAnswer(
            path=path,
            status=got.status,
            seconds=got.seconds,
            error=got.error,
            timed_out=got.timed_out,
            body=got.body.decode("utf-8", "replace")[:_BODY_CHARS],
        )


# ----------------------------------------------------------------- one small completion


_MARK_HEADER = "X-Mmrepro-Probe"
_MARK_USER = "mmrepro-probe"
_COMPLETION_BYTES = 1 << 20

# How the OpenAI API ends a whole completion. LMDeploy 0.7.0 answers 200 with "error"
# and SGLang with "abort": those are no completions.
WHOLE = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})


_NO_CACHE = "no-cache, no-store"
_HIT = re.compile(r"\bhit\b|\bstale\b", re.IGNORECASE)
_CACHE_HEADER = re.compile(r"cache|semantic-similarity")
"""What gateways call the headers in which they tell of their cache: X-Cache,
CF-Cache-Status, X-LiteLLM-Cache-Key, X-Portkey-Cache-Status, Helicone-Cache."""
_ONLY_ON_HITS = frozenset({"x-litellm-cache-key", "x-litellm-semantic-similarity"})


def from_cache(headers: Mapping[str, str]) -> str:
    """The header by which an answer is a cache's and not the server's; "": none is.

    ``headers``: names in lower case.
    """
    age = headers.get("age", "")
    if age.isdigit() and int(age) > 0:
        return "age"
    for name, value in headers.items():
        if name in _ONLY_ON_HITS:
            return name
        # Cache-Control is what a cache may do, not what it did.
        told = _CACHE_HEADER.search(name) and name != "cache-control"
        if told and (_HIT.search(value) or value.lower() == "true"):
            return name
    return ""


class InferenceProbe(Probe[InferenceData]):
    """One completion of ``max_tokens`` tokens, marked so that logs and proxies can tell
    it.

    Its prompt has a number that no earlier request had: a gateway with a cache would
    answer the same request again and again, whatever became of the engine. An answer
    that is a cache's all the same is no answer.

    ``image_data_url``: a ``data:image/…;base64,…`` URL to put beside the prompt.
    ``deadline_s``: seconds until "no answer" is the answer; derive it from measured
        latencies.
    ``given_up``: whoever waits for it may set that before.
    ``fields``: of its body, besides.
    ``unique``: put the number in front; without it the prompt is the caller's alone.
    """

    name = "inference"
    needs = "url"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.url, subject.model, subject.deadline_s)

    def __init__(
        self,
        base_url: str,
        model: str,
        deadline_s: float,
        *,
        prompt: str = "Say OK.",
        image_data_url: str | None = None,
        max_tokens: int = 1,
        headers: Mapping[str, str] | None = None,
        given_up: threading.Event | None = None,
        fields: Mapping[str, Any] | None = None,
        unique: bool = True,
    ) -> None:
        self.base_url = api_root(base_url)
        self.fields = dict(fields or {})
        self.model = model
        self.deadline_s = deadline_s
        # In front: caches by meaning or by prefix look at how a prompt begins.
        self.prompt = f"[{secrets.token_hex(8)}] {prompt}" if unique else prompt
        self.image_data_url = image_data_url
        self.max_tokens = max_tokens
        self.headers = {
            "Cache-Control": _NO_CACHE,
            **(headers or {}),
            _MARK_HEADER: "1",
        }
        self.given_up = given_up

    def collect(self, sink: RawSink, deadline: float) -> InferenceData:
        """Raises TimedOut if there is no time to ask; a server's silence is data
        instead."""
        timeout_s = min(self.deadline_s, deadline - time.monotonic())
        if timeout_s <= 0.05:
            raise TimedOut("the deadline passed before the request was sent")
        got = fetch(
            "POST",
            f"{self.base_url}/v1/chat/completions",
            timeout_s=timeout_s,
            max_bytes=_COMPLETION_BYTES,
            json_body=self._request(),
            headers=self.headers,
            over=self.given_up,
        )
        if got.body:
            sink.write("response.json", got.body)
        data = InferenceData(
            answered=False,
            status=got.status,
            seconds=got.seconds,
            deadline_s=timeout_s,
            cut=got.given_up,
            error=got.error,
        )
        if got.status is None:
            return data
        if got.status != 200:
            body = got.body.decode("utf-8", "replace")[:1500]
            return data.model_copy(update={"error": f"HTTP {got.status}: {body}"})
        if got.cut:
            return data.model_copy(
                update={"error": f"an answer of over {_COMPLETION_BYTES} bytes"}
            )
        fields = read_completion(got.body)
        if header := from_cache(got.headers):
            fields["cached"] = header
            fields["answered"] = False
            fields["error"] = f"a cache answered, not the server ({header})"
        return data.model_copy(update=fields)

    def _request(self) -> dict[str, Any]:
        content: str | list[dict[str, Any]] = self.prompt
        if self.image_data_url is not None:
            content = [
                {"type": "image_url", "image_url": {"url": self.image_data_url}},
                {"type": "text", "text": self.prompt},
            ]
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": False,
            "user": _MARK_USER,
            **self.fields,
        }


def read_completion(body: bytes) -> dict[str, Any]:
    """Fields of InferenceData that a 200 answer's ``body`` gives; never raises.

    ``answered`` needs a choice with a message and a ``finish_reason`` that ends a
    completion."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        return {"error": f"the 200 answer is not JSON: {error}"[:500]}
    try:
        choice = document["choices"][0]
        message, finish = choice["message"], choice["finish_reason"]
        text = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        return {"error": f"the 200 answer is no chat completion: {_head(body)}"}
    # A reasoning model may not have got as far as content in a few tokens.
    if text is None:
        text = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(finish, str):
        return {"error": f"the completion is malformed: {_head(body)}"}
    usage = document.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    made = document.get("created")
    fields: dict[str, Any] = {
        "completion_id": str(document.get("id") or "")[:100],
        "created": made if type(made) is int and 0 <= made < 1 << 53 else None,
        "text": text.encode("utf-8", "replace").decode()[:2000],
        "completion_tokens": tokens
        if type(tokens) is int and 0 <= tokens < 1 << 53
        else None,
    }
    if finish not in WHOLE:
        return {
            **fields,
            "error": f"the completion ended with finish_reason {finish[:80]!r}",
        }
    return {**fields, "answered": True}


def _head(body: bytes) -> str:
    return body.decode("utf-8", "replace")[:300]
