"""Cases on real minivllm servers."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mmrepro.base.records import Fidelity
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.failure.documents import INCIDENT_FILE, Incident
from mmrepro.runs.judge import Deadlines, derive
from mmrepro.runs.play.options import Measuring, PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.traffic.case.model import (
    Case,
    Message,
    Noise,
    Operation,
    Part,
    ServerWanted,
)
from mmrepro.traffic.case.sending import Played, PlayState, Reading
from mmrepro.traffic.evidence import RequestRecord

pytestmark = pytest.mark.engine

SERVER = ServerWanted(
    engine="minivllm", release="0.1", model="qwen3", args=["--vision=fake"]
)
GHOST = [
    *SERVER.args,
    "--block-size=16",
    "--fault=ghost-key-lru",
    "--mm-cache-tokens=130",
]
SIZE = TinyQwen3().image_size()


def op(
    id: str, *after: str, text: str = "hi", image: str = "", **more: object
) -> Operation:
    parts = [Part(image=image)] if image else []
    content = [*parts, Part(text=text)]
    fields = {
        "parameters": {"max_tokens": 8, "temperature": 0, "ignore_eos": True},
        **more,
    }
    return Operation.model_validate(
        {
            "id": id,
            "after": after,
            "messages": [Message(role="user", content=content)],
            **fields,
        }
    )


def case(*operations: Operation, args: list[str] | None = None) -> Case:
    names = sorted({name for one in operations for name in one.images})
    return Case(
        server=SERVER.model_copy(update={"args": args or SERVER.args}),
        images={name: Noise(seed=n, size=SIZE) for n, name in enumerate(names)},
        operations=list(operations),
    )


def ghost() -> Case:
    fills = [
        op(f"fill{n}", f"fill{n - 1}.end" if n else "again.end", image=f"f{n}")
        for n in range(6)
    ]
    long = op("long", text="x" * 2100, image="X")
    return case(long, op("again", "long.end", image="X"), *fills, args=GHOST)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with Player(
        SERVER, folder=tmp_path_factory.mktemp("session"), timeout_s=120
    ) as made:
        yield made


@pytest.fixture
def quick() -> PlayOptions:
    return PlayOptions(deadlines=derive([0.1]))


def read_incident(folder: Path) -> Incident:
    return Incident.model_validate_json((folder / INCIDENT_FILE).read_bytes())


def sent(played: Played, label: str) -> RequestRecord:
    record = played.record(label)
    assert record is not None
    return record


def seen(reading: Reading | None) -> Reading:
    assert reading is not None
    return reading


def nothing_left(folder: Path) -> None:
    incident = read_incident(folder)
    assert incident.left_behind == []
    assert (incident.state, incident.fidelity) == ("complete", Fidelity.TEACHING_ENGINE)


def test_deadlines_are_those_of_a_gate(player: Player) -> None:
    deadlines = player.calibrate()
    assert player.deadlines is deadlines
    assert deadlines.answer_s >= 6.0
    assert "slowest warm request" in deadlines.rule
    incident = read_incident(player.folder / "calibrate")
    labels = [r.label for r in incident.evidence.requests]
    assert labels == ["gate: image 1 (cold)", "gate: image 2", "gate: text only"]
    assert incident.engine.start_mode == "warm"
    assert incident.fidelity == Fidelity.TEACHING_ENGINE
    assert incident.host.cores > 0


def test_streams_and_a_client_that_leaves(
    player: Player, tmp_path: Path, quick: PlayOptions
) -> None:
    long = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}
    # A busy server may compute all of it, and is idle then.
    short = long | {"max_tokens": 40}
    played = player.play(
        case(
            op("s", stream=True, image="X"),
            op(
                "gone", "s.first-token", stream=True, leave="tokens>=3", parameters=long
            ),
            op("whole", "gone.end", image="X"),
            op("early", "gone.end", leave="sent", parameters=short),
            op("refused", "whole.end", text="x" * 2100),
        ),
        None,
        quick,
        tmp_path / "p",
    )
    assert (played.state, played.said) == (
        PlayState.ENDED,
        "every request has its answer",
    )
    s, gone, whole, early = (
        sent(played, one) for one in ("s", "gone", "whole", "early")
    )
    assert (s.done, s.finish_reason, s.completion_tokens, s.cached_tokens) == (
        True,
        "length",
        8,
        0,
    )
    assert 1 <= s.pieces <= 8  # half a character is no piece of its own
    assert (gone.left, gone.pieces, gone.answered) == (True, 3, False)
    assert (early.left, early.pieces, early.status) == (True, 0, None)
    assert whole.text == s.text != ""
    assert whole.images[0].sha256 == s.images[0].sha256
    assert sent(played, "refused").status == 400
    assert sent(played, "canary before").text == sent(played, "canary after").text != ""
    for reading in map(seen, (played.before, played.after)):
        assert reading.metrics["minivllm:num_requests_running"] == 0
        assert all((reading.threads, reading.files, reading.rss_bytes))
    made = "minivllm:generation_tokens_total"
    assert seen(played.after).metrics[made] >= seen(played.before).metrics[made] + 2 * 8
    assert played.start_s > 0
    assert played.causes == []
    assert (tmp_path / "p" / played.log_file).is_file()
    nothing_left(tmp_path / "p")


def test_blocks_and_no_look(player: Player, tmp_path: Path, quick: PlayOptions) -> None:
    made = case(*(op(f"r{n}") for n in range(6)))
    options = PlayOptions(quick.deadlines, look="none", blocks=3, canary=False)
    played = player.play(made, None, options, tmp_path / "p")
    asked = [block.metrics["minivllm:request_success_total"] for block in played.blocks]
    assert asked == [2, 4, 6]
    assert (played.before, played.after) == (None, None)
    assert len(played.evidence.requests) == 6


def test_a_hang_is_judged_early_and_while_it_lasts(
    player: Player, tmp_path: Path, quick: PlayOptions
) -> None:
    looked: list[str] = []

    def look(url: str, pid: int, log: Path) -> None:
        assert url.startswith("http://127.0.0.1:")
        assert log.is_file()
        assert Path(f"/proc/{pid}").exists()
        looked.append(url)
        time.sleep(4)  # beyond the deadline: nobody gives up meanwhile

    played = player.play(ghost(), None, quick, tmp_path / "p", on_look=look)
    assert (played.state, played.early) == (PlayState.HUNG, True)
    (stuck,) = played.stuck
    assert stuck.startswith("fill")
    assert stuck in played.said
    record = sent(played, stuck)
    assert record.timed_out
    assert record.latency_s > 6.4
    assert len(looked) == 1
    assert played.unsent == [f"fill{n}" for n in range(int(stuck[4:]) + 1, 6)]
    assert played.stack[0].within("put")
    assert played.stack[0].active
    assert played.causes[0].startswith(
        "AssertionError: Expected a cached item for mm_hash="
    )
    assert played.frames[0] == "received"
    nothing_left(tmp_path / "p")


@pytest.mark.slow
def test_without_haste_a_hang_is_silence_until_the_deadline(
    player: Player, tmp_path: Path, quick: PlayOptions
) -> None:
    options = PlayOptions(quick.deadlines, early=False, look="none")
    played = player.play(ghost(), None, options, tmp_path / "p")
    assert (played.state, played.early) == (PlayState.HUNG, False)
    assert 6.0 <= sent(played, played.stuck[0]).latency_s < 2 * 6.0
    assert played.stack[0].within("put")


@pytest.mark.slow
def test_slow_work_is_no_hang(
    player: Player, tmp_path: Path, quick: PlayOptions
) -> None:
    """A deadline that is far too short for the answer, while the engine is at work on
    it."""
    made = case(
        op(
            "long",
            parameters={"max_tokens": 1500, "temperature": 0, "ignore_eos": True},
        )
    )
    usual = sent(player.play(made, None, quick, tmp_path / "a"), "long").latency_s
    options = PlayOptions(Deadlines(answer_s=usual / 4, suspect_s=usual / 10))
    played = player.play(made, None, options, tmp_path / "b")
    record = sent(played, "long")
    assert record.latency_s > usual / 4, "the answer was too fast for this test"
    assert (played.state, record.completion_tokens) == (PlayState.ENDED, 1500), (
        played.said
    )


def test_a_server_that_is_killed_has_died(
    player: Player, tmp_path: Path, quick: PlayOptions
) -> None:
    long = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    made = case(
        op("a", stream=True, parameters=long),
        op("b", stream=True, parameters=long),
        op("never", "a.end", "b.end"),
    )
    folder = tmp_path / "p"
    threading.Thread(target=_kill_when_it_serves, args=(folder,), daemon=True).start()
    played = player.play(made, None, quick, folder)
    assert (played.state, played.exit_code) == (PlayState.DIED, -signal.SIGKILL)
    assert played.said == "the server ended with -9"
    assert played.unsent == ["never"]
    assert played.after is None
    assert "Error" in sent(played, "a").error
    assert not sent(played, "a").timed_out
    nothing_left(folder)


def _kill_when_it_serves(folder: Path) -> None:
    log = folder / "evidence" / "engine.log"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with_requests = log.read_text(errors="replace") if log.exists() else ""
        if with_requests.count("Added request") >= 3:  # the canary's, and both
            pid = with_requests.partition("EngineCore pid=")[2].partition(")")[0]
            os.kill(int(pid), signal.SIGKILL)
            return
        time.sleep(0.005)


def test_a_server_that_does_not_start(
    player: Player, tmp_path: Path, quick: PlayOptions
) -> None:
    played = player.play(case(op("a"), args=["--no-such"]), None, quick, tmp_path / "p")
    assert (played.state, played.unsent) == (PlayState.START_FAILED, ["a"])
    assert "unrecognized arguments: --no-such" in played.causes[0]
    assert read_incident(tmp_path / "p").state == "failed"


def test_two_at_a_time(player: Player, tmp_path: Path, quick: PlayOptions) -> None:
    made = case(*(op(f"r{n}", image=f"i{n}", stream=True) for n in range(8)))

    def play(number: int) -> Played:
        return player.play(made, None, quick, tmp_path / f"p{number}")

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(play, range(4)))
    texts = [[sent(one, f"r{n}").text for n in range(8)] for one in both]
    assert [one.state for one in both] == [PlayState.ENDED] * 4
    assert texts[0] == texts[1] == texts[2] == texts[3]
    for number in range(4):
        nothing_left(tmp_path / f"p{number}")


def test_cancelled_it_stops_its_server(tmp_path: Path, quick: PlayOptions) -> None:
    with Player(SERVER, folder=tmp_path / "session") as other:
        long = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True}
        made = case(
            op("a", stream=True, parameters=long), op("b", "a.tokens>=2", leave="sent")
        )
        threading.Timer(0, _cancel_when, args=(other, tmp_path / "p")).start()
        with pytest.raises(KeyboardInterrupt):
            other.play(made, None, quick, tmp_path / "p")
    incident = read_incident(tmp_path / "p")
    assert (incident.state, incident.left_behind) == ("interrupted", [])


def _cancel_when(player: Player, folder: Path) -> None:
    log = folder / "evidence" / "engine.log"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if log.exists() and log.read_text(errors="replace").count("Added request") >= 2:
            break
        time.sleep(0.005)
    player.cancel()


# ---------------------------------------------------------------- two sides, in turn


@pytest.mark.parametrize("together", [True, False])
def test_a_block_measures_a_server_of_each_side(
    player: Player, tmp_path: Path, *, together: bool
) -> None:
    """Half the KV cache, which is what differs; the rest is measured, whatever it
    is."""
    half = SERVER.model_copy(update={"args": [*SERVER.args, "--num-blocks", "101"]})
    old = SERVER.model_copy(update={"args": [*SERVER.args, "--num-blocks", "201"]})
    ops = [
        op(f"r{n}").model_copy(update={"at_s": n * 0.1, "stream": True})
        for n in range(6)
    ]
    wanted = Measuring(
        old, half, case(*ops), together=together, part_s=0.3, seconds=0.4
    )
    block = player.measure(wanted, tmp_path / "block")
    assert not block.error
    assert block.changes["kv-cache"] == pytest.approx(math.log(0.5), abs=0.01)
    timed = {"ttft", "itl", "tpot", "latency", "throughput", "start", "rss", "hit-rate"}
    assert timed <= block.changes.keys()
    assert 0 < block.old["itl"] < block.old["latency"] < 5
    assert 0 <= block.client_busy < 1
    assert len(block.spread["latency"][0]) == 21


def test_a_block_for_one_metric_alone(player: Player, tmp_path: Path) -> None:
    ops = [op(f"r{n}").model_copy(update={"stream": True}) for n in range(6)]
    wanted = Measuring(SERVER, SERVER, case(*ops), seconds=0.2, only="itl-saturated")
    block = player.measure(wanted, tmp_path / "block")
    assert {"itl-saturated", "throughput"} <= block.changes.keys()
    assert not {"itl", "ttft", "latency"} & block.changes.keys()


def test_a_side_that_does_not_start_is_said(player: Player, tmp_path: Path) -> None:
    broken = SERVER.model_copy(update={"args": ["--no-such-option"]})
    block = player.measure(Measuring(SERVER, broken, case(op("r"))), tmp_path / "block")
    assert block.error.startswith("a server did not start: ")
    assert not block.changes
