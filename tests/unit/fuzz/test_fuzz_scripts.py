"""Episodes whose models say scripts: what is said, of which parsers, and what is held
against that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.base.records import FindingClass, Moment
from mmrepro.engines import parsers
from mmrepro.engines.models import ScriptedAnswer, Scripts, known_families
from mmrepro.engines.parsers import RegisteredParsers, registered_parsers
from mmrepro.failure.documents.replay import PlayFacts
from mmrepro.search.fuzz import minimisations
from mmrepro.search.fuzz.episodes import Episodes
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.search.fuzz.spoken import (
    ParsersAsked,
    checked_forms,
    parsers_of,
    spoken_case,
)
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.scripted import chosen_by
from mmrepro.search.replay.simplify import changes
from mmrepro.search.replay.store import Observation
from mmrepro.traffic.case import Case, Played, PlayState, ServerWanted
from mmrepro.traffic.evidence import Evidence
from mmrepro.traffic.evidence.model import ChoiceSeen, RequestRecord, ToolCall

SERVER = ServerWanted(engine="vllm", release="0.23.0", model="text")


@pytest.fixture
def registered(tmp_path: Path) -> RegisteredParsers:
    """A release with three parsers, as its files list them."""
    tables = {
        "tool_parsers": '    "hermes": (\n    "qwen3_coder": (\n',
        "reasoning": '    "qwen3": (\n        "not-a-name": (\n',
    }
    for folder, text in tables.items():
        file = tmp_path / "vllm" / folder / "__init__.py"
        file.parent.mkdir(parents=True)
        file.write_text(f"TABLE = {{\n{text}}}\n")
    return registered_parsers("vllm", tmp_path)


def test_parsers_are_those_that_the_release_lists(
    registered: RegisteredParsers,
) -> None:
    assert registered.tools == ("hermes", "qwen3_coder")
    assert registered.reasoning == ("qwen3",)
    assert registered.args("hermes", "") == [
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
    ]
    named = registered.chosen(["--reasoning-parser", "qwen3"])
    assert (named.tools, named.reasoning) == ((), ("qwen3",))


def test_each_parser_is_alone_first_and_then_with_another(
    registered: RegisteredParsers,
) -> None:
    asked = [str(parsers_of(number, registered, seed=0)) for number in range(5)]
    assert sorted(asked[:3]) == ["hermes", "qwen3", "qwen3_coder"]
    assert asked[3:] == ["hermes and qwen3", "qwen3_coder and qwen3"]
    orders = {str(parsers_of(0, registered, seed)) for seed in range(20)}
    assert len(orders) == 3


def made(registered: RegisteredParsers, tools: str = "", reasoning: str = "") -> Case:
    asked = ParsersAsked(tools, reasoning)
    return spoken_case(SERVER, registered, asked, Random(1))


def test_each_script_is_asked_for_whole_and_streamed(
    registered: RegisteredParsers,
) -> None:
    case = made(registered, "hermes", "qwen3")
    scripts = case.server.scripts
    assert scripts is not None
    asked: dict[str, set[bool]] = {}
    for op in case.operations:
        answer = scripts.chosen(chosen_by(op))
        assert answer is not None
        assert f"#{answer.name}#" in str(op.messages)
        asked.setdefault(answer.name, set()).add(op.stream)
    assert asked == {answer.name: {False, True} for answer in scripts.script}
    assert case == made(registered, "hermes", "qwen3")


def read_soundly(text: str) -> tuple[str, str, list[tuple[str, object]]]:
    """Reasoning, content and calls, as a sound parser of hermes' form reads them."""
    thought, end, rest = text.partition("</think>")
    if not end:
        thought, rest = "", text
    content, calls = "", []
    while rest:
        before, begin, after = rest.partition("<tool_call>")
        content += before
        if not begin:
            break
        # JSON says itself where it ends, whatever its texts contain.
        call, length = json.JSONDecoder().raw_decode(after.lstrip())
        calls.append((call["name"], call["arguments"]))
        left = after.lstrip()[length:]
        rest = left.partition("</tool_call>")[2]
    return thought.removeprefix("<think>"), content, calls


