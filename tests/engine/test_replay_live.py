"""Traffic on real minivllm servers: found, shrunk and named; killed, and gone on
with."""

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from live import COMMAND, children, wait_for
from mmrepro.base.records import without_head
from mmrepro.failure.documents.replay import REPLAY_FILE, VERDICTS_FILE, Replay
from mmrepro.runs.starter import IDLE_VARIABLE, ROOT_VARIABLE
from mmrepro.traffic.case.files import read_case, write_case
from mmrepro.traffic.case.model import Case
from traces import culprits, culprits_trace

pytestmark = pytest.mark.engine

AMPLE = 4096
"""Of the picture cache, in tokens: nothing is ever evicted."""


def replay(case: Case, folder: Path, *options: str) -> dict[str, Any]:
    """The document that ``mmrepro replay --json`` prints."""
    file = write_case(case, folder / "traffic")
    command = [
        *COMMAND,
        "replay",
        str(file),
        "--out",
        str(folder / "replay"),
        "--json",
        *options,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert Replay.model_validate(without_head(told)).exit_code == done.returncode
    return told


def errors_trace(seed: int, *options: str) -> Case:
    """The same traffic as ``culprits_trace`` with room for every picture: the request
    with the picture of a refused one fails, and nothing hangs."""
    case = culprits_trace(seed)
    args = [
        "--fault",
        "ghost-key-lru",
        "--mm-cache-tokens",
        str(AMPLE),
        "--vision",
        "fake",
    ]
    return case.model_copy(
        update={"server": case.server.model_copy(update={"args": [*args, *options]})}
    )


def ended(folder: Path) -> Counter[tuple[str, str, int]]:
    lines = map(
        json.loads, (folder / "replay" / VERDICTS_FILE).read_text().splitlines()
    )
    return Counter(
        (d["digest"], d["how"], d["index"]) for d in lines if d["kind"] == "ended"
    )


@pytest.mark.slow
def test_three_culprits_of_sixty_are_exactly_those(tmp_path: Path) -> None:
    seed = 4
    told = replay(culprits_trace(seed), tmp_path, "--repeat", "1")
    hang = next(f for f in told["findings"] if f["finding_class"] == "hang")
    left, _ = read_case(tmp_path / "replay" / hang["folder"])
    assert [op.id for op in left.operations] == culprits(seed)
    assert (hang["shrunk"], hang["confirmed"], hang["requests"]) == (True, True, 3)
    assert (hang["known"], hang["requests_before"]) == ("borrowed-faults", 60)
    assert len(told["plays"]) <= 40
    kept = json.loads((tmp_path / "replay" / REPLAY_FILE).read_text())
    needed = {
        one["what"]: one
        for f in kept["findings"]
        if f["id"] == hang["id"]
        for one in f["needed"]
    }
    assert set(needed) >= {
        *culprits(seed),
        "--fault ghost-key-lru",
        "--mm-cache-tokens 40",
    }
    assert not any(needed[op]["by"] for op in culprits(seed)), (
        "each was left out by itself"
    )


@pytest.mark.slow
def test_a_fault_of_every_second_server_has_a_rate_with_an_interval(
    tmp_path: Path,
) -> None:
    seed = 4
    told = replay(
        errors_trace(seed, "--fault-probability", "0.5"), tmp_path, "--budget", "90"
    )
    assert "deterministic" not in json.dumps(told).lower()
    (finding,) = told["findings"]
    assert finding["finding_class"] == "server-error"
    assert finding["confirmed"]
    rate = finding["rate"]
    assert 0 < rate["low"] < 0.5 < rate["high"] <= 1
    left, _ = read_case(tmp_path / "replay" / finding["folder"])
    assert {op.id for op in left.operations} >= set(culprits(seed)[:2])
    assert finding["requests"] <= 6
    assert "--fault-probability" in left.server.args


@pytest.mark.slow
def test_killed_while_it_shrinks_it_goes_on_and_repeats_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "warm"))
    # A fork server ends with the command that made it.
    monkeypatch.setenv(IDLE_VARIABLE, "0")
    variables = {ROOT_VARIABLE: str(tmp_path / "warm")}
    file = write_case(errors_trace(4), tmp_path / "traffic")
    out = tmp_path / "replay"
    command = [*COMMAND, "replay", str(file), "--json"]
    verdicts = out / VERDICTS_FILE
    running = subprocess.Popen(
        [*command, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(
        lambda: verdicts.exists() and '"shrink"' in verdicts.read_text(),
        120,
        "it shrinks",
    )
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = ended(tmp_path)
    assert before
    wait_for(lambda: not children(variables), 30, "nothing of it is left")
    done = subprocess.run(
        [*command, "--resume", str(out)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    told = json.loads(done.stdout)
    assert (told["state"], done.returncode) == ("complete", 1), done.stderr
    after = ended(tmp_path)
    assert set(after.values()) == {1}
    assert before.keys() <= after.keys()
    assert len(after) > len(before)
    assert [f["requests"] for f in told["findings"]] == [2]
    wait_for(lambda: not children(variables), 30, "nothing of it is left")
