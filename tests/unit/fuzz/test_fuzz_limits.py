"""What a server tells of its limits is learnt, and from nothing else."""

import asyncio
from pathlib import Path

import pytest
from fake_server import http, serving
from fuzz_sessions import server
from hypothesis import given, strategies as st
from mmrepro.base.records import Moment
from mmrepro.failure.documents.replay import Learnt
from mmrepro.runs.play.limits import BATCH, BLOCK, CONTEXT, KV
from mmrepro.search.fuzz.episodes import NARROWING
from mmrepro.search.fuzz.limits import (
    LONGER,
    NARROW,
    REFUSAL,
    SHORT,
    SIZES,
    ServerLimits,
    learn,
    learning_case,
    look_at_limits,
    narrowed,
    narrowing_case,
)
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import Evidence, ImageSent, RequestRecord


def record(
    chars: int,
    tokens: int | None,
    status: int = 200,
    error: str = "",
    *images: tuple[int, int],
) -> RequestRecord:
    return RequestRecord(
        id=chars,
        phase="trigger",
        label=f"r{chars}",
        sent=Moment.now(),
        status=status,
        prompt_chars=chars,
        prompt_tokens=tokens,
        error=error,
        deadline_s=6.0,
        images=[
            ImageSent(sha256="0" * 64, width=w, height=h, bytes=1, name="p")
            for w, h in images
        ],
    )


def played(*records: RequestRecord) -> Played:
    return Played(state=PlayState.ENDED, evidence=Evidence(requests=list(records)))


NOWHERE = Path("/nowhere")
SPELLED = [record(SHORT, 38), record(LONGER, 102)]
"""30 tokens of a template, and one a letter."""


def told_by(answers: dict[str, bytes]) -> list[Learnt]:
    """What a server with these answers tells; 404 for all other paths."""

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        body = answers.get(request.split()[1].decode())
        writer.write(http(404 if body is None else 200, body or b""))

    async def ask() -> list[Learnt]:
        async with serving(reply) as server:
            looked = await asyncio.to_thread(look_at_limits, server.url, 1, NOWHERE)
        return looked.learnt

    return asyncio.run(ask())


def test_the_template_and_the_letters_are_learnt_from_two_prompts() -> None:
    limits = learn(server(), played(*SPELLED), NOWHERE, [])
    assert (limits.overhead, limits.per_letter) == (30, 1.0)
    assert limits.letters(100) == 70


def test_pictures_are_learnt_by_their_size() -> None:
    shown = [record(SHORT, 38 + n, 200, "", size) for n, size in enumerate(SIZES, 5)]
    limits = learn(server(), played(*SPELLED, *shown), NOWHERE, [])
    assert limits.images == {f"{w}x{h}": n for n, (w, h) in enumerate(SIZES, 5)}
    assert limits.letters(100, [SIZES[0]]) == 65
    assert limits.of_image((56, 560)) == 40, (
        "one that was not asked: a token for 28 x 28"
    )


def test_numbers_of_a_refusal_are_limits_but_for_the_prompt_s_own_length() -> None:
    text = (
        "This model's maximum context length is 700 tokens. However, you "
        "requested 5030 tokens."
    )
    refused = record(5000, None, 400, text)
    limits = learn(server(), played(*SPELLED, refused), NOWHERE, [])
    assert limits.named(REFUSAL) == [700]
    assert 700 in limits.edges()
    assert limits.refused == 5030


def test_what_the_log_tells(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO GPU KV cache size: 1,792 tokens\n"
        "max_total_num_tokens=3072, chunked_prefill_size=512\n"
    )
    limits = learn(server(), played(), log, [])
    assert limits.named(KV) == [1792, 3072]
    assert limits.named(BATCH) == [512]
    assert limits.room == 1792


def test_what_endpoints_tell() -> None:
    answers = {
        "/v1/models": b'{"data": [{"id": "m", "max_model_len": 1024}]}',
        "/metrics": (
            b'vllm:cache_config_info{block_size="128",num_gpu_blocks="14"} 1.0\n'
        ),
        "/get_server_info": (
            b'{"page_size": 4, "context_length": 1000, "chunked_prefill_size": -1}'
        ),
    }
    told = {(one.name, one.tokens) for one in told_by(answers)}
    assert told >= {
        (CONTEXT, 1024),
        (BLOCK, 128),
        (KV, 1792),
        (BLOCK, 4),
        (CONTEXT, 1000),
    }


