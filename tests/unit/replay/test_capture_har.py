"""From a HAR to a case: what is kept, what never is, and what is said of a broken
one."""

import base64
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from made_up_har import (
    CHAT,
    GONE,
    HOST,
    SERVER,
    chat,
    data_url,
    entry,
    har,
    read_entries,
    shown,
    stream,
    write,
)
from mmrepro.base.errors import UsageError
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import case_text, pictures, read_case, write_case


def bodies(captured: Captured, folder: Path) -> list[dict[str, Any]]:
    """As they would go over the wire again."""
    write_case(captured.case, folder, captured.contents)
    case, at = read_case(folder)
    made = pictures(case, at)
    return [json.loads(body(op, made, "m")) for op in case.operations]


# ---------------------------------------------------------------------- what is kept


def test_bodies_go_over_the_wire_as_they_were_recorded(tmp_path: Path) -> None:
    sent = [
        chat(
            'It\'s "quoted"\n\\ 漢字 🙂 \x00',
            temperature=0.5,
            n=2,
            stop=["a", "b"],
            seed=7,
        ),
        chat(
            [shown(data_url(1)), {"type": "text", "text": "what?"}, shown(data_url(2))]
        ),
        chat([shown(data_url(1))], stream=True, stream_options={"include_usage": True}),
        {
            "model": "m",
            "messages": [{"role": "system", "content": "s"}],
            "cache_salt": "x",
        },
        chat(
            [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]
        ),
        chat(
            "t",
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        ),
    ]
    captured = read_entries(tmp_path, *(entry(one, at=n) for n, one in enumerate(sent)))
    assert bodies(captured, tmp_path / "case") == sent
    assert captured.case.operations[1].images == ["i1", "i2"]
    assert captured.case.operations[2].images == ["i1"], "the same picture has one name"
    assert len(captured.contents) == 2


def test_what_engines_are_asked_is_played_and_nothing_else_is(tmp_path: Path) -> None:
    plain = {"model": "m", "prompt": "once", "max_tokens": 3}
    ids = {"model": "m", "prompt": [1, 2, 3]}
    own = {"text": "raw", "sampling_params": {"max_new_tokens": 3}}
    prefix = f"http://{HOST}/gateway"
    captured = read_entries(
        tmp_path,
        entry(plain, url=f"{prefix}/v1/completions", at=0),
        entry(ids, url=f"{prefix}/v1/completions", at=1),
        entry(own, url=f"http://{HOST}/generate", at=2),
        entry("", method="GET", url=f"http://{HOST}/health"),
        entry(url=f"http://{HOST}/v1/embeddings"),
        entry(url="http://elsewhere.example/track"),
    )
    operations = captured.case.operations
    assert [op.path for op in operations] == [
        "/v1/completions",
        "/health",
        "/v1/embeddings",
        "/v1/completions",
        "/generate",
    ]
    assert [op.prompt for op in operations] == ["once", None, None, [1, 2, 3], None]
    assert operations[4].parameters == own
    assert (operations[1].method, body(operations[1], {}, "tiny")) == ("GET", b"")
    assert captured.case.origin.left_out == {"POST to another path": 1}
    assert "2 requests are sent without what a gateway put" in " ".join(
        captured.case.origin.notes
    )
    assert captured.case.origin.read == 6


def test_answers_are_shown(tmp_path: Path) -> None:
    captured = read_entries(
        tmp_path,
        entry(at=0, took=0.25),
        entry(chat(stream=True), at=1, response=stream(["a", "b", "", "c"])),
        entry(chat(stream=True), at=2, response=stream(["x"], encoded=True)),
        entry(at=3, response={"status": 400, "content": {"text": "too long"}}),
    )
    first, second, third, refused = (op.recorded for op in captured.case.operations)
    assert first is not None
    assert second is not None
    assert third is not None
    assert refused is not None
    assert (first.status, first.text, first.finish_reason) == (200, "fine", "length")
    assert (first.prompt_tokens, first.completion_tokens, first.seconds) == (7, 4, 0.25)
    assert (second.text, second.finish_reason, second.completion_tokens) == (
        "abc",
        "stop",
        2,
    )
    assert third.text == "x"
    assert (refused.status, refused.text) == (400, "too long")
    assert [op.leave for op in captured.case.operations] == [""] * 4


def test_a_status_is_kept_where_http_has_it(tmp_path: Path) -> None:
    statuses = [100, 599, 99, 600, True, "200", None]
    captured = read_entries(
        tmp_path,
        *(
            entry(at=at, response={"status": status, "content": {"text": "x"}})
            for at, status in enumerate(statuses)
        ),
    )
    kept = [op.recorded.status for op in captured.case.operations if op.recorded]
    assert kept == [100, 599, *[None] * 5]


