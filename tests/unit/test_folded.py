"""Commands that became an option of another one: what is typed instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import mmrepro
from mmrepro.runs.starter import ROOT_VARIABLE

FOLDED = {
    ("claims",): "mmrepro show SCENARIO --claims",
    ("claims", "ghost-key-eviction", "--json"): "mmrepro show SCENARIO --claims",
    ("claims", "--help"): "mmrepro show SCENARIO --claims",
    ("warm",): "mmrepro env warm --help",
    ("warm", "start", "ghost-key-eviction"): "mmrepro env warm --help",
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