def test_blocks_are_also_metrics_of_their_own() -> None:
    text = b"minivllm:kv_cache_blocks 64\nminivllm:kv_cache_block_size 16\n"
    told = {(one.name, one.tokens) for one in told_by({"/metrics": text})}
    assert told == {(BLOCK, 16), (KV, 1024)}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"data": 3}', b'{"data": [3]}', b"\xff"]
)
def test_endpoints_that_tell_nonsense_tell_nothing(body: bytes) -> None:
    paths = ("/v1/models", "/metrics", "/get_server_info")
    assert told_by(dict.fromkeys(paths, body)) == []


def test_answers_narrow_down_what_is_served() -> None:
    limits = learn(server(), played(*SPELLED), NOWHERE, [])
    limits = narrowed(limits, [record(400, 430), record(900, None, 500, "no")])
    assert (limits.served, limits.refused) == (430, 930)
    assert {430, 680, 930} <= set(limits.edges())
    limits = narrowed(limits, [record(600, None, 400, "no")])
    assert limits.refused == 630
    limits = narrowed(limits, [record(60, None, 400, "no such grammar")])
    assert limits.refused == 630, "90 was refused for something else"
    limits = narrowed(limits, [record(700, 700 + 30)])
    assert limits.refused is None, "so was 630"


def test_what_no_number_tells_of_is_asked_for_between_what_is_served_and_what_is_not() -> (
    None
):
    end, rounds = 617, 0
    limits = narrowed(ServerLimits(overhead=30), [record(60, 90)])
    limits = narrowed(limits, [record(4000, None, 500, "no")])
    assert limits.untold
    while limits.untold:
        asked = [
            len(str(op.messages[0].content))
            for op in narrowing_case(server(), limits).operations
        ]
        assert limits.served - 30 < min(asked) < max(asked) < (limits.refused or 0) - 30
        answers = [
            record(n, n + 30) if n + 30 <= end else record(n, None, 500, "no")
            for n in asked
        ]
        limits, rounds = narrowed(limits, answers), rounds + 1
    assert limits.served <= end < (limits.refused or 0) <= limits.served + NARROW
    assert rounds <= NARROWING


@pytest.mark.parametrize(
    ("served", "refused", "told", "untold"),
    [
        (90, 4030, 5000, True),
        (90, 4030, 1024, False),
        (90, 90 + NARROW, 5000, False),
        (90, None, 5000, False),
        (0, 4030, 5000, False),
    ],
)
def test_where_a_number_tells_it_or_nothing_is_refused_nothing_more_is_asked(
    served: int, refused: int | None, told: int, untold: bool
) -> None:
    learnt = [Learnt(name=CONTEXT, tokens=told, source="a")]
    assert ServerLimits(learnt=learnt, served=served, refused=refused).untold is untold


@given(
    overhead=st.integers(0, 60),
    tokens=st.integers(1, 5000),
    images=st.lists(st.sampled_from(SIZES), max_size=3),
)
def test_letters_make_the_prompt_as_long_as_asked(
    overhead: int, tokens: int, images: list[tuple[int, int]]
) -> None:
    limits = ServerLimits(overhead=overhead)
    letters = limits.letters(tokens, images)
    whole = overhead + letters + sum(map(limits.of_image, images))
    assert letters >= 1
    assert whole == tokens or letters == 1


def test_a_learning_case_asks_for_every_size_one_after_another() -> None:
    case = learning_case(server(), pictures=True)
    assert len(case.images) == len(SIZES)
    assert all(op.after for op in case.operations[1:])
    assert learning_case(server(), pictures=False).images == {}


def test_the_smallest_number_of_a_kind_counts() -> None:
    limits = ServerLimits(
        learnt=[Learnt(name=CONTEXT, tokens=n, source="") for n in (2048, 1024)]
        + [Learnt(name=KV, tokens=4096, source="")]
    )
    assert (limits.context, limits.room, limits.longest) == (1024, 4096, 1024)
