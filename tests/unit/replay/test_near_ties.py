"""Near-ties: noise is never taken for an error, another answer always is."""

import random

import pytest
from hypothesis import given, strategies as st
from made_up_answers import answered
from mmrepro.search.oracle import near_ties
from mmrepro.search.oracle.near_ties import TieVerdict, Token, TokenAnswer
from mmrepro.traffic.evidence import ChoiceSeen

PROMPTS = st.text("abcdef", min_size=1, max_size=6)
BOUND = near_ties.FLOOR_ROUNDED


def of(prompt: str, noise: float = 0.0, seed: int = 0, tokens: int = 12) -> TokenAnswer:
    return TokenAnswer.of(
        answered(prompt, tokens, noise=noise, chance=random.Random(seed))
    )


@given(PROMPTS, st.integers(), st.integers(), st.floats(0, BOUND / 4.001))
def test_noise_alone_is_never_an_error(
    prompt: str, one: int, two: int, noise: float
) -> None:
    """Each of two logits is off by up to ``noise`` in each of two plays: four times
    that."""
    compared = near_ties.compare(of(prompt, noise, one), of(prompt, noise, two), BOUND)
    assert compared.verdict in (TieVerdict.SAME, TieVerdict.NEAR_TIE)


@given(PROMPTS, PROMPTS, st.floats(0, 0.3), st.floats(0.01, 1.5))
def test_which_side_is_the_reference_does_not_matter(
    one: str, two: str, noise: float, bound: float
) -> None:
    a, b = of(one, noise, 1), of(two, noise, 2)
    there, back = near_ties.compare(a, b, bound), near_ties.compare(b, a, bound)
    assert (there.verdict, there.alike) == (back.verdict, back.alike)


@given(PROMPTS, st.integers(0, 1000), st.floats(0.01, 1.0))
def test_a_wider_bound_never_makes_an_error_of_a_near_tie(
    prompt: str, seed: int, bound: float
) -> None:
    a, b = of(prompt), of(prompt, 0.3, seed)
    narrow, wide = near_ties.compare(a, b, bound), near_ties.compare(a, b, 2 * bound)
    assert not (
        narrow.verdict is TieVerdict.NEAR_TIE and wide.verdict is TieVerdict.DIFFERS
    )


def test_other_prompts_have_other_answers() -> None:
    """The share of other answers that pass for a near-tie is what the bound costs."""
    missed = sum(
        near_ties.compare(of(f"one {i}"), of(f"two {i}"), BOUND).verdict
        is not TieVerdict.DIFFERS
        for i in range(400)
    )
    assert missed <= 4


def changed(answer: TokenAnswer, place: int, text: str) -> TokenAnswer:
    """As a proxy would: the token and the text, and nothing else."""
    tokens = list(answer.tokens)
    logprob = dict(tokens[place].top)[text]
    tokens[place] = Token(text, logprob, tokens[place].top)
    return TokenAnswer("".join(token.text for token in tokens), tuple(tokens))


def near_tie(bound: float) -> tuple[TokenAnswer, int, str]:
    for number in range(1000):
        answer = of(f"prompt {number}")
        for place, token in enumerate(answer.tokens[1:], start=1):
            if token.lead is not None and token.lead < bound:
                return answer, place, token.top[1][0]
    raise AssertionError("there is no near-tie")


def clear_case() -> tuple[TokenAnswer, int, str]:
    for number in range(1000):
        answer = of(f"prompt {number}")
        for place, token in enumerate(answer.tokens[1:], start=1):
            if token.lead is not None and token.lead > 3 * BOUND:
                return answer, place, token.top[1][0]
    raise AssertionError("everything is a near-tie")


def test_a_flipped_near_tie_is_one() -> None:
    answer, place, other = near_tie(BOUND / 2)
    compared = near_ties.compare(changed(answer, place, other), answer, BOUND)
    assert (compared.verdict, compared.alike) == (TieVerdict.NEAR_TIE, place)


def test_a_flip_back_to_the_references_token_hides_a_near_tie() -> None:
    """The play took another token, was given the reference's, and went on from its
    own."""
    near = (
        Token("b", -1.01, (("a", -1.0), ("b", -1.01))),
        Token("b", -1.0, (("b", -1.0), ("a", -1.01))),
    )
    far = (
        Token("x", -0.1, (("x", -0.1), ("y", -4.0))),
        Token("y", -0.1, (("y", -0.1), ("x", -4.0))),
    )
    one, other = (
        TokenAnswer(f"b{f.text}", (n, f)) for n, f in zip(near, far, strict=True)
    )
    compared = near_ties.compare(one, other, BOUND)
    assert (compared.verdict, compared.alike) == (TieVerdict.NEAR_TIE, 0)


def test_a_penalty_may_take_a_token_that_is_not_the_likeliest() -> None:
    """Logprobs are told as they were before it; that the odds hardly moved is what
    counts."""
    one = TokenAnswer("a", (Token("a", -3.0, (("b", -1.0), ("a", -3.0))),))
    other = TokenAnswer("b", (Token("b", -1.05, (("b", -1.05), ("a", -3.0))),))
    assert (
        near_ties.compare(one, other, BOUND, shaped=True).verdict is TieVerdict.NEAR_TIE
    )
    assert near_ties.compare(one, other, BOUND).verdict is TieVerdict.DIFFERS


