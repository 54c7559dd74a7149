"""The content-swap control: cross-talk is what depends on the content of neighbours
alone."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from made_up_answers import play, prompt_of
from mmrepro.base.records import FindingClass
from mmrepro.search.oracle.crosstalk import (
    LEAST_RUNS,
    crosstalk,
    other_neighbours,
    permutation_test,
    reworded,
    runs_needed,
)
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import (
    Case,
    Image,
    Message,
    Near,
    Noise,
    Operation,
    Part,
    ServerWanted,
)
from mmrepro.traffic.case.sending import Played, PlayState

SYSTEM = "You are helpful. "


def case_of(*texts: str, images: dict[str, Image] | None = None) -> Case:
    operations = [
        Operation(
            id=f"r{number}",
            after=["running<=1"],
            messages=[
                Message(role="system", content=SYSTEM),
                Message(role="user", content=text),
            ],
            parameters={"temperature": 0},
        )
        for number, text in enumerate(texts)
    ]
    server = ServerWanted(engine="vllm", release="0.23.0")
    return Case(server=server, operations=operations, images=images or {})


CASE = case_of(
    "the target", "a neighbour", "the target's other neighbour", "a neighbour"
)


class Server:
    """FAKE: answers by prompt, and as ``leaks`` says by the prompts of others."""

    def __init__(
        self, leaks: Callable[[Case, int], str] = lambda case, number: "", **more: float
    ):
        self.leaks, self.more = leaks, more
        self.cases: list[Case] = []

    def __call__(self, case: Case) -> Played:
        self.cases.append(case)
        number = len(self.cases)
        answers = {"r0": prompt_of(case.operations[0]) + self.leaks(case, number)}
        return play(case, answers=answers, seed=number, **self.more)


def neighbour(case: Case, number: int) -> str:
    return prompt_of(case.operations[1])


def test_an_answer_that_depends_on_a_neighbours_content_is_cross_talk() -> None:
    server = Server(neighbour, noise=0.03)
    judged = crosstalk(CASE, ["r0"], server)
    assert [s.finding_class for s in judged.sightings] == [FindingClass.CROSS_TALK]
    assert judged.sightings[0].operations == ["r0"]
    assert len(server.cases) == 2 * LEAST_RUNS
    assert "25 of 25 pairs of answers differ" in judged.sightings[0].said


@pytest.mark.parametrize(
    ("leaks", "why"),
    [
        (lambda case, number: "", "nothing leaks"),
        (lambda case, number: str(random.Random(number).random()), "it is random"),
        (
            lambda case, number: str(len(prompt_of(case.operations[1]))),
            "it depends on the shape",
        ),
        (lambda case, number: str(case.operations[1].after), "it depends on the order"),
    ],
)
def test_what_is_no_content_is_no_cross_talk(
    leaks: Callable[[Case, int], str], why: str
) -> None:
    judged = crosstalk(CASE, ["r0"], Server(leaks, noise=0.03))
    assert judged.sightings == [], why
    assert sum(judged.counted.values()) == 1


def test_near_ties_that_go_with_the_content_are_no_cross_talk() -> None:
    """Noise that the other contents shift for good: each side is of one mind, and apart
    by less than noise. Without the bound on near-ties it is reported."""

    def shifted(case: Case) -> Played:
        swapped = prompt_of(case.operations[1]) != prompt_of(CASE.operations[1])
        return play(case, noise=0.06, seed=int(swapped), tokens=60)

    one, other = (shifted(case) for case in (CASE, other_neighbours(CASE, "r0", 1, {})))
    texts = [played.evidence.requests[0].text for played in (one, other)]
    assert texts[0] != texts[1]  # or there is nothing to be fooled by
    assert crosstalk(CASE, ["r0"], shifted).sightings == []


def test_the_target_and_what_it_shares_stay() -> None:
    images: dict[str, Image] = {
        "own": Near(of="base", seed=1),
        "base": Noise(seed=1, size=(56, 28)),
        "same": Noise(seed=1, size=(56, 28)),
        "theirs": Noise(seed=2, size=(84, 28)),
        "again": Noise(seed=2, size=(84, 28)),
        "near": Near(of="theirs", seed=3),
    }
    images = {
        name: images[name]
        for name in ("base", "own", "same", "theirs", "again", "near")
    }
    case = case_of("the target", "the tangent", images=images)
    for op, names in zip(case.operations, (["own"], list(images)), strict=True):
        assert op.messages is not None
        op.messages.append(
            Message(
                role="user",
                content=[Part(image=n) for n in names] + [Part(text="end 1")],
            )
        )
    made = other_neighbours(case, "r0", 1, pictures(case, None))
    Case.model_validate(made.model_dump())
    assert made.operations[0] == case.operations[0]
    before, after = pictures(case, None), pictures(made, None)
    assert after["own"].png == before["own"].png
    shown = dict(zip(images, made.operations[1].images, strict=True))
    assert shown["own"] == "own"  # which is shared; what it is made of is not
    assert {n for n in images if before[n].png == after[shown[n]].png} == {"own"}
    assert (
        after[shown["theirs"]].png
        == after[shown["again"]].png
        != after[shown["near"]].png
    )
    for name, new in shown.items():
        sizes = [(p.width, p.height) for p in (before[name], after[new])]
        assert sizes[0] == sizes[1]
    _, theirs = made.operations
    assert theirs.messages is not None
    system, user, last = theirs.messages
    assert system.content == SYSTEM
    assert isinstance(user.content, str)
    assert (user.content[:6], len(user.content)) == ("the ta", len("the tangent"))
    assert user.content != "the tangent"
    assert last.parts()[-1].text != "end 1"
    assert theirs.after == case.operations[1].after


def test_ids_of_a_plain_prompt_are_exchanged() -> None:
    case = case_of("a", "b")
    case.operations = [
        op.model_copy(
            update={"messages": None, "prompt": prompt, "path": "/v1/completions"}
        )
        for op, prompt in zip(
            case.operations, ([1, 2, 3, 4], [1, 2, 9, 8, 7, 6, 5]), strict=True
        )
    ]
    made = other_neighbours(case, "r0", 1, {})
    prompt = made.operations[1].prompt
    assert isinstance(prompt, list)
    assert (prompt[:2], len(prompt)) == ([1, 2], 7)
    assert prompt != case.operations[1].prompt
    assert set(prompt) <= set(range(1, 10))


@given(
    st.text(max_size=40), st.text(max_size=20), st.text(max_size=20), st.integers(0, 9)
)
def test_other_words_are_as_long_and_share_as_much(
    start: str, one: str, two: str, seed: int
) -> None:
    a, b = (reworded(start + end, seed, 0) for end in (one, two))
    assert a[: len(start)] == b[: len(start)]
    for made, text in ((a, start + one), (b, start + two)):
        assert len(made.encode("utf-8", "replace")) == len(
            text.encode("utf-8", "replace")
        )
    assert reworded(start + one, seed, len(start))[: len(start)] == start


def test_nothing_is_shared_behind_the_first_difference() -> None:
    """A cache that goes by beginnings takes nothing from there."""
    case = case_of("the same text", "the same text")
    op = case.operations[1]
    assert op.messages is not None
    op.messages[0] = Message(role="system", content="You are rude.... ")
    made = other_neighbours(case, "r0", 1, {}).operations[1]
    assert made.messages is not None
    system, user = (message.content for message in made.messages)
    assert isinstance(system, str)
    assert system[:8] == "You are "
    assert len(user) == len("the same text")
    assert user != "the same text"


def test_neighbours_stay_apart() -> None:
    """What the contents are is another matter than whether they are the same."""
    texts = ["one two", "six ten", "one ten", "ton two"]
    assert len({reworded(text, 4, 0) for text in texts}) == len(texts)


def test_other_words_are_others() -> None:
    text = "What does the picture show, 42 times? Привет 你好 🙂"
    made = [reworded(text, seed, 0) for seed in range(20)]
    assert len({text, *made}) == 21
    assert reworded(text, 3, 0) == made[3]


def test_the_exact_test_knows_the_smallest_chance() -> None:
    apart = {(i, j): float((i < 5) != (j < 5)) for j in range(10) for i in range(j)}
    assert permutation_test(apart, 5, 10) == pytest.approx(2 / 252)
    nothing = dict.fromkeys(apart, 0.0)
    assert permutation_test(nothing, 5, 10) == 1.0


@given(st.randoms(use_true_random=False), st.floats(0.05, 0.95))
def test_chance_is_seldom_taken_for_a_reason(
    chance: random.Random, share: float
) -> None:
    """Answers of two kinds, drawn alike on both sides: of a thousand tests ten may be
    fooled."""
    answers = [chance.random() < share for _ in range(10)]
    apart = {
        (i, j): float(answers[i] != answers[j]) for j in range(10) for i in range(j)
    }
    p = permutation_test(apart, 5, 10)
    perfect = (
        len(set(answers[:5])) == len(set(answers[5:])) == 1 and answers[0] != answers[9]
    )
    assert (p < 0.01) == perfect


def test_several_suspects_want_more_plays() -> None:
    assert [runs_needed(n) for n in (1, 2, 3)] == [5, 6, 6]


def test_each_suspect_has_its_own_control_and_shares_the_plays_as_it_is() -> None:
    server = Server(neighbour)
    judged = crosstalk(CASE, ["r0", "r2"], server)
    assert [s.operations for s in judged.sightings] == [["r0"]]
    assert len(server.cases) == 3 * 6


def test_more_suspects_than_are_tried_are_told() -> None:
    case = case_of(*(f"prompt {number}" for number in range(5)))
    judged = crosstalk(case, [op.id for op in case.operations], play)
    assert [said[:3] for said in judged.unseen] == ["r3:", "r4:"]


def test_too_few_answers_are_told() -> None:
    number = iter(range(100))

    def sometimes(case: Case) -> Played:
        return play(case) if next(number) % 2 else Played(state=PlayState.START_FAILED)

    judged = crosstalk(CASE, ["r0"], sometimes)
    assert judged.sightings == []
    assert "0 and 5 answers" in judged.unseen[0]
