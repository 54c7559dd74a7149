"""What a scripted model said is held against its answers; the answers come from a FAKE
server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.records import Moment
from mmrepro.engines.models.script_file import ScriptedAnswer, ScriptedCall, Scripts
from mmrepro.search.oracle.judged import Sent
from mmrepro.search.oracle.scripted import HELD, never_shown, said_in_items
from mmrepro.traffic.case.model import CHAT, Case, Message, Operation, ServerWanted
from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord
from test_promises import TOOLS, judged, plain

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
SCRIPTS = Scripts(
    script=[
        ScriptedAnswer(name="plain", text="One two three STOP four."),
        ScriptedAnswer(
            name="call",
            text=f"<think>Hm.</think>{CALL}",
            with_tools=True,
            reasoning="Hm.",
            content="",
            calls=[ScriptedCall(name="add", arguments={"a": 3})],
        ),
    ]
)
PARSERS = ("--reasoning-parser", "qwen3", "--tool-call-parser=hermes")
RIGHT = {
    "text": "",
    "reasoning": "Hm.",
    "calls": [("add", '{"a":3}')],
    "finish": "tool_calls",
}


def found(
    folder: Path, op: Operation, answer: dict[str, Any], args: tuple[str, ...] = ()
) -> set[str]:
    told, _ = judged([op], {"r1": [answer]}, folder, args=args, scripts=SCRIPTS)
    return scripted_kinds(told)


def scripted_kinds(told: dict[str, list[str]]) -> set[str]:
    """Kinds of what is held against answers; their usage is made up."""
    return {kind for kind in told if kind.startswith("script")} - {"script-usage"}


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        (RIGHT, set()),
        ({**RIGHT, "calls": [], "text": CALL, "finish": "stop"}, {"script-calls"}),
        # Its context may have been full.
        ({**RIGHT, "calls": [], "text": CALL, "finish": "length"}, set()),
    ],
)
def test_a_stream_without_a_usage_is_judged(
    tmp_path: Path, answer: dict[str, Any], kinds: set[str]
) -> None:
    op = chat(tools=TOOLS).model_copy(update={"stream": True})
    assert found(tmp_path, op, {**answer, "no_usage": True}, PARSERS) == kinds


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "answer", "kinds"),
    [
        ({}, {"text": "One two three STOP four."}, set()),
        ({}, {"text": "One two three STOP four"}, {"script-text"}),
        (
            {},
            {"text": "One two three STOP four.", "finish": "length"},
            {"script-finish"},
        ),
        ({"max_tokens": 3}, {"text": "One two three", "finish": "length"}, set()),
        ({"max_tokens": 3}, {"text": "One two three"}, {"script-finish"}),
        (
            {"max_tokens": 5},
            {"text": "One two three STOP four.", "finish": "length"},
            set(),
        ),
        (
            {"max_tokens": 6},
            {"text": "One two three STOP four.", "finish": "length"},
            set(),
        ),
        (
            {"max_tokens": 7},
            {"text": "One two three STOP four.", "finish": "length"},
            {"script-finish"},
        ),
        ({"stop": "STOP"}, {"text": "One two three "}, set()),
        ({"stop": ["STOP"]}, {"text": "One two three"}, {"script-text"}),
        ({"stop": ["STOP", "four"]}, {"text": "whatever"}, set()),
        ({"logit_bias": {"1": 5}}, {"text": "whatever"}, set()),
    ],
)
def test_a_text_is_what_was_said(
    tmp_path: Path,
    asked: dict[str, Any],
    answer: dict[str, Any],
    kinds: set[str],
    stream: bool,
) -> None:
    assert found(tmp_path, plain(stream=stream, **asked), answer) == kinds


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, set()),
        ({"calls": []}, {"script-calls"}),
        ({"calls": [("add", '{"a": 4}')]}, {"script-calls"}),
        ({"calls": [("add", '{"a": 3')]}, {"script-calls"}),
        ({"reasoning": "H"}, {"script-reasoning"}),
        ({"finish": "stop"}, {"script-finish"}),
        ({"text": "</think>"}, {"script-text", "script-tags"}),
        ({"text": "\n\n"}, set()),
    ],
)
def test_a_call_is_what_was_made(
    tmp_path: Path, change: dict[str, Any], kinds: set[str]
) -> None:
    op = chat(tools=TOOLS)
    assert found(tmp_path, op, {**RIGHT, **change}, PARSERS) == kinds


def test_of_several_calls_that_are_ruled_out_one_may_be_missing(tmp_path: Path) -> None:
    op = chat(tools=TOOLS, parallel_tool_calls=False)
    assert found(tmp_path, op, {**RIGHT, "calls": []}, PARSERS) == set()


def chat(**parameters: Any) -> Operation:
    message = Message(role="user", content="x")
    return Operation(id="r1", path=CHAT, messages=[message], parameters=parameters)


def test_a_call_that_was_cut_ends_for_its_length(tmp_path: Path) -> None:
    op = chat(tools=TOOLS, max_tokens=8)
    cut = {"text": "", "reasoning": "Hm.", "calls": [("add", "{")]}
    assert found(tmp_path, op, {**cut, "finish": "length"}, PARSERS) == set()
    wrong = found(tmp_path, op, {**cut, "finish": "tool_calls"}, PARSERS)
    assert wrong == {"script-finish"}


def test_what_a_grammar_masks_is_not_judged(tmp_path: Path) -> None:
    op = chat(tools=TOOLS, tool_choice="required")
    assert found(tmp_path, op, {"text": "whatever"}, PARSERS) == set()


@pytest.mark.parametrize(
    ("asked", "counted", "fits"),
    [
        ({}, 4, False),
        ({}, 5, True),
        # With the token that ends the answer, which some engines count.
        ({}, 6, True),
        ({}, 7, False),
        ({"max_tokens": 3}, 3, True),
        ({"max_tokens": 3}, 4, False),
    ],
)
def test_a_usage_counts_what_was_said(
    tmp_path: Path, asked: dict[str, Any], counted: int, fits: bool
) -> None:
    said = {"text": "One two three STOP four.", "ids": [7] * counted}
    if asked:
        said |= {"text": "One two three", "finish": "length"}
    told, _ = judged([plain(**asked)], {"r1": [said]}, tmp_path, scripts=SCRIPTS)
    assert ("script-usage" in told) is not fits


def test_without_a_parser_the_calls_stay_in_the_text(tmp_path: Path) -> None:
    said = {"text": f"<think>Hm.</think>{CALL}"}
    assert found(tmp_path, chat(tools=TOOLS), said) == set()


@pytest.mark.parametrize(
    ("stream", "whole", "tokens", "kinds"),
    [
        ("tool_calls", "length", 4, {"stream-finish"}),
        ("length", "length", 4, set()),
        ("stop", "length", 3, set()),
    ],
)
def test_a_stream_ends_for_the_reason_of_the_whole_answer(
    tmp_path: Path, stream: str, whole: str, tokens: int, kinds: set[str]
) -> None:
    asked = {"max_tokens": 4, "temperature": 0, "tools": TOOLS}
    operations = [
        plain("r1", CHAT, **asked),
        plain("r2", CHAT, stream=True, **asked),
    ]
    text = "x" * tokens
    answers = {
        "r1": [{"text": "xxxx", "finish": whole}],
        "r2": [{"text": text, "finish": stream}],
    }
    told, _ = judged(operations, answers, tmp_path)
    assert told.keys() & {"stream-finish"} == kinds


# ------------------------------------------------------------------ what never came


def missing(op: Operation, args: tuple[str, ...] = (), **choice: Any) -> list[str]:
    return [what for what in never(op, args, SCRIPTS, **choice) if what != HELD]


def never(
    op: Operation, args: tuple[str, ...], scripts: Scripts, **choice: Any
) -> list[str]:
    server = ServerWanted(
        engine="vllm", release="0.32.0", model="text", args=list(args), scripts=scripts
    )
    record = RequestRecord(
        id=1,
        phase="trigger",
        deadline_s=10.0,
        label="r1",
        method="POST",
        path=op.path,
        sent=Moment.now(),
        status=200,
        prompt_tokens=3,
        choices=[ChoiceSeen(index=0, **choice)],
    )
    case = Case(server=server, operations=[op])
    return never_shown([Sent(op, record)], case).get("r1", [])


def test_what_an_answer_never_shows_was_not_tested() -> None:
    assert missing(chat(tools=TOOLS), text="x") == ["a tool call"]
    assert missing(chat(tools=TOOLS, tool_choice="none"), text="x") == []
    called = [{"index": 0, "name": "f", "arguments": "{}"}]
    assert missing(chat(tools=TOOLS), tool_calls=called) == []
    assert missing(chat(), PARSERS, text="x") == ["reasoning"]
    assert missing(chat(), PARSERS, text="x", reasoning="y") == []
    form = {"response_format": {"type": "json_object"}}
    assert missing(chat(**form), text='{"a"', finish_reason="length")
    assert missing(chat(**form), text='{"a": 1}', finish_reason="stop") == []
    assert missing(plain(stop="9"), text="x") == ["the stop string '9'"]
    assert missing(plain(stop="STOP"), text="x") == []
    assert missing(plain(stop="9"), text="9") == []
    result = chat(tools=TOOLS).messages or []
    tool = Message(role="tool", content="22")
    op = chat(tools=TOOLS).model_copy(update={"messages": [*result, tool]})
    assert missing(op, text="It is done.") == []


@pytest.mark.parametrize(
    ("asked", "is_held"),
    [
        ({}, True),
        ({"tool_choice": "required"}, True),
        ({"parallel_tool_calls": False}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"logit_bias": {"1": 2}}, False),
    ],
)
def test_what_no_rule_holds_against_the_model_s_words_is_told(
    asked: dict[str, Any], is_held: bool
) -> None:
    told = never(chat(**asked), PARSERS, TOLD, text="Hi.", finish_reason="stop")
    assert (HELD not in told) is is_held
    unread = never(chat(**asked), PARSERS, SCRIPTS, text="Hi.", finish_reason="stop")
    judged_otherwise = {"tool_choice", "parallel_tool_calls"} & asked.keys()
    assert (HELD not in unread) is bool(judged_otherwise)


TOLD = Scripts(script=[ScriptedAnswer(name="t", text="Hi.", content="Hi.", calls=[])])


# -------------------------------------------------------- a stream beside the whole


def beside_each_other(
    folder: Path, whole: dict[str, Any], stream: dict[str, Any], **asked: Any
) -> set[str]:
    parameters = {"temperature": 0, "tools": TOOLS, "tool_choice": "required", **asked}
    operations = [
        chat(**parameters).model_copy(update={"id": id}) for id in ("r1", "r2")
    ]
    operations[1] = operations[1].model_copy(update={"stream": True})
    answers = {"r1": [whole], "r2": [stream]}
    told, _ = judged(operations, answers, folder, args=PARSERS, scripts=SCRIPTS)
    return scripted_kinds(told)


def test_of_equal_requests_one_has_the_calls_and_one_has_not(tmp_path: Path) -> None:
    wrong = {**RIGHT, "calls": [("add", '{"a": 3}]')]}
    assert beside_each_other(tmp_path / "a", RIGHT, wrong) == {"script-calls"}
    assert beside_each_other(tmp_path / "b", RIGHT, RIGHT) == set()
    # A grammar that takes something else takes it twice.
    other = {**RIGHT, "calls": [("add", '{"a": 7}')]}
    assert beside_each_other(tmp_path / "c", other, other) == set()
    assert beside_each_other(tmp_path / "d", other, wrong) == set()


@pytest.mark.parametrize(
    ("said", "content", "kinds"),
    [
        ("<think>a</think>b", "b", set()),
        ("<think>a</think>b", "a</think>b", {"script-tags"}),
        ("<think>a", "<think>a", set()),
        ("a", "a", set()),
    ],
)
def test_a_tag_that_is_closed_is_in_no_content(
    tmp_path: Path, said: str, content: str, kinds: set[str]
) -> None:
    """Also where it is not known what a parser makes of the script."""
    scripts = Scripts(script=[ScriptedAnswer(text=said)])
    answers = {"r1": [{"text": content, "finish": "stop"}]}
    told, _ = judged([chat()], answers, tmp_path, args=PARSERS, scripts=scripts)
    assert scripted_kinds(told) == kinds
    # A parser of another form leaves the whole of it.
    unread = scripts.model_copy(update={"unread": True})
    told, _ = judged([chat()], answers, tmp_path / "u", args=PARSERS, scripts=unread)
    assert scripted_kinds(told) == set()


# -------------------------------------------------------- answers in items and blocks


def in_items(path: str, asked: dict[str, Any], **choice: Any) -> set[str]:
    op = Operation(id="r1", path=path, parameters=asked)
    record = RequestRecord(
        id=1,
        phase="trigger",
        deadline_s=10.0,
        label="r1",
        path=path,
        sent=Moment.now(),
        status=200,
        choices=[ChoiceSeen(index=0, **choice)],
    )
    server = ServerWanted(
        engine="vllm",
        release="0.32.0",
        model="text",
        args=list(PARSERS),
        scripts=SCRIPTS,
    )
    told = said_in_items(Sent(op, record), Case(server=server, operations=[op]))
    return {kind for kind, _ in told}


MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50}
RESPONSES = {"input": "x", "tools": TOOLS}
CALLED = [{"name": "add", "arguments": '{"a": 3}'}]


@pytest.mark.parametrize(
    ("path", "asked", "choice", "kinds"),
    [
        (
            "/v1/responses",
            RESPONSES,
            {"tool_calls": CALLED, "reasoning": "Hm.", "finish_reason": "completed"},
            set(),
        ),
        (
            "/v1/responses",
            RESPONSES,
            {"text": CALL, "finish_reason": "completed"},
            {"script-calls", "script-text"},
        ),
        (
            "/v1/messages",
            {**MESSAGES, "tools": TOOLS},
            {"tool_calls": CALLED, "finish_reason": "tool_use"},
            set(),
        ),
        (
            "/v1/messages",
            {**MESSAGES, "tools": TOOLS},
            {"tool_calls": CALLED, "finish_reason": "end_turn"},
            {"script-finish"},
        ),
        (
            "/v1/messages",
            {**MESSAGES, "tools": TOOLS, "max_tokens": 3},
            {"finish_reason": "max_tokens"},
            set(),
        ),
        (
            "/v1/messages",
            {**MESSAGES, "tools": TOOLS, "tool_choice": {"type": "any"}},
            {"text": "whatever"},
            set(),
        ),
        (
            "/v1/responses",
            {"input": [{"type": "function_call_output", "output": "1"}]},
            {"text": "whatever"},
            set(),
        ),
        (
            "/v1/responses",
            {**RESPONSES, "parallel_tool_calls": False},
            {"text": "whatever", "finish_reason": "completed"},
            set(),
        ),
    ],
)
def test_an_answer_in_items_is_what_was_said(
    path: str, asked: dict[str, Any], choice: dict[str, Any], kinds: set[str]
) -> None:
    assert in_items(path, asked, **choice) == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("One two ", set()), ("One two \ufffd", set()), ("", {"script-text"})],
)
def test_of_half_a_character_only_that_half_may_be_missing(
    tmp_path: Path, text: str, kinds: set[str]
) -> None:
    """LMDeploy 0.18.0 has nothing of an answer that max_tokens cuts there."""
    pieces = ["One", " two ", "<0xC3>", "<0xBC>"]
    scripts = Scripts(script=[ScriptedAnswer(pieces=pieces)])
    answers = {"r1": [{"text": text, "finish": "length"}]}
    told, _ = judged([plain(max_tokens=3)], answers, tmp_path, scripts=scripts)
    assert scripted_kinds(told) == kinds
