"""Commands that became an option of another one: what is typed instead."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_server import answering, completion, http, in_turn, serving
from in_process import mmrepro
from jsonschema import Draft202012Validator
from mmrepro.base.options import Command, declared
from mmrepro.runs.starter import ROOT_VARIABLE
from test_options import BY_NAME

FOLDED = {
    ("accept", "--device", "cuda"): "mmrepro matrix run docs/gpu.toml --out accepted",
    ("claims",): "mmrepro show SCENARIO --claims",
    ("claims", "ghost-key-eviction", "--json"): "mmrepro show SCENARIO --claims",
    ("claims", "--help"): "mmrepro show SCENARIO --claims",
    ("warm",): "mmrepro env warm --help",
    ("warm", "start", "ghost-key-eviction"): "mmrepro env warm --help",
    ("collide", "--bits", "30"): (
        "python -m mmrepro.scenarios.pad_value_collision.collide --help"
    ),
    ("probe", "stacks", "--pid", "4576"): "mmrepro diagnose URL --only KIND",
}
"""By what is typed: the command to type instead."""


@pytest.mark.parametrize("words", FOLDED, ids=" ".join)
def test_a_folded_command_says_what_to_type_instead(words: tuple[str, ...]) -> None:
    code, printed, complaint = mmrepro(*words)
    sentence, instead = complaint.splitlines()
    assert (code, printed) == (2, "")
    assert sentence.endswith(".")
    assert instead == f"Next: {FOLDED[words]}"


def test_a_folded_command_is_in_no_list() -> None:
    lines = mmrepro("--help")[1].splitlines()
    listed = [line.split()[0] for line in lines if line.strip()]
    assert not {words[0] for words in FOLDED} & set(listed)


# ---------------------------------------------------------------- show --claims


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("show", "ghost-key-eviction", "mm-cache-desync"),
        ("show", "ghost-key-eviction", "--status", "refuted"),
        ("show", "ghost-key-eviction", "--claims", "--variant", "x"),
    ],
    ids=" ".join,
)
def test_show_says_which_options_go_together(words: tuple[str, ...]) -> None:
    code, printed, complaint = mmrepro(*words)
    assert (code, printed, len(complaint.splitlines())) == (2, "", 2)


def test_claims_of_several_scenarios_are_shown_together() -> None:
    names = ("ghost-key-eviction", "mm-cache-desync")
    document = json.loads(mmrepro("show", *names, "--claims", "--json")[1])
    assert {claim["scenario"] for claim in document["claims"]} == set(names)


# ---------------------------------------------------------------- env warm


def test_what_is_kept_warm_is_shown_below_env(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    code, printed, complaint = mmrepro("env", "warm", "status")
    assert (code, complaint) == (0, "")
    assert "mmrepro env warm start" in printed
    assert mmrepro("env", "warm", "stop", "0123")[0] == 2


@pytest.mark.parametrize("name", ["start", "status", "stop"])
def test_help_of_env_warm_has_an_example(name: str) -> None:
    assert f"Example:  mmrepro env warm {name}" in mmrepro("env", "warm", name, "-h")[1]


# ---------------------------------------------------------------- diagnose --only


def test_one_kind_of_evidence_is_collected_by_diagnose(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 11-28 10:00:00 [core.py:1] up\n")
    words = ("diagnose", "--only", "logs", "--log", log, "--out", tmp_path / "raw")
    code, printed, complaint = mmrepro(*words)
    document = json.loads(printed)
    assert (code, complaint) == (0, "")
    assert (document["$id"], document["probe"]) == ("urn:mmrepro:probe:1", "logs")
    assert not list(tmp_path.glob("incidents"))


def test_the_model_of_an_inference_is_the_one_that_the_server_lists(
    tmp_path: Path,
) -> None:
    models = http(200, json.dumps({"data": [{"id": "theirs"}]}).encode())
    replies = in_turn(answering(models), answering(http(200, completion())))

    async def asked() -> tuple[int, list[bytes]]:
        async with serving(replies) as server:
            words = [server.url, "--only", "inference", "--out", str(tmp_path)]
            command = [sys.executable, "-m", "mmrepro", "diagnose", *words]
            done = await asyncio.to_thread(subprocess.run, command, check=False)
            return done.returncode, server.requests

    code, requests = asyncio.run(asked())
    assert (code, len(requests)) == (0, 2)
    assert b"theirs" in requests[1]


def test_what_cannot_be_collected_is_inconclusive(tmp_path: Path) -> None:
    gone = ("diagnose", "--only", "processes", "--pid", str(2**22), "--out", tmp_path)
    assert mmrepro(*gone)[0] == 3


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("--only", "stacks"), "mmrepro diagnose --pid PID --only stacks"),
        (("--only", "http"), "mmrepro diagnose URL --only http"),
        (("--only", "logs"), "mmrepro diagnose --log FILE --only logs"),
        (("http://a", "http://b", "--only", "gpu"), "mmrepro diagnose URL --only gpu"),
    ],
)
def test_what_a_kind_of_evidence_needs_is_said(
    words: tuple[str, ...], instead: str
) -> None:
    code, printed, complaint = mmrepro("diagnose", *words)
    assert (code, printed) == (2, "")
    assert complaint.splitlines()[1] == f"Next: {instead}"


# ---------------------------------------------------------------- --json-schema

DOCUMENTS = {name: made.DOCUMENTS for name, made in BY_NAME.items() if made.DOCUMENTS}
UNDESCRIBED = {
    "bisect-run",
    "bundle",
    "capture",
    "env list",
    "env warm start",
    "env warm status",
    "env wheelhouse",
    "find",
    "kv-budget",
    "new",
    "watch",
}
"""Commands whose JSON no schema describes."""


@pytest.mark.parametrize("command", DOCUMENTS)
def test_each_command_prints_the_schema_of_its_json(command: str) -> None:
    code, printed, complaint = mmrepro(*command.split(), "--json-schema")
    schema = json.loads(printed)
    assert (code, complaint) == (0, "")
    Draft202012Validator.check_schema(schema)
    assert ("anyOf" in schema) is (len(DOCUMENTS[command]) > 1)


def test_a_command_that_prints_json_has_its_schema() -> None:
    printing = {name for name, made in BY_NAME.items() if "json" in option_names(made)}
    assert printing == {*DOCUMENTS, *UNDESCRIBED}


def option_names(made: type[Command]) -> set[str]:
    return {option.field for option in declared(made)}
