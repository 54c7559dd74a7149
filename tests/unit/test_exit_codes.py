"""One contract for all commands: exit codes, and the head of each JSON document."""

import json
from pathlib import Path

import jsonschema
import pytest
from in_process import mmrepro
from mmrepro.base.errors import ExitCode
from mmrepro.cli import exit_codes
from mmrepro.cli.app import declared_commands
from mmrepro.cli.json_schema import documents_by_urn, json_schema

DOCS = Path(__file__).parents[2] / "docs"
HEAD = ["status", "exit_code", "summary", "next", "page"]
DEAD = """\
(APIServer pid=3) INFO 11-21 02:00:01 [a.py:1] Added request one.
(EngineCore pid=7) ERROR 11-21 02:00:03 [c.py:1] AssertionError: Expected a cached item
"""


@pytest.fixture
def dead_server(tmp_path: Path) -> Path:
    log = tmp_path / "server.log"
    log.write_text(DEAD * 3)
    return log


def test_the_page_is_generated_from_the_table() -> None:
    page = DOCS / "exit-codes.md"
    assert page.read_text("utf-8") == exit_codes.page(), (
        f"python -m mmrepro help exit-codes > {page}"
    )


def test_no_other_page_has_codes_of_its_own() -> None:
    with_codes = [
        page.name
        for page in DOCS.glob("*.md")
        if "Exit codes:" in page.read_text("utf-8")
    ]
    assert with_codes == []


def test_the_table_names_commands_alone() -> None:
    known = {made.COMMAND for made in declared_commands()}
    assert exit_codes.CODES.keys() <= known


def test_help_prints_the_codes() -> None:
    _, said, _ = mmrepro("logs", "--help")
    assert "1  the log or the dump shows a failure" in said
    _, said, _ = mmrepro("bisect-run", "--help")
    assert "125" in said


def test_the_log_of_a_dead_server_is_a_problem(dead_server: Path) -> None:
    assert mmrepro("logs", dead_server)[0] == ExitCode.NOT_AS_EXPECTED
    assert mmrepro("logs", dead_server, "--exit-zero")[0] == 0


def test_exit_zero_leaves_errors_alone(tmp_path: Path) -> None:
    code, _, _ = mmrepro("logs", tmp_path / "none.log", "--exit-zero")
    assert code == ExitCode.USAGE
    assert mmrepro("find", "zzz no such words", "--exit-zero")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["find", "Expected a cached item"],
        ["find", "no failure has these words"],
        ["logs", "LOG"],
        ["why", "LOG"],
        ["list"],
        ["list", "--alive"],
        ["show", "ghost-key-eviction"],
        ["show", "--claims"],
        ["check"],
        ["incidents"],
        ["env", "list"],
        ["env", "warm", "status"],
        [
            *("kv-budget", "--free", "6784MiB", "--runtime", "5061MiB"),
            *("--block-bytes", "8388608", "--cache-max-entry-count", "0.1"),
        ],
        ["new", "odd-image", "--engine", "minivllm"],
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_each_document_begins_with_the_same_head(
    words: list[str],
    dead_server: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(dead_server) if word == "LOG" else word for word in words]
    code, out, error = mmrepro(*words, "--json")
    document = json.loads(out)
    assert [*document][:5] == HEAD, error
    assert document["exit_code"] == code
    assert document["summary"]
    places = {urn: place for urn, _, place in documents_by_urn()}
    schema = json_schema([places[document["$id"]]])
    jsonschema.validate(document, schema)


@pytest.mark.slow
def test_each_command_with_json_has_a_schema_that_begins_with_the_head() -> None:
    for made in declared_commands():
        if "json" in made.__dataclass_fields__ and made.COMMAND != "watch":
            assert made.DOCUMENTS, made.COMMAND
    found = [*documents_by_urn()]
    assert len(found) > 30
    for urn, _, place in found:
        schema = json_schema([place])
        jsonschema.Draft202012Validator.check_schema(schema)
        assert [*schema["properties"]][:5] == HEAD, urn
        assert schema["properties"]["$id"] == {"const": urn}


def test_schema_by_kind() -> None:
    code, out, _ = mmrepro("schema", "logs")
    assert (code, json.loads(out)["properties"]["$id"]) == (
        0,
        {"const": "urn:mmrepro:logs:1"},
    )
    code, _, error = mmrepro("schema", "log")
    assert (code, "Did you mean logs?" in error) == (ExitCode.USAGE, True)
