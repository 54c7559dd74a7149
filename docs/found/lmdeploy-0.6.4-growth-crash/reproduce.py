#!/usr/bin/env python3
"""lmdeploy 0.6.4: the server lives on and fails every request.

The canary was answered before the traffic, and after it HTTP 500 Internal Server Error:
AssertionError. Expected: What was answered once is answered again.

This script starts nothing and talks to this machine only (127.0.0.1). Start a fresh server:

    pip install lmdeploy==0.6.4
    OMP_NUM_THREADS=2 lmdeploy serve api_server text --backend pytorch --session-len 32768 --server-port 8000 --eager-mode --cache-max-entry-count=0.003

and then, while nobody else asks it anything:

    python3 reproduce.py [--port 8000]

Exit code: 1 the failure shows, 0 it does not, 2 no server is there.
Python 3.9 or later and nothing else. Made by mmrepro 0.1.0; its texts and images are random ones.
"""

import argparse
import http.client
import json
import socket
import sys

# A request without an answer, or without a further piece of it, for so many seconds hangs.
DEADLINE_S = 53.5
# One after another.
REQUESTS = [
    {'id': 'r4',
     'path': '/v1/chat/completions',
     'body': {'max_tokens': 1, 'messages': [{'role': 'user', 'content': 'g' * 978}]}},
]


def send(port, one, model, answer):
    """One request; what comes of it stands in ``answer``, piece by piece."""
    body = json.dumps({**one["body"], "model": model})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("POST", one["path"], body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer["status"] = response.status
        text = response.read().decode("utf-8", "replace")
        if response.status == 200:
            said = json.loads(text)
            answer["usage"], choices = said.get("usage") or {}, said["choices"]
            answer["choices"], answer["finish"] = len(choices), choices[0].get("finish_reason")
            pieces = [(c.get("message") or {}).get("content") or c.get("text") for c in choices]
            answer["text"] = "".join(filter(None, pieces))
        else:
            answer["error"] = text[:200]
    except socket.timeout:
        answer["silent"] = True
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def told(answer):
    if answer.get("silent"):
        return f"no answer for {DEADLINE_S:g} s"
    said = "the client went away" if answer.get("left") else str(answer.get("status", "failed"))
    cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
    more = answer.get("error") or repr(answer.get("text", ""))
    return f"{said} {f'({cached} tokens cached) ' if cached else ''}{more[:90]}"


def ask(port, path, body=None):
    """The JSON of an answer; None: there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        data, kind = json.dumps(body) if body else None, {"Content-Type": "application/json"}
        connection.request("POST" if body else "GET", path, data, kind)
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def canary(port, model):
    """The text that a small request is answered with; None: it is not answered."""
    messages = [{"role": "user", "content": "hello"}]
    asked = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    try:
        return ask(port, "/v1/chat/completions", asked)["choices"][0]["message"]["content"] or ""
    except (LookupError, TypeError):
        return None


def main():
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--port", type=int, default=8000, help="of the server, on 127.0.0.1")
    arguments = parser.parse_args()
    port, served = arguments.port, ask(arguments.port, "/v1/models")
    if not served or not served.get("data"):
        print(f"No server answers on 127.0.0.1:{port}: the top of this file has its command.")
        return 2
    model = served["data"][0]["id"]
    before = canary(port, model)
    answers = {}
    for one in REQUESTS:
        answers[one["id"]] = answer = {}
        send(port, one, model, answer)
        print(f"{one['id']:>6}  {told(answer)}", flush=True)
        if answer.get("silent"):
            break
    found = []
    after = canary(port, model)
    if before is not None and after is None:
        found.append("a small request is not answered any more")
    for sentence in found:
        print(f"FAILING reproduced: {sentence}")
    if not found:
        print("Not reproduced: a small request is answered after the others as before them.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
