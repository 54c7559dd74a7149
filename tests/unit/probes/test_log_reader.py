"""One complete log reads the same in each wrapping; each form is read as its program
means it."""

import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.engines import log_marks
from mmrepro.probes.base import run_probe
from mmrepro.probes.data import LogLine, LogPattern, LogsData
from mmrepro.probes.log_forms import FORMS, parse_line, seconds
from mmrepro.probes.log_reader import LineReader
from mmrepro.probes.log_wraps import WRAPPINGS, Peeler
from mmrepro.probes.logs import LogsProbe, Scanner, scan
from wrapped import LINES, STREAMS, WRAPPED

STAMPED = ("-t", "json", "journald", "CRI", "RFC", "loki", "ts", "fluent", "CloudWatch")
EVERY = LogPattern(r"\S")
"""Matches each line that is not empty, and is tried on all."""
GRID = [(engine, wrapping) for engine in LINES for wrapping in WRAPPED]


def read(tmp_path: Path, data: bytes) -> LogsData:
    path = tmp_path / "server.log"
    path.write_bytes(data)
    probe = LogsProbe(
        path, {"every": EVERY}, "batch|throughput", first=10_000, marks=log_marks()
    )
    result = run_probe(probe, tmp_path, 20)
    assert result.data is not None, result.reason
    return result.data


def facts(line: LogLine | None) -> tuple[object, ...] | None:
    if line is None:
        return None
    printed = (line.time, line.process, line.level, line.text, line.engine, line.source)
    return (*printed, line.rank, line.pid, line.quoted)


def test_half_a_line_waits_for_its_rest_and_the_last_one_needs_no_end() -> None:
    reader = LineReader()
    line = b"INFO 11-24 18:12:17 [core.py:1] "
    assert [one.text for one in reader.take(line + b"first\n" + line + b"sec")] == [
        "first"
    ]
    assert reader.take(b"ond") == []
    assert [one.text for one in reader.take(b"", last=True)] == ["second"]


@pytest.mark.parametrize(("engine", "wrapping"), GRID)
def test_each_line_reads_the_same_in_each_wrapping(
    engine: str, wrapping: str, tmp_path: Path
) -> None:
    bare = [parse_line(n, line) for n, line in enumerate(LINES[engine], 1)]
    wrapped = WRAPPED[wrapping](LINES[engine])
    found = read(tmp_path, wrapped)
    lines = found.matches["every"]
    assert [facts(line) for line in lines] == [facts(line) for line in bare]
    if wrapped.count(b"\n") == len(bare):
        # Who opens the file finds the line by its number.
        assert [line.number for line in lines] == [*range(1, len(bare) + 1)]
    assert found.engine == engine
    assert (found.release == "0.23.0") is (engine == "vllm")
    plain = read(tmp_path, WRAPPED["plain"](LINES[engine]))
    assert [facts(line) for line in found.errors] == [
        facts(line) for line in plain.errors
    ]
    assert facts(found.last_progress) == facts(plain.last_progress)
    assert found.last_by_process.keys() == plain.last_by_process.keys()
    printed = [line.when for line in plain.matches["every"] if line.time]
    timed = [line.when for line in lines if line.time]
    assert [when is None for when in timed] == [when is None for when in printed]
    if wrapping in STREAMS:
        assert {line.stream for line in lines} == {STREAMS[wrapping]}
    assert found.servers == []
    assert found.skipped_bytes == 0, "all of it was read"


@pytest.mark.parametrize("wrapping", WRAPPED)
def test_a_wrapped_line_without_a_time_has_its_collectors(
    wrapping: str, tmp_path: Path
) -> None:
    found = read(tmp_path, WRAPPED[wrapping](LINES["sglang"]))
    bare = [
        line for line in found.matches["every"] if line.text.startswith("ValueError")
    ]
    stamped = any(word in wrapping for word in STAMPED)
    assert (bare[0].when is not None) is stamped
    if stamped:
        assert bare[0].when == pytest.approx(seconds("2026-11-24 18:12:17"), abs=1)


