"""Each rule of the protocol: a sound answer keeps it, one changed thing breaks it."""

import pytest
from made_up_plays import answer, case_of, operation, played, refused
from mmrepro.engines import get_engine
from mmrepro.search.oracle.protocol import protocol
from mmrepro.traffic.case.model import Operation
from mmrepro.traffic.case.sending import PlayState
from mmrepro.traffic.evidence import ChoiceSeen


def kinds(ops, records, engine="vllm", state=PlayState.ENDED):
    found = protocol(case_of(ops, engine), played(records, state), get_engine(engine))
    return {s.bucket.removeprefix("protocol/"): s.operations for s in found.sightings}


def broken(engine="vllm", *, state=PlayState.ENDED, parameters=None, **fields):
    """Kinds of what is wrong with one answer, to a stream unless told otherwise."""
    op = operation("r1", **({"stream": True} | (parameters or {})))
    return set(kinds([op], [answer(op, **fields)], engine, state))


CHOICE = ChoiceSeen(index=0, text="abcd", finish_reason="length", pieces=4, finishes=1)


def choice(**fields):
    return CHOICE.model_copy(update=fields)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "lmdeploy", "minivllm"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_sound_answer_keeps_every_rule(engine, stream):
    assert broken(engine, parameters={"stream": stream}) == set()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"done": False, "error": "the stream ended without [DONE]"}, "no-done"),
        ({"after_done": 1}, "after-done"),
        ({"error": "a broken stream (KeyError): {}"}, "malformed"),
        ({"error": "not a chat completion (KeyError): {}"}, "malformed"),
        ({"choices": [choice(finish_reason=None)]}, "finish-reason"),
        ({"choices": [choice(finish_reason="because")]}, "finish-reason"),
        ({"choices": [choice(finishes=2)]}, "finish-reason"),
        ({"completion_tokens": 5, "total_tokens": 27}, "finish-length"),
        ({"completion_tokens": 3, "pieces": 3, "total_tokens": 25}, "finish-length"),
        ({"total_tokens": 27}, "usage"),
        ({"prompt_tokens": 0, "total_tokens": 4}, "usage"),
        ({"usages": 0}, "usage-missing"),
        ({"pieces": 6}, "completion-tokens"),
        ({"choices": [choice(tokens=["a", "b"])]}, "completion-tokens"),
        ({"choices": [choice(tokens=["a"] * 5)]}, "completion-tokens"),
        ({"choices": [CHOICE, choice(index=1)]}, "choices"),
        ({"choices": [choice(index=1)]}, "choices"),
    ],
)
def test_one_changed_thing_breaks_one_rule(fields, kind):
    assert broken(**fields) == {kind}


@pytest.mark.parametrize(
    "fields",
    [
        {"left": True, "done": False, "choices": []},
        {"timed_out": True, "done": False, "status": None, "choices": []},
        # a stream that stands still, of which the status came before
        {"timed_out": True, "done": False, "error": "the stream ended without [DONE]"},
        {"status": None, "done": False, "error": "ConnectError", "choices": []},
        {"status": 500, "error": "Internal Server Error", "choices": []},
        {"status": 404, "error": "Not Found", "choices": []},
        {"error": "ReadError: connection reset", "done": False, "choices": []},
        {
            "finish_reason": "stop",
            "completion_tokens": 2,
            "total_tokens": 24,
            "pieces": 2,
        },
    ],
)
def test_what_ended_early_or_failed_breaks_no_rule(fields):
    assert broken(**fields) == set()


def test_a_stream_that_ends_with_its_server_is_not_held_against_it():
    fields = {"done": False, "error": "the stream ended without [DONE]"}
    assert broken(state=PlayState.DIED, **fields) == set()


def test_the_servers_own_limit_ends_an_answer_too():
    near = {
        "prompt_tokens": 2040,
        "completion_tokens": 3,
        "total_tokens": 2043,
        "pieces": 3,
    }
    assert broken(**near) == set()
    short = {"completion_tokens": 3, "total_tokens": 25, "pieces": 3}
    assert broken("lmdeploy", **short) == set(), "its limits are not known"
    op = operation("r1", stream=True)
    for server in ({"model": "/models/real"}, {"args": ["--max-model-len=64"]}):
        case = case_of([op], **server)
        assert not protocol(
            case, played([answer(op, **short)]), get_engine("vllm")
        ).sightings


def test_an_answer_at_a_bound_is_sound_and_one_beyond_it_is_not():
    # What was held back comes as a piece by itself.
    assert broken(pieces=5) == set()
    assert broken(pieces=6) == {"completion-tokens"}
    # SGLang stops sixteen tokens before the server's limit of 2048.
    short = {"completion_tokens": 3, "pieces": 3}
    near = {"prompt_tokens": 2029, "total_tokens": 2032}
    assert broken(**short, **near) == set()
    assert broken(**short, prompt_tokens=2028, total_tokens=2031) == {"finish-length"}
    # A logprob is kept of 256 tokens: of a longer answer nobody counts them.
    many = {"max_tokens": 300, "stream": False}
    cut = choice(tokens=["a"] * 256)
    assert broken(parameters=many, choices=[cut]) == set()
    counted = choice(tokens=["a"] * 255)
    assert broken(parameters=many, choices=[counted]) == {"completion-tokens"}


