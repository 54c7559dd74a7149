"""The HTTP, inference and metrics probes against real servers that misbehave."""

import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import example, given, strategies as st
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.http import (
    ENDPOINT_BYTES,
    HttpProbe,
    InferenceProbe,
    read_completion,
)
from mmrepro.probes.metrics import MAX_LINES, MetricsProbe, parse_metrics
from prometheus_client.parser import text_string_to_metric_families

Behave = Callable[[socket.socket], None]

OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def read_request(connection: socket.socket) -> None:
    """All of it: who closes with something unread resets the connection, and the answer
    is lost."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    left = (int(length[1]) if length else 0) - len(body)
    while left > 0 and (more := connection.recv(65536)):
        left -= len(more)


@contextmanager
def raw_server(behave: Behave) -> Iterator[str]:
    """A server that hands each connection, its request read, to ``behave``."""
    stop = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.settimeout(10)
            try:
                read_request(connection)
                behave(connection)
                if behave is never_answers:
                    stop.wait(10)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)


def never_answers(connection: socket.socket) -> None:
    pass


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"\x00\xff not http at all\r\n\r\n")


def closes_at_once(connection: socket.socket) -> None:
    pass


def closes_in_the_body(connection: socket.socket) -> None:
    connection.sendall(OK_HEAD + b"Content-Length: 100\r\n\r\nhalf")


def endless(connection: socket.socket) -> None:
    connection.sendall(OK_HEAD + b"Connection: close\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def drips_its_body(connection: socket.socket) -> None:
    connection.sendall(OK_HEAD + b"Content-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def drips_its_headers(connection: socket.socket) -> None:
    connection.sendall(OK_HEAD)
    while True:
        connection.sendall(b"X-Slow: 1\r\n")
        time.sleep(0.02)


def redirects(connection: socket.socket) -> None:
    connection.sendall(
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    )


def says(status: int, body: bytes) -> Behave:
    def behave(connection: socket.socket) -> None:
        head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)

    return behave


def ask(behave: Behave, evidence, timeout_s: float = 0.4):
    with raw_server(behave) as url:
        result = run_probe(HttpProbe(url, ["/health"], timeout_s), evidence, 30)
    assert result.status is ProbeStatus.OK
    return result.data.answers[0]


def test_status_and_body_of_a_healthy_endpoint(evidence):
    answer = ask(says(200, b"fine"), evidence, 5)
    assert (answer.status, answer.body, answer.error) == (200, "fine", "")
    assert not answer.timed_out
    assert (evidence / "http-health.body").read_bytes() == b"fine"


@pytest.mark.parametrize(
    ("behave", "error"),
    [
        (garbage, "RemoteProtocolError"),
        (closes_at_once, "disconnected"),
        (closes_in_the_body, "in the body of a 200 answer"),
        (never_answers, "no complete answer in 0.4 s"),
        (drips_its_body, "no complete answer in 0.4 s in the body of a 200 answer"),
        (drips_its_headers, "no complete answer in 0.4 s"),
    ],
)
def test_no_whole_answer_is_no_status_and_an_error_in_time(behave, error, evidence):
    hold = (lambda c: never_answers(c)) if behave is closes_at_once else behave
    answer = ask(hold, evidence)
    assert answer.status is None
    assert error in answer.error
    assert answer.timed_out is error.startswith("no complete answer")
    assert answer.seconds < 20


def test_an_endless_body_is_cut(evidence):
    answer = ask(endless, evidence, 30)
    assert answer.status == 200
    assert len(answer.body) == 2000
    assert (evidence / "http-health.body").stat().st_size == ENDPOINT_BYTES


def test_redirects_and_server_errors_are_answers(evidence):
    assert ask(redirects, evidence, 5).status == 302
    assert ask(says(500, b"\xff\xfe"), evidence, 5).body == "��"


def test_a_closed_port_is_an_error_and_other_paths_are_still_asked(evidence):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    data = run_probe(HttpProbe(f"http://127.0.0.1:{port}/v1"), evidence, 5).data
    assert [a.path for a in data.answers] == ["/health", "/v1/models"]
    assert all(a.status is None and "refused" in a.error for a in data.answers)
    assert data.base_url == f"http://127.0.0.1:{port}"


def test_proxies_of_the_environment_are_not_used(evidence, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(says(200, b"direct"), evidence, 5).body == "direct"


def test_an_address_that_is_none_is_an_error(evidence):
    answers = run_probe(HttpProbe("no scheme: \x00"), evidence, 5).data.answers
    assert all(a.status is None and a.error for a in answers)


def test_silent_endpoints_take_the_time_of_one(evidence):
    with raw_server(never_answers) as url:
        result = run_probe(HttpProbe(url, ["/a", "/b"], timeout_s=60), evidence, 0.3)
        late = run_probe(HttpProbe(url, ["/a"]), evidence, 0.0)
    assert [(a.path, a.timed_out) for a in result.data.answers] == [
        ("/a", True),
        ("/b", True),
    ]
    assert result.seconds < 60
    assert late.status is ProbeStatus.TIMED_OUT


# ------------------------------------------------------------------ inference

COMPLETION = {
    "choices": [
        {"message": {"role": "assistant", "content": "OK"}, "finish_reason": "length"}
    ],
    "usage": {"completion_tokens": 1},
}


def infer(body: object, evidence, status: int = 200, **options):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with raw_server(says(status, content)) as url:
        return run_probe(InferenceProbe(url, "tiny", 2, **options), evidence, 3).data


def changed(path: str, value: object) -> dict[str, object]:
    document = json.loads(json.dumps(COMPLETION))
    choice = document["choices"][0]
    {"content": choice["message"], "finish_reason": choice}[path][path] = value
    return document


def test_the_request_is_small_marked_and_holds_the_image(evidence):
    seen: list[tuple[dict[str, str], dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            seen.append((dict(self.headers), json.loads(self.rfile.read(length))))
            content = json.dumps(COMPLETION).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        probe = InferenceProbe(
            f"http://127.0.0.1:{server.server_port}/v1/",
            "tiny",
            5,
            image_data_url="data:image/png;base64,AA==",
        )
        result = run_probe(probe, evidence, 6)
        server.shutdown()
    assert result.data.answered
    assert (result.data.text, result.data.completion_tokens) == ("OK", 1)
    headers, request = seen[0]
    assert headers["X-Mmrepro-Probe"] == "1"
    assert request["user"] == "mmrepro-probe"
    assert (request["model"], request["max_tokens"], request["stream"]) == (
        "tiny",
        1,
        False,
    )
    assert request["messages"][0]["content"][0]["image_url"] == {
        "url": "data:image/png;base64,AA=="
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "no chat completion"),
        ({"choices": []}, "no chat completion"),
        ({"error": "internal error happened"}, "no chat completion"),
        (changed("finish_reason", "error"), "finish_reason 'error'"),
        (changed("finish_reason", "abort"), "finish_reason 'abort'"),
        (changed("finish_reason", None), "malformed"),
        (changed("content", 7), "malformed"),
    ],
)
def test_a_200_that_is_no_completion_is_not_answered(body, why, evidence):
    data = infer(body, evidence)
    assert not data.answered
    assert data.status == 200
    assert why in data.error


def test_a_token_without_text_is_a_completion(evidence):
    assert infer(changed("content", ""), evidence).answered
    assert infer(changed("content", None), evidence).answered


def test_an_error_status_and_its_body_are_kept(evidence):
    data = infer({"detail": "boom"}, evidence, status=500)
    assert (data.answered, data.status) == (False, 500)
    assert "boom" in data.error


def test_silence_is_data_not_a_failure_of_the_probe(evidence):
    with raw_server(never_answers) as url:
        result = run_probe(InferenceProbe(url, "tiny", 0.3), evidence, 30)
    assert result.ok
    assert not result.data.answered
    assert "no complete answer in 0.3 s" in result.data.error
    assert 0.3 <= result.data.seconds < 20


@given(
    st.binary(max_size=200)
    | st.sampled_from(["\ud800", "OK"]).map(
        lambda text: json.dumps(changed("content", text)).encode()
    )
)
def test_any_body_is_read_without_raising(body):
    fields = read_completion(body)
    assert fields.get("answered") or fields["error"]
    json.dumps(fields).encode()
    fields.get("text", "").encode()


# ------------------------------------------------------------------ metrics

EXPOSITION = """\
# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\\"b"} 0.0
vllm:num_requests_running{engine="1",model_name="m"} 2
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0"} 12345.0
vllm:prompt_tokens_created{engine="0"} 1.7e+09
this is { not a metric
vllm:ttft_bucket{le="0.1"} 4
vllm:ttft_bucket{le="+Inf"} 4
vllm:ttft_sum 0.5
vllm:ttft_count 4
vllm:ratio NaN
vllm:limit +Inf
objects_created 9
"""


def test_metrics_are_read_and_a_bad_line_is_counted(evidence):
    with raw_server(says(200, EXPOSITION.encode())) as url:
        result = run_probe(MetricsProbe(url), evidence, 3)
    assert result.ok, result.reason
    data = result.data
    assert data.url.endswith("/metrics")
    assert data.total("vllm:num_requests_running") == 2
    assert data.total("vllm:prompt_tokens_total") == 12345
    assert data.total("vllm:ratio") is None
    assert data.total("absent") is None
    assert data.bad_lines == 1
    names = [sample.name for sample in data.samples]
    assert names.count("vllm:ttft_count") == 1
    assert "objects_created" in names
    assert not [
        n for n in names if n.endswith("_bucket") or n == "vllm:prompt_tokens_created"
    ]
    assert data.samples[0].labels == {"engine": "0", "model_name": 'a"b'}
    assert (evidence / "metrics-metrics.txt").read_text() == EXPOSITION
    assert json.loads(data.model_dump_json())["samples"][5]["value"] is None


@pytest.mark.parametrize(
    ("behave", "status", "reason"),
    [
        (says(404, b"no"), ProbeStatus.UNAVAILABLE, "answered 404"),
        (says(200, b"<html>\n<body>"), ProbeStatus.UNAVAILABLE, "not Prometheus"),
        (garbage, ProbeStatus.UNAVAILABLE, "ProtocolError"),
        (never_answers, ProbeStatus.TIMED_OUT, "no complete answer"),
    ],
)
def test_without_metrics_it_says_why(behave, status, reason, evidence):
    # What answers has time on a busy machine; what never does is not waited for long.
    timeout_s = 0.3 if behave is never_answers else 20.0
    with raw_server(behave) as url:
        result = run_probe(MetricsProbe(url, timeout_s=timeout_s), evidence, 30)
    assert result.status is status
    assert reason in result.reason


@pytest.mark.parametrize("line", ['m{{n="{}"}} 1', "{} is {{ no metric"])
def test_more_metrics_than_any_server_has_are_not_read(line, evidence):
    body = "\n".join(map(line.format, range(MAX_LINES + 1))).encode()
    with raw_server(says(200, body)) as url:
        result = run_probe(MetricsProbe(url), evidence, 30)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "answers more than 50,000 lines of metrics" in result.reason
    assert (evidence / "metrics-metrics.txt").read_bytes() == body


def test_half_of_the_metrics_does_not_tell_that_one_is_absent(evidence, monkeypatch):
    monkeypatch.setattr("mmrepro.probes.metrics.MAX_BODY_BYTES", len(EXPOSITION) // 2)
    with raw_server(says(200, EXPOSITION.encode())) as url:
        result = run_probe(MetricsProbe(url), evidence, 3)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "answers more than 244 B" in result.reason


metric_like = st.lists(
    st.sampled_from(
        ["a", "{", "}", '"', "\\", ",", "=", " ", "1", "NaN", "\n", "\r", "#", "le"]
    )
).map("".join)


@given(st.text() | metric_like | st.text(st.characters()))
def test_any_exposition_is_read_without_raising(text):
    samples, bad = parse_metrics(text)
    assert bad >= 0
    for sample in samples:
        sample.model_dump_json()
        assert sample.value is None or math.isfinite(sample.value)


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(
            lambda name: not name.startswith("__")
        ),
        st.text(st.characters(blacklist_categories=["Cs"]), max_size=8),
        max_size=3,
    ),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_what_was_written_is_read(labels, value):
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    inside = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    samples, bad = parse_metrics(f"vllm:some_metric{{{inside}}} {value!r}")
    assert bad == 0
    assert [(s.labels, s.value) for s in samples] == [(labels, value)]


plain_like = st.lists(
    st.sampled_from(
        [
            "m",
            "_total",
            "{",
            "}",
            'a="b"',
            'a="c"',
            'b="x,y"',
            ",",
            " ",
            " 1",
            " 2.5e3",
            " -",
            "__x=",
            '""',
        ]
    ),
    max_size=9,
).map("".join)


@given(plain_like)
@example('m{a="b",a="c"} 1')
@example('m{a="b",} 1')
@example('m{__x="b"} 1')
def test_the_short_cut_for_plain_lines_reads_what_the_library_reads(line):
    try:
        families = list(text_string_to_metric_families(line))
        expected = [(s.name, s.labels, s.value) for f in families for s in f.samples]
    except Exception:
        expected = []
    found, _ = parse_metrics(line)
    assert [(s.name, s.labels, s.value) for s in found] == expected


def test_a_hostile_exposition_is_read_fast():
    lines = [
        "x" * 30_000,
        "a{" + 'b="c",' * 5000 + "}",
        'a{b="' + '\\"' * 15_000,
        "{" * 30_000,
    ]
    started = time.process_time()
    parse_metrics("\n".join(lines * 5))
    assert time.process_time() - started < 5
