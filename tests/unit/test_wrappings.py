"""A failure reads the same whatever stands around its lines: wrappings that collectors,
terminals and people put on, times the logs of three engines.

The lines have the forms in which the engines print them; what they tell is made up. No
two of the wrappings here are told apart by a name: most are known by their structure
alone, and two are made up, so that nobody can know them."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from mmrepro.failure.documents.cause import LogReading
from mmrepro.live.diagnose.log_reading import read_logs

Lines = Sequence[str]

VLLM = """\
(APIServer pid=411) INFO 03-09 08:31:02 [api_server.py:1977] vLLM API server version 0.24.0
(APIServer pid=411) INFO:     Application startup complete.
(APIServer pid=411) INFO 03-09 08:40:10 [loggers.py:259] Engine 000: Avg prompt throughput: 310.4 tokens/s, Avg generation throughput: 88.1 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.1%, Prefix cache hit rate: 4.0%
(APIServer pid=411) INFO:     10.4.0.9:40112 - "POST /v1/chat/completions HTTP/1.1" 200 OK
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911] WorkerProc hit an exception.
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911] Traceback (most recent call last):
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911]   File "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_model_runner.py", line 2718, in execute_model
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911]     hidden = self.model(input_ids, positions)
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911]   File "/opt/venv/lib/python3.12/site-packages/vllm/model_executor/layers/rotary.py", line 64, in forward
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911]     torch.ops.custom(positions)
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911] torch.AcceleratorError: CUDA error: misaligned address
(Worker_TP3 pid=527) ERROR 03-09 08:41:33 [multiproc_executor.py:911] CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
(EngineCore pid=502) ERROR 03-09 08:41:34 [core.py:1233] EngineCore encountered a fatal error.
(APIServer pid=411) ERROR 03-09 08:41:34 [async_llm.py:704] AsyncLLM output_handler failed.
(APIServer pid=411) ERROR 03-09 08:41:34 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
"""  # noqa: E501
SGLANG = """\
[2026-03-09 08:31:02] server_args=ServerArgs(model_path='m', tp_size=4)
[2026-03-09 08:33:00] The server is fired up and ready to roll!
[2026-03-09 08:40:10 TP0] Decode batch, #running-req: 2, #token: 512, token usage: 0.01, cuda graph: True, gen throughput (token/s): 71.9, #queue-req: 0
[2026-03-09 08:41:33 TP2] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/python/sglang/srt/managers/scheduler.py", line 3120, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "/opt/sglang/python/sglang/srt/mem_cache/radix_cache.py", line 411, in cache_finished_req
    self.lengths[node.key].append(node)
KeyError: 'node_91'

[2026-03-09 08:41:33] Received sigquit from a child process. It usually means the child failed.
"""  # noqa: E501
LMDEPLOY = """\
2026-03-09 08:31:02,120 - lmdeploy - INFO - api_server.py:1400 - server is up
INFO:     10.4.0.9:40112 - "POST /v1/chat/completions HTTP/1.1" 200 OK
2026-03-09 08:40:10,404 - lmdeploy - INFO - metrics_processor.py:88 - prompt tokens 9
2026-03-09 08:41:33,871 - lmdeploy - ERROR - request.py:21 - Engine main loop stopped.
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/lmdeploy/pytorch/engine/engine_loop.py", line 402, in main_loop
    await self._run(forward_event)
  File "/opt/venv/lib/python3.12/site-packages/lmdeploy/pytorch/paging/scheduler.py", line 255, in schedule
    raise IndexError(block)
IndexError: block 12 of 12 blocks
"""  # noqa: E501
LOGS = {"vllm": VLLM, "sglang": SGLANG, "lmdeploy": LMDEPLOY}
RIGHT = {
    "vllm": (
        "gpu-fault",
        "torch.AcceleratorError: CUDA error: misaligned address",
        "Worker_TP3 pid=527",
        "03-09 08:41:33",
    ),
    "sglang": (
        "engine-defect",
        "KeyError: 'node_91'",
        "TP2",
        "2026-03-09 08:41:33",
    ),
    "lmdeploy": (
        "engine-defect",
        "IndexError: block 12 of 12 blocks",
        "",
        "2026-03-09 08:41:33,871",
    ),
}


def each(wrap: Callable[[int, str], str]) -> Callable[[Lines], str]:
    """``wrap`` gets a line's number from 0 and the line."""
    return lambda lines: "".join(f"{wrap(n, line)}\n" for n, line in enumerate(lines))


