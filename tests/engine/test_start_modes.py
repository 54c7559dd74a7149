"""Cold, forked and warm starts of real engines: what they share, and what is done where
one fails.

Mostly on minivllm, which starts in a second or two; vLLM, SGLang and LMDeploy start
warm in the other tests."""

import json
import os
import random
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import COMMAND, Finished, left_of, shared_memory, wait_for
from mmrepro.base import processes
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import STARTS_FILE, Environment, starts_seen
from mmrepro.engines.environments.store import used_by
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.start import ServerSpec, target
from mmrepro.runs.starter import IDLE_VARIABLE, MODE_VARIABLE, ROOT_VARIABLE, Starter
from mmrepro.scenario.registry import load_scenario

pytestmark = pytest.mark.engine
CONTRACT = ("mm-prefill-contract", "--variant", "slot-mapping")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands neither find nor keep parents, and no mode is asked for."""
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "warm"))
    monkeypatch.delenv(IDLE_VARIABLE, raising=False)
    monkeypatch.delenv(MODE_VARIABLE, raising=False)
    return tmp_path


def ready() -> Environment:
    """The environment of all that is run here."""
    return ensure(target(load_scenario("mm-prefill-contract"), RunCommand()))


def mmrepro(*arguments: str) -> Finished:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr, Path())


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    done = mmrepro("run", *arguments, "--json", "--out", str(folder))
    assert done.exit_code == 0, done.stderr
    return done.document


def mode_of(document: dict[str, Any]) -> tuple[str, str]:
    """The mode as the report's settings tell it, and why."""
    (setting,) = [
        s for s in document["engine"]["settings"] if s["name"] == "start mode"
    ]
    assert setting["value"] == document["engine"]["start_mode"]
    return setting["value"], setting["why"]


@pytest.mark.slow
def test_every_mode_finds_the_same(alone):
    seen = {}
    for mode in ("cold", "fork", "warm"):
        document = run(alone / mode, *CONTRACT, "--start-mode", mode)
        engine = document["engine"]
        assert mode_of(document)[0] == mode
        assert (engine["warm_parent"] is not None) is (mode == "warm")
        assert sum(engine["start_stages"].values()) == pytest.approx(
            engine["start_seconds"], abs=0.05
        )
        assert f"--start-mode {mode}" in document["command"]
        assert document["left_behind"] == []
        gate = [
            r["text"] for r in document["evidence"]["requests"] if r["phase"] == "gate"
        ]
        truths = {c["id"]: c["truth"] for c in document["verdict"]["conditions"]}
        seen[mode] = (
            document["verdict"]["outcome"],
            truths,
            gate,
            engine["command"][:3],
        )
    assert seen["cold"] == seen["fork"] == seen["warm"]
    assert seen["cold"][0] == "reproduced"


@pytest.mark.slow
def test_a_repeated_run_starts_from_one_parent(alone):
    done = mmrepro(
        "run", *CONTRACT, "--repeat", "2", "--json", "--out", str(alone / "out")
    )
    assert done.exit_code == 0, done.stderr
    engines = [
        json.loads((alone / f"out/run-{n}/incident.json").read_text())["engine"]
        for n in (1, 2)
    ]
    assert [e["start_mode"] for e in engines] == ["warm"] * 2
    assert len({e["warm_parent"]["pid"] for e in engines}) == 1
    assert [e["warm_parent"]["served"] for e in engines] == [0, 1]
    assert not processes.alive(engines[0]["warm_parent"]["pid"]), (
        "it ended with the command"
    )


def test_a_kept_parent_is_used_by_the_next_run_shown_and_ended(alone):
    started = mmrepro("env", "warm", "start", *CONTRACT, "--json")
    assert started.exit_code == 0, started.stderr
    pid = started.document["pid"]
    try:
        document = run(alone / "after", *CONTRACT)
        assert mode_of(document)[0] == "warm"
        assert document["engine"]["warm_parent"]["pid"] == pid
        assert document["engine"]["warm_parent"]["kept"] is True
        (shown,) = mmrepro("env", "warm", "status", "--json").document["kept"]
        assert (shown["pid"], shown["served"]) == (pid, 1)
        assert "minivllm 0.1" in mmrepro("env", "warm", "status").stdout
        again = mmrepro("env", "warm", "start", *CONTRACT)
        assert "was warm already" in again.stdout
    finally:
        assert "ended minivllm 0.1" in mmrepro("env", "warm", "stop").stdout
    wait_for(lambda: not processes.alive(pid), 5, "the parent's end")
    assert "Nothing is kept warm" in mmrepro("env", "warm", "status").stdout
    nothing = mmrepro("env", "warm", "stop", "0123")
    assert nothing.exit_code == 2
    assert "mmrepro env warm status" in nothing.stderr


