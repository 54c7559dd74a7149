"""What ended a server, by its log: shapes with right answers, and what a text does not
carry."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cause_shapes import (
    BEGUN,
    CORE,
    DAY,
    FRONT,
    HINT,
    KERNEL,
    QUIT,
    READY,
    SGL_WORKED,
    SHAPES,
    STEP,
    Shape,
    beats,
    fatal,
    figures,
    in_worker,
    logged,
    read,
    scheduler,
    sgl,
    stalled,
    trace,
    worked,
)
from grids import times
from mmrepro.base.records import without_head
from mmrepro.failure.documents.cause import (
    CAUSE_WORDS,
    Cause,
    CauseClass as C,
    Certainty,
    LogReading,
    ServerInLog,
)
from mmrepro.live.diagnose import cause, cause_rules
from mmrepro.live.diagnose.cause_advice import advice_for, advice_rows
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.probes.log_anchors import anchors_of
from mmrepro.probes.logs import Scanner

ORDER = list(Certainty)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_has_its_answer(shape: Shape) -> None:
    told = read(shape.text)[0]
    one = told.cause
    assert (one.name, told.engine) == (shape.right, shape.engine), one.exception
    assert shape.exception in one.exception
    assert shape.process in one.process
    assert (
        not any("gateway" in text for text in one.advice)
        or one.name is C.KILLED_BY_INPUT
    )


def test_the_grid_is_large_and_no_class_is_false() -> None:
    shapes, right, false = figures()
    assert shapes >= 60
    assert right >= 0.95 * shapes
    assert false == 0
    assert {shape.right for shape in SHAPES} >= set(C) - {C.GRAMMAR_LOOP}


# ------------------------------------------------------------ lines that are taken away


def stated(server: ServerInLog) -> dict[C, Certainty]:
    return {one.name: one.certainty for one in (server.cause, *server.others)}


def shortened(lines: Sequence[str], dice: random.Random) -> list[str]:
    """Without some lines, without a stretch of them, or cut at either end."""
    how = dice.randrange(4)
    if how == 0:
        return [line for line in lines if dice.random() < 0.7]
    begin, end = sorted(dice.sample(range(len(lines) + 1), 2))
    if how == 1:
        return [*lines[:begin], *lines[end:]]
    return list(lines[:end] if how == 2 else lines[begin:])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shorter_log_says_nothing_surer(shape: Shape) -> None:
    dice = random.Random(shape.name)
    lines = shape.text.splitlines(keepends=True)
    if len(lines) < 2:
        return
    whole = read(shape.text)[0]
    for _ in range(times(3)):
        text = "".join(shortened(lines, dice))
        if not text:
            continue
        part = read(text)[0].cause
        if part.name is whole.cause.name:
            assert ORDER.index(part.certainty) >= ORDER.index(whole.cause.certainty), (
                text
            )
        else:
            # Another class is never said for certain, unless the whole log has it as
            # well.
            assert part.certainty is not Certainty.CERTAIN or part.name in stated(
                whole
            ), text


# ---------------------------------------------------------------- what comes first


def test_what_was_survived_is_no_cause() -> None:
    lived = (
        logged(
            CORE,
            "core.py:1449",
            "Invocation of add_lora method failed",
            *trace("ValueError: x"),
        )
        + worked("08:50:10")
        + worked("08:50:20")
    )
    died = fatal("KeyError: 'late'", STEP).partition(READY)[2]
    later = died.replace(" 08:41", " 08:51").replace(" 08:40", " 08:50")
    one = read(BEGUN + READY + worked() + lived + later)[0].cause
    assert one.exception == "KeyError: 'late'"


@pytest.mark.parametrize(
    "said",
    [
        "post-warmup freeze_gc failed",
        "NIXL L3 cleaner tick failed",
        "FPM publisher send failed",
    ],
)
def test_what_sglang_warns_of_ends_nothing(said: str) -> None:
    """Its lines show no level."""
    refused = (
        "Traceback (most recent call last):\nConnectionRefusedError: [Errno "
        "111] refused\n"
    )
    assert read(sgl(said) + refused)[0].cause.name not in (C.NETWORK, C.ENGINE_DEFECT)
    assert read(sgl("a transfer failed") + refused)[0].cause.name is C.NETWORK


def test_a_fault_explains_the_peers_that_lost_their_connection() -> None:
    peer = (
        "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by "
        "peer [10.0.0.7]:1"
    )
    lost = scheduler(peer, "TP0").removesuffix(QUIT)
    why = sgl(
        "Scheduler hit an exception: Traceback (most recent call last):", "TP3"
    ) + (f"RuntimeError: CUDA error: an illegal memory access was encountered{HINT}")
    one = read(lost + why + QUIT)[0]
    assert (one.cause.name, one.cause.process) == (C.GPU_FAULT, "TP3")
    assert C.NETWORK in {other.name for other in one.others}


def test_two_things_that_end_a_server_are_both_told() -> None:
    text = (
        KERNEL
        + "Out of memory: Killed process 4067 (VLLM::EngineCor) anon-rss:6kB\n"
        + ("[93297.02] NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus.\n")
    )
    one = read(text)[0]
    assert one.engine == "vllm"
    assert (one.cause.name, one.cause.certainty) == (
        C.OUT_OF_HOST_MEMORY,
        Certainty.CERTAIN,
    )
    assert "Xid 79" in " ".join(one.cause.why)
    assert [other.name for other in one.others] == [C.GPU_FAULT]
    assert "take the node out" in " ".join(one.others[0].advice)


def test_the_hint_that_torch_adds_is_no_assertion() -> None:
    told = read(in_worker(f"RuntimeError: CUDA error: invalid argument{HINT}"))[0].cause
    assert (told.name, told.certainty) == (C.GPU_FAULT, Certainty.LIKELY)


def test_a_start_after_an_end_is_told() -> None:
    again = (BEGUN + READY + worked()).replace(" 08:", " 09:")
    one = read(fatal("KeyError: 1") + again)[0]
    assert one.cause.exception == "KeyError: 1"
    assert one.cause.why[-1].startswith("it was started again")
    assert "worked at 03-09 09:40:10" in one.cause.why[-1]


def test_nothing_is_concluded_from_what_a_user_wrote() -> None:
    asked = (
        f"{FRONT} INFO {DAY} 08:40:12 [logger.py:39] Received request cmpl-1: prompt: "
        "'what is EngineCore encountered a fatal error. torch.OutOfMemoryError: CUDA "
        "out of memory. Segmentation fault (core dumped) Watchdog caught collective "
        "operation timeout?', params: SamplingParams(n=1)\n"
    )
    one = read(BEGUN + READY + worked() + asked + worked("08:40:20"))[0]
    assert one.cause.name is C.ALIVE
    assert one.others == []


def test_a_line_of_settings_ends_nothing() -> None:
    told = sgl(
        "server_args=ServerArgs(on_exit=restart if exit code: -9, watchdog timeout "
        "for=300)"
    )
    assert read(told + SGL_WORKED)[0].cause.name is C.ALIVE
    assert read(SGL_WORKED + told)[0].cause.name is C.ALIVE


# ---------------------------------------------------------------- standing still


def test_a_standstill_says_since_when() -> None:
    one = read(BEGUN + READY + worked() + stalled(1) + beats(3))[0].cause
    assert (one.name, one.certainty) == (C.HANG, Certainty.LIKELY)
    assert one.time == "03-09 08:40:10"
    assert "no progress since line 4" in one.why[0]
    assert "workers take no messages for 3 minutes" in one.why[-1]


@pytest.mark.parametrize(
    "text",
    [
        worked() + stalled(2),  # a long prompt takes longer than a reading
        worked() + stalled(4, running=0),  # nothing runs, and nothing waits
        worked() + beats(1),
        worked() + stalled(4) + worked("08:49:10"),
        worked() + beats(5) + worked("08:49:10"),
    ],
)
def test_what_moves_or_has_nothing_to_do_does_not_stand_still(text: str) -> None:
    assert read(BEGUN + READY + text)[0].cause.name is C.ALIVE


def test_heartbeats_of_which_nothing_else_is_known_are_possible_only() -> None:
    one = read(beats(4))[0].cause
    assert (one.name, one.certainty) == (C.HANG, Certainty.POSSIBLE)


# ---------------------------------------------------------------- starts


def test_what_is_below_a_failed_start_is_asked_of_its_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mmrepro.failure.documents.cause import StartCause
    from mmrepro.live.diagnose import starts

    seen: list[Any] = []

    def rule(lines: Any, one: Any, engine: str) -> StartCause:
        seen.append((len(lines), one.told, engine))
        return StartCause(name="memory", sentence="No room.", advice=["lower it"])

    monkeypatch.setattr(starts, "below", rule)
    shape = next(s for s in SHAPES if s.name == "weights do not fit into memory")
    one = read(shape.text)[0].cause
    assert one.start is not None
    assert (one.name, one.start.name) == (C.FAILED_START, "memory")
    assert seen[0][1].startswith("torch.OutOfMemoryError")
    assert seen[0][2] == "vllm"


# ---------------------------------------------------------------- servers


def test_two_replicas_are_two_servers() -> None:
    def of(name: str, text: str) -> str:
        return "".join(f"{name}  | {line}" for line in text.splitlines(keepends=True))

    found = read(of("b-1", BEGUN + READY + worked()) + of("a-1", fatal("KeyError: 4")))
    assert [(one.name, one.cause.name) for one in found] == [
        ("a-1", C.ENGINE_DEFECT),
        ("b-1", C.ALIVE),
    ]


def test_the_kernel_beside_a_server_is_none_of_its_own(tmp_path: Path) -> None:
    lines = [f"Apr 18 13:05:02 node7 serve[77]: {SGL_WORKED}"]
    lines.append(
        f"{KERNEL}Out of memory: Killed process 77 (sglang::schedul) anon-rss:6kB\n"
    )
    (tmp_path / "journal.log").write_text("".join(lines))
    told = read_logs([tmp_path / "journal.log"])
    assert [server.engine for server in told.servers] == ["sglang"]
    assert told.cause.name is C.OUT_OF_HOST_MEMORY


# ---------------------------------------------------------------- from files


def told_of(path: Path, text: str | bytes, name: str = "server.log") -> LogReading:
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_logs([path / name])


def test_packed_and_encoded_logs_are_read_as_plain_ones(tmp_path: Path) -> None:
    text = fatal("KeyError: 'k'")
    plain = told_of(tmp_path, text, "a.log").cause
    for number, data in enumerate(
        (gzip.compress(text.encode()), text.encode("utf-16"))
    ):
        other = told_of(tmp_path, data, f"{number}.log").cause
        assert other.model_copy(update={"file": plain.file}) == plain


def test_a_message_of_many_lines_in_json(tmp_path: Path) -> None:
    message = "\n".join(
        ["EngineCore encountered a fatal error.", *trace("KeyError: 'k'", STEP)]
    )
    line = {
        "timestamp": "2026-03-09T08:41:33Z",
        "level": "ERROR",
        "logger": "vllm.v1.engine.core",
        "message": message,
    }
    told = told_of(tmp_path, json.dumps(line) + "\n")
    assert (told.cause.name, told.cause.exception) == (C.ENGINE_DEFECT, "KeyError: 'k'")
    assert told.cause.time


def test_a_large_log_keeps_what_is_around_its_end(tmp_path: Path) -> None:
    noise = (
        worked()
        .replace("310.4", "0.0")
        .replace("88.1", "0.0")
        .replace("Running: 3", "Running: 0")
    )
    end = fatal("KeyError: 'in-the-middle'", STEP).partition(READY)[2]
    text = BEGUN + READY + noise * 9000 + end + noise.replace("INFO", "DEBUG") * 9000
    one = told_of(tmp_path, text)
    assert one.cause.exception == "KeyError: 'in-the-middle'"
    assert one.cause.line is not None
    assert 9000 < one.cause.line < 9030
    assert one.last_progress is not None
    assert one.release == "0.24.0"
    assert one.log.excerpt == []


def test_a_traceback_without_marks_is_kept_whole(tmp_path: Path) -> None:
    access = 'INFO:     1.1.1.1:2 - "GET /health HTTP/1.1" 200 OK\n'
    end = scheduler("AssertionError").removesuffix(QUIT)
    one = told_of(tmp_path, access * 9000 + end + access * 9000).cause
    assert one.exception == "AssertionError (self.run_batch(batch); scheduler.py:318)"
    assert one.process == "TP2"


def test_an_excerpt_is_bounded() -> None:
    text = (fatal("KeyError: 1") + worked() * 300) * 200
    scanner = Scanner({}, None, around=cause_rules.places())
    import io

    data = scanner.scan(io.BytesIO(text.encode()))
    assert 1000 < len(data.excerpt) < 8000
    assert data.excerpt[0].number == 1
    assert data.excerpt[-1].number == data.lines
    assert [line.number for line in data.excerpt] == sorted(
        {line.number for line in data.excerpt}
    )


def test_ranks_with_files_of_their_own_are_read_by_time(tmp_path: Path) -> None:
    late = (
        "[rank0]:[E309 08:51:10.118903881 ProcessGroupNCCL.cpp:685] [Rank 0] "
        "Watchdog caught "
    )
    late += "collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
    (tmp_path / "rank0.log").write_text(BEGUN + READY + worked() + late)
    (tmp_path / "rank1.log").write_text(
        in_worker(f"RuntimeError: CUDA error: misaligned address{HINT}")
    )
    told = read_logs([tmp_path / "rank0.log", tmp_path / "rank1.log"])
    assert (told.cause.name, told.cause.process) == (C.GPU_FAULT, "Worker_TP1 pid=233")
    assert Path(told.cause.file).name == "rank1.log"
    assert told.cause.line == 9
    assert C.COLLECTIVE_TIMEOUT in {other.name for other in told.others}


def test_a_rotated_log_goes_on_in_the_next_file(tmp_path: Path) -> None:
    text = fatal("KeyError: 'k'").splitlines(keepends=True)
    (tmp_path / "server.log.1").write_text("".join(text[:5]))
    (tmp_path / "server.log").write_text("".join(text[5:]))
    told = read_logs([tmp_path / "server.log"])
    assert told.cause.exception == "KeyError: 'k'"
    assert told.last_progress is not None
    assert Path(told.last_progress.file).name == "server.log.1"
    assert (told.last_progress.number, told.cause.line) == (4, 4)


def test_an_export_with_its_newest_lines_first_is_turned_round(tmp_path: Path) -> None:
    text = (
        BEGUN
        + READY
        + "".join(worked(f"08:3{n}:10") for n in range(4, 9))
        + (fatal("AssertionError", STEP).partition(READY)[2])
    )
    lines = text.splitlines(keepends=True)
    whole = told_of(tmp_path, text).cause
    turned = told_of(tmp_path, "".join(reversed(lines)), "newest-first.log").cause
    assert (
        whole.exception
        == "AssertionError (out = self.model(**kwargs); gpu_model_runner.py:318)"
    )
    assert (turned.name, turned.exception, turned.time) == (
        whole.name,
        whole.exception,
        whole.time,
    )
    assert turned.line is not None
    assert whole.line == len(lines) + 1 - turned.line


# ---------------------------------------------------------------- the command


def ran(*words: str, stdin: str = "") -> tuple[int, str]:
    from mmrepro.cli.app import app
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["logs", *words], input=stdin)
    return result.exit_code, result.stdout


def test_the_first_screen_has_the_cause_first_and_the_verdict_last(
    tmp_path: Path,
) -> None:
    (tmp_path / "server.log").write_text(in_worker("KeyError: 'k'"))
    code, text = ran(str(tmp_path / "server.log"))
    lines = text.splitlines()
    assert code == 1
    assert len(lines) <= 20
    assert "KeyError: 'k'" in lines[0]
    # Below the verdict are later fixes of the functions, where some are known.
    assert any(line.startswith("DEAD: vllm 0.24.0, 1 file") for line in lines)
    rows = {line.partition("  ")[0]: line.split(None, 1)[-1] for line in lines}
    assert rows["seen in"].endswith("Worker_TP1 pid=233, 03-09 08:41:33, line 9")
    assert "03-09 08:40:10 line 4" in rows["last work"]
    assert "class" not in rows, "nothing certain says it"
    full = ran(str(tmp_path / "server.log"), "--full")[1]
    assert "Last words" in full
    assert "EngineCore pid=142" in full


def test_json_is_one_document_with_the_documented_names(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/server.log").write_text(
        fatal("torch.OutOfMemoryError: CUDA out of memory.")
    )
    code, text = ran(str(tmp_path / "logs"), "--json")
    told = json.loads(text)
    assert (code, told["$id"], told["engine"]) == (1, "urn:mmrepro:logs:1", "vllm")
    assert told["cause"]["class"] == "out-of-gpu-memory"
    assert told["last_progress"]["time"] == "03-09 08:40:10"
    assert told["servers"][0]["cause"] == told["cause"]
    assert LogReading.model_validate(without_head(told)).exit_code == 1


def test_what_is_no_log_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "dump.txt").write_text(
        'Process 7: x\nPython v3.12\n\nThread 7 (idle): "Main"\n'
    )
    code, text = ran(str(tmp_path / "dump.txt"))
    assert code == 3
    assert text.startswith("NO LOG: This is a py-spy dump.")


# ---------------------------------------------------------------- tables


def test_every_class_has_words_and_all_advice_a_source() -> None:
    assert set(CAUSE_WORDS) == set(C)
    for engine in ("", "vllm", "sglang", "lmdeploy"):
        for row in advice_rows(engine):
            assert row.text, row
            assert row.source, row


@pytest.mark.parametrize(
    ("platform", "text", "never"),
    [
        ("rocm", "HIP error: an illegal memory access was encountered", "CUDA_LAUNCH"),
        ("rocm", "Memory access fault by GPU node-2", "nvidia-smi"),
        ("npu", "NPU out of memory", "nvidia-smi"),
        ("xpu", "xe 0000:64:00.0: [drm] GT0: Engine reset", "xid"),
        ("tpu", "RESOURCE_EXHAUSTED: out of HBM", "nvidia-smi"),
    ],
)
def test_advice_is_of_the_platform(platform: str, text: str, never: str) -> None:
    for name in C:
        for advice in advice_for(name, "vllm", text, platform=platform):
            assert never not in advice, advice


def test_advice_is_of_the_part() -> None:
    mooncake = "KVTransferError(bootstrap_room=5): Failed to get kvcache from prefill"
    assert not any("NCCL" in one for one in advice_for(C.NETWORK, "sglang", mooncake))
    nccl = "ncclRemoteError: socketProgress"
    assert any("NCCL" in one for one in advice_for(C.NETWORK, "sglang", nccl))


def test_the_anchors_are_found_by_words() -> None:
    expressions = [*cause_rules.places().values(), *cause_rules.PATTERNS.values()]
    for expression in expressions:
        assert anchors_of(expression), expression


def test_names_in_json_are_those_of_the_documentation() -> None:
    one = Cause(name=C.GPU_FAULT, certainty=Certainty.CERTAIN)
    assert set(one.model_dump()) >= {
        "class",
        "certainty",
        "exception",
        "process",
        "time",
        "line",
        "why",
        "advice",
    }
    docs = Path(__file__).parents[3] / "docs/logs.md"
    text = docs.read_text()
    assert all(f"| `{name.value}` |" in text for name in C)


def test_judge_takes_lines_alone() -> None:
    told = cause.judge([])
    assert told.cause.name is C.UNKNOWN


@pytest.mark.parametrize(
    ("engine", "settings", "in_force"),
    [
        ("sglang", "server_args=ServerArgs(disable_cuda_graph=True, tp_size=2)", True),
        ("sglang", "server_args={'model_path': 'm', 'disable_cuda_graph': True}", True),
        (
            "sglang",
            "server_args=ServerArgs(disable_cuda_graph=False, tp_size=2)",
            False,
        ),
        ("vllm", "non-default args: {'model': 'm', 'enforce_eager': True}", True),
        ("vllm", "non-default args: {'model': 'm'}", False),
        ("vllm", "", False),
    ],
)
def test_what_is_in_force_is_not_advised(
    engine: str, settings: str, in_force: bool
) -> None:
    text = "CUDA error: an illegal memory access was encountered"
    found = advice_for(C.GPU_FAULT, engine, text, settings)
    assert any("rules out CUDA graphs" in one for one in found) is not in_force
    assert any("attention-backend" in one for one in found)


BEGAN = "08:32:00"
HANDSHAKE = ("parallel_state.py:1208", "Waiting for rank 1 to join")
BROADCAST = (
    "shm_broadcast.py:466",
    "No available shared memory broadcast block found in 60 seconds.",
)
COMPILES = ("backends.py:860", "Compiling a graph", "Graph compiled")


@pytest.mark.parametrize(
    ("until", "stuck_for"), [("08:33:30", "90 s"), ("08:33:00", "60 s")]
)
def test_a_start_that_repeats_one_line_for_a_minute_is_stuck(
    until: str, stuck_for: str
) -> None:
    lines = [logged(CORE, *HANDSHAKE, at=at, level="INFO") for at in (BEGAN, until)]
    found = read(BEGUN + "".join(lines))[0].cause
    assert (found.name, found.time) == (C.HANG, f"{DAY} {BEGAN}")
    assert f"is stuck for {stuck_for}, since {DAY} {BEGAN}" in found.sentence


@pytest.mark.parametrize(
    ("said", "until", "between"),
    [
        (HANDSHAKE, "08:32:20", 0),
        # A heartbeat is printed while it compiles, which may take minutes.
        (BROADCAST, "08:35:00", 4),
    ],
)
def test_a_start_that_takes_its_time_is_not_stuck(
    said: tuple[str, str], until: str, between: int
) -> None:
    first, last = (logged(CORE, *said, at=at, level="INFO") for at in (BEGAN, until))
    work = logged(CORE, *COMPILES, at=until, level="INFO")
    found = read(BEGUN + first + work * between + last)[0].cause
    assert found.name is C.UNKNOWN
    assert found.sentence.startswith("It is still starting; its last line is: ")