@pytest.mark.parametrize("reasoning", ["", "qwen3"])
def test_what_is_expected_is_what_a_sound_parser_reads(
    registered: RegisteredParsers, reasoning: str
) -> None:
    """Of every script: an expectation that a sound parser misses is a false finding."""
    case = made(registered, "hermes", reasoning)
    scripts = case.server.scripts
    assert scripts is not None
    for answer in scripts.script:
        text = answer.script(scripts.shared).text
        thought, content, calls = read_soundly(text)
        if answer.calls is not None:
            assert calls == [(call.name, call.arguments) for call in answer.calls]
        if answer.content is not None:
            assert content.strip() == answer.content.strip()
        if answer.reasoning is not None:
            assert thought.strip() == answer.reasoning.strip()


def played(case: Case, name: str, choice: ChoiceSeen) -> Played:
    """A play in which the whole answer with the script ``name`` is ``choice``."""
    records = []
    for number, op in enumerate(case.operations):
        if f"#{name}#" not in str(op.messages) or op.stream:
            continue
        records.append(
            RequestRecord(
                id=number,
                phase="trigger",
                deadline_s=10.0,
                label=op.id,
                method="POST",
                path=op.path,
                sent=Moment.now(),
                status=200,
                choices=[choice],
            )
        )
    return Played(state=PlayState.ENDED, evidence=Evidence(requests=records))


def scripts_of(case: Case) -> Scripts:
    assert case.server.scripts is not None
    return case.server.scripts


def test_of_a_form_that_a_parser_does_not_know_nothing_is_expected(
    registered: RegisteredParsers,
) -> None:
    case = made(registered, "hermes")
    right = ToolCall(name="search", arguments='{"query": "ships"}')
    sound = ChoiceSeen(index=0, tool_calls=[right], finish_reason="tool_calls")
    checked = checked_forms(case, played(case, "plain-call", sound))
    assert checked.case == case
    assert not checked.unread
    assert scripts_of(checked.case).unread is False

    as_text = ChoiceSeen(index=0, text="<tool_call>", finish_reason="stop")
    checked = checked_forms(case, played(case, "plain-call", as_text))
    scripts = scripts_of(checked.case)
    assert scripts.unread
    expected = [answer.name for answer in scripts.script if answer.calls]
    assert expected == []
    plain = {answer.name: answer for answer in scripts.script}["plain-text"]
    assert plain.content is None
    (sentence,) = checked.unread
    assert "plain-call" in sentence


def test_a_finding_keeps_the_scripts_that_are_asked_for(
    registered: RegisteredParsers,
) -> None:
    case = made(registered, "hermes")
    scripts = case.server.scripts
    assert scripts is not None
    letters = ScriptedAnswer(name="l", pieces=list("a b"), after_text="#l#")
    more = scripts.model_copy(update={"script": [*scripts.script, letters]})
    assert isinstance(more, Scripts)
    server = case.server.model_copy(update={"scripts": more})
    op = case.operations[0]
    messages = [op.messages[0].model_copy(update={"content": "#l#"})]  # type: ignore[index]
    op = op.model_copy(update={"messages": messages})
    case = case.model_copy(update={"server": server, "operations": [op]})

    facts = PlayFacts(number=1, what="", requests=1, state="")
    offered = {change.what: change for change in changes(case, Observation(play=facts))}
    one = offered["only the scripts that are asked for"].made(case)
    assert one.server.scripts is not None
    assert [answer.name for answer in one.server.scripts.script] == ["l"]
    words = offered["scripts in tokens as long as words"].made(one)
    assert words.server.scripts is not None
    (answer,) = words.server.scripts.script
    assert answer.script(()).pieces == ("a", " b")
    assert re.search("#l#", str(words.operations))


