"""The evidence of a fall: taken once, before a restart, bounded, and judged afterwards
as the server itself would have been."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from enough_processors import assert_undecided, is_short, with_processors
from mmrepro.base.errors import UsageError
from mmrepro.base.machine.host import Lateness
from mmrepro.base.records import Moment
from mmrepro.failure.documents import Diagnosis, TargetFacts
from mmrepro.failure.documents.fall import FALL_FILE, FallRecord, read_fall
from mmrepro.live.diagnose import fall
from mmrepro.live.diagnose.fall import capture_fall, diagnose_fall, without_words
from mmrepro.live.diagnose.general import STANDSTILLS
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import Diagnosed, diagnose
from mmrepro.live.diagnose.shapes import shape_of
from mmrepro.live.watch.falls import FallKeeper, cut_to, prune
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.loop import ServerWatch
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.server import WatchServer
from mmrepro.probes import LogLine, LogsProbe, MetricsData, StacksData, run_probe
from mmrepro.traffic.evidence import Evidence
from test_watch_liveness import fake_engine

OK, FAILED, ABSENT = CheckOutcome.OK, CheckOutcome.FAILED, CheckOutcome.ABSENT
SECRET = "the patient's name is Ada"


def record() -> FallRecord:
    return FallRecord(
        taken=Moment.now(),
        why="why",
        deadline_s=1.0,
        complete=True,
        target=TargetFacts(url="http://127.0.0.1:9", place="local"),
        evidence=Evidence(),
    )


class Look:
    """Takes no evidence, and writes the record as a look does."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.held = threading.Event()
        self.held.set()

    def __call__(
        self, plan: DiagnoseCommand, folder: Path, why: str, within_s: float
    ) -> FallRecord:
        self.held.wait(10)
        self.reasons.append(why)
        made = record()
        (folder / FALL_FILE).write_text(made.model_dump_json())
        return made


def keeper(to: Path | str, **more: Any) -> tuple[FallKeeper, Look, list[str]]:
    asked = WatchCommand(url="http://127.0.0.1:9", capture=str(to), **more)
    look, told = Look(), []
    made = FallKeeper(asked, lambda kind, text: told.append(f"{kind}: {text}"))
    made._take = look
    return made, look, told


# ------------------------------------------------------------------ when


class Script:
    def __init__(self, *verdicts: CheckOutcome) -> None:
        self.left = list(verdicts)

    def check(self) -> Check:
        return Check(self.left.pop(0), time.monotonic(), 0.1, "the check", begun=True)


def watched(tmp_path: Path, *verdicts: CheckOutcome) -> tuple[ServerWatch, Look]:
    falls, look, _ = keeper(tmp_path)
    options = WatchCommand(url="http://127.0.0.1:9", http="9400", interval_s=0.5)
    made = ServerWatch(
        Script(*verdicts),  # type: ignore[arg-type]
        Health(failures=2, successes=1),
        options,
        falls=falls,
    )
    for _ in verdicts:
        made._step()
        falls.wait()
    return made, look


def test_the_first_failed_check_is_kept_and_each_fall_once(tmp_path: Path) -> None:
    _, look = watched(tmp_path, OK, FAILED, FAILED, FAILED, OK, FAILED)
    assert look.reasons == ["the check"] * 2
    assert len(list(tmp_path.glob(f"fall-*/{FALL_FILE}"))) == 2


def test_one_that_is_down_already_is_kept_at_the_first_check(tmp_path: Path) -> None:
    _, look = watched(tmp_path, FAILED)
    assert look.reasons == ["the check"]


def test_nothing_is_kept_of_a_healthy_server(tmp_path: Path) -> None:
    made, look = watched(tmp_path, OK, CheckOutcome.BUSY, OK, CheckOutcome.HELD, OK)
    assert made.capture_now("the pod ends") == ""
    assert look.reasons == []


def test_the_end_of_a_watch_keeps_what_does_not_answer(tmp_path: Path) -> None:
    made, look = watched(tmp_path, OK, CheckOutcome.BUSY)
    assert made.capture_now("the pod ends") == str(next(tmp_path.glob("fall-*")))
    assert look.reasons == ["the pod ends"]


