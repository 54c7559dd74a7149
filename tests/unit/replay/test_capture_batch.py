"""OpenAI batch files, cases of ours, and what is none of the formats."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_har import CHAT, SERVER, chat, data_url, entry, har, shown, write
from mmrepro.base.errors import UsageError
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import write_case


def line(body: Any, **more: Any) -> str:
    told = {
        "custom_id": "planted-id",
        "method": "POST",
        "url": CHAT,
        "body": body,
        **more,
    }
    return json.dumps(told) + "\n"


def batch(folder: Path, *lines: str) -> Path:
    return write(folder, "".join(lines), "requests.jsonl")


def test_one_waits_for_the_other_unless_some_may_run_at_once(tmp_path: Path) -> None:
    file = batch(tmp_path, *(line(chat(text)) for text in "abc"))
    case = read(file, SERVER).case
    assert [op.after for op in case.operations] == [[], ["r1.end"], ["r2.end"]]
    assert case.origin.format == "batch"
    assert case.origin.dropped == {"custom_id": 3}
    assert "each request waits for the one before it" in case.origin.notes[0]
    assert "planted" not in case.model_dump_json()
    case = read(file, SERVER, concurrency=2).case
    assert [op.after for op in case.operations] == [
        [],
        ["r1.sent", "running<=1"],
        ["r2.sent", "running<=1"],
    ]


def test_the_same_requests_as_a_har_and_as_a_batch_are_the_same(tmp_path: Path) -> None:
    sent = [
        chat("one", stop=["x"]),
        chat([shown(data_url(1)), {"type": "text", "text": "two"}], stream=True),
        chat([shown("https://pictures.example/1.png")]),
    ]
    recorded = read(
        write(tmp_path, har([entry(s, at=n) for n, s in enumerate(sent)])), SERVER
    )
    listed = read(batch(tmp_path, *map(line, sent)), SERVER)
    told = {"at_s", "recorded"}
    assert [op.model_dump(exclude=told) for op in listed.case.operations] == [
        op.model_dump(exclude=told) for op in recorded.case.operations
    ]
    assert listed.case.images == recorded.case.images
    assert dict(listed.contents) == dict(recorded.contents)


def test_broken_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    file = batch(
        tmp_path,
        line(chat()),
        "{broken\n",
        "\n",
        "[]\n",
        line(None),
        line(chat(), url="/v1/embeddings"),
        line(chat(), method="GET"),
        line(chat()).replace('"max_tokens": 4', '"max_tokens": NaN'),
    )
    case = read(file, SERVER).case
    first, none, embeddings, listed, odd = case.operations
    assert first.messages is not None
    assert body(none, {}, "tiny") == b"", "null is no body"
    assert (embeddings.path, listed.method) == ("/v1/embeddings", "GET")
    assert json.loads(body(odd, {}, "tiny"))["max_tokens"] != 4, "NaN stays what it was"
    assert case.origin.left_out == {
        "a line that is no JSON": 1,
        "a line that is no request": 1,
    }


def test_the_answers_of_a_batch_are_no_requests(tmp_path: Path) -> None:
    answer = {"id": "b", "custom_id": "x", "response": {"status_code": 200, "body": {}}}
    with pytest.raises(
        UsageError, match="holds the answers of a batch, not its requests"
    ):
        read(batch(tmp_path, json.dumps(answer)), SERVER)


def test_a_case_stays_as_it_is(tmp_path: Path) -> None:
    file = write(tmp_path, har([entry(chat([shown(data_url(1))]))]))
    captured = read(file, SERVER)
    write_case(captured.case, tmp_path / "finding", captured.contents)
    other = SERVER.model_copy(update={"release": "0.24.0"})
    for given in (tmp_path / "finding", tmp_path / "finding" / "case.json"):
        again = read(given, other)
        assert again.case == captured.case, "its own server stays"
        assert dict(again.contents) == dict(captured.contents)
    with pytest.raises(UsageError, match=r"is a folder without a case\.json"):
        read(tmp_path, SERVER)
    (tmp_path / "broken.json").write_text('{"schema_version": 1, "operations": 7}')
    with pytest.raises(UsageError, match="is no case"):
        read(tmp_path / "broken.json", SERVER)


def test_what_is_none_of_the_formats_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read(tmp_path / "absent", SERVER)
    for data in (
        b"hello\n",
        b"\x00" * 100,
        b'{"a": 1}',
        b"PK\x03\x04",
        b"[" * 1000,
        b'{"log": 1}',
    ):
        with pytest.raises(UsageError, match="is none of what can be read: a HAR"):
            read(write(tmp_path, data, "thing"), SERVER)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        read(write(tmp_path, b"\x80\x04\x95\x00\x00", "dump.pkl"), SERVER)
    assert "is a pickle" in told.value.message
    assert told.value.hint.endswith("--log-requests --log-requests-level 3")


def test_an_address_that_is_no_path_is_left_out(tmp_path: Path) -> None:
    urls = (CHAT, "4", "http://[", "chat/completions")
    file = batch(tmp_path, *(line(chat("hello"), url=url) for url in urls))
    captured = read(file, SERVER)
    assert [op.path for op in captured.case.operations] == [CHAT]
    assert captured.case.origin.left_out == {"an entry without an address": 3}
