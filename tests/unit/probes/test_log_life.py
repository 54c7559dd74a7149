"""Where the present life of a server begins in its log."""

import gzip
import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from mmrepro.engines import ENGINES
from mmrepro.probes import logs as logs_module
from mmrepro.probes.base import RawSink
from mmrepro.probes.data import LogsData
from mmrepro.probes.log_forms import written
from mmrepro.probes.log_lines import Life
from mmrepro.probes.logs import LogsProbe

CRASH = "AssertionError: Expected a cached item for mm_hash='ab'"
OLD = f"""\
(APIServer pid=8) INFO 11-20 03:00:00 [api.py:1] non-default args: {{'model': 'm'}}
(EngineCore pid=9) INFO 11-20 03:00:01 [core.py:113] Initializing a V1 LLM engine (v0.10.0) with x
(APIServer pid=8) INFO:     Started server process [8]
(APIServer pid=8) INFO 11-20 03:10:00 [x.py:1] Added request chatcmpl-1
(EngineCore pid=9) DEBUG 11-20 03:10:00 [core.py:1] EngineCore loop active.
(EngineCore pid=9) ERROR 11-20 03:11:00 [core.py:1] {CRASH}
(APIServer pid=8) INFO 11-20 03:12:00 [x.py:1] Added request chatcmpl-2
"""
NEW = """\
(APIServer pid=18) INFO 11-21 09:00:00 [api.py:1] non-default args: {'model': 'm'}
(EngineCore pid=19) INFO 11-21 09:00:01 [core.py:113] Initializing a V1 LLM engine (v0.23.0) with x
(APIServer pid=18) INFO:     Started server process [18]
(APIServer pid=18) INFO 11-21 09:01:00 [x.py:1] Added request chatcmpl-3
"""
VLLM = ENGINES["vllm"]
PATTERNS = {"crash": "Expected a cached item", "added": "Added request "}


def read(tmp_path: Path, text: str, life: Life | None = None) -> LogsData:
    path = tmp_path / "server.log"
    path.write_text(text)
    probe = LogsProbe(
        path,
        PATTERNS,
        VLLM.progress_pattern,
        added=r"Added request \S+",
        life=life or Life(VLLM.start_lines),
    )
    return probe.collect(RawSink(tmp_path), time.monotonic() + 60)


def test_a_crash_of_yesterday_is_not_of_this_life(tmp_path: Path) -> None:
    data = read(tmp_path, OLD + NEW)
    assert data.match_counts == {"crash": 0, "added": 1}
    assert data.matches.keys() == {"added"}
    assert (data.matches["added"][0].number, data.lines, data.earlier_lines) == (
        11,
        11,
        7,
    )
    assert (data.errors, data.error_count, data.last_progress) == ([], 0, None)
    assert data.last_by_process.keys() == {"APIServer pid=18", "EngineCore pid=19"}
    assert data.first_line is not None
    assert data.last_line is not None
    assert (data.first_line.number, data.last_line.number) == (8, 11)
    assert data.stuck_count is None
    assert [line.number for line in data.stuck_requests] == [11]


def test_the_life_in_which_it_happened_is_read_whole(tmp_path: Path) -> None:
    data = read(tmp_path, NEW + OLD)
    assert data.match_counts == {"crash": 1, "added": 2}
    assert (data.lines, data.earlier_lines, data.error_count) == (11, 4, 1)
    assert data.last_progress is not None
    assert (data.last_progress.number, data.stuck_count) == (9, 1)
    only = read(tmp_path, OLD)
    assert (only.match_counts, only.earlier_lines) == ({"crash": 1, "added": 2}, 0)
    plain = read(tmp_path, OLD + NEW, Life())
    assert (plain.match_counts, plain.earlier_lines) == ({"crash": 1, "added": 3}, 0)


def test_what_the_start_itself_logged_stays(tmp_path: Path) -> None:
    """The last of a start's lines begins no life of its own, each of the first does."""
    first, _, rest = NEW.partition("\n")
    noisy = (
        f"{first}\n(EngineCore pid=19) ERROR 11-21 09:00:00 [x.py:1] {CRASH}\n{rest}"
    )
    assert read(tmp_path, OLD + noisy).match_counts["crash"] == 1
    assert read(tmp_path, OLD + noisy).earlier_lines == 7
    # It died before its server was up, and was started again.
    assert read(tmp_path, f"{first}\n{CRASH}\n" + NEW).match_counts["crash"] == 0
    # Where only the last line is logged, it alone is a start.
    last = "INFO:     Started server process [18]\n"
    assert read(tmp_path, f"{CRASH}\n{last}").match_counts["crash"] == 0
    assert read(tmp_path, f"{last}{CRASH}\n{last}").match_counts["crash"] == 0
    assert read(tmp_path, f"{last}{CRASH}\n").match_counts["crash"] == 1


