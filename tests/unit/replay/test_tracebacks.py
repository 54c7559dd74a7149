"""Tracebacks in logs, and the one that tells what went wrong."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from made_up_plays import answer as answered, operation
from mmrepro.base.records import Moment
from mmrepro.engines import get_engine
from mmrepro.runs.play import looking
from mmrepro.runs.play.looking import (
    OF_LEAVING,
    failed,
    of_engine,
    read_tracebacks,
    telling,
    tracebacks,
)
from mmrepro.traffic.evidence import RequestRecord

REFUSED = """\
(APIServer pid=1) ERROR 11-23 07:04:47 [serving.py:2] Error in preprocessing
(APIServer pid=1) ERROR 11-23 07:04:47 [serving.py:2] Traceback (most recent call last):
(APIServer pid=1) ERROR 11-23 07:04:47 [serving.py:2]   File "/x/vllm/a.py", line 3, in create
(APIServer pid=1) ERROR 11-23 07:04:47 [serving.py:2]     raise ValueError(
(APIServer pid=1) ERROR 11-23 07:04:47 [serving.py:2] ValueError: Input length (2166) exceeds
"""
TWO = """\
(APIServer pid=1) Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-23 07:04:47 [core.py:1616] Traceback (most recent call last):
(APIServer pid=1)   File "/x/uvicorn/b.py", line 9, in run_asgi
(EngineCore pid=2) ERROR 11-23 07:04:47 [core.py:1616]   File "/x/vllm/c.py", line 1, in outer
(APIServer pid=1)     result = await app(  # type: ignore
(EngineCore pid=2) ERROR 11-23 07:04:47 [core.py:1616]     inner()
(EngineCore pid=2) ERROR 11-23 07:04:47 [core.py:1616]     ^^^^^^^
(EngineCore pid=2) ERROR 11-23 07:04:47 [core.py:1616]   File "/x/vllm/c.py", line 5, in inner
(EngineCore pid=2) ERROR 11-23 07:04:47 [core.py:1616] AssertionError: Expected a cached item
(APIServer pid=1) asyncio.exceptions.CancelledError: gone
(APIServer pid=1) INFO:     127.0.0.1 - "POST /v1/chat/completions HTTP/1.1" 500
"""
SGLANG = """\
[2026-11-23 06:50:05] Scheduler hit an exception: Traceback (most recent call last):
  File "/x/sglang/srt/s.py", line 7, in run
    self.step()
  File "/x/torch/nn.py", line 7, in forward

RuntimeError
"""


SURVIVED_THEN_DEAD = """\
(EngineCore pid=2) ERROR 11-25 08:53:23 [core.py:1616] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-25 08:53:23 [core.py:1616]   File "/x/vllm/cache.py", line 2, in get
(EngineCore pid=2) ERROR 11-25 08:53:23 [core.py:1616] AssertionError: Expected a cached item
(EngineCore pid=2) ERROR 11-25 08:53:24 [core.py:1197] EngineCore encountered a fatal error.
(APIServer pid=1) INFO:     127.0.0.1 - "POST /v1/chat/completions HTTP/1.1" 500
(EngineCore pid=2) ERROR 11-25 08:53:24 [core.py:1197] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-25 08:53:24 [core.py:1197]   File "/x/vllm/grammar.py", line 2, in parse
(EngineCore pid=2) ERROR 11-25 08:53:24 [core.py:1197] RuntimeError: EBNF parser error
"""
"""Two exceptions of vLLM 0.23.0's core, shortened: the first one costs one request its
answer."""


def answer(status: int | None, error: str) -> RequestRecord:
    return RequestRecord(
        id=1,
        phase="trigger",
        label="r",
        sent=Moment.now(),
        deadline_s=6,
        status=status,
        error=error,
    )


def test_processes_that_write_in_turn() -> None:
    core, server = tracebacks(TWO.splitlines())
    assert (core.error, core.frames) == (
        "AssertionError: Expected a cached item",
        ["inner", "outer"],
    )
    assert (server.frames, server.type in OF_LEAVING) == (["run_asgi"], True)


def test_a_traceback_after_a_message_and_without_a_text() -> None:
    (one,) = tracebacks(SGLANG.splitlines())
    assert (one.error, one.message, one.frames) == (
        "RuntimeError",
        "",
        ["forward", "run"],
    )


def test_colours_and_groups() -> None:
    lines = (
        "\x1b[1;36m(EngineCore pid=2)\x1b[0;0m Traceback (most recent call last):",
        (
            '\x1b[1;36m(EngineCore pid=2)\x1b[0;0m   |   File "/x/vllm/c.py", line 1, '
            "in outer"
        ),
        "\x1b[1;36m(EngineCore pid=2)\x1b[0;0m   | KeyError: 'x'",
    )
    (one,) = tracebacks(lines)
    assert (one.error, one.frames) == ("KeyError: 'x'", ["outer"])


def test_a_refusal_and_a_client_that_left_tell_nothing() -> None:
    found = tracebacks((REFUSED + TWO).splitlines())
    refused = answer(
        400, "Input length (2166) exceeds model's maximum context length (2048)."
    )
    told = telling(found, [refused, answer(500, "Internal server error")])
    assert [one.error for one in told] == ["AssertionError: Expected a cached item"]
    # Without the refusal it may be what failed.
    told = telling(found, [answer(500, "x")])
    assert told[0].error.startswith("ValueError: Input length")


def test_a_message_with_quotes_is_known_inside_json() -> None:
    found = tracebacks(REFUSED.replace("Input", '"Input"').splitlines())
    assert (
        telling(
            found, [answer(400, '{"message": "\\"Input\\" length (2166) exceeds"}')]
        )
        == []
    )


def test_what_an_answer_names_comes_first() -> None:
    found = tracebacks((REFUSED + TWO).splitlines())
    told = telling(found, [answer(500, '{"message": "Expected a cached item"}')])
    assert told[0].error.startswith("AssertionError")


def test_a_start_fails_in_the_engines_own_code() -> None:
    noise = SGLANG.replace("/x/sglang/srt", "/x/sglang-0.5.6-cpu/venv").replace(
        "Runtime", "OS"
    )
    found = tracebacks((noise + SGLANG).splitlines())
    one = of_engine(found, get_engine("sglang"))
    assert one is not None
    assert one.error == "RuntimeError"
    assert of_engine(found[:1], get_engine("sglang")) == found[0]
    assert of_engine([], get_engine("sglang")) is None


def test_from_a_place_on(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(SGLANG + TWO)
    assert len(read_tracebacks(log)) == 3
    assert len(read_tracebacks(log, len(SGLANG))) == 2
    assert read_tracebacks(tmp_path / "none.log") == []


@given(
    st.lists(
        st.sampled_from((REFUSED + TWO + SGLANG).splitlines()) | st.text(max_size=20)
    )
)
def test_any_lines(lines: list[str]) -> None:
    for one in tracebacks(lines):
        assert one.error
        assert len(one.frames) == len(one.files)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, False),
        ({"status": 400, "finish_reason": None}, False),
        ({"status": 500, "finish_reason": None}, True),
        ({"status": None, "finish_reason": None}, True),
        ({"finish_reason": None}, False),
        ({"finish_reason": None, "stream": True}, True),
        ({"finish_reason": None, "stream": True, "left": True}, False),
        ({"stream": True}, False),
        ({"status": 500, "left": True}, False),
    ],
)
def test_what_failed_is_looked_for_in_the_log(
    fields: dict[str, Any], told: bool
) -> None:
    """Of an exception in vLLM's core a stream shows no more than that it has no end."""
    record = answered(operation("r1"), **fields)
    assert failed(record) is told


def test_the_core_comes_before_what_the_server_logged_of_a_request() -> None:
    other = REFUSED.replace(
        "Input length (2166) exceeds", "max_tokens must be at least 1"
    )
    found = tracebacks((other + TWO).splitlines())
    assert telling(found, [answer(None, "ReadError")])[0].error.startswith("ValueError")
    told = telling(found, [answer(None, "ReadError")], "EngineCore")
    assert told[0].error.startswith("AssertionError")


BEGIN = "Traceback (most recent call last):"


def test_what_the_engine_raised_on_its_own_comes_before_what_one_request_raised() -> (
    None
):
    """LMDeploy 0.6.4: each request raises in its own handler, the loop that ended only
    once."""
    web = '  File "/x/site-packages/starlette/routing.py", line 1, in app\n'
    lines = (
        f"{BEGIN}\n{web}"
        '  File "/x/lmdeploy/serve/openai/api_server.py", line 2, in '
        "chat_completions_v1\n"
        "ValidationError: 1 validation error\n"
        f'{BEGIN}\n  File "/x/lmdeploy/pytorch/engine/engine.py", line 3, in '
        f"_async_loop\n"
        "AssertionError\n"
    )
    told = telling(
        tracebacks(lines.splitlines()), [answer(500, "Internal Server Error")]
    )
    assert [one.error for one in told] == [
        "AssertionError",
        "ValidationError: 1 validation error",
    ]
    named = telling(tracebacks(lines.splitlines()), [answer(500, "1 validation error")])
    assert named[0].error.startswith("ValidationError")


@pytest.mark.parametrize("said", ["Internal server error", "Expected a cached item"])
def test_what_the_engine_calls_fatal_comes_before_what_it_survived(said: str) -> None:
    fatal = get_engine("vllm").log_patterns["core-fatal"]
    found = tracebacks(SURVIVED_THEN_DEAD.splitlines(), fatal)
    assert [one.fatal for one in found] == [False, True]
    assert telling(found, [answer(500, said)], "EngineCore")[0].error.startswith(
        "RuntimeError"
    )


def test_what_is_called_fatal_on_the_line_itself() -> None:
    (one,) = tracebacks(
        SGLANG.splitlines(), get_engine("sglang").log_patterns["core-fatal"]
    )
    assert one.fatal


def test_one_word_is_of_one_traceback_of_its_own_process() -> None:
    core = "(EngineCore pid=2) ERROR 11-25 08:53:24 [core.py:1] "
    lines = (
        f"{core}EngineCore encountered a fatal error.\n{REFUSED}{TWO}{TWO}".splitlines()
    )
    found = tracebacks(lines, get_engine("vllm").log_patterns["core-fatal"])
    assert [one.error for one in found if one.fatal] == [
        "AssertionError: Expected a cached item"
    ]
    assert len(found) == 5


def test_a_prompt_begins_no_traceback() -> None:
    """Nor does it announce one, whatever follows it in the log."""
    for said in (
        "Prompt: why Traceback (most recent call last):",
        "Prompt: the end is near",
    ):
        lines = [
            f"(APIServer pid=1) {said}",
            "(APIServer pid=1) ValueError: an answer to it",
        ]
        assert [one.error for one in tracebacks(lines, "the end is near")] == []
    assert tracebacks(["Traceback (most recent call last):", "ValueError: x"])[0].error


def test_a_server_that_ends_its_own_processes_says_so(tmp_path: Path) -> None:
    """SGLang's own line, and not what a client makes it quote."""
    pattern, log = get_engine("sglang").ends_itself, tmp_path / "engine.log"
    own = (
        "[2026-11-25 12:00:01] kill_process_tree called: parent_pid=7 "
        "include_parent=True\n"
    )
    quoted = (
        "[2026-11-25 12:00:01] Receive: obj=GenerateReqInput(text='SIGQUIT "
        "received.')\n"
    )
    for text, ends in ((own, True), (quoted, False), ("", False)):
        log.write_text("[2026-11-25 12:00:00] ready\n" + text)
        assert looking.says_it_ends(log, 0, pattern) is ends, text
    log.write_text(own)
    assert not looking.says_it_ends(log, len(own), pattern), "of an earlier server"
    assert not looking.says_it_ends(log, 0, "")
    assert not looking.says_it_ends(tmp_path / "none", 0, pattern)


def test_a_place_has_its_file_from_its_package_on_and_its_line() -> None:
    core, _ = tracebacks(TWO.splitlines())
    engine = get_engine("vllm")
    assert core.frames_of(engine) == ["inner", "outer"]
    assert core.places_of(engine) == ["inner (vllm/c.py:5)", "outer (vllm/c.py:1)"]