def test_each_form_and_each_wrapping_is_in_the_grid(tmp_path: Path) -> None:
    for engine, lines in LINES.items():
        assert {parse_line(1, line).engine for line in lines} <= {engine, ""}
    texts = [line for lines in LINES.values() for line in lines]
    texts += [line for line, *_ in OTHERS]
    left = {
        form.name
        for form in FORMS
        if not any(_begins(form.pattern, text) for text in texts)
    }
    assert left == set()
    used = set()
    for wrap in WRAPPED.values():
        peeler = Peeler()
        peeler.learn(wrap(LINES["vllm"]).split(b"\n"))
        used |= {wrapping.name for wrapping in peeler.chain}
    for sample in SAMPLES:
        peeler = Peeler()
        peeler.learn(sample)
        used |= {wrapping.name for wrapping in peeler.chain}
    assert {wrapping.name for wrapping in WRAPPINGS} == used


def _begins(pattern, text: str) -> bool:  # type: ignore[no-untyped-def]
    return any(
        pattern.match(text, at)
        for at in range(len(text))
        if at == 0 or text[at - 1] == " "
    )


_ONE = b"(EngineCore pid=20) ERROR 11-24 18:12:17 [core.py:1195] IndexError: x"
SAMPLES = [
    [b"2026-11-24T18:12:17.123456+00:00 ecs/engine/0a1b " + _ONE] * 3,
    [b"2026-11-24 18:12:17.123\t" + _ONE] * 3,
    [b"   12\t" + _ONE] * 3,
    [b"[1,3]<stderr>:" + _ONE, b"[1,0]<stdout>:" + _ONE],
    [b"node1: " + _ONE, b"node2: " + _ONE],
    [b'2026-11-24T18:12:17+00:00 kube.engine {"log":"' + _ONE + b'"}'] * 3,
]

OTHERS = [
    ("INFO [core.py:1] hi", "", "INFO", "", "hi"),
    ("[gpu=3] Load weight end", "rank3", "", "3", "Load weight end"),
    (
        "2026-11-24 18:12:17,001 - my.module - ERROR - a.py:7 - boom",
        "",
        "ERROR",
        "",
        "boom",
    ),
    ("2026-11-24 18:12:17.001 | INFO     | a.b:run:7 - text", "", "INFO", "", "text"),
    (
        "2026-11-24 18:12:17,001\tWARNING worker.py:1888 -- text",
        "",
        "WARNING",
        "",
        "text",
    ),
    ("[E ProcessGroupNCCL.cpp:475] [Rank 0] late", "", "ERROR", "", "[Rank 0] late"),
    ("W1124 18:12:17.903000 4021 torch/a/api.py:874] text", "", "WARNING", "", "text"),
    ("[rank3]: KeyError: 'x'", "rank3", "", "3", "KeyError: 'x'"),
    (
        "Nov 24 18:12:17 gpu1 kernel: Out of memory: Killed process 4067",
        "kernel",
        "",
        "",
        "Out of memory: Killed process 4067",
    ),
    (
        "<2>1 2026-11-24T18:12:17Z gpu1 kernel - - - [9.1] NVRM: Xid",
        "kernel",
        "",
        "",
        "NVRM: Xid",
    ),
    (
        "[93297.027938] NVRM: Xid (PCI:0000:43:00): 79",
        "kernel",
        "",
        "",
        "NVRM: Xid (PCI:0000:43:00): 79",
    ),
    ("[Tue Nov 24 18:12:17 2026] segfault at 0", "kernel", "", "", "segfault at 0"),
    ("ERROR:asyncio:boom", "", "ERROR", "", "boom"),
    (
        "2026-11-24 18:12:17.488 1 kserve ERROR [__main__.py:<module>():254] boom",
        "",
        "ERROR",
        "",
        "boom",
    ),
    (
        "(EngineCore pid=7) a print of its own",
        "EngineCore pid=7",
        "",
        "",
        "a print of its own",
    ),
]