def test_several_answers_together_are_at_most_as_long_as_they_may_be():
    op = operation("r1", n=2)
    assert kinds([op], [answer(op, completion_tokens=8, total_tokens=30)]) == {}
    longer = answer(op, completion_tokens=9, total_tokens=31)
    assert kinds([op], [longer]) == {"max-tokens": ["r1"]}


def test_sglangs_streams_hold_logprobs_back():
    few, many = choice(tokens=["a", "b"]), choice(tokens=["a"] * 5)
    assert broken("sglang", choices=[few]) == set()
    assert broken("sglang", choices=[many]) == {"completion-tokens"}
    assert broken("sglang", parameters={"stream": False}, choices=[few]) == {
        "completion-tokens"
    }


def test_usage_that_was_not_asked_for_is_not_missed():
    options = {"stream_options": {"include_usage": False}}
    empty = {
        "prompt_tokens": None,
        "completion_tokens": None,
        "total_tokens": None,
        "usages": 0,
    }
    assert broken(parameters=options, **empty) == set()


def test_several_answers_are_numbered_from_nought():
    op = operation("r1", n=2)
    assert kinds([op], [answer(op)]) == {}
    assert kinds([op], [answer(op, choices=[CHOICE])]) == {"choices": ["r1"]}
    assert kinds([op], [answer(op, choices=[CHOICE])], "minivllm") == {}, (
        "it knows no n"
    )


def test_a_refusal_says_why_in_json():
    op = operation("r1")
    assert kinds([op], [refused(op)]) == {}
    assert kinds([op], [refused(op, error='{"detail": "no"}')]) == {}
    assert kinds([op], [refused(op, error="no")]) == {"error-shape": ["r1"]}
    assert (
        kinds([op], [refused(op, error='{"error": {"message": "' + "x" * 2000)]) == {}
    ), "cut"


def test_equal_prompts_have_equally_many_tokens():
    one, other, third = (
        operation("r1"),
        operation("r2", stream=True),
        operation("r3", "hi!"),
    )
    records = [answer(one, 1.0), answer(other, 3.0), answer(third, 5.0)]
    assert kinds([one, other, third], records) == {}
    records[1] = answer(other, 3.0, prompt_tokens=23, total_tokens=27)
    assert kinds([one, other, third], records) == {"prompt-tokens": ["r1", "r2"]}


def test_equal_requests_are_all_served_or_all_refused():
    one, other = operation("r1"), operation("r2")
    assert kinds([one, other], [refused(one), refused(other, at=3.0)]) == {}
    assert kinds([one, other], [answer(one), refused(other, at=3.0)]) == {
        "refusal": ["r1", "r2"]
    }


def test_an_adapter_that_comes_and_goes_may_serve_one_of_two_equal_requests():
    one, other = (
        operation(id).model_copy(update={"model": "mine"}) for id in ("r1", "r2")
    )
    answers = [answer(one), refused(other, at=3.0)]
    assert kinds([one, other], answers) == {"refusal": ["r1", "r2"]}
    gone = Operation(
        id="r3", path="/v1/unload_lora_adapter", parameters={"lora_name": "mine"}
    )
    assert kinds([one, other, gone], [*answers, answer(gone, 3.1)]) == {}
    other_ones = gone.model_copy(update={"parameters": {"lora_name": "another"}})
    assert "refusal" in kinds(
        [one, other, other_ones], [*answers, answer(other_ones, 3.1)]
    )


def test_the_same_tokens_are_the_same_text():
    whole, stream = operation("r1"), operation("r2", stream=True)
    tokens = ["a", "b", "c", "d"]
    told = choice(tokens=tokens, logprobs=[-1.0] * 4)
    records = [answer(whole, choices=[told]), answer(stream, 3.0, choices=[told])]
    assert kinds([whole, stream], records) == {}
    lost = told.model_copy(update={"text": "abd"})
    records[1] = answer(stream, 3.0, choices=[lost], text="abd")
    assert kinds([whole, stream], records) == {"stream-text": ["r1", "r2"]}
    other = lost.model_copy(update={"tokens": ["a", "b", "d", "e"]})
    records[1] = answer(stream, 3.0, choices=[other], text="abd")
    assert kinds([whole, stream], records) == {}, "other tokens: it may be rounding"
    bytes_of = choice(tokens=["\ufffd", "\ufffd"], text="ä")
    records = [
        answer(whole, choices=[bytes_of], max_tokens=2),
        answer(stream, 3.0, choices=[bytes_of.model_copy(update={"text": "å"})]),
    ]
    assert "stream-text" not in kinds([whole, stream], records), (
        "tokens that look alike"
    )


STOPPED = {"finish_reason": "stop", "choices": [choice(finish_reason="stop")]}


@pytest.mark.parametrize(
    ("parameters", "wrong"),
    [
        ({"ignore_eos": True}, {"finish-stop"}),
        ({"ignore_eos": False}, set()),
        ({}, set()),
        ({"ignore_eos": True, "stop": "never"}, set()),
        ({"ignore_eos": True, "stop_token_ids": [3]}, set()),
        (
            {"ignore_eos": True, "structured_outputs": {"grammar": "root ::= [a-z]*"}},
            set(),
        ),
    ],
)
def test_nothing_stops_where_nothing_can(parameters, wrong):
    assert broken(parameters={"stream": True, **parameters}, **STOPPED) == wrong
