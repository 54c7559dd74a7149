"""``--device cuda`` of replay, fuzz and repro, as far as a machine without a GPU can
tell."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_process
import psutil
import pytest
from made_up_replay import ghost_case
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import gpu as gpu_module
from mmrepro.base.machine.gpu import Choice, choose, read_gpus
from mmrepro.campaign.trial import TrialOptions
from mmrepro.engines import spec_for
from mmrepro.failure.documents.ledger import Cell
from mmrepro.reports.replay import write_replay
from mmrepro.runs.play import player as players
from mmrepro.runs.play.options import Servers
from mmrepro.runs.play.players import Players
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.search.replay.attempts import CaseRun
from mmrepro.search.replay.bisected import ByReplay
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.session import Replaying, jobs_of
from mmrepro.search.replay.store import ReplayFolder
from mmrepro.search.repro.options import ReproCommand
from mmrepro.search.repro.report import asked_for
from mmrepro.search.repro.server_command import parse, translated
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import ServerWanted
from nvml_replayed import gpu, machine

SERVER = ServerWanted(engine="minivllm", release="0.1")


@pytest.mark.parametrize(
    "words",
    [
        ("fuzz", "minivllm"),
        ("replay", "case/case.json"),
        ("repro", "--server", "vllm serve a/b", "--client", "case/case.json"),
    ],
)
def test_without_a_gpu_it_ends_before_anything_is_made(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_module, "nvidia_driver", lambda: False)
    write_case(ghost_case(), tmp_path / "case", {})
    release = () if words[0] == "fuzz" else ("--release", "0.23.0")
    code, out, err = in_process.mmrepro(
        *words, *release, "--device", "cuda", "--out", "it"
    )
    assert (code, out) == (4, "")
    assert "No GPU can be used: there is no NVIDIA driver on this machine." in err
    assert "--device cpu runs without one" in err
    assert "not here yet" not in err, "nothing is announced"
    assert [one.name for one in tmp_path.iterdir()] == ["case"]


def test_the_order_its_environment_and_a_bisection_s_replay_have_the_device(
    tmp_path: Path,
) -> None:
    order = CaseRun("d", "deadlines", Servers(SERVER, device="cuda"))
    assert order.device == order.environment.device == "cuda"
    cell = Cell(scenario="replay", engine="minivllm", release="0.1", device="cuda")
    command = ByReplay(tmp_path).command(cell, TrialOptions())
    assert command.device == "cuda"
    session = Replaying(
        ReplayCommand(file=_case(tmp_path), server=SERVER, device="cuda"),
        write=write_replay,
    )
    assert session.servers.device == "cuda"


def _case(folder: Path) -> Path:
    return write_case(ghost_case(), folder / "case", {})


def test_players_of_two_devices_are_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Players()
    one, other = (here.of(Servers(SERVER, device=d), tmp_path) for d in ("cpu", "cuda"))
    assert [one.options.device, other.options.device] == ["cpu", "cuda"]
    assert here.of(Servers(SERVER, device="cuda"), tmp_path) is other
    here.end()


def test_a_gpu_is_taken_once_and_every_start_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken: list[str] = []

    @contextlib.contextmanager
    def leased() -> Iterator[Choice]:
        taken.append("taken")
        yield choose(read_gpus(machine(gpu(0))), {})
        taken.append("given back")

    made = SimpleNamespace(in_use=contextlib.nullcontext)
    monkeypatch.setattr(players, "leased_gpu", leased)
    monkeypatch.setattr(players, "have_environment", lambda spec, journal: made)
    monkeypatch.setattr(players, "note_environment", lambda journal, environment: None)
    player = players.Player(SERVER, folder=tmp_path, device="cuda")
    hosts = []
    for _ in range(2):
        journal: Any = SimpleNamespace(
            incident=SimpleNamespace(host=SimpleNamespace(gpus=[], gpu_facts=[])),
            recorder=SimpleNamespace(event=lambda *a, **k: None),
        )
        player._environment(spec_for("minivllm", "0.1", "cuda"), journal)
        hosts.append(journal.incident.host.gpus)
    assert hosts == [["NVIDIA H100 80GB HBM3"]] * 2
    assert taken == ["taken"]
    player.__exit__()
    assert taken == ["taken", "given back"]


def test_a_gpu_has_one_server_at_a_time_unless_more_are_asked_for() -> None:
    assert jobs_of(ReplayCommand(device="cuda")) == 1
    assert jobs_of(ReplayCommand(device="cuda", jobs=3)) == 3
    assert jobs_of(ReplayCommand(device="cuda", ray="auto")) is None


def test_what_began_on_a_gpu_is_not_gone_on_with_on_a_cpu(tmp_path: Path) -> None:
    asked = ReplayCommand(device="cuda", server=SERVER)
    with ReplayFolder(tmp_path, ghost_case(), asked, write_replay) as folder:
        assert folder.replay.fidelity == "gpu"
    with pytest.raises(UsageError, match="another --device: cuda"):
        ReplayFolder(tmp_path, ghost_case(), replace(asked, device="cpu"), write_replay)
    assert FuzzCommand(engine="vllm", device="cuda").decides["--device"] == "cuda"
    assert FuzzCommand(engine="vllm", device="cpu").decides["--device"] == ""


# ------------------------------------------------------------------ a report

REPORT = "--attention-backend FLASHINFER --dtype half --tensor-parallel-size 2"


def test_a_report_s_kernels_and_types_are_kept_on_a_gpu() -> None:
    asked = parse(f"VLLM_USE_FLASHINFER_SAMPLER=1 vllm serve m/m {REPORT}")
    there, here = translated(asked, None, "", gpu=True), translated(asked, None, "")
    assert list(there.args) == ["--attention-backend", "FLASHINFER", "--dtype", "half"]
    assert there.env == {"VLLM_USE_FLASHINFER_SAMPLER": "1"}
    assert [one.what for one in there.replaced if one.essential] == [
        "--tensor-parallel-size 2"
    ]
    assert (here.args, here.env) == ((), {})


@pytest.mark.parametrize(
    ("said", "device", "missing"),
    [
        ("CUDA error: an illegal memory access", "cuda", False),
        ("CUDA error: an illegal memory access", "cpu", True),
        ("NCCL error in ProcessGroup", "cuda", True),
    ],
)
def test_a_gpu_is_missing_where_there_is_none(
    said: str, device: str, missing: bool, tmp_path: Path
) -> None:
    issue = tmp_path / "issue.md"
    server, client = (
        "```sh\nvllm serve a/b\n```",
        "```sh\ncurl localhost:8000/v1/models\n```",
    )
    issue.write_text(f"# It dies\n{server}\n{client}\n```\nRuntimeError: {said}\n```\n")
    made = asked_for(ReproCommand(file=issue, release="0.23.0", device=device))
    assert bool(made.facts.claim.hardware) is missing


@pytest.mark.parametrize(
    ("cores", "gib", "servers"), [(4, 512, 2), (4, 1, 1), (2, 512, 1)]
)
def test_two_servers_at_a_time_need_cores_and_memory_for_two(
    cores: int, gib: int, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    memory = SimpleNamespace(available=gib << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert jobs_of(ReplayCommand(device="cpu")) == servers
