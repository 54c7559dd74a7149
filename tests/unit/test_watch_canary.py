"""Other people's words: two sessions, two codes, and a FAKE server that mixes them up."""

import asyncio
import json
import re

import pytest
from fake_server import Reply, answering, http, serving
from mmrepro.live.watch.canary import (
    Canary,
    CanaryRound,
    CanaryVerdict,
    _Session,
    judge_round,
)
from mmrepro.live.watch.options import WatchCommand

ONE, TWO = "a1b2c3d4e5f60718", "0f1e2d3c4b5a6978"


def judged(first: str, second: str, again: str | None = None) -> CanaryVerdict:
    sessions = _Session(ONE, "p", first), _Session(TWO, "q", second)
    return judge_round(*sessions, first if again is None else again).verdict


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (f"It is {ONE}.", f"It is {TWO}.", CanaryVerdict.CLEAN),
        (f"It is {TWO}.", f"It is {TWO}.", CanaryVerdict.CONTAMINATED),
        ("no idea", f"{ONE}", CanaryVerdict.CONTAMINATED),
        ("no idea", "none", CanaryVerdict.BLIND),
        ("no idea", f"It is {TWO}.", CanaryVerdict.CLEAN),
    ],
)
def test_a_code_of_the_other_session_is_contamination(
    first: str, second: str, verdict: CanaryVerdict
) -> None:
    assert judged(first, second) is verdict


def test_two_greedy_answers_that_differ_are_unsteady_and_no_contamination() -> None:
    assert judged(f"{ONE}", f"{TWO}", "else") is CanaryVerdict.UNSTEADY


def echo(text: str) -> bytes:
    document = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    return http(200, json.dumps(document).encode())


def code_in(request: bytes) -> str:
    prompt = json.loads(request.partition(b"\r\n\r\n")[2])["messages"][0]["content"]
    found = re.search(r"is ([0-9a-f]{16})\.", prompt)
    assert found is not None
    return found[1]


def honest() -> Reply:
    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        await answering(echo(code_in(request)))(request, writer)

    return reply


def swapping() -> Reply:
    """Gives each of two requests at once the answer to the other one."""
    waiting: list[tuple[str, asyncio.Future[str]]] = []

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        code = code_in(request)
        if waiting:
            other, answered = waiting.pop()
            answered.set_result(code)
            text = other
        else:
            mine: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            waiting.append((code, mine))
            try:
                text = await asyncio.wait_for(mine, 1.0)
            except TimeoutError:
                waiting.clear()
                text = code
        await answering(echo(text))(request, writer)

    return reply


def one_round(reply: Reply) -> CanaryRound:
    async def main() -> CanaryRound:
        async with serving(reply) as server:
            return await asyncio.to_thread(Canary(server.url, 30.0).round, "tiny")

    return asyncio.run(main())


def test_an_engine_that_swaps_answers_is_found_in_the_first_round() -> None:
    found = one_round(swapping())
    assert found.verdict is CanaryVerdict.CONTAMINATED
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in found.hashes)
    # What is served to others has hashes, and no words.
    assert found.hashes[0][:16] in found.sentence


def test_one_that_does_not_is_clean() -> None:
    assert one_round(honest()).verdict is CanaryVerdict.CLEAN


def test_a_server_that_answers_nothing_is_no_contamination() -> None:
    found = one_round(answering(http(503, b"later")))
    assert found.verdict is CanaryVerdict.UNANSWERED


def test_it_is_off_unless_it_is_asked_for() -> None:
    assert WatchCommand(url="http://127.0.0.1:9").canary is False
