"""Requests of a stranger's case that make a server ask others: not sent without a
box."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fake_player import FakePlayer, replaying
from fake_plays import answered_until, fake_case, fake_op
from mmrepro.base.errors import UsageError
from mmrepro.search.replay.session import _ELSEWHERE
from mmrepro.traffic.case.fetching import asks_elsewhere
from mmrepro.traffic.case.model import Operation

HERE = "http://127.0.0.1:8000/a.png"
THERE = "http://169.254.169.254/latest/meta-data"


def image(url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"messages": [{"role": "user", "content": [part]}]}


def request(**fields: Any) -> Operation:
    return Operation.model_validate({"id": "r", **fields})


def written(document: object, encoding: str = "utf-8") -> str:
    return base64.b64encode(json.dumps(document).encode(encoding)).decode()


ASKING = {
    "an image in a body": {"body": json.dumps(image(THERE))},
    "an image beside messages": {"parameters": image(THERE)},
    "a list": {"parameters": {"image_data": [HERE, THERE]}},
    "sound": {"parameters": {"audio_data": "//169.254.169.254/x"}},
    "a part's own text": {"body": '{"input": [{"audio_url": "HTTP:evil.example"}]}'},
    "a broken body": {"body": '{"video_url": "http:\\/\\/evil.example", '},
    "a body in bytes": {"data": written(image(THERE))},
    "a body in UTF-16": {"data": written(image(THERE), "utf-16")},
    "broken bytes": {"data": base64.b64encode(b'\xff{"url": "ftp://h/"').decode()},
    "a form": {"form": [{"name": "image_url", "text": THERE}]},
    "a query": {"path": "/v1/x", "query": "image_url=http%3A%2F%2Fevil.example"},
    "a file": {"parameters": {"image_url": "file:///etc/passwd"}},
    "another machine's cache": {
        "parameters": {"kv_transfer_params": {"remote_host": "10.1.2.3"}}
    },
    "an earlier answer": {
        "parameters": {"image_url": "${link}"},
        "values": {"link": "q.choices.0.text"},
    },
    "beside a message": {
        "messages": [
            {"role": "user", "content": None, "more": {"audio": {"url": THERE}}}
        ]
    },
    "depth": {"body": '{"a": ' * 9000 + "1" + "}" * 9000},
}


@pytest.mark.parametrize("fields", ASKING.values(), ids=ASKING.keys())
def test_what_asks_elsewhere(fields: dict[str, Any]) -> None:
    assert asks_elsewhere(request(**fields))


STAYING = {
    "this machine": {"body": json.dumps(image(HERE))},
    "data": {"parameters": image("data:image/png;base64,AAAA")},
    "a text that is an address": {"prompt": THERE},
    "a text that speaks of one": {"parameters": {"suffix": THERE}},
    "a schema": {
        "parameters": {"tools": [{"url": {"type": "string", "default": THERE}}]}
    },
    "nothing": {"method": "GET", "path": "/health"},
}


@pytest.mark.parametrize("fields", STAYING.values(), ids=STAYING.keys())
def test_what_stays_here(fields: dict[str, Any]) -> None:
    assert not asks_elsewhere(request(**fields))


@pytest.mark.parametrize("box", [True, False])
def test_without_a_box_such_requests_are_not_sent_and_that_is_said(
    tmp_path: Path, box: bool
) -> None:
    asking = request(body=json.dumps(image(THERE)))
    case = fake_case([fake_op("a"), asking, fake_op("b")])
    session, _ = replaying(
        case, tmp_path, FakePlayer(lambda case: answered_until(case, None)), box=box
    )
    sent = [op.id for op in session.case.operations]
    assert sent == (["a", "r", "b"] if box else ["a", "b"])
    replay = session.execute()
    assert replay.origin.left_out == ({} if box else {_ELSEWHERE: 1})


def test_a_case_of_nothing_else_is_refused_without_a_box(tmp_path: Path) -> None:
    case = fake_case([request(body=json.dumps(image(THERE)))])
    player = FakePlayer(lambda case: answered_until(case, None))
    with pytest.raises(UsageError, match="another machine"):
        replaying(case, tmp_path, player, box=False)
    assert player.plays == 0
