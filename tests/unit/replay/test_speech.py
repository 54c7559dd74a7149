"""What the model of a report says: read from its text, and made for what its requests
ask."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mmrepro.engines.models.families import all_tokens, families as known_families
from mmrepro.engines.models.script_file import ScriptedAnswer, ScriptedCall
from mmrepro.search.repro.issue import read_issue
from mmrepro.search.repro.made_request import made_body, parsers_named
from mmrepro.search.repro.shown_answer import has_no_beginning, shown_in
from mmrepro.search.repro.speech import (
    Speech,
    asked_in,
    bodies_in,
    example_of,
    likeliest_first,
    variants,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 2},
        "unit": {"enum": ["C", "F"]},
        "where": {"type": "array", "items": {"type": "number"}},
    },
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
ARGUMENTS = {"city": "Zürich", "days": 2, "unit": "C", "where": [1.5]}
REPORT = """
# Tool call is lost

```bash
vllm serve Qwen/Qwen3-0.6B --enable-auto-tool-choice --tool-call-parser hermes
```

```python
import requests
requests.post("http://localhost:8000/v1/chat/completions", json={})
```

Raw model output:

```
<think>Hm.</think><tool_call>
{"name": "f", "arguments": {"a": "}"}}
</tool_call>
```
"""


# ------------------------------------------------------------------ what is asked for


def test_a_curl_line_tells_what_it_asks_for() -> None:
    body = {
        "messages": [],
        "tools": [TOOL],
        "tool_choice": "required",
        "stop": ["END", "9"],
        "max_tokens": 50,
    }
    line = f"curl localhost:8000/v1/chat/completions -d '{json.dumps(body)}'"
    asked = asked_in(bodies_in(line))
    assert asked.tools == [ScriptedCall(name="weather", arguments=ARGUMENTS)]
    assert (asked.forced, asked.stops, asked.most) == ("required", ["END", "9"], 50)


@pytest.mark.parametrize(
    "call",
    [
        "client.chat.completions.create(model='m', tools=tools, stop='END')",
        "kw = dict(tools=tools, stop='END')\nclient.create(**kw)",
        "requests.post(url, json={'tools': tools, 'stop': ['END']})",
    ],
)
def test_a_python_script_tells_what_it_asks_for(call: str) -> None:
    script = f"import openai\nschema = {SCHEMA!r}\n"
    script += "function = {'name': 'weather', 'parameters': schema}\n"
    script += "tools = [{'type': 'function', 'function': function}]\n"
    asked = asked_in(bodies_in(script + call))
    assert asked.tools == [ScriptedCall(name="weather", arguments=ARGUMENTS)]
    assert asked.stops == ["END"]


def test_what_is_not_written_out_is_not_asked_for() -> None:
    script = "import openai\nclient.create(tools=make(), stop=STOP, max_tokens=n)"
    assert not asked_in(bodies_in(script)).asks


def test_a_script_that_repeats_itself_is_read_so_far() -> None:
    lines = ["import openai", "a0 = ['x', 'x']"]
    lines += [f"a{n} = [a{n - 1}, a{n - 1}]" for n in range(1, 60)]
    asked = asked_in(bodies_in("\n".join([*lines, "create(stop=a59)"])))
    assert asked.stops == []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (SCHEMA, ARGUMENTS),
        ({"const": 5}, 5),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": ["boolean", "null"]}, True),
        ({"enum": ["y" * 999]}, "y" * 200),
        (None, {}),
        ({"anyOf": {"a": 1}, "type": "integer"}, 3),  # nonsense is passed over
        ({"oneOf": "abc", "type": "boolean"}, True),
    ],
)
def test_an_example_fits_its_schema(schema: Any, value: object) -> None:
    assert example_of(schema) == value


def test_a_schema_without_an_end_has_an_example() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    assert example_of(schema)["a"]["a"]


# ------------------------------------------------------------------ what is shown


def test_the_raw_output_of_a_report_is_what_its_model_says() -> None:
    speech = read_issue(REPORT).speech
    assert speech.raw.startswith("<think>Hm.</think><tool_call>\n")
    variant, *_ = variants(speech, "hermes", "")
    assert variant.scripts.script[0].text == speech.raw


def test_tags_in_an_answer_s_content_are_the_raw_output() -> None:
    message = {"role": "assistant", "content": "<tool_call>{}</tool_call>"}
    answer = json.dumps({"choices": [{"message": message}]})
    assert shown_in([(answer, "")]).raw == "<tool_call>{}</tool_call>"


def test_an_answer_is_said_as_its_parsers_read_it() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [{"function": function}],
    }
    speech = shown_in([(json.dumps(message), "it answers")])
    (variant,) = variants(speech, "qwen3_coder", "qwen3")
    (answer,) = variant.scripts.script
    assert answer.text.startswith("<think>\nHm.\n</think>")
    assert "<function=f>\n<parameter=a>\n1\n" in answer.text
    assert answer.calls == [ScriptedCall(name="f", arguments={"a": 1})]


@pytest.mark.parametrize(
    ("text", "above"),
    [
        ("INFO 10-10 started <think>", ""),
        ("<tool_call>", ""),
        ("</think>", ""),
        ('{"model": "m", "messages": [{"role": "user"}]}', ""),
        ("{% if x %}<tool_call>{% endif %}", ""),
        ("no tags at all", "The log:"),
        ("def f():\n    return '<think>'", ""),
        ("ValueError: think_end_token '</think>' must encode to one token.", ""),
    ],
)
def test_what_is_no_model_s_output_is_not_said(text: str, above: str) -> None:
    assert not shown_in([(text, above)]).is_shown


def test_a_model_s_output_may_have_no_tags() -> None:
    assert shown_in([("Hello there", "The model output:")]).raw == "Hello there"


FUNCTION = "Function(arguments='{\"a\": 1}', name='f')"
PRINTED = (
    "ChatCompletion(id='x', choices=[Choice(finish_reason='tool_calls', index=0, "
    "message=ChatCompletionMessage(content='\\n', refusal=None, tool_calls=["
    f"ChatCompletionMessageToolCall(id='y', {FUNCTION.replace('Function', 'function=Function', 1)}"
    ", type='function')], reasoning_content='Who (or \"what\")?'))], usage=None)"
)


def test_an_answer_that_python_s_client_printed_is_read() -> None:
    speech = shown_in([(f"stream = False\n{PRINTED}\n", "")])
    assert speech.calls == [ScriptedCall(name="f", arguments={"a": 1})]
    assert speech.reasoning == 'Who (or "what")?'
    assert not speech.streamed


def piece(**delta: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta}]})


def called(**function: str) -> dict[str, Any]:
    return {"index": 0, "function": function}


PIECES = [
    piece(role="assistant", content=""),
    piece(reasoning="Hm"),
    piece(reasoning_content="."),
    piece(tool_calls=[called(name="f", arguments="")]),
    piece(tool_calls=[called(arguments='{"a"')]),
    piece(tool_calls=[called(arguments=": 1}")]),
]
DELTAS = [
    "ChoiceDelta(content='It ', role='assistant', tool_calls=None)",
    "ChoiceDelta(content='rains', role=None, reasoning='Hm.')",
]


@pytest.mark.parametrize("before", ["data: ", "", "> data:"])
def test_a_stream_s_pieces_are_one_answer(before: str) -> None:
    events = "\n\n".join(before + line for line in PIECES)
    speech = shown_in([(f"{events}\n\ndata: [DONE]\n", "")])
    assert speech.calls == [ScriptedCall(name="f", arguments={"a": 1})]
    assert (speech.reasoning, speech.streamed) == ("Hm.", True)


def test_pieces_that_python_s_client_printed_are_one_answer() -> None:
    speech = shown_in([("\n".join(DELTAS), "")])
    assert (speech.content, speech.reasoning) == ("It rains", "Hm.")
    assert speech.streamed


def test_of_a_call_that_cannot_be_read_it_is_not_known_what_was_said() -> None:
    events = "\n".join(f"data: {line}" for line in PIECES[:-1])
    assert not shown_in([(events, "")]).is_shown


@pytest.mark.parametrize(
    "text",
    ["ChatCompletionMessage(content=<cut>)", "Message(" * 5000, "ChoiceDelta(((((((("],
)
def test_what_is_no_python_is_no_answer(text: str) -> None:
    assert not shown_in([(text, "")]).is_shown


@pytest.mark.parametrize(
    ("words", "is_so"),
    [
        (r"Qwen3-4B-Thinking-2507 doesn't output \<think\> and the parser fails", True),
        ("The output has only `</think>`", True),
        ("the `<think>` token is missing", True),
        ("The model thinks: <think>hm</think>", False),
        ("the reasoning is not parsed", False),
    ],
)
def test_thoughts_without_a_beginning_are_read(words: str, is_so: bool) -> None:
    assert has_no_beginning(words) is is_so


RAW = "before<tool_call><function=f><parameter=city>Paris</parameter></function></tool_call>"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("`qwen3_coder` non-streaming parser drops text", ("qwen3_coder", "")),
        (
            "vllm serve m --tool-call-parser hermes --reasoning-parser qwen3",
            ("hermes", "qwen3"),
        ),
        ("the deepseek_v31 tool call parser", ("deepseek_v31", "")),
        ("the mistral reasoning parser", ("", "mistral")),
        ("`hermes` is a god, and no parser", ("", "")),
        ("the default parser", ("", "")),
        ("", ("", "")),
    ],
)
def test_parsers_are_named_as_such(words: str, named: tuple[str, str]) -> None:
    assert parsers_named(words) == named


def test_a_request_is_made_for_what_a_parser_s_report_shows() -> None:
    asked = json.loads(made_body(Speech(raw=RAW), "qwen3_coder", ""))
    (tool,) = asked["tools"]
    assert tool["function"]["name"] == "f"
    assert tool["function"]["parameters"]["properties"] == {"city": {"type": "string"}}
    assert asked["stream"] is True
    thought = json.loads(
        made_body(Speech(raw="<think>Hm.</think>Hi"), "hermes", "qwen3")
    )
    assert "tools" not in thought


@pytest.mark.parametrize(
    ("speech", "parsers"),
    [
        (Speech(), ("hermes", "")),
        (Speech(raw=RAW), ("", "")),
        (Speech(raw="no call at all"), ("hermes", "")),
    ],
)
def test_no_request_is_made_of_nothing(
    speech: Speech, parsers: tuple[str, str]
) -> None:
    assert made_body(speech, *parsers) == ""


# ------------------------------------------------------------------ what is said


def test_a_thought_without_a_beginning_is_said_where_a_report_has_it() -> None:
    first, *others = variants(Speech(unopened=True), "", "qwen3")
    (answer,) = first.scripts.script
    assert "</think>" in answer.text
    assert "<think>" not in answer.text
    assert answer.reasoning == "Let me see."
    assert first.what not in [other.what for other in others]
    assert first not in variants(Speech(), "", "qwen3")


def test_a_model_whose_requests_bring_no_tools_thinks_without_an_end_as_well() -> None:
    ways = [way.what for way in variants(Speech(), "hermes", "qwen3")]
    assert ways[-1] == "thinks without an end"


def said(answer: ScriptedAnswer) -> str:
    return answer.text or "".join(answer.pieces)


def test_a_request_with_tools_gets_a_call_two_and_one_that_is_cut() -> None:
    speech = asked_in([{"tools": [TOOL], "max_tokens": 30}])
    one, two, cut = variants(speech, "hermes", "qwen3")
    assert [len(v.scripts.script[2].calls or []) for v in (one, two, cut)] == [1, 2, 1]
    first = one.scripts.script
    assert [answer.name for answer in first] == ["text", "result", "call"]
    assert "<think>" in first[2].pieces
    assert len(cut.scripts.script[2].pieces) > 40
    for variant in (one, two, cut):
        assert variant.scripts.model().scripts  # it can be made


@pytest.mark.parametrize("bound", [{}, {"max_tokens": 100_000}])
def test_nothing_is_cut_where_an_answer_has_no_small_bound(bound: Any) -> None:
    ways = variants(asked_in([{"tools": [TOOL], **bound}]), "hermes", "")
    assert [way.is_cut for way in ways] == [False, False]


@pytest.mark.parametrize(
    ("required", "first"), [(["city"], ARGUMENTS), ([], {}), (None, {})]
)
def test_of_two_calls_one_has_no_arguments_where_none_is_required(
    required: list[str] | None, first: dict[str, Any]
) -> None:
    schema = {**SCHEMA, "required": required}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    ways = variants(asked_in([{"tools": [tool]}]), "hermes", "")
    calls = ways[1].scripts.script[-1].calls
    assert calls is not None
    assert [call.arguments for call in calls] == [first, ARGUMENTS]
    assert ("no arguments" in ways[1].what) is (first == {})


def test_a_forced_call_is_what_its_grammar_takes() -> None:
    speech = asked_in([{"tools": [TOOL], "tool_choice": "required"}])
    call = variants(speech, "hermes", "")[0].scripts.script[2]
    assert json.loads(said(call)) == [{"name": "weather", "parameters": ARGUMENTS}]
    named = {"type": "function", "function": {"name": "weather"}}
    speech = asked_in([{"tools": [TOOL], "tool_choice": named}])
    call = variants(speech, "hermes", "")[0].scripts.script[2]
    assert json.loads(said(call)) == ARGUMENTS


def test_a_stop_string_lies_over_the_border_of_tokens() -> None:
    (variant,) = variants(Speech(stops=["<END>"]), "", "")
    pieces = variant.scripts.script[0].pieces
    assert "<END>" in "".join(pieces)
    assert "<END>" not in pieces


def test_json_is_said_where_it_is_asked_for() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    (variant,) = variants(asked_in([{"response_format": form}]), "", "")
    answer = variant.scripts.script[0]
    assert json.loads(said(answer)) == ARGUMENTS
    assert len(set(answer.pieces)) == len(answer.pieces)


def test_a_thought_has_an_end_or_none() -> None:
    ended, endless = variants(Speech(), "", "mistral")
    assert said(ended.scripts.script[0]).startswith("[THINK]Let me see.[/THINK]")
    assert said(endless.scripts.script[0]) == "[THINK]Let me see."
    assert "[THINK]" in all_tokens()


def test_what_a_report_is_about_decides_what_is_said_first() -> None:
    ways = variants(asked_in([{"tools": [TOOL], "max_tokens": 30}]), "hermes", "")
    assert [way.is_cut for way in likeliest_first(ways, ["finish"])][:1] == [True]
    assert likeliest_first(ways, ["calls"]) == ways


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("raw", "parsers", "told"),
    [
        (CALL, ("hermes", ""), (None, "", 1)),
        (
            f"<think>Hm.</think>I look.{CALL}\n{CALL}",
            ("hermes", "qwen3"),
            ("Hm.", "I look.", 2),
        ),
        ("<think>Hm.</think>Hello", ("", "qwen3"), ("Hm.", "Hello", 0)),
        ("Hello", ("", "qwen3"), (None, None, None)),
        (
            "<think>Hm.<tool_call>{}</tool_call></think>",
            ("hermes", "qwen3"),
            (None, None, None),
        ),
        ('<tool_call>\n{"name": "f"', ("hermes", ""), (None, None, None)),
        ('<tool_call>{"name": "f"}</tool_call>', ("hermes", ""), (None, None, None)),
        (CALL, ("mistral", ""), (None, None, None)),
    ],
)
def test_what_sound_parsers_make_of_a_raw_output(
    raw: str, parsers: tuple[str, str], told: tuple[Any, Any, Any]
) -> None:
    variant, *_ = variants(Speech(raw=raw), *parsers)
    (answer,) = variant.scripts.script
    calls = None if answer.calls is None else len(answer.calls)
    assert (answer.reasoning, answer.content, calls) == told


INDENTED = {"path": "a.py", "old": "    if x:\n        return 1", "times": 2}
TYPED = [ScriptedCall(name="edit", arguments={"path": "x", "old": "x", "times": 3})]
TEXTS = [ScriptedCall(name="edit", arguments={"path": "x", "old": "x"})]
READ = [name for name, family in known_families().items() if family.call]
UNREAD = {"pythonic", "olmo3", "lfm2", "minimax_m3"}
"""Families whose calls are read no further than by the tags."""


@pytest.mark.parametrize("name", READ)
def test_what_a_family_says_is_read_back(name: str) -> None:
    family = known_families()[name]
    tools = TEXTS if family.texts_only else TYPED
    arguments = {key: INDENTED[key] for key in tools[0].arguments}
    calls = [("edit", arguments)] * (1 if family.one_call else 2)
    raw = family.calling(calls)
    parser = family.tool_parsers[0]
    variant, *_ = variants(Speech(raw=raw, tools=tools), parser, "")
    (answer,) = variant.scripts.script
    if name in UNREAD:
        assert answer.calls is None
        return
    assert [(call.name, call.arguments) for call in answer.calls or []] == calls
    assert answer.content == ""


CODER = "<tool_call>\n<function=edit>\n{}</function>\n</tool_call>"


@pytest.mark.parametrize(
    "pairs",
    [
        "<parameter=path>\na</parameter>\n<parameter=path>\nb</parameter>\n",
        "<parameter=of_no_tool>\na\n</parameter>\n",
        "<parameter=path>\n<parameter=old>\na\n</parameter>\n",
        "<parameter=times>\nmany\n</parameter>\n",
        "<parameter=path>\na\n",
        "<parameter=path>\n</tool_call>\n</parameter>\n<parameter=old>",
    ],
)
def test_what_may_be_read_otherwise_is_not_read(pairs: str) -> None:
    speech = Speech(raw=CODER.format(pairs), tools=TYPED)
    variant, *_ = variants(speech, "qwen3_coder", "")
    assert variant.scripts.script[0].calls is None


def test_a_raw_output_is_said_in_other_pieces_as_well() -> None:
    raw = '<tool_call>\n{"name": "f", "arguments": {"a": "Zürich"}}\n</tool_call>'
    made = variants(Speech(raw=raw), "hermes", "")
    assert [len(way.scripts.script) for way in made] == [1, 1, 1]
    words, single, long = (way.scripts.script[0] for way in made)
    assert words.text == raw
    for answer in (single, long):
        assert "".join(answer.pieces) == raw
        assert answer.calls == words.calls
    assert "<tool_call>" in single.pieces, "a token of the family stays whole"
    assert max(map(len, single.pieces[1:-1])) == 1
    assert len(long.pieces) < 8
    assert len(variants(Speech(raw="x" * 700), "hermes", "")) == 2


@pytest.mark.parametrize("parsers", [("of_tomorrow", ""), ("hermes", "of_tomorrow")])
@pytest.mark.parametrize(
    "speech",
    [
        Speech(raw=CALL),
        asked_in([{"tools": [TOOL]}]),
        Speech(calls=[ScriptedCall(name="f", arguments={"a": 1})]),
    ],
    ids=["raw", "asked", "shown"],
)
def test_nothing_is_expected_of_a_parser_whose_form_is_not_known(
    speech: Speech, parsers: tuple[str, str]
) -> None:
    for way in variants(speech, *parsers):
        assert way.scripts.unread
        for answer in way.scripts.script:
            assert (answer.content, answer.reasoning, answer.calls) == (None,) * 3
