"""The reference: its case, and what its answers say of a play."""

import random

import pytest
from made_up_answers import answered, play, prompt_of, record
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine
from mmrepro.engines.folders import folders
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle.comparison import agreeing, compare_with_reference, compared
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.reference import (
    comparable,
    has_own_format,
    reference_case,
    reference_limits,
    with_logprobs,
)
from mmrepro.traffic.case.model import (
    COMPLETIONS,
    Case,
    Message,
    Operation,
    ServerWanted,
)
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import ChoiceSeen, Evidence, RequestRecord

IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}


def operation(number: int, **changed: object) -> Operation:
    op = Operation(
        id=f"r{number}",
        after=["running<=7"],
        messages=[
            Message(role="user", content=f"prompt {number}" + "!" * (number % 7))
        ],
        parameters={"temperature": 0, "max_tokens": 8},
    )
    return op.model_copy(update=changed)


def case_of(count: int = 40, engine: str = "vllm", *args: str) -> Case:
    server = ServerWanted(engine=engine, release="0.23.0", args=list(args))
    return Case(
        server=server, operations=[operation(number) for number in range(count)]
    )


def classes(judged: OracleReport) -> list[FindingClass]:
    return [sighting.finding_class for sighting in judged.sightings]


# ---------------------------------------------------------------------- the case


@pytest.mark.parametrize("engine", sorted(folders()))
def test_the_same_requests_one_after_another(engine: str) -> None:
    case = case_of(3, engine)
    case.operations[1] = operation(1, leave="tokens>=2", stream=True, at_s=3.0)
    made = reference_case(case, get_engine(engine))
    assert [op.after for op in made.operations] == [[], ["r0.end"], ["r1.end"]]
    assert [op.leave for op in made.operations] == ["", "", ""]
    assert [op.messages for op in made.operations] == [
        op.messages for op in case.operations
    ]
    assert made.server.release == case.server.release
    Case.model_validate(made.model_dump())


def test_options_of_the_case_that_contradict_come_off_or_are_overruled() -> None:
    given = ["--enable-prefix-caching", "--max-num-seqs", "64", "--quantization=x"]
    case = case_of(1, "lmdeploy", *given)
    args = reference_case(case, get_engine("lmdeploy")).server.args
    assert args[:3] == ["--max-num-seqs", "64", "--quantization=x"]
    case = case_of(
        1, "vllm", "--max-num-partial-prefills", "4", "--dtype=half", "--seed", "1"
    )
    args = reference_case(case, get_engine("vllm")).server.args
    assert args[:3] == ["--dtype=half", "--seed", "1"]
    assert args[-1] == "--dtype=float32"
    assert "--max-num-batched-tokens=2048" in args


def test_the_mitigation_and_variables_of_the_case_stay() -> None:
    case = case_of(1, "sglang")
    server = case.server.model_copy(update={"env": {"A": "1"}, "mitigation": "x/y"})
    made = reference_case(
        case.model_copy(update={"server": server}), get_engine("sglang")
    ).server
    assert made.env == {"A": "1", "SGLANG_VLM_CACHE_SIZE_MB": "0"}
    assert made.mitigation == "x/y"


def test_what_an_engine_cannot_is_said() -> None:
    assert reference_limits(get_engine("vllm")) == []
    assert "float32" in reference_limits(get_engine("lmdeploy"))[0]


def test_logprobs_are_asked_for() -> None:
    case = case_of(1, "sglang")
    case.operations += [
        operation(1, path=COMPLETIONS, prompt="p", messages=None),
        operation(
            2, parameters={"temperature": 0, "top_logprobs": 9, "logprobs": False}
        ),
        operation(3, path="/v1/embeddings", messages=None),
    ]
    chat, plain, more, other = (op.parameters for op in comparable(case).operations)
    assert chat == case.operations[0].parameters | {"logprobs": True, "top_logprobs": 5}
    assert plain["logprobs"] == 5
    assert (more["logprobs"], more["top_logprobs"]) == (True, 9)
    assert other == case.operations[3].parameters
    of_vllm = comparable(case_of(1)).operations[0].parameters
    assert of_vllm.items() >= IDS.items()


