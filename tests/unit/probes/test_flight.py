"""PyTorch's Flight Recorder in JSON.

``flight/`` was recorded: PyTorch 2.11 of vLLM 0.32.0's environment, two processes with
gloo, of which rank 1 never entered the third operation. ``flight/nccl`` is of NCCL
2.28.9 on one H200 (``benchmarks/nccl_ras.py``): rank 1 of three never entered the
fifth."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from mmrepro.failure.documents.diagnosis import TargetFacts, TargetProcess
from mmrepro.live.diagnose import discover
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.probes import flight
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.flight import FlightProbe, read

RECORDED = sorted((Path(__file__).parent / "flight").glob("*.json"))


def test_who_entered_the_last_operation(tmp_path: Path) -> None:
    data = run_probe(FlightProbe(RECORDED), tmp_path, 5).data
    assert data is not None
    (group,) = data.ranks[0].entered
    assert group == "0 default_pg"
    assert [(r.rank, r.entered[group], r.completed[group]) for r in data.ranks] == [
        (0, 3, False),
        (1, 2, True),
    ]
    assert data.ranks[0].operation[group] == "gloo:all_reduce"
    assert data.ranks[0].version == "2.10"


def test_who_entered_the_last_operation_of_nccl(tmp_path: Path) -> None:
    files = sorted((Path(__file__).parent / "flight/nccl").glob("*.json"))
    data = run_probe(FlightProbe(files), tmp_path, 5).data
    assert data is not None
    group = "0 default_pg"
    assert [(r.rank, r.entered[group], r.completed[group]) for r in data.ranks] == [
        (0, 5, False),
        (1, 4, True),
        (2, 5, False),
    ]
    assert data.ranks[0].operation[group] == "nccl:all_reduce"


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    (tmp_path / "trace_2").write_bytes(pickle.dumps(Bomb()))
    result = run_probe(FlightProbe([tmp_path / "trace_2", RECORDED[0]]), tmp_path, 5)
    assert result.data is not None
    assert list(result.data.unread.values()) == [
        "it is a pickle, which would run code: have it written as JSON"
    ]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"entries": 3}',
        '{"entries": [{"process_group": 3}]}',
        '{"entries": [{"process_group": ["0"], "collective_seq_id": "1"}]}',
        '{"entries": [{"process_group": ["0"], "collective_seq_id": true}]}',
        '{"entries": [{"process_group": ["0"], "collective_seq_id": -1}]}',
        "[" * 100_000,
        RECORDED[0].read_text()[:-9],
    ],
)
def test_what_is_no_dump(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_text(text)
    result = run_probe(FlightProbe([tmp_path / "trace_0"]), tmp_path, 5)
    assert (result.status, result.data) == (ProbeStatus.UNAVAILABLE, None)
    assert "trace_0: " in result.reason


def test_a_file_without_a_rank(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text('{"entries": []}')
    with pytest.raises(ValueError, match="rank"):
        read(tmp_path / "trace")
    (tmp_path / "trace").write_text(json.dumps({"entries": [], "rank": 4}))
    assert read(tmp_path / "trace").rank == 4


def test_a_file_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="larger than 100"):
        read(RECORDED[0])


def test_only_dumps_of_this_server_since_its_start_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fr_0", "fr_1.json", "fr_x", "fr_", "other_0"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "fr_2").write_text("{}")
    os.utime(tmp_path / "fr_2", (1, 1))  # of an earlier server
    (tmp_path / "fr_3").mkdir()
    me = TargetProcess(pid=os.getpid(), ppid=1, role="Worker_TP0", name="x", state="S")
    target = ServerTarget(
        TargetFacts(url="", place="local", root_pid=os.getpid(), processes=[me])
    )
    environ = f"A=1\0TORCH_FR_DUMP_TEMP_FILE={tmp_path}/fr_\0B=2\0".encode()
    real = discover.processes.read

    def environ_of(pid: int | str, name: str, *more: Any) -> bytes:
        return environ if name == "environ" else real(pid, name, *more)

    monkeypatch.setattr(discover.processes, "read", environ_of)
    monkeypatch.setattr(discover, "inside", lambda pid, path: Path(path))
    assert [file.name for file in discover.flight_files(target)] == [
        "fr_0",
        "fr_1.json",
    ]
    assert discover._dumped_to({"A": "1"}) == flight.PREFIX