def test_a_flip_where_one_token_led_is_an_error() -> None:
    answer, place, other = clear_case()
    compared = near_ties.compare(changed(answer, place, other), answer, BOUND)
    assert (compared.verdict, compared.alike) == (TieVerdict.DIFFERS, place)
    assert (
        f"token {place + 1}: {other!r} against {answer.tokens[place].text!r}"
        in compared.said
    )


@pytest.mark.parametrize("tie", [True, False])
def test_text_alone_is_held_against_the_tokens_of_the_other(tie: bool) -> None:
    answer, place, other = near_tie(BOUND / 2) if tie else clear_case()
    alone = TokenAnswer(changed(answer, place, other).text)
    # What leads least around there decides: it cannot be told which token it is.
    if not tie:
        tokens = tuple(
            Token(t.text, -0.1, ((t.text, -0.1), ("?", -4))) for t in answer.tokens
        )
        answer = TokenAnswer(answer.text, tokens)
    verdict = near_ties.compare(alone, answer, BOUND).verdict
    assert verdict is (TieVerdict.NEAR_TIE if tie else TieVerdict.DIFFERS)


def test_without_logprobs_only_sameness_is_told() -> None:
    assert (
        near_ties.compare(TokenAnswer("abc"), TokenAnswer("abc"), BOUND).verdict
        is TieVerdict.SAME
    )
    differing = near_ties.compare(TokenAnswer("abc"), TokenAnswer("abd"), BOUND)
    assert differing.verdict is TieVerdict.NOT_COMPARABLE
    certain = near_ties.compare(
        TokenAnswer("abc"), TokenAnswer("abd"), BOUND, exact=True
    )
    assert certain.verdict is TieVerdict.DIFFERS


def test_an_answer_that_was_cut_short_is_compared_as_far_as_it_came() -> None:
    answer = of("some prompt")
    for tokens in (answer.tokens[:3], ()):
        part = TokenAnswer(answer.text[:3], tokens, whole=False)
        assert near_ties.compare(part, answer, BOUND).verdict is TieVerdict.SAME
    whole = TokenAnswer(answer.text[:3], answer.tokens[:3])
    assert near_ties.compare(whole, answer, BOUND).verdict is not TieVerdict.SAME


def test_an_early_end_is_a_near_tie_only_where_the_next_token_hardly_led() -> None:
    for lead, verdict in ((0.1, TieVerdict.NEAR_TIE), (1.0, TieVerdict.DIFFERS)):
        leads = {
            "a": 1.1 - lead,
            "b": 1.1 - lead,
            "c": lead,
        }
        tokens = tuple(
            Token(t, -0.5, ((t, -0.5), ("<end>", -0.5 - leads[t]))) for t in "abc"
        )
        compared = near_ties.compare(
            TokenAnswer("ab", tokens[:2]), TokenAnswer("abc", tokens), BOUND
        )
        assert (compared.verdict, compared.alike) == (verdict, 2)


def test_half_a_character_may_hide_the_near_tie() -> None:
    """Two tokens that are spelled alike: the answers may have parted there already."""

    def spelled(second: float, last: str) -> TokenAnswer:
        half = Token("", -1.0, (("", -1.0), ("", second)))
        end = Token(last, -0.1, ((last, -0.1), ("z", -5.0)))
        return TokenAnswer("\ufffd" + last, (half, end))

    hidden = near_ties.compare(spelled(-1.01, "a"), spelled(-1.01, "b"), BOUND)
    assert (hidden.verdict, hidden.alike) == (TieVerdict.NEAR_TIE, 0)
    told = near_ties.compare(spelled(-4.0, "a"), spelled(-4.0, "b"), BOUND)
    assert told.verdict is TieVerdict.DIFFERS


def test_half_a_character_whose_rivals_are_not_told_may_hide_one() -> None:
    """As SGLang 0.5.17 told it of a sound play: of several such tokens the last one's
    logprob."""

    def spelled(logprob: float, last: str, lead: float) -> TokenAnswer:
        half = Token("\ufffd", logprob, (("\ufffd", -3.82), ("8", -3.49)))
        end = Token(last, -3.0, ((last, -3.0), ("z", -3.0 - lead)))
        return TokenAnswer("\ufffd" + last, (half, end))

    compared = near_ties.compare(
        spelled(-3.227, "v", 0.6), spelled(-3.217, "w", 0.6), BOUND
    )
    assert (compared.verdict, compared.alike) == (TieVerdict.NEAR_TIE, 0)


def test_numbers_tell_tokens_apart_that_are_spelled_alike() -> None:
    def half(id: int, second: float) -> TokenAnswer:
        top = (("\ufffd", -1.0), ("\ufffd", second))
        return TokenAnswer("\ufffd", (Token("\ufffd", -1.0, top, id),))

    assert (
        near_ties.compare(half(200, -1.1), half(201, -1.1), BOUND).verdict
        is TieVerdict.NEAR_TIE
    )
    apart = near_ties.compare(half(200, -3.0), half(201, -3.0), BOUND)
    assert apart.verdict is TieVerdict.DIFFERS
    assert "token number 200 against token number 201" in apart.said
    assert (
        near_ties.compare(half(200, -1.1), half(200, -1.1), BOUND).verdict
        is TieVerdict.SAME
    )