def test_a_pre_stop_hook_waits_for_it(tmp_path: Path) -> None:
    made, look = watched(tmp_path, OK, CheckOutcome.BUSY)
    look.held.clear()
    threading.Timer(0.3, look.held.set).start()
    server = WatchServer(made, ("127.0.0.1", 0))
    try:
        host, port = server.address
        with urllib.request.urlopen(f"http://{host}:{port}/capture", timeout=20) as got:
            told = json.loads(got.read())
    finally:
        server.close()
    assert told == {"captured": {"": str(next(tmp_path.glob("fall-*")))}}


# ------------------------------------------------------------------ bounds


def test_old_and_many_captures_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / f"fall-2026010{number}"
        folder.mkdir()
        (folder / FALL_FILE).write_text("{}")
    (tmp_path / "fall-notes").mkdir()
    (tmp_path / "watch-2026").mkdir()
    os.utime(tmp_path / "fall-20260104", (1, 1))
    assert prune(tmp_path, 4, 86400.0) == 3
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [
        "fall-20260102",
        "fall-20260103",
        "fall-20260105",
        "fall-notes",
        "watch-2026",
    ]


def test_the_largest_raw_files_go_first_and_the_record_stays(tmp_path: Path) -> None:
    (tmp_path / FALL_FILE).write_bytes(b"x" * 5000)
    for number in range(1, 5):
        (tmp_path / f"{number}.json").write_bytes(b"x" * number * 1000)
    assert cut_to(tmp_path, 9000) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "1.json",
        "2.json",
        FALL_FILE,
    ]


# ------------------------------------------------------------------ sent


@contextmanager
def endpoint(status: int) -> Iterator[tuple[str, list[bytes]]]:
    got: list[bytes] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Takes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/falls", got
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [200, 500])
def test_it_is_sent_and_kept_where_that_fails(tmp_path: Path, status: int) -> None:
    with endpoint(status) as (url, got):
        made, _, told = keeper(url, out=tmp_path)
        made.fall("why")
        made.wait()
    assert len(got) == 1
    assert got[0].startswith(b"\x1f\x8b")
    assert bool(list(tmp_path.glob("fall-*"))) is (status == 500)
    assert ("was sent" if status == 200 else "refused (500)") in told[0]


def test_an_endpoint_that_is_away_is_told_and_the_folder_stays(tmp_path: Path) -> None:
    made, _, told = keeper("http://127.0.0.1:9/falls", out=tmp_path)
    made.fall("why")
    made.wait()
    assert "was not sent (ConnectError)" in told[0]
    assert list(tmp_path.glob("fall-*"))


# ------------------------------------------------------------------ no words


def test_of_requests_their_shapes_are_kept_and_no_words(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO 11-29 03:00:00 [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 "
        "tokens/s, Running: 1 reqs, Waiting: 0 reqs\n"
        "INFO 11-29 03:00:01 [logger.py:49] Received request chatcmpl-0123456789ab: "
        f"prompt: '{SECRET}', params: SamplingParams(n=2, max_tokens=77, "
        "structured_outputs=StructuredOutputsParams()), prompt_token_ids: [1, 2, 3], "
        "lora_request: None.\n"
    )
    probe = LogsProbe(
        [log], {}, r"Running: [1-9]", added=r"Received request", around=None
    )
    evidence = Evidence(probes=[run_probe(probe, tmp_path / "raw", 10)])  # type: ignore[list-item]
    (result,) = evidence.probes
    (line,) = result.data.stuck_requests  # type: ignore[union-attr]
    assert SECRET in line.text
    kept = without_words(evidence).model_dump_json()
    assert SECRET not in kept
    assert "chatcmpl-0123456789ab" in kept
    shape = shape_of(line)
    assert (shape.id, shape.max_tokens, shape.prompt_tokens) == (
        "chatcmpl-0123456789ab",
        77,
        3,
    )
    assert shape.features == ["grammar", "several"]
    assert SECRET not in shape.model_dump_json()


def test_a_line_without_an_id_has_a_shape(tmp_path: Path) -> None:
    line = LogLine(number=1, text="Added request", level="INFO", time="", source="")
    assert shape_of(line).id == ""


# ------------------------------------------------------------------ afterwards


@pytest.mark.parametrize("content", [None, "{", '{"$id": "urn:mmrepro:other:1"}'])
def test_a_folder_without_a_whole_record_is_refused(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / FALL_FILE).write_text(content)
    with pytest.raises(UsageError):
        diagnose_fall(tmp_path)


@dataclass(frozen=True)
class TwoLooks:
    """A diagnosis of a live server, and one of what was kept of it."""

    live: Diagnosed
    record: FallRecord
    after: Diagnosis

    @property
    def is_short(self) -> bool:
        return is_short(self.live.incident.evidence) or is_short(self.record.evidence)


def look_twice(url: str, folder: Path) -> TwoLooks:
    live = diagnose(DiagnoseCommand(url=url, deadline_s=6.0))
    record = capture_fall(DiagnoseCommand(url=url), folder, "why", 9.0)
    return TwoLooks(live, record, diagnose_fall(folder))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["python", "nap", "lock", "deaf"])
