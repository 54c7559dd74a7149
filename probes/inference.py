"""Does the server still do its job? One real, small chat completion with a deadline.

Health endpoints are answered by the API server and stay 200 while the engine is frozen
(vllm#36451, vllm#36130): only a completion proves that the engine works.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.inference import InferenceProbe
    result = run_probe(InferenceProbe("http://127.0.0.1:8000", "tiny", 15), Path("evidence"), 16)
    print(result.data.answered, result.data.error)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut
from mmrepro.probes.data import InferenceData
from mmrepro.probes.fetch import api_root, fetch

MARK_HEADER = "X-Mmrepro-Probe"
MARK_USER = "mmrepro-probe"
MAX_BODY_BYTES = 1 << 20

# How the OpenAI API ends a whole completion. LMDeploy 0.7.0 answers 200 with "error" and SGLang
# with "abort": those are no completions.
WHOLE = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})


class InferenceProbe(Probe[InferenceData]):
    """One completion of ``max_tokens`` tokens, marked so that logs and proxies can tell it.

    ``image_data_url``: a ``data:image/…;base64,…`` URL to put beside the prompt.
    ``deadline_s``: seconds until "no answer" is the answer; derive it from measured latencies.
    ``given_up``: whoever waits for it may set that before.
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
    ) -> None:
        self.base_url = api_root(base_url)
        self.model = model
        self.deadline_s = deadline_s
        self.prompt = prompt
        self.image_data_url = image_data_url
        self.max_tokens = max_tokens
        self.headers = {**(headers or {}), MARK_HEADER: "1"}
        self.given_up = given_up

    def collect(self, sink: RawSink, deadline: float) -> InferenceData:
        """Raises TimedOut if there is no time to ask; a server's silence is data instead."""
        timeout_s = min(self.deadline_s, deadline - time.monotonic())
        if timeout_s <= 0.05:
            raise TimedOut("the deadline passed before the request was sent")
        got = fetch(
            "POST",
            f"{self.base_url}/v1/chat/completions",
            timeout_s=timeout_s,
            max_bytes=MAX_BODY_BYTES,
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
            return data.model_copy(update={"error": f"an answer of over {MAX_BODY_BYTES} bytes"})
        return data.model_copy(update=read_completion(got.body))

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
            "user": MARK_USER,
        }


def read_completion(body: bytes) -> dict[str, Any]:
    """Fields of InferenceData that a 200 answer's ``body`` gives; never raises.

    ``answered`` needs a choice with a message and a ``finish_reason`` that ends a completion.
    """
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
    if text is None:  # a reasoning model may not have got as far as content in a few tokens
        text = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(finish, str):
        return {"error": f"the completion is malformed: {_head(body)}"}
    usage = document.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    fields: dict[str, Any] = {
        "text": text.encode("utf-8", "replace").decode()[:2000],
        "completion_tokens": tokens if type(tokens) is int and 0 <= tokens < 1 << 53 else None,
    }
    if finish not in WHOLE:
        return {**fields, "error": f"the completion ended with finish_reason {finish[:80]!r}"}
    return {**fields, "answered": True}


def _head(body: bytes) -> str:
    return body.decode("utf-8", "replace")[:300]
