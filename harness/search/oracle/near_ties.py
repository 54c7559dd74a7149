"""Two greedy answers to one request: the same, parted at a near-tie, or different.

Greedy decoding takes the likeliest token, so the least rounding error turns a near-tie
round, and the rest of the answer with it. What a batch, a chunk or another number
format does to an answer is told from a wrong one by how far the odds of the two tokens
moved between the two plays: noise moves the odds at the place where the answers part as
little as at all the places before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median, quantiles

from mmrepro.traffic import MAX_LOGPROBS, TEXT_LIMIT
from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord

FLOOR_ROUNDED = 0.25
"""Nats. bfloat16 keeps eight significant bits: between 8 and 16 two neighbouring logits
are 1/16 apart, and each of the two tokens' logits may be off by a step or two in either
play."""
FLOOR_EXACT = 0.002
"""Nats; float32 on both sides: sums of some hundred products in another order."""
OUTLIER, _OTHERS = 0.05, 8
"""Nats by which no order of float32 sums moves odds, where so many answers at least are
there and most of them moved by less than ``FLOOR_EXACT``."""
_TAIL, _TIMES = 99, 3.0
"""The bound is so many times that percentile of what is seen where the answers
agree."""
_LEAST_SEEN = 50
"""Readings of the odds that a percentile wants."""
_CEILING = 2.0
"""Nats. Where that much is noise (odds moved sevenfold), answers are not worth
comparing."""
_FORBIDDEN = -1000.0
"""A logprob below it is no number that was computed: softmax ends at -104 in float32. A
mask stood there (a grammar, ``min_tokens``), which vLLM writes as -9999 and SGLang as
-inf."""
HIDDEN = frozenset(("", "\ufffd"))
"""Bytes of a character that is not whole: other tokens are spelled the same."""
_WINDOW = 4
"""Tokens before and behind a place that was found by text alone: a character has up to
four."""


class TieVerdict(StrEnum):
    SAME = "same"
    NEAR_TIE = "near-tie"
    DIFFERS = "differs"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Token:
    """One token of an answer, and the likeliest ones in its place, itself among them or
    not.

    ``id``: its number; None: the server does not tell it.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    id: int | None = None

    def like(self, other: Token) -> bool:
        """The same token, as far as it can be told."""
        if self.id is not None and other.id is not None:
            return self.id == other.id
        return (
            self.text == other.text
            or self.spelled_out(other)
            or other.spelled_out(self)
        )

    def spelled_out(self, other: Token) -> bool:
        """Whether its text is the bytes of ``other``, a character each: where other
        servers write U+FFFD, SGLang does so from 0.5.23 on (``_lossless_token_text`` in
        its openai/utils.py)."""
        if "\ufffd" not in other.text:
            return False
        try:
            return self.text.encode("latin-1").decode("utf-8", "replace") == other.text
        except UnicodeEncodeError:
            return False

    @property
    def others(self) -> list[tuple[str, float]]:
        """The likeliest ones but itself."""
        others = list(self.top)
        if (self.text, self.logprob) in others:
            others.remove((self.text, self.logprob))
        return others

    def odds(self, other: Token) -> float | None:
        """How much likelier it is than ``other``, as a logarithm. Of one that is not
        among the
        likeliest: at least that; None: it cannot be told."""
        if not self.others or other.hidden or self._overwritten:
            return None
        logprobs = [logprob for text, logprob in self.others if text == other.text]
        return self.logprob - max(
            logprobs or [min(logprob for _, logprob in self.others)]
        )

    def passed_over(self, other: Token) -> float:
        """By how much ``other`` was likelier, as far as that is told; 0: it was not."""
        logprobs = [logprob for text, logprob in self.others if text == other.text]
        return (
            max(0.0, logprobs[0] - self.logprob)
            if len(logprobs) == 1 and not other.hidden
            else 0.0
        )

    def forbids(self, other: Token) -> bool:
        """Whether a mask left no room for ``other`` in its place, as far as that is
        told."""
        odds = self.odds(other)
        return (
            self.logprob > _FORBIDDEN
            and odds is not None
            and self.logprob - odds < _FORBIDDEN
        )

    @property
    def lead(self) -> float | None:
        """Over the likeliest other token; None: it cannot be told."""
        if self._overwritten:
            return None
        return self.logprob - max(p for _, p in self.others) if self.others else None

    @property
    def _overwritten(self) -> bool:
        """Whether others stand in its place: of tokens that are spelled alike SGLang,
        and vLLM of a completion, tell the last one only."""
        return self.text in HIDDEN and (self.text, self.logprob) not in self.top

    @property
    def hidden(self) -> bool:
        """Whether it may be another one that is spelled alike."""
        return self.id is None and self.text in HIDDEN


