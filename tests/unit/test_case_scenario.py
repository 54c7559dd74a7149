"""A case as a scenario's trigger, against a FAKE server, and the conditions that go
with it."""

import asyncio
from pathlib import Path

import pytest
from fake_server import FakeServer, Reply, answering, completion, http, in_turn, silent
from made_up import at, hung, probed, processes, request
from mmrepro.base.errors import UsageError
from mmrepro.engines import get_engine
from mmrepro.failure.signature import Truth, checks
from mmrepro.failure.signature.views import Requests
from mmrepro.probes.data import (
    Frame,
    StackSample,
    StacksData,
    ThreadStack,
)
from mmrepro.scenario.more import case_arrived, fails_in_server
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case, Message, Operation, ServerWanted
from mmrepro.traffic.case.sending import play_case
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence import Evidence, Missing
from test_drive import drive

FINE = answering(http(200, completion()))
REFUSED = answering(http(400, b'{"message": "too long"}'))


def kept(folder: Path) -> Path:
    def one(id: str, *after: str) -> Operation:
        return Operation(
            id=id, after=list(after), messages=[Message(role="user", content=id)]
        )

    case = Case(
        server=ServerWanted(engine="minivllm", release="0.1"),
        operations=[one("a"), one("b", "a.end"), one("c", "b.end")],
    )
    write_case(case, folder)
    return folder


def played(
    tmp_path: Path, reply: Reply
) -> tuple[bool, list[tuple[str, int | None]], int]:
    folder, whole, pending = kept(tmp_path / "case"), [], []

    async def use(drive: Drive, _: FakeServer) -> None:
        whole.append(await play_case(drive, folder))
        pending.append(len(drive.pending))
        await drive.collect()

    (tmp_path / "run").mkdir()
    recorder = drive(tmp_path / "run", reply, use, deadline_s=1.0, suspect_s=0.3)
    sent = [(r.label, r.status) for r in recorder.evidence.requests]
    return whole[0], sent, pending[0]


def test_a_case_is_sent_by_its_barriers(tmp_path: Path) -> None:
    whole, sent, pending = played(tmp_path, in_turn(REFUSED, FINE))
    assert (whole, sent, pending) == (True, [("a", 400), ("b", 200), ("c", 200)], 0)


def test_a_request_that_hangs_ends_it_and_waits_on(tmp_path: Path) -> None:
    whole, sent, pending = played(tmp_path, in_turn(FINE, silent))
    assert (whole, sent, pending) == (False, [("a", 200), ("b", None)], 1)


def test_without_a_case_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        asyncio.run(play_case(None, tmp_path))  # type: ignore[arg-type]


def requests(*records: object) -> Requests:
    return Requests(Evidence(requests=list(records)))  # type: ignore[arg-type]


def test_what_arrived_and_what_fails_is_told_apart() -> None:
    arrived = case_arrived(("a",), "b").check
    fails = fails_in_server("b").check
    assert arrived is not None
    assert fails is not None
    refused = request("trigger", "a", 400)
    for status, shows in ((200, Truth.NOT_MET), (500, Truth.MET), (400, Truth.NOT_MET)):
        seen = requests(refused, request("trigger", "b", status))
        assert (arrived(seen).truth, fails(seen).truth) == (Truth.MET, shows)
    assert arrived(requests(request("trigger", "a"), hung("b"))).truth is Truth.NOT_MET
    with pytest.raises(Missing):
        arrived(requests(refused))
    assert fails(requests(refused, hung("b"))).truth is Truth.NOT_MET
    broken = request("trigger", "b", None, error="connection reset")
    assert fails(requests(broken)).truth is Truth.MET


def sample(*functions: str) -> StackSample:
    """``functions``: outermost first."""
    frames = [Frame(function=f, file="f.py", line=1) for f in reversed(functions)]
    thread = ThreadStack(tid=1, name="t", active=True, owns_gil=True, frames=frames)
    other = ThreadStack(tid=2, name="u", active=False, owns_gil=False, frames=[])
    return StackSample(pid=1, taken=at(20), blocking=False, threads=[other, thread])


@pytest.mark.parametrize(
    ("samples", "truth"),
    [
        ([sample("loop", "take", "put")] * 3, Truth.MET),
        ([sample("loop", "decorated", "take", "put", "pop")] * 3, Truth.MET),
        ([sample("loop", "take", "put")] * 2 + [sample("loop", "take")], Truth.NOT_MET),
        ([sample("put", "take", "loop")] * 3, Truth.NOT_MET),
        ([sample("loop", "take", "put")] * 2, Truth.UNKNOWN),
        ([], Truth.UNKNOWN),
    ],
)
def test_a_hang_stands_where_every_sample_is(
    samples: list[StackSample], truth: Truth
) -> None:
    found = checks.stays_below(StacksData(samples=samples), ("loop", "take", "put"))
    assert found.truth is truth


def test_a_server_that_died_is_gone() -> None:
    engine = get_engine("minivllm")

    def evidence(state: str, **more: object) -> Evidence:
        core = processes(0.0).processes[0].model_copy(update={"state": state})
        data = processes(0.0).model_copy(update={"processes": [core] if state else []})
        return Evidence(probes=[probed(data)], **more)  # type: ignore[arg-type]

    assert checks.core_gone(evidence("S"), engine).truth is Truth.NOT_MET
    assert checks.core_gone(evidence("Z"), engine).truth is Truth.MET
    assert checks.core_gone(evidence(""), engine).truth is Truth.MET
    assert checks.core_gone(evidence("S", engine_exit=-9), engine).truth is Truth.MET
    with pytest.raises(Missing):
        checks.core_gone(Evidence(), engine)
