"""The log scan, checked against a plain reading of the same bytes."""

import gzip
import io
import os
import re
import time
import tracemalloc
from types import SimpleNamespace

import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.engines import ENGINES
from mmrepro.failure.signature import live_server
from mmrepro.live.diagnose.classes_logged import LOG_PATTERNS as CLASS_PATTERNS
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.probes import logs as logs_module
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.data import LogPattern
from mmrepro.probes.log_forms import is_error, parse_line, read_line
from mmrepro.probes.log_lines import (
    MAX_LINE_BYTES,
    Pattern,
    clean,
    texts_of,
)
from mmrepro.probes.logs import LogsProbe, Scanner, scan

LOG = (
    b"(EngineCore pid=3302) ERROR 11-21 02:44:01 [v1/engine/core.py:1195] "
    b"AssertionError: Expected "
    b"a cached item for mm_hash='0a'\n"
    b"\x1b[1;36m(APIServer pid=3100)\x1b[0;0m INFO 11-21 02:44:02 [loggers.py:9] Avg "
    b"x\n"
    b"(EngineCore_DP0 pid=1) DEBUG 11-21 02:44:03 [core.py:2] waiting for work\n"
    b'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK\n'
    b"\x1b[32mINFO\x1b[0m:     coloured by uvicorn\n"
    b"(EngineCore pid=3302) INFO 11-21 02:45:00 [core.py:3] bad \xff\xfe bytes, ERROR "
    b"in the text\n"
    b"Traceback (most recent call last):\n"
    b"\n"
    b"(APIServer pid=3100) no level here"
)


