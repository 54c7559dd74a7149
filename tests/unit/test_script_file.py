"""Files of scripts: what they say, and the model that says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines.models.families import (
    all_tokens,
    calls_as,
    families,
    frames,
    thinks_as,
)
from mmrepro.engines.models.script_file import (
    ScriptedAnswer,
    Scripts,
    read_scripts,
)
from mmrepro.engines.models.tiny import TINY
from mmrepro.runs.options import RunCommand
from mmrepro.runs.play.player import replayed
from mmrepro.search.replay.known import server_wanted
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.traffic.case.files import (
    case_digest,
    read_case,
    scripted_model,
    write_case,
)
from mmrepro.traffic.case.model import Case, ServerWanted
from test_scripted_model import Spoken, rendered

FILE = """
family = "hermes"

[[script]]
name = "plain"
text = "Hello there."

[[script]]
name = "call"
with_tools = true
text = '''<tool_call>
{"name": "f", "arguments": {}}
</tool_call>'''

[[script]]
name = "bytes"
pieces = ["caf", "<0xC3>", "<0xA9>", " <tool", "_call>"]
"""


def written(folder: Path, text: str, name: str = "scripts.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_file_says_what_the_model_says(tmp_path: Path) -> None:
    scripts = read_scripts(written(tmp_path, FILE))
    spoken = Spoken(scripts.model(), tmp_path)
    assert spoken.after("x<|say:plain|>")[0] == "Hello there."
    assert spoken.after("x<|say:call|>")[0].startswith("<tool_call>\n")
    assert spoken.after("x<|say:bytes|>")[0] == "café <tool_call>"
    tokens = scripts.script[2].script(scripts.shared).tokens(scripts.shared)
    assert len(tokens) == 5


def test_a_plain_text_is_one_script(tmp_path: Path) -> None:
    scripts = read_scripts(written(tmp_path, "<think>x</think>y\n", "says.txt"))
    spoken = Spoken(scripts.model(), tmp_path)
    assert spoken.after("?")[0] == "<think>x</think>y\n"
    assert "<think>" in scripts.script[0].script(scripts.shared).pieces


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("family = 'hermse'\n[[script]]\ntext = 'x'", "Did you mean hermes"),
        ("[[script]]\nname = 'a'", "exactly one of text and pieces"),
        ("[[script]]\ntext = 'x'\nsay = 'y'", "say"),
        ("script = []", "script"),
        ("[[script]]\ntext = 'x'\nname = 'A|>'", "name"),
        ("tokens = ['⟦1⟧']\n[[script]]\ntext = 'x'", "tokens"),
        ("[[script]]\ntext = 'x'\n[[script]]\ntext = 'y'", "name of its own"),
    ],
)
def test_what_is_no_file_of_scripts_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        read_scripts(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.txt"):
        read_scripts(tmp_path / "nothing.txt")


CONVERSATION = Scripts(
    script=[
        ScriptedAnswer(name="first", text="a"),
        ScriptedAnswer(name="second", text="b", turn=2),
        ScriptedAnswer(name="result", text="c", after_tool=True),
        ScriptedAnswer(name="weather", text="d", after_text='"rain"', with_tools=True),
    ]
)
USER = {"role": "user", "content": "x"}
ANSWER = {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"messages": [USER]}, "first"),
        ({"messages": [USER, ANSWER, USER]}, "second"),
        ({"messages": [USER, ANSWER, ANSWER, USER]}, "first"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "result"),
        ({"messages": [{"role": "user", "content": 'a "rain"'}]}, "first"),
        (
            {"messages": [{"role": "user", "content": 'a "rain"'}], "tools": [{}]},
            "weather",
        ),
    ],
)
def test_the_template_and_the_oracle_choose_alike(
    tmp_path: Path, body: dict[str, Any], name: str
) -> None:
    chosen = CONVERSATION.chosen(body)
    assert chosen is not None
    assert chosen.name == name
    request = {"tools": None, **body}
    prompt = rendered(CONVERSATION.model(), tmp_path, **request)
    assert prompt.endswith(f"<|say:{name}|>")


def test_a_completion_is_chosen_by_its_last_token() -> None:
    def chosen(**body: Any) -> str:
        answer = CONVERSATION.chosen(body)
        return answer.name if answer else ""

    assert chosen(prompt="x<|say:result|>") == "result"
    assert chosen(prompt="x") == "first"
    assert chosen(prompt="x<think>") == ""
    assert chosen(prompt=[1, 2]) == ""
    assert chosen(prompt="x", echo=True) == ""


@pytest.mark.parametrize("name", families())
def test_a_conversation_of_each_family_can_be_written(
    tmp_path: Path, name: str
) -> None:
    scripts = Scripts(family=name, script=[ScriptedAnswer(text="x")])
    call = {"function": {"name": "f", "arguments": "{}"}, "type": "function"}
    messages = [
        {"role": "system", "content": "s"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "22 °C"},
    ]
    prompt = rendered(scripts.model(), tmp_path, messages=messages, tools=None)
    assert "22 °C" in prompt
    assert prompt.endswith("<|say:answer|>")


def test_families_name_frames_and_tokens_that_there_are() -> None:
    for family in families().values():
        assert family.frame in frames()
        assert set(family.tokens) <= set(all_tokens())
    for frame in frames().values():
        assert frame.end in frame.tokens


def test_a_call_is_written_as_its_parser_reads_it() -> None:
    calls = [("f", {"NAME": "VALUE", "n": 1}), ("g", {})]
    assert calls_as("hermes").calling(calls).count("<tool_call>") == 2
    inside = calls_as("hermes").calling(calls[:1]).split("\n")[1]
    assert json.loads(inside) == {"name": "f", "arguments": {"NAME": "VALUE", "n": 1}}
    assert calls_as("pythonic").calling(calls) == "[f(NAME='VALUE', n=1), g()]"
    assert "<parameter=NAME>\nVALUE\n" in calls_as("qwen3_coder").calling(calls)
    assert calls_as("no such").calling(calls) == calls_as("hermes").calling(calls)
    assert thinks_as("seed_oss").thinking("x") == "<seed:think>x</seed:think>"


# ------------------------------------------------------------------- a case's scripts

ONE = {"script": [{"text": "Hello there."}]}


def server(**more: Any) -> ServerWanted:
    base = {"engine": "vllm", "release": "0.23.0", "model": "qwen3-text"}
    return ServerWanted.model_validate({**base, **more})


def test_a_case_keeps_its_scripts(tmp_path: Path) -> None:
    case = Case(server=server(scripts=ONE))
    write_case(case, tmp_path)
    read, _ = read_case(tmp_path)
    assert read.server.scripts == case.server.scripts
    assert read.server.tiny == Scripts.model_validate(ONE).model("qwen3-text")
    assert scripted_model(tmp_path) == read.server.tiny
    assert case_digest(case) != case_digest(Case(server=server()))


def test_a_case_without_scripts_is_written_as_before(tmp_path: Path) -> None:
    assert "scripts" not in server().model_dump()
    assert server().tiny == TINY["qwen3-text"]
    assert server(model="./mine").tiny is None


def test_a_case_may_not_give_scripts_to_another_model() -> None:
    with pytest.raises(ValueError, match="says no scripts"):
        server(model="qwen2-vl", scripts=ONE)


def test_a_replay_takes_a_file_of_scripts(tmp_path: Path) -> None:
    file = written(tmp_path, "Hello there.", "says.txt")
    asked = ReplayCommand(script=file).asked
    assert asked["model"] == "text"
    assert asked["scripts"].script[0].text == "Hello there."
    asked = ReplayCommand(script=file, model="qwen3-moe").asked
    assert asked["model"] == "qwen3-moe"
    with pytest.raises(UsageError, match="says no scripts"):
        _ = ReplayCommand(script=file, model="qwen2-vl").asked


def test_another_model_takes_the_scripts_of_a_case_away(tmp_path: Path) -> None:
    write_case(Case(server=server(scripts=ONE)), tmp_path)
    assert server_wanted(tmp_path, None, {}).scripts is not None
    assert server_wanted(tmp_path, None, {"model": "text"}).scripts is None


def test_the_server_of_a_case_serves_what_says_its_scripts() -> None:
    scenario, options = replayed(server(scripts=ONE), RunCommand())
    assert scenario.model == Scripts.model_validate(ONE).model("qwen3-text")
    assert options.model is None


def test_the_file_in_the_documentation_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "verdicts.md"
    block = page.read_text().partition("```toml\n")[2].partition("```")[0]
    scripts = read_scripts(written(tmp_path, block))
    assert [answer.name for answer in scripts.script] == ["plain", "after", "call"]


def test_a_command_to_repeat_leaves_a_case_its_scripts(tmp_path: Path) -> None:
    write_case(Case(server=server(scripts=ONE)), tmp_path)
    own = server_wanted(tmp_path, None, {})
    command = ReplayCommand(file=tmp_path / "case.json", server=own)
    assert "--model" not in command.command_line()
    plain_one = ReplayCommand(file=tmp_path / "case.json", server=server())
    assert "--model" in plain_one.command_line()