@pytest.mark.parametrize(("line", "process", "level", "rank", "text"), OTHERS)
def test_lines_of_other_programs(
    line: str, process: str, level: str, rank: str, text: str
) -> None:
    found = parse_line(1, line)
    assert (found.process, found.level, found.rank, found.text) == (
        process,
        level,
        rank,
        text,
    )


@pytest.mark.parametrize(
    ("time", "means"),
    [
        ("11-24 18:12:17", "2026-11-24T18:12:17"),
        ("11-24 18:12", "2026-11-24T18:12:00"),
        ("18:12:17", "2026-06-01T18:12:17"),
        ("Nov 24 18:12:17", "2026-11-24T18:12:17"),
        ("Tue Nov 24 18:12:17 2025", "2025-11-24T18:12:17"),
        ("1124 18:12:17.903881913", "2026-11-24T18:12:17.903881"),
        ("2026-11-24T18:12:17.5Z", "2026-11-24T18:12:17.500000"),
        ("93297.027938", ""),
        ("", ""),
        ("02-29 10:00:00", ""),
        ("13-41 99:00:00", ""),
    ],
)
def test_times_of_all_forms_are_comparable(time: str, means: str) -> None:
    expected = datetime.fromisoformat(f"{means}+00:00").timestamp() if means else None
    assert seconds(time, datetime(2026, 6, 1)) == expected


def test_times_without_a_year_are_held_against_those_with_one() -> None:
    log = b"[rank1]:[E1124 18:22:11.9 a.cpp:1] late\n[2026-11-24 18:22:12 TP1] next\n"
    first, second = scan(io.BytesIO(log), {"every": EVERY}).matches["every"]
    assert first.when is not None
    assert second.when is not None
    assert 0 < second.when - first.when < 1


def test_a_year_that_ends_in_the_log() -> None:
    log = b"INFO 12-31 23:59:59 [a.py:1] old\nINFO 01-01 00:00:01 [a.py:1] new\n"
    first, second = scan(io.BytesIO(log), {"every": EVERY}).matches["every"]
    assert second.when is not None
    assert first.when is not None
    assert second.when - first.when == 2


# ------------------------------------------------------------------ several servers


def test_two_replicas_are_two_servers(tmp_path: Path) -> None:
    """The one that died is not kept alive by the other's work, whichever way they are
    mixed."""
    dead = [LINES["vllm"][i] for i in (1, 6, 9, 10, 11)]
    well = [LINES["vllm"][i] for i in (1, 6, 6, 6, 6)]
    joins: list[Callable[[str, str], str]] = [
        "{} | {}".format,
        "[pod/{}/engine] {}".format,
        lambda name, line: json.dumps({"log": f"{line}\n", "pod": name}),
    ]
    for join in joins:
        both = [
            join(name, line)
            for pair in zip(dead, well, strict=True)
            for name, line in zip(("a-1", "b-1"), pair, strict=True)
        ]
        found = read(tmp_path, "".join(f"{line}\n" for line in both).encode())
        one, two = found.servers
        assert (one.stream[:3], two.stream[:3]) == ("a-1", "b-1")
        assert (one.error_count >= 2, two.error_count, two.errors) == (True, 0, [])
        assert found.error_count == one.error_count
        assert one.last_progress is not None
        assert two.last_progress is not None
        assert one.last_progress.number < two.last_progress.number
        assert one.lines <= found.lines


def test_a_second_server_that_comes_late_has_its_own_reading(tmp_path: Path) -> None:
    first = b"".join(
        b"a-1 | INFO 11-24 18:11:13 [m.py:1] throughput %d\n" % n for n in range(9999)
    )
    found = read(tmp_path, first + b"b-1 | ERROR 11-24 18:12:13 [m.py:1] late\n")
    one, two = found.servers
    assert (one.match_counts["every"], two.match_counts["every"]) == (9999, 1)
    assert (one.error_count, two.error_count) == (0, 1)
    assert two.errors[0].number == 10_000