def test_bodies_in_base64_and_other_charsets(tmp_path: Path) -> None:
    one = entry()
    one["request"]["postData"] = {
        "mimeType": "application/json; charset=latin-1",
        "encoding": "base64",
        "text": base64.b64encode(
            '{"messages": [], "x": "ü"}'.encode("latin-1")
        ).decode(),
    }
    captured = read_entries(tmp_path, one)
    assert captured.case.operations[0].parameters == {"x": "ü"}


def test_a_picture_by_address_becomes_noise_of_one_identity(tmp_path: Path) -> None:
    here, there = "https://pictures.example/a.png", "file:///home/somebody/b.png"
    captured = read_entries(
        tmp_path,
        entry(chat([shown(here), shown(there)]), at=0),
        entry(chat([shown(here)]), at=1),
        entry(
            chat([{"type": "video_url", "video_url": {"url": there}}, shown(here)]),
            at=2,
        ),
    )
    first, second, third = (op.images for op in captured.case.operations)
    assert first == ["i1", "i2"]
    assert second == third == ["i1"]
    assert {image.kind for image in captured.case.images.values()} == {"noise"}
    told = " ".join(captured.case.origin.notes)
    assert "4 pictures were given by address" in told
    assert "nothing is fetched" in told
    assert "1 other parts of messages were nothing but an address" in told
    assert "example" not in case_text(captured.case)
    assert "somebody" not in case_text(captured.case)


def test_a_broken_picture_stays_broken(tmp_path: Path) -> None:
    """It may be what made the server fail."""
    junk = "data:image/png;base64," + base64.b64encode(b"no picture").decode()
    odd = "data:image/png;base64,%%%not base64"
    unusual = [
        f"data:image/png;base64,{text}" for text in ("AAAA\nBBBB", "AR==", "AAAA=")
    ]
    sent = chat([shown(junk), shown(odd), *map(shown, unusual)])
    captured = read_entries(tmp_path, entry(sent))
    assert bodies(captured, tmp_path / "case") == [sent]
    content = captured.case.operations[0].messages
    assert content is not None
    assert content[0].parts()[1].raw is not None


# ---------------------------------------------------------------------- what never is


def test_no_secret_of_a_har_goes_further(tmp_path: Path) -> None:
    secrets: list[str] = []

    def secret() -> str:
        secrets.append(f"planted{len(secrets):04d}secret")
        return secrets[-1]

    asked = chat(
        [
            {"type": "text", "text": "hi"},
            shown(f"https://{secret()}@host.example/{secret()}"),
        ],
        user=secret(),
        api_key=secret(),
        metadata={"who": secret()},
        safety_identifier=secret(),
        extra_headers={"Authorization": secret()},
        mm_processor_kwargs={"hf_token": secret(), "num_crops": 4},
        kv_transfer_params={"remote_host": secret()},
        model=secret(),
    )
    one = entry(asked, url=f"http://{secret()}:{secret()}@{HOST}{CHAT}?key={secret()}")
    pair = [{"name": secret(), "value": secret()}]
    for side in ("request", "response"):
        one[side] |= {"headers": pair, "cookies": pair, "comment": secret()}
    one["request"] |= {"queryString": pair, "httpVersion": secret()}
    one["request"]["postData"]["params"] = pair
    one["response"] |= {
        "statusText": secret(),
        "redirectURL": secret(),
        "_extra": {"a": secret()},
    }
    one["response"]["content"]["text"] = json.dumps(
        {
            "id": secret(),
            "system_fingerprint": secret(),
            "choices": [{"message": {"content": "fine"}, "logprobs": secret()}],
        }
    )
    one |= {"serverIPAddress": secret(), "connection": secret(), "comment": secret()}
    one |= {
        "pageref": secret(),
        "_initiator": {"url": secret()},
        "cache": {"comment": secret()},
    }
    document = har([one])
    document["log"] |= {
        "comment": secret(),
        "pages": [{"title": secret(), "id": secret()}],
    }
    captured = read(write(tmp_path, document), SERVER)
    kept = case_text(captured.case) + "".join(map(str, captured.contents.values()))
    assert [one for one in secrets if one in kept] == []
    operation = captured.case.operations[0]
    assert operation.parameters["mm_processor_kwargs"] == {"num_crops": 4}
    assert operation.parameters["kv_transfer_params"] == {"remote_host": "127.0.0.1"}
    told = [operation.parameters["user"], operation.parameters["metadata"]["who"]]
    assert [len(one) for one in told] == [17, 17], "other texts of the same length"
    dropped = captured.case.origin.dropped
    assert dropped["header"] == 1
    assert dropped["cookie"] == 1
    assert dropped["query"] == 1
    assert dropped["credential"] == 4
    assert dropped["address"] == 1

    with pytest.raises(UsageError) as told:
        read(write(tmp_path, json.dumps(document)[:-30]), SERVER)
    said = f"{told.value.message} {told.value.hint} {told.value.detail}"
    assert [one for one in secrets if one in said] == []