def at(n: int) -> str:
    return f"2026-03-09T09:{n // 60:02}:{n % 60:02}"


def table(delimiter: str, *, header: bool, before: bool = True) -> Callable[..., str]:
    """Rows whose cells are quoted where they need it."""

    def wrap(lines: Lines) -> str:
        out = io.StringIO()
        rows = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        if header:
            names = ["date", "host", "service", "message"]
            rows.writerow(names if before else names[::-1])
        for n, line in enumerate(lines):
            cells = [f"{at(n)}.000Z", f"gpu{n % 3}", "llm", line]
            rows.writerow(cells if before else cells[::-1])
        return out.getvalue()

    return wrap


def quoted_table(lines: Lines) -> str:
    out = io.StringIO()
    rows = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for n, line in enumerate(lines):
        rows.writerow([f"{at(n)}Z", f"i-0abc{n}", line])
    return out.getvalue()


def as_list(make: Callable[[int, str], object], **how: object) -> Callable[..., str]:
    def wrap(lines: Lines) -> str:
        objects = [make(n, line) for n, line in enumerate(lines)]
        return json.dumps(objects, **how) + "\n"  # type: ignore[arg-type]

    return wrap


def records(lines: Lines) -> list[str]:
    """Lines with those that go on with them, as a collector puts them together."""
    found: list[str] = []
    for line in lines:
        if found and line[:1] not in ("(", "[", "2", "I"):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def cells(lines: Lines) -> str:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\r\n")
    rows.writerow(["Date", "Message"])
    for n, record in enumerate(records(lines)):
        rows.writerow([f"{at(n)}Z", record])
    return out.getvalue()


def pane(lines: Lines) -> str:
    width = max(map(len, lines)) + 1
    inside = "".join(f"│ {line:{width}}│\n" for line in lines)
    return f"┌{'─' * (width + 1)}┐\n{inside}└{'─' * (width + 1)}┘\n"


def columns(lines: Lines) -> str:
    width = max(map(len, lines))
    return "".join(f"| {at(n)} | {line:{width}} |\n" for n, line in enumerate(lines))


def logfmt(n: int, line: str) -> str:
    text = json.dumps(line, ensure_ascii=False)
    return f'time="{at(n)}Z" level=info pod=llm-0 msg={text} stream=stderr'


def epoch(n: int) -> int:
    return 1_773_046_800_000 + n


