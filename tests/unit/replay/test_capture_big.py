"""Files of any size within bounded memory."""

import json
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from made_up_har import SERVER, chat, data_url, entry, har, shown, write
from mmrepro.base.errors import UsageError
from mmrepro.traffic.capture import parsing as bounded
from mmrepro.traffic.capture.parsing import CUT, BadJson, events
from mmrepro.traffic.capture.read import read

MIB = 1 << 20
MEMORY = 700 * MIB
"""Of addresses. Python with its libraries takes 350 of them."""
READER = r"""
    import re, sys
    from pathlib import Path
    from mmrepro.traffic.capture.read import read
    from mmrepro.traffic.case.model import ServerWanted
    from mmrepro.base.errors import UsageError
    import numpy, PIL.Image  # as the command line has
    try:
        found = read(Path(sys.argv[1]), ServerWanted(engine="vllm", release="0.23.0"))
        print(len(found.case.operations), len(found.contents))
    except UsageError as error:
        print(error.message)
    # ru_maxrss begins with what the parent had when it forked: 400 MiB, where that is a pytest
    # that ran everything else before.
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10)
"""


def read_in_a_child(file: Path) -> tuple[str, int]:
    """What it printed, and the most MiB that it had."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READER), str(file)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    said, most = done.stdout.splitlines()
    return said, int(most)


def filler(size: int) -> str:
    return (
        "some sixty characters of text, and then two that are escaped:" + "\\n\\u00e9"
    ) * (size // 70)


def test_a_large_har_is_read_piece_by_piece(tmp_path: Path) -> None:
    """160 MiB: answers of 2 MiB that nobody needs, a picture, and one answer that is
    longer than any that is read whole."""
    file = tmp_path / "large.har"
    one = json.dumps(entry(chat([shown(data_url(1))])))
    _before, text, _after = one.partition('"text": "{')
    assert text, "the request's body comes first"
    answer = json.dumps(entry()).partition(
        '"response": {"status": 200, "content": {"text": "'
    )
    with file.open("w") as out:
        out.write('{"log": {"entries": [\n')
        for number in range(40):
            size = 80 * MIB if number == 7 else 2 * MIB
            out.write(f"{answer[0]}{answer[1]}{filler(size)}")
            out.write('", "mimeType": "x"}}},\n')
        out.write(f"{one}]}}}}")
    assert file.stat().st_size > 150 * MIB
    said, most = read_in_a_child(file)
    assert said == "41 1"
    assert most < 400


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("begin", "piece", "why"),
    [
        (
            '{"request": {"postData": {"text": "',
            "a",
            "entry 1 on: the file ends in the middle",
        ),
        ('{"time": ', "9", "entry 1 on: a value of more than 4 MiB"),
        pytest.param(
            '{"', "a", "entry 1 on: the file ends in the middle", marks=NIGHTLY
        ),
        pytest.param(
            "{}", " ", "entry 1 on: a value of more than 4 MiB", marks=NIGHTLY
        ),
        ("", "[" * 64, "entry 1 on: it is nested deeper than 100"),
    ],
)
def test_a_value_without_end_is_one_sentence(
    begin: str, piece: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "endless.har"
    with file.open("w") as out:
        out.write('{"log": {"entries": [' + begin)
        for _ in range(100):
            out.write(piece * (MIB // len(piece)))
    said, most = read_in_a_child(file)
    assert said == f"endless.har cannot be read as a HAR, from {why}."
    assert most < 400


def test_a_body_that_is_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_TEXT", 1000)
    entries = [entry(chat("x" * 2000)), entry(chat("y" * 100))]
    found = read(write(tmp_path, har(entries)), SERVER)
    assert len(found.case.operations) == 1
    assert found.case.origin.left_out == {"a body of more than 32 MiB": 1}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("chunk", [8, 9, 13, 1 << 18])
def test_what_is_cut_is_json_still(
    limit: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a string is cut, and wherever the pieces of the file end."""
    texts = ["", "a", "é漢🙂" * 9, '"\\/\n\u2028' * 9, "\\" * 15, "\\u12", "\ud83d"]
    document = {text[:4]: [text, {"k": text}] for text in texts} | {
        "n": [1, -2.5, True, None]
    }
    monkeypatch.setattr(bounded, "MAX_TEXT", limit)
    monkeypatch.setattr(bounded, "CHUNK", chunk)
    for ascii_only in (True, False):
        given = json.dumps(document, ensure_ascii=ascii_only)
        file = write(tmp_path, given.encode("utf-8", "replace"))
        with file.open("rb") as opened:
            values = [value for event, value, _ in events(opened) if event == "string"]
        assert len(values) == 2 * len(document) - 2
        for value in values:
            kept = value.removesuffix(CUT)
            assert any(
                text.startswith(kept) or kept == "?" * len(text) for text in texts
            ) or ("\ufffd" in kept or "?" in kept)
            assert value.endswith(CUT) or value in texts or "?" in value


def test_events_tell_how_deep_they_stand(tmp_path: Path) -> None:
    file = write(tmp_path, {"a": [1, {"b": 2}]})
    with file.open("rb") as opened:
        assert [(event, depth) for event, _, depth in events(opened)] == [
            ("start_map", 0),
            ("map_key", 1),
            ("start_array", 1),
            ("number", 2),
            ("start_map", 2),
            ("map_key", 3),
            ("number", 3),
            ("end_map", 2),
            ("end_array", 1),
            ("end_map", 0),
        ]
    with (
        write(tmp_path, "[" * 200).open("rb") as opened,
        pytest.raises(BadJson, match="deeper"),
    ):
        list(events(opened))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(har([entry()])).encode())
    assert len(read(file, SERVER).case.operations) == 1


def test_a_batch_line_that_is_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrepro.traffic.capture.parsing.MAX_LINE", 3000)
    told = [
        {"custom_id": "a", "url": "/v1/chat/completions", "body": chat("x" * n)}
        for n in (9000, 9)
    ]
    file = write(tmp_path, "\n".join(map(json.dumps, told)), "b.jsonl")
    found = read(file, SERVER)
    assert len(found.case.operations) == 1
    assert found.case.origin.left_out == {"a line that is too long": 1}
    with pytest.raises(UsageError):
        read(write(tmp_path, json.dumps(told[0]), "b.jsonl"), SERVER)