def test_what_is_compared_is_asked_for_greedily() -> None:
    """But for several choices and beams, which no greedy request can have."""
    case = case_of(6, "minivllm")
    given: list[dict[str, object]] = [
        {"max_tokens": 3},
        {"temperature": 0.7, "top_p": 0.9, "seed": 3, "stop": ["x"]},
        {"temperature": 0.7, "n": 2},
        {"use_beam_search": True, "n": 1},
        {"temperature": 0, "top_p": 0.9},
        {"input": "an embedding"},
    ]
    case.operations = [
        operation(number, parameters=p) for number, p in enumerate(given)
    ]
    case.operations[5] = operation(
        5, parameters=given[5], path="/v1/embeddings", messages=None
    )
    asked = [op.parameters for op in comparable(case).operations]
    assert asked[:2] == [
        {"max_tokens": 3, "temperature": 0},
        {"stop": ["x"], "temperature": 0},
    ]
    assert asked[2:] == given[2:]


# ---------------------------------------------------------------------- the comparison


def test_logprobs_are_all_that_is_added_for_two_sides() -> None:
    case = case_of(2)
    case.operations[1] = operation(1, parameters={"temperature": 0.7}, stream=True)
    told = with_logprobs(case)
    greedy, sampled = told.operations
    added = {"logprobs": True, "top_logprobs": 5, **IDS}
    assert greedy.parameters == case.operations[0].parameters | added
    assert sampled == case.operations[1]
    assert told.server == case.server
    # It has none.
    assert with_logprobs(case_of(2, "minivllm")) == case_of(2, "minivllm")


def test_noise_is_counted_and_no_sighting() -> None:
    case = case_of(200)
    judged = compare_with_reference(case, play(case, noise=0.05, seed=1), play(case))
    assert judged.sightings == []
    assert judged.counted["answers compared: near-tie"] > 0
    assert sum(judged.counted.values()) == 200


def test_a_wrong_answer_is_seen_and_named() -> None:
    case = case_of(100)
    wrong = play(case, noise=0.02, answers={"r7": "something else"})
    judged = compare_with_reference(case, wrong, play(case))
    assert classes(judged) == [FindingClass.WRONG_ANSWER]
    assert judged.sightings[0].operations == ["r7"]
    assert "r7, token 1: " in judged.sightings[0].said


def test_a_swapped_answer_is_named_after_its_owner() -> None:
    case = case_of(100)
    prompts = {op.id: prompt_of(op) for op in case.operations}
    swapped = {"r7": prompts["r20"], "r20": prompts["r7"]}
    judged = compare_with_reference(
        case, play(case, noise=0.02, answers=swapped), play(case)
    )
    assert classes(judged) == [FindingClass.CROSS_TALK]
    assert judged.sightings[0].operations == ["r7", "r20"]
    assert (
        "r7 got the answer to r20; r20 got the answer to r7" in judged.sightings[0].said
    )


@pytest.mark.parametrize(
    "foreign", [False, True], ids=["its own prompt", "another's prompt"]
)
def test_an_answer_that_several_have_is_nobodys_own(foreign: bool) -> None:
    """Three requests are declined in the same words, and now a fourth one is: no
    cross-talk, unless its prompt has another one's length."""
    case = case_of(40)
    declined = dict.fromkeys(("r3", "r20", "r31"), "the same words for all of these")
    right = play(case, answers=declined)
    wrong = play(case, answers=declined | {"r7": declined["r3"]})
    own = [record.prompt_tokens for record in right.evidence.requests]
    wrong.evidence.requests[7].prompt_tokens = own[20] if foreign else own[7]
    found = compare_with_reference(case, wrong, right)
    ours = [s.finding_class for s in found.sightings if s.operations == ["r7"]]
    assert ours[0] is (
        FindingClass.CROSS_TALK if foreign else FindingClass.WRONG_ANSWER
    )
    one = {"r3": declined["r3"]}
    alone = play(case, answers=one | {"r7": one["r3"]})
    alone.evidence.requests[7].prompt_tokens = own[7]
    found = compare_with_reference(case, alone, play(case, answers=one))
    assert classes(found) == [FindingClass.CROSS_TALK]