@pytest.mark.parametrize("forbidden", [-9999.0, float("-inf")])
def test_a_token_that_a_grammar_forbids_is_told_as_such(forbidden: float) -> None:
    """Of vLLM 0.24.0 and 0.32.0: xgrammar 0.2.8 lets a carriage return stand between
    values."""

    def spelled(text: str, first: int, odds: dict[int, float]) -> TokenAnswer:
        top = tuple((f"token_id:{number}", value) for number, value in odds.items())
        return TokenAnswer(
            f"{{\n{text}", (Token(f"token_id:{first}", odds[first], top, first),)
        )

    old = spelled("\t\n", 197, {197: -0.42, 220: -1.33, 1: forbidden})
    new = spelled("\r\t", 201, {201: -0.88, 197: -0.96, 220: -1.87})
    for one, other in ((new, old), (old, new)):
        compared = near_ties.compare(one, other, BOUND)
        assert compared.verdict is TieVerdict.DIFFERS
        assert compared.said.endswith("forbids token number 201 in the other answer")
    said = (
        "token number 197 against token number 201 ('\\t\\n' against '\\r\\t'); a mask"
    )
    assert said in compared.said
    allowed = spelled("\t\n", 197, {197: -0.42, 220: -1.33, 1: -30.0})
    assert "the odds moved by" in near_ties.compare(new, allowed, BOUND).said


def test_the_bound_follows_from_the_noise_that_is_seen() -> None:
    assert near_ties.bound_of([]) == near_ties.FLOOR_ROUNDED
    assert near_ties.bound_of([], exact=True) == near_ties.FLOOR_EXACT
    assert near_ties.bound_of([0.01] * 200) == near_ties.FLOOR_ROUNDED
    assert near_ties.bound_of([0.2] * 200) == pytest.approx(0.6)
    assert near_ties.bound_of([1.0] * 200) is None


def test_noise_is_seen_where_the_answers_agree_only() -> None:
    one, other = of("a prompt"), of("a prompt", 0.01, 1)
    assert 0 < max(near_ties.drift(one, other)) <= 0.04
    assert list(near_ties.drift(of("a prompt"), of("another"))) == []


def test_noise_is_not_read_off_tokens_that_may_be_two() -> None:
    """SGLang tells one of all tokens that are spelled alike, and not the same one each
    time."""

    def first(other: float) -> TokenAnswer:
        return TokenAnswer(
            "a", (Token("a", -1.0, (("a", -1.0), ("\ufffd", other), ("b", -2.0))),)
        )

    assert list(near_ties.drift(first(-1.5), first(-3.5))) == [0.0]


def test_tokens_without_logprobs_are_left_out() -> None:
    choice = ChoiceSeen(index=0, text="ab", tokens=["a", "b"], logprobs=[-0.1])
    assert [token.text for token in TokenAnswer.of(choice).tokens] == ["a"]


def test_an_answer_of_other_sums_is_told_from_noise() -> None:
    calm = [1e-4] * 6
    assert near_ties.outliers([*calm, 0.3, 0.01]) == {6}
    assert not near_ties.outliers([*calm[:5], 0.3, 0.3])  # too few to tell
    # A server whose sums differ everywhere.
    assert not near_ties.outliers([0.01] * 12 + [0.3])
    assert not near_ties.outliers([*calm, near_ties.OUTLIER, near_ties.OUTLIER])
    assert not near_ties.outliers([])


def test_tokens_that_are_spelled_alike_are_held_apart_by_their_numbers() -> None:
    """Of vLLM 0.33.0, one completion with its prefix cache and without: a tie, rounded
    otherwise. By their texts, all of them "", one value stands for all, here that of a
    third token."""

    def told(first: int, odds: dict[int, float], *, by_number: bool) -> TokenAnswer:
        def spelled(number: int) -> str:
            return f"token_id:{number}" if by_number else ""

        top = {spelled(number): value for number, value in odds.items()}
        token = Token(spelled(first), odds[first], tuple(top.items()), first)
        return TokenAnswer("", (token,))

    prefix, plain = (
        {242: -1.25, 105: -1.43, 7: -5.28},
        {242: -1.36, 105: -1.31, 7: -5.26},
    )
    answers = [
        (told(242, prefix, by_number=n), told(105, plain, by_number=n))
        for n in (True, False)
    ]
    exact, blurred = (near_ties.compare(one, other, 0.75) for one, other in answers)
    assert exact.verdict is TieVerdict.NEAR_TIE
    assert exact.said.startswith(
        "token 1: token number 242 against token number 105; the odds"
    )
    assert exact.moved == pytest.approx(0.23)
    assert (blurred.verdict, blurred.moved) == (TieVerdict.NOT_COMPARABLE, None)
