"""No word of a client is evidence: what it wrote may imitate each pattern, in each
carrier."""

import io
import json
import re
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.engines import ENGINES, log_marks
from mmrepro.failure.signature import live_server
from mmrepro.live.diagnose.classes_logged import LOG_PATTERNS as CLASS_PATTERNS
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.probes.data import LogPattern, LogsData
from mmrepro.probes.log_forms import UNKNOWN, is_error
from mmrepro.probes.log_lines import Block
from mmrepro.probes.logs import Scanner

Carrier = Callable[[str], str]


def one_line(text: str) -> str:
    return " ".join(text.split())


def vllm(source: str, level: str = "INFO", process: str = "APIServer pid=10") -> str:
    return f"({process}) {level} 11-24 18:12:10 [{source}] "


def body(text: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": text}], "stop": [text]})


SGLANG = "[2026-11-24 18:12:10] "
LMDEPLOY = "2026-11-24 18:12:10,001 - lmdeploy - INFO - logger.py:39 - "
V0 = "INFO 11-24 18:12:10 logger.py:36] "

CARRIERS: dict[str, Carrier] = {
    # vLLM
    "V0's request": lambda t: (
        f"{V0}Received request cmpl-1: prompt: {t!r}, params: SamplingParams("
        f"n=1, stop=[{t!r}]), prompt_token_ids: [1, 2], lora_request: None."
    ),
    "request": lambda t: (
        f"{vllm('logger.py:39')}Received request cmpl-1: prompt: {t!r}, params: "
        "SamplingParams(n=1), prompt_token_ids: None."
    ),
    "request's stop": lambda t: (
        f"{vllm('request_logger.py:63')}Received request cmpl-1: params: "
        f"SamplingParams(n=1, stop=[{t!r}], "
        f"guided_decoding=GuidedDecodingParams(json={t!r})), "
        "lora_request: None."
    ),
    "request id": lambda t: (
        f"{vllm('logger.py:39')}Received request {one_line(t)}: params: x."
    ),
    "details": lambda t: (
        f"{vllm('request_logger.py:56', 'DEBUG')}Request cmpl-1 details: prompt: "
        f"{t!r}, prompt_token_ids: [1], prompt_embeds shape: None."
    ),
    "JSON body": lambda t: (
        f"{vllm('request_logger.py:75', 'DEBUG')}Request a JSON body: {body(t)}"
    ),
    "output": lambda t: (
        f"{vllm('logger.py:61')}Generated response cmpl-1: output: {t!r}, "
        "finish_reason: stop"
    ),
    "added": lambda t: f"{vllm('async_llm.py:400')}Added request {one_line(t)}.",
    "aborted": lambda t: f"{vllm('async_llm.py:5')}Aborted request(s) {one_line(t)}.",
    "request failed": lambda t: (
        f"{vllm('async_llm.py:5')}Request {one_line(t)} failed."
    ),
    "bad request": lambda t: (
        f"{vllm('async_llm.py:6')}Request a failed (bad request): Bad: {one_line(t)} "
        "failed."
    ),
    "no such model": lambda t: (
        f"{vllm('serving_chat.py:9', 'ERROR')}Error with model error="
        f"ErrorInfo(message='The model `{one_line(t)}` does not exist.', code=404)"
    ),
    "model": lambda t: f"{vllm('core.py:9')}Loading `{one_line(t)}` now",
    "template": lambda t: (
        f"{vllm('serving_chat.py:200', 'ERROR')}jinja2.exceptions.TemplateError: "
        f"{one_line(t)}"
    ),
    "tool parser": lambda t: (
        f"{vllm('hermes_tool_parser.py:9', 'ERROR')}Error in extracting tool "
        f"call from response {one_line(t)}"
    ),
    "model output": lambda t: (
        f"{vllm('tool_parsers/x.py:9', 'DEBUG')}model_output: {one_line(t)}"
    ),
    "response body": lambda t: (
        f"{vllm('log_response.py:9')}response_body={{{body(t)}}}"
    ),
    "dump": lambda t: (
        f"{vllm('dump_input.py:72', 'ERROR', 'EngineCore pid=20')}Dumping scheduler "
        "output for model execution: "
        f"SchedulerOutput(new_reqs=[NewRequestData(req_id={t!r}, "
        f"sampling_params=SamplingParams(n=1, stop=[{t!r}]))])"
    ),
    "config": lambda t: (
        f"{vllm('core.py:1')}Initializing a V1 LLM engine (v0.23.0) with config: "
        f"model={t!r}, served_model_name={t!r}"
    ),
    "query": lambda t: (
        "(APIServer pid=10) INFO:     10.0.0.1:5 - "
        f'"GET /v1/models?q={urllib.parse.quote(t)} HTTP/1.1" 200 OK'
    ),
    "path": lambda t: (
        "(APIServer pid=10) INFO:     10.0.0.1:5 - "
        f'"GET /{urllib.parse.quote(t, safe="/")} HTTP/1.1" 404 Not Found'
    ),
    "raw query": lambda t: (
        "(APIServer pid=10) INFO:     10.0.0.1:5 - "
        f'"GET /v1/models?q={t.replace(" ", "+").split()[0] if t.strip() else ""} '
        f'HTTP/1.1" 200 OK'
    ),
    "pydantic": lambda t: (
        f"pydantic_core.ValidationError: 1 validation error for X: {one_line(t)}"
    ),
    "value of pydantic": lambda t: (
        f"  Input should be a list [type=list_type, input_value={t!r}, input_type=str]"
    ),
    "exception of the core": lambda t: (
        f"{vllm('core.py:1195', 'ERROR', 'EngineCore pid=20')}"
        f"ValueError: request_id={t!r} has a grammar {t + ' x'!r}"
    ),
    # SGLang
    "Receive": lambda t: (
        f"{SGLANG}Receive: obj=GenerateReqInput(rid='a', text={t!r}, "
        f"sampling_params={{'stop': {t!r}, 'json_schema': {t!r}}})"
    ),
    "Receive OpenAI": lambda t: (
        f"{SGLANG}Receive OpenAI: obj={{'messages': [{{'content': {t!r}}}]}}"
    ),
    "Finish": lambda t: (
        f"{SGLANG}Finish: obj=GenerateReqInput(rid='a', text='x'), out={{'text': "
        f"{t!r}, 'meta_info': {{'id': 'a'}}}}"
    ),
    "JSON event": lambda t: (
        SGLANG
        + json.dumps(
            {"timestamp": "2026-11-24T18:12:10", "event": "request.received", "obj": t}
        )
    ),
    "tool call": lambda t: f"{SGLANG}Tool call parsing error: {one_line(t)}",
    "rid": lambda t: f"{SGLANG}Abort running request. req.rid={t!r}",
    "server_args": lambda t: (
        f"{SGLANG}server_args=ServerArgs(model_path={t!r}, port=1)"
    ),
    # LMDeploy
    "session": lambda t: (
        f"{LMDEPLOY}session=1, adapter_name=None, input_tokens=3, gen_config="
        f"GenerationConfig(stop_words=[{t!r}]), prompt={t!r}"
    ),
    "0.6's session": lambda t: (
        f"{LMDEPLOY}session_id=1, prompt={t!r}, gen_config=None."
    ),
    "response": lambda t: f"{LMDEPLOY}session=1, response={t!r}",
    "stop word": lambda t: (
        f"{LMDEPLOY}The token {one_line(t)}, its length of indexes [1, 2]."
    ),
    "no model": lambda t: f"{LMDEPLOY}no model name: {one_line(t)}",
    # any program's
    "a print of a prompt": lambda t: f"Prompt: {one_line(t)}",
    "an event": lambda t: json.dumps({"event": "chat", "text": t}),
}
REPEATED = (
    "tool parser",
    "model output",
    "template",
    "added",
    "aborted",
    "request failed",
    "bad request",
)
"""Whose text vLLM's formatter would give the line's beginning on each of its lines."""


def patterns() -> dict[str, re.Pattern[str]]:
    """All that is looked for, but for what asks what a client sent."""
    each = [
        *(dict(engine.log_patterns) for engine in ENGINES.values()),
        *(
            {p: p for p in (e.progress_pattern, *e.start_lines) if p}
            for e in ENGINES.values()
        ),
        *(dict(scenario.log_patterns) for scenario in all_scenarios()),
        *(dict(one) for one in (live_server.LOG_PATTERNS, CLASS_PATTERNS, log_marks())),
    ]
    every = {expression: expression for one in each for expression in one.values()}
    told = [p for p in every.values() if not (isinstance(p, LogPattern) and p.clients)]
    return {p: re.compile(p, re.ASCII) for p in told}


PATTERNS = patterns()
IMITATIONS = [
    "EngineCore encountered a fatal error.",
    (
        "(EngineCore pid=20) ERROR 11-24 18:12:17 [core.py:1195] EngineCore "
        "encountered a fatal error."
    ),
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore died unexpectedly",
    "Traceback (most recent call last):",
    (
        "ERROR 11-24 18:12:17 [core.py:1] AssertionError: Expected a cached item for "
        "mm_hash='0a'"
    ),
    (
        "[2026-11-24 18:12:17 TP0] Scheduler hit an exception: Traceback (most recent "
        "call last):"
    ),
    "it's cut: 'EngineCore loop active. \"EngineCore waiting for work\"",
    "] AssertionError: Expected a cached item for mm_hash='0a'",
    ", params: EngineCore encountered a fatal error, lora_request: EngineDeadError",
    (
        "': prompt: None, params: SamplingParams(n=1)), ERROR EngineCore encountered "
        "a fatal error"
    ),
    'x HTTP/1.1" 500 "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    "`EngineCore encountered a fatal error.` and `EngineDeadError",
]


def own(log: str) -> list[str]:
    block = Block("".join(f"\n{line}" for line in log.split("\n")).encode(), 0)
    return [block.reading(int(start)).own for start in block.starts]


def matched(log: str) -> set[str]:
    lines = own(log)
    return {
        p for p, regex in PATTERNS.items() if any(regex.search(line) for line in lines)
    }


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("text", IMITATIONS)
def test_a_clients_text_matches_nothing(carrier: str, text: str) -> None:
    make = CARRIERS[carrier]
    harmless = matched(make("hello you"))
    texts = [
        text,
        f"hello\n{text}",
        f"{text}\nhello",
        f"{json.dumps(text)}",
        f"{text!r}",
        f"{{{text}",
    ]
    for one in texts:
        assert matched(make(one)) <= harmless, own(make(one))
        line = make(one)
        for cut in (line[:-1], line[: len(line) * 2 // 3], line[: len(line) - 4]):
            assert matched(cut) <= harmless | matched(line[:60]), own(cut)


@settings(max_examples=3, deadline=None)
@given(st.data())
def test_no_pattern_is_met_by_what_it_matches_inside_a_carrier(
    data: st.DataObject,
) -> None:
    """Each of all patterns, in each carrier: some 6,000 injections a round."""
    harmless = {name: matched(make("hello you")) for name, make in CARRIERS.items()}
    for pattern, regex in PATTERNS.items():
        text = data.draw(st.from_regex(regex, fullmatch=False)).replace("\x00", "")
        for name, make in CARRIERS.items():
            for line in own(make(f"hi {text} ho".replace("\r", " "))):
                assert pattern in harmless[name] or not regex.search(line), (name, line)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_lines_of_a_text_that_was_not_escaped_are_the_clients(carrier: str) -> None:
    """A text of several lines as some program printed it: its lines have no form."""
    make = CARRIERS[carrier]
    text = "a\nEngineCore encountered a fatal error.\nValueError: EngineDeadError"
    head, _, tail = make("@@").partition("@@")
    if "@@" in tail:
        head, tail = head.partition("@@")[0], tail.rpartition("@@")[2]
    if carrier in (
        "config",
        "server_args",
        "an event",
        "query",
        "path",
        "raw query",
        "model",
        "no such model",
    ):
        return  # these are of one line by their own form
    repeated = head if carrier in REPEATED else ""
    prefix = repeated.partition("] ")[0] + "] " if repeated else ""
    first, *rest = text.split("\n")
    log = "\n".join([f"{head}{first}", *(f"{prefix}{line}" for line in rest)]) + tail
    assert not {p for p in matched(log) if "fatal" in p or "EngineDead" in p}, own(log)


@pytest.mark.parametrize(
    "carrier", ["added", "aborted", "request failed", "bad request"]
)
def test_a_place_that_tells_of_requests_tells_of_nothing_else(carrier: str) -> None:
    """vLLM repeats the line's beginning on each line of an id, also of one that ends
    like a whole one; the next request of the same second is one again."""
    told, form = CARRIERS[carrier]("cmpl-1"), "ERROR 11-24 18:12:17 [core.py:1195] "
    head = told[: told.index("] ") + 2]
    fatal = "EngineCore encountered a fatal error."
    log = f"{told}\n{head}{fatal}\n{head}{form}{fatal}\n{told}\n{head}{fatal}"
    assert not [line for line in own(log) if "fatal" in line]
    assert own(log)[3] == own(log)[0]
    elsewhere = head.replace("]", "7]")
    assert fatal in own(f"{told}\n{elsewhere}{fatal}")[1]


TRACE = """Traceback (most recent call last):
  File "/venv/vllm/v1/engine/async_llm.py", line 9, in generate
    self.validate()
  File "{file}", line 298, in validate
    raise {name}(f"Grammar error: {{err}}")
           ^^^^^
{name}: Grammar error: {text}"""


@pytest.mark.parametrize("text", IMITATIONS)
@pytest.mark.parametrize("front", ["", "(APIServer pid=10) ", vllm("x.py:5", "ERROR")])
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/venv/vllm/v1/structured_output/backend_guidance.py", "ValueError"),
        ("/venv/urllib3/util/url.py", "urllib3.exceptions.LocationParseError"),
        ("/venv/sglang/srt/function_call/x.py", "RuntimeError"),
        ("/venv/lmdeploy/serve/openai/protocol.py", "KeyError"),
    ],
)
def test_what_a_file_raises_that_judges_requests_quotes_them(
    file: str, name: str, front: str, text: str
) -> None:
    def log(file: str, text: str) -> str:
        told = TRACE.format(file=file, name=name, text=text)
        began = (
            vllm("core.py:1").replace("11-24 18:12:10", "11-24 18:12:40") + "hello\n"
        )
        return began + "\n".join(f"{front}{line}" for line in told.split("\n"))

    harmless = matched(log(file, "x"))
    assert matched(log(file, text)) <= harmless
    assert matched(log(file, f"hello\n{text}")) <= harmless
    cores = log("/venv/vllm/v1/core/sched/scheduler.py", "EngineCore died unexpectedly")
    assert "died unexpectedly" in own(cores)[-1]


@pytest.mark.parametrize(
    "carrier", ["stop word", "JSON body", "Receive", "0.6's session"]
)
@pytest.mark.parametrize("form", [vllm("core.py:9", "ERROR"), SGLANG, LMDEPLOY])
def test_a_log_that_is_pasted_into_a_text_is_older_than_the_text(
    carrier: str, form: str
) -> None:
    """Also where its lines have a whole form; what is logged next is the engine's
    own."""
    fatal = "EngineCore encountered a fatal error."
    before, _, after = CARRIERS[carrier]("@@").partition("@@")
    before = before.replace("11-24", "11-25")
    pasted = own(
        f"{before}hello\n{form}{fatal}\nbye{after}\n"
        f"{form.replace('11-24', '11-26')}{fatal}"
    )
    assert fatal not in pasted[1]
    assert fatal in pasted[-1]


def test_a_print_of_several_lines_has_its_processs_mark_on_each() -> None:
    """vLLM up to 0.24 puts it on whatever its processes print."""
    front, core = "(APIServer pid=10) ", "(EngineCore pid=20) "
    said = f"{front}Prompt: hi\n{front}EngineCore encountered a fatal error.\n"
    assert "core-fatal" not in scanned(said).matches
    assert (
        "core-fatal"
        in scanned(f"{said}{core}EngineCore encountered a fatal error.\n").matches
    )
    assert scanned(said).last_by_process.keys() == {"APIServer pid=10"}


def test_lines_of_one_message_in_json_are_one_message() -> None:
    """Even a line that has the engine's own form, in the middle of what somebody
    wrote."""
    form = "(EngineCore pid=20) ERROR 11-24 18:12:17 [core.py:1195] "
    for first in (
        "Prompt: hi",
        "Received request cmpl-1: prompt: 'hi",
        "model_output: x",
    ):
        told = {
            "level": "INFO",
            "message": f"{first}\n{form}EngineCore encountered a fatal error.",
        }
        start = {"level": "INFO", "message": "hello", "logger": "vllm.v1.engine.core"}
        log = "".join(json.dumps(one) + "\n" for one in (start, told, start))
        found = scanned(log)
        assert (found.engine, found.error_count) == ("vllm", 0)
        assert found.match_counts["core-fatal"] == 0


def scanned(log: str) -> LogsData:
    engine = ENGINES["vllm"]
    every = {**engine.log_patterns, **{p: p for p in PATTERNS}}
    scanner = Scanner(
        every, engine.progress_pattern, added=engine.added_pattern, marks=log_marks()
    )
    return scanner.scan(io.BytesIO(log.encode()))


def test_a_log_full_of_imitations_is_a_healthy_servers() -> None:
    """Neither the engine, the release, the first error, progress nor a count is a
    client's."""
    start = vllm("core.py:1", process="EngineCore pid=20")
    start += "Initializing a V1 LLM engine (v0.23.0) with config: x\n"
    work = vllm("core.py:2", "DEBUG", "EngineCore pid=20") + "EngineCore loop active.\n"
    told = [
        CARRIERS[name](text)
        for name in (
            "request",
            "V0's request",
            "details",
            "JSON body",
            "output",
            "config",
            "query",
        )
        for text in (
            *IMITATIONS,
            "Initializing a V1 LLM engine (v9.9.9) with",
            "sglang " * 50,
        )
    ]
    quiet = scanned(
        start + work + "\n".join(CARRIERS["output"]("hello") for _ in told) + "\n"
    )
    loud = scanned(start + work + "\n".join(told) + "\n")
    assert (loud.engine, loud.release) == ("vllm", "0.23.0")
    assert (loud.errors, loud.error_count) == ([], 0)
    assert loud.last_progress is not None
    assert loud.last_progress.number == 2
    fatal = [
        n for n in loud.match_counts if "fatal" in n or "exception" in n or "died" in n
    ]
    assert {name: loud.match_counts[name] for name in fatal} == dict.fromkeys(fatal, 0)
    assert len(fatal) > 3
    assert quiet.error_count == 0


def test_the_engines_own_words_are_still_its_own() -> None:
    """The same words where the engine says them, right after a client's."""
    request = CARRIERS["request"]("EngineCore encountered a fatal error.")
    died = vllm("core.py:1195", "ERROR", "EngineCore pid=20")
    log = (
        f"{request}\n{died}EngineCore encountered a fatal error.\n{died}KeyError: 'x'\n"
    )
    found = scanned(log)
    assert [line.number for line in found.errors] == [2, 3]
    assert found.match_counts["core-fatal"] == 1
    first = found.errors[0]
    assert (first.own_words, first.quoted) == (first.text, [])
    bare = (
        "[2026-11-24 18:12:17 TP0] Scheduler hit an exception: Traceback (most "
        "recent call last):"
    )
    lines = own(
        f'{CARRIERS["Receive"]("x")}\n{bare}\n  File "a.py", line 1, in f\nValueError: '
        f"x"
    )
    assert lines[3] == "ValueError: x"


def test_a_records_spans_are_what_was_said() -> None:
    block = Block(b"\n" + CARRIERS["request"]("a secret").encode(), 0)
    line = block.place(0).record(UNKNOWN)
    assert "a secret" in line.text
    assert "a secret" not in line.own_words
    assert line.own_words.startswith("Received request ")
    assert not is_error(block.reading(0))
