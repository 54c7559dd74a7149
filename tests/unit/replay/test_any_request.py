"""A case carries any request: what is read of a file, goes over the wire, and counts as
a piece."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from fake_server import STREAM_HEAD, http, serving
from mmrepro.base.errors import UsageError
from mmrepro.traffic import Traffic
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.exchanges import Exchange, captured
from mmrepro.traffic.capture.read import holds_case, read
from mmrepro.traffic.case.bodies import body, opened, wire
from mmrepro.traffic.case.files import (
    case_digest,
    case_text,
    pictures,
    read_case,
    write_case,
)
from mmrepro.traffic.case.model import (
    Case,
    FormPart,
    Message,
    Operation,
    Origin,
    Part,
    ServerWanted,
)
from mmrepro.traffic.case.sending import Sending
from mmrepro.traffic.evidence import RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder
from pydantic import ValidationError

SERVER = ServerWanted(engine="vllm", release="0.32.0")
RESPONSES = "/v1/responses"


def sent(op: Operation, answers: dict[str, str] | None = None) -> tuple[str, bytes]:
    made = wire(op, {}, "tiny", answers)
    return made.target, made.body


def batch(folder: Path, *requests: dict[str, Any] | str) -> Case:
    lines = (one if isinstance(one, str) else json.dumps(one) for one in requests)
    (folder / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return read(folder / "requests.jsonl", SERVER).case


# ---------------------------------------------------------------------- what is sent


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/embeddings", "/score", "/tokenize", RESPONSES]
)
def test_who_names_a_model_names_the_served_one(path: str) -> None:
    op = Operation(id="r", path=path, parameters={"input": "x"})
    assert json.loads(sent(op)[1])["model"] == "tiny"
    adapter = op.model_copy(update={"model": "adapter"})
    assert json.loads(sent(adapter)[1])["model"] == "adapter"
    assert "model" not in json.loads(sent(op.model_copy(update={"model": ""}))[1])


@pytest.mark.parametrize(
    "path",
    ["/generate", "/open_session", "/inference/v1/generate", "/v1/load_lora_adapter"],
)
def test_others_name_none(path: str) -> None:
    assert json.loads(sent(Operation(id="r", path=path, parameters={"a": 1}))[1]) == {
        "a": 1
    }


def test_a_request_may_have_no_body() -> None:
    made = wire(
        Operation(id="r", method="GET", path="/v1/models", query="a=b"), {}, "tiny"
    )
    assert (made.method, made.target, made.headers, made.body) == (
        "GET",
        "/v1/models?a=b",
        {},
        b"",
    )
    assert (
        wire(Operation(id="r", path="/sleep", query="level=1"), {}, "tiny").body == b""
    )


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (
            '{"model": "a", "x": {"model": "b"}}',
            '{"model": "tiny", "x": {"model": "b"}}',
        ),
        (
            '{"x": {"model": "b"}, "model":"c" }',
            '{"x": {"model": "b"}, "model":"tiny" }',
        ),
        ('{"x": {"model": "b"}}', '{"x": {"model": "b"}}'),
        ('{"model": "a", "model": "b"}', '{"model": "a", "model": "tiny"}'),
        ('{"model": "a", broken', '{"model": "tiny", broken'),
        ('{"model": null, "x": "\\ud800"}', '{"model": null, "x": "\\ud800"}'),
        ('{" model": "a"}', '{" model": "a"}'),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_of_a_body_as_it_is_only_the_model_s_name_is_another(
    text: str, right: str
) -> None:
    assert sent(Operation(id="r", body=text))[1].decode() == right


def test_a_form_and_bytes() -> None:
    sound = base64.b64encode(b"\xff\x00RIFF").decode()
    form = [
        FormPart(name="file", data=sound, filename="a.wav", media_type="audio/wav"),
        FormPart(name="model", text="whisper"),
    ]
    made = wire(
        Operation(id="r", path="/v1/audio/transcriptions", form=form), {}, "tiny"
    )
    assert made.headers["Content-Type"].startswith("multipart/form-data; boundary=")
    assert (
        b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n\xff\x00RIFF'
        in made.body
    )
    assert b'name="model"\r\n\r\ntiny\r\n' in made.body
    assert sent(Operation(id="r", data=sound))[1] == b"\xff\x00RIFF"


def test_a_value_of_an_earlier_answer() -> None:
    op = Operation(
        id="r2",
        path=RESPONSES + "/${v}/cancel",
        values={"v": "r1.id", "n": "r1.list.1"},
        parameters={
            "previous_response_id": "${v}",
            "n": "${n}",
            "text": "of ${v} and ${other}",
        },
    )
    answer = json.dumps({"id": "resp a/b", "list": [1, 22]})
    target, made = sent(op, {"r1": answer})
    assert target == RESPONSES + "/resp%20a%2Fb/cancel"
    fields = json.loads(made)
    assert (fields["previous_response_id"], fields["n"]) == ("resp a/b", 22)
    assert fields["text"] == "of resp a/b and ${other}", (
        "only what is declared is replaced"
    )
    stream = (
        f'data: {{"type": "x"}}\n\ndata: {json.dumps({"response": {"id": "q"}})}\n\n'
    )
    streamed = op.model_copy(update={"values": {"v": "r1.response.id"}})
    assert json.loads(sent(streamed, {"r1": stream})[1])["previous_response_id"] == "q"


def test_what_a_case_may_not_say() -> None:
    for wrong in (
        {"body": "{}", "messages": []},
        {"body": "{}", "data": ""},
        {"data": "%"},
        {"leave": "soon"},
        {"path": "/a?b"},
        {"expect": {"text": "("}},
        {"expect": {"tokens": "many"}},
    ):
        with pytest.raises(ValidationError):
            Operation(id="r", **wrong)
    with pytest.raises(
        ValidationError, match="takes a value from r2, which comes later"
    ):
        Case(
            server=SERVER,
            operations=[Operation(id="r1", values={"v": "r2.id"}), Operation(id="r2")],
        )
    with pytest.raises(ValidationError, match="holds the address"):
        Part(raw={"type": "image_url", "image_url": {"url": "https://a.example/x.png"}})
    Part(raw={"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}})


def test_who_takes_a_value_goes_with_the_one_it_takes_it_from() -> None:
    operations = [
        Operation(id="r1", path=RESPONSES),
        Operation(id="r2", path=RESPONSES, values={"v": "r1.id"}),
        Operation(id="r3", expect={"same_as": "r2"}),
    ]
    case = Case(server=SERVER, operations=operations)
    left = case.keeping(["r2", "r3"])
    assert [op.id for op in left.operations] == ["r3"]
    assert left.operations[0].expect is not None
    assert left.operations[0].expect.same_as is None


def test_a_case_of_the_first_version_is_read_and_plays_the_same(tmp_path: Path) -> None:
    old = {
        "schema_version": 1,
        "server": {"engine": "vllm", "release": "0.23.0"},
        "operations": [{"id": "r1", "messages": [{"role": "user", "content": "hi"}]}],
    }
    (tmp_path / "of any name.txt").write_text(json.dumps(old))
    assert holds_case(tmp_path / "of any name.txt")
    case, _ = read_case(tmp_path / "of any name.txt")
    assert json.loads(case_text(case))["schema_version"] == 2
    message = Message(role="user", content="hi")
    server = ServerWanted(engine="vllm", release="0.23.0")
    same = Case(server=server, operations=[Operation(id="r1", messages=[message])])
    assert case_digest(case) == case_digest(same)


# ---------------------------------------------------------------------- what is read


BODIES = [
    {
        "model": "m",
        "messages": [{"role": "assistant", "content": None, "tool_calls": []}],
    },
    {
        "model": "m",
        "prompt": "x",
        "metadata": {"who": "me", "n": 1},
        "user": "somebody",
    },
    {"model": "m", "prompt": "x", "kv_transfer_params": {"do_remote_decode": True}},
    {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": "http://127.0.0.1:1/no.png"},
                    },
                    {
                        "type": "image_url",
                        "image_url": {"url": "data:image/png;base64,AAAA"},
                    },
                    {
                        "type": "image_url",
                        "image_url": {
                            "url": "data:image/png;base64,AAAA",
                            "detail": "low",
                        },
                    },
                ],
            }
        ],
    },
    {"messages": "no list", "max_tokens": None, "stream": None},
    {"stream": "yes"},
    {"model": 5},
    {"model": "m", "stream": True, "prompt": "x"},
    {
        "model": "m",
        "tools": [{"$schema": "https://json-schema.org/draft", "default": "http://a"}],
    },
    [1, 2],
]


@pytest.mark.parametrize("body_of", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("compact", [False, True])
def test_a_batch_line_s_body_is_kept_byte_for_byte(
    tmp_path: Path, body_of: Any, compact: bool
) -> None:
    text = json.dumps(body_of, separators=(",", ":") if compact else None)
    case = batch(tmp_path, f'{{"custom_id": "a", "url": "/v1/x", "body": {text}}}')
    named = text.replace('"model": "m"', '"model": "tiny"').replace(
        '"model":"m"', '"model":"tiny"'
    )
    write_case(
        case, tmp_path / "case", read(tmp_path / "requests.jsonl", SERVER).contents
    )
    kept, folder = read_case(tmp_path / "case")

    assert body(kept.operations[0], pictures(kept, folder), "tiny").decode() == named


def test_paths_are_matched_whole(tmp_path: Path) -> None:
    paths = [
        "/inference/v1/generate",
        "/generate",
        "/v1/chat/completions/render",
        "/my/completions",
    ]
    case = batch(tmp_path, *({"url": path, "body": {"a": 1}} for path in paths))
    assert [op.path for op in case.operations] == paths


def test_methods_headers_and_queries(tmp_path: Path) -> None:
    headers = {
        "X-Data-Parallel-Rank": "1",
        "Authorization": "Bearer sk-1",
        "X-Odd": "kept",
    }
    case = batch(
        tmp_path,
        {
            "method": "GET",
            "url": "http://h/v1/models?api_key=secret&a=1",
            "headers": headers,
        },
        {"method": "delete", "url": "/v1/responses/resp_1"},
    )
    first, second = case.operations
    assert (first.method, first.path, first.query) == ("GET", "/v1/models", "a=1")
    assert first.headers == {"X-Data-Parallel-Rank": "1", "X-Odd": "kept"}
    assert (second.method, second.path) == ("DELETE", "/v1/responses/resp_1")
    assert case.origin.dropped == {"credential": 1, "query": 1}
    assert any("credentials are left away" in note for note in case.origin.notes)
    assert "secret" not in case_text(case)
    assert "sk-1" not in case_text(case)


def test_an_adapter_s_name_stays(tmp_path: Path) -> None:
    load = {"lora_name": "mine", "lora_path": "adapters/mine"}
    case = batch(
        tmp_path,
        {"url": "/v1/load_lora_adapter", "body": load},
        {"url": "/v1/completions", "body": {"model": "mine", "prompt": "x"}},
        {"url": "/v1/completions", "body": {"model": "other", "prompt": "x"}},
    )
    assert json.loads(sent(case.operations[0])[1]) == load
    models = [json.loads(sent(op)[1])["model"] for op in case.operations[1:]]
    assert models == ["mine", "tiny"]


def test_a_public_address_is_not_asked_and_that_is_said(tmp_path: Path) -> None:
    part = {
        "type": "image_url",
        "image_url": {"url": "https://a.example/x.png", "detail": "low"},
    }
    remote = {"remote_host": "10.1.2.3", "remote_port": 7}
    asked = {
        "messages": [{"role": "user", "content": [part]}],
        "kv_transfer_params": remote,
    }
    case = batch(tmp_path, {"url": "/v1/chat/completions", "body": asked})
    op = case.operations[0]
    assert op.messages is not None
    assert op.messages[0].parts()[0].detail == "low"
    assert op.parameters["kv_transfer_params"] == {
        "remote_host": "127.0.0.1",
        "remote_port": 7,
    }
    told = " ".join(case.origin.notes)
    assert "pictures were given by address" in told
    assert "named another host" in told


CURL = """#!/bin/bash
# curl in a comment
MODEL=some/model
export HOST="localhost:8000"
curl -s http://$HOST/v1/chat/completions \\
  -H "Content-Type: application/json" -H 'Authorization: Bearer sk-1' \\
  -d '{ "model": "some/model", "messages": [{"role": "user", "content": "it'"'"'s"}] }' | jq .