def test_a_start_that_a_user_only_quotes_begins_nothing(tmp_path: Path) -> None:
    quoted = (
        "(APIServer pid=18) INFO 11-21 09:01:00 [x.py:1] prompt: 'non-default "
        "args: {'\n"
    )
    assert read(tmp_path, OLD + quoted).match_counts["crash"] == 1


@given(st.integers(1, 2000), st.booleans())
def test_blocks_change_nothing(size: int, coloured: bool) -> None:
    text = (OLD + NEW).encode()
    if coloured:
        text = re.sub(rb"(?m)^(\(\w+ pid=\d+\)) ", b"\x1b[1;36m\\1\x1b[0;0m ", text)
    found = []
    for chunk in (size, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logs_module, "CHUNK_BYTES", chunk)
            import io

            scanner = logs_module.Scanner(
                PATTERNS,
                VLLM.progress_pattern,
                life=Life(VLLM.start_lines),
                added="Added",
            )
            found.append(scanner.scan(io.BytesIO(text)))
    assert found[0] == found[1]
    assert found[0].match_counts == {"crash": 0, "added": 1}


def test_it_begins_in_any_of_the_rotated_files(tmp_path: Path) -> None:
    oldest, older, last = (tmp_path / n for n in ("s.log.2.gz", "s.log.1", "s.log"))
    with gzip.open(oldest, "wt") as stream:
        stream.write(OLD)
    older.write_text(f"{CRASH}\n{NEW}{CRASH}\n")
    last.write_text(
        "(APIServer pid=18) INFO 11-21 09:02:00 [x.py:1] Added request chatcmpl-4\n"
    )
    probe = LogsProbe([oldest, older, last], PATTERNS, life=Life(VLLM.start_lines))
    data = probe.collect(RawSink(tmp_path), time.monotonic() + 60)
    assert data.match_counts == {"crash": 1, "added": 2}
    assert [(m.number, m.file) for m in data.matches["crash"]] == [(6, str(older))]
    assert [m.number for m in data.matches["added"]] == [5, 1]
    assert data.earlier_lines == 8


SINCE = datetime(2026, 11, 21, 9, 0, 0)
BARE = "\n".join(line for line in OLD.splitlines()[3:]) + "\n"
LATER = f"(EngineCore pid=19) ERROR 11-21 09:00:00 [core.py:1] {CRASH}\n"


def test_without_a_line_of_a_start_the_processs_own_decides(tmp_path: Path) -> None:
    def crashes(text: str, since: datetime | None = SINCE) -> int:
        return read(tmp_path, text, Life(VLLM.start_lines, since)).match_counts["crash"]

    assert crashes(BARE) == 0
    assert crashes(BARE, None) == 1
    assert crashes(BARE + LATER) == 1
    assert crashes(BARE + LATER.replace("09:00:00", "08:59:59")) == 0
    assert crashes(LATER) == 1
    assert crashes(f"{CRASH}\n") == 1  # it tells no time, and no start
    assert crashes(f"{BARE}Traceback:\n{CRASH}\n") == 0  # of the line before it
    assert crashes(f"{BARE}Traceback:\n{CRASH}\n{LATER}{CRASH}\n") == 2
    # A start is better than a time: clocks may differ.
    assert crashes(NEW + BARE) == 1
    data = read(tmp_path, BARE + LATER, Life(VLLM.start_lines, SINCE))
    assert (data.lines, data.earlier_lines) == (5, 4)


def test_times_are_looked_at_in_later_blocks_until_one_is_of_this_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "CHUNK_BYTES", 64)
    assert read(tmp_path, BARE * 3 + LATER, Life((), SINCE)).match_counts["crash"] == 1
    # Once it has begun, an older time is a clock that was set, or a quotation.
    assert read(tmp_path, LATER + BARE, Life((), SINCE)).match_counts["crash"] == 2