WRAPPINGS: dict[str, Callable[[Lines], str]] = {
    "plain": each(lambda n, line: line),
    "Python's logging": each(
        lambda n, line: f"2026-03-09 09:00:{n:02},531 - __main__ - INFO - {line}"
    ),
    "Python's logging, with a thread": each(
        lambda n, line: (
            f"2026-03-09 09:00:{n:02},531 [Thread-{n % 4}] INFO serve: {line}"
        )
    ),
    "basicConfig": each(lambda n, line: f"INFO:launcher.child:{line}"),
    "loguru": each(
        lambda n, line: (
            f"2026-03-09 09:00:{n:02}.531 | INFO     | serve:pump:41 - {line}"
        )
    ),
    "Rust's tracing": each(
        lambda n, line: f"{at(n)}.123456Z  INFO engine.worker: {line}"
    ),
    "Rust's tracing, one space": each(
        lambda n, line: f"{at(n)}.12345{n % 10}Z INFO engine::worker{n % 3}: {line}"
    ),
    "glog": each(
        lambda n, line: f"I0309 09:00:{n:02}.000000 7 pump.go:{n + 10}] out: {line}"
    ),
    "logfmt": each(logfmt),
    "logfmt, another key": each(
        lambda n, line: f"ts={epoch(n)} src=a{n} said={json.dumps(line)}"
    ),
    "CSV with a header": table(",", header=True),
    "CSV, the line first": table(",", header=True, before=False),
    "CSV, all quoted": quoted_table,
    "CSV with semicolons": table(";", header=False),
    "TSV": table("\t", header=True),
    "TSV of CloudWatch": each(lambda n, line: f"{epoch(n)}\t{line}"),
    "gh run view": each(
        lambda n, line: (
            f"serve\t{['Set up', 'Run the long one'][n % 2]}\t{at(n)}.1234567Z {line}"
        )
    ),
    "objects, as people read them": as_list(
        lambda n, line: {"textPayload": line, "timestamp": f"{at(n)}Z"}, indent=2
    ),
    "objects, nested": as_list(
        lambda n, line: {"jsonPayload": {"message": line}, "insertId": f"a{n}"},
        indent=1,
    ),
    "a list of objects on one line": as_list(
        lambda n, line: {"message": line, "time": f"{at(n)}Z"}
    ),
    "a list, an object a line": lambda lines: (
        "["
        + ",\n".join(json.dumps({"log": line, "n": n}) for n, line in enumerate(lines))
        + "]\n"
    ),
    "a list of strings": as_list(lambda n, line: line, indent=2),
    "Splunk": each(
        lambda n, line: json.dumps({"preview": False, "result": {"_raw": line}})
    ),
    "OpenTelemetry": each(
        lambda n, line: json.dumps({"ts": epoch(n), "body": {"stringValue": line}})
    ),
    "fluentd": each(
        lambda n, line: (
            f"2026-03-09 09:00:{n:02} +0000 kube.engine: "
            + json.dumps({"log": line, "stream": "stdout"})
        )
    ),
    "a pane": pane,
    "a table of signs": columns,
    "numbers": each(lambda n, line: f"{n + 95:5} {line}"),
    "numbers with a word": each(lambda n, line: f"  Line {n + 95}: {line}"),
    "numbers with a bar": each(lambda n, line: f"{n + 95:>4} | {line}"),
    "a time in brackets": each(lambda n, line: f"[09:00:{n:02}] {line}"),
    "a date in brackets": each(lambda n, line: f"[2026-03-09 09:00:{n:02}] {line}"),
    "indented, with a time": each(
        lambda n, line: f"   2026-03-09 09:00:{n:02}.123 {line}"
    ),
    "an instance and a stream": each(lambda n, line: f"0s0n9esx[error]{line}\\n"),
    "a dyno": each(lambda n, line: f"{at(n)}.1234+00:00 app[web.{n % 3}]: {line}"),
    "a swarm": each(lambda n, line: f"llm_api.1.x7k2@node-1    | {line}"),
    "a unit, with colons": each(lambda n, line: f"vllm@3.service: {line}"),
    "newlines that became spaces": lambda lines: " ".join(lines) + "\n",
    "newlines that became text": lambda lines: "\\n".join(lines) + "\n",
    "a stamp in a stamp": each(
        lambda n, line: f"{at(n)}Z 2026-03-09 09:00:{n:02},531 - pump - INFO - {line}"
    ),
    "labels": each(lambda n, line: f'{{app="llm", node="gpu {n % 3}"}} {line}'),
    "a step of a build": each(lambda n, line: f"#12 {n}.345 {line}"),
    "an object within an object": each(
        lambda n, line: json.dumps({"log": json.dumps({"message": line, "n": n})})
    ),
    "records of several lines": lambda lines: "".join(
        json.dumps({"LogMessage": record, "PodName": "llm-0"}) + "\n"
        for record in records(lines)
    ),
    "a cell of several lines": cells,
    "hits of a search": as_list(
        lambda n, line: {"_source": {"said": line, "@timestamp": f"{at(n)}Z"}}, indent=1
    ),
    "one object": lambda lines: (
        json.dumps({"events": [{"at": n, "line": a} for n, a in enumerate(lines)]})
        + "\n"
    ),
    "Python's own": each(lambda n, line: repr({"n": n, "line": line})),
    "columns of signs": each(lambda n, line: f"{n} | gpu{n % 2} | pump | {line}"),
    # Nobody has these two.
    "made up: signs": each(lambda n, line: f"<<node{n % 5}/§{n:03}>> ~ {line}"),
    "made up: words": each(
        lambda n, line: f"rack {'abcde'[n % 5]} says at {n * 7} s that {line}"
    ),
    "a host behind": each(lambda n, line: f"{line} | node-7"),
    "labels behind": each(lambda n, line: f'{line} {{pod="a-0", ns="llm"}}'),
    "a count behind": each(lambda n, line: f"{line} #{n}"),
    "a key behind": each(lambda n, line: f"{line} [host=gpu7]"),
    "a time behind": each(lambda n, line: f"{line}\t2026-03-09T09:00:{n:02}Z"),
    "a column behind": each(lambda n, line: f"{line:<260}gpu7"),
}
GRID = [(wrapping, engine) for wrapping in WRAPPINGS for engine in LOGS]