def test_processes_errors_matches_and_progress(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(LOG)
    probe = LogsProbe(
        path,
        {
            "ghost": r"mm_hash='(\w+)'",
            "health": re.compile("GET /HEALTH", re.I),
            "never": "nowhere",
        },
        progress=r"Avg \w",
    )
    result = run_probe(probe, tmp_path / "evidence", 5)
    assert result.status is ProbeStatus.OK, result.reason
    data = result.data
    assert (data.lines, data.bytes_read, data.bad_bytes) == (9, len(LOG), 1)
    assert {name: line.number for name, line in data.last_by_process.items()} == {
        "EngineCore pid=3302": 6,
        "APIServer pid=3100": 9,
        "EngineCore_DP0 pid=1": 3,
        "": 7,
    }
    assert data.last_by_process["APIServer pid=3100"].text == "no level here"
    assert [line.number for line in data.errors] == [1, 7]
    assert data.error_count == 2
    first = data.errors[0]
    assert (first.process, first.level) == ("EngineCore pid=3302", "ERROR")
    assert (first.time, first.source) == ("11-21 02:44:01", "v1/engine/core.py:1195")
    assert first.text.startswith("AssertionError: Expected a cached item")
    assert data.match_counts == {"ghost": 1, "health": 1, "never": 0}
    assert data.matches["health"][0].number == 4
    assert (data.last_progress.number, data.last_progress.process) == (
        2,
        "APIServer pid=3100",
    )
    again = run_probe(probe, tmp_path / "evidence", 5).data
    assert again == data


@pytest.mark.parametrize(
    ("line", "level", "time_", "source", "text"),
    [
        (
            "INFO 11-21 02:44:01 [core.py:1] hi",
            "INFO",
            "11-21 02:44:01",
            "core.py:1",
            "hi",
        ),
        ("INFO:     Started server", "INFO", "", "", "Started server"),
        ("ERROR:asyncio:boom", "ERROR", "", "asyncio", "boom"),
        (
            "[2025-11-21 02:44:01 TP0] Decode batch",
            "",
            "2025-11-21 02:44:01",
            "",
            "Decode batch",
        ),
        ("[2025-11-21 02:44:01] ERROR: x", "ERROR", "2025-11-21 02:44:01", "", "x"),
        (
            "2025-11-21 02:44:01,123 - lmdeploy - ERROR - engine.py:12 - x",
            "ERROR",
            "2025-11-21 02:44:01,123",
            "engine.py:12",
            "x",
        ),
        ("no prefix at all", "", "", "", "no prefix at all"),
    ],
)
def test_prefixes(line, level, time_, source, text):
    found = parse_line(7, line)
    assert (found.level, found.time, found.source, found.text) == (
        level,
        time_,
        source,
        text,
    )
    assert found.number == 7


def test_colours_and_control_characters_are_removed():
    assert (
        clean(b"a\x1b[31;1mb\x1b[0mc\x00\x07\r\x1b]0;title\x07d\xe2\x80\xaee\x1b[2K")
        == "abcde"
    )


def test_first_and_last_matches_are_kept_and_all_counted():
    log = b"".join(b"step %d ERROR: x\nERROR:a:b\n" % n for n in range(500))
    data = scan(io.BytesIO(log), {"step": r"step \d+"}, first=3, last=2)
    assert data.match_counts["step"] == 500
    assert [line.number for line in data.matches["step"]] == [1, 3, 5, 997, 999]
    assert data.error_count == 500
    assert len(data.errors) == 50


def test_a_text_beyond_what_is_looked_at_of_a_line_is_no_match():
    log = b"".join(b"y" * n + b"boom\n" for n in (*[MAX_LINE_BYTES] * 9, 9))
    assert (
        scan(io.BytesIO(log), {"boom": "boom"}, first=0, last=1).match_counts["boom"]
        == 1
    )


def test_a_line_without_end_is_never_held(monkeypatch):
    class Endless(io.RawIOBase):
        """64 MiB on one line, then a line that matters."""

        def __init__(self) -> None:
            self.left = 64
            self.tail = b"tail\nERROR:x:after\n"

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            if self.left:
                self.left -= 1
                return b"y" * (1 << 20)
            tail, self.tail = self.tail, b""
            return tail

    tracemalloc.start()
    data = scan(Endless(), {"y": "yyyy"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert data.lines == 2
    assert data.errors[0].number == 2
    assert len(data.matches["y"][0].text) == 2000
    assert data.bytes_read == (64 << 20) + 19


def test_a_compressed_log_is_read_as_a_stream(tmp_path):
    path = tmp_path / "server.log.1.gz"
    path.write_bytes(gzip.compress(LOG))
    with gzip.open(path) as stream:
        assert scan(stream).error_count == 2


def test_what_is_no_readable_file_is_unavailable(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "missing", "."):
        result = run_probe(LogsProbe(tmp_path / name), tmp_path / "evidence", 2)
        assert result.status is ProbeStatus.UNAVAILABLE
        assert str(tmp_path) in result.reason


def test_an_empty_log_is_no_failure(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    data = run_probe(LogsProbe(path, {"x": "x"}), tmp_path, 2).data
    assert (data.lines, data.match_counts) == (0, {"x": 0})


def test_what_was_read_before_the_deadline_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "server.log"
    path.write_bytes(LOG * 50)
    monkeypatch.setattr(logs_module, "CHUNK_BYTES", 1024)
    probe = LogsProbe(path)
    clock = iter(range(1000))
    # The module's own clock: other threads of this process read the time as well.
    own = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(logs_module, "time", own)
    with pytest.raises(logs_module.TimedOut):
        probe.collect(None, deadline=5.0)
    assert probe.partial().bytes_read == 5 * 1024


@pytest.mark.parametrize(("processes", "known"), [(200, 201), (300, 256)])
def test_last_words_of_many_processes(processes, known):
    log = b"".join(b"(P%d pid=%d) hello\n" % (n, n) for n in range(processes))
    later = log.replace(b"hello", b"bye") + b"(new pid=1) x\n"
    scanner = Scanner({}, None)
    scanner.scan(io.BytesIO(log))
    last = scanner.scan(io.BytesIO(later)).last_by_process
    assert len(last) == known
    assert {line.text for line in last.values()} <= {"bye", "x"}


# -------------------------------------------------------------- against a plain reading

lines_of_a_log = st.lists(
    st.sampled_from(
        [
            b"(EngineCore pid=1) ERROR 11-21 02:44:01 [a.py:1] boom",
            b"(EngineCore pid=12) INFO 11-21 02:44:01 [a.py:1] fine",
            (
                b"\x1b[1;36m(APIServer pid=2)\x1b[0;0m INFO 11-21 02:44:01 [b.py:2] "
                b"progress 7"
            ),
            b"(not a process) progress 8",
            b"(EngineCore pid=1) INFO 11-21 02:44:01 [a.py:1] bo\x1b[31mom\x1b[0m 12",
            b"\x1b[1;36m(APIServer pid=2) ERROR 11-21 02:44:01 [b.py:2] bo\x1b[0;0m om",
            b"\x1b[1;36m(Worker pid=3)\x1b[0;0m bo\x1b[0;0mom",
            b"(Eng",
            b"INFO:     uvicorn",
            b"ERROR in the middle of nothing",
            b"",
            b"caf\xc3\xa9 \xe2\x82\xac",
            b"\xff\xfe broken",
            b"x" * 90,
        ]
    )
    | st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")),
    max_size=25,
)
PATTERNS = {
    "boom": "boom",
    "prefix": r"pid=2\) INFO",
    "plain": "boom|fine",
    "or": r"(?:boom|fine) *$",
    "digits": r"\d{2}",
    "case": "(?i)BOOM",
}
PROGRESS = r"progress \d"


@given(lines_of_a_log, st.integers(1, 200), st.booleans())
def test_blocks_change_nothing(lines, chunk, ends_with_newline):
    log = b"\n".join(lines) + (b"\n" if ends_with_newline and lines else b"")
    before = logs_module.CHUNK_BYTES
    logs_module.CHUNK_BYTES = chunk
    try:
        data = scan(io.BytesIO(log), PATTERNS, PROGRESS, first=1000)
    finally:
        logs_module.CHUNK_BYTES = before
    plain = log.split(b"\n")
    if plain[-1] == b"":
        plain.pop()
    texts = [clean(raw) for raw in plain]
    read = [read_line(text) for text in texts]
    parsed = [parse_line(number, text) for number, text in enumerate(texts, start=1)]
    assert data.lines == len(plain)
    for name, pattern in PATTERNS.items():
        expected = [
            n for n, text in enumerate(texts, start=1) if re.search(pattern, text)
        ]
        assert [line.number for line in data.matches.get(name, [])] == expected
        assert data.match_counts[name] == len(expected)
    assert [e.number for e in data.errors] == [
        n for n, one in enumerate(read, start=1) if is_error(one)
    ]
    progress = [n for n, text in enumerate(texts, start=1) if re.search(PROGRESS, text)]
    assert (data.last_progress and data.last_progress.number) == (progress or [None])[
        -1
    ]
    last = {p.process: p.number for p in parsed if p.process}
    assert {k: v.number for k, v in data.last_by_process.items() if k} == last
    data.model_dump_json()


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_bad_lines_are_counted(lines):
    block = b"".join(b"\n" + line.replace(b"\n", b"") for line in lines)
    bad = 0
    for line in block.split(b"\n")[1:]:
        try:
            line.decode()
        except UnicodeDecodeError:
            bad += 1
    assert logs_module._bad_lines(block) == bad


@given(st.text(max_size=300), st.integers(1, 10**9))
def test_any_line_is_parsed_without_raising(text, number):
    parse_line(number, clean(text.encode("utf-8", "replace"))).model_dump_json()


# ------------------------------------------------------------------ texts of a pattern

PATTERN_TEXTS = {
    # plain: the expression means its texts, and nothing else
    "waiting for work": ({"waiting for work"}, True),
    r"hash=\[0\] is a\-ok\.|loop": ({"hash=[0] is a-ok.", "loop"}, True),
    # others
    r"mm_hash=\w+ .*cached item": ({"cached item"}, False),
    r"loop active$": ({"loop active"}, False),
    r"(?!never)text": ({"text"}, False),
    r"(abcdef)?xyz": ({"xyz"}, False),
    r"[abc] uvw[^]x]": ({" uvw"}, False),
    r"abcd*": ({"abc"}, False),
    r"abcd{0,2}e": ({"abc"}, False),
    r"abcd+e": ({"abcd"}, False),
    r"a{b} cd": ({"a{b} cd"}, True),
    r"tail\x41\u0042\x2aab": ({"tail"}, False),
    r"\(Core pid=7\) INFO x": ({"(Core pid=7"}, False),
    "caf\u00e9": ({"caf\u00e9"}, False),
}
NO_TEXTS = [
    r"\d+",
    "ab",
    "abc|",
    r"abc|\d",
    "(?i)error",
    "(?x) error",
    "(abc)+",
    "(?:fatal|issue): ",
    "a\tb\tc",
    "\ud800\ud801\ud802",
]


def test_the_texts_of_a_pattern() -> None:
    found = {pattern: texts_of(pattern) for pattern in PATTERN_TEXTS}
    as_said = {
        p: ({t.decode() for t in one.texts or ()}, one.plain)
        for p, one in found.items()
    }
    assert as_said == PATTERN_TEXTS
    assert [p for p in NO_TEXTS if texts_of(p).texts is not None] == []
    assert texts_of(re.compile("(?i)error")).texts is None
    declared = LogPattern(r"(?:Value|Type)Error: \d", "Error: ")
    assert (declared, texts_of(declared).texts) == (
        r"(?:Value|Type)Error: \d",
        [b"Error: "],
    )
    assert not texts_of(LogPattern("two words", "two")).plain


PARTS = [
    "abc",
    "x{2}",
    "y*",
    "[a-c]{2,4}",
    "(?:xyz|uvw)+",
    "d?",
    r"\.",
    "(?:q)?",
    "z+?",
    "|",
]


@given(st.data(), st.lists(st.sampled_from(PARTS), min_size=1, max_size=6))
def test_every_match_holds_a_text(data: st.DataObject, parts: list[str]) -> None:
    pattern = "abc" + "".join(parts)
    text = data.draw(st.from_regex(pattern, fullmatch=True)).encode()
    found = texts_of(pattern)
    assert found.texts is None or any(needle in text for needle in found.texts)
    if found.plain:
        assert text in (found.texts or ())


def shipped() -> dict[str, Pattern]:
    """Every pattern that this project looks for in a log."""
    engines = [
        {
            **e.log_patterns,
            "progress": e.progress_pattern,
            "added": e.added_pattern,
            **{start: start for start in e.start_lines},
        }
        for e in ENGINES.values()
    ]
    scenarios = [dict(s.log_patterns) for s in all_scenarios()]
    every = [live_server.LOG_PATTERNS, CLASS_PATTERNS, *engines, *scenarios]
    return {p: p for patterns in every for p in patterns.values() if p}


@examples(5)  # of each of some 130
@given(st.data())
def test_every_shipped_pattern_has_texts_that_its_matches_hold(
    data: st.DataObject,
) -> None:
    for pattern in shipped().values():
        texts = texts_of(pattern).texts
        assert texts, (
            f"{pattern}: every line of a log would be tried; declare a LogPattern"
        )
        match = data.draw(st.from_regex(re.compile(pattern, re.ASCII)))
        found = re.search(
            pattern, clean(match.partition("\n")[0].encode("utf-8", "replace"))
        )
        assert found is None or any(text in found[0].encode() for text in texts), (
            pattern
        )


def test_a_hostile_line_is_cleaned_fast():
    started = time.process_time()
    for raw in (
        b"\x1b[" * 40_000,
        b"\x1b]" * 40_000,
        b"(" * 90_000,
        b"ERROR " * 20_000,
    ):
        parse_line(1, clean(raw))
    assert time.process_time() - started < 3
    assert len(clean(b"a" * (MAX_LINE_BYTES * 2))) == MAX_LINE_BYTES