@pytest.mark.slow
def test_a_kept_server_outlives_its_parent(alone):
    document = run(alone / "run", *CONTRACT, "--start-mode", "warm", "--keep-server")
    parent, server = document["engine"]["warm_parent"]["pid"], document["server"]
    try:
        assert not processes.alive(parent)
        assert processes.alive(server["pid"])
    finally:
        os.kill(server["pid"], signal.SIGTERM)
    wait_for(
        lambda: not left_of(alone / "run", shared_memory()), 10, "the server's end"
    )


# ---------------------------------------------------------- where a mode cannot be used

MINE = """
    from mmrepro.base.records import StandIn
    from mmrepro.scenario.more import Patch
    from mmrepro.scenario.registry import load_scenario

    BASE = load_scenario("mm-prefill-contract").with_variant("slot-mapping")

    class Mine(type(BASE)):
        name = "mine"
        patches = (Patch({folder!r}, StandIn(name={folder!r}, replaces="nothing", why="a test")),)

    SCENARIO = Mine()
"""


@pytest.fixture
def standing_in(alone: Path) -> Iterator[Any]:
    """``standing_in(code)``: a scenario file whose engine has a stand-in with that
    code."""
    environment = ready()
    known = environment.state_dir / STARTS_FILE
    before = known.read_bytes() if known.exists() else None

    def make(code: str) -> tuple[str, Any]:
        folder = alone / "standin"
        folder.mkdir()
        (folder / "standin.py").write_text(textwrap.dedent(code))
        file = alone / "mine.py"
        file.write_text(textwrap.dedent(MINE).format(folder=str(folder)))
        return str(file), lambda: starts_seen(environment.state_dir).modes

    yield make
    if before is None:
        known.unlink(missing_ok=True)
    else:
        known.write_bytes(before)


@pytest.mark.slow
def test_an_environment_that_cannot_be_warmed_is_forked_and_says_why(
    standing_in, alone
):
    mine, known = standing_in("import os, sys; sys.kept = os.pipe()")
    document = run(alone / "run", mine, "--start-mode", "warm")
    mode, why = mode_of(document)
    assert mode == "fork"
    assert "not warm: its imports opened pipe:" in why
    assert document["verdict"]["outcome"] == "reproduced"
    (refused,) = [seen for seen in known().values() if not seen.works]
    assert refused.why.startswith("its imports opened pipe:")
    listed = mmrepro("env", "list", "--json").document["environments"]
    assert any(
        not seen["works"]
        for env in listed
        for seen in env["starts"].values()
        if env["starts"]
    )
    # From now on it is known, and not tried again where nobody asks for it.
    plan = ServerSpec(load_scenario(mine), RunCommand(), ready(), alone).plan(1)
    mode, reasons = Starter(several=True).choose(plan, ready())
    assert mode is StartMode.FORK
    assert reasons[0].startswith("not warm: its imports opened pipe:")


def test_a_fork_that_does_not_start_is_tried_cold(standing_in, alone):
    mine, known = standing_in(
        """
        import sys
        if any("forked.main" in word for word in sys.orig_argv):
            raise RuntimeError("not in a fork")
        """
    )
    document = run(alone / "run", mine)
    mode, why = mode_of(document)
    assert mode == "cold"
    assert "a start in mode fork failed" in why
    assert "not in a fork" in (alone / "run/evidence/engine-start-1.log").read_text()
    assert [name.split()[0] for name, seen in known().items() if not seen.works] == [
        "fork"
    ]


def test_a_server_that_starts_in_no_mode_is_tried_cold_before_it_is_said(
    standing_in, alone
):
    mine, known = standing_in("raise RuntimeError('nowhere')")
    before = known()
    failed = mmrepro("run", mine, "--json", "--out", str(alone / "run"))
    assert failed.exit_code == 4
    assert "Traceback" not in failed.stderr
    incident = json.loads((alone / "run/incident.json").read_text())
    assert incident["engine"]["start_mode"] == "cold"
    assert known() == before, "it says nothing of the modes"


def test_a_usage_error_is_not_tried_again(alone):
    failed = mmrepro(
        "run", *CONTRACT, "--server-arg=--no-such", "--out", str(alone / "run")
    )
    assert failed.exit_code == 4
    assert not list((alone / "run/evidence").glob("engine-start-*.log"))


@pytest.mark.slow
def test_kill_9_at_random_moments_leaves_nothing(alone):
    """Five moments of minivllm; benchmarks/hardening/kills.py has more, and other
    signals."""
    environment = ready()
    shm_before, before = shared_memory(), set(used_by(environment.path))
    moments = random.Random(12)
    for number in range(5):
        folder = alone / str(number)
        process = subprocess.Popen(
            [*COMMAND, "run", *CONTRACT, "--start-mode", "warm", "--out", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(moments.uniform(0.3, 6))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

        def left(folder: Path = folder) -> list[str]:
            running = set(used_by(environment.path)) - before
            return [*map(processes.label, running), *left_of(folder, shm_before)]

        deadline = time.monotonic() + 10
        while left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left(), f"kill {number}"
