"""A broken HAR: one sentence, or one entry less."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from made_up_har import (
    CHAT,
    HOST,
    SERVER,
    data_url,
    entry,
    har,
    read_entries,
    write,
)
from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import read_case, write_case

GOOD = json.dumps(har([entry(), entry()]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it.har is empty."),
        (
            GOOD[:-40],
            "cannot be read as a HAR, from entry 2 on: the file ends in the middle.",
        ),
        (GOOD[: len(GOOD) // 3], "from entry 1 on: the file ends in the middle."),
        (GOOD[:12], "from its beginning on: the file ends in the middle."),
        ("<html>", "from its beginning on: it is no JSON there."),
        ("[1, 2]", "it.har is JSON, but no HAR: it has no list log.entries."),
        ('{"log": {}}', "it.har is JSON, but no HAR: it has no list log.entries."),
        ('{"log": {"entries": {"a": 1}}}', "no list log.entries."),
        (
            '{"log": {"entries": []}}',
            "no request that can be played, of 0 that were read.",
        ),
        (
            '{"log": {"entries": [1, null, [], "x"]}}',
            "of 4 that were read (4 × an entry that is",
        ),
        ('{"log": {"entries": [NaN]}}', "from its beginning on: it is no JSON there."),
        (
            GOOD.replace('"time": 100.0', '"time": NaN', 1),
            "from entry 1 on: it is no JSON there.",
        ),
        (GOOD.replace('"time": 100.0', f'"time": {"9" * 6000}', 1), "entry 1 on"),
        (
            GOOD.replace("\\n", "\x00", 1).replace('"POST"', '"PO\x00ST"', 1),
            "entry 1 on",
        ),
        (
            '{"log": {"entries": [' + "[" * 300,
            "from entry 1 on: it is nested deeper than 100.",
        ),
        ('{"log": {"entries": [' + '{"a":' * 100_000, "nested deeper than 100."),
        (GOOD + "x", "it is no JSON there."),
    ],
)
def test_a_broken_har_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as told:
        read(write(tmp_path, text), SERVER)
    assert said in told.value.message
    assert told.value.message.count(". ") == 0
    assert "\n" not in told.value.message


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({}, "another request"),
        ({"request": None}, "another request"),
        ({"request": [], "response": 3}, "another request"),
        (entry(""), "no body in the recording"),
        (entry(url="http://[::1"), "an entry without an address"),
        (entry(url=f"http://host:99999999{CHAT}"), "an entry without an address"),
    ],
)
def test_an_entry_that_alone_is_broken_is_left_out(
    tmp_path: Path, broken: dict[str, Any], why: str
) -> None:
    captured = read_entries(tmp_path, broken, entry())
    assert len(captured.case.operations) == 1
    assert captured.case.origin.left_out == {why: 1}


GENERATE = f"http://{HOST}/generate"
"""SGLang's own interface."""


@pytest.mark.parametrize("where", ["/srv/scans/1.png", "http://files.b.org/1.png"])
def test_a_picture_that_lies_elsewhere_is_asked_of_nobody(
    tmp_path: Path, where: str
) -> None:
    asked = {"text": "look", "image_data": where}
    own = {"text": "look", "image_data": data_url(1)}
    found = read_entries(tmp_path, entry(asked, url=GENERATE), entry(own, url=GENERATE))
    assert found.case.origin.left_out == {"pictures or sounds by address or path": 1}
    assert len(found.case.operations) == 1
    assert where not in found.case.model_dump_json()


@pytest.mark.parametrize(
    "written",
    [
        "{",
        '{"temperature": NaN}',
        '{"n": 1' + "0" * 5000 + "}",
        "[" * 100_000,
        '{"a": ' * 90 + "1" + "}" * 90,
        "[]",
        '{"messages": [], "stream": "yes"}',
        '{"max_tokens": 1, "max_tokens": 2}',
        '{"x": "\\ud800"}',
        ' {"prompt" : "spaced" }\n',
        '{"temperature": 1e400}',
    ],
)
def test_a_body_that_cannot_be_taken_apart_is_sent_as_it_is(
    tmp_path: Path, written: str
) -> None:
    captured = read_entries(tmp_path, entry(written))
    write_case(captured.case, tmp_path / "case", captured.contents)
    case, _ = read_case(tmp_path / "case")
    assert case == captured.case
    assert body(case.operations[0], {}, "tiny") == written.encode()


def test_odd_values_of_an_entry_do_no_harm(tmp_path: Path) -> None:
    one = entry(
        '{"messages": "no list", "x": "\\ud800", "big": 123456789012345678901234567890}'
    )
    one |= {"time": "long", "startedDateTime": 7, "timings": [1, 2]}
    one["response"] = {"status": "OK", "content": [{"text": {}}]}
    captured = read_entries(tmp_path, one, entry(at=1))
    odd = captured.case.operations[0]
    assert odd.messages is None
    assert odd.body == one["request"]["postData"]["text"]
    write_case(captured.case, tmp_path / "case", captured.contents)
    assert read_case(tmp_path / "case")[0] == captured.case


KEYS = (
    "log entries request response postData text messages role content type image_url "
    "url stream prompt model tools time timings status startedDateTime api_key"
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["POST", "data:image/png;base64,AAAA", "\ud800", CHAT, "http://h/generate"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS.split()) | st.text(max_size=5), inner, max_size=6
        )
    ),
    max_leaves=30,
)


@given(
    body=JSON,
    around=JSON,
    cut=st.none() | st.integers(0, 4000),
    flip=st.integers(0, 10**6),
)
def test_whatever_is_in_the_file_only_our_errors_come_of_it(
    tmp_path_factory: pytest.TempPathFactory,
    body: Any,
    around: Any,
    cut: int | None,
    flip: int,
) -> None:
    folder = tmp_path_factory.mktemp("har")
    odd = entry(json.dumps(body))
    mixed = {**odd, **around} if isinstance(around, dict) else odd
    data = bytearray(json.dumps(har([odd, mixed, around])).encode()[:cut])
    if flip % 3 == 0 and data:
        data[flip % len(data)] = flip % 251
    try:
        captured = read(write(folder, bytes(data)), SERVER)
    except MmreproError:
        return
    write_case(captured.case, folder / "case", captured.contents)
    assert read_case(folder / "case")[0] == captured.case