@pytest.mark.parametrize(
    ("time", "means"),
    [
        ("11-21 03:37:42", "2026-11-21T03:37:42"),
        ("2025-11-21 02:44:01", "2025-11-21T02:44:01"),
        ("2026-11-22 04:01:50,680", "2026-11-22T04:01:50.680000"),
        ("2026-11-22T04:01:50.680", "2026-11-22T04:01:50.680000"),
        ("01-02 00:00:00", "2027-01-02T00:00:00"),
        ("", ""),
        ("13-41 99:00:00", ""),
        ("2026-13-41 00:00:00", ""),
    ],
)
def test_what_a_time_means(time: str, means: str) -> None:
    said = written(time, SINCE)
    assert (said.isoformat() if said else "") == means
    assert written("12-31 23:59:59", datetime(2026, 1, 1)) == datetime(
        2025, 12, 31, 23, 59, 59
    )


STARTS = [
    ("vllm", "INFO 11-21 09:00:00 [api_server.py:1839] vLLM API server version 0.11.0"),
    (
        "vllm",
        (
            "(APIServer pid=1) INFO 11-22 11:32:56 [u.py:319] vLLM server version "
            "0.23.0, serving"
        ),
    ),
    (
        "vllm",
        (
            "(APIServer pid=1) INFO 11-22 11:32:56 [u.py:273] non-default args: "
            "{'host': 'x'}"
        ),
    ),
    (
        "vllm",
        (
            "(EngineCore pid=9) INFO 1-21 [core.py:1] Initializing a V1 LLM engine "
            "(v0.23.0) with"
        ),
    ),
    ("vllm", "(APIServer pid=1) INFO:     Started server process [10729]"),
    (
        "sglang",
        (
            "[2026-11-22 11:38:58] server_args={'model_path': '/m', 'tokenizer_path': "
            "'/m'}"
        ),
    ),
    (
        "sglang",
        "[2026-11-22 11:38:58] server_args=ServerArgs(model_path='/m', tokenizer",
    ),
    ("sglang", "[2026-11-22 11:39:07] INFO:     Started server process [13140]"),
    ("lmdeploy", "INFO:     Started server process [17416]"),
    (
        "minivllm",
        "(APIServer pid=1) INFO 11-22 11:41:20 [server.py:310] ready on port 42367",
    ),
]


@pytest.mark.parametrize(("engine", "line"), STARTS)
def test_each_engines_start_is_known_by_its_lines(
    engine: str, line: str, tmp_path: Path
) -> None:
    """Lines of real logs."""
    life = Life(ENGINES[engine].start_lines)
    assert read(tmp_path, f"{CRASH}\n{line}\n", life).match_counts["crash"] == 0
    assert all(life.texts)


def test_a_leap_day_is_of_the_year_that_has_one() -> None:
    near = datetime(2028, 3, 1)
    assert written("02-29 10:00:00", near) == datetime(2028, 2, 29, 10)
    assert written("02-29 10:00:00", datetime(2029, 1, 1)) == datetime(2028, 2, 29, 10)
    assert written("02-29 10:00:00", datetime(2026, 1, 1)) is None


def test_times_deep_in_a_block_without_any_at_its_ends_are_not_looked_for(
    tmp_path: Path,
) -> None:
    """Fifty lines from either end: a traceback may be as long."""
    silent = "x\n" * 50
    deep = f"{silent}{BARE}{silent}{CRASH}\n"
    assert read(tmp_path, deep, Life((), SINCE)).match_counts["crash"] == 2
    assert (
        read(tmp_path, deep.removeprefix("x\n"), Life((), SINCE)).match_counts["crash"]
        == 0
    )
    near = f"{silent}{BARE}{silent}".removesuffix("x\n")
    assert read(tmp_path, near, Life((), SINCE)).match_counts["crash"] == 0


def test_a_time_is_looked_for_at_a_lines_head(tmp_path: Path) -> None:
    far = f"({'p' * 505} pid=1) INFO 11-20 03:10:00 [x.py:1] {CRASH}\n"
    assert read(tmp_path, far, Life((), SINCE)).match_counts["crash"] == 1


def test_what_a_life_looks_for_is_given_to_the_search() -> None:
    assert Life().texts == []
    assert len(Life(VLLM.start_lines).texts) >= len(VLLM.start_lines)
    assert all(Life(engine.start_lines).texts for engine in ENGINES.values())


def test_blocks_without_a_time_cut_nothing_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "CHUNK_BYTES", 64)
    data = read(tmp_path, f"{CRASH}\n" * 9, Life((), SINCE))
    assert (data.match_counts["crash"], data.earlier_lines) == (9, 0)
    data = read(tmp_path, f"{CRASH}\n" * 9 + LATER, Life((), SINCE))
    assert (data.match_counts["crash"], data.earlier_lines) == (10, 0)