@dataclass(frozen=True)
class TokenAnswer:
    """What one choice of an answer holds. ``whole``: its end was seen, and nothing was
    cut off."""

    text: str
    tokens: tuple[Token, ...] = ()
    whole: bool = True

    @classmethod
    def of(cls, choice: ChoiceSeen, *, whole: bool = True) -> TokenAnswer:
        count = len(choice.tokens)
        top = [*choice.top, *([[]] * (count - len(choice.top)))]
        ids = choice.token_ids if len(choice.token_ids) == count else [None] * count
        seen = zip(choice.tokens, choice.logprobs, top, ids, strict=False)
        tokens = tuple(
            Token(text, logprob, tuple(t), id) for text, logprob, t, id in seen
        )
        return cls(choice.text, tokens, whole)


@dataclass(frozen=True)
class Compared:
    """Two answers beside each other.

    Attributes:
        alike: tokens (without logprobs: characters) before the first difference.
        moved: nats by which the odds of the two tokens moved there; None: undecided.
    """

    verdict: TieVerdict
    alike: int = 0
    moved: float | None = None
    said: str = ""


def answers(record: RequestRecord) -> list[TokenAnswer]:
    """The choices of ``record``, in order; [] if there is none."""
    given: list[TokenAnswer] = []
    for choice in record.choices:
        cut = len(choice.text) >= TEXT_LIMIT or len(choice.tokens) >= MAX_LOGPROBS
        given.append(TokenAnswer.of(choice, whole=record.answered and not cut))
    return given


def drift(one: TokenAnswer, other: TokenAnswer) -> Iterator[float]:
    """How far the odds of any two tokens moved from ``one`` to ``other``, where they
    agree."""
    for a, b in zip(one.tokens, other.tokens, strict=False):
        if not a.like(b):
            return
        there = _unique(b.others)
        for text, logprob in _unique(a.others).items():
            if text in there:
                yield abs((a.logprob - logprob) - (b.logprob - there[text]))


def outliers(drifts: Sequence[float]) -> set[int]:
    """Places of answers that were computed from something else, although their tokens
    agree.

    Args:
        drifts: of each answer how far its odds moved at most; both plays ran in
            float32.
    """
    if len(drifts) < _OTHERS or median(drifts) > FLOOR_EXACT:
        return set()
    return {place for place, moved in enumerate(drifts) if moved > OUTLIER}


def bound_of(drifts: Iterable[float], *, exact: bool = False) -> float | None:
    """Nats below which odds that moved are noise; None: the noise drowns everything.

    Args:
        drifts: of many pairs of answers, see ``drift``.
        exact: both plays ran in float32.
    """
    floor = FLOOR_EXACT if exact else FLOOR_ROUNDED
    seen = list(drifts)
    if len(seen) < _LEAST_SEEN:
        return floor
    bound = max(floor, _TIMES * quantiles(seen, n=100)[_TAIL - 1])
    return bound if bound < _CEILING else None


def compare(
    one: TokenAnswer,
    other: TokenAnswer,
    bound: float,
    *,
    exact: bool = False,
    shaped: bool = False,
    masked: bool = False,
) -> Compared:
    """``one`` against ``other``, which is what it should be.

    Args:
        bound: nats; see ``bound_of``.
        exact: the engine's answers do not depend on how they were computed, so that a
            difference counts without logprobs too.
        shaped: penalties, biases or a grammar had their say: the likeliest token need
            not have been taken.
        masked: of these only such as forbid tokens, and leave the odds of the others as
            they are. What one answer took is allowed, after the same tokens, in the
            other as well.
    """
    place = _parting(one, other)
    if place is not None:
        return _judged(one, other, place, bound, shaped, masked)
    if _same_text(one, other):
        return Compared(TieVerdict.SAME, len(one.tokens) or len(one.text))
    return _by_text(one, other, bound, exact)


def _parting(one: TokenAnswer, other: TokenAnswer) -> int | None:
    """The first place with different tokens; None: there is none in what both tell."""
    for place, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if not a.like(b):
            return place
    short, long = sorted((one, other), key=lambda answer: len(answer.tokens))
    if short.tokens and short.whole and len(short.tokens) < len(long.tokens):
        return len(short.tokens) if not _same_text(one, other) else None
    return None


def _same_text(one: TokenAnswer, other: TokenAnswer) -> bool:
    if one.whole and other.whole:
        return one.text == other.text
    short, long = sorted((one, other), key=lambda answer: answer.whole)
    return long.text.startswith(short.text)


