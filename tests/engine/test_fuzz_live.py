"""Fuzzing real minivllm servers with a mistake that it is not told of; killed, and gone
on with."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from live import COMMAND, children, wait_for
from live_server import serving
from mmrepro.base.records import without_head
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.failure.documents.replay import (
    EPISODES_FILE,
    FUZZ_FILE,
    VERDICTS_FILE,
    Fuzz,
)
from mmrepro.runs.starter import IDLE_VARIABLE, ROOT_VARIABLE
from mmrepro.traffic.case.files import read_case

pytestmark = pytest.mark.engine

HIDDEN = "--env=MINIVLLM_HIDDEN=fybg-znccvat"
"""slot-mapping, as benchmarks/planted/hidden.py reads it."""
PLANTED = Path(__file__).parents[2] / "benchmarks" / "planted"


def command(folder: Path, plugin: str, *options: str, budget: str = "45s") -> list[str]:
    """A session with a mistake of benchmarks/planted in the server."""
    server = [
        f"--server-arg={arg}" for arg in ("--plugin", str(PLANTED / f"{plugin}.py"))
    ]
    told = ["--out", str(folder / "fuzz"), "--budget", budget, "--json", *options]
    return [*COMMAND, "fuzz", "minivllm", *server, *told]


def fuzz(
    folder: Path, plugin: str, *options: str, budget: str = "45s"
) -> dict[str, Any]:
    """The document that ``mmrepro fuzz --json`` prints."""
    asked = command(folder, plugin, *options, budget=budget)
    done = subprocess.run(
        asked, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert Fuzz.model_validate(without_head(told)).exit_code == done.returncode, (
        done.stderr
    )
    return told


def exit_of(finding: Path, args: list[str], env: dict[str, str]) -> int:
    """What its script says of a server that was started by hand; without the variable
    the plugin switches nothing on."""
    given = (
        [*args] if env else [a for a in args if "plugin" not in a and "hidden" not in a]
    )
    place = finding / f"by-hand-{len(env)}"
    with serving(
        "minivllm", "0.1", TinyQwen3(), place, *given, max_model_len=512, env=env
    ) as at:
        script = [sys.executable, "-I", "-S", str(finding / "reproduce.py")]
        port = at.url.rpartition(":")[2]
        done = subprocess.run(
            [*script, "--port", port], capture_output=True, check=False
        )
    return done.returncode


@pytest.mark.slow
def test_a_hidden_fault_is_found_shrunk_and_its_script_holds(tmp_path: Path) -> None:
    told = fuzz(tmp_path, "hidden", HIDDEN, "--repeat", "2", budget="35s")
    assert Fuzz.model_validate(without_head(told)).exit_code == 1
    found = told["found"][0]["finding"]
    assert found["finding_class"] == "server-error"
    assert (found["known"], found["confirmed"]) == (None, True)
    assert (found["requests"], found["shrunk"]) == (1, True)
    folder = tmp_path / "fuzz" / told["found"][0]["folder"]
    left, _ = read_case(folder)
    (op,) = left.operations
    assert op.images, "the slot mapping of a picture is wrong"
    kept = Fuzz.model_validate_json((tmp_path / "fuzz" / FUZZ_FILE).read_bytes())
    assert {(one.name, one.tokens) for one in kept.learnt} >= {
        ("context", 512),
        ("block", 16),
        ("KV cache", 1024),
    }
    assert 25 <= kept.elapsed_s <= 50, "an episode that has no time does not begin"
    server = left.server
    assert [
        exit_of(folder, server.args, {}),
        exit_of(folder, server.args, server.env),
    ] == [0, 1]


@pytest.mark.slow
def test_killed_it_goes_on_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "warm"))
    # A fork server ends with the command that made it.
    monkeypatch.setenv(IDLE_VARIABLE, "0")
    variables = {ROOT_VARIABLE: str(tmp_path / "warm")}
    out = tmp_path / "fuzz"
    running = subprocess.Popen(
        command(tmp_path, "hidden", HIDDEN, budget="30s"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def shrinks() -> bool:
        return any(
            '"shrink"' in file.read_text() for file in out.glob(f"e*/{VERDICTS_FILE}")
        )

    wait_for(shrinks, 120, "it shrinks")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    wait_for(lambda: not children(variables), 30, "nothing of it is left")
    asked = [*COMMAND, "fuzz", "minivllm", "--resume", str(out), "--json"]
    done = subprocess.run(
        asked, capture_output=True, text=True, timeout=200, check=False
    )
    told = json.loads(done.stdout)
    assert (told["state"], done.returncode) == ("complete", 1), done.stderr
    assert "server-error" in {f["finding"]["finding_class"] for f in told["found"]}
    lines = list(map(json.loads, (out / EPISODES_FILE).read_text().splitlines()))
    ended = Counter(
        line["episode"]["number"] for line in lines if line["kind"] == "ended"
    )
    assert set(ended.values()) == {1}
    for file in out.glob(f"e*/{VERDICTS_FILE}"):
        verdicts = map(json.loads, file.read_text().splitlines())
        keys = Counter(
            (v["digest"], v["how"], v["index"])
            for v in verdicts
            if v["kind"] == "ended"
        )
        assert set(keys.values()) == {1}
    assert told["elapsed_s"] <= 45
    wait_for(lambda: not children(variables), 30, "nothing of it is left")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "classes"),
    [
        ("lost_block", {"residue"}),
        ("deadlock", {"hang"}),
        ("leak_on_abort", {"residue"}),
        ("swapped_answers", {"cross-talk", "wrong-answer"}),
    ],
)
def test_what_else_is_planted(tmp_path: Path, plugin: str, classes: set[str]) -> None:
    told = fuzz(tmp_path, plugin, "--blind", budget="240s")
    confirmed = [f["finding"] for f in told["found"] if f["finding"]["confirmed"]]
    assert classes & {finding["finding_class"] for finding in confirmed}, told


@pytest.mark.slow
def test_a_sound_engine_is_let_alone(tmp_path: Path) -> None:
    asked = [*COMMAND, "fuzz", "minivllm", "--budget", "3m", "--json"]
    asked += ["--out", str(tmp_path / "fuzz")]
    done = subprocess.run(
        asked, capture_output=True, text=True, timeout=400, check=False
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["found"], told["once"]) == (0, [], [])