def read(tmp_path: Path, text: str) -> LogReading:
    path = tmp_path / "server.log"
    path.write_text(text)
    return read_logs([path], alone=True)


@pytest.mark.parametrize(("wrapping", "engine"), GRID)
def test_a_failure_reads_the_same_in_each_wrapping(
    wrapping: str, engine: str, tmp_path: Path
) -> None:
    found = read(tmp_path, WRAPPINGS[wrapping](LOGS[engine].splitlines()))
    cause = found.cause
    answer = (cause.name.value, cause.exception, cause.process, cause.time)
    assert answer == RIGHT[engine]
    assert found.engine == engine


# ------------------------------------------------------------------ what is no wrapping

FAKE = (
    "(EngineCore pid=7) ERROR 03-09 08:41:33 [core.py:1] torch.AcceleratorError: CUDA "
    "error: misaligned address"
)
QUOTING = {
    "a gateway's own log": f'10.0.0.{{n}} - client: "POST /x" said "{FAKE}" to me',
    "SGLang's requests": (
        "[2026-03-09 08:40:1{n}] Receive: obj=GenerateReqInput(text='" + FAKE + "')"
    ),
    "vLLM's requests": (
        "(APIServer pid=4) INFO 03-09 08:40:1{n} [logger.py:4] Received request a{n}: "
        f"prompt: '{FAKE}', params: SamplingParams(n=1)"
    ),
    "LMDeploy's requests": (
        "2026-03-09 08:40:1{n},100 - lmdeploy - INFO - engine.py:1 - session=1, "
        f"prompt='{FAKE}'"
    ),
    "a dictionary's requests": "{{'n': {n}, 'prompt': '" + FAKE + "'}}",
    "SGLang's requests in JSON": (
        '{{"timestamp": "2026-03-09T08:40:1{n}", "event": "request.received", "text": "'
        + FAKE
        + '"}}'
    ),
}


@pytest.mark.parametrize("many", [1, 2, 9])
@pytest.mark.parametrize("what", QUOTING)
def test_what_is_quoted_in_every_line_is_no_engines_line(
    what: str, many: int, tmp_path: Path
) -> None:
    text = "".join(QUOTING[what].format(n=n) + "\n" for n in range(many))
    found = read(tmp_path, text)
    assert found.cause.process != "EngineCore pid=7"
    if what in ("SGLang's requests", "vLLM's requests", "LMDeploy's requests"):
        assert found.cause.name.value in ("unknown", "alive")


@pytest.mark.parametrize("end", [" ", "\\n"])
def test_a_request_in_a_log_on_one_line_is_not_cut(end: str, tmp_path: Path) -> None:
    front = "(APIServer pid=4) INFO 03-09 08:40:10 [logger.py:4] "
    asked = (
        f"{front}Received request a: prompt: 'why?{end}{FAKE}{end}{FAKE}', params: n"
    )
    lines = [*VLLM.splitlines()[:4], asked, *VLLM.splitlines()[2:4]]
    found = read(tmp_path, end.join(lines) + "\n")
    assert found.cause.name.value in ("alive", "unknown")


def test_an_engines_own_lines_are_never_cut(tmp_path: Path) -> None:
    """However alike they begin."""
    for engine, text in LOGS.items():
        lines = text.splitlines()[:3] * 5
        found = read(tmp_path, "\n".join(lines) + "\n")
        assert (found.engine, found.cause.name.value) == (engine, "alive")


def test_another_programs_own_error_stays(tmp_path: Path) -> None:
    """Its line has its level and its time; an engine's has the engine's."""
    wrap = WRAPPINGS["Rust's tracing"]
    own = "2026-03-09T09:01:00.123456Z ERROR engine.planner: no worker is left\n"
    found = read(tmp_path, wrap(VLLM.splitlines()[:4]) + own)
    assert found.first_error is not None
    assert (found.first_error.level, found.first_error.text) == (
        "ERROR",
        "engine.planner: no worker is left",
    )


def test_a_message_in_a_page_s_backticks_is_read(tmp_path: Path) -> None:
    said = "ImportError: /v/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"
    found = read(tmp_path, f"`{said}`\n")
    assert found.cause.exception == said
