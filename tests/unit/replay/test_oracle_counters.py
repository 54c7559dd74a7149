"""The ledger, the idle server and the canary, held against made-up plays."""

from typing import ClassVar

import pytest
from hypothesis import given, strategies as st
from made_up_plays import (
    answer,
    canary,
    case_of,
    operation,
    picture,
    played,
    reading,
    refused,
)
from mmrepro.engines import get_engine
from mmrepro.search.oracle.judge import MIB, canary as judged_canary, ledger, quiescence
from mmrepro.traffic.case.sending import PlayState
from mmrepro.traffic.evidence import ChoiceSeen

VLLM = get_engine("vllm")
FINISHED, PROMPT, GENERATED = (
    VLLM.metrics[n][0] for n in ("finished", "prompt_tokens", "generation_tokens")
)


def counted(finished=0, prompt=0, generated=0):
    return {
        FINISHED: float(finished),
        PROMPT: float(prompt),
        GENERATED: float(generated),
    }


def found_by_ledger(ops, records, metrics, begin=0.5, end=99.0):
    play = played(
        records, before=reading(begin, counted(7, 70, 700)), after=reading(end, metrics)
    )
    return [
        s.bucket.removeprefix("metrics/")
        for s in ledger(case_of(ops), play, VLLM).sightings
    ]


OPS = [operation(f"r{i}") for i in range(3)]
RECORDS = [answer(op, 1.0 + 2 * i) for i, op in enumerate(OPS)]
SOUND = counted(7 + 3, 70 + 66, 700 + 12)


def test_counters_that_agree_are_sound():
    assert found_by_ledger(OPS, RECORDS, SOUND) == []


@pytest.mark.parametrize("name", [FINISHED, PROMPT, GENERATED])
@pytest.mark.parametrize(("by", "which"), [(1, "too-many"), (-1, "too-few")])
def test_one_too_many_or_too_few_is_seen(name, by, which):
    found = found_by_ledger(OPS, RECORDS, SOUND | {name: SOUND[name] + by})
    assert len(found) == 1
    assert found[0].endswith(which)


def test_a_usage_that_says_more_than_was_served_is_seen():
    lie = [answer(OPS[0], completion_tokens=5), *RECORDS[1:]]
    assert found_by_ledger(OPS, lie, SOUND) == ["generation_tokens-too-few"]


def test_the_canarys_own_requests_lie_outside_of_the_readings():
    around = [canary("canary before", -1.0), *RECORDS, canary("canary after", 100.0)]
    assert found_by_ledger(OPS, around, SOUND) == []
    assert found_by_ledger(OPS, [*RECORDS, canary("canary between", 8.0)], SOUND) != []
    more = SOUND | {FINISHED: SOUND[FINISHED] + 1}
    assert found_by_ledger(OPS, around, more) == ["finished-too-many"]


@given(
    left=st.booleans(),
    tokens=st.integers(0, 4),
    prompt=st.sampled_from([0, 22]),
    finished=st.integers(0, 1),
)
def test_a_client_that_left_leaves_room(left, tokens, prompt, finished):
    gone = answer(
        OPS[2], 5.0, left=left, status=None if left else 400, prompt_tokens=None
    )
    grown = counted(7 + 2 + finished, 70 + 44 + prompt, 700 + 8 + tokens)
    assert found_by_ledger(OPS, [*RECORDS[:2], gone], grown) == []
    beyond = counted(7 + 2, 70 + 44, 700 + 8 + 9)
    assert found_by_ledger(OPS, [*RECORDS[:2], gone], beyond) == [
        "generation_tokens-too-many"
    ]


def test_a_stream_without_an_end_leaves_room():
    """vLLM tells its usage, and counts nothing of it: the core had failed on it."""
    cut = answer(OPS[2], 5.0, stream=True, finish_reason=None, completion_tokens=0)
    two = counted(7 + 2, 70 + 44, 700 + 8)
    assert found_by_ledger(OPS, [*RECORDS[:2], cut], two) == []
    assert (
        found_by_ledger(OPS, [*RECORDS[:2], answer(OPS[2], 5.0, stream=True)], two)
        != []
    )