def test_a_table_tells_which_parsers_start_and_read_their_form(
    registered: RegisteredParsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def answers(*_: object) -> dict[str, Any]:
        asked.update(_[2])
        read = [["search", '{"query": "ships"}']]
        calls = {
            "hermes": {"starts": True, "read": read},
            "qwen3_coder": {"starts": False, "why": "KeyError:\n no token"},
        }
        return {"calls": calls, "thoughts": {"qwen3": {"starts": True, "why": "x"}}}

    monkeypatch.setattr(parsers, "_answers", answers)
    environment = SimpleNamespace(spec=SERVER, site_packages=tmp_path)
    rows = parsers.tried_parsers(environment, tmp_path / "models")  # type: ignore[arg-type]
    assert "<tool_call>" in asked["calls"]["hermes"]
    assert "<function=search>" in asked["calls"]["qwen3_coder"]
    assert "<think>" in asked["thoughts"]["qwen3"]
    facts = [(row.name, row.family, row.starts, row.reads, row.why) for row in rows]
    assert facts == [
        ("hermes", "hermes", True, True, ""),
        ("qwen3_coder", "qwen3_coder", False, None, "KeyError: no token"),
        ("qwen3", "hermes", True, None, "x"),
    ]


def test_a_special_token_with_the_name_of_a_place_stays_whole() -> None:
    mistral = known_families()["mistral"]
    calls = mistral.calling([("add", {"a": 1}), ("ping", {})])
    assert calls == '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]ping[ARGS]{}'
    glm = known_families()["glm47"].calling([("add", {"a": 1})])
    assert glm == (
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    )


@pytest.mark.parametrize(
    "other", [{"script": Path("x")}, {"source": Path("x")}, {"against": "--front rust"}]
)
def test_generated_scripts_go_with_nothing_that_says_what_is_asked(
    other: dict[str, Any],
) -> None:
    with pytest.raises(UsageError, match="--scripts"):
        FuzzCommand(engine="vllm", scripts=True, **other)


@pytest.mark.parametrize("name", sorted(known_families()))
def test_a_text_without_a_call_has_no_whole_tag(
    registered: RegisteredParsers, name: str
) -> None:
    """A sound parser would look for what such a tag begins."""
    family = known_families()[name]
    tools, reasoning = family.tool_parsers[:1], family.reasoning_parsers[:1]
    asked = (
        ParsersAsked(*tools) if tools else ParsersAsked(reasoning="".join(reasoning))
    )
    if not (tools or reasoning):
        return
    case = spoken_case(SERVER, registered, asked, Random(1))
    scripts = case.server.scripts
    assert scripts is not None
    for answer in scripts.script:
        for part in (answer.content, answer.reasoning):
            whole = [tag for tag in scripts.shared if tag in (part or "")]
            assert not whole, (answer.name, part)


def test_an_episode_of_scripts_learns_no_limits_first(
    registered: RegisteredParsers,
) -> None:
    episodes = Episodes(3, SERVER, pictures=False, parsers=registered)
    first, again = episodes.next(0), episodes.next(0)
    assert first == again
    assert first.kind == "scripts"
    assert first.origin in ("hermes", "qwen3", "qwen3_coder")
    assert not first.compared


def test_a_parser_with_which_no_server_starts_is_no_finding(
    registered: RegisteredParsers,
) -> None:
    planned = Episodes(3, SERVER, pictures=False, parsers=registered).next(0)
    said = "The server did not start: KeyError: no token"
    found = OracleReport.found(FindingClass.START_FAILURE, "x", said, "It starts.")
    session = SimpleNamespace(judged=lambda *_: found)
    dead = Played(state=PlayState.START_FAILED, evidence=Evidence())
    case, judged = minimisations._judged_scripts(session, planned, dead)  # type: ignore[arg-type]
    assert case == planned.case
    assert judged.sightings == []
    assert judged.unseen == [
        f"{planned.origin}: the server does not start with it: {said}"
    ]


@pytest.mark.parametrize(("reasoning", "wanted"), [("", False), ("qwen3", True)])
def test_a_request_for_thoughts_says_so(
    registered: RegisteredParsers, reasoning: str, wanted: bool
) -> None:
    for op in made(registered, "hermes", reasoning).operations:
        kwargs = op.parameters.get("chat_template_kwargs", {})
        assert kwargs.get("enable_thinking", False) is wanted