def test_whose_line_it_is_in_the_words_of_several_collectors() -> None:
    each: list[tuple[dict[str, object], str]] = [
        (
            {"message": "m", "kubernetes": {"pod_name": "p-0", "container_name": "c"}},
            "p-0/c",
        ),
        ({"textPayload": "m", "resource": {"labels": {"pod_name": "p-0"}}}, "p-0"),
        ({"MESSAGE": [109], "SYSLOG_IDENTIFIER": "engine", "_HOSTNAME": "h"}, "engine"),
        ({"MESSAGE": "m", "SYSLOG_IDENTIFIER": "kernel", "_HOSTNAME": "h"}, ""),
        ({"log": {"message": "m"}, "container_name": "/engine-1"}, "engine-1"),
        ({"msg": "m", "service": 7}, ""),
    ]
    for values, stream in each:
        line = json.dumps(values).encode()
        peeler = Peeler()
        peeler.learn([line])
        (bare,) = peeler.peel(line)
        assert (bare.text, bare.stream) == (b"m", stream)


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b'{"a": 1}', b'{"log": 7}', b'{"log": {"x": 1}}']
)
def test_json_without_a_message_stays_as_it_is(line: bytes) -> None:
    peeler = Peeler()
    peeler.learn([b'{"log": "x"}', b'{"log": "y"}'])
    assert [bare.text for bare in peeler.peel(line)] == [line]


def test_a_log_of_one_stream_has_no_servers(tmp_path: Path) -> None:
    found = read(tmp_path, WRAPPED["compose"](LINES["vllm"]))
    assert (found.servers, found.stream) == ([], "engine-1")


# ---------------------------------------------------------------- whatever stands there

OPENED = ("gzip", "zstd", "UTF", "BOM", "tqdm", "ANSI", "plain", "CRLF")
"""Taken off before or after; in the grid."""
PEELED = [name for name in WRAPPED if not any(word in name for word in OPENED)]
WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp", "Cs"]),
    max_size=60,
)


@settings(max_examples=60)
@given(st.lists(WORDS, min_size=3, max_size=8), st.sampled_from(PEELED))
def test_taking_a_wrapping_off_gives_the_bare_line(
    texts: list[str], wrapping: str
) -> None:
    lines = [
        f"(EngineCore pid=7) INFO 11-24 18:12:17 [core.py:1] {text}".rstrip()
        for text in texts
    ]
    wrapped = WRAPPED[wrapping](lines)
    if (
        any(wrapping.startswith(kind) for kind in ("gzip", "zstd", "UTF", "BOM"))
        or "gzip" in wrapping
    ):
        return  # opened before; in the grid
    if "tqdm" in wrapping or wrapping in ("ANSI", "plain", "CRLF"):
        return  # read where a line is; in the grid
    peeler = Peeler()
    raw = wrapped.removesuffix(b"\n").split(b"\n")
    peeler.learn(raw)
    bare = [one.text.decode() for line in raw for one in peeler.peel(line)]
    assert [one.rstrip() for one in bare] == lines


@settings(max_examples=150)
@given(st.lists(st.binary(max_size=80) | WORDS.map(str.encode), max_size=12), st.data())
def test_nothing_is_lost_and_nothing_raised(
    lines: list[bytes], data: st.DataObject
) -> None:
    wrap = data.draw(
        st.sampled_from(["", "a-1 | ", "2026-11-24T18:12:17.1Z ", '{"log":"', "> "])
    )
    log = b"".join(wrap.encode() + line.replace(b"\n", b"") + b"\n" for line in lines)
    scanner = Scanner({"every": EVERY}, "x", marks=log_marks(), first=1000)
    found = scanner.scan(io.BytesIO(log))
    assert found.lines == len(lines)
    found.model_dump_json()