@pytest.mark.parametrize(
    "words",
    [
        "I'm sorry, but I can't help with that request at all.",
        "I’m very sorry, but that is nothing I can help with.",
        "I apologize, but I am not able to answer this one.",
        "As a language model I do not have an opinion on that.",
        "Es tut mir leid, dabei kann ich nicht helfen, wirklich nicht.",
        "Je suis désolé, mais je ne peux pas répondre à cela.",
        "К сожалению, я не могу ответить на этот вопрос сейчас.",
        "很抱歉，我无法回答这个问题，请换一个话题再来问我。",
        "申し訳ありませんが、そのご質問にはお答えできません。",
    ],
)
def test_a_refusal_that_another_got_as_well_is_nobodys_own(words: str) -> None:
    """Of two requests the reference declines one in these words, and the server the
    other."""
    case = case_of(40)
    for said, seen in ((words, FindingClass.WRONG_ANSWER), (f"Well: {words}", None)):

        def worded(
            op: Operation, one: RequestRecord, said: str = said
        ) -> RequestRecord:
            if op.id in ("r3", "r7"):
                one.choices[0].text = one.text = said
            return one

        right = play(case, answers={"r3": "declined"}, change=worded)
        wrong = play(case, answers={"r3": "declined", "r7": "declined"}, change=worded)
        wrong.evidence.requests[7].prompt_tokens = right.evidence.requests[
            7
        ].prompt_tokens
        found = compare_with_reference(case, wrong, right)
        ours = [s.finding_class for s in found.sightings if "r7" in s.operations]
        assert ours == [seen or FindingClass.CROSS_TALK]


@pytest.mark.parametrize(("tokens", "seen"), [(2, "WRONG_ANSWER"), (6, "CROSS_TALK")])
def test_a_short_answer_that_is_anothers_may_be_so_by_chance(
    tokens: int, seen: str
) -> None:
    case = case_of(40)
    wrong = play(case, answers={"r7": prompt_of(case.operations[20])}, tokens=tokens)
    wrong.evidence.requests[7].prompt_tokens = len(prompt_of(case.operations[7]))
    judged = compare_with_reference(case, wrong, play(case, tokens=tokens))
    assert classes(judged) == [FindingClass[seen]]


def test_swaps_are_flagged() -> None:
    """At least 95 of 100, with noise."""
    case = case_of(400)
    prompts = {op.id: prompt_of(op) for op in case.operations}
    chance = random.Random(17)
    order = chance.sample(list(prompts), 200)
    pairs = dict(zip(order[:100], order[100:], strict=True))
    swapped = {a: prompts[b] for a, b in pairs.items()} | {
        b: prompts[a] for a, b in pairs.items()
    }
    judged = compare_with_reference(
        case, play(case, noise=0.05, answers=swapped), play(case)
    )
    flagged = {id for sighting in judged.sightings for id in sighting.operations}
    assert flagged <= swapped.keys()
    assert len(flagged) >= 0.95 * len(swapped)


@pytest.mark.parametrize("foreign", [True, False])
def test_a_foreign_prompt_length_tells_a_swap_where_the_answer_is_a_near_tie(
    foreign: bool,
) -> None:
    """The answer alone would pass: it parts from its own at a near-tie, and by chance
    it is that of a request that is much alike. The prompt's length tells which."""
    case = case_of(2)

    def spelled(text: str, likely: str) -> ChoiceSeen:
        first = (likely, -1.0), ("x" if likely == "a" else "a", -1.01)
        top = [list(first), *([(letter, -0.1), ("?", -4.0)] for letter in text[1:])]
        logprobs = [
            dict(places)[letter] for letter, places in zip(text, top, strict=True)
        ]
        return ChoiceSeen(
            index=0, text=text, tokens=list(text), logprobs=logprobs, top=top
        )

    def played(first: str, length: int) -> Played:
        choices = spelled(first, first[0]), spelled("xyz", "x")
        lengths = length, 20
        records = map(record, case.operations, choices, lengths)
        return Played(state=PlayState.ENDED, evidence=Evidence(requests=list(records)))

    judged = compare_with_reference(
        case, played("xyz", 20 if foreign else 10), played("abc", 10)
    )
    assert classes(judged) == ([FindingClass.CROSS_TALK] if foreign else [])
    assert judged.counted.get("answers compared: near-tie", 0) == (0 if foreign else 1)


@pytest.mark.parametrize(
    ("field", "told"),
    [("prompt_tokens", 99), ("completion_tokens", 9), ("finish_reason", "stop")],
)
def test_a_falsified_usage_is_no_swap(field: str, told: object) -> None:
    case = case_of(40)

    def falsified(op: Operation, seen: RequestRecord) -> RequestRecord:
        return seen.model_copy(update={field: told} if op.id == "r5" else {})

    judged = compare_with_reference(case, play(case, change=falsified), play(case))
    assert [(s.finding_class, s.operations) for s in judged.sightings] == [
        (FindingClass.PROTOCOL, ["r5"])
    ]
    assert f"r5 says {field} {told}, the reference " in judged.sightings[0].said