def test_several_answers_may_be_counted_once_or_each():
    op = operation("r1", n=3)
    for finished, prompt in ((1, 22), (3, 66), (4, 88)):
        grown = counted(7 + finished, 70 + prompt, 700 + 12)
        assert found_by_ledger([op], [answer(op)], grown) == []
    assert found_by_ledger([op], [answer(op)], counted(7, 70, 700)) == [
        "finished-too-few"
    ]


def test_what_ends_with_the_reading_may_not_be_counted_yet():
    assert found_by_ledger(OPS, RECORDS, counted(9, 114, 708), end=6.01) == []
    assert found_by_ledger(OPS, RECORDS, counted(9, 114, 708), end=6.2) != []


def test_what_was_not_read_is_said_and_not_judged():
    case = case_of(OPS)
    for fields in ({}, {"before": reading(0.0), "after": reading(9.0)}):
        found = ledger(case, played(RECORDS, **fields), VLLM)
        assert not found.sightings
        assert found.unseen
    bare = played(RECORDS, before=reading(0.0), after=reading(9.0, {FINISHED: 3.0}))
    assert len(ledger(case, bare, VLLM).unseen) == 2
    hung = played(
        RECORDS, PlayState.HUNG, before=reading(0.0, SOUND), after=reading(9.0, SOUND)
    )
    assert not ledger(case, hung, VLLM).sightings


# ---------------------------------------------------------------------- the idle server

IDLE = {
    "vllm:num_requests_running": 0.0,
    "vllm:num_requests_waiting": 0.0,
    "vllm:kv_cache_usage_perc": 0.0,
}


def residue(after=None, blocks=(), ops=(), records=(), engine="vllm"):
    play = played(
        records,
        before=reading(0.0, IDLE),
        after=reading(99.0, IDLE | (after or {})),
        blocks=list(blocks),
    )
    found = quiescence(case_of(ops, engine), play, get_engine(engine))
    return [s.bucket.removeprefix("residue/") for s in found.sightings]


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("vllm:num_requests_running", 1.0, "running"),
        ("vllm:num_requests_waiting", 2.0, "waiting"),
        ("vllm:kv_cache_usage_perc", 0.01, "kv-use"),
    ],
)
def test_an_idle_server_holds_nothing(name, value, kind):
    assert residue() == []
    assert residue({name: value}) == [kind]


def test_gauges_that_are_set_now_and_then_are_not_believed():
    stale = {"sglang:num_running_reqs": 1.0, "sglang:num_queue_reqs": 0.0}
    play = played([], before=reading(0.0, stale), after=reading(9.0, stale))
    found = quiescence(case_of([], "sglang"), play, get_engine("sglang"))
    assert not found.sightings
    assert any("now and then" in said for said in found.unseen)