def test_an_answer_that_repeats_a_key_is_kept_without_it(tmp_path: Path) -> None:
    told = {
        "status": 401,
        "content": {"text": "Incorrect API key: sk-plantedsecret000000000001"},
    }
    captured = read_entries(tmp_path, entry(response=told))
    assert "planted" not in case_text(captured.case)


def test_a_schema_may_have_a_property_called_password(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"password": {"type": "string"}, "user": {}},
    }
    tools = [{"type": "function", "function": {"name": "login", "parameters": schema}}]
    captured = read_entries(tmp_path, entry(chat("hi", tools=tools)))
    assert captured.case.operations[0].parameters["tools"] == tools


# ---------------------------------------------------------------------- hosts


def test_several_hosts_are_an_error_until_one_is_chosen(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        har(
            [
                entry(chat("a"), at=0),
                entry(chat("b"), at=1, url=f"https://me:secret@API.example{CHAT}"),
                entry(chat("c"), at=2),
                entry(url="http://third.example/other"),
            ]
        ),
    )
    with pytest.raises(UsageError) as told:
        read(file, SERVER)
    assert told.value.message == (
        "it.har has requests to several hosts: 127.0.0.1:8000 (2), api.example:443 (1)."
    )
    assert told.value.hint == "choose one: --host 127.0.0.1:8000"
    for host, texts in (
        (HOST, ["a", "c"]),
        ("api.example", ["b"]),
        ("127.0.0.1", ["a", "c"]),
    ):
        captured = read(file, SERVER, host=host)
        messages = [op.messages for op in captured.case.operations]
        assert [m and m[0].content for m in messages] == texts
        assert captured.case.origin.left_out["another host"] == 3 - len(texts)
    with pytest.raises(UsageError, match="no request that can be played, of 4"):
        read(file, SERVER, host="127.0.0.1:8001")
    with pytest.raises(UsageError, match="no HOST"):
        read(file, SERVER, host="[")


# --------------------------------------------------------------- clients that went away


def test_clients_that_went_away(tmp_path: Path) -> None:
    captured = read_entries(
        tmp_path,
        entry(at=0),
        entry(chat("gone"), at=1, took=0.3, response=GONE),
        entry(
            chat("gone", stream=True),
            at=2,
            response=stream(["a", "b", "c"], done=False),
        ),
        entry(
            chat("no answer kept", stream=True),
            at=3,
            response={"status": 200, "content": {}},
        ),
        entry(
            chat("refused"),
            at=4,
            response={"status": 0, "_error": "net::ERR_CONNECTION_RESET"},
        ),
        entry(chat("in vain"), at=5, took=30.0, response=GONE),
        creator="Chrome",
    )
    assert [op.leave for op in captured.case.operations] == [
        "",
        "sent",
        "tokens>=3",
        "",
        "",
        "",
    ]


def messages_stream(*kinds: str) -> dict[str, Any]:
    """A stream of Anthropic's Messages, or of OpenAI's Responses: it has no [DONE]."""
    events = [f'event: {kind}\ndata: {{"type": "{kind}"}}\n\n' for kind in kinds]
    return {"status": 200, "content": {"text": "".join(events)}}


@pytest.mark.parametrize(
    ("kinds", "creator", "left"),
    [
        (("message_start", "content_block_delta", "message_stop"), "Chrome", False),
        (("response.created", "response.completed"), "Chrome", False),
        (("response.created", "response.incomplete"), "Chrome", False),
        (("message_start", "content_block_delta"), "Chrome", True),
        # Our own proxy notes who leaves.
        (("message_start", "of_tomorrow"), "mmrepro", False),
    ],
)
def test_a_stream_ends_by_its_api_s_last_event(
    tmp_path: Path, kinds: tuple[str, ...], creator: str, left: bool
) -> None:
    asked = {**chat(stream=True), "max_tokens": 8}
    url = f"http://{HOST}/v1/messages"
    streamed = entry(asked, url=url, response=messages_stream(*kinds))
    captured = read_entries(tmp_path, streamed, entry(at=3), creator=creator)
    assert bool(captured.case.operations[0].leave) is left