def test_the_length_of_an_answer_is_told_of_the_same_answer_only() -> None:
    """Behind a near-tie it may be another one."""
    case = case_of(200)
    noisy = play(case, noise=0.05, seed=1)
    for seen in noisy.evidence.requests:
        if seen.text != play(case.keeping([seen.label])).evidence.requests[0].text:
            seen.completion_tokens, seen.finish_reason = 1, "stop"
    assert compare_with_reference(case, noisy, play(case)).sightings == []


def test_what_is_not_greedy_refused_or_lost_is_not_compared() -> None:
    case = case_of(6)
    case.operations[0] = operation(0, parameters={"temperature": 0.7})
    beams = {"temperature": 0, "use_beam_search": True}
    case.operations[1] = operation(1, parameters=beams)

    def failed(op: Operation, seen: RequestRecord) -> RequestRecord:
        change = {
            "r2": {"status": 400, "error": "no", "choices": []},
            "r3": {"timed_out": True},
        }
        return seen.model_copy(update=change.get(op.id, {}))

    played = play(
        case, answers={op.id: "wrong" for op in case.operations[:4]}, change=failed
    )
    played.evidence.requests = [r for r in played.evidence.requests if r.label != "r4"]
    judged = compare_with_reference(case, played, play(case))
    assert [(s.finding_class, s.operations) for s in judged.sightings] == [
        (
            FindingClass.PROTOCOL,
            ["r0", "r1"],
        )  # the lengths of their prompts, which is all there is
    ]
    assert judged.counted == {
        "answers not compared: not greedy": 2,
        "answers not compared: refused": 1,
        "answers not compared: not answered": 1,
        "answers not compared: not sent": 1,
        "answers compared: same": 1,
    }


def test_where_noise_drowns_the_answers_none_is_compared() -> None:
    case = case_of(100)
    judged = compare_with_reference(case, play(case, noise=2.0, seed=1), play(case))
    assert judged.sightings == []
    assert judged.unseen == [
        "Answers differ from the reference's by noise alone: none was compared."
    ]


def test_a_reference_that_does_not_start_is_said() -> None:
    case = case_of(3)
    failed = Played(state=PlayState.START_FAILED, said="it needs more memory")
    judged = compare_with_reference(case, play(case), failed)
    assert judged.sightings == []
    assert judged.unseen == [
        (
            "The reference's server did not start (it needs more memory): no answer "
            "was compared."
        )
    ]


def test_an_answer_that_was_left_is_compared_as_far_as_it_came() -> None:
    case = case_of(40)

    def left(op: Operation, seen: RequestRecord) -> RequestRecord:
        if op.id not in ("r1", "r2"):
            return seen
        choice = answered(prompt_of(op) if op.id == "r1" else "other", 3)
        return record(op, choice, None, left=True)

    judged = compare_with_reference(case, play(case, change=left), play(case))
    assert [(s.finding_class, s.operations) for s in judged.sightings] == [
        (FindingClass.WRONG_ANSWER, ["r2"])
    ]


def test_without_logprobs_an_exact_engine_is_compared_all_the_same() -> None:
    def bare(op: Operation, seen: RequestRecord) -> RequestRecord:
        for choice in seen.choices:
            choice.tokens, choice.logprobs, choice.top = [], [], []
        return seen

    for engine, args, seen in (
        ("minivllm", [], [FindingClass.WRONG_ANSWER]),
        ("minivllm", ["--dtype", "bfloat16"], []),
        ("vllm", [], []),
    ):
        case = case_of(20, engine, *args)
        wrong = play(case, answers={"r3": "Prompt 3!!!"}, change=bare)
        right = play(case, change=bare)
        judged = compare_with_reference(case, wrong, right)
        assert classes(judged) == seen, (engine, args)
        told = [(e.operation, e.text) for s in judged.sightings for e in s.expectations]
        assert told == [("r3", right.record("r3").text)] * len(seen)


