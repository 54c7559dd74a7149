"""``mmrepro mcp``: an agent's tools, called through the protocol's own client."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.installed import install_command
from mmrepro.cli import mcp as tools
from mmrepro.cli.app import app
from mmrepro.cli.mcp import McpCommand, server_of
from typer.testing import CliRunner

ODD_IMAGE = (Path(__file__).parents[1] / "pack" / "odd_image.py").read_text("utf-8")
READING = {"find", "logs", "why", "check", "list_failures", "show", "report"}
ACTING = {"diagnose", "repro", "replay", "run"}


def with_client(work: Any, *, read_only: bool = False) -> Any:
    # A tenth of the time that it takes to collect all tests.
    from mcp import Client

    async def whole() -> Any:
        async with Client(server_of(McpCommand(read_only=read_only))) as client:
            return await work(client)

    return asyncio.run(whole())


def test_what_only_reads_is_marked_and_starting_tools_can_be_left_out() -> None:
    found = with_client(lambda client: client.list_tools()).tools
    hints = {tool.name: tool.annotations.read_only_hint for tool in found}
    assert hints == dict.fromkeys(READING, True) | dict.fromkeys(ACTING, False)
    world = {tool.name: tool.annotations.open_world_hint for tool in found}
    assert world == dict.fromkeys(READING, False) | dict.fromkeys(ACTING, True)
    assert not any(tool.annotations.destructive_hint for tool in found)
    assert all(tool.description for tool in found)
    left = with_client(lambda client: client.list_tools(), read_only=True).tools
    assert {tool.name for tool in left} == READING


@pytest.mark.parametrize(
    ("name", "arguments", "said", "code"),
    [
        (
            "find",
            {"text": "Expected a cached item for mm_hash"},
            "ghost-key-eviction",
            0,
        ),
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
    assert answer.is_error == (code == ExitCode.USAGE)
    assert answer.structured_content["exit_code"] == code


def test_what_a_tool_answers_is_data_as_well() -> None:
    wanted = {"text": "Expected a cached item"}
    answer = with_client(lambda client: client.call_tool("find", wanted))
    document = answer.structured_content["document"]
    assert (document["status"], document["exit_code"]) == ("known", 0)
    assert document["next"] == ["mmrepro show ghost-key-eviction"]


def test_a_command_is_run_once_for_its_screen_and_its_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """find, logs, why, check and show print, and leave their document in a file."""
    commands: list[tuple[str, ...]] = []
    ended = tools._ended

    async def counted(words: Any, more: Any) -> Any:
        commands.append(tuple(words))
        return await ended(words, more)

    monkeypatch.setattr(tools, "_ended", counted)
    answer = with_client(
        lambda client: client.call_tool("show", {"name": "shape-alias"})
    )
    assert commands == [("show", "--", "shape-alias")]
    assert "SHAPE-ALIAS" in answer.content[0].text
    assert answer.structured_content["document"]["name"] == "shape-alias"


def test_an_engine_is_one_of_those_that_are_known() -> None:
    listed = with_client(lambda client: client.list_tools()).tools
    [logs] = [tool for tool in listed if tool.name == "logs"]
    assert "vllm" in logs.input_schema["properties"]["engine"]["enum"]
    assert "context" not in logs.input_schema["properties"]


def test_a_client_hears_what_a_command_is_doing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []

    async def progress(took: float, total: float | None, message: str | None) -> None:
        heard.append(str(message))

    monkeypatch.setattr(tools, "_TICK_S", 0.01)
    with_client(
        lambda client: client.call_tool(
            "find", {"text": "Expected a cached item"}, progress_callback=progress
        )
    )
    assert "mmrepro find still runs" in heard


def test_each_parameter_is_described() -> None:
    for tool in with_client(lambda client: client.list_tools()).tools:
        for name, schema in tool.input_schema.get("properties", {}).items():
            described = "description" in schema or "enum" in schema
            assert described, f"{tool.name} {name}"


def test_a_value_is_never_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an agent passes on stands behind ``--``, or after a name and ``=``."""
    seen: list[tuple[str, ...]] = []

    async def said(*words: str) -> str:
        seen.append(words)
        return ""

    monkeypatch.setattr(tools, "_said", said)
    for evil in ("--out=/", "--trust"):
        for tool in (*tools.READING, *tools.OBSERVING, *tools.STARTING):
            names = tool.__code__.co_varnames[: tool.__code__.co_argcount]
            values = {n: [evil] if n == "files" else n == "full" or evil for n in names}
            asyncio.run(tool(**values))
    for words in seen:
        head = words[: words.index("--")] if "--" in words else words
        assert {"--out=/", "--trust"}.isdisjoint(head), words