def _judged(
    one: TokenAnswer,
    other: TokenAnswer,
    place: int,
    bound: float,
    shaped: bool,
    masked: bool,
) -> Compared:
    """Two answers whose tokens part at ``place``."""
    before = zip(one.tokens[:place], other.tokens[:place], strict=True)
    for earlier, pair in enumerate(before):
        if why := _parted_unseen(pair, bound, shaped):
            return Compared(
                TieVerdict.NEAR_TIE, earlier, None, f"token {earlier + 1} {why}"
            )

    a = one.tokens[place] if place < len(one.tokens) else None
    b = other.tokens[place] if place < len(other.tokens) else None
    moved = _moved(a, b, shaped)
    if masked and a is not None and b is not None:
        moved = max(
            filter(None, (moved, a.passed_over(b), b.passed_over(a))), default=moved
        )

    said = f"token {place + 1}: {_named(a)} against {_named(b)}"
    said += _spelled(one, other, (a, b))
    if moved is None:
        return Compared(
            TieVerdict.NOT_COMPARABLE, place, None, f"{said}, without logprobs"
        )

    if a is not None and b is not None and b.forbids(a) != a.forbids(b):
        refused = _named(a if b.forbids(a) else b)
        said += f"; a mask, such as a grammar's, forbids {refused} in the other answer"
    else:
        said += f"; the odds moved by {moved:.3f} nats, noise is below {bound:.3f}"

    verdict = TieVerdict.NEAR_TIE if moved < bound else TieVerdict.DIFFERS
    return Compared(verdict, place, moved, said)


def _parted_unseen(pair: tuple[Token, Token], bound: float, shaped: bool) -> str:
    """Why the answers may have parted at two tokens that look alike; "": they have
    not."""
    leads = [token.lead for token in pair if token.lead is not None]
    if any(token.hidden for token in pair) and (
        len(leads) < len(pair) or min(leads) < bound
    ):
        return "is part of a character, and may be another one"

    if not shaped and leads and -bound < min(leads) < 0 <= max(leads):
        return "is not the likeliest in one of the plays"  # what follows may be about the other
    return ""


def _moved(a: Token | None, b: Token | None, shaped: bool) -> float | None:
    """How far the odds moved, as far as at least one of the plays tells it.

    Where a play says that it did not take the likeliest token, what counts is how much
    likelier the other one was: then it is the choice that is odd, not the odds."""
    if a is not None and b is not None:
        moves = [a.odds(b), b.odds(a)]
    else:  # one of them ended there, by a token that need not be shown
        token = a or b
        moves = [token.lead if token else None]

    known = [odds for odds in moves if odds is not None]
    if not known:
        return None
    return abs(sum(known)) if shaped or min(known) >= 0 else max(map(abs, known))


def _by_text(
    one: TokenAnswer, other: TokenAnswer, bound: float, exact: bool
) -> Compared:
    """Texts that part, of which at most one comes with tokens that tell where."""
    alike = _alike(one, other)
    said = (
        f"after {alike} characters: {_cut(one.text, alike)} against "
        f"{_cut(other.text, alike)}"
    )
    spelled = other if other.tokens else one
    leads = list(_leads(spelled, alike))
    if leads:
        moved = min(leads)
        verdict = TieVerdict.NEAR_TIE if moved < bound else TieVerdict.DIFFERS
        said += f"; the token there led by {moved:.3f} nats, noise is below {bound:.3f}"
        return Compared(verdict, alike, moved, said)

    if exact:
        return Compared(TieVerdict.DIFFERS, alike, None, said)
    return Compared(TieVerdict.NOT_COMPARABLE, alike, None, f"{said}, without logprobs")


def _alike(one: TokenAnswer, other: TokenAnswer) -> int:
    """Characters before the first difference."""
    pairs = zip(one.text, other.text, strict=False)
    ends = min(len(one.text), len(other.text))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), ends)


def _leads(answer: TokenAnswer, alike: int) -> Iterator[float]:
    """What led by how much around the character ``alike``: of all tokens that may stand
    there."""
    at, first, last = 0, 0, len(answer.tokens) - 1
    for place, token in enumerate(answer.tokens):
        if answer.text.startswith(token.text, at):
            at += len(token.text)
        if at <= alike:
            first = place
        else:
            last = place
            break

    for token in answer.tokens[max(0, first - _WINDOW) : last + _WINDOW + 1]:
        if token.lead is not None:
            yield token.lead


def _unique(top: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Without tokens that are spelled alike, or may be: SGLang tells one of those
    only."""
    texts = [text for text, _ in top]
    return {t: logprob for t, logprob in top if texts.count(t) == 1 and t not in HIDDEN}


def _spelled(
    one: TokenAnswer, other: TokenAnswer, tokens: tuple[Token | None, Token | None]
) -> str:
    """Where the tokens that part are known by their numbers: what the texts say from
    there on."""
    at = _alike(one, other)
    if not any(map(_by_number, tokens)) or at == max(len(one.text), len(other.text)):
        return ""
    return f" ({_cut(one.text, at, 8)} against {_cut(other.text, at, 8)})"


def _by_number(token: Token | None) -> bool:
    if token is None or token.id is None:
        return False
    return token.text in HIDDEN or token.text == f"token_id:{token.id}"


def _named(token: Token | None) -> str:
    if token is None:
        return "the end"
    return f"token number {token.id}" if _by_number(token) else repr(token.text)


def _cut(text: str, at: int, most: int = 24) -> str:
    return repr(text[at : at + most]) if at < len(text) else "the end"
