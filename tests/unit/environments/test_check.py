"""The check of the machine, its command, and the variables that children get."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import nvml as nvml_module
from mmrepro.base.machine.gpu import read_gpus
from mmrepro.base.machine.host import child_environment
from mmrepro.cli.check import check
from mmrepro.cli.env import app as env_app
from mmrepro.engines.environments import loading
from mmrepro.tools import check as checked
from nvml_replayed import Replayed, gpu, machine, mig, process
from typer import Typer
from typer.testing import CliRunner

app = Typer()
app.add_typer(env_app, name="env")
app.command()(check)
runner = CliRunner()


def test_children_do_not_get_what_pollutes() -> None:
    base = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_INDEX_URL": "u",
        "VIRTUAL_ENV": "/v",
        "UV_EXCLUDE_NEWER": "2020-01-01",
        "UV_DEFAULT_INDEX": "u",
        "SSL_CERT_FILE": "/c",
        "HTTPS_PROXY": "p",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    assert child_environment({"A": "b"}, base=base) == {
        "PATH": "/bin",
        "UV_DEFAULT_INDEX": "u",
        "SSL_CERT_FILE": "/c",
        "HTTPS_PROXY": "p",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "A": "b",
    }


def test_check_as_json(cache: Path) -> None:
    result = runner.invoke(app, ["check", "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["ok"] else 4)
    parts = {part["name"]: part for part in report["parts"]}
    assert {"uv", "py-spy", "ptrace", "strace", "gpu", "disk", "/dev/shm"} <= set(parts)
    assert all(part["ok"] or part["costs"] for part in parts.values())
    assert not parts["environments"]["ok"]


def test_what_is_missing_says_what_it_costs(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "find_py_spy", lambda: None)
    monkeypatch.setattr(checked.shutil, "which", lambda name: None)
    # Not how full this disk is.
    monkeypatch.setattr(checked, "free_bytes", lambda _: 1 << 40)
    result = runner.invoke(app, ["check"])
    assert result.exit_code == 4
    words = " ".join(result.stdout.split())
    assert "system calls are not counted" in words
    assert "Missing, and needed: py-spy, ptrace" in words


def gpu_part(nvml: Replayed, monkeypatch: pytest.MonkeyPatch) -> checked.Part:
    for name in ("CUDA_VISIBLE_DEVICES", "MMREPRO_GPU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checked, "read_gpus", lambda: read_gpus(nvml))
    return checked.gpu()


def test_a_gpu_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    part = gpu_part(machine(gpu(0, used=0.4)), monkeypatch)
    assert part.ok
    assert part.found == (
        "driver 580.159.03, CUDA 13.0; GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB of 80 "
        "GiB free"
    )


def test_gpus_in_use_are_said_and_one_that_is_free_suffices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = gpu(0, used=70, processes=(process(4194304, 70),))
    part = gpu_part(machine(busy, gpu(1, slices=[mig(0, "MIG-1")])), monkeypatch)
    assert part.ok
    assert "in use: a process of another PID namespace with 70 GiB" in part.found
    assert "MIG is on" in part.found
    part = gpu_part(machine(busy), monkeypatch)
    assert not part.ok
    assert "ends at once" in part.costs
    assert part.hint.startswith("MMREPRO_GPU=0 ")


def test_a_gpu_of_which_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    part = gpu_part(Replayed({}, init={"code": 18, "text": "mismatch"}), monkeypatch)
    assert (part.ok, "different versions" in part.found) == (False, True)
    monkeypatch.setattr(nvml_module.Path, "exists", lambda self: True)
    part = gpu_part(Replayed({}, init={"code": 12, "text": "Not Found"}), monkeypatch)
    assert (part.ok, "lack GPU facts" in part.costs) == (False, True)


def test_a_part_that_cannot_be_examined_is_missing() -> None:
    def broken() -> checked.Part:
        raise OSError("no /proc")

    part = checked._safely(broken)
    assert not part.ok
    assert "no /proc" in part.found


def test_env_commands(fake_uv: Path) -> None:
    assert "No environments yet" in runner.invoke(app, ["env", "list"]).stdout
    made = runner.invoke(app, ["env", "create", "vllm", "0.23.0", "--device", "cpu"])
    assert made.exit_code == 0, made.output
    (one,) = json.loads(runner.invoke(app, ["env", "list", "--json"]).stdout)[
        "environments"
    ]
    assert one["path"] in made.stdout
    assert one["release"] == "0.23.0"
    assert "0.23.0" in runner.invoke(app, ["env", "list"]).stdout
    assert (
        "would remove"
        in runner.invoke(app, ["env", "prune", "--all", "--dry-run"]).stdout
    )
    assert "removed 1" in runner.invoke(app, ["env", "prune", "vllm", "0.23.0"]).stdout
    assert "nothing to remove" in runner.invoke(app, ["env", "prune", "--all"]).stdout


def test_what_the_linker_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        b"\tlibtorch.so => not found\n\tlibnuma.so.1 => not found\n"
        b"python: /lib/libstdc++.so.6: version `CXXABI_1.3.15' not found "
        b"(required by /v/_C.abi3.so)\n"
    )

    def linker(
        *_: object, env: dict[str, str], **__: object
    ) -> CompletedProcess[bytes]:
        assert env["LD_TRACE_LOADED_OBJECTS"] == "1"
        return CompletedProcess([], 1, b"", words)

    monkeypatch.setattr(loading.subprocess, "run", linker)
    modules = {"_C*.so": [tmp_path / "_C.abi3.so"]}
    assert loading.missing_from_host(tmp_path / "python", modules) == {
        (
            "_C.abi3.so wants CXXABI_1.3.15, which this host's libstdc++.so.6 does "
            "not have"
        ): ("libstdc++.so.6"),
        "_C.abi3.so needs libnuma.so.1, which this host does not have": "libnuma.so.1",
    }


def test_a_linker_that_cannot_be_asked(tmp_path: Path) -> None:
    assert (
        loading.missing_from_host(tmp_path / "absent", {"m.so": [tmp_path / "m.so"]})
        == {}
    )
    assert loading.load_failures(tmp_path / "absent", {"m.so": [tmp_path / "m.so"]})
    assert loading.load_failures(tmp_path / "absent", {"m.so": []}) == [
        "the wheel holds no m.so"
    ]


def test_the_time_of_a_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(checked.time, "monotonic", lambda: next(clock))
    part = checked._safely(lambda: checked.Part(name="slow", ok=True, found="it"))
    assert (part.found, part.seconds) == ("it", 2.5)


def test_a_part_that_is_needed_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = checked.Part(
        name="gpu", ok=False, found="there is no NVIDIA driver on this machine"
    )
    monkeypatch.setattr(checked, "gpu", lambda: gone)
    without, needed = checked.examine(), checked.examine(["gpu", "cpu"])
    required = lambda report: {part.name for part in report.parts if part.required}  # noqa: E731
    assert required(needed) == required(without) | {"gpu", "cpu"}
    assert not needed.ok
    assert without.ok == all(
        part.ok for part in without.parts if part.name in required(without)
    )


def test_a_part_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="No part is called 'gpus'") as told:
        checked.examine(["gpus"])
    assert "gpu," in str(told.value.hint)