def test_an_agent_fills_in_what_a_report_means(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, ...]] = []
    scripts: list[tuple[str, str]] = []

    def read(word: str) -> tuple[str, str]:
        file = Path(word.removeprefix("--script="))
        return file.suffix, file.read_text()

    async def said(*words: str) -> str:
        seen.append(words)
        scripts.extend(read(word) for word in words if word.startswith("--script="))
        return ""

    monkeypatch.setattr(tools, "_said", said)
    form = {"issue": "i.md", "expect": ["status=4xx", "r2:text=^a"]}
    asyncio.run(tools.repro(**form, script="<think>Hm\ud800"))
    asyncio.run(tools.repro(**form, script='[[script]]\ntext = "x"'))
    assert scripts == [(".txt", "<think>Hm?"), (".toml", '[[script]]\ntext = "x"')]
    for words in seen:
        assert words[2:4] == ("--expect=status=4xx", "--expect=r2:text=^a")
        assert words[-2:] == ("--", "i.md")


def test_a_file_is_read_and_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    file = tmp_path / "theirs.py"
    file.write_text(f"{ODD_IMAGE}\nopen({str(ran)!r}, 'w')\n")
    answer = with_client(lambda client: client.call_tool("show", {"name": str(file)}))
    assert "Declared, not run" in answer.content[0].text
    assert "gets HTTP 500" in answer.content[0].text
    assert not ran.exists()


def test_a_report_starts_no_engine() -> None:
    """``--format upstream-test`` would."""
    wanted = {"folder": "none", "format": "upstream-test"}
    answer = with_client(lambda client: client.call_tool("report", wanted))
    assert answer.is_error


def message(number: int, arguments: str, name: str = '"find"') -> str:
    called = f'{{"name": {name}, "arguments": {arguments}}}'
    return (
        f'{{"jsonrpc": "2.0", "id": {number}, "method": "tools/call", '
        f'"params": {called}}}'
    )


HOSTILE = {
    "half a pair": message(2, r'{"text": "\ud800"}'),
    "half a pair, raw": message(3, '{"text": "\ud800"}'),
    "NUL": message(4, r'{"text": "a\u0000b"}'),
    "long": message(5, f'{{"text": "{"x" * 300_000}"}}'),
    "nested": message(6, f'{{"text": {"[" * 400}{"]" * 400}}}'),
    "nested beyond Python": message(7, f'{{"text": {"[" * 99_000}{"]" * 99_000}}}'),
    "a tool of no name": message(8, "{}", r'"\udfff"'),
    "a long number": message(9, f'{{"text": {"9" * 10_000}}}'),
    "many": message(10, f'{{"files": {json.dumps(["x"] * 5000)}}}', '"logs"'),
    "no number": message(11, '{"text": NaN}'),
    "a name that is half a pair": message(12, r'{"\ud800": 1}', '"show"'),
    "larger than a message may be": message(13, f'{{"text": "{"y" * (17 << 20)}"}}'),
    "of another kind": message(14, '["find"]'),
}


def test_each_message_is_answered() -> None:
    """Through the real streams: the protocol's own parser drops what it does not
    take."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello |= {"clientInfo": {"name": "x", "version": "1"}}
    begin = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    )
    last = message(99, '{"text": "nothing at all"}')
    lines = [begin, '{"jsonrpc": "2.0", "method": "notifications/initialized"}']
    lines += [*HOSTILE.values(), last]
    server = subprocess.Popen(
        [sys.executable, "-m", "mmrepro", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    answers = {}
    too_late = threading.Timer(60, server.kill)  # then a line is empty
    too_late.start()
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        for line in lines:
            server.stdin.write(line.encode("utf-8", "surrogatepass") + b"\n")
        server.stdin.flush()
        while len(answers) < len(HOSTILE) + 2:
            answer = json.loads(server.stdout.readline())
            answers[answer.get("id")] = answer
        too_late.cancel()
        server.stdin.close()
    assert "result" in answers[3], "bytes that are no UTF-8 are text all the same"
    for number in {*range(2, 15)} - {3}:
        answer = answers[number]
        assert "error" in answer or answer["result"]["isError"], answer
    assert not answers[99]["result"]["isError"]


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == "mcp"]
    for name in {"mcp", *loaded}:
        monkeypatch.setitem(sys.modules, name, None)
    done = CliRunner().invoke(app, ["mcp"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.hint == install_command("mcp")