def test_it_is_judged_as_the_server_itself(tmp_path: Path, mode: str) -> None:
    with fake_engine(mode) as (_, url):
        looks = with_processors(
            lambda: look_twice(url, tmp_path), lambda looks: looks.is_short
        )
    record, live, after = looks.record, looks.live.diagnosis, looks.after
    assert read_fall(tmp_path) == record
    assert record.complete
    if looks.is_short:
        for seen, diagnosis in (
            (looks.live.incident.evidence, live),
            (record.evidence, after),
        ):
            if is_short(seen):
                assert_undecided(diagnosis)
        return
    assert (after.state, after.exit_code) == (live.state, live.exit_code)
    assert live.state in STANDSTILLS
    assert {c.name for c in after.classes} == {c.name for c in live.classes}
    metrics = [r for r in record.evidence.probes if isinstance(r.data, MetricsData)]
    assert len(metrics) >= 2
    samples = [
        sample
        for result in record.evidence.probes
        if isinstance(result.data, StacksData)
        for sample in result.data.samples
    ]
    assert len(samples) >= 10


def ended_watch(url: str, folder: Path) -> FallRecord:
    """What a watch keeps that is ended after its first check."""
    command = [sys.executable, "-m", "mmrepro", "watch", url, "--http", "0"]
    command += ["--capture", str(folder), "--capture-time", "8", "--json"]
    command += ["--interval", "2", "--no-diagnose"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            if json.loads(line)["event"] == "check":
                break
        watch.send_signal(signal.SIGTERM)
        assert watch.wait(300) == 130
    return read_fall(folder)


@pytest.mark.slow
def test_a_watch_that_is_ended_beside_a_hung_server_leaves_evidence(
    tmp_path: Path,
) -> None:
    with fake_engine("python") as (_, url):
        record = with_processors(
            lambda: ended_watch(url, tmp_path), lambda record: is_short(record.evidence)
        )
    assert record.deadline_s < 8
    after = diagnose_fall(tmp_path)
    if is_short(record.evidence):
        assert_undecided(after)
        assert record.complete or "cut short" in " ".join(after.unseen)
    else:
        assert record.complete
        assert after.exit_code == 1


def test_a_look_that_is_cut_short_says_that_it_had_no_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cut(*_: object) -> None:
        file = tmp_path / FALL_FILE
        until = time.monotonic() + 60
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(fall, "_observe", cut)
    monkeypatch.setattr(fall, "_EVERY_S", 0.01)
    monkeypatch.setattr(Lateness, "share", 0.7)
    with pytest.raises(KeyboardInterrupt):
        capture_fall(DiagnoseCommand(url="http://127.0.0.1:9"), tmp_path, "why", 9.0)
    record = read_fall(tmp_path)
    assert not record.complete
    assert is_short(record.evidence)