def test_a_play_of_fewer_requests_is_held_against_the_same_reference() -> None:
    case = case_of(40)
    right, fewer = play(case), case.keeping(["r3", "r7"])
    judged = compare_with_reference(
        fewer, play(fewer, answers={"r7": "wrong 7"}), right
    )
    assert judged.sightings[0].operations == ["r7"]


# ---------------------------------------------------------------------- two references


def wrong(kind: FindingClass, *operations: str) -> OracleReport:
    sighting = Sighting(
        finding_class=kind,
        bucket=f"{kind}/x",
        operations=list(operations),
        said="it differs",
    )
    return OracleReport(sightings=[sighting])


def test_what_only_the_number_format_changes_is_counted() -> None:
    judged = wrong(FindingClass.WRONG_ANSWER, "r1", "r2")
    for own in (OracleReport(), wrong(FindingClass.PROTOCOL, "r1")):
        both = agreeing(judged, own)
        assert both.sightings == []
        assert both.counted == {"answers compared: only the number format differs": 2}
    both = agreeing(judged, wrong(FindingClass.CROSS_TALK, "r2", "r9"))
    assert [one.operations for one in both.sightings] == [["r2"]]
    assert both.counted == {"answers compared: only the number format differs": 1}


def test_what_says_nothing_of_answers_stays() -> None:
    judged = wrong(FindingClass.PROTOCOL, "r1")
    assert agreeing(judged, OracleReport()).sightings == judged.sightings
    assert not compared(judged)
    assert compared(wrong(FindingClass.CROSS_TALK, "r1"))


@pytest.mark.parametrize(
    ("engine", "args", "other"),
    [
        ("vllm", (), True),
        ("vllm", ("--dtype=float32",), False),
        ("sglang", (), True),
        ("lmdeploy", (), False),
        ("minivllm", (), False),
        ("minivllm", ("--dtype=bfloat16",), True),
    ],
)
def test_a_second_reference_where_the_first_computes_otherwise(
    engine: str, args: tuple[str, ...], other: bool
) -> None:
    case = case_of(2, engine, *args)
    assert has_own_format(case) is other
    given = reference_case(case, get_engine(engine), own_format=True).server.args
    assert [a for a in given if "dtype" in a] == [*args]


def gappy(op: Operation, seen: RequestRecord) -> RequestRecord:
    """As SGLang streams an answer: tokens are left out, likeliest ones told twice."""
    if op.id != "r3":
        return seen
    (choice,) = seen.choices
    kept = [(0, 0), (2, 2), (2, 3), (4, 4), (4, 5), (7, 7)]
    choice.tokens = [choice.tokens[of] for _, of in kept]
    choice.top = [choice.top[of] for of, _ in kept]
    choice.logprobs = [choice.logprobs[of] for _, of in kept]
    return seen.model_copy(update={"stream": True})


@pytest.mark.parametrize(
    ("engine", "seen"), [("sglang", []), ("vllm", [FindingClass.WRONG_ANSWER])]
)
def test_tokens_that_a_stream_left_out_are_no_wrong_answer(
    engine: str, seen: list[FindingClass]
) -> None:
    case = case_of(40, engine)
    judged = compare_with_reference(case, play(case, change=gappy), play(case))
    assert classes(judged) == seen, "where streams tell each token, a gap is one"


def test_anothers_answer_in_such_a_stream_is_seen() -> None:
    case = case_of(40, "sglang")
    wrong = play(case, answers={"r3": prompt_of(case.operations[4])}, change=gappy)
    judged = compare_with_reference(case, wrong, play(case))
    assert [(s.finding_class, s.operations) for s in judged.sightings] == [
        (FindingClass.CROSS_TALK, ["r3"])
    ]


def test_where_streams_mislead_only_those_that_somebody_waits_for_are_compared_as_streams() -> (
    None
):
    case = case_of(5, "sglang")
    case.operations[1:5] = [
        operation(1, stream=True),
        operation(2, stream=True, leave="tokens>=2"),
        operation(3, stream=True, after=["r1.end"]),
        operation(4, stream=True, after=["r3.first-token"]),
    ]
    assert [op.stream for op in comparable(case).operations] == [
        False,
        False,
        True,
        True,
        False,
    ]
    plain = reference_case(case, get_engine("sglang"))
    assert not any(op.stream for op in plain.operations)
    other = case.model_copy(update={"server": case_of(1).server})
    assert [op.stream for op in comparable(other).operations] == [False, *[True] * 4]
