"""What a log is searched for, derived from the expressions."""

import io
import re

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.probes.log_anchors import ORDINARY, Chain, Finder, anchors_of
from mmrepro.probes.logs import Scanner


def words(expression: str) -> list[str]:
    anchors = anchors_of(expression)
    assert anchors is not None
    return [anchor.decode() for anchor in anchors]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("out of memory|oom-kill", ["out of memory", "oom-kill"]),
        (r"exit ?code -9\b", ["exitcode -9", "exit code -9"]),
        (r"SIG(?:SEGV|BUS)\b", ["SIGSEGV", "SIGBUS"]),
        (r"[Ww]atchdog timeout(?=!)", ["Watchdog timeout", "watchdog timeout"]),
        (r"^(?P<name>\w+)Error: no such block", ["Error: no such block"]),
        (r"(?:CUDA|HIP) error: .{0,60}", ["CUDA error: ", "HIP error: "]),
        (
            r"fallen (?:now|\d+ times) off the bus",
            ["fallen now off the bus", " times off the bus"],
        ),
    ],
)
def test_the_words_of_an_expression(expression: str, wanted: list[str]) -> None:
    assert words(expression) == wanted


@pytest.mark.parametrize("expression", [r"\d+", "a|bcdef", "(?i)killed", ".*"])
def test_where_no_word_is_certain_every_line_is_tried(expression: str) -> None:
    assert anchors_of(expression) is None


def test_words_of_ordinary_lines_are_looked_for_in_their_order() -> None:
    (anchor,) = anchors_of(r'"POST /v1/\S+ HTTP/[0-9.]+" 500') or ()
    assert isinstance(anchor, Chain)
    finder = Finder([anchor])
    failed = ORDINARY.replace("200", "500").encode()
    assert finder.scan(failed)[anchor]
    assert not finder.scan(ORDINARY.encode() + b"\n" + b'" 500')[anchor]


PIECES = st.sampled_from(
    [
        "cache",
        "block",
        r"\d+",
        "[Kk]ey",
        "(?:full|gone away)",
        "(?: is)?",
        ".{0,20}",
        r"\bslot\b",
        "x+",
        "(?:ab){2}",
        "(?!free)",
        r"\) ",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(PIECES, min_size=1, max_size=4), min_size=1, max_size=3).map(
        lambda ways: "|".join("".join(way) for way in ways)
    ),
    st.lists(
        st.sampled_from(
            [
                "cache block 7 Key key full",
                "gone away",
                " is",
                "slot",
                "x",
                "abab",
                ") ",
                "free",
            ]
        ),
        max_size=8,
    ),
)
def test_no_line_that_matches_is_lost(expression: str, parts: list[str]) -> None:
    line = "".join(parts)
    anchors = anchors_of(expression)
    if anchors is None or not re.search(expression, line):
        return
    found = Finder(anchors).scan(line.encode())
    assert any(found.values()), (expression, line, anchors)


def test_ordinary_access_lines_are_not_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mmrepro.probes import log_lines

    read = 0
    real = log_lines.read_line

    def counted(line: str, *, words: bool = True) -> object:
        nonlocal read
        read += 1
        return real(line, words=words)

    monkeypatch.setattr(log_lines, "read_line", counted)
    access = b'(APIServer pid=7) INFO:     10.0.0.9:%d - "POST /v1/chat/completions'
    access += b' HTTP/1.1" 200 OK\n'
    text = b"".join(access % port for port in range(30_000))
    failed = access.replace(b"200 OK", b"500 Internal Server Error") % 4711
    scanner = Scanner({"failed": r'"POST /v1/\S+ HTTP/[0-9.]+" 500'}, None)
    data = scanner.scan(io.BytesIO(text + failed + text))
    assert data.match_counts == {"failed": 1}
    assert read < data.lines / 5
