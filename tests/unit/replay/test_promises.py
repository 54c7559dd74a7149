"""What parameters promise, and what a case expects: a server that lies is caught, an
honest one is let be. The answers come over HTTP, from a FAKE server, as an engine words
them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_server import STREAM_HEAD, http, serving
from mmrepro.base.errors import UsageError
from mmrepro.base.records import Moment
from mmrepro.engines import get_engine
from mmrepro.engines.models.script_file import Scripts
from mmrepro.search.oracle.expected import expected
from mmrepro.search.oracle.promises import loosened, misfit
from mmrepro.search.oracle.protocol import protocol
from mmrepro.traffic import Traffic
from mmrepro.traffic.case.expecting import expecting
from mmrepro.traffic.case.model import (
    CHAT,
    COMPLETIONS,
    Case,
    Expect,
    Operation,
    ServerWanted,
)
from mmrepro.traffic.case.sending import Played, PlayState, Sending
from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 3}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]


def answer(asked: dict[str, Any], *choices: dict[str, Any]) -> bytes:
    """As an OpenAI server words it. Of a choice: text, reasoning, calls, ids, tokens,
    offsets, finish, and whether a stream has no usage, as most have none."""
    chat = "messages" in asked
    told = [{"finish": "stop", "text": "", **choice} for choice in choices]
    count = sum(len(one.get("ids", one.get("tokens", one["text"]))) for one in told)
    usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
    whole = []
    for index, one in enumerate(told):
        calls = [
            {"id": "c", "function": {"name": n, "arguments": a}}
            for n, a in one.get("calls", [])
        ]
        inner: dict[str, Any] = {"content": one["text"], "tool_calls": calls}
        inner |= {"reasoning": one["reasoning"]} if "reasoning" in one else {}
        made: dict[str, Any] = {"index": index, "finish_reason": one["finish"]}
        made |= {"message": inner} if chat else {"text": one["text"]}
        made |= {"token_ids": one["ids"]} if "ids" in one else {}
        if "tokens" in one:
            tokens, values = one["tokens"], [-1.0] * len(one["tokens"])
            plain = {
                "tokens": tokens,
                "token_logprobs": values,
                "text_offset": one.get("offsets"),
            }
            content = [{"token": t, "logprob": -1.0} for t in tokens]
            made["logprobs"] = {"content": content} if chat else plain
        whole.append(made)
    if not asked.get("stream"):
        return http(200, json.dumps({"choices": whole, "usage": usage}).encode())
    events: list[Any] = []
    for made in whole:
        delta = made.pop("message", None)
        made |= {"delta": delta} if chat else {}
        events.append({"choices": [made]})
    if not any(one.get("no_usage") for one in told):
        events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(one)}\n\n" for one in events]
    return STREAM_HEAD + "".join([*lines, "data: [DONE]\n\n"]).encode()


def judged(
    operations: list[Operation],
    answers: dict[str, list[dict[str, Any]]],
    folder: Path,
    engine: str = "vllm",
    release: str = "0.32.0",
    args: tuple[str, ...] = (),
    model: str = "/some/model",
    scripts: Scripts | None = None,
) -> tuple[dict[str, list[str]], list[str]]:
    """Buckets of what the oracles say, with operations, and what they could not
    judge."""
    model = "text" if scripts else model
    server = ServerWanted(
        engine=engine, release=release, args=list(args), model=model, scripts=scripts
    )
    case = Case(server=server, operations=operations)
    order = iter([op.id for op in operations])

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(request.partition(b"\r\n\r\n")[2])
        writer.write(answer(asked, *answers[next(order)]))

    async def run() -> Played:
        async with serving(reply) as fake:
            traffic = Traffic(fake.url, "tiny", Recorder(folder))
            await Sending(traffic, {}, 10.0, "order").perform(operations)
            await traffic.close()
            return Played(state=PlayState.ENDED, evidence=traffic.recorder.evidence)

    played = asyncio.run(run())
    found = [f(case, played, get_engine(engine)) for f in (protocol, expected)]
    told = {
        s.bucket.rpartition("/")[2]: s.operations
        for one in found
        for s in one.sightings
    }
    return told, [text for one in found for text in one.unseen]


def plain(id: str = "r1", path: str = COMPLETIONS, **parameters: Any) -> Operation:
    stream = parameters.pop("stream", False)
    said = {"prompt": "x"} if path == COMPLETIONS else {"parameters": {"messages": []}}
    fields = {**said, "parameters": {**said.get("parameters", {}), **parameters}}
    return Operation(id=id, path=path, stream=stream, **fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parameters", "honest", "lie", "kind"),
    [
        (
            {"allowed_token_ids": [65, 66]},
            {"text": "AB", "ids": [65, 66]},
            {"text": "AC", "ids": [65, 67]},
            "allowed-token-ids",
        ),
        (
            {"logit_bias": {"65": -100}},
            {"text": "B", "ids": [66]},
            {"text": "AB", "ids": [65, 66]},
            "logit-bias",
        ),
        (
            {"logit_bias": {"65": 1e39}},
            {"text": "AA", "ids": [65, 65]},
            {"text": "AB", "ids": [65, 66]},
            "logit-bias",
        ),
        ({"stop": ["bc"]}, {"text": "ab"}, {"text": "abcd"}, "stop-text"),
        ({"stop": "bc"}, {"text": "b"}, {"text": "bc"}, "stop-text"),
        (
            {"max_tokens": 2},
            {"text": "ab", "ids": [1, 2], "finish": "length"},
            {"text": "ab", "ids": [1, 2, 3], "finish": "length"},
            "max-tokens",
        ),
        (
            {"logprobs": 1},
            {"text": "abc", "tokens": ["a", "bc"], "offsets": [0, 1]},
            {"text": "abc", "tokens": ["a", "bc"], "offsets": [0, 3]},
            "text-offset",
        ),
        (
            {"response_format": FORMAT},
            {"text": '{"a": 1}'},
            {"text": '{"a": "1"}'},
            "schema",
        ),
        (
            {"response_format": FORMAT},
            {"text": '{"a": 1}'},
            {"text": '{"a": 1'},
            "schema",
        ),
        (
            {"structured_outputs": {"choice": ["yes", "no"]}},
            {"text": "no"},
            {"text": "nope"},
            "schema",
        ),
        (
            {"structured_outputs": {"regex": "[0-9]{2}"}},
            {"text": "12"},
            {"text": "123"},
            "schema",
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            {"text": '{"a":2}'},
            {"text": "[]"},
            "schema",
        ),
    ],
)
def test_a_lie_is_caught_and_the_honest_answer_let_be(
    parameters: dict[str, Any],
    honest: dict[str, Any],
    lie: dict[str, Any],
    kind: str,
    stream: bool,
    tmp_path: Path,
) -> None:
    op = plain(stream=stream, **parameters)
    assert judged([op], {"r1": [honest]}, tmp_path / "a")[0] == {}
    told, _ = judged([op], {"r1": [lie]}, tmp_path / "b")
    assert told.pop(kind) == ["r1"]
    assert set(told) <= {"finish-length"}, (
        "an answer that is too long is told by its usage, too"
    )


def test_each_of_several_answers_is_held_to_it(tmp_path: Path) -> None:
    op = plain(n=2, stop=["z"])
    assert judged([op], {"r1": [{"text": "a"}, {"text": "b"}]}, tmp_path / "a")[0] == {}
    assert judged([op], {"r1": [{"text": "a"}, {"text": "z"}]}, tmp_path / "b")[0] == {
        "stop-text": ["r1"]
    }
    assert judged([op], {"r1": [{"text": "a"}]}, tmp_path / "c")[0] == {
        "choices": ["r1"]
    }
    limited = plain(n=2, max_tokens=1)
    long = [{"text": "ab", "finish": "length"}, {"text": "c", "finish": "length"}]
    assert judged([limited], {"r1": long}, tmp_path / "d")[0] == {"max-tokens": ["r1"]}


def test_the_tokens_of_a_bad_word_as_vllm_takes_them(tmp_path: Path) -> None:
    """Of a tiny model a byte is a token, so that the ids follow from the text as
    well."""
    op = plain(path=CHAT, bad_words=[" bc"])
    about = {"model": "qwen2-vl"}
    assert judged([op], {"r1": [{"text": "cab"}]}, tmp_path / "a", **about)[0] == {}
    told = judged([op], {"r1": [{"text": "abc"}]}, tmp_path / "b", **about)[0]
    assert told == {"bad-words": ["r1"]}
    untold = judged([op], {"r1": [{"text": "abc"}]}, tmp_path / "c")[0]
    assert untold == {}, "whose tokenizer is not at hand is not judged"
    old = plain(bad_words=["bc"])
    assert (
        judged(
            [old], {"r1": [{"text": "abc"}]}, tmp_path / "d", release="0.23.0", **about
        )[0]
        == {}
    )


@pytest.mark.parametrize(
    ("engine", "parameters", "text"),
    [
        ("sglang", {"allowed_token_ids": [66]}, "A"),  # it knows no such parameter
        ("sglang", {"stop": ["abc"]}, "abcd"),  # longer than it surely looks back
        ("lmdeploy", {"stop": ["b"]}, "abc"),
        ("lmdeploy", {"response_format": FORMAT}, "abc"),
        ("minivllm", {"logit_bias": {"65": -100}}, "A"),
        ("vllm", {"guided_json": SCHEMA}, "abc"),  # gone since 0.12
        ("vllm", {"stop": ["b"], "min_tokens": 3}, "abc"),
        ("vllm", {"stop": ["b"], "include_stop_str_in_output": True}, "ab"),
        ("vllm", {"response_format": FORMAT, "stop": ["}"]}, '{"a": 1'),
        (
            "vllm",
            {"logit_bias": {"66": 100}, "structured_outputs": {"choice": ["A"]}},
            "A",
        ),
        (
            "vllm",
            {"response_format": FORMAT},
            '{"a": 1}',
        ),  # minimum: not every backend holds to it
        ("vllm", {"response_format": {"type": "json_schema", "schema": SCHEMA}}, "x"),
    ],
)
def test_what_is_not_promised_is_not_asked(
    engine: str, parameters: dict[str, Any], text: str, tmp_path: Path
) -> None:
    choice = {"text": text, "ids": [ord(c) for c in text]}
    told = judged(
        [plain(**parameters)], {"r1": [choice]}, tmp_path, engine, get_release(engine)
    )[0]
    assert told == {}


def get_release(engine: str) -> str:
    return {
        "vllm": "0.32.0",
        "sglang": "0.5.23",
        "lmdeploy": "0.18.0",
        "minivllm": "0.1",
    }[engine]


def test_a_parser_of_reasoning_takes_the_form_away(tmp_path: Path) -> None:
    op, args = plain(path=CHAT, response_format=FORMAT), ("--reasoning-parser", "qwen3")
    assert judged([op], {"r1": [{"text": "hm"}]}, tmp_path, args=args)[0] == {}


def test_a_tool_that_must_be_called(tmp_path: Path) -> None:
    op = plain(path=CHAT, tools=TOOLS, tool_choice="required")
    honest = {"calls": [("add", '{"a": 3}')], "finish": "tool_calls"}
    assert judged([op], {"r1": [honest]}, tmp_path / "a")[0] == {}
    for n, lie in enumerate(
        (
            {"text": "no"},
            {"calls": [("sub", "{}")], "finish": "tool_calls"},
            {"calls": [("add", '{"b": 3}')], "finish": "tool_calls"},
            {"calls": [("add", '{"a": ')], "finish": "tool_calls"},
        )
    ):
        assert "tool-choice" in judged([op], {"r1": [lie]}, tmp_path / f"b{n}")[0]
    cut = {"calls": [("add", '{"a": ')], "finish": "length"}
    assert judged([op], {"r1": [cut]}, tmp_path / "c")[0] == {}
    limited = plain(path=CHAT, tools=TOOLS, tool_choice="required", max_tokens=2)
    by_another_reason = {**cut, "finish": "tool_calls", "ids": [1, 2]}
    assert judged([limited], {"r1": [by_another_reason]}, tmp_path / "e")[0] == {}
    untrue = {"text": "no", "finish": "tool_calls"}
    free = plain(path=CHAT, tools=TOOLS)
    assert judged([free], {"r1": [untrue]}, tmp_path / "d")[0] == {
        "finish-tool-calls": ["r1"]
    }


@pytest.mark.parametrize(
    "asked",
    [
        {"parallel_tool_calls": False},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ],
)
def test_one_call_where_parallel_calls_are_ruled_out(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    call = ("add", '{"a": 3}')
    one = {"calls": [call], "finish": "tool_calls"}
    two = {"calls": [call, call], "finish": "tool_calls"}
    op = plain(path=CHAT, tools=TOOLS, **asked)
    assert judged([op], {"r1": [one]}, tmp_path / "a")[0] == {}
    assert judged([op], {"r1": [two]}, tmp_path / "b")[0] == {"one-call": ["r1"]}
    free = plain(path=CHAT, tools=TOOLS, parallel_tool_calls=None)
    assert judged([free], {"r1": [two]}, tmp_path / "c")[0] == {}


def test_one_call_of_an_api_whose_answer_has_items() -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    asked["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    op = Operation(id="r1", path="/v1/messages", body=json.dumps(asked))
    calls = [{"name": "add", "arguments": "{}"}] * 2
    record = RequestRecord(
        id=1,
        phase="trigger",
        deadline_s=10.0,
        label="r1",
        path="/v1/messages",
        sent=Moment.now(),
        status=200,
        choices=[ChoiceSeen(index=0, tool_calls=calls)],
    )
    evidence = Recorder(Path()).evidence.model_copy(update={"requests": [record]})
    case = Case(server=ServerWanted(engine="vllm", release="0.24.0"), operations=[op])
    played = Played(state=PlayState.ENDED, evidence=evidence)
    (shown,) = protocol(case, played, get_engine("vllm")).sightings
    assert shown.bucket.endswith("one-call")


PARTS = {
    "text": "hi",
    "tokens": ["h", "i"],
    "reasoning": "hm",
    "calls": [("f", '{"a": 1}')],
}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({}, {}),
        ({"calls": [("f", '{"a":1}')], "reasoning": "hm\n"}, {}),
        ({"reasoning": "h"}, {"stream-parts": ["r1", "r2"]}),
        ({"calls": [("f", '{"a": 2}')]}, {"stream-parts": ["r1", "r2"]}),
        ({"calls": []}, {"stream-parts": ["r1", "r2"]}),
        ({"text": "h"}, {"stream-parts": ["r1", "r2"]}),
        ({"text": "h", "finish": "length"}, {}),
        ({"text": "j", "tokens": ["j"]}, {}),
    ],
)
def test_a_stream_is_parsed_as_the_whole(
    other: dict[str, Any], told: dict[str, list[str]], tmp_path: Path
) -> None:
    same = {"temperature": 0, "logprobs": True, "tools": TOOLS}
    operations = [plain("r1", CHAT, stream=True, **same), plain("r2", CHAT, **same)]
    finish = {"finish": "tool_calls"} if {**PARTS, **other}["calls"] else {}
    answers = {
        "r1": [{**PARTS, "finish": "tool_calls"}],
        "r2": [{**PARTS, **finish, **other}],
    }
    assert judged(operations, answers, tmp_path)[0] == told


# ------------------------------------------------------------------ what a case expects


@pytest.mark.parametrize(
    ("expect", "honest", "lie", "kind"),
    [
        ({"status": "2xx"}, {"text": "a"}, None, "status"),
        ({"text": "^a+$"}, {"text": "aa"}, {"text": "ab"}, "text"),
        ({"not_text": "b"}, {"text": "aa"}, {"text": "ab"}, "not-text"),
        ({"tokens": 2}, {"text": "aa"}, {"text": "a"}, "tokens"),
        ({"tokens": "<=2"}, {"text": "a"}, {"text": "aaa"}, "tokens"),
        (
            {"tokens": [1, 2]},
            {"text": "a", "ids": [1, 2]},
            {"text": "a", "ids": [1]},
            "tokens",
        ),
        ({"json_schema": SCHEMA}, {"text": '{"a": 3}'}, {"text": '{"a": 2}'}, "schema"),
        ({"only": [1]}, {"text": "a", "ids": [1]}, {"text": "a", "ids": [2]}, "only"),
        (
            {"only": ["a"]},
            {"text": "a", "tokens": ["a"]},
            {"text": "b", "tokens": ["b"]},
            "only",
        ),
        ({"never": [2]}, {"text": "a", "ids": [1]}, {"text": "a", "ids": [2]}, "never"),
        (
            {"finish": "stop"},
            {"text": "a"},
            {"text": "a", "finish": "length"},
            "finish",
        ),
    ],
)
def test_what_a_case_expects(
    expect: dict[str, Any],
    honest: dict[str, Any],
    lie: dict[str, Any] | None,
    kind: str,
    tmp_path: Path,
) -> None:
    op = plain().model_copy(update={"expect": Expect(**expect)})
    assert judged([op], {"r1": [honest]}, tmp_path / "a") == ({}, [])
    if lie is None:
        op = plain().model_copy(update={"expect": Expect(status="404")})
        lie = honest
    assert judged([op], {"r1": [lie]}, tmp_path / "b")[0] == {kind: ["r1"]}


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    op = plain().model_copy(update={"expect": Expect(only=[1])})
    told, unseen = judged([op], {"r1": [{"text": "a"}]}, tmp_path)
    assert told == {}
    assert unseen == [
        "What is expected of r1 was not judged: the answer does not tell its tokens "
        "(logprobs, or return_token_ids)."
    ]


def test_the_same_as_another_and_the_order_of_ends(tmp_path: Path) -> None:
    first = plain("r1").model_copy(
        update={"expect": Expect(same_as="r2", ends_after=["r2"])}
    )
    same = {"r1": [{"text": "a"}], "r2": [{"text": "a"}]}
    assert judged([first, plain("r2")], same, tmp_path / "a")[0] == {"order": ["r1"]}
    other = {"r1": [{"text": "a"}], "r2": [{"text": "b"}]}
    assert set(judged([first, plain("r2")], other, tmp_path / "b")[0]) == {
        "order",
        "same",
    }


def test_a_whole_answer_beside_a_stream_asks_for_a_stream() -> None:
    case = Case(
        server=ServerWanted(engine="vllm", release="0.32.0"), operations=[plain()]
    )
    with pytest.raises(UsageError, match="no such request streams"):
        expecting(case, ["same-as=non-streamed"])


def test_expectations_as_they_are_typed(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    case = Case(
        server=ServerWanted(engine="vllm", release="0.32.0"),
        operations=[plain("r1", CHAT, stream=True), plain("r2")],
    )
    made = expecting(
        case,
        [
            "status=4xx",
            "r2:tokens=1,2",
            "r2:only=5,a",
            f"r1:json-schema=@{tmp_path / 's.json'}",
            "r2:ends-after=r1",
            "same-as=non-streamed",
        ],
    )
    first, whole, second = made.operations
    assert (whole.id, whole.stream, whole.after) == ("r1-whole", False, ["r1.end"])
    assert first.expect == Expect(status="4xx", json_schema=SCHEMA, same_as="r1-whole")
    assert second.expect == Expect(
        status="4xx", tokens=[1, 2], only=[5, "a"], ends_after=["r1"]
    )
    for wrong in (
        "status",
        "r9:status=200",
        "status=9",
        "odd=1",
        "text=(",
        "same-as=r9",
    ):
        with pytest.raises(UsageError, match="--expect"):
            expecting(case, [wrong])


# ---------------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    ("schema", "sound"),
    [
        ({"type": "string", "pattern": "b"}, '"a"'),
        ({"oneOf": [{"type": "integer"}]}, '"a"'),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
            "[1]",
        ),
        (
            {
                "type": "object",
                "patternProperties": {"a": {}},
                "additionalProperties": False,
            },
            '{"a": 1}',
        ),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "number", "maximum": 1}}}, "3"),
        ({"not": {"type": "string"}}, '"a"'),
        ({"$ref": "https://elsewhere.example/schema"}, "1"),
        ({"type": "no type"}, "1"),
    ],
)
def test_a_schema_is_asked_only_for_what_every_backend_holds_to(
    schema: dict[str, Any], sound: str
) -> None:
    assert misfit(sound, loosened(schema)) == ""


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"type": "string"}, "1"),
        ({"enum": ["a"]}, '"b"'),
        ({"type": "array", "items": {"type": "integer"}}, '["a"]'),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "number"}}}, '"3"'),
        ({"anyOf": [{"type": "integer"}, {"const": "a"}]}, '"b"'),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, "{}"),
    ],
)
def test_and_that_it_is_asked_for(schema: dict[str, Any], wrong: str) -> None:
    assert misfit(wrong, loosened(schema)) != ""
