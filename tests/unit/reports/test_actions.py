"""NOW, UNTIL FIXED, FIX: of what is known, and nothing that was just done."""

import pytest
from mmrepro.base.records import Moment
from mmrepro.failure.documents import (
    Assessment,
    Diagnosis,
    Fit,
    Match,
    ServerState,
    TargetFacts,
    TargetProcess,
)
from mmrepro.reports.actions import actions
from mmrepro.reports.blocks import words

MATCH = Match(
    scenario="ghost-key-eviction",
    title="EngineCore hangs",
    fit=Fit.MATCH,
    why="9 of 9 required conditions match",
    until_fixed="add `--mm-processor-cache-gb 0`: images are processed again",
    fix="upgrade to vLLM 0.24.0 (vllm#43595)",
)


def lines(state: ServerState, *matches: Match, folder: str = "") -> dict[str, str]:
    process = TargetProcess(pid=3189, ppid=1, name="vllm", role="APIServer", state="S")
    diagnosis = Diagnosis(
        taken=Moment.now(),
        target=TargetFacts(url="http://127.0.0.1:8000", place="local", port=8000),
        assessment=Assessment(state=state, sentence="It stopped."),
        matches=[*matches],
        incident_dir=folder,
    )
    diagnosis.target.processes = [process]
    return {when: words(what) for when, what in actions(diagnosis)}


def test_a_known_hang_names_the_pid_the_flag_and_the_release() -> None:
    said = lines(ServerState.FROZEN_PYTHON, MATCH, folder="incidents/d1")
    assert [*said] == ["NOW", "UNTIL FIXED", "FIX"]
    assert "restart the server (pid 3189)" in said["NOW"]
    assert "evidence is saved in incidents/d1" in said["NOW"]
    assert "--mm-processor-cache-gb 0" in said["UNTIL FIXED"]
    assert said["FIX"] == "upgrade to vLLM 0.24.0 (vllm#43595)."


def test_what_works_is_not_restarted() -> None:
    assert "do not restart" in lines(ServerState.OVERLOADED)["NOW"]
    assert "do not restart" in lines(ServerState.HEALTHY, MATCH)["NOW"]
    assert lines(ServerState.HEALTHY) == {}


@pytest.mark.parametrize("state", ServerState)
def test_every_state_has_its_lines(state: ServerState) -> None:
    said = lines(state)
    if state is not ServerState.HEALTHY:
        assert all(said.values())
        assert len(said) == 3