class TestGrowth:
    ops: ClassVar = [operation(f"r{i}") for i in range(60)]
    records: ClassVar = [answer(op, 1.0 + i) for i, op in enumerate(ops)]

    def grown(self, name, values, records=None):
        """Twelve requests a block with five blocks."""
        span = 60 / len(values)
        blocks = [
            reading(1.0 + span * (i + 1), IDLE, **{name: value})
            for i, value in enumerate(values)
        ]
        return residue(None, blocks, self.ops, records or self.records)

    @pytest.mark.parametrize(
        ("name", "kind"), [("threads", "threads"), ("files", "files")]
    )
    def test_what_grows_with_every_block_is_a_leak(self, name, kind):
        assert self.grown(name, [20, 32, 44, 56, 68]) == [kind]
        assert self.grown(name, [20, 45, 70]) == [kind]

    @pytest.mark.parametrize(
        "values",
        [
            [20, 40, 40, 40, 40],
            [20, 22, 24, 26, 28],
            [20, 60, 61, 62, 63],
            [20, 30, 25, 35, 45],
            [20, 25, 45, 50, 70],
            [40, 30, 20, 10, 5],
            [20, 32],
        ],
    )
    def test_a_step_a_pool_and_noise_are_none(self, values):
        assert self.grown("threads", values) == []

    def test_memory_is_judged_beyond_what_a_cache_may_keep(self):
        begin = 500 * MIB
        leak = [begin + i * 4 * MIB for i in range(5)]
        assert self.grown("rss_bytes", leak) == ["memory"]
        assert self.grown("rss_bytes", leak[:4]) == [], "too few blocks for memory"
        small = [begin + i * MIB for i in range(5)]
        assert self.grown("rss_bytes", small) == []
        once = [
            begin,
            begin + 40 * MIB,
            begin + 44 * MIB,
            begin + 48 * MIB,
            begin + 52 * MIB,
        ]
        assert self.grown("rss_bytes", once) == ["memory"], "four in each further block"
        step = [
            begin,
            begin + 40 * MIB,
            begin + 40 * MIB,
            begin + 40 * MIB,
            begin + 40 * MIB,
        ]
        assert self.grown("rss_bytes", step) == []

    def test_new_pictures_are_kept_in_caches(self):
        begin = 500 * MIB
        leak = [begin + i * 4 * MIB for i in range(5)]
        new = [
            answer(op, 1.0 + i, images=[picture(f"p{i}", (112, 112))])
            for i, op in enumerate(self.ops)
        ]
        assert self.grown("rss_bytes", leak, new) == []
        again = [
            answer(op, 1.0 + i, images=[picture("one", (224, 224))])
            for i, op in enumerate(self.ops)
        ]
        assert self.grown("rss_bytes", leak, again) == ["memory"]

    def test_shared_memory_that_is_never_given_back(self):
        blocks = [
            reading(13.0 * i, IDLE, shm={f"s{j}": 9 for j in range(12 * i)})
            for i in range(1, 6)
        ]
        assert residue(None, blocks, self.ops, self.records) == ["shm"]


# ---------------------------------------------------------------------- the canary


def choices(tokens, logprobs, top):
    seen = ChoiceSeen(
        index=0, text="".join(tokens), tokens=tokens, logprobs=logprobs, top=top
    )
    return {"choices": [seen], "text": "".join(tokens)}


def test_the_canary_is_answered_word_for_word():
    def judged(before, after, engine="vllm"):
        records = [
            canary("canary before", 0.0, **before),
            canary("canary after", 9.0, **after),
        ]
        return judged_canary(played(records), get_engine(engine))

    sure = [[("a", -0.1), ("b", -3.0)]]
    tie = [[("a", -0.70), ("b", -0.71)]]
    a, b = (
        choices(["a"], [-0.1], sure),
        choices(["b"], [-0.1], [[("b", -0.1), ("a", -3.0)]]),
    )
    assert not judged(a, a).sightings
    assert [s.bucket for s in judged(a, b).sightings] == ["canary/text"]
    near = (
        choices(["a"], [-0.70], tie),
        choices(["b"], [-0.70], [[("b", -0.70), ("a", -0.71)]]),
    )
    assert judged(*near).counted == {"canary: near-tie": 1}
    bare = {"text": "x", "choices": []}, {"text": "y", "choices": []}
    untold = judged(*bare)
    assert not untold.sightings
    assert untold.unseen
    assert judged(*bare, engine="minivllm").sightings, "its answers are exact"


def test_a_canary_that_was_not_answered_is_said():
    one = canary("canary before", 0.0)
    assert judged_canary(played([one]), VLLM).unseen
    failed = refused(operation("x"), 500, label="canary after")
    assert judged_canary(played([one, failed]), VLLM).unseen
