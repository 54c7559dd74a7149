"""How a report's client ended, and what that says."""

from __future__ import annotations

import pytest
from mmrepro.search.repro.client_end import client_end
from mmrepro.traffic.capture.client import ClientRun

BEFORE = """\
import requests
ask = {"prompt": "a", "temperature": 0}
made = requests.post("http://localhost:8000/v1/completions", json=ask).json()
back = requests.post("http://localhost:8000/x", json=made).json()
usage = made["usage"]
end = None
for part in back["parts"]:
    end = part["choices"][0]["finish_reason"] or end
text = made["choices"][0]["text"]
"""
LINE = BEFORE.count("\n") + 1


def ended(
    last: str, line: int = LINE, exception: str = "AssertionError: lost"
) -> ClientRun:
    trace = f'Traceback (most recent call last):\n  File "/b/client.py", line {line}'
    return ClientRun(code=1, output=f"{trace}, in <module>\n    {last}\n{exception}\n")


@pytest.mark.parametrize(
    "check",
    [
        'assert back["choices"][0]["prompt_logprobs"] is not None, "lost"',
        'assert "usage" in back',
        'assert end == made["choices"][0]["finish_reason"]',
        'assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]',
        'if back.get("usage") is None: raise RuntimeError("lost")',
    ],
)
def test_a_check_of_what_a_server_promises_is_evidence(check: str) -> None:
    end = client_end(ended(check), "client.py", BEFORE + check)
    assert (end.line, end.is_check, end.exception) == (LINE, True, "AssertionError")


@pytest.mark.parametrize(
    "check",
    [
        'assert "Paris" in text',
        "assert text.strip()",
        'assert end == "tool_calls"',
        'assert end in ("stop", "length")',
        'assert usage["prompt_tokens"] == 11',
        'assert requests.get("http://localhost:8000/").status_code == 200',
        'assert made["choices"][0]["text"] == back["choices"][0]["text"]',
        "def f(x):\n    assert x is None",
        "assert False",
        'made["choices"][7]',
    ],
)
def test_what_a_model_says_decides_is_no_evidence(check: str) -> None:
    line = LINE + check.count("\n")
    end = client_end(ended(check, line), "client.py", BEFORE + check)
    assert not end.is_check
    assert end.exception


def test_an_end_by_itself_and_one_by_a_limit() -> None:
    made = client_end(ClientRun(code=0), "client.py", "")
    assert (made.exception, made.failed, made.runs) == ("", 0, 0)
    late = client_end(ClientRun(ended="it had not ended after 5 s"), "client.py", "")
    assert (late.code, late.ended) == (None, "it had not ended after 5 s")


def test_the_line_is_the_script_s_and_not_a_library_s() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/b/client.py", line 3, in <module>\n    x()\n'
        '  File "/env/lib/json/decoder.py", line 355, in decode\n'
        "json.decoder.JSONDecodeError: Expecting value\n"
    )
    end = client_end(ClientRun(code=1, output=trace), "client.py", BEFORE)
    assert (end.exception, end.line, end.is_check) == ("JSONDecodeError", 3, False)


def test_a_script_that_nobody_can_follow_is_no_evidence() -> None:
    names = "\n".join(f"a{n} = a{n + 1}" for n in range(4000))
    script = f"{names}\nassert a0 is not None\n"
    end = client_end(ended("assert a0 is not None", 4001), "client.py", script)
    assert not end.is_check