def test_of_clients_that_left_mitmproxy_tells_by_its_order_only(tmp_path: Path) -> None:
    """As version 11 wrote it: the time of a client that left is that of the
    connection."""
    gone = {"took": 0.001, "response": GONE}
    captured = read_entries(
        tmp_path,
        entry(chat("a"), at=0, took=1),
        entry(chat("left, and b goes on"), at=0.2, **gone),
        entry(chat("b"), at=0.1, took=3),
        entry(chat("c"), at=21, took=1),
        entry(chat("in vain"), at=2.5, **gone),
        entry(chat("d"), at=23, took=1),
        entry(chat("hung"), at=24.5, **gone),
        entry(chat("hung too"), at=25, **gone),
        creator="mitmproxy",
    )
    operations = {
        str(op.messages and op.messages[0].content): op
        for op in captured.case.operations
    }
    assert [text for text, op in operations.items() if op.leave] == [
        "left, and b goes on"
    ]
    left, b, vain, c, hung, last = (
        operations[text]
        for text in ("left, and b goes on", "b", "in vain", "c", "hung", "hung too")
    )
    assert f"{b.id}.end" in c.after
    assert f"{left.id}.end" in vain.after, "it left before a ended, or soon after"
    assert f"{vain.id}.end" not in " ".join(
        op.model_dump_json() for op in operations.values()
    )
    assert last.after[-1] == f"{hung.id}.sent"


def test_a_stream_that_mitmproxy_did_not_keep_has_no_end(tmp_path: Path) -> None:
    one = entry(
        chat("gone", stream=True), response={"status": 200, "content": {"text": ""}}
    )
    one["timings"]["receive"] = 0
    captured = read_entries(tmp_path, one, entry(at=1), creator="mitmproxy")
    assert captured.case.operations[0].leave == "first-token"


# ---------------------------------------------------------------------- times


def test_barriers_say_what_ran_beside_what(tmp_path: Path) -> None:
    captured = read_entries(
        tmp_path,
        entry(at=0.0, took=1.0),
        entry(at=0.5, took=1.0),
        entry(at=1.2, took=0.1),
        entry(at=2.0, took=0.1),
    )
    operations = captured.case.operations
    assert [op.after for op in operations] == [
        [],
        ["r1.sent"],
        ["r1.end", "r2.sent"],
        ["r2.end", "r3.end"],
    ]
    assert [op.at_s for op in operations] == [0.0, 0.5, 1.2, 2.0]


def test_what_mitmproxy_took_to_connect_is_not_part_of_a_request(
    tmp_path: Path,
) -> None:
    first, second = entry(at=0.0, took=0.105), entry(at=0.102)
    first["timings"]["connect"] = 5.0
    after = [
        read_entries(tmp_path, first, second, creator=who).case.operations[1].after
        for who in ("mitmproxy", "Firefox")
    ]
    assert after == [["r1.end"], ["r1.sent"]]


def test_clocks_that_cannot_be_believed(tmp_path: Path) -> None:
    late, early, negative, none = (entry(chat(t), at=n) for n, t in enumerate("abcd"))
    early["startedDateTime"] = "1970-01-01T00:00:01Z"
    negative["time"] = -5
    none["startedDateTime"] = "yesterday"
    last = entry(chat("e"), at=9)
    captured = read_entries(tmp_path, late, early, negative, none, last)
    operations = captured.case.operations
    assert [op.messages and op.messages[0].content for op in operations] == list(
        "abcde"
    )
    assert [op.at_s for op in operations] == [0.0, 0.0, 2.0, 2.0, 9.0]
    assert (
        "2 requests have no time that can be believed" in captured.case.origin.notes[0]
    )
    backwards = [entry(chat("late"), at=5), entry(chat("early"), at=1)]
    operations = read_entries(tmp_path, *backwards).case.operations
    assert [op.messages and op.messages[0].content for op in operations] == [
        "early",
        "late",
    ]


def test_without_any_times_one_waits_for_the_other(tmp_path: Path) -> None:
    entries = [entry() for _ in range(3)]
    for one in entries:
        del one["startedDateTime"], one["time"]
    captured = read_entries(tmp_path, *entries)
    assert [op.after for op in captured.case.operations] == [[], ["r1.end"], ["r2.end"]]
    assert "no times" in captured.case.origin.notes[0]


def test_only_the_last_ones_are_kept_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("mmrepro.traffic.capture.read"), "LIMIT", 2
    )
    entries = [entry(chat([shown(data_url(n))]), at=n) for n in range(5)]
    captured = read_entries(tmp_path, *entries)
    assert (
        len(captured.case.operations)
        == len(captured.case.images)
        == len(captured.contents)
        == 2
    )
    assert captured.case.operations[0].images == ["i4"]
    assert captured.case.origin.left_out == {"before the last ones, which are kept": 3}
