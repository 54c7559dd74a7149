"""A proxy that lies, in front of a FAKE server: what of it the reference's answers
show."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from fake_server import STREAM_HEAD, http, serving
from lying_proxy import Lie, LyingProxy, lying
from made_up_answers import answered, play, prompt_of
from mmrepro.base.records import FindingClass
from mmrepro.search.oracle.comparison import compare_with_reference
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.reference import comparable
from mmrepro.traffic import Traffic
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.model import Case, Message, Operation, ServerWanted
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence.recorder import Recorder
from mmrepro.traffic.reading import RequestWatch

REQUESTS, TOKENS = 120, 8


def case_of() -> Case:
    chance = random.Random(3)
    operations = [
        Operation(
            id=f"r{number}",
            messages=[
                Message(role="user", content=f"prompt {chance.randrange(10**6)}")
            ],
            parameters={"temperature": 0},
            stream=chance.random() < 0.3,
        )
        for number in range(REQUESTS)
    ]
    return Case(
        server=ServerWanted(engine="vllm", release="0.23.0"), operations=operations
    )


CASE = case_of()


async def fake_engine(request: bytes, writer: asyncio.StreamWriter) -> None:
    """The made-up model behind the OpenAI API, with noise as of bfloat16."""
    asked = json.loads(request.partition(b"\r\n\r\n")[2])
    prompt = asked["messages"][0]["content"]
    choice = answered(
        prompt, TOKENS, noise=0.03, chance=random.Random(f"bfloat16 {prompt}")
    )
    content = [
        {
            "token": token,
            "logprob": logprob,
            "top_logprobs": [{"token": t, "logprob": p} for t, p in top],
        }
        for token, logprob, top in zip(
            choice.tokens, choice.logprobs, choice.top, strict=True
        )
    ]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": TOKENS}
    usage["total_tokens"] = len(prompt) + TOKENS
    await asyncio.sleep(0.002)
    if not asked.get("stream"):
        said = {
            "message": {"content": choice.text},
            "finish_reason": "length",
            "index": 0,
        }
        whole = {"choices": [said | {"logprobs": {"content": content}}], "usage": usage}
        writer.write(http(200, json.dumps(whole).encode()))
        return
    chunks: list[object] = [
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": token["token"]},
                    "logprobs": {"content": [token]},
                    "finish_reason": "length" if place == TOKENS - 1 else None,
                }
            ]
        }
        for place, token in enumerate(content)
    ]
    events = [*chunks, {"choices": [], "usage": usage}]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    writer.write(STREAM_HEAD + "".join([*lines, "data: [DONE]\n\n"]).encode())


async def played_through(proxy: LyingProxy, tmp_path: Path) -> Played:
    """All of the case, eight at a time."""
    async with serving(fake_engine) as server:
        proxy.upstream = server.url
        with lying(proxy):
            recorder = Recorder(tmp_path)
            traffic = Traffic(proxy.url, "tiny", recorder)
            room = asyncio.Semaphore(8)

            async def send(op: Operation) -> None:
                async with room:
                    watch = RequestWatch(lambda: None, lambda _: None)
                    asked = body(op, {}, "tiny")
                    await traffic.send(
                        op.id, asked, watch, stream=op.stream, deadline_s=30
                    )

            await asyncio.gather(*map(send, comparable(CASE).operations))
            await traffic.close()
    return Played(state=PlayState.ENDED, evidence=recorder.evidence)


def judged_through(proxy: LyingProxy, tmp_path: Path) -> tuple[Played, OracleReport]:
    played = asyncio.run(played_through(proxy, tmp_path))
    return played, compare_with_reference(CASE, played, play(CASE, tokens=TOKENS))


def touched(proxy: LyingProxy) -> list[set[str]]:
    """The operations of each lie."""
    ids = {body(op, {}, "tiny"): op.id for op in comparable(CASE).operations}
    return [{ids[request] for request in told.requests} for told in proxy.told]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Played, OracleReport]:
    return judged_through(LyingProxy(), tmp_path_factory.mktemp("honest"))


def test_an_honest_proxy_is_not_noticed(honest: tuple[Played, OracleReport]) -> None:
    played, judged = honest
    assert all(record.answered for record in played.evidence.requests)
    assert judged.sightings == []
    assert judged.counted["answers compared: same"] > 0.5 * REQUESTS
    assert judged.counted["answers compared: near-tie"] > 2


def test_swapped_answers_are_flagged_and_no_others(tmp_path: Path) -> None:
    """Enough of them to say 95 %."""
    swaps = found = 0
    for seed in range(3):
        proxy = LyingProxy(lie="swap", p=0.5, seed=seed)
        _, judged = judged_through(proxy, tmp_path)
        lies = touched(proxy)
        flagged = {id for sighting in judged.sightings for id in sighting.operations}
        assert flagged <= set().union(*lies)
        assert {s.finding_class for s in judged.sightings} <= {
            FindingClass.CROSS_TALK,
            FindingClass.WRONG_ANSWER,
        }
        swaps += len(lies)
        found += sum(lie <= flagged for lie in lies)
    assert swaps >= 30
    assert found >= 0.95 * swaps


def test_flipped_near_ties_are_counted_and_not_flagged(
    honest: tuple[Played, OracleReport], tmp_path: Path
) -> None:
    proxy = LyingProxy(lie="flip-near-tie", p=1.0, bound=0.15)
    _, judged = judged_through(proxy, tmp_path)
    assert len(proxy.told) > 25
    assert judged.sightings == []
    flipped = judged.counted["answers compared: near-tie"]
    assert flipped > honest[1].counted["answers compared: near-tie"] + 0.5 * len(
        proxy.told
    )


def test_flips_of_what_led_clearly_are_flagged(tmp_path: Path) -> None:
    proxy = LyingProxy(lie="flip-near-tie", p=0.3, bound=9.0)
    _, judged = judged_through(proxy, tmp_path)
    flagged = {id for sighting in judged.sightings for id in sighting.operations}
    assert len(flagged) > 0.5 * len(proxy.told) > 5
    assert flagged <= set().union(*touched(proxy))


@pytest.mark.parametrize("lie", ["duplicate-token", "truncate"])
def test_answers_that_were_retold_are_flagged(lie: Lie, tmp_path: Path) -> None:
    """The tokens that come with them are the right ones: their text is not."""
    proxy = LyingProxy(lie=lie, p=0.1, seed=5)
    _, judged = judged_through(proxy, tmp_path)
    lies = set().union(*touched(proxy))
    flagged = {id for sighting in judged.sightings for id in sighting.operations}
    assert len(lies) > 5
    assert flagged <= lies


def test_a_falsified_usage_is_flagged(tmp_path: Path) -> None:
    """The length of a prompt always; that of an answer where it is the reference's.
    (That a sum is wrong one play tells.)"""
    proxy = LyingProxy(lie="falsify-usage", p=0.3, seed=5)
    played, judged = judged_through(proxy, tmp_path)
    right = {op.id: len(prompt_of(op)) for op in CASE.operations}
    prompts = {
        r.label for r in played.evidence.requests if r.prompt_tokens != right[r.label]
    }
    answers = {
        r.label for r in played.evidence.requests if r.completion_tokens != TOKENS
    }
    assert min(len(prompts), len(answers)) > 5
    assert [s.finding_class for s in judged.sightings] == [FindingClass.PROTOCOL]
    flagged = set(judged.sightings[0].operations)
    assert prompts <= flagged <= prompts | answers
    assert len(flagged & answers) > 0.6 * len(answers)


def test_a_stream_without_its_end_is_no_answer(tmp_path: Path) -> None:
    proxy = LyingProxy(lie="drop-done", p=0.2)
    played, judged = judged_through(proxy, tmp_path)
    lies = set().union(*touched(proxy))
    assert lies
    assert {r.label for r in played.evidence.requests if r.done is False} == lies
    assert judged.counted["answers not compared: not answered"] == len(lies)