curl "http://${HOST}/v1/models?x=1" && curl -X DELETE http://localhost/v1/responses/resp_1
curl http://localhost:8000/generate --json "{\\"text\\": \\"$MODEL\\"}"
curl http://localhost:8000/v1/completions -d @- <<'EOF'
{"model": "m", "prompt": "x"}
EOF
curl http://localhost:8000/v1/completions -d "$(cat prompt.json)"
curl http://localhost:8000/v1/audio/transcriptions -F model=m -F file=@a.wav -F 'language=en'
"""


def test_a_script_of_curl_commands_is_read_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"\xffRIFF")
    (tmp_path / "report.sh").write_text(CURL)
    case = read(tmp_path / "report.sh", SERVER).case
    assert case.origin.format == "curl"
    told = [(op.method, op.path) for op in case.operations]
    assert told == [
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/generate"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/audio/transcriptions"),
    ]
    chat, models, _, generate, plain, audio = case.operations
    assert sent(chat)[1] == (
        b'{ "model": "tiny", "messages": [{"role": "user", "content": "it\'s"}] }'
    )
    assert models.query == "x=1"
    assert sent(generate)[1] == b'{"text": "some/model"}'
    assert sent(plain)[1] == b'{"model": "tiny", "prompt": "x"}'
    assert audio.form is not None
    assert [part.name for part in audio.form] == ["model", "file", "language"]
    assert case.origin.left_out == {
        "a variable of the shell that the script does not set": 1
    }


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": "m", "messages": []}, "/v1/chat/completions"),
        ({"prompt": "x", "model": "m"}, "/v1/completions"),
        ({"text": "x", "sampling_params": {}}, "/generate"),
        ({"input_ids": [1]}, "/generate"),
        ({"token_ids": [1], "sampling_params": {}}, "/inference/v1/generate"),
        ({"input": "x"}, "/v1/embeddings"),
        ({"input": "x", "max_output_tokens": 3}, RESPONSES),
    ],
)
def test_a_body_by_itself(tmp_path: Path, fields: dict[str, Any], path: str) -> None:
    (tmp_path / "body.json").write_text(json.dumps(fields, indent=2))
    case = read(tmp_path / "body.json", SERVER).case
    assert [op.path for op in case.operations] == [path]


def test_what_a_proxy_saw_with_names_that_a_server_gave() -> None:
    exchanges = [
        Exchange(
            "POST",
            RESPONSES,
            [("User-Agent", "me"), ("X-A", "b")],
            b'{"input":"a"}',
            begin=0.0,
            end=1.0,
            status=200,
            answer='{"id": "resp_123456", "status": "x"}',
        ),
        Exchange(
            "POST",
            RESPONSES,
            [],
            b'{"input":"b","previous_response_id":"resp_123456"}',
            begin=2.0,
            end=3.0,
            status=200,
            answer="{}",
        ),
        Exchange(
            "GET",
            f"{RESPONSES}/resp_123456",
            [],
            b"",
            begin=4.0,
            status=None,
            left=True,
        ),
        Exchange("GET", "/health", [], b"", begin=4.5, end=6.0, leave_s=1.5, left=True),
    ]
    case = captured(exchanges, SERVER).case
    first, second, third, last = case.operations
    assert first.headers == {"X-A": "b"}
    assert second.values == {"v1": "r1.id"}
    assert third.path == RESPONSES + "/${v1}"
    assert (third.leave, last.leave) == ("sent", "1.500s")
    assert (
        json.loads(sent(second, {"r1": '{"id": "new"}'})[1])["previous_response_id"]
        == "new"
    )


def test_what_is_sent_as_it_is_has_no_words_left_when_it_is_anonymised(
    tmp_path: Path,
) -> None:
    case = batch(
        tmp_path,
        {
            "url": "/v1/completions",
            "body": '{"prompt": "Miller was here", "x": "Smith\\"s",',
        },
        '{"url": "/v1/completions", "body": {"prompt": "Miller \\ud800"}}',
        {
            "url": "/v1/completions?who=Miller%20S&level=1",
            "body": "plain words of Miller",
            "headers": {"X-Tenant": "Miller & Co", "X-Rank": "1"},
        },
    )
    assert [op.apart for op in case.operations] == [False] * 3
    hidden = anonymise(read(tmp_path / "requests.jsonl", SERVER))
    text = case_text(hidden.case.model_copy(update={"origin": Origin()}))
    for word in ("Miller", "Smith", "here", "words"):
        assert word not in text
    assert '"prompt": ' in (hidden.case.operations[0].body or "")
    last = hidden.case.operations[2]
    assert (last.headers["X-Rank"], last.query.rpartition("&")[2]) == ("1", "level=1")


def test_a_body_taken_apart() -> None:
    op = Operation(
        id="r", body='{"model": "m", "n": 2, "stream": true, "messages": []}'
    )
    told = opened(op)
    assert (told.parameters, told.stream, told.messages, told.body) == (
        {"n": 2},
        True,
        [],
        None,
    )
    assert opened(Operation(id="r", body="{")).body == "{"


def test_a_file_of_nothing_known_says_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("no curl here, nor anything\n")
    with pytest.raises(UsageError, match="a script of curl commands"):
        read(tmp_path / "x.txt", SERVER)


# ---------------------------------------------------------------------- over the wire


def played(
    operations: list[Operation], reply: Any, folder: Path
) -> tuple[Any, list[RequestRecord]]:
    async def run() -> tuple[Sending, list[RequestRecord]]:
        async with serving(reply) as server:
            traffic = Traffic(server.url, "tiny", Recorder(folder))
            sending = Sending(traffic, {}, 10.0, "fast", bodies=True)
            await sending.perform(operations)
            await traffic.close()
            return sending, traffic.recorder.evidence.requests

    return asyncio.run(run())


EVENTS = {
    RESPONSES: [
        {"type": "response.created", "response": {"id": "resp_abc"}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": "b"},
        {
            "type": "response.completed",
            "response": {"status": "completed", "output": []},
        },
    ],
    "/v1/messages": [
        {"type": "message_start", "message": {"id": "msg_1"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}},
        {"type": "message_stop"},
    ],
    "/generate": [{"text": "a", "meta_info": {}}, {"text": "ab", "meta_info": {}}],
    "/inference/v1/generate": [
        {"choices": [{"index": 0, "token_ids": [1]}]},
        {"choices": [{"index": 0, "token_ids": [2]}]},
    ],
}


@pytest.mark.parametrize("path", EVENTS)
def test_any_stream_counts_pieces_and_may_be_left(path: str, tmp_path: Path) -> None:
    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for event in EVENTS[path]:
            writer.write(f"data: {json.dumps(event)}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(0.02)

    operations = [
        Operation(id="a", path=path, parameters={"stream": True}),
        Operation(id="b", path=path, parameters={"x": 1}, leave="first-token"),
        Operation(id="c", path=path, parameters={"x": 1}, leave="tokens>=2"),
        Operation(id="d", after=["a.first-token"], path=path, parameters={"x": 1}),
    ]
    _, records = played(operations, reply, tmp_path)
    by = {record.label: record for record in records}
    assert by["a"].pieces == 2
    assert by["a"].error == "", "no [DONE] is promised of these"
    assert (by["b"].left, by["b"].pieces) == (True, 1)
    assert (by["c"].left, by["c"].pieces) == (True, 2)
    if path != "/inference/v1/generate":
        assert by["a"].text == "ab"


def test_a_stream_of_messages_is_told_by_its_blocks(tmp_path: Path) -> None:
    def block(kind: str, index: int, **more: object) -> dict[str, object]:
        return {"type": f"content_block_{kind}", "index": index, **more}

    tool = {"type": "tool_use", "name": "f", "input": {}}
    pieces = [{"type": "input_json_delta", "partial_json": p} for p in ('{"a"', ": 1}")]
    thought = {"type": "thinking_delta", "thinking": "hm"}
    usage = {"input_tokens": 3, "output_tokens": 0}
    events = [
        {"type": "message_start", "message": {"usage": usage}},
        block("delta", 0, delta=thought),
        block("start", 1, content_block={"type": "text", "text": ""}),
        block("delta", 1, delta={"type": "text_delta", "text": "hi"}),
        block("start", 2, content_block=tool),
        *(block("delta", 2, delta=piece) for piece in pieces),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 7},
        },
        {"type": "message_stop"},
    ]

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        writer.write(STREAM_HEAD + "".join(lines).encode())

    asked = Operation(id="a", path="/v1/messages", parameters={"stream": True})
    _, (record,) = played([asked], reply, tmp_path)
    (choice,) = record.choices
    (call,) = choice.tool_calls
    assert (choice.reasoning, choice.text) == ("hm", "hi")
    assert (call.name, call.arguments) == ("f", '{"a": 1}')
    assert (choice.finish_reason, choice.finishes) == ("tool_use", 1)
    assert (record.prompt_tokens, record.completion_tokens) == (3, 7)


def test_a_client_leaves_by_the_clock(tmp_path: Path) -> None:
    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    began = time.monotonic()
    _, records = played([Operation(id="a", leave="0.2s")], reply, tmp_path)
    assert records[0].left
    assert not records[0].timed_out
    assert 0.15 < time.monotonic() - began < 50


def test_a_later_request_waits_for_the_value_and_is_not_sent_without_it(
    tmp_path: Path,
) -> None:
    asked: list[bytes] = []

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(request)
        await asyncio.sleep(0.05)
        writer.write(http(200, b'{"id": "resp_1"}'))

    operations = [
        Operation(id="a", path=RESPONSES),
        Operation(id="b", path=RESPONSES + "/${v}", method="GET", values={"v": "a.id"}),
        Operation(id="c", path=RESPONSES, values={"v": "a.nothing.there"}),
        Operation(id="d", after=["b.end", "c.end"], path="/health", method="GET"),
    ]
    sending, _ = played(operations, reply, tmp_path)
    lines = [request.split(b"\r\n")[0] for request in asked]
    assert lines == [
        b"POST /v1/responses HTTP/1.1",
        b"GET /v1/responses/resp_1 HTTP/1.1",
        b"GET /health HTTP/1.1",
    ]
    assert sending.unsent == ["c"]
    assert sending.bodies["a"] == '{"id": "resp_1"}'
    assert sending.headers["a"]["content-type"] == "application/json"
    assert sending.headers.keys() == {"a", "b", "d"}


def test_answers_in_other_forms_are_told(tmp_path: Path) -> None:
    answers = {
        "/generate": {
            "text": "hi",
            "output_ids": [4, 5],
            "meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": 2},
        },
        "/v1/messages": {
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "tool_use", "name": "f", "input": {"a": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 2},
        },
        RESPONSES: {
            "status": "completed",
            "output": [
                {
                    "type": "reasoning",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "hm"}],
                },
                {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            ],
        },
        "/v1/embeddings": {"data": [{"embedding": [1.0]}]},
        "/odd": [1, "x", {"choices": "none"}],
    }

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        path = request.split(b" ")[1].decode()
        writer.write(http(200, json.dumps(answers[path]).encode()))

    operations = [Operation(id=f"r{n}", path=path) for n, path in enumerate(answers)]
    _, records = played(operations, reply, tmp_path)
    by = {record.path: record for record in records}
    assert all(record.answered for record in records)
    assert by["/generate"].choices[0].token_ids == [4, 5]
    assert by["/generate"].completion_tokens == 2
    told = by["/v1/messages"].choices[0]
    assert (told.text, told.tool_calls[0].arguments) == ("hi", '{"a": 1}')
    assert by["/v1/messages"].completion_tokens == 2
    assert (by[RESPONSES].choices[0].text, by[RESPONSES].choices[0].reasoning) == (
        "hi",
        "hm",
    )
    assert by["/odd"].choices == []
