"""What mitmproxy records of real traffic, read again: the recipe of docs/capture.md."""

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mitmproxy_recording
import pytest
from live_server import serving
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import pictures, read_case, write_case
from mmrepro.traffic.case.model import ServerWanted
from recorded_traffic import SECRETS, Sent, requests, send

pytestmark = pytest.mark.engine

SERVER = ServerWanted(engine="minivllm", release="0.1", model="qwen3")


@dataclass(frozen=True)
class Recording:
    sent: list[Sent]
    captured: Captured
    text: str
    """Of the HAR."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("har")
    with (
        serving(
            "minivllm",
            "0.1",
            TinyQwen3(),
            folder,
            "--vision",
            "fake",
            "--block-size",
            "16",
        ) as server,
        mitmproxy_recording.recording(server.url, folder) as url,
    ):
        sent = send(url, requests("tiny", completions=False))
    har = folder / mitmproxy_recording.HAR_NAME
    return Recording(sent, read(har, SERVER), har.read_text())


def test_all_that_was_sent_is_in_the_case(recording: Recording, tmp_path: Path) -> None:
    captured = recording.captured
    write_case(captured.case, tmp_path, captured.contents)
    case, folder = read_case(tmp_path)
    made = pictures(case, folder)
    again = [
        json.loads(body(op, made, "tiny"))
        for op in case.operations
        if op.method == "POST"
    ]
    sent = [one.body for one in recording.sent]
    assert sorted(map(_key, again)) == sorted(map(_key, sent))
    assert len(captured.contents) == 2, "two pictures, one of them three times"
    others = [(op.method, op.path) for op in case.operations if op.method != "POST"]
    assert others == [("GET", "/health")]
    assert not captured.case.origin.left_out


def _key(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)


def test_the_order_is_that_of_the_recording(recording: Recording) -> None:
    """The groups follow each other; within a group the requests run at once."""
    operations = recording.captured.case.operations
    by_text = {op.model_dump_json(include={"messages"}): op for op in operations}
    four = {op.id for text, op in by_text.items() if "together" in text}
    assert len(four) == 4
    alone = [op for op in operations if op.id not in four]
    for before, op in itertools.pairwise(alone):
        if not four & set(re.findall(r"r\d+", " ".join(op.after))):
            assert op.after == [f"{before.id}.end"]
    first, *others = (op for op in operations if op.id in four)
    assert len(first.after) == 1
    for op in others:  # how many of them still ran is a matter of milliseconds
        assert any(text.split(".")[0] in four for text in op.after)
    assert any(text.endswith(".sent") for op in others for text in op.after), (
        "some ran at once"
    )


def test_a_client_that_left_leaves_again(recording: Recording) -> None:
    left = [op for op in recording.captured.case.operations if op.leave]
    assert len(left) == 1
    assert "count for ever" in left[0].model_dump_json()
    tokens = re.fullmatch(r"tokens>=(\d+)", left[0].leave)
    assert tokens
    assert 3 <= int(tokens[1]) < 400, "it left after three, and the server stopped soon"


def test_answers_are_recorded(recording: Recording) -> None:
    by_body = {_key(s.body): s.status for s in recording.sent}
    assert sorted(map(str, by_body.values())).count("400") == 1
    for op in recording.captured.case.operations:
        recorded = op.recorded
        assert recorded is not None
        if op.leave or op.method == "GET":
            continue
        text = op.model_dump_json(include={"messages"})
        assert recorded.status == (400 if "too long too long" in text else 200)
        assert recorded.status == 400 or recorded.prompt_tokens


def test_nothing_private_is_left(recording: Recording) -> None:
    text = recording.captured.case.model_dump_json()
    for secret in SECRETS.values():
        assert secret.split()[-1].split("=")[-1] in recording.text, "the HAR has it"
        assert secret.split()[-1].split("=")[-1] not in text
    assert "127.0.0.1" not in text
    dropped = recording.captured.case.origin.dropped
    assert dropped["header"] > 100
    assert dropped["cookie"] == len(recording.sent) - 1, "of all but the one that left"
