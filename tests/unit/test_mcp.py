"""``mmrepro mcp``: an agent's tools, called through the protocol's own client."""

import asyncio
import sys
from typing import Any

import pytest
from mcp import Client
from mmrepro.base.errors import UsageError
from mmrepro.cli import mcp as tools
from mmrepro.cli.app import app
from mmrepro.cli.mcp import McpCommand, server_of
from typer.testing import CliRunner

READING = {"find", "logs", "diagnose", "list_failures", "show", "report"}


def with_client(work: Any, *, read_only: bool = False) -> Any:
    async def whole() -> Any:
        async with Client(server_of(McpCommand(read_only=read_only))) as client:
            return await work(client)

    return asyncio.run(whole())


def test_what_only_reads_is_marked_and_starting_tools_can_be_left_out() -> None:
    found = with_client(lambda client: client.list_tools()).tools
    hints = {tool.name: tool.annotations.read_only_hint for tool in found}
    assert hints == dict.fromkeys(READING, True) | {"repro": False, "run": False}
    assert all(tool.description for tool in found)
    left = with_client(lambda client: client.list_tools(), read_only=True).tools
    assert {tool.name for tool in left} == READING


@pytest.mark.parametrize(
    ("name", "arguments", "said", "code"),
    [
        ("find", {"text": "Expected a cached item for mm_hash"}, "ghost-key-eviction", 0),
        ("show", {"name": "ghost-key-eviction"}, "ghost-key-eviction", 0),
        ("show", {"name": "--help"}, "There is no scenario", 2),
        ("report", {"folder": "none-such"}, "none-such", 2),
    ],
)
def test_a_tool_is_a_command_and_says_how_it_ended(
    name: str, arguments: dict[str, Any], said: str, code: int
) -> None:
    answer = with_client(lambda client: client.call_tool(name, arguments))
    (content,) = answer.content
    assert said in content.text
    assert f"exit code {code} (" in content.text
    assert not answer.is_error


def test_a_value_is_never_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an agent passes on stands behind ``--``, or after a name and ``=``."""
    seen: list[tuple[str, ...]] = []

    async def said(*words: str, told: str) -> str:
        seen.append(words)
        return ""

    monkeypatch.setattr(tools, "_said", said)
    evil = "--out=/"
    for tool in (*tools.READING, *tools.STARTING):
        names = tool.__code__.co_varnames[: tool.__code__.co_argcount]
        values = {n: [evil] if n == "files" else n == "full" or evil for n in names}
        asyncio.run(tool(**values))
    for words in seen:
        head = words[: words.index("--")] if "--" in words else words
        assert evil not in head, words


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp"]:
        monkeypatch.setitem(sys.modules, name, None)
    done = CliRunner().invoke(app, ["mcp"])
    assert isinstance(done.exception, UsageError)
    assert "mmrepro[mcp]" in done.exception.hint
